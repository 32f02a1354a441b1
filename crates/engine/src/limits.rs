//! All limits of this crate.

/// Most bytes one buffer may have (and so the largest single transfer).
pub const BUFFER_MAX: u32 = 1 << 20;
