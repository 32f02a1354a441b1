//! A reactor with real sockets and files. `descriptors` changes a limit of its process, so it is a
//! program of its own.
#![allow(clippy::unwrap_used, missing_docs)]
mod allocations;
mod connections;
mod devices;
mod echo;
mod echo_machine;
mod receiving;
mod recorder;
mod sending;
mod threads;

/// Counts by thread, for [`allocations`].
#[global_allocator]
static ALLOCATOR: sys::CountingAllocator = sys::CountingAllocator;
