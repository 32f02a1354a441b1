//! Rare long delays: of a million commands a given number is late by a Pareto time.
use crate::draw::pareto_ns;
use crate::random::Random;

/// The lateness and its generator.
pub(crate) struct Tail {
    per_million: u32,
    least_ns: u64,
    random: Random,
}

impl Tail {
    /// A tail for a port; its sequence differs from the one of the port's jitter with the same
    /// seed.
    pub(crate) fn new(per_million: u32, least_ns: u64, seed: u64) -> Self {
        Tail {
            per_million,
            least_ns,
            random: Random::new(!seed),
        }
    }

    /// Changes the figures; the random sequence continues.
    pub(crate) fn configure(&mut self, per_million: u32, least_ns: u64) {
        (self.per_million, self.least_ns) = (per_million, least_ns);
    }

    /// Returns the lateness of the next command; mostly 0.
    pub(crate) fn draw(&mut self) -> u64 {
        if self.per_million == 0 || self.random.up_to(999_999) >= u64::from(self.per_million) {
            return 0;
        }
        pareto_ns(&mut self.random, self.least_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_late_and_none_by_less_than_the_least() {
        let mut tail = Tail::new(10_000, 5_000_000, 7);
        let late: [u64; 100_000] = core::array::from_fn(|_| tail.draw());
        let count = late.iter().filter(|&&ns| ns > 0).count();
        assert!((900..1_100).contains(&count), "{count}");
        assert!(late.iter().all(|&ns| ns == 0 || ns >= 4_999_000));
        // 4^(−3/2) = 1 in 8
        let far = late.iter().filter(|&&ns| ns > 20_000_000).count();
        assert!((90..160).contains(&far), "{far}");
        tail.configure(0, 5_000_000);
        assert_eq!(tail.draw(), 0);
    }
}
