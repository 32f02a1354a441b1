//! One volume on this core: its head, its paths' places, what waits in it.
use super::explain::Explain;
use super::fence::WriteFence;
use super::hedge::HedgeStats;
use super::io_table::IoTable;
use super::losses::Losses;
use super::mark::Marks;
use super::outage::Outage;
use super::outbox::Outbox;
use super::path::Path;
use super::recovery::{HoldStats, Recovery};
use super::report;
use super::types::{HostConfig, HostEvent, PathConfig, VolumeConfig, VolumeInfo};
use super::wait::Waits;
use crate::limits::CHANGES_READY;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use block::IoLimits;
use multipath::Head;
use policy::PathIndex;

/// No path has this index.
pub(super) const VACANT: usize = usize::MAX;

/// Where a volume's place in the table stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VolumeState {
    Open,
    /// It takes no I/O any more; its paths leave.
    Leaving,
    /// There is none.
    Vacant,
}

/// Whether a volume is a leg of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LegRole {
    None,
    /// Of one on this core: what changes data waits for a busy path rather than fail (T6).
    Here {
        /// The mirror is ours: what another engine left unflushed is known.
        is_claimed: bool,
    },
    /// Of one on another core.
    Elsewhere,
}

impl LegRole {
    pub(super) fn is_here(self) -> bool {
        matches!(self, Self::Here { .. })
    }

    /// Whether another engine may have left unflushed writes, for all that is known.
    pub(super) fn is_unclaimed(self) -> bool {
        self == Self::Here { is_claimed: false }
    }
}

pub(super) struct Volume {
    /// Its place in the engine's table.
    pub(super) number: u16,
    pub(super) name: String,
    pub(super) head: Head,
    /// Number of each of its paths, by index.
    pub(super) places: Vec<usize>,
    /// Once it has been said so.
    pub(super) ready: Option<Ready>,
    pub(super) recovery: Recovery,
    state: VolumeState,
    pub(super) leg: LegRole,
    /// What another engine acknowledged here may be in caches: the mirror says so.
    pub(super) left_unflushed: bool,
    /// What fails is not tried again.
    pub(super) is_cut: bool,
    /// While no path is usable.
    pub(super) outage: Outage,
    /// I/Os that are on no path.
    pub(super) waits: Waits,
    /// Changes of data that may not be executed yet (T9).
    pub(super) fence: WriteFence,
    /// Core 0: what is kept durably of it for the next engine.
    pub(super) marks: Marks,
    /// Totals of [`HoldStats`], but those of the fence; the rest of it is zero here.
    pub(super) totals: HoldStats,
    /// Acknowledged writes that may be lost.
    pub(super) losses: Losses,
    /// What became of second copies of reads.
    pub(super) hedged: HedgeStats,
    /// While somebody asks why its I/O goes where it goes.
    pub(super) explain: Option<Box<Explain>>,
}

/// One path of the engine, as a part of its volume: what is asked of both, or of the volume's other
/// paths as well.
#[derive(Clone, Copy)]
pub(super) struct PathInVolume<'a> {
    pub(super) path: &'a Path,
    pub(super) volume: &'a Volume,
    /// All that the engine has.
    pub(super) paths: &'a [Path],
}

impl<'a> PathInVolume<'a> {
    /// The volume's other paths, in order.
    pub(super) fn others(&self) -> impl Iterator<Item = &'a Path> {
        let own = self.path.index;
        self.volume
            .paths(self.paths)
            .filter(move |it| it.index != own)
    }

    /// Whether paths like this one come back.
    pub(super) fn recovers(&self) -> bool {
        self.volume.recovery.enabled
    }
}

/// What the session of a path works with: its volume, and what all paths share.
pub(super) struct PathContext<'a> {
    pub(super) volume: &'a mut Volume,
    pub(super) ios: &'a mut IoTable,
    pub(super) settings: &'a HostConfig,
    pub(super) out: &'a mut Outbox,
}

impl PathContext<'_> {
    /// A line about a path, for people.
    pub(super) fn line(&self, path: &Path, why: &str) -> String {
        report::line(&self.volume.name, path, self.settings.core, why)
    }

    /// Tells a user of a path.
    pub(super) fn warn(&mut self, path: &Path, why: &str) {
        let line = self.line(path, why);
        self.out.report(HostEvent::Warning(path.volume, line));
    }

    /// Tells a user of what happened to this core's own I/O on a path.
    pub(super) fn report_trouble(&mut self, path: &Path, why: &str) {
        let line = self.line(path, why);
        self.out.report(HostEvent::Trouble(path.volume, line));
    }
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
    pub(super) fn new(number: u16, config: VolumeConfig, io_max: u32) -> Self {
        let mut head = Head::new([], config.policy, config.knobs);
        head.set_ana_use(config.recovery.ana);
        head.set_health(config.recovery.health);
        Self {
            number,
            head,
            name: config.name,
            places: Vec::with_capacity(policy::limits::PATHS_MAX),
            ready: None,
            recovery: config.recovery,
            is_cut: false,
            outage: Outage::default(),
            waits: Waits::EMPTY,
            marks: Marks::default(),
            fence: WriteFence::new(CHANGES_READY.min(io_max as usize)),
            totals: HoldStats::default(),
            state: VolumeState::Open,
            leg: LegRole::None,
            left_unflushed: false,
            losses: Losses::default(),
            hedged: HedgeStats::default(),
            explain: None,
        }
    }

    /// The place of one that left.
    pub(super) fn vacant(number: u16) -> Self {
        let config = VolumeConfig {
            name: String::new(),
            policy: policy::Policy::Numa,
            knobs: policy::Knobs::default(),
            paths: Vec::new(),
            recovery: Recovery::NONE,
        };
        Self {
            state: VolumeState::Vacant,
            ..Self::new(number, config, 0)
        }
    }

    /// It takes no I/O from now on, and its paths leave.
    ///
    /// # Panics
    /// If it is leaving, or vacant.
    pub(super) fn leave(&mut self) {
        assert!(
            self.is_open(),
            "{}: {:?} volume leaves",
            self.name,
            self.state
        );
        self.state = VolumeState::Leaving;
        self.ready = None;
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == VolumeState::Open
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.state == VolumeState::Leaving
    }

    pub(super) fn is_vacant(&self) -> bool {
        self.state == VolumeState::Vacant
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

    /// The indexes that its paths have, or had.
    pub(super) fn indexes(&self) -> impl Iterator<Item = PathIndex> + use<> {
        (0..self.places.len() as u8).map(PathIndex)
    }

    /// The paths that are there, in order, of all that the engine has.
    pub(super) fn paths<'a>(&self, all: &'a [Path]) -> impl Iterator<Item = &'a Path> {
        let numbers = self.places.iter().filter(|&&number| number != VACANT);
        numbers.map(|&number| &all[number])
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
