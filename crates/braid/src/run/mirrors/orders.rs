//! Orders for a mirror that runs.
//!
//! `mirror.check {"volume": "m0"}` · `mirror.repair`, with `leg`: from that one · `mirror.pause` ·
//! `mirror.resume` · `mirror.end`, of the check ·
//! `mirror.fail {"volume": "m0", "leg": 1}` · `mirror.restore` ·
//! `mirror.accept-loss` ·
//! `mirror.assemble {"volume": "m0", "without": false, "discard": "1", "accept": false}` ·
//! `mirror.speed {"volume": "m0", "floor": 1048576, "ceiling": null, "pause": false}`; see `legs`
//!
//! # Contract
//! An order is answered when the mirror's core has it, that to start when it is known what came of
//! it; that is said in lines, and `stat` shows it. A leg is meant by its name or number as `stat`
//! shows them, or by its URI.
use super::legs::{idle_leg, is_still};
use super::terms;
use crate::control::rpc::ControlError;
use crate::control::server::Caller;
use crate::run::call::{EngineCall as Call, MirrorParams};
use crate::run::config::leg_name;
use crate::run::plan::{Change, LegVerb};
use crate::run::service::{Service, State};
use crate::uri::{PathUri, UriKind};
use engine::mirror::{
    LegOrder, LegReport, LegStatus, MirrorOrder, MirrorReport, MirrorState, Pending,
    set_admin_offline,
};
use mirror::assembly::Wishes;
use serde_json::{Value, json};
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

/// How long a mirror has to start while somebody waits for it; it starts later, too.
const ASSEMBLE_WAIT: Duration = super::again::WAIT;
/// How long it may take to see what a file holds that was opened.
pub(super) const SEEN_WAIT: Duration = Duration::from_secs(5);
/// How long a verb waits until a leg that comes late was opened or left alone.
const OPENING_MAX: Duration = Duration::from_secs(5);

/// Why a mirror is not started.
pub(super) struct NotStarted {
    pub why: ControlError,
    /// It may start yet, with what the user has accepted.
    pub pending: bool,
}

impl From<ControlError> for NotStarted {
    fn from(why: ControlError) -> Self {
        let pending = false;
        Self { why, pending }
    }
}

impl State {
    /// # Errors
    /// The volume is a mirror: its legs have paths.
    pub fn has_paths(&self, volume: u16) -> Result<(), ControlError> {
        let of = &self.volumes[volume].of;
        if !of.is_mirror() {
            return Ok(());
        }
        let legs = self.volumes.legs(&of.name).into_iter();
        let legs = legs.map(|(_, leg)| leg_name(&of.name, leg));
        let legs = legs.collect::<Vec<_>>().join(", ");
        let why = format!("{} is a mirror; ask of one of its legs: {legs}", of.name);
        Err(ControlError::params(why))
    }

    /// # Errors
    /// The volume is a leg, which its mirror has alone.
    pub fn may_export(&self, volume: u16) -> Result<(), ControlError> {
        let of = &self.volumes[volume].of;
        match &of.leg_of {
            None => Ok(()),
            Some(mirror) => Err(ControlError::refused(format!(
                "{} is a leg of {mirror}, which writes to it alone; export {mirror}",
                of.name
            ))),
        }
    }

    /// Number of a mirror.
    ///
    /// # Errors
    /// There is no such volume, or it is none.
    pub fn mirror(&self, name: &str) -> Result<u16, ControlError> {
        let volume = self.volumes.number(name)?;
        match self.volumes[volume].of.is_mirror() {
            true => Ok(volume),
            false => Err(ControlError::params(format!("{name} is no mirror"))),
        }
    }
}

impl Service {
    /// The same, with legs by their URIs where they are named.
    fn by_uri(&self, params: &MirrorParams) -> MirrorParams {
        let state = self.state();
        let uri = |word: &String| {
            let mut legs = state.configured.legs(&params.volume);
            let named = legs.find(|it| it.leg() == Some(word));
            let path = named.and_then(|it| it.paths.first());
            path.map_or(word.clone(), |it| it.uri.to_string())
        };
        MirrorParams {
            leg: params.leg.as_ref().map(uri),
            discard: params.discard.as_ref().map(uri),
            ..params.clone()
        }
    }

    /// One of the methods `mirror.…`.
    pub fn order_mirror(
        &self,
        call: &Call,
        params: &MirrorParams,
        by: &Caller<'_>,
    ) -> Result<Value, ControlError> {
        let volume = self.state().mirror(&params.volume)?;
        let params = &self.by_uri(params);
        let report = self.mirror_report(volume)?;
        if writes(call) {
            self.may_write(volume, &report)?;
        }
        if let Some(why) = nothing_to_do(&report, call, params) {
            return Ok(json!({"volume": params.volume, "leg": params.leg, "nothing": why}));
        }
        if let Some(done) = self.change_mirror(volume, &report, call, params, by) {
            return done;
        }
        let runs = report.superblock.is_some();
        if runs && matches!(call, Call::MirrorCheck(_) | Call::MirrorRepair(_)) {
            terms::may_check(&params.volume, &report)?;
        }
        let mut source = None;
        let order = match call {
            Call::MirrorAssemble(_) => {
                let start = || self.start(volume, &report, params);
                self.with_name_accepted(volume, params.accept, start)?;
                return Ok(terms::answer(call, params));
            }
            _ if !runs => return Err(does_not_run(&params.volume)),
            Call::MirrorCheck(_) => MirrorOrder::Check(false),
            Call::MirrorRepair(_) if params.leg.is_some() => repair_from(leg(&report, params)?)?,
            Call::MirrorRepair(_) => {
                let (from, name) = terms::source(&params.volume, &report)?;
                source = Some(name);
                // The one that the answer names: none takes its place if it leaves meanwhile.
                of_leg(from, LegOrder::RepairFrom)?
            }
            Call::MirrorPause(_) => MirrorOrder::PauseCheck(true),
            Call::MirrorResume(_) => MirrorOrder::PauseCheck(false),
            Call::MirrorEnd(_) => MirrorOrder::EndCheck,
            other => unreachable!("{other:?} is no order"),
        };
        self.senders.order(volume, order);
        let mut answer = terms::answer(call, params);
        if let Some(source) = source {
            answer["source"] = source.into();
        }
        Ok(answer)
    }

    /// A leg is taken out until it is restored.
    ///
    /// # Errors
    /// It is the last one in sync, or the legs can't be told.
    pub fn fail_leg(
        &self,
        volume: u16,
        leg: &LegReport,
        change: &Change,
    ) -> Result<(), ControlError> {
        let report = self.mirror_report(volume)?;
        if report.superblock.is_none() {
            return Err(does_not_run(&self.name(volume)));
        }
        let slot = may_fail(&report, leg)?;
        is_still(&report, leg)?;
        self.has_room(volume, &report, |it| set_admin_offline(it, slot, true))?;
        self.senders.order(volume, of_leg(leg, LegOrder::Fail)?);
        self.wait_out(volume, slot, change)
    }

    /// A leg returns.
    ///
    /// # Errors
    /// It can't be opened, is not to be used, or the legs can't be told.
    pub fn restore_leg(
        &self,
        volume: u16,
        leg: &LegReport,
        change: &Change,
    ) -> Result<(), ControlError> {
        let report = self.mirror_report(volume)?;
        self.make_usable(volume, &report, leg)?;
        // One without a slot says itself which one it is when it is there.
        if leg.slot.is_none() {
            return Ok(());
        }
        self.senders.order(volume, of_leg(leg, LegOrder::Return)?);
        self.wait_kept(volume, change)
    }

    /// Starts a mirror; `accepts`: whatever name its legs give.
    ///
    /// # Errors
    /// It is not started, and why.
    pub(super) fn with_name_accepted(
        &self,
        volume: u16,
        accepts: bool,
        start: impl FnOnce() -> Result<(), NotStarted>,
    ) -> Result<(), ControlError> {
        let accept = |accept| self.senders.order(volume, MirrorOrder::AcceptName(accept));
        let started = if accepts {
            with_accepted(accept, start)
        } else {
            start()
        };
        started.map_err(|it| it.why)
    }

    /// A mirror starts that is to run and could not start by itself. That is an order, for the
    /// desired state is as it was.
    ///
    /// # Errors
    /// It is not started, and why.
    fn start(
        &self,
        volume: u16,
        report: &MirrorReport,
        params: &MirrorParams,
    ) -> Result<(), NotStarted> {
        if report.superblock.is_some() && params.discard.is_some() {
            let why = "runs: a leg is given up when it starts; remove it, and add it again";
            return Err(ControlError::refused(format!("{} {why}", params.volume)).into());
        }
        if report.acquiring && params.discard.is_some() {
            let why = "is just starting with what its legs said, and gives none up: wait for \
                       what comes of that (braid mirror status)";
            return Err(ControlError::refused(format!("{} {why}", params.volume)).into());
        }
        let discard = params.discard.as_deref();
        let discard = discard.map(|it| meant(&report.legs, it)).transpose()?;
        let order = MirrorOrder::Assemble(Wishes {
            without: params.without,
            discard,
        });
        self.senders.order(volume, order);
        self.assembled(volume, report.refusals)
    }

    /// Opens a leg that is to return.
    ///
    /// # Errors
    /// Its file can't be opened, or is not to be used.
    fn make_usable(
        &self,
        volume: u16,
        report: &MirrorReport,
        it: &LegReport,
    ) -> Result<(), ControlError> {
        if let Some(why) = it.why.as_ref().filter(|_| it.is_cut_and_last()) {
            let last = "it is the last leg in sync, and nothing can be restored to it";
            return Err(ControlError::refused(format!("{}: {last}: {why}", it.name)));
        }
        self.may_return(volume, report, it)?;
        self.open_again(volume, it)?;
        self.is_the_same(it)?;
        self.is_long_enough(report, it)
    }

    /// # Errors
    /// Nothing can come of it: nobody has given the leg, or the mirror is to be started first.
    fn may_return(
        &self,
        volume: u16,
        mirror: &MirrorReport,
        leg: &LegReport,
    ) -> Result<(), ControlError> {
        let name = self.name(volume);
        let runs = mirror.superblock.is_some();
        if mirror.state == MirrorState::Stopped {
            let why = format!("{name} was stopped: braid mirror assemble {name} starts it");
            return Err(ControlError::refused(why));
        }
        if !runs && leg.status != LegStatus::Missing {
            return Err(does_not_run(&name));
        }
        if leg.volume.is_some() {
            return Ok(());
        }
        let is_idle = idle_leg(&self.state(), volume, leg).is_some();
        let why = match is_idle {
            true => format!(
                "it could not be opened when {name} was started: stop {name} and start it again \
                 (braid mirror stop, braid mirror assemble)"
            ),
            false => leg.why.clone().unwrap_or_default(),
        };
        // The reason may begin with its name.
        let which = leg.slot.map(|slot| format!("leg {slot}"));
        let which = which.unwrap_or_else(|| leg.name.clone());
        Err(ControlError::refused(format!("{which}: {why}")))
    }

    /// Result of the start of a mirror, which had not been started so often before.
    ///
    /// # Errors
    /// It is not started, and why.
    fn assembled(&self, volume: u16, refusals: u64) -> Result<(), NotStarted> {
        let name = self.name(volume);
        let mut became = None;
        self.wait_for(volume, ASSEMBLE_WAIT, |it| {
            let runs = it.state == MirrorState::Running;
            became = (runs || it.refusals > refusals).then(|| it.state.clone());
            became.is_some()
        });
        match became {
            Some(MirrorState::Refused(why) | MirrorState::Failed(why)) => {
                Err(ControlError::refused(why).into())
            }
            Some(_) => Ok(()),
            None => {
                let undo = "braid mirror stop ends it";
                // A name that was accepted is taken back with the rest, or pending with it.
                let became = self.take_back(volume, Pending::Assemble, undo);
                let why = ControlError::refused(format!(
                    "{name} has not started within {} s (braid stat shows why): {became}",
                    ASSEMBLE_WAIT.as_secs()
                ));
                Err(NotStarted { why, pending: true })
            }
        }
    }

    /// Carries out more than an order; `None`: it is one.
    fn change_mirror(
        &self,
        volume: u16,
        report: &MirrorReport,
        call: &Call,
        params: &MirrorParams,
        by: &Caller<'_>,
    ) -> Option<Result<Value, ControlError>> {
        let found = || leg(report, params).cloned();
        Some(match call {
            Call::MirrorAssemble(_) if report.state == MirrorState::Stopped => {
                self.start_stopped(call, params, by)
            }
            Call::MirrorAdd(_) => self.add_leg(params, None, by),
            Call::MirrorRemove(_) => {
                found().and_then(|leg| self.remove_leg(&params.volume, &leg, by))
            }
            Call::MirrorReplace(_) => found().and_then(|leg| {
                leg.slot.ok_or_else(|| is_none(&leg))?;
                self.add_leg(params, Some(leg), by)
            }),
            Call::MirrorFail(_) | Call::MirrorRestore(_) => found().and_then(|leg| {
                let name = &params.volume;
                let (verb, _alone) = match call {
                    // Does not wait for a verb that may wait for a leg that hangs. The mirror keeps
                    // its last leg in sync, whatever the two of them do.
                    Call::MirrorFail(_) => (LegVerb::Fail, self.alone_with_mirror_now(name)),
                    _ => (LegVerb::Restore, Some(self.alone_with_mirror(name, by)?.0)),
                };
                let change = Change::Leg(params.volume.clone(), Box::new(leg), verb);
                let made = self.make(&[change], false);
                made.map(|()| terms::answer(call, params))
            }),
            Call::MirrorGrow(_) => self.grow_mirror(&params.volume, by),
            Call::MirrorStop(_) => self.stop_mirror(params, by),
            Call::MirrorAcceptLoss(_) => self
                .accept_loss(volume)
                .map(|()| terms::answer(call, params)),
            Call::MirrorSpeed(_) => self.mirror_speed(params),
            Call::MirrorStatus(_) => self.status_of_mirror(volume, &params.volume),
            _ => return None,
        })
    }

    /// Data of the last leg in sync behind the place where it was cut off is used from now on.
    ///
    /// # Errors
    /// It was not cut off, is too small still, or can't be told so.
    fn accept_loss(&self, volume: u16) -> Result<(), ControlError> {
        let report = self.mirror_report(volume)?;
        let name = self.name(volume);
        let cut = report.legs.iter().find(|leg| leg.is_cut_and_last());
        let Some((leg, slot)) = cut.and_then(|leg| Some((leg, leg.slot?))) else {
            return Err(ControlError::refused(format!(
                "{name}: no leg was cut off while it was the last one in sync: there is nothing \
                 to accept"
            )));
        };
        // Before the file is taken as it is: an order that is refused changes nothing.
        terms::may_be_noted(&name, &report, None)?;
        self.is_long_enough(&report, leg)?;
        self.senders
            .order(volume, of_leg(leg, LegOrder::AcceptCut)?);
        let (mut accepted, mut pending) = (false, true);
        // Its core has the order before it is asked.
        self.wait_for(volume, SEEN_WAIT, |it| {
            let leg = it.legs.iter().find(|leg| leg.slot == Some(slot));
            let facts = leg.and_then(|leg| leg.facts);
            accepted = it.state == MirrorState::Running && facts.is_some_and(|it| !it.cut_short);
            pending = facts.is_some_and(|it| it.accepting);
            accepted || !pending
        });
        if accepted {
            return Ok(());
        }
        let why = if pending {
            "it is not on the leg yet that the loss is accepted: that is being written, takes \
             effect when the leg answers, and can't be taken back; it comes to nothing if the leg \
             loses data again before that. I/O there fails until then (braid mirror status shows \
             it)"
        } else {
            "the loss is not accepted, and nothing is pending: the leg is losing data just now (a \
             sanitize operation is under way, or it became smaller again), or another one is in \
             sync by now. Ask again when that is over (braid mirror status shows it)"
        };
        Err(ControlError::refused(format!("{name}: leg {slot}: {why}")))
    }

    /// The mirror that the legs of `volume` are of is taken under this name.
    ///
    /// # Errors
    /// Its legs are of no other one, or it does not start.
    pub fn accept_name(&self, volume: u16) -> Result<(), ControlError> {
        let report = self.mirror_report(volume)?;
        if report.other_name.is_none() {
            return Err(ControlError::refused(format!(
                "{}: its legs are of no other mirror than it was: there is nothing to accept",
                self.name(volume)
            )));
        }
        self.with_name_accepted(volume, true, || self.assembled(volume, report.refusals))
    }

    /// The mirrors among these volumes are taken whatever name their legs give.
    pub fn accept_names(&self, names: &[String]) {
        for name in names {
            let number = self.state().mirror(name);
            if let Ok(volume) = number {
                self.senders.order(volume, MirrorOrder::AcceptName(true));
            }
        }
    }

    pub(in crate::run) fn mirror_report(&self, volume: u16) -> Result<MirrorReport, ControlError> {
        let cores = self.senders.report();
        let cores = cores.map_err(|error| ControlError::refused(format!("{error:#}")))?;
        let mut found = cores
            .into_iter()
            .filter_map(|mut it| it.mirrors.remove(&volume));
        let found = found.next();
        found.ok_or_else(|| ControlError::refused("it is not known yet; try again"))
    }

    /// A leg whose file was not there at the start, and is now.
    ///
    /// # Errors
    /// It can't be opened, or is none.
    fn open_again(&self, volume: u16, leg: &LegReport) -> Result<(), ControlError> {
        if is_another(leg) {
            return Err(is_none(leg));
        }
        self.open_missing(leg)?;
        let known = |it: &LegReport| {
            let same = it.volume == leg.volume && it.volume.is_some();
            same && (it.slot.is_some() && it.status != LegStatus::Missing || is_another(it))
        };
        let mut found = None;
        if leg.status == LegStatus::Missing && leg.volume.is_some() {
            self.wait_for(volume, SEEN_WAIT, |it| {
                found = it.legs.iter().find(|it| known(it)).cloned();
                found.is_some()
            });
        }
        match found.filter(is_another) {
            Some(it) => Err(is_none(&it)),
            None => Ok(()),
        }
    }

    /// The file at the path of a leg's file is still the one that is open: another one has none of
    /// its data, and what is written to one that has no name is lost.
    ///
    /// # Errors
    /// It is another one, or none is there.
    pub(super) fn is_the_same(&self, leg: &LegReport) -> Result<(), ControlError> {
        let Some(volume) = leg.volume.filter(|_| leg.facts.is_some()) else {
            return Ok(());
        };
        let paths = self.paths_of(volume);
        for keys in paths.iter().flatten() {
            if let UriKind::File(path) = keys.uri.kind()
                && !is_open(path)
            {
                let gone = "the file there is not the one that is open, which was removed";
                return Err(ControlError::refused(format!(
                    "{}: {gone}: remove the leg, and add it again",
                    leg.name
                )));
            }
        }
        Ok(())
    }

    /// The file of a leg that was cut short is as long again, and is used from now on as it is.
    ///
    /// # Errors
    /// It is too short still.
    fn is_long_enough(&self, mirror: &MirrorReport, leg: &LegReport) -> Result<(), ControlError> {
        let (Some(volume), Some(said)) = (leg.volume, mirror.superblock) else {
            return Ok(());
        };
        if leg.small {
            let why = leg.why.clone().unwrap_or_default();
            return Err(ControlError::refused(format!("{}: {why}", leg.name)));
        }
        let was_cut = leg.cut_short || leg.is_cut_and_last();
        let Some(paths) = self.paths_of(volume).filter(|_| was_cut) else {
            return Ok(());
        };
        let needs = said.place.data_offset + said.geometry.bytes;
        for file in paths.iter().filter_map(|keys| self.ends.file(&keys.uri)) {
            let bytes = file.path().metadata().map_or(0, |it| it.len());
            if bytes < needs {
                return Err(ControlError::refused(format!(
                    "{}: its file was cut short and has {bytes} bytes, and the mirror needs \
                     {needs}: truncate -s {needs} {}, or replace the leg",
                    leg.name,
                    file.path().display()
                )));
            }
            let taken = file.take_as_it_is();
            taken.map_err(|error| ControlError::refused(format!("{}: {error}", leg.name)))?;
        }
        Ok(())
    }

    fn open_missing(&self, leg: &LegReport) -> Result<(), ControlError> {
        let Some(volume) = leg.volume.filter(|_| leg.status == LegStatus::Missing) else {
            return Ok(());
        };
        if !self.state().volumes.has(volume) {
            let why = "it was removed or replaced meanwhile";
            return Err(ControlError::refused(format!("{}: {why}", leg.name)));
        }
        let made = self.open_absent(volume, OPENING_MAX);
        made.map_err(|why| ControlError::refused(format!("{}: {why}", leg.name)))
    }
}

/// A start for which something is accepted: not by one that comes after it has failed.
fn with_accepted(
    accept: impl Fn(bool),
    start: impl FnOnce() -> Result<(), NotStarted>,
) -> Result<(), NotStarted> {
    accept(true);
    let started = start();
    if started.as_ref().is_err_and(|it| !it.pending) {
        accept(false);
    }
    started
}

fn does_not_run(name: &str) -> ControlError {
    ControlError::refused(format!("{name} does not run: braid stat says why"))
}

/// Whether it is not asked of a mirror that can only be read.
fn writes(call: &Call) -> bool {
    matches!(
        call,
        Call::MirrorCheck(_)
            | Call::MirrorRepair(_)
            | Call::MirrorFail(_)
            | Call::MirrorRestore(_)
            | Call::MirrorAdd(_)
            | Call::MirrorRemove(_)
            | Call::MirrorReplace(_)
            | Call::MirrorGrow(_)
            | Call::MirrorAcceptLoss(_)
    )
}

/// An order about a leg, which names it by its identifier: its slot may be another leg's when the
/// order reaches the mirror's core.
///
/// # Errors
/// It is none of the mirror's legs.
pub(super) fn of_leg(leg: &LegReport, order: LegOrder) -> Result<MirrorOrder, ControlError> {
    let id = leg.id.ok_or_else(|| is_none(leg))?;
    Ok(MirrorOrder::Leg(id, order))
}

/// The leg that a repair goes by.
fn repair_from(leg: &LegReport) -> Result<MirrorOrder, ControlError> {
    match leg.status {
        LegStatus::InSync => of_leg(leg, LegOrder::RepairFrom),
        _ => Err(ControlError::refused(format!(
            "{} is not in sync: what it has is no copy for the others",
            leg.name
        ))),
    }
}

/// Why nothing comes of a verb.
fn nothing_to_do(
    report: &MirrorReport,
    call: &Call,
    params: &MirrorParams,
) -> Option<&'static str> {
    let running = report.state == MirrorState::Running;
    let checks = report.checking.is_some();
    match call {
        Call::MirrorPause(_) | Call::MirrorResume(_) | Call::MirrorEnd(_) if running && !checks => {
            Some("there is no check")
        }
        Call::MirrorAssemble(_) if running && params.discard.is_none() => Some("it runs"),
        Call::MirrorFail(_) if running => {
            let out = leg(report, params).is_ok_and(|leg| leg.admin_offline);
            (out && report.kept).then_some("the leg is taken out already")
        }
        Call::MirrorRestore(_) if running => {
            let leg = leg(report, params).ok()?;
            let well = leg.serves() && !leg.cut_short;
            well.then_some("the leg is in sync")
        }
        _ => None,
    }
}

/// Whether this process has the file open that is at `path` now: by device and inode, or of a
/// block device, which may have several nodes, by its number. A leg that can't be looked at counts
/// as open.
fn is_open(path: &Path) -> bool {
    let is = |it: Metadata| match it.file_type().is_block_device() {
        true => (true, 0, it.rdev()),
        false => (false, it.dev(), it.ino()),
    };
    let Ok(wanted) = std::fs::metadata(path).map(is) else {
        return false;
    };
    let Ok(all) = std::fs::read_dir("/proc/self/fd") else {
        return true;
    };
    let mut all = all.filter_map(|it| std::fs::metadata(it.ok()?.path()).ok());
    all.any(|it| is(it) == wanted)
}

/// The leg that is meant.
///
/// # Errors
/// There is none, or it can't be told which one.
fn leg<'a>(report: &'a MirrorReport, params: &MirrorParams) -> Result<&'a LegReport, ControlError> {
    let wanted = params.leg.as_deref().unwrap_or_default();
    Ok(&report.legs[meant(&report.legs, wanted)?])
}

/// The place among the legs of the one that is meant: by its number, by a URI of one that is
/// configured, or by that of one that is not.
///
/// # Errors
/// There is none, or it can't be told which one.
pub(in crate::run) fn meant(legs: &[LegReport], wanted: &str) -> Result<usize, ControlError> {
    let slot = wanted.parse::<u8>().ok();
    let uri = wanted.parse::<PathUri>().map(|uri| uri.to_string());
    let uri = uri.as_deref().unwrap_or(wanted);
    let is_called = |leg: &LegReport| leg.is_called(wanted) || leg.is_called(uri);
    let places = |is: &dyn Fn(&LegReport) -> bool| {
        let legs = (0..).zip(legs);
        let found = legs.filter(|(_, leg)| is(leg)).map(|it| it.0);
        found.collect::<Vec<usize>>()
    };
    let by_number = places(&|leg| slot.is_some() && leg.slot == slot);
    let given = places(&|leg| leg.volume.is_some() && is_called(leg));
    let known = places(&|leg| leg.volume.is_none() && is_called(leg));
    let found = [&by_number, &given, &known];
    match found
        .into_iter()
        .find(|it| !it.is_empty())
        .map(|it| &it[..])
    {
        None => Err(unknown(legs, wanted)),
        Some([only]) => Ok(*only),
        Some(_) if !by_number.is_empty() => Err(ControlError::params(format!(
            "several say that they are leg {wanted}: name it by its URI"
        ))),
        Some(_) => Err(ControlError::params(format!(
            "several legs are called \"{wanted}\": name the one that is meant by its number"
        ))),
    }
}

fn unknown(legs: &[LegReport], wanted: &str) -> ControlError {
    let legs = legs.iter().map(|leg| match leg.slot {
        Some(slot) => format!("{slot} ({})", leg.name),
        None => leg.name.clone(),
    });
    let legs = legs.collect::<Vec<_>>().join(", ");
    ControlError::params(format!("there is no leg \"{wanted}\", only {legs}"))
}

/// Its slot, where another one is left to go on with (T45).
pub(super) fn may_fail(report: &MirrorReport, leg: &LegReport) -> Result<u8, ControlError> {
    let mut others = report.legs.iter().filter(|it| it.slot != leg.slot);
    let last = leg.status == LegStatus::InSync && !others.any(LegReport::serves);
    match leg.slot {
        Some(_) if last => Err(ControlError::refused(format!(
            "{} is the last leg in sync",
            leg.name
        ))),
        Some(slot) => match leg.may_leave() {
            Ok(()) => Ok(slot),
            Err(why) => Err(ControlError::refused(why)),
        },
        None => Err(is_none(leg)),
    }
}

/// Whether it was given as a leg and is none, as is known by now.
pub(super) fn is_another(leg: &LegReport) -> bool {
    leg.status == LegStatus::Unusable && leg.slot.is_none() && leg.why.is_some()
}

/// Error for a volume that was given as a leg, and is none.
fn is_none(leg: &LegReport) -> ControlError {
    let why = match &leg.why {
        Some(why) => format!(" ({why})"),
        None => String::new(),
    };
    ControlError::refused(format!(
        "{} is no leg of it{why}: braid mirror replace puts it in the place of one, braid mirror \
         add makes it another one",
        leg.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn accepted_name_ends_where_nothing_is_pending() {
        let refused = |pending| {
            let why = ControlError::refused("it does not start");
            Err(NotStarted { why, pending })
        };
        for (start, orders) in [
            (Ok(()), &[true][..]),
            (refused(true), &[true]),
            (refused(false), &[true, false]),
        ] {
            let ordered = RefCell::new(Vec::new());
            let is_ok = start.is_ok();
            let started = with_accepted(|it| ordered.borrow_mut().push(it), || start);
            assert_eq!(
                (&ordered.into_inner()[..], started.is_ok()),
                (orders, is_ok)
            );
        }
    }
}
