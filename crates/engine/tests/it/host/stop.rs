//! An engine that drains: what ends in time, what doesn't, and what its owner is told.

use crate::common::*;
use engine::DeviceOp;
use engine::host::{HostControl, HostEvent, Recovery, SubmitError};
use multipath::Outcome;

/// Keep-alive 1 s, so that writes are held for 2 × 1 s and the 500 ms that stand in for CQT.
fn rig(paths: u32) -> Rig {
    let mut host = host_config(paths);
    host.kato_ms = 1000;
    host.volumes[0].recovery = Recovery {
        quiesce_ns: 500 * MS,
        ..Recovery::default()
    };
    let mut target = target_config(paths as u16);
    target.subsystem.connections_max = 64;
    let mut rig = Rig::new(host, target);
    rig.ready();
    rig
}

fn unfinished(rig: &Rig) -> Vec<(u32, u32)> {
    let events = rig.events.iter();
    let those = events.filter_map(|event| match event {
        HostEvent::Unfinished {
            volume: 0,
            changes,
            others,
        } => Some((*changes, *others)),
        _ => None,
    });
    those.collect()
}

fn until_stopped(rig: &mut Rig, limit_ns: u64) {
    let stopped = rig.world.run(limit_ns, |world| world.nodes[HOST].stopped);
    assert!(stopped);
    rig.poll();
    assert_eq!(rig.world.connections(HOST), 0);
}

/// A write that the target has, whose connections are all cut; nothing answers any more.
fn lost_write(rig: &mut Rig) {
    rig.world.nodes[TARGET].disks[0].delay_ns = SECOND;
    rig.submit(&write(0, 0)).unwrap();
    rig.world.pass(MS);
    let routes = rig.world.nodes[HOST].addresses.len();
    rig.world.nodes[HOST].addresses = vec![Address::Refused; routes];
    for path in 0..routes as u32 {
        rig.world.cut(HOST, path);
    }
    rig.world.pass(MS);
}

#[test]
fn what_is_held_has_the_time_to_drain_and_then_fails_and_is_counted() {
    let mut rig = rig(2);
    lost_write(&mut rig);
    rig.submit(&read(1, 1)).unwrap();
    rig.submit(&write(2, 2)).unwrap();
    let start_ns = rig.world.now_ns;
    rig.control(HostControl::Drain(5 * SECOND));
    rig.control(HostControl::Stop);
    assert_eq!(rig.submit(&read(0, 3)), Err(SubmitError::NotReady));
    rig.world.pass(4 * SECOND);
    rig.poll();
    assert_eq!((rig.done.len(), unfinished(&rig)), (0, vec![]));
    until_stopped(&mut rig, 20 * SECOND);
    assert_eq!(unfinished(&rig), [(2, 1)]);
    assert!(rig.done.iter().all(|done| done.outcome == Outcome::Stopped));
    assert_eq!(rig.done.len(), 3);
    assert!((5 * SECOND..6 * SECOND).contains(&(rig.world.now_ns - start_ns)));
}

#[test]
fn a_held_write_whose_bound_ends_in_time_and_a_path_that_returns_end_the_drain_well() {
    let mut rig = rig(2);
    let routes = rig.world.nodes[HOST].addresses.clone();
    lost_write(&mut rig);
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    rig.submit(&read(1, 1)).unwrap();
    rig.control(HostControl::Drain(30 * SECOND));
    rig.control(HostControl::Stop);
    rig.world.pass(SECOND);
    rig.world.nodes[HOST].addresses = routes;
    until_stopped(&mut rig, 20 * SECOND);
    assert_eq!(unfinished(&rig), []);
    assert_eq!(rig.done.len(), 2);
    assert!(rig.done.iter().all(|done| done.outcome == Outcome::Done));
}

#[test]
fn what_a_silent_target_has_fails_when_the_time_is_over_and_other_paths_end_in_order() {
    let mut rig = rig(2);
    let stall = shape::Config {
        stall_until_ns: u64::MAX / 2,
        ..shape::Config::default()
    };
    rig.target_control(engine::target::TargetControl::Shape(0, stall));
    rig.submit(&write(0, 0)).unwrap();
    rig.submit(&read(1, 1)).unwrap();
    rig.world.pass(MS);
    rig.control(HostControl::Drain(2 * SECOND));
    // Until then it takes I/O as before.
    assert!(rig.submit(&read(3, 3)).is_ok() && rig.submit(&read(4, 4)).is_ok());
    rig.world.pass(3 * SECOND);
    rig.poll();
    assert_eq!(rig.submit(&read(5, 5)), Err(SubmitError::NotReady));
    let failed = rig.done.iter().filter(|it| it.outcome == Outcome::Stopped);
    assert_eq!((rig.done.len(), failed.count()), (4, 2));
    assert_eq!(unfinished(&rig).len(), 1);
    rig.control(HostControl::Stop);
    until_stopped(&mut rig, 7 * SECOND);
}

/// A rig of two paths to a target with a cache; both have a write that was not flushed.
fn unflushed(change: impl FnOnce(&mut Recovery)) -> Rig {
    let mut host = host_config(2);
    host.volumes[0].recovery = Recovery::default();
    change(&mut host.volumes[0].recovery);
    let mut target = target_config(2);
    target.subsystem.volatile_write_cache = true;
    let mut rig = Rig::new(host, target);
    rig.ready();
    for n in 0..2 {
        assert_eq!(rig.one(&write(n, n), SECOND).outcome, Outcome::Done);
    }
    rig
}

/// Messages about writes that no flush has covered.
fn said(rig: &Rig) -> Vec<&str> {
    let events = rig.events.iter();
    let those = events.filter_map(|event| match event {
        HostEvent::Unflushed(0, line) => Some(line.as_str()),
        _ => None,
    });
    those.collect()
}

#[test]
fn t13_controllers_are_flushed_before_an_engine_stops() {
    let mut rig = unflushed(|_| ());
    *rig.disk.log.borrow_mut() = Some(Vec::new());
    rig.control(HostControl::Stop);
    until_stopped(&mut rig, SECOND);
    assert_eq!(said(&rig), [""; 0]);
    let done = rig.disk.log.take().unwrap();
    let flushes = done.iter().filter(|it| it.0.op == DeviceOp::Flush);
    assert_eq!((flushes.count(), done.len()), (2, 2));
}

#[test]
fn t13_who_was_not_flushed_when_an_engine_stops_is_named() {
    // A path that is lost, and one whose controller doesn't flush.
    let mut rig = unflushed(|_| ());
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    rig.world.pass(MS);
    rig.control(HostControl::Stop);
    until_stopped(&mut rig, 30 * SECOND);
    let lines = said(&rig);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("not flushed"), "{lines:?}");
    let mut rig = unflushed(|_| ());
    rig.world.nodes[TARGET].disks[0].delay_ns = 1000 * SECOND;
    rig.control(HostControl::Stop);
    until_stopped(&mut rig, 30 * SECOND);
    assert_eq!(said(&rig).len(), 2);
    // Any controller flushes for those.
    let mut rig = unflushed(|it| it.shared_write_cache = true);
    rig.world.cut(HOST, 0);
    rig.control(HostControl::Stop);
    until_stopped(&mut rig, 30 * SECOND);
    assert_eq!(said(&rig), [""; 0]);
}

#[test]
fn t13_what_an_engine_inherits_and_nobody_flushed_it_leaves_to_the_next() {
    let mut host = host_config(2);
    host.volumes[0].recovery = Recovery {
        unclean_stop_ns: Some(0),
        ..Recovery::default()
    };
    let mut target = target_config(2);
    target.subsystem.volatile_write_cache = true;
    let mut rig = Rig::new(host, target);
    rig.world.nodes[HOST].addresses[1] = Address::Refused;
    rig.ready();
    rig.control(HostControl::Stop);
    until_stopped(&mut rig, SECOND);
    let lines = said(&rig);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("not there since"), "{lines:?}");
}
