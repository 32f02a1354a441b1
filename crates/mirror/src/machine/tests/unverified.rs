//! Rules by hand: what the last leg in sync has failed, and may yet execute (T9).
use super::super::*;
use super::rules::{BLOCK, MS, run, started, well};
use alloc::vec;
use alloc::vec::Vec;

const FIRST: Range = Range {
    start: 0,
    end: BLOCK,
};
/// Until then it may be executed.
const LATE_NS: u64 = 5_000 * MS;

/// Leg 0 is the last one in sync; leg 1 has returned and is being rebuilt.
pub fn returned() -> Mirror {
    let mut mirror = started(2, Config::new(6));
    mirror.submit(Request::Write(FIRST, false), MS).unwrap();
    run(&mut mirror, MS, &mut well);
    mirror.leg_lost(1, 2 * MS);
    mirror.submit(Request::Write(FIRST, false), 2 * MS).unwrap();
    run(&mut mirror, 2 * MS, &mut well);
    mirror.leg_found(1, 0, 3 * MS);
    while !mirror.facts(1).unwrap().rebuilding {
        let output = mirror.poll_output(3 * MS).unwrap();
        super::rules::end(&mut mirror, output, 3 * MS, &mut well);
    }
    mirror
}

/// The same; leg 0 has failed a write, which may be late.
fn failed() -> Mirror {
    let mut mirror = returned();
    let io = mirror.submit(Request::Write(FIRST, false), 4 * MS).unwrap();
    let mut ended = Vec::new();
    while let Some(output) = mirror.poll_output(4 * MS) {
        match output {
            Output::Leg(ticket, _) if ticket.leg == 0 => {
                mirror.may_be_late(0, LATE_NS, 4 * MS);
                mirror.handle_done(ticket, Outcome::PathError, 4 * MS);
            }
            Output::Done(io, outcome) => ended.push((io, outcome)),
            output => super::rules::end(&mut mirror, output, 4 * MS, &mut well),
        }
    }
    assert_eq!(ended, vec![(io, Outcome::PathError)]);
    mirror
}

/// Requests to legs from one time to another, a millisecond after the other; the I/Os that
/// ended.
fn given(mirror: &mut Mirror, from_ns: u64, to_ns: u64) -> (Vec<Output>, Vec<(u32, Outcome)>) {
    let (mut given, mut ended) = (Vec::new(), Vec::new());
    for now_ns in (from_ns..to_ns).step_by(MS as usize) {
        mirror.handle_timeout(now_ns);
        let mut notes = |output: &Output, _| {
            given.push(*output);
            None
        };
        ended.extend(run(mirror, now_ns, &mut notes));
    }
    (given, ended)
}

#[test]
fn t09_nothing_is_changed_or_copied_until_the_last_leg_cannot_be_late() {
    let mut mirror = failed();
    let io = mirror.submit(Request::Write(FIRST, false), 5 * MS).unwrap();
    let until_ns = mirror.poll_timeout();
    let (early, ended) = given(&mut mirror, 5 * MS, LATE_NS);
    let heartbeats = |it: &Output| it.ticket().is_some_and(Ticket::is_heartbeat);
    assert!(early.iter().all(heartbeats), "{early:?}");
    assert_eq!((ended, until_ns), (vec![], Some(LATE_NS)));
    assert!(!mirror.facts(1).unwrap().in_sync);
    let (later, ended) = given(&mut mirror, LATE_NS, LATE_NS + 3_000 * MS);
    assert_eq!(ended, [(io, Outcome::Done)]);
    let copies = |it: &Output| matches!(it, Output::CopyRead(..));
    assert!(later.iter().any(copies), "{later:?}");
    assert!(mirror.facts(1).unwrap().in_sync);
    assert_eq!(mirror.held_until_ns(), None);
}

#[test]
fn t09_reads_and_flushes_go_on_while_the_last_leg_may_be_late() {
    let mut mirror = failed();
    assert_eq!(mirror.held_until_ns(), Some(LATE_NS));
    for request in [Request::Read(FIRST), Request::Flush] {
        mirror.submit(request, 5 * MS).unwrap();
    }
    let ended = run(&mut mirror, 5 * MS, &mut well);
    assert_eq!(ended.len(), 2, "{ended:?}");
    assert!(ended.iter().all(|it| it.1.is_done()), "{ended:?}");
}

#[test]
fn t09_a_stop_waits_until_the_last_leg_cannot_be_late() {
    let mut mirror = failed();
    mirror.stop(5 * MS);
    given(&mut mirror, 5 * MS, LATE_NS);
    assert!(!mirror.superblock().clean && mirror.superblock().owner.is_some());
    given(&mut mirror, LATE_NS, LATE_NS + 100 * MS);
    assert!(mirror.superblock().clean);
}

/// A page of intents that the last leg may write late would take away what a newer one says.
#[test]
fn t09_no_page_is_written_until_the_last_leg_cannot_be_late() {
    let mut mirror = returned();
    let at = |block: u64| Request::Write(Range::new(block << 20, BLOCK), false);
    let mut ids = vec![mirror.submit(at(1), 4 * MS).unwrap()];
    let mut pages = Vec::new();
    while let Some(output) = mirror.poll_output(4 * MS) {
        match output {
            Output::Pages(ticket, _) => pages.push(ticket),
            output => super::rules::end(&mut mirror, output, 4 * MS, &mut well),
        }
    }
    assert_eq!(pages.len(), 2);
    // Its bits wait until the page that is under way has ended, as it should.
    ids.push(mirror.submit(at(2), 4 * MS).unwrap());
    mirror.may_be_late(0, LATE_NS, 4 * MS);
    for ticket in pages {
        let outcome = match ticket.leg {
            0 => Outcome::PathError,
            _ => Outcome::Done,
        };
        mirror.handle_done(ticket, outcome, 4 * MS);
    }
    let (early, ended) = given(&mut mirror, 4 * MS, LATE_NS);
    let writes = |it: &Output| matches!(it, Output::Pages(..) | Output::Leg(..));
    assert!(!early.iter().any(writes), "{early:?}");
    assert!(ended.iter().all(|it| !it.1.is_done()), "{ended:?}");
    let (later, ended) = given(&mut mirror, LATE_NS, LATE_NS + 3_000 * MS);
    assert!(later.iter().any(|it| matches!(it, Output::Pages(..))));
    assert!(ended.contains(&(ids[1], Outcome::Done)), "{ended:?}");
}
