//! One cell of the table: a policy under one operation, in figures.
use super::model::{Alone, Check, Setup, TOLERANCE};
use crate::stats::Stats;
use engine::host::HedgeStats;
use policy::Policy;

/// Reads, writes, or half of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Random reads.
    Read,
    /// Random writes.
    Write,
    /// As many of both.
    Mixed,
}

impl Op {
    /// All of them, in the table's order.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Mixed];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Mixed => "mixed",
        }
    }

    /// The same in the words of a load.
    pub fn rw(self) -> &'static str {
        match self {
            Self::Read => "randread",
            Self::Write => "randwrite",
            Self::Mixed => "randrw",
        }
    }
}

/// Result of a policy under one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The policy.
    pub policy: Policy,
    /// The operation.
    pub op: Op,
    /// Throughput.
    pub mib_s: f64,
    /// Throughput of each round.
    pub rounds_mib_s: Vec<f64>,
    /// I/Os per second.
    pub iops: f64,
    /// Median latency, µs.
    pub p50_us: f64,
    /// 99th percentile, µs.
    pub p99_us: f64,
    /// 99.9th percentile, µs.
    pub p999_us: f64,
    /// The two paths: fast, slow.
    pub paths: [PathFigures; 2],
    /// I/Os that failed.
    pub errors: u64,
    /// Second copies of late reads, and how many reads there were.
    pub hedges: (HedgeStats, u64),
}

/// One path in a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathFigures {
    /// Its part of the I/Os, 0…1.
    pub share: f64,
    /// Throughput.
    pub mib_s: f64,
    /// Mean latency, ns; 0 if it served nothing.
    pub mean_ns: f64,
    /// I/Os on it on average: rate × mean latency (Little's law).
    pub in_flight: f64,
}

impl Cell {
    /// The figures of a measurement over the paths fast and slow, and of each of its rounds.
    pub fn new(policy: Policy, op: Op, stats: &Stats, rounds_mib_s: Vec<f64>) -> Self {
        let total = stats.total();
        let shares = stats.shares();
        let path = |index: usize| {
            let (Some(tally), Some(&share)) = (stats.paths.get(index), shares.get(index)) else {
                return PathFigures::default();
            };
            PathFigures {
                share,
                mib_s: stats.mib_s(tally.bytes),
                mean_ns: tally.mean_ns(),
                in_flight: stats.rate(tally.ios) * tally.mean_ns() / 1e9,
            }
        };
        Self {
            policy,
            op,
            mib_s: stats.mib_s(total.bytes),
            rounds_mib_s,
            iops: stats.rate(total.ios),
            p50_us: total.quantile_ns(0.5) / 1e3,
            p99_us: total.quantile_ns(0.99) / 1e3,
            p999_us: total.quantile_ns(0.999) / 1e3,
            paths: [path(0), path(1)],
            errors: stats.errors,
            hedges: (stats.hedges, stats.ops[0].ios),
        }
    }
}

/// Everything the demo found out.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The paths that were built.
    pub setup: Setup,
    /// Each path alone, by operation (reads, writes).
    pub alone: [Alone; 2],
    /// The table.
    pub cells: Vec<Cell>,
    /// Seconds measured per cell, all rounds together.
    pub seconds: f64,
    /// Cores of the host.
    pub cores: u16,
    /// Rounds that were measured, the last one perhaps in part.
    pub rounds: usize,
    /// Part of the time that the threads of target and host were runnable but had no CPU; `None`:
    /// the kernel does not tell.
    pub waited: Option<f64>,
    /// The window of weighted-latency, ns.
    pub window_ns: u64,
    /// Ended early by the user.
    pub interrupted: bool,
}

impl Outcome {
    /// Each path alone under an operation.
    pub fn alone(&self, op: Op) -> Alone {
        let [read, write] = &self.alone;
        match op {
            Op::Read => *read,
            Op::Write => *write,
            Op::Mixed => Alone::mean(read, write),
        }
    }

    /// The best there can be under an operation, MiB/s.
    pub fn optimum_mib_s(&self, op: Op) -> f64 {
        self.setup.optimum_mib_s(&self.alone(op))
    }

    /// Share of the optimum that a cell reached, 0…1.
    pub fn of_optimum(&self, cell: &Cell) -> f64 {
        cell.mib_s / self.optimum_mib_s(cell.op)
    }

    /// Each path alone beside its model.
    pub fn checks(&self) -> Vec<(Op, Check)> {
        let checks = |op, alone: &Alone| self.setup.checks(alone).map(|check| (op, check));
        let [read, write] = &self.alone;
        [checks(Op::Read, read), checks(Op::Write, write)].concat()
    }

    /// Whether every path alone is within the tolerance of its model, and the threads had a CPU
    /// whenever they needed one.
    pub fn machine_is_quiet(&self) -> bool {
        let has_cpus = self.waited.is_none_or(|part| part <= TOLERANCE);
        has_cpus && self.checks().iter().all(|(_, check)| check.holds())
    }

    /// I/Os that failed, in all cells.
    pub fn errors(&self) -> u64 {
        self.cells.iter().map(|cell| cell.errors).sum()
    }

    /// The policies of the table, in its order.
    pub fn policies(&self) -> Vec<Policy> {
        let mut policies: Vec<Policy> = Vec::new();
        for cell in &self.cells {
            if !policies.contains(&cell.policy) {
                policies.push(cell.policy);
            }
        }
        policies
    }

    /// The cell of a policy and operation, if it was measured.
    pub fn cell(&self, policy: Policy, op: Op) -> Option<&Cell> {
        self.cells
            .iter()
            .find(|cell| cell.policy == policy && cell.op == op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_what_was_measured() {
        let mut stats = Stats::new(2);
        for _ in 0..900 {
            stats.good(false, 0, 4096, 1_000_000);
        }
        for _ in 0..100 {
            stats.good(true, 1, 4096, 30_000_000);
        }
        stats.elapsed_ns = 500_000_000;
        let cell = Cell::new(Policy::QueueDepth, Op::Mixed, &stats, vec![7.0]);
        assert_eq!(cell.iops, 2000.0);
        assert_eq!(cell.mib_s, 2000.0 / 256.0);
        assert_eq!([cell.paths[0].share, cell.paths[1].share], [0.9, 0.1]);
        // 1800/s × 1 ms and 200/s × 30 ms
        let in_flight = cell.paths.map(|path| path.in_flight);
        assert!((in_flight[0] - 1.8).abs() < 1e-9 && (in_flight[1] - 6.0).abs() < 1e-9);
        assert!((cell.p50_us - 1000.0).abs() < 1.0, "{}", cell.p50_us);
        assert!((cell.p99_us - 30_000.0).abs() < 30.0, "{}", cell.p99_us);
    }

    #[test]
    fn a_path_without_io_has_no_latency() {
        let mut stats = Stats::new(2);
        stats.good(false, 1, 4096, 1_000);
        stats.elapsed_ns = 1;
        let cell = Cell::new(Policy::Numa, Op::Read, &stats, Vec::new());
        assert_eq!(cell.paths[0], PathFigures::default());
    }
}
