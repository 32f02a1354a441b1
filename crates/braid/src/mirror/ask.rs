//! `braid mirror check|repair|fail|restore|assemble`: asked of the engine that runs the mirror.
use super::wait::wait_checked;
use crate::cli::Exit;
use crate::output;
use crate::run::call::{EngineCall, MirrorParams};
use crate::run::client::Common;
use crate::run::last_check;
use serde_json::{Value, json};
use std::fmt::Write;
use terminal::answer::{number, word};

/// A mirror.
#[derive(Clone, Debug, clap::Args)]
pub struct MirrorArgs {
    /// Mirror
    volume: String,
    #[command(flatten)]
    common: Common,
}

impl MirrorArgs {
    /// The engine that is asked, and the mirror.
    pub fn parts(&self) -> (&Common, &str) {
        (&self.common, &self.volume)
    }
}

/// A leg of a mirror.
#[derive(Clone, Debug, clap::Args)]
pub struct LegArgs {
    /// Mirror
    volume: String,
    /// Its name or number as `braid stat` shows them, or its URI
    leg: String,
    #[command(flatten)]
    common: Common,
}

impl LegArgs {
    /// The engine that is asked, and the parameters.
    pub fn parts(&self) -> (&Common, MirrorParams) {
        let params = MirrorParams::of_leg(&self.volume, &self.leg);
        (&self.common, params)
    }
}

/// Starts a mirror that could not start by itself.
#[derive(Clone, Debug, clap::Args)]
pub struct AssembleArgs {
    /// Mirror
    volume: String,
    /// Although legs are missing that may have newer writes, or show an older state than they once
    /// had: what only they have, or had, is lost
    #[arg(long)]
    without_missing: bool,
    /// Give up what this leg has: its name or number as `braid stat` shows them, or its URI
    #[arg(long, value_name = "LEG")]
    discard: Option<String>,
    /// Its legs are of a mirror with another name, as they should: that is called as this one then
    #[arg(long)]
    accept: bool,
    #[command(flatten)]
    common: Common,
}

/// Compares all legs, now and as long as it takes.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    of: MirrorArgs,
    /// Show it until it is over, and what it found; exit code 1 if legs differ then, if something
    /// could not be read, or not all was compared; 3 if the engine has ended
    #[arg(long)]
    wait: bool,
}

/// Makes alike what differs. Which leg is right nobody can tell from what they hold.
#[derive(Clone, Debug, clap::Args)]
pub struct RepairArgs {
    #[command(flatten)]
    check: CheckArgs,
    /// The leg that counts: its name or number as `braid stat` shows them, or its URI. Without it,
    /// the one in sync with the lowest number, where all are in sync for equally long
    #[arg(long, value_name = "LEG")]
    from: Option<String>,
}

/// Has the legs of a mirror compared.
///
/// # Errors
/// As [`mirror()`]; [`Exit`] 1 as `wait` says.
pub fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let (common, volume) = args.of.parts();
    let begun = common.call(&EngineCall::MirrorCheck(MirrorParams::of(volume)))?;
    match args.wait {
        true => found(args, false),
        false => common.print(&begun, said),
    }
}

/// Has a mirror made alike.
///
/// # Errors
/// As [`check`].
pub fn repair(args: &RepairArgs) -> anyhow::Result<()> {
    let (common, volume) = args.check.of.parts();
    let begun = common.call(&EngineCall::MirrorRepair(MirrorParams {
        leg: args.from.clone(),
        ..MirrorParams::of(volume)
    }))?;
    match args.check.wait {
        true => found(&args.check, true),
        false => common.print(&begun, said),
    }
}

/// Waits for a check, and shows what it found.
fn found(args: &CheckArgs, repairs: bool) -> anyhow::Result<()> {
    let (common, volume) = args.of.parts();
    let mut mirror = wait_checked(common, volume)?;
    let alike = is_alike(&mirror["checked"], repairs);
    let words = last_check(&mirror).unwrap_or_else(|| "it was not begun, or is gone".into());
    let mut value = match mirror["checked"].take() {
        Value::Null => json!({}),
        found => found,
    };
    (value["volume"], value["alike"]) = (volume.into(), alike.into());
    let differs = number(&value["differences"]) > number(&value["repaired"]);
    let verdict = match alike {
        true => "alike",
        false if differs => "not alike",
        false => "not known to be alike",
    };
    let told = common.print(&value, |text, _| {
        writeln!(text, "{volume}: {verdict}: {words}")
    });
    if let Err(why) = output::unless_closed(told) {
        output::note(&format!("{why:#}"));
    }
    match alike {
        true => Ok(()),
        false => Err(Exit(1).into()),
    }
}

/// Whether all copies are the same after a check, by what it found.
fn is_alike(checked: &Value, repairs: bool) -> bool {
    let count = |key: &str| number(&checked[key]);
    let bad = count("differences") + count("unreadable") + count("skipped");
    let mended = if repairs { count("repaired") } else { 0 };
    checked["complete"] == true && checked["changed"] != true && mended >= bad
}

/// One of the calls about a mirror.
type Ask = fn(MirrorParams) -> EngineCall;

/// Asks something of a mirror.
///
/// # Errors
/// No engine that answers, or what it says.
pub fn mirror(ask: Ask, args: &MirrorArgs) -> anyhow::Result<()> {
    let call = ask(MirrorParams::of(&args.volume));
    args.common.show(&call, said)
}

/// Asks something of a leg.
///
/// # Errors
/// As [`mirror()`].
pub fn leg(ask: Ask, args: &LegArgs) -> anyhow::Result<()> {
    let (common, params) = args.parts();
    let call = ask(params);
    let value = common.call(&call)?;
    common.print(&value, said)
}

/// Has a mirror start.
///
/// # Errors
/// As [`mirror()`].
pub fn assemble(args: &AssembleArgs) -> anyhow::Result<()> {
    let value = args.common.call(&EngineCall::MirrorAssemble(MirrorParams {
        without: args.without_missing,
        discard: args.discard.clone(),
        accept: args.accept,
        ..MirrorParams::of(&args.volume)
    }))?;
    args.common.print(&value, said)
}

/// Result of the verb, or why there was nothing to do.
fn said(text: &mut String, value: &Value) -> std::fmt::Result {
    let volume = word(&value["volume"]);
    let leg = match value["leg"].as_u64() {
        Some(slot) => slot.to_string(),
        None => word(&value["leg"]).to_owned(),
    };
    if let Some(why) = value["nothing"].as_str() {
        return writeln!(text, "{volume}: nothing to do: {why}");
    }
    let see = format!("braid mirror status {volume} shows it");
    let what = match word(&value["state"]) {
        "checking" => format!("the check has begun; {see}"),
        "repairing" if !value["source"].is_null() => {
            format!(
                "the repair has begun, by what {} has; {see}",
                word(&value["source"])
            )
        }
        "repairing" => format!("the repair has begun; {see}"),
        "check-paused" => "the check is paused".into(),
        "check-resumed" => format!("the check goes on; {see}"),
        "check-ended" => format!("the check has ended; {see}"),
        "taken-out" => format!("leg {leg} is taken out, until it is restored"),
        "accepted" => "what its last leg in sync has where it was cut off is used now".into(),
        "returning" => format!("leg {leg} returns; {see}"),
        "running" => format!("it runs; {see}"),
        _ => format!("done; {see}"), // an older engine says no more
    };
    writeln!(text, "{volume}: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(differences: u64, unreadable: u64, repaired: u64, complete: bool) -> Value {
        json!({
            "differences": differences, "unreadable": unreadable, "repaired": repaired,
            "complete": complete,
        })
    }

    #[test]
    fn legs_are_alike_when_nothing_differs_or_all_of_it_was_rewritten() {
        assert!(is_alike(&checked(0, 0, 0, true), false));
        assert!(!is_alike(&checked(0, 0, 0, false), false), "not all of it");
        assert!(!is_alike(&checked(1, 0, 0, true), false));
        assert!(!is_alike(&checked(0, 1, 0, true), true));
        assert!(is_alike(&checked(1, 1, 2, true), true));
        assert!(!is_alike(&checked(2, 1, 2, true), true));
        assert!(!is_alike(&Value::Null, false));
        let mut changed = checked(0, 0, 0, true);
        changed["changed"] = true.into();
        assert!(!is_alike(&changed, true), "a leg left meanwhile");
    }
}
