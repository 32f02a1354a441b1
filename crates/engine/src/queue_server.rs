//! The queue server, a front end of [`Core`](crate::Core): commands that applications have put into
//! queues in shared memory.
//!
//! Decides which I/O of the [`Devices`] a command becomes, when it may begin, and with which status
//! it ends. Rings, checks of commands and the memory of clients are the caller's: it begins
//! commands that it has checked, copies payload between a client's memory and the spans that are
//! named here, and posts completions.
//!
//! # Contract
//! A command ends once ([`QueueServer::next_done`]). Its number and memory are in use until it is
//! [released](crate::Core::release_queue_command) and no leg of a mirror has the memory any more
//! (T10). Each write goes through [`QueueServer::next_load`] first.
//!
//! A namespace has a number, and ends with its device or when it is removed: its commands then end
//! with Invalid Namespace as soon as no device has them. Its number may be another's once no queue
//! is open that knows the removed one.
//! Right before a device gets a change, the client is asked whether it has let go of its queue; it
//! may have sent something newer elsewhere (T9). A change that a device has keeps its place among
//! the others until it has ended.
//!
//! When a device has given up unflushed writes, the next flush of each queue that was open then
//! fails once, whoever wrote them: an application may flush by another queue than it writes by
//! (T13).
//!
//! # Limits
//! One namespace has at most half of the memory for payload. Commands wait for memory in the order
//! in which they came.
mod request;

use crate::buddy::Buddy;
use crate::client_errors::{ClientError, ClientErrors};
use crate::export::ExportEvent;
use crate::host::{IoDone, IoOp};
use crate::limits::ZEROES_BYTES;
use crate::machine::{Memory, Span};
use crate::mirror::Devices;
use crate::nvme_server::status_of;
use crate::pipeline::{Pipeline, Stage, ZeroBuffer};
use crate::slot_queues::SlotQueues;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use block::{Issuer, Range, SlotMap};
use multipath::Outcome;
use nvme::wire::Status;
use request::{Phase, Request};
pub use request::{QueueCommand, QueueDone, QueueOp};

/// The end of a flush that tells of a loss. Repeated, it would find nothing unflushed and hide that
/// (T13).
const LOSS: Status = Status::WRITE_FAULT.with_dnr();

/// Its number among the front ends.
pub(crate) const QUEUES: u32 = (u32::MAX >> 1) - 2;

/// Memory of a core for the payload of all queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueMemory {
    /// First byte of it in the arena, a multiple of 4 KiB.
    pub arena_at: u64,
    /// Bytes: buffers, and [`ZEROES_BYTES`](crate::limits::ZEROES_BYTES).
    pub arena_bytes: u64,
}

/// Whether the client of a queue has let go of it.
pub type HasLetGo = Box<dyn Fn() -> bool + Send>;

/// A queue that is open.
struct Client {
    /// In lines about its errors.
    name: Box<str>,
    has_let_go: HasLetGo,
    /// Commands that wait for memory.
    waiting: u32,
    /// Its namespaces, and [losses](Devices::flush_losses) of each that it was told of, or that
    /// were before it.
    losses: Vec<(u32, u32)>,
    /// Nothing of it is answered any more.
    is_closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Served,
    /// It or its device was removed.
    Gone,
}

/// The answer to a request for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grant {
    Taken,
    /// The namespace has its half, or some and there is no more: commands of others go on.
    HasSome,
    /// There is no block of that size, and the namespace has none.
    NoRoom,
}

struct Namespace {
    volume: u16,
    presence: Presence,
    /// Bytes of memory that its commands have.
    held: u64,
    /// The last pass over waiting commands in which one of its was left.
    left_in: u64,
    counters: QueueCounters,
}

/// Counters of a namespace, over all queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Commands that have ended.
    pub commands: u64,
    /// Of these, with an error.
    pub errors: u64,
    /// Commands that waited for memory.
    pub waited_buffer: u64,
}

/// The answer to a client for a status, in words of its protocol.
pub(crate) type Words = fn(&QueueOp, Status) -> Box<str>;

/// See the module.
pub struct QueueServer {
    /// Its number among the front ends.
    front_end: u32,
    words: Words,
    buffers: Buddy,
    /// First byte of the buffers in the core's arena, and their bytes.
    arena_at: u64,
    bytes: u64,
    zeroes: ZeroBuffer,
    requests: SlotMap<Request>,
    /// By number.
    namespaces: Vec<Option<Namespace>>,
    /// By queue.
    clients: Vec<Option<Client>>,
    /// Requests that wait for a slot of their device.
    slots: SlotQueues,
    /// Requests that wait for memory.
    waiting: VecDeque<u32>,
    /// Some of them may have become able to go on since they were looked at.
    may_grant: bool,
    /// How often they were looked at.
    passes: u64,
    /// A write has begun since the last turn.
    has_loaded: bool,
    /// Writes whose payload is to be copied.
    loads: VecDeque<u32>,
    done: VecDeque<u32>,
    events: VecDeque<ExportEvent>,
    errors: ClientErrors,
    /// Clients do not hear of errors any more.
    is_mute: bool,
}

impl QueueServer {
    /// As the front end of this number.
    pub(crate) fn new(front_end: u32, words: Words) -> Self {
        Self {
            front_end,
            words,
            buffers: Buddy::new(0),
            arena_at: 0,
            bytes: 0,
            zeroes: ZeroBuffer::new(Span::default()),
            requests: SlotMap::default(),
            namespaces: Vec::new(),
            clients: Vec::new(),
            slots: SlotQueues::default(),
            waiting: VecDeque::new(),
            may_grant: false,
            passes: 0,
            has_loaded: false,
            loads: VecDeque::new(),
            done: VecDeque::new(),
            events: VecDeque::new(),
            errors: ClientErrors::default(),
            is_mute: false,
        }
    }

    /// It has this memory from now on, before its first command.
    pub(crate) fn set_memory(&mut self, memory: QueueMemory) {
        let bytes = memory.arena_bytes - u64::from(ZEROES_BYTES);
        self.buffers = Buddy::new(bytes);
        (self.arena_at, self.bytes) = (memory.arena_at, bytes);
        self.zeroes = ZeroBuffer::new(Span {
            at: memory.arena_at + bytes,
            len: ZEROES_BYTES,
        });
    }

    /// Bytes of memory for payload.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.bytes
    }

    /// Of these, in no command.
    pub(crate) fn memory_free(&self) -> u64 {
        self.buffers.free_bytes()
    }

    /// Whether no command is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.iter().all(|(_, it)| it.phase != Phase::Begun)
    }

    /// Whether the turn of something has come that nothing else tells.
    pub(crate) fn has_more(&self) -> bool {
        self.has_loaded || self.may_grant && !self.waiting.is_empty()
    }

    /// Opens a queue of the client of this name, with a number that none has.
    ///
    /// # Panics
    /// One has it.
    pub(crate) fn open(
        &mut self,
        devices: &Devices,
        queue: u32,
        name: Box<str>,
        has_let_go: HasLetGo,
    ) {
        let served = (0..).zip(&self.namespaces).filter_map(|(number, it)| {
            let it = it.as_ref().filter(|it| it.presence == Presence::Served)?;
            Some((number, devices.flush_losses(it.volume)))
        });
        let losses = served.collect();
        let at = queue as usize;
        if at >= self.clients.len() {
            self.clients.resize_with(at + 1, || None);
        }
        let before = self.clients[at].replace(Client {
            name,
            has_let_go,
            waiting: 0,
            losses,
            is_closed: false,
        });
        assert!(before.is_none(), "queue {queue} is open");
    }

    /// The client of a queue has gone: how its commands end is told to no one.
    pub fn shut(&mut self, queue: u32) {
        self.client(queue).is_closed = true;
    }

    /// Closes a queue all of whose commands have ended and were released.
    pub fn close(&mut self, queue: u32) {
        assert!(!self.has_commands(queue), "queue {queue} has commands");
        self.clients[queue as usize] = None;
    }

    /// Whether a queue has commands that were not released.
    pub(crate) fn has_commands(&self, queue: u32) -> bool {
        let mut all = self.requests.iter();
        all.any(|(_, it)| it.of.queue == queue && it.phase != Phase::Lent)
    }

    /// A command that was not released.
    #[inline]
    pub(crate) fn command(&self, id: u32) -> &QueueCommand {
        &self.requests[id].of
    }

    /// Whether commands of a queue wait for memory: no more of it should begin.
    #[inline]
    pub fn is_short_of_memory(&self, queue: u32) -> bool {
        let client = &self.clients[queue as usize];
        client.as_ref().is_some_and(|it| it.waiting > 0)
    }

    /// A device becomes a namespace, with a number that none has, or one that was removed and that
    /// no open queue knows.
    ///
    /// # Panics
    /// One has it.
    pub fn add_namespace(&mut self, number: u32, volume: u16) {
        let at = number as usize;
        if at >= self.namespaces.len() {
            self.namespaces.resize_with(at + 1, || None);
        }
        let before = self.namespaces[at].as_ref();
        let is_free = before.is_none_or(|it| it.presence == Presence::Gone);
        assert!(is_free, "namespace {number} is served");
        // Legs of a mirror may have memory of the removed one's commands (T10).
        let held = before.map_or(0, |it| it.held);
        self.namespaces[at] = Some(Namespace {
            volume,
            presence: Presence::Served,
            held,
            left_in: 0,
            counters: QueueCounters::default(),
        });
    }

    /// A namespace is removed.
    pub fn remove_namespace(&mut self, number: u32) {
        self.namespace(number).presence = Presence::Gone;
    }

    /// A volume is gone: its number may be another's next.
    pub(crate) fn forget_volume(&mut self, volume: u16) {
        let all = self.namespaces.iter_mut().flatten();
        for it in all.filter(|it| it.volume == volume) {
            it.presence = Presence::Gone;
        }
    }

    /// Counters of the namespaces, by number.
    pub fn counters(&self) -> impl Iterator<Item = (u32, QueueCounters)> {
        let all = (0..).zip(&self.namespaces);
        all.filter_map(|(number, it)| Some((number, it.as_ref()?.counters)))
    }

    fn namespace(&mut self, number: u32) -> &mut Namespace {
        let Some(namespace) = self.namespaces[number as usize].as_mut() else {
            unreachable!("there is no namespace {number}");
        };
        namespace
    }

    fn client(&mut self, queue: u32) -> &mut Client {
        let Some(client) = self.clients[queue as usize].as_mut() else {
            unreachable!("queue {queue} is not open");
        };
        client
    }

    /// The device of a namespace, if commands may still begin there.
    fn volume(&self, namespace: u32) -> Option<u16> {
        let it = self.namespaces[namespace as usize].as_ref()?;
        (it.presence == Presence::Served).then_some(it.volume)
    }

    /// Begins a command.
    pub(crate) fn begin(&mut self, devices: &mut Devices, mut of: QueueCommand, now_ns: u64) {
        if let QueueOp::Flush { rest } = &mut of.op {
            while self.volume(of.namespace).is_none()
                && let Some(next) = rest.pop()
            {
                of.namespace = next;
            }
        }
        let volume = self.namespace(of.namespace).volume;
        let needs = of.payload();
        let id = self.requests.insert(Request::new(of, now_ns)).index();
        self.set_up(id, volume);
        if needs == 0 {
            return self.place(devices, id, now_ns);
        }
        self.requests[id].pipeline.enter(Stage::Memory);
        // Behind others it is looked at in its order.
        self.may_grant |= !self.waiting.is_empty();
        if !self.waiting.is_empty() || self.take_memory(id) != Grant::Taken {
            let (queue, namespace) = (self.requests[id].of.queue, self.requests[id].of.namespace);
            self.client(queue).waiting += 1;
            self.namespace(namespace).counters.waited_buffer += 1;
            self.waiting.push_back(id);
            return;
        }
        self.has_memory(devices, id, now_ns);
    }

    /// Makes the pipeline that of the next operation of a request.
    fn set_up(&mut self, id: u32, volume: u16) {
        let Request { of, pipeline, .. } = &mut self.requests[id];
        let (op, range) = match &of.op {
            QueueOp::Read => (IoOp::Read, Range::new(of.offset, of.length)),
            QueueOp::Write { fua } => (IoOp::Write { fua: *fua }, Range::new(of.offset, of.length)),
            QueueOp::WriteZeroes { .. } => (
                IoOp::WriteZeroes { deallocate: false },
                Range::new(of.offset, of.length),
            ),
            QueueOp::Deallocate { ranges } => {
                let (offset, length) = ranges.last().copied().unwrap_or_default();
                (IoOp::Deallocate, Range::new(offset, length))
            }
            QueueOp::Flush { .. } => (IoOp::Flush, Range::new(0, 0)),
        };
        *pipeline = Pipeline::default();
        pipeline.begin(volume, op, range);
    }

    /// Memory for the payload of a request.
    fn take_memory(&mut self, id: u32) -> Grant {
        let of = &self.requests[id].of;
        let (namespace, len) = (of.namespace, of.payload());
        let half = self.bytes / 2;
        let own = self.namespace(namespace).held;
        let block = Buddy::block_bytes(len);
        if own > 0 && own + block > half {
            return Grant::HasSome;
        }
        let Some(span) = self.buffers.allocate(len) else {
            // It has a turn of its own again when what it has is free.
            return if own > 0 {
                Grant::HasSome
            } else {
                Grant::NoRoom
            };
        };
        self.namespace(namespace).held += block;
        self.requests[id].span = Span {
            at: self.arena_at + span.at,
            len,
        };
        Grant::Taken
    }

    fn has_memory(&mut self, devices: &mut Devices, id: u32, now_ns: u64) {
        if let QueueOp::Read = self.requests[id].of.op {
            return self.place(devices, id, now_ns);
        }
        self.requests[id].pipeline.enter(Stage::Data);
        self.loads.push_back(id);
    }

    /// The next write whose payload is to be copied to a span, before `loaded`: its number,
    /// and its name for the caller.
    #[inline]
    pub fn next_load(&mut self) -> Option<(u32, u32, Span)> {
        let id = self.loads.pop_front()?;
        let it = &self.requests[id];
        Some((id, it.of.tag, it.span))
    }

    /// The payload of a write has been copied.
    pub(crate) fn loaded(&mut self, devices: &mut Devices, id: u32, now_ns: u64) {
        self.has_loaded = true;
        self.place(devices, id, now_ns);
    }

    /// The payload of a write can't be had: nothing of it is written.
    pub(crate) fn payload_lost(&mut self, devices: &mut Devices, id: u32) {
        let it = &mut self.requests[id];
        it.pipeline.withdraw(id, devices, &mut self.slots);
        self.ended(id, Status::DATA_TRANSFER_ERROR);
    }

    /// A request begins when no change that it overlaps is in the way.
    fn place(&mut self, devices: &mut Devices, id: u32, now_ns: u64) {
        let it = &mut self.requests[id];
        let owner = Issuer::FrontEnd(self.front_end, id).to_cookie();
        let range = it.pipeline.range();
        let begins = !it.of.op.is_change() || it.pipeline.admit(devices, owner, range);
        if begins {
            self.begun(devices, id, now_ns);
        }
    }

    /// No change that a request overlaps is in the way.
    pub(crate) fn begun(&mut self, devices: &mut Devices, id: u32, now_ns: u64) {
        self.start(devices, id);
        self.pump(devices, id, now_ns);
    }

    /// The I/Os of an operation begin.
    fn start(&mut self, devices: &Devices, id: u32) {
        self.requests[id].pipeline.start(devices, false);
    }

    /// How a request ends that must not begin, or go on.
    fn verdict(&self, id: u32) -> Option<Status> {
        if self.volume(self.requests[id].of.namespace).is_none() {
            return Some(Status::INVALID_NAMESPACE.with_dnr());
        }
        self.is_late(id).then_some(Status::SQ_DELETION)
    }

    /// Whether a request is a change that must not begin any more: its client has let go of the
    /// queue, or is gone (T9).
    pub(crate) fn is_late(&self, id: u32) -> bool {
        let of = &self.requests[id].of;
        let client = self.clients[of.queue as usize].as_ref();
        of.op.is_change() && client.is_none_or(|it| it.is_closed || (it.has_let_go)())
    }

    /// Asks for as many of a request's I/Os as may be, and ends it when all have ended.
    fn pump(&mut self, devices: &mut Devices, id: u32, now_ns: u64) {
        loop {
            if self.requests[id].pipeline.has_left()
                && let Some(verdict) = self.verdict(id)
            {
                let it = &mut self.requests[id];
                it.verdict.get_or_insert(verdict);
                it.pipeline.fail(Outcome::Stopped);
            }
            let Request {
                of, pipeline, span, ..
            } = &mut self.requests[id];
            let asker = (
                of.queue.into(),
                Issuer::FrontEnd(self.front_end, id).to_cookie(),
            );
            let (at, zeroes) = (span.at, &self.zeroes);
            let next = |pipeline: &Pipeline| {
                pipeline.next_io(asker, zeroes, |position, len| Span {
                    at: at + position,
                    len,
                })
            };
            if !pipeline.pump(id, devices, &mut self.slots, now_ns, next) {
                return;
            }
            if pipeline.begins_anew(devices) {
                continue;
            }
            if !self.goes_on(devices, id) {
                return self.end(devices, id, now_ns);
            }
            // Its next range has a place of its own among the changes, and waits for it.
            if self.requests[id].pipeline.stage() == Stage::Order {
                return;
            }
        }
    }

    /// An I/O of a command has ended.
    pub(crate) fn io_done(&mut self, devices: &mut Devices, done: &IoDone, now_ns: u64) {
        let id = done.cookie as u32;
        self.requests[id].pipeline.io_ended(done.outcome);
        self.pump(devices, id, now_ns);
    }

    /// An I/O of some front end has ended.
    #[inline]
    pub(crate) fn slot_freed(&mut self) {
        self.slots.slot_freed();
    }

    /// Whether another operation belongs to a request whose present one has ended; then that is
    /// begun, or waits for its place among the changes.
    fn goes_on(&mut self, devices: &mut Devices, id: u32) -> bool {
        let Request { of, pipeline, .. } = &mut self.requests[id];
        if pipeline.has_failed() {
            return false;
        }
        match &mut of.op {
            QueueOp::WriteZeroes { fua: true } if pipeline.stage() == Stage::Io => {
                pipeline.begin_flush(id, devices);
                true
            }
            QueueOp::Deallocate { ranges } if ranges.len() > 1 => {
                ranges.pop();
                self.next_operation(devices, id);
                let it = &mut self.requests[id];
                let owner = Issuer::FrontEnd(self.front_end, id).to_cookie();
                let range = it.pipeline.range();
                if it.pipeline.admit(devices, owner, range) {
                    self.start(devices, id);
                }
                true
            }
            QueueOp::Flush { rest } if !rest.is_empty() => {
                if self.learns_of_loss(devices, id) {
                    self.requests[id].verdict = Some(LOSS);
                    return false;
                }
                self.flush_next(devices, id)
            }
            _ => false,
        }
    }

    /// A flush of several namespaces goes on with the next one that is there; whether there is one.
    fn flush_next(&mut self, devices: &mut Devices, id: u32) -> bool {
        loop {
            let of = &mut self.requests[id].of;
            let QueueOp::Flush { rest } = &mut of.op else {
                unreachable!("{of:?}: it is no flush");
            };
            let Some(next) = rest.pop() else {
                return false;
            };
            if self.volume(next).is_some() {
                self.requests[id].of.namespace = next;
                self.next_operation(devices, id);
                self.start(devices, id);
                return true;
            }
        }
    }

    /// The present operation of a request has ended, and the next one is set up.
    fn next_operation(&mut self, devices: &mut Devices, id: u32) {
        let it = &mut self.requests[id];
        it.is_done_partly = true;
        it.pipeline.end(id, devices, &mut self.slots);
        let namespace = it.of.namespace;
        let volume = self.namespace(namespace).volume;
        self.set_up(id, volume);
    }

    fn end(&mut self, devices: &mut Devices, id: u32, now_ns: u64) {
        let it = &mut self.requests[id];
        let was_flushed = it.pipeline.stage() == Stage::Flush;
        let outcome = it.pipeline.end(id, devices, &mut self.slots);
        let is_read = matches!(it.of.op, QueueOp::Read);
        let verdict = it.verdict;
        let has_lost = it.pipeline.has_lost(devices);
        let is_flush = matches!(it.of.op, QueueOp::Flush { .. });
        let mut status = match (verdict, outcome) {
            (Some(status), _) => status,
            (None, None) => Status::SUCCESS,
            // Repeated, it would find nothing unflushed and hide the loss (T13).
            (None, Some(_)) if is_flush && has_lost => LOSS,
            (None, Some(outcome)) => status_of(outcome, is_read, Status::INTERNAL_PATH),
        };
        if is_flush && verdict.is_none_or(|it| it == LOSS) {
            if self.learns_of_loss(devices, id) && status.is_success() {
                status = LOSS;
            }
            self.requests[id].is_failed_flush = !status.is_success();
        } else if was_flushed {
            self.requests[id].is_failed_flush = !status.is_success();
        }
        if !status.is_success() {
            self.tell_error(devices, id, (status, outcome), now_ns);
        }
        self.ended(id, status);
    }

    /// A request has ended, with this status.
    fn ended(&mut self, id: u32, status: Status) {
        let it = &mut self.requests[id];
        it.status = status;
        it.phase = Phase::Ended;
        let namespace = it.of.namespace;
        let counters = &mut self.namespace(namespace).counters;
        counters.commands += 1;
        counters.errors += u64::from(!status.is_success());
        self.done.push_back(id);
    }

    /// The next command that has ended; its number is in use until `release`.
    #[inline]
    pub fn next_done(&mut self) -> Option<QueueDone> {
        let id = self.done.pop_front()?;
        let it = &self.requests[id];
        let is_read = matches!(it.of.op, QueueOp::Read) && it.status.is_success();
        Some(QueueDone {
            id,
            tag: it.of.tag,
            status: it.status,
            read: is_read.then_some(it.span),
        })
    }

    /// The caller is done with a command that has ended, and whose client has heard of that, or has
    /// gone before.
    #[inline]
    pub(crate) fn release(&mut self, devices: &mut Devices, id: u32, is_heard: bool) {
        let it = &mut self.requests[id];
        assert_eq!(it.phase, Phase::Ended, "request {id} has not ended");
        if it.is_failed_flush {
            // That of a change tells of nothing but that change.
            let is_heard = is_heard && matches!(it.of.op, QueueOp::Flush { .. });
            devices.flush_failed_for(it.pipeline.device(), is_heard);
        }
        if it.loans > 0 {
            it.phase = Phase::Lent;
            return;
        }
        self.remove(id);
    }

    fn remove(&mut self, id: u32) {
        let key = self.requests.key(id);
        let it = self.requests.remove(key);
        if it.span.len > 0 {
            self.buffers.free(Span {
                at: it.span.at - self.arena_at,
                len: it.span.len,
            });
            let block = Buddy::block_bytes(it.span.len);
            self.namespace(it.of.namespace).held -= block;
            self.may_grant = true;
        }
    }

    /// A leg has memory of a request beyond the end of its I/O (T10).
    pub(crate) fn lent(&mut self, id: u32) {
        self.requests[id].loans += 1;
    }

    /// One loan of a request's memory has ended.
    pub(crate) fn came_back(&mut self, id: u32) {
        let it = &mut self.requests[id];
        it.loans -= 1;
        if it.loans == 0 && it.phase == Phase::Lent {
            self.remove(id);
        }
    }

    /// Takes back commands of a queue to which no device has been asked anything yet: one, or all.
    /// Returns how many there were; they end as others do.
    pub(crate) fn cancel(&mut self, devices: &mut Devices, queue: u32, cid: Option<u16>) -> u32 {
        let is_meant = |it: &Request| {
            it.of.queue == queue
                && it.phase == Phase::Begun
                && cid.is_none_or(|cid| it.of.cid == cid)
        };
        let all = self.requests.iter().filter(|(_, it)| is_meant(it));
        let is_untouched = |it: &Request| {
            it.pipeline.is_waiting() && !it.pipeline.has_begun() && !it.is_done_partly
        };
        let all: Vec<u32> = all
            .filter(|(_, it)| is_untouched(it))
            .map(|(key, _)| key.index())
            .collect();
        for &id in &all {
            if self.requests[id].pipeline.stage() == Stage::Memory {
                self.client(queue).waiting -= 1;
                self.waiting.retain(|it| *it != id);
                self.may_grant = true;
            }
            self.loads.retain(|it| *it != id);
            let it = &mut self.requests[id];
            it.pipeline.withdraw(id, devices, &mut self.slots);
            self.ended(id, Status::ABORT_REQUESTED);
        }
        all.len() as u32
    }

    /// Does what has become possible; whether that was anything.
    pub(crate) fn advance(
        &mut self,
        devices: &mut Devices,
        memory: &mut dyn Memory,
        now_ns: u64,
    ) -> bool {
        self.has_loaded = false;
        if self.requests.is_empty() {
            return false;
        }
        self.zeroes.fill(memory);
        let mut any = self.grant_memory(devices, now_ns);
        if let Some(mut round) = self.slots.begin_round() {
            while let Some(id) = self.slots.pop(&mut round) {
                self.requests[id].pipeline.unqueued();
                self.pump(devices, id, now_ns);
                any |= !self.slots.is_back(&mut round, id);
            }
        }
        any
    }

    /// Gives memory to requests that wait for it, in the order in which they came; whether any got
    /// some. Where there is no room for one whose namespace has none, those behind it wait too:
    /// else large ones never got any. Those of other namespaces are in the way of their own only.
    fn grant_memory(&mut self, devices: &mut Devices, now_ns: u64) -> bool {
        if !core::mem::take(&mut self.may_grant) {
            return false;
        }
        self.passes += 1;
        let (pass, mut any, mut at) = (self.passes, false, 0);
        while let Some(&id) = self.waiting.get(at) {
            let (queue, number) = (self.requests[id].of.queue, self.requests[id].of.namespace);
            let grant = match self.namespace(number).left_in == pass {
                true => Grant::HasSome,
                false => self.take_memory(id),
            };
            match grant {
                Grant::Taken => {
                    any = true;
                    self.waiting.remove(at);
                    self.client(queue).waiting -= 1;
                    self.has_memory(devices, id, now_ns);
                }
                Grant::HasSome => {
                    self.namespace(number).left_in = pass;
                    at += 1;
                }
                Grant::NoRoom => break,
            }
        }
        any
    }

    /// Requests whose queue's changes are to be shown to other cores: those of a client that goes.
    pub(crate) fn is_of(&self, id: u32, queue: u32) -> bool {
        self.requests[id].of.queue == queue
    }
}

impl QueueServer {
    /// Describes an error that a client is answered with; of many, few.
    #[cold]
    fn tell_error(
        &mut self,
        devices: &Devices,
        id: u32,
        (status, outcome): (Status, Option<Outcome>),
        now_ns: u64,
    ) {
        let Request {
            of,
            pipeline,
            begun_ns,
            ..
        } = &self.requests[id];
        let client = self.clients[of.queue as usize].as_ref();
        let Some(client) = client.filter(|it| !it.is_closed && !self.is_mute) else {
            return;
        };
        let volume = pipeline.device();
        if !self.errors.is_described(&mut self.events, volume, now_ns) {
            return;
        }
        let (offset, length) = match of.op {
            QueueOp::Deallocate { .. } => {
                let range = pipeline.range();
                (range.start, range.end - range.start)
            }
            _ => (of.offset, of.length),
        };
        let cookie = Issuer::FrontEnd(self.front_end, id).to_cookie();
        let error = ClientError {
            volume,
            client: client.name.clone(),
            op: of.op.name(),
            offset,
            length,
            error: (self.words)(&of.op, status),
            outcome,
            path: devices.host().failure_of(volume, cookie, *begun_ns),
        };
        self.events.push_back(ExportEvent::Error(Box::new(error)));
    }

    /// Describes no errors from now on.
    pub(crate) fn mute(&mut self) {
        self.is_mute = true;
    }

    #[inline]
    pub(crate) fn poll_event(&mut self) -> Option<ExportEvent> {
        self.events.pop_front()
    }

    #[inline]
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        self.errors.poll_timeout()
    }

    pub(crate) fn handle_timeout(&mut self, now_ns: u64) {
        self.errors.take_rest(&mut self.events, now_ns);
    }

    /// A flush has ended. Returns whether its queue has a loss of the namespace yet to be told of,
    /// which it is by this flush.
    fn learns_of_loss(&mut self, devices: &Devices, id: u32) -> bool {
        let it = &self.requests[id];
        let losses = devices.flush_losses(it.pipeline.device());
        let Some(client) = self.clients[it.of.queue as usize].as_mut() else {
            return false;
        };
        let mut known = client.losses.iter_mut();
        let known = known.find(|(namespace, _)| *namespace == it.of.namespace);
        known.is_some_and(|(_, known)| core::mem::replace(known, losses) != losses)
    }
}
