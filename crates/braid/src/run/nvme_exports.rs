//! Volumes as namespaces over NVMe/TCP: their subsystems come, go and change with the
//! configuration.
//!
//! # Contract
//! All connections of a subsystem are on the core of its volumes. Each core has places for
//! subsystems, with connections and memory, from the start on; one that ends keeps its place until
//! nothing of it is left.
//!
//! A reload binds new addresses first, which can fail. The rest can't, and is one moment for
//! hosts: an address that leaves its subsystem takes no host, then namespaces leave, then they
//! come, and the address takes hosts of its new subsystem. A namespace that leaves ends what came
//! before; a subsystem that ends does so within `drain_timeout`, and disconnects its hosts. Hosts
//! that may no longer connect are disconnected.
//!
//! While no volume of a subsystem was ever up, and one of them has `before_up = "refuse"`, its
//! connections are closed at once.
use super::address::{Accepting, Bound, Towards};
use super::admission::Guard;
use super::config::{Config, Namespace, Subsystem};
use super::plan::Change;
use super::ready;
use super::rename::Renames;
use super::service::{Service, State};
use crate::cli::Usage;
use crate::log;
use anyhow::Context;
use cores::RunControl;
use engine::export::ExportControl;
use engine::mirror::MIRRORS_FROM;
use engine::target::Event;
use engine::{NvmeConfig, NvmeControl, NvmePlace, listener_of};
use nvme::controller::{NamespaceConfig, PortConfig, SubsystemConfig};
use nvme::host::AnaState;
use nvme::limits::NAMESPACES_MAX;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use target::{reason, serial_of};

/// Most connections of one subsystem: as of a target.
pub const CONNECTIONS_MAX: u32 = 128;
/// Places on each core for subsystems that come later, where its connections allow it. Each costs
/// 128 connections' worth of tables, some 100 KiB; its buffers are address space until they are
/// used.
pub const MORE: usize = 8;
/// Entries of a queue.
const ENTRIES_MAX: u16 = 256;
/// I/O queues of a controller: two controllers with all of them find places twice. A closed
/// connection keeps its place while a device has commands of it.
const QUEUES_MAX: u16 = 31;
/// Largest identifier of a controller.
const CNTLID_MAX: u16 = 0xffef;
/// Data in a command capsule, bytes; log2 of the largest transfer's bytes.
const IN_CAPSULE_BYTES: u32 = 8 << 10;
const TRANSFER_SHIFT: u8 = 20;

/// A subsystem that takes hosts.
pub struct Serving {
    config: Subsystem,
    /// Its core, and its place there.
    core: u16,
    place: u16,
    /// By number; `None`: it is no more.
    ports: Vec<Option<HostPort>>,
}

/// An address that is bound.
pub struct HostPort {
    /// As configured: its port may be 0.
    address: SocketAddr,
    bound: SocketAddr,
    accepting: Accepting,
}

/// A volume that is a namespace.
pub struct NvmeExported {
    /// Number of the volume.
    pub volume: u16,
    /// Its subsystem's.
    pub core: u16,
    /// Paths of hosts, and the engine's listener of each.
    pub uris: Vec<(String, u32)>,
    /// Write protected.
    pub read_only: bool,
}

/// One step of what makes the subsystems those that are wanted.
#[derive(Clone, Debug, PartialEq)]
pub enum NvmeChange {
    /// A subsystem takes hosts at an address.
    Listen(SocketAddr, String),
    /// It does no longer.
    Unlisten(SocketAddr, String),
    /// The hosts of an address get another subsystem: from the first to the second one.
    Move(SocketAddr, String, String),
    /// Its volume becomes a namespace.
    Add(String, u32),
    /// Its volume is this namespace no more.
    Remove(String, u32),
    /// A namespace is write protected, or no longer.
    Protect(String, u32, bool),
    /// Other hosts may connect.
    Hosts(String),
}

impl fmt::Display for NvmeChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address, nqn) => write!(f, "add export nvme {address} of {nqn}"),
            Self::Unlisten(address, nqn) => write!(f, "remove export nvme {address} of {nqn}"),
            Self::Move(address, from, to) => {
                write!(f, "export nvme {address} goes from {from} to {to}")
            }
            Self::Add(nqn, nsid) => write!(f, "add namespace {nsid} of {nqn}"),
            Self::Remove(nqn, nsid) => write!(f, "remove namespace {nsid} of {nqn}"),
            Self::Protect(nqn, nsid, read_only) => {
                write!(f, "namespace {nsid} of {nqn}: read_only = {read_only}")
            }
            Self::Hosts(nqn) => write!(f, "{nqn}: hosts that may connect"),
        }
    }
}

/// Whether both are one subsystem for hosts.
fn is_same(a: &Subsystem, b: &Subsystem) -> bool {
    a.nqn == b.nqn && a.serial == b.serial
}

/// Returns the steps from one set of subsystems to another: those that can fail first, then what
/// leaves.
pub fn changes(old: &[Subsystem], new: &[Subsystem]) -> Vec<Change> {
    let mut all = Vec::new();
    let mut add = |of: &Subsystem, volume: Option<&str>, change| {
        let first = of.namespaces.first().map(|it| it.volume.as_str());
        let volume = volume.or(first).unwrap_or_default();
        all.push(Change::Nvme(volume.to_owned(), change));
    };
    for it in old {
        let stays = new.iter().find(|of| is_same(of, it));
        for address in &it.addresses {
            if !new.iter().any(|of| of.addresses.contains(address)) {
                add(it, None, NvmeChange::Unlisten(*address, it.nqn.clone()));
            }
        }
        for of in &it.namespaces {
            if !stays.is_some_and(|it| it.namespaces.iter().any(|it| it.is_same(of))) {
                let change = NvmeChange::Remove(it.nqn.clone(), of.nsid);
                add(it, Some(&of.volume), change);
            }
        }
    }
    for it in new {
        let there = old.iter().find(|of| is_same(of, it));
        for address in &it.addresses {
            match old.iter().find(|of| of.addresses.contains(address)) {
                Some(of) if is_same(of, it) => {}
                Some(of) => {
                    let change = NvmeChange::Move(*address, of.nqn.clone(), it.nqn.clone());
                    add(it, None, change);
                }
                None => add(it, None, NvmeChange::Listen(*address, it.nqn.clone())),
            }
        }
        if there.is_some_and(|of| of.hosts != it.hosts) {
            add(it, None, NvmeChange::Hosts(it.nqn.clone()));
        }
        for of in &it.namespaces {
            let before = there.and_then(|it| it.namespaces.iter().find(|it| it.is_same(of)));
            let (nqn, nsid) = (it.nqn.clone(), of.nsid);
            let change = match before {
                None => NvmeChange::Add(nqn, nsid),
                Some(it) if it.read_only == of.read_only => continue,
                Some(_) => NvmeChange::Protect(nqn, nsid, of.read_only),
            };
            add(it, Some(&of.volume), change);
        }
    }
    all.sort_by_key(|change| !change.can_fail());
    all
}

/// Share of a core for a subsystem whose buffers begin there.
pub fn place(config: &Config, arena_at: u64) -> NvmePlace {
    NvmePlace {
        connections: CONNECTIONS_MAX,
        arena_at,
        arena_bytes: config.buffers.0,
    }
}

/// Whether the engine can have the subsystems of a configuration.
///
/// # Errors
/// Usage: what of one can't be.
pub fn check(config: &Config) -> anyhow::Result<()> {
    for it in &config.subsystems {
        let ports = it.addresses.iter().copied();
        let server = NvmeConfig {
            volumes: it.namespaces.iter().map(|_| 0).collect(),
            subsystem: subsystem(it, (1..).zip(ports)),
        };
        let checked = server.check(place(config, 0));
        checked
            .map_err(|error| Usage::error(format!("{}: {} {}", it.nqn, error.field, error.why)))?;
    }
    Ok(())
}

/// Listens at all addresses of the configuration.
///
/// # Errors
/// An address that can't be had.
pub fn bind_all(config: &Config) -> anyhow::Result<Vec<(SocketAddr, TcpListener)>> {
    let all = config.subsystems.iter().flat_map(|it| &it.addresses);
    all.map(|address| Ok((*address, bind(address)?))).collect()
}

fn bind(address: &SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address);
    listener.with_context(|| format!("cannot listen on {address} for NVMe/TCP"))
}

/// `ports`: numbers and addresses.
fn subsystem(of: &Subsystem, ports: impl Iterator<Item = (u16, SocketAddr)>) -> SubsystemConfig {
    let namespaces = of.namespaces.iter().map(namespace);
    SubsystemConfig {
        nqn: of.nqn.clone(),
        serial: of.serial.clone().unwrap_or_else(|| serial_of(&of.nqn)),
        model: "braid".into(),
        cntlid_min: 1,
        cntlid_max: CNTLID_MAX,
        namespaces: namespaces.collect(),
        ports: ports.map(|(id, address)| port(id, address)).collect(),
        hosts: of.hosts.clone(),
        entries_max: ENTRIES_MAX,
        io_queues_max: QUEUES_MAX,
        transfer_shift: TRANSFER_SHIFT,
        in_capsule_max: IN_CAPSULE_BYTES,
        maxh2cdata: 1 << TRANSFER_SHIFT,
        c2h_success: true,
        cqt_ms: 0,
        // The storage below a volume may change, and with it whether writes are durable.
        volatile_write_cache: true,
        compare: false,
        lba_status: false,
        connections_max: CONNECTIONS_MAX,
    }
}

/// First and last controller identifier of one of `servers` servers: one that ends may have the nqn
/// of one that begins in another place. Each has as many as it may have controllers; of more than
/// 511 servers, some have the same ones.
fn cntlids(number: usize, servers: usize) -> (u16, u16) {
    let max = usize::from(CNTLID_MAX);
    let each = (max / servers.max(1)).max(CONNECTIONS_MAX as usize);
    let before = number % (max / each) * each;
    ((before + 1) as u16, (before + each) as u16)
}

/// Its size is its volume's, once this is ready.
fn namespace(it: &Namespace) -> NamespaceConfig {
    NamespaceConfig {
        nsid: it.nsid,
        blocks: 1,
        block_shift: 12,
        uuid: it.uuid,
        nguid: it.nguid,
        ana_group: it.nsid,
        read_only: it.read_only,
        deallocate_zeroes: false,
    }
}

/// `id`: as discovery shows it, from 1.
fn port(id: u16, address: SocketAddr) -> PortConfig {
    PortConfig {
        id,
        traddr: address.ip().to_string(),
        trsvcid: address.port().to_string(),
        ipv6: address.is_ipv6(),
        ana: AnaState::Optimized,
    }
}

impl HostPort {
    /// Of a listener that takes no host yet.
    ///
    /// # Errors
    /// No descriptor or thread is left.
    pub fn new(address: SocketAddr, listener: TcpListener) -> anyhow::Result<Self> {
        let bound = listener.local_addr()?;
        let accepting = {
            let to = Towards::Nobody(None);
            Accepting::start(Bound::Tcp(listener), to, Guard::open(), Arc::default())?
        };
        Ok(Self {
            address,
            bound,
            accepting,
        })
    }

    /// The same, at an address.
    ///
    /// # Errors
    /// It can't be had.
    pub fn bind(address: SocketAddr) -> anyhow::Result<Self> {
        Self::new(address, bind(&address)?)
    }

    /// As configured.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Serving {
    /// Whether a volume is a namespace of it.
    fn has(&self, volume: &str) -> bool {
        let mut all = self.config.namespaces.iter();
        all.any(|it| it.volume == volume)
    }

    /// Its ports, with their numbers.
    fn ports(&self) -> impl Iterator<Item = (u16, &HostPort)> {
        let all = (0..).zip(&self.ports);
        all.filter_map(|(number, it)| Some((number, it.as_ref()?)))
    }
}

impl State {
    /// Namespaces as users see them.
    pub fn namespaces(&self) -> Vec<NvmeExported> {
        let exported = self.subsystems.iter().flat_map(|serving| {
            serving.config.namespaces.iter().filter_map(|it| {
                let nqn = &serving.config.nqn;
                let uris = serving.ports().map(|(number, port)| {
                    let uri = format!("nvme-tcp://{}/{nqn}?nsid={}", port.bound, it.nsid);
                    (uri, listener_of(serving.place, number))
                });
                Some(NvmeExported {
                    volume: self.volumes.number(&it.volume).ok()?,
                    core: serving.core,
                    uris: uris.collect(),
                    read_only: it.read_only,
                })
            })
        });
        exported.collect()
    }

    /// Volumes of namespaces have other names.
    pub fn rename_namespaces(&mut self, names: &Renames) {
        let all = self.subsystems.iter_mut();
        all.for_each(|it| names.apply_to_namespaces(&mut it.config));
    }

    /// The subsystems that take hosts.
    pub fn served(&self) -> Vec<Subsystem> {
        let all = self.subsystems.iter();
        all.map(|it| it.config.clone()).collect()
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
    /// Whether each subsystem of `new` has a core and a place, and room for its namespaces there;
    /// its volumes that are to be opened get that core.
    ///
    /// # Errors
    /// Usage: why not.
    pub fn place_subsystems(&self, state: &State, new: &mut Config) -> anyhow::Result<()> {
        check(new)?;
        let numbers = state.volumes.numbered(new);
        let mut needed: Vec<usize> = vec![0; usize::from(new.cores.max(1))];
        for core in state.subsystems.iter().map(|it| it.core) {
            needed[usize::from(core)] += 1;
        }
        for (core, _) in state.ending_subsystems.keys() {
            needed[usize::from(*core)] += 1;
        }
        for at in 0..new.subsystems.len() {
            let it = new.subsystems[at].clone();
            let core = self.core_for(state, new, &it)?;
            match state.subsystems.iter().find(|of| is_same(&of.config, &it)) {
                None => needed[usize::from(core)] += 1,
                Some(serving) => serving.check_room(&it)?,
            }
            let names = it.namespaces.iter().map(|it| &it.volume);
            for name in names {
                let mut volumes = new.volumes.iter_mut();
                let opens = numbers.iter().all(|(_, it)| it.name != *name);
                if let Some(volume) =
                    volumes.find(|it| it.name == *name && !it.is_mirror() && opens)
                {
                    volume.home = Some(core);
                }
            }
        }
        let places = self.senders.nvme_places;
        if let Some(core) = needed.iter().position(|it| *it > places) {
            return Err(Usage::error(format!(
                "core {core} has room for {places} subsystems of NVMe/TCP exports, those that end \
                 included, and {} are too many: export several volumes by one nqn, or restart the \
                 engine",
                needed[core]
            )));
        }
        Ok(())
    }

    /// The core of a subsystem's volumes.
    fn core_for(&self, state: &State, new: &Config, of: &Subsystem) -> anyhow::Result<u16> {
        let serving = state.subsystems.iter().find(|it| is_same(&it.config, of));
        let volumes = of.namespaces.iter().map(|it| it.volume.as_str());
        let on = serving.map(|it| (it.core, of.nqn.clone()));
        let stays = |_, volume: &str| serving.filter(|it| it.has(volume)).map(|it| it.core);
        let core = self.core_of_volumes(state, new, volumes, on, stays);
        core.map_err(|it| {
            Usage::error(format!(
                "{} of {}: it is on core {} and {} on core {}, where they stay while the engine \
                 runs: give it an nqn and an address of its own, or restart the engine",
                it.volume, of.nqn, it.core, it.with, it.with_core
            ))
        })
    }

    /// Makes the subsystems those of `new`, whose volumes are there. `bound`: addresses that none
    /// of the present ones has.
    pub fn apply_subsystems(&self, state: &mut State, new: &Config, mut bound: Vec<HostPort>) {
        let drain_ns = state.configured.drain_timeout.0;
        let (mut stay, mut gone) = (Vec::new(), Vec::new());
        for mut serving in std::mem::take(&mut state.subsystems) {
            let wanted = new
                .subsystems
                .iter()
                .find(|it| is_same(it, &serving.config));
            let leaves = |port: &mut HostPort| {
                !wanted.is_some_and(|it| it.addresses.contains(&port.address))
            };
            for number in 0..serving.ports.len() {
                let Some(port) = serving.ports[number].take_if(leaves) else {
                    continue;
                };
                // It has no owner until it is another's.
                port.accepting.set_target(Towards::Nobody(None));
                if wanted.is_some() {
                    self.tell(&serving, NvmeControl::WithdrawPort(number as u16));
                }
                bound.push(port);
            }
            match wanted {
                Some(wanted) => stay.push((serving, wanted)),
                None => gone.push(serving),
            }
        }
        for it in gone {
            self.tell(&it, NvmeControl::End(drain_ns));
            let volumes = it.config.namespaces.iter();
            let volumes = volumes.filter_map(|it| state.volumes.opened_as(&it.volume));
            let place = (it.core, it.place);
            state.ending_subsystems.insert(place, volumes.collect());
        }
        for (serving, wanted) in &stay {
            for it in &serving.config.namespaces {
                if !wanted.namespaces.iter().any(|of| of.is_same(it)) {
                    self.tell(serving, NvmeControl::RemoveNamespace(it.nsid));
                }
            }
        }
        for (serving, wanted) in &mut stay {
            for it in &wanted.namespaces {
                let mut before = serving.config.namespaces.iter();
                let before = before.find(|of| of.is_same(it));
                if before.is_none() {
                    let volume = self.number_on(state, serving.core, &it.volume);
                    let config = Box::new(namespace(it));
                    self.tell(serving, NvmeControl::AddNamespace(config, volume));
                } else if before.is_some_and(|of| of.read_only != it.read_only) {
                    self.tell(serving, NvmeControl::Protect(it.nsid, it.read_only));
                }
            }
            for address in &wanted.addresses {
                if serving.ports().any(|(_, it)| it.address == *address) {
                    continue;
                }
                let it = take(&mut bound, address);
                let free = serving.ports.iter().position(Option::is_none);
                let number = free.unwrap_or(serving.ports.len());
                let config = port(number as u16 + 1, it.bound);
                self.tell(serving, NvmeControl::SetPort(number as u16, config));
                match free {
                    Some(at) => serving.ports[at] = Some(it),
                    None => serving.ports.push(Some(it)),
                }
            }
            if serving.config.hosts != wanted.hosts {
                self.tell(serving, NvmeControl::Hosts(wanted.hosts.clone()));
            }
            serving.config = (*wanted).clone();
        }
        state.subsystems = stay.into_iter().map(|it| it.0).collect();
        for it in &new.subsystems {
            if !state.subsystems.iter().any(|of| is_same(&of.config, it)) {
                let serving = self.serve(state, new, it, &mut bound);
                state.subsystems.push(serving);
            }
        }
        self.direct_hosts(state);
    }

    /// Begins a subsystem.
    fn serve(
        &self,
        state: &State,
        new: &Config,
        of: &Subsystem,
        bound: &mut Vec<HostPort>,
    ) -> Serving {
        let Ok(core) = self.core_for(state, new, of) else {
            unreachable!("{}: its volumes are on one core, as was checked", of.nqn);
        };
        let is_free = |place: &u16| {
            let mut taken = state.subsystems.iter().map(|it| (it.core, it.place));
            let key = (core, *place);
            !taken.any(|it| it == key) && !state.ending_subsystems.contains_key(&key)
        };
        let Some(place) = (0..).find(is_free) else {
            unreachable!("there are more numbers than places");
        };
        let ports = of.addresses.iter().map(|it| Some(take(bound, it)));
        let serving = Serving {
            config: of.clone(),
            core,
            place,
            ports: ports.collect(),
        };
        let ports = serving.ports().map(|(number, it)| (number + 1, it.bound));
        let volumes = of.namespaces.iter();
        let volumes = volumes.map(|it| self.number_on(state, core, &it.volume));
        let mut subsystem = subsystem(of, ports);
        let places = self.senders.nvme_places;
        let number = usize::from(core) * places + usize::from(place);
        let servers = usize::from(new.cores.max(1)) * places;
        (subsystem.cntlid_min, subsystem.cntlid_max) = cntlids(number, servers);
        let config = NvmeConfig {
            volumes: volumes.collect(),
            subsystem,
        };
        self.tell(&serving, NvmeControl::Serve(Box::new(config)));
        serving
    }

    /// Number of a volume that is there, on this core: a mirror on its home, any other on all.
    fn number_on(&self, state: &State, core: u16, volume: &str) -> u16 {
        match state.volumes.number(volume) {
            Ok(number)
                if number < MIRRORS_FROM || self.senders.core_of(number) == usize::from(core) =>
            {
                number
            }
            _ => unreachable!("{volume}: it was opened on core {core}, as was checked"),
        }
    }

    fn tell(&self, serving: &Serving, change: NvmeControl) {
        let change = ExportControl::Nvme(serving.place, change);
        let core = self.senders.core(serving.core);
        core.send(RunControl::Export(change));
    }

    /// Lets the addresses of subsystems take hosts, or refuse them before their volumes are up.
    pub fn direct_hosts(&self, state: &State) {
        for serving in &state.subsystems {
            let volumes = serving.config.namespaces.iter();
            let volumes = volumes.filter_map(|it| state.volumes.number(&it.volume).ok());
            let mut volumes = volumes.map(|number| &state.volumes[number]);
            let early = match volumes.clone().all(|it| it.info.is_none()) {
                true => volumes.find_map(ready::early),
                false => None,
            };
            for (number, port) in serving.ports() {
                let listener = listener_of(serving.place, number);
                port.accepting.set_target(match &early {
                    Some(why) => Towards::Nobody(Some(why.clone())),
                    None => {
                        let core = self.senders.core(serving.core).clone();
                        Towards::Listener(listener, core, self.senders.events())
                    }
                });
            }
        }
    }

    /// Says which clients of a volume with few I/O queues can't use it: their core may have none. A
    /// subsystem has its hosts on the home of its volumes, unless a reload gave it the volume.
    pub fn warn_of_hosts_elsewhere(&self, state: &State, volume: u16) {
        let home = self.senders.core_of(volume) as u16;
        let is_it = |name: &str| state.volumes.number(name).ok() == Some(volume);
        for it in state.subsystems.iter().filter(|it| it.core != home) {
            let mut names = it.config.namespaces.iter().map(|it| &it.volume);
            if let Some(name) = names.find(|name| is_it(name)) {
                log::say(format!(
                    "{name}: I/O of the hosts of {} fails: their core has no I/O queue while a \
                     controller grants so few; restart the engine, which puts them on another core",
                    it.config.nqn
                ));
            }
        }
        for socket in state.queues_elsewhere(volume, home) {
            log::say(format!(
                "{}: I/O of the queues of {} fails: their core has no I/O queue while a \
                 controller grants so few; restart the engine, which puts them on another core",
                state.volumes.name(volume),
                socket.display()
            ));
        }
        for node in self.nodes.of_volume(volume) {
            if let Some(line) = node.waits_elsewhere(home) {
                log::say(format!("{}: {line}", state.volumes.name(volume)));
            }
        }
    }

    /// Nothing is left of the subsystem in a place of a core.
    pub fn subsystem_ended(&self, core: u16, place: u16) {
        self.state().ending_subsystems.remove(&(core, place));
        self.news.notify_all();
    }
}

impl Serving {
    /// Whether it can become this.
    fn check_room(&self, new: &Subsystem) -> anyhow::Result<()> {
        let told = self.config.namespaces.iter().map(|it| it.nsid).max();
        let most = told.unwrap_or(0).max(NAMESPACES_MAX as u32);
        if let Some(it) = new.namespaces.iter().find(|it| it.nsid > most) {
            return Err(Usage::error(format!(
                "{}: nsid = {} of {} is above {most}, the largest that connected hosts were told: \
                 write a smaller one, or restart the engine",
                self.config.nqn, it.nsid, it.volume
            )));
        }
        Ok(())
    }
}

/// One of these addresses.
fn take(bound: &mut Vec<HostPort>, address: &SocketAddr) -> HostPort {
    let Some(at) = bound.iter().position(|it| it.address == *address) else {
        unreachable!("{address} was bound before");
    };
    bound.swap_remove(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Volumes v0, v1, … with such exports each: port, subsystem, and keys.
    fn parse(volumes: &[&[(u16, &str, &str)]]) -> Config {
        let mut text = String::new();
        for (number, exports) in volumes.iter().enumerate() {
            let size = number + 1;
            text += &format!("[[volume]]\nname = \"v{number}\"\n[[volume.path]]\n");
            text += &format!("uri = \"mem:{size}MiB\"\n");
            for (port, name, keys) in *exports {
                text += &format!("[[volume.export]]\nnvme = \"127.0.0.1:{port}\"\n");
                text += &format!("nqn = \"nqn.2026-01.org.example:{name}\"\n{keys}\n");
            }
        }
        Config::parse(&text).unwrap()
    }

    /// Each change as it is shown, and whether it can fail, which those that come first can.
    #[test]
    fn changes_lead_from_one_set_of_subsystems_to_another() {
        let (one, two, hosts) = (
            "nsid = 1",
            "nsid = 2",
            "hosts = [\"nqn.2026-01.org.example:h\"]",
        );
        let read_only = "nsid = 1\nread_only = true";
        let (uuid, serial) = (
            "uuid = \"11111111-1111-4111-8111-111111111111\"",
            "serial = \"S\"",
        );
        let start: &[&[(u16, &str, &str)]] = &[&[(1, "a", one)], &[]];
        type Case<'a> = (&'a [&'a [(u16, &'a str, &'a str)]], &'a [&'a str]);
        let cases: [Case<'_>; 9] = [
            (start, &[]),
            (
                &[&[], &[]],
                &[
                    "v0: remove export nvme :1 of a",
                    "v0: remove namespace 1 of a",
                ],
            ),
            (
                &[&[(1, "a", one), (2, "a", one)], &[(2, "a", two)]],
                &["v0: add export nvme :2 of a", "v1: add namespace 2 of a"],
            ),
            (
                &[&[(1, "a", read_only)], &[]],
                &["v0: namespace 1 of a: read_only = true"],
            ),
            (
                &[&[(1, "a", hosts)], &[]],
                &["v0: a: hosts that may connect"],
            ),
            (
                &[&[(3, "a", one)], &[]],
                &[
                    "v0: add export nvme :3 of a",
                    "v0: remove export nvme :1 of a",
                ],
            ),
            // The address and the namespace go to another volume.
            (
                &[&[], &[(1, "b", "")]],
                &[
                    "v0: remove namespace 1 of a",
                    "v1: export nvme :1 goes from a to b",
                    "v1: add namespace 1 of b",
                ],
            ),
            (
                &[&[(1, "a", uuid)], &[]],
                &["v0: remove namespace 1 of a", "v0: add namespace 1 of a"],
            ),
            (
                &[&[(1, "a", serial)], &[]],
                &[
                    "v0: remove namespace 1 of a",
                    "v0: export nvme :1 goes from a to a",
                    "v0: add namespace 1 of a",
                ],
            ),
        ];
        let before = parse(start).subsystems;
        for (wanted, expected) in cases {
            let all = changes(&before, &parse(wanted).subsystems);
            let words = all.iter().map(Change::to_string);
            let words = words.map(|it| it.replace("nqn.2026-01.org.example:", ""));
            let words: Vec<_> = words.map(|it| it.replace("127.0.0.1", "")).collect();
            assert_eq!(words, expected);
            assert!(all.is_sorted_by_key(|it| !it.can_fail()));
            for it in all.iter().filter(|it| it.can_fail()) {
                let back = it.undo().unwrap().to_string();
                assert_eq!(back, it.to_string().replace(": add", ": remove"));
            }
        }
    }

    #[test]
    fn servers_have_no_controller_identifier_in_common() {
        for servers in [1, 2, 9, 64, 511] {
            let mut last = 0;
            for (min, max) in (0..servers).map(|number| cntlids(number, servers)) {
                assert_eq!(min, last + 1);
                assert!(u32::from(max - min) + 1 >= CONNECTIONS_MAX);
                last = max;
            }
            assert!(last <= CNTLID_MAX);
        }
    }

    /// A device that hangs keeps the places of closed connections that have commands there.
    #[test]
    fn connections_that_are_closed_leave_places_for_new_ones() -> anyhow::Result<()> {
        let text = "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n\
                    [[volume.export]]\nnvme = \"127.0.0.1:0\"\nnqn = \"nqn.2026-01.org.example:s\"";
        let config = Config::parse(text).map_err(anyhow::Error::msg)?;
        check(&config)?;
        for of in &config.subsystems {
            let it = subsystem(of, std::iter::empty());
            let of_a_host = u32::from(it.io_queues_max) + 1;
            assert!(it.connections_max >= 2 * of_a_host, "{of_a_host}");
        }
        Ok(())
    }
}
