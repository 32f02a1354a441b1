//! The result of a bench, for people and for programs.
use crate::facts::{Extras, joined, latency, plural};
use crate::stats::PathTally;
use crate::words::Words;
use crate::worker::Finished;
use paths::hedges;
use policy::Policy;
use runtime::ReactorStats;
use serde_json::{Map, Value, json};
use terminal::output::Style;
use terminal::table::Table;
use terminal::units::{format_count, significant};

/// Everything there is to show.
pub struct BenchResult<'a> {
    /// The load as given on the command line.
    pub words: &'a Words,
    /// The policy.
    pub policy: Policy,
    /// The paths.
    pub uris: &'a [String],
    /// The measurements.
    pub finished: Finished,
    /// Counters of the reactors, if they ended in order.
    pub reactor: Option<ReactorStats>,
}

impl BenchResult<'_> {
    /// Why the program has failed, if it has.
    pub fn failure(&self) -> Option<String> {
        self.finished.failure(self.words)
    }

    /// The keys that programs rely on, and more.
    pub fn json(&self, cores: usize) -> Value {
        let stats = &self.finished.stats;
        let mut shares = Map::new();
        for (uri, _, share) in self.paths() {
            // One URI may be given twice: two connections to one place.
            let before = shares.get(uri).and_then(Value::as_f64).unwrap_or(0.0);
            shares.insert(uri.clone(), json!(before + share));
        }
        let own = json!({
            "share": shares, "policy": self.policy.to_string(), "paths": self.paths_json(),
            "hedges": self.hedges(),
        });
        let mut result = joined([self.finished.json(self.words, cores), own]);
        if self.words.op() == "mixed" {
            result["read"] = stats.op_json(&stats.ops[0]);
            result["write"] = stats.op_json(&stats.ops[1]);
        }
        if let Some(reactor) = &self.reactor {
            result["system_calls_per_io"] = json!(self.finished.per_io(reactor.enters));
            result["wakeups_per_io"] = json!(self.finished.per_io(reactor.wakeups));
        }
        result
    }

    /// The tables.
    pub fn text(&self, cores: usize, style: Style) -> anyhow::Result<String> {
        let (paths, policy) = (self.uris.len(), self.policy);
        let mut counts = String::new();
        if let Some(reactor) = &self.reactor {
            let [calls, wakeups] =
                [reactor.enters, reactor.wakeups].map(|count| self.finished.per_io(count));
            counts = format!(", system calls per I/O {calls:.3}, wake-ups per I/O {wakeups:.3}");
        }
        if let Some(copies) = hedges::words(&self.hedges()) {
            counts.push_str(&format!("\nsecond copies: {copies}"));
        }
        let extras = Extras {
            unit: "core",
            over: format!(" over {paths} {}, {policy}", plural(paths, "path")),
            tables: self.paths_table().render(style, |_| String::new()) + "\n",
            counts,
        };
        self.finished.text(self.words, cores, &extras, style)
    }

    fn paths_table(&self) -> Table {
        let stats = &self.finished.stats;
        let heads = ["path", "share", "IOPS", "MiB/s", "mean", "errors", "waited"];
        let mut table = Table::new(1, &heads);
        for (uri, path, share) in self.paths() {
            table.row(vec![
                uri.clone(),
                format!("{:.1} %", share * 100.0),
                format_count(stats.rate(path.ios).round() as u64),
                significant(stats.mib_s(path.bytes)),
                latency(path.ios, path.mean_ns()),
                format_count(path.errors),
                format_count(path.waited_full),
            ]);
        }
        table
    }

    /// Each path with its share of the I/Os.
    fn paths(&self) -> impl Iterator<Item = (&String, &PathTally, f64)> {
        let stats = &self.finished.stats;
        let all = self.uris.iter().zip(&stats.paths).zip(stats.shares());
        all.map(|((uri, path), share)| (uri, path, share))
    }

    fn hedges(&self) -> Value {
        let stats = &self.finished.stats;
        hedges::json(&stats.hedges, stats.ops[0].ios)
    }

    fn paths_json(&self) -> Value {
        let stats = &self.finished.stats;
        let row = |(uri, path, share): (_, &PathTally, _)| {
            json!({
                "uri": uri, "share": share,
                "iops": stats.rate(path.ios), "mib_s": stats.mib_s(path.bytes),
                "mean_us": path.mean_ns() / 1e3,
                "errors": path.errors, "waited_full": path.waited_full,
            })
        };
        self.paths().map(row).collect()
    }
}

#[cfg(test)]
mod tests;
