//! Record of the block ranges that a leg in sync could not write, and of those whose last good copy
//! a leg holds that is not in sync.
//!
//! # Contract
//! Pure: sets of block ranges by leg and kind, kept sorted, without overlap, adjacent ranges of one
//! leg and kind merged. So a record has one encoding. `BadBlocks::parse` is total: it refuses
//! every other encoding. An update that does not fit changes nothing and returns `None`.
//!
//! # Limits
//! [`BAD_MAX`] ranges of all legs together, each of less than 2^32 blocks.
use super::wire::{Field, field};
use crate::limits::LEGS_MAX;

/// Ranges of all legs together.
pub const BAD_MAX: usize = 40;
/// Bytes of an entry.
pub(super) const BAD_ENTRY_BYTES: usize = 16;
pub(super) const ENTRY_START: Field = field(0, 8);
pub(super) const ENTRY_BLOCKS: Field = field(8, 4);
pub(super) const ENTRY_SLOT: Field = field(12, 1);
pub(super) const ENTRY_KIND: Field = field(13, 1);
const ENTRY_RESERVED: Field = field(14, 2);

/// Meaning of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum BadKind {
    /// The leg could not write the blocks: its data there are not valid.
    #[default]
    Unwritten,
    /// The leg left while no other leg in sync had these blocks, and they were not written since.
    LastCopy,
}

/// A range of blocks of one leg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BadRange {
    /// The leg.
    pub slot: u8,
    /// Meaning.
    pub kind: BadKind,
    /// First block of the mirror.
    pub first: u64,
    /// Blocks, at least one.
    pub blocks: u32,
}

impl BadRange {
    /// First block behind it.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.blocks)
    }

    fn is_of(&self, slot: u8, kind: BadKind) -> bool {
        self.slot == slot && self.kind == kind
    }

    fn key(&self) -> (u8, BadKind, u64) {
        (self.slot, self.kind, self.first)
    }
}

/// The record of all legs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BadBlocks {
    /// Unused ones are all zero.
    entries: Entries,
    count: u8,
}

/// An array that has a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entries([BadRange; BAD_MAX]);

impl Default for Entries {
    fn default() -> Self {
        Self([BadRange::default(); BAD_MAX])
    }
}

impl BadBlocks {
    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All entries, by leg, kind and first block.
    pub fn iter(&self) -> impl Iterator<Item = &BadRange> + Clone {
        self.entries.0.iter().take(usize::from(self.count))
    }

    /// Entries of one leg and kind.
    pub fn of(&self, slot: u8, kind: BadKind) -> impl Iterator<Item = &BadRange> + Clone {
        self.iter().filter(move |it| it.is_of(slot, kind))
    }

    /// Whether some block of `first..end` is recorded.
    pub fn touches(&self, slot: u8, kind: BadKind, first: u64, end: u64) -> bool {
        self.of(slot, kind)
            .any(|it| it.first < end && first < it.end())
    }

    /// Whether every block of `first..end` is recorded.
    pub fn covers(&self, slot: u8, kind: BadKind, first: u64, end: u64) -> bool {
        self.of(slot, kind)
            .any(|it| it.first <= first && end <= it.end())
    }

    /// With `first..end` besides; `None`: no room.
    pub fn with(&self, slot: u8, kind: BadKind, first: u64, end: u64) -> Option<Self> {
        let joins = |it: &BadRange| it.is_of(slot, kind) && it.first <= end && first <= it.end();
        let joined = self.iter().filter(|it| joins(it));
        let (first, end) = joined.fold((first, end), |(a, b), it| {
            (a.min(it.first), b.max(it.end()))
        });
        let merged = BadRange {
            slot,
            kind,
            first,
            blocks: u32::try_from(end.checked_sub(first)?)
                .ok()
                .filter(|it| *it > 0)?,
        };
        let others = || {
            self.iter()
                .filter(|it| !it.is_of(slot, kind) || it.end() < first || it.first > end)
        };
        let before = others().filter(|it| it.key() < merged.key());
        let behind = others().filter(|it| it.key() > merged.key());
        Self::from_sorted(before.chain([&merged]).chain(behind).copied())
    }

    /// Without `first..end`; `None`: a range would have to be split, and there is no room.
    pub fn without(&self, slot: u8, kind: BadKind, first: u64, end: u64) -> Option<Self> {
        if first >= end {
            return Some(*self);
        }
        let part = |it: &BadRange, from: u64, to: u64| {
            let blocks = u32::try_from(to.saturating_sub(from)).ok()?;
            let first = from;
            (blocks > 0).then_some(BadRange {
                first,
                blocks,
                ..*it
            })
        };
        Self::from_sorted(self.iter().flat_map(|it| {
            let parts = match it.is_of(slot, kind) {
                true => [
                    part(it, it.first, it.end().min(first)),
                    part(it, it.first.max(end), it.end()),
                ],
                false => [Some(*it), None],
            };
            parts.into_iter().flatten()
        }))
    }

    /// The entries of one leg and kind alone, as those of leg 0 that could not write them.
    #[must_use]
    pub fn of_one(&self, slot: u8, kind: BadKind) -> Self {
        let ranges = self.of(slot, kind).map(|it| BadRange {
            slot: 0,
            kind: BadKind::Unwritten,
            ..*it
        });
        Self::from_sorted(ranges).unwrap_or_default()
    }

    /// The blocks that both have. Those that do not fit are left out.
    #[must_use]
    pub fn both(&self, other: &Self) -> Self {
        let mut both = Self::default();
        for it in self.iter() {
            for at in other.of(it.slot, it.kind) {
                let (first, end) = (it.first.max(at.first), it.end().min(at.end()));
                let with = both.with(it.slot, it.kind, first, end.max(first));
                both = with.unwrap_or(both);
            }
        }
        both
    }

    /// Returns the entries for which `keep` holds.
    #[must_use]
    pub fn retained(&self, keep: impl Fn(&BadRange) -> bool) -> Self {
        let kept = self.iter().copied().filter(|it| keep(it));
        Self::from_sorted(kept).unwrap_or_default()
    }

    fn from_sorted(ranges: impl Iterator<Item = BadRange>) -> Option<Self> {
        let mut record = Self::default();
        for range in ranges {
            *record.entries.0.get_mut(usize::from(record.count))? = range;
            record.count += 1;
        }
        Some(record)
    }

    /// Writes it into `bytes`, which are zero.
    pub(super) fn encode(&self, bytes: &mut [u8]) {
        for (entry, range) in bytes.chunks_exact_mut(BAD_ENTRY_BYTES).zip(self.iter()) {
            ENTRY_START.set(entry, range.first);
            ENTRY_BLOCKS.set(entry, range.blocks.into());
            ENTRY_SLOT.set(entry, range.slot.into());
            let kind = match range.kind {
                BadKind::Unwritten => 1,
                BadKind::LastCopy => 2,
            };
            ENTRY_KIND.set(entry, kind);
        }
    }

    /// Parses `bytes`; `None`: [`BadBlocks::encode`] does not write them.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut record = Self::default();
        let mut entries = bytes.chunks_exact(BAD_ENTRY_BYTES);
        for entry in entries.by_ref() {
            if entry.iter().all(|byte| *byte == 0) {
                break;
            }
            let range = parse_entry(entry)?;
            let last = record.iter().last().copied();
            let follows = last.is_none_or(|last| match range.is_of(last.slot, last.kind) {
                true => last.end() < range.first,
                false => last.key() < range.key(),
            });
            if !follows {
                return None;
            }
            *record.entries.0.get_mut(usize::from(record.count))? = range;
            record.count += 1;
        }
        let rest_is_zero = entries.flatten().all(|byte| *byte == 0);
        rest_is_zero.then_some(record)
    }
}

fn parse_entry(entry: &[u8]) -> Option<BadRange> {
    let range = BadRange {
        slot: ENTRY_SLOT.number(entry) as u8,
        kind: match ENTRY_KIND.number(entry) {
            1 => BadKind::Unwritten,
            2 => BadKind::LastCopy,
            _ => return None,
        },
        first: ENTRY_START.number(entry),
        blocks: ENTRY_BLOCKS.number(entry) as u32,
    };
    range.first.checked_add(range.blocks.into())?;
    let sound = range.blocks > 0 && usize::from(range.slot) < LEGS_MAX;
    (sound && ENTRY_RESERVED.number(entry) == 0).then_some(range)
}

#[cfg(test)]
mod tests;
