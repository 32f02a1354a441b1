//! Layout of a queue's memory; the table is in layout.md.
use crate::limits::{REGION_SHIFT, REGIONS_MAX};
use nvme::limits::QUEUE_ENTRIES_MAX;
use nvme::queue::{Nap, Place};
use sys::Shared;

/// First bytes of a queue's memory: "braidq01".
const MAGIC: u64 = u64::from_le_bytes(*b"braidq01");
/// SQ tail doorbell, CQ head doorbell, asleep, armed: 128 bytes apart.
const WORDS_AT: usize = 4096;
const STRIDE: usize = 128;
const ENTRIES_AT: usize = 8192;
/// log2 of the block size of each namespace, a byte each.
const SHAPES_AT: usize = 64;
/// Namespaces whose block size is told; a broker has no more.
pub const SHAPES: usize = 64;
/// Bytes for the PRP list or SGL of one command.
pub const LIST_BYTES: usize = 4096;

/// The two kinds of queue (U1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The application looks for completions.
    #[default]
    UserPoll,
    /// The application can sleep until there are some.
    UserIrq,
}

impl Kind {
    /// Its number in memory and on the socket.
    pub fn number(self) -> u32 {
        match self {
            Self::UserPoll => 0,
            Self::UserIrq => 1,
        }
    }

    /// The kind of that number.
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::UserPoll),
            1 => Some(Self::UserIrq),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::UserPoll => "user_poll",
            Self::UserIrq => "user_irq",
        }
    }
}

/// Where things are in the memory of a queue of that many entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    entries: u16,
}

impl Layout {
    /// `None`: there is no such queue.
    pub fn new(entries: u32) -> Option<Self> {
        let entries = u16::try_from(entries).ok()?;
        (2..=QUEUE_ENTRIES_MAX)
            .contains(&entries)
            .then_some(Self { entries })
    }

    /// Entries of either queue.
    pub fn entries(self) -> u16 {
        self.entries
    }

    /// The submission queue.
    pub fn sq(self) -> Place {
        Place {
            entries_at: ENTRIES_AT,
            doorbell_at: WORDS_AT,
            entries: self.entries,
        }
    }

    /// The completion queue.
    pub fn cq(self) -> Place {
        let sq_bytes = 64 * usize::from(self.entries);
        Place {
            entries_at: ENTRIES_AT + sq_bytes.next_multiple_of(4096),
            doorbell_at: WORDS_AT + STRIDE,
            entries: self.entries,
        }
    }

    /// The broker's word.
    pub fn asleep(self) -> Nap {
        Nap::new(WORDS_AT + 2 * STRIDE)
    }

    /// The client's word.
    pub fn armed(self) -> Nap {
        Nap::new(WORDS_AT + 3 * STRIDE)
    }

    /// First byte of the pages for lists.
    pub fn lists_at(self) -> usize {
        let cq_bytes = 16 * usize::from(self.entries);
        self.cq().entries_at + cq_bytes.next_multiple_of(4096)
    }

    /// Bytes of the pages for lists.
    pub fn lists_bytes(self) -> usize {
        LIST_BYTES * usize::from(self.entries)
    }

    /// Bytes in all.
    pub fn bytes(self) -> usize {
        self.lists_at() + self.lists_bytes()
    }
}

/// The first bytes of a queue's memory: what a process needs that was handed the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Entries of either queue.
    pub layout: Layout,
    /// Its kind.
    pub kind: Kind,
    /// Its number: SQID in completions.
    pub number: u32,
    /// Largest transfer, bytes.
    pub transfer_max: u32,
    /// Namespaces: NSIDs 1 to this.
    pub namespaces: u32,
    /// log2 of the block size of each, by NSID - 1; 0: this client has no such namespace.
    pub block_shifts: [u8; SHAPES],
}

impl Header {
    /// Writes it.
    pub fn store(&self, memory: &Shared) {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let words = [
            MAGIC,
            pair(self.layout.entries.into(), self.kind.number()),
            pair(self.number, self.transfer_max),
            self.namespaces.into(),
        ];
        memory.store(0, &words);
        memory.write(SHAPES_AT, &self.block_shifts);
    }

    /// Reads it; `None`: it is no queue's memory, or too short.
    pub fn load(memory: &Shared) -> Option<Self> {
        if memory.len() < ENTRIES_AT {
            return None;
        }
        let [magic, first, second, third] = memory.load(0);
        let layout = Layout::new(first as u32)?;
        let mut block_shifts = [0; SHAPES];
        memory.read(SHAPES_AT, &mut block_shifts);
        let header = Self {
            layout,
            kind: Kind::from_number((first >> 32) as u32)?,
            number: second as u32,
            transfer_max: (second >> 32) as u32,
            namespaces: third as u32,
            block_shifts,
        };
        let is_one = block_shifts.iter().all(|shift| *shift <= 16);
        (is_one && magic == MAGIC && memory.len() >= layout.bytes()).then_some(header)
    }

    /// Bytes of so many blocks of a namespace; `None`: this client has no such namespace, so that
    /// the broker moves nothing of it.
    #[inline]
    pub fn bytes_of(&self, nsid: u32, blocks: u32) -> Option<u64> {
        let at = (nsid as usize).wrapping_sub(1);
        match self.block_shifts.get(at) {
            None | Some(0) => None,
            Some(shift) => Some(u64::from(blocks) << (shift & 31)),
        }
    }
}

/// The address of a region of registered memory; region 0 is the pages for lists.
pub fn region_address(region: usize) -> u64 {
    (region as u64 + 1) << REGION_SHIFT
}

/// The region and the offset in it that an address means; `None`: there is no such region.
#[inline]
pub fn region_of(address: u64) -> Option<(usize, usize)> {
    let region = ((address >> REGION_SHIFT) as usize).wrapping_sub(1);
    let offset = (address & ((1 << REGION_SHIFT) - 1)) as usize;
    (region < REGIONS_MAX).then_some((region, offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_in_a_queue_of_any_size() {
        for entries in [2, 3, 64, 65, 256, 257, 4096] {
            let layout = Layout::new(entries).unwrap();
            let (sq, cq) = (layout.sq(), layout.cq());
            let entries = entries as usize;
            assert!(sq.doorbell_at >= 64 && cq.doorbell_at - sq.doorbell_at >= 128);
            assert!(sq.entries_at >= 4480 + 4);
            assert!(cq.entries_at >= sq.entries_at + 64 * entries);
            assert!(layout.lists_at() >= cq.entries_at + 16 * entries);
            assert_eq!(layout.lists_at() % 4096, 0);
            assert_eq!(layout.bytes(), layout.lists_at() + 4096 * entries);
        }
        assert!(
            [0, 1, 4097, 65_538]
                .iter()
                .all(|&n| Layout::new(n).is_none())
        );
    }

    #[test]
    fn a_header_is_read_as_it_was_written_and_nothing_else_is() {
        let header = Header {
            layout: Layout::new(8).unwrap(),
            kind: Kind::UserIrq,
            number: 7,
            transfer_max: 1 << 20,
            namespaces: 3,
            block_shifts: std::array::from_fn(|n| [9, 0, 12].get(n).copied().unwrap_or(0)),
        };
        let bytes = header.layout.bytes();
        let file = sys::memory_file("test", bytes as u64).unwrap();
        let memory = Shared::map(&file, bytes).unwrap();
        assert_eq!(Header::load(&memory), None);
        header.store(&memory);
        assert_eq!(Header::load(&memory), Some(header));
        let of = [0, 1, 2, 3, 4, u32::MAX].map(|nsid| header.bytes_of(nsid, 3));
        assert_eq!(of, [None, Some(1536), None, Some(3 << 12), None, None]);
        assert_eq!(
            Header::load(&Shared::map(&file, bytes - 4096).unwrap()),
            None
        );
        for (at, value) in [(0, 1), (8, 1 | 1 << 32), (8, 8 | 2 << 32), (64, 17)] {
            header.store(&memory);
            memory.store(at, &[value]);
            assert_eq!(Header::load(&memory), None);
        }
    }

    #[test]
    fn addresses_are_regions_and_offsets() {
        for region in [0, 1, REGIONS_MAX - 1] {
            let address = region_address(region);
            assert_eq!(region_of(address + 4095), Some((region, 4095)));
        }
        for address in [
            0,
            4096,
            (1 << 40) - 1,
            region_address(REGIONS_MAX),
            u64::MAX,
        ] {
            assert_eq!(region_of(address), None, "{address:x}");
        }
    }
}
