//! Diverged regions, in which legs in sync may differ: when they are resynced.
//!
//! # Contract
//! A region is resynced when it was copied to all legs in sync and they have flushed it: a copy
//! lost with a cache would leave older data (T13). A single leg in sync differs from none, but
//! flushes the copies that it got. Reads of such regions wait until then.
use super::jobs::{Job, Kind};
use super::legs::{Round, Work};
use super::lifecycle::COPY_PAUSE_NS;
use super::requests::Phase;
use super::{Mirror, News, Request, Resync};
use crate::bitmap::Bitmap;
use alloc::vec::Vec;
use block::Outcome;

/// Regions that are flushed together.
const FLUSH_BATCH: usize = 64;

/// Diverged regions, and the progress of their copies.
#[derive(Debug)]
pub(super) struct Diverged {
    regions: Bitmap,
    /// How many there are.
    count: u64,
    /// Copied regions, and those that are being flushed.
    copied: Vec<u64>,
    flushing: Vec<u64>,
    flush: Option<Round>,
    /// Something was copied, and no flush has begun since.
    unflushed: bool,
    /// How often that flush has failed on end.
    tries: u8,
    /// When they began, ns, and how many there were at most.
    begun: Option<(u64, u64)>,
}

impl Diverged {
    /// None, of so many regions.
    pub fn new(regions: u64) -> Self {
        Self {
            regions: Bitmap::new(regions),
            count: 0,
            copied: Vec::new(),
            flushing: Vec::new(),
            flush: None,
            unflushed: false,
            tries: 0,
            begun: None,
        }
    }

    /// Room for so many regions; new ones have not diverged.
    pub fn resize(&mut self, regions: u64) {
        self.regions.resize(regions);
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// All of them.
    pub fn regions(&self) -> &Bitmap {
        &self.regions
    }

    /// Whether legs in sync may differ in the region.
    pub fn has(&self, region: u64) -> bool {
        self.regions.is_set(region)
    }

    /// Legs in sync may differ in the region.
    pub fn mark(&mut self, region: u64, now_ns: u64) {
        self.count += u64::from(self.regions.set(region));
        self.note_most(now_ns);
    }

    /// Legs in sync may differ in these regions, and in no others.
    pub fn mark_only(&mut self, regions: &Bitmap, now_ns: u64) {
        self.regions.copy_from(regions);
        self.count = regions.count();
        self.note_most(now_ns);
    }

    fn note_most(&mut self, now_ns: u64) {
        if self.count > 0 {
            let (since_ns, most) = self.begun.unwrap_or((now_ns, 0));
            self.begun = Some((since_ns, most.max(self.count)));
        }
    }

    /// Returns those that were not copied.
    pub fn uncopied(&self) -> impl Iterator<Item = u64> {
        self.regions.iter().filter(|it| !self.is_copied(*it))
    }

    /// Whether the region was copied, and waits for a flush.
    pub fn is_copied(&self, region: u64) -> bool {
        self.copied.contains(&region) || self.flushing.contains(&region)
    }

    /// The region was copied to all legs in sync.
    pub fn has_copied(&mut self, region: u64) {
        self.copied.push(region);
    }

    /// A part of a region was written to a leg in sync.
    pub fn note_unflushed(&mut self) {
        self.unflushed = true;
    }

    /// The region was changed: it is copied again.
    pub fn copy_again(&mut self, region: u64) {
        self.copied.retain(|it| *it != region);
        self.flushing.retain(|it| *it != region);
    }

    fn copy_all_again(&mut self) {
        self.copied.clear();
        self.flushing.clear();
    }

    /// Whether legs flush what was copied.
    pub fn is_flushing(&self) -> bool {
        self.flush.is_some()
    }

    /// Flushed regions are resynced.
    fn settle(&mut self) {
        self.tries = 0;
        for region in core::mem::take(&mut self.flushing) {
            self.count -= u64::from(self.regions.clear(region));
        }
    }

    /// All regions are resynced.
    fn clear(&mut self) {
        self.regions.clear_all();
        self.count = 0;
        self.unflushed = false;
        self.begun = None;
        self.copy_all_again();
    }
}

impl Mirror {
    /// Returns the progress of a resync.
    pub fn resync(&self) -> Option<Resync> {
        let (since_ns, regions) = self.diverged.begun?;
        let left = self.diverged.count;
        (left > 0).then_some(Resync {
            since_ns,
            regions,
            left,
        })
    }

    /// A leg alone differs from none, when it is durable that it is alone, nothing is being written
    /// to it any more, and it has flushed what was copied to it: else a reader would see that, and
    /// after a loss of its cache what was there before (T13).
    pub(super) fn resync_alone(&mut self) {
        if !self.is_alone() {
            return;
        }
        match self.diverged.flush {
            Some(_) => {}
            None if !self.diverged.unflushed => self.end_resync(),
            None if self.now_ns < self.copies.pause_ns => {}
            None => self.flush_copied(),
        }
    }

    fn is_alone(&self) -> bool {
        let alone = self.legs.in_sync().count() == 1 && self.required == self.legs.in_sync();
        let resyncs = |job: &Job| matches!(job.kind, Kind::Resync(_));
        let writes = self.copies.under_way().any(resyncs);
        !self.diverged.is_empty() && alone && !writes
    }

    /// Whether it is to flush that when the pause is over.
    pub(super) fn flushes_alone_later(&self) -> bool {
        let waits = self.diverged.unflushed && self.diverged.flush.is_none();
        waits && !self.stop.is_begun() && self.is_alone()
    }

    fn flush_copied(&mut self) {
        self.diverged.unflushed = false;
        self.diverged.flush = Some(self.outputs.flush(self.legs.in_sync(), Work::Resync));
    }

    /// The last leg in sync can't flush its copies. One failed flush may report a loss, and the
    /// next one end well; else reads that wait for it fail, and it is tried again later.
    fn alone_unflushed(&mut self, outcome: Outcome) {
        self.diverged.unflushed = true;
        self.diverged.tries = self.diverged.tries.saturating_add(1);
        if self.legs.in_sync().count() > 1 || self.diverged.tries < 2 {
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
        if self.diverged.copied.is_empty()
            || self.diverged.flush.is_some()
            || self.legs.in_sync().count() < 2
        {
            return;
        }
        let left = self.diverged.count - self.diverged.copied.len() as u64;
        let waits = |slot: &super::Slot| matches!(slot.request, Request::Read(_));
        let enough = self.diverged.copied.len() >= FLUSH_BATCH || left == 0;
        if enough || self.ios.iter().any(waits) {
            self.diverged.flushing.append(&mut self.diverged.copied);
            self.flush_copied();
        }
    }

    pub(super) fn resync_flushed(&mut self, leg: u8, outcome: Outcome) {
        let Some(round) = Round::take_ended(&mut self.diverged.flush, leg, outcome) else {
            return; // others have not ended it
        };
        self.flush_over(round);
        if !self.legs.in_sync().without(round.done).is_empty() {
            // Once more; where the last leg can't flush, that is later.
            self.diverged.copied.append(&mut self.diverged.flushing);
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
