//! The formulas worked by hand once, and the two rules for paths that change.
use super::*;
use crate::tests::{UP, good};

const US: u64 = 1000;

fn choose(state: &mut HistoricalServiceTime, now_ns: u64, in_flight: [u32; 2]) -> usize {
    let mut counts = [0; PATHS_MAX];
    counts[..2].copy_from_slice(&in_flight);
    state.choose(now_ns, &[UP; 2], &counts).unwrap()
}

/// Paths whose services are known, last heard of at 1 ms.
fn served(services_ns: [u64; 2]) -> HistoricalServiceTime {
    let mut state = HistoricalServiceTime::default();
    for (path, service_ns) in (0..).zip(services_ns) {
        let _ = state.sample(&good(path, service_ns, 1000 * US));
    }
    state
}

#[test]
fn service_by_hand() {
    let mut state = HistoricalServiceTime::default();
    assert_eq!(choose(&mut state, 0, [0, 0]), 0);
    // Begun at 0, ended at 160: 160 µs. Begun at 0 too, ended at 240, after the one before: 80 µs.
    let _ = state.sample(&good(0, 160 * US, 160 * US));
    assert_eq!(state.0[0].sum_ns >> SHIFT, 160 * US);
    let _ = state.sample(&good(0, 240 * US, 240 * US));
    // 160 · 15/16 + 80 · 1/16 = 155.
    assert_eq!(state.0[0].sum_ns >> SHIFT, 155 * US);
    // Two at once: the second took nothing. 155 · 15/16 = 145.3.
    let _ = state.sample(&good(0, 200 * US, 240 * US));
    assert_eq!(state.0[0].sum_ns >> SHIFT, 145_312);
}

#[test]
fn the_estimate_by_hand() {
    let mut state = served([100 * US, 300 * US]);
    let now_ns = 1000 * US;
    // 100 · (2 + 1) = 300 · (0 + 1), the first; 100 · 4 > 300.
    assert_eq!(choose(&mut state, now_ns, [2, 0]), 0);
    assert_eq!(choose(&mut state, now_ns, [3, 0]), 1);
    // 100 · 6 = 300 · 2, and 100 · 7 > 300 · 2.
    assert_eq!(choose(&mut state, now_ns, [5, 1]), 0);
    assert_eq!(choose(&mut state, now_ns, [6, 1]), 1);
}

#[test]
fn an_unknown_path_is_tried_by_one() {
    let mut state = HistoricalServiceTime::default();
    let _ = state.sample(&good(0, 100 * US, 1000 * US));
    assert_eq!(choose(&mut state, 1000 * US, [0, 0]), 1);
    assert_eq!(choose(&mut state, 1000 * US, [0, 1]), 0);
}

/// A slow path that was idle for 2 · 300 µs is tried again, once.
#[test]
fn t38_a_slow_path_is_tried_again() {
    let mut state = served([100 * US, 300 * US]);
    let _ = state.sample(&good(0, 100 * US, 1600 * US));
    assert_eq!(choose(&mut state, 1600 * US, [1, 0]), 0);
    assert_eq!(choose(&mut state, 1601 * US, [1, 0]), 1);
    assert_eq!(choose(&mut state, 1601 * US, [1, 1]), 0);
}

/// T37: nothing ended for 2 · 100 µs: it is worse by its silence, which here outweighs 300 µs.
#[test]
fn t37_a_silent_path_is_judged_by_its_silence() {
    let mut state = served([100 * US, 300 * US]);
    // First: 100 · 2 = 200, within its patience. Then 200 + 201 > 300.
    assert_eq!(choose(&mut state, 1200 * US, [1, 0]), 0);
    assert_eq!(choose(&mut state, 1201 * US, [1, 0]), 1);
    // An idle time is no silence: placed at 9 ms, it may take until 9.2 ms.
    let mut state = served([100 * US, 300 * US]);
    let _ = choose(&mut state, 9000 * US, [0, 1]);
    assert_eq!(choose(&mut state, 9200 * US, [1, 1]), 0);
}

/// T43: a failure is no service; T15-like garbage in time breaks nothing.
#[test]
fn huge_services_are_cut() {
    let mut state = HistoricalServiceTime::default();
    let _ = state.sample(&good(0, u64::MAX, u64::MAX));
    assert_eq!(state.0[0].sum_ns >> SHIFT, SAMPLE_NS_MAX);
    let _ = state.sample(&good(0, 5, 3));
    assert_eq!(choose(&mut state, u64::MAX, [u32::MAX; 2]), 0);
    state.reset(0);
    assert_eq!(state.0[0].sum_ns, 0);
}
