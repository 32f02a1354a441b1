//! A broker and its clients in one process. `allocations`, `descriptors` and `deaths` count what
//! belongs to a process, so each is a program of its own.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod engine;
mod example;
mod hostile;
mod lengths;
mod lists;
mod losses;
mod opcodes;
mod pressure;
mod serve;
mod volume;
