//! Engines of several cores over one board.
use super::config;
use engine::host::{HostConfig, Io, IoOp, Multipath};
use engine::{Core, Machine, Output, Span};
use paths::board::Board;
use policy::{Group, PathIndex, Policy};

const LATENCIES_NS: [u64; 2] = [100_000, 900_000];

/// One read of a core, over paths of those latencies: the path that served it.
fn read(board: &Board, core: u16, engine: &mut Core, now_ns: &mut u64) -> usize {
    let io = Io {
        volume: 0,
        op: IoOp::Read,
        offset: 0,
        length: 4096,
        span: Span { at: 0, len: 4096 },
        source: 0,
        cookie: 0,
    };
    engine.submit(&io, *now_ns).unwrap();
    let Some(Output::Device(request)) = engine.poll_output() else {
        panic!("no request");
    };
    let path = usize::from(engine.host().in_flight(0, PathIndex(1)) > 0);
    *now_ns += LATENCIES_NS[path];
    engine.handle_device(request.id, Ok(()), *now_ns);
    turn(board, core, engine, *now_ns);
    path
}

fn turn(board: &Board, core: u16, engine: &mut Core, now_ns: u64) {
    engine.exchange(&mut board.peers_of(core), |engine| {
        engine.turn(&mut Vec::new(), now_ns);
    });
    while engine.poll_event().is_some() {}
}

/// Weights of both paths, and what the core itself measured of them.
fn weights(engine: &Core) -> [(u32, u64); 2] {
    [0, 1].map(|path| {
        let stats = engine.host().path_report(0, PathIndex(path), 0).groups[Group::Read as usize];
        (stats.weight, stats.smoothed_ns)
    })
}

/// Whole engines over one board: cores 0 and 1 on one node, core 2 on another.
#[test]
fn a13_a_core_weighs_a_path_that_it_never_measured_by_what_its_node_measured() {
    let board = Board::new(&[0, 0, 1], 2);
    let mut now_ns = 0;
    let mut cores = [0, 1, 2].map(|core| {
        let mut config = HostConfig {
            core,
            cores: 3,
            ..config()
        };
        let volume = &mut config.volumes[0];
        volume.policy = Policy::parse("weighted-latency:per-numa").unwrap();
        volume.knobs.weight_timeout_ns = 0;
        volume.paths.push(volume.paths[0].clone());
        let mut engine = Core::without_front_ends(Multipath::new(config));
        turn(&board, core, &mut engine, 0);
        engine
    });
    for _ in 0..200 {
        read(&board, 0, &mut cores[0], &mut now_ns);
    }
    let [fast_ns, slow_ns] = LATENCIES_NS;
    assert_eq!(weights(&cores[0]), [(57, fast_ns), (6, slow_ns)]);
    for core in [1, 2] {
        let engine = &mut cores[usize::from(core)];
        assert_eq!(read(&board, core, engine, &mut now_ns), 0, "the first path");
        // Its own measurement is news to it as well.
        turn(&board, core, engine, now_ns);
    }
    assert_eq!(weights(&cores[1]), [(57, fast_ns), (6, 0)]);
    assert_eq!(weights(&cores[2]), [(64, fast_ns), (1, 0)], "another node");
    // And it shares its I/O out so.
    let served = (0..630).map(|_| read(&board, 1, &mut cores[1], &mut now_ns));
    let slow = served.filter(|&path| path == 1).count();
    assert!((54..=66).contains(&slow), "{slow} of 630");
}
