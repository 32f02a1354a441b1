//! Get LBA Status (NVM command set 1.1, 4.2.1): which logical blocks of a range are allocated.
//!
//! The two action types of 1.0, 10h and 11h, name blocks that may be unreadable, and say nothing of
//! allocation: only 02h, which came with 1.1, does.
use super::layout::structure;
use super::{WireError, le32, put};
use alloc::vec::Vec;

/// Action type: list the allocated blocks.
pub const ALLOCATED: u8 = 0x02;
/// Completion condition: there are more entries than were transferred.
pub const INCOMPLETE: u8 = 1;
/// Completion condition: the list has all allocated blocks of the range.
pub const COMPLETE: u8 = 2;
/// Status of an entry: at least one of its blocks is allocated.
const STATUS_ALLOCATED: u8 = 2;
/// Bytes ahead of the entries.
pub const HEADER_LEN: usize = 8;

/// Parameters of the command (CDW10…CDW13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// First block.
    pub slba: u64,
    /// Bytes wanted: a multiple of 4, 4…2^34.
    pub len: u64,
    /// Action type.
    pub action: u8,
    /// Blocks; 0 = up to the end of the namespace.
    pub blocks: u16,
}

impl Request {
    /// From CDW10…CDW13.
    pub fn parse(cdw: &[u32; 4]) -> Self {
        Self {
            slba: u64::from(cdw[0]) | u64::from(cdw[1]) << 32,
            len: (u64::from(cdw[2]) + 1) * 4,
            action: (cdw[3] >> 24) as u8,
            blocks: cdw[3] as u16,
        }
    }

    /// CDW10…CDW13.
    pub fn emit(&self) -> [u32; 4] {
        [
            self.slba as u32,
            (self.slba >> 32) as u32,
            ((self.len / 4).max(1) - 1) as u32,
            u32::from(self.action) << 24 | u32::from(self.blocks),
        ]
    }
}

structure! {
    /// One entry of the list.
    pub struct Entry[16] {
        /// First block.
        slba: u64 = 0,
        /// Blocks.
        blocks: u32 = 8,
        /// Status.
        status: u8 = 13,
    }
}

impl Entry {
    /// An entry for allocated blocks.
    pub fn allocated(slba: u64, blocks: u32) -> Self {
        Self {
            slba,
            blocks,
            status: STATUS_ALLOCATED,
        }
    }
}

/// A list as it was transferred.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    condition: u8,
    entries: &'a [u8],
}

impl<'a> List<'a> {
    /// The list at the start of `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if its header is not whole; [`WireError::Field`] if it counts more
    /// entries than there are.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let Some((header, entries)) = bytes.split_at_checked(HEADER_LEN) else {
            return Err(WireError::Truncated {
                need: HEADER_LEN as u32,
                got: bytes.len() as u32,
            });
        };
        let count = le32(header, 0) as usize;
        let len = count.checked_mul(Entry::LEN);
        let entries = len.and_then(|len| entries.get(..len));
        Ok(Self {
            condition: header[4],
            entries: entries.ok_or(WireError::Field { offset: 0 })?,
        })
    }

    /// Whether it has all allocated blocks of the range that was asked about.
    pub fn is_complete(&self) -> bool {
        self.condition == COMPLETE
    }

    /// Whether it is cut off behind its last entry.
    pub fn is_incomplete(&self) -> bool {
        self.condition == INCOMPLETE
    }

    /// Its entries.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + 'a {
        let all = self.entries.chunks_exact(Entry::LEN);
        all.filter_map(|bytes| Entry::parse(bytes).ok())
    }

    /// Appends a list.
    pub fn emit(entries: &[Entry], condition: u8, out: &mut Vec<u8>) {
        let mut header = [0; HEADER_LEN];
        put(&mut header, 0, &(entries.len() as u32).to_le_bytes());
        header[4] = condition;
        out.extend_from_slice(&header);
        out.extend(entries.iter().flat_map(Entry::emit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_and_list_are_where_the_standard_has_them() {
        let request = Request {
            slba: 0x1_0000_0002,
            len: 40,
            action: ALLOCATED,
            blocks: 0x1234,
        };
        assert_eq!(request.emit(), [2, 1, 9, 0x0200_1234]);
        assert_eq!(Request::parse(&request.emit()), request);
        let mut bytes = Vec::new();
        let entries = [Entry::allocated(3, 4), Entry::allocated(9, 1)];
        List::emit(&entries, INCOMPLETE, &mut bytes);
        assert_eq!(bytes[..8], [2, 0, 0, 0, 1, 0, 0, 0]);
        let first = [3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 2, 0, 0];
        assert_eq!(bytes[8..24], first);
        let list = List::parse(&bytes).unwrap();
        assert!(list.is_incomplete() && !list.is_complete());
        assert!(list.entries().eq(entries));
    }

    #[test]
    fn list_that_counts_more_than_it_has_is_refused() {
        let mut bytes = Vec::new();
        List::emit(&[Entry::allocated(0, 1)], COMPLETE, &mut bytes);
        assert!(List::parse(&bytes[..23]).is_err() && List::parse(&bytes[..7]).is_err());
        bytes[..4].fill(0xff);
        assert!(List::parse(&bytes).is_err());
    }
}
