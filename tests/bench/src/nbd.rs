//! Cost of an NBD export beside nbdkit's memory disk.
//!
//! # Contract
//! fio (`ioengine=nbd`, one connection) reads and writes 4 KiB at random: nbdkit's memory plugin,
//! braid over memory, and braid over a target of its own on loopback TCP, one after the other in
//! each round, so that what the machine does besides hits all of them. The figure is the median
//! over rounds, the ratio that of each round. System calls are counted in one more round, by perf,
//! in which nothing is timed: those of the server's process, by all requests.
use super::fio::{self, Run};
use crate::prelude::*;

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
}

const COLUMNS: [Column; 8] = [
    ("op", "op", 0),
    ("server", "server", 0),
    ("depth", "depth", 0),
    ("iops", "IOPS", 0),
    ("ratio", "ratio", 3),
    ("p50_us", "p50 µs", 1),
    ("p99_us", "p99 µs", 1),
    ("system_calls_per_io", "calls", 3),
];

/// Servers, in the order in which they are measured; the first is what the others are compared to.
const SERVERS: [&str; 3] = ["nbdkit memory", "braid mem", "braid nvme-tcp"];

/// Measurements of one server in one cell.
#[derive(Default)]
struct Cell {
    runs: Vec<Run>,
    calls: Option<f64>,
}

/// One row of the table.
struct Row {
    op: &'static str,
    depth: usize,
    cells: [Cell; SERVERS.len()],
}

/// Measures every cell.
pub fn run(setup: &Setup, args: &Args) -> Result<()> {
    for (program, package) in [("fio", "fio"), ("nbdkit", "nbdkit")] {
        if !is_installed(program) {
            bail!("{program} is not installed: apt-get install {package}");
        }
    }
    let braid = setup.braid()?;
    let target = Target::start(&braid, 1, None, false)?;
    let servers = [
        Server::nbdkit()?,
        Server::over(&braid, "mem:256MiB")?,
        Server::over(&braid, &target.uris[0])?,
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
                let mut command = Command::new("fio");
                fio_words(&mut command, args, row.op, row.depth, server);
                cell.runs.push(fio::run(&mut command)?);
            }
        }
    }
    let counted = count_calls(args, &servers, &mut rows);
    let title = format!(
        "{} over NBD, one connection of fio; calls: the server's system calls per request",
        args.bs
    );
    let cells: Vec<Value> = rows.iter().flat_map(Row::cells).collect();
    table::print(setup.output, &title, &COLUMNS, &cells);
    if let Err(error) = counted {
        eprintln!("system calls were not counted: {error:#}");
    }
    Ok(())
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
    let run = fio::run(&mut command).context("perf can't count here")?;
    let text = std::fs::read_to_string(&log)?;
    let count = counted(&text).with_context(|| format!("perf counted nothing: {text}"))?;
    Ok(count / run.ios)
}

/// The count in the output of `perf stat -x ,`.
fn counted(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains("sys_enter"))?;
    line.split(',').next()?.parse().ok()
}

fn fio_words(command: &mut Command, args: &Args, op: &str, depth: usize, server: &Server) {
    fio::words(command, &server.uri(), Some(args.seconds));
    command.args(["--thread", "--size=256M", "--ramp_time=200ms"]);
    command.args([
        format!("--rw=rand{op}"),
        format!("--bs={}", args.bs),
        format!("--iodepth={depth}"),
    ]);
}

impl Row {
    /// One of each server; the ratio is that to the first one.
    fn cells(&self) -> [Value; SERVERS.len()] {
        std::array::from_fn(|server| {
            let Cell { runs, calls } = &self.cells[server];
            let iops = |it: &Run| it.iops;
            json!({
                "op": self.op, "server": SERVERS[server], "depth": self.depth,
                "iops": middle(runs, iops),
                "ratio": median(ratios(runs, &self.cells[0].runs, iops)),
                "p50_us": middle(runs, |it| it.p50_us), "p99_us": middle(runs, |it| it.p99_us),
                "system_calls_per_io": calls,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Cell, Row, Run, counted};

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
            runs: iops
                .map(|iops| Run {
                    iops,
                    ..Run::default()
                })
                .to_vec(),
            calls: None,
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
        let cells = row.cells();
        assert_eq!([&cells[1]["ratio"], &cells[2]["ratio"]], [1.0, 0.1]);
        assert_eq!(cells[1]["iops"], 20.0);
    }
}
