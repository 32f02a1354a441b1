//! The NVMe specifications as state machines without a socket or clock.
//!
//! * [`wire`]: the structures on the wire, as accessors over bytes with a plain parsed form
//! * [`host`]: the initiator's machines: admin connection and I/O queue
//! * [`controller`]: the target's machine: a whole subsystem with its connections
//! * [`queue`]: submission and completion queues in shared memory, both ends
//! * [`Deadlines`]: the earliest of many
//!
//! Payload (the users' blocks) never enters this crate: the machines name the place of received
//! bytes ([`Placement`]) and the bytes to send ([`Transmit`]); the driver moves and checksums them
//! ([`crc32c`]).
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod controller;
mod deadlines;
pub mod host;
pub mod limits;
pub mod queue;
mod transfer;
pub mod wire;

pub use deadlines::Deadlines;
pub use transfer::{Placement, Transmit, TxPayload};
pub use wire::crc::crc32c;
