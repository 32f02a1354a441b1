//! The verb `check`: how well volumes are, now or once they are as is waited for.
use super::call::{CheckParams, EngineCall};
use super::client::{Common, UNKNOWN};
use super::health::{self, maintenance};
use super::stat::{painted, paragraph_at};
use crate::cli::{Exit, Usage};
use crate::control::limits::ANSWER_WAIT;
use crate::output::{self, Style};
use crate::units::{format_ns, parse_duration};
use anyhow::Context;
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use serde_json::Value;
use std::fmt::Write;
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use terminal::answer::{items, number, word};

/// How often the engine is asked.
const LOOK: Duration = Duration::from_millis(100);

/// Options of `check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// Volume [default: the worst of all]
    volume: Option<String>,
    /// Wait until it is so, whatever is under maintenance, also for an engine that does not answer
    /// yet. The exit code says how it is then, as ever
    #[arg(long, value_name = "STATE", value_enum)]
    wait: Option<Awaited>,
    /// Longest wait, as 30s; then how it is [default: without end]
    #[arg(long, value_name = "TIME", requires = "wait", value_parser = timeout)]
    timeout: Option<u64>,
    #[command(flatten)]
    common: Common,
}

/// Event that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Awaited {
    /// All paths are usable, or all legs in sync
    Ok,
    /// It serves: ok or degraded
    Up,
    /// It serves, and something is wrong
    Degraded,
    /// It does not serve
    Down,
}

impl Awaited {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Up => "up",
            Self::Degraded => "degraded",
            Self::Down => "down",
        }
    }

    fn is(self, state: &str) -> bool {
        match self {
            Self::Up => matches!(state, "ok" | "degraded"),
            _ => state == self.name(),
        }
    }
}

fn timeout(text: &str) -> Result<u64, String> {
    let timeout_ns = parse_duration(text).map_err(|error| error.to_string())?;
    match timeout_ns {
        0 => Err("must be above 0; leave it out to wait without end".into()),
        _ => Ok(timeout_ns),
    }
}

/// Says how well volumes are.
///
/// # Errors
/// [`Exit`] with the code of the state, unless that is ok.
pub fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let value = match args.wait {
        Some(awaited) => wait(args, awaited),
        None => ask(args, ANSWER_WAIT),
    };
    let value = match value {
        Ok(value) => value,
        Err(error) => {
            output::note(&format!("{error:#}"));
            return Err(Exit(UNKNOWN).into());
        }
    };
    let style = Style::of_stdout();
    let shown = args
        .common
        .print(&value, |text, value| show(text, value, style));
    if let Err(why) = output::unless_closed(shown) {
        output::note(&format!("{why:#}"));
    }
    match number(&value["code"]) as u8 {
        0 => Ok(()),
        code => Err(Exit(code).into()),
    }
}

fn ask(args: &CheckArgs, wait: Duration) -> anyhow::Result<Value> {
    let volume = args.volume.clone();
    let call = EngineCall::Check(CheckParams { volume });
    args.common.call_within(&call, wait)
}

/// Asks until it is so, or the time is over, which is noted: how it is then.
///
/// # Errors
/// No engine has answered the last time, or it has no such volume.
fn wait(args: &CheckArgs, awaited: Awaited) -> anyhow::Result<Value> {
    let begun = Instant::now();
    let limit = args.timeout.map_or(Duration::MAX, Duration::from_nanos);
    let left = || limit.saturating_sub(begun.elapsed());
    let who = args.volume.as_deref().unwrap_or("all volumes");
    let bar = std::io::stderr()
        .is_terminal()
        .then(ProgressBar::new_spinner);
    loop {
        let answer = ask(args, left().clamp(LOOK, ANSWER_WAIT));
        let now = match &answer {
            Ok(value) if awaited.is(word(&value["actual"])) => {
                end(bar);
                return answer;
            }
            Ok(value) => word(&value["actual"]).to_owned(),
            // No wait changes that.
            Err(error) if error.is::<Usage>() => {
                end(bar);
                return answer;
            }
            Err(_) => "no engine answers".to_owned(),
        };
        if let Some(bar) = &bar {
            bar.set_message(format!("{who}: {now}, waiting for {}", awaited.name()));
            bar.tick();
        }
        if left().is_zero() {
            end(bar);
            let limit = format_ns(limit.as_nanos() as f64);
            let line = format!("{who}: not {} within {limit}", awaited.name());
            if answer.is_ok() {
                output::note(&format!("{line}: {now}"));
            }
            return answer.context(line);
        }
        std::thread::sleep(LOOK.min(left()));
    }
}

fn end(bar: Option<ProgressBar>) {
    bar.iter().for_each(ProgressBar::finish_and_clear);
}

fn show(text: &mut String, value: &Value, style: Style) -> std::fmt::Result {
    for volume in items(&value["volumes"]) {
        let (name, state) = (word(&volume["name"]), word(&volume["state"]));
        let (shown, actual) = (painted(style, state), word(&volume["actual"]));
        if state == actual {
            writeln!(text, "{name}: {shown}")?;
        } else {
            let actual = painted(style, actual);
            writeln!(text, "{name}: {shown} ({actual} but for maintenance)")?;
        }
        if let Some(why) = volume["why"].as_str() {
            paragraph_at(text, "  ", why)?;
        }
        for leg in items(&volume["legs"]) {
            show_leg(text, leg, style)?;
        }
        note_maintenance(text, "", &volume["maintenance"])?;
        if let Some(risk) = volume["risk"].as_str() {
            paragraph_at(text, "  risk: ", risk)?;
        }
        for why in items(&volume["awaits"]) {
            paragraph_at(text, "  awaits: ", word(why))?;
        }
        for path in items(&volume["paths"]) {
            show_path(text, path, style)?;
        }
    }
    Ok(())
}

fn show_leg(text: &mut String, leg: &Value, style: Style) -> std::fmt::Result {
    let (name, uri, state) = (called(leg), word(&leg["uri"]), word(&leg["state"]));
    let whys = [&leg["why"], &leg["damage"]].map(Value::as_str);
    let whys: Vec<&str> = whys.into_iter().flatten().collect();
    let why = (!whys.is_empty()).then(|| format!(": {}", whys.join("; ")));
    if state != "in-sync" || why.is_some() {
        let (state, why) = (painted(style, state), why.unwrap_or_default());
        paragraph_at(text, "  ", &format!("{name}{uri}: {state}{why}"))?;
    }
    for alarm in items(&leg["alarms"]) {
        let of = format!("{name}{uri}: path {}", word(&alarm["path"]));
        show_alarm(text, &of, alarm, style)?;
    }
    note_maintenance(text, &format!("{name}{uri}: "), &leg["maintenance"])
}

fn show_path(text: &mut String, path: &Value, style: Style) -> std::fmt::Result {
    let (number, name, uri) = (number(&path["path"]), called(path), word(&path["uri"]));
    let path_is = format!("{number} {name}{uri}:");
    let whys = [&path["why"], &path["damage"]];
    for why in whys.into_iter().filter_map(Value::as_str) {
        paragraph_at(text, "  ", &format!("{path_is} {why}"))?;
    }
    for alarm in items(&path["alarms"]) {
        show_alarm(text, &path_is, alarm, style)?;
    }
    // No part of the state: for those who come when it is over.
    for alarm in items(&path["ended"]) {
        let line = format!("note: {path_is} {}", health::line(alarm));
        paragraph_at(text, "  ", &line)?;
    }
    note_maintenance(text, &format!("{path_is} "), &path["maintenance"])
}

fn show_alarm(text: &mut String, of: &str, alarm: &Value, style: Style) -> std::fmt::Result {
    let line = health::line(alarm);
    let line = match line.split_once(" since ") {
        Some((state, rest)) => format!("{} since {rest}", painted(style, state)),
        None => line,
    };
    paragraph_at(text, "  ", &format!("{of} {line}"))
}

/// A note about something under maintenance, whose state `check` does not miss.
fn note_maintenance(text: &mut String, of: &str, maintenance: &Value) -> std::fmt::Result {
    match maintenance.is_null() {
        true => Ok(()),
        false => {
            let line = maintenance::line(maintenance);
            paragraph_at(text, "  ", &format!("note: {of}under maintenance {line}"))
        }
    }
}

/// The name of a path or leg, with a space behind it.
fn called(it: &Value) -> String {
    let name = it["name"].as_str();
    name.map_or(String::new(), |name| format!("{name} "))
}

#[cfg(test)]
mod tests;
