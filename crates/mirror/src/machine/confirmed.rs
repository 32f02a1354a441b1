//! Which records the legs show for certain, so that a leg that was put back to an older state is
//! found (T50).
//!
//! # Contract
//! Each leg's superblock has the lowest sequence that all other legs in sync were last seen to show
//! (`confirmed`), and its own (`mark`). A leg that shows an older record than it once did was put
//! back.
use super::{Leg, Mirror};
use crate::Superblock;
use crate::ownership::Heartbeat;
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
                confirmed: self.legs.confirmed_by(leg, &leg.committed),
                ..leg.committed
            },
            Heartbeat::Idle | Heartbeat::Reading => Superblock {
                mark: leg.proposed.sequence,
                ..leg.proposed
            },
        }
    }

    /// A leg that shows an older record than it once did was put back to an older state: it leaves,
    /// and all of it is copied when it returns (T50). The last one in sync stays.
    pub(super) fn check_put_back(&mut self, leg: u8, found: &Superblock) {
        let is_last = self.legs.last_in_sync() == Some(leg);
        if !is_last && found.sequence < self.legs[leg].confirmed {
            self.void_leg(leg, Outcome::MediaError);
        }
    }
}
