//! Desired state of a target: its configuration file, or the few options that stand in for one.
//!
//! ```toml
//! nqn = "nqn.2026-01.org.example:v0"
//!
//! [[namespace]]
//! backend = "file:/srv/v0"
//! size = "1GiB"
//!
//! [[port]]
//! listen = "127.0.0.1:4420"
//! bandwidth = "300MiB/s"
//!
//! [[port]]
//! listen = "127.0.0.1:4421"
//! delay = "30ms"
//! faults = { error = "media-read:0.01", late_writes = "2s" }
//! ```
//!
//! # Contract
//! Identifiers that aren't given follow from the NQN and the NSID, so that two processes with the
//! same configuration offer the same namespace. Their controller identifiers must then be disjoint:
//! `cntlid = [1, 999]` here and `[1000, 1999]` there.
mod check;

pub use check::{check_nqn, closed_port};

use super::discovery::{Offer, ReferralKeys};
use super::faults::FaultSettings;
use super::quantity::{
    AnaStates, CpuShare, Duration, Identifier, Poll, Rate, Size, Tail, from_text,
};
use super::settings::Settings;
use anyhow::bail;
use paths::uri::PathUri;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use service::control::access::{Access, Mode, Name};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use terminal::exit::Usage;
use terminal::text;
use uuid::Uuid;

/// A whole target.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Subsystem NQN.
    pub nqn: String,
    /// Serial number, at most 20 characters.
    pub serial: Option<String>,
    /// Model, at most 40 characters.
    #[serde(default = "default_model")]
    pub model: String,
    /// First and last controller identifier handed out.
    #[serde(default = "default_cntlid")]
    pub cntlid: [u16; 2],
    /// A name of its own for its discovery subsystem, beside the well-known one.
    pub discovery_nqn: Option<String>,
    /// Host NQNs that may connect; none = any.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Any host of other machines may connect.
    #[serde(default)]
    pub open: bool,
    /// Largest transfer: a power of two, 8 KiB…1 MiB.
    #[serde(default = "default_transfer_size")]
    pub transfer_size: Size,
    /// Data in a command capsule.
    #[serde(default = "default_in_capsule")]
    pub in_capsule: Size,
    /// Largest I/O queue.
    #[serde(default = "default_queue_entries")]
    pub queue_entries: u16,
    /// I/O queues of one controller.
    #[serde(default = "default_io_queues")]
    pub io_queues: u16,
    /// Connections in all.
    #[serde(default = "default_connections")]
    pub connections: u32,
    /// Connections from one address; none = as many as there may be in all.
    pub connections_per_host: Option<NonZeroU32>,
    /// Memory for payload; used as it is needed.
    #[serde(default = "default_buffers")]
    pub buffers: Size,
    /// Command quiesce time reported: until then what a lost connection left may still be executed.
    /// None = what the backends can promise; 0 = not reported.
    pub cqt: Option<Duration>,
    /// Control socket.
    pub socket: Option<PathBuf>,
    /// Owner of the control socket.
    pub socket_owner: Option<Name>,
    /// Group of the control socket.
    pub socket_group: Option<Name>,
    /// Mode of the control socket.
    pub socket_mode: Option<Mode>,
    /// Pin to this CPU.
    pub cpu: Option<usize>,
    /// Never sleep.
    #[serde(default)]
    pub spin: bool,
    /// Whether it polls before it sleeps.
    #[serde(default)]
    pub poll: Poll,
    /// For that, most of a CPU.
    #[serde(default)]
    pub poll_cpu_max: CpuShare,
    /// Namespaces.
    #[serde(rename = "namespace", default)]
    pub namespaces: Vec<Namespace>,
    /// Ports.
    #[serde(rename = "port", default)]
    pub ports: Vec<Port>,
    /// Other discovery controllers that hosts are referred to.
    #[serde(rename = "referral", default)]
    pub referrals: Vec<ReferralKeys>,
}

/// One namespace.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    /// NSID; the next free one where it is left out (0 until then).
    #[serde(default, deserialize_with = "nsid")]
    pub nsid: u32,
    /// Where its blocks are.
    #[serde(deserialize_with = "from_text")]
    pub backend: PathUri,
    /// Size; the backend's where it is left out. A file that isn't there is made.
    pub size: Option<Size>,
    /// A file that is made gets its space as it is written, and not at once.
    #[serde(default)]
    pub sparse: bool,
    /// 512 or 4096.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// UUID.
    pub uuid: Option<Identifier>,
    /// NGUID.
    pub nguid: Option<Identifier>,
    /// ANA group, 1…
    #[serde(default = "default_ana_group")]
    pub ana_group: u32,
    /// Write protected.
    #[serde(default)]
    pub read_only: bool,
    /// Bytes of writes that are kept in memory until a flush, and lost with the process; for tests.
    pub volatile_cache: Option<Size>,
}

/// One port.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "PortKeys")]
pub struct Port {
    /// Address and port; port 0 = any free one.
    pub listen: String,
    /// Address that hosts are told, where it isn't the one bound: behind a wildcard it must be
    /// said.
    pub advertise: Option<IpAddr>,
    /// Delays and limits.
    pub shape: shape::Config,
    /// ANA states seen through it.
    pub ana: AnaStates,
    /// Its offer to hosts.
    pub offer: Offer,
    /// Its faults.
    pub faults: FaultSettings,
}

/// A port as it is written; the keys of [`Settings`] beside its address.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PortKeys {
    listen: String,
    advertise: Option<IpAddr>,
    delay: Option<Duration>,
    jitter: Option<Duration>,
    bandwidth: Option<Rate>,
    servers: Option<u16>,
    service_time: Option<Duration>,
    large_from: Option<Size>,
    large_delay: Option<Duration>,
    tail: Option<Tail>,
    ana: Option<AnaStates>,
    offer: Option<Offer>,
    #[serde(default)]
    faults: FaultSettings,
}

fn default_model() -> String {
    "braid target".into()
}
fn default_cntlid() -> [u16; 2] {
    [1, 0xffef]
}
fn default_transfer_size() -> Size {
    Size(1 << 20)
}
fn default_in_capsule() -> Size {
    Size(8 << 10)
}
/// Deep enough for 1024 outstanding, and as many again.
fn default_queue_entries() -> u16 {
    2048
}
fn default_io_queues() -> u16 {
    64
}
fn default_connections() -> u32 {
    128
}
fn default_buffers() -> Size {
    Size(512 << 20)
}
/// NVMe Base 2.0, 3.2.1.2: 0 and FFFFFFFFh are no namespace.
fn nsid<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    match u32::deserialize(from)? {
        0 | u32::MAX => Err(D::Error::custom("an nsid is 1 to 4294967294")),
        nsid => Ok(nsid),
    }
}
fn default_ana_group() -> u32 {
    1
}
fn default_block_size() -> u32 {
    4096
}

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// Usage: the file can't be read, or what is wrong in it, with line and column where TOML tells
    /// them, and what could stand there.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = text::read(path).map_err(|error| Usage::error(format!("{error:#}")))?;
        Self::parse(&text).map_err(|error| Usage::error(format!("{}: {error}", path.display())))
    }

    /// Checks that can be made before anything is opened or made.
    ///
    /// # Errors
    /// One line that begins with the key.
    pub fn check(&self) -> Result<(), String> {
        check::check(self)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut config: Config = text::toml(text).map_err(|error| {
            let nqn = "write nqn = \"nqn.2026-01.org.example:v0\" before the first section";
            error.replace(
                "the key `nqn` is missing",
                &format!("there is no nqn: {nqn}"),
            )
        })?;
        if config.ports.is_empty() {
            return Err("there is no [[port]]: write one with listen = \"ADDRESS:PORT\"".into());
        }
        if config.namespaces.is_empty() {
            let wanted = "backend = \"mem:1GiB\" or \"file:/path\"";
            return Err(format!(
                "there is no [[namespace]]: write one with {wanted}"
            ));
        }
        check::number(&mut config.namespaces);
        if let Some((at, nsid)) = check::duplicate(&config.namespaces) {
            let place =
                line_of_nsid(text, at).map_or(String::new(), |line| format!("line {line}: "));
            return Err(format!(
                "{place}namespace {} also has nsid {nsid}: give each its own, or leave nsid out",
                at + 1
            ));
        }
        config.check()?;
        Ok(config)
    }

    /// A target without a file: one namespace behind these ports.
    pub fn quick(nqn: String, backend: PathUri, ports: Vec<Port>) -> Self {
        let namespace = Namespace {
            nsid: 1,
            backend,
            size: None,
            sparse: false,
            block_size: default_block_size(),
            uuid: None,
            nguid: None,
            ana_group: default_ana_group(),
            read_only: false,
            volatile_cache: None,
        };
        Config {
            nqn,
            serial: None,
            model: default_model(),
            cntlid: default_cntlid(),
            discovery_nqn: None,
            hosts: Vec::new(),
            open: false,
            transfer_size: default_transfer_size(),
            in_capsule: default_in_capsule(),
            queue_entries: default_queue_entries(),
            io_queues: default_io_queues(),
            connections: default_connections(),
            connections_per_host: None,
            buffers: default_buffers(),
            cqt: None,
            socket: None,
            socket_owner: None,
            socket_group: None,
            socket_mode: None,
            cpu: None,
            spin: false,
            poll: Poll::default(),
            poll_cpu_max: CpuShare::default(),
            namespaces: vec![namespace],
            ports,
            referrals: Vec::new(),
        }
    }

    /// ANA groups that have a namespace.
    pub fn groups(&self) -> BTreeSet<u32> {
        self.namespaces.iter().map(|of| of.ana_group).collect()
    }

    /// Access to the control socket.
    pub fn access(&self) -> Access {
        Access {
            owner: self.socket_owner.clone(),
            group: self.socket_group.clone(),
            mode: self.socket_mode,
        }
    }

    /// Serial number, given or made from the NQN.
    pub fn serial(&self) -> String {
        let made = || serial_of(&self.nqn);
        self.serial.clone().unwrap_or_else(made)
    }
}

impl Namespace {
    /// UUID, given or made from the NQN and the NSID.
    pub fn uuid(&self, nqn: &str) -> [u8; 16] {
        let made = || identifiers(nqn, self.nsid).1;
        self.uuid.map_or_else(made, |id| id.0)
    }

    /// NGUID, given or made from the NQN and the NSID.
    pub fn nguid(&self, nqn: &str) -> [u8; 16] {
        let made = || identifiers(nqn, self.nsid).0;
        self.nguid.map_or_else(made, |id| id.0)
    }

    /// log2 of the block size.
    ///
    /// # Errors
    /// It is neither 512 nor 4096.
    pub fn block_shift(&self) -> anyhow::Result<u8> {
        match self.block_size {
            512 => Ok(9),
            4096 => Ok(12),
            other => bail!("block_size {other} is neither 512 nor 4096"),
        }
    }
}

impl Port {
    /// A port that listens here and differs so from one that isn't slowed.
    pub fn new(listen: String, settings: &Settings) -> Self {
        let mut shape = shape::Config::default();
        settings.apply(&mut shape, 0);
        Port {
            listen,
            advertise: None,
            shape,
            ana: settings.ana.clone().unwrap_or_default(),
            offer: settings.offer.unwrap_or_default(),
            faults: settings.faults.clone(),
        }
    }
}

impl From<PortKeys> for Port {
    fn from(keys: PortKeys) -> Self {
        let settings = Settings {
            delay: keys.delay,
            jitter: keys.jitter,
            bandwidth: keys.bandwidth,
            servers: keys.servers,
            service_time: keys.service_time,
            large_from: keys.large_from,
            large_delay: keys.large_delay,
            tail: keys.tail,
            stall: None,
            ana: keys.ana,
            offer: keys.offer,
            faults: keys.faults,
        };
        Port {
            advertise: keys.advertise,
            ..Port::new(keys.listen, &settings)
        }
    }
}

/// NGUID and UUID of a namespace for which none are given: whoever serves it makes the same.
pub fn identifiers(nqn: &str, nsid: u32) -> ([u8; 16], [u8; 16]) {
    identifiers_of(nqn, &format!("namespace {nsid}"))
}

/// The same of a namespace that is a volume of this name, whatever its NSID.
pub fn volume_identifiers(nqn: &str, volume: &str) -> ([u8; 16], [u8; 16]) {
    identifiers_of(nqn, &format!("volume {volume}"))
}

fn identifiers_of(nqn: &str, of: &str) -> ([u8; 16], [u8; 16]) {
    let made = |of: &str| *derived(nqn, of).as_bytes();
    (made(&format!("{of} nguid")), made(of))
}

/// Serial number of a subsystem for which none is given.
pub fn serial_of(nqn: &str) -> String {
    derived(nqn, "serial").simple().to_string()[..20].to_owned()
}

/// A name-based UUID (version 5) that every process comes to alike.
fn derived(nqn: &str, of: &str) -> Uuid {
    let subsystem = Uuid::new_v5(&Uuid::NAMESPACE_URL, nqn.as_bytes());
    Uuid::new_v5(&subsystem, of.as_bytes())
}

/// The line on which the nsid of namespace `at` stands.
fn line_of_nsid(text: &str, at: usize) -> Option<usize> {
    #[derive(Deserialize)]
    struct Numbered {
        nsid: Option<toml::Spanned<u32>>,
    }
    #[derive(Deserialize)]
    struct Places {
        namespace: Vec<Numbered>,
    }
    let places: Places = toml::from_str(text).ok()?;
    let start = places.namespace.get(at)?.nsid.as_ref()?.span().start;
    Some(text.get(..start)?.matches('\n').count() + 1)
}

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests;
