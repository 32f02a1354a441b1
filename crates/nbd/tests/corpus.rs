//! Replays the corpora of all fuzz targets with the stable compiler: defects once found stay fixed.
#[path = "../../../fuzz/src/nbd/mod.rs"]
mod bodies;
#[path = "../../../fuzz/src/replay.rs"]
mod corpus;

fn replay(target: &str) {
    corpus::replay(env!("CARGO_MANIFEST_DIR"), &bodies::TARGETS, target);
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
