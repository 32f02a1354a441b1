//! Runs a target's body over its corpus, with any compiler; for tests of the crates.
use std::fs;
use std::path::Path;

/// The body of a target.
type Body = fn(&[u8]);

/// Every input of the corpus of one of `targets`; the last line before a panic names the input.
/// `manifest`: directory of a crate of this project.
///
/// # Panics
/// There is no such target or corpus; or where its body does.
pub fn replay(manifest: &str, targets: &[(&str, Body)], target: &str) {
    let found = targets.iter().find(|(name, _)| *name == target);
    let (_, body) = found.expect("a target of this name");
    let corpus = Path::new(manifest).join("../../fuzz/corpus").join(target);
    let mut inputs: Vec<_> = fs::read_dir(&corpus)
        .unwrap_or_else(|error| panic!("{}: {error}", corpus.display()))
        .map(|entry| entry.expect("an entry of the corpus").path())
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{} is empty", corpus.display());
    for input in inputs {
        println!("{}", input.display());
        body(&fs::read(&input).expect("an input of the corpus"));
    }
}

/// The corpora have these seeds (target, name, input). With `BRAID_WRITE_SEEDS` in the environment
/// they are written first.
///
/// # Panics
/// A seed is missing or has other bytes.
pub fn has_seeds(manifest: &str, seeds: &[(&str, String, Vec<u8>)]) {
    let corpora = Path::new(manifest).join("../../fuzz/corpus");
    for (target, name, input) in seeds {
        let path = corpora.join(target).join(name);
        if std::env::var_os("BRAID_WRITE_SEEDS").is_some() {
            fs::write(&path, input).expect("a corpus that can be written");
        }
        let there = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(
            there == *input,
            "{} is another seed: BRAID_WRITE_SEEDS=1 writes it",
            path.display()
        );
    }
}
