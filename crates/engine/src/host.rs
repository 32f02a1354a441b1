//! Multipath volumes of one core: each over paths, each path a queue of a controller or a local
//! device.
//!
//! Decides, from what the reactor hands in, which path serves an I/O and what became of it: the
//! back end of all multipath volumes of a [`Core`](crate::Core), which alone drives it.
//!
//! [`Multipath`] passes each event to its volume, and leads changes of what volumes and paths there
//! are. A [`Volume`] owns its paths; two types borrow it while one event is handled: `VolumeIo` for
//! what happens to I/O, `Sessions` for what happens to connections. All of them share one `Shared`:
//! the table of I/Os, memory, timers and outputs of the core.
//!
//! * `connections`: those of one path, and where its association stands; `session`: it is learnt,
//!   checked, opened
//! * `io`: the life of one I/O, over its volume; `io_table`: those in flight, and their states
//! * `split`: an I/O larger than a command is cut into pieces; `hedge`: a late read gets a second
//!   copy, in memory of the engine's own
//! * `abort`: an I/O that takes too long; `loss`: a path ends; `proof`: its controller is reset;
//!   `reconnect`: it comes back
//! * `fence`: changes that may not be executed yet; `wait`: what I/O does meanwhile
//! * `mark`: what an engine that was killed leaves to the next
//! * `outage`: while no path is usable
//! * `probation`: a path that does badly gets probes instead of I/O
//! * `stop`: the engine stops, by the stages of `shutdown`; `timers`: when it is called;
//!   `outbox`: what it hands out
//! * `flush`: to every controller with unflushed writes; `losses`: which flushes fail, and why
//! * `cache`: what a controller may have in its cache only
//! * `volumes`: one volume, `path`: one path, on this core; `peers`: shared counts
//! * `extents`: which bytes are holes
//! * `change`: paths and volumes come and go; `pending_change` decides what is next, `stages` does
//!   it on core 0, `change_steps` on each core
//! * `measured`: what alarms are made of
//! * `status`, `device`: what answers mean; `report`: lines for people; `explain`: why a path
//!
//! # Contract
//! Core 0 owns the admin connections. Facts about a path leave it as [`HostEvent::Publish`]
//! and reach the other cores' engines as [`HostControl::Path`]. Cores share counts of I/Os in
//! flight (T47), and what was measured, by [`Peers`]. The engine begins in its first `turn`, and
//! each `turn` looks at what its machines made of the turn's bytes. All times are of one clock
//! (T42).
//!
//! `Output::Close` may name a connection that is still being opened. `Output::Stop` may come while
//! a device has not answered.
//!
//! # Limits
//! [`IO_MAX`](crate::limits::IO_MAX) I/Os in flight; nothing is allocated per I/O. A
//! volume keeps its block size. Writes that wait for a lost controller, or
//! are cut, keep their order with overlapping newer ones, within one core; writes that are under
//! way together have none.
mod abort;
mod cache;
mod change;
mod change_steps;
mod connections;
mod counters;
mod cut;
mod damage;
pub(crate) mod device;
mod device_errors;
mod explain;
mod extents;
mod fence;
mod flush;
mod hedge;
mod io;
mod io_table;
mod kind;
mod loss;
mod losses;
mod mark;
mod measured;
mod outage;
mod outbox;
mod outputs;
mod path;
mod peers;
mod pending_change;
mod probation;
mod proof;
mod queues;
mod reconnect;
mod recovery;
mod report;
mod session;
mod shutdown;
mod split;
mod stages;
mod standstill;
mod status;
mod stop;
mod timers;
mod types;
mod volumes;
mod wait;

pub use change::{Change, Changed, Order, What};
pub use counters::{ErrorClass, PathCounters, PathReport};
pub use explain::{Came, Obstacle, Sample, Wait, Wanted};
pub(crate) use extents::Witness;
pub use hedge::HedgeStats;
pub(crate) use io::{fits, misfit};
pub use peers::Peers;
pub use probation::PathHealth;
pub use recovery::{HoldReason, HoldStats, Recovery, WriteFailover};
pub(crate) use report::ended;
pub use status::outcome;
pub use types::*;
pub use volumes::Volume;

use crate::client_errors::PathFailures;
use crate::machine::{Closed, ConnId, Memory, Output, Place, Send};
use crate::scratch::Scratch;
use alloc::vec::Vec;
use connections::{PathSession, Role};
use hedge::Hedger;
use io::VolumeIo;
use io_table::IoTable;
use outbox::Outbox;
use outputs::Outputs;
use path::Path;
use pending_change::ConfigChanges;
use policy::PathIndex;
use session::Sessions;
use shutdown::Shutdown;
use standstill::Standstills;
use volumes::Ready;

/// The multipath volumes of one core. See the module's contract.
pub struct Multipath {
    volumes: Vec<Volume>,
    on: Shared,
    started: bool,
    /// Some path is to be looked at or probed, once this turn's ends of I/O were seen.
    is_inspection_due: bool,
    /// Most paths in all.
    room: usize,
}

/// State that all volumes of a core share.
struct Shared {
    /// All but the volumes.
    settings: HostConfig,
    ios: IoTable,
    /// Buffers of the engine's own.
    scratch: Scratch,
    /// Second copies of reads.
    hedger: Hedger,
    standstills: Standstills,
    out: Outbox,
    shutdown: Shutdown,
    changes: ConfigChanges,
    failures: PathFailures,
    /// The volume and index of the path in each place: a path keeps its place while it lives.
    owners: Vec<Option<(u16, PathIndex)>>,
    /// How often a path was found: what a volume leaves behind may be another time since.
    found: u64,
}

impl Shared {
    /// Policies, paths or limits have changed: late reads are looked for soon.
    fn rouse_hedger(&mut self) {
        if self.hedger.rouse() {
            self.out.wake_by(0);
        }
    }
}

impl Multipath {
    /// An engine that does nothing before its first `turn`.
    ///
    /// # Panics
    /// If [`HostConfig::check`] fails; configurations are checked before.
    pub fn new(config: HostConfig) -> Self {
        let paths = config.volumes.iter().map(|volume| volume.paths.len()).sum();
        Self::with_room(config, paths)
    }

    /// An engine with room for so many paths in all, where more may come while it runs.
    ///
    /// # Panics
    /// As [`Multipath::new`]; or if there is less room than there are paths.
    pub fn with_room(mut config: HostConfig, room: usize) -> Self {
        let checked = config.check();
        assert!(checked.is_ok(), "{checked:?}");
        let mut volumes = Vec::with_capacity(config.volumes.len());
        let mut owners = Vec::new();
        for (number, volume) in (0_u16..).zip(core::mem::take(&mut config.volumes)) {
            let (mut it, paths) = Volume::open(number, volume, &config);
            for (index, path) in paths {
                let path = Path::new(owners.len(), number, index, path);
                it.paths.insert(path);
                owners.push(Some((number, index)));
            }
            volumes.push(it);
        }
        let count = owners.len();
        assert!(count <= room, "{count} paths, room for {room}");
        let unseen_ns_max = probation::unseen_ns_max(&volumes, config.io_timeout_ns);
        let is_local = |it: &Volume| it.paths.iter().any(|path| path.address().is_none());
        let local = volumes.iter().any(is_local);
        let spare = hedge::spare(config.io_max, config.scratch);
        let requests = if local { config.io_max as usize } else { 0 };
        let outputs = Outputs::new(room * 2, requests);
        let events = count * 2 + volumes.len();
        let on = Shared {
            ios: IoTable::new(config.io_max, spare),
            hedger: Hedger::new(config.io_max + spare, spare, unseen_ns_max),
            standstills: Standstills::default(),
            scratch: Scratch::new(config.scratch),
            out: Outbox::new(&config, outputs, events, room * 2),
            settings: config,
            shutdown: Shutdown::new(),
            changes: ConfigChanges::default(),
            failures: PathFailures::new(),
            owners,
            found: 0,
        };
        Self {
            volumes,
            on,
            room,
            started: false,
            is_inspection_due: false,
        }
    }

    /// The next event. Ends of I/Os come in the order in which they ended, and before the event
    /// that their volume is removed.
    #[inline]
    pub(crate) fn poll_event(&mut self) -> Option<HostEvent> {
        let done = self.poll_done().map(HostEvent::Done);
        done.or_else(|| self.on.out.poll_event())
    }

    /// The next event, if it is the end of an I/O.
    #[inline]
    pub(crate) fn poll_done(&mut self) -> Option<IoDone> {
        match self.on.out.peek_event() {
            None | Some(HostEvent::Removed(_)) => self.on.ios.report(),
            Some(_) => None,
        }
    }

    /// Bytes of [`HostConfig::scratch`] that are free: all of them, while no payload is under way
    /// in the engine's own buffers.
    pub fn scratch_free(&self) -> u64 {
        self.on.scratch.free_bytes()
    }

    /// I/Os of this core in flight on a path.
    pub fn in_flight(&self, volume: u16, path: PathIndex) -> u32 {
        let volume = self.volumes.get(usize::from(volume));
        volume.map_or(0, |volume| volume.head.in_flight(path))
    }

    /// The numbers that volumes have, or had, are below.
    pub fn volumes(&self) -> u16 {
        self.volumes.len() as u16
    }

    /// The paths of a volume.
    pub fn paths(&self, volume: u16) -> impl Iterator<Item = PathIndex> {
        let it = self.volumes.get(usize::from(volume));
        let paths = it.into_iter().flat_map(|it| it.paths.iter());
        paths.map(|path| path.index)
    }

    /// Whether a path may be in another state than when this was asked last.
    #[inline]
    pub fn take_states_changed(&mut self) -> bool {
        self.on.out.take_states_changed()
    }

    /// Latest failures of I/Os on paths.
    pub(crate) fn failures(&self) -> &PathFailures {
        &self.on.failures
    }

    /// URI of a path.
    pub(crate) fn path_uri(&self, volume: u16, path: PathIndex) -> Option<&str> {
        self.path_of(volume, path).map(|it| it.uri.as_str())
    }

    /// A volume; `None`: this core has not opened it yet.
    pub fn volume(&self, volume: u16) -> Option<&Volume> {
        self.volumes.get(usize::from(volume))
    }

    /// A path; `None`: it has left, or never was.
    fn path_of(&self, volume: u16, at: PathIndex) -> Option<&Path> {
        self.volumes.get(usize::from(volume))?.paths.get(at)
    }

    /// The I/O of a volume.
    #[inline(always)]
    fn io(&mut self, volume: u16) -> VolumeIo<'_> {
        VolumeIo {
            volume: &mut self.volumes[usize::from(volume)],
            on: &mut self.on,
        }
    }

    /// The paths of a volume, and their connections.
    #[inline]
    fn sessions(&mut self, volume: u16) -> Sessions<'_> {
        let (before, rest) = self.volumes.split_at_mut(usize::from(volume));
        let Some((volume, after)) = rest.split_first_mut() else {
            unreachable!("there is no volume {volume}");
        };
        Sessions {
            volume,
            others: [before, after],
            on: &mut self.on,
        }
    }

    /// The path in a place, and its volume; `None`: it has left, or never was.
    #[inline]
    fn owner(&mut self, place: usize) -> Option<(Sessions<'_>, PathIndex)> {
        let (volume, at) = self.on.owners.get(place).copied().flatten()?;
        Some((self.sessions(volume), at))
    }

    /// Does the same with all paths, in the order of their places.
    fn each_path(&mut self, mut act: impl FnMut(&mut Sessions<'_>, PathIndex)) {
        for place in 0..self.on.owners.len() {
            if let Some((mut sessions, at)) = self.owner(place) {
                act(&mut sessions, at);
            }
        }
    }

    /// All paths and their volumes, in the order of their places.
    fn paths_there(&self) -> impl Iterator<Item = (&Volume, PathIndex)> {
        let owners = self.on.owners.iter().flatten();
        owners.map(|&(volume, at)| (&self.volumes[usize::from(volume)], at))
    }

    /// The session of a connection; `None`: its path has left.
    #[inline]
    fn session(&mut self, conn: ConnId) -> Option<(&mut PathSession, Role, &mut Shared)> {
        let (place, role) = connections::of(conn);
        let (volume, at) = self.on.owners[place]?;
        let session = &mut self.volumes[usize::from(volume)].paths[at].session;
        Some((session, role, &mut self.on))
    }
}

/// As [`Machine`](crate::Machine) has them, for [`Core`](crate::Core).
impl Multipath {
    /// This core, and how many there are.
    pub(crate) fn cores(&self) -> (u16, u16) {
        (self.on.settings.core, self.on.settings.cores)
    }

    pub(crate) fn connections_max(&self) -> u32 {
        self.room as u32 * 2
    }

    pub(crate) fn handle_connected(&mut self, conn: ConnId, now_ns: u64) {
        if let Some((session, role, on)) = self.session(conn)
            && session.handle_connected(role, now_ns)
        {
            on.out.touch(session, role);
        }
    }

    pub(crate) fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        if let Some((session, role, on)) = self.session(conn)
            && let Some(taken) = session.handle_bytes(role, bytes, now_ns)
        {
            on.out.touch(session, role);
            return taken;
        }
        bytes.len() // they came after the connection was given up
    }

    pub(crate) fn placement(&mut self, conn: ConnId) -> Option<Place> {
        let (session, role, on) = self.session(conn)?;
        let it = session.placement(role)?;
        let span = on.ios.payload(it.token, it.offset, it.len);
        Some(Place { span, crc: it.crc })
    }

    pub(crate) fn handle_payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64) {
        if let Some((session, role, on)) = self.session(conn)
            && session.handle_payload(role, len, crc, now_ns)
        {
            on.out.touch(session, role);
        }
    }

    pub(crate) fn poll_transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        now_ns: u64,
    ) -> Option<Option<Send>> {
        let (session, role, on) = self.session(conn)?;
        let transmit = session.poll_transmit(role, out, now_ns)?;
        Some(transmit.payload.map(|payload| Send {
            span: on.ios.payload(payload.token, payload.offset, payload.len),
            digest: payload.digest,
            cookie: payload.token,
            read: None,
        }))
    }

    pub(crate) fn handle_sent(&mut self, conn: ConnId, cookie: u32, now_ns: u64) {
        let (place, role) = connections::of(conn);
        if let Some((mut sessions, at)) = self.owner(place)
            && role == Role::Io
            && let Some(queue) = &mut sessions.volume.paths[at].session.queue
        {
            queue.handle_sent(cookie);
            // This may come after the turn; what it ends must not wait for another event.
            if queue.may_have_event() && sessions.drain_queue(at, now_ns) {
                let (path, on) = sessions.path(at);
                on.out.touch(&mut path.session, role);
            }
        }
    }

    pub(crate) fn handle_closed(&mut self, conn: ConnId, why: Closed, now_ns: u64) {
        let (place, role) = connections::of(conn);
        let Some((mut sessions, at)) = self.owner(place) else {
            unreachable!("a connection ended of no path");
        };
        sessions.closed(at, role, why, now_ns);
    }

    pub(crate) fn handle_control(&mut self, message: HostControl, now_ns: u64) {
        match message {
            HostControl::Path(news) => self.news(news, now_ns),
            // Else this core has not opened it yet: its configuration has the policy.
            HostControl::Policy(volume, policy, knobs) => {
                if let Some(it) = self.volumes.get_mut(usize::from(volume)) {
                    it.set_policy(policy, knobs, &mut self.on.out);
                }
            }
            HostControl::Program(volume, id, program, knobs) => {
                if let Some(it) = self.volumes.get_mut(usize::from(volume)) {
                    it.set_program(id, program, knobs, &mut self.on.out);
                }
            }
            HostControl::Recovery(volume, it) => self.set_recovery(volume, it, now_ns),
            HostControl::Throughput(volume, path, to) => {
                if let Some(it) = self.volumes.get_mut(usize::from(volume)) {
                    it.set_throughput(path, to);
                }
            }
            HostControl::Distance(volume, path, to) => {
                if let Some(it) = self.volumes.get_mut(usize::from(volume)) {
                    it.set_distance(path, to);
                }
            }
            HostControl::Rename(volume, name) => self.volumes[usize::from(volume)].name = name,
            HostControl::Drain(drain_ns) => self.begin_drain(drain_ns, now_ns),
            HostControl::Change {
                ticket,
                change,
                wait_ns,
            } => self.change(ticket, change, wait_ns, now_ns),
            HostControl::Marked(mark) => {
                if let Some(mut sessions) = self.asking(&mark) {
                    sessions.marked(mark, now_ns);
                }
            }
            HostControl::Barred(mark, bar) => {
                if let Some(mut sessions) = self.asking(&mark) {
                    sessions.bar_namespace(&mark, &bar, now_ns);
                }
            }
            HostControl::Stop => self.stop(now_ns),
        }
        self.on.rouse_hedger();
    }

    pub(crate) fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        if !self.started {
            self.started = true;
            self.start(now_ns);
        }
        if self.on.out.has_touched() {
            self.drain(now_ns);
            self.hedge(memory, now_ns);
        }
        if self.is_inspection_due {
            self.watch_health(memory, now_ns);
        }
        if self.on.changes.is_busy() {
            self.advance_all_changes(now_ns);
        }
        let is_closing = self.on.shutdown.is_closing();
        for it in &mut self.volumes {
            it.head.turn();
            it.watch_outage(is_closing, &mut self.on.out, now_ns);
        }
        if self.on.shutdown.has_begun() {
            self.advance_stop(now_ns);
        }
    }

    #[inline]
    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        self.on.out.outputs.pop()
    }

    #[inline]
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        match self.on.out.timers.wake_ns() {
            _ if !self.started || self.on.out.has_touched() => Some(0),
            u64::MAX => None,
            at_ns => Some(at_ns),
        }
    }

    pub(crate) fn handle_timeout(&mut self, now_ns: u64) {
        if now_ns < self.on.out.timers.wake_ns() || !self.started {
            return; // for the turn's sake
        }
        if self.on.hedger.is_on() && !self.on.out.timers.is_due(now_ns) {
            return self.inspect_reads(now_ns);
        }
        self.each_path(|sessions, at| sessions.path_timeout(at, now_ns));
        self.waits_over(now_ns);
        self.advance_stop(now_ns);
        let is_stopping = self.on.shutdown.has_begun();
        let looks = self.paths_there();
        let looks =
            looks.filter_map(|(it, at)| it.probation_timeout(at, &self.on.ios, is_stopping));
        let look_ns = looks.min();
        self.is_inspection_due = look_ns.is_some_and(|at_ns| at_ns <= now_ns);
        let look_ns = look_ns.filter(|_| !self.is_inspection_due);
        let paths = self.paths_there();
        let times = paths.flat_map(|(it, at)| {
            let expiry_ns = it.expiry_ns(at, &self.on.ios, &self.on.settings);
            [it.paths[at].session.timeout_ns(), expiry_ns]
        });
        let first = times
            .chain([look_ns])
            .chain([self.on.shutdown.timeout(), self.on.changes.timeout()])
            .chain(self.volumes.iter().map(|it| it.timeout(&self.on.ios)))
            .flatten()
            .min();
        self.on.out.timers.set_deadline(first);
        if self.on.hedger.is_on() {
            self.inspect_reads(now_ns);
        }
    }
}

impl Multipath {
    /// Takes the events of all machines that were called since the last turn.
    #[inline(never)]
    fn drain(&mut self, now_ns: u64) {
        while let Some(conn) = self.on.out.pop_touched() {
            let (place, role) = connections::of(conn);
            let Some((mut sessions, at)) = self.owner(place) else {
                continue; // its path has left since
            };
            sessions.volume.paths[at].session.touched[role as usize] = false;
            match role {
                Role::Admin => sessions.drain_admin(at, now_ns),
                Role::Io => {
                    sessions.drain_queue(at, now_ns);
                }
            }
            let (path, on) = sessions.path(at);
            if path.session.is_open(role) {
                on.out.transmit(conn);
            }
            // A queue in use has no deadlines of its own.
            if role == Role::Admin || !path.is_live() {
                let timeout_ns = path.session.timeout_ns();
                timeout_ns
                    .into_iter()
                    .for_each(|at_ns| on.out.wake_by(at_ns));
            }
        }
    }
}
