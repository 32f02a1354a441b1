//! Facts that a reactor learns of its waits: the cost of a wake-up, gaps between arrivals, and how
//! much it has polled.
use super::WINDOW_NS;

/// Cost of going to sleep and of being woken.
#[derive(Clone, Copy, Debug)]
pub struct WakeupCost {
    latency_ns: u64,
}

/// Latency of a wake-up until one was measured.
const LATENCY_NS: u64 = 20_000;
/// Bounds of what is believed: a busy machine, and a CPU in a deep state, wake later.
const LATENCY_NS_MIN: u64 = 2_000;
const LATENCY_NS_MAX: u64 = 100_000;
/// A mean is learnt by this part, as a power of two.
const LATENCY_SHIFT: u32 = 3;
/// Two context switches, and caches that another thread may have used.
const SWITCH_NS: u64 = 5_000;
/// After longer sleeps a CPU is in a deeper state than those that polling would save.
const SLEEP_NS_MAX: u64 = 10_000_000;

impl Default for WakeupCost {
    fn default() -> Self {
        let latency_ns = LATENCY_NS;
        Self { latency_ns }
    }
}

impl WakeupCost {
    /// A sleep ended so late.
    pub fn measured(late_ns: u64) -> Self {
        let latency_ns = late_ns.clamp(LATENCY_NS_MIN, LATENCY_NS_MAX);
        Self { latency_ns }
    }

    /// Time from an event to the thread that it wakes, ns.
    pub fn latency_ns(&self) -> u64 {
        self.latency_ns
    }

    /// An arrival that comes sooner is worth polling for, ns.
    pub fn ns(&self) -> u64 {
        self.latency_ns + SWITCH_NS
    }

    /// A sleep of `slept_ns` ended `late_ns` after its timer.
    pub fn handle_late(&mut self, slept_ns: u64, late_ns: u64) {
        if slept_ns > SLEEP_NS_MAX {
            return;
        }
        let late_ns = late_ns.clamp(LATENCY_NS_MIN, LATENCY_NS_MAX);
        let rest_ns = self.latency_ns - (self.latency_ns >> LATENCY_SHIFT);
        self.latency_ns = rest_ns + (late_ns >> LATENCY_SHIFT);
    }
}

/// Upper ends of the buckets of gaps, ns: half octaves. Longer gaps are in one more.
const ENDS_NS: [u64; 16] = [
    1_000, 1_400, 2_000, 2_800, 4_000, 5_700, 8_000, 11_300, 16_000, 22_600, 32_000, 45_300,
    64_000, 90_500, 128_000, 181_000,
];
/// At so many gaps all counts are halved: the past is the last 16 to 32.
const GAPS_MAX: u16 = 32;

/// Distribution of the last waits, and the limit that would have cost the least.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gaps {
    counts: [u16; ENDS_NS.len() + 1],
    total: u16,
    limit_ns: u64,
}

impl Gaps {
    /// Notes a gap where a sleep and a wake-up cost `cost_ns`.
    pub fn add(&mut self, gap_ns: u64, cost_ns: u64) {
        let bucket = ENDS_NS.iter().position(|end_ns| gap_ns <= *end_ns);
        self.counts[bucket.unwrap_or(ENDS_NS.len())] += 1;
        self.total += 1;
        if self.total == GAPS_MAX {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
        self.limit_ns = self.best_limit_ns(cost_ns);
    }

    /// How long the next wait should be polled, ns; 0: not at all.
    #[inline]
    pub fn limit_ns(&self) -> u64 {
        self.limit_ns
    }

    /// Whether more than half of them were at most that long. `end_ns` lies within the buckets, or
    /// all that they tell apart counts.
    pub fn are_mostly_below(&self, end_ns: u64) -> bool {
        let below = ENDS_NS.iter().zip(&self.counts);
        let below = below.filter(|(end, _)| **end <= end_ns).map(|it| it.1);
        2 * below.sum::<u16>() > self.total
    }

    /// With a limit, each shorter gap costs its length, and each longer one the limit and a
    /// wake-up.
    fn best_limit_ns(&self, cost_ns: u64) -> u64 {
        let mut longer = u64::from(self.total);
        let (mut found_ns, mut best) = (0, (longer * cost_ns, 0));
        for (&end_ns, &count) in ENDS_NS.iter().zip(&self.counts) {
            if end_ns > cost_ns {
                break;
            }
            longer -= u64::from(count);
            found_ns += u64::from(count) * end_ns;
            best = best.min((found_ns + longer * (end_ns + cost_ns), end_ns));
        }
        best.1
    }
}

/// Time that may be spent polling.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    permille: u64,
    left_ns: u64,
    filled_ns: u64,
}

impl Allowance {
    /// So many thousandths of a CPU, over [`WINDOW_NS`].
    pub fn new(permille: u16, now_ns: u64) -> Self {
        let permille = u64::from(permille);
        Self {
            permille,
            left_ns: permille * WINDOW_NS / 1000,
            filled_ns: now_ns,
        }
    }

    /// How long may be polled from now on, ns.
    #[inline]
    pub fn left_ns(&mut self, now_ns: u64) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.filled_ns).min(WINDOW_NS);
        self.filled_ns = now_ns;
        let most_ns = self.permille * WINDOW_NS / 1000;
        self.left_ns = (self.left_ns + self.permille * passed_ns / 1000).min(most_ns);
        self.left_ns
    }

    /// So long was polled.
    #[inline]
    pub fn spend(&mut self, polled_ns: u64) {
        self.left_ns = self.left_ns.saturating_sub(polled_ns);
    }
}
