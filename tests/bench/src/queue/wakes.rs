//! What waking costs: one I/O at a time, where either side, both or none has gone to sleep.
use super::{Ends, Load, SERVER_ENTERS, Server};
use crate::program::{facts, median, number};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// Who sleeps: kind of queue, and whether the server does.
const CASES: [(&str, &str, bool); 4] = [
    ("nobody sleeps", "user_poll", false),
    ("the broker sleeps", "user_poll", true),
    ("the client sleeps", "user_irq", false),
    ("both sleep", "user_irq", true),
];

/// One case: medians over rounds.
pub struct Wake {
    case: &'static str,
    mean_us: f64,
    p99_us: f64,
    /// Beyond the case in which nobody sleeps; median of the differences of each round.
    more_us: f64,
    client_calls: f64,
    /// How often the server entered the kernel through io_uring, per I/O.
    server_enters: f64,
    /// How often the server's threads went to sleep, per I/O.
    server_sleeps: f64,
}

/// Measures all cases, in turn, several rounds.
pub fn measure(braid: &Path, rounds: usize, seconds: f64, ends: &Ends) -> Result<Vec<Wake>> {
    let mut figures: Vec<Vec<[f64; 6]>> = vec![Vec::new(); CASES.len()];
    for _ in 0..rounds {
        let mut alone_us = None;
        for ((_, kind, sleeps), figures) in CASES.iter().zip(&mut figures) {
            let spin_us = if *sleeps { 0 } else { ends.spin_us };
            let server = Server::spawn(Command::new(braid), false, ends.server, spin_us)?;
            let before = sleeps_of(server.group.id())?;
            let entered = server.enters(braid)?;
            let load = Load {
                kind,
                size: "4k",
                depth: 1,
            };
            let mut bench = server.client(Command::new(braid), &load, seconds, ends.client);
            let facts = facts(&mut bench)?;
            let slept = sleeps_of(server.group.id())? - before;
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
    let wake = |((case, _, _), figures): (&(&'static str, _, _), Vec<[f64; 6]>)| {
        let of = |at: usize| median(figures.iter().map(|figure| figure[at]).collect());
        Wake {
            case,
            mean_us: of(0),
            p99_us: of(1),
            more_us: of(2),
            client_calls: of(3),
            server_sleeps: of(4),
            server_enters: of(5),
        }
    };
    Ok(CASES.iter().zip(figures).map(wake).collect())
}

/// How often all threads of a process have waited.
fn sleeps_of(pid: u32) -> Result<f64> {
    let mut sum = 0.0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).context("the server's threads")? {
        // One that has ended meanwhile waits no more.
        let status = std::fs::read_to_string(task?.path().join("status")).unwrap_or_default();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sum += line
            .and_then(|count| count.trim().parse::<f64>().ok())
            .unwrap_or(0.0);
    }
    Ok(sum)
}

impl Wake {
    /// As facts for programs.
    pub fn json(&self) -> Value {
        json!({
            "case": self.case,
            "mean_us": self.mean_us,
            "p99_us": self.p99_us,
            "more_us": self.more_us,
            "client_calls_per_io": self.client_calls,
            "server_sleeps_per_io": self.server_sleeps,
            SERVER_ENTERS: self.server_enters,
        })
    }
}

/// The table for people; `bare_us`: an exchange without a queue.
pub fn print(wakes: &[Wake], bare_us: Option<f64>) {
    if wakes.is_empty() {
        return;
    }
    println!("\none I/O at a time, mediated: what waking costs");
    if let Some(bare_us) = bare_us {
        println!("{:18} {bare_us:8.2} µs", "bare exchange");
    }
    println!(
        "{:18} {:>8} {:>8} {:>8} {:>13} {:>13} {:>13}",
        "", "mean µs", "p99 µs", "more µs", "client calls", "server sleeps", "server enters"
    );
    for wake in wakes {
        println!(
            "{:18} {:8.2} {:8.2} {:8.2} {:13.3} {:13.3} {:13.3}",
            wake.case,
            wake.mean_us,
            wake.p99_us,
            wake.more_us,
            wake.client_calls,
            wake.server_sleeps,
            wake.server_enters
        );
    }
}
