//! All limits of the target verb.

/// Longest delay, service time or stall that may be asked for: an hour.
pub const WAIT_NS_MAX: u64 = 3_600_000_000_000;
/// How often the log is written at most.
pub const LOG_PERIOD: std::time::Duration = std::time::Duration::from_millis(250);
/// Most lines about connections that are written each time; the rest is counted.
pub const LOG_LINES_MAX: usize = 16;
/// How often a port that is in use is tried again, and the pause before: a second in all.
pub const BIND_TRIES: u32 = 50;
/// See [`BIND_TRIES`].
pub const BIND_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);
/// Longest command quiesce time that can be reported, ms.
pub const CQT_MS_MAX: u64 = u16::MAX as u64;
/// How long a local file or a block device may take for what it was given: 5 s, longer than a
/// disk's own error recovery usually takes, as hosts assume of a controller that reports nothing.
pub const FILE_QUIESCE_NS: u64 = 5_000_000_000;
/// The same of memory: a turn of the reactor, on a busy machine. All hosts are served by one
/// thread, so that an older change never overtakes a newer one, however long a turn takes.
pub const MEMORY_QUIESCE_NS: u64 = 100_000_000;
/// Bounds of a namespace's volatile cache, bytes: a piece, and what a test may take of memory.
pub const VOLATILE_CACHE_MIN: u64 = 4 << 10;
/// The same.
pub const VOLATILE_CACHE_MAX: u64 = 1 << 30;
