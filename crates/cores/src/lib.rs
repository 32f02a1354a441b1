//! The machine of one core of `braid run`: the engine with its exports, and what the control thread
//! asks of it.
//!
//! # Contract
//! Messages of one core's engine for another's go straight into that core's mailbox, in order, and
//! without waiting ([`Outbox`]): core 0 tells the others what it learnt of the paths, the others
//! tell core 0. Those for a core that has ended are dropped; a core that ends sends the rest first.
//! A question is answered between two
//! turns; its asker may have gone away meanwhile. [`spawn`] compiles the reactor for this machine
//! here, so that an I/O never runs code of the program's own crate, which release builds don't
//! optimize.
#![forbid(unsafe_code)]

mod lateness;
pub mod local;
pub mod notes;
mod ublk;

use broker::{CoreQueues, ToCore};
use engine::alarms::{PathWindow, ROUND_NS, Subject};
use engine::export::{ExportControl, ExportCounters, ExportEvent};
use engine::host::{
    Changed, Disconnected, HedgeStats, HoldStats, HostControl, HostEvent, Mark, PathKind, PathNews,
    PathReport, PathState, ReconnectWait, Sample, VolumeInfo, Wanted,
};
use engine::limits::MIRRORS_MAX;
use engine::machine::{Memory, Output};
use engine::mirror::{MIRRORS_FROM, MirrorReport, RecordRequest};
use engine::target::PortStats;
use engine::{Around, ClientError, ClientReport, Core, Machine, QueueCounters};
use lateness::Lateness;
use mirror::Id;
use multipath::Namespace;
use nbd::server::CloseReason;
use paths::board::Board;
use policy::PathIndex;
use runtime::{Handle, Mailbox, Outbox, ReactorConfig, RuntimeError};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;
use ublk::CoreUblk;
pub use ublk::{Begun, NodeQueue, UblkControl};

/// How soon news that found the mailbox of another core full are offered again.
const OFFER_AGAIN_NS: u64 = 1_000_000;

/// Messages to a core.
pub enum RunControl {
    /// For the engine.
    Export(ExportControl),
    /// How are you?
    Report(SyncSender<CoreReport>),
    /// How is this path? For core 0.
    Standing(u16, PathIndex, SyncSender<PathStanding>),
    /// For the queues of this core.
    Queue(ToCore),
    /// For the queues of nodes of this core.
    Ublk(UblkControl),
    /// A volume becomes the namespace of this number for queues.
    AddNamespace(u32, u16),
    /// It is none any more.
    RemoveNamespace(u32),
    /// Report measures of paths, also of those that rest.
    Measure,
    /// Why do I/Os of this volume go where they go? `None`: enough.
    Explain(u16, Option<Explain>),
}

/// An I/O that was asked about: its core, and what that wrote down of it.
pub type Told = (u16, Sample);

/// Which I/Os are asked about, and whom to tell.
pub type Explain = (Wanted, SyncSender<Told>);

/// State of one path on core 0, and while it is lost: its wait for the next attempt.
pub type PathStanding = (PathState, Option<ReconnectWait>);

/// Measures of a core's paths since it reported last.
#[derive(Debug)]
pub struct CoreWindow {
    /// The longest time for which the core noticed nothing, as far as is known, ns.
    pub late_ns: u64,
    /// Of those paths of which there is something.
    pub paths: Vec<(Subject, PathWindow)>,
}

/// Event of a core for the control thread.
#[derive(Debug)]
pub enum RunEvent {
    /// A volume is ready on this core.
    Ready(u16, u16, VolumeInfo),
    /// A volume has another size, or is read-only now or no longer.
    Resized(u16, VolumeInfo),
    /// A line for the user.
    Note(String),
    /// The same, about what should not be.
    Warning(String),
    /// Measures of paths.
    Measured(CoreWindow),
    /// See [`ExportEvent::Port`].
    Host(engine::target::Event, u32),
    /// This volume can't be the namespace of this NSID, and why.
    Unfit(u16, u32, String),
    /// No path of the volume is live; its I/O waits.
    NoPath(u16),
    /// A path has another state than when this was said last, and why.
    Path(PathChange),
    /// A client has come or gone.
    Client(ClientChange),
    /// See [`ExportEvent::Error`].
    Error(Box<ClientError>),
    /// See [`ExportEvent::MoreErrors`].
    MoreErrors(u16, u32),
    /// A record that a controller's use waits for: to be kept.
    Mark(Mark),
    /// See [`HostEvent::MarkEnded`].
    MarkEnded(u16, u64, PathIndex),
    /// See [`HostEvent::Opened`].
    Opened(u16, u64, Box<Namespace>),
    /// See [`HostEvent::Mirror`].
    Mirror(u16, Id),
    /// See [`HostEvent::Record`].
    Record(u16, RecordRequest),
    /// Why clients of a volume are refused until a user does something; `None`: they wait.
    Refused(u16, Option<String>),
    /// The time to drain is over, and of this volume so many changes of data and other I/Os have
    /// failed for it.
    Unfinished(u16, u32, u32),
    /// The engine ends, or the volume leaves, and a path of it may have acknowledged writes that
    /// were not flushed: a line that names it.
    Unflushed(u16, String),
    /// See [`HostEvent::Loss`].
    Loss(u16, u16, bool),
    /// The reactor of that core has ended, whatever the reason.
    Gone,
    /// All reactors have ended, as they were told to, and how.
    Stopped(anyhow::Result<()>),
    /// A signal came.
    Signal(i32),
    /// An address or device number is free.
    Released(PathKind),
    /// See [`HostEvent::Disconnected`].
    Disconnected(Disconnected),
    /// A withdrawn export has no client left on this core.
    Vacated(u16, u32),
    /// A controller of the volume grants fewer I/O queues than there are cores.
    FewQueues(u16),
    /// The NVMe/TCP server in a place of a core has left it, as it was told to.
    Ended(u16, u16),
    /// The answer to a change.
    Changed(u64, Result<Changed, String>),
}

/// A path that has another state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathChange {
    /// Volume index.
    pub volume: u16,
    /// Path.
    pub path: PathIndex,
    /// `None`: it was not there.
    pub from: Option<PathState>,
    /// The state that it has.
    pub to: PathState,
    /// Why it is not simply live.
    pub reason: Option<String>,
}

/// Place to which a client has connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientOf {
    /// Volume index, and number of its export over NBD.
    Nbd(u16, u32),
    /// An address for hosts over NVMe/TCP, in words.
    Nvme(Arc<str>),
}

/// An NBD client, or a connection of an NVMe/TCP host, that has come or gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientChange {
    /// Its export.
    pub of: ClientOf,
    /// Its address, or its process and user.
    pub name: Arc<str>,
    /// How long it was connected; `None`: it has come.
    pub lasted: Option<Duration>,
}

/// How a core is doing.
#[derive(Debug, Default)]
pub struct CoreReport {
    /// When it was made, ns of the core's clock.
    pub now_ns: u64,
    /// Waiting I/O, by volume.
    pub holds: Vec<HoldStats>,
    /// Second copies of reads, by volume.
    pub hedges: Vec<HedgeStats>,
    /// By volume, by path.
    pub volumes: Vec<Vec<PathReport>>,
    /// By export number.
    pub exports: Vec<ExportCounters>,
    /// Of ports of the NVMe/TCP servers on this core, by listener.
    pub ports: BTreeMap<u32, PortStats>,
    /// Clients that are connected to exports of this core.
    pub clients: Vec<ClientReport>,
    /// NVMe/TCP hosts that have identified a volume of this core as a namespace, by volume.
    pub hosts: BTreeMap<u16, u32>,
    /// Counters of the namespaces of queues on this core, and the queues that are open, by number.
    pub queues: BTreeMap<u32, (QueueCounters, u32)>,
    /// Of queues of nodes, by number.
    pub ublk: BTreeMap<u32, QueueCounters>,
    /// Those that are on this core, by number.
    pub mirrors: BTreeMap<u16, MirrorReport>,
}

/// See the module.
pub struct RunMachine {
    engine: Core,
    queues: CoreQueues,
    ublk: CoreUblk,
    core: u16,
    /// Messages to the other cores, by core; `None`: this one.
    peers: Vec<Option<Outbox<RunControl>>>,
    /// While messages to peers are kept: when they are offered again, ns.
    offer_again_ns: Option<u64>,
    /// The engine has ended, and this core ends once nothing is kept.
    ends: bool,
    events: Farewell,
    board: Arc<Board>,
    /// When measures of paths are reported again, ns, and whether the core wakes for that.
    measure_at: (u64, bool),
    lateness: Lateness,
    /// Threads that ask, and the volume.
    askers: Vec<(u16, SyncSender<Told>)>,
    /// Core 0: states of paths as they were said.
    states: BTreeMap<(u16, PathIndex), PathState>,
}

/// Says [`RunEvent::Gone`] when its machine is dropped.
struct Farewell(mpsc::Sender<RunEvent>);

impl Drop for Farewell {
    fn drop(&mut self) {
        let _ = self.0.send(RunEvent::Gone);
    }
}

/// The sender to a core.
pub type Sender = runtime::Sender<RunControl>;

/// Starts the reactor of a core, with a mailbox that was made before its machine.
///
/// # Errors
/// As [`runtime::spawn`].
pub fn spawn(
    config: ReactorConfig,
    machine: RunMachine,
    mailbox: (Sender, Mailbox<RunControl>),
) -> Result<Handle<RunMachine>, RuntimeError> {
    runtime::spawn_with(config, machine, mailbox)
}

impl RunMachine {
    /// The machine of core `core`; `cores`: senders to all, by core. The reactor wakes by `queues`'
    /// kicks.
    pub fn new(
        (engine, queues): (Core, CoreQueues),
        core: u16,
        cores: Vec<Sender>,
        events: mpsc::Sender<RunEvent>,
        board: Arc<Board>,
    ) -> Self {
        let peer = |(number, to)| (number != core).then(|| Outbox::new(to));
        Self {
            engine,
            queues,
            ublk: CoreUblk::default(),
            core,
            peers: (0..).zip(cores).map(peer).collect(),
            offer_again_ns: None,
            ends: false,
            events: Farewell(events),
            board,
            measure_at: (0, false),
            lateness: Lateness::default(),
            askers: Vec::new(),
            states: BTreeMap::new(),
        }
    }

    fn tell(&self, event: RunEvent) {
        let _ = self.events.0.send(event);
    }

    fn drain(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            match event {
                ExportEvent::Host(HostEvent::Ready(volume, info)) => {
                    self.tell(RunEvent::Ready(self.core, volume, info));
                }
                // Core 0 knows more of a path than the others, and says it; of a mirror, its core.
                ExportEvent::Host(
                    HostEvent::Failed(volume, what) | HostEvent::Warning(volume, what),
                ) => {
                    if self.core == 0 || volume >= MIRRORS_FROM {
                        self.tell(RunEvent::Warning(what));
                    }
                }
                ExportEvent::Host(HostEvent::Returned(volume, what)) => {
                    if self.core == 0 || volume >= MIRRORS_FROM {
                        self.tell(RunEvent::Note(what));
                    }
                }
                ExportEvent::Host(HostEvent::Trouble(_, what)) => {
                    self.tell(RunEvent::Warning(what));
                }
                ExportEvent::Host(HostEvent::Resized(volume, info)) => {
                    if self.core == 0 || volume >= MIRRORS_FROM {
                        self.tell(RunEvent::Resized(volume, info));
                    }
                }
                ExportEvent::Host(HostEvent::NoPath(volume)) if self.core == 0 => {
                    self.tell(RunEvent::NoPath(volume));
                }
                ExportEvent::Host(
                    event @ (HostEvent::Mark(..)
                    | HostEvent::MarkEnded(..)
                    | HostEvent::Opened(..)
                    | HostEvent::Mirror(..)
                    | HostEvent::Record(..)
                    | HostEvent::Unfinished { .. }
                    | HostEvent::Unflushed(..)
                    | HostEvent::Loss(..)),
                ) => self.tell_for_marks(event),
                ExportEvent::Host(HostEvent::Report(news)) => self.send_to(0, of_path(news)),
                ExportEvent::Host(HostEvent::Publish(news)) => self.publish(&news),
                ExportEvent::Host(HostEvent::Changed(ticket, answer)) => {
                    self.tell(RunEvent::Changed(ticket, answer));
                }
                // A mirror's clients are on its core, which has told them.
                ExportEvent::Host(HostEvent::Refused(volume, why)) => {
                    if volume < MIRRORS_FROM {
                        self.tell(RunEvent::Refused(volume, why));
                    }
                }
                ExportEvent::Host(HostEvent::Released(kind)) => {
                    self.tell(RunEvent::Released(kind));
                }
                ExportEvent::Host(HostEvent::Disconnected(it)) => {
                    self.tell(RunEvent::Disconnected(it));
                }
                ExportEvent::Host(
                    HostEvent::NoPath(_)
                    | HostEvent::Done(_)
                    | HostEvent::Lent(..)
                    | HostEvent::Back(..)
                    | HostEvent::Extent(..)
                    | HostEvent::Freed(..)
                    | HostEvent::Removed(_),
                ) => {}
                ExportEvent::ToCore(core, message) => {
                    self.send_to(core, ExportControl::OfCore(message));
                }
                ExportEvent::Port { event, count } => self.tell(RunEvent::Host(event, count)),
                ExportEvent::Unfit { volume, nsid, why } => {
                    self.tell(RunEvent::Unfit(volume, nsid, why.to_string()));
                }
                ExportEvent::Error(error) => self.tell(RunEvent::Error(error)),
                ExportEvent::MoreErrors(volume, count) => {
                    self.tell(RunEvent::MoreErrors(volume, count));
                }
                ExportEvent::Vacated(export) => {
                    self.tell(RunEvent::Vacated(self.core, export));
                }
                ExportEvent::Ended(place) => self.tell(RunEvent::Ended(self.core, place)),
                ExportEvent::Client {
                    export,
                    name,
                    why,
                    count,
                } => self.tell(ended(export, &name, why, count)),
                ExportEvent::TurnedAway { export, count } => {
                    self.tell(RunEvent::Warning(format!(
                        "export {export}: {count} clients turned away: all places are taken \
                         (clients in the configuration)"
                    )));
                }
            }
        }
    }

    /// Reports facts for the engine after this one.
    fn tell_for_marks(&mut self, event: HostEvent) {
        match event {
            HostEvent::Mark(mark) => self.tell(RunEvent::Mark(mark)),
            HostEvent::MarkEnded(volume, serial, path) => {
                self.tell(RunEvent::MarkEnded(volume, serial, path));
            }
            HostEvent::Mirror(volume, id) => self.tell(RunEvent::Mirror(volume, id)),
            HostEvent::Record(volume, what) => self.tell(RunEvent::Record(volume, what)),
            HostEvent::Opened(volume, serial, namespace) => {
                self.tell(RunEvent::Opened(volume, serial, namespace));
            }
            HostEvent::Unfinished {
                volume,
                changes,
                others,
            } => self.tell(RunEvent::Unfinished(volume, changes, others)),
            HostEvent::Unflushed(volume, line) => self.tell(RunEvent::Unflushed(volume, line)),
            HostEvent::Loss(volume, untold) => {
                self.tell(RunEvent::Loss(self.core, volume, untold));
            }
            _ => {}
        }
    }

    /// Says which paths have another state than was said; what changes twice in a turn is said
    /// once.
    #[cold]
    fn tell_states(&mut self) {
        let host = self.engine.host();
        let of_volume = |volume| host.paths(volume).map(move |path| (volume, path));
        let there = (0..host.volumes()).flat_map(of_volume);
        let is_gone = |at: &&(u16, PathIndex)| host.path_state(at.0, at.1) == PathState::Removed;
        let gone = self.states.keys().filter(is_gone).copied();
        let all: Vec<_> = there.chain(gone).collect();
        for at in all {
            let (volume, path) = at;
            let to = host.path_state(volume, path);
            let from = match to {
                PathState::Removed => self.states.remove(&at),
                _ => self.states.insert(at, to),
            };
            if from != Some(to) && (from.is_some() || to != PathState::Removed) {
                let reason = host.path_reason(volume, path);
                let change = PathChange {
                    volume,
                    path,
                    from,
                    to,
                    reason,
                };
                let _ = self.events.0.send(RunEvent::Path(change));
            }
        }
    }

    /// Facts that core 0 learnt of a path, for the others.
    fn publish(&mut self, news: &PathNews) {
        if let PathNews::Found(facts) = news
            && usize::from(facts.controller.io_queues) < self.peers.len()
        {
            self.tell(RunEvent::FewQueues(facts.volume));
        }
        for peer in self.peers.iter_mut().flatten() {
            peer.send(RunControl::Export(of_path(news.clone())));
        }
    }

    /// Sends a message to the engine of another core.
    fn send_to(&mut self, core: u16, message: ExportControl) {
        let Some(Some(peer)) = self.peers.get_mut(usize::from(core)) else {
            unreachable!("core {} has no peer {core}", self.core);
        };
        peer.send(RunControl::Export(message));
    }

    /// Offers again what found a peer's mailbox full. The peer does not say when it has room, so
    /// this core looks again soon.
    fn drain_peers(&mut self, now_ns: u64) {
        self.peers.iter_mut().flatten().for_each(Outbox::drain);
        let kept = self.peers.iter().flatten().any(|peer| !peer.is_empty());
        self.offer_again_ns = kept.then(|| now_ns.saturating_add(OFFER_AGAIN_NS));
    }

    /// Somebody begins or ends to ask about a volume.
    fn asked(&mut self, volume: u16, asker: Option<Explain>, now_ns: u64) {
        let core = self.core;
        let host = self.engine.host_mut();
        let before = self.askers.iter().position(|(of, _)| *of == volume);
        if let Some((_, to)) = before.map(|at| self.askers.swap_remove(at)) {
            for sample in host.explain_no_more(volume) {
                let _ = to.try_send((core, sample));
            }
        }
        if let Some((wanted, to)) = asker
            && host.explain(volume, wanted, now_ns)
        {
            self.askers.push((volume, to));
        }
    }

    /// Tells those who ask what has ended; what finds no room is lost.
    fn explain(&mut self) {
        for (volume, to) in &self.askers {
            while let Some(sample) = self.engine.host_mut().explained(*volume) {
                let _ = to.try_send((self.core, sample));
            }
        }
    }

    /// Reports what was measured of paths. As long as there is anything, or I/O in flight, the core
    /// wakes for the next report: one that rests is not woken.
    #[cold]
    fn measure(&mut self, with_probes: bool, now_ns: u64) {
        let mut paths = self.engine.host_mut().take_windows(with_probes);
        let begun_ns = self.measure_at.0.saturating_sub(ROUND_NS);
        let span_ns = now_ns.saturating_sub(begun_ns).min(ROUND_NS);
        paths.iter_mut().for_each(|(_, it)| it.span_ns = span_ns);
        // The first I/O after a rest has no result yet: its report is the next.
        let host = self.engine.host();
        let in_flight = |volume| {
            let mut paths = host.paths(volume);
            paths.any(|path| host.in_flight(volume, path) > 0)
        };
        let wakes = !paths.is_empty() || (0..host.volumes()).any(in_flight);
        self.measure_at = (now_ns.saturating_add(ROUND_NS), wakes);
        if paths.is_empty() {
            return;
        }
        let turn_ns = self.engine.host_mut().take_late_ns();
        let late_ns = turn_ns.max(self.lateness.look_ns());
        self.tell(RunEvent::Measured(CoreWindow { late_ns, paths }));
    }

    /// Clients of all front ends but block devices, which have one: the kernel.
    fn clients(&self, now_ns: u64) -> Vec<ClientReport> {
        let mut all = self.engine.client_reports();
        all.extend(self.queues.client_reports(now_ns));
        all
    }

    fn report(&self, now_ns: u64) -> CoreReport {
        let host = self.engine.host();
        // By index, those that left included.
        let volumes = (0..host.volumes()).map(|volume| {
            let count = host.paths(volume).map(|path| path.0 + 1).max();
            let paths = (0..count.unwrap_or(0)).map(PathIndex);
            let of = |index| host.path_report(volume, index, now_ns);
            paths.map(of).collect()
        });
        let holds = 0..host.volumes();
        let open = self.queues.open();
        let counters = self.engine.queue_counters();
        CoreReport {
            now_ns,
            holds: holds.map(|volume| host.hold_stats(volume)).collect(),
            hedges: (0..host.volumes())
                .map(|volume| host.hedge_stats(volume))
                .collect(),
            volumes: volumes.collect(),
            exports: (0..engine::limits::EXPORTS_MAX)
                .map(|export| self.engine.counters(export))
                .collect(),
            ports: self.engine.ports().collect(),
            clients: self.clients(now_ns),
            hosts: hosts(&self.engine),
            queues: counters
                .map(|(number, it)| (number, (it, open.get(&number).copied().unwrap_or(0))))
                .collect(),
            ublk: self.engine.ublk_counters().collect(),
            mirrors: (MIRRORS_FROM..MIRRORS_FROM + MIRRORS_MAX as u16)
                .filter_map(|volume| Some((volume, self.engine.mirror(volume)?)))
                .collect(),
        }
    }
}

impl Around for RunMachine {
    type Inner = Core;
    type Control = RunControl;

    fn inner(&self) -> &Core {
        &self.engine
    }
    fn inner_mut(&mut self) -> &mut Core {
        &mut self.engine
    }

    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        let mut peers = self.board.peers_of(self.core);
        let (queues, ublk) = (&mut self.queues, &mut self.ublk);
        self.engine.exchange(&mut peers, |engine| {
            queues.begin(engine, memory, now_ns);
            ublk.begin(engine, memory, now_ns);
            engine.turn(memory, now_ns);
            queues.finish(engine, memory, now_ns);
            ublk.finish(engine, memory, queues, now_ns);
        });
        self.drain();
        if self.engine.host_mut().take_states_changed() && self.core == 0 {
            self.tell_states();
        }
        for note in self.ublk.take_notes() {
            self.tell(RunEvent::Warning(note));
        }
        if now_ns >= self.measure_at.0 {
            self.measure(false, now_ns);
        }
        if self.peers.len() > 1 {
            self.drain_peers(now_ns);
        }
        if self.queues.has_shut() && self.offer_again_ns.is_none() {
            self.queues.tell_shown();
        }
        if !self.askers.is_empty() {
            self.explain();
        }
    }

    fn handle_control(&mut self, message: RunControl, now_ns: u64) {
        match message {
            RunControl::Export(message) => {
                if let ExportControl::Drain(_) | ExportControl::Stop(_) = message {
                    self.ublk.stop();
                }
                self.engine.handle_control(message, now_ns);
            }
            RunControl::Report(to) => {
                let _ = to.try_send(self.report(now_ns));
            }
            RunControl::Standing(volume, path, to) => {
                let it = self.engine.host().path_report(volume, path, now_ns);
                let _ = to.try_send((it.state, it.wait));
            }
            RunControl::Ublk(message) => {
                self.ublk.handle(message, &mut self.engine, &self.queues);
            }
            RunControl::Queue(message) => self.queues.handle(message, &mut self.engine),
            RunControl::AddNamespace(number, volume) => {
                self.engine.queues().add_namespace(number, volume);
            }
            RunControl::RemoveNamespace(number) => self.engine.queues().remove_namespace(number),
            RunControl::Measure => self.measure(true, now_ns),
            RunControl::Explain(volume, asker) => self.asked(volume, asker, now_ns),
        }
    }

    fn may_sleep(&mut self, now_ns: u64) -> bool {
        self.queues.may_sleep(&mut self.engine, now_ns) && self.ublk.may_sleep()
    }

    #[inline]
    fn poll_output(&mut self) -> Option<Output> {
        match self.engine.poll_output() {
            Some(Output::Stop) => self.ends = true,
            None if self.ends => {}
            output => return output,
        }
        // Other cores would wait for what the reactor takes with it.
        let is_sent = self.peers.iter().flatten().all(Outbox::is_empty);
        is_sent.then(|| {
            self.ends = false;
            Output::Stop
        })
    }

    fn poll_timeout(&self) -> Option<u64> {
        let measure_ns = Some(self.measure_at.0).filter(|_| self.measure_at.1);
        let all = [self.engine.poll_timeout(), self.offer_again_ns, measure_ns];
        all.into_iter().flatten().min()
    }
}

/// News of a path, as another core's engine takes them.
fn of_path(news: PathNews) -> ExportControl {
    ExportControl::Host(HostControl::Path(news))
}

/// NVMe/TCP hosts by volume, over all servers.
fn hosts(engine: &Core) -> BTreeMap<u16, u32> {
    let mut all = BTreeMap::new();
    for (volume, hosts) in engine.hosts() {
        *all.entry(volume).or_default() += hosts;
    }
    all
}

/// A session of an export ended for a reason worth a line, which is of `count` of them.
fn ended(export: u32, name: &str, why: CloseReason, count: u32) -> RunEvent {
    let more = match count {
        0 | 1 => String::new(),
        _ => format!(" ({} more ended since the last such line)", count - 1),
    };
    RunEvent::Warning(format!("export {export}: {name}: {why}{more}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::export::ExportConfig;
    use engine::host::{HostConfig, Multipath};
    use engine::limits::EXPORT_ARENA_MIN;
    use nvme::host::{Digests, HostIdentity};
    use runtime::limits::MAILBOX_MAX;

    struct NoMemory;

    impl Memory for NoMemory {
        fn bytes(&self, _: engine::Span) -> &[u8] {
            &[]
        }
        fn bytes_mut(&mut self, _: engine::Span) -> &mut [u8] {
            &mut []
        }
    }

    fn turn(machine: &mut RunMachine) -> Option<Output> {
        (0..8).find_map(|at| {
            Machine::turn(machine, &mut NoMemory, 1 + at);
            Machine::poll_output(machine)
        })
    }

    /// The message that a core leaves is the last one to core 0, whose mailbox is full.
    #[test]
    fn core_ends_once_its_messages_are_sent() {
        let (first, mailbox) = Mailbox::new("core 0").unwrap();
        let (own, _mailbox) = Mailbox::new("core 1").unwrap();
        let enough = || RunControl::Explain(0, None);
        (0..MAILBOX_MAX).for_each(|_| drop(first.try_send(enough())));
        let host = HostConfig {
            core: 1,
            cores: 2,
            identity: HostIdentity {
                nqn: "nqn.2014-08.org.nvmexpress:uuid:1".into(),
                id: [7; 16],
            },
            digests: Digests::default(),
            kato_ms: 5_000,
            connect_timeout_ns: 1,
            io_timeout_ns: 10_000_000_000,
            io_max: 1,
            scratch: engine::Span::default(),
            volumes: Vec::new(),
        };
        let export = ExportConfig {
            clients_max: 1,
            requests_max: 1,
            arena_bytes: EXPORT_ARENA_MIN,
        };
        let engine = Core::new(Multipath::new(host), 0, export);
        let (events, _events) = mpsc::channel();
        let board = Arc::new(Board::new(&[0, 0], 0));
        let mut machine = RunMachine::new(
            (engine, CoreQueues::new().unwrap()),
            1,
            vec![first, own],
            events,
            board,
        );
        let stop = RunControl::Export(ExportControl::Stop(0));
        Machine::handle_control(&mut machine, stop, 1);
        assert_eq!(
            turn(&mut machine),
            None,
            "core 0 does not know that it ends"
        );
        assert!(machine.offer_again_ns.is_some());
        drop(mailbox);
        assert_eq!(turn(&mut machine), Some(Output::Stop));
    }
}
