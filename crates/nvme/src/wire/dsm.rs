//! Ranges of Dataset Management (NVM command set 1.0, 3.2.3).
use super::layout::structure;

structure! {
    /// One range.
    pub struct Range[16] {
        /// Context attributes: hints.
        attributes: u32 = 0,
        /// Blocks.
        blocks: u32 = 4,
        /// First block.
        slba: u64 = 8,
    }
}

/// Most ranges of one command (NR is eight bits, 0's based).
pub const RANGES_MAX: usize = 256;

/// The ranges in `bytes`; a rest that is no whole range is ignored.
pub fn ranges(bytes: &[u8]) -> impl Iterator<Item = Range> + '_ {
    bytes
        .chunks_exact(Range::LEN)
        .filter_map(|b| Range::parse(b).ok())
        .take(RANGES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn round_trip_and_positions() {
        let range = Range {
            attributes: 1,
            blocks: 2,
            slba: 0x0102_0304_0506_0708,
        };
        let b = range.emit();
        assert_eq!(b, [1, 0, 0, 0, 2, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]);
        let mut two = b.to_vec();
        two.extend_from_slice(&b);
        two.push(9);
        assert_eq!(ranges(&two).collect::<Vec<_>>(), [range, range]);
    }
}
