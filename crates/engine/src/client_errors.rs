//! Errors that clients were answered with, for lines about them.
//!
//! # Contract
//! Of many few are described, [`CLIENT_ERRORS_MAX`] of each volume in a period of [`Seldom`]; the
//! rest is counted, and the count is reported when the period is over.
use crate::core::earlier;
use crate::export::ExportEvent;
use crate::host::Multipath;
use crate::limits::CLIENT_ERRORS_MAX;
use crate::machine::DeviceError;
use crate::seldom::Seldom;
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
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
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientErrors {
    /// By volume, those that had errors.
    limits: BTreeMap<u16, Seldom>,
    /// When the first period is over in which errors were not described, ns.
    due_ns: Option<u64>,
}

impl ClientErrors {
    /// One more. Returns whether it is described.
    pub fn is_described(
        &mut self,
        events: &mut VecDeque<ExportEvent>,
        volume: u16,
        now_ns: u64,
    ) -> bool {
        // Before this one, with which another period may begin.
        self.take_rest(events, now_ns);
        let new = || Seldom::new(CLIENT_ERRORS_MAX);
        let limit = self.limits.entry(volume).or_insert_with(new);
        let is_described = limit.one_more(now_ns).is_some();
        self.due_ns = earlier(self.due_ns, limit.due_ns());
        is_described
    }

    /// When [`Self::take_rest`] is to be called, ns.
    #[inline]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.due_ns
    }

    /// Reports how many were not described in a period that is over.
    pub fn take_rest(&mut self, events: &mut VecDeque<ExportEvent>, now_ns: u64) {
        if self.due_ns.is_none_or(|due_ns| due_ns > now_ns) {
            return;
        }
        for (volume, limit) in &mut self.limits {
            let rest = limit.overdue(now_ns);
            events.extend(rest.map(|count| ExportEvent::MoreErrors(*volume, count)));
        }
        self.due_ns = self.limits.values().filter_map(Seldom::due_ns).min();
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
        let (mut errors, mut events) = (ClientErrors::default(), VecDeque::new());
        let storm = CLIENT_ERRORS_MAX + 5;
        let described = (0..storm).filter(|_| errors.is_described(&mut events, 3, 1));
        assert_eq!(described.count() as u32, CLIENT_ERRORS_MAX);
        assert!(errors.is_described(&mut events, 4, 1), "each has its own");
        let due_ns = errors.poll_timeout().unwrap();
        assert!(due_ns >= SAID_NS);
        errors.take_rest(&mut events, due_ns - 1);
        assert!(events.is_empty());
        // Another error comes before the timer.
        assert!(errors.is_described(&mut events, 3, due_ns));
        errors.take_rest(&mut events, due_ns);
        let [ExportEvent::MoreErrors(3, 5)] = events.make_contiguous() else {
            panic!("{} events", events.len());
        };
        assert_eq!(errors.poll_timeout(), None);
    }
}
