//! Legs that are smaller for a moment than the mirror needs: what they have counts no more (T50).
use super::super::super::assembly::tests::PLACE;
use super::super::*;
use super::rules::{BLOCK, MS, end, run, started, started_with, well};
use crate::assembly::{Role, Why, Wishes, assemble};
use crate::ownership::Terms;
use crate::superblock::EntryState;
use alloc::vec;
use alloc::vec::Vec;

const NEEDED: u64 = PLACE.data_offset + (4 << 20);

fn begun() -> Mirror {
    let mut mirror = started(2, Config::new(6));
    write(&mut mirror, 0, MS);
    mirror
}

fn write(mirror: &mut Mirror, at: u64, now_ns: u64) -> Outcome {
    let request = Request::Write(Range::new(at, BLOCK), false);
    mirror.submit(request, now_ns).unwrap();
    run(mirror, now_ns, &mut well)[0].1
}

fn read(mirror: &mut Mirror, at: u64, now_ns: u64) -> Outcome {
    let request = Request::Read(Range::new(at, BLOCK));
    mirror.submit(request, now_ns).unwrap();
    run(mirror, now_ns, &mut well)[0].1
}

#[test]
fn t50_a_leg_that_shrank_leaves_and_has_nothing() {
    for slot in [0, 1] {
        let mut mirror = begun();
        mirror.leg_resized(slot, NEEDED, 2 * MS);
        assert!(mirror.facts(slot).unwrap().in_sync, "it is large enough");
        mirror.leg_resized(slot, NEEDED - 1, 2 * MS);
        mirror.leg_resized(slot, NEEDED, 2 * MS);
        assert!(!mirror.may_read(slot));
        run(&mut mirror, 2 * MS, &mut well);
        match mirror.superblock().state(slot) {
            Some(EntryState::Stale(lack)) => assert_eq!(lack.position, 0),
            other => panic!("{other:?}"),
        }
        assert_eq!(read(&mut mirror, 3 << 20, 3 * MS), Outcome::Done);
    }
}

#[test]
fn t50_the_last_leg_serves_what_was_never_cut() {
    let mut mirror = begun();
    mirror.leg_lost(1, 2 * MS);
    run(&mut mirror, 2 * MS, &mut well);
    let held = Request::Read(Range::new(3 << 20, BLOCK));
    mirror.submit(held, 2 * MS).unwrap();
    let Some(Output::Read(io, _, from)) = mirror.poll_output(2 * MS) else {
        panic!("a read");
    };
    let ticket = mirror.take(io, from.first().unwrap(), Wait::Long).unwrap();
    mirror.leg_resized(0, PLACE.data_offset + (2 << 20), 3 * MS);
    mirror.leg_resized(0, PLACE.data_offset + (3 << 20), 3 * MS);
    mirror.leg_resized(0, NEEDED, 3 * MS);
    // It was asked for before that was known.
    mirror.handle_done(ticket, Outcome::Done, 3 * MS);
    let ended = run(&mut mirror, 3 * MS, &mut well);
    assert_eq!(ended, [(io, Outcome::CutShort)]);
    for at in [2 << 20, (2 << 20) - 4096, 3 << 20] {
        assert_eq!(read(&mut mirror, at, 4 * MS), Outcome::CutShort, "{at}");
        assert_eq!(write(&mut mirror, at, 4 * MS), Outcome::CutShort, "{at}");
    }
    assert_eq!(write(&mut mirror, (2 << 20) - BLOCK, 5 * MS), Outcome::Done);
    assert_eq!(read(&mut mirror, (2 << 20) - BLOCK, 5 * MS), Outcome::Done);
    assert!(mirror.facts(0).unwrap().cut_short);
}

/// It was cut as the last one in sync, another leg has joined it, and before the next turn it fails
/// a write.
#[test]
fn t50_cut_leg_that_leaves_has_nothing() {
    let mut mirror = begun();
    let cut = leg::Change::Truncate(leg::Cut::default());
    mirror.legs.change(0, cut);
    mirror.lose(0, Outcome::PathError);
    run(&mut mirror, 2 * MS, &mut well);
    let state = mirror.superblock().state(0);
    assert!(
        matches!(state, Some(EntryState::Stale(lack)) if lack.position == 0),
        "{state:?}"
    );
}

/// The leg answers that it is smaller before the engine is told of its size: the request is no
/// wrong one.
#[test]
fn t50_the_last_leg_past_its_end_is_an_error_of_it() {
    let mut mirror = begun();
    mirror.leg_lost(1, 2 * MS);
    run(&mut mirror, 2 * MS, &mut well);
    let request = Request::Read(Range::new(3 << 20, BLOCK));
    mirror.submit(request, 2 * MS).unwrap();
    let Some(Output::Read(io, _, from)) = mirror.poll_output(2 * MS) else {
        panic!("a read");
    };
    let ticket = mirror.take(io, from.first().unwrap(), Wait::Long).unwrap();
    mirror.handle_done(ticket, Outcome::PastEnd, 3 * MS);
    let ended = run(&mut mirror, 3 * MS, &mut well);
    assert_eq!(ended, [(io, Outcome::CutShort)]);
}

/// A leg that answers so has lost data, whatever size it shows later: it is copied whole.
#[test]
fn t50_a_leg_that_answers_past_its_end_has_nothing() {
    for writes in [true, false] {
        let mut mirror = begun();
        let range = Range::new(3 << 20, BLOCK);
        let request = match writes {
            true => Request::Write(range, false),
            false => Request::Read(range),
        };
        mirror.submit(request, 2 * MS).unwrap();
        let mut news = Vec::new();
        while let Some(output) = mirror.poll_output(2 * MS) {
            match output {
                Output::Leg(ticket, Request::Write(..)) if ticket.leg == 1 => {
                    mirror.handle_done(ticket, Outcome::PastEnd, 2 * MS);
                }
                Output::Read(io, ..) if !mirror.legs.in_sync().without(Legs::one(1)).is_empty() => {
                    let leg = if mirror.legs.in_sync().has(1) { 1 } else { 0 };
                    let ticket = mirror.take(io, leg, Wait::Long).unwrap();
                    let outcome = [Outcome::Done, Outcome::PastEnd][usize::from(leg)];
                    mirror.handle_done(ticket, outcome, 2 * MS);
                }
                Output::Done(_, outcome) => assert_eq!(outcome, Outcome::Done),
                Output::News(it) => news.push(it),
                other => end(&mut mirror, other, 2 * MS, &mut well),
            }
        }
        assert!(news.contains(&News::Left(1, Outcome::CutShort)), "{news:?}");
        let state = mirror.superblock().state(1);
        assert!(matches!(state, Some(EntryState::Stale(lack)) if lack.position == 0));
    }
}

/// Nothing is copied from where it was cut: the other leg is not in sync.
#[test]
fn t50_a_rebuild_from_a_cut_leg_is_stuck() {
    let mut mirror = begun();
    mirror.leg_lost(1, 2 * MS);
    run(&mut mirror, 2 * MS, &mut well);
    mirror.leg_resized(1, NEEDED - 1, 2 * MS);
    mirror.leg_resized(0, PLACE.data_offset + (2 << 20), 2 * MS);
    mirror.leg_resized(0, NEEDED, 2 * MS);
    mirror.leg_found(1, 0, 3 * MS);
    let mut copied = 0;
    let mut notes = |output: &Output, _| {
        if let Output::CopyWrite(_, _, range) = output {
            assert!(range.end <= 2 << 20, "{range:?}");
            copied += range.end - range.start;
        }
        None
    };
    for now_ns in (3 * MS..30_000 * MS).step_by(100 * MS as usize) {
        mirror.handle_timeout(now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            end(&mut mirror, output, now_ns, &mut notes);
        }
    }
    assert_eq!(copied, 2 << 20);
    let facts = mirror.facts(1).unwrap();
    assert!(facts.rebuilding && facts.is_stuck(), "{facts:?}");
}

/// Superblock of a leg, as it is written.
fn said(mirror: &Mirror, slot: u8) -> Superblock {
    mirror.legs[slot].committed
}

/// One whose leg 1 is away, and leg 0 was cut at 2 MiB.
fn cut() -> Mirror {
    let mut mirror = begun();
    mirror.leg_lost(1, 2 * MS);
    run(&mut mirror, 2 * MS, &mut well);
    mirror.leg_resized(0, PLACE.data_offset + (2 << 20), 3 * MS);
    mirror.leg_resized(0, NEEDED, 3 * MS);
    run(&mut mirror, 3 * MS, &mut well);
    mirror
}

fn again(superblocks: Vec<Superblock>) -> Mirror {
    let mut mirror = started_with(superblocks, &[], Config::new(6), Terms::default(), 0);
    run(&mut mirror, MS, &mut well);
    mirror
}

#[test]
fn t50_a_cut_is_known_at_the_next_start() {
    let mirror = cut();
    assert_eq!(said(&mirror, 0).cut_at, 2 << 20);
    assert_eq!(mirror.superblock().cut_at, 0, "it is said of one leg");
    // Beats keep it.
    let block = mirror.encode_superblock(0, 0, crc_fast::crc32_iscsi);
    let parsed = Superblock::parse(&block, 0, crc_fast::crc32_iscsi).unwrap();
    assert_eq!(parsed.cut_at, 2 << 20);
    let mut next = again(vec![said(&mirror, 0)]);
    let facts = next.facts(0).unwrap();
    assert_eq!((facts.cut_short, facts.cut_end), (true, Some(2 << 20)));
    assert_eq!(read(&mut next, 2 << 20, 2 * MS), Outcome::CutShort);
    assert_eq!(write(&mut next, 3 << 20, 2 * MS), Outcome::CutShort);
    assert_eq!(read(&mut next, 0, 2 * MS), Outcome::Done);
}

#[test]
fn t50_a_cut_that_is_accepted_is_used_once_that_is_said() {
    let mut mirror = cut();
    assert!(!mirror.accept_cut(1, 4 * MS), "it is no leg in sync");
    assert!(mirror.accept_cut(0, 4 * MS));
    let request = Request::Read(Range::new(3 << 20, BLOCK));
    let io = mirror.submit(request, 4 * MS).unwrap();
    let ended = run(&mut mirror, 4 * MS, &mut well);
    assert_eq!(ended, [(io, Outcome::CutShort)], "not before");
    assert_eq!(said(&mirror, 0).cut_at, 0);
    assert_eq!(mirror.facts(0).unwrap().cut_end, None);
    assert_eq!(read(&mut mirror, 3 << 20, 5 * MS), Outcome::Done);
    assert_eq!(write(&mut mirror, 3 << 20, 5 * MS), Outcome::Done);
    assert!(!mirror.accept_cut(0, 6 * MS), "nothing is left to accept");
    let mut next = again(vec![said(&mirror, 0)]);
    assert_eq!(read(&mut next, 3 << 20, 2 * MS), Outcome::Done);
    // It shrinks once more.
    mirror.leg_resized(0, PLACE.data_offset + (1 << 20), 7 * MS);
    run(&mut mirror, 7 * MS, &mut well);
    assert_eq!(said(&mirror, 0).cut_at, 1 << 20);
    assert_eq!(read(&mut mirror, 3 << 20, 8 * MS), Outcome::CutShort);
}

/// While an event was under way that did not say so yet: its second copies do.
#[test]
fn t50_a_cut_that_is_accepted_during_an_event_is_over() {
    let mut mirror = cut();
    let name = crate::Name::new("other").unwrap();
    mirror.rename(name, 4 * MS);
    let said_first = loop {
        match mirror.poll_output(4 * MS) {
            Some(Output::Superblock(ticket, _)) => break ticket,
            other => end(&mut mirror, other.unwrap(), 4 * MS, &mut well),
        }
    };
    assert!(mirror.accept_cut(0, 4 * MS));
    mirror.handle_done(said_first, Outcome::Done, 4 * MS);
    run(&mut mirror, 4 * MS, &mut well);
    assert_eq!(said(&mirror, 0).cut_at, 0);
    assert_eq!(mirror.facts(0).unwrap().cut_end, None);
    assert_eq!(read(&mut mirror, 3 << 20, 5 * MS), Outcome::Done);
}

/// Before the cut could be written down.
#[test]
fn t50_a_cut_that_is_accepted_at_once_is_over() {
    let mut mirror = begun();
    mirror.leg_lost(1, 2 * MS);
    run(&mut mirror, 2 * MS, &mut well);
    mirror.leg_resized(0, PLACE.data_offset + (2 << 20), 3 * MS);
    assert!(mirror.accept_cut(0, 3 * MS));
    run(&mut mirror, 3 * MS, &mut well);
    let facts = mirror.facts(0).unwrap();
    assert_eq!((facts.cut_short, facts.cut_end), (false, None));
    assert_eq!(said(&mirror, 0).cut_at, 0);
    assert_eq!(read(&mut mirror, 3 << 20, 4 * MS), Outcome::Done);
}

/// It shrank to less than where the mirror begins: nothing of it is left, and that is said.
#[test]
fn t50_a_leg_that_was_cut_before_its_data_has_nothing() {
    let mut mirror = cut();
    mirror.leg_resized(0, 4096, 4 * MS);
    run(&mut mirror, 4 * MS, &mut well);
    assert_eq!(said(&mirror, 0).cut_at, 1);
    let mut next = again(vec![said(&mirror, 0)]);
    assert_eq!(read(&mut next, 0, 2 * MS), Outcome::CutShort);
}

/// A crash while the other leg becomes one in sync: that one has everything.
#[test]
fn t50_a_cut_leg_is_stale_beside_one_that_is_whole() {
    let mirror = cut();
    let mut first = said(&mirror, 0);
    first.set_state(1, EntryState::InSync);
    let second = first.on(1, PLACE);
    let assembly = assemble(&[Ok(first), Ok(second)], Wishes::default()).unwrap();
    let (position, why) = (0, Why::Cut);
    assert_eq!(
        assembly.roles,
        [Role::Behind { position, why }, Role::InSync]
    );
    assert_eq!(assembly.next.cut_at, 0);
    let state = assembly.next.state(0);
    assert!(matches!(state, Some(EntryState::Stale(lack)) if lack.position == 0));
}

/// The same without the leg that was cut, and that one comes later: the state calls it stale, and
/// knows of no cut.
#[test]
fn t50_a_cut_leg_that_was_absent_has_nothing() {
    let mirror = cut();
    let mut first = said(&mirror, 0);
    first.set_state(1, EntryState::InSync);
    let without = Wishes {
        without: true,
        ..Wishes::default()
    };
    let second = first.on(1, PLACE);
    let alone = assemble(&[Ok(second)], without).unwrap();
    let next = alone.next.begun(9);
    assert!(matches!(next.state(0), Some(EntryState::Stale(lack)) if lack.position > 0));
    for state in [next, next.rebuilding(0).unwrap()] {
        let both = assemble(&[Ok(first), Ok(state)], Wishes::default()).unwrap();
        let (position, why) = (0, Why::Cut);
        assert_eq!(both.roles, [Role::Behind { position, why }, Role::InSync]);
        let state = both.next.state(0);
        assert!(matches!(state, Some(EntryState::Stale(lack)) if lack.position == 0));
    }
}

#[test]
fn a_mirror_that_is_renamed_says_so_on_all_legs() {
    let mut mirror = begun();
    let name = crate::Name::new("other").unwrap();
    mirror.rename(name, 2 * MS);
    run(&mut mirror, 2 * MS, &mut well);
    assert_eq!([0, 1].map(|slot| said(&mirror, slot).name), [name; 2]);
}

#[test]
fn a_leg_that_was_rebuilt_is_younger() {
    let mut mirror = begun();
    let since = |mirror: &Mirror, slot| mirror.facts(slot).unwrap().since_event;
    assert_eq!(since(&mirror, 0), since(&mirror, 1));
    mirror.leg_lost(1, 2 * MS);
    run(&mut mirror, 2 * MS, &mut well);
    mirror.leg_found(1, 0, 3 * MS);
    for now_ns in (3 * MS..3000 * MS).step_by(100 * MS as usize) {
        mirror.handle_timeout(now_ns);
        run(&mut mirror, now_ns, &mut well);
    }
    assert!(mirror.facts(1).unwrap().in_sync);
    assert!(since(&mirror, 0) < since(&mirror, 1));
}
