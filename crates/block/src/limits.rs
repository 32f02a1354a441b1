//! Limits of a device over several paths: decided from those of each path, for a caller that
//! submits I/O to the whole.
//!
//! # Contract
//! The strictest of the parts holds (T34), so that an I/O which is legal for the whole is legal on
//! whichever path it lands. "Strictest" is the smaller size, a cache if any part has one, and an
//! ability only if every part has it. Of two boundaries the smaller one is kept: where it divides
//! the other, nothing crosses either; where it does not, nothing is promised of the larger one.
//! Of two optimal write sizes, which are no promise, the larger one is kept.

/// Limits of one path, or of several together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoLimits {
    /// Most bytes that one command reads or writes.
    pub transfer_max: u32,
    /// Most bytes that one command zeroes.
    pub write_zeroes_max: u32,
    /// Most bytes that one command deallocates.
    pub deallocate_max: u32,
    /// Reads and writes that cross a multiple of so many bytes are slow; 0: none is.
    pub boundary: u32,
    /// Writes are best in multiples of so many bytes; 0: nobody says.
    pub optimal_write: u32,
    /// Largest write that is atomic, bytes.
    pub atomic_bytes: u32,
    /// Acknowledged writes may be lost until a flush.
    pub volatile_cache: bool,
    /// Write protected.
    pub read_only: bool,
    /// Zeroing without data is possible.
    pub write_zeroes: bool,
    /// Deallocating is possible.
    pub deallocate: bool,
    /// Deallocated blocks read as zeroes.
    pub deallocate_reads_zero: bool,
    /// Aligned multiples of so many bytes can be zeroed so that they take no space, and read as
    /// zeroes; 0: not known to be so.
    pub hole_bytes: u32,
}

impl IoLimits {
    /// Limits that both `self` and `other` can promise.
    #[must_use]
    pub fn stack(self, other: Self) -> Self {
        Self {
            transfer_max: self.transfer_max.min(other.transfer_max),
            write_zeroes_max: self.write_zeroes_max.min(other.write_zeroes_max),
            deallocate_max: self.deallocate_max.min(other.deallocate_max),
            boundary: match (self.boundary, other.boundary) {
                (0, one) | (one, 0) => one,
                (a, b) => a.min(b),
            },
            optimal_write: self.optimal_write.max(other.optimal_write),
            atomic_bytes: self.atomic_bytes.min(other.atomic_bytes),
            volatile_cache: self.volatile_cache || other.volatile_cache,
            read_only: self.read_only || other.read_only,
            write_zeroes: self.write_zeroes && other.write_zeroes,
            deallocate: self.deallocate && other.deallocate,
            deallocate_reads_zero: self.deallocate_reads_zero && other.deallocate_reads_zero,
            hole_bytes: match (self.hole_bytes, other.hole_bytes) {
                (0, _) | (_, 0) => 0,
                (a, b) => a.max(b),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::IoLimits;

    /// Limits from six bits and two sizes.
    fn limits(bits: u8, transfer_max: u32, atomic_bytes: u32) -> IoLimits {
        let bit = |n: u8| bits >> n & 1 == 1;
        IoLimits {
            transfer_max,
            write_zeroes_max: transfer_max / 2,
            deallocate_max: transfer_max * 2,
            boundary: atomic_bytes * 4,
            optimal_write: 4096,
            atomic_bytes,
            volatile_cache: bit(0),
            read_only: bit(1),
            write_zeroes: bit(2),
            deallocate: bit(3),
            deallocate_reads_zero: bit(4),
            hole_bytes: 0,
        }
    }

    #[test]
    fn t34_the_strictest_part_holds() {
        for a in 0..32 {
            for b in 0..32 {
                let whole = limits(a, 1 << 17, 4096).stack(limits(b, 1 << 20, 512));
                let any = (a | b) & 0b00011;
                let all = (a & b) & 0b11100;
                assert_eq!(
                    whole,
                    limits(any | all, 1 << 17, 512),
                    "{a:05b} and {b:05b}"
                );
            }
        }
    }

    #[test]
    fn order_does_not_matter() {
        let (a, b, c) = (
            limits(0b10101, 8, 9),
            limits(0b01110, 7, 10),
            limits(0b11011, 9, 8),
        );
        assert_eq!(a.stack(b).stack(c), c.stack(a.stack(b)));
        assert_eq!(a.stack(b), b.stack(a));
        assert_eq!(a.stack(a), a);
    }

    #[test]
    fn the_larger_optimal_write_holds_and_none_says_nothing() {
        let with = |optimal_write| IoLimits {
            optimal_write,
            ..limits(0, 8, 8)
        };
        for (a, b, want) in [(0, 0, 0), (0, 8192, 8192), (65536, 8192, 65536)] {
            assert_eq!(with(a).stack(with(b)).optimal_write, want);
            assert_eq!(with(b).stack(with(a)).optimal_write, want);
        }
    }

    #[test]
    fn t34_holes_need_every_part_and_suit_the_coarsest() {
        let with = |hole_bytes| IoLimits {
            hole_bytes,
            ..limits(0, 8, 8)
        };
        for (a, b, want) in [(0, 0, 0), (0, 65536, 0), (65536, 1 << 20, 1 << 20)] {
            assert_eq!(with(a).stack(with(b)).hole_bytes, want);
            assert_eq!(with(b).stack(with(a)).hole_bytes, want);
        }
    }

    #[test]
    fn t34_the_smaller_boundary_holds_and_none_is_no_boundary() {
        let with = |boundary| IoLimits {
            boundary,
            ..limits(0, 8, 8)
        };
        for (a, b, want) in [
            (0, 0, 0),
            (0, 4096, 4096),
            (8192, 4096, 4096),
            (12288, 8192, 8192),
        ] {
            assert_eq!(with(a).stack(with(b)).boundary, want, "{a} and {b}");
            assert_eq!(with(b).stack(with(a)).boundary, want, "{b} and {a}");
        }
    }
}
