//! Changes that overlap, of associations that are there and of ones that are gone (T9).
use crate::target_hand::*;
use engine::Machine;
use nvme::wire::sqe::{Sgl, admin};
use nvme::wire::{SqeBuilder, Status};

/// A target whose device answers when it is told to, and a queue.
fn ready() -> (Hand, u32) {
    let (mut hand, queues) = Hand::ready(&[shape::Config::default()]);
    hand.target.keep_order();
    hand.hold_device = true;
    (hand, queues[0])
}

fn abort(hand: &mut Hand, cid: u16) -> bool {
    let sqe = SqeBuilder::new(admin::ABORT).cdw(10, 1 | u32::from(cid) << 16);
    hand.ask(0, sqe, &[]).result == 0
}

#[test]
fn t09_what_a_device_has_of_a_lost_host_comes_first() {
    let (mut hand, queue) = ready();
    hand.write(queue, 0, &pattern(1, 4096));
    hand.hang_up(queue);
    let queue = hand.queue(0, 64);
    hand.write(queue, 0, &pattern(2, 4096));
    hand.write(queue, 1, &pattern(3, 4096));
    assert_eq!(hand.at_device.len(), 2, "the one beside it does not wait");
    hand.answer_device();
    assert_eq!(hand.disk[..4096], pattern(1, 4096));
    while !hand.at_device.is_empty() {
        hand.answer_device();
    }
    assert_eq!(hand.done(queue).len(), 2);
    assert_eq!(hand.disk[..4096], pattern(2, 4096));
}

#[test]
fn t12_a_change_that_waits_for_another_is_taken_back() {
    let (mut hand, queue) = ready();
    let cids = [1, 2, 3].map(|seed| hand.write(queue, 0, &pattern(seed, 4096)));
    assert_eq!(hand.at_device.len(), 1);
    assert!(abort(&mut hand, cids[1]));
    assert!(!abort(&mut hand, cids[0]));
    hand.answer_device();
    hand.answer_device();
    let ends: Vec<_> = hand.done(queue).iter().map(|it| (it.1, it.2)).collect();
    let want = [
        (cids[1], Status::ABORT_REQUESTED),
        (cids[0], Status::SUCCESS),
        (cids[2], Status::SUCCESS),
    ];
    assert_eq!(ends, want);
    assert_eq!(hand.disk[..4096], pattern(3, 4096));
}

#[test]
fn t09_a_waiting_change_goes_with_its_connection() {
    let (mut hand, queue) = ready();
    let other = hand.queue(0, 64);
    hand.write(other, 0, &pattern(1, 4096));
    hand.write(queue, 0, &pattern(2, 4096));
    hand.hang_up(queue);
    hand.answer_device();
    assert!(hand.at_device.is_empty(), "dropped");
    assert_eq!(hand.disk[..4096], pattern(1, 4096));
    assert_eq!(hand.target.port_stats(0).in_flight, 0);
    hand.write(other, 0, &pattern(3, 4096));
    hand.answer_device();
    assert_eq!(hand.disk[..4096], pattern(3, 4096));
}

/// A device may fail a change: those behind it go on.
#[test]
fn a_failed_change_lets_others_go_on() {
    let (mut hand, queue) = ready();
    hand.write(queue, 0, &pattern(1, 4096));
    let second = hand.write(queue, 0, &pattern(2, 4096));
    let first = hand.at_device.pop_front().unwrap();
    let error = Err(engine::machine::DeviceError::Os(5));
    hand.target.handle_device(first.id, error, hand.now);
    hand.settle();
    hand.answer_device();
    let last = *hand.done(queue).last().unwrap();
    assert_eq!((last.1, last.2), (second, Status::SUCCESS));
}

/// Of ranges that are deallocated one after the other no further one is begun for a lost host.
#[test]
fn t09_the_rest_of_a_deallocation_goes_with_its_host() {
    let (mut hand, queue) = ready();
    let range = |slba: u64| [&[0; 4][..], &1_u32.to_le_bytes(), &slba.to_le_bytes()].concat();
    let sgl = Sgl::InCapsule { offset: 0, len: 32 };
    let sqe = io(0x09, 0, 0).cdw(10, 1).cdw(11, 4).cdw(12, 0).sgl(sgl);
    hand.send(queue, sqe, &[range(0), range(1)].concat());
    assert_eq!(hand.at_device.len(), 1);
    hand.hang_up(queue);
    hand.answer_device();
    assert!(hand.at_device.is_empty());
    assert_eq!(hand.target.port_stats(0).in_flight, 0);
}
