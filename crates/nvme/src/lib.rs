//! What the NVMe specifications say, as machines without a socket or clock.
//!
//! * [`wire`]: the structures on the wire, as accessors over bytes with a plain parsed form
//! * [`host`]: the initiator's machines: admin connection and I/O queue
//! * [`controller`]: the target's machine: a whole subsystem with its connections
//! * [`queue`]: submission and completion queues in shared memory, both ends
//! * [`Deadlines`]: the earliest of many
//!
//! Payload (the users' blocks) never enters this crate: machines say where it goes ([`Placement`])
//! and what is to be sent ([`Transmit`]); the driver moves and checksums the bytes ([`crc32c`]).
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
