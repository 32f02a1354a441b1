use super::super::types::{Hints, Io, IoOp, NO_PATH};
use super::{IoState, IoTable, Kind, Lane};
use crate::Span;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use multipath::Outcome;

fn io(cookie: u64) -> Io {
    let span = Span { at: 0, len: 0 };
    Io {
        volume: 0,
        op: IoOp::Flush,
        offset: 0,
        length: 0,
        span,
        source: 0,
        cookie,
    }
}

/// The lane's slots, front to back.
fn order(ios: &IoTable, lane: &Lane) -> Vec<u32> {
    core::iter::successors(super::some(lane.head), |&index| ios.next(index)).collect()
}

#[test]
fn all_slots_can_be_taken_and_none_more_until_one_is_reported() {
    let mut ios = IoTable::new(3, 0);
    let taken: Vec<_> = (0..3)
        .map(|i| ios.take(&io(i), Hints::default(), 0).unwrap())
        .collect();
    assert_eq!(ios.take(&io(9), Hints::default(), 0), None);
    ios.end(taken[1], Outcome::Done, NO_PATH, 5);
    assert_eq!(
        ios.take(&io(9), Hints::default(), 0),
        None,
        "ended, not yet reported"
    );
    let done = ios.report().unwrap();
    assert_eq!((done.cookie, done.latency_ns), (1, 5));
    assert_eq!(ios.take(&io(9), Hints::default(), 0), Some(taken[1]));
    assert_eq!(ios.active(), 3);
}

#[test]
fn t11_a_token_of_an_earlier_use_finds_nothing() {
    let mut ios = IoTable::new(1, 0);
    let mut stale = Vec::new();
    for turn in 0..100_u64 {
        let index = ios.take(&io(turn), Hints::default(), 0).unwrap();
        let token = ios.token(index);
        assert_eq!(ios.find(token), Some(index));
        assert!(stale.iter().all(|&old| ios.find(old).is_none()));
        ios.end(index, Outcome::Done, NO_PATH, 0);
        assert_eq!(ios.find(token), None, "ended");
        ios.report();
        stale.push(token);
    }
    assert_eq!(ios.find(12345), None, "no such slot");
}

#[test]
fn ended_are_reported_in_order() {
    let mut ios = IoTable::new(4, 0);
    let taken: Vec<_> = (0..4)
        .map(|i| ios.take(&io(i), Hints::default(), 0).unwrap())
        .collect();
    for &i in &[2, 0, 3, 1] {
        ios.end(taken[i], Outcome::Done, NO_PATH, 0);
    }
    let cookies: Vec<_> = core::iter::from_fn(|| ios.report())
        .map(|d| d.cookie)
        .collect();
    assert_eq!(cookies, [2, 0, 3, 1]);
}

/// Every sequence of seven steps (submit, give the first waiting one, end any of the first three)
/// against a plain model: order, waiting suffix, oldest.
#[test]
fn lanes_agree_with_a_model_in_every_small_history() {
    fn walk(steps: &mut Vec<u8>) {
        run(steps);
        if steps.len() < 7 {
            for step in 0..6 {
                steps.push(step);
                walk(steps);
                steps.pop();
            }
        }
    }
    walk(&mut Vec::new());
}

fn run(steps: &[u8]) {
    let mut ios = IoTable::new(8, 0);
    let mut lane = Lane::EMPTY;
    let mut model: VecDeque<(u32, bool)> = VecDeque::new();
    for &step in steps {
        match step {
            // Submit, with and without room; nobody overtakes one that waits.
            0 | 1 => {
                let index = ios.take(&io(0), Hints::default(), 0).unwrap();
                let wait = step == 1 || lane.waiting().is_some();
                ios.push_on_path(&mut lane, index, wait);
                model.push_back((index, wait));
            }
            2 => {
                if let Some(first) = model.iter_mut().find(|(_, waits)| *waits) {
                    first.1 = false;
                    ios.issued(&mut lane);
                }
            }
            _ => {
                if let Some((index, _)) = model.remove(usize::from(step - 3)) {
                    ios.unlink(&mut lane, index);
                    ios.end(index, Outcome::Done, NO_PATH, 0);
                    ios.report();
                }
            }
        }
        let want: Vec<_> = model.iter().map(|(index, _)| *index).collect();
        assert_eq!(order(&ios, &lane), want, "{steps:?}");
        let waiting = model
            .iter()
            .find(|(_, waits)| *waits)
            .map(|(index, _)| *index);
        assert_eq!(lane.waiting(), waiting, "{steps:?}");
        let oldest = model
            .front()
            .filter(|(_, waits)| !waits)
            .map(|(index, _)| *index);
        assert_eq!(lane.oldest_issued(), oldest, "{steps:?}");
        assert_eq!(lane.is_empty(), model.is_empty());
        assert_eq!(ios.active() as usize, model.len());
    }
}

/// A path is connected anew: what may be read from another volume still asks no path twice.
#[test]
fn reads_had_elsewhere_remember_their_failures() {
    let mut ios = IoTable::new(2, 0);
    let [plain, elsewhere] = [0, 1].map(|n| ios.take(&io(n), Hints::default(), 0).unwrap());
    ios.get_mut(plain).history.failed = 0b11;
    ios.get_mut(elsewhere).history.failed = 0b11;
    ios.get_mut(elsewhere).hints.elsewhere = true;
    ios.forget_failures(0, policy::PathIndex(0));
    assert_eq!(ios.get(plain).history.failed, 0b10);
    assert_eq!(ios.get(elsewhere).history.failed, 0b11);
}

#[test]
fn probes_of_idle_paths_leave_spare_slots() {
    for (spares, left) in [(64, 16), (8, 2), (1, 0), (0, 0)] {
        let mut ios = IoTable::new(1, spares);
        let mut taken = 0;
        while ios.has_spares() {
            ios.take_spare(&io(0), Kind::Probe, 0).unwrap();
            taken += 1;
        }
        assert_eq!(spares - taken, left);
    }
}

#[test]
fn waiting_slots_are_those_from_the_first_on() {
    let mut ios = IoTable::new(4, 0);
    let mut lane = Lane::EMPTY;
    let taken: Vec<_> = (0..4)
        .map(|n| ios.take(&io(n), Hints::default(), 0).unwrap())
        .collect();
    for (at, &index) in taken.iter().enumerate() {
        ios.push_on_path(&mut lane, index, at >= 2);
    }
    let waiting = |ios: &IoTable, lane: &Lane| {
        let waits = |&&index: &&u32| ios.is_waiting(lane, index);
        taken.iter().filter(waits).count()
    };
    assert_eq!(waiting(&ios, &lane), 2);
    ios.issued(&mut lane);
    assert_eq!(waiting(&ios, &lane), 1);
}

/// Every edge that there is: a state, and those that lead to it.
#[test]
fn states_are_reached_from_these_only() {
    let all = [
        ("Ended", IoState::Ended),
        ("Placing", IoState::Placing),
        ("Queued", IoState::Queued { until_ns: 1 }),
        ("OnPath", IoState::OnPath),
        (
            "Aborting",
            IoState::Aborting {
                is_confirmed: false,
            },
        ),
        (
            "Held",
            IoState::Held {
                until_ns: 1,
                association: 0,
                is_proof: false,
            },
        ),
        ("Blocked", IoState::Blocked),
        ("Gated", IoState::Gated),
        ("Backoff", IoState::Backoff { until_ns: 1 }),
        ("FlushWait", IoState::FlushWait { until_ns: 1 }),
        ("Pieces", IoState::Pieces),
        ("Copying", IoState::Copying),
    ];
    let moves = "Placing Queued OnPath Aborting Held Backoff FlushWait";
    let waits = "Placing Queued OnPath Aborting Held Backoff";
    for (to, want) in [
        (
            "Ended",
            "Placing Queued OnPath Aborting Held Blocked Gated Backoff FlushWait Pieces Copying",
        ),
        ("Placing", "Ended Blocked Gated Pieces"),
        ("Queued", moves),
        ("OnPath", moves),
        ("Aborting", "OnPath Aborting"),
        ("Held", "OnPath Aborting Held"),
        ("Blocked", waits),
        ("Gated", waits),
        ("Backoff", "OnPath Aborting"),
        ("FlushWait", "Placing OnPath Aborting Backoff FlushWait"),
        (
            "Pieces",
            "Placing Queued OnPath Aborting Held Blocked Gated Backoff FlushWait",
        ),
        ("Copying", "OnPath Aborting"),
    ] {
        let (_, state) = all.iter().find(|(name, _)| *name == to).unwrap();
        let from = all.iter().filter(|(_, from)| from.leads_to(*state));
        let names: Vec<_> = from.map(|(name, _)| *name).collect();
        assert_eq!(names.join(" "), want, "to {to}");
    }
}

#[test]
#[should_panic(expected = "can't become")]
fn io_ends_once() {
    let mut ios = IoTable::new(1, 0);
    let index = ios.take(&io(0), Hints::default(), 0).unwrap();
    ios.end(index, Outcome::Done, NO_PATH, 0);
    ios.end(index, Outcome::Done, NO_PATH, 0);
}
