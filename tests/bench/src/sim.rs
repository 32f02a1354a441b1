//! The speed of a simulated world: I/Os per second that one core spends on it, which depends on the
//! machine, and instructions per I/O (callgrind), which do not.
//!
//! # Limits
//! Processor time leaves out who else had the core, but not what a neighbour took of its caches and
//! clock: the best of a few runs counts, and the load is printed.
use super::{Format, callgrind, table};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::path::Path;
use std::process::{Command, ExitCode};
use system::process::is_installed;

/// Virtual time of a timed run, and of the shorter of two counted ones; ms.
const TIMED_MS: u64 = 40_000;
const COUNTED_MS: u64 = 250;
/// Timed runs; in turn, so that what the machine does besides hits every policy.
const ROUNDS: usize = 3;
/// What was asked for.
const GOAL_IOS_PER_S: f64 = 2e6;
const POLICIES: [&str; 5] = [
    "numa",
    "round-robin",
    "queue-depth",
    "weighted-latency",
    "soonest",
];

/// How to print.
#[derive(clap::Args)]
pub struct Args {
    /// Output format.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

/// Measures the world of the example `sim_cost` under every policy.
pub fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let program = super::build_dist(root, &["-p", "braid-sim", "--example", "sim_cost"])?;
    let mut cells = Vec::new();
    for policy in POLICIES {
        let instructions = counted(&program, policy)?;
        cells.push(json!({"policy": policy, "ios_per_s": 0.0, "instructions": instructions}));
    }
    for _ in 0..ROUNDS {
        for (policy, cell) in POLICIES.iter().zip(&mut cells) {
            let best = cell["ios_per_s"].as_f64().unwrap_or(0.0);
            cell["ios_per_s"] = json!(best.max(timed(&program, policy)?));
        }
    }
    let title = format!(
        "a world of two paths, 256 in flight, one core; best of {ROUNDS} runs; goal: \
         {GOAL_IOS_PER_S} I/O/s"
    );
    let columns = [
        ("policy", "policy", 0),
        ("ios_per_s", "I/O/s", 0),
        ("instructions", "instructions/I/O", 0),
    ];
    table::print(args.output, &title, &columns, &cells);
    Ok(ExitCode::SUCCESS)
}

fn timed(program: &Path, policy: &str) -> Result<f64> {
    let before = super::children_seconds()?;
    let output = Command::new(program)
        .args([policy, &TIMED_MS.to_string()])
        .output()
        .with_context(|| format!("start {}", program.display()))?;
    let seconds = super::children_seconds()? - before;
    ensure!(output.status.success(), "sim_cost {policy} failed");
    let said = String::from_utf8_lossy(&output.stdout);
    let ios: f64 = said
        .split_whitespace()
        .next()
        .context("sim_cost says nothing")?
        .parse()?;
    Ok(ios / seconds.max(f64::MIN_POSITIVE))
}

/// Of the difference between two runs, so that the start does not count; `None` without valgrind.
fn counted(program: &Path, policy: &str) -> Result<Option<f64>> {
    if !is_installed("valgrind") {
        return Ok(None);
    }
    let (per_ms, ios) = callgrind::per_iteration(program, &[policy], COUNTED_MS)?;
    ensure!(
        ios > 0,
        "sim_cost {policy} printed no more I/Os for more time"
    );
    Ok(Some(per_ms * COUNTED_MS as f64 / ios as f64))
}
