//! `round-robin-latency[:bytes]`: the paths in turn, but for those that are slower by more than a
//! fifth.
//!
//! Decides from the recent latencies of this core's own I/Os, as `latency` keeps them, and from the
//! circle of `round_robin`. A path whose latency is over 1.2 × the least takes no part. One without
//! a recent measurement is tested at once by one I/O outside the circle, so a path that was left
//! out comes back once it is fast again (T38); while that I/O is in flight the path takes no part
//! (T37).
//!
//! # Origin
//! Row B8 in the words of the discussion: a round-robin that is aware of latency, with a tolerance
//! of about 20 %. `soonest` is what this project makes of the row; this one is there to compare
//! with.

use crate::latency::Latency;
use crate::limits::PATHS_MAX;
use crate::round_robin::RoundRobin;
use crate::types::{PathView, Request};

/// A path takes part up to [`TOLERATED`] / [`WHOLE`] of the least latency.
const TOLERATED: u64 = 6;
const WHOLE: u64 = 5;

/// The paths that may serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    /// It has no recent measurement and nothing in flight.
    Tested(usize),
    /// One bit for each path in the circle.
    Circle(u64),
}

/// The paths for `request`: optimized before non-optimized. Where no latency is known all are in
/// the circle.
pub(crate) fn among(
    latency: &Latency,
    request: &Request,
    paths: &[PathView],
    in_flight: &[u32; PATHS_MAX],
) -> Among {
    let optimized = paths.iter().any(PathView::optimized);
    let may = |view: &PathView| match optimized {
        true => view.optimized(),
        false => view.usable(),
    };
    let (mut all, mut least_ns) = (0, u64::MAX);
    for (path, _) in paths.iter().enumerate().filter(|(_, view)| may(view)) {
        all |= 1 << path;
        match latency.recent_ns(request, path) {
            Some(recent_ns) => least_ns = least_ns.min(recent_ns),
            None if in_flight[path] == 0 => return Among::Tested(path),
            None => {}
        }
    }
    if least_ns == u64::MAX {
        return Among::Circle(all);
    }
    let mut rest = all;
    while rest != 0 {
        let path = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        let recent_ns = latency.recent_ns(request, path);
        if recent_ns.is_none_or(|recent_ns| recent_ns * WHOLE > least_ns * TOLERATED) {
            all &= !(1 << path);
        }
    }
    Among::Circle(all)
}

/// The path for `request`; a turn lasts `bytes`.
pub(crate) fn choose(
    circle: &mut RoundRobin,
    bytes: u64,
    among: Among,
    request: &Request,
    count: usize,
) -> Option<usize> {
    match among {
        Among::Tested(path) => Some(path),
        Among::Circle(all) => circle.choose_of(all, bytes, request.length, count),
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{UP, good, request};
    use crate::{Group, PathIndex, PathView, Policy, Request, Selector};
    use std::vec::Vec;

    const MS: u64 = 1_000_000;

    /// One I/O at a time, on paths of these latencies: which path each gets.
    fn served(latencies_ns: &[u64], ios: usize, now_ns: &mut u64, it: &mut Selector) -> Vec<u8> {
        let one = |_| {
            let request = Request {
                now_ns: *now_ns,
                ..request(Group::Read, 4096)
            };
            let path = it.select(&request, &[UP; 3][..latencies_ns.len()]).unwrap();
            let latency_ns = latencies_ns[usize::from(path.0)];
            *now_ns += latency_ns;
            let _ = it.complete(&good(path.0, latency_ns, *now_ns));
            path.0
        };
        (0..ios).map(one).collect()
    }

    const EACH_IO: Policy = Policy::RoundRobinLatency { bytes: 0 };

    #[test]
    fn b8_paths_within_a_fifth_take_turns_and_others_do_not() {
        let mut it = Selector::new(3, EACH_IO);
        let taken = served(&[MS, 6 * MS / 5, 6 * MS / 5 + 1], 9, &mut 0, &mut it);
        // Each is tested once, then the third is left out.
        assert_eq!(taken, [0, 1, 2, 0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn b8_t38_a_slow_path_is_tested_and_comes_back() {
        let (mut it, mut now_ns) = (Selector::new(2, EACH_IO), 0);
        let taken = served(&[MS, 3 * MS], 1000, &mut now_ns, &mut it);
        let slow = taken.iter().filter(|&&path| path == 1).count();
        // A second of I/O, and one test in each 250 ms.
        assert_eq!(slow, 4);
        let taken = served(&[MS, MS], 1000, &mut now_ns, &mut it);
        assert!(taken.iter().filter(|&&path| path == 1).count() > 350);
    }

    #[test]
    fn b8_t37_a_path_that_hangs_gets_one_io() {
        let mut it = Selector::new(2, EACH_IO);
        let mut take = || it.select(&request(Group::Read, 4096), &[UP; 2]).unwrap().0;
        // Nothing is known of either: both are tested, then both are in the circle.
        assert_eq!([take(), take(), take(), take()], [0, 1, 0, 1]);
        let _ = it.complete(&good(0, MS, MS));
        let mut take = || it.select(&request(Group::Read, 4096), &[UP; 2]).unwrap().0;
        assert_eq!([take(), take(), take()], [0, 0, 0]);
    }

    #[test]
    fn b8_a_turn_lasts_its_bytes_and_a_test_does_not_end_it() {
        let mut it = Selector::new(2, Policy::RoundRobinLatency { bytes: 16384 });
        let mut now_ns = 0;
        let taken = served(&[MS, MS], 10, &mut now_ns, &mut it);
        assert_eq!(taken, [0, 1, 0, 0, 0, 0, 1, 1, 1, 1]);
        // Path 0 begins a turn; then path 1 is out of date and is tested, then path 0 goes on.
        assert_eq!(served(&[MS, MS], 2, &mut now_ns, &mut it), [0, 0]);
        it.reset_path(PathIndex(1));
        assert_eq!(served(&[MS, MS], 4, &mut now_ns, &mut it), [1, 0, 0, 1]);
    }

    #[test]
    fn b8_a7_optimized_paths_come_first_however_slow() {
        let mut it = Selector::new(2, EACH_IO);
        let second = PathView {
            ana: crate::Ana::NonOptimized,
            ..UP
        };
        for _ in 0..3 {
            let path = it.select(&request(Group::Read, 4096), &[second, UP]);
            assert_eq!(path, Some(PathIndex(1)));
        }
        let path = it.select(&request(Group::Read, 4096), &[second, second]);
        assert_eq!(path, Some(PathIndex(0)));
    }
}
