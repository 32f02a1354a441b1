use super::super::Recovery;
use super::super::connections::SessionState;
use super::super::types::{PathConfig, VolumeConfig};
use super::ChangeStage::*;
use super::*;
use alloc::vec;

const ALL: [ChangeStage; 11] = [
    Join,
    Return,
    Drain,
    Leave,
    Flush,
    CloseQueues,
    ShutDown,
    Forget,
    Open,
    Empty,
    ForgetVolume,
];

/// Every edge that there is: a stage, and those that lead to it.
#[test]
fn stages_are_reached_from_these_only() {
    for (to, want) in [
        (Join, vec![]),
        (Return, vec![]),
        (Drain, vec![]),
        (Leave, vec![]),
        (Flush, vec![Leave]),
        (CloseQueues, vec![Leave, Flush]),
        (ShutDown, vec![CloseQueues]),
        (Forget, vec![Join, Leave, Flush, CloseQueues, ShutDown]),
        (Open, vec![]),
        (Empty, vec![Open]),
        (ForgetVolume, vec![Empty]),
    ] {
        let from = ALL.into_iter().filter(|from| from.leads_to(to));
        assert_eq!(from.collect::<Vec<_>>(), want, "to {to:?}");
    }
}

fn volume() -> Volume {
    let config = VolumeConfig {
        name: "v".into(),
        policy: policy::Policy::Numa,
        knobs: policy::Knobs::default(),
        paths: Vec::new(),
        recovery: Recovery::NONE,
    };
    Volume::new(0, config, 1)
}

fn path() -> Path {
    let config = PathConfig {
        uri: "file:///a".into(),
        kind: PathKind::Device {
            device: crate::LocalDevice(0),
            bytes: 4096,
            block_shift: 9,
            identity: None,
            read_only: false,
            deallocate_zeroes: false,
            hole_bytes: 0,
        },
        distance: 0,
        throughput: 0,
        numbers: PathConfig::ANY_NUMBER,
    };
    let mut path = Path::new(3, 0, PathIndex(0), config);
    path.session.enter(SessionState::Identifying);
    path
}

fn live() -> Path {
    let mut path = path();
    path.session.enter(SessionState::Connecting);
    path.session.enter(SessionState::Live);
    path
}

fn lost() -> Path {
    let mut path = live();
    path.session.enter(SessionState::Lost);
    path
}

fn change(stage: ChangeStage, cores: u16) -> PendingChange {
    let mut change = PendingChange::new(0, PathIndex(0), stage);
    change.until_ns = 100;
    change.ordered(1, cores);
    change
}

/// Action of a change for a path that has nothing unflushed, or has (`needs_flush`).
fn next(change: &mut PendingChange, path: &Path, needs_flush: bool, now_ns: u64) -> Next {
    let volume = volume();
    let view = PathView {
        path,
        volume: &volume,
        doubt: None,
        needs_flush,
    };
    change.next_of_path(&view, now_ns)
}

/// A path in order: all cores drain, its controller flushes, queues close, it is shut down, and all
/// forget it. Each stage waits for what it is for.
#[test]
fn leaving_path_goes_through_all_stages() {
    let mut it = change(Leave, 1);
    let mut path = live();
    assert_eq!(next(&mut it, &path, true, 0), Next::Wait);
    it.wait_for_no_core();
    assert_eq!(next(&mut it, &path, true, 0), Next::Flush);
    path.cache.set_final_flush(FinalFlush::Out { until_ns: 9 });
    assert_eq!(next(&mut it, &path, true, 0), Next::Wait);
    path.cache.set_final_flush(FinalFlush::Late { until_ns: 9 });
    assert_eq!(next(&mut it, &path, true, 0), Next::Wait);
    // The one that was under way for somebody else has ended: another must follow.
    path.cache.set_final_flush(FinalFlush::None);
    assert_eq!(next(&mut it, &path, true, 0), Next::Flush);
    path.cache.set_final_flush(FinalFlush::Ended(true));
    assert_eq!(next(&mut it, &path, true, 0), Next::CloseQueues(true));
    it.ordered(2, 1);
    assert_eq!(next(&mut it, &path, true, 0), Next::Wait);
    it.wait_for_no_core();
    path.session.enter(SessionState::Closed);
    assert_eq!(next(&mut it, &path, true, 0), Next::ShutDown);
    assert_eq!(next(&mut it, &path, true, 0), Next::Forget(Ok(())));
    it.ordered(3, 1);
    assert_eq!(next(&mut it, &path, true, u64::MAX - 1), Next::Wait);
    assert_eq!(it.next_without_path(), Next::Wait);
    it.wait_for_no_core();
    assert_eq!(it.next_without_path(), Next::Freed);
}

/// T13: another core's unflushed writes count as well; a path that is coming back has not flushed.
#[test]
fn leaving_path_flushes_for_any_core_while_live() {
    let mut it = change(Leave, 0);
    it.unflushed = true;
    assert_eq!(next(&mut it, &live(), false, 0), Next::Flush);
    let mut it = change(Leave, 0);
    assert_eq!(next(&mut it, &live(), false, 0), Next::CloseQueues(true));
    let mut it = change(Leave, 0);
    let mut back = path();
    back.session.enter(SessionState::Connecting);
    assert_eq!(next(&mut it, &back, true, 0), Next::CloseQueues(false));
}

#[test]
fn leaving_path_that_is_lost_is_forgotten() {
    for stage in [Leave, Flush, CloseQueues] {
        let mut it = change(stage, 1);
        assert_eq!(
            next(&mut it, &lost(), true, 0),
            Next::Forget(Ok(())),
            "{stage:?}"
        );
        assert_eq!(it.stage(), Forget);
    }
}

/// T13: a path that would take unflushed writes along stays, but by force.
#[test]
fn leaving_path_in_doubt_stays_unless_forced() {
    let (volume, path) = (volume(), lost());
    for (stage, force, want) in [
        (Leave, false, Next::TakeBack("doubt".into())),
        (Flush, false, Next::TakeBack("doubt".into())),
        (CloseQueues, false, Next::Forget(Ok(()))),
        (Leave, true, Next::Forget(Ok(()))),
    ] {
        let mut it = change(stage, 1);
        it.force = force;
        let view = PathView {
            path: &path,
            volume: &volume,
            doubt: Some("doubt".into()),
            needs_flush: true,
        };
        assert_eq!(it.next_of_path(&view, 0), want, "{stage:?}, {force}");
    }
}

/// A mirror's leg whose mirror is on another core: that core knows what was left unflushed.
#[test]
fn leaving_leg_waits_for_the_mirrors_core() {
    let (mut volume, path) = (volume(), lost());
    volume.leg = LegRole::Elsewhere;
    let mut it = change(Leave, 1);
    let next = |it: &mut PendingChange| {
        let view = PathView {
            path: &path,
            volume: &volume,
            doubt: None,
            needs_flush: false,
        };
        it.next_of_path(&view, 0)
    };
    assert_eq!(next(&mut it), Next::Wait);
    it.unflushed = true;
    assert!(matches!(next(&mut it), Next::TakeBack(_)));
    it.unflushed = false;
    it.wait_for_no_core();
    assert_eq!(next(&mut it), Next::Forget(Ok(())));
}

/// I/O that does not end, or a flush that fails: the path is used again, or, by force, given up.
#[test]
fn leaving_path_out_of_time_is_taken_back_or_lost() {
    let mut it = change(Leave, 1);
    assert_eq!(next(&mut it, &live(), false, 99), Next::Wait);
    let why = "file:///a: its I/O didn't end in time; it is in use again";
    assert_eq!(
        next(&mut it, &live(), false, 100),
        Next::TakeBack(why.into())
    );
    assert_eq!(it.until_ns, u64::MAX, "once");
    let mut it = change(Flush, 0);
    it.was_draining = true;
    let mut path = live();
    path.cache.set_final_flush(FinalFlush::Ended(false));
    let why = "file:///a: its controller didn't flush; it is draining again";
    assert_eq!(next(&mut it, &path, true, 0), Next::TakeBack(why.into()));
    assert!(matches!(it.before(), What::Drain));
    it.force = true;
    assert!(matches!(next(&mut it, &path, true, 0), Next::Lose(_)));
    assert_eq!(next(&mut it, &lost(), true, 0), Next::Forget(Ok(())));
}

#[test]
fn new_path_is_used_when_all_cores_have_it() {
    let mut it = change(Join, 2);
    assert_eq!(next(&mut it, &live(), false, 0), Next::Wait);
    assert!(matches!(next(&mut it, &live(), false, 100), Next::Lose(_)));
    let mut failed = change(Join, 2);
    let why = "file:///a: not every core could open its queue";
    assert_eq!(
        next(&mut failed, &lost(), false, 0),
        Next::Forget(Err(why.into()))
    );
    it.wait_for_no_core();
    assert_eq!(next(&mut it, &live(), false, 0), Next::Use);
}

#[test]
fn drain_and_return_end_with_their_path() {
    let mut it = change(Drain, 1);
    assert_eq!(next(&mut it, &live(), false, 0), Next::Wait);
    assert!(matches!(
        next(&mut it, &live(), false, 100),
        Next::End(Err(_))
    ));
    assert_eq!(next(&mut it, &lost(), false, 0), Next::End(Ok(())));
    let mut it = change(Return, 1);
    assert_eq!(next(&mut it, &lost(), false, 0), Next::Wait);
    assert!(matches!(
        next(&mut it, &lost(), false, 100),
        Next::End(Err(_))
    ));
    assert_eq!(next(&mut it, &live(), false, 0), Next::End(Ok(())));
    let gone = change(Drain, 1).next_without_path();
    assert_eq!(gone, Next::End(Err("it has left meanwhile".into())));
}

/// A volume whose paths all fail is emptied again, and the caller hears why; so does one in time.
#[test]
fn new_volume_that_fails_is_emptied() {
    let (tried, lost) = (live(), {
        let mut path = lost();
        path.session.comeback.tried = true;
        path.session.comeback.line = "refused".into();
        path
    });
    let next = |it: &mut PendingChange, paths: &[&Path], is_changing, now_ns| {
        let view = VolumeView {
            paths: paths.to_vec(),
            is_changing,
        };
        it.next_of_volume(&view, now_ns)
    };
    let mut it = change(Open, 1);
    assert_eq!(next(&mut it, &[&tried, &lost], false, 0), Next::Wait);
    assert_eq!(next(&mut it, &[&lost], false, 0), Next::Empty);
    assert_eq!(next(&mut it, &[&lost], true, 0), Next::Wait);
    assert_eq!(next(&mut it, &[], true, 0), Next::Wait);
    assert_eq!(next(&mut it, &[], false, 0), Next::ForgetVolume);
    it.ordered(2, 1);
    assert_eq!(next(&mut it, &[], false, 0), Next::Wait);
    it.wait_for_no_core();
    let want = Next::VolumeFreed(Err("refused".into()));
    assert_eq!(next(&mut it, &[], false, 0), want);
    let mut late = change(Open, 1);
    assert_eq!(next(&mut late, &[&tried], false, 100), Next::Empty);
    let mut ready = change(Open, 0);
    assert_eq!(next(&mut ready, &[&tried], false, 100), Next::End(Ok(())));
}

#[test]
fn order_is_answered_once_per_core() {
    let mut it = ConfigChanges::default();
    assert!(!it.is_busy() && it.timeout().is_none());
    let mut drain = PendingChange::new(0, PathIndex(0), Drain);
    drain.ordered(it.next_serial(), 2);
    it.push(drain);
    it.step_done(7, true); // of a change that is over
    it.step_done(1, false);
    it.step_done(1, true);
    assert!(it.pending()[0].unflushed && it.is_busy());
    assert_eq!(it.pending()[0].cores_left, 0);
}

#[test]
#[should_panic(expected = "carried out twice")]
fn order_carried_out_twice_is_refused() {
    let mut it = ConfigChanges::default();
    let mut drain = PendingChange::new(0, PathIndex(0), Drain);
    drain.ordered(it.next_serial(), 1);
    it.push(drain);
    it.step_done(1, false);
    it.step_done(1, false);
}

#[test]
fn steps_come_in_order_of_paths_then_volumes() {
    let mut it = ConfigChanges::default();
    it.set_step(Changing::Volume(0), Some((ChangeStep::Reach, 1)));
    it.set_step(Changing::Path(9), Some((ChangeStep::Drain, 2)));
    it.set_step(Changing::Path(2), Some((ChangeStep::Drain, 3)));
    it.set_step(Changing::Path(2), Some((ChangeStep::CloseQueue, 4)));
    let want = vec![
        (Changing::Path(2), ChangeStep::CloseQueue, 4),
        (Changing::Path(9), ChangeStep::Drain, 2),
        (Changing::Volume(0), ChangeStep::Reach, 1),
    ];
    assert_eq!(it.steps(), want);
    it.set_step(Changing::Path(9), None);
    assert_eq!(it.step(Changing::Path(9)), None);
    assert_eq!(it.step(Changing::Path(2)), Some(ChangeStep::CloseQueue));
}
