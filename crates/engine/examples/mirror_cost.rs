//! Cost of a mirror of one leg for reads of that leg, and of its writes, for an instruction
//! counter: `mirror_cost alone|mirror ITERATIONS`, `mirror_cost mirror-same|mirror-apart IN_FLIGHT
//! ITERATIONS`.
//!
//! A device holds a mirror's only leg. `alone` reads from the device's volume, `mirror` from the
//! mirror over it: 32 reads of 4 KiB in flight at places all over it. `mirror-same` writes one
//! block again and again, so that each write waits for the one before; `mirror-apart` blocks all
//! over it. Each iteration is one I/O; a loop turn has [`BATCH`] of them, and what a program does
//! in each turn anyway. The difference of two runs with different numbers of iterations, divided by
//! theirs, is the cost of one I/O.
#[path = "../tests/it/common/config.rs"]
mod configured;
#[path = "../tests/it/mirror/made.rs"]
mod made;

use engine::export::ExportEvent;
use engine::host::{HostConfig, HostEvent, Io, IoOp, Multipath};
use engine::limits::MIRROR_SCRATCH_BYTES;
use engine::machine::Memory;
use engine::mirror::{Devices, MIRRORS_FROM};
use engine::{Core, DeviceOp, DeviceRequest, Machine, Output, Span};
use mirror::Properties;
use std::collections::VecDeque;
use std::process::ExitCode;

/// Reads in flight.
const IN_FLIGHT: usize = 32;
const IN_FLIGHT_MAX: usize = 1024;
/// I/Os of one turn.
const BATCH: u64 = 4;
const BYTES: u64 = 4096;
/// I/Os are of the first so many blocks.
const BLOCKS: u64 = 1024;
/// Where the mirror's own memory begins, behind that of users' I/Os.
const SCRATCH_AT: u64 = IN_FLIGHT_MAX as u64 * BYTES;
const SECOND: u64 = 1_000_000_000;
/// Turns in which the mirror has to come up.
const TURNS_MAX: u64 = 1_000_000;

/// One kind of run.
struct Case {
    volume: u16,
    op: IoOp,
    /// Blocks that I/Os are spread over.
    blocks: u64,
    in_flight: usize,
    iterations: u64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some(case) = parse(&words) else {
        eprintln!(
            "usage: mirror_cost alone|mirror ITERATIONS\n       \
             mirror_cost mirror-same|mirror-apart IN_FLIGHT ITERATIONS"
        );
        return ExitCode::from(2);
    };
    match Bench::new(case.volume).and_then(|mut bench| bench.run(&case)) {
        Some(checksum) => {
            println!("{} iterations, checksum {checksum}", case.iterations);
            ExitCode::SUCCESS
        }
        None => {
            eprintln!("the mirror did not come up, or stopped");
            ExitCode::FAILURE
        }
    }
}

fn parse(words: &[&str]) -> Option<Case> {
    let (volume, op, blocks, in_flight, iterations) = match *words {
        ["alone", iterations] => (0, IoOp::Read, BLOCKS, IN_FLIGHT, iterations),
        ["mirror", iterations] => (MIRRORS_FROM, IoOp::Read, BLOCKS, IN_FLIGHT, iterations),
        ["mirror-same", in_flight, iterations] => {
            let in_flight = in_flight.parse().ok()?;
            (
                MIRRORS_FROM,
                IoOp::Write { fua: false },
                1,
                in_flight,
                iterations,
            )
        }
        ["mirror-apart", in_flight, iterations] => {
            let in_flight = in_flight.parse().ok()?;
            (
                MIRRORS_FROM,
                IoOp::Write { fua: false },
                BLOCKS,
                in_flight,
                iterations,
            )
        }
        _ => return None,
    };
    Some(Case {
        volume,
        op,
        blocks,
        in_flight: Some(in_flight).filter(|it| (1..=IN_FLIGHT_MAX).contains(it))?,
        iterations: iterations.parse().ok()?,
    })
}

fn host_config() -> HostConfig {
    HostConfig {
        connect_timeout_ns: SECOND,
        io_timeout_ns: 30 * SECOND,
        io_max: 2 * IN_FLIGHT_MAX as u32,
        ..configured::host(vec![made::volume(0)])
    }
}

/// An engine with both volumes, and its device.
struct Bench {
    engine: Core,
    arena: Vec<u8>,
    disk: Vec<u8>,
    now_ns: u64,
    pending: VecDeque<DeviceRequest>,
    checksum: u64,
    /// I/Os of users that have ended.
    ended: u64,
}

impl Bench {
    /// `None` unless `volume` is ready.
    fn new(volume: u16) -> Option<Self> {
        let host = Multipath::new(host_config());
        let legs = made::legs(1, true, Properties::default())?;
        let mut bench = Self {
            engine: match volume {
                MIRRORS_FROM => {
                    let mirrors = made::mirrors(made::mirror(1, 4711), SCRATCH_AT);
                    Core::without_front_ends(Devices::new(host, mirrors))
                }
                _ => Core::without_front_ends(host),
            },
            arena: vec![0; SCRATCH_AT as usize + MIRROR_SCRATCH_BYTES as usize],
            disk: legs.concat(),
            now_ns: SECOND,
            pending: VecDeque::with_capacity(2 * IN_FLIGHT_MAX),
            checksum: 0,
            ended: 0,
        };
        for _ in 0..TURNS_MAX {
            if bench.engine.devices().limits(volume).is_some() && bench.pending.is_empty() {
                return Some(bench);
            }
            bench.now_ns += 1_000_000;
            while bench.end_one() {}
            bench.turn();
        }
        None
    }

    /// One turn of the loop, whatever there is to do.
    fn turn(&mut self) {
        let Self { engine, arena, .. } = self;
        if engine.poll_timeout().is_some_and(|at| at <= self.now_ns) {
            engine.handle_timeout(self.now_ns);
        }
        engine.turn(arena, self.now_ns);
        while let Some(event) = engine.poll_event() {
            if let ExportEvent::Host(HostEvent::Done(done)) = event {
                self.checksum += done.latency_ns;
                self.ended += 1;
            }
        }
        while let Some(output) = engine.poll_output() {
            if let Output::Device(request) = output {
                self.pending.push_back(request);
            }
        }
        self.checksum += engine.poll_timeout().unwrap_or(0) & 1;
    }

    /// The oldest request ends; false: there is none. Data of users' reads are not copied: they
    /// would hide what is counted.
    fn end_one(&mut self) -> bool {
        let Some(request) = self.pending.pop_front() else {
            return false;
        };
        if request.span.at >= SCRATCH_AT {
            let range = request.offset as usize..(request.offset + request.length) as usize;
            let memory = self.arena.bytes_mut(request.span);
            match request.op {
                DeviceOp::Read => memory.copy_from_slice(&self.disk[range]),
                DeviceOp::Write { .. } => self.disk[range].copy_from_slice(memory),
                _ => {}
            }
        }
        self.engine.handle_device(request.id, Ok(()), self.now_ns);
        true
    }

    fn run(&mut self, case: &Case) -> Option<u64> {
        let begun = self.ended;
        for i in 0..case.iterations {
            let io = Io {
                volume: case.volume,
                op: case.op,
                offset: i.wrapping_mul(0x9e37_79b9) % case.blocks * BYTES,
                length: BYTES as u32,
                span: Span {
                    at: i % case.in_flight as u64 * BYTES,
                    len: BYTES as u32,
                },
                source: 1,
                cookie: i,
            };
            // Of writes that wait for one another the device has one at a time.
            let waits = case.op != IoOp::Read;
            let mut turns = 0;
            while waits && i - (self.ended - begun) >= case.in_flight as u64 {
                self.end_one();
                self.now_ns += 2_000;
                self.turn();
                turns += 1;
                if turns > TURNS_MAX {
                    return None;
                }
            }
            if !waits && self.pending.len() >= case.in_flight {
                self.end_one();
            }
            self.engine.submit(&io, self.now_ns).ok()?;
            if i % BATCH == BATCH - 1 {
                self.now_ns += BATCH * 2_000;
                self.turn();
            }
        }
        Some(self.checksum)
    }
}
