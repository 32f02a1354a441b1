//! An engine that stood still with changes of its own legs in its threads (T49).
use super::common::{Disk, HOST, MS, SECOND};
use super::rig::{Rig, configured, data, io, made, said_of, shared, superblock};
use engine::host::{IoOp, PathKind};
use engine::mirror::{LegOrder, LegStatus};
use mirror::layout::COPIES_AT;
use mirror::superblock::Owner;
use mirror::{Id, Label};
use multipath::Outcome;

/// Longer than the lease, and than another host needs to take the mirror over.
const STILL: u64 = 60 * SECOND;

/// An engine whose threads make each change of a leg 10 ms after it was given to them.
fn rig(disks: &[Disk]) -> Rig {
    let mut rig = shared(disks);
    for leg in 0..disks.len() {
        let disk = rig.disk(leg);
        (disk.by_workers, disk.delay_ns) = (true, 10 * MS);
    }
    rig.until(60 * SECOND, Rig::is_ready);
    assert_eq!(rig.write(0, 1), Outcome::Done);
    // Else one of the legs would leave with its lease, for what is in its cache (T13).
    assert_eq!(rig.flush(), Outcome::Done);
    rig
}

/// One that has stood still with a write in its threads.
fn stood_still_with_a_write(disks: &[Disk]) -> Rig {
    let mut rig = rig(disks);
    rig.world.nodes[HOST].arena.0[..4096].fill(2);
    rig.submit(&io(IoOp::Write { fua: false }, 0));
    rig.run(MS, |_| false);
    rig.world.now_ns += STILL;
    rig
}

/// Another host has taken the mirror over, and written its first block.
fn taken_over(disks: &[Disk]) -> Id {
    let run = Id([0x99; 16]);
    said_of(
        disks,
        Some(Owner {
            run,
            host: run,
            label: Label::cut("another host"),
            since_s: 1,
            heartbeat_s: 1,
            bound_ms: 0,
        }),
    );
    for disk in disks {
        let at = superblock(disk).superblock.place.data_offset as usize;
        disk.bytes.borrow_mut()[at..at + 4096].fill(9);
    }
    run
}

#[test]
fn t49_a_write_from_before_a_standstill_is_dropped() {
    let disks = made(2, true);
    let mut rig = stood_still_with_a_write(&disks);
    let run = taken_over(&disks);
    rig.run(STILL, |_| false);
    for disk in &disks {
        assert_eq!(data(disk)[..2], [9, 9], "{:?}", rig.lines());
        assert_eq!(superblock(disk).superblock.owner.unwrap().run, run);
    }
    assert_ne!(rig.done[0].outcome, Outcome::Done);
}

/// Leg 1 can keep holes, so what is copied to it is written in runs.
#[test]
fn t49_a_copy_from_before_a_standstill_is_dropped() {
    for zeroes in [false, true] {
        let disks = made(2, true);
        let (mut host, mut mirror) = configured(&disks);
        if let PathKind::Device { hole_bytes, .. } = &mut host.volumes[1].paths[0].kind {
            *hole_bytes = 64 << 10;
        }
        mirror.shared = true;
        let mut rig = Rig::with(&disks, host, mirror);
        rig.until(60 * SECOND, Rig::is_ready);
        rig.order_leg(1, LegOrder::Fail);
        rig.until(SECOND, |rig| rig.statuses()[1] == LegStatus::Stale);
        rig.run(SECOND, |_| false);
        let block = if zeroes { 40 } else { 0 };
        assert_eq!(rig.write(block, 7), Outcome::Done);
        assert_eq!(rig.flush(), Outcome::Done);
        let disk = rig.disk(1);
        (disk.by_workers, disk.delay_ns) = (true, 10 * MS);
        rig.order_leg(1, LegOrder::Return);
        let data_at = superblock(&disks[1]).superblock.place.data_offset;
        let runs = |rig: &Rig| {
            let mut units = (0..16).map(|unit| data_at + (unit << 16));
            units.find(|&at| rig.world.writes(HOST, at))
        };
        rig.until(60 * SECOND, |rig| runs(rig).is_some());
        let at = runs(&rig).unwrap() as usize;
        rig.world.now_ns += STILL;
        taken_over(&disks);
        disks[1].bytes.borrow_mut()[at..at + 2].fill(9);
        rig.run(STILL, |_| false);
        assert_eq!(
            disks[1].bytes.borrow()[at..at + 2],
            [9, 9],
            "{zeroes} {:?}",
            rig.lines()
        );
    }
}

#[test]
fn t49_a_beat_from_before_a_standstill_is_not_written() {
    let disks = made(2, true);
    let mut rig = rig(&disks);
    let is_beat = |rig: &Rig| {
        let writes = COPIES_AT.iter().any(|&at| rig.world.writes(HOST, at));
        writes && rig.done.is_empty()
    };
    rig.until(10 * SECOND, is_beat);
    rig.world.now_ns += STILL;
    let before: Vec<_> = disks.iter().map(taken_over_one).collect();
    rig.run(STILL, |_| false);
    for (disk, before) in disks.iter().zip(before) {
        let bytes = disk.bytes.borrow();
        let after = COPIES_AT.map(|at| bytes[at as usize..][..4096].to_vec());
        assert!(after == before, "{:?}", rig.lines());
    }
}

/// Both copies of a leg's superblock once another host has it.
fn taken_over_one(disk: &Disk) -> [Vec<u8>; 2] {
    taken_over(std::slice::from_ref(disk));
    copies(disk)
}

fn copies(disk: &Disk) -> [Vec<u8>; 2] {
    let bytes = disk.bytes.borrow();
    COPIES_AT.map(|at| bytes[at as usize..][..4096].to_vec())
}

fn writes_superblocks(rig: &Rig) -> bool {
    COPIES_AT.iter().any(|&at| rig.world.writes(HOST, at))
}

#[test]
fn t49_a_claim_from_before_a_standstill_is_not_written() {
    let disks = made(2, true);
    let mut rig = shared(&disks);
    for leg in 0..disks.len() {
        let disk = rig.disk(leg);
        (disk.by_workers, disk.delay_ns) = (true, 10 * MS);
    }
    rig.until(10 * SECOND, writes_superblocks);
    assert!(!rig.is_ready());
    rig.world.now_ns += STILL;
    let before: Vec<_> = disks.iter().map(taken_over_one).collect();
    rig.run(SECOND, |_| false);
    let after: Vec<_> = disks.iter().map(copies).collect();
    assert!(after == before, "{:?}", rig.lines());
    // That one is silent, and the mirror is taken over in order.
    rig.until(120 * SECOND, Rig::is_ready);
    assert_eq!(rig.statuses(), [LegStatus::InSync; 2], "{:?}", rig.lines());
}

/// By then it may be a leg of another owner.
#[test]
fn t49_a_wipe_from_before_a_standstill_is_dropped() {
    let disks = made(2, true);
    let mut rig = rig(&disks);
    rig.order_leg(1, LegOrder::Remove);
    let said = |rig: &Rig| rig.lines().iter().any(|it| it.contains("was removed"));
    rig.until(10 * SECOND, said);
    assert!(writes_superblocks(&rig));
    rig.world.now_ns += STILL;
    taken_over_one(&disks[0]);
    let before = taken_over_one(&disks[1]);
    rig.run(STILL, |_| false);
    assert!(copies(&disks[1]) == before, "{:?}", rig.lines());
}

#[test]
fn t49_a_write_goes_on_when_nobody_took_the_mirror() {
    let disks = made(2, true);
    let mut rig = stood_still_with_a_write(&disks);
    rig.until(STILL, |rig| !rig.done.is_empty());
    assert_eq!(rig.done[0].outcome, Outcome::Done, "{:?}", rig.lines());
    assert_eq!(rig.statuses(), [LegStatus::InSync; 2], "{:?}", rig.lines());
    for disk in &disks {
        assert_eq!(data(disk)[..2], [2, 2]);
    }
}
