//! Components of a layout's processes.
use super::prelude::*;
use super::rig::{Away, IO_TIMEOUT_NS, SPARE_PATHS};
use super::wire_recorder::ENTRIES;
use alloc::string::ToString;
use core::net::SocketAddr;
use engine::export::{ExportConfig, Offer};
use engine::host::{HostConfig, Multipath, PathConfig, PathKind, Recovery, VolumeConfig};
use engine::limits::EXPORT_ARENA_MIN;
use engine::target::{TargetConfig, TargetEngine};
use nvme::controller::{NamespaceConfig, PortConfig, SubsystemConfig};
use nvme::host::HostIdentity;

pub(super) const NQN: &str = "nqn.2026-01.org.example:chaos";
/// Data in a capsule; and where paths are probed with them.
const IN_CAPSULE: u32 = 1024;
const IN_CAPSULE_OF_PROBES: u32 = 4096;
const TRANSFER_SHIFT: u8 = 13;
/// The smallest buffer of a target's arena.
const BUFFER_MIN: u64 = 4096;

/// Blocks of the namespace.
pub(super) fn blocks(layout: &Layout) -> u64 {
    if layout.mirror.is_some() {
        return LEG_BYTES / BLOCK as u64;
    }
    let blocks = match layout.more.large {
        true => 2 * u64::from(nbd::limits::BLOCK_MAX) / BLOCK as u64,
        false => layout.blocks,
    };
    // All are there also where a quarter of them is not.
    layout.more.base / BLOCK as u64 * 2 + blocks
}

/// The least memory that a target can do with: two transfers, and for each connection a capsule's
/// data.
fn tight_bytes(connections: u32) -> u64 {
    let capsule = u64::from(IN_CAPSULE_OF_PROBES).max(BUFFER_MIN);
    (2 << TRANSFER_SHIFT) + u64::from(connections) * capsule
}

pub(super) const EXPORT: ExportConfig = ExportConfig {
    clients_max: 8,
    requests_max: 32,
    arena_bytes: EXPORT_ARENA_MIN,
};

/// One core of a host with these volumes.
pub(super) fn host_config(
    layout: &Layout,
    core: u16,
    identity: HostIdentity,
    volumes: Vec<VolumeConfig>,
) -> HostConfig {
    HostConfig {
        core,
        cores: layout.cores,
        identity,
        digests: layout.digests(),
        kato_ms: KATO_MS,
        connect_timeout_ns: 1_000_000_000,
        io_timeout_ns: IO_TIMEOUT_NS,
        io_max: layout.io_max,
        volumes,
        scratch: Span {
            at: EXPORT_ARENA_MIN,
            len: layout.more.scratch_bytes,
        },
    }
}

impl Rig {
    /// The world's disk that a process of the target has.
    pub(super) fn disk_of(&self, target: usize) -> usize {
        target % self.layout.mirror.map_or(1, |it| it.legs)
    }

    /// One core of a process of a host.
    pub(super) fn host_engine(&self, number: usize, core: u16) -> Core {
        let layout = &self.layout;
        if let Some(shape) = layout.mirror {
            return self.mirror_engine(number, core, shape);
        }
        let recovery = Recovery {
            unclean_stop_ns: self.hosts[number].mark_ns,
            unreported_loss: self.hosts[number].losses & 1 != 0,
            marks: Some(0),
            quiesce_ns: QUIESCE_NS,
            ..Recovery::default()
        };
        let volume = VolumeConfig {
            name: "v0".into(),
            policy: layout.policy,
            knobs: Knobs::default(),
            paths: self.hosts[number].known.iter().copied().map(path).collect(),
            recovery,
        };
        let config = host_config(layout, core, identity(number), vec![volume]);
        let room = layout.targets * usize::from(layout.ports) + SPARE_PATHS;
        let mut engine = Core::new(Multipath::with_room(config, room), 1, EXPORT);
        let offer = Offer {
            volume: 0,
            name: "v0".into(),
            read_only: false,
        };
        engine.handle_control(ExportControl::Offer(0, offer), self.world.now_ns);
        let arena_at = EXPORT_ARENA_MIN + u64::from(layout.more.scratch_bytes);
        front::add_server(&mut engine, layout, core, arena_at);
        engine
    }

    /// Returns the namespaces of a process of the target.
    fn namespaces(&self, number: usize) -> Vec<NamespaceConfig> {
        let other = match self.away[number] {
            Away::No if self.foreign[number] => 2,
            Away::No => 0,
            Away::Other => 1,
            Away::None => return Vec::new(),
        };
        let leg = self.disk_of(number) as u8;
        let id = 1 + other + 0x10 * leg;
        vec![namespace(self.sizes[number], [id, id + 0xa0], true)]
    }

    /// A process of the target.
    pub(super) fn target_config(&self, number: usize) -> TargetConfig {
        let layout = &self.layout;
        let cntlid = 1 + 1000 * number as u16;
        let each = layout.hosts as u32 * u32::from(layout.cores + 1) * u32::from(layout.ports);
        let spare = layout.more.connections_spare;
        let connections_max = spare.map_or(24, |spare| each + spare);
        let port = |id| port(id, SocketAddr::from(([192, 0, 2, 1], 4420)));
        let namespaces = self.namespaces(number);
        let devices = vec![LocalDevice(0); namespaces.len()];
        TargetConfig {
            subsystem: SubsystemConfig {
                nqn: nqn(self.disk_of(number)),
                serial: "CHAOS".into(),
                namespaces,
                ports: (1..=layout.ports).map(port).collect(),
                io_queues_max: 4,
                transfer_shift: TRANSFER_SHIFT,
                in_capsule_max: match layout.more.loses_writes {
                    true => IN_CAPSULE_OF_PROBES,
                    false => IN_CAPSULE,
                },
                cqt_ms: layout.more.cqt_ms,
                volatile_write_cache: layout.caches,
                compare: true,
                lba_status: true,
                connections_max,
                ..subsystem(cntlid)
            },
            shapes: vec![shape::Config::default(); usize::from(layout.ports)],
            devices,
            arena_bytes: match layout.more.tight {
                true => tight_bytes(connections_max),
                false => 2 << 20,
            },
            seed: self.seed,
        }
    }
}

/// A subsystem whose controllers have numbers from `cntlid` on, as far as all are alike.
pub(super) fn subsystem(cntlid: u16) -> SubsystemConfig {
    SubsystemConfig {
        nqn: String::new(),
        serial: String::new(),
        model: "braid".into(),
        cntlid_min: cntlid,
        cntlid_max: cntlid + 999,
        namespaces: Vec::new(),
        ports: Vec::new(),
        hosts: Vec::new(),
        entries_max: ENTRIES as u16,
        io_queues_max: 8,
        transfer_shift: 0,
        in_capsule_max: IN_CAPSULE,
        maxh2cdata: 4096,
        c2h_success: true,
        cqt_ms: 0,
        volatile_write_cache: true,
        compare: false,
        lba_status: false,
        connections_max: 0,
    }
}

/// A port of a subsystem.
pub(super) fn port(id: u16, at: SocketAddr) -> PortConfig {
    PortConfig {
        id,
        traddr: at.ip().to_string(),
        trsvcid: at.port().to_string(),
        ipv6: false,
        ana: AnaState::Optimized,
    }
}

/// A subsystem's only namespace; `ids`: each byte of its UUID, and of its NGUID.
pub(super) fn namespace(blocks: u64, ids: [u8; 2], deallocate_zeroes: bool) -> NamespaceConfig {
    let [uuid, nguid] = ids.map(|it| [it; 16]);
    NamespaceConfig {
        nsid: 1,
        blocks,
        block_shift: BLOCK.ilog2() as u8,
        uuid,
        nguid,
        ana_group: 1,
        read_only: false,
        deallocate_zeroes,
    }
}

/// Returns the identity of a host.
pub(super) fn identity(number: usize) -> HostIdentity {
    HostIdentity {
        nqn: format!("nqn.2014-08.org.nvmexpress:uuid:{number:08x}-2222-4333-8444-555555555555"),
        id: [7 + number as u8; 16],
    }
}

/// A process of the target.
pub(super) fn target(config: TargetConfig) -> Body {
    match TargetEngine::new(config) {
        Ok(engine) => Body::Target(Box::new(engine)),
        Err(error) => panic!("a target that can't be: {error:?}"),
    }
}

/// A path to an address.
fn path(address: usize) -> PathConfig {
    path_to(address as u32, 0)
}

/// The subsystem of a leg; of what is no mirror, the only one.
fn nqn(leg: usize) -> String {
    match leg {
        0 => NQN.into(),
        _ => format!("{NQN}{leg}"),
    }
}

/// A path of a leg.
pub(super) fn path_to(address: u32, leg: usize) -> PathConfig {
    let nqn = nqn(leg);
    PathConfig {
        uri: format!("nvme-tcp://p{address}/{nqn}"),
        kind: PathKind::NvmeTcp {
            address,
            subsystem: nqn,
            nsid: None,
        },
        distance: 10,
        throughput: 1,
        numbers: PathConfig::ANY_NUMBER,
    }
}
