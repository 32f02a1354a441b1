//! Rules by hand: what must come to an end, and what legs that fail or are taken out do to it.
use super::super::super::assembly::tests::PLACE;
use super::super::*;
use super::rules::{BLOCK, MS, run, well, written};
use crate::{Id, Label};
use alloc::vec::Vec;

/// A stop, until nothing is asked any more; whether it has ended.
fn stops(mirror: &mut Mirror, now_ns: u64) -> bool {
    mirror.stop(now_ns);
    run(mirror, now_ns, &mut well);
    mirror.startup.is_stopped()
}

/// A new leg.
fn add(mirror: &mut Mirror, now_ns: u64) -> Result<u8, ChangeError> {
    mirror.add_leg(
        Id([8; 16]),
        Label::default(),
        PLACE,
        Legs::default(),
        now_ns,
    )
}

#[test]
fn a_leg_that_is_removed_while_its_adding_is_said_gets_nothing_and_a_stop_ends() {
    let mut mirror = written(Config::new(6));
    let leg = add(&mut mirror, 2 * MS);
    let leg = leg.unwrap();
    // That it is one of ours is on its way.
    let mut said = Vec::new();
    while let Some(output) = mirror.poll_output(2 * MS) {
        if let Output::Superblock(ticket, _) = output {
            said.push(ticket);
        }
    }
    mirror.remove_leg(leg, 2 * MS).unwrap();
    for ticket in said {
        mirror.handle_done(ticket, Outcome::Done, 2 * MS);
    }
    let mut given = 0;
    let mut counts = |_: &Output, to: u8| {
        given += u32::from(to == leg);
        None
    };
    run(&mut mirror, 3 * MS, &mut counts);
    let write = Request::Write(Range::new(0, BLOCK), false);
    mirror.submit(write, 4 * MS).unwrap();
    run(&mut mirror, 4 * MS, &mut counts);
    assert_eq!((given, mirror.may_read(leg)), (0, false));
    assert!(stops(&mut mirror, 5 * MS));
}

/// Else the removal of the old leg would be reported for the new one, which would be wiped.
#[test]
fn a_new_leg_has_no_slot_of_which_it_is_still_to_be_said_that_its_leg_was_removed() {
    let mut mirror = written(Config::new(6));
    mirror.remove_leg(1, 2 * MS).unwrap();
    let mut asked = Vec::new();
    while let Some(output) = mirror.poll_output(2 * MS) {
        assert!(!matches!(output, Output::News(News::Removed(_))), "not yet");
        asked.extend(output.ticket());
        // All ends before the next output is polled.
        if asked.len() > 64 {
            break;
        }
    }
    let mut is_acknowledged = false;
    for round in 0..64 {
        for ticket in core::mem::take(&mut asked) {
            mirror.handle_done(ticket, Outcome::Done, 3 * MS);
        }
        let removed = Output::News(News::Removed(1));
        if mirror.outputs.iter().any(|it| *it == removed) {
            let leg = add(&mut mirror, 3 * MS);
            assert_eq!(leg, Ok(2), "round {round}");
            is_acknowledged = true;
            break;
        }
        asked.extend(mirror.poll_output(3 * MS).and_then(|it| it.ticket()));
    }
    assert!(is_acknowledged);
}

/// A mirror whose leg 1 has left and returned; what no leg can read is `bad`.
fn rebuilding_what_nobody_reads() -> (Mirror, u64) {
    let mut mirror = written(Config::new(6));
    mirror.leg_lost(1, 2 * MS);
    run(&mut mirror, 2 * MS, &mut well);
    mirror.leg_found(1, 0, 3 * MS);
    let mut bad = |output: &Output, _| {
        let read = matches!(output, Output::CopyRead(..));
        read.then_some(Outcome::MediaError)
    };
    let mut now_ns = 3 * MS;
    for _ in 0..600 {
        run(&mut mirror, now_ns, &mut bad);
        now_ns += MS;
        mirror.handle_timeout(now_ns);
    }
    (mirror, now_ns)
}

#[test]
fn what_no_leg_can_read_keeps_nobody_busy() {
    let (mut mirror, mut now_ns) = rebuilding_what_nobody_reads();
    assert!(
        mirror
            .facts(1)
            .is_some_and(|it| it.rebuilding && it.lacks > 0)
    );
    let until_ns = now_ns + 60_000 * MS;
    let mut turns = 0;
    while now_ns < until_ns && turns < 100 {
        run(&mut mirror, now_ns, &mut well);
        now_ns = mirror.poll_timeout().unwrap().max(now_ns + 1);
        mirror.handle_timeout(now_ns);
        turns += 1;
    }
    assert!(turns < 100, "{turns}");
    // It is copied when it was written.
    let write = Request::Write(Range::new(0, 1 << 20), false);
    mirror.submit(write, now_ns).unwrap();
    for _ in 0..100 {
        run(&mut mirror, now_ns, &mut well);
        now_ns = mirror.poll_timeout().unwrap().max(now_ns + 1);
        mirror.handle_timeout(now_ns);
    }
    assert!(
        mirror.facts(1).is_some_and(|it| it.in_sync),
        "{:?}",
        mirror.facts(1)
    );
}

#[test]
fn t06_a_leg_that_is_busy_with_reads_does_not_leave() {
    let config = Config {
        errors_max: 3,
        ..Config::new(6)
    };
    let mut mirror = written(config);
    let mut busy = |output: &Output, leg: u8| {
        let read = matches!(output, Output::Read(..)) && leg == 0;
        read.then_some(Outcome::Busy { after_ns: 0 })
    };
    for _ in 0..20 {
        let read = Request::Read(Range::new(0, BLOCK));
        mirror.submit(read, 2 * MS).unwrap();
        assert_eq!(run(&mut mirror, 2 * MS, &mut busy)[0].1, Outcome::Done);
    }
    assert_eq!(
        mirror.facts(0).map(|it| (it.in_sync, it.errors)),
        Some((true, 0))
    );
}

#[test]
fn a_mend_whose_other_legs_have_left_says_nothing_is_lost() {
    let mut mirror = written(Config::new(6));
    mirror
        .submit(Request::Read(Range::new(0, BLOCK)), 2 * MS)
        .unwrap();
    let Some(Output::Read(io, ..)) = mirror.poll_output(2 * MS) else {
        panic!("it is offered");
    };
    let bad = mirror.take(io, 0, Wait::Long).unwrap();
    mirror.handle_done(bad, Outcome::MediaError, 2 * MS);
    assert!(matches!(mirror.poll_output(2 * MS), Some(Output::Read(..))));
    let good = mirror.take(io, 1, Wait::Long).unwrap();
    mirror.handle_done(good, Outcome::Done, 2 * MS);
    let mut copy = None;
    while let Some(output) = mirror.poll_output(2 * MS) {
        if let Output::CopyRead(ticket, ..) = output {
            copy = Some(ticket);
        }
    }
    // The good one leaves while it is read for that.
    mirror.leg_lost(1, 3 * MS);
    mirror.handle_done(copy.unwrap(), Outcome::MediaError, 3 * MS);
    let mut lost = false;
    while let Some(output) = mirror.poll_output(3 * MS) {
        match output {
            Output::News(News::Lost(_)) => lost = true,
            Output::Superblock(ticket, _) | Output::CopyRead(ticket, ..) => {
                let outcome = match output {
                    Output::Superblock(..) => Outcome::Done,
                    _ => Outcome::MediaError,
                };
                mirror.handle_done(ticket, outcome, 3 * MS);
            }
            _ => {}
        }
    }
    assert!(!lost && mirror.copies.next_repair().is_none() && mirror.copies.is_empty());
}

#[test]
fn reads_of_what_may_differ_fail_while_the_last_leg_cannot_be_written() {
    let mut mirror = written(Config::new(6));
    // A difference left by a reservation.
    let write = Request::Write(Range::new(0, BLOCK), false);
    mirror.submit(write, 2 * MS).unwrap();
    let mut refuses = |output: &Output, leg: u8| match output {
        Output::Leg(..) if leg == 1 => Some(Outcome::Reservation),
        Output::CopyRead(..) => Some(Outcome::PathError),
        _ => None,
    };
    run(&mut mirror, 2 * MS, &mut refuses);
    assert_eq!(mirror.diverged(), 1);
    mirror
        .submit(Request::Read(Range::new(0, BLOCK)), 3 * MS)
        .unwrap();
    let mut fails = |output: &Output, _| match output {
        Output::Superblock(..) | Output::CopyRead(..) | Output::CopyWrite(..) => {
            Some(Outcome::MediaError)
        }
        _ => None,
    };
    mirror.leg_lost(1, 3 * MS);
    let ended = run(&mut mirror, 3 * MS, &mut fails);
    assert!(mirror.update.is_broken());
    assert_eq!(ended.len(), 1, "{ended:?}");
    let read = Request::Read(Range::new(0, BLOCK));
    mirror.submit(read, 4 * MS).unwrap();
    assert_eq!(run(&mut mirror, 4 * MS, &mut fails).len(), 1);
}
