//! What the intent bitmap costs: writes where a bit has to be set first, and where it is set.
use super::super::program::median;
use super::fio::{self, Load, Run};
use super::stage::{Legs, Stage};
use super::{Args, Format, figure, progress};
use anyhow::Result;
use serde_json::{Value, json};
use std::path::Path;

/// Each goes over every region of the mirror once.
const LOADS: [Load; 3] = [
    Load {
        name: "write 1M × 8, on and on",
        words: &["--rw=write", "--bs=1M", "--iodepth=8", "--size=1G"],
    },
    Load {
        name: "randwrite 4k × 32, 64 in a region",
        words: &[
            "--rw=randwrite",
            "--bs=4k",
            "--iodepth=32",
            "--size=1G",
            "--io_size=256M",
        ],
    },
    Load {
        name: "write 4k × 32, one in a region",
        words: &["--rw=write:1020k", "--bs=4k", "--iodepth=32", "--size=1G"],
    },
];

/// What is compared: bits clear at first, and set by the pass before.
const PASSES: [&str; 2] = ["bits to be set", "bits are set"];

/// Measures and prints; the cells as JSON.
///
/// # Errors
/// Something does not start or run.
pub fn run(braid: &Path, args: &Args) -> Result<Value> {
    let mut cells = Vec::new();
    for load in LOADS.into_iter().filter(|load| args.wants(load.name)) {
        let mut passes: [Vec<Run>; PASSES.len()] = Default::default();
        for round in 0..args.rounds {
            progress(&format!("intent, {}, round {round}", load.name));
            let stage = Stage::files(braid, 2, Legs::Written)?;
            for runs in &mut passes {
                runs.push(fio::run(load, &stage.socket("m0"), None)?);
            }
        }
        progress("");
        if args.output == Format::Text {
            print_text(load, &passes);
        }
        cells.push(json_cell(load, &passes));
    }
    Ok(Value::Array(cells))
}

fn of(runs: &[Run], what: impl Fn(&Run) -> f64) -> Vec<f64> {
    runs.iter().map(what).collect()
}

/// First pass to second pass, round by round.
fn ratios(passes: &[Vec<Run>; PASSES.len()]) -> Vec<f64> {
    let pairs = passes[0].iter().zip(&passes[1]);
    pairs
        .map(|(first, second)| first.write_mib_s / second.write_mib_s)
        .collect()
}

fn print_text(load: Load, passes: &[Vec<Run>; PASSES.len()]) {
    println!("two written files, 1 GiB in 1024 regions: {}", load.name);
    println!("{:16} {:>10} {:>10}", "", "MiB/s", "p99 µs");
    for (name, runs) in PASSES.iter().zip(passes) {
        let mib_s = median(of(runs, |run| run.write_mib_s));
        let p99 = median(of(runs, |run| run.p99_us));
        println!("{name:16} {mib_s:10.1} {p99:10.0}");
    }
    println!("{:16} {:10.3}", "ratio", median(ratios(passes)));
}

fn json_cell(load: Load, passes: &[Vec<Run>; PASSES.len()]) -> Value {
    let pass = |runs: &[Run]| {
        json!({
            "mib_s": figure(of(runs, |run| run.write_mib_s)),
            "p99_us": figure(of(runs, |run| run.p99_us)),
        })
    };
    json!({
        "load": load.name, "to_be_set": pass(&passes[0]), "set": pass(&passes[1]),
        "ratio": figure(ratios(passes)),
    })
}
