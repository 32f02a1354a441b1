//! One loop per core: turns a machine's outputs into system calls and their results into its
//! events. Safe code; everything unsafe is behind `sys`.
//!
//! * `reactor`: the loop: reap, handle, turn, outputs, transmit, submit once and wait; `waits`:
//!   polling and sleeping; `poll`: which of both
//! * `connection`: a connection's life, from open or accept to `handle_closed`
//! * `receive`, `send`: the two directions of a connection that is open; `messages`, `stall`: what
//!   peers can hold by not reading, and for how long
//! * `listen`: accepting; `admission`: who comes in
//! * `device`: requests to devices; [`MemoryDevice`], [`FileDevice`]; `volatile`: a cache before it
//!   `truncation_guard`: files that were cut short; `filesystem`: which file systems block their
//!   submitter; [`workers`]: threads for blocking system calls
//! * `passthrough`, `command`: namespaces that the kernel drives; [`PassthroughDevice`]
//! * `mailbox`: messages from other threads; [`Outbox`]: to another reactor; [`watchdog`]: reactors
//!   that don't come back
//!
//! # Contract
//! The one with machines stands in `engine::machine`. A reactor's rounds between two submissions
//! count as turns of it: `turn` is called in each, with the same time.
//!
//! Payload under 16 KiB is copied once out of the receive buffers and once into the send buffers;
//! larger remainders are received into place, and sent from where they lie (`ReactorStats` counts
//! both).
#![forbid(unsafe_code)]

mod admission;
mod command;
mod connection;
mod device;
mod error;
mod file;
mod filesystem;
mod lent;
pub mod limits;
mod listen;
mod lock;
mod loop_backing;
mod mailbox;
mod memory;
mod messages;
mod outbox;
mod passthrough;
mod poll;
mod queues;
mod reactor;
mod receive;
mod send;
mod stall;
pub mod sysfs;
mod thread;
mod truncation_guard;
mod volatile;
mod waits;
pub mod watchdog;
pub mod workers;

pub use admission::PeerLimit;
pub use error::RuntimeError;
pub use file::FileDevice;
pub use mailbox::{Kept, Mailbox, SendError, Sender};
pub use memory::MemoryDevice;
pub use outbox::Outbox;
pub use passthrough::PassthroughDevice;
pub use poll::{POLL_CPU_MAX_PERMILLE, PollStats, PollTally, Poller, Polling};
pub use queues::{Doubt, QueueDevice};
pub use sys::os::{now_ns, raise_open_files};
pub use thread::{Handle, spawn, spawn_with};

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

/// A block device in this process or below it.
#[derive(Clone, Debug)]
pub enum Device {
    /// Bytes in memory (shared between cores).
    Memory(Arc<MemoryDevice>),
    /// Swallows writes, reads zeroes. For measuring.
    Null,
    /// A file or block device.
    File(Arc<FileDevice>),
    /// A namespace of a controller that the kernel drives.
    Passthrough(Arc<PassthroughDevice>),
    /// A namespace of a queue server.
    Queue(Arc<QueueDevice>),
}

/// Stands for an address that is not known yet: a connection that is opened there ends at once with
/// EDESTADDRREQ.
pub const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// How to run one reactor.
pub struct ReactorConfig {
    /// Thread name.
    pub name: String,
    /// Pin to this CPU.
    pub cpu: Option<usize>,
    /// How it waits.
    pub polling: Polling,
    /// Arena bytes (address space; memory is used as it is touched).
    pub arena_bytes: u64,
    /// Most connections from one address, to all reactors with this limit; `None`: no bound but the
    /// machine's.
    pub per_peer_max: Option<PeerLimit>,
    /// Addresses that `Output::Open` refers to; [`NOWHERE`]: not known yet.
    pub addresses: Vec<SocketAddr>,
    /// Listeners, already bound.
    pub listeners: Vec<TcpListener>,
    /// Devices by number.
    pub devices: Vec<Device>,
}

/// Counters of a reactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReactorStats {
    /// Loop turns.
    pub turns: u64,
    /// io_uring_enter calls.
    pub enters: u64,
    /// Times it slept and was woken.
    pub wakeups: u64,
    /// Receive operations that ended.
    pub receives: u64,
    /// Send operations that ended.
    pub sends: u64,
    /// Payload bytes copied from the receive buffers.
    pub bytes_copied_in: u64,
    /// Payload bytes received directly into place.
    pub bytes_direct_in: u64,
    /// Payload bytes copied into the send buffers.
    pub bytes_copied_out: u64,
    /// Payload bytes sent from where they lie.
    pub bytes_direct_out: u64,
}
