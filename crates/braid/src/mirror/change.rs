//! `braid mirror add|remove|replace|stop|speed|status`: a mirror that runs is changed, and watched.
use super::wait::{far, status_of, wait_rebuilt};
use crate::cli::Usage;
use crate::run::call::{EngineCall, MirrorParams};
use crate::run::client::{Common, checked};
use crate::run::{held, last_check};
use crate::units::{format_bytes, parse_rate};
use crate::uri::PathUri;
use serde_json::Value;
use std::fmt::Write;
use terminal::answer::{items, number, word};

/// Advice for a leg that was removed, and could not be told so.
const STILL_SAYS: &str = ". What says that it was a leg is still on it: it is refused wherever it \
                          is given. braid mirror add --force takes it again; else clear its \
                          first MiB (dd if=/dev/zero of=FILE bs=1M count=1 conv=notrunc)";

/// How a new leg is taken in.
#[derive(Clone, Debug, clap::Args)]
struct NewArgs {
    /// Whatever it holds
    #[arg(long)]
    force: bool,
    /// Show the rebuild until it is over
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    common: Common,
}

impl NewArgs {
    /// Waits for the rebuild of a new leg, if that is wanted.
    fn waited(&self, volume: &str, leg: &str) -> anyhow::Result<()> {
        match self.wait {
            true => wait_rebuilt(&self.common, volume, Some(leg)),
            false => Ok(()),
        }
    }
}

/// Adds a leg to a mirror that runs; it is rebuilt.
#[derive(Clone, Debug, clap::Args)]
pub struct AddArgs {
    /// Mirror
    volume: String,
    /// The new leg: file:/path, or nvme-tcp://…
    #[arg(value_parser = checked::<PathUri>)]
    leg: String,
    #[command(flatten)]
    new: NewArgs,
}

/// Puts a new leg in the place of another one, which is removed when the new one is in sync.
#[derive(Clone, Debug, clap::Args)]
pub struct ReplaceArgs {
    /// Mirror
    volume: String,
    /// The leg that goes: its name or number as `braid stat` shows them, or its URI
    leg: String,
    /// The new one: file:/path, or nvme-tcp://…
    #[arg(value_parser = checked::<PathUri>)]
    by: String,
    #[command(flatten)]
    new: NewArgs,
}

/// Stops a mirror in order; its legs are free.
#[derive(Clone, Debug, clap::Args)]
pub struct StopArgs {
    /// Mirror
    volume: String,
    /// Although it has clients: they are told, and disconnected
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    common: Common,
}

/// How fast is copied in the background; the mirror keeps it. A pause lasts until the engine ends.
#[derive(Clone, Debug, clap::Args)]
pub struct SpeedArgs {
    /// Mirror
    volume: String,
    /// At least, whatever users feel: as in 10MiB/s
    #[arg(long, value_name = "RATE")]
    floor: Option<String>,
    /// At most
    #[arg(long, value_name = "RATE")]
    ceiling: Option<String>,
    /// Nothing, until `--resume`
    #[arg(long, conflicts_with_all = ["floor", "ceiling", "resume"])]
    pause: bool,
    /// As before the pause
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    common: Common,
}

/// Shows how a mirror is, and how far a rebuild or a check is.
#[derive(Clone, Debug, clap::Args)]
pub struct StatusArgs {
    /// Mirror
    volume: String,
    /// Go on until its start was refused, or all rebuilds and the check are over; exit code 1 if it
    /// doesn't run then or a leg that was waited for is not in sync, 3 if the engine has ended
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    common: Common,
}

/// Adds a leg.
///
/// # Errors
/// No engine that answers, or what it says.
pub fn add(args: &AddArgs) -> anyhow::Result<()> {
    let call = EngineCall::MirrorAdd(MirrorParams {
        force: args.new.force,
        ..MirrorParams::of_leg(&args.volume, &args.leg)
    });
    let said = "added; write it into the configuration too";
    let leg = changed(&args.new.common, &call, said)?;
    args.new.waited(&args.volume, &leg)
}

/// Replaces a leg.
///
/// # Errors
/// As [`add`].
pub fn replace(args: &ReplaceArgs) -> anyhow::Result<()> {
    let call = EngineCall::MirrorReplace(MirrorParams {
        by: Some(args.by.clone()),
        force: args.new.force,
        ..MirrorParams::of_leg(&args.volume, &args.leg)
    });
    let said = "added, the other goes when it is in sync; write it into the configuration too";
    let leg = changed(&args.new.common, &call, said)?;
    args.new.waited(&args.volume, &leg)
}

/// Removes a leg.
///
/// # Errors
/// As [`add`].
pub fn remove(args: &super::ask::LegArgs) -> anyhow::Result<()> {
    let (common, params) = args.parts();
    let value = common.call(&EngineCall::MirrorRemove(params))?;
    common.print(&value, |text, value| {
        let (volume, leg) = (word(&value["volume"]), word(&value["leg"]));
        let rest = match value["carries_superblock"] == true {
            true => STILL_SAYS,
            false => "",
        };
        writeln!(
            text,
            "{volume}: {leg} removed; take it out of the configuration too{rest}"
        )
    })
}

/// Stops a mirror.
///
/// # Errors
/// As [`add`].
pub fn stop(args: &StopArgs) -> anyhow::Result<()> {
    let call = EngineCall::MirrorStop(MirrorParams {
        force: args.force,
        ..MirrorParams::of(&args.volume)
    });
    let value = args.common.call(&call)?;
    args.common.print(&value, |text, value| {
        if let Some(why) = value["nothing"].as_str() {
            return writeln!(text, "{}: nothing to do: {why}", args.volume);
        }
        writeln!(
            text,
            "{0}: stopped; braid mirror assemble {0} starts it again, and so does the engine's \
             next start",
            args.volume
        )
    })
}

/// Has a mirror grow.
///
/// # Errors
/// As [`add`].
pub fn grow(args: &super::ask::MirrorArgs) -> anyhow::Result<()> {
    let (common, volume) = args.parts();
    let value = common.call(&EngineCall::MirrorGrow(MirrorParams::of(volume)))?;
    common.print(&value, |text, value| {
        let size = |key: &str| format_bytes(number(&value[key]));
        let (bytes, before) = (size("bytes"), size("before"));
        writeln!(text, "{volume}: {bytes} now, {before} before")
    })
}

/// Sets the speed.
///
/// # Errors
/// [`Usage`]; as [`add`].
pub fn speed(args: &SpeedArgs) -> anyhow::Result<()> {
    let rate = |name: &str, text: &Option<String>| -> anyhow::Result<Option<u64>> {
        let Some(text) = text else { return Ok(None) };
        match parse_rate(text) {
            Ok(0) => Err(Usage::error(format!(
                "--{name} 0: above 0; --pause stops it"
            ))),
            Ok(rate) => Ok(Some(rate)),
            Err(error) => Err(Usage::error(format!("--{name}: {error}"))),
        }
    };
    let call = EngineCall::MirrorSpeed(MirrorParams {
        floor: rate("floor", &args.floor)?,
        ceiling: rate("ceiling", &args.ceiling)?,
        pause: args.pause,
        resume: args.resume,
        ..MirrorParams::of(&args.volume)
    });
    args.common.show(&call, |text, value| {
        let words = speed_words(value);
        writeln!(text, "{}: background copies: {words}", args.volume)
    })
}

/// Shows a mirror.
///
/// # Errors
/// As [`add`]; as [`wait_rebuilt`], once it is shown.
pub fn status(args: &StatusArgs) -> anyhow::Result<()> {
    let waited = match args.wait {
        true => wait_rebuilt(&args.common, &args.volume, None),
        false => Ok(()),
    };
    let value = status_of(&args.common, &args.volume);
    if value.is_err() && waited.is_err() {
        return waited; // it says more
    }
    args.common.print(&value?, show)?;
    waited
}

/// Has it done, and says so; the leg that the engine names.
fn changed(common: &Common, call: &EngineCall, said: &str) -> anyhow::Result<String> {
    let value = common.call(call)?;
    common.print(&value, |text, value| {
        let (volume, leg) = (word(&value["volume"]), word(&value["leg"]));
        writeln!(text, "{volume}: {leg} {said}")
    })?;
    Ok(word(&value["leg"]).to_owned())
}

fn speed_words(value: &Value) -> String {
    let speed = &value["speed"];
    let rate = |key: &str| format!("{}/s", format_bytes(number(&speed[key])));
    match speed["paused"].as_bool() {
        Some(true) => "paused".into(),
        _ if speed["ceiling"].is_null() => format!("{} at least, no ceiling", rate("floor")),
        _ => format!("{} at least, {} at most", rate("floor"), rate("ceiling")),
    }
}

fn show(text: &mut String, value: &Value) -> std::fmt::Result {
    writeln!(text, "{}  {}", word(&value["name"]), word(&value["state"]))?;
    if let Some(why) = value["why"].as_str() {
        writeln!(text, "  {why}")?;
    }
    if let Some(held) = held(value) {
        writeln!(text, "  {held}")?;
    }
    for leg in items(&value["legs"]) {
        let slot = leg["slot"].as_u64().map_or("-".into(), |it| it.to_string());
        let (uri, state) = (word(&leg["uri"]), word(&leg["state"]));
        let name = leg["name"].as_str();
        let name = name.map_or(String::new(), |name| format!("{name}  "));
        write!(text, "  leg {slot}  {name}{uri}  {state}")?;
        if leg["progress"].is_object() {
            let done = leg["progress"]["done"].as_f64().unwrap_or(0.0) * 100.0;
            let far = far(&leg["progress"]);
            write!(text, ", {done:.1} % done, {far}")?;
        }
        if let Some(why) = leg["why"].as_str() {
            write!(text, ", {why}")?;
        }
        writeln!(text)?;
    }
    for what in ["resync", "check"]
        .into_iter()
        .filter(|it| value[it].is_object())
    {
        let done = value[what]["done"].as_f64().unwrap_or(0.0) * 100.0;
        let far = far(&value[what]);
        writeln!(text, "  {what}  {done:.1} % done, {far}")?;
    }
    if let Some(found) = last_check(value) {
        writeln!(text, "  last check  {found}")?;
    }
    match value["speed"].is_object() {
        true => writeln!(text, "  background copies  {}", speed_words(value)),
        false => Ok(()), // it stands on its legs, and is not known until it runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(more: Value) -> String {
        let mut value = json!({
            "name": "m0", "state": "ok", "why": null, "held_ns": null, "check": null,
            "checked": null, "speed": {"floor": 1 << 20, "ceiling": null, "paused": false},
            "legs": [{"slot": 1, "uri": "file:/b", "state": "stale", "why": "it was taken out"}],
        });
        for (key, it) in more.as_object().unwrap() {
            value[key] = it.clone();
        }
        let mut text = String::new();
        show(&mut text, &value).unwrap();
        text
    }

    #[test]
    fn a_mirror_that_does_not_run_shows_no_speed() {
        let text = shown(json!({"speed": null}));
        assert!(!text.contains("background"), "{text}");
    }

    #[test]
    fn the_status_shows_what_its_json_says() {
        let text = shown(json!({}));
        assert!(
            text.contains("leg 1  file:/b  stale, it was taken out\n"),
            "{text}"
        );
        assert!(!text.contains("check") && !text.contains("wait"), "{text}");
        let text = shown(json!({"held_ns": 1_500_000_000_u64, "checked": {
            "bytes": 8 << 20, "differences": 2, "unreadable": 0, "repaired": 1,
            "complete": false, "from": 3, "first": [{"leg": 1, "start": 0, "end": 4096}],
        }}));
        assert!(text.contains("\n  changes wait 2 s more: "), "{text}");
        let found = "  last check  2 differences, 0 unreadable, 1 rewritten, in 8 MiB, then it was \
                     ended; by what leg 3 has; leg 1, bytes 0 to 4096\n";
        assert!(text.contains(found), "{text}");
        let half = json!({"done": 0.5, "bytes_per_s": null, "left_ns": null, "paused": true});
        let text = shown(json!({"speed": {"paused": true}, "check": half, "legs": [{
            "slot": 1, "uri": "file:/b", "state": "rebuilding", "progress": half,
        }]}));
        assert!(text.contains("rebuilding, 50.0 % done, paused\n"), "{text}");
        assert!(text.contains("  check  50.0 % done, paused\n"), "{text}");
        let text = shown(json!({"held_ns": u64::MAX}));
        assert!(text.contains("wait without a bound:"), "{text}");
    }
}
