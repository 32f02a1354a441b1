//! Instructions per select + complete.
//!
//! The loop's own share, measured without a selector, is taken off. Counts repeat exactly, whatever
//! else the machine does.
use super::callgrind;
use super::layers::Layer;
use crate::prelude::*;

const POLICIES: [&str; 16] = [
    "numa",
    "round-robin",
    "round-robin:262144",
    "round-robin-latency",
    "round-robin-latency:262144",
    "queue-depth",
    "weighted-latency:per-cpu",
    "weighted-latency",
    "weighted-latency:per-numa",
    "weighted-latency:per-numa+buckets",
    "soonest",
    "pid",
    "latency",
    "devid:2",
    "service-time",
    "historical-service-time",
];
/// Modules of `sdk/modules`.
const PROGRAMS: [&str; 4] = [
    "round_robin",
    "queue_depth",
    "weighted_latency",
    "near_small",
];
const COLUMNS: [Column; 4] = [
    ("policy", "policy", 0),
    ("2 paths", "2 paths", 1),
    ("4 paths", "4 paths", 1),
    ("16 paths", "16 paths", 1),
];

/// Measures every policy with every number of paths.
pub fn run(setup: &Setup) -> Result<()> {
    callgrind::check()?;
    let mut cells = Vec::new();
    let policies = POLICIES.map(|it| (it.to_owned(), format!("policy policy_cost {it}")));
    let programs = PROGRAMS.map(|it| {
        (
            format!("program:{it}"),
            format!("program program_cost {it}"),
        )
    });
    for (name, run) in policies.into_iter().chain(programs) {
        let mut row = json!({ "policy": name });
        for paths in [2, 4, 16] {
            let line = format!("; {run} {paths}; less none {paths}");
            row[format!("{paths} paths")] = json!(Layer::parse(&line)?.measure(&setup.root)?);
        }
        cells.push(row);
    }
    setup.show(
        "instructions per select + complete (callgrind)",
        &COLUMNS,
        cells,
    );
    Ok(())
}
