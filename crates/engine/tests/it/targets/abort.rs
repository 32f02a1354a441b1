//! Abort at the target (T12): what has not begun is taken back, and of the rest it says the truth.

use crate::target_hand::*;
use engine::target::{Faults, Probability, TargetControl};
use nvme::wire::sqe::admin;
use nvme::wire::{SqeBuilder, Status};
use shape::Config;

/// A queue over a port of that shape; its controller's admin connection is number 0.
fn ready(shape: Config) -> (Hand, u32) {
    let (hand, queues) = Hand::ready(&[shape]);
    assert_eq!(queues[0], 1);
    (hand, queues[0])
}

/// Whether the command of queue 1 was taken back, as the controller says.
fn abort(hand: &mut Hand, cid: u16) -> bool {
    let sqe = SqeBuilder::new(admin::ABORT).cdw(10, 1 | u32::from(cid) << 16);
    let cqe = hand.ask(0, sqe, &[]);
    assert!(cqe.status.is_success());
    cqe.result == 0
}

/// Statuses with which the commands of a queue have ended, in order.
fn ends(hand: &mut Hand, queue: u32) -> Vec<(u16, Status)> {
    let done = hand.done(queue);
    done.into_iter()
        .map(|(_, cid, status)| (cid, status))
        .collect()
}

fn set(hand: &mut Hand, faults: Faults) {
    hand.control(TargetControl::Faults(0, faults));
}

#[test]
fn t12_what_waits_for_its_ports_shape_is_taken_back() {
    let (mut hand, queue) = ready(Config {
        delay_ns: SECOND,
        ..Config::default()
    });
    let cids = [0, 1, 2].map(|block| hand.write(queue, block, &pattern(7, 4096)));
    assert!(abort(&mut hand, cids[1]));
    assert_eq!(ends(&mut hand, queue), [(cids[1], Status::ABORT_REQUESTED)]);
    assert!(!abort(&mut hand, cids[1]), "it has ended");
    hand.pass(SECOND);
    let done = [cids[0], cids[2]].map(|cid| (cid, Status::SUCCESS));
    assert_eq!(ends(&mut hand, queue), done);
    assert_eq!(hand.disk[4096..8192], [0; 4096], "never executed");
    assert_eq!(hand.target.port_stats(0).in_flight, 0);
}

#[test]
fn t12_what_a_fault_holds_is_taken_back_and_the_others_keep_their_order() {
    let (mut hand, queue) = ready(Config::default());
    let until_ns = hand.now + SECOND;
    set(
        &mut hand,
        Faults {
            hold_writes_until_ns: until_ns,
            ..Faults::default()
        },
    );
    let cids = [1, 2, 3].map(|seed| hand.write(queue, 0, &pattern(seed, 4096)));
    assert!(abort(&mut hand, cids[2]), "the last");
    assert!(abort(&mut hand, cids[0]), "the first");
    let next = hand.write(queue, 0, &pattern(4, 4096));
    hand.pass(SECOND);
    let want = [
        (cids[2], Status::ABORT_REQUESTED),
        (cids[0], Status::ABORT_REQUESTED),
        (cids[1], Status::SUCCESS),
        (next, Status::SUCCESS),
    ];
    assert_eq!(ends(&mut hand, queue), want);
    assert_eq!(hand.disk[..4096], pattern(4, 4096));
    assert_eq!(hand.requests.len(), 2);
}

#[test]
fn t12_what_hangs_is_answered_when_it_is_aborted_and_ends_with_its_connection() {
    let (mut hand, queue) = ready(Config::default());
    let hang = Faults {
        hang_rate: Probability::ALWAYS,
        ..Faults::default()
    };
    set(&mut hand, hang);
    let read = hand.read(queue, 0, 1);
    let write = hand.write(queue, 0, &pattern(1, 4096));
    hand.write(queue, 1, &pattern(1, 4096));
    set(&mut hand, Faults::default());
    hand.pass(1000 * SECOND);
    assert_eq!(ends(&mut hand, queue), [], "also without the fault");
    assert!(abort(&mut hand, write) && abort(&mut hand, read));
    let want = [write, read].map(|cid| (cid, Status::ABORT_REQUESTED));
    assert_eq!(ends(&mut hand, queue), want);
    let stats = hand.target.port_stats(0);
    assert_eq!((stats.faults.hung, stats.in_flight), (3, 1));
    hand.hang_up(queue);
    hand.pass(SECOND);
    assert_eq!(hand.requests, []);
    assert_eq!(hand.target.port_stats(0).in_flight, 0);
    assert_eq!(hand.accept(0), Some(0), "the numbers are free");
}

#[test]
fn t09_what_a_device_has_or_whose_data_are_under_way_is_not_taken_back() {
    let (mut hand, queue) = ready(Config::default());
    hand.hold_device = true;
    let write = hand.write(queue, 0, &pattern(1, 4096));
    let read = hand.read(queue, 1, 1);
    let later = hand.write_later(queue, 2, 4);
    for cid in [write, read, later, 999] {
        assert!(!abort(&mut hand, cid));
    }
    hand.answer_device();
    assert_eq!(ends(&mut hand, queue), [(write, Status::SUCCESS)]);
    assert_eq!(hand.disk[..4096], pattern(1, 4096));
}
