//! Which records the legs show for certain, so that a leg that was put back to an older state is
//! found (T50).
//!
//! # Contract
//! Each leg's superblock has the lowest sequence that all other legs in sync were last seen to show
//! (`confirmed`), and its own (`mark`). A leg that shows an older record than it once did was put
//! back.
use super::{Leg, Mirror};
use crate::Superblock;
use crate::copies::Chosen;
use crate::ownership::Heartbeat;
use crate::superblock::EntryState;
use block::Outcome;

impl Leg {
    /// A superblock of ours is durable on it.
    pub(super) fn note_marked(&mut self) {
        if self.marked_from == 0 {
            self.marked_from = self.committed.sequence;
        }
    }
}

impl Mirror {
    /// Returns the superblock that is being written to a leg.
    pub(super) fn written(&self, leg: &Leg) -> Superblock {
        match self.ownership.leases.heartbeat(leg.committed.slot) {
            Heartbeat::Writing { sequence, .. } => Superblock {
                sequence,
                mark: sequence,
                owner: Some(self.ownership.owner_at(self.now_ns)),
                confirmed: self.confirmed_by(leg, &leg.committed),
                ..leg.committed
            },
            Heartbeat::Idle | Heartbeat::Reading => Superblock {
                mark: leg.proposed.sequence,
                ..leg.proposed
            },
        }
    }

    /// Returns the lowest sequence that `next` may confirm of all other legs in sync: none of them
    /// shows a lower mark any more, unless it is put back to an older state (T50). An earlier
    /// confirmation of the same legs stays valid: a new owner has read nothing yet.
    pub(super) fn confirmed_by(&self, leg: &Leg, next: &Superblock) -> u64 {
        let id = |of: &Superblock, slot: u8| of.legs[usize::from(slot)].map(|it| it.id);
        let others = || next.in_sync().filter(|&it| it != leg.committed.slot);
        let was_in_sync = |slot: u8| {
            let same = id(&leg.committed, slot) == id(next, slot);
            same && leg.committed.state(slot) == Some(EntryState::InSync)
        };
        let before = match others().all(was_in_sync) {
            true => leg.committed.confirmed,
            false => 0,
        };
        let confirmed = others().map(|it| self.legs.get(it).map_or(0, |leg| leg.confirmed));
        confirmed.min().unwrap_or(0).max(before)
    }

    /// A leg that shows an older record than it once did was put back to an older state: it leaves,
    /// and all of it is copied when it returns (T50). The last one in sync stays.
    pub(super) fn check_put_back(&mut self, leg: u8, found: &Superblock) {
        let is_last = self.legs.last_in_sync() == Some(leg);
        if !is_last && found.sequence < self.legs[leg].confirmed {
            self.void_leg(leg, Outcome::MediaError);
        }
    }

    /// Notes which records a leg shows for certain. Counts what was acknowledged as durable, and
    /// the older one of its copies, where both are ours: the other may be torn by the next write.
    /// Where something older may yet be executed on the leg nothing is certain (T9).
    pub(super) fn confirm(&mut self, leg: u8, found: &Chosen) {
        let leases = &self.ownership.leases;
        let (asked_ns, hold_until_ns) = (leases.asked_ns(leg), leases.hold_until_ns());
        let it = &mut self.legs[leg];
        if asked_ns < it.late_until_ns.max(hold_until_ns) {
            return;
        }
        let sequence = found.superblock.sequence.min(it.committed.sequence);
        let both = found.other.map_or(0, |other| sequence.min(other));
        it.confirmed = match it.marked_from > 0 && both >= it.marked_from {
            true => both,
            false => 0,
        };
    }
}
