//! How far a mirror is from its assembly to the writes of its first generation, and that it has
//! stopped.
//!
//! * `ReadingBitmaps`: the dirty bitmaps of the legs in sync are read
//! * `Unchanged`: they are known, and nothing was written yet
//! * `WritingNewest`: legs in sync with an older superblock get the newest one
//! * `FirstGeneration`: the first generation of this lineage is written
//! * `WritingBitmaps`: the union of the bitmaps is written to all legs
//! * `Running`, `Stopped`
//!
//! # Contract
//! [`Startup::set`] asserts each edge; [`Startup::stop`] ends it from any state.
use super::legs::Legs;
use crate::Superblock;
use alloc::boxed::Box;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartState {
    /// Legs whose bitmaps are being read.
    ReadingBitmaps(Legs),
    Unchanged,
    WritingNewest,
    FirstGeneration {
        /// It was proposed: some leg may have it.
        is_proposed: bool,
    },
    WritingBitmaps,
    Running,
    Stopped {
        /// As it was before the stop.
        is_proposed: bool,
    },
}

/// The start of a mirror.
#[derive(Debug)]
pub(super) struct Startup {
    state: StartState,
    /// Something is to be written; an unchanged mirror stays as it was found.
    pub needs_write: bool,
    /// The owner before did not stop it cleanly.
    pub is_unclean: bool,
    /// The newest superblock found, and the legs in sync that have an older one.
    pub newest: Box<Superblock>,
    pub lagging: Legs,
}

impl Startup {
    /// Before the bitmaps of any leg are read.
    pub fn new(newest: Superblock, is_unclean: bool) -> Self {
        Self {
            state: StartState::ReadingBitmaps(Legs::default()),
            needs_write: false,
            is_unclean,
            newest: Box::new(newest),
            lagging: Legs::default(),
        }
    }

    /// The state.
    #[inline]
    pub fn state(&self) -> StartState {
        self.state
    }

    /// Whether the bitmaps are being read.
    pub fn is_reading(&self) -> bool {
        matches!(self.state, StartState::ReadingBitmaps(_))
    }

    /// Whether the bitmap of this leg is being read.
    pub fn is_reading_of(&self, leg: u8) -> bool {
        matches!(self.state, StartState::ReadingBitmaps(legs) if legs.has(leg))
    }

    /// Whether changes may be written.
    #[inline]
    pub fn is_running(&self) -> bool {
        self.state == StartState::Running
    }

    /// Whether it has stopped.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, StartState::Stopped { .. })
    }

    /// Whether superblocks of this lineage may be proposed.
    pub fn may_propose(&self) -> bool {
        use StartState::*;
        matches!(
            self.state,
            FirstGeneration { .. } | WritingBitmaps | Running
        )
    }

    /// Whether the first generation of this lineage was proposed: some leg may have it.
    pub fn has_proposed(&self) -> bool {
        use StartState::*;
        matches!(
            self.state,
            FirstGeneration { is_proposed: true }
                | WritingBitmaps
                | Running
                | Stopped { is_proposed: true }
        )
    }

    /// Notes that a generation was proposed.
    pub fn note_proposed(&mut self) {
        if let StartState::FirstGeneration { is_proposed } = &mut self.state {
            *is_proposed = true;
        }
    }

    /// Begins to read the bitmaps of these legs.
    pub fn begin_reading(&mut self, legs: Legs) {
        assert_eq!(
            self.state,
            StartState::ReadingBitmaps(Legs::default()),
            "bitmaps are read once"
        );
        self.state = StartState::ReadingBitmaps(legs);
    }

    /// Notes that the bitmap of a leg was read, or can't be. Returns whether all were.
    pub fn note_read(&mut self, leg: u8) -> bool {
        let StartState::ReadingBitmaps(legs) = &mut self.state else {
            unreachable!("the bitmap of leg {leg} in {:?}", self.state);
        };
        legs.remove(leg);
        legs.is_empty()
    }

    /// Ends it, in whatever state it is. A stop that is abandoned may end twice.
    pub fn stop(&mut self) {
        let is_proposed = self.has_proposed();
        self.state = StartState::Stopped { is_proposed };
    }

    /// Changes the state of a mirror that has not stopped.
    ///
    /// # Panics
    /// If the edge does not exist.
    pub fn set(&mut self, next: StartState) {
        use StartState::*;
        let first = FirstGeneration { is_proposed: false };
        let is_edge = match (self.state, next) {
            (ReadingBitmaps(legs), Unchanged) => legs.is_empty(),
            (Unchanged, WritingNewest) => true,
            (Unchanged | WritingNewest, next) if next == first => true,
            (FirstGeneration { is_proposed }, WritingBitmaps) => is_proposed,
            (WritingBitmaps, Running) => true,
            _ => false,
        };
        assert!(is_edge, "from {:?} to {next:?}", self.state);
        self.state = next;
    }
}

#[cfg(test)]
mod tests {
    use super::StartState::*;
    use super::*;

    #[test]
    fn startup_states_in_order_are_accepted() {
        let mut it = Startup::new(crate::superblock::tests::superblock(1), false);
        it.begin_reading(Legs::one(0).with(Legs::one(2)));
        assert!(!it.note_read(2) && it.is_reading_of(0) && !it.is_reading_of(2));
        assert!(it.note_read(0));
        it.set(Unchanged);
        it.set(WritingNewest);
        it.set(FirstGeneration { is_proposed: false });
        assert!(it.may_propose() && !it.has_proposed());
        it.note_proposed();
        it.set(WritingBitmaps);
        it.set(Running);
        assert!(it.has_proposed());
        it.stop();
        assert!(!it.may_propose() && it.has_proposed());
    }

    #[test]
    #[should_panic(expected = "from Stopped")]
    fn stopped_mirror_that_starts_again_panics() {
        let mut it = Startup::new(crate::superblock::tests::superblock(1), false);
        it.stop();
        it.set(FirstGeneration { is_proposed: false });
    }
}
