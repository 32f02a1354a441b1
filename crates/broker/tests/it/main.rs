//! A broker and its clients in one process. `descriptors` changes a limit of its process, and
//! `deaths` counts what its process holds, so each is a program of its own.
#![allow(clippy::unwrap_used, reason = "tests")]

mod allocations;
#[path = "../common/mod.rs"]
mod common;
mod corpus;
mod example;
mod hostile;
mod lengths;
mod lists;
mod losses;
mod opcodes;
mod pressure;
mod room;
mod serve;
mod storage;

/// Counts by thread, for [`allocations`].
#[global_allocator]
static ALLOCATOR: sys::CountingAllocator = sys::CountingAllocator;
