//! `service-time`: the path that has the fewest bytes in flight for its throughput.
//!
//! Decides from (bytes in flight + bytes of this I/O) / relative throughput; the user configures
//! the throughput of each path ([`PathView::throughput`]). A path of throughput 0 is used only
//! where no other is usable. Equal paths take turns.
//!
//! # Contract
//! Bytes are booked by [`ServiceTime::begin`], whose ticket closes them at the I/O's end; tickets
//! from before a switch of the policy are not in the books (T41).
//!
//! # Limits
//! Of the other cores' I/Os at most [`ELSEWHERE_MAX`] count; bytes on a path are below 2^56, so
//! that every product fits 64 bits.
//!
//! # Origin
//! The path selector of this name that users of device-mapper know, after its published
//! description. Different: other cores publish how many I/Os they have in flight, not their bytes;
//! each counts with the mean length of this core's.

use crate::ana::next;
use crate::limits::PATHS_MAX;
use crate::types::{Noted, PathView, Ticket};

/// A new length has 1 / 2^this of the weight in the mean.
const SHIFT: u32 = 6;
const ELSEWHERE_MAX: u32 = 1 << 20;

/// The books of all paths.
#[derive(Clone, Debug)]
pub(crate) struct ServiceTime {
    bytes: [u64; PATHS_MAX],
    /// Mean length of this core's I/Os, times 2^[`SHIFT`].
    length_sum: u64,
    /// The path last used; below the number of paths, or the search begins at the first.
    last: usize,
    epoch: u8,
}

/// One path in the comparison: bytes it would have, and its throughput.
#[derive(Clone, Copy)]
struct Load {
    bytes: u64,
    throughput: u64,
}

impl ServiceTime {
    pub(crate) const fn new(epoch: u8) -> Self {
        Self {
            bytes: [0; PATHS_MAX],
            length_sum: 0,
            last: PATHS_MAX,
            epoch,
        }
    }

    /// The path of least service time, optimized before non-optimized.
    pub(crate) fn choose(&self, length: u32, paths: &[PathView]) -> Option<usize> {
        self.least(length, paths, PathView::optimized)
            .or_else(|| self.least(length, paths, PathView::usable))
    }

    /// The least among those that `may`; behind the last used one the first of equals.
    fn least(&self, length: u32, paths: &[PathView], may: fn(&PathView) -> bool) -> Option<usize> {
        let mut best: Option<(usize, Load)> = None;
        let mut at = self.last;
        for _ in 0..paths.len() {
            at = next(at, paths.len());
            let view = &paths[at];
            if !may(view) {
                continue;
            }
            let load = self.load(at, view, length);
            if best.is_none_or(|(_, least)| load.is_less(&least)) {
                best = Some((at, load));
            }
        }
        best.map(|(path, _)| path)
    }

    fn load(&self, path: usize, view: &PathView, length: u32) -> Load {
        let elsewhere = u64::from(view.in_flight_elsewhere.min(ELSEWHERE_MAX));
        let elsewhere = elsewhere * (self.length_sum >> SHIFT);
        Load {
            bytes: self.bytes[path] + elsewhere + u64::from(length),
            throughput: view.throughput.into(),
        }
    }

    /// Bytes in flight on a path, with an I/O of this length.
    pub(crate) fn bytes(&self, path: usize, view: &PathView, length: u32) -> u64 {
        self.load(path, view, length).bytes
    }

    /// Books an I/O on its path.
    pub(crate) fn begin(&mut self, path: usize, length: u32) -> Ticket {
        self.last = path;
        self.bytes[path] += u64::from(length);
        self.length_sum = match self.length_sum {
            0 => u64::from(length) << SHIFT,
            sum => sum - (sum >> SHIFT) + u64::from(length),
        };
        Ticket {
            units: length,
            epoch: self.epoch,
            ..Ticket::default()
        }
    }

    /// Closes an I/O's bytes, however it ended.
    pub(crate) fn end(&mut self, path: usize, ticket: &Ticket) -> Noted {
        if ticket.epoch == self.epoch {
            let bytes = &mut self.bytes[path];
            // Epochs wrap: the I/O may have hung through 255 changes of the policy.
            *bytes = bytes.saturating_sub(ticket.units.into());
        }
        Noted::default()
    }
}

impl Load {
    /// Whether its service time is less than another's; with the same, the faster path.
    fn is_less(&self, other: &Self) -> bool {
        match (self.throughput, other.throughput) {
            (0, 0) => self.bytes < other.bytes,
            (0, _) => false,
            (_, 0) => true,
            (mine, its) => {
                let (here, there) = (self.bytes * its, other.bytes * mine);
                here < there || (here == there && mine > its)
            }
        }
    }
}

#[cfg(test)]
mod tests;
