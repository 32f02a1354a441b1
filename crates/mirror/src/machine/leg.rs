//! State of each leg while the mirror runs, changed here alone.
//!
//! * `Missing`: gets nothing: unreachable, refused, or taken out
//! * `Fenced`: reachable; returns when nothing it was given before can be executed (T9)
//! * `Inspecting`, `ReadingBitmap`: returning; read, not written
//! * `Rebuilding`: gets every write, lacks regions; its [`Step`]s in order
//! * `InSync`: gets every write and has everything
//! * `Truncated`: in sync, and lost data while no other leg was (T45, T50)
//!
//! # Contract
//! [`LegTable::change`] has all edges, and asserts them. The sets of legs are derived from the
//! states and kept beside them, for each I/O reads them. [`LegTable::pop_left`] returns a leg that
//! stops getting writes once, so that rounds which wait for it go on without it (`leaving`).
use super::accept::Acceptance;
use super::legs::{Legs, Round};
use super::planted::{Bug, has};
use super::spare::Spare;
use crate::bitmap::Bitmap;
use crate::copies::Chosen;
use crate::layout::Geometry;
use crate::limits::LEGS_MAX;
use crate::superblock::{EntryState, Lack};
use crate::{Id, Label, Superblock};
use alloc::boxed::Box;
use core::mem;
use core::ops::{Index, IndexMut, Range};

/// State of a leg. See the module.
#[derive(Debug)]
pub(super) enum LegState {
    Missing(Box<Stale>),
    /// Until then, ns.
    Fenced(Box<Stale>, u64),
    Inspecting(Box<Stale>),
    ReadingBitmap(Box<Stale>, Lack),
    Rebuilding(Box<Stale>, Box<Rebuild>),
    InSync,
    Truncated(Cut),
}

/// Change of a leg's state.
#[derive(Debug)]
pub(super) enum Change {
    /// It can be reached, and may not return before then, ns.
    Fence(u64),
    /// Its superblocks are read.
    Inspect,
    /// Its bitmap is read, or it has none.
    ReadBitmap(Lack),
    Rebuild(Box<Rebuild>),
    /// A committed generation has it in sync.
    Join,
    /// It gets nothing from now on.
    Leave,
    /// It lost data as the last one in sync, or a user accepts what it lost.
    Truncate(Cut),
    /// The acceptance of what it lost is on the leg.
    Accepted,
}

/// Data of a leg that is not in sync.
#[derive(Debug, Default)]
pub(super) struct Stale {
    /// Regions that it missed or misses; those copied to it since are still set. `None`: only the
    /// union of all legs' is known.
    pub missed: Option<Bitmap>,
    /// Its identity, while nothing was written to it.
    pub fresh: Option<(Id, Label)>,
    /// The user gave up its data.
    pub is_discarded: bool,
    /// It lost data, or was put back to an older state: it is copied whole (T50).
    pub is_void: bool,
    /// Of a void one: where it was truncated before, if no user accepted that.
    pub cut_end: Option<u64>,
    spare: Spare,
}

/// Data lost by the last leg in sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cut {
    /// First lost byte of the mirror: the leg was smaller than needed, or was sanitized (0).
    /// `None`: its file was cut short at an unknown byte.
    pub end: Option<u64>,
    pub acceptance: Acceptance,
}

impl Cut {
    /// All from byte `end` of the mirror on is lost.
    pub fn at(end: u64) -> Self {
        Self {
            end: Some(end),
            acceptance: Acceptance::None,
        }
    }
}

/// Rebuild of a leg that lacks what was written before.
#[derive(Debug)]
pub(super) struct Rebuild {
    step: Step,
    /// It is flushed for a step. The flush goes on where the step is taken back meanwhile.
    flushing: bool,
    /// When its position is saved next, ns.
    save_at_ns: u64,
    /// Regions before this one were copied, or passed over for now.
    cursor: u64,
    lacking: Bitmap,
    /// How many these are.
    left: u64,
}

/// Progress of a rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It gets all pages of the bitmap.
    WriteAll(Lack),
    /// The generation with the rebuild is to be committed.
    Event(Lack),
    Copying,
    /// It is flushed; then all below this byte counts as copied.
    Flushing(u64),
    /// The generation with this position is to be committed.
    Position(u64),
    /// It is flushed for the last time.
    LastFlush,
    /// The generation with the leg in sync is to be committed.
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

    /// Returns its step.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Takes the next step, or one back.
    ///
    /// # Panics
    /// If there is no such edge.
    pub fn set_step(&mut self, next: Step) {
        use Step::*;
        let is_edge = matches!(
            (self.step, next),
            (WriteAll(_), Event(_))
                | (Event(_), Copying)
                | (Copying, Flushing(_) | LastFlush)
                | (Flushing(_), Position(_) | Copying)
                | (Position(_), Copying)
                | (LastFlush, Whole | Copying)
                | (Whole, Copying)
        );
        assert!(is_edge, "rebuild from {:?} to {next:?}", self.step);
        self.step = next;
    }

    /// Whether it copies, and nothing else is under way.
    pub fn is_idle(&self) -> bool {
        self.step == Step::Copying && !self.flushing
    }

    /// The leg is flushed for this step.
    pub fn begin_flush(&mut self, step: Step) {
        self.set_step(step);
        self.flushing = true;
    }

    /// The leg was flushed, or is flushed later (not `is_done`).
    pub fn end_flush(&mut self, is_done: bool, save_at_ns: u64) {
        self.flushing = false;
        self.save_at_ns = save_at_ns;
        match self.step {
            Step::Flushing(to) if is_done => self.set_step(Step::Position(to)),
            Step::LastFlush if is_done => self.set_step(Step::Whole),
            Step::Flushing(_) | Step::LastFlush => self.set_step(Step::Copying),
            Step::Copying => {} // it was taken back meanwhile
            step => assert!(has(Bug::BackBeforeFence), "a flush ends in {step:?}"),
        }
    }

    /// Returns the position that is to be saved now, if one is: `was` is the committed one, and it
    /// is saved after `most` bytes or at a time.
    pub fn position_due(
        &self,
        was: u64,
        geometry: &Geometry,
        most: u64,
        now_ns: u64,
    ) -> Option<u64> {
        let (bytes, shift) = (geometry.bytes, geometry.region_shift);
        if was >= bytes {
            return None; // its dirty bits say it all
        }
        let next = self.lacking.next(was >> shift);
        let to = next.map_or(bytes, |region| region << shift).min(bytes);
        let far = to.saturating_sub(was) >= most;
        (to > was && (far || now_ns >= self.save_at_ns)).then_some(to)
    }

    /// Returns how many regions it lacks.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Whether it lacks the region.
    pub fn lacks(&self, region: u64) -> bool {
        self.lacking.is_set(region)
    }

    /// Returns the regions that it lacks.
    pub fn lacking(&self) -> &Bitmap {
        &self.lacking
    }

    /// Notes that all of the region was copied.
    pub fn has_region(&mut self, region: u64) {
        if self.lacking.clear(region) {
            self.left -= 1;
            self.cursor = self.cursor.max(region);
        }
    }

    /// Notes that it lacks the region again: a rebuild that was about to end goes on.
    pub fn lacks_again(&mut self, region: u64) {
        if self.lacking.set(region) {
            self.left += 1;
            if matches!(self.step, Step::LastFlush | Step::Whole) {
                self.set_step(Step::Copying);
            }
        }
    }
}

/// One leg: its state, its superblock, and its I/O.
#[derive(Debug)]
pub(super) struct Leg {
    state: LegState,
    /// Its superblock as it is for certain, and as it is being written.
    pub committed: Superblock,
    pub proposed: Superblock,
    /// The copy that holds.
    pub copy: u8,
    /// Both of its copies had this sequence or a higher one when they were read last, and nothing
    /// older can come over them; 0: not known (T50).
    pub confirmed: u64,
    /// The sequence of our first superblock on it; 0: there is none yet.
    pub marked_from: u64,
    /// Failed I/O may be executed until then.
    pub late_until_ns: u64,
    /// It has given up writes, and no flush has reported that yet.
    pub gave_up: bool,
    /// Reads that it failed.
    pub errors: u32,
    pub repaired: u64,
    /// Times that it was read as a spare.
    pub rescued: u64,
    /// A range that it could not write when the record of its bad blocks had no more room.
    pub bad_full: Option<block::Range>,
    /// The event by which it was in sync, as far as this run knows.
    pub since_event: u64,
}

impl Leg {
    /// A leg whose superblock is `found`, in its copy `copy`.
    pub fn new(found: Superblock, copy: u8, state: LegState) -> Self {
        Self {
            state,
            committed: found,
            proposed: found,
            copy,
            confirmed: 0,
            marked_from: 0,
            late_until_ns: 0,
            gave_up: false,
            errors: 0,
            repaired: 0,
            rescued: 0,
            bad_full: None,
            since_event: found.event,
        }
    }

    /// Returns its state.
    pub fn state(&self) -> &LegState {
        &self.state
    }

    /// Returns the data of one that is not in sync.
    pub fn stale(&self) -> Option<&Stale> {
        use LegState::*;
        match &self.state {
            Missing(it) | Fenced(it, _) | Inspecting(it) => Some(it),
            ReadingBitmap(it, _) | Rebuilding(it, _) => Some(it),
            InSync | Truncated(_) => None,
        }
    }

    /// As [`Self::stale`], to change them.
    pub fn stale_mut(&mut self) -> Option<&mut Stale> {
        use LegState::*;
        match &mut self.state {
            Missing(it) | Fenced(it, _) | Inspecting(it) => Some(it),
            ReadingBitmap(it, _) | Rebuilding(it, _) => Some(it),
            InSync | Truncated(_) => None,
        }
    }

    /// Returns the regions that it missed, if it is not in sync and they are known.
    pub fn missed(&self) -> Option<&Bitmap> {
        self.stale()?.missed.as_ref()
    }

    /// As [`Self::missed`], to change them.
    pub fn missed_mut(&mut self) -> Option<&mut Bitmap> {
        self.stale_mut()?.missed.as_mut()
    }

    /// The regions that it missed are known no more, unless superblock `found`, which it shows when
    /// it returns, is of this run and no older than what it has acknowledged. An older one may be a
    /// late write (T9), or the leg was put back; another owner may have given it writes.
    pub fn check_missed(&mut self, found: &Superblock, run: Id) {
        let is_ours = found.owner.is_some_and(|owner| owner.run == run);
        let is_known = is_ours && found.sequence >= self.committed.sequence;
        if let Some(stale) = self.stale_mut().filter(|_| !is_known) {
            stale.missed = None;
        }
    }

    /// Returns the regions that it lacks when it gets every write again: those that it missed, the
    /// `union` of all legs' where they are not known, and all from its position on.
    ///
    /// # Panics
    /// If it is in sync.
    pub fn lacks_when_back(&mut self, lack: &Lack, union: &Bitmap, geometry: &Geometry) -> Bitmap {
        let Some(stale) = self.stale_mut() else {
            unreachable!("a leg in sync returns");
        };
        let mut lacking = stale.missed.get_or_insert_with(|| union.clone()).clone();
        if lack.position < geometry.bytes {
            let first = lack.position >> geometry.region_shift;
            (first..union.regions()).for_each(|region| _ = lacking.set(region));
        }
        lacking
    }

    /// Returns the identity of one to which nothing was written yet.
    pub fn fresh(&self) -> Option<(Id, Label)> {
        self.stale()?.fresh
    }

    /// Notes which records it shows for certain. Counts what was acknowledged as durable, and the
    /// older one of its copies, where both are ours: the other may be torn by the next write. They
    /// were read at `asked_ns`; until `hold_until_ns`, or where something older may yet be executed
    /// on the leg, nothing is certain (T9).
    pub fn confirm(&mut self, found: &Chosen, asked_ns: u64, hold_until_ns: u64) {
        if asked_ns < self.late_until_ns.max(hold_until_ns) {
            return;
        }
        let sequence = found.superblock.sequence.min(self.committed.sequence);
        let both = found.other.map_or(0, |other| sequence.min(other));
        self.confirmed = match self.marked_from > 0 && both >= self.marked_from {
            true => both,
            false => 0,
        };
    }

    /// Whether none of its data count.
    pub fn is_void(&self) -> bool {
        self.stale().is_some_and(|it| it.is_void)
    }

    /// Returns what it lost as the last one in sync.
    pub fn cut(&self) -> Option<Cut> {
        match self.state {
            LegState::Truncated(cut) => Some(cut),
            _ => None,
        }
    }

    /// Returns the first byte of the mirror that it lost, whether or not it is in sync.
    pub fn cut_end(&self) -> Option<u64> {
        match &self.state {
            LegState::Truncated(cut) => cut.end,
            _ => self.stale()?.cut_end,
        }
    }

    /// Returns where it was cut, as its superblock is to have it, in a mirror of so many bytes; 0:
    /// nowhere. Only legs in sync record it.
    pub fn cut_at(&self, mirror_bytes: u64) -> u64 {
        let cut = self
            .cut()
            .filter(|cut| cut.acceptance != Acceptance::Marked);
        let end = cut.and_then(|cut| cut.end);
        end.map_or(0, |end| end.max(1).min(mirror_bytes.saturating_sub(1)))
    }

    /// Whether it lost data as the last one in sync, and no user has accepted that.
    pub fn has_unaccepted_cut(&self) -> bool {
        let is_accepted = |it: Cut| it.acceptance != Acceptance::None;
        self.cut_end().is_some() && !self.cut().is_some_and(is_accepted)
    }

    /// Returns when its superblocks are read as those of a spare, and whether it may be read.
    pub fn spare(&self) -> Spare {
        self.stale().map_or(Spare::Missing, |it| it.spare)
    }
}

/// All legs, by slot. See the module.
#[derive(Debug, Default)]
pub(super) struct LegTable {
    slots: [Option<Box<Leg>>; LEGS_MAX],
    in_sync: Legs,
    rebuilding: Legs,
    left: Legs,
    verified: Legs,
}

impl Index<u8> for LegTable {
    type Output = Leg;

    fn index(&self, leg: u8) -> &Leg {
        let it = self.get(leg);
        it.unwrap_or_else(|| unreachable!("there is no leg {leg}"))
    }
}

impl IndexMut<u8> for LegTable {
    fn index_mut(&mut self, leg: u8) -> &mut Leg {
        let it = self.get_mut(leg);
        it.unwrap_or_else(|| unreachable!("there is no leg {leg}"))
    }
}

impl LegTable {
    /// Returns the leg of a slot.
    pub fn get(&self, leg: u8) -> Option<&Leg> {
        self.slots.get(usize::from(leg))?.as_deref()
    }

    /// As [`Self::get`], to change it.
    pub fn get_mut(&mut self, leg: u8) -> Option<&mut Leg> {
        self.slots.get_mut(usize::from(leg))?.as_deref_mut()
    }

    /// Returns all legs, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &Leg)> {
        let slots = (0..).zip(&self.slots);
        slots.filter_map(|(slot, it)| Some((slot, it.as_deref()?)))
    }

    /// As [`Self::iter`], to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u8, &mut Leg)> {
        let slots = (0..).zip(&mut self.slots);
        slots.filter_map(|(slot, it)| Some((slot, it.as_deref_mut()?)))
    }

    /// Puts a leg into a slot.
    ///
    /// # Panics
    /// If the leg that was there gets writes.
    pub fn insert(&mut self, slot: u8, leg: Leg) {
        assert!(!self.writable().has(slot), "leg {slot} gets writes");
        self.in_sync.set(slot, leg.stale().is_none());
        self.verified.remove(slot);
        self.slots[usize::from(slot)] = Some(Box::new(leg));
    }

    /// Takes a leg out to which nothing was written.
    pub fn remove(&mut self, slot: u8) {
        let leg = self.slots[usize::from(slot)].take();
        let is_fresh = leg.is_some_and(|it| it.fresh().is_some());
        assert!(is_fresh, "leg {slot} was written");
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

    /// Legs that get no writes, and whose superblocks were read since they can be reached.
    #[inline]
    pub fn verified(&self) -> Legs {
        self.verified
    }

    /// Returns the legs of a round that failed it for the medium's sake, get writes, and execute
    /// nothing of it any more.
    pub fn failed_by_medium(&self, round: &Round, now_ns: u64) -> Legs {
        let media = round.media.both(round.failed).both(self.writable());
        let is_over = |leg: &u8| self[*leg].late_until_ns <= now_ns;
        media.iter().filter(is_over).collect()
    }

    /// Returns the last leg in sync, if there is but one.
    pub fn last_in_sync(&self) -> Option<u8> {
        self.in_sync.first().filter(|_| self.in_sync.count() == 1)
    }

    /// Returns the rebuild of a leg, if it is in one.
    pub fn rebuild(&self, leg: u8) -> Option<&Rebuild> {
        match self.get(leg)?.state() {
            LegState::Rebuilding(_, it) => Some(it),
            _ => None,
        }
    }

    /// As [`Self::rebuild`], to change it.
    pub fn rebuild_mut(&mut self, leg: u8) -> Option<&mut Rebuild> {
        match &mut self[leg].state {
            LegState::Rebuilding(_, it) => Some(it),
            _ => None,
        }
    }

    /// Returns the rebuild of a leg.
    ///
    /// # Panics
    /// If it is in none.
    pub fn expect_rebuild(&mut self, leg: u8) -> &mut Rebuild {
        let rebuild = self.rebuild_mut(leg);
        rebuild.unwrap_or_else(|| unreachable!("leg {leg} is not being rebuilt"))
    }

    /// Whether a leg is returning, and gets no writes yet.
    pub fn is_returning(&self, leg: u8) -> bool {
        use LegState::{Fenced, Inspecting, ReadingBitmap};
        let it = self.get(leg).map(Leg::state);
        matches!(it, Some(Fenced(..) | Inspecting(_) | ReadingBitmap(..)))
    }

    /// Sets whether a leg that is not in sync may be read.
    pub fn set_spare(&mut self, leg: u8, spare: Spare) {
        if let Some(it) = self[leg].stale_mut() {
            it.spare = spare;
        }
        self.verified.set(leg, matches!(spare, Spare::Verified(_)));
    }

    /// Legs in sync, and others that get writes and whose superblock has the record of this run.
    pub fn owned_by(&self, run: Id) -> Legs {
        let owner = |leg: &u8| self[*leg].committed.owner;
        let is_owned = |leg: &u8| owner(leg).is_some_and(|it| it.run == run);
        self.in_sync
            .with(self.rebuilding.iter().filter(is_owned).collect())
    }

    /// Legs that get updates of `state`: in sync, or being rebuilt by it.
    pub fn updated_by(&self, state: &Superblock) -> Legs {
        let is_rebuilding = |leg: &u8| state.rebuilt_up_to(*leg).is_some();
        let rebuilding = self.rebuilding.iter().filter(is_rebuilding);
        self.in_sync.with(rebuilding.collect())
    }

    /// Whether none of the data of a leg count.
    pub fn is_void(&self, leg: u8) -> bool {
        self.get(leg).is_some_and(Leg::is_void)
    }

    /// Whether a leg is on its way, so that others wait.
    pub fn is_any_returning(&self) -> bool {
        use LegState::*;
        self.iter().any(|(_, leg)| match leg.state() {
            Inspecting(_) | ReadingBitmap(..) => true,
            Rebuilding(_, it) => matches!(it.step, Step::WriteAll(_) | Step::Event(_)),
            Missing(_) | Fenced(..) | InSync | Truncated(_) => false,
        })
    }

    /// Whether a leg waits to return.
    pub fn has_fenced(&self) -> bool {
        self.iter()
            .any(|(_, leg)| matches!(leg.state(), LegState::Fenced(..)))
    }

    /// When the next leg may return, ns; `u64::MAX`: none waits for a time.
    pub fn fence_at(&self, now_ns: u64) -> u64 {
        let fences = self.iter().filter_map(|(_, leg)| match *leg.state() {
            LegState::Fenced(_, fence_ns) if fence_ns > now_ns => Some(fence_ns),
            _ => None,
        });
        fences.min().unwrap_or(u64::MAX)
    }

    /// When the position of a rebuild is to be saved next, ns; `u64::MAX`: never.
    pub fn save_at(&self, now_ns: u64) -> u64 {
        let saves = self.rebuilding.iter().filter_map(|leg| {
            let it = self.rebuild(leg).filter(|it| it.step == Step::Copying)?;
            (it.save_at_ns > now_ns).then_some(it.save_at_ns)
        });
        saves.min().unwrap_or(u64::MAX)
    }

    /// Returns the lowest sequence that `next`, on a leg, may confirm of all other legs in sync:
    /// none of them shows a lower mark any more, unless it is put back to an older state (T50). An
    /// earlier confirmation of the same legs stays valid: a new owner has read nothing yet.
    pub fn confirmed_by(&self, leg: &Leg, next: &Superblock) -> u64 {
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
        let confirmed = others().map(|it| self.get(it).map_or(0, |leg| leg.confirmed));
        confirmed.min().unwrap_or(0).max(before)
    }

    /// Legs that are being rebuilt and lack none of these regions.
    pub fn rebuilt_in(&self, regions: Range<u64>) -> Legs {
        let has_all = |leg: &u8| {
            let lacks = |it: &Rebuild| regions.clone().any(|region| it.lacks(region));
            self.rebuild(*leg).is_some_and(|it| !lacks(it)) || has(Bug::SpareLacks)
        };
        self.rebuilding.iter().filter(has_all).collect()
    }

    /// Returns the next region to be copied, which is not `busy`.
    pub fn next_to_rebuild(&mut self, busy: impl Fn(u64) -> bool) -> Option<u64> {
        let nexts = self.rebuilding.iter().filter_map(|leg| {
            use Step::{Copying, Flushing, Position};
            let it = self.rebuild(leg)?;
            let copies = matches!(it.step, Copying | Flushing(_) | Position(_));
            let mut lacking = it.lacking.iter_from(it.cursor).filter(|_| copies);
            lacking.find(|&region| !busy(region))
        });
        let next = nexts.min();
        for leg in self.rebuilding.iter().filter(|_| next.is_none()) {
            // Regions that were passed over are tried again.
            if let Some(it) = self.rebuild_mut(leg) {
                it.cursor = 0;
            }
        }
        next
    }

    /// Legs may differ in a region: those that are being rebuilt lack it again.
    pub fn lack_again(&mut self, region: u64) {
        for leg in self.rebuilding.iter() {
            if let Some(missed) = self[leg].missed_mut() {
                missed.set(region);
            }
            if let Some(it) = self.rebuild_mut(leg) {
                it.lacks_again(region);
            }
        }
    }

    /// A user's acceptance of what the last leg in sync has lost takes a step.
    pub fn set_acceptance(&mut self, leg: u8, cut: Cut, acceptance: Acceptance) {
        self.change(leg, Change::Truncate(Cut { acceptance, ..cut }));
    }

    /// Returns the last leg in sync and its loss, if it has one.
    pub fn last_cut(&self) -> Option<(u8, Cut)> {
        let leg = self.last_in_sync()?;
        Some((leg, self[leg].cut()?))
    }

    /// Whether the last leg in sync has lost some of a range.
    pub fn has_lost(&self, range: block::Range) -> bool {
        let cut_end = self.last_cut().and_then(|(_, cut)| cut.end);
        cut_end.is_some_and(|end| range.end > end)
    }

    /// Whether the superblock of a leg has another cut, in a mirror of so many bytes.
    pub fn has_cut_to_commit(&self, mirror_bytes: u64) -> bool {
        let mut legs = self.in_sync.iter().map(|leg| &self[leg]);
        legs.any(|leg| leg.committed.cut_at != leg.cut_at(mirror_bytes))
    }

    /// Changes the state of a leg.
    ///
    /// # Panics
    /// If its state has no such edge.
    pub fn change(&mut self, leg: u8, change: Change) {
        use LegState::*;
        let state = &mut self[leg].state;
        *state = match (mem::replace(state, InSync), change) {
            (Missing(it) | Fenced(it, _) | Inspecting(it), Change::Fence(at)) => Fenced(it, at),
            (Fenced(it, _), Change::Inspect) => Inspecting(it),
            // A leg without superblocks of ours has no bitmap either.
            (Fenced(it, _) | Inspecting(it), Change::ReadBitmap(lack)) => ReadingBitmap(it, lack),
            (ReadingBitmap(it, _), Change::Rebuild(rebuild)) => Rebuilding(it, rebuild),
            // A failure of other legs while that was committed may have taken the step back.
            (Rebuilding(_, it), Change::Join)
                if !matches!(it.step, Step::WriteAll(_) | Step::Event(_)) =>
            {
                InSync
            }
            (InSync, Change::Leave) => Missing(Box::default()),
            // Another leg is in sync, and has what this one lost.
            (Truncated(cut), Change::Leave) => Missing(Box::new(Stale {
                is_void: true,
                cut_end: cut.end.filter(|_| cut.acceptance == Acceptance::None),
                ..Stale::default()
            })),
            (Missing(it) | Fenced(it, _) | Inspecting(it), Change::Leave)
            | (ReadingBitmap(it, _) | Rebuilding(it, _), Change::Leave) => Missing(it),
            (InSync | Truncated(_), Change::Truncate(cut)) => Truncated(cut),
            (Truncated(_), Change::Accepted) => InSync,
            (before, change) => unreachable!("leg {leg}: {change:?} in {before:?}"),
        };
        let is_in_sync = matches!(state, InSync | Truncated(_));
        let is_rebuilding = matches!(state, Rebuilding(..));
        if self.writable().has(leg) && !is_in_sync && !is_rebuilding {
            self.left.add(leg);
        }
        self.in_sync.set(leg, is_in_sync);
        self.rebuilding.set(leg, is_rebuilding);
    }

    /// Returns a leg that got writes and gets none any more, once for each time.
    pub fn pop_left(&mut self) -> Option<u8> {
        let leg = self.left.first()?;
        self.left.remove(leg);
        Some(leg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LACK: Lack = Lack {
        position: 0,
        seen_event: 1,
        seen_lineage: 1,
    };

    fn table(state: LegState) -> LegTable {
        let mut legs = LegTable::default();
        let found = crate::superblock::tests::superblock(1);
        legs.insert(0, Leg::new(found, 0, state));
        legs
    }

    #[test]
    fn leg_that_returns_passes_all_states() {
        let mut legs = table(LegState::InSync);
        legs.change(0, Change::Leave);
        assert_eq!((legs.pop_left(), legs.pop_left()), (Some(0), None));
        legs.change(0, Change::Fence(7));
        legs.change(0, Change::Inspect);
        legs.change(0, Change::ReadBitmap(LACK));
        assert!(legs.is_returning(0) && legs.writable().is_empty());
        legs.change(0, Change::Rebuild(Rebuild::new(LACK, Bitmap::new(1), 0)));
        assert_eq!((legs.writable(), legs.in_sync()), (Legs(1), Legs(0)));
        let rebuild = legs.rebuild_mut(0).unwrap();
        for step in [
            Step::Event(LACK),
            Step::Copying,
            Step::LastFlush,
            Step::Whole,
        ] {
            rebuild.set_step(step);
        }
        legs.change(0, Change::Join);
        assert_eq!((legs.last_in_sync(), legs.pop_left()), (Some(0), None));
    }

    #[test]
    fn truncated_leg_that_leaves_is_void() {
        let mut legs = table(LegState::InSync);
        let end = Some(4096);
        let acceptance = Acceptance::None;
        legs.change(0, Change::Truncate(Cut { end, acceptance }));
        assert!(legs[0].has_unaccepted_cut() && legs.in_sync().has(0));
        legs.change(0, Change::Leave);
        assert!(legs[0].is_void() && legs[0].cut_end() == end);
    }

    #[test]
    #[should_panic(expected = "Join in Missing")]
    fn missing_leg_that_joins_panics() {
        table(LegState::Missing(Box::default())).change(0, Change::Join);
    }

    #[test]
    #[should_panic(expected = "Join in Rebuilding")]
    fn leg_that_joins_before_its_rebuild_panics() {
        let rebuild = Rebuild::new(LACK, Bitmap::new(1), 0);
        table(LegState::Rebuilding(Box::default(), rebuild)).change(0, Change::Join);
    }

    #[test]
    #[should_panic(expected = "rebuild from Copying to Whole")]
    fn rebuild_that_ends_without_a_flush_panics() {
        let mut rebuild = Rebuild::new(LACK, Bitmap::new(1), 0);
        for step in [Step::Event(LACK), Step::Copying, Step::Whole] {
            rebuild.set_step(step);
        }
    }
}
