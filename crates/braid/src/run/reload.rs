//! Another configuration for a running engine: all of the difference, or nothing.
//!
//! # Contract
//! Volumes are paired by what they lead to ([`Renames`]), else by name. Steps that can fail are
//! done first: addresses over NVMe/TCP listen, then in the order of the [plan](super::plan). It is
//! taken back if something else fails. Then the rest changes in one moment, as everybody sees it:
//! new exports take clients, volumes have their new names, new ones are there, others are not,
//! policies and knobs are those of the file. The rest comes last: volumes that are gone
//! drain and leave. A volume with a path of one that leaves comes with another reload, when no
//! write of that one can be under way.
//!
//! Only the volumes that it changes are closed to other verbs meanwhile. A volume with clients
//! leaves by force only. Takes as long as paths take to connect and drain;
//! not to be called by the thread that attends to what the cores tell.
use super::admission::Guard;
use super::config::{Config, Export, Volume};
use super::desired::Desired;
use super::entries::PathEntry;
use super::exports::ExportMove;
use super::live;
use super::locks::Alone;
use super::mirrors::{name_legs, refuse_legs};
use super::nvme_exports;
use super::plan::{ActualVolume, Change, Presence, ensure_alone, keep_exports, leg_words, plan};
use super::queues::{self, BoundQueue};
use super::reconcile::Reconciler;
use super::rename::Renames;
use super::service::{Service, State};
use super::ublk;
use super::volumes::Running;
use crate::control::server::Caller;
use crate::log;
use crate::units::format_ns;
use anyhow::{anyhow, bail};
use engine::host::PathState;
use engine::mirror::LegReport;
use policy::{Knobs, Policy};
use std::collections::BTreeSet;
use sys::freeze;

/// A reload under way.
struct Reload<'a> {
    service: &'a Service,
    /// As the file says, with the names that volumes have until the [`rest`](Self::rest).
    new: Config,
    /// The names that it gives them.
    renames: Renames,
    /// Desired state of the engine.
    desired: Desired,
    plan: Vec<Change>,
    /// Sockets of new servers of queues.
    queues: Vec<BoundQueue>,
    /// Changes, in words.
    said: Vec<String>,
}

/// Applies the file; what was changed, in words. `force`: volumes leave that have clients, and
/// absent paths that may hold writes (T13).
///
/// # Errors
/// Why nothing was.
pub fn reload(service: &Service, force: bool, by: &Caller<'_>) -> anyhow::Result<String> {
    let new = Config::read(&service.file)?;
    // No volume has this name: one reload at a time.
    let _only = service.changes.alone_with_all(&[String::new()], by)?;
    let (mut reload, _alone) = Reload::alone(service, &new, by)?;
    let sources = service.find_sources(&reload.new)?;
    let gone = reload.gone();
    reload.check(force)?;
    let there = service.state().queue_sockets();
    reload.queues = queues::bind(&reload.new, &there)?;
    let metrics = service.prepare_metrics(&reload.new)?;
    let mut steps = Reconciler::new(service, reload.desired.clone());
    let made = reload.prepare(&mut steps).and_then(|()| {
        freeze::step("after", &"all that can fail");
        // Again, because that took its time.
        spare_clients(service, &gone, force)?;
        // Not taken back where the rest fails: the thread of nodes makes it anew.
        let (removed, mut held) = service.remove_nodes(&reload.new, force)?;
        reload.said.extend(removed);
        reload.rest(&mut steps, &gone)?;
        held.rename(&reload.renames);
        Ok(())
    });
    if let Err(error) = made {
        let metrics = service.take_back_metrics(metrics);
        let metrics = metrics.map_err(|error| format!("{error:#}"));
        let whys: Vec<_> = [steps.undo(), metrics]
            .into_iter()
            .filter_map(Result::err)
            .collect();
        return Err(match whys.is_empty() {
            true => error,
            false => {
                let whys = whys.join("; ");
                error.context(format!("and not all could be taken back: {whys}"))
            }
        });
    }
    reload.forget(&mut steps);
    let mut changes = std::mem::take(&mut reload.said);
    for change in &reload.plan {
        if let Change::SetKeys(name, _) = change {
            service.follow_speed(name);
        }
    }
    changes.extend(service.apply_metrics(metrics));
    changes.extend(service.set_sources(sources));
    changes.extend(service.remove_volumes(&gone));
    service.nodes.look();
    freeze::step("after", &"the reload");
    Ok(match changes.is_empty() {
        true => "no difference".into(),
        false => changes.join(", "),
    })
}

/// Steps of a reload, a line for each in its order.
///
/// # Errors
/// Why it would change nothing.
pub fn dry_run(service: &Service, force: bool) -> anyhow::Result<Vec<String>> {
    let new = Config::read(&service.file)?;
    let reload = Reload::new(service, new)?;
    reload.check(force)?;
    service.find_sources(&reload.new)?;
    let lines = reload.plan.iter().map(Change::to_string);
    let state = service.state();
    let discovery = state.configured.discoveries != reload.new.discoveries;
    let discovery = discovery.then(|| "change [[discovery]]".to_owned());
    let nodes = ublk::changes(&state.configured, &reload.new);
    let queues = state.configured.queues != reload.new.queues;
    let queues = queues.then(|| "change [[queue]]".to_owned());
    let alarms = state.configured.alarms != reload.new.alarms;
    let alarms = alarms.then(|| "change [alarms]".to_owned());
    let drain = state.configured.drain_timeout != reload.new.drain_timeout;
    let drain = drain.then(|| "set drain_timeout".to_owned());
    let metrics = Service::changes_metrics(&state.configured, &reload.new);
    let metrics = metrics.then(|| "change metrics".to_owned());
    let level = state.configured.log_level != reload.new.log_level;
    let level = level.then(|| "set log_level".to_owned());
    let hook = state.configured.on_event != reload.new.on_event;
    let hook = hook.then(|| "set on_event".to_owned());
    Ok(lines
        .chain(nodes)
        .chain(metrics)
        .chain(discovery)
        .chain(queues)
        .chain(drain)
        .chain(level)
        .chain(hook)
        .chain(alarms)
        .collect())
}

impl<'a> Reload<'a> {
    /// Plans the reload, where all of it can be done.
    fn new(service: &'a Service, mut new: Config) -> anyhow::Result<Self> {
        let cores = service.senders.report().unwrap_or_default();
        let path_state = |number: u16, index: u8| {
            let paths = cores.first()?.volumes.get(usize::from(number))?;
            Some(paths.get(usize::from(index))?.state)
        };
        let presence = |number: u16, path: &PathEntry| match path_state(number, path.index().0) {
            Some(PathState::Live) => Presence::Live,
            _ => Presence::Down,
        };
        let choices = service.choices();
        let state = service.state();
        let renames = Renames::new(&state.volumes, &state.configured, &new)?;
        renames.back().apply_to(&mut new);
        refuse_fixed(&state.configured, &new)?;
        name_legs(&mut new, &state.configured, &state)?;
        let actual = ActualVolume::all(&state, presence);
        service.place_subsystems(&state, &mut new)?;
        service.place_queues(&state, &mut new)?;
        let desired = Desired::now(&state).reloaded(&state.configured, &new, &choices);
        let mut plan = plan(&desired, &actual);
        let nvme = nvme_exports::changes(&state.served(), &new.subsystems).into_iter();
        let (listen, nvme): (Vec<_>, Vec<_>) = nvme.partition(Change::can_fail);
        drop(state);
        drop(choices);
        let named = renames.iter();
        let named = named.map(|(from, to)| Change::Rename(from.clone(), to.clone()));
        let mut insert = |changes: Vec<Change>, before: fn(&Change) -> bool| {
            let at = plan.iter().position(before).unwrap_or(plan.len());
            plan.splice(at..at, changes);
        };
        // First: it costs nothing where it is taken back, while a leg is rebuilt.
        insert(listen, |_| true);
        insert(nvme, |it| !it.can_fail());
        insert(named.collect(), |it| matches!(it, Change::CloseVolume(_)));
        Ok(Self {
            service,
            plan,
            renames,
            new,
            desired,
            queues: Vec::new(),
            said: Vec::new(),
        })
    }

    /// The same, with the volumes that it changes to itself. Verbs of others go on.
    fn alone(
        service: &'a Service,
        new: &Config,
        by: &Caller<'_>,
    ) -> anyhow::Result<(Self, Alone<'a>)> {
        loop {
            let before = Self::new(service, new.clone())?.volumes();
            let names: Vec<String> = before.iter().cloned().collect();
            let alone = service.changes.alone_with_all(&names, by)?;
            let reload = Self::new(service, new.clone())?;
            // A verb may have changed others meanwhile.
            if reload.volumes().is_subset(&before) {
                return Ok((reload, alone));
            }
        }
    }

    /// Names of the volumes that are changed, and of mirrors all legs.
    fn volumes(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for change in &self.plan {
            names.insert(change.volume().to_owned());
            match change {
                Change::MoveExport(_, to, _) | Change::Rename(_, to) => names.insert(to.clone()),
                Change::AddLeg(_, leg) => names.insert(leg.of.name.clone()),
                _ => false,
            };
            if let Change::OpenVolume(name) = change {
                names.extend(self.desired.legs(name).into_iter().map(|leg| leg.name));
            }
        }
        let state = self.service.state();
        let legs = state.volumes.iter().filter(|(_, it)| {
            let mirror = it.of.leg_of.as_ref();
            mirror.is_some_and(|it| names.contains(it))
        });
        let legs: Vec<String> = legs.map(|(_, it)| it.of.name.clone()).collect();
        names.extend(legs);
        names
    }

    /// Volumes that the file has no more.
    fn gone(&self) -> Vec<u16> {
        let state = self.service.state();
        let gone = self.plan.iter().filter_map(|change| match change {
            Change::CloseVolume(name) => state.volumes.number(name).ok(),
            _ => None,
        });
        gone.collect()
    }

    /// Refuses forbidden changes.
    fn check(&self, force: bool) -> anyhow::Result<()> {
        let gone = self.gone();
        self.service.spare_nodes(&self.new, force)?;
        spare_clients(self.service, &gone, force)?;
        let state = self.service.state();
        for change in &self.plan {
            if let Change::OpenVolume(name) = change
                && let Some(it) = self.desired.volume(name)
            {
                let legs = self.desired.legs(name);
                let mut new = legs.iter().chain([&it.of]);
                new.try_for_each(|of| apart(&state, of, &gone))?;
            }
        }
        spare_unclean(&state, &self.plan, force)?;
        drop(state);
        self.spare_last_leg()
    }

    /// A mirror that gives up legs keeps one that is in sync: one that was taken back would have to
    /// be rebuilt.
    fn spare_last_leg(&self) -> anyhow::Result<()> {
        for it in self.desired.volumes.iter().filter(|it| it.of.is_mirror()) {
            let name = &it.of.name;
            let service = self.service;
            let gone: Vec<u16> = {
                let state = service.state();
                let gone = self.plan.iter().filter_map(|change| match change {
                    Change::RemoveLeg(mirror, leg) if mirror == name => {
                        state.volumes.opened_as(&leg.of.name)
                    }
                    _ => None,
                });
                gone.collect()
            };
            if gone.is_empty() {
                continue;
            }
            let number = service.state().volumes.number(name);
            let report = number.and_then(|number| service.mirror_report(number));
            let report = report.map_err(|error| anyhow!("volume {name}: {error}"))?;
            let stays = |leg: &LegReport| leg.volume.is_none_or(|it| !gone.contains(&it));
            if !report.legs.iter().any(|leg| leg.serves() && stays(leg)) {
                bail!(
                    "volume {name}: none of the legs that stay is in sync: add others first, and \
                     reload without these when they are"
                );
            }
        }
        Ok(())
    }

    /// Does the steps that can fail.
    fn prepare(&mut self, steps: &mut Reconciler<'_>) -> anyhow::Result<()> {
        for change in self.plan.iter().filter(|it| it.can_fail()) {
            let volume = change.volume();
            let made = steps.step(change.clone(), false);
            made.map_err(|why| anyhow!("volume {volume}: {why}"))?;
            match change {
                Change::AddPath(_, it) => self.said.push(format!("added {}", it.config.uri)),
                Change::RemovePath(_, it) => {
                    self.said.push(format!("removed {}", it.config.uri));
                }
                Change::AddLeg(_, it) => self.said.push(format!("added leg {}", leg_words(it))),
                Change::RemoveLeg(_, it) => {
                    self.said.push(format!("removed leg {}", leg_words(it)));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Absent paths are not looked for any more: the file says so, and what needs force was
    /// refused.
    fn forget(&mut self, steps: &mut Reconciler<'_>) {
        for change in &self.plan {
            if let Change::ForgetPath(name, path) = change {
                let name = self.renames.now(name).to_owned();
                let change = Change::ForgetPath(name, path.clone());
                self.said.push(match steps.step(change, true) {
                    Ok(()) => format!("removed {}", path.uri),
                    Err(why) => format!("not removed: {why}"),
                });
            }
        }
    }

    /// Applies the keys of the engine that are no volume's, no path's and no client's.
    fn apply_engine_keys(&mut self, before: &Config) {
        let service = self.service;
        if before.on_event != self.new.on_event {
            service.hook.set(&self.new.on_event);
            self.said.push("changed on_event".to_owned());
        }
        if before.log_level != self.new.log_level {
            service.log.apply_level(self.new.log_level);
            self.said.push("changed log_level".to_owned());
        }
        if before.alarms != self.new.alarms {
            let limits = self.new.alarms.limits(self.new.kato_ms());
            service.health.set_limits(limits);
            self.said.push("changed [alarms]".to_owned());
        }
    }

    /// Exports that get another volume: names of both, and the guard of its rules. Not under the
    /// lock of the state: users are looked up.
    fn moved_exports(&self) -> anyhow::Result<Vec<(String, String, Export, Guard)>> {
        let moves = self.plan.iter().filter_map(|change| match change {
            Change::MoveExport(from, to, export) => Some((from, to, export)),
            _ => None,
        });
        let moves = moves.map(|(from, to, export)| {
            let guard = export.admission.guard()?;
            Ok((from.clone(), to.clone(), export.clone(), guard))
        });
        moves.collect()
    }

    /// Exports take clients, then what can't fail.
    fn rest(&mut self, steps: &mut Reconciler<'_>, gone: &[u16]) -> anyhow::Result<()> {
        let service = self.service;
        let bound = steps.take_bound();
        let moved = self.moved_exports()?;
        let renames = self.renames.clone();
        let names = service.changes.names();
        let mut choices = service.choices();
        let mut state = service.state();
        state.ensure_open()?;
        let alone = ensure_alone(&Desired::now(&state), &self.plan);
        alone.map_err(|why| anyhow!("{why}"))?;
        // Anew: legs of other mirrors may have come and gone by verb meanwhile.
        name_legs(&mut self.new, &state.configured, &state)?;
        // Anew: mirrors have their numbers, and so their cores, now.
        service.place_subsystems(&state, &mut self.new)?;
        service.place_queues(&state, &mut self.new)?;
        let numbers = state.volumes.numbered(&self.new);
        let number = |state: &State, name: &str| {
            let new = numbers.iter().find(|(_, of)| of.name == name);
            // The one that leaves is none of the new configuration.
            new.map(|it| it.0)
                .or_else(|| state.volumes.number(name).ok())
        };
        let moves = moved.into_iter().filter_map(|(from, to, export, guard)| {
            Some(ExportMove {
                // Else it was removed by hand meanwhile.
                number: state.export_at(number(&state, &from)?, &export.nbd)?,
                volume: number(&state, &to)?,
                export,
                guard,
            })
        });
        let moves: Vec<_> = moves.collect();
        state.ensure_exports(bound.len() + moves.len())?;
        let again = service.restore_sockets(&mut state, &self.new)?;
        let added = service.begin_exports(&mut state, bound, moves)?;
        let mut changed: Vec<String> = added.iter().map(|uri| format!("added {uri}")).collect();
        for change in &self.plan {
            let (Change::AddExport(name, export)
            | Change::SetExport(name, _, export)
            | Change::MoveExport(_, name, export)
            | Change::RemoveExport(name, export)) = change
            else {
                continue;
            };
            if state.is_stopped(name) {
                changed.push(format!("{change}, for its next start"));
                continue;
            }
            let volume = number(&state, name);
            let at = volume.and_then(|it| state.export_at(it, &export.nbd));
            let Some(at) = at else {
                continue; // it was removed by hand meanwhile
            };
            let uri = state.exports[at].as_ref().map(|it| it.uri.clone());
            let uri = uri.unwrap_or_default();
            match change {
                Change::SetExport(_, before, after) => {
                    let gone = changed_clients(service, &state, at, (before, after));
                    changed.push(format!("changed {uri}{gone}"));
                }
                Change::MoveExport(from, to, _) => {
                    changed.push(format!("{to}: took {uri} from {from}"));
                }
                Change::AddExport(..) => {} // among the added
                _ => {
                    service.remove_export(&mut state, at);
                    self.said.push(format!("removed {uri}"));
                }
            }
        }
        changed.extend(again);
        for number in gone {
            // Also those that came by verb since this was planned: its number is another's soon.
            let uris = service.remove_exports(&mut state, *number).into_iter();
            self.said.extend(uris.map(|uri| format!("removed {uri}")));
            let name = state.volumes.name(*number);
            self.said.push(format!("removed volume {name}"));
        }
        self.said.extend(service.rename(&mut state, &renames));
        choices.rename(&renames);
        renames.apply_to(&mut self.new);
        let before = state.served();
        let mut opened = state.volumes.admit(&self.new);
        // Those of mirrors are said to have come with these; a verb may open one just now.
        opened.retain(|it| state.volumes[*it].of.leg_of.is_none());
        let new = opened.iter();
        self.said
            .extend(new.map(|number| service.tell_new(&state, *number)));
        self.said.append(&mut changed);
        service.apply_subsystems(&mut state, &self.new, steps.take_host_ports());
        let bound = std::mem::take(&mut self.queues);
        for applied in service.apply_queues(&mut state, &self.new, bound) {
            self.said.push(applied.unwrap_or_else(|why| {
                log::say(why.clone());
                why
            }));
        }
        // Not before: a subsystem that ends is of their numbers.
        gone.iter().for_each(|it| state.volumes.leave(*it));
        let nvme = nvme_exports::changes(&before, &state.served());
        self.said.extend(nvme.iter().map(Change::to_string));
        // Anew: keys may have been set by verb meanwhile.
        let now = Desired::now(&state);
        let mut desired = now.reloaded(&state.configured, &self.new, &choices);
        keep_exports(&mut desired, &now, &self.plan);
        self.said.extend(service.set_values(&mut state, desired));
        self.apply_engine_keys(&state.configured);
        state.configured = self.new.clone();
        drop(state);
        service.programs.wake();
        freeze::step("before", &"records of the new configuration");
        choices.forget_others(&self.new);
        drop(choices);
        service.rename_records(&renames);
        drop(names);
        service.keep_opened(&opened);
        freeze::step("after", &"records of the new configuration");
        Ok(())
    }
}

/// Treats the clients of an export by its new keys; in words.
fn changed_clients(
    service: &Service,
    state: &State,
    at: usize,
    (before, after): (&Export, &Export),
) -> String {
    if before.read_only != after.read_only {
        service.renew_export(state, at);
        return String::new();
    }
    match service.dismiss_clients(state, at) {
        0 => String::new(),
        count => format!(" (its rules disconnect {count} of its clients)"),
    }
}

/// Absent paths that may hold writes (T13) don't leave.
///
/// # Errors
/// The first that would.
pub fn spare_unclean(state: &State, plan: &[Change], force: bool) -> anyhow::Result<()> {
    for change in plan {
        if let Change::ForgetPath(name, path) = change
            && let Ok(number) = state.volumes.number(name)
            && let Some(it) = state.volumes[number].entries().of_uri(&path.uri)
        {
            let spared = state.volumes[number].spare_unclean(it.index(), force);
            spared.map_err(|why| anyhow!("volume {name}: {why}"))?;
        }
    }
    Ok(())
}

/// Makes a change of values that can't fail; in words.
pub fn set(
    service: &Service,
    state: &mut State,
    change: &Change,
    desired: &Desired,
) -> Option<String> {
    let name = change.volume();
    let number = state.volumes.number(name).ok()?;
    match change {
        Change::SetPolicy(_, policy, knobs) => {
            let it = &mut state.volumes[number];
            let before = it.of.policy;
            it.values.note(before);
            it.values.note(*policy);
            if before != *policy {
                log::say(format!("{name}: policy changed from {before} to {policy}"));
            }
            say_knobs(name, &it.of.knobs(), knobs);
            match policy {
                // The one before chooses until the program is there.
                Policy::Program(_) if before != *policy => service.programs.wake(),
                _ => service.senders.set_policy(number, *policy, *knobs),
            }
            Some(format!("{name}: policy {policy}"))
        }
        Change::SetPath(_, keys, words) => {
            let path = state.volumes[number].set_attributes(keys)?;
            service
                .senders
                .set_throughput(number, path, keys.throughput);
            service.senders.set_distance(number, path, keys.distance);
            Some(format!("{}: {}", keys.uri, words.join(", ")))
        }
        Change::SetKeys(_, words) => {
            let of = &desired.volume(name)?.of;
            let before = &state.volumes[number].of;
            let both = live::changed(of, before).into_iter();
            for (before, after) in both.zip(live::changed(before, of)) {
                log::say(format!("{name}: changed from {before} to {after}"));
            }
            // The keys of a mirror's legs are their own.
            if !of.is_mirror() {
                service.senders.set_recovery(number, of.recovery());
            }
            Some(format!("{name}: {}", words.join(", ")))
        }
        _ => None,
    }
}

/// Says which knobs of policies have another value.
fn say_knobs(volume: &str, before: &Knobs, after: &Knobs) {
    let words = |it: &Knobs| {
        [
            format!("ewma_shift {}", it.ewma_shift),
            format!("weight_timeout {}", format_ns(it.weight_timeout_ns as f64)),
            format!("hedge {}", it.hedging),
        ]
    };
    let both = words(before).into_iter().zip(words(after));
    for (before, after) in both.filter(|(before, after)| before != after) {
        log::say(format!("{volume}: changed from {before} to {after}"));
    }
}

/// State with which an engine would begin, a line for each volume, export and namespace.
pub fn start_in_words(config: &Config) -> Vec<String> {
    let all = plan(&Desired::of_file(config), &[]).into_iter();
    let all = all.chain(nvme_exports::changes(&[], &config.subsystems));
    all.map(|it| it.to_string()).collect()
}

/// Volumes with clients don't leave.
fn spare_clients(service: &Service, gone: &[u16], force: bool) -> anyhow::Result<()> {
    if gone.is_empty() || force {
        return Ok(());
    }
    for (number, clients) in service.clients_of(gone)? {
        if clients > 0 {
            bail!(
                "volume {}: it is gone from the file, and clients of it are connected: {clients}; \
                 disconnect them, or say braid reload --force",
                service.name(number)
            );
        }
    }
    Ok(())
}

/// A new volume has no path of one that leaves: writes of that one may be under way, and be
/// executed after its own (T9).
fn apart(state: &State, of: &Volume, gone: &[u16]) -> anyhow::Result<()> {
    let names: Vec<_> = gone.iter().map(|it| state.volumes.name(*it)).collect();
    let is_leg = |it: &Running| it.of.leg_of.as_ref().is_some_and(|it| names.contains(it));
    let all = state.volumes.iter();
    let gone = all.filter(|(number, it)| gone.contains(number) || is_leg(it));
    for (_, Running { of: leaves, .. }) in gone {
        if let Some(uri) = of.shared(&leaves.paths) {
            bail!(
                "volume {}: {uri} is a path of {}, which is gone from the file: reload without \
                 both first",
                of.name,
                leaves.name
            );
        }
    }
    Ok(())
}

/// Refuses changes that need a restart.
fn refuse_fixed(old: &Config, new: &Config) -> anyhow::Result<()> {
    for new in &new.volumes {
        let Some(old) = old.volume(&new.name) else {
            continue;
        };
        if old.kind != new.kind {
            bail!(
                "volume {}: its kind can't be changed: give the new one another name, or reload \
                 without it first",
                old.name
            );
        }
        let fixed = live::fixed(old, new);
        if !fixed.is_empty() {
            bail!(
                "volume {}: {} can't be changed while the engine runs: restart it",
                old.name,
                fixed.join(", ")
            );
        }
        refuse_legs(old, new)?;
    }
    let mut same = new.clone();
    same.volumes.clone_from(&old.volumes);
    same.drain_timeout = old.drain_timeout;
    same.log_level = old.log_level;
    same.on_event.clone_from(&old.on_event);
    same.alarms.clone_from(&old.alarms);
    same.discoveries.clone_from(&old.discoveries);
    same.subsystems.clone_from(&old.subsystems);
    same.homes.clone_from(&old.homes);
    same.queues.clone_from(&old.queues);
    same.metrics.clone_from(&old.metrics);
    same.metrics_allow.clone_from(&old.metrics_allow);
    same.metrics_open = old.metrics_open;
    same.program_files.clone_from(&old.program_files);
    if same != *old {
        bail!(
            "of what stands before the volumes only drain_timeout, log_level, on_event, metrics, \
             [alarms], [[discovery]] and [[queue]] can change: restart the engine"
        );
    }
    Ok(())
}
