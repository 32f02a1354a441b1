//! Regions that legs in sync may have differently: when they are alike again.
//!
//! # Contract
//! A region is alike when it was copied to all legs in sync and they have flushed it: a copy that a
//! leg loses with its cache would leave what was there before (T13). A leg alone has nobody to be
//! like, and flushes what was copied to it all the same. Reads of such regions wait until then.
use super::copy::{Job, Kind};
use super::io::Phase;
use super::legs::{Round, Work};
use super::life::COPY_PAUSE_NS;
use super::{Mirror, News, Request, Resync};
use crate::Outcome;
use alloc::vec::Vec;

/// Regions that are flushed together before they count as alike.
const ALIKE_BATCH: usize = 64;

/// What was copied of such regions.
#[derive(Debug, Default)]
pub(super) struct Alike {
    /// Those copied, and those being flushed.
    pub copied: Vec<u64>,
    pub flushing: Vec<u64>,
    pub flush: Option<Round>,
    /// Something was copied, and no flush has begun since.
    pub unflushed: bool,
    /// How often that flush has failed on end.
    tries: u8,
    /// Since when there are some, ns, and how many there were at most.
    begun: Option<(u64, u64)>,
}

impl Mirror {
    /// How far legs in sync are with being made alike, while they may differ.
    pub fn resync(&self) -> Option<Resync> {
        let (since_ns, regions) = self.alike.begun?;
        let left = self.unalike_count;
        (left > 0).then_some(Resync {
            since_ns,
            regions,
            left,
        })
    }

    /// So many regions more may differ.
    pub(super) fn count_unalike(&mut self, more: u64) {
        self.unalike_count += more;
        if self.unalike_count == 0 {
            return;
        }
        let (since_ns, most) = self.alike.begun.unwrap_or((self.now_ns, 0));
        self.alike.begun = Some((since_ns, most.max(self.unalike_count)));
    }

    /// A leg alone differs from none, when it is durable that it is alone, nothing is being written
    /// to it any more, and it has flushed what was copied to it: else a reader would see that, and
    /// after a loss of its cache what was there before (T13).
    pub(super) fn alone(&mut self) {
        if !self.is_alone() {
            return;
        }
        match self.alike.flush {
            Some(_) => {}
            None if !self.alike.unflushed => self.all_alike(),
            None if self.now_ns < self.copy_pause_ns => {}
            None => self.begin_alike_flush(),
        }
    }

    fn is_alone(&self) -> bool {
        let alone = self.members.in_sync().count() == 1 && self.required == self.members.in_sync();
        let writes = |job: &Job| matches!(job.kind, Kind::Alike(_)) && !job.is_over();
        let writes = self.jobs.iter().flatten().any(writes);
        self.unalike_count > 0 && alone && !writes
    }

    /// Whether it is to flush that when the pause is over.
    pub(super) fn flushes_alone_later(&self) -> bool {
        let waits = self.alike.unflushed && self.alike.flush.is_none();
        waits && !self.stopping && self.is_alone()
    }

    fn begin_alike_flush(&mut self) {
        self.alike.unflushed = false;
        self.alike.flush = Some(self.flush_all(self.members.in_sync(), Work::Alike));
    }

    /// The last leg in sync can't flush what was copied to it. One flush may tell of a loss, and
    /// the next one ends well; else reads that wait for that fail, and it is tried again later.
    fn alone_unflushed(&mut self, outcome: Outcome) {
        self.alike.unflushed = true;
        self.alike.tries = self.alike.tries.saturating_add(1);
        if self.members.in_sync().count() > 1 || self.alike.tries < 2 {
            return;
        }
        self.copy_pause_ns = self.now_ns.saturating_add(COPY_PAUSE_NS);
        for id in 0..self.config.ios as u32 {
            let Some(slot) = self.io(id) else {
                continue;
            };
            if let (Phase::Held, Request::Read(range)) = (slot.phase, slot.request)
                && !self.may_be_read(range)
            {
                self.finish(id, outcome);
            }
        }
    }

    /// What is being made alike begins anew: another leg is in sync, or something was written.
    pub(super) fn copies_anew(&mut self) {
        for job in self.jobs.iter_mut().flatten() {
            job.anew = true;
        }
        if self.unalike_count > 0 {
            self.alike.copied.clear();
            self.alike.flushing.clear();
        }
    }

    /// Flushes what was copied, if that is enough or somebody waits.
    pub(super) fn flush_alike(&mut self) {
        if self.alike.copied.is_empty()
            || self.alike.flush.is_some()
            || self.members.in_sync().count() < 2
        {
            return;
        }
        let left = self.unalike_count - self.alike.copied.len() as u64;
        let waits = |slot: &super::Slot| matches!(slot.request, Request::Read(_));
        let enough = self.alike.copied.len() >= ALIKE_BATCH || left == 0;
        if enough || self.ios().any(waits) {
            self.alike.flushing.append(&mut self.alike.copied);
            self.begin_alike_flush();
        }
    }

    pub(super) fn alike_flushed(&mut self, leg: u8, outcome: Outcome) {
        let Some(round) = self.flush_ended(|it| &mut it.alike.flush, leg, outcome) else {
            return;
        };
        if !self.members.in_sync().without(round.done).is_empty() {
            // Once more; where the last leg can't flush, that is later.
            self.alike.copied.append(&mut self.alike.flushing);
            return self.alone_unflushed(round.outcome.unwrap_or(Outcome::PathError));
        }
        self.alike.tries = 0;
        for region in core::mem::take(&mut self.alike.flushing) {
            self.unalike_count -= u64::from(self.unalike.clear(region));
        }
        if self.unalike_count == 0 {
            self.all_alike();
        }
        self.look_again();
    }

    fn all_alike(&mut self) {
        self.unalike.clear_all();
        self.unalike_count = 0;
        self.alike.unflushed = false;
        self.alike.begun = None;
        self.alike.copied.clear();
        self.alike.flushing.clear();
        self.news(News::Alike);
        self.look_again();
    }
}
