//! A path as a configuration has it: its URI and what is said of it beside.
use super::PathUri;
use super::names;
use policy::limits::THROUGHPUT_MAX;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// Relative throughput of a path of which nothing is said: all are equal, as in device-mapper.
const THROUGHPUT: u8 = 1;

/// One path.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Raw")]
pub struct PathKeys {
    /// Its name, if the URI has one.
    pub name: Option<String>,
    /// Where it leads.
    pub uri: PathUri,
    /// NUMA distance; smaller is nearer.
    pub distance: u32,
    /// Relative throughput, 0…[`THROUGHPUT_MAX`], for the policy `service-time`.
    pub throughput: u8,
}

/// As it stands in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default, deserialize_with = "name")]
    name: Option<String>,
    #[serde(deserialize_with = "uri")]
    uri: PathUri,
    distance: Option<u32>,
    #[serde(default, deserialize_with = "throughput")]
    throughput: Option<u8>,
}

/// Read where it stands, so that an error points at its line.
fn uri<'de, D: Deserializer<'de>>(from: D) -> Result<PathUri, D::Error> {
    let text = String::deserialize(from)?;
    let wrong = |error| D::Error::custom(format!("\"{text}\": {error}"));
    text.parse().map_err(wrong)
}

/// The name of a path or leg, read where it stands.
///
/// # Errors
/// It can't be one ([`names::is_name`]).
pub fn name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(from)?;
    match names::is_name(&text) {
        true => Ok(Some(text)),
        false => Err(D::Error::custom(format!("\"{text}\": {}", names::WANTED))),
    }
}

fn throughput<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u8>, D::Error> {
    let number = i64::deserialize(from)?;
    let fits = u8::try_from(number).ok();
    let fits = fits.filter(|&number| number <= THROUGHPUT_MAX);
    let wrong = format!("throughput {number} is not a number from 0 to {THROUGHPUT_MAX}");
    fits.map(Some).ok_or_else(|| D::Error::custom(wrong))
}

impl From<PathUri> for PathKeys {
    fn from(uri: PathUri) -> Self {
        Self {
            name: None,
            distance: uri.distance().unwrap_or(0),
            throughput: uri.throughput().unwrap_or(THROUGHPUT),
            uri,
        }
    }
}

impl TryFrom<Raw> for PathKeys {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        let Raw {
            name,
            uri,
            distance,
            throughput,
        } = raw;
        let twice = [
            ("distance", distance.is_some() && uri.distance().is_some()),
            (
                "throughput",
                throughput.is_some() && uri.throughput().is_some(),
            ),
        ];
        if let Some((key, _)) = twice.iter().find(|(_, twice)| *twice) {
            return Err(format!("\"{uri}\": {key} stands in the URI and beside it"));
        }
        let keys = Self::from(uri);
        Ok(Self {
            name,
            distance: distance.unwrap_or(keys.distance),
            throughput: throughput.unwrap_or(keys.throughput),
            ..keys
        })
    }
}
