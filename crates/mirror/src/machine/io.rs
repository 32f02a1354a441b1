//! Reads, writes and flushes of users: when each is sent, to which legs, and when it ends.
//!
//! # Contract
//! A write waits for overlapping ones (T46), then for its dirty bits, then for all legs, then until
//! legs that failed it have left (T14). Where a leg refuses it for a reason that isn't the leg's (a
//! reservation of another host, a stop), or all legs find the request invalid, no leg leaves: the
//! I/O fails, and its regions are resynced. A read goes to a leg that has all of it (`read`). I/O
//! doesn't wait for legs that have left (`leaving`).
use super::legs::{Legs, Round, Work};
use super::planted::{Bug, has};
use super::requests::{Phase, Slot, Turn};
use super::{Mirror, News, Output, Request};
use block::Outcome;
use block::order::Ticket as Place;
use block::{Full, Range};

/// Whether all legs find the request invalid: that is no fault of theirs.
pub(super) fn is_wrong(outcome: Option<Outcome>) -> bool {
    use Outcome::{Invalid, PastEnd, Unsupported};
    matches!(outcome, Some(Invalid | PastEnd | Unsupported))
}

impl Mirror {
    /// Begins an I/O, inside the mirror; its number is free again after [`Output::Done`].
    ///
    /// # Errors
    /// [`Full`].
    pub fn submit(&mut self, request: Request, now_ns: u64) -> Result<u32, Full> {
        self.at(now_ns);
        if self.stop.is_begun() {
            return Err(Full);
        }
        let losses = self.times_given_up();
        let id = self.ios.begin(request, losses, self.now_ns)?;
        let without = self.config.ends_alone(request);
        if self.ownership.is_lost() {
            self.finish(id, Outcome::Reservation);
        } else if request.changes().is_some() && self.read_only {
            self.finish(id, Outcome::ReadOnly);
        } else if let Some(outcome) = without {
            self.finish(id, outcome);
        } else {
            if let Some(range) = request.changes() {
                self.ios.admit(id, range);
            }
            self.advance_io(id);
        }
        Ok(id)
    }

    /// Takes an I/O as far as it can go now.
    pub(super) fn advance_io(&mut self, id: u32) {
        let Some(slot) = self.ios.get(id) else {
            return; // there is none of this number, or it has ended
        };
        let range = slot.request.changes().or(slot.request.reads());
        match (slot.phase(), slot.request) {
            (Phase::Held, _) if range.is_some_and(|range| self.legs.has_lost(range)) => {
                self.finish(id, Outcome::CutShort);
            }
            (Phase::Held, Request::Read(range)) if self.may_be_read(range) => {
                self.offer_read(id);
            }
            // There is no resync until the last leg can be written again.
            (Phase::Held, Request::Read(_)) if self.update.is_broken() => {
                self.finish(id, Outcome::PathError);
            }
            (Phase::Held, Request::Read(_)) => self.outputs.wake(),
            (Phase::Held, Request::Flush) if has(Bug::FlushOnOne) => {
                let first = self.legs.writable().first();
                self.send(id, first.into_iter().collect());
            }
            (Phase::Held, Request::Flush) if self.ownership.leases.holds(self.now_ns) => {}
            (Phase::Held, Request::Flush) => self.send(id, self.legs.writable()),
            (Phase::Held, _) if self.update.is_broken() => self.finish(id, Outcome::PathError),
            (Phase::Held, _) if self.unverified.is_held(self.now_ns) => {}
            (Phase::Held, _) if !self.startup.is_running() => {
                self.startup.needs_write = true;
                self.outputs.wake();
            }
            (Phase::Held, request) if self.ios.may_begin(slot.place) || has(Bug::Overtaking) => {
                self.ios.set_phase(id, Phase::Dirtying);
                if let Some(range) = request.changes() {
                    self.mark_dirty(range);
                }
                self.send_if_durable(id);
            }
            (Phase::Dirtying, _) => self.send_if_durable(id),
            (Phase::Leaving, Request::Read(range)) => self.finish_held_read(id, range),
            (Phase::Leaving, _) => self.finish_change(id),
            _ => {}
        }
    }

    /// Whether all legs in sync have the same data.
    pub(super) fn may_be_read(&self, range: Range) -> bool {
        if has(Bug::UnalikeRead) {
            return true;
        }
        let unknown = self.startup.is_unclean && self.startup.is_reading();
        // A write of the owner before us may yet come.
        let late = |region| self.log.is_dirty(region);
        let reading = self.startup.is_reading();
        if self.ownership.leases.holds(self.now_ns)
            && (reading || self.generation.regions_in(range).any(late))
        {
            return false;
        }
        let differs = |region| self.diverged.has(region);
        !unknown && (self.diverged.is_empty() || !self.generation.regions_in(range).any(differs))
    }

    /// Sends a change whose dirty bits are durable.
    pub(super) fn send_if_durable(&mut self, id: u32) {
        if let Some(slot) = self.ios.get(id)
            && slot.phase() == Phase::Dirtying
            && let Some(range) = slot.request.changes()
        {
            let durable = |region| self.log.is_durable(region);
            if self.generation.regions_in(range).all(durable) || has(Bug::DataBeforeIntent) {
                match self.config.ends_alone(slot.request) {
                    Some(outcome) => self.finish(id, outcome),
                    None => self.send(id, self.legs.writable()),
                }
            }
        }
    }

    /// Sends a change or a flush to `legs`.
    fn send(&mut self, id: u32, legs: Legs) {
        self.ios.set_phase(id, Phase::Legs);
        let slot = self.ios.expect(id);
        slot.round = Round::of(legs);
        let request = slot.request;
        for leg in legs.iter() {
            let ticket = self.outputs.ticket(leg, Work::Io(id));
            self.outputs.push(Output::Leg(ticket, request));
        }
    }

    pub(super) fn io_done(&mut self, id: u32, leg: u8, outcome: Outcome) {
        let Some(slot) = self.ios.get_mut(id) else {
            return; // it has ended without the leg, which had left
        };
        if !slot.round.ends(leg, outcome) {
            return;
        }
        let slot = *slot;
        if self.ownership.is_lost() {
            return self.finish(id, Outcome::Reservation);
        }
        if let Request::Read(range) = slot.request {
            return self.read_done(id, leg, range, outcome);
        }
        let round = slot.round;
        let nobody = round.done.is_empty() && is_wrong(round.outcome);
        if !round.refused.is_empty() || nobody {
            if let Some(range) = slot.request.changes() {
                self.mark_diverged(range);
            }
            if !nobody {
                self.leave(round);
            }
            return self.finish(id, round.outcome.unwrap_or(Outcome::PathError));
        }
        let kept = match slot.request.changes() {
            Some(range) => self.change_done(id, range, round),
            None => Some(round),
        };
        let Some(round) = kept else {
            return self.all_failed(id, round);
        };
        let heals = self.bad.count_heals(false);
        if let (Some(slot), Request::Flush) = (self.ios.get_mut(id), slot.request) {
            slot.heals = heals;
        }
        self.leave(round);
        self.ios.set_phase(id, Phase::Leaving);
        self.finish_change(id);
    }

    /// No leg in sync could write a change, all by medium errors: no copy is better, so none
    /// leaves.
    fn all_failed(&mut self, id: u32, round: Round) {
        if let Some(range) = self.ios.get(id).and_then(|slot| slot.request.changes()) {
            self.mark_diverged(range);
        }
        self.leave_but_last(Round {
            failed: round.failed.without(round.media),
            ..round
        });
        self.finish(id, Outcome::MediaError);
    }

    /// Ends a change or flush once all legs have it that are in sync by a committed superblock.
    pub(super) fn finish_change(&mut self, id: u32) {
        let slot = *self.ios.expect(id);
        let round = slot.round;
        let states = [self.generation.committed(), self.generation.proposed()];
        let done = match slot.request {
            // A leg that has left may not have flushed all acknowledged changes.
            Request::Flush => round.done.both(self.legs.writable()),
            _ => round
                .done
                .with(self.bad.recorded_on(slot.recorded, slot.request, states)),
        };
        // The legs that have it must not have left before that was recorded.
        let alone = !slot.recorded.is_empty() && round.done.both(self.legs.in_sync()).is_empty();
        let missed = match has(Bug::AckBeforeStale) {
            true => self.legs.in_sync().without(done),
            false => self.generation.required().without(done),
        };
        // A leg that failed it and stays is the last one in sync: its error goes to the caller.
        if round.failed.iter().any(|leg| self.legs.in_sync().has(leg)) {
            // Legs that are being rebuilt may have it all the same.
            if let Some(range) = slot.request.changes() {
                self.mark_diverged(range);
            }
            self.finish(id, round.outcome.unwrap_or(Outcome::PathError));
        } else if alone {
            self.finish(id, Outcome::MediaError);
        } else if missed.is_empty() && !self.bad.holds(&slot, &self.legs, states)
            || self.read_only
            || has(Bug::FlushOnOne) && slot.request == Request::Flush
        {
            self.finish(id, Outcome::Done);
        } else if self.update.is_broken() {
            self.finish(id, Outcome::PathError);
        } else {
            // A new generation has to drop the legs that left, also where nothing was changed yet.
            self.startup.needs_write = !self.read_only;
            self.outputs.wake();
        }
    }

    pub(super) fn finish(&mut self, id: u32, outcome: Outcome) {
        let slot = self.ios.end(id);
        let outcome = match slot.request {
            Request::Flush => self.loss.end_flush(outcome),
            _ => outcome,
        };
        // Its number stays taken until the end is polled: another I/O must not be taken for it.
        self.outputs.push(Output::Done(id, outcome));
        self.copies.pace.served(self.now_ns - slot.since_ns);
        if self.stop.is_begun() {
            self.outputs.wake();
        }
        if let Some(place) = slot.place {
            self.release(place);
        }
    }

    /// Gives up a place; changes that waited for it go on.
    ///
    /// These may end at once, and release others: the outermost call starts these as well, so
    /// the depth of the stack does not depend on how many wait.
    pub(super) fn release(&mut self, place: Place) {
        if !self.ios.withdraw(place) {
            return; // an outer call starts them
        }
        while let Some(turn) = self.ios.next_turn() {
            match turn {
                Turn::Io(id) => self.advance_io(id),
                Turn::Copy(job) => self.start_piece(job),
            }
        }
    }

    /// Tries all waiting I/O again.
    pub(super) fn resume_waiting(&mut self) {
        for id in 0..self.ios.capacity() {
            self.advance_io(id);
        }
    }

    /// Ends all I/O for which `ends` holds.
    pub(super) fn finish_where(&mut self, outcome: Outcome, ends: impl Fn(&Self, &Slot) -> bool) {
        for id in 0..self.ios.capacity() {
            if self.ios.get(id).is_some_and(|slot| ends(self, &slot)) {
                self.finish(id, outcome);
            }
        }
    }

    /// Legs that failed a round leave; where no leg in sync has done it, the first one stays.
    pub(super) fn leave(&mut self, round: Round) {
        let outcome = round.outcome.unwrap_or(Outcome::PathError);
        let nobody = round.done.both(self.legs.in_sync()).is_empty();
        let first = round.failed.both(self.legs.in_sync()).first();
        for leg in round.failed.iter() {
            let stays = nobody && Some(leg) == first;
            match stays {
                true => self.keep_last(leg),
                false => self.drop_leg(leg, outcome),
            }
        }
        // All in one generation: it may not have any of the others in sync.
        if !round.failed.is_empty() {
            self.propose();
        }
    }

    /// Legs that failed a round leave, but for the last one in sync: only some legs in sync had the
    /// round, so the others may have done it.
    pub(super) fn leave_but_last(&mut self, round: Round) {
        let outcome = round.outcome.unwrap_or(Outcome::PathError);
        for leg in round.failed.iter() {
            self.drop_leg(leg, outcome);
        }
        if !round.failed.is_empty() {
            self.propose();
        }
    }

    /// A leg leaves, unless it is the last one in sync.
    pub(super) fn lose(&mut self, leg: u8, outcome: Outcome) {
        self.drop_leg(leg, outcome);
        self.propose();
    }

    pub(super) fn drop_leg(&mut self, leg: u8, outcome: Outcome) {
        if self.legs.last_in_sync() == Some(leg) {
            return self.keep_last(leg);
        }
        if !self.legs.writable().has(leg) {
            return;
        }
        let missed = self.missed_on_leave(leg);
        self.forget_rebuild(leg);
        let it = &mut self.legs[leg];
        it.gave_up = false;
        if let Some(stale) = it.stale_mut() {
            stale.missed = missed;
        }
        self.outputs.news(News::Left(leg, outcome));
        for range in self
            .bad
            .leg_left(leg, self.legs.in_sync(), &mut self.outputs)
        {
            self.mark_diverged(range);
        }
        self.without_copies(leg);
        self.outputs.wake();
    }
}
