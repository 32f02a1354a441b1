//! Zeroes that are copied to legs which can keep holes.
use super::common::{Disk, HOST, MS, SECOND};
use super::rig::{BLOCK, Rig, configured, data, io, made};
use engine::DeviceOp;
use engine::host::{IoOp, PathKind};
use engine::machine::DeviceError;
use engine::mirror::{LegOrder, LegStatus};
use multipath::Outcome;
use nvme::wire::Status;
use policy::PathIndex;

const KIB: u64 = 1 << 10;
/// Where the mirror begins on a leg.
const DATA_AT: u64 = 1 << 20;
const HOLE: DeviceOp = DeviceOp::WriteZeroes { deallocate: true };
const ZEROES: IoOp = IoOp::WriteZeroes { deallocate: false };

/// A mirror whose legs keep holes of 64 KiB, or do not.
fn rig(disks: &[Disk], keep: bool) -> Rig {
    rig_of(disks, if keep { 64 << 10 } else { 0 })
}

/// A mirror whose legs have holes of this size and alignment; 0: none.
fn rig_of(disks: &[Disk], bytes: u32) -> Rig {
    let (mut host, mirror) = configured(disks);
    for volume in &mut host.volumes {
        if let PathKind::Device { hole_bytes, .. } = &mut volume.paths[0].kind {
            *hole_bytes = bytes;
        }
    }
    let mut rig = Rig::with(disks, host, mirror);
    rig.until(30 * SECOND, Rig::is_ready);
    rig
}

/// Leg 1 is away while blocks 0 and 40 are written and block 100, which it has, is zeroed.
fn without_leg(disks: &[Disk], keep: bool) -> Rig {
    let rig = rig(disks, keep);
    after_loss(rig, disks)
}

fn after_loss(mut rig: Rig, disks: &[Disk]) -> Rig {
    assert_eq!(rig.write(100, 5), Outcome::Done);
    rig.order_leg(1, LegOrder::Fail);
    rig.until(SECOND, |rig| rig.statuses()[1] == LegStatus::Stale);
    rig.run(SECOND, |_| false);
    assert_eq!(rig.write(0, 7), Outcome::Done);
    assert_eq!(rig.write(40, 8), Outcome::Done);
    assert_eq!(rig.one(&io(ZEROES, 100)), Outcome::Done);
    *disks[1].log.borrow_mut() = Some(Vec::new());
    rig
}

fn is_whole(rig: &Rig) -> bool {
    rig.statuses() == [LegStatus::InSync; 2]
}

/// Requests for a leg's data in larger pieces than users have: whether it was a hole, and
/// first and last KiB of the mirror.
fn copied(disk: &Disk) -> Vec<(bool, u64, u64)> {
    let log = disk.log.borrow();
    let requests = log.as_ref().unwrap().iter().map(|it| it.0);
    let copies = requests.filter(|it| it.offset >= DATA_AT && it.op.is_change());
    let copies = copies.filter(|it| it.length > BLOCK.into());
    let mut copies: Vec<_> = copies
        .map(|it| {
            let from = it.offset - DATA_AT;
            (it.op == HOLE, from / KIB, (from + it.length) / KIB)
        })
        .collect();
    copies.sort_by_key(|it| it.1);
    copies
}

/// A unit that is larger than a piece of a copy (256 KiB) is a preference: most of what is
/// deallocated is contiguous in the end.
#[test]
fn rebuild_of_a_leg_that_keeps_holes_leaves_them() {
    for unit in [4 << 10, 64 << 10, 512 << 10, 1 << 30] {
        holes_are_left(unit);
    }
}

fn holes_are_left(unit: u32) {
    let disks = made(2, true);
    let mut rig = after_loss(rig_of(&disks, unit), &disks);
    rig.order_leg(1, LegOrder::Return);
    rig.until(60 * SECOND, is_whole);
    let want = [
        (false, 0, 64),
        (true, 64, 128),
        (false, 128, 192),
        (true, 192, 256),
        (true, 256, 512),
        (true, 512, 768),
        (true, 768, 1024),
    ];
    assert_eq!(copied(&disks[1]), want, "unit {unit}");
    assert!(data(&disks[0]) == data(&disks[1]), "legs differ");
    assert_eq!(
        [rig.read(0), rig.read(40), rig.read(100)],
        [Ok(7), Ok(8), Ok(0)]
    );
    rig.stop();
}

/// It says that it made a hole, and the data stay.
#[test]
fn rebuild_of_a_leg_that_promises_no_zeroes_writes_them() {
    let disks = made(2, true);
    let mut rig = without_leg(&disks, false);
    rig.disk(1).keeps_holes = true;
    rig.order_leg(1, LegOrder::Return);
    rig.until(60 * SECOND, is_whole);
    let want = [0, 256, 512, 768].map(|from| (false, from, from + 256));
    assert_eq!(copied(&disks[1]), want);
    assert!(data(&disks[0]) == data(&disks[1]), "legs differ");
    rig.stop();
}

/// Whatever a leg says of a hole, it is given the zeroes and stays. It is asked for no further hole
/// where it does not know the command or denies it; and no error is counted, for nothing failed.
#[test]
fn leg_that_fails_to_make_holes_is_written() {
    let invalid = DeviceError::Nvme(Status::INVALID_FIELD.with_dnr());
    let denied = DeviceError::Nvme(Status::ACCESS_DENIED.with_dnr());
    for (error, asked) in [
        (DeviceError::Unsupported, 1),
        (invalid, 1),
        (denied, 1),
        (DeviceError::Full, 5),
        (DeviceError::Os(5), 5),
    ] {
        let disks = made(2, true);
        let mut rig = without_leg(&disks, true);
        rig.disk(1).hole_error = Some(error);
        rig.order_leg(1, LegOrder::Return);
        rig.until(60 * SECOND, is_whole);
        let all = copied(&disks[1]);
        let holes = all.iter().filter(|it| it.0).count();
        assert!((asked..asked + 4).contains(&holes), "{error:?}: {all:?}");
        assert!(data(&disks[0]) == data(&disks[1]), "{error:?}: legs differ");
        let left = rig
            .lines()
            .iter()
            .filter(|it| it.contains("has left"))
            .count();
        assert_eq!(left, 0, "{error:?}: {:?}", rig.lines());
        let counted = rig.engine.borrow().host().counters(1, PathIndex(0));
        let errors = (counted.errors, counted.device_errors);
        assert_eq!(errors, (0, 0), "{error:?}");
        rig.stop();
    }
}

/// T46: a user's write to what is just being made a hole comes after it, however slow the leg is.
#[test]
fn t46_write_to_a_hole_that_is_being_made_waits_for_it() {
    let disks = made(2, true);
    let mut rig = without_leg(&disks, true);
    rig.order_leg(1, LegOrder::Return);
    rig.disk(1).delay_ns = 20 * MS;
    rig.until(60 * SECOND, |_| copied(&disks[1]).len() == 4);
    // All that follows are holes. One is under way for long, and what comes behind it is quick.
    rig.disk(1).delay_ns = SECOND;
    rig.run(100 * MS, |_| false);
    rig.disk(1).delay_ns = 0;
    rig.done.clear();
    // In each piece one block that is zeroes so far.
    let blocks = [24, 70, 130, 200];
    for block in blocks {
        let it = io(IoOp::Write { fua: false }, block);
        let at = it.span.at as usize;
        rig.world.nodes[HOST].arena.0[at..][..BLOCK as usize].fill(9);
        rig.submit(&it);
    }
    rig.until(60 * SECOND, |rig| rig.done.len() == blocks.len());
    rig.until(60 * SECOND, is_whole);
    for block in blocks {
        assert_eq!(rig.read(block), Ok(9), "block {block}");
    }
    assert!(data(&disks[0]) == data(&disks[1]), "legs differ");
    rig.stop();
}

/// A leg that fails between two runs of a piece leaves, and nothing of it stays behind.
#[test]
fn leg_that_fails_between_runs_returns() {
    let disks = made(2, true);
    let mut rig = without_leg(&disks, true);
    rig.disk(1).delay_ns = 20 * MS;
    rig.order_leg(1, LegOrder::Return);
    rig.until(60 * SECOND, |_| copied(&disks[1]).len() == 1);
    rig.disk(1).error = Some(DeviceError::Os(19));
    rig.until(60 * SECOND, |rig| rig.statuses()[1] == LegStatus::Stale);
    rig.disk(1).error = None;
    rig.until(120 * SECOND, is_whole);
    assert!(data(&disks[0]) == data(&disks[1]), "legs differ");
    rig.stop();
}

/// After an unclean stop nothing is zeroed on a leg in sync that may have acknowledged data.
#[test]
fn resync_makes_holes_only_where_the_source_has_zeroes() {
    let disks = made(2, true);
    let mut before = rig(&disks, true);
    assert_eq!(before.write(40, 8), Outcome::Done);
    drop(before);
    *disks[1].log.borrow_mut() = Some(Vec::new());
    let mut rig = rig(&disks, true);
    rig.until(60 * SECOND, |rig| rig.report().resync.is_none());
    rig.run(20 * SECOND, |_| false);
    let all = copied(&disks[1]);
    let holes = all.iter().filter(|it| it.0);
    assert!(holes.clone().count() > 0, "{all:?}");
    let over = |&&(_, from, to): &&(bool, u64, u64)| from <= 160 && 160 < to;
    assert_eq!(holes.filter(over).count(), 0, "{all:?}");
    assert_eq!(rig.read(40), Ok(8));
    rig.stop();
}
