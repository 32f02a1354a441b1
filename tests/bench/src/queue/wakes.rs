//! Cost of waking: one I/O at a time, where either side, both or none has gone to sleep.
use super::{Args, SERVER_ENTERS};
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
    ("system_calls_per_io", "client calls", 3),
    ("server_sleeps_per_io", "server sleeps", 3),
    (SERVER_ENTERS, "server enters", 3),
];

/// Measures all cases, in turn, several rounds; cells of [`COLUMNS`], medians over rounds.
pub fn measure(braid: &Path, args: &Args) -> Result<Vec<Value>> {
    let mut alone_us = 0.0;
    interleaved(
        args.sides.timing.rounds,
        &CASES,
        &COLUMNS,
        |&(case, kind, sleeps)| {
            let spin_us = if sleeps { 0 } else { args.spin_us };
            let facts = super::measure(braid, "mediated", (kind, "4k", 1), args, spin_us)?;
            let mean_us = number(&facts, "mean_us")?;
            if case == CASES[0].0 {
                alone_us = mean_us;
            }
            Ok(with(
                facts,
                json!({"case": case, "more_us": mean_us - alone_us}),
            ))
        },
    )
}
