//! Faults on purpose, in virtual time: each does what it says, when it says, and counts it.

use crate::target_hand::*;
use engine::machine::{Closed, Machine};
use engine::target::{ErrorRule, Event, FaultStats, Faults, Ops, Probability, TargetControl, Why};
use nvme::controller::CloseReason;
use nvme::wire::Status;
use shape::Config;

fn ready(faults: Faults) -> (Hand, u32) {
    let (mut hand, queues) = Hand::ready(&[Config::default()]);
    hand.control(TargetControl::Faults(0, faults));
    (hand, queues[0])
}

fn stats(hand: &Hand) -> FaultStats {
    hand.target.port_stats(0).faults
}

fn rule(status: Status, ops: Ops) -> ErrorRule {
    ErrorRule {
        status,
        ops,
        blocks: None,
        rate: Probability::ALWAYS,
    }
}

fn errors(errors: Vec<ErrorRule>) -> Faults {
    Faults {
        errors,
        ..Faults::default()
    }
}

fn held(hand: &Hand, ns: u64) -> Faults {
    Faults {
        hold_writes_until_ns: hand.now + ns,
        ..Faults::default()
    }
}

/// First blocks of the writes that reached the device.
fn written(hand: &Hand) -> Vec<u64> {
    hand.requests
        .iter()
        .map(|request| request.offset >> SHIFT)
        .collect()
}

#[test]
fn t03_an_injected_status_keeps_its_retry_bits_and_touches_no_device() {
    let status = Status::NAMESPACE_NOT_READY.with_crd(2).with_dnr();
    let (mut hand, queue) = ready(errors(vec![rule(status, Ops::WRITE | Ops::FLUSH)]));
    hand.write(queue, 0, &pattern(1, 4096));
    hand.send(queue, io(0x00, 0, 0), &[]);
    hand.read(queue, 0, 1);
    let statuses: Vec<_> = hand.done(queue).iter().map(|done| done.2).collect();
    assert_eq!(statuses, [status, status, Status::SUCCESS]);
    assert_eq!(hand.requests.len(), 1, "the read");
    assert_eq!(stats(&hand).errors, 2);
    assert_eq!(hand.target.port_stats(0).errors, 2);
    hand.control(TargetControl::Faults(0, Faults::default()));
    hand.write(queue, 0, &pattern(1, 4096));
    assert!(hand.done(queue)[0].2.is_success());
}

#[test]
fn an_error_by_range_hits_what_touches_it_and_nothing_beside() {
    let blocks = Some((100, 199));
    let all = ErrorRule {
        blocks,
        ..rule(Status::UNRECOVERED_READ, Ops::ALL)
    };
    let (mut hand, queue) = ready(errors(vec![all]));
    for (slba, count, fails) in [
        (99, 1, false),
        (99, 2, true),
        (150, 1, true),
        (199, 4, true),
        (200, 1, false),
        (90, 300, true),
    ] {
        let cid = hand.read(queue, slba, count.min(256));
        let done = hand.done(queue);
        assert_eq!(done[0].1, cid);
        assert_eq!(
            done[0].2.is(Status::UNRECOVERED_READ),
            fails,
            "{slba}+{count}"
        );
    }
    hand.send(queue, io(0x00, 0, 0), &[]);
    assert!(hand.done(queue)[0].2.is_success(), "a flush has no blocks");
}

#[test]
fn a_chance_is_the_same_every_time_and_the_first_rule_that_hits_counts() {
    let half = ErrorRule {
        rate: Probability::new(500_000_000).unwrap(),
        ..rule(Status::UNRECOVERED_READ, Ops::READ)
    };
    let run = || {
        let second = rule(Status::INTERNAL_ERROR, Ops::READ);
        let (mut hand, queue) = ready(errors(vec![half, second]));
        (0..1000).for_each(|_| {
            hand.read(queue, 0, 1);
        });
        let done = hand.done(queue);
        done.iter().map(|done| done.2).collect::<Vec<_>>()
    };
    let statuses = run();
    let hits = |of: Status| statuses.iter().filter(|status| status.is(of)).count();
    assert!((400..600).contains(&hits(Status::UNRECOVERED_READ)));
    assert_eq!(
        hits(Status::UNRECOVERED_READ) + hits(Status::INTERNAL_ERROR),
        1000
    );
    assert_eq!(statuses, run());
}

#[test]
fn a_chance_drops_connections_with_a_reset() {
    let (mut hand, queue) = ready(Faults {
        drop_rate: Probability::ALWAYS,
        ..Faults::default()
    });
    hand.write(queue, 7, &pattern(1, 4096));
    assert_eq!(hand.wire(queue).closed, Some(true));
    assert_eq!(stats(&hand).drops, 1);
    hand.read(queue, 0, 1);
    assert_eq!(stats(&hand).drops, 1, "it is gone already");
    assert_eq!(written(&hand), [7], "its answer is lost, not the write");
}

#[test]
fn held_writes_wait_in_their_order_and_reads_pass() {
    let (mut hand, queue) = ready(Faults::default());
    let faults = held(&hand, 5 * SECOND);
    hand.control(TargetControl::Faults(0, faults));
    let first = hand.write(queue, 1, &pattern(1, 4096));
    let read = hand.read(queue, 1, 1);
    let second = hand.write(queue, 1, &pattern(2, 4096));
    assert_eq!(hand.done(queue)[0].1, read);
    hand.pass(5 * SECOND - 1);
    assert_eq!(hand.done(queue), []);
    let start = hand.now;
    hand.pass(1);
    let done = hand.done(queue);
    assert_eq!([done[0].1, done[1].1], [first, second]);
    assert_eq!(done[0].0, start + 1);
    assert_eq!(hand.disk[4096..8192], pattern(2, 4096));
    assert_eq!(stats(&hand).held_writes, 2);
}

#[test]
fn t09_without_the_fault_a_held_write_dies_with_its_connection() {
    let (mut hand, queue) = ready(Faults::default());
    let faults = held(&hand, SECOND);
    hand.control(TargetControl::Faults(0, faults));
    hand.write(queue, 1, &pattern(1, 4096));
    hand.hang_up(queue);
    hand.pass(10 * SECOND);
    assert_eq!(hand.requests, []);
    assert_eq!(hand.target.port_stats(0).in_flight, 0);
    assert_eq!(hand.accept(0), Some(0), "the numbers are free");
}

#[test]
fn t09_a_late_write_is_executed_after_its_connection_is_gone() {
    let (mut hand, queue) = ready(Faults::default());
    let faults = Faults {
        late_writes_ns: 2 * SECOND,
        ..held(&hand, 60 * SECOND)
    };
    hand.control(TargetControl::Faults(0, faults));
    hand.write(queue, 1, &pattern(1, 4096));
    hand.write(queue, 1, &pattern(2, 4096));
    hand.pass(SECOND);
    hand.hang_up(queue);
    hand.control(TargetControl::Faults(0, Faults::default()));
    let other = hand.queue(0, 64);
    assert_ne!(other, queue, "its number is not free");
    hand.write(other, 1, &pattern(3, 4096));
    assert!(hand.done(other)[0].2.is_success());
    hand.pass(2 * SECOND - 1);
    assert_eq!(hand.disk[4096..8192], pattern(3, 4096));
    hand.pass(1);
    assert_eq!(
        hand.disk[4096..8192],
        pattern(2, 4096),
        "the new write is lost"
    );
    assert_eq!(written(&hand), [1, 1, 1]);
    assert_eq!(stats(&hand).late_writes, 2);
    assert_eq!(hand.target.port_stats(0).in_flight, 0);
}

/// Also those that only the port's shape still delays, in the order of their release.
#[test]
fn t09_shaped_writes_are_late_too_and_reads_never() {
    let shape = Config {
        delay_ns: 30 * MS,
        ..Config::default()
    };
    let (mut hand, queues) = Hand::ready(&[shape]);
    let late = Faults {
        late_writes_ns: 2 * SECOND,
        ..Faults::default()
    };
    hand.control(TargetControl::Faults(0, late));
    for slba in 0..100 {
        hand.write(queues[0], slba, &pattern(1, 4096));
        hand.read(queues[0], slba, 1);
    }
    hand.hang_up(queues[0]);
    hand.pass(2 * SECOND - 1);
    assert_eq!(hand.requests, []);
    hand.pass(1);
    assert_eq!(written(&hand), (0..100).collect::<Vec<_>>());
}

/// A controller with keep-alive of a second whose host vanishes with writes under way.
fn vanished(faults: Faults, delay_ns: u64) -> Hand {
    let mut hand = Hand::new(config(&[Config {
        delay_ns,
        ..Config::default()
    }]));
    hand.kato_ms = 1000;
    let queue = hand.queue(0, 64);
    hand.control(TargetControl::Faults(0, faults));
    hand.write(queue, 5, &pattern(1, 4096));
    hand.pass(MS);
    hand.hang_up(queue);
    hand.pass(5 * SECOND);
    assert_eq!(hand.target.port_stats(0).in_flight, 0);
    assert_eq!(hand.accept(0), Some(0), "all numbers are free");
    hand
}

#[test]
fn t09_writes_outlive_their_connection_until_keep_alive_expires() {
    let faults = Faults {
        until_keep_alive: true,
        ..Faults::default()
    };
    for (delay_ns, executed) in [(900 * MS, 1), (1100 * MS, 0)] {
        let hand = vanished(faults.clone(), delay_ns);
        assert_eq!(hand.requests.len(), executed, "{delay_ns}");
        assert_eq!(stats(&hand).outlived_writes, executed as u64);
        let hand = vanished(Faults::default(), delay_ns);
        assert_eq!(hand.requests, [], "only with the fault");
    }
}

/// The timer expires while the connection stands: that ends its writes, fault or not.
#[test]
fn t09_nothing_begins_after_keep_alive_has_expired() {
    let mut hand = Hand::new(config(&[Config {
        delay_ns: 3 * SECOND,
        ..Config::default()
    }]));
    hand.kato_ms = 1000;
    let queue = hand.queue(0, 64);
    let faults = Faults {
        until_keep_alive: true,
        ..Faults::default()
    };
    hand.control(TargetControl::Faults(0, faults));
    hand.write(queue, 5, &pattern(1, 4096));
    hand.pass(2 * SECOND);
    assert_eq!(hand.wire(queue).closed, Some(true));
    hand.finish_close(queue);
    hand.pass(10 * SECOND);
    assert_eq!(hand.requests, []);
}

/// A process that stood still for longer finds writes in its sockets, or that they are due.
#[test]
fn t09_nothing_begins_after_a_target_slept_through_the_keep_alive_time() {
    let data = pattern(1, 4096);
    let ready = |delay_ns| {
        let mut hand = Hand::new(config(&[Config {
            delay_ns,
            ..Config::default()
        }]));
        hand.kato_ms = 1000;
        let queue = hand.queue(0, 64);
        (hand, queue)
    };
    let over = |mut hand: Hand, queue: u32| {
        assert_eq!(hand.wire(queue).closed, Some(true));
        hand.pass(10 * SECOND);
        assert_eq!(hand.requests, []);
    };
    // The whole write comes late.
    let (mut hand, queue) = ready(0);
    hand.now += 2 * SECOND;
    hand.write(queue, 5, &data);
    over(hand, queue);
    // Its data do.
    let (mut hand, queue) = ready(0);
    hand.write_later(queue, 5, 1);
    let [(_, Got::R2t(asked))] = hand.take(queue)[..] else {
        panic!("data are not asked for");
    };
    hand.now += 2 * SECOND;
    hand.answer(queue, &asked, &data);
    over(hand, queue);
    // It was delayed, and is due as well.
    let (mut hand, queue) = ready(500 * MS);
    hand.write(queue, 5, &data);
    hand.now += 2 * SECOND;
    hand.pass(0);
    over(hand, queue);
}

/// Question of the runtime before it starts a change.
#[test]
fn t49_a_change_starts_before_keep_alive_expires() {
    let mut hand = Hand::new(config(&[Config::default()]));
    hand.kato_ms = 1000;
    hand.hold_device = true;
    let queue = hand.queue(0, 64);
    hand.write(queue, 5, &pattern(1, 4096));
    let id = hand.requests[0].id;
    let before_ns = hand.target.start_before_ns(id);
    assert!((hand.now + MS..=hand.now + SECOND).contains(&before_ns));
    // Its host says something: the association lives on.
    hand.pass(SECOND / 2);
    hand.read(queue, 1, 1);
    let later_ns = hand.target.start_before_ns(id);
    assert!(later_ns >= before_ns);
    // And nothing any more.
    hand.pass(3 * SECOND);
    assert_eq!(hand.target.start_before_ns(id), 0);
}

#[test]
fn a_mute_port_takes_everything_and_says_it_later() {
    let (mut hand, queue) = ready(Faults::default());
    let faults = Faults {
        mute_until_ns: hand.now + 5 * SECOND,
        ..Faults::default()
    };
    hand.control(TargetControl::Faults(0, faults.clone()));
    hand.write(queue, 1, &pattern(1, 4096));
    hand.read(queue, 1, 1);
    hand.pass(5 * SECOND - 1);
    assert_eq!(hand.take(queue), []);
    assert!(stats(&hand).muted > 0);
    hand.pass(1);
    assert_eq!(hand.done(queue).len(), 2);
    let again = Faults {
        mute_until_ns: hand.now + 5 * SECOND,
        ..faults
    };
    hand.control(TargetControl::Faults(0, again));
    hand.read(queue, 1, 1);
    assert_eq!(hand.take(queue), []);
    hand.control(TargetControl::Faults(0, Faults::default()));
    assert_eq!(hand.done(queue).len(), 1, "lifted");
}

#[test]
fn a_port_that_refuses_keeps_whom_it_has() {
    let (mut hand, queue) = ready(Faults::default());
    let faults = Faults {
        refuse_until_ns: hand.now + SECOND,
        ..Faults::default()
    };
    hand.control(TargetControl::Faults(0, faults));
    assert_eq!(hand.accept(0), None);
    hand.read(queue, 0, 1);
    assert_eq!(hand.done(queue).len(), 1);
    hand.pass(SECOND);
    assert!(hand.accept(0).is_some());
    assert_eq!(stats(&hand).refused, 1);
}

#[test]
fn the_log_says_who_came_and_why_they_went() {
    let mut hand = Hand::new(config(&[Config::default()]));
    let log = hand.target.log();
    let why = |log: &engine::target::Log| match log.pop() {
        Some((0, Event::Closed { port: 0, why, .. })) => why,
        other => panic!("{other:?}"),
    };
    let came = |hand: &mut Hand| {
        let connection = hand.accept(0).unwrap();
        let event = Event::Connected {
            port: 0,
            connection,
        };
        assert_eq!(log.pop(), Some((0, event)));
        connection
    };
    let conn = came(&mut hand);
    hand.hang_up(conn);
    assert_eq!(why(&log), Why::Network(Closed::ByPeer));
    let conn = came(&mut hand);
    hand.say(conn, &[0xff; 4096]);
    hand.finish_close(conn);
    assert_eq!(why(&log), Why::Target(CloseReason::Protocol));
    let conn = came(&mut hand);
    hand.control(TargetControl::Drop(0));
    hand.finish_close(conn);
    assert_eq!(why(&log), Why::Dropped);
    assert_eq!(stats(&hand).drops, 1);
    assert_eq!(hand.target.board().port(0).faults, stats(&hand));
}
