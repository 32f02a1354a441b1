//! Results of a load: counts, latencies and shares, per operation and per path.
//!
//! # Contract
//! One core counts alone; what several cores counted is added up afterwards with [`Stats::merge`].
use crate::limits::{FAILURES_DESCRIBED, LATENCY_NS_MAX};
use engine::host::HedgeStats;
use hdrhistogram::Histogram;

/// Reads or writes.
#[derive(Clone, Debug)]
pub struct OpStats {
    /// I/Os completed well.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their latencies, ns, to three significant digits.
    pub latency: Histogram<u64>,
}

/// One path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathTally {
    /// I/Os completed well.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Sum of their latencies, ns.
    pub latency_ns: u64,
    /// I/Os that failed.
    pub errors: u64,
    /// I/Os that waited because the path was full.
    pub waited_full: u64,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Reads, writes.
    pub ops: [OpStats; 2],
    /// Paths, in the volume's order.
    pub paths: Vec<PathTally>,
    /// I/Os that failed and blocks that were wrong.
    pub errors: u64,
    /// Of these, I/Os that were never answered: they have no latency.
    pub unanswered: u64,
    /// The first few of them, described.
    pub failures: Vec<String>,
    /// Bytes read and found right.
    pub verified_bytes: u64,
    /// How long was measured, ns.
    pub elapsed_ns: u64,
    /// Second copies of reads.
    pub hedges: HedgeStats,
}

impl OpStats {
    fn new() -> Self {
        // Requirements on the bounds: 1 ≤ low, 2 · low ≤ high, at most 5 digits.
        let Ok(latency) = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3) else {
            unreachable!("constant bounds that hold")
        };
        Self {
            ios: 0,
            bytes: 0,
            latency,
        }
    }

    /// Adds what another core, or the other operation, came to.
    fn add(&mut self, more: &Self) {
        self.ios += more.ios;
        self.bytes += more.bytes;
        // Both have the same fixed bounds, so nothing can be out of range.
        let _ = self.latency.add(&more.latency);
    }

    /// Mean latency, ns; 0 without any.
    pub fn mean_ns(&self) -> f64 {
        self.latency.mean()
    }

    /// Latency that this part (0…1) of the I/Os did not exceed, ns; 0 without any.
    pub fn quantile_ns(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64
    }
}

impl PathTally {
    /// Mean latency, ns; 0 without any.
    pub fn mean_ns(&self) -> f64 {
        self.latency_ns as f64 / self.ios.max(1) as f64
    }
}

impl Stats {
    /// Nothing yet, over `paths` paths.
    pub fn new(paths: usize) -> Self {
        Self {
            ops: [OpStats::new(), OpStats::new()],
            paths: vec![PathTally::default(); paths],
            errors: 0,
            unanswered: 0,
            failures: Vec::with_capacity(FAILURES_DESCRIBED),
            verified_bytes: 0,
            elapsed_ns: 0,
            hedges: HedgeStats::default(),
        }
    }

    /// Counts an I/O that was completed well.
    pub fn good(&mut self, write: bool, path: usize, bytes: u32, latency_ns: u64) {
        let op = &mut self.ops[usize::from(write)];
        op.ios += 1;
        op.bytes += u64::from(bytes);
        op.latency.saturating_record(latency_ns);
        if let Some(path) = self.paths.get_mut(path) {
            path.ios += 1;
            path.bytes += u64::from(bytes);
            path.latency_ns += latency_ns;
        }
    }

    /// Counts something that went wrong; `describe` is asked for the first few only.
    pub fn bad(&mut self, describe: impl FnOnce() -> String) {
        self.errors += 1;
        if self.failures.len() < FAILURES_DESCRIBED {
            self.failures.push(describe());
        }
    }

    /// Counts so many unanswered I/Os, on the only path or on any.
    pub fn unanswered(&mut self, ios: u64) {
        self.errors += ios;
        self.unanswered += ios;
        if let [only] = &mut self.paths[..] {
            only.errors += ios;
        }
    }

    /// Forgets all figures but the errors: what went wrong while warming up went wrong.
    pub fn restart(&mut self) {
        for op in &mut self.ops {
            (op.ios, op.bytes) = (0, 0);
            op.latency.reset();
        }
        self.paths.fill(PathTally::default());
    }

    /// Adds what another core counted in the same time.
    pub fn merge(&mut self, other: &Self) {
        for (op, more) in self.ops.iter_mut().zip(&other.ops) {
            op.add(more);
        }
        for (path, more) in self.paths.iter_mut().zip(&other.paths) {
            path.ios += more.ios;
            path.bytes += more.bytes;
            path.latency_ns += more.latency_ns;
            path.errors += more.errors;
            path.waited_full += more.waited_full;
        }
        self.errors += other.errors;
        self.unanswered += other.unanswered;
        let room = FAILURES_DESCRIBED.saturating_sub(self.failures.len());
        self.failures
            .extend(other.failures.iter().take(room).cloned());
        self.verified_bytes += other.verified_bytes;
        self.hedges = self.hedges.with(&other.hedges);
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
    }

    /// Adds what was counted in a later time.
    pub fn append(&mut self, later: &Self) {
        let elapsed_ns = self.elapsed_ns + later.elapsed_ns;
        self.merge(later);
        self.elapsed_ns = elapsed_ns;
    }

    /// Reads and writes together.
    pub fn total(&self) -> OpStats {
        let mut total = self.ops[0].clone();
        total.add(&self.ops[1]);
        total
    }

    /// So many of something, per second.
    pub fn rate(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// So many bytes, in MiB per second.
    pub fn mib_s(&self, bytes: u64) -> f64 {
        self.rate(bytes) / f64::from(1 << 20)
    }

    /// Each path's part of the I/Os, 0…1; all 0 without any.
    pub fn shares(&self) -> Vec<f64> {
        let all: u64 = self.paths.iter().map(|path| path.ios).sum();
        let share = |path: &PathTally| path.ios as f64 / all.max(1) as f64;
        self.paths.iter().map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_add_up() {
        let (mut a, mut b) = (Stats::new(2), Stats::new(2));
        for i in 1..=99 {
            a.good(false, 0, 4096, i * 1_000);
        }
        b.good(false, 1, 4096, 1_000_000);
        b.good(true, 1, 512, 10);
        b.bad(|| "first".into());
        (a.elapsed_ns, b.elapsed_ns) = (1_000_000_000, 2_000_000_000);
        a.merge(&b);
        assert_eq!((a.ops[0].ios, a.ops[1].ios), (100, 1));
        assert_eq!(
            a.ops[0].quantile_ns(0.5),
            50_015.0,
            "50 000 to three digits"
        );
        assert!(a.ops[0].quantile_ns(0.999) >= 1_000_000.0);
        assert_eq!(a.shares(), [99.0 / 101.0, 2.0 / 101.0]);
        assert_eq!(a.rate(a.ops[0].ios), 50.0);
        assert_eq!(a.total().bytes, 100 * 4096 + 512);
        assert_eq!((a.errors, a.failures.len()), (1, 1));
        assert_eq!(a.paths[1].mean_ns(), 500_005.0);
        a.append(&b);
        assert_eq!((a.elapsed_ns, a.ops[1].ios), (4_000_000_000, 2));
    }

    #[test]
    fn only_the_first_failures_are_described() {
        let mut stats = Stats::new(1);
        for _ in 0..100 {
            stats.bad(|| "bad".into());
        }
        assert_eq!(
            (stats.errors, stats.failures.len()),
            (100, FAILURES_DESCRIBED)
        );
    }

    #[test]
    fn warming_up_leaves_no_figures_but_its_errors() {
        let mut stats = Stats::new(1);
        stats.good(true, 0, 4096, 5);
        stats.bad(|| "bad".into());
        stats.restart();
        assert_eq!(
            (stats.total().ios, stats.total().latency.len(), stats.errors),
            (0, 0, 1)
        );
        assert_eq!(stats.paths[0], PathTally::default());
        assert_eq!(stats.shares(), [0.0]);
    }

    #[test]
    fn a_latency_beyond_the_histogram_counts_as_the_longest() {
        let mut stats = Stats::new(1);
        stats.good(false, 0, 512, u64::MAX >> 20);
        stats.good(false, 0, 512, 0);
        assert_eq!(stats.ops[0].latency.len(), 2);
    }
}
