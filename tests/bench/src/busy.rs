//! `soonest` beside other policies over the demo's two unequal paths, while busy loops take CPU
//! time from target and host.
//!
//! # Contract
//! `braid demo` measures all policies in each round, so that a ratio is of two windows of one
//! round.
//! A cell is a number of loops, a number of the host's cores and an operation. Its ratio is that of
//! `soonest` to the best other policy of the same round; the median over rounds is shown, and the
//! geometric mean over cells. `best` is the policy that was the best of the others most often.
use crate::prelude::*;

/// The policy in question.
const POLICY: &str = "soonest";
const OTHERS: [&str; 5] = [
    "round-robin",
    "queue-depth",
    "weighted-latency",
    "service-time",
    "historical-service-time",
];

const COLUMNS: [Column; 9] = [
    ("op", "op", 0),
    ("best", "best of the others", 0),
    ("loops", "loops", 0),
    ("cores", "cores", 0),
    ("ratio", "ratio", 3),
    ("ratio_range", "least … most", 3),
    ("policy_mib_s", "soonest, MiB/s", 0),
    ("best_mib_s", "best, MiB/s", 0),
    ("waited", "no CPU, %", 0),
];

/// Which cells, how long.
#[derive(clap::Args)]
pub struct Args {
    /// Busy loops beside target and host.
    #[arg(long, value_delimiter = ',', default_value = "0,1,2,4")]
    loops: Vec<usize>,
    /// Cores of the host; the second shares its CPU with the target.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    cores: Vec<u16>,
    /// Rounds; odd gives a true median.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
}

/// Length of one window of the demo.
const WINDOW_S: f64 = 0.25;

/// Measures every cell.
pub fn run(setup: &Setup, args: &Args) -> Result<()> {
    let braid = setup.braid()?;
    let policies = [&[POLICY], &OTHERS[..]].concat().join(",");
    let mut cells = Vec::new();
    for (loops, cores) in product(&args.loops, &args.cores) {
        let busy = Loops::start(loops);
        let mut demo = Command::new(&braid);
        let seconds = f64::from(args.rounds) * WINDOW_S;
        demo.args(["demo", "-o", "json", "--policies", &policies])
            .args(["--cores", &cores.to_string()])
            .args(["--seconds", &seconds.to_string()]);
        let facts = facts(&mut demo).with_context(|| format!("{loops} busy loops"))?;
        drop(busy);
        for op in ["read", "write", "mixed"] {
            let cell = cell(&facts, op)?;
            cells.push(with(cell, json!({"loops": loops, "cores": cores})));
        }
    }
    let title = format!(
        "the demo's two paths: {POLICY} beside the best of {} in the same round, median of {} \
         rounds; geometric mean over all cells {:.3}",
        OTHERS.join(", "),
        args.rounds,
        geometric_mean(&cells),
    );
    setup.show(&title, &COLUMNS, cells);
    Ok(())
}

/// One operation of one demo.
fn cell(facts: &Value, op: &str) -> Result<Value> {
    let rounds = |policy: &str| -> Result<Vec<f64>> {
        let cells = facts["cells"].as_array().context("the demo has no cells")?;
        let mut same = cells.iter().filter(|it| it["op"] == op);
        let cell = same.find(|it| it["policy"] == policy);
        let rounds = cell.and_then(|it| it["rounds_mib_s"].as_array());
        let rounds = rounds.with_context(|| format!("the demo has no {policy}, {op}"))?;
        Ok(rounds.iter().filter_map(Value::as_f64).collect())
    };
    let own = rounds(POLICY)?;
    let others = OTHERS.map(&rounds);
    let mut facts_of_rounds = Vec::new();
    let mut wins = [0; OTHERS.len()];
    for (round, own) in own.iter().enumerate() {
        let mut best = (0, 0.0);
        for (number, other) in others.iter().enumerate() {
            let other = other.as_ref().map_err(|why| anyhow!("{why:#}"))?;
            let mib_s = *other.get(round).context("a policy has fewer rounds")?;
            if mib_s > best.1 {
                best = (number, mib_s);
            }
        }
        wins[best.0] += 1;
        facts_of_rounds.push(json!({
            "ratio": own / best.1, "policy_mib_s": own, "best_mib_s": best.1,
        }));
    }
    let most = wins.iter().zip(OTHERS).max_by_key(|(wins, _)| **wins);
    let summary = crate::rounds::summary(&facts_of_rounds, &COLUMNS);
    let waited = facts["waited_for_cpu"].as_f64().map(|part| 100.0 * part);
    let best = most.map_or("", |(_, policy)| policy);
    Ok(with(
        summary,
        json!({"op": op, "best": best, "waited": waited}),
    ))
}

fn geometric_mean(cells: &[Value]) -> f64 {
    let ratios = cells.iter().filter_map(|it| it["ratio"].as_f64());
    let logs: Vec<f64> = ratios.map(f64::ln).collect();
    (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
}

/// Threads that do nothing but run, until they are dropped.
struct Loops {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Loops {
    fn start(count: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let spin = |stop: Arc<AtomicBool>| {
            move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        };
        let threads = (0..count).map(|_| thread::spawn(spin(Arc::clone(&stop))));
        let threads = threads.collect();
        Self { stop, threads }
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It cannot panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell_of(policy: &str, rounds: [f64; 3]) -> Value {
        json!({"policy": policy, "op": "read", "rounds_mib_s": rounds})
    }

    #[test]
    fn a_ratio_is_to_the_best_of_its_round() {
        let mut cells: Vec<Value> = OTHERS.map(|it| cell_of(it, [1.0; 3])).to_vec();
        cells[1] = cell_of(OTHERS[1], [100.0, 50.0, 100.0]);
        cells[4] = cell_of(OTHERS[4], [50.0, 100.0, 99.0]);
        cells.push(cell_of(POLICY, [110.0, 90.0, 100.0]));
        let demo = json!({"cells": cells, "waited_for_cpu": 0.25});
        let cell = cell(&demo, "read").unwrap();
        assert_eq!(
            (&cell["ratio"], &cell["best"]),
            (&json!(1.0), &json!("queue-depth"))
        );
        assert_eq!(cell["ratio_range"], json!([0.9, 1.1]));
        assert_eq!(cell["waited"], 25.0);
        let mean = geometric_mean(&[json!({"ratio": 0.5}), json!({"ratio": 2.0})]);
        assert!((mean - 1.0).abs() < 1e-12);
        assert!(super::cell(&demo, "write").is_err());
    }
}
