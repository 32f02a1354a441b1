//! Histogram of latencies: counts in buckets of a fixed number, for statistics.
//!
//! # Contract
//! Log-linear: four buckets of one width per power of two, so that an estimate within a bucket is
//! off by less than a quarter of it. Their bounds are constants, so histograms of cores and of
//! times add up, and subtract, bucket by bucket.
//!
//! # Limits
//! From 256 ns to 69 s; the last bucket has all that is longer. 888 bytes each.

/// log2 of the width of the first buckets, ns.
const UNIT_SHIFT: u32 = 8;
/// log2 of the buckets per power of two.
const SUB_SHIFT: u32 = 2;
/// log2 of the first latency of the last bucket, in units.
const TOP_SHIFT: u32 = 28;
/// Buckets of a histogram.
pub const LATENCY_BUCKETS: usize = ((TOP_SHIFT - SUB_SHIFT + 1) << SUB_SHIFT) as usize + 1;

/// Latencies of I/Os of one kind that were done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyHistogram {
    /// Sum of them, ns.
    pub sum_ns: u64,
    /// I/Os by bucket.
    pub buckets: [u64; LATENCY_BUCKETS],
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self {
            sum_ns: 0,
            buckets: [0; LATENCY_BUCKETS],
        }
    }
}

impl LatencyHistogram {
    /// Counts one I/O.
    #[inline(always)]
    pub fn record(&mut self, latency_ns: u64) {
        self.sum_ns = self.sum_ns.wrapping_add(latency_ns);
        self.buckets[bucket_of(latency_ns)] += 1;
    }

    /// I/Os counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Adds what another one counted.
    pub fn add(&mut self, other: &Self) {
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
        for (own, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += more;
        }
    }

    /// Returns the I/Os since `before`, an earlier state of this histogram.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            sum_ns: self.sum_ns.wrapping_sub(before.sum_ns),
            buckets: core::array::from_fn(|at| self.buckets[at].saturating_sub(before.buckets[at])),
        }
    }

    /// Mean, ns; `None`: nothing was counted.
    pub fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count())
    }

    /// The latency that so many of 1000 I/Os don't exceed, ns, as if those of a bucket were spread
    /// evenly over it; `None`: nothing was counted. Of the last bucket, its beginning.
    pub fn quantile_ns(&self, per_mille: u64) -> Option<u64> {
        let count = self.count();
        let rank = (u128::from(count) * u128::from(per_mille)).div_ceil(1000);
        let (mut from_ns, mut before) = (0, 0);
        for (bucket, here) in self.buckets.iter().enumerate() {
            let Some(to_ns) = latency_below_ns(bucket) else {
                break; // all others are below
            };
            let upto = before + u128::from(*here);
            if *here > 0 && upto >= rank {
                let share = u128::from(to_ns - from_ns) * (rank - before) / u128::from(*here);
                return Some(from_ns + share as u64);
            }
            (from_ns, before) = (to_ns, upto);
        }
        (count > 0).then_some(from_ns)
    }
}

/// The bucket of a latency.
#[inline(always)]
fn bucket_of(latency_ns: u64) -> usize {
    let units = (latency_ns >> UNIT_SHIFT).min(1 << TOP_SHIFT);
    let octave = (units | (1 << SUB_SHIFT)).ilog2() - SUB_SHIFT;
    // Below the first octave the upper bits are 0: these buckets are linear as well.
    ((octave << SUB_SHIFT) + (units >> octave) as u32) as usize
}

/// The least latency that is above a bucket, ns; `None`: it is the last one.
pub fn latency_below_ns(bucket: usize) -> Option<u64> {
    let next = bucket as u64 + 1;
    if bucket + 1 >= LATENCY_BUCKETS {
        return None;
    }
    let octave = (next >> SUB_SHIFT).saturating_sub(1);
    Some((next - (octave << SUB_SHIFT)) << octave << UNIT_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_meet_at_their_bounds() {
        let mut from_ns = 0;
        for bucket in 0..LATENCY_BUCKETS - 1 {
            let to_ns = latency_below_ns(bucket).unwrap();
            assert!(to_ns > from_ns, "bucket {bucket}: {from_ns} to {to_ns}");
            assert_eq!(bucket_of(from_ns), bucket, "{from_ns}");
            assert_eq!(bucket_of(to_ns - 1), bucket, "{to_ns}");
            let is_narrow = (to_ns - from_ns) * 4 <= from_ns.max(1024);
            assert!(is_narrow, "bucket {bucket}: {from_ns} to {to_ns}");
            from_ns = to_ns;
        }
        assert_eq!(from_ns, 1 << 36);
        assert_eq!(bucket_of(from_ns), LATENCY_BUCKETS - 1);
        assert_eq!(bucket_of(u64::MAX), LATENCY_BUCKETS - 1);
        assert_eq!(latency_below_ns(LATENCY_BUCKETS - 1), None);
    }

    #[test]
    fn histograms_add_up() {
        let (mut one, mut other) = (LatencyHistogram::default(), LatencyHistogram::default());
        one.record(100_000);
        other.record(100_001);
        other.record(u64::MAX);
        one.add(&other);
        assert_eq!(one.count(), 3);
        assert_eq!(one.sum_ns, 200_000);
        assert_eq!(one.buckets.iter().filter(|it| **it > 0).count(), 2);
        let since = one.since(&other);
        assert_eq!((since.count(), since.sum_ns), (1, 100_000));
    }

    #[test]
    fn quantiles_are_off_by_less_than_a_bucket() {
        let mut it = LatencyHistogram::default();
        assert_eq!((it.quantile_ns(500), it.mean_ns()), (None, None));
        (1..=1000).for_each(|us| it.record(us * 1000));
        for per_mille in [1, 10, 500, 990, 999, 1000] {
            let (found, right) = (it.quantile_ns(per_mille).unwrap(), per_mille * 1000);
            let off = found.abs_diff(right);
            assert!(off * 8 <= right + 8 * 256, "{per_mille}: {found}");
        }
        assert_eq!(it.mean_ns(), Some(500_500));
        it.record(u64::MAX);
        assert_eq!(
            it.quantile_ns(1000),
            Some(1 << 36),
            "the last bucket has no end"
        );
    }
}
