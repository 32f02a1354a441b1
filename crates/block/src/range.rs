//! Bytes of a device.

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
