//! What is said of the mirror: superblocks, one round of them after the other.
//!
//! # Contract
//! An event goes to the legs that were in sync and stay so, then to the one that becomes it; then
//! it has happened. Then it goes to legs that are being rebuilt, and to the other copy of each.
//! Only then the next one begins, which says all that has changed meanwhile: so nobody who takes
//! part is ever more than one event behind. A leg that some superblock may call in sync is required
//! until an event without it has happened. On each leg a superblock waits for the beat under way
//! there, and for its lease (`beat`).
use super::legs::{Legs, Round, Work};
use super::life::{Life, is_rebuilding};
use super::members::{Member, Step};
use super::planted::{Bug, has};
use super::{Mirror, News, Output};
use crate::Outcome;
use crate::mirror::Superblock;
use crate::mirror::superblock::{LegState, Owner};

/// When what nobody could take is said again.
pub(super) const RETRY_NS: u64 = 1_000_000_000;

/// A round of superblocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saying {
    stage: Stage,
    pub round: Round,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The newest state, to who has it not.
    Lag,
    /// An event, to who was in sync.
    First,
    /// To who becomes it.
    Join,
    /// To who is being rebuilt.
    Others,
    /// To the other copies.
    Second,
    /// Nobody has it any more.
    Disown,
}

impl Mirror {
    /// Legs that are told of events: in sync, or being rebuilt by what is said.
    fn told(&self) -> Legs {
        let joining = self.members.rebuilding().iter();
        let told = joining.filter(|&leg| is_rebuilding(&self.state, leg));
        self.members.in_sync().with(told.collect())
    }

    /// Begins to say what is not said yet, if nothing is being said.
    pub(super) fn say(&mut self) {
        let may = matches!(self.life, Life::Beginning | Life::Sweeping | Life::Running);
        debug_assert!(
            !may || !self.read_only,
            "nothing is said of what can only be read"
        );
        let early = self.broken && self.now_ns < self.retry_at_ns || self.is_in_doubt();
        if self.saying.is_some() || early || self.foreign || !may {
            return;
        }
        let Some(next) = self.next_state() else {
            return;
        };
        self.state = next;
        self.says_record();
        self.begun = true;
        self.required = self.required.with(self.state.in_sync().collect());
        self.write_state(self.members.in_sync(), Stage::First);
    }

    /// The state after all that has changed since the last event that happened; `None` if nothing
    /// has.
    fn next_state(&self) -> Option<Superblock> {
        let now = &*self.happened;
        let mut next = *now;
        // One after an event that did not happen has nobody join: that leg would be two behind.
        let failed = now.event != self.state.event;
        if now.history.current().id != self.lineage {
            next = next.begun(self.lineage);
        }
        if let Some(bytes) = self.grown_size() {
            next = next.grown_to(bytes).unwrap_or(next);
        }
        for (slot, entry) in now.entries() {
            let there = self.members.writable().has(slot);
            let seen = self.leg(slot).map_or(0, |leg| leg.said.event);
            let step = self.members.rebuild(slot).map(|it| it.step);
            let changed = match entry.state {
                _ if self.changes.removing.has(slot) => next.removed(slot),
                LegState::InSync | LegState::Rebuilding(_) if !there => {
                    let left = next.without(slot, seen);
                    left.map(|left| self.as_it_is(slot, left))
                }
                LegState::Stale(lack) if self.is_nothing(slot) && lack.position > 0 => {
                    next.emptied(slot)
                }
                LegState::Stale(_) if let Some(Step::Event(lack)) = step => {
                    let mut stale = next;
                    stale.put(slot, LegState::Stale(lack));
                    stale.rebuilding(slot)
                }
                LegState::Rebuilding(_) if let Some(Step::Position(to)) = step => {
                    next.rebuilt_to(slot, to, seen)
                }
                LegState::Rebuilding(_) if step == Some(Step::Whole) && !failed => {
                    next.rejoined(slot)
                }
                _ => None,
            };
            next = changed.unwrap_or(next);
        }
        for slot in self.changes.adding.iter() {
            let leg = self.leg(slot).and_then(|leg| leg.fresh);
            let added = leg.and_then(|(id, label)| next.added(slot, id, label));
            next = added.unwrap_or(next);
        }
        if let Some(properties) = self.changes.properties.filter(|it| *it != now.properties) {
            next = next.set_to(properties);
        }
        if let Some(name) = self.changes.name.filter(|it| *it != now.name) {
            next = next.renamed(name);
        }
        next.bad = self.record_of(now, &next);
        if !next.clean && self.is_at_rest() {
            next = next.stopped();
        }
        let changed = next.event != now.event || failed;
        let changed = changed || self.has_cut_to_say() || next.bad != now.bad;
        next.event = self.state.event + u64::from(!has(Bug::SameEvent));
        changed.then_some(next)
    }

    /// Whether nothing that a leg has counts any more.
    fn is_nothing(&self, slot: u8) -> bool {
        self.leg(slot).is_some_and(|leg| leg.contents.is_void())
    }

    /// What is said when a leg leaves: one that was cut short lacks everything.
    fn as_it_is(&self, slot: u8, left: Superblock) -> Superblock {
        let emptied = self.is_nothing(slot).then(|| left.emptied(slot)).flatten();
        emptied.map_or(left, |emptied| Superblock {
            event: left.event,
            sequence: left.sequence,
            ..emptied
        })
    }

    /// Writes the state to `legs`, as a stage.
    fn write_state(&mut self, legs: Legs, stage: Stage) {
        let state = self.state;
        for leg in legs.iter() {
            if let Some(leg) = self.leg_mut(leg) {
                leg.pending = state;
            }
        }
        self.write_pending(legs, stage);
    }

    /// Writes what is pending for `legs`: the copy that does not hold.
    fn write_pending(&mut self, legs: Legs, stage: Stage) {
        self.sequence += 1;
        let (sequence, owner) = (self.sequence, self.owner_now());
        for slot in legs.iter() {
            let leg = self.leg(slot);
            let confirmed = leg.map(|leg| self.confirmed_by(leg, &leg.pending));
            let cut_at = self.cut_at(slot);
            if let Some(leg) = self.leg_mut(slot) {
                leg.pending.confirmed = confirmed.unwrap_or(0);
                leg.pending.cut_at = cut_at;
                leg.pending.sequence = sequence;
                leg.pending.slot = slot;
                leg.pending.place = leg.said.place;
                leg.pending.owner = leg.pending.owner.and(Some(owner));
            }
        }
        let round = Round::of(legs);
        self.saying = Some(Saying { stage, round });
        self.lease.due = legs;
        self.give_due();
    }

    /// Gives out what is pending, where nothing is in its way.
    pub(super) fn give_due(&mut self) {
        for leg in self.lease.due.iter() {
            if !self.members.writable().has(leg) || !self.may_say(leg) {
                continue;
            }
            self.lease.due.remove(leg);
            if let Some(copy) = self.say_now(leg) {
                let ticket = self.ticket(leg, Work::Saying);
                self.outputs.push_back(Output::Superblock(ticket, copy));
            }
        }
    }

    /// The same; those that have left get nothing any more.
    pub(super) fn see_to_due(&mut self) {
        let gone = self.lease.due.without(self.members.writable());
        self.lease.due = self.lease.due.both(self.members.writable());
        for leg in gone.iter() {
            self.saying_done(leg, Outcome::PathError);
        }
        self.give_due();
    }

    pub(super) fn saying_done(&mut self, leg: u8, outcome: Outcome) {
        let Some(mut saying) = self.saying.filter(|it| it.round.waits.has(leg)) else {
            // It has left, or somebody else is not there any more.
            return self.said_on(leg, Outcome::PathError);
        };
        if outcome.is_done()
            && let Some(it) = self.leg_mut(leg)
        {
            it.said = it.pending;
            it.is_marked();
            it.fresh = None;
            it.copy = 1 - it.copy;
        }
        self.said_on(leg, outcome);
        let over = saying.round.end(leg, outcome);
        // A superblock that was refused is as bad as one that failed.
        saying.round.failed = saying.round.failed.with(saying.round.refused);
        self.saying = Some(saying);
        if over {
            self.saying_over(saying);
        }
    }

    fn saying_over(&mut self, Saying { stage, round }: Saying) {
        self.saying = None;
        self.wake = true;
        let well = round.failed.is_empty();
        match stage {
            Stage::Lag => {
                self.lagging = Legs::default();
                self.leave_but_last(round);
                self.life = Life::Beginning;
                if round
                    .failed
                    .iter()
                    .any(|leg| self.members.in_sync().has(leg))
                {
                    self.is_broken(Round::default());
                }
            }
            Stage::First | Stage::Join => self.said(stage, round),
            Stage::Others | Stage::Second => {
                // What was accepted after the first copies were written is on the others.
                self.cut_was_said();
                self.leave(round);
                if well && stage == Stage::Others {
                    self.write_state(self.told(), Stage::Second);
                }
            }
            Stage::Disown => self.stopped(self.state.clean && !self.lease.given_up),
        }
    }

    /// An event is on the legs that were in sync, or on the ones that become it.
    fn said(&mut self, stage: Stage, round: Round) {
        if stage == Stage::First && round.done.is_empty() {
            return self.is_broken(round);
        }
        if !round.failed.is_empty() {
            return self.leave(round);
        }
        let in_sync: Legs = self.state.in_sync().collect();
        let joined = in_sync.both(self.members.rebuilding());
        if stage == Stage::First && !joined.is_empty() {
            return self.write_state(joined, Stage::Join);
        }
        self.has_happened(in_sync, joined);
        let others = self.told().without(self.members.in_sync());
        let (legs, stage) = match others.is_empty() {
            true => (self.members.in_sync(), Stage::Second),
            false => (others, Stage::Others),
        };
        self.write_state(legs, stage);
        self.look_again();
    }

    /// An event has happened: what waited for it goes on.
    fn has_happened(&mut self, in_sync: Legs, joined: Legs) {
        self.required = in_sync;
        let bytes = self.happened.geometry.bytes;
        *self.happened = self.state;
        self.has_said_record();
        if core::mem::take(&mut self.broken) {
            self.news(News::Restored);
        }
        for leg in joined.iter() {
            let Member::Rebuilding(rebuild) = self.members.set(leg, Member::InSync) else {
                unreachable!("leg {leg} was being rebuilt");
            };
            self.has_joined(leg, &rebuild);
        }
        for leg in self.members.rebuilding().iter() {
            self.is_joining(leg);
        }
        self.cut_was_said();
        self.see_to_loss();
        self.legs_changed();
        self.has_grown(bytes);
        if self.life == Life::Beginning {
            self.life = Life::Sweeping;
            self.begin_write_all();
        }
        self.wake = true;
    }

    /// Nobody could take the last event: changes fail until somebody can.
    fn is_broken(&mut self, round: Round) {
        self.retry_at_ns = self.now_ns + RETRY_NS;
        self.loss.tries = self.loss.tries.wrapping_add(1);
        if !self.broken {
            self.broken = true;
            self.news(News::Broken);
        }
        self.leave(round);
        self.look_again();
    }

    /// Before the first event: the newest state goes to legs in sync that lag.
    pub(super) fn catch_up(&mut self) {
        let lagging = self.lagging.both(self.members.in_sync());
        if lagging.is_empty() {
            self.life = Life::Beginning;
            self.wake = true;
            return;
        }
        self.life = Life::Lagging;
        let (newest, owner) = (*self.newest, Some(self.owner));
        for leg in lagging.iter() {
            if let Some(leg) = self.leg_mut(leg) {
                leg.pending = Superblock { owner, ..newest };
            }
        }
        self.write_pending(lagging, Stage::Lag);
    }

    pub(super) fn is_disowning(&self) -> bool {
        self.saying.is_some_and(|it| it.stage == Stage::Disown)
    }

    /// Nobody has it any more: the last thing that is said.
    pub(super) fn disown(&mut self) {
        let legs = self.ours();
        for leg in legs.iter() {
            if let Some(leg) = self.leg_mut(leg) {
                leg.pending = leg.said;
                leg.pending.owner = None;
            }
        }
        self.write_pending(legs, Stage::Disown);
    }

    pub(super) fn become_foreign(&mut self, other: Option<Owner>) {
        if !self.foreign {
            (self.foreign, self.other) = (true, other);
            self.lease.end_ns = u64::MAX;
            self.news(News::Foreign);
            self.end_all();
        }
    }
}
