//! `braid mirror upgrade`: has the legs of a mirror say what this braid writes.
//!
//! # Contract
//! The format of a mirror is raised by this verb alone, never in passing, so that who goes back to
//! an older braid can do so until then. All legs are needed, so that none is left behind. So far
//! there is one version, without features: of legs that are whole there is nothing to upgrade,
//! which is said, and nothing is written.
//!
//! # Limits
//! What a newer braid wrote is refused where that is needed to read it ([`NoLeg::Newer`]), and
//! named where it is not.
//!
//! [`NoLeg::Newer`]: mirror::copies::NoLeg::Newer
use super::leg::{Access, AccessArgs};
use super::{examine, show};
use crate::cli::Usage;
use crate::output::{self, Format};
use crate::uri::PathUri;
use anyhow::{anyhow, bail};
use mirror::limits::LEGS_MAX;
use mirror::superblock::{Features, VERSION};
use serde_json::json;

/// Bring the format of a mirror that is not running to what this braid writes
///
/// Nothing else raises it. All legs of the mirror are to be given.
#[derive(Clone, Debug, clap::Args)]
pub struct UpgradeArgs {
    /// All legs of one mirror
    #[arg(value_name = "LEG", required = true)]
    legs: Vec<PathUri>,
    /// How to show it
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Format,
    #[command(flatten)]
    access: AccessArgs,
}

/// Upgrades the mirror, and says what was done.
///
/// # Errors
/// [`Usage`]; a leg is none, is missing, or was written by a newer braid.
pub fn run(args: &UpgradeArgs) -> anyhow::Result<()> {
    if args.legs.len() > LEGS_MAX {
        return Err(Usage::error(format!("{LEGS_MAX} legs at most")));
    }
    let access = Access::for_legs(&args.access, &args.legs)?;
    let legs = args.legs.iter().map(|uri| examine::examined(uri, &access));
    let legs = legs.collect::<anyhow::Result<Vec<_>>>()?;
    let mut newer = Features::default();
    for leg in &legs {
        let found = leg.found.map_err(|why| anyhow!("{}: {why}", leg.uri))?;
        newer.compatible |= found.superblock.features.compatible;
        newer.read_only |= found.superblock.features.read_only;
    }
    let refused = |why| anyhow!("no mirror: {}", show::refusal_words(&legs, &why));
    let assembly = examine::together(&legs).map_err(refused)?;
    let it = assembly.next;
    if let Some((slot, entry)) = it.entries().find(|it| assembly.absent.contains(&it.0)) {
        bail!(
            "leg {slot} ({}) of the mirror \"{}\" is not given, and would be left behind: give \
             all legs, or remove it from the mirror first",
            entry.label,
            it.name
        );
    }
    if newer != Features::default() {
        bail!(
            "the mirror \"{}\" has features of a newer braid (compatible {:#x}, read-only {:#x}): \
             upgrade it with that braid",
            it.name,
            newer.compatible,
            newer.read_only
        );
    }
    match args.output {
        Format::Text => output::print(&format!(
            "{}: format {VERSION} without features, as this braid writes it: nothing to upgrade\n",
            it.name
        )),
        Format::Json => output::print_json(&json!({
            "name": it.name.to_string(),
            "mirror": it.mirror.to_string(),
            "version": VERSION,
            "changed": false,
        })),
    }
}
