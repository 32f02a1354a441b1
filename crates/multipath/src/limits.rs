//! All limits of this crate.

/// Most paths of one volume.
pub const PATHS_MAX: usize = policy::limits::PATHS_MAX;
