//! Waiting for what a mirror does in the background, with a bar for whoever sits before it.
use crate::run::client::{Common, items, number, word};
use crate::units::{format_bytes, format_ns};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::thread::sleep;
use std::time::Duration;

/// How often a bar is moved.
const LOOK: Duration = Duration::from_millis(250);
/// Parts of a bar.
const WHOLE: f64 = 1000.0;

/// A mirror as its engine has it.
///
/// # Errors
/// No engine that answers, or what it says.
pub fn status_of(common: &Common, volume: &str) -> anyhow::Result<Value> {
    common.call("mirror.status", json!({"volume": volume}))
}

/// Until nothing is rebuilt or checked any more, and it is known whether the mirror starts.
///
/// # Errors
/// As [`status_of`]; it does not run; what was to be rebuilt, `leg` above all, is not in sync.
pub fn wait_rebuilt(common: &Common, volume: &str, leg: Option<&str>) -> anyhow::Result<()> {
    let mut waited: Vec<String> = leg.into_iter().map(str::to_owned).collect();
    let value = wait(common, volume, |value| {
        for it in items(&value["legs"]).filter(|leg| is_on_its_way(leg)) {
            let uri = word(&it["uri"]);
            if !waited.iter().any(|it| it == uri) {
                waited.push(uri.to_owned());
            }
        }
        under_way(value).into_iter().next()
    })?;
    waited.iter().try_for_each(|leg| is_in_sync(&value, leg))
}

/// Until the check that was begun is over; the mirror as it is then.
///
/// # Errors
/// As [`status_of`]; the mirror does not run any more.
pub fn wait_checked(common: &Common, volume: &str) -> anyhow::Result<Value> {
    let checks = |value: &Value| value["check"].is_object();
    wait(common, volume, |value| {
        // What is rebuilt comes first.
        let first = under_way(value).into_iter().next();
        first.filter(|_| checks(value))
    })
}

/// What is being done, and how far it is.
type Doing = (String, Value);

/// Looks at a mirror as long as something is `left` to wait for.
fn wait(
    common: &Common,
    volume: &str,
    mut left: impl FnMut(&Value) -> Option<Doing>,
) -> anyhow::Result<Value> {
    let bar = ProgressBar::new(WHOLE as u64);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar:.cyan} {percent:>3} %  {msg}") {
        bar.set_style(style);
    }
    loop {
        let value = status_of(common, volume)?;
        let why = word(&value["why"]);
        let doing = match word(&value["phase"]) {
            "running" => left(&value),
            "gathering" => Some((why.to_owned(), Value::Null)),
            _ => {
                bar.finish_and_clear();
                anyhow::bail!("{volume} does not run: {why}");
            }
        };
        let Some((what, it)) = doing else {
            bar.finish_and_clear();
            return Ok(value);
        };
        if std::io::stderr().is_terminal() {
            bar.set_position((it["done"].as_f64().unwrap_or(0.0) * WHOLE) as u64);
            let paused = is_paused(&value) && what != "check";
            bar.set_message(match it.is_object() {
                true => format!("{what}: {}", far(&it, paused)),
                false => what,
            });
        }
        sleep(LOOK);
    }
}

/// Whether a leg is being rebuilt, or is about to be.
fn is_on_its_way(leg: &Value) -> bool {
    leg["progress"].is_object() || leg["returning"] == true || leg["state"] == "rebuilding"
}

/// Whether a rebuild that was waited for has come to its end.
fn is_in_sync(mirror: &Value, uri: &str) -> anyhow::Result<()> {
    let leg = items(&mirror["legs"]).find(|leg| leg["uri"] == uri);
    let Some(leg) = leg else {
        anyhow::bail!("{uri} is no leg any more");
    };
    let (state, why) = (word(&leg["state"]), leg["why"].as_str().unwrap_or_default());
    match (state, why) {
        ("in-sync", "") => Ok(()),
        (_, "") => anyhow::bail!("{uri} was not rebuilt: it is {state}"),
        _ => anyhow::bail!("{uri} was not rebuilt: it is {state}, {why}"),
    }
}

/// All that is being done, rebuilds first.
fn under_way(value: &Value) -> Vec<Doing> {
    let legs = items(&value["legs"]);
    let legs = legs.filter(|leg| is_on_its_way(leg));
    let leg = |leg: &Value| {
        let what = format!("leg {}", number(&leg["slot"]));
        (what, leg["progress"].clone())
    };
    let mut all: Vec<Doing> = legs.map(leg).collect();
    if value["check"].is_object() {
        all.push(("check".into(), value["check"].clone()));
    }
    all
}

/// Whether nothing is copied in the background.
pub fn is_paused(mirror: &Value) -> bool {
    mirror["speed"]["paused"] == true
}

/// Rate and time left; neither says anything while it is paused.
pub fn far(it: &Value, paused: bool) -> String {
    if paused {
        return "paused".into();
    }
    let rate = it["bytes_per_s"].as_u64();
    let rate = rate.map_or("-".into(), |rate| format!("{}/s", format_bytes(rate)));
    match it["left_ns"].as_u64() {
        Some(left) => format!("{rate}, {} left", format_ns(left as f64)),
        None => rate,
    }
}
