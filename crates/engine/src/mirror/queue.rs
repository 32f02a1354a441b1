//! Requests to legs: submitted in order, held while the host has no room, and ended.
use super::device::{Context, MirrorDevice, Phase};
use super::holes::Run;
use super::table::{Entry, Task};
use crate::host::{Io, IoDone, IoOp, NO_PATH, SubmitError, Volume};
use alloc::collections::VecDeque;
use block::Issuer;
use mirror::limits::LEGS_MAX;
use multipath::Outcome;

/// Requests to legs that are not in the host's hands.
pub(super) struct RequestQueue {
    /// Reads and writes of superblocks that wait for room in the host, oldest first. Nothing else
    /// is submitted before them, or leases would end while data is written (T54).
    urgent: VecDeque<(Entry, Io)>,
    /// Other requests that wait for room in the host, oldest first (T6); it grows only then. Data
    /// I/O waits in its leg's `depth` instead.
    held: VecDeque<(Entry, Io)>,
    /// Requests that ended when they were submitted, or were not submitted. They are handled later
    /// in the turn, so that the end of a request never recurses into the next.
    ended: VecDeque<(Entry, Outcome)>,
}

impl RequestQueue {
    /// For a host with room for so many requests.
    pub fn new(room: usize) -> Self {
        Self {
            urgent: VecDeque::with_capacity(2 * LEGS_MAX),
            held: VecDeque::with_capacity(2 * LEGS_MAX),
            ended: VecDeque::with_capacity(room.min(1 << 16)),
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        let waiting = self.urgent.iter().chain(&self.held).map(|it| &it.0);
        waiting.chain(self.ended.iter().map(|it| &it.0))
    }

    /// Whether requests wait for room in the host.
    pub fn lacks_room(&self) -> bool {
        !(self.urgent.is_empty() && self.held.is_empty())
    }

    fn pop_waiting(&mut self) -> Option<(Entry, Io)> {
        self.urgent.pop_front().or_else(|| self.held.pop_front())
    }

    fn end(&mut self, entry: Entry, outcome: Outcome) {
        self.ended.push_back((entry, outcome));
    }
}

impl MirrorDevice {
    /// Submits a request to a leg. Without room in the host it waits.
    pub(super) fn submit_or_hold(&mut self, entry: Entry, io: Io, cx: &mut Context<'_>) {
        if self.queue.lacks_room() || !self.try_submit(entry, io, cx) {
            self.queue.held.push_back((entry, io));
        }
    }

    /// Submits a read or write of a superblock, before all other requests that wait.
    pub(super) fn submit_urgent(&mut self, entry: Entry, io: Io, cx: &mut Context<'_>) {
        if !self.queue.urgent.is_empty() || !self.try_submit(entry, io, cx) {
            self.queue.urgent.push_back((entry, io));
        }
    }

    /// Submits data I/O or a user's flush to a leg, in order. Beyond the leg's window, or without
    /// room, it waits (T54).
    pub(super) fn submit_data(&mut self, entry: Entry, io: Io, cx: &mut Context<'_>) {
        let room = !self.queue.lacks_room();
        let interval_ns = self.heartbeat_interval_ns();
        let depth = &mut self.legs[usize::from(entry.leg)].depth;
        if let Some((entry, io)) = depth.admit((entry, io), room, interval_ns, cx.now_ns) {
            self.submit_or_hold(entry, io, cx);
        }
    }

    /// Submits requests that waited for the windows of their legs. Returns whether any was.
    pub(super) fn submit_waiting(&mut self, cx: &mut Context<'_>) -> bool {
        let interval_ns = self.heartbeat_interval_ns();
        let runs = matches!(&self.phase, Phase::Running(it) if !it.frozen);
        let mut any = false;
        for at in 0..self.legs.len() {
            while let Some(first) = self.legs[at].depth.first() {
                // The mirror stops, or the leg has left or is fenced: its requests end unsubmitted.
                let needless = self.is_needless(first) || self.legs[at].watch.is_fenced;
                if needless || !runs {
                    let outcome = if runs {
                        Outcome::PathError
                    } else {
                        Outcome::Stopped
                    };
                    let dropped = self.legs[at].depth.drop_first();
                    self.queue.ended.extend(dropped.map(|it| (it.0, outcome)));
                    any = true;
                    continue;
                }
                if self.queue.lacks_room() {
                    break;
                }
                let leg = &mut self.legs[at];
                let volume = cx.below.host.volume(leg.config.volume);
                let answered_ns = volume.map_or(0, Volume::answered_ns);
                let Some((entry, io)) = leg.depth.next(interval_ns, answered_ns, cx.now_ns) else {
                    break;
                };
                self.submit_or_hold(entry, io, cx);
                any = true;
            }
        }
        any
    }

    pub(super) fn submit_held(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        let first = |it: &RequestQueue| it.urgent.front().or(it.held.front()).copied();
        while let Some((entry, io)) = first(&self.queue) {
            if self.is_needless(&entry) {
                self.queue.end(entry, Outcome::PathError);
            } else if !self.try_submit(entry, io, cx) {
                break;
            }
            self.queue.pop_waiting();
            any = true;
        }
        any
    }

    /// Handles the ends of requests that were not submitted. Returns whether there were any.
    pub(super) fn end_early(&mut self, cx: &mut Context<'_>) -> bool {
        let any = !self.queue.ended.is_empty();
        while let Some((entry, outcome)) = self.queue.ended.pop_front() {
            let done = IoDone {
                cookie: 0,
                outcome,
                path: NO_PATH,
                latency_ns: 0,
            };
            self.leg_ended(&entry, &done, cx);
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
        if cx.table.is_full() {
            return false; // T6
        }
        let key = cx.table.insert(entry);
        let cookie = Issuer::Device(key).to_cookie();
        let io = Io { cookie, ..io };
        let refused = if self.is_fenced_off(&entry) {
            Some(Outcome::PathError)
        } else {
            match cx.below.submit(&io, Some(entry.hints), cx.now_ns) {
                Ok(()) => None,
                Err(SubmitError::Full) => {
                    cx.table.remove(key);
                    return false;
                }
                Err(SubmitError::NotReady) if cx.below.host.is_stopping() => Some(Outcome::Stopped),
                Err(SubmitError::NotReady) => Some(Outcome::PathError),
                Err(SubmitError::Range) => Some(Outcome::Invalid),
                Err(SubmitError::PastEnd { .. }) => Some(Outcome::PastEnd),
            }
        };
        if let Some(outcome) = refused {
            cx.table.remove(key);
            self.queue.end(entry, outcome);
        }
        true
    }

    /// Whether its leg was fenced while it waited for room.
    fn is_fenced_off(&self, entry: &Entry) -> bool {
        let is_heartbeat = match entry.task {
            Task::Own(ticket) => ticket.is_heartbeat(),
            Task::Probe(_) | Task::Acquire(_) | Task::Wipe => true,
            Task::Io(_) | Task::Pages(_) | Task::Compare(..) | Task::Run(_) => false,
        };
        self.legs[usize::from(entry.leg)].watch.is_fenced && !is_heartbeat
    }

    /// Handles the end of a request to a leg.
    pub(super) fn leg_ended(&mut self, entry: &Entry, done: &IoDone, cx: &mut Context<'_>) {
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
