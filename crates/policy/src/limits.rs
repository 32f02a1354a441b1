//! All limits of this crate.

/// Most paths of one volume.
pub const PATHS_MAX: usize = 64;

/// Most state of one path on one core, bytes; held at compile time.
pub const PATH_STATE_BYTES_MAX: usize = 512;

/// Largest `ewma_shift`: at 9 a new mean would move the smoothed latency by less than 0.2 % (row
/// A8).
pub const EWMA_SHIFT_MAX: u8 = 8;

/// Longest `weight_timeout` (row A8).
pub const WEIGHT_TIMEOUT_NS_MAX: u64 = 3600 * 1_000_000_000;

/// Longest latency that is a sample; what is longer is a stall, and counted as ignored (row A2).
pub const SAMPLE_NS_MAX: u64 = 1_000_000_000;

/// At most one warning about ignored samples in this time, per selector.
pub const WARNING_INTERVAL_NS: u64 = 5_000_000_000;

/// The weights of all paths are shares of this (row A5).
pub const WEIGHT_WHOLE: u64 = 64;

/// `round-robin:<bytes>` is a multiple of this, the smallest sector (row B2).
pub const ROUND_ROBIN_UNIT: u64 = 512;
