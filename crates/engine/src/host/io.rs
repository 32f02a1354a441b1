//! The life of one I/O: submitted, given a path, given to the path's queue, ended, reported.
//!
//! The policy's choice is final while the path lives: an I/O whose path is full waits for that
//! path, first come first served, as it would in the kernel, and is counted. The fate of an I/O
//! that a path did not do is decided in `wait`.
use super::change_steps::{final_flush_place, is_final_flush};
use super::connections::{Role, SessionState};
use super::counters::group;
use super::fence::range;
use super::io_table::{AttemptEnd, FlushProgress, IoTable, Kind, cut};
use super::loss::{is_let_go, let_go_place};
use super::outbox::Outbox;
use super::path::{Path, Target};
use super::probation::is_timed;
use super::session::Sessions;
use super::types::{Doubt, Hints, Io, IoOp, NO_PATH, SubmitError, VolumeInfo};
use super::volumes::{PathContext, Volume};
use super::{Multipath, Ready, Shared, WriteFailover, device, report, status};
use crate::machine::{DeviceError, Output, Span};
use block::IoLimits;
use canary::Bug;
use multipath::Outcome;
use nvme::host::{Command, Completed, HostError, QueueEvent, SubmitError as QueueFull};
use nvme::wire::Status;
use nvme::wire::status::Class;
use policy::{Group, PathIndex, Request};

/// The queue of a path has failed, and takes nothing more.
struct Failed;

impl Volume {
    /// The path of an I/O was lost before it answered. Where it is a change, and nobody waits until
    /// it can't be executed any more (T9), that is remembered.
    fn leave_behind(&mut self, io: &Io, now_ns: u64) {
        let fenced = self.recovery.write_failover == WriteFailover::Fenced;
        if range(io).is_some() && !fenced {
            self.fence.note_unfenced_loss(now_ns);
        }
    }
}

impl Path {
    /// Gives an I/O to its queue, or device; false: the queue is full (T6: no failure of the path),
    /// or has failed. `patience_ns`: after so long the I/O is to be inspected.
    #[inline(always)]
    fn issue(
        &mut self,
        index: u32,
        ios: &mut IoTable,
        out: &mut Outbox,
        patience_ns: u64,
        now_ns: u64,
    ) -> Result<bool, Failed> {
        let token = ios.token(index);
        let slot = ios.get_mut(index);
        slot.issued_ns = now_ns;
        out.timers.inspect_by(now_ns.saturating_add(patience_ns));
        let Some(queue) = &mut self.session.queue else {
            if let Some(device) = self.kind.device() {
                out.push(Output::Device(device::request(&slot.io, device, token)));
                return Ok(true);
            }
            return Ok(false);
        };
        match queue.submit(&command(&slot.io, &self.known.target, token), now_ns) {
            Ok(()) => {
                out.transmit(self.session.conn(Role::Io));
                Ok(true)
            }
            Err(QueueFull::Full) => Ok(false),
            Err(QueueFull::NotReady) => Err(Failed),
        }
    }

    /// Its queue has failed, and says why once nobody refers to its commands' memory any more.
    /// Until then nothing more is given to it, and its last word is sent.
    #[cold]
    fn retire(&mut self, on: &mut PathContext<'_>, now_ns: u64) {
        on.head.set_enabled(self.index, false);
        let abort = self.must_abort(Role::Io, on);
        self.session.close(Role::Io, abort, on.out, now_ns);
    }

    #[cold]
    fn warn_of_stall(&self, latency_ns: u64, on: &mut PathContext<'_>) {
        on.report_trouble(self, &report::stall(latency_ns));
    }
}

impl Sessions<'_> {
    /// The request of an I/O has ended.
    fn handle_device(&mut self, index: u32, end: Result<(), DeviceError>, now_ns: u64) {
        let slot = self.on.ios.get(index);
        let (at, op, retries) = (slot.path, slot.io.op, slot.history.retries);
        let path = &self.volume.paths[at];
        let mut outcome = device::outcome(end, &path.known.target.crdt, retries);
        if let Err(error) = end {
            let which = (slot.io.cookie, slot.started_ns);
            self.on.failures.note(self.volume.number, which, at, error);
        }
        if op == IoOp::Flush {
            outcome = device::outcome_of_flush(&path.kind, end, outcome);
        }
        if outcome == Outcome::PastEnd {
            self.io().warn_of_end(at, index);
        }
        if device::is_in_transit(end) {
            let (path, mut on) = self.path(at);
            path.note_damage(index, &mut on, now_ns);
        }
        if device::is_ours(end) {
            self.on.ios.get_mut(index).history.attempt = AttemptEnd::NoRoom;
        }
        let attempt = &mut self.on.ios.get_mut(index).history.attempt;
        if end == Err(DeviceError::Lost) && *attempt == AttemptEnd::Answered {
            *attempt = AttemptEnd::Refused;
        }
        if self.takes_reports(at, op, end) {
            outcome = device::outcome_of_failed_flush(outcome);
            self.io().unowned_flush_failed(at, now_ns);
        }
        if device::is_gone(end) {
            self.vanished(at, now_ns);
        }
        self.io().finish(at, index, outcome, true, now_ns);
        self.revive(at, now_ns);
    }

    /// Whether the end of a write that is durable by itself took the report of other writes: it
    /// flushes the file, and the operating system says once what it could not write (T13).
    fn takes_reports(&self, at: PathIndex, op: IoOp, end: Result<(), DeviceError>) -> bool {
        let is_file = device::is_file(&self.volume.paths[at].kind);
        let is_flushed = op == IoOp::Write { fua: true } && device::is_failed_flush(end);
        is_flushed && is_file && !self.volume.leg.is_here()
    }

    /// A flush has ended that the device had when it was given up.
    fn abandoned_flush_ended(
        &mut self,
        at: PathIndex,
        token: u32,
        end: Result<(), DeviceError>,
        now_ns: u64,
    ) {
        let path = &mut self.volume.paths[at];
        path.cache.abandoned_flushes.retain(|&it| it != token);
        let outcome = path.outcome_of_flush(end);
        if !outcome.is_done() && !outcome.is_path_error() {
            self.io().unowned_flush_failed(at, now_ns);
        }
        self.revive(at, now_ns);
    }

    /// A device that has ended all that it was given up for may be asked again, if it says so.
    #[inline]
    pub(super) fn revive(&mut self, at: PathIndex, now_ns: u64) {
        if self.volume.paths[at].is_over() {
            self.revive_lost(at, now_ns);
        }
    }

    #[cold]
    fn revive_lost(&mut self, at: PathIndex, now_ns: u64) {
        let path = &self.volume.paths[at];
        let ended = path.lane.is_empty() && path.cache.abandoned_flushes.is_empty();
        let returns = ended && !path.letting_go && path.admin_state().returns();
        if returns && self.volume.recovery.enabled {
            self.volume.paths[at].session.enter(SessionState::Idle);
            self.live(at, now_ns);
        }
    }
}

impl Multipath {
    /// Takes one I/O. Its end is a [`HostEvent::Done`](super::HostEvent::Done), also when it fails
    /// at once; until then the engine owns the bytes of `io.span`.
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing was taken.
    pub(crate) fn submit(&mut self, io: &Io, now_ns: u64) -> Result<(), SubmitError> {
        self.submit_with(io, Hints::default(), now_ns)
    }

    /// The same of one of which something is known.
    ///
    /// # Errors
    /// As [`Self::submit`].
    #[inline(always)]
    pub(crate) fn submit_with(
        &mut self,
        io: &Io,
        hints: Hints,
        now_ns: u64,
    ) -> Result<(), SubmitError> {
        if usize::from(io.volume) >= self.volumes.len() {
            return Err(SubmitError::NotReady);
        }
        self.io(io.volume).take(io, hints, now_ns)
    }

    /// The cookie of the I/O that a device request is of, or of the one that it is a piece of.
    pub(crate) fn cookie_of(&self, id: u32) -> Option<u64> {
        let index = self.on.ios.find(id)?;
        Some(self.on.ios.get(index).io.cookie)
    }

    /// A device request has ended.
    pub(crate) fn handle_device(&mut self, id: u32, end: Result<(), DeviceError>, now_ns: u64) {
        let Some(index) = self.on.ios.find(id) else {
            return self.handle_other_request(id, end, now_ns);
        };
        let volume = self.on.ios.get(index).io.volume;
        self.sessions(volume).handle_device(index, end, now_ns);
    }

    /// A device request has ended that no slot knows.
    #[cold]
    fn handle_other_request(&mut self, id: u32, end: Result<(), DeviceError>, now_ns: u64) {
        if let Some((mut sessions, at)) = self.owner(let_go_place(id))
            && sessions.volume.paths[at].take_let_go(id)
        {
            return sessions.revive(at, now_ns);
        }
        if is_final_flush(id) && !is_let_go(id) {
            let Some((mut sessions, at)) = self.owner(final_flush_place(id)) else {
                unreachable!("a flush ended of no path: {id:#x}");
            };
            let outcome = sessions.volume.paths[at].outcome_of_flush(end);
            return sessions.io().final_flush_ended(at, id, outcome, now_ns);
        }
        let mut paths = self.volumes.iter().flat_map(|it| it.paths.iter());
        let Some(path) = paths.find(|path| path.cache.abandoned_flushes.contains(&id)) else {
            // Else the device of a path that has left may be asked again.
            assert!(is_let_go(id), "a device request ended of no I/O");
            return;
        };
        let (volume, at) = (path.volume, path.index);
        drop(paths);
        self.sessions(volume)
            .abandoned_flush_ended(at, id, end, now_ns);
    }
}

/// The I/O of one volume on this core, from its submission to its end.
///
/// Borrows the volume for as long as one event of it is handled, and what all volumes share: none
/// of it reaches into another volume, or opens or closes connections but those of a queue that has
/// failed.
pub(super) struct VolumeIo<'a> {
    pub(super) volume: &'a mut Volume,
    pub(super) on: &'a mut Shared,
}

impl VolumeIo<'_> {
    /// A path, and what it works with.
    pub(super) fn path(&mut self, at: PathIndex) -> (&mut Path, PathContext<'_>) {
        self.volume.path(at, self.on)
    }

    /// An I/O on a path was under way when its namespace shrank; said once of each size.
    #[cold]
    pub(super) fn warn_of_end(&mut self, at: PathIndex, index: u32) {
        let ready = self.volume.ready.as_mut().filter(|ready| !ready.warned);
        // Else it was said of this size; or the volume is leaving.
        if let Some(ready) = ready {
            ready.warned = true;
            let io = &self.on.ios.get(index).io;
            let why = report::past_end(io.offset, io.length, ready.info.bytes);
            let (path, mut on) = self.path(at);
            on.report_trouble(path, &why);
        }
    }

    /// Takes one I/O.
    #[inline(always)]
    fn take(&mut self, io: &Io, hints: Hints, now_ns: u64) -> Result<(), SubmitError> {
        let Ready {
            info,
            limits,
            whole_max,
            ..
        } = self.volume.ready.as_ref().ok_or(SubmitError::NotReady)?;
        if self.on.shutdown.refuses_io() {
            return Err(SubmitError::NotReady);
        }
        if !fits(io, info) {
            return Err(misfit(io, info));
        }
        let refused = refusal(io.op, limits);
        let large = io.length > *whole_max && cut(limits, io.op, io.offset, io.length) < io.length;
        let index = self.on.ios.take(io, hints, now_ns);
        let index = index.ok_or(SubmitError::Full)?;
        if let Some(outcome) = refused {
            self.on.ios.end(index, outcome, NO_PATH, now_ns);
        } else if matches!(io.op, IoOp::Flush) {
            let slot = self.on.ios.get_mut(index);
            slot.watched = true;
            slot.flush = FlushProgress {
                given_up: self.volume.losses.generation(),
                ..FlushProgress::default()
            };
            self.flush(index, now_ns);
        } else if large {
            self.split(index, now_ns);
        } else if self.volume.fence.is_open() && self.volume.explain.is_none() {
            self.place(index, io, hints.on, now_ns);
        } else {
            let it = &mut *self.volume;
            if !it.waits_at_fence(&mut self.on.ios, index, hints.for_change) {
                self.place_oddly(index, now_ns);
            }
        }
        Ok(())
    }

    /// Finds a path for an I/O that was just submitted.
    #[inline(always)]
    fn place(&mut self, index: u32, io: &Io, on: Option<PathIndex>, now_ns: u64) {
        let request = Request {
            source: io.source,
            group: group(io.op),
            length: io.length,
            address: io.offset,
            now_ns,
        };
        let head = &mut self.volume.head;
        let by = on.and_then(|path| head.select_by(&request, path));
        let Some(chosen) = by.or_else(|| head.select(&request)) else {
            return self.park(index, now_ns);
        };
        self.on.ios.get_mut(index).ticket = self.volume.head.ticket();
        self.give(index, chosen, now_ns);
    }

    /// Gives an I/O, not for the first time, to the path that was chosen for it.
    #[cold]
    pub(super) fn put(&mut self, index: u32, chosen: PathIndex, now_ns: u64) {
        self.renew(index, now_ns);
        self.on.ios.get_mut(index).ticket = self.volume.head.ticket();
        self.give(index, chosen, now_ns);
    }

    /// Finds a path for an I/O that was placed or waited before, or is a piece: one that can carry
    /// it.
    #[cold]
    pub(super) fn place_again(&mut self, index: u32, now_ns: u64) {
        if self.is_taken_back(index, now_ns) {
            return;
        }
        self.renew(index, now_ns);
        let Some(able) = self.volume.able(&mut self.on.ios, index, u64::MAX) else {
            return; // cut for narrower paths, it waits at the fence
        };
        match self.volume.choose(&mut self.on.ios, index, able, now_ns) {
            Some(chosen) => self.put(index, chosen, now_ns),
            None => self.park(index, now_ns),
        }
    }

    /// A new attempt begins.
    fn renew(&mut self, index: u32, now_ns: u64) {
        let it = &mut *self.volume;
        it.note_cost(&mut self.on.ios, &self.on.standstills, index, now_ns);
        let slot = self.on.ios.get_mut(index);
        slot.placed_ns = now_ns;
        slot.history.attempt = AttemptEnd::Answered;
        self.on.hedger.begin_attempt(index);
    }

    #[inline(always)]
    pub(super) fn give(&mut self, index: u32, at: PathIndex, now_ns: u64) {
        let full = self.volume.paths[at].lane.waiting().is_some() || !self.issue(at, index, now_ns);
        let path = &mut self.volume.paths[at];
        let slot = self.on.ios.get_mut(index);
        slot.path = at;
        self.on.ios.push_on_path(&mut path.lane, index, full);
        path.counters.waited_full += u64::from(full);
    }

    /// Gives an I/O to the queue of its path; false: the queue is full (T6: no failure of the
    /// path), or has failed.
    #[inline(always)]
    pub(super) fn issue(&mut self, at: PathIndex, index: u32, now_ns: u64) -> bool {
        let patience_ns = self.on.hedger.patience_ns;
        let path = &mut self.volume.paths[at];
        let issued = path.issue(
            index,
            &mut self.on.ios,
            &mut self.on.out,
            patience_ns,
            now_ns,
        );
        issued.unwrap_or_else(|Failed| {
            let (path, mut on) = self.path(at);
            path.retire(&mut on, now_ns);
            false
        })
    }

    /// Gives the queue of a path what waits for it.
    pub(super) fn refill(&mut self, at: PathIndex, now_ns: u64) {
        while let Some(index) = self.volume.paths[at].lane.waiting() {
            if !self.volume.paths[at].is_live() || !self.issue(at, index, now_ns) {
                return; // they are taken from a lost path, and wait for room on a full one
            }
            self.on.ios.issued(&mut self.volume.paths[at].lane);
        }
    }

    /// Ends the commands that the queue of a path has answered. Returns what else it tells: it is
    /// ready, or has failed.
    #[inline]
    pub(super) fn end_commands(
        &mut self,
        at: PathIndex,
        any: &mut bool,
        now_ns: u64,
    ) -> Option<Result<(), HostError>> {
        loop {
            let event = self.volume.paths[at].session.queue.as_mut()?.poll_event()?;
            *any = true;
            match event {
                QueueEvent::Completed(completed) => self.completed(at, &completed, now_ns),
                QueueEvent::Ready => return Some(Ok(())),
                QueueEvent::Failed(error) => return Some(Err(error)),
            }
        }
    }

    /// A command has ended, whose slot of the queue is free.
    #[inline(always)] // of each command, in one place
    fn completed(&mut self, at: PathIndex, completed: &Completed, now_ns: u64) {
        let Some(index) = self.on.ios.find(completed.token) else {
            assert!(is_final_flush(completed.token), "a command ended of no I/O");
            let crdt = &self.volume.paths[at].known.target.crdt;
            let outcome = status::outcome(completed.status, crdt, 0);
            return self.final_flush_ended(at, completed.token, outcome, now_ns);
        };
        if completed.status.is_success() {
            self.finish(at, index, Outcome::Done, true, now_ns);
        } else {
            self.failed(at, index, completed.status, now_ns);
        }
    }

    /// A command has ended, and not well.
    #[cold]
    fn failed(&mut self, at: PathIndex, index: u32, status: Status, now_ns: u64) {
        let slot = self.on.ios.get(index);
        let which = (slot.io.cookie, slot.started_ns);
        let error = DeviceError::Nvme(status);
        self.on.failures.note(self.volume.number, which, at, error);
        let path = &self.volume.paths[at];
        let queue = path.session.queue.as_ref();
        let over = queue.is_none_or(|queue| queue.has_failed());
        let answered = !(over && status.is(Status::HOST_PATH));
        if !answered {
            let slot = self.on.ios.get_mut(index);
            slot.history.attempt = AttemptEnd::Unanswered;
            self.volume.leave_behind(&slot.io, now_ns);
        }
        let outcome = match self.volume.paths[at].was_aborted(&mut self.on.ios, index, status) {
            true => Outcome::PathError,
            false => {
                let retries = self.on.ios.get(index).history.retries;
                status::outcome(status, &self.volume.paths[at].known.target.crdt, retries)
            }
        };
        match status.class() {
            Class::Ana => {
                let (path, mut on) = self.path(at);
                path.doubt(Doubt::Ana, &mut on, now_ns);
            }
            Class::Namespace => {
                let (path, mut on) = self.path(at);
                path.doubt(Doubt::Namespace, &mut on, now_ns);
            }
            Class::Transport => {
                let (path, mut on) = self.path(at);
                path.note_damage(index, &mut on, now_ns);
            }
            _ => {}
        }
        if outcome == Outcome::PastEnd {
            self.warn_of_end(at, index);
        }
        self.finish(at, index, outcome, answered, now_ns);
    }

    /// The flushes that a device still has when it is given up wait, or fail, as those of a lost
    /// controller do (T13): they have no memory that it may use, so nobody waits for their ends.
    /// Only the path does.
    #[cold]
    pub(super) fn abandon_flushes(&mut self, at: PathIndex, now_ns: u64) {
        if self.volume.paths[at].kind.device().is_none() || !self.volume.recovery.enabled {
            return; // its controller's queue ends them, or nothing waits for them
        }
        let mut next = self.volume.paths[at].lane.oldest_issued();
        while let Some(index) = next {
            next = self.on.ios.next(index);
            let slot = self.on.ios.get(index);
            if slot.io.op != IoOp::Flush {
                continue;
            }
            let token = self.on.ios.token(index);
            self.volume.paths[at].cache.abandoned_flushes.push(token);
            self.on.ios.rename(index);
            self.finish(at, index, Outcome::PathError, false, now_ns);
        }
    }

    /// Ends an I/O that was placed on a path; `answered`: by the path, so that it says something of
    /// its health.
    pub(super) fn finish(
        &mut self,
        at: PathIndex,
        index: u32,
        outcome: Outcome,
        answered: bool,
        now_ns: u64,
    ) {
        let path = &mut self.volume.paths[at];
        self.on.ios.unlink(&mut path.lane, index);
        let slot = self.on.ios.get(index);
        let (watched, expired) = (slot.watched, slot.is_expired());
        let outcome = match outcome {
            Outcome::PathError if expired => Outcome::TimedOut,
            other => other,
        };
        if expired {
            let token = self.on.ios.token(index);
            self.volume.paths[at].overdue_ended(token);
        }
        if watched && self.on.ios.get(index).kind == Kind::Probe {
            return self.probed(at, index, outcome, now_ns);
        }
        let path = &mut self.volume.paths[at];
        let slot = self.on.ios.get(index);
        let in_transit = slot.history.attempt == AttemptEnd::InTransit;
        path.counters.count(slot, outcome);
        if outcome.is_done() && group(slot.io.op) == Group::Write {
            path.cache.acknowledge();
        }
        if canary::has(Bug::CountedTwice) && self.volume.recovery.unclean_stop_ns.is_some() {
            path.counters.count(slot, outcome);
        }
        let latency_ns = now_ns.saturating_sub(slot.placed_ns);
        if outcome.is_done() {
            path.latency[group(slot.io.op) as usize].record(latency_ns);
        }
        let head = &mut self.volume.head;
        let timed = is_timed(slot);
        let group = group(slot.io.op);
        if outcome == Outcome::TimedOut
            && slot.is_aborted()
            && self.on.hedger.is_beaten(&self.on.ios, index)
        {
            head.dropped(at, group, now_ns, slot.ticket);
        } else if head.complete(at, group, outcome, latency_ns, now_ns, slot.ticket) {
            let (path, mut on) = self.path(at);
            path.warn_of_stall(latency_ns, &mut on);
        }
        let head = &mut self.volume.head;
        let begun = answered.then(|| {
            if in_transit {
                // The path's own failure, though the I/O is repeated on it as on a busy device.
                head.refused(at, now_ns)
            } else {
                head.observe(at, outcome, timed, latency_ns, now_ns)
            }
        });
        if let Some(why) = begun.flatten() {
            self.on_probation(at, why, now_ns);
        }
        if outcome.is_done() && !watched {
            self.on.ios.end(index, outcome, at, now_ns);
        } else {
            self.dispose(at, index, outcome, now_ns);
        }
    }

    /// Takes from a path the I/Os that were not given to its queue.
    pub(super) fn fail_waiting(&mut self, at: PathIndex, now_ns: u64) {
        while let Some(index) = self.volume.paths[at].lane.waiting() {
            self.finish(at, index, Outcome::PathError, false, now_ns);
        }
    }
}

impl IoTable {
    /// Where `len` bytes at `offset` of a command's data lie in the arena.
    pub(super) fn payload(&self, token: u32, offset: u32, len: u32) -> Span {
        let index = self.find(token);
        assert!(index.is_some(), "payload of a command that has ended");
        let io = &self.get(index.unwrap_or(0)).io;
        let inside = offset <= io.length && len <= io.length - offset;
        assert!(inside, "payload outside its command's buffer");
        Span {
            at: io.span.at + u64::from(offset),
            len,
        }
    }
}

/// Whether `io` lies within the volume and its limits.
#[inline]
pub(crate) fn fits(io: &Io, info: &VolumeInfo) -> bool {
    let fits = match io.op {
        IoOp::Flush => return true,
        IoOp::Read | IoOp::Write { .. } => {
            io.span.len == io.length && io.length <= info.transfer_max
        }
        IoOp::WriteZeroes { .. } | IoOp::Deallocate => true,
    };
    let length = u64::from(io.length);
    let mask = (1_u64 << info.block_shift) - 1;
    fits && length > 0
        && (io.offset | length) & mask == 0
        && io.offset <= info.bytes
        && length <= info.bytes - io.offset
}

/// Why `io` does not fit.
#[cold]
pub(crate) fn misfit(io: &Io, info: &VolumeInfo) -> SubmitError {
    let inside = Io { offset: 0, ..*io };
    let larger = VolumeInfo {
        bytes: u64::MAX,
        ..*info
    };
    let aligned = io.offset & ((1 << info.block_shift) - 1) == 0;
    if !aligned || !fits(&inside, &larger) {
        return SubmitError::Range;
    }
    SubmitError::PastEnd {
        offset: io.offset,
        length: io.length,
        bytes: info.bytes,
    }
}

/// Error of an I/O that is known to fail before any path is asked.
#[inline]
fn refusal(op: IoOp, limits: &IoLimits) -> Option<Outcome> {
    match op {
        IoOp::Read | IoOp::Flush => None,
        _ if limits.read_only => Some(Outcome::ReadOnly),
        IoOp::WriteZeroes { .. } if !limits.write_zeroes => Some(Outcome::Unsupported),
        IoOp::Deallocate if !limits.deallocate => Some(Outcome::Unsupported),
        _ => None,
    }
}

/// `io` as a command of the NVM command set.
#[inline(always)] // of each I/O, in one place
fn command(io: &Io, target: &Target, token: u32) -> Command {
    let Target {
        nsid, block_shift, ..
    } = *target;
    let slba = io.offset >> block_shift;
    let blocks = io.length >> block_shift;
    match io.op {
        IoOp::Read => Command::read(nsid, slba, blocks, block_shift, false, token),
        IoOp::Write { fua } => Command::write(nsid, slba, blocks, block_shift, fua, token),
        IoOp::Flush => Command::flush(nsid, token),
        IoOp::WriteZeroes { deallocate } => {
            Command::write_zeroes(nsid, slba, blocks, deallocate, token)
        }
        IoOp::Deallocate => Command::deallocate(nsid, slba, blocks, token),
    }
}

#[cfg(test)]
mod tests;
