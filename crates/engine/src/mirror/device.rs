//! A mirror on its core: its phase and its legs.
use super::buffer_leases::BufferLeases;
use super::dispatch::Running;
use super::leg::{LegDevice, Missing};
use super::record::Asked;
use super::requests::Part;
use super::start::Starting;
use super::table::{Entry, Table};
use super::types::{MirrorConfig, MirrorState, Pending};
use crate::devices::BackEndsMut;
use crate::host::{HostEngine, HostEvent, Io, IoOp, NO_PATH, VolumeInfo};
use crate::machine::{Memory, Span};
use crate::scratch::Scratch;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use block::IoLimits;
use mirror::limits::LEGS_MAX;
use mirror::machine::{CheckReport, Ticket};
use mirror::ownership::heartbeat_ns;
use mirror::{Crc32c, Name};
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

    /// The heartbeat interval, ns.
    pub fn heartbeat_interval_ns(&self) -> u64 {
        match &self.phase {
            Phase::Running(it) => heartbeat_ns(it.machine.superblock().beat_interval_ms),
            _ => heartbeat_ns(0),
        }
    }
}
