//! Heartbeats and leases of a mirror that runs: what they mean for its legs and its I/O (T48).
//!
//! # Contract
//! `ownership` decides when heartbeats are due and leases end. Each leg whose superblock is ours
//! has heartbeats of its own; a leg that doesn't answer keeps no other from its own. A leg without
//! a lease gets nothing but heartbeats, and leaves if another leg has one; if none has, nothing is
//! issued and nothing acknowledged, reads included. A record of another owner ends everything,
//! unless it is an older one that came late.
//!
//! # Limits
//! I/O that was issued within the lease may be executed later: the next owner waits for that
//! ([`Terms`](crate::ownership::Terms)), and the engine fences a leg of which
//! [`News::Lapsed`] was reported. A process that stands still between reading the clock and issuing
//! an I/O issues it afterwards; therefore [`start_before_ns`](Mirror::start_before_ns) is asked
//! directly before it is started on a device (T49).
use super::legs::{Legs, Ticket, Work};
use super::planted::{Bug, has};
use super::requests::Phase;
use super::{Mirror, News, Output};
use crate::Superblock;
use crate::copies::{Chosen, NoLeg};
use crate::ownership::{Heartbeat, Renewal, State, Terms, heartbeat_ns};
use crate::superblock::Owner;
use block::Outcome;

impl Mirror {
    /// Begins the leases of a mirror that was acquired on these terms.
    pub(super) fn begin_leases(&mut self, terms: Terms) {
        let in_sync = self.legs.in_sync();
        let is_shared = terms.written_ns.is_some() && !has(Bug::NoLease);
        let interval_ns = match (self.generation.proposed().heartbeat_interval_ms, is_shared) {
            (0, false) => u64::MAX,
            (ms, _) => heartbeat_ns(ms),
        };
        let hold_until_ns = match has(Bug::ChangeBeforeBound) {
            true => 0,
            false => terms.hold_until_ns,
        };
        let ours = Terms {
            written_ns: terms.written_ns.filter(|_| is_shared),
            hold_until_ns,
            ..terms
        };
        let leases = &mut self.ownership.leases;
        leases.begin(ours, interval_ns, in_sync, self.now_ns);
        for leg in in_sync.iter().filter(|_| terms.hold_until_ns > 0) {
            leases.take_over(leg, self.legs[leg].committed.sequence);
        }
    }

    /// Whether legs get nothing any more when their heartbeats don't end.
    pub fn has_lease(&self) -> bool {
        self.ownership.leases.is_shared()
    }

    /// Legs whose lease is over, of those that take part.
    pub fn lapsed(&self) -> Legs {
        let lapsed = self.ownership.leases.lapsed();
        lapsed.both(self.legs.writable())
    }

    /// The time before which a change has to start on its leg, ns; `u64::MAX`: at any time (T49).
    /// Data, pages and superblocks of events: within the leg's lease, also if it has left since; if
    /// its superblock is not ours yet, within that of any leg. The record of a heartbeat: two
    /// intervals after the one that it replaces was asked for; by then another owner may have come,
    /// and the record is read again first. A heartbeat that is written later renews no lease.
    pub fn start_before_ns(&self, ticket: Ticket) -> u64 {
        let leases = &self.ownership.leases;
        if !leases.is_shared() {
            return u64::MAX;
        }
        let until_ns = leases.until_ns(ticket.leg);
        if ticket.is_heartbeat() {
            let asked_ns = leases.asked_ns(ticket.leg);
            return asked_ns.saturating_add(leases.lease_ns());
        }
        // It was given that before it left.
        let has_left = !self.legs.writable().has(ticket.leg) && until_ns > 0;
        if has_left
            || self
                .legs
                .owned_by(self.ownership.owner().run)
                .has(ticket.leg)
        {
            return until_ns;
        }
        self.wipe_before_ns()
    }

    /// Returns the time before which the wipe of a removed leg has to start, ns: within the lease
    /// of any leg. Later it may be another owner's leg.
    pub fn wipe_before_ns(&self) -> u64 {
        let leases = &self.ownership.leases;
        if !leases.is_shared() {
            return u64::MAX;
        }
        let in_sync = self.legs.in_sync().iter();
        let until_ns = in_sync.map(|leg| leases.until_ns(leg)).max();
        until_ns.unwrap_or(0)
    }

    /// Leases have ended by now.
    #[cold]
    pub(super) fn expire_leases(&mut self) {
        let ours = self.legs.owned_by(self.ownership.owner().run);
        let over = self.ownership.leases.expire(ours, self.now_ns);
        for leg in over.iter() {
            self.outputs.news(News::Lapsed(leg));
        }
        self.leave_lapsed();
        self.abandon_release();
        self.outputs.wake();
    }

    /// Abandons a release when a lease ends: no heartbeat renews it any more. If another leg still
    /// has a lease the stop is unclean all the same, which costs the next start no more than some
    /// copying.
    fn abandon_release(&mut self) {
        if self.is_releasing() && !self.lapsed().is_empty() {
            self.ownership.abandon();
        }
    }

    /// Goes on with a stop whose release was abandoned. Returns whether it was.
    pub(super) fn is_abandoned(&mut self) -> bool {
        self.abandon_release();
        let is_busy = self.outputs.has_busy_leg();
        if self.ownership.is_abandoned() && !is_busy {
            self.stopped(false);
        }
        self.ownership.is_abandoned()
    }

    /// Legs without a lease leave if another leg has one.
    fn leave_lapsed(&mut self) {
        if self.ownership.leases.lapsed().is_empty()
            || self.ownership.leases.stands_still(self.legs.in_sync())
        {
            return; // nothing has lapsed, or all legs have
        }
        let now_ns = self.now_ns;
        for leg in self.lapsed().iter() {
            if self.ownership.leases.is_out_of_patience(leg, now_ns) {
                self.lose(leg, Outcome::TimedOut);
            }
        }
    }

    /// Whether the record is cleared, or about to be: a heartbeat would find no owner.
    fn is_releasing(&self) -> bool {
        let is_last = self.stop.is_clearing() && self.log.is_written();
        is_last || matches!(self.ownership.state(), State::Releasing)
    }

    /// A leg whose lease has ended and that is to be fenced, before anything else is polled: for an
    /// engine that has no room for other outputs just then.
    pub fn poll_lapsed(&mut self) -> Option<u8> {
        let lapsed = |it: &Output| match it {
            Output::News(News::Lapsed(leg)) => Some(*leg),
            _ => None,
        };
        let (at, leg) = (0..)
            .zip(self.outputs.iter())
            .find_map(|(at, it)| Some((at, lapsed(it)?)))?;
        self.outputs.remove(at);
        Some(leg)
    }

    /// Legs that get heartbeats.
    fn heartbeat_legs(&self) -> Legs {
        let has_heartbeats = self.ownership.has_heartbeats() && !self.is_releasing();
        match has_heartbeats && !self.startup.is_stopped() {
            true => self.legs.owned_by(self.ownership.owner().run),
            false => Legs::default(),
        }
    }

    /// When a heartbeat is due, or a lease ends, ns.
    pub(super) fn heartbeats_at(&self) -> u64 {
        self.ownership.leases.due_at(self.heartbeat_legs())
    }

    /// Begins heartbeats that are due.
    pub(super) fn begin_heartbeats(&mut self) {
        self.leave_lapsed();
        for leg in self.heartbeat_legs().iter() {
            if self.ownership.leases.begin_heartbeat(leg, self.now_ns) {
                let ticket = self.outputs.ticket(leg, Work::Heartbeat);
                self.outputs.push(Output::ReadSuperblocks(ticket));
            }
        }
    }

    /// A heartbeat has read a leg's superblocks.
    pub(super) fn heartbeat_read(&mut self, leg: u8, found: &Result<Chosen, NoLeg>) {
        let Ok(found) = found else {
            // It has been overwritten; it is no leg any more.
            return self.heartbeat_failed(leg, Outcome::MediaError);
        };
        let mirror = self.generation.proposed().mirror;
        let id = |it: &Superblock| (it.mirror, it.leg().map(|leg| leg.id));
        let is_same = id(&self.legs[leg].committed) == id(&found.superblock);
        let run = self.ownership.owner().run;
        let other = found.superblock.owner;
        let is_ours = other.is_some_and(|it| it.run == run);
        let leases = &self.ownership.leases;
        let came_late = leases.came_late(leg, found.superblock.sequence);
        if !(is_ours || came_late) || !is_same {
            let other = other.filter(|_| found.superblock.mirror == mirror);
            self.lose_ownership(other);
        }
        if is_ours && !self.ownership.is_lost() {
            self.check_put_back(leg, &found.superblock);
            let leases = &self.ownership.leases;
            let (asked_ns, hold_until_ns) = (leases.asked_ns(leg), leases.hold_until_ns());
            self.legs[leg].confirm(found, asked_ns, hold_until_ns);
        }
        let is_over = !self.heartbeat_legs().has(leg);
        self.sequence += 1;
        let record = (self.sequence, self.ownership.owner_at(self.now_ns).bound_ms);
        let leases = &mut self.ownership.leases;
        if leases.heartbeat_read(leg, is_over, record, self.now_ns) {
            let copy = 1 - self.legs[leg].copy;
            let ticket = self.outputs.ticket(leg, Work::Heartbeat);
            self.outputs.push(Output::Superblock(ticket, copy));
        }
        self.outputs.wake();
    }

    /// A heartbeat was written, or has failed.
    pub(super) fn heartbeat_done(&mut self, leg: u8, outcome: Outcome) {
        let heartbeat = self.ownership.leases.heartbeat(leg);
        let Heartbeat::Writing {
            sequence,
            since_ns,
            bound_ms,
        } = heartbeat
        else {
            return self.heartbeat_failed(leg, outcome); // its record could not be read
        };
        if !outcome.is_done() {
            return self.heartbeat_failed(leg, outcome);
        }
        self.ownership.leases.end_heartbeat(leg);
        let owner = self.ownership.owner_at(self.now_ns);
        let it = &mut self.legs[leg];
        it.committed.sequence = sequence;
        it.note_marked();
        it.committed.owner = Some(Owner { bound_ms, ..owner });
        it.copy = 1 - it.copy;
        let asked_ns = self.ownership.leases.asked_ns(leg);
        self.renew(leg, asked_ns, since_ns);
        self.outputs.wake();
    }

    fn heartbeat_failed(&mut self, leg: u8, outcome: Outcome) {
        self.outputs.wake();
        let heartbeat = self.ownership.leases.end_heartbeat(leg);
        let wrote = matches!(heartbeat, Heartbeat::Writing { .. });
        let lapsed = self.ownership.leases.lapsed().has(leg);
        let late_until_ns = self.legs[leg].late_until_ns;
        // It is not written when there is a path again: the record is read first, which waits for
        // one like all else; soon enough to keep the lease, where there is one. But one that may be
        // executed late, after the next event, is a failure like any other (T9).
        let is_over = lapsed || late_until_ns <= self.now_ns;
        if wrote && is_over && outcome == Outcome::PathError {
            return self.ownership.leases.repeat_heartbeat(leg);
        }
        if !wrote && matches!(outcome, Outcome::Busy { .. }) {
            return; // a busy leg is asked again at the next heartbeat, and stays (T6)
        }
        let lapsed = self.ownership.leases.set_failed(leg, outcome);
        self.lose(leg, outcome);
        // An event that waits for the leg fails with all else that waits there.
        if lapsed && self.update.due().has(leg) {
            self.update.take_due(leg);
            self.update_written(leg, outcome);
        }
    }

    /// Renews the lease of a leg: a heartbeat that began then, and whose record was written since
    /// then, has ended well.
    fn renew(&mut self, leg: u8, began_ns: u64, written_ns: u64) {
        let (in_sync, ours) = (
            self.legs.in_sync(),
            self.legs.owned_by(self.ownership.owner().run),
        );
        let times = (began_ns, written_ns);
        let leases = &mut self.ownership.leases;
        match leases.renew(leg, times, in_sync, self.now_ns) {
            Renewal::Needless | Renewal::First => return,
            Renewal::Extended => {}
            // Before what waited for it.
            Renewal::Renewed => self.outputs.news_first(News::Renewed(leg)),
        }
        if !self.ownership.is_lost() {
            self.ownership.leases.find_end(ours);
        }
    }

    /// Begins to write the superblock of an event to a leg; the copy that it goes to.
    pub(super) fn begin_event(&mut self, leg: u8) -> u8 {
        let sequence = self.sequence + 1;
        self.ownership.leases.begin_event(leg, self.now_ns);
        let it = &mut self.legs[leg];
        let later = it.proposed.sequence <= it.committed.sequence;
        let copy = 1 - it.copy;
        if later {
            it.proposed.sequence = sequence;
            self.sequence = sequence;
        }
        copy
    }

    /// The superblock of an event has ended on a leg, which is a heartbeat too.
    pub(super) fn end_event(&mut self, leg: u8, outcome: Outcome) {
        let leases = &mut self.ownership.leases;
        if let Some(began_ns) = leases.end_event(leg, outcome.is_done(), self.now_ns) {
            self.renew(leg, began_ns, began_ns);
        }
    }

    /// Raises the bound of our record: the next heartbeats, which begin at once, write it.
    pub fn raise_bound(&mut self, bound_ms: u32, now_ns: u64) {
        self.at(now_ns);
        if self.ownership.raise_bound(bound_ms) {
            let ours = self.legs.owned_by(self.ownership.owner().run);
            self.ownership.leases.hasten(ours, now_ns);
            self.outputs.wake();
        }
    }

    /// The bound that the superblocks of all legs that are ours have for certain, ms.
    pub fn committed_bound_ms(&self) -> u32 {
        let said = |leg: u8| Some(self.legs[leg].committed.owner?.bound_ms);
        self.legs
            .owned_by(self.ownership.owner().run)
            .iter()
            .filter_map(said)
            .min()
            .unwrap_or(0)
    }

    /// Until when changes wait for what the legs may execute of the owner before us, or for what
    /// the last leg may execute late (T9), if they do.
    pub fn held_until_ns(&self) -> Option<u64> {
        let hold_until_ns = self.ownership.leases.hold_until_ns();
        let until_ns = hold_until_ns.max(self.unverified.until_ns());
        Some(until_ns).filter(|&until_ns| self.now_ns < until_ns)
    }

    /// Another owner's record is on a leg: all I/O fails from now on.
    pub(super) fn lose_ownership(&mut self, other: Option<Owner>) {
        if self.ownership.lose(other) {
            self.outputs.news(News::LostOwnership);
            // Requests on legs end when these have.
            self.finish_where(Outcome::Reservation, |_, slot| slot.phase() != Phase::Legs);
        }
    }
}
