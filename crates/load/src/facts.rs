//! Result of a load, as all verbs show it: words and figures for programs, tables for people.
use crate::stats::{OpStats, Stats};
use crate::words::Words;
use crate::worker::Finished;
use serde_json::{Value, json};
use terminal::output::{Ink, Style};
use terminal::table::Table;
use terminal::units::{format_bytes, format_count, format_ns, significant};

/// Instead of a latency of 0.
const WITHIN_A_TURN: &str = "< 1 turn";

/// Text of a verb's own in the result for people.
pub struct Extras<'a> {
    /// Word for one of the cores: `core`.
    pub unit: &'a str,
    /// Behind the time in the heading.
    pub over: String,
    /// Further tables.
    pub tables: String,
    /// Behind the count of errors.
    pub counts: String,
}

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
    pub fn json(&self, words: &Words, cores: usize) -> Value {
        let stats = &self.stats;
        joined([
            stats.op_json(&stats.total()),
            words.json(cores),
            json!({
                "errors": stats.errors, "unanswered": stats.unanswered,
                "error": self.failure(words), "failures": stats.failures,
                "verified_bytes": stats.verified_bytes,
                "seconds": stats.elapsed_ns as f64 / 1e9, "interrupted": self.interrupted,
            }),
        ])
    }

    /// The load, its figures, and what went wrong.
    ///
    /// # Errors
    /// Fewer jobs than cores.
    pub fn text(
        &self,
        words: &Words,
        cores: usize,
        extras: &Extras<'_>,
        style: Style,
    ) -> anyhow::Result<String> {
        let mut text = self.heading(words, cores, extras)?;
        text.push_str("\n\n");
        text.push_str(&self.ops_table(words).render(style, |_| String::new()));
        text.push('\n');
        text.push_str(&extras.tables);
        let immediate = text.contains(WITHIN_A_TURN);
        text.push_str(&self.counts(words, extras, style));
        if immediate {
            text.push_str(&format!(
                "{WITHIN_A_TURN}: begun and ended at one reading of the clock, in one turn of the \
                 loop\n"
            ));
        }
        Ok(text)
    }

    fn heading(&self, words: &Words, cores: usize, extras: &Extras<'_>) -> anyhow::Result<String> {
        let sizes = words.sizes();
        let (op, size) = match (words.op(), &sizes.read, &sizes.write) {
            ("read", read, _) => ("read".to_owned(), read.to_string()),
            ("write", _, write) => ("write".to_owned(), write.to_string()),
            (_, read, write) => (
                format!("{} % read", words.read_percent()),
                match read == write {
                    true => read.to_string(),
                    false => format!("{read} (read), {write} (write)"),
                },
            ),
        };
        Ok(format!(
            "{} {op} of {size}, {} outstanding on {cores} {}, {}{}{}",
            words.order(),
            words.jobs(cores)? * words.iodepth,
            plural(cores, extras.unit),
            format_ns(self.stats.elapsed_ns as f64),
            extras.over,
            ["", ", ended early"][usize::from(self.interrupted)],
        ))
    }

    fn ops_table(&self, words: &Words) -> Table {
        let stats = &self.stats;
        let heads = ["IOPS", "MiB/s", "mean", "p50", "p99", "p99.9", "slowest"];
        let mut table = Table::new(1, &[&[""], &heads[..]].concat());
        for (name, op) in ["read", "write"].iter().zip(&stats.ops) {
            if op.ios == 0 && words.op() != "mixed" && words.op() != *name {
                continue;
            }
            let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|part| op.quantile_ns(part));
            let latencies = [op.mean_ns(), p50, p99, p999, op.latency.max() as f64];
            let mut row = vec![
                (*name).to_owned(),
                format_count(stats.rate(op.ios).round() as u64),
                significant(stats.mib_s(op.bytes)),
            ];
            row.extend(latencies.map(|ns| latency(op.ios, ns)));
            table.row(row);
        }
        table
    }

    fn counts(&self, words: &Words, extras: &Extras<'_>, style: Style) -> String {
        let stats = &self.stats;
        let errors = format!("errors {}", format_count(stats.errors));
        let ink = if stats.errors > 0 {
            Ink::Warning
        } else {
            Ink::Dim
        };
        let mut text = style.paint(ink, &errors);
        if stats.unanswered > 0 {
            let unanswered = format_count(stats.unanswered);
            text.push_str(&format!(" ({unanswered} never answered, in no latency)"));
        }
        if words.verify {
            let verified = format_bytes(stats.verified_bytes);
            text.push_str(&format!(", verified {verified}"));
            if self.interrupted && words.read_percent() < 100 {
                text.push_str(" (ended early: nothing was read back)");
            }
        }
        text.push_str(&extras.counts);
        text.push('\n');
        for failure in &stats.failures {
            text.push_str(&format!("  {failure}\n"));
        }
        text
    }
}

impl Stats {
    /// Rates, and latencies in µs, of an operation in JSON results.
    pub fn op_json(&self, op: &OpStats) -> Value {
        let us = |quantile| op.quantile_ns(quantile) / 1e3;
        json!({
            "iops": self.rate(op.ios), "mib_s": self.mib_s(op.bytes), "mean_us": op.mean_ns() / 1e3,
            "p50_us": us(0.5), "p99_us": us(0.99), "p999_us": us(0.999),
            "max_us": op.latency.max() as f64 / 1e3,
        })
    }
}

/// All keys of these objects in one.
pub fn joined<const N: usize>(objects: [Value; N]) -> Value {
    let maps = objects.into_iter().filter_map(|object| match object {
        Value::Object(map) => Some(map),
        _ => None,
    });
    maps.flatten().collect()
}

/// The clock is read once per turn of the loop: an I/O that ends in the turn in which it began has
/// no latency that could be told.
pub fn latency(ios: u64, ns: f64) -> String {
    match ns {
        _ if ios == 0 => "-".into(),
        0.0 => WITHIN_A_TURN.into(),
        ns => format_ns(ns),
    }
}

/// The word for one or several.
pub fn plural(count: usize, word: &str) -> String {
    let end = if count == 1 { "" } else { "s" };
    format!("{word}{end}")
}
