//! A rate limit that does not drift: the nth piece is due at n ÷ rate, however late the caller
//! comes.

/// How far behind a limit may fall and still catch up, ns. I/Os that a longer pause withheld are
/// dropped, so that a stall is not followed by a flood.
const CATCH_UP_NS: u64 = 1_000_000_000;

/// A limit on pieces per second. 0 = none.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    per_s: u64,
    start_ns: u64,
    taken: u64,
}

impl Pace {
    /// A limit that begins now.
    pub fn new(per_s: u64, now_ns: u64) -> Self {
        Self {
            per_s,
            start_ns: now_ns,
            taken: 0,
        }
    }

    /// When the next piece may be taken; 0 where there is no limit.
    pub fn due_ns(&self) -> u64 {
        if self.per_s == 0 {
            return 0;
        }
        let late = u128::from(self.taken) * 1_000_000_000 / u128::from(self.per_s);
        self.start_ns
            .saturating_add(u64::try_from(late).unwrap_or(u64::MAX))
    }

    /// Takes `pieces`, of which the first was due.
    pub fn take(&mut self, pieces: u64, now_ns: u64) {
        if self.per_s == 0 {
            return;
        }
        if now_ns.saturating_sub(self.due_ns()) > CATCH_UP_NS {
            *self = Self::new(self.per_s, now_ns);
        }
        self.taken += pieces;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_exact_over_a_long_time() {
        let mut pace = Pace::new(3, 5);
        for _ in 0..3_000_000 {
            pace.take(1, pace.due_ns());
        }
        assert_eq!(pace.due_ns(), 5 + 1_000_000 * 1_000_000_000);
    }

    #[test]
    fn whoever_comes_gets_no_more_than_the_rate() {
        for (per_s, every_ns) in [(1_000, 7_000_003), (1_000, 1), (3, 400_000_000)] {
            let mut pace = Pace::new(per_s, 0);
            let mut taken: u64 = 0;
            for now_ns in (0..300_000).map(|call| call * every_ns) {
                while pace.due_ns() <= now_ns {
                    pace.take(1, now_ns);
                    taken += 1;
                    // The first is due at once, each further one after its share of a second.
                    assert!((taken - 1) * 1_000_000_000 <= (now_ns + 1) * per_s);
                }
            }
            assert!(taken > 0);
        }
    }

    #[test]
    fn a_short_delay_is_caught_up_and_a_long_one_is_not() {
        let mut pace = Pace::new(10, 0);
        pace.take(1, 900_000_000);
        assert_eq!(pace.due_ns(), 100_000_000);
        pace.take(1, 5_000_000_000);
        assert_eq!(pace.due_ns(), 5_100_000_000);
    }

    #[test]
    fn no_limit_is_always_due() {
        let mut pace = Pace::new(0, 7);
        pace.take(1 << 40, 8);
        assert_eq!(pace.due_ns(), 0);
    }
}
