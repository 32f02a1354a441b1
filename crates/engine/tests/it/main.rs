//! The engine's machines with peers and a network in virtual time. One program, since each one more
//! is compiled, linked and run by itself; allocations are counted by thread, so that tests beside
//! one another don't disturb the count.
#![allow(clippy::unwrap_used, reason = "tests")]
mod common;
mod corpus;
mod discovery;
mod export;
mod host;
mod host_alloc;
mod matrix;
mod mirror;
mod nvme_server;
mod queue_server;
mod target_cost;
mod target_hand;
mod targets;
mod ublk_server;
