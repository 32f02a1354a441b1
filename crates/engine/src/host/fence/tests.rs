use super::super::io_table::EMPTY;
use super::super::types::Hints;
use super::*;
use alloc::vec::Vec;

const P0: PathIndex = PathIndex(0);
const P1: PathIndex = PathIndex(1);

/// A fence over two paths, and slots for eight I/Os.
fn rig() -> (WriteFence, IoTable) {
    let mut fence = WriteFence::new(8);
    fence.add_path(P1);
    fence.begin_association(P0);
    fence.begin_association(P1);
    (fence, IoTable::new(8, 0))
}

/// A slot with a write of 4 KiB at `offset`.
fn write(ios: &mut IoTable, offset: u64) -> u32 {
    let io = Io {
        op: IoOp::Write { fua: false },
        offset,
        length: 4096,
        ..EMPTY
    };
    ios.take(&io, Hints::default(), 0).unwrap()
}

/// Holds a write that was on a path which was lost.
fn hold(
    fence: &mut WriteFence,
    ios: &mut IoTable,
    path: PathIndex,
    index: u32,
    now_ns: u64,
) -> u64 {
    let mut lane = Lane::EMPTY;
    ios.push_on_path(&mut lane, index, false);
    ios.unlink(&mut lane, index);
    fence.hold(ios, path, index, now_ns)
}

/// The held changes of a path that are due.
fn due(fence: &WriteFence, ios: &IoTable, path: PathIndex, now_ns: u64) -> Vec<u32> {
    let all = core::iter::successors(fence.first_held(path), |&index| ios.next(index));
    all.filter(|&index| ios.get(index).state().is_due(now_ns))
        .collect()
}

fn stats(fence: &WriteFence, ios: &IoTable) -> HoldStats {
    fence.stats(ios, HoldStats::default(), |_| true)
}

/// Places what `place`'s end releases.
fn end(fence: &mut WriteFence, ios: &mut IoTable, index: u32) -> Vec<u32> {
    let place = ios.get(index).fence.unwrap();
    assert!(fence.end(ios, place), "no caller further up");
    core::iter::from_fn(|| fence.next_released(ios)).collect()
}

#[test]
fn t09_held_write_is_due_at_its_bound() {
    let (mut fence, mut ios) = rig();
    let index = write(&mut ios, 0);
    assert_eq!(hold(&mut fence, &mut ios, P0, index, 10), u64::MAX);
    assert_eq!(stats(&fence, &ios).reason, Some(HoldReason::Closing));
    assert_eq!(fence.timeout(&ios), None);
    assert!(!fence.bound(&mut ios, P1, 50), "another path");
    assert!(fence.bound(&mut ios, P0, 100));
    assert_eq!(fence.timeout(&ios), Some(100));
    assert_eq!(due(&fence, &ios, P0, 99), []);
    assert_eq!(due(&fence, &ios, P0, 100), [index]);
    fence.release(&mut ios, P0, index, 100);
    let stats = stats(&fence, &ios);
    assert_eq!(
        (stats.held, stats.held_total, stats.held_ns_max),
        (0, 1, 90)
    );
    assert_eq!((stats.proved_total, stats.bounded_total), (0, 1));
}

#[test]
fn t09_proof_holds_for_one_association_only() {
    let (mut fence, mut ios) = rig();
    let earlier = write(&mut ios, 0);
    hold(&mut fence, &mut ios, P0, earlier, 0);
    fence.begin_association(P0);
    let present = write(&mut ios, 8192);
    hold(&mut fence, &mut ios, P0, present, 0);
    fence.prove(&mut ios, P0, 5);
    assert!(fence.is_proved(P0) && !fence.is_proved(P1));
    assert_eq!(due(&fence, &ios, P0, 5), [present]);
    fence.release(&mut ios, P0, present, 5);
    assert_eq!(stats(&fence, &ios).proved_total, 1);
    fence.begin_association(P0);
    assert!(!fence.is_proved(P0), "nothing is known of the next one");
    fence.bound(&mut ios, P0, 7);
    assert_eq!(due(&fence, &ios, P0, u64::MAX - 1), [], "nor of the first");
}

#[test]
fn t09_reset_without_a_quiesce_time_is_believed_later() {
    let (mut fence, mut ios) = rig();
    let [before, after] = [0, 8192].map(|offset| write(&mut ios, offset));
    hold(&mut fence, &mut ios, P0, before, 0);
    assert!(fence.set_resetting(P0, Some(30)));
    assert!(!fence.set_resetting(P0, Some(30)), "known");
    let reason = |fence: &WriteFence, ios: &IoTable| stats(fence, ios).reason;
    assert_eq!(reason(&fence, &ios), Some(HoldReason::Resetting(30)));
    assert!(fence.believe_from(&mut ios, P0, 20));
    assert!(fence.set_resetting(P0, None));
    assert_eq!(reason(&fence, &ios), Some(HoldReason::Quiescing(20)));
    assert_eq!(hold(&mut fence, &mut ios, P0, after, 1), 20);
    // The bound is later, and changes nothing.
    fence.bound(&mut ios, P0, 40);
    assert_eq!(due(&fence, &ios, P0, 20), [before, after]);
    fence.release(&mut ios, P0, before, 20);
    assert_eq!(stats(&fence, &ios).proved_total, 1);
}

#[test]
fn t09_reset_without_an_answer_leaves_it_to_the_bound() {
    let (mut fence, mut ios) = rig();
    let index = write(&mut ios, 0);
    hold(&mut fence, &mut ios, P0, index, 0);
    fence.set_resetting(P0, Some(30));
    assert!(fence.set_resetting(P0, None));
    assert!(!fence.is_resetting(P0));
    fence.bound(&mut ios, P0, 40);
    let reason = stats(&fence, &ios).reason;
    assert_eq!(reason, Some(HoldReason::Until(40)));
}

#[test]
fn t09_overlapping_writes_wait_in_order() {
    let (mut fence, mut ios) = rig();
    let first = write(&mut ios, 0);
    hold(&mut fence, &mut ios, P0, first, 0);
    let apart = write(&mut ios, 8192);
    assert_eq!(fence.admit(&mut ios, apart, false), None);
    let [second, third] = [0, 0].map(|offset| write(&mut ios, offset));
    for index in [second, third] {
        let wait = fence.admit(&mut ios, index, false);
        assert_eq!(wait, Some(Wait::Behind));
    }
    assert_eq!(stats(&fence, &ios).behind, 2);
    fence.bound(&mut ios, P0, 1);
    fence.release(&mut ios, P0, first, 1);
    assert_eq!(end(&mut fence, &mut ios, first), [second]);
    assert_eq!(end(&mut fence, &mut ios, second), [third]);
    assert_eq!(end(&mut fence, &mut ios, third), []);
    assert!(fence.is_open());
}

/// In flight together on a path that is lost: neither has to wait for the other, but a write that
/// is repeated must not overtake an earlier one that is not.
#[test]
fn t09_writes_in_flight_are_fenced_before_they_are_held() {
    let (mut fence, mut ios) = rig();
    let mut lane = Lane::EMPTY;
    let [one, two] = [0, 0].map(|offset| write(&mut ios, offset));
    for index in [one, two] {
        ios.push_on_path(&mut lane, index, false);
    }
    fence.admit_in_flight(&mut ios, &lane);
    assert_eq!(stats(&fence, &ios).held, 0);
    let late = write(&mut ios, 0);
    assert_eq!(fence.admit(&mut ios, late, false), Some(Wait::Behind));
    assert!(!fence.is_blocked(ios.get(one)) && fence.is_blocked(ios.get(two)));
    // It ended well after all: the other one goes on where it is.
    assert_eq!(end(&mut fence, &mut ios, one), []);
    assert!(!fence.is_blocked(ios.get(two)));
    assert_eq!(end(&mut fence, &mut ios, two), [late]);
}

#[test]
fn released_changes_are_placed_by_the_outermost_caller() {
    let (mut fence, mut ios) = rig();
    let all = [0; 3].map(|offset| write(&mut ios, offset));
    hold(&mut fence, &mut ios, P0, all[0], 0);
    for index in &all[1..] {
        fence.admit(&mut ios, *index, false);
    }
    let places = all.map(|index| ios.get(index).fence.unwrap());
    assert!(fence.end(&mut ios, places[0]));
    assert_eq!(fence.next_released(&mut ios), Some(all[1]));
    // That one fails at once, while it is being placed.
    assert!(!fence.end(&mut ios, places[1]));
    assert_eq!(fence.next_released(&mut ios), Some(all[2]));
    assert_eq!(fence.next_released(&mut ios), None);
    assert!(fence.end(&mut ios, places[2]));
}

#[test]
fn t09_unclean_stop_gates_changes_and_what_overlaps_them() {
    let (mut fence, mut ios) = rig();
    fence.gate_until(100);
    let [gated, blocked, passing] = [0, 0, 8192].map(|offset| write(&mut ios, offset));
    let read = Io {
        op: IoOp::Read,
        ..EMPTY
    };
    let read = ios.take(&read, Hints::default(), 0).unwrap();
    let wait = Some(Wait::UncleanStop(100));
    assert_eq!(fence.admit(&mut ios, gated, false), wait);
    assert_eq!(fence.admit(&mut ios, blocked, false), Some(Wait::Behind));
    ios.get_mut(passing).hints.past_gate = true;
    assert_eq!(fence.admit(&mut ios, passing, false), None);
    assert_eq!(fence.admit(&mut ios, read, false), None);
    assert_eq!(fence.admit(&mut ios, read, true), wait, "for a change");
    assert!(!fence.open_gate(99) && fence.open_gate(100) && !fence.open_gate(100));
    let open = core::iter::from_fn(|| fence.next_gated(&mut ios, 100));
    assert_eq!(open.collect::<Vec<_>>(), [gated, read]);
    assert_eq!(end(&mut fence, &mut ios, gated), [blocked]);
    let stats = stats(&fence, &ios);
    assert_eq!(
        (stats.gated, stats.gated_total, stats.past_gate_total),
        (0, 2, 1)
    );
    assert_eq!((stats.gate_until_ns, stats.bounded_total), (None, 2));
}

#[test]
fn abandoned_changes_release_nothing() {
    let (mut fence, mut ios) = rig();
    let [held, blocked] = [0, 0].map(|offset| write(&mut ios, offset));
    hold(&mut fence, &mut ios, P1, held, 0);
    fence.admit(&mut ios, blocked, false);
    assert_eq!(fence.abandon_held(&mut ios, P0), None);
    assert_eq!(fence.abandon_held(&mut ios, P1), Some(held));
    fence.withdraw(ios.get(held).fence.unwrap());
    assert_eq!(fence.abandon_waiting(&mut ios), Some(blocked));
    fence.withdraw(ios.get(blocked).fence.unwrap());
    assert_eq!(fence.abandon_waiting(&mut ios), None);
    assert!(fence.is_open());
}
