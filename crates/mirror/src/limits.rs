//! All limits of this crate.

/// Most legs of one mirror.
pub const LEGS_MAX: usize = 16;
/// Lineages in a superblock's history: so many assemblies may pass while a leg is missing until it
/// can't be told any more that it has only fallen behind.
pub const LINEAGES_MAX: usize = 16;
/// Most regions of a mirror: 2 MiB of bitmap in memory.
pub const REGIONS_MAX: u64 = 1 << 24;
