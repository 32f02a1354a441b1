//! Paths that fail one after the other while writes are held (T9), on one core and on several.

use crate::common::*;
use engine::Machine;
use engine::host::{Change, HostControl, IoOp};
use engine::target::{Faults, Probability, TargetControl};
use multipath::Outcome;
use policy::PathIndex;

/// The path that has the one I/O in flight.
fn path_of(rig: &Rig, paths: u8) -> Option<u32> {
    let host = rig.host.borrow();
    let path = (0..paths).find(|&path| host.in_flight(0, PathIndex(path)) > 0);
    path.map(u32::from)
}

/// Content of block 0: the version.
fn version(rig: &Rig) -> Option<u64> {
    let mut want = vec![0; 4096];
    let holds = |want: &[u8]| rig.disk.bytes.borrow()[..4096] == *want;
    (1..=2).find(|&version| {
        fill(&mut want, 0, version);
        holds(&want)
    })
}

/// How a path fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fails {
    /// All its connections are reset: the bound.
    Whole,
    /// Its queue only: its controller is reset, and that is proof.
    Queue,
}

#[test]
fn t09_a_write_is_held_for_each_path_that_fails_under_it() {
    for ways in [
        [Fails::Whole; 3],
        [Fails::Queue; 3],
        [Fails::Whole, Fails::Queue, Fails::Whole],
        [Fails::Queue, Fails::Whole, Fails::Queue],
    ] {
        let mut rig = rig_of(4, |_, target| target.subsystem.cqt_ms = 500);
        fill(&mut rig.world.nodes[HOST].arena.0[..4096], 0, 1);
        fill(
            &mut rig.world.nodes[HOST].arena.0[128 << 10..][..4096],
            0,
            2,
        );
        let late_ns = HELD_NS - 20 * MS;
        rig.world.nodes[TARGET].disks[0].delay_ns = late_ns;
        rig.submit(&write(0, 0)).unwrap();
        rig.world.pass(MS);
        // Behind it from the first hold on.
        for (turn, way) in ways.into_iter().enumerate() {
            let path = path_of(&rig, 4).unwrap();
            match way {
                Fails::Whole => rig.world.cut(HOST, path),
                Fails::Queue => rig.world.cut_queue(HOST, path),
            }
            rig.world.pass(MS);
            if turn == 0 {
                rig.submit(&write(0, 1)).unwrap();
            }
            let stats = rig.host.borrow().hold_stats(0);
            assert_eq!((stats.held, stats.behind), (1, 1), "{ways:?}: {turn}");
            let host = rig.host.clone();
            let moved = rig.world.run(HELD_NS + SECOND, |_| {
                let host = host.borrow();
                (0..4).any(|path| host.in_flight(0, PathIndex(path)) > 0)
            });
            assert!(moved, "{ways:?}: {turn}");
            assert_ne!(path_of(&rig, 4), Some(path));
            rig.world.pass(MS);
        }
        rig.world.nodes[TARGET].disks[0].delay_ns = 0;
        assert!(rig.run(10 * SECOND, |_, done| done.len() == 2), "{ways:?}");
        assert!(rig.done.iter().all(|done| done.outcome == Outcome::Done));
        rig.world.pass(60 * SECOND);
        assert_eq!(version(&rig), Some(2), "{ways:?}");
        let stats = rig.host.borrow().hold_stats(0);
        let proofs = ways.iter().filter(|way| **way == Fails::Queue).count() as u64;
        let ends = (stats.held_total, stats.proved_total, stats.bounded_total);
        assert_eq!(ends, (3, proofs, 3 - proofs), "{ways:?}");
        at_rest(&rig, 4);
    }
}

/// A flush covers what the lost controllers had, each of them, and what moved (T13).
#[test]
fn t13_a_flush_after_two_losses_waits_for_both_controllers() {
    let mut rig = rig_of(3, |_, target| target.subsystem.volatile_write_cache = true);
    let disk = rig.disk.clone().with_cache();
    rig.world.nodes[TARGET].disks[0] = disk.clone();
    for slot in 0..3 {
        let span = &mut rig.world.nodes[HOST].arena.0[(slot as usize) << 17..][..4096];
        fill(span, slot, 1);
        assert_eq!(rig.one(&write(slot, slot), SECOND).outcome, Outcome::Done);
    }
    let routes: Vec<_> = (0..2)
        .map(|path| {
            let at = &mut rig.world.nodes[HOST].addresses[path as usize];
            let route = std::mem::replace(at, Address::Refused);
            rig.world.cut(HOST, path);
            route
        })
        .collect();
    rig.world.pass(MS);
    rig.submit(&io(IoOp::Flush, 0, 0, 9)).unwrap();
    for (path, route) in routes.into_iter().enumerate() {
        rig.world.pass(5 * SECOND);
        rig.poll();
        assert!(rig.done.is_empty(), "before path {path} is back");
        rig.world.nodes[HOST].addresses[path] = route;
        until_returned(&mut rig, 11 * SECOND);
    }
    assert!(rig.run(SECOND, |_, done| done.len() == 1));
    assert_eq!(rig.done[0].outcome, Outcome::Done);
    let durable = disk.durable.as_ref().unwrap().borrow();
    assert_eq!(durable[..3 * 4096], disk.bytes.borrow()[..3 * 4096]);
}

/// Whatever happens to paths under all cores, with a disk that executes late what it has, and
/// commands that hang: no error, no wrong byte, no hold that stays, nothing counted twice (T41).
#[test]
fn t09_t12_t41_on_all_cores_no_acknowledged_write_is_lost() {
    let (mut held, mut aborted) = (0, 0);
    for seed in 1..=10_u64 {
        let mut random = Random::new(seed);
        let mut fleet = Fleet::with(3, 3, target(3), |it| it.reconnect_max_ns = SECOND);
        fleet.load(400);
        let mut next = 100;
        let ended = |it: &Fleet| it.loads.iter().map(|load| load.ended).sum::<u64>();
        let over = |it: &Fleet| it.loads.iter().all(Load::is_over);
        while !over(&fleet) {
            let on = fleet.run(200 * SECOND, |it| over(it) || ended(it) >= next);
            assert!(on, "seed {seed}: {}", ended(&fleet));
            next = ended(&fleet) + 100;
            let (node, path) = (random.below(3) as usize, random.below(3) as u32);
            let node = fleet.nodes[node];
            fleet.world.nodes[TARGET].disks[0].delay_ns =
                [0, 0, MS, SECOND, 2 * SECOND][random.below(5) as usize];
            match random.below(5) {
                0 => fleet.world.cut(node, path),
                1 => fleet.world.cut_queue(node, path),
                2 => fleet.world.mute(node, path),
                3 => fleet.world.mute_queue(node, path),
                _ => {
                    let rate = [0, 100_000_000][random.below(2) as usize];
                    let faults = Faults {
                        hang_rate: Probability::new(rate).unwrap(),
                        ..Faults::default()
                    };
                    let message = TargetControl::Faults(path as u16, faults);
                    let now_ns = fleet.world.now_ns;
                    fleet.target.borrow_mut().handle_control(message, now_ns);
                }
            }
        }
        for load in &fleet.loads {
            assert_eq!(load.errors(), 0, "seed {seed}");
            assert!(load.verified > 0);
        }
        fleet.run(30 * SECOND, |_| false);
        fleet.at_rest();
        for host in &fleet.hosts {
            let host = host.borrow();
            held += host.hold_stats(0).held_total;
            let paths = (0..3).map(PathIndex);
            aborted += paths
                .map(|path| host.counters(0, path).aborted)
                .sum::<u64>();
        }
    }
    assert!(held > 50 && aborted > 20, "{held} {aborted}");
}

/// Held in turn, and no path left: the drain ends on time all the same.
#[test]
fn a_stop_while_writes_are_held_in_turn_ends_in_time() {
    let mut rig = rig_with(2, |_| ());
    rig.world.nodes[TARGET].disks[0].delay_ns = 30 * SECOND;
    rig.submit(&write(0, 0)).unwrap();
    rig.world.pass(MS);
    for _ in 0..2 {
        let path = path_of(&rig, 2).unwrap();
        rig.world.nodes[HOST].addresses[path as usize] = Address::Refused;
        rig.world.cut(HOST, path);
        rig.world.pass(HELD_NS + 10 * MS);
    }
    rig.submit(&write(0, 1)).unwrap();
    rig.control(HostControl::Drain(SECOND));
    rig.control(HostControl::Stop);
    let stopped = rig.world.run(5 * SECOND, |world| world.nodes[HOST].stopped);
    assert!(stopped);
    rig.poll();
    assert!(rig.done.iter().all(|done| done.outcome == Outcome::Stopped));
    assert_eq!(rig.done.len(), 2);
}

/// An I/O is not to fail because its paths come and go: only what paths say counts (T4).
#[test]
fn t04_paths_that_are_lost_again_and_again_use_up_no_moves() {
    let mut rig = rig_with(2, |_| ());
    rig.world.nodes[TARGET].disks[0].delay_ns = 3 * SECOND;
    rig.submit(&read(0, 0)).unwrap();
    for turn in 0..24 {
        rig.world.pass(150 * MS);
        rig.world.cut(HOST, turn % 2);
    }
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    assert!(rig.run(60 * SECOND, |_, done| done.len() == 1));
    assert_eq!(rig.done[0].outcome, Outcome::Done);
    assert!(rig.host.borrow().hold_stats(0).moved_total > 8);
    at_rest(&rig, 2);
}

/// A queue may be long in giving back what it had: until the network has let go of its memory.
#[test]
fn t09_a_write_that_begins_when_a_path_is_lost_waits_also_before_its_queue_is_closed() {
    let mut rig = rig_of(2, |_, target| target.subsystem.cqt_ms = 500);
    fill(&mut rig.world.nodes[HOST].arena.0[..4096], 0, 1);
    let newer = 128 << 10;
    fill(&mut rig.world.nodes[HOST].arena.0[newer..][..4096], 0, 2);
    let late_ns = HELD_NS - 20 * MS;
    rig.world.nodes[TARGET].disks[0].delay_ns = late_ns;
    rig.submit(&write(0, 0)).unwrap();
    rig.world.pass(MS);
    let path = PathIndex(path_of(&rig, 2).unwrap() as u8);
    rig.control(HostControl::Change {
        ticket: 1,
        change: Change::FailPath(0, path, true),
        wait_ns: SECOND,
    });
    rig.submit(&write(0, 1)).unwrap();
    let stats = rig.host.borrow().hold_stats(0);
    assert_eq!((stats.held, stats.behind), (0, 1), "nothing is closed yet");
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    assert!(rig.run(2 * HELD_NS, |_, done| done.len() == 2));
    assert_eq!(version(&rig), Some(2));
}
