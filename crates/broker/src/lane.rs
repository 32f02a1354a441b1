//! One queue: fetches commands, checks copies of them, executes or starts them, answers.
//!
//! # Contract
//! A command is fetched only when there is room for its completion, so an answer never waits. A
//! client that writes a doorbell that can't be true ends the lane ([`GivenUp`]), as memory does
//! that is lost; commands in flight end first. In one turn at most [`TURN_BYTES`] are moved, and a
//! command more: the rest is the next turn's, so that one lane keeps the others of its thread
//! waiting for a bounded time.
//!
//! A thread may stand still anywhere, and go on when its clients have long written something newer
//! by other ways (T9). So whether the client has let go of the queue is looked at right before
//! anything is changed, also by commands that were fetched before; the engine does so as well.
use crate::limits::{BATCH, TURN_BYTES};
use crate::transfer::{Door, Memories, Region};
use crate::zeroing::Zeroing;
use crate::{Grant, Namespace, Store, Trust};
use nvme::queue::check::{self, Checked, Order};
use nvme::queue::{CqProducer, Entry, Misbehaved, SqConsumer};
use nvme::wire::{Cqe, Status, dsm};
use queue::layout::{Header, Kind, Layout};
use queue::limits::TRANSFER_MAX;
use queue::{Coalescing, Memory};
use runtime::MemoryDevice;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use sys::{Interrupt, Shared};

/// Counters of a lane, for statistics; written by its thread only.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Tally {
    /// Its client's user.
    pub uid: u32,
    /// Its client.
    pub pid: i32,
    /// When it was opened.
    pub since: Option<Instant>,
    /// Commands answered.
    pub commands: AtomicU64,
    /// Of these, with an error.
    pub errors: AtomicU64,
    /// Commands in flight in the broker.
    pub in_flight: AtomicU64,
    /// Interrupts raised.
    pub interrupts: AtomicU64,
    /// Read and written by commands of the engine.
    pub bytes: [AtomicU64; 2],
    /// Of one whose client has gone, bit n: requests to namespace n + 1 are waited for.
    pub awaited: AtomicU64,
}

/// Lane and number of a command.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The lane's place.
    pub lane: usize,
    /// The command.
    pub cid: u16,
    /// Index of the namespace.
    pub namespace: usize,
}

/// Operation; bytes.
#[derive(Clone, Debug)]
pub enum Work {
    /// Into the parts of the command.
    Read { offset: u64 },
    /// From the parts of the command.
    Write { offset: u64, fua: bool },
    /// A range is to be zeroes.
    Zeroes { offset: u64, len: u64, fua: bool },
    /// Ranges are not needed any more.
    Deallocate { ranges: Vec<(u64, u64)> },
    /// Makes writes durable; in the namespaces of `rest` too.
    Flush { rest: Vec<usize> },
}

/// Does what takes time; the end of each is told to [`Lane::ended`].
pub trait Executor {
    /// Starts a request, or lets it wait.
    fn begin(&mut self, job: Job, work: Work, memories: &Memories);
    /// Takes back what waits of a lane: one command, or all. How many there were; their ends come
    /// as any other.
    fn cancel(&mut self, lane: usize, cid: Option<u16>) -> u32;
    /// Bytes that were copied for requests of a lane since this was asked.
    fn take_copied(&mut self, lane: usize) -> u64;
}

/// Parts of a lane.
pub struct Parts {
    pub id: u64,
    pub header: Header,
    pub memory: Arc<Shared>,
    pub kick: OwnedFd,
    pub interrupt: Option<(Interrupt, Coalescing)>,
    pub data: Option<Region>,
    /// As they were when it was opened.
    pub namespaces: Arc<[Namespace]>,
    /// Rights of its client.
    pub grant: Grant,
    pub trust: Trust,
    pub tally: Arc<Tally>,
}

/// See the module.
pub struct Lane {
    pub id: u64,
    pub kick: OwnedFd,
    memory: Memory,
    layout: Layout,
    sq: SqConsumer,
    cq: CqProducer,
    sqid: u16,
    memories: Memories,
    namespaces: Arc<[Namespace]>,
    grant: Grant,
    /// `None`: it may not be used, or was not ready when it was looked at.
    views: Vec<Option<check::Namespace>>,
    trust: Trust,
    interrupt: Option<Wire>,
    /// Copies of the commands at hand.
    batch: Box<[Entry; BATCH as usize]>,
    /// Those of them that are not done: from here, before there.
    batch_at: u16,
    batch_end: u16,
    /// Bytes that were moved in this turn.
    moved: u64,
    /// Bytes that were copied for its requests to the engine and count in turns to come.
    owed: u64,
    /// Commands that zero much of a memory device.
    zeroing: VecDeque<Zeroing>,
    in_flight: u16,
    answered: u64,
    failed: u64,
    /// Read and written by commands of the engine.
    bytes: [u64; 2],
    tally: Arc<Tally>,
    /// Nothing is fetched any more: the client is gone.
    pub closing: bool,
    /// Why nothing is fetched any more, though the client may be there.
    pub broken: Option<GivenUp>,
    /// Faults of this process after which no memory of this queue was lost.
    faults: u64,
}

/// The interrupt of a `user_irq` queue.
struct Wire {
    interrupt: Interrupt,
    coalescing: Coalescing,
    /// Completions that it wasn't raised for.
    pending: u32,
    /// When the first of them was posted, ns.
    since_ns: u64,
}

impl Tally {
    /// Its client, in lines for people.
    pub fn client(&self) -> String {
        format!("process {} of user {}", self.pid, self.uid)
    }
}

impl Lane {
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    pub fn new(parts: Parts) -> Self {
        let Parts { header, memory, .. } = parts;
        let layout = header.layout;
        let lists = Region {
            memory: Arc::clone(&memory),
            at: layout.lists_at(),
            len: layout.lists_bytes(),
        };
        let door = Door::new(Arc::clone(&memory), layout.sq().doorbell_at);
        let mut memories = Memories::new(lists, door);
        memories.set(1, parts.data);
        debug_assert_eq!(header.kind == Kind::UserIrq, parts.interrupt.is_some());
        Self {
            id: parts.id,
            kick: parts.kick,
            memory: Memory(memory),
            layout,
            sq: SqConsumer::new(layout.sq()),
            cq: CqProducer::new(layout.cq()),
            sqid: header.number as u16,
            memories,
            views: parts.grant.views(&parts.namespaces),
            namespaces: parts.namespaces,
            grant: parts.grant,
            trust: parts.trust,
            interrupt: parts.interrupt.map(|(interrupt, coalescing)| Wire {
                interrupt,
                coalescing,
                pending: 0,
                since_ns: 0,
            }),
            batch: Box::new([[0; 8]; BATCH as usize]),
            batch_at: 0,
            batch_end: 0,
            moved: 0,
            owed: 0,
            zeroing: VecDeque::new(),
            in_flight: 0,
            answered: 0,
            failed: 0,
            bytes: [0; 2],
            tally: parts.tally,
            closing: false,
            broken: None,
            // It looks once.
            faults: u64::MAX,
        }
    }

    /// Nothing is fetched any more, and what was begun here is left as it is. Registered memory is
    /// given back at once; commands that the engine has hold what they use of it (T10).
    pub fn close(&mut self) -> Vec<Region> {
        self.closing = true;
        // Changes that the engine has look there.
        self.memories.door().shut();
        self.sq.end(&self.memory);
        self.in_flight -= self.zeroing.len() as u16;
        self.zeroing.clear();
        self.publish();
        self.memories.take()
    }

    /// The namespaces that there were when it was opened.
    pub fn namespaces(&self) -> &Arc<[Namespace]> {
        &self.namespaces
    }

    /// Where its client lets go of it.
    pub fn door(&self) -> &Door {
        self.memories.door()
    }

    /// Tells what it waits for after its client has gone: bit n is namespace n + 1.
    pub fn await_of(&self, namespaces: u64) {
        self.tally.awaited.store(namespaces, Ordering::Relaxed);
    }

    /// Whether nothing of it is in flight.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// Registered memory comes or goes; what isn't used any more.
    pub fn set_region(&mut self, number: usize, region: Option<Region>) -> Option<Region> {
        if self.closing {
            return region;
        }
        self.memories.set(number, region)
    }

    /// Fetches and executes what is there, up to [`BATCH`] commands; how many there were.
    #[inline]
    pub fn turn(&mut self, at: usize, namespaces: &[Namespace], engine: &mut impl Executor) -> u16 {
        if self.closing || self.broken.is_some() || self.has_lost_memory() {
            return 0;
        }
        self.owed += engine.take_copied(at);
        self.moved = self.owed.min(TURN_BYTES);
        self.owed -= self.moved;
        let paid = u16::from(self.moved == TURN_BYTES);
        if self.has_begun() && self.door().is_shut() {
            self.give_up(Misbehaved::LetGo);
            return 0;
        }
        let zeroed = self.zero(namespaces);
        if self.batch_at == self.batch_end {
            let count = self.admit().unwrap_or_else(|why| {
                self.give_up(why);
                0
            });
            if count == 0 {
                return zeroed + paid;
            }
            self.fetch(count);
        }
        let begin = self.batch_at;
        while self.batch_at < self.batch_end && self.moved < TURN_BYTES && self.broken.is_none() {
            let entry = &{ self.batch[usize::from(self.batch_at)] };
            self.batch_at += 1;
            let status = match self.execute(at, entry, namespaces, engine) {
                Ok(Begun::Done(result)) => {
                    self.answer(cid_of(entry), Status::SUCCESS, result);
                    continue;
                }
                Ok(Begun::UnderWay) => {
                    self.in_flight += 1;
                    continue;
                }
                Err(status) => status,
            };
            self.answer(cid_of(entry), status, 0);
        }
        self.publish();
        zeroed + paid + self.batch_at - begin
    }

    /// Fetches so many commands, or those that are there. All of them before one is executed: so
    /// their cache lines are on the way at the same time.
    #[inline]
    fn fetch(&mut self, count: u16) {
        (self.batch_at, self.batch_end) = (0, 0);
        for entry in &mut self.batch[..usize::from(count)] {
            let Some(fetched) = self.sq.fetch(&self.memory) else {
                break;
            };
            *entry = fetched;
            self.batch_end += 1;
        }
    }

    /// A piece of the first command that zeroes much; how many there were.
    #[inline]
    fn zero(&mut self, namespaces: &[Namespace]) -> u16 {
        let Some(zeroing) = self.zeroing.front_mut() else {
            return 0;
        };
        if self.moved >= TURN_BYTES {
            return 0;
        }
        self.moved += TURN_BYTES / 2;
        let cid = zeroing.cid;
        if zeroing.piece(&namespaces[zeroing.namespace].store, TURN_BYTES / 2) {
            self.zeroing.pop_front();
            self.in_flight -= 1;
            self.answer(cid, Status::SUCCESS, 0);
            self.publish();
        }
        1
    }

    /// Whether a namespace is ready that was not when it was looked at.
    #[cold]
    fn finds_ready(&mut self) -> bool {
        let before = self.views.iter().flatten().count();
        let now = self.grant.views(&self.namespaces);
        for (view, now) in self.views.iter_mut().zip(now) {
            // A size that has changed is that of queues that are opened from now on.
            *view = view.or(now);
        }
        self.views.iter().flatten().count() > before
    }

    /// How many commands are fetched now: there is room for what they will be answered.
    #[inline]
    fn admit(&mut self) -> Result<u16, Misbehaved> {
        let available = self.sq.available(&self.memory)?.min(BATCH);
        if available == 0 {
            return Ok(0);
        }
        let wanted = self.in_flight + available;
        let room = self.cq.room(&self.memory, wanted)?;
        Ok(available.min(room.saturating_sub(self.in_flight)))
    }

    #[inline]
    fn execute(
        &mut self,
        at: usize,
        entry: &Entry,
        namespaces: &[Namespace],
        engine: &mut impl Executor,
    ) -> Result<Begun, Status> {
        let checked = match check::check(entry, &self.views, TRANSFER_MAX, self.trust) {
            Err(_) if self.finds_ready() => {
                check::check(entry, &self.views, TRANSFER_MAX, self.trust)?
            }
            checked => checked?,
        };
        if checked.data > 0 {
            self.memories.look_up(entry, checked.data, self.trust)?;
        }
        if checked.order.is_change() && self.door().is_shut() {
            return Err(Status::SQ_DELETION);
        }
        let device = match checked.order {
            Order::Cancel { cid } => return Ok(Begun::Done(self.cancel(at, cid, engine).into())),
            Order::Flush if checked.all => return self.flush_all(at, entry, namespaces, engine),
            _ => &namespaces[checked.namespace as usize].store,
        };
        match device {
            Store::Null => {
                // Nothing is done with the ranges of a Dataset Management, which may be wrong.
                if let Order::Deallocate { .. } = checked.order {
                    self.ranges(&checked)?;
                }
                Ok(Begun::Done(0))
            }
            Store::Memory(memory) => {
                self.moved += u64::from(checked.data);
                self.memorize(memory, entry, &checked)
            }
            Store::Engine(_) => {
                let Some(work) = self.work(&checked)? else {
                    return Ok(Begun::Done(0));
                };
                engine.begin(self.job(at, entry, checked.namespace), work, &self.memories);
                self.moved += engine.take_copied(at);
                Ok(Begun::UnderWay)
            }
        }
    }

    /// Takes back what was not begun: one command, or all. How many there were.
    #[cold]
    fn cancel(&mut self, at: usize, cid: Option<u16>, engine: &mut impl Executor) -> u32 {
        let mut count = engine.cancel(at, cid);
        let first = self.zeroing.front();
        let mut next = usize::from(first.is_some_and(Zeroing::has_begun));
        while let Some(zeroing) = self.zeroing.get(next) {
            let waits = zeroing.cid;
            if cid.is_some_and(|cid| cid != waits) {
                next += 1;
                continue;
            }
            self.zeroing.remove(next);
            self.in_flight -= 1;
            self.answer(waits, Status::ABORT_REQUESTED, 0);
            count += 1;
        }
        count
    }

    fn job(&self, at: usize, entry: &Entry, namespace: u32) -> Job {
        Job {
            lane: at,
            cid: cid_of(entry),
            namespace: namespace as usize,
        }
    }

    /// Every device of the engine that this client may use is flushed, one after the other.
    fn flush_all(
        &mut self,
        at: usize,
        entry: &Entry,
        namespaces: &[Namespace],
        engine: &mut impl Executor,
    ) -> Result<Begun, Status> {
        let is_flushed = |index: &usize| {
            let is_seen = self.views.get(*index).is_some_and(Option::is_some);
            is_seen && matches!(namespaces[*index].store, Store::Engine(_))
        };
        let mut indices = (0..namespaces.len()).filter(is_flushed);
        let Some(first) = indices.next() else {
            return Ok(Begun::Done(0));
        };
        let rest = indices.collect();
        let job = self.job(at, entry, first as u32);
        engine.begin(job, Work::Flush { rest }, &self.memories);
        Ok(Begun::UnderWay)
    }

    /// Does a command on a memory device, or begins it.
    #[inline]
    fn memorize(
        &mut self,
        device: &MemoryDevice,
        entry: &Entry,
        checked: &Checked,
    ) -> Result<Begun, Status> {
        match checked.order {
            Order::Read => self.memories.read_memory(device, checked.offset),
            Order::Write { .. } => self.memories.write_memory(device, checked.offset),
            Order::WriteZeroes { .. } if checked.len <= TURN_BYTES / 2 => {
                self.moved += checked.len;
                device.discard(checked.offset, checked.len);
            }
            Order::WriteZeroes { .. } => {
                let ranges = vec![(checked.offset, checked.len)];
                self.zeroing.push_back(Zeroing::new(entry, checked, ranges));
                return Ok(Begun::UnderWay);
            }
            Order::Deallocate { .. } => {
                let ranges = self.ranges(checked)?;
                if !ranges.is_empty() {
                    self.zeroing.push_back(Zeroing::new(entry, checked, ranges));
                    return Ok(Begun::UnderWay);
                }
            }
            Order::Flush | Order::Cancel { .. } => {}
        }
        Ok(Begun::Done(0))
    }

    /// Operation of the engine; `None`: none.
    fn work(&self, checked: &Checked) -> Result<Option<Work>, Status> {
        let (offset, len) = (checked.offset, checked.len);
        Ok(Some(match checked.order {
            Order::Read => Work::Read { offset },
            Order::Write { fua } => Work::Write { offset, fua },
            Order::WriteZeroes { fua, .. } => Work::Zeroes { offset, len, fua },
            Order::Flush => Work::Flush { rest: Vec::new() },
            Order::Deallocate { .. } => {
                let ranges = self.ranges(checked)?;
                if ranges.is_empty() {
                    return Ok(None);
                }
                Work::Deallocate { ranges }
            }
            Order::Cancel { .. } => return Ok(None),
        }))
    }

    /// The ranges of a Dataset Management in bytes: copied, then checked. None of any other
    /// command.
    fn ranges(&self, checked: &Checked) -> Result<Vec<(u64, u64)>, Status> {
        let Order::Deallocate { apply: true, .. } = checked.order else {
            return Ok(Vec::new());
        };
        let view = self.views[checked.namespace as usize];
        let view = view.ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
        let mut bytes = [0; dsm::Range::LEN * dsm::RANGES_MAX];
        let bytes = &mut bytes[..checked.data as usize];
        self.memories.copy_out(bytes);
        let mut ranges = Vec::new();
        for range in dsm::ranges(bytes).filter(|range| range.blocks > 0) {
            check::within(&view, range.slba, range.blocks.into())?;
            let shift = view.block_shift;
            ranges.push((range.slba << shift, u64::from(range.blocks) << shift));
        }
        Ok(ranges)
    }

    /// A command that took time has ended, which has read and written so many bytes; whether
    /// somebody is told of it. Of one that failed this is certain: a client that lets go behind it
    /// looks once more.
    pub fn ended(&mut self, cid: u16, status: Status, bytes: [u64; 2]) -> bool {
        self.in_flight -= 1;
        self.bytes[0] += bytes[0];
        self.bytes[1] += bytes[1];
        let mut heard = !self.closing && self.broken.is_none();
        if heard {
            self.answer(cid, status, 0);
            heard = status.is_success() || !self.sq.was_let_go(&self.memory);
            heard &= !self.has_lost_memory();
        }
        self.publish();
        heard
    }

    #[inline]
    fn answer(&mut self, cid: u16, status: Status, result: u64) {
        if self.has_lost_memory() {
            return;
        }
        let cqe = Cqe {
            result,
            sqhd: self.sq.head(),
            sqid: self.sqid,
            cid,
            status,
        };
        self.cq.post(&self.memory, &cqe);
        self.answered += 1;
        self.failed += u64::from(!status.is_success());
        if let Some(wire) = &mut self.interrupt {
            wire.pending += 1;
        }
    }

    #[inline]
    fn publish(&self) {
        let tally = &self.tally;
        tally.commands.store(self.answered, Ordering::Relaxed);
        tally.errors.store(self.failed, Ordering::Relaxed);
        let in_flight = u64::from(self.in_flight);
        tally.in_flight.store(in_flight, Ordering::Relaxed);
        tally.bytes[0].store(self.bytes[0], Ordering::Relaxed);
        tally.bytes[1].store(self.bytes[1], Ordering::Relaxed);
    }

    /// Raises the interrupt if completions have waited for it long enough, are enough, or are all
    /// that there will be for now: whether it did so, by a system call. `now_ns`: `None` if this
    /// thread is about to sleep.
    #[inline]
    pub fn interrupt(&mut self, now_ns: impl FnOnce() -> Option<u64>) -> bool {
        let Some(wire) = &mut self.interrupt else {
            return false;
        };
        if wire.pending == 0 {
            return false;
        }
        let Coalescing {
            completions,
            time_us,
        } = wire.coalescing;
        if wire.pending < completions && self.in_flight > 0 {
            // Each turn in which some wait reads the clock: who asks for this sleeps anyway.
            if let Some(now_ns) = now_ns() {
                if wire.since_ns == 0 {
                    wire.since_ns = now_ns;
                }
                if now_ns - wire.since_ns < u64::from(time_us) * 1000 {
                    return false;
                }
            }
        }
        (wire.pending, wire.since_ns) = (0, 0);
        let raises = self.layout.armed().take(&self.memory);
        if raises && wire.interrupt.raise().is_ok() {
            self.tally.interrupts.fetch_add(1, Ordering::Relaxed);
        }
        raises
    }

    /// This thread is about to sleep: the client has to kick. Look once more afterwards.
    pub fn doze(&self) {
        self.layout.asleep().begin(&self.memory);
    }

    /// This thread is awake.
    pub fn wake(&self) {
        self.layout.asleep().end(&self.memory);
    }

    /// Whether there is anything to fetch now, or to give up for. A client that has no room for its
    /// answers has to kick when it has made some.
    pub fn is_waiting(&mut self) -> bool {
        if self.closing || self.broken.is_some() {
            return false;
        }
        self.has_begun() || self.admit() != Ok(0) || self.has_lost_memory()
    }

    /// Something that was fetched is not done, or not all of it.
    fn has_begun(&self) -> bool {
        self.batch_at < self.batch_end || !self.zeroing.is_empty()
    }
}

mod loss;
pub use loss::GivenUp;

/// Result of a command that was checked.
enum Begun {
    Done(u64),
    UnderWay,
}

#[inline]
pub fn cid_of(entry: &Entry) -> u16 {
    (entry[0] >> 16) as u16
}

#[cfg(test)]
mod tests;
