//! Pace of background copies: not slower than a floor, not faster than a ceiling, and slower while
//! users' I/O takes longer than its base latency.
//!
//! # Contract
//! [`Pace::allows`] before a copy begins, [`Pace::spend`] when it does: bytes are earned at the
//! current rate, and a copy may begin when none are owed. The rate is set every [`PERIOD_NS`]:
//! where users waited more than [`PATIENCE`] times the base latency it is halved, else it grows.
//! The base latency is measured in every [`QUIET`]th period, in which no copy begins, unless users
//! do no I/O; and in the next one, as long as earlier copies are under way.
//!
//! # Limits
//! The mean over all I/Os counts, so where their sizes change much it is wrong for a while.

/// Bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// At least, whatever users feel.
    pub floor: u64,
    /// At most.
    pub ceiling: u64,
}

impl Default for Speed {
    /// At least 1 MiB/s, so that even beside much I/O a rebuild ends (1 TiB: 12 days); no ceiling
    /// but what the legs do.
    fn default() -> Self {
        Self {
            floor: 1 << 20,
            ceiling: 1 << 40,
        }
    }
}

/// Long enough for some I/Os of a rotating disk.
const PERIOD_NS: u64 = 100_000_000;
const QUIET: u64 = 32;
/// So many more at most: copies that take longer are not waited for.
const LONGER_MAX: u8 = 20;
/// In halves: 3 is one and a half times.
const PATIENCE: u64 = 3;
const SECOND_NS: i128 = 1_000_000_000;

/// See the module's contract.
#[derive(Debug)]
pub(super) struct Pace {
    speed: Speed,
    rate: u64,
    /// Bytes that may be copied now, times a second in ns; below 0: that are owed.
    earned: i128,
    earned_at_ns: u64,
    period: u64,
    period_end_ns: u64,
    /// Users' I/Os of this period.
    served: u64,
    waited_ns: u64,
    /// Base latency: users' wait without copies.
    calm_ns: Option<u64>,
    /// The base latency is not known, and a user's I/O waits.
    unknown: bool,
    /// A copy began in this period, or was under way.
    busy: bool,
    /// So many periods more it is quiet, since copies were.
    longer: u8,
}

impl Pace {
    pub fn new(speed: Speed, now_ns: u64) -> Self {
        Self {
            speed,
            rate: (speed.floor.saturating_mul(8))
                .clamp(speed.floor, speed.ceiling.max(speed.floor)),
            earned: 0,
            earned_at_ns: now_ns,
            period: 0,
            period_end_ns: now_ns,
            served: 0,
            waited_ns: 0,
            calm_ns: None,
            unknown: false,
            busy: false,
            longer: 0,
        }
    }

    pub fn set(&mut self, speed: Speed) {
        self.speed = speed;
        self.rate = self.rate.clamp(speed.floor, speed.ceiling.max(speed.floor));
    }

    /// Bytes per second, now.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// An I/O of a user has ended.
    pub fn served(&mut self, waited_ns: u64) {
        self.served += 1;
        self.waited_ns = self.waited_ns.saturating_add(waited_ns);
    }

    /// Whether a copy may begin; `running`: one is under way.
    pub fn allows(&mut self, now_ns: u64, running: bool) -> bool {
        if now_ns >= self.period_end_ns {
            self.next_period(now_ns, running);
        }
        let passed = u128::from(now_ns - self.earned_at_ns.min(now_ns));
        self.earned_at_ns = now_ns;
        let more = (u128::from(self.rate) * passed) as i128;
        // Unused rate is not kept for long.
        let most = i128::from(self.rate / 10) * SECOND_NS;
        self.earned = (self.earned + more).min(most);
        self.earned >= 0 && !self.is_quiet()
    }

    /// A copy of so many bytes begins.
    pub fn spend(&mut self, bytes: u64) {
        self.earned -= i128::from(bytes) * SECOND_NS;
        self.busy = true;
    }

    /// When a copy may begin.
    pub fn next_at(&self) -> u64 {
        if self.is_quiet() {
            return self.period_end_ns;
        }
        let owed = self.earned.min(0).unsigned_abs();
        let wait = owed.div_ceil(u128::from(self.rate.max(1)));
        let at = self.earned_at_ns.saturating_add(wait as u64);
        at.max(self.earned_at_ns + 1)
    }

    /// Nothing begins, to see what users wait without.
    fn is_quiet(&self) -> bool {
        self.unknown || self.period.is_multiple_of(QUIET) && self.calm_ns.is_some()
    }

    fn next_period(&mut self, now_ns: u64, running: bool) {
        let mean_ns = self.waited_ns.checked_div(self.served);
        // I/O that had begun before is felt too: it is quiet once that is over, if it ends soon.
        let again = self.is_quiet() && self.busy && self.longer < LONGER_MAX;
        match (mean_ns, self.calm_ns) {
            // No user does I/O.
            (None, _) => self.rate = self.rate.saturating_mul(2),
            (Some(_), _) if again => {}
            (Some(mean_ns), calm_ns) if !self.busy => {
                let calm_ns = calm_ns.map_or(mean_ns, |it| it - it / 4 + mean_ns / 4);
                self.calm_ns = Some(calm_ns);
            }
            (Some(mean_ns), Some(calm_ns)) if mean_ns > calm_ns / 2 * PATIENCE => self.rate /= 2,
            (Some(_), _) => self.rate = self.rate.saturating_add(self.rate / 8 + 1),
        }
        let ceiling = self.speed.ceiling.max(self.speed.floor);
        self.rate = self.rate.clamp(self.speed.floor, ceiling);
        self.unknown = mean_ns.is_some() && self.calm_ns.is_none();
        self.longer = if again { self.longer + 1 } else { 0 };
        self.period += u64::from(!again);
        (self.served, self.waited_ns, self.busy) = (0, 0, running);
        self.period_end_ns = now_ns + PERIOD_NS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const MIB: u64 = 1 << 20;

    /// Copies pieces of 1 MiB for `ms`, each of which is under way for 10 ms, while users do an I/O
    /// of `wait_ns` every millisecond (`None`: none); how many bytes were copied.
    fn copied(
        pace: &mut Pace,
        now_ms: &mut u64,
        ms: u64,
        wait_ns: impl Fn(bool) -> Option<u64>,
    ) -> u64 {
        copied_slowly(pace, now_ms, ms, 10, wait_ns)
    }

    /// The same, each under way for so many ms.
    fn copied_slowly(
        pace: &mut Pace,
        now_ms: &mut u64,
        ms: u64,
        each_ms: u64,
        wait_ns: impl Fn(bool) -> Option<u64>,
    ) -> u64 {
        let (mut bytes, mut ends_ms) = (0, 0);
        for now in *now_ms..*now_ms + ms {
            while pace.allows(now * MS, now < ends_ms) {
                pace.spend(MIB);
                bytes += MIB;
                ends_ms = now + each_ms;
            }
            if let Some(wait_ns) = wait_ns(now < ends_ms) {
                pace.served(wait_ns);
            }
        }
        *now_ms += ms;
        bytes
    }

    #[test]
    fn alone_it_is_as_fast_as_the_ceiling_and_no_faster() {
        let speed = Speed {
            floor: MIB,
            ceiling: 100 * MIB,
        };
        let (mut pace, mut now_ms) = (Pace::new(speed, 0), 0);
        copied(&mut pace, &mut now_ms, 3000, |_| None);
        let bytes = copied(&mut pace, &mut now_ms, 10_000, |_| None);
        assert!((990 * MIB..=1011 * MIB).contains(&bytes), "{}", bytes / MIB);
    }

    #[test]
    fn who_feels_it_slows_it_down_to_the_floor_and_who_does_not_does_not() {
        let speed = Speed {
            floor: 2 * MIB,
            ceiling: 200 * MIB,
        };
        let felt = |beside: bool| Some(if beside { 10 * MS } else { MS });
        let (mut pace, mut now_ms) = (Pace::new(speed, 0), 0);
        copied(&mut pace, &mut now_ms, 20_000, felt);
        let bytes = copied(&mut pace, &mut now_ms, 20_000, felt);
        // The floor holds but for one period of 32; a little more as it tries what may be.
        assert!((38 * MIB..=200 * MIB).contains(&bytes), "{}", bytes / MIB);
        let bytes = copied(&mut pace, &mut now_ms, 20_000, |_| Some(MS));
        assert!(bytes > 2000 * MIB, "{}", bytes / MIB);
    }

    #[test]
    fn what_users_wait_beside_copies_that_take_long_is_not_what_they_wait_without() {
        let speed = Speed {
            floor: MIB,
            ceiling: 200 * MIB,
        };
        let felt = |beside: bool| Some(if beside { 10 * MS } else { MS });
        let (mut pace, mut now_ms) = (Pace::new(speed, 0), 0);
        copied_slowly(&mut pace, &mut now_ms, 60_000, 300, felt);
        assert!(pace.calm_ns < Some(2 * MS), "{:?}", pace.calm_ns);
        let bytes = copied_slowly(&mut pace, &mut now_ms, 60_000, 300, felt);
        assert!((50 * MIB..=120 * MIB).contains(&bytes), "{}", bytes / MIB);
    }

    #[test]
    fn the_time_that_is_named_is_when_a_copy_may_begin() {
        let speed = Speed {
            floor: MIB,
            ceiling: MIB,
        };
        let mut pace = Pace::new(speed, 0);
        assert!(pace.allows(0, false));
        pace.spend(MIB);
        assert!(!pace.allows(MS, true));
        let at = pace.next_at();
        assert!(
            !pace.allows(at - 1, false) && pace.allows(at, false),
            "{at}"
        );
        assert_eq!(at, 1000 * MS);
    }
}
