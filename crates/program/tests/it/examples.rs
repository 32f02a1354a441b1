//! The modules of `sdk/examples` choose exactly as the policies that they imitate.
//!
//! 10⁵ random states each; `BRAID_STATES=1000000 cargo test -p braid-program --test it` looks at
//! more.
use crate::Random;
use policy::{
    Aggregate, Ana, Completion, Ended, Group, Knobs, PathIndex, PathView, Policy, Request,
    Selector, Ticket,
};
use program::{Options, Program};
use std::path::Path;

fn load(name: &str) -> Program {
    let modules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/modules");
    let bytes = program::read(&Path::new(modules).join(format!("{name}.wasm"))).unwrap();
    Program::new(name, &bytes, Options::default()).unwrap()
}

fn view(random: &mut Random) -> PathView {
    let ana = match random.below(8) {
        0..=3 => Ana::Optimized,
        4..=6 => Ana::NonOptimized,
        _ => Ana::Inaccessible,
    };
    PathView {
        enabled: random.below(8) > 0,
        ana,
        distance: random.below(40) as u32,
        in_flight_elsewhere: random.below(4) as u32,
        throughput: random.below(101) as u8,
    }
}

const GROUPS: [Group; 3] = [Group::Read, Group::Write, Group::Other];

/// An I/O in flight: its path, its group, and the tickets of both selectors.
type InFlight = (PathIndex, Group, [Ticket; 2]);

fn end(both: &mut [Selector; 2], io: InFlight, random: &mut Random, now_ns: u64) {
    let (path, group, tickets) = io;
    let latency_ns = match random.below(16) {
        0 => 0,
        1 => 2_000_000_000,
        _ => random.below(50_000_000),
    };
    let ended = match random.below(16) {
        0 => Ended::Failed,
        1 => Ended::Dropped,
        _ => Ended::Good,
    };
    for (selector, ticket) in both.iter_mut().zip(tickets) {
        let done = Completion {
            path,
            group,
            latency_ns,
            ended,
            now_ns,
            ticket,
            gap_ns: 0,
        };
        if selector.complete(&done).weigh {
            selector.weigh();
        }
    }
}

fn compare(policy: Policy, name: &str) {
    let knobs = Knobs {
        weight_timeout_ns: 50_000_000,
        ..Knobs::default()
    };
    let program = load(name);
    let states = std::env::var("BRAID_STATES").map_or(100_000, |it| it.parse().unwrap());
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let (mut seen, mut chosen) = (0_u64, 0_u64);
    while seen < states {
        let paths = 1 + random.below(16) as usize;
        let mut both = [policy, Policy::Program(program.id())].map(|it| Selector::new(paths, it));
        both[0].set_knobs(knobs).unwrap();
        both[1].set_program(program.id(), Box::new(program.runner(None).unwrap()));
        let mut views: Vec<PathView> = (0..paths).map(|_| view(&mut random)).collect();
        let mut in_flight: Vec<InFlight> = Vec::new();
        let mut now_ns = 1 << 40;
        for _ in 0..2000 {
            now_ns += random.below(3_000_000);
            match random.below(64) {
                0..=3 => views[random.below(paths as u64) as usize] = view(&mut random),
                4 => {
                    let path = PathIndex(random.below(paths as u64) as u8);
                    both.iter_mut().for_each(|it| it.reset_path(path));
                }
                5..=30 if !in_flight.is_empty() => {
                    let io = in_flight.swap_remove(random.below(in_flight.len() as u64) as usize);
                    end(&mut both, io, &mut random, now_ns);
                }
                _ => {
                    let group = GROUPS[random.below(3) as usize];
                    let request = Request {
                        source: random.below(4),
                        group,
                        length: 512 << random.below(12),
                        address: random.below(1 << 40),
                        now_ns,
                    };
                    let answers = both.each_mut().map(|it| it.select(&request, &views));
                    assert_eq!(answers[0], answers[1], "{name}, state {seen}: {views:?}");
                    let tickets = both.each_ref().map(|it| it.ticket());
                    in_flight.extend(answers[0].map(|path| (path, group, tickets)));
                    chosen += u64::from(answers[0].is_some());
                    seen += 1;
                }
            }
        }
    }
    let state = program.state();
    assert_eq!(
        (state.counts.choices, state.counts.faults),
        (chosen, [0; 5])
    );
}

#[test]
fn round_robin_chooses_as_the_policy() {
    compare(Policy::RoundRobin { bytes: 0 }, "round_robin");
}

#[test]
fn queue_depth_chooses_as_the_policy() {
    compare(Policy::QueueDepth, "queue_depth");
}

#[test]
fn weighted_latency_chooses_as_the_policy() {
    compare(
        Policy::WeightedLatency(Aggregate::PER_CPU),
        "weighted_latency",
    );
}

/// Small reads to the near path unless its queue is long, all else to the wide one.
#[test]
fn near_small_splits_by_size_and_queue() {
    let program = load("near_small");
    let mut selector = Selector::new(2, Policy::Program(program.id()));
    selector.set_program(program.id(), Box::new(program.runner(None).unwrap()));
    let view = |distance, throughput, in_flight_elsewhere| PathView {
        enabled: true,
        ana: Ana::Optimized,
        distance,
        in_flight_elsewhere,
        throughput,
    };
    for (length, group, queue, path) in [
        (4096, Group::Read, 0, 0),
        (16384, Group::Read, 20, 0),
        (16385, Group::Read, 0, 1),
        (4096, Group::Write, 0, 1),
        (4096, Group::Read, 32, 1),
    ] {
        let request = Request {
            source: 0,
            group,
            length,
            address: 0,
            now_ns: 1,
        };
        let views = [view(10, 10, queue), view(20, 100, 0)];
        let chosen = selector.select(&request, &views);
        assert_eq!(chosen, Some(PathIndex(path)), "{length} {group:?} {queue}");
    }
}
