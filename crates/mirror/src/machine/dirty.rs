//! Dirty bits of changes: what waits for them, and when they are cleared.
//!
//! # Contract
//! A bit is durable on all legs that get writes before data go there. All pages are written to a
//! leg that has other ones. Bits are cleared when their regions were not written for a while, all
//! legs have flushed since, and no leg lacks anything. While a leg is stale, the same flush shows
//! which regions a leg that leaves later won't lack. [`DirtyLog`](super::dirty_log::DirtyLog) has
//! the bits.
use super::Mirror;
use super::legs::Legs;
use super::planted::{Bug, has};
use super::requests::Phase;
use crate::Crc32c;
use block::Outcome;
use block::Range;

impl Mirror {
    /// Legs that get pages; `None`: none is written while the last leg in sync may execute an older
    /// write of it.
    pub(super) fn takers(&self) -> Option<Legs> {
        (!self.unverified.is_held(self.now_ns)).then(|| self.legs.writable())
    }

    /// Sets the dirty bits of a change, and writes their pages.
    pub(super) fn mark_dirty(&mut self, range: Range) {
        let takers = self.takers();
        for region in self.generation.regions_in(range) {
            self.note_missed(region);
            // Its copy is tried again.
            if self.unreadable.has_written(region) {
                self.outputs.wake();
            }
            self.log.clear_by(self.now_ns + self.config.clear_after_ns);
            self.log.mark(region, takers, &mut self.outputs);
        }
    }

    /// Begins to write all pages to all legs, from this one on.
    pub(super) fn write_all_from(&mut self, page: u32) {
        let takers = self.takers();
        self.log.write_all_from(page, takers, &mut self.outputs);
    }

    pub(super) fn pages_done(&mut self, first: u32, leg: u8, outcome: Outcome) {
        let Some((pages, round)) = self.log.end_write(first, leg, outcome) else {
            return; // others have not ended it, or it went on without the leg
        };
        self.leave(round);
        // A leg that failed it and stays is the last one in sync: the page is not on it.
        let written =
            !round.done.is_empty() && !round.failed.iter().any(|leg| self.legs.in_sync().has(leg));
        self.accepting.page_failed |= !written;
        let takers = self.takers();
        let out = &mut self.outputs;
        self.log.settle_write(pages, written, takers, out);
        // Writes that waited for these pages go on, or fail.
        for id in 0..self.ios.capacity() {
            let slot = self.ios.get(id);
            let Some(slot) = slot.filter(|slot| slot.phase() == Phase::Dirtying) else {
                continue;
            };
            let range = slot.request.changes().unwrap_or(Range::new(0, 0));
            let mut regions = self.generation.regions_in(range);
            match round.outcome {
                Some(outcome) if !written && regions.any(|it| self.log.lacks(pages, it)) => {
                    self.finish(id, outcome);
                }
                _ => self.send_if_durable(id),
            }
        }
        if self.stop.is_begun() || self.changes.is_growing() {
            self.outputs.wake();
        }
    }

    /// Clears all dirty bits: everything is flushed, and nothing is under way.
    pub(super) fn clear_all_dirty(&mut self) {
        let but = [self.diverged.regions(), self.unreadable.regions()];
        self.log.cool_all(but);
        self.clear_cold_bits();
    }

    fn clear_cold_bits(&mut self) {
        if has(Bug::IntentsForgotten) {
            let missed = self.legs.iter_mut().filter_map(|(_, leg)| leg.missed_mut());
            missed.for_each(|missed| missed.remove(self.log.cold()));
        }
        let takers = self.takers();
        self.log.clear_cold(takers, &mut self.outputs);
    }

    /// Flushes the legs, to clear the bits of cold regions; where a leg is stale, regions that a
    /// leg which leaves later won't lack.
    pub(super) fn clear_cold(&mut self) {
        self.log.clear_at(self.now_ns + self.config.clear_after_ns);
        let may_clear = self.may_clear();
        if !may_clear && !self.may_settle() {
            return; // at the next look
        }
        let changes = self.ios.iter().filter_map(|slot| slot.request.changes());
        let busy = changes.flat_map(|range| self.generation.regions_in(range));
        let but = [self.diverged.regions(), self.unreadable.regions()];
        let (legs, out) = (self.legs.writable(), &mut self.outputs);
        self.log.begin_clearing(may_clear, but, busy, legs, out);
    }

    /// Whether dirty bits may be cleared: no leg lacks anything, nor is about to.
    pub(super) fn may_clear(&self) -> bool {
        let in_sync: Legs = self.generation.proposed().in_sync().collect();
        let whole = in_sync == self.legs.in_sync() && !self.generation.proposed().keeps_intents();
        let said = self.update.is_idle() && !self.changes.is_growing();
        let well = !self.update.is_broken() && said && self.legs.rebuilding().is_empty();
        well && (whole || has(Bug::IntentsForgotten))
    }

    pub(super) fn cold_flushed(&mut self, leg: u8, outcome: Outcome) {
        let Some(round) = self.log.leg_flushed(leg, outcome) else {
            return; // others have not ended it
        };
        self.flush_over(round);
        match round.outcome {
            None if self.may_clear() => self.clear_cold_bits(),
            None if self.may_settle() => self.log.settle_cold(),
            _ => {}
        }
    }

    /// Pages of a leg's bitmap were read, or can't be.
    pub(super) fn pages_read(
        &mut self,
        first: u32,
        leg: u8,
        read: Result<(&[u8], Crc32c), Outcome>,
    ) {
        let (bytes, crc32c): (&[u8], Crc32c) = match read {
            Ok(read) => read,
            // All bits of the pages may be set.
            Err(Outcome::MediaError) => (&[], |_| 0),
            Err(outcome) => return self.read_failed(leg, outcome),
        };
        let next = self
            .log
            .merge_pages(first, bytes, self.generation.proposed().mirror, crc32c);
        self.continue_reading(leg, next);
    }

    /// A leg's bitmap could not be read: its path failed.
    fn read_failed(&mut self, leg: u8, outcome: Outcome) {
        match self.legs.in_sync().has(leg) {
            true if self.legs.last_in_sync() == Some(leg) => {
                self.log.suspect_all();
                self.continue_reading(leg, None);
            }
            true => {
                self.lose(leg, outcome);
                self.continue_reading(leg, None);
            }
            false if self.startup.is_reading_of(leg) => self.continue_reading(leg, None),
            false => self.return_failed(leg, outcome),
        }
    }
}
