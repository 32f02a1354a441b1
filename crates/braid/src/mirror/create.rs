//! `braid mirror create`: makes legs of files, block devices and namespaces.
//!
//! # Contract
//! Nothing is written before everything was asked that can be said against it; but where nobody
//! knows that two legs are the same storage ([`super::same`]), it shows only when they are written,
//! and then what was there is put back. No leg is cleared before each was written wherever it will
//! be: with what was there, and with a mark where nothing of an older mirror lies. Bitmaps are
//! durable on all legs before the first superblock is written, so a creation that is interrupted
//! leaves no leg, or legs of a mirror that lacks some, and never one that means something else.
use super::foreign;
use super::leg::{Access, AccessArgs, Leg, LegFile, crc32c, draw_id, draw_lineage};
use super::same::Storage;
use super::show;
use crate::cli::Usage;
use crate::output::{self, Format};
use crate::run::is_name;
use crate::units::{format_bytes, parse_duration, parse_size};
use crate::uri::{PathUri, UriKind};
use anyhow::{Context, bail};
use mirror::bitmap::{Bitmap, PAGE_BYTES};
use mirror::copies::NoLeg;
use mirror::events::{New, NewLeg};
use mirror::layout::{BITMAP_AT, COPIES_AT, Candidate, Place, PlanError, plan};
use mirror::limits::LEGS_MAX;
use mirror::ownership::HEARTBEAT_MAX_MS;
use mirror::{Label, Name, Properties, Superblock};
use policy::Policy;
use std::time::{SystemTime, UNIX_EPOCH};

/// How often an owner says that it lives: so a foreign one is known after a quarter minute.
const BEAT_INTERVAL: &str = "5s";
/// Bounds of it, ms: what legs can take besides I/O, and how long anybody waits.
const BEAT_MS_MIN: u64 = 100;
const BEAT_MS_MAX: u64 = HEARTBEAT_MAX_MS as u64;
/// Ranges that are cleared at the end of a leg with `--force`: copies of labels and partition
/// tables.
const TAIL_BYTES: u64 = 1 << 20;
/// Where legs are marked to be told apart: between the superblocks, where no version has anything.
const MARK_AT: u64 = 32 << 10;
const _: () = assert!(COPIES_AT[0] + BLOCK_BYTES_MAX as u64 <= MARK_AT && MARK_AT < COPIES_AT[1]);
/// Largest blocks.
const BLOCK_BYTES_MAX: usize = 4096;
/// An identifier so often is one of those.
const MARK_TIMES: usize = BLOCK_BYTES_MAX / 16;

/// Make legs of a new mirror; what they hold is lost
///
/// A leg keeps the first MiB (more on large ones) for itself; the mirror is as large as the
/// smallest leg leaves. The first leg counts as in sync, the others are to be rebuilt from it,
/// unless all are files in which nothing was written yet. `braid run` runs it.
#[derive(Clone, Debug, clap::Args)]
pub struct CreateArgs {
    /// Name of the mirror
    name: String,
    /// Legs: file:/path of a file or block device, nvme-tcp://… of a namespace (one of its paths);
    /// one alone is a mirror that gets others later
    #[arg(value_name = "LEG", required = true)]
    legs: Vec<PathUri>,
    /// How reads choose among legs
    #[arg(long, value_name = "POLICY", default_value = "soonest")]
    policy: String,
    /// Bytes for which one bit of the bitmap of intents stands [default: 1MiB, larger from 1 TiB
    /// on]
    #[arg(long, value_name = "SIZE")]
    region: Option<String>,
    /// How often its owner says that it lives, 100ms to 1m; where several hosts reach the legs, a
    /// start waits for some of these
    #[arg(long, value_name = "DURATION", default_value = BEAT_INTERVAL)]
    beat_interval: String,
    /// Also over a file system, a partition table or another mirror
    #[arg(long)]
    force: bool,
    /// How to show it
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Format,
    #[command(flatten)]
    access: AccessArgs,
}

/// Makes the mirror and shows it.
///
/// # Errors
/// [`Usage`]; a leg can't be had, has no room or holds something; writing fails.
pub fn run(args: &CreateArgs) -> anyhow::Result<()> {
    let name = name(&args.name)?;
    if args.legs.len() > LEGS_MAX {
        let count = args.legs.len();
        return Err(Usage::error(format!(
            "{count} legs: a mirror has {LEGS_MAX} at most"
        )));
    }
    let properties = properties(&args.policy, args.legs.len())?;
    let region_shift = args.region.as_deref().map(region_shift).transpose()?;
    let heartbeat_interval_ms = heartbeat_interval_ms(&args.beat_interval)?;
    let legs = open(&args.legs, &Access::for_legs(&args.access, &args.legs)?)?;
    for (uri, leg) in args.legs.iter().zip(&legs) {
        let free = match args.force {
            true => leg.unowned(),
            false => refuse_foreign(leg),
        };
        free.with_context(|| uri.to_string())?;
    }
    let sizes: Vec<Candidate> = legs.iter().map(Leg::size).collect();
    let (geometry, data_offset) = plan(&sizes, region_shift).map_err(|error| unfit(error, args))?;
    let place = |leg: &Leg| Place {
        leg_bytes: leg.size().bytes,
        data_offset,
        bitmap_offset: BITMAP_AT,
    };
    let empty = legs.iter().all(|leg| leg.is_hole_from(data_offset));
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let new = New {
        mirror: draw_id(),
        lineage: draw_lineage(),
        name,
        properties,
        geometry,
        created_s: now.map_or(0, |now| now.as_secs()),
        heartbeat_interval_ms,
    };
    let entry = |uri: &PathUri| NewLeg {
        id: draw_id(),
        label: Label::of_uri(&uri.to_string()),
        in_sync: empty,
    };
    let entries: Vec<NewLeg> = args.legs.iter().map(entry).collect();
    let first = Superblock::new(&new, &entries, place(&legs[0]));
    let first = first.context("these legs make no mirror")?;
    tell_apart(&args.legs, &legs)?;
    for (uri, leg) in args.legs.iter().zip(&legs) {
        let proven = prove_writable(leg, &first, args.force);
        proven.with_context(|| format!("{uri}: it can't be written; no leg was changed"))?;
    }
    for leg in &legs {
        clear(leg, &first, args.force)?;
    }
    for (slot, leg) in (0..).zip(&legs) {
        let superblock = first.on(slot, place(leg));
        for (copy, at) in (0..).zip(COPIES_AT) {
            leg.write(at, &superblock.encode(copy, crc32c))?;
        }
        leg.sync()
            .context("the mirror is not complete: make it again, with --force")?;
    }
    match args.output {
        Format::Text => output::print(&show::mirror(&first)),
        Format::Json => output::print_json(&show::mirror_json(&first)),
    }
}

/// Each leg, alone; none twice.
///
/// # Errors
/// As [`Leg::open_exclusively`]; one is given twice.
pub(super) fn open(uris: &[PathUri], access: &Access) -> anyhow::Result<Vec<Leg>> {
    let mut legs: Vec<Leg> = Vec::new();
    let mut storages: Vec<Storage> = Vec::new();
    for uri in uris {
        let is_one = |storage: &Storage| match storages.iter().position(|it| it.meets(storage)) {
            Some(at) => Err(Usage::error(format!("{uri}: the same as {}", uris[at]))),
            None => Ok(()),
        };
        if let UriKind::File(path) = uri.kind() {
            // Looked at before it is locked: of the same file twice, the second would find it in
            // use.
            is_one(&LegFile::open(path)?.storage()?)?;
        }
        let leg = Leg::open_exclusively(uri, access)?;
        let storage = leg.storage()?;
        is_one(&storage)?;
        storages.push(storage);
        legs.push(leg);
    }
    Ok(legs)
}

/// Refuses legs that are the same storage by names of which nobody knows that: what is written to
/// one is found on the other. Where that is so, what was there before is put back.
fn tell_apart(uris: &[PathUri], legs: &[Leg]) -> anyhow::Result<()> {
    let mut before = Vec::new();
    let marked = mark(uris, legs, &mut before);
    // The first of two names had what was there. Each is put back, whatever comes of the others.
    let mut failed = None;
    for (leg, bytes) in legs.iter().zip(&before).rev() {
        let back = leg.write(MARK_AT, bytes).and_then(|()| leg.sync());
        failed = failed.or(back.err());
    }
    match (marked, failed) {
        (Ok(()), None) => Ok(()),
        (Ok(()), Some(error)) => Err(error),
        (Err(why), None) => Err(why),
        (Err(why), Some(error)) => Err(why.context(format!(
            "what was there can't be put back everywhere: {error:#}"
        ))),
    }
}

/// Writes again what is there, at each end of what will be cleared or written: a leg that refuses
/// that is found before another one has lost anything.
///
/// # Errors
/// It can't be written.
pub(super) fn prove_writable(
    leg: &Leg,
    superblock: &Superblock,
    force: bool,
) -> anyhow::Result<()> {
    let block = BLOCK_BYTES_MAX as u64;
    let (place, bytes) = (superblock.place, leg.size().bytes);
    let pages = (Bitmap::new(superblock.geometry.regions()).pages() * PAGE_BYTES) as u64;
    let map_end = (place.bitmap_offset + pages).next_multiple_of(block);
    let mut places = vec![0, COPIES_AT[0], COPIES_AT[1], place.bitmap_offset];
    places.extend([map_end - block, place.data_offset - block]);
    if force {
        let tail = bytes.saturating_sub(TAIL_BYTES).max(place.data_offset);
        let last = (bytes / block * block).saturating_sub(block);
        places.extend([tail / block * block, last.max(place.data_offset)]);
    }
    leg.read_anew()?;
    for at in places {
        let there = leg.read(at, BLOCK_BYTES_MAX)?;
        leg.write(at, &there)?;
    }
    leg.sync()
}

/// Marks each of them, and looks whether it keeps its own; `before`: what was there.
fn mark(uris: &[PathUri], legs: &[Leg], before: &mut Vec<Vec<u8>>) -> anyhow::Result<()> {
    if legs.len() < 2 {
        return Ok(());
    }
    let at = MARK_AT;
    let marks: Vec<_> = legs
        .iter()
        .map(|_| draw_id().0.repeat(MARK_TIMES))
        .collect();
    for (leg, mark) in legs.iter().zip(&marks) {
        leg.read_anew()?;
        let there = leg.read(at, mark.len())?;
        leg.write(at, mark)?;
        before.push(there);
        leg.sync()?;
    }
    for (index, (leg, mark)) in legs.iter().zip(&marks).enumerate() {
        leg.read_anew()?;
        let found = leg.read(at, mark.len())?;
        let other = marks.iter().position(|it| *it == found);
        match other {
            Some(other) if other == index => {}
            Some(other) => {
                let (uri, other) = (&uris[index.max(other)], &uris[index.min(other)]);
                return Err(Usage::error(format!("{uri}: the same as {other}")));
            }
            None => bail!("{}: it does not keep what is written", uris[index]),
        }
    }
    Ok(())
}

/// Refuses what holds something.
fn refuse_foreign(leg: &Leg) -> anyhow::Result<()> {
    let force = "(--force writes over it)";
    match leg.read_superblock()? {
        Ok(found) => {
            let it = found.superblock;
            bail!(
                "it is leg {} of the mirror \"{}\" ({}) {force}",
                it.slot,
                it.name,
                it.mirror
            )
        }
        Err(NoLeg::Missing) => {}
        Err(error) => bail!("it was a leg of a mirror {force}: {error}"),
    }
    let found = match leg {
        Leg::File(file) => foreign::found(file.path()),
        Leg::Far(_) => foreign::found_far(leg),
    };
    match found? {
        Some(what) => bail!("it holds {what} {force}"),
        None => Ok(()),
    }
}

/// Refuses what is the same storage as one of these, by their names.
fn refuse_same(storage: &Storage, legs: &[(String, Storage)]) -> anyhow::Result<()> {
    match legs.iter().find(|(_, leg)| leg.meets(storage)) {
        Some((name, _)) => bail!("it is the same as {name}, which is a leg of it already"),
        None => Ok(()),
    }
}

/// Refuses what shows a leg of this mirror, which runs: what is written on that leg is seen here,
/// or it is a copy, and whoever took it for another one would write over the mirror. But of a leg
/// that is `gone` nothing is in use.
fn refuse_own(leg: &Leg, mirror: &Superblock, gone: Option<u8>) -> anyhow::Result<()> {
    let Ok(found) = leg.read_superblock()? else {
        return Ok(());
    };
    let it = found.superblock;
    let ours = it.leg().map(|leg| leg.id);
    let entries = mirror.entries().filter(|_| it.mirror == mirror.mirror);
    let mut entries = entries.filter(|(slot, _)| Some(*slot) != gone);
    match entries.find(|(_, entry)| Some(entry.id) == ours) {
        Some((slot, entry)) => bail!(
            "it shows leg {slot} ({}) of this mirror: the same storage by another name, or a copy \
             of it. Restore that leg, or remove it first; of a copy, clear the first MiB",
            entry.label
        ),
        None => Ok(()),
    }
}

/// Contents for which a new leg is made room.
pub struct Room<'a> {
    /// The mirror, which runs.
    pub mirror: &'a Superblock,
    /// Storage of its legs, by their names.
    pub legs: &'a [(String, Storage)],
    /// The slot of a leg that is missing, and is to be replaced: what shows that one may be it.
    pub gone: Option<u8>,
    /// Whatever it holds.
    pub force: bool,
}

impl Room<'_> {
    /// # Errors
    /// It is one of the mirror's legs, too small, or holds something and `force` is not said.
    pub fn may_be_made(&self, leg: &Leg) -> anyhow::Result<()> {
        refuse_same(&leg.storage()?, self.legs)?;
        refuse_own(leg, self.mirror, self.gone)?;
        let needs = self.mirror.place.data_offset + self.mirror.geometry.bytes;
        refuse_small(leg.size().bytes, needs)?;
        match self.force {
            true => Ok(()),
            false => refuse_foreign(leg),
        }
    }
}

/// Refuses what has less room than a mirror needs.
///
/// # Errors
/// So much is needed, bytes.
pub fn refuse_small(has: u64, needs: u64) -> anyhow::Result<()> {
    let needs_words = format_bytes(needs);
    match has {
        0 => bail!("too small: it is less than a block, and the mirror needs {needs_words}"),
        has if has < needs => bail!(
            "too small: it has {}, and the mirror needs {needs_words}",
            format_bytes(has)
        ),
        _ => Ok(()),
    }
}

/// Makes a file, block device or namespace ready to be a leg of a mirror that runs, whose data
/// begin at `data_offset`: nothing at its beginning means anything.
///
/// # Errors
/// Somebody has it, or what [`Room::may_be_made`] says; nothing was written then.
pub fn make_room(uri: &PathUri, access: &Access, room: &Room<'_>) -> anyhow::Result<()> {
    let leg = Leg::open_exclusively(uri, access)?;
    leg.read_anew()?;
    room.may_be_made(&leg)?;
    let (data_offset, force) = (room.mirror.place.data_offset, room.force);
    if force {
        leg.unowned()?;
    }
    let bytes = leg.size().bytes;
    leg.zero(0..data_offset.min(bytes))?;
    if force {
        leg.zero(bytes.saturating_sub(TAIL_BYTES).max(data_offset.min(bytes))..bytes)?;
    }
    leg.sync()
}

/// Nothing of what was there stays, and all bits are clear.
fn clear(leg: &Leg, superblock: &Superblock, force: bool) -> anyhow::Result<()> {
    let (place, bytes) = (superblock.place, leg.size().bytes);
    leg.zero(0..place.data_offset)?;
    if force {
        leg.zero(bytes.saturating_sub(TAIL_BYTES).max(place.data_offset)..bytes)?;
    }
    clear_bitmap(leg, superblock)?;
    leg.sync()
}

/// Writes a bitmap in which no bit is set.
///
/// # Errors
/// It can't be written.
pub(super) fn clear_bitmap(leg: &Leg, superblock: &Superblock) -> anyhow::Result<()> {
    let bitmap = Bitmap::new(superblock.geometry.regions());
    let mut pages = Vec::with_capacity(bitmap.pages() * PAGE_BYTES);
    for page in 0..bitmap.pages() {
        pages.extend_from_slice(&bitmap.encode(page, superblock.mirror, crc32c));
    }
    // Whole blocks; what is behind the last page means nothing.
    pages.resize(pages.len().next_multiple_of(BLOCK_BYTES_MAX), 0);
    leg.write(superblock.place.bitmap_offset, &pages)
}

/// The properties of a new mirror.
fn properties(policy: &str, legs: usize) -> anyhow::Result<Properties> {
    let usage = |error: String| Usage::error(format!("--policy {policy}: {error}"));
    let parsed = Policy::parse(policy).and_then(|it| it.check(legs).map(|()| it));
    let parsed = engine::mirror::for_mirror(parsed.map_err(|error| usage(error.to_string()))?);
    let mut properties = Properties::default();
    let set = properties.set("policy", &parsed.to_string());
    set.map_err(|error| usage(error.to_string()))?;
    Ok(properties)
}

/// Checks the name of a mirror.
///
/// # Errors
/// [`Usage`]: no volume can be called so.
pub(super) fn name(text: &str) -> anyhow::Result<Name> {
    let name = Name::new(text).map_err(|error| Usage::error(format!("the name: {error}")))?;
    if name.is_empty() {
        return Err(Usage::error("a mirror needs a name"));
    }
    if !is_name(text) {
        return Err(Usage::error(format!(
            "the name: \"{text}\" can be no volume's: letters, digits and . - _ only"
        )));
    }
    Ok(name)
}

fn heartbeat_interval_ms(text: &str) -> anyhow::Result<u32> {
    let wrong = |why: &str| Usage::error(format!("--beat-interval {text}: {why}"));
    let ns = parse_duration(text).map_err(|error| wrong(&error.to_string()))?;
    let ms = ns / 1_000_000;
    match (BEAT_MS_MIN..=BEAT_MS_MAX).contains(&ms) {
        true => Ok(ms as u32),
        false => Err(wrong("from 100ms to 1m")),
    }
}

fn region_shift(text: &str) -> anyhow::Result<u8> {
    let bytes = parse_size(text).map_err(|error| Usage::error(format!("--region: {error}")))?;
    match bytes.is_power_of_two() {
        true => Ok(bytes.ilog2() as u8),
        false => Err(Usage::error(format!("--region {text}: not a power of two"))),
    }
}

/// Why the legs make no mirror, with the leg's name.
fn unfit(error: PlanError, args: &CreateArgs) -> anyhow::Error {
    match error {
        PlanError::Legs(_) => Usage::error(error.to_string()),
        PlanError::Blocks(at) => anyhow::anyhow!("{}: {error}", args.legs[at]),
        PlanError::Small(at, bytes) => {
            anyhow::anyhow!(
                "{}: too small: {} at least",
                args.legs[at],
                format_bytes(bytes)
            )
        }
        PlanError::Regions(least) => Usage::error(format!(
            "--region {}: from {} to 1 TiB, a power of two",
            args.region.as_deref().unwrap_or_default(),
            format_bytes(1 << least)
        )),
    }
}
