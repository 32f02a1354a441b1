//! A namespace behind a hardware queue (`docs/queues.md`) as a device.
//!
//! * [`QueueDevice`]: where it is, and what it showed when it was opened
//! * `Line`: this reactor's queue, of kind `user_irq`; `repair`: what happens without one
//!
//! # Contract
//! Every reactor has a queue of its own. Requests go through memory that the queue's server made:
//! one copy each way. What a turn begins is submitted at once at its end, and while the server is
//! awake without a system call. No lock and no allocation per request.
//!
//! Where the server ends, or gives up the queue, requests end as those of a lost path do; a thread
//! tries to open another queue, whose namespace must be the same (T32). Changes that the server
//! had are not ended before [`QUEUE_QUIESCE_NS`] have passed: it can't be known whether its
//! requests to files are executed yet, and nobody may repeat them elsewhere meanwhile (T9). A flush
//! waits for the next queue: what was acknowledged is durable only then (T13).
//!
//! # Limits
//! [`QUEUE_SLOTS`] requests with the server, further ones wait here. One larger than
//! [`QUEUE_PIECE_BYTES`] goes piece by piece.
use crate::RuntimeError;
use crate::device::Done;
use crate::limits::{QUEUE_PIECE_BYTES, QUEUE_SLOTS};
use crate::reactor::Tag;
use engine::machine::{DeviceError, DeviceOp, DeviceRequest};
use queue::{Identity, Kind, Namespace, Options, Queue, Range, Region, Status, SubmitError};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use sys::{Errno, Extent, Fd, OpId, Ring};

mod repair;

use repair::Repair;

/// The path is gone: others may serve (ENOLINK).
const LOST: DeviceError = DeviceError::Os(67);

/// A namespace of a queue server.
#[derive(Debug)]
pub struct QueueDevice {
    socket: PathBuf,
    nsid: u32,
    namespace: Namespace,
    identity: Option<Identity>,
}

impl QueueDevice {
    /// Asks what a namespace is like.
    ///
    /// # Errors
    /// [`RuntimeError::Queue`]: nobody answers there, or it has no such namespace for us.
    pub fn open(socket: PathBuf, nsid: u32) -> Result<Self, RuntimeError> {
        match queue::show(&socket, nsid) {
            Ok((namespace, identity)) => Ok(Self {
                socket,
                nsid,
                namespace,
                identity,
            }),
            Err(source) => Err(RuntimeError::Queue { socket, source }),
        }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        let blocks = self.namespace.blocks;
        blocks.saturating_mul(1 << self.namespace.block_shift)
    }

    /// log2 of the block size.
    pub fn block_shift(&self) -> u8 {
        self.namespace.block_shift
    }

    /// What it shows of itself, if anything.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// NSID.
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    /// The server's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// A queue to it.
    ///
    /// # Errors
    /// [`RuntimeError::Queue`]: as [`Self::open`]; all queues are taken.
    pub(crate) fn queue(&self) -> Result<Queue, RuntimeError> {
        let options = Options {
            kind: Kind::UserIrq,
            entries: QUEUE_SLOTS + 1,
            data_bytes: u64::from(QUEUE_SLOTS) * u64::from(QUEUE_PIECE_BYTES),
            ..Options::default()
        };
        Queue::open(&self.socket, &options).map_err(|source| RuntimeError::Queue {
            socket: self.socket.clone(),
            source,
        })
    }

    /// Whether the same namespace is still there (T32).
    fn is_same(&self) -> bool {
        let shown = queue::show(&self.socket, self.nsid);
        shown.is_ok_and(|(namespace, identity)| {
            namespace == self.namespace && identity == self.identity
        })
    }
}

/// A request, waiting or with the server.
#[derive(Clone, Copy)]
struct Request {
    request: DeviceRequest,
    extent: Extent,
    /// Bytes done.
    done: u64,
    /// Bytes of the command at hand.
    piece: u64,
}

/// What a reactor is woken by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// Completions have come.
    Interrupt,
    /// The server is gone.
    End,
    /// The thread that repairs has got somewhere.
    Repair,
}

impl Watched {
    const ALL: [Self; 3] = [Self::Interrupt, Self::End, Self::Repair];

    /// From the two low bits of a tag.
    pub(crate) fn from_bits(bits: u32) -> Option<Self> {
        Self::ALL.get(bits as usize & 3).copied()
    }
}

/// A queue, and what tells of it.
struct Line {
    queue: Queue,
    data: Region,
    interrupt: Fd,
    end: Fd,
}

impl Line {
    fn new(queue: Queue) -> Option<Self> {
        let interrupt = rustix::io::fcntl_dupfd_cloexec(queue.interrupt()?, 0).ok()?;
        Some(Self {
            data: queue.data()?.clone(),
            interrupt: Fd::new(interrupt),
            end: Fd::new(queue.end_event().ok()?),
            queue,
        })
    }
}

/// A reactor's end of it.
pub(crate) struct QueueBackend {
    device: Arc<QueueDevice>,
    /// Its number among those of this reactor; no other one ever has it.
    serial: u32,
    line: Option<Line>,
    /// With the server, by token.
    requests: Vec<Option<Request>>,
    free: Vec<u16>,
    waiting: VecDeque<Request>,
    /// Changes that a lost server had.
    doubtful: Vec<u32>,
    repair: Arc<Repair>,
    repaired: Fd,
    /// What the ring watches.
    watches: [Option<OpId>; 3],
    /// Room to compare in.
    scratch: Box<[u8]>,
}

impl QueueBackend {
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new(device: Arc<QueueDevice>, queue: Queue, serial: u32) -> Result<Self, Errno> {
        let repair = Arc::new(Repair::new()?);
        Ok(Self {
            repaired: Fd::new(repair.event.try_clone()?),
            repair,
            device,
            serial,
            line: Some(Line::new(queue).ok_or(Errno::MFILE)?),
            requests: vec![None; usize::from(QUEUE_SLOTS)],
            free: (0..QUEUE_SLOTS).collect(),
            waiting: VecDeque::with_capacity(usize::from(QUEUE_SLOTS)),
            doubtful: Vec::with_capacity(usize::from(QUEUE_SLOTS)),
            watches: [None; 3],
            scratch: vec![0; QUEUE_PIECE_BYTES as usize].into(),
        })
    }

    pub(crate) fn serial(&self) -> u32 {
        self.serial
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        let with_server = self.free.len() < usize::from(QUEUE_SLOTS);
        !with_server && self.waiting.is_empty() && self.doubtful.is_empty()
    }

    pub(crate) fn begin(
        &mut self,
        ring: &mut Ring,
        request: &DeviceRequest,
        extent: Extent,
        results: &mut Vec<Done>,
    ) {
        if self.line.is_none() && request.op != DeviceOp::Flush {
            return results.push((request.id, Err(LOST)));
        }
        let begun = Request {
            request: *request,
            extent,
            done: 0,
            piece: 0,
        };
        self.waiting.push_back(begun);
        self.refill(ring, results);
    }

    /// Starts what waits, as far as there is room.
    fn refill(&mut self, ring: &mut Ring, results: &mut Vec<Done>) {
        while self.line.is_some()
            && !self.waiting.is_empty()
            && let Some(slot) = self.free.pop()
        {
            self.requests[usize::from(slot)] = self.waiting.pop_front();
            self.issue(ring, slot, results);
        }
    }

    /// The next command of a request.
    fn issue(&mut self, ring: &mut Ring, slot: u16, results: &mut Vec<Done>) {
        let (Some(line), Some(it)) = (&mut self.line, &mut self.requests[usize::from(slot)]) else {
            return;
        };
        let (nsid, shift) = (self.device.nsid, self.device.namespace.block_shift);
        let left = it.request.length - it.done;
        let slba = (it.request.offset + it.done) >> shift;
        let at = usize::from(slot) * QUEUE_PIECE_BYTES as usize;
        let (queue, token) = (&mut line.queue, slot.into());
        let most = match it.request.op {
            DeviceOp::WriteZeroes { .. } => 1_u64 << (16 + shift),
            DeviceOp::Deallocate => u64::from(u32::MAX) << shift,
            _ => QUEUE_PIECE_BYTES.into(),
        };
        it.piece = left.min(most);
        let blocks = (it.piece >> shift) as u32;
        let data = || line.data.piece(at, it.piece as u32);
        let pushed = match it.request.op {
            DeviceOp::Read | DeviceOp::Compare => queue.read(nsid, slba, blocks, &[data()], token),
            DeviceOp::Write { fua } => {
                let bytes = ring.arena().bytes(it.extent.skip(it.done as u32));
                line.data.write(at, &bytes[..it.piece as usize]);
                queue.write((nsid, fua), slba, blocks, &[data()], token)
            }
            DeviceOp::Flush => queue.flush(Some(nsid), token),
            DeviceOp::WriteZeroes { deallocate } => {
                queue.write_zeroes((nsid, deallocate), slba, blocks, token)
            }
            DeviceOp::Deallocate => {
                let range = Range {
                    attributes: 0,
                    blocks,
                    slba,
                };
                queue.deallocate(nsid, &[range], token)
            }
        };
        match pushed {
            Ok(_) => {}
            // As many slots as commands: a queue that lies about its depth is of no use.
            Err(SubmitError::Full) => self.end(ring, slot, Err(LOST), results),
            Err(_) => {
                let invalid = DeviceError::Os(Errno::INVAL.raw_os_error());
                self.end(ring, slot, Err(invalid), results);
            }
        }
    }

    /// Submits what was begun, watches what is not watched, and takes what has ended.
    pub(crate) fn turn(&mut self, ring: &mut Ring, results: &mut Vec<Done>) {
        let Some(line) = &mut self.line else {
            return self.watch(ring);
        };
        if line.queue.submit().is_err() {
            return self.lose(ring, results);
        }
        self.watch(ring);
        self.reap(ring, results);
    }

    fn watch(&mut self, ring: &mut Ring) {
        if self.watches.iter().all(Option::is_some) {
            return;
        }
        let line = self.line.as_ref();
        for (n, what) in (0..).zip(Watched::ALL) {
            let fd = match what {
                Watched::Interrupt => line.map(|line| &line.interrupt),
                Watched::End => line.map(|line| &line.end),
                Watched::Repair => Some(&self.repaired),
            };
            let watch = &mut self.watches[n as usize];
            if let (Some(fd), None) = (fd, &watch) {
                let tag = Tag::Queue(self.serial << 2 | n);
                *watch = Some(ring.poll_readable(fd, tag.bits()));
            }
        }
    }

    /// Takes what has ended.
    pub(crate) fn reap(&mut self, ring: &mut Ring, results: &mut Vec<Done>) {
        while let Some(line) = &mut self.line {
            match line.queue.poll() {
                Ok(None) => return,
                Ok(Some(done)) => self.ended(ring, &done, results),
                Err(error) => {
                    tracing::warn!("{}: {error}", self.device.socket.display());
                    return self.lose(ring, results);
                }
            }
        }
    }

    /// Whether there is something to take: one load.
    pub(crate) fn is_ready(&self) -> bool {
        self.line.as_ref().is_some_and(|line| line.queue.is_ready())
    }

    /// Asks for an interrupt, if anything is under way; `false`: there is something to take now.
    pub(crate) fn arm(&mut self) -> bool {
        match &mut self.line {
            Some(line) if line.queue.in_flight() > 0 => line.queue.arm(),
            _ => true,
        }
    }

    /// What was watched has become readable.
    pub(crate) fn woken(&mut self, ring: &mut Ring, what: Watched, results: &mut Vec<Done>) {
        self.watches[what as usize] = None;
        match what {
            Watched::Interrupt => {
                if let Some(interrupt) = self.line.as_ref().map(|line| &line.interrupt) {
                    let _ = rustix::io::read(interrupt, &mut [0; 8]);
                }
            }
            Watched::End => {
                // What had ended before it did.
                self.reap(ring, results);
                // It says nothing unasked: this is its end.
                self.lose(ring, results);
            }
            Watched::Repair => self.repaired(ring, results),
        }
        self.reap(ring, results);
    }

    fn ended(&mut self, ring: &mut Ring, done: &queue::Done, results: &mut Vec<Done>) {
        let slot = done.token as u16;
        let Some(Some(it)) = self.requests.get_mut(usize::from(slot)) else {
            return;
        };
        if !done.status.is_success() {
            return self.end(ring, slot, Err(device_error(done.status)), results);
        }
        let at = usize::from(slot) * QUEUE_PIECE_BYTES as usize;
        let piece = it.piece as usize;
        let mine = it.extent.skip(it.done as u32);
        if let (Some(line), DeviceOp::Read) = (&self.line, it.request.op) {
            line.data.read(at, &mut ring.bytes_mut(mine)[..piece]);
        }
        if let (Some(line), DeviceOp::Compare) = (&self.line, it.request.op) {
            line.data.read(at, &mut self.scratch[..piece]);
            if ring.arena().bytes(mine)[..piece] != self.scratch[..piece] {
                return self.end(ring, slot, Err(DeviceError::Mismatch), results);
            }
        }
        it.done += it.piece;
        if it.done < it.request.length {
            return self.issue(ring, slot, results);
        }
        self.end(ring, slot, Ok(()), results);
    }

    fn end(
        &mut self,
        ring: &mut Ring,
        slot: u16,
        result: Result<(), DeviceError>,
        results: &mut Vec<Done>,
    ) {
        if let Some(it) = self.requests[usize::from(slot)].take() {
            results.push((it.request.id, result));
        }
        self.free.push(slot);
        self.refill(ring, results);
    }

    /// The server is gone, or can't be believed.
    #[cold]
    fn lose(&mut self, ring: &mut Ring, results: &mut Vec<Done>) {
        if self.line.take().is_none() {
            return;
        }
        tracing::warn!(
            "{}: its server has ended or has given up this queue; it is tried again",
            self.device.socket.display()
        );
        self.waiting.retain(|it| {
            let is_flush = it.request.op == DeviceOp::Flush;
            if !is_flush {
                results.push((it.request.id, Err(LOST)));
            }
            is_flush
        });
        for (slot, it) in (0..).zip(&mut self.requests) {
            let Some(it) = it.take() else { continue };
            self.free.push(slot);
            match it.request.op {
                DeviceOp::Flush => self.waiting.push_back(it),
                DeviceOp::Read | DeviceOp::Compare => {
                    results.push((it.request.id, Err(LOST)));
                }
                _ => self.doubtful.push(it.request.id),
            }
        }
        self.unwatch(ring, 2);
        self.repair.begin(&self.device);
    }

    /// Nothing more will be heard of the first `count` of what is watched.
    pub(crate) fn unwatch(&mut self, ring: &mut Ring, count: usize) {
        for watch in &mut self.watches[..count] {
            if let Some(watch) = watch.take() {
                ring.cancel(watch);
            }
        }
    }

    /// There is a queue again, or what the lost server had is not executed any more.
    #[cold]
    fn repaired(&mut self, ring: &mut Ring, results: &mut Vec<Done>) {
        self.repair.event.lower();
        if self.repair.is_quiet() {
            results.extend(self.doubtful.drain(..).map(|id| (id, Err(LOST))));
        }
        if let Some(queue) = self.repair.take() {
            self.line = Line::new(queue);
            match self.line {
                Some(_) => {
                    tracing::info!("{}: back again", self.device.socket.display());
                    self.refill(ring, results);
                }
                None => self.repair.begin(&self.device),
            }
        }
    }
}

/// What a status means for a device.
fn device_error(status: Status) -> DeviceError {
    let errno = |errno: Errno| DeviceError::Os(errno.raw_os_error());
    match status {
        _ if status.is(Status::CAPACITY_EXCEEDED) => DeviceError::Full,
        _ if status.is(Status::WRITE_PROTECTED) => DeviceError::ReadOnly,
        _ if status.is(Status::INVALID_OPCODE) => DeviceError::Unsupported,
        _ if status.is(Status::LBA_RANGE) || status.is(Status::ACCESS_DENIED) => {
            errno(Errno::INVAL)
        }
        _ if status.is(Status::INVALID_NAMESPACE) => LOST,
        // Taken back: nothing was done.
        _ if status.is(Status::ABORT_REQUESTED) => LOST,
        _ => errno(Errno::IO),
    }
}
