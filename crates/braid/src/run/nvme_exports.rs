//! Volumes as namespaces over NVMe/TCP: their subsystems listen before the cores begin, and take
//! hosts when the service does.
//!
//! # Contract
//! Subsystems are there from the start to the end of the engine. All connections of one are on the
//! core of its volumes. A reload changes the hosts that may connect; others that are connected are
//! disconnected.
use super::address::{Accepting, Bound};
use super::config::{Config, Subsystem};
use super::mirrors;
use super::service::{Service, State};
use anyhow::{Context, anyhow};
use cores::RunControl;
use engine::export::ExportControl;
use engine::limits::EXPORTS_MAX;
use engine::target::{Event, PortStats};
use engine::{Core, NvmeConfig};
use nvme::controller::{NamespaceConfig, PortConfig, SubsystemConfig};
use nvme::host::AnaState;
use std::net::{SocketAddr, TcpListener};
use target::{reason, serial_of};

/// Most connections of one subsystem: as of a target.
pub const CONNECTIONS_MAX: u32 = 128;
/// Entries of a queue.
const ENTRIES_MAX: u16 = 256;
/// I/O queues of a controller: two controllers with all of them find places twice. A closed
/// connection keeps its place while a device has commands of it.
const QUEUES_MAX: u16 = 31;
/// Data in a command capsule, bytes; log2 of the largest transfer's bytes.
const IN_CAPSULE_BYTES: u32 = 8 << 10;
const TRANSFER_SHIFT: u8 = 20;

/// A subsystem whose addresses are bound.
pub struct Listening {
    subsystem: Subsystem,
    /// Its core.
    pub core: u16,
    /// Volume or mirror of each namespace, by number.
    volumes: Vec<u16>,
    listeners: Vec<(SocketAddr, TcpListener)>,
    /// The engine's listener of its first address.
    first: u32,
}

/// A subsystem that takes hosts.
pub struct Serving {
    nqn: String,
    /// One of its volumes, for its core.
    volume: u16,
    /// The engine's listener of its first address.
    listener: u32,
}

/// A volume that is a namespace.
pub struct NvmeExported {
    /// Number of the volume.
    pub volume: u16,
    /// Paths of hosts, and the engine's listener of each.
    pub uris: Vec<(String, u32)>,
    /// Write protected.
    pub read_only: bool,
}

impl NvmeExported {
    /// Connections of hosts to its subsystem, by the ports of its core.
    pub fn clients(&self, ports: &[PortStats]) -> u32 {
        let at = |listener: u32| (listener - EXPORTS_MAX) as usize;
        let stats = self.uris.iter().filter_map(|(_, it)| ports.get(at(*it)));
        stats.map(|it| it.connections).sum()
    }
}

/// Listens for all subsystems of the configuration.
///
/// # Errors
/// An address that can't be had.
pub fn bind(config: &Config) -> anyhow::Result<Vec<Listening>> {
    let numbers = mirrors::numbers(config.volumes.iter());
    let number = |name: &str| {
        let mut all = config.volumes.iter().zip(&numbers);
        all.find(|(it, _)| it.name == name)
            .map(|(_, number)| *number)
    };
    let bind = |address: &SocketAddr| -> anyhow::Result<_> {
        let listener = TcpListener::bind(address)
            .with_context(|| format!("cannot listen on {address} for NVMe/TCP"))?;
        Ok((listener.local_addr()?, listener))
    };
    let all = config.subsystems.iter().map(|subsystem| {
        let volumes = subsystem.namespaces.iter();
        let volumes: Vec<u16> = volumes.filter_map(|it| number(&it.volume)).collect();
        let listeners = subsystem.addresses.iter().map(bind);
        Ok(Listening {
            core: volumes.first().map_or(0, |number| config.core_of(*number)),
            volumes,
            listeners: listeners.collect::<anyhow::Result<_>>()?,
            subsystem: subsystem.clone(),
            first: 0,
        })
    });
    all.collect()
}

impl Listening {
    /// Becomes a front end of its core, with buffers of this place in the arena.
    ///
    /// # Errors
    /// Names what of it can't be.
    pub fn join(&mut self, core: &mut Core, arena_at: u64, buffers: u64) -> anyhow::Result<()> {
        let config = NvmeConfig {
            subsystem: self.config(),
            volumes: self.volumes.clone(),
            arena_at,
            arena_bytes: buffers,
        };
        let nqn = &self.subsystem.nqn;
        let added = core.add_nvme_server(config);
        self.first = added.map_err(|error| anyhow!("{nqn}: {} {}", error.field, error.why))?;
        Ok(())
    }

    fn config(&self) -> SubsystemConfig {
        let of = &self.subsystem;
        let namespaces = of.namespaces.iter().map(|it| NamespaceConfig {
            nsid: it.nsid,
            // Its volume's, once this is ready.
            blocks: 1,
            block_shift: 12,
            uuid: it.uuid,
            nguid: it.nguid,
            ana_group: it.nsid,
            read_only: it.read_only,
            deallocate_zeroes: false,
        });
        let ports = (1..)
            .zip(&self.listeners)
            .map(|(id, (address, _))| PortConfig {
                id,
                traddr: address.ip().to_string(),
                trsvcid: address.port().to_string(),
                ipv6: address.is_ipv6(),
                ana: AnaState::Optimized,
            });
        SubsystemConfig {
            nqn: of.nqn.clone(),
            serial: of.serial.clone().unwrap_or_else(|| serial_of(&of.nqn)),
            model: "braid".into(),
            cntlid_min: 1,
            cntlid_max: 0xffef,
            namespaces: namespaces.collect(),
            ports: ports.collect(),
            hosts: of.hosts.clone(),
            entries_max: ENTRIES_MAX,
            io_queues_max: QUEUES_MAX,
            transfer_shift: TRANSFER_SHIFT,
            in_capsule_max: IN_CAPSULE_BYTES,
            maxh2cdata: 1 << TRANSFER_SHIFT,
            c2h_success: true,
            cqt_ms: 0,
            // What is below a volume may change, and with it whether writes are durable.
            volatile_write_cache: true,
            compare: false,
            lba_status: false,
            connections_max: CONNECTIONS_MAX,
        }
    }

    /// Namespaces as users see them.
    fn exported(&self) -> Vec<NvmeExported> {
        let nqn = &self.subsystem.nqn;
        let all = self.subsystem.namespaces.iter().zip(&self.volumes);
        let exported = all.map(|(it, volume)| {
            let uri = |(listener, (address, _)): (u32, &(SocketAddr, _))| {
                let uri = format!("nvme-tcp://{address}/{nqn}?nsid={}", it.nsid);
                (uri, listener)
            };
            NvmeExported {
                volume: *volume,
                uris: (self.first..).zip(&self.listeners).map(uri).collect(),
                read_only: it.read_only,
            }
        });
        exported.collect()
    }
}

/// A line about hosts of an export.
pub fn in_words(event: Event, count: u32) -> String {
    let more = match count {
        0 | 1 => String::new(),
        _ => format!(" ({} more since the last such line)", count - 1),
    };
    match event {
        Event::TurnedAway { count, .. } => format!(
            "NVMe/TCP exports: {count} connections turned away: all {CONNECTIONS_MAX} places of \
             the subsystem are taken"
        ),
        Event::Closed { why, .. } => {
            format!(
                "NVMe/TCP exports: a connection was closed: {}{more}",
                reason(why)
            )
        }
        Event::Connected { .. } => "NVMe/TCP exports: a host connected".into(),
    }
}

impl Service {
    /// Takes hosts of all subsystems.
    ///
    /// # Errors
    /// No descriptor or thread is left.
    pub fn accept_hosts(&self, all: Vec<Listening>) -> anyhow::Result<()> {
        let mut state = self.state();
        state.ensure_open()?;
        for it in all {
            state.namespaces.extend(it.exported());
            let Some(volume) = it.volumes.first() else {
                continue;
            };
            state.subsystems.push(Serving {
                nqn: it.subsystem.nqn.clone(),
                volume: *volume,
                listener: it.first,
            });
            let core = self.senders.of(*volume);
            for (number, (_, listener)) in (it.first..).zip(it.listeners) {
                let accepting = Accepting::start(Bound::Tcp(listener), number, core.clone())?;
                state.accepting_hosts.push(accepting);
            }
        }
        Ok(())
    }

    /// Hosts may connect as `new` has it; what was changed, in words.
    pub fn apply_hosts(&self, state: &State, new: &Config) -> Vec<String> {
        for (serving, it) in with_other_hosts(state, new) {
            let hosts = ExportControl::Hosts(serving.listener, it.hosts.clone());
            let core = self.senders.of(serving.volume);
            core.send(RunControl::Export(hosts));
        }
        hosts_in_words(state, new)
    }
}

/// Subsystems that `new` gives to other hosts.
fn with_other_hosts<'a>(
    state: &'a State,
    new: &'a Config,
) -> impl Iterator<Item = (&'a Serving, &'a Subsystem)> {
    let before = &state.configured.subsystems;
    let changed = new.subsystems.iter().filter(|it| !before.contains(it));
    changed.flat_map(|it| {
        let serving = state.subsystems.iter().filter(|of| of.nqn == it.nqn);
        serving.map(move |of| (of, it))
    })
}

/// What a reload changes of the hosts that may connect.
pub fn hosts_in_words(state: &State, new: &Config) -> Vec<String> {
    let changed = with_other_hosts(state, new);
    let words = changed.map(|(_, it)| format!("{}: hosts that may connect", it.nqn));
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that hangs keeps the places of closed connections that have commands there.
    #[test]
    fn connections_that_are_closed_leave_places_for_new_ones() -> anyhow::Result<()> {
        let text = "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n\
                    [[volume.export]]\nnvme = \"127.0.0.1:0\"\nnqn = \"nqn.2026-01.org.example:s\"";
        let all = bind(&Config::parse(text).map_err(anyhow::Error::msg)?)?;
        for it in all.iter().map(Listening::config) {
            let of_a_host = u32::from(it.io_queues_max) + 1;
            assert!(it.connections_max >= 2 * of_a_host, "{of_a_host}");
        }
        Ok(())
    }
}
