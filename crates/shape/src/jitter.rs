//! A way that is unsteady: a random extra, uniform from 0 to a maximum.
//!
//! # Origin
//! SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014), and the
//! multiply-and-shift reduction to a range; its bias of at most 2⁻⁶⁴ per value is nothing here.

/// The extra and the state of its generator.
pub(crate) struct Jitter {
    jitter_ns: u64,
    state: u64,
}

impl Jitter {
    pub(crate) fn new(jitter_ns: u64, seed: u64) -> Self {
        Jitter {
            jitter_ns,
            state: seed,
        }
    }

    /// Another maximum; the sequence goes on.
    pub(crate) fn configure(&mut self, jitter_ns: u64) {
        self.jitter_ns = jitter_ns;
    }

    /// The extra of the next command, 0…jitter.
    pub(crate) fn draw(&mut self) -> u64 {
        if self.jitter_ns == 0 {
            return 0;
        }
        let values = u128::from(self.jitter_ns) + 1;
        ((u128::from(self.next()) * values) >> 64) as u64
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_sequence() {
        let mut jitter = Jitter::new(u64::MAX, 1_234_567);
        let drawn: [u64; 3] = core::array::from_fn(|_| jitter.draw());
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(drawn, published);
    }

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
