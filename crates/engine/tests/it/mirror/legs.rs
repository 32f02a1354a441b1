//! Legs that fail, and come back.
use super::common::{MS, SECOND};
use super::rig::{LEG_BYTES, Rig, data, io, made, say, superblock};
use engine::host::{IoOp, SubmitError};
use engine::machine::DeviceError;
use engine::mirror::{LegOrder, LegStatus, MirrorOrder, MirrorState};
use mirror::superblock::{EntryState, Superblock};
use multipath::Outcome;
use nvme::wire::Status;

const EIO: DeviceError = DeviceError::Os(5);

#[test]
fn t14_a_leg_that_fails_is_said_to_be_stale_before_its_write_is_acknowledged_and_returns() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    assert_eq!(rig.write(0, 1), Outcome::Done);
    rig.disk(1).error = Some(EIO);
    assert_eq!(rig.write(1, 2), Outcome::Done);
    let state = superblock(&disks[0]).superblock.legs[1].unwrap().state;
    assert!(matches!(state, EntryState::Stale(_)), "{state:?}");
    assert_eq!(rig.statuses(), [LegStatus::InSync, LegStatus::Stale]);
    for block in 0..2 {
        assert_eq!(rig.read(block), Ok(block as u8 + 1));
    }
    assert_ne!(data(&disks[0]), data(&disks[1]));
    assert!(
        rig.lines()
            .iter()
            .any(|line| line.contains("disk:1") && line.contains("has left"))
    );
    rig.disk(1).error = None;
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
    rig.stop();
    assert!(superblock(&disks[1]).superblock.clean);
}

/// A return is tried meanwhile and can read neither superblock: nothing is known of the contents.
#[test]
fn leg_whose_superblocks_cannot_be_read_for_a_while_returns() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    rig.disk(1).error = Some(EIO);
    assert_eq!(rig.write(1, 2), Outcome::Done);
    rig.run(20 * SECOND, |_| false);
    assert_eq!(rig.statuses(), [LegStatus::InSync, LegStatus::Stale]);
    rig.disk(1).error = None;
    rig.until(120 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

/// The superblocks of a leg that was taken out are read once in each heartbeat interval, and here
/// that takes almost as long. It is ordered to return at different times of that.
#[test]
fn leg_whose_superblocks_are_read_slowly_returns() {
    for later in 0..4 {
        let disks = made(2, true);
        say(&disks, |it| Superblock {
            heartbeat_interval_ms: 1000,
            ..it
        });
        let mut rig = Rig::with_last_leg(&disks, &[1], 0);
        rig.disk(1).delay_ns = 960 * MS;
        rig.run((2000 + later * 250) * MS, |_| false);
        rig.order_leg(1, LegOrder::Return);
        rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    }
}

#[test]
fn what_legs_are_is_shown_also_of_a_mirror_that_was_stopped() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    rig.order_leg(1, LegOrder::Fail);
    assert_eq!(rig.write(0, 1), Outcome::Done);
    assert_eq!(rig.statuses(), [LegStatus::InSync, LegStatus::Stale]);
    let line = |rig: &Rig, words| rig.lines().iter().any(|line| line.contains(words));
    assert!(line(&rig, "was taken out"), "{:?}", rig.lines());
    assert!(!line(&rig, "has left"), "no path has failed");
    rig.order(MirrorOrder::Stop);
    rig.until(SECOND, |rig| rig.report().state == MirrorState::Stopped);
    assert_eq!(rig.statuses(), [LegStatus::InSync, LegStatus::Stale]);
}

#[test]
fn t45_the_last_leg_stays_and_its_errors_go_to_the_caller() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    assert_eq!(rig.write(0, 1), Outcome::Done);
    rig.disk(0).error = Some(EIO);
    rig.disk(1).error = Some(EIO);
    assert_ne!(rig.write(0, 2), Outcome::Done);
    assert!(rig.read(0).is_err());
    for leg in 0..2 {
        rig.disk(leg).error = None;
    }
    // Which of them is right is said again within a second; before that it can't be read.
    rig.run(2 * SECOND, |_| false);
    let found = rig.read(0);
    assert!(matches!(found, Ok(1 | 2)), "{found:?}");
}

#[test]
fn t02_what_one_leg_cannot_read_comes_from_another_and_is_written_there_again() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    for block in 0..8 {
        assert_eq!(rig.write(block, 3), Outcome::Done);
    }
    rig.disk(0).error = Some(EIO);
    // Round robin: leg 0 is asked for every second one.
    for block in 0..8 {
        assert_eq!(rig.read(block), Ok(3));
    }
    rig.disk(0).error = None;
    let errors = rig.report().legs[0].counters.errors;
    assert!(errors > 0);
    rig.run(SECOND, |_| false);
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

/// A controller's word against trying again is about what leads to that leg.
#[test]
fn t03_what_must_not_be_tried_again_on_one_leg_is_read_from_the_other_at_once() {
    for status in [
        Status::UNRECOVERED_READ,
        Status::NAMESPACE_NOT_READY,
        Status::INTERNAL_ERROR,
        Status::INTERNAL_PATH,
        Status::TRANSIENT_TRANSPORT,
    ] {
        let disks = made(2, true);
        let mut rig = Rig::ready(&disks);
        for block in 0..8 {
            assert_eq!(rig.write(block, 3), Outcome::Done);
        }
        rig.disk(0).error = Some(DeviceError::Nvme(status.with_dnr()));
        // Round robin: leg 0 is asked for every second one, as long as it is there.
        for block in 0..8 {
            let before_ns = rig.world.now_ns;
            assert_eq!(rig.read(block), Ok(3), "{status}");
            let took_ns = rig.world.now_ns - before_ns;
            assert!(took_ns < 10 * MS, "{status}: it was tried again on leg 0");
        }
        let leg = &rig.report().legs[0];
        let asked = leg.counters.errors > 0 || leg.status != LegStatus::InSync;
        assert!(asked, "{status}: {leg:?}");
        rig.disk(0).error = None;
        rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
        rig.run(SECOND, |_| false);
        assert_eq!(data(&disks[0]), data(&disks[1]), "{status}");
        rig.stop();
    }
}

/// Of one leg more blocks can't be written than are recorded: it leaves, is rebuilt once, and then
/// waits for its user.
#[test]
fn t14_a_leg_whose_record_is_full_is_stuck() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    rig.disk(1).refuses_odd = true;
    for block in 0..60 {
        assert_eq!(rig.write(block, 3), Outcome::Done, "{block}");
    }
    rig.run(600 * SECOND, |rig| rig.report().legs[1].stuck);
    let leg = rig.report().legs[1].clone();
    assert!(leg.stuck && leg.status == LegStatus::Stale, "{leg:?}");
    let facts = leg.facts.unwrap();
    assert!(facts.bad_full && facts.bad.0 <= 16, "{facts:?}");
    let left = rig
        .lines()
        .iter()
        .filter(|it| it.contains("has left"))
        .count();
    assert_eq!(left, 2, "{:?}", rig.lines());
    // It does not try for ever.
    rig.run(600 * SECOND, |_| false);
    assert_eq!(rig.statuses(), [LegStatus::InSync, LegStatus::Stale]);
    for block in 0..60 {
        assert_eq!(rig.read(block), Ok(3));
    }
    rig.disk(1).refuses_odd = false;
    rig.order_leg(1, LegOrder::Return);
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
    assert_eq!(rig.report().legs[1].facts.unwrap().bad.0, 0);
}

#[test]
fn t14_a_leg_that_is_cut_short_leaves_at_once_and_is_rebuilt_from_the_start_when_told_to() {
    const CUT: u64 = LEG_BYTES / 2;
    // By a read, and by a write behind the new end.
    for writes in [false, true] {
        let disks = made(2, true);
        let mut rig = Rig::ready(&disks);
        // Blocks before the cut, and behind it.
        let blocks: Vec<u64> = (0..4).chain(1400..1404).collect();
        for &block in &blocks {
            assert_eq!(rig.write(block, 3), Outcome::Done);
        }
        rig.run(60 * SECOND, |_| false); // intents are forgotten
        rig.disk(1).cut_at = Some(CUT);
        disks[1].bytes.borrow_mut()[CUT as usize..].fill(0);
        if writes {
            assert_eq!(rig.write(1401, 3), Outcome::Done);
        }
        for &block in blocks.iter().chain(&blocks) {
            assert_eq!(rig.read(block), Ok(3), "block {block}");
        }
        assert_eq!(rig.statuses(), [LegStatus::InSync, LegStatus::Stale]);
        let state = superblock(&disks[0]).superblock.legs[1].unwrap().state;
        assert!(
            matches!(state, EntryState::Stale(lack) if lack.position == 0),
            "{state:?}"
        );
        let line = |rig: &Rig| rig.lines().iter().any(|it| it.contains("was cut short"));
        assert!(line(&rig), "{:?}", rig.lines());
        // As long again, with zeroes in it: nobody but the user says that it may be used.
        rig.disk(1).cut_at = None;
        rig.run(600 * SECOND, |_| false);
        assert_eq!(rig.statuses(), [LegStatus::InSync, LegStatus::Stale]);
        assert!(
            disks[1].bytes.borrow()[CUT as usize..]
                .iter()
                .all(|&byte| byte == 0)
        );
        rig.order_leg(1, LegOrder::Return);
        rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
        assert_eq!(data(&disks[0]), data(&disks[1]));
    }
}

#[test]
fn t45_of_the_last_leg_what_was_cut_off_is_an_error_and_the_rest_is_there() {
    let disks = made(2, true);
    let mut rig = Rig::with_last_leg(&disks, &[0, 1400], 0);
    rig.disk(0).cut_at = Some(LEG_BYTES / 2);
    assert_eq!(rig.read(0), Ok(3));
    assert!(rig.read(1400).is_err());
    assert_ne!(rig.write(1400, 4), Outcome::Done);
    assert_eq!(rig.write(0, 5), Outcome::Done);
    assert_eq!(rig.read(0), Ok(5));
    assert!(rig.read(1400).is_err());
    assert_eq!(rig.statuses(), [LegStatus::InSync, LegStatus::Stale]);
    let leg = rig.report().legs[0].clone();
    let is_cut = leg.is_cut_and_last();
    let why = leg.why.unwrap_or_default();
    assert!(is_cut && why.contains("cut short"), "{why}");
    // Good blocks are copied, and those that no leg has are reported.
    rig.order_leg(1, LegOrder::Return);
    let lacks = |rig: &Rig| rig.report().legs[1].facts.map(|it| (it.lacks, it.stuck));
    rig.until(60 * SECOND, |rig| lacks(rig) == Some((1, 1)));
    let why = rig.report().legs[1].why.clone().unwrap_or_default();
    assert!(why.contains("no leg in sync can read all of 1"), "{why}");
    // As long again it is written there anew: with that the other one has all, and this one has
    // zeroes where nobody asked.
    rig.disk(0).cut_at = None;
    assert_eq!(rig.write(1400, 6), Outcome::Done);
    rig.until(60 * SECOND, |rig| {
        rig.statuses() == [LegStatus::Stale, LegStatus::InSync]
    });
    rig.run(SECOND, |_| false);
    let state = superblock(&disks[1]).superblock.legs[0].unwrap().state;
    assert!(
        matches!(state, EntryState::Stale(lack) if lack.position == 0),
        "{state:?}"
    );
    rig.order_leg(0, LegOrder::Return);
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

#[test]
fn t34_what_does_not_fit_is_refused_and_what_is_full_waits() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    let now_ns = rig.world.now_ns;
    let mut odd = io(IoOp::Read, 1);
    odd.offset += 512;
    let mut behind = io(IoOp::Read, 1);
    behind.offset = 7 << 20;
    {
        let mut engine = rig.engine.borrow_mut();
        assert_eq!(engine.submit(&odd, now_ns), Err(SubmitError::Range));
        let refused = engine.submit(&behind, now_ns);
        assert!(
            matches!(refused, Err(SubmitError::PastEnd { .. })),
            "{refused:?}"
        );
    }
    // More at a time than the host has slots: all end.
    rig.disk(0).delay_ns = MS;
    for block in 0..500 {
        let it = io(IoOp::Write { fua: false }, block);
        rig.submit(&it);
    }
    rig.until(60 * SECOND, |rig| rig.done.len() == 500);
    assert!(rig.done.iter().all(|done| done.outcome.is_done()));
    assert_eq!(rig.statuses(), [LegStatus::InSync; 2], "t06");
}
