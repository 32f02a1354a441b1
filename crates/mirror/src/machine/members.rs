//! What each leg is to the mirror while it runs: one state per leg, changed here alone.
//!
//! * [`Member::Missing`]: gets nothing
//! * `Waiting`, `Superblocks`, `Bitmap`: on its way back, read but not written
//! * `Rebuilding`: gets every write, lacks regions; its [`Step`]s in order
//! * `InSync`: gets every write and has everything
//!
//! # Contract
//! [`Members::set`] asserts each change of state. The sets are derived from the states and kept
//! beside them, for they are asked on each I/O. A leg that stops getting writes is among
//! [`Members::pop_left`] once, so that rounds which wait for it go on without it (`leaving`).
use super::legs::Legs;
use crate::bitmap::Bitmap;
use crate::limits::LEGS_MAX;
use crate::superblock::Lack;
use alloc::boxed::Box;

/// What a leg is to the mirror.
#[derive(Debug, Default)]
pub(super) enum Member {
    /// It is not there, or may not return.
    #[default]
    Missing,
    /// It can be reached. What it was given before may be executed until then, ns (T9).
    Waiting(u64),
    /// Its superblocks are read.
    Superblocks,
    /// Its bitmap is read.
    Bitmap(Lack),
    /// It gets every write.
    Rebuilding(Box<Rebuild>),
    /// It has everything.
    InSync,
}

/// A leg that gets every write, and lacks what was written before.
#[derive(Debug)]
pub(super) struct Rebuild {
    pub step: Step,
    /// It is flushed for a step. The flush goes on where the step is taken back meanwhile.
    pub flushing: bool,
    /// When its position is saved next, ns.
    pub save_at_ns: u64,
    /// Regions before this one were copied, or passed over for now.
    pub cursor: u64,
    lacking: Bitmap,
    /// How many these are.
    left: u64,
}

/// How far a rebuild is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It gets all pages of the bitmap.
    WriteAll(Lack),
    /// That it is being rebuilt is to be said.
    Event(Lack),
    Copying,
    /// It is flushed; then all below this byte is said to be copied.
    Flushing(u64),
    Position(u64),
    /// It is flushed for the last time.
    LastFlush,
    /// That it is in sync is to be said.
    Whole,
}

impl Rebuild {
    /// The first step of a leg that lacks these regions, `lack` by its superblock.
    pub fn new(lack: Lack, lacking: Bitmap, save_at_ns: u64) -> Box<Self> {
        Box::new(Self {
            step: Step::WriteAll(lack),
            flushing: false,
            save_at_ns,
            cursor: 0,
            left: lacking.count(),
            lacking,
        })
    }

    /// How many regions it lacks.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Whether it lacks the region.
    pub fn lacks(&self, region: u64) -> bool {
        self.lacking.is_set(region)
    }

    /// The first region from this one on that it lacks.
    pub fn next(&self, region: u64) -> Option<u64> {
        self.lacking.next(region)
    }

    /// It has all of the region now.
    pub fn has_region(&mut self, region: u64) {
        if self.lacking.clear(region) {
            self.left -= 1;
            self.cursor = self.cursor.max(region);
        }
    }

    /// It lacks the region again: a rebuild that was about to end goes on.
    pub fn lacks_again(&mut self, region: u64) {
        if self.lacking.set(region) {
            self.left += 1;
            if matches!(self.step, Step::LastFlush | Step::Whole) {
                self.step = Step::Copying;
            }
        }
    }
}

/// The states of all legs. See the module.
#[derive(Debug)]
pub(super) struct Members {
    states: [Member; LEGS_MAX],
    in_sync: Legs,
    rebuilding: Legs,
    left: Legs,
}

impl Members {
    /// All of them away.
    pub fn new() -> Self {
        Self {
            states: core::array::from_fn(|_| Member::Missing),
            in_sync: Legs::default(),
            rebuilding: Legs::default(),
            left: Legs::default(),
        }
    }

    /// Legs that have everything.
    #[inline]
    pub fn in_sync(&self) -> Legs {
        self.in_sync
    }

    /// Legs that get every write and are not in sync yet.
    #[inline]
    pub fn rebuilding(&self) -> Legs {
        self.rebuilding
    }

    /// Legs that get every write.
    #[inline]
    pub fn writable(&self) -> Legs {
        self.in_sync.with(self.rebuilding)
    }

    /// The state of a leg; one without a slot is away.
    pub fn get(&self, leg: u8) -> &Member {
        self.states
            .get(usize::from(leg))
            .unwrap_or(&Member::Missing)
    }

    /// The rebuild of a leg, if it is in one.
    pub fn rebuild(&self, leg: u8) -> Option<&Rebuild> {
        match self.get(leg) {
            Member::Rebuilding(it) => Some(it),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub fn rebuild_mut(&mut self, leg: u8) -> Option<&mut Rebuild> {
        match self.states.get_mut(usize::from(leg)) {
            Some(Member::Rebuilding(it)) => Some(it),
            _ => None,
        }
    }

    /// Whether a leg is on its way back, and gets no writes yet.
    pub fn is_returning(&self, leg: u8) -> bool {
        use Member::{Bitmap, Superblocks, Waiting};
        matches!(self.get(leg), Waiting(_) | Superblocks | Bitmap(_))
    }

    /// Changes the state of a leg; the one before.
    ///
    /// # Panics
    /// If no leg can do that.
    pub fn set(&mut self, leg: u8, next: Member) -> Member {
        let state = &mut self.states[usize::from(leg)];
        let before = core::mem::replace(state, next);
        assert!(
            is_edge(&before, state),
            "leg {leg}: from {before:?} to {state:?}"
        );
        let wrote = matches!(before, Member::Rebuilding(_) | Member::InSync);
        let (is_in_sync, is_rebuilding) = match state {
            Member::InSync => (true, false),
            Member::Rebuilding(_) => (false, true),
            _ => (false, false),
        };
        self.in_sync.set(leg, is_in_sync);
        self.rebuilding.set(leg, is_rebuilding);
        if wrote && !is_in_sync && !is_rebuilding {
            self.left.add(leg);
        }
        before
    }

    /// A leg that got writes and gets none any more, once for each time.
    pub fn pop_left(&mut self) -> Option<u8> {
        let leg = self.left.first()?;
        self.left.remove(leg);
        Some(leg)
    }
}

/// Whether a leg can go from one state to the other.
fn is_edge(before: &Member, next: &Member) -> bool {
    use Member::{Bitmap, InSync, Missing, Rebuilding, Superblocks, Waiting};
    match (before, next) {
        (_, Missing) => true,
        // In sync without a rebuild: as it was assembled.
        (Missing, Waiting(_) | InSync) => true,
        // A leg without superblocks of ours has no bitmap either.
        (Waiting(_), Waiting(_) | Superblocks | Bitmap(_)) => true,
        // Another owner's record is on it.
        (Superblocks, Waiting(_) | Bitmap(_)) => true,
        (Bitmap(_), Rebuilding(it)) => matches!(it.step, Step::WriteAll(_)),
        // What failed on the others while that was being said may have taken the step back.
        (Rebuilding(it), InSync) => !matches!(it.step, Step::WriteAll(_) | Step::Event(_)),
        _ => false,
    }
}
