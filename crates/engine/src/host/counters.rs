//! Counters of a path on this core, for statistics, and why it does nothing; reports of cores to
//! each other of I/Os in flight and of what they measured.
use super::io_table::{AttemptEnd, IoTable, Slot};
use super::outbox::Outbox;
use super::path::Path;
use super::probation::PathHealth;
use super::types::{HostEvent, IoOp, PathFacts, PathState, ReconnectWait};
use super::volumes::{LegRole, Volume};
use super::{Multipath, WriteFailover, report};
use crate::latency::LatencyHistogram;
use alloc::string::String;
use alloc::vec::Vec;
use block::IoLimits;
use multipath::{Head, Outcome};
use policy::limits::BUCKETS;
use policy::{
    Aggregate, Group, KnobError, Knobs, PathIndex, PathStats, Policy, ProgramId, ProgramSlot,
};

/// Kinds of errors that paths answer with, for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The path failed, or was lost before it answered.
    Path,
    /// No answer within `io_timeout`.
    TimedOut,
    /// A passing failure of the controller, such as an internal error: the I/O is repeated.
    Busy,
    /// Damaged on the way, or not transferred.
    Transfer,
    /// The data can't be read or written, or are gone.
    Media,
    /// No space is left.
    Space,
    /// Write protected, reserved, or without the right.
    Access,
    /// The command was wrong, unknown, or beyond the end.
    Request,
    /// The engine stopped.
    Stopped,
}

impl ErrorClass {
    /// All of them, in order.
    pub const ALL: [Self; 9] = [
        Self::Path,
        Self::TimedOut,
        Self::Busy,
        Self::Transfer,
        Self::Media,
        Self::Space,
        Self::Access,
        Self::Request,
        Self::Stopped,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::TimedOut => "timeout",
            Self::Busy => "busy",
            Self::Transfer => "transfer",
            Self::Media => "media",
            Self::Space => "space",
            Self::Access => "access",
            Self::Request => "request",
            Self::Stopped => "stopped",
        }
    }

    /// That of an outcome; `None`: it was done.
    pub fn of(outcome: Outcome, in_transit: bool) -> Option<Self> {
        Some(match outcome {
            Outcome::Done => return None,
            _ if in_transit => Self::Transfer,
            Outcome::PathError => Self::Path,
            Outcome::TimedOut => Self::TimedOut,
            Outcome::Busy { .. } => Self::Busy,
            Outcome::MediaError | Outcome::CutShort | Outcome::Erased => Self::Media,
            Outcome::NoSpace => Self::Space,
            Outcome::ReadOnly | Outcome::Denied | Outcome::Reservation => Self::Access,
            Outcome::Mismatch | Outcome::Unsupported | Outcome::Invalid | Outcome::PastEnd => {
                Self::Request
            }
            Outcome::Stopped => Self::Stopped,
        })
    }
}

/// Counters of one path on this core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounters {
    /// I/Os completed well: read, write, other.
    pub ios: [u64; 3],
    /// Bytes: read, written.
    pub bytes: [u64; 2],
    /// I/Os failed.
    pub errors: u64,
    /// Of those, answered with an error of what is behind the path, repeated or not.
    pub device_errors: u64,
    /// The errors by class, in the order of [`ErrorClass::ALL`].
    pub errors_by_class: [u64; ErrorClass::ALL.len()],
    /// Times that this core could use it, the first one included.
    pub connects: u64,
    /// Of those, that ended with its loss.
    pub losses: u64,
    /// Transfers that were damaged or failed on the way: from the target, to it.
    pub damaged: [u64; 2],
    /// When the last of them was noticed, ns; 0: none was.
    pub damaged_ns: u64,
    /// I/Os that had no answer within `io_timeout`, however they ended.
    pub timed_out: u64,
    /// Of those, taken back by Abort.
    pub aborted: u64,
    /// I/Os that had to wait because the path was full.
    pub waited_full: u64,
    /// Second copies of late reads that were sent here.
    pub copies: u64,
    /// In flight now, including those that wait for room.
    pub in_flight: u32,
}

impl PathCounters {
    /// Counts the end of an attempt.
    #[inline]
    pub(super) fn count(&mut self, slot: &Slot, outcome: Outcome) {
        let io = &slot.io;
        if !outcome.is_done() {
            // Where the caller has another way, only the path can fail it.
            if !slot.hints.replaceable || outcome.is_path_error() {
                self.errors += 1;
                let in_transit = slot.history.attempt == AttemptEnd::InTransit;
                let is_device = outcome.is_device_error() && !in_transit;
                self.device_errors += u64::from(is_device);
                if let Some(class) = ErrorClass::of(outcome, in_transit) {
                    self.errors_by_class[class as usize] += 1;
                }
            }
            return;
        }
        self.ios[group(io.op) as usize] += 1;
        match io.op {
            IoOp::Read => self.bytes[0] += u64::from(io.length),
            IoOp::Write { .. } => self.bytes[1] += u64::from(io.length),
            _ => {}
        }
    }
}

impl Volume {
    /// Why it takes no I/O of this core; `None`: it does, or would if no better one was there.
    fn hindrance(&self, at: PathIndex, cores: u16) -> Option<String> {
        let it = &self.paths[at];
        // Worlds ask after every turn: what nobody shows is not searched for.
        let last = || report::last_reported(it);
        if it.admin_state() == super::path::AdminState::GivenUp {
            if super::change::is_device(&it.kind) {
                return Some(last().into());
            }
            return Some(report::stays_lost(
                &self.name,
                it,
                self.recovery.ctrl_loss_ns,
            ));
        }
        let by_hand = it.admin_state() == super::path::AdminState::Failed;
        match it.state(&self.recovery, &self.head) {
            PathState::Reconnecting if !last().is_empty() && !it.is_over() => {
                Some(alloc::format!("it is being connected again: {}", last()))
            }
            PathState::Reconnecting | PathState::Failed if !last().is_empty() && !by_hand => {
                Some(last().into())
            }
            state @ (PathState::Connecting
            | PathState::Failed
            | PathState::Reconnecting
            | PathState::Removed) => Some(report::out_of_use(state).into()),
            _ if it.is_live() && !it.has_queue() => self.lacks_queue(at, cores),
            PathState::Draining | PathState::Live | PathState::Probation => {
                let head = &self.head;
                let why = head.probation(it.index).filter(|_| head.sits_out(it.index));
                let why = why.map(|of| report::on_probation(it, of.why));
                let hindrance = head.hindrance(it.index).map(report::hindered);
                hindrance.or(why).map(String::from)
            }
        }
    }
}

/// How a path is doing on one core: all that is shown of it.
#[derive(Debug)]
pub struct PathReport {
    /// State.
    pub state: PathState,
    /// Counters.
    pub counters: PathCounters,
    /// The selector's (row A9), by group.
    pub groups: [PathStats; 3],
    /// The same by size of I/O (row A12), by group; empty where the policy does not keep sizes
    /// apart.
    pub buckets: Vec<[PathStats; BUCKETS]>,
    /// Latencies of the I/Os that it did, from when each was placed on it, by group.
    pub latency: [LatencyHistogram; 3],
    /// Since when it can be used, ns of the core's clock; `None`: it is not live.
    pub live_ns: Option<u64>,
    /// Predicted time of a read and a write of 4 KiB, ns, where the policy predicts it.
    pub expected_ns: [Option<u64>; 2],
    /// Facts that core 0 learnt of it.
    pub facts: Option<PathFacts>,
    /// Whether it is on probation, and how its probes went.
    pub health: PathHealth,
    /// Why it takes no I/O, if it doesn't.
    pub hindrance: Option<String>,
    /// I/Os that it answered with errors of what is behind it, of late: repeated, and failed. Not
    /// of legs of mirrors, which judge those themselves.
    pub device_errors: [u32; 2],
    /// When the oldest I/O in flight was submitted, and the oldest change, ns of the core's clock.
    pub oldest_ns: [Option<u64>; 2],
    /// Core 0: how long it still waits to be connected again, if it was lost.
    pub wait: Option<ReconnectWait>,
}

/// As its mirror, and front ends, see it.
impl Volume {
    /// Limits of one command on every path (T34), once it is ready. Larger I/O is cut to that.
    pub fn limits(&self) -> Option<IoLimits> {
        self.ready.as_ref().map(|it| it.limits)
    }

    /// Whether any path can take I/O now, and whether one can that is not on probation.
    pub fn usability(&self) -> (bool, bool) {
        let usable = self.ready.is_some() && self.head.is_usable();
        let mut paths = self.paths.indexes();
        let is_well = |at: PathIndex| {
            self.head.usable() >> at.0 & 1 == 1 && self.head.probation(at).is_none()
        };
        (usable, usable && paths.any(is_well))
    }

    /// The paths that its policy chooses from now, as bits.
    pub fn usable(&self) -> u64 {
        self.ready.as_ref().map_or(0, |_| self.head.usable())
    }

    /// When a path has ended an I/O well last, or was connected, of those that have failed nothing
    /// since; 0: none has.
    pub(crate) fn answered_ns(&self) -> u64 {
        self.head.well_ns()
    }

    /// Whether it has no usable path left, and a local device still has what it was given when it
    /// was lost: nobody knows when that ends.
    pub(crate) fn hangs(&self) -> bool {
        let lost = |path: &Path| path.is_over() && !path.lane.is_empty();
        let hangs = |path: &Path| path.kind.device().is_some() && lost(path);
        !self.usability().0 && self.paths.iter().any(hangs)
    }

    /// When a path was lost last under changes that were not answered, of a volume that does not
    /// fence its writes; for some time from then on they may be executed, though they have failed
    /// (T9).
    pub(crate) fn left_ns(&self) -> Option<u64> {
        self.fence.unfenced_loss_ns()
    }

    /// How often it has given up unflushed writes: a change that began before that and is not done
    /// yet is not known to be whole (T13).
    pub fn times_given_up(&self) -> u32 {
        self.losses.generation_of_all()
    }

    /// Changes with every loss for which flushes of this core fail; other cores' fail for
    /// themselves (T13).
    pub fn flush_losses(&self) -> u32 {
        self.losses.generation()
    }

    /// Relative throughput of a path, for `service-time`.
    pub(super) fn set_throughput(&mut self, at: PathIndex, throughput: u8) {
        if self.paths.get(at).is_some() {
            self.head.set_throughput(at, throughput);
        }
    }

    /// NUMA distance of a path, for `numa`.
    pub(super) fn set_distance(&mut self, at: PathIndex, distance: u32) {
        if self.paths.get(at).is_some() {
            self.head.set_distance(at, distance);
        }
    }

    /// Lets a program select its paths, which may come later.
    pub(super) fn set_program(
        &mut self,
        id: ProgramId,
        program: ProgramSlot,
        knobs: Knobs,
        out: &mut Outbox,
    ) {
        let changed = match program.0 {
            Some(program) => self.head.set_program(id, program, knobs),
            None => self.head.set_policy(Policy::Program(id), knobs),
        };
        self.note_unchanged(changed, out);
    }

    /// Selects its paths.
    pub(super) fn set_policy(&mut self, policy: Policy, knobs: Knobs, out: &mut Outbox) {
        let changed = self.head.set_policy(policy, knobs);
        self.note_unchanged(changed, out);
    }

    fn note_unchanged(&self, changed: Result<(), KnobError>, out: &mut Outbox) {
        if let Err(why) = changed {
            let line = alloc::format!("{}: policy not changed: {why}", self.name);
            out.report(HostEvent::Warning(self.number, line));
        }
    }
}

impl Path {
    /// When the oldest I/O in flight was submitted, and the oldest change of data, ns.
    fn oldest_ns(&self, ios: &IoTable) -> [Option<u64>; 2] {
        let all = || ios.of(&self.lane);
        let is_change = |slot: &&Slot| !matches!(slot.io.op, IoOp::Read | IoOp::Flush);
        [
            all().map(|slot| slot.started_ns).min(),
            all().filter(is_change).map(|slot| slot.started_ns).min(),
        ]
    }
}

/// The selector's statistics of a path by group and size.
fn by_size(head: &Head, path: PathIndex) -> Vec<[PathStats; BUCKETS]> {
    let Policy::WeightedLatency(Aggregate { buckets: true, .. }) = head.policy() else {
        return Vec::new();
    };
    let of = |group| core::array::from_fn(|bucket| head.bucket_stats(path, group, bucket));
    Group::ALL.into_iter().map(of).collect()
}

impl Multipath {
    /// Why a path is in its state; `None`: it is live, or not there.
    pub fn path_reason(&self, volume: u16, path: PathIndex) -> Option<String> {
        let it = self.volumes.get(usize::from(volume))?;
        let of = it.paths.get(path)?;
        match of.state(&it.recovery, &it.head) {
            PathState::Live | PathState::Removed => None,
            PathState::Probation => {
                let why = it.head.probation(path)?.why;
                Some(report::on_probation(of, why).into())
            }
            _ => it.hindrance(path, self.on.settings.cores),
        }
    }

    /// Why a path takes no I/O of this core; `None`: it does, or would if no better one was there.
    pub fn path_hindrance(&self, volume: u16, path: PathIndex) -> Option<String> {
        let it = self.volumes.get(usize::from(volume));
        match it.filter(|it| it.paths.get(path).is_some()) {
            Some(it) => it.hindrance(path, self.on.settings.cores),
            None => Some("it is gone".into()),
        }
    }

    /// A volume is a mirror's leg: of one on this core, which alone writes to it, or on another.
    pub fn set_leg(&mut self, volume: u16, is_here: bool) {
        if let Some(it) = self.volumes.get_mut(usize::from(volume)) {
            it.leg = match is_here {
                true => LegRole::Here { is_claimed: false },
                false => LegRole::Elsewhere,
            };
        }
    }

    /// How a path is doing on this core at `now_ns`. Of one that has left, the policy's statistics
    /// are those of its index; a volume that is not there has none.
    pub fn path_report(&self, volume: u16, index: PathIndex, now_ns: u64) -> PathReport {
        let it = self.volumes.get(usize::from(volume));
        let path = self.path_of(volume, index);
        let head = it.map(|it| &it.head);
        let stats = |group| head.map_or_else(PathStats::default, |it| it.stats(index, group));
        let health = head.filter(|_| path.is_some()).map(|it| PathHealth {
            probation: it.probation(index),
            tally: it.tally(index),
        });
        PathReport {
            state: self.path_state(volume, index),
            counters: self.counters(volume, index),
            groups: Group::ALL.map(stats),
            buckets: head.map_or_else(Vec::new, |it| by_size(it, index)),
            expected_ns: [Group::Read, Group::Write].map(|group| {
                let head = head.filter(|_| path.is_some())?;
                head.expected_ns(index, group, now_ns)
            }),
            latency: path.map_or_else(Default::default, |it| *it.latency),
            live_ns: path.and_then(|it| it.session.live_ns()),
            facts: path.and_then(|it| it.known.facts.as_deref().cloned()),
            health: health.unwrap_or_default(),
            hindrance: self.path_hindrance(volume, index),
            device_errors: path.map_or([0; 2], |it| it.errors.device.recent(now_ns)),
            oldest_ns: path.map_or([None; 2], |it| it.oldest_ns(&self.on.ios)),
            wait: it.and_then(|it| it.reconnect_wait(index, now_ns)),
        }
    }

    /// Whether what a volume has failed can't be executed late (T9).
    pub fn is_fenced(&self, volume: u16) -> bool {
        let it = self.volumes.get(usize::from(volume));
        it.is_some_and(|it| it.recovery.write_failover == WriteFailover::Fenced)
    }

    /// Most I/Os in flight on this core.
    pub fn io_max(&self) -> usize {
        self.on.settings.io_max as usize
    }

    /// How a path is doing on this core; removed, if there is none.
    pub fn path_state(&self, volume: u16, path: PathIndex) -> PathState {
        let it = self.volumes.get(usize::from(volume));
        let state = it.and_then(|it| Some(it.paths.get(path)?.state(&it.recovery, &it.head)));
        state.unwrap_or(PathState::Removed)
    }

    /// Slots of this core that are neither free nor of an I/O: there should be none, ever. Looks at
    /// all.
    pub fn slots_leaked(&self) -> usize {
        self.on.ios.leaked()
    }

    /// Counters of a path on this core; zero for one that isn't there.
    pub fn counters(&self, volume: u16, path: PathIndex) -> PathCounters {
        let Some(it) = self.path_of(volume, path) else {
            return PathCounters::default();
        };
        let in_flight = self.in_flight(volume, path);
        PathCounters {
            in_flight,
            ..it.counters
        }
    }

    /// The reactor did not look for `busy_ns`. An end that comes now is late twice: when its
    /// command left, and when its end was seen.
    pub(crate) fn handle_look(&mut self, busy_ns: u64, now_ns: u64) {
        self.on.standstills.note(busy_ns, now_ns);
        self.on.hedger.set_busy(busy_ns.saturating_mul(2));
        for volume in &mut self.volumes {
            volume.head.set_gap(busy_ns.saturating_mul(2));
        }
    }
}

/// The I/O group of an op, for selection and sample alike (row A10).
#[inline]
pub(super) fn group(op: IoOp) -> Group {
    match op {
        IoOp::Read => Group::Read,
        IoOp::Write { .. } | IoOp::WriteZeroes { .. } | IoOp::Deallocate => Group::Write,
        IoOp::Flush => Group::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::super::types::{Hints, Io};
    use super::*;

    fn io(op: IoOp) -> Io {
        let span = crate::Span { at: 0, len: 0 };
        Io {
            volume: 0,
            op,
            offset: 0,
            length: 4096,
            span,
            source: 0,
            cookie: 0,
        }
    }

    #[test]
    fn a10_group_of_every_op() {
        for (op, want) in [
            (IoOp::Read, Group::Read),
            (IoOp::Write { fua: false }, Group::Write),
            (IoOp::Write { fua: true }, Group::Write),
            (IoOp::WriteZeroes { deallocate: false }, Group::Write),
            (IoOp::Deallocate, Group::Write),
            (IoOp::Flush, Group::Other),
        ] {
            assert_eq!(group(op), want, "{op:?}");
        }
    }

    #[test]
    fn only_what_moved_counts_as_bytes_and_only_what_succeeded_as_io() {
        let (plain, in_transit) = (AttemptEnd::Answered, AttemptEnd::InTransit);
        let mut counters = PathCounters::default();
        let mut ios = IoTable::new(8, 0);
        let mut count_with = |op, outcome, attempt, replaceable| {
            let hints = Hints {
                replaceable,
                ..Hints::default()
            };
            let index = ios.take(&io(op), hints, 0).unwrap();
            ios.get_mut(index).history.attempt = attempt;
            counters.count(ios.get(index), outcome);
        };
        let mut count = |op, outcome, attempt| count_with(op, outcome, attempt, false);
        let zeroes = IoOp::WriteZeroes { deallocate: false };
        count(IoOp::Read, Outcome::Done, plain);
        count(IoOp::Write { fua: true }, Outcome::Done, plain);
        count(zeroes, Outcome::Done, plain);
        count(IoOp::Flush, Outcome::Done, plain);
        count(IoOp::Read, Outcome::MediaError, plain);
        count(IoOp::Read, Outcome::Busy { after_ns: 0 }, in_transit);
        count_with(zeroes, Outcome::MediaError, plain, true);
        count_with(zeroes, Outcome::PathError, plain, true);
        let mut errors_by_class = [0; ErrorClass::ALL.len()];
        for class in [ErrorClass::Media, ErrorClass::Transfer, ErrorClass::Path] {
            errors_by_class[class as usize] = 1;
        }
        let want = PathCounters {
            ios: [1, 2, 1],
            bytes: [4096, 4096],
            errors: 3,
            device_errors: 1,
            errors_by_class,
            ..PathCounters::default()
        };
        assert_eq!(counters, want);
    }
}
