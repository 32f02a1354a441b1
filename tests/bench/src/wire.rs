//! What a wire I/O costs beside the bare exchange of the same messages.
//!
//! # Contract
//! 4 KiB reads and writes of a null namespace over loopback TCP, host and target on a core each,
//! beside a ping-pong of the same message sizes on the same two CPUs. Both are run in turn, several
//! rounds; the figure is the median over rounds, the ratio that of each round, so that what the
//! machine does besides hits both.
use super::Format;
use super::pingpong::{self, Exchange};
use super::program::{Target, facts, median, number};
use anyhow::{Result, bail};
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
    /// Only the bare exchange: what this machine can do.
    #[arg(long)]
    bare: bool,
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
        bail!("--cpus: two of them, HOST,TARGET")
    };
    let mut rows = Vec::new();
    for spin in [false, true] {
        for op in ["read", "write"] {
            rows.extend(args.depths.iter().map(|&depth| Row::new(op, depth, spin)));
        }
    }
    measure(root, args, [host, target], &mut rows)?;
    match args.output {
        Format::Text => {
            print_text(&rows);
            println!("load average of the machine: {}", super::load_average());
        }
        Format::Json => print_json(&rows),
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(root: &Path, args: &Args, cpus: [usize; 2], rows: &mut [Row]) -> Result<()> {
    let braid = match args.bare {
        true => None,
        false => Some(super::build_dist(root, &["--bin", "braid"])?),
    };
    for spin in [false, true] {
        let target = braid
            .as_ref()
            .map(|braid| Target::start(braid, 1, Some(cpus[1]), spin))
            .transpose()?;
        for _ in 0..args.rounds {
            for row in rows.iter_mut().filter(|row| row.spin == spin) {
                row.measure_bare(cpus, args.seconds)?;
                if let (Some(braid), Some(target)) = (&braid, &target) {
                    row.measure_braid(braid, &target.uris[0], cpus[0], args.seconds)?;
                }
            }
        }
    }
    Ok(())
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

    /// One round of the bare exchange.
    fn measure_bare(&mut self, cpus: [usize; 2], seconds: f64) -> Result<()> {
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
        Ok(())
    }

    /// One round of braid.
    fn measure_braid(&mut self, braid: &Path, uri: &str, cpu: usize, seconds: f64) -> Result<()> {
        let mut command = Command::new(braid);
        command.args(["bench", uri, "-o", "json", "--bs", "4k"]);
        command.arg(format!("--rw=rand{}", self.op));
        command.arg(format!("--iodepth={}", self.depth));
        command.arg(format!("--runtime={seconds}"));
        command.arg(format!("--cpus={cpu}"));
        if self.spin {
            command.arg("--spin");
        }
        self.braid.push(facts(&mut command)?);
        Ok(())
    }

    /// Median of one of braid's figures; `None` where it has none.
    fn figure(&self, key: &str) -> Option<f64> {
        let figures: Option<Vec<f64>> = self
            .braid
            .iter()
            .map(|facts| number(facts, key).ok())
            .collect();
        figures.filter(|figures| !figures.is_empty()).map(median)
    }

    /// Median over rounds of braid's rate as a part of the bare one.
    fn ratio(&self) -> Option<f64> {
        let rounds = self.braid.iter().zip(&self.bare);
        let ratios: Option<Vec<f64>> = rounds
            .map(|(facts, bare)| Some(number(facts, "iops").ok()? / bare))
            .collect();
        ratios.filter(|ratios| !ratios.is_empty()).map(median)
    }

    /// What is printed: bare rate, rate, ratio, p50, p99, bare calls, calls.
    fn figures(&self) -> [Option<f64>; 7] {
        let calls = self.figure("system_calls_per_io");
        let (bare, bare_calls) = (median(self.bare.clone()), median(self.bare_calls.clone()));
        let (p50, p99) = (self.figure("p50_us"), self.figure("p99_us"));
        [
            Some(bare),
            self.figure("iops"),
            self.ratio(),
            p50,
            p99,
            Some(bare_calls),
            calls,
        ]
    }

    fn mode(&self) -> &'static str {
        if self.spin { "spin" } else { "sleep" }
    }
}

fn print_text(rows: &[Row]) {
    println!("4 KiB over loopback TCP, a core each side; calls: the host's system calls per I/O");
    let heads = [
        "bare/s",
        "braid/s",
        "ratio",
        "p50 µs",
        "p99 µs",
        "bare calls",
        "calls",
    ];
    print!("{:6} {:>5} {:6}", "op", "depth", "mode");
    heads.iter().for_each(|head| print!(" {head:>10}"));
    println!();
    for row in rows {
        print!("{:6} {:5} {:6}", row.op, row.depth, row.mode());
        for (figure, digits) in row.figures().into_iter().zip([0, 0, 3, 1, 1, 3, 3]) {
            match figure {
                Some(figure) => print!(" {figure:10.digits$}"),
                None => print!(" {:>10}", "-"),
            }
        }
        println!();
    }
}

fn print_json(rows: &[Row]) {
    let cell = |row: &Row| {
        let [bare, iops, ratio, p50, p99, bare_calls, calls] = row.figures();
        json!({
            "op": row.op, "depth": row.depth, "spin": row.spin, "bare_iops": bare, "iops": iops,
            "ratio": ratio, "p50_us": p50, "p99_us": p99, "bare_system_calls_per_io": bare_calls,
            "system_calls_per_io": calls,
        })
    };
    println!(
        "{}",
        json!({ "cells": rows.iter().map(cell).collect::<Vec<Value>>() })
    );
}
