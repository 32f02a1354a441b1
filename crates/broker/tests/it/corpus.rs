//! Replays the corpora of all fuzz targets: what was ever found stays fixed, with any compiler.
#[path = "../../../../fuzz/src/broker/mod.rs"]
mod bodies;
#[path = "../../../../fuzz/src/replay.rs"]
mod replay_corpus;

#[test]
fn broker() {
    replay_corpus::replay(env!("CARGO_MANIFEST_DIR"), &bodies::TARGETS, "broker");
}

#[test]
fn broker_threads() {
    replay_corpus::replay(
        env!("CARGO_MANIFEST_DIR"),
        &bodies::TARGETS,
        "broker_threads",
    );
}

#[test]
fn corpora_have_all_seeds() {
    replay_corpus::has_seeds(env!("CARGO_MANIFEST_DIR"), &bodies::seeds::all());
}
