//! All limits of this crate.

/// Most paths of one volume.
pub const PATHS_MAX: usize = 64;

/// Most state of one path on one core, bytes, of all policies together and with size buckets (row
/// A13); held at compile time.
pub const PATH_STATE_BYTES_MAX: usize = 2048;

/// Size buckets of weighted-latency (row A12): below 32 KiB, five of twice the size each, and from
/// 1 MiB on.
pub const BUCKETS: usize = 7;

/// First size that is not in the first bucket.
pub const FIRST_BUCKET_BYTES: u64 = 32 << 10;

/// Size buckets × I/O groups.
pub const CELLS: usize = BUCKETS * 3;

/// Largest `ewma_shift`: at 9 a new mean would move the smoothed latency by less than 0.2 % (row
/// A8).
pub const EWMA_SHIFT_MAX: u8 = 8;

/// Longest `weight_timeout`: 32 bits of seconds (row A8).
pub const WEIGHT_TIMEOUT_NS_MAX: u64 = u32::MAX as u64 * 1_000_000_000;

/// Longest latency that is a sample; a longer one is a stall, and counted as ignored (row A2).
pub const SAMPLE_NS_MAX: u64 = 1_000_000_000;

/// At most one warning about ignored samples in this time, per selector.
pub const WARNING_INTERVAL_NS: u64 = 5_000_000_000;

/// The weights of all paths are shares of this (row A5).
pub const WEIGHT_WHOLE: u64 = 64;

/// `round-robin:<bytes>` is a multiple of this, the smallest block, and of the volume's blocks (row
/// B2).
pub const ROUND_ROBIN_UNIT: u64 = 512;

/// Largest relative throughput of a path, for `service-time`.
pub const THROUGHPUT_MAX: u8 = 100;

/// `latency` drops the measurement of a path after this time without a new one.
pub const RECENT_NS: u64 = 250_000_000;
