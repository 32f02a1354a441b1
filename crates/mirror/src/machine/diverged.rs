//! Diverged regions, in which legs in sync may differ: which were copied, and which were flushed.
//!
//! # Contract
//! A region is diverged until [`Diverged::settle`] after a flush that began when it was copied, or
//! until [`Diverged::clear`]. One that is changed meanwhile is copied again.
use super::Resync;
use super::legs::{Legs, Round, Work};
use super::outputs::Outputs;
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

    /// All regions are copied again.
    pub fn copy_all_again(&mut self) {
        self.copied.clear();
        self.flushing.clear();
    }

    /// Whether legs flush what was copied.
    pub fn is_flushing(&self) -> bool {
        self.flush.is_some()
    }

    /// Flushed regions are resynced.
    pub fn settle(&mut self) {
        self.tries = 0;
        for region in core::mem::take(&mut self.flushing) {
            self.count -= u64::from(self.regions.clear(region));
        }
    }

    /// All regions are resynced.
    pub fn clear(&mut self) {
        self.regions.clear_all();
        self.count = 0;
        self.unflushed = false;
        self.begun = None;
        self.copy_all_again();
    }

    /// Returns the progress of the resync, if regions are left.
    pub fn progress(&self) -> Option<Resync> {
        let (since_ns, regions) = self.begun?;
        let left = self.count;
        (left > 0).then_some(Resync {
            since_ns,
            regions,
            left,
        })
    }

    /// Whether something was copied since the last flush began.
    pub fn is_unflushed(&self) -> bool {
        self.unflushed
    }

    /// Whether copied regions are to be flushed: enough of them, or some where a read `waits`.
    pub fn has_batch(&self, waits: impl Fn() -> bool) -> bool {
        let copied = self.copied.len();
        let is_enough = copied >= FLUSH_BATCH || self.count == copied as u64;
        copied > 0 && !self.is_flushing() && (is_enough || waits())
    }

    /// Flushes these legs. The regions copied so far count afterwards.
    pub fn begin_batch(&mut self, legs: Legs, out: &mut Outputs) {
        self.flushing.append(&mut self.copied);
        self.begin_flush(legs, out);
    }

    /// Flushes these legs.
    pub fn begin_flush(&mut self, legs: Legs, out: &mut Outputs) {
        self.unflushed = false;
        self.flush = Some(out.flush(legs, Work::Resync));
    }

    /// A leg has ended its part of the flush. Returns the round once all have.
    pub fn leg_flushed(&mut self, leg: u8, outcome: Outcome) -> Option<Round> {
        Round::take_ended(&mut self.flush, leg, outcome)
    }

    /// A leg in sync could not be flushed: copied regions are flushed once more. Returns how often
    /// that has failed on end.
    pub fn flush_failed(&mut self) -> u8 {
        self.copied.append(&mut self.flushing);
        self.unflushed = true;
        self.tries = self.tries.saturating_add(1);
        self.tries
    }
}
