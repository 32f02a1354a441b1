//! Events: the changes of a mirror's superblock.
//!
//! # Contract
//! Each function returns the superblock after an event, with the next event number and sequence. An
//! event is committed when it is durable on every leg that is in sync in it; only then may the next
//! one begin, and only then may anything that depends on it go on: `SuperblockUpdate`
//! (`machine/commit.rs`) has the order. `None`: the event is impossible, and nothing changes; above
//! all the last leg in sync never leaves (T45).
use super::bad::BadBlocks;
use super::history::{History, Lineage, Seen};
use super::layout::{Geometry, Place};
use super::superblock::{EntryState, Features, Lack, LegEntry, Owner, Superblock};
use super::{Id, Label, Name, Properties};
use crate::limits::LEGS_MAX;

/// Input for a new mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct New {
    /// The mirror.
    pub mirror: Id,
    /// Lineage of its first writer: drawn at random, not 0.
    pub lineage: u64,
    /// Its name.
    pub name: Name,
    /// Its properties.
    pub properties: Properties,
    /// Its geometry.
    pub geometry: Geometry,
    /// When, seconds of Unix time.
    pub created_s: u64,
    /// Heartbeat interval of its owner, ms.
    pub heartbeat_interval_ms: u32,
}

/// A leg of a new mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewLeg {
    /// The leg.
    pub id: Id,
    /// How it was reached.
    pub label: Label,
    /// It has the data of the first one; else it has to be rebuilt.
    pub in_sync: bool,
}

impl Superblock {
    /// Returns the superblock of the first leg of a new mirror, at event 1; `None`: no legs or too
    /// many.
    pub fn new(new: &New, legs: &[NewLeg], place: Place) -> Option<Self> {
        let mut entries = [None; LEGS_MAX];
        let room = entries.get_mut(..legs.len())?;
        legs.first()?;
        let whole = Lack {
            position: 0,
            seen_event: 1,
            seen_lineage: new.lineage,
        };
        for (slot, (entry, leg)) in room.iter_mut().zip(legs).enumerate() {
            *entry = Some(LegEntry {
                id: leg.id,
                state: match slot == 0 || leg.in_sync {
                    true => EntryState::InSync,
                    false => EntryState::Stale(whole),
                },
                label: leg.label,
            });
        }
        Some(Self {
            features: Features::default(),
            sequence: 1,
            event: 1,
            history: History::new(Lineage {
                id: new.lineage,
                first_event: 1,
            }),
            clean: true,
            mirror: new.mirror,
            slot: 0,
            geometry: new.geometry,
            place,
            created_s: new.created_s,
            name: new.name,
            properties: new.properties,
            owner: None,
            previous_run: Id::default(),
            heartbeat_interval_ms: new.heartbeat_interval_ms,
            legs: entries,
            confirmed: 0,
            mark: 1,
            cut_at: 0,
            bad: BadBlocks::default(),
        })
    }

    /// Returns the superblock for the leg `slot`, where the mirror lies at `place`.
    #[must_use]
    pub fn on(&self, slot: u8, place: Place) -> Self {
        Self {
            slot,
            place,
            cut_at: 0, // of one leg alone
            ..*self
        }
    }

    /// Changes the owner alone: no event.
    #[must_use]
    pub fn owned(&self, owner: Option<Owner>) -> Self {
        Self {
            sequence: self.sequence + 1,
            owner,
            previous_run: self.run_before(owner.map_or(Id::default(), |it| it.run)),
            ..*self
        }
    }

    /// The run of the last owner of the leg but `run`; none: not known.
    pub fn run_before(&self, run: Id) -> Id {
        match self.owner {
            Some(owner) if owner.run != run => owner.run,
            _ => self.previous_run,
        }
    }

    /// Returns the superblock without an owner.
    #[must_use]
    pub fn released(&self) -> Self {
        Self {
            owner: None,
            previous_run: self.run_before(Id::default()),
            ..*self
        }
    }

    /// The first event after an assembly, before anything else changes: `lineage` was drawn at
    /// random and is not 0.
    #[must_use]
    pub fn begun(&self, lineage: u64) -> Self {
        let mut next = self.next();
        next.history.push(Lineage {
            id: lineage,
            first_event: next.event,
        });
        next.clean = false;
        next
    }

    /// A clean stop: legs in sync have the same data, all is flushed; there is no owner.
    #[must_use]
    pub fn stopped(&self) -> Self {
        Self {
            clean: true,
            ..self.next().released()
        }
    }

    /// Sets the properties.
    #[must_use]
    pub fn set_to(&self, properties: Properties) -> Self {
        Self {
            properties,
            ..self.next()
        }
    }

    /// Renames the mirror.
    #[must_use]
    pub fn renamed(&self, name: Name) -> Self {
        Self {
            name,
            ..self.next()
        }
    }

    /// Sets a larger size.
    pub fn grown_to(&self, bytes: u64) -> Option<Self> {
        let mut next = self.next();
        next.geometry.bytes = bytes;
        (bytes > self.geometry.bytes && next.geometry.is_sound()).then_some(next)
    }

    /// Its generation.
    pub fn seen(&self) -> Seen {
        Seen {
            event: self.event,
            lineage: self.history.current().id,
        }
    }

    /// The leg `slot` leaves; it has the generation `seen` for certain.
    pub fn without(&self, slot: u8, seen: Seen) -> Option<Self> {
        let position = match self.state(slot)? {
            EntryState::InSync if self.in_sync().count() > 1 => self.geometry.bytes,
            EntryState::Rebuilding(lack) => lack.position,
            EntryState::InSync | EntryState::Stale(_) => return None,
        };
        let lack = Lack {
            position,
            seen_event: seen.event,
            seen_lineage: seen.lineage,
        };
        self.changed(slot, EntryState::Stale(lack))
    }

    /// None of the data of the stale leg `slot` count.
    pub fn emptied(&self, slot: u8) -> Option<Self> {
        match self.state(slot)? {
            EntryState::Stale(lack) => {
                let position = 0;
                self.changed(slot, EntryState::Stale(Lack { position, ..lack }))
            }
            _ => None,
        }
    }

    /// The leg `slot` is rebuilt: it gets every write from now on.
    pub fn rebuilding(&self, slot: u8) -> Option<Self> {
        match self.state(slot)? {
            EntryState::Stale(lack) => self.changed(slot, EntryState::Rebuilding(lack)),
            _ => None,
        }
    }

    /// All below `position` was copied to the leg `slot`, and flushed; it has the generation `seen`
    /// for certain. In its state before that it lacks more.
    pub fn rebuilt_to(&self, slot: u8, position: u64, seen: Seen) -> Option<Self> {
        match self.state(slot)? {
            EntryState::Rebuilding(lack)
                if (lack.position..=self.geometry.bytes).contains(&position) =>
            {
                let lack = match seen.event > lack.seen_event {
                    true => Lack {
                        position,
                        seen_event: seen.event,
                        seen_lineage: seen.lineage,
                    },
                    false => Lack { position, ..lack },
                };
                self.changed(slot, EntryState::Rebuilding(lack))
            }
            _ => None,
        }
    }

    /// The leg `slot` has everything, flushed.
    pub fn rejoined(&self, slot: u8) -> Option<Self> {
        match self.state(slot)? {
            EntryState::Rebuilding(_) => self.changed(slot, EntryState::InSync),
            _ => None,
        }
    }

    /// Adds the leg `id` in the free slot `slot`, without data.
    pub fn added(&self, slot: u8, id: Id, label: Label) -> Option<Self> {
        let known = self.entries().any(|(_, entry)| entry.id == id);
        let mut next = self.next();
        let free = next.legs.get_mut(usize::from(slot))?;
        if known || id.is_none() || free.is_some() {
            return None;
        }
        *free = Some(LegEntry {
            id,
            state: EntryState::Stale(Lack {
                position: 0,
                seen_event: 0,
                seen_lineage: 0,
            }),
            label,
        });
        Some(next)
    }

    /// Removes the leg `slot`.
    pub fn removed(&self, slot: u8) -> Option<Self> {
        let mut next = self.next();
        next.legs.get_mut(usize::from(slot))?.take()?;
        next.bad = next.bad.retained(|it| it.slot != slot);
        next.in_sync().next().is_some().then_some(next)
    }

    /// Whether dirty bits must stay set, because some leg lacks their regions.
    pub fn keeps_intents(&self) -> bool {
        let lacks = |state| !matches!(state, EntryState::InSync);
        self.entries().any(|(_, entry)| lacks(entry.state))
    }

    pub(super) fn state(&self, slot: u8) -> Option<EntryState> {
        let entry = self.legs.get(usize::from(slot))?.as_ref()?;
        Some(entry.state)
    }

    /// Whether a leg is stale.
    pub(super) fn is_stale(&self, slot: u8) -> bool {
        matches!(self.state(slot), Some(EntryState::Stale(_)))
    }

    /// Returns this state with a stale leg emptied, in the same event.
    pub(super) fn with_emptied(&self, slot: u8) -> Self {
        let emptied = self.emptied(slot);
        emptied.map_or(*self, |emptied| Self {
            event: self.event,
            sequence: self.sequence,
            ..emptied
        })
    }

    /// Returns up to which byte a leg that is being rebuilt has everything.
    pub(super) fn rebuilt_up_to(&self, slot: u8) -> Option<u64> {
        match self.state(slot)? {
            EntryState::Rebuilding(lack) => Some(lack.position),
            _ => None,
        }
    }

    pub(super) fn set_state(&mut self, slot: u8, state: EntryState) {
        if let Some(Some(entry)) = self.legs.get_mut(usize::from(slot)) {
            entry.state = state;
        }
    }

    fn changed(&self, slot: u8, state: EntryState) -> Option<Self> {
        let mut next = self.next();
        next.set_state(slot, state);
        Some(next)
    }

    fn next(&self) -> Self {
        Self {
            sequence: self.sequence + 1,
            event: self.event + 1,
            ..*self
        }
    }
}
