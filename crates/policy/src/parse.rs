//! Parses and prints policies and knobs.
//!
//! Names are exact: no prefixes, no white space, no other case. Errors name the fault and the valid
//! values; the caller adds the refused text. A refused setting yields no value, so the old one
//! stays.
//!
//! # Origin
//! Rows A1 (names, aliases), A8 (ranges; durations are our extension), A13 (modes), B2 (multiples
//! of a sector), B5 (`name:value`).

use core::fmt;

use crate::limits::{EWMA_SHIFT_MAX, PATHS_MAX, ROUND_ROBIN_UNIT, WEIGHT_TIMEOUT_NS_MAX};
use crate::types::{Aggregate, Knobs, PathIndex, Policy};

/// Why a policy was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyError {
    /// No policy has this name.
    Unknown,
    /// The policy exists, but takes no value.
    TakesNoValue,
    /// The value of round-robin is no whole number, with a unit or without.
    NotANumber,
    /// The value of round-robin is 0 or no multiple of [`ROUND_ROBIN_UNIT`].
    NotAMultiple,
    /// The value of round-robin is no multiple of the volume's blocks: their bytes.
    NotInBlocks(u32),
    /// The value of weighted-latency is none of the four modes.
    NotAMode,
    /// devid without a value, or with one that is no whole number.
    NotAnId,
    /// devid names a path that the volume does not have: the last path's number.
    NoSuchPath(usize),
    /// A program, which is loaded and not set.
    IsAProgram,
    /// Not what [`ProgramId`](crate::ProgramId) shows.
    NotAProgram,
}

/// Why a knob's value was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnobError {
    /// `ewma_shift` is no whole number.
    ShiftNotANumber,
    /// `ewma_shift` is over [`EWMA_SHIFT_MAX`].
    ShiftRange,
    /// `weight_timeout` is no whole number, nor one with a unit.
    TimeoutNotADuration,
    /// `weight_timeout` is over [`WEIGHT_TIMEOUT_NS_MAX`].
    TimeoutRange,
    /// `hedge` is none of its words.
    HedgeWord,
    /// `hedge` is on, and the policy does not predict when a read should end.
    HedgeWithout,
}

impl Policy {
    /// Reads a policy: one of [`Self::NAMES`].
    ///
    /// # Errors
    /// [`PolicyError`]; all of them.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let (name, value) = match text.split_once(':') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let policy = match name {
            "numa" => Self::Numa,
            "round-robin" | "rr" | "rotation" => {
                let bytes = value.map_or(Ok(0), turn_bytes)?;
                return Ok(Self::RoundRobin { bytes });
            }
            "rr-256k" => Self::RoundRobin { bytes: 256 << 10 },
            "rr-512k" => Self::RoundRobin { bytes: 512 << 10 },
            "rr-1m" => Self::RoundRobin { bytes: 1 << 20 },
            "round-robin-latency" => {
                let bytes = value.map_or(Ok(0), turn_bytes)?;
                return Ok(Self::RoundRobinLatency { bytes });
            }
            "queue-depth" => Self::QueueDepth,
            "weighted-latency" | "adaptive" | "weighted-lat" => {
                let over = value.map_or(Ok(Aggregate::default()), Aggregate::parse)?;
                return Ok(Self::WeightedLatency(over));
            }
            "soonest" => Self::Soonest,
            "pid" => Self::Pid,
            "latency" => Self::Latency,
            "devid" => return id(value.ok_or(PolicyError::NotAnId)?),
            "service-time" => Self::ServiceTime,
            "historical-service-time" => Self::HistoricalServiceTime,
            "program" => return Err(PolicyError::IsAProgram),
            _ => return Err(PolicyError::Unknown),
        };
        match value {
            None => Ok(policy),
            Some(_) => Err(PolicyError::TakesNoValue),
        }
    }

    /// All policies as they are written, with their values.
    pub const NAMES: &'static str = "numa, round-robin[:<bytes>] (also rr, rr-256k, rr-512k, \
        rr-1m, rotation), round-robin-latency[:<bytes>], queue-depth, \
        weighted-latency[:per-cpu|:per-cpu+buckets|:per-numa|:per-numa+buckets] (also adaptive, \
        weighted-lat), soonest, pid, latency, devid:<path, from 1>, service-time, \
        historical-service-time";

    /// Each policy once, with its usual value.
    pub const EACH: [Self; 11] = [
        Self::Numa,
        Self::RoundRobin { bytes: 0 },
        Self::RoundRobinLatency { bytes: 0 },
        Self::QueueDepth,
        Self::WEIGHTED_LATENCY,
        Self::Soonest,
        Self::Pid,
        Self::Latency,
        Self::Devid(PathIndex(0)),
        Self::ServiceTime,
        Self::HistoricalServiceTime,
    ];

    /// Whether it can be the policy of a volume of so many paths.
    ///
    /// # Errors
    /// [`PolicyError::NoSuchPath`].
    pub fn check(&self, paths: usize) -> Result<(), PolicyError> {
        match self {
            Self::Devid(path) if usize::from(path.0) >= paths => {
                Err(PolicyError::NoSuchPath(paths))
            }
            _ => Ok(()),
        }
    }

    /// Whether it can be the policy of a volume with blocks of so many bytes (row B2).
    ///
    /// # Errors
    /// [`PolicyError::NotInBlocks`].
    pub fn check_blocks(&self, block_bytes: u32) -> Result<(), PolicyError> {
        match self {
            Self::RoundRobin { bytes } | Self::RoundRobinLatency { bytes }
                if bytes % u64::from(block_bytes.max(1)) != 0 =>
            {
                Err(PolicyError::NotInBlocks(block_bytes))
            }
            _ => Ok(()),
        }
    }
}

impl Aggregate {
    /// The mode's word.
    const fn word(self) -> &'static str {
        match (self.per_numa, self.buckets) {
            (false, false) => "per-cpu",
            (false, true) => "per-cpu+buckets",
            (true, false) => "per-numa",
            (true, true) => "per-numa+buckets",
        }
    }

    fn parse(text: &str) -> Result<Self, PolicyError> {
        let mode = Self::ALL.into_iter().find(|mode| mode.word() == text);
        mode.ok_or(PolicyError::NotAMode)
    }
}

impl Knobs {
    /// Reads `ewma_shift`: a whole number 0…8, in the bases of C (`0x2`).
    ///
    /// # Errors
    /// [`KnobError::ShiftNotANumber`], [`KnobError::ShiftRange`].
    pub fn parse_ewma_shift(text: &str) -> Result<u8, KnobError> {
        let shift = whole_as_in_c(text).ok_or(KnobError::ShiftNotANumber)?;
        u8::try_from(shift)
            .ok()
            .filter(|&shift| shift <= EWMA_SHIFT_MAX)
            .ok_or(KnobError::ShiftRange)
    }

    /// Reads `weight_timeout`: whole seconds of 32 bits in the bases of C (`0x10`), or a whole
    /// decimal number with `h`, `m`, `s`, `ms`, `us` or `ns` up to the same length. Returns
    /// nanoseconds.
    ///
    /// # Errors
    /// [`KnobError::TimeoutNotADuration`], [`KnobError::TimeoutRange`].
    pub fn parse_weight_timeout(text: &str) -> Result<u64, KnobError> {
        if let Some(seconds) = whole_as_in_c(text) {
            return timeout_ns(seconds, 1_000_000_000);
        }
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit_ns = match &text[digits.len()..] {
            "h" => 3_600_000_000_000,
            "m" => 60_000_000_000,
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            "us" => 1_000,
            "ns" => 1,
            _ => return Err(KnobError::TimeoutNotADuration),
        };
        timeout_ns(
            whole(digits).ok_or(KnobError::TimeoutNotADuration)?,
            unit_ns,
        )
    }

    /// Whether all values are in range.
    ///
    /// # Errors
    /// [`KnobError::ShiftRange`], [`KnobError::TimeoutRange`].
    pub fn check(&self) -> Result<(), KnobError> {
        if self.ewma_shift > EWMA_SHIFT_MAX {
            return Err(KnobError::ShiftRange);
        }
        if self.weight_timeout_ns > WEIGHT_TIMEOUT_NS_MAX {
            return Err(KnobError::TimeoutRange);
        }
        Ok(())
    }
}

fn timeout_ns(number: u64, unit_ns: u64) -> Result<u64, KnobError> {
    let timeout_ns = number.checked_mul(unit_ns);
    timeout_ns
        .filter(|&timeout_ns| timeout_ns <= WEIGHT_TIMEOUT_NS_MAX)
        .ok_or(KnobError::TimeoutRange)
}

fn turn_bytes(text: &str) -> Result<u64, PolicyError> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "k" | "KiB" => 10,
        "m" | "MiB" => 20,
        "g" | "GiB" => 30,
        _ => return Err(PolicyError::NotANumber),
    };
    let bytes = whole(number).ok_or(PolicyError::NotANumber)?;
    // A product too large for 64 bits is refused like a number that is.
    let bytes = bytes.saturating_mul(1 << shift);
    if bytes == 0 || bytes % ROUND_ROBIN_UNIT != 0 {
        return Err(PolicyError::NotAMultiple);
    }
    Ok(bytes)
}

/// `devid` with the path of this number, counted from 1.
fn id(text: &str) -> Result<Policy, PolicyError> {
    let number = whole(text).ok_or(PolicyError::NotAnId)?;
    match number.checked_sub(1).map(usize::try_from) {
        Some(Ok(path)) if path < PATHS_MAX => Ok(Policy::Devid(PathIndex(path as u8))),
        _ => Err(PolicyError::NoSuchPath(PATHS_MAX)),
    }
}

/// A whole number in decimal digits and nothing else; one too large for 64 bits becomes `u64::MAX`,
/// which no setting allows.
fn whole(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().unwrap_or(u64::MAX))
}

/// As [`whole`], in the base that its prefix names as in C: `0x` hexadecimal, `0` octal.
fn whole_as_in_c(text: &str) -> Option<u64> {
    let hexadecimal = text.strip_prefix("0x").or(text.strip_prefix("0X"));
    let (digits, base) = match (hexadecimal, text.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) if !digits.is_empty() => (digits, 8),
        _ => (text, 10),
    };
    let is_digit = |byte: u8| char::from(byte).is_digit(base);
    if digits.is_empty() || !digits.bytes().all(is_digit) {
        return None;
    }
    Some(u64::from_str_radix(digits, base).unwrap_or(u64::MAX))
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numa => f.write_str("numa"),
            Self::RoundRobin { bytes: 0 } => f.write_str("round-robin"),
            Self::RoundRobin { bytes } => write!(f, "round-robin:{bytes}"),
            Self::RoundRobinLatency { bytes: 0 } => f.write_str("round-robin-latency"),
            Self::RoundRobinLatency { bytes } => write!(f, "round-robin-latency:{bytes}"),
            Self::QueueDepth => f.write_str("queue-depth"),
            Self::WeightedLatency(over) if *over == Aggregate::default() => {
                f.write_str("weighted-latency")
            }
            Self::WeightedLatency(over) => write!(f, "weighted-latency:{}", over.word()),
            Self::Soonest => f.write_str("soonest"),
            Self::Pid => f.write_str("pid"),
            Self::Latency => f.write_str("latency"),
            Self::Devid(path) => write!(f, "devid:{}", u32::from(path.0) + 1),
            Self::ServiceTime => f.write_str("service-time"),
            Self::HistoricalServiceTime => f.write_str("historical-service-time"),
            Self::Program(id) => id.fmt(f),
        }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => write!(f, "unknown policy; known are {}", Policy::NAMES),
            Self::TakesNoValue => f.write_str(
                "this policy takes no value; only round-robin:<bytes>, \
                 round-robin-latency:<bytes>, weighted-latency:<mode> and devid:<path> do",
            ),
            Self::NotAMode => f.write_str(
                "weighted-latency averages per-cpu, per-cpu+buckets (the default), per-numa or \
                 per-numa+buckets, as in weighted-latency:per-numa",
            ),
            Self::NotAnId => f.write_str("devid takes the number of a path, from 1, as in devid:1"),
            Self::NoSuchPath(paths) => {
                write!(f, "devid: the volume has no such path; it has 1 to {paths}")
            }
            Self::IsAProgram => f.write_str(
                "a program works in `braid run` (braid policy load) and in braid sim only",
            ),
            Self::NotAProgram => f.write_str("not a program, as in program:name@0123456789abcdef"),
            Self::NotANumber => f.write_str(
                "round-robin takes a whole number of bytes, as in round-robin:262144 or \
                     round-robin:256KiB",
            ),
            Self::NotInBlocks(block_bytes) => write!(
                f,
                "the volume has blocks of {block_bytes} bytes, of which this is no multiple"
            ),
            Self::NotAMultiple => write!(
                f,
                "round-robin takes a positive multiple of {ROUND_ROBIN_UNIT} bytes, as in \
                 round-robin:262144"
            ),
        }
    }
}

impl fmt::Display for KnobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShiftNotANumber => {
                write!(
                    f,
                    "ewma_shift is not a whole number from 0 to {EWMA_SHIFT_MAX}"
                )
            }
            Self::ShiftRange => write!(
                f,
                "ewma_shift is over {EWMA_SHIFT_MAX}: a new sample would weigh nothing"
            ),
            Self::TimeoutNotADuration => f.write_str(
                "weight_timeout is neither whole seconds, as in 15, nor a duration, as in 50ms \
                 (units h, m, s, ms, us, ns)",
            ),
            Self::HedgeWord => f.write_str("hedge is off, on or auto"),
            Self::HedgeWithout => write!(
                f,
                "hedge is on, but only {} predicts when a read should have ended; take that \
                 policy, or auto, which hedges where it can",
                Policy::Soonest
            ),
            Self::TimeoutRange => write!(
                f,
                "weight_timeout is over {} seconds, the most in 32 bits",
                WEIGHT_TIMEOUT_NS_MAX / 1_000_000_000
            ),
        }
    }
}

impl core::error::Error for PolicyError {}
impl core::error::Error for KnobError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a1_every_name_is_read_and_shown() {
        for (text, policy, shown) in [
            ("numa", Policy::Numa, "numa"),
            (
                "round-robin",
                Policy::RoundRobin { bytes: 0 },
                "round-robin",
            ),
            (
                "round-robin:196608",
                Policy::RoundRobin { bytes: 196_608 },
                "round-robin:196608",
            ),
            ("queue-depth", Policy::QueueDepth, "queue-depth"),
            ("adaptive", Policy::WEIGHTED_LATENCY, "weighted-latency"),
            ("weighted-lat", Policy::WEIGHTED_LATENCY, "weighted-latency"),
            (
                "weighted-latency:per-cpu+buckets",
                Policy::WEIGHTED_LATENCY,
                "weighted-latency",
            ),
            (
                "adaptive:per-cpu",
                Policy::WeightedLatency(Aggregate::PER_CPU),
                "weighted-latency:per-cpu",
            ),
            ("rr", Policy::RoundRobin { bytes: 0 }, "round-robin"),
            ("rotation", Policy::RoundRobin { bytes: 0 }, "round-robin"),
            (
                "rotation:192k",
                Policy::RoundRobin { bytes: 196_608 },
                "round-robin:196608",
            ),
            (
                "rr:512",
                Policy::RoundRobin { bytes: 512 },
                "round-robin:512",
            ),
            (
                "rr-256k",
                Policy::RoundRobin { bytes: 262_144 },
                "round-robin:262144",
            ),
            (
                "rr-512k",
                Policy::RoundRobin { bytes: 524_288 },
                "round-robin:524288",
            ),
            (
                "rr-1m",
                Policy::RoundRobin { bytes: 1 << 20 },
                "round-robin:1048576",
            ),
            (
                "round-robin-latency",
                Policy::RoundRobinLatency { bytes: 0 },
                "round-robin-latency",
            ),
            (
                "round-robin-latency:64k",
                Policy::RoundRobinLatency { bytes: 65536 },
                "round-robin-latency:65536",
            ),
            ("devid:64", Policy::Devid(PathIndex(63)), "devid:64"),
            ("devid:01", Policy::Devid(PathIndex(0)), "devid:1"),
            ("soonest", Policy::Soonest, "soonest"),
            ("pid", Policy::Pid, "pid"),
            ("latency", Policy::Latency, "latency"),
            ("service-time", Policy::ServiceTime, "service-time"),
            (
                "historical-service-time",
                Policy::HistoricalServiceTime,
                "historical-service-time",
            ),
        ] {
            assert_eq!(Policy::parse(text), Ok(policy), "{text}");
            assert_eq!(policy.to_string(), shown);
        }
    }

    #[test]
    fn a13_every_mode_is_read_and_shown() {
        for over in Aggregate::ALL {
            let policy = Policy::WeightedLatency(over);
            assert_eq!(Policy::parse(&policy.to_string()), Ok(policy));
            let text = std::format!("adaptive:{}", over.word());
            assert_eq!(Policy::parse(&text), Ok(policy), "{text}");
            assert_eq!(text.contains("numa"), over.per_numa);
            assert_eq!(text.contains("+buckets"), over.buckets);
        }
        // Where the discussion ended: each core by itself, and buckets.
        let (per_numa, buckets) = (false, true);
        assert_eq!(Aggregate::default(), Aggregate { per_numa, buckets });
        assert_eq!(
            Policy::WEIGHTED_LATENCY,
            Policy::WeightedLatency(Aggregate::default())
        );
    }

    #[test]
    fn b5_bytes_of_round_robin_may_have_a_unit() {
        for (text, bytes) in [
            ("512", 512),
            ("64k", 65536),
            ("64KiB", 65536),
            ("2MiB", 2 << 20),
            ("1g", 1 << 30),
        ] {
            let text = std::format!("round-robin:{text}");
            assert_eq!(Policy::parse(&text), Ok(Policy::RoundRobin { bytes }));
        }
    }

    /// Every text that is shown can be parsed: each name, and each of its values.
    #[test]
    fn every_name_shown_can_be_written() {
        let plain = Policy::NAMES.replace("<bytes>", "512");
        let plain = plain.replace("<path, from 1>", "1");
        let shown = plain
            .split(", ")
            .map(|name| name.split(" (").next().unwrap());
        let shown = shown.filter(|name| !name.ends_with(')'));
        let mut count = 0;
        for name in shown {
            let (name, values) = name.split_once('[').unwrap_or((name, ""));
            let values = values.trim_end_matches(']').split('|');
            for value in values.chain([""]) {
                let text = std::format!("{name}{value}");
                assert!(Policy::parse(&text).is_ok(), "{text}");
                count += 1;
            }
        }
        assert!(count > 12, "{count}");
    }

    #[test]
    fn b2_a_turn_is_whole_blocks_of_the_volume() {
        for policy in ["round-robin", "round-robin-latency"] {
            let of = |value: &str| Policy::parse(&std::format!("{policy}{value}")).unwrap();
            let error = Err(PolicyError::NotInBlocks(4096));
            assert_eq!(of(":512").check_blocks(4096), error);
            assert_eq!(of(":12800").check_blocks(4096), error);
            assert_eq!(of(":12288").check_blocks(4096), Ok(()));
            assert_eq!(of(":512").check_blocks(512), Ok(()));
            assert_eq!(of("").check_blocks(4096), Ok(()));
        }
        assert_eq!(Policy::Numa.check_blocks(4096), Ok(()));
        let shown = PolicyError::NotInBlocks(4096).to_string();
        assert!(shown.contains("4096"), "{shown}");
    }

    #[test]
    fn b4_an_unknown_id_is_refused() {
        let devid = Policy::Devid(PathIndex(2));
        assert_eq!(devid.check(2), Err(PolicyError::NoSuchPath(2)));
        assert!(PolicyError::NoSuchPath(2).to_string().contains("1 to 2"));
        assert_eq!(devid.check(3), Ok(()));
        assert_eq!(Policy::Numa.check(0), Ok(()));
    }

    #[test]
    fn a1_what_is_no_policy_is_refused() {
        for (text, error) in [
            ("", PolicyError::Unknown),
            ("numa ", PolicyError::Unknown),
            ("NUMA", PolicyError::Unknown),
            ("round-robin2", PolicyError::Unknown),
            ("soon:512", PolicyError::Unknown),
            ("rr-2m", PolicyError::Unknown),
            ("rr-256k:512", PolicyError::TakesNoValue),
            ("rr:0", PolicyError::NotAMultiple),
            ("rotation:", PolicyError::NotANumber),
            ("round-robin-latency:513", PolicyError::NotAMultiple),
            ("numa:", PolicyError::TakesNoValue),
            ("pid:1", PolicyError::TakesNoValue),
            ("adaptive:3", PolicyError::NotAMode),
            ("weighted-latency:", PolicyError::NotAMode),
            ("weighted-latency:per-numa+", PolicyError::NotAMode),
            ("devid", PolicyError::NotAnId),
            ("devid:", PolicyError::NotAnId),
            ("devid:one", PolicyError::NotAnId),
            ("devid:0", PolicyError::NoSuchPath(64)),
            ("devid:65", PolicyError::NoSuchPath(64)),
            ("devid:99999999999999999999", PolicyError::NoSuchPath(64)),
            ("soonest:1", PolicyError::TakesNoValue),
            ("round-robin:", PolicyError::NotANumber),
            ("round-robin:+512", PolicyError::NotANumber),
            ("round-robin:k", PolicyError::NotANumber),
            ("round-robin:4kB", PolicyError::NotANumber),
            ("round-robin:4.5KiB", PolicyError::NotANumber),
            ("round-robin:17179869184GiB", PolicyError::NotAMultiple),
            ("round-robin:512:512", PolicyError::NotANumber),
            ("round-robin:0", PolicyError::NotAMultiple),
            ("round-robin:513", PolicyError::NotAMultiple),
            (
                "round-robin:99999999999999999999",
                PolicyError::NotAMultiple,
            ),
        ] {
            assert_eq!(Policy::parse(text), Err(error), "{text}");
        }
        let shown = PolicyError::Unknown.to_string();
        for name in [
            "numa",
            "round-robin",
            "queue-depth",
            "weighted-latency",
            "adaptive",
        ] {
            assert!(shown.contains(name), "{shown}");
        }
    }

    #[test]
    fn a3_a4_unless_set_a_window_is_15_s_and_a_new_mean_counts_an_eighth() {
        let usual = Knobs::default();
        assert_eq!(usual.ewma_shift, 3);
        assert_eq!(usual.weight_timeout_ns, 15_000_000_000);
    }

    #[test]
    fn a8_ewma_shift_is_0_to_8() {
        for shift in 0..=8_u8 {
            assert_eq!(Knobs::parse_ewma_shift(&shift.to_string()), Ok(shift));
        }
        assert_eq!(Knobs::parse_ewma_shift("0x3"), Ok(3));
        for text in ["9", "0x9", "011", "256", "99999999999999999999"] {
            assert_eq!(
                Knobs::parse_ewma_shift(text),
                Err(KnobError::ShiftRange),
                "{text}"
            );
        }
        for text in ["", "x", "-1", "+1", " 3", "3.0", "0x", "08"] {
            assert_eq!(
                Knobs::parse_ewma_shift(text),
                Err(KnobError::ShiftNotANumber),
                "{text}"
            );
        }
    }

    #[test]
    fn a8_weight_timeout_is_any_32_bits_of_seconds() {
        for (text, timeout_ns) in [
            ("0", 0),
            ("15", 15_000_000_000),
            ("0x10", 16_000_000_000),
            ("0Xf", 15_000_000_000),
            ("010", 8_000_000_000),
            ("3601", 3_601_000_000_000),
            ("4294967295", 4_294_967_295_000_000_000),
            ("0xffffffff", 4_294_967_295_000_000_000),
            ("1h", 3_600_000_000_000),
            ("5m", 300_000_000_000),
            ("2s", 2_000_000_000),
            ("010s", 10_000_000_000),
            ("50ms", 50_000_000),
            ("250us", 250_000),
            ("7ns", 7),
            ("4294967295000ms", 4_294_967_295_000_000_000),
        ] {
            assert_eq!(Knobs::parse_weight_timeout(text), Ok(timeout_ns), "{text}");
        }
        for text in [
            "4294967296",
            "0x100000000",
            "0xfffffffffffffffff",
            "1193047h",
            "4294967295001ms",
            "18446744073709551615",
            "20000000000s",
        ] {
            assert_eq!(
                Knobs::parse_weight_timeout(text),
                Err(KnobError::TimeoutRange),
                "{text}"
            );
        }
        for text in [
            "", "s", "ms", "1.5", "-1", "5d", "5 ms", "5msms", "é", "5µs", "5MS", "5M", "h", "0x",
            "0x10s", "08", "0xg",
        ] {
            let error = Err(KnobError::TimeoutNotADuration);
            assert_eq!(Knobs::parse_weight_timeout(text), error, "{text}");
        }
    }
}
