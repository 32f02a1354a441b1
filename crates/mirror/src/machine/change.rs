//! Legs that are added to a mirror while it runs, and legs that are removed.
//!
//! # Contract
//! Each is a generation. An added leg is stale and has no data; it is rebuilt at once, and its
//! superblocks are written for the first time when it is being rebuilt. A removed leg gets nothing
//! any more, as one that left; the caller overwrites its superblocks, and until then it is refused
//! wherever it is given.
use super::leg::{Change, Leg, LegState, Stale};
use super::legs::{Legs, SLOTS};
use super::{Mirror, News, Output};
use crate::layout::Place;
use crate::superblock::{EntryState, Lack};
use crate::{Id, Label, Superblock};
use alloc::boxed::Box;
use block::Outcome;
use core::fmt;

/// Why the legs stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeError {
    /// There are as many as a mirror can have.
    Full,
    /// It is too small.
    Small,
    /// There is no such leg, or there is one with this identifier.
    Known,
    /// It is the last one in sync.
    Last,
    /// Nothing may be changed now.
    Refused,
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the mirror has as many legs as it can have (remove one first)",
            Self::Small => "the leg is smaller than the mirror needs",
            Self::Known => "no such leg, or it is one already",
            Self::Last => "it is the last leg in sync: without it the data are gone",
            Self::Refused => {
                "nothing may be changed now: the mirror is read-only, stopping, growing or not ours"
            }
        })
    }
}

impl Mirror {
    /// A new leg, in which nothing was written yet; its slot, which is none of `but`: legs that
    /// were removed may have something under way there that is no ticket's.
    ///
    /// # Errors
    /// [`ChangeError`]: all but `Last`.
    pub fn add_leg(
        &mut self,
        id: Id,
        label: Label,
        place: Place,
        but: Legs,
        now_ns: u64,
    ) -> Result<u8, ChangeError> {
        self.at(now_ns);
        self.may_change()?;
        if self.changes.growth.is_some() {
            // It might be too small soon.
            return Err(ChangeError::Refused);
        }
        if !place.holds(&self.generation.proposed().geometry) {
            return Err(ChangeError::Small);
        }
        let fresh = self
            .changes
            .adding
            .iter()
            .filter_map(|leg| self.legs[leg].fresh());
        let said = self
            .generation
            .proposed()
            .entries()
            .map(|(_, entry)| entry.id);
        if id.is_none() || said.chain(fresh.map(|it| it.0)).any(|it| it == id) {
            return Err(ChangeError::Known);
        }
        let unused = |slot: &u8| {
            let entry = |it: &Superblock| it.legs[usize::from(*slot)];
            let none = entry(self.generation.proposed()).is_none()
                && entry(self.generation.committed()).is_none();
            let quiet = self.outputs.in_flight(*slot) == 0;
            let changes = self.changes.adding.with(self.changes.removing);
            // Else that would look like news of the new leg.
            let removed = Output::News(News::Removed(*slot));
            let taken =
                changes.with(but).has(*slot) || self.outputs.iter().any(|it| *it == removed);
            none && quiet && !taken
        };
        let slot = SLOTS.into_iter().find(unused).ok_or(ChangeError::Full)?;
        let superblock = Superblock {
            owner: None,
            ..self.generation.proposed().on(slot, place)
        };
        let mut stale = Box::<Stale>::default();
        stale.fresh = Some((id, label));
        let state = LegState::Missing(stale);
        self.ownership.leases.forget(slot);
        // The leg that had the slot may have been about to return.
        self.legs.insert(slot, Leg::new(superblock, 1, state));
        self.changes.adding.add(slot);
        self.outputs.reserve(2 * self.config.ios);
        self.startup.needs_write = true;
        self.outputs.wake();
        Ok(slot)
    }

    /// Removes a leg; [`News::Removed`] reports when that is durable.
    ///
    /// # Errors
    /// [`ChangeError::Known`], [`ChangeError::Last`], [`ChangeError::Refused`].
    pub fn remove_leg(&mut self, leg: u8, now_ns: u64) -> Result<(), ChangeError> {
        self.at(now_ns);
        self.may_change()?;
        if !self
            .generation
            .proposed()
            .entries()
            .any(|(slot, _)| slot == leg)
        {
            return Err(ChangeError::Known);
        }
        if self.legs.in_sync() == Legs::one(leg) {
            return Err(ChangeError::Last);
        }
        self.changes.removing.add(leg);
        match self.legs.writable().has(leg) {
            true => self.lose(leg, Outcome::Stopped),
            false => {
                self.spare_lost(leg);
                self.forget_rebuild(leg);
            }
        }
        self.startup.needs_write = true;
        self.outputs.wake();
        Ok(())
    }

    /// Returns legs whose addition, and legs whose removal, is ordered and not committed.
    pub fn changing_legs(&self) -> (Legs, Legs) {
        (self.changes.adding, self.changes.removing)
    }

    /// Takes the removal of a leg back; false: there is none, or it is being written to the legs,
    /// and some may have it. The leg may return then, as one that has left.
    pub fn take_back_removal(&mut self, leg: u8, now_ns: u64) -> bool {
        self.at(now_ns);
        let said = self
            .generation
            .proposed()
            .entries()
            .any(|(slot, _)| slot == leg);
        let may = said && self.changes.removing.has(leg);
        if may {
            self.changes.removing.remove(leg);
            self.outputs.wake();
        }
        may
    }

    /// Takes the addition of a leg back; false: there is none, or it is being written to the legs,
    /// and some may have it.
    pub fn take_back_addition(&mut self, leg: u8, now_ns: u64) -> bool {
        self.at(now_ns);
        let entry = |it: &Superblock| it.legs.get(usize::from(leg)).copied().flatten();
        let said = entry(self.generation.proposed())
            .or(entry(self.generation.committed()))
            .is_some();
        let may = self.changes.adding.has(leg) && !said;
        if may {
            self.changes.adding.remove(leg);
            self.legs.remove(leg);
            self.outputs.wake();
        }
        may
    }

    fn may_change(&self) -> Result<(), ChangeError> {
        match self.read_only || self.ownership.is_lost() || self.stop.is_begun() {
            true => Err(ChangeError::Refused),
            false => Ok(()),
        }
    }

    /// A generation was committed: reports legs that it added and removed.
    pub(super) fn commit_leg_changes(&mut self) {
        let said: Legs = self
            .generation
            .proposed()
            .entries()
            .map(|it| it.0)
            .collect();
        for leg in self.changes.removing.without(said).iter() {
            self.changes.removing.remove(leg);
            if let Some(stale) = self.legs.get_mut(leg).and_then(Leg::stale_mut) {
                stale.missed = None;
            }
            self.bad.remove_leg(leg);
            self.outputs.news(News::Removed(leg));
        }
        for leg in self.changes.adding.both(said).iter() {
            self.changes.adding.remove(leg);
            self.change_leg(leg, Change::Fence(0));
            self.outputs.news(News::Added(leg));
        }
    }

    /// Returns what a leg lacks to which nothing was written yet.
    pub(super) fn blank(&self, leg: u8) -> Option<Lack> {
        self.legs[leg].fresh()?;
        match self.generation.proposed().state(leg)? {
            EntryState::Stale(lack) => Some(lack),
            _ => None,
        }
    }
}
