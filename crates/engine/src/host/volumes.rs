//! One volume on this core: its head, its paths' places, what waits in it.
use super::explain::Explain;
use super::fence::WriteFence;
use super::hedge::HedgeStats;
use super::outage::Outage;
use super::recovery::{HoldStats, Recovery};
use super::slots::Lane;
use super::types::{PathConfig, VolumeConfig, VolumeInfo};
use crate::limits::CHANGES_READY;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use block::IoLimits;
use policy::PathIndex;
use volume::{Head, Namespace};

/// No path has this index.
pub(super) const VACANT: usize = usize::MAX;

pub(super) struct Volume {
    pub(super) name: String,
    pub(super) head: Head,
    /// Number of each of its paths, by index.
    pub(super) places: Vec<usize>,
    /// Once it has been said so.
    pub(super) ready: Option<Ready>,
    pub(super) recovery: Recovery,
    /// A mirror's: what changes data waits for a busy path rather than fail (T6).
    pub(super) is_leg: bool,
    /// The same, of a mirror on another core.
    pub(super) is_leg_elsewhere: bool,
    /// What another engine acknowledged here may be in caches: the mirror says so.
    pub(super) left_unflushed: bool,
    /// A mirror's that is ours: whether another engine left something is known.
    pub(super) is_claimed: bool,
    /// A mirror's before that: a path left, and its controller was not flushed. What to say when a
    /// flush fails for it (T13).
    pub(super) left_early: Option<String>,
    /// It was said that no path is live.
    pub(super) no_path: bool,
    /// What fails is not tried again.
    pub(super) is_cut: bool,
    /// While no path is usable.
    pub(super) outage: Outage,
    /// I/Os that wait for a usable path, oldest wait first.
    pub(super) queue: Lane,
    /// I/Os that wait for a busy path.
    pub(super) delayed: Lane,
    /// Flushes that wait for a lost controller.
    pub(super) flushes: Lane,
    /// Changes of data that may not be executed yet (T9).
    pub(super) fence: WriteFence,
    /// Longest bound that is kept durably.
    pub(super) marked_ns: u64,
    /// The namespace that the last answer to a [`HostEvent::Mark`] named.
    pub(super) marked_as: Option<Box<Namespace>>,
    /// Core 0: [`HostEvent::Opened`] was told.
    pub(super) opened: bool,
    /// Core 0: why clients are refused, as told last ([`HostEvent::Refused`]).
    pub(super) refused: Option<String>,
    /// Totals of [`HoldStats`], but those of the fence; the rest of it is zero here.
    pub(super) totals: HoldStats,
    /// A path left with acknowledged writes that were never flushed: what to say when the next
    /// flush fails for it (T13).
    pub(super) lost_cache: Option<String>,
    /// How often unflushed writes of lost paths were given up: flushes that were submitted before
    /// fail (T13).
    pub(super) given_up: u32,
    /// What was said when that happened last, until whoever flushed has heard of it.
    pub(super) told: Option<String>,
    /// The same; nobody has heard of it, and the next flush fails for it.
    pub(super) untold: Option<String>,
    /// It was said that it is to go.
    pub(super) leaving: bool,
    /// There is none.
    pub(super) vacant: bool,
    /// What became of second copies of reads.
    pub(super) hedged: HedgeStats,
    /// While somebody asks why its I/O goes where it goes.
    pub(super) explain: Option<Box<Explain>>,
}

/// What holds of a volume that is ready, now.
pub(super) struct Ready {
    pub(super) info: VolumeInfo,
    pub(super) limits: IoLimits,
    /// No I/O up to so many bytes has to be cut.
    pub(super) whole_max: u32,
    /// Of this size it was said that I/O lies beyond it.
    pub(super) warned: bool,
}

impl Volume {
    /// A volume without paths yet.
    pub(super) fn new(config: VolumeConfig, io_max: u32) -> Self {
        let mut head = Head::new([], config.policy, config.knobs);
        head.set_ana_use(config.recovery.ana);
        head.set_health(config.recovery.health);
        Self {
            head,
            name: config.name,
            places: Vec::with_capacity(policy::limits::PATHS_MAX),
            ready: None,
            recovery: config.recovery,
            no_path: false,
            is_cut: false,
            outage: Outage::default(),
            queue: Lane::EMPTY,
            delayed: Lane::EMPTY,
            flushes: Lane::EMPTY,
            marked_ns: 0,
            marked_as: None,
            opened: false,
            refused: None,
            fence: WriteFence::new(CHANGES_READY.min(io_max as usize)),
            totals: HoldStats::default(),
            lost_cache: None,
            is_leg: false,
            is_leg_elsewhere: false,
            left_unflushed: false,
            is_claimed: false,
            left_early: None,
            given_up: 0,
            told: None,
            untold: None,
            leaving: false,
            vacant: false,
            hedged: HedgeStats::default(),
            explain: None,
        }
    }

    /// The place of one that left.
    pub(super) fn vacant() -> Self {
        let config = VolumeConfig {
            name: String::new(),
            policy: policy::Policy::Numa,
            knobs: policy::Knobs::default(),
            paths: Vec::new(),
            recovery: Recovery::NONE,
        };
        Self {
            vacant: true,
            ..Self::new(config, 0)
        }
    }

    /// Makes room for a path of this number, whose place is vacant yet; numbers below it that no
    /// path has had stay vacant too.
    pub(super) fn make_room(&mut self, index: PathIndex, path: &PathConfig) {
        assert!(self.number(index).is_none(), "{index:?} is another path's");
        for below in self.places.len()..usize::from(index.0) {
            self.head.add(PathIndex(below as u8), 0);
            self.places.push(VACANT);
        }
        self.head.add(index, path.distance);
        self.fence.add_path(index);
        self.head.set_throughput(index, path.throughput);
        if usize::from(index.0) == self.places.len() {
            self.places.push(VACANT);
        }
    }

    /// All lanes of I/Os that are on no path, but those of the fence.
    pub(super) fn lanes(&mut self) -> [&mut Lane; 3] {
        [&mut self.queue, &mut self.delayed, &mut self.flushes]
    }

    /// Number in the engine's table of a path that is there.
    #[inline]
    pub(super) fn place(&self, path: PathIndex) -> usize {
        self.places[usize::from(path.0)]
    }

    /// The same of a path that may not be there.
    pub(super) fn number(&self, path: PathIndex) -> Option<usize> {
        let place = self.places.get(usize::from(path.0)).copied();
        place.filter(|&number| number != VACANT)
    }
}
