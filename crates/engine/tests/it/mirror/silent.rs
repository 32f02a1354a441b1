//! Legs that are there and don't answer when a mirror starts.
use super::common::SECOND;
use super::rig::{Rig, WITHOUT, configured, data, made};
use engine::machine::DeviceError;
use engine::mirror::{LegStatus, MirrorOrder, MirrorState};
use mirror::assembly::Wishes;
use multipath::Outcome;

/// As configured: how long legs are waited for.
const WAIT: u64 = 10 * SECOND;

fn is_refused(rig: &Rig) -> bool {
    matches!(rig.report().state, MirrorState::Refused(_))
}

#[test]
fn t45_a_leg_that_does_not_answer_is_not_there_and_its_late_answer_does_no_harm() {
    let disks = made(2, true);
    let mut rig = Rig::new(&disks);
    rig.disk(1).delay_ns = 60 * SECOND;
    let begun_ns = rig.world.now_ns;
    assert!(!rig.run(WAIT - SECOND, |rig| is_refused(rig) || rig.is_ready()));
    rig.until(2 * SECOND, is_refused);
    let why = rig.report().legs[1].why.clone();
    assert_eq!(why.as_deref(), Some("it doesn't answer"));
    rig.order(WITHOUT);
    rig.until(SECOND, Rig::is_ready);
    assert_eq!(rig.write(0, 7), Outcome::Done);
    rig.disk(1).delay_ns = 0;
    let left_ns = begun_ns + 59 * SECOND - rig.world.now_ns;
    let comes = |rig: &Rig| rig.statuses() != [LegStatus::InSync, LegStatus::Missing];
    assert!(!rig.run(left_ns, comes), "its memory is still read into");
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(rig.read(0), Ok(7));
    rig.stop();
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

#[test]
fn t45_a_mirror_that_may_start_without_a_leg_starts_without_one_that_does_not_answer() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    rig.disk(1).error = Some(DeviceError::Os(5));
    assert_eq!(rig.write(0, 1), Outcome::Done);
    rig.until(SECOND, |rig| rig.statuses()[1] == LegStatus::Stale);
    rig.stop();
    let mut rig = Rig::new(&disks);
    rig.disk(1).delay_ns = 60 * SECOND;
    assert!(!rig.run(WAIT - SECOND, Rig::is_ready));
    rig.until(2 * SECOND, Rig::is_ready);
    assert_eq!(rig.read(0), Ok(1));
    rig.disk(1).delay_ns = 0;
    rig.until(90 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

#[test]
fn t45_what_a_leg_said_before_counts_for_nothing_when_it_does_not_answer_any_more() {
    let disks = made(3, true);
    let mut rig = Rig::new(&disks);
    rig.disk(2).error = Some(DeviceError::Os(19));
    rig.until(30 * SECOND, is_refused);
    rig.disk(1).delay_ns = 1000 * SECOND;
    rig.order(WITHOUT);
    assert!(!rig.run(WAIT - SECOND, Rig::is_ready));
    rig.until(2 * SECOND, Rig::is_ready);
    let missing = LegStatus::Missing;
    assert_eq!(rig.statuses(), [LegStatus::InSync, missing, missing]);
    assert_eq!(rig.write(0, 1), Outcome::Done);
}

#[test]
fn a_leg_that_is_always_too_slow_is_asked_again_after_a_pause_and_by_word() {
    let disks = made(2, true);
    let (host, mut mirror) = configured(&disks);
    mirror.assemble_wait_ns = 0;
    let mut rig = Rig::with(&disks, host, mirror);
    rig.disk(1).delay_ns = SECOND / 100;
    rig.until(SECOND, is_refused);
    let silent = |rig: &Rig| {
        let lines = rig.lines();
        let of_leg = |line: &&String| line.starts_with("m0: disk:1: it doesn't answer");
        lines.iter().filter(of_leg).count()
    };
    assert!(!rig.run(55 * SECOND, Rig::is_ready));
    assert!(silent(&rig) <= 6, "{:?}", rig.lines());
    let before = silent(&rig);
    rig.order(MirrorOrder::Assemble(Wishes::default()));
    rig.until(SECOND, |rig| silent(rig) > before);
}

#[test]
fn a_mirror_whose_leg_does_not_answer_stops_and_keeps_no_core_busy() {
    let disks = made(2, true);
    let mut rig = Rig::new(&disks);
    rig.disk(1).delay_ns = 1000 * SECOND;
    rig.until(WAIT + SECOND, is_refused);
    let due_ns = engine::Machine::poll_timeout(&*rig.engine.borrow());
    assert!(due_ns.is_some_and(|at_ns| at_ns > rig.world.now_ns));
    rig.order(MirrorOrder::Stop);
    assert!(!rig.run(60 * SECOND, Rig::is_ready));
    assert_eq!(rig.report().state, MirrorState::Stopped);
}
