//! Superblock: the description of one leg and its mirror, in 4096 bytes.
//!
//! # Contract
//! [`Superblock::parse`] is total: any bytes give a valid superblock, or the reason why not;
//! [`Superblock::encode`] returns the bytes again. The checksum is verified before everything but
//! the magic, so any other error is in bytes that were written like that. A block of a newer
//! version is recognized ([`ParseError::is_newer`]) and never overwritten.
//!
//! # Limits
//! [`LEGS_MAX`] legs; texts up to the limits of their types. A bit of `features.compatible` that
//! this version doesn't know is dropped when the block is written again, with the data of that
//! feature.
use super::bad::{BAD_ENTRY_BYTES, BAD_MAX, BadBlocks};
use super::history::{History, Lineage};
use super::layout::{COPIES_AT, Geometry, Place};
use super::text::{Label, Name, Properties};
use super::wire::{Field, checksum, field};
use super::{BadText, Crc32c, Id};
use crate::limits::{LEGS_MAX, LINEAGES_MAX};
use core::fmt;

/// Bytes of a superblock.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// The format that this version writes, and the only one it reads.
pub const VERSION: u32 = 1;
/// Counters stay below it, so a counter that was read can be raised.
const COUNT_END: u64 = 1 << 62;
/// No mirror starts with a leg whose counters reach it: later superblocks have to be valid, too.
const START_END: u64 = 1 << 61;
/// The first bytes of every superblock.
pub const MAGIC: [u8; 8] = *b"braidleg";

const MAGIC_AT: Field = field(0, 8);
const CHECKSUM: Field = field(8, 4);
const VERSION_AT: Field = field(12, 4);
const COMPATIBLE: Field = field(16, 8);
const READ_ONLY: Field = field(24, 8);
const INCOMPATIBLE: Field = field(32, 8);
const SEQUENCE: Field = field(40, 8);
const MIRROR: Field = field(48, 16);
const LEG: Field = field(64, 16);
const SLOT: Field = field(80, 1);
const COPY: Field = field(81, 1);
const CLEAN: Field = field(82, 1);
const BLOCK_SHIFT: Field = field(83, 1);
const REGION_SHIFT: Field = field(84, 1);
const LINEAGES: Field = field(85, 1);
const EVENT: Field = field(88, 8);
const BYTES: Field = field(96, 8);
const LEG_BYTES: Field = field(104, 8);
const DATA_OFFSET: Field = field(112, 8);
const BITMAP_OFFSET: Field = field(120, 8);
const CREATED: Field = field(128, 8);
const BEAT_INTERVAL: Field = field(136, 4);
const NAME: Field = field(160, 64);
const PROPERTIES: Field = field(224, 512);
const OWNER_RUN: Field = field(736, 16);
const OWNER_HOST: Field = field(752, 16);
const OWNER_SINCE: Field = field(768, 8);
const OWNER_BEAT: Field = field(776, 8);
const OWNER_LABEL: Field = field(784, 80);
const OWNER_BOUND: Field = field(864, 4);
const PREVIOUS_RUN: Field = field(872, 16);
const CUT_AT: Field = field(1016, 8);
const HISTORY: Field = field(1024, 16 * LINEAGES_MAX);
const LEGS: Field = field(1280, LEG_ENTRY_BYTES * LEGS_MAX);
const BAD: Field = field(3328, BAD_ENTRY_BYTES * BAD_MAX);
const CONFIRMED: Field = field(3968, 8);
const MARK: Field = field(3976, 8);

const LINEAGE_ENTRY_BYTES: usize = 16;
const LINEAGE_ID: Field = field(0, 8);
const LINEAGE_FIRST: Field = field(8, 8);

const LEG_ENTRY_BYTES: usize = 128;
const ENTRY_ID: Field = field(0, 16);
const ENTRY_STATE: Field = field(16, 1);
const ENTRY_SEEN_EVENT: Field = field(24, 8);
const ENTRY_SEEN_LINEAGE: Field = field(32, 8);
const ENTRY_POSITION: Field = field(40, 8);
const ENTRY_LABEL: Field = field(48, 80);

/// Bit of `incompatible`, set if and only if the leg has a `cut at`.
const CUT: u64 = 1;
/// Bit of `incompatible`: there is a record of bad blocks. A version that does not know it would
/// read these blocks from a leg that lacks them.
const BAD_BLOCKS: u64 = 1 << 1;
/// Bits of `incompatible` that this version knows.
const KNOWN: u64 = CUT | BAD_BLOCKS;

/// Features of the format that a superblock uses, as bits. The bits of features that version 1
/// knows follow from other fields, and are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// A version that doesn't know them may use the mirror.
    pub compatible: u64,
    /// A version that doesn't know them may only read.
    pub read_only: u64,
    /// A version that doesn't know them may not use the mirror.
    pub incompatible: u64,
}

/// Owner of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Drawn at random when it started.
    pub run: Id,
    /// Its host.
    pub host: Id,
    /// Its name for users.
    pub label: Label,
    /// Since when, seconds of Unix time by its clock.
    pub since_s: u64,
    /// When it wrote its last heartbeat, seconds of Unix time by its clock, for users. Other hosts
    /// watch whether the sequence rises.
    pub heartbeat_s: u64,
    /// After the end of its lease, its legs may execute earlier requests for so long (T9), ms; 0:
    /// not known.
    pub bound_ms: u32,
}

/// Entry of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegEntry {
    /// The leg.
    pub id: Id,
    /// Its state.
    pub state: EntryState,
    /// Label by which it was last reached, for users.
    pub label: Label,
}

/// State of a leg in a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// It has every acknowledged write.
    InSync,
    /// It missed writes: it left, or was never rebuilt.
    Stale(Lack),
    /// It gets all writes, and the data that it missed are being copied to it.
    Rebuilding(Lack),
}

/// Data that a leg lacks: everything from `position` on, and below it the dirty regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lack {
    /// Byte of the mirror; its size: only the bitmap counts.
    pub position: u64,
    /// It had this event for certain.
    pub seen_event: u64,
    /// That event's lineage; 0: it never had one.
    pub seen_lineage: u64,
}

/// Superblock of one leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Abilities that it needs.
    pub features: Features,
    /// Rises with every write, heartbeats included. Of a leg's two copies the higher one is valid.
    pub sequence: u64,
    /// Number of the generation: rises with every change of the mirror's state.
    pub event: u64,
    /// Earlier generations, by their lineages.
    pub history: History,
    /// It was stopped cleanly: legs in sync have the same data, and all was flushed.
    pub clean: bool,
    /// The mirror.
    pub mirror: Id,
    /// The leg's number: its entry in `legs`.
    pub slot: u8,
    /// Its geometry.
    pub geometry: Geometry,
    /// Where it lies on this leg.
    pub place: Place,
    /// When it was made, seconds of Unix time.
    pub created_s: u64,
    /// Its name.
    pub name: Name,
    /// Its properties.
    pub properties: Properties,
    /// Owner of the mirror.
    pub owner: Option<Owner>,
    /// Run of the owner before that one; without an owner, of the last one. None: not known.
    pub previous_run: Id,
    /// Heartbeat interval of the owner, ms.
    pub heartbeat_interval_ms: u32,
    /// All legs, by number.
    pub legs: [Option<LegEntry>; LEGS_MAX],
    /// Both copies of each other leg in sync had this `mark` or a higher one when this was written;
    /// 0: not known.
    pub confirmed: u64,
    /// The `sequence` of the last write that was not the owner record of an acquisition: it shows
    /// an older copy of a leg to every owner. 0: not known.
    pub mark: u64,
    /// While it was the last leg in sync the leg was smaller than the mirror needs: its data from
    /// this byte of the mirror on are lost, whatever its size now. 0: it was not.
    pub cut_at: u64,
    /// Blocks that a leg could not write, or that only a leg has which has left.
    pub bad: BadBlocks,
}

/// Why bytes are no superblock that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// Not 4096 bytes, but so many.
    Length(usize),
    /// There is no magic: no superblock was written here.
    Missing,
    /// Its checksum and that of its bytes.
    Checksum(u32, u32),
    /// Its version is not supported.
    Version(u32),
    /// It needs abilities that this version doesn't have: the bits.
    Incompatible(u64),
    /// It was written as the copy of this number, and does not lie there.
    Misplaced(u8),
    /// A field that can't be so.
    Field(&'static str),
}

impl ParseError {
    /// Whether newer software wrote it: it may be the best leg there is.
    pub fn is_newer(self) -> bool {
        matches!(self, Self::Version(_) | Self::Incompatible(_))
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(bytes) => write!(f, "only {bytes} of 4096 bytes are there"),
            Self::Missing => f.write_str("no superblock"),
            Self::Checksum(stored, found) => write!(
                f,
                "damaged: its checksum is {stored:#010x}, that of its bytes {found:#010x}"
            ),
            Self::Version(version) => write!(
                f,
                "written by a newer braid: format {version}, and this one reads format {VERSION} \
                 (use that braid)"
            ),
            Self::Incompatible(bits) => write!(
                f,
                "written by a newer braid: it needs the features {bits:#x}, which this one lacks \
                 (use that braid)"
            ),
            Self::Misplaced(copy) => write!(f, "this is copy {copy}, written to a wrong place"),
            Self::Field(name) => write!(f, "\"{name}\" has a value that can't be"),
        }
    }
}

impl Superblock {
    /// Whether its counts are ones from which a mirror may go on.
    pub fn leaves_room(&self) -> bool {
        self.sequence.max(self.event) < START_END
    }

    /// This leg's entry.
    pub fn leg(&self) -> Option<&LegEntry> {
        self.legs.get(usize::from(self.slot))?.as_ref()
    }

    /// All legs with their numbers.
    pub fn entries(&self) -> impl Iterator<Item = (u8, &LegEntry)> {
        let entries = (0..).zip(&self.legs);
        entries.filter_map(|(slot, entry)| Some((slot, entry.as_ref()?)))
    }

    /// Numbers of the legs that have every acknowledged write.
    pub fn in_sync(&self) -> impl Iterator<Item = u8> {
        let in_sync = |entry: &LegEntry| entry.state == EntryState::InSync;
        self.entries()
            .filter(move |it| in_sync(it.1))
            .map(|it| it.0)
    }

    /// The bytes of copy `copy` (0 or 1).
    pub fn encode(&self, copy: u8, crc32c: Crc32c) -> [u8; SUPERBLOCK_BYTES] {
        let mut block = [0; SUPERBLOCK_BYTES];
        MAGIC_AT.of_mut(&mut block).copy_from_slice(&MAGIC);
        let leg = self.leg().map_or(Id::default(), |leg| leg.id);
        let previous_run = (PREVIOUS_RUN, self.previous_run);
        for (field, id) in [(MIRROR, self.mirror), (LEG, leg), previous_run] {
            field.of_mut(&mut block).copy_from_slice(&id.0);
        }
        let lineages = self.history.as_slice();
        let is_cut = if self.cut_at > 0 { CUT } else { 0 };
        let has_bad = if self.bad.is_empty() { 0 } else { BAD_BLOCKS };
        for (field, number) in [
            (VERSION_AT, VERSION.into()),
            (READ_ONLY, self.features.read_only),
            (INCOMPATIBLE, self.features.incompatible | is_cut | has_bad),
            (SEQUENCE, self.sequence),
            (SLOT, self.slot.into()),
            (COPY, copy.into()),
            (CLEAN, self.clean.into()),
            (BLOCK_SHIFT, self.geometry.block_shift.into()),
            (REGION_SHIFT, self.geometry.region_shift.into()),
            (LINEAGES, lineages.len() as u64),
            (EVENT, self.event),
            (BYTES, self.geometry.bytes),
            (LEG_BYTES, self.place.leg_bytes),
            (DATA_OFFSET, self.place.data_offset),
            (BITMAP_OFFSET, self.place.bitmap_offset),
            (CREATED, self.created_s),
            (BEAT_INTERVAL, self.heartbeat_interval_ms.into()),
            (CONFIRMED, self.confirmed),
            (MARK, self.mark),
            (CUT_AT, self.cut_at),
        ] {
            field.set(&mut block, number);
        }
        self.name.encode(NAME.of_mut(&mut block));
        self.properties.encode(PROPERTIES.of_mut(&mut block));
        if let Some(owner) = &self.owner {
            encode_owner(owner, &mut block);
        }
        let entries = HISTORY
            .of_mut(&mut block)
            .chunks_exact_mut(LINEAGE_ENTRY_BYTES);
        for (entry, lineage) in entries.zip(lineages) {
            LINEAGE_ID.set(entry, lineage.id);
            LINEAGE_FIRST.set(entry, lineage.first_event);
        }
        let entries = LEGS.of_mut(&mut block).chunks_exact_mut(LEG_ENTRY_BYTES);
        for (entry, leg) in entries.zip(&self.legs) {
            if let Some(leg) = leg {
                encode_leg(leg, entry);
            }
        }
        self.bad.encode(BAD.of_mut(&mut block));
        let sum = checksum(&block, CHECKSUM, crc32c);
        CHECKSUM.set(&mut block, sum.into());
        block
    }

    /// Parses `bytes`, which were read where copy `copy` lies.
    ///
    /// # Errors
    /// [`ParseError`]; all of them.
    pub fn parse(bytes: &[u8], copy: u8, crc32c: Crc32c) -> Result<Self, ParseError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(ParseError::Missing);
        }
        let block: &[u8; SUPERBLOCK_BYTES] = bytes
            .first_chunk()
            .filter(|_| bytes.len() == SUPERBLOCK_BYTES)
            .ok_or(ParseError::Length(bytes.len()))?;
        let (stored, found) = (
            CHECKSUM.number(block) as u32,
            checksum(block, CHECKSUM, crc32c),
        );
        if stored != found {
            return Err(ParseError::Checksum(stored, found));
        }
        let version = VERSION_AT.number(block) as u32;
        if version != VERSION {
            return Err(ParseError::Version(version));
        }
        let incompatible = INCOMPATIBLE.number(block);
        let unknown = incompatible & !KNOWN;
        if unknown != 0 {
            return Err(ParseError::Incompatible(unknown));
        }
        let is_cut = incompatible & CUT != 0;
        let written_as = COPY.number(block) as u8;
        if written_as != copy {
            return Err(ParseError::Misplaced(written_as));
        }
        let superblock = fields(block)?;
        if is_cut != (superblock.cut_at > 0) {
            return Err(ParseError::Field("cut at"));
        }
        superblock.check(LEG.id(block))?;
        Ok(superblock)
    }

    /// Checks fields against one another.
    fn check(&self, leg: Id) -> Result<(), ParseError> {
        let mirror_bytes = self.geometry.bytes;
        let claim = |holds: bool, name| match holds {
            true => Ok(()),
            false => Err(ParseError::Field(name)),
        };
        claim(!self.mirror.is_none(), "mirror")?;
        claim(self.event < COUNT_END, "event")?;
        claim(self.sequence < COUNT_END, "sequence")?;
        claim(self.leg().is_some_and(|it| it.id == leg), "slot")?;
        claim(self.geometry.is_sound(), "bytes")?;
        claim(self.place.holds(&self.geometry), "data offset")?;
        claim(self.history.current().first_event <= self.event, "lineages")?;
        claim(self.cut_at < mirror_bytes, "cut at")?;
        claim(self.in_sync().next().is_some(), "legs")?;
        let is_leg = |slot: u8| {
            self.legs
                .get(usize::from(slot))
                .is_some_and(Option::is_some)
        };
        let blocks = mirror_bytes >> self.geometry.block_shift;
        let mut bad = self.bad.iter();
        claim(
            bad.all(|it| is_leg(it.slot) && it.end() <= blocks),
            "bad blocks",
        )?;
        for (slot, entry) in self.entries() {
            let others = self.entries().filter(|it| it.0 != slot);
            let alone = others.into_iter().all(|it| it.1.id != entry.id);
            claim(alone && !entry.id.is_none(), "legs")?;
            if let EntryState::Stale(lack) | EntryState::Rebuilding(lack) = entry.state {
                claim(lack.position <= mirror_bytes, "legs")?;
                claim(lack.seen_event <= self.event, "legs")?;
            }
        }
        Ok(())
    }
}

fn encode_owner(owner: &Owner, block: &mut [u8]) {
    OWNER_RUN.of_mut(block).copy_from_slice(&owner.run.0);
    OWNER_HOST.of_mut(block).copy_from_slice(&owner.host.0);
    OWNER_SINCE.set(block, owner.since_s);
    OWNER_BEAT.set(block, owner.heartbeat_s);
    OWNER_BOUND.set(block, owner.bound_ms.into());
    owner.label.encode(OWNER_LABEL.of_mut(block));
}

fn encode_leg(leg: &LegEntry, entry: &mut [u8]) {
    ENTRY_ID.of_mut(entry).copy_from_slice(&leg.id.0);
    let (state, lack) = match leg.state {
        EntryState::InSync => (1, None),
        EntryState::Stale(lack) => (2, Some(lack)),
        EntryState::Rebuilding(lack) => (3, Some(lack)),
    };
    ENTRY_STATE.set(entry, state);
    if let Some(lack) = lack {
        ENTRY_SEEN_EVENT.set(entry, lack.seen_event);
        ENTRY_SEEN_LINEAGE.set(entry, lack.seen_lineage);
        ENTRY_POSITION.set(entry, lack.position);
    }
    leg.label.encode(ENTRY_LABEL.of_mut(entry));
}

/// Each field by itself.
fn fields(block: &[u8; SUPERBLOCK_BYTES]) -> Result<Superblock, ParseError> {
    let text = |name| move |_: BadText| ParseError::Field(name);
    let clean = match CLEAN.number(block) {
        0 => false,
        1 => true,
        _ => return Err(ParseError::Field("clean")),
    };
    let mut legs = [None; LEGS_MAX];
    let entries = LEGS.of(block).chunks_exact(LEG_ENTRY_BYTES);
    for (leg, entry) in legs.iter_mut().zip(entries) {
        *leg = parse_leg(entry)?;
    }
    Ok(Superblock {
        features: Features {
            compatible: COMPATIBLE.number(block),
            read_only: READ_ONLY.number(block),
            incompatible: 0,
        },
        sequence: SEQUENCE.number(block),
        event: EVENT.number(block),
        history: parse_history(block).ok_or(ParseError::Field("lineages"))?,
        clean,
        mirror: MIRROR.id(block),
        slot: SLOT.number(block) as u8,
        geometry: Geometry {
            bytes: BYTES.number(block),
            block_shift: BLOCK_SHIFT.number(block) as u8,
            region_shift: REGION_SHIFT.number(block) as u8,
        },
        place: Place {
            leg_bytes: LEG_BYTES.number(block),
            data_offset: DATA_OFFSET.number(block),
            bitmap_offset: BITMAP_OFFSET.number(block),
        },
        created_s: CREATED.number(block),
        name: Name::parse(NAME.of(block)).map_err(text("name"))?,
        properties: Properties::parse(PROPERTIES.of(block)).map_err(text("properties"))?,
        owner: parse_owner(block)?,
        previous_run: PREVIOUS_RUN.id(block),
        heartbeat_interval_ms: BEAT_INTERVAL.number(block) as u32,
        legs,
        confirmed: CONFIRMED.number(block),
        mark: MARK.number(block),
        cut_at: CUT_AT.number(block),
        bad: parse_bad(block).ok_or(ParseError::Field("bad blocks"))?,
    })
}

/// Without its bit in `incompatible` the record is ignored.
fn parse_bad(block: &[u8]) -> Option<BadBlocks> {
    if INCOMPATIBLE.number(block) & BAD_BLOCKS == 0 {
        return Some(BadBlocks::default());
    }
    BadBlocks::parse(BAD.of(block)).filter(|it| !it.is_empty())
}

fn parse_history(block: &[u8]) -> Option<History> {
    let mut lineages = [Lineage::default(); LINEAGES_MAX];
    let entries = HISTORY.of(block).chunks_exact(LINEAGE_ENTRY_BYTES);
    for (lineage, entry) in lineages.iter_mut().zip(entries) {
        lineage.id = LINEAGE_ID.number(entry);
        lineage.first_event = LINEAGE_FIRST.number(entry);
    }
    let (there, empty) = lineages.split_at_checked(LINEAGES.number(block) as usize)?;
    let unused = empty.iter().all(|it| *it == Lineage::default());
    History::from_slice(there).filter(|_| unused)
}

fn parse_owner(block: &[u8]) -> Result<Option<Owner>, ParseError> {
    let run = OWNER_RUN.id(block);
    let label = Label::parse(OWNER_LABEL.of(block)).map_err(|_| ParseError::Field("owner"))?;
    let owner = Owner {
        run,
        host: OWNER_HOST.id(block),
        label,
        since_s: OWNER_SINCE.number(block),
        heartbeat_s: OWNER_BEAT.number(block),
        bound_ms: OWNER_BOUND.number(block) as u32,
    };
    Ok((!run.is_none()).then_some(owner))
}

fn parse_leg(entry: &[u8]) -> Result<Option<LegEntry>, ParseError> {
    let lack = Lack {
        position: ENTRY_POSITION.number(entry),
        seen_event: ENTRY_SEEN_EVENT.number(entry),
        seen_lineage: ENTRY_SEEN_LINEAGE.number(entry),
    };
    let state = match ENTRY_STATE.number(entry) {
        0 => return Ok(None),
        1 => EntryState::InSync,
        2 => EntryState::Stale(lack),
        3 => EntryState::Rebuilding(lack),
        _ => return Err(ParseError::Field("legs")),
    };
    Ok(Some(LegEntry {
        id: ENTRY_ID.id(entry),
        state,
        label: Label::parse(ENTRY_LABEL.of(entry)).map_err(|_| ParseError::Field("legs"))?,
    }))
}

const _: () =
    assert!(LEGS.at + LEGS.bytes <= SUPERBLOCK_BYTES && HISTORY.at + HISTORY.bytes <= LEGS.at);
const _: () = assert!(LEGS.at + LEGS.bytes <= BAD.at && BAD.at + BAD.bytes <= CONFIRMED.at);
const _: () = assert!(COPIES_AT[0] + SUPERBLOCK_BYTES as u64 <= COPIES_AT[1]);

#[cfg(test)]
pub(super) mod tests;
