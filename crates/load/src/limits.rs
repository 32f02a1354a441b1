//! All limits of this crate.

/// Largest single I/O that a load asks for: what the engine takes as one.
pub const BLOCK_MAX: u32 = engine::limits::IO_BYTES_MAX;
/// Entries of a block size mix (`--bssplit`).
pub const SIZES_MAX: usize = 64;
/// Failures of one load that are described; the rest is only counted.
pub const FAILURES_DESCRIBED: usize = 5;
/// Longest latency that a histogram tells apart, ns; longer ones count as this.
pub const LATENCY_NS_MAX: u64 = 120_000_000_000;
/// Most bytes of buffers on one core: of a load, outstanding I/Os times the largest block size; of
/// a target or an engine, its `buffers`. More than any of them can have in flight, and the books
/// over it, 0.5 % of it, are memory at once.
pub const ARENA_BYTES_MAX: u64 = 8 << 30;
/// Most outstanding I/Os of one job (`--iodepth`).
pub const IODEPTH_MAX: u32 = 65_535;
/// Most jobs of one load (`--numjobs`).
pub const JOBS_MAX: u32 = 1_024;
/// Most blocks that `--verify` keeps a sequence number of, 4 bytes each, over all jobs.
pub const VERIFY_BLOCKS_MAX: u64 = 1 << 26;
