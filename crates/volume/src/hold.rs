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
//! `Full`. No work while there are no entries; [`Holds::freed_by`] compares each entry that
//! overlaps with those before it, up to the first that overlaps it; all else is linear.
use alloc::collections::VecDeque;
use canary::Bug;

/// Bytes `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// First byte behind.
    pub end: u64,
}

impl Range {
    /// `length` bytes at `offset`; the end saturates.
    pub fn new(offset: u64, length: u64) -> Self {
        Self {
            start: offset,
            end: offset.saturating_add(length),
        }
    }

    /// Whether both have a byte in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether it has all bytes of `other`.
    pub fn covers(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

/// All entries are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The table of one volume on one core, in order of arrival.
#[derive(Debug)]
pub struct Holds {
    /// The oldest mostly go first.
    entries: VecDeque<(u32, Range)>,
    capacity: usize,
}

impl Holds {
    /// Room for `capacity` writes, all allocated now.
    pub fn new(capacity: usize) -> Self {
        Self {
            entries: VecDeque::with_capacity(capacity),
            capacity,
        }
    }

    /// Whether nothing is held; then every write may go.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a write to `range` must wait.
    pub fn overlaps(&self, range: Range) -> bool {
        self.entries.iter().any(|(_, it)| it.overlaps(range))
    }

    /// Adds the write `id`, behind all others.
    ///
    /// # Errors
    /// [`Full`].
    pub fn insert(&mut self, id: u32, range: Range) -> Result<(), Full> {
        if self.entries.len() == self.capacity {
            return Err(Full);
        }
        self.entries.push_back((id, range));
        Ok(())
    }

    /// Whether no entry before that of `id` overlaps it; also if it has none.
    pub fn is_first(&self, id: u32) -> bool {
        let place = self.entries.iter().position(|(it, _)| *it == id);
        place.is_none_or(|at| self.is_first_at(at, self.entries[at].1))
    }

    fn is_first_at(&self, at: usize, range: Range) -> bool {
        let mut before = self.entries.iter().take(at);
        !before.any(|(_, it)| it.overlaps(range))
    }

    /// The write `id` has ended; what it covered, `None` if it had no entry.
    pub fn remove(&mut self, id: u32) -> Option<Range> {
        let at = self.entries.iter().position(|(it, _)| *it == id)?;
        Some(self.entries.remove(at)?.1)
    }

    /// Names each write that overlaps what has `ended`, and is first now.
    pub fn freed_by(&self, ended: Range, mut name: impl FnMut(u32)) {
        for (at, &(id, range)) in self.entries.iter().enumerate() {
            if range.overlaps(ended) && self.is_first_at(at, range) {
                name(id);
                if range.covers(ended) {
                    return; // what is behind it is not first
                }
            }
        }
    }
}

/// How long a controller whose connections were all closed may still execute what it had: until its
/// keep-alive time-out has passed twice (three times where traffic counts as keep-alive), and then
/// the time it takes to quiesce. `quiesce_ns` stands in for a time that it doesn't report. `None`:
/// without a keep-alive time-out nothing bounds it (T9).
pub fn bound_ns(kato_ns: u64, traffic_based: bool, cqt_ns: u64, quiesce_ns: u64) -> Option<u64> {
    let times = if traffic_based { 3 } else { 2 };
    let times = times - u64::from(canary::has(Bug::ShortBound));
    let reported = cqt_ns > 0 && !canary::has(Bug::ForgottenCqt);
    let cqt_ns = if reported { cqt_ns } else { quiesce_ns };
    (kato_ns > 0).then(|| kato_ns.saturating_mul(times).saturating_add(cqt_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn t09_the_bound_counts_the_keep_alive_and_the_time_to_quiesce() {
        assert_eq!(bound_ns(5, false, 3, 100), Some(13));
        assert_eq!(bound_ns(5, true, 3, 100), Some(18));
        assert_eq!(bound_ns(5, false, 0, 100), Some(110), "not reported");
        assert_eq!(bound_ns(0, false, 3, 100), None, "only proof releases");
        assert_eq!(bound_ns(u64::MAX, true, 1, 1), Some(u64::MAX));
    }

    #[test]
    fn ranges_that_touch_do_not_overlap() {
        let range = Range::new(8, 8);
        for (other, want) in [
            (Range::new(0, 8), false),
            (Range::new(16, 8), false),
            (Range::new(0, 9), true),
            (Range::new(15, 1), true),
            (Range::new(0, u64::MAX), true),
            (Range::new(u64::MAX, 9), false),
        ] {
            assert_eq!((range.overlaps(other), other.overlaps(range)), (want, want));
        }
    }

    #[test]
    fn the_table_is_bounded() {
        let mut holds = Holds::new(1);
        assert_eq!(holds.insert(1, Range::new(0, 1)), Ok(()));
        assert_eq!(holds.insert(2, Range::new(9, 1)), Err(Full));
        assert_eq!(holds.remove(1), Some(Range::new(0, 1)));
        assert_eq!(holds.remove(1), None);
        assert!(holds.is_empty() && holds.is_first(7));
    }

    /// Random histories: whenever writes are executed as soon as they may, overlapping ones are in
    /// the order of arrival, none is executed twice or forgotten.
    #[test]
    fn t09_overlapping_writes_are_executed_in_the_order_of_arrival() {
        let mut random = 1_u64;
        let mut below = |n: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % n
        };
        for _ in 0..500 {
            let mut holds = Holds::new(64);
            let ranges: Vec<_> = (0..40)
                .map(|_| Range::new(below(32), 1 + below(6)))
                .collect();
            let mut may: Vec<u32> = Vec::new();
            let mut executed: Vec<u32> = Vec::new();
            let mut next = 0;
            while executed.len() < ranges.len() {
                if next < ranges.len() && below(2) == 0 {
                    let id = next as u32;
                    let waits = holds.overlaps(ranges[next]);
                    holds.insert(id, ranges[next]).unwrap();
                    assert_eq!(holds.is_first(id), !waits);
                    if !waits {
                        may.push(id);
                    }
                    next += 1;
                } else if !may.is_empty() {
                    let id = may.swap_remove(below(may.len() as u64) as usize);
                    executed.push(id);
                    let freed = holds.remove(id).unwrap();
                    holds.freed_by(freed, |id| may.push(id));
                }
            }
            for (at, &a) in executed.iter().enumerate() {
                let mut later = executed[at + 1..].iter();
                let swapped =
                    later.find(|&&b| b < a && ranges[a as usize].overlaps(ranges[b as usize]));
                assert_eq!(swapped, None, "{executed:?}");
            }
        }
    }
}
