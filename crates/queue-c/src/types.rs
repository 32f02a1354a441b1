//! Types that C and the library exchange.
use std::ffi::c_void;

/// Parameters of a queue; all zero is a user_poll queue of 128 entries without data memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct braid_queue_options {
    /// 0: user_poll, 1: user_irq.
    pub kind: u32,
    /// Entries, 2 to 4096; one less can be in flight. 0: 128.
    pub entries: u32,
    /// Data memory that the server makes, bytes; 0: none.
    pub data_bytes: u64,
    /// Completions before an interrupt, while further commands are under way; 0: each.
    pub coalesce_completions: u32,
    /// Microseconds after the first of them at the latest.
    pub coalesce_us: u32,
    /// Data pointers: 0 as it fits, 1 PRP lists, 2 SGLs.
    pub pointers: u32,
}

/// Properties of a namespace.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct braid_namespace {
    /// Blocks.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// 1: changes are refused.
    pub read_only: u32,
}

/// Memory that commands may use.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct braid_memory {
    /// Where it lies in this process.
    pub data: *mut c_void,
    /// Bytes.
    pub len: u64,
    /// Its address in data pointers.
    pub address: u64,
}

/// A part of registered memory, by its address in data pointers.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct braid_piece {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub len: u32,
}

/// Blocks to deallocate.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct braid_range {
    /// First block.
    pub slba: u64,
    /// Blocks.
    pub blocks: u32,
}

/// A command that has ended.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct braid_done {
    /// As given with the command.
    pub token: u64,
    /// DW0 and DW1 of the completion.
    pub result: u64,
    /// Status as of NVMe, without the phase tag; 0: done.
    pub status: u16,
}

/// Properties of a queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct braid_queue_facts {
    /// Its number, as `braid queue list` has it.
    pub number: u32,
    /// 0: user_poll, 1: user_irq.
    pub kind: u32,
    /// Most commands in flight.
    pub depth: u32,
    /// Commands in flight, those that were not submitted yet among them.
    pub in_flight: u32,
    /// Largest transfer of one command, bytes.
    pub transfer_max: u32,
    /// Namespaces of the server: their numbers are 1 to this.
    pub namespaces: u32,
}

/// Counters of a queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct braid_counts {
    /// Looks at the completion queue, one for each entry that was looked at; those of
    /// braid_queue_wait and braid_queue_arm that found nothing among them.
    pub polls: u64,
    /// Of these, those that found nothing.
    pub empty_polls: u64,
    /// System calls: kicks, waits and what belongs to them.
    pub calls: u64,
}
