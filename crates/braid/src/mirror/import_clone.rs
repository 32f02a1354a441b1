//! `braid mirror import-clone`: makes a mirror of its own of copied legs.
//!
//! # Contract
//! What legs hold stays as it is; only bitmaps and superblocks are written, with a new identifier
//! of the mirror and of each leg, so that original and copy may be used side by side. Copies of a
//! mirror that was not stopped in order need not be of one moment: then one leg in sync counts, and
//! the others are rebuilt from it. Legs that are not given are none of the new mirror.
//!
//! A leg is written as any update writes it: first the superblock that does not hold. An import
//! that was interrupted between the two leaves a leg whose superblocks are of different mirrors;
//! the next import reads it by the one that the interrupted one had not written yet.
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
use mirror::assembly::{Assembly, Refusal, Role, Wishes, assemble};
use mirror::copies::{Chosen, NoLeg};
use mirror::events::{New, NewLeg};
use mirror::layout::COPIES_AT;
use mirror::limits::LEGS_MAX;
use mirror::superblock::SUPERBLOCK_BYTES;
use mirror::{Label, Name, Superblock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Give copied legs of a mirror identifiers of their own, so that both can be used
///
/// Their content stays. The copies must not be in use, and are a mirror by themselves then:
/// `braid run` runs it. Where the mirror was not stopped in order before it was copied, one leg
/// counts, and the others are rebuilt from it.
#[derive(Clone, Debug, clap::Args)]
pub struct ImportCloneArgs {
    /// Copies of legs of one mirror; one is enough if it was in sync, and the mirror stopped in
    /// order before it was copied: the clone has what was written until then
    #[arg(value_name = "LEG", required = true)]
    legs: Vec<PathUri>,
    /// Name of the new mirror [default: as the one that was copied]
    #[arg(long)]
    name: Option<String>,
    /// Although legs that are not given may have newer writes, as the mirror was not stopped in
    /// order before: what only they have is not in it
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
    let (given, assembly) = together(args, &access, &legs)?;
    // The one that counts comes first.
    let is_in_sync = |role: &Role| *role == Role::InSync;
    let source = assembly.roles.iter().position(is_in_sync);
    let source = source.context("none of them was in sync")?;
    let mut order: Vec<usize> = (0..legs.len()).collect();
    order.swap(0, source);
    let alike = |at: usize| !assembly.unclean && is_in_sync(&assembly.roles[at]);
    let first = identified(args, &order, &given, name, alike)?;
    let said = order.iter().zip(0..);
    let said: Vec<(usize, Superblock)> = said
        .map(|(&at, slot)| (at, first.on(slot, given[at].superblock.place)))
        .collect();
    for (at, superblock) in &said {
        let proven = prove_writable(&legs[*at], superblock, false);
        let uri = &args.legs[*at];
        proven.with_context(|| format!("{uri}: it can't be written; no leg was changed"))?;
    }
    for (done, (at, superblock)) in said.iter().enumerate() {
        let order = copies_to_write(&given[*at]);
        let written = written(&legs[*at], superblock, order);
        let before = order_names(args, &said[..done]);
        written.with_context(|| format!("{}: {}", args.legs[*at], incomplete(&before)))?;
    }
    match args.output {
        Format::Text => output::print(&show::mirror(&first)),
        Format::Json => output::print_json(&show::mirror_json(&first)),
    }
}

/// Assembles the legs.
fn together(
    args: &ImportCloneArgs,
    access: &Access,
    legs: &[Leg],
) -> anyhow::Result<(Vec<Chosen>, Assembly)> {
    let seen = args.legs.iter().map(|uri| examine::examined(uri, access));
    let mut seen = seen.collect::<anyhow::Result<Vec<_>>>()?;
    let mut given = Vec::new();
    for (seen, leg) in seen.iter_mut().zip(legs) {
        if seen.found == Err(NoLeg::Disagree) {
            seen.found = before_import(leg)?;
        }
        let chosen = seen.found.map_err(|why| anyhow!("{}: {why}", seen.uri))?;
        refuse_unfit(&seen.uri, &chosen.superblock)?;
        given.push(chosen);
    }
    let all: Vec<Superblock> = given.iter().map(|it| it.superblock).collect();
    let wishes = Wishes {
        without: args.without_missing || is_whole_alone(&all),
        discard: None,
    };
    let each: Vec<_> = all.iter().copied().map(Ok).collect();
    let assembly = assemble(&each, wishes);
    let assembly = assembly.map_err(|why| {
        let words = match &why {
            Refusal::Incomplete(missing) => missing_words(&all, missing),
            _ => show::refusal_words(&seen, &why),
        };
        anyhow!("no mirror: {words}")
    })?;
    for (uri, it) in args.legs.iter().zip(&all) {
        if !it.place.holds(&assembly.next.geometry) {
            bail!("{uri}: {}", NoLeg::Small);
        }
    }
    Ok((given, assembly))
}

/// # Errors
/// A newer braid wrote it; some of its blocks are lost.
fn refuse_unfit(uri: &str, it: &Superblock) -> anyhow::Result<()> {
    let features = it.features;
    if features.compatible | features.read_only | features.incompatible != 0 {
        bail!("{uri}: it has features of a newer braid: use that braid");
    }
    if it.cut_at > 0 || !it.bad.is_empty() {
        bail!(
            "{uri}: some of its blocks are known to be bad or cut off: repair the mirror that was \
             copied, and copy it again"
        );
    }
    Ok(())
}

/// Whether these were copied after one stop in order: then each that is in sync has all that was
/// written until that stop, and the legs that are not given are not needed.
fn is_whole_alone(given: &[Superblock]) -> bool {
    let event = given.first().map(|it| it.event);
    given.iter().all(|it| it.clean && Some(it.event) == event)
}

/// Why legs that are missing are needed.
fn missing_words(given: &[Superblock], missing: &[u8]) -> String {
    let newest = given.iter().max_by_key(|it| it.event);
    let name = |slot: &u8| {
        let entry = newest.and_then(|it| it.legs.get(usize::from(*slot)).copied().flatten());
        let label = entry.map_or(String::new(), |it| format!(" ({})", it.label));
        format!("leg {slot}{label}")
    };
    let names: Vec<String> = missing.iter().map(name).collect();
    format!(
        "{} may have newer writes: the mirror was not stopped in order before these legs were \
         copied, or not all of them were copied then: give a copy of it as well, or import \
         without what only it has (--without-missing)",
        names.join(", ")
    )
}

/// A leg on which an import was interrupted between its two superblocks, as it was before: by the
/// superblock that the import had not written yet. The new superblock was made of that, so it
/// knows no more, and the data are the same for both.
///
/// The new one is told by never having been used: a leg whose superblocks disagree otherwise may
/// have been written as one of the other mirror, and stays refused.
fn before_import(leg: &Leg) -> anyhow::Result<Result<Chosen, NoLeg>> {
    let mut copies = Vec::new();
    for (copy, at) in (0..).zip(COPIES_AT) {
        let bytes = leg.read(at, SUPERBLOCK_BYTES)?;
        copies.push(Superblock::parse(&bytes, copy, crc32c));
    }
    let [Ok(a), Ok(b)] = copies[..] else {
        return Ok(Err(NoLeg::Disagree)); // they changed meanwhile
    };
    let chosen = older_of(&a, &b).map(|copy| {
        let (superblock, other) = if copy == 0 { (a, b) } else { (b, a) };
        Chosen {
            superblock,
            copy,
            other: Ok(other.sequence),
        }
    });
    let chosen = chosen.ok_or(NoLeg::Disagree);
    Ok(chosen.and_then(|it| it.on_leg_of(leg.size().bytes)))
}

/// Which of two superblocks of different mirrors is the one from before an import; `None`: they
/// are not what an interrupted import leaves.
fn older_of(a: &Superblock, b: &Superblock) -> Option<u8> {
    let place = |it: &Superblock| (it.geometry, it.place.data_offset, it.place.bitmap_offset);
    if a.mirror == b.mirror || place(a) != place(b) {
        return None;
    }
    match (is_unused(a), is_unused(b)) {
        (false, true) if a.created_s <= b.created_s => Some(0),
        (true, false) if b.created_s <= a.created_s => Some(1),
        (true, true) if a.created_s < b.created_s => Some(0),
        (true, true) if b.created_s < a.created_s => Some(1),
        _ => None,
    }
}

/// Whether it is as [`Superblock::new`] makes it: its mirror was never begun with it.
fn is_unused(it: &Superblock) -> bool {
    let is_first = it.sequence == 1 && it.event == 1 && it.mark == 1;
    is_first && it.clean && it.owner.is_none() && it.confirmed == 0
}

/// Superblock of the first leg, with identifiers of its own.
fn identified(
    args: &ImportCloneArgs,
    order: &[usize],
    given: &[Chosen],
    name: Option<Name>,
    alike: impl Fn(usize) -> bool,
) -> anyhow::Result<Superblock> {
    let it = &given[order[0]].superblock;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let new = New {
        mirror: draw_id(),
        lineage: draw_lineage(),
        name: name.unwrap_or(it.name),
        properties: it.properties,
        geometry: it.geometry,
        created_s: now.map_or(0, |now| now.as_secs()),
        heartbeat_interval_ms: it.heartbeat_interval_ms,
    };
    let entries = order.iter().map(|&at| NewLeg {
        id: draw_id(),
        label: Label::of_uri(&args.legs[at].to_string()),
        in_sync: alike(at),
    });
    let entries: Vec<NewLeg> = entries.collect();
    Superblock::new(&new, &entries, it.place).context("these legs make no mirror")
}

/// Names of the legs that are written.
fn order_names(args: &ImportCloneArgs, done: &[(usize, Superblock)]) -> String {
    let names: Vec<String> = done.iter().map(|it| args.legs[it.0].to_string()).collect();
    names.join(" ")
}

/// Advice after a failure; `done`: the legs that were written before.
fn incomplete(done: &str) -> String {
    match done {
        "" => "no leg was imported: give the same command again".into(),
        _ => format!(
            "the mirror is not complete: import those that are done by themselves (braid mirror \
             import-clone {done} --without-missing), and add the others when it runs (braid mirror \
             add --force)"
        ),
    }
}

/// Numbers of the copies in the order in which they are written: the one that holds comes last.
fn copies_to_write(now: &Chosen) -> [u8; 2] {
    [now.next_copy(), now.copy]
}

/// Has a leg say that, durably. Until its first superblock is written it is what it was: pages of a
/// bitmap that are not of its mirror count as set.
fn written(leg: &Leg, superblock: &Superblock, order: [u8; 2]) -> anyhow::Result<()> {
    clear_bitmap(leg, superblock)?;
    leg.sync()?;
    for copy in order {
        let at = COPIES_AT[usize::from(copy)];
        leg.write(at, &superblock.encode(copy, crc32c))?;
        leg.sync()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mirror::Id;
    use mirror::copies::choose;
    use mirror::layout::{BITMAP_AT, Geometry, Place};
    use mirror::superblock::ParseError;

    fn superblock(id: u8, created_s: u64) -> Superblock {
        let new = New {
            mirror: Id([id; 16]),
            lineage: 1,
            name: Name::cut("v0"),
            properties: Default::default(),
            geometry: Geometry {
                bytes: 4 << 20,
                block_shift: 9,
                region_shift: 20,
            },
            created_s,
            heartbeat_interval_ms: 5000,
        };
        let leg = NewLeg {
            id: Id([id; 16]),
            label: Label::default(),
            in_sync: true,
        };
        let place = Place {
            leg_bytes: 16 << 20,
            data_offset: 1 << 20,
            bitmap_offset: BITMAP_AT,
        };
        Superblock::new(&new, &[leg], place).unwrap()
    }

    /// A write that is torn must leave the copy that holds.
    #[test]
    fn the_copy_that_holds_is_written_last() {
        let it = superblock(1, 1);
        let torn = Err(ParseError::Missing);
        for (copies, order) in [
            ([Ok(it), Ok(it)], [1, 0]),
            ([Ok(it), torn], [1, 0]),
            ([torn, Ok(it)], [0, 1]),
        ] {
            assert_eq!(copies_to_write(&choose(copies).unwrap()), order);
        }
    }

    #[test]
    fn only_a_superblock_beside_an_unused_one_is_the_older() {
        let (old, new) = (superblock(1, 1), superblock(2, 2));
        let (used, new_used) = (old.begun(7), new.begun(8));
        for (a, b, older) in [
            (used, new, Some(0)),
            (old, new, Some(0)),
            (used, new_used, None),
            (old, new_used, None),
            (old, superblock(2, 1), None),
            (used, used, None),
        ] {
            assert_eq!(older_of(&a, &b), older);
            assert_eq!(older_of(&b, &a), older.map(|copy| 1 - copy));
        }
        let mut elsewhere = new;
        elsewhere.place.data_offset += 1 << 20;
        assert_eq!(older_of(&used, &elsewhere), None);
    }
}
