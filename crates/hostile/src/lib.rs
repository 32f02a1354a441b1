//! Attacks on what reads the words of users, files and other processes; for tests.
//!
//! # Contract
//! A parser is given every text of its corpus (`crates/braid/corpus/NAME/`), then texts made of
//! them: cut, doubled, spliced with each other, with numbers at their limits. It must not panic,
//! and must not allocate more than in proportion to the text. A find becomes a file of the corpus.
//! `PROPTEST_CASES=100000` attacks for longer. A dependency of tests only: it counts allocations.
//!
//! # Limits
//! Blind: nothing measures which code a text reached (docs/decisions.md says why).
#![forbid(unsafe_code)]

use allocation_counter::measure;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::{fs, io};

/// Memory at a time for a text of any length, and for each of its bytes.
const BYTES: u64 = 4 << 20;
const BYTES_PER_BYTE: u64 = 512;
/// Longest text that is made.
const TEXT_MAX: usize = 64 << 10;

/// Numbers that are the last of something, or one more.
const NUMBERS: [&str; 18] = [
    "0",
    "-1",
    "1",
    "8",
    "9",
    "255",
    "256",
    "3600",
    "3601",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "99999999999999999999999999",
    "0.0000000000001",
    "1e308",
];
/// Words with a meaning in some format.
const WORDS: [&str; 24] = [
    "\"", "'", "[", "]", "[[", "{", "}", "=", ",", ":", "+", "/", "\n", "\\u0000", "\0", "%00",
    "%ff", "é", "TiB", "h", "s", "true", "[::1]:0", "#",
];

/// One change of a text: what, where, how much.
type Step = (u8, u32, u32);

fn place(text: &str, at: u32) -> usize {
    let mut at = at as usize % (text.len() + 1);
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn change(text: &mut String, others: &[String], (what, at, more): Step) {
    let from = place(text, at);
    let to = place(text, at.saturating_add(more % 64)).max(from);
    let word = |of: &[&'static str]| of[more as usize % of.len()];
    match what % 6 {
        0 => text.replace_range(from..to, ""),
        1 => text.insert_str(from, word(&WORDS)),
        2 => text.insert_str(from, word(&NUMBERS)),
        3 => number(text, at, word(&NUMBERS)),
        4 => {
            let room = TEXT_MAX.saturating_sub(text.len()) / (to - from).max(1);
            let times = (more as usize % 4096).min(room);
            let piece = text[from..to].repeat(times);
            text.insert_str(to, &piece);
        }
        _ => {
            let other = &others[more as usize % others.len()];
            let (begin, end) = (place(other, at), place(other, more));
            text.replace_range(from..to, &other[begin.min(end)..begin.max(end)]);
        }
    }
}

/// Puts another number where one stands.
fn number(text: &mut String, which: u32, by: &str) {
    let starts: Vec<_> = text
        .match_indices(|c: char| c.is_ascii_digit())
        .map(|(at, _)| at)
        .collect();
    let Some(&from) = starts.get(which as usize % starts.len().max(1)) else {
        return;
    };
    let digits = text[from..].bytes().take_while(u8::is_ascii_digit).count();
    text.replace_range(from..from + digits, by);
}

/// Nothing is written into the tree; the input is in the message of a failure.
fn config() -> Config {
    Config {
        failure_persistence: None,
        ..Config::default()
    }
}

/// The configuration of attacks on a protocol's model: 400 of them at least.
pub fn model_config() -> Config {
    let config = config();
    Config {
        cases: config.cases.max(400),
        ..config
    }
}

fn corpus(name: &str) -> Vec<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../braid/corpus")
        .join(name);
    let read = || -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&directory)?.collect::<io::Result<Vec<_>>>()?;
        let mut files: Vec<_> = entries.iter().map(fs::DirEntry::path).collect();
        files.sort();
        let texts = files.iter().map(fs::read).collect::<io::Result<Vec<_>>>()?;
        Ok(texts
            .iter()
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .collect())
    };
    read().unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
}

/// Attacks `parser` with the corpus of this name and what can be made of it.
///
/// # Panics
/// The parser panics or takes too much memory; the corpus is not there.
pub fn attack(name: &str, parser: impl Fn(&str)) {
    attack_and_use(name, parser, |()| ());
}

/// Attacks `parser` as [`attack`] does, and then uses what it made, which may take memory of its
/// own.
///
/// # Panics
/// As [`attack`]; `using` panics.
pub fn attack_and_use<T>(name: &str, parser: impl Fn(&str) -> T, using: impl Fn(T)) {
    let texts = corpus(name);
    assert!(!texts.is_empty(), "{name} has no corpus");
    let bounded = |text: &str| {
        // The measuring has to end on every way out.
        let mut ended = None;
        let used = measure(|| ended = Some(catch_unwind(AssertUnwindSafe(|| parser(text)))));
        let made = match ended {
            Some(Ok(made)) => made,
            Some(Err(what)) => resume_unwind(what),
            None => unreachable!("measure() runs what it measures"),
        };
        let used = used.bytes_max;
        let most = BYTES + BYTES_PER_BYTE * text.len() as u64;
        assert!(used <= most, "{used} bytes for {}", text.len());
        using(made);
    };
    for text in &texts {
        println!("{text:?}");
        bounded(text);
    }
    let steps = prop::collection::vec(any::<Step>(), 1..6);
    let made = (0..texts.len(), steps).prop_map(|(first, steps)| {
        let mut text = texts[first].clone();
        for step in steps {
            change(&mut text, &texts, step);
        }
        text
    });
    let attacked = TestRunner::new(config()).run(&made, |text| {
        bounded(&text);
        Ok(())
    });
    attacked.unwrap_or_else(|error| panic!("{name}: {error}"));
}

#[test]
fn the_attack_finds_what_panics_or_takes_memory() {
    assert!(catch_unwind(|| attack("uri", |text| assert!(!text.contains("65536")))).is_err());
    let hog = |text: &str| drop(vec![1_u8; text.len() * 100_000]);
    assert!(catch_unwind(|| attack("uri", hog)).is_err());
    attack("uri", |_| {});
}
