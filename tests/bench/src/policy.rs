//! Instructions per select + complete.
//!
//! Callgrind counts the instructions of `policy`'s example `policy_cost` for two numbers of
//! iterations; the difference over the difference of iterations is free of start-up, and the loop's
//! own share, measured without a selector, is taken off. Counts repeat exactly, whatever else the
//! machine does.
use super::{Format, callgrind};
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::ExitCode;

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
    callgrind::check()?;
    let program = super::build_dist(root, &["-p", "braid-policy", "--example", "policy_cost"])?;
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
    let arguments = [policy, &paths.to_string(), &iterations.to_string()];
    Ok(callgrind::run(program, &arguments, None)?.instructions)
}

fn print_text(rows: &[(&str, Vec<f64>)]) {
    println!("instructions per select + complete (callgrind)");
    print!("{:34}", "policy");
    PATHS
        .iter()
        .for_each(|paths| print!("{:>12}", format!("{paths} paths")));
    println!();
    for (policy, row) in rows {
        print!("{policy:34}");
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
