//! The table `[alarms]`: from when on a path that works, or a file system, is worth an alarm.
use super::keys;
use engine::alarms::{FLAPS_MAX, Limits};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use target::quantity::Duration;

/// Keys of `[alarms]`; 0: "off".
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlarmKeys {
    /// Latency above what is usual, ns.
    #[serde(default = "slow", deserialize_with = "slow_or_off")]
    pub slow: u64,
    /// Share of errors, 1 / 1000.
    #[serde(default = "errors", deserialize_with = "share_or_off")]
    pub errors: u16,
    /// Losses of a path; 0: any number.
    #[serde(default = "flaps", deserialize_with = "count")]
    pub flaps: u8,
    /// Within this time.
    #[serde(default = "flap_window", deserialize_with = "keys::some_time")]
    pub flap_window: Duration,
    /// Share of the keep-alive time-out, 1 / 1000.
    #[serde(default = "keep_alive", deserialize_with = "share_or_off")]
    pub keep_alive: u16,
    /// Used share of a file system, 1 / 1000.
    #[serde(default = "space", deserialize_with = "used_or_off")]
    pub space: u16,
}

impl Default for AlarmKeys {
    fn default() -> Self {
        Self {
            slow: slow(),
            errors: errors(),
            flaps: flaps(),
            flap_window: flap_window(),
            keep_alive: keep_alive(),
            space: space(),
        }
    }
}

impl AlarmKeys {
    /// For an engine with this keep-alive time-out.
    pub fn limits(&self, kato_ms: u32) -> Limits {
        let kato_us = u64::from(kato_ms) * 1000;
        Limits {
            slow_ns: self.slow,
            errors_permille: self.errors,
            flaps: self.flaps,
            flap_window_ns: self.flap_window.0,
            keep_alive_ns: kato_us * u64::from(self.keep_alive),
        }
    }
}

fn slow() -> u64 {
    Limits::default().slow_ns
}
fn errors() -> u16 {
    Limits::default().errors_permille
}
fn flaps() -> u8 {
    Limits::default().flaps
}
fn flap_window() -> Duration {
    Duration(Limits::default().flap_window_ns)
}
/// As [`Limits::default`] has it of the usual time-out.
fn keep_alive() -> u16 {
    100
}

/// As much as file systems commonly leave to users.
fn space() -> u16 {
    950
}

fn used_or_off<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    let text = String::deserialize(from)?;
    let percent = text.strip_suffix('%').and_then(|it| it.parse::<u16>().ok());
    match (text.as_str(), percent) {
        ("off", _) => Ok(0),
        (_, Some(percent @ 1..=100)) => Ok(percent * 10),
        _ => Err(Error::custom(format!(
            "\"{text}\": write a share of 1% to 100%, or \"off\""
        ))),
    }
}

fn slow_or_off<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    keys::some_time_or_off(from).map(Option::unwrap_or_default)
}

fn share_or_off<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    keys::share_or_off(from).map(Option::unwrap_or_default)
}

fn count<'de, D: Deserializer<'de>>(from: D) -> Result<u8, D::Error> {
    let count = usize::try_from(i64::deserialize(from)?).ok();
    let count = count.filter(|it| *it <= FLAPS_MAX);
    let wrong = || Error::custom(format!("must be 1…{FLAPS_MAX}, or 0: any number"));
    count.map(|it| it as u8).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AlarmKeys, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn defaults_are_those_of_the_engine() {
        assert_eq!(read("").unwrap(), AlarmKeys::default());
        assert_eq!(AlarmKeys::default().limits(5_000), Limits::default());
    }

    #[test]
    fn alarms_are_switched_off_one_by_one() {
        let keys = "slow = \"off\"\nerrors = \"off\"\nflaps = 0\nkeep_alive = \"off\"\n";
        let off = read(keys).unwrap().limits(5_000);
        assert_eq!((off.slow_ns, off.errors_permille, off.flaps), (0, 0, 0));
        assert_eq!(off.keep_alive_ns, 0);
        assert_eq!(read("space = \"off\"").unwrap().space, 0);
        assert_eq!(read("space = \"7%\"").unwrap().space, 70);
        for wrong in [
            "space = \"0%\"",
            "space = 90",
            "flaps = 17",
            "flaps = -1",
            "errors = \"60%\"",
            "slow = \"0s\"",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
