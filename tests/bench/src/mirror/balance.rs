//! Policies over legs that are alike, and that are not.
use super::stage::Stage;
use super::{Args, Load, put};
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

/// The document's first test, its second (one process that reads on), and reads alone. Without what
/// a policy has to learn first.
const LOADS: [Load; 3] = [
    (
        "randrw 4k × 256 × 4",
        "--rw=randrw --bs=4k --iodepth=256 --numjobs=4 --size=1G --ramp_time=500ms",
    ),
    (
        "read 128k × 8",
        "--rw=read --bs=128k --iodepth=8 --size=1G --ramp_time=500ms",
    ),
    (
        "randread 4k × 32",
        "--rw=randread --bs=4k --iodepth=32 --size=1G --ramp_time=500ms",
    ),
];

/// The better leg, without a mirror.
const ALONE: &str = "last leg alone";

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

/// Measures; cells of [`COLUMNS`]. `reads` are those of the last round.
///
/// # Errors
/// Something does not start or run.
pub fn run(braid: &Path, args: &Args) -> Result<Vec<Value>> {
    let mut cells = Vec::new();
    for (legs, shapes) in LEGS {
        let wanted = |load: &Load| args.wants(&format!("{legs}, {}", load.0));
        let loads: Vec<Load> = LOADS.into_iter().filter(wanted).collect();
        if loads.is_empty() {
            continue;
        }
        let stage = Stage::shaped(braid, &shapes)?;
        let policies = match args.policies.is_empty() {
            true => all_policies(&stage)?,
            false => args.policies.clone(),
        };
        for load in loads {
            // Writes around the mirror would make its legs differ.
            let alone = (!load.1.contains("randrw")).then(|| ALONE.to_owned());
            let rows: Vec<String> = alone.into_iter().chain(policies.iter().cloned()).collect();
            let mut alone = Value::Null;
            cells.extend(interleaved(
                args.timing.rounds,
                &rows,
                &COLUMNS,
                |policy| {
                    let run = measure(&stage, load, policy, args.timing.seconds);
                    let facts = run.with_context(|| format!("{}, {policy}", load.0))?;
                    if policy == ALONE {
                        alone = facts.clone();
                    }
                    let [ratio, p99_ratio] =
                        ["iops", "p99_us"].map(|key| ratio(&facts, &alone, key));
                    let words = json!({"legs": legs, "load": load.0, "policy": policy,
                                   "ratio": ratio, "p99_ratio": p99_ratio});
                    Ok(with(facts, words))
                },
            )?);
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

fn measure(stage: &Stage, load: Load, policy: &str, seconds: f64) -> Result<Value> {
    if policy == ALONE {
        let run = put(load, &stage.socket("alone"), Some(seconds))?;
        return Ok(with(run, json!({ "reads": [] })));
    }
    stage.ask(&["policy", "set", "m0", policy])?;
    let before = stage.reads()?;
    let facts = put(load, &stage.socket("m0"), Some(seconds))?;
    let reads = stage
        .reads()?
        .into_iter()
        .zip(before)
        .map(|(after, before)| after - before);
    Ok(with(facts, json!({ "reads": reads.collect::<Vec<f64>>() })))
}
