//! `braid sim` starts the simulator, a program of its own. A script stands in for it here.
use crate::cli::common::{Place, code, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

#[path = "../../../../sim-program/src/args.rs"]
#[allow(dead_code, reason = "only its version is used")]
mod args;

/// Prints its words, one a line.
const SHOWS_WORDS: &str = "printf '%s\\n' \"$@\"; exit 7";

/// Runs a shell script, so that no program is executed while this process has it open to write.
fn shell(script: &str, words: &[&Path]) {
    let mut command = Command::new("sh");
    let ended = command.args(["-c", script, "sh"]).args(words).status();
    assert!(ended.unwrap().success(), "{script}");
}

/// A copy of braid alone in a directory of that name.
fn alone(place: &Place, directory: &str) -> PathBuf {
    let program = place.path().join(directory).join("braid");
    let copy = "mkdir -p \"${2%/*}\" && cp \"$1\" \"$2\"";
    shell(copy, &[Path::new(env!("CARGO_BIN_EXE_braid")), &program]);
    program
}

/// A simulator of this version in a directory of that name.
fn simulator(place: &Place, directory: &str, script: &str) {
    simulator_of(place, directory, args::version(), script);
}

fn simulator_of(place: &Place, directory: &str, version: &str, script: &str) {
    let script = format!("[ \"$1\" = --version ] && echo 'braid-sim {version}' && exit\n{script}");
    let program = place.path().join(directory).join("braid-sim");
    let script = format!("#!/bin/sh\n{script}\n");
    let make = "mkdir -p \"${2%/*}\" && printf '%s' \"$1\" > \"$2\" && chmod +x \"$2\"";
    shell(make, &[Path::new(&script), &program]);
}

fn sim(place: &Place, braid: &Path, words: &str) -> Output {
    let mut command = Command::new(braid);
    command
        .args(words.split(' '))
        .env("PATH", place.path().join("path"))
        .current_dir(place.path())
        .stdin(Stdio::null());
    command.output().unwrap()
}

#[test]
fn the_simulator_gets_the_words_and_gives_the_exit_code() {
    let place = Place::new();
    let braid = alone(&place, "bin");
    simulator(&place, "path", "exit 8");
    let output = sim(&place, &braid, "sim d30 --seed 7");
    assert_eq!((code(&output), stderr(&output)), (8, String::new()));
    // The one beside it is the one that was built with it.
    simulator(&place, "bin", SHOWS_WORDS);
    let output = sim(
        &place,
        &braid,
        "sim --chaos --seeds 3 --faults 1:1ms -o json",
    );
    let words = "--chaos\n--seeds\n3\n--faults\n1:1ms\n-o\njson\n";
    assert_eq!((code(&output), &*stdout(&output)), (7, words));
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_missing_simulator_is_a_usage_error_that_says_how_to_get_it() {
    let place = Place::new();
    let braid = alone(&place, "bin");
    let output = sim(&place, &braid, "sim --chaos");
    assert_eq!((code(&output), &*stdout(&output)), (2, ""));
    let directory = place.path().join("bin").canonicalize().unwrap();
    for part in [
        "braid: sim: ",
        &format!("neither in {} nor in PATH", directory.display()),
        "cargo build --release --bin braid-sim",
    ] {
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}

/// It may lack the words that were just accepted, or take them for something else.
#[test]
fn a_simulator_of_another_version_is_not_started() {
    let place = Place::new();
    let braid = alone(&place, "bin");
    // Before it had a checksum of its words.
    simulator_of(&place, "bin", "0.1.0", "exit 8");
    let output = sim(&place, &braid, "sim d30");
    assert_eq!((code(&output), &*stdout(&output)), (1, ""));
    for part in [
        "bin/braid-sim is braid-sim 0.1.0, ",
        &format!("needs braid-sim {}", args::version()),
        "cargo build --release",
    ] {
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}

/// A file of that name that is no program is no reason to look elsewhere.
#[test]
fn a_simulator_that_cannot_be_executed_is_named() {
    let place = Place::new();
    let braid = alone(&place, "bin");
    let program = place.path().join("bin/braid-sim");
    std::fs::write(&program, "").unwrap();
    let output = sim(&place, &braid, "sim");
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(
        stderr(&output).contains("bin/braid-sim: Permission denied"),
        "{}",
        stderr(&output)
    );
}

/// The simulator reports results that reached nobody, so it has to learn of a closed output.
#[test]
fn a_closed_standard_output_is_closed_for_the_simulator() {
    let place = Place::new();
    let braid = alone(&place, "bin");
    simulator(&place, "bin", "[ -e /proc/self/fd/1 ] && exit 8; exit 9");
    let mut command = Command::new("sh");
    let closed = command.args(["-c", "exec \"$0\" sim >&-"]).arg(&braid);
    assert_eq!(code(&closed.output().unwrap()), 9);
    assert_eq!(code(&sim(&place, &braid, "sim")), 8);
}

#[test]
fn help_completions_and_man_pages_have_its_words_without_it() {
    let place = Place::new();
    let braid = alone(&place, "bin");
    for (words, part) in [
        ("--help", "  sim "),
        ("sim --help", "Usage: braid sim [OPTIONS] [NAME]..."),
        ("sim --help", "--chaos"),
        ("completions bash", "--keep-bounds"),
    ] {
        let output = sim(&place, &braid, words);
        assert_eq!(code(&output), 0, "{words}: {}", stderr(&output));
        let text = stdout(&output);
        assert!(text.contains(part), "{words}: no {part:?} in: {text}");
    }
    assert_eq!(code(&sim(&place, &braid, "man .")), 0);
    let page = std::fs::read_to_string(place.path().join("braid-sim.1")).unwrap();
    assert!(page.contains("chaos"), "{page}");
}
