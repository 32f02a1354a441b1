//! Operations that take time: requests to files, through the thread's ring or the file's workers,
//! and to volumes of an engine.
//!
//! # Contract
//! One operation at a time for each request: part after part, short ones continued. The kernel
//! reads and writes registered memory in place where its alignment fits the file, else through a
//! copy of our own; each operation holds the memory that it uses, so that it is unmapped only
//! afterwards (T10).
//!
//! A file is flushed for all that ask at once, by one operation at a time: so an error that the
//! kernel tells once, to whoever asks first, comes to one place. It is counted there, and each
//! queue that wrote to the file is told of it with its next flush. Threads have descriptions of
//! their own, so the kernel tells each.
//!
//! Changes wait here until the kernel is about to be entered. Then, with nothing in between, it is
//! looked whether their client has let go of its queue: a process that stood still executes nothing
//! that was written anew elsewhere meanwhile (T9, T49). The ring does writes without the kernel's
//! workers, or refuses them. Requests that it refuses, and everything on file systems that block
//! their submitter (T52), is done by the file's own threads, which look once more before each call.
//!
//! # Limits
//! [`FILE_OPERATIONS_MAX`] in flight, those of workers besides; further requests wait here, as many
//! as queues have entries, and queues are served in turn. Changes that wait for others that they
//! overlap ([`crate::order`]) count only once they may begin: so none of them keeps from going on
//! what it waits for.
use crate::lane::Executor;
use crate::limits::{BOUNCES_MAX, FILE_OPERATIONS_MAX, ZEROES_BYTES};
use crate::order::{Begun, Orders, ThreadOrder};
use crate::transfer::{Door, Memories, Part};
use crate::volume::{Post, Volume};
use crate::{Namespace, Store};
use block::{Covered, SlotMap};
use blocking::{Inbox, Slow};
use flushes::{FLUSHES, Told};
use nvme::wire::Status;
use queue::limits::TRANSFER_MAX;
use request::Request;
use runtime::Device;
use runtime::workers::FileHandle;
use rustix::fs::{Mode, OFlags};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use sys::{Errno, Error, Fd, Ring, Shared, memory_file};

mod blocking;
mod due;
mod flushes;
mod request;

/// The lane of requests that are no queue's.
pub const NO_LANE: usize = usize::MAX;

/// Lane and number of the request.
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
    Zeroes {
        offset: u64,
        len: u64,
        deallocate: bool,
        fua: bool,
    },
    /// Ranges are not needed any more.
    Deallocate { ranges: Vec<(u64, u64)> },
    /// Makes writes durable; in the files of `rest` too.
    Flush { rest: Vec<usize> },
}

impl Work {
    fn is_change(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Flush { .. })
    }
}

/// Where it lies.
enum Way {
    /// `None`: workers make all its system calls.
    File(Option<Fd>),
    /// Operations go over all parts of a request, whatever their memory; `direct` where it knows
    /// FUA.
    Volume(Volume),
}

/// A file or volume as one thread has it.
struct Backing {
    way: Way,
    read_only: bool,
    /// Unit of memory addresses, lengths and offsets, bytes.
    align: u32,
    /// Of a file: for its workers.
    slow: Option<Slow>,
    /// It is written past the page cache: what a write says is true.
    direct: bool,
    /// Flushes that failed.
    failures: u64,
    /// A queue that wrote has gone without being told of one that failed: the next that flushes is.
    /// Of a volume its threads share that.
    untold: bool,
    /// Of a volume: queues that had gone when the flush began that is under way.
    covers_gone: u64,
    /// Lanes that wait for the flush that is under way, and those that wait for the next one.
    flushing: Vec<u32>,
    next_flush: Vec<u32>,
}

impl Backing {
    fn is_volume(&self) -> bool {
        matches!(self.way, Way::Volume(_))
    }

    /// Flushes that failed, and times that what was acknowledged may have been lost (T13).
    fn failures(&self) -> u64 {
        match &self.way {
            Way::File(_) => self.failures,
            // The one connection hears for every thread.
            Way::Volume(volume) => volume.losses(),
        }
    }
}

/// State of a lane.
#[derive(Default)]
struct Known {
    /// Requests that wait.
    waiting: VecDeque<u32>,
    /// By namespace; `None`: it never wrote.
    told: Vec<Option<Told>>,
    /// Bytes that were copied for its requests and nobody has counted.
    copied: u64,
}

/// The requests of one thread.
pub struct Files {
    ring: Ring,
    order: ThreadOrder,
    backings: Vec<Option<Backing>>,
    /// Where volumes tell the ends of requests.
    post: Post,
    requests: SlotMap<Request>,
    /// By lane; behind them [`NO_LANE`]'s requests.
    lanes: Vec<Known>,
    own: VecDeque<u32>,
    /// Lane whose turn it is.
    turn: usize,
    /// Requests that wait.
    waiting: usize,
    /// Requests to volumes that have ended.
    elsewhere: VecDeque<(u64, Result<u32, Errno>)>,
    /// Ended here: with a flush that others waited for as well, or before the kernel was asked.
    flushed: Vec<(u32, Status)>,
    /// Changes that the kernel is to be asked for.
    due: VecDeque<u32>,
    /// Bytes that were copied for requests so far.
    copied: u64,
    /// Taken back while they waited.
    cancelled: Vec<u32>,
    /// Lists of parts that no request has.
    spare: Vec<Vec<(Arc<Shared>, Part)>>,
    in_flight: usize,
    inbox: Arc<Inbox>,
    zeroes: Arc<Shared>,
    bounces: Vec<Arc<Shared>>,
    /// Of one of them.
    bounce_bytes: usize,
}

/// A request has ended.
pub struct Ended {
    pub job: Job,
    pub status: Status,
    /// A flush is part of it.
    pub flush: bool,
}

impl Files {
    /// With descriptors of its own.
    ///
    /// # Errors
    /// The system has no descriptor or memory.
    pub fn new(
        ring: Ring,
        namespaces: &[Namespace],
        orders: &Orders,
        post: &Post,
    ) -> Result<Self, String> {
        let backing = |namespace: &Namespace| match &namespace.device {
            Store::Volume(volume) => Ok(Some(Backing {
                way: Way::Volume(volume.clone()),
                read_only: namespace.read_only,
                align: 1,
                slow: None,
                direct: volume.has_fua(),
                failures: 0,
                untold: false,
                covers_gone: 0,
                flushing: Vec::new(),
                next_flush: Vec::new(),
            })),
            Store::Device(Device::File(file)) => {
                let fd = match reopened(file) {
                    Some(fd) => fd,
                    None => file.try_clone().map_err(|error| error.to_string())?,
                };
                let align = if file.direct() {
                    1 << file.block_shift()
                } else {
                    1
                };
                let blocks = file.blocks();
                let own = Some(&fd).filter(|_| !blocks).map(|fd| fd.try_clone());
                let own = own.transpose().map_err(|error| error.to_string())?;
                Ok(Some(Backing {
                    way: Way::File(own.map(Fd::new)),
                    slow: Some(Slow {
                        device: Arc::clone(file),
                        handle: Arc::new(FileHandle::new(fd, blocks)),
                        writes: false,
                    }),
                    read_only: file.read_only(),
                    align,
                    direct: file.direct(),
                    failures: 0,
                    untold: false,
                    covers_gone: 0,
                    flushing: Vec::new(),
                    next_flush: Vec::new(),
                }))
            }
            _ => Ok(None),
        };
        let backings: Result<_, String> = namespaces.iter().map(backing).collect();
        let zeroes = own_memory(ZEROES_BYTES as usize).map_err(|error| error.to_string())?;
        Ok(Self {
            ring,
            order: orders.join(post),
            backings: backings?,
            post: post.clone(),
            requests: SlotMap::default(),
            lanes: Vec::new(),
            own: VecDeque::new(),
            turn: 0,
            waiting: 0,
            elsewhere: VecDeque::new(),
            flushed: Vec::new(),
            due: VecDeque::new(),
            copied: 0,
            cancelled: Vec::new(),
            spare: Vec::new(),
            in_flight: 0,
            inbox: Arc::new(Inbox::new(post.clone())),
            zeroes,
            bounces: Vec::new(),
            bounce_bytes: TRANSFER_MAX as usize,
        })
    }

    /// Requests to a namespace go to another file, which may do what files do not.
    #[cfg(test)]
    pub fn replace(&mut self, namespace: usize, file: std::os::fd::OwnedFd) {
        let backing = self.backings[namespace].as_mut().unwrap();
        // A pipe, which has no offsets: the ring does all.
        backing.slow = None;
        backing.way = Way::File(Some(Fd::new(file)));
    }

    /// As if so much had been copied for a lane.
    #[cfg(test)]
    pub fn owe(&mut self, lane: usize, bytes: u64) {
        self.known(lane).copied += bytes;
    }

    /// The ring, to submit and to sleep.
    pub fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }

    /// Starts flushing every file that may be written, for nobody ([`NO_LANE`]); how many these
    /// are.
    pub fn flush_files(&mut self) -> u32 {
        let writable = |it: &Option<Backing>| it.as_ref().is_some_and(|it| !it.read_only);
        let all = 0..self.backings.len();
        let files: Vec<_> = all.filter(|&at| writable(&self.backings[at])).collect();
        for &namespace in &files {
            let job = Job {
                lane: NO_LANE,
                cid: 0,
                namespace,
            };
            self.add(job, Work::Flush { rest: Vec::new() }, Vec::new(), None);
        }
        files.len() as u32
    }

    fn add(&mut self, job: Job, work: Work, parts: Vec<(Arc<Shared>, Part)>, door: Option<Door>) {
        let request = Request {
            job,
            work,
            parts,
            door,
            order: None,
            parked: false,
            bounce: None,
            done: 0,
            index: 0,
            before: 0,
            plain: false,
            by_workers: self.blocks(job.namespace),
            flush: false,
            covers: Covered::default(),
            whole: self.backings[job.namespace]
                .as_ref()
                .is_some_and(Backing::is_volume),
        };
        self.note(&request);
        let slot = self.requests.insert(request).index();
        self.place(slot);
    }

    /// A request, or the next range of one, begins when no change that it overlaps is in the way.
    fn place(&mut self, slot: u32) {
        let request = &mut self.requests[slot];
        if let Some(range) = request.range() {
            let namespace = request.job.namespace;
            let (ticket, begins) = self.order.admit(namespace, slot, range);
            (request.order, request.parked) = (Some(ticket), !begins);
            if !begins {
                return;
            }
        }
        self.enter(slot);
    }

    /// A request may begin, as soon as there is room for its operation.
    fn enter(&mut self, slot: u32) {
        let by_workers = self.is_left_to_workers(slot);
        if by_workers || self.in_flight < FILE_OPERATIONS_MAX {
            self.in_flight += usize::from(!by_workers);
            self.start(slot);
            return;
        }
        self.waiting += 1;
        match self.requests[slot].job.lane {
            NO_LANE => self.own.push_back(slot),
            lane => self.known(lane).waiting.push_back(slot),
        }
    }

    fn known(&mut self, lane: usize) -> &mut Known {
        if lane >= self.lanes.len() {
            self.lanes.resize_with(lane + 1, Known::default);
        }
        &mut self.lanes[lane]
    }

    /// The request that waits longest of the lane whose turn it is.
    fn next_waiting(&mut self) -> Option<u32> {
        if self.waiting == 0 {
            return None;
        }
        self.waiting -= 1;
        for _ in 0..self.lanes.len() {
            self.turn = (self.turn + 1) % self.lanes.len();
            if let Some(slot) = self.lanes[self.turn].waiting.pop_front() {
                return Some(slot);
            }
        }
        self.own.pop_front()
    }

    /// A change that waited for others may begin, as another thread says.
    pub fn begun(&mut self, begun: Begun) {
        self.order.tell(begun);
    }

    /// Begins changes that waited for others. One that was taken back meanwhile has another ticket,
    /// or none.
    pub(super) fn begin_placed(&mut self) {
        while let Some(begun) = self.order.next() {
            let key = self.requests.find(begun.slot);
            if let Some(request) = key.and_then(|key| self.requests.get_mut(key))
                && request.parked
                && request.job.namespace == begun.namespace
                && request.order == Some(begun.ticket)
            {
                request.parked = false;
                self.enter(begun.slot);
            }
        }
    }

    /// A change has ended, or is not executed.
    fn leave_order(&mut self, slot: u32) {
        let request = &mut self.requests[slot];
        let namespace = request.job.namespace;
        if let Some(ticket) = request.order.take() {
            match std::mem::take(&mut request.parked) {
                true => self.order.withdraw(namespace, ticket),
                false => self.order.end(namespace, ticket),
            }
        }
    }

    /// The operation of a request has ended: another one has its room.
    fn make_room(&mut self, slot: u32) {
        let by_workers = self.requests[slot].by_workers;
        self.in_flight -= usize::from(!by_workers);
        self.start_waiting();
    }

    /// Starts the next request that waits, if there is room for it.
    fn start_waiting(&mut self) {
        while self.in_flight < FILE_OPERATIONS_MAX
            && let Some(next) = self.next_waiting()
        {
            // Its file may have turned out meanwhile to be one that workers write.
            let by_workers = self.is_left_to_workers(next);
            self.in_flight += usize::from(!by_workers);
            self.start(next);
            if !by_workers {
                return;
            }
        }
    }

    /// Which namespaces a lane has requests to: bit n is namespace n + 1.
    pub fn namespaces_of(&self, lane: usize) -> u64 {
        let all = self.requests.iter().map(|(_, request)| request);
        let its = all.filter(|it| it.job.lane == lane);
        its.fold(0, |set, it| set | 1 << it.job.namespace)
    }

    /// The next request that has ended. Never sleeps. A completion that is not
    /// of files sets `other`.
    pub fn next_ended(&mut self, other: &mut bool) -> Option<Ended> {
        if let Some(slot) = self.cancelled.pop() {
            return Some(self.end(slot, Status::ABORT_REQUESTED));
        }
        loop {
            self.begin_placed();
            if let Some((slot, status)) = self.flushed.pop() {
                match self.finish(slot, status) {
                    None => continue,
                    ended => return ended,
                }
            }
            self.take_finished();
            let (tag, result) = match self.elsewhere.pop_front() {
                Some(ended) => ended,
                None => {
                    let completion = self.ring.next_completion()?;
                    (completion.tag, completion.result)
                }
            };
            let Ok(slot) = u32::try_from(tag) else {
                match tag.checked_sub(FLUSHES) {
                    Some(at) if at < self.backings.len() as u64 => {
                        self.end_flush(at as usize, result);
                    }
                    _ => *other = true,
                }
                continue;
            };
            if let Some(ended) = self.progress(slot, result) {
                return Some(ended);
            }
        }
    }

    /// The first operation of a request.
    fn start(&mut self, slot: u32) {
        let request = &mut self.requests[slot];
        let backing = self.backings[request.job.namespace].as_ref();
        let align = backing.map_or(1, |backing| backing.align);
        let fits = |(_, part): &(_, Part)| {
            (part.at as u64 | u64::from(part.len)).is_multiple_of(align.into())
        };
        let (lane, mut copied) = (request.job.lane, 0);
        if !request.parts.iter().all(fits) {
            let bounce = self.bounces.pop().map(Ok);
            match bounce.unwrap_or_else(|| own_memory(self.bounce_bytes)) {
                Ok(bounce) => copied = request.use_bounce(bounce),
                Err(error) => {
                    // Not the client's fault, as the alignment would be that the kernel names.
                    tracing::warn!("no memory to copy through: {error}");
                    self.flushed.push((slot, Status::INTERNAL_ERROR));
                    return;
                }
            }
        }
        if copied > 0 && request.has_lost_memory() {
            // The copy may have zeroes instead of the client's bytes.
            self.flushed.push((slot, Status::DATA_TRANSFER_ERROR));
            return;
        }
        self.count_copied(lane, copied);
        self.issue(slot);
    }

    /// The next operation of a request.
    fn issue(&mut self, slot: u32) {
        let request = &self.requests[slot];
        if request.flush || matches!(request.work, Work::Flush { .. }) {
            return self.flush(request.job.namespace, slot);
        }
        match &request.door {
            Some(_) => self.due.push_back(slot),
            None => self.order(slot),
        }
    }

    /// An operation ended; the request, if it was the last.
    fn progress(&mut self, slot: u32, result: Result<u32, Errno>) -> Option<Ended> {
        if self.is_refused(slot, result) {
            self.issue(slot);
            return None;
        }
        let request = &mut self.requests[slot];
        let index = request.index;
        match request.advance(result) {
            None if request.index != index && matches!(request.work, Work::Deallocate { .. }) => {
                // Its next range has its own place.
                self.leave_order(slot);
                self.make_room(slot);
                self.place(slot);
                None
            }
            None => {
                self.issue(slot);
                None
            }
            Some(status) => self.finish(slot, status),
        }
    }

    /// A request is done but for a flush that belongs to it, or with that.
    fn finish(&mut self, slot: u32, status: Status) -> Option<Ended> {
        self.leave_order(slot);
        let request = &mut self.requests[slot];
        let direct = self.backings[request.job.namespace].as_ref();
        let direct = direct.is_some_and(|backing| backing.direct);
        let again = match &mut request.work {
            _ if !status.is_success() => false,
            Work::Write { fua, .. } => *fua && !direct && !request.flush,
            Work::Zeroes { fua, .. } => *fua && !request.flush,
            Work::Flush { rest } => match rest.pop() {
                Some(next) => {
                    request.job.namespace = next;
                    true
                }
                None => false,
            },
            _ => false,
        };
        if again {
            request.flush = true;
            self.issue(slot);
            return None;
        }
        self.make_room(slot);
        Some(self.end(slot, status))
    }

    /// A request to a volume has ended.
    pub fn ended(&mut self, tag: u64, result: Result<u32, Errno>) {
        self.elsewhere.push_back((tag, result));
    }

    fn end(&mut self, slot: u32, status: Status) -> Ended {
        let key = self.requests.key(slot);
        let mut request = self.requests.remove(key);
        self.wrote(&request, status);
        let mut status = status;
        let is_copied = request.whole || request.bounce.is_some();
        if let Some(bounce) = request.bounce.take() {
            if status.is_success() && matches!(request.work, Work::Read { .. }) {
                request.copy_back(&bounce);
                self.count_copied(request.job.lane, request.bytes());
            }
            if self.bounces.len() < BOUNCES_MAX {
                self.bounces.push(bounce);
            }
        }
        if is_copied && status.is_success() && request.has_lost_memory() {
            status = Status::DATA_TRANSFER_ERROR;
        }
        request.parts.clear();
        self.spare.push(request.parts);
        Ended {
            job: request.job,
            status,
            flush: request.flush || matches!(request.work, Work::Flush { .. }),
        }
    }
}

impl Executor for Files {
    fn begin(&mut self, job: Job, work: Work, memories: &Memories) {
        let mut parts = self.spare.pop().unwrap_or_default();
        if matches!(work, Work::Read { .. } | Work::Write { .. }) {
            let held = |part: &Part| (Arc::clone(memories.region(part.region)), *part);
            parts.extend(memories.parts().iter().map(held));
        }
        let door = work.is_change().then(|| memories.door().clone());
        self.add(job, work, parts, door);
    }

    fn cancel(&mut self, lane: usize, cid: Option<u16>) -> u32 {
        let before = self.cancelled.len();
        let (requests, cancelled) = (&self.requests, &mut self.cancelled);
        let named = |it: &Request| cid.is_none_or(|cid| it.job.cid == cid);
        if let Some(known) = self.lanes.get_mut(lane) {
            known.waiting.retain(|&slot| {
                let named = named(&requests[slot]);
                if named {
                    cancelled.push(slot);
                }
                !named
            });
        }
        self.waiting -= cancelled.len() - before;
        let parked = |it: &Request| it.parked && it.job.lane == lane && named(it);
        let all = requests.iter().filter(|(_, it)| parked(it));
        cancelled.extend(all.map(|(key, _)| key.index()));
        // Requests that they kept waiting may begin before their ends are told.
        for at in before..self.cancelled.len() {
            self.leave_order(self.cancelled[at]);
        }
        (self.cancelled.len() - before) as u32
    }

    #[inline]
    fn take_copied(&mut self, lane: usize) -> u64 {
        let known = self.lanes.get_mut(lane);
        known.map_or(0, |known| std::mem::take(&mut known.copied))
    }
}

/// A description of a file for one thread: the kernel tells each of them once of a write that
/// failed behind its acknowledgement. `None`: the system makes none; then one of them is told.
fn reopened(file: &runtime::FileDevice) -> Option<OwnedFd> {
    let held = file.try_clone().ok()?;
    let flags = rustix::fs::fcntl_getfl(&held).ok()?;
    let kept = OFlags::RWMODE | OFlags::DIRECT;
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    rustix::fs::open(path, (flags & kept) | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Memory that we share with the kernel only.
fn own_memory(bytes: usize) -> Result<Arc<Shared>, Error> {
    let file = memory_file("braid-broker", bytes as u64)?;
    let memory = Shared::map(&file, bytes)?;
    memory.populate(0, bytes)?;
    Ok(Arc::new(memory))
}

#[cfg(test)]
mod tests;
