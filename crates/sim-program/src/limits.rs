//! All limits of this crate.

/// Variants of one scenario.
pub const VARIANTS_MAX: usize = 64;
