//! Meaning of a status: asked of the code that acts by it, put into words.
//!
//! # Contract
//! Nothing is decided here. The class is `nvme`'s, the outcome and the client's error `engine`'s,
//! what a head and a mirror do `volume`'s; an engine with default knobs does just that.
use engine::export::errno;
use engine::host::{Recovery, outcome};
use mirror::{Access, LegAttempt, LegDisposition, dispose_leg};
use multipath::{Attempt, Disposition, Outcome, dispose};
use nbd::{Errno, Kind};
use nvme::wire::Status;
use nvme::wire::status::Class;

/// Consequences of a status with or without Do Not Retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// Class of the answer.
    pub class: Class,
    /// Its outcome for a volume.
    pub outcome: Outcome,
    /// At first, with another path there.
    pub head: Disposition,
    /// How often the same path is tried again.
    pub repeats: u8,
    /// When it was tried so often.
    pub then: Disposition,
    /// Whether it counts against the health of its path: at first, and when it was tried so often.
    pub blames: [bool; 2],
    /// Error for the client if it ends so: of a read, of a change.
    pub errno: [Option<Errno>; 2],
    /// A leg read, changed, flushed, with another copy there.
    pub mirror: [LegDisposition; 3],
}

impl Meaning {
    /// Meaning of `status`.
    pub fn of(status: Status) -> Self {
        let usual = Recovery::default();
        let after = |retries| {
            let attempt = Attempt {
                uncertain: false,
                hops: 0,
                hops_max: 1,
                paths: 2,
                retries,
                retries_max: usual.retries_max,
                left_ns: usual.attempts_ns,
                patient: false,
            };
            dispose(outcome(status, &[0; 3], retries), &attempt)
        };
        let again = |retries: &u8| matches!(after(*retries), Disposition::Retry { .. });
        let repeats = (0..u8::MAX).take_while(again).count() as u8;
        // An answer that is read again isn't the path's fault (T26): the engine doesn't count it.
        let class = status.class();
        let exempt = matches!(class, Class::Ana | Class::Namespace);
        let blames = |retries| !exempt && outcome(status, &[0; 3], retries).is_path_error();
        // So does what another path did after all repeats here.
        let refused = repeats > 0 && after(repeats) == Disposition::FailOver;
        let blames = [blames(0), blames(repeats) || refused];
        let outcome = outcome(status, &[0; 3], 0);
        let leg = |access| {
            let another = true;
            dispose_leg(outcome, &LegAttempt { access, another })
        };
        Self {
            class,
            outcome,
            head: after(0),
            repeats,
            then: after(repeats),
            blames,
            errno: [Kind::Read, Kind::Write].map(|kind| errno(outcome, kind)),
            mirror: [Access::Read, Access::Change, Access::Flush].map(leg),
        }
    }

    /// The client's error in a word: `EIO`, or `EINVAL (read), ENOSPC (write)`.
    pub fn errno_words(&self) -> String {
        match self.errno.map(errno_word) {
            [read, write] if read == write => read.into(),
            [read, write] => format!("{read} (read), {write} (write)"),
        }
    }

    /// Action of the head, in few words.
    pub fn head_words(&self) -> &'static str {
        match (self.head, self.then) {
            (Disposition::Complete, _) if self.outcome.is_done() => "done",
            (Disposition::Complete, _) => "error",
            (Disposition::FailOver, _) => "another path",
            (Disposition::Retry { .. }, Disposition::FailOver) => "again, then another path",
            (Disposition::Retry { .. }, _) => "again, then error",
            // Nothing that was answered is uncertain.
            (Disposition::Hold, _) => "held",
        }
    }

    /// Whether it counts against the health of its path, in a word.
    pub fn health_word(&self) -> &'static str {
        match self.blames {
            [true, _] => "counts",
            [false, true] => "later",
            [false, false] => "-",
        }
    }

    /// Data that must be read before the path is used again.
    pub fn reads_again(&self) -> Option<&'static str> {
        match self.class {
            Class::Ana => Some("the ANA log"),
            Class::Namespace => Some("its list of namespaces"),
            _ => None,
        }
    }
}

/// The protocol's name of an error; `-`: none.
pub fn errno_word(errno: Option<Errno>) -> &'static str {
    match errno {
        None => "-",
        Some(Errno::Perm) => "EPERM",
        Some(Errno::Io) => "EIO",
        Some(Errno::NoMem) => "ENOMEM",
        Some(Errno::Inval) => "EINVAL",
        Some(Errno::NoSpc) => "ENOSPC",
        Some(Errno::Overflow) => "EOVERFLOW",
        Some(Errno::NotSup) => "ENOTSUP",
        Some(Errno::Shutdown) => "ESHUTDOWN",
    }
}

/// Action of a mirror for a leg, in few words.
pub fn leg_words(leg: LegDisposition, outcome: Outcome) -> &'static str {
    match leg {
        LegDisposition::Complete if outcome.is_done() => "done",
        LegDisposition::Complete => "error",
        LegDisposition::Another { repair: false } => "another leg",
        LegDisposition::Another { repair: true } => "another leg, repair",
        LegDisposition::Record => "blocks recorded as bad",
        LegDisposition::Retire => "leg leaves",
    }
}

/// A class: its word, and what such a status says.
pub fn class_words(class: Class) -> (&'static str, &'static str) {
    match class {
        Class::Success => ("success", "done"),
        Class::Path => (
            "path",
            "the way to the data failed, not the data: another path may do it",
        ),
        Class::Ana => (
            "ana",
            "the state of the namespace's ANA group doesn't allow it on this path; the log is read \
             again before the path is used again",
        ),
        Class::Namespace => (
            "namespace",
            "this controller doesn't have the namespace (any more): another one may; what it has \
             is read again before the path is used again",
        ),
        Class::Transport => (
            "transport",
            "the transfer between host and controller failed; where that goes on, the path has \
             failed",
        ),
        Class::Retry => ("retry", "not now; the same may succeed later"),
        Class::Internal => (
            "internal",
            "the controller failed without saying at what, or says what no specification defines",
        ),
        Class::Media => (
            "media",
            "the data can't be read or written, or fail their protection check; every path leads \
             to the same data, another copy may have them",
        ),
        Class::Erased => (
            "erased",
            "a sanitize operation is destroying all data, or has failed to; another copy has them",
        ),
        Class::Compare => (
            "compare",
            "the data differ from what they were compared with",
        ),
        Class::Capacity => ("capacity", "no capacity is left"),
        Class::ReadOnly => ("read-only", "it is write protected"),
        Class::Denied => ("denied", "this host lacks the right"),
        Class::Reservation => (
            "reservation",
            "another host's reservation forbids it: that host asked everybody else to stop, on \
             every path and copy",
        ),
        Class::Unsupported => ("unsupported", "the controller doesn't offer that"),
        Class::Range => ("range", "it lies beyond the end of the namespace"),
        Class::Invalid => ("invalid", "the command was wrong, whoever gets it"),
    }
}

/// Commands that are answered so.
pub fn commands(status: Status) -> &'static str {
    match (status.sct(), status.sc()) {
        (0, 0x24) | (1, 0..=0x6f) => "admin commands",
        (0, 0x80..=0xbf) | (1, 0x80..=0xbf) | (2, _) => "I/O commands",
        (1, 0x70..=0x7f) => "directive commands",
        _ => "any command",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of the table for a few that differ in each way there is.
    #[test]
    fn what_follows_is_what_the_engine_does() {
        for (status, head, errno, mirror) in [
            (Status::SUCCESS, "done", "-", ["done"; 3]),
            (
                Status::UNRECOVERED_READ,
                "error",
                "EIO",
                [
                    "another leg, repair",
                    "blocks recorded as bad",
                    "leg leaves",
                ],
            ),
            (
                Status::ANA_TRANSITION,
                "another path",
                "EIO",
                ["another leg", "leg leaves", "leg leaves"],
            ),
            (
                Status::NAMESPACE_NOT_READY,
                "again, then another path",
                "EIO",
                ["another leg", "leg leaves", "leg leaves"],
            ),
            (Status::RESERVATION_CONFLICT, "error", "EPERM", ["error"; 3]),
            (
                Status::LBA_RANGE,
                "error",
                "EINVAL (read), ENOSPC (write)",
                ["another leg", "leg leaves", "leg leaves"],
            ),
        ] {
            let it = Meaning::of(status);
            assert_eq!((it.head_words(), it.errno_words().as_str()), (head, errno));
            assert_eq!(it.mirror.map(|leg| leg_words(leg, it.outcome)), mirror);
        }
    }

    /// Whatever a status says: no head repeats what Do Not Retry forbids, none moves what is of the
    /// data (T2), and nothing but success is done.
    #[test]
    fn t02_t03_every_status_is_disposed_of_as_its_class_says() {
        for value in 0..1 << 15 {
            let status = Status(value);
            let it = Meaning::of(status);
            let again = matches!(it.head, Disposition::Retry { .. });
            assert!(!(again && status.dnr()), "{status}");
            assert_eq!(it.head_words() == "done", status.is_success(), "{status}");
            let moves = [it.head, it.then].contains(&Disposition::FailOver);
            let stays = matches!(
                it.class,
                Class::Media
                    | Class::Erased
                    | Class::Compare
                    | Class::Capacity
                    | Class::ReadOnly
                    | Class::Denied
                    | Class::Reservation
                    | Class::Unsupported
                    | Class::Range
                    | Class::Invalid
            );
            assert!(!(moves && stays), "{status}");
        }
    }
}
