//! Telling the other side that somebody sleeps, so that it makes a system call only then.
//!
//! # Contract
//! Who wants to sleep says so ([`Nap::begin`]), then looks once more whether there is anything to
//! do, and sleeps only if not. Who has made something to do asks [`Nap::take`] afterwards, and
//! wakes the sleeper if it says so. Between the store and the load of each side stands a fence, so
//! at least one of them sees the other: work is found, or the wake-up is sent. A `take` that says
//! so owes a wake-up, and clears the word, so that a sleeper gets one and not one for each piece of
//! work. The word may be cleared late, over a nap that began anew: then the wake-up that follows
//! ends that one.
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

    /// From now on work is followed by a wake-up. Look for work once more before sleeping.
    #[inline]
    pub fn begin(self, memory: &impl SharedMemory) {
        memory.store_word(self.at, 1);
        memory.fence();
    }

    /// Awake: no wake-ups any more.
    #[inline]
    pub fn end(self, memory: &impl SharedMemory) {
        memory.store_word(self.at, 0);
    }

    /// There is work, published before: whether the other side must be woken for it, by who asked.
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
