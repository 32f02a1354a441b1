//! What an NBD export costs beside nbdkit's memory disk.
//!
//! # Contract
//! fio (`ioengine=nbd`, one connection) reads and writes 4 KiB at random: nbdkit's memory plugin,
//! braid over memory, and braid over a target of its own on loopback TCP, one after the other in
//! each round, so that what the machine does besides hits all of them. The figure is the median
//! over rounds, the ratio that of each round. System calls are counted in one more round, by perf,
//! in which nothing is timed: those of the server's process, by all requests.
mod server;

use super::Format;
use super::program::{Target, median, number, printed};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use server::Server;
pub use server::directory;
use std::path::Path;
use std::process::{Command, ExitCode};
use system::process::is_installed;

/// Which cells, how long.
#[derive(clap::Args)]
pub struct Args {
    /// Seconds of each run.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds; odd gives a true median.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Requests outstanding.
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    depths: Vec<usize>,
    /// Bytes of a request, in fio's words.
    #[arg(long, default_value = "4k")]
    bs: String,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

/// Servers, in the order in which they are measured; the first is what the others are compared to.
const SERVERS: [&str; 3] = ["nbdkit memory", "braid mem", "braid nvme-tcp"];

/// What one server did in one cell.
#[derive(Default)]
struct Cell {
    iops: Vec<f64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    calls: Option<f64>,
}

/// One row of the table.
struct Row {
    op: &'static str,
    depth: usize,
    cells: [Cell; SERVERS.len()],
}

/// Measures every cell.
pub fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    for (program, package) in [("fio", "fio"), ("nbdkit", "nbdkit")] {
        if !is_installed(program) {
            bail!("{program} is not installed: apt-get install {package}");
        }
    }
    let braid = super::build_dist(root, &["--bin", "braid"])?;
    let target = Target::start(&braid, 1, None, false)?;
    let servers = [
        Server::nbdkit()?,
        Server::braid(&braid, "mem:256MiB")?,
        Server::braid(&braid, &target.uris[0])?,
    ];
    let mut rows = Vec::new();
    for op in ["read", "write"] {
        rows.extend(args.depths.iter().map(|&depth| Row {
            op,
            depth,
            cells: Default::default(),
        }));
    }
    for _ in 0..args.rounds {
        for row in &mut rows {
            for (server, cell) in servers.iter().zip(&mut row.cells) {
                cell.measure(args, row.op, row.depth, server)?;
            }
        }
    }
    let counted = count_calls(args, &servers, &mut rows);
    match args.output {
        Format::Text => {
            print_text(&args.bs, &rows);
            println!("load average of the machine: {}", super::load_average());
        }
        Format::Json => print_json(&rows),
    }
    if let Err(error) = counted {
        eprintln!("system calls were not counted: {error:#}");
    }
    Ok(ExitCode::SUCCESS)
}

/// One more round, with perf.
fn count_calls(args: &Args, servers: &[Server], rows: &mut [Row]) -> Result<()> {
    if !is_installed("perf") {
        bail!("perf is not installed: apt-get install linux-perf");
    }
    for row in rows {
        for (server, cell) in servers.iter().zip(&mut row.cells) {
            cell.calls = Some(calls(args, row.op, row.depth, server)?);
        }
    }
    Ok(())
}

/// System calls of the server's process by request.
fn calls(args: &Args, op: &str, depth: usize, server: &Server) -> Result<f64> {
    let log = server.file("perf");
    let mut command = Command::new("perf");
    command.args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-o"]);
    command.arg(&log).args(["-p", &server.id().to_string()]);
    command.arg("fio");
    fio_words(&mut command, args, op, depth, server);
    let facts = fio_facts(&mut command).context("perf can't count here")?;
    let text = std::fs::read_to_string(&log)?;
    let count = counted(&text).with_context(|| format!("perf counted nothing: {text}"))?;
    Ok(count / number(of_op(&facts, op), "total_ios")?)
}

/// The count in the output of `perf stat -x ,`.
fn counted(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains("sys_enter"))?;
    line.split(',').next()?.parse().ok()
}

fn fio_words(command: &mut Command, args: &Args, op: &str, depth: usize, server: &Server) {
    command.args(["--name=nbd", "--ioengine=nbd", "--thread", "--size=256M"]);
    command.args(["--output-format=json", "--time_based", "--ramp_time=200ms"]);
    command.args([
        format!("--uri={}", server.uri()),
        format!("--rw=rand{op}"),
        format!("--bs={}", args.bs),
        format!("--iodepth={depth}"),
        format!("--runtime={}ms", (args.seconds * 1e3) as u64),
    ]);
}

/// fio's report, behind whatever it notes before.
pub fn fio_facts(command: &mut Command) -> Result<Value> {
    let text = printed(command)?;
    let object = text.find('{').and_then(|begin| text.get(begin..));
    let object = object.with_context(|| format!("{command:?} printed no JSON object:\n{text}"))?;
    serde_json::from_str(object).with_context(|| format!("{command:?} printed no JSON:\n{text}"))
}

/// What fio says of the reads or the writes of its one job.
fn of_op<'a>(facts: &'a Value, op: &str) -> &'a Value {
    &facts["jobs"][0][op]
}

impl Cell {
    fn measure(&mut self, args: &Args, op: &str, depth: usize, server: &Server) -> Result<()> {
        let mut command = Command::new("fio");
        fio_words(&mut command, args, op, depth, server);
        let facts = fio_facts(&mut command)?;
        let of_op = of_op(&facts, op);
        self.iops.push(number(of_op, "iops")?);
        let percentiles = &of_op["clat_ns"]["percentile"];
        for (list, key) in [
            (&mut self.p50_us, "50.000000"),
            (&mut self.p99_us, "99.000000"),
        ] {
            list.push(number(percentiles, key)? / 1e3);
        }
        Ok(())
    }
}

impl Row {
    /// What is printed of one server: rate, ratio to the first, p50, p99, system calls.
    fn figures(&self, server: usize) -> [Option<f64>; 5] {
        let cell = &self.cells[server];
        let pairs = cell.iops.iter().zip(&self.cells[0].iops);
        let ratio = median(pairs.map(|(iops, first)| iops / first).collect());
        [
            Some(median(cell.iops.clone())),
            Some(ratio),
            Some(median(cell.p50_us.clone())),
            Some(median(cell.p99_us.clone())),
            cell.calls,
        ]
    }
}

fn print_text(bs: &str, rows: &[Row]) {
    println!("{bs} over NBD, one connection of fio; calls: the server's system calls per request");
    print!("{:6} {:>5} {:16}", "op", "depth", "server");
    for head in ["IOPS", "ratio", "p50 µs", "p99 µs", "calls"] {
        print!(" {head:>9}");
    }
    println!();
    for row in rows {
        for (index, name) in SERVERS.iter().enumerate() {
            print!("{:6} {:5} {name:16}", row.op, row.depth);
            for (figure, digits) in row.figures(index).into_iter().zip([0, 3, 1, 1, 3]) {
                match figure {
                    Some(figure) => print!(" {figure:9.digits$}"),
                    None => print!(" {:>9}", "-"),
                }
            }
            println!();
        }
    }
}

fn print_json(rows: &[Row]) {
    let cells = rows.iter().flat_map(|row| {
        SERVERS.iter().enumerate().map(|(index, name)| {
            let [iops, ratio, p50, p99, calls] = row.figures(index);
            json!({
                "op": row.op, "depth": row.depth, "server": name, "iops": iops, "ratio": ratio,
                "p50_us": p50, "p99_us": p99, "system_calls_per_io": calls,
            })
        })
    });
    println!("{}", json!({ "cells": cells.collect::<Vec<Value>>() }));
}

#[cfg(test)]
mod tests {
    use super::{Cell, Row, counted};

    #[test]
    fn perfs_count_is_its_first_field() {
        let text = "# started on a day\n\n1234,,raw_syscalls:sys_enter,99,100.00,,\n";
        assert_eq!(counted(text), Some(1234.0));
        assert_eq!(
            counted("<not supported>,,raw_syscalls:sys_enter,0,,,"),
            None
        );
    }

    #[test]
    fn ratios_are_those_of_each_round() {
        let cell = |iops: [f64; 3]| Cell {
            iops: iops.to_vec(),
            ..Cell::default()
        };
        let row = Row {
            op: "read",
            depth: 1,
            cells: [
                cell([10.0, 20.0, 40.0]),
                cell([5.0, 20.0, 80.0]),
                cell([1.0, 2.0, 4.0]),
            ],
        };
        assert_eq!(row.figures(1)[..2], [Some(20.0), Some(1.0)]);
        assert_eq!(row.figures(2)[1], Some(0.1));
    }
}
