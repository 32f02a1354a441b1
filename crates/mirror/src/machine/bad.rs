//! Record of blocks that a leg could not write: as it is now, and as generations have it.
//!
//! # Contract
//! Bad blocks are read by no read, copy or check. Blocks that a leg has rewritten are read there
//! again at once; the record is cleared when all legs have flushed them. Blocks that are bad on all
//! legs in sync, and were when all had flushed, are the *last copy* of a leg that leaves and has
//! them, until they are written. `unwritable` decides what is recorded.
//!
//! # Limits
//! [`Config::bad_ranges`](super::Config::bad_ranges) and
//! [`Config::bad_bytes`](super::Config::bad_bytes) of one leg, and [`RANGES_MAX`] of all legs.
use super::leg::{Leg, LegTable};
use super::legs::{Legs, Round, SLOTS, Work};
use super::outputs::Outputs;
use super::planted::{Bug, has};
use super::requests::Slot;
use super::{Config, News, Request};
use crate::Superblock;
use crate::bad::BadKind::{LastCopy, Unwritten};
use crate::bad::{BAD_MAX, BadBlocks, BadKind, BadRange};
use alloc::vec::Vec;
use block::{Outcome, Range};

/// Ranges of all legs that are recorded; the rest is room for ranges that are split.
const RANGES_MAX: usize = BAD_MAX - 8;
/// How long the next flush waits after one that the last leg in sync has failed.
const PAUSE_NS: u64 = 1_000_000_000;

/// The record, and how far it is on the legs.
#[derive(Clone, Debug)]
pub(super) struct Bad {
    block_shift: u32,
    /// Limits of one leg.
    ranges_max: usize,
    bytes_max: u64,
    /// The record that the next generation has.
    kept: BadBlocks,
    /// The record without blocks that were rewritten since, and are not flushed yet.
    now: BadBlocks,
    /// `now` when the flush under way began, and blocks that were recorded since.
    flushed: BadBlocks,
    flush: Option<Round>,
    /// Losses that the last leg in sync had reported when that began.
    losses_before: u32,
    /// Blocks that were bad when all legs in sync had flushed: their data on legs where they are
    /// not bad are durable. And `now` when the flush under way began.
    settled: BadBlocks,
    settling: BadBlocks,
    /// Blocks recorded since the last such flush: the change that failed is not acknowledged. And
    /// those when the flush under way began.
    fresh: BadBlocks,
    refreshing: BadBlocks,
    /// No flush begins before that.
    pause_ns: u64,
    /// Count of changes that have rewritten bad blocks: so far; when the flush under way began; as
    /// in the record of the next generation, of the one under way, and of the committed one.
    heals: u64,
    flushing: u64,
    cleared: u64,
    update: u64,
    committed: u64,
}

/// Result of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    Kept,
    /// There is no room.
    Full,
    /// No other leg in sync has it.
    Alone,
}

impl Bad {
    /// The record of the assembly, whose next state is `state`.
    pub fn new(state: &Superblock, config: &Config) -> Self {
        let none = BadBlocks::default();
        let record = state.bad.retained(|it| is_leg(state, it.slot));
        Self {
            block_shift: state.geometry.block_shift.into(),
            ranges_max: config.bad_ranges,
            bytes_max: config.bad_bytes,
            kept: record,
            now: record,
            flushed: none,
            flush: None,
            losses_before: 0,
            settled: record,
            settling: none,
            fresh: none,
            refreshing: none,
            pause_ns: 0,
            heals: 0,
            flushing: 0,
            cleared: 0,
            update: 0,
            committed: 0,
        }
    }

    /// Adds the last copies on legs that were in sync by the newest superblock, are not `there`,
    /// and are left out by `state`.
    pub fn keep_left_out(&mut self, state: &Superblock, newest: &Superblock, there: Legs) {
        let in_sync: Legs = state.in_sync().collect();
        let before: Legs = newest.in_sync().collect();
        let mut record = self.kept;
        for slot in before.without(in_sync).without(there).iter() {
            if is_leg(state, slot) {
                record = self.with_last_copies(record, slot, in_sync);
            }
        }
        self.kept = record;
    }

    /// The blocks that a range touches.
    fn touched(&self, range: Range) -> (u64, u64) {
        let shift = self.block_shift;
        (range.start >> shift, range.end.div_ceil(1 << shift))
    }

    fn bytes_in(&self, it: &BadRange) -> Range {
        Range {
            start: it.first << self.block_shift,
            end: it.end() << self.block_shift,
        }
    }

    /// Whether a leg has bad blocks in a range.
    pub fn is_bad(&self, leg: u8, range: Range) -> bool {
        if self.now.is_empty() || has(Bug::BadRead) {
            return false;
        }
        let (first, end) = self.touched(range);
        self.now.touches(leg, Unwritten, first, end)
    }

    /// Returns the legs that have bad blocks in a range.
    pub fn legs_in(&self, legs: Legs, range: Range) -> Legs {
        if self.now.is_empty() {
            return Legs::default();
        }
        legs.iter().filter(|leg| self.is_bad(*leg, range)).collect()
    }

    /// Cuts a range so that one of `legs` has all of it, as much as possible. Returns it and the
    /// legs that have it. Where none has its first block: as much of it as is bad on all of them.
    pub fn fitted(&self, range: Range, legs: Legs) -> (Range, Legs) {
        if self.now.is_empty() || has(Bug::BadRead) {
            return (range, legs);
        }
        let first = Range::new(range.start, 1);
        let good = legs.without(self.legs_in(legs, first));
        // Bad blocks of a leg begin or end there for the first time.
        let edge = |leg: u8| self.cut_at_edges(range, Unwritten, Legs::one(leg)).end;
        let end = match good.is_empty() {
            false => good.iter().map(edge).max(),
            true => legs.iter().map(edge).min(),
        };
        let piece = Range {
            end: end.unwrap_or(range.end),
            ..range
        };
        (piece, good.without(self.legs_in(good, piece)))
    }

    /// Cuts a range where bad blocks of a leg begin or end.
    pub fn cut_at_edges(&self, range: Range, kind: BadKind, legs: Legs) -> Range {
        let mut end = range.end;
        let record = match kind {
            LastCopy => &self.kept,
            Unwritten => &self.now,
        };
        let of = |it: &&BadRange| it.kind == kind && legs.has(it.slot);
        for it in record.iter().filter(of).map(|it| self.bytes_in(it)) {
            let edges = [it.start, it.end].into_iter();
            end = edges.filter(|edge| *edge > range.start).fold(end, u64::min);
        }
        Range { end, ..range }
    }

    /// Records a range as bad on a leg. The next generation has the record. `counts`: the leg has
    /// something there that counts.
    pub fn record(&mut self, leg: u8, range: Range, counts: bool, out: &mut Outputs) -> Recorded {
        let (first, end) = self.touched(range);
        let known = self.now.covers(leg, Unwritten, first, end);
        let before = self.kept.of(leg, Unwritten).count();
        let with = |it: &BadBlocks| it.with(leg, Unwritten, first, end);
        let (Some(kept), Some(now)) = (with(&self.kept), with(&self.now)) else {
            return Recorded::Full;
        };
        let ranges = kept.of(leg, Unwritten).count();
        let blocks = kept.of(leg, Unwritten).map(|it| u64::from(it.blocks));
        let bytes = blocks.sum::<u64>() << self.block_shift;
        let fits = kept.iter().count() <= RANGES_MAX && ranges <= self.ranges_max;
        if !known && (!fits || bytes > self.bytes_max) {
            return Recorded::Full;
        }
        if !known {
            self.note_fresh(leg, (first, end), counts);
        }
        (self.kept, self.now) = (kept, now);
        // Ranges that the flush under way covers it does not.
        self.flushed = with(&self.flushed).unwrap_or(now);
        // A range that becomes longer is not reported again.
        if !known && ranges > before {
            out.news(News::Unwritable(leg, range));
        }
        Recorded::Kept
    }

    /// A leg gets bad blocks: the others are to flush what they have there.
    fn note_fresh(&mut self, leg: u8, (first, end): (u64, u64), counts: bool) {
        let before = self.now;
        self.settled = self.settled.both(&before);
        self.settling = self.settling.both(&before);
        self.refreshing = self.refreshing.both(&before);
        self.heals += 1;
        if !counts {
            return; // nothing that was there is worse now
        }
        let mut fresh = BadBlocks::default().with(leg, Unwritten, first, end);
        for it in before.of(leg, Unwritten) {
            fresh = fresh.and_then(|of| of.without(leg, Unwritten, it.first, it.end()));
        }
        for it in fresh.unwrap_or_default().iter() {
            let with = self.fresh.with(leg, Unwritten, it.first, it.end());
            self.fresh = with.unwrap_or(self.fresh);
        }
    }

    /// Clears rewritten blocks of a leg. Returns false without room for the rest of a range that is
    /// split.
    pub fn heal(&mut self, leg: u8, range: Range, out: &mut Outputs) -> bool {
        let shift = self.block_shift;
        let (first, end) = (range.start.div_ceil(1 << shift), range.end >> shift);
        let some = !self.now.is_empty() && first < end;
        if !some || !self.now.touches(leg, Unwritten, first, end) {
            return true;
        }
        let Some(now) = self.now.without(leg, Unwritten, first, end) else {
            return false;
        };
        self.now = now;
        self.fresh = self.fresh.both(&now);
        self.heals += 1;
        out.wake();
        if now.of(leg, Unwritten).next().is_none() {
            out.news(News::Rewritten(leg));
        }
        true
    }

    /// The leg's blocks count as bad again. Returns false without room for them.
    pub fn unheal(&mut self, leg: u8) -> bool {
        let mut now = Some(self.now.retained(|it| it.slot != leg));
        for range in self.kept.of(leg, Unwritten) {
            now = now.and_then(|it| it.with(leg, Unwritten, range.first, range.end()));
        }
        self.now = now.unwrap_or(self.now);
        now.is_some()
    }

    /// Count of changes that have rewritten bad blocks. `is_bad`: one was done to blocks that are
    /// bad on a leg, so the others flush it first.
    pub fn count_heals(&mut self, is_bad: bool) -> u64 {
        self.heals += u64::from(is_bad);
        self.heals
    }

    /// Returns the legs whose record of a change is durable, and stays so: the committed state and
    /// the latest proposal have it.
    pub fn recorded_on(&self, legs: Legs, request: Request, states: [&Superblock; 2]) -> Legs {
        let Some(range) = request.changes().filter(|_| !legs.is_empty()) else {
            return Legs::default();
        };
        let (first, end) = self.touched(range);
        let covers = |it: &Superblock, leg| it.bad.covers(leg, Unwritten, first, end);
        let is_recorded = |leg: &u8| states.iter().all(|it| covers(it, *leg));
        legs.iter().filter(is_recorded).collect()
    }

    /// Whether an I/O waits for the record: a flush until rewritten blocks are cleared, a change
    /// until neither the committed state nor the latest proposal has a last copy of its blocks.
    pub fn holds(&self, slot: &Slot, legs: &LegTable, [committed, next]: [&Superblock; 2]) -> bool {
        let (request, heals) = (slot.request, slot.heals);
        if slot.flushes && heals > self.cleared {
            return true;
        }
        let flushes = matches!(request, Request::Flush | Request::Write(_, true));
        let is_due = || heals > self.cleared || self.is_due(legs, committed);
        if flushes && heals > self.committed && is_due() {
            return true;
        }
        let (committed, next) = (&committed.bad, &next.bad);
        let Some(range) = request.changes() else {
            return false;
        };
        let (first, end) = self.touched(range);
        let is_there = |it: &BadRange| it.kind == LastCopy && it.first < end && first < it.end();
        committed.iter().any(is_there) || next.iter().any(is_there)
    }

    /// Forgets last copies of a changed range. Returns whether there were any.
    pub fn forget_last_copies(&mut self, range: Range) -> bool {
        if !self.kept.iter().any(|it| it.kind == LastCopy) {
            return false;
        }
        let before = self.kept;
        SLOTS.for_each(|leg| self.forget_last_copy(leg, range));
        self.kept != before
    }

    fn forget_last_copy(&mut self, leg: u8, range: Range) {
        let (first, end) = self.touched(range);
        let kept = self.kept;
        // Where it can't be split all of it goes.
        self.kept = kept.without(leg, LastCopy, first, end).unwrap_or_else(|| {
            let other = |it: &BadRange| it.end() <= first || end <= it.first;
            kept.retained(|it| it.slot != leg || it.kind != LastCopy || other(it))
        });
    }

    /// Whether a leg has the last copy of a range. If so it is the only one that counts: another
    /// leg may have a change that failed.
    pub fn keep_only_last_copy(&mut self, leg: u8, range: Range) -> bool {
        let (first, end) = self.touched(range);
        let is_last = self.kept.covers(leg, LastCopy, first, end);
        for other in SLOTS.filter(|other| is_last && *other != leg) {
            self.forget_last_copy(other, range);
        }
        is_last
    }

    /// Whether legs whose bad blocks were rewritten are to be flushed now.
    pub fn is_flush_due(&self, now_ns: u64) -> bool {
        self.flush.is_none() && now_ns >= self.pause_ns && self.heals != self.cleared
    }

    /// Flushes these legs.
    pub fn begin_flush(&mut self, legs: Legs, losses_before: u32, out: &mut Outputs) {
        (self.flushed, self.flushing) = (self.now, self.heals);
        self.settling = self.now;
        self.refreshing = self.fresh;
        self.losses_before = losses_before;
        self.flush = Some(out.flush(legs, Work::Heal));
    }

    /// Whether the flush under way waits for a leg, and no loss was reported since it began.
    pub fn waits_for(&self, leg: u8, losses: u32) -> bool {
        let waits = self.flush.is_some_and(|it| it.waits.has(leg));
        waits && self.losses_before == losses
    }

    /// Returns when the next flush begins, if it waits for a time.
    pub fn flush_at(&self, now_ns: u64) -> u64 {
        match self.pause_ns {
            at_ns if at_ns > now_ns && self.heals > self.cleared => at_ns,
            _ => u64::MAX,
        }
    }

    /// A leg has ended its part of the flush. Returns the round once all have.
    pub fn leg_flushed(&mut self, leg: u8, outcome: Outcome) -> Option<Round> {
        Round::take_ended(&mut self.flush, leg, outcome)
    }

    /// The flush has ended, well or not, on these legs: none in sync has failed it.
    pub fn flushed(&mut self, losses: u32, legs: &LegTable, committed: &Superblock) {
        // Else the last leg in sync has lost meanwhile what this covers: it is flushed again (T13).
        if self.losses_before == losses {
            self.cleared = self.flushing;
            self.settle(legs, committed);
        }
    }

    /// The last leg in sync can't flush.
    pub fn pause(&mut self, now_ns: u64) {
        self.pause_ns = now_ns.saturating_add(PAUSE_NS);
    }

    /// The last flush of a stop has ended on these legs: rewritten blocks are bad no more.
    pub fn all_flushed(&mut self, legs: Legs) {
        self.flushed = self.now;
        self.clear_flushed(legs);
    }

    /// All legs in sync have flushed.
    fn settle(&mut self, legs: &LegTable, committed: &Superblock) {
        let mut settled = Some(self.settled);
        for it in self.settling.iter() {
            settled = settled.and_then(|all| all.with(it.slot, Unwritten, it.first, it.end()));
        }
        // Where there is no room, the last copy of the rest is not known as such.
        self.settled = settled.unwrap_or(self.settling);
        let mut fresh = Some(self.fresh);
        for it in self.refreshing.iter() {
            let without = |of: BadBlocks| of.without(it.slot, Unwritten, it.first, it.end());
            fresh = fresh.and_then(without);
        }
        self.fresh = fresh.unwrap_or_default();
        if !self.is_due(legs, committed) {
            self.committed = self.cleared;
        }
    }

    /// Clears blocks that these legs have rewritten and flushed.
    pub fn clear_flushed(&mut self, legs: Legs) {
        for leg in legs.iter() {
            let other = |it: &BadRange| it.slot != leg || it.kind != Unwritten;
            let mut kept = Some(self.kept.retained(other));
            for record in [&self.flushed, &self.now] {
                for it in record.of(leg, Unwritten) {
                    kept = kept.and_then(|kept| kept.with(leg, Unwritten, it.first, it.end()));
                }
            }
            self.kept = kept.unwrap_or(self.kept);
        }
    }

    /// Whether the record differs from the committed one.
    fn is_due(&self, legs: &LegTable, committed: &Superblock) -> bool {
        self.of_generation(legs, committed, committed) != committed.bad
    }

    /// Returns the record of generation `next` after `now`: of its legs, and with the last copies
    /// on legs that leave.
    pub fn of_generation(&self, legs: &LegTable, now: &Superblock, next: &Superblock) -> BadBlocks {
        let in_sync: Legs = next.in_sync().collect();
        let counts = |slot: u8| {
            let stale = legs.get(slot).and_then(Leg::stale);
            is_leg(next, slot) && !stale.is_some_and(|it| it.is_void || it.is_discarded)
        };
        let mut record = self.kept.retained(|it| match it.kind {
            Unwritten => is_leg(next, it.slot),
            LastCopy => counts(it.slot),
        });
        for slot in now.in_sync().filter(|slot| !in_sync.has(*slot)) {
            if counts(slot) {
                record = self.with_last_copies(record, slot, in_sync);
            }
        }
        record
    }

    /// A generation with this record is proposed.
    pub fn note_proposed(&mut self, record: BadBlocks) {
        self.kept = record;
        self.update = self.cleared;
    }

    /// That generation was committed.
    pub fn note_committed(&mut self) {
        self.committed = self.update;
    }

    /// Adds the blocks that only `leg` has, of those that are bad on all legs in sync.
    fn with_last_copies(&self, record: BadBlocks, leg: u8, in_sync: Legs) -> BadBlocks {
        let mut with = record;
        for range in self.without_copy(in_sync, true).iter() {
            let mut own = BadBlocks::default().with(leg, LastCopy, range.first, range.end());
            for it in self.kept.of(leg, Unwritten) {
                own = own.and_then(|own| own.without(leg, LastCopy, it.first, it.end()));
            }
            let own = own.unwrap_or_default();
            for it in own.iter() {
                with = with.with(leg, LastCopy, it.first, it.end()).unwrap_or(with);
            }
        }
        with
    }

    /// Block ranges that are bad on all of `legs`; settled: and were, on each, when all had
    /// flushed.
    fn without_copy(&self, legs: Legs, settled: bool) -> BadBlocks {
        let of = |leg: u8| {
            let all = self.now.of_one(leg, Unwritten);
            match settled {
                true => all.both(&self.settled.of_one(leg, Unwritten)),
                false => all,
            }
        };
        let mut all = legs.iter().map(of);
        let first = all.next().unwrap_or_default();
        all.fold(first, |common, other| common.both(&other))
    }

    /// The first bytes that no other leg in sync has, of what `leg` has in sync, or has as the last
    /// copy.
    pub fn last_copy_on(&self, leg: u8, in_sync: Legs) -> Option<Range> {
        let others = in_sync.without(Legs::one(leg));
        if self.kept.is_empty() || others.is_empty() {
            return None;
        }
        let record = match in_sync.has(leg) {
            true => self.with_last_copies(BadBlocks::default(), leg, others),
            false => self.kept,
        };
        let first = record.of(leg, LastCopy).next().copied();
        first.map(|it| self.bytes_in(&it))
    }

    /// The first bytes that no leg in sync has, and the leg that has their last copy, if one has.
    pub fn without_any_copy(&self, in_sync: Legs) -> Option<(Range, Option<u8>)> {
        if self.now.is_empty() || in_sync.is_empty() {
            return None;
        }
        let lost = *self.without_copy(in_sync, false).iter().next()?;
        let has = |leg: &u8| self.kept.touches(*leg, LastCopy, lost.first, lost.end());
        Some((self.bytes_in(&lost), SLOTS.into_iter().find(has)))
    }

    /// Ranges that are bad on a leg by the record, bytes of them, and the first.
    pub fn of_leg(&self, leg: u8) -> (u32, u64, Option<Range>) {
        let of = || self.kept.of(leg, Unwritten).map(|it| self.bytes_in(it));
        let bytes = of().map(|it| it.end - it.start).sum();
        (of().count() as u32, bytes, of().next())
    }

    /// Regions in which a leg has bad blocks.
    pub fn regions_of(&self, leg: u8, region_shift: u32) -> impl Iterator<Item = u64> {
        let ranges = self.kept.of(leg, Unwritten).map(|it| self.bytes_in(it));
        ranges.flat_map(move |it| it.start >> region_shift..it.end.div_ceil(1 << region_shift))
    }

    /// A leg has left: blocks that it has rewritten and not flushed are bad again. Returns the
    /// ranges in which legs in sync may differ from now on.
    pub fn leg_left(&mut self, leg: u8, in_sync: Legs, out: &mut Outputs) -> Vec<Range> {
        if self.kept.is_empty() {
            return Vec::new();
        }
        self.unheal(leg);
        let diverged = self.forget_unsettled(in_sync, out);
        if let Some((range, _)) = self.without_any_copy(in_sync) {
            out.news(News::NoCopy(leg, range));
        }
        diverged
    }

    /// Where all legs in sync have bad blocks, and some got them just now, the changes that failed
    /// there are not acknowledged: what these legs have is as good as before. Returns the ranges.
    fn forget_unsettled(&mut self, in_sync: Legs, out: &mut Outputs) -> Vec<Range> {
        let mut forgotten = Vec::new();
        for lost in self.without_copy(in_sync, false).iter() {
            let mut any = false;
            for leg in in_sync.iter() {
                let of_lost = BadBlocks::default().with(0, Unwritten, lost.first, lost.end());
                let fresh = self.fresh.of_one(leg, Unwritten);
                for it in of_lost.unwrap_or_default().both(&fresh).iter() {
                    any |= self.forget(leg, it);
                }
            }
            if any {
                forgotten.push(self.bytes_in(lost));
                out.wake();
            }
        }
        forgotten
    }

    fn forget(&mut self, leg: u8, it: &BadRange) -> bool {
        let without = |of: &BadBlocks| of.without(leg, Unwritten, it.first, it.end());
        let (Some(kept), Some(now)) = (without(&self.kept), without(&self.now)) else {
            return false;
        };
        self.flushed = without(&self.flushed).unwrap_or(now);
        self.settling = self.settling.both(&now);
        self.fresh = self.fresh.both(&now);
        (self.kept, self.now) = (kept, now);
        self.heals += 1;
        true
    }

    /// A leg is about to get every write again. Returns false without room to know its bad blocks:
    /// it can't return. `whole`: none of its data count.
    pub fn leg_returns(&mut self, leg: u8, whole: bool) -> bool {
        if whole {
            self.forget_last_copies_on(leg);
        }
        self.unheal(leg)
    }

    fn forget_last_copies_on(&mut self, leg: u8) {
        let other = |it: &BadRange| it.slot != leg || it.kind != LastCopy;
        self.kept = self.kept.retained(other);
    }

    /// A leg is in sync: it has the last copy of nothing. Returns the ranges that legs are to get
    /// again: others what only it had, and the leg its bad blocks.
    pub fn leg_joined(&mut self, leg: u8, in_sync: Legs) -> Vec<(u8, Range)> {
        let record = self.kept;
        self.forget_last_copies_on(leg);
        let own = record.of(leg, LastCopy).flat_map(|it| {
            let range = self.bytes_in(it);
            self.legs_in(in_sync, range)
                .iter()
                .map(move |other| (other, range))
        });
        let bad = record.of(leg, Unwritten).map(|it| (leg, self.bytes_in(it)));
        own.chain(bad).collect()
    }

    /// Drops a removed leg from all records.
    pub fn remove_leg(&mut self, leg: u8) {
        for record in [
            &mut self.kept,
            &mut self.now,
            &mut self.flushed,
            &mut self.settled,
            &mut self.settling,
            &mut self.fresh,
            &mut self.refreshing,
        ] {
            *record = record.retained(|it| it.slot != leg);
        }
    }
}

fn is_leg(state: &Superblock, slot: u8) -> bool {
    state.legs[usize::from(slot)].is_some()
}
