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
