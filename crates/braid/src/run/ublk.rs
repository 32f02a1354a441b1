//! Nodes: volumes as block devices of this machine's kernel (`/dev/ublkbN`).
//!
//! * [`order`]: parameters of a node, and the next step for it
//! * [`holders`]: its users
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
//! All that can fail is done before a device is started or taken over, which can be done once.
mod holders;
mod order;

use super::config::{Config, NodeKeys};
use super::service::Service;
use crate::log;
use crate::output;
use ::cores::{NodeQueue, RunControl, UblkControl};
use anyhow::{Context, anyhow, bail};
use engine::host::VolumeInfo;
use order::{Step, requests_max};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread, sleep};
use std::time::{Duration, Instant};
use sys::Errno;
use sys::ublk::{Control, Info, Params, UblkQueue, UblkRing, node_path, open_device};

/// How soon a node that waits for something is looked at again.
const SOON: Duration = Duration::from_millis(100);
/// How often settings of nodes that users may change are looked at.
const LATER: Duration = Duration::from_secs(1);
/// How long a core may take to begin or to end a queue, and the system to make a device file.
const STEP_WAIT: Duration = Duration::from_secs(10);
/// A number is chosen from the first so many.
const NUMBERS_TRIED: u32 = 1024;
/// After so long the driver looks at a request of an engine that died with all tags in flight.
const IO_TIMEOUT_MS: u32 = 2_000;

/// A node that is served.
struct Node {
    id: u32,
    volume: u16,
    name: String,
    keys: NodeKeys,
    /// Of the volume when that was looked at last.
    bytes: u64,
    depth: u16,
    /// Core and number of each queue.
    queues: Vec<(u16, u32)>,
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

impl ShownNode {
    /// Mounts, swap and devices that use it.
    pub fn holders(&self) -> Vec<String> {
        holders::at_once(self.id)
    }
}

/// A volume that is ready and is to have a node.
struct Wanted {
    volume: u16,
    name: String,
    keys: NodeKeys,
    info: VolumeInfo,
    cores: Vec<u16>,
    /// Numbers that the configuration gives to others.
    reserved: BTreeSet<u32>,
}

#[derive(Default)]
struct Inner {
    control: Option<Control>,
    live: Vec<Node>,
    /// Queues that there have been.
    queues_ever: u32,
    /// The last line about volumes whose node is not there.
    told: BTreeMap<String, String>,
    /// Devices that were lost while they were taken over: they can't be again.
    beyond_repair: Vec<u32>,
    is_closed: bool,
}

/// See the module.
pub struct Nodes {
    /// Of this engine.
    engine: String,
    /// Locked before the state of the service, never while that is held.
    inner: Mutex<Inner>,
    /// Serves them.
    thread: OnceLock<Thread>,
    shown: Mutex<Vec<ShownNode>>,
}

/// Whether the nodes of a configuration can be had.
///
/// # Errors
/// There is no driver, it is too old, or a number is another's.
pub fn check(config: &Config, engine: &str) -> anyhow::Result<()> {
    let mut control = None;
    for of in &config.volumes {
        let Some(keys) = of.node() else { continue };
        let control = opened(&mut control).map_err(|why| anyhow!("ublk of {}: {why}", of.name))?;
        let there = keys.number.and_then(|id| control.info(id).ok());
        if let Some(info) = there
            && info.server_flags != order::tag(engine, &of.name)
        {
            let id = info.id;
            bail!(
                "ublk = {id} of {}: /dev/ublkb{id} is another's; leave the number to the driver \
                   by \"auto\", or take another",
                of.name
            );
        }
    }
    Ok(())
}

/// The control device of a driver that has what is needed.
fn opened(control: &mut Option<Control>) -> Result<&mut Control, String> {
    if control.is_none() {
        let mut new = Control::open().map_err(|error| match error.operation {
            "io_uring_setup" => error.to_string(),
            _ => order::no_driver(error.source),
        })?;
        let features = new.features();
        let features = features.map_err(|error| match error {
            Errno::PERM | Errno::ACCESS => order::no_driver(error),
            error => format!("the ublk driver does not say what it can do: {error}"),
        })?;
        order::check_flags(features)?;
        *control = Some(new);
    }
    match control {
        Some(control) => Ok(control),
        None => unreachable!("it was opened"),
    }
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
pub struct Held<'a>(#[expect(dead_code, reason = "a lock")] MutexGuard<'a, Inner>);

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
    /// Of an engine of this name, without nodes.
    pub fn new(engine: &str) -> Self {
        Self {
            engine: engine.to_owned(),
            inner: Mutex::default(),
            thread: OnceLock::new(),
            shown: Mutex::default(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nodes that are served.
    pub fn shown(&self) -> Vec<ShownNode> {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.clone()
    }

    fn show(&self, inner: &Inner) {
        let shown = inner.live.iter().map(|it| ShownNode {
            volume: it.volume,
            uri: node_path(it.id),
            read_only: it.keys.read_only,
            queues: it.queues.clone(),
            id: it.id,
        });
        let shown = shown.collect();
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }

    /// A volume is ready, or the configuration is another one.
    pub fn look(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

impl Service {
    /// Starts the thread that serves nodes.
    ///
    /// # Errors
    /// No thread is left.
    pub fn serve_nodes(self: &Arc<Self>) -> anyhow::Result<()> {
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

    /// Brings up what can be; how long to wait then, without a bound where there is no node.
    /// `None`: the engine stops.
    fn tend_nodes(&self) -> Option<Option<Duration>> {
        let mut inner = self.nodes.inner();
        if inner.is_closed {
            return None;
        }
        let wanted = self.wanted_nodes();
        let mut waits = (!wanted.is_empty()).then_some(LATER);
        for it in &wanted {
            if let Some(node) = inner.live.iter_mut().find(|node| node.volume == it.volume) {
                keep_settings(node);
                node.note_size(&it.info);
                continue;
            }
            match self.bring_up(&mut inner, it) {
                Ok(Some(node)) => {
                    let line = format!("{}: {}\n", it.name, node_path(node.id));
                    let _ = output::print(&line);
                    inner.told.remove(&it.name);
                    inner.live.push(node);
                    self.nodes.show(&inner);
                }
                Ok(None) => waits = Some(SOON),
                Err(why) => {
                    let before = inner.told.insert(it.name.clone(), why.clone());
                    if before.as_ref() != Some(&why) {
                        log::say(format!("{}: no node: {why}", it.name));
                    }
                }
            }
        }
        Some(waits)
    }

    fn wanted_nodes(&self) -> Vec<Wanted> {
        let state = self.state();
        let nodes = state.configured.volumes.iter().filter_map(|it| it.node());
        let reserved: BTreeSet<u32> = nodes.filter_map(|it| it.number).collect();
        let volumes = state.volumes.numbered(&state.configured).into_iter();
        let wanted = volumes.filter_map(|(volume, of)| {
            let it = state.volumes.get(volume)?;
            let info = it.info.filter(|_| it.stopped.is_none())?;
            let keys = of.node()?;
            let mut cores: Vec<u16> = self.senders.cores_of_clients(volume).into_iter().collect();
            if self.senders.seats(volume).keeps_home() {
                cores = vec![self.senders.core_of(volume) as u16];
            }
            Some(Wanted {
                volume,
                name: of.name,
                keys,
                info,
                cores,
                reserved: reserved.clone(),
            })
        });
        wanted.collect()
    }

    /// Makes a node, or takes it over; `None`: later.
    ///
    /// # Errors
    /// Why it can't be.
    fn bring_up(&self, inner: &mut Inner, wanted: &Wanted) -> Result<Option<Node>, String> {
        let tag = order::tag(&self.nodes.engine, &wanted.name);
        let control = opened(&mut inner.control)?;
        let there = find(control, wanted.keys.number, tag)?;
        let bytes = there.map_or(order::new_info(None, 1, tag).request_bytes, |it| {
            it.0.request_bytes
        });
        let params = order::params(&wanted.info, wanted.keys.read_only, bytes)?;
        let is_alive = there.is_some_and(|(info, _)| is_alive(info.pid));
        let step = order::step(there.as_ref().map(|(a, b)| (a, b)), tag, &params, is_alive);
        match (step, there) {
            (Step::Wait, _) => Ok(None),
            (Step::Refuse(why), _) => Err(why),
            (Step::Recover, Some((info, _))) => self.take_over(inner, wanted, &info),
            (Step::Replace, Some((info, _))) => {
                delete(control, info.id)?;
                Ok(None)
            }
            (Step::Add | Step::Recover | Step::Replace, _) => self.make_node(inner, wanted, tag),
        }
    }

    fn make_node(
        &self,
        inner: &mut Inner,
        wanted: &Wanted,
        tag: u64,
    ) -> Result<Option<Node>, String> {
        let control = opened(&mut inner.control)?;
        let free = |id: &u32| {
            !wanted.reserved.contains(id) && control.info(*id).err() == Some(Errno::NODEV)
        };
        // The driver's own choice may be a number of another volume that is not ready yet.
        let number = wanted.keys.number.or_else(|| (0..NUMBERS_TRIED).find(free));
        let wish = order::new_info(number, wanted.cores.len() as u16, tag);
        let info = control.add(&wish).map_err(|error| match error {
            // Not ours to remove.
            Errno::EXIST => format!("ublk = {}: the number is taken", wish.id),
            Errno::PERM | Errno::ACCESS => order::no_driver(error),
            error => format!("the driver makes no device: {error}"),
        })?;
        let id = info.id;
        let made = order::check_flags(info.flags).and_then(|()| {
            let params = order::params(&wanted.info, wanted.keys.read_only, info.request_bytes)?;
            let set = control.set_params(id, &params);
            set.map_err(|error| {
                format!("{}: the driver refuses its limits: {error}", node_path(id))
            })?;
            rings(&info)
        });
        let rings = match made {
            Ok(rings) => rings,
            Err(why) => {
                let _ = delete(control, id);
                return Err(why);
            }
        };
        let begun = self.attach(inner, wanted, &info, rings);
        let node = begun.and_then(|queues| {
            let started = opened(&mut inner.control)?.start(id);
            if let Err(error) = started {
                self.detach_queues(&queues);
                return Err(format!("{}: cannot be started: {error}", node_path(id)));
            }
            Ok(node(wanted, &info, queues))
        });
        if node.is_err() {
            let _ = delete(opened(&mut inner.control)?, id);
        }
        node.map(Some)
    }

    /// Takes a device over whose engine has died.
    fn take_over(
        &self,
        inner: &mut Inner,
        wanted: &Wanted,
        info: &Info,
    ) -> Result<Option<Node>, String> {
        let (id, path) = (info.id, node_path(info.id));
        if inner.beyond_repair.contains(&id) {
            return Err(beyond_repair(&path));
        }
        // All that can fail comes first, a descriptor for the device included.
        let rings = rings(info)?;
        let spare = fs::File::open("/dev/null").map_err(|error| format!("{path}: {error}"))?;
        match opened(&mut inner.control)?.start_recovery(id) {
            Ok(()) => {}
            Err(Errno::BUSY) => return Ok(None),
            Err(Errno::INVAL) => {
                inner.beyond_repair.push(id);
                return Err(beyond_repair(&path));
            }
            Err(error) => return Err(format!("{path}: cannot be taken over: {error}")),
        }
        drop(spare);
        let queues = self.attach(inner, wanted, info, rings);
        let queues = queues.and_then(|queues| {
            let ended = opened(&mut inner.control)?.end_recovery(id);
            ended.map_err(|error| format!("{path}: cannot be taken over: {error}"))?;
            Ok(queues)
        });
        let queues = queues.inspect_err(|_| inner.beyond_repair.push(id))?;
        log::say(format!("{}: took over {path}", wanted.name));
        Ok(Some(node(wanted, info, queues)))
    }

    /// Opens a device and gives its queues to the cores, which fetch.
    fn attach(
        &self,
        inner: &mut Inner,
        wanted: &Wanted,
        info: &Info,
        rings: Vec<UblkRing>,
    ) -> Result<Vec<(u16, u32)>, String> {
        let path = node_path(info.id);
        let file = Arc::new(open_soon(info.id)?);
        let mut queues = Vec::new();
        for (number, ring) in (0..).zip(rings) {
            let queue = UblkQueue::new(ring, &file, number);
            let begun = queue.map_err(|error| error.to_string()).and_then(|queue| {
                let core = wanted.cores[usize::from(number) % wanted.cores.len()];
                let of = NodeQueue {
                    number: inner.queues_ever,
                    volume: wanted.volume,
                    node: path.clone(),
                    queue,
                };
                inner.queues_ever += 1;
                queues.push((core, of.number));
                let (told, answer) = mpsc::sync_channel(1);
                let attach = UblkControl::Attach(Box::new(of), told);
                self.senders.core(core).send(RunControl::Ublk(attach));
                match answer.recv_timeout(STEP_WAIT) {
                    Ok(begun) => begun.map_err(|error| error.to_string()),
                    Err(_) => Err(format!("core {core} does not answer")),
                }
            });
            if let Err(why) = begun {
                self.detach_queues(&queues);
                return Err(format!("{path}: queue {number}: {why}"));
            }
        }
        Ok(queues)
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
    fn take_down(&self, inner: &mut Inner, volume: u16, force: bool) -> anyhow::Result<String> {
        let at = inner.live.iter().position(|it| it.volume == volume);
        let at = at.context("it has no node")?;
        let (id, path) = (inner.live[at].id, node_path(inner.live[at].id));
        if !force {
            ensure_unused(id)?;
        }
        let control = opened(&mut inner.control).map_err(|why| anyhow!("{why}"))?;
        let stopped = control.stop(id);
        stopped.with_context(|| format!("{path}: cannot be stopped"))?;
        let node = inner.live.swap_remove(at);
        self.nodes.show(inner);
        self.detach_queues(&node.queues);
        let control = opened(&mut inner.control).map_err(|why| anyhow!("{why}"))?;
        delete(control, id).map_err(|why| anyhow!("{why}"))?;
        Ok(path)
    }

    /// Nodes of volumes that a configuration gives none, or another one.
    fn nodes_to_remove(&self, inner: &Inner, new: &Config) -> Vec<(u16, u32, String)> {
        let leaves = |it: &&Node| {
            let keys = new.volume(&it.name).and_then(|it| it.node());
            keys.as_ref() != Some(&it.keys)
        };
        let all = inner.live.iter().filter(leaves);
        all.map(|it| (it.volume, it.id, it.name.clone())).collect()
    }

    /// Whether the nodes that a configuration has no more are unused, and those that it adds can be
    /// had. The volumes of `new` have the names that they have now.
    ///
    /// # Errors
    /// The first that can't leave or come.
    pub fn spare_nodes(&self, new: &Config, force: bool) -> anyhow::Result<()> {
        let inner = self.nodes.inner();
        for (_, id, name) in self.nodes_to_remove(&inner, new) {
            if !force {
                ensure_unused(id).with_context(|| format!("volume {name}"))?;
            }
        }
        drop(inner);
        let state = self.state();
        let new_ones = new.volumes.iter().filter(|it| {
            let before = state.configured.volume(&it.name);
            it.node() != before.and_then(|it| it.node())
        });
        let mut some = new.clone();
        some.volumes = new_ones.cloned().collect();
        drop(state);
        check(&some, &self.nodes.engine)
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
        for (volume, _, name) in self.nodes_to_remove(&inner, new) {
            let removed = self.take_down(&mut inner, volume, force);
            let path = removed.with_context(|| format!("volume {name}"))?;
            words.push(format!("removed {path}"));
        }
        Ok((words, Held(inner)))
    }

    /// Removes the node of a volume that is to leave. Until the result is dropped none is brought
    /// up.
    ///
    /// # Errors
    /// It is used.
    pub fn remove_node(&self, volume: u16, force: bool) -> anyhow::Result<Held<'_>> {
        let mut inner = self.nodes.inner();
        if inner.live.iter().any(|it| it.volume == volume) {
            self.take_down(&mut inner, volume, force)?;
        }
        Ok(Held(inner))
    }

    /// Whether a volume can have another name: its node knows it by the one that it has.
    ///
    /// # Errors
    /// It has a node.
    pub fn ensure_no_node(&self, name: &str) -> anyhow::Result<()> {
        let inner = self.nodes.inner();
        match inner.live.iter().find(|it| it.name == name) {
            None => Ok(()),
            Some(it) => bail!(
                "volume {name}: {} is known by this name: reload without its ublk export first",
                node_path(it.id)
            ),
        }
    }

    /// The engine stops: nodes that are not used are removed, others wait for the next engine.
    pub fn close_nodes(&self) {
        let mut inner = self.nodes.inner();
        inner.is_closed = true;
        let all: Vec<_> = inner
            .live
            .iter()
            .map(|it| (it.volume, it.name.clone()))
            .collect();
        for (volume, name) in all {
            if let Err(why) = self.take_down(&mut inner, volume, false) {
                log::say(format!("{name}: {why:#}; it waits for the next engine"));
            }
        }
        self.nodes.look();
    }
}

fn beyond_repair(path: &str) -> String {
    format!(
        "{path}: an engine died or failed while it took it over, and the driver allows that once: \
         what uses it waits until the machine is started anew"
    )
}

/// # Errors
/// Who uses it.
fn ensure_unused(id: u32) -> anyhow::Result<()> {
    let holders = holders::of(id);
    anyhow::ensure!(
        holders.is_empty(),
        "{} is used ({}), and what is not written yet would be lost: unmount it first",
        node_path(id),
        holders.join(", ")
    );
    Ok(())
}

fn node(wanted: &Wanted, info: &Info, queues: Vec<(u16, u32)>) -> Node {
    let node = Node {
        id: info.id,
        volume: wanted.volume,
        name: wanted.name.clone(),
        keys: wanted.keys.clone(),
        bytes: wanted.info.bytes,
        depth: info.depth,
        queues,
    };
    keep_settings(&node);
    node
}

/// A tag stays free, in which the driver sees the death of the engine, and it looks again soon: a
/// change of the scheduler takes both back.
fn keep_settings(node: &Node) {
    let set = |name: &str, limit: u32| {
        let file = format!("/sys/block/ublkb{}/queue/{name}", node.id);
        let now = fs::read_to_string(&file).ok();
        let now: Option<u32> = now.and_then(|it| it.trim().parse().ok());
        if now.is_some_and(|now| now > limit) {
            let _ = fs::write(&file, limit.to_string());
        }
    };
    set("nr_requests", requests_max(node.depth).into());
    set("io_timeout", IO_TIMEOUT_MS);
}

fn rings(info: &Info) -> Result<Vec<UblkRing>, String> {
    let rings = (0..info.queues).map(|_| UblkRing::new(info.depth));
    let rings: Result<_, _> = rings.collect();
    rings.map_err(|error| format!("{}: {error}", node_path(info.id)))
}

/// Whether a process runs, and is not this one.
fn is_alive(pid: i32) -> bool {
    pid > 0
        && pid as u32 != std::process::id()
        && fs::exists(format!("/proc/{pid}")).unwrap_or(true)
}

/// The device of this number; without one, that of this tag.
fn find(
    control: &mut Control,
    number: Option<u32>,
    tag: u64,
) -> Result<Option<(Info, Params)>, String> {
    let mut with_params = |id: u32| match control.info(id) {
        Ok(info) => {
            let params = control.params(id);
            let params = params.map_err(|error| format!("{}: {error}", node_path(id)))?;
            Ok(Some((info, params)))
        }
        Err(Errno::NODEV) => Ok(None),
        Err(error) => Err(format!("{}: {error}", node_path(id))),
    };
    if let Some(id) = number {
        return with_params(id);
    }
    let all = fs::read_dir("/sys/class/ublk-char").into_iter().flatten();
    let ids = all.flatten().filter_map(|it| {
        let name = it.file_name();
        name.to_str()?.strip_prefix("ublkc")?.parse().ok()
    });
    let ids: Vec<u32> = ids.collect();
    for id in ids {
        if let Ok(Some(it)) = with_params(id)
            && it.0.server_flags == tag
        {
            return Ok(Some(it));
        }
    }
    Ok(None)
}

fn delete(control: &mut Control, id: u32) -> Result<(), String> {
    let deleted = control.delete(id);
    deleted.map_err(|error| format!("{}: cannot be removed: {error}", node_path(id)))
}

/// Opens a device, whose file the system makes a moment after the device.
fn open_soon(id: u32) -> Result<OwnedFd, String> {
    let begun = Instant::now();
    loop {
        match open_device(id) {
            Ok(file) => return Ok(file),
            // The process before has it for a moment more.
            Err(Errno::NOENT | Errno::BUSY) if begun.elapsed() < STEP_WAIT => sleep(SOON),
            Err(error) => {
                let path = sys::ublk::device_path(id);
                return Err(format!("{path}: {error}"));
            }
        }
    }
}
