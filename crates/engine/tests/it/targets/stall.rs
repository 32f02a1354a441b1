//! Hosts that hold the target's memory and move nothing, while others wait for it.

use crate::target_hand::*;
use engine::limits::TARGET_STALL_NS;
use engine::target::{Event, TargetConfig, Why};
use nvme::wire::pdu::{DataHeader, Framing, PduType, flags};
use shape::Config;

/// Bytes and blocks of the largest transfer.
const TRANSFER: u32 = 128 << 10;
const BLOCKS_MAX: u32 = TRANSFER >> SHIFT;

/// A target with room for two of them.
fn small() -> TargetConfig {
    let mut config = config(&[Config::default()]);
    config.subsystem.transfer_shift = 17;
    config.arena_bytes = 2 * u64::from(TRANSFER) + 16 * u64::from(IN_CAPSULE);
    config
}

/// A write of the largest size, for whose data the target has asked.
fn hold(hand: &mut Hand, queue: u32) -> DataHeader {
    hand.write_later(queue, 0, BLOCKS_MAX);
    match hand.take(queue)[..] {
        [(_, Got::R2t(asked))] => asked,
        ref other => panic!("{other:?}"),
    }
}

/// Two queues that between them have all that is shared, and one that waits for it; what the first
/// was asked for.
fn pressed() -> (Hand, [u32; 2], u32, DataHeader) {
    let mut hand = Hand::new(small());
    let [first, second, waiting] = [0, 0, 0].map(|port| hand.queue(port, 16));
    let asked = hold(&mut hand, first);
    hold(&mut hand, second);
    hand.read(waiting, 0, BLOCKS_MAX);
    (hand, [first, second], waiting, asked)
}

fn reasons(hand: &Hand) -> Vec<Why> {
    let events = core::iter::from_fn(|| hand.target.log().pop());
    let whys = events.filter_map(|(_, event)| match event {
        Event::Closed { why, .. } => Some(why),
        Event::Connected { .. } | Event::TurnedAway { .. } => None,
    });
    whys.collect()
}

#[test]
fn who_waits_for_memory_of_stalled_hosts_has_it_after_two_looks() {
    let (mut hand, holders, waiting, _) = pressed();
    assert!(hand.done(waiting).is_empty());
    hand.pass(2 * TARGET_STALL_NS);
    for holder in holders {
        assert_eq!(hand.wire(holder).closed, Some(true), "reset");
        hand.hang_up(holder);
    }
    assert_eq!(hand.wire(waiting).closed, None);
    let done = hand.done(waiting);
    assert!(
        matches!(done[..], [(_, _, status)] if status.is_success()),
        "{done:?}"
    );
    assert_eq!(
        reasons(&hand)
            .iter()
            .filter(|why| **why == Why::Stalled)
            .count(),
        2
    );
    hand.hang_up(waiting);
    assert_eq!(hand.target.buffers_free(), hand.target.buffers());
}

#[test]
fn answers_that_are_not_taken_are_a_stall_too() {
    let mut hand = Hand::new(small());
    let [deaf, waiting] = [0, 0].map(|port| hand.queue(port, 16));
    hand.hold_sends.push(deaf);
    hand.read(deaf, 0, BLOCKS_MAX);
    hand.read(deaf, 0, BLOCKS_MAX);
    let other = hand.queue(0, 16);
    hand.write_later(other, 0, BLOCKS_MAX);
    hand.read(waiting, 0, BLOCKS_MAX);
    hand.pass(2 * TARGET_STALL_NS);
    assert_eq!(hand.wire(deaf).closed, Some(true));
}

#[test]
fn a_host_that_is_in_nobodys_way_is_let_be() {
    let mut hand = Hand::new(small());
    let slow = hand.queue(0, 16);
    hand.write_later(slow, 0, BLOCKS_MAX);
    hand.pass(100 * TARGET_STALL_NS);
    assert_eq!(hand.wire(slow).closed, None);
}

#[test]
fn a_host_that_moves_something_keeps_what_it_has() {
    let (mut hand, [slow, stalled], waiting, asked) = pressed();
    // A sixteenth would be too little, an eighth is enough.
    let piece = TRANSFER / 8;
    let mut bytes = Vec::new();
    let data = pattern(1, TRANSFER as usize);
    Framing::PLAIN.whole(
        &mut bytes,
        PduType::H2cData,
        flags::LAST,
        &asked.emit(),
        &data,
    );
    let mut rest = bytes.chunks(piece as usize);
    for _ in 0..6 {
        hand.say(slow, rest.next().unwrap());
        hand.pass(TARGET_STALL_NS);
    }
    assert_eq!(hand.wire(slow).closed, None);
    assert_eq!(hand.wire(stalled).closed, Some(true));
    for piece in rest {
        hand.say(slow, piece);
    }
    let done = hand.done(slow);
    assert!(
        matches!(done[..], [(_, _, status)] if status.is_success()),
        "{done:?}"
    );
    assert_eq!(
        hand.done(waiting).len(),
        1,
        "it is served by what came back"
    );
}

#[test]
fn what_a_device_has_is_no_fault_of_the_host() {
    let mut hand = Hand::new(small());
    let [first, waiting] = [0, 0].map(|port| hand.queue(port, 16));
    hand.hold_device = true;
    hand.read(first, 0, BLOCKS_MAX);
    hand.read(waiting, 0, BLOCKS_MAX);
    hand.read(first, 0, BLOCKS_MAX);
    assert!(hand.target.port_stats(0).waited_buffer > 0);
    hand.pass(10 * TARGET_STALL_NS);
    assert_eq!(hand.wire(first).closed, None);
    hand.hold_device = false;
    while !hand.at_device.is_empty() {
        hand.answer_device();
    }
    assert_eq!((hand.done(first).len(), hand.done(waiting).len()), (2, 1));
}
