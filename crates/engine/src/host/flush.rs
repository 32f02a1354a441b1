//! A flush of a volume: every controller that acknowledged writes since its last flush must flush
//! (Base 2.0, 7.1: a flush covers what its own controller completed; T13).
//!
//! The controllers are asked one after the other under the one slot of the flush. A path that was
//! lost with acknowledged, unflushed writes holds the flush up until it came back and flushed. When
//! that takes too long for the first flush that waits, the path's writes are given up: a line says
//! so, every flush that is under way then fails, since each covers writes of which nobody knows
//! whether they are durable, and later ones pass. A live path whose queue has failed, or whose ANA
//! state is in doubt, holds the flush up as well, until it is lost, or was read (T26); one that
//! shows another size than the others takes no I/O (T33), and flushes what it had.
//!
//! Where several cores write, each asks every controller with a cache that is live, also one whose
//! queue only other cores have open so far: it waits until its own is. When a path is lost, no
//! flush of any core passes before all have said whether it had unflushed writes; each core
//! then gives them up by itself, for the flushes that it has. Where no queue of a live path is
//! this core's, its flushes wait for one as other I/O does, and fail alone.
//!
//! The client that asked for a flush may have gone before it fails: then the next one fails for the
//! same reason ([`Multipath::flush_failed_for`]), until a client has heard of it. Until then each
//! core's flush fails for what the engine before has lost: the client may come back on any core.
//!
//! A flush that ends with an error of what is behind its path has lost writes of whoever wrote, and
//! an operating system says so once: on each core the volume's other flushes fail for it as well,
//! or the next one. The same holds for a flush that no client waits for: one that a device had when
//! its path was given up, or the last one of a path that leaves or of an engine that stops.
//!
//! After an unclean stop of the engine before, or one in order that left writes unflushed
//! ([`HostEvent::Unflushed`]), each controller counts as unflushed until it has flushed, or was
//! given up: nobody knows what that one had acknowledged. A path that has not been
//! there since is waited for like one that was lost, if those of its volume that were have caches.
//! Any core's flush of it is good for all; each core then hears of it. A mirror's path that leaves
//! before that is known of the mirror's last owner flushes as it leaves, or is in doubt then.
//!
//! # Limits
//! A live controller whose ANA group is not usable is not asked: handing its group over is the
//! array's own affair. Writes that one core flushed another still counts as unflushed once the path
//! is lost: a flush waits, or fails, that needn't. Where another core's flush of the same local
//! device ends well at the very moment at which one takes an error from the operating system,
//! before it has heard of it, the next one fails there. A queue server tells each queue of a loss,
//! and so each core. Of an engine before, a controller that no path of the volume leads to is not
//! asked.
use super::change::is_device;
use super::connections::SessionState;
use super::device;
use super::io::VolumeIo;
use super::outbox::Outbox;
use super::path::{AdminState, Path};
use super::queues::is_tied;
use super::types::{Heard, HostEvent, PathEvent, PathKind, PathNews};
use super::volumes::Volume;
use super::{Multipath, report};
use crate::limits::NO_QUEUE_WAIT_NS;
use crate::machine::DeviceError;
use alloc::string::String;
use canary::Bug;
use multipath::Outcome;
use policy::PathIndex;

/// Whether a flush that ended so has lost acknowledged writes: a busy device still has them.
pub(super) fn is_loss(outcome: Outcome) -> bool {
    outcome.is_device_error() && !matches!(outcome, Outcome::Busy { .. })
}

impl Path {
    /// Outcome of a flush that its device has ended.
    pub(super) fn outcome_of_flush(&self, end: Result<(), DeviceError>) -> Outcome {
        let outcome = device::outcome(end, &self.known.target.crdt, 0);
        device::outcome_of_flush(&self.kind, end, outcome)
    }

    /// Whether it has a volatile cache; local devices do.
    fn has_cache(&self) -> bool {
        if let PathKind::Passthrough { facts, .. } = &self.kind {
            return facts.controller.volatile_write_cache;
        }
        let facts = self.known.facts.as_ref();
        facts.is_none_or(|it| it.controller.volatile_write_cache)
    }

    /// Whether what it shows was ever learnt.
    pub(super) fn was_seen(&self) -> bool {
        self.known.facts.is_some() || is_device(&self.kind)
    }

    /// Whether a loss of its power may lose acknowledged writes.
    pub(super) fn is_unflushed(&self) -> bool {
        self.has_unflushed() || self.has_cache() && self.cache.is_inherited()
    }

    /// The same of what this engine wrote: of what the one before did each core knows by itself.
    pub(super) fn has_unflushed(&self) -> bool {
        self.has_cache() && self.cache.has_unflushed()
    }

    /// This core's flush of its controller covers what an engine before this one had there, for all
    /// cores.
    fn report_flush(&self, out: &mut Outbox) {
        if self.address().is_some() {
            out.tell_cores(self.news(PathEvent::Flushed));
        }
    }

    /// A core has seen a flush of it fail.
    fn report_failed_flush(&self, core: u16, heard: Heard, out: &mut Outbox) {
        out.tell_cores(self.news(PathEvent::FlushFailed(core, heard)));
    }
}

impl Volume {
    /// Whether writes that it had, on any core, may not be durable once it has left: not where the
    /// others flush for it.
    pub(super) fn is_doubtful(&self, at: PathIndex) -> bool {
        let unknown = self.paths[at].cache.awaits_reports() && !self.leg.is_here();
        (self.paths[at].is_unflushed() || unknown) && self.may_take_along(at)
    }

    /// Whether what its controller has in its cache may be lost with it: not where the others flush
    /// for it.
    fn may_take_along(&self, at: PathIndex) -> bool {
        // One that was never seen is taken to be like those that were.
        let seen = self.paths.iter().filter(|it| it.was_seen());
        let caches = seen.map(Path::has_cache).reduce(|a, b| a | b);
        let shared = self.recovery.shared_write_cache;
        !shared && (self.paths[at].was_seen() || caches != Some(false))
    }

    /// Whether a leg's path leaves before its mirror knows what another owner has left, and its
    /// controller has not flushed.
    pub(super) fn leaves_early(&self, at: PathIndex) -> bool {
        let unknown = self.leg.is_unclaimed() && !self.paths[at].cache.flushed_to_leave;
        unknown && self.paths[at].has_cache() && self.may_take_along(at)
    }

    /// Whether it is lost, and [`Self::is_doubtful`].
    pub(super) fn is_in_doubt(&self, at: PathIndex) -> bool {
        !self.paths[at].is_live() && self.is_doubtful(at)
    }

    /// Why it can't leave now but by force: what its controller has in its cache would be lost.
    pub(super) fn loses_by_leaving(&self, at: PathIndex) -> Option<String> {
        let early = !self.paths[at].is_live() && self.leaves_early(at);
        if self.is_in_doubt(at) {
            return Some(report::in_doubt(&self.paths[at]));
        }
        early.then(|| report::too_early(&self.paths[at]))
    }

    /// Whether this core's queue is not open yet, while others of so many may use theirs, and have
    /// writes in its cache. It is live soon, or lost, and then all cores say what they had.
    fn may_be_live_elsewhere(&self, at: PathIndex, cores: u16) -> bool {
        let connects = matches!(self.paths[at].session.state(), SessionState::Connecting);
        let joins = self.paths[at].admin_state() == AdminState::Joining;
        connects && !joins && self.others_may_cache(at, cores)
    }

    /// Whether other cores, of so many, may have unflushed writes on it, and say so when it is
    /// lost.
    pub(super) fn others_may_cache(&self, at: PathIndex, cores: u16) -> bool {
        let known = self.paths[at].known.facts.is_some() && self.paths[at].has_cache();
        cores > 1 && known && self.recovery.enabled
    }
}

impl Volume {
    /// The next flush fails, for this reason; also that of the engine after this one, if there is
    /// none before.
    pub(super) fn fail_next_flush(&mut self, line: String, out: &mut Outbox) {
        self.losses.fail_next(line);
        out.report(HostEvent::Loss(self.number, true));
    }

    /// The caller of a flush that failed on this core has heard of it.
    fn acknowledge_loss(&mut self, core: u16, out: &mut Outbox) {
        if self.losses.acknowledge() {
            let volume = self.number;
            out.tell_cores(PathNews::LossReported { volume, core });
        }
    }

    /// Paths, a bit for each, whose controllers are lost with acknowledged writes that were not
    /// flushed: they may come back without them (T13).
    pub(crate) fn lost_caches(&self) -> u64 {
        let paths = self.paths.iter().map(|path| path.index);
        let lost = paths.filter(|&at| self.is_in_doubt(at));
        lost.fold(0, |all, at| all | 1 << at.0)
    }
}

impl VolumeIo<'_> {
    /// Sends a flush to the next controller that it must cover; ends it where there is none.
    #[cold]
    pub(super) fn flush(&mut self, index: u32, now_ns: u64) {
        if self.on.shutdown.is_overdue() {
            return self.end(index, Outcome::Stopped, super::NO_PATH, now_ns);
        }
        let slot = self.on.ios.get(index);
        let it = &mut *self.volume;
        if slot.flush.given_up != it.losses.generation() {
            return self.fail_flush(index, now_ns);
        }
        if let Some(line) = it.losses.fail_flush() {
            self.on.out.report(HostEvent::Trouble(it.number, line));
            self.on.out.report(HostEvent::Loss(it.number, false));
            if it.leg.is_here() {
                // The mirror keeps it in mind for its clients.
                it.acknowledge_loss(self.on.settings.core, &mut self.on.out);
            }
            return self.fail_flush(index, now_ns);
        }
        let recovery = it.recovery;
        let (mut is_away, mut is_elsewhere) = (false, false);
        for at in self.volume.paths.indexes() {
            let Some(path) = self.volume.paths.get(at) else {
                continue; // it has left
            };
            let live = path.is_live();
            let cores = self.on.settings.cores > 1 && !canary::has(Bug::FlushOfOneCore);
            let all = cores && live && path.has_cache();
            let asked = self.on.ios.get(index).flush.asked & 1 << at.0 != 0;
            let needed = match live {
                true => path.is_unflushed() || all,
                false if canary::has(Bug::ForgottenCache) => false,
                false => {
                    self.volume.is_doubtful(at)
                        || self
                            .volume
                            .may_be_live_elsewhere(at, self.on.settings.cores)
                }
            };
            let some = self.on.ios.get(index).flush.asked != 0;
            let enough = recovery.shared_write_cache || canary::has(Bug::FlushOnOne) && some;
            if asked || enough || !needed {
                continue;
            }
            if live && self.ask_to_flush(at, index, now_ns) {
                return;
            }
            let it = &*self.volume;
            if live && !it.paths[at].has_queue() && it.head.is_open(at) {
                is_elsewhere = true;
            } else if !live || !it.head.is_barred(at) {
                is_away = true;
            }
        }
        let slot = self.on.ios.get(index);
        let (some, path) = (slot.flush.asked != 0, slot.path);
        match some {
            _ if is_away => self.await_flush(index, now_ns),
            _ if is_elsewhere => self.await_queue(index, now_ns),
            true => self.end(index, Outcome::Done, path, now_ns),
            // Nothing is known to be cached: any path may say so.
            false => self.place_again(index, now_ns),
        }
    }

    /// False: it can't be asked now, or its ANA state forbids it.
    fn ask_to_flush(&mut self, at: PathIndex, index: u32, now_ns: u64) -> bool {
        let request = self.on.ios.get(index).request(now_ns);
        if self.volume.head.select_only(&request, at).is_none() {
            return false;
        }
        let slot = self.on.ios.get_mut(index);
        slot.flush.asked |= 1 << at.0;
        slot.flush.covers = self.volume.paths[at].cache.covered_now();
        self.put(index, at, now_ns);
        true
    }

    /// A flush has done its work on path `at`: on to the next one.
    pub(super) fn flushed(&mut self, at: PathIndex, index: u32, now_ns: u64) {
        let slot = self.on.ios.get(index);
        let path = &mut self.volume.paths[at];
        if slot.flush.asked & 1 << at.0 == 0 {
            // No path had anything to flush, and this one was any; unless that has changed.
            return match slot.flush.given_up == self.volume.losses.generation() {
                true => self.end(index, Outcome::Done, at, now_ns),
                false => self.fail_flush(index, now_ns),
            };
        }
        if path.cache.flushed(slot.flush.covers) {
            path.report_flush(&mut self.on.out);
        }
        self.flush(index, now_ns);
    }

    /// A flush must be repeated on path `path`, or wait for it.
    pub(super) fn flush_again(&mut self, index: u32, path: PathIndex, now_ns: u64) {
        let lost = self.volume.paths.get(path).is_none_or(|it| !it.is_live());
        let slot = self.on.ios.get_mut(index);
        slot.history.moved(lost);
        slot.flush.asked &= !(1 << path.0);
        self.flush(index, now_ns);
    }

    /// Waits until a path with unflushed writes is back, or its ANA state was read, within bounds.
    fn await_flush(&mut self, index: u32, now_ns: u64) {
        let it = &mut *self.volume;
        let recovery = it.recovery;
        let out = !it.head.is_usable() && it.patience_ns(now_ns).is_none();
        let slot = self.on.ios.get_mut(index);
        if core::mem::take(&mut slot.flush.is_without_queue) {
            // The path is lost that had no queue for this core: it may come back with one.
            slot.flush.from_ns = now_ns;
        }
        let since_ns = slot.started_ns.max(slot.flush.from_ns);
        let until_ns = since_ns.saturating_add(recovery.flush_timeout_ns);
        if !recovery.enabled || until_ns <= now_ns {
            self.give_up_writes(now_ns);
            return self.fail_flush(index, now_ns);
        }
        if out {
            return self.fail_flush(index, now_ns);
        }
        slot.placed_ns = now_ns;
        self.volume
            .waits
            .await_flush(&mut self.on.ios, index, until_ns);
        self.on.out.wake_by(until_ns);
    }

    /// Waits until this core has a queue on a path that other cores alone can flush, within bounds.
    /// No write is in doubt, so no other flush fails with it.
    fn await_queue(&mut self, index: u32, now_ns: u64) {
        let recovery = &self.volume.recovery;
        let slot = self.on.ios.get_mut(index);
        let longest_ns = if is_tied(&slot.io) {
            recovery.fast_io_fail_ns
        } else {
            NO_QUEUE_WAIT_NS
        };
        let end_ns = slot.started_ns.saturating_add(longest_ns);
        if !recovery.enabled || end_ns <= now_ns {
            return self.fail_flush(index, now_ns);
        }
        slot.flush.is_without_queue = true;
        slot.placed_ns = now_ns;
        // It looks again: once the path is lost its wait has another bound.
        let until_ns = end_ns.min(now_ns.saturating_add(NO_QUEUE_WAIT_NS));
        self.volume
            .waits
            .await_flush(&mut self.on.ios, index, until_ns);
        self.on.out.wake_by(until_ns);
    }

    /// Gives up writes that lost controllers may have had in their caches: says so, and fails all
    /// flushes under way. Those that wait fail now, the others when they come back to `flush`.
    pub(super) fn give_up_writes(&mut self, now_ns: u64) {
        for at in self.volume.paths.indexes() {
            if self.volume.paths.get(at).is_none() || !self.volume.is_in_doubt(at) {
                continue; // it has left, or nothing may be lost there
            }
            let path = &mut self.volume.paths[at];
            path.cache.settle();
            self.volume.totals.flush_failed = Some((now_ns, path.index));
            let (path, on) = self.path(at);
            let line = on.line(path, report::unflushed(path));
            on.out.report(HostEvent::Trouble(path.volume, line.clone()));
            on.out
                .tell_cores(path.news(PathEvent::WritesGivenUp(on.settings.core)));
            self.volume.losses.report(line);
        }
        self.fail_flushes(now_ns);
    }

    /// Another core has given up writes that a lost path may have had in its cache, and its flushes
    /// have failed for that: a change of this core that was cut may have been among them (T13).
    pub(super) fn writes_given_up_elsewhere(&mut self, at: PathIndex, core: u16) {
        // Core 0 tells all, also who said it.
        if core == self.on.settings.core {
            return;
        }
        if self.on.settings.core == 0 {
            let news = self.volume.paths[at].news(PathEvent::WritesGivenUp(core));
            self.on.out.tell_cores(news);
        }
        self.volume.losses.give_up_elsewhere();
    }

    /// All flushes under way fail.
    fn fail_flushes(&mut self, now_ns: u64) {
        self.volume.losses.give_up();
        self.fail_waiting_flushes(now_ns);
    }

    /// A flush has ended with an error of what is behind its path: what was acknowledged before may
    /// be lost, whoever wrote it, and no later flush of that path would say so. Each client that is
    /// there is told.
    #[cold]
    pub(super) fn lost_by_flush(&mut self, at: PathIndex, now_ns: u64) {
        let core = self.on.settings.core;
        let (path, on) = self.path(at);
        if !device::is_queue(&path.kind) {
            path.report_failed_flush(core, Heard::ByClient, on.out);
        }
        self.tell_of_failed_flush(at, Heard::ByClient, now_ns);
    }

    /// A flush of a path that nobody waits for any more has failed: what was acknowledged before
    /// may be lost, also what other cores had acknowledged, and no later flush of that path would
    /// say so.
    #[cold]
    pub(super) fn unowned_flush_failed(&mut self, at: PathIndex, now_ns: u64) {
        let core = self.on.settings.core;
        let (path, on) = self.path(at);
        path.report_failed_flush(core, Heard::ByNobody, on.out);
        self.tell_of_failed_flush(at, Heard::ByNobody, now_ns);
    }

    /// A flush that belongs to no I/O has ended. An error of what is behind its path is a loss,
    /// whether a change or the stop still waits for the flush or not: a later flush of the path
    /// would end well.
    #[cold]
    pub(super) fn final_flush_ended(
        &mut self,
        at: PathIndex,
        token: u32,
        outcome: Outcome,
        now_ns: u64,
    ) {
        self.volume.paths[at].final_flush_ended(token, outcome.is_done());
        if is_loss(outcome) {
            self.unowned_flush_failed(at, now_ns);
        }
    }

    /// A flush has failed on another core.
    pub(super) fn flush_failed_elsewhere(
        &mut self,
        at: PathIndex,
        core: u16,
        heard: Heard,
        now_ns: u64,
    ) {
        // Core 0 tells all, also who saw it.
        if core == self.on.settings.core {
            return;
        }
        if self.on.settings.core == 0 {
            let (path, on) = self.path(at);
            path.report_failed_flush(core, heard, on.out);
        }
        self.tell_of_failed_flush(at, heard, now_ns);
    }

    /// The volume's flushes that are under way fail for it, and each client's next one; or those
    /// that wait, or the next one of any client.
    fn tell_of_failed_flush(&mut self, at: PathIndex, heard: Heard, now_ns: u64) {
        let (path, on) = self.path(at);
        let line = on.line(path, report::FLUSH_FAILED);
        self.volume.totals.flush_failed = Some((now_ns, at));
        match heard {
            Heard::ByClient => {
                self.volume.losses.report(line);
                self.fail_flushes(now_ns);
            }
            Heard::ByNobody => {
                self.volume.paths[at].cache.all_flushed();
                self.volume.fail_next_flush(line, &mut self.on.out);
                self.release_flushes(now_ns);
            }
        }
    }

    /// The same, from another core.
    pub(super) fn flushed_elsewhere(&mut self, at: PathIndex, now_ns: u64) {
        if self.on.settings.core == 0 {
            self.volume.paths[at].report_flush(&mut self.on.out);
        }
        if self.volume.paths[at].cache.take_inherited() {
            self.release_flushes(now_ns);
        }
    }

    pub(super) fn fail_flush(&mut self, index: u32, now_ns: u64) {
        self.volume.totals.flushes_failed += 1;
        let outcome = self.volume.without_path();
        self.end(index, outcome, super::NO_PATH, now_ns);
    }

    /// A path is live, its ANA state was read, or it is known to have had nothing unflushed:
    /// flushes that wait look again.
    pub(super) fn release_flushes(&mut self, now_ns: u64) {
        for _ in 0..self.volume.waits.flushes(&self.on.ios) {
            let Some(index) = self.volume.waits.pop_flush(&mut self.on.ios) else {
                return; // one of them has failed all
            };
            self.on.ios.exclude_wait(index, now_ns);
            self.flush(index, now_ns);
        }
    }
}

impl Multipath {
    /// A flush of a volume has failed on a core for what the engine before has lost (T13), and its
    /// caller has heard of it: no other one fails for that.
    pub(super) fn loss_reported(&mut self, volume: u16, core: u16) {
        if self.on.settings.core == 0 {
            // Also to the one that said it, which knows.
            self.on.out.publish(PathNews::LossReported { volume, core });
        }
        let is_other = core != self.on.settings.core;
        let it = self.volumes.get_mut(usize::from(volume));
        if let Some(it) = it.filter(|_| is_other)
            && it.losses.reported_elsewhere()
        {
            self.on.out.report(HostEvent::Loss(volume, false));
        }
    }

    /// The mirror has noted what lost controllers of a leg may have had in their caches, and gives
    /// it again: nobody waits for those controllers to flush it.
    pub fn forget_cache(&mut self, volume: u16, now_ns: u64) {
        let it = &mut self.volumes[usize::from(volume)];
        for at in it.paths.indexes() {
            if it.paths.get(at).is_some() && it.is_in_doubt(at) {
                it.paths[at].cache.settle();
            }
        }
        self.io(volume).fail_flushes(now_ns);
    }

    /// A flush has failed, and whoever asked for it has heard of that, or has gone before: then the
    /// next one fails for the same reason.
    #[cold]
    pub fn flush_failed_for(&mut self, volume: u16, heard: bool) {
        if let Some(it) = self.volumes.get_mut(usize::from(volume)) {
            if heard {
                it.acknowledge_loss(self.on.settings.core, &mut self.on.out);
            } else if it.losses.repeat() {
                self.on.out.report(HostEvent::Loss(volume, true));
            }
        }
    }
}
