//! The course of one request: memory, order, blocks covered partly, I/Os, answer.
use super::table::{Stage, Work};
use super::{Devices, NbdServer};
use crate::host::{Io, IoDone, IoOp, SubmitError};
use crate::limits::{AGAIN_MAX, BUFFER_MAX, REQUEST_IOS_MAX, TICKETS_READY};
use crate::machine::{Memory, Output, Span};
use crate::slot_queues::SlotQueues;
use alloc::vec;
use alloc::vec::Vec;
use block::Range;
use canary::Bug;
use nbd::{Errno, Kind, Request};
use volume::Outcome;

/// Lines of requests that wait for something.
pub(super) struct Course {
    /// For free slots of their devices.
    slots: SlotQueues,
    /// For the end of the turn, where memory can be touched.
    merges: Vec<u32>,
    /// One block.
    scratch: Vec<u8>,
    /// Of this turn.
    pub now_ns: u64,
}

impl Course {
    pub fn new(tickets: usize) -> Self {
        let tickets = tickets.min(TICKETS_READY);
        Self {
            slots: SlotQueues::default(),
            merges: Vec::with_capacity(tickets),
            scratch: vec![0; nbd::limits::BLOCK_MIN_MAX as usize],
            now_ns: 0,
        }
    }
}

impl NbdServer {
    /// A request that needs memory, or none.
    pub(super) fn begin(
        &mut self,
        devices: &mut Devices,
        ticket: u32,
        client: u16,
        request: Request,
    ) {
        let export = self.clients[usize::from(client)].export;
        let volume = self.clients[usize::from(client)].volume;
        let block = self.block(volume);
        let work = &mut self.table[ticket];
        work.begin(client, volume, request, block);
        self.counters[export as usize].merged += u64::from(work.edge_count > 0);
        if self.take_memory(ticket) {
            return self.equipped(devices, ticket);
        }
        self.counters[export as usize].waited_buffer += 1;
        self.wait_for_memory(ticket);
    }

    /// Bytes of a block; any will do for a volume that is gone.
    fn block(&self, volume: u16) -> u32 {
        let info = self.ready[usize::from(volume)];
        1 << info.map_or(9, |info| info.block_shift)
    }

    /// It has its memory.
    pub(super) fn equipped(&mut self, devices: &mut Devices, ticket: u32) {
        let work = &mut self.table[ticket];
        if work.request.kind == Kind::Write {
            work.stage = Stage::Data;
            let (client, token) = (work.client, work.request.token);
            if let Some(session) = self.clients[usize::from(client)].session() {
                session.buffer_ready(token);
            }
            // The session took no more bytes until now.
            self.outputs.push_back(Output::Resume(self.conn_of(client)));
            return self.touch(client);
        }
        if matches!(work.request.kind, Kind::BlockStatus { .. }) {
            return self.begin_status(devices, ticket);
        }
        self.order(devices, ticket);
    }

    /// All of a request is here: it begins when no change that it overlaps is in the way.
    pub(super) fn order(&mut self, devices: &mut Devices, ticket: u32) {
        let work = &mut self.table[ticket];
        let block = work.block;
        if !work.request.kind.is_change() {
            return self.start(devices, ticket);
        }
        let (start, end) = work.blocks(block);
        let range = Range { start, end };
        work.stage = Stage::Order;
        let volume = work.volume.into();
        let (place, begins) = devices.order.admit(ticket.into(), volume, range);
        work.order = Some(place);
        if begins {
            self.start(devices, ticket);
        } else if canary::has(Bug::Overtaking)
            || (canary::has(Bug::NoBehind) && work.edge_count == 0)
        {
            devices.order.withdraw(place);
            work.order = None;
            self.start(devices, ticket);
        }
    }

    /// Begins a request: no change that it overlaps is in the way.
    pub fn start(&mut self, devices: &mut Devices, ticket: u32) {
        let work = &mut self.table[ticket];
        if self.clients[usize::from(work.client)].broken && work.request.kind.is_change() {
            // Its client may have sent it again, and something newer, by another connection.
            work.failed = Some(Errno::Shutdown);
        }
        work.given_up = devices.times_given_up(work.volume);
        work.issued = 0;
        work.stage = match work.edge_count {
            0 => Stage::Io,
            _ => Stage::Edges,
        };
        self.pump(devices, ticket);
    }

    /// Asks for as many of a request's I/Os as may be.
    fn pump(&mut self, devices: &mut Devices, ticket: u32) {
        loop {
            let work = &mut self.table[ticket];
            let client = &self.clients[usize::from(work.client)];
            if client.orphan && work.failed.is_none() {
                work.failed = Some(Errno::Shutdown);
            }
            if work.failed.is_some() || work.outstanding == REQUEST_IOS_MAX {
                break;
            }
            let Some(io) = next_io(work, client.reader.source, ticket) else {
                break;
            };
            let asked = match work.stage {
                Stage::Edges => devices.submit_for_change(&io, self.course.now_ns),
                _ => devices.submit(&io, self.course.now_ns),
            };
            match asked {
                Ok(()) => work.asked(&io),
                Err(SubmitError::Full) => {
                    if !work.queued {
                        work.queued = true;
                        self.course.slots.push(work.volume, ticket);
                    }
                    return;
                }
                Err(SubmitError::NotReady) => work.failed = Some(Errno::Shutdown),
                Err(SubmitError::Range) => work.failed = Some(Errno::Inval),
                Err(SubmitError::PastEnd { .. }) => {
                    work.failed = errno(Outcome::PastEnd, work.request.kind);
                }
            }
        }
        if self.table[ticket].outstanding == 0 {
            self.stage_over(devices, ticket);
        }
    }

    /// Begins the I/Os of a change anew, if it was cut into several and what was done first may be
    /// lost since: whoever flushed was told of that before the change ended (T13).
    fn does_again(&mut self, devices: &mut Devices, ticket: u32) -> bool {
        let work = &mut self.table[ticket];
        let change = work.stage == Stage::Io && work.request.kind.is_change();
        if !change || work.pieces < 2 || work.failed.is_some() {
            return false;
        }
        let given_up = devices.times_given_up(work.volume);
        if work.given_up == given_up {
            return false;
        }
        if work.again == AGAIN_MAX {
            work.failed = Some(Errno::Io);
            return false;
        }
        work.again += 1;
        work.given_up = given_up;
        (work.issued, work.cursor) = (0, work.start);
        self.pump(devices, ticket);
        true
    }

    fn stage_over(&mut self, devices: &mut Devices, ticket: u32) {
        if self.does_again(devices, ticket) {
            return;
        }
        let work = &mut self.table[ticket];
        let request = &work.request;
        match work.stage {
            _ if work.failed.is_some() => self.answer(devices, ticket),
            Stage::Edges => {
                work.stage = Stage::Merge;
                self.course.merges.push(ticket);
            }
            Stage::Io if request.fua && request.kind != Kind::Write => {
                // Neither zeroing nor deallocating has a bit for it.
                work.stage = Stage::Flush;
                work.issued = 0;
                // Nothing of it is executed any more, and a flush may wait long.
                leave_order(work, devices);
                self.pump(devices, ticket);
            }
            _ => self.answer(devices, ticket),
        }
    }

    /// An I/O ended.
    pub fn io_done(&mut self, devices: &mut Devices, done: &IoDone) {
        let ticket = done.cookie as u32;
        let work = &mut self.table[ticket];
        work.outstanding -= 1;
        if work.failed.is_none() {
            work.failed = errno(done.outcome, work.request.kind);
        }
        self.slot_freed();
        self.pump(devices, ticket);
    }

    /// An I/O ended: there is a slot for a request that waits for one.
    #[inline]
    pub fn slot_freed(&mut self) {
        if !canary::has(Bug::LostWakeUp) {
            self.course.slots.slot_freed();
        }
    }

    /// Those who found no free slot before; whether there were any.
    pub fn submit_waiting(&mut self, devices: &mut Devices) -> bool {
        let Some(mut round) = self.course.slots.begin_round() else {
            return false;
        };
        let mut any = false;
        while let Some(ticket) = self.course.slots.pop(&mut round) {
            let work = &mut self.table[ticket];
            work.queued = false;
            // Its I/Os may have found slots meanwhile, so that it is to be merged first.
            if work.stage != Stage::Merge {
                self.pump(devices, ticket);
            }
            any |= !self.course.slots.is_back(&mut round, ticket);
        }
        any
    }

    /// Puts what was read of blocks covered partly around what is written; whether there was any.
    pub(super) fn merge(&mut self, devices: &mut Devices, memory: &mut dyn Memory) -> bool {
        let mut any = false;
        while let Some(ticket) = self.course.merges.pop() {
            any = true;
            let work = &mut self.table[ticket];
            let block = work.block;
            for edge in &work.edges[..usize::from(work.edge_count)] {
                let (from, to) = (edge.from as usize, edge.to as usize);
                if work.request.kind == Kind::WriteZeroes {
                    memory.bytes_mut(edge.span)[from..to].fill(0);
                    continue;
                }
                let old = &mut self.course.scratch[..block as usize];
                old.copy_from_slice(memory.bytes(edge.span));
                let new = memory.bytes_mut(work.span(edge.at - work.start, block));
                new[..from].copy_from_slice(&old[..from]);
                new[to..].copy_from_slice(&old[to..]);
            }
            work.stage = Stage::Io;
            work.issued = 0;
            self.pump(devices, ticket);
        }
        any
    }

    pub(super) fn answer(&mut self, devices: &mut Devices, ticket: u32) {
        let work = &mut self.table[ticket];
        let flush = work.request.kind == Kind::Flush;
        let flushed = flush || work.stage == Stage::Flush;
        work.stage = Stage::Answered;
        if core::mem::take(&mut work.queued) {
            // It failed, or found slots before its turn. The ticket may be another's soon.
            self.course.slots.remove(work.volume, ticket);
        }
        let (client, token) = (work.client, work.request.token);
        let result = work.failed.map_or(Ok(()), Err);
        if flushed && result.is_err() {
            // That of a change tells of nothing but that change.
            let heard = flush && !self.clients[usize::from(client)].closed;
            devices.flush_failed_for(work.volume, heard);
        }
        leave_order(work, devices);
        let it = &mut self.clients[usize::from(client)];
        let counters = &mut self.counters[it.export as usize];
        counters.requests += 1;
        counters.errors += u64::from(result.is_err());
        if let Some(session) = it.session() {
            session.complete(token, result, self.course.now_ns);
        }
        self.touch(client);
    }
}

/// Takes a change out of the order: it is over, or nothing of it is executed any more. Those that
/// it kept waiting begin in this turn.
fn leave_order(work: &mut Work, devices: &mut Devices) {
    if let Some(place) = work.order.take() {
        devices.order.end(place);
    }
}

impl Work {
    /// An I/O of it is under way.
    fn asked(&mut self, io: &Io) {
        self.outstanding += 1;
        self.pieces = self
            .pieces
            .saturating_add(u16::from(self.stage == Stage::Io));
        let is_edge = self.stage == Stage::Edges || self.issued < self.own_edges();
        if is_edge || self.stage == Stage::Flush || io.op == IoOp::Flush {
            self.issued += 1;
        } else {
            self.cursor += u64::from(io.length);
        }
    }

    /// Edges that are written by themselves: those of zeroes have no data of a request around them.
    fn own_edges(&self) -> u8 {
        match (self.stage, self.request.kind) {
            (Stage::Io, Kind::WriteZeroes) => self.edge_count,
            _ => 0,
        }
    }
}

/// The next I/O of a request in its stage.
fn next_io(work: &Work, source: u64, ticket: u32) -> Option<Io> {
    let block = work.block;
    let io = |op, offset, length, span| Io {
        volume: work.volume,
        op,
        offset,
        length,
        span,
        source,
        cookie: ticket.into(),
    };
    let (none, flush) = (Span::default(), io(IoOp::Flush, 0, 0, Span::default()));
    let edge = &work.edges[usize::from(work.issued.min(1))];
    match work.stage {
        Stage::Edges => {
            (work.issued < work.edge_count).then(|| io(IoOp::Read, edge.at, block, edge.span))
        }
        Stage::Flush => (work.issued == 0).then_some(flush),
        _ if work.request.kind == Kind::Flush => (work.issued == 0).then_some(flush),
        _ if work.issued < work.own_edges() => {
            let op = IoOp::Write { fua: false };
            Some(io(op, edge.at, block, edge.span))
        }
        _ if work.cursor >= work.end => None,
        _ => {
            // Data lies in buffers of that size; without data, one I/O does it.
            let most = match work.request.kind {
                Kind::Read | Kind::Write => BUFFER_MAX,
                _ => !(block - 1),
            };
            let left = work.end - work.cursor;
            let length = left.min(most.into()) as u32;
            let span = || work.span(work.cursor - work.start, length);
            let fua = work.request.fua;
            let (op, span) = match work.request.kind {
                Kind::Read => (IoOp::Read, span()),
                Kind::Write => (IoOp::Write { fua }, span()),
                Kind::WriteZeroes => (IoOp::WriteZeroes { deallocate: false }, none),
                _ => (IoOp::Deallocate, none),
            };
            let length = match work.request.kind {
                Kind::Read | Kind::Write => span.len,
                _ => length,
            };
            Some(io(op, work.cursor, length, span))
        }
    }
}

/// What the client is told of the end of an I/O for such a request; `None`: it was done.
pub fn errno(outcome: Outcome, kind: Kind) -> Option<Errno> {
    Some(match outcome {
        Outcome::Done => return None,
        Outcome::NoSpace => Errno::NoSpc,
        // NBD protocol, "Error values": no space behind the end, and nothing to read.
        Outcome::PastEnd if kind.is_change() => Errno::NoSpc,
        Outcome::PastEnd => Errno::Inval,
        Outcome::ReadOnly | Outcome::Denied | Outcome::Reservation => Errno::Perm,
        // A hint, so doing nothing is right: paths may be without it since the client was told.
        Outcome::Unsupported if kind == Kind::Trim => return None,
        Outcome::Unsupported => Errno::NotSup,
        Outcome::Invalid => Errno::Inval,
        Outcome::Stopped => Errno::Shutdown,
        _ => Errno::Io,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_its_word() {
        for (outcome, word) in [
            (Outcome::Done, None),
            (Outcome::PathError, Some(Errno::Io)),
            (Outcome::MediaError, Some(Errno::Io)),
            (Outcome::Busy { after_ns: 1 }, Some(Errno::Io)),
            (Outcome::NoSpace, Some(Errno::NoSpc)),
            (Outcome::ReadOnly, Some(Errno::Perm)),
            (Outcome::Denied, Some(Errno::Perm)),
            (Outcome::Mismatch, Some(Errno::Io)),
            (Outcome::Reservation, Some(Errno::Perm)),
            (Outcome::Unsupported, Some(Errno::NotSup)),
            (Outcome::Invalid, Some(Errno::Inval)),
            (Outcome::TimedOut, Some(Errno::Io)),
        ] {
            for kind in [Kind::Read, Kind::Write] {
                assert_eq!(errno(outcome, kind), word, "{outcome}");
            }
        }
        assert_eq!(errno(Outcome::Unsupported, Kind::Trim), None);
        let past_end = |kind| errno(Outcome::PastEnd, kind);
        assert_eq!(past_end(Kind::Read), Some(Errno::Inval));
        for kind in [Kind::Write, Kind::WriteZeroes, Kind::Trim] {
            assert_eq!(past_end(kind), Some(Errno::NoSpc));
        }
    }
}
