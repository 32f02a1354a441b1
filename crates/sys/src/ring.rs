//! An io_uring instance and everything the kernel may touch on its behalf.
//!
//! # Contract
//! Operations are methods; each takes what it needs by ownership or locks it in the arena, and one
//! [`Completion`] (accept: several) gives it back. Nothing reaches the kernel before
//! [`Ring::enter`], which submits everything at once and, if asked, sleeps until something is
//! complete. A ring lives on one thread. Dropping it cancels what is in flight and waits for it,
//! for a bounded time; if that runs out, the memory in question is leaked.
//!
//! # Limits
//! `operations_max` operations at once: the owner counts; one more is its own error and panics.
use crate::arena::{Access, Arena, Extent};
use crate::freeze;
use crate::pool::{GROUP, Pool};
use crate::{Buffer, Errno, Error, Lease, Message, Shared};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use std::{io, mem};

mod commands;
mod guard;
mod ops;
#[cfg(test)]
mod tests;
mod unreported;

pub use commands::{COMMANDS_MAX, CommandData, NvmeCommand, Reaping, probe_commands};
pub use guard::LATE;
pub use ops::{Allocate, WriteHow};

/// Longest wait for operations to end when a ring is dropped.
const DROP_WAIT: Duration = Duration::from_secs(5);
/// Entries of the submission ring; more than that in one turn wait in the backlog.
const SUBMIT_MAX: u32 = 512;
/// `user_data` of cancellations, whose own results are not used.
const CANCEL: u64 = u64::MAX;

/// An open file or socket, shared with the operations that use it; closed with its last user.
#[derive(Clone, Debug)]
pub struct Fd(Rc<OwnedFd>);

impl Fd {
    /// Takes it over.
    pub fn new(fd: OwnedFd) -> Self {
        Self(Rc::new(fd))
    }

    fn raw(&self) -> types::Fd {
        types::Fd(self.0.as_raw_fd())
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// How large things are.
#[derive(Clone, Copy, Debug)]
pub struct RingConfig {
    /// Most operations in flight.
    pub operations_max: u32,
    /// Receive buffers in all.
    pub buffers: u16,
    /// Of these, lent to the kernel at a time; a power of two.
    pub buffers_lent: u16,
    /// Bytes of each.
    pub buffer_bytes: u32,
}

/// How long [`Ring::enter`] may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Submit and return.
    No,
    /// Until something is complete, or this long.
    AtMost(Duration),
    /// Until something is complete.
    Forever,
}

/// Names an operation in flight; refers to nothing once that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpId(u64);

/// The end of an operation (accept: one more connection).
#[derive(Debug)]
pub struct Completion {
    /// As given when it was started.
    pub tag: u64,
    /// Bytes, or zero where nothing is counted.
    pub result: Result<u32, Errno>,
    /// The operation goes on.
    pub more: bool,
    /// A receive left bytes behind in the socket.
    pub nonempty: bool,
    /// The resource that the operation held, or made.
    pub returned: Returned,
}

/// Resource that comes with a completion.
#[derive(Debug)]
pub enum Returned {
    /// Nothing.
    Nothing,
    /// The bytes received.
    Buffer(Buffer),
    /// The message that was sent, or of which `result` bytes more were.
    Message(Message),
    /// The connection that was accepted.
    Accepted(OwnedFd),
}

/// Resource held by an operation in flight.
enum Held {
    Nothing,
    /// A receive into one of the pool's buffers.
    Receive,
    Accept,
    /// The address, in a vector so that it stays where it is.
    Connect(#[expect(dead_code, reason = "kept for the kernel")] Vec<rustix::net::SocketAddrAny>),
    Extent(Extent, Access),
    Message(Message),
    /// Memory that another process uses too.
    Shared(#[expect(dead_code, reason = "kept for the kernel")] Arc<Shared>),
}

struct Slot {
    generation: u32,
    tag: u64,
    /// The file, as long as the operation is in flight.
    fd: Option<Fd>,
    held: Held,
}

/// An io_uring instance. See the module.
pub struct Ring {
    uring: IoUring,
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// Entries that didn't fit into the submission ring.
    backlog: VecDeque<squeue::Entry>,
    guarded: guard::Guarded<squeue::Entry>,
    unreported: unreported::Unreported,
    pool: Pool,
    arena: Arena,
    enters: u64,
    commands: commands::Pair,
}

impl Ring {
    /// Sets everything up, with the best mode the kernel has.
    ///
    /// # Errors
    /// `io_uring_setup`: ENOSYS (not in this kernel), EPERM (forbidden here), EMFILE, ENOMEM
    /// (limits). A missing feature: its name, with EOPNOTSUPP. `mmap`: no memory.
    pub fn new(config: &RingConfig, arena: Arena) -> Result<Self, Error> {
        Self::with_modes(config, arena, &MODES)
    }

    fn with_modes(config: &RingConfig, arena: Arena, modes: &[Mode]) -> Result<Self, Error> {
        let uring = build(config.operations_max, modes)?;
        require(&uring)?;
        let pool = Pool::new(config.buffers, config.buffers_lent, config.buffer_bytes)?;
        let (address, entries) = pool.registration();
        // SAFETY: `address` is a page-aligned mapping with room for `entries`; the pool keeps it
        // until this ring is dropped, and `drop` unregisters or leaks it first.
        unsafe {
            uring
                .submitter()
                .register_buf_ring_with_flags(address, entries, GROUP, 0)
        }
        .map_err(
            |source| match Error::io("rings of provided buffers", &source) {
                error if error.source == Errno::INVAL => missing(error.operation),
                error => error,
            },
        )?;
        // Files that must wait do it on the kernel's workers; a few are enough.
        let _ = uring.submitter().register_iowq_max_workers(&mut [32, 32]);
        let slot = |_| Slot {
            generation: 0,
            tag: 0,
            fd: None,
            held: Held::Nothing,
        };
        Ok(Self {
            uring,
            slots: (0..config.operations_max).map(slot).collect(),
            free: (0..config.operations_max).rev().collect(),
            backlog: VecDeque::with_capacity(2 * config.operations_max as usize),
            guarded: guard::Guarded::default(),
            unreported: unreported::Unreported::new(config.operations_max as usize / 2),
            pool,
            arena,
            enters: 0,
            commands: [None, None],
        })
    }

    /// The payload memory, to read.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Bytes of the arena, to change. The arena itself stays the ring's.
    ///
    /// # Panics
    /// As [`Arena::bytes_mut`].
    pub fn bytes_mut(&mut self, extent: Extent) -> &mut [u8] {
        self.arena.bytes_mut(extent)
    }

    /// Lends a part of the arena to a thread, as [`Arena::lease`].
    ///
    /// # Panics
    /// It is outside of the arena.
    pub fn lease(&mut self, extent: Extent, fills: bool) -> Lease {
        self.arena.lease(extent, fills)
    }

    /// Takes it back, as [`Arena::end_lease`].
    ///
    /// # Panics
    /// It is of another arena.
    pub fn end_lease(&mut self, lease: Lease) {
        self.arena.end_lease(lease);
    }

    /// Operations in flight.
    pub fn in_flight(&self) -> usize {
        let commands = self.commands.iter().flatten();
        let commands: usize = commands.map(|it| it.in_flight()).sum();
        self.slots.len() - self.free.len() + commands
    }

    /// `io_uring_enter` calls so far.
    pub fn enters(&self) -> u64 {
        self.enters
    }

    /// Whether [`Ring::enter`] has anything to submit or collect. A load or two, no system call.
    pub fn wants_enter(&mut self) -> bool {
        self.first_wants_enter() || self.commands_want_enter()
    }

    fn first_wants_enter(&mut self) -> bool {
        let queue = self.uring.submission();
        let guarded = !self.guarded.is_empty();
        guarded || !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }

    /// Whether a completion is there to take, other than of [`Ring::send_unreported`].
    pub fn has_completion(&mut self) -> bool {
        self.guarded.has_late()
            || !self.uring.completion().is_empty()
            || self.has_command_completion()
    }

    /// Submits everything, collects what is complete, and sleeps if asked.
    ///
    /// # Errors
    /// None that is of passing nature: being interrupted, timing out and a lack of kernel memory
    /// just end the call early.
    pub fn enter(&mut self, wait: Wait) -> Result<(), Errno> {
        self.pool.refill();
        let Some(wait) = self.enter_commands(wait)? else {
            return Ok(());
        };
        loop {
            self.flush_backlog();
            // Last of all, so that nothing stands between its clock and the system call.
            let opens = cfg!(feature = "freeze-points") && !self.guarded.is_empty();
            self.submit_guarded();
            let last = self.backlog.is_empty() && self.guarded.is_empty();
            // A test build tells a standstill there from one while it waits.
            let wait = if self.guarded.has_late() || opens {
                Wait::No
            } else {
                wait
            };
            let entered = self.enter_once(if last { wait } else { Wait::No });
            freeze::end();
            self.enters += 1;
            self.settle_unreported();
            match entered.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)) {
                Ok(_) if !last => {}
                Ok(_) | Err(Errno::INTR | Errno::TIME | Errno::BUSY | Errno::AGAIN) => {
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn enter_once(&mut self, wait: Wait) -> std::io::Result<usize> {
        match wait {
            Wait::No => self.uring.submit(),
            Wait::Forever => self.uring.submit_and_wait(1),
            Wait::AtMost(duration) => {
                let time = types::Timespec::from(duration);
                let arguments = types::SubmitArgs::new().timespec(&time);
                self.uring.submitter().submit_with_args(1, &arguments)
            }
        }
    }

    /// The next completion. Never sleeps, never enters the kernel.
    pub fn next_completion(&mut self) -> Option<Completion> {
        if let Some(late) = self.next_late() {
            return Some(late);
        }
        loop {
            let Some(entry) = self.uring.completion().next() else {
                return self.next_unreported().or_else(|| self.next_command());
            };
            match entry.user_data() {
                CANCEL => {}
                commands::WATCH => self.unwatch_commands(),
                _ => return Some(self.complete(&entry)),
            }
        }
    }

    fn complete(&mut self, entry: &cqueue::Entry) -> Completion {
        let (index, generation) = split(entry.user_data());
        let more = cqueue::more(entry.flags());
        let slot = &mut self.slots[index as usize];
        assert_eq!(
            slot.generation, generation,
            "a completion of an operation that is over"
        );
        let tag = slot.tag;
        let accepting = matches!(slot.held, Held::Accept);
        let held = if more {
            Held::Nothing
        } else {
            self.release(index)
        };
        let result = match entry.result() {
            count @ 0.. => Ok(count.cast_unsigned()),
            error => Err(Errno::from_raw_os_error(-error)),
        };
        let count = result.unwrap_or(0);
        let buffer = cqueue::buffer_select(entry.flags())
            .map(|number| self.pool.take(number, count as usize));
        let returned = match (held, buffer) {
            (_, Some(buffer)) => Returned::Buffer(buffer),
            (Held::Message(mut message), None) => {
                message.unlock(&mut self.arena);
                message.advance(count as usize);
                Returned::Message(message)
            }
            (Held::Extent(extent, access), None) => {
                self.arena.unlock(extent, access);
                Returned::Nothing
            }
            _ if accepting && result.is_ok() => {
                // SAFETY: a successful accept returns a descriptor that has no other owner.
                let socket = unsafe { OwnedFd::from_raw_fd(entry.result()) };
                Returned::Accepted(socket)
            }
            _ => Returned::Nothing,
        };
        let nonempty = cqueue::sock_nonempty(entry.flags());
        Completion {
            tag,
            result,
            more,
            nonempty,
            returned,
        }
    }

    /// Takes a slot for an operation, and submits it with the next enter.
    fn start(&mut self, tag: u64, fd: &Fd, held: Held, entry: squeue::Entry) -> OpId {
        let id = self.place(tag, fd, held);
        self.push(entry.user_data(id.0));
        id
    }

    /// Takes a slot for an operation.
    fn place(&mut self, tag: u64, fd: &Fd, held: Held) -> OpId {
        let index = self.free.pop();
        assert!(
            index.is_some(),
            "more than {} operations in flight",
            self.slots.len()
        );
        let index = index.unwrap_or_default();
        let slot = &mut self.slots[index as usize];
        slot.tag = tag;
        slot.fd = Some(fd.clone());
        slot.held = held;
        OpId(u64::from(slot.generation) << 32 | u64::from(index))
    }

    fn release(&mut self, index: u32) -> Held {
        let slot = &mut self.slots[index as usize];
        // Never u32::MAX, so that no operation is called CANCEL.
        slot.generation = slot.generation.wrapping_add(1) & 0x7fff_ffff;
        slot.fd = None;
        self.free.push(index);
        mem::replace(&mut slot.held, Held::Nothing)
    }

    fn push(&mut self, entry: squeue::Entry) {
        self.backlog.push_back(entry);
        if self.backlog.len() == 1 {
            self.flush_backlog();
        }
    }

    fn flush_backlog(&mut self) {
        let mut queue = self.uring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the pointers in the entry are to memory that its slot owns, that the arena
            // has locked, or that is no memory of ours; all stay valid until its completion was
            // taken.
            if unsafe { queue.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Asks for everything to end and waits for it.
    fn drain(&mut self) -> bool {
        self.drop_guarded();
        let all = types::CancelBuilder::any().all();
        self.push(opcode::AsyncCancel2::new(all).build().user_data(CANCEL));
        let end = crate::os::now_ns() + DROP_WAIT.as_nanos() as u64;
        while self.in_flight() > 0 {
            while self.next_completion().is_some() {}
            let left = end.saturating_sub(crate::os::now_ns());
            if self.in_flight() > 0
                && (left == 0
                    || self
                        .enter(Wait::AtMost(Duration::from_nanos(left)))
                        .is_err())
            {
                return false;
            }
        }
        true
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.drain() && self.uring.submitter().unregister_buf_ring(GROUP).is_ok() {
            return;
        }
        // The kernel may still write: what it may write to must outlive the process's use of it.
        self.arena.leak();
        self.pool.leak();
        mem::forget(mem::take(&mut self.slots));
        self.commands.iter_mut().flatten().for_each(|it| it.leak());
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

fn split(user_data: u64) -> (u32, u32) {
    (user_data as u32, (user_data >> 32) as u32)
}

/// When the kernel does what is left to do of an operation that had to wait.
#[derive(Clone, Copy, Debug)]
enum Mode {
    /// In our own enters (Linux 6.1).
    Deferred,
    /// At our next system call (5.19).
    Cooperative,
    /// At once, interrupting us.
    Interrupting,
}

/// From the best to the plainest.
const MODES: [Mode; 3] = [Mode::Deferred, Mode::Cooperative, Mode::Interrupting];

/// The first of these modes that the kernel has.
fn build(operations_max: u32, modes: &[Mode]) -> Result<IoUring, Error> {
    let submissions = operations_max.next_power_of_two().min(SUBMIT_MAX);
    // Every operation and its cancellation may complete in one turn.
    let completions = (2 * operations_max).next_power_of_two();
    let mut refused = missing("io_uring_setup");
    for mode in modes {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(completions).setup_clamp();
        match mode {
            Mode::Deferred => builder
                .setup_submit_all()
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag(),
            Mode::Cooperative => builder
                .setup_submit_all()
                .setup_coop_taskrun()
                .setup_taskrun_flag(),
            Mode::Interrupting => &mut builder,
        };
        match patiently(|| builder.build(submissions)) {
            Ok(uring) => return Ok(uring),
            Err(error) => refused = Error::io("io_uring_setup", &error),
        }
        // Only "I don't know this flag" is worth another try.
        if refused.source != Errno::INVAL {
            break;
        }
    }
    Err(refused)
}

/// Makes a ring, and where there is no memory for it, tries again for a second. The kernel wants
/// whole pieces for it, which it puts together once some were missing; and the rings of a process
/// that was killed are taken down after it is gone, so that who is started in its place may come
/// too early.
fn patiently<T>(mut make: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..10 {
        match make() {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                thread::sleep(Duration::from_millis(100));
            }
            made => return made,
        }
    }
    make()
}

fn missing(feature: &'static str) -> Error {
    Error::new(feature, Errno::OPNOTSUPP)
}

/// Refuses kernels that lack what there is no other way for.
fn require(uring: &IoUring) -> Result<(), Error> {
    let parameters = uring.params();
    if !parameters.is_feature_ext_arg() {
        return Err(missing("io_uring_enter with a timeout"));
    }
    if !parameters.is_feature_nodrop() || !parameters.is_feature_fast_poll() {
        return Err(missing("polled sockets without lost completions"));
    }
    let mut probe = io_uring::Probe::new();
    let probed = uring.submitter().register_probe(&mut probe);
    probed.map_err(|source| Error::io("io_uring_register", &source))?;
    for (code, name) in [
        (opcode::Recv::CODE, "receive"),
        (opcode::Send::CODE, "send"),
        (opcode::SendMsg::CODE, "sendmsg"),
        (opcode::Accept::CODE, "accept"),
        (opcode::Connect::CODE, "connect"),
        (opcode::PollAdd::CODE, "poll"),
        (opcode::Read::CODE, "read"),
        (opcode::Write::CODE, "write"),
        (opcode::Fsync::CODE, "fsync"),
        (opcode::Fallocate::CODE, "fallocate"),
        (opcode::AsyncCancel::CODE, "cancel"),
    ] {
        if !probe.is_supported(code) {
            return Err(missing(name));
        }
    }
    Ok(())
}
