//! A leg with a volatile cache, and what it is given.
use super::*;
use crate::Id;
use crate::bitmap::Bitmap;
use alloc::vec::Vec;

/// One leg: versions of blocks, those that are only in its cache, and what braid wrote.
pub struct Disk {
    /// Its size.
    pub bytes: u64,
    pub blocks: [u64; BLOCKS_MAX],
    pub cache: Vec<(usize, u64)>,
    pub copies: [Vec<u8>; 2],
    pub page: Vec<u8>,
    pub bad: [bool; BLOCKS_MAX],
    /// Blocks that it can't write, and what is there stays.
    pub refused: [bool; BLOCKS_MAX],
    pub sick: bool,
    /// It ends nothing that it is given, until it does.
    pub hung: bool,
    pub away: bool,
    /// Rises when it goes away.
    pub life: u64,
    /// Requests that may still be executed, until when.
    pub late: Vec<(Given, u64)>,
    pub found: bool,
}

/// Request to a leg.
pub enum Given {
    Io(Request, u64),
    Copy(Range, Vec<u64>),
    CopyRead(u8, Range),
    Compare(u8, Range),
    Page(Vec<u8>),
    Superblock(u8, Vec<u8>),
    ReadPages,
    ReadSuperblocks,
}

impl Given {
    /// Whether it changes anything.
    pub fn changes(&self) -> bool {
        match self {
            Self::Io(request, _) => request.changes().is_some(),
            Self::Copy(..) | Self::Page(_) | Self::Superblock(..) => true,
            _ => false,
        }
    }
}

impl Disk {
    pub fn new(superblock: &Superblock) -> Self {
        Self {
            bytes: PLACE.leg_bytes,
            blocks: [0; BLOCKS_MAX],
            cache: Vec::new(),
            copies: [0, 1].map(|copy| superblock.encode(copy, crc32_iscsi).to_vec()),
            page: Bitmap::new(REGIONS_MAX)
                .encode(0, superblock.mirror, crc32_iscsi)
                .to_vec(),
            bad: [false; BLOCKS_MAX],
            refused: [false; BLOCKS_MAX],
            sick: false,
            hung: false,
            away: false,
            life: 0,
            late: Vec::new(),
            found: true,
        }
    }

    /// Another disk in its place, in which nothing was written yet.
    pub fn replace(&mut self) {
        self.copies = [vec![0; 4096], vec![0; 4096]];
        self.page = vec![0; 512];
        self.blocks = [0; BLOCKS_MAX];
        self.bad = [false; BLOCKS_MAX];
        self.refused = [false; BLOCKS_MAX];
        self.cache.clear();
        self.late.clear();
        self.found = false;
        self.life += 1;
    }

    /// A copy of what can be read of it.
    pub fn copied(&self) -> Self {
        Self {
            bytes: self.bytes,
            blocks: core::array::from_fn(|block| self.block(block)),
            cache: Vec::new(),
            copies: self.copies.clone(),
            page: self.page.clone(),
            bad: self.bad,
            refused: self.refused,
            sick: false,
            hung: false,
            away: false,
            life: self.life,
            late: Vec::new(),
            found: false,
        }
    }

    /// Data that a read finds.
    pub fn block(&self, block: usize) -> u64 {
        let cached = self.cache.iter().rev().find(|it| it.0 == block);
        cached.map_or(self.blocks[block], |it| it.1)
    }

    pub fn flush(&mut self) {
        for (block, version) in self.cache.drain(..) {
            self.blocks[block] = version;
        }
    }

    pub fn chosen(&self) -> Result<Chosen, NoLeg> {
        let [a, b] = &self.copies;
        let chosen = choose([
            Superblock::parse(a, 0, crc32_iscsi),
            Superblock::parse(b, 1, crc32_iscsi),
        ]);
        chosen.and_then(|it| it.on_leg_of(self.bytes))
    }

    pub fn intents(&self) -> Bitmap {
        let mut intents = Bitmap::new(REGIONS_MAX);
        let mirror = Id([1; 16]);
        if intents
            .merge_page(0, &self.page, mirror, crc32_iscsi)
            .is_err()
        {
            intents.suspect(0);
        }
        intents
    }

    /// Whether it ends before that.
    pub fn ends_before(&self, given: &Given) -> bool {
        let range = match given {
            Given::Io(request, _) => request.changes(),
            Given::Copy(range, _) | Given::CopyRead(_, range) | Given::Compare(_, range) => {
                Some(*range)
            }
            _ => None,
        };
        range.is_some_and(|range| PLACE.data_offset + range.end > self.bytes)
    }

    /// Whether it can't write all of what it was given.
    pub fn refuses(&self, given: &Given) -> bool {
        let range = match given {
            Given::Io(request, _) => request.changes(),
            Given::Copy(range, _) => Some(*range),
            _ => None,
        };
        range.is_some_and(|range| blocks(range).any(|block| self.refused[block]))
    }

    pub fn is_bad(&self, range: Range) -> bool {
        blocks(range).any(|block| self.bad[block])
    }
}
