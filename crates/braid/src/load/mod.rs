//! The load generator: makes I/Os in fio's words on one or several cores, measures them, checks
//! data.
//!
//! * [`words`]: what the user asked for, and the task of each core
//! * [`host`]: the controlling thread: starts the cores, waits, adds up
//! * [`machine`]: one core: the host's engine with a [`worker`] on top
//! * [`board`]: what the cores tell each other
//! * [`job`], [`pattern`], [`sizes`], [`pace`]: which I/O comes next, and when
//! * [`verify`]: data that can be checked
//! * [`stats`]: what was measured
pub mod board;
pub mod host;
pub mod job;
pub mod machine;
pub mod pace;
pub mod pattern;
pub mod sizes;
pub mod stats;
pub mod verify;
pub mod words;
pub mod worker;
