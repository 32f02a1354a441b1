//! `braid mirror check|repair|fail|restore|assemble`: asked of the engine that runs the mirror.
use crate::run::client::Common;
use serde_json::{Value, json};
use std::fmt::Write;

/// A mirror.
#[derive(Clone, Debug, clap::Args)]
pub struct MirrorArgs {
    /// Mirror
    volume: String,
    #[command(flatten)]
    common: Common,
}

impl MirrorArgs {
    /// Who is asked, and what of.
    pub fn parts(&self) -> (&Common, &str) {
        (&self.common, &self.volume)
    }
}

/// A leg of a mirror.
#[derive(Clone, Debug, clap::Args)]
pub struct LegArgs {
    /// Mirror
    volume: String,
    /// Its number as `braid stat` shows it, or its URI
    leg: String,
    #[command(flatten)]
    common: Common,
}

impl LegArgs {
    /// Who is asked, and what of.
    pub fn parts(&self) -> (&Common, serde_json::Value) {
        let params = json!({"volume": self.volume, "leg": self.leg});
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
    /// Give up what this leg has: its URI
    #[arg(long, value_name = "LEG")]
    discard: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Makes alike what differs. Which leg is right nobody can tell from what they hold.
#[derive(Clone, Debug, clap::Args)]
pub struct RepairArgs {
    #[command(flatten)]
    of: MirrorArgs,
    /// The leg that counts: its number as `braid stat` shows it, or its URI. Without it, the one in
    /// sync with the lowest number
    #[arg(long, value_name = "LEG")]
    from: Option<String>,
}

/// Has a mirror made alike.
///
/// # Errors
/// As [`mirror`].
pub fn repair(args: &RepairArgs) -> anyhow::Result<()> {
    let (common, volume) = args.of.parts();
    let params = json!({"volume": volume, "leg": args.from});
    common.show("mirror.repair", params, |text, value| {
        said(text, volume, value, "begun")
    })
}

/// Asks something of a mirror.
///
/// # Errors
/// No engine that answers, or what it says.
pub fn mirror(verb: &str, args: &MirrorArgs) -> anyhow::Result<()> {
    let params = json!({"volume": args.volume});
    args.common
        .show(&format!("mirror.{verb}"), params, |text, value| {
            said(text, &args.volume, value, "begun")
        })
}

/// Asks something of a leg.
///
/// # Errors
/// As [`mirror`].
pub fn leg(verb: &str, args: &LegArgs) -> anyhow::Result<()> {
    let params = json!({"volume": args.volume, "leg": args.leg});
    args.common
        .show(&format!("mirror.{verb}"), params, |text, value| {
            said(text, &args.volume, value, "begun")
        })
}

/// Has a mirror start.
///
/// # Errors
/// As [`mirror`].
pub fn assemble(args: &AssembleArgs) -> anyhow::Result<()> {
    let params = json!({
        "volume": args.volume,
        "without": args.without_missing,
        "discard": args.discard,
    });
    let value = args.common.call_for_long("mirror.assemble", params)?;
    args.common.print(&value, |text, value| {
        said(text, &args.volume, value, "started")
    })
}

/// What was done, or why there was nothing to do.
fn said(text: &mut String, volume: &str, value: &Value, done: &str) -> std::fmt::Result {
    match value["nothing"].as_str() {
        Some(why) => writeln!(text, "{volume}: nothing to do: {why}"),
        None => writeln!(text, "{volume}: {done}; braid stat shows it"),
    }
}
