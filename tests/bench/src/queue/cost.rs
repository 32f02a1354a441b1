//! Bounds of an I/O of a hardware queue: instructions of either side.
//!
//! # Contract
//! One side runs under callgrind, the other one natively and so some fifty times as fast: the slow
//! side always finds a full batch, and nothing is counted for waiting. The cost of a start is taken
//! off by a second run of twice the time.
use super::{Ends, Load, QueueServer};
use crate::callgrind;
use crate::prelude::*;

/// Seconds of the shorter run.
const SECONDS: f64 = 1.0;
/// How long a counted broker spins: always. Under valgrind one that sleeps in the kernel keeps its
/// other threads, who talk to clients, from running. Its polling before and after the load is
/// about the same in both runs.
const AWAKE_US: u64 = 600_000_000;

/// Side whose instructions are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Broker,
}

/// Instructions per I/O.
pub const COLUMNS: [Column; 5] = [
    ("side", "side", 0),
    ("trust", "trust", 0),
    ("size", "size", 0),
    ("depth", "depth", 0),
    ("instructions", "instructions", 1),
];

/// Counts both sides at every size and depth of more than one: at one, either waits for the other.
/// Cells of [`COLUMNS`].
pub fn count(braid: &Path, sizes: &[String], depths: &[usize], ends: &Ends) -> Result<Vec<Value>> {
    callgrind::check()?;
    let sides = [
        (Side::Client, "mediated"),
        (Side::Broker, "trusted"),
        (Side::Broker, "mediated"),
    ];
    let mut costs = Vec::new();
    let depths = || depths.iter().copied().filter(|&depth| depth > 1);
    let loads = sizes.iter().flat_map(|size| {
        depths().map(move |depth| Load {
            kind: "user_poll",
            size,
            depth,
        })
    });
    for load in loads {
        for (side, trust) in sides {
            let run = |seconds| events(braid, side, trust, &load, ends, seconds);
            let (few, many) = (run(SECONDS)?, run(2.0 * SECONDS)?);
            let ios = many.1 - few.1;
            ensure!(ios > 0.0, "the longer run had fewer I/Os");
            costs.push(json!({
                "side": if side == Side::Client { "client and its load" } else { "broker" },
                "trust": trust,
                "size": load.size,
                "depth": load.depth,
                "instructions": (many.0 - few.0) / ios,
            }));
        }
    }
    Ok(costs)
}

/// Counts of one run: instructions of the side, and I/Os.
fn events(
    braid: &Path,
    side: Side,
    trust: &str,
    load: &Load<'_>,
    ends: &Ends,
    seconds: f64,
) -> Result<(f64, f64)> {
    let log = log();
    let mut counted = Command::new("valgrind");
    counted.args(callgrind::QUIET);
    counted.arg(format!("--log-file={}", log.display()));
    counted.arg(braid);
    let (serve, bench, spin_us) = match side {
        Side::Broker => (counted, Command::new(braid), AWAKE_US),
        Side::Client => (Command::new(braid), counted, ends.spin_us),
    };
    let mut server = QueueServer::spawn(serve, trust == "trusted", ends.server, spin_us)?;
    let mut bench = server.client(bench, load, seconds, ends.client);
    // In order: callgrind prints its sums when the program ends.
    let facts = facts(&mut bench).and_then(|facts| server.0.end().map(|()| facts));
    let said = fs::read_to_string(&log).with_context(|| log.display().to_string());
    let _ = fs::remove_file(&log);
    let said = said?;
    let facts = facts.with_context(|| format!("callgrind said:\n{said}"))?;
    let instructions = callgrind::collected(&said)? as f64;
    let ios = number(&facts, "iops")? * number(&facts, "seconds")?;
    Ok((instructions, ios))
}

/// Where callgrind writes to.
fn log() -> PathBuf {
    let name = format!("braid-queue-cost-{}.log", std::process::id());
    std::env::temp_dir().join(name)
}
