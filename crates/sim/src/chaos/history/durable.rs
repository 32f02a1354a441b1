//! Writes that survive a loss of caches: those with FUA, and those that a flush covers.
//!
//! A flush that succeeded covers the writes whose ends its writer had received before it began. A
//! controller that was lost for good with unflushed writes makes one flush fail, and those that are
//! under way with it; later ones cover the others' writes only (T13). It is not known which writes
//! that controller had: so of all that had ended when such a flush failed, those that no flush
//! covered that was over before it began are not known to be durable.
use crate::chaos::prelude::*;

/// Writes that are durable at a crash.
pub(super) struct Durable<'a> {
    pub crash_ns: u64,
    /// By writer: when the last flush began that had succeeded. It covers what was acknowledged
    /// before, also by a process that was killed since (T13).
    flushed: BTreeMap<u64, u64>,
    history: &'a History,
    /// Nothing but that is there afterwards.
    pub all: bool,
}

impl Durable<'_> {
    pub fn has(&self, op: &Op) -> bool {
        let Deed::Write { tag, durable } = op.deed else {
            return false;
        };
        if durable && op.end_ns <= self.crash_ns {
            return true;
        }
        let then = |&&(writer, _, end_ns): &&(u64, u64, u64)| {
            writer == tag.writer() && op.end_ns <= end_ns && end_ns <= self.crash_ns
        };
        let given_up = self.history.given_up.iter().filter(then);
        let flushed_ns = match given_up.map(|it| it.1).min() {
            Some(before_ns) => self.history.last_flush(tag.writer(), before_ns),
            None => self.flushed.get(&tag.writer()).copied(),
        };
        flushed_ns.is_some_and(|ns| op.end_ns <= ns)
    }
}

impl History {
    /// Returns the writes that survive a crash.
    pub(super) fn durable(&self, crash_ns: u64) -> Durable<'_> {
        let mut flushed = BTreeMap::new();
        for &(writer, start_ns, end_ns) in &self.flushes {
            if end_ns <= crash_ns {
                let last_ns = flushed.entry(writer).or_insert(start_ns);
                *last_ns = start_ns.max(*last_ns);
            }
        }
        Durable {
            crash_ns,
            flushed,
            all: !self.partly.contains(&crash_ns),
            history: self,
        }
    }

    /// When the last flush of a writer began of those that were over before that time.
    fn last_flush(&self, writer: u64, before_ns: u64) -> Option<u64> {
        let of = |it: &&(u64, u64, u64)| it.0 == writer && it.2 < before_ns;
        self.flushes.iter().filter(of).map(|it| it.1).max()
    }
}
