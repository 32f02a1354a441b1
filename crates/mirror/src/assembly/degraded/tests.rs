//! Which mirrors start by themselves, case by case; histories drawn at random are in
//! `assembly/tests/model.rs`.
use super::super::tests::{PLACE, legs};
use super::*;
use crate::machine::planted;
use crate::superblock::Owner;
use alloc::vec;

const MINE: u64 = 7;
const RUN: Id = Id([3; 16]);

/// Two legs that this host ran last, after a clean stop; and its record.
fn stopped(count: u8) -> (Superblock, Record) {
    let state = legs(count)[0].owned(Some(owner(2))).begun(MINE).stopped();
    (state, Record::of(&state))
}

fn owner(run: u8) -> Owner {
    Owner {
        run: Id([run; 16]),
        host: Id([5; 16]),
        label: Label::default(),
        since_s: 1,
        heartbeat_s: 1,
        bound_ms: 0,
    }
}

/// Decision with these legs, of which those of `missing` are not there.
fn decided(given: &[Superblock], missing: &[u8], evidence: Evidence) -> Decision {
    let given: Vec<_> = given.iter().copied().map(Ok).collect();
    decide(&given, missing, Permission::On, evidence, RUN)
}

fn waits(given: &[Superblock], evidence: Evidence) -> Reason {
    match decided(given, &[1], evidence) {
        Decision::Wait(reason) => reason,
        Decision::Start(assembly) => panic!("starts: {assembly:?}"),
    }
}

#[test]
fn a_leg_with_the_recorded_clean_stop_starts_alone() {
    let (state, record) = stopped(2);
    let alone = decided(&[state], &[1], Evidence::Record(record));
    let Decision::Start(assembly) = alone else {
        panic!("{alone:?}");
    };
    assert_eq!((&assembly.absent[..], assembly.unclean), (&[1][..], false));
    assert!(matches!(assembly.next.state(1), Some(EntryState::Stale(_))));
    assert_eq!(assembly.next.event, state.event, "nothing is to be written");
    // The record of the lineage's beginning says as much: the engine was killed after the last
    // event, and before it could record that.
    let begun = Record {
        event: state.event - 1,
        clean: false,
        ..record
    };
    let it = decided(&[state], &[1], Evidence::Record(begun));
    assert!(matches!(it, Decision::Start(_)), "{it:?}");
}

#[test]
fn one_of_three_legs_is_enough_and_two_are() {
    let (state, record) = stopped(3);
    let evidence = Evidence::Record(record);
    for (given, missing) in [(&[0][..], &[1, 2][..]), (&[2], &[0, 1]), (&[0, 2], &[1])] {
        let given: Vec<_> = given.iter().map(|&slot| state.on(slot, PLACE)).collect();
        let it = decided(&given, missing, evidence);
        assert!(matches!(it, Decision::Start(_)), "{missing:?}: {it:?}");
    }
}

/// A starts alone and is written, then only B is there: on this host, and on another one.
#[test]
fn t14_the_half_that_was_left_behind_waits_for_the_other() {
    let (state, before) = stopped(2);
    let a = state.without(1, state.seen()).unwrap().begun(8).stopped();
    let b = state.on(1, PLACE);
    let alone = |evidence| match decided(&[b], &[0], evidence) {
        Decision::Wait(reason) => reason,
        Decision::Start(_) => panic!("an old half starts"),
    };
    let now = Evidence::Record(Record::of(&a));
    assert_eq!(alone(now), Reason::Newer(vec![0]));
    assert_eq!(alone(Evidence::None), Reason::NoRecord);
    assert_eq!(alone(Evidence::Untrusted), Reason::Untrusted);
    // Nothing but the origin of the record tells that it was put back.
    let it = decided(&[b], &[0], Evidence::Record(before));
    assert!(matches!(it, Decision::Start(_)), "{it:?}");
}

#[test]
fn t14_what_another_host_has_changed_waits() {
    let (state, record) = stopped(2);
    let theirs = state.begun(9).stopped();
    assert_eq!(waits(&[theirs], Evidence::Record(record)), Reason::Older);
    // So it is where too many came since.
    let many = (10..40).fold(theirs, |state, lineage| state.begun(lineage));
    let many = many.stopped();
    assert_eq!(waits(&[many], Evidence::Record(record)), Reason::Older);
}

/// Its disks were moved to another host, which has started it with all of them, and has changed
/// only the others since: killed, or stopped without a change and started with the others alone.
#[test]
fn t14_a_leg_that_another_run_has_had_waits() {
    let (state, record) = stopped(2);
    let evidence = Evidence::Record(record);
    let theirs = state.owned(Some(owner(4)));
    assert_eq!(
        waits(&[theirs], evidence),
        Reason::Owned(Some(Box::default()))
    );
    let released = theirs.owned(None);
    assert_eq!(waits(&[released], evidence), Reason::Owned(None));
    // This host starts with all of them, and is killed or stops before its first change.
    let ours = theirs.owned(Some(owner(6)));
    assert_eq!(
        waits(&[ours], evidence),
        Reason::Owned(Some(Box::default()))
    );
    assert_eq!(waits(&[ours.released()], evidence), Reason::Owned(None));
    // The other host is in the position of this one now.
    let record = Record::of(&theirs);
    for state in [theirs, released] {
        let it = decided(&[state], &[1], Evidence::Record(record));
        assert!(matches!(it, Decision::Start(_)), "{it:?}");
    }
}

/// The record is of the run before, until this one is on all legs.
#[test]
fn a_run_that_has_acquired_what_it_may_start_with_starts() {
    let (state, record) = stopped(2);
    let mut owner = owner(6);
    owner.run = RUN;
    let acquired = state.owned(Some(owner));
    let it = decided(&[acquired], &[1], Evidence::Record(record));
    assert!(matches!(it, Decision::Start(_)), "{it:?}");
    // Not what another one had before it.
    let theirs = state.owned(Some(self::owner(4))).owned(Some(owner));
    let evidence = Evidence::Record(record);
    assert_eq!(waits(&[theirs], evidence), Reason::Owned(None));
}

/// Versions that left no run on the legs recorded none.
#[test]
fn a_record_without_a_run_is_of_legs_without_one() {
    let state = legs(2)[0].begun(MINE).stopped();
    let record = Record::of(&state);
    assert!(record.run.is_none());
    let it = decided(&[state], &[1], Evidence::Record(record));
    assert!(matches!(it, Decision::Start(_)), "{it:?}");
    let since = state.owned(Some(owner(4)));
    for state in [since, since.released()] {
        let why = waits(&[state], Evidence::Record(record));
        assert!(matches!(why, Reason::Owned(_)), "{why:?}");
    }
}

#[test]
fn t14_an_unclean_stop_waits() {
    let (_, record) = stopped(2);
    let running = legs(2)[0].begun(MINE);
    let evidence = Evidence::Record(Record::of(&running));
    assert_eq!(waits(&[running], evidence), Reason::Unclean);
    // The record has the clean stop, which the leg lacks.
    let evidence = Evidence::Record(record);
    assert_eq!(waits(&[running], evidence), Reason::Newer(vec![0, 1]));
}

/// Killed after the record, and before the first event of the lineage.
#[test]
fn t14_a_lineage_that_no_leg_shows_waits() {
    let (state, record) = stopped(2);
    let begun = Record {
        lineage: 8,
        event: record.event + 1,
        clean: false,
        ..record
    };
    let evidence = Evidence::Record(begun);
    assert_eq!(waits(&[state], evidence), Reason::Newer(vec![0, 1]));
}

#[test]
fn a_record_of_another_mirror_is_none() {
    let (state, record) = stopped(2);
    let mirror = Id([0x55; 16]);
    let other = Evidence::Record(Record { mirror, ..record });
    assert_eq!(waits(&[state], other), Reason::NoRecord);
}

#[test]
fn what_the_user_has_not_allowed_waits() {
    let (state, record) = stopped(2);
    for (permission, reason) in [
        (Permission::Off, Reason::Off),
        (Permission::Shared, Reason::Shared),
    ] {
        let it = decide(
            &[Ok(state)],
            &[1],
            permission,
            Evidence::Record(record),
            RUN,
        );
        assert_eq!(it, Decision::Wait(reason));
    }
}

#[test]
fn t50_a_leg_that_is_there_and_can_not_be_used_waits_for_its_user() {
    let (state, record) = stopped(2);
    let evidence = Evidence::Record(record);
    let cut = [Ok(state), Err(NoLeg::Cut(1 << 20))];
    let it = decide(&cut, &[1], Permission::On, evidence, RUN);
    assert_eq!(it, Decision::Wait(Reason::Unusable(vec![1])));
    // A new disk in its place holds nothing.
    let blank = [Ok(state), Err(NoLeg::Missing)];
    let it = decide(&blank, &[1], Permission::On, evidence, RUN);
    assert!(matches!(it, Decision::Start(_)), "{it:?}");
    // It was put back to an older state.
    let old = legs(2)[1];
    let given = [Ok(state), Ok(old)];
    assert_eq!(
        assemble(&given, Wishes::default()),
        Err(Refusal::Incomplete(vec![1]))
    );
    let it = decide(&given, &[1], Permission::On, evidence, RUN);
    assert_eq!(it, Decision::Wait(Reason::Unusable(vec![1])));
}

#[test]
fn t14_a_leg_that_is_not_in_sync_never_starts() {
    let (state, _) = stopped(2);
    let left = state.without(1, state.seen()).unwrap();
    let evidence = Evidence::Record(Record::of(&left));
    let it = decided(&[left.on(1, PLACE)], &[0], evidence);
    let refused = Reason::Refused(Refusal::NoneInSync(vec![0]));
    assert_eq!(it, Decision::Wait(refused));
}

#[test]
fn missing_legs_are_told_apart_by_what_they_had() {
    let (state, _) = stopped(3);
    let is_missing = |state: &Superblock, there: &[u8]| {
        let given: Vec<_> = there
            .iter()
            .map(|&slot| Ok(state.on(slot, PLACE)))
            .collect();
        missing(&given)
    };
    assert_eq!(is_missing(&state, &[0, 1, 2]), None);
    assert_eq!(is_missing(&state, &[0, 1]), Some(Missing::InSync));
    let left = state.without(2, state.seen()).unwrap();
    assert_eq!(is_missing(&left, &[0, 1]), Some(Missing::Gone));
    assert_eq!(is_missing(&left, &[0]), Some(Missing::InSync));
    let back = left.rebuilding(2).unwrap();
    assert_eq!(is_missing(&back, &[0, 1]), Some(Missing::Outdated));
    let new = left.emptied(2).unwrap();
    assert_eq!(is_missing(&new, &[0, 1]), Some(Missing::Outdated));
    assert_eq!(missing(&[Err(NoLeg::Missing)]), None);
}

/// Purpose of each rule: without it the half of the tests above starts.
#[test]
fn t14_planted_mistakes_start_an_old_half() {
    let (state, _) = stopped(2);
    let a = state.without(1, state.seen()).unwrap().begun(8).stopped();
    let mut old = state.on(1, PLACE);
    old.event = a.event;
    let evidence = Evidence::Record(Record::of(&a));
    planted::plant(Some(Bug::AnyLineage));
    let it = decided(&[old], &[0], evidence);
    planted::plant(None);
    assert!(matches!(it, Decision::Start(_)), "{it:?}");
}
