//! Quantities as they stand in the configuration and in control messages: text with a unit, checked
//! where it is read, so that the error shows the place.
use super::limits::WAIT_NS_MAX;
use runtime::{POLL_CPU_MAX_PERMILLE, Polling};
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use terminal::units;

/// A kind of quantity that is written as text.
pub trait FromText: Sized {
    /// The form that it should have had, for an error: "a size such as …".
    const WANTED: &'static str;
    /// The quantity.
    ///
    /// # Errors
    /// One line that quotes the text.
    fn from_text(text: &str) -> Result<Self, String>;
}

/// Nanoseconds, at most an hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duration(pub u64);

/// Bytes per second; 0 = unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate(pub u64);

/// Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size(pub u64);

/// Part of a CPU, per cent: 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuShare(pub u16);

impl Default for CpuShare {
    fn default() -> Self {
        Self(POLL_CPU_MAX_PERMILLE / 10)
    }
}

/// Whether a reactor polls before it sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Poll {
    /// While that costs less than a wake-up.
    #[default]
    Adaptive,
    /// It sleeps at once.
    Never,
}

impl Poll {
    /// How a reactor waits with this, `spin`, and so much of a CPU.
    pub fn polling(self, spin: bool, cpu_max: CpuShare) -> Polling {
        match self {
            _ if spin => Polling::Always,
            Self::Adaptive => Polling::Adaptive(cpu_max.0 * 10),
            Self::Never => Polling::Never,
        }
    }
}

/// An ANA state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ana(pub nvme::host::AnaState);

/// ANA states of groups, of all where none is named; the last that names a group counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnaStates(pub Vec<(Option<u32>, nvme::host::AnaState)>);

/// 16 bytes in hexadecimal, with hyphens or without; not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identifier(pub [u8; 16]);

impl FromText for Duration {
    const WANTED: &'static str = "a duration in quotes, as in \"30ms\"";
    fn from_text(text: &str) -> Result<Self, String> {
        match units::parse_duration(text) {
            Ok(ns) if ns <= WAIT_NS_MAX => Ok(Duration(ns)),
            Ok(_) => Err(format!("\"{text}\" is longer than an hour")),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl FromText for Rate {
    const WANTED: &'static str = "a rate in quotes, as in \"300MiB/s\"";
    fn from_text(text: &str) -> Result<Self, String> {
        units::parse_rate(text)
            .map(Rate)
            .map_err(|error| error.to_string())
    }
}

impl FromText for CpuShare {
    const WANTED: &'static str = "a share of a CPU in quotes, as in \"80%\"";
    fn from_text(text: &str) -> Result<Self, String> {
        let per_cent = text.strip_suffix('%').and_then(|it| it.parse().ok());
        match per_cent {
            Some(per_cent @ 1..=100) => Ok(Self(per_cent)),
            _ => Err(format!("\"{text}\" is not a share of 1% to 100%")),
        }
    }
}

/// Commands that are late: how many, and by how much at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Of a million.
    pub per_million: u32,
    /// Least lateness.
    pub least_ns: u64,
}

impl FromText for Tail {
    const WANTED: &'static str = "a probability and a duration in quotes, as in \"0.01:5ms\"";
    fn from_text(text: &str) -> Result<Self, String> {
        if text == "0" {
            return Ok(Tail {
                per_million: 0,
                least_ns: 0,
            });
        }
        let Some((chance, least)) = text.split_once(':') else {
            return Err(format!(
                "\"{text}\" is not PROBABILITY:DURATION, as in 0.01:5ms"
            ));
        };
        let number = chance.parse::<f64>().ok();
        let Some(number) = number.filter(|it| (0.000_001..=1.0).contains(it)) else {
            return Err(format!("\"{chance}\" is no probability from 0.000001 to 1"));
        };
        Ok(Tail {
            per_million: (number * 1e6).round() as u32,
            least_ns: Duration::from_text(least)?.0,
        })
    }
}

impl FromText for Size {
    const WANTED: &'static str = "a size in quotes, as in \"64KiB\"";
    fn from_text(text: &str) -> Result<Self, String> {
        units::parse_size(text)
            .map(Size)
            .map_err(|error| error.to_string())
    }
}

const ANA: [(&str, nvme::host::AnaState); 5] = [
    ("optimized", nvme::host::AnaState::Optimized),
    ("non-optimized", nvme::host::AnaState::NonOptimized),
    ("inaccessible", nvme::host::AnaState::Inaccessible),
    ("persistent-loss", nvme::host::AnaState::PersistentLoss),
    ("change", nvme::host::AnaState::Change),
];

impl Default for Ana {
    fn default() -> Self {
        Ana(nvme::host::AnaState::Optimized)
    }
}

impl fmt::Display for Ana {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ANA.iter().find(|(_, state)| *state == self.0);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl FromText for Ana {
    const WANTED: &'static str = "an ANA state: optimized, non-optimized, inaccessible, …";
    fn from_text(text: &str) -> Result<Self, String> {
        let found = ANA.iter().find(|(name, _)| *name == text.replace('_', "-"));
        found.map(|(_, state)| Ana(*state)).ok_or_else(|| {
            let names: Vec<_> = ANA.iter().map(|(name, _)| *name).collect();
            format!("\"{text}\" is no ANA state; one of {}", names.join(", "))
        })
    }
}

impl AnaStates {
    /// State of a group; optimized where nothing is said.
    pub fn of(&self, group: u32) -> nvme::host::AnaState {
        let mut last_first = self.0.iter().rev();
        let found = last_first.find(|(of, _)| of.is_none_or(|of| of == group));
        found.map_or(Ana::default().0, |(_, state)| *state)
    }

    /// A group that is named and not among these.
    ///
    /// # Errors
    /// One line: which, and those that there are.
    pub fn check(&self, groups: &BTreeSet<u32>) -> Result<(), String> {
        let mut named = self.0.iter().filter_map(|(group, _)| *group);
        let Some(unknown) = named.find(|group| !groups.contains(group)) else {
            return Ok(());
        };
        let there: Vec<_> = groups.iter().map(u32::to_string).collect();
        let there = there.join(", ");
        Err(format!(
            "ana: no namespace is in group {unknown}, only in {there}"
        ))
    }
}

impl fmt::Display for AnaStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (group, state)) in self.0.iter().enumerate() {
            let plus = if number == 0 { "" } else { "+" };
            let group = group.map_or(String::new(), |group| format!("{group}:"));
            write!(f, "{plus}{group}{}", Ana(*state))?;
        }
        Ok(())
    }
}

impl FromText for AnaStates {
    const WANTED: &'static str =
        "an ANA state in quotes, as in \"inaccessible\" or \"1:optimized+2:inaccessible\"";
    fn from_text(text: &str) -> Result<Self, String> {
        let one = |word: &str| {
            let Some((group, state)) = word.split_once(':') else {
                return Ok((None, Ana::from_text(word)?.0));
            };
            match group.parse() {
                Ok(group) if group != 0 => Ok((Some(group), Ana::from_text(state)?.0)),
                _ => Err(format!("\"{group}\" is no ANA group: a number from 1 on")),
            }
        };
        text.split('+').map(one).collect::<Result<_, _>>().map(Self)
    }
}

impl FromText for Identifier {
    const WANTED: &'static str = "an identifier of 32 hexadecimal digits in quotes";
    fn from_text(text: &str) -> Result<Self, String> {
        match uuid::Uuid::try_parse(text) {
            Ok(id) if !id.is_nil() => Ok(Identifier(*id.as_bytes())),
            _ => Err(format!(
                "\"{text}\" is not 32 hexadecimal digits other than zero"
            )),
        }
    }
}

impl FromText for paths::uri::PathUri {
    const WANTED: &'static str = "a backend in quotes: mem:SIZE, file:/path or null:SIZE";
    fn from_text(text: &str) -> Result<Self, String> {
        let uri: Self = text
            .parse()
            .map_err(|error| format!("\"{text}\": {error}"))?;
        match uri.kind() {
            paths::uri::UriKind::NvmeTcp(_)
            | paths::uri::UriKind::NvmeNg(_)
            | paths::uri::UriKind::Queue { .. } => Err(format!(
                "\"{text}\" is no backend of a namespace; {}",
                Self::WANTED
            )),
            _ if uri.distance().is_some() || uri.throughput().is_some() => Err(format!(
                "\"{text}\": a backend has no distance or throughput; {}",
                Self::WANTED
            )),
            _ => Ok(uri),
        }
    }
}

/// For `#[serde(deserialize_with = …)]`.
///
/// # Errors
/// Of the deserializer: not a text, or not that quantity.
pub fn from_text<'de, D: Deserializer<'de>, T: FromText>(from: D) -> Result<T, D::Error> {
    struct Text<T>(PhantomData<T>);
    impl<T: FromText> Visitor<'_> for Text<T> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(T::WANTED)
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            T::from_text(text).map_err(E::custom)
        }
    }
    from.deserialize_str(Text(PhantomData))
}

macro_rules! deserialize {
    ($($quantity:ty)*) => {$(
        impl<'de> Deserialize<'de> for $quantity {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from_text(from)
            }
        }
    )*};
}
deserialize!(Duration Rate Size CpuShare Tail AnaStates Identifier);
deserialize!(super::faults::Errors super::faults::Chance super::faults::Switch);
