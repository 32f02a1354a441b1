//! A request of a client as a [`Pipeline`](crate::pipeline::Pipeline): memory and data before it,
//! blocks covered partly, and the answer.
use super::{Devices, ExportEvent, NbdServer};
use crate::client_errors::ClientError;
use crate::host::IoDone;
use crate::limits::TICKETS_READY;
use crate::machine::{Memory, Output};
use crate::mirror::MIRRORS_FROM;
use crate::pipeline::Stage;
use crate::slot_queues::{Round, SlotQueues};
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use block::Range;
use canary::Bug;
use multipath::Outcome;
use nbd::{Errno, Kind, Request};

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
        let has_memory = self.begin_with_memory(ticket, client, request);
        match request.kind {
            _ if !has_memory => {}
            Kind::Read => self.start(devices, ticket),
            _ => self.equipped(devices, ticket),
        }
    }

    /// A request that comes; whether it has its memory. Else it waits for that.
    #[inline]
    fn begin_with_memory(&mut self, ticket: u32, client: u16, request: Request) -> bool {
        let export = self.clients[usize::from(client)].export;
        let volume = self.clients[usize::from(client)].volume;
        let block = self.block(volume);
        let work = &mut self.table[ticket];
        work.begin(client, volume, request, block);
        work.begun_ns = self.course.now_ns;
        self.counters[export as usize].merged += u64::from(work.edge_count > 0);
        let is_there = self.take_memory(ticket);
        if !is_there {
            self.counters[export as usize].waited_buffer += 1;
            self.wait_for_memory(ticket);
        }
        is_there
    }

    /// The header of a write has come, and its data is next in the stream: it goes on at once if
    /// there is memory.
    pub(super) fn begin_write(&mut self, client: u16, ticket: u32, request: Request) {
        if self.begin_with_memory(ticket, client, request) {
            self.expect_data(ticket);
        }
    }

    /// A write has the memory for its data.
    #[inline]
    fn expect_data(&mut self, ticket: u32) {
        let work = &mut self.table[ticket];
        work.pipeline.enter(Stage::Data);
        let (client, token) = (work.client, work.request.token);
        if let Some(session) = self.clients[usize::from(client)].session() {
            session.buffer_ready(token);
        }
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
            let client = work.client;
            self.expect_data(ticket);
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
        if !work.request.kind.is_change() {
            return self.start(devices, ticket);
        }
        if work.edge_count > 0
            && devices.cross_core.has_others()
            && work.pipeline.device() < MIRRORS_FROM // a mirror's clients are on one core
            && !canary::has(Bug::EdgesOnTwoCores)
        {
            let (start, end) = work.blocks(work.block);
            let range = Range { start, end };
            return work.pipeline.ask_cores(ticket, devices, range);
        }
        self.place(devices, ticket);
    }

    /// A change gets its place among those of this core: it begins when none of them is in the way.
    pub fn place(&mut self, devices: &mut Devices, ticket: u32) {
        let work = &mut self.table[ticket];
        let (start, end) = work.blocks(work.block);
        let range = Range { start, end };
        if work.pipeline.admit(devices, ticket.into(), range) {
            self.start(devices, ticket);
        } else if canary::has(Bug::Overtaking)
            || (canary::has(Bug::NoBehind) && work.edge_count == 0)
        {
            work.pipeline.overtake(ticket, devices);
            self.start(devices, ticket);
        }
    }

    /// The turn of a change has come on all cores.
    pub fn begin_alone(&mut self, devices: &mut Devices, ticket: u32) {
        self.table[ticket].pipeline.begin_alone();
        self.start(devices, ticket);
    }

    /// Begins a request: no change that it overlaps is in the way, on this core.
    pub fn start(&mut self, devices: &mut Devices, ticket: u32) {
        let work = &mut self.table[ticket];
        if !work.pipeline.has_turn(ticket, devices) {
            return;
        }
        let client = &self.clients[usize::from(work.client)];
        if client.broken && work.request.kind.is_change() {
            // Its client may have sent it again, and something newer, by another connection.
            work.pipeline.fail(Outcome::Stopped);
        }
        work.pipeline.start(devices, work.edge_count > 0);
        let (source, now_ns) = (client.reader.source, self.course.now_ns);
        if client.orphan || !work.submit_whole(ticket, source, devices, now_ns) {
            self.pump(devices, ticket);
        }
    }

    /// Asks for as many of a request's I/Os as may be, and goes on to its next stage when all of
    /// one have ended.
    fn pump(&mut self, devices: &mut Devices, ticket: u32) {
        loop {
            let work = &mut self.table[ticket];
            let client = &self.clients[usize::from(work.client)];
            if client.orphan {
                work.pipeline.fail(Outcome::Stopped);
            }
            let (source, now_ns) = (client.reader.source, self.course.now_ns);
            let (zeroes, slots) = (&self.pool.zeroes, &mut self.course.slots);
            if !work.pump(ticket, source, zeroes, devices, slots, now_ns) {
                return;
            }
            if work.pipeline.begins_anew(devices) {
                continue;
            }
            match work.pipeline.stage() {
                Stage::Edges if !work.pipeline.has_failed() => {
                    work.pipeline.enter(Stage::Merge);
                    return self.course.merges.push(ticket);
                }
                // Neither zeroing nor deallocating has a bit for it.
                Stage::Io
                    if work.request.fua
                        && work.request.kind != Kind::Write
                        && !work.pipeline.has_failed() =>
                {
                    work.pipeline.begin_flush(ticket, devices);
                }
                _ => return self.answer(devices, ticket),
            }
        }
    }

    /// An I/O ended.
    pub fn io_done(&mut self, devices: &mut Devices, done: &IoDone) {
        let ticket = done.cookie as u32;
        let work = &mut self.table[ticket];
        work.pipeline.io_ended(done.outcome);
        let is_orphan = self.clients[usize::from(work.client)].orphan;
        let has_ended = work.pipeline.has_ended_whole() && !is_orphan;
        self.slot_freed();
        if has_ended {
            self.answer(devices, ticket);
        } else {
            self.pump(devices, ticket);
        }
    }

    /// An I/O ended: there is a slot for a request that waits for one.
    #[inline]
    pub fn slot_freed(&mut self) {
        if !canary::has(Bug::LostWakeUp) {
            self.course.slots.slot_freed();
        }
    }

    /// Those who found no free slot before; whether there were any.
    #[inline]
    pub fn submit_waiting(&mut self, devices: &mut Devices) -> bool {
        let round = self.course.slots.begin_round();
        round.is_some_and(|round| self.submit_round(devices, round))
    }

    fn submit_round(&mut self, devices: &mut Devices, mut round: Round) -> bool {
        let mut any = false;
        while let Some(ticket) = self.course.slots.pop(&mut round) {
            let pipeline = &mut self.table[ticket].pipeline;
            pipeline.unqueued();
            // Its I/Os may have found slots meanwhile, so that it is to be merged first.
            if pipeline.stage() != Stage::Merge {
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
            let (block, start) = (work.block, work.pipeline.range().start);
            for edge in &work.edges[..usize::from(work.edge_count)] {
                let (from, to) = (edge.from as usize, edge.to as usize);
                if work.request.kind == Kind::WriteZeroes {
                    memory.bytes_mut(edge.span)[from..to].fill(0);
                    continue;
                }
                let old = &mut self.course.scratch[..block as usize];
                old.copy_from_slice(memory.bytes(edge.span));
                let new = memory.bytes_mut(work.span(edge.at - start, block));
                new[..from].copy_from_slice(&old[..from]);
                new[to..].copy_from_slice(&old[to..]);
            }
            work.pipeline.merged();
            self.pump(devices, ticket);
        }
        any
    }

    pub(super) fn answer(&mut self, devices: &mut Devices, ticket: u32) {
        let work = &mut self.table[ticket];
        let is_flush = work.request.kind == Kind::Flush;
        let was_flushed = is_flush || work.pipeline.stage() == Stage::Flush;
        let outcome = work.pipeline.end(ticket, devices, &mut self.course.slots);
        let mut error = outcome.and_then(|it| errno(it, work.request.kind));
        let (client, token) = (work.client, work.request.token);
        let length = u64::from(work.request.length);
        let bytes = match work.request.kind {
            Kind::Read => [length, 0],
            Kind::Write => [0, length],
            _ => [0; 2],
        };
        if is_flush {
            // Each client that was there is told of a loss once, whoever wrote what is lost: one
            // may flush by another connection than it writes by (T13).
            let losses = devices.flush_losses(work.pipeline.device()) as u16;
            let known = &mut self.losses[usize::from(client)];
            if core::mem::replace(known, losses) != losses {
                error.get_or_insert(Errno::Io);
            }
        }
        if was_flushed && error.is_some() {
            // That of a change tells of nothing but that change.
            let heard = is_flush && !self.clients[usize::from(client)].closed;
            devices.flush_failed_for(work.pipeline.device(), heard);
        }
        if let Some(error) = error {
            self.tell_error(devices, ticket, error, outcome);
        }
        let it = &mut self.clients[usize::from(client)];
        let counters = &mut self.counters[it.export as usize];
        counters.requests += 1;
        counters.errors += u64::from(error.is_some());
        it.counters.ended(error.is_none(), bytes);
        if let Some(session) = it.session() {
            session.complete(token, error.map_or(Ok(()), Err), self.course.now_ns);
        }
        self.touch(client);
    }
}

impl NbdServer {
    /// Describes an error that a client is answered with; of many, few.
    #[cold]
    fn tell_error(
        &mut self,
        devices: &Devices,
        ticket: u32,
        error: Errno,
        outcome: Option<Outcome>,
    ) {
        let work = &self.table[ticket];
        let volume = work.pipeline.device();
        let now_ns = self.course.now_ns;
        if !self.errors.is_described(&mut self.events, volume, now_ns) {
            return;
        }
        self.events
            .push_back(ExportEvent::Error(Box::new(ClientError {
                volume,
                client: self.clients[usize::from(work.client)].reader.name.clone(),
                op: match work.request.kind {
                    Kind::Read => "read",
                    Kind::Write => "write",
                    Kind::Flush => "flush",
                    Kind::Trim => "trim",
                    Kind::Cache => "cache",
                    Kind::WriteZeroes => "write zeroes",
                    Kind::BlockStatus { .. } => "block status",
                },
                offset: work.request.offset,
                length: work.request.length.into(),
                error: error.to_string().into(),
                outcome,
                path: devices
                    .host()
                    .failure_of(volume, ticket.into(), work.begun_ns),
            })));
    }
}

/// Error for the client at the end of an I/O for such a request; `None`: it was done.
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
