//! Waiting for what a mirror does in the background, with a bar for whoever sits before it.
use crate::cli::Exit;
use crate::output;
use crate::run::UNKNOWN;
use crate::run::call::{EngineCall, MirrorParams};
use crate::run::client::Common;
use crate::units::{format_bytes, format_ns};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::io::IsTerminal;
use std::thread::sleep;
use std::time::{Duration, Instant};
use terminal::answer::{items, number, word};

/// How often a bar is moved.
const LOOK: Duration = Duration::from_millis(250);
/// For how long one that answered before is asked again that doesn't.
const AGAIN: Duration = Duration::from_secs(5);
/// Parts of a bar.
const WHOLE: f64 = 1000.0;

/// A mirror as its engine has it.
///
/// # Errors
/// No engine that answers, or what it says.
pub fn status_of(common: &Common, volume: &str) -> anyhow::Result<Value> {
    common.call(&EngineCall::MirrorStatus(MirrorParams::of(volume)))
}

/// Until nothing is rebuilt, made alike or checked any more, or the mirror's start was refused.
///
/// # Errors
/// As [`status_of`] at first, then as [`look_again`]; it does not run; what was to be rebuilt,
/// `leg` above all, is not in sync.
pub fn wait_rebuilt(common: &Common, volume: &str, leg: Option<&str>) -> anyhow::Result<()> {
    let mut waited: Vec<String> = leg.into_iter().map(str::to_owned).collect();
    let value = wait(common, volume, |value| {
        let is_waited = |leg: &&Value| is_on_its_way(leg) || is_stuck(leg);
        for it in items(&value["legs"]).filter(is_waited) {
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
/// As [`status_of`] at first, then as [`look_again`]; the mirror does not run any more.
pub fn wait_checked(common: &Common, volume: &str) -> anyhow::Result<Value> {
    let checks = |value: &Value| value["check"].is_object();
    wait(common, volume, |value| {
        // A rebuild comes first.
        let first = under_way(value).into_iter().next();
        first.filter(|_| checks(value))
    })
}

/// Work under way, and how far it is.
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
    let mut value = status_of(common, volume)?;
    let mut told = false;
    loop {
        let why = word(&value["why"]);
        let doing = match word(&value["phase"]) {
            // One of before there were phases has none.
            "running" | "" => left(&value),
            "gathering" => Some((why.to_owned(), Value::Null)),
            _ => {
                bar.finish_and_clear();
                match why.starts_with(volume) {
                    true => anyhow::bail!("{why}"),
                    false => anyhow::bail!("{volume}: {why}"),
                }
            }
        };
        let Some((what, it)) = doing else {
            bar.finish_and_clear();
            return Ok(value);
        };
        let paused = it["paused"] == true;
        if paused && !told {
            bar.suspend(|| {
                output::note(&format!(
                    "{volume}: {what} is paused: this waits until it goes on (braid mirror \
                     resume-check, braid mirror speed --resume) and is over"
                ));
            });
        }
        told = paused;
        if std::io::stderr().is_terminal() {
            bar.set_position((it["done"].as_f64().unwrap_or(0.0) * WHOLE) as u64);
            bar.set_message(match it.is_object() {
                true => format!("{what}: {}", far(&it)),
                false => what,
            });
        }
        sleep(LOOK);
        value = look_again(common, volume).inspect_err(|_| bar.finish_and_clear())?;
    }
}

/// Asks once more, for some time: an engine may have no place for another client just then.
///
/// # Errors
/// [`Exit`] [`UNKNOWN`], with the reason said: it is no answer to what was waited for.
fn look_again(common: &Common, volume: &str) -> anyhow::Result<Value> {
    let begun = Instant::now();
    loop {
        match status_of(common, volume) {
            Ok(value) => return Ok(value),
            Err(_) if begun.elapsed() < AGAIN => sleep(LOOK),
            Err(error) => {
                output::note(&format!("{error:#}"));
                return Err(Exit(UNKNOWN).into());
            }
        }
    }
}

/// Whether no leg can read what this one still lacks.
fn is_stuck(leg: &Value) -> bool {
    leg["progress"]["stuck"] == true
}

/// Whether a leg is being rebuilt, or is about to be. One that is stuck does not go on by itself.
fn is_on_its_way(leg: &Value) -> bool {
    if is_stuck(leg) {
        return false;
    }
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

/// All that is being done, rebuilds first, and a check last.
fn under_way(value: &Value) -> Vec<Doing> {
    let legs = items(&value["legs"]);
    let legs = legs.filter(|leg| is_on_its_way(leg));
    let leg = |leg: &Value| {
        let what = format!("leg {}", number(&leg["slot"]));
        (what, leg["progress"].clone())
    };
    let mut all: Vec<Doing> = legs.map(leg).collect();
    for what in ["resync", "check"] {
        if value[what].is_object() {
            all.push((what.into(), value[what].clone()));
        }
    }
    all
}

/// Rate and time left; neither says anything while it is paused.
pub fn far(it: &Value) -> String {
    if it["stuck"] == true {
        return "stuck".into();
    }
    if it["paused"] == true {
        return "paused".into();
    }
    let rate = it["bytes_per_s"].as_u64();
    let rate = rate.map_or("-".into(), |rate| format!("{}/s", format_bytes(rate)));
    match it["left_ns"].as_u64() {
        Some(left) => format!("{rate}, {} left", format_ns(left as f64)),
        None => rate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn how_far_it_is_has_a_rate_and_time_unless_it_is_paused() {
        let it = |paused: bool, rate: Option<u64>, left: Option<u64>| {
            far(&json!({"paused": paused, "bytes_per_s": rate, "left_ns": left}))
        };
        let second = Some(1_000_000_000);
        assert_eq!(it(false, Some(1 << 20), second), "1 MiB/s, 1.00 s left");
        assert_eq!(it(false, Some(1 << 20), None), "1 MiB/s");
        assert_eq!(it(true, None, None), "paused");
        assert_eq!(far(&json!({"stuck": true, "paused": false})), "stuck");
        assert_eq!(far(&Value::Null), "-");
    }

    #[test]
    fn what_is_under_way_is_legs_on_their_way_and_then_the_check() {
        let legs = json!({"check": {"done": 0.5}, "legs": [
            {"slot": 0, "state": "in-sync", "returning": false},
            {"slot": 1, "state": "stale", "returning": true},
            {"slot": 2, "state": "rebuilding", "progress": {"done": 0.1}},
            {"slot": 3, "state": "stale", "returning": false},
            {"slot": 4, "state": "rebuilding", "progress": {"done": 0.1, "stuck": true}},
        ]});
        let names: Vec<String> = under_way(&legs).into_iter().map(|it| it.0).collect();
        assert_eq!(names, ["leg 1", "leg 2", "check"]);
        let resync = json!({"check": null, "resync": {"done": 0.5}, "legs": []});
        assert_eq!(under_way(&resync)[0].0, "resync");
        assert!(under_way(&json!({"check": null, "legs": []})).is_empty());
    }

    #[test]
    fn a_rebuild_has_come_to_its_end_when_its_leg_is_in_sync_and_nothing_is_said_of_it() {
        let of = |state: &str, why: Option<&str>| {
            is_in_sync(
                &json!({"legs": [{"uri": "file:/b", "state": state, "why": why}]}),
                "file:/b",
            )
        };
        assert!(of("in-sync", None).is_ok());
        let failed = of("stale", Some("it was taken out")).unwrap_err();
        assert!(
            failed
                .to_string()
                .ends_with("it is stale, it was taken out")
        );
        assert!(of("in-sync", Some("it is leaving")).is_err());
        assert!(is_in_sync(&json!({"legs": []}), "file:/b").is_err());
    }
}
