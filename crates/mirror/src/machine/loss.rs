//! Losses of acknowledged writes with the cache of the last leg in sync: how they are reported, and
//! which reads wait for that (T13).
//!
//! # Contract
//! A leg that has lost acknowledged writes leaves, and gets them again. The last one in sync stays,
//! and one failed flush reports the loss. Where that was a flush of the mirror itself, or its
//! client has gone, the next flush of a user fails for the same reason, until a failure was
//! acknowledged. The leg gets its parts of changes that have not ended again. Of a change in
//! several I/Os some may have ended before: the caller repeats them all when
//! [`Mirror::times_given_up`] has changed meanwhile.
//!
//! Legs that left together with that one may have the lost data, and are in sync again if the
//! mirror starts anew before it is durable that they are stale. So a read of ranges with unflushed
//! changes is held until that is durable, and fails where it can't be: else a reader would see the
//! state before, and later the lost data.
use super::legs::{Ticket, Work};
use super::requests::Phase;
use super::{Mirror, Output};
use block::Outcome;
use block::Range;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Loss {
    /// Losses reported by the last leg in sync.
    reported_total: u32,
    /// Changes with each of them, and with each flush of a user that fails for an earlier one.
    flush_losses: u32,
    /// A flush of a user has failed for it, and it is not known whether its client got that.
    reported: Option<Outcome>,
    /// The next flush fails for it.
    unreported: Option<Outcome>,
    /// The last leg in sync may have less than others that have left.
    pub poorer: bool,
    /// Count of failed superblock updates.
    pub tries: u32,
}

impl Loss {
    /// The last leg in sync has lost acknowledged writes: a flush failed for it, which was a user's
    /// or the mirror's own.
    fn report(&mut self, is_of_user: bool, outcome: Outcome) {
        self.reported_total = self.reported_total.wrapping_add(1);
        self.flush_losses = self.flush_losses.wrapping_add(1);
        match is_of_user {
            true => self.reported = Some(outcome),
            false => self.unreported = Some(outcome),
        }
    }

    /// The failure of a flush has reached its client (`is_acknowledged`), or that had gone before.
    fn reached_client(&mut self, is_acknowledged: bool) {
        if is_acknowledged {
            (self.reported, self.unreported) = (None, None);
        } else {
            self.unreported = self.reported.or(self.unreported);
        }
    }

    /// Returns how a flush of a user ends.
    pub fn end_flush(&mut self, outcome: Outcome) -> Outcome {
        // A flush that fails for another reason does not report the loss: its client may have gone.
        match self.unreported {
            Some(loss) if outcome.is_done() => {
                (self.reported, self.unreported) = (Some(loss), None);
                // The front end must see that this failure is a loss, which no client may repeat:
                // one that came after the loss knows its count.
                self.flush_losses = self.flush_losses.wrapping_add(1);
                loss
            }
            _ => outcome,
        }
    }
}

impl Mirror {
    /// A leg has given up acknowledged unflushed writes. Called before the failure of its flush is
    /// reported.
    pub fn gives_up_writes(&mut self, leg: u8, now_ns: u64) {
        self.at(now_ns);
        self.legs[leg].gave_up = true;
    }

    /// How often the mirror has given up unflushed writes: a change that began before that and is
    /// not done yet is not known to be whole.
    pub fn times_given_up(&self) -> u32 {
        self.loss.reported_total
    }

    /// Changes with every loss that flushes of users fail for.
    pub fn flush_losses(&self) -> u32 {
        self.loss.flush_losses
    }

    /// A flush has failed, and its client got that (`is_acknowledged`), or had gone before.
    pub fn flush_failed_for(&mut self, is_acknowledged: bool) {
        self.loss.reached_client(is_acknowledged);
    }

    /// A flush has failed on the last leg in sync.
    pub(super) fn report_loss(&mut self, ticket: Ticket, outcome: Outcome) {
        self.loss.poorer = true;
        let gave_up = core::mem::take(&mut self.legs[ticket.leg].gave_up);
        if !gave_up && outcome == Outcome::PathError {
            return; // it could not be asked
        }
        self.bad.unheal(ticket.leg);
        // Legs that are being rebuilt may have data that this one has lost.
        for leg in self.legs.rebuilding().iter() {
            self.lose(leg, outcome);
        }
        self.repeat_changes(ticket.leg);
        let is_of_user = ticket.io().is_some();
        self.loss.report(is_of_user, outcome);
    }

    /// Repeats a leg's parts of changes that have not ended: it may have lost those too.
    fn repeat_changes(&mut self, leg: u8) {
        for id in 0..self.ios.capacity() {
            let Some(slot) = self.ios.get_mut(id) else {
                continue;
            };
            if slot.request.changes().is_some() && slot.round.done.has(leg) {
                slot.round.done.remove(leg);
                slot.round.waits.add(leg);
                let request = slot.request;
                self.ios.set_phase(id, Phase::Legs);
                let ticket = self.outputs.ticket(leg, Work::Io(id));
                self.outputs.push(Output::Leg(ticket, request));
            }
        }
    }

    /// Whether others than those in sync now may be in sync at the next start, and have more there.
    fn may_come_back(&self, range: Range) -> bool {
        let others = !self
            .generation
            .required()
            .without(self.legs.in_sync())
            .is_empty()
            && !self.read_only;
        self.loss.poorer
            && others
            && self
                .generation
                .regions_in(range)
                .any(|it| self.log.is_dirty(it))
    }

    /// Ends a read, or holds it.
    pub(super) fn finish_read(&mut self, id: u32, range: Range) {
        if !self.may_come_back(range) {
            return self.finish(id, Outcome::Done);
        }
        self.ios.set_phase(id, Phase::Leaving);
        self.ios.expect(id).tries = self.loss.tries;
        self.startup.needs_write = true;
        self.outputs.wake();
    }

    /// Ends a held read once it is durable which legs left, or an update has failed since.
    pub(super) fn finish_held_read(&mut self, id: u32, range: Range) {
        let tries = self.ios.expect(id).tries;
        if !self.may_come_back(range) {
            self.finish(id, Outcome::Done);
        } else if self.update.is_broken() && tries != self.loss.tries {
            self.finish(id, Outcome::PathError);
        }
    }
}
