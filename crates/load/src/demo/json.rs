//! The demo's result for programs. The first keys are relied on; more may be added, none renamed.
use super::cells::{Cell, Op, Outcome};
use super::model::Figure;
use paths::hedges;
use serde_json::{Value, json};

/// The result.
pub fn json(outcome: &Outcome) -> Value {
    let optimum = |op| outcome.optimum_mib_s(op);
    json!({
        "optimum": {
            "read_mib_s": optimum(Op::Read),
            "write_mib_s": optimum(Op::Write),
            "mixed_mib_s": optimum(Op::Mixed),
        },
        "cells": outcome.cells.iter().map(|cell| cell_json(outcome, cell)).collect::<Value>(),
        "alone": alone(outcome),
        "machine_is_quiet": outcome.machine_is_quiet(),
        "waited_for_cpu": outcome.waited,
        "rounds": outcome.rounds,
        "setup": {
            "outstanding": outcome.setup.outstanding,
            "block_bytes": outcome.setup.block,
            "fast_cap_mib_s": outcome.setup.cap_mib_s(),
            "slow_delay_ms": outcome.setup.slow_delay_ns as f64 / 1e6,
            "weight_window_ms": outcome.window_ns as f64 / 1e6,
            "cores": outcome.cores,
            "seconds_per_cell": outcome.seconds,
        },
        "interrupted": outcome.interrupted,
    })
}

fn cell_json(outcome: &Outcome, cell: &Cell) -> Value {
    let [fast, slow] = &cell.paths;
    json!({
        "policy": cell.policy.to_string(),
        "op": cell.op.name(),
        "mib_s": cell.mib_s,
        "rounds_mib_s": cell.rounds_mib_s,
        "iops": cell.iops,
        "p50_us": cell.p50_us,
        "p99_us": cell.p99_us,
        "p999_us": cell.p999_us,
        "share": {"fast": fast.share, "slow": slow.share},
        "errors": cell.errors,
        "hedges": hedges::json(&cell.hedges.0, cell.hedges.1),
        "of_optimum": outcome.of_optimum(cell),
        "in_flight": {"fast": fast.in_flight, "slow": slow.in_flight},
        "mean_us": {"fast": fast.mean_ns / 1e3, "slow": slow.mean_ns / 1e3},
    })
}

fn alone(outcome: &Outcome) -> Value {
    let rows = outcome.checks().into_iter().map(|(op, check)| {
        json!({
            "path": check.path,
            "op": op.name(),
            "figure": match check.figure {
                Figure::Latency => "qd1_us",
                Figure::Throughput => "full_load_mib_s",
            },
            "measured": check.measured,
            "model": check.model,
            "holds": check.holds(),
        })
    });
    rows.collect()
}
