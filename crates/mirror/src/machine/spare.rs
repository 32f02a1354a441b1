//! Spares: stale legs that are read where no other leg can be.
//!
//! # Contract
//! A spare is read in regions that were not changed since it left (`missed`): earlier writes that
//! it may still execute (T9) are of regions that it lacks. First its superblocks are read, when
//! none of its I/O is under way, and then once in each heartbeat interval. It must be the same leg,
//! have our owner record, and show no older superblock than it has acknowledged (T50); its history
//! must lead to ours. Where other hosts reach it, that holds for a lease: a new owner waits for
//! longer before it changes anything (T48). A leg that may return gets no more reads; earlier ones
//! count.
//!
//! # Limits
//! A leg that left before this engine started, or before all bitmaps were read, has no set. While
//! the last leg in sync has lost data no spare is read: a user decides whose data count.
use super::leg::{Leg, LegState};
use super::legs::{Legs, SLOTS, Ticket, Work};
use super::planted::{Bug, has};
use super::{Mirror, Output};
use crate::bitmap::Bitmap;
use crate::copies::{Chosen, NoLeg};
use crate::superblock::EntryState;
use block::Outcome;
use block::Range;

/// Pause before a leg is read again that could not be read, or was refused, ns.
const AGAIN_NS: u64 = 10_000_000_000;

/// Whether a leg may be read that gets no writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Spare {
    /// It can't be reached, or gets writes, or is about to return.
    #[default]
    Missing,
    /// Its superblocks are read at that time.
    Due(u64),
    /// They are being read since.
    Asked(u64),
    /// It may be read.
    Verified(Verified),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verified {
    /// Until then, and when its superblocks are read again.
    until_ns: u64,
    again_ns: u64,
    /// They are being read again since.
    asked_ns: Option<u64>,
    /// It lacks all from this byte on.
    position: u64,
}

impl Mirror {
    /// A leg that is away can be reached, whether or not it is to return; whether that is news.
    pub fn spare_found(&mut self, leg: u8, now_ns: u64) -> bool {
        self.at(now_ns);
        let is_new = |it: &Leg| it.stale().is_some() && it.spare() == Spare::Missing;
        let writes = self.legs.writable().has(leg);
        let is_found = !writes && self.legs.get(leg).is_some_and(is_new);
        if is_found {
            self.legs.set_spare(leg, Spare::Due(self.now_ns));
            self.outputs.wake();
        }
        is_found
    }

    /// A leg that is away can't be reached: what copies read from it is read from another. Whether
    /// that is news.
    pub fn spare_lost(&mut self, leg: u8) -> bool {
        let is_spare = |it: &Leg| it.spare() != Spare::Missing;
        let writes = self.legs.writable().has(leg);
        let is_lost = !writes && self.legs.get(leg).is_some_and(is_spare);
        if is_lost {
            self.legs.set_spare(leg, Spare::Missing);
            self.copy_without(leg);
        }
        is_lost
    }

    /// Whether a leg returns as soon as it has nothing under way: it gets no more reads, and those
    /// that it has count.
    fn is_closing(&self, leg: u8) -> bool {
        !self.are_returns_blocked() && self.is_due(leg)
    }

    /// Whether a leg that is about to return, or whose return has begun, lacks nothing of a range:
    /// it is read there soon.
    pub(super) fn returns_with(&self, range: Range, but: Legs) -> bool {
        let is_coming = |leg: u8| {
            use LegState::{Inspecting, ReadingBitmap};
            let state = self.legs.get(leg).map(Leg::state);
            let has_begun = matches!(state, Some(Inspecting(_) | ReadingBitmap(..)));
            has_begun || self.is_closing(leg)
        };
        let mut legs = SLOTS.filter(|&leg| !but.has(leg));
        legs.any(|leg| is_coming(leg) && self.may_have(leg, range))
    }

    /// Whether a leg may become a spare: this engine knows what it lacks.
    fn may_be_verified(&self, leg: u8) -> bool {
        let runs = self.startup.is_running() && !self.stop.is_begun() && !self.ownership.is_lost();
        let Some(it) = self.legs.get(leg).and_then(Leg::stale) else {
            return false;
        };
        let runs = runs && !self.legs.writable().has(leg);
        let has_nothing = it.is_void || it.is_discarded || it.fresh.is_some();
        let known = runs && it.missed.is_some() && self.generation.proposed().is_stale(leg);
        known && !has_nothing && !self.changes.removing.has(leg)
    }

    /// Reads the superblocks of legs that may be spares.
    pub(super) fn advance_spares(&mut self) {
        let now_ns = self.now_ns;
        for leg in SLOTS {
            let Some(it) = self.legs.get(leg) else {
                continue;
            };
            let (spare, is_quiet) = (it.spare(), self.outputs.in_flight(leg) == 0);
            let due = match spare {
                Spare::Due(at_ns) => at_ns <= now_ns && is_quiet,
                Spare::Verified(of) => of.again_ns <= now_ns && of.asked_ns.is_none(),
                Spare::Missing | Spare::Asked(_) => false,
            };
            if !due || self.is_closing(leg) || !self.may_be_verified(leg) {
                continue;
            }
            let asked = match spare {
                Spare::Verified(of) => Spare::Verified(Verified {
                    asked_ns: Some(now_ns),
                    ..of
                }),
                _ => Spare::Asked(now_ns),
            };
            self.legs.set_spare(leg, asked);
            let ticket = self.outputs.ticket(leg, Work::Verify);
            self.outputs.push(Output::ReadSuperblocks(ticket));
        }
    }

    /// When the next superblocks are read.
    pub(super) fn spares_at(&self) -> u64 {
        let times = self.legs.iter().filter_map(|(_, leg)| match leg.spare() {
            Spare::Due(at_ns) => Some(at_ns),
            Spare::Verified(of) if of.asked_ns.is_none() => Some(of.again_ns),
            _ => None,
        });
        // Reads that are due by now wait for something else.
        let later = times.filter(|&at_ns| at_ns > self.now_ns);
        later.min().unwrap_or(u64::MAX)
    }

    /// Handles the superblocks of a leg that may be a spare.
    pub(super) fn spare_read(&mut self, leg: u8, found: &Result<Chosen, NoLeg>) {
        let asked_ns = match self.legs[leg].spare() {
            Spare::Asked(asked_ns) => asked_ns,
            Spare::Verified(of) => of.asked_ns.unwrap_or(0),
            _ => return, // lost meanwhile, or about to return
        };
        let run = self.ownership.owner().run;
        let said = self.legs[leg].committed.sequence;
        let same = |it: &&Chosen| {
            let found = it.superblock;
            let is_ours = found.owner.is_some_and(|owner| owner.run == run);
            is_ours && found.sequence >= said
        };
        let found = found.as_ref().ok().filter(same);
        let lack = found.and_then(|it| self.lack_of(leg, it).ok());
        let Some(lack) = lack.filter(|_| self.may_be_verified(leg)) else {
            return self.spare_failed(leg);
        };
        let leases = &self.ownership.leases;
        let lease_ns = match leases.is_shared() {
            true => leases.lease_ns(),
            false => u64::MAX,
        };
        let of = Verified {
            until_ns: asked_ns.saturating_add(lease_ns),
            again_ns: asked_ns.saturating_add(leases.interval_ns()),
            asked_ns: None,
            position: lack.position,
        };
        let was_verified = self.is_verified(leg);
        self.legs.set_spare(leg, Spare::Verified(of));
        // Its lease, of when it was in sync, is over; that is no matter any more.
        self.ownership.leases.forget_lapse(leg);
        if !was_verified {
            self.retry_unreadable(|it, region| {
                it.waiting_spares(it.generation.bytes_of(region)).has(leg)
            });
        }
        self.outputs.wake();
    }

    /// A leg's superblocks could not be read, or are not what they have to be.
    pub(super) fn spare_failed(&mut self, leg: u8) {
        let again_ns = self.now_ns.saturating_add(AGAIN_NS);
        if self.legs[leg].spare() != Spare::Missing {
            self.legs.set_spare(leg, Spare::Due(again_ns));
        }
    }

    /// A read has failed on a leg, which may be a spare: where it has not answered, its superblocks
    /// are read first before it is asked again.
    pub(super) fn spare_unread(&mut self, leg: u8, outcome: Outcome) {
        if self.legs.verified().has(leg) && outcome.is_path_error() {
            self.spare_failed(leg);
        }
    }

    /// Whether a leg that gets no writes may be read now, somewhere.
    pub(super) fn is_verified(&self, leg: u8) -> bool {
        let until_ns = |leg: u8| match self.legs[leg].spare() {
            Spare::Verified(of) => of.until_ns,
            _ => 0,
        };
        let is_read = self.legs.verified().has(leg) && until_ns(leg) > self.now_ns;
        is_read && self.may_be_verified(leg)
    }

    /// Returns stale legs that have all of a range, and may be read.
    pub(super) fn waiting_spares(&self, range: Range) -> Legs {
        let legs = self.verified_spares(range);
        legs.iter().filter(|&leg| !self.is_closing(leg)).collect()
    }

    /// As [`Self::waiting_spares`], and legs that are about to return: they get no more reads, and
    /// those that they have count.
    pub(super) fn verified_spares(&self, range: Range) -> Legs {
        let is_cut = |leg: u8| self.legs[leg].cut().is_some();
        if self.legs.verified().is_empty() || self.legs.in_sync().iter().any(is_cut) {
            return Legs::default();
        }
        let has_all = |leg: &u8| self.is_verified(*leg) && self.has_missed_none(*leg, range);
        self.legs.verified().iter().filter(has_all).collect()
    }

    /// Whether a leg that gets no writes lacks nothing of a range.
    fn has_missed_none(&self, leg: u8, range: Range) -> bool {
        let position = match self.legs[leg].spare() {
            Spare::Verified(of) => of.position,
            _ => 0,
        };
        has(Bug::WaitingLacks) || range.end <= position && self.may_have(leg, range)
    }

    /// Whether a leg that is away lacks nothing of a range, as far as this engine knows: when it
    /// can be reached again, it is read there.
    pub fn may_have(&self, leg: u8, range: Range) -> bool {
        let said = match self.generation.proposed().state(leg) {
            Some(EntryState::Stale(lack)) => lack.position,
            _ => 0,
        };
        let lacks = |missed: &Bitmap| {
            self.generation
                .regions_in(range)
                .any(|region| missed.is_set(region))
        };
        let missed = self.legs.get(leg).and_then(Leg::missed);
        let has_all = missed.is_some_and(|missed| !lacks(missed));
        has_all && range.end <= said && self.may_be_verified(leg) && !self.bad.is_bad(leg, range)
    }

    /// Whether the work of a ticket is needed no more, since its leg has left; a read of a spare is
    /// needed.
    pub fn is_needless(&self, ticket: Ticket) -> bool {
        let leg = ticket.leg;
        let reads = match ticket.work {
            Work::Io(id) => {
                let slot = self.ios.get(id);
                slot.is_some_and(|slot| slot.request.reads().is_some())
            }
            Work::Copy(job) => {
                let job = self.copies.get(job);
                job.is_some_and(|job| job.is_read_by(leg))
            }
            _ => false,
        };
        let may_go = self.may_read(leg) || reads && self.is_verified(leg);
        self.ownership.is_lost() || !may_go
    }
}
