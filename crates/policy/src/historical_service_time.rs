//! `historical-service-time`: the path that will complete this I/O first, by its recent service
//! times.
//!
//! Decides from the smoothed service time of each path and this core's I/Os in flight on it:
//! service · (in flight + 1). The service time of an I/O ends with its completion. It begins with
//! its start, or with the end of the I/O before it on that path if that was later. Two rules for
//! paths that change: an idle path that was not used for (number of paths) · service is tried again
//! by one I/O; and a path with I/Os in flight of which none has ended for that long is judged worse
//! by all the time it has been silent (T37).
//!
//! # Contract
//! A core's own ends and its own I/Os in flight belong together: where other cores use the path as
//! well, this core sees longer services and has fewer in flight, and the product is the same.
//!
//! # Limits
//! Services up to [`SAMPLE_NS_MAX`]; counts are cut at 2^16, so that every product fits 64 bits.
//!
//! # Origin
//! The path selector of this name that users of device-mapper know, after its published
//! description; constants are our own. Where it limits what a silent path may have in flight, the
//! silence is added to its cost here.

use crate::explain::Basis;
use crate::limits::{PATHS_MAX, SAMPLE_NS_MAX};
use crate::types::{Completion, Noted, PathView};

/// A new service has 1 / 2^this of the weight.
const SHIFT: u32 = 4;

/// State of all paths.
#[derive(Clone, Debug)]
pub(crate) struct HistoricalServiceTime([Served; PATHS_MAX]);

#[derive(Clone, Copy, Debug, Default)]
struct Served {
    /// Smoothed service time, times 2^[`SHIFT`]; 0: not measured.
    sum_ns: u64,
    /// Time of the last completion, or of the first I/O placed after an idle time: the silence or
    /// idle time counts from it.
    mark_ns: u64,
}

impl Default for HistoricalServiceTime {
    fn default() -> Self {
        Self([Served::default(); PATHS_MAX])
    }
}

impl HistoricalServiceTime {
    /// The path of least estimate, optimized before non-optimized; before them one that has to be
    /// tried.
    pub(crate) fn choose(
        &mut self,
        now_ns: u64,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) -> Option<usize> {
        let optimized = paths.iter().any(PathView::optimized);
        let may = |view: &PathView| match optimized {
            true => view.optimized(),
            false => view.usable(),
        };
        let count = paths.iter().filter(|view| may(view)).count() as u64;
        let those = (0..paths.len()).filter(|&path| may(&paths[path]));
        let cost = |&path: &usize| self.0[path].cost_ns(now_ns, in_flight[path], count);
        let chosen = those.min_by_key(cost)?;
        if in_flight[chosen] == 0 {
            self.0[chosen].mark_ns = now_ns;
        }
        Some(chosen)
    }

    /// Returns a path's service time and the estimate for one more I/O.
    pub(crate) fn basis(&self, now_ns: u64, path: usize, own: u32, count: u64) -> Basis {
        let served = &self.0[path];
        let known = served.sum_ns > 0;
        let cost_ns = served.cost_ns(now_ns, own, count) >> SHIFT;
        Basis::Served {
            service_ns: known.then_some(served.sum_ns >> SHIFT),
            estimate_ns: (known && cost_ns > 0).then_some(cost_ns),
        }
    }

    /// Learns from an I/O that ended well.
    pub(crate) fn sample(&mut self, done: &Completion) -> Noted {
        let served = &mut self.0[usize::from(done.path.0)];
        let begun_ns = done.now_ns.saturating_sub(done.latency_ns);
        let service_ns = done.now_ns.saturating_sub(begun_ns.max(served.mark_ns));
        let service_ns = service_ns.min(SAMPLE_NS_MAX);
        served.sum_ns = match served.sum_ns {
            0 => service_ns << SHIFT,
            sum_ns => sum_ns - (sum_ns >> SHIFT) + service_ns,
        };
        // The path counts as known, however short the service was.
        served.sum_ns = served.sum_ns.max(1);
        served.mark_ns = done.now_ns;
        Noted::default()
    }

    /// Forgets one path.
    pub(crate) fn reset(&mut self, path: usize) {
        self.0[path] = Served::default();
    }
}

impl Served {
    /// Estimates an I/O beside `own` in flight, with `count` paths to choose from; 0: the path has
    /// to be tried. A path without a measurement that is not idle costs more than any estimate.
    fn cost_ns(&self, now_ns: u64, own: u32, count: u64) -> u64 {
        let own = u64::from(own.min(1 << 16));
        if self.sum_ns == 0 {
            return if own == 0 { 0 } else { (1 << 63) + own };
        }
        let quiet_ns = now_ns.saturating_sub(self.mark_ns).min(1 << 50);
        let is_late = quiet_ns > (self.sum_ns * count) >> SHIFT;
        match (own, is_late) {
            (0, true) if count > 1 => 0,
            (1.., true) => self.sum_ns * (own + 1) + (quiet_ns << SHIFT),
            _ => self.sum_ns * (own + 1),
        }
    }
}

#[cfg(test)]
mod tests;
