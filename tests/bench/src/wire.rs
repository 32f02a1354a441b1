//! Cost of a wire I/O beside the bare exchange of the same messages.
//!
//! # Contract
//! 4 KiB reads and writes of a null namespace over loopback TCP, host and target on a core each,
//! beside a ping-pong of the same message sizes on the same two CPUs. Both are run in turn, several
//! rounds; the figure is the median over rounds, the ratio that of each round, so that what the
//! machine does besides hits both.
use super::pingpong::{self, Exchange};
use crate::prelude::*;

/// CapsuleCmd with its SQE; data PDU header; capsule response; the blocks.
const CAPSULE: usize = 72;
const HEADER: usize = 24;
const BLOCK: usize = 4096;

const COLUMNS: [Column; 10] = [
    ("op", "op", 0),
    ("mode", "mode", 0),
    ("depth", "depth", 0),
    ("bare_iops", "bare/s", 0),
    ("iops", "braid/s", 0),
    ("ratio", "ratio", 3),
    ("p50_us", "p50 µs", 1),
    ("p99_us", "p99 µs", 1),
    ("bare_system_calls_per_io", "bare calls", 3),
    ("system_calls_per_io", "calls", 3),
];

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
pub fn run(setup: &Setup, args: &Args) -> Result<()> {
    let [host, target] = args.cpus[..] else {
        bail!("--cpus: two of them, HOST,TARGET")
    };
    let mut rows = Vec::new();
    for spin in [false, true] {
        for op in ["read", "write"] {
            rows.extend(args.depths.iter().map(|&depth| Row::new(op, depth, spin)));
        }
    }
    measure(setup, args, [host, target], &mut rows)?;
    let title = "4 KiB over loopback TCP, a core each side; calls: the host's system calls per I/O";
    let cells: Vec<Value> = rows.iter().map(Row::cell).collect();
    table::print(setup.output, title, &COLUMNS, &cells);
    Ok(())
}

fn measure(setup: &Setup, args: &Args, cpus: [usize; 2], rows: &mut [Row]) -> Result<()> {
    let braid = (!args.bare).then(|| setup.braid()).transpose()?;
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

    /// One of braid's figures in each round; none where it was not measured.
    fn each(&self, key: &str) -> Vec<f64> {
        let figures = self.braid.iter();
        figures
            .filter_map(|facts| number(facts, key).ok())
            .collect()
    }

    fn cell(&self) -> Value {
        let figure = |key| median(self.each(key));
        json!({
            "op": self.op, "mode": if self.spin { "spin" } else { "sleep" }, "depth": self.depth,
            "bare_iops": median(self.bare.clone()), "iops": figure("iops"),
            "ratio": median(parts(&self.each("iops"), &self.bare)),
            "p50_us": figure("p50_us"), "p99_us": figure("p99_us"),
            "bare_system_calls_per_io": median(self.bare_calls.clone()),
            "system_calls_per_io": figure("system_calls_per_io"),
        })
    }
}
