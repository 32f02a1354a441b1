//! A path as a configuration has it: its URI and what is said of it beside.
use super::PathUri;
use policy::limits::THROUGHPUT_MAX;
use serde::Deserialize;

/// Relative throughput of a path of which nothing is said: all are equal, as in device-mapper.
const THROUGHPUT: u8 = 1;

/// One path.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Raw")]
pub struct PathKeys {
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
    uri: String,
    distance: Option<u32>,
    throughput: Option<i64>,
}

impl From<PathUri> for PathKeys {
    fn from(uri: PathUri) -> Self {
        Self {
            distance: uri.distance().unwrap_or(0),
            throughput: uri.throughput().unwrap_or(THROUGHPUT),
            uri,
        }
    }
}

impl TryFrom<Raw> for PathKeys {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        let uri = raw.uri.parse::<PathUri>();
        let uri = uri.map_err(|error| format!("\"{}\": {error}", raw.uri))?;
        let throughput = match raw.throughput {
            None => None,
            Some(number) => {
                let fits = u8::try_from(number).ok();
                let fits = fits.filter(|&number| number <= THROUGHPUT_MAX);
                Some(fits.ok_or(format!(
                    "throughput {number} is not a number from 0 to {THROUGHPUT_MAX}"
                ))?)
            }
        };
        let twice = [
            (
                "distance",
                raw.distance.is_some() && uri.distance().is_some(),
            ),
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
            distance: raw.distance.unwrap_or(keys.distance),
            throughput: throughput.unwrap_or(keys.throughput),
            ..keys
        })
    }
}
