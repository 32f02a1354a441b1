//! Heartbeats of the legs, and their leases (T48).
//!
//! # Contract
//! A heartbeat of a leg reads its record, and raises the record's sequence if it is ours. The
//! superblock of an event does the same. While a heartbeat is written, no such superblock is, and
//! the other way round.
//!
//! Where other hosts reach the legs, each leg has a lease of [`LEASE_INTERVALS`], from the start of
//! the last heartbeat that ended well. A host that takes over has seen no heartbeat for longer, and
//! has let its own record stand for longer since. A lapsed lease is renewed by two heartbeats in a
//! row, of which the second began no sooner than one interval after the first had ended, and ended
//! within its lease: so a host that read the record before the first has written its own, by its
//! rules, before the second read it. A mirror begins with lapsed leases; the record that was
//! written when it was acquired is the first of the two heartbeats.
use super::super::machine::Legs;
use super::super::machine::planted::{Bug, has};
use super::super::superblock::Owner;
use super::super::{Id, Label};
use super::{LEASE_INTERVALS, Terms, WATCHED_INTERVALS};
use crate::limits::LEGS_MAX;
use block::Outcome;

/// The heartbeat of a leg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Heartbeat {
    #[default]
    Idle,
    /// Both superblocks are read.
    Reading,
    /// One is written.
    Writing {
        sequence: u64,
        since_ns: u64,
        /// The bound in it is at most that, ms.
        bound_ms: u32,
    },
}

/// The lease of a leg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lease {
    /// It has none, or one that lasts.
    #[default]
    Lasts,
    Lapsed {
        /// The first heartbeat since: when it began to be written, and was.
        first: Option<(u64, u64)>,
        /// How the last heartbeat failed: so does the I/O that waits for the leg.
        failed: Option<Outcome>,
    },
}

/// Another owner's record on a leg that was missing when the others were watched.
#[derive(Clone, Copy, Debug)]
struct Contender {
    run: Id,
    sequence: u64,
    since_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Leg {
    heartbeat: Heartbeat,
    /// The superblock of an event is being written since then, ns.
    event_ns: Option<u64>,
    /// When the next heartbeat is due, ns.
    due_ns: u64,
    /// When the record was asked for in the last heartbeat, and in the last one that found it
    /// ours, ns; 0: in none.
    asked_ns: u64,
    read_ns: u64,
    lease: Lease,
    /// The lease's end, ns; 0: it never had one.
    until_ns: u64,
    /// A leg whose lease has lapsed leaves then, ns, if another leg has one.
    patience_ns: u64,
    /// Owners before us wrote lower sequences to it; 0: it was not taken over.
    taken_from: u64,
    contender: Option<Contender>,
}

/// Result of a heartbeat for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// No other host reaches the legs.
    Needless,
    /// The lease has lapsed, and a second heartbeat has to follow.
    First,
    /// It lasts longer.
    Extended,
    /// It had lapsed, and lasts again.
    Renewed,
}

/// Whether another owner's record keeps a leg from returning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// There is none, or its owner is gone.
    Free,
    /// It is watched until then, ns.
    Until(u64),
    /// Its owner lives.
    Lives(Label),
}

/// Heartbeats and leases of all legs. See the module.
#[derive(Debug)]
pub(crate) struct Leases {
    /// Other hosts reach the legs.
    is_shared: bool,
    /// Between heartbeats, ns; `u64::MAX`: there are none.
    interval_ns: u64,
    legs: [Leg; LEGS_MAX],
    lapsed: Legs,
    /// When the next lease ends, ns.
    end_ns: u64,
    /// The legs may execute writes of the owner before us until then, ns; 0: no more.
    hold_until_ns: u64,
    /// The bound of that, ms.
    left_ms: u32,
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            is_shared: false,
            interval_ns: u64::MAX,
            legs: [Leg::default(); LEGS_MAX],
            lapsed: Legs::default(),
            end_ns: u64::MAX,
            hold_until_ns: 0,
            left_ms: 0,
        }
    }
}

impl Leases {
    /// Begins the leases of legs that were acquired on these terms, of which these are in sync.
    pub fn begin(&mut self, terms: Terms, interval_ns: u64, in_sync: Legs, now_ns: u64) {
        self.is_shared = terms.written_ns.is_some();
        self.interval_ns = interval_ns;
        self.hold_until_ns = terms.hold_until_ns;
        self.left_ms = terms.left_ms;
        let patience_ns = now_ns.saturating_add(self.lease_ns());
        for leg in in_sync.iter() {
            let it = self.leg_mut(leg);
            (it.due_ns, it.patience_ns) = (now_ns, patience_ns);
            if let Some(first) = terms.written_ns {
                it.lease = Lease::Lapsed {
                    first: Some(first),
                    failed: None,
                };
                self.lapsed.add(leg);
            }
        }
    }

    /// Notes that owners before us wrote only lower sequences to a leg.
    pub fn take_over(&mut self, leg: u8, sequence: u64) {
        self.leg_mut(leg).taken_from = sequence;
    }

    /// Another owner has the mirror: no lease ends any more.
    pub fn end(&mut self) {
        self.end_ns = u64::MAX;
    }

    /// Whether other hosts reach the legs.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Between heartbeats, ns; `u64::MAX`: there are none.
    pub fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// How long a lease is, ns.
    pub fn lease_ns(&self) -> u64 {
        self.interval_ns.saturating_mul(LEASE_INTERVALS)
    }

    /// Legs whose lease has lapsed.
    #[inline]
    pub fn lapsed(&self) -> Legs {
        self.lapsed
    }

    /// When the next lease ends, ns; `u64::MAX`: never.
    #[inline]
    pub fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// The end of a leg's lease, ns; 0: it never had one.
    pub fn until_ns(&self, leg: u8) -> u64 {
        self.leg(leg).until_ns
    }

    /// When the record of a leg was asked for in its last heartbeat, ns.
    pub fn asked_ns(&self, leg: u8) -> u64 {
        self.leg(leg).asked_ns
    }

    /// The heartbeat of a leg.
    pub fn heartbeat(&self, leg: u8) -> Heartbeat {
        self.leg(leg).heartbeat
    }

    /// Whether nothing may be issued and nothing acknowledged: no leg in sync has a lease.
    pub fn stands_still(&self, in_sync: Legs) -> bool {
        !self.lapsed.is_empty() && in_sync.without(self.lapsed).is_empty()
    }

    /// Whether the legs may yet execute writes of the owner before us (T9).
    pub fn holds(&self, now_ns: u64) -> bool {
        now_ns < self.hold_until_ns
    }

    /// Until when they may, ns; 0: no more.
    pub fn hold_until_ns(&self) -> u64 {
        self.hold_until_ns
    }

    /// The bound that our record must have for that owner's sake, ms.
    pub fn left_ms(&self, now_ns: u64) -> u32 {
        match self.holds(now_ns) {
            true => self.left_ms,
            false => 0,
        }
    }

    /// Ends the hold if its time is over. Returns whether it was ended just now.
    pub fn end_hold(&mut self, now_ns: u64) -> bool {
        let ends = self.hold_until_ns > 0 && !self.holds(now_ns);
        if ends {
            self.hold_until_ns = 0;
        }
        ends
    }

    /// When the next of these heartbeats is due, or a lease ends, ns.
    pub fn due_at(&self, legs: Legs) -> u64 {
        let idle = legs
            .iter()
            .map(|leg| self.leg(leg))
            .filter(|it| it.is_idle());
        let first = idle.map(|it| it.due_ns).min();
        first.unwrap_or(u64::MAX).min(self.end_ns)
    }

    /// Begins the heartbeat of a leg if it is due. Returns whether its superblocks are to be read.
    pub fn begin_heartbeat(&mut self, leg: u8, now_ns: u64) -> bool {
        let interval_ns = self.interval_ns;
        let it = self.leg_mut(leg);
        let is_due = it.is_idle() && now_ns >= it.due_ns;
        if is_due {
            it.heartbeat = Heartbeat::Reading;
            it.asked_ns = now_ns;
            it.due_ns = now_ns.saturating_add(interval_ns);
        }
        is_due
    }

    /// The record that a heartbeat read is ours. Returns whether one with this sequence and bound
    /// is to be written: not if `is_over`, or if an event's superblock is being written.
    pub fn heartbeat_read(
        &mut self,
        leg: u8,
        is_over: bool,
        (sequence, bound_ms): (u64, u32),
        now_ns: u64,
    ) -> bool {
        let it = self.leg_mut(leg);
        assert_eq!(it.heartbeat, Heartbeat::Reading, "leg {leg} was read");
        it.read_ns = it.asked_ns;
        let writes = !is_over && it.event_ns.is_none();
        it.heartbeat = match writes {
            true => Heartbeat::Writing {
                sequence,
                since_ns: now_ns,
                bound_ms,
            },
            false => Heartbeat::Idle,
        };
        writes
    }

    /// Ends the heartbeat of a leg. Returns its state before.
    pub fn end_heartbeat(&mut self, leg: u8) -> Heartbeat {
        core::mem::take(&mut self.leg_mut(leg).heartbeat)
    }

    /// A heartbeat that was taken back before it was written begins again soon enough to keep the
    /// lease, where there is one.
    pub fn repeat_heartbeat(&mut self, leg: u8) {
        let soon_ns = self.interval_ns / 4;
        let lapsed = self.lapsed.has(leg);
        let it = self.leg_mut(leg);
        if !lapsed {
            it.due_ns = it.asked_ns.saturating_add(soon_ns);
        }
    }

    /// Heartbeats of these legs are due at once.
    pub fn hasten(&mut self, legs: Legs, now_ns: u64) {
        // Two that are to renew a lapsed lease have to be an interval apart.
        for leg in legs.without(self.lapsed).iter() {
            let it = self.leg_mut(leg);
            it.due_ns = it.due_ns.min(now_ns);
        }
    }

    /// How the last heartbeat of a lapsed leg failed.
    pub fn failed(&self, leg: u8) -> Option<Outcome> {
        match self.leg(leg).lease {
            Lease::Lapsed { failed, .. } => failed,
            Lease::Lasts => None,
        }
    }

    /// Notes how the heartbeat of a leg failed. Returns whether its lease has lapsed.
    pub fn set_failed(&mut self, leg: u8, outcome: Outcome) -> bool {
        match &mut self.leg_mut(leg).lease {
            Lease::Lapsed { failed, .. } => {
                *failed = Some(outcome);
                true
            }
            Lease::Lasts => false,
        }
    }

    /// All that waited for lapsed legs has failed as their heartbeats did, or waits on. Legs that
    /// are not `writable` have nothing left that waits for a lease.
    pub fn settle(&mut self, writable: Legs) {
        for leg in self.lapsed.iter() {
            match &mut self.leg_mut(leg).lease {
                Lease::Lapsed { failed, .. } => *failed = None,
                Lease::Lasts => unreachable!("leg {leg} has lapsed"),
            }
        }
        for leg in self.lapsed.without(writable).iter() {
            self.forget_lapse(leg);
        }
    }

    /// Leases of these legs, which are ours, that have ended by now.
    pub fn expire(&mut self, ours: Legs, now_ns: u64) -> Legs {
        let lasting = ours.without(self.lapsed).iter();
        let over: Legs = lasting
            .filter(|leg| self.leg(*leg).until_ns <= now_ns)
            .collect();
        for leg in over.iter() {
            self.leg_mut(leg).lease = Lease::Lapsed {
                first: None,
                failed: None,
            };
        }
        self.lapsed = self.lapsed.with(over);
        self.find_end(ours);
        over
    }

    /// Whether a leg whose lease has lapsed has to leave by now, where another leg has one.
    pub fn is_out_of_patience(&self, leg: u8, now_ns: u64) -> bool {
        self.leg(leg).patience_ns <= now_ns
    }

    /// A heartbeat that began then, and whose record began to be written then, has ended well on a
    /// leg: its lease is extended or renewed.
    pub fn renew(
        &mut self,
        leg: u8,
        (began_ns, written_ns): (u64, u64),
        in_sync: Legs,
        now_ns: u64,
    ) -> Renewal {
        if !self.is_shared {
            return Renewal::Needless;
        }
        let (interval_ns, lease_ns) = (self.interval_ns, self.lease_ns());
        let until_ns = began_ns.saturating_add(lease_ns);
        let stands_still = self.stands_still(in_sync);
        let it = self.leg_mut(leg);
        let Lease::Lapsed { first, .. } = it.lease else {
            it.until_ns = it.until_ns.max(until_ns);
            return Renewal::Extended;
        };
        let is_second = first.is_some_and(|(first_ns, ended_ns)| {
            let is_later = it.asked_ns >= ended_ns.saturating_add(interval_ns);
            let in_time = first_ns.saturating_add(lease_ns).min(until_ns) > now_ns;
            is_later && in_time
        });
        if !is_second {
            it.lease = Lease::Lapsed {
                first: Some((written_ns, now_ns)),
                failed: None,
            };
            it.due_ns = now_ns.saturating_add(interval_ns);
            return Renewal::First;
        }
        it.lease = Lease::Lasts;
        it.until_ns = it.until_ns.max(until_ns);
        self.lapsed.remove(leg);
        // The others are about to be renewed too.
        let others = match stands_still {
            true => self.lapsed,
            false => Legs::default(),
        };
        let patience_ns = now_ns.saturating_add(interval_ns);
        for other in others.iter() {
            let it = self.leg_mut(other);
            it.patience_ns = it.patience_ns.max(patience_ns);
        }
        Renewal::Renewed
    }

    /// Finds the end of the next lease of legs that are ours.
    pub fn find_end(&mut self, ours: Legs) {
        let lasting = ours.without(self.lapsed).iter();
        let ends = lasting.map(|leg| self.leg(leg).until_ns);
        let end_ns = ends.min().filter(|_| self.is_shared);
        self.end_ns = end_ns.unwrap_or(u64::MAX);
    }

    /// A leg is no longer lapsed: it gets no I/O, or none that needs a lease.
    pub fn forget_lapse(&mut self, leg: u8) {
        self.leg_mut(leg).lease = Lease::Lasts;
        self.lapsed.remove(leg);
    }

    /// Whether no superblock of an event may be written to a leg: a heartbeat is being written, or
    /// nothing may be.
    pub fn blocks_event(&self, leg: u8, in_sync: Legs) -> bool {
        let writes = matches!(self.leg(leg).heartbeat, Heartbeat::Writing { .. });
        writes || self.lapsed.has(leg) || self.stands_still(in_sync)
    }

    /// The superblock of an event is being written to a leg.
    pub fn begin_event(&mut self, leg: u8, now_ns: u64) {
        let it = self.leg_mut(leg);
        assert!(
            !matches!(it.heartbeat, Heartbeat::Writing { .. }),
            "leg {leg}: its heartbeat is written"
        );
        it.event_ns = Some(now_ns);
    }

    /// The superblock of an event is not being written to a leg after all.
    pub fn take_back_event(&mut self, leg: u8) {
        self.leg_mut(leg).event_ns = None;
    }

    /// The superblock of an event has ended on a leg; if one was under way and ended well, when the
    /// heartbeat began that it stands for. It is the first one of a leg whose superblock becomes
    /// ours by it.
    pub fn end_event(&mut self, leg: u8, is_done: bool, now_ns: u64) -> Option<u64> {
        let interval_ns = self.interval_ns;
        let lapsed = self.lapsed.has(leg);
        let it = self.leg_mut(leg);
        let began_ns = it.event_ns.take()?;
        let is_first = it.read_ns == 0;
        if is_first {
            it.due_ns = now_ns.saturating_add(interval_ns);
        }
        let began_ns = if is_first {
            began_ns
        } else {
            it.read_ns.min(began_ns)
        };
        (is_done && !lapsed).then_some(began_ns)
    }

    /// Begins the return of a leg: its record is asked for now.
    pub fn begin_return(&mut self, leg: u8, now_ns: u64) {
        let it = self.leg_mut(leg);
        // It has ended all that it was given (T9).
        assert!(
            it.is_idle() || has(Bug::BackBeforeFence),
            "leg {leg} returns in the midst of a heartbeat"
        );
        *it = Leg {
            heartbeat: it.heartbeat,
            event_ns: it.event_ns,
            asked_ns: now_ns,
            contender: it.contender,
            lease: it.lease,
            ..Leg::default()
        };
    }

    /// The record of a leg that returns was read, and keeps it from nothing. That is its lease
    /// until its first heartbeat has ended, which is due.
    pub fn found(&mut self, leg: u8) {
        let lease_ns = self.lease_ns();
        let it = self.leg_mut(leg);
        let until_ns = it.asked_ns.saturating_add(lease_ns);
        (it.until_ns, it.patience_ns) = (until_ns, until_ns);
        self.forget_lapse(leg);
    }

    /// Forgets the leg that had this slot.
    pub fn forget(&mut self, leg: u8) {
        self.forget_lapse(leg);
        *self.leg_mut(leg) = Leg::default();
    }

    /// Watches the record of another owner on a leg that was away when the mirror was acquired, for
    /// as long as the other legs were watched (T48).
    pub fn watch(&mut self, leg: u8, other: Option<Owner>, sequence: u64, now_ns: u64) -> Watch {
        let watch_ns = match self.is_shared {
            true => self.interval_ns.saturating_mul(WATCHED_INTERVALS),
            false => 0,
        };
        let it = self.leg_mut(leg);
        let Some(other) = other.filter(|_| watch_ns > 0) else {
            it.contender = None;
            return Watch::Free;
        };
        let new = Contender {
            run: other.run,
            sequence,
            since_ns: now_ns,
        };
        let before = it.contender.filter(|it| it.run == other.run);
        let seen = *it.contender.insert(before.unwrap_or(new));
        if seen.sequence != sequence {
            it.contender = Some(new);
            return Watch::Lives(other.label);
        }
        let until_ns = seen.since_ns.saturating_add(watch_ns);
        match before.is_some() && now_ns >= until_ns {
            true => Watch::Free,
            false => Watch::Until(until_ns),
        }
    }

    /// Whether a record on a leg is one that an owner before us had sent, and not of one that came
    /// after us. Two of those that died one after the other may each have one in flight, and so
    /// overwrite both copies of ours between two heartbeats: ours is written again. A host that
    /// comes after us has read ours, or has read before it and written before ours was verified.
    pub fn came_late(&self, leg: u8, sequence: u64) -> bool {
        let it = self.leg(leg);
        it.read_ns < self.hold_until_ns && sequence < it.taken_from
    }

    /// See [`Self::take_over`].
    #[cfg(test)]
    pub fn taken_from(&self, leg: u8) -> u64 {
        self.leg(leg).taken_from
    }

    fn leg(&self, leg: u8) -> &Leg {
        &self.legs[usize::from(leg)]
    }

    fn leg_mut(&mut self, leg: u8) -> &mut Leg {
        &mut self.legs[usize::from(leg)]
    }
}

impl Leg {
    fn is_idle(&self) -> bool {
        self.heartbeat == Heartbeat::Idle && self.event_ns.is_none()
    }
}

#[cfg(test)]
mod tests;
