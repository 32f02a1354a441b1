use super::*;
use serde_json::json;

fn volume() -> Value {
    let group = json!({
        "weight": 100, "smoothed_ns": 29_995_000, "score": 123_456_789, "selections": 999_949,
        "samples": 18_446_744, "ignored": 1000,
    });
    let latency = json!({
        "read": {"sum_ns": 6_000_000, "buckets": [[1_048_576, 90], [33_554_432, 10]]},
    });
    let client = json!({
        "client": "process 4711 of user 1000", "core": 1, "connections": 1,
        "for_ns": 7_000_000_000_000_u64, "requests": 1_234_567,
        "bytes_read": 1_048_576, "bytes_written": 0, "inflight": 8, "errors": 0,
    });
    let probation = json!({
        "why": "errors", "for_ns": 2_000_000_000_u64,
        "relapse_left_ns": 60_000_000_000_u64, "cores": 2, "times": 3,
        "probes_good": 4, "probes_bad": 5, "error_share": 0.02,
    });
    let path = json!({
        "path": 7, "uri": "nvme-tcp://127.0.0.1:4420/nqn.2026-01.org.braid:target",
        "state": "connecting", "hindrance": "can't connect: connection refused",
        "ana_state": "non-optimized", "cntlid": 65_519,
        "live_ns": null, "connects": 3, "losses": 2,
        "errors_by_class": {"path": 9, "timeout": 3},
        "latency": latency,
        "groups": {"read": group, "write": group, "other": group},
        "inflight": 1024, "inflight_age_ns": 9_200_000_000_u64,
        "reads": 123_456_789, "writes": 1, "others": 0,
        "bytes_read": 1_099_511_627_775_u64, "bytes_written": 4096, "errors": 12,
        "waited_full": 3, "timed_out": 2, "aborted": 1, "copies": 5,
        "probation": probation,
    });
    json!({
        "name": "v0", "state": "degraded", "policy": "weighted-latency", "ewma_shift": 3,
        "weight_timeout_ns": 15_000_000_000_u64, "hedge": "auto", "hedging": false,
        "paths": [path],
        "exports": [{
            "uri": "nbd+unix:///?socket=/run/braid/v0.sock", "read_only": true, "clients": 1,
            "requests": 1_234_567, "errors": 0, "waited_buffer": 2, "merged": 7,
            "connected": [client],
        }],
        "waiting": {
            "held": 3, "held_age_ns": 4_200_000_000_u64, "held_reason": "bound",
            "held_until_in_ns": 10_800_000_000_u64, "unclean_stop": null, "behind": 1, "queued": 2,
            "queued_age_ns": 1_000_000, "delayed": 4, "flushes": 1,
        },
        "failover": {
            "write_failover": "immediate", "risk": "it is risky", "moved_total": 12,
            "held_total": 5, "held_proved_total": 1, "held_bounded_total": 1,
            "held_unclean_stop_total": 1,
            "held_ns_max": 15_000_000_000_u64, "flushes_failed": 1,
            "flush_failed": {"ago_ns": 120_000_000_000_u64, "path": "mem:1GiB", "why": "lost"},
        },
    })
}

const SHOWN: &str = "\
v0: degraded, weighted-latency
     knobs: ewma_shift 3, weight_timeout 15.0 s, hedge auto (off: the policy
            does not predict)
  7  nvme-tcp://127.0.0.1:4420/nqn.2026-01.org.braid:target
     connecting, non-optimized, controller 65519, lost 2 times, 1,024 in flight
     (the oldest for 9.20 s), 12 failed (path 9, timeout 3), 3 waited for room,
     2 timed out, 1 aborted, 5 second copies
     unused: can't connect: connection refused
     probation: for errors, since 2.00 s, on 2 cores, 60.0 s more at least, for
                what relapses cost, 3 so far, 4 good probes, 5 bad probes, 2.00
                % of its I/O failed
           I/Os     bytes     mean     p50      p99
   read   123 M  1.00 TiB  60.0 µs  990 µs  33.1 ms
   write      1  4.00 KiB        -       -        -
   policy  chosen  weight  smoothed  score  samples  ignored
   read    1.00 M     100   30.0 ms  123 M   18.4 M     1000
   write   1.00 M     100   30.0 ms  123 M   18.4 M     1000
   other   1.00 M     100   30.0 ms  123 M   18.4 M     1000
  nbd+unix:///?socket=/run/braid/v0.sock (read-only)
     1 client, 1,234,567 requests, 2 waited for memory, 7 with parts of blocks
     process 4711 of user 1000: for 116 min, 1,234,567 requests, 1.00 MiB read,
     8 in flight
     waiting: 3 writes held, the oldest for 4.20 s: the lost controller may yet
              execute it, for 10.8 s more at most; 1 write behind an overlapping
              one; 2 I/Os for a usable path, the oldest for 1.00 ms; 4 I/Os for
              a busy path; 1 flush for a lost controller with unflushed writes
     so far: 12 I/Os moved to another path; 5 writes held (immediate; 1 until
             proof, 1 until the bound, 1 of them for what an earlier engine
             left), the longest for 15.0 s; flushes failed: 1, the last 120 s
             ago: mem:1GiB lost
     risk: it is risky
";

/// A row for each core, group and size that had I/O, within 80 columns.
#[test]
fn a9_weighted_latency_is_shown_by_core_and_size() {
    let bucket = |below: Value, weight: u64| {
        json!({
            "below": below, "weight": weight, "credit": 64, "score": 123_456_789,
            "smoothed_ns": 29_995_000, "selections": 999_949, "samples": 18_446_744, "ignored": 9,
        })
    };
    let mut of = volume();
    let groups = &mut of["paths"][0]["groups"];
    groups["read"]["cores"] = json!([{
        "core": 127, "buckets": [bucket(32768.into(), 64), bucket(Value::Null, 1)],
    }]);
    let mut plain = bucket(Value::Null, 48);
    plain.as_object_mut().unwrap().remove("below");
    plain["core"] = 3.into();
    groups["write"]["cores"] = json!([plain, {"core": 4, "weight": 0, "selections": 0}]);
    let mut text = String::new();
    show(&mut text, &json!({"volumes": [of]}), Style::PLAIN).unwrap();
    let rows = text.split_once("   core").unwrap().1;
    let rows: Vec<Vec<&str>> = rows
        .lines()
        .skip(1)
        .take(3)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        rows[0][..6],
        ["127", "read", "<32K", "1.00", "M", "64"],
        "{text}"
    );
    assert_eq!(
        rows[1][..6],
        ["127", "read", "1M+", "1.00", "M", "1"],
        "{text}"
    );
    assert_eq!(rows[2][..5], ["3", "write", "1.00", "M", "48"], "{text}");
    assert!(!text.contains("4 write"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}

#[test]
fn what_waits_and_why_is_said_within_80_columns() {
    let mut text = String::new();
    show(&mut text, &json!({"volumes": [volume()]}), Style::PLAIN).unwrap();
    let wide = text.lines().find(|line| line.chars().count() > 80);
    assert_eq!(wide, None);
    assert_eq!(text, SHOWN);
}

#[test]
fn while_no_hold_has_ended_none_is_the_longest() {
    let mut one = volume();
    one["failover"]["held_total"] = json!(1);
    for count in ["held_proved_total", "held_bounded_total", "held_ns_max"] {
        one["failover"][count] = json!(0);
    }
    let mut text = String::new();
    show(&mut text, &json!({"volumes": [one]}), Style::PLAIN).unwrap();
    assert!(text.contains("1 write held (immediate; 0 until"), "{text}");
    assert!(!text.contains("longest"), "{text}");
}

#[test]
fn a_quiet_volume_says_so_in_few_lines() {
    let mut quiet = volume();
    quiet["waiting"] = json!({"held": 0, "behind": 0, "queued": 0, "delayed": 0, "flushes": 0});
    quiet["failover"] = json!({
        "write_failover": "fenced", "risk": null, "moved_total": 0, "held_total": 0,
        "flushes_failed": 0, "flush_failed": null,
    });
    let mut text = String::new();
    show(&mut text, &json!({"volumes": [quiet]}), Style::PLAIN).unwrap();
    let end = "     waiting: nothing\n     so far: 0 I/Os moved to another path; \
               0 writes held (fenced)\n";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn every_reason_has_its_words() {
    for (word, part) in [
        ("resetting", "being reset, for 1.00 s more"),
        ("closing", "being closed, for"),
        ("bound", "may yet execute it, for"),
        ("quiescing", "was reset, and its disks"),
        ("unbounded", "only proof"),
        ("unclean-stop", "before this one left under way"),
    ] {
        let text = reason(&word.into(), Some(1_000_000_000));
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn what_waits_for_an_earlier_engine_has_a_count_an_age_and_an_end() {
    let mut one = volume();
    let mut shown = |unclean_stop: Value| {
        one["waiting"]["unclean_stop"] = unclean_stop;
        let mut text = String::new();
        show(&mut text, &json!({"volumes": [one]}), Style::PLAIN).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let text = shown(json!({
        "held": 2, "held_age_ns": 1_500_000_000_u64, "until_in_ns": 9_000_000_000_u64,
    }));
    let part = "for what the engine before this one left under way, writes wait for 9.00 s more: \
                2 writes, the oldest for 1.50 s;";
    assert!(text.contains(part), "{text}");
    let text = shown(json!({"held": 0, "held_age_ns": null, "until_in_ns": null}));
    assert!(text.contains("wait without a bound: 0 writes;"), "{text}");
}

#[test]
fn t09_that_a_mirror_holds_changes_is_shown_and_for_how_long() {
    let shown = |held_ns: Value| {
        let mirror = json!({
            "name": "m0", "kind": "mirror", "state": "ok", "policy": "round-robin",
            "held_ns": held_ns, "unalike": 0, "legs": [],
        });
        let mut text = String::new();
        legs::show(&mut text, &mirror, None, Style::PLAIN).unwrap();
        text
    };
    let text = shown(json!(11_500_000_000_u64));
    assert!(text.contains("changes wait 12 s more"), "{text}");
    assert!(!shown(Value::Null).contains("changes wait"));
}

/// Volumes `v0` and `m0`, a leg of the latter, and a discovery controller.
fn two_volumes() -> Value {
    json!({
        "volumes": [
            {"name": "v0", "leg_of": null},
            {"name": "m0/a", "leg_of": "m0"},
            {"name": "m0", "leg_of": null},
        ],
        "discovery": [{"uri": "nvme-tcp://127.0.0.1:8009"}],
    })
}

fn names(value: &Value) -> Vec<&str> {
    items(&value["volumes"])
        .map(|it| word(&it["name"]))
        .collect()
}

#[test]
fn one_volume_is_kept_with_its_legs_alone() {
    let kept = |name: &str| {
        let mut value = two_volumes();
        keep_only(&mut value, &[name.to_owned()]).unwrap();
        assert_eq!(value["discovery"], json!([]));
        names(&value).join(" ")
    };
    assert_eq!(kept("v0"), "v0");
    assert_eq!(kept("m0"), "m0/a m0");
    assert_eq!(kept("m0/a"), "m0/a");
    assert_eq!(kept("m0/0"), "m0/a");
    let mut value = two_volumes();
    keep_only(&mut value, &["m0/0".to_owned(), "v0".to_owned()]).unwrap();
    assert_eq!(names(&value).join(" "), "v0 m0/a");
}

#[test]
fn unknown_volume_is_named_with_all_others() {
    let mut value = two_volumes();
    let why = keep_only(&mut value, &["v1".to_owned()]).unwrap_err();
    assert_eq!(why, "there is no volume \"v1\", only v0, m0/a, m0");
    assert_eq!(value, two_volumes());
    assert!(keep_only(&mut value, &["m0/1".to_owned()]).is_err());
    let why = keep_only(&mut json!({"volumes": []}), &["v1".to_owned()]).unwrap_err();
    assert_eq!(why, "there is no volume \"v1\", nor any other");
}

/// Of an interval: per second, and nothing that is 0.
#[test]
fn interval_is_shown_per_second() {
    let mut of = json!({"volumes": [volume()], "uptime_ns": 200_000_000_000_u64});
    of["elapsed_ns"] = 2_000_000_000_u64.into();
    for group in ["read", "write", "other"] {
        of["volumes"][0]["paths"][0]["groups"][group] = json!({"weight": 0, "selections": 9});
    }
    let mut text = String::new();
    show(&mut text, &of, Style::PLAIN).unwrap();
    let head = "engine: up for 3 min; figures of the last 2.00 s\nv0: degraded";
    assert!(text.starts_with(head), "{text}");
    let table = "         I/Os/s     bytes/s     mean     p50      p99\n   \
                 read   61.7 M  512 GiB  60.0 µs  990 µs  33.1 ms\n   \
                 write    0.50  2.00 KiB        -       -        -\n  nbd";
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(&text).contains(&words(table)), "{text}");
}

#[test]
fn times_are_said_in_one_unit() {
    let s = 1_000_000_000;
    for (ns, said) in [
        (0, "0 s"),
        (119 * s, "119 s"),
        (120 * s, "2 min"),
        (7200 * s, "2 h"),
        (48 * 3600 * s, "2 days"),
    ] {
        assert_eq!(lasting(ns), said);
    }
}
