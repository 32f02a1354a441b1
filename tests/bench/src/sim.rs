//! The speed of a simulated world: I/Os per second that one core spends on it, which depends on the
//! machine, and instructions per I/O (callgrind), which do not.
//!
//! # Limits
//! Processor time leaves out who else had the core, but not what a neighbour took of its caches and
//! clock: the best of a few runs counts, and the load is printed.
use super::{Format, callgrind};
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

struct Row {
    policy: &'static str,
    ios_per_s: f64,
    instructions: Option<f64>,
}

/// Measures the world of the example `sim_cost` under every policy.
pub fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let program = super::build_dist(root, &["-p", "braid-sim", "--example", "sim_cost"])?;
    let mut rows = Vec::new();
    for policy in POLICIES {
        rows.push(Row {
            policy,
            ios_per_s: 0.0,
            instructions: counted(&program, policy)?,
        });
    }
    for _ in 0..ROUNDS {
        for row in &mut rows {
            row.ios_per_s = row.ios_per_s.max(timed(&program, row.policy)?);
        }
    }
    match args.output {
        Format::Text => {
            println!("a world of two paths, 256 in flight, one core; best of {ROUNDS} runs");
            println!(
                "{:18}{:>14}{:>18}",
                "policy", "million I/O/s", "instructions/I/O"
            );
            for row in &rows {
                let count = row
                    .instructions
                    .map_or("-".to_owned(), |it| format!("{it:.0}"));
                println!("{:18}{:>14.2}{count:>18}", row.policy, row.ios_per_s / 1e6);
            }
            println!(
                "goal: {} million I/O/s; load average of the machine: {}",
                GOAL_IOS_PER_S / 1e6,
                super::load_average()
            );
        }
        Format::Json => {
            let cell = |row: &Row| {
                json!({"policy": row.policy, "ios_per_s": row.ios_per_s, "goal": GOAL_IOS_PER_S,
                       "instructions": row.instructions})
            };
            let cells: Vec<_> = rows.iter().map(cell).collect();
            println!("{}", json!({ "cells": cells }));
        }
    }
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
    let run = |ms: u64| -> Result<(u64, u64)> {
        let counted = callgrind::run(program, &[policy, &ms.to_string()], None)?;
        let ios = counted.printed.context("sim_cost printed no number")?;
        Ok((counted.instructions, ios))
    };
    let (few, many) = (run(COUNTED_MS)?, run(2 * COUNTED_MS)?);
    let ios = many.1.saturating_sub(few.1).max(1);
    Ok(Some(many.0.saturating_sub(few.0) as f64 / ios as f64))
}
