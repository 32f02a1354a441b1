//! All limits of this crate.

/// Most I/Os under way in a world; what would be more waits for its turn, and is counted.
pub const IN_FLIGHT_MAX: usize = 1 << 16;

/// Most paths of a world.
pub const PATHS_MAX: usize = 16;

/// Most hosts, and most CPUs of one.
pub const HOSTS_MAX: usize = 8;
/// See [`HOSTS_MAX`].
pub const CPUS_MAX: usize = 64;

/// Kinds of jobs, and jobs of one kind.
pub const JOBS_MAX: usize = 4096;
/// Sizes of one kind of job.
pub const SIZES_MAX: usize = 64;
/// I/Os that all jobs want to keep in flight.
pub const DEPTH_MAX: usize = 1 << 20;
/// Events of a world.
pub const EVENTS_MAX: usize = 4096;
/// Longest time in a plan, a simulated hour: sums of such times stay far from the end of the clock.
pub const TIME_NS_MAX: u64 = 3_600_000_000_000;
/// Highest pace of a job, I/Os per second: time goes on between two.
pub const IOPS_MAX: u64 = 10_000_000;
/// Largest range of addresses, bytes, and highest rate, bytes per second.
pub const BYTES_MAX: u64 = 1 << 60;

/// Width of one point of a series.
pub const SERIES_NS: u64 = 10_000_000;

/// Commands a disk looks at for the nearest one, as native command queuing does.
pub const DISK_QUEUE: usize = 32;
/// A command of this age is the disk's next, wherever it lies.
pub const DISK_AGE_NS: u64 = 300_000_000;
/// How far a disk reads ahead, and for how many places.
pub const DISK_AHEAD: u64 = 2 << 20;
/// See [`DISK_AHEAD`].
pub const DISK_SEGMENTS: usize = 16;
