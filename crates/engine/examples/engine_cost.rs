//! The cost of a core and its multipath volume without any protocol, for an instruction counter:
//! `engine_cost PATHS ITERATIONS`.
//!
//! Each iteration is one loop turn with one I/O over paths that are local devices, round-robin:
//! `submit`, the device request out, the end of the oldest of 32 in flight in, the event out, and
//! what a turn costs anyway (`turn`, `poll_output` and `poll_event` until `None`, `poll_timeout`).
//! Run under callgrind at two numbers of iterations: the difference divided by that of the
//! iterations is the cost of one.
#[path = "../tests/it/common/config.rs"]
mod configured;

use engine::export::ExportEvent;
use engine::host::{
    HostConfig, HostEvent, Io, IoOp, Multipath, PathConfig, PathKind, Recovery, VolumeConfig,
};
use engine::machine::Memory;
use engine::{Core, LocalDevice, Machine, Output, Span};
use std::collections::VecDeque;
use std::process::ExitCode;

const IN_FLIGHT: usize = 32;
const SECOND: u64 = 1_000_000_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = arguments.iter().filter_map(|it| it.parse().ok()).collect();
    match numbers[..] {
        [paths @ 1..=64, iterations] => {
            println!(
                "{iterations} iterations, checksum {}",
                run(paths, iterations)
            );
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: engine_cost PATHS ITERATIONS");
            ExitCode::from(2)
        }
    }
}

fn config(paths: u64) -> HostConfig {
    let path = PathConfig {
        uri: "mem:1MiB".into(),
        kind: PathKind::Device {
            device: LocalDevice(0),
            bytes: 1 << 20,
            block_shift: 9,
            identity: None,
            read_only: false,
            deallocate_zeroes: false,
            hole_bytes: 0,
        },
        distance: 10,
        throughput: 1,
        numbers: PathConfig::ANY_NUMBER,
    };
    HostConfig {
        connect_timeout_ns: SECOND,
        io_timeout_ns: 30 * SECOND,
        ..configured::host(vec![VolumeConfig {
            name: "v0".into(),
            policy: policy::Policy::RoundRobin { bytes: 0 },
            knobs: policy::Knobs::default(),
            paths: vec![path; paths as usize],
            recovery: Recovery::default(),
        }])
    }
}

/// Nothing touches payload here.
struct NoMemory;

impl Memory for NoMemory {
    fn bytes(&self, _: Span) -> &[u8] {
        &[]
    }
    fn bytes_mut(&mut self, _: Span) -> &mut [u8] {
        &mut []
    }
}

fn run(paths: u64, iterations: u64) -> u64 {
    let mut engine = Core::without_front_ends(Multipath::new(config(paths)));
    let mut now_ns = SECOND;
    engine.turn(&mut NoMemory, now_ns);
    let mut pending = VecDeque::with_capacity(2 * IN_FLIGHT);
    let mut checksum = 0;
    for i in 0..iterations {
        now_ns += 2_000;
        let io = Io {
            volume: 0,
            op: if i % 4 == 1 {
                IoOp::Write { fua: false }
            } else {
                IoOp::Read
            },
            offset: (i % 256) * 4096,
            length: 4096,
            span: Span {
                at: (i % 64) * 4096,
                len: 4096,
            },
            source: 1,
            cookie: i,
        };
        let _ = engine.submit(&io, now_ns);
        if pending.len() == IN_FLIGHT
            && let Some(id) = pending.pop_front()
        {
            engine.handle_device(id, Ok(()), now_ns);
        }
        engine.turn(&mut NoMemory, now_ns);
        while let Some(output) = engine.poll_output() {
            if let Output::Device(request) = output {
                pending.push_back(request.id);
            }
        }
        while let Some(event) = engine.poll_event() {
            if let ExportEvent::Host(HostEvent::Done(done)) = event {
                checksum += done.latency_ns;
            }
        }
        checksum += engine.poll_timeout().unwrap_or(0) & 1;
    }
    checksum
}
