//! The ublk server, a front end of [`Core`](crate::Core): requests of block devices of the kernel.
//!
//! Decides what a request does to a device of the engine, and how it ends in the words of the
//! driver. Rings, descriptors and the copies of payload are the caller's, as those of queues of
//! applications are, whose server does the work ([`QueueServer`]).
//!
//! # Contract
//! A queue is one hardware queue of one node, over one device; its number is never another's. A
//! request ends once ([`UblkServer::next_done`]); its memory is in use until it is
//! [released](crate::Core::release_ublk_request).
//!
//! * A flush that failed ends with EIO: the driver turns EOPNOTSUPP into success.
//! * A write never ends with 0 bytes, which the driver would send again for ever.
//! * A request that fails while the engine stops is not ended: the next engine gets it again.
//!
//! Nodes have a queue on each core. After writes were given up a flush of each of them fails once
//! (T13): the driver sends a flush by any one of them.
//!
//! # Limits
//! Reads and writes of [`BUFFER_MAX`] bytes; others end with EIO.
use crate::host::IoDone;
use crate::limits::BUFFER_MAX;
use crate::machine::{Memory, Span};
use crate::mirror::Devices;
use crate::queue_server::{QueueCommand, QueueCounters, QueueMemory, QueueOp, QueueServer};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use nvme::wire::Status;

/// Its number among the front ends.
pub(crate) const UBLK: u32 = (u32::MAX >> 1) - 3;

/// Errors of Linux.
const EIO: i32 = -5;
const ENOSPC: i32 = -28;
const ENODATA: i32 = -61;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UblkOp {
    /// Fills the client's memory.
    Read,
    /// Writes it; `fua`: durable before it ends.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Makes durable what was written to the node.
    Flush,
    /// Gives up the space of the range.
    Discard,
    /// Zeroes the range; `fua`: durable before it ends.
    WriteZeroes {
        /// Force unit access.
        fua: bool,
    },
}

/// A request of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UblkRequest {
    /// Its queue.
    pub queue: u32,
    /// Its tag there.
    pub tag: u16,
    /// Its operation.
    pub op: UblkOp,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A write whose payload is to be copied to the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UblkLoad {
    /// Its number, for [`Core::ublk_payload_loaded`](crate::Core::ublk_payload_loaded).
    pub id: u32,
    /// Its queue.
    pub queue: u32,
    /// Its tag there.
    pub tag: u16,
    /// Where its payload goes.
    pub span: Span,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UblkDone {
    /// Its number, for [`Core::release_ublk_request`](crate::Core::release_ublk_request).
    pub id: u32,
    /// Its queue.
    pub queue: u32,
    /// Its tag there.
    pub tag: u16,
    /// Bytes, or an error below 0; `None`: it is left to the next engine.
    pub result: Option<i32>,
    /// The bytes that it read, to be copied to the client's memory.
    pub read: Option<Span>,
}

/// See the module.
pub struct UblkServer {
    queues: QueueServer,
    is_stopping: bool,
}

impl UblkServer {
    pub(crate) fn new() -> Self {
        Self {
            queues: QueueServer::new(UBLK, words),
            is_stopping: false,
        }
    }

    /// The server that does the work.
    pub(crate) fn queues(&mut self) -> &mut QueueServer {
        &mut self.queues
    }

    /// It has this memory from now on, before its first request.
    pub(crate) fn set_memory(&mut self, memory: QueueMemory) {
        self.queues.set_memory(memory);
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.queues.memory_bytes()
    }

    pub(crate) fn memory_free(&self) -> u64 {
        self.queues.memory_free()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queues.is_idle()
    }

    pub(crate) fn has_more(&self) -> bool {
        self.queues.has_more()
    }

    #[inline]
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        self.queues.poll_timeout()
    }

    /// The engine stops.
    pub(crate) fn stop(&mut self) {
        self.is_stopping = true;
        self.queues.mute();
    }

    /// Opens a queue of a node over a device.
    pub(crate) fn open(&mut self, devices: &Devices, queue: u32, volume: u16, node: &str) {
        self.queues.add_namespace(queue, volume);
        // The kernel repeats nothing while this process lives.
        let has_let_go = Box::new(|| false);
        self.queues.open(devices, queue, node.into(), has_let_go);
    }

    pub(crate) fn counters(&self) -> impl Iterator<Item = (u32, QueueCounters)> {
        self.queues.counters()
    }

    /// Closes a queue without requests.
    pub fn close(&mut self, queue: u32) {
        self.queues.remove_namespace(queue);
        self.queues.close(queue);
    }

    /// Whether a queue has requests that were not released.
    pub fn has_requests(&self, queue: u32) -> bool {
        self.queues.has_commands(queue)
    }

    /// Begins a request. `false`: no engine of ours announces such, and it was not begun.
    pub(crate) fn begin(&mut self, devices: &mut Devices, of: UblkRequest, now_ns: u64) -> bool {
        let has_payload = matches!(of.op, UblkOp::Read | UblkOp::Write { .. });
        let is_empty = of.bytes == 0 && of.op != UblkOp::Flush;
        if is_empty || has_payload && of.bytes > BUFFER_MAX.into() {
            return false;
        }
        let op = match of.op {
            UblkOp::Read => QueueOp::Read,
            UblkOp::Write { fua } => QueueOp::Write { fua },
            UblkOp::Flush => QueueOp::Flush { rest: Vec::new() },
            UblkOp::Discard => QueueOp::Deallocate {
                ranges: vec![(of.offset, of.bytes)],
            },
            UblkOp::WriteZeroes { fua } => QueueOp::WriteZeroes { fua },
        };
        let command = QueueCommand {
            queue: of.queue,
            cid: of.tag,
            tag: of.tag.into(),
            namespace: of.queue,
            op,
            offset: of.offset,
            length: of.bytes,
        };
        self.queues.begin(devices, command, now_ns);
        true
    }

    /// The next write whose payload is to be copied.
    #[inline]
    pub fn next_load(&mut self) -> Option<UblkLoad> {
        let (id, tag, span) = self.queues.next_load()?;
        Some(UblkLoad {
            id,
            queue: self.queues.command(id).queue,
            tag: tag as u16,
            span,
        })
    }

    /// The next request that has ended; its memory is in use until it is released.
    #[inline]
    pub fn next_done(&mut self) -> Option<UblkDone> {
        let done = self.queues.next_done()?;
        let of = self.queues.command(done.id);
        let result = result(&of.op, of.length, done.status);
        let is_left = self.is_stopping && result < 0;
        Some(UblkDone {
            id: done.id,
            queue: of.queue,
            tag: done.tag as u16,
            result: (!is_left).then_some(result),
            read: done.read,
        })
    }

    pub(crate) fn io_done(&mut self, devices: &mut Devices, done: &IoDone, now_ns: u64) {
        self.queues.io_done(devices, done, now_ns);
    }

    pub(crate) fn advance(
        &mut self,
        devices: &mut Devices,
        memory: &mut dyn Memory,
        now_ns: u64,
    ) -> bool {
        self.queues.advance(devices, memory, now_ns)
    }
}

/// End of a request in the driver's words: bytes, or an error.
fn result(op: &QueueOp, bytes: u64, status: Status) -> i32 {
    if status.is_success() {
        return i32::try_from(bytes).unwrap_or(i32::MAX);
    }
    match op {
        QueueOp::Flush { .. } => EIO,
        QueueOp::Read if status.is(Status::UNRECOVERED_READ) => ENODATA,
        _ if status.is(Status::CAPACITY_EXCEEDED) => ENOSPC,
        _ => EIO,
    }
}

/// The error of a request for people.
fn words(op: &QueueOp, status: Status) -> Box<str> {
    let error = result(op, 0, status);
    let errno = match error {
        EIO => "input/output error (EIO)",
        ENOSPC => "no space left (ENOSPC)",
        ENODATA => "no data (ENODATA)",
        _ => unreachable!("{error}: it is no result of a request that failed"),
    };
    errno.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_end_with_errors_that_pass_the_driver() {
        let write = QueueOp::Write { fua: false };
        let flush = QueueOp::Flush { rest: Vec::new() };
        let zeroes = QueueOp::WriteZeroes { fua: false };
        assert_eq!(result(&write, 4096, Status::SUCCESS), 4096);
        assert_eq!(result(&zeroes, 1 << 40, Status::SUCCESS), i32::MAX);
        assert_eq!(result(&flush, 0, Status::SUCCESS), 0);
        let full = Status::CAPACITY_EXCEEDED.with_dnr();
        assert_eq!(result(&write, 4096, full), ENOSPC);
        assert_eq!(result(&QueueOp::Read, 1, Status::UNRECOVERED_READ), ENODATA);
        // Turned into success, or into something else, by the driver.
        assert_eq!(result(&flush, 0, Status::INVALID_OPCODE.with_dnr()), EIO);
        assert_eq!(result(&flush, 0, full), EIO);
        assert_eq!(result(&write, 1, Status::WRITE_PROTECTED.with_dnr()), EIO);
    }
}
