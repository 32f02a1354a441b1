//! Loads over real paths: cores that each have an engine of the host with a [`worker`] on top.
//!
//! * [`host`]: the controlling thread: starts the cores, waits, adds up
//! * [`machine`]: one core: the host's engine with a [`worker`] on top
//! * [`board`]: what the cores tell each other
//!
//! The load itself is the crate `braid-load`.
pub mod board;
pub mod host;
pub mod machine;

pub use ::load::{job, pattern, sizes, stats, words, worker};
