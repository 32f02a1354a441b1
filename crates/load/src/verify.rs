//! Data that can be checked: every block carries a stamp, and a table knows what was written last.
//!
//! # Contract
//! The unit of a stamp is a *block* of 512…4096 bytes. A writer claims the blocks of an I/O before
//! it issues it and releases them when it has ended; a reader does the same. While a block is
//! claimed no other I/O may touch it, so what a read must find is always known.
//!
//! # Limits
//! The table has 4 bytes per block, [`crate::limits::VERIFY_BLOCKS_MAX`] blocks over all jobs. A
//! block's sequence number wraps after 2^30 writes of one job.
use super::pattern::Region;
use crc_fast::{CrcAlgorithm, Digest};
use std::fmt;

/// `braid stamp`, as a little-endian number.
const MAGIC: u64 = u64::from_le_bytes(*b"braidST1");
const CRC_AT: usize = 28;
const BODY_AT: usize = 32;

/// Makes and checks stamps of one run.
///
/// Layout, little-endian: magic u64 · run u64 · address u64 (byte offset) · sequence u32 · CRC32C
/// u32 over the block without this field · filling that depends on all of them.
#[derive(Clone, Copy, Debug)]
pub struct Stamps {
    /// Tells this run's blocks from those of every other.
    pub run: u64,
}

/// Expected content of a read block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A whole stamp of any run.
    AnyRun,
    /// This sequence number of this run.
    Sequence(u32),
}

/// Difference between a block and its expected content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// There is no stamp, where this run has written one.
    NoStamp,
    /// There is no stamp, and this run has written none.
    NeverStamped,
    /// The stamp belongs to another address.
    Address {
        /// Which.
        found: u64,
    },
    /// The stamp is of another run.
    Run,
    /// An older or newer write than the last one.
    Sequence {
        /// Of the block that was read.
        found: u32,
        /// Of the last write.
        expected: u32,
    },
    /// The stamp is right, the block is damaged or torn.
    Damaged,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStamp => f.write_str("no stamp: something else is there"),
            Self::NeverStamped => f.write_str(
                "no stamp: this was never written with --verify, or something else has overwritten \
                 it; run --rw write --verify first (mem: is new at each start)",
            ),
            Self::Address { found } => write!(f, "holds the block of byte {found}"),
            Self::Run => f.write_str("holds a block of an earlier run: a write was lost"),
            Self::Sequence { found, expected } => {
                write!(
                    f,
                    "holds write {found} instead of {expected}: a write was lost or repeated"
                )
            }
            Self::Damaged => f.write_str("the checksum does not fit: damaged or torn"),
        }
    }
}

impl Stamps {
    /// Fills one block.
    pub fn stamp(self, block: &mut [u8], address: u64, sequence: u32) {
        block[..8].copy_from_slice(&MAGIC.to_le_bytes());
        block[8..16].copy_from_slice(&self.run.to_le_bytes());
        block[16..24].copy_from_slice(&address.to_le_bytes());
        block[24..CRC_AT].copy_from_slice(&sequence.to_le_bytes());
        let mut word = self.run ^ address.rotate_left(20) ^ u64::from(sequence).rotate_left(44);
        for chunk in block[BODY_AT..].chunks_exact_mut(8) {
            // Weyl sequence with one multiplication: no two blocks look alike, and it is cheap.
            word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (word ^ (word >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            chunk.copy_from_slice(&mixed.to_le_bytes());
        }
        let crc = checksum(block);
        block[CRC_AT..BODY_AT].copy_from_slice(&crc.to_le_bytes());
    }

    /// Checks one block.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(self, block: &[u8], address: u64, expected: Expected) -> Result<(), Mismatch> {
        if u64_at(block, 0) != MAGIC {
            return Err(match expected {
                Expected::AnyRun => Mismatch::NeverStamped,
                Expected::Sequence(_) => Mismatch::NoStamp,
            });
        }
        if u32_at(block, CRC_AT) != checksum(block) {
            return Err(Mismatch::Damaged);
        }
        let found = u64_at(block, 16);
        if found != address {
            return Err(Mismatch::Address { found });
        }
        let Expected::Sequence(expected) = expected else {
            return Ok(());
        };
        if u64_at(block, 8) != self.run {
            return Err(Mismatch::Run);
        }
        match u32_at(block, 24) {
            found if found == expected => Ok(()),
            found => Err(Mismatch::Sequence { found, expected }),
        }
    }
}

/// The last write to each block of a job's region, and which blocks an I/O is using.
#[derive(Debug)]
pub struct Table {
    begin: u64,
    block: u32,
    /// Per block: [`CLAIMED`], [`UNKNOWN`] or not, and the sequence number (0 = not written).
    entries: Box<[u32]>,
    sequence: u32,
}

const CLAIMED: u32 = 1 << 31;
const UNKNOWN: u32 = 1 << 30;
const SEQUENCE: u32 = UNKNOWN - 1;

impl Table {
    /// A table in which nothing was written. The region's ends are multiples of `block`.
    pub fn new(region: Region, block: u32) -> Self {
        let blocks = region.bytes() / u64::from(block);
        Self {
            begin: region.begin,
            block,
            entries: vec![0; blocks as usize].into_boxed_slice(),
            sequence: 0,
        }
    }

    /// Claims the blocks of an I/O; false, and nothing claimed, if one of them is in use.
    pub fn claim(&mut self, offset: u64, length: u32) -> bool {
        let blocks = self.blocks(offset, length);
        if blocks.iter().any(|entry| entry & CLAIMED != 0) {
            return false;
        }
        blocks.iter_mut().for_each(|entry| *entry |= CLAIMED);
        true
    }

    /// The I/O on these blocks has ended and changed nothing.
    pub fn release(&mut self, offset: u64, length: u32) {
        self.blocks(offset, length)
            .iter_mut()
            .for_each(|entry| *entry &= !CLAIMED);
    }

    /// The sequence number of the next write.
    pub fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence % SEQUENCE + 1;
        self.sequence
    }

    /// The write of these claimed blocks has ended. The effect of a failed one is unknown.
    pub fn written(&mut self, offset: u64, length: u32, sequence: u32, good: bool) {
        let entry = if good { sequence } else { UNKNOWN };
        self.blocks(offset, length).fill(entry);
    }

    /// Returns the expected content of the block at `address`; `None` if nothing is known of it.
    pub fn expected(&self, address: u64) -> Option<Expected> {
        let entry = self.entries[self.index(address)];
        match entry & !CLAIMED {
            0 | UNKNOWN => None,
            sequence => Some(Expected::Sequence(sequence & SEQUENCE)),
        }
    }

    /// The first run of written blocks at or behind `from`, at most `longest` bytes: where it
    /// begins and its bytes. `None`: there is none.
    pub fn next_written(&self, from: u64, longest: u32) -> Option<(u64, u32)> {
        let known = |entry: &u32| !matches!(entry & !CLAIMED, 0 | UNKNOWN);
        let first = self.index(from);
        let first = first + self.entries.get(first..)?.iter().position(known)?;
        let most = (longest / self.block).max(1) as usize;
        let run = self.entries[first..]
            .iter()
            .take(most)
            .take_while(|entry| known(entry))
            .count();
        Some((
            self.begin + first as u64 * u64::from(self.block),
            run as u32 * self.block,
        ))
    }

    fn index(&self, address: u64) -> usize {
        ((address - self.begin) / u64::from(self.block)) as usize
    }

    fn blocks(&mut self, offset: u64, length: u32) -> &mut [u32] {
        let first = self.index(offset);
        &mut self.entries[first..first + (length / self.block) as usize]
    }
}

fn checksum(block: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&block[..CRC_AT]);
    digest.update(&block[BODY_AT..]);
    digest.finalize() as u32
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMPS: Stamps = Stamps { run: 77 };

    fn block(address: u64, sequence: u32) -> Vec<u8> {
        let mut block = vec![0; 512];
        STAMPS.stamp(&mut block, address, sequence);
        block
    }

    #[test]
    fn a_stamp_is_what_was_stamped() {
        let bytes = block(4096, 3);
        assert_eq!(STAMPS.check(&bytes, 4096, Expected::Sequence(3)), Ok(()));
        assert_eq!(
            Stamps { run: 1 }.check(&bytes, 4096, Expected::AnyRun),
            Ok(())
        );
    }

    #[test]
    fn every_kind_of_wrong_data_is_told_apart() {
        let expected = Expected::Sequence(3);
        let check = |bytes: &[u8]| STAMPS.check(bytes, 4096, expected).unwrap_err();
        assert_eq!(check(&[0; 512]), Mismatch::NoStamp);
        let unwritten = STAMPS.check(&[0; 512], 4096, Expected::AnyRun).unwrap_err();
        assert!(
            unwritten.to_string().contains("never written"),
            "{unwritten}"
        );
        assert_eq!(check(&block(8192, 3)), Mismatch::Address { found: 8192 });
        assert_eq!(
            check(&block(4096, 2)),
            Mismatch::Sequence {
                found: 2,
                expected: 3
            }
        );
        let mut other = vec![0; 512];
        Stamps { run: 1 }.stamp(&mut other, 4096, 3);
        assert_eq!(check(&other), Mismatch::Run);
    }

    #[test]
    fn every_damaged_byte_is_found() {
        let good = block(4096, 3);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            let found = STAMPS.check(&bad, 4096, Expected::AnyRun);
            assert!(
                matches!(found, Err(Mismatch::Damaged | Mismatch::NeverStamped)),
                "byte {at}"
            );
        }
    }

    #[test]
    fn a_torn_block_is_found() {
        let (mut new, old) = (block(4096, 4), block(4096, 3));
        new[256..].copy_from_slice(&old[256..]);
        assert_eq!(
            STAMPS.check(&new, 4096, Expected::Sequence(4)),
            Err(Mismatch::Damaged)
        );
    }

    #[test]
    fn a_claimed_block_is_nobody_elses() {
        let mut table = Table::new(
            Region {
                begin: 4096,
                end: 4096 + 8 * 512,
            },
            512,
        );
        assert!(table.claim(4096, 1024));
        assert!(!table.claim(4608, 1024), "overlaps");
        assert!(
            table.claim(5120, 512),
            "and the attempt left nothing behind"
        );
        let sequence = table.next_sequence();
        table.written(4096, 1024, sequence, true);
        assert!(table.claim(4608, 512), "free again");
        assert_eq!(table.expected(4608), Some(Expected::Sequence(1)));
        table.release(4608, 512);
        assert_eq!(table.expected(4608), Some(Expected::Sequence(1)));
    }

    #[test]
    fn what_a_failed_write_left_is_unknown() {
        let mut table = Table::new(
            Region {
                begin: 0,
                end: 4096,
            },
            512,
        );
        assert!(table.claim(0, 512));
        table.written(0, 512, 1, false);
        assert_eq!(table.expected(0), None);
        assert_eq!(table.next_written(0, 4096), None);
    }

    #[test]
    fn written_runs_are_found_one_after_the_other() {
        let mut table = Table::new(
            Region {
                begin: 0,
                end: 10 * 512,
            },
            512,
        );
        for (offset, length) in [(512, 1536), (4608, 512)] {
            assert!(table.claim(offset, length));
            table.written(offset, length, 9, true);
        }
        assert_eq!(table.next_written(0, 1024), Some((512, 1024)));
        assert_eq!(table.next_written(1536, 1024), Some((1536, 512)));
        assert_eq!(table.next_written(2048, 1024), Some((4608, 512)));
        assert_eq!(table.next_written(5120, 1024), None);
    }
}
