//! Instructions per select + complete.
//!
//! Callgrind counts the instructions of `policy`'s example `policy_cost` for two numbers of
//! iterations; the difference over the difference of iterations is free of start-up, and the loop's
//! own share, measured without a selector, is taken off. Counts repeat exactly, whatever else the
//! machine does.
use super::Format;
use crate::process::is_installed;
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::{Command, ExitCode};

const POLICIES: [&str; 5] = [
    "numa",
    "round-robin",
    "round-robin:262144",
    "queue-depth",
    "weighted-latency",
];
const PATHS: [u32; 3] = [2, 4, 16];

/// Which cells, how long.
#[derive(clap::Args)]
pub struct Args {
    /// Iterations of the longer run; the shorter has half of them.
    #[arg(long, default_value_t = 20_000)]
    iterations: u64,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

/// Measures every policy with every number of paths.
pub fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    ensure!(
        args.iterations >= 2,
        "--iterations {}: at least 2",
        args.iterations
    );
    if !is_installed("valgrind") {
        bail!("valgrind is not installed; it counts the instructions: apt-get install valgrind");
    }
    let program = super::build(root, &["-p", "braid-policy", "--example", "policy_cost"])?;
    let cell = |policy: &str, paths| per_iteration(&program, policy, paths, args.iterations);
    let loops = PATHS
        .into_iter()
        .map(|paths| cell("none", paths))
        .collect::<Result<Vec<_>>>()?;
    let mut rows = Vec::new();
    for policy in POLICIES {
        let mut row = Vec::new();
        for (paths, own) in PATHS.into_iter().zip(&loops) {
            row.push(cell(policy, paths)? - own);
        }
        rows.push((policy, row));
    }
    match args.output {
        Format::Text => print_text(&rows),
        Format::Json => print_json(&rows),
    }
    Ok(ExitCode::SUCCESS)
}

fn per_iteration(program: &Path, policy: &str, paths: u32, iterations: u64) -> Result<f64> {
    let short = iterations / 2;
    let few = instructions(program, policy, paths, short)?;
    let many = instructions(program, policy, paths, iterations)?;
    ensure!(
        many > few,
        "{policy} with {paths} paths: {iterations} iterations cost no more than {short}"
    );
    Ok((many - few) as f64 / (iterations - short) as f64)
}

fn instructions(program: &Path, policy: &str, paths: u32, iterations: u64) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([policy, &paths.to_string(), &iterations.to_string()])
        .output()
        .context("start valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "policy_cost {policy} {paths} {iterations} failed:\n{said}"
    );
    collected(&said).with_context(|| format!("callgrind's output has no count:\n{said}"))
}

/// The total in callgrind's summary.
pub fn collected(said: &str) -> Option<u64> {
    let line = said
        .lines()
        .find_map(|line| line.split_once("Collected :"))?;
    line.1.split_whitespace().next()?.parse().ok()
}

fn print_text(rows: &[(&str, Vec<f64>)]) {
    println!("instructions per select + complete (callgrind)");
    print!("{:20}", "policy");
    PATHS
        .iter()
        .for_each(|paths| print!("{:>12}", format!("{paths} paths")));
    println!();
    for (policy, row) in rows {
        print!("{policy:20}");
        row.iter().for_each(|count| print!("{count:12.1}"));
        println!();
    }
}

fn print_json(rows: &[(&str, Vec<f64>)]) {
    let cells: Vec<serde_json::Value> = rows
        .iter()
        .flat_map(|(policy, row)| {
            row.iter().zip(PATHS).map(move |(count, paths)| {
                serde_json::json!({"policy": policy, "paths": paths, "instructions": count})
            })
        })
        .collect();
    println!("{}", serde_json::json!({ "cells": cells }));
}

#[cfg(test)]
mod tests {
    use super::collected;

    #[test]
    fn the_total_is_read_out_of_callgrinds_summary() {
        let said = "==7== Events    : Ir\n==7== Collected : 123456\n==7== \n";
        assert_eq!(collected(said), Some(123_456));
        assert_eq!(collected("==7== Events    : Ir\n"), None);
    }
}
