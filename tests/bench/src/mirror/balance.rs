//! Policies over legs that are alike, and that are not.
use super::super::program::median;
use super::fio::{self, Load, Run};
use super::stage::Stage;
use super::{Args, Format, figure, progress};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::Path;

/// Legs by the shape of their ports; the last is the better one.
const LEGS: [(&str, [&str; 2]); 2] = [
    (
        "equal",
        [
            "servers=8,service_time=1ms,bandwidth=100MiB/s",
            "servers=8,service_time=1ms,bandwidth=100MiB/s",
        ],
    ),
    (
        "HDD + SSD",
        [
            "servers=1,service_time=4ms,bandwidth=100MiB/s",
            "servers=4,service_time=250us,bandwidth=200MiB/s",
        ],
    ),
];

/// The document's first test, its second (one process that reads on), and reads alone.
const LOADS: [Load; 3] = [
    Load {
        name: "randrw 4k × 256 × 4",
        words: &[
            "--rw=randrw",
            "--bs=4k",
            "--iodepth=256",
            "--numjobs=4",
            "--size=1G",
            RAMP,
        ],
    },
    Load {
        name: "read 128k × 8",
        words: &["--rw=read", "--bs=128k", "--iodepth=8", "--size=1G", RAMP],
    },
    Load {
        name: "randread 4k × 32",
        words: &[
            "--rw=randread",
            "--bs=4k",
            "--iodepth=32",
            "--size=1G",
            RAMP,
        ],
    },
];

/// What a policy has to learn first is not counted.
const RAMP: &str = "--ramp_time=500ms";

/// The better leg, without a mirror.
const ALONE: &str = "last leg alone";

/// One row of the table.
struct Row {
    policy: String,
    runs: Vec<Run>,
    /// Reads of each leg in the last round.
    reads: Vec<f64>,
}

/// Measures and prints; the cells as JSON.
///
/// # Errors
/// Something does not start or run.
pub fn run(braid: &Path, args: &Args) -> Result<Value> {
    let mut cells = Vec::new();
    for (legs, shapes) in LEGS {
        let wanted = |load: &Load| args.wants(&format!("{legs}, {}", load.name));
        if !LOADS.iter().any(wanted) {
            continue;
        }
        let stage = Stage::shaped(braid, &shapes)?;
        let policies = match args.policies.is_empty() {
            true => all_policies(&stage)?,
            false => args.policies.clone(),
        };
        for load in LOADS.into_iter().filter(wanted) {
            let mut rows: Vec<Row> = std::iter::once(ALONE.to_owned())
                .chain(policies.iter().cloned())
                .map(|policy| Row {
                    policy,
                    runs: Vec::new(),
                    reads: Vec::new(),
                })
                .collect();
            for round in 0..args.rounds {
                for row in &mut rows {
                    progress(&format!(
                        "{legs}, {}, {}, round {round}",
                        load.name, row.policy
                    ));
                    row.measure(&stage, load, args.seconds)
                        .with_context(|| format!("{}, {}", load.name, row.policy))?;
                }
            }
            progress("");
            match args.output {
                Format::Text => print_text(legs, &shapes, load, &rows),
                Format::Json => cells.extend(json_cells(legs, load, &rows)),
            }
        }
    }
    Ok(Value::Array(cells))
}

/// As the engine names them.
fn all_policies(stage: &Stage) -> Result<Vec<String>> {
    let said = stage.ask(&["policy", "show", "m0"])?;
    let (_, words) = said.split_once(':').context("policy show")?;
    let words = words
        .split_whitespace()
        .map(|word| word.trim_matches(['[', ']']).to_owned());
    Ok(words.collect())
}

impl Row {
    fn measure(&mut self, stage: &Stage, load: Load, seconds: f64) -> Result<()> {
        if self.policy == ALONE {
            // Writes around the mirror would make its legs differ.
            if !load.words.contains(&"--rw=randrw") {
                self.runs
                    .push(fio::run(load, &stage.socket("alone"), Some(seconds))?);
            }
            return Ok(());
        }
        stage.ask(&["policy", "set", "m0", &self.policy])?;
        let before = stage.reads()?;
        self.runs
            .push(fio::run(load, &stage.socket("m0"), Some(seconds))?);
        let after = stage.reads()?;
        self.reads = after
            .iter()
            .zip(before)
            .map(|(after, before)| after - before)
            .collect();
        Ok(())
    }

    fn of(&self, what: impl Fn(&Run) -> f64) -> Vec<f64> {
        self.runs.iter().map(what).collect()
    }

    /// To the runs of `first` in the same rounds.
    fn ratios(&self, first: &Self, what: impl Fn(&Run) -> f64) -> Vec<f64> {
        let pairs = self.runs.iter().zip(&first.runs);
        pairs.map(|(run, first)| what(run) / what(first)).collect()
    }
}

fn print_text(legs: &str, shapes: &[&str; 2], load: Load, rows: &[Row]) {
    println!("{legs} ({} | {}), {}", shapes[0], shapes[1], load.name);
    println!(
        "{:30} {:>10} {:>10} {:>7} {:>10} {:>7}  reads of each leg",
        "", "read MiB/s", "write", "ratio", "p99 µs", "ratio"
    );
    for row in rows.iter().filter(|row| !row.runs.is_empty()) {
        let reads: Vec<String> = row
            .reads
            .iter()
            .map(|reads| format!("{reads:.0}"))
            .collect();
        println!(
            "{:30} {:10.1} {:10.1} {:>7} {:10.0} {:>7}  {}",
            row.policy,
            median(row.of(|run| run.read_mib_s)),
            median(row.of(|run| run.write_mib_s)),
            shown(row.ratios(&rows[0], |run| run.iops)),
            median(row.of(|run| run.p99_us)),
            shown(row.ratios(&rows[0], |run| run.p99_us)),
            reads.join(" ")
        );
    }
}

fn shown(ratios: Vec<f64>) -> String {
    match ratios.is_empty() {
        true => "-".into(),
        false => format!("{:.3}", median(ratios)),
    }
}

fn json_cells(legs: &str, load: Load, rows: &[Row]) -> Vec<Value> {
    let cell = |row: &Row| {
        json!({
            "legs": legs, "load": load.name, "policy": row.policy,
            "read_mib_s": figure(row.of(|run| run.read_mib_s)),
            "write_mib_s": figure(row.of(|run| run.write_mib_s)),
            "p99_us": figure(row.of(|run| run.p99_us)),
            "ratio": figure(row.ratios(&rows[0], |run| run.iops)),
            "p99_ratio": figure(row.ratios(&rows[0], |run| run.p99_us)),
            "reads": row.reads,
        })
    };
    rows.iter()
        .filter(|row| !row.runs.is_empty())
        .map(cell)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Row, Run};

    #[test]
    fn a_ratio_is_that_of_one_round() {
        let row = |iops: [f64; 2]| Row {
            policy: "soonest".into(),
            runs: iops
                .map(|iops| Run {
                    iops,
                    ..Run::default()
                })
                .to_vec(),
            reads: Vec::new(),
        };
        let ratios = row([10.0, 30.0]).ratios(&row([20.0, 20.0]), |run| run.iops);
        assert_eq!(ratios, [0.5, 1.5]);
    }
}
