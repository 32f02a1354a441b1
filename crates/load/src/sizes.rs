//! Block sizes in proportions, as fio's `--bs` and `--bssplit` write them.
use crate::limits::{BLOCK_MAX, SIZES_MAX};
use terminal::units::{format_bytes, parse_size};

/// Block sizes and how often each occurs; never empty, percentages add up to 100.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeMix {
    /// Bytes and the upper end of the size's share, in percent, ascending to 100.
    steps: Vec<(u32, u8)>,
}

/// Sizes of reads and of writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Of reads.
    pub read: SizeMix,
    /// Of writes.
    pub write: SizeMix,
}

impl Sizes {
    /// `4k`, or `4k,64k` for reads and writes.
    ///
    /// # Errors
    /// A message about the invalid part.
    pub fn parse_bs(text: &str) -> Result<Self, String> {
        Self::parse(text, |part| {
            let steps = vec![(block(part)?, 100)];
            Ok(SizeMix { steps })
        })
    }

    /// `4k/10:64k/50:32k/`, or two of them with a comma, for reads and writes. Sizes without a
    /// percentage share what is left.
    ///
    /// # Errors
    /// A message about the invalid part.
    pub fn parse_bssplit(text: &str) -> Result<Self, String> {
        Self::parse(text, SizeMix::parse)
    }

    fn parse(text: &str, mix: impl Fn(&str) -> Result<SizeMix, String>) -> Result<Self, String> {
        let (read, write) = text.split_once(',').unwrap_or((text, text));
        Ok(Self {
            read: mix(read)?,
            write: mix(write)?,
        })
    }

    /// The unit of which all sizes are multiples, bytes.
    pub fn unit(&self) -> u32 {
        self.all().fold(0, gcd)
    }

    /// Largest size, bytes.
    pub fn largest(&self) -> u32 {
        self.all().fold(0, u32::max)
    }

    fn all(&self) -> impl Iterator<Item = u32> + '_ {
        let steps = self.read.steps.iter().chain(&self.write.steps);
        steps.map(|&(bytes, _)| bytes)
    }
}

impl SizeMix {
    /// The size that `draw`, spread evenly over 0…99, stands for.
    pub fn pick(&self, draw: u8) -> u32 {
        let step = self.steps.iter().find(|&&(_, end)| draw < end);
        step.or(self.steps.last()).map_or(0, |&(bytes, _)| bytes)
    }

    /// Each size in bytes, and its share in percent.
    pub fn parts(&self) -> impl Iterator<Item = (u32, u8)> + '_ {
        let before = core::iter::once(0).chain(self.steps.iter().map(|&(_, end)| end));
        let steps = self.steps.iter().zip(before);
        steps.map(|(&(bytes, end), before)| (bytes, end - before))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut entries = Vec::new();
        for entry in text.split(':') {
            let (size, percent) = entry.split_once('/').unwrap_or((entry, ""));
            entries.push((block(size)?, percentage(entry, percent)?));
        }
        if entries.len() > SIZES_MAX {
            return Err(format!("{} sizes; {SIZES_MAX} at most", entries.len()));
        }
        let given: u32 = entries.iter().filter_map(|&(_, percent)| percent).sum();
        let open = entries.iter().filter(|it| it.1.is_none()).count() as u32;
        if given > 100 || (open == 0 && given != 100) {
            return Err(format!("the percentages add up to {given}, not to 100"));
        }
        Ok(Self::with_rest(&entries, 100 - given, open))
    }

    /// Gives the `rest` of the percentages to the `open` entries, the first ones a point more where
    /// it does not divide.
    fn with_rest(entries: &[(u32, Option<u32>)], rest: u32, open: u32) -> Self {
        let (mut end, mut nth_open) = (0, 0);
        let steps = entries
            .iter()
            .map(|&(bytes, percent)| {
                end += percent.unwrap_or_else(|| {
                    nth_open += 1;
                    rest / open + u32::from(nth_open <= rest % open)
                });
                (bytes, end as u8)
            })
            .collect();
        Self { steps }
    }
}

impl std::fmt::Display for SizeMix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = self.parts().map(|(bytes, percent)| match percent {
            100 => format_bytes(bytes.into()),
            _ => format!("{} {percent} %", format_bytes(bytes.into())),
        });
        f.write_str(&shown.collect::<Vec<_>>().join(", "))
    }
}

fn block(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    if bytes == 0 || !bytes.is_multiple_of(512) || bytes > BLOCK_MAX.into() {
        return Err(format!(
            "{bytes} bytes are not a multiple of 512 from 512 to {}",
            format_bytes(BLOCK_MAX.into())
        ));
    }
    Ok(bytes as u32)
}

fn percentage(entry: &str, text: &str) -> Result<Option<u32>, String> {
    match text.parse() {
        Ok(percent @ 0..=100) => Ok(Some(percent)),
        _ if text.is_empty() => Ok(None),
        _ => Err(format!("\"{entry}\" is not size/percent, as in 4k/75")),
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(mix: &SizeMix) -> Vec<(u32, usize)> {
        let sizes = mix.steps.iter().map(|&(bytes, _)| bytes);
        sizes
            .map(|b| (b, (0..100).filter(|&draw| mix.pick(draw) == b).count()))
            .collect()
    }

    #[test]
    fn one_size_is_all_of_them() {
        let sizes = Sizes::parse_bs("4k").unwrap();
        assert_eq!(counts(&sizes.read), [(4096, 100)]);
        assert_eq!(sizes.read, sizes.write);
        assert_eq!(sizes.read.to_string(), "4 KiB");
    }

    #[test]
    fn reads_and_writes_may_differ() {
        let sizes = Sizes::parse_bs("4k,64k").unwrap();
        assert_eq!((sizes.read.pick(0), sizes.write.pick(0)), (4096, 65_536));
        assert_eq!((sizes.unit(), sizes.largest()), (4096, 65_536));
    }

    #[test]
    fn a_split_has_its_proportions() {
        let sizes = Sizes::parse_bssplit("512/30:4k/25:8k/20:16k/15:32k/10").unwrap();
        let expected = [
            (512, 30),
            (4096, 25),
            (8192, 20),
            (16_384, 15),
            (32_768, 10),
        ];
        assert_eq!(counts(&sizes.read), expected);
        let sizes = Sizes::parse_bssplit("4k/:64k/50:32k/:1m/17,4k").unwrap();
        assert_eq!(
            counts(&sizes.read),
            [(4096, 17), (65_536, 50), (32_768, 16), (1 << 20, 17)]
        );
        assert_eq!(counts(&sizes.write), [(4096, 100)]);
        assert_eq!(sizes.write.to_string(), "4 KiB");
        let shown = "4 KiB 17 %, 64 KiB 50 %, 32 KiB 16 %, 1 MiB 17 %";
        assert_eq!(sizes.read.to_string(), shown);
    }

    #[test]
    fn what_is_no_split_is_refused() {
        for (text, part) in [
            ("4k/60:8k/60", "120"),
            ("4k/60:8k/20", "80"),
            ("4k/x", "size/percent"),
            ("4k/101", "size/percent"),
            ("x/50", "not a size"),
            ("1000", "multiple of 512"),
            ("0", "multiple of 512"),
            ("64m", "32 MiB"),
        ] {
            let error = Sizes::parse_bssplit(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(Sizes::parse_bs("4k/50").is_err());
    }
}
