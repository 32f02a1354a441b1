//! Leases by hand: legs that return, and stops, where heartbeats don't end in time.
use super::super::*;
use super::heartbeats::{INTERVAL, pass, read, run_but, shared, write};
use super::rules::{BLOCK, MS, end, run, started, well};
use alloc::vec::Vec;

/// Ends all of the heartbeats that are kept, with this outcome.
fn end_heartbeats(mirror: &mut Mirror, kept: &mut Vec<Output>, outcome: Outcome, now_ns: u64) {
    for heartbeat in kept.drain(..) {
        let (Output::ReadSuperblocks(ticket) | Output::Superblock(ticket, _)) = heartbeat else {
            panic!("{heartbeat:?}");
        };
        mirror.handle_done(ticket, outcome, now_ns);
    }
}

fn end_heartbeats_well(mirror: &mut Mirror, kept: &mut Vec<Output>, now_ns: u64) {
    for heartbeat in kept.drain(..) {
        end(mirror, heartbeat, now_ns, &mut well);
    }
}

/// Whether it stopped, and how, by all that is due up to `until_ns`.
fn stops(mirror: &mut Mirror, (from_ns, until_ns): (u64, u64), hangs: Legs) -> Option<bool> {
    let mut stopped = None;
    for now_ns in (from_ns..=until_ns).step_by(100 * MS as usize) {
        mirror.handle_timeout(now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            match output {
                Output::News(News::Stopped(clean)) => stopped = Some(clean),
                Output::Superblock(ticket, _) | Output::Pages(ticket, _)
                    if hangs.has(ticket.leg) => {}
                other => end(mirror, other, now_ns, &mut well),
            }
        }
    }
    stopped
}

#[test]
fn t48_a_leg_that_returns_has_a_lease_until_its_first_beat_has_ended() {
    let mut mirror = shared(0);
    let mut kept = Vec::new();
    let io = mirror.submit(write(), INTERVAL).unwrap();
    assert_eq!(run(&mut mirror, INTERVAL, &mut well), [(io, Outcome::Done)]);
    mirror.leg_lost(1, INTERVAL + MS);
    run(&mut mirror, INTERVAL + MS, &mut well);
    mirror.leg_found(1, 0, INTERVAL + 2 * MS);
    // Its first heartbeat takes a while, and the other one's leases are renewed meanwhile.
    let (mut heartbeats, mut lapsed) = (Vec::new(), false);
    for at in 0..30 {
        let now_ns = INTERVAL + 2 * MS + at * 100 * MS;
        mirror.handle_timeout(now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            match output {
                Output::ReadSuperblocks(ticket) if ticket.leg == 1 && ticket.is_heartbeat() => {
                    heartbeats.push(output);
                }
                other => {
                    lapsed |= matches!(other, Output::News(News::Lapsed(_) | News::Left(..)));
                    end(&mut mirror, other, now_ns, &mut well);
                }
            }
        }
        if at % 10 == 0 {
            mirror.submit(write(), now_ns).unwrap();
        }
    }
    assert!(!lapsed && heartbeats.len() == 1, "{heartbeats:?}");
    assert!(mirror.may_read(1));
    // If it never ends the leg has none any more when the two intervals are over.
    let end_ns = 3 * INTERVAL + 200 * MS;
    pass(&mut mirror, (2 * INTERVAL, end_ns), Legs::one(1), &mut kept);
    assert!(!mirror.may_read(1));
}

#[test]
fn t48_legs_whose_lease_is_over_are_heard_of_while_outputs_have_no_room() {
    let mut mirror = shared(0);
    run_but(&mut mirror, INTERVAL, Legs::default(), &mut Vec::new());
    mirror.submit(write(), INTERVAL).unwrap();
    assert_eq!(mirror.poll_lapsed(), None);
    mirror.handle_timeout(4 * INTERVAL);
    let lapsed = [(); 3].map(|()| mirror.poll_lapsed());
    assert_eq!(lapsed, [Some(0), Some(1), None]);
}

#[test]
fn t48_a_stop_ends_where_no_leg_has_a_lease() {
    // Nothing was changed: there is nothing to wait for.
    let mut mirror = shared(0);
    let mut kept = Vec::new();
    run_but(&mut mirror, INTERVAL, Legs::default(), &mut kept);
    pass(
        &mut mirror,
        (INTERVAL + MS, 4 * INTERVAL),
        Legs(3),
        &mut kept,
    );
    end_heartbeats(&mut mirror, &mut kept, Outcome::PathError, 4 * INTERVAL);
    run(&mut mirror, 4 * INTERVAL, &mut well);
    assert!(!mirror.legs.in_sync().is_empty() && mirror.lapsed() == mirror.legs.in_sync());
    mirror.stop(4 * INTERVAL);
    let stopped = stops(&mut mirror, (4 * INTERVAL, 4 * INTERVAL), Legs(3));
    assert_eq!(stopped, Some(false));
    let owned = |leg: u8| mirror.legs[leg].committed.owner.is_some();
    assert!(owned(0) && owned(1), "the next one looks at the record");
}

/// Stops a mirror of two legs, whose last superblocks hang until then.
fn stop_beyond_the_lease(mirror: &mut Mirror, now_ns: u64) -> Vec<Ticket> {
    mirror.stop(INTERVAL + MS);
    let mut hung = Vec::new();
    while let Some(output) = mirror.poll_output(INTERVAL + MS) {
        match output {
            Output::Superblock(ticket, _) if !ticket.is_heartbeat() => hung.push(ticket),
            other => end(mirror, other, INTERVAL + MS, &mut well),
        }
    }
    assert_eq!(hung.len(), 2);
    let times = (INTERVAL + 2 * MS, now_ns);
    assert_eq!(stops(mirror, times, Legs(3)), None);
    hung
}

/// A mirror that stops, whose pages have ended long after its lease; its heartbeats have not.
fn with_pages_beyond_the_lease() -> (Mirror, Vec<Output>) {
    let mut mirror = shared(0);
    mirror.submit(write(), INTERVAL).unwrap();
    run(&mut mirror, INTERVAL, &mut well);
    mirror.stop(INTERVAL + MS);
    let (mut pages, mut heartbeats) = (Vec::new(), Vec::new());
    while let Some(output) = mirror.poll_output(INTERVAL + MS) {
        match output {
            Output::Pages(..) => pages.push(output),
            other => end(&mut mirror, other, INTERVAL + MS, &mut well),
        }
    }
    let times = (INTERVAL + 2 * MS, 4 * INTERVAL);
    assert!(pass(&mut mirror, times, Legs(3), &mut heartbeats).is_empty());
    assert_eq!((pages.len(), mirror.lapsed()), (2, Legs(3)));
    for output in pages {
        end(&mut mirror, output, 4 * INTERVAL, &mut well);
    }
    (mirror, heartbeats)
}

#[test]
fn t48_a_stop_whose_last_words_take_longer_than_the_lease_leaves_the_record() {
    for begun in [false, true] {
        let mut mirror = shared(0);
        let mut kept = Vec::new();
        run_but(&mut mirror, INTERVAL, Legs::default(), &mut kept);
        if begun {
            mirror.submit(write(), INTERVAL).unwrap();
            run(&mut mirror, INTERVAL, &mut well);
        }
        let now_ns = 4 * INTERVAL;
        let hung = stop_beyond_the_lease(&mut mirror, now_ns);
        for ticket in hung {
            mirror.handle_done(ticket, Outcome::Done, now_ns);
        }
        let stopped = stops(&mut mirror, (now_ns, now_ns + INTERVAL), Legs::default());
        assert_eq!(stopped, Some(false), "begun {begun}");
    }
}

#[test]
fn t48_beats_go_on_while_a_stop_writes_its_pages() {
    let mut mirror = shared(0);
    mirror.submit(write(), INTERVAL).unwrap();
    run(&mut mirror, INTERVAL, &mut well);
    mirror.stop(INTERVAL + MS);
    let mut pages = Vec::new();
    let mut now_ns = INTERVAL + MS;
    while now_ns < 5 * INTERVAL {
        mirror.handle_timeout(now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            match output {
                Output::Pages(..) => pages.push(output),
                other => end(&mut mirror, other, now_ns, &mut well),
            }
        }
        now_ns += 100 * MS;
    }
    assert_eq!(pages.len(), 2);
    assert!(mirror.lapsed().is_empty());
    for page in pages {
        end(&mut mirror, page, now_ns, &mut well);
    }
    let stopped = stops(&mut mirror, (now_ns, now_ns + INTERVAL), Legs::default());
    assert_eq!(stopped, Some(true));
}

#[test]
fn t48_a_stop_ends_whose_pages_outlive_the_lease() {
    let (mut mirror, mut heartbeats) = with_pages_beyond_the_lease();
    end_heartbeats_well(&mut mirror, &mut heartbeats, 4 * INTERVAL);
    let times = (4 * INTERVAL, 8 * INTERVAL);
    assert_eq!(stops(&mut mirror, times, Legs::default()), Some(false));
}

/// A failure after that is nobody's to report any more.
#[test]
fn t48_a_stop_whose_lease_is_over_ends_where_heartbeats_fail() {
    let (mut mirror, mut heartbeats) = with_pages_beyond_the_lease();
    mirror.handle_timeout(4 * INTERVAL);
    end_heartbeats(
        &mut mirror,
        &mut heartbeats,
        Outcome::PathError,
        4 * INTERVAL,
    );
    let times = (4 * INTERVAL, 8 * INTERVAL);
    assert_eq!(stops(&mut mirror, times, Legs::default()), Some(false));
    let owned = |leg: u8| mirror.legs[leg].committed.owner.is_some();
    assert!(owned(0) && owned(1), "the next one looks at the record");
}

/// One leg has the last superblock, and the other fails after the lease.
#[test]
fn t48_a_stop_whose_lease_is_over_ends_where_a_leg_fails_its_last_superblock() {
    let mut mirror = shared(0);
    let mut kept = Vec::new();
    run_but(&mut mirror, INTERVAL, Legs::default(), &mut kept);
    let now_ns = 4 * INTERVAL;
    let hung = stop_beyond_the_lease(&mut mirror, now_ns);
    mirror.handle_done(hung[0], Outcome::Done, now_ns);
    mirror.handle_timeout(now_ns);
    mirror.handle_done(hung[1], Outcome::PathError, now_ns);
    let stopped = stops(&mut mirror, (now_ns, now_ns + INTERVAL), Legs::default());
    assert_eq!(stopped, Some(false));
}

#[test]
fn t48_what_is_said_is_not_given_out_after_the_lease_either() {
    let mut mirror = shared(0);
    run(&mut mirror, INTERVAL, &mut well);
    mirror.submit(write(), INTERVAL).unwrap();
    run(&mut mirror, INTERVAL, &mut well);
    let mut properties = mirror.properties();
    properties.set("policy", "soonest").unwrap();
    mirror.set_properties(properties, INTERVAL + MS);
    mirror.handle_timeout(INTERVAL + MS);
    // No host takes it for long.
    let now_ns = 4 * INTERVAL;
    let mut heartbeats = Vec::new();
    while let Some(output) = mirror.poll_output(now_ns) {
        match output {
            Output::Superblock(ticket, _) => assert!(ticket.is_heartbeat(), "{ticket:?}"),
            Output::ReadSuperblocks(_) => heartbeats.push(output),
            other => end(&mut mirror, other, now_ns, &mut well),
        }
    }
    for heartbeat in heartbeats {
        end(&mut mirror, heartbeat, now_ns, &mut well);
    }
    let mut kept = Vec::new();
    pass(
        &mut mirror,
        (now_ns, 7 * INTERVAL),
        Legs::default(),
        &mut kept,
    );
    assert_eq!(mirror.legs[0].committed.properties, properties);
    assert_eq!(mirror.legs[1].committed.properties, properties);
}

#[test]
fn t09_what_waits_for_the_owner_before_goes_on_when_that_is_over_whoever_tells_the_time() {
    let until_ns = INTERVAL + INTERVAL / 2;
    let mut mirror = shared(until_ns);
    let mut kept = Vec::new();
    run_but(&mut mirror, INTERVAL, Legs::default(), &mut kept);
    let flush = mirror.submit(Request::Flush, INTERVAL).unwrap();
    assert_eq!(run(&mut mirror, INTERVAL, &mut well), []);
    // A read comes at that very time, before anybody has asked what is due.
    mirror.submit(read(), until_ns).unwrap();
    assert!(mirror.poll_timeout().is_some_and(|at| at <= until_ns));
    mirror.handle_timeout(until_ns);
    let ended = run(&mut mirror, until_ns, &mut well);
    assert!(ended.contains(&(flush, Outcome::Done)), "{ended:?}");
}

/// A mirror whose legs have all that two writes, a read and a flush need, under way, when
/// heartbeats don't end any more; these I/Os, what the legs have, and their heartbeats.
fn without_leases(hung: &mut Vec<Output>, heartbeats: &mut Vec<Output>) -> (Mirror, Vec<u32>) {
    let mut mirror = shared(0);
    let far = Request::Write(Range::new(2 << 20, BLOCK), false);
    mirror.submit(write(), INTERVAL).unwrap();
    run(&mut mirror, INTERVAL, &mut well);
    // The second one has no intent yet.
    let requests = [write(), far, Request::Flush, read()];
    let ios = requests.map(|it| mirror.submit(it, INTERVAL).unwrap());
    while let Some(output) = mirror.poll_output(INTERVAL) {
        match output {
            Output::Read(io, ..) => {
                let ticket = mirror.take(io, 0, Wait::Long).unwrap();
                hung.push(Output::Flush(ticket));
            }
            Output::Leg(..) | Output::Flush(_) | Output::Pages(..) => hung.push(output),
            other => end(&mut mirror, other, INTERVAL, &mut well),
        }
    }
    let ended = pass(
        &mut mirror,
        (INTERVAL + MS, 4 * INTERVAL),
        Legs(3),
        heartbeats,
    );
    assert!(ended.is_empty() && mirror.lapsed() == Legs(3), "{ended:?}");
    (mirror, ios.to_vec())
}

/// The legs' requests are taken back.
fn take_back(mirror: &mut Mirror, hung: &[Output], now_ns: u64) {
    for output in hung {
        let ticket = output.ticket().unwrap();
        mirror.handle_done(ticket, Outcome::PathError, now_ns);
    }
}

#[test]
fn t48_what_was_taken_back_from_legs_without_a_lease_waits_for_it_and_nobody_leaves() {
    let (mut hung, mut heartbeats) = (Vec::new(), Vec::new());
    let (mut mirror, ios) = without_leases(&mut hung, &mut heartbeats);
    // A read, and on two legs a write, a flush, and the page of the other write.
    assert_eq!(hung.len(), 7, "{hung:?}");
    let now_ns = 4 * INTERVAL;
    take_back(&mut mirror, &hung, now_ns);
    let ended = run_but(&mut mirror, now_ns, Legs(3), &mut heartbeats);
    assert!(ended.is_empty(), "{ended:?}");
    end_heartbeats_well(&mut mirror, &mut heartbeats, now_ns);
    let times = (now_ns, now_ns + 2 * INTERVAL);
    let mut ended = pass(&mut mirror, times, Legs::default(), &mut heartbeats);
    ended.sort_by_key(|it| it.0);
    let mut want: Vec<_> = ios.iter().map(|&io| (io, Outcome::Done)).collect();
    want.sort_by_key(|it| it.0);
    assert_eq!(ended, want);
    assert_eq!(mirror.legs.in_sync(), Legs(3));
}

#[test]
fn what_was_taken_back_fails_with_the_beats_of_the_last_leg() {
    let (mut hung, mut heartbeats) = (Vec::new(), Vec::new());
    let (mut mirror, ios) = without_leases(&mut hung, &mut heartbeats);
    let now_ns = 4 * INTERVAL;
    take_back(&mut mirror, &hung, now_ns);
    assert!(run_but(&mut mirror, now_ns, Legs(3), &mut heartbeats).is_empty());
    end_heartbeats(&mut mirror, &mut heartbeats, Outcome::PathError, now_ns);
    let mut ended = run_but(&mut mirror, now_ns, Legs(3), &mut heartbeats);
    ended.sort_by_key(|it| it.0);
    let mut want: Vec<_> = ios.iter().map(|&io| (io, Outcome::PathError)).collect();
    want.sort_by_key(|it| it.0);
    assert_eq!(ended, want);
}

#[test]
fn t09_t13_what_may_be_executed_late_or_tells_of_a_loss_does_not_wait() {
    let (mut hung, mut heartbeats) = (Vec::new(), Vec::new());
    let (mut mirror, ios) = without_leases(&mut hung, &mut heartbeats);
    let now_ns = 4 * INTERVAL;
    for leg in [0, 1] {
        mirror.may_be_late(leg, now_ns + INTERVAL, now_ns);
    }
    take_back(&mut mirror, &hung, now_ns);
    let ended = run_but(&mut mirror, now_ns, Legs(3), &mut heartbeats);
    assert!(ended.iter().any(|it| *it == (ios[0], Outcome::PathError)));

    let (mut hung, mut heartbeats) = (Vec::new(), Vec::new());
    let (mut mirror, ios) = without_leases(&mut hung, &mut heartbeats);
    for leg in [0, 1] {
        mirror.gives_up_writes(leg, now_ns);
    }
    take_back(&mut mirror, &hung, now_ns);
    let ended = run_but(&mut mirror, now_ns, Legs(3), &mut heartbeats);
    assert_eq!(ended, [(ios[2], Outcome::PathError)], "the flush");
}

#[test]
fn an_event_that_was_taken_back_fails_with_the_beats_of_the_last_leg() {
    let mut mirror = shared(0);
    mirror.submit(write(), INTERVAL).unwrap();
    run(&mut mirror, INTERVAL, &mut well);
    // Leg 1 fails a write, and the event that says so is under way on leg 0.
    let io = mirror.submit(write(), INTERVAL).unwrap();
    let mut events = Vec::new();
    while let Some(output) = mirror.poll_output(INTERVAL) {
        match output {
            Output::Leg(ticket, _) if ticket.leg == 1 => {
                mirror.handle_done(ticket, Outcome::PathError, INTERVAL);
            }
            Output::Superblock(ticket, _) if !ticket.is_heartbeat() => events.push(ticket),
            other => end(&mut mirror, other, INTERVAL, &mut well),
        }
    }
    let mut heartbeats = Vec::new();
    let ended = pass(
        &mut mirror,
        (INTERVAL + MS, 4 * INTERVAL),
        Legs(3),
        &mut heartbeats,
    );
    assert!(ended.is_empty() && mirror.lapsed() == Legs(1) && events.len() == 1);
    mirror.handle_done(events[0], Outcome::PathError, 4 * INTERVAL);
    let times = (4 * INTERVAL, 5 * INTERVAL);
    assert!(pass(&mut mirror, times, Legs(3), &mut heartbeats).is_empty());
    end_heartbeats(
        &mut mirror,
        &mut heartbeats,
        Outcome::PathError,
        5 * INTERVAL,
    );
    let ended = run_but(&mut mirror, 5 * INTERVAL, Legs(3), &mut heartbeats);
    assert_eq!(ended, [(io, Outcome::PathError)]);
    // And it happens when heartbeats end again.
    let times = (5 * INTERVAL, 8 * INTERVAL);
    pass(&mut mirror, times, Legs::default(), &mut heartbeats);
    end_heartbeats_well(&mut mirror, &mut heartbeats, 8 * INTERVAL);
    let times = (8 * INTERVAL, 12 * INTERVAL);
    pass(&mut mirror, times, Legs::default(), &mut heartbeats);
    assert!(
        !mirror.update.is_broken() && mirror.superblock().is_stale(1) && mirror.lapsed().is_empty()
    );
}

#[test]
fn t13_two_flushes_that_fail_for_one_loss_both_fail_without_a_lease_too() {
    let mut mirror = shared(0);
    mirror.submit(write(), INTERVAL).unwrap();
    run(&mut mirror, INTERVAL, &mut well);
    mirror.leg_lost(1, INTERVAL);
    run(&mut mirror, INTERVAL, &mut well);
    let flushes = [(); 2].map(|()| mirror.submit(Request::Flush, INTERVAL).unwrap());
    let mut hung = Vec::new();
    while let Some(output) = mirror.poll_output(INTERVAL) {
        match output {
            Output::Leg(..) => hung.push(output),
            other => end(&mut mirror, other, INTERVAL, &mut well),
        }
    }
    let mut heartbeats = Vec::new();
    pass(
        &mut mirror,
        (INTERVAL + MS, 4 * INTERVAL),
        Legs(3),
        &mut heartbeats,
    );
    assert_eq!((mirror.lapsed(), hung.len()), (Legs(1), 2));
    mirror.gives_up_writes(0, 4 * INTERVAL);
    take_back(&mut mirror, &hung, 4 * INTERVAL);
    let ended = run_but(&mut mirror, 4 * INTERVAL, Legs(3), &mut heartbeats);
    assert_eq!(ended, flushes.map(|io| (io, Outcome::PathError)));
}

#[test]
fn t09_a_beat_that_may_be_executed_late_holds_events() {
    let mut mirror = started(1, Config::new(6));
    mirror.submit(write(), MS).unwrap();
    run(&mut mirror, MS, &mut well);
    let (mut now_ns, mut lost) = (MS, None);
    while lost.is_none() {
        now_ns += 100 * MS;
        mirror.handle_timeout(now_ns);
        while let Some(output) = mirror.poll_output(now_ns) {
            match output {
                Output::Superblock(ticket, _) if ticket.is_heartbeat() => lost = Some(ticket),
                other => end(&mut mirror, other, now_ns, &mut well),
            }
        }
    }
    let until_ns = now_ns + INTERVAL;
    mirror.may_be_late(0, until_ns, now_ns);
    mirror.handle_done(lost.unwrap(), Outcome::PathError, now_ns);
    assert_eq!(mirror.held_until_ns(), Some(until_ns));
}

/// A change may wait in a thread when its leg leaves; the lease of another leg is none of its.
#[test]
fn t49_what_a_leg_was_given_before_it_left_has_the_end_of_its_own_lease() {
    let mut mirror = shared(0);
    let mut kept = Vec::new();
    mirror.submit(write(), INTERVAL).unwrap();
    run(&mut mirror, INTERVAL, &mut well);
    mirror.submit(write(), INTERVAL).unwrap();
    run_but(&mut mirror, INTERVAL, Legs::one(1), &mut kept);
    let ticket = kept.iter().find_map(|output| match output {
        Output::Leg(ticket, _) => Some(*ticket),
        _ => None,
    });
    let ticket = ticket.unwrap();
    let before_ns = mirror.start_before_ns(ticket);
    mirror.leg_lost(1, INTERVAL + MS);
    pass(
        &mut mirror,
        (INTERVAL + MS, 4 * INTERVAL),
        Legs::one(1),
        &mut kept,
    );
    assert!(!mirror.facts(1).unwrap().in_sync);
    assert!(before_ns < 4 * INTERVAL, "its lease is over");
    assert_eq!(mirror.start_before_ns(ticket), before_ns);
}
