//! One mirror on its core: its legs, in which phase it is, and what it gives to the host.
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
use mirror::superblock::LegState;
use mirror::{Crc32c, Name};
use volume::Outcome;

/// What a mirror is driven with.
pub(super) struct Context<'a> {
    /// The devices that it may submit to.
    pub below: BackEndsMut<'a>,
    pub table: &'a mut Table,
    pub buffer_leases: &'a mut BufferLeases,
    pub events: &'a mut VecDeque<HostEvent>,
    pub memory: &'a mut dyn Memory,
    pub crc32c: Crc32c,
    /// As the program numbers it, and among the mirrors.
    pub number: u16,
    pub index: u8,
    pub now_ns: u64,
}

/// See the module.
pub(crate) struct MirrorDevice {
    pub(super) config: MirrorConfig,
    pub(super) legs: Vec<LegDevice>,
    pub(super) phase: Phase,
    pub(super) state: MirrorState,
    /// Its own part of the arena.
    pub(super) span: Span,
    pub(super) scratch: Scratch,
    /// Superblocks to be read or written that found no room in the host, oldest first: nothing else
    /// is given before them, or leases end while data is written (T54).
    pub(super) urgent: VecDeque<(Entry, Io)>,
    /// What else found no room there, oldest first (T6); it grows only then. Data waits for its leg
    /// instead.
    pub(super) held: VecDeque<(Entry, Io)>,
    /// What ended as soon as it was given.
    pub(super) ended_early: VecDeque<(Entry, Outcome)>,
    pub(super) stopping: bool,
    /// A timer was set, or something else needs a turn.
    pub(super) needs_turn: bool,
    /// Set once a turn: the state machine's timeout was not compared with the time yet.
    pub(super) is_timeout_unchecked: bool,
    /// It is to become larger, as soon as what its legs show is known.
    pub(super) grow_requested: bool,
    pub(super) grown: Option<Result<u64, String>>,
    /// See [`MirrorReport`](super::MirrorReport).
    pub(super) not_added: Option<(u16, String)>,
    pub(super) taken_back: Option<(Pending, bool)>,
    pub(super) checked: Option<CheckReport>,
    /// A check is under way since.
    pub(super) checking_ns: Option<u64>,
    /// Why it was not begun anew.
    pub(super) not_begun: Option<String>,
    /// How often it was not started.
    pub(super) refusals: u64,
    /// The name that its legs' mirror has instead, for which it was not started last.
    pub(super) other_name: Option<Name>,
    /// A user takes a mirror of another name.
    pub(super) accepts_name: bool,
    /// Slots, as bits, whose leg was removed and still says that it is one.
    pub(super) unwiped: u16,
    /// It was refused, and does not start before somebody does something about it.
    pub(super) refusal_lasts: bool,
    /// Paths that the host had found when bounds were looked at.
    pub(super) paths_found: u64,
    /// What the program's record says of the mirror, for the start under way.
    pub(super) evidence: Asked,
    /// See [`MirrorReport`](super::MirrorReport).
    pub(super) started_without: Vec<u8>,
}

pub(super) enum Phase {
    /// It does not run yet.
    Starting(Box<Starting>),
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

/// A leg as its mirror's driver has it: the device, what was seen of that, and what it was given.
/// Whether it has all data, and may be read, the machine knows, by its slot.
pub(super) struct LegDevice {
    pub config: LegConfig,
    /// Once the host's volume is ready.
    pub info: Option<VolumeInfo>,
    pub probe: Option<Probe>,
    pub probe_at_ns: u64,
    /// What it said was read for a start that was refused: it is read anew before the next.
    pub is_outdated: bool,
    /// What it said.
    pub found: Option<Result<Chosen, NoLeg>>,
    /// What it was when the mirror was stopped.
    pub last: Option<LegState>,
    /// Which one it is, once the mirror runs.
    pub slot: Option<u8>,
    /// It has left, or was not there at the start.
    pub missing: Option<Missing>,
    /// The user took it out: it returns only when told to.
    pub admin_offline: bool,
    pub extent: Extent,
    pub bad_room: BadRoom,
    /// It can't return, and why.
    pub unfit: Option<alloc::string::String>,
    /// It refused the owner's record when that was written last, and is left out for it.
    pub unwritten: Option<Outcome>,
    pub counters: LegCounters,
    /// It is being rebuilt: since when, and how many regions it lacked then.
    pub rebuild: Option<(u64, u64)>,
    /// The slot of the leg that goes when this one is in sync.
    pub replaces: Option<u8>,
    pub seat: Seat,
    /// Another host may take it over: it gets nothing but beats (T48).
    pub is_fenced: bool,
    /// Controllers of it that are lost with what they had in their caches, as last looked at.
    pub lost_caches: u64,
    /// How often its volume had given up unflushed writes when that was looked at last.
    pub given_up: u32,
    /// It has no path left, and a device that ends nothing: when the mirror goes on without it.
    pub hangs_ns: Option<u64>,
    /// Data I/O that it has, and that waits for it.
    pub depth: Depth,
    /// It has refused or denied to make a hole since it returned.
    pub refuses_holes: bool,
}

/// Whether a place among the legs is a leg's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seat {
    /// A leg of the mirror, or a volume that may be one.
    Taken,
    /// It was not there yet, and the leg of this slot, which it was to be, is being removed.
    LeavesWith(u8),
    /// It is no leg any more: so many copies of its superblock are being overwritten.
    Wiping(u8),
    /// Nothing is there any more: another leg may take the place.
    Free,
}

/// Whether the blocks that a leg could not write can be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadRoom {
    Enough,
    /// There were more, and it was not in sync since.
    Full,
    /// The same once more when it was rebuilt: it returns only when told to.
    Stuck,
}

/// A leg that the mirror goes on without.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missing {
    /// When it is tried again.
    pub at_ns: u64,
    /// How long it was to wait this time.
    pub wait_ns: u64,
    /// Why it left; `None`: it was never there.
    pub outcome: Option<Outcome>,
    /// It was told that it is there.
    pub is_reported: bool,
    /// The user has said that it is to return.
    pub is_requested: bool,
}

impl Missing {
    /// One that was not there at the start, and is now.
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
    /// The device that it is.
    pub fn device(&self) -> DeviceId {
        DeviceId(self.config.volume)
    }

    /// One that nothing is known of yet.
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

    /// Whether nothing is in its place any more.
    pub fn is_gone(&self) -> bool {
        self.seat == Seat::Free
    }

    /// Its place is free.
    pub fn free_seat(&mut self) {
        (self.seat, self.info, self.missing) = (Seat::Free, None, None);
    }

    /// Whether it returns only when told to, or not before it is large enough.
    pub fn stays_missing(&self) -> bool {
        let is_stuck = self.bad_room == BadRoom::Stuck;
        self.admin_offline || self.extent.keeps_away() || is_stuck
    }

    /// Whether it was told to return, and was not looked at since.
    pub fn is_due(&self) -> bool {
        let stays = self.stays_missing() || self.is_gone();
        !stays
            && self
                .missing
                .is_some_and(|missing| !missing.is_reported && missing.is_requested)
    }

    /// Whether it was given, and was not there since.
    pub fn is_absent(&self) -> bool {
        self.slot.is_none() && self.found.is_none() && !self.is_gone()
    }

    /// Whether its superblocks failed to be read: a start goes on without it, and a mirror that
    /// runs reads them again.
    pub fn is_unread(&self) -> bool {
        self.found == Some(Err(NoLeg::Unreadable))
    }

    /// One that was cut off and is as long again: what it is, is to be read anew.
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
    /// What one command can do on every leg, while it runs.
    pub fn limits(&self) -> Option<IoLimits> {
        match &self.phase {
            Phase::Running(it) => Some(it.limits),
            Phase::Starting(_) | Phase::Over => None,
        }
    }

    /// How far it is.
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
            needs_turn: true,
            is_timeout_unchecked: true,
            grow_requested: false,
            grown: None,
            not_added: None,
            taken_back: None,
            checked: None,
            checking_ns: None,
            not_begun: None,
            refusals: 0,
            other_name: None,
            accepts_name: false,
            unwiped: 0,
            refusal_lasts: false,
            paths_found: 0,
            evidence: Asked::No,
            started_without: Vec::new(),
        }
    }

    /// Does all that can be done now; whether that was anything.
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

    /// It was stopped: nothing comes of it any more but what it was.
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

    /// Whether it is this volume that leads to the leg at a place: not if that leg was removed,
    /// and maybe another one has its place.
    pub fn is_leg(&self, at: usize, volume: u16) -> bool {
        let leg = self.legs.get(at);
        leg.is_some_and(|leg| !leg.is_gone() && leg.config.volume == volume)
    }

    /// The host's volume of a leg is ready, or has another size.
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

    /// An I/O of the leg's volume.
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

    /// Whether the host had no room when something was given last.
    pub fn lacks_room(&self) -> bool {
        !(self.urgent.is_empty() && self.held.is_empty())
    }

    /// Gives something to a leg; where the host has no room, it waits.
    pub(super) fn submit_or_hold(&mut self, entry: Entry, io: Io, cx: &mut Context<'_>) {
        if self.lacks_room() || !self.try_submit(entry, io, cx) {
            self.held.push_back((entry, io));
        }
    }

    /// The same of a superblock, which goes before all else that waits.
    pub(super) fn submit_urgent(&mut self, entry: Entry, io: Io, cx: &mut Context<'_>) {
        if !self.urgent.is_empty() || !self.try_submit(entry, io, cx) {
            self.urgent.push_back((entry, io));
        }
    }

    /// Gives data I/O or a user's flush to a leg, in order; beyond its window, or without room, it
    /// waits (T54).
    pub(super) fn submit_data(&mut self, entry: Entry, io: Io, cx: &mut Context<'_>) {
        let room = !self.lacks_room();
        let interval_ns = self.heartbeat_interval_ns();
        let depth = &mut self.legs[usize::from(entry.leg)].depth;
        if let Some((entry, io)) = depth.admit((entry, io), room, interval_ns, cx.now_ns) {
            self.submit_or_hold(entry, io, cx);
        }
    }

    /// Gives what waited for the windows of its legs; whether that was anything.
    fn submit_waiting(&mut self, cx: &mut Context<'_>) -> bool {
        let interval_ns = self.heartbeat_interval_ns();
        let runs = matches!(&self.phase, Phase::Running(it) if !it.frozen);
        let mut any = false;
        for at in 0..self.legs.len() {
            while let Some(first) = self.legs[at].depth.first() {
                // The mirror stops, or the leg has left or was cut off: what never went there ends.
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

    /// Whether something waits for room that is for a leg which has left meanwhile.
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

    /// False: there is no room.
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

    /// Whether it waited for room until its leg was cut off.
    fn is_fenced_off(&self, entry: &Entry) -> bool {
        let beat = match entry.task {
            Task::Own(ticket) => ticket.is_heartbeat(),
            Task::Probe(_) | Task::Acquire(_) | Task::Wipe => true,
            Task::Io(_) | Task::Pages(_) | Task::Compare(..) | Task::Run(_) => false,
        };
        self.legs[usize::from(entry.leg)].is_fenced && !beat
    }

    /// What a leg was given has ended.
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
