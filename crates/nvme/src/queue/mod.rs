//! Submission and completion queues in memory that two sides share (Base 2.0, 3.3.1 and 3.3.3).
//!
//! * [`SqProducer`], [`CqConsumer`]: the host's side; [`SqConsumer`], [`CqProducer`]: the
//!   controller's
//! * [`Cids`]: command identifiers with generations (T11)
//! * [`Nap`]: tells the other side that this side sleeps, without losing a wake-up
//! * [`mod@pointer`]: PRP lists and SGLs, built and walked
//! * [`check`]: the controller's checks of an I/O command of such a queue
//!
//! # Contract
//! Each of the four ends has one owner and keeps its own state: head, tail and phase are never read
//! back from shared memory. The other side may be hostile: an end reads each word once, stays
//! inside its queue, and reports [`Misbehaved`] for an invalid doorbell. The host side checks a
//! controller in the same way.
//!
//! Publication: a tail doorbell is stored with release order behind the entries; the half of a
//! completion that has the phase tag is stored with release order behind the other half. Both are
//! loaded with acquire order before what they publish. `tests/loom.rs` tries every order.
//!
//! A host whose time-out is over lets go of the queue ([`LET_GO`]): a controller that resumes after
//! a pause checks that word before it executes a command that changes data, also one that it
//! fetched before (T9).
//!
//! # Limits
//! 2 to [`ENTRIES_MAX`](crate::limits::QUEUE_ENTRIES_MAX) entries; one stays empty, so that full
//! and empty differ (Base 2.0, 3.3.1.5).
pub mod check;
mod cids;
mod cq;
mod nap;
pub mod pointer;
mod sq;
#[cfg(test)]
mod tests;

pub use cids::Cids;
pub use cq::{CqConsumer, CqProducer};
pub use nap::Nap;
pub use sq::{LET_GO, SqConsumer, SqProducer};

/// An entry of a submission queue, as little-endian words.
pub type Entry = [u64; 8];

/// Memory that another process or a device reads and writes concurrently. Offsets are bytes.
///
/// Accesses are atomic, so that a hostile other side can change only values. An implementation
/// panics outside of the memory and where an offset is not aligned: offsets come from our own side.
pub trait SharedMemory {
    /// Loads eight bytes, relaxed.
    fn load(&self, at: usize) -> u64;
    /// Stores eight bytes, relaxed.
    fn store(&self, at: usize, value: u64);
    /// Loads eight bytes, acquire: later loads see values at least as new.
    fn load_acquire(&self, at: usize) -> u64;
    /// Stores eight bytes, release: after all earlier stores.
    fn store_release(&self, at: usize, value: u64);
    /// Loads a doorbell or other word of four bytes, acquire.
    fn load_word(&self, at: usize) -> u32;
    /// Stores four bytes, release.
    fn store_word(&self, at: usize, value: u32);
    /// Full fence: stores before it are visible before any load after it.
    fn fence(&self);

    /// Loads an entry of a submission queue; each of its words once.
    #[inline]
    fn load_entry(&self, at: usize) -> Entry {
        core::array::from_fn(|word| self.load(at + 8 * word))
    }

    /// Stores an entry of a submission queue.
    #[inline]
    fn store_entry(&self, at: usize, entry: &Entry) {
        for (word, &value) in entry.iter().enumerate() {
            self.store(at + 8 * word, value);
        }
    }
}

impl<M: SharedMemory + ?Sized> SharedMemory for &M {
    #[inline]
    fn load(&self, at: usize) -> u64 {
        (**self).load(at)
    }
    #[inline]
    fn store(&self, at: usize, value: u64) {
        (**self).store(at, value);
    }
    #[inline]
    fn load_acquire(&self, at: usize) -> u64 {
        (**self).load_acquire(at)
    }
    #[inline]
    fn store_release(&self, at: usize, value: u64) {
        (**self).store_release(at, value);
    }
    #[inline]
    fn load_word(&self, at: usize) -> u32 {
        (**self).load_word(at)
    }
    #[inline]
    fn store_word(&self, at: usize, value: u32) {
        (**self).store_word(at, value);
    }
    #[inline]
    fn fence(&self) {
        (**self).fence();
    }
    #[inline]
    fn load_entry(&self, at: usize) -> Entry {
        (**self).load_entry(at)
    }
    #[inline]
    fn store_entry(&self, at: usize, entry: &Entry) {
        (**self).store_entry(at, entry);
    }
}

/// Where a queue and its doorbell lie in shared memory, bytes; and how many entries it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First entry, a multiple of 8.
    pub entries_at: usize,
    /// Doorbell, a multiple of 4.
    pub doorbell_at: usize,
    /// Entries, 2 and more.
    pub entries: u16,
}

impl Place {
    /// Returns the position behind `index`.
    #[inline]
    fn next(&self, index: u16) -> u16 {
        if index + 1 == self.entries {
            0
        } else {
            index + 1
        }
    }

    /// Returns the distance from one position forward to another.
    #[inline]
    fn distance(&self, from: u16, to: u16) -> u16 {
        if to >= from {
            to - from
        } else {
            to + (self.entries - from)
        }
    }

    /// Checks a position from the other side: it must lie in the queue.
    #[inline]
    fn position(&self, told: u32) -> Option<u16> {
        u16::try_from(told)
            .ok()
            .filter(|&index| index < self.entries)
    }
}

/// The queue has no room now; nothing was changed. It is no failure of the device (T6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl core::fmt::Display for Full {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the queue is full: reap completions first")
    }
}

impl core::error::Error for Full {}

/// The other side wrote an invalid value: the queue cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misbehaved {
    /// A doorbell outside of the queue (Base 2.0, 5.2: Invalid Doorbell Write Value).
    Doorbell {
        /// The value.
        value: u32,
    },
    /// A completion queue head that goes back, or passes the posted entries.
    Head {
        /// The value.
        value: u32,
    },
    /// A submission queue head in a completion that passes the tail.
    SqHead {
        /// The value.
        value: u16,
    },
    /// The host has let go of the queue: no fault, but the queue's end as well.
    LetGo,
}

impl core::fmt::Display for Misbehaved {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Doorbell { value } => write!(f, "doorbell {value} is outside of the queue"),
            Self::Head { value } => write!(f, "completion queue head {value} was never posted"),
            Self::SqHead { value } => write!(f, "submission queue head {value} was never sent"),
            Self::LetGo => f.write_str("the host has let go of the queue"),
        }
    }
}

impl core::error::Error for Misbehaved {}
