//! Random quantities of the models, in integers: the same bits give the same world everywhere.
//!
//! # Limits
//! Logarithm and power come from tables of 64 steps with straight lines between: off by at most
//! 0.003 % of the mean.
use crate::random::Random;

/// −ln(½ + i/128), Q16.
#[rustfmt::skip]
const LN: [u32; 65] = [
    45_426, 44_410, 43_409, 42_424, 41_453, 40_496, 39_553, 38_624, 37_707, 36_803,
    35_911, 35_032, 34_164, 33_307, 32_461, 31_627, 30_802, 29_988, 29_184, 28_390,
    27_605, 26_829, 26_063, 25_305, 24_556, 23_815, 23_083, 22_359, 21_643, 20_934,
    20_233, 19_540, 18_854, 18_174, 17_502, 16_837, 16_178, 15_526, 14_880, 14_241,
    13_608, 12_981, 12_360, 11_744, 11_135, 10_530, 9932, 9339, 8751, 8169,
    7591, 7019, 6451, 5889, 5331, 4778, 4230, 3686, 3146, 2611,
    2081, 1554, 1032, 514, 0,
];

/// 2^(i/64), Q16.
#[rustfmt::skip]
const EXP2: [u32; 65] = [
    65_536, 66_250, 66_971, 67_700, 68_438, 69_183, 69_936, 70_698, 71_468, 72_246,
    73_032, 73_828, 74_632, 75_444, 76_266, 77_096, 77_936, 78_785, 79_642, 80_510,
    81_386, 82_273, 83_169, 84_074, 84_990, 85_915, 86_851, 87_796, 88_752, 89_719,
    90_696, 91_684, 92_682, 93_691, 94_711, 95_743, 96_785, 97_839, 98_905, 99_982,
    101_070, 102_171, 103_283, 104_408, 105_545, 106_694, 107_856, 109_031, 110_218, 111_418,
    112_631, 113_858, 115_098, 116_351, 117_618, 118_899, 120_194, 121_502, 122_825, 124_163,
    125_515, 126_882, 128_263, 129_660, 131_072,
];

const LN_2: u64 = 45_426;

/// Draws from the exponential distribution with mean 1, Q16.
pub fn exponential(random: &mut Random) -> u64 {
    let drawn = random.up_to(u64::MAX) | 1;
    let zeros = drawn.leading_zeros();
    // drawn = 2^−zeros · (½ … 1); the leading one says ½, the 16 bits after it where above.
    let below = (drawn << zeros) << 1;
    u64::from(zeros) * LN_2 + between(&LN, (below >> 48) as u32)
}

/// Draws from the Pareto distribution with exponent 3/2: at least `least_ns`, at most 2^16 times
/// that.
pub fn pareto_ns(random: &mut Random, least_ns: u64) -> u64 {
    // u^(−2/3) = 2^(log2(e) · 2/3 · −ln u); log2(e) = 94 548 / 65 536
    let power = (exponential(random) * 94_548 / 65_536 * 2 / 3).min(16 << 16);
    let whole = between(&EXP2, (power & 0xffff) as u32);
    scale(least_ns, whole) << (power >> 16)
}

/// Multiplies `of` by a Q16 number.
pub fn scale(of: u64, factor: u64) -> u64 {
    ((u128::from(of) * u128::from(factor)) >> 16) as u64
}

/// Interpolates between two entries of a table; `at` is 16 bits of the way through it.
fn between(table: &[u32; 65], at: u32) -> u64 {
    let (index, rest) = ((at >> 10) as usize, u64::from(at & 0x3ff));
    let (low, high) = (u64::from(table[index]), u64::from(table[index + 1]));
    (low * (1024 - rest) + high * rest) >> 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_has_its_mean_and_its_tail() {
        let mut random = Random::new(1);
        let (mut sum, mut above) = (0, 0);
        for _ in 0..1_000_000 {
            let drawn = exponential(&mut random);
            sum += drawn;
            above += u64::from(drawn > 3 * 65_536);
        }
        assert!((65_300..65_800).contains(&(sum / 1_000_000)), "{sum}");
        // e^−3 = 4.979 %
        assert!((49_000..50_600).contains(&above), "{above}");
    }

    #[test]
    fn the_heavy_tail_is_heavy() {
        let mut random = Random::new(1);
        let mut above = 0;
        for _ in 0..1_000_000 {
            let drawn = pareto_ns(&mut random, 1_000_000);
            assert!((999_000..=131_072_000_000).contains(&drawn), "{drawn}");
            above += u64::from(drawn > 100_000_000);
        }
        // 100^(−3/2) = 0.1 %
        assert!((850..1_150).contains(&above), "{above}");
    }
}
