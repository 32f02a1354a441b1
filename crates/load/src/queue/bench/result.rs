//! Result of a load on queues, for people and for programs.
use super::{BenchArgs, KindWord, Ran};
use crate::worker::Finished;
use ::queue::Counts;
use serde_json::{Value, json};
use terminal::units::{format_bytes, format_count, format_ns, significant};

/// Why the program has failed, if it has.
pub fn failure(args: &BenchArgs, finished: &Finished) -> Option<String> {
    let stats = &finished.stats;
    let advice = |said: &str| match said.contains(DENIED) && args.target.is_none() {
        true => " (`braid queue list` shows which namespaces and blocks this user may use)",
        false => "",
    };
    if let Some(why) = &finished.failed {
        return Some(format!("{why}{}", advice(why)));
    }
    let Some(first) = stats.failures.first() else {
        return args.words.unverified(finished.interrupted);
    };
    let advice = advice(first);
    Some(match stats.errors {
        1 => format!("{first}{advice}"),
        n => {
            let count = format_count(n);
            format!("{count} errors, of which the first: {first}{advice}")
        }
    })
}

/// The error of blocks that a right does not cover.
const DENIED: &str = "access denied";

/// A count per I/O that was done, measured or not.
fn per_io(finished: &Finished, count: u64) -> f64 {
    count as f64 / finished.totals.ios.max(1) as f64
}

fn empty_share(counts: Counts) -> f64 {
    counts.empty_polls as f64 / counts.polls.max(1) as f64
}

pub fn json(args: &BenchArgs, ran: &Ran) -> Value {
    let (finished, counts) = (&ran.finished, ran.counts);
    let stats = &finished.stats;
    let total = stats.total();
    let us = |ns: f64| ns / 1000.0;
    let mut shares = serde_json::Map::new();
    shares.insert("queue".into(), json!(1.0));
    let mut facts = args.words.json(args.cores.into());
    let more = json!({
        "kind": if args.kind == KindWord::UserPoll { "user_poll" } else { "user_irq" },
        "ios": finished.totals.ios,
        "iops": stats.iops(&total),
        "mib_s": stats.mib_s(&total),
        "mean_us": us(total.mean_ns()),
        "p50_us": us(total.quantile_ns(0.5)),
        "p99_us": us(total.quantile_ns(0.99)),
        "p999_us": us(total.quantile_ns(0.999)),
        "errors": stats.errors,
        "unanswered": stats.unanswered,
        "error": failure(args, finished),
        "failures": stats.failures,
        "verified_bytes": stats.verified_bytes,
        "share": shares,
        "seconds": stats.elapsed_ns as f64 / 1e9,
        "interrupted": finished.interrupted,
        "system_calls_per_io": per_io(finished, counts.calls),
        "polls_per_io": per_io(finished, counts.polls),
        "empty_polls_share": empty_share(counts),
        "cpu_ns_per_io": per_io(finished, ran.cpu_ns),
    });
    facts.extend(more.as_object().cloned().into_iter().flatten());
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
        if args.kind == KindWord::UserPoll {
            "poll"
        } else {
            "irq"
        },
        format_ns(stats.elapsed_ns as f64),
        if finished.interrupted {
            ", ended early"
        } else {
            ""
        },
        significant(per_io(finished, counts.calls)),
        significant(per_io(finished, counts.polls)),
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
