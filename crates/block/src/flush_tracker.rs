//! Which acknowledged writes are durable (T13).
//!
//! # Contract
//! One tracker per device and generation of its controller, or per client of a device: a flush
//! makes durable what its own controller had acknowledged when it began, and nothing else. Counts
//! only writes that may be lost with a volatile cache; it is no statistics counter.

/// Writes of one writer. See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushTracker {
    /// Acknowledged writes so far.
    acknowledged: u64,
    /// Those of them that a flush has made durable.
    flushed: u64,
}

/// The writes that one flush covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Covered(u64);

impl FlushTracker {
    /// A write was acknowledged that is not durable by itself.
    #[inline]
    pub fn acknowledge(&mut self) {
        self.acknowledged += 1;
    }

    /// The writes that a flush covers which begins now.
    pub fn covered_now(&self) -> Covered {
        Covered(self.acknowledged)
    }

    /// A flush has ended well. Flushes that were under way together end in any order.
    pub fn flushed(&mut self, covered: Covered) {
        assert!(
            covered.0 <= self.acknowledged,
            "a flush covers what was acknowledged"
        );
        self.flushed = self.flushed.max(covered.0);
    }

    /// All writes so far are durable, or are given up.
    pub fn forget(&mut self) {
        self.flushed = self.acknowledged;
    }

    /// Whether all acknowledged writes are durable.
    #[inline]
    pub fn is_flushed(&self) -> bool {
        self.acknowledged == self.flushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t13_a_flush_covers_what_was_acknowledged_before_it() {
        let mut tracker = FlushTracker::default();
        assert!(tracker.is_flushed());
        tracker.acknowledge();
        let first = tracker.covered_now();
        tracker.acknowledge();
        let second = tracker.covered_now();
        tracker.flushed(first);
        assert!(!tracker.is_flushed(), "one came later");
        tracker.flushed(second);
        tracker.flushed(first);
        assert!(tracker.is_flushed(), "an older flush takes nothing back");
        tracker.acknowledge();
        tracker.forget();
        assert!(tracker.is_flushed());
    }
}
