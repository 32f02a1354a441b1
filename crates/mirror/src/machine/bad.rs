//! Blocks that a leg in sync could not write: they are recorded on the legs, and the leg stays.
//!
//! # Contract
//! A change that one leg failed by a medium error, and another leg in sync has done, is recorded as
//! bad on the first; it is acknowledged when the record is durable, and another leg in sync still
//! has it. Bad blocks are read by no read, copy or check. Later changes are tried on the leg as on
//! all others. Blocks that it has written then are read there again at once; the record is cleared
//! when the leg has flushed them. A flush, or a change with FUA, ends after that.
//!
//! Where all legs in sync fail a change, none is recorded: it fails, and its regions are resynced.
//! Where a leg leaves that has blocks which are bad on all that stay, they are recorded as its last
//! copy until they are written: a rebuild keeps them on that leg. On other legs that are being
//! rebuilt they are recorded as bad.
//!
//! # Limits
//! [`Config::bad_ranges`](super::Config::bad_ranges) and
//! [`Config::bad_bytes`](super::Config::bad_bytes) of one leg, and [`RANGES_MAX`] of all legs; a
//! leg that would need more leaves. So does a leg that may still execute a write that it failed
//! (T9).
use super::copy::{Job, PIECE_MIN};
use super::io::{Phase, Slot};
use super::leg::Leg;
use super::legs::{Legs, Round, Work};
use super::lifecycle::Stop;
use super::planted::{Bug, has};
use super::{Mirror, News, Request};
use crate::Superblock;
use crate::bad::BadKind::{LastCopy, Unwritten};
use crate::bad::{BAD_MAX, BadBlocks, BadKind, BadRange};
use block::Outcome;
use block::Range;

/// Ranges of all legs that are recorded; the rest is room for ranges that are split.
const RANGES_MAX: usize = BAD_MAX - 8;
/// How long the next flush waits after one that the last leg in sync has failed.
const PAUSE_NS: u64 = 1_000_000_000;

/// The record, and how far it is on the legs.
#[derive(Clone, Debug, Default)]
pub(super) struct Bad {
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
    pub heals: u64,
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
    pub fn of(record: BadBlocks) -> Self {
        Self {
            kept: record,
            now: record,
            settled: record,
            ..Self::default()
        }
    }

    /// The leg's blocks count as bad again.
    pub fn unheal(&mut self, leg: u8) -> bool {
        let mut now = Some(self.now.retained(|it| it.slot != leg));
        for range in self.kept.of(leg, Unwritten) {
            now = now.and_then(|it| it.with(leg, Unwritten, range.first, range.end()));
        }
        self.now = now.unwrap_or(self.now);
        now.is_some()
    }
}

impl Mirror {
    fn block_shift(&self) -> u32 {
        self.state.geometry.block_shift.into()
    }

    /// The blocks that a range touches.
    fn touched(&self, range: Range) -> (u64, u64) {
        let shift = self.block_shift();
        (range.start >> shift, range.end.div_ceil(1 << shift))
    }

    fn bytes_in(&self, it: &BadRange) -> Range {
        let shift = self.block_shift();
        Range {
            start: it.first << shift,
            end: it.end() << shift,
        }
    }

    /// Whether a leg has bad blocks in a range.
    pub(super) fn is_bad(&self, leg: u8, range: Range) -> bool {
        if self.bad.now.is_empty() || has(Bug::BadRead) {
            return false;
        }
        let (first, end) = self.touched(range);
        self.bad.now.touches(leg, Unwritten, first, end)
    }

    /// Returns the legs that have bad blocks in a range.
    pub(super) fn bad_on(&self, legs: Legs, range: Range) -> Legs {
        if self.bad.now.is_empty() {
            return Legs::default();
        }
        legs.iter().filter(|leg| self.is_bad(*leg, range)).collect()
    }

    /// Cuts a range so that one of `legs` has all of it, as much as possible. Returns it and the
    /// legs that have it. Where none has its first block: as much of it as is bad on all of them.
    pub(super) fn fitted(&self, range: Range, legs: Legs) -> (Range, Legs) {
        if self.bad.now.is_empty() || has(Bug::BadRead) {
            return (range, legs);
        }
        let first = Range::new(range.start, 1);
        let good = legs.without(self.bad_on(legs, first));
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
        (piece, good.without(self.bad_on(good, piece)))
    }

    /// Cuts a range where bad blocks of a leg begin or end.
    pub(super) fn cut_at_edges(&self, range: Range, kind: BadKind, legs: Legs) -> Range {
        let mut end = range.end;
        let record = match kind {
            LastCopy => &self.bad.kept,
            Unwritten => &self.bad.now,
        };
        let of = |it: &&BadRange| it.kind == kind && legs.has(it.slot);
        for it in record.iter().filter(of).map(|it| self.bytes_in(it)) {
            let edges = [it.start, it.end].into_iter();
            end = edges.filter(|edge| *edge > range.start).fold(end, u64::min);
        }
        Range { end, ..range }
    }

    /// Records a range as bad on a leg, if another leg in sync has it. The next generation has the
    /// record.
    pub(super) fn record(&mut self, leg: u8, range: Range) -> Recorded {
        let others = self.legs.in_sync().without(Legs::one(leg));
        if self.bad_on(others, range) == others {
            return Recorded::Alone;
        }
        self.record_missing(leg, range)
    }

    /// Records a range as bad on a leg, whether or not another leg has it.
    fn record_missing(&mut self, leg: u8, range: Range) -> Recorded {
        let (first, end) = self.touched(range);
        let known = self.bad.now.covers(leg, Unwritten, first, end);
        let before = self.bad.kept.of(leg, Unwritten).count();
        let with = |it: &BadBlocks| it.with(leg, Unwritten, first, end);
        let (kept, now) = (with(&self.bad.kept), with(&self.bad.now));
        let (Some(kept), Some(now)) = (kept, now) else {
            return self.note_full(leg, range);
        };
        let ranges = kept.of(leg, Unwritten).count();
        let blocks = kept.of(leg, Unwritten).map(|it| u64::from(it.blocks));
        let bytes = blocks.sum::<u64>() << self.block_shift();
        let fits = kept.iter().count() <= RANGES_MAX && ranges <= self.config.bad_ranges;
        let fits = fits && bytes <= self.config.bad_bytes;
        if !known && !fits {
            return self.note_full(leg, range);
        }
        if !known {
            self.note_fresh(leg, range);
        }
        (self.bad.kept, self.bad.now) = (kept, now);
        // Ranges that the flush under way covers it does not.
        self.bad.flushed = with(&self.bad.flushed).unwrap_or(now);
        // A range that becomes longer is not reported again.
        if !known && ranges > before {
            self.outputs.news(News::Unwritable(leg, range));
        }
        self.startup.needs_write = true;
        self.outputs.wake();
        Recorded::Kept
    }

    /// A leg gets bad blocks: the others are to flush what they have there.
    fn note_fresh(&mut self, leg: u8, range: Range) {
        let (first, end) = self.touched(range);
        let before = self.bad.now;
        self.bad.settled = self.bad.settled.both(&before);
        self.bad.settling = self.bad.settling.both(&before);
        self.bad.refreshing = self.bad.refreshing.both(&before);
        self.bad.heals += 1;
        if !self.legs.in_sync().has(leg) && !self.rebuilt_spares(range).has(leg) {
            return; // it is being rebuilt, and has nothing there that counts
        }
        let mut fresh = BadBlocks::default().with(leg, Unwritten, first, end);
        for it in before.of(leg, Unwritten) {
            fresh = fresh.and_then(|of| of.without(leg, Unwritten, it.first, it.end()));
        }
        for it in fresh.unwrap_or_default().iter() {
            let with = self.bad.fresh.with(leg, Unwritten, it.first, it.end());
            self.bad.fresh = with.unwrap_or(self.bad.fresh);
        }
    }

    fn note_full(&mut self, leg: u8, range: Range) -> Recorded {
        self.legs[leg].bad_full = Some(range);
        Recorded::Full
    }

    /// Clears rewritten blocks of a leg. Returns false without room for the rest of a range that is
    /// split.
    fn heal(&mut self, leg: u8, range: Range) -> bool {
        let shift = self.block_shift();
        let (first, end) = (range.start.div_ceil(1 << shift), range.end >> shift);
        let some = !self.bad.now.is_empty() && first < end;
        if !some || !self.bad.now.touches(leg, Unwritten, first, end) {
            return true;
        }
        let Some(now) = self.bad.now.without(leg, Unwritten, first, end) else {
            return false;
        };
        self.bad.now = now;
        self.bad.fresh = self.bad.fresh.both(&now);
        self.bad.heals += 1;
        self.outputs.wake();
        if now.of(leg, Unwritten).next().is_none() {
            self.outputs.news(News::Rewritten(leg));
        }
        true
    }

    /// Legs of a round that failed it for the medium's sake, and do nothing of it any more.
    fn spoiled(&self, round: &Round) -> Legs {
        let over = |leg: &u8| self.legs[*leg].late_until_ns <= self.now_ns;
        let media = round.media.both(round.failed).both(self.legs.writable());
        media.iter().filter(over).collect()
    }

    /// Decides which legs need not leave that failed a change. `None`: all legs in sync failed it
    /// by medium errors, and all stay.
    pub(super) fn change_done(&mut self, id: u32, range: Range, round: Round) -> Option<Round> {
        let mut round = round;
        for leg in round.done.both(self.legs.writable()).iter() {
            if !self.heal(leg, range) {
                round.done.remove(leg);
                round.failed.add(leg);
                round.outcome = Some(Outcome::MediaError);
            }
        }
        let spoiled = self.spoiled(&round);
        if round.done.both(self.legs.in_sync()).is_empty() {
            let all =
                self.legs.in_sync().without(spoiled).is_empty() && self.legs.in_sync().count() > 1;
            return (!all).then_some(round);
        }
        self.forget_last_copies(range);
        let mut bad = Legs::default();
        for leg in spoiled.iter() {
            if self.record(leg, range) == Recorded::Kept {
                round.failed.remove(leg);
                bad.add(leg);
                // Smaller writes find which of the blocks it is.
                if range.end - range.start > PIECE_MIN {
                    self.repair(leg, range);
                }
            }
        }
        let all = self.bad_on(self.legs.writable(), range);
        // The others have flushed blocks that are bad on a leg before the change is acknowledged.
        self.bad.heals += u64::from(!all.is_empty());
        let heals = self.bad.heals;
        if let Some(slot) = self.io_mut(id) {
            slot.round = round;
            slot.recorded = slot.recorded.with(bad);
            slot.heals = heals;
            slot.flushes |= !all.is_empty();
        }
        if !bad.is_empty() {
            self.propose();
        }
        Some(round)
    }

    /// Returns the legs whose record of a change is durable.
    pub(super) fn recorded_on(&self, legs: Legs, request: Request) -> Legs {
        let Some(range) = request.changes().filter(|_| !legs.is_empty()) else {
            return Legs::default();
        };
        let (first, end) = self.touched(range);
        let covers = |it: &Superblock, leg| it.bad.covers(leg, Unwritten, first, end);
        // No generation under way takes it back.
        let is_recorded = |leg: &u8| covers(&self.committed, *leg) && covers(&self.state, *leg);
        legs.iter().filter(is_recorded).collect()
    }

    /// Whether an I/O waits for the record: a flush until rewritten blocks are cleared, a change
    /// until no record has a last copy of its blocks.
    pub(super) fn waits_for_record(&self, slot: &Slot) -> bool {
        let (request, heals) = (slot.request, slot.heals);
        if slot.flushes && heals > self.bad.cleared {
            return true;
        }
        let flushes = matches!(request, Request::Flush | Request::Write(_, true));
        let changes = request.changes();
        let is_due = || heals > self.bad.cleared || self.is_record_due();
        flushes && heals > self.bad.committed && is_due()
            || changes.is_some_and(|range| self.is_last_copy_reported(range))
    }

    fn is_last_copy_reported(&self, range: Range) -> bool {
        let (happened, state) = (&self.committed.bad, &self.state.bad);
        if happened.is_empty() && state.is_empty() {
            return false;
        }
        let (first, end) = self.touched(range);
        let of = |it: &BadRange| it.kind == LastCopy && it.first < end && first < it.end();
        happened.iter().any(of) || state.iter().any(of)
    }

    /// Forgets last copies of a changed range.
    fn forget_last_copies(&mut self, range: Range) {
        if !self.bad.kept.iter().any(|it| it.kind == LastCopy) {
            return;
        }
        let (first, end) = self.touched(range);
        let before = self.bad.kept;
        for leg in self.all_slots() {
            self.forget_last_copy(leg, first, end);
        }
        if self.bad.kept != before {
            self.startup.needs_write = true;
            self.outputs.wake();
            self.propose();
        }
    }

    fn forget_last_copy(&mut self, leg: u8, first: u64, end: u64) {
        let kept = self.bad.kept;
        // Where it can't be split all of it goes.
        self.bad.kept = kept.without(leg, LastCopy, first, end).unwrap_or_else(|| {
            let other = |it: &BadRange| it.end() <= first || end <= it.first;
            kept.retained(|it| it.slot != leg || it.kind != LastCopy || other(it))
        });
    }

    /// Flushes legs whose bad blocks were rewritten.
    pub(super) fn advance_heals(&mut self) {
        let waits = self.bad.flush.is_some() || self.update.is_broken() || self.is_unverified();
        let waits = waits
            || matches!(self.stop, Stop::Flushing(_) | Stop::Clearing)
            || self.now_ns < self.bad.pause_ns;
        if waits || self.bad.heals == self.bad.cleared {
            return;
        }
        (self.bad.flushed, self.bad.flushing) = (self.bad.now, self.bad.heals);
        self.bad.settling = self.bad.now;
        self.bad.refreshing = self.bad.fresh;
        self.bad.losses_before = self.times_given_up();
        self.bad.flush = Some(self.outputs.flush(self.legs.writable(), Work::Heal));
    }

    /// Whether the flush under way waits for a leg, and no loss was reported since it began.
    pub(super) fn heal_waits_for(&self, leg: u8) -> bool {
        let waits = self.bad.flush.is_some_and(|it| it.waits.has(leg));
        waits && self.bad.losses_before == self.times_given_up()
    }

    /// Returns when the next such flush begins, if it waits for a time.
    pub(super) fn heals_at(&self) -> u64 {
        match self.bad.pause_ns {
            at_ns if at_ns > self.now_ns && self.bad.heals > self.bad.cleared => at_ns,
            _ => u64::MAX,
        }
    }

    /// The last flush of a stop has ended on these legs: rewritten blocks are bad no more.
    pub(super) fn all_flushed(&mut self, legs: Legs) {
        self.bad.flushed = self.bad.now;
        legs.iter().for_each(|leg| self.clear_flushed(leg));
    }

    /// Whether the record differs from the committed one.
    fn is_record_due(&self) -> bool {
        self.record_of(&self.committed, &self.committed) != self.committed.bad
    }

    pub(super) fn heal_flushed(&mut self, leg: u8, outcome: Outcome) {
        let Some(round) = self.flush_ended(|it| &mut it.bad.flush, leg, outcome) else {
            return;
        };
        for leg in round.done.both(self.legs.writable()).iter() {
            self.clear_flushed(leg);
        }
        let left = self.legs.writable().both(round.failed.with(round.refused));
        if left.is_empty() && self.bad.losses_before != self.times_given_up() {
            // The last leg in sync has lost meanwhile what this covers: it is flushed again (T13).
        } else if left.is_empty() {
            self.bad.cleared = self.bad.flushing;
            self.settle();
        } else {
            self.bad.pause_ns = self.now_ns.saturating_add(PAUSE_NS);
            // The last leg in sync can't flush: I/O that waits for that fails.
            let outcome = round.outcome.unwrap_or(Outcome::PathError);
            self.finish_where(outcome, |it, slot| {
                let waits = slot.phase == Phase::Leaving && slot.request.reads().is_none();
                waits && it.waits_for_record(slot)
            });
        }
        self.propose();
        self.resume_waiting();
    }

    /// All legs in sync have flushed.
    fn settle(&mut self) {
        let mut settled = Some(self.bad.settled);
        for it in self.bad.settling.iter() {
            settled = settled.and_then(|all| all.with(it.slot, Unwritten, it.first, it.end()));
        }
        // Where there is no room, the last copy of the rest is not known as such.
        self.bad.settled = settled.unwrap_or(self.bad.settling);
        let mut fresh = Some(self.bad.fresh);
        for it in self.bad.refreshing.iter() {
            let without = |of: BadBlocks| of.without(it.slot, Unwritten, it.first, it.end());
            fresh = fresh.and_then(without);
        }
        self.bad.fresh = fresh.unwrap_or_default();
        if !self.is_record_due() {
            self.bad.committed = self.bad.cleared;
        }
    }

    /// Where all legs in sync have bad blocks, and some got them just now, the changes that failed
    /// there are not acknowledged: what these legs have is as good as before.
    fn forget_unsettled(&mut self) {
        let without_copy = self.without_copy(self.legs.in_sync(), false);
        for lost in without_copy.iter() {
            let mut any = false;
            for leg in self.legs.in_sync().iter() {
                let of_lost = BadBlocks::default().with(0, Unwritten, lost.first, lost.end());
                let fresh = self.bad.fresh.of_one(leg, Unwritten);
                for it in of_lost.unwrap_or_default().both(&fresh).iter() {
                    any |= self.forget_bad(leg, it);
                }
            }
            if any {
                self.mark_diverged(self.bytes_in(lost));
            }
        }
    }

    fn forget_bad(&mut self, leg: u8, it: &BadRange) -> bool {
        let without = |of: &BadBlocks| of.without(leg, Unwritten, it.first, it.end());
        let (kept, now) = (without(&self.bad.kept), without(&self.bad.now));
        let (Some(kept), Some(now)) = (kept, now) else {
            return false;
        };
        self.bad.flushed = without(&self.bad.flushed).unwrap_or(now);
        self.bad.settling = self.bad.settling.both(&now);
        self.bad.fresh = self.bad.fresh.both(&now);
        (self.bad.kept, self.bad.now) = (kept, now);
        self.bad.heals += 1;
        self.outputs.wake();
        true
    }

    /// Clears blocks that a leg has rewritten and flushed.
    fn clear_flushed(&mut self, leg: u8) {
        let mut kept = Some(
            self.bad
                .kept
                .retained(|it| it.slot != leg || it.kind != Unwritten),
        );
        for record in [&self.bad.flushed, &self.bad.now] {
            for it in record.of(leg, Unwritten) {
                kept = kept.and_then(|kept| kept.with(leg, Unwritten, it.first, it.end()));
            }
        }
        self.bad.kept = kept.unwrap_or(self.bad.kept);
    }

    /// Returns the record of a generation: of its legs, and with the last copies on legs that
    /// leave.
    pub(super) fn record_of(&self, now: &Superblock, next: &Superblock) -> BadBlocks {
        let in_sync: Legs = next.in_sync().collect();
        let is_leg = |slot: u8| next.legs[usize::from(slot)].is_some();
        let counts = |slot: u8| {
            let stale = self.legs.get(slot).and_then(Leg::stale);
            is_leg(slot) && !stale.is_some_and(|it| it.is_void || it.is_discarded)
        };
        let mut record = self.bad.kept.retained(|it| match it.kind {
            Unwritten => is_leg(it.slot),
            LastCopy => counts(it.slot),
        });
        for slot in now.in_sync().filter(|slot| !in_sync.has(*slot)) {
            if counts(slot) {
                record = self.with_last_copies(record, slot, in_sync);
            }
        }
        record
    }

    /// Begins with the record of the assembly, and the last copies on legs that were in sync, are
    /// not there, and are left out.
    pub(super) fn begin_with_bad(&mut self, there: Legs) {
        let in_sync: Legs = self.state.in_sync().collect();
        let before: Legs = self.startup.newest.in_sync().collect();
        let is_leg = |slot: u8| self.state.legs[usize::from(slot)].is_some();
        let mut record = self.state.bad.retained(|it| is_leg(it.slot));
        self.bad = Bad::of(record);
        for slot in before.without(in_sync).without(there).iter() {
            if is_leg(slot) {
                record = self.with_last_copies(record, slot, in_sync);
            }
        }
        self.bad.kept = record;
    }

    /// Adds the blocks that only `leg` has, of those that are bad on all legs in sync.
    fn with_last_copies(&self, record: BadBlocks, leg: u8, in_sync: Legs) -> BadBlocks {
        let mut with = record;
        for range in self.without_copy(in_sync, true).iter() {
            let mut own = BadBlocks::default().with(leg, LastCopy, range.first, range.end());
            for it in self.bad.kept.of(leg, Unwritten) {
                own = own.and_then(|own| own.without(leg, LastCopy, it.first, it.end()));
            }
            let own = own.unwrap_or_default();
            for it in own.iter() {
                with = with.with(leg, LastCopy, it.first, it.end()).unwrap_or(with);
            }
        }
        with
    }

    /// Returns the blocks that are bad on a leg; settled: and were when all had flushed.
    fn bad_ranges(&self, leg: u8, settled: bool) -> BadBlocks {
        let all = self.bad.now.of_one(leg, Unwritten);
        match settled {
            true => all.both(&self.bad.settled.of_one(leg, Unwritten)),
            false => all,
        }
    }

    /// Block ranges that are bad on all of `legs`; settled: on each of them.
    fn without_copy(&self, legs: Legs, settled: bool) -> BadBlocks {
        let mut all = legs.iter().map(|leg| self.bad_ranges(leg, settled));
        let first = all.next().unwrap_or_default();
        all.fold(first, |common, other| common.both(&other))
    }

    /// The first bytes that no other leg in sync has, of what `leg` has in sync, or has as the last
    /// copy.
    pub fn last_copy_on(&self, leg: u8) -> Option<Range> {
        let others = self.legs.in_sync().without(Legs::one(leg));
        if self.bad.kept.is_empty() || others.is_empty() {
            return None;
        }
        let record = match self.legs.in_sync().has(leg) {
            true => self.with_last_copies(BadBlocks::default(), leg, others),
            false => self.bad.kept,
        };
        let first = record.of(leg, LastCopy).next().copied();
        first.map(|it| self.bytes_in(&it))
    }

    /// The first bytes that no leg in sync has, and the leg that has their last copy, if one has.
    pub fn without_any_copy(&self) -> Option<(Range, Option<u8>)> {
        if self.bad.now.is_empty() || self.legs.in_sync().is_empty() {
            return None;
        }
        let without_copy = self.without_copy(self.legs.in_sync(), false);
        let (first, end) = without_copy.iter().next().map(|it| (it.first, it.end()))?;
        let has = |leg: &u8| self.bad.kept.touches(*leg, LastCopy, first, end);
        let shift = self.block_shift();
        let range = Range {
            start: first << shift,
            end: end << shift,
        };
        Some((range, self.all_slots().find(has)))
    }

    /// Ranges that are bad on a leg by the record, bytes of them, and the first.
    pub(super) fn bad_of(&self, leg: u8) -> (u32, u64, Option<Range>) {
        let of = || self.bad.kept.of(leg, Unwritten).map(|it| self.bytes_in(it));
        let bytes = of().map(|it| it.end - it.start).sum();
        (of().count() as u32, bytes, of().next())
    }

    /// A leg has left: blocks that it has rewritten and not flushed are bad again.
    pub(super) fn bad_without(&mut self, leg: u8) {
        if self.bad.kept.is_empty() {
            return;
        }
        self.bad.unheal(leg);
        self.forget_unsettled();
        if let Some((range, _)) = self.without_any_copy() {
            self.outputs.news(News::NoCopy(leg, range));
        }
    }

    /// A leg is about to get every write again: regions in which it has bad blocks are copied to
    /// it; without room to know them it can't return.
    pub(super) fn bad_returns(&mut self, leg: u8, whole: bool) -> bool {
        if whole {
            // None of its data count.
            self.bad.kept = self
                .bad
                .kept
                .retained(|it| it.slot != leg || it.kind != LastCopy);
        }
        self.bad.unheal(leg)
    }

    /// Regions in which a leg has bad blocks.
    pub(super) fn bad_regions(&self, leg: u8) -> impl Iterator<Item = u64> {
        let record = self.bad.kept;
        let shift = self.state.geometry.region_shift;
        let mut at = 0;
        let ranges = core::iter::from_fn(move || {
            let it = record.of(leg, Unwritten).nth(at).copied();
            at += 1;
            it
        });
        let block_shift = self.block_shift();
        ranges.flat_map(move |it| {
            let (start, end) = (it.first << block_shift, it.end() << block_shift);
            start >> shift..end.div_ceil(1 << shift)
        })
    }

    /// A leg is in sync: it has the last copy of nothing, and others get what only it had.
    pub(super) fn bad_joined(&mut self, leg: u8) {
        if self.bad.kept.is_empty() {
            return;
        }
        let record = self.bad.kept;
        self.bad.kept = record.retained(|it| it.slot != leg || it.kind != LastCopy);
        for it in record.of(leg, LastCopy) {
            let range = self.bytes_in(it);
            for other in self.bad_on(self.legs.in_sync(), range).iter() {
                self.repair(other, range);
            }
        }
        for it in record.of(leg, Unwritten) {
            self.repair(leg, self.bytes_in(it));
        }
        self.outputs.wake();
    }

    /// Drops a removed leg from all records.
    pub(super) fn bad_removed(&mut self, leg: u8) {
        self.bad.kept = self.bad.kept.retained(|it| it.slot != leg);
        self.bad.now = self.bad.now.retained(|it| it.slot != leg);
        self.bad.flushed = self.bad.flushed.retained(|it| it.slot != leg);
        self.bad.settled = self.bad.settled.retained(|it| it.slot != leg);
        self.bad.settling = self.bad.settling.retained(|it| it.slot != leg);
        self.bad.fresh = self.bad.fresh.retained(|it| it.slot != leg);
        self.bad.refreshing = self.bad.refreshing.retained(|it| it.slot != leg);
    }

    /// A generation with this record is proposed.
    pub(super) fn propose_record(&mut self) {
        self.bad.kept = self.state.bad;
        self.bad.update = self.bad.cleared;
    }

    /// That generation was committed.
    pub(super) fn record_committed(&mut self) {
        self.bad.committed = self.bad.update;
    }

    /// A piece was written to some legs, and others failed it: those that need not leave are taken
    /// out of the round. True: it is to be written once more in smaller pieces.
    pub(super) fn copy_spoiled(&mut self, number: u8, round: &mut Round) -> bool {
        for leg in round.done.both(self.legs.writable()).iter() {
            let piece = self.job(number).map(|job| job.piece);
            if !piece.is_none_or(|piece| self.heal(leg, piece)) {
                round.failed.add(leg);
            }
        }
        let spoiled = self.spoiled(round);
        let job = self.job(number).map(|job| *job);
        let Some(job) = job.filter(|_| !spoiled.is_empty()) else {
            return false;
        };
        let piece = job.piece;
        if self.smaller_unit(&job).is_some() {
            round.failed = round.failed.without(spoiled);
            return true;
        }
        for leg in spoiled.iter() {
            // Of one that is being rebuilt the data may be on a spare alone.
            let recorded = match self.legs.in_sync().has(leg) {
                true => self.record(leg, piece),
                false => self.record_missing(leg, piece),
            };
            let lossy = match recorded {
                Recorded::Kept => self.legs.in_sync().has(leg),
                Recorded::Alone => true,
                Recorded::Full => continue,
            };
            // The last one in sync stays besides.
            round.failed.remove(leg);
            if let Some(job) = self.job(number) {
                job.lossy |= lossy;
            }
        }
        false
    }

    /// Forgets last copies of these blocks on all legs but one.
    fn keep_only(&mut self, leg: u8, first: u64, end: u64) {
        for other in self.all_slots().filter(|other| *other != leg) {
            self.forget_last_copy(other, first, end);
        }
    }

    /// No leg in sync has a piece. A leg that is being rebuilt keeps what it has where that is the
    /// last copy; else the piece is bad there, too.
    pub(super) fn copy_has_no_source(&mut self, job: &Job) {
        let targets = job.targets.both(self.legs.rebuilding());
        let (first, end) = self.touched(job.piece);
        for leg in targets.iter() {
            let reaches = self.position(leg).is_some_and(|it| it >= job.piece.end);
            let keeps = reaches && self.bad.kept.covers(leg, LastCopy, first, end);
            if keeps {
                // Another leg may have a change that failed: one of them counts.
                self.keep_only(leg, first, end);
            } else if self.record_missing(leg, job.piece) == Recorded::Full {
                self.lose(leg, Outcome::MediaError);
            }
        }
    }
}
