//! Dirty bits of regions: when they are on the legs, and when they are cleared.
//!
//! # Contract
//! One page serves all bits that wait for it. Pages are written in groups of a block of the mirror;
//! no page is written twice at a time. `takers` are the legs that get pages; `None`: the last leg
//! in sync may execute an older write of one, and [`DirtyLog::write_late`] writes it when that is
//! over. `dirty` decides what waits for bits, and when they are cleared.
use super::legs::{Legs, Round, Work};
use super::outputs::Outputs;
use super::{Output, Pages};
use crate::bitmap::{Bitmap, PAGE_BYTES};
use crate::layout::Geometry;
use crate::{Crc32c, Id};
use alloc::vec::Vec;
use block::Outcome;

/// Most pages that are written or read at once: 64 KiB.
const PAGES_MAX: u32 = 128;

/// Pages that are being written.
#[derive(Clone, Copy, Debug)]
struct PageRound {
    pages: Pages,
    round: Round,
}

/// The write-intent bitmap: which regions may be changing, and which of these bits are on the legs.
#[derive(Debug)]
pub(super) struct DirtyLog {
    /// Pages of a block of the mirror.
    group_pages: u32,
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
    /// Nothing is dirty.
    pub fn new(geometry: &Geometry) -> Self {
        let bits = || Bitmap::new(geometry.regions());
        Self {
            group_pages: 1 << (geometry.block_shift - 9),
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

    /// A region is changed: sets its bit, and writes its page where that is not durable.
    pub fn mark(&mut self, region: u64, takers: Option<Legs>, out: &mut Outputs) {
        self.cold.clear(region);
        self.recent.set(region);
        let was_clear = self.dirty.set(region);
        if self.durable.is_set(region) {
            return; // nothing to be written
        }
        let page = Bitmap::page_of(region) as u32;
        let is_being_written = || self.writes.iter().any(|it| it.pages.has(page));
        // T53: a page write under way has each bit that was set before it began. Marking such
        // a bit again would keep its region from becoming durable while writes keep coming.
        if was_clear || !is_being_written() {
            self.late.set(region);
            self.write_page(page, takers, out);
        }
    }

    /// Whether a page that is in `pages` is on its way to the legs without the bit of a region, and
    /// is not written once more.
    pub fn lacks(&self, pages: Pages, region: u64) -> bool {
        let here = pages.has(Bitmap::page_of(region) as u32);
        here && !self.durable.is_set(region) && !self.late.is_set(region)
    }

    /// Pages of the group that has `page`.
    fn group(&self, page: u32) -> Pages {
        Pages {
            first: page / self.group_pages * self.group_pages,
            count: self.group_pages,
        }
    }

    /// How many pages there are, in whole groups.
    fn group_end(&self) -> u32 {
        let last = (self.dirty.pages() as u32).saturating_sub(1);
        let group = self.group(last);
        group.first + group.count
    }

    /// Writes a page, unless that is being done: then its late bits are written afterwards.
    fn write_page(&mut self, page: u32, takers: Option<Legs>, out: &mut Outputs) {
        let pages = self.group(page);
        let is_under_way = self.writes.iter().any(|it| it.pages.overlaps(pages));
        if let Some(takers) = takers.filter(|_| !is_under_way) {
            self.write_pages(pages, takers, out);
        }
    }

    /// Writes pages that waited for late writes of the last leg.
    pub fn write_late(&mut self, takers: Option<Legs>, out: &mut Outputs) {
        for page in 0..self.dirty.pages() {
            if self.late.next_of_page(page, 0).is_some() {
                self.write_page(page as u32, takers, out);
            }
        }
        self.write_more(takers, out);
    }

    fn write_pages(&mut self, pages: Pages, takers: Legs, out: &mut Outputs) {
        for page in pages.first..pages.first + pages.count {
            self.late.clear_page(page as usize);
        }
        let round = Round::of(takers);
        self.writes.push(PageRound { pages, round });
        for leg in takers.iter() {
            let ticket = out.ticket(leg, Work::Pages(pages.first));
            out.push(Output::Pages(ticket, pages));
        }
    }

    /// Pages that are being written to `leg`.
    pub fn pages_on(&self, leg: u8) -> impl Iterator<Item = Pages> {
        let rounds = self.writes.iter();
        let there = rounds.filter(move |it| it.round.waits.has(leg));
        there.map(|it| it.pages)
    }

    /// Gives pages, from `first` on, to a leg once more. Returns whether it has not ended them.
    pub fn write_again(&self, first: u32, leg: u8, out: &mut Outputs) -> bool {
        let pages = self.pages_on(leg).find(|it| it.first == first);
        if let Some(pages) = pages {
            let ticket = out.ticket(leg, Work::Pages(first));
            out.push(Output::Pages(ticket, pages));
        }
        pages.is_some()
    }

    /// Begins to write the pages from the group of this one on.
    pub fn write_all_from(&mut self, page: u32, takers: Option<Legs>, out: &mut Outputs) {
        self.write_all_from = Some(self.group(page).first);
        self.write_more(takers, out);
    }

    /// Writes the next pages of all, if possible.
    fn write_more(&mut self, takers: Option<Legs>, out: &mut Outputs) {
        let (Some(first), Some(takers)) = (self.write_all_from, takers) else {
            return; // all are written, or none may be
        };
        let all = self.group_end();
        if first >= all {
            if self.writes.is_empty() {
                self.write_all_from = None;
                out.wake();
            }
            return;
        }
        let pages = Pages {
            first,
            count: PAGES_MAX.min(all - first),
        };
        if !self.writes.iter().any(|it| it.pages.overlaps(pages)) {
            self.write_all_from = Some(first + pages.count);
            self.write_pages(pages, takers, out);
        }
    }

    /// A write of pages, from `first` on, has ended on a leg. Returns how, once it has on all;
    /// [`Self::settle_write`] follows.
    pub fn end_write(&mut self, first: u32, leg: u8, outcome: Outcome) -> Option<(Pages, Round)> {
        let mut rounds = self.writes.iter();
        let at = rounds.position(|it| it.pages.first == first)?;
        if !self.writes[at].round.ends(leg, outcome) {
            return None;
        }
        let PageRound { pages, mut round } = self.writes.swap_remove(at);
        // Pages that were refused are as bad as pages that failed.
        round.failed = round.failed.with(round.refused);
        Some((pages, round))
    }

    /// Pages were `written` to the legs, or not: bits that they had are durable, others follow.
    pub fn settle_write(
        &mut self,
        pages: Pages,
        written: bool,
        takers: Option<Legs>,
        out: &mut Outputs,
    ) {
        let numbers = pages.first..pages.first + pages.count;
        for page in numbers.clone().filter(|_| written) {
            for region in self.dirty.iter_page(page as usize) {
                if !self.late.is_set(region) {
                    self.durable.set(region);
                }
            }
        }
        for page in numbers {
            if self.late.next_of_page(page as usize, 0).is_some() {
                self.write_page(page, takers, out);
            }
        }
        self.write_more(takers, out);
    }

    /// Flushes these legs, if there are regions that were not changed for a while, which are cold
    /// then: dirty ones, if all is to be cleared, else unflushed ones. None of those `but` is, nor
    /// those that are being changed (`busy`).
    pub fn begin_clearing(
        &mut self,
        clear: bool,
        but: [&Bitmap; 2],
        busy: impl Iterator<Item = u64>,
        legs: Legs,
        out: &mut Outputs,
    ) {
        if self.clearing.is_some() || self.write_all_from.is_some() {
            return; // at the next look
        }
        if self.dirty.count() == 0 {
            self.clear_at_ns = None;
            return;
        }
        self.cold.copy_from(match clear {
            true => &self.dirty,
            false => &self.unflushed,
        });
        self.cold.remove(&self.recent);
        but.into_iter().for_each(|map| self.cold.remove(map));
        self.recent.clear_all();
        for region in busy {
            self.cold.clear(region);
            self.recent.set(region);
        }
        if self.cold.next(0).is_some() {
            self.clearing = Some(out.flush(legs, Work::ClearCold));
        }
    }

    /// A leg has ended its part of the flush. Returns the round once all have.
    pub fn leg_flushed(&mut self, leg: u8, outcome: Outcome) -> Option<Round> {
        Round::take_ended(&mut self.clearing, leg, outcome)
    }

    /// All dirty regions but these are cold: everything is flushed, and nothing is under way.
    pub fn cool_all(&mut self, but: [&Bitmap; 2]) {
        self.cold.copy_from(&self.dirty);
        but.into_iter().for_each(|map| self.cold.remove(map));
    }

    /// The cold regions.
    pub fn cold(&self) -> &Bitmap {
        &self.cold
    }

    /// Clears cold bits. Each group of pages is written once, with all of them, for pages are
    /// encoded when they are written.
    pub fn clear_cold(&mut self, takers: Option<Legs>, out: &mut Outputs) {
        let (mut from, mut group_end) = (0, 0);
        while let Some(region) = self.cold.next(from) {
            self.dirty.clear(region);
            self.durable.clear(region);
            let page = Bitmap::page_of(region) as u32;
            if page >= group_end {
                let group = self.group(page);
                group_end = group.first + group.count;
                self.write_page(page, takers, out);
            }
            from = region + 1;
        }
        self.settle_cold();
        self.cold.clear_all();
    }

    /// Reads the next pages of a leg's bitmap.
    pub fn read_pages(&self, leg: u8, first: u32, out: &mut Outputs) {
        let count = PAGES_MAX.min(self.group_end() - first);
        let ticket = out.ticket(leg, Work::ReadPages(first));
        out.push(Output::ReadPages(ticket, Pages { first, count }));
    }

    /// Adds the bits of pages that were read, from `first` on; all of a page that is missing or not
    /// valid. Returns the next page, if there are more.
    pub fn merge_pages(
        &mut self,
        first: u32,
        bytes: &[u8],
        mirror: Id,
        crc32c: Crc32c,
    ) -> Option<u32> {
        let all = self.group_end();
        let next = first + PAGES_MAX.min(all - first);
        let mut pages = bytes.chunks(PAGE_BYTES);
        for index in (first..next).map(|it| it as usize) {
            let page = pages.next().unwrap_or_default();
            if index >= self.dirty.pages() {
                continue;
            }
            if self.dirty.merge_page(index, page, mirror, crc32c).is_err() {
                self.dirty.suspect(index);
            }
            // A page under way lacks bits that are set now.
            for region in self.dirty.iter_page(index) {
                if !self.durable.is_set(region) {
                    self.late.set(region);
                }
            }
        }
        (next < all).then_some(next)
    }

    /// All bits may be set on a leg.
    pub fn suspect_all(&mut self) {
        (0..self.dirty.pages()).for_each(|page| self.dirty.suspect(page));
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
