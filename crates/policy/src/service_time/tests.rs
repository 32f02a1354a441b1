//! The formula worked by hand once, and its corner cases.
use super::*;
use crate::tests::{UP, good, request};
use crate::{Completion, Ended, Group, PathIndex, Policy, Request, Selector};
use std::vec::Vec;

fn views(throughputs: &[u8]) -> Vec<PathView> {
    let view = |&throughput| PathView { throughput, ..UP };
    throughputs.iter().map(view).collect()
}

/// Places I/Os of these lengths; returns their paths.
fn place(state: &mut ServiceTime, views: &[PathView], lengths: &[u32]) -> Vec<usize> {
    let one = |&length: &u32| {
        let path = state.choose(length, views).unwrap();
        state.begin(path, length);
        path
    };
    lengths.iter().map(one).collect()
}

#[test]
fn bytes_in_flight_over_throughput_by_hand() {
    let mut state = ServiceTime::new(1);
    // With throughputs 3 and 1: 4/3 < 4/1; 8/3 < 4/1; 12/3 = 4/1, the faster path; 16/3 > 4/1.
    let taken = place(&mut state, &views(&[3, 1]), &[4096; 4]);
    assert_eq!(taken, [0, 0, 0, 1]);
    // (12 + 64)/3 = 25.3 < (4 + 64)/1; then (76 + 4)/3 = 26.7 > 8, and 12, 16, 20, 24 as well.
    let taken = place(&mut state, &views(&[3, 1]), &[65536, 4096, 4096]);
    assert_eq!(taken, [0, 1, 1]);
    assert_eq!(state.bytes[..2], [77824, 12288]);
}

#[test]
fn equal_paths_take_turns() {
    let mut state = ServiceTime::new(1);
    for turn in 0..9 {
        assert_eq!(place(&mut state, &[UP; 3], &[512]), [turn % 3]);
        let ticket = Ticket {
            units: 512,
            epoch: 1,
            ..Ticket::default()
        };
        let _ = state.end(turn % 3, &ticket);
    }
}

#[test]
fn throughput_0_is_for_need_only() {
    let mut state = ServiceTime::new(1);
    assert_eq!(place(&mut state, &views(&[0, 1]), &[1 << 20; 3]), [1; 3]);
    let mut needed = views(&[0, 1, 0]);
    needed[1].enabled = false;
    assert_eq!(place(&mut state, &needed, &[4096; 4]), [2, 0, 2, 0]);
}

/// Other cores' I/Os are taken to be as long as our own: with a mean of 4 KiB, two of them weigh as
/// much as two of ours.
#[test]
fn other_cores_ios_in_flight_count() {
    let mut state = ServiceTime::new(1);
    let mut seen = views(&[1, 1]);
    seen[0].in_flight_elsewhere = 2;
    assert_eq!(place(&mut state, &seen, &[4096; 5]), [0, 1, 1, 1, 0]);
}

/// T41: I/Os placed before a switch are not in the books, nor taken from them.
#[test]
fn t41_the_books_balance_across_switches() {
    let mut selector = Selector::new(2, Policy::ServiceTime);
    let place = |selector: &mut Selector| {
        let path = selector.select(&request(Group::Write, 8192), &[UP; 2]);
        (path.unwrap(), selector.ticket())
    };
    let end = |selector: &mut Selector, (path, ticket): (PathIndex, Ticket), ended| {
        let _ = selector.complete(&Completion {
            ticket,
            ended,
            ..good(path.0, 1000, 1)
        });
    };
    let old = place(&mut selector);
    selector.set_policy(Policy::Soonest);
    let soonest = place(&mut selector);
    selector.set_policy(Policy::ServiceTime);
    assert_eq!(selector.service_time.bytes[..2], [0, 0]);
    let own = [0; 2].map(|_| place(&mut selector));
    end(&mut selector, old, Ended::Good);
    end(&mut selector, soonest, Ended::Good);
    assert_eq!(selector.service_time.bytes[..2], [8192, 8192]);
    for one in own {
        end(&mut selector, one, Ended::Failed);
    }
    assert_eq!(selector.service_time.bytes[..2], [0, 0]);
    let left = [0, 1].map(|path| selector.in_flight(PathIndex(path)));
    assert_eq!(left, [0, 0]);
}

/// The largest there can be does not overflow.
#[test]
fn no_sum_overflows() {
    let mut state = ServiceTime::new(1);
    let mut seen = views(&[100, 100]);
    for view in &mut seen {
        view.in_flight_elsewhere = u32::MAX;
    }
    let longest: Request = request(Group::Read, u32::MAX);
    for _ in 0..1000 {
        place(&mut state, &seen, &[longest.length]);
    }
    assert_eq!(state.bytes[0], state.bytes[1]);
}

/// Epochs wrap, so a ticket of an earlier one may look like one of this.
#[test]
fn an_end_that_was_not_booked_leaves_nothing() {
    let mut state = ServiceTime::new(1);
    let mut ticket = state.begin(0, 512);
    ticket.units = 1024;
    let _ = state.end(0, &ticket);
    assert_eq!(state.bytes[0], 0);
}
