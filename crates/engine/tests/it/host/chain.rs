//! Writes that wait one behind the other, as many as there may be: however they end, the stack is
//! as deep for the last as for the first.

use crate::common::*;
use engine::host::{Io, NO_PATH};
use multipath::Outcome;

/// Far more than the stack of [`on_a_small_stack`] has room for, if each were let go from within
/// the one before it.
const CHAIN: u64 = 30_000;

fn on_a_small_stack(test: fn()) {
    let thread = std::thread::Builder::new().stack_size(768 << 10);
    thread.spawn(test).unwrap().join().unwrap();
}

/// A write that nobody answered for and that is held, and others behind it, all to one block; no
/// path is left.
fn chain(count: u64, fast_io_fail_ns: u64) -> Rig {
    let mut rig = rig_of(1, |host, _| {
        host.volumes[0].recovery.fast_io_fail_ns = fast_io_fail_ns;
        host.io_max = count as u32 + 1;
    });
    rig.world.nodes[TARGET].disks[0].delay_ns = 30 * SECOND;
    rig.submit(&write(0, 0)).unwrap();
    rig.world.pass(MS);
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    rig.world.pass(MS);
    for cookie in 1..=count {
        let next = write(0, 1);
        rig.submit(&Io { cookie, ..next }).unwrap();
    }
    let stats = rig.host.borrow().hold_stats(0);
    assert_eq!((stats.held, u64::from(stats.behind)), (1, count));
    rig
}

#[test]
fn t09_writes_that_wait_behind_one_that_fails_all_fail_in_turn() {
    on_a_small_stack(|| {
        let mut rig = chain(CHAIN, SECOND);
        let all = CHAIN as usize + 1;
        assert!(rig.run(10 * SECOND, |_, done| done.len() == all));
        for (done, cookie) in rig.done.iter().zip(0..) {
            assert_eq!(done.cookie, cookie, "in order");
            assert_eq!((done.outcome, done.path), (Outcome::PathError, NO_PATH));
        }
        at_rest(&rig, 1);
    });
}

/// Not all at once, but each when the one before it has ended.
#[test]
fn t09_writes_that_wait_behind_one_that_is_done_at_last_are_done_in_turn() {
    let count = 200;
    let mut rig = chain(count, u64::MAX);
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    rig.world.nodes[HOST].addresses[0] = Address::To {
        node: TARGET,
        listener: 0,
        delay_ns: WIRE_NS,
    };
    let all = count as usize + 1;
    assert!(rig.run(30 * SECOND, |_, done| done.len() == all));
    let cookies = rig.done.iter().map(|done| done.cookie);
    assert!(cookies.eq(0..=count));
    assert!(rig.done.iter().all(|done| done.outcome == Outcome::Done));
    at_rest(&rig, 1);
}
