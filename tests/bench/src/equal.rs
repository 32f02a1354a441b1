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
use system::program::Waits;

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
#[command(mut_arg("rounds", |it| it.default_value("10")))]
pub struct Args {
    /// Policy to compare with round-robin.
    #[arg(long, default_value = "soonest")]
    policy: String,
    /// Numbers of paths.
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    paths: Vec<usize>,
    /// I/Os outstanding, for each path.
    #[arg(long, default_value_t = 32)]
    depth: usize,
    #[command(flatten)]
    sides: Sides,
}

/// Measures every cell.
pub fn run(setup: &Setup, args: &Args) -> Result<()> {
    let ([host, target], timing) = (args.sides.cpus, &args.sides.timing);
    let braid = setup.braid()?;
    let mut cells = Vec::new();
    for (paths, port) in product(&args.paths, &["", CAPPED]) {
        let target = Target::start_shaped(&braid, paths, Some(target), Waits::Adaptive, port)?;
        // I/Os per second, and µs of the host's processor for each.
        let run = |policy: &str| -> Result<[f64; 2]> {
            let mut command = Command::new(&braid);
            let depth = args.depth * paths;
            let words = format!(
                "-o json --bs 4k --rw=randread --policy={policy} --iodepth={depth} \
                 --runtime={} --cpus={host}",
                timing.seconds
            );
            command
                .arg("bench")
                .args(&target.uris)
                .args(words.split(' '));
            let before = super::children_seconds()?;
            let iops = number(&facts(&mut command)?, "iops")?;
            let seconds = super::children_seconds()? - before;
            Ok([iops, seconds * 1e6 / (iops * timing.seconds).max(1.0)])
        };
        let mut policies = [args.policy.as_str(), BESIDE];
        cells.extend(interleaved(timing.rounds, &[()], &COLUMNS, |()| {
            let mut runs = policies.map(&run);
            if policies[0] == BESIDE {
                runs.reverse();
            }
            policies.reverse();
            let [policy, beside] = runs;
            let (policy, beside) = (policy?, beside?);
            Ok(json!({
                "port": if port.is_empty() { "free" } else { port }, "paths": paths,
                "beside_iops": beside[0], "policy_iops": policy[0],
                "ratio": policy[0] / beside[0], "time_ratio": policy[1] / beside[1],
            }))
        })?);
    }
    let title = format!(
        "4 KiB reads over loopback TCP, {} in flight per path, a core each side; {} pairs of {} s; \
         {} beside {BESIDE}",
        args.depth, timing.rounds, timing.seconds, args.policy
    );
    setup.show(&title, &COLUMNS, cells);
    Ok(())
}
