//! Offsets of superblocks, bitmap and data on a leg, and the geometry for legs of unlike sizes.
//!
//! # Contract
//! The mirror is as large as its smallest leg allows and has the largest block size of its legs.
//! Nothing overlaps; everything begins at a multiple of 4 KiB, data at one of 1 MiB, so that an I/O
//! which is aligned on the mirror is so on the leg.
//!
//! # Limits
//! At most [`REGIONS_MAX`] regions; unless told otherwise, at most 2^20 of them.
use super::bitmap::{PAGE_BYTES, pages};
use super::superblock::SUPERBLOCK_BYTES;
use crate::limits::{LEGS_MAX, REGIONS_MAX};
use block::Range;
use core::fmt;

/// Where the two superblocks of a leg begin. The first block of a leg stays empty (boot sectors,
/// labels); a partition table that is written over its beginning does not reach the second one.
pub const COPIES_AT: [u64; 2] = [4 << 10, 64 << 10];
/// Where the bitmap begins on new legs.
pub const BITMAP_AT: u64 = 128 << 10;
/// Data begin at a multiple of it.
pub const DATA_ALIGN: u64 = 1 << 20;
/// Smallest mirror, bytes.
pub const MIRROR_BYTES_MIN: u64 = 1 << 20;
/// Sizes of regions, as powers of two: 64 KiB to 1 TiB.
pub const REGION_SHIFTS: core::ops::RangeInclusive<u8> = 16..=40;

/// A region is the smallest power of two from 1 MiB on that makes no more of them, unless the user
/// sets one: small enough that a crash costs little to repair, large enough that a stream rarely
/// enters a new one (each costs a write to the bitmap before its data).
const REGIONS_USUAL: u64 = 1 << 20;
const REGION_SHIFT_USUAL: u8 = 20;
/// Sizes and offsets are multiples of it, whatever the blocks.
pub(super) const UNIT: u64 = 4096;
/// Sizes of blocks, as powers of two.
const BLOCK_SHIFTS: core::ops::RangeInclusive<u8> = 9..=12;

/// Geometry of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Its size.
    pub bytes: u64,
    /// log2 of its block size.
    pub block_shift: u8,
    /// log2 of the bytes that one bit of the bitmap stands for.
    pub region_shift: u8,
}

impl Geometry {
    /// How many regions there are; the last one may be shorter.
    pub fn regions(&self) -> u64 {
        self.bytes.div_ceil(1 << self.region_shift)
    }

    /// Whether there can be such a mirror.
    pub fn is_sound(&self) -> bool {
        REGION_SHIFTS.contains(&self.region_shift)
            && BLOCK_SHIFTS.contains(&self.block_shift)
            && self.bytes >= MIRROR_BYTES_MIN
            && self.bytes.is_multiple_of(UNIT)
            && self.regions() <= REGIONS_MAX
    }

    /// Returns the regions that a range touches.
    pub fn regions_in(&self, range: Range) -> core::ops::Range<u64> {
        let shift = self.region_shift;
        range.start >> shift..range.end.div_ceil(1 << shift)
    }

    /// Returns the bytes of a region.
    pub fn bytes_of(&self, region: u64) -> Range {
        let start = region << self.region_shift;
        let end = start.saturating_add(1 << self.region_shift);
        let end = end.min(self.bytes);
        Range { start, end }
    }

    /// Returns how many bytes a block has.
    pub fn block_bytes(&self) -> u64 {
        1 << self.block_shift
    }
}

/// Where a mirror lies on one leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Size of the leg.
    pub leg_bytes: u64,
    /// Where the mirror's first byte lies.
    pub data_offset: u64,
    /// Where the bitmap begins.
    pub bitmap_offset: u64,
}

impl Place {
    /// Whether a mirror of `geometry`, which is sound, fits there and nothing overlaps.
    pub fn holds(&self, geometry: &Geometry) -> bool {
        let aligned = [self.data_offset, self.bitmap_offset];
        let map_bytes = (pages(geometry.regions()) as u64) * PAGE_BYTES as u64;
        let ends = |at: u64, bytes: u64, before: u64| {
            at.checked_add(bytes).is_some_and(|end| end <= before)
        };
        aligned.iter().all(|at| at.is_multiple_of(UNIT))
            && ends(COPIES_AT[1], SUPERBLOCK_BYTES as u64, self.bitmap_offset)
            && ends(self.bitmap_offset, map_bytes, self.data_offset)
            && ends(self.data_offset, geometry.bytes, self.leg_bytes)
    }
}

/// A leg that a mirror is to be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its size.
    pub bytes: u64,
    /// log2 of its block size.
    pub block_shift: u8,
}

/// Why legs make no mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// None, or more than [`LEGS_MAX`].
    Legs(usize),
    /// The leg with this number has blocks that no mirror has.
    Blocks(usize),
    /// The leg with this number has no room: so many bytes would do.
    Small(usize, u64),
    /// Regions of that size are too many, or not one of [`REGION_SHIFTS`]; this one would do.
    Regions(u8),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Legs(count) => write!(f, "{count} legs: a mirror has 1 to {LEGS_MAX}"),
            Self::Blocks(_) => f.write_str("its blocks are not of 512 bytes to 4 KiB"),
            Self::Small(_, bytes) => write!(f, "too small: it needs {bytes} bytes at least"),
            Self::Regions(shift) => write!(
                f,
                "regions of such a size can't be: a power of two from {} bytes to 1 TiB",
                1_u64 << shift
            ),
        }
    }
}

/// Returns the geometry of a mirror over `legs`, and its offset on each of them. `region_shift`: as
/// the user sets it.
///
/// # Errors
/// [`PlanError`]; all of them.
pub fn plan(legs: &[Candidate], region_shift: Option<u8>) -> Result<(Geometry, u64), PlanError> {
    if legs.len() > LEGS_MAX {
        return Err(PlanError::Legs(legs.len()));
    }
    if let Some(at) = legs
        .iter()
        .position(|leg| !BLOCK_SHIFTS.contains(&leg.block_shift))
    {
        return Err(PlanError::Blocks(at));
    }
    let smallest = (0..).zip(legs).min_by_key(|(_, leg)| leg.bytes);
    let (at, smallest) = smallest.ok_or(PlanError::Legs(0))?;
    let fits = |shift: u8, most: u64| smallest.bytes.div_ceil(1 << shift) <= most;
    let (mut all, largest) = (REGION_SHIFTS, *REGION_SHIFTS.end());
    let least = all
        .find(|&shift| fits(shift, REGIONS_MAX))
        .unwrap_or(largest);
    let mut from_usual = REGION_SHIFT_USUAL..=largest;
    let usual = from_usual
        .find(|&shift| fits(shift, REGIONS_USUAL))
        .unwrap_or(largest);
    let region_shift = region_shift.unwrap_or(usual);
    if region_shift < least || !REGION_SHIFTS.contains(&region_shift) {
        return Err(PlanError::Regions(least));
    }
    // Of the whole leg, a few more than of its data.
    let map_bytes = pages(smallest.bytes.div_ceil(1 << region_shift)) as u64 * PAGE_BYTES as u64;
    let data_offset = (BITMAP_AT + map_bytes).next_multiple_of(DATA_ALIGN);
    let geometry = Geometry {
        bytes: smallest.bytes.saturating_sub(data_offset) / UNIT * UNIT,
        block_shift: legs.iter().map(|leg| leg.block_shift).max().unwrap_or(9),
        region_shift,
    };
    match geometry.is_sound() {
        true => Ok((geometry, data_offset)),
        false => Err(PlanError::Small(at, data_offset + MIRROR_BYTES_MIN)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn leg(bytes: u64, block_shift: u8) -> Candidate {
        Candidate { bytes, block_shift }
    }

    #[test]
    fn t34_the_smallest_leg_and_the_largest_blocks_count() {
        let legs = [leg(1 << 30, 12), leg((64 << 20) + 5000, 9), leg(1 << 40, 9)];
        let (geometry, data_offset) = plan(&legs, None).unwrap();
        assert_eq!(data_offset, 1 << 20);
        assert_eq!(geometry.bytes, (63 << 20) + 4096);
        assert_eq!((geometry.block_shift, geometry.region_shift), (12, 20));
        assert_eq!(geometry.regions(), 64);
    }

    #[test]
    fn what_can_be_no_mirror_is_refused() {
        let gib = leg(1 << 30, 9);
        for (legs, shift, error) in [
            (&[][..], None, PlanError::Legs(0)),
            (&[gib; 17], None, PlanError::Legs(17)),
            (&[gib, leg(1 << 30, 13)], None, PlanError::Blocks(1)),
            (&[gib, leg(4096, 9)], None, PlanError::Small(1, 2 << 20)),
            (&[leg((2 << 20) - 1, 9)], None, PlanError::Small(0, 2 << 20)),
            (&[gib], Some(15), PlanError::Regions(16)),
            (&[gib], Some(41), PlanError::Regions(16)),
            (&[gib], Some(200), PlanError::Regions(16)),
            (&[leg(1 << 50, 9)], Some(16), PlanError::Regions(26)),
            (&[leg(u64::MAX, 9)], Some(39), PlanError::Regions(40)),
        ] {
            assert_eq!(plan(legs, shift), Err(error), "{legs:?}");
        }
        assert!(plan(&[leg(2 << 20, 9)], None).is_ok());
    }

    proptest! {
        #[test]
        fn whatever_the_legs_are_a_plan_fits_on_each(
            legs in prop::collection::vec((any::<u64>(), 0_u32..64, 9_u8..=12), 1..5),
            wish in prop::option::of(0_u8..64),
        ) {
            let legs = legs.iter().map(|&(bytes, shift, block)| leg(bytes >> shift, block));
            let legs = legs.collect::<alloc::vec::Vec<_>>();
            if let Ok((geometry, data_offset)) = plan(&legs, wish) {
                prop_assert!(geometry.is_sound());
                for leg in &legs {
                    let (leg_bytes, bitmap_offset) = (leg.bytes, BITMAP_AT);
                    let place = Place { leg_bytes, data_offset, bitmap_offset };
                    prop_assert!(place.holds(&geometry));
                }
            } else if wish.is_none() {
                prop_assert!(legs.iter().any(|leg| leg.bytes < 4 << 20));
            }
        }
    }
}
