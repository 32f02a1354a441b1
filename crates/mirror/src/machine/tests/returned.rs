//! Legs that return by hand: whose record is on them, and how far ahead it is.
use super::super::super::assembly::tests::legs;
use super::super::super::assembly::{Wishes, assemble};
use super::super::super::copies::Chosen;
use super::super::super::ownership::{Ownership, Terms};
use super::super::super::superblock::Owner;
use super::super::super::{Id, Label, Superblock};
use super::super::*;
use super::rules::{BLOCK, MS, end, owner, run, started_on, started_with, well};
use alloc::vec::Vec;

const INTERVAL: u64 = 5000 * MS;

/// A mirror of two legs that others reach, of which leg 1 was away.
fn away() -> Mirror {
    let terms = Terms {
        written_ns: Some((0, 0)),
        ..Terms::default()
    };
    let mut mirror = started_on(2, Config::new(6), terms, INTERVAL);
    let write = Request::Write(Range::new(0, BLOCK), false);
    mirror.submit(write, INTERVAL).unwrap();
    run(&mut mirror, INTERVAL, &mut well);
    mirror.leg_lost(1, INTERVAL + MS);
    run(&mut mirror, INTERVAL + MS, &mut well);
    mirror.leg_found(1, 0, INTERVAL + MS);
    mirror
}

/// All that is due up to `until_ns`, while leg 1 says what `said` makes of its superblock; what is
/// news.
fn pass(
    mirror: &mut Mirror,
    (from_ns, until_ns): (u64, u64),
    said: impl Fn(u64, &mut Superblock),
) -> Vec<News> {
    let mut news = Vec::new();
    for now_ns in (from_ns..until_ns).step_by(100 * MS as usize) {
        mirror.handle_timeout(now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            match output {
                Output::ReadSuperblocks(ticket) if ticket.leg == 1 && !ticket.is_heartbeat() => {
                    let mut superblock = mirror.legs[1].committed;
                    said(now_ns, &mut superblock);
                    let found = Chosen {
                        superblock,
                        copy: 0,
                        other: Ok(0),
                    };
                    mirror.handle_superblocks(ticket, &Ok(found), now_ns);
                }
                Output::News(it) => news.push(it),
                other => end(mirror, other, now_ns, &mut well),
            }
        }
    }
    news
}

fn others(superblock: &mut Superblock) {
    superblock.owner = superblock.owner.map(|owner| Owner {
        run: Id([77; 16]),
        ..owner
    });
}

#[test]
fn t48_a_leg_with_a_foreign_record_is_looked_at_before_it_returns() {
    let mut mirror = away();
    let said = |_, superblock: &mut Superblock| others(superblock);
    let news = pass(&mut mirror, (INTERVAL + MS, 4 * INTERVAL), said);
    assert!(news.is_empty() && !mirror.may_read(1), "{news:?}");
    // No heartbeat comes there.
    let news = pass(&mut mirror, (4 * INTERVAL, 6 * INTERVAL), said);
    assert!(news.contains(&News::InSync(1)), "{news:?}");
}

#[test]
fn t48_a_leg_on_which_another_one_beats_does_not_return() {
    let mut mirror = away();
    let said = |now_ns: u64, superblock: &mut Superblock| {
        others(superblock);
        superblock.sequence += now_ns / INTERVAL;
    };
    let news = pass(&mut mirror, (INTERVAL + MS, 9 * INTERVAL), said);
    let owned = |it: &News| matches!(it, News::Unfit(1, Unfit::Owned(_)));
    assert!(news.iter().any(owned) && !mirror.may_read(1), "{news:?}");
}

#[test]
fn a_leg_whose_sequence_would_use_up_all_does_not_return() {
    let mut mirror = away();
    let said = |_, superblock: &mut Superblock| superblock.sequence = (1 << 62) - 1;
    let news = pass(&mut mirror, (INTERVAL + MS, 3 * INTERVAL), said);
    assert_eq!(news, [News::Unfit(1, Unfit::Ahead)]);
    assert!(mirror.sequence < 1 << 40);
}

#[test]
fn a_leg_that_is_lost_before_it_has_returned_is_told_of_and_may_return_later() {
    let mut mirror = away();
    mirror.leg_lost(1, INTERVAL + MS);
    let news = pass(&mut mirror, (INTERVAL + MS, 2 * INTERVAL), |_, _| {});
    assert_eq!(news, [News::Unfit(1, Unfit::Failed(Outcome::PathError))]);
    mirror.leg_found(1, 0, 2 * INTERVAL);
    let news = pass(&mut mirror, (2 * INTERVAL, 4 * INTERVAL), |_, _| {});
    assert!(news.contains(&News::InSync(1)), "{news:?}");
}

/// Requests that it was given before the start, by any host, it may execute yet.
#[test]
fn t09_a_leg_that_is_behind_at_the_start_returns_when_it_cannot_be_late() {
    let late_ns = 5_000 * MS;
    let left = legs(2)[0].without(1, legs(2)[0].seen()).unwrap();
    let legs = [0, 1].map(|slot| left.on(slot, legs(2)[usize::from(slot)].place));
    let (config, terms) = (Config::new(6), Terms::default());
    let mut mirror = started_with(legs.to_vec(), &[0, late_ns], config, terms, 0);
    let write = Request::Write(Range::new(0, BLOCK), false);
    mirror.submit(write, MS).unwrap();
    for now_ns in (1..10_000).map(|at| at * MS) {
        mirror.handle_timeout(now_ns);
        run(&mut mirror, now_ns, &mut well);
        let facts = mirror.facts(1).unwrap();
        assert!(now_ns >= late_ns || !facts.rebuilding && !facts.in_sync);
    }
    assert!(mirror.facts(1).unwrap().in_sync);
}

/// The slot of a removed leg, which could not be overwritten, has another leg by now.
#[test]
fn removed_leg_at_the_start_leaves_its_slot_alone() {
    let mut removed = legs(2)[1];
    let with_other = removed.removed(1).and_then(|it| {
        let added = it.added(1, Id([99; 16]), Label::default())?;
        added.rebuilding(1)?.rejoined(1)
    });
    let state = with_other.unwrap();
    removed.place.leg_bytes *= 2;
    let place = state.place;
    let given = [state.on(0, place), state.on(1, place), removed];
    let mirror = started_with(given.to_vec(), &[], Config::new(6), Terms::default(), 0);
    assert_eq!(mirror.place(1), Some(place));
    assert!(mirror.may_read(1));
}

/// A mirror of two legs whose leg 1 takes no superblock: what leg 0 says of it in the end.
fn said_of_leg_that_fails(given: [Superblock; 2], wishes: Wishes) -> Superblock {
    let assembly = assemble(&given.map(Ok), wishes).unwrap();
    let chosen = given.map(|superblock| Chosen {
        superblock,
        copy: 0,
        other: Ok(0),
    });
    let start = Start {
        assembly: &assembly,
        late_until_ns: &[],
        given: &chosen.map(Ok),
        lineage: 2,
        terms: Terms::default(),
    };
    let mut mirror = Mirror::start(&start, Ownership::acquired(owner()), Config::new(6), 0);
    let mut tries = 0;
    for now_ns in (0..2_000).map(|at| at * MS) {
        mirror.handle_timeout(now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            match output {
                Output::ReadSuperblocks(ticket) if ticket.leg == 1 && !ticket.is_heartbeat() => {
                    mirror.handle_superblocks(ticket, &Ok(chosen[1]), now_ns);
                }
                other => end(&mut mirror, other, now_ns, &mut |output, leg| {
                    if leg == 1 && matches!(output, Output::Superblock(..)) {
                        tries += 1;
                        return Some(Outcome::PathError);
                    }
                    well(output, leg)
                }),
            }
        }
    }
    assert!(tries > 0, "its rebuild began");
    let state = mirror.legs[0].committed;
    let crc = crc_fast::crc32_iscsi;
    assert_eq!(Superblock::parse(&state.encode(0, crc), 0, crc), Ok(state));
    state
}

/// The half that was given up has more generations than the other one.
#[test]
fn t17_half_that_was_given_up_is_not_taken_for_known() {
    let base = legs(2);
    let a = base[0].begun(11).without(1, base[0].seen()).unwrap();
    for lineages in [0, 5] {
        let mut b = base[0].begun(12).without(0, base[0].seen()).unwrap();
        for lineage in 0..lineages {
            b = b.stopped().begun(100 + lineage);
        }
        let given = [a.on(0, base[0].place), b.on(1, base[1].place)];
        let wishes = Wishes {
            discard: Some(1),
            ..Wishes::default()
        };
        let a = said_of_leg_that_fails(given, wishes);
        let parted = assemble(&[Ok(a), Ok(given[1])], Wishes::default());
        assert!(parted.is_err(), "{lineages}: {parted:?}");
    }
}

/// It returns, is lost before it is written, and returns again, after so many lineages that its
/// own is forgotten.
#[test]
fn leg_that_fails_when_it_returns_stays_known_however_long_it_was_away() {
    let base = legs(2);
    let mut a = base[0].without(1, base[0].seen()).unwrap();
    for lineage in 0..40 {
        a = a.stopped().begun(100 + lineage);
    }
    let given = [a.on(0, base[0].place), base[0].on(1, base[1].place)];
    let a = said_of_leg_that_fails(given, Wishes::default());
    assert!(assemble(&[Ok(a), Ok(given[1])], Wishes::default()).is_ok());
}
