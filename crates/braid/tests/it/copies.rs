//! How often a byte of payload is copied in user space on its way between an NBD client and an
//! NVMe/TCP controller, by size of the request: below 16 KiB once when it is received and once when
//! it is sent; from there on never when it is sent, and when it is received at most once, of
//! payload beyond the receive buffer (256 KiB) hardly anything.

use engine::Core;
use engine::export::{ExportConfig, ExportControl, Offer};
use engine::host::{HostConfig, Multipath, PathConfig, PathKind, Recovery, VolumeConfig};
use runtime::{Handle, Polling, ReactorConfig, ReactorStats, spawn};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

const ROUNDS: u64 = 50;
const ARENA: u64 = 256 << 20;
/// Smaller payload is copied.
const DIRECT_MIN: usize = 16 << 10;
/// Bytes that can come in one receive.
const RECEIVE_BUFFER: usize = 256 << 10;
const NQN: &str = "nqn.2026-01.org.example:copies";

/// A target process over nothing; where it listens.
struct Target(Child, SocketAddr);

impl Target {
    fn start(directory: &std::path::Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.args(["target", "--null", "1GiB", "--quiet", "--nqn", NQN]);
        command.args(["--listen", "127.0.0.1:0", "--socket"]);
        command.arg(directory.join("t.sock")).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let address = line.split('/').nth(2).unwrap().parse().unwrap();
        Self(child, address)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One core with one volume over that target.
fn start(target: &Target) -> Handle<Core> {
    let path = PathConfig {
        uri: "the target".into(),
        kind: PathKind::NvmeTcp {
            address: 0,
            subsystem: NQN.into(),
            nsid: None,
        },
        distance: 0,
        throughput: 1,
        numbers: PathConfig::ANY_NUMBER,
    };
    let host = HostConfig {
        core: 0,
        cores: 1,
        identity: nvme::host::HostIdentity {
            nqn: "nqn.2026-01.org.example:host".into(),
            id: [1; 16],
        },
        digests: nvme::host::Digests::default(),
        kato_ms: 10_000,
        connect_timeout_ns: 30_000_000_000,
        io_timeout_ns: 30_000_000_000,
        io_max: 64,
        scratch: engine::Span::default(),
        volumes: vec![VolumeConfig {
            name: "v0".into(),
            policy: policy::Policy::QueueDepth,
            knobs: policy::Knobs::default(),
            paths: vec![path],
            recovery: Recovery::default(),
        }],
    };
    let export = ExportConfig {
        clients_max: 4,
        requests_max: 8,
        arena_bytes: ARENA,
    };
    let engine = Core::new(Multipath::new(host), 1, export);
    let config = ReactorConfig {
        name: "copies".into(),
        cpu: None,
        polling: Polling::Never,
        arena_bytes: ARENA,
        per_peer_max: None,
        addresses: vec![target.1],
        listeners: Vec::new(),
        devices: Vec::new(),
    };
    spawn(config, engine).unwrap()
}

/// An NBD client of `v0`: EXPORT_NAME, simple replies.
fn connect(handle: &Handle<Core>) -> UnixStream {
    loop {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        assert!(handle.sender().adopt(0, theirs.into(), None));
        let hello = [&[0, 0, 0, 3][..], b"IHAVEOPT\0\0\0\x01\0\0\0\x02v0"].concat();
        let talk = |stream: &mut UnixStream| {
            stream.read_exact(&mut [0; 18])?;
            stream.write_all(&hello)?;
            stream.read_exact(&mut [0; 10])
        };
        // Refused until the volume is ready.
        if talk(&mut ours).is_ok() {
            return ours;
        }
    }
}

fn request(client: &mut UnixStream, is_write: bool, offset: u64, bytes: usize) {
    let mut head = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, u8::from(is_write)];
    head.extend([0; 8]);
    head.extend(offset.to_be_bytes());
    head.extend((bytes as u32).to_be_bytes());
    let data = vec![7; bytes];
    client.write_all(&head).unwrap();
    if is_write {
        client.write_all(&data).unwrap();
    }
    let mut reply = vec![0; 16 + if is_write { 0 } else { bytes }];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(reply[4..8], [0; 4], "no error");
}

/// Counts of the reactor over so many requests of one size.
fn counted(is_write: bool, bytes: usize) -> ReactorStats {
    let directory = tempfile::tempdir().unwrap();
    let target = Target::start(directory.path());
    let handle = start(&target);
    let offer = Offer {
        volume: 0,
        name: "v0".into(),
        read_only: false,
    };
    handle.sender().send(ExportControl::Offer(0, offer));
    let mut client = connect(&handle);
    for round in 0..ROUNDS {
        request(&mut client, is_write, round * bytes as u64, bytes);
    }
    drop(client);
    handle.sender().send(ExportControl::Stop(1_000_000_000));
    handle.join().unwrap().1
}

#[test]
fn copies_per_request_by_size() {
    for is_write in [false, true] {
        for bytes in [4096, 8192, 12 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20] {
            let stats = counted(is_write, bytes);
            let payload = bytes as u64 * ROUNDS;
            let (copied_in, copied_out) = (stats.bytes_copied_in, stats.bytes_copied_out);
            let per = |copied: u64| copied as f64 / payload as f64;
            let (op, of_in, of_out) = (is_write, per(copied_in), per(copied_out));
            println!("write {op}, {bytes} B: copies in {of_in:.3}, out {of_out:.3}");
            let all_in = copied_in + stats.bytes_direct_in;
            let all_out = copied_out + stats.bytes_direct_out;
            assert_eq!((all_in, all_out), (payload, payload), "{stats:?}");
            if bytes < DIRECT_MIN {
                assert_eq!((copied_in, copied_out), (payload, payload), "{stats:?}");
            } else {
                assert_eq!(copied_out, 0, "{stats:?}");
            }
            // Payload that comes together with its header lies in the receive buffer, and is
            // copied.
            if bytes > 2 * RECEIVE_BUFFER {
                assert!(copied_in <= payload / 2, "{stats:?}");
            }
        }
    }
}
