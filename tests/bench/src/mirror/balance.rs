//! Policies over legs that are alike, and that are not.
use super::stage::Stage;
use super::{Args, Load, Run};
use crate::prelude::*;

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

/// Time for a policy to learn, which is not counted.
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

pub const COLUMNS: [Column; 9] = [
    ("legs", "legs", 0),
    ("load", "load", 0),
    ("policy", "policy", 0),
    ("read_mib_s", "read MiB/s", 1),
    ("write_mib_s", "write", 1),
    ("ratio", "ratio", 3),
    ("p99_us", "p99 µs", 0),
    ("p99_ratio", "ratio", 3),
    ("reads", "reads of each leg", 0),
];

/// Measures; cells of [`COLUMNS`].
///
/// # Errors
/// Something does not start or run.
pub fn run(braid: &Path, args: &Args) -> Result<Vec<Value>> {
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
            for _ in 0..args.rounds {
                for row in &mut rows {
                    row.measure(&stage, load, args.seconds)
                        .with_context(|| format!("{}, {}", load.name, row.policy))?;
                }
            }
            let measured = rows.iter().filter(|row| !row.runs.is_empty());
            cells.extend(measured.map(|row| row.cell(&rows[0], legs, load)));
        }
    }
    Ok(cells)
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
                let run = load.run(&stage.socket("alone"), Some(seconds))?;
                self.runs.push(run);
            }
            return Ok(());
        }
        stage.ask(&["policy", "set", "m0", &self.policy])?;
        let before = stage.reads()?;
        self.runs
            .push(load.run(&stage.socket("m0"), Some(seconds))?);
        let after = stage.reads()?;
        self.reads = after
            .iter()
            .zip(before)
            .map(|(after, before)| after - before)
            .collect();
        Ok(())
    }

    fn cell(&self, first: &Self, legs: &str, load: Load) -> Value {
        // NaN, which JSON shows as null, where there is nothing to compare with.
        let ratio = |what: fn(&Run) -> f64| median(ratios(&self.runs, &first.runs, what));
        json!({
            "legs": legs, "load": load.name, "policy": self.policy,
            "read_mib_s": middle(&self.runs, |run| run.read_mib_s),
            "write_mib_s": middle(&self.runs, |run| run.write_mib_s),
            "ratio": ratio(|run| run.iops),
            "p99_us": middle(&self.runs, |run| run.p99_us),
            "p99_ratio": ratio(|run| run.p99_us),
            "reads": self.reads,
        })
    }
}
