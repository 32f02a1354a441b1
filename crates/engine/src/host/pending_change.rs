//! Changes of paths and volumes that core 0 leads: what each has to do next, and what every core
//! has yet to do for them.
//!
//! Decides only; [`super::stages`] does it. A stage ends when every core has carried out its order,
//! when what it waits for has happened, or when its time is over. One that loses its path goes on
//! as for any lost path, and one whose time is over is called off, or forced, as was asked.
//!
//! # States
//! * a path joins: `Join`, then it is used; or `Forget`
//! * a path leaves: `Leave` → `Flush` → `CloseQueues` → `ShutDown` → `Forget`
//! * a path drains or returns: `Drain`, `Return`
//! * a volume comes: `Open`, then it is used; or as one that leaves: `Empty` → `ForgetVolume`
use super::cache::FinalFlush;
use super::change::Changed;
use super::outbox::Outbox;
use super::path::{AdminState, Path};
use super::types::{HostEvent, PathKind, PathNews};
use super::volumes::{LegRole, Volume};
use super::{change::What, report};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use policy::PathIndex;

/// Where a change stands. Changed by [`PendingChange::enter`] alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeStage {
    /// All cores connect a new path.
    Join,
    /// A path is to be live again.
    Return,
    /// All cores drain a path that stays.
    Drain,
    /// All cores drain a path that leaves.
    Leave,
    /// Its controller flushes.
    Flush,
    /// All cores close its queue.
    CloseQueues,
    /// Its controller is shut down.
    ShutDown,
    /// All cores forget it.
    Forget,
    /// A new volume's paths are tried.
    Open,
    /// A volume's paths leave.
    Empty,
    /// All cores forget the volume.
    ForgetVolume,
}

impl ChangeStage {
    pub(super) fn is_of_volume(self) -> bool {
        matches!(self, Self::Open | Self::Empty | Self::ForgetVolume)
    }

    /// Whether a change gets from here to `to`. A lost path has nothing to flush, close or shut
    /// down; a path that has nothing unflushed is not flushed.
    fn leads_to(self, to: Self) -> bool {
        match to {
            Self::Flush => self == Self::Leave,
            Self::CloseQueues => matches!(self, Self::Leave | Self::Flush),
            Self::ShutDown => self == Self::CloseQueues,
            Self::Forget => matches!(
                self,
                Self::Join | Self::Leave | Self::Flush | Self::CloseQueues | Self::ShutDown
            ),
            Self::Empty => self == Self::Open,
            Self::ForgetVolume => self == Self::Empty,
            Self::Join | Self::Return | Self::Drain | Self::Leave | Self::Open => false,
        }
    }
}

/// A change under way.
#[derive(Debug)]
pub(super) struct PendingChange {
    /// Until it was answered; `None` also where the engine itself asked.
    pub ticket: Option<u64>,
    pub volume: u16,
    /// Path; of no meaning where the change is a volume's.
    pub path: PathIndex,
    stage: ChangeStage,
    /// When the patience with it is over, ns; `u64::MAX`: it was, or never is.
    pub until_ns: u64,
    pub force: bool,
    /// The path was draining before: it is again, if it can't leave.
    pub was_draining: bool,
    /// The place of a path that is being forgotten, and where it led.
    pub place: Option<usize>,
    pub kind: Option<PathKind>,
    /// The last order, and the cores that have not carried it out.
    serial: u32,
    cores_left: u16,
    /// Some core had writes acknowledged that no flush has covered.
    pub unflushed: bool,
    /// Why it fails.
    pub failure: Option<String>,
}

/// State by which a change of a path goes on.
pub(super) struct PathView<'a> {
    pub path: &'a Path,
    pub volume: &'a Volume,
    /// Why it can't leave now but by force; only asked for while that counts.
    pub doubt: Option<String>,
    /// Its controller has to flush before it leaves.
    pub needs_flush: bool,
}

/// State by which a change of a volume goes on.
pub(super) struct VolumeView<'a> {
    pub paths: Vec<&'a Path>,
    /// Changes of its paths are under way.
    pub is_changing: bool,
}

/// Next action for a change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing before something else happens.
    Wait,
    /// It is over, and answered.
    End(Result<(), String>),
    /// A new path is used by all cores; over, and answered.
    Use,
    /// A path that can't leave is what it was before; over, and answered with this reason.
    TakeBack(String),
    /// The path is given up for this reason.
    Lose(&'static str),
    /// The path's controller flushes.
    Flush,
    /// All cores close the path's queue; true: its controller has flushed what any core wrote.
    CloseQueues(bool),
    /// The path's controller is shut down.
    ShutDown,
    /// It is answered, and all cores forget the path.
    Forget(Result<(), String>),
    /// All cores have forgotten the path; over.
    Freed,
    /// The volume takes no I/O any more, and its paths leave.
    Empty,
    /// All cores forget the volume.
    ForgetVolume,
    /// All cores have forgotten the volume; over, and answered.
    VolumeFreed(Result<(), String>),
}

impl PendingChange {
    pub(super) fn new(volume: u16, path: PathIndex, stage: ChangeStage) -> Self {
        Self {
            ticket: None,
            volume,
            path,
            stage,
            until_ns: u64::MAX,
            force: false,
            was_draining: false,
            place: None,
            kind: None,
            serial: 0,
            cores_left: 0,
            unflushed: false,
            failure: None,
        }
    }

    /// Answers the caller that asked for it, once.
    pub(super) fn answer(&mut self, result: Result<(), String>, out: &mut Outbox) {
        let Some(ticket) = self.ticket.take() else {
            return; // it was answered, or the engine itself asked
        };
        let path = (!self.stage.is_of_volume()).then_some(self.path);
        let volume = self.volume;
        let result = result.map(|()| Changed { volume, path });
        out.report(HostEvent::Changed(ticket, result));
    }

    /// All cores have forgotten its path.
    pub(super) fn free_path(&mut self, out: &mut Outbox) {
        assert!(
            self.place.is_some(),
            "a path is freed that was never forgotten"
        );
        out.report(HostEvent::Freed(self.volume, Some(self.path)));
        if let Some(kind) = self.kind.take() {
            out.report(HostEvent::Released(kind));
        }
    }

    pub(super) fn stage(&self) -> ChangeStage {
        self.stage
    }

    /// Goes on to another stage.
    ///
    /// # Panics
    /// If the stage that it has doesn't lead there.
    fn enter(&mut self, to: ChangeStage) {
        let from = self.stage;
        assert!(from.leads_to(to), "change: {from:?} → {to:?}");
        self.stage = to;
    }

    /// Whether it is of this path, not of the path's volume.
    pub(super) fn is_of(&self, volume: u16, path: PathIndex) -> bool {
        (self.volume, self.path) == (volume, path) && !self.stage.is_of_volume()
    }

    /// Whether its path is on the way out.
    pub(super) fn is_leaving(&self) -> bool {
        use ChangeStage::*;
        matches!(self.stage, Leave | Flush | CloseQueues | ShutDown | Forget)
    }

    /// Whether its path may not take acknowledged writes along: it is about to, and not by force.
    pub(super) fn minds_unflushed(&self) -> bool {
        matches!(self.stage, ChangeStage::Leave | ChangeStage::Flush) && !self.force
    }

    /// It has given an order to so many cores.
    pub(super) fn ordered(&mut self, serial: u32, cores: u16) {
        (self.serial, self.cores_left) = (serial, cores);
    }

    /// Nothing is waited for that a core does.
    pub(super) fn wait_for_no_core(&mut self) {
        self.cores_left = 0;
    }

    /// Takes note that its time is over, once; whether it is.
    fn is_late(&mut self, now_ns: u64) -> bool {
        let late = self.until_ns <= now_ns;
        if late {
            self.until_ns = u64::MAX;
        }
        late
    }

    /// Action of a change of a path that no longer has its place on this core.
    pub(super) fn next_without_path(&self) -> Next {
        match self.stage {
            ChangeStage::Forget if self.cores_left == 0 => Next::Freed,
            ChangeStage::Forget => Next::Wait,
            _ => Next::End(Err("it has left meanwhile".into())),
        }
    }

    /// Next action of a change of a path.
    pub(super) fn next_of_path(&mut self, view: &PathView<'_>, now_ns: u64) -> Next {
        let path = view.path;
        let lost = path.session.state().is_lost();
        let late = self.is_late(now_ns);
        // The core that has its mirror knows whether it leaves before that is claimed.
        let asks = lost && !self.force && view.volume.leg == LegRole::Elsewhere;
        if self.minds_unflushed() {
            let early = || (asks && self.unflushed).then(|| report::too_early(path));
            if let Some(why) = view.doubt.clone().or_else(early) {
                return Next::TakeBack(why);
            }
        }
        match self.stage {
            ChangeStage::Join => self.next_of_new(path, late),
            ChangeStage::Return => Self::next_of_returning(view, late),
            ChangeStage::Drain if self.cores_left == 0 || lost => Next::End(Ok(())),
            ChangeStage::Drain if late => Next::End(Err(format!(
                "{}: I/O is still in flight on it; it stays draining",
                path.uri
            ))),
            ChangeStage::Leave if asks && self.cores_left > 0 => Next::Wait,
            ChangeStage::Leave | ChangeStage::Flush | ChangeStage::CloseQueues if lost => {
                self.forget()
            }
            ChangeStage::Leave if self.cores_left == 0 => self.flush_or_close(view),
            ChangeStage::Leave | ChangeStage::Flush if late => self.give_up(path),
            ChangeStage::Flush => self.next_of_flush(path),
            ChangeStage::CloseQueues if self.cores_left == 0 => {
                self.enter(ChangeStage::ShutDown);
                Next::ShutDown
            }
            ChangeStage::ShutDown if path.session.is_disconnected() => self.forget(),
            ChangeStage::Forget if self.cores_left == 0 => Next::Freed,
            ChangeStage::Drain
            | ChangeStage::CloseQueues
            | ChangeStage::ShutDown
            | ChangeStage::Leave
            | ChangeStage::Forget => Next::Wait,
            ChangeStage::Open | ChangeStage::Empty | ChangeStage::ForgetVolume => {
                unreachable!("{:?} is of a volume", self.stage)
            }
        }
    }

    /// A new path is to be in use.
    fn next_of_new(&mut self, path: &Path, late: bool) -> Next {
        if path.is_over() {
            self.failure = Some(match path.session.comeback.line.as_str() {
                "" => format!("{}: not every core could open its queue", path.uri),
                line => line.to_string(),
            });
            return self.forget();
        }
        match late {
            _ if self.cores_left == 0 => Next::Use,
            true => Next::Lose("not connected in time"),
            false => Next::Wait,
        }
    }

    /// A path that was failed or drained is to be live again.
    fn next_of_returning(view: &PathView<'_>, late: bool) -> Next {
        let path = view.path;
        if path.is_live() {
            return Next::End(Ok(()));
        }
        let given_up = path.admin_state() == AdminState::GivenUp;
        let tried_ns = view.volume.recovery.ctrl_loss_ns;
        match late {
            _ if given_up => Next::End(Err(report::stays_lost(&view.volume.name, path, tried_ns))),
            true => Next::End(Err(report::not_yet(&path.session.comeback.line, tried_ns))),
            false => Next::Wait,
        }
    }

    /// All cores are drained. Any core's flush covers what the controller completed for all (T13).
    fn flush_or_close(&mut self, view: &PathView<'_>) -> Next {
        let live = view.path.is_live();
        if live && (self.unflushed || view.needs_flush) {
            self.enter(ChangeStage::Flush);
            return Next::Flush;
        }
        // One that is just coming back has not flushed what it had.
        self.enter(ChangeStage::CloseQueues);
        Next::CloseQueues(live)
    }

    fn next_of_flush(&mut self, path: &Path) -> Next {
        match path.cache.final_flush() {
            FinalFlush::Out { .. } | FinalFlush::Late { .. } => Next::Wait,
            FinalFlush::None => Next::Flush,
            FinalFlush::Ended(true) => {
                self.enter(ChangeStage::CloseQueues);
                Next::CloseQueues(true)
            }
            FinalFlush::Ended(false) => self.give_up(path),
        }
    }

    /// A path can't leave in order: it is lost, or used again.
    fn give_up(&self, path: &Path) -> Next {
        if self.force {
            return Next::Lose("removed before all of its I/O had ended");
        }
        let what = match self.stage {
            ChangeStage::Flush => "its controller didn't flush",
            _ => "its I/O didn't end in time",
        };
        let now = if self.was_draining {
            "it is draining again"
        } else {
            "it is in use again"
        };
        Next::TakeBack(format!("{}: {what}; {now}", path.uri))
    }

    /// A path is disconnected, or lost.
    fn forget(&mut self) -> Next {
        self.enter(ChangeStage::Forget);
        self.until_ns = u64::MAX;
        Next::Forget(self.result())
    }

    /// Change that a path makes when one is taken back.
    pub(super) fn before(&self) -> What {
        if self.was_draining {
            What::Drain
        } else {
            What::Use
        }
    }

    fn result(&mut self) -> Result<(), String> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Next action of a change of a volume.
    pub(super) fn next_of_volume(&mut self, view: &VolumeView<'_>, now_ns: u64) -> Next {
        // It goes on however late it is, and is not called again for that.
        let late = self.is_late(now_ns);
        match self.stage {
            ChangeStage::Open => {
                self.failure = view.why_not_open(late && self.cores_left > 0);
                if self.failure.is_some() {
                    self.enter(ChangeStage::Empty);
                    return Next::Empty;
                }
                match self.cores_left {
                    0 => Next::End(Ok(())),
                    _ => Next::Wait,
                }
            }
            ChangeStage::Empty if view.paths.is_empty() && !view.is_changing => {
                self.enter(ChangeStage::ForgetVolume);
                Next::ForgetVolume
            }
            ChangeStage::ForgetVolume if self.cores_left == 0 => Next::VolumeFreed(self.result()),
            ChangeStage::Empty | ChangeStage::ForgetVolume => Next::Wait,
            of_path => unreachable!("{of_path:?} is of a path"),
        }
    }
}

impl VolumeView<'_> {
    /// Why a new volume can't be; `late`: not every core has it, and the time is over.
    fn why_not_open(&self, late: bool) -> Option<String> {
        if let Some(refused) = self.paths.iter().find(|path| path.refused) {
            return Some(refused.session.comeback.line.clone());
        }
        let failed = |path: &&Path| path.session.comeback.tried && path.is_over();
        if self.paths.iter().all(failed) {
            let lines = self
                .paths
                .iter()
                .map(|path| path.session.comeback.line.as_str());
            let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
            return Some(if lines.is_empty() {
                "none of its paths could be connected on every core".into()
            } else {
                lines.join("; ")
            });
        }
        late.then(|| "its paths were not connected on every core in time".into())
    }
}

/// A path, by its place, or a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Changing {
    Path(usize),
    Volume(u16),
}

/// Work that this core has left for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeStep {
    /// A new path, or volume, can take I/O.
    Reach,
    /// All I/O of a path has ended.
    Drain,
    /// A path's queue's connection is over.
    CloseQueue,
    /// Nothing refers to a path, or volume.
    Forget,
}

/// The changes that core 0 leads, and the steps of this core.
#[derive(Default)]
pub(super) struct ConfigChanges {
    /// Core 0: those under way.
    pending: Vec<PendingChange>,
    /// Core 0: the last order's number.
    last_serial: u32,
    /// The answers that core 0 waits for, and by which order: a later one replaces it.
    steps: BTreeMap<Changing, (ChangeStep, u32)>,
}

impl ConfigChanges {
    /// Whether there is anything that each turn has to look after.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        !self.steps.is_empty() || !self.pending.is_empty()
    }

    /// Numbers for that many new paths, where there is `room` for so many in all.
    pub(super) fn free_places(
        &self,
        owners: &[Option<(u16, PathIndex)>],
        room: usize,
        count: usize,
    ) -> Result<Vec<u32>, String> {
        let is_used = |place: &usize| {
            let is_owned = owners.get(*place).is_some_and(Option::is_some);
            is_owned || self.pending.iter().any(|it| it.place == Some(*place))
        };
        let free = (0..room).filter(|place| !is_used(place));
        let places: Vec<u32> = free.take(count).map(|place| place as u32).collect();
        match places.len() == count {
            true => Ok(places),
            false => Err(format!(
                "there is room for {} paths in all, and {} are there; restart the engine for more",
                room,
                (0..room).filter(is_used).count()
            )),
        }
    }

    /// This core has done what it was ordered: tells core 0.
    pub(super) fn answer_order(&mut self, serial: u32, unflushed: bool, out: &mut Outbox) {
        if out.core() == 0 {
            return self.step_done(serial, unflushed);
        }
        out.tell_core_0(PathNews::Done { serial, unflushed });
    }

    pub(super) fn pending(&self) -> &[PendingChange] {
        &self.pending
    }

    pub(super) fn push(&mut self, change: PendingChange) {
        self.pending.push(change);
    }

    /// Takes out the change at `at` for as long as it takes to advance it.
    pub(super) fn take(&mut self, at: usize) -> PendingChange {
        self.pending.swap_remove(at)
    }

    /// Puts it back to where it was; what took its place meanwhile comes last.
    pub(super) fn put_back(&mut self, at: usize, change: PendingChange) {
        self.pending.push(change);
        let last = self.pending.len() - 1;
        self.pending.swap(at, last);
    }

    /// The changes of a path that are under way.
    pub(super) fn of_path(
        &self,
        volume: u16,
        path: PathIndex,
    ) -> impl Iterator<Item = &PendingChange> {
        self.pending.iter().filter(move |it| it.is_of(volume, path))
    }

    /// Whether a change of a volume or its paths is under way.
    pub(super) fn is_changing(&self, volume: u16) -> bool {
        self.pending.iter().any(|it| it.volume == volume)
    }

    /// The change of a path that must make room for its volume's end; one by which it leaves is
    /// forced instead. True: there is nothing to begin.
    pub(super) fn force_to_leave(
        &mut self,
        volume: u16,
        path: PathIndex,
    ) -> (bool, Option<PendingChange>) {
        let at = self.pending.iter().position(|it| it.is_of(volume, path));
        match at {
            Some(at) if self.pending[at].is_leaving() => {
                self.pending[at].force = true;
                (true, None)
            }
            at => (false, at.map(|at| self.pending.remove(at))),
        }
    }

    /// The number of the next order.
    pub(super) fn next_serial(&mut self) -> u32 {
        self.last_serial = self.last_serial.wrapping_add(1);
        self.last_serial
    }

    /// A core has carried out an order. One of a change that is over meanwhile, or has given
    /// another since, counts for nothing.
    pub(super) fn step_done(&mut self, serial: u32, unflushed: bool) {
        if let Some(change) = self.pending.iter_mut().find(|it| it.serial == serial) {
            assert!(change.cores_left > 0, "an order was carried out twice");
            change.cores_left -= 1;
            change.unflushed |= unflushed;
        }
    }

    /// When the patience with the first change is over.
    pub(super) fn timeout(&self) -> Option<u64> {
        let times = self.pending.iter().map(|it| it.until_ns);
        times.filter(|&at_ns| at_ns < u64::MAX).min()
    }

    /// Sets or clears what this core has yet to do.
    pub(super) fn set_step(&mut self, of: Changing, step: Option<(ChangeStep, u32)>) {
        match step {
            Some(step) => self.steps.insert(of, step),
            None => self.steps.remove(&of),
        };
    }

    pub(super) fn step(&self, of: Changing) -> Option<ChangeStep> {
        self.steps.get(&of).map(|&(step, _)| step)
    }

    /// All steps, paths first.
    pub(super) fn steps(&self) -> Vec<(Changing, ChangeStep, u32)> {
        let steps = self.steps.iter();
        steps
            .map(|(&of, &(step, serial))| (of, step, serial))
            .collect()
    }
}

#[cfg(test)]
mod tests;
