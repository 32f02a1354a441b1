//! Sets of legs, tickets for work on one leg, and rounds of several legs.
use crate::limits::LEGS_MAX;
use crate::{Access, LegAttempt, LegDisposition, dispose_leg};
use block::Outcome;

/// All slots.
pub(super) const SLOTS: core::ops::Range<u8> = 0..LEGS_MAX as u8;

/// Slots of legs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Legs(pub u16);

impl Legs {
    /// Only this one.
    pub fn one(leg: u8) -> Self {
        Self(1 << leg)
    }

    /// Whether `leg` is among them.
    pub fn has(self, leg: u8) -> bool {
        usize::from(leg) < LEGS_MAX && self.0 >> leg & 1 == 1
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many there are.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Takes `leg` in.
    pub fn add(&mut self, leg: u8) {
        self.0 |= 1 << leg;
    }

    /// Takes `leg` out.
    pub fn remove(&mut self, leg: u8) {
        self.0 &= !(1 << leg);
    }

    /// Takes `leg` in or out.
    pub fn set(&mut self, leg: u8, is_in: bool) {
        if is_in {
            self.add(leg);
        } else {
            self.remove(leg);
        }
    }

    /// The one with the lowest number.
    pub fn first(self) -> Option<u8> {
        (!self.is_empty()).then(|| self.0.trailing_zeros() as u8)
    }

    /// All, by number.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        let mut left = self;
        core::iter::from_fn(move || {
            let leg = left.first()?;
            left.remove(leg);
            Some(leg)
        })
    }

    /// Legs that are not in `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Legs of either.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Legs that are in both.
    #[must_use]
    pub fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl FromIterator<u8> for Legs {
    fn from_iter<I: IntoIterator<Item = u8>>(legs: I) -> Self {
        let mut set = Self::default();
        legs.into_iter().for_each(|leg| set.add(leg));
        set
    }
}

/// Work that a leg was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The leg's slot.
    pub leg: u8,
    pub(super) work: Work,
}

impl Ticket {
    /// The user's I/O that it is a part of.
    pub fn io(self) -> Option<u32> {
        match self.work {
            Work::Io(id) => Some(id),
            _ => None,
        }
    }

    /// Whether superblocks are read of a leg that gets no writes, to see whether it may be read.
    pub fn is_of_spare(self) -> bool {
        self.work == Work::Verify
    }

    /// Whether it is for a heartbeat, which needs no lease.
    pub fn is_heartbeat(self) -> bool {
        self.work == Work::Heartbeat
    }
}

/// Work of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Io(u32),
    /// Pages from this one on.
    Pages(u32),
    /// The superblock of an event is written.
    Update,
    /// A heartbeat: the superblocks are read, or one is written.
    Heartbeat,
    /// A flush before dirty bits are cleared.
    ClearCold,
    /// A flush before regions count as resynced.
    Resync,
    /// A flush of what was bad and was rewritten.
    Heal,
    /// A flush of a leg that is being rebuilt.
    Rebuilt,
    /// The last flush.
    Stop,
    /// The copy job of this number.
    Copy(u8),
    /// Pages of its bitmap are read, from this one on.
    ReadPages(u32),
    /// Its superblocks are read before it returns.
    Return,
    /// Its superblocks are read before it is read as a spare.
    Verify,
}

/// Work that several legs were given, until all have ended it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Round {
    pub waits: Legs,
    /// Legs that failed it.
    pub failed: Legs,
    /// Legs that failed it by a medium error.
    pub media: Legs,
    /// Legs that refused it, for a reason that is not theirs.
    pub refused: Legs,
    pub done: Legs,
    /// Outcome of a failure.
    pub outcome: Option<Outcome>,
}

impl Round {
    pub fn of(waits: Legs) -> Self {
        Self {
            waits,
            ..Self::default()
        }
    }

    /// Ends the part of a leg in a flush. Returns the flush once all legs have ended it.
    pub fn take_ended(flush: &mut Option<Self>, leg: u8, outcome: Outcome) -> Option<Self> {
        flush.as_mut()?.ends(leg, outcome).then(|| flush.take())?
    }

    /// As [`Self::end`], of a leg that may have left meanwhile.
    pub fn ends(&mut self, leg: u8, outcome: Outcome) -> bool {
        self.waits.has(leg) && self.end(leg, outcome)
    }

    /// `leg` has ended; whether all have.
    pub fn end(&mut self, leg: u8, outcome: Outcome) -> bool {
        self.waits.remove(leg);
        let attempt = LegAttempt {
            access: Access::Change,
            another: true,
        };
        match dispose_leg(outcome, &attempt) {
            _ if outcome.is_done() => self.done.add(leg),
            LegDisposition::Record => {
                self.failed.add(leg);
                self.media.add(leg);
            }
            LegDisposition::Retire => self.failed.add(leg),
            LegDisposition::Complete | LegDisposition::Another { .. } => self.refused.add(leg),
        }
        if !outcome.is_done() {
            self.outcome = Some(outcome);
        }
        self.waits.is_empty()
    }
}
