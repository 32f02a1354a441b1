//! Beats by hand: what goes on when a leg doesn't answer, and what stands still.
use super::super::super::Id;
use super::super::super::assembly::tests::{PLACE, legs};
use super::super::super::assembly::{Wishes, assemble};
use super::super::super::copies::{Chosen, NoLeg};
use super::super::super::ownership::{Ownership, Terms};
use super::super::*;
use super::rules::{BLOCK, MS, end, owner, run, started, started_on, well, written};
use crate::bitmap::Bitmap;
use alloc::vec::Vec;
use crc_fast::crc32_iscsi;

pub const INTERVAL: u64 = 5000 * MS;

pub fn write() -> Request {
    Request::Write(Range::new(0, BLOCK), false)
}

pub fn read() -> Request {
    Request::Read(Range::new(0, BLOCK))
}

/// A mirror of two legs that others reach, claimed just now.
pub fn shared(hold_until_ns: u64) -> Mirror {
    let written_ns = Some((0, 0));
    started_on(
        2,
        Config::new(6),
        Terms {
            written_ns,
            hold_until_ns,
            ..Terms::default()
        },
        INTERVAL,
    )
}

/// Ends all but what is for a leg that hangs, which is kept; how the I/Os ended.
pub fn run_but(
    mirror: &mut Mirror,
    now_ns: u64,
    hangs: Legs,
    kept: &mut Vec<Output>,
) -> Vec<(u32, Outcome)> {
    let mut ended = Vec::new();
    while let Some(output) = mirror.poll_output(now_ns) {
        let leg = match output {
            Output::Done(io, outcome) => {
                ended.push((io, outcome));
                continue;
            }
            Output::Leg(ticket, _)
            | Output::Flush(ticket)
            | Output::Pages(ticket, _)
            | Output::ReadSuperblocks(ticket)
            | Output::Superblock(ticket, _) => Some(ticket.leg),
            _ => None,
        };
        match leg.is_some_and(|leg| hangs.has(leg)) {
            true => kept.push(output),
            false => end(mirror, output, now_ns, &mut well),
        }
    }
    ended
}

/// All that is due up to `until_ns`, from `from_ns` on.
pub fn pass(
    mirror: &mut Mirror,
    (from_ns, until_ns): (u64, u64),
    hangs: Legs,
    kept: &mut Vec<Output>,
) -> Vec<(u32, Outcome)> {
    let mut ended = Vec::new();
    for now_ns in (from_ns..=until_ns).step_by(100 * MS as usize) {
        mirror.handle_timeout(now_ns);
        ended.extend(run_but(mirror, now_ns, hangs, kept));
    }
    ended
}

#[test]
fn t48_a_leg_that_does_not_answer_keeps_no_other_from_its_beats() {
    for hangs in [0, 1] {
        let mut mirror = written(Config::new(6));
        let mut kept = Vec::new();
        pass(&mut mirror, (MS, INTERVAL), Legs::default(), &mut kept);
        let other = 1 - hangs;
        let said = |mirror: &Mirror| mirror.legs[other].committed.sequence;
        let mut before = said(&mirror);
        for heartbeat in 1..6 {
            let times = (heartbeat * INTERVAL, (heartbeat + 1) * INTERVAL);
            pass(&mut mirror, times, Legs::one(hangs), &mut kept);
            assert!(
                said(&mirror) > before,
                "leg {other} in heartbeat {heartbeat}"
            );
            before = said(&mirror);
        }
        let heartbeat =
            |it: &&Output| matches!(it, Output::ReadSuperblocks(_) | Output::Superblock(..));
        let heartbeats = kept.iter().filter(heartbeat).count();
        assert_eq!(heartbeats, 1, "one is under way on the leg that hangs");
    }
}

#[test]
fn a_beat_that_is_lost_with_its_path_begins_anew_in_time_and_the_leg_stays() {
    for lost in [0, 1] {
        let mut mirror = shared(0);
        let mut kept = Vec::new();
        run_but(&mut mirror, INTERVAL, Legs::default(), &mut kept);
        // The next record of one leg is lost while it is written.
        let now_ns = 2 * INTERVAL;
        let mut given = Vec::new();
        mirror.handle_timeout(now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            match output {
                Output::Superblock(ticket, _) if ticket.leg == lost => given.push(ticket),
                other => end(&mut mirror, other, now_ns, &mut well),
            }
        }
        assert!(matches!(given[..], [ticket] if ticket.is_heartbeat()));
        mirror.handle_done(given[0], Outcome::PathError, now_ns + MS);
        let times = (now_ns + 100 * MS, now_ns + 3 * INTERVAL);
        pass(&mut mirror, times, Legs::default(), &mut kept);
        assert_eq!(
            (mirror.legs.in_sync(), mirror.lapsed()),
            (Legs(3), Legs::default())
        );
        // One that can't be read either has no path: it leaves.
        mirror.handle_timeout(times.1 + INTERVAL);
        let mut given = Vec::new();
        while let Some(output) = mirror.poll_output(times.1 + INTERVAL) {
            match output {
                Output::ReadSuperblocks(ticket) if ticket.leg == lost => given.push(ticket),
                other => end(&mut mirror, other, times.1 + INTERVAL, &mut well),
            }
        }
        mirror.handle_done(given[0], Outcome::PathError, times.1 + INTERVAL);
        assert_eq!(mirror.legs.in_sync(), Legs::one(1 - lost));
    }
}

#[test]
fn t48_without_a_lease_nothing_is_given_out_and_nothing_acknowledged() {
    let mut mirror = shared(0);
    let mut kept = Vec::new();
    let io = mirror.submit(read(), INTERVAL).unwrap();
    let ended = run_but(&mut mirror, INTERVAL, Legs::default(), &mut kept);
    assert_eq!(
        ended,
        [(io, Outcome::Done)],
        "the claim and a heartbeat are a lease"
    );
    let io = mirror.submit(write(), INTERVAL).unwrap();
    assert_eq!(run(&mut mirror, INTERVAL, &mut well), [(io, Outcome::Done)]);
    // A write is under way, and heartbeats begin to hang.
    let all = Legs(3);
    let io = mirror.submit(write(), INTERVAL + MS).unwrap();
    assert!(run_but(&mut mirror, INTERVAL + MS, all, &mut kept).is_empty());
    let writes = core::mem::take(&mut kept);
    assert_eq!(writes.len(), 2);
    let now_ns = 3 * INTERVAL + 200 * MS;
    let ended = pass(&mut mirror, (INTERVAL + 2 * MS, now_ns), all, &mut kept);
    assert!(ended.is_empty() && mirror.lapsed() == all);
    let heartbeats = core::mem::take(&mut kept);
    writes
        .into_iter()
        .for_each(|it| end(&mut mirror, it, now_ns, &mut well));
    let late = mirror.submit(read(), now_ns).unwrap();
    let again = mirror.submit(write(), now_ns).unwrap();
    let ended = pass(&mut mirror, (now_ns, 5 * INTERVAL), all, &mut kept);
    assert!(ended.is_empty() && kept.is_empty(), "{ended:?} {kept:?}");
    // Beats end again: one is not enough, whoever looked before it may be about to write.
    let now_ns = 5 * INTERVAL;
    heartbeats
        .into_iter()
        .for_each(|it| end(&mut mirror, it, now_ns, &mut well));
    let none = Legs::default();
    let ended = pass(
        &mut mirror,
        (now_ns, 6 * INTERVAL - 100 * MS),
        none,
        &mut kept,
    );
    assert!(ended.is_empty(), "{ended:?}");
    let mut ended = pass(
        &mut mirror,
        (6 * INTERVAL, 6 * INTERVAL + 200 * MS),
        none,
        &mut kept,
    );
    ended.sort_by_key(|it| it.0);
    let mut all = [io, late, again];
    all.sort();
    assert_eq!(ended, all.map(|io| (io, Outcome::Done)));
    assert_eq!(mirror.legs.in_sync(), Legs(3), "nobody has left");
}

/// Superblock of a leg if it was another owner's.
fn of_another(mirror: &Mirror, leg: u8) -> Chosen {
    let mut superblock = mirror.legs[leg].committed;
    if let Some(owner) = &mut superblock.owner {
        owner.run = Id([77; 16]);
    }
    Chosen {
        superblock,
        copy: 0,
        other: Ok(0),
    }
}

#[test]
fn t48_an_owner_that_finds_another_ones_record_gives_nothing_out_any_more() {
    let mut mirror = shared(0);
    let mut kept = Vec::new();
    run_but(&mut mirror, INTERVAL, Legs::default(), &mut kept);
    let all = Legs(3);
    let done = mirror.submit(read(), INTERVAL).unwrap();
    let Some(Output::Read(io, _, from)) = mirror.poll_output(INTERVAL) else {
        panic!("it is offered");
    };
    let ticket = mirror.take(io, from.first().unwrap(), Wait::Long).unwrap();
    pass(&mut mirror, (INTERVAL + MS, 4 * INTERVAL), all, &mut kept);
    mirror.handle_done(ticket, Outcome::Done, 4 * INTERVAL);
    let held = mirror.submit(write(), 4 * INTERVAL).unwrap();
    assert!(run_but(&mut mirror, 4 * INTERVAL, all, &mut kept).is_empty());
    let Some(Output::ReadSuperblocks(ticket)) = kept.first().copied() else {
        panic!("{kept:?}");
    };
    let found = of_another(&mirror, ticket.leg);
    mirror.handle_superblocks(ticket, &Ok(found), 4 * INTERVAL);
    let mut given = 0;
    let mut ended = run(&mut mirror, 4 * INTERVAL, &mut |_, _| {
        given += 1;
        None
    });
    ended.sort_by_key(|it| it.0);
    let mut both = [done, held];
    both.sort();
    assert_eq!(ended, both.map(|io| (io, Outcome::Reservation)));
    assert!(given == 0 && mirror.has_lost_ownership());
}

/// The heartbeat of leg 1 finds this record there, of another owner, at `now_ns`; whether that is
/// the end, and what is written on leg 1 then.
fn finds(mirror: &mut Mirror, sequence: u64, now_ns: u64) -> (bool, Vec<u8>) {
    let mut copies = Vec::new();
    mirror.handle_timeout(now_ns);
    while let Some(output) = mirror.poll_output(now_ns) {
        match output {
            Output::ReadSuperblocks(ticket) if ticket.leg == 1 => {
                let mut found = of_another(mirror, 1);
                found.superblock.sequence = sequence;
                mirror.handle_superblocks(ticket, &Ok(found), now_ns);
            }
            Output::Superblock(ticket, copy) if ticket.leg == 1 => {
                copies.push(copy);
                mirror.handle_done(ticket, Outcome::Done, now_ns);
            }
            other => end(mirror, other, now_ns, &mut well),
        }
    }
    (mirror.has_lost_ownership(), copies)
}

#[test]
fn t09_t48_records_of_owners_before_that_come_late_over_both_copies_are_written_over() {
    // Found by world 48035387.
    let taken_over = |hold_until_ns| {
        let mut mirror = shared(hold_until_ns);
        pass(
            &mut mirror,
            (INTERVAL, 2 * INTERVAL),
            Legs::default(),
            &mut Vec::new(),
        );
        let from = mirror.ownership.leases.taken_from(1);
        (mirror, from)
    };
    let (mut mirror, from) = taken_over(20 * INTERVAL);
    assert!(from > 0, "it was taken over");
    let sequence = mirror.legs[1].committed.sequence;
    let (foreign, copies) = finds(&mut mirror, from - 1, 3 * INTERVAL);
    assert!(!foreign && copies.len() == 1, "{copies:?}");
    assert!(mirror.legs[1].committed.sequence > sequence);
    // A host that has read ours comes after us.
    assert!(finds(&mut mirror, from, 4 * INTERVAL).0);
    // No request is on its way any more, or ever was.
    for hold_until_ns in [2 * INTERVAL, 0] {
        let (mut mirror, from) = taken_over(hold_until_ns);
        let sequence = from.saturating_sub(1);
        assert!(
            finds(&mut mirror, sequence, 3 * INTERVAL).0,
            "{hold_until_ns}"
        );
    }
}

#[test]
fn t48_a_leg_without_a_lease_leaves_where_another_one_has_its_own() {
    let mut mirror = shared(0);
    let mut kept = Vec::new();
    let io = mirror.submit(write(), INTERVAL).unwrap();
    assert_eq!(run(&mut mirror, INTERVAL, &mut well), [(io, Outcome::Done)]);
    let hangs = Legs::one(1);
    let io = mirror.submit(write(), INTERVAL + MS).unwrap();
    let ended = pass(
        &mut mirror,
        (INTERVAL + MS, 3 * INTERVAL - 100 * MS),
        hangs,
        &mut kept,
    );
    assert!(ended.is_empty() && mirror.legs.in_sync() == Legs(3));
    let before = kept.len();
    let ended = pass(&mut mirror, (3 * INTERVAL, 4 * INTERVAL), hangs, &mut kept);
    assert_eq!((mirror.legs.in_sync(), kept.len()), (Legs::one(0), before));
    // Its requests are still under way; the write ends when they have.
    assert!(ended.iter().all(|it| *it == (io, Outcome::Done)));
}

#[test]
fn errors_of_beats_are_those_of_what_waits_on_the_last_leg() {
    let mut mirror = shared(0);
    let mut kept = Vec::new();
    run_but(&mut mirror, INTERVAL, Legs::default(), &mut kept);
    let all = Legs(3);
    pass(&mut mirror, (INTERVAL + MS, 4 * INTERVAL), all, &mut kept);
    mirror.submit(read(), 4 * INTERVAL).unwrap();
    for heartbeat in kept.drain(..) {
        let (Output::ReadSuperblocks(ticket) | Output::Superblock(ticket, _)) = heartbeat else {
            panic!("{heartbeat:?}");
        };
        mirror.handle_done(ticket, Outcome::PathError, 4 * INTERVAL);
    }
    let ended = run(&mut mirror, 4 * INTERVAL, &mut well);
    assert!(matches!(ended[..], [(_, Outcome::PathError)]), "{ended:?}");
}

#[test]
fn t09_changes_and_flushes_wait_for_what_the_owner_before_has_left() {
    let until_ns = 4 * INTERVAL;
    let mut mirror = shared(until_ns);
    let mut kept = Vec::new();
    for request in [write(), Request::Flush, read()] {
        mirror.submit(request, INTERVAL).unwrap();
    }
    let none = Legs::default();
    let mut given = 0;
    let mut ended = Vec::new();
    for now_ns in (INTERVAL..until_ns).step_by(500 * MS as usize) {
        mirror.handle_timeout(now_ns);
        ended.extend(run(&mut mirror, now_ns, &mut |output, _| {
            let change = matches!(output, Output::Leg(..) | Output::Pages(..));
            given += u32::from(change);
            None
        }));
    }
    assert!(
        ended.len() == 1 && given == 0,
        "only the read: {ended:?} {given}"
    );
    let ended = pass(
        &mut mirror,
        (until_ns, until_ns + 100 * MS),
        none,
        &mut kept,
    );
    assert_eq!(ended.len(), 2, "{ended:?}");
}

#[test]
fn t09_who_stops_while_it_waits_leaves_its_record_for_the_next() {
    let mut mirror = shared(20 * INTERVAL);
    run(&mut mirror, INTERVAL, &mut well);
    mirror.stop(INTERVAL);
    let mut stopped = false;
    while let Some(output) = mirror.poll_output(INTERVAL) {
        stopped |= output == Output::News(News::Stopped(false));
        end(&mut mirror, output, INTERVAL, &mut well);
    }
    let owned = |leg: u8| mirror.legs[leg].committed.owner.is_some();
    assert!(stopped && owned(0) && owned(1));
}

/// Leg 1 of two, alone by the user's word after an unclean stop.
fn forced() -> Mirror {
    let begun = legs(2)[0].begun(2);
    let given = [Err(NoLeg::Missing), Ok(begun.on(1, PLACE))];
    let wishes = Wishes {
        without: true,
        discard: None,
    };
    let assembly = assemble(&given, wishes).unwrap();
    let chosen = |superblock| Chosen {
        superblock,
        copy: 0,
        other: Ok(0),
    };
    let given = given.map(|it| it.map(chosen));
    let start = Start {
        assembly: &assembly,
        late_until_ns: &[],
        given: &given,
        lineage: 3,
        terms: Terms::default(),
    };
    Mirror::start(&start, Ownership::acquired(owner()), Config::new(6), 0)
}

#[test]
fn t14_who_is_started_by_force_is_alone_only_when_that_is_durable() {
    let mut mirror = forced();
    let read = mirror.submit(read(), 0).unwrap();
    let mut superblocks = Vec::new();
    let mut early = false;
    while let Some(output) = mirror.poll_output(0) {
        match output {
            // A write was under way here.
            Output::ReadPages(ticket, _) => {
                let mut map = Bitmap::new(4);
                map.set(0);
                let page = map.encode(0, Id([1; 16]), crc32_iscsi);
                mirror.handle_pages(ticket, &page, crc32_iscsi, 0);
            }
            Output::Superblock(..) => superblocks.push(output),
            Output::Read(..) => early = true,
            other => end(&mut mirror, other, 0, &mut well),
        }
    }
    assert!(!early, "the next start may choose what the other leg has");
    let event = superblocks.iter().find(|_| mirror.superblock().event > 2);
    assert!(event.is_some(), "that it is alone is said");
    superblocks
        .into_iter()
        .for_each(|it| end(&mut mirror, it, 0, &mut well));
    let ended = run(&mut mirror, 0, &mut well);
    assert_eq!(ended, [(read, Outcome::Done)]);
}

#[test]
fn a_mirror_that_only_this_host_reaches_has_no_lease() {
    let mut mirror = started(2, Config::new(6));
    let mut kept = Vec::new();
    let io = mirror.submit(write(), MS).unwrap();
    assert_eq!(run(&mut mirror, MS, &mut well), [(io, Outcome::Done)]);
    pass(&mut mirror, (2 * MS, 9 * INTERVAL), Legs(3), &mut kept);
    assert!(mirror.lapsed().is_empty());
    let waits = kept.len();
    mirror.submit(write(), 9 * INTERVAL).unwrap();
    run_but(&mut mirror, 9 * INTERVAL, Legs(3), &mut kept);
    assert_eq!(kept.len(), waits + 2, "both get it");
}

/// Times that the records of both legs say that we leave behind, ms.
fn bounds(mirror: &Mirror) -> [u32; 2] {
    [0, 1].map(|leg| mirror.legs[leg].committed.owner.unwrap().bound_ms)
}

#[test]
fn t09_beats_say_what_an_owner_before_has_left_until_that_is_over() {
    let terms = Terms {
        written_ns: Some((0, 0)),
        hold_until_ns: 4 * INTERVAL,
        left_ms: 60_000,
    };
    let mut mirror = started_on(2, Config::new(6), terms, INTERVAL);
    let (none, mut kept) = (Legs::default(), Vec::new());
    pass(&mut mirror, (INTERVAL, 3 * INTERVAL), none, &mut kept);
    assert_eq!(bounds(&mirror), [60_000; 2]);
    assert_eq!(mirror.held_until_ns(), Some(4 * INTERVAL));
    pass(&mut mirror, (3 * INTERVAL, 6 * INTERVAL), none, &mut kept);
    assert_eq!((bounds(&mirror), mirror.held_until_ns()), ([0; 2], None));
}

#[test]
fn t09_a_longer_bound_is_on_the_legs_at_once_and_is_said_to_be_when_it_is() {
    let mut mirror = shared(0);
    let (none, mut kept) = (Legs::default(), Vec::new());
    pass(
        &mut mirror,
        (INTERVAL, INTERVAL + 100 * MS),
        none,
        &mut kept,
    );
    let now_ns = INTERVAL + 200 * MS;
    mirror.raise_bound(45_000, now_ns);
    assert_eq!(mirror.committed_bound_ms(), 0);
    pass(&mut mirror, (now_ns, now_ns), Legs::one(1), &mut kept);
    assert_eq!(bounds(&mirror), [45_000, 0]);
    assert_eq!(mirror.committed_bound_ms(), 0, "leg 1 does not say it");
    kept.into_iter()
        .for_each(|it| end(&mut mirror, it, now_ns, &mut well));
    pass(&mut mirror, (now_ns, now_ns), none, &mut Vec::new());
    assert_eq!(
        (bounds(&mirror), mirror.committed_bound_ms()),
        ([45_000; 2], 45_000)
    );
    mirror.raise_bound(10_000, now_ns);
    assert_eq!(mirror.ownership.owner_at(mirror.now_ns).bound_ms, 45_000);
}

#[test]
fn t48_a_beat_that_was_taken_back_when_its_lease_ended_fails_nothing_that_waits() {
    let mut mirror = shared(0);
    let (none, mut kept) = (Legs::default(), Vec::new());
    pass(
        &mut mirror,
        (INTERVAL, 2 * INTERVAL - 100 * MS),
        none,
        &mut kept,
    );
    // Its record is read, and is not written.
    let mut heartbeats = Vec::new();
    mirror.handle_timeout(2 * INTERVAL);
    while let Some(output) = mirror.poll_output(2 * INTERVAL) {
        match output {
            Output::Superblock(ticket, _) => heartbeats.push(ticket),
            other => end(&mut mirror, other, 2 * INTERVAL, &mut well),
        }
    }
    assert_eq!(heartbeats.len(), 2);
    let now_ns = 4 * INTERVAL;
    assert!(pass(&mut mirror, (2 * INTERVAL, now_ns), none, &mut kept).is_empty());
    assert_eq!(mirror.lapsed(), Legs(3));
    let io = mirror.submit(write(), now_ns).unwrap();
    assert!(run(&mut mirror, now_ns, &mut well).is_empty());
    for ticket in heartbeats {
        mirror.handle_done(ticket, Outcome::PathError, now_ns);
    }
    let ended = pass(&mut mirror, (now_ns, 6 * INTERVAL), none, &mut kept);
    assert_eq!(ended, [(io, Outcome::Done)]);
    assert_eq!(mirror.legs.in_sync(), Legs(3), "nobody has left");
}
