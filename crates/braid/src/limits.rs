//! All limits of this crate.
pub use ::load::limits::ARENA_BYTES_MAX;
pub use terminal::limits::TEXT_BYTES_MAX;

/// Most cores that one program drives (`--cores`).
pub const CORES_MAX: usize = 256;
/// Addresses of one name that are tried.
pub const ADDRESSES_TRIED_MAX: usize = 16;
/// Lines of the log that may wait to be written; more are dropped.
pub const LINES_MAX: usize = 1024;
/// How long the end of a service waits for lines of the log to be taken.
pub const LOG_END_WAIT: std::time::Duration = std::time::Duration::from_secs(1);
