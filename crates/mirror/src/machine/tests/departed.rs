//! Rules by hand: what a leg gives after it has left, by a path that still leads to it (T13), and
//! who does not wait for it.
use super::super::*;
use super::rules::{BLOCK, MS, end, run, started, well, written};
use alloc::vec;
use alloc::vec::Vec;

const FIRST: Range = Range {
    start: 0,
    end: BLOCK,
};

#[test]
fn t13_what_a_leg_reads_that_has_left_meanwhile_is_read_from_another() {
    let mut mirror = started(2, Config::new(6));
    mirror.submit(Request::Write(FIRST, false), MS).unwrap();
    run(&mut mirror, MS, &mut well);
    let io = mirror.submit(Request::Read(FIRST), 2 * MS).unwrap();
    let offered = mirror.poll_output(2 * MS);
    assert!(matches!(offered, Some(Output::Read(..))), "{offered:?}");
    let ticket = mirror.take(io, 0, Wait::Long).unwrap();
    // Its cache is lost with a controller; the read goes another path to it, and is done there.
    mirror.leg_lost(0, 2 * MS);
    mirror.handle_done(ticket, Outcome::Done, 2 * MS);
    let mut read_from = Vec::new();
    let mut notes = |output: &Output, leg| {
        if matches!(output, Output::Read(..)) {
            read_from.push(leg);
        }
        None
    };
    let ended = run(&mut mirror, 2 * MS, &mut notes);
    assert_eq!((ended, read_from), (vec![(io, Outcome::Done)], vec![1]));
    assert_eq!(mirror.facts(0).unwrap().errors, 0);
}

#[test]
fn t13_what_a_leg_gives_that_has_left_meanwhile_is_copied_to_nobody() {
    let mut mirror = started(3, Config::new(6));
    mirror.submit(Request::Write(FIRST, false), MS).unwrap();
    run(&mut mirror, MS, &mut well);
    mirror.leg_lost(2, 2 * MS);
    mirror.submit(Request::Write(FIRST, false), 2 * MS).unwrap();
    run(&mut mirror, 2 * MS, &mut well);
    mirror.leg_found(2, 0, 3 * MS);
    let mut sources = Vec::new();
    for at in 3..200 {
        let now_ns = at * MS;
        mirror.handle_timeout(now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            let copied = match output {
                Output::CopyRead(ticket, ..) => Some(ticket.leg),
                _ => None,
            };
            // The first one leaves while it is read.
            if sources.is_empty() && copied.is_some() {
                mirror.leg_lost(0, now_ns);
            }
            sources.extend(copied);
            end(&mut mirror, output, now_ns, &mut well);
        }
    }
    // Both pieces of the region are what leg 1 has.
    assert_eq!(sources, [0, 1, 1]);
    assert!(mirror.facts(2).unwrap().in_sync);
}

/// Ends all that is asked but what is on leg 0, which hangs; how the I/Os ended, and what it has.
fn run_but_first(mirror: &mut Mirror, now_ns: u64) -> (Vec<(u32, Outcome)>, Vec<Ticket>) {
    let (mut ended, mut hung) = (Vec::new(), Vec::new());
    while let Some(output) = mirror.poll_output(now_ns) {
        match (output.ticket(), output) {
            (Some(ticket), _) if ticket.leg == 0 => hung.push(ticket),
            (_, Output::Done(io, outcome)) => ended.push((io, outcome)),
            (_, output) => end(mirror, output, now_ns, &mut well),
        }
    }
    (ended, hung)
}

fn region(at: u64) -> Request {
    Request::Write(Range::new(at << 20, BLOCK), false)
}

#[test]
fn t09_t14_nobody_waits_for_what_a_leg_that_left_still_has_but_its_return() {
    let mut mirror = started(2, Config::new(6));
    mirror.submit(region(0), MS).unwrap();
    run(&mut mirror, MS, &mut well);
    // Of each kind leg 0 has something that does not end: a heartbeat, data, a page, a flush.
    let now_ns = mirror.poll_timeout().unwrap().max(6000 * MS);
    mirror.handle_timeout(now_ns);
    for request in [region(0), region(1), Request::Flush] {
        mirror.submit(request, now_ns).unwrap();
    }
    let (ended, hung) = run_but_first(&mut mirror, now_ns);
    assert_eq!((ended.len(), hung.len()), (0, 4), "{ended:?} {hung:?}");
    mirror.leg_lost(0, now_ns);
    let (ended, more) = run_but_first(&mut mirror, now_ns);
    assert!(more.is_empty() && ended.len() == 3, "{ended:?} {more:?}");
    assert!(ended.iter().all(|it| it.1.is_done()), "{ended:?}");
    assert_eq!(mirror.superblock().in_sync().collect::<Vec<_>>(), [1]);
    mirror.submit(region(2), now_ns).unwrap();
    let (ended, _) = run_but_first(&mut mirror, now_ns);
    assert_eq!(ended.len(), 1);
    // It is there again, and gets nothing before all of that has ended.
    mirror.leg_found(0, 0, now_ns);
    assert_eq!(mirror.facts(0).map(|it| it.in_flight), Some(4));
    for ticket in hung {
        let (_, given) = run_but_first(&mut mirror, now_ns);
        assert!(given.is_empty(), "{given:?}");
        mirror.handle_done(ticket, Outcome::Done, now_ns);
    }
    let mut now_ns = now_ns;
    for _ in 0..1000 {
        run(&mut mirror, now_ns, &mut well);
        now_ns += MS;
        mirror.handle_timeout(now_ns);
    }
    assert!(mirror.facts(0).unwrap().in_sync);
}

/// Legs that are compared, as fast as they go.
fn checked_fast(count: u8) -> Mirror {
    let config = Config {
        copies: 3,
        speed: Speed {
            floor: 1 << 40,
            ceiling: 1 << 40,
        },
        ..Config::new(6)
    };
    let mut mirror = started(count, config);
    mirror.submit(region(0), MS).unwrap();
    run(&mut mirror, MS, &mut well);
    mirror.check(false, 2 * MS);
    mirror
}

#[test]
fn t10_a_copy_that_hangs_holds_up_no_write_and_keeps_its_buffer() {
    let mut mirror = checked_fast(3);
    let (_, hung) = run_but_first(&mut mirror, 2 * MS);
    assert_eq!(hung.len(), 2, "both are read from leg 0: {hung:?}");
    // Behind what is compared.
    let io = mirror.submit(region(0), 2 * MS).unwrap();
    assert_eq!(run_but_first(&mut mirror, 2 * MS).0, []);
    mirror.leg_lost(0, 2 * MS);
    let ended = run_but_first(&mut mirror, 2 * MS).0;
    assert_eq!(ended, [(io, Outcome::Done)]);
    let copies = |mirror: &mut Mirror, from: u64| {
        let mut buffers = Vec::new();
        for at in from..from + 1000 {
            mirror.handle_timeout(at * MS);
            while let Some(output) = mirror.poll_output(at * MS) {
                if let Output::CopyRead(_, buffer, range) = output {
                    buffers.push((buffer, range.start));
                }
                end(mirror, output, at * MS, &mut well);
            }
        }
        buffers
    };
    // The one that was kept for that does what they had, too.
    let copied = copies(&mut mirror, 3);
    assert!(copied.iter().all(|it| it.0 == 2), "{copied:?}");
    let report = mirror.check_report();
    assert_eq!((report.bytes, report.complete), (4 << 20, true));
    assert_eq!(mirror.facts(0).map(|it| it.in_flight), Some(2));
    mirror.check(false, 1100 * MS);
    mirror.handle_done(hung[0], Outcome::Done, 1100 * MS);
    let copied = copies(&mut mirror, 1100);
    let free = |it: &(u8, u64)| it.0 != 1;
    assert!(copied.len() == 8 && copied.iter().all(free), "{copied:?}");
}

/// Regions to be copied, but for those of legs that hang: they are kept.
fn copy_but(mirror: &mut Mirror, now_ns: u64, hangs: Legs) -> Vec<Ticket> {
    let mut kept = Vec::new();
    while let Some(output) = mirror.poll_output(now_ns) {
        match output {
            Output::CopyRead(ticket, ..) | Output::Compare(ticket, ..) if hangs.has(ticket.leg) => {
                kept.push(ticket);
            }
            other => end(mirror, other, now_ns, &mut well),
        }
    }
    kept
}

#[test]
fn what_two_legs_that_hang_kept_from_being_compared_is_compared() {
    let mut mirror = checked_fast(4);
    let first = copy_but(&mut mirror, 2 * MS, Legs(3));
    assert_eq!(first.len(), 2);
    mirror.leg_lost(0, 2 * MS);
    let third = copy_but(&mut mirror, 2 * MS, Legs(3));
    assert_eq!(third.len(), 1, "{third:?}");
    // The second buffer is free before the first one.
    mirror.handle_done(first[1], Outcome::Done, 3 * MS);
    let second = copy_but(&mut mirror, 3 * MS, Legs(3));
    assert_eq!(second.len(), 1, "{second:?}");
    mirror.leg_lost(1, 4 * MS);
    for ticket in [first[0], third[0], second[0]] {
        mirror.handle_done(ticket, Outcome::Done, 4 * MS);
    }
    for at in 4..1000 {
        mirror.handle_timeout(at * MS);
        copy_but(&mut mirror, at * MS, Legs(3));
    }
    let report = mirror.check_report();
    assert_eq!((report.bytes, report.complete), (4 << 20, true));
    assert!(report.changed, "two of the four were not compared whole");
}

#[test]
fn a_check_ends_when_one_leg_is_left_and_says_so() {
    let mut mirror = checked_fast(2);
    let kept = copy_but(&mut mirror, 2 * MS, Legs(3));
    mirror.leg_lost(1, 3 * MS);
    for ticket in kept {
        mirror.handle_done(ticket, Outcome::Done, 3 * MS);
    }
    for at in 3..1000 {
        mirror.handle_timeout(at * MS);
        copy_but(&mut mirror, at * MS, Legs::default());
    }
    let report = mirror.check_report();
    assert_eq!(
        (report.bytes, report.complete, report.alone),
        (0, false, true)
    );
    assert!(!mirror.checks.is_running(), "it has ended");
}

/// A leg reports lost writes by one flush that fails: others that it was given behind it end
/// well, and say nothing of what was acknowledged before (T13).
#[test]
fn t13_a_leg_that_failed_one_flush_is_stale_before_another_is_acknowledged() {
    for late in [false, true] {
        let mut mirror = written(Config::new(6));
        let ids = [2 * MS; 2].map(|now_ns| mirror.submit(Request::Flush, now_ns).unwrap());
        let mut given = Vec::new();
        while let Some(output) = mirror.poll_output(2 * MS) {
            if let Output::Leg(ticket, Request::Flush) = output {
                given.push(ticket);
            }
        }
        // The other leg is slow with the flush that leg 0 failed, and does the second one at once.
        let of = |io, leg| {
            let mut all = given.iter();
            *all.find(|it| it.io() == Some(io) && it.leg == leg).unwrap()
        };
        let mut ends = vec![
            (of(ids[0], 0), Outcome::PathError),
            (of(ids[1], 0), Outcome::Done),
            (of(ids[1], 1), Outcome::Done),
        ];
        // Or the failure comes when leg 0 has done the second one already.
        if late {
            ends.swap(0, 1);
        }
        for (ticket, outcome) in ends {
            mirror.handle_done(ticket, outcome, 3 * MS);
        }
        let mut said = Vec::new();
        while let Some(output) = mirror.poll_output(3 * MS) {
            match output {
                Output::Superblock(ticket, _) => said.push(ticket),
                Output::Done(..) => panic!("leg 0 is in sync by what leg 1 says"),
                _ => {}
            }
        }
        assert_eq!(said.iter().map(|it| it.leg).collect::<Vec<_>>(), [1]);
        mirror.handle_done(said[0], Outcome::Done, 4 * MS);
        mirror.handle_done(of(ids[0], 1), Outcome::Done, 4 * MS);
        let mut ended = run(&mut mirror, 4 * MS, &mut well);
        ended.sort_unstable_by_key(|it| it.0);
        let mut all = ids.map(|io| (io, Outcome::Done));
        all.sort_unstable_by_key(|it| it.0);
        assert_eq!(ended, all);
    }
}
