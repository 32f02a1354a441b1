//! What a mirror of one leg costs reads, beside the same file without it.
use super::super::program::median;
use super::stage::{Legs, Stage};
use super::{Args, Load, progress};
use crate::rounds::{middle, ratios};
use crate::table::Column;
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

pub const COLUMNS: [Column; 5] = [
    ("leg", "randread 4k × 32", 0),
    ("of", "", 0),
    ("iops", "IOPS", 3),
    ("p99_us", "p99 µs", 3),
    ("engine_us", "engine µs/IO", 3),
];

/// Measures; cells of [`COLUMNS`].
///
/// # Errors
/// Something does not start or run.
pub fn run(braid: &Path, args: &Args) -> Result<Vec<Value>> {
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
        let rows = ["file", "mirror"]
            .into_iter()
            .zip(&cells)
            .map(|(volume, of)| {
                json!({
                    "leg": name, "of": volume,
                    "iops": middle(of, |it| it.iops), "p99_us": middle(of, |it| it.p99_us),
                    "engine_us": middle(of, |it| it.engine_us),
                })
            });
        shown.extend(rows);
        let ratio = |what: fn(&Cell) -> f64| median(ratios(&cells[1], &cells[0], what));
        shown.push(json!({
            "leg": name, "of": "ratio",
            "iops": ratio(|it| it.iops), "p99_us": ratio(|it| it.p99_us),
            "engine_us": ratio(|it| it.engine_us),
        }));
    }
    Ok(shown)
}

fn measure(stage: &Stage, volume: &str, seconds: f64) -> Result<Cell> {
    let before = stage.engine_seconds()?;
    let run = LOAD.run(&stage.socket(volume), Some(seconds))?;
    let engine = stage.engine_seconds()? - before;
    Ok(Cell {
        iops: run.iops,
        p99_us: run.p99_us,
        engine_us: engine * 1e6 / run.ios.max(1.0),
    })
}
