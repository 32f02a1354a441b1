//! Superblocks: changes of the mirror are proposed, written in stages, and committed.
//!
//! # Contract
//! A proposal (the next event) goes to the legs that were in sync and stay so, then to the leg that
//! becomes it; then it is committed. Then it goes to legs that are being rebuilt, and to the other
//! copy of each. Only then the next proposal begins, with all changes since: so no leg that takes
//! part is ever more than one event behind. A leg that some superblock may call in sync is required
//! until an event without it is committed. On each leg a superblock waits for the heartbeat under
//! way there, and for its lease (`heartbeat`).
use super::leg::{Rebuild, Step};
use super::legs::{Legs, Round, Work};
use super::planted::{Bug, has};
use super::startup::StartState;
use super::{Mirror, News, Output};
use crate::Superblock;
use crate::history::{Seen, Standing};
use crate::superblock::EntryState;
use block::Outcome;

/// When a proposal that no leg could take is written again.
pub(super) const RETRY_NS: u64 = 1_000_000_000;

/// The superblocks that are on their way to the legs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SuperblockUpdate {
    stage: Stage,
    /// The stage before that was written last.
    before: Stage,
    round: Round,
    /// Legs that wait for their superblock: for a heartbeat, or their lease.
    due: Legs,
    /// No leg could take the last proposal: nothing can be changed until one can.
    is_broken: bool,
    /// When it is proposed again, ns.
    retry_at_ns: u64,
}

/// Which legs get the superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// None: all that get updates have the committed state.
    #[default]
    Idle,
    /// The newest state, to legs that lag.
    Lag,
    /// A proposal, to the legs that were in sync.
    First,
    /// To the leg that becomes it.
    Join,
    /// To those that are being rebuilt.
    Others,
    /// To the other copies.
    Second,
    /// The owner is cleared.
    Release,
}

impl SuperblockUpdate {
    /// Whether no superblock is on its way.
    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// Whether nothing can be changed, since no leg could take the last proposal.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// When a proposal that no leg could take is written again, ns.
    pub fn retry_at_ns(&self) -> u64 {
        self.retry_at_ns
    }

    /// Whether it waits for a leg.
    pub fn waits_for(&self, leg: u8) -> bool {
        self.round.waits.has(leg)
    }

    /// Legs that wait for their superblock.
    pub fn due(&self) -> Legs {
        self.due
    }

    /// The superblock of a leg has to wait.
    pub fn put_due(&mut self, leg: u8) {
        self.due.add(leg);
    }

    /// The superblock of a leg waits no more.
    pub fn take_due(&mut self, leg: u8) {
        self.due.remove(leg);
    }

    /// No leg can be changed any more.
    pub fn set_broken(&mut self) {
        self.is_broken = true;
    }

    /// Begins a stage: these legs get the superblock.
    fn begin(&mut self, stage: Stage, legs: Legs) {
        assert!(
            self.is_idle() && is_edge(self.before, stage),
            "{stage:?} in {:?} after {:?}",
            self.stage,
            self.before
        );
        self.stage = stage;
        self.round = Round::of(legs);
        self.due = legs;
    }

    /// The superblock of a leg has ended. Once all have: the stage, and how they ended.
    fn written(&mut self, leg: u8, outcome: Outcome) -> Option<(Stage, Round)> {
        let is_over = self.round.end(leg, outcome);
        // A superblock that was refused is as bad as one that failed.
        self.round.failed = self.round.failed.with(self.round.refused);
        is_over.then(|| {
            self.before = core::mem::take(&mut self.stage);
            (self.before, self.round)
        })
    }
}

/// Whether a stage may follow the one that was written last.
fn is_edge(before: Stage, next: Stage) -> bool {
    match next {
        Stage::Lag | Stage::First | Stage::Release => true,
        Stage::Join => before == Stage::First,
        Stage::Others => matches!(before, Stage::First | Stage::Join),
        Stage::Second => matches!(before, Stage::First | Stage::Join | Stage::Others),
        Stage::Idle => false,
    }
}

impl Mirror {
    /// Proposes all changes since the last event, if no update is under way.
    pub(super) fn propose(&mut self) {
        let may = self.startup.may_propose();
        debug_assert!(
            !may || !self.read_only,
            "nothing is written to a mirror that can only be read"
        );
        let is_broken = self.update.is_broken();
        let early = is_broken && self.now_ns < self.update.retry_at_ns()
            || self.unverified.is_held(self.now_ns);
        if !self.update.is_idle() || early || self.ownership.is_over() || !may {
            return;
        }
        let Some(next) = self.next_state() else {
            return; // nothing has changed
        };
        self.generation.propose(next);
        self.ownership.set_releasing(next.owner.is_none());
        self.bad.note_proposed(self.generation.proposed().bad);
        self.startup.note_proposed();
        self.write_state(self.legs.in_sync(), Stage::First);
    }

    /// The state after all changes since the last committed event; `None` if there are none.
    fn next_state(&self) -> Option<Superblock> {
        let now = self.generation.committed();
        let mut next = *now;
        // After an event that was not committed no leg joins: it would be two behind.
        let failed = now.event != self.generation.proposed().event;
        if now.history.current().id != self.lineage {
            next = next.begun(self.lineage);
        }
        if let Some(bytes) = self.grown_size() {
            next = next.grown_to(bytes).unwrap_or(next);
        }
        for (slot, entry) in now.entries() {
            let there = self.legs.writable().has(slot);
            let seen = self.seen_by(slot, entry.state);
            let step = self.legs.rebuild(slot).map(Rebuild::step);
            let changed = match entry.state {
                _ if self.changes.removing.has(slot) => next.removed(slot),
                EntryState::InSync | EntryState::Rebuilding(_) if !there => {
                    let left = next.without(slot, seen);
                    left.map(|left| match self.legs.is_void(slot) {
                        true => left.with_emptied(slot),
                        false => left,
                    })
                }
                EntryState::Stale(lack) if self.legs.is_void(slot) && lack.position > 0 => {
                    next.emptied(slot)
                }
                EntryState::Stale(_) if let Some(Step::Event(lack)) = step => {
                    let mut stale = next;
                    stale.set_state(slot, EntryState::Stale(lack));
                    stale.rebuilding(slot)
                }
                EntryState::Rebuilding(_) if let Some(Step::Position(to)) = step => {
                    next.rebuilt_to(slot, to, seen)
                }
                EntryState::Rebuilding(_) if step == Some(Step::Whole) && !failed => {
                    next.rejoined(slot)
                }
                _ => None,
            };
            next = changed.unwrap_or(next);
        }
        for slot in self.changes.adding.iter() {
            let fresh = self.legs[slot].fresh();
            let added = fresh.and_then(|(id, label)| next.added(slot, id, label));
            next = added.unwrap_or(next);
        }
        if let Some(properties) = self.changes.properties.filter(|it| *it != now.properties) {
            next = next.set_to(properties);
        }
        if let Some(name) = self.changes.name.filter(|it| *it != now.name) {
            next = next.renamed(name);
        }
        next.bad = self.bad.of_generation(&self.legs, now, &next);
        if !next.clean && self.is_at_rest() {
            next = next.stopped();
        }
        let changed = next.event != now.event || failed;
        let changed = changed
            || self
                .legs
                .has_cut_to_commit(self.generation.committed().geometry.bytes)
            || next.bad != now.bad;
        next.event = self.generation.proposed().event + u64::from(!has(Bug::SameEvent));
        changed.then_some(next)
    }

    /// The generation that a leg has for certain. A leg shows what it had before the start until
    /// it is written: then the lineage may be one that the history has forgotten, or, of a leg that
    /// was given up, one that is none of this mirror. Neither is looked up: the entry has it.
    fn seen_by(&self, slot: u8, entry: EntryState) -> Seen {
        let now = self.generation.committed();
        let own = self.legs.get(slot).map(|leg| leg.committed.seen());
        let own = own.map(|own| Seen {
            event: own.event.min(now.event),
            ..own
        });
        let is_within = |own: &Seen| {
            let standing = now.history.standing(own.event, own.lineage, now.event);
            standing == Standing::Within
        };
        own.filter(is_within).unwrap_or(match entry {
            EntryState::InSync => now.seen(),
            EntryState::Rebuilding(lack) | EntryState::Stale(lack) => Seen {
                event: lack.seen_event,
                lineage: lack.seen_lineage,
            },
        })
    }

    /// Writes the state to `legs`, as a stage.
    fn write_state(&mut self, legs: Legs, stage: Stage) {
        let state = *self.generation.proposed();
        for leg in legs.iter() {
            self.legs[leg].proposed = state;
        }
        self.write_proposed(legs, stage);
    }

    /// Writes the proposal to `legs`: over the copy that does not hold.
    fn write_proposed(&mut self, legs: Legs, stage: Stage) {
        self.sequence += 1;
        let (sequence, owner) = (self.sequence, self.ownership.owner_at(self.now_ns));
        for slot in legs.iter() {
            let leg = &self.legs[slot];
            let confirmed = self.legs.confirmed_by(leg, &leg.proposed);
            let (cut_at, place) = (
                leg.cut_at(self.generation.committed().geometry.bytes),
                leg.committed.place,
            );
            let proposed = &mut self.legs[slot].proposed;
            *proposed = Superblock {
                confirmed,
                cut_at,
                sequence,
                slot,
                place,
                owner: proposed.owner.and(Some(owner)),
                ..*proposed
            };
        }
        self.update.begin(stage, legs);
        self.write_due_legs();
    }

    /// Gives out superblocks that are due, where no heartbeat is in their way.
    pub(super) fn write_due_legs(&mut self) {
        for leg in self.update.due().iter() {
            if !self.legs.writable().has(leg)
                || self.ownership.leases.blocks_event(leg, self.legs.in_sync())
            {
                continue;
            }
            self.update.take_due(leg);
            let copy = self.begin_event(leg);
            let ticket = self.outputs.ticket(leg, Work::Update);
            self.outputs.push(Output::Superblock(ticket, copy));
        }
    }

    /// Writes superblocks that are due; legs that have left get none.
    pub(super) fn write_due(&mut self) {
        let gone = self.update.due().without(self.legs.writable());
        for leg in gone.iter() {
            self.update.take_due(leg);
        }
        for leg in gone.iter() {
            self.update_written(leg, Outcome::PathError);
        }
        self.write_due_legs();
    }

    pub(super) fn update_written(&mut self, leg: u8, outcome: Outcome) {
        if !self.update.waits_for(leg) {
            // It has left, and the update went on without it.
            return self.end_event(leg, Outcome::PathError);
        }
        if outcome.is_done() {
            let it = &mut self.legs[leg];
            it.committed = it.proposed;
            it.note_marked();
            it.copy = 1 - it.copy;
            if let Some(stale) = it.stale_mut() {
                stale.fresh = None;
            }
        }
        self.end_event(leg, outcome);
        if let Some((stage, round)) = self.update.written(leg, outcome) {
            self.update_over(stage, round);
        }
    }

    fn update_over(&mut self, stage: Stage, round: Round) {
        self.outputs.wake();
        let well = round.failed.is_empty();
        match stage {
            Stage::Lag => {
                self.startup.lagging = Legs::default();
                self.leave_but_last(round);
                if !self.startup.is_stopped() {
                    let is_proposed = false;
                    self.startup
                        .set(StartState::FirstGeneration { is_proposed });
                }
                if round.failed.iter().any(|leg| self.legs.in_sync().has(leg)) {
                    self.set_update_broken(Round::default());
                }
            }
            Stage::First | Stage::Join => self.stage_written(stage, round),
            Stage::Others | Stage::Second => {
                // An acceptance after the first copies were written is on the others.
                self.cut_committed();
                self.leave(round);
                if well && stage == Stage::Others {
                    self.write_state(
                        self.legs.updated_by(self.generation.proposed()),
                        Stage::Second,
                    );
                }
            }
            Stage::Idle => unreachable!("nothing was written"),
            Stage::Release => {
                self.stopped(self.generation.proposed().clean && !self.ownership.is_abandoned())
            }
        }
    }

    /// A stage was written: to the legs that were in sync, or to those that become it.
    fn stage_written(&mut self, stage: Stage, round: Round) {
        if stage == Stage::First && round.done.is_empty() {
            return self.set_update_broken(round);
        }
        if !round.failed.is_empty() {
            return self.leave(round);
        }
        let in_sync: Legs = self.generation.proposed().in_sync().collect();
        let joined = in_sync.both(self.legs.rebuilding());
        if stage == Stage::First && !joined.is_empty() {
            return self.write_state(joined, Stage::Join);
        }
        self.commit(joined);
        let others = self
            .legs
            .updated_by(self.generation.proposed())
            .without(self.legs.in_sync());
        let (legs, stage) = match others.is_empty() {
            true => (self.legs.in_sync(), Stage::Second),
            false => (others, Stage::Others),
        };
        self.write_state(legs, stage);
        self.resume_waiting();
    }

    /// Commits the generation: changes that waited for it go on.
    fn commit(&mut self, joined: Legs) {
        let bytes = self.generation.committed().geometry.bytes;
        self.generation.commit();
        self.bad.note_committed();
        if core::mem::take(&mut self.update.is_broken) {
            self.outputs.news(News::Restored);
        }
        for leg in joined.iter() {
            self.join(leg);
        }
        for leg in self.legs.rebuilding().iter() {
            self.has_rebuilt_some(leg);
        }
        self.cut_committed();
        self.loss.poorer &= !self
            .generation
            .required()
            .without(self.legs.in_sync())
            .is_empty();
        self.commit_leg_changes();
        self.note_grown(bytes);
        if matches!(self.startup.state(), StartState::FirstGeneration { .. }) {
            self.startup.set(StartState::WritingBitmaps);
            self.write_all_from(0);
        }
        self.outputs.wake();
    }

    /// No leg could take the proposal: changes fail until one can.
    fn set_update_broken(&mut self, round: Round) {
        self.update.retry_at_ns = self.now_ns + RETRY_NS;
        self.loss.tries = self.loss.tries.wrapping_add(1);
        if !self.update.is_broken() {
            self.update.set_broken();
            self.outputs.news(News::Broken);
        }
        self.leave(round);
        self.resume_waiting();
    }

    /// Before the first event: the newest state goes to legs in sync that lag.
    pub(super) fn write_newest(&mut self) {
        let lagging = self.startup.lagging.both(self.legs.in_sync());
        if lagging.is_empty() {
            let is_proposed = false;
            self.startup
                .set(StartState::FirstGeneration { is_proposed });
            self.outputs.wake();
            return;
        }
        self.startup.set(StartState::WritingNewest);
        let (newest, owner) = (*self.startup.newest, Some(*self.ownership.owner()));
        for leg in lagging.iter() {
            self.legs[leg].proposed = Superblock { owner, ..newest };
        }
        self.write_proposed(lagging, Stage::Lag);
    }

    /// Clears the owner record on all legs: the last update.
    pub(super) fn release_ownership(&mut self) {
        self.ownership.set_releasing(true);
        let legs = self.legs.owned_by(self.ownership.owner().run);
        for leg in legs.iter() {
            let leg = &mut self.legs[leg];
            leg.proposed = leg.committed.released();
        }
        self.write_proposed(legs, Stage::Release);
    }
}
