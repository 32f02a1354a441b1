//! The formula worked by hand once, and its corner cases.
use super::*;
use crate::tests::{UP, good, request};
use crate::{Group, PathIndex, Policy, Selector};
use std::vec::Vec;

const MS: u64 = 1_000_000;

fn choose(state: &Latency, now_ns: u64, in_flight: [u32; 3]) -> usize {
    let request = Request {
        now_ns,
        ..request(Group::Read, 4096)
    };
    let mut counts = [0; PATHS_MAX];
    counts[..3].copy_from_slice(&in_flight);
    state.choose(&request, &[UP; 3], &counts).unwrap()
}

#[test]
fn b3_the_mean_by_hand() {
    let mut state = Latency::default();
    let _ = state.sample(&good(0, 800, 1));
    assert_eq!(state.0[0][0].mean_ns(1), Some(800));
    // 800 · 7/8 + 1600 · 1/8 = 900; then 900 · 7/8 + 1700 · 1/8 = 1000.
    let _ = state.sample(&good(0, 1600, 2));
    assert_eq!(state.0[0][0].mean_ns(2), Some(900));
    let _ = state.sample(&good(0, 1700, 3));
    assert_eq!(state.0[0][0].mean_ns(3), Some(1000));
    // A latency of 0 is no sample; over a second counts as a second.
    let _ = state.sample(&good(0, 0, 4));
    let _ = state.sample(&good(1, u64::MAX, 4));
    assert_eq!(
        [0, 1].map(|path| state.0[0][path].mean_ns(4)),
        [Some(1000), Some(SAMPLE_NS_MAX)]
    );
    assert_eq!(state.0[1][0].mean_ns(4), None);
}

#[test]
fn b3_a_copy_never_read_is_tried_first_by_one() {
    let mut state = Latency::default();
    assert_eq!(choose(&state, 0, [0, 0, 0]), 0);
    assert_eq!(choose(&state, 0, [1, 0, 0]), 1);
    assert_eq!(choose(&state, 0, [2, 2, 1]), 2);
    let _ = state.sample(&good(1, 30 * MS, MS));
    assert_eq!(choose(&state, MS, [1, 9, 0]), 2);
    assert_eq!(choose(&state, MS, [1, 9, 1]), 1);
}

/// T38: with a mean over all its life, the first of two copies would look slightly better for ever.
#[test]
fn t38_no_copy_is_latched_on_to() {
    let mut selector = Selector::new(2, Policy::Latency);
    let mut read = [[0; 2]; 2];
    for turn in 0..2000 {
        let now_ns = turn * MS;
        let request = Request {
            now_ns,
            ..request(Group::Read, 4096)
        };
        let path = selector.select(&request, &[UP; 2]).unwrap();
        let late = turn / 1000;
        read[late as usize][usize::from(path.0)] += 1;
        // The second copy is faster in the second second.
        let latency_ns = [[500_000, 600_000], [500_000, 400_000]][late as usize];
        let latency_ns = latency_ns[usize::from(path.0)];
        let _ = selector.complete(&good(path.0, latency_ns, now_ns));
    }
    // At first it is tried each 251 ms, and again at 1004 ms; then the other is, until the end.
    assert_eq!(read, [[996, 4], [8, 992]]);
}

/// T37: a path that hangs loses its measurement, and gets no second I/O while the first is in
/// flight.
#[test]
fn t37_a_path_that_hangs_gets_no_more() {
    let mut state = Latency::default();
    let _ = state.sample(&good(0, 100_000, 0));
    let _ = state.sample(&good(1, 900_000, 0));
    let taken = |now_ns| choose(&state, now_ns, [1, 0, 4]);
    assert_eq!(taken(RECENT_NS), 0);
    assert_eq!(taken(RECENT_NS + 1), 1);
    let mut state = state.clone();
    let _ = state.sample(&good(1, 900_000, RECENT_NS));
    let later: Vec<usize> = (1..9)
        .map(|ms| choose(&state, RECENT_NS + ms * MS, [1, 3, 4]))
        .collect();
    assert_eq!(later, [1; 8]);
}

#[test]
fn a11_a_reset_forgets_one_path() {
    let mut selector = Selector::new(2, Policy::Latency);
    for path in 0..2 {
        let at = selector.select(&request(Group::Read, 512), &[UP; 2]);
        assert_eq!(at, Some(PathIndex(path)));
        let _ = selector.complete(&good(path, 1000 + u64::from(path), 1));
    }
    selector.reset_path(PathIndex(1));
    assert_eq!(selector.latency.0[0].map(|it| it.sum_ns)[..2], [8000, 0]);
}
