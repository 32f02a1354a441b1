//! Instructions per I/O of each layer on its own: what a core spends in our code, without the
//! kernel and without touching payload.
//!
//! Each layer has an example that drives it alone: `policy_cost`, `engine_cost` and `mirror_cost`
//! (over local devices, so that no protocol is in it), `host_cost` and `target_cost`, the two sides
//! of NVMe/TCP, and `nbd_cost`, both sides of NBD. `overlap_cost` and writes of `mirror_cost` are
//! there with 128 and 1,024 in flight: a cost that grows with these is a scan.
use super::{Format, callgrind, table};
use anyhow::{Context, Result};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

/// Iterations of the shorter of two runs; the longer has twice as many.
const ITERATIONS: u64 = 10_000;

/// How to print.
#[derive(clap::Args)]
pub struct Args {
    /// Output format.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

/// A layer's example and how its cost is found.
struct Layer {
    name: &'static str,
    package: &'static str,
    example: &'static str,
    arguments: &'static [&'static str],
    count: Count,
}

/// How the cost of one I/O comes out of a run.
enum Count {
    /// The last argument is a number of iterations: difference of two runs. What the same loop
    /// costs with these arguments instead is taken off, if there are any.
    Iterations { alone: &'static [&'static str] },
    /// Only what functions of this name's beginning do counts; the program prints the number of
    /// I/Os.
    Measured(&'static str),
}

const LAYERS: [Layer; 22] = [
    Layer::iterations(
        "policy: weighted-latency, 2 paths",
        "braid-policy",
        "policy_cost",
        &["weighted-latency", "2"],
        &["none", "2"],
    ),
    Layer::iterations(
        "engine: host, 2 paths, no protocol",
        "braid-engine",
        "engine_cost",
        &["2"],
        &[],
    ),
    Layer::iterations(
        "engine: read of a device",
        "braid-engine",
        "mirror_cost",
        &["alone"],
        &[],
    ),
    Layer::iterations(
        "mirror read: what one leg adds to that",
        "braid-engine",
        "mirror_cost",
        &["mirror"],
        &["alone"],
    ),
    Layer::measured("nvme host: read", "host_cost", &[]),
    Layer::measured("nvme host: read, SUCCESS flag", "host_cost", &["success"]),
    Layer::measured("nvme host: read, digests", "host_cost", &["digests"]),
    Layer::measured("nvme target: read", "target_cost", &[]),
    Layer::measured(
        "nvme target: read, SUCCESS flag",
        "target_cost",
        &["success"],
    ),
    Layer::measured("nvme target: write", "target_cost", &["write"]),
    Layer::nbd("nbd server: read", "measured_server", &[]),
    Layer::nbd("nbd server: write", "measured_server", &["write"]),
    Layer::nbd("nbd client: read", "measured_client", &[]),
    Layer::nbd("nbd client: write", "measured_client", &["write"]),
    Layer::overlaps(
        "order of changes: one block, 128",
        &["order", "same", "128"],
    ),
    Layer::overlaps(
        "order of changes: one block, 1024",
        &["order", "same", "1024"],
    ),
    Layer::overlaps("order of changes: apart, 128", &["order", "apart", "128"]),
    Layer::overlaps("order of changes: apart, 1024", &["order", "apart", "1024"]),
    Layer::mirror_writes("mirror write: one block, 128", &["mirror-same", "128"]),
    Layer::mirror_writes("mirror write: one block, 1024", &["mirror-same", "1024"]),
    Layer::mirror_writes("mirror write: apart, 128", &["mirror-apart", "128"]),
    Layer::mirror_writes("mirror write: apart, 1024", &["mirror-apart", "1024"]),
];

impl Layer {
    const fn iterations(
        name: &'static str,
        package: &'static str,
        example: &'static str,
        arguments: &'static [&'static str],
        alone: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            package,
            example,
            arguments,
            count: Count::Iterations { alone },
        }
    }

    const fn overlaps(name: &'static str, arguments: &'static [&'static str]) -> Self {
        let alone = &["none", "apart", "1"];
        Self::iterations(name, "braid-block", "overlap_cost", arguments, alone)
    }

    const fn mirror_writes(name: &'static str, arguments: &'static [&'static str]) -> Self {
        Self::iterations(name, "braid-engine", "mirror_cost", arguments, &[])
    }

    const fn measured(
        name: &'static str,
        example: &'static str,
        arguments: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            package: "braid-nvme",
            example,
            arguments,
            count: Count::Measured("measured"),
        }
    }

    const fn nbd(
        name: &'static str,
        function: &'static str,
        arguments: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            package: "braid-nbd",
            example: "nbd_cost",
            arguments,
            count: Count::Measured(function),
        }
    }

    /// Instructions per I/O.
    fn measure(&self, root: &Path) -> Result<f64> {
        let program = super::build_dist(root, &["-p", self.package, "--example", self.example])?;
        let of = |arguments| -> Result<f64> {
            Ok(callgrind::per_iteration(&program, arguments, ITERATIONS)?.0)
        };
        match self.count {
            Count::Iterations { alone: [] } => of(self.arguments),
            Count::Iterations { alone } => Ok(of(self.arguments)? - of(alone)?),
            Count::Measured(function) => {
                let function = format!("{}::{function}*", self.example);
                let counted = callgrind::run(&program, self.arguments, Some(&function))?;
                let ios = counted
                    .printed
                    .context("the example printed no number of I/Os")?;
                Ok(counted.instructions as f64 / ios as f64)
            }
        }
    }
}

/// Measures every layer.
pub fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    callgrind::check()?;
    let mut cells = Vec::new();
    for layer in &LAYERS {
        let cost = layer.measure(root).with_context(|| layer.name.to_owned())?;
        cells.push(json!({"layer": layer.name, "instructions": cost}));
    }
    let title = "instructions per I/O in user space, payload and kernel excluded (callgrind)";
    let columns = [("layer", "layer", 0), ("instructions", "instructions", 1)];
    table::print(args.output, title, &columns, &cells);
    Ok(ExitCode::SUCCESS)
}
