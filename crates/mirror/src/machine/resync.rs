//! Diverged regions, in which legs in sync may differ: when they are resynced.
//!
//! # Contract
//! A region is resynced when it was copied to all legs in sync and they have flushed it: a copy
//! lost with a cache would leave older data (T13). A single leg in sync differs from none, but
//! flushes the copies that it got. Reads of such regions wait until then.
use super::jobs::{Job, Kind};
use super::lifecycle::COPY_PAUSE_NS;
use super::requests::Phase;
use super::{Mirror, News, Request, Resync};
use block::Outcome;

impl Mirror {
    /// Returns the progress of a resync.
    pub fn resync(&self) -> Option<Resync> {
        self.diverged.progress()
    }

    /// A leg alone differs from none, when it is durable that it is alone, nothing is being written
    /// to it any more, and it has flushed what was copied to it: else a reader would see that, and
    /// after a loss of its cache what was there before (T13).
    pub(super) fn resync_alone(&mut self) {
        if !self.is_alone() || self.diverged.is_flushing() {
            return;
        }
        if !self.diverged.is_unflushed() {
            self.end_resync();
        } else if self.now_ns >= self.copies.pause_ns {
            let (legs, out) = (self.legs.in_sync(), &mut self.outputs);
            self.diverged.begin_flush(legs, out);
        }
    }

    fn is_alone(&self) -> bool {
        let alone =
            self.legs.in_sync().count() == 1 && self.generation.required() == self.legs.in_sync();
        let resyncs = |job: &Job| matches!(job.kind, Kind::Resync(_));
        let writes = self.copies.under_way().any(resyncs);
        !self.diverged.is_empty() && alone && !writes
    }

    /// Whether it is to flush that when the pause is over.
    pub(super) fn flushes_alone_later(&self) -> bool {
        let waits = self.diverged.is_unflushed() && !self.diverged.is_flushing();
        waits && !self.stop.is_begun() && self.is_alone()
    }

    /// The last leg in sync can't flush its copies. One failed flush may report a loss, and the
    /// next one end well; else reads that wait for it fail, and it is tried again later.
    fn alone_unflushed(&mut self, outcome: Outcome) {
        let tries = self.diverged.flush_failed();
        if self.legs.in_sync().count() > 1 || tries < 2 {
            return;
        }
        self.copies.pause_ns = self.now_ns.saturating_add(COPY_PAUSE_NS);
        self.finish_where(outcome, |it, slot| match slot.request {
            Request::Read(range) => slot.phase() == Phase::Held && !it.may_be_read(range),
            _ => false,
        });
    }

    /// Restarts the resync: another leg is in sync, or something was written.
    pub(super) fn restart_copies(&mut self) {
        self.copies.restart();
        if !self.diverged.is_empty() {
            self.diverged.copy_all_again();
        }
    }

    /// Flushes copied regions, if there are enough or a read waits.
    pub(super) fn advance_resync_flush(&mut self) {
        let waits = |slot: &super::Slot| matches!(slot.request, Request::Read(_));
        let in_sync = self.legs.in_sync();
        if in_sync.count() > 1 && self.diverged.has_batch(|| self.ios.iter().any(waits)) {
            self.diverged.begin_batch(in_sync, &mut self.outputs);
        }
    }

    pub(super) fn resync_flushed(&mut self, leg: u8, outcome: Outcome) {
        let Some(round) = self.diverged.leg_flushed(leg, outcome) else {
            return; // others have not ended it
        };
        self.flush_over(round);
        if !self.legs.in_sync().without(round.done).is_empty() {
            // Once more; where the last leg can't flush, that is later.
            return self.alone_unflushed(round.outcome.unwrap_or(Outcome::PathError));
        }
        self.diverged.settle();
        if self.diverged.is_empty() {
            self.end_resync();
        }
        self.resume_waiting();
    }

    fn end_resync(&mut self) {
        self.diverged.clear();
        self.outputs.news(News::Resynced);
        self.resume_waiting();
    }
}
