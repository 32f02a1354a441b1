//! Replays the corpora of all fuzz targets with the stable compiler: defects once found stay fixed.
#[path = "../../../fuzz/src/lib.rs"]
mod bodies;
#[path = "../../../fuzz/src/replay.rs"]
mod corpus;

fn replay(target: &str) {
    corpus::replay(env!("CARGO_MANIFEST_DIR"), &bodies::TARGETS, target);
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
    let names: Vec<&str> = bodies::TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        ["admin", "io_queue", "rings", "subsystem", "wire", "wired"]
    );
}
