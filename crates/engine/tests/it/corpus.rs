//! Replays the corpora of all fuzz targets: what was ever found stays fixed, with any compiler.
#[path = "../../../../fuzz/src/engine/mod.rs"]
#[allow(
    clippy::duplicate_mod,
    reason = "the bodies have the world of these tests as a part of their own tree"
)]
mod bodies;
#[path = "../../../../fuzz/src/replay.rs"]
mod replay_corpus;

fn replay(target: &str) {
    replay_corpus::replay(env!("CARGO_MANIFEST_DIR"), &bodies::TARGETS, target);
}

#[test]
fn engine_discovery() {
    replay("engine_discovery");
}

#[test]
fn engine_export() {
    replay("engine_export");
}

#[test]
fn engine_host() {
    replay("engine_host");
}

#[test]
fn engine_target() {
    replay("engine_target");
}

#[test]
fn every_target_is_replayed() {
    let names: Vec<&str> = bodies::TARGETS.iter().map(|(name, _)| *name).collect();
    let all = [
        "engine_discovery",
        "engine_export",
        "engine_host",
        "engine_target",
    ];
    assert_eq!(names, all);
}

#[test]
fn corpora_have_all_seeds() {
    replay_corpus::has_seeds(env!("CARGO_MANIFEST_DIR"), &bodies::seeds::all());
}
