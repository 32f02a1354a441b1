//! Ownership of a mirror, of several hosts that want it.
use super::super::super::assembly::tests::legs;
use super::super::super::{Id, Label, Superblock};
use super::*;
use crate::ownership::HEARTBEAT_MAX_MS;

const INTERVAL_NS: u64 = 5_000_000_000;

fn owner(run: u8) -> Owner {
    Owner {
        run: Id([run; 16]),
        host: Id([run; 16]),
        label: Label::cut("somebody"),
        since_s: 0,
        heartbeat_s: 0,
        bound_ms: 0,
    }
}

/// Legs as they lie, and what several hosts do to them.
struct Legs(Vec<Chosen>);

impl Legs {
    fn new(by: Option<Owner>) -> Self {
        let chosen = |it: Superblock| Chosen {
            superblock: Superblock {
                owner: by,
                heartbeat_interval_ms: 5000,
                ..it
            },
            copy: 0,
            other: Ok(it.sequence),
        };
        Self(legs(2).into_iter().map(chosen).collect())
    }

    fn given(&self) -> Vec<Result<Chosen, NoLeg>> {
        self.0.iter().copied().map(Ok).collect()
    }

    /// Does what is asked until nothing is; the end, if it came. Writes to leg `fails` do.
    fn serve(&mut self, acquire: &mut Acquire, now_ns: u64, fails: usize) -> Option<AcquireOutput> {
        while let Some(output) = acquire.poll_output(now_ns) {
            match output {
                AcquireOutput::Read(leg) => {
                    acquire.handle_superblocks(leg, Ok(self.0[leg]));
                }
                AcquireOutput::Write(leg, _) if leg == fails => {
                    acquire.handle_written(leg, Outcome::PathError, now_ns);
                }
                AcquireOutput::Write(leg, copy) => {
                    let superblock = acquire.given()[leg].unwrap().superblock;
                    (self.0[leg].superblock, self.0[leg].copy) = (superblock, copy);
                    acquire.handle_written(leg, Outcome::Done, now_ns);
                }
                AcquireOutput::Failed(leg, _) => assert_eq!(leg, fails),
                end => return Some(end),
            }
        }
        None
    }
}

const NONE: usize = usize::MAX;

#[test]
fn t48_here_a_record_is_of_one_that_is_gone() {
    let mut legs = Legs::new(Some(owner(1)));
    let mut acquire = Acquire::new(owner(2), &legs.given(), Reach::Here);
    assert_eq!(
        legs.serve(&mut acquire, 0, NONE),
        Some(AcquireOutput::Acquired)
    );
    assert!(acquire.poll_timeout().is_none() && acquire.poll_output(0).is_none());
    for (leg, given) in legs.0.iter().zip(acquire.given()) {
        let given = given.unwrap();
        assert_eq!(leg.superblock.owner, Some(owner(2)));
        assert_eq!(given.superblock, leg.superblock);
        assert_eq!(given.other, Ok(given.superblock.sequence), "both copies");
    }
}

#[test]
fn t48_a_foreign_owner_that_lives_has_it_and_one_that_is_silent_does_not() {
    for lives in [false, true] {
        let mut legs = Legs::new(Some(owner(1)));
        let mut acquire = Acquire::new(owner(2), &legs.given(), Reach::Shared);
        assert_eq!(legs.serve(&mut acquire, 0, NONE), None);
        assert_eq!(acquire.poll_timeout(), Some(3 * INTERVAL_NS));
        acquire.handle_timeout(3 * INTERVAL_NS - 1);
        assert_eq!(legs.serve(&mut acquire, 3 * INTERVAL_NS - 1, NONE), None);
        if lives {
            let renewed = legs.0[1].superblock.owned(Some(owner(1)));
            legs.0[1].superblock = renewed;
        }
        acquire.handle_timeout(3 * INTERVAL_NS);
        let end = legs.serve(&mut acquire, 3 * INTERVAL_NS, NONE);
        if lives {
            assert_eq!(end, Some(AcquireOutput::Refused(owner(1))));
            assert_eq!(legs.0[0].superblock.owner, Some(owner(1)), "untouched");
            continue;
        }
        let stands_ns = 4 * INTERVAL_NS + INTERVAL_NS / 2;
        assert_eq!((end, acquire.poll_timeout()), (None, Some(stands_ns)));
        acquire.handle_timeout(stands_ns);
        assert_eq!(legs.serve(&mut acquire, stands_ns, NONE), None);
        let sequence = legs.0[0].superblock.sequence;
        assert!(sequence > 1 << 20, "above all that it has on its way");
        let end_ns = stands_ns + INTERVAL_NS;
        acquire.handle_timeout(end_ns);
        let end = legs.serve(&mut acquire, end_ns, NONE);
        assert_eq!(end, Some(AcquireOutput::Acquired));
        assert_eq!(acquire.terms().written_ns, Some((stands_ns, stands_ns)));
    }
}

#[test]
fn t48_of_two_that_come_at_once_at_most_one_has_it() {
    let mut legs = Legs::new(None);
    let given = legs.given();
    let mut acquiring = [1, 2].map(|run| Acquire::new(owner(run), &given, Reach::Shared));
    for acquire in &mut acquiring {
        // Both find nobody.
        while let Some(AcquireOutput::Read(leg)) = acquire.poll_output(0) {
            acquire.handle_superblocks(leg, Ok(legs.0[leg]));
            if leg == 1 {
                break;
            }
        }
    }
    for acquire in &mut acquiring {
        assert_eq!(legs.serve(acquire, 0, NONE), None);
        assert_eq!(acquire.poll_timeout(), Some(INTERVAL_NS), "it has written");
    }
    let ends = acquiring.each_mut().map(|acquire| {
        acquire.handle_timeout(INTERVAL_NS);
        legs.serve(acquire, INTERVAL_NS, NONE)
    });
    let owned = ends
        .iter()
        .filter(|end| **end == Some(AcquireOutput::Acquired));
    assert_eq!(owned.count(), 1, "{ends:?}");
}

#[test]
fn t48_what_another_host_has_written_since_is_not_written_over() {
    let mut legs = Legs::new(None);
    let given = legs.given();
    // It had the mirror, changed something and left in order.
    for leg in &mut legs.0 {
        let now = Superblock {
            event: leg.superblock.event + 1,
            ..leg.superblock.owned(None)
        };
        leg.superblock = now;
    }
    let newest = legs.0[0].superblock.event;
    let mut acquire = Acquire::new(owner(2), &given, Reach::Shared);
    assert_eq!(legs.serve(&mut acquire, 0, NONE), None);
    acquire.handle_timeout(INTERVAL_NS);
    let end = legs.serve(&mut acquire, INTERVAL_NS, NONE);
    assert_eq!(end, Some(AcquireOutput::Acquired));
    assert!(legs.0.iter().all(|leg| leg.superblock.event == newest));
    let known = acquire.given().iter().flatten();
    assert!(known.clone().count() == 2 && known.clone().all(|it| it.superblock.event == newest));
}

#[test]
fn a_leg_that_cannot_be_written_is_left_out() {
    let mut legs = Legs::new(None);
    let mut acquire = Acquire::new(owner(2), &legs.given(), Reach::Here);
    assert_eq!(
        legs.serve(&mut acquire, 0, 0),
        Some(AcquireOutput::Acquired)
    );
    assert!(acquire.given()[0].is_err() && acquire.given()[1].is_ok());
}

fn leaving(run: u8, bound_ms: u32) -> Owner {
    Owner {
        bound_ms,
        ..owner(run)
    }
}

/// Goes on with a acquire from `now_ns` on until the legs are its owner's; when that is.
fn claimed(legs: &mut Legs, acquire: &mut Acquire, now_ns: u64) -> u64 {
    let mut now_ns = now_ns;
    let mut end = legs.serve(acquire, now_ns, NONE);
    while end.is_none() {
        now_ns = acquire.poll_timeout().unwrap();
        acquire.handle_timeout(now_ns);
        end = legs.serve(acquire, now_ns, NONE);
    }
    assert_eq!(end, Some(AcquireOutput::Acquired));
    now_ns
}

/// Claims legs of an owner that is gone, from 0 on, until they are ours.
fn taken_over(its_ms: u32, ours_ms: u32) -> Terms {
    let mut legs = Legs::new(Some(leaving(1, its_ms)));
    let mut acquire = Acquire::new(leaving(2, ours_ms), &legs.given(), Reach::Shared);
    claimed(&mut legs, &mut acquire, 0);
    acquire.terms()
}

#[test]
fn t09_what_an_owner_left_that_did_not_release_it_is_waited_for() {
    const MS: u64 = 1_000_000;
    // Two intervals from when it was last seen, and then what it said, or we say.
    let lease_ns = 2 * INTERVAL_NS;
    for (its_ms, ours_ms, waits_ms) in [
        (20_000, 0, 20_000),
        (20_000, 45_000, 45_000),
        (0, 15_000, 30_000),
    ] {
        let hold_ns = taken_over(its_ms, ours_ms).hold_until_ns;
        assert_eq!(hold_ns, lease_ns + waits_ms * MS, "{its_ms} {ours_ms}");
    }
    let mut released = Legs::new(None);
    let mut acquire = Acquire::new(owner(2), &released.given(), Reach::Shared);
    assert_eq!(released.serve(&mut acquire, 0, NONE), None);
    acquire.handle_timeout(INTERVAL_NS);
    assert!(released.serve(&mut acquire, INTERVAL_NS, NONE).is_some());
    assert_eq!(acquire.terms().hold_until_ns, 0, "nobody left anything");
    let mut here = Legs::new(Some(owner(1)));
    let mut acquire = Acquire::new(owner(2), &here.given(), Reach::Here);
    assert!(here.serve(&mut acquire, 0, NONE).is_some());
    assert_eq!(acquire.terms(), Terms::default(), "locks say it");
}

#[test]
fn t48_who_was_slow_to_write_its_record_looks_again() {
    for slow_to_write in [false, true] {
        let mut legs = Legs::new(None);
        let mut acquire = Acquire::new(owner(2), &legs.given(), Reach::Shared);
        let late_ns = INTERVAL_NS + 1;
        for leg in [0, 1] {
            assert_eq!(acquire.poll_output(0), Some(AcquireOutput::Read(leg)));
            acquire.handle_superblocks(leg, Ok(legs.0[leg]));
        }
        if slow_to_write {
            for leg in [0, 1] {
                assert_eq!(acquire.poll_output(0), Some(AcquireOutput::Write(leg, 1)));
            }
        }
        // Somebody else has it by then, and has written a heartbeat.
        let theirs = legs.0[0].superblock.owned(Some(owner(3))).sequence + 5;
        for leg in &mut legs.0 {
            leg.superblock = leg.superblock.owned(Some(owner(3)));
            leg.superblock.sequence = theirs;
        }
        if slow_to_write {
            // Our record in the other copy holds for no host.
            (0..2).for_each(|leg| acquire.handle_written(leg, Outcome::Done, late_ns));
        }
        assert_eq!(legs.serve(&mut acquire, late_ns, NONE), None);
        let until_ns = late_ns + 3 * INTERVAL_NS;
        assert_eq!(acquire.poll_timeout(), Some(until_ns), "it watches");
        let untouched = |leg: &Chosen| leg.superblock.sequence == theirs;
        assert!(legs.0.iter().all(untouched));
    }
}

/// One damaged or hostile leg must not keep everybody from the mirror for days.
#[test]
fn t48_beats_that_nobody_could_wait_for_are_not_believed() {
    let mut legs = Legs::new(Some(owner(1)));
    legs.0[1].superblock.heartbeat_interval_ms = u32::MAX;
    let mut acquire = Acquire::new(owner(2), &legs.given(), Reach::Shared);
    assert_eq!(legs.serve(&mut acquire, 0, NONE), None);
    let most_ns = 3 * u64::from(HEARTBEAT_MAX_MS) * 1_000_000;
    assert_eq!(acquire.poll_timeout(), Some(most_ns));
    assert_eq!(
        heartbeat_ns(0),
        INTERVAL_NS,
        "what says nothing is as usual"
    );
}

#[test]
fn legs_that_are_slower_than_beats_are_not_waited_for_for_ever() {
    let legs = Legs::new(None);
    let mut acquire = Acquire::new(owner(2), &legs.given(), Reach::Shared);
    let mut now_ns = 0;
    for _ in 0..100 {
        let Some(output) = acquire.poll_output(now_ns) else {
            panic!("something is due at once");
        };
        now_ns += INTERVAL_NS;
        match output {
            AcquireOutput::Read(leg) => acquire.handle_superblocks(leg, Ok(legs.0[leg])),
            AcquireOutput::Slow => return,
            other => panic!("{other:?}"),
        }
    }
    panic!("it never ends");
}

#[test]
fn t48_a_record_that_was_released_over_ours_is_not_ours() {
    let mut legs = Legs::new(None);
    let mut acquire = Acquire::new(owner(2), &legs.given(), Reach::Shared);
    assert_eq!(legs.serve(&mut acquire, 0, NONE), None);
    legs.0[1].superblock = legs.0[1].superblock.owned(None);
    acquire.handle_timeout(INTERVAL_NS);
    assert_eq!(legs.serve(&mut acquire, INTERVAL_NS, NONE), None);
    assert_eq!(
        acquire.poll_timeout(),
        Some(2 * INTERVAL_NS),
        "from the beginning"
    );
}

#[test]
fn t09_what_an_owner_left_is_not_forgotten_by_a_second_claim_of_the_same_run() {
    let mut legs = Legs::new(Some(leaving(1, 60_000)));
    let ours = leaving(2, 10_000);
    let mut acquire = Acquire::new(ours, &legs.given(), Reach::Shared);
    assert_eq!(legs.serve(&mut acquire, 0, NONE), None);
    assert_eq!(acquire.unreleased(), None, "it is all still there");
    acquire.handle_timeout(3 * INTERVAL_NS);
    assert_eq!(legs.serve(&mut acquire, 3 * INTERVAL_NS, NONE), None);
    let of_us = legs.0[0].superblock.owner.unwrap();
    assert_eq!(of_us, leaving(2, 60_000), "who comes next waits as long");
    // It goes no further.
    let gone = acquire.unreleased();
    let again_ns = 5 * INTERVAL_NS;
    let mut again = Acquire::new(ours, &legs.given(), Reach::Shared).after(gone);
    let end_ns = claimed(&mut legs, &mut again, again_ns);
    assert_eq!(
        end_ns,
        again_ns + 2 * INTERVAL_NS + INTERVAL_NS / 2,
        "it may live"
    );
    assert!(legs.0[0].superblock.sequence > 1 << 20);
    let hold_ns = again.terms().hold_until_ns;
    assert_eq!(hold_ns, 2 * INTERVAL_NS + 60_000_000_000);
}

#[test]
fn t09_a_claim_that_begins_anew_forgets_nobody_whose_record_it_has_overwritten() {
    for released in [false, true] {
        let mut legs = Legs::new(Some(leaving(1, 60_000)));
        let mut acquire = Acquire::new(leaving(2, 10_000), &legs.given(), Reach::Shared);
        assert_eq!(legs.serve(&mut acquire, 0, NONE), None);
        let look_ns = 3 * INTERVAL_NS;
        acquire.handle_timeout(look_ns);
        for leg in [0, 1] {
            assert_eq!(acquire.poll_output(look_ns), Some(AcquireOutput::Read(leg)));
            acquire.handle_superblocks(leg, Ok(legs.0[leg]));
        }
        for leg in [0, 1] {
            assert_eq!(
                acquire.poll_output(look_ns),
                Some(AcquireOutput::Write(leg, 1))
            );
        }
        // Some braid that does not say what it inherits has come after that, and is gone too.
        for leg in &mut legs.0 {
            leg.superblock = leg.superblock.owned(Some(leaving(3, 10_000)));
        }
        (0..2).for_each(|leg| acquire.handle_written(leg, Outcome::Done, look_ns));
        let late_ns = look_ns + INTERVAL_NS + 1;
        assert_eq!(legs.serve(&mut acquire, late_ns, NONE), None);
        if released {
            for leg in &mut legs.0 {
                leg.superblock = leg.superblock.owned(None);
            }
        }
        let again_ns = acquire.poll_timeout().unwrap();
        claimed(&mut legs, &mut acquire, again_ns);
        let hold_ns = acquire.terms().hold_until_ns;
        assert!(hold_ns >= 2 * INTERVAL_NS + 60_000_000_000, "{hold_ns}");
    }
}

#[test]
fn t09_of_three_owners_the_last_one_waits_for_what_the_first_has_left() {
    let mut legs = Legs::new(Some(leaving(1, 60_000)));
    let mut second = Acquire::new(leaving(2, 10_000), &legs.given(), Reach::Shared);
    let now_ns = claimed(&mut legs, &mut second, 0);
    let said = legs.0.iter().map(|leg| leg.superblock.owner);
    assert!(said.eq([Some(leaving(2, 60_000)); 2]));
    assert_eq!(second.terms().left_ms, 60_000, "its heartbeats say it too");
    // It is killed at once.
    let mut third = Acquire::new(leaving(3, 10_000), &legs.given(), Reach::Shared);
    claimed(&mut legs, &mut third, now_ns);
    let hold_ns = third.terms().hold_until_ns;
    assert_eq!(hold_ns, now_ns + 2 * INTERVAL_NS + 60_000_000_000);
}

#[test]
fn t09_no_record_is_believed_that_keeps_changes_for_days() {
    let terms = taken_over(u32::MAX, 10_000);
    assert_eq!(terms.hold_until_ns, 2 * INTERVAL_NS + 600_000_000_000);
    assert_eq!(terms.left_ms, 600_000);
}

/// A heartbeat that this owner had on its way comes over the copy that ours went to.
fn heartbeat_late(legs: &mut Legs, leg: usize, by: Owner) {
    legs.0[leg].superblock.owner = Some(by);
}

/// A acquire of legs of owner 1 whose record has been written once, and has to stand until then.
fn written_once(legs: &mut Legs) -> (Acquire, u64) {
    let mut acquire = Acquire::new(owner(2), &legs.given(), Reach::Shared);
    assert_eq!(legs.serve(&mut acquire, 0, NONE), None);
    let look_ns = acquire.poll_timeout().unwrap();
    acquire.handle_timeout(look_ns);
    assert_eq!(legs.serve(&mut acquire, look_ns, NONE), None);
    let stands_ns = acquire.poll_timeout().unwrap();
    assert_eq!(stands_ns, look_ns + INTERVAL_NS + INTERVAL_NS / 2);
    (acquire, stands_ns)
}

#[test]
fn t48_t09_a_late_beat_of_an_owner_that_is_gone_only_makes_the_watch_begin_anew() {
    for leg in [0, 1] {
        let mut legs = Legs::new(Some(owner(1)));
        let (mut acquire, stands_ns) = written_once(&mut legs);
        heartbeat_late(&mut legs, leg, owner(1));
        acquire.handle_timeout(stands_ns);
        assert_eq!(legs.serve(&mut acquire, stands_ns, NONE), None);
        assert_eq!(acquire.poll_timeout(), Some(stands_ns + 3 * INTERVAL_NS));
        let end_ns = claimed(&mut legs, &mut acquire, stands_ns);
        assert_eq!(end_ns, stands_ns + 5 * INTERVAL_NS + INTERVAL_NS / 2);
        // It was seen again, so what it has left is waited for from then on.
        let hold_ns = acquire.terms().hold_until_ns;
        assert_eq!(hold_ns, stands_ns + 2 * INTERVAL_NS + 30_000_000_000);
    }
}

#[test]
fn t48_an_owner_that_beats_over_a_claim_and_goes_on_has_it() {
    let mut legs = Legs::new(Some(owner(1)));
    let (mut acquire, stands_ns) = written_once(&mut legs);
    for leg in 0..2 {
        heartbeat_late(&mut legs, leg, owner(1));
    }
    acquire.handle_timeout(stands_ns);
    assert_eq!(legs.serve(&mut acquire, stands_ns, NONE), None);
    legs.0[1].superblock = legs.0[1].superblock.owned(Some(owner(1)));
    let look_ns = acquire.poll_timeout().unwrap();
    acquire.handle_timeout(look_ns);
    let end = legs.serve(&mut acquire, look_ns, NONE);
    assert_eq!(end, Some(AcquireOutput::Refused(owner(1))));
}

#[test]
fn t48_a_claim_that_is_written_over_again_and_again_ends() {
    let mut legs = Legs::new(Some(owner(1)));
    let mut acquire = Acquire::new(owner(2), &legs.given(), Reach::Shared);
    let (mut end, mut now_ns, mut over) = (legs.serve(&mut acquire, 0, NONE), 0, 0);
    while end.is_none() {
        // No owner lives; each time that ours has to stand, another one does.
        if legs.0[0].superblock.owner.unwrap().run == owner(2).run {
            over += 1;
            heartbeat_late(&mut legs, 0, owner(2 + over));
        }
        now_ns = acquire.poll_timeout().unwrap();
        acquire.handle_timeout(now_ns);
        end = legs.serve(&mut acquire, now_ns, NONE);
    }
    assert_eq!((end, over), (Some(AcquireOutput::Refused(owner(6))), 4));
    assert!(now_ns < 20 * INTERVAL_NS, "{now_ns}");
}
