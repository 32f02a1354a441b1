//! Errors of a queue, and their remedies.
use nvme::queue::pointer::PieceError;
use nvme::queue::{Full, Misbehaved};
use std::fmt;
use sys::Errno;

/// The first step of opening.
pub(crate) const CONNECT: &str = "connect to the broker's socket";

/// A queue can't be had, or can't go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The system refused.
    System {
        /// The step that failed.
        operation: &'static str,
        /// Why not.
        source: Errno,
    },
    /// The broker refused; its own words.
    Refused {
        /// The request.
        operation: &'static str,
        /// As of `errno`.
        errno: Errno,
        /// Why.
        text: String,
    },
    /// The broker has ended, or has given up this queue.
    Gone,
    /// A request on the socket was not answered, or not as it should have been: what comes next may
    /// be its answer, so nothing more is asked there. Commands go on.
    OutOfStep,
    /// The peer speaks another protocol, or another version of it.
    Protocol(&'static str),
    /// The controller wrote what can't be true.
    Misbehaved(Misbehaved),
    /// A completion of a command that is not in flight (T11).
    UnknownCommand {
        /// Its identifier.
        cid: u16,
    },
    /// Commands are in flight.
    Busy,
}

impl Error {
    /// The remedy, in parentheses behind a blank; empty where the error says so.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::System {
                source: Errno::TIMEDOUT,
                ..
            } => " (it hangs: see whether its process stands still)",
            // Before those of the socket: there may be none to connect.
            Self::System {
                source: Errno::MFILE | Errno::NFILE,
                ..
            } => " (raise the limit of open files, ulimit -n)",
            Self::System {
                operation: CONNECT,
                source: Errno::ACCESS | Errno::PERM,
            } => {
                " (its socket is for others: see --mode, --owner and --group of braid queue serve)"
            }
            Self::System {
                operation: CONNECT, ..
            } => " (start one with braid queue serve, or name another socket)",
            Self::Refused { errno, text, .. } => match *errno {
                Errno::BUSY if text.contains("--allow") => {
                    " (end other clients of this user, or raise its right)"
                }
                Errno::BUSY => " (end other clients, or serve more: --user-poll and --user-irq)",
                Errno::USERS => {
                    " (end what has them open; a user may have one for each of its \
                                 queues, and a few to look)"
                }
                Errno::ACCESS | Errno::PERM => " (see the rights that its --allow gives this user)",
                Errno::NOENT => " (see braid queue list for what it has)",
                _ => "",
            },
            Self::Gone => " (what it said when it ended tells why; start it again)",
            Self::OutOfStep => " (give this queue back, and open another one)",
            Self::Protocol(_) | Self::Misbehaved(_) | Self::UnknownCommand { .. } => {
                " (see what listens there, and of which version)"
            }
            Self::System { .. } | Self::Busy => "",
        }
    }

    /// The error of a connect to a socket without a listener.
    pub fn nobody_listens(&self) -> Option<Errno> {
        match *self {
            Self::System {
                operation: CONNECT,
                source: source @ (Errno::NOENT | Errno::CONNREFUSED),
            } => Some(source),
            _ => None,
        }
    }

    pub(crate) fn system(operation: &'static str, source: Errno) -> Self {
        match source {
            Errno::PIPE | Errno::CONNRESET => Self::Gone,
            source => Self::System { operation, source },
        }
    }
}

impl From<sys::Error> for Error {
    fn from(error: sys::Error) -> Self {
        Self::system(error.operation, error.source)
    }
}

impl From<Misbehaved> for Error {
    fn from(what: Misbehaved) -> Self {
        Self::Misbehaved(what)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System { operation, source } => write!(f, "{operation}: {source}"),
            Self::Refused {
                operation,
                errno,
                text,
            } => match text.trim() {
                "" => write!(f, "the broker refuses to {operation}: {errno}"),
                text => write!(f, "the broker refuses to {operation}: {text}"),
            },
            Self::Gone => f.write_str("the broker has ended or has given up this queue"),
            Self::OutOfStep => f.write_str(
                "the broker did not answer an earlier request on this queue's connection: nothing \
                 more is asked there",
            ),
            Self::Protocol(what) => write!(f, "what answers is no broker of this version: {what}"),
            Self::Misbehaved(what) => write!(f, "the broker misbehaves: {what}"),
            Self::UnknownCommand { cid } => {
                write!(
                    f,
                    "a completion of command {cid:#06x}, which is not in flight"
                )
            }
            Self::Busy => f.write_str("commands are in flight: reap them first"),
        }
    }
}

impl std::error::Error for Error {}

/// A command can't be put into the queue; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// As many commands as the queue takes are in flight: reap first. Not a failure (T6).
    Full,
    /// Pieces of memory that no data pointer can tell.
    Pieces(PieceError),
    /// No blocks, or more than a command can have; or no ranges, or more than 256.
    Count,
    /// The pieces have more bytes than the blocks, or fewer: the controller would use memory that
    /// is not the command's.
    Bytes {
        /// Of the blocks.
        blocks: u64,
        /// Of the pieces together.
        pieces: u64,
    },
}

impl From<Full> for SubmitError {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => Full.fmt(f),
            Self::Pieces(error) => error.fmt(f),
            Self::Count => f.write_str("no blocks or ranges, or more than a command can have"),
            Self::Bytes { blocks, pieces } => write!(
                f,
                "the blocks have {blocks} bytes and the pieces of memory {pieces}: they must be as \
                 many"
            ),
        }
    }
}

impl std::error::Error for SubmitError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_is_said_by_what_went_wrong_and_not_by_where() {
        for (source, part, listens) in [
            (Errno::MFILE, "ulimit -n", true),
            (Errno::NFILE, "ulimit -n", true),
            (Errno::TIMEDOUT, "it hangs", true),
            (Errno::ACCESS, "--mode", true),
            (Errno::NOENT, "start one", false),
            (Errno::CONNREFUSED, "start one", false),
        ] {
            let error = Error::system(CONNECT, source);
            assert!(error.advice().contains(part), "{}", error.advice());
            assert_eq!(error.nobody_listens().is_none(), listens, "{error}");
        }
        let elsewhere = Error::system("kick the broker", Errno::NOENT);
        assert_eq!(elsewhere.nobody_listens(), None);
    }
}
