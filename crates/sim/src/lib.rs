//! A world in virtual time in which the policies of [`policy`] can be compared.
//!
//! [`run`] takes a [`Plan`] (links, devices, hosts, jobs, events), a [`Way`] of choosing paths and
//! a seed, lets it all happen, and returns what came of it ([`Tally`]). The policies are the very
//! code that braid runs; the queues of links and controllers are the very code with which a target
//! shapes its ports (crate `shape`).
//!
//! # Contract
//! Integers only, no clock: the same plan, way and seed give the same tally on every machine. Each
//! thing has a random sequence of its own, so two policies meet the same luck.
//!
//! # Limits
//! All in [`limits`]. Not modelled: merging of requests, TCP, and caches of drives except
//! read-ahead.
#![no_std]
#![forbid(unsafe_code)]
#[macro_use]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod bound;
pub mod chaos;
mod cpu;
mod disk;
mod draw;
pub mod limits;
mod needs;
mod plan;
mod queue;
mod rule;
mod tally;
mod world;

pub use needs::{Needs, needs};
pub use plan::*;
pub use tally::{Latencies, Tally};
pub use world::{run, run_with};

#[cfg(test)]
mod tests;
