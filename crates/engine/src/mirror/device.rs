//! A mirror on its core: its phase and its legs.
use super::buffer_leases::BufferLeases;
use super::dispatch::{Health, Running};
use super::leg::LegDevice;
use super::queue::RequestQueue;
use super::start::Starting;
use super::table::{Table, given_by};
use super::types::{MirrorConfig, MirrorState, Pending};
use crate::devices::BackEndsMut;
use crate::host::{HostEvent, Io, IoOp, Multipath, VolumeInfo};
use crate::machine::{Memory, Span};
use crate::scratch::Scratch;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use block::IoLimits;
use mirror::machine::CheckReport;
use mirror::ownership::heartbeat_ns;
use mirror::{Crc32c, Name, Superblock};

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
    pub(super) life: Life,
    /// Its own part of the arena.
    pub(super) span: Span,
    pub(super) scratch: Scratch,
    pub(super) queue: RequestQueue,
    /// A timer was set, or something else needs a turn.
    pub(super) needs_turn: bool,
    /// Set once a turn: the state machine's timeout was not compared with the time yet.
    pub(super) is_timeout_unchecked: bool,
    pub(super) orders: Orders,
    pub(super) refusal: Refusal,
    /// Slots, as bits, whose removed leg still has its superblocks.
    pub(super) unwiped: u16,
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

impl Orders {
    /// A check begins: the result of the one before is no answer to its caller.
    pub fn begin_check(&mut self, now_ns: u64) {
        (self.checked, self.checking_ns) = (None, Some(now_ns));
    }
}

/// Refused starts.
#[derive(Default)]
pub(super) struct Refusal {
    /// How many there were.
    pub count: u64,
    /// Why the last one was refused, in a line.
    pub line: Option<String>,
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
    /// It was stopped; its last superblock, if it ran.
    Over(Option<Box<Superblock>>),
}

/// Whether a mirror is to stop. It only ever becomes greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Life {
    Serving,
    /// It stops, or has.
    Stopping,
    /// It goes when it has stopped.
    Leaving,
}

impl MirrorDevice {
    /// The limits that hold on every leg, while it runs.
    pub fn limits(&self) -> Option<IoLimits> {
        match &self.phase {
            Phase::Running(it) => Some(it.limits),
            Phase::Starting(_) | Phase::Over(_) => None,
        }
    }

    /// Its state, as reported.
    pub fn state(&self) -> MirrorState {
        let refused = || self.refusal.line.clone().map(MirrorState::Refused);
        match &self.phase {
            Phase::Running(it) => match &it.health {
                Health::Unreported => refused().unwrap_or(MirrorState::Assembling),
                Health::Good => MirrorState::Running,
                Health::Failed(why) => MirrorState::Failed(why.clone()),
            },
            Phase::Starting(_) => refused().unwrap_or(MirrorState::Assembling),
            Phase::Over(_) => MirrorState::Stopped,
        }
    }

    /// Whether it is to stop, or has.
    pub(super) fn is_stopping(&self) -> bool {
        self.life >= Life::Stopping
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
            life: Life::Serving,
            span,
            scratch: Scratch::new(span),
            queue: RequestQueue::new(room),
            needs_turn: true,
            is_timeout_unchecked: true,
            orders: Orders::default(),
            refusal: Refusal::default(),
            unwiped: 0,
            started_without: Vec::new(),
        }
    }

    /// Does all that can be done now. Returns whether anything was.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) -> bool {
        self.handle_time(cx);
        let any = self.submit_held(cx) | self.submit_waiting(cx) | self.end_early(cx);
        any | match &self.phase {
            Phase::Starting(_) => self.start(cx),
            Phase::Running(_) => self.run(cx),
            Phase::Over(_) => false,
        }
    }

    /// Ends a mirror that was stopped; the last states of its legs stay visible.
    pub fn end(&mut self) {
        let last = match core::mem::replace(&mut self.phase, Phase::Over(None)) {
            Phase::Running(it) => Some(Box::new(*it.machine.superblock())),
            Phase::Over(last) => last,
            Phase::Starting(_) => None,
        };
        self.phase = Phase::Over(last);
    }

    /// When something is due, ns.
    pub fn timeout(&self, host: &Multipath) -> Option<u64> {
        if self.needs_turn {
            return Some(0);
        }
        match &self.phase {
            Phase::Starting(_) => self.start_timeout(),
            Phase::Running(_) => self.run_timeout(host),
            Phase::Over(_) => None,
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
        let smallest = &mut leg.returns.extent.smallest;
        *smallest = info.bytes.min(*smallest);
        let anew = leg.was_made_long() || first;
        if anew && matches!(self.phase, Phase::Running(_)) && leg.slot.is_none() {
            leg.returns.wait_since_start(now_ns);
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
        let mut given = given_by(table, index).chain(self.queue.iter());
        let waits = leg.depth.first().is_some();
        leg.is_gone() && !waits && given.all(|it| usize::from(it.leg) != at)
    }

    /// The heartbeat interval, ns.
    pub fn heartbeat_interval_ns(&self) -> u64 {
        match &self.phase {
            Phase::Running(it) => heartbeat_ns(it.machine.superblock().heartbeat_interval_ms),
            _ => heartbeat_ns(0),
        }
    }
}
