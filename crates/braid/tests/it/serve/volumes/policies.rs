//! `braid policy` on a running engine (rows A1, A13, B5).
use super::Engine;

/// Each is set, shown in brackets among all beside the values of the others, and kept when a wrong
/// one is refused.
pub fn every_one_can_be_set(engine: &Engine) {
    for policy in [
        "round-robin:262144",
        "round-robin-latency:196608",
        "weighted-latency:per-cpu",
        "weighted-latency:per-numa",
        "weighted-latency:per-numa+buckets",
        "pid",
        "latency",
        "devid:1",
        "service-time",
        "historical-service-time",
    ] {
        assert_eq!(
            engine.json(&["policy", "set", "v0", policy])["policy"],
            policy
        );
        let shown = engine.ask(&["policy", "show", "v0"]);
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.contains(&format!("[{policy}]")), "{shown}");
        assert!(shown.contains("round-robin:262144"), "{shown}");
        assert_eq!(shown.split_whitespace().count(), 12, "{shown}");
    }
    let refused = engine.ask(&["policy", "set", "v0", "devid:2"]);
    assert_ne!(refused.status.code(), Some(0));
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(why.contains("no such path"), "{why}");
    let shown = engine.ask(&["policy", "show", "v0"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    let values = [
        "round-robin-latency:196608",
        "weighted-latency:per-numa+buckets",
        "devid:1",
    ];
    assert!(values.iter().all(|it| shown.contains(it)), "{shown}");
    let kept = engine.json(&["policy", "show", "v0"]);
    assert_eq!(kept["policy"], "historical-service-time");
    engine.json(&["policy", "set", "v0", "numa"]);
}
