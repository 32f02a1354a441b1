//! Tests of the whole crate: each policy against an independent oracle, in every small state and in
//! random sequences.

mod again;
mod clock;
mod exhaustive;
mod explain;
mod literal;
mod oracle;
mod others;
pub(crate) mod properties;

use crate::{
    Ana, Completion, Ended, Group, PathIndex, PathView, Policy, Request, Selector, Ticket,
};
use std::vec::Vec;

pub(crate) const ANA: [Ana; 5] = [
    Ana::Optimized,
    Ana::NonOptimized,
    Ana::Inaccessible,
    Ana::PersistentLoss,
    Ana::Change,
];

/// `weighted-latency:per-cpu`: its cells are the groups.
pub(crate) const PER_CPU: Policy = Policy::WeightedLatency(crate::Aggregate::PER_CPU);

pub(crate) const UP: PathView = PathView {
    enabled: true,
    ana: Ana::Optimized,
    distance: 10,
    in_flight_elsewhere: 0,
    throughput: 1,
};

pub(crate) fn request(group: Group, length: u32) -> Request {
    Request {
        source: 0,
        group,
        length,
        address: 0,
        now_ns: 0,
    }
}

pub(crate) fn good(path: u8, latency_ns: u64, now_ns: u64) -> Completion {
    Completion {
        path: PathIndex(path),
        group: Group::Read,
        latency_ns,
        ended: Ended::Good,
        now_ns,
        ticket: Ticket::default(),
        gap_ns: 0,
    }
}

fn take(selector: &mut Selector, views: &[PathView]) -> u8 {
    selector
        .select(&request(Group::Read, 4096), views)
        .unwrap()
        .0
}

#[test]
fn a1_round_robin_without_bytes_moves_at_every_io() {
    let mut selector = Selector::new(3, Policy::RoundRobin { bytes: 0 });
    let taken: Vec<u8> = (0..7).map(|_| take(&mut selector, &[UP; 3])).collect();
    assert_eq!(taken, [0, 1, 2, 0, 1, 2, 0]);
}

#[test]
fn b2_round_robin_moves_after_its_bytes() {
    let mut selector = Selector::new(2, Policy::RoundRobin { bytes: 8192 });
    let lengths = [4096, 4096, 512, 65536, 8192, 4096, 0, 4096, 512];
    let taken: Vec<u8> = lengths
        .iter()
        .map(|&length| {
            selector
                .select(&request(Group::Read, length), &[UP; 2])
                .unwrap()
                .0
        })
        .collect();
    assert_eq!(taken, [0, 0, 1, 1, 0, 1, 1, 1, 0]);
}

#[test]
fn a7_round_robin_leaves_a_turn_for_an_optimized_path() {
    let mut selector = Selector::new(2, Policy::RoundRobin { bytes: 1 << 20 });
    let second = PathView {
        ana: Ana::NonOptimized,
        ..UP
    };
    let gone = PathView {
        enabled: false,
        ..UP
    };
    assert_eq!(take(&mut selector, &[second, gone]), 0);
    assert_eq!(take(&mut selector, &[second, UP]), 1);
    assert_eq!(take(&mut selector, &[second, UP]), 1);
}

#[test]
fn a1_a_switch_forgets_and_setting_the_same_does_not() {
    let mut selector = Selector::new(2, PER_CPU);
    for now_ns in 1..=2 {
        take(&mut selector, &[UP; 2]);
        let _ = selector.complete(&good(0, 1000, now_ns));
    }
    selector.weigh();
    let learnt = selector.stats(PathIndex(0), Group::Read);
    assert_eq!(
        (learnt.weight, learnt.selections, learnt.samples),
        (64, 2, 2)
    );
    selector.set_policy(PER_CPU);
    assert_eq!(selector.stats(PathIndex(0), Group::Read), learnt);
    selector.set_policy(Policy::Numa);
    selector.set_policy(PER_CPU);
    assert_eq!(
        selector.stats(PathIndex(0), Group::Read),
        Default::default()
    );
}

/// T40: cores that see each other's counts share the paths instead of all choosing the idle one.
#[test]
fn t40_cores_that_see_each_other_do_not_herd() {
    let mut cores = [const { None }; 4].map(|_: Option<()>| Selector::new(3, Policy::QueueDepth));
    for io in 0..60 {
        let total = |path: usize| -> u32 {
            cores
                .iter()
                .map(|core| core.in_flight(PathIndex(path as u8)))
                .sum()
        };
        let totals = [total(0), total(1), total(2)];
        let (most, least) = (totals.iter().max().unwrap(), totals.iter().min().unwrap());
        assert!(most - least <= 1, "{totals:?} after {io}");
        let mut views = [UP; 3];
        for (path, view) in views.iter_mut().enumerate() {
            let own = cores[io % 4].in_flight(PathIndex(path as u8));
            view.in_flight_elsewhere = totals[path] - own;
        }
        take(&mut cores[io % 4], &views);
    }
}

/// T41: I/Os in flight before the switch still count, and balance after it.
#[test]
fn t41_a_switch_keeps_what_is_in_flight() {
    let mut selector = Selector::new(2, Policy::Numa);
    let near = [UP, PathView { distance: 20, ..UP }];
    for _ in 0..3 {
        assert_eq!(take(&mut selector, &near), 0);
    }
    selector.set_policy(Policy::QueueDepth);
    for _ in 0..3 {
        assert_eq!(take(&mut selector, &near), 1);
    }
    selector.reset_path(PathIndex(0));
    assert_eq!(selector.in_flight(PathIndex(0)), 3);
    selector.set_policy(PER_CPU);
    for path in [0, 0, 0, 1, 1, 1] {
        let _ = selector.complete(&good(path, 1000, 1));
    }
    assert_eq!(
        [0, 1].map(|path| selector.in_flight(PathIndex(path))),
        [0, 0]
    );
}

#[test]
fn paths_come_and_go() {
    let mut selector = Selector::new(2, PER_CPU);
    take(&mut selector, &[UP; 2]);
    let _ = selector.complete(&good(0, 1000, 1));
    selector.weigh();
    assert_eq!(selector.set_paths(65), Err(crate::TooManyPaths(65)));
    assert_eq!(selector.paths(), 2);
    selector.set_paths(64).unwrap();
    let weight = |selector: &Selector, path| selector.stats(PathIndex(path), Group::Read).weight;
    assert_eq!(
        [0, 1, 2, 63].map(|path| weight(&selector, path)),
        [64, 1, 0, 0]
    );
    // The search leaves path 0, whose credit is 0, and path 1 likewise; 2 is not measured yet.
    assert_eq!(take(&mut selector, &[UP; 64]), 2);
    selector.set_paths(1).unwrap();
    assert_eq!(take(&mut selector, &[UP]), 0);
    let _ = selector.complete(&good(2, 1000, 2));
    assert_eq!(selector.in_flight(PathIndex(2)), 0);
    selector.set_paths(3).unwrap();
    assert_eq!([0, 1, 2].map(|path| weight(&selector, path)), [64, 0, 0]);
    selector.set_paths(0).unwrap();
    assert_eq!(selector.select(&request(Group::Other, 0), &[]), None);
}

/// Row A11: the path last used may be the first that was removed.
#[test]
fn a11_paths_go_down_to_the_one_last_used() {
    let off = PathView {
        enabled: false,
        ..UP
    };
    for policy in [Policy::RoundRobin { bytes: 0 }, PER_CPU] {
        let mut selector = Selector::new(3, policy);
        assert_eq!(take(&mut selector, &[off, off, UP]), 2);
        selector.set_paths(2).unwrap();
        assert!(take(&mut selector, &[UP; 2]) < 2, "{policy}");
    }
}

#[test]
fn knobs_out_of_range_are_refused_and_the_old_stay() {
    use crate::limits::WEIGHT_TIMEOUT_NS_MAX;
    use crate::{KnobError, Knobs};
    let mut selector = Selector::new(2, PER_CPU);
    let old = Knobs {
        ewma_shift: 8,
        weight_timeout_ns: WEIGHT_TIMEOUT_NS_MAX,
        ..Knobs::default()
    };
    assert_eq!(selector.set_knobs(old), Ok(()));
    let shift = Knobs {
        ewma_shift: 9,
        ..old
    };
    assert_eq!(selector.set_knobs(shift), Err(KnobError::ShiftRange));
    let timeout = Knobs {
        weight_timeout_ns: WEIGHT_TIMEOUT_NS_MAX + 1,
        ..old
    };
    assert_eq!(selector.set_knobs(timeout), Err(KnobError::TimeoutRange));
    assert_eq!(selector.knobs(), old);
}
