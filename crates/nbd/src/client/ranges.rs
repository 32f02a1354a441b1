//! The bytes of a read that have arrived.
use super::Fault;
use crate::limits::RANGES_MAX;

/// Disjoint ranges in ascending order, adjacent ones joined.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ranges {
    /// First byte, and the first byte behind, of each range.
    list: [(u32, u32); RANGES_MAX],
    len: usize,
}

impl Ranges {
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Whether exactly the first `length` bytes have arrived.
    pub fn is_whole(&self, length: u32) -> bool {
        self.len == 1 && self.list[0] == (0, length)
    }

    /// Adds a range that is not empty.
    ///
    /// # Errors
    /// The range overlaps another, or there are too many; nothing changes then.
    #[inline]
    pub fn add(&mut self, start: u32, end: u32) -> Result<(), Fault> {
        let at = self.list[..self.len].partition_point(|range| range.1 <= start);
        let next = self.list[..self.len].get(at).copied();
        if next.is_some_and(|next| next.0 < end) {
            return Err(Fault::Overlap);
        }
        let joins_next = next.is_some_and(|next| next.0 == end);
        let joins_last = at > 0 && self.list[at - 1].1 == start;
        match (joins_last, joins_next) {
            (true, true) => {
                self.list[at - 1].1 = self.list[at].1;
                self.list.copy_within(at + 1..self.len, at);
                self.len -= 1;
            }
            (true, false) => self.list[at - 1].1 = end,
            (false, true) => self.list[at].0 = start,
            (false, false) if self.len == RANGES_MAX => return Err(Fault::Fragments),
            (false, false) => {
                self.list.copy_within(at..self.len, at + 1);
                self.list[at] = (start, end);
                self.len += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_join_on_both_sides() {
        let mut ranges = Ranges::default();
        for (start, end) in [(10, 20), (30, 40), (20, 30), (0, 10), (40, 41)] {
            ranges.add(start, end).unwrap();
        }
        assert!(ranges.is_whole(41));
        assert!(!ranges.is_whole(40));
        ranges.clear();
        assert!(!ranges.is_whole(0));
    }

    #[test]
    fn too_many_ranges_are_an_error_and_filling_a_gap_is_not() {
        let mut ranges = Ranges::default();
        for i in 0..RANGES_MAX as u32 {
            ranges.add(10 * i, 10 * i + 5).unwrap();
        }
        assert_eq!(ranges.add(1000, 1001), Err(Fault::Fragments));
        ranges.add(5, 10).unwrap();
        ranges.add(1000, 1001).unwrap();
    }

    proptest! {
        #[test]
        fn as_a_map_of_bytes_would_say(
            adds in prop::collection::vec((0u32..60, 1u32..20), 0..40),
        ) {
            let mut ranges = Ranges::default();
            let mut map = [false; 80];
            for (start, len) in adds {
                let bytes = start as usize..(start + len) as usize;
                let result = ranges.add(start, start + len);
                let taken = map[bytes.clone()].iter().any(|b| *b);
                match result {
                    Ok(()) => {
                        prop_assert!(!taken);
                        map[bytes].fill(true);
                    }
                    Err(Fault::Overlap) => prop_assert!(taken),
                    Err(fault) => {
                        prop_assert_eq!(fault, Fault::Fragments);
                        prop_assert!(!taken);
                    }
                }
                let runs = map.windows(2).filter(|w| !w[0] && w[1]).count() + usize::from(map[0]);
                prop_assert_eq!(ranges.len, runs);
                let first = map.iter().position(|b| !b).unwrap_or(map.len());
                let whole = first > 0 && runs == 1;
                prop_assert_eq!(ranges.is_whole(first as u32), whole);
            }
        }
    }
}
