//! Paths on probation: who is put there, and what gets them out.
//!
//! The head judges ([`multipath::health`]); here is what it needs for that: a look at the oldest
//! I/O of each path at the time when it would have been silent for too long, and probes. A probe is
//! a read from the first block on into memory of the engine's own, in a spare slot, and in a lane
//! like any I/O: so it ends with its path (T10, T12). No client waits for it or is told of its end,
//! also when the engine stops; no policy learns from it (T43), and it is not counted as I/O.
//!
//! A probe repeats what failed: it is as long as the longest such read, and after a failed write
//! every second one sends as much as a small write but changes nothing. Paths of controllers that
//! have nothing to do are probed as well, all of a core at about the same time: a connection that
//! rests may be forgotten on the way, and keep-alive passes on the admin connection only. A probe
//! without an answer while nothing else ends on its path is aborted, before `io_timeout` if another
//! path is well or nothing else is under way; if it does not end then the path is lost (`abort`).
//! A path whose probe is silent while other paths rest is judged by probes of those.
//!
//! Each core judges for itself, and tells the others through core 0: one that has hardly any I/O
//! there can't know, and one that sees the path answer well right now goes on (its queue is its
//! own).
//!
//! # Limits
//! Without memory of its own ([`HostConfig::scratch`](super::HostConfig)) or spare slots an engine
//! can't probe, and puts nothing on probation. A probe that finds no room is put off (T6). A path
//! that may not be read, for its ANA state or its size's sake, is not probed until it may.
use super::connections::Role;
use super::io::VolumeIo;
use super::io_table::{AttemptEnd, EMPTY, IoTable, Kind, Slot};
use super::outbox::Outbox;
use super::path::{AdminState, Path};
use super::types::{Io, IoOp, PathEvent};
use super::volumes::Volume;
use super::{Multipath, hedge, report};
use crate::machine::{Memory, Span};
use crate::scratch::Scratch;
use alloc::vec::Vec;
use canary::Bug;
use multipath::health::{Limits, Probation, Tally, Why};
use multipath::{Head, Outcome};
use nvme::host::Command;
use policy::PathIndex;

/// Of the oldest I/Os of a path so many are looked at for one whose time says something.
const LOOKED_AT: usize = 8;

/// Bytes of the longest probe. 64 KiB: many packets of any size, and no load.
const PROBE_LEN_MAX: u32 = 64 << 10;

/// How a path is doing on this core, where that is not well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathHealth {
    /// While it is on probation.
    pub probation: Option<Probation>,
    /// Totals.
    pub tally: Tally,
}

/// Whether how long an I/O takes says something of its path: a flush, or a range to be zeroed, may
/// take any time, and of some the caller says so.
#[inline]
pub(super) fn is_timed(slot: &Slot) -> bool {
    matches!(slot.io.op, IoOp::Read | IoOp::Write { .. }) && !slot.hints.untimed
}

/// Bytes that a reading probe of a path asks for: as many as what it failed, within limits.
fn probe_len(path: &Path) -> u32 {
    let block = 1_u32 << path.known.target.block_shift;
    if canary::has(Bug::SmallProbes) {
        return block;
    }
    path.probing.suspect.read.min(PROBE_LEN_MAX).max(block)
}

/// Conditions that put paths on probation in an engine that has so many I/Os, and this memory of
/// its own.
pub(super) fn limits(limits: Limits, io_max: u32, scratch: Span) -> Limits {
    match hedge::spare(io_max, scratch) {
        0 => Limits::OFF,
        _ => limits,
    }
}

/// How long an I/O may go without an answer before its path is looked at, ns.
pub(super) fn unseen_ns_max(volumes: &[Volume], io_timeout_ns: u64) -> u64 {
    let silences = volumes.iter().map(|it| it.recovery.health.silence_ns);
    let least_ns = silences.filter(|&ns| ns > 0).min();
    least_ns.map_or(io_timeout_ns, |ns| ns.min(io_timeout_ns))
}

impl Path {
    /// When its oldest I/O was given to its queue, of those whose time says something.
    fn oldest_timed(&self, ios: &IoTable) -> Option<u64> {
        // Those that wait for room were not given to it.
        let issued = |&index: &u32| self.lane.waiting() != Some(index);
        let next = |&index: &u32| ios.next(index).filter(issued);
        let oldest = core::iter::successors(self.lane.oldest_issued(), next).take(LOOKED_AT);
        let mut oldest = oldest.map(|index| ios.get(index));
        oldest
            .find(|slot| is_timed(slot))
            .map(|slot| slot.issued_ns)
    }

    /// Notes what it has not answered, as it does badly: its probes repeat that.
    pub(super) fn suspect(&mut self, ios: &IoTable) {
        let waiting = self.lane.waiting();
        let mut next = self.lane.oldest_issued();
        while let Some(index) = next.filter(|_| next != waiting) {
            let slot = ios.get(index);
            if slot.kind != Kind::Probe {
                self.probing.suspect.note(&slot.io);
            }
            next = ios.next(index);
        }
    }

    /// Whether it takes a write that changes nothing, with its data in the capsule: without waiting
    /// for the data a controller could answer.
    fn can_hint(&self, head: &Head) -> bool {
        let able = head.among(|limits| limits.deallocate && !limits.read_only);
        let facts = self.known.facts.as_ref();
        let fits = facts.is_some_and(|it| it.controller.in_capsule_max >= Command::HINT_LEN);
        able >> self.index.0 & 1 == 1 && self.session.queue.is_some() && fits
    }

    /// Takes a slot and memory for a probe; `None`: there is no room, or it may have none.
    fn take_probe(
        &mut self,
        length: u32,
        ios: &mut IoTable,
        scratch: &mut Scratch,
        now_ns: u64,
    ) -> Option<u32> {
        if self.admin_state() != AdminState::Enabled || self.probing.probe.is_some() {
            return None;
        }
        let span = scratch.take(length)?;
        let io = Io {
            volume: self.volume,
            op: IoOp::Read,
            length,
            span,
            ..EMPTY
        };
        let Some(slot) = ios.take_spare(&io, Kind::Probe, now_ns) else {
            scratch.give_back(span);
            return None;
        };
        self.probing.probe = Some(ios.token(slot));
        Some(slot)
    }

    /// Sends the write that changes nothing; false: there is no room now.
    fn give_hint(
        &mut self,
        slot: u32,
        ios: &mut IoTable,
        out: &mut Outbox,
        memory: &mut dyn Memory,
        now_ns: u64,
    ) -> bool {
        memory.bytes_mut(ios.get(slot).io.span).fill(0);
        let command = Command::empty_hint(self.known.target.nsid, ios.token(slot));
        let room = self.lane.waiting().is_none();
        let queue = self.session.queue.as_mut().filter(|_| room);
        let given = queue.is_some_and(|queue| queue.submit(&command, now_ns).is_ok());
        if given {
            out.transmit(self.session.conn(Role::Io));
            let it = ios.get_mut(slot);
            it.path = self.index;
            it.issued_ns = now_ns;
            ios.push_on_path(&mut self.lane, slot, false);
            out.wake_by(now_ns);
        }
        given
    }
}

impl Volume {
    /// When a path is to be looked at, or probed.
    pub(super) fn probation_timeout(
        &self,
        at: PathIndex,
        ios: &IoTable,
        is_stopping: bool,
    ) -> Option<u64> {
        let path = &self.paths[at];
        if !path.is_live() {
            return None;
        }
        let head = &self.head;
        let due_ns = match head.probation(path.index) {
            Some(_) if path.probing.probe.is_some() => return None, // its end asks for the next
            Some(_) => head.probe_due_ns(path.index),
            None if path.lane.is_empty() => self.idle_due_ns(at, is_stopping),
            None => {
                let issued_ns = path.oldest_timed(ios)?;
                head.silent_ns(path.index, issued_ns)
                    .max(path.probing.inspect_ns)
            }
        };
        Some(due_ns).filter(|&at_ns| at_ns < u64::MAX)
    }

    /// When a path without I/O is to be probed.
    fn idle_due_ns(&self, at: PathIndex, is_stopping: bool) -> u64 {
        let path = &self.paths[at];
        let probed = path.is_live() && path.address().is_some();
        if !probed
            || path.admin_state() != AdminState::Enabled
            || !path.lane.is_empty()
            || is_stopping
        {
            return u64::MAX;
        }
        if canary::has(Bug::UnprobedIdle) {
            return u64::MAX;
        }
        self.head.idle_due_ns(at).max(path.probing.inspect_ns)
    }
}

impl VolumeIo<'_> {
    /// Probes a path on probation; else judges it by its oldest I/O, whose time it is.
    fn inspect(&mut self, at: PathIndex, memory: &mut dyn Memory, now_ns: u64) {
        if self.volume.head.probation(at).is_some() {
            return self.probe_as_failed(at, memory, now_ns);
        }
        let Some(issued_ns) = self.volume.paths[at].oldest_timed(&self.on.ios) else {
            return; // it rests, and was probed for that
        };
        // A path that is silent together with all others is looked at again.
        self.volume.paths[at].probing.inspect_ns =
            now_ns.saturating_add(self.on.hedger.unseen_ns_max() / 4);
        let beside = self.probe_beside(at, issued_ns, now_ns);
        let head = &mut self.volume.head;
        let why = match beside {
            true => head.inspect_probe(at, issued_ns, now_ns),
            false => head.inspect(at, issued_ns, now_ns),
        };
        if let Some(why) = why {
            self.on_probation(at, why, now_ns);
        }
    }

    /// Where nothing but a probe of an idle time, issued at `issued_ns`, is silent on a path:
    /// probes the other paths of its volume that rest. That they have nothing to end does not show
    /// that they would end it. Whether any other was asked since then.
    fn probe_beside(&mut self, at: PathIndex, issued_ns: u64, now_ns: u64) -> bool {
        let it = &*self.volume;
        let path = &it.paths[at];
        if !path.has_only_probe(it.recovery.enabled, &it.head, &self.on.ios) {
            return false;
        }
        let mut asked = false;
        for other in it.paths.indexes().filter(|&other| other != at) {
            if self.volume.paths.get(other).is_none() {
                continue; // it has left
            }
            let head = &self.volume.head;
            let known = head.is_probing(other) || head.answered_ns(other) >= issued_ns;
            let rests = self.volume.idle_due_ns(other, self.on.shutdown.has_begun()) < u64::MAX;
            let can = rests && self.on.ios.has_spares();
            if !known && can {
                self.probe(other, now_ns);
            }
            asked |= known || self.volume.paths[other].probing.probe.is_some();
        }
        asked
    }

    /// The head has put a path on probation.
    #[cold]
    pub(super) fn on_probation(&mut self, at: PathIndex, why: Why, now_ns: u64) {
        self.on.out.note_state();
        let path = &mut self.volume.paths[at];
        path.suspect(&self.on.ios);
        path.errors.has_damaged = why == Why::Errors && path.is_damaging(now_ns);
        let (path, mut on) = self.path(at);
        let is_told_to_cores = path.address().is_some();
        if !path.probing.stays_out {
            let line = report::on_probation(path, why);
            match is_told_to_cores {
                true => on.warn(path, line),
                false => on.report_trouble(path, line),
            }
        }
        if is_told_to_cores {
            on.out.tell_cores(path.news(PathEvent::Sick(why)));
        }
        self.on.out.wake_by(now_ns);
        if self.volume.head.sits_out(at) {
            self.move_waiting(at, now_ns);
        }
    }

    /// Path `at` has done an I/O: those that stayed busy with it are no better than ones that
    /// fail.
    pub(super) fn blame(&mut self, at: PathIndex, index: u32, now_ns: u64) {
        let history = &mut self.on.ios.get_mut(index).history;
        let refused = core::mem::take(&mut history.refused) & !(1 << at.0);
        if refused == 0 {
            return; // no other path stayed busy
        }
        for other in self.volume.paths.indexes() {
            // Else it has left, or did not refuse.
            if self.volume.paths.get(other).is_some()
                && refused & 1 << other.0 != 0
                && let Some(why) = self.volume.head.refused(other, now_ns)
            {
                self.on_probation(other, why, now_ns);
            }
        }
    }

    /// A change that a path has not yet begun needn't wait for it, once each; but a flush, which is
    /// of this very controller (T13).
    pub(super) fn move_waiting(&mut self, at: PathIndex, now_ns: u64) {
        let first = self.volume.paths[at].lane.waiting();
        let waiting = core::iter::successors(first, |&index| self.on.ios.next(index));
        let movable = waiting.filter(|&index| self.on.ios.get(index).io.op != IoOp::Flush);
        let tokens: Vec<u32> = movable.map(|index| self.on.ios.token(index)).collect();
        for token in tokens {
            let there = self.on.ios.find(token);
            if let Some(index) = there.filter(|&index| self.on.ios.get(index).path == at) {
                self.finish(at, index, Outcome::PathError, false, now_ns);
            }
        }
    }

    /// Another core has put a path on probation.
    pub(super) fn sick_elsewhere(&mut self, at: PathIndex, why: Why, now_ns: u64) {
        let path = &self.volume.paths[at];
        if !path.is_live() {
            return; // it was lost while the news was under way
        }
        if !path.has_queue() {
            let (path, mut on) = self.path(at);
            return path.pass_on_sick(why, &mut on);
        }
        match self.volume.head.adopt_verdict(at, why, now_ns) {
            Some(why) => self.on_probation(at, why, now_ns),
            None if self.on.settings.core == 0 => {
                let news = self.volume.paths[at].news(PathEvent::Sick(why));
                self.on.out.publish(news);
            }
            None => {}
        }
    }

    /// Sends a probe.
    fn probe(&mut self, at: PathIndex, now_ns: u64) {
        let path = &mut self.volume.paths[at];
        let length = probe_len(path);
        let is_stopping = self.on.shutdown.has_begun();
        let mut take = || path.take_probe(length, &mut self.on.ios, &mut self.on.scratch, now_ns);
        let slot = (!is_stopping).then(&mut take).flatten();
        self.volume.head.probe(at, slot.is_some(), now_ns);
        if let Some(slot) = slot {
            self.give(slot, at, now_ns);
        }
    }

    /// Probes a path on probation in the direction in which it failed; in turns, if in both.
    fn probe_as_failed(&mut self, at: PathIndex, memory: &mut dyn Memory, now_ns: u64) {
        let path = &self.volume.paths[at];
        let suspect = path.probing.suspect;
        let writes = suspect.write && !suspect.wrote && path.can_hint(&self.volume.head);
        let writes = writes && !canary::has(Bug::ReadingProbes);
        self.volume.paths[at].probing.suspect.wrote = writes;
        if !writes {
            return self.probe(at, now_ns);
        }
        let path = &mut self.volume.paths[at];
        let (ios, scratch) = (&mut self.on.ios, &mut self.on.scratch);
        let is_stopping = self.on.shutdown.has_begun();
        let mut take = || path.take_probe(Command::HINT_LEN, ios, scratch, now_ns);
        let slot = (!is_stopping).then(&mut take).flatten();
        let mut given = false;
        if let Some(slot) = slot {
            given = path.give_hint(slot, ios, &mut self.on.out, memory, now_ns);
            if !given {
                path.probing.probe = None;
                scratch.give_back(ios.get(slot).io.span);
                ios.free_spare(slot);
            }
        }
        self.volume.head.probe(at, given, now_ns);
    }

    /// A probe has ended, and nobody refers to its memory any more.
    #[cold]
    pub(super) fn probed(&mut self, at: PathIndex, index: u32, outcome: Outcome, now_ns: u64) {
        let slot = self.on.ios.get(index);
        let (span, length) = (slot.io.span, slot.io.length);
        let latency_ns = now_ns.saturating_sub(slot.placed_ns);
        let failed = outcome.is_path_error() || slot.history.attempt == AttemptEnd::InTransit;
        self.on.scratch.give_back(span);
        self.on.ios.free_spare(index);
        let path = &mut self.volume.paths[at];
        path.probing.probe = None;
        let renewing = core::mem::take(&mut path.probing.renewing);
        let live = path.is_live();
        let idle = self.volume.head.probation(at).is_none();
        let path = &mut self.volume.paths[at];
        if idle && outcome.is_done() {
            (path.probing.renewals, path.probing.probe_took_ns) = (0, latency_ns);
        }
        if outcome.is_done() {
            path.measured.note_probe(latency_ns, idle);
        }
        // It was aborted while no other path was better: the path is not to blame.
        let excused = renewing && live && outcome.is_path_error();
        if excused {
            path.probing.renewals = path.probing.renewals.saturating_add(1);
        }
        if idle && outcome.is_done() && length >= probe_len(&self.volume.paths[at]) {
            self.volume.paths[at].probing.suspect.read = 0; // reads of that length pass again
        }
        let over = self.volume.head.probed(at, outcome, latency_ns, now_ns);
        if idle
            && live
            && failed
            && !excused
            && let Some(why) = self.volume.head.refused(at, now_ns)
        {
            self.on_probation(at, why, now_ns);
        }
        if let Some(took_ns) = over {
            self.on.out.note_state();
            let suspect = core::mem::take(&mut self.volume.paths[at].probing.suspect);
            let reads = suspect.read > 0;
            self.volume.head.try_first(at, reads, suspect.write);
            self.volume.compare_anew(now_ns);
            self.volume.paths[at].probing.stays_out = false;
            let (core, cores) = (self.on.settings.core, self.on.settings.cores);
            let is_of_core_0 = !self.volume.judges_for_core_0(at, core, cores);
            let (path, mut on) = self.path(at);
            let line = report::well_again(took_ns);
            match is_of_core_0 {
                true => on.warn(path, &line),
                false => on.report_trouble(path, &line),
            }
            self.release(now_ns);
        }
        self.on.out.wake_by(now_ns);
    }
}

impl Multipath {
    /// Probes all paths without I/O whose time it is or will be soon, if it is that of any.
    fn probe_idle(&mut self, now_ns: u64) {
        let is_stopping = self.on.shutdown.has_begun();
        let is_due = |(it, at): (&Volume, _)| it.idle_due_ns(at, is_stopping) <= now_ns;
        if !self.paths_there().any(is_due) {
            return;
        }
        self.each_path(|sessions, at| {
            let by_ns = now_ns.saturating_add(sessions.volume.head.idle_ahead_ns());
            if sessions.volume.idle_due_ns(at, is_stopping) <= by_ns {
                if sessions.on.ios.has_spares() {
                    sessions.io().probe(at, now_ns);
                }
                let path = &mut sessions.volume.paths[at];
                let was_no_room = path.lane.is_empty();
                path.probing.inspect_ns = if was_no_room { by_ns } else { now_ns };
            }
        });
    }

    /// Looks at the paths whose time it is, after this turn's ends of I/O.
    #[cold]
    pub(super) fn watch_health(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.is_inspection_due = false;
        self.probe_idle(now_ns);
        let is_stopping = self.on.shutdown.has_begun();
        self.each_path(|sessions, at| {
            let due_ns = sessions
                .volume
                .probation_timeout(at, &sessions.on.ios, is_stopping);
            if due_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                sessions.io().inspect(at, memory, now_ns);
            }
        });
        self.on.out.wake_by(now_ns);
    }
}
