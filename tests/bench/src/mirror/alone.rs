//! What a mirror of one leg costs reads, beside the same file without it.
use super::super::program::median;
use super::fio::{self, Load};
use super::stage::{Legs, Stage};
use super::{Args, Format, figure, progress};
use anyhow::Result;
use serde_json::{Value, json};
use std::path::Path;

const LOAD: Load = Load {
    name: "randread 4k × 32",
    words: &["--rw=randread", "--bs=4k", "--iodepth=32", "--size=1G"],
};

/// One run.
struct Cell {
    iops: f64,
    p99_us: f64,
    /// Of the engine's processor, per I/O.
    engine_us: f64,
}

/// The file without a mirror first.
const VOLUMES: [&str; 2] = ["alone", "m0"];

/// What the file is: of one with holes reads ask no disk, so that nothing bounds them but the
/// processor.
const FILES: [(&str, Legs); 2] = [
    ("one written file", Legs::Written),
    ("one file of holes", Legs::Holes),
];

/// Measures and prints; the cells as JSON.
///
/// # Errors
/// Something does not start or run.
pub fn run(braid: &Path, args: &Args) -> Result<Value> {
    let mut shown = Vec::new();
    for (name, kind) in FILES.into_iter().filter(|(name, _)| args.wants(name)) {
        let stage = Stage::files(braid, 1, kind)?;
        let mut cells: [Vec<Cell>; VOLUMES.len()] = Default::default();
        for round in 0..args.rounds {
            progress(&format!("{name}, {}, round {round}", LOAD.name));
            // Who begins changes from round to round.
            for turn in 0..VOLUMES.len() {
                let volume = (turn + round) % VOLUMES.len();
                cells[volume].push(measure(&stage, VOLUMES[volume], args.seconds)?);
            }
        }
        progress("");
        if args.output == Format::Text {
            print_text(name, &cells);
        }
        shown.push(json!({
            "leg": name, "load": LOAD.name,
            "iops": [figure(of(&cells[0], |it| it.iops)), figure(of(&cells[1], |it| it.iops))],
            "ratio": figure(ratios(&cells, |it| it.iops)),
            "p99_ratio": figure(ratios(&cells, |it| it.p99_us)),
            "engine_us_ratio": figure(ratios(&cells, |it| it.engine_us)),
        }));
    }
    Ok(Value::Array(shown))
}

fn print_text(name: &str, cells: &[Vec<Cell>; VOLUMES.len()]) {
    println!("{name} as the leg of a mirror, and without: {}", LOAD.name);
    println!(
        "{:10} {:>10} {:>10} {:>12}",
        "", "IOPS", "p99 µs", "engine µs/IO"
    );
    for (name, cells) in ["file", "mirror"].iter().zip(cells) {
        println!(
            "{name:10} {:10.0} {:10.0} {:12.2}",
            median(of(cells, |it| it.iops)),
            median(of(cells, |it| it.p99_us)),
            median(of(cells, |it| it.engine_us))
        );
    }
    println!(
        "{:10} {:10.3} {:10.3} {:12.3}",
        "ratio",
        median(ratios(cells, |it| it.iops)),
        median(ratios(cells, |it| it.p99_us)),
        median(ratios(cells, |it| it.engine_us))
    );
}

fn measure(stage: &Stage, volume: &str, seconds: f64) -> Result<Cell> {
    let before = stage.engine_seconds()?;
    let run = fio::run(LOAD, &stage.socket(volume), Some(seconds))?;
    let engine = stage.engine_seconds()? - before;
    Ok(Cell {
        iops: run.iops,
        p99_us: run.p99_us,
        engine_us: engine * 1e6 / run.ios.max(1.0),
    })
}

fn of(cells: &[Cell], what: impl Fn(&Cell) -> f64) -> Vec<f64> {
    cells.iter().map(what).collect()
}

/// The mirror's to the file's, round by round.
fn ratios(cells: &[Vec<Cell>; VOLUMES.len()], what: impl Fn(&Cell) -> f64) -> Vec<f64> {
    let pairs = cells[1].iter().zip(&cells[0]);
    pairs
        .map(|(mirror, file)| what(mirror) / what(file))
        .collect()
}
