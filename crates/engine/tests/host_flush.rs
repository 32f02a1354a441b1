//! What a flush covers, and what holds it up (T13).
#![allow(clippy::unwrap_used, reason = "a test")]
mod common;

use common::*;
use engine::host::{HostEvent, IoOp, Recovery};
use policy::PathIndex;
use volume::Outcome;

const P0: PathIndex = PathIndex(0);
const P1: PathIndex = PathIndex(1);

/// Nothing waits, and nothing is counted as in flight.
fn at_rest(rig: &Rig, paths: u8) {
    let host = rig.host.borrow();
    let stats = host.hold_stats(0);
    let waiting = stats.held + stats.behind + stats.queued + stats.delayed;
    assert_eq!(waiting, 0, "{stats:?}");
    for path in (0..paths).map(PathIndex) {
        assert_eq!(host.in_flight(0, path), 0);
    }
}

/// A rig whose target has a volatile write cache.
fn cached(paths: u32, change: impl FnOnce(&mut Recovery)) -> Rig {
    let mut host = host_config(paths);
    host.volumes[0].recovery = Recovery::default();
    change(&mut host.volumes[0].recovery);
    let mut target = target_config(paths as u16);
    target.subsystem.volatile_write_cache = true;
    let mut rig = Rig::new(host, target);
    rig.ready();
    rig
}

fn flush(slot: u64) -> engine::host::Io {
    io(IoOp::Flush, 0, 0, slot)
}

/// Flushes that each path has done.
fn flushes(rig: &Rig) -> [u64; 2] {
    [P0, P1].map(|path| rig.host.borrow().counters(0, path).ios[2])
}

#[test]
fn t13_a_flush_goes_to_every_controller_with_unflushed_writes() {
    let mut rig = cached(2, |_| ());
    assert_eq!(rig.one(&write(0, 0), SECOND).outcome, Outcome::Done);
    assert_eq!(rig.one(&write(1, 1), SECOND).outcome, Outcome::Done);
    assert_eq!(rig.one(&flush(2), SECOND).outcome, Outcome::Done);
    assert_eq!(flushes(&rig), [1, 1]);
    // Nothing to flush: one path is asked all the same.
    assert_eq!(rig.one(&flush(2), SECOND).outcome, Outcome::Done);
    assert_eq!(flushes(&rig).iter().sum::<u64>(), 3);
    let mut rig = cached(2, |it| it.shared_write_cache = true);
    for slot in 0..4 {
        assert_eq!(rig.one(&write(slot, slot), SECOND).outcome, Outcome::Done);
    }
    assert_eq!(rig.one(&flush(5), SECOND).outcome, Outcome::Done);
    assert_eq!(flushes(&rig).iter().sum::<u64>(), 1);
}

#[test]
fn t13_a_lost_controller_with_unflushed_writes_holds_the_flush_up_until_it_has_flushed() {
    let mut rig = cached(2, |_| ());
    for slot in 0..2 {
        assert_eq!(rig.one(&write(slot, slot), SECOND).outcome, Outcome::Done);
    }
    rig.world.cut(HOST, 0);
    rig.world.pass(MS);
    rig.submit(&flush(3)).unwrap();
    rig.world.pass(50 * MS);
    rig.poll();
    assert_eq!(
        (rig.done.len(), rig.host.borrow().hold_stats(0).flushes),
        (0, 1)
    );
    assert!(rig.run(SECOND, |_, done| done.len() == 1));
    assert_eq!(
        (rig.done[0].outcome, flushes(&rig)),
        (Outcome::Done, [1, 1])
    );
    at_rest(&rig, 2);
}

#[test]
fn t13_a_flush_that_a_lost_controller_never_does_fails_once_and_says_why() {
    let mut rig = cached(2, |_| ());
    for slot in 0..2 {
        assert_eq!(rig.one(&write(slot, slot), SECOND).outcome, Outcome::Done);
    }
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    rig.world.pass(MS);
    let done = rig.one(&flush(3), 61 * SECOND);
    assert_eq!(
        (done.outcome, done.latency_ns),
        (Outcome::PathError, 60 * SECOND)
    );
    assert_eq!(rig.one(&flush(3), SECOND).outcome, Outcome::Done);
    let said = rig.events.iter().filter(
        |event| matches!(event, HostEvent::Warning(0, line) if line.contains("never flushed")),
    );
    assert_eq!(said.count(), 1);
    at_rest(&rig, 2);
}
