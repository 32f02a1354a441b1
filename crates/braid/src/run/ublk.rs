//! Nodes: volumes as block devices of this machine's kernel (`/dev/ublkbN`).
//!
//! * [`order`]: parameters of a node, and the next step for it; [`record`]: which data it has
//! * [`attached`]: nodes by verb
//! * [`attach`]: its queues come to the cores; [`takeover`]: after the death of an engine
//! * [`settings`]: by which the driver notices that; [`helper`]: children that do what may wait for
//!   I/O; [`holders`]: users of a node
//!
//! # Contract
//! A thread sees to it that each volume of the configuration that has a node and is ready serves
//! it: makes the device, or takes it over from an engine that has died. One queue of a node is on
//! each core of the volume; those of a device that is taken over are spread over them.
//!
//! A node outlives the engine. It ends with its export, and with an engine that stops, unless it is
//! used: a stop of its device would take the data of a mounted file system that is not written yet,
//! without an error. One that is used waits for the next engine.
//!
//! No thread of the engine does what may wait for I/O of a node, such as a stop of its device.
mod attach;
pub mod attached;
mod driver;
pub mod helper;
mod holders;
mod order;
mod record;
mod settings;
mod takeover;

use super::config::{Config, NodeKeys, Volume};
use super::registry::Registry;
use super::rename::Renames;
use super::service::Service;
use crate::log;
use crate::output;
use ::cores::{RunControl, UblkControl};
use anyhow::{Context, anyhow, bail};
use attach::Attaching;
use driver::{delete, devices, is_there, opened};
use engine::host::VolumeInfo;
use engine::mirror::MIRRORS_FROM;
use helper::Started;
use order::{Asked, Step};
pub use record::untold;
use record::{DataId, NodeRecord, NodeRecords, Recovery};
use settings::Settings;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use sys::Errno;
use sys::ublk::{Control, Info, Params, Phase, node_path};
use takeover::{TakenOver, take_over};

/// How soon a node that waits for something is looked at again.
const SOON: Duration = Duration::from_millis(100);
/// How often schedulers of nodes, which users may change, are looked at.
const LATER: Duration = Duration::from_secs(1);
/// How long the system may take to make a device file.
const STEP_WAIT: Duration = Duration::from_secs(10);
/// How long a child that stops a device is waited for.
const REMOVE_WAIT: Duration = Duration::from_secs(20);

/// A node that is served.
struct Node {
    id: u32,
    /// See [`NodeRecord::mark`].
    mark: u64,
    volume: u16,
    name: String,
    keys: NodeKeys,
    /// Of the volume when that was looked at last.
    bytes: u64,
    /// Core and number of each queue.
    queues: Vec<(u16, u32)>,
    settings: Settings,
    /// Its device is being stopped.
    removal: Option<Started>,
}

/// A node as users see it.
#[derive(Clone)]
pub struct ShownNode {
    pub volume: u16,
    pub uri: String,
    pub read_only: bool,
    /// Core and number of each queue.
    pub queues: Vec<(u16, u32)>,
    id: u32,
}

/// A volume that is ready and is to have a node.
struct Wanted {
    volume: u16,
    /// Why it can have none.
    untold: Option<String>,
    name: String,
    keys: NodeKeys,
    info: VolumeInfo,
    cores: Vec<u16>,
    /// Numbers that the configuration gives to others.
    reserved: BTreeSet<u32>,
    /// Its data; `None`: not known yet, or a mirror's, which its core knows.
    data: Option<DataId>,
}

/// A node that is to leave.
struct Leaving {
    id: u32,
    mark: u64,
    name: String,
}

struct Inner {
    control: Option<Control>,
    records: NodeRecords,
    live: Vec<Node>,
    /// Queues that there have been.
    queues_ever: u32,
    /// Devices that can't be taken over any more, by number and mark, and why.
    lost: BTreeMap<(u32, u64), String>,
    is_closed: bool,
}

#[derive(Default)]
struct Shown {
    nodes: Vec<ShownNode>,
    /// Trouble with nodes, by the names of their volumes.
    troubles: BTreeMap<String, String>,
}

/// See the module.
pub struct Nodes {
    /// State id of this engine.
    engine: String,
    /// Names the memory of this one.
    memory: u64,
    /// Locked before the state of the service, never while that is held.
    inner: Mutex<Inner>,
    /// Serves them.
    thread: OnceLock<Thread>,
    /// Since when the engine stops.
    stops: OnceLock<Instant>,
    shown: Mutex<Shown>,
    /// Nodes by verb, by the names of their volumes. Nothing is locked while this is.
    attached: Mutex<BTreeMap<String, NodeKeys>>,
}

/// Before threads start: sees whether a configuration can have nodes.
///
/// # Errors
/// There is no driver, or it is too old.
pub fn prepare(config: &Config) -> anyhow::Result<()> {
    // For all threads from now on, also without a node: one may be attached later, and the kernel's
    // NBD client on this machine waits in the same way. A core that serves a node says where it
    // can't be.
    let _ = sys::os::set_io_flusher();
    check_driver(config)
}

fn check_driver(config: &Config) -> anyhow::Result<()> {
    let mut control = None;
    for of in config.volumes.iter().filter(|it| it.node().is_some()) {
        opened(&mut control).map_err(|why| anyhow!("ublk of {}: {why}", of.name))?;
    }
    Ok(())
}

/// The same, and that no number is another server's.
fn check_numbers(config: &Config, records: &NodeRecords) -> anyhow::Result<()> {
    check_driver(config)?;
    let mut control = None;
    for of in &config.volumes {
        let Some(number) = of.node().and_then(|it| it.number) else {
            continue;
        };
        let control = opened(&mut control).map_err(|why| anyhow!("ublk of {}: {why}", of.name))?;
        if let Ok(info) = control.info(number)
            && records.find(info.id, info.server_flags).is_none()
        {
            let (name, pid) = (&of.name, info.pid);
            bail!("ublk of {name}: {} (process {pid})", taken(number));
        }
    }
    Ok(())
}

fn taken(number: u32) -> String {
    format!(
        "/dev/ublkb{number} is another server's, or its record was lost: take another number, or \
         \"auto\""
    )
}

/// Differences of the nodes of two configurations, in words.
pub fn changes(before: &Config, after: &Config) -> Vec<String> {
    let node = |config: &Config, name: &str| config.volume(name).and_then(|it| it.node());
    let mut words = Vec::new();
    for of in &before.volumes {
        if let Some(keys) = of.node()
            && node(after, &of.name) != Some(keys.clone())
        {
            words.push(format!("remove {keys} of {}", of.name));
        }
    }
    for of in &after.volumes {
        if let Some(keys) = of.node()
            && node(before, &of.name) != Some(keys.clone())
        {
            words.push(format!("add {keys} of {}", of.name));
        }
    }
    words
}

/// While it is there no node is brought up.
pub struct Held<'a> {
    nodes: &'a Nodes,
    inner: MutexGuard<'a, Inner>,
}

impl Held<'_> {
    /// Volumes have other names.
    pub fn rename(&mut self, names: &Renames) {
        let inner = &mut *self.inner;
        names.apply_to_keys(&mut self.nodes.attached());
        for it in &mut inner.live {
            names.apply(&mut it.name);
            let record = inner.records.find(it.id, it.mark).cloned();
            let kept = record.map(|mut record| {
                record.volume.clone_from(&it.name);
                inner.records.keep(record)
            });
            if let Some(Err(error)) = kept {
                log::say(format!("a record has the name of before yet: {error:#}"));
            }
        }
    }
}

impl Node {
    /// It keeps its size, whatever the volume's is.
    fn note_size(&mut self, info: &VolumeInfo) {
        if std::mem::replace(&mut self.bytes, info.bytes) != info.bytes {
            log::say(format!(
                "{}: {} keeps its size until it is removed: Linux 6.16 is the first to change it",
                self.name,
                node_path(self.id)
            ));
        }
    }
}

impl Nodes {
    /// None yet.
    pub fn new(registry: &Registry) -> Self {
        Self {
            engine: registry.id().to_owned(),
            memory: random(),
            inner: Mutex::new(Inner {
                control: None,
                records: NodeRecords::read(registry),
                live: Vec::new(),
                queues_ever: 0,
                lost: BTreeMap::new(),
                is_closed: false,
            }),
            thread: OnceLock::new(),
            stops: OnceLock::new(),
            shown: Mutex::default(),
            attached: Mutex::default(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attached(&self) -> MutexGuard<'_, BTreeMap<String, NodeKeys>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nodes of a volume that are served.
    pub fn of_volume(&self, volume: u16) -> Vec<ShownNode> {
        let shown = self.shown();
        let of = shown.nodes.iter().filter(|it| it.volume == volume);
        of.cloned().collect()
    }

    /// All nodes, with the mounts, swap and devices that use each.
    pub fn with_users(&self) -> Vec<(ShownNode, Vec<String>)> {
        let nodes = self.shown().nodes.clone();
        let users = |it: &ShownNode| holders::at_once(it.id);
        nodes
            .into_iter()
            .map(|it| (it.clone(), users(&it)))
            .collect()
    }

    /// Trouble with the node of a volume of this name.
    pub fn trouble(&self, name: &str) -> Option<String> {
        self.shown().troubles.get(name).cloned()
    }

    fn show(&self, inner: &Inner) {
        let shown = inner.live.iter().map(|it| ShownNode {
            volume: it.volume,
            uri: node_path(it.id),
            read_only: it.keys.read_only,
            queues: it.queues.clone(),
            id: it.id,
        });
        self.shown().nodes = shown.collect();
    }

    /// Shows trouble, and logs it where it is news.
    fn tell(&self, name: &str, trouble: Option<String>) {
        let troubles = &mut self.shown().troubles;
        if troubles.get(name) == trouble.as_ref() {
            return;
        }
        match trouble {
            Some(why) => {
                log::say(format!("{name}: {why}"));
                troubles.insert(name.to_owned(), why);
            }
            None => {
                troubles.remove(name);
            }
        }
    }

    /// A volume is ready, or the configuration is another one.
    pub fn look(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// A number that nothing else has, not 0, which other servers leave in the driver.
fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

impl Service {
    /// Starts the thread that serves nodes.
    ///
    /// # Errors
    /// No thread is left.
    pub fn serve_nodes(self: &Arc<Self>) -> anyhow::Result<()> {
        self.tell_orphans();
        let service = Arc::clone(self);
        let builder = thread::Builder::new().name("ublk".into());
        let spawned = builder.spawn(move || {
            while let Some(waits) = service.tend_nodes() {
                match waits {
                    Some(waits) => thread::park_timeout(waits),
                    None => thread::park(),
                }
            }
        });
        let spawned = spawned.context("cannot start a thread")?;
        let _ = self.nodes.thread.set(spawned.thread().clone());
        self.nodes.look();
        Ok(())
    }

    /// Logs nodes that wait for a volume which has none in this configuration.
    fn tell_orphans(&self) {
        let mut inner = self.nodes.inner();
        let of_engine = inner.records.all().iter();
        let of_engine = of_engine.filter(|it| it.engine == self.nodes.engine);
        let all: Vec<NodeRecord> = of_engine.cloned().collect();
        for it in all {
            if !self.has_volume(&it) && is_there(&mut inner, it.number, it.mark) {
                let path = node_path(it.number);
                log::say(format!(
                    "{path} waits for the data of volume {} ({}), which has no ublk export now: \
                     what uses it waits until it has one again; braid detach {path} removes it",
                    it.volume, it.data
                ));
            }
        }
    }

    /// Whether a volume of this configuration has the node, or will have it.
    fn has_volume(&self, of: &NodeRecord) -> bool {
        let volume = self.state().configured.volume(&of.volume).cloned();
        // A node by verb needs no export.
        volume.is_some_and(|it| of.attached.is_some() || it.node().is_some())
    }

    /// Brings up what can be; how long to wait then, without a bound where there is no node.
    /// `None`: the engine stops.
    fn tend_nodes(&self) -> Option<Option<Duration>> {
        let mut inner = self.nodes.inner();
        if inner.is_closed {
            return None;
        }
        self.end_removals(&mut inner);
        self.take_up_attached(&mut inner);
        let wanted = self.wanted_nodes();
        let mut waits = (!wanted.is_empty() || !inner.live.is_empty()).then_some(LATER);
        for it in &wanted {
            if let Some(node) = inner.live.iter_mut().find(|node| node.volume == it.volume) {
                node.note_size(&it.info);
                continue;
            }
            if self.nodes.stops.get().is_some() {
                break;
            }
            match self.bring_up(&mut inner, it) {
                Ok(Some(node)) => {
                    let line = format!("{}: {}\n", it.name, node_path(node.id));
                    let _ = output::print(&line);
                    inner.live.push(node);
                    self.nodes.show(&inner);
                }
                Ok(None) => waits = Some(SOON),
                Err(why) => self.nodes.tell(&it.name, Some(format!("no node: {why}"))),
            }
        }
        self.nodes.shown().troubles.retain(|name, _| {
            let is_live = || inner.live.iter().any(|it| it.name == *name);
            wanted.iter().any(|it| it.name == *name) || is_live()
        });
        for node in &mut inner.live {
            node.settings.tend();
            let trouble = node.settings.problem().map(|why| {
                format!(
                    "{}: {why}; after a kill of the engine its users may wait for half a minute \
                     more",
                    node_path(node.id)
                )
            });
            self.nodes.tell(&node.name, trouble);
            if node.settings.is_under_way() || node.removal.is_some() {
                waits = Some(SOON);
            }
        }
        Some(waits)
    }

    fn wanted_nodes(&self) -> Vec<Wanted> {
        let attached = self.nodes.attached().clone();
        self.ready_volumes(|of| of.node().or_else(|| attached.get(&of.name).cloned()))
    }

    /// Volumes that are ready and have a node by `keys`.
    fn ready_volumes(&self, keys: impl Fn(&Volume) -> Option<NodeKeys>) -> Vec<Wanted> {
        let state = self.state();
        let nodes = state.configured.volumes.iter().filter_map(|it| it.node());
        let reserved: BTreeSet<u32> = nodes.filter_map(|it| it.number).collect();
        let volumes = state.volumes.numbered(&state.configured).into_iter();
        let wanted = volumes.filter_map(|(volume, of)| {
            let it = state.volumes.get(volume)?;
            let info = it.info.filter(|_| it.stopped.is_none())?;
            let keys = keys(&of)?;
            let mut cores: Vec<u16> = self.senders.cores_of_clients(volume).into_iter().collect();
            if self.senders.seats(volume).keeps_home() {
                cores = vec![self.senders.core_of(volume) as u16];
            }
            Some(Wanted {
                volume,
                untold: untold(&of),
                name: of.name,
                keys,
                info,
                cores,
                reserved: reserved.clone(),
                data: DataId::of_paths(it, self.nodes.memory),
            })
        });
        wanted.collect()
    }

    /// The data of a volume; `None`: not known yet.
    fn data_of(&self, wanted: &Wanted) -> Option<DataId> {
        if wanted.volume < MIRRORS_FROM {
            return wanted.data.clone();
        }
        let report = self.mirror_report(wanted.volume).ok()?;
        Some(DataId::of_mirror(report.superblock?.mirror))
    }

    /// Makes a node, or takes it over; `None`: later.
    ///
    /// # Errors
    /// Why it can't be.
    fn bring_up(&self, inner: &mut Inner, wanted: &Wanted) -> Result<Option<Node>, String> {
        if let Some(why) = &wanted.untold {
            return Err(why.clone());
        }
        let Some(data) = self.data_of(wanted) else {
            return Ok(None);
        };
        let devices = devices(inner)?;
        inner.records.refresh();
        let params = order::params(&wanted.info, wanted.keys.read_only)?;
        let asked = Asked {
            volume: &wanted.name,
            number: wanted.keys.number,
            reserved: &wanted.reserved,
            data: &data,
            params: &params,
        };
        match order::step(&asked, &devices, inner.records.all()) {
            Step::Wait => Ok(None),
            Step::Refuse(why) => Err(why),
            Step::Add(number) => self.make_node(inner, wanted, number, data).map(Some),
            Step::Recover(number) | Step::Delete(number) => {
                let Some(it) = devices.iter().find(|it| it.info.id == number) else {
                    unreachable!("a step names a device that is there");
                };
                if it.info.phase() == Phase::Quiesced {
                    return self.take_over_node(inner, wanted, &it.info);
                }
                delete(inner, number, it.info.server_flags)?;
                Ok(None)
            }
        }
    }

    fn make_node(
        &self,
        inner: &mut Inner,
        wanted: &Wanted,
        number: u32,
        data: DataId,
    ) -> Result<Node, String> {
        let mark = random();
        let wish = order::new_info(number, wanted.cores.len() as u16, mark);
        let params = order::params(&wanted.info, wanted.keys.read_only)?;
        // Before the device: one without a record is nobody's.
        let kept = inner.records.keep(NodeRecord {
            number,
            mark,
            boot: inner.records.boot().to_owned(),
            engine: self.nodes.engine.clone(),
            volume: wanted.name.clone(),
            data,
            block_bytes: 1 << params.block_shift,
            bytes: params.sectors * 512,
            recovery: Recovery::None,
            attached: self.nodes.attached().get(&wanted.name).cloned(),
        });
        kept.map_err(|error| format!("its record can't be kept: {error:#}"))?;
        let added = opened(&mut inner.control)?.add(&wish);
        let info = match added {
            Ok(info) => info,
            Err(error) => {
                let _ = inner.records.remove(number, mark);
                return Err(match error {
                    // Not ours to remove.
                    Errno::EXIST => taken(number),
                    Errno::PERM | Errno::ACCESS => order::no_driver(error),
                    error => format!("the driver makes no device: {error}"),
                });
            }
        };
        let made = self.start_node(inner, wanted, &info, params);
        made.map_err(|why| {
            // It has no users yet.
            let deleted = delete(inner, number, mark);
            let more = deleted.err().map(|it| format!("; {it}"));
            format!("{}: {why}{}", node_path(number), more.unwrap_or_default())
        })
    }

    fn start_node(
        &self,
        inner: &mut Inner,
        wanted: &Wanted,
        info: &Info,
        mut params: Params,
    ) -> Result<Node, String> {
        order::check_flags(info.flags)?;
        params.request_sectors = params.request_sectors.min(info.request_bytes / 512);
        let control = opened(&mut inner.control)?;
        let set = control.set_params(info.id, &params);
        set.map_err(|error| format!("the driver refuses its limits: {error}"))?;
        let mut it = Attaching::new(self, inner, wanted, info)?;
        let begun = it.attach_all().and_then(|()| {
            let started = opened(&mut it.inner.control)?.start(info.id);
            started.map_err(|error| format!("cannot be started: {error}"))
        });
        let queues = it.queues;
        match begun {
            Ok(()) => Ok(node(wanted, info, queues)),
            Err(why) => {
                self.detach_queues(&queues);
                Err(why)
            }
        }
    }

    /// Takes a device over whose engine has died.
    fn take_over_node(
        &self,
        inner: &mut Inner,
        wanted: &Wanted,
        info: &Info,
    ) -> Result<Option<Node>, String> {
        let (path, key) = (node_path(info.id), (info.id, info.server_flags));
        if let Some(why) = inner.lost.get(&key) {
            return Err(why.clone());
        }
        let record = inner.records.find(key.0, key.1);
        let before = record.map_or(Recovery::None, |it| it.recovery);
        let mut it = Attaching::new(self, inner, wanted, info)?;
        // A descriptor for the device.
        it.spare = Some(fs::File::open("/dev/null").map_err(|error| format!("{path}: {error}"))?);
        let ended = take_over(&mut it, info.queues, before, info.pid);
        let queues = std::mem::take(&mut it.queues);
        match ended {
            TakenOver::Later => Ok(None),
            TakenOver::No(why) => Err(format!("{path}: {why}")),
            TakenOver::Lost(why) => {
                self.detach_queues(&queues);
                let why = format!(
                    "{path}: {why}: it is beyond repair, and what uses it waits until the machine \
                     starts anew"
                );
                inner.lost.insert(key, why.clone());
                Err(why)
            }
            TakenOver::Done => {
                log::say(format!("{}: took over {path}", wanted.name));
                note(inner, key, |it| {
                    it.recovery = Recovery::None;
                    it.engine.clone_from(&self.nodes.engine);
                    it.volume.clone_from(&wanted.name);
                })
                .unwrap_or_else(|why| log::say(format!("{path}: {why}")));
                Ok(Some(node(wanted, info, queues)))
            }
        }
    }

    /// The cores serve these queues no more.
    fn detach_queues(&self, queues: &[(u16, u32)]) {
        let waits = queues.iter().map(|(core, number)| {
            let (told, ended) = mpsc::sync_channel(1);
            let detach = UblkControl::Detach(*number, told);
            self.senders.core(*core).send(RunControl::Ublk(detach));
            ended
        });
        let waits: Vec<_> = waits.collect();
        for it in waits {
            // It says nothing: it only goes.
            let _ = it.recv_timeout(STEP_WAIT);
        }
    }

    /// Stops and removes a node.
    ///
    /// # Errors
    /// It is used, and nothing was done; or the driver refuses.
    fn take_down(
        &self,
        inner: &mut Inner,
        of: &Leaving,
        force: bool,
        wait: Duration,
    ) -> anyhow::Result<String> {
        let (id, mark, path) = (of.id, of.mark, node_path(of.id));
        let at = inner.live.iter().position(|it| it.id == id);
        let started = at.and_then(|at| inner.live[at].removal.take());
        let mut child = match started {
            Some(child) => child,
            None => Started::remove(id, mark, force).map_err(|why| anyhow!("{path}: {why}"))?,
        };
        match (child.wait(wait), at) {
            (Some(ended), _) => ended.map_err(|why| anyhow!("{why}"))?,
            (None, at) => {
                if let Some(at) = at {
                    inner.live[at].removal = Some(child);
                }
                bail!("{path} is being stopped, and its I/O does not end: try again later");
            }
        }
        self.forget_node(inner, id, mark);
        Ok(path)
    }

    /// The device of a node is gone.
    fn forget_node(&self, inner: &mut Inner, id: u32, mark: u64) {
        if let Some(at) = inner.live.iter().position(|it| it.id == id) {
            let node = inner.live.swap_remove(at);
            self.nodes.show(inner);
            self.nodes.tell(&node.name, None);
            self.detach_queues(&node.queues);
        }
        if let Err(why) = inner.records.remove(id, mark) {
            log::say(format!("{}: {why:#}", node_path(id)));
        }
    }

    /// Children that took long to stop a device, and have ended.
    fn end_removals(&self, inner: &mut Inner) {
        let mut gone = Vec::new();
        for it in &mut inner.live {
            let ended = it.removal.as_mut().and_then(Started::ended);
            match ended {
                None => continue,
                Some(Ok(())) => gone.push((it.id, it.mark)),
                Some(Err(why)) => log::say(format!("{}: {why}", it.name)),
            }
            it.removal = None;
        }
        for (id, mark) in gone {
            self.forget_node(inner, id, mark);
        }
    }

    /// Nodes of volumes that a configuration gives none, or another one; also those that wait for
    /// this engine.
    fn nodes_to_remove(&self, inner: &Inner, new: &Config) -> Vec<Leaving> {
        let attached = self.nodes.attached().clone();
        let leaves = |name: &str, is_it: &dyn Fn(&NodeKeys) -> bool| {
            let keys = |of: &Volume| of.node().or_else(|| attached.get(name).cloned());
            let keys = new.volume(name).and_then(keys);
            !keys.is_some_and(|keys| is_it(&keys))
        };
        let live = inner.live.iter();
        let live = live.filter(|it| leaves(&it.name, &|keys| *keys == it.keys));
        let live = live.map(|it| Leaving {
            id: it.id,
            mark: it.mark,
            name: it.name.clone(),
        });
        let state = self.state();
        let has_node = |name: &str| {
            let before = state.configured.volume(name);
            before.is_some_and(|it| it.node().is_some())
        };
        let waiting = inner.records.all().iter();
        let waiting = waiting.filter(|it| {
            it.engine == self.nodes.engine
                && !inner.live.iter().any(|node| node.id == it.number)
                && has_node(&it.volume)
                && leaves(&it.volume, &|keys| {
                    keys.number.is_none_or(|id| id == it.number)
                })
        });
        let waiting = waiting.map(|it| Leaving {
            id: it.number,
            mark: it.mark,
            name: it.volume.clone(),
        });
        live.chain(waiting).collect()
    }

    /// Whether the nodes that a configuration has no more are unused, and those that it adds can be
    /// had. The volumes of `new` have the names that they have now.
    ///
    /// # Errors
    /// The first that can't leave or come.
    pub fn spare_nodes(&self, new: &Config, force: bool) -> anyhow::Result<()> {
        let mut inner = self.nodes.inner();
        for it in self.nodes_to_remove(&inner, new) {
            if !force && is_there(&mut inner, it.id, it.mark) {
                let child = Started::unused(it.id).map_err(|why| anyhow!("{why}"));
                let ended = child?.wait(REMOVE_WAIT);
                let ended = ended.unwrap_or_else(|| Err("its users are not known yet".into()));
                ended.map_err(|why| anyhow!("volume {}: {why}", it.name))?;
            }
        }
        let state = self.state();
        let new_ones = new.volumes.iter().filter(|it| {
            let before = state.configured.volume(&it.name);
            it.node() != before.and_then(|it| it.node())
        });
        let mut some = new.clone();
        some.volumes = new_ones.cloned().collect();
        drop(state);
        check_numbers(&some, &inner.records)
    }

    /// Removes the nodes that a configuration has no more; in words. Until the result is dropped
    /// none is brought up.
    ///
    /// # Errors
    /// The first that can't be: it is used.
    pub fn remove_nodes(
        &self,
        new: &Config,
        force: bool,
    ) -> anyhow::Result<(Vec<String>, Held<'_>)> {
        let mut inner = self.nodes.inner();
        let mut words = Vec::new();
        for it in self.nodes_to_remove(&inner, new) {
            if is_there(&mut inner, it.id, it.mark) {
                let removed = self.take_down(&mut inner, &it, force, REMOVE_WAIT);
                let path = removed.with_context(|| format!("volume {}", it.name))?;
                words.push(format!("removed {path}"));
            }
        }
        let nodes = &self.nodes;
        Ok((words, Held { nodes, inner }))
    }

    /// Removes the node of a volume that is to leave. Until the result is dropped none is brought
    /// up.
    ///
    /// # Errors
    /// It is used.
    pub fn remove_node(&self, volume: u16, force: bool) -> anyhow::Result<Held<'_>> {
        let mut inner = self.nodes.inner();
        let node = inner.live.iter().find(|it| it.volume == volume);
        let node = node.map(|it| Leaving {
            id: it.id,
            mark: it.mark,
            name: it.name.clone(),
        });
        if let Some(it) = node {
            self.take_down(&mut inner, &it, force, REMOVE_WAIT)?;
        }
        let nodes = &self.nodes;
        Ok(Held { nodes, inner })
    }

    /// The engine stops: nodes that are not used are removed, others wait for the next engine. All
    /// are stopped at the same time.
    pub fn close_nodes(&self) {
        // A take-over that is repeated has the lock.
        let _ = self.nodes.stops.set(Instant::now());
        let mut inner = self.nodes.inner();
        inner.is_closed = true;
        let mut all = Vec::new();
        for it in &mut inner.live {
            all.push(Leaving {
                id: it.id,
                mark: it.mark,
                name: it.name.clone(),
            });
            // One that can't be started is started below, and its error said.
            it.removal = it
                .removal
                .take()
                .or_else(|| Started::remove(it.id, it.mark, false).ok());
        }
        let begun = Instant::now();
        for it in all {
            let wait = REMOVE_WAIT.saturating_sub(begun.elapsed());
            if let Err(why) = self.take_down(&mut inner, &it, false, wait) {
                log::say(format!(
                    "{}: {why:#}; it waits for the next engine",
                    it.name
                ));
            }
        }
        self.nodes.look();
    }
}

/// Changes the record of a device.
///
/// # Errors
/// It can't be written.
fn note(
    inner: &mut Inner,
    (id, mark): (u32, u64),
    change: impl FnOnce(&mut NodeRecord),
) -> Result<(), String> {
    let Some(mut record) = inner.records.find(id, mark).cloned() else {
        unreachable!("a device is taken over by its record");
    };
    change(&mut record);
    let kept = inner.records.keep(record);
    kept.map_err(|error| format!("its record can't be kept: {error:#}"))
}

fn node(wanted: &Wanted, info: &Info, queues: Vec<(u16, u32)>) -> Node {
    Node {
        id: info.id,
        mark: info.server_flags,
        volume: wanted.volume,
        name: wanted.name.clone(),
        keys: wanted.keys.clone(),
        bytes: wanted.info.bytes,
        queues,
        settings: Settings::new(info.id, info.depth),
        removal: None,
    }
}
