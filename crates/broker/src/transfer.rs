//! Between a device and the registered memory of a queue.
//!
//! # Contract
//! A data pointer is walked once; every piece is looked up before anything is moved. Of a client
//! that isn't trusted, lists are copied before they are read.
use nvme::queue::check::Trust;
use nvme::queue::pointer::{self, Piece};
use nvme::queue::{Entry, LET_GO};
use nvme::wire::Status;
use queue::layout::region_of;
use queue::limits::{REGIONS_MAX, TRANSFER_MAX};
use runtime::MemoryDevice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use sys::Shared;

/// Words of a list that are copied at once.
const COPIED: usize = 64;

/// Where a client says that it has let go of its queue, for whoever holds copies of its commands.
#[derive(Clone, Debug)]
pub struct Door {
    memory: Arc<Shared>,
    /// The tail doorbell.
    at: usize,
    /// The broker has given the queue up: the client may write to its doorbell, and not there.
    shut: Arc<AtomicBool>,
}

impl Door {
    pub fn new(memory: Arc<Shared>, at: usize) -> Self {
        Self {
            memory,
            at,
            shut: Arc::default(),
        }
    }

    /// Descriptor that shuts it, for the thread that hears first that the client is gone.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.shut)
    }

    /// The broker gives the queue up.
    pub fn shut(&self) {
        self.shut.store(true, Ordering::Relaxed);
    }

    /// Nothing is to be changed any more for this client (T9).
    pub fn is_shut(&self) -> bool {
        let word = self.memory.load_word(self.at);
        // Of lost memory the word says nothing.
        word == LET_GO || self.memory.is_lost() || self.shut.load(Ordering::Relaxed)
    }
}

/// Memory that a queue's commands may use.
#[derive(Clone, Debug)]
pub struct Region {
    pub memory: Arc<Shared>,
    /// Where in it the region begins.
    pub at: usize,
    /// Bytes.
    pub len: usize,
}

/// A part of registered memory, looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its region.
    pub region: usize,
    /// First byte in the memory of that region.
    pub at: usize,
    /// Bytes.
    pub len: u32,
}

/// All memory of a queue, and the parts of the command at hand.
#[derive(Debug)]
pub struct Memories {
    regions: [Option<Region>; REGIONS_MAX],
    door: Door,
    found: Found,
}

/// Data pointer of the command at hand, as it was when it was read.
#[derive(Debug)]
struct Found {
    pieces: Vec<Piece>,
    parts: Vec<Part>,
    copied: Copied,
}

/// Memory that may change whenever it was read: the regions of a queue.
trait Changing {
    /// Where `len` bytes at an address are; `None`: not in registered memory, or not in one region.
    fn find(&self, address: u64, len: u32) -> Option<Part>;
    /// Eight bytes at the begin of a part.
    fn word(&self, part: &Part) -> u64;
    /// As many bytes from the begin of a part.
    fn copy(&self, part: &Part, bytes: &mut [u8]);
}

impl Memories {
    /// With the pages for lists.
    pub fn new(lists: Region, door: Door) -> Self {
        let mut regions = [const { None }; REGIONS_MAX];
        regions[0] = Some(lists);
        // One piece per page at most, but for SGLs of more: those grow it once.
        let pages = (TRANSFER_MAX / 4096) as usize + 1;
        Self {
            regions,
            door,
            found: Found {
                pieces: Vec::with_capacity(pages),
                parts: Vec::with_capacity(pages),
                copied: Copied::new(),
            },
        }
    }

    /// Memory under a number; what was there.
    pub fn set(&mut self, number: usize, region: Option<Region>) -> Option<Region> {
        match self.regions.get_mut(number) {
            Some(place) => std::mem::replace(place, region),
            None => region,
        }
    }

    /// All memory goes, and with it the parts of the command at hand.
    pub fn take(&mut self) -> Vec<Region> {
        self.found.parts.clear();
        self.regions.iter_mut().filter_map(Option::take).collect()
    }

    /// A region.
    ///
    /// # Panics
    /// There is none: parts are looked up.
    pub fn region(&self, number: usize) -> &Arc<Shared> {
        match &self.regions[number] {
            Some(region) => &region.memory,
            None => unreachable!("a part of no region"),
        }
    }

    /// Whether an access to any of it faulted.
    pub fn has_lost(&self) -> bool {
        let mut regions = self.regions.iter().flatten();
        regions.any(|region| region.memory.is_lost())
    }

    /// Where the client lets go.
    pub fn door(&self) -> &Door {
        &self.door
    }

    /// The parts of the command that was looked up last.
    pub fn parts(&self) -> &[Part] {
        &self.found.parts
    }

    /// Looks up the memory of a command of `len` bytes.
    ///
    /// # Errors
    /// The status to answer with.
    #[inline]
    pub fn look_up(&mut self, entry: &Entry, len: u32, trust: Trust) -> Result<(), Status> {
        self.found.look_up(&self.regions, entry, len, trust)
    }

    /// Copies from a memory device to the parts.
    pub fn read_memory(&self, device: &MemoryDevice, offset: u64) {
        let mut offset = offset;
        for part in self.parts() {
            let memory = self.region(part.region);
            device.each(offset, part.len.into(), |stripe, range, at| {
                memory.write(part.at + at, &stripe[range]);
            });
            offset += u64::from(part.len);
        }
    }

    /// Copies from the parts to a memory device.
    pub fn write_memory(&self, device: &MemoryDevice, offset: u64) {
        let mut offset = offset;
        for part in self.parts() {
            let memory = self.region(part.region);
            device.each(offset, part.len.into(), |stripe, range, at| {
                memory.read(part.at + at, &mut stripe[range]);
            });
            offset += u64::from(part.len);
        }
    }

    /// Copies the parts, one after the other, to `bytes`, as far as they go.
    pub fn copy_out(&self, bytes: &mut [u8]) {
        let mut at = 0;
        for part in self.parts() {
            let len = (part.len as usize).min(bytes.len() - at);
            let memory = self.region(part.region);
            memory.read(part.at, &mut bytes[at..at + len]);
            at += len;
        }
    }
}

impl Found {
    /// Each word of a list is read once, and nothing else: what is looked up is what was walked.
    #[inline]
    fn look_up(
        &mut self,
        memory: &impl Changing,
        entry: &Entry,
        len: u32,
        trust: Trust,
    ) -> Result<(), Status> {
        let Self {
            pieces,
            parts,
            copied,
        } = self;
        pieces.clear();
        parts.clear();
        match trust {
            Trust::Trusted => {
                let word = |address| Some(memory.word(&memory.find(address, 8)?));
                pointer::walk(entry, len, word, pieces)?;
            }
            Trust::Mediated => {
                copied.count = 0;
                pointer::walk(entry, len, |address| copied.word(memory, address), pieces)?;
            }
        }
        for piece in pieces {
            let part = memory.find(piece.address, piece.len);
            parts.push(part.ok_or(Status::DATA_TRANSFER_ERROR.with_dnr())?);
        }
        Ok(())
    }
}

impl Changing for [Option<Region>; REGIONS_MAX] {
    #[inline]
    fn find(&self, address: u64, len: u32) -> Option<Part> {
        let (region, offset) = region_of(address)?;
        let found = self[region].as_ref()?;
        let inside = offset <= found.len && len as usize <= found.len - offset;
        inside.then_some(Part {
            region,
            at: found.at + offset,
            len,
        })
    }

    fn word(&self, part: &Part) -> u64 {
        let Some(region) = &self[part.region] else {
            return 0;
        };
        if part.at.is_multiple_of(8) {
            return region.memory.load::<1>(part.at)[0];
        }
        let mut bytes = [0; 8];
        region.memory.read(part.at, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn copy(&self, part: &Part, bytes: &mut [u8]) {
        if let Some(region) = &self[part.region] {
            region.memory.read(part.at, bytes);
        }
    }
}

/// A copy of the part of a list that is being walked.
#[derive(Debug)]
struct Copied {
    words: [u64; COPIED],
    first: u64,
    count: usize,
}

impl Copied {
    fn new() -> Self {
        Self {
            words: [0; COPIED],
            first: 0,
            count: 0,
        }
    }

    /// A word of a list, from the copy of its surroundings. Addresses of lists are multiples of 8
    /// for PRPs; for SGLs they may be anything.
    fn word(&mut self, memory: &impl Changing, address: u64) -> Option<u64> {
        let bytes = 8 * COPIED as u64;
        let begin = address & !(bytes - 1);
        if !address.is_multiple_of(8) {
            return Some(memory.word(&memory.find(address, 8)?));
        }
        if self.count == 0 || begin != self.first {
            let Some(part) = memory.find(begin, bytes as u32) else {
                // The region ends within: what is there is read alone.
                return Some(memory.word(&memory.find(address, 8)?));
            };
            let mut copy = [0; 8 * COPIED];
            memory.copy(&part, &mut copy);
            for (word, bytes) in self.words.iter_mut().zip(copy.chunks_exact(8)) {
                *word = u64::from_le_bytes(std::array::from_fn(|n| bytes[n]));
            }
            (self.first, self.count) = (begin, COPIED);
        }
        self.words.get(((address - begin) / 8) as usize).copied()
    }
}

#[cfg(test)]
mod tests;
