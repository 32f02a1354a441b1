//! Requests to a running engine: the methods behind its control socket.
//!
//! [`EngineCall`] has the list of methods.
//!
//! # Contract
//! One call at a time changes a volume ([`VerbQueues`](super::locks::VerbQueues)). A change has
//! been handed to all cores when it is answered; it is in force within a loop turn of each.
use super::address::{Accepting, Towards};
use super::call::{EngineCall, KnobParams, PolicyParams, ReloadParams};
use super::choices::Choices;
use super::config::{Config, Export, PathKeys, Volume};
use super::cores::Senders;
use super::desired::{Desired, DesiredVolume};
use super::discovery::Discovery;
use super::ends::Ends;
use super::entries::{AdminState, Origin, PathEntry};
use super::events::hook::Hook;
use super::events::watch::Watch;
use super::events::{Event, Events, Kind};
use super::explain::Asked;
use super::exports::BoundExport;
use super::health::maintenance::Maintenance;
use super::health::{Health, Named};
use super::known::Known;
use super::late::Absent;
use super::live;
use super::marked::Unanswered;
use super::marks::Marks;
use super::metrics::Metrics;
use super::mirrors::{self, Found};
use super::nvme_exports::{HostPort, Serving};
use super::pending::Changes;
use super::programs::Programs;
use super::queues::{BoundQueue, NamespaceNumbers, QueueServing};
use super::registry::Registry;
use super::reload;
use super::report::Report;
use super::ublk::Nodes;
use super::volumes::{Running, Volumes};
use crate::cli::Usage;
use crate::control::call::Nothing;
use crate::control::rpc::ControlError;
use crate::control::server::{Caller, Methods};
use crate::ends::Known as KnownEnd;
use crate::log;
use crate::output;
use crate::units::{format_bytes, format_ns};
use cores::{ClientChange, ClientOf, PathChange};
use engine::alarms::Subject;
use engine::export::ExportControl;
use engine::host::VolumeInfo;
use engine::mirror::MIRRORS_FROM;
use nvme::host::HostIdentity;
use policy::{Hedging, Knobs, PathIndex, Policy};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use tracing::Level;

/// See the module.
pub struct Service {
    /// When the engine started.
    pub started: Instant,
    pub identity: HostIdentity,
    pub senders: Senders,
    /// Of paths.
    pub changes: Changes,
    /// Changes of state, for whoever follows them.
    pub events: Events,
    /// Reads which volumes and legs have changed.
    pub watch: Watch,
    /// The program that is run for each event.
    pub hook: Hook,
    /// Alarms about paths that work.
    pub health: Arc<Health>,
    /// Block devices of the kernel.
    pub nodes: Nodes,
    /// Where the configuration comes from.
    pub file: PathBuf,
    /// As the command line has it.
    pub log: log::LogArgs,
    /// Where paths lead.
    pub ends: Ends,
    /// Paths that come and go by themselves.
    pub discovery: Discovery,
    /// Volumes that somebody asks about.
    pub asked: Asked,
    /// Policies that users have loaded.
    pub programs: Programs,
    /// For Prometheus.
    pub metrics: Metrics,
    choices: Mutex<Choices>,
    marks: Mutex<Marks>,
    known: Mutex<Known>,
    registry: Mutex<Registry>,
    /// Marks that were asked for and are not answered yet, by volume and path.
    pub unanswered: Mutex<BTreeMap<(u16, PathIndex), Unanswered>>,
    state: Mutex<State>,
    /// Threads that end servers of queues.
    pub queue_ends: Mutex<Vec<JoinHandle<()>>>,
    /// A volume or the clients of an export are gone.
    pub news: Condvar,
}

/// State kept in files.
pub struct Kept {
    pub choices: Choices,
    pub marks: Marks,
    pub known: Known,
    pub registry: Registry,
    pub maintenance: Maintenance,
}

/// State with which an engine starts.
pub struct Start {
    /// As the file says.
    pub configured: Config,
    /// Desired state of its volumes.
    pub desired: Desired,
    /// Where the paths lead.
    pub known: Vec<KnownEnd>,
    /// Volumes that begin without some of their paths.
    pub absent: Vec<Absent>,
    /// Storage of the volumes' files and devices, by place.
    pub storages: Vec<Found>,
    /// The file.
    pub file: PathBuf,
    /// As the command line has it.
    pub log: log::LogArgs,
}

/// State that may change.
pub struct State {
    /// As the file said when it was read last, with the legs that mirrors have by verb: also those
    /// that have no volume now ([`State::idle_legs`]).
    pub configured: Config,
    /// Which volumes there are.
    pub volumes: Volumes,
    /// By export number.
    pub exports: Vec<Option<Exported>>,
    /// Subsystems that take hosts.
    pub subsystems: Vec<Serving>,
    /// Cores and places of those that have ended for their hosts, with their volumes.
    pub ending_subsystems: BTreeMap<(u16, u16), Vec<u16>>,
    /// Servers of queues.
    pub queues: Vec<QueueServing>,
    /// Numbers of their namespaces.
    pub queue_numbers: NamespaceNumbers,
    /// Exports that listen no more and may have clients, by number.
    pub ending: BTreeMap<usize, EndingExport>,
    closed: bool,
}

/// One export that listens.
pub struct Exported {
    /// Volume index.
    pub volume: u16,
    /// As configured.
    pub export: Export,
    /// URI for clients.
    pub uri: String,
    /// Dropped, it listens no more.
    pub accepting: Accepting,
}

/// An export that listens no more.
pub struct EndingExport {
    /// Volume index.
    pub volume: u16,
    /// Cores that may have clients of it.
    pub cores: BTreeSet<u16>,
}

impl State {
    /// Of volumes that have no export yet.
    pub fn new(configured: Config, volumes: Volumes) -> Self {
        Self {
            configured,
            volumes,
            exports: Vec::new(),
            subsystems: Vec::new(),
            ending_subsystems: BTreeMap::new(),
            queues: Vec::new(),
            queue_numbers: NamespaceNumbers::default(),
            ending: BTreeMap::new(),
            closed: false,
        }
    }

    /// # Errors
    /// The engine is ending.
    pub fn ensure_open(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.closed, "the engine is ending");
        Ok(())
    }

    /// Legs of a mirror that are none of the engine's volumes: it was stopped, or they could not be
    /// opened when it was started again.
    pub fn idle_legs(&self, mirror: &str) -> impl Iterator<Item = &Volume> {
        let legs = self.configured.legs(mirror);
        legs.filter(|leg| !self.volumes.iter().any(|(_, it)| it.of.name == leg.name))
    }

    /// Whether a mirror was told to stop.
    pub fn is_stopped(&self, name: &str) -> bool {
        let number = self.volumes.number(name);
        number.is_ok_and(|it| self.volumes[it].stopped.is_some())
    }

    /// Where a path comes from, and who told of it.
    pub fn origin(&self, volume: u16, keys: &PathKeys) -> (&'static str, Option<&str>) {
        let it = &self.volumes[volume];
        let mut configured = self.configured.paths_of(&it.of.name).iter();
        match it.entries().of_uri(&keys.uri).map(PathEntry::origin) {
            _ if configured.any(|there| there.uri == keys.uri) => ("config", None),
            Some(Origin::Discovery(by)) => ("discovery", Some(by)),
            Some(Origin::User) | None => ("control", None),
        }
    }

    /// Whether the engine is ending.
    pub fn is_closed(&self) -> bool {
        self.closed
    }
}

/// Whether or not somebody reads it.
pub fn say_ready(volume: &str, info: &VolumeInfo) {
    let (bytes, block) = (format_bytes(info.bytes), 1u32 << info.block_shift);
    let _ = output::print(&format!(
        "{volume}: ready, {bytes} in blocks of {block} B\n"
    ));
}

impl Service {
    /// Of cores that run with this configuration.
    pub fn new(start: Start, identity: HostIdentity, kept: Kept, senders: Senders) -> Self {
        let Kept {
            choices,
            marks,
            known: namespaces,
            registry,
            maintenance,
        } = kept;
        let Start {
            configured,
            desired,
            known,
            absent,
            storages,
            file,
            log,
        } = start;
        let numbers = mirrors::numbers(desired.volumes.iter().map(|it| &it.of));
        let running = |(place, volume): (usize, DesiredVolume)| {
            let mut it = Running::new(volume);
            if let Some(lacks) = absent.iter().find(|it| it.number == numbers[place]) {
                it = it.without(lacks);
            }
            let own = storages.iter().filter(|it| it.0 == place);
            let own: Vec<_> = own.map(|(_, uri, it)| (uri.clone(), it.clone())).collect();
            it.note_storages(&own);
            it
        };
        let all = desired.volumes.into_iter().enumerate();
        let state = State::new(configured, all.map(running).collect());
        Self {
            started: Instant::now(),
            identity,
            senders,
            changes: Changes::default(),
            events: Events::default(),
            watch: Watch::default(),
            hook: Hook::default(),
            health: Arc::new(Health::new(maintenance)),
            nodes: Nodes::new(&registry),
            ends: Ends::new(known),
            asked: Asked::default(),
            programs: Programs::new(registry.directory()),
            metrics: Metrics::new(),
            discovery: Discovery::default(),
            file,
            log,
            choices: Mutex::new(choices),
            marks: Mutex::new(marks),
            known: Mutex::new(namespaces),
            registry: Mutex::new(registry),
            unanswered: Mutex::default(),
            queue_ends: Mutex::default(),
            state: Mutex::new(state),
            news: Condvar::new(),
        }
    }

    /// Listens for all exports of the configuration.
    ///
    /// # Errors
    /// The first that can't be.
    pub fn export_configured(&self) -> anyhow::Result<()> {
        let volumes: Vec<_> = {
            let state = self.state();
            let volumes = state.volumes.iter();
            volumes
                .map(|(at, it)| (at, it.of.exports.clone()))
                .collect()
        };
        for (volume, exports) in volumes {
            for export in exports {
                let bound = BoundExport::bind(&export)?;
                self.add_export(&mut self.state(), volume, bound)?;
            }
        }
        Ok(())
    }

    /// Takes hosts of all subsystems of the configuration at these addresses.
    ///
    /// # Errors
    /// No descriptor or thread is left; the first server of queues that can't begin.
    pub fn serve_configured(
        &self,
        bound: Vec<(SocketAddr, TcpListener)>,
        queues: Vec<BoundQueue>,
    ) -> anyhow::Result<()> {
        let ports = bound.into_iter().map(|it| HostPort::new(it.0, it.1));
        let ports = ports.collect::<anyhow::Result<Vec<_>>>()?;
        let mut state = self.state();
        state.ensure_open()?;
        let configured = state.configured.clone();
        self.apply_subsystems(&mut state, &configured, ports);
        let begun = self.apply_queues(&mut state, &configured, queues);
        begun
            .into_iter()
            .try_for_each(|it| it.map(drop).map_err(anyhow::Error::msg))
    }

    /// Takes clients of an export that listens.
    ///
    /// # Errors
    /// It can't be, or there are too many.
    pub fn add_export(
        &self,
        state: &mut State,
        volume: u16,
        listening: BoundExport,
    ) -> anyhow::Result<String> {
        state.ensure_open()?;
        state.ensure_exports(1)?;
        let Some(number) = state.free_export() else {
            unreachable!("room for exports was seen under this lock");
        };
        let BoundExport {
            export,
            bound,
            guard,
        } = listening;
        let uri = bound.uri(&export.nbd);
        self.offer_export(state, number, volume, &export);
        let target = Towards::Export(number as u32, self.senders.seats(volume));
        let accepting = Accepting::start(bound, target, guard, Arc::default())?;
        state.exports[number] = Some(Exported {
            volume,
            export,
            uri: uri.clone(),
            accepting,
        });
        Ok(uri)
    }

    /// Clients of an export get this volume.
    pub fn offer_export(&self, state: &State, number: usize, volume: u16, export: &Export) {
        let offer = state.offer(volume, export);
        let offer = || ExportControl::Offer(number as u32, offer.clone());
        self.senders.to_clients(volume, offer);
    }

    /// Listens no more; clients finish what is in flight and are disconnected.
    pub fn remove_export(&self, state: &mut State, number: usize) {
        drop(self.withdraw_export(state, number));
    }

    /// Clients of an export finish what is in flight and are disconnected; until the result is
    /// dropped, its address listens.
    pub fn withdraw_export(&self, state: &mut State, number: usize) -> Option<Exported> {
        let drain_ns = state.configured.drain_timeout.0;
        let exported = state.exports[number].take()?;
        let volume = exported.volume;
        let cores = self.senders.cores_of_clients(volume);
        state.ending.insert(number, EndingExport { volume, cores });
        let withdraw = || ExportControl::Withdraw(number as u32, drain_ns);
        self.senders.to_clients(volume, withdraw);
        Some(exported)
    }

    /// How long I/O has when the engine ends.
    pub fn drain_ns(&self) -> u64 {
        self.state().configured.drain_timeout.0
    }

    /// No export listens any more.
    pub fn close(&self) {
        self.metrics.close();
        // First: verbs that wait for the end of clients give up, and with them the lock of nodes.
        let mut state = self.state();
        state.closed = true;
        state.exports.clear();
        state.subsystems.clear();
        self.close_queues(&mut state);
        self.news.notify_all();
        self.discovery.close();
        drop(state);
        // While the cores serve what the stop of a device waits for.
        self.close_nodes();
        self.events
            .emit(Event::new(Kind::Engine, "stopping").from("running"));
        self.watch.end();
        self.events.close();
        self.hook.end();
    }

    /// One line for each export.
    pub fn exports_in_words(&self) -> Vec<String> {
        let state = self.state();
        let exports = state.exports.iter().flatten();
        let line = |export: &Exported| {
            let name = &state.volumes[export.volume].of.name;
            format!("{name}: {}\n", export.uri)
        };
        let namespaces = state.namespaces().into_iter().flat_map(|it| {
            let name = &state.volumes[it.volume].of.name;
            let uris = it.uris.into_iter();
            uris.map(move |(uri, _)| format!("{name}: {uri}\n"))
        });
        let queues = state.queue_namespaces().map(|it| {
            let name = &state.volumes[it.volume].of.name;
            format!("{name}: {}\n", it.uri)
        });
        let metrics = self.metrics_uri().map(|uri| format!("metrics: {uri}\n"));
        let all = exports.map(line).chain(namespaces).chain(queues);
        all.chain(metrics).collect()
    }

    /// A volume is ready on this core. Returns whether it is on all that may have clients of it, or
    /// of a leg on its home.
    pub fn ready_on(&self, core: u16, volume: u16) -> bool {
        let mut state = self.state();
        let Some(it) = state.volumes.meant(volume) else {
            return false; // it has left
        };
        if volume < MIRRORS_FROM && it.of.leg_of.is_none() {
            it.ready_on.insert(core);
            let all = self.senders.cores_of_clients(volume);
            return all.is_subset(&it.ready_on);
        }
        let home = it.of.home.map(usize::from);
        home.unwrap_or_else(|| self.senders.core_of(volume)) == usize::from(core)
    }

    /// Whether a volume is a leg of a mirror.
    pub fn is_leg(&self, volume: u16) -> bool {
        let mut state = self.state();
        let it = state.volumes.meant(volume);
        it.is_some_and(|it| it.of.leg_of.is_some())
    }

    /// A volume is ready, or has another size; whether one that is there wasn't ready before.
    pub fn ready(&self, volume: u16, info: VolumeInfo) -> bool {
        let mut state = self.state();
        let there = state.volumes.has(volume);
        let it = state.volumes.meant(volume);
        let is_new = it.is_some_and(|it| {
            let is_new = it.info.replace(info).is_none();
            // A file is read before any path shows its blocks (row B2).
            if is_new && let Err(why) = it.check_blocks(it.of.policy) {
                let (name, policy) = (&it.of.name, it.of.policy);
                log::say(format!(
                    "{name}: policy {policy}: {why}; turns end between blocks"
                ));
            }
            is_new
        });
        if is_new {
            self.direct_hosts(&state);
        }
        state.shape_queues(volume, &info);
        self.nodes.look();
        self.news.notify_all();
        is_new && there
    }

    /// A new volume is there, which is said to everybody; in words.
    pub fn tell_new(&self, state: &State, number: u16) -> String {
        let it = &state.volumes[number];
        it.info.iter().for_each(|info| say_ready(&it.of.name, info));
        format!("added volume {}", it.of.name)
    }

    /// A path has another state.
    pub fn path_changed(&self, change: PathChange) {
        let subject = Subject {
            volume: change.volume,
            path: change.path,
        };
        let names = {
            let state = self.state();
            let it = state.volumes.get(change.volume);
            it.map(|it| {
                let path = it.entries().get(change.path);
                let name = path.map_or_else(|| change.path.0.to_string(), |it| it.name().into());
                let uri = path.map(|it| it.config().uri.to_string());
                (it.of.name.clone(), name, uri)
            })
        };
        let Some((volume, path, uri)) = names else {
            return; // the volume has left meanwhile
        };
        if let Some(uri) = uri {
            let named = Named {
                volume: volume.clone(),
                name: path.clone(),
                uri,
            };
            let reason = change.reason.clone();
            self.health
                .note_state(subject, named, change.to.name(), reason);
        }
        let mut event = Event::new(Kind::Path, change.to.name())
            .volume(volume)
            .path(path);
        if let Some(from) = change.from {
            event = event.from(from.name());
        }
        if let Some(reason) = change.reason {
            event = event.reason(reason);
        }
        self.events.emit(event);
    }

    /// A client has come or gone.
    pub fn client_changed(&self, change: &ClientChange) {
        let (volume, export) = match &change.of {
            ClientOf::Nvme(export) => (None, export.to_string()),
            ClientOf::Nbd(volume, export) => {
                let state = self.state();
                let it = state.volumes.get(*volume).map(|it| it.of.name.clone());
                let export = state.exports.get(*export as usize);
                let export = export.and_then(|it| Some(it.as_ref()?.uri.clone()));
                (
                    it,
                    export.unwrap_or_else(|| "an export that has left".to_owned()),
                )
            }
        };
        let lead = volume
            .as_ref()
            .map_or(String::new(), |it| format!("{it}: "));
        let who = &change.name;
        let (line, event) = match change.lasted {
            None => {
                let line = format!("{lead}client {who} has connected to {export}");
                (line, Event::new(Kind::Client, "connected").reason(&export))
            }
            Some(lasted) => {
                let lasted = format!("after {}", format_ns(lasted.as_nanos() as f64));
                let line = format!("{lead}client {who} of {export} is gone, {lasted}");
                let event = Event::new(Kind::Client, "gone")
                    .from("connected")
                    .reason(lasted);
                (line, event)
            }
        };
        // The line only: events come in pairs, of which a limit could take one half.
        let object = volume.as_ref().unwrap_or(&export);
        log::seldom("clients", object, Level::INFO, line);
        let event = event.client(&**who);
        self.events.emit(match volume {
            Some(name) => event.volume(name),
            None => event,
        });
    }

    /// Name of a volume.
    pub fn name(&self, volume: u16) -> String {
        self.state().volumes.name(volume)
    }

    /// Records for the next engine. Not to be locked while the state is held.
    pub fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Choices by verb. Locked before the state, never while it is held: its file is
    /// written under this lock, and the thread that attends to the cores takes the state.
    pub fn choices(&self) -> MutexGuard<'_, Choices> {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which namespace each volume had. Not to be asked for while the state is held.
    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record of this engine. Not to be asked for while the state is held.
    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// State that may change.
    pub fn state(&self) -> MutexGuard<'_, State> {
        // Every change to it is one assignment, so a panic leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn policy(&self, params: PolicyParams) -> Result<Value, ControlError> {
        let name = &params.volume;
        let (policy, chosen, mut values) = {
            let state = self.state();
            let volume = state.volumes.number(name)?;
            let it = &state.volumes[volume];
            if it.of.is_mirror() {
                drop(state);
                return self.mirror_policy(volume, params.policy.as_deref());
            }
            let chosen = params.policy.map(|text| by_number(&state, volume, text));
            let last = it.entries().iter().map(|it| it.index().0).max();
            let count = last.map_or(0, |last| usize::from(last) + 1);
            let chosen = chosen.map(|text| {
                let policy = Policy::parse(&text);
                let fits = policy.and_then(|policy| {
                    policy.check(count)?;
                    it.check_blocks(policy).map(|()| policy)
                });
                fits.map_err(|error| ControlError::params(format!("\"{text}\": {error}")))
            });
            (it.of.policy, chosen.transpose()?, it.values)
        };
        values.note(policy);
        if let Some(policy) = chosen {
            self.choose(name, |it| {
                it.of.policy = policy;
                Ok(())
            })?;
            self.programs.wake();
        }
        let policy = chosen.unwrap_or(policy);
        values.note(policy);
        let all: Vec<_> = values.iter().map(|it| it.to_string()).collect();
        Ok(json!({"volume": name, "policy": policy.to_string(), "policies": all}))
    }

    fn knob(&self, params: KnobParams) -> Result<Value, ControlError> {
        let volume = &params.volume;
        if let (Some(name), Some(value)) = (params.name, params.value) {
            {
                let state = self.state();
                state.has_paths(state.volumes.number(volume)?)?;
            }
            let wrong = |error| ControlError::params(format!("{name} \"{value}\": {error}"));
            self.choose(volume, |it| {
                let of = &mut it.of;
                match name.as_str() {
                    "ewma_shift" => {
                        of.ewma_shift = Some(Knobs::parse_ewma_shift(&value).map_err(wrong)?);
                    }
                    "weight_timeout" => {
                        let parsed = Knobs::parse_weight_timeout(&value);
                        of.weight_timeout = Some(parsed.map_err(wrong)?);
                    }
                    "hedge" => {
                        let parsed = Hedging::parse(&value);
                        let fits = parsed.and_then(|it| it.check(of.policy).map(|()| it));
                        of.hedge = Some(fits.map_err(wrong)?);
                    }
                    _ => {
                        let key = live::find(&name).map_err(ControlError::params)?;
                        let wrong = |why| ControlError::params(live::wrong(&name, &value, &why));
                        it.of = key.set(&it.of, &value).map_err(wrong)?;
                    }
                }
                Ok(())
            })?;
        }
        let state = self.state();
        Ok(knobs_of(&state, state.volumes.number(volume)?))
    }

    fn reload(&self, params: &ReloadParams, by: &Caller<'_>) -> Result<Value, ControlError> {
        let wrong = |error: anyhow::Error| {
            let text = format!("nothing was changed: {error:#}");
            match error.is::<Usage>() {
                true => ControlError::params(text),
                false => ControlError::refused(text),
            }
        };
        if params.dry_run {
            let plan = reload::dry_run(self, params.force).map_err(wrong)?;
            return Ok(json!({"plan": plan}));
        }
        let changed = reload::reload(self, params.force, by).map_err(wrong)?;
        Ok(json!({"changed": changed}))
    }

    pub(super) fn report(&self) -> Result<Report<'_>, ControlError> {
        loop {
            let before = self.state().volumes.changes;
            let cores = self.senders.report();
            let cores = cores.map_err(|error| ControlError::refused(format!("{error:#}")))?;
            // Not while the state is held: some file systems tell of a mount only after I/O, which
            // may wait for what needs the state.
            let nodes = self.nodes.with_users();
            let state = self.state();
            // Else what a core says of a number may be of the volume that had it before.
            if state.volumes.changes == before {
                return Ok(Report::new(state, cores, self, nodes));
            }
        }
    }
}

impl Methods for Service {
    type Call = EngineCall;

    fn call(&self, by: &Caller<'_>, call: EngineCall) -> Result<Value, ControlError> {
        let change = call.is_change().then(|| (by.typed(&call), call.clone()));
        let answer = self.answer(by, call);
        if let Some((typed, mut call)) = change {
            self.tell_verb(by, &typed, call.volume_mut().cloned(), &answer);
        }
        answer
    }
}

impl Service {
    /// Writes down who has changed what.
    fn tell_verb(
        &self,
        by: &Caller<'_>,
        typed: &str,
        volume: Option<String>,
        answer: &Result<Value, ControlError>,
    ) {
        let who = by.who();
        let (to, reason) = match answer {
            Ok(_) => ("done", typed.to_owned()),
            Err(error) => ("refused", format!("{typed}: {error}")),
        };
        match answer {
            Ok(_) => log::say(format!("{who}: {typed}: done")),
            Err(error) => log::warn(format!("{who}: {typed}: refused: {error}")),
        }
        let event = Event::new(Kind::Verb, to).client(who).reason(reason);
        self.events.emit(match volume {
            Some(name) => event.volume(name),
            None => event,
        });
        self.watch.look();
    }

    fn answer(&self, by: &Caller<'_>, mut call: EngineCall) -> Result<Value, ControlError> {
        // A leg has two names, and is locked and kept under one.
        if let Some(name) = call.volume_mut() {
            let state = self.state();
            if let Ok(number) = state.volumes.number(name) {
                *name = state.volumes.name(number);
            }
        }
        match call {
            EngineCall::List(Nothing) => Ok(self.report()?.list()),
            EngineCall::ListSubsys(Nothing) => Ok(self.report()?.list_subsys()),
            EngineCall::Stat(Nothing) => {
                let mut stat = self.report()?.stat();
                stat["discovery"] = self.discovery.show().into();
                stat["cores"] = self.senders.waits();
                self.tell_awaited(&mut stat);
                Ok(stat)
            }
            EngineCall::Events(params) => self.events.answer(&params, || by.is_gone()),
            EngineCall::Check(params) => {
                let mut check = self.report()?.check(params.volume.as_deref())?;
                self.tell_awaited(&mut check);
                Ok(check)
            }
            EngineCall::MaintenanceOn(params) => self.maintenance_on(params),
            EngineCall::MaintenanceOff(params) => self.maintenance_off(&params),
            EngineCall::MaintenanceList(Nothing) => Ok(self.maintenance_list()),
            EngineCall::Accept(params) => self.accept(&params.volume),
            EngineCall::Explain(params) => self.explain(&params),
            EngineCall::Policy(params) => self.policy(params),
            EngineCall::PolicyLoad(params) => self.policy_load(&params),
            EngineCall::PolicyUnload(params) => self.policy_unload(&params),
            EngineCall::PolicyList(Nothing) => Ok(self.policy_list()),
            EngineCall::Knob(params) => self.knob(params),
            EngineCall::Connect(params) => self.connect(params, by),
            EngineCall::ConnectAll(params) => self.connect_all(&params, &|| by.is_gone()),
            EngineCall::Reload(params) => self.reload(&params, by),
            EngineCall::Diff(params) => self.diff(&params),
            EngineCall::Forget(params) => self.forget(&params, by),
            EngineCall::Pending(Nothing) => self.pending(),
            EngineCall::PendingCancel(params) => self.cancel_pending(params.id, by),
            EngineCall::ExportAdd(params) => self.export_add(&params, by),
            EngineCall::ExportRemove(params) => self.export_remove(&params, by),
            EngineCall::Attach(params) => self.attach(&params, by),
            EngineCall::Detach(params) => self.detach(&params, by),
            EngineCall::PathAdd(params) => self.path_add(&params, by),
            EngineCall::PathRemove(params) => self.path_remove(&params, by),
            EngineCall::PathFail(params) => self.path_admin(&params, AdminState::Failed, by),
            EngineCall::PathRestore(params) => self.path_admin(&params, AdminState::Enabled, by),
            EngineCall::PathDrain(params) => self.path_admin(&params, AdminState::Drained, by),
            call => match call.of_mirror() {
                Some(params) => self.order_mirror(&call, params, by),
                None => unreachable!("{call:?}: all others are of mirrors"),
            },
        }
    }
}

/// A policy that names a path by its number, also where the user names it.
fn by_number(state: &State, volume: u16, policy: String) -> String {
    let name = policy.strip_prefix("devid:");
    let path = name.filter(|name| name.parse::<u8>().is_err());
    let path = path.and_then(|name| state.volumes[volume].entries().called(name));
    path.map_or(policy.clone(), |it| format!("devid:{}", it.index().0 + 1))
}

/// All that `knob` can set of a volume.
fn knobs_of(state: &State, volume: u16) -> Value {
    let it = &state.volumes[volume];
    let mut all = live::json(&it.of.recovery());
    let mut knobs = it.of.knobs();
    if it.of.is_mirror() {
        // Between the paths of a leg, that leg's; between legs there is none.
        knobs.hedging = Hedging::Off;
    }
    for (key, value) in [
        ("volume", it.of.name.clone().into()),
        ("ewma_shift", knobs.ewma_shift.into()),
        ("weight_timeout_ns", knobs.weight_timeout_ns.into()),
        ("hedge", knobs.hedging.to_string().into()),
        ("hedging", knobs.hedging.works(it.of.policy).into()),
    ] {
        all.insert(key.to_owned(), value);
    }
    all.into()
}
