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
            let Some(it) = it.filter(|it| it.is_idle()) else {
                continue;
            };
            if it.left() == 0 {
                self.flush_rebuilt(leg, Step::LastFlush, Step::Whole);
            } else if let Some(to) = self
                .generation
                .proposed()
                .rebuilt_up_to(leg)
                .and_then(|was| {
                    let (geometry, most) = (
                        &self.generation.proposed().geometry,
                        self.config.position_bytes,
                    );
                    it.position_due(was, geometry, most, self.now_ns)
                })
            {
                self.flush_rebuilt(leg, Step::Flushing(to), Step::Position(to));
            }
        }
    }

    fn flush_rebuilt(&mut self, leg: u8, flushing: Step, flushed: Step) {
        let skip = match flushing {
            Step::LastFlush => has(Bug::JoinedUnflushed),
            _ => has(Bug::PositionUnflushed),
        };
        self.outputs.wake();
        let rebuild = self.legs.expect_rebuild(leg);
        if skip {
            rebuild.set_step(flushing);
            return rebuild.set_step(flushed);
        }
        rebuild.begin_flush(flushing);
        let ticket = self.outputs.ticket(leg, Work::Rebuilt);
        self.outputs.push(Output::Flush(ticket));
    }

    pub(super) fn rebuilt_flushed(&mut self, leg: u8, outcome: Outcome) {
        let save_at_ns = self.now_ns + self.config.position_ns;
        let Some(it) = self.legs.rebuild_mut(leg) else {
            return; // it has left meanwhile
        };
        let mut round = Round::default();
        round.end(leg, outcome);
        if !round.failed.is_empty() {
            return self.lose(leg, outcome);
        }
        it.end_flush(outcome.is_done(), save_at_ns);
        self.outputs.wake();
    }

    /// Legs may differ in these bytes, although no crash was between.
    pub(super) fn mark_diverged(&mut self, range: Range) {
        for region in self.generation.regions_in(range) {
            if self.legs.in_sync().count() > 1 {
                self.diverged.mark(region, self.now_ns);
            }
            self.diverged.copy_again(region);
            self.legs.lack_again(region);
        }
        self.restart_copies();
        self.outputs.wake();
    }
}
