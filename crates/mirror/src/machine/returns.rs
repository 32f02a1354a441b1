//! Legs that return: when, whether they may, and the steps before their rebuild.
//!
//! # Contract
//! One at a time. A leg returns when nothing that it was given is under way and its fence has
//! passed (T9), and a committed generation has it stale. Its superblocks are read anew, and its
//! state must be an earlier one of this mirror. Where this engine does not know what it missed
//! (`missed`), its own bitmap is read, since it may have executed writes that were not
//! acknowledged. Then it gets every write, and all pages of the bitmap; then a generation has it as
//! being rebuilt.
use super::leg::{Change, Leg, LegState, Rebuild, Step};
use super::legs::{SLOTS, Work};
use super::planted::{Bug, has};
use super::spare::Spare;
use super::{Mirror, News, Output};
use crate::assembly::{Role, Wishes, assemble};
use crate::copies::{Chosen, NoLeg};
use crate::ownership::Watch;
use crate::superblock::{EntryState, Lack};
use crate::{Label, Superblock};
use alloc::boxed::Box;
use block::Outcome;

/// Why a leg that is reachable can't return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It could not be read.
    Failed(Outcome),
    /// It has no valid superblock.
    NoLeg(NoLeg),
    /// It is another leg, or of another mirror.
    Other,
    /// It was written since it left, or may have been.
    Parted,
    /// It is too small.
    Small,
    /// Another host's mirror, which lives.
    Owned(Label),
    /// Its sequence is too far ahead for us to follow.
    Ahead,
}

/// By so much the sequence of a leg that returns may be above ours: more than all heartbeats and
/// takeovers of centuries. One that is higher would use up what sequences there are.
const AHEAD_MAX: u64 = 1 << 40;

impl Mirror {
    /// The leg can be reached (again); what it was given before can't be executed from `fence_ns`
    /// on (T9). It is read, and rebuilt.
    pub fn leg_found(&mut self, leg: u8, fence_ns: u64, now_ns: u64) {
        self.at(now_ns);
        if self.legs.writable().has(leg) || self.changes.removing.has(leg) || self.read_only {
            return;
        }
        if self.legs.get(leg).is_none() {
            // It was not there at the start.
            self.ownership.leases.forget(leg);
            let superblock = self
                .generation
                .proposed()
                .on(leg, self.generation.proposed().place);
            let state = LegState::Missing(Box::default());
            self.legs.insert(leg, Leg::new(superblock, 0, state));
        }
        if let LegState::Missing(_) | LegState::Fenced(..) = self.legs[leg].state() {
            self.legs.change(leg, Change::Fence(fence_ns));
        }
        self.spare_found(leg, now_ns);
        self.startup.needs_write = true;
        self.outputs.wake();
    }

    /// The leg is gone: it leaves, if it is not the last one in sync. One that was about to return
    /// can't.
    pub fn leg_lost(&mut self, leg: u8, now_ns: u64) {
        self.at(now_ns);
        if self.legs.writable().has(leg) {
            self.lose(leg, Outcome::PathError);
            if self.legs.in_sync().has(leg) {
                self.loss.poorer = true;
            }
            return;
        }
        self.spare_lost(leg);
        self.return_failed(leg, Outcome::PathError);
        self.forget_rebuild(leg);
    }

    pub(super) fn change_leg(&mut self, leg: u8, change: Change) {
        self.legs.change(leg, change);
        self.outputs.wake();
    }

    /// The next leg returns, if it may.
    pub(super) fn advance_returns(&mut self) {
        for leg in self.legs.rebuilding().iter() {
            let step = self.legs.rebuild(leg).map(Rebuild::step);
            if let Some(Step::WriteAll(lack)) = step
                && !self.log.is_writing_all()
            {
                self.legs.expect_rebuild(leg).set_step(Step::Event(lack));
                self.outputs.wake();
            }
        }
        if self.are_returns_blocked() {
            return;
        }
        let due = SLOTS.into_iter().find(|&leg| self.may_return(leg));
        if let Some(leg) = due
            && let Some(lack) = self.blank(leg)
        {
            self.change_leg(leg, Change::ReadBitmap(lack));
            self.begin_rebuild(leg);
        } else if let Some(leg) = due {
            self.legs.set_spare(leg, Spare::Missing);
            self.change_leg(leg, Change::Inspect);
            self.ownership.leases.begin_return(leg, self.now_ns);
            let ticket = self.outputs.ticket(leg, Work::Return);
            self.outputs.push(Output::ReadSuperblocks(ticket));
        }
    }

    /// Whether all legs that are due wait for something else.
    pub(super) fn are_returns_blocked(&self) -> bool {
        self.legs.is_any_returning()
            || self.stop.is_begun()
            || self.update.is_broken()
            || self.changes.is_growing()
    }

    fn may_return(&self, leg: u8) -> bool {
        self.is_due(leg) && (self.outputs.in_flight(leg) == 0 || has(Bug::BackBeforeFence))
    }

    /// Whether a leg may return as soon as it has nothing under way.
    pub(super) fn is_due(&self, leg: u8) -> bool {
        let state = self.legs.get(leg).map(Leg::state);
        let Some(&LegState::Fenced(_, fence_ns)) = state else {
            return false;
        };
        let fenced = self.now_ns >= fence_ns || has(Bug::BackBeforeFence);
        // A leg that is about to be removed, ordered while its addition was committed, stays away;
        // one whose addition is not committed begins with that.
        let changes = self.changes.adding.with(self.changes.removing);
        let ours = self.generation.proposed().is_stale(leg) && !changes.has(leg);
        fenced && ours && !self.generation.required().has(leg) && self.update.is_idle()
    }

    pub(super) fn return_failed(&mut self, leg: u8, outcome: Outcome) {
        self.turn_away(leg, Unfit::Failed(outcome));
    }

    fn turn_away(&mut self, leg: u8, why: Unfit) {
        if self.legs.is_returning(leg) {
            self.change_leg(leg, Change::Leave);
            // Copies that read from it go on without it.
            self.spare_lost(leg);
            self.outputs.news(News::Unfit(leg, why));
        }
    }

    /// Handles the superblock of a leg that returns.
    pub(super) fn returned(&mut self, leg: u8, found: &Result<Chosen, NoLeg>) {
        if !matches!(self.legs[leg].state(), LegState::Inspecting(_)) {
            return; // lost meanwhile
        }
        let found = match found {
            Ok(found) => *found,
            Err(error) => return self.turn_away(leg, Unfit::NoLeg(*error)),
        };
        self.check_put_back(leg, &found.superblock);
        match self.lack_of(leg, &found) {
            Err(why) => self.turn_away(leg, why),
            Ok(_) if self.is_watched(leg, &found.superblock) => {}
            Ok(lack) => {
                let sequence = found.superblock.sequence;
                self.sequence = self.sequence.max(sequence);
                let run = self.ownership.owner().run;
                let it = &mut self.legs[leg];
                it.check_missed(&found.superblock, run);
                it.committed = found.superblock;
                it.copy = found.copy;
                it.committed.confirmed = 0; // another leg may have been in sync then
                it.confirmed = 0;
                it.marked_from = 0;
                let known = it.missed().is_some();
                self.ownership.leases.found(leg);
                self.change_leg(leg, Change::ReadBitmap(lack));
                // All of it is copied anyhow, or everything that it got is known.
                match lack.position == 0 || known {
                    true => self.begin_rebuild(leg),
                    false => self.log.read_pages(leg, 0, &mut self.outputs),
                }
            }
        }
    }

    /// Whether the leg has to wait, since another owner's record is on it and that one may live.
    fn is_watched(&mut self, leg: u8, found: &Superblock) -> bool {
        let run = self.ownership.owner().run;
        let other = found.owner.filter(|it| it.run != run);
        let leases = &mut self.ownership.leases;
        match leases.watch(leg, other, found.sequence, self.now_ns) {
            Watch::Free => return false,
            Watch::Until(until_ns) => self.change_leg(leg, Change::Fence(until_ns)),
            Watch::Lives(label) => self.turn_away(leg, Unfit::Owned(label)),
        }
        true
    }

    /// Returns what a leg with superblock `found` lacks.
    pub(super) fn lack_of(&self, leg: u8, found: &Chosen) -> Result<Lack, Unfit> {
        let id = |slot: u8| {
            self.generation
                .proposed()
                .legs
                .get(usize::from(slot))
                .copied()
                .flatten()
        };
        let same = id(leg).map(|it| it.id) == found.superblock.leg().map(|it| it.id);
        let superblock = found.superblock;
        if superblock.mirror != self.generation.proposed().mirror || superblock.slot != leg || !same
        {
            return Err(Unfit::Other);
        }
        if !superblock.place.holds(&self.generation.proposed().geometry) {
            return Err(Unfit::Small);
        }
        if superblock.sequence.saturating_sub(AHEAD_MAX) > self.sequence {
            return Err(Unfit::Ahead);
        }
        let us = self.legs.in_sync().first().ok_or(Unfit::Parted)?;
        let us = &self.legs[us];
        let stale = self.legs[leg].stale();
        let now = Superblock {
            sequence: self.sequence,
            confirmed: 0,
            ..self
                .generation
                .proposed()
                .on(us.committed.slot, us.committed.place)
        };
        let wishes = Wishes {
            without: true,
            discard: stale.and_then(|it| it.is_discarded.then_some(1)),
        };
        let both = assemble(&[Ok(now), Ok(superblock)], wishes).map_err(|_| Unfit::Parted)?;
        match (both.newest, both.roles[1], both.next.state(leg)) {
            (_, Role::Unusable(why), _) => Err(Unfit::NoLeg(why)),
            (0, Role::Behind { .. }, Some(EntryState::Stale(lack))) => {
                let is_void = self.legs[leg].is_void();
                let position = if is_void { 0 } else { lack.position };
                Ok(Lack { position, ..lack })
            }
            _ => Err(Unfit::Parted),
        }
    }

    /// The regions that may differ on the leg are known: from now on it gets every write.
    pub(super) fn begin_rebuild(&mut self, leg: u8) {
        let LegState::ReadingBitmap(_, lack) = *self.legs[leg].state() else {
            return; // lost meanwhile
        };
        if !self.bad.leg_returns(leg, lack.position == 0) {
            return self.return_failed(leg, Outcome::NoSpace);
        }
        let mut lacking = self.legs[leg].lacks_when_back(
            &lack,
            self.log.dirty(),
            &self.generation.proposed().geometry,
        );
        let region_shift = self.generation.proposed().geometry.region_shift;
        for region in self.bad.regions_of(leg, region_shift.into()) {
            lacking.set(region);
        }
        let now_ns = self.now_ns;
        let save_at_ns = now_ns + self.config.position_ns;
        let it = &mut self.legs[leg];
        // It is fenced by now (T9).
        it.late_until_ns = it.late_until_ns.min(now_ns);
        // It gets everything anew; until it is in sync, none of its earlier data count.
        it.stale_mut().iter_mut().for_each(|it| it.cut_end = None);
        let rebuild = Rebuild::new(lack, lacking, save_at_ns);
        self.change_leg(leg, Change::Rebuild(rebuild));
        let has = |it: &Self, region| it.legs.rebuild(leg).is_some_and(|it| !it.lacks(region));
        self.retry_unreadable(has);
        self.write_all_from(0);
    }

    /// A generation was committed in which it is being rebuilt, or with its position.
    pub(super) fn has_rebuilt_some(&mut self, leg: u8) {
        match self.legs.rebuild(leg).map(Rebuild::step) {
            Some(Step::Event(_)) if self.generation.proposed().rebuilt_up_to(leg).is_some() => {
                self.legs.expect_rebuild(leg).set_step(Step::Copying);
                self.outputs.news(News::Rebuilding(leg));
            }
            Some(Step::Position(to))
                if self.generation.proposed().rebuilt_up_to(leg) == Some(to) =>
            {
                self.legs.expect_rebuild(leg).set_step(Step::Copying);
            }
            _ => {}
        }
    }

    /// A rebuilt leg is in sync, durably.
    pub(super) fn join(&mut self, leg: u8) {
        // Failures of other legs while that was committed.
        let rebuild = self.legs.rebuild(leg).into_iter();
        for region in rebuild.flat_map(|it| it.lacking().iter()) {
            self.diverged.mark(region, self.now_ns);
        }
        self.change_leg(leg, Change::Join);
        let it = &mut self.legs[leg];
        it.errors = 0;
        it.bad_full = None;
        it.since_event = self.generation.proposed().event;
        // An old flush covers all of what it has.
        for slot in self.ios.iter_mut() {
            let waits = slot.round.waits.has(leg);
            if slot.request == super::Request::Flush && !waits {
                slot.round.failed.remove(leg);
                slot.round.done.add(leg);
            }
        }
        for (leg, range) in self.bad.leg_joined(leg, self.legs.in_sync()) {
            self.repair(leg, range);
        }
        self.restart_copies();
        self.outputs.news(News::InSync(leg));
    }

    /// A leg leaves, or does not return.
    pub(super) fn forget_rebuild(&mut self, leg: u8) {
        if self.legs.get(leg).is_some() {
            self.legs.set_spare(leg, Spare::Missing);
            self.legs.change(leg, Change::Leave);
        }
    }
}
