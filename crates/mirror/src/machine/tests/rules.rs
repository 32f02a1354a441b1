//! Rules by hand: what one leg says to one thing.
use super::super::super::assembly::tests::legs;
use super::super::super::assembly::{Wishes, assemble};
use super::super::super::copies::Chosen;
use super::super::super::ownership::{Ownership, Terms};
use super::super::super::{Id, Label};
use super::super::*;
use crate::bitmap::Bitmap;
use alloc::vec;
use alloc::vec::Vec;
use crc_fast::crc32_iscsi;

pub const BLOCK: u64 = 256 << 10;
pub const MS: u64 = 1_000_000;

pub fn started(count: u8, config: Config) -> Mirror {
    started_on(count, config, Terms::default(), 0)
}

pub fn started_on(count: u8, config: Config, terms: Terms, now_ns: u64) -> Mirror {
    started_with(legs(count), &[], config, terms, now_ns)
}

/// Us.
pub fn owner() -> Owner {
    Owner {
        run: Id([5; 16]),
        host: Id([6; 16]),
        label: Label::default(),
        since_s: 0,
        heartbeat_s: 0,
        bound_ms: 0,
    }
}

pub fn started_with(
    superblocks: Vec<Superblock>,
    late_until_ns: &[u64],
    config: Config,
    terms: Terms,
    now_ns: u64,
) -> Mirror {
    let given: Vec<_> = superblocks.iter().copied().map(Ok).collect();
    let assembly = assemble(&given, Wishes::default()).unwrap();
    let chosen = |superblock| {
        Ok(Chosen {
            superblock,
            copy: 0,
            other: Ok(0),
        })
    };
    let given: Vec<_> = superblocks.into_iter().map(chosen).collect();
    let start = Start {
        assembly: &assembly,
        late_until_ns,
        given: &given,
        lineage: 2,
        terms,
    };
    Mirror::start(&start, Ownership::acquired(owner()), config, now_ns)
}

/// Answer of a leg to an output; `None`: done.
pub type Answer<'a> = &'a mut dyn FnMut(&Output, u8) -> Option<Outcome>;

/// Ends all that is asked until nothing is; how the I/Os ended.
pub fn run(mirror: &mut Mirror, now_ns: u64, answer: Answer<'_>) -> Vec<(u32, Outcome)> {
    let mut ended = Vec::new();
    while let Some(output) = mirror.poll_output(now_ns) {
        match output {
            Output::Done(io, outcome) => ended.push((io, outcome)),
            other => end(mirror, other, now_ns, answer),
        }
    }
    ended
}

/// The same where all goes well; and in which order pages and data were written.
pub fn run_in_order(mirror: &mut Mirror, now_ns: u64) -> (Vec<(u32, Outcome)>, Vec<&'static str>) {
    let mut order = vec![];
    let mut notes = |output: &Output, _| {
        match output {
            Output::Pages(..) => order.push("page"),
            Output::Leg(..) => order.push("data"),
            _ => {}
        }
        None
    };
    let ended = run(mirror, now_ns, &mut notes);
    (ended, order)
}

/// Ends a read of a leg's superblocks: as they were committed last, with the owner's record.
fn read_as_committed(mirror: &mut Mirror, ticket: Ticket, now_ns: u64) {
    let said = mirror.legs[ticket.leg].committed;
    let owner = Some(*mirror.ownership.owner());
    let found = Ok(Chosen {
        superblock: Superblock { owner, ..said },
        copy: 0,
        other: Ok(0),
    });
    mirror.handle_superblocks(ticket, &found, now_ns);
}

/// Ends what is asked.
pub fn end(mirror: &mut Mirror, output: Output, now_ns: u64, answer: Answer<'_>) {
    let ticket = match output {
        Output::Leg(ticket, _)
        | Output::Flush(ticket)
        | Output::CopyRead(ticket, ..)
        | Output::CopyWrite(ticket, ..)
        | Output::Pages(ticket, _)
        | Output::Superblock(ticket, _) => ticket,
        Output::Read(io, _, from) => mirror.take(io, from.first().unwrap(), Wait::Long).unwrap(),
        Output::Compare(ticket, ..) => return mirror.handle_compared(ticket, None, now_ns),
        Output::ReadPages(ticket, _) => {
            let page = Bitmap::new(4).encode(0, Id([1; 16]), crc32_iscsi);
            return mirror.handle_pages(ticket, &page, crc32_iscsi, now_ns);
        }
        Output::ReadSuperblocks(ticket) => {
            return read_as_committed(mirror, ticket, now_ns);
        }
        Output::Done(..) | Output::News(_) => return,
    };
    let outcome = answer(&output, ticket.leg).unwrap_or(Outcome::Done);
    mirror.handle_done(ticket, outcome, now_ns);
}

pub fn well(_: &Output, _: u8) -> Option<Outcome> {
    None
}

#[test]
fn no_io_allocates() {
    let config = Config {
        clear_after_ns: MS,
        ..Config::new(6)
    };
    let mut mirror = started(2, config);
    let mut round = |now_ns: u64| {
        let at = Range::new((now_ns / MS % 4) << 20, BLOCK);
        for request in [Request::Write(at, false), Request::Read(at), Request::Flush] {
            assert!(mirror.submit(request, now_ns).is_ok());
            while let Some(output) = mirror.poll_output(now_ns) {
                match output {
                    Output::Read(io, _, from) => {
                        let ticket = mirror.take(io, from.first().unwrap(), Wait::Long).unwrap();
                        mirror.handle_done(ticket, Outcome::Done, now_ns);
                    }
                    Output::ReadPages(ticket, _) => {
                        let page = Bitmap::new(4).encode(0, Id([1; 16]), crc32_iscsi);
                        mirror.handle_pages(ticket, &page, crc32_iscsi, now_ns);
                    }
                    Output::Leg(ticket, _)
                    | Output::Flush(ticket)
                    | Output::Pages(ticket, _)
                    | Output::Superblock(ticket, _) => {
                        mirror.handle_done(ticket, Outcome::Done, now_ns);
                    }
                    Output::ReadSuperblocks(ticket) => {
                        read_as_committed(&mut mirror, ticket, now_ns);
                    }
                    Output::Done(_, outcome) => assert_eq!(outcome, Outcome::Done),
                    other => panic!("{other:?}"),
                }
            }
        }
        mirror.handle_timeout(now_ns);
    };
    (1..20).for_each(|at| round(at * MS));
    let counted = allocation_counter::measure(|| (20..200).for_each(|at| round(at * MS)));
    assert_eq!(counted.count_total, 0);
}

#[test]
fn t45_the_last_leg_in_sync_stays_and_its_errors_are_the_callers() {
    let mut mirror = started(2, Config::new(6));
    let mut fails = |request, now_ns| {
        mirror.submit(request, now_ns).unwrap();
        let mut bad = |output: &Output, _| match output {
            Output::Leg(..) | Output::Read(..) => Some(Outcome::MediaError),
            _ => None,
        };
        let ended = run(&mut mirror, now_ns, &mut bad);
        (ended[0].1, mirror.superblock().in_sync().count())
    };
    let block = Range::new(0, BLOCK);
    assert_eq!(fails(Request::Read(block), MS), (Outcome::MediaError, 2));
    let write = Request::Write(block, false);
    // None of them is worse than the other: both stay.
    assert_eq!(fails(write, 2 * MS), (Outcome::MediaError, 2));
    assert_eq!(fails(Request::Flush, 3 * MS), (Outcome::MediaError, 1));
}

/// All outputs that wait, as tickets with whether each is a page.
fn waiting(mirror: &mut Mirror) -> Vec<(Ticket, bool)> {
    let mut tickets = Vec::new();
    while let Some(output) = mirror.poll_output(MS) {
        match output {
            Output::Leg(ticket, _) | Output::Superblock(ticket, _) => tickets.push((ticket, false)),
            Output::Pages(ticket, _) => tickets.push((ticket, true)),
            _ => {}
        }
    }
    tickets
}

#[test]
fn t14_an_intent_that_the_last_leg_failed_while_another_left_is_on_it_before_data_are() {
    let mut mirror = started(2, Config::new(6));
    let write = |region: u64| Request::Write(Range::new(region << 20, BLOCK), false);
    let first = mirror.submit(write(0), MS).unwrap();
    assert_eq!(run(&mut mirror, MS, &mut well), [(first, Outcome::Done)]);
    // One leg has the page of the second write, and leaves with the third one.
    let second = mirror.submit(write(1), MS).unwrap();
    let pages = waiting(&mut mirror);
    assert!(pages.len() == 2 && pages.iter().all(|it| it.1), "{pages:?}");
    let third = mirror.submit(write(0), MS).unwrap();
    for (ticket, _) in waiting(&mut mirror) {
        let outcome = match ticket.leg {
            1 => Outcome::PathError,
            _ => Outcome::Done,
        };
        mirror.handle_done(ticket, outcome, MS);
    }
    for (ticket, _) in pages {
        let outcome = match ticket.leg {
            0 => Outcome::MediaError,
            _ => Outcome::Done,
        };
        mirror.handle_done(ticket, outcome, MS);
    }
    let mut data = 0;
    let mut counts = |output: &Output, _| {
        data += u32::from(matches!(output, Output::Leg(..)));
        None
    };
    let mut ended = run(&mut mirror, MS, &mut counts);
    ended.sort_by_key(|it| it.0);
    let mut expected = [(second, Outcome::MediaError), (third, Outcome::Done)];
    expected.sort_by_key(|it| it.0);
    assert_eq!((ended.as_slice(), data), (&expected[..], 0));
    // The same write again: its page is written anew, before the data.
    let again = mirror.submit(write(1), MS).unwrap();
    let (ended, order) = run_in_order(&mut mirror, MS);
    assert_eq!(ended, [(again, Outcome::Done)]);
    assert_eq!(order, ["page", "data"]);
}

#[test]
fn t35_a_reservation_on_one_leg_fails_the_write_and_what_differs_is_made_alike() {
    let mut mirror = started(2, Config::new(6));
    let write = Request::Write(Range::new(0, BLOCK), false);
    mirror.submit(write, MS).unwrap();
    let mut copied = vec![];
    let mut refuses = |output: &Output, leg| match output {
        Output::Leg(..) if leg == 1 => Some(Outcome::Reservation),
        Output::CopyWrite(_, _, range) => {
            copied.push((leg, range.start, range.end));
            None
        }
        _ => None,
    };
    let ended = run(&mut mirror, MS, &mut refuses);
    assert_eq!(ended, [(0, Outcome::Reservation)]);
    assert_eq!(
        (mirror.superblock().in_sync().count(), mirror.diverged()),
        (2, 0)
    );
    assert_eq!(copied, [(1, 0, 512 << 10), (1, 512 << 10, 1 << 20)]);
}

#[test]
fn t34_deallocation_is_passed_on_only_where_all_legs_read_zeroes_then() {
    for (deallocate, legs) in [(false, 0), (true, 2)] {
        let config = Config {
            deallocate,
            ..Config::new(6)
        };
        let mut mirror = started(2, config);
        let mut given = 0;
        let mut counts = |output: &Output, _| {
            given += u32::from(matches!(output, Output::Leg(..)));
            None
        };
        let request = Request::Deallocate(Range::new(0, BLOCK));
        mirror.submit(request, MS).unwrap();
        assert_eq!(run(&mut mirror, MS, &mut counts), [(0, Outcome::Done)]);
        assert_eq!(given, legs);
        mirror
            .submit(Request::Zero(Range::new(0, BLOCK)), MS)
            .unwrap();
        assert_eq!(run(&mut mirror, MS, &mut well), [(0, Outcome::Done)]);
    }
}

#[test]
fn t34_what_not_all_legs_can_do_ends_without_any_also_what_waits() {
    let mut mirror = started(2, Config::new(6));
    mirror.set_abilities(true, true);
    let range = Range::new(0, BLOCK);
    // Its intents are on their way.
    mirror.submit(Request::Deallocate(range), MS).unwrap();
    mirror
        .submit(Request::Zero(Range::new(BLOCK, BLOCK)), MS)
        .unwrap();
    mirror.set_abilities(false, false);
    let mut given = 0;
    let mut counts = |output: &Output, _| {
        given += u32::from(matches!(output, Output::Leg(..)));
        None
    };
    let mut ended = run(&mut mirror, MS, &mut counts);
    ended.sort_by_key(|it| it.0);
    assert_eq!(ended, [(0, Outcome::Done), (1, Outcome::Unsupported)]);
    mirror.submit(Request::Zero(range), MS).unwrap();
    let ended = run(&mut mirror, MS, &mut counts);
    assert!(ended.iter().all(|it| it.1 == Outcome::Unsupported) && ended.len() == 1);
    mirror.submit(Request::Write(range, false), MS).unwrap();
    let ended = run(&mut mirror, MS, &mut counts);
    assert!(ended.iter().all(|it| it.1.is_done()) && ended.len() == 1);
    assert_eq!(given, 2, "only the write, on both");
}

#[test]
fn t48_a_foreign_owner_stops_all_at_the_next_beat() {
    let mut mirror = started(2, Config::new(6));
    let write = Request::Write(Range::new(0, BLOCK), false);
    mirror.submit(write, MS).unwrap();
    run(&mut mirror, MS, &mut well);
    let now_ns = mirror.poll_timeout().unwrap().max(6000 * MS);
    mirror.handle_timeout(now_ns);
    let mut foreign = false;
    while let Some(output) = mirror.poll_output(now_ns) {
        match output {
            Output::ReadSuperblocks(ticket) => {
                let mut superblock = mirror.legs[ticket.leg].committed;
                if let Some(owner) = &mut superblock.owner {
                    owner.run = Id([77; 16]);
                }
                let other = Ok(0);
                let found = Chosen {
                    superblock,
                    copy: 0,
                    other,
                };
                mirror.handle_superblocks(ticket, &Ok(found), now_ns);
            }
            Output::News(News::LostOwnership) => foreign = true,
            Output::Flush(ticket) | Output::Pages(ticket, _) => {
                mirror.handle_done(ticket, Outcome::Done, now_ns);
            }
            Output::Superblock(..) => panic!("somebody else has it"),
            _ => {}
        }
    }
    assert!(foreign);
    let run_of = mirror.foreign_owner().map(|it| it.run);
    assert_eq!(run_of, Some(Id([77; 16])));
    mirror.submit(write, now_ns).unwrap();
    assert_eq!(
        run(&mut mirror, now_ns, &mut well),
        [(0, Outcome::Reservation)]
    );
}

/// A mirror that was written, so that its lineage has begun.
pub fn written(config: Config) -> Mirror {
    let mut mirror = started(2, config);
    let write = Request::Write(Range::new(0, BLOCK), false);
    mirror.submit(write, MS).unwrap();
    assert_eq!(run(&mut mirror, MS, &mut well).len(), 1);
    mirror
}

#[test]
fn t05_what_a_leg_could_not_read_is_read_again_and_rewritten_behind_a_newer_write() {
    let mut mirror = written(Config::new(6));
    let range = Range::new(0, BLOCK);
    let read = mirror.submit(Request::Read(range), 2 * MS).unwrap();
    let Some(Output::Read(_, _, from)) = mirror.poll_output(2 * MS) else {
        panic!("it is offered");
    };
    assert_eq!(from, Legs(3));
    let bad = mirror.take(read, 0, Wait::Long).unwrap();
    mirror.handle_done(bad, Outcome::MediaError, 2 * MS);
    let Some(Output::Read(_, _, from)) = mirror.poll_output(2 * MS) else {
        panic!("another leg has it");
    };
    assert_eq!(from, Legs::one(1));
    let good = mirror.take(read, 1, Wait::Long).unwrap();
    // A newer write to the same place comes before that has ended.
    let newer = mirror.submit(Request::Write(range, false), 2 * MS).unwrap();
    let writes = waiting(&mut mirror);
    assert_eq!(writes.len(), 2);
    mirror.handle_done(good, Outcome::Done, 2 * MS);
    assert_eq!(
        mirror.poll_output(2 * MS),
        Some(Output::Done(read, Outcome::Done))
    );
    assert_eq!(
        mirror.poll_output(2 * MS),
        None,
        "the mending waits for the write"
    );
    for (ticket, _) in writes {
        mirror.handle_done(ticket, Outcome::Done, 2 * MS);
    }
    let mut order = vec![];
    let mut notes = |output: &Output, leg| {
        match output {
            Output::CopyRead(_, _, range) => order.push(("read", leg, *range)),
            Output::CopyWrite(_, _, range) => order.push(("written", leg, *range)),
            _ => {}
        }
        None
    };
    let ended = run(&mut mirror, 2 * MS, &mut notes);
    assert_eq!(ended, [(newer, Outcome::Done)]);
    assert_eq!(order, [("read", 1, range), ("written", 0, range)]);
    assert_eq!(
        mirror.facts(0).map(|it| (it.errors, it.repaired)),
        Some((1, 1))
    );
}

#[test]
fn b7_a_leg_leaves_after_too_many_errors_and_the_last_one_does_not() {
    let config = Config {
        errors_max: 3,
        ..Config::new(6)
    };
    let mut mirror = written(config);
    let reads = |mirror: &mut Mirror, bad: u16| {
        let mut answer = |output: &Output, leg: u8| {
            let read = matches!(output, Output::Read(..) | Output::CopyRead(..));
            (read && Legs(bad).has(leg)).then_some(Outcome::MediaError)
        };
        mirror
            .submit(Request::Read(Range::new(0, BLOCK)), 2 * MS)
            .unwrap();
        run(mirror, 2 * MS, &mut answer)[0].1
    };
    for _ in 0..3 {
        assert_eq!(reads(&mut mirror, 1), Outcome::Done);
        assert!(mirror.may_read(0));
    }
    assert_eq!(reads(&mut mirror, 1), Outcome::Done);
    assert!(!mirror.may_read(0) && mirror.superblock().in_sync().eq([1]));
    for _ in 0..10 {
        assert_eq!(reads(&mut mirror, 3), Outcome::MediaError);
    }
    assert!(mirror.may_read(1));
}

/// Runs a check in which leg 1 differs in this piece of a region; what was rewritten.
fn checked(mirror: &mut Mirror, repair: bool) -> Vec<(u8, Range)> {
    let mut rewritten = Vec::new();
    mirror.check(repair, 2 * MS);
    for at in 0..100 {
        let now_ns = (10 + at * 100) * MS;
        while let Some(output) = mirror.poll_output(now_ns) {
            match output {
                Output::CopyRead(ticket, ..) => mirror.handle_done(ticket, Outcome::Done, now_ns),
                Output::CopyWrite(ticket, _, range) => {
                    rewritten.push((ticket.leg, range));
                    mirror.handle_done(ticket, Outcome::Done, now_ns);
                }
                Output::Compare(ticket, _, range) => {
                    let differs = (range.start == 1 << 20).then(|| Range::new(range.start + 8, 8));
                    mirror.handle_compared(ticket, differs, now_ns);
                }
                Output::Flush(ticket)
                | Output::Pages(ticket, _)
                | Output::Superblock(ticket, _) => {
                    mirror.handle_done(ticket, Outcome::Done, now_ns);
                }
                _ => {}
            }
        }
        if let Some(at_ns) = mirror.poll_timeout() {
            mirror.handle_timeout(at_ns.max(now_ns));
        }
    }
    rewritten
}

#[test]
fn a_check_tells_what_differs_and_a_repair_writes_what_the_first_leg_has() {
    let mut mirror = written(Config::new(6));
    assert_eq!(checked(&mut mirror, false), []);
    let report = mirror.check_report();
    assert!(report.complete && !report.changed);
    assert_eq!(
        (report.bytes, report.differences, report.repaired),
        (4 << 20, 1, 0)
    );
    assert_eq!(report.first[0], Some((1, (1 << 20) + 8, (1 << 20) + 16)));
    let piece = Range::new(1 << 20, 512 << 10);
    assert_eq!(checked(&mut mirror, true), [(1, piece)]);
    assert_eq!(mirror.check_report().repaired, 1);
}

#[test]
fn a_check_that_waits_reads_nothing_and_goes_on_where_it_was() {
    let mut mirror = written(Config::new(6));
    mirror.check(false, 2 * MS);
    mirror.pause_check(true, 2 * MS);
    assert_eq!(mirror.poll_output(2 * MS), None);
    assert!(mirror.check_report().paused);
    mirror.pause_check(false, 3 * MS);
    assert!(!mirror.check_report().paused);
    assert!(matches!(
        mirror.poll_output(3 * MS),
        Some(Output::CopyRead(..))
    ));
}

#[test]
fn t14_legs_that_fail_an_event_together_leave_by_one_event() {
    // Found by world 9174: the event after it called one of them in sync, which was two behind.
    let mut mirror = started(4, Config::new(6));
    let write = Request::Write(Range::new(0, BLOCK), false);
    mirror.submit(write, MS).unwrap();
    let mut said: Vec<(u64, Vec<u8>)> = Vec::new();
    while let Some(output) = mirror.poll_output(MS) {
        let (ticket, outcome) = match output {
            Output::Superblock(ticket, _) => {
                let state = mirror.superblock();
                let event = state.event;
                said.push((event, state.in_sync().collect()));
                match ticket.leg {
                    1 | 3 if event == 2 => (ticket, Outcome::PathError),
                    _ => (ticket, Outcome::Done),
                }
            }
            Output::Leg(ticket, _) | Output::Pages(ticket, _) => (ticket, Outcome::Done),
            Output::ReadPages(ticket, _) => {
                let page = Bitmap::new(4).encode(0, Id([1; 16]), crc32_iscsi);
                mirror.handle_pages(ticket, &page, crc32_iscsi, MS);
                continue;
            }
            Output::ReadSuperblocks(ticket) => {
                let said = mirror.legs[ticket.leg].committed;
                let owner = Some(*mirror.ownership.owner());
                let found = Chosen {
                    superblock: Superblock { owner, ..said },
                    copy: 0,
                    other: Ok(0),
                };
                mirror.handle_superblocks(ticket, &Ok(found), MS);
                continue;
            }
            _ => continue,
        };
        mirror.handle_done(ticket, outcome, MS);
    }
    assert!(said.iter().any(|it| it.0 > 2));
    for (event, in_sync) in said {
        let expected: &[u8] = if event <= 2 { &[0, 1, 2, 3] } else { &[0, 2] };
        assert_eq!((event, in_sync.as_slice()), (event, expected));
    }
}

#[test]
fn t11_the_number_of_an_io_is_anothers_only_when_its_end_was_told() {
    let mut mirror = written(Config::new(2));
    // Nothing is to be done for these: they end at once.
    let trim = Request::Deallocate(Range::new(0, BLOCK));
    let first = mirror.submit(trim, 0).unwrap();
    let second = mirror.submit(trim, 0).unwrap();
    assert_ne!(first, second);
    assert!(mirror.submit(trim, 0).is_err(), "no end was told");
    let ended = run(&mut mirror, 0, &mut well);
    assert_eq!(ended, [(first, Outcome::Done), (second, Outcome::Done)]);
    assert!(mirror.submit(trim, 0).is_ok());
}

#[test]
fn t04_a_read_that_no_leg_may_serve_any_more_ends() {
    let mut mirror = written(Config::new(2));
    let io = mirror
        .submit(Request::Read(Range::new(0, BLOCK)), 0)
        .unwrap();
    assert!(matches!(mirror.poll_output(0), Some(Output::Read(it, ..)) if it == io));
    let ticket = mirror.take(io, 0, Wait::Long).unwrap();
    mirror.handle_done(ticket, Outcome::MediaError, 0);
    // The other one was offered, and leaves before it is taken.
    mirror.leg_lost(1, 0);
    assert!(matches!(mirror.poll_output(0), Some(Output::Read(it, ..)) if it == io));
    assert!(mirror.readers(io).is_empty());
    mirror.no_reader(io);
    let ended = run(&mut mirror, 0, &mut well);
    assert_eq!(ended, [(io, Outcome::MediaError)]);
    mirror.no_reader(io);
    assert_eq!(run(&mut mirror, 0, &mut well), [], "ended before");
}

#[test]
fn a_ceiling_below_the_floor_is_no_ceiling() {
    let speed = Speed {
        floor: 1 << 20,
        ceiling: 1,
    };
    let config = Config {
        speed,
        ..Config::new(2)
    };
    let mirror = started(2, config);
    assert_eq!(mirror.copies.pace.rate(), 1 << 20);
}
