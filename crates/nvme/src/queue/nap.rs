//! A flag that says that one side sleeps, so that the other makes a system call only then.
//!
//! # Contract
//! The sleeper sets the flag ([`Nap::begin`]), checks for work once more, and sleeps only if there
//! is none. The other side publishes its work, then calls [`Nap::take`], and wakes the sleeper if
//! that returns true. Each side has a fence between its store and its load, so at least one of them
//! sees the other: the work is found, or the wake-up is sent. A `take` that returns true requires a
//! wake-up, and clears the word, so that a sleeper gets one wake-up and not one for each piece of
//! work. The word may be cleared late, over a newer nap: then the wake-up that follows ends that
//! nap.
use super::SharedMemory;

/// A word that one side sets while it sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Nap {
    at: usize,
}

impl Nap {
    /// The word at byte `at`, a multiple of 4.
    pub fn new(at: usize) -> Self {
        Self { at }
    }

    /// Requests a wake-up for work from now on. The caller checks for work once more before it
    /// sleeps.
    #[inline]
    pub fn begin(self, memory: &impl SharedMemory) {
        memory.store_word(self.at, 1);
        memory.fence();
    }

    /// Requests no wake-ups any more.
    #[inline]
    pub fn end(self, memory: &impl SharedMemory) {
        memory.store_word(self.at, 0);
    }

    /// Returns whether the other side must be woken for work that was published before this call.
    #[inline]
    pub fn take(self, memory: &impl SharedMemory) -> bool {
        memory.fence();
        if memory.load_word(self.at) == 0 {
            return false;
        }
        memory.store_word(self.at, 0);
        true
    }
}
