//! The load generator: makes I/Os in fio's words, measures them, checks data.
//!
//! * [`words`]: the user's words, and from them the task of each core
//! * [`worker`]: the I/Os of one core, over any [`worker::Device`]
//! * [`job`], [`pattern`], [`sizes`], [`pace`]: which I/O comes next, and when
//! * [`verify`]: data that can be checked
//! * [`stats`]: what was measured
//!
//! * [`host`], [`machine`]: volumes under load, and their cores; [`progress`]: shown meanwhile
//! * [`mod@bench`], [`mod@demo`], [`queue`]: the verbs
#![forbid(unsafe_code)]

pub mod bench;
pub mod demo;
mod facts;
pub mod host;
pub mod job;
pub mod limits;
pub mod machine;
pub mod pace;
pub mod pattern;
pub mod progress;
pub mod queue;
pub mod sizes;
pub mod stats;
pub mod verify;
pub mod words;
pub mod worker;
