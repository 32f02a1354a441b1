use super::*;
use serde_json::json;

fn forecast(path: u64, cost_ns: u64) -> Value {
    json!({
        "path": path, "usable": true, "why_not": null, "stands_by": false, "in_flight": 1024,
        "in_flight_elsewhere": 128, "known": true, "base_ns": 123_456, "wait_ns": 351_000,
        "tail_ns": 24_400, "expected_ns": 498_856, "price_ns": 326_000,
        "penalty_ns": cost_ns - 824_856, "cost_ns": cost_ns, "silent": cost_ns > 1_000_000,
        "failed_lately": false,
    })
}

fn answer() -> Value {
    json!({
        "volume": "v0", "policy": "soonest", "wanted": 2, "waited_ns": 5_000_000,
        "paths": [{"path": 0, "uri": "nvme-tcp://10.0.0.1:4420/nqn.2026-01.org.example:v0"},
                  {"path": 1, "uri": "mem:1GiB"}],
        "ios": [
            {
                "io": 1,
                "at_ns": 1, "core": 0, "op": "write", "offset": 1_299_227_607_u64, "bytes": 131_072,
                "piece": true, "moves": 0, "repetitions": 0, "waited_ns": 0, "policy": "soonest",
                "chosen": 0, "why": "fewest-in-flight", "outcome": "the path failed",
                "latency_ns": 1_910_000, "queued_ns": 12_000, "expected_ns": 498_856,
                "error_ns": 1_411_144, "paths": [
                    forecast(0, 824_856), forecast(1, 260_000_000),
                    {"path": 2, "usable": false, "why_not": "it is lost", "stands_by": false,
                     "in_flight": 0, "in_flight_elsewhere": 0},
                ],
            },
            {
                "io": 1,
                "at_ns": 2, "core": 0, "op": "write", "offset": 1_299_227_607_u64, "bytes": 131_072,
                "piece": true, "moves": 1, "repetitions": 0, "waited_ns": 1_910_000,
                "policy": "queue-depth", "chosen": 1, "why": "only", "outcome": "done",
                "latency_ns": 77_000, "queued_ns": 0, "expected_ns": null, "error_ns": null,
                "paths": [
                    {"path": 1, "usable": true, "why_not": null, "stands_by": false,
                     "in_flight": 3, "in_flight_elsewhere": 0},
                ],
            },
            {
                "io": 3,
                "at_ns": 3, "core": 0, "op": "read", "offset": 0, "bytes": 4096, "piece": false,
                "moves": 0, "repetitions": 0, "waited_ns": 0, "policy": "numa", "chosen": null,
                "why": "none-usable", "outcome": null, "latency_ns": null, "queued_ns": null,
                "expected_ns": null, "error_ns": null, "paths": [], "waits_for": "path",
                "waits_ns": 5_000_000_000_u64,
            },
            {
                "io": 4,
                "at_ns": 4, "core": 0, "op": "write", "offset": 0, "bytes": 4096, "piece": false,
                "moves": 0, "repetitions": 0, "waited_ns": 0, "policy": "numa", "chosen": null,
                "why": null, "outcome": null, "latency_ns": null, "queued_ns": null,
                "expected_ns": null, "error_ns": null, "paths": [],
                "waits_for": "overlapping-write", "waits_ns": null,
            },
        ],
    })
}

const SHOWN: &str = "\
v0: soonest
  0  nvme-tcp://10.0.0.1:4420/nqn.2026-01.org.example:v0
  1  mem:1GiB

1. piece of a write, 128 KiB at 1.21 GiB, core 0: path 0, about the least cost,
   and of those the fewest in flight; after 1.91 ms: the path failed; 12.0 µs of
   it waiting for room there
";

#[test]
fn colour_marks_the_choice_and_what_is_wrong() {
    let colour = Style {
        colour: true,
        unicode: true,
    };
    let mut text = String::new();
    ios(&mut text, 0, &answer(), colour).unwrap();
    for painted in [
        "   \x1b[32m*\x1b[0m 0",
        "after 1.91 ms: \x1b[1;31mthe path failed\x1b[0m; 12.0",
        "\x1b[1;31mit is lost\x1b[0m",
        "1: \x1b[1;33mnothing has come back for longer than is usual\x1b[0m",
        "core 0: \x1b[1;31mno path is usable\x1b[0m; \x1b[1;33mit waits",
    ] {
        assert!(text.contains(painted), "{painted:?}: {text:?}");
    }
}

#[test]
fn what_is_told_is_shown_in_80_columns() {
    let mut text = String::new();
    head(&mut text, &answer()).unwrap();
    ios(&mut text, 0, &answer(), Style::PLAIN).unwrap();
    assert!(text.starts_with(SHOWN), "{text}");
    for waits in [
        "2. read, 4 KiB at 0 B, core 0: no path is usable; it waits until one is, for 5.00 s",
        "3. write, 4 KiB at 0 B, core 0: it waits for a write before it to the same place,",
    ] {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(waits), "{words}");
    }
    assert!(text.ends_with("too\n"), "no table of nothing: {text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}
