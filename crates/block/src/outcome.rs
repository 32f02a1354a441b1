//! Outcome of an I/O, free of any protocol's codes.
/// Outcome of an I/O on a path, free of NVMe codes (the engine maps them).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Done.
    Done,
    /// The path failed; another path to the same namespace may do it.
    PathError,
    /// The data can't be read or is damaged; another *copy* may have it.
    MediaError,
    /// The file behind it became shorter than it was: what lay there is lost, and nothing is
    /// written there any more.
    CutShort,
    /// Its controller destroys all data (a sanitize operation), or has failed to: nothing that was
    /// there counts.
    Erased,
    /// Not now; the same path may do it after `after_ns`.
    Busy {
        /// Wait at least so long.
        after_ns: u64,
    },
    /// Out of space.
    NoSpace,
    /// Write protected.
    ReadOnly,
    /// The host lacks the right.
    Denied,
    /// Compare found a difference.
    Mismatch,
    /// Refused by a reservation; never fails over (T35).
    Reservation,
    /// Not supported by the path.
    Unsupported,
    /// The request itself was wrong.
    Invalid,
    /// It lies beyond the end of the namespace, which was larger once.
    PastEnd,
    /// No answer within the I/O time-out.
    TimedOut,
    /// It had not ended when the engine's time to drain was over.
    Stopped,
}

impl Outcome {
    /// Whether the I/O was done; only then is its latency a sample (T43).
    pub fn is_done(self) -> bool {
        self == Self::Done
    }

    /// Whether another *path* to the same namespace may do what this one couldn't (T2).
    pub fn is_path_error(self) -> bool {
        matches!(self, Self::PathError | Self::TimedOut)
    }

    /// Whether a path answered with an error of what is behind it: no other path is better, and its
    /// owner should know. Not what depends on the caller: a compare, a reservation, a command or a
    /// range that does not exist.
    pub fn is_device_error(self) -> bool {
        matches!(
            self,
            Self::MediaError
                | Self::CutShort
                | Self::Erased
                | Self::Busy { .. }
                | Self::NoSpace
                | Self::ReadOnly
                | Self::Denied
                | Self::Invalid
        )
    }
}

impl core::fmt::Display for Outcome {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::PathError => "the path failed",
            Self::MediaError => "the data can't be read or written",
            Self::CutShort => "its file was cut short, and what lay behind its end is lost",
            Self::Erased => "its controller destroys all data, or has failed to (sanitize)",
            Self::Busy { .. } => "busy",
            Self::NoSpace => "out of space",
            Self::ReadOnly => "write protected",
            Self::Denied => "access denied",
            Self::Mismatch => "the compared data differ",
            Self::Reservation => "reserved by another host",
            Self::Unsupported => "not supported by the path",
            Self::Invalid => "the request was wrong",
            Self::PastEnd => "beyond the end of the namespace",
            Self::TimedOut => "no answer in time",
            Self::Stopped => "the engine stopped before it was done",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Outcome;

    #[test]
    fn t02_only_path_errors_and_time_outs_may_move() {
        for (outcome, moves) in [
            (Outcome::Done, false),
            (Outcome::PathError, true),
            (Outcome::MediaError, false),
            (Outcome::CutShort, false),
            (Outcome::Erased, false),
            (Outcome::Busy { after_ns: 1 }, false),
            (Outcome::NoSpace, false),
            (Outcome::ReadOnly, false),
            (Outcome::Denied, false),
            (Outcome::Mismatch, false),
            (Outcome::Reservation, false),
            (Outcome::Stopped, false),
            (Outcome::Unsupported, false),
            (Outcome::Invalid, false),
            (Outcome::PastEnd, false),
            (Outcome::TimedOut, true),
        ] {
            assert_eq!(outcome.is_path_error(), moves, "{outcome}");
        }
    }

    #[test]
    fn data_destroyed_by_sanitize_is_a_device_error() {
        assert!(Outcome::Erased.is_device_error());
    }
}
