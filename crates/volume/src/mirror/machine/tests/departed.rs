//! Rules by hand: what a leg gives after it has left, by a path that still leads to it (T13).
use super::super::*;
use super::rules::{BLOCK, MS, end, run, started, well};
use alloc::vec;

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
    let ticket = mirror.take(io, 0).unwrap();
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
