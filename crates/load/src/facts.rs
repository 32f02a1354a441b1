//! Facts about a finished load that all verbs show.
use crate::stats::{OpStats, Stats};
use crate::words::Words;
use crate::worker::Finished;
use serde_json::{Map, Value, json};
use terminal::units::format_count;

impl Finished {
    /// Why the load has failed all the same, if it has: a lost path, errors, data that was wrong,
    /// or an early end of a check.
    pub fn failure(&self, words: &Words) -> Option<String> {
        if let Some(why) = &self.failed {
            return Some(why.clone());
        }
        let Some(first) = self.stats.failures.first() else {
            return words.unverified(self.interrupted);
        };
        Some(match self.stats.errors {
            1 => first.clone(),
            n => format!("{} errors, of which the first: {first}", format_count(n)),
        })
    }

    /// So many of something per I/O.
    pub fn per_io(&self, count: u64) -> f64 {
        count as f64 / self.totals.ios.max(1) as f64
    }

    /// Words and figures of the whole load in JSON results.
    pub fn json(&self, words: &Words, cores: usize) -> Map<String, Value> {
        let stats = &self.stats;
        let mut facts = stats.op_json(&stats.total());
        facts.extend(words.json(cores));
        let more = [
            ("errors", json!(stats.errors)),
            ("unanswered", json!(stats.unanswered)),
            ("error", json!(self.failure(words))),
            ("failures", json!(stats.failures)),
            ("verified_bytes", json!(stats.verified_bytes)),
            ("seconds", json!(stats.elapsed_ns as f64 / 1e9)),
            ("interrupted", json!(self.interrupted)),
        ];
        facts.extend(more.map(|(key, value)| (key.to_owned(), value)));
        facts
    }
}

impl Stats {
    /// Rates, and latencies in µs, of an operation in JSON results.
    pub fn op_json(&self, op: &OpStats) -> Map<String, Value> {
        let us = |quantile| op.quantile_ns(quantile) / 1e3;
        let figures = [
            ("iops", self.iops(op)),
            ("mib_s", self.mib_s(op)),
            ("mean_us", op.mean_ns() / 1e3),
            ("p50_us", us(0.5)),
            ("p99_us", us(0.99)),
            ("p999_us", us(0.999)),
            ("max_us", op.latency.max() as f64 / 1e3),
        ];
        let figures = figures.into_iter();
        figures
            .map(|(key, value)| (key.to_owned(), json!(value)))
            .collect()
    }
}
