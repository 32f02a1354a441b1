//! When this core stood still: what I/O lost meanwhile is no path's fault.
//!
//! # Limits
//! The last [`KEPT`] standstills are known. Of an older one a path is charged with what its I/O
//! lost, as if the core had run.

/// A turn that takes so long is a standstill; a shorter one is load. 50 ms: as the pause from which
/// a path is said to stall.
const LEAST_NS: u64 = 50_000_000;
/// Standstills that are known. 8: an I/O lasts a few timeouts, and a core that stands still more
/// often meanwhile has no path to compare.
const KEPT: usize = 8;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standstills {
    /// Begin and end of each, ns; equal: none. In no order.
    spans: [(u64, u64); KEPT],
    /// Place of the oldest.
    oldest: usize,
    /// The longest turn since it was asked for, ns.
    longest_ns: u64,
}

impl Standstills {
    /// The core did not look at anything for `busy_ns` until now.
    #[inline]
    pub fn note(&mut self, busy_ns: u64, now_ns: u64) {
        self.longest_ns = self.longest_ns.max(busy_ns);
        if busy_ns >= LEAST_NS {
            self.spans[self.oldest] = (now_ns.saturating_sub(busy_ns), now_ns);
            self.oldest = (self.oldest + 1) % KEPT;
        }
    }

    /// Returns the longest turn since the last call, ns.
    pub fn take_longest_ns(&mut self) -> u64 {
        core::mem::take(&mut self.longest_ns)
    }

    /// For how long it stood still between two times, ns.
    pub fn within(&self, from_ns: u64, until_ns: u64) -> u64 {
        let parts = self.spans.iter().map(|&(begin_ns, end_ns)| {
            let end_ns = end_ns.min(until_ns);
            end_ns.saturating_sub(begin_ns.max(from_ns))
        });
        parts.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn only_long_turns_within_the_time_count() {
        let mut it = Standstills::default();
        it.note(49 * MS, 100 * MS);
        it.note(300 * MS, 1_000 * MS);
        it.note(50 * MS, 2_000 * MS);
        assert_eq!(it.within(0, 3_000 * MS), 350 * MS);
        assert_eq!(it.within(800 * MS, 1_960 * MS), 210 * MS);
        assert_eq!(it.within(1_000 * MS, 1_950 * MS), 0);
        for n in 3..3 + KEPT as u64 {
            it.note(100 * MS, n * 1_000 * MS);
        }
        assert_eq!(it.within(0, 60_000 * MS), KEPT as u64 * 100 * MS);
    }
}
