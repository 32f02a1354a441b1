//! Instructions per I/O of each layer on its own: what a core spends in our code, without the
//! kernel and without touching payload.
//!
//! Each layer has an example that drives it alone: `policy_cost`, `engine_cost` and `mirror_cost`
//! (over local devices, so that no protocol is in it), `host_cost` and `target_cost`, the two sides
//! of NVMe/TCP, and `nbd_cost`, both sides of NBD. `overlap_cost` and writes of `mirror_cost` are
//! there with 128 and 1,024 in flight: a cost that grows with these is a scan. `course_cost` is a
//! request's whole course through an engine and a target, with 32 in flight but where it says 128,
//! `queue_cost` through the queue server, with 32, over memory and a device with their payload.
//! `sim_cost` is a simulated world of two paths.
use super::callgrind;
use crate::prelude::*;

/// Iterations of the shorter of two runs; the longer has twice as many.
const ITERATIONS: u64 = 10_000;
/// The same of `sim_cost`: virtual time, ms.
const SIMULATED_MS: u64 = 250;

/// A line per layer: name; crate, example and its arguments; how the cost of one I/O comes out.
///
/// - `iterations`: the last argument is a number of iterations; difference of two runs.
/// - `less ARGUMENTS`: of that, the cost of the same loop with these arguments is taken off.
/// - `in FUNCTION`: only functions of this name's beginning count; the program prints its I/Os.
/// - `simulated`: as `iterations`, which are virtual ms; the program prints its I/Os.
const LAYERS: &str = "\
policy: weighted-latency, 2 paths; policy policy_cost weighted-latency 2; less none 2
engine: host, 2 paths, no protocol; engine engine_cost 2; iterations
engine: read of a device; engine mirror_cost alone; iterations
mirror read: what one leg adds to that; engine mirror_cost mirror; less alone
nvme host: read; nvme host_cost; in measured
nvme host: read, SUCCESS flag; nvme host_cost success; in measured
nvme host: read, digests; nvme host_cost digests; in measured
nvme target: read; nvme target_cost; in measured
nvme target: read, SUCCESS flag; nvme target_cost success; in measured
nvme target: write; nvme target_cost write; in measured
nbd server: read; nbd nbd_cost; in measured_server
nbd server: write; nbd nbd_cost write; in measured_server
nbd client: read; nbd nbd_cost; in measured_client
nbd client: write; nbd nbd_cost write; in measured_client
order of changes: one block, 128; block overlap_cost order same 128; less none apart 1
order of changes: one block, 1024; block overlap_cost order same 1024; less none apart 1
order of changes: apart, 128; block overlap_cost order apart 128; less none apart 1
order of changes: apart, 1024; block overlap_cost order apart 1024; less none apart 1
mirror write: one block, 128; engine mirror_cost mirror-same 128; iterations
mirror write: one block, 1024; engine mirror_cost mirror-same 1024; iterations
mirror write: apart, 128; engine mirror_cost mirror-apart 128; iterations
mirror write: apart, 1024; engine mirror_cost mirror-apart 1024; iterations
course: NBD to a device, read; engine course_cost; in measured_engine
course: NBD to a device, write; engine course_cost write; in measured_engine
course: NBD to NVMe/TCP, read; engine course_cost nvme; in measured_engine
course: NBD to NVMe/TCP, write; engine course_cost nvme write; in measured_engine
course: target to a device, read; engine course_cost nvme; in measured_target
course: target to a device, write; engine course_cost nvme write; in measured_target
course: NBD to target, 2 paths, read; engine course_cost nvme two; in measured_
course: NBD to target, 2 paths, write; engine course_cost nvme two write; in measured_
course: NBD to target, 2 paths, read, 128; engine course_cost nvme two deep; in measured_
course: NBD to target, 2 paths, write, 128; engine course_cost nvme two deep write; in measured_
course: queue to null, read; broker queue_cost; in measured
course: queue to null, write; broker queue_cost write; in measured
course: queue to memory, read, with payload; broker queue_cost memory; in measured
course: queue to a device, read, with payload; broker queue_cost file; in measured
simulated world: queue-depth; sim sim_cost queue-depth; simulated
simulated world: soonest; sim sim_cost soonest; simulated";

/// A line of [`LAYERS`].
pub struct Layer<'a> {
    name: &'a str,
    package: &'a str,
    example: &'a str,
    arguments: Vec<&'a str>,
    rule: Vec<&'a str>,
}

impl<'a> Layer<'a> {
    /// # Errors
    /// Its parts are not those of such a line.
    pub fn parse(line: &'a str) -> Result<Self> {
        let parts: Vec<&str> = line.split("; ").collect();
        let [name, run, rule] = parts[..] else {
            bail!("{line}: three parts are needed")
        };
        let mut run = run.split(' ');
        let (package, example) = run.next().zip(run.next()).context("no example")?;
        Ok(Self {
            name,
            package,
            example,
            arguments: run.collect(),
            rule: rule.split(' ').collect(),
        })
    }

    /// Instructions per I/O.
    ///
    /// # Errors
    /// The example can't be built or run, or has no such cost.
    pub fn measure(&self, root: &Path) -> Result<f64> {
        let (package, example) = (format!("braid-{}", self.package), self.example);
        let program = super::build_dist(root, &["-p", &package, "--example", example])?;
        let of = |arguments: &[&str]| callgrind::per_iteration(&program, arguments, ITERATIONS);
        let arguments = &self.arguments;
        Ok(match self.rule[..] {
            ["iterations"] => of(arguments)?.0,
            ["less", ref loops @ ..] => of(arguments)?.0 - of(loops)?.0,
            ["in", function] => {
                let function = format!("{example}::{function}*");
                let counted = callgrind::run(&program, arguments, Some(&function))?;
                let ios = counted.printed.context("no number of I/Os was printed")?;
                counted.instructions as f64 / ios as f64
            }
            ["simulated"] => {
                let (per_ms, ios) = callgrind::per_iteration(&program, arguments, SIMULATED_MS)?;
                ensure!(ios > 0, "no more I/Os were printed for more time");
                per_ms * SIMULATED_MS as f64 / ios as f64
            }
            _ => bail!("no such rule: {}", self.rule.join(" ")),
        })
    }
}

/// Measures every layer.
pub fn run(setup: &Setup) -> Result<()> {
    callgrind::check()?;
    let mut cells = Vec::new();
    for line in LAYERS.lines() {
        let layer = Layer::parse(line)?;
        let cost = layer.measure(&setup.root).context(layer.name.to_owned())?;
        cells.push(json!({"layer": layer.name, "instructions": cost}));
    }
    let title = "instructions per I/O in user space, payload and kernel excluded (callgrind)";
    let columns = [("layer", "layer", 0), ("instructions", "instructions", 1)];
    setup.show(title, &columns, cells);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{LAYERS, Layer};
    use std::path::Path;

    #[test]
    fn every_layer_has_its_example_and_a_rule() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
        for line in LAYERS.lines() {
            let layer = Layer::parse(line).unwrap();
            let example = format!("{}/examples/{}.rs", layer.package, layer.example);
            assert!(crates.join(&example).is_file(), "{line}: {example}");
            let rules = ["iterations", "less", "in", "simulated"];
            assert!(rules.contains(&layer.rule[0]), "{line}");
        }
    }
}
