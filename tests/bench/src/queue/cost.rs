//! Bounds of an I/O of a hardware queue: instructions of either side.
//!
//! # Contract
//! One side runs under callgrind, the other one natively and so some fifty times as fast: the slow
//! side always finds a full batch, and nothing is counted for waiting. The cost of a start is taken
//! off by a second run of twice the time.
use super::{Args, Load, QueueServer};
use crate::callgrind;
use crate::prelude::*;

/// Seconds of the shorter run.
const SECONDS: f64 = 1.0;
/// How long a counted broker spins: always. Under valgrind one that sleeps in the kernel keeps its
/// other threads, who talk to clients, from running. Its polling before and after the load is
/// about the same in both runs.
const AWAKE_US: u64 = 600_000_000;

/// Instructions per I/O.
pub const COLUMNS: [Column; 5] = [
    ("side", "side", 0),
    ("trust", "trust", 0),
    ("size", "size", 0),
    ("depth", "depth", 0),
    ("instructions", "instructions", 1),
];

/// Which side is counted, and what it trusts.
const SIDES: [(&str, &str); 3] = [
    ("client and its load", "mediated"),
    ("broker", "trusted"),
    ("broker", "mediated"),
];

/// Counts both sides at every size and depth of more than one: at one, either waits for the other.
/// Cells of [`COLUMNS`].
pub fn count(braid: &Path, args: &Args) -> Result<Vec<Value>> {
    callgrind::check()?;
    let depths: Vec<usize> = args
        .depths
        .iter()
        .copied()
        .filter(|&depth| depth > 1)
        .collect();
    let rows = product(&product(&args.sizes, &depths), &SIDES);
    interleaved(1, &rows, &COLUMNS, |((size, depth), (side, trust))| {
        let load = ("user_poll", size.as_str(), *depth);
        let run = |seconds| events(braid, side, trust, load, args, seconds);
        let (few, many) = (run(SECONDS)?, run(2.0 * SECONDS)?);
        let ios = many.1 - few.1;
        ensure!(ios > 0.0, "the longer run had fewer I/Os");
        let cost = (many.0 - few.0) / ios;
        Ok(
            json!({"side": side, "trust": trust, "size": size, "depth": depth,
                  "instructions": cost}),
        )
    })
}

/// Counts of one run: instructions of the side, and I/Os.
fn events(
    braid: &Path,
    side: &str,
    trust: &str,
    load: Load<'_>,
    args: &Args,
    seconds: f64,
) -> Result<(f64, f64)> {
    // Where callgrind writes to.
    let log = format!("braid-queue-cost-{}.log", std::process::id());
    let log = std::env::temp_dir().join(log);
    let mut counted = Command::new("valgrind");
    counted
        .args(callgrind::QUIET)
        .arg(format!("--log-file={}", log.display()))
        .arg(braid);
    let (serve, bench, spin_us) = match side {
        "broker" => (counted, Command::new(braid), AWAKE_US),
        _ => (Command::new(braid), counted, args.spin_us),
    };
    let mut server = QueueServer::spawn(serve, trust, args, spin_us)?;
    // In order: callgrind prints its sums when the program ends.
    let facts = server.run(bench, load, seconds, args);
    let facts = facts.and_then(|facts| server.0.end().map(|()| facts));
    let said = fs::read_to_string(&log).with_context(|| log.display().to_string());
    let _ = fs::remove_file(&log);
    let said = said?;
    let facts = facts.with_context(|| format!("callgrind said:\n{said}"))?;
    let instructions = callgrind::collected(&said)? as f64;
    let ios = number(&facts, "iops")? * number(&facts, "seconds")?;
    Ok((instructions, ios))
}
