//! All limits of this crate, and those that several programs share.

/// Most cores that one program drives (`--cores`).
pub const CORES_MAX: usize = 64;
/// Addresses of one name that are tried.
pub const ADDRESSES_TRIED_MAX: usize = 16;
/// Most bytes of buffers on one core: of a load, outstanding I/Os times the largest block size; of
/// a target or an engine, its `buffers`. More than any of them can have in flight, and the books
/// over it, 0.5 % of it, are memory at once.
pub const ARENA_BYTES_MAX: u64 = 8 << 30;
