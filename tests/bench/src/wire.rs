//! Cost of a wire I/O beside the bare exchange of the same messages.
//!
//! # Contract
//! 4 KiB reads and writes of a null namespace over loopback TCP, host and target on a core each,
//! beside a ping-pong of the same message sizes on the same two CPUs. Both are run in turn, several
//! rounds; the figure is the median over rounds, the ratio that of each round, so that what the
//! machine does besides hits both. The ends of braid spin, or wait as they do by default, beside
//! those of the exchange that spin or sleep.
mod adaptive;

use super::pingpong::{self, Exchange};
use crate::prelude::*;
use system::program::Waits;

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
#[command(mut_arg("rounds", |it| it.default_value("3")))]
pub struct Args {
    #[command(flatten)]
    sides: Sides,
    /// I/Os outstanding [default: 1,32,128, or 1,4,32]
    #[arg(long, value_delimiter = ',')]
    depths: Vec<usize>,
    /// Ends of braid that poll while that pays, beside those that spin and those that sleep
    #[arg(long, conflicts_with = "bare")]
    adaptive: bool,
    /// Only the bare exchange: what this machine can do.
    #[arg(long)]
    bare: bool,
}

/// Measures every cell.
pub fn run(setup: &Setup, args: &Args) -> Result<()> {
    let depths = match (&args.depths[..], args.adaptive) {
        ([], true) => &[1, 4, 32],
        ([], false) => &[1, 32, 128],
        (depths, _) => depths,
    };
    if args.adaptive {
        return adaptive::run(setup, &args.sides, depths);
    }
    let (cpus, timing) = (args.sides.cpus, &args.sides.timing);
    let braid = (!args.bare).then(|| setup.braid()).transpose()?;
    let rows = product(&["read", "write"], depths);
    let mut cells = Vec::new();
    for spin in [false, true] {
        let waits = if spin {
            Waits::Spinning
        } else {
            Waits::Adaptive
        };
        let start = |braid: &PathBuf| Target::start(braid, 1, Some(cpus[1]), waits);
        let target = braid.as_ref().map(start).transpose()?;
        cells.extend(interleaved(
            timing.rounds,
            &rows,
            &COLUMNS,
            |&(op, depth)| {
                let [request, response] = match op {
                    "read" => [CAPSULE, HEADER + BLOCK],
                    _ => [CAPSULE + BLOCK, HEADER],
                };
                let duration = Duration::from_secs_f64(timing.seconds);
                let bare = pingpong::run(&Exchange {
                    request,
                    response,
                    depth,
                    spin,
                    cpus,
                    duration,
                })?;
                let mut all = json!({
                    "op": op, "mode": if spin { "spin" } else { "default" }, "depth": depth,
                    "bare_iops": bare.per_s, "bare_system_calls_per_io": bare.calls,
                });
                if let (Some(braid), Some(target)) = (&braid, &target) {
                    let words = format!(
                        "-o json --bs 4k --rw=rand{op} --iodepth={depth} --runtime={} --cpus={}{}",
                        timing.seconds,
                        cpus[0],
                        if spin { " --spin" } else { "" }
                    );
                    let mut command = Command::new(braid);
                    command
                        .args(["bench", &target.uris[0]])
                        .args(words.split(' '));
                    let braid = facts(&mut command)?;
                    all["ratio"] = json!(number(&braid, "iops")? / bare.per_s);
                    // Its own words for the operation and such are left to the row.
                    all = with(braid, all);
                }
                Ok(all)
            },
        )?);
    }
    let title = "4 KiB over loopback TCP, a core each side; calls: the host's system calls per I/O";
    setup.show(title, &COLUMNS, cells);
    Ok(())
}
