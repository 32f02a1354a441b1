//! Instructions per select + complete.
//!
//! Callgrind counts the instructions of `policy`'s example `policy_cost` for two numbers of
//! iterations; the difference over the difference of iterations is free of start-up, and the loop's
//! own share, measured without a selector, is taken off. Counts repeat exactly, whatever else the
//! machine does.
use super::callgrind;
use crate::prelude::*;

const POLICIES: [&str; 14] = [
    "numa",
    "round-robin",
    "round-robin:262144",
    "queue-depth",
    "weighted-latency",
    "weighted-latency:per-cpu+buckets",
    "weighted-latency:per-numa",
    "weighted-latency:per-numa+buckets",
    "soonest",
    "pid",
    "latency",
    "devid:2",
    "service-time",
    "historical-service-time",
];
const PATHS: [u32; 3] = [2, 4, 16];
const COLUMNS: [Column; 4] = [
    ("policy", "policy", 0),
    ("2 paths", "2 paths", 1),
    ("4 paths", "4 paths", 1),
    ("16 paths", "16 paths", 1),
];

/// Which cells, how long.
#[derive(clap::Args)]
pub struct Args {
    /// Iterations of the longer run; the shorter has half of them.
    #[arg(long, default_value_t = 20_000)]
    iterations: u64,
}

/// Measures every policy with every number of paths.
pub fn run(setup: &Setup, args: &Args) -> Result<()> {
    ensure!(
        args.iterations >= 2,
        "--iterations {}: at least 2",
        args.iterations
    );
    callgrind::check()?;
    let program = super::build_dist(
        &setup.root,
        &["-p", "braid-policy", "--example", "policy_cost"],
    )?;
    let cell = |policy: &str, paths: u32| -> Result<f64> {
        let arguments = [policy, &paths.to_string()];
        Ok(callgrind::per_iteration(&program, &arguments, args.iterations / 2)?.0)
    };
    let loops = PATHS
        .into_iter()
        .map(|paths| cell("none", paths))
        .collect::<Result<Vec<_>>>()?;
    let mut cells = Vec::new();
    for policy in POLICIES {
        let mut row = json!({ "policy": policy });
        for (paths, own) in PATHS.into_iter().zip(&loops) {
            row[format!("{paths} paths")] = json!(cell(policy, paths)? - own);
        }
        cells.push(row);
    }
    let title = "instructions per select + complete (callgrind)";
    table::print(setup.output, title, &COLUMNS, &cells);
    Ok(())
}
