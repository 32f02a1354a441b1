//! All limits of this crate.

/// Most legs of one mirror.
pub const LEGS_MAX: usize = 16;
/// Writers of a mirror whose order its legs remember: so many assemblies may pass while a leg is
/// away, and it is still known that it only stayed behind.
pub const LINEAGES_MAX: usize = 16;
/// Most regions of a mirror: 2 MiB of bitmap in memory.
pub const REGIONS_MAX: u64 = 1 << 24;
