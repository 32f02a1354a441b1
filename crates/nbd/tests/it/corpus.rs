//! The corpora of the fuzz targets, replayed: defects once found stay fixed.
use crate::model;

#[path = "../../../../fuzz/src/replay.rs"]
mod replayed;

fn replay(target: &str) {
    replayed::replay(env!("CARGO_MANIFEST_DIR"), &model::TARGETS, target);
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
    let names: Vec<&str> = model::TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["nbd_client", "nbd_server"]);
}

#[test]
fn corpora_have_all_seeds() {
    replayed::has_seeds(env!("CARGO_MANIFEST_DIR"), &model::seeds::all());
}
