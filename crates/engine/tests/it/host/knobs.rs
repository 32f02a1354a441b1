//! Rules of a volume for failing paths, changed while it runs.

use crate::common::*;
use engine::host::{HostControl, HostEvent, PathState, Recovery, WriteFailover};
use multipath::Outcome;

/// As [`rig_with`] has it, but for what is changed.
fn set(rig: &mut Rig, change: impl FnOnce(&mut Recovery)) {
    let mut recovery = Recovery {
        quiesce_ns: 500 * MS,
        health: multipath::health::Limits::OFF,
        ..Recovery::default()
    };
    change(&mut recovery);
    rig.control(HostControl::Recovery(0, recovery));
}

fn lose(rig: &mut Rig, path: u32) -> Address {
    let address = &mut rig.world.nodes[HOST].addresses[path as usize];
    let before = std::mem::replace(address, Address::Refused);
    rig.world.cut(HOST, path);
    rig.world.pass(MS);
    before
}

#[test]
fn io_that_waits_for_a_path_waits_by_the_time_that_is_set_now() {
    let mut rig = rig_with(1, |_| ());
    let way = lose(&mut rig, 0);
    let lost_ns = rig.world.now_ns;
    for slot in 0..3 {
        rig.submit(&read(slot, slot)).unwrap();
        rig.world.pass(SECOND);
    }
    // Shorter: all that waits fails when that is over, counted from the loss.
    set(&mut rig, |it| it.fast_io_fail_ns = 5 * SECOND);
    assert!(rig.run(10 * SECOND, |_, done| done.len() == 3));
    let took_ns = rig.world.now_ns - lost_ns;
    assert!((4990 * MS..5010 * MS).contains(&took_ns), "{took_ns}");
    assert!(
        rig.done
            .drain(..)
            .all(|it| it.outcome == Outcome::PathError)
    );
    assert_eq!(rig.one(&read(0, 0), 0).outcome, Outcome::PathError);
    // Off: it waits again.
    set(&mut rig, |_| ());
    rig.submit(&read(0, 0)).unwrap();
    rig.world.pass(60 * SECOND);
    rig.poll();
    assert!(rig.done.is_empty());
    // Already over.
    set(&mut rig, |it| it.fast_io_fail_ns = SECOND);
    assert!(rig.run(MS, |_, done| done.len() == 1));
    assert_eq!(rig.done.remove(0).outcome, Outcome::PathError);
    rig.world.nodes[HOST].addresses[0] = way;
    until_returned(&mut rig, 11 * SECOND);
    assert_eq!(rig.one(&read(0, 0), SECOND).outcome, Outcome::Done);
    at_rest(&rig, 1);
}

#[test]
fn a_lost_path_is_tried_as_often_and_as_long_as_is_set_now() {
    let mut rig = rig_with(2, |_| ());
    lose(&mut rig, 0);
    rig.world.pass(30 * SECOND);
    set(&mut rig, |it| {
        (it.ctrl_loss_ns, it.reconnect_max_ns) = (60 * SECOND, SECOND);
    });
    rig.world.pass(29 * SECOND);
    assert_eq!(state(&rig, P0), PathState::Reconnecting);
    rig.world.pass(2 * SECOND);
    assert_eq!(state(&rig, P0), PathState::Failed, "given up after 60 s");
    set(&mut rig, |_| ());
    rig.world.pass(60 * SECOND);
    assert_eq!(state(&rig, P0), PathState::Failed, "until it is restored");
}

/// A bound that was counted, and kept for the next engine, holds.
#[test]
fn t09_what_fences_writes_is_not_changed() {
    let mut rig = rig_with(2, |_| ());
    set(&mut rig, |it| {
        (it.quiesce_ns, it.write_failover) = (0, WriteFailover::Immediate);
        (it.enabled, it.retries_max) = (false, 1);
    });
    rig.world.nodes[TARGET].disks[0].delay_ns = 30 * SECOND;
    rig.submit(&write(0, 0)).unwrap();
    rig.world.pass(MS);
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    (0..2).for_each(|path| rig.world.cut(HOST, path));
    assert!(rig.run(10 * SECOND, |_, done| done.len() == 1));
    let done = rig.done.remove(0);
    let held = HELD_NS..HELD_NS + 200 * MS;
    assert!(held.contains(&done.latency_ns), "{done:?}");
    assert_eq!(done.outcome, Outcome::Done);
}

#[test]
fn what_can_not_be_is_refused_and_changes_nothing() {
    let mut rig = rig_with(1, |_| ());
    set(&mut rig, |it| {
        (it.reconnect_min_ns, it.fast_io_fail_ns) = (11 * SECOND, 0);
    });
    rig.poll();
    let warned = |event: &HostEvent| match event {
        HostEvent::Warning(0, line) => line.contains("not changed"),
        _ => false,
    };
    assert!(rig.events.iter().any(warned));
    rig.control(HostControl::Recovery(7, Recovery::NONE));
    lose(&mut rig, 0);
    rig.submit(&read(0, 0)).unwrap();
    rig.world.pass(SECOND);
    rig.poll();
    assert!(rig.done.is_empty(), "it waits as before");
}
