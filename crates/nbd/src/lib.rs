//! The NBD protocol as state machines without a socket or clock.
//!
//! * [`server`]: one client's connection as the server sees it
//! * [`client`]: one connection as the client sees it
//! * [`wire`]: the structures on the wire
//!
//! Payload (the users' blocks) never enters this crate: the machines name the place of received
//! bytes ([`Placement`]) and the bytes to send ([`Transmit`]); the driver moves them.
//!
//! # Origin
//! The protocol's own text, `doc/proto.md` of the reference implementation; comments name its
//! sections. Not implemented: TLS (refused by policy), extended headers (answered as unknown), the
//! oldstyle handshake, resize.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod client;
mod errno;
mod export;
pub mod limits;
mod request;
pub mod server;
mod shape;
mod transfer;
pub mod wire;

pub use errno::Errno;
pub use export::{BlockSizes, Export, ExportError, Exports, Features};
pub use request::{Extent, Kind, Request};
pub use transfer::{Placement, Transmit, TxPayload};
