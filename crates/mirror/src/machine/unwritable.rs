//! Blocks that a leg in sync could not write: they are recorded on the legs, and the leg stays.
//!
//! # Contract
//! A change that one leg failed by a medium error, and another leg in sync has done, is recorded as
//! bad on the first ([`Bad`](super::bad::Bad)); it is acknowledged when the record is durable, and
//! another leg in sync still has it. Later changes are tried on the leg as on all others. A flush,
//! or a change with FUA, ends after rewritten blocks are cleared from the record.
//!
//! Where all legs in sync fail a change, none is recorded: it fails, and its regions are resynced.
//! Where a leg leaves that has blocks which are bad on all that stay, they are recorded as its last
//! copy: a rebuild keeps them on that leg. On other legs that are being rebuilt they are recorded
//! as bad. A leg for which the record has no room leaves. So does a leg that may still execute a
//! write that it failed (T9).
use super::Mirror;
use super::bad::Recorded;
use super::jobs::{Job, PIECE_MIN};
use super::legs::{Legs, Round};
use super::requests::Phase;
use super::stop::StopState;
use block::Outcome;
use block::Range;

impl Mirror {
    /// Records a range as bad on a leg; `shared`: only if another leg in sync has it.
    fn record_bad(&mut self, leg: u8, range: Range, shared: bool) -> Recorded {
        let others = self.legs.in_sync().without(Legs::one(leg));
        if shared && self.bad.legs_in(others, range) == others {
            return Recorded::Alone;
        }
        // One that is being rebuilt has nothing that counts where it lacks a region.
        let counts = self.legs.in_sync().has(leg)
            || self
                .legs
                .rebuilt_in(self.generation.regions_in(range))
                .has(leg);
        let recorded = self.bad.record(leg, range, counts, &mut self.outputs);
        if recorded == Recorded::Kept {
            self.startup.needs_write = true;
            self.outputs.wake();
        } else {
            self.legs[leg].bad_full = Some(range);
        }
        recorded
    }

    /// Decides which legs need not leave that failed a change. `None`: all legs in sync failed it
    /// by medium errors, and all stay.
    pub(super) fn change_done(&mut self, id: u32, range: Range, round: Round) -> Option<Round> {
        let mut round = round;
        for leg in round.done.both(self.legs.writable()).iter() {
            if !self.bad.heal(leg, range, &mut self.outputs) {
                round.done.remove(leg);
                round.failed.add(leg);
                round.outcome = Some(Outcome::MediaError);
            }
        }
        let spoiled = self.legs.failed_by_medium(&round, self.now_ns);
        if round.done.both(self.legs.in_sync()).is_empty() {
            let all =
                self.legs.in_sync().without(spoiled).is_empty() && self.legs.in_sync().count() > 1;
            return (!all).then_some(round);
        }
        if self.bad.forget_last_copies(range) {
            self.startup.needs_write = true;
            self.outputs.wake();
            self.propose();
        }
        let mut bad = Legs::default();
        for leg in spoiled.iter() {
            if self.record_bad(leg, range, true) == Recorded::Kept {
                round.failed.remove(leg);
                bad.add(leg);
                // Smaller writes find which of the blocks it is.
                if range.end - range.start > PIECE_MIN {
                    self.repair(leg, range);
                }
            }
        }
        // The others have flushed blocks that are bad on a leg before the change is acknowledged.
        let is_bad = !self.bad.legs_in(self.legs.writable(), range).is_empty();
        let heals = self.bad.count_heals(is_bad);
        if let Some(slot) = self.ios.get_mut(id) {
            slot.round = round;
            slot.recorded = slot.recorded.with(bad);
            slot.heals = heals;
            slot.flushes |= is_bad;
        }
        if !bad.is_empty() {
            self.propose();
        }
        Some(round)
    }

    /// Flushes legs whose bad blocks were rewritten.
    pub(super) fn advance_heals(&mut self) {
        let waits = self.update.is_broken()
            || self.unverified.is_held(self.now_ns)
            || matches!(
                self.stop.state(),
                StopState::Flushing(_) | StopState::Clearing
            );
        if !waits && self.bad.is_flush_due(self.now_ns) {
            let losses = self.times_given_up();
            let legs = self.legs.writable();
            self.bad.begin_flush(legs, losses, &mut self.outputs);
        }
    }

    pub(super) fn heal_flushed(&mut self, leg: u8, outcome: Outcome) {
        let Some(round) = self.bad.leg_flushed(leg, outcome) else {
            return; // others have not ended it
        };
        self.flush_over(round);
        self.bad
            .clear_flushed(round.done.both(self.legs.writable()));
        let left = self.legs.writable().both(round.failed.with(round.refused));
        if left.is_empty() {
            let losses = self.times_given_up();
            self.bad
                .flushed(losses, &self.legs, self.generation.committed());
        } else {
            self.bad.pause(self.now_ns);
            // The last leg in sync can't flush: I/O that waits for that fails.
            let outcome = round.outcome.unwrap_or(Outcome::PathError);
            self.finish_where(outcome, |it, slot| {
                let waits = slot.phase() == Phase::Leaving && slot.request.reads().is_none();
                waits
                    && it.bad.holds(
                        slot,
                        &it.legs,
                        [it.generation.committed(), it.generation.proposed()],
                    )
            });
        }
        self.propose();
        self.resume_waiting();
    }

    /// The first bytes that no other leg in sync has, of what `leg` has in sync, or has as the last
    /// copy.
    pub fn last_copy_on(&self, leg: u8) -> Option<Range> {
        self.bad.last_copy_on(leg, self.legs.in_sync())
    }

    /// The first bytes that no leg in sync has, and the leg that has their last copy, if one has.
    pub fn without_any_copy(&self) -> Option<(Range, Option<u8>)> {
        self.bad.without_any_copy(self.legs.in_sync())
    }

    /// A piece was written to some legs, and others failed it: those that need not leave are taken
    /// out of the round. True: it is to be written once more in smaller pieces.
    pub(super) fn copy_spoiled(&mut self, number: u8, round: &mut Round) -> bool {
        let job = *self.copies.expect(number);
        let piece = job.piece;
        for leg in round.done.both(self.legs.writable()).iter() {
            if !self.bad.heal(leg, piece, &mut self.outputs) {
                round.failed.add(leg);
            }
        }
        let spoiled = self.legs.failed_by_medium(round, self.now_ns);
        if !spoiled.is_empty()
            && job
                .smaller_unit(self.generation.proposed().geometry.block_bytes())
                .is_some()
        {
            round.failed = round.failed.without(spoiled);
            return true;
        }
        for leg in spoiled.iter() {
            // Of one that is being rebuilt the data may be on a spare alone.
            let is_in_sync = self.legs.in_sync().has(leg);
            let lossy = match self.record_bad(leg, piece, is_in_sync) {
                Recorded::Kept => is_in_sync,
                Recorded::Alone => true,
                Recorded::Full => continue,
            };
            // The last one in sync stays besides.
            round.failed.remove(leg);
            self.copies.expect(number).lossy |= lossy;
        }
        false
    }

    /// No leg in sync has a piece. A leg that is being rebuilt keeps what it has where that is the
    /// last copy; else the piece is bad there, too.
    pub(super) fn copy_has_no_source(&mut self, job: &Job) {
        for leg in job.targets.both(self.legs.rebuilding()).iter() {
            let reaches = self
                .generation
                .proposed()
                .rebuilt_up_to(leg)
                .is_some_and(|it| it >= job.piece.end);
            let keeps = reaches && self.bad.keep_only_last_copy(leg, job.piece);
            if !keeps && self.record_bad(leg, job.piece, false) == Recorded::Full {
                self.lose(leg, Outcome::MediaError);
            }
        }
    }
}
