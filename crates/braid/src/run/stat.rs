//! Text of `braid stat`: the facts of its JSON, for people, in 80 columns.
mod figures;
mod legs;
pub mod rates;

pub use legs::{held, last_check};

use super::health::{self, maintenance};
use crate::hedges;
use crate::output::{Ink, Style};
use crate::units::{format_count, format_ns, format_utc, short_bytes};
use serde_json::Value;
use std::fmt::{Result, Write};
use terminal::answer::{items, number, word};

/// States of a path that are shown; JSON has all.
const PAST_MAX: usize = 6;
/// Longest line but for names and URIs.
const COLUMNS: usize = 80;

/// Leaves these volumes in an answer and, of mirrors, their legs. `MIRROR/0` is the first leg, as
/// the engine counts them.
///
/// # Errors
/// There is no such volume: the names of all.
pub fn keep_only(value: &mut Value, names: &[String]) -> std::result::Result<(), String> {
    let all: Vec<Value> = items(&value["volumes"]).cloned().collect();
    let mut kept = vec![false; all.len()];
    for name in names {
        let is_meant = |it: &Value| it["name"] == **name || it["leg_of"] == **name;
        let mut found: Vec<usize> = (0..all.len()).filter(|at| is_meant(&all[*at])).collect();
        if let Some((mirror, leg)) = name.split_once('/').filter(|_| found.is_empty()) {
            let mut legs = (0..all.len()).filter(|at| all[*at]["leg_of"] == mirror);
            let leg = leg.parse().ok().and_then(|leg| legs.nth(leg));
            found.extend(leg);
        }
        if found.is_empty() {
            let names: Vec<&str> = all.iter().map(|it| word(&it["name"])).collect();
            let others = match names.is_empty() {
                true => "nor any other".to_owned(),
                false => format!("only {}", names.join(", ")),
            };
            return Err(format!("there is no volume \"{name}\", {others}"));
        }
        found.into_iter().for_each(|at| kept[at] = true);
    }
    let kept = all.into_iter().zip(kept).filter(|(_, kept)| *kept);
    value["volumes"] = kept.map(|(it, _)| it).collect();
    value["discovery"] = Value::Array(Vec::new());
    Ok(())
}

/// How a program does, if the volume has one.
pub fn program(value: &Value) -> Option<String> {
    let state = value["state"].as_str()?;
    if let Some(why) = value["why"].as_str() {
        return Some(format!("{state}: {why}"));
    }
    let faults = value["faults"].as_object()?.iter();
    let faults = faults.filter(|(_, count)| number(count) > 0);
    let faults: Vec<_> = faults.map(|(it, count)| format!("{it} {count}")).collect();
    let faults = match faults.is_empty() {
        true => "no faults".to_owned(),
        false => format!("faults: {}", faults.join(", ")),
    };
    Some(format!(
        "{state}, {} choices, {faults}, fuel {} in the mean, {} at most, sha256 {}",
        number(&value["choices"]),
        number(&value["fuel_mean"]),
        number(&value["fuel_max"]),
        word(&value["sha256"])
    ))
}

/// All volumes.
///
/// # Errors
/// Those of `text`.
pub fn show(text: &mut String, value: &Value, style: Style) -> Result {
    let elapsed_ns = value["elapsed_ns"].as_u64();
    if let Some(uptime_ns) = value["uptime_ns"].as_u64() {
        let of = match elapsed_ns {
            Some(elapsed_ns) => format!("of the last {}", format_ns(elapsed_ns as f64)),
            None => "since it started".to_owned(),
        };
        writeln!(text, "engine: up for {}; figures {of}", lasting(uptime_ns))?;
    }
    for volume in items(&value["volumes"]) {
        let (name, state) = (word(&volume["name"]), word(&volume["state"]));
        let policy = volume["policy"].as_str();
        let policy = policy.map_or(String::new(), |it| format!(", {it}"));
        let (state, actual) = (painted(style, state), maintenance::but_for(volume));
        let actual = actual.map_or(String::new(), |it| format!(" ({it})"));
        writeln!(text, "{name}: {state}{actual}{policy}")?;
        if !volume["maintenance"].is_null() {
            let line = maintenance::line(&volume["maintenance"]);
            paragraph(text, "maintenance: ", &line)?;
        }
        if let Some(program) = program(&volume["program"]) {
            paragraph(text, "program: ", &program)?;
        }
        if let Some(knobs) = knobs(volume).filter(|_| volume["kind"] != "mirror") {
            paragraph(text, "knobs: ", &knobs)?;
        }
        for why in items(&volume["awaits"]) {
            paragraph(text, "awaits: ", word(why))?;
        }
        for path in items(&volume["paths"]) {
            show_path(text, path, elapsed_ns, style)?;
        }
        for export in items(&volume["exports"]) {
            show_export(text, export)?;
        }
        if volume["kind"] == "mirror" {
            legs::show(text, volume, elapsed_ns, style)?;
            continue;
        }
        paragraph(text, "waiting: ", &waiting(&volume["waiting"]))?;
        let failover = &volume["failover"];
        paragraph(text, "so far: ", &so_far(failover))?;
        let copies = hedges::words(&volume["hedges"]);
        let none = || {
            volume["hedging"]
                .as_bool()
                .unwrap_or(false)
                .then(|| "none".into())
        };
        if let Some(copies) = copies.or_else(none) {
            paragraph(text, "second copies: ", &copies)?;
        }
        if let Some(risk) = failover["risk"].as_str() {
            paragraph(text, "risk: ", risk)?;
        }
    }
    for of in items(&value["discovery"]) {
        writeln!(
            text,
            "discovery of {}: {}",
            word(&of["uri"]),
            word(&of["state"])
        )?;
        let why = of["why"].as_str().map(str::to_owned);
        let read = of["genctr"].as_u64().map(|generation| {
            format!(
                "{} entries, generation {generation}",
                number(&of["records"])
            )
        });
        let by: Vec<_> = items(&of["referred_by"]).map(word).collect();
        let by = (!by.is_empty()).then(|| format!("referred to by {}", by.join(", ")));
        let facts: Vec<_> = why.into_iter().chain(read).chain(by).collect();
        paragraph(text, "", &facts.join("; "))?;
    }
    for core in items(&value["cores"]) {
        writeln!(text, "core {}:", core["core"])?;
        paragraph(text, "", &target::waits::words(core))?;
    }
    Ok(())
}

/// The oldest I/O of a path is told from here on.
const LATE_NS: u64 = 1_000_000_000;

/// As they are set.
fn knobs(of: &Value) -> Option<String> {
    let shift = of["ewma_shift"].as_u64()?;
    let timeout = format_ns(number(&of["weight_timeout_ns"]) as f64);
    let hedge = super::client::hedge(of);
    Some(format!(
        "ewma_shift {shift}, weight_timeout {timeout}, hedge {hedge}"
    ))
}

/// State of a path's probation, and its probes; empty if it never was on one.
pub(super) fn probation(of: &Value) -> String {
    let times = number(&of["times"]);
    if times == 0 {
        return String::new();
    }
    let mut facts = Vec::new();
    if let (Some(why), Some(for_ns)) = (of["why"].as_str(), of["for_ns"].as_u64()) {
        let since = format_ns(for_ns as f64);
        let cores = some(number(&of["cores"]), "core");
        facts.push(format!("for {why}, since {since}, on {cores}"));
    }
    if let Some(left_ns) = of["relapse_left_ns"].as_u64() {
        let left = format_ns(left_ns as f64);
        facts.push(format!("{left} more at least, for what relapses cost"));
    }
    facts.push(format!("{} so far", format_count(times)));
    let probes = [("probes_good", "good"), ("probes_bad", "bad")];
    facts.extend(probes.map(|(key, what)| {
        let count = format_count(number(&of[key]));
        format!("{count} {what} probes")
    }));
    let share = of["error_share"].as_f64().unwrap_or(0.0) * 100.0;
    facts.push(format!("{share:.2} % of its I/O failed"));
    facts.join(", ")
}

/// The last states of a path, where it was ever anything but connected and live.
fn history(path: &Value) -> Vec<String> {
    let all: Vec<&Value> = items(&path["history"]).collect();
    let is_usual = |it: &&Value| matches!(word(&it["state"]), "connecting" | "live");
    if all.iter().all(is_usual) {
        return Vec::new();
    }
    let line = |it: &&Value| {
        let since = format_utc(number(&it["since_s"]));
        let reason = it["reason"].as_str();
        let reason = reason.map_or(String::new(), |why| format!(": {why}"));
        format!("{since}: {}{reason}", word(&it["state"]))
    };
    all.iter().rev().take(PAST_MAX).rev().map(line).collect()
}

/// For how long the oldest I/O of a path is in flight, behind how many are, if worth telling.
fn oldest(path: &Value) -> String {
    let age_ns = path["inflight_age_ns"].as_u64().unwrap_or(0);
    match age_ns >= LATE_NS {
        true => format!(" (the oldest for {})", format_ns(age_ns as f64)),
        false => String::new(),
    }
}

/// Number, name and URI of a path: verbs take each.
pub(super) fn called(path: &Value) -> String {
    let (number, uri) = (number(&path["path"]), word(&path["uri"]));
    match path["name"].as_str() {
        Some(name) => format!("{number}  {name}  {uri}"),
        None => format!("{number}  {uri}"), // an older engine has none
    }
}

fn show_path(text: &mut String, path: &Value, elapsed_ns: Option<u64>, style: Style) -> Result {
    writeln!(text, "  {}", called(path))?;
    let since = path["live_ns"].as_u64();
    let since = since.map_or(String::new(), |ns| format!(" for {}", lasting(ns)));
    let state = painted(style, word(&path["state"]));
    let mut facts = vec![format!("{state}{since}")];
    facts.extend(path["ana_state"].as_str().map(str::to_owned));
    facts.extend(path["cntlid"].as_u64().map(|id| format!("controller {id}")));
    facts.extend(
        path["io_queues"]
            .as_u64()
            .map(|queues| format!("I/O queues for {} only", some(queues, "core"))),
    );
    facts.extend(throughput(&path["throughput"]));
    facts.extend(
        path["told_by"]
            .as_str()
            .map(|by| format!("discovered by {by}")),
    );
    if path["origin"] == "control" {
        facts.push("added by hand".into());
    }
    let count = |key: &str| number(&path[key]);
    if count("losses") > 0 {
        facts.push(format!("lost {}", some(count("losses"), "time")));
    }
    if count("inflight") > 0 {
        let in_flight = format_count(count("inflight"));
        facts.push(format!("{in_flight} in flight{}", oldest(path)));
    }
    if count("errors") > 0 {
        let classes = path["errors_by_class"].as_object().into_iter().flatten();
        let classes = classes.map(|(it, count)| format!("{it} {}", format_count(number(count))));
        let classes: Vec<_> = classes.collect();
        let classes = match classes.is_empty() {
            true => String::new(), // of an older engine
            false => format!(" ({})", classes.join(", ")),
        };
        facts.push(format!("{} failed{classes}", format_count(count("errors"))));
    }
    let late = |key, what| Some((number(&path[key]), what)).filter(|(count, _)| *count > 0);
    let late = [
        late("waited_full", "waited for room"),
        late("device_errors", "answered with an error"),
        late("damaged_in", "received damaged"),
        late("damaged_out", "sent and damaged"),
        late("timed_out", "timed out"),
        late("aborted", "aborted"),
        late("copies", "second copies"),
    ];
    let late = late.into_iter().flatten();
    facts.extend(late.map(|(count, what)| format!("{} {what}", format_count(count))));
    paragraph(text, "", &facts.join(", "))?;
    if let Some(why) = path["hindrance"].as_str() {
        paragraph(text, "unused: ", why)?;
    }
    for alarm in items(&path["alarms"]) {
        paragraph(text, "alarm: ", &health::line(alarm))?;
    }
    for alarm in items(&path["ended"]) {
        paragraph(text, "ended: ", &health::line(alarm))?;
    }
    if !path["maintenance"].is_null() {
        let line = maintenance::line(&path["maintenance"]);
        paragraph(text, "maintenance: ", &line)?;
    }
    for past in history(path) {
        paragraph(text, "", &past)?;
    }
    let probation = probation(&path["probation"]);
    if !probation.is_empty() {
        paragraph(text, "probation: ", &probation)?;
    }
    figures::show(text, path, elapsed_ns, style);
    Ok(())
}

/// Where it is not what it is by default.
pub(super) fn throughput(of: &Value) -> Option<String> {
    let number = of.as_u64().filter(|number| *number != 1)?;
    Some(format!("throughput {number}"))
}

fn show_export(text: &mut String, export: &Value) -> Result {
    let read_only = match export["read_only"].as_bool() {
        Some(true) => " (read-only)",
        _ => "",
    };
    let failed = match export["failed"].as_bool() {
        Some(true) => ": its server has failed",
        _ => "",
    };
    writeln!(text, "  {}{read_only}{failed}", word(&export["uri"]))?;
    let count = |key: &str, one: &str, many: &str| {
        let count = number(&export[key]);
        format!(
            "{} {}",
            format_count(count),
            if count == 1 { one } else { many }
        )
    };
    let seldom = [
        ("errors", "error", "errors"),
        ("waited_buffer", "waited for memory", "waited for memory"),
        ("merged", "with part of a block", "with parts of blocks"),
    ];
    let seldom = seldom.into_iter().filter(|it| number(&export[it.0]) > 0);
    let seldom = seldom.map(|(key, one, many)| count(key, one, many));
    let always = [
        count("clients", "client", "clients"),
        count("requests", "request", "requests"),
    ];
    let facts: Vec<_> = always.into_iter().chain(seldom).collect();
    paragraph(text, "", &facts.join(", "))?;
    items(&export["connected"]).try_for_each(|it| paragraph(text, "", &client(it)))
}

/// A client of an export.
fn client(of: &Value) -> String {
    let mut facts = vec![
        format!("for {}", lasting(number(&of["for_ns"]))),
        some(number(&of["requests"]), "request"),
    ];
    for (key, what) in [("bytes_read", "read"), ("bytes_written", "written")] {
        let bytes = number(&of[key]);
        facts.extend((bytes > 0).then(|| format!("{} {what}", short_bytes(bytes))));
    }
    for (key, what) in [("inflight", "in flight"), ("errors", "failed")] {
        let count = number(&of[key]);
        facts.extend((count > 0).then(|| format!("{} {what}", format_count(count))));
    }
    format!("{}: {}", word(&of["client"]), facts.join(", "))
}

/// A time as people say it: in its largest unit that is worth more than one.
pub fn lasting(ns: u64) -> String {
    let s = ns / 1_000_000_000;
    match s {
        0..120 => format!("{s} s"),
        120..7200 => format!("{} min", s / 60),
        7200..172_800 => format!("{} h", s / 3600),
        _ => format!("{} days", s / 86_400),
    }
}

/// How well the state of a volume, path or leg is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    Well,
    Warning,
    Bad,
    /// Nothing is wrong, and nothing serves.
    Idle,
}

impl Mood {
    pub fn of(state: &str) -> Self {
        match state {
            "ok" | "live" | "in-sync" | "optimized" => Self::Well,
            "down" | "failed" | "absent" | "unusable" | "missing" | "unknown" => Self::Bad,
            "removed" | "" => Self::Idle,
            _ => Self::Warning,
        }
    }

    fn ink(self) -> Ink {
        match self {
            Self::Well => Ink::Good,
            Self::Warning => Ink::Warning,
            Self::Bad => Ink::Bad,
            Self::Idle => Ink::Dim,
        }
    }
}

/// A state in its colour, where there is colour.
pub(super) fn painted(style: Style, state: &str) -> String {
    style.paint(Mood::of(state).ink(), state)
}

/// I/O that waits now.
pub(super) fn waiting(of: &Value) -> String {
    let count = |key: &str| number(&of[key]);
    let mut facts = Vec::new();
    if count("held") > 0 {
        let age = format_ns(count("held_age_ns") as f64);
        let why = reason(&of["held_reason"], of["held_until_in_ns"].as_u64());
        facts.push(format!(
            "{} held, the oldest for {age}: {why}",
            some(count("held"), "write")
        ));
    }
    facts.extend(unclean_stop(&of["unclean_stop"]));
    if count("behind") > 0 {
        facts.push(format!(
            "{} behind an overlapping one",
            some(count("behind"), "write")
        ));
    }
    if count("queued") > 0 {
        let age = format_ns(count("queued_age_ns") as f64);
        let ios = some(count("queued"), "I/O");
        facts.push(format!("{ios} for a usable path, the oldest for {age}"));
    }
    if count("delayed") > 0 {
        facts.push(format!("{} for a busy path", some(count("delayed"), "I/O")));
    }
    match count("flushes") {
        0 => {}
        1 => facts.push("1 flush for a lost controller with unflushed writes".into()),
        n => facts.push(format!(
            "{n} flushes for a lost controller with unflushed writes"
        )),
    }
    match facts.is_empty() {
        true => "nothing".into(),
        false => facts.join("; "),
    }
}

/// I/O that waits because of the engine before this one.
fn unclean_stop(of: &Value) -> Option<String> {
    let left = of.as_object()?.get("until_in_ns")?.as_u64();
    let until = match left {
        Some(left_ns) => format!("for {} more", format_ns(left_ns as f64)),
        None => "without a bound".into(),
    };
    let age = of["held_age_ns"].as_u64();
    let oldest = age.map(|age_ns| format!(", the oldest for {}", format_ns(age_ns as f64)));
    Some(format!(
        "for what the engine before this one left under way, writes wait {until}: {}{}",
        some(number(&of["held"]), "write"),
        oldest.unwrap_or_default()
    ))
}

/// Why writes are held (T9).
fn reason(word: &Value, left_ns: Option<u64>) -> String {
    let why = match word.as_str().unwrap_or_default() {
        "resetting" => "the lost controller is being reset",
        "closing" => "the lost controller's connections are being closed",
        "bound" => "the lost controller may yet execute it",
        "quiescing" => "the lost controller was reset, and its disks may yet execute it",
        "unbounded" => {
            "without a keep-alive, only proof can tell that the lost controller won't \
                        execute it"
        }
        "queue-server" => "the queue server that had it and was given up may yet execute it",
        "unclean-stop" => "what the engine before this one left under way may yet be executed",
        other => other,
    };
    match left_ns {
        Some(left_ns) => format!("{why}, for {} more at most", format_ns(left_ns as f64)),
        None => why.to_owned(),
    }
}

/// Counters of failover so far.
fn so_far(of: &Value) -> String {
    let count = |key: &str| number(&of[key]);
    let mut facts = vec![format!(
        "{} moved to another path",
        some(count("moved_total"), "I/O")
    )];
    let held = some(count("held_total"), "write");
    facts.push(match count("held_total") {
        0 => format!("{held} held ({})", word(&of["write_failover"])),
        _ => format!(
            "{held} held ({}; {} until proof, {} until the bound{}){}",
            word(&of["write_failover"]),
            count("held_proved_total"),
            count("held_bounded_total"),
            match count("held_unclean_stop_total") {
                0 => String::new(),
                gated => format!(", {gated} of them for what an earlier engine left"),
            },
            match count("held_ns_max") {
                0 => String::new(), // none has ended yet
                longest_ns => format!(", the longest for {}", format_ns(longest_ns as f64)),
            }
        ),
    });
    match (count("flushes_failed"), &of["flush_failed"]) {
        (0, _) => {}
        (failed, Value::Null) => facts.push(format!("flushes failed: {failed}")),
        (failed, last) => facts.push(format!(
            "flushes failed: {failed}, the last {} ago: {} {}",
            format_ns(number(&last["ago_ns"]) as f64),
            word(&last["path"]),
            word(&last["why"])
        )),
    }
    facts.join("; ")
}

fn some(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", format_count(count))
}

/// Words in lines of [`COLUMNS`], indented behind the first.
fn paragraph(text: &mut String, lead: &str, words: &str) -> Result {
    paragraph_at(text, &format!("     {lead}"), words)
}

/// The same without an indent of its own; a line break in `lead` comes first.
pub(super) fn paragraph_at(text: &mut String, lead: &str, words: &str) -> Result {
    let bare = lead.trim_start_matches('\n');
    let gap = &lead[..lead.len() - bare.len()];
    write!(
        text,
        "{gap}{}",
        terminal::text::paragraph(bare, words, COLUMNS)
    )
}

#[cfg(test)]
mod tests;
