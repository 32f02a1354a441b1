//! Result of a load on queues, for people and for programs.
use super::{BenchArgs, Ran};
use crate::worker::Finished;
use ::queue::Counts;
use serde_json::{Value, json};
use terminal::units::{format_bytes, format_count, format_ns, significant};

/// Why the program has failed, if it has.
pub fn failure(args: &BenchArgs, finished: &Finished) -> Option<String> {
    let advice = |said: &str| match said.contains(DENIED) && args.target.is_none() {
        true => " (`braid queue list` shows which namespaces and blocks this user may use)",
        false => "",
    };
    let why = finished.failure(&args.words)?;
    Some(format!("{why}{}", advice(&why)))
}

/// The error of blocks that a right does not cover.
const DENIED: &str = "access denied";

fn empty_share(counts: Counts) -> f64 {
    counts.empty_polls as f64 / counts.polls.max(1) as f64
}

pub fn json(args: &BenchArgs, ran: &Ran) -> Value {
    let (finished, counts) = (&ran.finished, ran.counts);
    let mut facts = finished.json(&args.words, args.cores.into());
    let more = [
        (
            "kind",
            json!(if args.polls() {
                "user_poll"
            } else {
                "user_irq"
            }),
        ),
        ("ios", json!(finished.totals.ios)),
        ("error", json!(failure(args, finished))),
        ("share", json!({ "queue": 1.0 })),
        ("system_calls_per_io", json!(finished.per_io(counts.calls))),
        ("polls_per_io", json!(finished.per_io(counts.polls))),
        ("empty_polls_share", json!(empty_share(counts))),
        ("cpu_ns_per_io", json!(finished.per_io(ran.cpu_ns))),
    ];
    facts.extend(more.map(|(key, value)| (key.to_owned(), value)));
    facts.into()
}

pub fn text(args: &BenchArgs, finished: &Finished, counts: Counts) -> anyhow::Result<String> {
    let stats = &finished.stats;
    let total = stats.total();
    let quantile = |part| format_ns(total.quantile_ns(part));
    let cores = usize::from(args.cores);
    let rates = match stats.iops(&total) as u64 {
        0 if finished.totals.ios == 0 => "no I/O has ended well".to_owned(),
        iops => format!(
            "{} IOPS, {} MiB/s; latency mean {}, p50 {}, p99 {}, p99.9 {}",
            format_count(iops),
            significant(stats.mib_s(&total)),
            format_ns(total.mean_ns()),
            quantile(0.5),
            quantile(0.99),
            quantile(0.999),
        ),
    };
    let mut text = format!(
        "{} {} of {}, {} outstanding on {cores} user_{} queues, {}{}\n{rates}\n\
         {} system calls and {} polls per I/O; {} % of the polls found nothing\n",
        args.words.order(),
        args.words.op(),
        args.words.sizes().read,
        args.words.jobs(cores)? * args.words.iodepth,
        if args.polls() { "poll" } else { "irq" },
        format_ns(stats.elapsed_ns as f64),
        if finished.interrupted {
            ", ended early"
        } else {
            ""
        },
        significant(finished.per_io(counts.calls)),
        significant(finished.per_io(counts.polls)),
        significant(100.0 * empty_share(counts)),
    );
    if stats.errors > 0 {
        text.push_str(&format!("errors {}", format_count(stats.errors)));
        if stats.unanswered > 0 {
            let unanswered = format_count(stats.unanswered);
            text.push_str(&format!(" ({unanswered} never answered, in no latency)"));
        }
        text.push('\n');
    }
    if args.words.verify {
        let checked = format_bytes(stats.verified_bytes);
        text.push_str(&format!("{checked} read and found right\n"));
    }
    Ok(text)
}
