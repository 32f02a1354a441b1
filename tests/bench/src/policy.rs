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
    for policy in POLICIES {
        let mut row = json!({ "policy": policy });
        for paths in [2, 4, 16] {
            let line = format!("; policy policy_cost {policy} {paths}; less none {paths}");
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
