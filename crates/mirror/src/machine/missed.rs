//! Regions that a leg which gets no writes lacks: a set for each such leg.
//!
//! # Contract
//! A leg that leaves lacks the regions that were changed since all legs have flushed (it may lose
//! these with its cache, or be in the middle of a write), those that legs in sync may have
//! differently, and those that no leg can read; then each one that is changed without it. The set
//! is kept until the leg is in sync again, also while the leg is being rebuilt: what was copied to
//! it is only relied on below its position. The bits on the legs are the union of all sets, so
//! after a restart the union is all that is known.
//!
//! A leg without a set lacks the union: one that was away when this engine started, one that left
//! before all bitmaps were read, and one that shows another superblock than the last one that it
//! was given. A leg that is being rebuilt is a *spare* for regions that it does not lack: where no
//! leg in sync can read one, the spare is read; where there is none, a leg that waits (`spare`).
//!
//! # Limits
//! An eighth of a byte per region, and as much once more per leg that is not in sync.
use super::legs::Legs;
use super::planted::{Bug, has};
use super::{Mirror, News};
use crate::bitmap::Bitmap;
use block::Range;

/// Pause between two reports of spares that are read, ns.
const SAID_NS: u64 = 1_000_000_000;

impl Mirror {
    /// Notes a change of `region` for legs that don't get it.
    pub(super) fn note_missed(&mut self, region: u64) {
        self.log.note_unflushed(region);
        let takers = self.legs.writable();
        for (slot, leg) in self.legs.iter_mut() {
            if let Some(missed) = leg.missed_mut()
                && !takers.has(slot)
            {
                missed.set(region);
            }
        }
    }

    /// Returns the regions that a leg which got writes may lack once it leaves, if they are known.
    pub(super) fn missed_on_leave(&mut self, leg: u8) -> Option<Bitmap> {
        if !self.startup.is_running() {
            return None;
        }
        let mut missed = match self.legs[leg].stale_mut() {
            None => Bitmap::new(self.log.dirty().regions()),
            // One that was being rebuilt without a set lacks the union.
            Some(stale) => stale.missed.take()?,
        };
        if !has(Bug::LeftWithoutUnflushed) {
            missed.merge(self.log.unflushed());
        }
        missed.merge(self.diverged.regions());
        missed.merge(self.unreadable.regions());
        Some(missed)
    }

    /// Legs that are not in sync and have all of a range, of those besides `but`: those that are
    /// being rebuilt, and those that wait where each of these has bad blocks in it.
    pub(super) fn spares(&self, range: Range, but: Legs) -> Legs {
        let rebuilt = self
            .legs
            .rebuilt_in(self.generation.regions_in(range))
            .without(but);
        if self.bad.legs_in(rebuilt, range) != rebuilt {
            return rebuilt;
        }
        rebuilt.with(self.waiting_spares(range).without(but))
    }

    /// Retries paused unreadable regions that a leg has which may be read from now on.
    pub(super) fn retry_unreadable(&mut self, has: impl Fn(&Self, u64) -> bool) {
        let mut next = self.unreadable.paused().next(0);
        while let Some(region) = next {
            if has(self, region) {
                self.unreadable.retry(region);
            }
            next = self.unreadable.paused().next(region + 1);
        }
    }

    /// A spare was read, since no leg in sync could be.
    pub(super) fn note_rescued(&mut self, leg: u8, range: Range) {
        self.legs[leg].rescued += 1;
        if self.now_ns >= self.rescue_reported_until_ns {
            self.rescue_reported_until_ns = self.now_ns.saturating_add(SAID_NS);
            self.outputs.news(News::Rescued(leg, range));
        }
    }

    /// Whether a flush shows that: nothing may be executed late, and no region is added.
    pub(super) fn may_settle(&self) -> bool {
        !self.update.is_broken()
            && !self.unverified.is_held(self.now_ns)
            && !self.changes.is_growing()
    }
}
