//! Legs that are being rebuilt: the regions that they lack, their positions, and when they join.
//!
//! # Contract
//! A leg lacks the regions that it missed (`missed`), and all from its position on. Copied data
//! count once the leg has flushed them: its position is committed, and it joins, by a generation
//! behind a flush. Regions that no leg can read stay lacking, so the leg does not join: it would
//! return other data than the lost ones.
use super::leg::Step;
use super::legs::{Round, Work};
use super::planted::{Bug, has};
use super::{Mirror, Output};
use block::Outcome;
use block::Range;

impl Mirror {
    /// Saves positions, and ends rebuilds.
    pub(super) fn advance_rebuilds(&mut self) {
        if self.stop.is_begun() || self.update.is_broken() {
            return;
        }
        for leg in self.legs.rebuilding().iter() {
            let it = self.legs.rebuild(leg);
            let Some(it) = it.filter(|it| it.step == Step::Copying && !it.flushing) else {
                continue;
            };
            if it.left() == 0 {
                self.flush_rebuilt(leg, Step::LastFlush, Step::Whole);
            } else if let Some(to) = self.position_due(leg) {
                self.flush_rebuilt(leg, Step::Flushing(to), Step::Position(to));
            }
        }
    }

    fn flush_rebuilt(&mut self, leg: u8, flushing: Step, flushed: Step) {
        let skip = match flushing {
            Step::LastFlush => has(Bug::JoinedUnflushed),
            _ => has(Bug::PositionUnflushed),
        };
        if skip {
            return self.set_step(leg, flushed);
        }
        self.set_step(leg, flushing);
        if let Some(it) = self.legs.rebuild_mut(leg) {
            it.flushing = true;
        }
        let ticket = self.outputs.ticket(leg, Work::Rebuilt);
        self.outputs.push(Output::Flush(ticket));
    }

    /// The position that is to be saved now, if one is.
    fn position_due(&self, leg: u8) -> Option<u64> {
        let (was, it) = (self.state.rebuilt_up_to(leg)?, self.legs.rebuild(leg)?);
        let bytes = self.state.geometry.bytes;
        let shift = self.state.geometry.region_shift;
        if was >= bytes {
            return None; // its intents say it all
        }
        let next = it.lacking().next(was >> shift);
        let to = next.map_or(bytes, |region| region << shift).min(bytes);
        let far = to.saturating_sub(was) >= self.config.position_bytes;
        (to > was && (far || self.now_ns >= it.save_at_ns)).then_some(to)
    }

    pub(super) fn rebuilt_flushed(&mut self, leg: u8, outcome: Outcome) {
        let save_at_ns = self.now_ns + self.config.position_ns;
        let Some(it) = self.legs.rebuild_mut(leg) else {
            return; // it has left meanwhile
        };
        it.flushing = false;
        let mut round = Round::default();
        round.end(leg, outcome);
        if !round.failed.is_empty() {
            return self.lose(leg, outcome);
        }
        it.save_at_ns = save_at_ns;
        it.step = match it.step {
            _ if !outcome.is_done() => Step::Copying,
            Step::Flushing(to) => Step::Position(to),
            Step::LastFlush => Step::Whole,
            step => step,
        };
        self.outputs.wake();
    }

    /// Returns the next region to be copied.
    pub(super) fn next_to_rebuild(&mut self) -> Option<u64> {
        let legs = self.legs.rebuilding();
        let nexts = legs.iter().filter_map(|leg| {
            let it = self.legs.rebuild(leg)?;
            if !matches!(
                it.step,
                Step::Copying | Step::Flushing(_) | Step::Position(_)
            ) {
                return None;
            }
            let busy = |at: u64| self.unreadable.is_paused(at) || self.copies.has_region(at);
            it.lacking().iter_from(it.cursor).find(|&at| !busy(at))
        });
        let next = nexts.min();
        if next.is_none() {
            // Regions that were passed over are tried again.
            for leg in legs.iter() {
                if let Some(it) = self.legs.rebuild_mut(leg) {
                    it.cursor = 0;
                }
            }
        }
        next
    }

    /// Returns how many regions a leg lacks that no leg can give it now.
    pub(super) fn stuck(&self, leg: u8) -> u64 {
        let it = self.legs.rebuild(leg);
        let Some(it) = it.filter(|_| self.unreadable.retries_at() < u64::MAX) else {
            return 0;
        };
        let paused = self.unreadable.paused().iter();
        paused.filter(|&region| it.lacks(region)).count() as u64
    }

    /// A region was copied to a leg, all of it.
    pub(super) fn has_region(&mut self, leg: u8, region: u64) {
        if let Some(it) = self.legs.rebuild_mut(leg) {
            it.has_region(region);
        }
        self.outputs.wake();
    }

    /// Legs may differ in these bytes, although no crash was between.
    pub(super) fn mark_diverged(&mut self, range: Range) {
        for region in self.state.geometry.regions_in(range) {
            if self.legs.in_sync().count() > 1 {
                self.diverged.mark(region, self.now_ns);
            }
            self.diverged.copy_again(region);
            for leg in self.legs.rebuilding().iter() {
                if let Some(missed) = self.legs[leg].missed_mut() {
                    missed.set(region);
                }
                if let Some(it) = self.legs.rebuild_mut(leg) {
                    it.lacks_again(region);
                }
            }
        }
        self.restart_copies();
        self.outputs.wake();
    }
}
