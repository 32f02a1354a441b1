//! Rules by hand: who can't be written what others have is not in sync (T5, T14).
use super::super::*;
use super::rules::{BLOCK, MS, end, run, started, well, written};
use alloc::vec;
use alloc::vec::Vec;

const FIRST: Range = Range {
    start: 0,
    end: BLOCK,
};

/// Copies to this leg fail.
fn fails(to: u8) -> impl FnMut(&Output, u8) -> Option<Outcome> {
    move |output, leg| {
        let written = matches!(output, Output::CopyWrite(..));
        // Not for the medium's sake: that would be recorded.
        (written && leg == to).then_some(Outcome::NoSpace)
    }
}

fn in_sync(mirror: &Mirror) -> Vec<u8> {
    (0..4)
        .filter(|&leg| mirror.facts(leg).is_some_and(|it| it.in_sync))
        .collect()
}

#[test]
fn t14_a_leg_that_can_not_be_made_alike_leaves() {
    for (legs, bad, stay) in [(2, 1, vec![0]), (3, 1, vec![0, 2])] {
        let mut mirror = started(legs, Config::new(6));
        mirror.submit(Request::Write(FIRST, false), MS).unwrap();
        // One refuses it, so what may differ is made alike.
        let mut failing = fails(bad);
        let mut answer = |output: &Output, leg| match output {
            Output::Leg(..) if leg == bad => Some(Outcome::Reservation),
            other => failing(other, leg),
        };
        let ended = run(&mut mirror, MS, &mut answer);
        assert_eq!(ended, [(0, Outcome::Reservation)]);
        assert_eq!(in_sync(&mirror), stay);
        assert_eq!(
            mirror.superblock().in_sync().collect::<Vec<_>>(),
            stay,
            "that is said"
        );
        assert_eq!(mirror.diverged(), 0);
    }
}

#[test]
fn t05_a_leg_that_can_not_be_mended_leaves_and_is_not_counted_as_mended() {
    let mut mirror = started(2, Config::new(6));
    mirror.submit(Request::Write(FIRST, false), MS).unwrap();
    run(&mut mirror, MS, &mut well);
    mirror.submit(Request::Read(FIRST), 2 * MS).unwrap();
    let mut failing = fails(0);
    let mut answer = |output: &Output, leg| match output {
        Output::Read(..) if leg == 0 => Some(Outcome::MediaError),
        other => failing(other, leg),
    };
    let ended = run(&mut mirror, 2 * MS, &mut answer);
    assert_eq!(ended[0].1, Outcome::Done);
    assert_eq!(in_sync(&mirror), [1]);
    assert_eq!(mirror.facts(0).unwrap().repaired, 0);
}

#[test]
fn what_is_read_for_a_check_is_known_as_that_and_what_is_read_for_a_leg_is_not() {
    let mut mirror = started(2, Config::new(6));
    mirror.submit(Request::Write(FIRST, false), MS).unwrap();
    run(&mut mirror, MS, &mut well);
    let seen = |mirror: &mut Mirror| {
        let mut seen = None;
        for at in 3..2000 {
            mirror.handle_timeout(at * MS);
            while let Some(output) = mirror.poll_output(at * MS) {
                if let Output::CopyRead(_, copy, _) = output {
                    seen = Some(mirror.is_checked_by(copy));
                }
                end(mirror, output, at * MS, &mut well);
            }
        }
        seen
    };
    mirror.check(false, 2 * MS);
    assert_eq!(seen(&mut mirror), Some(true));
    mirror.leg_lost(1, 2000 * MS);
    run(&mut mirror, 2000 * MS, &mut well);
    mirror.leg_found(1, 0, 2000 * MS);
    assert_eq!(seen(&mut mirror), Some(false));
}

#[test]
fn what_a_repair_could_not_rewrite_is_not_counted_and_that_leg_leaves() {
    let mut mirror = started(2, Config::new(6));
    mirror.submit(Request::Write(FIRST, false), MS).unwrap();
    run(&mut mirror, MS, &mut well);
    mirror.check(true, 2 * MS);
    let mut failing = fails(1);
    let mut now_ns = 2 * MS;
    for _ in 0..1000 {
        while let Some(output) = mirror.poll_output(now_ns) {
            match output {
                Output::Compare(ticket, _, range) if range.start == 0 => {
                    mirror.handle_compared(ticket, Some(range), now_ns);
                }
                other => end(&mut mirror, other, now_ns, &mut failing),
            }
        }
        now_ns += MS;
        mirror.handle_timeout(now_ns);
    }
    let report = mirror.check_report();
    assert_eq!((report.differences, report.repaired), (1, 0), "{report:?}");
    assert_eq!(in_sync(&mirror), [0]);
}

/// A leg of several paths sends a write again that was partly done: what overlaps it waits for all
/// legs, or the repeated one would come over what was acknowledged since.
#[test]
fn t15_while_a_leg_may_repeat_a_write_none_that_overlaps_is_under_way() {
    let mut mirror = written(Config::new(6));
    let writes = |mirror: &mut Mirror| {
        let mut asked = vec![];
        while let Some(output) = mirror.poll_output(2 * MS) {
            if let Output::Leg(ticket, Request::Write(range, _)) = output {
                asked.push((ticket, range));
            }
        }
        asked
    };
    mirror.submit(Request::Write(FIRST, false), 2 * MS).unwrap();
    let first = writes(&mut mirror);
    assert_eq!(first.len(), 2);
    let (quick, slow) = (first[0].0, first[1].0);
    mirror.handle_done(quick, Outcome::Done, 2 * MS);
    let half = Range::new(BLOCK / 2, BLOCK);
    let aside = Range::new(2 * BLOCK, BLOCK);
    for range in [half, aside] {
        mirror.submit(Request::Write(range, false), 2 * MS).unwrap();
    }
    let meanwhile = writes(&mut mirror);
    let ranges: Vec<_> = meanwhile.iter().map(|it| it.1).collect();
    assert_eq!(
        ranges,
        [aside, aside],
        "what overlaps waits, also for the leg that is done"
    );
    mirror.handle_done(slow, Outcome::Done, 3 * MS);
    let after = writes(&mut mirror);
    assert_eq!(
        after.iter().map(|it| it.1).collect::<Vec<_>>(),
        [half, half]
    );
    for (ticket, _) in [meanwhile, after].concat() {
        mirror.handle_done(ticket, Outcome::Done, 3 * MS);
    }
    assert_eq!(run(&mut mirror, 3 * MS, &mut well).len(), 2);
}
