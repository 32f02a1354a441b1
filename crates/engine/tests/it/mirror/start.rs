//! Starts that are refused and tried again, by what the legs say then; who else has them; and what
//! holds beyond an engine.
use super::common::{Disk, SECOND};
use super::rig::{Rig, WITHOUT, configured, data, made, said_of, say, shared, superblock};
use engine::Machine;
use engine::host::{HostEvent, PathKind};
use engine::machine::DeviceError;
use engine::mirror::{LegOrder, LegStatus, MIRRORS_FROM, MirrorOrder, MirrorState};
use mirror::assembly::Wishes;
use mirror::history::Standing;
use mirror::machine::Speed;
use mirror::superblock::{Features, Owner};
use mirror::{Id, Label, Superblock};
use multipath::Outcome;

const GONE: DeviceError = DeviceError::Os(19);

/// The same disk, which can't be reached.
pub fn unreachable(disk: &Disk) -> Disk {
    let mut disk = disk.clone();
    disk.error = Some(GONE);
    disk
}

/// An engine that was refused for want of leg 1.
fn refused(disks: &[Disk]) -> Rig {
    let mut rig = Rig::new(&[disks[0].clone(), unreachable(&disks[1])]);
    let is_refused = |rig: &Rig| matches!(rig.report().state, MirrorState::Refused(_));
    rig.until(30 * SECOND, is_refused);
    rig
}

/// Somebody else goes on with leg 0 alone, and ends.
fn gone_on_alone(disks: &[Disk]) {
    let mut other = Rig::new(&[disks[0].clone(), unreachable(&disks[1])]);
    other.run(SECOND, |_| false);
    other.order(WITHOUT);
    other.until(30 * SECOND, Rig::is_ready);
    assert_eq!(other.write(3, 9), Outcome::Done);
    other.stop();
}

/// A newer version may have bits that an older one does not know, and may go by only in reading.
#[test]
fn nothing_is_written_where_a_newer_version_lets_this_one_only_read() {
    for others_reach_it in [false, true] {
        let disks = made(2, true);
        say(&disks, |superblock| {
            let features = Features {
                read_only: 1,
                ..superblock.features
            };
            Superblock {
                features,
                ..superblock
            }
        });
        let before: Vec<Vec<u8>> = disks.iter().map(|it| it.bytes.borrow().clone()).collect();
        let mut rig = match others_reach_it {
            true => shared(&disks),
            false => Rig::new(&disks),
        };
        rig.until(30 * SECOND, Rig::is_ready);
        assert_eq!(rig.read(3), Ok(0));
        assert_eq!(rig.write(3, 9), Outcome::ReadOnly);
        let speed = Speed {
            floor: 1,
            ceiling: 2,
        };
        for order in [
            MirrorOrder::Check(true),
            MirrorOrder::Speed(speed),
            MirrorOrder::KeepSpeed(Some(speed)),
            MirrorOrder::Leg(super::made::leg_id(1), LegOrder::Fail),
            MirrorOrder::Leg(super::made::leg_id(1), LegOrder::Return),
        ] {
            rig.order(order);
            rig.run(20 * SECOND, |_| false);
        }
        assert_eq!(rig.read(3), Ok(0));
        rig.stop();
        for (disk, before) in disks.iter().zip(before) {
            assert!(*disk.bytes.borrow() == before, "{others_reach_it}");
        }
    }
}

/// A leg that is there, and whose superblock can't be written: that is no reason to give up what
/// only it may have.
#[test]
fn write_protected_leg_is_named_and_not_given_up() {
    for protected in [&[1][..], &[0, 1]] {
        let disks = made(2, true);
        let (mut host, mirror) = configured(&disks);
        for &leg in protected {
            let path: &mut PathKind = &mut host.volumes[leg].paths[0].kind;
            if let PathKind::Device { read_only, .. } = path {
                *read_only = true;
            }
        }
        let mut rig = Rig::with(&disks, host, mirror);
        let is_refused = |rig: &Rig| matches!(rig.report().state, MirrorState::Refused(_));
        rig.until(30 * SECOND, is_refused);
        let report = rig.report();
        let MirrorState::Refused(why) = &report.state else {
            unreachable!()
        };
        for &leg in protected {
            let named = format!("disk:{leg}: it is there, and write-protected");
            assert!(why.contains(&named), "{why}");
            let leg = &report.legs[leg];
            assert_eq!(leg.status, LegStatus::Unusable, "{leg:?}");
            let why = leg.why.as_deref().unwrap_or_default();
            assert!(why.contains("write-protected"), "{why}");
        }
        assert!(!why.contains("--without-missing"), "{why}");
        if protected.len() == 2 {
            continue;
        }
        // A user may go on without it all the same, and sees why it has no part.
        rig.order(WITHOUT);
        rig.until(30 * SECOND, Rig::is_ready);
        assert_eq!(rig.write(3, 9), Outcome::Done);
        rig.run(20 * SECOND, |_| false);
        let leg = &rig.report().legs[1];
        assert_ne!(leg.status, LegStatus::InSync);
        let why = leg.why.as_deref().unwrap_or_default();
        assert!(why.contains("protected"), "{leg:?}");
    }
}

#[test]
fn t45_a_start_that_was_refused_looks_again_by_itself() {
    let disks = made(2, true);
    let mut rig = refused(&disks);
    gone_on_alone(&disks);
    // Leg 1 is not needed any more, by what leg 0 says now.
    rig.until(60 * SECOND, Rig::is_ready);
    assert_eq!(rig.read(3), Ok(9));
    let refusals = rig
        .lines()
        .iter()
        .filter(|it| it.contains("not started"))
        .count();
    assert_eq!(refusals, 1, "said once: {:?}", rig.lines());
}

#[test]
fn t45_a_leg_that_comes_after_a_refusal_is_judged_by_what_the_others_say_now() {
    let disks = made(2, true);
    let mut rig = refused(&disks);
    gone_on_alone(&disks);
    rig.disk(1).error = None;
    rig.until(60 * SECOND, Rig::is_ready);
    assert_eq!(rig.read(3), Ok(9));
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    for block in 0..2 {
        assert_eq!(rig.read(3), Ok(9), "leg {block}");
    }
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

#[test]
fn t45_a_word_after_a_refusal_goes_by_what_the_legs_say_now() {
    let disks = made(2, true);
    let mut rig = refused(&disks);
    gone_on_alone(&disks);
    let before = superblock(&disks[0]).superblock;
    rig.order(WITHOUT);
    rig.until(5 * SECOND, Rig::is_ready);
    assert_eq!(rig.write(4, 7), Outcome::Done);
    let now = superblock(&disks[0]).superblock;
    assert!(now.event > before.event && now.sequence > before.sequence);
    let standing = now
        .history
        .standing(before.event, before.history.current().id, now.event);
    assert_eq!(
        standing,
        Standing::Within,
        "what was written meanwhile came before"
    );
}

/// Says on the legs that this host has them.
pub(super) fn owned_by(disks: &[Disk], host: u8) {
    let owner = Owner {
        run: Id([0x33; 16]),
        host: Id([host; 16]),
        label: Label::cut("somebody else"),
        since_s: 1,
        heartbeat_s: 1,
        bound_ms: 0,
    };
    said_of(disks, Some(owner));
}

/// Lets so much time pass while that host beats.
fn beaten(rig: &mut Rig, disks: &[Disk], host: u8, seconds: u64) {
    for _ in 0..seconds / 4 {
        rig.run(4 * SECOND, |_| false);
        owned_by(disks, host);
    }
}

#[test]
fn t48_what_another_host_has_and_beats_on_is_refused_and_not_taken_when_it_falls_silent() {
    let disks = made(2, true);
    owned_by(&disks, 0x99);
    let mut rig = shared(&disks);
    beaten(&mut rig, &disks, 0x99, 20);
    let state = rig.report().state;
    let MirrorState::Refused(why) = state else {
        panic!("{state:?}");
    };
    assert!(why.contains("somebody else has it"), "{why}");
    assert!(!rig.run(300 * SECOND, Rig::is_ready), "by word only");
    rig.order(MirrorOrder::Assemble(Wishes::default()));
    rig.until(30 * SECOND, Rig::is_ready);
    assert_eq!(rig.write(0, 1), Outcome::Done);
}

#[test]
fn t48_what_another_engine_of_this_host_had_is_taken_when_it_falls_silent() {
    let disks = made(2, true);
    owned_by(&disks, 0x66);
    let mut rig = shared(&disks);
    beaten(&mut rig, &disks, 0x66, 40);
    assert!(matches!(rig.report().state, MirrorState::Refused(_)));
    rig.until(60 * SECOND, Rig::is_ready);
}

#[test]
fn t48_a_mirror_that_is_stopped_while_it_is_claimed_ends_and_nobody_has_it() {
    let disks = made(2, true);
    let mut rig = shared(&disks);
    assert!(
        !rig.run(SECOND, Rig::is_ready),
        "its owner's record is watched"
    );
    rig.order(MirrorOrder::Stop);
    let stopped = |rig: &Rig| rig.report().state == MirrorState::Stopped;
    rig.until(60 * SECOND, stopped);
    assert!(!rig.is_ready());
    for disk in &disks {
        assert_eq!(superblock(disk).superblock.owner, None);
    }
    // Another one has it at once, or after the time that it takes anyway.
    let mut next = shared(&disks);
    next.until(60 * SECOND, Rig::is_ready);
}

#[test]
fn a_mirror_that_was_refused_and_is_stopped_keeps_no_core_busy() {
    let disks = made(2, true);
    let mut rig = refused(&disks);
    assert!(matches!(rig.report().state, MirrorState::Refused(_)));
    rig.order(MirrorOrder::Stop);
    // Past the time at which it would have been tried again, and that for legs to come.
    assert!(!rig.run(300 * SECOND, Rig::is_ready));
    assert_eq!(rig.report().state, MirrorState::Stopped);
    let due_ns = Machine::poll_timeout(&*rig.engine.borrow());
    assert!(due_ns.is_none_or(|at_ns| at_ns > rig.world.now_ns));
}

#[test]
fn t48_whoever_is_overtaken_stops_at_its_next_beat_and_writes_nothing_more() {
    let disks = made(2, true);
    let mut rig = shared(&disks);
    rig.until(60 * SECOND, Rig::is_ready);
    assert_eq!(rig.write(0, 1), Outcome::Done);
    owned_by(&disks, 0x99);
    rig.run(10 * SECOND, |_| false);
    assert!(matches!(rig.report().state, MirrorState::Failed(_)));
    assert_eq!(rig.write(0, 2), Outcome::Reservation);
    for disk in &disks {
        let owner = superblock(disk).superblock.owner.unwrap();
        assert_eq!(owner.host, Id([0x99; 16]));
    }
}

#[test]
fn t48_whoever_is_overtaken_by_one_that_has_ended_stops_too() {
    for by_verb in [false, true] {
        let disks = made(2, true);
        let mut rig = shared(&disks);
        rig.until(60 * SECOND, Rig::is_ready);
        assert_eq!(rig.write(0, 1), Outcome::Done);
        // The owner in between can't be told any more.
        said_of(&disks, None);
        rig.run(10 * SECOND, |_| false);
        assert!(matches!(rig.report().state, MirrorState::Failed(_)));
        if by_verb {
            rig.order(MirrorOrder::Stop);
            let stopped = |rig: &Rig| rig.report().state == MirrorState::Stopped;
            rig.until(30 * SECOND, stopped);
        }
        rig.stop();
        for disk in &disks {
            assert_eq!(
                superblock(disk).superblock.owner,
                None,
                "nothing more is said"
            );
        }
    }
}

#[test]
fn t45_of_two_halves_one_is_given_up_by_word_and_gets_what_the_other_has() {
    let disks = made(2, true);
    for (leg, byte) in [(0, 5), (1, 6)] {
        let mut half = disks.clone();
        half[1 - leg] = unreachable(&disks[1 - leg]);
        let mut rig = Rig::new(&half);
        rig.run(SECOND, |_| false);
        rig.order(WITHOUT);
        rig.until(30 * SECOND, Rig::is_ready);
        assert_eq!(rig.write(0, byte), Outcome::Done);
        rig.stop();
    }
    let mut rig = Rig::new(&disks);
    rig.run(30 * SECOND, |_| false);
    let state = rig.report().state;
    let MirrorState::Refused(why) = state else {
        panic!("{state:?}");
    };
    assert!(why.contains("since they parted"), "{why}");
    rig.order(MirrorOrder::Assemble(Wishes {
        without: false,
        discard: Some(0),
    }));
    rig.until(30 * SECOND, Rig::is_ready);
    rig.until(30 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(rig.read(0), Ok(6));
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

/// While its legs are claimed it was decided already: one that is given up then would be the only
/// one that has everything.
#[test]
fn t45_a_leg_is_not_given_up_while_its_mirror_is_being_claimed() {
    let disks = made(2, true);
    gone_on_alone(&disks);
    let mut rig = shared(&disks);
    rig.run(SECOND, |_| false);
    assert_eq!(rig.report().state, MirrorState::Assembling);
    rig.order(MirrorOrder::Assemble(Wishes {
        without: false,
        discard: Some(0),
    }));
    rig.until(60 * SECOND, Rig::is_ready);
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(rig.read(3), Ok(9), "what was acknowledged");
}

#[test]
fn t45_what_only_a_user_can_change_is_told_apart_from_what_may_change_by_itself() {
    let told = |rig: &Rig| -> Vec<bool> {
        let events = rig.events.iter();
        let refused = events.filter_map(|event| match event {
            HostEvent::Refused(_, why) => Some(why.is_some()),
            _ => None,
        });
        refused.collect()
    };
    // A leg that can't be reached may come.
    let disks = made(2, true);
    let rig = refused(&disks);
    assert_eq!(told(&rig), [false]);
    // Another host has it: until somebody says that it has not.
    owned_by(&disks, 0x99);
    let mut rig = shared(&disks);
    beaten(&mut rig, &disks, 0x99, 20);
    assert_eq!(told(&rig), [true]);
    rig.order(MirrorOrder::Assemble(Wishes::default()));
    rig.until(30 * SECOND, Rig::is_ready);
    assert_eq!(told(&rig), [true, false]);
}

#[test]
fn t34_limits_are_those_of_the_legs_that_are_there_now() {
    let disks = made(2, true);
    let (mut host, mirror) = configured(&disks);
    let PathKind::Device { block_shift, .. } = &mut host.volumes[1].paths[0].kind else {
        unreachable!();
    };
    *block_shift = 9;
    let mut rig = Rig::with(&[disks[0].clone(), unreachable(&disks[1])], host, mirror);
    rig.run(SECOND, |_| false);
    rig.order(WITHOUT);
    rig.until(30 * SECOND, Rig::is_ready);
    let atomic = |rig: &Rig| {
        let limits = rig.engine.borrow().devices().limits(MIRRORS_FROM);
        limits.unwrap().atomic_bytes
    };
    assert_eq!(atomic(&rig), 4096);
    rig.disk(1).error = None;
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(atomic(&rig), 512);
    rig.order_leg(1, LegOrder::Fail);
    rig.until(SECOND, |rig| rig.statuses()[1] == LegStatus::Stale);
    assert_eq!(atomic(&rig), 4096);
}

#[test]
fn a_leg_that_was_taken_out_stays_out_until_it_is_restored() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    rig.order_leg(1, LegOrder::Fail);
    rig.until(SECOND, |rig| rig.statuses()[1] == LegStatus::Stale);
    assert_eq!(rig.write(0, 1), Outcome::Done);
    rig.stop();
    let mut rig = Rig::ready(&disks);
    rig.run(60 * SECOND, |_| false);
    assert_eq!(rig.statuses(), [LegStatus::InSync, LegStatus::Stale]);
    // Also one that comes later than the others.
    assert_eq!(rig.write(0, 2), Outcome::Done);
    drop(rig);
    let mut rig = Rig::new(&[disks[0].clone(), unreachable(&disks[1])]);
    rig.until(30 * SECOND, Rig::is_ready);
    rig.disk(1).error = None;
    rig.run(60 * SECOND, |_| false);
    assert_eq!(rig.statuses(), [LegStatus::InSync, LegStatus::Stale]);
    rig.order_leg(1, LegOrder::Return);
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    rig.stop();
    let mut rig = Rig::ready(&disks);
    rig.until(SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

#[test]
fn b6_the_speed_of_rebuilds_is_the_mirrors_and_a_pause_is_not() {
    let disks = made(2, true);
    let speed = |floor, ceiling| Speed { floor, ceiling };
    let mut rig = Rig::ready(&disks);
    let usual = rig.report().speed;
    rig.order(MirrorOrder::KeepSpeed(Some(speed(2 << 20, 3 << 20))));
    rig.order(MirrorOrder::Speed(speed(1, 1)));
    rig.run(SECOND, |_| false);
    assert_eq!(rig.report().speed, speed(1, 1));
    rig.stop();
    let mut rig = Rig::ready(&disks);
    assert_eq!(rig.report().speed, speed(2 << 20, 3 << 20));
    rig.order(MirrorOrder::KeepSpeed(None));
    rig.run(SECOND, |_| false);
    rig.stop();
    assert_eq!(Rig::ready(&disks).report().speed, usual);
}

#[test]
fn t45_changes_of_a_mirror_that_can_not_say_what_happened_end_and_it_goes_on() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    assert_eq!(rig.write(0, 1), Outcome::Done);
    for leg in 0..2 {
        rig.disk(leg).error = Some(DeviceError::Os(5));
    }
    // Both at once: neither may wait for the other for ever.
    let two = [1, 2].map(|block| super::rig::io(engine::host::IoOp::Write { fua: false }, block));
    two.iter().for_each(|it| rig.submit(it));
    rig.until(30 * SECOND, |rig| rig.done.len() == 2);
    assert!(rig.done.iter().all(|done| !done.outcome.is_done()));
    rig.done.clear();
    for leg in 0..2 {
        rig.disk(leg).error = None;
    }
    rig.run(2 * SECOND, |_| false);
    assert_eq!(rig.write(1, 7), Outcome::Done);
    assert_eq!(rig.read(1), Ok(7));
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    rig.stop();
    assert_eq!(data(&disks[0]), data(&disks[1]));
}
