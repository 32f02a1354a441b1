//! An engine that drains: what ends in time, what doesn't, and what its owner is told.
#![allow(clippy::unwrap_used, reason = "a test")]
mod common;

use common::*;
use engine::host::{HostControl, HostEvent, Recovery, SubmitError};
use volume::Outcome;

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
