//! The corpora of the fuzz targets, replayed: defects once found stay fixed.
use crate::model;

#[path = "../../../../fuzz/src/replay.rs"]
mod replayed;

fn replay(target: &str) {
    replayed::replay(env!("CARGO_MANIFEST_DIR"), &model::TARGETS, target);
}

#[test]
fn admin() {
    replay("admin");
}

#[test]
fn io_queue() {
    replay("io_queue");
}

#[test]
fn rings() {
    replay("rings");
}

#[test]
fn subsystem() {
    replay("subsystem");
}

#[test]
fn wire() {
    replay("wire");
}

#[test]
fn wired() {
    replay("wired");
}

#[test]
fn every_target_is_replayed() {
    let names: Vec<&str> = model::TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        ["admin", "io_queue", "rings", "subsystem", "wire", "wired"]
    );
}

#[test]
fn corpora_have_all_seeds() {
    replayed::has_seeds(env!("CARGO_MANIFEST_DIR"), &model::seeds::all());
}
