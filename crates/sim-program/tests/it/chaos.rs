//! `braid sim --chaos` as it is typed.
use crate::{Place, Running, code, stderr, stdout};
use rustix::process::{Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::process::{Output, Stdio};

#[test]
fn worlds_are_summed_up_for_people_and_for_programs() {
    let place = Place::new();
    let args = ["--chaos", "--seed", "5", "--seeds", "3"];
    let output = place.run(&args);
    let text = stdout(&output);
    assert_eq!(code(&output), 0, "{text}{}", stderr(&output));
    assert_eq!(text.lines().next(), Some("seed 5"));
    assert_eq!(
        stderr(&output),
        "",
        "no progress where there is no terminal"
    );
    for part in [
        "3 worlds of seeds 5 to 7 in ",
        "0 findings",
        "kill-host",
        "cells are empty",
        "of half-open, ",
        " were forgotten-idle-connection\n",
        "of one-way, ",
        " were one-way-loss-by-size\n",
    ] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
    let json = |threads| {
        let mut json = place.json(&[&args[..], &["-o", "json", "-j", threads]].concat());
        let facts = json.as_object_mut().unwrap();
        for not_the_same in ["seconds", "threads"] {
            assert!(facts.remove(not_the_same).is_some());
        }
        json
    };
    let alone = json("1");
    assert_eq!(alone, json("3"));
    assert_eq!(
        (&alone["worlds"], &alone["ended"]),
        (&3.into(), &"all".into())
    );
    assert!(
        alone["requests"]["median"].as_u64().unwrap() > 1000,
        "{alone}"
    );
    for form in alone["forms"].as_array().unwrap() {
        let [fault, name] = ["fault", "name"].map(|it| form[it].as_str().unwrap());
        let line = format!("of {fault}, {} were {name}\n", form["count"]);
        assert!(text.contains(&line), "no {line:?} in: {text}");
    }
    // The corresponding lines of the text output.
    for (row, of) in [
        ("requests", "requests"),
        ("faults", "faults"),
        ("that touched", "touched"),
    ] {
        let figures = ["least", "median", "total"].map(|it| alone[of][it].to_string());
        let line = text.lines().find_map(|line| line.trim().strip_prefix(row));
        let line = line.unwrap_or_default().replace(',', "");
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>(),
            figures,
            "{text}"
        );
    }
}

/// The table has what can happen in such worlds, and nothing else.
#[test]
fn worlds_with_mirrors_show_the_faults_of_mirrors() {
    let place = Place::new();
    let args = ["--chaos", "--mirrors", "--seeds", "4"];
    let text = stdout(&place.run(&args));
    let json = place.json(&[&args[..], &["-o", "json"]].concat());
    let cells = json["coverage"].as_array().unwrap();
    for kind in ["fail-leg", "check-mirror", "kill-host", "drain-path"] {
        assert!(text.contains(kind), "no {kind:?} in: {text}");
        assert!(cells.iter().any(|it| it["fault"] == kind), "{json}");
    }
    for kind in ["withdraw", "greedy"] {
        assert!(!text.contains(kind), "{kind:?} in: {text}");
        assert!(cells.iter().all(|it| it["fault"] != kind), "{json}");
    }
    assert!(text.contains(" – "), "no cell that can't be in: {text}");
    let judged = json["judged"].as_array().unwrap();
    let judges = |name: &str| judged.iter().any(|it| it["checker"] == name);
    assert!(judges("heir") && !judges("export"), "{json}");
    let cells = cells.iter().filter(|it| it["possible"] == true);
    let cells: Vec<_> = cells.collect();
    let empty = cells.iter().filter(|it| it["count"] == 0).count();
    assert!(json["empty"] == empty && empty < cells.len(), "{json}");
    let missed = json["touched_nothing"].as_array().unwrap();
    let missed: u64 = missed.iter().filter_map(|it| it["count"].as_u64()).sum();
    let all = json["faults"]["total"].as_u64().unwrap();
    let line = format!(
        "{empty} of {} cells are empty; {missed} of {all} faults touched nothing",
        cells.len()
    );
    assert!(text.contains(&line), "no {line:?} in: {text}");
    assert_eq!(json["touched"]["total"], all - missed);
}

#[test]
fn a_signal_ends_it_with_what_there_is() {
    let place = Place::new();
    let mut child = place
        .command()
        .args(["--chaos", "--hours", "1", "-j", "2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let running = Running::of(child);
    let mut text = String::new();
    lines.read_line(&mut text).unwrap();
    assert_eq!(text, "seed 1\n");
    kill_process(running.pid(), Signal::TERM).unwrap();
    lines.read_to_string(&mut text).unwrap();
    let output = running.output();
    assert_eq!(code(&output), 130, "{text}{}", stderr(&output));
    assert!(
        text.contains("; interrupted\n") && text.contains("0 findings"),
        "{text}"
    );
}

#[test]
fn a_part_of_a_world_is_a_world() {
    let place = Place::new();
    let words = "--chaos --seed 5 --seeds 1 --faults none --requests 10 -o json";
    let json = place.json(&words.split(' ').collect::<Vec<_>>());
    assert_eq!(
        (&json["worlds"], &json["faults"]["total"]),
        (&1.into(), &0.into())
    );
}

/// A full disk is no finding, and no good end either.
#[test]
fn what_cannot_be_written_is_said_and_is_no_finding() {
    let place = Place::new();
    for format in ["text", "json"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let child = place
            .command()
            .args(["--chaos", "--seed", "5", "--seeds", "1", "-o", format])
            .stdout(full)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = Running::of(child).output();
        let said = stderr(&output);
        assert_eq!(code(&output), 3, "{said}");
        assert!(
            said.contains("nothing was found in ") && said.contains("No space left"),
            "{said}"
        );
    }
}

/// Result of `words` with a standard output that has no reader.
fn unread(place: &Place, words: &[&str]) -> Output {
    let mut child = place
        .command()
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    Running::of(child).output()
}

/// The exit code must not be 0 ("nothing found") where the result could not be printed.
#[test]
fn a_reader_that_has_gone_is_not_told_that_nothing_was_found() {
    let place = Place::new();
    for format in ["text", "json"] {
        let words = ["--chaos", "--seed", "5", "--seeds", "1", "-o", format];
        let output = unread(&place, &words);
        assert_eq!(
            (code(&output), stderr(&output).contains("nothing")),
            (3, false)
        );
        // Standard output is closed from the beginning.
        let mut shell = place.wrapped(&["sh", "-c", "exec \"$@\" >&-", "sh"]);
        let output = shell.args(words).output().unwrap();
        let said = stderr(&output);
        assert_eq!(code(&output), 3, "{format}: {said}");
        assert!(said.contains("could not be printed"), "{format}: {said}");
    }
}

/// A report is written whether the tables have a reader or not.
#[test]
fn a_report_is_written_though_nobody_reads_the_tables() {
    let place = Place::new();
    let output = unread(&place, &["d30-qd1", "--report", "page.html"]);
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
    assert!(place.path().join("page.html").exists());
}
