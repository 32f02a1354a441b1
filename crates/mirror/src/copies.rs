//! The two copies of a leg's superblock: which one is valid, and which is written next.
//!
//! # Contract
//! An update first writes the copy that is older or not valid, durably: then it is committed. Then
//! it writes the other one. So one copy is valid after any loss of power, and both are equal at
//! rest, so damage to one loses nothing. An intact block of a newer version of braid is never
//! ignored in favour of an older one beside it.
use super::Crc32c;
use super::superblock::{ParseError, Superblock};
use core::fmt;

/// The valid superblock of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The valid superblock, or of two the one with the higher sequence.
    pub superblock: Superblock,
    /// Which copy it is: 0 or 1.
    pub copy: u8,
    /// The other copy: its sequence, or why it is invalid.
    pub other: Result<u64, ParseError>,
}

impl Chosen {
    /// Returns it, if a leg of `leg_bytes` has room for all of the mirror. The size may differ from
    /// the superblock's: the mirror may have grown since.
    ///
    /// # Errors
    /// [`NoLeg::Cut`].
    pub fn on_leg_of(mut self, leg_bytes: u64) -> Result<Self, NoLeg> {
        self.superblock.place.leg_bytes = leg_bytes;
        let needed = self.superblock.place.data_offset + self.superblock.geometry.bytes;
        match needed <= leg_bytes {
            true => Ok(self),
            false => Err(NoLeg::Cut(needed)),
        }
    }

    /// The copy that the next update writes first.
    pub fn next_copy(&self) -> u8 {
        1 - self.copy
    }
}

/// Why a leg can't be used by its superblocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLeg {
    /// There is no superblock: this is no leg.
    Missing,
    /// A newer version of braid wrote one.
    Newer(ParseError),
    /// Both are invalid, each for its reason.
    Damaged([ParseError; 2]),
    /// Neither can be read.
    Unreadable,
    /// Both are valid, and of different legs or mirrors.
    Disagree,
    /// The leg was truncated: its mirror needs so many bytes.
    Cut(u64),
    /// It was missing for so long that its history can't be compared.
    TooOld,
    /// It was removed from its mirror.
    Removed,
    /// It is smaller than its mirror needs.
    Small,
    /// Its counters are near their end: braid has not written it.
    Worn,
}

impl fmt::Display for NoLeg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("not a leg of a mirror: there is no superblock"),
            Self::Newer(error) => error.fmt(f),
            Self::Damaged([first, second]) => {
                write!(
                    f,
                    "both superblocks are bad: the first: {first}; the second: {second}"
                )
            }
            Self::Unreadable => f.write_str("neither of its superblocks can be read"),
            Self::Disagree => f.write_str("its two superblocks are of different legs"),
            Self::Cut(bytes) => write!(
                f,
                "it was cut off: a leg of its mirror has {bytes} bytes, and what lay behind its \
                 end is lost, also when it is made as long again: leave it out (braid mirror \
                 assemble with --without-missing), remove it from the mirror, clear it and add it \
                 anew; if no other leg has the data, save what is left of it first, which begins \
                 at its data offset (braid mirror examine shows it)"
            ),
            Self::TooOld => f.write_str(
                "it was away for so long that nothing can be said of what it has: it is left out \
                 (remove it from the mirror, clear its first MiB and add it anew)",
            ),
            Self::Removed => f.write_str(
                "it was removed from the mirror, and is left out (clear its first MiB to use it \
                 for something else)",
            ),
            Self::Small => f.write_str("it is smaller than the mirror needs, and is left out"),
            Self::Worn => f.write_str(
                "its superblock counts so high that braid can't have written it, and is left out \
                 (remove it from the mirror, clear its first MiB and add it anew)",
            ),
        }
    }
}

/// Chooses between the two copies of a leg.
///
/// # Errors
/// [`NoLeg`]; all of them.
pub fn choose(copies: [Result<Superblock, ParseError>; 2]) -> Result<Chosen, NoLeg> {
    let newer = copies
        .iter()
        .filter_map(|it| it.err())
        .find(|it| it.is_newer());
    if let Some(error) = newer {
        return Err(NoLeg::Newer(error));
    }
    let chosen = |superblock, copy, other| Chosen {
        superblock,
        copy,
        other,
    };
    match copies {
        [Ok(a), Ok(b)] => {
            let id = |it: &Superblock| (it.mirror, it.leg().map(|leg| leg.id));
            match id(&a) == id(&b) {
                true if a.sequence >= b.sequence => Ok(chosen(a, 0, Ok(b.sequence))),
                true => Ok(chosen(b, 1, Ok(a.sequence))),
                false => Err(NoLeg::Disagree),
            }
        }
        [Ok(a), Err(error)] => Ok(chosen(a, 0, Err(error))),
        [Err(error), Ok(b)] => Ok(chosen(b, 1, Err(error))),
        [Err(ParseError::Missing), Err(ParseError::Missing)] => Err(NoLeg::Missing),
        [Err(a), Err(b)] => Err(NoLeg::Damaged([a, b])),
    }
}

/// Parses the two copies of a leg and chooses one; `None`: the copy could not be read.
///
/// # Errors
/// [`NoLeg`]; all of them.
pub fn read_copies(copies: [Option<&[u8]>; 2], crc32c: Crc32c) -> Result<Chosen, NoLeg> {
    let parse = |bytes: Option<&[u8]>, copy| {
        let bytes = bytes.ok_or(ParseError::Length(0))?;
        Superblock::parse(bytes, copy, crc32c)
    };
    let [first, second] = copies;
    if first.is_none() && second.is_none() {
        return Err(NoLeg::Unreadable);
    }
    choose([parse(first, 0), parse(second, 1)])
}

#[cfg(test)]
mod tests;
