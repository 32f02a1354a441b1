//! `braid mirror import-clone`: makes a mirror of its own of copied legs.
//!
//! # Contract
//! What legs hold stays as it is; only bitmaps and superblocks are written, with a new identifier
//! of the mirror and of each leg, so that original and copy may be used side by side. Copies of a
//! mirror that was not stopped in order need not be of one moment: then one leg in sync counts, and
//! the others are rebuilt from it. Legs that are not given are none of the new mirror.
//!
//! # Limits
//! Only a clean stop tells that copies are of one moment: that nobody wrote while they were made is
//! up to whoever made them. A mirror with a record of bad blocks, or that was cut off, is refused.
use super::create::{clear_bitmap, open, prove_writable};
use super::leg::{Access, AccessArgs, Leg, crc32c, draw_id, draw_lineage};
use super::{examine, show};
use crate::cli::Usage;
use crate::output::{self, Format};
use crate::uri::PathUri;
use anyhow::{Context, anyhow, bail};
use std::time::{SystemTime, UNIX_EPOCH};
use volume::limits::LEGS_MAX;
use volume::mirror::assembly::{Assembly, Role, Wishes, assemble};
use volume::mirror::course::{New, NewLeg};
use volume::mirror::layout::COPIES_AT;
use volume::mirror::{Label, Name, Superblock};

/// Give copied legs of a mirror identifiers of their own, so that both can be used
///
/// What they hold stays. The copies must not be in use, and are a mirror by themselves then:
/// `braid run` runs it. Where the mirror was not stopped in order before it was copied, one leg
/// counts, and the others are rebuilt from it.
#[derive(Clone, Debug, clap::Args)]
pub struct ImportCloneArgs {
    /// Copies of legs of one mirror; one is enough if it was in sync
    #[arg(value_name = "LEG", required = true)]
    legs: Vec<PathUri>,
    /// What to call the new mirror [default: as the one that was copied]
    #[arg(long)]
    name: Option<String>,
    /// Although legs that are not given may have newer writes: what only they have is not in it
    #[arg(long)]
    without_missing: bool,
    /// How to show it
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Format,
    #[command(flatten)]
    access: AccessArgs,
}

/// Makes the mirror and shows it.
///
/// # Errors
/// [`Usage`]; a leg can't be had, is none or is in use; together they are no mirror; writing fails.
pub fn run(args: &ImportCloneArgs) -> anyhow::Result<()> {
    if args.legs.len() > LEGS_MAX {
        return Err(Usage::error(format!("{LEGS_MAX} legs at most")));
    }
    let name = args.name.as_deref().map(super::create::name).transpose()?;
    let access = Access::for_legs(&args.access, &args.legs)?;
    let legs = open(&args.legs, &access)?;
    for (uri, leg) in args.legs.iter().zip(&legs) {
        leg.unowned().with_context(|| uri.to_string())?;
    }
    let (given, assembly) = together(args, &access)?;
    // The one that counts comes first.
    let is_in_sync = |role: &Role| *role == Role::InSync;
    let source = assembly.roles.iter().position(is_in_sync);
    let source = source.context("none of them was in sync")?;
    let mut order: Vec<usize> = (0..legs.len()).collect();
    order.swap(0, source);
    let alike = |at: usize| !assembly.unclean && is_in_sync(&assembly.roles[at]);
    let first = identified(args, &order, &given, name, alike)?;
    let said = order.iter().zip(0..);
    let said: Vec<(&PathUri, &Leg, Superblock)> = said
        .map(|(&at, slot)| {
            let on = first.on(slot, given[at].place);
            (&args.legs[at], &legs[at], on)
        })
        .collect();
    for (uri, leg, superblock) in &said {
        let proven = prove_writable(leg, superblock, false);
        proven.with_context(|| format!("{uri}: it can't be written; no leg was changed"))?;
    }
    for (uri, leg, superblock) in &said {
        written(leg, superblock).with_context(|| {
            format!(
                "{uri}: the mirror is not complete: legs with its new identifier can be imported \
                 again by themselves, and the others added to it (braid mirror add --force)"
            )
        })?;
    }
    match args.output {
        Format::Text => output::print(&show::mirror(&first)),
        Format::Json => output::print_json(&show::mirror_json(&first)),
    }
}

/// What each leg says, and what they come to.
fn together(
    args: &ImportCloneArgs,
    access: &Access,
) -> anyhow::Result<(Vec<Superblock>, Assembly)> {
    let seen = args.legs.iter().map(|uri| examine::examined(uri, access));
    let seen = seen.collect::<anyhow::Result<Vec<_>>>()?;
    let mut given = Vec::new();
    for leg in &seen {
        let it = leg.found.map_err(|why| anyhow!("{}: {why}", leg.uri))?;
        let it = it.superblock;
        let features = it.features;
        if features.compatible | features.read_only | features.incompatible != 0 {
            bail!(
                "{}: it has features of a newer braid: use that braid",
                leg.uri
            );
        }
        if it.cut_at > 0 || !it.bad.is_empty() {
            bail!(
                "{}: some of its blocks are known to be bad or cut off: repair the mirror that \
                 was copied, and copy it again",
                leg.uri
            );
        }
        given.push(it);
    }
    let wishes = Wishes {
        without: args.without_missing,
        discard: None,
    };
    let all: Vec<_> = given.iter().copied().map(Ok).collect();
    let assembly = assemble(&all, wishes);
    let assembly =
        assembly.map_err(|why| anyhow!("no mirror: {}", show::refusal_words(&seen, &why)))?;
    Ok((given, assembly))
}

/// What the first leg says, with identifiers of its own.
fn identified(
    args: &ImportCloneArgs,
    order: &[usize],
    given: &[Superblock],
    name: Option<Name>,
    alike: impl Fn(usize) -> bool,
) -> anyhow::Result<Superblock> {
    let it = &given[order[0]];
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let new = New {
        mirror: draw_id(),
        lineage: draw_lineage(),
        name: name.unwrap_or(it.name),
        properties: it.properties,
        geometry: it.geometry,
        created_s: now.map_or(0, |now| now.as_secs()),
        beat_interval_ms: it.beat_interval_ms,
    };
    let entries = order.iter().map(|&at| NewLeg {
        id: draw_id(),
        label: Label::of_uri(&args.legs[at].to_string()),
        alike: alike(at),
    });
    let entries: Vec<NewLeg> = entries.collect();
    Superblock::new(&new, &entries, it.place).context("these legs make no mirror")
}

/// Has a leg say that, durably. Until its first superblock is written it is what it was: pages of a
/// bitmap that are not of its mirror count as set.
fn written(leg: &Leg, superblock: &Superblock) -> anyhow::Result<()> {
    clear_bitmap(leg, superblock)?;
    leg.sync()?;
    for (copy, at) in (0..).zip(COPIES_AT) {
        leg.write(at, &superblock.encode(copy, crc32c))?;
        leg.sync()?;
    }
    Ok(())
}
