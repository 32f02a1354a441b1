//! Results of known figures.
use super::*;
use crate::stats::Stats;
use crate::worker::Totals;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    words: Words,
}

fn words(text: &str) -> Words {
    Line::parse_from(std::iter::once("braid").chain(text.split_whitespace())).words
}

fn finished() -> Finished {
    let mut stats = Stats::new(2);
    for _ in 0..3 {
        stats.good(false, 0, 4096, 60_000);
    }
    stats.good(false, 1, 4096, 30_000_000);
    stats.elapsed_ns = 2_000_000_000;
    stats.paths[1].waited_full = 5;
    let totals = Totals {
        ios: 8,
        bytes: 8 * 4096,
    };
    Finished {
        stats,
        totals,
        interrupted: false,
        failed: None,
    }
}

fn result<'a>(words: &'a Words, uris: &'a [String], finished: Finished) -> BenchResult<'a> {
    let reactor = Some(ReactorStats {
        enters: 4,
        wakeups: 2,
        ..Default::default()
    });
    BenchResult {
        words,
        policy: Policy::QueueDepth,
        uris,
        finished,
        reactor,
    }
}

#[test]
fn programs_find_the_keys_they_rely_on() {
    let (words, uris) = (
        words("--rw randread"),
        ["mem:1".to_owned(), "mem:2".to_owned()],
    );
    let json = result(&words, &uris, finished()).json(2);
    assert_eq!(json["op"], "read");
    assert_eq!(json["iops"], 2.0);
    assert_eq!(json["mib_s"], 4.0 * 4096.0 / 2.0 / 1048576.0);
    for key in ["mean_us", "p50_us", "p99_us", "p999_us"] {
        assert!(json[key].as_f64().unwrap() > 59.0, "{key}");
    }
    assert_eq!(
        (&json["errors"], &json["verified_bytes"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(json["share"], json!({"mem:1": 0.75, "mem:2": 0.25}));
    assert_eq!(json["system_calls_per_io"], 0.5);
}

#[test]
fn one_uri_given_twice_is_one_share() {
    let (words, uris) = (
        words("--rw randread"),
        ["mem:1".to_owned(), "mem:1".to_owned()],
    );
    let json = result(&words, &uris, finished()).json(2);
    assert_eq!(json["share"], json!({"mem:1": 1.0}));
    assert_eq!(json["paths"][1]["waited_full"], 5);
}

#[test]
fn people_get_tables() {
    let (words, uris) = (
        words("--rw randread --iodepth 8"),
        ["a".to_owned(), "b".to_owned()],
    );
    let text = result(&words, &uris, finished())
        .text(1, Style::PLAIN)
        .unwrap();
    let expected = "\
random read of 4 KiB, 8 outstanding on 1 core, 2.00 s over 2 paths, queue-depth

      IOPS  MiB/s     mean      p50      p99    p99.9  slowest
read     2   0.01  7.55 ms  60.0 µs  30.0 ms  30.0 ms  30.0 ms

path   share  IOPS  MiB/s     mean  errors  waited
a     75.0 %     2   0.01  60.0 µs       0       0
b     25.0 %     1   0.00  30.0 ms       0       5

errors 0, system calls per I/O 0.500, wake-ups per I/O 0.250
";
    assert_eq!(text, expected);
}

#[test]
fn what_ends_in_its_turn_has_no_latency_of_nought() {
    let (words, uris) = (words("--rw randread"), ["a".to_owned(), "b".to_owned()]);
    let mut finished = finished();
    for op in &mut finished.stats.ops {
        op.latency.reset();
        op.latency.record_n(0, op.ios).unwrap();
    }
    finished.stats.paths[1].ios = 0;
    let shown = result(&words, &uris, finished.clone());
    let text = shown.text(1, Style::PLAIN).unwrap();
    let row = text.lines().find(|line| line.starts_with("read")).unwrap();
    assert_eq!(row.matches("< 1 turn").count(), 5, "{text}");
    assert!(text.contains("\n< 1 turn: begun and ended"), "{text}");
    let row = text.lines().find(|line| line.starts_with("b ")).unwrap();
    assert!(row.contains("  -  "), "{text}");
    assert_eq!(shown.json(2)["p50_us"], 0.0);
}

#[test]
fn failures_are_shown_and_end_the_program() {
    let (words, uris) = (words("--rw write --verify"), ["a".to_owned()]);
    let mut finished = finished();
    assert_eq!(result(&words, &uris, finished.clone()).failure(), None);
    finished
        .stats
        .bad(|| "wrong data at byte 0 over a: damaged".into());
    finished.stats.bad(|| "second".into());
    let result = result(&words, &uris, finished);
    let why = result.failure().unwrap();
    assert_eq!(
        why,
        "2 errors, of which the first: wrong data at byte 0 over a: damaged"
    );
    let text = result.text(1, Style::PLAIN).unwrap();
    assert!(text.contains("errors 2, verified 0 B"), "{text}");
    assert!(text.contains("\n  second\n"), "{text}");
}
