//! Histograms of latencies in the JSON of `stat`: by read, write and other.
use engine::{LATENCY_BUCKETS, LatencyHistogram, latency_below_ns};
use serde_json::{Map, Value, json};
use terminal::answer::{items, number};

/// Names of the groups in reports, in the engine's order.
pub const GROUPS: [&str; 3] = ["read", "write", "other"];

/// As JSON; of `buckets` those that have any.
pub fn json(groups: &[LatencyHistogram; 3]) -> Value {
    let of = |it: &LatencyHistogram| {
        let buckets = it.buckets.iter().enumerate();
        let buckets = buckets.filter(|(_, count)| **count > 0);
        let buckets = buckets.map(|(at, count)| json!([latency_below_ns(at), count]));
        json!({
            "count": it.count(),
            "sum_ns": it.sum_ns,
            "p50_ns": it.quantile_ns(500),
            "p99_ns": it.quantile_ns(990),
            "buckets": buckets.collect::<Vec<_>>(),
        })
    };
    let all = GROUPS.iter().zip(groups);
    let all = all.map(|(name, it)| ((*name).to_owned(), of(it)));
    Value::Object(all.collect::<Map<_, _>>())
}

/// One group as an engine sent it; an older one sends none.
pub fn of_json(value: &Value) -> LatencyHistogram {
    let mut all = LatencyHistogram {
        sum_ns: number(&value["sum_ns"]),
        ..LatencyHistogram::default()
    };
    for bucket in items(&value["buckets"]) {
        let below_ns = bucket[0].as_u64();
        let at = (0..LATENCY_BUCKETS).find(|at| latency_below_ns(*at) == below_ns);
        if let Some(at) = at {
            all.buckets[at] = number(&bucket[1]);
        }
    }
    all
}

/// All groups, as [`of_json`].
pub fn all_of_json(value: &Value) -> [LatencyHistogram; 3] {
    GROUPS.map(|group| of_json(&value[group]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_return_from_json() {
        let mut all: [LatencyHistogram; 3] = Default::default();
        for (group, ns) in [(0, 300), (0, 5_000_000), (2, u64::MAX >> 1)] {
            all[group].record(ns);
        }
        assert_eq!(all_of_json(&json(&all)), all);
        let none: [LatencyHistogram; 3] = Default::default();
        assert_eq!(all_of_json(&Value::Null), none, "of an older engine");
    }

    #[test]
    fn only_buckets_with_any_are_shown() {
        let mut all: [LatencyHistogram; 3] = Default::default();
        [0, 300, 5_000_000, u64::MAX >> 1]
            .into_iter()
            .for_each(|ns| all[1].record(ns));
        let value = json(&all);
        let (read, write) = (&value["read"], &value["write"]);
        assert_eq!((&read["count"], &read["p50_ns"]), (&json!(0), &Value::Null));
        assert_eq!(write["count"], 4);
        let half_ns = latency_below_ns(0).unwrap() / 2 + 1;
        assert!(write["p50_ns"].as_u64().unwrap() >= half_ns);
        let last = write["buckets"].as_array().unwrap().last().unwrap();
        assert_eq!(last, &json!([null, 1]), "the last bucket has no end");
    }
}
