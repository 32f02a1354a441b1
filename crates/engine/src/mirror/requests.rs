//! I/O of front ends on a mirror: its parts on legs, and its end.
use super::buffer_leases::{BufferLeases, Remaining};
use super::device::{Context, MirrorDevice, Phase};
use super::dispatch::Running;
use super::reads::Choice;
use super::table::{Entry, PartOf, Task};
use crate::host::{Hints, HostEvent, Io, IoDone, IoOp, NO_PATH, SubmitError, fits, misfit};
use crate::machine::Span;
use alloc::vec::Vec;
use block::{Full, Key, Range};
use mirror::machine::{Legs, Request, Ticket, Wait};
use multipath::Outcome;
use policy::PathIndex;

#[derive(Clone, Copy)]
pub(super) struct User {
    io: Io,
    begun_ns: u64,
    for_change: bool,
    /// A read: the leg that it is on, and its ticket of the policy.
    chosen: Option<Choice>,
    /// The leg that served it last.
    served: Option<u8>,
    /// Its memory, while legs have parts of it.
    buffer_lease: Option<Key>,
}

impl User {
    /// One part more that a leg has.
    fn part(&mut self, length: u32, buffer_leases: &mut BufferLeases) -> PartOf {
        let buffer_lease = buffer_leases.add(self.buffer_lease, self.io.span);
        self.buffer_lease = Some(buffer_lease);
        PartOf {
            buffer_lease: Some(buffer_lease),
            op: self.io.op,
            bytes: length,
        }
    }
}

/// Of an output of the machine for a user's I/O.
const NO_USER: &str = "the machine has an I/O of no user";

impl Running {
    /// A user's I/O that the machine has not ended; `None`: it has, and a leg still has a part.
    fn user(&mut self, id: u32) -> Option<&mut User> {
        self.users.get_mut(id)
    }

    /// A user's I/O.
    fn submit(&mut self, io: &Io, for_change: bool, now_ns: u64) -> Result<(), SubmitError> {
        if self.frozen {
            return Err(SubmitError::NotReady);
        }
        if !fits(io, &self.info) {
            return Err(misfit(io, &self.info));
        }
        let range = Range::new(io.offset, io.length.into());
        let request = match io.op {
            IoOp::Read => Request::Read(range),
            IoOp::Write { fua } => Request::Write(range, fua),
            IoOp::WriteZeroes { .. } => Request::Zero(range),
            IoOp::Deallocate => Request::Deallocate(range),
            IoOp::Flush => Request::Flush,
        };
        let id = match self.machine.submit(request, now_ns) {
            Ok(id) => id,
            Err(Full) => return Err(SubmitError::Full),
        };
        let user = User {
            io: *io,
            begun_ns: now_ns,
            for_change,
            chosen: None,
            served: None,
            buffer_lease: None,
        };
        self.users.insert(id, user);
        Ok(())
    }
}

/// Where data of a user's I/O lie that is for `range` of the mirror.
fn part(io: &Io, range: Range) -> Span {
    match io.op {
        IoOp::Read | IoOp::Write { .. } => Span {
            at: io.span.at + (range.start - io.offset),
            len: (range.end - range.start) as u32,
        },
        _ => Span::default(),
    }
}

impl MirrorDevice {
    /// A user's I/O.
    pub fn submit(&mut self, io: &Io, for_change: bool, now_ns: u64) -> Result<(), SubmitError> {
        let is_stopping = self.is_stopping();
        match &mut self.phase {
            Phase::Running(it) if !is_stopping => {
                let submitted = it.submit(io, for_change, now_ns);
                self.needs_turn |= submitted.is_ok();
                submitted
            }
            _ => Err(SubmitError::NotReady),
        }
    }

    /// See [`Volume::times_given_up`](crate::host::Volume::times_given_up).
    pub fn times_given_up(&self) -> u32 {
        match &self.phase {
            Phase::Running(it) => it.machine.times_given_up(),
            _ => 0,
        }
    }

    /// See [`Volume::flush_losses`](crate::host::Volume::flush_losses).
    pub fn flush_losses(&self) -> u32 {
        match &self.phase {
            Phase::Running(it) => it.machine.flush_losses(),
            _ => 0,
        }
    }

    /// See [`Multipath::flush_failed_for`](crate::host::Multipath::flush_failed_for).
    pub fn flush_failed_for(&mut self, is_acknowledged: bool) {
        if let Some(it) = self.running() {
            it.machine.flush_failed_for(is_acknowledged);
        }
    }

    /// A user's read, on one of `legs`.
    pub(super) fn read(&mut self, id: u32, range: Range, legs: Legs, cx: &mut Context<'_>) {
        let mut legs = legs;
        loop {
            let it = self.expect_running();
            let user = *it.users.get(id).expect(NO_USER);
            let part_io = Io {
                offset: range.start,
                length: (range.end - range.start) as u32,
                ..user.io
            };
            let Some(choice) = it.reads.choose(&part_io, legs, cx.now_ns) else {
                // All that could have left in the meantime.
                return it.machine.no_reader(id);
            };
            let slot = choice.slot;
            // The last one is asked as long as attempts may take.
            let others = it.machine.readers(id).without(Legs::one(slot));
            let elsewhere = it.reads.reaches_any(others);
            let wait = if elsewhere { Wait::Briefly } else { Wait::Long };
            let Some(ticket) = it.machine.take(id, slot, wait) else {
                it.reads.ended(&choice, false, NO_PATH, 0, cx.now_ns);
                legs = it.machine.readers(id);
                continue;
            };
            let Some((at, data_offset, _)) = self.at(slot) else {
                let it = self.expect_running();
                it.reads.ended(&choice, false, NO_PATH, 0, cx.now_ns);
                return self.refuse_task(ticket, cx);
            };
            let of_user = self.expect_running().user(id).expect(NO_USER);
            of_user.chosen = Some(choice);
            let part_of = of_user.part(part_io.length, cx.buffer_leases);
            self.legs[at].counters.in_flight += 1;
            let hints = Hints {
                on: choice.path,
                for_change: user.for_change,
                elsewhere,
                ..Hints::default()
            };
            let entry = Entry {
                part: part_of,
                hints,
                ..Entry::new(cx.index, at as u8, Task::Io(ticket), Span::default())
            };
            let io = Io {
                volume: self.legs[at].config.volume,
                offset: data_offset + range.start,
                span: part(&user.io, range),
                ..part_io
            };
            return self.submit_data(entry, io, cx);
        }
    }

    /// A user's change or flush, on one leg.
    pub(super) fn change(&mut self, ticket: Ticket, request: Request, cx: &mut Context<'_>) {
        let Some((at, data_offset, _)) = self.at(ticket.leg) else {
            return self.refuse_task(ticket, cx);
        };
        let it = self.expect_running();
        let user = ticket.io().and_then(|id| it.user(id)).expect(NO_USER);
        let part_of = user.part(user.io.length, cx.buffer_leases);
        let user = *user;
        let (op, range) = match request {
            Request::Write(range, fua) => (IoOp::Write { fua }, Some(range)),
            Request::Zero(range) => (IoOp::WriteZeroes { deallocate: false }, Some(range)),
            Request::Deallocate(range) => (IoOp::Deallocate, Some(range)),
            Request::Flush | Request::Read(_) => (IoOp::Flush, None),
        };
        if range.is_some() {
            it.reads.count_change(ticket.leg, 1);
        }
        self.legs[at].counters.in_flight += 1;
        let entry = Entry {
            part: part_of,
            ..Entry::new(cx.index, at as u8, Task::Io(ticket), Span::default())
        };
        let io = Io {
            volume: self.legs[at].config.volume,
            op,
            offset: range.map_or(0, |range| data_offset + range.start),
            length: range.map_or(0, |range| (range.end - range.start) as u32),
            span: range.map_or(Span::default(), |range| part(&user.io, range)),
            ..user.io
        };
        self.submit_data(entry, io, cx);
    }

    /// Counts the end of a part of a user's I/O, and passes it to the policy.
    pub(super) fn part_ended(
        &mut self,
        at: usize,
        ticket: Ticket,
        (part, done): (&PartOf, &IoDone),
        cx: &mut Context<'_>,
    ) {
        let outcome = done.outcome;
        let (op, bytes) = (part.op, u64::from(part.bytes));
        let Some(buffer_lease) = part.buffer_lease else {
            unreachable!("a part of a user's I/O has a buffer_lease of its memory");
        };
        let last = cx.buffer_leases.end(buffer_lease);
        if let Some(it) = self.running() {
            let user = ticket.io().and_then(|id| it.user(id));
            let user = user.filter(|user| user.buffer_lease == part.buffer_lease);
            let chosen = user.and_then(|user| {
                user.served = Some(ticket.leg);
                user.buffer_lease = user.buffer_lease.filter(|_| last == Remaining::Parts);
                user.chosen.take()
            });
            if let Some(choice) = chosen {
                let (well, served) = (outcome.is_done(), done.path);
                it.reads
                    .ended(&choice, well, served, done.latency_ns, cx.now_ns);
            } else if !matches!(op, IoOp::Flush | IoOp::Read) {
                it.reads.count_change(ticket.leg, -1);
            }
        }
        if let Remaining::Retained(cookie) = last {
            cx.events.push_back(HostEvent::Back(cookie, buffer_lease));
        }
        let counters = &mut self.legs[at].counters;
        counters.in_flight = counters.in_flight.saturating_sub(1);
        match op {
            _ if !outcome.is_done() => counters.errors += 1,
            IoOp::Read => {
                counters.reads += 1;
                counters.bytes_read += bytes;
            }
            IoOp::Write { .. } => {
                counters.writes += 1;
                counters.bytes_written += bytes;
            }
            IoOp::WriteZeroes { .. } | IoOp::Deallocate => counters.writes += 1,
            IoOp::Flush => counters.flushes += 1,
        }
    }

    pub(super) fn user_done(&mut self, id: u32, outcome: Outcome, cx: &mut Context<'_>) {
        let user = self.expect_running().users.remove(id);
        if let Some(buffer_lease) = user.buffer_lease.filter(|_| user.io.span.len > 0) {
            cx.buffer_leases.retain(buffer_lease, user.io.cookie);
            cx.events
                .push_back(HostEvent::Lent(user.io.cookie, buffer_lease));
        }
        cx.events.push_back(HostEvent::Done(IoDone {
            cookie: user.io.cookie,
            outcome,
            path: user.served.map_or(NO_PATH, PathIndex),
            latency_ns: cx.now_ns.saturating_sub(user.begun_ns),
        }));
    }

    /// Freezes the machine: it gets no completions any more, and all I/O of users fails.
    pub(super) fn freeze(&mut self, cx: &mut Context<'_>) {
        let Some(it) = self.running() else {
            return; // it has stopped, and has no I/O of users
        };
        it.frozen = true;
        let waiting: Vec<u32> = it.users.slots().collect();
        for id in waiting {
            self.user_done(id, Outcome::Stopped, cx);
        }
    }
}
