//! Mutated modules, and the corpus of their fuzz target.
use crate::{Random, model};

#[path = "../../../../fuzz/src/replay.rs"]
mod replayed;

/// Each has one or two bytes in which a bit is another, which leaves some 15 % of them modules.
/// `BRAID_STATES=100000 cargo test -p braid-program --test it` looks at more of them.
#[test]
fn mutated_modules_choose_well_or_are_refused() {
    let count = std::env::var("BRAID_STATES").map_or(3_000, |it| it.parse().unwrap());
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut played = [0; 3];
    for _ in 0..count {
        let base = random.below(model::MODULES.len() as u64) as usize;
        let mut data = vec![base as u8];
        for _ in 0..1 + random.below(2) {
            let at = random.below(model::MODULES[base].len() as u64) as usize;
            data.extend((at as u16).to_le_bytes());
            data.push(model::MODULES[base][at] ^ 1 << random.below(8));
        }
        played[model::play(&data) as usize] += 1;
    }
    // None of the three is rare, or the mutations test nothing.
    assert!(played.iter().all(|it| it * 50 > count), "{played:?}");
}

/// `BRAID_WRITE_SEEDS=1` writes it.
#[test]
fn module_of_wasi_is_that_of_its_text() {
    let of = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/model/wasi");
    let module = wat::parse_file(format!("{of}.wat")).unwrap();
    if std::env::var_os("BRAID_WRITE_SEEDS").is_some() {
        std::fs::write(format!("{of}.wasm"), &module).unwrap();
    }
    assert_eq!(model::MODULES[4], module);
}

#[test]
fn corpus_is_replayed() {
    replayed::replay(env!("CARGO_MANIFEST_DIR"), &model::TARGETS, "program");
}

#[test]
fn corpus_has_all_seeds() {
    replayed::has_seeds(env!("CARGO_MANIFEST_DIR"), &model::seeds());
}
