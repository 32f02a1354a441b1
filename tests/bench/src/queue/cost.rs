//! Instructions of the client of a hardware queue and its load.
//!
//! # Contract
//! The client runs under callgrind, and the server natively, some fifty times as fast: the client
//! always finds a full batch, and nothing is counted for waiting. The cost of a start is taken off
//! by a second run of twice the time. A server can't be counted so: its reactor sleeps in the
//! kernel, where valgrind lets no other thread run. `bench layers` has its instructions.
use super::{Args, Load, QueueServer};
use crate::callgrind;
use crate::prelude::*;

/// Seconds of the shorter run.
const SECONDS: f64 = 1.0;

/// Instructions per I/O.
pub const COLUMNS: [Column; 3] = [
    ("size", "size", 0),
    ("depth", "depth", 0),
    ("instructions", "instructions", 1),
];

/// Counts the client at every size and depth of more than one: at one, it waits for the server.
/// Cells of [`COLUMNS`].
pub fn count(braid: &Path, args: &Args) -> Result<Vec<Value>> {
    callgrind::check()?;
    let depths: Vec<usize> = args
        .depths
        .iter()
        .copied()
        .filter(|&depth| depth > 1)
        .collect();
    let rows = product(&args.sizes, &depths);
    interleaved(1, &rows, &COLUMNS, |(size, depth)| {
        let load = ("user_poll", size.as_str(), *depth);
        let run = |seconds| events(braid, load, args, seconds);
        let (few, many) = (run(SECONDS)?, run(2.0 * SECONDS)?);
        let ios = many.1 - few.1;
        ensure!(ios > 0.0, "the longer run had fewer I/Os");
        let cost = (many.0 - few.0) / ios;
        Ok(json!({"size": size, "depth": depth, "instructions": cost}))
    })
}

/// Counts of one run: instructions of the client, and I/Os.
fn events(braid: &Path, load: Load<'_>, args: &Args, seconds: f64) -> Result<(f64, f64)> {
    // Where callgrind writes to.
    let log = format!("braid-queue-cost-{}.log", std::process::id());
    let log = std::env::temp_dir().join(log);
    let mut counted = Command::new("valgrind");
    counted
        .args(callgrind::QUIET)
        .arg(format!("--log-file={}", log.display()))
        .arg(braid);
    let mut server = QueueServer::spawn(Command::new(braid), "mediated", args, args.spin_us)?;
    let facts = server.run(counted, load, seconds, args);
    let facts = facts.and_then(|facts| server.0.end().map(|()| facts));
    let said = fs::read_to_string(&log).with_context(|| log.display().to_string());
    let _ = fs::remove_file(&log);
    let said = said?;
    let facts = facts.with_context(|| format!("callgrind said:\n{said}"))?;
    let instructions = callgrind::collected(&said)? as f64;
    let ios = number(&facts, "iops")? * number(&facts, "seconds")?;
    Ok((instructions, ios))
}
