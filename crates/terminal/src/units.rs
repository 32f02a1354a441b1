//! Sizes, durations, rates and counts as people write and read them.
//!
//! # Contract
//! Parsing is exact: a text that does not come to a whole number of bytes, nanoseconds or pieces is
//! refused, never rounded. Sizes and byte rates count in 1024 with a letter or `KiB` (`k` = `KiB`,
//! as fio reads them by default), and in 1000 with `KB`, `MB`, `GB`, `TB`. Counts, which are no
//! bytes, go in 1000.
use std::fmt;

/// Why a text is not the quantity it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadQuantity {
    text: String,
    wanted: &'static str,
}

impl BadQuantity {
    /// `text` is not `wanted`.
    pub fn new(text: &str, wanted: &'static str) -> Self {
        Self {
            text: text.to_owned(),
            wanted,
        }
    }
}

impl fmt::Display for BadQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is not {}", self.text, self.wanted)
    }
}

impl std::error::Error for BadQuantity {}

const SIZE: &str = "a size: bytes, or a number with k, m, g, t or KiB, MiB, GiB, TiB (1024 each), \
                    or KB, MB, GB, TB (1000 each)";
const TOO_LARGE: &str = "possible: it is too large, at most 18446744073709551615 bytes can be said";
const RATE: &str = "a rate: bytes per second, with k, m, g or KiB, MiB, GiB (1024 each), or KB, \
                    MB, GB (1000 each), then /s or not";
const COUNT: &str = "a whole number, with k or m (1000 each) or without";
const TOO_LONG: &str = "a duration of at most 8760h";
/// Longest duration, ns: a year.
const DURATION_NS_MAX: u64 = 8_760 * 3_600_000_000_000;
const DURATION: &str = "a duration: a number with ns, us, ms, s, m or h";
const SECONDS: &str = "a duration: seconds, or a number with ns, us, ms, s, m or h";

/// Bytes of a size such as `4k`, `1.5GiB` or `512`.
///
/// # Errors
/// [`BadQuantity`] for anything else, and above 2^64 − 1.
pub fn parse_size(text: &str) -> Result<u64, BadQuantity> {
    quantity(text, SIZE, byte_unit).map_err(|error| match is_too_large(text) {
        true => BadQuantity::new(text, TOO_LARGE),
        false => error,
    })
}

/// Whether it would be a size if there were more bits.
fn is_too_large(text: &str) -> bool {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits);
    let factor = byte_unit(rest.trim_start());
    // A fraction of what is too large is not looked into.
    !number.is_empty() && factor.is_some_and(|factor| exact(number, factor).is_none())
}

/// Bytes per second of a rate such as `300MiB/s`, `300m` or `0`.
///
/// # Errors
/// As [`parse_size`].
pub fn parse_rate(text: &str) -> Result<u64, BadQuantity> {
    let bytes = text.trim().trim_end_matches("/s");
    quantity(bytes, RATE, byte_unit).map_err(|_| BadQuantity::new(text, RATE))
}

/// A count such as `1024` or `10k` (ten thousand).
///
/// # Errors
/// [`BadQuantity`] for anything else.
pub fn parse_count(text: &str) -> Result<u64, BadQuantity> {
    quantity(text, COUNT, |unit| match unit {
        "" => Some(1),
        "k" | "K" => Some(1_000),
        "m" | "M" => Some(1_000_000),
        _ => None,
    })
}

/// Nanoseconds of a duration with its unit: `30ms`, `1.5s`, `50us`, `2m`. A bare `0` needs none.
///
/// # Errors
/// [`BadQuantity`], also for a number without a unit.
pub fn parse_duration(text: &str) -> Result<u64, BadQuantity> {
    if text.trim() == "0" {
        return Ok(0);
    }
    at_most_a_year(text, DURATION, time_unit)
}

/// As [`parse_duration`], where a number without a unit means seconds.
///
/// # Errors
/// [`BadQuantity`].
pub fn parse_seconds(text: &str) -> Result<u64, BadQuantity> {
    at_most_a_year(text, SECONDS, |unit| match unit {
        "" => Some(1_000_000_000),
        _ => time_unit(unit),
    })
}

/// `4096` → `4 KiB`; what is no whole number of a unit gets up to two decimals.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let mut number = format!("{value:.2}");
    while number.ends_with('0') {
        number.pop();
    }
    format!("{} {}", number.trim_end_matches('.'), UNITS[unit])
}

/// As [`format_bytes`] with three significant digits: `4.71 GiB`, at most 8 characters up to TiB.
pub fn short_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    short(bytes, 1024.0, &UNITS)
}

/// Three significant digits of a count: `1.23 M`; below 10,000 all of them.
pub fn short_count(count: u64) -> String {
    match count {
        0..10_000 => count.to_string(),
        _ => short(count, 1000.0, &["", "k", "M", "G", "T", "P"]),
    }
}

fn short(whole: u64, step: f64, units: &[&str]) -> String {
    if (whole as f64) < step {
        return format!("{whole} {}", units[0]);
    }
    let (mut value, mut unit) = (whole as f64, 0);
    // A value that would be rounded to a whole step belongs to the next unit.
    while value >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    format!("{} {}", significant(value), units[unit])
}

/// Three significant digits with their unit: `61.2 µs`, `30.1 ms`.
pub fn format_ns(ns: f64) -> String {
    let (value, unit) = match ns {
        v if v < 1e3 => (v, "ns"),
        v if v < 1e6 => (v / 1e3, "µs"),
        v if v < 1e9 => (v / 1e6, "ms"),
        v => (v / 1e9, "s"),
    };
    format!("{} {unit}", significant(value))
}

/// `123456` → `123,456`.
pub fn format_count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three significant digits, without an exponent.
pub fn significant(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn byte_unit(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    })
}

fn time_unit(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

fn at_most_a_year(
    text: &str,
    wanted: &'static str,
    unit: impl Fn(&str) -> Option<u64>,
) -> Result<u64, BadQuantity> {
    match quantity(text, wanted, &unit) {
        Ok(0..=DURATION_NS_MAX) => {}
        // A number of a unit that there is, only too many of them.
        Err(error) if quantity(text, wanted, |of| unit(of).map(|_| 1)).is_err() => {
            return Err(error);
        }
        _ => return Err(BadQuantity::new(text, TOO_LONG)),
    }
    quantity(text, wanted, unit)
}

/// A decimal number and its unit, exactly.
fn quantity(
    text: &str,
    wanted: &'static str,
    unit: impl Fn(&str) -> Option<u64>,
) -> Result<u64, BadQuantity> {
    let trimmed = text.trim();
    let end = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(end);
    unit(suffix.trim_start())
        .and_then(|factor| exact(number, factor))
        .ok_or_else(|| BadQuantity::new(text, wanted))
}

/// `number · factor`, if it is whole and fits.
fn exact(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if number.is_empty() || fraction.is_empty() || fraction.len() > 12 {
        return None;
    }
    let whole = if whole.is_empty() { "0" } else { whole };
    let scale = 10u128.pow(fraction.len() as u32);
    let part = fraction.parse::<u128>().ok()? * u128::from(factor);
    if !part.is_multiple_of(scale) {
        return None;
    }
    let whole = u128::from(whole.parse::<u64>().ok()?) * u128::from(factor);
    u64::try_from(whole + part / scale).ok()
}

/// A time as people read it, from seconds of Unix time; one beyond year 9999 as its number.
pub fn format_utc(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok();
    let time = time.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    match time {
        Some(time) => time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        None => format!("{unix_s} s after 1970-01-01 00:00:00 UTC"),
    }
}

/// A time as programs read it (RFC 3339, UTC), to the millisecond; one beyond year 9999 is cut to
/// the last of it.
pub fn format_rfc3339(time: std::time::SystemTime) -> String {
    let whole = |it: std::time::Duration| i64::try_from(it.as_millis()).unwrap_or(i64::MAX);
    let ms = match time.duration_since(std::time::UNIX_EPOCH) {
        Ok(since) => whole(since),
        Err(before) => -whole(before.duration()),
    };
    let time = jiff::Timestamp::from_millisecond(ms).unwrap_or(jiff::Timestamp::MAX);
    time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_times_have_milliseconds_also_at_the_ends_of_clocks() {
        use std::time::{Duration, UNIX_EPOCH};
        let at = |ms| format_rfc3339(UNIX_EPOCH + Duration::from_millis(ms));
        assert_eq!(at(1_790_000_000_007), "2026-09-21T14:13:20.007Z");
        assert_eq!(at(u64::MAX / 2), "9999-12-30T22:00:00.999Z");
        let early = UNIX_EPOCH - Duration::from_millis(1);
        assert_eq!(format_rfc3339(early), "1969-12-31T23:59:59.999Z");
    }

    #[test]
    fn short_forms_have_three_digits_and_the_right_unit() {
        for (bytes, want) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.50 KiB"),
            (1_099_511_627_775, "1.00 TiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(short_bytes(bytes), want);
        }
        for (count, want) in [
            (0, "0"),
            (9_999, "9999"),
            (10_000, "10.0 k"),
            (999_949, "1.00 M"),
            (123_456_789, "123 M"),
            (u64::MAX, "18447 P"),
        ] {
            assert_eq!(short_count(count), want);
        }
    }

    #[test]
    fn sizes_count_in_1024_or_in_1000_as_they_say() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("4k", 4096),
            ("4K", 4096),
            ("4 KiB", 4096),
            ("1.5GiB", 3 << 29),
            (".5k", 512),
            ("2t", 2 << 40),
            ("4kB", 4_000),
            ("4 KB", 4_000),
            ("1.5MB", 1_500_000),
            ("2GB", 2_000_000_000),
            ("3TB", 3_000_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "", "k", "4kBi", "4PB", "-1", "1e3", "0.3k", "1..5k", "1.", ".", ".k", "4 k i b",
            "0x10",
        ] {
            let error = parse_size(text).expect_err(text);
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("\"{text}\" is not a size")),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_too_large_a_size_is_told_so() {
        for text in [
            "16777216t",
            "18446744073709551616",
            "99999999999999999999999999 TiB",
        ] {
            let error = parse_size(text).expect_err(text).to_string();
            assert!(error.contains("it is too large"), "{error}");
        }
    }

    #[test]
    fn durations_need_a_unit_and_seconds_do_not() {
        for (text, ns) in [
            ("0", 0),
            ("30ms", 30_000_000),
            ("0.5us", 500),
            ("2.5s", 2_500_000_000),
            ("2m", 120_000_000_000),
            ("1h", 3_600_000_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(ns), "{text}");
            assert_eq!(parse_seconds(text), Ok(ns), "{text}");
        }
        assert!(parse_duration("3").is_err());
        assert_eq!(parse_seconds("3"), Ok(3_000_000_000));
        assert!(parse_duration("0.5ns").is_err());
        assert!(parse_seconds("ten").is_err());
        assert_eq!(parse_seconds("8760h"), Ok(DURATION_NS_MAX));
        for text in ["8761h", "99999999999h", "18446744073"] {
            let error = parse_seconds(text).unwrap_err().to_string();
            assert!(
                error.ends_with("is not a duration of at most 8760h"),
                "{error}"
            );
        }
    }

    #[test]
    fn rates_and_counts() {
        assert_eq!(parse_rate("300MiB/s"), Ok(300 << 20));
        assert_eq!(parse_rate("300m"), Ok(300 << 20));
        assert_eq!(parse_rate("300MB/s"), Ok(300_000_000));
        assert_eq!(parse_rate("0"), Ok(0));
        assert!(
            parse_rate("fast")
                .unwrap_err()
                .to_string()
                .contains("\"fast\" is not a rate")
        );
        assert_eq!(parse_count("10k"), Ok(10_000));
        assert!(parse_count("1.5").is_err());
    }

    #[test]
    fn times_for_people() {
        assert_eq!(format_utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(format_utc(951_782_399), "2000-02-28 23:59:59 UTC");
        assert_eq!(format_utc(951_868_799), "2000-02-29 23:59:59 UTC");
        assert_eq!(format_utc(951_868_800), "2000-03-01 00:00:00 UTC");
        assert_eq!(format_utc(1_798_761_599), "2026-12-31 23:59:59 UTC");
        assert_eq!(format_utc(4_107_542_400), "2100-03-01 00:00:00 UTC");
        for beyond in [253_402_300_800, u64::MAX] {
            let text = format_utc(beyond);
            assert_eq!(text, format!("{beyond} s after 1970-01-01 00:00:00 UTC"));
        }
    }

    #[test]
    fn figures_for_people() {
        assert_eq!(format_bytes(4096), "4 KiB");
        assert_eq!(format_bytes(1536), "1.5 KiB");
        assert_eq!(format_bytes(10), "10 B");
        assert_eq!(format_ns(61_234.0), "61.2 µs");
        assert_eq!(format_ns(30_120_000.0), "30.1 ms");
        assert_eq!(format_ns(999.0), "999 ns");
        assert_eq!(format_count(1_234_567), "1,234,567");
        assert_eq!(format_count(999), "999");
        assert_eq!(significant(99.96), "100");
    }

    #[test]
    fn hostile_words_are_quoted_in_the_error_or_in_bounds() {
        hostile::attack("words", |text| {
            for parse in [parse_size, parse_rate, parse_count] {
                let read = parse(text);
                assert!(read.is_ok() || read.unwrap_err().to_string().contains(text));
            }
            for parse in [parse_duration, parse_seconds] {
                assert!(parse(text).unwrap_or(0) <= DURATION_NS_MAX);
            }
            if let Ok(bytes) = parse_size(text) {
                assert_eq!(parse_size(&bytes.to_string()), Ok(bytes));
            }
            if let Ok(ns) = parse_duration(text) {
                assert_eq!(parse_duration(&format!("{ns}ns")), Ok(ns));
            }
        });
    }
}
