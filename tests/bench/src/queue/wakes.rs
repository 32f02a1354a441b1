//! Cost of waking: one I/O at a time, where either side, both or none has gone to sleep.
use super::{Ends, Load, QueueServer, SERVER_ENTERS};
use crate::memory::switches;
use crate::prelude::*;

/// Sleepers: kind of queue, and whether the server sleeps.
const CASES: [(&str, &str, bool); 4] = [
    ("nobody sleeps", "user_poll", false),
    ("the broker sleeps", "user_poll", true),
    ("the client sleeps", "user_irq", false),
    ("both sleep", "user_irq", true),
];

/// `more_us`: beyond the case in which no side sleeps, median of the differences of each round.
/// `server_sleeps_per_io`: how often the server's threads went to sleep; [`SERVER_ENTERS`]: how
/// often they entered the kernel through io_uring.
pub const COLUMNS: [Column; 7] = [
    ("case", "", 0),
    ("mean_us", "mean µs", 2),
    ("p99_us", "p99 µs", 2),
    ("more_us", "more µs", 2),
    ("client_calls_per_io", "client calls", 3),
    ("server_sleeps_per_io", "server sleeps", 3),
    (SERVER_ENTERS, "server enters", 3),
];

/// Measures all cases, in turn, several rounds; cells of [`COLUMNS`], medians over rounds.
pub fn measure(braid: &Path, rounds: usize, seconds: f64, ends: &Ends) -> Result<Vec<Value>> {
    let mut figures: Vec<Vec<[f64; 6]>> = vec![Vec::new(); CASES.len()];
    for _ in 0..rounds {
        let mut alone_us = None;
        for ((_, kind, sleeps), figures) in CASES.iter().zip(&mut figures) {
            let spin_us = if *sleeps { 0 } else { ends.spin_us };
            let server = QueueServer::spawn(Command::new(braid), false, ends.server, spin_us)?;
            let before = sleeps_of(server.0.id())?;
            let entered = server.enters(braid)?;
            let load = Load {
                kind,
                size: "4k",
                depth: 1,
            };
            let mut bench = server.client(Command::new(braid), &load, seconds, ends.client);
            let facts = facts(&mut bench)?;
            let slept = sleeps_of(server.0.id())? - before;
            let enters = server.enters(braid)? - entered;
            let ios = number(&facts, "ios")?;
            let mean_us = number(&facts, "mean_us")?;
            // The first case is that of nobody asleep.
            let alone_us = *alone_us.get_or_insert(mean_us);
            figures.push([
                mean_us,
                number(&facts, "p99_us")?,
                mean_us - alone_us,
                number(&facts, "system_calls_per_io")?,
                slept / ios,
                enters / ios,
            ]);
        }
    }
    let cell = |((case, _, _), figures): (&(&str, _, _), Vec<[f64; 6]>)| {
        let mut cell = json!({ "case": case });
        for (at, (key, ..)) in COLUMNS[1..].iter().enumerate() {
            cell[*key] = json!(middle(&figures, |of| of[at]));
        }
        cell
    };
    Ok(CASES.iter().zip(figures).map(cell).collect())
}

/// How often all threads of a process have waited.
fn sleeps_of(pid: u32) -> Result<f64> {
    Ok(switches(pid)?.values().sum::<u64>() as f64)
}
