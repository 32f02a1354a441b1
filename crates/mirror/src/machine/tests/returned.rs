//! Legs that return by hand: whose record is on them, and how far ahead it is.
use super::super::super::assembly::tests::legs;
use super::super::super::copies::Chosen;
use super::super::super::ownership::Terms;
use super::super::super::superblock::Owner;
use super::super::super::{Id, Label, Superblock};
use super::super::*;
use super::rules::{BLOCK, MS, end, run, started_on, started_with, well};
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
