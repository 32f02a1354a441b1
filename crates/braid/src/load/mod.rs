//! The load generator: makes I/Os in fio's words on one or several cores, measures them, checks data.
//!
//! * [`sizes`], [`pattern`], [`pace`]: which I/O comes next, and when
//! * [`verify`]: data that can be checked
//! * [`stats`]: what was measured
pub mod job;
pub mod pace;
pub mod pattern;
pub mod sizes;
pub mod stats;
pub mod verify;
pub mod worker;
