//! Paths in proportion to inverse latency: as braid's `weighted-latency:per-cpu` with windows of
//! 50 ms and `ewma_shift` 3.
#![no_std]
use braid_policy_sdk::{Outcome, Path, Policy, Request, PATHS_MAX};

const WINDOW_NS: u64 = 50_000_000;
const EWMA_SHIFT: u32 = 3;
const SAMPLE_NS_MAX: u64 = 1_000_000_000;
/// The weights of all paths are shares of this.
const WHOLE: u64 = 64;

#[derive(Clone, Copy)]
struct Measure {
    sum_ns: u64,
    closed_ns: u64,
    count: u32,
    smoothed_ns: u32,
    weight: u32,
    credit: u32,
}

const UNKNOWN: Measure = Measure {
    sum_ns: 0,
    closed_ns: 0,
    count: 0,
    smoothed_ns: 0,
    weight: 0,
    credit: 0,
};

impl Measure {
    /// Pays for one I/O. A path that can't is refilled; one without a weight need not pay.
    fn spend(&mut self) -> bool {
        if self.credit > 0 {
            self.credit -= 1;
            return true;
        }
        self.credit = self.weight;
        self.weight == 0
    }

    /// Ends the window.
    fn close(&mut self, now_ns: u64) {
        let mean_ns = self.sum_ns / u64::from(self.count);
        let old_ns = u64::from(self.smoothed_ns);
        let smoothed_ns = match old_ns {
            0 => mean_ns,
            _ => (old_ns * ((1 << EWMA_SHIFT) - 1) + mean_ns) >> EWMA_SHIFT,
        };
        self.smoothed_ns = smoothed_ns as u32;
        self.closed_ns = now_ns;
        self.sum_ns = 0;
        self.count = 0;
    }
}

/// Of one group of I/Os.
#[derive(Clone, Copy)]
struct Cell {
    last: usize,
    measures: [Measure; PATHS_MAX],
}

pub struct WeightedLatency {
    cells: [Cell; 3],
}

/// Weights in proportion to 1 / latency. In a function of its own: a choice does not pay for it.
#[inline(never)]
fn weigh(measures: &mut [Measure]) {
    let score = |it: &Measure| 1_000_000_000_u32.checked_div(it.smoothed_ns).unwrap_or(0);
    let total: u64 = measures.iter().map(|it| u64::from(score(it))).sum();
    if total == 0 {
        return;
    }
    for measure in measures {
        let weight = u64::from(score(measure)) * WHOLE / total;
        measure.weight = if weight > 0 { weight as u32 } else { 1 };
    }
}

impl Policy for WeightedLatency {
    const NEW: Self = Self {
        cells: [Cell {
            last: 0,
            measures: [UNKNOWN; PATHS_MAX],
        }; 3],
    };

    fn select(&mut self, request: &mut Request, paths: &mut [Path]) -> Option<usize> {
        let cell = self.cells.get_mut(request.group as usize)?;
        let count = paths.len();
        let mut at = if cell.last < count { cell.last } else { 0 };
        // Twice round is enough: a path that could not pay the first time can the second time.
        for _ in 0..=2 * count {
            if paths.get(at)?.is_usable() && cell.measures.get_mut(at)?.spend() {
                cell.last = at;
                return Some(at);
            }
            at = if at + 1 < count { at + 1 } else { 0 };
        }
        None
    }

    fn complete(
        &mut self,
        path: usize,
        latency_ns: u64,
        outcome: Outcome,
        request: &mut Request,
        paths: &mut [Path],
    ) {
        let is_sample = outcome == Outcome::Good && paths.len() > 1;
        if !is_sample || latency_ns == 0 || latency_ns > SAMPLE_NS_MAX {
            return;
        }
        let Some(cell) = self.cells.get_mut(request.group as usize) else {
            return;
        };
        let Some(measure) = cell.measures.get_mut(path) else {
            return;
        };
        measure.sum_ns += latency_ns;
        measure.count += 1;
        let age_ns = request.now_ns.saturating_sub(measure.closed_ns);
        if measure.smoothed_ns == 0 || age_ns >= WINDOW_NS || measure.count == u32::MAX {
            measure.close(request.now_ns);
            if let Some(measures) = cell.measures.get_mut(..paths.len()) {
                weigh(measures);
            }
        }
    }

    fn reset(&mut self, path: usize) {
        for cell in &mut self.cells {
            if let Some(measure) = cell.measures.get_mut(path) {
                *measure = UNKNOWN;
            }
        }
    }
}

braid_policy_sdk::export!(WeightedLatency);
