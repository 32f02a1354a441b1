//! A mirror on its core: its phase, its legs, and the requests it submits to them.
use super::buffer_leases::BufferLeases;
use super::depth::Depth;
use super::dispatch::Running;
use super::holes::Run;
use super::probe::Probe;
use super::record::Asked;
use super::requests::Part;
use super::sizes::Extent;
use super::start::Starting;
use super::table::{Entry, Table, Task};
use super::types::{LegConfig, LegCounters, MirrorConfig, MirrorState, Pending};
use crate::devices::BackEndsMut;
use crate::host::{HostEngine, HostEvent, Io, IoDone, IoOp, NO_PATH, SubmitError, VolumeInfo};
use crate::limits::LEG_RETRY_NS;
use crate::machine::{Memory, Span};
use crate::scratch::Scratch;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use block::{DeviceId, IoLimits, Issuer};
use mirror::copies::{Chosen, NoLeg};
use mirror::limits::LEGS_MAX;
use mirror::machine::{CheckReport, Ticket};
use mirror::ownership::heartbeat_ns;
use mirror::superblock::EntryState;
use mirror::{Crc32c, Id, Name};
use multipath::Outcome;

/// The parts of a core that a mirror needs for a step.
pub(super) struct Context<'a> {
    /// The devices of lower number, to which it may submit requests.
    pub below: BackEndsMut<'a>,
    pub table: &'a mut Table,
    pub buffer_leases: &'a mut BufferLeases,
    pub events: &'a mut VecDeque<HostEvent>,
    pub memory: &'a mut dyn Memory,
    pub crc32c: Crc32c,
    /// The device number of the mirror, and its index among the mirrors.
    pub number: u16,
    pub index: u8,
    pub now_ns: u64,
}

/// A mirror. See the module.
pub(crate) struct MirrorDevice {
    pub(super) config: MirrorConfig,
    pub(super) legs: Vec<LegDevice>,
    pub(super) phase: Phase,
    pub(super) state: MirrorState,
    /// Its own part of the arena.
    pub(super) span: Span,
    pub(super) scratch: Scratch,
    /// Reads and writes of superblocks that wait for room in the host, oldest first. Nothing else
    /// is submitted before them, or leases would end while data is written (T54).
    pub(super) urgent: VecDeque<(Entry, Io)>,
    /// Other requests that wait for room in the host, oldest first (T6); it grows only then. Data
    /// I/O waits in its leg's `depth` instead.
    pub(super) held: VecDeque<(Entry, Io)>,
    /// Requests that ended when they were submitted, or were not submitted.
    pub(super) ended_early: VecDeque<(Entry, Outcome)>,
    pub(super) stopping: bool,
    /// It goes when it has stopped.
    pub(super) leaves: bool,
    /// A timer was set, or something else needs a turn.
    pub(super) needs_turn: bool,
    /// Set once a turn: the state machine's timeout was not compared with the time yet.
    pub(super) is_timeout_unchecked: bool,
    pub(super) orders: Orders,
    pub(super) refusal: Refusal,
    /// Slots, as bits, whose removed leg still has its superblocks.
    pub(super) unwiped: u16,
    /// Paths that the host had found when bounds were looked at.
    pub(super) paths_found: u64,
    /// What the program's record says of the mirror, for the start under way.
    pub(super) evidence: Asked,
    /// See [`MirrorReport`](super::MirrorReport).
    pub(super) started_without: Vec<u8>,
}

/// Orders of users that are pending, and the results of those that were executed last
/// ([`MirrorReport`](super::MirrorReport)).
#[derive(Default)]
pub(super) struct Orders {
    /// The mirror grows as soon as the sizes of its legs are known.
    pub grow_requested: bool,
    pub grown: Option<Result<u64, String>>,
    pub not_added: Option<(u16, String)>,
    pub taken_back: Option<(Pending, bool)>,
    pub checked: Option<CheckReport>,
    /// When the check under way began, ns.
    pub checking_ns: Option<u64>,
    /// Why [`MirrorOrder::Begin`](super::MirrorOrder::Begin) was refused.
    pub not_begun: Option<String>,
}

/// Refused starts.
#[derive(Default)]
pub(super) struct Refusal {
    /// How many there were.
    pub count: u64,
    /// The name on the legs, where the last start was refused for it.
    pub other_name: Option<Name>,
    /// The user accepts a mirror of another name.
    pub accepts_name: bool,
    /// Only a user, or a leg that comes, can end the last refusal.
    pub is_final: bool,
}

/// The life of a mirror on its core.
pub(super) enum Phase {
    /// Its legs are read, assembled and acquired.
    Starting(Box<Starting>),
    /// The state machine runs.
    Running(Box<Running>),
    /// It was stopped.
    Over,
}

/// Why a leg's superblocks are read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// To learn which leg it is.
    Identify,
    /// For the acquisition, by number among the legs acquired.
    Acquire(usize),
    /// For the state machine.
    Machine(Ticket),
}

/// A leg as a device: what was read of it, and its requests. Whether it has all data, and may be
/// read, is a state of the state machine, by its slot.
pub(super) struct LegDevice {
    pub config: LegConfig,
    /// The device, once it is ready.
    pub info: Option<VolumeInfo>,
    /// The read of its superblocks under way.
    pub probe: Option<Probe>,
    /// When they may be read next, ns.
    pub probe_at_ns: u64,
    /// `found` was read for a start that was refused: it is read again before the next one.
    pub is_outdated: bool,
    /// Its superblock, or why it has none.
    pub found: Option<Result<Chosen, NoLeg>>,
    /// Its state when the mirror was stopped.
    pub last: Option<EntryState>,
    /// Its slot, once the mirror runs.
    pub slot: Option<u8>,
    /// Set while the mirror goes on without it: when it is tried again.
    pub missing: Option<Missing>,
    /// `fail` took it out: it returns only by `restore`.
    pub admin_offline: bool,
    pub extent: Extent,
    pub bad_room: BadRoom,
    /// Why it can't return.
    pub unfit: Option<String>,
    /// How the last write of the owner's record failed, for which it is left out.
    pub unwritten: Option<Outcome>,
    pub counters: LegCounters,
    /// Its rebuild: since when, ns, and how many regions it lacked then.
    pub rebuild: Option<(u64, u64)>,
    /// The slot of the leg that is removed when this one is in sync.
    pub replaces: Option<u8>,
    pub seat: Seat,
    /// Its lease has lapsed: another host may take it over, and it gets heartbeats only (T48).
    pub is_fenced: bool,
    /// Controllers lost with the contents of their caches, as last inspected.
    pub lost_caches: u64,
    /// How often its device had given up unflushed writes, as last inspected.
    pub given_up: u32,
    /// It has no path left and its requests do not end: when the mirror goes on without it, ns.
    pub hangs_ns: Option<u64>,
    /// Its data I/O, in flight and waiting.
    pub depth: Depth,
    /// It has refused to deallocate since it returned.
    pub refuses_holes: bool,
}

/// The use of a place among the legs. [`LegDevice::set_seat`] changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seat {
    /// A leg of the mirror, or a volume that may be one.
    Taken,
    /// A missing leg whose slot is being removed, with its identifier: until that has happened, and
    /// what is there was read.
    LeavesWith(u8, Id),
    /// A removed leg: so many copies of its superblock are being overwritten.
    Wiping(u8),
    /// Another leg may take the place.
    Free,
}

/// Whether the blocks that a leg could not write can be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadRoom {
    Enough,
    /// There were more than fit, and it was not in sync since.
    Full,
    /// Again when it was rebuilt: it returns only by `restore`.
    Stuck,
}

/// A leg that the mirror goes on without.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missing {
    /// When it is tried again, ns.
    pub at_ns: u64,
    /// The pause before that, ns.
    pub wait_ns: u64,
    /// Why it left; `None`: it was missing at the start.
    pub outcome: Option<Outcome>,
    /// It was reported to the state machine as found.
    pub is_reported: bool,
    /// The user has ordered its return.
    pub is_requested: bool,
}

impl Missing {
    /// A leg that was missing at the start, and was found.
    pub fn since_start(now_ns: u64) -> Self {
        Self {
            at_ns: now_ns,
            wait_ns: LEG_RETRY_NS,
            outcome: None,
            is_reported: false,
            is_requested: false,
        }
    }
}

impl LegDevice {
    /// The device behind it.
    pub fn device(&self) -> DeviceId {
        DeviceId(self.config.volume)
    }

    /// A leg before anything was read of it.
    pub fn new(config: LegConfig) -> Self {
        Self {
            config,
            info: None,
            probe: None,
            probe_at_ns: 0,
            is_outdated: false,
            found: None,
            last: None,
            slot: None,
            missing: None,
            admin_offline: false,
            extent: Extent::default(),
            bad_room: BadRoom::Enough,
            unfit: None,
            unwritten: None,
            counters: LegCounters::default(),
            rebuild: None,
            replaces: None,
            seat: Seat::Taken,
            is_fenced: false,
            lost_caches: 0,
            given_up: 0,
            hangs_ns: None,
            depth: Depth::default(),
            refuses_holes: false,
        }
    }

    /// Whether its place is free.
    pub fn is_gone(&self) -> bool {
        self.seat == Seat::Free
    }

    /// Changes the seat.
    ///
    /// # Panics
    /// If the edge does not exist.
    pub fn set_seat(&mut self, next: Seat) {
        use Seat::*;
        let is_edge = match (self.seat, next) {
            (Taken, Taken | LeavesWith(..) | Wiping(1) | Free) => true,
            (LeavesWith(..), Taken | LeavesWith(..) | Wiping(1) | Free) => true,
            (Wiping(before), Wiping(now)) => before.abs_diff(now) == 1,
            (Wiping(0), Free) => true,
            _ => false,
        };
        let name = &self.config.name;
        assert!(is_edge, "{name}: from {:?} to {next:?}", self.seat);
        self.seat = next;
    }

    /// Frees its place.
    pub fn free_seat(&mut self) {
        self.set_seat(Seat::Free);
        (self.info, self.missing) = (None, None);
    }

    /// Whether it returns only by order of a user, or not before it is large enough.
    pub fn stays_missing(&self) -> bool {
        let is_stuck = self.bad_room == BadRoom::Stuck;
        self.admin_offline || self.extent.keeps_away() || is_stuck
    }

    /// Whether its return was ordered, and it was not read since.
    pub fn is_due(&self) -> bool {
        let stays = self.stays_missing() || self.is_gone();
        !stays
            && self
                .missing
                .is_some_and(|missing| !missing.is_reported && missing.is_requested)
    }

    /// Whether it is configured, and was never read.
    pub fn is_absent(&self) -> bool {
        self.slot.is_none() && self.found.is_none() && !self.is_gone()
    }

    /// Whether its superblocks failed to be read: a start goes on without it, and a mirror that
    /// runs reads them again.
    pub fn is_unread(&self) -> bool {
        self.found == Some(Err(NoLeg::Unreadable))
    }

    /// Forgets what was read of a leg that was too small, if it is large enough again. Returns
    /// whether it is.
    pub fn was_made_long(&mut self) -> bool {
        let needs = match self.found {
            Some(Err(NoLeg::Cut(bytes))) => bytes,
            _ => return false,
        };
        let is_long = self.info.is_some_and(|info| info.bytes >= needs);
        if is_long {
            (self.found, self.unfit) = (None, None);
        }
        is_long
    }
}

impl MirrorDevice {
    /// The limits that hold on every leg, while it runs.
    pub fn limits(&self) -> Option<IoLimits> {
        match &self.phase {
            Phase::Running(it) => Some(it.limits),
            Phase::Starting(_) | Phase::Over => None,
        }
    }

    /// Its state, as reported.
    pub fn state(&self) -> &MirrorState {
        &self.state
    }

    /// Bytes of its own memory that are not in use.
    pub fn scratch_free(&self) -> u64 {
        self.scratch.free_bytes()
    }

    pub(super) fn new(config: MirrorConfig, span: Span, room: usize) -> Self {
        Self {
            legs: config.legs.iter().cloned().map(LegDevice::new).collect(),
            phase: Phase::Starting(Starting::new(&config)),
            config,
            state: MirrorState::Gathering,
            span,
            scratch: Scratch::new(span),
            urgent: VecDeque::with_capacity(2 * LEGS_MAX),
            held: VecDeque::with_capacity(2 * LEGS_MAX),
            ended_early: VecDeque::with_capacity(room.min(1 << 16)),
            stopping: false,
            leaves: false,
            needs_turn: true,
            is_timeout_unchecked: true,
            orders: Orders::default(),
            refusal: Refusal::default(),
            unwiped: 0,
            paths_found: 0,
            evidence: Asked::No,
            started_without: Vec::new(),
        }
    }

    /// Does all that can be done now. Returns whether anything was.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) -> bool {
        self.handle_time(cx);
        let mut any = self.submit_held(cx) | self.submit_waiting(cx);
        while let Some((entry, outcome)) = self.ended_early.pop_front() {
            let done = Part {
                outcome,
                path: NO_PATH,
                latency_ns: 0,
            };
            self.ended(&entry, &done, cx);
            any = true;
        }
        any |= match &self.phase {
            Phase::Starting(_) => self.start(cx),
            Phase::Running(_) => self.run(cx),
            Phase::Over => false,
        };
        any
    }

    /// Ends a mirror that was stopped; the last states of its legs stay visible.
    pub fn end(&mut self) {
        if let Phase::Running(it) = &self.phase {
            let legs = &it.machine.superblock().legs;
            for leg in &mut self.legs {
                let entry = leg.slot.and_then(|slot| legs.get(usize::from(slot)));
                leg.last = entry.and_then(|entry| Some(entry.as_ref()?.state));
            }
        }
        (self.phase, self.state) = (Phase::Over, MirrorState::Stopped);
    }

    /// When something is due, ns.
    pub fn timeout(&self, host: &HostEngine) -> Option<u64> {
        if self.needs_turn {
            return Some(0);
        }
        match &self.phase {
            Phase::Starting(_) => self.start_timeout(),
            Phase::Running(_) => self.run_timeout(host),
            Phase::Over => None,
        }
    }

    /// Whether this device is the leg at a place. It is not once that leg was removed and another
    /// one has its place.
    pub fn is_leg(&self, at: usize, volume: u16) -> bool {
        let leg = self.legs.get(at);
        leg.is_some_and(|leg| !leg.is_gone() && leg.config.volume == volume)
    }

    /// Handles that the device of a leg is ready, or was resized.
    pub fn leg_ready(&mut self, at: usize, info: VolumeInfo, now_ns: u64) {
        let leg = &mut self.legs[at];
        let first = leg.info.replace(info).is_none();
        leg.extent.smallest = leg.extent.smallest.min(info.bytes);
        let anew = leg.was_made_long() || first;
        if anew && matches!(self.phase, Phase::Running(_)) && leg.slot.is_none() {
            leg.missing = Some(Missing::since_start(now_ns));
        }
        self.check_size(at, now_ns);
        self.needs_turn = true;
    }

    /// An I/O on the leg at a place.
    pub fn io(&self, at: usize, op: IoOp, offset: u64, span: Span) -> Io {
        Io {
            volume: self.legs[at].config.volume,
            op,
            offset,
            length: span.len,
            span,
            source: 0,
            cookie: 0,
        }
    }

    /// Whether another leg may have a place: nothing that it was given ends there any more.
    pub(super) fn is_vacant(&self, at: usize, (table, index): (&Table, u8)) -> bool {
        let leg = &self.legs[at];
        let queued = self.urgent.iter().chain(&self.held).map(|it| &it.0);
        let early = self.ended_early.iter().map(|it| &it.0);
        let mut given = table.of(index).chain(queued).chain(early);
        let waits = leg.depth.first().is_some();
        leg.is_gone() && !waits && given.all(|it| usize::from(it.leg) != at)
    }

    /// Whether requests wait for room in the host.
    pub fn lacks_room(&self) -> bool {
        !(self.urgent.is_empty() && self.held.is_empty())
    }

    /// Submits a request to a leg. Without room in the host it waits.
    pub(super) fn submit_or_hold(&mut self, entry: Entry, io: Io, cx: &mut Context<'_>) {
        if self.lacks_room() || !self.try_submit(entry, io, cx) {
            self.held.push_back((entry, io));
        }
    }

    /// Submits a read or write of a superblock, before all other requests that wait.
    pub(super) fn submit_urgent(&mut self, entry: Entry, io: Io, cx: &mut Context<'_>) {
        if !self.urgent.is_empty() || !self.try_submit(entry, io, cx) {
            self.urgent.push_back((entry, io));
        }
    }

    /// Submits data I/O or a user's flush to a leg, in order. Beyond the leg's window, or without
    /// room, it waits (T54).
    pub(super) fn submit_data(&mut self, entry: Entry, io: Io, cx: &mut Context<'_>) {
        let room = !self.lacks_room();
        let interval_ns = self.heartbeat_interval_ns();
        let depth = &mut self.legs[usize::from(entry.leg)].depth;
        if let Some((entry, io)) = depth.admit((entry, io), room, interval_ns, cx.now_ns) {
            self.submit_or_hold(entry, io, cx);
        }
    }

    /// Submits requests that waited for the windows of their legs. Returns whether any was.
    fn submit_waiting(&mut self, cx: &mut Context<'_>) -> bool {
        let interval_ns = self.heartbeat_interval_ns();
        let runs = matches!(&self.phase, Phase::Running(it) if !it.frozen);
        let mut any = false;
        for at in 0..self.legs.len() {
            while let Some(first) = self.legs[at].depth.first() {
                // The mirror stops, or the leg has left or is fenced: its requests end unsubmitted.
                let needless = self.is_needless(first) || self.legs[at].is_fenced;
                if needless || !runs {
                    let outcome = match runs {
                        true => Outcome::PathError,
                        false => Outcome::Stopped,
                    };
                    let dropped = self.legs[at].depth.drop_first();
                    self.ended_early.extend(dropped.map(|it| (it.0, outcome)));
                    any = true;
                    continue;
                }
                if self.lacks_room() {
                    break;
                }
                let leg = &mut self.legs[at];
                let answered_ns = cx.below.host.answered_ns(leg.config.volume);
                let Some((entry, io)) = leg.depth.next(interval_ns, answered_ns, cx.now_ns) else {
                    break;
                };
                self.submit_or_hold(entry, io, cx);
                any = true;
            }
        }
        any
    }

    /// The heartbeat interval, ns.
    pub fn heartbeat_interval_ns(&self) -> u64 {
        match &self.phase {
            Phase::Running(it) => heartbeat_ns(it.machine.superblock().beat_interval_ms),
            _ => heartbeat_ns(0),
        }
    }

    fn submit_held(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Some((entry, io)) = self.urgent.front().or(self.held.front()).copied() {
            if self.is_needless(&entry) {
                self.ended_early.push_back((entry, Outcome::PathError));
            } else if !self.try_submit(entry, io, cx) {
                break;
            }
            if self.urgent.pop_front().is_none() {
                self.held.pop_front();
            }
            any = true;
        }
        any
    }

    /// Whether a request that waits for room is for a leg which has left meanwhile.
    fn is_needless(&self, entry: &Entry) -> bool {
        match (entry.task, &self.phase) {
            (
                Task::Io(ticket)
                | Task::Own(ticket)
                | Task::Compare(ticket, ..)
                | Task::Run(Run { ticket, .. }),
                Phase::Running(it),
            ) => it.machine.is_needless(ticket),
            _ => false,
        }
    }

    /// Submits a request, or ends it. Returns false without room.
    fn try_submit(&mut self, entry: Entry, io: Io, cx: &mut Context<'_>) -> bool {
        let Some(key) = cx.table.put(entry) else {
            return false;
        };
        let cookie = Issuer::Device(key).to_cookie();
        let io = Io { cookie, ..io };
        if self.is_fenced_off(&entry) {
            cx.table.take(key);
            self.ended_early.push_back((entry, Outcome::PathError));
            return true;
        }
        let submitted = cx.below.submit(&io, Some(entry.hints), cx.now_ns);
        let outcome = match submitted {
            Ok(()) => return true,
            Err(SubmitError::Full) => {
                cx.table.take(key);
                return false;
            }
            Err(SubmitError::NotReady) if cx.below.host.is_stopping() => Outcome::Stopped,
            Err(SubmitError::NotReady) => Outcome::PathError,
            Err(SubmitError::Range) => Outcome::Invalid,
            Err(SubmitError::PastEnd { .. }) => Outcome::PastEnd,
        };
        cx.table.take(key);
        self.ended_early.push_back((entry, outcome));
        true
    }

    /// Whether its leg was fenced while it waited for room.
    fn is_fenced_off(&self, entry: &Entry) -> bool {
        let is_heartbeat = match entry.task {
            Task::Own(ticket) => ticket.is_heartbeat(),
            Task::Probe(_) | Task::Acquire(_) | Task::Wipe => true,
            Task::Io(_) | Task::Pages(_) | Task::Compare(..) | Task::Run(_) => false,
        };
        self.legs[usize::from(entry.leg)].is_fenced && !is_heartbeat
    }

    /// Handles the end of a request to a leg.
    pub(super) fn leg_ended(&mut self, entry: &Entry, done: &IoDone, cx: &mut Context<'_>) {
        let done = Part {
            outcome: done.outcome,
            path: done.path,
            latency_ns: done.latency_ns,
        };
        self.ended(entry, &done, cx);
    }

    fn ended(&mut self, entry: &Entry, done: &Part, cx: &mut Context<'_>) {
        let outcome = done.outcome;
        let at = usize::from(entry.leg);
        self.legs[at].depth.answered(outcome, cx.now_ns);
        if entry.counted {
            let interval_ns = self.heartbeat_interval_ns();
            let is_flush = matches!(entry.task, Task::Io(_)) && entry.part.op == IoOp::Flush;
            let depth = &mut self.legs[at].depth;
            depth.ended(done, is_flush, interval_ns, cx.now_ns);
        }
        if let Task::Io(ticket) = entry.task {
            self.part_ended(at, ticket, (&entry.part, done), cx);
        }
        match entry.task {
            Task::Probe(copy) => self.probe_read(at, copy, outcome, cx),
            Task::Acquire(index) => self.record_written(index, outcome, cx.now_ns),
            Task::Wipe => self.superblock_wiped(at, outcome, cx),
            _ => self.task_ended(entry, done, cx),
        }
        if entry.span.len > 0 {
            self.scratch.give_back(entry.span);
        }
    }
}
