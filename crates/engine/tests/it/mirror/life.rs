//! From the first leg that is there to the clean stop.
use super::common::{Disk, SECOND};
use super::rig::{
    BLOCK, LEG_BYTES, Rig, WITHOUT, configured, data, intents, lose_power, made, say, superblock,
};
use super::start::unreachable;
use engine::host::VolumeInfo;
use engine::mirror::{Anew, LegStatus, MIRRORS_FROM, MirrorOrder, MirrorState};
use mirror::assembly::Wishes;
use mirror::superblock::EntryState;
use mirror::{Id, Name, Superblock};
use multipath::Outcome;

#[test]
fn what_is_written_is_on_all_legs_and_a_clean_stop_forgets_all_intents() {
    let disks = made(3, true);
    let mut rig = Rig::ready(&disks);
    assert_eq!(rig.statuses(), [LegStatus::InSync; 3]);
    for block in 0..40 {
        assert_eq!(rig.write(block, block as u8 + 1), Outcome::Done);
    }
    assert_eq!(rig.flush(), Outcome::Done);
    for block in 0..40 {
        assert_eq!(rig.read(block), Ok(block as u8 + 1));
    }
    // Round robin over three legs, 4 KiB each: all of them serve.
    for leg in &rig.report().legs {
        assert!(
            leg.counters.reads >= 13 && leg.counters.writes == 40,
            "{leg:?}"
        );
    }
    for disk in &disks {
        assert!(!superblock(disk).superblock.clean && intents(disk) > 0);
        assert!(superblock(disk).superblock.owner.is_some());
    }
    rig.stop();
    for disk in &disks {
        let after = superblock(&lose_power(disk)).superblock;
        assert!(after.clean && after.owner.is_none() && after.event > 1);
        assert_eq!(intents(&lose_power(disk)), 0);
        assert_eq!(data(&lose_power(disk)), data(&disks[0]));
    }
}

#[test]
fn t13_t14_after_a_loss_of_power_all_that_was_flushed_is_on_every_leg() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    for block in 0..20 {
        assert_eq!(rig.write(block, 1), Outcome::Done);
    }
    assert_eq!(rig.flush(), Outcome::Done);
    for block in 10..30 {
        assert_eq!(rig.write(block, 2), Outcome::Done);
    }
    let after: Vec<_> = disks.iter().map(lose_power).collect();
    // One of them had written some of it before.
    after[1]
        .bytes
        .borrow_mut()
        .copy_from_slice(&disks[1].bytes.borrow());
    let mut rig = Rig::ready(&after);
    for block in 0..10 {
        assert_eq!(rig.read(block), Ok(1));
    }
    for block in 10..20 {
        let found = rig.read(block);
        assert!(matches!(found, Ok(1 | 2)), "{block}: {found:?}");
        assert_eq!(rig.read(block), found, "what was read once stays");
    }
    rig.until(60 * SECOND, |rig| rig.report().resync.is_none());
    assert_eq!(data(&after[0]), data(&after[1]));
}

#[test]
fn a_mirror_without_a_leg_that_may_have_more_starts_by_the_users_word_only() {
    let disks = made(2, true);
    Rig::ready(&disks).stop();
    let mut alone = Rig::new(&disks[..1]);
    alone.run(30 * SECOND, |_| false);
    let MirrorState::Refused(why) = alone.report().state else {
        panic!("{:?}", alone.report());
    };
    assert!(
        why.contains("disk:1") && why.contains("newer writes"),
        "{why}"
    );
    assert_eq!(alone.lines().len(), 1, "said once");
    let before = superblock(&disks[0]);
    assert!(before.superblock.clean, "nothing was written");
    alone.order(WITHOUT);
    alone.until(SECOND, |rig| rig.is_ready());
    assert_eq!(alone.write(3, 9), Outcome::Done);
    assert_eq!(alone.statuses(), [LegStatus::InSync, LegStatus::Missing]);
    let after = superblock(&disks[0]).superblock;
    let state = after.legs[1].unwrap().state;
    assert!(matches!(state, EntryState::Stale(_)), "{state:?}");
    alone.stop();
    // The other one came before: it is rebuilt.
    let mut both = Rig::ready(&disks);
    both.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
    assert_eq!(both.read(3), Ok(9));
}

#[test]
fn halves_that_were_both_written_are_refused_by_name() {
    let disks = made(2, true);
    for leg in 0..2 {
        let mut half = Rig::new(&disks[leg..=leg]);
        half.order(WITHOUT);
        half.until(30 * SECOND, |rig| rig.is_ready());
        assert_eq!(half.write(leg as u64, 7), Outcome::Done);
        half.stop();
    }
    let mut both = Rig::new(&disks);
    both.run(30 * SECOND, |_| false);
    let lines = both.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for word in ["disk:0", "disk:1", "both written"] {
        assert!(lines[0].contains(word), "{lines:?}");
    }
    assert!(
        both.engine
            .borrow()
            .devices()
            .limits(MIRRORS_FROM)
            .is_none()
    );
}

#[test]
fn legs_that_are_not_alike_are_rebuilt_from_the_first() {
    let disks = made(2, false);
    disks[0].bytes.borrow_mut()[2 << 20..3 << 20].fill(5);
    disks[1].bytes.borrow_mut()[3 << 20..4 << 20].fill(6);
    let mut rig = Rig::ready(&disks);
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
    let first = &data(&disks[0])[1 << 20..2 << 20];
    assert!(first.iter().all(|&byte| byte == 5));
    rig.stop();
}

/// Told to begin, as a run with this identifier.
fn anew(disks: &[Disk], byte: u8) -> MirrorOrder {
    let mut config = configured(disks).1;
    config.owner.run = Id([byte; 16]);
    let info = VolumeInfo {
        bytes: LEG_BYTES,
        block_shift: 12,
        transfer_max: BLOCK,
        read_only: false,
    };
    let infos = vec![info; disks.len()];
    MirrorOrder::Begin(Box::new(Anew { config, infos }))
}

#[test]
fn one_that_was_stopped_begins_anew_as_at_a_start() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    assert_eq!(rig.write(3, 1), Outcome::Done);
    let anew = |byte| anew(&disks, byte);
    // Not while it runs.
    rig.order(anew(1));
    rig.until(SECOND, |rig| !rig.lines().is_empty());
    assert!(
        rig.lines()[0].contains("has not been stopped"),
        "{:?}",
        rig.lines()
    );
    let why = rig.report().not_begun;
    assert!(why.is_some_and(|why| why.contains("has not been stopped")));
    assert_eq!(rig.read(3), Ok(1));
    for round in 2..6 {
        rig.order(MirrorOrder::Stop);
        rig.until(SECOND, |rig| rig.report().state == MirrorState::Stopped);
        for disk in &disks {
            let said = superblock(disk).superblock;
            assert!(said.clean && said.owner.is_none());
        }
        rig.events.clear();
        // There is nothing that could go by such a word.
        rig.order(MirrorOrder::Assemble(Wishes::default()));
        rig.until(SECOND, |rig| !rig.lines().is_empty());
        assert!(rig.lines()[0].contains("stopped"), "{:?}", rig.lines());
        rig.events.clear();
        rig.order(anew(round));
        rig.until(SECOND, Rig::is_ready);
        assert_eq!(rig.report().not_begun, None);
        assert_eq!(rig.statuses(), [LegStatus::InSync; 2]);
        assert_eq!(rig.read(3), Ok(round - 1));
        assert_eq!(rig.write(3, round), Outcome::Done);
    }
    let begun = superblock(&disks[0]).superblock;
    assert_eq!(begun.owner.map(|it| it.run), Some(Id([5; 16])));
    rig.stop();
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

/// A name that was accepted for a start is asked for again by the next one.
#[test]
fn accepted_name_ends_with_the_start_that_is_stopped() {
    let disks = made(2, true);
    let name = Name::new("m1").unwrap();
    say(&disks, |it| Superblock { name, ..it });
    let mut rig = Rig::new(&[disks[0].clone(), unreachable(&disks[1])]);
    rig.order(MirrorOrder::AcceptName(true));
    rig.run(SECOND, |_| false);
    assert_eq!(rig.report().state, MirrorState::Assembling, "without leg 1");
    let stop = |rig: &mut Rig| {
        rig.order(MirrorOrder::Stop);
        rig.until(SECOND, |rig| rig.report().state == MirrorState::Stopped);
    };
    stop(&mut rig);
    rig.disk(1).error = None;
    rig.order(anew(&disks, 2));
    let is_refused = |rig: &Rig| matches!(rig.report().state, MirrorState::Refused(_));
    rig.until(30 * SECOND, is_refused);
    assert_eq!(rig.report().other_name, Some(name));
    stop(&mut rig);
    rig.order(MirrorOrder::AcceptName(true));
    rig.order(anew(&disks, 3));
    rig.until(30 * SECOND, Rig::is_ready);
    rig.stop();
}

/// As at the end of the engine, which goes on; in the same memory, under the same number.
#[test]
fn one_that_leaves_is_stopped_and_another_one_takes_its_place() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    for round in 1..4 {
        assert_eq!(rig.write(3, round), Outcome::Done);
        rig.order(MirrorOrder::Leave);
        rig.until_gone();
        for disk in &disks {
            let said = superblock(disk).superblock;
            assert!(said.clean && said.owner.is_none());
        }
        rig.events.clear();
        rig.order(anew(&disks, round));
        rig.until(SECOND, Rig::is_ready);
        assert_eq!(rig.read(3), Ok(round));
    }
    // One that was stopped before goes as well.
    rig.order(MirrorOrder::Stop);
    rig.until(SECOND, |rig| rig.report().state == MirrorState::Stopped);
    rig.order(MirrorOrder::Leave);
    rig.until_gone();
}

/// Nothing but the repair itself makes that durable: it has no intent, and no flush behind it.
#[test]
fn t13_what_was_repaired_is_alike_after_a_loss_of_power_too() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    assert_eq!(rig.write(5, 1), Outcome::Done);
    assert_eq!(rig.flush(), Outcome::Done);
    // Until nothing is left of its intent.
    rig.run(60 * SECOND, |_| false);
    let place = superblock(&disks[1]).superblock.place;
    let at = place.data_offset as usize + 5 * 4096;
    for bytes in [&disks[1].bytes, disks[1].durable.as_ref().unwrap()] {
        bytes.borrow_mut()[at..at + 4096].fill(2);
    }
    rig.order(MirrorOrder::Check(true));
    rig.until(60 * SECOND, |rig| rig.report().checked.is_some());
    let found = rig.report().checked.unwrap();
    assert_eq!((found.differences, found.repaired), (1, 1));
    let after = [lose_power(&disks[0]), lose_power(&disks[1])];
    assert_eq!(data(&after[0]), data(&after[1]));
}
