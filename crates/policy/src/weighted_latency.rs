//! `weighted-latency`: I/O in proportion to inverse latency.
//!
//! Decides from the latencies of this core's own I/Os, per path and cell (I/O group, and with
//! `buckets` its size as well). Four steps: samples add up in a window; a window that closes gives
//! a mean, which is smoothed; the smoothed latencies of all paths give weights; a path's weight is
//! the credit it may spend per cycle. With `per-numa` the weights come from the mean of the
//! smoothed latencies of one node's cores; each core still has its own weights and credits, so that
//! a selection shares no data.
//!
//! # Contract
//! [`WeightedLatency::sample`] only adds up, and divides once when a window closes;
//! [`WeightedLatency::weigh`] or [`WeightedLatency::weigh_node`], called at most once per loop
//! turn, does the rest off the completion path; [`WeightedLatency::choose`] never divides.
//!
//! # Limits
//! Samples up to [`SAMPLE_NS_MAX`], so a score is never 0 and every product below fits 64 bits.
//!
//! # Origin
//! Rows A2–A6, A8, A11–A13, faithful also where it surprises: the first sample after a reset closes
//! a window alone, and at the first calculation a path without a mean gets weight 1 although it was
//! never measured. Different: failed I/O is no sample (T43); with `weight_timeout` 0 every
//! completion closes a window although the clock is read once per turn (the document's code wants
//! it to have moved). With `per-numa` latencies are averaged, as the discussion proposed it, not
//! weights. The document's code keeps one last path per CPU for all groups; here each cell has its
//! own, so that I/O is shared out by weight, as its text says: from a common one every cell goes on
//! where another just stopped, has its credit there refilled on passing, and all cells end up with
//! about the same shares, whatever their weights.

use crate::ana::next;
use crate::limits::{
    BUCKETS, CELLS, FIRST_BUCKET_BYTES, PATHS_MAX, SAMPLE_NS_MAX, WARNING_INTERVAL_NS, WEIGHT_WHOLE,
};
use crate::types::{
    Completion, Group, Knobs, Means, NodeMeans, Noted, PathIndex, PathStats, PathView, Ticket,
};
use canary::Bug;

/// log2 of the first size that is not in the first bucket.
const BUCKET_SHIFT: u32 = FIRST_BUCKET_BYTES.ilog2();

/// State of all paths.
#[derive(Clone, Debug)]
pub(crate) struct WeightedLatency {
    /// Per cell: the path last used, where the next search starts; below the number of paths.
    pub(crate) last: [u8; CELLS],
    /// Per cell: the paths whose closed window asks for a calculation, one bit each.
    pub(crate) due: [u64; CELLS],
    /// One of them is set.
    any_due: bool,
    /// Period of the policy: tickets of another period belong to other cells.
    epoch: u8,
    /// The values published to the node's other cores are out of date.
    pub(crate) unpublished: bool,
    /// Time of the last warning about an ignored sample.
    warned_ns: Option<u64>,
    /// Latencies over the limit, per cell and path.
    pub(crate) ignored: [[u64; PATHS_MAX]; CELLS],
    /// Per cell and path.
    pub(crate) measures: [[Measure; PATHS_MAX]; CELLS],
}

const _: () = assert!(size_of::<WeightedLatency>() <= PATHS_MAX * 1024);

/// State of one path for one cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measure {
    /// Latencies in the open window, added up.
    sum_ns: u64,
    /// When the last window closed.
    closed_ns: u64,
    /// Latencies taken.
    pub(crate) samples: u64,
    /// Samples in the open window.
    count: u32,
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
    pub(crate) const fn new(epoch: u8) -> Self {
        Self {
            epoch,
            last: [0; CELLS],
            due: [0; CELLS],
            any_due: false,
            unpublished: true,
            warned_ns: None,
            ignored: [[0; PATHS_MAX]; CELLS],
            measures: [[Measure::NEW; PATHS_MAX]; CELLS],
        }
    }

    /// The next path with credit for I/Os of `cell`, starting at the one last used (row A6).
    #[inline]
    pub(crate) fn choose(&mut self, cell: usize, paths: &[PathView]) -> Option<usize> {
        let last = usize::from(self.last[cell]);
        let view = paths.get(last)?;
        let measure = &mut self.measures[cell][last];
        if view.usable() && (measure.spend() || canary::has(Bug::RefilledAtOnce)) {
            return Some(last);
        }
        self.search(cell, paths)
    }

    /// As [`Self::choose`] where the path last used cannot be chosen and was refilled if usable; a
    /// function of its own, to keep the usual path short.
    #[inline(never)]
    fn search(&mut self, cell: usize, paths: &[PathView]) -> Option<usize> {
        let measures = &mut self.measures[cell];
        let mut at = usize::from(self.last[cell]);
        // Twice round is enough: a path that could not spend the first time can the second time.
        for _ in 0..2 * paths.len() {
            at = next(at, paths.len());
            if paths[at].usable() && measures[at].spend() {
                self.last[cell] = at as u8;
                return Some(at);
            }
        }
        None
    }

    /// For an I/O of `cell`, where there are buckets.
    #[inline]
    pub(crate) fn ticket(&self, cell: usize) -> Ticket {
        Ticket {
            class: cell as u8,
            learns: true,
            epoch: self.epoch,
            ..Ticket::default()
        }
    }

    /// The cell of an I/O that has ended; `None`: with buckets, one that another policy placed.
    #[inline]
    pub(crate) fn cell_of(&self, buckets: bool, done: &Completion) -> Option<usize> {
        let ticket = &done.ticket;
        let here = ticket.epoch == self.epoch;
        match buckets {
            false => Some(done.group as usize),
            true => here.then_some(usize::from(ticket.class)),
        }
    }

    /// Takes the latency of an I/O of `cell` that ended well (rows A2, A3).
    #[inline]
    pub(crate) fn sample(&mut self, cell: usize, done: &Completion, knobs: &Knobs) -> Noted {
        if !(1..=SAMPLE_NS_MAX).contains(&done.latency_ns) {
            return self.ignore(cell, done);
        }
        let measure = &mut self.measures[cell][usize::from(done.path.0)];
        // At most 2^32 samples of 10^9 ns: the sum stays within 64 bits.
        measure.sum_ns += done.latency_ns;
        measure.count += 1;
        measure.samples += 1;
        let age_ns = done.now_ns.saturating_sub(measure.closed_ns);
        let full = measure.count == u32::MAX;
        if measure.smoothed_ns == 0 || age_ns >= knobs.weight_timeout_ns || full {
            return self.close(cell, done, knobs.ewma_shift);
        }
        Noted::default()
    }

    /// A latency of 0 is no sample; one over the limit is counted, and a warning is due at most
    /// once per interval.
    #[cold]
    fn ignore(&mut self, cell: usize, done: &Completion) -> Noted {
        if done.latency_ns == 0 {
            return Noted::default();
        }
        self.ignored[cell][usize::from(done.path.0)] += 1;
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

    /// Ends the window of the I/O's path and cell, and asks for a calculation.
    #[cold]
    fn close(&mut self, cell: usize, done: &Completion, shift: u8) -> Noted {
        let path = done.path.0;
        self.measures[cell][usize::from(path)].close(done.now_ns, shift);
        self.due[cell] |= 1 << path;
        (self.any_due, self.unpublished) = (true, true);
        Noted {
            weigh: true,
            warn_ignored: false,
        }
    }

    /// Whether a window has closed since the last calculation.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.any_due
    }

    /// Calculates the weights of the first `count` paths, for every cell in which a window has
    /// closed since the last call.
    pub(crate) fn weigh(&mut self, count: usize) {
        self.any_due = false;
        for (due, measures) in self.due.iter_mut().zip(&mut self.measures) {
            if core::mem::take(due) != 0 {
                let measures = &mut measures[..count];
                for measure in &mut *measures {
                    measure.score = score(measure.smoothed_ns);
                }
                weigh_cell(measures);
            }
        }
    }

    /// As [`Self::weigh`] for every cell, from the means of the node's cores.
    pub(crate) fn weigh_node(&mut self, count: usize, node: impl Fn(PathIndex) -> NodeMeans) {
        self.any_due = false;
        self.due = [0; CELLS];
        for path in 0..count {
            let node = node(PathIndex(path as u8));
            for (cell, measures) in self.measures.iter_mut().enumerate() {
                measures[path].score = score(node.mean_ns(cell));
            }
        }
        for measures in &mut self.measures {
            weigh_cell(&mut measures[..count]);
        }
    }

    /// Returns this core's smoothed latencies of a path.
    pub(crate) fn means(&self, path: usize) -> Means {
        core::array::from_fn(|cell| self.measures[cell][path].smoothed_ns)
    }

    /// Statistics of a path and cell; selections are not counted here.
    pub(crate) fn stats(&self, cell: usize, path: usize) -> PathStats {
        let it = &self.measures[cell][path];
        PathStats {
            weight: it.weight.into(),
            credit: it.credit.into(),
            score: it.score.into(),
            smoothed_ns: it.smoothed_ns.into(),
            selections: 0,
            samples: it.samples,
            ignored: self.ignored[cell][path],
        }
    }

    /// Forgets one path, and the calculations its windows asked for (row A11).
    pub(crate) fn reset(&mut self, path: PathIndex) {
        for (due, measures) in self.due.iter_mut().zip(&mut self.measures) {
            *due &= !(1 << path.0);
            measures[usize::from(path.0)] = Measure::NEW;
        }
        for ignored in &mut self.ignored {
            ignored[usize::from(path.0)] = 0;
        }
        self.unpublished = true;
    }

    /// The table shrank to `count` paths.
    pub(crate) fn truncate(&mut self, count: usize) {
        for last in &mut self.last {
            if usize::from(*last) >= count {
                *last = 0;
            }
        }
    }
}

/// The cell of an I/O: its group, and its bucket if there are any (row A12).
#[inline]
pub(crate) fn cell(buckets: bool, group: Group, length: u32) -> usize {
    if !buckets {
        return group as usize;
    }
    let bucket = u32::BITS - (length >> BUCKET_SHIFT).leading_zeros();
    (bucket as usize).min(BUCKETS - 1) * 3 + group as usize
}

impl Measure {
    const NEW: Self = Self {
        sum_ns: 0,
        closed_ns: 0,
        samples: 0,
        count: 0,
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
        let mean_ns = self.sum_ns / u64::from(self.count);
        let old_ns = u64::from(self.smoothed_ns);
        let smoothed_ns = match old_ns {
            0 => mean_ns,
            _ => (old_ns * ((1 << shift) - 1) + mean_ns) >> shift,
        };
        // A mean of values in 1…10^9, smoothed with such: it lies there too.
        assert!(
            (1..=SAMPLE_NS_MAX).contains(&smoothed_ns),
            "a mean of {smoothed_ns} ns"
        );
        self.smoothed_ns = smoothed_ns as u32;
        self.closed_ns = now_ns;
        self.sum_ns = 0;
        self.count = 0;
    }
}

/// The score of a latency; 0 where there is none.
fn score(latency_ns: u32) -> u32 {
    1_000_000_000_u32.checked_div(latency_ns).unwrap_or(0)
}

/// Weights of one cell's paths by their scores (row A5). All paths of the head count, usable or
/// not.
fn weigh_cell(measures: &mut [Measure]) {
    let total: u64 = measures.iter().map(|it| u64::from(it.score)).sum();
    if total == 0 {
        return;
    }
    for measure in measures {
        let weight = u64::from(measure.score) * WEIGHT_WHOLE / total;
        // At most 64, since a score is at most the total; at least 1, so that no path is forgotten.
        assert!(weight <= WEIGHT_WHOLE, "a weight of {weight}");
        measure.weight = weight.max(1) as u8;
    }
}

#[cfg(test)]
mod tests;
