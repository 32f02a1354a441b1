//! Legs that are chosen and refused: in cases written by hand, and in histories drawn at random.
mod model;

use super::super::events::{New, NewLeg};
use super::super::layout::{BITMAP_AT, Geometry, Place};
use super::super::{Id, Label, Name, Properties};
use super::*;
use crate::limits::LINEAGES_MAX;
use alloc::vec;

pub(crate) const PLACE: Place = Place {
    leg_bytes: 16 << 20,
    data_offset: 1 << 20,
    bitmap_offset: BITMAP_AT,
};

/// The legs of a new mirror of 4 regions, all with the same data.
pub(crate) fn legs(count: u8) -> Vec<Superblock> {
    let new = New {
        mirror: Id([1; 16]),
        lineage: 1,
        name: Name::cut("v0"),
        properties: Properties::default(),
        geometry: Geometry {
            bytes: 4 << 20,
            block_shift: 9,
            region_shift: 20,
        },
        created_s: 1,
        heartbeat_interval_ms: 5000,
    };
    let leg = |slot: u8| NewLeg {
        id: Id([slot + 10; 16]),
        label: Label::default(),
        in_sync: true,
    };
    let legs = (0..count).map(leg).collect::<Vec<_>>();
    let first = Superblock::new(&new, &legs, PLACE).unwrap();
    (0..count).map(|slot| first.on(slot, PLACE)).collect()
}

fn given(legs: &[Superblock]) -> Vec<Result<Superblock, NoLeg>> {
    legs.iter().copied().map(Ok).collect()
}

fn assembled(legs: &[Superblock]) -> Result<Assembly, Refusal> {
    assemble(&given(legs), Wishes::default())
}

const FORCED: Wishes = Wishes {
    without: true,
    discard: None,
};

/// `state` on each of the legs that are left.
fn on_all(state: &Superblock, slots: &[u8]) -> Vec<Superblock> {
    slots.iter().map(|&slot| state.on(slot, PLACE)).collect()
}

#[test]
fn a_new_mirror_is_whole_and_clean() {
    let assembly = assembled(&legs(3)).unwrap();
    assert_eq!(assembly.roles, [Role::InSync; 3]);
    assert!(!assembly.unclean && assembly.absent.is_empty() && !assembly.read_only);
    let begun = assembly.next.begun(2);
    assert!(assembled(&on_all(&begun, &[0, 1, 2])).unwrap().unclean);
    let stopped = begun.stopped();
    assert!(!assembled(&on_all(&stopped, &[0, 1, 2])).unwrap().unclean);
}

#[test]
fn t14_a_leg_that_left_is_behind_and_alone_is_nothing() {
    let begun = legs(2)[0].begun(2);
    let old = begun.on(1, PLACE);
    let left = begun.without(1, begun.seen()).unwrap();
    let assembly = assembled(&[old, left]).unwrap();
    assert_eq!(assembly.newest, 1);
    let position = 4 << 20;
    let why = Why::Left;
    assert_eq!(
        assembly.roles,
        [Role::Behind { position, why }, Role::InSync]
    );
    // The leg has no record that it was left behind: alone it does not make the mirror.
    assert_eq!(assembled(&[old]), Err(Refusal::Incomplete(vec![0])));
    let forced = assemble(&given(&[old]), FORCED).unwrap();
    assert_eq!(
        forced.next.state(0),
        Some(EntryState::Stale(Lack {
            position,
            seen_event: 1,
            seen_lineage: 1,
        }))
    );
    // The leg that went on needs no other.
    assert_eq!(assembled(&[left]).unwrap().absent, [1]);
    // Had the other leg a record of that, it would make no mirror, forced or not.
    let known = left.on(1, PLACE);
    assert_eq!(
        assemble(&given(&[known]), FORCED),
        Err(Refusal::NoneInSync(vec![0]))
    );
}

/// Else its reads may change when the others are there again.
#[test]
fn who_goes_on_alone_by_force_after_an_unclean_stop_has_to_say_so_first() {
    let begun = legs(2)[0].begun(2);
    let forced = |it: Superblock| assemble(&given(&[it.on(1, PLACE)]), FORCED).unwrap();
    assert!(forced(begun).unclean);
    assert!(!forced(begun.stopped()).unclean, "there is no difference");
    // Once that is committed, there is no leg to differ from.
    let alone = forced(begun).next.on(1, PLACE).begun(3);
    assert!(!assembled(&[alone]).unwrap().unclean);
}

#[test]
fn halves_that_were_both_written_are_refused_until_one_is_given_up() {
    let begun = legs(2)[0].begun(2);
    let one = |slot: u8, lineage| {
        let alone = assemble(&given(&[begun.on(slot, PLACE)]), FORCED).unwrap();
        alone.next.on(slot, PLACE).begun(lineage)
    };
    let (a, b) = (one(0, 3), one(1, 4));
    // Whichever of them has more generations.
    let far = (0..40).fold(a, |a, _| a.stopped().begun(a.event + 100));
    assert_eq!(assembled(&[a, b]), Err(Refusal::Parted(0, 1)));
    assert!(matches!(
        assembled(&[far, b]),
        Err(Refusal::Parted(..) | Refusal::TooOld(1))
    ));
    assert!(assembled(&[a]).is_ok() && assembled(&[b]).is_ok());
    for (given_up, other) in [(0, 1), (1, 0)] {
        let discard = Some(given_up);
        let wishes = Wishes {
            without: false,
            discard,
        };
        let assembly = assemble(&given(&[a, b]), wishes).unwrap();
        let why = Why::Discarded;
        assert_eq!(assembly.roles[given_up], Role::Behind { position: 0, why });
        assert_eq!(
            (assembly.roles[other], assembly.newest),
            (Role::InSync, other)
        );
    }
    // A leg that was only read has not been written.
    let unwritten = assemble(&given(&[begun.on(0, PLACE)]), FORCED).unwrap();
    let unwritten = unwritten.next.owned(None).on(0, PLACE);
    let assembly = assembled(&[unwritten, b]).unwrap();
    assert_eq!(assembly.newest, 1);
    assert!(assembly.next.sequence >= unwritten.sequence);
}

#[test]
fn legs_of_other_mirrors_are_refused() {
    let two = legs(2);
    let mut foreign = two[1];
    foreign.mirror = Id([99; 16]);
    assert_eq!(assembled(&[two[0], foreign]), Err(Refusal::Foreign(0, 1)));
    assert_eq!(
        assembled(&[two[0], two[1], two[0]]),
        Err(Refusal::Twice(0, 2))
    );
    assert_eq!(assembled(&[]), Err(Refusal::Nothing));
    let nothing = [Err(NoLeg::Missing)];
    assert_eq!(assemble(&nothing, FORCED), Err(Refusal::Nothing));
    let newer = NoLeg::Newer(super::super::ParseError::Version(2));
    let refused = assemble(&[Ok(two[0]), Err(newer)], FORCED);
    assert_eq!(refused, Err(Refusal::Newer(1, newer)));
    let mut removed = two[0].begun(2);
    removed.legs[1] = None;
    let roles = assembled(&[removed, two[1]]).unwrap().roles;
    assert_eq!(roles, [Role::InSync, Role::Unusable(NoLeg::Removed)]);
    let mut small = two[1];
    small.place.leg_bytes = 2 << 20;
    assert_eq!(assembled(&[two[0], small]), Err(Refusal::Small(1)));
    let damaged = Err(NoLeg::Disagree);
    let refused = assemble(&[Ok(two[0]), damaged], Wishes::default());
    assert_eq!(refused, Err(Refusal::Incomplete(vec![1])));
    let forced = assemble(&[Ok(two[0]), damaged], FORCED).unwrap();
    assert_eq!(
        forced.roles,
        [Role::InSync, Role::Unusable(NoLeg::Disagree)]
    );
}

#[test]
fn a_leg_that_shows_an_older_state_than_it_had_is_rebuilt_from_the_start() {
    let begun = legs(2)[0].begun(2);
    let later = begun.owned(None).stopped().begun(3);
    let back = begun.on(1, PLACE);
    let refused = assembled(&[later, back]);
    assert_eq!(
        refused,
        Err(Refusal::Incomplete(vec![1])),
        "nobody else has its newer state"
    );
    let assembly = assemble(&given(&[later, back]), FORCED).unwrap();
    let why = Why::PutBack;
    assert_eq!(assembly.roles[1], Role::Behind { position: 0, why });
    // A leg that left, and was rolled back to before that.
    let left = later.without(1, later.seen()).unwrap();
    let assembly = assembled(&[left, back]).unwrap();
    assert_eq!(assembly.roles[1], Role::Behind { position: 0, why });
}

/// After a crash an older copy of a leg looks like one that the last generation had not reached.
#[test]
fn t51_a_leg_without_the_newest_event_is_no_source() {
    let created = legs(3)[0];
    let begun = created.begun(2);
    for old in [0, 2] {
        let mut three = on_all(&begun, &[0, 1, 2]);
        three[old] = created.on(old as u8, PLACE);
        let assembly = assembled(&three).unwrap();
        let (position, why) = (4 << 20, Why::Lags);
        let mut roles = [Role::InSync; 3];
        roles[old] = Role::Behind { position, why };
        assert_eq!(assembly.roles, roles);
        assert!(assembly.unclean && assembly.lagging.is_empty());
        // The first generation has it, so it holds after the next crash as well.
        let said = assembly.next.begun(3);
        let mut next = on_all(&said, &[0, 1, 2]);
        next[old] = created.on(old as u8, PLACE);
        let why = Why::Left;
        roles[old] = Role::Behind { position, why };
        assert_eq!(assembled(&next).unwrap().roles, roles);
    }
    // If only a leg that is being rebuilt has the newest generation, no other can be the source.
    let begun = legs(2)[0].begun(2);
    let left = begun.without(1, begun.seen()).unwrap();
    let on = left.rebuilding(1).unwrap().on(1, PLACE);
    let assembly = assembled(&[left.on(0, PLACE), on]).unwrap();
    assert_eq!((assembly.roles[0], assembly.newest), (Role::InSync, 1));
}

/// The other leg has read newer records of it, two heartbeats later.
#[test]
fn t50_a_leg_rolled_back_over_heartbeats_is_stale() {
    let begun = legs(2)[0].begun(2);
    let (mut first, mut second) = (begun, begun.on(1, PLACE));
    second.mark = 50;
    first.confirmed = 50;
    assert_eq!(
        assembled(&[first, second]).unwrap().roles,
        [Role::InSync; 2]
    );
    // Also under another owner.
    (second.mark, second.sequence) = (49, 1000);
    let assembly = assembled(&[first, second]).unwrap();
    let (position, why) = (0, Why::RolledBack);
    assert_eq!(assembly.roles[1], Role::Behind { position, why });
    let said = assembly.next.state(1);
    assert!(matches!(said, Some(EntryState::Stale(lack)) if lack.position == 0));
    // Also if it lacks several generations.
    first.event += 2;
    let assembly = assembled(&[first, second]).unwrap();
    assert_eq!(assembly.roles[1], Role::Behind { position, why });
    first.event = begun.event;
    // An older version of braid has no such field.
    second.mark = 0;
    assert_eq!(assembled(&[first, second]).unwrap().roles[1], Role::InSync);
    second.mark = 49;
    // Records that a stale leg has read don't count.
    let left = second.without(0, second.seen()).unwrap();
    let mut stale = first;
    stale.legs[1] = left.legs[1];
    stale.confirmed = u64::MAX;
    assert_eq!(assembled(&[stale, left]).unwrap().roles[1], Role::InSync);
}

#[test]
fn a_rebuild_goes_on_where_it_was() {
    let begun = legs(2)[0].begun(2);
    let left = begun.without(1, begun.seen()).unwrap();
    let back = left.rebuilding(1).unwrap();
    let on = back.rebuilt_to(1, 4 << 20, back.seen()).unwrap();
    let why = Why::Unfinished;
    let roles = assembled(&on_all(&on, &[0, 1])).unwrap().roles;
    assert_eq!(
        roles[1],
        Role::Behind {
            position: 4 << 20,
            why
        }
    );
    assert_eq!(on.rebuilt_to(1, 1 << 20, on.seen()), None, "never back");
    assert_eq!(on.without(0, on.seen()), None, "the last one in sync");
    let whole = on.rejoined(1).unwrap();
    assert_eq!(
        assembled(&on_all(&whole, &[0, 1])).unwrap().roles,
        [Role::InSync; 2]
    );
    assert!(on.keeps_intents() && !whole.keeps_intents());
    // Its end did not reach that leg: regions that may differ are copied again.
    let half = assembled(&[whole, on.on(1, PLACE)]).unwrap();
    let (position, why) = (4 << 20, Why::Lags);
    assert_eq!(half.roles, [Role::InSync, Role::Behind { position, why }]);
}

#[test]
fn that_a_leg_is_being_rebuilt_was_said_without_having_reached_it() {
    // For so long that the lineages alone don't show it.
    for lineages in [0, 2 * LINEAGES_MAX as u64] {
        let begun = legs(2)[0].begun(2);
        let old = begun.on(1, PLACE);
        let mut alone = begun.without(1, begun.seen()).unwrap();
        for lineage in 0..lineages {
            alone = alone.stopped().begun(100 + lineage);
        }
        let back = alone.rebuilding(1).unwrap();
        let why = Why::Unfinished;
        let position = 4 << 20;
        let roles = assembled(&[back, old]).unwrap().roles;
        assert_eq!(roles[1], Role::Behind { position, why }, "{lineages}");
    }
    // Data that were copied since are not on a leg that was rolled back to before that.
    let begun = legs(2)[0].begun(2);
    let mut lacks_all = begun.without(1, begun.seen()).unwrap();
    let (seen_event, seen_lineage, position) = (2, 2, 0);
    let lack = Lack {
        position,
        seen_event,
        seen_lineage,
    };
    lacks_all.set_state(1, EntryState::Stale(lack));
    let back = lacks_all.rebuilding(1).unwrap();
    let on = back.rebuilt_to(1, 2 << 20, back.seen()).unwrap();
    let on = on.rebuilt_to(1, 3 << 20, on.seen()).unwrap();
    let why = Why::PutBack;
    let roles = assembled(&[on, back.on(1, PLACE)]).unwrap().roles;
    assert_eq!(roles[1], Role::Behind { position: 0, why });
}

#[test]
fn however_long_a_leg_was_away_it_is_known_not_to_have_been_written() {
    let begun = legs(2)[0].begun(2);
    let old = begun.on(1, PLACE);
    // Also if each start takes it back, and it is taken out before it has heard of that.
    let mut alone = begun;
    for returns in [false, true] {
        alone = begun.without(1, begun.seen()).unwrap();
        for lineage in 0..2 * LINEAGES_MAX as u64 {
            alone = alone.stopped().begun(100 + lineage);
            if returns {
                let back = alone.rebuilding(1).unwrap();
                alone = back.without(1, old.seen()).unwrap();
            }
            let roles = assembled(&[alone, old]).unwrap().roles;
            let (position, why) = (4 << 20, Why::Left);
            assert_eq!(roles[1], Role::Behind { position, why });
        }
    }
    // Whether it was written can't be told after so long: refused either way.
    let written = assemble(&given(&[old]), FORCED).unwrap().next.on(1, PLACE);
    let refused = assembled(&[alone, written.begun(7)]);
    assert_eq!(refused, Err(Refusal::TooOld(1)));
}

#[test]
fn an_untouched_leg_is_known_however_often_the_other_one_was_forced_since() {
    let stopped = legs(2)[0].begun(2).stopped();
    let untouched = stopped.on(1, PLACE);
    let forced = assemble(&[Ok(stopped), Err(NoLeg::Missing)], FORCED);
    let mut alone = forced.unwrap().next;
    for lineage in 0..2 * LINEAGES_MAX as u64 {
        alone = alone.begun(100 + lineage).stopped();
        let roles = assembled(&[alone, untouched]).unwrap().roles;
        let (position, why) = (4 << 20, Why::Left);
        assert_eq!(roles[1], Role::Behind { position, why }, "{lineage}");
    }
}

#[test]
fn a_leg_of_no_use_is_left_out_and_keeps_nobody_from_starting() {
    // Its last generation was the first of its lineage, which the history has dropped.
    let begun = legs(3)[0].begun(2);
    let old = begun.on(2, PLACE);
    let both = [Ok(begun), Ok(begun.on(1, PLACE)), Err(NoLeg::Missing)];
    let mut state = assemble(&both, FORCED).unwrap().next;
    for lineage in 0..2 * LINEAGES_MAX as u64 {
        state = state.begun(100 + lineage).stopped();
    }
    let mut three = on_all(&state, &[0, 1]);
    three.push(old);
    let assembly = assembled(&three).unwrap();
    let useless = Role::Unusable(NoLeg::TooOld);
    assert_eq!(assembly.roles, [Role::InSync, Role::InSync, useless]);
    assert_eq!(assembly.next.state(2), state.state(2), "stale as before");
    // A leg that was written without the others, long ago: only by order of the user.
    let apart = assemble(&[Err(NoLeg::Missing), Ok(old)], FORCED).unwrap();
    three[2] = apart.next.begun(7).on(2, PLACE);
    assert_eq!(assembled(&three), Err(Refusal::TooOld(2)));
    // Never a leg that is needed.
    let refused = assembled(&[state, old]);
    assert_eq!(refused, Err(Refusal::Incomplete(vec![1])));
    // Too small, and stale.
    let mut small = state.without(1, state.seen()).unwrap().on(1, PLACE);
    let newest = small.on(0, PLACE);
    small.place.leg_bytes = 2 << 20;
    let roles = assembled(&[newest, small]).unwrap().roles;
    assert_eq!(roles, [Role::InSync, Role::Unusable(NoLeg::Small)]);
}

/// Superblocks after such counters could not be parsed any more, on any leg of the mirror.
#[test]
fn a_leg_that_counts_too_high_is_none_and_says_nothing_of_the_others() {
    let legs = legs(2);
    let left = legs[0].without(1, legs[0].seen()).unwrap();
    for at in [1 << 61, u64::MAX >> 2] {
        for event in [false, true] {
            let (newest, mut worn) = (left.on(0, PLACE), left.on(1, PLACE));
            match event {
                true => worn.event = at,
                false => worn.sequence = at,
            }
            let assembly = assembled(&[newest, worn]).unwrap();
            let roles = [Role::InSync, Role::Unusable(NoLeg::Worn)];
            assert_eq!(assembly.roles, roles);
            assert_eq!(assembly.next.sequence, newest.sequence);
        }
    }
    let mut alone = legs[0];
    alone.sequence = 1 << 61;
    assert_eq!(assembled(&[alone]), Err(Refusal::Nothing));
}
