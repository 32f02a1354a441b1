//! Errors that clients were answered with, for lines about them.
//!
//! # Contract
//! Of many few are described, [`CLIENT_ERRORS_MAX`] in a period of [`Seldom`]; the rest is counted,
//! and the count is reported when the period is over.
use crate::host::Multipath;
use crate::limits::CLIENT_ERRORS_MAX;
use crate::machine::DeviceError;
use crate::seldom::Seldom;
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use multipath::Outcome;
use policy::PathIndex;

/// Latest failures that are kept.
const KEPT_MAX: usize = 32;

/// An error that a client was answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientError {
    /// Volume index.
    pub volume: u16,
    /// The client's name.
    pub client: Box<str>,
    /// The operation that it asked for.
    pub op: &'static str,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The answer, in words of the client's protocol.
    pub error: Box<str>,
    /// How the volume's I/O ended; `None`: none failed.
    pub outcome: Option<Outcome>,
    /// URI of the path that failed it, and its answer; `None`: no path has answered, it is a
    /// mirror's, or later failures have come over it.
    pub path: Option<(String, DeviceError)>,
}

/// Decides which errors are described.
#[derive(Clone, Debug)]
pub(crate) struct ClientErrors(Seldom);

impl ClientErrors {
    pub fn new() -> Self {
        Self(Seldom::new(CLIENT_ERRORS_MAX))
    }

    /// One more. Returns whether it is described.
    pub fn is_described(&mut self, now_ns: u64) -> bool {
        self.0.one_more(now_ns).is_some()
    }

    /// When [`Self::take_rest`] is to be called, ns.
    #[inline]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.0.due_ns()
    }

    /// How many were not described, once the period is over.
    pub fn take_rest(&mut self, now_ns: u64) -> Option<u32> {
        self.0.overdue(now_ns)
    }
}

/// Latest failures of I/Os on paths: which path has answered what.
#[derive(Debug)]
pub(crate) struct PathFailures {
    latest: [Option<PathFailure>; KEPT_MAX],
    next: usize,
}

#[derive(Clone, Copy, Debug)]
struct PathFailure {
    volume: u16,
    cookie: u64,
    /// When its I/O was submitted: cookies are used again.
    started_ns: u64,
    path: PathIndex,
    error: DeviceError,
}

impl PathFailures {
    pub fn new() -> Self {
        Self {
            latest: [None; KEPT_MAX],
            next: 0,
        }
    }

    /// A path has failed the I/O of this cookie, which was submitted at `started_ns`.
    pub fn note(
        &mut self,
        volume: u16,
        (cookie, started_ns): (u64, u64),
        path: PathIndex,
        error: DeviceError,
    ) {
        self.latest[self.next % KEPT_MAX] = Some(PathFailure {
            volume,
            cookie,
            started_ns,
            path,
            error,
        });
        self.next = self.next.wrapping_add(1);
    }

    /// The last failure of an I/O that was submitted at `since_ns` or later.
    fn find(&self, volume: u16, cookie: u64, since_ns: u64) -> Option<&PathFailure> {
        let newest_first = (0..KEPT_MAX).map(|back| self.next.wrapping_sub(1 + back) % KEPT_MAX);
        let mut all = newest_first.filter_map(|at| self.latest[at].as_ref());
        all.find(|it| (it.volume, it.cookie) == (volume, cookie) && it.started_ns >= since_ns)
    }
}

impl Multipath {
    /// URI of the path that has failed an I/O of this cookie last, and its answer; `None`: no path
    /// has, or later failures have come over it. `since_ns`: when the request of the cookie began;
    /// failures of I/Os before it are another request's.
    pub(crate) fn failure_of(
        &self,
        volume: u16,
        cookie: u64,
        since_ns: u64,
    ) -> Option<(String, DeviceError)> {
        let it = self.failures().find(volume, cookie, since_ns)?;
        Some((self.path_uri(volume, it.path)?.to_owned(), it.error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::SAID_NS;

    #[test]
    fn latest_failure_of_an_io_is_found_until_others_come_over_it() {
        let mut failures = PathFailures::new();
        let full = DeviceError::Full;
        failures.note(3, (7, 50), PathIndex(0), DeviceError::Os(5));
        failures.note(3, (7, 50), PathIndex(1), full);
        failures.note(4, (7, 50), PathIndex(2), DeviceError::Lost);
        let found = failures.find(3, 7, 50).unwrap();
        assert_eq!((found.path, found.error), (PathIndex(1), full));
        assert!(failures.find(3, 7, 51).is_none(), "its cookie is another's");
        assert!(failures.find(3, 8, 0).is_none());
        let later = 100..100 + KEPT_MAX as u64;
        later.for_each(|it| failures.note(3, (it, 60), PathIndex(0), full));
        assert!(failures.find(3, 7, 0).is_none());
    }

    #[test]
    fn errors_that_are_not_described_are_counted_in_time() {
        let mut errors = ClientErrors::new();
        let described = (0..CLIENT_ERRORS_MAX + 5).filter(|_| errors.is_described(1));
        assert_eq!(described.count() as u32, CLIENT_ERRORS_MAX);
        let due_ns = errors.poll_timeout().unwrap();
        assert!(due_ns >= SAID_NS);
        assert_eq!(errors.take_rest(due_ns - 1), None);
        assert_eq!(errors.take_rest(due_ns), Some(5));
        assert_eq!(
            (errors.take_rest(due_ns), errors.poll_timeout()),
            (None, None)
        );
    }
}
