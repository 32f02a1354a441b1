//! Beats, and what an owner may do between them (T48).
//!
//! # Contract
//! Each leg that says that it is ours is beaten by itself: its record is read, and if it is ours
//! its sequence is raised; if not, all stops, unless it is an older one that [came
//! late](Mirror::came_late). One that doesn't answer keeps no other from it.
//!
//! Where other hosts reach the legs, a leg is under a lease: [`LEASE_BEATS`] from when the last
//! beat began that ended well there. Whoever takes over has seen no beat for longer, and has let
//! its own record stand for longer since. A leg whose lease is over gets nothing but beats, and
//! leaves if another one's lasts; where none does, nothing is given out and nothing acknowledged,
//! reads included. It goes on after two beats on end, of which the second began no sooner than one
//! interval after the first had ended, and ended in its lease: so whoever looked before the first
//! has written its record, by its rules, before the second read it. The mirror also begins so;
//! the record that was written when it was claimed is the first of the two.
//!
//! # Limits
//! What was given out in the lease may be executed later: who takes over waits for that
//! ([`Terms`](crate::mirror::ownership::acquire::Terms)), and whoever moves the bytes cuts a leg off that has
//! [`News::Lapsed`]. A process that stands still between asking for the time and giving something
//! out gives it out afterwards; whoever starts it on a device asks
//! [`start_before_ns`](Mirror::start_before_ns) directly before (T49).
use super::legs::{Legs, Ticket, Work};
use super::life::Life;
use super::planted::{Bug, has};
use super::{Leg, Mirror, News, Output};
use crate::Outcome;
use crate::mirror::Superblock;
use crate::mirror::copies::{Chosen, NoLeg};
use crate::mirror::ownership::acquire::{BEATS_MISSED, LEASE_BEATS, Terms, beat_ns};
use crate::mirror::superblock::{LegState, Owner};

/// What keeps outputs back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lease {
    /// Others reach the legs.
    on: bool,
    /// Legs whose lease is over, and when the next one's ends.
    pub lapsed: Legs,
    pub end_ns: u64,
    /// What the owner before us gave its legs may be executed until then.
    pub hold_until_ns: u64,
    /// The bound of that, which our record has to say till then, ms.
    left_ms: u32,
    /// Until then the last leg in sync may execute what it has failed; 0: it does not.
    pub doubt_until_ns: u64,
    /// Legs that wait for their superblock of an event.
    pub due: Legs,
    /// It ended while a stop said its last: nothing more is said (T48).
    pub given_up: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Idle,
    Read,
    Write,
}

/// The beats of one leg.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beat {
    step: Step,
    /// When the next one is due.
    at_ns: u64,
    /// When the record was asked for in this one, and in the last one that found it ours.
    asked_ns: u64,
    read_ns: u64,
    /// What is being written, since when.
    sequence: u64,
    written_ns: u64,
    /// At most that bound is being written, ms.
    bound_ms: u32,
    /// A superblock of an event is under way since.
    writing_ns: Option<u64>,
    /// The lease ends then; and who has none, and another leg has one, leaves then.
    until_ns: u64,
    patience_ns: u64,
    /// The first beat since it ended: when it began to be written, and was.
    first: Option<(u64, u64)>,
    /// Where it was taken over: what its owners before wrote has a lower sequence.
    pub from: u64,
    /// How the last one failed: so does what waits for the leg.
    pub failed: Option<Outcome>,
}

impl Beat {
    /// Of a leg whose record is asked for now, since it returns.
    pub fn asked(now_ns: u64) -> Self {
        Self {
            asked_ns: now_ns,
            ..Self::default()
        }
    }

    /// The superblock of an event is not under way after all.
    pub fn put_back(&mut self) {
        self.writing_ns = None;
    }
}

impl Leg {
    /// A superblock of ours is durable on it.
    pub(super) fn is_marked(&mut self) {
        if self.marked_from == 0 {
            self.marked_from = self.committed.sequence;
        }
    }
}

impl Mirror {
    /// The record of a leg that returns was read. Where it is ours that is the leg's lease until
    /// its first beat has ended, which is due.
    pub(super) fn found_ours(&mut self, leg: u8) {
        let lease_ns = self.lease_ns();
        if let Some(it) = self.leg_mut(leg) {
            let until_ns = it.beat.asked_ns.saturating_add(lease_ns);
            (it.beat.until_ns, it.beat.patience_ns) = (until_ns, until_ns);
        }
    }

    /// For how long a foreign owner's record is looked at; 0: not at all.
    pub(super) fn look_ns(&self) -> u64 {
        match self.lease.on {
            true => self.interval_ns().saturating_mul(BEATS_MISSED),
            false => 0,
        }
    }

    /// Legs that say that they are ours.
    pub(super) fn ours(&self) -> Legs {
        let run = self.owner.run;
        let owner = |leg: u8| self.leg(leg).and_then(|leg| leg.committed.owner);
        let ours = |leg: &u8| owner(*leg).is_some_and(|it| it.run == run);
        self.members
            .in_sync()
            .with(self.members.rebuilding().iter().filter(ours).collect())
    }

    /// What the mirror was got on.
    pub(super) fn heed(&mut self, terms: Terms) {
        self.lease.hold_until_ns = terms.hold_until_ns;
        self.lease.left_ms = terms.left_ms;
        if has(Bug::ChangeBeforeBound) {
            self.lease.hold_until_ns = 0;
        }
        self.lease.on = terms.written_ns.is_some() && !has(Bug::NoLease);
        self.lease.end_ns = u64::MAX;
        let now_ns = self.now_ns;
        let patience_ns = now_ns.saturating_add(self.lease_ns());
        for leg in self.members.in_sync().iter() {
            if let Some(it) = self.leg_mut(leg) {
                (it.beat.at_ns, it.beat.patience_ns) = (now_ns, patience_ns);
                it.beat.first = terms.written_ns;
                if terms.hold_until_ns > 0 {
                    it.beat.from = it.committed.sequence;
                }
            }
        }
        if self.lease.on {
            self.lease.lapsed = self.members.in_sync();
        }
    }

    pub(super) fn interval_ns(&self) -> u64 {
        match (self.state.beat_interval_ms, self.lease.on) {
            (0, false) => u64::MAX,
            (ms, _) => beat_ns(ms),
        }
    }

    pub(super) fn lease_ns(&self) -> u64 {
        self.interval_ns().saturating_mul(LEASE_BEATS)
    }

    /// Whether legs get nothing any more when their beats don't end.
    pub fn has_lease(&self) -> bool {
        self.lease.on
    }

    /// Legs whose lease is over, of those that take part.
    pub fn lapsed(&self) -> Legs {
        self.lease.lapsed.both(self.members.writable())
    }

    /// Whether nothing may be given out, nor acknowledged.
    pub(super) fn stands_still(&self) -> bool {
        !self.lease.lapsed.is_empty()
            && self.members.in_sync().without(self.lease.lapsed).is_empty()
    }

    /// Whether changes wait for what the owner before us has left (T9).
    pub(super) fn holds_changes(&self) -> bool {
        self.now_ns < self.lease.hold_until_ns
    }

    /// The time before which a change that a leg was given has to start there, ns; `u64::MAX`: at
    /// any time (T49). Data, pages and superblocks of events: while the leg has its lease, also if
    /// it has left since; one that does not say yet that it is ours, while any leg has one. A
    /// beat's record: two intervals from when the one that it replaces was asked for; by then
    /// another owner may have come, and the record is read again first. A beat that is written
    /// later renews no lease.
    pub fn start_before_ns(&self, ticket: Ticket) -> u64 {
        if !self.lease.on {
            return u64::MAX;
        }
        let until_ns = |leg: u8| self.leg(leg).map_or(0, |it| it.beat.until_ns);
        if ticket.is_beat() {
            let asked_ns = self.leg(ticket.leg).map_or(0, |it| it.beat.asked_ns);
            return asked_ns.saturating_add(self.lease_ns());
        }
        // It was given that before it left.
        let has_left = !self.members.writable().has(ticket.leg) && until_ns(ticket.leg) > 0;
        if has_left || self.ours().has(ticket.leg) {
            return until_ns(ticket.leg);
        }
        self.wipe_before_ns()
    }

    /// The same for the wipe of a leg that was removed: while any leg has its lease. Later it may
    /// be another owner's leg.
    pub fn wipe_before_ns(&self) -> u64 {
        if !self.lease.on {
            return u64::MAX;
        }
        let until_ns = |leg: u8| self.leg(leg).map_or(0, |it| it.beat.until_ns);
        self.members
            .in_sync()
            .iter()
            .map(until_ns)
            .max()
            .unwrap_or(0)
    }

    /// Leases that have ended by now.
    #[cold]
    pub(super) fn lapse(&mut self) {
        let now_ns = self.now_ns;
        let ended = |leg: &u8| self.leg(*leg).is_some_and(|it| it.beat.until_ns <= now_ns);
        let over: Legs = self
            .ours()
            .without(self.lease.lapsed)
            .iter()
            .filter(ended)
            .collect();
        self.lease.lapsed = self.lease.lapsed.with(over);
        for leg in over.iter() {
            if let Some(it) = self.leg_mut(leg) {
                it.beat.first = None;
            }
            self.news(News::Lapsed(leg));
        }
        self.look_at_leases();
        self.leave_lapsed();
        self.see_to_last_words();
        self.wake = true;
    }

    /// Once the last is about to be said no beat renews a lease any more. Where another leg has one
    /// yet the stop is unclean all the same: that costs the next start some copying, and no more.
    fn see_to_last_words(&mut self) {
        self.lease.given_up |= self.is_released() && !self.lapsed().is_empty();
    }

    /// Goes on with a stop whose last words are not said any more; whether it is such a one.
    pub(super) fn gives_up(&mut self) -> bool {
        self.see_to_last_words();
        let is_busy = self.legs.iter().flatten().any(|leg| leg.is_busy());
        if self.lease.given_up && !is_busy {
            self.stopped(false);
        }
        self.lease.given_up
    }

    /// A leg without a lease leaves where another one has its own.
    fn leave_lapsed(&mut self) {
        if self.lease.lapsed.is_empty() || self.stands_still() {
            return;
        }
        for leg in self.lapsed().iter() {
            if self
                .leg(leg)
                .is_some_and(|it| it.beat.patience_ns <= self.now_ns)
            {
                self.lose(leg, Outcome::TimedOut);
            }
        }
    }

    fn look_at_leases(&mut self) {
        let legs = self.ours().without(self.lease.lapsed);
        let ends = legs
            .iter()
            .filter_map(|leg| Some(self.leg(leg)?.beat.until_ns));
        let end_ns = ends.min().filter(|_| self.lease.on && !self.lost_ownership);
        self.lease.end_ns = end_ns.unwrap_or(u64::MAX);
    }

    /// Whether the last is being said, or is about to be: a beat would find that nobody has the
    /// mirror.
    fn is_released(&self) -> bool {
        let last = self.stopping && self.forgot && self.log.is_written();
        last || self.state.owner.is_none() || self.is_releasing_ownership()
    }

    /// A leg whose lease has ended and that is to be cut off, before anything else is polled: for
    /// whoever has no room for other outputs just then.
    pub fn poll_lapsed(&mut self) -> Option<u8> {
        let lapsed = |it: &Output| match it {
            Output::News(News::Lapsed(leg)) => Some(*leg),
            _ => None,
        };
        let (at, leg) = (0..)
            .zip(&self.outputs)
            .find_map(|(at, it)| Some((at, lapsed(it)?)))?;
        self.outputs.remove(at);
        Some(leg)
    }

    /// Legs that are to be beaten: none when nobody is to have the mirror any more.
    fn beaten(&self) -> Legs {
        match self.is_released() || self.life == Life::Stopped || self.read_only {
            true => Legs::default(),
            false => self.ours(),
        }
    }

    /// When a beat is due, or a lease ends.
    pub(super) fn beats_at(&self) -> u64 {
        let legs = self.beaten();
        let idle = |it: &&Leg| it.beat.step == Step::Idle && it.beat.writing_ns.is_none();
        let beats = legs.iter().filter_map(|leg| self.leg(leg).filter(idle));
        let first = beats.map(|it| it.beat.at_ns).min();
        first.unwrap_or(u64::MAX).min(self.lease.end_ns)
    }

    /// Beats that are due begin.
    pub(super) fn beat(&mut self) {
        self.leave_lapsed();
        let (now_ns, interval_ns) = (self.now_ns, self.interval_ns());
        for leg in self.beaten().iter() {
            let Some(it) = self.leg_mut(leg) else {
                continue;
            };
            let idle = it.beat.step == Step::Idle && it.beat.writing_ns.is_none();
            if !idle || now_ns < it.beat.at_ns {
                continue;
            }
            it.beat.step = Step::Read;
            it.beat.asked_ns = now_ns;
            it.beat.at_ns = now_ns.saturating_add(interval_ns);
            let ticket = self.ticket(leg, Work::Beat);
            self.outputs.push_back(Output::ReadSuperblocks(ticket));
        }
    }

    /// What stands on a leg.
    pub(super) fn beat_read(&mut self, leg: u8, found: &Result<Chosen, NoLeg>) {
        let mirror = self.state.mirror;
        let id = |it: &Superblock| (it.mirror, it.leg().map(|leg| leg.id));
        let Some(ours) = self.leg(leg).map(|leg| id(&leg.committed)) else {
            return;
        };
        let Ok(found) = found else {
            // It has been overwritten; it is no leg any more.
            return self.beat_failed(leg, Outcome::MediaError);
        };
        let other = found.superblock.owner;
        let is_ours = other.is_some_and(|it| it.run == self.owner.run);
        let came_late = self.came_late(leg, &found.superblock);
        if !(is_ours || came_late) || id(&found.superblock) != ours {
            let other = other.filter(|_| found.superblock.mirror == mirror);
            self.lose_ownership(other);
        }
        if is_ours && !self.lost_ownership {
            self.see_to_put_back(leg, &found.superblock);
            self.confirm(leg, found);
        }
        let now_ns = self.now_ns;
        let goes_on = !self.lost_ownership && self.beaten().has(leg);
        self.sequence += 1;
        let (sequence, bound_ms) = (self.sequence, self.owner_now().bound_ms);
        let Some(it) = self.leg_mut(leg) else {
            return;
        };
        it.beat.read_ns = it.beat.asked_ns;
        // The superblock of an event is as good.
        it.beat.step = match goes_on && it.beat.writing_ns.is_none() {
            true => Step::Write,
            false => Step::Idle,
        };
        if it.beat.step == Step::Write {
            (it.beat.sequence, it.beat.written_ns) = (sequence, now_ns);
            it.beat.bound_ms = bound_ms;
            let copy = 1 - it.copy;
            let ticket = self.ticket(leg, Work::Beat);
            self.outputs.push_back(Output::Superblock(ticket, copy));
        }
        self.wake = true;
    }

    /// Whether a record is one that an owner before us had sent, and not of one that came after
    /// us. Two of those that died one after the other may each have one on its way, and so come
    /// over both copies of ours between two beats; it is written anew. Whoever comes after us has
    /// read ours, or has looked before and written before ours was verified.
    fn came_late(&self, leg: u8, found: &Superblock) -> bool {
        let beat = self.leg(leg).map(|leg| leg.beat).unwrap_or_default();
        let may_come = beat.read_ns < self.lease.hold_until_ns;
        may_come && found.sequence < beat.from
    }

    /// A beat was written, or has failed.
    pub(super) fn beat_done(&mut self, leg: u8, outcome: Outcome) {
        let owner = self.owner_now();
        let Some(it) = self.leg_mut(leg) else {
            return;
        };
        let wrote = it.beat.step == Step::Write;
        if wrote && outcome.is_done() {
            it.beat.step = Step::Idle;
            it.committed.sequence = it.beat.sequence;
            it.is_marked();
            let bound_ms = it.beat.bound_ms;
            it.committed.owner = Some(Owner { bound_ms, ..owner });
            it.copy = 1 - it.copy;
            let asked_ns = it.beat.asked_ns;
            self.renew(leg, asked_ns);
        } else {
            self.beat_failed(leg, outcome);
        }
        self.wake = true;
    }

    fn beat_failed(&mut self, leg: u8, outcome: Outcome) {
        let lapsed = self.lease.lapsed.has(leg);
        let (now_ns, soon_ns) = (self.now_ns, self.interval_ns() / 4);
        let Some(it) = self.leg_mut(leg) else {
            return;
        };
        let wrote = core::mem::take(&mut it.beat.step) == Step::Write;
        // It is not written when there is a path again: what stands there is read first, which
        // waits for one like everything else; soon enough to keep the lease, where there is one.
        // But what may come late over the next event is a failure as any (T9).
        let over = lapsed || it.late_until_ns <= now_ns;
        if wrote && over && outcome == Outcome::PathError {
            if !lapsed {
                it.beat.at_ns = it.beat.asked_ns.saturating_add(soon_ns);
            }
            self.wake = true;
            return;
        }
        // Who is too busy to be read is asked at the next beat, and stays (T6).
        if wrote || !matches!(outcome, Outcome::Busy { .. }) {
            it.beat.failed = lapsed.then_some(outcome);
            self.lose(leg, outcome);
            // An event that waits for the leg fails with what waits there besides.
            if lapsed && self.lease.due.has(leg) {
                self.lease.due.remove(leg);
                self.update_written(leg, outcome);
            }
        }
        self.wake = true;
    }

    /// A beat that began then has ended well on a leg.
    fn renew(&mut self, leg: u8, began_ns: u64) {
        if !self.lease.on {
            return;
        }
        let (now_ns, interval_ns) = (self.now_ns, self.interval_ns());
        let lease_ns = self.lease_ns();
        let until_ns = began_ns.saturating_add(lease_ns);
        let lapsed = self.lease.lapsed.has(leg);
        let Some(it) = self.leg_mut(leg) else {
            return;
        };
        let beat = &mut it.beat;
        beat.failed = None;
        let again = beat.first.is_some_and(|(first_ns, ended_ns)| {
            let later = beat.asked_ns >= ended_ns.saturating_add(interval_ns);
            let in_time = first_ns.saturating_add(lease_ns).min(until_ns) > now_ns;
            later && in_time
        });
        if lapsed && !again {
            beat.first = Some((beat.written_ns, now_ns));
            beat.at_ns = now_ns.saturating_add(interval_ns);
            return;
        }
        beat.until_ns = beat.until_ns.max(until_ns);
        beat.first = None;
        if lapsed {
            // The others are about to.
            let patience_ns = now_ns.saturating_add(interval_ns);
            let others = match self.stands_still() {
                true => self.lease.lapsed,
                false => Legs::default(),
            };
            for other in others.iter() {
                if let Some(it) = self.leg_mut(other) {
                    it.beat.patience_ns = it.beat.patience_ns.max(patience_ns);
                }
            }
            self.lease.lapsed.remove(leg);
            // Before what waited for it.
            self.outputs.push_front(Output::News(News::Renewed(leg)));
        }
        self.look_at_leases();
    }

    /// The superblock of an event is given to a leg.
    pub(super) fn write_record_now(&mut self, leg: u8) -> Option<u8> {
        let now_ns = self.now_ns;
        let sequence = self.sequence + 1;
        let it = self.leg_mut(leg)?;
        it.beat.writing_ns = Some(now_ns);
        let later = it.proposed.sequence <= it.committed.sequence;
        let copy = 1 - it.copy;
        if later {
            it.proposed.sequence = sequence;
            self.sequence = sequence;
        }
        Some(copy)
    }

    /// Whether the superblock of an event has to wait on a leg: for a beat, or for its lease.
    pub(super) fn may_write_record(&self, leg: u8) -> bool {
        let writes = self.leg(leg).is_some_and(|it| it.beat.step == Step::Write);
        !writes && !self.lease.lapsed.has(leg) && !self.stands_still()
    }

    /// The superblock of an event has ended on a leg: that was a beat too, and the first one of a
    /// leg that says for the first time that it is ours.
    pub(super) fn record_ended(&mut self, leg: u8, outcome: Outcome) {
        let interval_ns = self.interval_ns();
        let now_ns = self.now_ns;
        let lapsed = self.lease.lapsed.has(leg);
        let Some(it) = self.leg_mut(leg) else {
            return;
        };
        let beat = &mut it.beat;
        let Some(began_ns) = beat.writing_ns.take() else {
            return;
        };
        let read_ns = beat.read_ns;
        if read_ns == 0 {
            beat.at_ns = now_ns.saturating_add(interval_ns);
        }
        if outcome.is_done() && !lapsed {
            let began_ns = match read_ns {
                0 => began_ns,
                read_ns => read_ns.min(began_ns),
            };
            self.renew(leg, began_ns);
        }
    }

    /// What is being written to a leg.
    pub(super) fn written(&self, leg: &Leg) -> Superblock {
        match leg.beat.step {
            Step::Write => Superblock {
                sequence: leg.beat.sequence,
                mark: leg.beat.sequence,
                owner: Some(self.owner_now()),
                confirmed: self.confirmed_by(leg, &leg.committed),
                ..leg.committed
            },
            _ => Superblock {
                mark: leg.proposed.sequence,
                ..leg.proposed
            },
        }
    }

    /// What a leg may say by `next` of all others that are in sync by that: none of them shows a
    /// lower mark any more, unless it is put back to an older state (T50). What it has said of the
    /// same legs stays true: who begins anew has read nothing yet, and must not forget it.
    pub(super) fn confirmed_by(&self, leg: &Leg, next: &Superblock) -> u64 {
        let id = |of: &Superblock, slot: u8| of.legs[usize::from(slot)].map(|it| it.id);
        let others = || next.in_sync().filter(|&it| it != leg.committed.slot);
        let was_in_sync = |slot: u8| {
            let same = id(&leg.committed, slot) == id(next, slot);
            same && leg.committed.state(slot) == Some(LegState::InSync)
        };
        let before = match others().all(was_in_sync) {
            true => leg.committed.confirmed,
            false => 0,
        };
        let confirmed = others().map(|it| self.leg(it).map_or(0, |leg| leg.confirmed));
        confirmed.min().unwrap_or(0).max(before)
    }

    /// A leg that shows an older record than it once did was put back to an older state: it leaves,
    /// and all of it is copied when it returns (T50). The last one in sync stays.
    pub(super) fn see_to_put_back(&mut self, leg: u8, found: &Superblock) {
        let last = self.members.in_sync() == Legs::one(leg);
        let Some(it) = self.leg_mut(leg) else {
            return;
        };
        if last || found.sequence >= it.confirmed {
            return;
        }
        it.contents.lose_all();
        if self.members.writable().has(leg) {
            self.lose(leg, Outcome::MediaError);
        }
    }

    /// Notes which records a leg shows for certain. Counts what was acknowledged as durable, and
    /// the older one of its copies, where both are ours: the other may be torn by the next write.
    /// Where something older may yet be executed on the leg nothing is certain (T9).
    fn confirm(&mut self, leg: u8, found: &Chosen) {
        let hold_until_ns = self.lease.hold_until_ns;
        let Some(it) = self.leg_mut(leg) else {
            return;
        };
        if it.beat.asked_ns < it.late_until_ns.max(hold_until_ns) {
            return;
        }
        let sequence = found.superblock.sequence.min(it.committed.sequence);
        let both = found.other.map_or(0, |other| sequence.min(other));
        it.confirmed = match it.marked_from > 0 && both >= it.marked_from {
            true => both,
            false => 0,
        };
    }

    /// We leave more behind from now on: the next beats say so, at once.
    pub fn raise_bound(&mut self, bound_ms: u32, now_ns: u64) {
        self.at(now_ns);
        if bound_ms <= self.owner.bound_ms {
            return;
        }
        self.owner.bound_ms = bound_ms;
        // Of who has no lease beats are to be an interval apart.
        for leg in self.ours().without(self.lease.lapsed).iter() {
            if let Some(it) = self.leg_mut(leg) {
                it.beat.at_ns = it.beat.at_ns.min(now_ns);
            }
        }
        self.wake = true;
    }

    /// What we leave behind, as every leg says for certain that says who we are, ms.
    pub fn said_bound_ms(&self) -> u32 {
        let said = |leg: u8| Some(self.leg(leg)?.committed.owner?.bound_ms);
        self.ours().iter().filter_map(said).min().unwrap_or(0)
    }

    /// Until when changes wait for what the owner before us has left, or for what the last leg may
    /// execute late (T9), if they do.
    pub fn held_until_ns(&self) -> Option<u64> {
        let until_ns = self.lease.hold_until_ns.max(self.lease.doubt_until_ns);
        Some(until_ns).filter(|&until_ns| self.now_ns < until_ns)
    }

    /// We, as of now.
    pub(super) fn owner_now(&self) -> Owner {
        let passed_s = (self.now_ns - self.start_ns) / 1_000_000_000;
        let left_ms = if self.holds_changes() {
            self.lease.left_ms
        } else {
            0
        };
        Owner {
            beat_s: self.owner.since_s + passed_s,
            bound_ms: self.owner.bound_ms.max(left_ms),
            ..self.owner
        }
    }
}
