//! A namespace behind a hardware queue (`docs/queues.md`) as a device.
//!
//! * [`QueueDevice`]: where it is, and what it showed when it was opened
//! * `Line`: this reactor's queue, of kind `user_irq`; `repair`: what happens without one;
//!   `standing`: what is said of it meanwhile, and whether another is wanted
//!
//! # Contract
//! Every reactor has a queue of its own. Requests go through memory that the queue's server made:
//! one copy each way. All commands of a turn are submitted at once at its end, and while the server
//! is awake without a system call. No lock and no allocation per request.
//!
//! Where the server ends, or gives up the queue, requests end as those of a lost path do; a thread
//! tries to open another queue, whose namespace must be the same (T32). Changes that the server had
//! are not ended before [`QUEUE_QUIESCE_NS`] have passed: its requests to files may still be
//! executed, so they must not be repeated elsewhere meanwhile (T9). A flush waits for the next
//! queue: acknowledged writes are durable only then (T13).
//!
//! The engine may also release a path ([`QueueBackend::let_go`]). Reads end at once: late data
//! comes into memory of the queue's, which the server keeps for as long as it needs it (T10).
//! Changes are given [`QUEUE_FAREWELL_NS`]: a command that a healthy server has answered can't be
//! executed late, so each ends with its answer, and the queue with the last. So do flushes: a
//! server reports a failed one only once (T13). From a hanging server, commands that it has not
//! begun are taken back, and are then never executed ([`Queue::close_with`]); changes wait all the
//! same, for a command that it fetched may be with the kernel.
//!
//! # Limits
//! [`QUEUE_SLOTS`] commands with the server. A request larger than [`QUEUE_PIECE_BYTES`] is
//! several, which go as there is room, in any order; requests take turns. It ends when all of
//! them have: none may be executed after its end (T9).
use crate::RuntimeError;
use crate::device::Done;
use crate::limits::{QUEUE_PIECE_BYTES, QUEUE_QUIESCE_NS, QUEUE_SLOTS};
use crate::reactor::Tag;
use block::SlotMap;
use engine::machine::{DeviceError, DeviceOp, DeviceRequest};
use queue::{Identity, Kind, Namespace, Options, Queue, Range, Region, Status, SubmitError};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use sys::{Errno, Extent, Fd, OpId, Ring};

mod loss;
mod repair;
mod standing;

use loss::ENDED;
use repair::Repair;
use standing::{Doubting, Missing, Standing};

pub use standing::Doubt;

/// The path is gone: others may serve (ENOLINK).
const LOST: DeviceError = DeviceError::Lost;

/// A namespace of a queue server.
#[derive(Debug)]
pub struct QueueDevice {
    socket: PathBuf,
    nsid: u32,
    namespace: Namespace,
    identity: Option<Identity>,
    quiesce_ns: u64,
    standing: Standing,
}

impl QueueDevice {
    /// Asks what a namespace is like.
    ///
    /// # Errors
    /// [`RuntimeError::Queue`]: no server answers there, or it has no such namespace for us.
    pub fn open(socket: PathBuf, nsid: u32) -> Result<Self, RuntimeError> {
        match queue::show(&socket, nsid) {
            Ok((namespace, identity)) => Ok(Self {
                socket,
                nsid,
                namespace,
                identity,
                quiesce_ns: QUEUE_QUIESCE_NS,
                standing: Standing::default(),
            }),
            Err(source) => Err(RuntimeError::Queue { socket, source }),
        }
    }

    /// A lost server may execute its commands for so long; [`QUEUE_QUIESCE_NS`] if that is longer.
    /// 0: late execution does not matter, and it is not waited for.
    #[must_use]
    pub fn with_quiesce(mut self, quiesce_ns: u64) -> Self {
        self.quiesce_ns = quiet_after(quiesce_ns);
        self
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

    /// The identity that its namespace shows, if any.
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

    /// Opens a queue to it. The identity is asked of the very server that has the queue: another
    /// one may have taken the place of the one that was asked before (T32).
    ///
    /// # Errors
    /// [`RuntimeError::Queue`]: as [`Self::open`]; all queues are taken; the namespace is another
    /// one, or of another size.
    pub fn queue(&self) -> Result<Queue, RuntimeError> {
        let options = Options {
            kind: Kind::UserIrq,
            entries: QUEUE_SLOTS + 1,
            data_bytes: u64::from(QUEUE_SLOTS) * u64::from(QUEUE_PIECE_BYTES),
            ..Options::default()
        };
        let queue = Queue::open(&self.socket, &options).and_then(|mut queue| {
            let (namespace, identity) = queue.show(self.nsid)?;
            match namespace == self.namespace && identity == self.identity {
                true => Ok(queue),
                false => Err(queue::Error::Protocol("another namespace than before")),
            }
        });
        queue.map_err(|source| RuntimeError::Queue {
            socket: self.socket.clone(),
            source,
        })
    }
}

/// A request: waiting, with the server, or partly so.
#[derive(Clone, Copy)]
struct Request {
    request: DeviceRequest,
    extent: Extent,
    /// Bytes that were given out to commands.
    begun: u64,
    /// Its commands with the server.
    out: u16,
    /// Result of the first command that failed.
    result: Result<(), DeviceError>,
}

impl Request {
    /// Whether some of it is yet to be given out; a flush has no bytes, and is one command.
    fn has_more(&self) -> bool {
        self.result.is_ok() && self.begun < self.request.length
    }
}

/// A command with the server.
#[derive(Clone, Copy)]
struct Command {
    /// Its request's place.
    request: u32,
    /// Where in that it begins, bytes.
    from: u64,
    bytes: u64,
}

/// Descriptors that wake a reactor.
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
    /// While there is no `line`.
    missing: Option<Missing>,
    /// With the server, by token. A command that nothing waits for any more keeps its slot, since
    /// the server may still write to its memory.
    commands: Vec<Option<Command>>,
    free: Vec<u16>,
    requests: SlotMap<Request>,
    /// Those of which some is yet to be given out: each in its turn, a command at a time.
    waiting: VecDeque<u32>,
    /// Changes that a lost server had.
    doubtful: Vec<u32>,
    /// Rate limiter and state of their log lines.
    doubting: Option<Doubting>,
    /// It was let go of under this id, to be told when there is a queue again.
    let_go: Option<u32>,
    /// Nothing is given to this queue any more; its last changes are waited for until then, ns.
    parting: Option<u64>,
    repair: Arc<Repair>,
    repaired: Fd,
    /// The ring's watches.
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
            missing: None,
            commands: vec![None; usize::from(QUEUE_SLOTS)],
            free: (0..QUEUE_SLOTS).collect(),
            requests: SlotMap::new(QUEUE_SLOTS.into()),
            waiting: VecDeque::with_capacity(usize::from(QUEUE_SLOTS)),
            doubtful: Vec::with_capacity(usize::from(QUEUE_SLOTS)),
            doubting: None,
            let_go: None,
            parting: None,
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
        let waits = request.op == DeviceOp::Flush;
        if self.parting.is_some() || self.line.is_none() && !waits {
            return results.push((request.id, Err(LOST)));
        }
        let begun = Request {
            request: *request,
            extent,
            begun: 0,
            out: 0,
            result: Ok(()),
        };
        let at = self.requests.insert(begun).index();
        self.waiting.push_back(at);
        self.refill(ring, results);
    }

    /// Gives out what waits, as far as there is room: one command of each request in turn, so that
    /// a large one keeps no small one waiting.
    fn refill(&mut self, ring: &mut Ring, results: &mut Vec<Done>) {
        while self.line.is_some()
            && !self.free.is_empty()
            && let Some(at) = self.waiting.pop_front()
        {
            if let Err(error) = self.issue(ring, at) {
                self.fail(at, error);
            }
            match self.requests[at].has_more() {
                true => self.waiting.push_back(at),
                false => self.settle(at, results),
            }
        }
    }

    /// Prepares the next command of a request; there is room for it.
    fn issue(&mut self, ring: &Ring, place: u32) -> Result<(), DeviceError> {
        let (Some(line), Some(&slot)) = (&mut self.line, self.free.last()) else {
            unreachable!("request {place} is submitted without a queue, or without room");
        };
        let it = &mut self.requests[place];
        let (nsid, shift) = (self.device.nsid, self.device.namespace.block_shift);
        let slba = (it.request.offset + it.begun) >> shift;
        let at = usize::from(slot) * QUEUE_PIECE_BYTES as usize;
        let (queue, token) = (&mut line.queue, slot.into());
        let most = match it.request.op {
            DeviceOp::WriteZeroes { .. } => 1_u64 << (16 + shift),
            DeviceOp::Deallocate => u64::from(u32::MAX) << shift,
            _ => QUEUE_PIECE_BYTES.into(),
        };
        let bytes = most.min(it.request.length - it.begun);
        let blocks = (bytes >> shift) as u32;
        let data = || line.data.piece(at, bytes as u32);
        let pushed = match it.request.op {
            DeviceOp::Read | DeviceOp::Compare => queue.read(nsid, slba, blocks, &[data()], token),
            DeviceOp::Write { fua } => {
                let mine = ring.arena().bytes(it.extent.skip(it.begun as u32));
                line.data.write(at, &mine[..bytes as usize]);
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
            Err(SubmitError::Full) => return Err(LOST),
            Err(_) => return Err(DeviceError::Os(Errno::INVAL.raw_os_error())),
        }
        self.free.pop();
        self.commands[usize::from(slot)] = Some(Command {
            request: place,
            from: it.begun,
            bytes,
        });
        it.begun += bytes;
        it.out += 1;
        Ok(())
    }

    /// Submits nothing more of a request. Its commands with the server are waited for.
    fn fail(&mut self, at: u32, error: DeviceError) {
        let it = &mut self.requests[at];
        it.result = it.result.and(Err(error));
    }

    /// Ends a request that has nothing more to do, nor to wait for.
    fn settle(&mut self, at: u32, results: &mut Vec<Done>) {
        let it = &self.requests[at];
        if it.out == 0 && !it.has_more() {
            let it = self.requests.remove(self.requests.key(at));
            results.push((it.request.id, it.result));
        }
    }

    /// Takes what has ended, submits what was begun, and watches what is not watched.
    ///
    /// In this order: the end of one command begins another, and who has nothing to say to the
    /// machine may sleep after this.
    pub(crate) fn turn(&mut self, ring: &mut Ring, results: &mut Vec<Done>) {
        self.reap(ring, results);
        if let Some(line) = &mut self.line
            && line.queue.submit().is_err()
        {
            self.lose(ring, ENDED, results);
        }
        self.part(ring, results);
        if self.parting.is_some() || !self.doubtful.is_empty() || self.doubting.is_some() {
            self.tell_doubt();
        }
        self.watch(ring);
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
                    let why = format!("{error}; it is tried again");
                    return self.lose(ring, &why, results);
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

    /// A watched descriptor has become readable.
    pub(crate) fn woken(&mut self, ring: &mut Ring, what: Watched, results: &mut Vec<Done>) {
        self.watches[what as usize] = None;
        match what {
            Watched::Interrupt => {
                if let Some(interrupt) = self.line.as_ref().map(|line| &line.interrupt) {
                    let _ = rustix::io::read(interrupt, &mut [0; 8]);
                }
            }
            Watched::End => {
                // Commands that had ended before it did.
                self.reap(ring, results);
                // It says nothing unasked: this is its end.
                self.lose(ring, ENDED, results);
            }
            Watched::Repair => self.repaired(ring, results),
        }
        self.reap(ring, results);
    }

    fn ended(&mut self, ring: &mut Ring, done: &queue::Done, results: &mut Vec<Done>) {
        let slot = done.token as u16;
        let Some(command) = self.commands[usize::from(slot)].take() else {
            // The slot stays taken until the queue is given back.
            assert!(self.let_go.is_some(), "command {slot} ended twice");
            return;
        };
        let at = command.request;
        let result = match done.status.is_success() {
            true => self.take_data(ring, slot, &command),
            false => Err(device_error(done.status)),
        };
        self.free.push(slot);
        self.requests[at].out -= 1;
        if let Err(error) = result {
            self.waiting.retain(|&it| it != at);
            self.fail(at, error);
        }
        self.settle(at, results);
        self.refill(ring, results);
    }

    /// Passes the data of a command on to the requester, or compares it.
    fn take_data(
        &mut self,
        ring: &mut Ring,
        slot: u16,
        command: &Command,
    ) -> Result<(), DeviceError> {
        let it = &self.requests[command.request];
        if !matches!(it.request.op, DeviceOp::Read | DeviceOp::Compare) {
            return Ok(());
        }
        // Its memory has gone with the queue.
        let line = self.line.as_ref().ok_or(LOST)?;
        let at = usize::from(slot) * QUEUE_PIECE_BYTES as usize;
        let (bytes, op) = (command.bytes as usize, it.request.op);
        let mine = it.extent.skip(command.from as u32);
        if op == DeviceOp::Read {
            line.data.read(at, &mut ring.bytes_mut(mine)[..bytes]);
        }
        if op == DeviceOp::Compare {
            line.data.read(at, &mut self.scratch[..bytes]);
            if ring.arena().bytes(mine)[..bytes] != self.scratch[..bytes] {
                return Err(DeviceError::Mismatch);
            }
        }
        Ok(())
    }
}

/// How long a lost server is waited for where a volume waits `quiesce_ns` for its controllers.
fn quiet_after(quiesce_ns: u64) -> u64 {
    match quiesce_ns {
        0 => 0,
        some => some.max(QUEUE_QUIESCE_NS),
    }
}

/// The device error for a status.
fn device_error(status: Status) -> DeviceError {
    match status {
        _ if status.is(Status::CAPACITY_EXCEEDED) => DeviceError::Full,
        _ if status.is(Status::WRITE_PROTECTED) => DeviceError::ReadOnly,
        _ if status.is(Status::INVALID_OPCODE) => DeviceError::Unsupported,
        // Taken back: nothing was done.
        _ if status.is(Status::ABORT_REQUESTED) => LOST,
        // The rest as of any controller: that the path failed is not that its medium did (T2), and
        // what is denied, or lies behind the end, is neither.
        _ => DeviceError::Nvme(status),
    }
}

#[cfg(test)]
mod tests;
