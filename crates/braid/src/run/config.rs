//! What an engine is to be: its configuration file.
//!
//! ```toml
//! [[volume]]
//! name = "v0"
//! policy = "queue-depth"
//! [[volume.path]]
//! uri = "nvme-tcp://10.0.0.1:4420/nqn.2026-01.org.example:v0"
//! [[volume.path]]
//! uri = "nvme-tcp://10.0.1.1:4420/nqn.2026-01.org.example:v0"
//! [[volume.export]]
//! nbd = "unix:/run/braid/v0.sock"
//! ```
use super::address::NbdAddress;
use crate::cli::Usage;
use crate::target::quantity::{Duration, Identifier, Size};
use crate::uri::PathUri;
use anyhow::{Context, bail};
use policy::{Knobs, Policy};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A whole engine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Control socket.
    pub socket: Option<PathBuf>,
    /// Cores to use, each a thread; a volume's clients are all on one.
    #[serde(default = "one")]
    pub cores: u16,
    /// Pin the cores to these CPUs, in order.
    #[serde(default)]
    pub cpus: Vec<usize>,
    /// Never sleep.
    #[serde(default)]
    pub spin: bool,
    /// Memory for payload on each core; used as it is needed.
    #[serde(default = "default_buffers")]
    pub buffers: Size,
    /// Most NBD clients on each core.
    #[serde(default = "default_clients")]
    pub clients: u16,
    /// Longest wait for one attempt of an I/O.
    #[serde(default = "seconds_30")]
    pub io_timeout: Duration,
    /// Longest wait for connecting.
    #[serde(default = "seconds_10")]
    pub connect_timeout: Duration,
    /// How long a SIGTERM waits for I/O under way.
    #[serde(default = "seconds_30")]
    pub drain_timeout: Duration,
    /// Host NQN.
    pub hostnqn: Option<String>,
    /// Host identifier.
    pub hostid: Option<Identifier>,
    /// Volumes.
    #[serde(rename = "volume", default)]
    pub volumes: Vec<Volume>,
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// Name.
    pub name: String,
    /// Policy.
    #[serde(default = "default_policy", deserialize_with = "policy")]
    pub policy: Policy,
    /// A knob of weighted-latency.
    #[serde(default, deserialize_with = "ewma_shift")]
    pub ewma_shift: Option<u8>,
    /// A knob of weighted-latency.
    #[serde(default, deserialize_with = "weight_timeout")]
    pub weight_timeout: Option<u64>,
    /// Paths.
    #[serde(rename = "path", default)]
    pub paths: Vec<PathKeys>,
    /// Exports.
    #[serde(rename = "export", default)]
    pub exports: Vec<Export>,
}

/// One path.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathKeys {
    /// Where it leads.
    #[serde(deserialize_with = "uri")]
    pub uri: PathUri,
    /// NUMA distance; smaller is nearer.
    #[serde(default)]
    pub distance: u32,
}

/// One export.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Export {
    /// Where clients connect.
    #[serde(deserialize_with = "nbd")]
    pub nbd: NbdAddress,
    /// Refuse changes.
    #[serde(default)]
    pub read_only: bool,
}

fn one() -> u16 {
    1
}
fn default_buffers() -> Size {
    Size(256 << 20)
}
fn default_clients() -> u16 {
    64
}
fn seconds_30() -> Duration {
    Duration(30_000_000_000)
}
fn seconds_10() -> Duration {
    Duration(10_000_000_000)
}
fn default_policy() -> Policy {
    Policy::QueueDepth
}

fn text<'de, D: Deserializer<'de>, T, E: std::fmt::Display>(
    from: D,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).map_err(|e| serde::de::Error::custom(format!("\"{text}\": {e}")))
}

fn policy<'de, D: Deserializer<'de>>(from: D) -> Result<Policy, D::Error> {
    text(from, Policy::parse)
}
fn uri<'de, D: Deserializer<'de>>(from: D) -> Result<PathUri, D::Error> {
    text(from, str::parse)
}
fn nbd<'de, D: Deserializer<'de>>(from: D) -> Result<NbdAddress, D::Error> {
    text(from, str::parse)
}
fn ewma_shift<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u8>, D::Error> {
    let number = u64::deserialize(from)?.to_string();
    let shift = Knobs::parse_ewma_shift(&number);
    shift.map(Some).map_err(serde::de::Error::custom)
}
fn weight_timeout<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    text(from, Knobs::parse_weight_timeout).map(Some)
}

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// The file can't be read; or what is wrong, with line and column and what could stand there.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = read_bounded(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).map_err(|error| Usage::error(format!("{}: {error}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        let (mut names, mut places) = (BTreeSet::new(), BTreeSet::new());
        for volume in &self.volumes {
            let name = &volume.name;
            if !is_name(name) {
                return Err(format!(
                    "volume \"{name}\": a name has 1 to 64 letters, digits, \".\", \"_\" or \"-\""
                ));
            }
            if !names.insert(name) {
                return Err(format!("there are two volumes \"{name}\""));
            }
            if volume.paths.is_empty() {
                return Err(format!("volume \"{name}\" has no [[volume.path]]"));
            }
            for export in &volume.exports {
                if !places.insert(export.nbd.to_string()) {
                    return Err(format!("{} is exported twice", export.nbd));
                }
            }
        }
        let most = engine::limits::CLIENTS_MAX;
        if !(1..=most).contains(&self.clients) {
            return Err(format!("clients must be 1…{most}"));
        }
        let least = engine::limits::EXPORT_ARENA_MIN;
        if self.buffers.0 < least {
            return Err(format!("buffers must be at least {} MiB", least >> 20));
        }
        let cores = usize::from(self.cores);
        if cores == 0 || cores > crate::limits::CORES_MAX {
            return Err(format!("cores must be 1…{}", crate::limits::CORES_MAX));
        }
        match self.cpus.len() {
            0 => Ok(()),
            n if n == cores => Ok(()),
            _ => Err("cpus must name one CPU for each of the cores".into()),
        }
    }
}

impl Volume {
    /// The knobs as they stand here.
    pub fn knobs(&self) -> Knobs {
        let usual = Knobs::default();
        Knobs {
            ewma_shift: self.ewma_shift.unwrap_or(usual.ewma_shift),
            weight_timeout_ns: self.weight_timeout.unwrap_or(usual.weight_timeout_ns),
        }
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(allowed)
}

fn read_bounded(path: &Path) -> anyhow::Result<String> {
    const BYTES_MAX: u64 = 1 << 20;
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    if file.take(BYTES_MAX + 1).read_to_string(&mut text)? as u64 > BYTES_MAX {
        bail!("it has more than {BYTES_MAX} bytes");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[[volume]]
name = "v0"
policy = "round-robin:65536"
weight_timeout = "500ms"
[[volume.path]]
uri = "mem:64MiB"
[[volume.export]]
nbd = "unix:/run/braid/v0.sock"
"#;

    #[test]
    fn the_example_of_the_design_is_read() {
        let config = Config::parse(GOOD).unwrap();
        let volume = &config.volumes[0];
        assert_eq!(volume.policy, Policy::RoundRobin { bytes: 65536 });
        assert_eq!(volume.knobs().weight_timeout_ns, 500_000_000);
        assert_eq!(volume.exports[0].nbd.to_string(), "unix:/run/braid/v0.sock");
        assert_eq!((config.cores, config.drain_timeout.0), (1, 30_000_000_000));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (from, to, part) in [
            ("policy", "polcy", "unknown field `polcy`"),
            ("policy", "polcy", "line 4, column 1"),
            ("round-robin:65536", "fastest", "unknown policy"),
            ("mem:64MiB", "disk.img", "not a path URI"),
            ("unix:/run/braid/v0.sock", "/run/v0", "unix:/path"),
            ("500ms", "2 days", "weight_timeout"),
            ("\"v0\"", "\"v 0\"", "a name has"),
            (
                "[[volume.path]]\nuri = \"mem:64MiB\"",
                "",
                "no [[volume.path]]",
            ),
            ("\n[[volume]]", "clients = 0\n[[volume]]", "clients must be"),
            (
                "\n[[volume]]",
                "buffers = \"1MiB\"\n[[volume]]",
                "buffers must be",
            ),
        ] {
            let text = GOOD.replacen(from, to, 1);
            let error = Config::parse(&text).unwrap_err();
            assert!(error.contains(part), "{part}: {error}");
        }
        let twice = [GOOD, &GOOD.replace("\"v0\"", "\"v1\"")].concat();
        assert!(
            Config::parse(&twice)
                .unwrap_err()
                .contains("exported twice")
        );
        let twice = [GOOD, GOOD].concat();
        assert!(Config::parse(&twice).unwrap_err().contains("two volumes"));
    }
}
