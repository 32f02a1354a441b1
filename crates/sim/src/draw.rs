//! Random quantities of the models: what is drawn of which sequence.
use crate::plan::Noise;
use shape::{Random, exponential, scale};

/// One thing's own sequence: what a policy chooses must not shift the luck of anything else.
pub fn sequence(seed: u64, thing: u64, index: usize) -> Random {
    let mut first = Random::new(seed ^ thing.rotate_left(32) ^ index as u64);
    Random::new(first.up_to(u64::MAX))
}

/// Exponentially distributed with this mean.
pub fn exponential_ns(random: &mut Random, mean_ns: u64) -> u64 {
    scale(mean_ns, exponential(random))
}

/// A service of this mean.
pub fn service_ns(random: &mut Random, mean_ns: u64, noise: Noise) -> u64 {
    match noise {
        Noise::None => mean_ns,
        Noise::Usual => scale(mean_ns, (7 * 65_536 + 3 * exponential(random)) / 10),
        Noise::Flat => random.up_to(2 * mean_ns),
        Noise::Bimodal if random.up_to(9) == 0 => mean_ns * 46 / 10,
        Noise::Bimodal => mean_ns * 6 / 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_has_its_mean_and_its_least() {
        let mut random = sequence(1, 2, 3);
        for noise in [Noise::None, Noise::Usual, Noise::Flat, Noise::Bimodal] {
            let drawn: [u64; 8192] =
                core::array::from_fn(|_| service_ns(&mut random, 200_000, noise));
            let least = noise.least_ns(200_000);
            assert!(drawn.iter().all(|&ns| ns + 1 >= least), "{noise:?}");
            let mean = drawn.iter().sum::<u64>() / 8192;
            assert!((193_000..207_000).contains(&mean), "{noise:?} {mean}");
        }
    }

    #[test]
    fn things_have_their_own_luck() {
        let mut drawn = [(1, 0), (1, 1), (2, 0)]
            .map(|(thing, index)| sequence(9, thing, index).up_to(u64::MAX));
        drawn.sort_unstable();
        assert!(drawn.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
