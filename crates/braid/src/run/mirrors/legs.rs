//! Legs that are added to a mirror that runs, removed or replaced, and the end of a mirror while
//! the engine goes on.
//!
//! `mirror.add {"volume": "m0", "leg": "file:/…", "force": false}` · `mirror.remove` ·
//! `mirror.replace {"volume": "m0", "leg": 1, "by": "file:/…", "force": false}` ·
//! `mirror.stop {"volume": "m0", "force": false}` · `mirror.status {"volume": "m0"}` ·
//! `mirror.grow {"volume": "m0"}`
//!
//! # Contract
//! A leg becomes a volume of the engine as at the start, and is the mirror's when the engine says
//! so; it is rebuilt after that is answered. Its content is looked at first: nothing is written
//! over without `force`. The configuration file is the user's: who adds or removes a leg does so
//! there too, or the next engine lacks it, or waits for it.
//!
//! # Limits
//! Whether somebody uses a namespace otherwise than as a leg can't be told. The data that a
//! kernel's namespace or one of a queue server holds is not looked at: `force` says that it is
//! known.
use super::configured::is_taken;
use super::{leg_config, orders, storage_of, terms};
use crate::control::rpc::ControlError;
use crate::control::server::Caller;
use crate::log;
use crate::mirror::create::{self, Room};
use crate::mirror::leg::{Access, Leg, LegFile, draw_id};
use crate::mirror::same::Storage;
use crate::run::call::MirrorParams;
use crate::run::config::{Export, PathKeys, Volume, leg_name};
use crate::run::desired::{DesiredVolume, RunState};
use crate::run::limited::Limit;
use crate::run::locks::Alone;
use crate::run::paths::HAS_LEFT;
use crate::run::plan::{Change, LegVerb};
use crate::run::service::{Service, State};
use crate::uri::{PathUri, UriKind, names};
use engine::host::VolumeInfo;
use engine::mirror::{
    LegConfig, LegOrder, LegReport, LegStatus, MirrorOrder, MirrorReport, MirrorState, NewLeg,
    Pending,
};
use mirror::copies::{Chosen, NoLeg};
use mirror::{Id, Named, Superblock};
use serde_json::{Value, json};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long the engine has for what takes some writes.
pub(super) const SOON: Duration = Duration::from_secs(30);
/// How often it is asked meanwhile.
const POLL: Duration = Duration::from_millis(10);

impl Service {
    /// Another leg, maybe in the place of the one of this slot and name.
    ///
    /// # Errors
    /// Why not; then nothing has changed, but that what a file held may be overwritten.
    pub(super) fn add_leg(
        &self,
        params: &MirrorParams,
        replaces: Option<LegReport>,
        by: &Caller<'_>,
    ) -> Result<Value, ControlError> {
        let (mut alone, volume) = self.alone_with_mirror(&params.volume, by)?;
        let uri = match replaces {
            None => &params.leg,
            Some(_) => &params.by,
        };
        let uri = uri.as_deref().unwrap_or_default();
        let uri: PathUri = uri
            .parse()
            .map_err(|error| ControlError::params(format!("\"{uri}\": {error}")))?;
        let of = self.new_leg(volume, uri)?;
        // It may have to go again: nothing else is done with it before it is a leg.
        alone.add(&of.name);
        let name = params.volume.clone();
        let answer = json!({"volume": name, "leg": leg_config(&of, 0).name});
        let leg = DesiredVolume::of_file(of, None);
        let change = match replaces {
            None => Change::AddLeg(name, leg),
            Some(old) => Change::Leg(name, Box::new(old), LegVerb::Replace(Box::new(leg))),
        };
        self.make(&[change], params.force).map(|()| answer)
    }

    /// The same of a leg by its volume. No other verb has this mirror or its legs.
    ///
    /// # Errors
    /// As above.
    pub fn make_leg(
        &self,
        volume: u16,
        of: &Volume,
        force: bool,
        replaces: Option<&LegReport>,
    ) -> Result<(), ControlError> {
        // One whose removal was not answered in time has its file until then.
        self.tidy_legs(volume);
        let report = self.mirror_report(volume)?;
        self.may_write(volume, &report)?;
        let replaces = replaces.map(|leg| is_still(&report, leg)).transpose()?;
        let superblock = report
            .superblock
            .filter(|_| report.state == MirrorState::Running);
        let superblock =
            superblock.ok_or_else(|| ControlError::refused("it does not run: start it first"))?;
        let Some(PathKeys { uri, .. }) = of.paths.first() else {
            unreachable!("{}: a leg has at least one path", of.name);
        };
        let name = uri.to_string();
        let of_name = || report.legs.iter().filter(|leg| leg.is_called(&name));
        // One that is not there, or another disk in its place, is none.
        let is_place = |leg: &LegReport| {
            let missing = leg.status == LegStatus::Missing && leg.facts.is_none();
            missing || orders::is_another(leg)
        };
        if let Some(leg) = of_name().find(|leg| !is_place(leg)) {
            self.is_the_same(leg)?;
            return Err(ControlError::refused(format!(
                "{uri} is a leg of it already"
            )));
        }
        let is_gone = |leg: &&LegReport| leg.slot == replaces && leg.status == LegStatus::Missing;
        let legs = self.storages(&report, &uri.to_string())?;
        let room = Room {
            mirror: &superblock,
            legs: &legs,
            gone: replaces.filter(|_| report.legs.iter().any(|leg| is_gone(&leg))),
            force,
        };
        terms::may_be_noted(&self.name(volume), &report, None)?;
        if let UriKind::File(path) = uri.kind() {
            // Before it is locked, for who has it may be the mirror itself, and before anything is
            // forgotten of its place: where it is refused all stays as it was.
            let may = read_leg(path).and_then(|(file, _)| room.may_be_made(&Leg::File(file)));
            may.map_err(|error| ControlError::refused(format!("{uri}: {error:#}")))?;
        }
        for leg in of_name().filter(|leg| orders::is_another(leg)) {
            self.forget_place(volume, leg)?;
        }
        self.make_room(uri, &room)?;
        for leg in of_name().filter(|leg| leg.status == LegStatus::Missing) {
            self.forget_place(volume, leg)?;
        }
        let replaced = replaces.map(|slot| superblock.legs[usize::from(slot)]);
        let replaced = replaced.flatten().map(|entry| entry.id);
        self.join_leg(volume, of, &superblock, replaced)
    }

    /// A leg joins where there is room for it.
    ///
    /// # Errors
    /// It can't be opened, or the engine does not take it.
    fn join_leg(
        &self,
        volume: u16,
        of: &Volume,
        mirror: &Superblock,
        replaces: Option<Id>,
    ) -> Result<(), ControlError> {
        let (config, info) = self.open_leg_of(of).map_err(ControlError::refused)?;
        let number = config.volume;
        let least = mirror.place.data_offset + mirror.geometry.bytes;
        let unfit = create::refuse_small(info.bytes, least).err();
        let unfit = unfit.map(|why| why.to_string());
        if unfit.is_none() {
            self.senders.order(
                volume,
                MirrorOrder::Add(Box::new(NewLeg {
                    config,
                    info,
                    id: draw_id(),
                    replaces,
                })),
            );
        }
        let (taken, why) = match unfit {
            Some(why) => (false, Some(why)),
            None => self.is_taken(volume, number),
        };
        if taken {
            // One that could not be opened before is this one.
            let mut state = self.state();
            let has = |keys: &PathKeys| of.paths.iter().any(|it| it.uri == keys.uri);
            let name = state.volumes.name(volume);
            let idle = state.idle_legs(&name).filter(|it| it.paths.iter().any(has));
            let idle: Vec<String> = idle.map(|it| it.name.clone()).collect();
            let configured = &mut state.configured.volumes;
            configured.retain(|it| !idle.contains(&it.name));
            return Ok(());
        }
        let Some(why) = why else {
            let undo = "braid mirror remove takes it out again";
            let became = self.take_back(volume, Pending::Add(number), undo);
            let report = self.mirror_report(volume)?;
            if !report.legs.iter().any(|it| it.volume == Some(number)) {
                self.close_leg(number);
            }
            return Err(ControlError::refused(format!(
                "the mirror did not take it within {} s (the engine's log may say why): {became}",
                SOON.as_secs()
            )));
        };
        self.close_leg(number);
        Err(ControlError::refused(format!("not added: {why}")))
    }

    /// Whether a mirror has a new leg now, by its volume; or why not, where that is said.
    fn is_taken(&self, volume: u16, number: u16) -> (bool, Option<String>) {
        // It has a slot before that stands on the legs.
        let is_there = |slot: u8, adding: u16| adding >> (slot & 15) & 1 == 0;
        let (mut taken, mut why) = (false, None);
        self.wait_for(volume, SOON, |it| {
            let leg = it.legs.iter().find(|leg| leg.volume == Some(number));
            let slot = leg.and_then(|leg| leg.slot);
            taken = slot.is_some_and(|slot| is_there(slot, it.adding));
            let not_added = it.not_added.clone().filter(|it| it.0 == number);
            why = not_added.map(|it| it.1).filter(|_| !taken);
            taken || why.is_some()
        });
        (taken, why)
    }

    /// The content of a new leg of a mirror is overwritten, if it may be.
    ///
    /// # Errors
    /// It may not, or nobody knows.
    fn make_room(&self, uri: &PathUri, room: &Room<'_>) -> Result<(), ControlError> {
        match uri.kind() {
            UriKind::File(_) | UriKind::NvmeTcp(_) => {
                let access = Access::of(self.identity.clone());
                let made = create::make_room(uri, &access, room);
                made.map_err(|error| ControlError::refused(format!("{uri}: {error:#}")))?;
            }
            // Nothing is in it yet, and nothing stays.
            UriKind::Memory(_) => log::say(format!(
                "{uri}: memory forgets all when this engine ends; remove the leg before, or the \
                 next start has to be told to go without it"
            )),
            _ if room.force => {}
            _ => {
                return Err(ControlError::refused(format!(
                    "{uri}: what it holds can't be looked at; --force writes over it"
                )));
            }
        }
        Ok(())
    }

    /// A volume that was given as a leg and is none goes: its name is free.
    pub(super) fn forget_place(&self, volume: u16, leg: &LegReport) -> Result<(), ControlError> {
        let Some(number) = leg.volume else {
            return Ok(()); // nobody has given it
        };
        self.senders.order(volume, MirrorOrder::Forget(number));
        let is_it = |it: &LegReport| it.volume == Some(number);
        if !self.wait_for(volume, SOON, |it| !it.legs.iter().any(is_it)) {
            let why = "it is just being looked at: try again";
            return Err(ControlError::refused(format!("{}: {why}", leg.name)));
        }
        self.tidy_legs(volume);
        Ok(())
    }

    /// Storage of the legs of a mirror: files, devices, and the namespaces
    /// that their controllers showed; but not of what has this name.
    fn storages(
        &self,
        report: &MirrorReport,
        but: &str,
    ) -> Result<Vec<(String, Storage)>, ControlError> {
        let cores = self.senders.report();
        let cores = cores.map_err(|error| ControlError::refused(format!("{error:#}")))?;
        let state = self.state();
        let (mut all, mut absent) = (Vec::new(), Vec::new());
        let legs = report.legs.iter().filter(|leg| !leg.is_called(but));
        for number in legs.filter_map(|leg| leg.volume) {
            let paths = cores
                .first()
                .and_then(|it| it.volumes.get(usize::from(number)));
            let facts = paths
                .into_iter()
                .flatten()
                .filter_map(|it| it.facts.as_ref());
            let name = state.volumes.name(number);
            all.extend(facts.map(|it| (name.clone(), Storage::of_namespace(it))));
            let paths = state.volumes.get(number).into_iter();
            for it in paths.flat_map(|it| it.entries().iter()) {
                let uri = it.config().uri.clone();
                match it.storage() {
                    Some(storage) => all.push((uri.to_string(), storage.clone())),
                    None => absent.push(uri),
                }
            }
        }
        drop(state);
        // A file system that hangs here holds up this verb only.
        let found = |uri: PathUri| Some((uri.to_string(), storage_of(&uri)?));
        all.extend(absent.into_iter().filter_map(found));
        Ok(all)
    }

    /// A leg is none any more.
    ///
    /// # Errors
    /// It is the last one in sync, or can't be now.
    pub(super) fn remove_leg(
        &self,
        name: &str,
        leg: &LegReport,
        by: &Caller<'_>,
    ) -> Result<Value, ControlError> {
        let (_alone, volume) = self.alone_with_mirror(name, by)?;
        let name = name.to_owned();
        if leg.slot.is_some() {
            is_still(&self.mirror_report(volume)?, leg)?;
        }
        let leads_to = {
            let state = self.state();
            let number = leg.volume.filter(|_| leg.slot.is_some());
            let there = number.filter(|number| state.volumes.has(*number));
            there.map(|number| DesiredVolume::new(&state, number))
        };
        let change = match leads_to {
            Some(of) => Change::RemoveLeg(name.clone(), of),
            None => Change::Leg(name.clone(), Box::new(leg.clone()), LegVerb::Forget),
        };
        self.make(&[change], false)?;
        let carries = self.carries_superblock(volume, leg)?;
        Ok(json!({"volume": name, "leg": leg.name, "carries_superblock": carries}))
    }

    /// Whether a leg that was removed still says that it is one.
    fn carries_superblock(&self, volume: u16, leg: &LegReport) -> Result<bool, ControlError> {
        let after = self.mirror_report(volume)?;
        let is_unwiped = leg
            .slot
            .is_some_and(|slot| after.unwiped >> (slot & 15) & 1 == 1);
        let is_replaced = places_of(&after, leg).any(|it| it.slot.is_some());
        Ok(!is_replaced && still_says(leg, is_unwiped))
    }

    /// The same. No other verb has this mirror or its legs.
    ///
    /// # Errors
    /// As above.
    pub fn unmake_leg(&self, volume: u16, leg: &LegReport) -> Result<(), ControlError> {
        let report = self.mirror_report(volume)?;
        self.ensure_running(volume, &report)?;
        orders::may_fail(&report, leg)?;
        let slot = is_still(&report, leg)?;
        terms::may_be_noted(&self.name(volume), &report, Some(slot))?;
        self.senders
            .order(volume, orders::of_leg(leg, LegOrder::Remove)?);
        let is_gone = |it: &MirrorReport| LegRemoval::of(it, leg) == LegRemoval::Done;
        if !self.wait_for(volume, SOON, is_gone) {
            let undo = "braid mirror add takes the leg in again afterwards";
            let became = self.take_back(volume, Pending::Remove(slot), undo);
            // It may just have left.
            if !is_gone(&self.mirror_report(volume)?) {
                return Err(ControlError::refused(format!(
                    "{} did not leave within {} s (the engine's log may say why): {became}",
                    leg.name,
                    SOON.as_secs()
                )));
            }
        }
        // It has left, whatever becomes of its place.
        if let Err(why) = self.forget_others_of(volume, leg) {
            log::say(format!(
                "{}: has left; what is in its place stays a place of the mirror: {why}",
                leg.name
            ));
        }
        self.tidy_legs(volume);
        // One that could not be opened is not tried again.
        let mut state = self.state();
        let idle = idle_leg(&state, volume, leg).map(|it| it.name.clone());
        let configured = &mut state.configured.volumes;
        configured.retain(|it| Some(&it.name) != idle.as_ref());
        Ok(())
    }

    /// # Errors
    /// The mirror does not run: its legs are what their superblocks say.
    pub(super) fn ensure_running(
        &self,
        volume: u16,
        report: &MirrorReport,
    ) -> Result<(), ControlError> {
        if report.superblock.is_some() {
            return Ok(());
        }
        let name = self.name(volume);
        let why = "it does not run: start it first";
        Err(ControlError::refused(format!("{name}: {why}")))
    }

    /// A volume in the place of a leg, and that is none, is not looked at any more either.
    fn forget_others_of(&self, volume: u16, leg: &LegReport) -> Result<(), ControlError> {
        let report = self.mirror_report(volume)?;
        let mut others = places_of(&report, leg).filter(|it| orders::is_another(it));
        others.try_for_each(|it| self.forget_place(volume, it))
    }

    /// Volumes of legs that are none any more are closed; later, where the mirror does not answer.
    pub(super) fn tidy_legs(&self, volume: u16) {
        let Ok(report) = self.mirror_report(volume) else {
            return;
        };
        let known = |number: u16| report.legs.iter().any(|leg| leg.volume == Some(number));
        let name = self.name(volume);
        let legs = self.legs_of(&name).into_iter();
        let idle = legs.filter(|number| !known(*number));
        idle.for_each(|number| self.close_leg(number));
    }

    /// `mirror.stop`: the mirror ends in order, and its legs are free; the engine goes on.
    ///
    /// # Errors
    /// It has clients, and `force` is not said; it does not end.
    pub(super) fn stop_mirror(
        &self,
        params: &MirrorParams,
        by: &Caller<'_>,
    ) -> Result<Value, ControlError> {
        let name = &params.volume;
        let (_alone, volume) = self.alone_with_mirror(name, by)?;
        if DesiredVolume::new(&self.state(), volume).run == RunState::Off {
            let why = "it was stopped before";
            return Ok(json!({"volume": name, "state": "stopped", "nothing": why}));
        }
        self.edit(volume, params.force, |it| {
            it.run = RunState::Off;
            Ok(())
        })?;
        Ok(json!({"volume": name, "state": "stopped"}))
    }

    /// The same; `exports`: those that listen when it starts again. No other verb has the mirror or
    /// its legs.
    ///
    /// # Errors
    /// As above; one that does not end has been told to.
    pub fn end_mirror(
        &self,
        volume: u16,
        exports: &[Export],
        force: bool,
    ) -> Result<(), ControlError> {
        let name = self.name(volume);
        let report = self.mirror_report(volume)?;
        let asked = self.clients_of(&[volume]);
        let asked = asked.map_err(|error| ControlError::refused(format!("{error:#}")))?;
        let clients: u32 = asked.iter().map(|it| it.1).sum();
        if clients > 0 && !force {
            return Err(ControlError::refused(format!(
                "{name} has clients: {clients}; disconnect them, or say --force"
            )));
        }
        let held = self.remove_node(volume, force);
        let _held = held.map_err(|error| ControlError::refused(format!("{error:#}")))?;
        {
            let mut state = self.state();
            self.remove_exports(&mut state, volume);
            // Before it is waited for: it may end only after that, and begins anew by this.
            if let Some(it) = state.volumes.get_mut(volume) {
                it.of.exports = exports.to_vec();
                it.stopped.get_or_insert(report.legs);
            }
        }
        let drain = Duration::from_nanos(self.drain_ns());
        self.wait_vacated(volume, drain);
        self.senders.order(volume, MirrorOrder::Stop);
        let stopped = |it: &MirrorReport| it.state == MirrorState::Stopped;
        if !self.wait_for(volume, SOON.max(drain), stopped) {
            return Err(ControlError::refused(format!(
                "{name} does not end yet (the engine's log may say why), and ends when its legs \
                 answer: braid mirror stop waits once more, braid mirror assemble starts it again \
                 afterwards"
            )));
        }
        self.known().mirror_records.forget_unwritten(volume);
        self.close_legs(&name);
        log::say(format!("{name}: stopped; its legs are free"));
        Ok(())
    }

    /// The number of a mirror, which no other verb changes, nor its legs, as long as the first
    /// result is there.
    ///
    /// # Errors
    /// There is no such mirror; the caller has gone.
    pub(in crate::run) fn alone_with_mirror(
        &self,
        name: &str,
        by: &Caller<'_>,
    ) -> Result<(Alone<'_>, u16), ControlError> {
        loop {
            let before = self.with_legs(name);
            let alone = self.changes.alone_with_all(&before, by)?;
            // Another verb may have changed its legs meanwhile.
            if self.with_legs(name) == before {
                let number = self.state().mirror(name)?;
                return Ok((alone, number));
            }
        }
    }

    /// The same, if no other verb changes one of them just now.
    pub(in crate::run) fn alone_with_mirror_now(&self, name: &str) -> Option<Alone<'_>> {
        let names = self.with_legs(name);
        let alone = self.changes.verbs.alone_last(&names, &|| true)?;
        (self.with_legs(name) == names).then_some(alone)
    }

    /// The names of a mirror and its legs.
    fn with_legs(&self, name: &str) -> Vec<String> {
        let state = self.state();
        // Those without a volume get one again when it starts.
        let legs = state.configured.legs(name).map(|it| it.name.clone());
        let mut all: Vec<String> = legs.chain([name.to_owned()]).collect();
        all.sort_unstable();
        all
    }

    /// The numbers of the volumes of a mirror's legs.
    fn legs_of(&self, name: &str) -> Vec<u16> {
        let state = self.state();
        let legs = state.volumes.iter();
        let legs = legs.filter(|(_, it)| it.of.leg_of.as_deref() == Some(name));
        legs.map(|(number, _)| number).collect()
    }

    /// The volumes of a mirror's legs go.
    pub(super) fn close_legs(&self, name: &str) {
        for number in self.legs_of(name) {
            self.take_back_volume(self.state(), number);
        }
    }

    /// The mirror becomes as large as its legs allow: an order, for it can't be taken back.
    ///
    /// # Errors
    /// Why it stays as it is.
    pub(super) fn grow_mirror(&self, name: &str, by: &Caller<'_>) -> Result<Value, ControlError> {
        let (_alone, volume) = self.alone_with_mirror(name, by)?;
        let report = self.mirror_report(volume)?;
        let before = report.superblock.map(|it| it.geometry.bytes);
        let before = before.ok_or_else(|| ControlError::refused(format!("{name} does not run")))?;
        terms::may_be_noted(name, &report, None)?;
        let sizes = report.legs.iter().filter_map(|leg| {
            let number = leg.volume?;
            Some((number, self.file_bytes(number, &report, leg)?))
        });
        self.senders
            .order(volume, MirrorOrder::Grow(sizes.collect()));
        let mut grown = None;
        self.wait_for(volume, SOON, |it| {
            grown = it.grown.clone();
            grown.is_some()
        });
        let why = match grown {
            Some(Ok(bytes)) => {
                return Ok(json!({"volume": name, "before": before, "bytes": bytes}));
            }
            Some(Err(why)) => why,
            None => {
                let undo = "a mirror can't be made smaller again";
                let became = self.take_back(volume, Pending::Grow, undo);
                format!("it did not become larger (the engine's log may say why): {became}")
            }
        };
        Err(ControlError::refused(format!("{name}: {why}")))
    }

    /// The paths of a volume; `None`: it has left.
    pub(super) fn paths_of(&self, number: u16) -> Option<Vec<PathKeys>> {
        let state = self.state();
        state.volumes.get(number).map(|it| it.of.paths.clone())
    }

    /// How large the file or device of a leg is now; `None`: it has none, or another one has its
    /// name by now.
    fn file_bytes(&self, number: u16, mirror: &MirrorReport, leg: &LegReport) -> Option<u64> {
        let paths = self.paths_of(number)?;
        let (ours, slot) = (mirror.superblock?.mirror, leg.slot?);
        let sizes = paths.iter().map(|keys| match keys.uri.kind() {
            UriKind::File(path) => {
                let (file, said) = read_leg(path).ok()?;
                let said = said.ok()?.superblock;
                if said.mirror != ours || said.slot != slot {
                    return None;
                }
                self.take_behind(keys, &said);
                Some(file.size().bytes)
            }
            _ => None,
        });
        // Those of namespaces are told by their controllers.
        sizes.min().flatten()
    }

    /// The file of a leg that became shorter, though not shorter than the mirror needs, is used as
    /// long as it is now: nothing of the mirror was there.
    fn take_behind(&self, keys: &PathKeys, said: &Superblock) {
        let needs = said.place.data_offset.saturating_add(said.geometry.bytes);
        if let Some(file) = self.ends.file(&keys.uri)
            && let Err(error) = file.take_behind(needs)
        {
            log::say(format!("{}: {error}", file.path().display()));
        }
    }

    /// A new leg under a name that none has.
    ///
    /// # Errors
    /// The mirror has left.
    fn new_leg(&self, volume: u16, uri: PathUri) -> Result<Volume, ControlError> {
        let state = self.state();
        let mirror = state.volumes.get(volume);
        let mirror = &mirror.ok_or_else(|| ControlError::refused(HAS_LEFT))?.of;
        let is_taken = |leg: &str| is_taken(&state, &[], &mirror.name, leg);
        let name = leg_name(&mirror.name, &names::made(&uri, is_taken));
        Ok(mirror.leg_volume(name, vec![PathKeys::from(uri)]))
    }

    /// A volume of the engine for a leg that the file has so, or would have, once it is ready; its
    /// name is locked. Choices for it hold.
    pub(super) fn open_leg_of(&self, of: &Volume) -> Result<(LegConfig, VolumeInfo), String> {
        let is_new;
        let number = {
            let _opening = self.changes.opening();
            let number = self.open_volume(of)?;
            let mut state = self.state();
            let mut configured = state.configured.clone();
            is_new = configured.volume(&of.name).is_none();
            configured.volumes.extend(is_new.then(|| of.clone()));
            state.volumes.admit(&configured);
            state.configured = configured;
            number
        };
        let begun = Instant::now();
        while begun.elapsed() < SOON {
            let there = self.state().volumes.get(number).map(|it| {
                let info = it.info?;
                Some((leg_config(&it.of, number), info))
            });
            match there {
                Some(Some(there)) => return Ok(there),
                Some(None) => {}
                None => break,
            }
            sleep(POLL);
        }
        let mut state = self.state();
        let configured = &mut state.configured.volumes;
        configured.retain(|it| !is_new || it.name != of.name);
        if !state.volumes.has(number) {
            return Err("it has left again: see the engine's log".into());
        }
        self.take_back_volume(state, number);
        Err("it does not become ready: see the engine's log".into())
    }

    /// The volume of a leg goes, which is none any more.
    pub(super) fn close_leg(&self, number: u16) {
        let mut state = self.state();
        let name = state.volumes.name(number);
        state.configured.volumes.retain(|it| it.name != name);
        // In one: a reload in between would find a volume that no configuration has.
        self.take_back_volume(state, number);
    }

    /// Waits until it is so of a mirror; whether it is.
    pub(in crate::run) fn wait_for(
        &self,
        volume: u16,
        limit: Duration,
        mut so: impl FnMut(&MirrorReport) -> bool,
    ) -> bool {
        let begun = Instant::now();
        loop {
            if self.mirror_report(volume).is_ok_and(|report| so(&report)) {
                return true;
            }
            if begun.elapsed() > limit {
                return false;
            }
            sleep(POLL);
        }
    }
}

/// The slot of a leg that was meant before it was waited for another change.
///
/// # Errors
/// It is another one's by now, or nobody's.
pub(super) fn is_still(report: &MirrorReport, leg: &LegReport) -> Result<u8, ControlError> {
    let same = |it: &&LegReport| it.slot == leg.slot && it.id == leg.id;
    let slot = report.legs.iter().find(same).and_then(|it| it.slot);
    slot.ok_or_else(|| {
        let which = leg
            .slot
            .map_or(String::new(), |slot| format!(" leg {slot}"));
        ControlError::refused(format!(
            "{} is not{which} any more: it was removed or replaced meanwhile",
            leg.name
        ))
    })
}

/// Configuration in the place of a leg: it is its volume, or is reached by the same URI.
fn places_of<'a>(
    report: &'a MirrorReport,
    leg: &'a LegReport,
) -> impl Iterator<Item = &'a LegReport> {
    let legs = report.legs.iter().filter(|it| it.volume.is_some());
    legs.filter(move |it| match leg.uris.is_empty() {
        false => it.uris.iter().any(|uri| leg.is_called(uri)),
        true => leg.names(&it.uris) == Some(Named::Whole),
    })
}

/// A leg of a mirror that could not be opened when that was started again; `None` where it can't be
/// told which one it is.
pub(super) fn idle_leg<'a>(state: &'a State, mirror: u16, leg: &LegReport) -> Option<&'a Volume> {
    let name = state.volumes.name(mirror);
    let idle: Vec<&Volume> = state.idle_legs(&name).collect();
    file_of(idle.into_iter(), leg)
}

/// The volume of a leg: by a path of it, or by its label, which may be the beginning of a URI;
/// `None` where it can't be told which one it is.
pub(super) fn file_of<'a>(
    all: impl Iterator<Item = &'a Volume> + Clone,
    leg: &LegReport,
) -> Option<&'a Volume> {
    let named = |wanted| {
        let of = |it: &&Volume| leg.names(&leg_config(it, 0).uris) == Some(wanted);
        let mut found = all.clone().filter(of);
        found.next().filter(|_| found.next().is_none())
    };
    let has = |it: &&Volume| {
        leg_config(it, 0)
            .uris
            .iter()
            .any(|uri| leg.uris.contains(uri))
    };
    let by_path = all.clone().find(has);
    by_path
        .or_else(|| named(Named::Whole))
        .or_else(|| named(Named::Beginning))
}

/// A file and its superblock.
///
/// # Errors
/// It can't be read, or not in time (T52).
fn read_leg(path: &Path) -> anyhow::Result<(LegFile, Result<Chosen, NoLeg>)> {
    let path = path.to_owned();
    let read = Limit::Verb.run(move || {
        let file = LegFile::open(&path)?;
        let said = file.read_superblock()?;
        Ok((file, said))
    });
    read.map_err(anyhow::Error::msg)?
}

/// Whether a leg that was removed still says that it is one; `failed`: that it could not be
/// overwritten. One that nobody has given, or whose file isn't there, has what it had.
fn still_says(leg: &LegReport, failed: bool) -> bool {
    let uri = leg.name.parse::<PathUri>().ok();
    match uri.as_ref().map(PathUri::kind) {
        Some(UriKind::File(path)) => !matches!(read_leg(path), Ok((_, Err(NoLeg::Missing)))),
        Some(UriKind::Memory(_)) => false,
        _ => failed || leg.volume.is_none() || leg.status == LegStatus::Missing,
    }
}

/// How far the removal of a leg is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LegRemoval {
    /// It is one of the mirror's legs: its removal was not begun, or was given up.
    Member,
    /// Its removal is being written to the other legs.
    Writing,
    /// It has left, and its own superblocks are being overwritten: until then it has its slot.
    Wiping,
    /// It has left the mirror.
    Done,
}

impl LegRemoval {
    pub(super) fn of(report: &MirrorReport, leg: &LegReport) -> Self {
        let Some(slot) = leg.slot else {
            return Self::Done;
        };
        // One that is not there has no place here as soon as its removal is being written.
        if report.removing >> (slot & 15) & 1 == 1 {
            return Self::Writing;
        }
        let is_it = |it: &&LegReport| it.slot == leg.slot && (it.id.is_none() || it.id == leg.id);
        match report.legs.iter().find(is_it).map(|it| it.id) {
            Some(Some(_)) => Self::Member,
            Some(None) => Self::Wiping,
            None => Self::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::tests::parsed;
    use crate::run::plan::tests::leg;
    use mirror::Label;

    #[test]
    fn t45_file_of_a_leg_is_the_one_that_is_meant_or_none() {
        let long = "x".repeat(90);
        let uris = ["a", "b", "c"].map(|name| format!("file:/{long}/{name}"));
        let uris: [&str; 3] = uris.each_ref().map(String::as_str);
        let path = |uri: &str| format!("[[volume.path]]\nuri = \"{uri}\"\n");
        let volume = |uri: &&str| parsed(&format!("[[volume]]\nname = \"v\"\n{}", path(uri)));
        let files: Vec<Volume> = uris
            .iter()
            .map(|uri| volume(uri).volumes.remove(0))
            .collect();
        let file =
            |leg: &LegReport| file_of(files.iter(), leg).map(|it| it.paths[0].uri.to_string());
        let (a, label) = (uris[0], Label::of_uri(uris[1]));
        assert_eq!(
            file(&leg(0, "a and 1 more", &["file:/z", a])).as_deref(),
            Some(a)
        );
        assert_eq!(file(&leg(1, label.as_str(), &[])).as_deref(), Some(uris[1]));
        let cut = Label::cut(a);
        assert_eq!(file(&leg(2, cut.as_str(), &[])), None, "each begins so");
        assert_eq!(file(&leg(3, "file:/d", &[])), None);
    }
}
