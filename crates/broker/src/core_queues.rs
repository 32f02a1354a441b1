//! The queues of one core of an engine: between their clients and the core's queue server.
//!
//! # Contract
//! Driven by the core's reactor, before and after each turn of its engine. Payload is copied once,
//! between registered memory and the core's arena; a command holds the memory that it uses (T10).
//! Before the reactor sleeps, each queue says so to its client, which then kicks it
//! ([`CoreQueues::may_sleep`]); kicks are watched by their edges, and never read.
//!
//! A queue whose commands wait for memory has no further ones fetched.
use crate::config::{Namespace, Store};
use crate::lane::{Executor, Job, Lane, Work};
use crate::limits::{LOOKED_MAX, LOOKS_MAX};
use crate::messages::{Link, Message, News, ToCore};
use crate::transfer::{Memories, Part};
use block::SlotMap;
use engine::machine::Memory;
use engine::{ClientCounters, ClientPlace, ClientReport, Core, QueueCommand, QueueOp};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use sys::{Errno, Shared};

struct Served {
    lane: Box<Lane>,
    link: Arc<Link>,
    namespaces: Arc<[Namespace]>,
}

/// A command that the engine has.
struct Moved {
    lane: usize,
    cid: u16,
    /// Index of its namespace.
    namespace: usize,
    /// Bytes that it reads and writes.
    bytes: [u64; 2],
    /// Its memory, in order.
    parts: Vec<(Arc<Shared>, Part)>,
}

impl Moved {
    /// Copies its memory to `bytes`.
    fn read(&self, bytes: &mut [u8]) {
        let mut at = 0;
        for (memory, part) in &self.parts {
            let len = part.len as usize;
            memory.read(part.at, &mut bytes[at..at + len]);
            at += len;
        }
    }

    /// Copies `bytes` to its memory.
    fn write(&self, bytes: &[u8]) {
        let mut at = 0;
        for (memory, part) in &self.parts {
            let len = part.len as usize;
            memory.write(part.at, &bytes[at..at + len]);
            at += len;
        }
    }
}

/// The commands of all lanes.
#[derive(Default)]
struct Moves {
    all: SlotMap<Moved>,
    /// Lists of parts that no command has.
    spare: Vec<Vec<(Arc<Shared>, Part)>>,
    /// By lane: bytes that were copied for it and that it has not counted.
    copied: Vec<u64>,
}

/// See the module.
pub struct CoreQueues {
    /// A lane's place is its queue's number in the engine.
    lanes: Vec<Option<Served>>,
    moves: Moves,
    /// Kicks of all queues.
    kicks: OwnedFd,
    /// Servers that may have queues here.
    servers: Vec<Arc<Link>>,
    /// Servers that end, and have queues yet.
    ending: Vec<Arc<Link>>,
    /// Some lane ends, or is to.
    has_ending: bool,
    /// Queues that were closed, of which other cores hear after this turn.
    shut: Vec<(u64, Arc<Link>)>,
    /// So many of these were closed before the turn began.
    shut_before: usize,
    /// Clients were told to kick.
    is_dozing: bool,
    /// When there was something to do, ns.
    busy_ns: u64,
    /// Some queue asks to be looked at all the time, and has commands that need no request.
    polls: bool,
}

impl CoreQueues {
    /// Without queues.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            lanes: Vec::new(),
            moves: Moves::default(),
            kicks: epoll::create(CreateFlags::CLOEXEC)?,
            servers: Vec::new(),
            ending: Vec::new(),
            has_ending: false,
            shut: Vec::new(),
            shut_before: 0,
            is_dozing: false,
            busy_ns: 0,
            polls: false,
        })
    }

    /// A descriptor that becomes readable when a client kicks.
    ///
    /// # Errors
    /// None is left.
    pub fn kicks(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.kicks, 0)
    }

    /// The reactor wakes also while this is readable, which the caller sees to.
    ///
    /// # Errors
    /// As `epoll_ctl`.
    pub fn watch(&self, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
        epoll::add(
            &self.kicks,
            descriptor,
            EventData::new_u64(0),
            EventFlags::IN,
        )
    }

    /// No more.
    pub fn unwatch(&self, descriptor: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.kicks, descriptor);
    }

    /// A message of a server.
    pub fn handle(&mut self, to: ToCore, core: &mut Core) {
        let (link, message) = to.take();
        match message {
            Message::Attach => self.servers.push(link),
            Message::Add(lane) => self.add(link, lane, core),
            Message::Remove(id) => {
                self.close_all(core, |it| it.lane.id == id && Arc::ptr_eq(&it.link, &link));
            }
            Message::Stop => {
                self.close_all(core, |it| Arc::ptr_eq(&it.link, &link));
                self.servers.retain(|it| !Arc::ptr_eq(it, &link));
                self.ending.push(link);
                self.end_lanes(core);
            }
            Message::Region(id, number, region) => {
                let mut lanes = self.lanes.iter_mut().flatten();
                let served = lanes.find(|it| it.lane.id == id && Arc::ptr_eq(&it.link, &link));
                let old = match served {
                    Some(it) => it.lane.set_region(number, region),
                    None => region,
                };
                link.tell(News::Region(id, old));
            }
        }
    }

    fn add(&mut self, link: Arc<Link>, lane: Box<Lane>, core: &mut Core) {
        let edges = EventFlags::IN | EventFlags::ET;
        let watched = epoll::add(&self.kicks, &lane.kick, EventData::new_u64(0), edges);
        if let Err(error) = watched {
            tracing::warn!("queue {}: cannot watch for kicks: {error}", lane.id);
            return link.tell(News::Removed(lane.id, lane));
        }
        let free = self.lanes.iter().position(Option::is_none);
        let at = free.unwrap_or(self.lanes.len());
        if free.is_none() {
            self.lanes.push(None);
            self.moves.copied.push(0);
        }
        self.moves.copied[at] = 0;
        let door = lane.door().clone();
        let client = lane.tally().client().into();
        core.open_queue(at as u32, client, Box::new(move || door.is_shut()));
        let namespaces = Arc::clone(lane.namespaces());
        let has_direct = |it: &Namespace| !matches!(it.store, Store::Engine(_));
        self.polls |= link.spin_ns > 0 && namespaces.iter().any(has_direct);
        self.lanes[at] = Some(Served {
            lane,
            link,
            namespaces,
        });
    }

    /// Fetches commands and begins them, before a turn of the engine.
    #[inline]
    pub fn begin(&mut self, core: &mut Core, memory: &mut dyn Memory, now_ns: u64) {
        self.shut_before = self.shut.len();
        if !self.lanes.is_empty() {
            self.fetch(core, memory, now_ns);
        }
    }

    fn fetch(&mut self, core: &mut Core, memory: &mut dyn Memory, now_ns: u64) {
        if self.is_dozing {
            self.wake();
        }
        let mut count = self.look(core, now_ns);
        // A turn costs more than a command that needs no request. While something is under way in
        // the engine, the reactor is to look for its end.
        if self.polls && self.moves.all.is_empty() {
            for _ in 1..LOOKS_MAX {
                if count >= LOOKED_MAX || !self.moves.all.is_empty() {
                    break;
                }
                std::hint::spin_loop();
                count += self.look(core, now_ns);
            }
        }
        if count > 0 {
            self.busy_ns = now_ns;
            self.load(core, memory, now_ns);
        }
    }

    /// Looks at each queue once. Returns how many commands were begun, or went on.
    #[inline]
    fn look(&mut self, core: &mut Core, now_ns: u64) -> u32 {
        let mut count = 0;
        for (at, served) in self.lanes.iter_mut().enumerate() {
            let Some(Served {
                lane,
                namespaces,
                link,
            }) = served
            else {
                continue;
            };
            if !core.queues().is_short_of_memory(at as u32) {
                let mut commands = Commands {
                    core,
                    moves: &mut self.moves,
                    namespaces,
                    now_ns,
                };
                count += u32::from(lane.turn(at, namespaces, &mut commands));
            }
            self.has_ending |= lane.closing || lane.broken.is_some();
            if self.polls && lane.interrupt(|| Some(now_ns)) {
                link.raised.fetch_add(1, Ordering::Relaxed);
            }
        }
        count
    }

    /// Copies payload of writes to the arena.
    fn load(&mut self, core: &mut Core, memory: &mut dyn Memory, now_ns: u64) {
        while let Some((id, tag, span)) = core.queues().next_load() {
            let moved = &self.moves.all[tag];
            moved.read(memory.bytes_mut(span));
            self.moves.copied[moved.lane] += u64::from(span.len);
            // The copy may have zeroes instead of the client's bytes.
            match moved.parts.iter().any(|(memory, _)| memory.is_lost()) {
                true => core.queue_payload_lost(id),
                false => core.queue_payload_loaded(id, now_ns),
            }
        }
    }

    /// Answers commands that have ended, after a turn of the engine.
    #[inline]
    pub fn finish(&mut self, core: &mut Core, memory: &mut dyn Memory, now_ns: u64) {
        if !self.lanes.is_empty() {
            self.answer(core, memory, now_ns);
        }
    }

    fn answer(&mut self, core: &mut Core, memory: &mut dyn Memory, now_ns: u64) {
        loop {
            self.load(core, memory, now_ns);
            let Some(done) = core.queues().next_done() else {
                break;
            };
            self.busy_ns = now_ns;
            let key = self.moves.all.key(done.tag);
            let mut moved = self.moves.all.remove(key);
            let Some(Some(Served { lane, .. })) = self.lanes.get_mut(moved.lane) else {
                unreachable!("a lane stays until its commands have ended");
            };
            if let Some(span) = done.read {
                moved.write(memory.bytes(span));
                self.moves.copied[moved.lane] += u64::from(span.len);
            }
            let bytes = match done.status.is_success() {
                true => moved.bytes,
                false => [0; 2],
            };
            let is_heard = lane.ended(moved.cid, done.status, bytes);
            core.release_queue_command(done.id, is_heard);
            moved.parts.clear();
            self.moves.spare.push(moved.parts);
        }
        for Served { lane, link, .. } in self.lanes.iter_mut().flatten() {
            if lane.interrupt(|| Some(now_ns)) {
                link.raised.fetch_add(1, Ordering::Relaxed);
            }
        }
        if self.has_ending {
            self.end_lanes(core);
        }
    }

    /// Whether queues were closed of which [`Self::tell_shown`] has to tell.
    #[inline]
    pub fn has_shut(&self) -> bool {
        !self.shut.is_empty()
    }

    /// All that the engine had for other cores in this turn is in their mailboxes: they know of the
    /// changes of queues that were closed before it (T9).
    pub fn tell_shown(&mut self) {
        for (id, link) in self.shut.drain(..self.shut_before) {
            link.tell(News::Shown(id));
        }
    }

    /// The queues that are open, by the engine's number of each namespace that they may have rights
    /// to.
    pub fn open(&self) -> BTreeMap<u32, u32> {
        let mut open = BTreeMap::new();
        for it in self.lanes.iter().flatten() {
            for namespace in it.namespaces.iter() {
                if let Store::Engine(of) = &namespace.store {
                    *open.entry(of.number()).or_default() += 1;
                }
            }
        }
        open
    }

    /// Processes that have queues, once for each namespace of the engine that they have. Its volume
    /// is the namespace's, which this does not know: 0.
    pub fn client_reports(&self, now_ns: u64) -> Vec<ClientReport> {
        let mut all: Vec<ClientReport> = Vec::new();
        for it in self.lanes.iter().flatten() {
            let tally = it.lane.tally();
            let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
            let age = tally.since.map_or(Duration::ZERO, |it| it.elapsed());
            let counters = ClientCounters {
                since_ns: now_ns.saturating_sub(age.as_nanos() as u64),
                requests: count(&tally.commands),
                errors: count(&tally.errors),
                bytes: [count(&tally.bytes[0]), count(&tally.bytes[1])],
            };
            let of_engine = it.namespaces.iter().filter_map(|it| match &it.store {
                Store::Engine(of) => Some(of.number()),
                _ => None,
            });
            for number in of_engine {
                let report = ClientReport {
                    place: ClientPlace::Queue(number),
                    volume: 0,
                    name: tally.client(),
                    connections: 1,
                    in_flight: count(&tally.in_flight) as u32,
                    counters,
                };
                let is_same =
                    |it: &&mut ClientReport| it.place == report.place && it.name == report.name;
                match all.iter_mut().find(is_same) {
                    Some(it) => {
                        it.connections += 1;
                        it.in_flight += report.in_flight;
                        it.counters.add(&report.counters);
                    }
                    None => all.push(report),
                }
            }
        }
        all
    }

    /// Whether the reactor may sleep. Then clients kick from now on, until the next turn.
    pub fn may_sleep(&mut self, core: &mut Core, now_ns: u64) -> bool {
        if !self.shut.is_empty() {
            return false;
        }
        if self.lanes.is_empty() {
            return true;
        }
        let links = self.lanes.iter().flatten().map(|it| &it.link);
        let spin_ns = links.map(|link| link.spin_ns).max().unwrap_or(0);
        if now_ns.saturating_sub(self.busy_ns) < spin_ns {
            return false;
        }
        for Served { lane, link, .. } in self.lanes.iter_mut().flatten() {
            if lane.interrupt(|| None) {
                link.raised.fetch_add(1, Ordering::Relaxed);
            }
            lane.doze();
        }
        self.is_dozing = true;
        // After all of them were told: what came before is seen here.
        let lanes = (0..).zip(&mut self.lanes);
        let mut lanes = lanes.filter_map(|(at, it)| Some((at, it.as_mut()?)));
        // A turn follows when there is memory again.
        !lanes.any(|(at, it)| !core.queues().is_short_of_memory(at) && it.lane.is_waiting())
    }

    /// The reactor is awake.
    fn wake(&mut self) {
        self.is_dozing = false;
        for Served { lane, .. } in self.lanes.iter().flatten() {
            lane.wake();
        }
        drain(&self.kicks);
    }

    fn close_all(&mut self, core: &mut Core, which: impl Fn(&Served) -> bool) {
        for at in 0..self.lanes.len() {
            if self.lanes[at].as_ref().is_some_and(&which) {
                self.close(at, core);
            }
        }
        self.has_ending = true;
    }

    /// Nothing of a queue is begun any more. Its memory goes at once but for what its commands use
    /// that are under way.
    fn close(&mut self, at: usize, core: &mut Core) {
        let Some(Served { lane, link, .. }) = &mut self.lanes[at] else {
            return;
        };
        if !lane.closing {
            link.tell(News::Let(lane.close()));
            self.shut.push((lane.id, Arc::clone(link)));
            core.shut_queue(at as u32);
            core.cancel_queue_commands(at as u32, None);
        }
    }

    /// Closes lanes that are given up, and removes those whose last command has ended.
    #[cold]
    fn end_lanes(&mut self, core: &mut Core) {
        self.has_ending = false;
        for at in 0..self.lanes.len() {
            let Some(Served { lane, link, .. }) = &self.lanes[at] else {
                continue;
            };
            if let Some(why) = lane.broken
                && !lane.closing
            {
                let (id, link) = (lane.id, Arc::clone(link));
                self.close(at, core);
                link.tell(News::Broken(id, why));
            }
            let Some(Served { lane, .. }) = self.lanes[at].as_ref() else {
                continue;
            };
            if !lane.closing {
                continue;
            }
            if !lane.is_idle() {
                lane.await_of(self.moves.namespaces_of(at));
                self.has_ending = true;
                continue;
            }
            if let Some(Served { lane, link, .. }) = self.lanes[at].take() {
                let _ = epoll::delete(&self.kicks, lane.kick.as_fd());
                core.close_queue(at as u32);
                link.tell(News::Removed(lane.id, lane));
            }
        }
        while self.lanes.pop_if(|it| it.is_none()).is_some() {
            self.moves.copied.pop();
        }
        self.polls &= !self.lanes.is_empty();
        let lanes = &self.lanes;
        let has_queues = |link: &Arc<Link>| {
            let mut all = lanes.iter().flatten();
            all.any(|it| Arc::ptr_eq(&it.link, link))
        };
        for link in self.ending.extract_if(.., |link| !has_queues(link)) {
            link.tell(News::Ended);
        }
    }
}

/// The core has ended, and all commands with it. Each server hears of that once.
impl Drop for CoreQueues {
    fn drop(&mut self) {
        for link in self.servers.drain(..).chain(self.ending.drain(..)) {
            link.tell(News::Ended);
        }
    }
}

/// Takes the edges of descriptors that an epoll has; those that don't fit wake the reactor once
/// more.
fn drain(epoll: &OwnedFd) {
    let none = epoll::Event {
        flags: EventFlags::empty(),
        data: EventData::new_u64(0),
    };
    let _ = epoll::wait(
        epoll,
        &mut [none; 64],
        Some(&rustix::event::Timespec::default()),
    );
}

impl Moves {
    /// Namespaces that a lane has commands of: bit n is namespace n + 1.
    fn namespaces_of(&self, lane: usize) -> u64 {
        let its = self.all.iter().filter(|(_, it)| it.lane == lane);
        its.fold(0, |set, (_, it)| set | 1 << it.namespace)
    }
}

/// Begins commands of a lane in the engine.
struct Commands<'a> {
    core: &'a mut Core,
    moves: &'a mut Moves,
    namespaces: &'a [Namespace],
    now_ns: u64,
}

impl Commands<'_> {
    /// The engine's number of a namespace.
    fn number(&self, namespace: usize) -> u32 {
        match &self.namespaces[namespace].store {
            Store::Engine(it) => it.number(),
            other => unreachable!("{}: it is not the engine's", other.name()),
        }
    }
}

impl Executor for Commands<'_> {
    fn begin(&mut self, job: Job, work: Work, memories: &Memories) {
        let mut parts = self.moves.spare.pop().unwrap_or_default();
        if matches!(work, Work::Read { .. } | Work::Write { .. }) {
            let held = |part: &Part| (Arc::clone(memories.region(part.region)), *part);
            parts.extend(memories.parts().iter().map(held));
        }
        let payload = parts.iter().map(|(_, part)| u64::from(part.len)).sum();
        let (op, offset, length) = match work {
            Work::Read { offset } => (QueueOp::Read, offset, payload),
            Work::Write { offset, fua } => (QueueOp::Write { fua }, offset, payload),
            Work::Zeroes { offset, len, fua } => (QueueOp::WriteZeroes { fua }, offset, len),
            Work::Deallocate { ranges } => (QueueOp::Deallocate { ranges }, 0, 0),
            Work::Flush { rest } => {
                let rest = rest.into_iter().map(|at| self.number(at)).collect();
                (QueueOp::Flush { rest }, 0, 0)
            }
        };
        let moved = Moved {
            lane: job.lane,
            cid: job.cid,
            namespace: job.namespace,
            bytes: match op {
                QueueOp::Read => [payload, 0],
                QueueOp::Write { .. } => [0, payload],
                _ => [0; 2],
            },
            parts,
        };
        let command = QueueCommand {
            queue: job.lane as u32,
            cid: job.cid,
            tag: self.moves.all.insert(moved).index(),
            namespace: self.number(job.namespace),
            op,
            offset,
            length,
        };
        self.core.begin_queue_command(command, self.now_ns);
    }

    fn cancel(&mut self, lane: usize, cid: Option<u16>) -> u32 {
        self.core.cancel_queue_commands(lane as u32, cid)
    }

    #[inline]
    fn take_copied(&mut self, lane: usize) -> u64 {
        std::mem::take(&mut self.moves.copied[lane])
    }
}
