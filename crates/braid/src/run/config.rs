//! Desired state of an engine: its configuration file.
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
//!
//! Every key and its default: docs/configuration.md.
//!
//! # Contract
//! An error shows line and column. Facts of the machine (is there such a file or user) are
//! not looked at.
mod alarms;
mod check;
mod hints;
mod keys;
mod mirror;
mod subsystems;
pub mod twice;

use super::address::NbdAddress;
use super::admission::{Admission, Rule};
use super::cores;
use super::metrics::MetricsAddress;
use super::mirrors;
use super::nvme_exports;
use crate::cli::Usage;
use crate::control::access::{Access, Mode, Name};
use crate::text;
pub use crate::uri::PathKeys;
use crate::uri::discovery::DiscoveryUri;
use crate::uri::{PathUri, UriKind};
pub use alarms::AlarmKeys;
pub use check::is_name;
use engine::host::{Recovery, WriteFailover};
pub use mirror::{ASSEMBLE_WAIT_NS, Kind, LEG_QUIESCE_NS, LegKeys, end, leg_name};
use multipath::AnaUse;
use multipath::health::Limits;
use policy::{Hedging, Knobs, Policy};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
pub use subsystems::{Namespace, Subsystem};
use target::quantity::{CpuShare, Duration, Identifier, Poll, Rate, Size};
use terminal::log::LogLevel;

/// Keep-alive time-out, unless half of `io_timeout` is shorter (T12): as the kernel's host.
const KEEP_ALIVE_NS: u64 = 5_000_000_000;
/// Most cores where a file does not say how many: one has memory for payload, a queue to each path
/// and connections of its own, which only volumes busier than most repay.
const CORES_DEFAULT_MAX: u16 = 4;

/// Returns the number of cores of a file that does not say it: one for each CPU that it names, or
/// for each that this process may run on, at most [`CORES_DEFAULT_MAX`]; one that never sleeps, so
/// that it leaves others to its clients. The first answer stays: the process may get other CPUs
/// while it runs, but a reload can't change its cores.
fn default_cores(cpus: &[usize], spin: bool) -> u16 {
    static OF_MACHINE: OnceLock<u16> = OnceLock::new();
    if !cpus.is_empty() {
        return cpus.len().min(crate::limits::CORES_MAX) as u16;
    }
    if spin {
        return 1;
    }
    *OF_MACHINE.get_or_init(|| {
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        usable.min(CORES_DEFAULT_MAX.into()) as u16
    })
}

/// A whole engine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Control socket.
    pub socket: Option<PathBuf>,
    /// Its owner.
    pub socket_owner: Option<Name>,
    /// Its group.
    pub socket_group: Option<Name>,
    /// Its mode.
    pub socket_mode: Option<Mode>,
    /// Files of the programs that are policies.
    #[serde(skip)]
    pub program_files: Vec<PathBuf>,
    /// Cores to use, each a thread. As read from a file 0: as many as [`default_cores`].
    #[serde(default, deserialize_with = "keys::cores")]
    pub cores: u16,
    /// Pin the cores to these CPUs, in order.
    #[serde(default)]
    pub cpus: Vec<usize>,
    /// Never sleep.
    #[serde(default)]
    pub spin: bool,
    /// Whether a core polls before it sleeps.
    #[serde(default)]
    pub poll: Poll,
    /// For that, most of a CPU for each core.
    #[serde(default)]
    pub poll_cpu_max: CpuShare,
    /// Memory for payload on each core; used as it is needed.
    #[serde(default = "keys::buffers")]
    pub buffers: Size,
    /// Most NBD clients on each core.
    #[serde(default = "keys::clients")]
    pub clients: u16,
    /// Of them, from one address; none = no bound of its own.
    pub clients_per_host: Option<NonZeroU32>,
    /// Longest wait for one attempt of an I/O.
    #[serde(default = "keys::io_timeout", deserialize_with = "keys::some_time")]
    pub io_timeout: Duration,
    /// Longest wait for connecting.
    #[serde(
        default = "keys::connect_timeout",
        deserialize_with = "keys::some_time"
    )]
    pub connect_timeout: Duration,
    /// Keep-alive time-out, ns; 0: none.
    #[serde(default, deserialize_with = "keys::keep_alive_tmo")]
    pub keep_alive_tmo: Option<u64>,
    /// After so long without traffic TCP asks the peers of connections that the engine opens, ns;
    /// 0: never.
    #[serde(
        default = "keys::usual_tcp_keep_alive",
        deserialize_with = "keys::tcp_keep_alive"
    )]
    pub tcp_keep_alive: u64,
    /// Checksums over headers.
    #[serde(default)]
    pub header_digest: bool,
    /// Checksums over data.
    #[serde(default)]
    pub data_digest: bool,
    /// How long a SIGTERM waits for I/O under way.
    #[serde(default = "keys::drain_timeout")]
    pub drain_timeout: Duration,
    /// Least important lines of the log; the command line comes first.
    pub log_level: Option<LogLevel>,
    /// Program that is run for each event, and its arguments.
    #[serde(default, deserialize_with = "keys::on_event")]
    pub on_event: Vec<String>,
    /// How long READY waits for volumes that are not up.
    #[serde(default = "keys::ready_wait")]
    pub ready_wait: Duration,
    /// Host NQN.
    pub hostnqn: Option<String>,
    /// Host identifier.
    pub hostid: Option<Identifier>,
    /// Keep-alive time-out of discovery sessions.
    #[serde(
        default = "keys::discovery_keep_alive_tmo",
        deserialize_with = "keys::some_keep_alive"
    )]
    pub discovery_keep_alive_tmo: Duration,
    /// Where metrics are served.
    pub metrics: Option<MetricsAddress>,
    /// Clients that may read them; none: any.
    #[serde(default)]
    pub metrics_allow: Vec<Rule>,
    /// Any client of other machines may read them.
    #[serde(default)]
    pub metrics_open: bool,
    /// When a path that works is worth an alarm.
    #[serde(default)]
    pub alarms: AlarmKeys,
    /// Discovery controllers.
    #[serde(rename = "discovery", default)]
    pub discoveries: Vec<DiscoveryKeys>,
    /// Servers of hardware queues.
    #[serde(rename = "queue", default)]
    pub queues: Vec<QueueKeys>,
    /// Volumes; behind those of the file, the legs of its mirrors.
    #[serde(rename = "volume", default)]
    pub volumes: Vec<Volume>,
    /// The subsystems that their NVMe/TCP exports make.
    #[serde(skip)]
    pub subsystems: Vec<Subsystem>,
    /// Cores of the volumes in these, by number.
    #[serde(skip)]
    pub homes: BTreeMap<u16, u16>,
}

/// One discovery controller.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiscoveryKeys {
    /// Where it is.
    #[serde(deserialize_with = "keys::discovery")]
    pub uri: DiscoveryUri,
}

/// One server of hardware queues.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueKeys {
    /// Where clients ask for queues.
    pub socket: PathBuf,
    /// Its owner.
    pub owner: Option<Name>,
    /// Its group.
    pub group: Option<Name>,
    /// Its mode.
    pub mode: Option<Mode>,
    /// Queues whose completions are polled.
    #[serde(default = "keys::queues")]
    pub user_poll: u32,
    /// Queues whose completions are notified.
    #[serde(default = "keys::queues")]
    pub user_irq: u32,
    /// How long the core looks for commands before it sleeps, µs.
    #[serde(default)]
    pub spin_us: u64,
    /// Most memory of a queue, besides its rings.
    #[serde(default = "keys::buffers")]
    pub memory_max: Size,
    /// Clients are believed to send no fused commands and no metadata.
    #[serde(default)]
    pub trusted: bool,
    /// Rights, as of `--allow`; none: every client that may connect has all.
    #[serde(default)]
    pub allow: Vec<String>,
    /// NQN of the subsystem that the namespaces belong to.
    pub subsystem: Option<String>,
    /// Identifier of this controller there.
    #[serde(default = "keys::controller")]
    pub controller: u16,
    /// Volumes.
    #[serde(rename = "namespace", default)]
    pub namespaces: Vec<QueueNamespace>,
}

/// A volume as a namespace of queues.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueNamespace {
    /// Its name.
    pub volume: String,
    /// The namespace.
    pub nsid: u32,
    /// No client may change it.
    #[serde(default)]
    pub read_only: bool,
}

impl QueueKeys {
    /// Access to its socket.
    pub fn access(&self) -> Access {
        Access {
            owner: self.owner.clone(),
            group: self.group.clone(),
            mode: self.mode,
        }
    }
}

/// Fate of a path that discovery doesn't announce any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gone {
    /// It leaves once it is lost.
    #[default]
    KeepWhileLive,
    /// It drains and leaves.
    Remove,
}

/// Treatment of clients of a volume that was not up yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BeforeUp {
    /// They wait.
    #[default]
    Wait,
    /// They are told so, and have no export.
    Refuse,
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// Name.
    pub name: String,
    /// Its kind.
    #[serde(default)]
    pub kind: Kind,
    /// Of a mirror.
    #[serde(rename = "leg", default)]
    pub legs: Vec<LegKeys>,
    /// The mirror that it is a leg of.
    #[serde(skip)]
    pub leg_of: Option<String>,
    /// Its home, where it is opened for a subsystem that is there.
    #[serde(skip)]
    pub home: Option<u16>,
    /// Of a mirror: how long it waits for legs that could be missing.
    #[serde(default, deserialize_with = "keys::time_or_none")]
    pub assemble_wait: Option<u64>,
    /// The same, where all missing legs had left before the last stop.
    #[serde(default, deserialize_with = "keys::time_or_none")]
    pub assemble_wait_degraded: Option<u64>,
    /// The same, where all missing legs lacked data even then.
    #[serde(default, deserialize_with = "keys::time_or_none")]
    pub assemble_wait_outdated: Option<u64>,
    /// Of a mirror: it starts by itself without legs that had everything, where that is safe.
    pub start_degraded: Option<bool>,
    /// Of a mirror: how long a lost leg stays away where nothing else bounds it.
    #[serde(default, deserialize_with = "keys::time_or_none")]
    pub leg_quiesce: Option<u64>,
    /// Of a mirror: other hosts can reach its legs, whatever these are. Of another volume: other
    /// processes may write its files and block devices.
    pub shared: Option<bool>,
    /// Of a mirror: as fast at least its legs are rebuilt.
    #[serde(default, deserialize_with = "keys::rate")]
    pub rebuild_floor: Option<Rate>,
    /// Of a mirror: as fast at most.
    #[serde(default, deserialize_with = "keys::rate")]
    pub rebuild_ceiling: Option<Rate>,
    /// NQN of the subsystem whose paths come from discovery.
    pub subsystem: Option<String>,
    /// The namespace there.
    #[serde(default, deserialize_with = "keys::nsid")]
    pub nsid: Option<u32>,
    /// Fate of paths that are not announced any more.
    pub gone: Option<Gone>,
    /// Treatment of clients before it is up.
    pub before_up: Option<BeforeUp>,
    /// Policy.
    #[serde(default = "keys::default_policy", deserialize_with = "keys::policy")]
    pub policy: Policy,
    /// A knob of weighted-latency.
    #[serde(default, deserialize_with = "keys::ewma_shift")]
    pub ewma_shift: Option<u8>,
    /// A knob of weighted-latency.
    #[serde(default, deserialize_with = "keys::weight_timeout")]
    pub weight_timeout: Option<u64>,
    /// Whether late reads get a second copy.
    #[serde(default, deserialize_with = "keys::hedge")]
    pub hedge: Option<Hedging>,
    /// See [`Recovery::ana`].
    #[serde(default, deserialize_with = "keys::ana")]
    pub ana: Option<AnaUse>,
    /// See [`Recovery::write_failover`].
    #[serde(default, deserialize_with = "keys::write_failover")]
    pub write_failover: Option<WriteFailover>,
    /// It is used also while no mark for the next engine can be written (T9).
    #[serde(default)]
    pub unsafe_without_mark: bool,
    /// Its namespace must show this one.
    pub uuid: Option<Identifier>,
    /// Its namespace must show this one.
    pub nguid: Option<Identifier>,
    /// See [`Recovery::quiesce_ns`].
    #[serde(default, deserialize_with = "keys::time_or_none")]
    pub quiesce_time: Option<u64>,
    /// See [`Recovery::ctrl_loss_ns`].
    #[serde(default, deserialize_with = "keys::tries")]
    pub ctrl_loss_tmo: Option<u64>,
    /// See [`Recovery::fast_io_fail_ns`].
    #[serde(default, deserialize_with = "keys::time_or_off")]
    pub fast_io_fail_tmo: Option<u64>,
    /// See [`Recovery::flush_timeout_ns`].
    #[serde(default, deserialize_with = "keys::time_or_none")]
    pub flush_timeout: Option<u64>,
    /// See [`Recovery::shared_write_cache`].
    #[serde(default)]
    pub shared_write_cache: bool,
    /// See [`Recovery::reconnect_max_ns`].
    #[serde(default, deserialize_with = "keys::time")]
    pub reconnect_delay: Option<u64>,
    /// See [`Recovery::reconnect_min_ns`].
    #[serde(default, deserialize_with = "keys::time")]
    pub reconnect_delay_min: Option<u64>,
    /// See [`Recovery::retries_max`].
    #[serde(default, deserialize_with = "keys::retries")]
    pub retries: Option<u8>,
    /// See [`Recovery::attempts_ns`].
    #[serde(default, deserialize_with = "keys::time")]
    pub attempts_timeout: Option<u64>,
    /// See [`Limits::errors_permille`].
    #[serde(default, deserialize_with = "keys::share_or_off")]
    pub probation_errors: Option<u16>,
    /// See [`Limits::silence_ns`].
    #[serde(default, deserialize_with = "keys::some_time_or_off")]
    pub probation_silence: Option<u64>,
    /// See [`Limits::slow_ns`].
    #[serde(default, deserialize_with = "keys::some_time_or_off")]
    pub probation_slow: Option<u64>,
    /// See [`Limits::probe_ns`].
    #[serde(default, deserialize_with = "keys::time")]
    pub probe_interval: Option<u64>,
    /// See [`Limits::probe_max_ns`].
    #[serde(default, deserialize_with = "keys::time")]
    pub probe_interval_max: Option<u64>,
    /// See [`Limits::idle_ns`].
    #[serde(default, deserialize_with = "keys::some_time_or_off")]
    pub probe_idle: Option<u64>,
    /// Paths.
    #[serde(rename = "path", default)]
    pub paths: Vec<PathKeys>,
    /// Exports as they are written.
    #[serde(rename = "export", default)]
    pub export_keys: Vec<ExportKeys>,
    /// Those over NBD.
    #[serde(skip)]
    pub exports: Vec<Export>,
}

/// One export as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportKeys {
    /// Where NBD clients connect.
    #[serde(default, deserialize_with = "keys::nbd")]
    pub nbd: Option<NbdAddress>,
    /// Where NVMe/TCP hosts connect.
    #[serde(default, deserialize_with = "keys::nvme")]
    pub nvme: Option<SocketAddr>,
    /// Block device of this machine's kernel.
    #[serde(default, deserialize_with = "keys::ublk")]
    pub ublk: Option<UblkNumber>,
    /// Refuse changes.
    #[serde(default)]
    pub read_only: bool,
    /// Owner of the socket.
    pub owner: Option<Name>,
    /// Group of the socket.
    pub group: Option<Name>,
    /// Mode of the socket.
    pub mode: Option<Mode>,
    /// Of NVMe/TCP: the subsystem.
    pub nqn: Option<String>,
    /// The namespace there; 1 where it is left out, which it may be of a single one.
    #[serde(default, deserialize_with = "keys::nsid")]
    pub nsid: Option<u32>,
    /// Of NVMe/TCP: serial number.
    pub serial: Option<String>,
    /// Of the namespace.
    pub uuid: Option<Identifier>,
    /// Of the namespace.
    pub nguid: Option<Identifier>,
    /// Host NQNs that may connect; none: any.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Clients of NBD that may connect; none: any.
    #[serde(default)]
    pub allow: Vec<Rule>,
    /// Any client of other machines may connect.
    #[serde(default)]
    pub open: bool,
}

/// Number of a block device of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UblkNumber {
    /// The driver chooses it.
    Auto,
    /// That of `/dev/ublkbN`.
    Of(u32),
}

/// A volume as a block device of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeKeys {
    /// Number; `None`: the driver chooses it.
    pub number: Option<u32>,
    /// Refuse changes.
    pub read_only: bool,
}

impl std::fmt::Display for NodeKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.number {
            Some(number) => write!(f, "/dev/ublkb{number}"),
            None => f.write_str("a block device of ublk"),
        }
    }
}

/// One export over NBD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Where clients connect.
    pub nbd: NbdAddress,
    /// Refuse changes.
    pub read_only: bool,
    /// Owner of the socket.
    pub owner: Option<Name>,
    /// Group of the socket.
    pub group: Option<Name>,
    /// Mode of the socket.
    pub mode: Option<Mode>,
    /// Clients that may connect.
    pub admission: Admission,
}

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// Usage: the file can't be read; or what is wrong, with line and column and what could stand
    /// there.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = text::read(path).map_err(|error| Usage::error(format!("{error:#}")))?;
        Self::parse(&text).map_err(|error| Usage::error(format!("{}: {error}", path.display())))
    }

    /// Of a file's text.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut config: Self = text::toml(text).map_err(hints::add)?;
        config.program_files = keys::program_files(text);
        if config.cores == 0 {
            config.cores = default_cores(&config.cpus, config.spin);
        }
        let placed = |wrong| check::place(wrong, text);
        check::check(&config, text).map_err(placed)?;
        for volume in &mut config.volumes {
            volume.exports = volume
                .export_keys
                .iter()
                .filter_map(ExportKeys::nbd)
                .collect();
        }
        config.subsystems = subsystems::of(&config.volumes).map_err(placed)?;
        let legs = config.volumes.iter().flat_map(Volume::leg_volumes);
        let legs: Vec<Volume> = legs.collect();
        config.volumes.extend(legs);
        config.homes = subsystems::homes(&config);
        check::check_connections(&config).map_err(placed)?;
        Ok(config)
    }

    /// Keep-alive time-out, ms; 0: none.
    pub fn kato_ms(&self) -> u32 {
        let usual = KEEP_ALIVE_NS.min(self.io_timeout.0 / 2);
        (self.keep_alive_tmo.unwrap_or(usual) / 1_000_000) as u32
    }

    /// How long a connection of the engine rests until TCP asks its peer; `None`: it does not.
    pub fn tcp_keep_alive(&self) -> Option<std::time::Duration> {
        let ns = Some(self.tcp_keep_alive).filter(|&ns| ns > 0);
        ns.map(std::time::Duration::from_nanos)
    }

    /// The home of a volume, by number.
    pub fn core_of(&self, volume: u16) -> u16 {
        let home = self.homes.get(&volume).copied();
        home.unwrap_or(volume % self.cores.max(1))
    }

    /// The core with the most subsystems of NVMe/TCP exports, and how many these are.
    pub fn busiest_core(&self) -> (u16, usize) {
        let numbers = mirrors::numbers(self.volumes.iter());
        let core = |it: &Subsystem| {
            let first = it.namespaces.first()?;
            let at = self
                .volumes
                .iter()
                .position(|volume| volume.name == first.volume)?;
            Some(self.core_of(numbers[at]))
        };
        let mut counts = vec![0; usize::from(self.cores.max(1))];
        for core in self.subsystems.iter().filter_map(core) {
            counts[usize::from(core)] += 1;
        }
        let most = (0..)
            .zip(counts)
            .max_by_key(|(core, count)| (*count, Reverse(*core)));
        most.unwrap_or_default()
    }

    /// Places of each core for subsystems of NVMe/TCP exports.
    pub fn nvme_places(&self) -> usize {
        let most = runtime::limits::CONNECTIONS_MAX as usize;
        let of_each = nvme_exports::CONNECTIONS_MAX as usize;
        let now = self.busiest_core().1;
        let taken = usize::from(self.clients) + now * of_each + 2 * cores::paths_wanted(self);
        now + (most.saturating_sub(taken) / of_each).min(nvme_exports::MORE)
    }

    /// Paths of all volumes and legs.
    pub fn paths(&self) -> usize {
        self.volumes.iter().map(|volume| volume.paths.len()).sum()
    }

    /// The volume of that name.
    pub fn volume(&self, name: &str) -> Option<&Volume> {
        self.volumes.iter().find(|volume| volume.name == name)
    }

    /// The legs of a mirror.
    pub fn legs(&self, mirror: &str) -> impl Iterator<Item = &Volume> {
        let is_leg = move |it: &&Volume| it.leg_of.as_deref() == Some(mirror);
        self.volumes.iter().filter(is_leg)
    }

    /// Its paths; none, if there is no such volume.
    pub fn paths_of(&self, name: &str) -> &[PathKeys] {
        self.volume(name).map_or(&[], |volume| &volume.paths)
    }

    /// Access to the control socket.
    pub fn access(&self) -> Access {
        Access {
            owner: self.socket_owner.clone(),
            group: self.socket_group.clone(),
            mode: self.socket_mode,
        }
    }
}

impl ExportKeys {
    /// Its export over NBD, if it is one.
    fn nbd(&self) -> Option<Export> {
        Some(Export {
            nbd: self.nbd.clone()?,
            read_only: self.read_only,
            owner: self.owner.clone(),
            group: self.group.clone(),
            mode: self.mode,
            admission: Admission {
                allow: self.allow.clone(),
                open: self.open,
            },
        })
    }
}

impl Export {
    /// Whether it can be.
    ///
    /// # Errors
    /// The key that can't be, and why.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        check::check_export(self)
    }

    /// Access of clients.
    pub fn access(&self) -> Access {
        Access {
            owner: self.owner.clone(),
            group: self.group.clone(),
            mode: self.mode,
        }
    }
}

impl Volume {
    /// One of its paths to a controller that is among these; of a leg also one to a file.
    pub fn shared(&self, paths: &[PathKeys]) -> Option<&PathUri> {
        let there = |keys: &&PathKeys| {
            let counts = match keys.uri.kind() {
                UriKind::NvmeTcp(_) => true,
                UriKind::File(_) => self.leg_of.is_some(),
                _ => false,
            };
            counts && paths.iter().any(|it| it.uri == keys.uri)
        };
        Some(&self.paths.iter().find(there)?.uri)
    }

    /// Its block device of the kernel, if it is to have one.
    pub fn node(&self) -> Option<NodeKeys> {
        let mut all = self.export_keys.iter();
        all.find_map(|keys| {
            Some(NodeKeys {
                number: match keys.ublk? {
                    UblkNumber::Auto => None,
                    UblkNumber::Of(number) => Some(number),
                },
                read_only: keys.read_only,
            })
        })
    }

    /// Whether its times can be beside each other.
    ///
    /// # Errors
    /// Which can't be.
    pub fn check_times(&self) -> Result<(), String> {
        check::check_times(self).map_err(|(_, text)| text)
    }

    /// The knobs as they stand here.
    pub fn knobs(&self) -> Knobs {
        let usual = Knobs::default();
        Knobs {
            ewma_shift: self.ewma_shift.unwrap_or(usual.ewma_shift),
            weight_timeout_ns: self.weight_timeout.unwrap_or(usual.weight_timeout_ns),
            hedging: self.hedge.unwrap_or(usual.hedging),
        }
    }

    /// With these knobs.
    pub fn set_knobs(&mut self, knobs: Knobs) {
        self.ewma_shift = Some(knobs.ewma_shift);
        self.weight_timeout = Some(knobs.weight_timeout_ns);
        self.hedge = Some(knobs.hedging);
    }

    /// Limits that put a path on probation.
    fn health(&self) -> Limits {
        let usual = Limits::default();
        Limits {
            errors_permille: self.probation_errors.unwrap_or(usual.errors_permille),
            silence_ns: self.probation_silence.unwrap_or(usual.silence_ns),
            slow_ns: self.probation_slow.unwrap_or(usual.slow_ns),
            probe_ns: self.probe_interval.unwrap_or(usual.probe_ns),
            probe_max_ns: self.probe_interval_max.unwrap_or(usual.probe_max_ns),
            idle_ns: self.probe_idle.unwrap_or(usual.idle_ns),
        }
    }

    /// For how long a queue server that is lost may execute what it had, ns; 0: nobody waits.
    pub fn queue_quiesce_ns(&self) -> u64 {
        let recovery = self.recovery();
        match recovery.write_failover {
            WriteFailover::Immediate => 0,
            WriteFailover::Fenced => recovery.quiesce_ns.max(1),
        }
    }

    /// Rules for paths that fail.
    pub fn recovery(&self) -> Recovery {
        let usual = Recovery::default();
        let some = |chosen: Option<u64>, usual| chosen.unwrap_or(usual);
        Recovery {
            reconnect_min_ns: some(self.reconnect_delay_min, usual.reconnect_min_ns),
            reconnect_max_ns: some(self.reconnect_delay, usual.reconnect_max_ns),
            ctrl_loss_ns: some(self.ctrl_loss_tmo, usual.ctrl_loss_ns),
            fast_io_fail_ns: some(self.fast_io_fail_tmo, usual.fast_io_fail_ns),
            write_failover: self.write_failover.unwrap_or(usual.write_failover),
            quiesce_ns: some(self.quiesce_time, usual.quiesce_ns),
            shared_write_cache: self.shared_write_cache,
            flush_timeout_ns: some(self.flush_timeout, usual.flush_timeout_ns),
            health: self.health(),
            ana: self.ana,
            retries_max: self.retries.unwrap_or(usual.retries_max),
            attempts_ns: some(self.attempts_timeout, usual.attempts_ns),
            ..usual
        }
    }
}

#[cfg(test)]
mod documented;
#[cfg(test)]
pub mod tests;
