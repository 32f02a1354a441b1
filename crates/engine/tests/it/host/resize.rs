//! A namespace that changes its size or format while it is in use (T33), in virtual time.

use crate::common::*;
use engine::host::{HostEvent, IoOp, PathState, SubmitError};
use engine::target::{TargetControl, TargetEngine};
use multipath::Outcome;
use std::cell::RefCell;
use std::rc::Rc;

const BYTES: u64 = BLOCKS * BLOCK as u64;

/// Sizes that the owner was told of.
fn resized(rig: &mut Rig) -> Vec<u64> {
    rig.poll();
    let those = rig.events.iter().filter_map(|event| match event {
        HostEvent::Resized(0, info) => Some(info.bytes),
        _ => None,
    });
    those.collect()
}

/// Path 1 leads to a target of its own with the same namespace.
fn two_targets() -> (Rig, Rc<RefCell<TargetEngine>>) {
    let mut rig = rig_with(2, |_| ());
    let mut config = target_config(1);
    (config.subsystem.cntlid_min, config.subsystem.cntlid_max) = (1001, 1100);
    config.subsystem.connections_max = 64;
    let (second, _) = rig.lead(1, config, rig.disk.clone());
    rig.world.cut(HOST, 1);
    until_returned(&mut rig, SECOND);
    (rig, second)
}

fn resize(rig: &mut Rig, second: Option<&Rc<RefCell<TargetEngine>>>, blocks: u64) {
    match second {
        None => rig.target_control(TargetControl::Resize(1, blocks)),
        Some(target) => {
            let now_ns = rig.world.now_ns;
            let mut target = target.borrow_mut();
            engine::Machine::handle_control(&mut *target, TargetControl::Resize(1, blocks), now_ns);
        }
    }
    rig.world.pass(100 * MS);
}

#[test]
fn t33_a_volume_grows_when_all_paths_agree_and_only_those_that_do_take_io() {
    let (mut rig, second) = two_targets();
    rig.disk.bytes.borrow_mut().resize(2 * BYTES as usize, 0);
    resize(&mut rig, None, 2 * BLOCKS);
    assert_eq!(resized(&mut rig), [], "path 1 still shows the old size");
    let before = rig.shares(2);
    for n in 0..20 {
        assert!(rig.one(&write(n, n), SECOND).outcome.is_done());
    }
    let after = rig.shares(2);
    assert_eq!([after[0] - before[0], after[1] - before[1]], [20, 0]);
    assert_eq!(state(&rig, P1), PathState::Live, "it is not lost");
    let beyond = io(IoOp::Read, BYTES, BLOCK, 0);
    assert!(matches!(
        rig.submit(&beyond),
        Err(SubmitError::PastEnd { .. })
    ));
    resize(&mut rig, Some(&second), 2 * BLOCKS);
    assert_eq!(resized(&mut rig), [2 * BYTES]);
    assert!(rig.one(&beyond, SECOND).outcome.is_done());
    for n in 0..20 {
        assert!(rig.one(&write(n, n), SECOND).outcome.is_done());
    }
    assert!(rig.shares(2)[1] > after[1], "path 1 is used again");
    assert_eq!(rig.failures().len(), 1, "{:?}", rig.failures());
}

#[test]
fn t33_a_shrunk_volume_refuses_what_is_beyond_by_name_at_once() {
    let mut rig = rig_with(2, |_| ());
    // Under way when it shrinks.
    rig.world.nodes[TARGET].disks[0].delay_ns = MS;
    rig.submit(&write(BLOCKS - 1, 0)).unwrap();
    rig.target_control(TargetControl::Resize(1, BLOCKS / 2));
    assert!(rig.run(SECOND, |_, done| done.len() == 1));
    assert_eq!(rig.done[0].outcome, Outcome::PastEnd);
    rig.world.pass(100 * MS);
    assert_eq!(resized(&mut rig), [BYTES / 2]);
    let warning = |event: &HostEvent| match event {
        HostEvent::Trouble(0, line) => line.contains(&format!("4096 bytes at {}", BYTES - 4096)),
        _ => false,
    };
    assert!(rig.events.iter().any(warning), "{:?}", rig.events);
    let refused = rig.submit(&read(BLOCKS / 2, 0)).unwrap_err();
    let want = SubmitError::PastEnd {
        offset: BYTES / 2,
        length: BLOCK,
        bytes: BYTES / 2,
    };
    assert_eq!(refused, want);
    assert_eq!(
        refused.to_string(),
        "4096 bytes at 8388608 are beyond the end of the volume, which has 8388608"
    );
    assert!(rig.one(&read(BLOCKS / 2 - 1, 1), SECOND).outcome.is_done());
    assert_eq!(rig.failures().len(), 0);
}

#[test]
fn t33_the_path_with_the_new_size_dies_and_the_other_one_serves_what_it_shows() {
    let (mut rig, _second) = two_targets();
    resize(&mut rig, None, BLOCKS / 2);
    assert_eq!(resized(&mut rig), [BYTES / 2]);
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    rig.world.pass(100 * MS);
    assert_eq!(resized(&mut rig), [BYTES / 2, BYTES]);
    assert!(rig.one(&read(BLOCKS - 1, 0), SECOND).outcome.is_done());
}

/// The same where it leaves in order: no other path may stay unused for a size that nobody shows.
#[test]
fn t33_the_path_with_the_new_size_leaves_and_the_other_one_serves_what_it_shows() {
    for cores in 1..=3 {
        let mut fleet = Fleet::new(cores, 1, target(2));
        let mut config = target_config(1);
        (config.subsystem.cntlid_min, config.subsystem.cntlid_max) = (1001, 1100);
        config.subsystem.connections_max = 64;
        let second = Rc::new(RefCell::new(TargetEngine::new(config).unwrap()));
        let node = fleet.world.add(second.clone(), 16 << 20);
        fleet.world.nodes[node].disks = vec![Disk::new(BYTES as usize)];
        for &host in &fleet.nodes {
            fleet.world.nodes[host].addresses[1] = Address::To {
                node,
                listener: 0,
                delay_ns: WIRE_NS,
            };
        }
        assert!(fleet.add(1).is_ok());
        let shrink = TargetControl::Resize(1, BLOCKS / 2);
        let now_ns = fleet.world.now_ns;
        engine::Machine::handle_control(&mut *second.borrow_mut(), shrink, now_ns);
        let half = |event: &HostEvent| match event {
            HostEvent::Resized(0, info) => info.bytes == BYTES / 2,
            _ => false,
        };
        let shrunk = |it: &Fleet| it.events.iter().all(|events| events.iter().any(half));
        assert!(fleet.run(SECOND, shrunk));
        fleet.run(100 * MS, |_| false);
        assert!(fleet.remove(P1, true).is_ok(), "{cores} cores");
        fleet.run(100 * MS, |_| false);
        for core in 0..usize::from(cores) {
            let end = fleet.one(core, &read(BLOCKS - 1, 0), SECOND);
            assert!(
                end.is_some_and(|it| it.is_done()),
                "core {core} of {cores}: {end:?}"
            );
        }
    }
}

#[test]
fn t33_io_goes_on_while_a_volume_grows_and_shrinks() {
    let mut rig = rig_with(2, |_| ());
    rig.disk.bytes.borrow_mut().resize(2 * BYTES as usize, 0);
    let mut load = Load::new(3000, 16, BLOCK);
    for (turn, blocks) in (1..).zip([BLOCKS + 8, 2 * BLOCKS, BLOCKS]) {
        assert!(rig.load_until(&mut load, SECOND, 700 * turn + 1));
        rig.target_control(TargetControl::Resize(1, blocks));
    }
    rig.load(&mut load, 10 * SECOND);
    rig.world.pass(SECOND);
    assert_eq!(load.errors(), 0);
    assert_eq!(resized(&mut rig).last(), Some(&BYTES));
    at_rest(&rig, 2);
}

#[test]
fn t33_a_namespace_that_comes_back_with_other_blocks_is_refused_until_it_has_the_same_again() {
    for paths in [1, 2] {
        let mut rig = rig_with(paths, |_| ());
        let mut config = target_config(1);
        (config.subsystem.cntlid_min, config.subsystem.cntlid_max) = (1001, 1100);
        let namespace = &mut config.subsystem.namespaces[0];
        (namespace.block_shift, namespace.blocks) = (9, BLOCKS * 8);
        let (_, route) = rig.lead(0, config, rig.disk.clone());
        rig.world.cut(HOST, 0);
        rig.world.pass(5 * SECOND);
        rig.poll();
        let why = rig.failures()[1];
        assert!(
            why.contains("512") && why.contains("4096"),
            "both sizes: {why}"
        );
        assert_eq!(resized(&mut rig), [], "not a byte less or more");
        rig.submit(&write(1, 1)).unwrap();
        rig.world.pass(SECOND);
        rig.poll();
        let served = rig.done.len();
        assert_eq!(
            served,
            paths as usize - 1,
            "{paths}: it waits where there is no other path"
        );
        rig.world.nodes[HOST].addresses[0] = route;
        until_returned(&mut rig, 11 * SECOND);
        assert!(served == 1 || rig.run(SECOND, |_, done| done.len() == 1));
        assert!(rig.done[0].outcome.is_done());
        at_rest(&rig, paths as u8);
    }
}

/// The other core hears of a live path that it has other blocks now: no core uses it from then on.
#[test]
fn t33_a_live_path_with_other_blocks_is_lost_on_every_core_and_the_others_go_on() {
    let mut fleet = Fleet::new(2, 2, target(2));
    fleet.load(4000);
    fleet.run(MS, |_| false);
    fleet.facts = |facts| {
        if facts.path == P1 {
            facts.namespace.block_shift = 9;
        }
    };
    let now_ns = fleet.world.now_ns;
    let grow = TargetControl::Resize(1, BLOCKS + 8);
    engine::Machine::handle_control(&mut *fleet.target.borrow_mut(), grow, now_ns);
    let lost = |it: &Fleet| it.states(P1) == [PathState::Reconnecting; 2];
    assert!(fleet.run(SECOND, lost), "{:?}", fleet.states(P1));
    let lines = failures(&fleet.events[1]).join("\n");
    assert!(lines.contains("512") && lines.contains("4096"), "{lines}");
    assert_eq!(fleet.states(P0), [PathState::Live; 2]);
    fleet.facts = |_| ();
    fleet.finish();
    let live = |it: &Fleet| it.states(P1) == [PathState::Live; 2];
    assert!(fleet.run(30 * SECOND, live), "{:?}", fleet.states(P1));
}
