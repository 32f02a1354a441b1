//! `braid policy` on a running engine (rows A1, A13, B5).
use super::Engine;

/// Each is set, shown in brackets among all, and kept when a wrong one is refused.
pub fn every_one_can_be_set(engine: &Engine) {
    for policy in [
        "round-robin:262144",
        "weighted-latency:per-cpu+buckets",
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
        assert_eq!(shown.split_whitespace().count(), 11, "{shown}");
    }
    let refused = engine.ask(&["policy", "set", "v0", "devid:2"]);
    assert_ne!(refused.status.code(), Some(0));
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(why.contains("no such path"), "{why}");
    let kept = engine.json(&["policy", "show", "v0"]);
    assert_eq!(kept["policy"], "historical-service-time");
    engine.json(&["policy", "set", "v0", "numa"]);
}
