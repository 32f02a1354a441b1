//! How cores waited, for programs and for people.
use runtime::PollStats;
use serde_json::{Value, json};
use terminal::answer::number;
use terminal::units::{format_count, format_ns};

/// Of one core.
pub fn json(core: usize, stats: &PollStats) -> Value {
    json!({
        "core": core,
        "polled": stats.polled,
        "found": stats.found,
        "slept": stats.slept,
        "polled_ns": stats.polled_ns,
        "yields": stats.yields,
        "wakeup_ns": (stats.cost_ns > 0).then_some(stats.cost_ns),
    })
}

/// As a line.
pub fn words(core: &Value) -> String {
    let count = |key: &str| format_count(number(&core[key]));
    let mut words = format!("slept {} times", count("slept"));
    if let Some(wakeup_ns) = core["wakeup_ns"].as_u64() {
        words.push_str(&format!(
            ", polled {} times and for {}, {} found something; a wake-up costs {}",
            count("polled"),
            format_ns(number(&core["polled_ns"]) as f64),
            count("found"),
            format_ns(wakeup_ns as f64),
        ));
    }
    if number(&core["yields"]) > 0 {
        words.push_str(&format!(
            "; stopped polling {} times for another thread on its CPU",
            count("yields")
        ));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_only_sleeps_has_no_cost() {
        let mut stats = PollStats {
            slept: 1200,
            ..PollStats::default()
        };
        assert_eq!(words(&json(0, &stats)), "slept 1,200 times");
        stats = PollStats {
            polled: 2000,
            found: 1990,
            polled_ns: 3_000_000,
            yields: 2,
            cost_ns: 25_000,
            ..stats
        };
        let shown = words(&json(0, &stats));
        assert_eq!(
            shown,
            "slept 1,200 times, polled 2,000 times and for 3.00 ms, 1,990 found something; a \
             wake-up costs 25.0 µs; stopped polling 2 times for another thread on its CPU"
        );
    }
}
