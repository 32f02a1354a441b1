//! What serves until it is told to end, as processes: `braid run` with volumes and mirrors,
//! `braid target`, and servers of hardware queues. One program, since each one more is compiled
//! and run by itself.
#![allow(clippy::unwrap_used, reason = "tests")]

mod discovery;
mod explain;
mod extents;
mod faults;
#[path = "../shared/hangfs.rs"]
mod hangfs;
mod hung;
mod knobs;
mod mirror;
mod names;
mod nbd;
mod no_io_uring;
mod places;
mod process;
mod queue;
mod read_only;
mod reload;
mod service_manager;
mod sockets;
mod target;
#[path = "../shared/tmpfs.rs"]
mod tmpfs;
mod volumes;
