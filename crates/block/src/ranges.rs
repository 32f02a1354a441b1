//! Disjoint byte ranges of several volumes, in order: for [`crate::order`].
//!
//! A list in chunks of up to [`CHUNK`] entries. Since no two entries overlap, their ends are in the
//! same order as their starts, and a search by end finds the first entry that a range may overlap.
//! A search takes O(log n) comparisons. A change moves the entries of one chunk, and the list of
//! chunks where it makes or empties one.
//!
//! # Limits
//! Chunks are used again: the table grows to the largest number of entries and stays. Two chunks
//! side by side have more entries than a quarter of one has room for.
use crate::Range;
use alloc::vec::Vec;

/// Most entries of a chunk.
const CHUNK: usize = 32;

/// A range with what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub volume: u32,
    /// The owner's name of it.
    pub owner: u32,
    /// Not empty.
    pub range: Range,
}

/// A byte of a volume, as a number in the order of volumes and bytes.
#[inline]
fn point(volume: u32, byte: u64) -> u128 {
    u128::from(volume) << 64 | u128::from(byte)
}

impl Entry {
    const NONE: Self = Self {
        volume: 0,
        owner: 0,
        range: Range { start: 0, end: 0 },
    };

    /// Whether it starts before the end of a range: so one that ends behind its start overlaps it.
    #[inline]
    pub fn is_before_end(&self, volume: u32, range: Range) -> bool {
        self.volume == volume && self.range.start < range.end
    }

    #[inline]
    fn end(&self) -> u128 {
        point(self.volume, self.range.end)
    }
}

/// Entries side by side.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    entries: [Entry; CHUNK],
    /// The first ones are in use.
    len: usize,
}

impl Chunk {
    const EMPTY: Self = Self {
        entries: [Entry::NONE; CHUNK],
        len: 0,
    };

    #[inline]
    fn used(&self) -> &[Entry] {
        &self.entries[..self.len]
    }

    /// Puts entries behind those that are there.
    fn extend(&mut self, more: &[Entry]) {
        self.entries[self.len..self.len + more.len()].copy_from_slice(more);
        self.len += more.len();
    }
}

/// Place of an entry, or behind the last one of a chunk. Valid until the next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Position of the chunk in order.
    chunk: usize,
    at: usize,
}

/// The entries. See the module.
#[derive(Debug)]
pub(crate) struct Ranges {
    chunks: Vec<Chunk>,
    /// Chunks that have entries, in order.
    order: Vec<u32>,
    /// The other chunks.
    free: Vec<u32>,
}

impl Ranges {
    /// Empty, with room for so many before it takes more memory.
    pub fn new(entries: usize) -> Self {
        let chunks = 4 * entries.div_ceil(CHUNK) + 1;
        Self {
            chunks: Vec::with_capacity(chunks),
            order: Vec::with_capacity(chunks),
            free: Vec::with_capacity(chunks),
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    #[inline]
    fn chunk(&self, position: usize) -> &Chunk {
        &self.chunks[self.order[position] as usize]
    }

    #[inline]
    fn chunk_mut(&mut self, position: usize) -> &mut Chunk {
        &mut self.chunks[self.order[position] as usize]
    }

    /// The place of the first entry that ends behind a byte, or at which one that starts there is
    /// to be inserted.
    #[inline]
    pub fn seek(&self, volume: u32, byte: u64) -> Place {
        let point = point(volume, byte);
        let is_before = |entry: &Entry| entry.end() <= point;
        let Some(last) = self.order.len().checked_sub(1) else {
            return Place { chunk: 0, at: 0 };
        };
        let tail = self.chunk(last);
        if is_before(&tail.entries[tail.len - 1]) {
            // As where changes come in the order of their bytes.
            return Place {
                chunk: last,
                at: tail.len,
            };
        }
        let chunk = match last {
            0 => 0,
            _ => self.order.partition_point(|&number| {
                let chunk = &self.chunks[number as usize];
                is_before(&chunk.entries[chunk.len - 1])
            }),
        };
        let at = self.chunk(chunk).used().partition_point(is_before);
        Place { chunk, at }
    }

    /// The entry at a place; `None`: it is behind the last one of all.
    #[inline]
    pub fn get(&self, place: Place) -> Option<&Entry> {
        let number = *self.order.get(place.chunk)?;
        self.chunks[number as usize].used().get(place.at)
    }

    /// Adds an entry at the place that [`Self::seek`] finds for its start.
    #[inline]
    pub fn insert(&mut self, place: Place, entry: Entry) {
        let Place { mut chunk, mut at } = place;
        if self.order.is_empty() {
            self.add_chunk(0);
        } else if self.chunk(chunk).len == CHUNK {
            self.split(chunk);
            if at > CHUNK / 2 {
                (chunk, at) = (chunk + 1, at - CHUNK / 2);
            }
        }
        let it = self.chunk_mut(chunk);
        it.entries.copy_within(at..it.len, at + 1);
        it.entries[at] = entry;
        it.len += 1;
    }

    /// Removes the entry at a place.
    #[inline]
    pub fn remove(&mut self, place: Place) -> Entry {
        let it = self.chunk_mut(place.chunk);
        let entry = it.used()[place.at];
        it.entries.copy_within(place.at + 1..it.len, place.at);
        it.len -= 1;
        if it.len <= CHUNK / 4 {
            self.shrink(place.chunk);
        }
        entry
    }

    /// Moves the second half of a chunk to a new one behind it.
    fn split(&mut self, position: usize) {
        let full = *self.chunk(position);
        self.add_chunk(position + 1);
        self.chunk_mut(position).len = CHUNK / 2;
        self.chunk_mut(position + 1)
            .extend(&full.entries[CHUNK / 2..]);
    }

    fn add_chunk(&mut self, position: usize) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.chunks.push(Chunk::EMPTY);
            self.chunks.len() as u32 - 1
        });
        self.order.insert(position, number);
    }

    /// Frees a chunk that has become empty; of one that has few entries and its neighbours, those
    /// that half a chunk has room for become one.
    fn shrink(&mut self, position: usize) {
        if self.chunk(position).len == 0 {
            return self.free_chunk(position);
        }
        for first in [position, position.wrapping_sub(1)] {
            let second = first.wrapping_add(1);
            if first < self.order.len()
                && second < self.order.len()
                && self.chunk(first).len + self.chunk(second).len <= CHUNK / 2
            {
                let behind = *self.chunk(second);
                self.chunk_mut(first).extend(behind.used());
                return self.free_chunk(second);
            }
        }
    }

    fn free_chunk(&mut self, position: usize) {
        self.chunk_mut(position).len = 0;
        let number = self.order.remove(position);
        self.free.push(number);
    }
}

#[cfg(test)]
mod tests;
