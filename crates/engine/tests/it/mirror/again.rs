//! Legs that are busy, that lose one of several paths, or can't be read at the start.
use super::common::{Disk, HOST, SECOND};
use super::rig::{BLOCK, Rig, WITHOUT, configured, data, io, made};
use engine::host::{Change, HostControl, IoOp};
use engine::machine::DeviceError;
use engine::mirror::{LegOrder, LegStatus, MIRRORS_FROM};
use multipath::Outcome;
use policy::PathIndex;

const EAGAIN: DeviceError = DeviceError::Os(11);
const EIO: DeviceError = DeviceError::Os(5);

#[test]
fn t06_t07_a_leg_that_has_no_memory_for_a_while_does_not_leave_and_gets_the_same_bytes_then() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    assert_eq!(rig.write(0, 1), Outcome::Done);
    rig.disk(1).error = Some(EAGAIN);
    let late = io(IoOp::Write { fua: false }, 1);
    let at = late.span.at as usize;
    rig.world.nodes[HOST].arena.0[at..][..BLOCK as usize].fill(7);
    rig.submit(&late);
    let ended = |rig: &Rig| rig.done.iter().any(|done| done.cookie == late.cookie);
    assert!(!rig.run(20 * SECOND, ended), "leg 1 has it not");
    rig.disk(1).error = None;
    rig.until(2 * SECOND, ended);
    assert!(rig.done.iter().all(|done| done.outcome.is_done()));
    assert_eq!(rig.statuses(), [LegStatus::InSync; 2]);
    assert_eq!(rig.lines(), [""; 0]);
    rig.stop();
    for disk in &disks {
        let block = data(disk)[BLOCK as usize..][..BLOCK as usize].to_vec();
        assert!(block.iter().all(|&byte| byte == 7), "sent again as it was");
    }
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

/// A mirror whose leg 1 has two paths.
fn two_paths(disks: &[Disk]) -> Rig {
    let (mut host, mirror) = configured(disks);
    let mut other = host.volumes[1].paths[0].clone();
    other.uri = "disk:1b".into();
    host.volumes[1].paths.push(other);
    let mut rig = Rig::with(disks, host, mirror);
    rig.until(30 * SECOND, Rig::is_ready);
    rig
}

#[test]
fn t13_a_leg_that_lost_one_of_two_paths_with_unflushed_writes_returns_by_the_other() {
    let disks = made(2, true);
    let mut rig = two_paths(&disks);
    for block in 0..8 {
        assert_eq!(rig.write(block, 7), Outcome::Done);
    }
    let path = PathIndex(0);
    rig.control(HostControl::Change {
        ticket: 1,
        change: Change::FailPath(1, path, true),
        wait_ns: 0,
    });
    rig.until(SECOND, |rig| rig.statuses()[1] == LegStatus::Stale);
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    // And stays.
    rig.run(10 * SECOND, |_| false);
    assert_eq!(rig.statuses(), [LegStatus::InSync; 2]);
    let left = rig
        .lines()
        .iter()
        .filter(|line| line.contains("has left"))
        .count();
    assert_eq!(left, 1, "{:?}", rig.lines());
    assert_eq!(rig.flush(), Outcome::Done);
    assert_eq!(rig.read(3), Ok(7));
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

#[test]
fn t13_what_the_last_leg_has_lost_is_told_until_somebody_hears_of_it() {
    let disks = made(2, true);
    let mut rig = two_paths(&disks);
    rig.order_leg(0, LegOrder::Fail);
    rig.until(SECOND, |rig| rig.statuses()[0] == LegStatus::Stale);
    for block in 0..8 {
        assert_eq!(rig.write(block, 7), Outcome::Done);
    }
    rig.control(HostControl::Change {
        ticket: 1,
        change: Change::FailPath(1, PathIndex(0), true),
        wait_ns: 0,
    });
    let given_up = |rig: &Rig| rig.engine.borrow().devices().times_given_up(MIRRORS_FROM);
    assert_eq!(given_up(&rig), 0);
    let first = rig.flush();
    assert_eq!((first.is_done(), given_up(&rig)), (false, 1));
    for heard in [false, false, true] {
        rig.engine
            .borrow_mut()
            .devices_mut()
            .flush_failed_for(MIRRORS_FROM, heard);
        let next = rig.flush();
        assert_eq!(next.is_done(), heard, "{next:?}");
    }
    assert_eq!(rig.statuses()[1], LegStatus::InSync);
}

#[test]
fn a_leg_that_could_not_be_read_at_the_start_is_used_when_it_can_be() {
    let disks = made(3, true);
    let mut all = disks.clone();
    all[2].error = Some(DeviceError::Os(19));
    let mut rig = Rig::new(&all);
    rig.run(SECOND, |_| false);
    rig.order(WITHOUT);
    rig.until(30 * SECOND, Rig::is_ready);
    assert_eq!(rig.write(5, 9), Outcome::Done);
    rig.disk(2).error = None;
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 3]);
    assert_eq!(data(&disks[0]), data(&disks[2]));
}

/// A mirror of two legs, started without leg 1, whose superblocks fail with EIO.
fn started_without_unreadable(disks: &[Disk]) -> Rig {
    let mut all = disks.to_vec();
    all[1].error = Some(EIO);
    let mut rig = Rig::new(&all);
    rig.run(SECOND, |_| false);
    rig.order(WITHOUT);
    rig.until(30 * SECOND, Rig::is_ready);
    rig
}

/// An error of the medium says nothing of what the superblocks say: the leg is read again without
/// an order of the user, as one that can't be reached is.
#[test]
fn leg_unreadable_at_the_start_is_read_again() {
    let disks = made(2, true);
    let mut rig = started_without_unreadable(&disks);
    assert_eq!(rig.write(5, 9), Outcome::Done);
    rig.run(20 * SECOND, |_| false);
    let legs = rig.report().legs;
    assert_eq!(legs[1].status, LegStatus::Unusable);
    assert!(
        legs[1]
            .why
            .as_deref()
            .is_some_and(|why| why.contains("can be read"))
    );
    rig.disk(1).error = None;
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
}
