//! Dirty bits of regions: when they are on the legs, and when they are cleared.
//!
//! # Contract
//! A bit is durable on all legs that get writes before data go there; one page serves all bits that
//! wait for it. Pages are written in groups of a block of the mirror; no page is written twice at a
//! time, nor while the last leg in sync may execute an older write of it. All pages are written to
//! a leg that has other ones. Bits are cleared when their regions were not written for a while, all
//! legs have flushed since, and no leg lacks anything. While a leg is stale, the same flush shows
//! which regions a leg that leaves later won't lack.
use super::legs::{Legs, Round, Work};
use super::planted::{Bug, has};
use super::{Mirror, Output, Pages};
use crate::bitmap::{Bitmap, PAGE_BYTES};
use crate::superblock::EntryState;
use alloc::vec::Vec;
use block::Outcome;
use block::Range;

/// Most pages that are written or read at once: 64 KiB.
pub(super) const PAGES_MAX: u32 = 128;

/// Pages that are being written.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageRound {
    pages: Pages,
    round: Round,
}

/// The write-intent bitmap: which regions may be changing, and which of these bits are on the legs.
#[derive(Debug)]
pub(super) struct DirtyLog {
    dirty: Bitmap,
    /// Dirty bits that are on all legs that get writes.
    durable: Bitmap,
    /// Dirty bits that were set after the write of their page began.
    late: Bitmap,
    /// Regions that were changed since all legs that get writes have flushed.
    unflushed: Bitmap,
    /// Regions that may be cleared when the flush under way is over.
    cold: Bitmap,
    /// Regions that were written since the last look for cold ones.
    recent: Bitmap,
    writes: Vec<PageRound>,
    /// The first page that is still to be written to all legs; `None`: there is none.
    write_all_from: Option<u32>,
    /// The flush before cold bits are cleared.
    clearing: Option<Round>,
    /// When cold bits are looked for, ns; `None`: nothing is dirty.
    clear_at_ns: Option<u64>,
}

impl DirtyLog {
    /// Nothing is dirty, of so many regions.
    pub fn new(regions: u64) -> Self {
        let bits = || Bitmap::new(regions);
        Self {
            dirty: bits(),
            durable: bits(),
            late: bits(),
            unflushed: bits(),
            cold: bits(),
            recent: bits(),
            writes: Vec::new(),
            write_all_from: None,
            clearing: None,
            clear_at_ns: None,
        }
    }

    /// Bits for so many regions; those that are new are clear.
    pub fn resize(&mut self, regions: u64) {
        let maps = [
            &mut self.dirty,
            &mut self.durable,
            &mut self.late,
            &mut self.unflushed,
            &mut self.cold,
            &mut self.recent,
        ];
        maps.into_iter().for_each(|map| map.resize(regions));
    }

    /// Room for the writes of all pages, and of `least` at least.
    pub fn reserve(&mut self, least: usize) {
        self.writes.reserve(least.max(self.dirty.pages()));
    }

    /// The dirty regions.
    pub fn dirty(&self) -> &Bitmap {
        &self.dirty
    }

    /// Whether the region is dirty.
    pub fn is_dirty(&self, region: u64) -> bool {
        self.dirty.is_set(region)
    }

    /// Whether the bit of the region is on all legs that get writes.
    pub fn is_durable(&self, region: u64) -> bool {
        self.durable.is_set(region)
    }

    /// Regions that a leg which leaves may lack: it has not flushed them.
    pub fn unflushed(&self) -> &Bitmap {
        &self.unflushed
    }

    /// All dirty regions may be unflushed: it was read from the legs.
    pub fn begin_unflushed(&mut self) {
        self.unflushed.copy_from(&self.dirty);
    }

    /// The region is changed.
    pub fn note_unflushed(&mut self, region: u64) {
        self.unflushed.set(region);
    }

    /// All legs have flushed what was cold when they were asked.
    pub fn settle_cold(&mut self) {
        self.unflushed.remove(&self.cold);
    }

    /// The region is dirty from now on; its page is to be written where that is not durable.
    pub fn set_dirty(&mut self, region: u64) {
        self.dirty.set(region);
        self.cold.clear(region);
        self.recent.set(region);
        if !self.durable.is_set(region) {
            self.late.set(region);
        }
    }

    /// A new region: legs may differ there.
    pub fn add_region(&mut self, region: u64) {
        self.dirty.set(region);
        self.unflushed.set(region);
        self.durable.clear(region);
        self.late.set(region);
    }

    /// Plans the next look for cold bits, unless an earlier one is planned.
    pub fn clear_by(&mut self, at_ns: u64) {
        self.clear_at_ns.get_or_insert(at_ns);
    }

    /// Plans the next look for cold bits.
    pub fn clear_at(&mut self, at_ns: u64) {
        self.clear_at_ns = Some(at_ns);
    }

    /// When cold bits are looked for, ns.
    pub fn clears_at(&self) -> Option<u64> {
        self.clear_at_ns
    }

    /// Whether all pages are being written to all legs.
    pub fn is_writing_all(&self) -> bool {
        self.write_all_from.is_some()
    }

    /// Whether no page is being written.
    pub fn is_written(&self) -> bool {
        self.writes.is_empty()
    }

    /// Whether legs flush before cold bits are cleared.
    pub fn is_clearing(&self) -> bool {
        self.clearing.is_some()
    }
}

impl Pages {
    fn has(self, page: u32) -> bool {
        (self.first..self.first + self.count).contains(&page)
    }

    fn overlaps(self, other: Self) -> bool {
        self.first < other.first + other.count && other.first < self.first + self.count
    }
}

impl Mirror {
    /// Sets the dirty bits of a change, and writes their pages.
    pub(super) fn mark_dirty(&mut self, range: Option<Range>) {
        for region in range.map_or(0..0, |range| self.state.geometry.regions_in(range)) {
            self.log.cold.clear(region);
            self.log.recent.set(region);
            self.note_missed(region);
            // Its copy is tried again.
            if self.unreadable.has_written(region) {
                self.outputs.wake();
            }
            let was_clear = self.log.dirty.set(region);
            self.log.clear_by(self.now_ns + self.config.clear_after_ns);
            if self.log.durable.is_set(region) {
                continue;
            }
            let page = Bitmap::page_of(region) as u32;
            // T53: a page write under way has each bit that was set before it began. Marking such
            // a bit again would keep its region from becoming durable while writes keep coming.
            if was_clear || !self.is_being_written(page) {
                self.log.late.set(region);
                self.write_page(page);
            }
        }
    }

    /// Whether a write of `page` is under way.
    fn is_being_written(&self, page: u32) -> bool {
        self.log.writes.iter().any(|it| it.pages.has(page))
    }

    /// Pages of the group that has `page`.
    fn group(&self, page: u32) -> Pages {
        let block_pages = 1 << (self.state.geometry.block_shift - 9);
        Pages {
            first: page / block_pages * block_pages,
            count: block_pages,
        }
    }

    /// Writes a page, unless that is being done: then its late bits are written afterwards.
    fn write_page(&mut self, page: u32) {
        let pages = self.group(page);
        if self.is_unverified() {
            return; // an older one may come over it: it is written when that is over
        }
        if !self.log.writes.iter().any(|it| it.pages.overlaps(pages)) {
            self.write_pages(pages);
        }
    }

    /// Writes pages that waited for late writes of the last leg.
    pub(super) fn write_late(&mut self) {
        for page in 0..self.log.dirty.pages() {
            if self.log.late.next_of_page(page, 0).is_some() {
                self.write_page(page as u32);
            }
        }
        self.write_all_on();
    }

    fn write_pages(&mut self, pages: Pages) {
        for page in pages.first..pages.first + pages.count {
            self.log.late.clear_page(page as usize);
        }
        let takers = self.legs.writable();
        let round = Round::of(takers);
        self.log.writes.push(PageRound { pages, round });
        for leg in takers.iter() {
            let ticket = self.outputs.ticket(leg, Work::Pages(pages.first));
            self.outputs.push(Output::Pages(ticket, pages));
        }
    }

    /// Pages that are being written to `leg`.
    pub(super) fn pages_on(&self, leg: u8) -> impl Iterator<Item = Pages> {
        let rounds = self.log.writes.iter();
        let there = rounds.filter(move |it| it.round.waits.has(leg));
        there.map(|it| it.pages)
    }

    /// Begins to write all pages to all legs.
    pub(super) fn begin_write_all(&mut self) {
        self.begin_write_all_at(0);
    }

    /// Begins to write the pages from the group of this one on.
    pub(super) fn begin_write_all_at(&mut self, page: u32) {
        self.log.write_all_from = Some(self.group(page).first);
        self.write_all_on();
    }

    /// Writes the next pages of all, if possible.
    fn write_all_on(&mut self) {
        let (Some(first), all) = (self.log.write_all_from, self.group_end()) else {
            return;
        };
        if self.is_unverified() {
            return;
        }
        if first >= all {
            if self.log.writes.is_empty() {
                self.log.write_all_from = None;
                self.outputs.wake();
            }
            return;
        }
        let pages = Pages {
            first,
            count: PAGES_MAX.min(all - first),
        };
        if !self.log.writes.iter().any(|it| it.pages.overlaps(pages)) {
            self.log.write_all_from = Some(first + pages.count);
            self.write_pages(pages);
        }
    }

    /// How many pages there are, in whole groups.
    fn group_end(&self) -> u32 {
        let last = (self.log.dirty.pages() as u32).saturating_sub(1);
        let group = self.group(last);
        group.first + group.count
    }

    pub(super) fn pages_done(&mut self, first: u32, leg: u8, outcome: Outcome) {
        let mut rounds = self.log.writes.iter();
        let Some(at) = rounds.position(|it| it.pages.first == first) else {
            return;
        };
        if !self.log.writes[at].round.ends(leg, outcome) {
            return;
        }
        let PageRound { pages, mut round } = self.log.writes.swap_remove(at);
        round.failed = round.failed.with(round.refused);
        self.leave(round);
        // A leg that failed it and stays is the last one in sync: the page is not on it.
        let written =
            !round.done.is_empty() && !round.failed.iter().any(|leg| self.legs.in_sync().has(leg));
        self.accepting.page_failed |= !written;
        for page in pages.first..pages.first + pages.count {
            for region in self.log.dirty.iter_page(page as usize) {
                if written && !self.log.late.is_set(region) {
                    self.log.durable.set(region);
                }
            }
        }
        for page in pages.first..pages.first + pages.count {
            if self.log.late.next_of_page(page as usize, 0).is_some() {
                self.write_page(page);
            }
        }
        self.write_all_on();
        self.after_pages(pages, round, written);
        if self.is_stopping() || self.is_growing() {
            self.outputs.wake();
        }
    }

    /// Clears all dirty bits: everything is flushed, and nothing is under way.
    pub(super) fn clear_all_dirty(&mut self) {
        self.log.cold.copy_from(&self.log.dirty);
        self.log.cold.remove(self.diverged.regions());
        self.log.cold.remove(self.unreadable.regions());
        self.clear_cold_bits();
    }

    /// Clears cold bits. Each group of pages is written once, with all of them, for pages are
    /// encoded when they are written.
    fn clear_cold_bits(&mut self) {
        let (mut from, mut group_end) = (0, 0);
        while let Some(region) = self.log.cold.next(from) {
            self.log.dirty.clear(region);
            self.log.durable.clear(region);
            if has(Bug::IntentsForgotten) {
                let missed = self.legs.iter_mut().filter_map(|(_, leg)| leg.missed_mut());
                missed.for_each(|missed| _ = missed.clear(region));
            }
            let page = Bitmap::page_of(region) as u32;
            if page >= group_end {
                let group = self.group(page);
                group_end = group.first + group.count;
                self.write_page(page);
            }
            from = region + 1;
        }
        self.log.settle_cold();
        self.log.cold.clear_all();
    }

    /// Writes that waited for these pages go on, or fail.
    fn after_pages(&mut self, pages: Pages, round: Round, written: bool) {
        for id in 0..self.ios.capacity() {
            let Some(slot) = self.ios.get(id) else {
                continue;
            };
            let Some(range) = slot.request.changes() else {
                continue;
            };
            if slot.phase() != super::requests::Phase::Dirtying {
                continue;
            }
            let lacks = |region: u64| {
                let here = pages.has(Bitmap::page_of(region) as u32);
                here && !self.log.durable.is_set(region) && !self.log.late.is_set(region)
            };
            match round.outcome {
                Some(outcome) if !written && self.state.geometry.regions_in(range).any(lacks) => {
                    self.finish(id, outcome);
                }
                _ => self.send_if_durable(id),
            }
        }
    }

    /// Flushes the legs, to clear the bits of cold regions; where a leg is stale, regions that a
    /// leg which leaves later won't lack.
    pub(super) fn clear_cold(&mut self) {
        self.log.clear_at_ns = Some(self.now_ns + self.config.clear_after_ns);
        let may_clear = self.may_clear();
        let useless = !may_clear && !self.may_settle();
        if self.log.clearing.is_some() || self.log.write_all_from.is_some() || useless {
            return;
        }
        if self.log.dirty.count() == 0 {
            self.log.clear_at_ns = None;
            return;
        }
        self.log.cold.copy_from(match may_clear {
            true => &self.log.dirty,
            false => &self.log.unflushed,
        });
        self.log.cold.remove(&self.log.recent);
        self.log.cold.remove(self.diverged.regions());
        self.log.cold.remove(self.unreadable.regions());
        self.log.recent.clear_all();
        for id in 0..self.ios.capacity() {
            if let Some(range) = self.ios.get(id).and_then(|slot| slot.request.changes()) {
                for region in self.state.geometry.regions_in(range) {
                    self.log.cold.clear(region);
                    self.log.recent.set(region);
                }
            }
        }
        if self.log.cold.next(0).is_some() {
            self.log.clearing = Some(self.outputs.flush(self.legs.writable(), Work::ClearCold));
        }
    }

    /// Whether dirty bits may be cleared: no leg lacks anything, nor is about to.
    pub(super) fn may_clear(&self) -> bool {
        let in_sync: Legs = self.state.in_sync().collect();
        let whole = in_sync == self.legs.in_sync() && !self.state.keeps_intents();
        let said = self.update.is_idle() && !self.is_growing();
        let well = !self.update.is_broken() && said && self.legs.rebuilding().is_empty();
        well && (whole || has(Bug::IntentsForgotten))
    }

    pub(super) fn cold_flushed(&mut self, leg: u8, outcome: Outcome) {
        let Some(round) = Round::take_ended(&mut self.log.clearing, leg, outcome) else {
            return; // others have not ended it
        };
        self.flush_over(round);
        match round.outcome {
            None if self.may_clear() => self.clear_cold_bits(),
            None if self.may_settle() => self.log.settle_cold(),
            _ => {}
        }
    }

    /// The next pages of a leg's bitmap are read.
    pub(super) fn read_pages(&mut self, leg: u8, first: u32) {
        let count = PAGES_MAX.min(self.group_end() - first);
        let ticket = self.outputs.ticket(leg, Work::ReadPages(first));
        let pages = Pages { first, count };
        self.outputs.push(Output::ReadPages(ticket, pages));
    }

    /// Pages of a leg's bitmap were read, or can't be.
    pub(super) fn pages_read(
        &mut self,
        first: u32,
        leg: u8,
        read: Result<(&[u8], crate::Crc32c), Outcome>,
    ) {
        let (bytes, crc32c): (&[u8], crate::Crc32c) = match read {
            Ok(read) => read,
            // All bits of the pages may be set.
            Err(Outcome::MediaError) => (&[], |_| 0),
            Err(outcome) => return self.read_failed(leg, outcome),
        };
        let (mirror, all) = (self.state.mirror, self.group_end());
        let count = PAGES_MAX.min(all - first);
        let mut pages = bytes.chunks(PAGE_BYTES);
        for index in (first..first + count).map(|it| it as usize) {
            let page = pages.next().unwrap_or_default();
            if index >= self.log.dirty.pages() {
                continue;
            }
            let merged = self.log.dirty.merge_page(index, page, mirror, crc32c);
            if merged.is_err() {
                self.log.dirty.suspect(index);
            }
            // A page under way lacks bits that are set now.
            for region in self.log.dirty.iter_page(index) {
                if !self.log.durable.is_set(region) {
                    self.log.late.set(region);
                }
            }
        }
        let next = first + count;
        self.continue_reading(leg, (next < all).then_some(next));
    }

    /// A leg's bitmap could not be read: its path failed.
    fn read_failed(&mut self, leg: u8, outcome: Outcome) {
        match self.legs.in_sync().has(leg) {
            true if self.legs.last_in_sync() == Some(leg) => {
                // All bits may be set on it.
                (0..self.log.dirty.pages()).for_each(|page| self.log.dirty.suspect(page));
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

    /// Whether `leg` is stale by the latest proposal.
    pub(super) fn is_stale(&self, leg: u8) -> bool {
        matches!(self.state.state(leg), Some(EntryState::Stale(_)))
    }
}
