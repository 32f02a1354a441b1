//! One volume on this core: its head, its paths, what waits in it.
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
use super::types::{HostConfig, HostEvent, PathConfig, VolumeConfig, VolumeInfo};
use super::wait::{Refusal, Waits};
use super::{Shared, probation, report};
use crate::limits::CHANGES_READY;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use block::IoLimits;
use core::ops::{Index, IndexMut};
use multipath::Head;
use policy::PathIndex;

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

/// A multipath volume on one core.
pub struct Volume {
    /// Its place in the engine's table.
    pub(super) number: u16,
    pub(super) name: String,
    pub(super) head: Head,
    pub(super) paths: Paths,
    /// Once it has been said so.
    pub(super) ready: Option<Ready>,
    pub(super) recovery: Recovery,
    state: VolumeState,
    pub(super) leg: LegRole,
    /// Writes that another engine acknowledged here may be in caches: the mirror says so.
    pub(super) left_unflushed: bool,
    /// A failed I/O is not tried again.
    pub(super) is_cut: bool,
    /// While no path is usable.
    pub(super) outage: Outage,
    /// I/Os that are on no path.
    pub(super) waits: Waits,
    /// Since when all paths refuse what they are asked for.
    pub(super) refusal: Option<Refusal>,
    /// Changes of data that may not be executed yet (T9).
    pub(super) fence: WriteFence,
    /// Core 0: what is kept durably of it for the next engine.
    pub(super) marks: Marks,
    /// Totals of [`HoldStats`], but those of the fence; the rest of it is zero here.
    pub(super) totals: HoldStats,
    /// Acknowledged writes that may be lost.
    pub(super) losses: Losses,
    /// Counters of second copies of reads.
    pub(super) hedged: HedgeStats,
    /// While somebody asks why its I/O goes where it goes.
    pub(super) explain: Option<Box<Explain>>,
}

/// The paths of a volume, by their indexes.
pub(super) struct Paths(Vec<Option<Path>>);

impl Paths {
    /// The path with this index; `None`: it has left, or never was.
    #[inline]
    pub(super) fn get(&self, at: PathIndex) -> Option<&Path> {
        self.0.get(usize::from(at.0))?.as_ref()
    }

    /// The same, to be changed.
    pub(super) fn get_mut(&mut self, at: PathIndex) -> Option<&mut Path> {
        self.0.get_mut(usize::from(at.0))?.as_mut()
    }

    /// Above the indexes that paths have, or had.
    pub(super) fn end(&self) -> u8 {
        self.0.len() as u8
    }

    /// The indexes that paths have, or had.
    pub(super) fn indexes(&self) -> impl Iterator<Item = PathIndex> + use<> {
        (0..self.end()).map(PathIndex)
    }

    /// The paths that are there, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().flatten()
    }

    /// The same, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        self.0.iter_mut().flatten()
    }

    /// Puts a path where [`Volume::make_room`] has made room for it.
    pub(super) fn insert(&mut self, path: Path) {
        let index = usize::from(path.index.0);
        let before = self.0[index].replace(path);
        assert!(before.is_none(), "path {index} is there already");
    }

    /// Takes a path out.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn remove(&mut self, at: PathIndex) -> Path {
        self.0[usize::from(at.0)].take().unwrap_or_else(|| gone(at))
    }
}

impl Index<PathIndex> for Paths {
    type Output = Path;

    #[inline(always)]
    fn index(&self, at: PathIndex) -> &Path {
        match &self.0[usize::from(at.0)] {
            Some(path) => path,
            None => gone(at),
        }
    }
}

impl IndexMut<PathIndex> for Paths {
    #[inline(always)]
    fn index_mut(&mut self, at: PathIndex) -> &mut Path {
        match &mut self.0[usize::from(at.0)] {
            Some(path) => path,
            None => gone(at),
        }
    }
}

#[cold]
fn gone(at: PathIndex) -> ! {
    unreachable!("path {} is not there", at.0)
}

/// Context of a path: parts of its volume, and what all volumes share.
pub(super) struct PathContext<'a> {
    /// Of the volume.
    pub(super) name: &'a str,
    pub(super) recovery: &'a Recovery,
    pub(super) head: &'a mut Head,
    pub(super) fence: &'a mut WriteFence,
    pub(super) ios: &'a mut IoTable,
    pub(super) settings: &'a HostConfig,
    pub(super) out: &'a mut Outbox,
}

impl PathContext<'_> {
    /// A line about a path, for people.
    pub(super) fn line(&self, path: &Path, why: &str) -> String {
        report::line(self.name, path, self.settings.core, why)
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

/// Present facts of a volume that is ready.
pub(super) struct Ready {
    pub(super) info: VolumeInfo,
    pub(super) limits: IoLimits,
    /// No I/O up to so many bytes has to be cut.
    pub(super) whole_max: u32,
    /// Of this size it was said that I/O lies beyond it.
    pub(super) warned: bool,
}

impl Volume {
    /// A volume with room for the paths of its configuration, and those.
    pub(super) fn open(
        number: u16,
        mut config: VolumeConfig,
        settings: &HostConfig,
    ) -> (Self, Vec<(PathIndex, PathConfig)>) {
        let numbers = config.numbers();
        let numbers = numbers.unwrap_or_else(|| unreachable!("it was checked before"));
        let paths = core::mem::take(&mut config.paths);
        let paths: Vec<_> = numbers.into_iter().zip(paths).collect();
        let health = &mut config.recovery.health;
        *health = probation::limits(*health, settings.io_max, settings.scratch);
        let mut it = Self::new(number, config, settings.io_max);
        for (index, path) in &paths {
            it.make_room(*index, path);
        }
        (it, paths)
    }

    /// A volume without paths yet.
    pub(super) fn new(number: u16, config: VolumeConfig, io_max: u32) -> Self {
        let mut head = Head::new([], config.policy, config.knobs);
        head.set_ana_use(config.recovery.ana);
        head.set_health(config.recovery.health);
        Self {
            number,
            head,
            name: config.name,
            paths: Paths(Vec::with_capacity(policy::limits::PATHS_MAX)),
            ready: None,
            recovery: config.recovery,
            is_cut: false,
            outage: Outage::default(),
            waits: Waits::EMPTY,
            refusal: None,
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
        assert!(
            self.paths.get(index).is_none(),
            "{index:?} is another path's"
        );
        let places = &mut self.paths.0;
        for below in places.len()..usize::from(index.0) {
            self.head.add(PathIndex(below as u8), 0);
            places.push(None);
        }
        self.head.add(index, path.distance);
        self.fence.add_path(index);
        self.head.set_throughput(index, path.throughput);
        if usize::from(index.0) == places.len() {
            places.push(None);
        }
    }

    /// The other paths than this one, in order.
    pub(super) fn others(&self, at: PathIndex) -> impl Iterator<Item = &Path> {
        self.paths.iter().filter(move |it| it.index != at)
    }

    /// A path, and what it works with.
    #[inline]
    pub(super) fn path<'a>(
        &'a mut self,
        at: PathIndex,
        on: &'a mut Shared,
    ) -> (&'a mut Path, PathContext<'a>) {
        let context = PathContext {
            name: &self.name,
            recovery: &self.recovery,
            head: &mut self.head,
            fence: &mut self.fence,
            ios: &mut on.ios,
            settings: &on.settings,
            out: &mut on.out,
        };
        (&mut self.paths[at], context)
    }
}
