//! Replays the corpora of all fuzz targets: what was ever found stays fixed, with any compiler.
#![allow(clippy::unwrap_used, reason = "tests")]
#[path = "../../../fuzz/src/broker/mod.rs"]
mod bodies;
#[path = "../../../fuzz/src/replay.rs"]
mod corpus;

#[test]
fn broker() {
    let [(name, _)] = bodies::TARGETS;
    corpus::replay(env!("CARGO_MANIFEST_DIR"), &bodies::TARGETS, name);
}
