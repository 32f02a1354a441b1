//! All limits of this crate.

/// Most regions of memory that a queue has, the one for lists among them.
pub const REGIONS_MAX: usize = 16;
/// log2 of the distance of two regions' addresses, and so of the largest one.
pub const REGION_SHIFT: u32 = 40;
/// Largest transfer that a broker takes, bytes: its PRP list fits one page.
pub const TRANSFER_MAX: u32 = 1 << 20;
/// Longest text behind an answer, bytes: the list of as many queues as a broker can have.
pub const TEXT_MAX: usize = 4 << 20;
/// The largest error number that Linux has.
pub const ERRNO_MAX: i32 = 4095;
/// How long a broker may take for an answer on its socket, ms.
pub const ANSWER_MS: i32 = 10_000;
/// How often a broker is tried that takes no connections now, ms.
pub const CONNECT_PAUSE_MS: u64 = 10;
