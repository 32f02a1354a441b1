//! All limits of this crate.

/// Most paths of one volume.
pub const PATHS_MAX: usize = 64;
