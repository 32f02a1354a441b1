//! What a policy costs where there is nothing to win: one path, and paths that are all alike.
//!
//! # Contract
//! Random 4 KiB reads of a null namespace over NVMe/TCP on loopback, host and target on a core
//! each, in pairs of round-robin and the policy in question, whose order changes from pair to pair,
//! so that what the machine does besides hits both. The figure is the median of the pairs' ratios.
//! Twice: ports that are as fast as the machine, where a policy's own instructions show, and ports
//! of a fixed bandwidth, where only its choices do.
use super::Format;
use super::program::{Target, facts, median, number};
use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, ExitCode};

/// What the policy is compared to.
const BESIDE: &str = "round-robin";
/// Of each port of fixed bandwidth.
const CAPPED: &str = "bandwidth=40MiB/s";

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
    /// I/Os outstanding.
    #[arg(long, default_value_t = 64)]
    depth: usize,
    /// CPUs of host and target.
    #[arg(long, value_delimiter = ',', num_args = 1, default_value = "0,1")]
    cpus: Vec<usize>,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

/// One row of the table: I/Os per second of each pair.
struct Row {
    paths: usize,
    capped: bool,
    beside: Vec<f64>,
    policy: Vec<f64>,
}

/// Measures every cell.
pub fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let [host, target] = args.cpus[..] else {
        bail!("--cpus: two of them, HOST,TARGET")
    };
    ensure!(args.pairs > 0, "--pairs: at least one");
    let braid = super::build(root, &["-p", "braid", "--bin", "braid"])?;
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
    match args.output {
        Format::Text => {
            print_text(args, &rows);
            println!("load average of the machine: {}", super::load_average());
        }
        Format::Json => print_json(args, &rows),
    }
    Ok(ExitCode::SUCCESS)
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
            command.arg(format!("--iodepth={}", args.depth));
            command.arg(format!("--runtime={}", args.seconds));
            command.arg(format!("--cpus={cpu}"));
            figures.push(number(&facts(&mut command)?, "iops")?);
        }
        Ok(())
    }

    /// Of each pair, least, median and most.
    fn ratios(&self) -> [f64; 3] {
        let pairs = self.policy.iter().zip(&self.beside);
        let ratios: Vec<f64> = pairs.map(|(policy, beside)| policy / beside).collect();
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        [least, median(ratios), most]
    }

    fn port(&self) -> &'static str {
        if self.capped { CAPPED } else { "free" }
    }
}

fn print_text(args: &Args, rows: &[Row]) {
    println!(
        "4 KiB reads over loopback TCP, {} in flight, a core each side; {} pairs of {} s",
        args.depth, args.pairs, args.seconds
    );
    println!(
        "{:5} {:20} {:>14} {:>14} {:>8} {:>16}",
        "paths", "each port", BESIDE, args.policy, "ratio", "least … most"
    );
    for row in rows {
        let [least, middle, most] = row.ratios();
        println!(
            "{:5} {:20} {:14.0} {:14.0} {middle:8.4} {:>16}",
            row.paths,
            row.port(),
            median(row.beside.clone()),
            median(row.policy.clone()),
            format!("{least:.3} … {most:.3}"),
        );
    }
}

fn print_json(args: &Args, rows: &[Row]) {
    let cell = |row: &Row| {
        let [least, middle, most] = row.ratios();
        json!({
            "paths": row.paths, "port": row.port(), "policy": args.policy, "beside": BESIDE,
            "beside_iops": row.beside, "policy_iops": row.policy,
            "ratio": middle, "ratio_least": least, "ratio_most": most,
        })
    };
    let cells: Vec<Value> = rows.iter().map(cell).collect();
    println!("{}", json!({ "cells": cells }));
}

#[cfg(test)]
mod tests {
    use super::Row;

    #[test]
    fn the_ratio_is_the_median_of_the_pairs() {
        let row = Row {
            paths: 1,
            capped: false,
            beside: vec![100.0, 200.0, 50.0],
            policy: vec![99.0, 220.0, 50.0],
        };
        assert_eq!(row.ratios(), [0.99, 1.0, 1.1]);
    }
}
