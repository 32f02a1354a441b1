//! I/O without a usable path: how long it waits.
#![allow(clippy::unwrap_used, reason = "a test")]
mod common;

use common::*;
use engine::host::NO_PATH;
use volume::Outcome;

#[test]
fn the_wait_without_a_path_may_be_bounded() {
    let mut rig = rig_with(1, |it| it.no_path_timeout_ns = 3 * SECOND);
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    rig.world.pass(MS);
    let done = rig.one(&read(0, 0), 4 * SECOND);
    assert_eq!((done.outcome, done.path), (Outcome::PathError, NO_PATH));
    assert_eq!(done.latency_ns, 3 * SECOND);
    at_rest(&rig, 1);
}

#[test]
fn nobody_behind_the_first_overstays_the_wait_without_a_path() {
    let mut rig = rig_with(1, |it| it.no_path_timeout_ns = 3 * SECOND);
    let route = || Address::To {
        node: TARGET,
        listener: 0,
        delay_ns: WIRE_NS,
    };
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    rig.world.pass(MS);
    for n in 0..20 {
        rig.submit(&read(n, n)).unwrap();
        rig.world.pass(200 * MS);
    }
    rig.world.pass(3 * SECOND);
    rig.poll();
    let ends = rig
        .done
        .drain(..)
        .map(|done| (done.cookie, done.latency_ns));
    assert!(ends.eq((0..20).map(|n| (n, 3 * SECOND))));
    // A path that comes and goes: from then on they wait as long again, and no longer.
    rig.world.nodes[TARGET].disks[0].delay_ns = 100 * SECOND;
    rig.world.nodes[HOST].addresses[0] = route();
    until_returned(&mut rig, 11 * SECOND);
    for n in 0..4 {
        rig.submit(&read(n, n)).unwrap();
    }
    for _ in 0..3 {
        rig.world.nodes[HOST].addresses[0] = Address::Refused;
        rig.world.cut(HOST, 0);
        rig.world.pass(SECOND);
        let stats = rig.host.borrow().hold_stats(0);
        assert_eq!(stats.queued, 4);
        rig.world.nodes[HOST].addresses[0] = route();
        until_returned(&mut rig, 11 * SECOND);
    }
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    let cut_ns = rig.world.now_ns;
    assert!(rig.run(4 * SECOND, |_, done| done.len() == 4));
    assert!(rig.world.now_ns <= cut_ns + 3 * SECOND + 10 * MS);
    at_rest(&rig, 1);
}
