//! `weighted-latency`: I/O in proportion to inverse latency.
//!
//! Decides from the latencies of this core's own I/Os, per path and group. A course of four steps:
//! samples add up in a window; a window that closes gives a mean, which is smoothed; the smoothed
//! latencies of all paths give weights; a path's weight is the credit it may spend per cycle.
//!
//! # Contract
//! [`WeightedLatency::sample`] only adds up, and divides once when a window closes;
//! [`WeightedLatency::weigh`], called once per loop turn, does the rest off the completion path;
//! [`WeightedLatency::choose`] never divides.
//!
//! # Limits
//! Samples up to [`SAMPLE_NS_MAX`], so a score is never 0 and every product below fits 64 bits.
//!
//! # Origin
//! Rows A2–A6, A8, A11, faithful also where it surprises: the first sample after a reset closes a
//! window alone, and at the first calculation a path without a mean gets weight 1 although it was
//! never measured. Different: failed I/O is no sample (T43); with `weight_timeout` 0 every
//! completion closes a window although the clock is read once per turn (the document's code wants
//! it to have moved).

use crate::ana::next;
use crate::limits::{PATHS_MAX, SAMPLE_NS_MAX, WARNING_INTERVAL_NS, WEIGHT_WHOLE};
use crate::types::{Completion, Group, Knobs, Noted, PathIndex, PathView};

/// What is remembered of all paths.
#[derive(Clone, Debug)]
pub(crate) struct WeightedLatency {
    /// The path last used, where the next search starts; below the number of paths.
    pub(crate) last: usize,
    /// Per group: the paths whose closed window asks for a calculation, one bit each.
    pub(crate) due: [u64; 3],
    /// When it was last warned of an ignored sample.
    warned_ns: Option<u64>,
    /// Per group and path.
    pub(crate) measures: [[Measure; PATHS_MAX]; 3],
}

/// What is remembered of one path for one group: one cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(64))]
pub(crate) struct Measure {
    /// Latencies in the open window, added up, and how many.
    sum_ns: u64,
    count: u64,
    /// When the last window closed.
    closed_ns: u64,
    /// Latencies taken.
    pub(crate) samples: u64,
    /// Latencies over the limit.
    pub(crate) ignored: u64,
    /// EWMA of window means; 0 = no window has closed yet.
    pub(crate) smoothed_ns: u32,
    /// 10^9 / smoothed_ns at the last calculation.
    pub(crate) score: u32,
    /// 1…64; 0 = not measured yet.
    pub(crate) weight: u8,
    /// I/Os left in this cycle.
    pub(crate) credit: u8,
}

impl WeightedLatency {
    pub(crate) const fn new() -> Self {
        Self {
            last: 0,
            due: [0; 3],
            warned_ns: None,
            measures: [[Measure::NEW; PATHS_MAX]; 3],
        }
    }

    /// The next path with credit for `group`, starting at the one last used (row A6).
    #[inline]
    pub(crate) fn choose(&mut self, group: Group, paths: &[PathView]) -> Option<usize> {
        let view = paths.get(self.last)?;
        if view.usable() && self.measures[group as usize][self.last].spend() {
            return Some(self.last);
        }
        self.search(group, paths)
    }

    /// The same where the path last used will not do, which was refilled if usable; apart, to keep
    /// the usual way short.
    #[inline(never)]
    fn search(&mut self, group: Group, paths: &[PathView]) -> Option<usize> {
        let measures = &mut self.measures[group as usize];
        let mut at = self.last;
        // Twice round is enough: a path that could not spend the first time can the second time.
        for _ in 0..2 * paths.len() {
            at = next(at, paths.len());
            if paths[at].usable() && measures[at].spend() {
                self.last = at;
                return Some(at);
            }
        }
        None
    }

    /// Takes the latency of an I/O that ended well (rows A2, A3).
    #[inline]
    pub(crate) fn sample(&mut self, done: &Completion, knobs: &Knobs) -> Noted {
        if !(1..=SAMPLE_NS_MAX).contains(&done.latency_ns) {
            return self.ignore(done);
        }
        let measure = &mut self.measures[done.group as usize][usize::from(done.path.0)];
        // No window holds the 2^34 samples of 1 s that would saturate the sum.
        measure.sum_ns = measure.sum_ns.saturating_add(done.latency_ns);
        measure.count += 1;
        measure.samples += 1;
        let age_ns = done.now_ns.saturating_sub(measure.closed_ns);
        if measure.smoothed_ns == 0 || age_ns >= knobs.weight_timeout_ns {
            return self.close(done, knobs.ewma_shift);
        }
        Noted::default()
    }

    /// Zero says nothing; over the limit is counted, and warned of now and then.
    #[cold]
    fn ignore(&mut self, done: &Completion) -> Noted {
        if done.latency_ns == 0 {
            return Noted::default();
        }
        self.measures[done.group as usize][usize::from(done.path.0)].ignored += 1;
        let quiet_ns = self
            .warned_ns
            .map(|warned_ns| done.now_ns.saturating_sub(warned_ns));
        let warn_ignored = quiet_ns.is_none_or(|quiet_ns| quiet_ns >= WARNING_INTERVAL_NS);
        if warn_ignored {
            self.warned_ns = Some(done.now_ns);
        }
        Noted {
            weigh: false,
            warn_ignored,
        }
    }

    /// Ends the window of the I/O's path and group, and asks for a calculation.
    #[cold]
    fn close(&mut self, done: &Completion, shift: u8) -> Noted {
        let (group, path) = (done.group as usize, done.path.0);
        self.measures[group][usize::from(path)].close(done.now_ns, shift);
        self.due[group] |= 1 << path;
        Noted {
            weigh: true,
            warn_ignored: false,
        }
    }

    /// Whether a window has closed since the last calculation.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.due != [0; 3]
    }

    /// Calculates the weights of the first `count` paths, for every group in which a window has
    /// closed since the last call.
    pub(crate) fn weigh(&mut self, count: usize) {
        for (due, measures) in self.due.iter_mut().zip(&mut self.measures) {
            if core::mem::take(due) != 0 {
                weigh_group(&mut measures[..count]);
            }
        }
    }

    /// Forgets one path, and the calculations its windows asked for (row A11).
    pub(crate) fn reset(&mut self, path: PathIndex) {
        for (due, measures) in self.due.iter_mut().zip(&mut self.measures) {
            *due &= !(1 << path.0);
            measures[usize::from(path.0)] = Measure::NEW;
        }
    }

    /// The table shrank to `count` paths.
    pub(crate) fn truncate(&mut self, count: usize) {
        if self.last >= count {
            self.last = 0;
        }
    }
}

impl Measure {
    const NEW: Self = Self {
        sum_ns: 0,
        count: 0,
        closed_ns: 0,
        samples: 0,
        ignored: 0,
        smoothed_ns: 0,
        score: 0,
        weight: 0,
        credit: 0,
    };

    /// Pays for one I/O. A path that can't is refilled, for its next turn; one not measured yet
    /// need not pay.
    #[inline]
    fn spend(&mut self) -> bool {
        if self.credit > 0 {
            self.credit -= 1;
            return true;
        }
        self.credit = self.weight;
        self.weight == 0
    }

    /// Ends the window: its mean enters the smoothed latency (row A4); the first mean is taken as
    /// it is.
    fn close(&mut self, now_ns: u64, shift: u8) {
        let mean_ns = self.sum_ns / self.count;
        let old_ns = u64::from(self.smoothed_ns);
        let smoothed_ns = match old_ns {
            0 => mean_ns,
            _ => (old_ns * ((1 << shift) - 1) + mean_ns) >> shift,
        };
        // A mean of values in 1…10^9, smoothed with such: it lies there too.
        self.smoothed_ns = smoothed_ns as u32;
        self.closed_ns = now_ns;
        self.sum_ns = 0;
        self.count = 0;
    }
}

/// Scores and weights of one group's paths (row A5). All paths of the head count, usable or not.
fn weigh_group(measures: &mut [Measure]) {
    let mut total = 0;
    for measure in &mut *measures {
        measure.score = 1_000_000_000_u32
            .checked_div(measure.smoothed_ns)
            .unwrap_or(0);
        total += u64::from(measure.score);
    }
    if total == 0 {
        return;
    }
    for measure in measures {
        let weight = u64::from(measure.score) * WEIGHT_WHOLE / total;
        // At least 1, so that no path is forgotten; at most 64, since a score is at most the total.
        measure.weight = weight.max(1) as u8;
    }
}

#[cfg(test)]
mod tests;
