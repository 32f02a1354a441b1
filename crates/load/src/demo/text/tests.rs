//! The whole output for known figures, and the keys for programs.
use super::*;
use crate::demo::cells::{Cell, PathFigures};
use crate::demo::json::json;
use crate::demo::model::{Alone, Setup};
use policy::Policy;

fn cell(policy: Policy, op: Op, mib_s: f64, fast_in_flight: f64) -> Cell {
    let slow_mib_s = (1024.0 - fast_in_flight) / 256.0 / 0.03;
    let fast_mib_s = mib_s - slow_mib_s;
    let path = |path_mib_s: f64, in_flight: f64| PathFigures {
        share: path_mib_s / mib_s,
        mib_s: path_mib_s,
        mean_ns: if path_mib_s > 0.0 {
            in_flight / (path_mib_s * 256.0) * 1e9
        } else {
            0.0
        },
        in_flight,
    };
    Cell {
        policy,
        op,
        mib_s,
        rounds_mib_s: vec![mib_s - 4.0, mib_s + 4.0],
        iops: mib_s * 256.0,
        p50_us: 100.0,
        p99_us: 30_000.0,
        p999_us: 30_500.0,
        paths: [
            path(fast_mib_s, fast_in_flight),
            path(slow_mib_s, 1024.0 - fast_in_flight),
        ],
        errors: 0,
        hedges: Default::default(),
    }
}

pub fn outcome() -> Outcome {
    let alone = Alone {
        bare_ns: 60_000.0,
        fast_ns: 73_000.0,
        slow_ns: 30_060_000.0,
        fast_mib_s: 299.5,
        slow_mib_s: 132.5,
    };
    let round_robin = Policy::RoundRobin { bytes: 0 };
    Outcome {
        setup: Setup {
            outstanding: 1024,
            block: 4096,
            fast_bytes_per_s: 300 << 20,
            slow_delay_ns: 30_000_000,
        },
        alone: [alone; 2],
        cells: vec![
            cell(Policy::Numa, Op::Read, 1024.0 / 256.0 / 0.03, 0.0),
            cell(round_robin, Op::Read, 264.0, 10.0),
            cell(Policy::QueueDepth, Op::Read, 366.0, 512.0),
            cell(Policy::WEIGHTED_LATENCY, Op::Read, 350.0, 640.0),
            cell(Policy::WEIGHTED_LATENCY, Op::Mixed, 351.0, 640.0),
        ],
        seconds: 3.0,
        rounds: 2,
        cores: 1,
        waited: Some(0.004),
        window_ns: 50_000_000,
        interrupted: false,
    }
}

#[test]
fn the_output_of_known_figures() {
    let expected = include_str!("expected.txt");
    let text = text(&outcome(), Style::PLAIN);
    assert!(text == expected, "differs from expected.txt:\n{text}");
}

#[test]
fn a_busy_machine_is_said_loudly() {
    let mut busy = outcome();
    busy.alone[1].fast_mib_s = 240.0;
    let text = text(&busy, Style::PLAIN);
    assert!(text.contains("-20.0 %  too far off"), "{text}");
    let text = text.replace('\n', " ");
    for part in [
        "This machine is busy: target and host waited for a CPU for 0.4 % of the time; 1 of 8",
        "(most write on fast, -20 %)",
        "rounds of numa, read, differ by a factor of 1.06",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert_eq!(json(&busy)["machine_is_quiet"], false);
    let mut waiting = outcome();
    waiting.waited = Some(0.06);
    assert!(!waiting.machine_is_quiet());
    waiting.waited = None;
    assert!(waiting.machine_is_quiet());
}

#[test]
fn failed_ios_are_said_in_their_row() {
    let mut failed = outcome();
    failed.cells[2].errors = 7;
    assert!(text(&failed, Style::PLAIN).contains("7 I/Os failed\n"));
    assert_eq!(failed.errors(), 7);
}

#[test]
fn programs_find_the_keys_they_rely_on() {
    let json = json(&outcome());
    for key in ["read_mib_s", "write_mib_s", "mixed_mib_s"] {
        let optimum = json["optimum"][key].as_f64().unwrap();
        assert!((432.0..433.0).contains(&optimum), "{key} {optimum}");
    }
    let cell = &json["cells"][1];
    assert_eq!(
        (&cell["policy"], &cell["op"]),
        (&"round-robin".into(), &"read".into())
    );
    assert_eq!(
        (&cell["mib_s"], &cell["iops"]),
        (&264.0.into(), &(264.0 * 256.0).into())
    );
    assert_eq!(
        (&cell["p50_us"], &cell["p99_us"]),
        (&100.0.into(), &30_000.0.into())
    );
    assert_eq!(
        (&cell["p999_us"], &cell["errors"]),
        (&30_500.0.into(), &0.into())
    );
    let share = |path: &str| cell["share"][path].as_f64().unwrap();
    assert!((share("fast") + share("slow") - 1.0).abs() < 1e-9);
    assert_eq!(json["alone"].as_array().unwrap().len(), 8);
    assert_eq!(cell["rounds_mib_s"].as_array().unwrap().len(), 2);
    assert_eq!(json["machine_is_quiet"], true);
}

#[test]
fn explanations_follow_the_measured_figures() {
    let mut other = outcome();
    let lines = explanations(&other);
    let [first, numa, round_robin, queue_depth, _, optimum] = &lines[..] else {
        panic!("the first, one per policy that read, and the optimum: {lines:?}");
    };
    assert!(
        first.starts_with("read: queue-depth carried most, 366 MiB/s; weighted-latency 350"),
        "{first}"
    );
    assert!(first.ends_with("ahead in 2 of 2 rounds."), "{first}");
    assert!(numa.contains("nothing on fast"), "{numa}");
    assert!(numa.contains("300 MiB/s are unused: 6 in flight"), "{numa}");
    assert!(
        round_robin.contains("168 MiB/s are unused, though 6"),
        "{round_robin}"
    );
    assert!(
        queue_depth.contains("the other 506 would carry 66 MiB/s on slow"),
        "{queue_depth}"
    );
    assert!(optimum.contains("the other 1018 on slow"), "{optimum}");
    other.cells[3] = cell(Policy::WEIGHTED_LATENCY, Op::Read, 432.0, 6.0);
    let lines = explanations(&other);
    assert!(
        lines[0].contains("weighted-latency carried most"),
        "{}",
        lines[0]
    );
    assert!(lines[4].ends_with("Fast is at its cap."), "{}", lines[4]);
}
