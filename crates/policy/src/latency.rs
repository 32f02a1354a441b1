//! `latency`: the path whose I/Os lately took the least time.
//!
//! Decides from the smoothed latency of this core's own I/Os, per path and group. Measurements
//! older than [`RECENT_NS`] are dropped, and a path without one is tried first, by one I/O at a
//! time. So a slow path is measured four times a second (T38), and a path that hangs gets no second
//! I/O while the first is in flight (T37).
//!
//! # Origin
//! Rows B1, B3, A7. The document takes the mean over the whole life of a device and latches on to
//! one; here old I/Os fade. Several I/Os in flight all go to one path until it is as slow as the
//! other was: the rule compares completed I/Os, not those in flight.

use crate::ana::least;
use crate::limits::{PATHS_MAX, RECENT_NS, SAMPLE_NS_MAX};
use crate::types::{Completion, Noted, PathView, Request};

/// A new latency has 1 / 2^this of the weight.
const SHIFT: u32 = 3;
/// More than any latency: the cost of a path whose first I/O is still in flight.
const UNKNOWN: u64 = 1 << 33;

/// State by group and path.
#[derive(Clone, Debug)]
pub(crate) struct Latency([[Recent; PATHS_MAX]; 3]);

#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    /// The smoothed latency, times 2^[`SHIFT`]; 0: not measured.
    sum_ns: u64,
    /// When it was last measured.
    at_ns: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self([[Recent::default(); PATHS_MAX]; 3])
    }
}

impl Latency {
    /// The path of least smoothed latency, optimized before non-optimized.
    pub(crate) fn choose(
        &self,
        request: &Request,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) -> Option<usize> {
        let recent = &self.0[request.group as usize];
        least(paths, |path, _| {
            match (recent[path].mean_ns(request.now_ns), in_flight[path]) {
                (Some(mean_ns), _) => 1 + mean_ns,
                (None, 0) => 0,
                (None, count) => UNKNOWN + u64::from(count),
            }
        })
    }

    /// Returns the recent latency of a path for such an I/O.
    pub(crate) fn recent_ns(&self, request: &Request, path: usize) -> Option<u64> {
        self.0[request.group as usize][path].mean_ns(request.now_ns)
    }

    /// Learns from an I/O that ended well. A latency of 0 is no sample; over a second counts as a
    /// second.
    pub(crate) fn sample(&mut self, done: &Completion) -> Noted {
        let latency_ns = done.latency_ns.min(SAMPLE_NS_MAX);
        let recent = &mut self.0[done.group as usize][usize::from(done.path.0)];
        if latency_ns > 0 {
            recent.sum_ns = match recent.mean_ns(done.now_ns) {
                Some(mean_ns) => recent.sum_ns - mean_ns + latency_ns,
                None => latency_ns << SHIFT,
            };
            recent.at_ns = done.now_ns;
        }
        Noted::default()
    }

    /// Forgets one path.
    pub(crate) fn reset(&mut self, path: usize) {
        for group in &mut self.0 {
            group[path] = Recent::default();
        }
    }
}

impl Recent {
    fn mean_ns(&self, now_ns: u64) -> Option<u64> {
        let fresh = now_ns.saturating_sub(self.at_ns) <= RECENT_NS;
        (self.sum_ns > 0 && fresh).then_some(self.sum_ns >> SHIFT)
    }
}

#[cfg(test)]
mod tests;
