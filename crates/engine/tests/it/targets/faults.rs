//! The target's engine when memory is short, hosts misbehave, connections end and devices fail.

use crate::target_hand::*;
use engine::machine::{Closed, DeviceError};
use engine::target::{ErrorRule, Faults, Ops, Probability, TargetConfig, TargetControl};
use engine::{ConnId, DeviceOp, Machine};
use nvme::wire::Status;
use nvme::wire::pdu::DataHeader;
use proptest::prelude::*;
use shape::Config;

fn delay(ns: u64) -> Config {
    Config {
        delay_ns: ns,
        ..Config::default()
    }
}

/// A target with room for little more than two large transfers.
fn small(shape: Config) -> TargetConfig {
    let mut config = config(&[shape]);
    config.subsystem.transfer_shift = 17;
    config.subsystem.connections_max = 8;
    config.arena_bytes = 2 * (128 << 10) + 8 * u64::from(IN_CAPSULE);
    config
}

fn r2ts(hand: &mut Hand, conn: u32) -> Vec<DataHeader> {
    let got = hand.take(conn).into_iter();
    got.filter_map(|(_, got)| match got {
        Got::R2t(r2t) => Some(r2t),
        _ => None,
    })
    .collect()
}

/// All of the arena can be had: two writes of the largest size get their R2T at once.
fn arena_is_whole(hand: &mut Hand) -> bool {
    let waited = hand.target.port_stats(0).waited_buffer;
    let queues = [0, 0].map(|port| hand.queue(port, 16));
    queues.iter().for_each(|queue| {
        hand.write_later(*queue, 0, 32);
    });
    queues.iter().for_each(|queue| hand.hang_up(*queue));
    hand.target.port_stats(0).waited_buffer == waited
}

#[test]
fn t06_want_of_buffers_is_never_an_error() {
    let mut hand = Hand::new(small(delay(MS)));
    let queue = hand.queue(0, 1024);
    let data = pattern(1, 8192);
    for i in 0..200 {
        match i % 2 {
            0 => hand.write(queue, i, &data),
            _ => hand.read(queue, i, 32),
        };
    }
    assert!(
        !hand.wire(queue).backlog.is_empty(),
        "the stream stands still"
    );
    hand.pass(SECOND);
    let done = hand.done(queue);
    assert_eq!(done.len(), 200);
    assert!(done.iter().all(|(_, _, status)| status.is_success()));
    assert!(hand.wire(queue).resumed > 0 && hand.wire(queue).backlog.is_empty());
    assert!(hand.target.port_stats(0).waited_buffer > 0);
    assert!(arena_is_whole(&mut hand));
}

/// Behind a capsule that waits for a buffer lies the data that would free one.
#[test]
fn a_stream_never_waits_for_what_lies_behind_it() {
    let mut hand = Hand::new(small(Config::default()));
    let queue = hand.queue(0, 1024);
    for i in 0..50 {
        hand.write_later(queue, i, 32);
    }
    let asked = r2ts(&mut hand, queue);
    assert!(
        (1..50).contains(&asked.len()),
        "the others wait for buffers: {}",
        asked.len()
    );
    let data = pattern(2, 128 << 10);
    for i in 0..50 {
        hand.write(queue, 100 + i, &data[..8192]);
    }
    let mut waiting = asked;
    while let Some(r2t) = waiting.pop() {
        hand.answer(queue, &r2t, &data);
        for (_, got) in hand.take(queue) {
            match got {
                Got::R2t(r2t) => waiting.push(r2t),
                Got::Done(cqe) => assert!(cqe.status.is_success()),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(hand.target.port_stats(0).commands, 100);
    assert!(arena_is_whole(&mut hand));
}

#[test]
fn a_host_that_hoards_buffers_starves_itself_alone() {
    let mut hand = Hand::new(small(Config::default()));
    let [hoarder, deaf, honest] = [0, 0, 0].map(|port| hand.queue(port, 1024));
    for i in 0..100 {
        hand.write_later(hoarder, i, 16); // and never sends the data
    }
    hand.hold_sends.push(deaf);
    for i in 0..100 {
        hand.read(deaf, i, 8); // and never takes the answers
    }
    let data = pattern(3, 8192);
    for i in 0..100 {
        hand.write(honest, i, &data);
        hand.read(honest, i, 2);
        let done = hand.done(honest);
        assert!(done.len() == 2 && done.iter().all(|(_, _, status)| status.is_success()));
    }
    hand.hang_up(hoarder);
    hand.hang_up(deaf);
    assert!(arena_is_whole(&mut hand));
}

#[test]
fn a_connection_that_ends_takes_with_it_what_has_not_begun() {
    let mut hand = Hand::new(small(delay(30 * MS)));
    let queue = hand.queue(0, 1024);
    for i in 0..20 {
        hand.write(queue, i, &pattern(4, 4096));
        hand.read(queue, i, 32);
        hand.write_later(queue, i, 32);
    }
    hand.hang_up(queue);
    assert_eq!(hand.target.port_stats(0).in_flight, 0);
    hand.pass(SECOND);
    assert_eq!(hand.requests, [], "no late write");
    assert!(arena_is_whole(&mut hand));
}

#[test]
fn what_is_at_a_device_ends_there_and_only_then_the_connection_is_free() {
    let mut hand = Hand::new(small(Config::default()));
    let queue = hand.queue(0, 1024);
    hand.hold_device = true;
    hand.write(queue, 0, &pattern(5, 4096));
    hand.read(queue, 1, 16);
    hand.hang_up(queue);
    let others: Vec<u32> = std::iter::from_fn(|| hand.accept(0)).collect();
    assert_eq!(others.len(), 7, "eight, less the one with commands");
    assert!(!others.contains(&queue));
    hand.answer_device();
    assert_eq!(hand.accept(0), None);
    hand.answer_device();
    assert_eq!(hand.accept(0), Some(queue));
    assert_eq!(hand.disk[..4096], pattern(5, 4096));
    hand.hold_device = false;
    while let Some((conn, _)) = hand.wires.first_key_value() {
        hand.hang_up(*conn);
    }
    assert!(arena_is_whole(&mut hand));
}

#[test]
fn a_dropped_port_loses_its_connections_and_takes_new_ones() {
    let (mut hand, queues) = Hand::ready(&[Config::default(), delay(MS)]);
    hand.read(queues[1], 0, 1);
    hand.control(TargetControl::Drop(1));
    let closed = |hand: &Hand| -> Vec<u32> {
        let those = hand
            .wires
            .iter()
            .filter(|(_, wire)| wire.closed == Some(true));
        those.map(|(conn, _)| *conn).collect()
    };
    let dropped = closed(&hand);
    assert_eq!(dropped.len(), 2);
    assert!(dropped.contains(&queues[1]));
    dropped.iter().for_each(|conn| hand.finish_close(*conn));
    hand.pass(SECOND);
    assert_eq!(hand.requests, []);
    assert_eq!(hand.target.port_stats(1).connections, 0);
    let again = hand.queue(1, 64);
    hand.read(again, 0, 1);
    hand.read(queues[0], 0, 1);
    hand.pass(SECOND);
    assert_eq!(hand.done(again).len(), 1);
    assert_eq!(hand.done(queues[0]).len(), 1);
}

#[test]
fn device_errors_reach_the_host_under_the_right_name() {
    let (mut hand, queues) = Hand::ready(&[Config::default()]);
    let mut status = |error, op: DeviceOp| {
        hand.device_error = Some(error);
        match op {
            DeviceOp::Read => hand.read(queues[0], 0, 1),
            DeviceOp::Flush => hand.send(queues[0], io(0x00, 0, 0), &[]),
            _ => hand.write(queues[0], 0, &[0; 4096]),
        };
        hand.done(queues[0])[0].2
    };
    let write = DeviceOp::Write { fua: false };
    for (error, op, expected, dnr) in [
        (DeviceError::Full, write, Status::CAPACITY_EXCEEDED, true),
        (DeviceError::ReadOnly, write, Status::WRITE_PROTECTED, true),
        (
            DeviceError::Unsupported,
            DeviceOp::Flush,
            Status::INVALID_OPCODE,
            true,
        ),
        (
            DeviceError::Os(5),
            DeviceOp::Read,
            Status::UNRECOVERED_READ,
            false,
        ),
        (DeviceError::Os(5), write, Status::WRITE_FAULT, false),
        (DeviceError::Os(12), write, Status::INTERNAL_ERROR, false),
    ] {
        let got = status(error, op);
        assert!(got.is(expected) && got.dnr() == dnr, "{error:?}: {got}");
    }
}

#[test]
fn garbage_is_answered_once_and_ends_the_connection() {
    let (mut hand, queues) = Hand::ready(&[Config::default()]);
    let conn = hand.accept(0).unwrap();
    hand.say(conn, &[0xff; 4096]);
    assert!(matches!(hand.take(conn)[..], [(_, Got::Term)]));
    assert!(hand.wire(conn).closed.is_some());
    assert_eq!(hand.target.port_stats(0).protocol_errors, 1);
    hand.finish_close(conn);
    hand.read(queues[0], 0, 1);
    assert_eq!(hand.done(queues[0]).len(), 1, "the others don't notice");
}

#[test]
fn what_was_to_be_done_to_a_connection_is_not_done_to_the_next_of_its_number() {
    let mut hand = Hand::new(config(&[Config::default()]));
    let conn = ConnId(hand.accept(0).unwrap());
    // Within one loop turn: it breaks the protocol, it is gone, and another one is there.
    hand.target.handle_bytes(conn, &[0xff; 4096], hand.now);
    hand.target.handle_closed(conn, Closed::ByPeer, hand.now);
    assert_eq!(hand.target.handle_accepted(0, hand.now), Some(conn));
    assert_eq!(hand.target.poll_output(), None);
}

#[test]
fn a_host_that_says_nothing_or_one_byte_a_second_is_cut_off() {
    let mut hand = Hand::new(config(&[Config::default()]));
    let silent = hand.accept(0).unwrap();
    let slow = hand.accept(0).unwrap();
    for _ in 0..60 {
        hand.pass(SECOND);
        if hand.wire(slow).closed.is_none() {
            hand.say(slow, &[0]);
        }
    }
    for conn in [silent, slow] {
        assert!(hand.wire(conn).closed.is_some());
        hand.finish_close(conn);
    }
    assert_eq!(hand.target.port_stats(0).connections, 0);
}

#[test]
fn more_connections_than_there_may_be_are_refused_and_the_rest_serves() {
    let mut hand = Hand::new(small(Config::default()));
    let queue = hand.queue(0, 64);
    let idle: Vec<u32> = std::iter::from_fn(|| hand.accept(0)).collect();
    assert_eq!(idle.len(), 6);
    hand.read(queue, 0, 1);
    assert_eq!(hand.done(queue).len(), 1);
    hand.hang_up(idle[0]);
    assert!(hand.accept(0).is_some());
}

/// Moves of a hostile host.
#[derive(Clone, Debug)]
enum Move {
    Bytes(Vec<u8>),
    Read(u64, u32),
    Write(u64, usize),
    WriteLater(u64, u32),
    Answer,
    Pass(u64),
    HangUp,
    Device,
    Drop,
    /// Writes held so long, then late so long (up to 3 ms: never), or until keep-alive expires; how
    /// often commands fail and connections drop.
    Faults(u64, u64, bool, u32),
    Stall(u64),
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 1..64).prop_map(Move::Bytes),
        6 => (0..2 * BLOCKS, 0u32..40).prop_map(|(slba, blocks)| Move::Read(slba, blocks)),
        6 => (0..BLOCKS, 1usize..3).prop_map(|(slba, blocks)| Move::Write(slba, blocks)),
        6 => (0..BLOCKS, 0u32..33).prop_map(|(slba, blocks)| Move::WriteLater(slba, blocks)),
        6 => Just(Move::Answer),
        4 => (0..10 * MS).prop_map(Move::Pass),
        1 => Just(Move::HangUp),
        6 => Just(Move::Device),
        1 => Just(Move::Drop),
        1 => (0..10 * MS).prop_map(Move::Stall),
        1 => (0..10 * MS, 0..10 * MS, any::<bool>(), 0..50_000_000u32)
            .prop_map(|(hold, late, kato, rate)| Move::Faults(hold, late, kato, rate)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Whatever three hosts do: no panic, and in the end every buffer is back and a new host is
    /// served.
    #[test]
    fn whatever_hosts_do_nothing_is_lost(
        moves in prop::collection::vec((0usize..3, moves()), 1..150),
    ) {
        let mut config = small(delay(MS));
        config.subsystem.connections_max = 300;
        config.arena_bytes += 292 * u64::from(IN_CAPSULE);
        let mut hand = Hand::new(config);
        hand.hold_device = true;
        let mut queues: Vec<Option<u32>> = vec![None; 3];
        for (who, step) in moves {
            sweep(&mut hand);
            for queue in &mut queues {
                *queue = queue.filter(|conn| hand.wires.contains_key(conn));
            }
            if queues[who].is_none() {
                queues[who] = Some(hand.queue(0, 64));
            }
            let Some(conn) = queues[who] else { continue };
            match step {
                Move::Bytes(bytes) => hand.say(conn, &bytes),
                Move::Read(slba, blocks) => drop(hand.read(conn, slba, blocks)),
                Move::Write(slba, blocks) => {
                    hand.write(conn, slba, &pattern(7, blocks << SHIFT));
                }
                Move::WriteLater(slba, blocks) => drop(hand.write_later(conn, slba, blocks)),
                Move::Answer => {
                    for r2t in r2ts(&mut hand, conn) {
                        hand.answer(conn, &r2t, &pattern(8, 33 << SHIFT));
                    }
                }
                Move::Pass(ns) => hand.pass(ns),
                Move::HangUp => {
                    queues[who] = None;
                    hand.hang_up(conn);
                }
                Move::Device if hand.at_device.is_empty() => {}
                Move::Device => hand.answer_device(),
                Move::Drop => hand.control(TargetControl::Drop(0)),
                Move::Faults(hold_ns, late_writes_ns, until_keep_alive, rate) => {
                    let faults = Faults {
                        hold_writes_until_ns: hand.now + hold_ns,
                        late_writes_ns: late_writes_ns.saturating_sub(3 * MS),
                        until_keep_alive,
                        ..chances(rate)
                    };
                    hand.control(TargetControl::Faults(0, faults));
                }
                Move::Stall(ns) => {
                    let stall_until_ns = hand.now + ns;
                    let shape = Config { stall_until_ns, ..delay(MS) };
                    hand.control(TargetControl::Shape(0, shape));
                }
            }
        }
        hand.control(TargetControl::Drop(0));
        hand.control(TargetControl::Faults(0, Faults::default()));
        sweep(&mut hand);
        hand.pass(SECOND);
        while !hand.at_device.is_empty() {
            hand.answer_device();
        }
        hand.hold_device = false;
        hand.pass(SECOND);
        let stats = hand.target.port_stats(0);
        prop_assert_eq!((stats.connections, stats.in_flight), (0, 0));
        prop_assert!(arena_is_whole(&mut hand));
    }
}

/// Commands fail and connections drop, so many times of 10⁹.
fn chances(parts_per_billion: u32) -> Faults {
    let rate = Probability::new(parts_per_billion).unwrap();
    let error = ErrorRule {
        status: Status::INTERNAL_ERROR,
        ops: Ops::ALL,
        blocks: None,
        rate,
    };
    Faults {
        errors: vec![error],
        drop_rate: rate,
        ..Faults::default()
    }
}

/// Ends every connection that the target has closed.
fn sweep(hand: &mut Hand) {
    loop {
        let closed = hand.wires.iter().find(|(_, wire)| wire.closed.is_some());
        let Some(conn) = closed.map(|(conn, _)| *conn) else {
            return;
        };
        hand.finish_close(conn);
    }
}
