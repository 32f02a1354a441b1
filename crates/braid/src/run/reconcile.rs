//! Carries out changes one after the other, and takes them back.
//!
//! # Contract
//! The caller has the volumes of the changes to itself ([`locks`](super::locks)). A step is done
//! when [`Reconciler::step`] returns, or nothing of it is; one that the engine makes after that is
//! taken back by itself (T55). An export that was added listens, and takes clients once the caller
//! lets it ([`Reconciler::take_bound`]); those of a verb do when it is done.
use super::config::Export;
use super::desired::{Desired, DesiredVolume, MirrorSettings, PathSpec};
use super::entries::AdminState;
use super::exports::{self, BoundExport};
use super::late::{JOIN_MORE_NS, JOIN_NS};
use super::locks::Alone;
use super::mirrors::Dropped;
use super::nvme_exports::{HostPort, NvmeChange};
use super::paths::HAS_LEFT;
use super::plan::{ActualVolume, Change, LegVerb, Presence, plan};
use super::reload;
use super::service::{Service, State};
use crate::control::rpc::ControlError;
use crate::control::server::Caller;
use crate::ends::End;
use policy::PathIndex;
use std::collections::BTreeMap;
use sys::freeze;

/// Changes under way.
pub struct Reconciler<'a> {
    service: &'a Service,
    /// Desired state of the volumes that it opens.
    desired: Desired,
    /// Numbers of volumes that were opened, which are not there yet.
    opened: BTreeMap<String, u16>,
    /// Exports that listen, by the names of their volumes.
    bound: Vec<(String, BoundExport)>,
    /// Addresses of exports over NVMe/TCP that listen.
    host_ports: Vec<HostPort>,
    /// Destinations of absent paths that join, by URI.
    pub ends: BTreeMap<String, End>,
    /// Steps that were done, to be taken back.
    done: Vec<Done>,
}

/// A step that was done.
struct Done {
    change: Change,
    /// Of a path that has left.
    seat: Option<Seat>,
    /// Of a leg that leaves.
    dropped: Option<Dropped>,
    /// It was not made in time.
    goes_on: bool,
}

fn of_leg<T>(made: Result<T, ControlError>) -> Result<T, String> {
    made.map_err(|error| error.to_string())
}

/// An export of the volume of this name listens.
fn bound(name: &str, export: &Export) -> Result<(String, BoundExport), String> {
    let bound = BoundExport::bind(export).map_err(|error| format!("{error:#}"))?;
    Ok((name.to_owned(), bound))
}

/// Number and place of a path that comes back.
#[derive(Clone, Copy)]
struct Seat {
    number: PathIndex,
    /// Among those that are shown.
    place: usize,
}

impl<'a> Reconciler<'a> {
    /// Nothing is done yet.
    pub fn new(service: &'a Service, desired: Desired) -> Self {
        Self {
            service,
            desired,
            opened: BTreeMap::new(),
            bound: Vec::new(),
            host_ports: Vec::new(),
            ends: BTreeMap::new(),
            done: Vec::new(),
        }
    }

    /// For changes that open no volume.
    pub fn of_verb(service: &'a Service) -> Self {
        Self::new(service, Desired::default())
    }

    /// Carries out a change that can fail. `force`: also what leaves a volume without a path.
    ///
    /// # Errors
    /// Why nothing of it was; or why it goes on ([`Changes::goes_on`](super::pending::Changes)):
    /// then it is taken back like one that was done.
    pub fn step(&mut self, mut change: Change, force: bool) -> Result<(), String> {
        if let Change::RemoveLeg(_, leg) = &mut change
            && let Some(file) = self.service.state().configured.volume(&leg.of.name)
        {
            // It would come back so, and what was chosen of it hold again.
            leg.of = file.clone();
        }
        let seat = self.seat(&change);
        // Before it leaves: afterwards it is not known what is in its place.
        let dropped = match &change {
            Change::RemoveLeg(name, leg) => {
                Some(of_leg(self.service.dropped(self.number(name)?, &leg.of))?)
            }
            _ => None,
        };
        let made = self.make(&change, force, None);
        let goes_on = made.is_err() && self.goes_on(&change, dropped.as_ref());
        if made.is_ok() || goes_on {
            self.done.push(Done {
                change,
                seat,
                dropped,
                goes_on,
            });
        }
        made
    }

    /// Whether a change that failed takes effect later: a path goes on, a leg that comes or leaves
    /// is being written to the others, or a mirror waits for its legs to start or to end.
    fn goes_on(&self, change: &Change, dropped: Option<&Dropped>) -> bool {
        match change {
            Change::RemoveLeg(name, _) => match (self.number(name), dropped) {
                (Ok(number), Some(Dropped::Leg { leg, .. })) => {
                    self.service.is_leaving(number, leg)
                }
                _ => false,
            },
            Change::AddLeg(_, leg) => {
                let state = self.service.state();
                state
                    .volumes
                    .iter()
                    .any(|(_, it)| it.of.name == leg.of.name)
            }
            Change::StartMirror(name, ..) => !self.service.state().is_stopped(name),
            Change::StopMirror(name, ..) => self.service.state().is_stopped(name),
            _ => self.service.changes.goes_on(change),
        }
    }

    /// Takes back what was done.
    ///
    /// # Errors
    /// What could not be; the rest was.
    pub fn undo(&mut self) -> Result<(), String> {
        let mut whys = Vec::new();
        for done in std::mem::take(&mut self.done).iter().rev() {
            whys.extend(self.take_back(done).err());
        }
        match whys.is_empty() {
            true => Ok(()),
            false => Err(whys.join("; ")),
        }
    }

    /// Takes a step back.
    fn take_back(&mut self, done: &Done) -> Result<(), String> {
        let change = &done.change;
        // Data of others are not written over, though a change is taken back.
        let force = match (change, &done.dropped) {
            (Change::RemoveLeg(_, leg), Some(Dropped::Place(_))) => {
                self.service.return_place(&leg.of);
                return Ok(());
            }
            (Change::RemoveLeg(name, _), Some(Dropped::Leg { leg, is_ours })) => {
                let number = self.number(name)?;
                let left = match done.goes_on {
                    true => of_leg(self.service.wait_left(number, leg))?,
                    false => Some(true),
                };
                let Some(stays_ours) = left else {
                    return Ok(()); // its removal was given up
                };
                *is_ours && stays_ours
            }
            _ => true,
        };
        let undo = change
            .undo()
            .ok_or_else(|| format!("{change}: it was done"))?;
        self.make(&undo, force, done.seat)?;
        if let Change::SetExport(name, before, _) = change {
            // Clients that only the rules taken back admitted do not stay.
            let number = self.number(name)?;
            let state = self.service.state();
            if let Some(at) = state.export_at(number, &before.nbd) {
                self.service.dismiss_clients(&state, at);
            }
        }
        Ok(())
    }

    /// Carries out the changes of a verb, and takes all back where one fails; reasons why some of
    /// them are not in force yet, and go on.
    ///
    /// # Errors
    /// Why all is as before; or what of it could not be taken back.
    pub fn carry_out(&mut self, plan: &[Change], force: bool) -> Result<Vec<String>, String> {
        let mut waits = Vec::new();
        for change in plan {
            let before = self.done.len();
            match self.step(change.clone(), force) {
                Ok(()) => {}
                Err(why) if self.done.len() > before => waits.push(why),
                Err(why) => return Err(self.undone(why)),
            }
        }
        Ok(waits)
    }

    /// Takes back what was done since something failed, for this reason; which it returns.
    pub fn undone(&mut self, why: String) -> String {
        match self.undo() {
            Ok(()) => why,
            Err(undo) => format!("{why}; and not all could be taken back: {undo}"),
        }
    }

    /// Exports that were added take clients.
    ///
    /// # Errors
    /// Why all is as before.
    fn listen(&mut self) -> Result<(), String> {
        let bound = self.take_bound();
        let begun = {
            let mut state = self.service.state();
            // One of them may be a stopped mirror's by now, which listens nowhere.
            let mut addresses = bound.iter();
            addresses
                .try_for_each(|(volume, it)| state.ensure_address(*volume, &it.export.nbd))
                .map_err(anyhow::Error::msg)
                .and_then(|()| self.service.begin_exports(&mut state, bound, Vec::new()))
        };
        begun
            .map(drop)
            .map_err(|error| self.undone(format!("{error:#}")))
    }

    /// Exports that listen, by the numbers of their volumes; their clients wait to be accepted.
    pub fn take_bound(&mut self) -> Vec<(u16, BoundExport)> {
        let bound = std::mem::take(&mut self.bound);
        let number = |name: &str| match self.opened.get(name) {
            Some(number) => *number,
            None => match self.service.state().volumes.number(name) {
                Ok(number) => number,
                Err(_) => unreachable!("{name} is nobody else's, and has left"),
            },
        };
        let of = bound.into_iter();
        of.map(|(name, bound)| (number(&name), bound)).collect()
    }

    /// Addresses of exports over NVMe/TCP that listen, and take no host yet.
    pub fn take_host_ports(&mut self) -> Vec<HostPort> {
        std::mem::take(&mut self.host_ports)
    }

    /// `seat`: what a path that comes back had.
    fn make(&mut self, change: &Change, force: bool, seat: Option<Seat>) -> Result<(), String> {
        freeze::step("before", change);
        let service = self.service;
        match change {
            Change::OpenVolume(name) => {
                let Some(of) = self.desired.volume(name) else {
                    unreachable!("{name} is opened and not wanted");
                };
                let number = if of.of.is_mirror() {
                    service.open_mirror(&of.of, &self.desired.legs(name))?
                } else {
                    let _opening = service.changes.opening();
                    service.open_volume(&of.of)?
                };
                self.opened.insert(name.clone(), number);
            }
            Change::CloseVolume(name) => {
                let Some(number) = self.opened.remove(name) else {
                    unreachable!("{name} was not opened");
                };
                service.take_back_volume(service.state(), number);
            }
            Change::AddPath(name, path) => self.add_path(name, path, seat)?,
            Change::RemovePath(name, path) => {
                let (number, index) = self.find(name, path)?;
                service.remove_path(number, index, force)?;
            }
            Change::JoinPath(name, path) => {
                let (number, index) = self.find(name, &path.clone().into())?;
                let Some(end) = self.ends.get(&path.uri.to_string()) else {
                    unreachable!("{change}: it was opened before");
                };
                let wait_ns = match self.done.is_empty() {
                    true => JOIN_NS,
                    false => JOIN_MORE_NS,
                };
                service.join_path(number, index, end, wait_ns)?;
            }
            Change::PartPath(name, path) => {
                let (number, index) = self.find(name, &path.clone().into())?;
                service.part_path(number, index)?;
            }
            Change::ForgetPath(name, path) => {
                let (number, index) = self.find(name, &path.clone().into())?;
                service.remove_path(number, index, force)?;
            }
            Change::SetAdmin(name, path, _) => {
                let (number, index) = self.find(name, path)?;
                service.set_admin(number, index, path.admin, force)?;
            }
            Change::AddLeg(name, leg) => {
                let number = self.number(name)?;
                of_leg(service.make_leg(number, &leg.of, force, None))?;
                self.set_admin_of(leg)?;
            }
            Change::Leg(name, leg, verb) => {
                let number = self.number(name)?;
                of_leg(match verb {
                    LegVerb::Fail => service.fail_leg(number, leg, change),
                    LegVerb::Restore => service.restore_leg(number, leg, change),
                    LegVerb::Replace(by) => service.make_leg(number, &by.of, force, Some(leg)),
                    LegVerb::Forget => service.unmake_leg(number, leg),
                })?;
            }
            Change::RemoveLeg(name, leg) => {
                let number = self.number(name)?;
                let dropped = of_leg(service.dropped(number, &leg.of))?;
                of_leg(service.drop_leg(number, &dropped))?;
            }
            Change::SetMirror(name, _, setting) => {
                of_leg(service.set_mirror(self.number(name)?, setting, change))?;
            }
            Change::StartMirror(name, how, _, exports) => {
                let number = self.number(name)?;
                // First: a mirror whose exports can't listen stays stopped, and keeps them.
                let bound = exports.iter().map(|it| bound(name, it));
                let bound = bound.collect::<Result<Vec<_>, String>>()?;
                let started = of_leg(service.start_mirror(number, how));
                // Their clients wait with one that starts later.
                if !service.state().is_stopped(name) {
                    self.bound.extend(bound);
                }
                started?;
            }
            Change::StopMirror(name, _, exports) => {
                self.bound.retain(|it| it.0 != *name);
                of_leg(service.end_mirror(self.number(name)?, exports, force))?;
            }
            Change::AddExport(name, _)
            | Change::RemoveExport(name, _)
            | Change::SetExport(name, ..) => self.make_export(name, change)?,
            Change::Nvme(_, NvmeChange::Listen(address, _)) => {
                let port = HostPort::bind(*address).map_err(|error| format!("{error:#}"))?;
                self.host_ports.push(port);
            }
            Change::Nvme(_, NvmeChange::Unlisten(address, _)) => {
                self.host_ports.retain(|it| it.address() != *address);
            }
            Change::Nvme(..)
            | Change::MoveExport(..)
            | Change::Rename(..)
            | Change::SetPolicy(..)
            | Change::SetPath(..)
            | Change::SetKeys(..) => unreachable!("{change}: it can't fail"),
        }
        Ok(())
    }

    /// An export comes, goes or changes.
    fn make_export(&mut self, name: &str, change: &Change) -> Result<(), String> {
        let service = self.service;
        match change {
            // Nothing listens, and the mirror's exports are kept with its desired state.
            Change::AddExport(..) | Change::SetExport(..) if service.state().is_stopped(name) => {}
            Change::AddExport(_, export) => self.bound.push(bound(name, export)?),
            Change::RemoveExport(_, export) => {
                let is_it = |it: &(String, BoundExport)| it.0 == name && it.1.export == *export;
                let before = self.bound.len();
                self.bound.retain(|it| !is_it(it));
                let number = self.number(name);
                let mut state = service.state();
                let at = number.map(|it| state.export_at(it, &export.nbd));
                if let (Ok(Some(at)), true) = (at, self.bound.len() == before) {
                    service.remove_export(&mut state, at);
                }
            }
            Change::SetExport(_, before, after) => {
                let number = self.number(name)?;
                let guard = after.admission.guard();
                let guard = guard.map_err(|error| format!("{error:#}"))?;
                let mut state = service.state();
                let at = state.export_at(number, &before.nbd);
                let at = at.ok_or_else(|| format!("{} was removed meanwhile", before.nbd))?;
                let changed = exports::change(&mut state, at, after.clone(), guard);
                changed.map_err(|error| format!("{error:#}"))?;
            }
            _ => unreachable!("{change}: it is about no export"),
        }
        Ok(())
    }

    /// A path joins, and is what it is to be.
    fn add_path(&self, name: &str, path: &PathSpec, seat: Option<Seat>) -> Result<(), String> {
        let service = self.service;
        let number = self.number(name)?;
        let wanted = seat.map(|it| it.number);
        let index = service.add_path(number, path, wanted)?;
        if let Some(seat) = seat
            && let Some(it) = service.state().volumes.get_mut(number)
        {
            it.set_place(index, seat.place);
        }
        service.put_aside_path(number, index);
        Ok(())
    }

    /// Place of a path that is about to leave.
    fn seat(&self, change: &Change) -> Option<Seat> {
        let Change::RemovePath(name, path) = change else {
            return None;
        };
        let state = self.service.state();
        let number = state.volumes.number(name).ok()?;
        let mut all = (0..).zip(state.volumes[number].entries().iter());
        let found = all.find(|(_, it)| it.config().uri == path.config.uri);
        found.map(|(place, it)| Seat {
            number: it.index(),
            place,
        })
    }

    /// Paths of a volume that has come back are set aside as they were.
    fn set_admin_of(&self, of: &DesiredVolume) -> Result<(), String> {
        let aside = of.paths.iter().filter(|it| it.admin != AdminState::Enabled);
        for path in aside {
            let (number, index) = self.find(&of.of.name, path)?;
            self.service.set_admin(number, index, path.admin, true)?;
        }
        Ok(())
    }

    /// Numbers of a volume that is there and of its path.
    fn find(&self, name: &str, path: &PathSpec) -> Result<(u16, PathIndex), String> {
        let number = self.number(name)?;
        let state = self.service.state();
        let uri = &path.config.uri;
        let it = state.volumes.get(number);
        let it = it.and_then(|it| it.entries().of_uri(uri));
        let it = it.ok_or_else(|| format!("{uri} has left meanwhile"))?;
        Ok((number, it.index()))
    }

    fn number(&self, name: &str) -> Result<u16, String> {
        let there = self.service.state().volumes.number(name);
        there.map_err(|error| error.to_string())
    }
}

impl Service {
    /// Carries out the changes of a verb, which has their volumes to itself.
    ///
    /// # Errors
    /// Why all is as before, or not so yet.
    pub fn make(&self, plan: &[Change], force: bool) -> Result<(), ControlError> {
        let mut steps = Reconciler::of_verb(self);
        let waits = steps.carry_out(plan, force);
        match waits
            .and_then(|waits| steps.listen().map(|()| waits))
            .map(|waits| waits.join("; "))
        {
            Ok(waits) if waits.is_empty() => Ok(()),
            Ok(why) | Err(why) => Err(ControlError::refused(why)),
        }
    }

    /// The number of a verb's volume, which this verb has to itself as long as the first result is
    /// there.
    ///
    /// # Errors
    /// There is no such volume; the caller has gone, and does not wait any more.
    pub fn alone_with(
        &self,
        name: &str,
        by: &Caller<'_>,
    ) -> Result<(Alone<'_>, u16), ControlError> {
        let alone = self.changes.alone_with_all(&[name.to_owned()], by)?;
        let number = self.state().volumes.number(name)?;
        Ok((alone, number))
    }

    /// Makes a volume what a verb says, which has it to itself: `edit` changes its paths and
    /// exports, and whether it runs.
    ///
    /// # Errors
    /// As of [`Self::make`].
    pub fn edit(
        &self,
        volume: u16,
        force: bool,
        edit: impl FnOnce(&mut DesiredVolume) -> Result<(), String>,
    ) -> Result<(), ControlError> {
        let (plan, exports) = {
            let state = self.state();
            if state.volumes.get(volume).is_none() {
                return Err(ControlError::refused(HAS_LEFT));
            }
            let mut it = DesiredVolume::new(&state, volume);
            edit(&mut it).map_err(ControlError::refused)?;
            let exports = it.of.exports.clone();
            (changes(&state, &Desired { volumes: vec![it] }), exports)
        };
        self.make(&plan, force)?;
        let kept = self.state().keep_exports(volume, exports);
        kept.map_err(ControlError::refused)
    }

    /// Changes values of a volume by verb: they are kept first, then in force.
    ///
    /// # Errors
    /// There is no such volume, `edit` refuses, or they can't be kept.
    pub fn choose(
        &self,
        name: &str,
        edit: impl Fn(&mut DesiredVolume) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        let mut choices = self.choices();
        let edited = |state: &State| {
            let number = state.volumes.number(name)?;
            let mut it = DesiredVolume::new(state, number);
            edit(&mut it).map(|()| it)
        };
        let (file, now) = {
            let state = self.state();
            (state.configured.volume(name).cloned(), edited(&state)?)
        };
        // One that is there is in the configuration.
        if let Some(file) = file {
            let kept = choices.keep(&file, &now);
            kept.map_err(|error| ControlError::refused(format!("not changed: {error:#}")))?;
        }
        let mut state = self.state();
        // Anew: its paths may be others by now.
        let volumes = vec![edited(&state)?];
        self.set_values(&mut state, Desired { volumes });
        Ok(())
    }

    /// Makes changes of values, which can't fail; in words.
    pub fn set_values(&self, state: &mut State, desired: Desired) -> Vec<String> {
        let plan = changes(state, &desired).into_iter();
        let set = plan.filter_map(|change| reload::set(self, state, &change, &desired));
        let mut said: Vec<String> = set.collect();
        for it in desired.volumes {
            if let Ok(number) = state.volumes.number(&it.of.name) {
                let running = &mut state.volumes[number];
                running.set_awaited(it.awaited);
                said.extend(running.configure(it.of));
            }
        }
        said
    }
}

/// The changes that make the volumes of `desired` what they are to be, but for settings of mirrors.
pub fn changes(state: &State, desired: &Desired) -> Vec<Change> {
    changes_of_mirror(state, desired, None)
}

/// All of them, of at most one mirror, whose settings now are these.
pub fn changes_of_mirror(
    state: &State,
    desired: &Desired,
    settings: Option<MirrorSettings>,
) -> Vec<Change> {
    let mut actual = ActualVolume::all(state, |_, _| Presence::Live);
    actual.retain(|it| desired.volume(&it.now.of.name).is_some());
    let mirror = actual.iter_mut().find(|it| it.now.of.is_mirror());
    mirror
        .into_iter()
        .for_each(|it| it.now.settings = settings.clone());
    plan(desired, &actual)
}
