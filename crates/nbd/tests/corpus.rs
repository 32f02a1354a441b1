//! Hostile peers of both sessions: the corpora of the fuzz targets, and attacks by chance.
#[path = "../../../fuzz/src/replay.rs"]
mod corpus;
mod hostile;
mod model;

fn replay(target: &str) {
    corpus::replay(env!("CARGO_MANIFEST_DIR"), &model::TARGETS, target);
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
    corpus::has_seeds(env!("CARGO_MANIFEST_DIR"), &model::seeds::all());
}
