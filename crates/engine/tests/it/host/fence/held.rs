//! Writes whose path was lost before it answered: held until the old controller can't execute them.

use crate::common::*;
use engine::host::{HoldReason, HostControl, IoOp, Recovery, WriteFailover};
use multipath::Outcome;

/// Writes version 1 to block 0 so that the disk executes it only `late_ns` from now, cuts its path
/// as soon as the disk has it, and says what block 0 holds after version 2 was written and all is
/// quiet.
fn late_write(rig: &mut Rig, late_ns: u64) -> (u64, u64) {
    let path_of_write = |rig: &Rig| u32::from(rig.host.borrow().in_flight(0, P1) > 0);
    fill(&mut rig.world.nodes[HOST].arena.0[..4096], 0, 1);
    rig.world.nodes[TARGET].disks[0].delay_ns = late_ns;
    rig.submit(&write(0, 0)).unwrap();
    rig.world.pass(MS);
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    let path = path_of_write(rig);
    rig.world.cut(HOST, path);
    assert!(rig.run(60 * SECOND, |_, done| done.len() == 1));
    let first = rig.done.remove(0);
    assert_eq!(first.outcome, Outcome::Done);
    fill(
        &mut rig.world.nodes[HOST].arena.0[128 << 10..][..4096],
        0,
        2,
    );
    assert_eq!(rig.one(&write(0, 1), 60 * SECOND).outcome, Outcome::Done);
    rig.world.pass(60 * SECOND);
    let mut want = vec![0; 4096];
    let holds = |want: &[u8]| rig.disk.bytes.borrow()[..4096] == *want;
    let version = (1..=2).find(|&version| {
        fill(&mut want, 0, version);
        holds(&want)
    });
    (version.unwrap(), first.latency_ns)
}

#[test]
fn t09_a_late_write_is_lost_with_immediate_and_never_with_fenced() {
    // Canary: the late execution is real.
    let mut rig = rig_with(2, |it| it.write_failover = WriteFailover::Immediate);
    let (version, held_ns) = late_write(&mut rig, 2 * SECOND);
    assert_eq!(version, 1, "the acknowledged second write is gone");
    assert!(held_ns < 10 * MS);
    for late_ns in [MS, SECOND, HELD_NS - 10 * MS] {
        let mut rig = rig_with(2, |_| ());
        let (version, held_ns) = late_write(&mut rig, late_ns);
        assert_eq!(version, 2);
        assert!(
            (HELD_NS..HELD_NS + 100 * MS).contains(&held_ns),
            "{held_ns}"
        );
        let stats = rig.host.borrow().hold_stats(0);
        assert_eq!(stats.held_total, 1);
        assert!(stats.held_ns_max >= HELD_NS);
        at_rest(&rig, 2);
    }
}

#[test]
fn t09_the_time_to_quiesce_that_the_target_reports_is_waited_for() {
    // 5 s is what a target of files reports unless it is told otherwise.
    for cqt_ms in [3000, 5000] {
        let mut host = host_config(2);
        host.kato_ms = 1000;
        host.volumes[0].recovery = Recovery::default();
        let mut target = target_config(2);
        target.subsystem.cqt_ms = cqt_ms;
        let mut rig = Rig::new(host, target);
        rig.ready();
        let bound_ns = 2 * SECOND + u64::from(cqt_ms) * MS;
        let (version, held_ns) = late_write(&mut rig, bound_ns - 100 * MS);
        assert_eq!(version, 2);
        assert!(
            (bound_ns..bound_ns + 100 * MS).contains(&held_ns),
            "{cqt_ms}: {held_ns}"
        );
    }
}

#[test]
fn t09_without_a_keep_alive_time_out_nothing_bounds_a_hold() {
    let mut host = host_config(2);
    host.kato_ms = 0;
    host.volumes[0].recovery = Recovery::default();
    let mut rig = Rig::new(host, target_config(2));
    rig.ready();
    rig.world.nodes[TARGET].disks[0].delay_ns = SECOND;
    rig.submit(&write(0, 0)).unwrap();
    rig.world.pass(MS);
    rig.world.cut(HOST, 0);
    rig.world.cut(HOST, 1);
    rig.world.pass(1000 * SECOND);
    rig.poll();
    assert_eq!(rig.done.len(), 0);
    let stats = rig.host.borrow().hold_stats(0);
    assert_eq!((stats.held, stats.reason), (1, Some(HoldReason::Unbounded)));
    // Stopping ends it, in time.
    rig.control(HostControl::Stop);
    assert!(
        rig.world
            .run(20 * SECOND, |world| world.nodes[HOST].stopped)
    );
    rig.poll();
    assert_eq!(rig.done[0].outcome, Outcome::Stopped);
}

#[test]
fn t09_new_overlapping_writes_wait_behind_a_held_one_and_others_and_reads_do_not() {
    let mut rig = rig_with(2, |_| ());
    for (slot, version) in [(0, 1), (1, 2), (2, 3)] {
        fill(
            &mut rig.world.nodes[HOST].arena.0[slot * (128 << 10)..][..4096],
            0,
            version,
        );
    }
    rig.world.nodes[TARGET].disks[0].delay_ns = SECOND;
    rig.submit(&write(0, 0)).unwrap();
    rig.world.pass(MS);
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    let path = u32::from(rig.host.borrow().in_flight(0, P1) > 0);
    rig.world.cut(HOST, path);
    rig.world.pass(MS);
    for slot in [1, 2] {
        rig.submit(&write(0, slot)).unwrap();
    }
    let zeroes = io(IoOp::WriteZeroes { deallocate: false }, 4096, 4096, 3);
    assert_eq!(rig.one(&zeroes, 10 * MS).outcome, Outcome::Done);
    assert_eq!(rig.one(&read(0, 4), 10 * MS).outcome, Outcome::Done);
    let stats = rig.host.borrow().hold_stats(0);
    assert_eq!((stats.held, stats.behind), (1, 2));
    assert!(matches!(stats.reason, Some(HoldReason::Until(at)) if at > rig.world.now_ns));
    assert!(rig.run(4 * SECOND, |_, done| done.len() == 3));
    let order: Vec<_> = rig.done.iter().map(|done| done.cookie).collect();
    assert_eq!(order, [0, 1, 2]);
    let mut want = vec![0; 4096];
    fill(&mut want, 0, 3);
    assert_eq!(rig.disk.bytes.borrow()[..4096], want[..]);
    at_rest(&rig, 2);
}

/// An error must not say that a write may yet be executed.
#[test]
fn t09_a_write_that_a_lost_controller_may_execute_fails_when_it_no_longer_can() {
    let mut rig = rig_with(1, |it| it.fast_io_fail_ns = SECOND);
    rig.world.nodes[TARGET].disks[0].delay_ns = 30 * SECOND;
    rig.submit(&write(0, 0)).unwrap();
    rig.submit(&read(1, 1)).unwrap();
    rig.world.pass(MS);
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    assert!(rig.run(2 * SECOND, |_, done| done.len() == 1));
    assert_eq!(rig.done.remove(0).cookie, 1, "the read");
    assert!(rig.run(10 * SECOND, |_, done| done.len() == 1));
    let done = rig.done.remove(0);
    assert_eq!(done.outcome, Outcome::PathError);
    assert!(
        (HELD_NS..HELD_NS + 50 * MS).contains(&done.latency_ns),
        "{done:?}"
    );
}
