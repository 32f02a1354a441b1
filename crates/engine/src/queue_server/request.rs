//! A command of a queue on its way over a device.
use crate::machine::Span;
use crate::pipeline::Pipeline;
use alloc::vec::Vec;
use nvme::wire::Status;

/// The operation of a command. It was checked: its blocks are whole ones of its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueOp {
    /// Reads into the client's memory.
    Read,
    /// Writes from the client's memory; `fua`: durable before it ends.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Zeroes a range.
    WriteZeroes {
        /// Force unit access.
        fua: bool,
    },
    /// Gives up the space of ranges, of which there is at least one: offset and length in bytes.
    Deallocate {
        /// The last one is the next to be done.
        ranges: Vec<(u64, u64)>,
    },
    /// Makes durable what was written to the namespace, and then to each of `rest`.
    Flush {
        /// Numbers of further namespaces.
        rest: Vec<u32>,
    },
}

impl QueueOp {
    /// In lines for people.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write { .. } => "write",
            Self::WriteZeroes { .. } => "write zeroes",
            Self::Deallocate { .. } => "deallocate",
            Self::Flush { .. } => "flush",
        }
    }

    /// Whether it changes what the device holds.
    pub fn is_change(&self) -> bool {
        !matches!(self, Self::Read | Self::Flush { .. })
    }
}

/// A command of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueCommand {
    /// Its queue.
    pub queue: u32,
    /// Its identifier there; several commands may have one.
    pub cid: u16,
    /// Name of the command for the caller.
    pub tag: u32,
    /// Number of its namespace.
    pub namespace: u32,
    /// Its operation.
    pub op: QueueOp,
    /// First byte.
    pub offset: u64,
    /// Bytes; of reads and writes at most [`BUFFER_MAX`](crate::limits::BUFFER_MAX).
    pub length: u64,
}

impl QueueCommand {
    /// Bytes that are copied for it.
    pub(super) fn payload(&self) -> u32 {
        match self.op {
            QueueOp::Read | QueueOp::Write { .. } => self.length as u32,
            _ => 0,
        }
    }
}

/// A command that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueDone {
    /// Its number.
    pub id: u32,
    /// Its name for the caller.
    pub tag: u32,
    /// How it has ended.
    pub status: Status,
    /// The bytes that it read, to be copied to the client's memory.
    pub read: Option<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Begun,
    /// The caller has yet to release it.
    Ended,
    /// Released, while legs of mirrors have its memory.
    Lent,
}

/// A command, its memory, and its outcome.
pub(super) struct Request {
    pub of: QueueCommand,
    /// When it began, ns.
    pub begun_ns: u64,
    pub pipeline: Pipeline,
    pub phase: Phase,
    /// Its memory in the core's arena; empty: none.
    pub span: Span,
    pub loans: u32,
    /// Ranges or namespaces of it are done.
    pub is_done_partly: bool,
    /// How it ends whatever its I/Os do: no more of them begin.
    pub verdict: Option<Status>,
    /// Valid once it has ended.
    pub status: Status,
    /// It is a flush that has failed, which its client may never hear of.
    pub is_failed_flush: bool,
}

impl Request {
    pub fn new(of: QueueCommand, now_ns: u64) -> Self {
        Self {
            of,
            begun_ns: now_ns,
            pipeline: Pipeline::default(),
            phase: Phase::Begun,
            span: Span::default(),
            loans: 0,
            is_done_partly: false,
            verdict: None,
            status: Status::SUCCESS,
            is_failed_flush: false,
        }
    }
}
