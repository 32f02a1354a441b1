//! Which I/O a job makes next: from its words, its part of the volume and a seed.
use super::sizes::Sizes;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// One I/O to make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Write, else read.
    pub write: bool,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

/// A range of the volume, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub begin: u64,
    /// Behind the last one.
    pub end: u64,
}

impl Region {
    /// Bytes.
    pub fn bytes(self) -> u64 {
        self.end - self.begin
    }
}

/// Parameters that the I/Os of a job share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Random offsets, else one after the other.
    pub random: bool,
    /// Reads among all I/Os, percent.
    pub read_percent: u8,
    /// Sizes.
    pub sizes: Sizes,
}

/// The I/Os of one job, one by one.
#[derive(Clone, Debug)]
pub struct Pattern {
    shape: Shape,
    unit: u32,
    region: Region,
    position: u64,
    /// Bytes still to be issued; `None` = no end.
    left: Option<u64>,
    rng: Xoshiro256PlusPlus,
}

impl Pattern {
    /// I/Os in `region`, whose ends are multiples of the sizes' unit and which holds at least one
    /// I/O of the largest size. `once`: end when as many bytes were issued as the region has.
    pub fn new(shape: Shape, region: Region, once: bool, seed: u64) -> Self {
        let unit = shape.sizes.unit();
        assert!(
            region.bytes() >= u64::from(shape.sizes.largest()),
            "the region is too small"
        );
        Self {
            shape,
            unit,
            region,
            position: region.begin,
            left: once.then_some(region.bytes()),
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
        }
    }

    /// The next I/O; `None` at the end.
    pub fn next_step(&mut self) -> Option<Step> {
        let left = self.left.unwrap_or(u64::MAX);
        if left == 0 {
            return None;
        }
        let write = self.below(100) >= u64::from(self.shape.read_percent);
        let mix = if write {
            &self.shape.sizes.write
        } else {
            &self.shape.sizes.read
        };
        let draw = below(&mut self.rng, 100) as u8;
        let wanted = u64::from(mix.pick(draw)).min(left);
        let (offset, length) = if self.shape.random {
            self.anywhere(wanted)
        } else {
            self.onwards(wanted)
        };
        self.left = self.left.map(|left| left - length);
        Some(Step {
            write,
            offset,
            length: length as u32,
        })
    }

    fn anywhere(&mut self, length: u64) -> (u64, u64) {
        let unit = u64::from(self.unit);
        let offset = self.region.begin + self.below(self.region.bytes() / unit) * unit;
        (offset.min(self.region.end - length), length)
    }

    /// From where the last one ended; the last of a round is as short as the region demands.
    fn onwards(&mut self, wanted: u64) -> (u64, u64) {
        let offset = self.position;
        let length = wanted.min(self.region.end - offset);
        self.position = offset + length;
        if self.position == self.region.end {
            self.position = self.region.begin;
        }
        (offset, length)
    }

    fn below(&mut self, bound: u64) -> u64 {
        below(&mut self.rng, bound)
    }
}

/// 0…bound − 1, evenly to within 2^-64 · bound.
fn below(rng: &mut Xoshiro256PlusPlus, bound: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(bound)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: Region = Region {
        begin: 8192,
        end: 8192 + 10 * 4096,
    };

    fn shape(random: bool, read_percent: u8, bs: &str) -> Shape {
        Shape {
            random,
            read_percent,
            sizes: Sizes::parse_bssplit(bs).unwrap(),
        }
    }

    fn steps(mut pattern: Pattern, count: usize) -> Vec<Step> {
        std::iter::from_fn(|| pattern.next_step())
            .take(count)
            .collect()
    }

    #[test]
    fn sequential_covers_the_region_once_and_ends() {
        let all = steps(Pattern::new(shape(false, 100, "12k"), REGION, true, 1), 100);
        let expected = [
            (8192, 12_288),
            (20_480, 12_288),
            (32_768, 12_288),
            (45_056, 4096),
        ];
        assert_eq!(
            all.iter().map(|s| (s.offset, s.length)).collect::<Vec<_>>(),
            expected
        );
        assert!(all.iter().all(|s| !s.write));
    }

    #[test]
    fn sequential_goes_round_where_there_is_no_end() {
        let all = steps(Pattern::new(shape(false, 0, "4k"), REGION, false, 1), 21);
        assert_eq!(all[0], all[10]);
        assert_eq!(all[20].offset, REGION.begin);
        assert!(all.iter().all(|s| s.write));
    }

    #[test]
    fn random_stays_inside_aligned_and_reaches_everything() {
        let all = steps(
            Pattern::new(shape(true, 50, "4k/80:16k/20"), REGION, false, 7),
            10_000,
        );
        let mut seen = [false; 10];
        for step in &all {
            assert!(step.offset >= REGION.begin);
            assert!(step.offset + u64::from(step.length) <= REGION.end);
            assert_eq!(step.offset % 4096, 0);
            seen[((step.offset - REGION.begin) / 4096) as usize] = true;
        }
        assert_eq!(seen, [true; 10]);
        let reads = all.iter().filter(|s| !s.write).count();
        assert!((4_700..=5_300).contains(&reads), "{reads}");
        let large = all.iter().filter(|s| s.length == 16_384).count();
        assert!((1_800..=2_200).contains(&large), "{large}");
    }

    #[test]
    fn random_once_issues_the_regions_bytes() {
        let all = steps(
            Pattern::new(shape(true, 0, "4k/50:12k/50"), REGION, true, 3),
            100,
        );
        assert_eq!(
            all.iter().map(|s| u64::from(s.length)).sum::<u64>(),
            REGION.bytes()
        );
    }

    #[test]
    fn one_seed_is_one_sequence() {
        let run = |seed| steps(Pattern::new(shape(true, 50, "4k"), REGION, false, seed), 50);
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
