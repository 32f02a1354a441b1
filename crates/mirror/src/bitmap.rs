//! Write-intent bitmap: one bit per region that may differ between legs.
//!
//! # Contract
//! A page is 512 bytes, which no disk tears, with a checksum and its place. A bit is on the legs
//! before its data, so all regions of a page that can't be read may differ ([`Bitmap::suspect`]),
//! and the union of several legs' bitmaps holds ([`Bitmap::merge`]).
//!
//! # Limits
//! [`REGIONS_MAX`](crate::limits::REGIONS_MAX) regions; memory is an eighth of a byte for each.
use super::wire::{Field, checksum, field};
use super::{Crc32c, Id};
use alloc::vec::Vec;
use core::fmt;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 512;
/// Regions of a page.
pub const PAGE_REGIONS: u64 = 3840;
/// The first bytes of every page.
pub const PAGE_MAGIC: [u8; 4] = *b"bint";

const MAGIC_AT: Field = field(0, 4);
const CHECKSUM: Field = field(4, 4);
const INDEX: Field = field(8, 4);
const MIRROR: Field = field(16, 16);
const BITS: Field = field(32, 480);

const WORDS: usize = PAGE_REGIONS as usize / 64;

/// How many pages `regions` take.
pub fn pages(regions: u64) -> usize {
    regions.div_ceil(PAGE_REGIONS) as usize
}

/// Why a page is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageError {
    /// Not 512 bytes, but so many.
    Length(usize),
    /// No page was written here.
    Missing,
    /// Its checksum and that of its bytes.
    Checksum(u32, u32),
    /// It is the page of this number, or of another mirror.
    Misplaced(u32),
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(bytes) => write!(f, "only {bytes} of 512 bytes are there"),
            Self::Missing => f.write_str("no page of a bitmap"),
            Self::Checksum(stored, found) => write!(
                f,
                "damaged: its checksum is {stored:#010x}, that of its bytes {found:#010x}"
            ),
            Self::Misplaced(index) => write!(f, "this is page {index}, or another mirror's"),
        }
    }
}

/// The bits of a whole mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitmap {
    /// In pages of [`WORDS`]; bits behind the last region are clear.
    words: Vec<u64>,
    regions: u64,
}

impl Bitmap {
    /// With `regions` bits, all clear.
    pub fn new(regions: u64) -> Self {
        Self {
            words: alloc::vec![0; pages(regions) * WORDS],
            regions,
        }
    }

    /// From now on there are `regions`: those that come are clear.
    pub fn resize(&mut self, regions: u64) {
        self.regions = regions;
        self.words.resize(self.pages() * WORDS, 0);
        self.trim();
    }

    /// How many regions there are.
    pub fn regions(&self) -> u64 {
        self.regions
    }

    /// How many pages it takes.
    pub fn pages(&self) -> usize {
        pages(self.regions)
    }

    /// How many bits are set.
    pub fn count(&self) -> u64 {
        self.words
            .iter()
            .map(|word| u64::from(word.count_ones()))
            .sum()
    }

    /// Whether `region` may differ; of one that there is none, no.
    pub fn is_set(&self, region: u64) -> bool {
        let word = self.words.get((region / 64) as usize);
        word.is_some_and(|word| word >> (region % 64) & 1 == 1)
    }

    /// Sets it; whether it was clear. Nothing where there is no such region.
    pub fn set(&mut self, region: u64) -> bool {
        let clear = region < self.regions && !self.is_set(region);
        if clear {
            self.words[(region / 64) as usize] |= 1 << (region % 64);
        }
        clear
    }

    /// Clears it; whether it was set.
    pub fn clear(&mut self, region: u64) -> bool {
        let set = self.is_set(region);
        if set {
            self.words[(region / 64) as usize] &= !(1 << (region % 64));
        }
        set
    }

    /// The first set region from `region` on.
    pub fn next(&self, region: u64) -> Option<u64> {
        let first = usize::try_from(region / 64).ok()?;
        let words = (first..).zip(self.words.get(first..)?);
        words
            .map(|(at, &word)| match at == first {
                true => (at, word >> (region % 64) << (region % 64)),
                false => (at, word),
            })
            .find(|&(_, word)| word != 0)
            .map(|(at, word)| at as u64 * 64 + u64::from(word.trailing_zeros()))
    }

    /// All set regions from `first` on.
    pub fn iter_from(&self, first: u64) -> impl Iterator<Item = u64> {
        core::iter::successors(self.next(first), |region| self.next(region + 1))
    }

    /// All set regions.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.iter_from(0)
    }

    /// All set regions of page `index`.
    pub fn iter_page(&self, index: usize) -> impl Iterator<Item = u64> {
        let first = index as u64 * PAGE_REGIONS;
        let regions = self.iter_from(first);
        regions.take_while(move |region| *region < first + PAGE_REGIONS)
    }

    /// Clears page `index`.
    pub fn clear_page(&mut self, index: usize) {
        let words = self.words.iter_mut().skip(index * WORDS).take(WORDS);
        words.for_each(|word| *word = 0);
    }

    /// The first set region of page `index` from `region` on.
    pub fn next_of_page(&self, index: usize, region: u64) -> Option<u64> {
        let first = index as u64 * PAGE_REGIONS;
        let next = self.next(region.max(first));
        next.filter(|it| *it < first + PAGE_REGIONS)
    }

    /// Copies the bits of `other`, which has as many regions.
    pub fn copy_from(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word = *other;
        }
    }

    /// Sets the bits that are set in `other`, which has as many regions.
    pub fn merge(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
    }

    /// Clears the bits that are set in `other`, which has as many regions.
    pub fn remove(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= !other;
        }
    }

    /// Clears all.
    pub fn clear_all(&mut self) {
        self.words.fill(0);
    }

    /// Sets all of page `index`: its bits are not known.
    pub fn suspect(&mut self, index: usize) {
        let first = index as u64 * PAGE_REGIONS;
        for region in first..first.saturating_add(PAGE_REGIONS).min(self.regions) {
            self.set(region);
        }
    }

    /// The page that has `region`.
    pub fn page_of(region: u64) -> usize {
        (region / PAGE_REGIONS) as usize
    }

    /// The bytes of page `index` of the mirror `mirror`; of one that there is none, clear.
    pub fn encode(&self, index: usize, mirror: Id, crc32c: Crc32c) -> [u8; PAGE_BYTES] {
        let mut page = [0; PAGE_BYTES];
        MAGIC_AT.of_mut(&mut page).copy_from_slice(&PAGE_MAGIC);
        INDEX.set(&mut page, index as u64 & u64::from(u32::MAX));
        MIRROR.of_mut(&mut page).copy_from_slice(&mirror.0);
        let words = self.words.iter().skip(index * WORDS);
        for (bytes, word) in BITS.of_mut(&mut page).chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let sum = checksum(&page, CHECKSUM, crc32c);
        CHECKSUM.set(&mut page, sum.into());
        page
    }

    /// Sets the bits of `bytes`, which were read where page `index` lies. Bits behind the last
    /// region are ignored.
    ///
    /// # Errors
    /// [`PageError`]; all of them. Then nothing has changed; the caller [suspects](Self::suspect)
    /// the page.
    pub fn merge_page(
        &mut self,
        index: usize,
        bytes: &[u8],
        mirror: Id,
        crc32c: Crc32c,
    ) -> Result<(), PageError> {
        let page: &[u8; PAGE_BYTES] = bytes
            .first_chunk()
            .filter(|_| bytes.len() == PAGE_BYTES)
            .ok_or(PageError::Length(bytes.len()))?;
        if MAGIC_AT.of(page) != PAGE_MAGIC {
            return Err(PageError::Missing);
        }
        let (stored, found) = (
            CHECKSUM.number(page) as u32,
            checksum(page, CHECKSUM, crc32c),
        );
        if stored != found {
            return Err(PageError::Checksum(stored, found));
        }
        let written_as = INDEX.number(page);
        if written_as != index as u64 || MIRROR.id(page) != mirror {
            return Err(PageError::Misplaced(written_as as u32));
        }
        let words = self.words.iter_mut().skip(index * WORDS);
        for (word, bytes) in words.zip(BITS.of(page).chunks_exact(8)) {
            *word |= field(0, 8).number(bytes);
        }
        self.trim();
        Ok(())
    }

    /// Clears bits behind the last region.
    fn trim(&mut self) {
        let (whole, rest) = ((self.regions / 64) as usize, self.regions % 64);
        for (at, word) in self.words.iter_mut().enumerate().skip(whole) {
            *word &= if at == whole { (1 << rest) - 1 } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests;
