//! Replays the corpus of the fuzz target: what was ever found stays fixed, with any compiler.
#[path = "../../../../fuzz/src/mirror/mod.rs"]
mod bodies;
#[path = "../../../../fuzz/src/replay.rs"]
mod replay_corpus;

#[test]
fn mirror() {
    replay_corpus::replay(env!("CARGO_MANIFEST_DIR"), &bodies::TARGETS, "mirror");
}

#[test]
fn checksums_of_the_bodies_are_those_of_the_standard() {
    assert_eq!(
        bodies::life::crc32c(b"123456789"),
        0xe306_9283,
        "RFC 3720, B.4"
    );
}

#[test]
fn corpora_have_all_seeds() {
    replay_corpus::has_seeds(env!("CARGO_MANIFEST_DIR"), &bodies::seeds::all());
}
