//! The difference of two answers of `stat`: counters become differences, all else is as it is now.
use crate::run::latency;
use engine::LatencyHistogram;
use serde_json::Value;
use terminal::answer::{items, number};

/// Counters of paths, legs, exports and clients.
const COUNTERS: [&str; 22] = [
    "reads",
    "writes",
    "others",
    "flushes",
    "bytes_read",
    "bytes_written",
    "errors",
    "device_errors",
    "damaged_in",
    "damaged_out",
    "timed_out",
    "aborted",
    "waited_full",
    "copies",
    "connects",
    "losses",
    "repaired",
    "rescued",
    "requests",
    "waited_buffer",
    "merged",
    "read_errors",
];
/// The same of a policy's figures of a path and group.
const OF_GROUPS: [&str; 3] = ["selections", "samples", "ignored"];
/// The same of mirrors and their paths that are named by what they count.
const BY_CLASS: &str = "errors_by_class";

/// Makes counters of `now` those since `before`, and sets `elapsed_ns` to the time between. After a
/// restart of the engine, and of an older one, which does not say for how long it runs, `now` is
/// left as it is.
pub fn subtract(now: &mut Value, before: &Value) {
    let uptimes = now["uptime_ns"].as_u64().zip(before["uptime_ns"].as_u64());
    let elapsed = uptimes.and_then(|(now, before)| now.checked_sub(before));
    let Some(elapsed_ns) = elapsed.filter(|it| *it > 0) else {
        return;
    };
    now["elapsed_ns"] = elapsed_ns.into();
    each(now, before, "volumes", &["name"], |volume, before| {
        for list in ["paths", "legs"] {
            each(volume, before, list, &["uri"], of_path);
        }
        each(volume, before, "exports", &["uri"], |export, before| {
            less(export, before, &COUNTERS);
            each(
                export,
                before,
                "connected",
                &["client", "core"],
                |client, before| {
                    // One that came since has no earlier figures, whatever its name.
                    if client["for_ns"].as_u64() >= before["for_ns"].as_u64() {
                        less(client, before, &COUNTERS);
                    }
                },
            );
        });
    });
}

fn of_path(path: &mut Value, before: &Value) {
    less(path, before, &COUNTERS);
    for group in latency::GROUPS {
        less(
            &mut path["groups"][group],
            &before["groups"][group],
            &OF_GROUPS,
        );
    }
    if let Some(classes) = path[BY_CLASS].as_object_mut() {
        for (class, count) in classes.iter_mut() {
            let was = number(&before[BY_CLASS][class.as_str()]);
            *count = number(count).saturating_sub(was).into();
        }
        classes.retain(|_, count| number(count) > 0);
    }
    if path["latency"].is_object() {
        let was = latency::all_of_json(&before["latency"]);
        let is = latency::all_of_json(&path["latency"]);
        let since: [LatencyHistogram; 3] = std::array::from_fn(|at| is[at].since(&was[at]));
        path["latency"] = latency::json(&since);
    }
}

/// Calls `change` for each item of a list that was there before, by its keys.
fn each(
    now: &mut Value,
    before: &Value,
    list: &str,
    keys: &[&str],
    change: impl Fn(&mut Value, &Value),
) {
    for it in now[list].as_array_mut().into_iter().flatten() {
        let is_it = |was: &&Value| keys.iter().all(|key| was[*key] == it[*key]);
        if let Some(was) = items(&before[list]).find(is_it) {
            change(it, was);
        }
    }
}

/// A counter that is less than it was began anew.
fn less(now: &mut Value, before: &Value, keys: &[&str]) {
    for key in keys {
        if let Some(is) = now.get(*key).and_then(Value::as_u64) {
            let was = number(&before[*key]);
            now[*key] = is.checked_sub(was).unwrap_or(is).into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(uptime_s: u64, reads: u64, latencies: &[u64]) -> Value {
        let mut all: [LatencyHistogram; 3] = Default::default();
        latencies.iter().for_each(|ns| all[0].record(*ns));
        json!({
            "uptime_ns": uptime_s * 1_000_000_000,
            "volumes": [{
                "name": "v0",
                "paths": [{
                    "uri": "mem:1MiB", "inflight": 3, "reads": reads,
                    "latency": latency::json(&all),
                    "errors_by_class": {"path": 2, "media": reads},
                    "groups": {"read": {"weight": 7, "samples": reads}},
                }],
                "exports": [{
                    "uri": "nbd://h", "requests": reads,
                    "connected": [
                        {"client": "a", "core": 0, "for_ns": uptime_s, "requests": reads},
                    ],
                }],
            }],
        })
    }

    #[test]
    fn counters_are_differences_and_states_are_not() {
        let (mut now, before) = (answer(12, 50, &[1000, 9000]), answer(10, 20, &[1000]));
        subtract(&mut now, &before);
        let path = &now["volumes"][0]["paths"][0];
        assert_eq!(now["elapsed_ns"], 2_000_000_000_u64);
        assert_eq!((&path["reads"], &path["inflight"]), (&json!(30), &json!(3)));
        assert_eq!(path["latency"]["read"]["count"], 1);
        assert_eq!(path["latency"]["read"]["sum_ns"], 9000);
        assert_eq!(path["errors_by_class"], json!({"media": 30}));
        assert_eq!(path["groups"]["read"], json!({"weight": 7, "samples": 30}));
        let export = &now["volumes"][0]["exports"][0];
        assert_eq!(export["requests"], 30);
        assert_eq!(export["connected"][0]["requests"], 30);
    }

    #[test]
    fn new_things_count_from_their_beginning() {
        let (mut now, mut before) = (answer(12, 50, &[1000]), answer(10, 80, &[]));
        subtract(&mut now, &before);
        assert_eq!(now["volumes"][0]["paths"][0]["reads"], 50, "it began anew");
        before["volumes"] = json!([]);
        let mut now = answer(12, 50, &[1000]);
        subtract(&mut now, &before);
        assert_eq!(now["volumes"][0]["exports"][0]["requests"], 50);
        let mut restarted = answer(1, 50, &[1000]);
        subtract(&mut restarted, &answer(10, 20, &[]));
        assert_eq!(
            restarted,
            answer(1, 50, &[1000]),
            "no difference of two engines"
        );
    }
}
