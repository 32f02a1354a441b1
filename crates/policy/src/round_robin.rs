//! `round-robin[:bytes]`: the paths in turn.
//!
//! Decides from the path last used and, with a number of bytes, from the bytes sent to it since its
//! turn began. Only the running sum of lengths counts, as in row B2; addresses are not compared, so
//! that random I/O moves on too. An I/O is never split: the one that passes the limit is the last
//! of its turn.
//!
//! # Origin
//! Rows A1, A7, B2. Where only non-optimized paths are left the kernel takes the last of the
//! circle, which runs it backwards; here the circle is the same for both.

use crate::ana::next;
use crate::types::PathView;

/// State of the circle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoundRobin {
    /// The path last used.
    pub(crate) last: Option<usize>,
    /// Bytes it was sent since its turn began.
    pub(crate) handed: u64,
}

impl RoundRobin {
    /// The next path in turn, optimized before non-optimized; a turn lasts `bytes`.
    #[inline]
    pub(crate) fn choose(&mut self, bytes: u64, length: u32, paths: &[PathView]) -> Option<usize> {
        let start = self.start(bytes, paths.len());
        match paths.get(start) {
            Some(view) if view.optimized() => Some(self.hand(start, bytes, length)),
            _ => self.search(start, bytes, length, paths),
        }
    }

    /// As [`Self::choose`], the next in turn of the paths of which `all` has a bit.
    pub(crate) fn choose_of(
        &mut self,
        all: u64,
        bytes: u64,
        length: u32,
        count: usize,
    ) -> Option<usize> {
        if all == 0 {
            return None;
        }
        let from = all & u64::MAX << self.start(bytes, count);
        let path = if from != 0 { from } else { all }.trailing_zeros();
        Some(self.hand(path as usize, bytes, length))
    }

    /// Where the search for the next path starts.
    #[inline]
    fn start(&self, bytes: u64, count: usize) -> usize {
        match self.last {
            Some(last) if self.handed >= bytes => next(last, count),
            Some(last) => last,
            None => 0,
        }
    }

    /// Returns the path at its turn, and the rest of a turn of `bytes` there.
    pub(crate) fn stand(&self, bytes: u64, count: usize) -> (usize, u64) {
        let start = self.start(bytes, count);
        let goes_on = self.last == Some(start) && self.handed < bytes;
        (start, bytes - if goes_on { self.handed } else { 0 })
    }

    /// As [`Self::choose`] where the path at `start` cannot be chosen; a function of its own, to
    /// keep the usual path short.
    #[inline(never)]
    fn search(
        &mut self,
        start: usize,
        bytes: u64,
        length: u32,
        paths: &[PathView],
    ) -> Option<usize> {
        let mut second = None;
        let mut at = start;
        for _ in 0..paths.len() {
            let view = &paths[at];
            if view.optimized() {
                return Some(self.hand(at, bytes, length));
            }
            if second.is_none() && view.usable() {
                second = Some(at);
            }
            at = next(at, paths.len());
        }
        Some(self.hand(second?, bytes, length))
    }

    /// Counts `length` bytes for `path`; its turn begins if the last one's is over, or was cut
    /// short.
    #[inline]
    fn hand(&mut self, path: usize, bytes: u64, length: u32) -> usize {
        if self.handed >= bytes || self.last != Some(path) {
            self.handed = 0;
            self.last = Some(path);
        }
        self.handed = self.handed.saturating_add(u64::from(length));
        path
    }

    /// The table shrank to `count` paths.
    pub(crate) fn truncate(&mut self, count: usize) {
        if self.last.is_some_and(|last| last >= count) {
            *self = Self::default();
        }
    }
}
