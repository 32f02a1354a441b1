//! The kernel's edge: the only room with `unsafe`, and a safe face in front of it.
//!
//! * [`Ring`]: an io_uring instance with everything the kernel may touch on its behalf
//! * [`Arena`]: one core's payload memory; knows which pages the kernel is using
//! * [`Message`]: what one send operation sends: staged bytes and arena ranges in any order
//! * [`Buffer`]: bytes that arrived, in memory lent by the ring
//! * [`Stripe`]: memory shared between cores, one owner at a time
//! * [`Lease`]: a part of an arena on a thread that makes blocking system calls with it
//! * [`Shared`]: memory that another, perhaps hostile process uses too; [`fault`]: its SIGBUS
//! * [`nvme`]: what the kernel's NVMe driver answers at once
//! * [`passing`]: descriptors over Unix sockets; [`Interrupt`]: an eventfd that never makes us wait
//! * [`CountingAllocator`]: shows that nothing is allocated per I/O
//! * [`ublk`]: block devices of the kernel that this process serves
//! * [`startup`]: whether there is standard output
//! * [`freeze`]: points at which a test build stops itself or dies
//! * [`os`]: clock, pinning, limits, sockets, wake-ups
//!
//! # Contract
//! Safe code can't cause a data race or a use after free through this crate, whatever it calls in
//! whatever order. Two rules do it: memory that an operation uses is owned by the ring, or locked
//! in the arena, until the kernel has said that the operation is over; and when that can't be
//! waited for (a ring dropped while an operation won't end), the memory is leaked rather than
//! freed.
mod allocator;
mod arena;
mod error;
pub mod fault;
pub mod freeze;
mod interrupt;
mod lease;
mod mapping;
mod message;
pub mod nvme;
pub mod os;
pub mod passing;
mod pool;
mod ring;
mod shared;
pub mod startup;
pub mod ublk;

pub use allocator::CountingAllocator;
pub use arena::{Arena, Extent};
pub use error::Error;
pub use interrupt::Interrupt;
pub use lease::Lease;
pub use mapping::{Stripe, stripes};
pub use message::Message;
pub use pool::Buffer;
pub use ring::{
    Allocate, COMMANDS_MAX, CommandData, Completion, Fd, LATE, NvmeCommand, OpId, Reaping,
    Returned, Ring, RingConfig, Wait, WriteHow, probe_commands,
};
pub use rustix::io::Errno;
pub use shared::{Shared, memory_file};
