//! Changes of what paths and volumes there are, while the engine runs: core 0 leads.
//!
//! * a path joins: learnt and checked as at the start (T31, T33), connected on every core, and only
//!   then given I/O; where anything of that fails, it leaves again and nothing was disturbed
//! * a path leaves: it drains on every core, its controller's cache is flushed (T13), its queues
//!   are closed, its controller is shut down; then every core forgets it and its place is free
//! * a path is failed by hand, as if it had lost its connection, until it is restored; or drains
//! * a volume comes or goes with all of its paths
//!
//! # Contract
//! A [`Change`] is asked of core 0, under a ticket, and answered by one [`HostEvent::Changed`].
//! Core 0 checks it, gives new paths and volumes their numbers, and tells every core what to do, in
//! one [`Order`] per stage; each does it as soon as it can (`change_steps`) and answers. Orders
//! travel as [`PathNews`], so they keep their order with all else that core 0 reports of a path.
//! Addresses and devices that a new path names are known to every core's reactor before.
//!
//! A path that is lost while it leaves is treated as any lost path: its I/O moves, its writes are
//! held until they can't be executed late (T9), and its place stays taken until then. If any core
//! had, or may have had, writes acknowledged there that were never flushed, it stays, to come back
//! and flush them; by force it leaves, and the volume's next flush fails, once.
//! [`HostEvent::Freed`] says when nothing refers to a path or volume on any core; every address and
//! device that a change named is given back by one [`HostEvent::Released`], when its path left or
//! was refused.
//!
//! # Limits
//! 64 paths per volume, [`VOLUMES_MAX`] volumes, and as many paths in all as
//! [`Multipath::with_room`] was told. One change of a path at a time, but failing it.
use super::Multipath;
use super::path::AdminState;
use super::pending_change::{ChangeStage, PendingChange};
use super::types::{HostEvent, PathConfig, PathKind, PathNews, VolumeConfig};
use super::volumes::Volume;
use crate::limits::VOLUMES_MAX;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use policy::PathIndex;
use policy::limits::PATHS_MAX;

/// Change that is asked of core 0.
#[derive(Clone, Debug)]
pub enum Change {
    /// A new path for a volume; done when it is in use on every core.
    AddPath(u16, Box<PathConfig>),
    /// A path leaves; done when it is disconnected.
    RemovePath {
        /// Volume index.
        volume: u16,
        /// Path.
        path: PathIndex,
        /// Also the last usable path, and one with unflushed writes that isn't connected; and one
        /// whose I/O hasn't ended in time is failed, where it would else be used again.
        force: bool,
    },
    /// A path is given up as if it had lost its connection, and not connected again; the last
    /// usable one only by force.
    FailPath(u16, PathIndex, bool),
    /// A path that was failed or drained is used again; done when it is live.
    RestorePath(u16, PathIndex),
    /// A path gets nothing new; done when what it had has ended. It stays connected. The last
    /// usable one only by force.
    DrainPath(u16, PathIndex, bool),
    /// A new volume; done when all its paths were tried and it is ready on every core, refused
    /// where none of them can be used, or one can't be beside another.
    AddVolume(Box<VolumeConfig>),
    /// A volume leaves with its paths; it takes no I/O from now on.
    RemoveVolume(u16),
}

/// A change that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Volume index.
    pub volume: u16,
    /// Path, where the change was of one.
    pub path: Option<PathIndex>,
}

/// Order of core 0 to all cores.
#[derive(Clone, Debug)]
pub struct Order {
    /// Comes back when it is done.
    pub serial: u32,
    /// Volume index.
    pub volume: u16,
    /// Path; of no meaning where the order is of a volume.
    pub path: PathIndex,
    /// Its content.
    pub what: What,
}

/// Content of an order about a path or volume.
#[derive(Clone, Debug)]
pub enum What {
    /// There is a path more, in this place; not yet to be used.
    Join(u32, Box<PathConfig>),
    /// It is used like any other.
    Use,
    /// The same, and its user says that it is well: its relapses are forgotten.
    Restore,
    /// It is given up.
    Fail,
    /// It gets nothing new.
    Drain,
    /// The same, and it is to leave.
    Leave,
    /// It is drained: its queue is closed. True: its controller has flushed what any core wrote.
    CloseQueue(bool),
    /// It is forgotten as soon as nothing refers to it. True: it is known that nothing which any
    /// core wrote there is unflushed.
    Forget(bool),
    /// There is a volume more, whose paths have these places.
    Open(Box<VolumeConfig>, Vec<u32>),
    /// The volume takes no I/O any more.
    Close,
    /// The volume, which has no path left, is forgotten.
    ForgetVolume,
}

impl Volume {
    /// Refuses to take the last usable path of a volume from it.
    fn spare_last(&self, at: PathIndex, force: bool) -> Result<(), String> {
        let path = &self.paths[at];
        if force
            || !path.is_live()
            || self.head.is_usable_beside(at)
            || self.is_served_elsewhere_beside(at)
        {
            return Ok(());
        }
        Err(format!(
            "{} is the last usable path of its volume: its I/O would wait (--force: all the same)",
            path.uri
        ))
    }
}

/// A change that has begun, or why it can't.
type Begun = Result<PendingChange, String>;

impl Multipath {
    /// Core 0: a change is asked for; `wait_ns` bounds how long it may take.
    pub(super) fn change(&mut self, ticket: u64, change: Change, wait_ns: u64, now_ns: u64) {
        let until_ns = now_ns.saturating_add(wait_ns);
        let named = named(&change);
        let begun = match change {
            _ if self.on.settings.core != 0 => Err("asked of a core that doesn't lead".into()),
            _ if self.on.shutdown.has_begun() => Err("the engine is stopping".into()),
            Change::AddPath(volume, config) => self.add_path(volume, *config, now_ns),
            Change::RemovePath {
                volume,
                path,
                force,
            } => self.remove_path(volume, path, force, now_ns),
            Change::FailPath(volume, path, force) => self.fail_path(volume, path, force, now_ns),
            Change::RestorePath(volume, path) => self.restore_path(volume, path, now_ns),
            Change::DrainPath(volume, path, force) => self.drain_path(volume, path, force, now_ns),
            Change::AddVolume(config) => self.add_volume(*config, now_ns),
            Change::RemoveVolume(volume) => self.remove_volume(volume, until_ns, now_ns),
        };
        match begun {
            Err(why) => {
                self.on.out.report(HostEvent::Changed(ticket, Err(why)));
                for kind in named {
                    self.on.out.report(HostEvent::Released(kind));
                }
            }
            Ok(mut change) => {
                change.ticket = Some(ticket);
                change.until_ns = until_ns;
                self.on.changes.push(change);
                self.on.out.wake_by(until_ns);
            }
        }
    }

    fn add_path(&mut self, volume: u16, config: PathConfig, now_ns: u64) -> Begun {
        let it = self.running(volume)?;
        // Other cores may not have forgotten yet what was there.
        let is_free =
            |at| it.paths.get(at).is_none() && self.on.changes.of_path(volume, at).next().is_none();
        let Some(path) = config.number(is_free) else {
            return Err(format!(
                "{}: a volume has at most {PATHS_MAX} paths, and none of the numbers that this one \
                 may have is free",
                it.name
            ));
        };
        if !super::types::has_blocks(&config) {
            return Err(format!("{}: its blocks must be 512 B…64 KiB", config.uri));
        }
        let place = self.on.changes.free_places(&self.on.owners, self.room, 1)?[0];
        Ok(self.begin_change(
            volume,
            path,
            ChangeStage::Join,
            What::Join(place, Box::new(config)),
            now_ns,
        ))
    }

    fn remove_path(&mut self, volume: u16, path: PathIndex, force: bool, now_ns: u64) -> Begun {
        let it = self.idle_path(volume, path)?;
        it.spare_last(path, force)?;
        if let Some(why) = it.loses_by_leaving(path).filter(|_| !force) {
            return Err(why);
        }
        let drained = it.paths[path].admin_state() == AdminState::Draining;
        let mut change = self.begin_change(volume, path, ChangeStage::Leave, What::Leave, now_ns);
        change.force = force;
        change.was_draining = drained;
        Ok(change)
    }

    fn fail_path(&mut self, volume: u16, path: PathIndex, force: bool, now_ns: u64) -> Begun {
        let it = self.running(volume)?;
        it.paths.get(path).ok_or_else(|| no_path(path))?;
        it.spare_last(path, force)?;
        // Whatever is under way sees that the path is lost; only one that leaves goes on to leave.
        let mut change = self.begin_change(volume, path, ChangeStage::Drain, What::Fail, now_ns);
        change.wait_for_no_core();
        Ok(change)
    }

    fn restore_path(&mut self, volume: u16, path: PathIndex, now_ns: u64) -> Begun {
        self.idle_path(volume, path)?;
        Ok(self.begin_change(volume, path, ChangeStage::Return, What::Restore, now_ns))
    }

    fn drain_path(&mut self, volume: u16, path: PathIndex, force: bool, now_ns: u64) -> Begun {
        let it = self.idle_path(volume, path)?;
        let (uri, state) = (&it.paths[path].uri, it.paths[path].admin_state());
        if matches!(state, AdminState::Failed | AdminState::GivenUp) {
            return Err(format!("{uri} was given up; restore it first"));
        }
        it.spare_last(path, force)?;
        Ok(self.begin_change(volume, path, ChangeStage::Drain, What::Drain, now_ns))
    }

    fn add_volume(&mut self, config: VolumeConfig, now_ns: u64) -> Begun {
        let there = self.volumes.iter().filter(|it| !it.is_vacant());
        if there.count() >= VOLUMES_MAX {
            return Err(format!(
                "there are {VOLUMES_MAX} volumes, the most there may be"
            ));
        }
        config.check().map_err(|error| error.to_string())?;
        if config.paths.is_empty() {
            return Err("paths must be 1…64 for a volume that comes while the engine runs".into());
        }
        let mut vacant = (0_u16..).zip(&self.volumes);
        let vacant =
            vacant.find(|(volume, it)| it.is_vacant() && !self.on.changes.is_changing(*volume));
        let volume = vacant.map_or(self.volumes.len() as u16, |(volume, _)| volume);
        let places = self
            .on
            .changes
            .free_places(&self.on.owners, self.room, config.paths.len())?;
        Ok(self.begin_change(
            volume,
            PathIndex(0),
            ChangeStage::Open,
            What::Open(Box::new(config), places),
            now_ns,
        ))
    }

    fn remove_volume(&mut self, volume: u16, until_ns: u64, now_ns: u64) -> Begun {
        self.running(volume)?;
        let mut changes = self.on.changes.pending().iter();
        if changes.any(|change| change.volume == volume && change.stage().is_of_volume()) {
            return Err("another change of this volume is under way".into());
        }
        let change = self.begin_change(
            volume,
            PathIndex(0),
            ChangeStage::Empty,
            What::Close,
            now_ns,
        );
        self.empty(volume, until_ns, now_ns);
        Ok(change)
    }

    /// All paths of a volume leave, whatever is under way.
    pub(super) fn empty(&mut self, volume: u16, until_ns: u64, now_ns: u64) {
        for path in self.volumes[usize::from(volume)].paths.indexes() {
            if self.path_of(volume, path).is_none() {
                continue; // it has left
            }
            let (leaves, before) = self.on.changes.force_to_leave(volume, path);
            if leaves {
                continue;
            }
            if let Some(mut before) = before {
                before.answer(Err("its volume is being removed".into()), &mut self.on.out);
            }
            let mut change =
                self.begin_change(volume, path, ChangeStage::Leave, What::Leave, now_ns);
            (change.force, change.until_ns) = (true, until_ns);
            self.on.out.wake_by(until_ns);
            self.on.changes.push(change);
        }
    }

    fn begin_change(
        &mut self,
        volume: u16,
        path: PathIndex,
        stage: ChangeStage,
        what: What,
        now_ns: u64,
    ) -> PendingChange {
        let mut change = PendingChange::new(volume, path, stage);
        self.order(&mut change, what, now_ns);
        change
    }

    /// A volume that is there and may be changed.
    fn running(&self, volume: u16) -> Result<&Volume, String> {
        let it = self.volumes.get(usize::from(volume));
        let it = it.filter(|it| it.is_open());
        let it = it.ok_or_else(|| format!("there is no volume {volume}"))?;
        if it.recovery.enabled {
            Ok(it)
        } else {
            Err(format!(
                "{}: paths that don't recover can't be changed",
                it.name
            ))
        }
    }

    /// The volume of a path that no other change is made to.
    fn idle_path(&self, volume: u16, path: PathIndex) -> Result<&Volume, String> {
        let it = self.running(volume)?;
        let uri = &it.paths.get(path).ok_or_else(|| no_path(path))?.uri;
        let mut changes = self.on.changes.of_path(volume, path);
        match changes.any(|change| change.stage() != ChangeStage::Return) {
            true => Err(format!("another change of {uri} is under way")),
            false => Ok(it),
        }
    }

    /// Tells all cores, this one included; those that answer are waited for.
    pub(super) fn order(&mut self, change: &mut PendingChange, what: What, now_ns: u64) {
        let serial = self.on.changes.next_serial();
        change.ordered(serial, self.on.settings.cores);
        let order = Order {
            serial,
            volume: change.volume,
            path: change.path,
            what,
        };
        if self.on.settings.cores > 1 {
            let news = PathNews::Order(Box::new(order.clone()));
            self.on.out.publish(news);
        }
        self.obey(order, now_ns);
    }
}

/// Where the paths of a change lead that are new.
fn named(change: &Change) -> Vec<PathKind> {
    let paths = match change {
        Change::AddPath(_, config) => core::slice::from_ref(&**config),
        Change::AddVolume(config) => &config.paths,
        _ => &[],
    };
    paths.iter().map(|path| path.kind.clone()).collect()
}

fn no_path(path: PathIndex) -> String {
    format!("there is no path {}", path.0)
}

/// Whether a path is a device of the reactor.
pub(super) fn is_device(kind: &PathKind) -> bool {
    kind.device().is_some()
}
