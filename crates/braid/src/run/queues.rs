//! Servers of hardware queues in the engine: they come, go and change with the configuration.
//!
//! # Contract
//! A server is on one core, which has its queues. A namespace has a number in the engine, which is
//! another's only when no queue is left that was opened with it ([`NamespaceNumbers`]): a command
//! for a volume that has left reaches none that comes after it.
//!
//! A reload makes the sockets of new servers first, which can fail. Where only namespaces change,
//! queues that are open keep theirs: commands for one that was removed, or is read-only now or no
//! longer, end with Invalid Namespace. A server that changes otherwise ends, and begins anew on its
//! socket when its queues have ended; a thread waits for that, and for the thread that began the
//! server before it. So does the end of the engine. A reload begins a server anew that has failed.
use super::config::{Config, QueueKeys, QueueNamespace};
use super::service::{Service, State};
use crate::cli::Usage;
use crate::control::socket::PrivateSocket;
use crate::log;
use crate::queue::allow;
use anyhow::{Context, anyhow};
use broker::{Broker, EngineNamespace, Grant, Identity, Rights, ServerCore, Shape, Store, Trust};
use cores::RunControl;
use cores::local::server_core;
use engine::host::VolumeInfo;
use service::queues::QUEUE;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use target::volume_identifiers;

/// A server of the configuration.
pub struct QueueServing {
    keys: QueueKeys,
    core: u16,
    /// Its namespaces, by their place in the configuration.
    namespaces: Vec<Served>,
    running: Arc<Running>,
    /// Begins it, once the one before it on this socket has ended.
    beginning: Option<JoinHandle<()>>,
}

#[derive(Clone)]
struct Served {
    volume: u16,
    it: Arc<EngineNamespace>,
}

/// Numbers of the namespaces of all servers. Servers, and queues until their last command has
/// ended, have the [`EngineNamespace`] of each that they may name to the engine.
#[derive(Default)]
pub struct NamespaceNumbers(Vec<Weak<EngineNamespace>>);

impl NamespaceNumbers {
    /// A namespace, with the lowest number that none has.
    fn assign(&mut self, name: String) -> Arc<EngineNamespace> {
        let free = self.0.iter().position(|it| it.strong_count() == 0);
        let number = free.unwrap_or(self.0.len());
        let it = Arc::new(EngineNamespace::new(number as u32, name));
        match self.0.get_mut(number) {
            Some(place) => *place = Arc::downgrade(&it),
            None => self.0.push(Arc::downgrade(&it)),
        }
        it
    }
}

/// The server itself; its thread may wait for the end of the one before it.
#[derive(Default)]
struct Running(Mutex<Stage>);

#[derive(Default)]
enum Stage {
    /// The one before it has queues yet, or it could not begin.
    #[default]
    Waits,
    Serves(Broker, PrivateSocket),
    Over,
}

impl Running {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the server, when its queues have.
    fn end(&self) {
        let stage = std::mem::replace(&mut *self.stage(), Stage::Over);
        if let Stage::Serves(broker, socket) = stage {
            if let Err(why) = broker.stop() {
                log::say(format!("queues: {why}"));
            }
            drop(socket);
        }
    }

    /// Begins it, unless it is over by now.
    fn begin(&self, parts: Parts, socket: PrivateSocket) -> anyhow::Result<()> {
        let mut stage = self.stage();
        if let Stage::Waits = *stage {
            let listener = socket.listener.try_clone();
            let listener = listener.context("cannot duplicate the socket")?;
            let config = parts.config(listener);
            let broker = Broker::start(config, vec![parts.core]).map_err(|why| anyhow!(why))?;
            *stage = Stage::Serves(broker, socket);
        }
        Ok(())
    }
}

/// A server without its socket.
struct Parts {
    keys: QueueKeys,
    rights: Rights,
    namespaces: Vec<broker::Namespace>,
    identity: Option<Identity>,
    core: ServerCore,
}

impl Parts {
    fn config(&self, listener: std::os::unix::net::UnixListener) -> broker::Config {
        let keys = &self.keys;
        broker::Config {
            listener,
            namespaces: self.namespaces.clone(),
            identity: self.identity.clone(),
            user_poll: keys.user_poll,
            user_irq: keys.user_irq,
            memory_max: keys.memory_max.0,
            patience_ns: broker::limits::PATIENCE_NS,
            spin_ns: keys.spin_us * 1000,
            trust: match keys.trusted {
                true => Trust::Trusted,
                false => Trust::Mediated,
            },
            rights: self.rights.clone(),
        }
    }
}

/// A socket of a server that does not run yet.
pub type BoundQueue = (PathBuf, PrivateSocket);

/// Rights of a server's clients.
///
/// # Errors
/// Usage: which of `allow` can't be.
fn rights(keys: &QueueKeys) -> anyhow::Result<Rights> {
    let wrong = |why: String| {
        let socket = keys.socket.display();
        Usage::error(format!("[[queue]] {socket}: allow: {why}"))
    };
    let all = keys.allow.iter().map(|text| allow::parse(text));
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(wrong)?;
    let rights = allow::rights(&all).map_err(wrong)?;
    let grants = rights.users.iter().map(|(_, grant)| grant);
    let named = grants.chain(&rights.others).flat_map(of_namespaces);
    for nsid in named {
        if !keys.namespaces.iter().any(|it| it.nsid == nsid) {
            return Err(wrong(format!("there is no namespace {nsid}")));
        }
    }
    Ok(rights)
}

fn of_namespaces(grant: &Grant) -> impl Iterator<Item = u32> {
    grant.namespaces.iter().flatten().map(|it| it.nsid)
}

/// Makes the sockets of the servers that `there` has not.
///
/// # Errors
/// Usage: rights of one that can't be. A socket that can't be made.
pub fn bind(new: &Config, there: &[PathBuf]) -> anyhow::Result<Vec<BoundQueue>> {
    for keys in &new.queues {
        rights(keys)?;
    }
    let new = new.queues.iter().filter(|it| !there.contains(&it.socket));
    let bound = new.map(|keys| {
        let socket = PrivateSocket::bind(&keys.socket, QUEUE.noun, &keys.access())?;
        Ok((keys.socket.clone(), socket))
    });
    bound.collect()
}

/// Size of a namespace; `None`: queues have no blocks of that size.
fn shape(info: &VolumeInfo) -> Option<Shape> {
    (9..=12).contains(&info.block_shift).then(|| Shape {
        block_shift: info.block_shift,
        blocks: info.bytes >> info.block_shift,
        read_only: info.read_only,
    })
}

/// A volume that is a namespace of queues.
pub struct QueueExported {
    /// Number of the volume.
    pub volume: u16,
    pub core: u16,
    /// Path of clients.
    pub uri: String,
    /// The engine's number of the namespace.
    pub number: u32,
    pub read_only: bool,
    /// The socket of its server, if that has failed.
    pub failed: Option<PathBuf>,
}

impl State {
    /// Sockets of the servers.
    pub fn queue_sockets(&self) -> Vec<PathBuf> {
        let all = self.queues.iter();
        all.map(|it| it.keys.socket.clone()).collect()
    }

    /// Sockets of the servers of a volume that are on other cores than this.
    pub fn queues_elsewhere(&self, volume: u16, core: u16) -> impl Iterator<Item = &PathBuf> {
        let all = self.queues.iter();
        let all = all.filter(move |it| it.core != core && it.has(volume));
        all.map(|it| &it.keys.socket)
    }

    /// Namespaces of queues as users see them.
    pub fn queue_namespaces(&self) -> impl Iterator<Item = QueueExported> {
        self.queues.iter().flat_map(|serving| {
            let failed = (!serving.is_there()).then(|| serving.keys.socket.clone());
            let all = serving.keys.namespaces.iter().zip(&serving.namespaces);
            all.map(move |(keys, of)| QueueExported {
                volume: of.volume,
                core: serving.core,
                uri: format!("queue:{}?nsid={}", serving.keys.socket.display(), keys.nsid),
                number: of.it.number(),
                read_only: keys.read_only,
                failed: failed.clone(),
            })
        })
    }

    /// A volume is ready, or has another size: see [`EngineNamespace::set_shape`].
    pub fn shape_queues(&self, volume: u16, info: &VolumeInfo) {
        let all = self.queues.iter().flat_map(|it| &it.namespaces);
        for it in all.filter(|it| it.volume == volume) {
            it.it.set_shape(shape(info));
        }
    }
}

impl Service {
    /// The core of a server's volumes. `serving`: the present one on its socket.
    ///
    /// # Errors
    /// Usage: they are on different ones.
    fn core_of_queues(
        &self,
        state: &State,
        new: &Config,
        of: &QueueKeys,
        serving: Option<&QueueServing>,
    ) -> anyhow::Result<u16> {
        let volumes = of.namespaces.iter().map(|it| it.volume.as_str());
        let stays = |number, _: &str| serving.filter(|it| it.has(number)).map(|it| it.core);
        let core = self.core_of_volumes(state, new, volumes, None, stays);
        core.map_err(|it| {
            Usage::error(format!(
                "[[queue]] {}: {} is on core {} and {} on core {}, where they stay while the \
                 engine runs: make it two servers, or restart the engine",
                of.socket.display(),
                it.volume,
                it.core,
                it.with,
                it.with_core
            ))
        })
    }

    /// Whether each server of `new` has a core; volumes that are to be opened get that.
    ///
    /// # Errors
    /// Usage: why not.
    pub fn place_queues(&self, state: &State, new: &mut Config) -> anyhow::Result<()> {
        let numbers = state.volumes.numbered(new);
        for at in 0..new.queues.len() {
            let keys = new.queues[at].clone();
            let mut serving = state.queues.iter();
            let serving = serving.find(|it| it.keys.socket == keys.socket);
            let core = self.core_of_queues(state, new, &keys, serving)?;
            for name in keys.namespaces.iter().map(|it| &it.volume) {
                let opens = numbers.iter().all(|(_, it)| it.name != *name);
                let mut volumes = new.volumes.iter_mut();
                let found = volumes.find(|it| it.name == *name && !it.is_mirror() && opens);
                if let Some(volume) = found {
                    volume.home.get_or_insert(core);
                }
            }
        }
        Ok(())
    }

    /// Makes the servers those of `new`, whose volumes are there. `bound`: sockets that none of the
    /// present ones has. Returns the changes, in words; an error for each that can't begin, which
    /// the next reload tries again.
    pub fn apply_queues(
        &self,
        state: &mut State,
        new: &Config,
        mut bound: Vec<BoundQueue>,
    ) -> Vec<Result<String, String>> {
        let mut said = Vec::new();
        let mut before: Vec<QueueServing> = std::mem::take(&mut state.queues);
        let mut after = Vec::new();
        for keys in &new.queues {
            let shown = keys.socket.display().to_string();
            let old = before.iter().position(|it| it.keys.socket == keys.socket);
            let old = old.map(|at| before.swap_remove(at));
            if let Some(mut old) = old {
                let is_there = old.is_there();
                if is_there && old.is(state, keys) {
                    after.push(old);
                    continue;
                }
                if is_there && self.change_namespaces(state, new, &mut old, keys) {
                    said.push(Ok(format!("changed namespaces of queues {shown}")));
                    after.push(old);
                    continue;
                }
                said.push(Ok(if is_there {
                    format!("changed queues {shown}")
                } else {
                    format!("began queues {shown} anew, which had failed")
                }));
                let (mut serving, parts) = self.queue_serving(state, new, keys, Some(&old));
                let running = Arc::clone(&serving.running);
                let access = keys.access();
                serving.beginning = self.end_queues(old, move || {
                    let socket = PrivateSocket::bind(&parts.keys.socket, QUEUE.noun, &access);
                    let begun = socket.and_then(|socket| running.begin(parts, socket));
                    if let Err(why) = begun {
                        log::say(format!("queues {shown}: {why:#}"));
                    }
                });
                after.push(serving);
                continue;
            }
            let (serving, parts) = self.queue_serving(state, new, keys, None);
            let Some(at) = bound.iter().position(|it| it.0 == keys.socket) else {
                unreachable!("{shown} was made before");
            };
            match serving.running.begin(parts, bound.swap_remove(at).1) {
                Ok(()) => said.push(Ok(format!("added queues {shown}"))),
                Err(why) => said.push(Err(format!("cannot serve queues on {shown}: {why:#}"))),
            }
            after.push(serving);
        }
        for old in before {
            said.push(Ok(format!("removed queues {}", old.keys.socket.display())));
            let ends = self.end_queues(old, || ());
            self.queue_ends().extend(ends);
        }
        state.queues = after;
        said
    }

    /// Its namespaces are removed at once. Its queues end on a thread, which then does the rest.
    fn end_queues(
        &self,
        of: QueueServing,
        rest: impl FnOnce() + Send + 'static,
    ) -> Option<JoinHandle<()>> {
        let core = self.senders.core(of.core);
        for it in &of.namespaces {
            core.send(RunControl::RemoveNamespace(it.it.number()));
        }
        of.end_on_thread(rest)
    }

    /// Threads that end servers.
    fn queue_ends(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        let mut all = self
            .queue_ends
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.retain(|it| !it.is_finished());
        all
    }

    /// Begins the end of all servers.
    pub fn close_queues(&self, state: &mut State) {
        for it in std::mem::take(&mut state.queues) {
            let ends = it.end_on_thread(|| ());
            self.queue_ends().extend(ends);
        }
    }

    /// Waits until all servers have ended, which they have when the cores have.
    pub fn await_queues(&self) {
        let all = std::mem::take(&mut *self.queue_ends());
        for it in all {
            let _ = it.join();
        }
    }

    /// Gives a server that runs, and stays on its core, other namespaces; whether nothing else
    /// changes.
    fn change_namespaces(
        &self,
        state: &mut State,
        new: &Config,
        old: &mut QueueServing,
        keys: &QueueKeys,
    ) -> bool {
        let others = QueueKeys {
            namespaces: old.keys.namespaces.clone(),
            ..keys.clone()
        };
        let stays = self.core_of_queues(state, new, keys, Some(old)).ok() == Some(old.core);
        let running = Arc::clone(&old.running);
        let stage = running.stage();
        let Stage::Serves(broker, _) = &*stage else {
            return false;
        };
        if others != old.keys || !stays {
            return false;
        }
        let before = std::mem::take(&mut old.namespaces);
        let before: Vec<_> = old.keys.namespaces.iter().cloned().zip(before).collect();
        old.namespaces = self.served(state, old.core, keys, &before);
        for (_, it) in &before {
            let number = it.it.number();
            if !old.namespaces.iter().any(|of| of.it.number() == number) {
                let core = self.senders.core(old.core);
                core.send(RunControl::RemoveNamespace(number));
            }
        }
        old.keys = keys.clone();
        broker.set_namespaces(by_nsid(keys, &old.namespaces), identity(keys));
        true
    }

    /// The namespaces of a server: those `before` that stay, and new ones.
    fn served(
        &self,
        state: &mut State,
        core: u16,
        keys: &QueueKeys,
        before: &[(QueueNamespace, Served)],
    ) -> Vec<Served> {
        let mut all = Vec::new();
        for it in &keys.namespaces {
            let Ok(volume) = state.volumes.number(&it.volume) else {
                unreachable!("{}: it was opened, or was there", it.volume);
            };
            let mut same = before.iter().filter(|(of, served)| {
                (of.nsid, of.read_only, served.volume) == (it.nsid, it.read_only, volume)
            });
            if let Some((_, stays)) = same.next() {
                all.push(stays.clone());
                continue;
            }
            let of = state.queue_numbers.assign(it.volume.clone());
            if let Some(info) = &state.volumes[volume].info {
                of.set_shape(shape(info));
            }
            let core = self.senders.core(core);
            core.send(RunControl::AddNamespace(of.number(), volume));
            all.push(Served { volume, it: of });
        }
        all
    }

    /// A server that is to begin.
    fn queue_serving(
        &self,
        state: &mut State,
        new: &Config,
        keys: &QueueKeys,
        before: Option<&QueueServing>,
    ) -> (QueueServing, Parts) {
        let Ok(core) = self.core_of_queues(state, new, keys, before) else {
            unreachable!("its volumes are on one core, as was checked");
        };
        let Ok(rights) = rights(keys) else {
            unreachable!("its rights were checked");
        };
        let namespaces = self.served(state, core, keys, &[]);
        let parts = Parts {
            keys: keys.clone(),
            rights,
            namespaces: by_nsid(keys, &namespaces),
            identity: identity(keys),
            core: server_core(self.senders.core(core)),
        };
        let serving = QueueServing {
            keys: keys.clone(),
            core,
            namespaces,
            running: Arc::default(),
            beginning: None,
        };
        (serving, parts)
    }
}

/// The namespaces of a server as its clients have them. Of an NSID between them there is none: its
/// size is never known.
fn by_nsid(keys: &QueueKeys, all: &[Served]) -> Vec<broker::Namespace> {
    let namespace = |it, read_only| broker::Namespace {
        store: Store::Engine(it),
        block_shift: 12,
        blocks: 0,
        read_only,
    };
    let none = Arc::new(EngineNamespace::new(u32::MAX, "none".into()));
    let nsids = 1..=keys.namespaces.iter().map(|it| it.nsid).max().unwrap_or(0);
    let of = |nsid| {
        let mut those = keys.namespaces.iter().zip(all);
        match those.find(|(it, _)| it.nsid == nsid) {
            Some((it, served)) => namespace(Arc::clone(&served.it), it.read_only),
            None => namespace(Arc::clone(&none), true),
        }
    };
    nsids.map(of).collect()
}

/// Identity that the namespaces show: as over NVMe/TCP by the same NQN.
fn identity(keys: &QueueKeys) -> Option<Identity> {
    let subsystem = keys.subsystem.clone()?;
    let nsids = 1..=keys.namespaces.iter().map(|it| it.nsid).max().unwrap_or(0);
    let ids = |nsid| {
        let of = keys.namespaces.iter().find(|it| it.nsid == nsid);
        volume_identifiers(&subsystem, of.map_or("", |it| it.volume.as_str()))
    };
    Some(Identity {
        namespaces: nsids.map(ids).collect(),
        controller: keys.controller,
        subsystem,
    })
}

impl QueueServing {
    fn has(&self, volume: u16) -> bool {
        self.namespaces.iter().any(|it| it.volume == volume)
    }

    /// Whether it serves, or is to when the one before it has ended.
    fn is_there(&self) -> bool {
        let begins = self.beginning.as_ref();
        // First: once the thread has ended, the stage is the one that it left.
        let begins = begins.is_some_and(|it| !it.is_finished());
        match &*self.running.stage() {
            Stage::Serves(broker, _) => !broker.has_ended(),
            Stage::Waits | Stage::Over => begins,
        }
    }

    /// Ends it on a thread, which then does the rest.
    fn end_on_thread(self, rest: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
        let end = move || {
            self.running.end();
            // The one before it may have the socket yet.
            if let Some(beginning) = self.beginning {
                let _ = beginning.join();
            }
            rest();
        };
        let builder = std::thread::Builder::new().name("queues-end".into());
        let spawned = builder.spawn(end);
        if let Err(error) = &spawned {
            log::say(format!("queues: cannot start a thread: {error}"));
        }
        spawned.ok()
    }

    /// Whether it is what these keys say; volumes may have other names.
    fn is(&self, state: &State, keys: &QueueKeys) -> bool {
        let same = |(of, it): (&Served, &QueueNamespace)| {
            state.volumes.number(&it.volume).ok() == Some(of.volume)
        };
        let mut named = keys.clone();
        for (it, old) in named.namespaces.iter_mut().zip(&self.keys.namespaces) {
            it.volume.clone_from(&old.volume);
        }
        named == self.keys && self.namespaces.iter().zip(&keys.namespaces).all(same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_free_when_no_queue_knows_it() {
        let mut numbers = NamespaceNumbers::default();
        let mut next = || numbers.assign("v0".into());
        let (first, second) = (next(), next());
        assert_eq!((first.number(), second.number()), (0, 1));
        let of_queue = Arc::clone(&first);
        drop(first);
        let third = next();
        assert_eq!(third.number(), 2, "a queue has it yet");
        drop(of_queue);
        let all = [next(), next()];
        assert_eq!(all.map(|it| it.number()), [0, 3]);
    }

    #[test]
    fn shape_is_that_of_the_volume() {
        let mut info = VolumeInfo {
            bytes: 1 << 20,
            block_shift: 9,
            transfer_max: 1 << 17,
            read_only: true,
        };
        let shown = shape(&info).map(|it| (it.block_shift, it.blocks, it.read_only));
        assert_eq!(shown, Some((9, 2048, true)));
        info.block_shift = 13;
        assert_eq!(shape(&info), None, "queues have no such blocks");
    }
}
