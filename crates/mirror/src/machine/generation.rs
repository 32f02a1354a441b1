//! The state of the mirror by its superblocks: the committed generation, and the latest proposal.
//!
//! # Contract
//! [`Generation::propose`] and [`Generation::commit`] alone change them, and assert their order. A
//! leg that some superblock may call in sync is *required* until a generation without it is
//! committed: what it lacks is not acknowledged.
use super::legs::Legs;
use super::planted::{Bug, has};
use crate::Superblock;
use crate::superblock::Owner;
use alloc::boxed::Box;
use block::Range;

/// See the module.
#[derive(Debug)]
pub(super) struct Generation {
    /// The committed state, if no proposal is under way.
    proposed: Superblock,
    committed: Box<Superblock>,
    required: Legs,
}

impl Generation {
    /// The state of an assembly, for its new owner.
    pub fn new(state: Superblock, owner: Option<Owner>, required: Legs) -> Self {
        let state = Superblock { owner, ..state };
        Self {
            proposed: state,
            committed: Box::new(state),
            required,
        }
    }

    /// Returns the latest proposal; the committed state if there is none.
    #[inline]
    pub fn proposed(&self) -> &Superblock {
        &self.proposed
    }

    /// Returns the state by the last event that was committed.
    #[inline]
    pub fn committed(&self) -> &Superblock {
        &self.committed
    }

    /// Returns the regions that a range touches.
    #[inline]
    pub fn regions_in(&self, range: Range) -> core::ops::Range<u64> {
        self.proposed.geometry.regions_in(range)
    }

    /// Returns the bytes of a region. A larger size that is not committed yet is not used.
    pub fn bytes_of(&self, region: u64) -> Range {
        self.committed.geometry.bytes_of(region)
    }

    /// Returns the legs that some leg may call in sync.
    #[inline]
    pub fn required(&self) -> Legs {
        self.required
    }

    /// Proposes a generation, also in place of one that no leg could take.
    ///
    /// # Panics
    /// If its event is not behind that of the latest proposal.
    pub fn propose(&mut self, next: Superblock) {
        let is_later = next.event > self.proposed.event || has(Bug::SameEvent);
        assert!(
            is_later,
            "event {} after {}",
            next.event, self.proposed.event
        );
        self.proposed = next;
        self.required = self.required.with(next.in_sync().collect());
    }

    /// The proposal is committed.
    ///
    /// # Panics
    /// If there is none.
    pub fn commit(&mut self) {
        let is_later = self.proposed.event > self.committed.event || has(Bug::SameEvent);
        assert!(is_later, "event {} is committed", self.committed.event);
        *self.committed = self.proposed;
        self.required = self.proposed.in_sync().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "event 7 is committed")]
    fn generation_that_is_committed_twice_panics() {
        let mut state = crate::superblock::tests::superblock(1);
        state.event = 6;
        let mut it = Generation::new(state, None, Legs::default());
        state.event = 7;
        it.propose(state);
        it.commit();
        it.commit();
    }
}
