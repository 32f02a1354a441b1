//! Cost of the intent bitmap: writes where a bit has to be set first, and where it is set.
use super::stage::Stage;
use super::{Args, Load, Run};
use crate::prelude::*;

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

/// Cases that are compared: bits clear at first, and set by the pass before.
const PASSES: [&str; 2] = ["bits to be set", "bits are set"];

/// Over two written files, 1 GiB in 1024 regions.
pub const COLUMNS: [Column; 4] = [
    ("load", "load", 0),
    ("pass", "", 0),
    ("mib_s", "MiB/s", 3),
    ("p99_us", "p99 µs", 0),
];

/// Measures; cells of [`COLUMNS`].
///
/// # Errors
/// Something does not start or run.
pub fn run(braid: &Path, args: &Args) -> Result<Vec<Value>> {
    let mut cells = Vec::new();
    for load in LOADS.into_iter().filter(|load| args.wants(load.name)) {
        let mut passes: [Vec<Run>; PASSES.len()] = Default::default();
        for _ in 0..args.rounds {
            let stage = Stage::files(braid)?;
            for runs in &mut passes {
                runs.push(load.run(&stage.socket("m0"), None)?);
            }
        }
        for (name, runs) in PASSES.iter().zip(&passes) {
            cells.push(json!({
                "load": load.name, "pass": name,
                "mib_s": middle(runs, |run| run.write_mib_s),
                "p99_us": middle(runs, |run| run.p99_us),
            }));
        }
        let ratio = median(ratios(&passes[0], &passes[1], |run| run.write_mib_s));
        cells.push(json!({"load": load.name, "pass": "ratio", "mib_s": ratio}));
    }
    Ok(cells)
}
