//! Brokers with a client that writes to everything it shares, lies, and goes; beside an honest one.
//!
//! * `room`: one thread, turn by turn, in the order of the input
//! * `threads`: the whole broker, as the machine's threads meet
#[path = "../tape.rs"]
#[allow(dead_code, reason = "for other bodies")]
mod tape;

mod attacker;
pub mod room;
pub mod seeds;
pub mod threads;

use broker::local::LocalNamespace;
use runtime::{Device, FileDevice, MemoryDevice};
use rustix::fs::FallocateFlags;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// A body.
pub type Body = fn(&[u8]);

/// Every target by the name of its corpus.
pub const TARGETS: [(&str, Body); 2] = [("broker", room::run), ("broker_threads", threads::run)];

/// The namespace of the honest client.
const HONEST: u32 = 5;
const BLOCKS: u64 = 64;

/// Storage of namespaces.
struct Stores {
    memory: [Arc<MemoryDevice>; 3],
    file: OwnedFd,
    /// Of a room: what the file holds.
    disk: Arc<MemoryDevice>,
}

impl Stores {
    fn new() -> Self {
        let memory = || Arc::new(MemoryDevice::new(BLOCKS << 12).expect("memory"));
        Self {
            memory: [memory(), memory(), memory()],
            file: sys::memory_file("braid-fuzz", BLOCKS << 12).expect("a memory file"),
            disk: memory(),
        }
    }

    /// NSID 1: memory; 2: nothing; 3: a file; 4: memory that is read-only; 5: the honest client's.
    fn namespaces(&self) -> Vec<LocalNamespace> {
        let namespace = |device: Device, read_only| LocalNamespace {
            device,
            block_shift: 12,
            blocks: BLOCKS,
            read_only,
        };
        let memory = |at: usize| Device::Memory(Arc::clone(&self.memory[at]));
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let file = FileDevice::open(path.into(), false, Some(BLOCKS << 12));
        let file = file.expect("a file in memory");
        vec![
            namespace(memory(0), false),
            namespace(Device::Null, false),
            namespace(Device::File(Arc::new(file)), false),
            namespace(memory(1), true),
            namespace(memory(2), false),
        ]
    }

    /// All zeroes again.
    fn clear(&self) {
        let bytes = BLOCKS << 12;
        let memory = self.memory.iter().chain([&self.disk]);
        memory.for_each(|it| it.discard(0, bytes));
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, hole, 0, bytes).expect("a file in memory");
    }
}
