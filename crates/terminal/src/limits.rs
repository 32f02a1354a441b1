//! All limits of this crate, and those that braid's programs share.

/// Largest file of text that is read whole (configuration, scenario, state), bytes.
pub const TEXT_BYTES_MAX: u64 = 1 << 20;
/// Most threads that run worlds; more than a machine has processors only cost memory.
pub const THREADS_MAX: usize = 256;
/// Stack of a program's first work, bytes: what systems give by default.
pub const STACK_BYTES: usize = 8 << 20;
/// Lines of the log that may wait to be written; more are dropped.
pub const LINES_MAX: usize = 1024;
/// How long the end of a service waits for lines of the log to be taken.
pub const LOG_END_WAIT: std::time::Duration = std::time::Duration::from_secs(1);
