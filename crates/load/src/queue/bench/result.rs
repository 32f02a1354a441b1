//! Result of a load on queues, for people and for programs.
use super::{BenchArgs, Ran};
use crate::facts::{Extras, joined};
use crate::worker::Finished;
use ::queue::Counts;
use serde_json::{Value, json};
use terminal::output::Style;
use terminal::units::significant;

/// Why the program has failed, if it has.
pub fn failure(args: &BenchArgs, finished: &Finished) -> Option<String> {
    let advice = |said: &str| match said.contains(DENIED) && args.target.is_none() {
        true => " (`braid queue list` shows which namespaces and blocks this user may use)",
        false => "",
    };
    let why = finished.failure(&args.common.words)?;
    Some(format!("{why}{}", advice(&why)))
}

/// The error of blocks that a right does not cover.
const DENIED: &str = "access denied";

fn empty_share(counts: Counts) -> f64 {
    counts.empty_polls as f64 / counts.polls.max(1) as f64
}

pub fn json(args: &BenchArgs, ran: &Ran) -> Value {
    let (finished, counts) = (&ran.finished, ran.counts);
    let own = json!({
        "kind": args.kind.name(), "ios": finished.totals.ios, "error": failure(args, finished),
        "share": { "queue": 1.0 },
        "system_calls_per_io": finished.per_io(counts.calls),
        "polls_per_io": finished.per_io(counts.polls),
        "empty_polls_share": empty_share(counts),
        "cpu_ns_per_io": finished.per_io(ran.cpu_ns),
    });
    joined([
        finished.json(&args.common.words, args.common.cores.into()),
        own,
    ])
}

pub fn text(args: &BenchArgs, finished: &Finished, counts: Counts) -> anyhow::Result<String> {
    let extras = Extras {
        unit: &format!("{} queue", args.kind.name()),
        over: String::new(),
        tables: String::new(),
        counts: format!(
            ", system calls per I/O {}, polls per I/O {}, of which {} % found nothing",
            significant(finished.per_io(counts.calls)),
            significant(finished.per_io(counts.polls)),
            significant(100.0 * empty_share(counts)),
        ),
    };
    finished.text(
        &args.common.words,
        args.common.cores.into(),
        &extras,
        Style::of_stdout(),
    )
}
