//! What an NBD export costs beside nbdkit's memory disk.
//!
//! # Contract
//! fio (`ioengine=nbd`, one connection) reads and writes 4 KiB at random: nbdkit's memory plugin,
//! braid over memory, and braid over a target of its own on loopback TCP, one after the other in
//! each round, so that what the machine does besides hits all of them. The figure is the median
//! over rounds, the ratio that of each round. System calls are counted in one more round, by perf,
//! in which nothing is timed: those of the server's process, by all requests.
use super::Format;
use super::program::{Target, median, number, printed};
use super::server::Server;
use super::table::{self, Column};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
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
                cell.measure(args, row.op, row.depth, server)?;
            }
        }
    }
    let counted = count_calls(args, &servers, &mut rows);
    let title = format!(
        "{} over NBD, one connection of fio; calls: the server's system calls per request",
        args.bs
    );
    let cells: Vec<Value> = rows.iter().flat_map(Row::cells).collect();
    table::print(args.output, &title, &COLUMNS, &cells);
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
    /// One of each server.
    fn cells(&self) -> [Value; SERVERS.len()] {
        std::array::from_fn(|server| {
            let cell = &self.cells[server];
            json!({
                "op": self.op, "server": SERVERS[server], "depth": self.depth,
                "iops": median(cell.iops.clone()), "ratio": self.ratio(server),
                "p50_us": median(cell.p50_us.clone()), "p99_us": median(cell.p99_us.clone()),
                "system_calls_per_io": cell.calls,
            })
        })
    }

    /// To the first server, in the same rounds.
    fn ratio(&self, server: usize) -> f64 {
        let pairs = self.cells[server].iops.iter().zip(&self.cells[0].iops);
        median(pairs.map(|(iops, first)| iops / first).collect())
    }
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
        assert_eq!([row.ratio(1), row.ratio(2)], [1.0, 0.1]);
        assert_eq!(row.cells()[1]["iops"], 20.0);
    }
}
