//! A mirror that becomes larger while it runs, and whose power fails meanwhile.
use super::common::{Disk, MS, SECOND};
use super::rig::{BLOCK, LEG_BYTES, Rig, configured, data, io, lose_power, made, superblock};
use engine::host::{HostEvent, IoOp, PathKind, SubmitError};
use engine::mirror::{LegStatus, MIRRORS_FROM, MirrorOrder};
use multipath::Outcome;

const LARGER: u64 = 2 * LEG_BYTES;

/// The disks become larger.
fn enlarge(disks: &[Disk]) {
    // Bytes that were there before any write.
    for (byte, disk) in (0x50..).zip(disks) {
        disk.bytes.borrow_mut().resize(LARGER as usize, byte);
        if let Some(durable) = &disk.durable {
            durable.borrow_mut().resize(LARGER as usize, byte);
        }
    }
}

fn grow(rig: &mut Rig) {
    rig.order(MirrorOrder::Grow(vec![(0, LARGER), (1, LARGER)]));
}

/// An engine that finds them as they are.
fn ready(disks: &[Disk]) -> Rig {
    let (mut host, mirror) = configured(disks);
    for (volume, disk) in host.volumes.iter_mut().zip(disks) {
        if let PathKind::Device { bytes, .. } = &mut volume.paths[0].kind {
            *bytes = disk.bytes.borrow().len() as u64;
        }
    }
    let mut rig = Rig::with(disks, host, mirror);
    rig.until(60 * SECOND, Rig::is_ready);
    rig
}

fn size(rig: &Rig) -> u64 {
    rig.report().superblock.unwrap().geometry.bytes
}

#[test]
fn t33_it_becomes_as_large_as_its_legs_and_says_so() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    assert_eq!(rig.write(0, 1), Outcome::Done);
    let before = size(&rig);
    rig.order(MirrorOrder::Grow(Vec::new()));
    rig.until(SECOND, |rig| rig.report().grown.is_some());
    let why = rig.report().grown.unwrap().unwrap_err();
    assert!(why.contains("make all legs larger"), "{why}");
    let last = (before + LARGER - LEG_BYTES) / u64::from(BLOCK) - 1;
    let it = io(IoOp::Write { fua: false }, last);
    let refused = rig.engine.borrow_mut().submit(&it, rig.world.now_ns);
    assert!(
        matches!(refused, Err(SubmitError::PastEnd { .. })),
        "{refused:?}"
    );
    enlarge(&disks);
    grow(&mut rig);
    rig.until(SECOND, |rig| rig.report().grown.is_some());
    let bytes = before + LARGER - LEG_BYTES;
    assert_eq!(rig.report().grown, Some(Ok(bytes)));
    let resized = |event: &HostEvent| match event {
        HostEvent::Resized(MIRRORS_FROM, info) => info.bytes == bytes,
        _ => false,
    };
    assert!(rig.events.iter().any(resized));
    assert_eq!(rig.write(last, 7), Outcome::Done);
    // Blocks that differ between legs are read as one thing, again and again.
    let other = rig.one(&io(IoOp::Read, last - 1));
    assert_eq!(other, Outcome::Done);
    rig.until(60 * SECOND, |rig| rig.report().resync.is_none());
    assert_eq!(rig.read(last), Ok(7));
    rig.stop();
    assert_eq!(data(&disks[0]), data(&disks[1]));
    let rig = ready(&disks);
    assert_eq!(size(&rig), bytes);
}

#[test]
fn t14_whenever_the_power_fails_it_has_the_old_size_or_the_new_one_and_all_is_alike() {
    let mut sizes = Vec::new();
    for after in 0..24 {
        let disks = made(2, true);
        let mut rig = Rig::ready(&disks);
        for block in 0..8 {
            assert_eq!(rig.write(block, 1 + block as u8), Outcome::Done);
        }
        assert_eq!(rig.flush(), Outcome::Done);
        enlarge(&disks);
        for leg in 0..2 {
            rig.disk(leg).delay_ns = MS;
        }
        grow(&mut rig);
        rig.run(after * MS, |_| false);
        let disks: Vec<Disk> = disks.iter().map(lose_power).collect();
        drop(rig);
        let mut rig = ready(&disks);
        sizes.push(size(&rig));
        for block in 0..8 {
            assert_eq!(rig.read(block), Ok(1 + block as u8), "after {after} ms");
        }
        grow(&mut rig);
        let _ = rig.run(SECOND, |_| false);
        assert_eq!(
            size(&rig),
            LARGER - superblock(&disks[0]).superblock.place.data_offset
        );
        rig.until(60 * SECOND, |rig| rig.report().resync.is_none());
        assert_eq!(rig.statuses(), [LegStatus::InSync; 2]);
        rig.stop();
        assert_eq!(data(&disks[0]), data(&disks[1]), "after {after} ms");
    }
    sizes.dedup();
    assert_eq!(
        sizes.len(),
        2,
        "both were seen, the old one first: {sizes:?}"
    );
}
