//! A flush and live controllers that can't be asked just now (T13, T26).

use crate::common::hedge::fail;
use crate::common::*;
use engine::host::{Io, IoOp, PathState, Recovery};
use engine::target::{Faults, Ops, TargetControl};
use multipath::Outcome;
use nvme::host::AnaState;
use nvme::wire::Status;

fn flush(slot: u64) -> Io {
    io(IoOp::Flush, 0, 0, slot)
}

/// Flushes that each path has done.
fn flushes(rig: &Rig) -> [u64; 2] {
    [P0, P1].map(|path| rig.host.borrow().counters(0, path).ios[2])
}

/// Two paths with acknowledged writes in the cache of each.
fn written(change: impl FnOnce(&mut Recovery)) -> Rig {
    let mut rig = rig_of(2, |host, target| {
        change(&mut host.volumes[0].recovery);
        target.subsystem.volatile_write_cache = true;
    });
    for slot in 0..4 {
        assert_eq!(rig.one(&write(slot, slot), SECOND).outcome, Outcome::Done);
    }
    rig
}

/// Whatever flush port 0 is given ends with `status` from now on.
fn refuse(rig: &mut Rig, status: Option<Status>) {
    match status {
        Some(status) => fail(rig, 0, Ops::FLUSH, status),
        None => rig.target_control(TargetControl::Faults(0, Faults::default())),
    }
}

#[test]
fn t13_a_flush_that_gets_an_ana_status_is_not_done_without_its_controller() {
    for status in [
        Status::ANA_PERSISTENT_LOSS,
        Status::ANA_INACCESSIBLE,
        Status::ANA_TRANSITION,
        Status::INVALID_NAMESPACE,
    ] {
        let mut rig = written(|_| ());
        refuse(&mut rig, Some(status));
        // Its log says each time that it may be used.
        let end = rig.one(&flush(5), 20 * SECOND);
        assert_ne!(end.outcome, Outcome::Done, "{status}");
        assert_eq!(flushes(&rig)[0], 0, "{status}");
        assert_eq!(state(&rig, P0), PathState::Live, "{status}");
        refuse(&mut rig, None);
        let end = rig.one(&flush(6), 20 * SECOND);
        assert_eq!(
            (end.outcome, flushes(&rig)[0]),
            (Outcome::Done, 1),
            "{status}"
        );
        at_rest(&rig, 2);
    }
}

#[test]
fn t13_a_flush_waits_until_it_is_known_what_the_ana_state_is() {
    // Which flushes a path has done in the end: one that hands its group over is not asked.
    for (after, want) in [(AnaState::Optimized, 1), (AnaState::Inaccessible, 0)] {
        let mut rig = written(|_| ());
        // The answer brings the doubt, and the log takes its time.
        refuse(&mut rig, Some(Status::ANA_TRANSITION));
        rig.submit(&flush(5)).unwrap();
        let host = rig.host.clone();
        let doubted = || host.borrow().path_hindrance(0, P0).is_some();
        assert!(rig.world.run(SECOND, |_| doubted()));
        refuse(&mut rig, None);
        rig.target_control(TargetControl::Ana(0, after));
        assert!(rig.run(SECOND, |_, done| done.len() == 1));
        assert_eq!(rig.done[0].outcome, Outcome::Done, "{after:?}");
        assert_eq!(flushes(&rig)[0], want, "{after:?}");
        at_rest(&rig, 2);
    }
}

#[test]
fn t13_a_flush_waits_for_a_path_whose_queue_has_failed_while_its_sends_are_still_out() {
    let mut rig = written(|_| ());
    rig.world.sent_delay_ns = 200 * MS;
    let large = |n| io(IoOp::Write { fua: false }, n << 20, 16 << 10, n);
    (0..8).for_each(|n| rig.submit(&large(n)).unwrap());
    rig.world.pass(10 * MS);
    rig.world.inject_queue(HOST, 0, &[0xff; 64]);
    rig.world.pass(MS);
    // A command that finds the queue over takes the path out of the choice.
    (8..10).for_each(|n| rig.submit(&large(n)).unwrap());
    assert_eq!(state(&rig, P0), PathState::Live, "nothing was told yet");
    assert!(rig.host.borrow().path_hindrance(0, P0).is_some());
    rig.poll();
    rig.done.clear();
    let end = rig.one(&flush(20), 20 * SECOND);
    assert_eq!(
        (end.outcome, flushes(&rig)),
        (Outcome::Done, [1, 1]),
        "path 0 came back"
    );
}

#[test]
fn t13_a_flush_of_a_core_whose_queue_is_not_open_yet_covers_what_others_wrote_there() {
    // The path stays, or is lost again before core 1 has its queue.
    for lost in [false, true] {
        let mut config = target(2);
        config.subsystem.volatile_write_cache = true;
        let mut fleet = Fleet::with(2, 2, config, |_| ());
        let slow = Address::To {
            node: TARGET,
            listener: 0,
            delay_ns: 40 * MS,
        };
        let node = fleet.nodes[1];
        fleet.world.nodes[node].addresses[0] = slow;
        fleet.world.cut(HOST, 0);
        let half = |it: &Fleet| {
            let states = it.states(P0);
            states[0] == PathState::Live && states[1] == PathState::Reconnecting
        };
        assert!(fleet.run(SECOND, |it| it.states(P0)[0] != PathState::Live));
        assert!(fleet.run(SECOND, half));
        fleet.run(MS, |_| false);
        assert!(half(&fleet));
        for slot in 0..2 {
            let end = fleet.one(0, &write(slot, slot), 10 * MS);
            assert_eq!(end, Some(Outcome::Done));
        }
        assert!(half(&fleet));
        if lost {
            fleet.world.cut(HOST, 0);
            fleet.run(MS, |_| false);
        }
        assert_eq!(fleet.one(1, &flush(0), 5 * SECOND), Some(Outcome::Done));
        let core_1 = fleet.hosts[1].borrow();
        let flushes = [P0, P1].map(|path| core_1.counters(0, path).ios[2]);
        assert_eq!(flushes, [1, 1], "lost: {lost}");
    }
}

/// Seed 2544 of the worlds of chaos: they went from its queue back to its queue, eight times each,
/// and failed.
#[test]
fn t33_flushes_that_wait_for_room_on_a_path_stay_when_its_namespace_is_read_again() {
    let mut rig = rig_of(2, |_, target| {
        target.subsystem.volatile_write_cache = true;
        target.subsystem.entries_max = 2;
    });
    for slot in 0..4 {
        assert_eq!(rig.one(&write(slot, slot), SECOND).outcome, Outcome::Done);
    }
    rig.world.nodes[TARGET].disks[0].delay_ns = 100 * MS;
    for slot in 4..8 {
        rig.submit(&flush(slot)).unwrap();
    }
    rig.world.pass(10 * MS);
    assert!(rig.host.borrow().counters(0, P0).waited_full > 0);
    // The other path tells of it.
    rig.world.mute(HOST, 0);
    rig.target_control(TargetControl::Resize(1, BLOCKS * 2));
    assert!(rig.run(20 * SECOND, |_, done| done.len() == 4));
    let ends: Vec<_> = rig.done.iter().map(|it| it.outcome).collect();
    assert_eq!(ends, [Outcome::Done; 4]);
    at_rest(&rig, 2);
}
