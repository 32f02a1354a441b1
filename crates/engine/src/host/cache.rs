//! Writes that a path's controller may have in its volatile cache only (T13), and the flushes of it
//! that belong to no I/O.
//!
//! # Contract
//! Each core knows what it acknowledged itself. The writes of others are known from the loss of the
//! path on: until all have reported, it may be anything.
use alloc::vec::Vec;
use block::{Covered, FlushTracker};
use canary::Bug;

/// See the module.
#[derive(Default)]
pub(super) struct CacheState {
    unflushed: Unflushed,
    reports: Reports,
    /// It leaves, and its controller has flushed for that, or has no cache.
    pub flushed_to_leave: bool,
    final_flush: FinalFlush,
    /// A device's flushes that were under way when it was given up, and are not ended yet: by the
    /// names that their I/Os had then.
    pub abandoned_flushes: Vec<u32>,
}

/// Acknowledged writes that no flush has covered, by the engine that acknowledged them.
#[derive(Default)]
struct Unflushed {
    /// This core. Unflushed writes hang on this alone: counters are for people, and may be reset.
    own: FlushTracker,
    /// Another core had such writes.
    is_elsewhere: bool,
    /// An engine before this one may have had: of a controller that no core has flushed since.
    is_inherited: bool,
}

/// Reports between cores of unflushed writes.
#[derive(Default)]
struct Reports {
    /// It was live since this core told the others whether it had any, or core 0 has heard that one
    /// had.
    is_due: bool,
    /// It was lost, and not all cores have told yet whether they had any.
    is_awaited: bool,
}

impl CacheState {
    /// A change was acknowledged.
    #[inline]
    pub(super) fn acknowledge(&mut self) {
        self.unflushed.own.acknowledge();
    }

    /// Writes that a flush covers that is sent now.
    pub(super) fn covered_now(&self) -> Covered {
        self.unflushed.own.covered_now()
    }

    /// A flush has ended well. Returns whether it covers, as the first one, what an engine before
    /// this one may have had.
    pub(super) fn flushed(&mut self, covers: Covered) -> bool {
        self.unflushed.own.flushed(covers);
        self.unflushed.is_elsewhere = false;
        self.take_inherited()
    }

    /// A flush has covered all that was acknowledged, on any core.
    pub(super) fn all_flushed(&mut self) {
        self.unflushed.own.forget();
        self.unflushed.is_elsewhere = false;
        self.unflushed.is_inherited = false;
    }

    /// The same, or it is given up: nothing that other cores could still tell matters.
    pub(super) fn settle(&mut self) {
        self.all_flushed();
        self.reports.is_awaited = false;
    }

    /// Whether this engine, on any core, had writes acknowledged that no flush has covered.
    pub(super) fn has_unflushed(&self) -> bool {
        !self.unflushed.own.is_flushed() || self.unflushed.is_elsewhere
    }

    /// Another core has told whether it had any.
    pub(super) fn note_elsewhere(&mut self, unflushed: bool) {
        self.unflushed.is_elsewhere |= unflushed && !canary::has(Bug::LossOfOneCore);
    }

    /// The same on core 0, which tells all others, also where its own queue was never live: theirs
    /// may have been.
    pub(super) fn note_to_pass_on(&mut self, unflushed: bool) {
        self.note_elsewhere(unflushed);
        self.reports.is_due |= unflushed;
    }

    /// An engine before this one may have had such writes.
    pub(super) fn inherit(&mut self) {
        self.unflushed.is_inherited = true;
    }

    /// Whether one may have.
    pub(super) fn is_inherited(&self) -> bool {
        self.unflushed.is_inherited
    }

    /// Another core has flushed what an engine before this one may have had. Returns whether that
    /// is news.
    pub(super) fn take_inherited(&mut self) -> bool {
        core::mem::take(&mut self.unflushed.is_inherited)
    }

    /// The path is live: this core may have such writes from now on.
    pub(super) fn note_live(&mut self) {
        self.reports.is_due = true;
    }

    /// The path is lost; `others`: cores that will tell may have had such writes.
    pub(super) fn note_lost(&mut self, others: bool) {
        self.reports.is_awaited |= others;
    }

    /// Whether this core is to tell what it had: once for each life of the path, as a core that
    /// gave it up by then must not hear of it with every attempt to connect.
    pub(super) fn take_due_report(&mut self) -> bool {
        core::mem::take(&mut self.reports.is_due)
    }

    /// Whether other cores are still to tell what they had.
    pub(super) fn awaits_reports(&self) -> bool {
        self.reports.is_awaited
    }

    /// All cores have told. Returns whether that was awaited.
    pub(super) fn end_reports(&mut self) -> bool {
        core::mem::take(&mut self.reports.is_awaited)
    }

    pub(super) fn final_flush(&self) -> FinalFlush {
        self.final_flush
    }

    /// Changes where the flush that belongs to no I/O stands.
    ///
    /// # Panics
    /// If the state that it has doesn't lead there.
    pub(super) fn set_final_flush(&mut self, to: FinalFlush) {
        let from = self.final_flush;
        assert!(from.leads_to(to), "final flush: {from:?} → {to:?}");
        self.final_flush = to;
    }

    /// Whether that is under way.
    pub(super) fn is_flushing(&self) -> bool {
        self.final_flush.until_ns().is_some()
    }

    /// Its present asker gives up: it covers nothing completed from now on (T13).
    pub(super) fn leave_final_flush(&mut self) {
        let to = match self.final_flush {
            FinalFlush::Out { until_ns } | FinalFlush::Late { until_ns } => {
                FinalFlush::Late { until_ns }
            }
            FinalFlush::None | FinalFlush::Ended(_) => FinalFlush::None,
        };
        self.set_final_flush(to);
    }
}

/// A flush that belongs to no I/O: nothing but its path tells one from the next, so there is never
/// more than one. A controller must have answered it by `until_ns`; `u64::MAX`: a device, which may
/// take any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FinalFlush {
    /// None was asked for.
    #[default]
    None,
    /// Under way.
    Out { until_ns: u64 },
    /// Under way still, and whoever asked has given up: it covers nothing completed since (T13).
    Late { until_ns: u64 },
    /// It has ended, well or not; or it could not be sent.
    Ended(bool),
}

impl FinalFlush {
    /// Whether it may get from here to `to`.
    fn leads_to(self, to: Self) -> bool {
        let is_out = self.until_ns().is_some();
        match to {
            Self::None => !matches!(self, Self::Out { .. }),
            Self::Out { .. } => !is_out,
            Self::Late { .. } => is_out,
            Self::Ended(_) => !matches!(self, Self::Late { .. }),
        }
    }

    /// When it must have been answered, ns, while it is under way.
    pub(super) fn until_ns(self) -> Option<u64> {
        match self {
            Self::Out { until_ns } | Self::Late { until_ns } => Some(until_ns),
            Self::None | Self::Ended(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn final_flush_states_are_reached_from_these_only() {
        use FinalFlush::*;
        let (out, late) = (Out { until_ns: 1 }, Late { until_ns: 1 });
        let all = [None, out, late, Ended(true)];
        for (to, want) in [
            (None, vec![None, late, Ended(true)]),
            (out, vec![None, Ended(true)]),
            (late, vec![out, late]),
            (Ended(false), vec![None, out, Ended(true)]),
        ] {
            let from = all.into_iter().filter(|from| from.leads_to(to));
            assert_eq!(from.collect::<Vec<_>>(), want, "to {to:?}");
        }
    }

    #[test]
    fn unflushed_writes_of_others_need_one_flush() {
        let mut it = CacheState::default();
        it.inherit();
        it.note_elsewhere(true);
        it.note_elsewhere(false);
        assert!(it.has_unflushed() && it.is_inherited());
        let covers = it.covered_now();
        it.acknowledge();
        assert!(it.flushed(covers), "what was inherited");
        assert!(!it.flushed(covers), "once");
        assert!(it.has_unflushed(), "acknowledged after the flush was sent");
        it.note_lost(true);
        it.settle();
        assert!(!it.has_unflushed() && !it.end_reports());
    }
}
