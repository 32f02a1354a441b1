//! Requests to legs: submitted in order, held while the host has no room, and ended.
use super::device::{Context, MirrorDevice, Phase};
use super::holes::Run;
use super::requests::Part;
use super::table::{Entry, Task};
use crate::host::{Io, IoDone, IoOp, SubmitError};
use block::Issuer;
use multipath::Outcome;

impl MirrorDevice {
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
    pub(super) fn submit_waiting(&mut self, cx: &mut Context<'_>) -> bool {
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

    pub(super) fn submit_held(&mut self, cx: &mut Context<'_>) -> bool {
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

    pub(super) fn ended(&mut self, entry: &Entry, done: &Part, cx: &mut Context<'_>) {
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
