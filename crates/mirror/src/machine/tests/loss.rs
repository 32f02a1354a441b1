//! Rules by hand: what the last leg in sync has lost with a cache (T13).
use super::super::*;
use super::rules::{BLOCK, MS, end, run, started, well};
use super::unverified::returned;
use alloc::vec;
use alloc::vec::Vec;

const FIRST: Range = Range {
    start: 0,
    end: BLOCK,
};

/// Leg 0 has done a write that leg 1, which is being rebuilt, has yet, and fails a flush; whether
/// it was given the write again, and how both ended.
fn flush_fails(gave_up: bool, outcome: Outcome) -> (bool, Vec<(u32, Outcome)>, [u32; 2]) {
    let mut mirror = returned();
    let requests = [Request::Write(FIRST, false), Request::Flush];
    let ids = requests.map(|it| mirror.submit(it, 4 * MS).unwrap());
    let (mut of_write, mut of_flush) = (Vec::new(), Vec::new());
    while let Some(output) = mirror.poll_output(4 * MS) {
        match output {
            Output::Leg(ticket, Request::Flush) => of_flush.push(ticket),
            Output::Leg(ticket, Request::Write(..)) => of_write.push(ticket),
            output => end(&mut mirror, output, 4 * MS, &mut well),
        }
    }
    for tickets in [&mut of_write, &mut of_flush] {
        tickets.sort_unstable_by_key(|it| it.leg);
        assert_eq!(tickets.iter().map(|it| it.leg).collect::<Vec<_>>(), [0, 1]);
    }
    mirror.handle_done(of_write[0], Outcome::Done, 5 * MS);
    if gave_up {
        mirror.gives_up_writes(0, 5 * MS);
    }
    mirror.handle_done(of_flush[0], outcome, 5 * MS);
    mirror.handle_done(of_flush[1], Outcome::Done, 5 * MS);
    mirror.handle_done(of_write[1], Outcome::Done, 5 * MS);
    let mut again = false;
    let mut notes = |output: &Output, _| {
        let Output::Leg(ticket, Request::Write(..)) = output else {
            return None;
        };
        again |= ticket.leg == 0;
        None
    };
    let mut ended = run(&mut mirror, 5 * MS, &mut notes);
    // It may have what the other one has not any more.
    let facts = mirror.facts(1).unwrap();
    assert_eq!(facts.in_sync || facts.rebuilding, !again);
    ended.sort_unstable_by_key(|it| it.0 != ids[0]);
    (again, ended, ids)
}

#[test]
fn t13_of_a_write_that_has_not_ended_the_last_leg_does_again_what_it_may_have_lost() {
    let cases = [
        (true, Outcome::PathError, true),
        (false, Outcome::MediaError, true),
        // It could not be asked, and has lost nothing.
        (false, Outcome::PathError, false),
    ];
    for (gave_up, outcome, does) in cases {
        let (again, ended, ids) = flush_fails(gave_up, outcome);
        assert_eq!(ended, [(ids[0], Outcome::Done), (ids[1], outcome)]);
        assert_eq!(again, does, "{gave_up} {outcome:?}");
    }
}

/// A mirror of one leg, with a write that was not flushed.
fn alone() -> Mirror {
    let mut mirror = started(1, Config::new(6));
    mirror.submit(Request::Write(FIRST, false), MS).unwrap();
    assert_eq!(run(&mut mirror, MS, &mut well).len(), 1);
    mirror
}

fn flush(mirror: &mut Mirror, now_ns: u64, fails: bool) -> Outcome {
    if fails {
        mirror.gives_up_writes(0, now_ns);
    }
    flush_on(mirror, now_ns, fails)
}

fn flush_on(mirror: &mut Mirror, now_ns: u64, fails: bool) -> Outcome {
    let io = mirror.submit(Request::Flush, now_ns).unwrap();
    let mut answer = |output: &Output, _| {
        let flushes = matches!(output, Output::Leg(_, Request::Flush));
        (flushes && fails).then_some(Outcome::PathError)
    };
    let ended = run(mirror, now_ns, &mut answer);
    assert_eq!(ended.iter().map(|it| it.0).collect::<Vec<_>>(), [io]);
    ended[0].1
}

#[test]
fn t13_a_loss_is_told_until_somebody_hears_of_it() {
    let mut mirror = alone();
    assert_eq!(mirror.times_given_up(), 0);
    assert_eq!(flush(&mut mirror, 2 * MS, true), Outcome::PathError);
    assert_eq!(mirror.times_given_up(), 1);
    for is_acknowledged in [false, false, true] {
        mirror.flush_failed_for(is_acknowledged);
        let next = flush(&mut mirror, 3 * MS, false);
        assert_eq!(next.is_done(), is_acknowledged, "{next:?}");
    }
}

#[test]
fn t13_a_loss_that_a_flush_of_the_mirror_itself_was_told_is_told_to_a_user() {
    let mut mirror = alone();
    let mut ours = 0;
    for now_ns in (2..).map(|at| at * 100 * MS).take(1000) {
        mirror.handle_timeout(now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            match output {
                Output::Flush(ticket) if ours == 0 => {
                    ours += 1;
                    mirror.gives_up_writes(0, now_ns);
                    mirror.handle_done(ticket, Outcome::PathError, now_ns);
                }
                output => end(&mut mirror, output, now_ns, &mut well),
            }
        }
    }
    assert_eq!(ours, 1, "intents are forgotten after a flush");
    let later_ns = 200_000 * MS;
    // One that fails for want of a path, and that nobody hears of, tells nothing of it.
    assert_eq!(flush_on(&mut mirror, later_ns, true), Outcome::PathError);
    mirror.flush_failed_for(false);
    assert_eq!(flush(&mut mirror, later_ns, false), Outcome::PathError);
    mirror.flush_failed_for(true);
    assert_eq!(flush(&mut mirror, later_ns, false), Outcome::Done);
}

/// Both legs have a write that was not flushed, and have lost their controllers; leg 1 stays, and
/// nothing can be written to it.
fn both_lost() -> Mirror {
    let mut mirror = started(2, Config::new(6));
    mirror.submit(Request::Write(FIRST, false), MS).unwrap();
    assert_eq!(run(&mut mirror, MS, &mut well).len(), 1);
    mirror.leg_lost(0, 2 * MS);
    mirror.leg_lost(1, 2 * MS);
    let mut unwritten = |output: &Output, _| {
        let says = matches!(output, Output::Superblock(..));
        says.then_some(Outcome::PathError)
    };
    assert_eq!(run(&mut mirror, 2 * MS, &mut unwritten), vec![]);
    mirror
}

/// Reads a range from the leg that is left, which can't be written to.
fn read(mirror: &mut Mirror, range: Range, now_ns: u64) -> Vec<(u32, Outcome)> {
    let io = mirror.submit(Request::Read(range), now_ns).unwrap();
    let mut ended = Vec::new();
    while let Some(output) = mirror.poll_output(now_ns) {
        match output {
            Output::Read(of, ..) => {
                assert_eq!(of, io);
                let ticket = mirror.take(io, 1, Wait::Long).unwrap();
                mirror.handle_done(ticket, Outcome::Done, now_ns);
            }
            Output::Done(io, outcome) => ended.push((io, outcome)),
            Output::Superblock(ticket, _) => {
                mirror.handle_done(ticket, Outcome::PathError, now_ns);
            }
            output => end(mirror, output, now_ns, &mut well),
        }
    }
    ended
}

#[test]
fn t13_what_the_last_leg_gives_is_told_when_no_other_leg_comes_back_with_more() {
    for can_be_said in [true, false] {
        let mut mirror = both_lost();
        // Nothing was written there that was not flushed.
        let bytes = mirror.superblock().geometry.bytes;
        let elsewhere = Range::new(bytes - BLOCK, BLOCK);
        let ended = read(&mut mirror, elsewhere, 3 * MS);
        assert!(matches!(ended[..], [(_, Outcome::Done)]), "{ended:?}");
        assert_eq!(read(&mut mirror, FIRST, 3 * MS), vec![]);
        let mut answer = |output: &Output, _| {
            let says = matches!(output, Output::Superblock(..));
            (says && !can_be_said).then_some(Outcome::PathError)
        };
        let mut ended = Vec::new();
        for now_ns in (4..3000).map(|at| at * MS) {
            mirror.handle_timeout(now_ns);
            ended.extend(run(&mut mirror, now_ns, &mut answer));
        }
        let outcomes: Vec<_> = ended.iter().map(|it| it.1).collect();
        match can_be_said {
            true => assert_eq!(outcomes, [Outcome::Done]),
            false => assert_eq!(outcomes, [Outcome::PathError]),
        }
        // A leg that left is stale now, or still may come back.
        let ended = read(&mut mirror, FIRST, 3000 * MS);
        assert_eq!(ended.len(), usize::from(can_be_said), "{ended:?}");
    }
}

/// Data copied to a leg that is alone then, and not flushed, could be gone again after it was
/// read.
#[test]
fn t13_a_leg_alone_flushes_what_was_copied_to_it_before_it_is_read() {
    for fails in [0, 1, 2] {
        let mut mirror = super::rules::written(Config::new(6));
        let io = mirror.submit(Request::Write(FIRST, false), 2 * MS).unwrap();
        let mut copied = false;
        while !copied {
            let output = mirror.poll_output(2 * MS).unwrap();
            copied = matches!(output, Output::CopyWrite(..));
            let mut refuses = |output: &Output, leg| {
                let writes = matches!(output, Output::Leg(..)) && leg == 1;
                writes.then_some(Outcome::Reservation)
            };
            match output {
                Output::Done(of, outcome) => assert_eq!((of, outcome.is_done()), (io, false)),
                output => end(&mut mirror, output, 2 * MS, &mut refuses),
            }
        }
        mirror.leg_lost(0, 2 * MS);
        let read = mirror.submit(Request::Read(FIRST), 2 * MS).unwrap();
        let (mut flushes, mut ended) = (0, Vec::new());
        for now_ns in (2..3000).map(|at| at * MS) {
            mirror.handle_timeout(now_ns);
            let mut answer = |output: &Output, _| {
                let flush = matches!(output, Output::Flush(_));
                flushes += u32::from(flush);
                (flush && flushes <= fails).then_some(Outcome::PathError)
            };
            ended.extend(run(&mut mirror, now_ns, &mut answer));
            assert!(ended.is_empty() || flushes > 0, "it is not flushed");
        }
        let outcome = match fails {
            2 => Outcome::PathError,
            _ => Outcome::Done,
        };
        assert_eq!((ended, flushes), (vec![(read, outcome)], fails + 1));
    }
}
