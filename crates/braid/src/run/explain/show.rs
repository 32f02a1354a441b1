//! The verb `explain`: asks, and shows the facts of the answers' JSON, for people in 80 columns.
use crate::cli::Exit;
use crate::control::limits::ANSWER_WAIT;
use crate::output::{self, Format, Ink, Style};
use crate::run::call::{EngineCall, ExplainParams};
use crate::run::client::Common;
use crate::run::stat::{called, paragraph_at};
use crate::table::Table;
use crate::units::{
    format_bytes, format_count, format_ns, parse_duration, parse_size, short_bytes,
};
use clap::Args;
use serde_json::Value;
use std::fmt::{Result, Write};
use std::time::{Duration, Instant};
use terminal::answer::{items, number, word};

/// I/Os asked for at a time: the first are shown soon, and each answer fits a message.
const BATCH: u32 = 8;

/// A space at which no line is broken.
const NO_BREAK: &str = "\u{a0}";

/// Options of `explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// Volume
    volume: String,
    /// How many I/Os; at most one in 5 ms is written down
    #[arg(short = 'n', long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    count: u32,
    /// How long to wait for all of them, up to 60s
    #[arg(short, long, value_name = "TIME", default_value = "5s", value_parser = wait)]
    wait: u64,
    /// Only reads
    #[arg(long, conflicts_with = "writes")]
    reads: bool,
    /// Only what changes data: writes, zeroes, trims
    #[arg(long)]
    writes: bool,
    /// Only I/Os of at least so many bytes
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    min_size: u32,
    #[command(flatten)]
    common: Common,
}

fn wait(text: &str) -> std::result::Result<u64, String> {
    let wait_ns = parse_duration(text).map_err(|error| error.to_string())?;
    match wait_ns {
        1..=super::WAIT_NS_MAX => Ok(wait_ns),
        _ => Err("must be above 0 and at most 60s".into()),
    }
}

fn size(text: &str) -> std::result::Result<u32, String> {
    let size = parse_size(text).map_err(|error| error.to_string())?;
    u32::try_from(size).map_err(|_| "no I/O is so large".into())
}

/// Asks until there are enough, or the time is over.
///
/// # Errors
/// No engine that answers, or what it says; no I/O came: exit code 1.
pub fn ask(args: &ExplainArgs) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_nanos(args.wait);
    let mut all: Option<Value> = None;
    let mut shown = 0;
    loop {
        let left = args.count - shown;
        let left_ns = end.saturating_duration_since(Instant::now()).as_nanos() as u64;
        let answer = batch(args, left.min(BATCH), left_ns.max(1))?;
        let firsts = firsts(&answer).iter().filter(|it| **it).count() as u32;
        if args.common.output == Format::Text {
            let mut text = String::new();
            if shown == 0 && firsts > 0 {
                head(&mut text, &answer)?;
            }
            ios(&mut text, shown, &answer, Style::of_stdout())?;
            output::print(&text)?;
        }
        shown += firsts;
        let enough = shown >= args.count || firsts < left.min(BATCH);
        join(&mut all, answer);
        if enough {
            break;
        }
    }
    finish(args, shown, all.unwrap_or_default())
}

fn batch(args: &ExplainArgs, count: u32, wait_ns: u64) -> anyhow::Result<Value> {
    let call = EngineCall::Explain(ExplainParams {
        volume: args.volume.clone(),
        count,
        wait_ns,
        reads: !args.writes,
        writes: !args.reads,
        bytes_min: args.min_size,
    });
    let wait = Duration::from_nanos(wait_ns) + ANSWER_WAIT;
    let answer = args.common.call_within(&call, wait);
    let answer = answer.map_err(|error| match error.to_string() {
        text if text.starts_with("there is no method") => anyhow::anyhow!(
            "the engine is of an older version, which can't explain; restart it with this one"
        ),
        _ => error,
    })?;
    anyhow::ensure!(answer.is_object(), "the answer explains nothing");
    Ok(answer)
}

/// Adds the I/Os of an answer to those before.
fn join(all: &mut Option<Value>, mut answer: Value) {
    let Some(all) = all else {
        *all = Some(answer);
        return;
    };
    let waited_ns = number(&all["waited_ns"]) + number(&answer["waited_ns"]);
    all["waited_ns"] = waited_ns.into();
    if let (Some(ios), Some(more)) = (all["ios"].as_array_mut(), answer["ios"].as_array_mut()) {
        ios.append(more);
    }
}

fn finish(args: &ExplainArgs, shown: u32, mut all: Value) -> anyhow::Result<()> {
    if args.common.output == Format::Json {
        all["wanted"] = args.count.into();
        output::print_json(&all)?;
    }
    let wait = format_ns(args.wait as f64);
    let volume = &args.volume;
    if shown == 0 {
        output::note(&format!(
            "{volume}: no such I/O came within {wait}; `braid stat` shows whether any waits"
        ));
        return Err(Exit(1).into());
    }
    if shown < args.count {
        let ios = if shown == 1 { "I/O" } else { "I/Os" };
        output::note(&format!("{volume}: {shown} {ios} came within {wait}"));
    }
    Ok(())
}

/// Which of the attempts are the first of an I/O; its others follow.
fn firsts(answer: &Value) -> Vec<bool> {
    let mut before = None;
    let is_first = |io: &Value| {
        let it = Some((number(&io["io"]), number(&io["core"])));
        std::mem::replace(&mut before, it) != it
    };
    items(&answer["ios"]).map(is_first).collect()
}

fn head(text: &mut String, answer: &Value) -> Result {
    let (volume, policy) = (word(&answer["volume"]), word(&answer["policy"]));
    writeln!(text, "{volume}: {policy}")?;
    for path in items(&answer["paths"]) {
        writeln!(text, "  {}", called(path))?;
    }
    Ok(())
}

/// All I/Os of an answer; `shown`: how many came before.
fn ios(text: &mut String, shown: u32, answer: &Value, style: Style) -> Result {
    let mut count = shown;
    for (io, is_first) in items(&answer["ios"]).zip(firsts(answer)) {
        count += u32::from(is_first);
        let lead = match is_first {
            true => format!("\n{count}. "),
            false => "   then ".into(),
        };
        let mut line = String::new();
        paragraph_at(
            &mut line,
            &lead,
            &format!("{}: {}", what(io), choice(io, style)),
        )?;
        text.push_str(&line.replace(NO_BREAK, " "));
        paths(text, io, style)?;
    }
    Ok(())
}

/// Which I/O.
fn what(io: &Value) -> String {
    let (op, bytes) = (word(&io["op"]), format_bytes(number(&io["bytes"])));
    let piece = if io["piece"] == true {
        "piece of a "
    } else {
        ""
    };
    let offset = short_bytes(number(&io["offset"]));
    format!(
        "{piece}{op}, {bytes} at {offset}, core {}",
        number(&io["core"])
    )
}

/// The choice, its reason, and its result.
fn choice(io: &Value, style: Style) -> String {
    let ns = |key: &str| io[key].as_u64().map(figure);
    let mut facts = Vec::new();
    if number(&io["waited_ns"]) > 0 {
        facts.extend(ns("waited_ns").map(|waited| format!("after {waited}")));
    }
    let why = why(word(&io["policy"]), word(&io["why"]));
    match io["chosen"].as_u64() {
        Some(path) => facts.push(format!("path {path}, {why}")),
        None if io["why"].is_string() => facts.push(style.paint(Ink::Bad, why)),
        None => {}
    }
    let outcome = match (
        io["outcome"].as_str(),
        ns("latency_ns"),
        io["chosen"].is_null(),
    ) {
        (Some("done"), Some(latency), _) => format!("took {latency}{}", error(io)),
        (Some(outcome), Some(latency), _) => {
            format!("after {latency}: {}", style.paint(Ink::Bad, outcome))
        }
        (.., true) => style.paint(Ink::Warning, &waits(io)),
        _ => "has not ended".into(),
    };
    facts.push(outcome);
    if number(&io["queued_ns"]) > 0 {
        facts
            .extend(ns("queued_ns").map(|queued| format!("{queued} of it waiting for room there")));
    }
    facts.join("; ")
}

/// Reason of an I/O without a path to wait.
fn waits(io: &Value) -> String {
    let what = match word(&io["waits_for"]) {
        "path" => "it waits until one is",
        "lost-controller" => {
            "its path was lost: it waits until the controller there can't execute it any more"
        }
        "overlapping-write" => "it waits for a write before it to the same place, which waits too",
        "unclean-stop" => {
            "it waits until what the engine before this one sent can't be executed any more"
        }
        "" => "it fails",
        _ => "it waits for something that this version doesn't know",
    };
    match io["waits_ns"].as_u64() {
        Some(left_ns) => format!("{what}, for {} at most", figure(left_ns)),
        None => what.to_owned(),
    }
}

/// A time whose unit stays beside it.
fn figure(ns: u64) -> String {
    format_ns(ns as f64).replace(' ', NO_BREAK)
}

/// How far it was from what was expected.
fn error(io: &Value) -> String {
    let Some(error_ns) = io["error_ns"].as_i64() else {
        return String::new();
    };
    let expected = figure(number(&io["expected_ns"]));
    let error = figure(error_ns.unsigned_abs());
    match error_ns {
        0 => ", as expected".into(),
        1.. => format!(", {error} more than expected ({expected})"),
        _ => format!(", {error} less than expected ({expected})"),
    }
}

fn why(policy: &str, why: &str) -> &'static str {
    let policy = policy.split(':').next().unwrap_or(policy);
    match (why, policy) {
        ("none-usable", _) => "no path is usable",
        ("only", _) => "the only one that may be chosen",
        ("least", "numa") => "the nearest",
        ("least", "queue-depth") => "the fewest in flight",
        ("least", "latency") => "the fastest lately",
        ("least", "service-time") => "the fewest bytes in flight for its throughput",
        ("least", "historical-service-time") => "the least estimate",
        ("least", _) => "the least cost",
        ("tie", _) => "no other is better",
        ("fewest-in-flight", _) => "about the least cost, and of those the fewest in flight",
        ("others-small", _) => {
            "what costs less with its price is slower, and carries next to nothing"
        }
        ("even", _) => "all are full, and there the usual I/O would wait least",
        ("goes-on", _) => "its stream is there, and to move it would cost more",
        ("untried", "latency") => "nothing is known of it lately",
        ("untried", "weighted-latency") => "not measured yet",
        ("untried", _) => "nothing is known of it yet",
        ("explored", _) => "looked at again",
        ("turn", _) => "its turn",
        ("credit", _) => "next in turn that has credit",
        ("reader", _) => "this reader's",
        ("named", _) => "the one that is named",
        ("instead", _) => "in place of the one that is named",
        ("program", _) => "as the program chose, or queue-depth in its place",
        _ => "for a reason that this version doesn't know",
    }
}

/// A column of figures: key, heading, how a figure is shown, and whether it is left out where all
/// are 0.
type Column = (&'static str, &'static str, fn(&Value) -> String, bool);

const COLUMNS: [Column; 23] = [
    ("in_flight", "in flight", count, false),
    ("in_flight_elsewhere", "others", count, false),
    ("distance", "distance", count, false),
    ("before", "turn", turn, false),
    ("bytes_left", "left", bytes, true),
    ("weight", "weight", count, false),
    ("credit", "credit", count, false),
    ("smoothed_ns", "smoothed", time, false),
    ("number", "number", count, false),
    ("wanted", "wanted", count, false),
    ("named", "named", truth, false),
    ("recent_ns", "lately", time, false),
    ("bytes_in_flight", "bytes", bytes, false),
    ("throughput", "throughput", count, false),
    ("service_ns", "service", time, false),
    ("estimate_ns", "estimate", time, false),
    ("base_ns", "empty", time, false),
    ("wait_ns", "wait", time, false),
    ("tail_ns", "tail", time, false),
    ("price_ns", "price", time, false),
    ("penalty_ns", "silence", time, true),
    ("cost_ns", "cost", time, false),
    ("usual_ns", "usual", time, false),
];

fn count(value: &Value) -> String {
    value.as_u64().map_or("-".into(), format_count)
}

fn bytes(value: &Value) -> String {
    value.as_u64().map_or("-".into(), short_bytes)
}

fn time(value: &Value) -> String {
    match value.as_u64() {
        None => "-".into(),
        Some(0) => "0".into(),
        Some(ns) => format_ns(ns as f64),
    }
}

fn turn(value: &Value) -> String {
    match value.as_u64() {
        Some(0) => "next".into(),
        Some(before) => format!("in {before}"),
        None => "-".into(),
    }
}

fn truth(value: &Value) -> String {
    if value == true { "yes" } else { "no" }.into()
}

/// The policy's view of each path.
fn paths(text: &mut String, io: &Value, style: Style) -> Result {
    if items(&io["paths"]).next().is_none() {
        return Ok(());
    }
    let has = |(key, _, _, hide): &&Column| {
        let mut values = items(&io["paths"]).map(|path| &path[*key]);
        values.any(|it| !(it.is_null() || *hide && *it == 0))
    };
    let columns: Vec<_> = COLUMNS.iter().filter(has).collect();
    let headings = columns.iter().map(|(_, heading, ..)| *heading);
    let headings: Vec<_> = std::iter::once("     path").chain(headings).collect();
    let mut table = Table::new(1, &headings);
    let mut why_not = vec![String::new()];
    for path in items(&io["paths"]) {
        let mark = if path["path"] == io["chosen"] {
            "*"
        } else {
            " "
        };
        let mut row = vec![format!("   {mark} {}", number(&path["path"]))];
        if path["usable"] == true {
            let cells = columns
                .iter()
                .map(|(key, _, show, _)| cell(path, key, *show));
            row.extend(cells);
        }
        table.row(row);
        why_not.push(style.paint(Ink::Bad, word(&path["why_not"])));
    }
    let behind = |row: usize| why_not.get(row).cloned().unwrap_or_default();
    let mark = format!("   {} ", style.paint(Ink::Good, "*"));
    text.push_str(&table.render(style, behind).replacen("   * ", &mark, 1));
    for path in items(&io["paths"]) {
        for note in notes(path) {
            writeln!(
                text,
                "     {}: {}",
                number(&path["path"]),
                style.paint(Ink::Warning, note)
            )?;
        }
    }
    Ok(())
}

fn cell(path: &Value, key: &str, show: fn(&Value) -> String) -> String {
    // Beyond all that can be compared.
    match matches!(key, "penalty_ns" | "cost_ns" | "usual_ns") && path["failed_lately"] == true {
        true => "-".into(),
        false => show(&path[key]),
    }
}

/// Facts of a usable path that figures don't show.
fn notes(path: &Value) -> Vec<&'static str> {
    let notes = [
        (
            path["stands_by"] == true,
            "stands by, since it is non-optimized",
        ),
        (path["known"] == false, "nothing is known of it yet"),
        (
            path["failed_lately"] == true,
            "has failed an I/O lately, and stands back",
        ),
        (
            path["silent"] == true,
            "nothing has come back for longer than is usual",
        ),
    ];
    let those = notes.into_iter().filter(|(holds, _)| *holds);
    those.map(|(_, note)| note).collect()
}

#[cfg(test)]
mod tests;
