//! Results of a run: counts, latencies, and the course over time.
use crate::limits::SERIES_NS;
use alloc::vec::Vec;

/// Buckets to a doubling: a latency is known to 1.6 %.
const STEPS: u64 = 64;
const STEP_BITS: u32 = STEPS.ilog2();
/// Latencies up to 2^42 ns, more than an hour.
const BUCKETS: usize = ((42 - STEP_BITS) as usize + 1) * STEPS as usize;

/// Latencies by size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    counts: Vec<u64>,
    count: u64,
    sum_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            count: 0,
            sum_ns: 0,
        }
    }
}

impl Latencies {
    /// One more.
    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean; 0 without one.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count).unwrap_or(0)
    }

    /// Of a thousand, so many are not above this; 0 without one.
    pub fn quantile_ns(&self, of_thousand: u64) -> u64 {
        let wanted = (self.count * of_thousand).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return middle(bucket);
            }
        }
        0
    }

    /// The buckets that are not empty: their middle and how many.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let counted = self.counts.iter().enumerate();
        counted
            .filter(|(_, count)| **count > 0)
            .map(|(bucket, &count)| (middle(bucket), count))
    }
}

#[inline]
fn bucket(ns: u64) -> usize {
    let shift = (ns | STEPS).ilog2() - STEP_BITS;
    let index = u64::from(shift) * STEPS + (ns >> shift);
    (index as usize).min(BUCKETS - 1)
}

fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * STEPS {
        return bucket;
    }
    let shift = bucket / STEPS - 1;
    let base = (bucket - shift * STEPS) << shift;
    base + (1 << shift) / 2
}

/// Everything that is measured of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Time that was measured.
    pub run_ns: u64,
    /// Bytes of good I/Os that ended meanwhile, reads and writes.
    pub bytes: [u64; 2],
    /// Their latencies, reads and writes.
    pub latencies: [Latencies; 2],
    /// Good I/Os per path; of a mirror, reads.
    pub path_ios: Vec<u64>,
    /// Bytes per host.
    pub host_bytes: Vec<u64>,
    /// I/Os that failed on a path (and were given to another).
    pub failed: u64,
    /// Reads of which a second copy was sent, and of those the copies that were first.
    pub hedged: u64,
    /// See `hedged`.
    pub hedges_won: u64,
    /// I/Os for which there was no room in the world: it is overloaded.
    pub turned_away: u64,
    /// Bytes in each step of [`SERIES_NS`], warm-up included.
    pub series: Vec<u64>,
    /// I/Os that ended, warm-up included.
    pub ios: u64,
    /// Events that happened.
    pub events: u64,
}

impl Tally {
    /// Nothing yet, over so many paths and hosts, `warm_ns` + `run_ns` long.
    pub fn new(paths: usize, hosts: usize, warm_ns: u64, run_ns: u64) -> Self {
        let steps = (warm_ns + run_ns).div_ceil(SERIES_NS) as usize;
        Self {
            run_ns,
            path_ios: vec![0; paths],
            host_bytes: vec![0; hosts],
            series: vec![0; steps],
            ..Self::default()
        }
    }

    /// Bytes per second, reads and writes together.
    pub fn bytes_per_s(&self) -> u64 {
        self.per_s(self.bytes[0] + self.bytes[1])
    }

    /// A count over the time that was measured, per second.
    pub fn per_s(&self, count: u64) -> u64 {
        let scaled = u128::from(count) * 1_000_000_000;
        (scaled / u128::from(self.run_ns.max(1))) as u64
    }

    /// Mean latency of all I/Os; 0 without one.
    pub fn mean_ns(&self) -> u64 {
        let [reads, writes] = &self.latencies;
        let sum = reads.sum_ns.saturating_add(writes.sum_ns);
        sum.checked_div(reads.count + writes.count).unwrap_or(0)
    }

    /// Of a thousand I/Os, so many take no longer.
    pub fn quantile_ns(&self, of_thousand: u64) -> u64 {
        let [reads, writes] = &self.latencies;
        let mut both = reads.clone();
        for (sum, count) in both.counts.iter_mut().zip(&writes.counts) {
            *sum += count;
        }
        both.count += writes.count;
        both.quantile_ns(of_thousand)
    }

    /// Each path's share of the I/Os, of a thousand.
    pub fn share(&self) -> Vec<u64> {
        let all: u64 = self.path_ios.iter().sum();
        let share = |ios: &u64| (ios * 1000 + all / 2).checked_div(all).unwrap_or(0);
        self.path_ios.iter().map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_comes_back_to_within_a_bucket() {
        for ns in [
            0,
            1,
            63,
            64,
            65,
            127,
            128,
            1_000,
            123_456,
            987_654_321,
            1 << 41,
        ] {
            let found = middle(bucket(ns));
            assert!(found.abs_diff(ns) * 128 <= ns, "{ns}: {found}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_count_from_below() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile_ns(990), 0);
        (1..=100).for_each(|ns| latencies.add(ns));
        assert_eq!(latencies.quantile_ns(500), 50);
        assert_eq!(latencies.quantile_ns(990), 99);
        assert_eq!(latencies.quantile_ns(999), 100);
        assert_eq!(latencies.mean_ns(), 50);
    }
}
