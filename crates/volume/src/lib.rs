//! What a device is: the head over paths to one namespace, its limits and identity.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

/// What became of an I/O on a path, free of NVMe codes (the engine maps them).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Done.
    Done,
    /// The path failed; another path to the same namespace may do it.
    PathError,
    /// The data can't be read or is damaged; another *copy* may have it.
    MediaError,
    /// Not now; the same path may do it after `after_ns`.
    Busy {
        /// Wait at least so long.
        after_ns: u64,
    },
    /// Out of space.
    NoSpace,
    /// Write protected.
    ReadOnly,
    /// Compare found a difference.
    Mismatch,
    /// Refused by a reservation; never fails over (T35).
    Reservation,
    /// Not supported by the path.
    Unsupported,
    /// The request itself was wrong.
    Invalid,
    /// No answer within the I/O time-out.
    TimedOut,
}
