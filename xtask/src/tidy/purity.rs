//! Rules on pure crates: no clock, socket, thread, randomness or order of a hash map.
//!
//! `no_std` keeps most of it out; this holds that nobody brings `std` back.
use super::Finding;
use super::layers::{self, Crate};
use super::lexed::Lexed;
use super::rust::{is_test, test_files};
use super::tree::Tree;

/// Names that have no place in a pure crate, and why.
const FORBIDDEN: [(&str, &str); 8] = [
    (
        "HashMap",
        "its order differs from run to run; use a BTreeMap or slots",
    ),
    (
        "HashSet",
        "its order differs from run to run; use a BTreeSet or slots",
    ),
    ("RandomState", "randomness is an argument"),
    ("Instant", "time is an argument (now_ns)"),
    ("SystemTime", "time is an argument (now_ns)"),
    ("_rdtsc", "time is an argument (now_ns)"),
    ("asm", "no machine code here"),
    ("thread_local", "no threads here"),
];

/// Where unsafe code may be: the kernel's edge, and what C sees.
const UNSAFE: [&str; 2] = ["sys", "queue-c"];

/// Checks every crate's root and every source of the pure ones.
pub fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let tests = test_files(tree);
    for member in layers::crates(tree) {
        check_root(tree, &member, findings);
        if !member.pure {
            continue;
        }
        let sources = format!("{}/src/", member.directory);
        for file in tree.rust().filter(|file| file.path.starts_with(&sources)) {
            if let Ok(lexed) = Lexed::new(file, is_test(&file.path, &tests)) {
                check_source(&file.path, &lexed, findings);
            }
        }
    }
}

fn check_root(tree: &Tree, member: &Crate, findings: &mut Vec<Finding>) {
    let library = format!("{}/src/lib.rs", member.directory);
    let program = format!("{}/src/main.rs", member.directory);
    for path in [library, program] {
        let Some(file) = tree.file(&path) else {
            continue;
        };
        let Ok(lexed) = Lexed::new(file, false) else {
            continue;
        };
        let has = |pattern: &[&str]| (0..lexed.tokens.len()).any(|at| lexed.matches(at, pattern));
        if !UNSAFE.contains(&member.name.as_str())
            && !has(&["#", "!", "[", "forbid", "(", "unsafe_code", ")", "]"])
        {
            findings.push(Finding::new(&path, 1, "lacks #![forbid(unsafe_code)]"));
        }
        if member.pure && !has(&["#", "!", "[", "no_std", "]"]) {
            findings.push(Finding::new(&path, 1, "a pure crate: lacks #![no_std]"));
        }
    }
}

fn check_source(path: &str, lexed: &Lexed, findings: &mut Vec<Finding>) {
    for (at, token) in lexed
        .tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| !token.test)
    {
        if lexed.matches(at, &["std", ":", ":"]) || lexed.matches(at, &["extern", "crate", "std"]) {
            findings.push(Finding::new(
                path,
                token.line,
                "std in a pure crate; use core or alloc",
            ));
        }
        for (name, why) in FORBIDDEN {
            if lexed.matches(at, &[name]) {
                findings.push(Finding::new(path, token.line, format!("{name}: {why}")));
            }
        }
        if lexed.matches(at, &["static", "mut"]) {
            findings.push(Finding::new(
                path,
                token.line,
                "static mut: no global state here",
            ));
        }
    }
}
