//! The result of a bench, for people and for programs.
use crate::words::Words;
use crate::worker::Finished;
use hdrhistogram::Histogram;
use paths::hedges;
use policy::Policy;
use runtime::ReactorStats;
use serde_json::{Map, Value, json};
use terminal::output::{Ink, Style};
use terminal::table::Table;
use terminal::units::{format_bytes, format_count, format_ns, significant};

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

const BAR_CELLS: usize = 40;
/// Instead of a latency of 0.
const WITHIN_A_TURN: &str = "< 1 turn";

impl BenchResult<'_> {
    /// Why the program has failed, if it has.
    pub fn failure(&self) -> Option<String> {
        self.finished.failure(self.words)
    }

    /// The keys that programs rely on, and more.
    pub fn json(&self, cores: usize, histogram: bool) -> Value {
        let stats = &self.finished.stats;
        let total = stats.total();
        let mut result = self.finished.json(self.words, cores);
        let mut shares = Map::new();
        for (uri, share) in self.uris.iter().zip(stats.shares()) {
            // One URI may be given twice: two connections to one place.
            let before = shares.get(uri).and_then(Value::as_f64).unwrap_or(0.0);
            shares.insert(uri.clone(), json!(before + share));
        }
        result.insert("share".into(), shares.into());
        result.insert("policy".into(), json!(self.policy.to_string()));
        result.insert("paths".into(), self.paths_json());
        result.insert("hedges".into(), self.hedges());
        if self.words.op() == "mixed" {
            result.insert("read".into(), stats.op_json(&stats.ops[0]).into());
            result.insert("write".into(), stats.op_json(&stats.ops[1]).into());
        }
        if let Some(reactor) = &self.reactor {
            result.insert(
                "system_calls_per_io".into(),
                json!(self.finished.per_io(reactor.enters)),
            );
            result.insert(
                "wakeups_per_io".into(),
                json!(self.finished.per_io(reactor.wakeups)),
            );
        }
        if histogram {
            let buckets = buckets(&total.latency);
            let rows = buckets
                .iter()
                .map(|b| json!({"below_us": us(b.below_ns as f64), "ios": b.ios}));
            result.insert("histogram".into(), rows.collect());
        }
        result.into()
    }

    /// The tables.
    pub fn text(&self, cores: usize, histogram: bool, style: Style) -> anyhow::Result<String> {
        let mut text = self.heading(cores)?;
        text.push_str("\n\n");
        text.push_str(&self.ops_table().render(style, |_| String::new()));
        text.push('\n');
        text.push_str(&self.paths_table().render(style, |_| String::new()));
        text.push('\n');
        let immediate = text.contains(WITHIN_A_TURN);
        text.push_str(&self.counts(style));
        if immediate {
            text.push_str(WITHIN_A_TURN);
            text.push_str(
                ": begun and ended at one reading of the clock, in one turn of the loop\n",
            );
        }
        if histogram {
            text.push('\n');
            text.push_str(&histogram_text(&self.finished.stats.total().latency, style));
        }
        Ok(text)
    }

    fn heading(&self, cores: usize) -> anyhow::Result<String> {
        let words = self.words;
        let order = words.order();
        let sizes = words.sizes();
        let (op, size) = match words.op() {
            "read" => ("read".to_owned(), sizes.read.to_string()),
            "write" => ("write".to_owned(), sizes.write.to_string()),
            _ if sizes.read == sizes.write => (
                format!("{} % read", words.read_percent()),
                sizes.read.to_string(),
            ),
            _ => {
                let both = format!("{} (read), {} (write)", sizes.read, sizes.write);
                (format!("{} % read", words.read_percent()), both)
            }
        };
        let early = if self.finished.interrupted {
            ", ended early"
        } else {
            ""
        };
        Ok(format!(
            "{order} {op} of {size}, {} outstanding on {cores} {}, {} over {} {}, {}{early}",
            words.jobs(cores)? * words.iodepth,
            plural(cores, "core"),
            format_ns(self.finished.stats.elapsed_ns as f64),
            self.uris.len(),
            plural(self.uris.len(), "path"),
            self.policy,
        ))
    }

    fn ops_table(&self) -> Table {
        let stats = &self.finished.stats;
        let mut table = Table::new(
            1,
            &[
                "", "IOPS", "MiB/s", "mean", "p50", "p99", "p99.9", "slowest",
            ],
        );
        for (name, op) in ["read", "write"].iter().zip(&stats.ops) {
            if op.ios == 0 && self.words.op() != "mixed" && self.words.op() != *name {
                continue;
            }
            table.row(vec![
                (*name).to_owned(),
                format_count(stats.iops(op).round() as u64),
                significant(stats.mib_s(op)),
                latency(op.ios, op.mean_ns()),
                latency(op.ios, op.quantile_ns(0.5)),
                latency(op.ios, op.quantile_ns(0.99)),
                latency(op.ios, op.quantile_ns(0.999)),
                latency(op.ios, op.latency.max() as f64),
            ]);
        }
        table
    }

    fn paths_table(&self) -> Table {
        let stats = &self.finished.stats;
        let mut table = Table::new(
            1,
            &["path", "share", "IOPS", "MiB/s", "mean", "errors", "waited"],
        );
        for ((uri, path), share) in self.uris.iter().zip(&stats.paths).zip(stats.shares()) {
            table.row(vec![
                uri.clone(),
                format!("{:.1} %", share * 100.0),
                format_count((path.ios as f64 / stats.seconds()).round() as u64),
                significant(path.bytes as f64 / f64::from(1 << 20) / stats.seconds()),
                latency(path.ios, path.mean_ns()),
                format_count(path.errors),
                format_count(path.waited_full),
            ]);
        }
        table
    }

    fn counts(&self, style: Style) -> String {
        let stats = &self.finished.stats;
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
        if self.words.verify {
            text.push_str(&format!(
                ", verified {}",
                format_bytes(stats.verified_bytes)
            ));
            if self.finished.interrupted && self.words.read_percent() < 100 {
                text.push_str(" (ended early: nothing was read back)");
            }
        }
        if let Some(reactor) = &self.reactor {
            let (calls, wakeups) = (
                self.finished.per_io(reactor.enters),
                self.finished.per_io(reactor.wakeups),
            );
            text.push_str(&format!(
                ", system calls per I/O {calls:.3}, wake-ups per I/O {wakeups:.3}"
            ));
        }
        if let Some(copies) = hedges::words(&self.hedges()) {
            text.push_str(&format!("\nsecond copies: {copies}"));
        }
        text.push('\n');
        for failure in &stats.failures {
            text.push_str(&format!("  {failure}\n"));
        }
        text
    }

    fn hedges(&self) -> Value {
        let stats = &self.finished.stats;
        hedges::json(&stats.hedges, stats.ops[0].ios)
    }

    fn paths_json(&self) -> Value {
        let stats = &self.finished.stats;
        let rows =
            self.uris
                .iter()
                .zip(&stats.paths)
                .zip(stats.shares())
                .map(|((uri, path), share)| {
                    json!({
                        "uri": uri,
                        "share": share,
                        "iops": path.ios as f64 / stats.seconds(),
                        "mib_s": path.bytes as f64 / f64::from(1 << 20) / stats.seconds(),
                        "mean_us": us(path.mean_ns()),
                        "errors": path.errors,
                        "waited_full": path.waited_full,
                    })
                });
        rows.collect()
    }
}

/// One row of a distribution: powers of two.
struct Bucket {
    from_ns: u64,
    below_ns: u64,
    ios: u64,
}

/// The distribution from the first to the last power of two that has I/Os.
fn buckets(latency: &Histogram<u64>) -> Vec<Bucket> {
    if latency.is_empty() {
        return Vec::new();
    }
    let (first, last) = (latency.min().max(1).ilog2(), latency.max().max(1).ilog2());
    let bucket = |exponent: u32| {
        let (from_ns, below_ns) = (1 << exponent, 2 << exponent);
        Bucket {
            from_ns,
            below_ns,
            ios: latency.count_between(from_ns, below_ns - 1),
        }
    };
    (first..=last).map(bucket).collect()
}

fn histogram_text(latency: &Histogram<u64>, style: Style) -> String {
    let buckets = buckets(latency);
    let all = latency.len().max(1) as f64;
    let most = buckets
        .iter()
        .map(|bucket| bucket.ios)
        .max()
        .unwrap_or(1)
        .max(1) as f64;
    let mut table = Table::new(0, &["latency from", "to", "I/Os", ""]);
    for bucket in &buckets {
        table.row(vec![
            format_ns(bucket.from_ns as f64),
            format_ns(bucket.below_ns as f64),
            format_count(bucket.ios),
            format!("{:.2} %", bucket.ios as f64 / all * 100.0),
        ]);
    }
    table.render(style, |row| {
        match row.checked_sub(1).and_then(|row| buckets.get(row)) {
            Some(bucket) => style.bar(bucket.ios as f64 / most, BAR_CELLS),
            None => String::new(),
        }
    })
}

/// The clock is read once per turn of the loop: an I/O that ends in the turn in which it began has
/// no latency that could be told.
fn latency(ios: u64, ns: f64) -> String {
    match ns {
        _ if ios == 0 => "-".into(),
        0.0 => WITHIN_A_TURN.into(),
        ns => format_ns(ns),
    }
}

fn us(ns: f64) -> f64 {
    ns / 1e3
}

fn plural(count: usize, word: &str) -> String {
    if count == 1 {
        word.to_owned()
    } else {
        format!("{word}s")
    }
}

#[cfg(test)]
mod tests;
