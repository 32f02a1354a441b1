//! Settings of a port: in the configuration, behind `--listen`, and while it runs.
use super::discovery::Offer;
use super::faults::{self, FaultSettings};
use super::quantity::{AnaStates, Duration, Rate, Size, Tail};
use serde::Deserialize;
use serde_json::{Map, Value};
use terminal::text;

/// A change of a port; what is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Added once to every command.
    pub delay: Option<Duration>,
    /// Random extra, 0…jitter.
    pub jitter: Option<Duration>,
    /// Payload, both directions together; 0 = unlimited.
    pub bandwidth: Option<Rate>,
    /// Commands served at once; 0 = unlimited.
    pub servers: Option<u16>,
    /// Of one command on one server.
    pub service_time: Option<Duration>,
    /// Commands of at least this size …
    pub large_from: Option<Size>,
    /// … have this extra delay.
    pub large_delay: Option<Duration>,
    /// So many commands are late by a Pareto time.
    pub tail: Option<Tail>,
    /// Nothing is released for so long from now; 0 ends a stall.
    pub stall: Option<Duration>,
    /// ANA states seen through the port.
    pub ana: Option<AnaStates>,
    /// Offer of the port.
    pub offer: Option<Offer>,
    /// Faults; their keys stand beside the others.
    #[serde(skip)]
    pub faults: FaultSettings,
}

impl Settings {
    /// From words such as `delay=30ms`.
    ///
    /// # Errors
    /// One line: which word, what is wrong with it, and the keys that there are.
    pub fn from_words<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut map = Map::new();
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                return Err(format!("\"{word}\" is not key=value, as in delay=30ms"));
            };
            let (key, value) = (key.trim(), value.trim());
            let number = value.parse::<u64>().ok().filter(|_| key == "servers");
            if map
                .insert(key.into(), number.map_or(value.into(), Value::from))
                .is_some()
            {
                return Err(format!("{key} is given twice"));
            }
        }
        Self::from_map(map)
    }

    /// From the members of a JSON object.
    ///
    /// # Errors
    /// One line: the key, and what is wrong with it.
    pub fn from_map(map: Map<String, Value>) -> Result<Self, String> {
        let is_fault = |key: &String| faults::KEYS.contains(&key.as_str());
        let (faults, shape): (Map<_, _>, Map<_, _>) =
            map.into_iter().partition(|(key, _)| is_fault(key));
        let settings: Settings = text::json(shape.into()).map_err(|error| {
            if error.starts_with("unknown key") {
                format!("{error}; of a fault: {}", faults::KEYS.join(", "))
            } else {
                error
            }
        })?;
        Ok(Settings {
            faults: text::json(faults.into())?,
            ..settings
        })
    }

    /// A port's shape, changed. A stall begins now.
    pub fn apply(&self, shape: &mut shape::Config, now_ns: u64) {
        let change = |of: &mut u64, to: Option<u64>| *of = to.unwrap_or(*of);
        change(&mut shape.delay_ns, self.delay.map(|d| d.0));
        change(&mut shape.jitter_ns, self.jitter.map(|d| d.0));
        change(&mut shape.bytes_per_s, self.bandwidth.map(|rate| rate.0));
        change(&mut shape.service_ns, self.service_time.map(|d| d.0));
        change(&mut shape.large_delay_ns, self.large_delay.map(|d| d.0));
        shape.servers = self.servers.unwrap_or(shape.servers);
        if let Some(Size(bytes)) = self.large_from {
            shape.large_from = u32::try_from(bytes).unwrap_or(u32::MAX);
        }
        if let Some(tail) = self.tail {
            (shape.tail_per_million, shape.tail_ns) = (tail.per_million, tail.least_ns);
        }
        if let Some(Duration(ns)) = self.stall {
            shape.stall_until_ns = if ns == 0 {
                0
            } else {
                now_ns.saturating_add(ns)
            };
        }
    }

    /// Whether anything of the shape is named.
    pub fn changes_shape(&self) -> bool {
        let ana = Settings {
            ana: self.ana.clone(),
            offer: self.offer,
            faults: self.faults.clone(),
            ..Settings::default()
        };
        *self != ana
    }

    /// Whether any fault is named.
    pub fn changes_faults(&self) -> bool {
        self.faults != FaultSettings::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_change_what_they_name() {
        let words = [
            "delay=30ms",
            "bandwidth=300MiB/s",
            "servers=4",
            "large_from=64KiB",
        ];
        let settings = Settings::from_words(words).unwrap();
        let mut shape = shape::Config {
            jitter_ns: 7,
            ..shape::Config::default()
        };
        settings.apply(&mut shape, 0);
        let expected = shape::Config {
            delay_ns: 30_000_000,
            jitter_ns: 7,
            bytes_per_s: 300 << 20,
            servers: 4,
            large_from: 65_536,
            ..shape::Config::default()
        };
        assert_eq!(shape, expected);
        assert!(settings.changes_shape());
        assert!(
            !Settings::from_words(["ana=change"])
                .unwrap()
                .changes_shape()
        );
    }

    #[test]
    fn a_stall_counts_from_now_and_ends_with_zero() {
        let mut shape = shape::Config::default();
        Settings::from_words(["stall=5s"])
            .unwrap()
            .apply(&mut shape, 100);
        assert_eq!(shape.stall_until_ns, 5_000_000_100);
        Settings::from_words(["stall=0"])
            .unwrap()
            .apply(&mut shape, 200);
        assert_eq!(shape.stall_until_ns, 0);
    }

    #[test]
    fn a_wrong_word_is_named_and_the_right_ones_listed() {
        for (words, error) in [
            (["delay"], "\"delay\" is not key=value, as in delay=30ms"),
            (
                ["delay=30"],
                "delay: \"30\" is not a duration: a number with ns, us, ms, s, m or h",
            ),
            (["delay=2h"], "delay: \"2h\" is longer than an hour"),
            (
                ["servers=70000"],
                "servers: must be a whole number from 0 to 65535, not 70000",
            ),
            (
                ["ana=up"],
                "ana: \"up\" is no ANA state; one of optimized, non-optimized, inaccessible, \
                 persistent-loss, change",
            ),
            (
                ["tail=5ms"],
                "tail: \"5ms\" is not PROBABILITY:DURATION, as in 0.01:5ms",
            ),
            (
                ["tail=2:5ms"],
                "tail: \"2\" is no probability from 0.000001 to 1",
            ),
            (
                ["dealy=1ms"],
                "unknown key `dealy`; known here: `delay`, `jitter`, `bandwidth`, \
                 `servers`, `service_time`, `large_from`, `large_delay`, `tail`, `stall`, `ana`, \
                 `offer`; of a fault: error, drop_rate, hang, hold_writes, late_writes, \
                 until_kato, mute, refuse",
            ),
        ] {
            assert_eq!(Settings::from_words(words).unwrap_err(), error);
        }
        assert_eq!(
            Settings::from_words(["delay=1ms", "delay=2ms"]).unwrap_err(),
            "delay is given twice"
        );
    }

    #[test]
    fn hostile_words_are_named_or_taken() {
        hostile::attack("words", |text| {
            let words: Vec<_> = text.split_whitespace().collect();
            match Settings::from_words(words.iter().copied()) {
                Ok(settings) => {
                    let mut shape = shape::Config::default();
                    settings.apply(&mut shape, u64::MAX);
                    let ana = settings.ana.unwrap_or_default();
                    let again: AnaStates = Settings::from_words([format!("ana={ana}").as_str()])
                        .map_or(AnaStates::default(), |it| it.ana.unwrap());
                    assert_eq!(again, ana);
                }
                Err(error) => assert!(!error.is_empty()),
            }
        });
    }
}
