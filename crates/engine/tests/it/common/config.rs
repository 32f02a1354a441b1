//! Configuration of a host's engine; the examples are compiled with it too.
use engine::Span;
use engine::host::{HostConfig, VolumeConfig};
use nvme::host::{Digests, HostIdentity};

const SECOND: u64 = 1_000_000_000;

/// These volumes on one core.
pub fn host(volumes: Vec<VolumeConfig>) -> HostConfig {
    HostConfig {
        core: 0,
        cores: 1,
        identity: HostIdentity {
            nqn: "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555".into(),
            id: [7; 16],
        },
        digests: Digests::default(),
        kato_ms: 5_000,
        connect_timeout_ns: 3 * SECOND,
        io_timeout_ns: 10 * SECOND,
        io_max: 64,
        scratch: Span::default(),
        volumes,
    }
}
