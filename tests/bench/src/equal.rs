//! Cost of a policy where there is nothing to win: one path, and paths that are all alike.
//!
//! # Contract
//! Random 4 KiB reads of a null namespace over NVMe/TCP on loopback, host and target on a core
//! each, in pairs of round-robin and the policy in question, whose order changes from pair to pair,
//! so that what the machine does besides hits both. The figures are medians of the pairs' ratios:
//! of I/Os per second, and of the host's processor time per I/O, which its neighbours touch less.
//! Twice: ports that are as fast as the machine, where a policy's own instructions show, and ports
//! of a fixed bandwidth, where only its choices do.
use crate::prelude::*;

/// Policy for comparison.
const BESIDE: &str = "round-robin";
/// Of each port of fixed bandwidth.
const CAPPED: &str = "bandwidth=4MiB/s";

const COLUMNS: [Column; 7] = [
    ("port", "each port", 0),
    ("paths", "paths", 0),
    ("beside_iops", "beside, IOPS", 0),
    ("policy_iops", "policy, IOPS", 0),
    ("ratio", "ratio", 4),
    ("ratio_range", "least … most", 3),
    ("time_ratio", "time/I/O", 3),
];

/// Which cells, how long.
#[derive(clap::Args)]
pub struct Args {
    /// Policy to compare with round-robin.
    #[arg(long, default_value = "soonest")]
    policy: String,
    /// Pairs of runs in each cell.
    #[arg(long, default_value_t = 10)]
    pairs: usize,
    /// Seconds of each run.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Numbers of paths.
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    paths: Vec<usize>,
    /// I/Os outstanding, for each path.
    #[arg(long, default_value_t = 32)]
    depth: usize,
    /// CPUs of host and target.
    #[arg(long, value_delimiter = ',', num_args = 1, default_value = "0,1")]
    cpus: Vec<usize>,
}

/// One row of the table.
struct Row {
    paths: usize,
    capped: bool,
    beside: Vec<Run>,
    policy: Vec<Run>,
}

/// One run of one policy.
#[derive(Clone, Copy)]
struct Run {
    iops: f64,
    /// Of the host's processor, per I/O.
    us: f64,
}

/// Measures every cell.
pub fn run(setup: &Setup, args: &Args) -> Result<()> {
    let [host, target] = args.cpus[..] else {
        bail!("--cpus: two of them, HOST,TARGET")
    };
    ensure!(args.pairs > 0, "--pairs: at least one");
    let braid = setup.braid()?;
    let mut rows = Vec::new();
    for &paths in &args.paths {
        ensure!(paths > 0, "--paths: at least one");
        for capped in [false, true] {
            let port = if capped { CAPPED } else { "" };
            let target = Target::start_shaped(&braid, paths, Some(target), false, port)?;
            let mut row = Row {
                paths,
                capped,
                beside: Vec::new(),
                policy: Vec::new(),
            };
            for pair in 0..args.pairs {
                row.measure(&braid, &target, args, host, pair % 2 == 1)?;
            }
            rows.push(row);
        }
    }
    let title = format!(
        "4 KiB reads over loopback TCP, {} in flight per path, a core each side; {} pairs of {} s; \
         {} beside {BESIDE}",
        args.depth, args.pairs, args.seconds, args.policy
    );
    let cells: Vec<Value> = rows.iter().map(Row::cell).collect();
    table::print(setup.output, &title, &COLUMNS, &cells);
    Ok(())
}

impl Row {
    /// One pair.
    fn measure(
        &mut self,
        braid: &Path,
        target: &Target,
        args: &Args,
        cpu: usize,
        policy_first: bool,
    ) -> Result<()> {
        for turn in [policy_first, !policy_first] {
            let (policy, figures) = match turn {
                true => (args.policy.as_str(), &mut self.policy),
                false => (BESIDE, &mut self.beside),
            };
            let mut command = Command::new(braid);
            command.arg("bench").args(&target.uris);
            command.args(["-o", "json", "--bs", "4k", "--rw=randread"]);
            command.arg(format!("--policy={policy}"));
            command.arg(format!("--iodepth={}", args.depth * self.paths));
            command.arg(format!("--runtime={}", args.seconds));
            command.arg(format!("--cpus={cpu}"));
            let before = super::children_seconds()?;
            let iops = number(&facts(&mut command)?, "iops")?;
            let seconds = super::children_seconds()? - before;
            let us = seconds * 1e6 / (iops * args.seconds).max(1.0);
            figures.push(Run { iops, us });
        }
        Ok(())
    }

    /// Of each pair, least, median and most.
    fn ratios(&self, of: impl Fn(&Run) -> f64) -> [f64; 3] {
        let ratios = ratios(&self.policy, &self.beside, of);
        let [least, most] = range(&ratios);
        [least, median(ratios), most]
    }

    fn cell(&self) -> Value {
        let [least, typical, most] = self.ratios(|it| it.iops);
        let [_, time, _] = self.ratios(|it| it.us);
        let iops = |runs: &[Run]| middle(runs, |it| it.iops);
        json!({
            "port": if self.capped { CAPPED } else { "free" }, "paths": self.paths,
            "beside_iops": iops(&self.beside), "policy_iops": iops(&self.policy),
            "time_ratio": time, "ratio": typical, "ratio_range": [least, most],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Row, Run};

    #[test]
    fn the_ratio_is_the_median_of_the_pairs() {
        let runs = |iops: [f64; 3]| iops.map(|iops| Run { iops, us: 2.0 }).to_vec();
        let row = Row {
            paths: 1,
            capped: false,
            beside: runs([100.0, 200.0, 50.0]),
            policy: runs([99.0, 220.0, 50.0]),
        };
        assert_eq!(row.ratios(|it| it.iops), [0.99, 1.0, 1.1]);
        assert_eq!(row.ratios(|it| it.us), [1.0, 1.0, 1.0]);
    }
}
