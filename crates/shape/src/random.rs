//! A small random generator that gives the same sequence for the same seed.
//!
//! # Origin
//! SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014), and the
//! multiply-and-shift reduction to a range; its bias of at most 2⁻⁶⁴ per value does not matter
//! here.

/// A sequence of random numbers.
#[derive(Clone, Debug, Default)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Starts the sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Random { state: seed }
    }

    /// Returns the next value, uniform in 0…max.
    pub fn up_to(&mut self, max: u64) -> u64 {
        let values = u128::from(max) + 1;
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
        let mut random = Random::new(1_234_567);
        let drawn: [u64; 3] = core::array::from_fn(|_| random.up_to(u64::MAX));
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(drawn, published);
    }
}
