//! A leg as a device: what was read of it, why the mirror goes on without it, and its place.
use super::depth::Depth;
use super::probe::Probe;
use super::sizes::Extent;
use super::types::{LegConfig, LegCounters};
use crate::host::VolumeInfo;
use crate::limits::LEG_RETRY_NS;
use alloc::string::String;
use block::DeviceId;
use mirror::Id;
use mirror::copies::{Chosen, NoLeg};
use mirror::superblock::EntryState;
use multipath::Outcome;

/// A leg as a device: what was read of it, and its requests. Whether it has all data, and may be
/// read, is a state of the state machine, by its slot.
pub(super) struct LegDevice {
    pub config: LegConfig,
    /// The device, once it is ready.
    pub info: Option<VolumeInfo>,
    /// The read of its superblocks under way.
    pub probe: Option<Probe>,
    /// When they may be read next, ns.
    pub probe_at_ns: u64,
    /// `found` was read for a start that was refused: it is read again before the next one.
    pub is_outdated: bool,
    /// Its superblock, or why it has none.
    pub found: Option<Result<Chosen, NoLeg>>,
    /// Its state when the mirror was stopped.
    pub last: Option<EntryState>,
    /// Its slot, once the mirror runs.
    pub slot: Option<u8>,
    /// Set while the mirror goes on without it: when it is tried again.
    pub missing: Option<Missing>,
    /// `fail` took it out: it returns only by `restore`.
    pub admin_offline: bool,
    pub extent: Extent,
    pub bad_room: BadRoom,
    /// Why it can't return.
    pub unfit: Option<String>,
    /// How the last write of the owner's record failed, for which it is left out.
    pub unwritten: Option<Outcome>,
    pub counters: LegCounters,
    /// Its rebuild: since when, ns, and how many regions it lacked then.
    pub rebuild: Option<(u64, u64)>,
    /// The slot of the leg that is removed when this one is in sync.
    pub replaces: Option<u8>,
    pub seat: Seat,
    /// Its lease has lapsed: another host may take it over, and it gets heartbeats only (T48).
    pub is_fenced: bool,
    /// Controllers lost with the contents of their caches, as last inspected.
    pub lost_caches: u64,
    /// How often its device had given up unflushed writes, as last inspected.
    pub given_up: u32,
    /// It has no path left and its requests do not end: when the mirror goes on without it, ns.
    pub hangs_ns: Option<u64>,
    /// Its data I/O, in flight and waiting.
    pub depth: Depth,
    /// It has refused to deallocate since it returned.
    pub refuses_holes: bool,
}

/// The use of a place among the legs. [`LegDevice::set_seat`] changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seat {
    /// A leg of the mirror, or a volume that may be one.
    Taken,
    /// A missing leg whose slot is being removed, with its identifier: until that has happened, and
    /// what is there was read.
    LeavesWith(u8, Id),
    /// A removed leg: so many copies of its superblock are being overwritten.
    Wiping(u8),
    /// Another leg may take the place.
    Free,
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

/// A leg that the mirror goes on without.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missing {
    /// When it is tried again, ns.
    pub at_ns: u64,
    /// The pause before that, ns.
    pub wait_ns: u64,
    /// Why it left; `None`: it was missing at the start.
    pub outcome: Option<Outcome>,
    /// It was reported to the state machine as found.
    pub is_reported: bool,
    /// The user has ordered its return.
    pub is_requested: bool,
}

impl Missing {
    /// A leg that was missing at the start, and was found.
    pub fn since_start(now_ns: u64) -> Self {
        Self {
            at_ns: now_ns,
            wait_ns: LEG_RETRY_NS,
            outcome: None,
            is_reported: false,
            is_requested: false,
        }
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
            probe: None,
            probe_at_ns: 0,
            is_outdated: false,
            found: None,
            last: None,
            slot: None,
            missing: None,
            admin_offline: false,
            extent: Extent::default(),
            bad_room: BadRoom::Enough,
            unfit: None,
            unwritten: None,
            counters: LegCounters::default(),
            rebuild: None,
            replaces: None,
            seat: Seat::Taken,
            is_fenced: false,
            lost_caches: 0,
            given_up: 0,
            hangs_ns: None,
            depth: Depth::default(),
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
            (Taken, Taken | LeavesWith(..) | Wiping(1) | Free) => true,
            (LeavesWith(..), Taken | LeavesWith(..) | Wiping(1) | Free) => true,
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
        (self.info, self.missing) = (None, None);
    }

    /// Whether it returns only by order of a user, or not before it is large enough.
    pub fn stays_missing(&self) -> bool {
        let is_stuck = self.bad_room == BadRoom::Stuck;
        self.admin_offline || self.extent.keeps_away() || is_stuck
    }

    /// Whether its return was ordered, and it was not read since.
    pub fn is_due(&self) -> bool {
        let stays = self.stays_missing() || self.is_gone();
        !stays
            && self
                .missing
                .is_some_and(|missing| !missing.is_reported && missing.is_requested)
    }

    /// Whether it is configured, and was never read.
    pub fn is_absent(&self) -> bool {
        self.slot.is_none() && self.found.is_none() && !self.is_gone()
    }

    /// Whether its superblocks failed to be read: a start goes on without it, and a mirror that
    /// runs reads them again.
    pub fn is_unread(&self) -> bool {
        self.found == Some(Err(NoLeg::Unreadable))
    }

    /// Forgets what was read of a leg that was too small, if it is large enough again. Returns
    /// whether it is.
    pub fn was_made_long(&mut self) -> bool {
        let needs = match self.found {
            Some(Err(NoLeg::Cut(bytes))) => bytes,
            _ => return false,
        };
        let is_long = self.info.is_some_and(|info| info.bytes >= needs);
        if is_long {
            (self.found, self.unfit) = (None, None);
        }
        is_long
    }
}
