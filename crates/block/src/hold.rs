//! Writes that may yet be executed where they were lost, and those that must wait for them: decided
//! from their ranges and order, for the engine (T9).
//!
//! # Contract
//! [`Holds::insert`] when a write is held, or submitted while it [overlaps](Holds::overlaps) one
//! that is; its entry stays until that write has ended for good ([`Holds::remove`]). A write may go
//! to a path when it [is first](Holds::is_first): no entry before it overlaps. So overlapping
//! writes are executed in the order in which they got here. Reads need no entry: until a write is
//! acknowledged, a read may return what was there before it, or after it.
//!
//! # Limits
//! Entries for as many writes as were asked for at construction; then [`Holds::insert`] says
//! `Full`. No work while there are no entries. Of n entries [`Holds::insert`],
//! [`Holds::overlaps`] and [`Holds::remove`] take O(log n) steps. [`Holds::is_first`] takes as many
//! in most cases, since subtrees without an older entry are left out, and at worst as many for each
//! entry that overlaps. [`Holds::freed_by`] takes the steps of `is_first` for each entry that
//! overlaps, unless the oldest of these covers all that has ended.
use crate::Range;
use crate::ranges::{Entry, NONE, Ranges};
use alloc::vec::Vec;

/// All entries are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The table of one volume on one core.
#[derive(Debug)]
pub struct Holds {
    /// Its entries; the owner of each is the write's number.
    entries: Ranges,
    /// By number of a write: place of its entry, or none.
    places: Vec<u32>,
    /// Age of the next entry.
    age: u64,
    count: usize,
    capacity: usize,
    /// Of [`Self::freed_by`]: places of entries that overlap.
    overlapping: Vec<u32>,
}

impl Holds {
    /// Room for `capacity` writes, all allocated now if their numbers are less than that.
    pub fn new(capacity: usize) -> Self {
        Self {
            entries: Ranges::new(capacity),
            places: alloc::vec![NONE; capacity],
            age: 0,
            count: 0,
            capacity,
            overlapping: Vec::with_capacity(capacity),
        }
    }

    /// Whether nothing is held; then every write may go.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether a write to `range` must wait.
    pub fn overlaps(&self, range: Range) -> bool {
        self.entries.first(0, range).is_some()
    }

    /// Adds the write `id`, which has no entry yet, behind all others.
    ///
    /// # Errors
    /// [`Full`].
    pub fn insert(&mut self, id: u32, range: Range) -> Result<(), Full> {
        if self.count == self.capacity {
            return Err(Full);
        }
        debug_assert!(self.place(id).is_none(), "a write has two entries");
        let place = self.entries.insert(Entry {
            volume: 0,
            range,
            age: self.age,
            owner: id,
        });
        if self.places.len() <= id as usize {
            self.places.resize(id as usize + 1, NONE);
        }
        self.places[id as usize] = place;
        self.age += 1;
        self.count += 1;
        Ok(())
    }

    /// Whether no entry before that of `id` overlaps it; also if it has none.
    pub fn is_first(&self, id: u32) -> bool {
        self.place(id).is_none_or(|place| self.is_first_at(place))
    }

    fn place(&self, id: u32) -> Option<u32> {
        let place = self.places.get(id as usize).copied();
        place.filter(|place| *place != NONE)
    }

    fn is_first_at(&self, place: u32) -> bool {
        let Entry { range, age, .. } = *self.entries.at(place);
        self.entries.oldest(0, range, age).is_none()
    }

    /// The write `id` has ended; what it covered, `None` if it had no entry.
    pub fn remove(&mut self, id: u32) -> Option<Range> {
        let place = self.place(id)?;
        self.places[id as usize] = NONE;
        self.count -= 1;
        Some(self.entries.remove(place).range)
    }

    /// Names each write that overlaps what has `ended`, and is first now, in order of arrival.
    pub fn freed_by(&mut self, ended: Range, mut name: impl FnMut(u32)) {
        let Some(oldest) = self.entries.oldest(0, ended, u64::MAX) else {
            return;
        };
        self.overlapping.clear();
        // Mostly the oldest one covers it, and is the only one that matters.
        if self.entries.at(oldest).range.covers(ended) {
            self.overlapping.push(oldest);
        } else {
            let all = &mut self.overlapping;
            self.entries.each(0, ended, &mut |place| all.push(place));
            let age = |place: &u32| self.entries.at(*place).age;
            self.overlapping.sort_unstable_by_key(age);
        }
        for &place in &self.overlapping {
            let entry = self.entries.at(place);
            if self.is_first_at(place) {
                name(entry.owner);
            }
            if entry.range.covers(ended) {
                return; // what is behind it is not first
            }
        }
    }
}

#[cfg(test)]
mod tests;
