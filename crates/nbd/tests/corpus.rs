//! Replays the corpora of all fuzz targets: what was ever found stays fixed, with any compiler.
#[path = "../../../fuzz/src/nbd/mod.rs"]
mod bodies;

use std::fs;
use std::path::Path;

/// Runs every input of one corpus; the last line before a panic names the input.
fn replay(target: &str) {
    let found = bodies::TARGETS.iter().find(|(name, _)| *name == target);
    let (_, body) = found.expect("a target of this name");
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut inputs: Vec<_> = fs::read_dir(&corpus)
        .unwrap_or_else(|error| panic!("{}: {error}", corpus.display()))
        .map(|entry| entry.expect("an entry of the corpus").path())
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{} is empty", corpus.display());
    for input in inputs {
        println!("{}", input.display());
        body(&fs::read(&input).expect("an input of the corpus"));
    }
}

#[test]
fn nbd_client() {
    replay("nbd_client");
}

#[test]
fn nbd_server() {
    replay("nbd_server");
}

#[test]
fn every_target_is_replayed() {
    let names: Vec<&str> = bodies::TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["nbd_client", "nbd_server"]);
}
