//! The operations of a [`Ring`].
//!
//! # Panics
//! All of them: more than `operations_max` in flight. Those with an extent: it is outside the
//! arena.
use super::{CANCEL, Fd, Held, OpId, Ring};
use crate::arena::{Access, Extent};
use crate::pool::GROUP;
use crate::{Message, Shared};
use io_uring::{opcode, squeue, types};
use rustix::net::SocketAddrAny;
use rustix::net::addr::SocketAddrArg;
use std::net::SocketAddr;
use std::ptr;
use std::sync::Arc;

/// `IORING_RECVSEND_POLL_FIRST`: the socket is empty now, so don't try before it polls ready.
const POLL_FIRST: u16 = 1;

/// The state to which `fallocate` brings a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Reads as zeroes, space given back.
    PunchHole,
    /// Reads as zeroes, space kept.
    ZeroRange,
}

/// How a write is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteHow {
    /// Like `O_DSYNC`.
    pub durable: bool,
    /// Ends with EAGAIN or EOPNOTSUPP where the kernel would have one of its workers do it, which
    /// a stopped process doesn't call back (T49).
    pub nowait: bool,
    /// May start only before this time, ns; `u64::MAX`: at any time.
    pub before_ns: u64,
}

impl WriteHow {
    /// An ordinary write.
    pub const AT_ANY_TIME: Self = Self {
        durable: false,
        nowait: false,
        before_ns: u64::MAX,
    };

    fn flags(self) -> i32 {
        let durable = if self.durable { libc::RWF_DSYNC } else { 0 };
        let nowait = if self.nowait { libc::RWF_NOWAIT } else { 0 };
        durable | nowait
    }
}

/// Where an operation's part of shared memory lies.
fn shared(memory: &Shared, at: usize, len: u32) -> *mut u8 {
    assert!(
        memory.contains(at, len as usize),
        "{at} + {len} is outside of the shared memory"
    );
    memory.as_ptr().wrapping_add(at)
}

impl Ring {
    /// Receives up to `limit` bytes into one of the ring's buffers, chosen when bytes are there.
    /// ENOBUFS: all that are lent are full; try again after the next `enter`. `poll_first`: nothing
    /// is expected to be there yet.
    pub fn receive(&mut self, socket: &Fd, limit: u32, poll_first: bool, tag: u64) -> OpId {
        let limit = limit.min(self.pool.buffer_bytes());
        let entry = opcode::Recv::new(socket.raw(), ptr::null_mut(), limit)
            .buf_group(GROUP)
            .ioprio(if poll_first { POLL_FIRST } else { 0 })
            .build()
            .flags(squeue::Flags::BUFFER_SELECT);
        self.start(tag, socket, Held::Receive, entry)
    }

    /// Receives all of `extent`; less only at the end of the stream, or if cancelled.
    pub fn receive_into(&mut self, socket: &Fd, extent: Extent, tag: u64) -> OpId {
        let entry = opcode::Recv::new(socket.raw(), self.arena.pointer(extent), extent.len)
            .flags(libc::MSG_WAITALL)
            .build();
        self.arena.lock(extent, Access::Write);
        self.start(tag, socket, Held::Extent(extent, Access::Write), entry)
    }

    /// Sends what is left of a message, all of it unless there is an error. It comes back with the
    /// completion.
    pub fn send(&mut self, socket: &Fd, mut message: Message, tag: u64) -> OpId {
        let entry = message.entry(socket.raw(), 0, &self.arena);
        message.lock(&mut self.arena);
        self.start(tag, socket, Held::Message(message), entry)
    }

    /// As [`Ring::send`], but a success ends no sleep: its completion comes with the next turn,
    /// after all others. Never waits for room in the socket: ends with a short count or EAGAIN
    /// where there is none, and that ends a sleep.
    pub fn send_unreported(&mut self, socket: &Fd, mut message: Message, tag: u64) -> OpId {
        if !self.uring.params().is_feature_skip_cqe_on_success() {
            return self.send(socket, message, tag);
        }
        let entry = message.entry(socket.raw(), libc::MSG_DONTWAIT, &self.arena);
        let entry = entry.flags(squeue::Flags::SKIP_SUCCESS);
        message.lock(&mut self.arena);
        let id = self.start(tag, socket, Held::Message(message), entry);
        self.unreported.add(id);
        id
    }

    /// Accepts connections until it is cancelled or fails.
    pub fn accept(&mut self, listener: &Fd, tag: u64) -> OpId {
        let entry = opcode::AcceptMulti::new(listener.raw())
            .flags(libc::SOCK_CLOEXEC)
            .build();
        self.start(tag, listener, Held::Accept, entry)
    }

    /// Connects.
    pub fn connect(&mut self, socket: &Fd, address: &SocketAddr, tag: u64) -> OpId {
        let address: Vec<SocketAddrAny> = vec![address.as_any()];
        let (at, len) = (address[0].as_ptr().cast(), address[0].addr_len());
        let entry = opcode::Connect::new(socket.raw(), at, len).build();
        self.start(tag, socket, Held::Connect(address), entry)
    }

    /// Completes once when `fd` is readable.
    pub fn poll_readable(&mut self, fd: &Fd, tag: u64) -> OpId {
        let entry = opcode::PollAdd::new(fd.raw(), libc::POLLIN as u32).build();
        self.start(tag, fd, Held::Nothing, entry)
    }

    /// Reads a file into an extent.
    pub fn read(&mut self, file: &Fd, extent: Extent, offset: u64, tag: u64) -> OpId {
        let at = self.arena.pointer(extent);
        let entry = opcode::Read::new(file.raw(), at, extent.len)
            .offset(offset)
            .build();
        self.arena.lock(extent, Access::Write);
        self.start(tag, file, Held::Extent(extent, Access::Write), entry)
    }

    /// Writes an extent to a file.
    pub fn write(
        &mut self,
        file: &Fd,
        extent: Extent,
        offset: u64,
        how: WriteHow,
        tag: u64,
    ) -> OpId {
        let at = self.arena.pointer(extent);
        let entry = opcode::Write::new(file.raw(), at, extent.len)
            .offset(offset)
            .rw_flags(how.flags())
            .build();
        self.arena.lock(extent, Access::Read);
        let held = Held::Extent(extent, Access::Read);
        self.start_before(how.before_ns, (tag, file), held, entry)
    }

    /// Reads a file into memory that another process uses too: `len` bytes at `at`.
    pub fn read_shared(
        &mut self,
        file: &Fd,
        (memory, at, len): (&Arc<Shared>, usize, u32),
        offset: u64,
        tag: u64,
    ) -> OpId {
        let to = shared(memory, at, len);
        let entry = opcode::Read::new(file.raw(), to, len)
            .offset(offset)
            .build();
        self.start(tag, file, Held::Shared(Arc::clone(memory)), entry)
    }

    /// Writes what is in memory that another process uses too, whatever it is at that moment.
    pub fn write_shared(
        &mut self,
        file: &Fd,
        (memory, at, len): (&Arc<Shared>, usize, u32),
        offset: u64,
        how: WriteHow,
        tag: u64,
    ) -> OpId {
        let from = shared(memory, at, len);
        let entry = opcode::Write::new(file.raw(), from, len)
            .offset(offset)
            .rw_flags(how.flags())
            .build();
        let held = Held::Shared(Arc::clone(memory));
        self.start_before(how.before_ns, (tag, file), held, entry)
    }

    /// Makes a file's data durable (`fdatasync`).
    pub fn sync_data(&mut self, file: &Fd, tag: u64) -> OpId {
        let entry = opcode::Fsync::new(file.raw())
            .flags(types::FsyncFlags::DATASYNC)
            .build();
        self.start(tag, file, Held::Nothing, entry)
    }

    /// Zeroes a range of a file or block device; its size stays.
    pub fn allocate(
        &mut self,
        file: &Fd,
        how: Allocate,
        offset: u64,
        length: u64,
        tag: u64,
    ) -> OpId {
        let mode = libc::FALLOC_FL_KEEP_SIZE
            | match how {
                Allocate::PunchHole => libc::FALLOC_FL_PUNCH_HOLE,
                Allocate::ZeroRange => libc::FALLOC_FL_ZERO_RANGE,
            };
        let entry = opcode::Fallocate::new(file.raw(), length)
            .offset(offset)
            .mode(mode)
            .build();
        self.start(tag, file, Held::Nothing, entry)
    }

    /// Asks for an operation to end soon. Its completion comes in any case, ECANCELED or not.
    pub fn cancel(&mut self, operation: OpId) {
        let one = types::CancelBuilder::user_data(operation.0);
        self.push(opcode::AsyncCancel2::new(one).build().user_data(CANCEL));
    }
}
