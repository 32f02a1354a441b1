//! When a value of a block was there, as far as its operations tell.
use crate::chaos::prelude::*;

/// See [`Epoch::check`](super::Epoch::check).
pub(super) struct Zone {
    pub write: Op,
    pub first_end: Op,
    pub last_start: Op,
    /// A read saw it.
    pub seen: bool,
}

impl Zone {
    pub fn is_forward(&self) -> bool {
        self.first_end.end_ns <= self.last_start.start_ns
    }

    /// Its lower bound, and whose it is.
    pub fn lower(&self) -> (u64, Op) {
        match self.is_forward() {
            true => (self.first_end.end_ns, self.first_end),
            false => (self.last_start.start_ns, self.last_start),
        }
    }

    pub fn upper(&self) -> (u64, Op) {
        match self.is_forward() {
            true => (self.last_start.start_ns, self.last_start),
            false => (self.first_end.end_ns, self.first_end),
        }
    }
}
