use super::*;
use serde_json::json;

fn answer() -> Value {
    let slow = json!({
        "alarm": "slow", "since_s": 1_796_000_000_u64, "for_ns": 61_000_000_000_u64,
        "why": "p90 of reads is 104 ms, was 1.20 ms; other paths 1.30 ms", "ended_s": null,
    });
    let over = json!({
        "alarm": "flapping", "since_s": 1_796_000_000_u64, "for_ns": 61_000_000_000_u64,
        "why": "lost 5 times within 60 s", "ended_s": 1_796_000_061_u64,
    });
    json!({"volumes": [
        {"name": "v0", "state": "ok", "actual": "degraded", "why": null, "paths": [
            {"path": 0, "name": "a", "uri": "mem:1GiB", "why": null, "damage": null,
             "alarms": [slow], "ended": [over],
             "maintenance": {"since_s": 1_796_000_000_u64, "until_s": null, "note": "new cable"}},
            {"path": 1, "name": "b", "uri": "nvme-tcp://10.0.0.1:4420/nqn.2026-01.org.example:v0",
             "why": "it is lost: connection refused by the target's host, which answers pings",
             "damage": null, "maintenance": null},
        ], "legs": [], "risk": null, "maintenance": null},
        {"name": "v1", "state": "down", "actual": "down", "why": "no leg is in sync",
         "paths": [], "maintenance": null, "risk": null, "legs": [
            {"name": "x", "uri": "file:/srv/a", "state": "rebuilding", "why": "it was away",
             "damage": null, "maintenance": null},
            {"name": "y", "uri": "file:/srv/b", "state": "missing", "why": null, "damage": null,
             "maintenance": null},
        ]},
    ]})
}

/// `<CODE>` begins a colour, `</>` ends it.
const SHOWN: &str = "\
v0: <32>ok</> (<1;33>degraded</> but for maintenance)
  0 a mem:1GiB: <1;33>slow</> since 2026-11-30 00:53:20 UTC (61.0 s): p90 of reads is 104
  ms, was 1.20 ms; other paths 1.30 ms
  note: 0 a mem:1GiB: was flapping for 61.0 s until 2026-11-30 00:54:21 UTC:
  lost 5 times within 60 s
  note: 0 a mem:1GiB: under maintenance since 2026-11-30 00:53:20 UTC, until it
  is switched off: new cable
  1 b nvme-tcp://10.0.0.1:4420/nqn.2026-01.org.example:v0: it is lost:
  connection refused by the target's host, which answers pings
v1: <1;31>down</>
  no leg is in sync
  x file:/srv/a: <1;33>rebuilding</>: it was away
  y file:/srv/b: <1;31>missing</>
";

fn shown(style: Style) -> String {
    let mut text = String::new();
    show(&mut text, &answer(), style).unwrap();
    text
}

#[test]
fn states_are_coloured_in_80_columns() {
    let colour = Style {
        colour: true,
        unicode: true,
    };
    let codes = [
        ("<1;33>", "\x1b[1;33m"),
        ("<1;31>", "\x1b[1;31m"),
        ("<32>", "\x1b[32m"),
    ];
    let ends = [("</>", "\x1b[0m")];
    let codes: Vec<_> = codes.into_iter().chain(ends).collect();
    let with = |shown: &str, code: fn(&'static str) -> &'static str| {
        let mut text = shown.to_owned();
        for (mark, escape) in &codes {
            text = text.replace(mark, code(escape));
        }
        text
    };
    assert_eq!(shown(colour), with(SHOWN, |escape| escape));
    let plain = shown(Style::PLAIN);
    assert_eq!(plain, with(SHOWN, |_| ""));
    let wide = plain.lines().find(|line| line.chars().count() > 80);
    assert_eq!(wide, None);
}
