//! Cost of the intent bitmap: writes where a bit has to be set first, and where it is set.
use super::stage::Stage;
use super::{Args, Load, put};
use crate::prelude::*;

/// Each goes over every region of the mirror once.
const LOADS: [Load; 3] = [
    (
        "write 1M × 8, on and on",
        "--rw=write --bs=1M --iodepth=8 --size=1G",
    ),
    (
        "randwrite 4k × 32, 64 in a region",
        "--rw=randwrite --bs=4k --iodepth=32 --size=1G --io_size=256M",
    ),
    (
        "write 4k × 32, one in a region",
        "--rw=write:1020k --bs=4k --iodepth=32 --size=1G",
    ),
];

/// Bits clear at first, then set by the pass before; and the first as a part of the second.
const PASSES: [&str; 3] = ["bits to be set", "bits are set", "ratio"];

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
    for load in LOADS.into_iter().filter(|load| args.wants(load.0)) {
        let (mut stage, mut socket, mut passes) = (None, PathBuf::new(), Vec::new());
        cells.extend(interleaved(
            args.timing.rounds,
            &PASSES,
            &COLUMNS,
            |&pass| {
                if let [first, second] = &passes[..] {
                    let ratio = ratio(first, second, "mib_s");
                    (stage, passes) = (None, Vec::new());
                    return Ok(json!({"load": load.0, "pass": pass, "mib_s": ratio}));
                }
                if stage.is_none() {
                    socket = stage.insert(Stage::files(braid)?).socket("m0");
                }
                let run = put(load, &socket, None)?;
                let facts = json!({"load": load.0, "pass": pass, "mib_s": run["write_mib_s"],
                               "p99_us": run["p99_us"]});
                passes.push(facts.clone());
                Ok(facts)
            },
        )?);
    }
    Ok(cells)
}
