//! Peers and networks that fail while I/O runs; many histories, each checked whole.

use crate::common::*;
use engine::host::{HostControl, PathState};
use engine::target::TargetControl;
use multipath::Outcome;
use nvme::host::AnaState;
use policy::{Knobs, PathIndex, Policy};

/// Runs a load over two paths until a quarter has ended, then does something to path 0, then to the
/// end.
fn in_mid_flight(writes: fn(u64) -> bool, fault: impl FnOnce(&mut Rig)) -> (Rig, Load) {
    let mut rig = Rig::new(host_config(2), target_config(2));
    rig.ready();
    let mut load = Load::new(2000, 32, 16 << 10);
    load.writes = writes;
    assert!(rig.load_until(&mut load, SECOND, 501));
    fault(&mut rig);
    rig.load(&mut load, 60 * SECOND);
    (rig, load)
}

/// Path 0 was lost with one line, the I/O on it failed, path 1 went on.
fn only_path_0_failed(rig: &Rig, load: &Load) {
    assert_eq!(rig.failures().len(), 1, "{:?}", rig.failures());
    let failed = load
        .outcomes
        .iter()
        .filter(|(outcome, _)| !outcome.is_done());
    assert!((1..=32).contains(&failed.clone().count()));
    for (outcome, path) in failed {
        assert!(matches!(outcome, Outcome::PathError | Outcome::TimedOut));
        assert_eq!(*path, PathIndex(0));
    }
    balanced(rig, 2);
}

/// Nothing is counted as in flight when nothing is.
fn balanced(rig: &Rig, paths: u8) {
    let host = rig.host.borrow();
    for path in (0..paths).map(PathIndex) {
        assert_eq!(host.in_flight(0, path), 0);
        assert_eq!(host.counters(0, path).in_flight, 0);
    }
}

#[test]
fn t29_a_network_that_falls_silent_is_noticed_by_the_keep_alive() {
    let mut rig = Rig::new(host_config(2), target_config(2));
    rig.ready();
    rig.world.mute(HOST, 0);
    let line = rig.failure(20 * SECOND);
    assert!(
        line.contains("p0") && line.contains("keep-alive missed"),
        "{line}"
    );
    assert_eq!(
        rig.host.borrow().path_state(0, PathIndex(1)),
        PathState::Live
    );
}

#[test]
fn a_network_that_falls_silent_under_load_ends_its_io_in_time() {
    let (rig, load) = in_mid_flight(|n| n % 2 == 0, |rig| rig.world.mute(HOST, 0));
    only_path_0_failed(&rig, &load);
    // The keep-alive is shorter than the I/O time-out (T12).
    assert!(load.latency_ns.iter().all(|&latency| latency < 10 * SECOND));
}

#[test]
fn t24_noise_in_mid_flight_ends_its_path_alone() {
    let noise: Vec<u8> = (0..4096_u32).map(|i| ((i * 31) >> 2) as u8).collect();
    let (rig, load) = in_mid_flight(|_| true, |rig| rig.world.inject(HOST, 0, &noise));
    only_path_0_failed(&rig, &load);
    assert!(
        rig.failures()[0].contains("broke the protocol"),
        "{:?}",
        rig.failures()
    );
}

#[test]
fn t10_t23_noise_while_sends_are_out_ends_no_write_before_its_memory_is_free() {
    // The world compares the memory of every send when it is reported; the load writes new bytes
    // into it as soon as its I/O has ended.
    let mut rig = Rig::new(host_config(2), target_config(2));
    rig.world.sent_delay_ns = 50 * MS;
    rig.ready();
    let mut load = Load::new(600, 32, 16 << 10);
    load.writes = |_| true;
    assert!(rig.load_until(&mut load, 10 * SECOND, 101));
    rig.world.inject(HOST, 0, &[0xff; 64]);
    rig.load(&mut load, 60 * SECOND);
    only_path_0_failed(&rig, &load);
    // The first I/O that finds the queue over takes the path out of the choice, before its end is
    // told.
    let host = rig.host.borrow();
    assert!(host.counters(0, PathIndex(0)).waited_full <= 1);
}

#[test]
fn a_stop_on_a_silent_network_is_bounded() {
    let mut rig = Rig::new(host_config(2), target_config(2));
    rig.ready();
    rig.submit(&write(0, 0)).unwrap();
    rig.world.mute(HOST, 0);
    rig.world.mute(HOST, 1);
    rig.control(HostControl::Stop);
    let start_ns = rig.world.now_ns;
    assert!(
        rig.world
            .run(60 * SECOND, |world| world.nodes[HOST].stopped)
    );
    assert!(rig.world.now_ns - start_ns <= 2 * 3 * SECOND);
    assert_eq!(rig.world.connections(HOST), 0);
}

#[test]
fn volumes_of_one_subsystem_live_and_die_apart() {
    let mut host = host_config(1);
    for (number, volume) in [(1, "v0"), (2, "v1")] {
        let mut config = crate::common::volume(vec![tcp_path(number - 1)]);
        config.name = volume.into();
        let engine::host::PathKind::NvmeTcp { nsid, .. } = &mut config.paths[0].kind else {
            panic!()
        };
        *nsid = Some(number);
        host.volumes.push(config);
    }
    host.volumes.remove(0);
    let mut target = target_config(2);
    target.subsystem.namespaces.push(namespace(2));
    target.devices.push(engine::LocalDevice(1));
    let mut rig = Rig::new(host, target);
    rig.world.nodes[TARGET].disks[1] = Disk::new((BLOCKS * u64::from(BLOCK)) as usize);
    rig.ready();
    assert!(rig.run(SECOND, |events, _| ready_of(events, 1).is_some()));
    let second = |mut it: engine::host::Io| {
        it.volume = 1;
        it
    };
    fill(&mut rig.world.nodes[HOST].arena.0[..4096], 0, 1);
    assert_eq!(rig.one(&write(0, 0), SECOND).outcome, Outcome::Done);
    assert_eq!(rig.one(&second(read(0, 1)), SECOND).outcome, Outcome::Done);
    let arena = &rig.world.nodes[HOST].arena.0;
    assert!(arena[128 << 10..][..4096].iter().all(|&byte| byte == 0));
    rig.world.cut(HOST, 0);
    assert!(rig.failure(SECOND).starts_with("v0: "));
    assert_eq!(rig.one(&read(0, 0), SECOND).outcome, Outcome::PathError);
    assert_eq!(rig.one(&second(read(0, 1)), SECOND).outcome, Outcome::Done);
}

/// Something that may happen to a path or its target.
fn happen(rig: &mut Rig, random: &mut Random) {
    let port = random.below(3) as u32;
    let policies = [
        Policy::Numa,
        Policy::RoundRobin { bytes: 0 },
        Policy::QueueDepth,
        Policy::WEIGHTED_LATENCY,
    ];
    match random.below(12) {
        0 => rig.world.cut(HOST, port),
        1 => rig.world.mute(HOST, port),
        2 => {
            let noise: Vec<u8> = (0..200).map(|_| random.below(256) as u8).collect();
            rig.world.inject(HOST, port, &noise);
        }
        3 => rig.target_control(TargetControl::Drop(port as u16)),
        4 => {
            let states = [
                AnaState::Optimized,
                AnaState::NonOptimized,
                AnaState::Inaccessible,
                AnaState::Optimized,
            ];
            let state = states[random.below(4) as usize];
            rig.target_control(TargetControl::Ana(port as u16, state));
        }
        5 | 6 => {
            let shape = shape::Config {
                delay_ns: random.below(3) * MS,
                jitter_ns: random.below(2) * MS,
                servers: random.below(3) as u16,
                service_ns: 50_000,
                ..Default::default()
            };
            rig.target_control(TargetControl::Shape(port as u16, shape));
        }
        7 => {
            let stall = shape::Config {
                stall_until_ns: rig.world.now_ns + random.below(20) * SECOND,
                ..Default::default()
            };
            rig.target_control(TargetControl::Shape(port as u16, stall));
        }
        _ => {
            let policy = policies[random.below(4) as usize];
            let knobs = Knobs {
                weight_timeout_ns: random.below(2) * 20 * MS,
                ..Knobs::default()
            };
            rig.control(HostControl::Policy(0, policy, knobs));
        }
    }
}

/// Every I/O ends once, in bounded time, with the right bytes if it says so; a path is lost once,
/// with one line; all counts balance; and the engine stops.
#[test]
fn whatever_happens_every_io_ends_once_and_all_counts_balance() {
    let mut lost = 0;
    let mut verified = 0;
    for seed in 1..=40_u64 {
        let mut random = Random::new(seed);
        let mut target = target_config(3);
        target.subsystem.entries_max = [3, 16, 128][random.below(3) as usize];
        target.subsystem.c2h_success = random.below(2) == 0;
        let mut host = host_config(3);
        host.digests.data = random.below(2) == 0;
        host.digests.header = random.below(2) == 0;
        let mut rig = Rig::new(host, target);
        rig.world.piece_max = [100, 3000, 20_000][random.below(3) as usize];
        rig.world.sent_delay_ns = [0, 100_000, 3 * MS][random.below(3) as usize];
        rig.ready();
        let bytes = [4 << 10, 16 << 10, 64 << 10][random.below(3) as usize];
        let mut load = Load::new(600, 24, bytes);
        let mut next = 40;
        while !load.is_over() {
            let moved = rig.load_until(&mut load, 60 * SECOND, next);
            assert!(moved, "seed {seed}: {} of {} ended", load.ended, load.total);
            next = load.ended + 40;
            happen(&mut rig, &mut random);
        }
        let worst_ns = load.latency_ns.iter().max().copied().unwrap_or(0);
        // Twelve rounds through a queue of two commands, at most, each within the I/O time-out.
        assert!(worst_ns < 12 * 11 * SECOND, "seed {seed}: {worst_ns}");
        rig.world.pass(30 * SECOND);
        rig.poll();
        balanced(&rig, 3);
        let states = [0, 1, 2].map(|path| rig.host.borrow().path_state(0, PathIndex(path)));
        let gone = states
            .iter()
            .filter(|state| **state == PathState::Failed)
            .count();
        assert_eq!(
            rig.failures().len(),
            gone,
            "seed {seed}: {:?}",
            rig.failures()
        );
        lost += gone;
        verified += load.verified;
        rig.control(HostControl::Stop);
        let stopped = rig
            .world
            .run(20 * SECOND, |world| world.nodes[HOST].stopped);
        assert!(stopped, "seed {seed}: never stopped");
        assert_eq!(rig.world.connections(HOST), 0, "seed {seed}");
    }
    // The histories were neither all good nor all bad.
    assert!(
        lost > 40 && verified > 2000,
        "{lost} paths lost, {verified} reads checked"
    );
}
