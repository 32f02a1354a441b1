//! Legs that are smaller for a moment than their mirror needs.
use super::common::SECOND;
use super::rig::{LEG_BYTES, Rig, WITHOUT, configured, data, made, say, superblock};
use engine::host::HostEvent;
use engine::machine::{DeviceError, LocalDevice, Machine};
use engine::mirror::{LegOrder, LegStatus, MirrorOrder, MirrorState};
use mirror::superblock::EntryState;
use mirror::{Id, Name, Superblock};
use multipath::Outcome;
use nvme::wire::Status;

const SMALL: u64 = LEG_BYTES / 2;
/// Intents are forgotten by then.
const FORGOTTEN: u64 = 60 * SECOND;

fn resize(rig: &mut Rig, leg: u16, bytes: u64) {
    let now_ns = rig.world.now_ns;
    let mut engine = rig.engine.borrow_mut();
    engine.host_mut().resize_device(leg, bytes, now_ns);
}

/// The runtime says that the file of a leg is shorter.
fn cut_file(rig: &mut Rig, leg: u16, end: u64) {
    let now_ns = rig.world.now_ns;
    let mut engine = rig.engine.borrow_mut();
    engine.handle_cut(LocalDevice(leg), end, now_ns);
}

#[test]
fn t50_a_leg_that_shrank_returns_once_it_is_large() {
    for at_once in [false, true] {
        let disks = made(2, true);
        let mut rig = Rig::ready(&disks);
        let blocks: Vec<u64> = (0..4).chain(1400..1404).collect();
        for &block in &blocks {
            assert_eq!(rig.write(block, 3), Outcome::Done);
        }
        rig.run(60 * SECOND, |_| false); // intents are forgotten
        disks[1].bytes.borrow_mut()[SMALL as usize..].fill(0);
        resize(&mut rig, 1, SMALL);
        if at_once {
            resize(&mut rig, 1, LEG_BYTES);
        } else {
            rig.run(100 * SECOND, |_| false);
            assert_eq!(rig.statuses(), [LegStatus::InSync, LegStatus::Stale]);
            let state = superblock(&disks[0]).superblock.legs[1].unwrap().state;
            let nothing = matches!(state, EntryState::Stale(lack) if lack.position == 0);
            assert!(nothing, "{state:?}");
            let why = rig.report().legs[1].why.clone().unwrap_or_default();
            assert!(why.contains("make it as large again"), "{why}");
            resize(&mut rig, 1, LEG_BYTES);
        }
        for &block in blocks.iter().chain(&blocks) {
            assert_eq!(rig.read(block), Ok(3), "block {block}");
        }
        rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
        assert_eq!(data(&disks[0]), data(&disks[1]));
        // It may shrink again.
        resize(&mut rig, 1, SMALL);
        rig.until(SECOND, |rig| rig.statuses()[1] == LegStatus::Stale);
        resize(&mut rig, 1, LEG_BYTES);
        rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    }
}

#[test]
fn t50_a_leg_that_shrank_while_away_has_nothing() {
    let disks = made(2, true);
    let mut rig = Rig::with_last_leg(&disks, &[1400], FORGOTTEN);
    disks[1].bytes.borrow_mut()[SMALL as usize..].fill(0);
    resize(&mut rig, 1, SMALL);
    resize(&mut rig, 1, LEG_BYTES);
    rig.order_leg(1, LegOrder::Return);
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

/// It is an error after it grew again, and for the next engine, until a user accepts it.
#[test]
fn t50_what_the_last_leg_lost_fails_until_accepted() {
    let disks = made(2, true);
    let mut rig = Rig::with_last_leg(&disks, &[0, 1400], 0);
    disks[0].bytes.borrow_mut()[SMALL as usize..].fill(0);
    resize(&mut rig, 0, SMALL);
    rig.run(SECOND, |_| false);
    rig.order_leg(0, LegOrder::AcceptCut);
    rig.run(SECOND, |_| false);
    let said = "still smaller";
    assert!(rig.lines().iter().any(|it| it.contains(said)));
    resize(&mut rig, 0, LEG_BYTES);
    rig.run(SECOND, |_| false);
    let is_cut = |rig: &mut Rig| {
        let leg = rig.report().legs[0].clone();
        assert!(leg.is_cut_and_last(), "{leg:?}");
        let why = leg.why.unwrap_or_default();
        assert!(why.contains("braid mirror accept-loss m0"), "{why}");
        assert_eq!(rig.read(1400), Err(Outcome::CutShort));
        assert_eq!(rig.write(1400, 4), Outcome::CutShort);
        assert_eq!(rig.write(0, 5), Outcome::Done);
        assert_eq!(rig.read(0), Ok(5));
    };
    is_cut(&mut rig);
    let line = |rig: &Rig| rig.lines().iter().any(|it| it.contains("was smaller"));
    assert!(line(&rig), "{:?}", rig.lines());
    assert_eq!(rig.flush(), Outcome::Done);
    rig.stop();
    assert!(superblock(&disks[0]).superblock.cut_at > 0);
    let mut rig = Rig::ready(&disks);
    is_cut(&mut rig);
    // Data that is left is copied to the other leg, and no zeroes are.
    rig.order_leg(1, LegOrder::Return);
    rig.until(60 * SECOND, |rig| {
        let facts = rig.report().legs[1].facts;
        facts.is_some_and(|it| it.is_stuck())
    });
    rig.order_leg(0, LegOrder::AcceptCut);
    rig.until(SECOND, |rig| !rig.report().legs[0].is_cut_and_last());
    assert_eq!(rig.read(1400), Ok(0));
    assert_eq!(rig.write(1400, 6), Outcome::Done);
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
    assert_eq!(superblock(&disks[0]).superblock.cut_at, 0);
    rig.stop();
    assert_eq!(Rig::ready(&disks).read(1400), Ok(6));
}

/// The other leg lacks only what lies below: it becomes one in sync, and the cut one is rebuilt.
#[test]
fn t50_a_cut_leg_leaves_when_another_has_all() {
    let disks = made(2, true);
    let mut rig = Rig::with_last_leg(&disks, &[0, 1400], FORGOTTEN);
    assert_eq!(rig.write(0, 5), Outcome::Done);
    disks[0].bytes.borrow_mut()[SMALL as usize..].fill(0);
    resize(&mut rig, 0, SMALL);
    resize(&mut rig, 0, LEG_BYTES);
    assert_eq!(rig.read(1400), Err(Outcome::CutShort));
    rig.order_leg(1, LegOrder::Return);
    rig.until(60 * SECOND, |rig| rig.statuses()[1] == LegStatus::InSync);
    assert_eq!(rig.read(1400), Ok(3));
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
    rig.stop();
    assert_eq!(superblock(&disks[0]).superblock.cut_at, 0);
    let mut rig = Rig::ready(&disks);
    for _ in 0..4 {
        assert_eq!(rig.read(1400), Ok(3));
    }
}

/// The other leg lacks only what lies below, and has something older where the accepted one shows
/// zeroes: it gets these, also from the next engine.
#[test]
fn t50_accepted_loss_is_copied_to_a_leg_that_returns() {
    for restarts in [false, true] {
        let disks = made(2, true);
        let mut rig = Rig::with_last_leg(&disks, &[0, 1400], FORGOTTEN);
        assert_eq!(rig.write(0, 5), Outcome::Done);
        disks[0].bytes.borrow_mut()[SMALL as usize..].fill(0);
        resize(&mut rig, 0, SMALL);
        resize(&mut rig, 0, LEG_BYTES);
        rig.run(SECOND, |_| false);
        rig.order_leg(0, LegOrder::AcceptCut);
        rig.until(SECOND, |rig| !rig.report().legs[0].is_cut_and_last());
        if restarts {
            rig.stop();
            rig = Rig::ready(&disks);
        }
        rig.order_leg(1, LegOrder::Return);
        rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
        for _ in 0..4 {
            assert_eq!((rig.read(1400), rig.read(0)), (Ok(0), Ok(5)));
        }
        assert_eq!(data(&disks[0]), data(&disks[1]));
    }
}

/// The operation goes on: what was accepted before its end would be lost again.
#[test]
fn t50_loss_during_a_sanitize_is_not_accepted() {
    let disks = made(2, true);
    let mut rig = Rig::with_last_leg(&disks, &[0, 1400], FORGOTTEN);
    rig.disk(0).error = Some(DeviceError::Nvme(Status::SANITIZE_IN_PROGRESS));
    assert_eq!(rig.read(1400), Err(Outcome::Erased));
    rig.order_leg(0, LegOrder::AcceptCut);
    rig.run(SECOND, |_| false);
    let leg = rig.report().legs[0].clone();
    let accepting = leg.facts.is_some_and(|it| it.accepting);
    assert!(leg.is_cut_and_last() && !accepting, "{leg:?}");
    disks[0].bytes.borrow_mut().fill(0);
    rig.disk(0).error = None;
    rig.run(10 * SECOND, |_| false);
    assert_eq!(rig.read(1400), Err(Outcome::CutShort));
    // Nothing was marked: the other leg still lacks nothing.
    rig.order_leg(1, LegOrder::Return);
    rig.until(60 * SECOND, |rig| rig.statuses()[1] == LegStatus::InSync);
    assert_eq!(rig.read(1400), Ok(3));
}

/// The same where the engine before saw the cut: this one knows it from the leg's superblock.
#[test]
fn t50_a_leg_that_was_cut_under_an_engine_before_returns_by_itself() {
    let disks = made(2, true);
    let mut rig = Rig::with_last_leg(&disks, &[1400], FORGOTTEN);
    disks[0].bytes.borrow_mut()[SMALL as usize..].fill(0);
    resize(&mut rig, 0, SMALL);
    resize(&mut rig, 0, LEG_BYTES);
    rig.run(SECOND, |_| false);
    rig.stop();
    let mut rig = Rig::ready(&disks);
    assert_eq!(rig.read(1400), Err(Outcome::CutShort));
    rig.order_leg(1, LegOrder::Return);
    rig.until(60 * SECOND, |rig| rig.statuses()[1] == LegStatus::InSync);
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

/// A file, of which only the runtime notices that it is shorter.
#[test]
fn t50_a_last_leg_whose_file_was_cut_says_so() {
    let disks = made(2, true);
    let mut rig = Rig::with_last_leg(&disks, &[0, 1400], FORGOTTEN);
    disks[0].bytes.borrow_mut()[SMALL as usize..].fill(0);
    rig.disk(0).cut_at = Some(SMALL);
    cut_file(&mut rig, 0, SMALL);
    // Nothing behind it was asked for.
    rig.run(SECOND, |_| false);
    let why = rig.report().legs[0].why.clone().unwrap_or_default();
    assert!(why.contains("make it as large again first"), "{why}");
    assert_eq!(rig.read(1400), Err(Outcome::CutShort));
    assert_eq!(rig.read(0), Ok(3));
    assert!(superblock(&disks[0]).superblock.cut_at > 0);
    rig.stop();
    // It is as long again, with zeroes.
    let mut rig = Rig::ready(&disks);
    assert_eq!(rig.read(1400), Err(Outcome::CutShort));
    assert_eq!(rig.read(0), Ok(3));
    rig.order_leg(0, LegOrder::AcceptCut);
    rig.until(SECOND, |rig| !rig.report().legs[0].is_cut_and_last());
    assert_eq!(rig.read(1400), Ok(0));
}

/// One that is not the last leaves before anything is asked of it, and returns by word only.
#[test]
fn t50_a_leg_whose_file_was_cut_leaves_unasked() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    assert_eq!(rig.write(1400, 3), Outcome::Done);
    rig.run(60 * SECOND, |_| false);
    disks[1].bytes.borrow_mut()[SMALL as usize..].fill(0);
    cut_file(&mut rig, 1, SMALL);
    rig.run(100 * SECOND, |_| false);
    assert_eq!(rig.statuses(), [LegStatus::InSync, LegStatus::Stale]);
    for _ in 0..4 {
        assert_eq!(rig.read(1400), Ok(3));
    }
    rig.order_leg(1, LegOrder::Return);
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

/// A file that becomes shorter, and does not end before what the mirror needs of it.
#[test]
fn t50_file_that_is_still_long_enough_stays_usable() {
    let disks = made(2, true);
    let mut rig = Rig::with_last_leg(&disks, &[0, 1400], FORGOTTEN);
    cut_file(&mut rig, 0, 2 * LEG_BYTES);
    rig.run(SECOND, |_| false);
    assert!(!rig.report().legs[0].is_cut_and_last());
    disks[0].bytes.borrow_mut()[SMALL as usize..].fill(0);
    resize(&mut rig, 0, SMALL);
    resize(&mut rig, 0, LEG_BYTES);
    rig.run(SECOND, |_| false);
    let why = rig.report().legs[0].why.clone().unwrap_or_default();
    assert!(why.contains("it is as large again"), "{why}");
    assert_eq!(rig.read(1400), Err(Outcome::CutShort));
}

/// A namespace that was smaller for a moment before anybody looked at its size: it returns by
/// itself, and gets everything.
#[test]
fn t50_leg_that_answers_past_its_end_is_copied_whole() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    assert_eq!(rig.write(1400, 3), Outcome::Done);
    rig.run(60 * SECOND, |_| false); // intents are forgotten
    disks[1].bytes.borrow_mut()[SMALL as usize..].fill(0);
    rig.disk(1).error = Some(DeviceError::Nvme(Status::LBA_RANGE));
    assert_eq!(rig.write(0, 4), Outcome::Done);
    rig.disk(1).error = None;
    assert_eq!(rig.statuses(), [LegStatus::InSync, LegStatus::Stale]);
    rig.until(100 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

/// With its superblocks. It serves nothing when that is over, and goes once the other leg is back.
#[test]
fn last_leg_that_was_sanitized_leaves_for_another() {
    let disks = made(2, true);
    let mut rig = Rig::with_last_leg(&disks, &[0, 1400], FORGOTTEN);
    rig.disk(0).error = Some(DeviceError::Nvme(Status::SANITIZE_IN_PROGRESS));
    assert_eq!(rig.read(1400), Err(Outcome::Erased));
    disks[0].bytes.borrow_mut().fill(0);
    rig.run(SECOND, |_| false);
    rig.disk(0).error = None;
    rig.run(10 * SECOND, |_| false);
    assert_eq!(rig.read(1400), Err(Outcome::CutShort));
    let why = rig.report().legs[0].why.clone().unwrap_or_default();
    assert!(why.contains("it was sanitized"), "{why}");
    assert_eq!(superblock(&disks[0]).superblock.cut_at, 1);
    rig.order_leg(1, LegOrder::Return);
    rig.until(60 * SECOND, |rig| rig.statuses()[1] == LegStatus::InSync);
    assert_eq!(rig.read(1400), Ok(3));
    rig.until(100 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

/// Where its superblocks lay nothing can be written, and the mirror does not fail for that.
#[test]
fn t50_a_last_leg_that_is_cut_to_nothing_stays() {
    let disks = made(2, true);
    let mut rig = Rig::with_last_leg(&disks, &[0, 1400], FORGOTTEN);
    for end in [0, 4096] {
        rig.disk(0).cut_at = Some(end);
        cut_file(&mut rig, 0, end);
        rig.run(SECOND, |_| false);
        assert_eq!(rig.report().state, MirrorState::Running);
        assert_eq!(rig.read(1400), Err(Outcome::CutShort));
    }
}

#[test]
fn a_mirror_of_another_name_is_refused_until_accepted() {
    let disks = made(2, true);
    let name = Name::new("m1").unwrap();
    say(&disks, |it| Superblock { name, ..it });
    let mut rig = Rig::new(&disks);
    let refused = |rig: &Rig| matches!(rig.report().state, MirrorState::Refused(_));
    rig.until(30 * SECOND, refused);
    let why = rig.lines().concat();
    for word in ["\"m1\"", "\"m0\"", "braid mirror assemble m0 --accept"] {
        assert!(why.contains(word), "{why}");
    }
    assert_eq!(rig.report().other_name, Some(name));
    // It is no matter of what is there.
    rig.order(WITHOUT);
    rig.run(60 * SECOND, |_| false);
    assert!(refused(&rig) && superblock(&disks[0]).superblock.name == name);
    // An order that was accepted and taken back is not kept.
    rig.order(MirrorOrder::AcceptName(true));
    rig.order(MirrorOrder::AcceptName(false));
    rig.run(60 * SECOND, |_| false);
    assert!(refused(&rig) && superblock(&disks[0]).superblock.name == name);
    rig.order(MirrorOrder::AcceptName(true));
    rig.until(30 * SECOND, Rig::is_ready);
    let ours = Name::new("m0").unwrap();
    rig.until(SECOND, |_| {
        let said = disks.iter().map(|disk| superblock(disk).superblock.name);
        said.into_iter().all(|it| it == ours)
    });
    rig.stop();
    // It is not asked again.
    Rig::ready(&disks);
}

/// A mirror of the same name whose legs were put in the place of its own.
#[test]
fn another_mirror_of_one_name_is_refused_until_accepted() {
    let disks = made(2, true);
    let id = superblock(&disks[0]).superblock.mirror;
    let before = Id([9; 16]);
    let knows = |known| {
        let (host, mut mirror) = configured(&disks);
        mirror.known = Some(known);
        Rig::with(&disks, host, mirror)
    };
    let mut rig = knows(before);
    let refused = |rig: &Rig| matches!(rig.report().state, MirrorState::Refused(_));
    rig.until(30 * SECOND, refused);
    let why = rig.lines().concat();
    for word in [id.to_string(), before.to_string(), "braid accept m0".into()] {
        assert!(why.contains(&word), "{why}");
    }
    rig.order(MirrorOrder::AcceptName(true));
    rig.until(30 * SECOND, Rig::is_ready);
    let said = |rig: &Rig| {
        let mut events = rig.events.iter();
        events.find_map(|it| match it {
            HostEvent::Mirror(_, id) => Some(*id),
            _ => None,
        })
    };
    assert_eq!(said(&rig), Some(id));
    rig.stop();
    let mut rig = knows(id);
    rig.until(30 * SECOND, Rig::is_ready);
    rig.stop();
}
