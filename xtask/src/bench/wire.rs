//! What a wire I/O costs beside the bare exchange of the same messages.
//!
//! # Contract
//! 4 KiB reads and writes of a null namespace over loopback TCP, host and target on a core each, beside
//! a ping-pong of the same message sizes on the same two CPUs. Both are run in turn, several rounds;
//! the figure is the median over rounds, the ratio that of each round, so that what the machine does
//! besides hits both.
use super::Format;
use super::pingpong::{self, Exchange};
use super::program::{Target, facts, median, number};
use anyhow::Result;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// CapsuleCmd with its SQE; data PDU header; capsule response; the blocks.
const CAPSULE: usize = 72;
const HEADER: usize = 24;
const BLOCK: usize = 4096;

/// Which cells, how long.
#[derive(clap::Args)]
pub struct Args {
    /// Seconds of each run.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds; odd gives a true median.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// I/Os outstanding.
    #[arg(long, value_delimiter = ',', default_value = "1,32,128")]
    depths: Vec<usize>,
    /// CPUs of host and target.
    #[arg(long, value_delimiter = ',', num_args = 1, default_value = "0,1")]
    cpus: Vec<usize>,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

/// One row of the table.
struct Row {
    op: &'static str,
    depth: usize,
    spin: bool,
    bare: Vec<f64>,
    bare_calls: Vec<f64>,
    braid: Vec<Value>,
}

/// Measures every cell.
pub fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let [host, target] = args.cpus[..] else {
        anyhow::bail!("--cpus: two of them, HOST,TARGET")
    };
    let braid = super::build(root, &["-p", "braid", "--bin", "braid"])?;
    let mut rows = Vec::new();
    for spin in [false, true] {
        for op in ["read", "write"] {
            rows.extend(args.depths.iter().map(|&depth| Row::new(op, depth, spin)));
        }
    }
    for spin in [false, true] {
        let target_process = Target::start(&braid, target, spin)?;
        for _ in 0..args.rounds {
            for row in rows.iter_mut().filter(|row| row.spin == spin) {
                row.measure(&braid, &target_process.uri, [host, target], args.seconds)?;
            }
        }
    }
    match args.output {
        Format::Text => print_text(&rows)?,
        Format::Json => print_json(&rows)?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Row {
    fn new(op: &'static str, depth: usize, spin: bool) -> Self {
        Self {
            op,
            depth,
            spin,
            bare: Vec::new(),
            bare_calls: Vec::new(),
            braid: Vec::new(),
        }
    }

    /// One round: the bare exchange, then braid.
    fn measure(&mut self, braid: &Path, uri: &str, cpus: [usize; 2], seconds: f64) -> Result<()> {
        let (request, response) = match self.op {
            "read" => (CAPSULE, HEADER + BLOCK),
            _ => (CAPSULE + BLOCK, HEADER),
        };
        let duration = Duration::from_secs_f64(seconds);
        let (depth, spin) = (self.depth, self.spin);
        let exchange = Exchange {
            request,
            response,
            depth,
            spin,
            cpus,
            duration,
        };
        let bare = pingpong::run(&exchange)?;
        self.bare.push(bare.per_s);
        self.bare_calls.push(bare.calls);
        let mut command = Command::new(braid);
        command.args(["bench", uri, "-o", "json", "--bs", "4k"]);
        command.arg(format!("--rw=rand{}", self.op));
        command.arg(format!("--iodepth={}", self.depth));
        command.arg(format!("--runtime={seconds}"));
        command.arg(format!("--cpu={}", cpus[0]));
        if self.spin {
            command.arg("--spin");
        }
        self.braid.push(facts(&mut command)?);
        Ok(())
    }

    /// Median of one of braid's figures.
    fn figure(&self, key: &str) -> Result<f64> {
        let figures: Result<Vec<f64>> = self.braid.iter().map(|facts| number(facts, key)).collect();
        Ok(median(figures?))
    }

    /// Median over rounds of braid's rate as a part of the bare one.
    fn ratio(&self) -> Result<f64> {
        let rounds = self.braid.iter().zip(&self.bare);
        let ratios: Result<Vec<f64>> = rounds
            .map(|(facts, bare)| Ok(number(facts, "iops")? / bare))
            .collect();
        Ok(median(ratios?))
    }

    fn mode(&self) -> &'static str {
        if self.spin { "spin" } else { "sleep" }
    }
}

fn print_text(rows: &[Row]) -> Result<()> {
    println!("4 KiB over loopback TCP, a core each side; calls: the host's system calls per I/O");
    println!(
        "{:6} {:>5} {:6} {:>10} {:>10} {:>7} {:>9} {:>9} {:>11} {:>9}",
        "op",
        "depth",
        "mode",
        "bare/s",
        "braid/s",
        "ratio",
        "p50 µs",
        "p99 µs",
        "bare calls",
        "calls"
    );
    for row in rows {
        println!(
            "{:6} {:5} {:6} {:10.0} {:10.0} {:7.3} {:9.1} {:9.1} {:11.3} {:>9}",
            row.op,
            row.depth,
            row.mode(),
            median(row.bare.clone()),
            row.figure("iops")?,
            row.ratio()?,
            row.figure("p50_us")?,
            row.figure("p99_us")?,
            median(row.bare_calls.clone()),
            row.figure("syscalls_per_io")
                .map_or("-".to_owned(), |calls| format!("{calls:.3}")),
        );
    }
    Ok(())
}

fn print_json(rows: &[Row]) -> Result<()> {
    let cells: Result<Vec<Value>> = rows
        .iter()
        .map(|row| {
            Ok(json!({
                "op": row.op, "depth": row.depth, "spin": row.spin,
                "bare_iops": median(row.bare.clone()),
                "bare_syscalls_per_io": median(row.bare_calls.clone()),
                "iops": row.figure("iops")?, "ratio": row.ratio()?,
                "p50_us": row.figure("p50_us")?, "p99_us": row.figure("p99_us")?,
                "syscalls_per_io": row.figure("syscalls_per_io").ok(),
            }))
        })
        .collect();
    println!("{}", json!({ "cells": cells? }));
    Ok(())
}
