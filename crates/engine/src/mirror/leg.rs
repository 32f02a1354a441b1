//! A leg as a device: its place in the mirror, and whether it may return when the mirror goes on
//! without it.
//!
//! * [`Seat`]: the use of its place
//! * [`Absence`]: whether the mirror goes on without it, and when it is tried again
//! * [`LegReturn`]: reasons for which it stays missing
//! * [`LegWatch`]: signs that it hangs or has lost acknowledged writes
//!
//! Whether it has all data, and may be read, is a state of the state machine, by its slot.
use super::depth::Depth;
use super::probe::LegSuperblocks;
use super::sizes::{Extent, LegFile, LegSize};
use super::types::{LegConfig, LegCounters};
use crate::host::VolumeInfo;
use crate::limits::{LEG_HANGS_NS, LEG_RETRY_MAX_NS, LEG_RETRY_NS};
use alloc::string::String;
use block::DeviceId;
use mirror::Id;
use mirror::copies::NoLeg;
use multipath::Outcome;

/// A leg as a device. See the module.
pub(super) struct LegDevice {
    pub config: LegConfig,
    /// The device, once it is ready.
    pub info: Option<VolumeInfo>,
    pub superblocks: LegSuperblocks,
    /// Its slot, once the mirror runs.
    pub slot: Option<u8>,
    pub seat: Seat,
    /// The leg that is removed when this one is in sync.
    pub replaces: Option<Id>,
    pub returns: LegReturn,
    pub watch: LegWatch,
    /// Its data I/O, in flight and waiting.
    pub depth: Depth,
    pub counters: LegCounters,
    /// Its rebuild: since when, ns, and how many regions it lacked then.
    pub rebuild: Option<(u64, u64)>,
    /// It has refused to deallocate since it returned.
    pub refuses_holes: bool,
}

/// The use of a place among the legs. [`LegDevice::set_seat`] changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seat {
    /// A leg of the mirror, or a volume that may be one.
    Taken,
    /// A missing leg whose slot is being removed, with its identifier: until that has happened, and
    /// the superblocks there were read.
    LeavesWith(u8, Id),
    /// A removed leg: so many copies of its superblock are being overwritten.
    Wiping(u8),
    /// Another leg may take the place.
    Free,
}

/// Whether the mirror goes on without a leg that may return. [`LegReturn::set_absence`] changes it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Absence {
    /// The mirror has the leg, or nothing that is there can return.
    None,
    /// It is announced to the state machine as soon as it is due and can be reached.
    Waiting(Retry),
    /// It was announced.
    Announced(Retry),
}

/// The next try of a leg that is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    /// When it is due, ns.
    pub at_ns: u64,
    /// The pause before it, ns.
    pub wait_ns: u64,
    /// Why the leg left; `None`: it was missing at the start.
    pub outcome: Option<Outcome>,
    /// The user has ordered the return.
    pub is_requested: bool,
}

/// Whether the blocks that a leg could not write can be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadRoom {
    Enough,
    /// There were more than fit, and it was not in sync since.
    Full,
    /// Again when it was rebuilt: it returns only by `restore`.
    Stuck,
}

/// When a leg returns, and reasons for which it stays missing.
pub(super) struct LegReturn {
    absence: Absence,
    /// `fail` took it out: it returns only by `restore`.
    pub admin_offline: bool,
    pub bad_room: BadRoom,
    pub extent: Extent,
    /// Why it can't return.
    pub unfit: Option<String>,
}

/// Signs that a leg hangs, or has lost what it acknowledged.
#[derive(Default)]
pub(super) struct LegWatch {
    /// Its lease has lapsed: another host may take it over, and it gets heartbeats only (T48).
    pub is_fenced: bool,
    /// Controllers lost with the contents of their caches, as last inspected.
    lost_caches: u64,
    /// How often its device had given up unflushed writes, as last inspected.
    given_up: u32,
    /// It has no path left and its requests do not end: when the mirror goes on without it, ns.
    pub hangs_ns: Option<u64>,
}

impl LegReturn {
    /// Of a leg that the mirror has, or may have.
    pub fn new(extent: Extent) -> Self {
        Self {
            absence: Absence::None,
            admin_offline: false,
            bad_room: BadRoom::Enough,
            extent,
            unfit: None,
        }
    }

    /// The try for which the leg waits.
    pub fn waiting(&self) -> Option<Retry> {
        match self.absence {
            Absence::Waiting(retry) => Some(retry),
            Absence::None | Absence::Announced(_) => None,
        }
    }

    /// The last try of a leg that is missing.
    pub fn retry(&self) -> Option<Retry> {
        match self.absence {
            Absence::Waiting(retry) | Absence::Announced(retry) => Some(retry),
            Absence::None => None,
        }
    }

    /// Changes the absence.
    ///
    /// # Panics
    /// If a leg is announced that did not wait for that.
    pub fn set_absence(&mut self, next: Absence) {
        let is_edge = match next {
            Absence::Announced(_) => matches!(self.absence, Absence::Waiting(_)),
            Absence::None | Absence::Waiting(_) => true,
        };
        assert!(is_edge, "from {:?} to {next:?}", self.absence);
        self.absence = next;
    }

    /// A leg that was found after the start is tried now.
    pub fn wait_since_start(&mut self, now_ns: u64) {
        self.set_absence(Absence::Waiting(Retry {
            at_ns: now_ns,
            wait_ns: LEG_RETRY_NS,
            outcome: None,
            is_requested: false,
        }));
    }

    /// The leg has left or could not return: it waits, each time twice as long.
    pub fn wait_longer(&mut self, outcome: Outcome, now_ns: u64) {
        // One that was too small returns when it is large enough.
        if outcome == Outcome::CutShort && self.extent.size == LegSize::Enough {
            // So does a namespace, or one that was sanitized; a file waits for its user.
            self.extent.leave_for_cut();
        }
        let before_ns = self.retry().map_or(0, |it| it.wait_ns);
        let wait_ns = (before_ns * 2).clamp(LEG_RETRY_NS, LEG_RETRY_MAX_NS);
        self.set_absence(Absence::Waiting(Retry {
            at_ns: now_ns.saturating_add(wait_ns),
            wait_ns,
            outcome: Some(outcome),
            is_requested: false,
        }));
    }

    /// The try of a missing leg changes: it waits for it, also where it was announced. Returns
    /// false if the leg is not missing.
    pub fn change_retry(&mut self, change: impl FnOnce(&mut Retry)) -> bool {
        let retry = self.retry();
        if let Some(mut retry) = retry {
            change(&mut retry);
            self.set_absence(Absence::Waiting(retry));
        }
        retry.is_some()
    }

    /// The leg can't return before it is given again, and why.
    pub fn refuse(&mut self, why: String) {
        self.set_absence(Absence::None);
        self.unfit = Some(why);
    }

    /// The user orders the return.
    pub fn restore(&mut self, is_stale: bool, now_ns: u64) {
        (self.admin_offline, self.bad_room) = (false, BadRoom::Enough);
        self.extent.file = LegFile::Whole;
        // One that was there at the start and could not return has never left since.
        if self.retry().is_none() && is_stale {
            self.wait_since_start(now_ns);
        }
        self.change_retry(|it| {
            (it.at_ns, it.wait_ns, it.is_requested) = (now_ns, LEG_RETRY_NS, true);
        });
    }

    /// Whether it returns only by order of a user, or not before it is large enough.
    pub fn stays_missing(&self) -> bool {
        let is_stuck = self.bad_room == BadRoom::Stuck;
        self.admin_offline || self.extent.keeps_away() || is_stuck
    }

    /// Whether its return was ordered, and it was not announced since.
    pub fn is_due(&self) -> bool {
        !self.stays_missing() && self.waiting().is_some_and(|it| it.is_requested)
    }

    /// The leg could not write more blocks than can be recorded.
    pub fn note_bad_full(&mut self) {
        // It was tried once more since then.
        self.bad_room = match self.bad_room {
            BadRoom::Enough => BadRoom::Full,
            BadRoom::Full | BadRoom::Stuck => BadRoom::Stuck,
        };
    }
}

impl LegWatch {
    /// Notes how often its device has given up unflushed writes. Returns whether that is news.
    pub fn note_given_up(&mut self, times: u32) -> bool {
        core::mem::replace(&mut self.given_up, times) != times
    }

    /// Notes which controllers were lost with their caches, as bits. Returns whether any is news.
    pub fn note_lost_caches(&mut self, lost: u64) -> bool {
        lost & !core::mem::replace(&mut self.lost_caches, lost) != 0
    }

    /// Notes whether it hangs. Returns whether it does so for too long, and looks again later.
    pub fn note_hang(&mut self, hangs: bool, now_ns: u64) -> bool {
        let later_ns = now_ns.saturating_add(LEG_HANGS_NS);
        self.hangs_ns = hangs.then(|| self.hangs_ns.unwrap_or(later_ns));
        let is_over = self.hangs_ns.is_some_and(|at_ns| at_ns <= now_ns);
        if is_over {
            self.hangs_ns = Some(later_ns);
        }
        is_over
    }
}

impl LegDevice {
    /// The device behind it.
    pub fn device(&self) -> DeviceId {
        DeviceId(self.config.volume)
    }

    /// A leg before anything was read of it.
    pub fn new(config: LegConfig) -> Self {
        Self {
            config,
            info: None,
            superblocks: LegSuperblocks::default(),
            slot: None,
            seat: Seat::Taken,
            replaces: None,
            returns: LegReturn::new(Extent::default()),
            watch: LegWatch::default(),
            depth: Depth::default(),
            counters: LegCounters::default(),
            rebuild: None,
            refuses_holes: false,
        }
    }

    /// Whether its place is free.
    pub fn is_gone(&self) -> bool {
        self.seat == Seat::Free
    }

    /// Changes the seat.
    ///
    /// # Panics
    /// If the edge does not exist.
    pub fn set_seat(&mut self, next: Seat) {
        use Seat::*;
        let is_edge = match (self.seat, next) {
            (Taken | LeavesWith(..), Taken | LeavesWith(..) | Wiping(1) | Free) => true,
            (Wiping(before), Wiping(now)) => before.abs_diff(now) == 1,
            (Wiping(0), Free) => true,
            _ => false,
        };
        let name = &self.config.name;
        assert!(is_edge, "{name}: from {:?} to {next:?}", self.seat);
        self.seat = next;
    }

    /// Frees its place.
    pub fn free_seat(&mut self) {
        self.set_seat(Seat::Free);
        self.info = None;
        self.returns.set_absence(Absence::None);
    }

    /// The slot with which a missing leg leaves, and its identifier.
    pub fn leaves_with(&self) -> Option<(u8, Id)> {
        match self.seat {
            Seat::LeavesWith(slot, id) => Some((slot, id)),
            Seat::Taken | Seat::Wiping(_) | Seat::Free => None,
        }
    }

    /// Whether it is configured, and was never read.
    pub fn is_absent(&self) -> bool {
        self.slot.is_none() && self.superblocks.found().is_none() && !self.is_gone()
    }

    /// Forgets what was read of a leg that was too small, if it is large enough again. Returns
    /// whether it is.
    pub fn was_made_long(&mut self) -> bool {
        let needs = match self.superblocks.found() {
            Some(Err(NoLeg::Cut(bytes))) => *bytes,
            _ => return false,
        };
        let is_long = self.info.is_some_and(|info| info.bytes >= needs);
        if is_long {
            self.superblocks.forget();
            self.returns.unfit = None;
        }
        is_long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leg() -> LegDevice {
        LegDevice::new(LegConfig {
            volume: 0,
            name: "a".into(),
            uris: alloc::vec![],
            distance: 0,
            throughput: 1,
        })
    }

    #[test]
    fn missing_leg_waits_longer_until_it_is_restored() {
        let mut it = leg().returns;
        assert!(!it.change_retry(|_| panic!("it is not missing")));
        let waits = [(); 10].map(|()| {
            it.wait_longer(Outcome::PathError, 0);
            it.waiting().unwrap().at_ns
        });
        assert_eq!(waits[..2], [LEG_RETRY_NS, 2 * LEG_RETRY_NS]);
        assert_eq!(waits[9], LEG_RETRY_MAX_NS);
        let retry = it.waiting().unwrap();
        it.set_absence(Absence::Announced(retry));
        assert!(it.waiting().is_none() && it.retry().is_some());
        it.admin_offline = true;
        it.restore(true, 7);
        assert!(it.is_due() && it.waiting().unwrap().at_ns == 7);
        it.note_bad_full();
        it.note_bad_full();
        assert!(it.stays_missing() && !it.is_due());
    }

    #[test]
    #[should_panic(expected = "from None to Announced")]
    fn leg_that_does_not_wait_is_not_announced() {
        let mut it = leg().returns;
        it.wait_since_start(0);
        let retry = it.waiting().unwrap();
        it.set_absence(Absence::None);
        it.set_absence(Absence::Announced(retry));
    }

    #[test]
    #[should_panic(expected = "from Free to Taken")]
    fn free_seat_is_taken_by_a_new_leg_only() {
        let mut it = leg();
        it.free_seat();
        it.set_seat(Seat::Taken);
    }

    #[test]
    fn hang_and_losses_are_noted_once() {
        let mut it = LegWatch::default();
        assert!(!it.note_hang(true, 0) && !it.note_hang(true, LEG_HANGS_NS - 1));
        assert!(it.note_hang(true, LEG_HANGS_NS) && !it.note_hang(true, LEG_HANGS_NS));
        assert!(!it.note_hang(false, u64::MAX) && it.hangs_ns.is_none());
        assert!(it.note_lost_caches(1) && !it.note_lost_caches(1) && it.note_lost_caches(2));
        assert!(it.note_given_up(1) && !it.note_given_up(1));
    }
}
