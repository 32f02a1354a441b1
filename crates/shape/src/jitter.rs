//! Jitter: a random extra delay, uniform from 0 to a maximum.
use crate::random::Random;

/// The maximum and the generator.
pub(crate) struct Jitter {
    jitter_ns: u64,
    random: Random,
}

impl Jitter {
    pub(crate) fn new(jitter_ns: u64, seed: u64) -> Self {
        Jitter {
            jitter_ns,
            random: Random::new(seed),
        }
    }

    /// Changes the maximum; the random sequence continues.
    pub(crate) fn configure(&mut self, jitter_ns: u64) {
        self.jitter_ns = jitter_ns;
    }

    /// Returns the extra delay of the next command, 0…jitter.
    pub(crate) fn draw(&mut self) -> u64 {
        match self.jitter_ns {
            0 => 0,
            max => self.random.up_to(max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_up_to_the_maximum_comes_about_equally_often() {
        let mut jitter = Jitter::new(4, 7);
        let mut seen = [0u32; 5];
        for _ in 0..50_000 {
            seen[jitter.draw() as usize] += 1;
        }
        assert!(seen.iter().all(|n| (9_500..10_500).contains(n)), "{seen:?}");
    }
}
