//! All limits of this crate.

/// Highest bandwidth that is modelled, bytes per second; a higher one counts as this. Keeps a
/// command's length × 10⁹ plus the remainder within 64 bits.
pub const BYTES_PER_S_MAX: u64 = 1 << 62;
