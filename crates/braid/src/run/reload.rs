//! Another configuration for a running engine: all of the difference, or nothing.
//!
//! # Contract
//! Volumes are paired by name. What can fail is done first, and taken back if something else
//! fails: new volumes are opened, new paths are connected, new exports listen; then paths that are
//! gone from the file leave, dead ones last, since these can't be connected again; then exports
//! that are there change (`exports`). Then the rest changes in one moment, as everybody sees it:
//! new exports take clients, new volumes are there, others are not, policies and knobs are those of
//! the file. What can't fail comes last: volumes that are gone drain and leave. A volume with a
//! path of one that leaves comes with another reload, when no write of that one can be under way.
//!
//! A volume whose paths the file gives anew gets just these, whatever was added or removed by hand.
//! A volume with clients leaves by force only. Takes as long as paths take to connect and drain;
//! not to be called by the thread that passes news between cores on.
use super::choices::Choices;
use super::config::{Config, Export, PathKeys, Subsystem, Volume};
use super::entries::PathEntry;
use super::exports::Listening;
use super::live;
use super::mirrors::keep_legs;
use super::nvme_exports;
use super::plan::{ActualVolume, Change, Presence, plan};
use super::service::{Service, State};
use crate::control::server::Caller;
use anyhow::{anyhow, bail};
use engine::host::PathState;
use std::collections::BTreeMap;

/// A reload under way.
struct Reload<'a> {
    service: &'a Service,
    /// As the file says.
    new: Config,
    /// Its volumes, with the keys that were chosen by verb and still hold.
    wanted: Vec<Volume>,
    plan: Vec<Change>,
    /// Numbers of volumes that were opened for it, which are not there yet.
    opened: BTreeMap<String, u16>,
    /// Steps that were done, to be taken back.
    done: Vec<Change>,
    /// What was changed, in words.
    said: Vec<String>,
}

/// Applies the file; what was changed, in words. `force`: volumes leave that have clients, and
/// absent paths that may hold writes (T13).
///
/// # Errors
/// Why nothing was.
pub fn reload(service: &Service, force: bool, by: &Caller<'_>) -> anyhow::Result<String> {
    let new = Config::read(&service.file)?;
    let _alone = service.changes.alone();
    by.ensure_there()?;
    let mut reload = Reload::new(service, new)?;
    let sources = service.find_sources(&reload.new)?;
    let gone = reload.gone();
    reload.spare_unclean(force)?;
    let made = spare_clients(service, &gone, force).and_then(|()| reload.prepare());
    let made = made.and_then(|listening| {
        // Again, because that took its time.
        spare_clients(service, &gone, force)?;
        reload.rest(listening, &gone)
    });
    if let Err(error) = made {
        return Err(match reload.take_back() {
            Ok(()) => error,
            Err(why) => error.context(format!("and not all could be taken back: {why}")),
        });
    }
    reload.forget();
    let mut changes = reload.said;
    changes.extend(service.set_sources(sources));
    changes.extend(service.remove_volumes(&gone));
    Ok(match changes.is_empty() {
        true => "no difference".into(),
        false => changes.join(", "),
    })
}

/// What a reload would change, a line for each step in its order.
///
/// # Errors
/// Why it would change nothing.
pub fn dry_run(service: &Service, force: bool) -> anyhow::Result<Vec<String>> {
    let new = Config::read(&service.file)?;
    let reload = Reload::new(service, new)?;
    let gone = reload.gone();
    spare_clients(service, &gone, force)?;
    reload.spare_unclean(force)?;
    for change in &reload.plan {
        if let Change::OpenVolume(name) = change {
            apart(&service.state(), reload.wanted(name), &gone)?;
        }
    }
    service.find_sources(&reload.new)?;
    let lines = reload.plan.iter().map(Change::to_string);
    let exports = {
        let state = service.state();
        let there = state.exports.iter().flatten();
        let there = there.map(|it| (state.volumes.name(it.volume), it.export.clone()));
        let exports = exports_in_words(&there.collect::<Vec<_>>(), &reload.new);
        exports
            .into_iter()
            .chain(nvme_exports::hosts_in_words(&state, &reload.new))
    };
    let discovery = service.state().configured.discoveries != reload.new.discoveries;
    let discovery = discovery.then(|| "change [[discovery]]".to_owned());
    let drain = service.state().configured.drain_timeout != reload.new.drain_timeout;
    let drain = drain.then(|| "set drain_timeout".to_owned());
    Ok(lines.chain(exports).chain(discovery).chain(drain).collect())
}

impl<'a> Reload<'a> {
    /// What is to be done, where all of it can be.
    fn new(service: &'a Service, mut new: Config) -> anyhow::Result<Self> {
        let cores = service.senders.report().unwrap_or_default();
        let state = |number: u16, index: u8| {
            let paths = cores.first()?.volumes.get(usize::from(number))?;
            Some(paths.get(usize::from(index))?.state)
        };
        let choices = service.choices();
        let now = service.state();
        keep_legs(
            &mut new.volumes,
            now.volumes.iter().map(|(_, it)| it.of.clone()),
        );
        refuse_fixed(&now.configured, &new)?;
        let actual = actual(&now, |number, path| match path.is_there() {
            false => Presence::Absent,
            true if state(number, path.index().0) == Some(PathState::Live) => Presence::Live,
            true => Presence::Down,
        });
        let wanted = with_choices(&new, &choices);
        drop(now);
        drop(choices);
        Ok(Self {
            service,
            plan: plan(&wanted, &actual),
            new,
            wanted,
            opened: BTreeMap::new(),
            done: Vec::new(),
            said: Vec::new(),
        })
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

    fn wanted(&self, name: &str) -> &Volume {
        let found = self.wanted.iter().find(|it| it.name == name);
        found.unwrap_or_else(|| panic!("{name} is planned for and not wanted"))
    }

    /// Absent paths that may hold writes (T13) don't leave.
    fn spare_unclean(&self, force: bool) -> anyhow::Result<()> {
        let state = self.service.state();
        for change in &self.plan {
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

    /// What can fail: volumes open, paths join, new exports listen, paths leave.
    fn prepare(&mut self) -> anyhow::Result<Listening> {
        let sure = self.plan.iter().filter(|it| it.can_fail()).cloned();
        let (leave, come): (Vec<_>, Vec<_>) =
            sure.partition(|it| matches!(it, Change::RemovePath(..)));
        for change in come {
            self.make(change)?;
        }
        let listening = self.service.listen(&self.new)?;
        for change in leave {
            self.make(change)?;
        }
        Ok(listening)
    }

    /// One step that can fail.
    fn make(&mut self, change: Change) -> anyhow::Result<()> {
        let (volume, made) = match &change {
            Change::OpenVolume(name) => {
                let gone = self.gone();
                apart(&self.service.state(), self.wanted(name), &gone)?;
                let opened = self.service.open_volume(self.wanted(name));
                let opened = opened.map(|number| {
                    self.opened.insert(name.clone(), number);
                });
                (name, opened)
            }
            Change::AddPath(name, path) => {
                self.said.push(format!("added {}", path.uri));
                (name, self.add_path(name, path))
            }
            Change::RemovePath(name, path) => {
                self.said.push(format!("removed {}", path.uri));
                (name, self.remove_path(name, path, false))
            }
            other => unreachable!("{other}: it can't fail"),
        };
        made.map_err(|why| anyhow!("volume {volume}: {why}"))?;
        self.done.push(change);
        Ok(())
    }

    fn add_path(&self, name: &str, path: &PathKeys) -> Result<(), String> {
        let number = self.number(name)?;
        self.service.add_path(number, path.clone()).map(drop)
    }

    fn remove_path(&self, name: &str, path: &PathKeys, force: bool) -> Result<(), String> {
        let number = self.number(name)?;
        let index = {
            let state = self.service.state();
            let it = state.volumes.get(number);
            it.and_then(|it| Some(it.entries().of_uri(&path.uri)?.index()))
        };
        let index = index.ok_or_else(|| format!("{} has left meanwhile", path.uri))?;
        self.service.remove_path(number, index, force)
    }

    fn number(&self, name: &str) -> Result<u16, String> {
        let there = self.service.state().volumes.number(name);
        there.map_err(|error| error.to_string())
    }

    /// Whatever can't be taken back is named; the rest is.
    fn take_back(&mut self) -> Result<(), String> {
        let mut whys = Vec::new();
        for change in std::mem::take(&mut self.done).iter().rev() {
            let taken = match change.undo() {
                Some(Change::CloseVolume(name)) => {
                    self.service.take_back_volume(self.opened[&name]);
                    Ok(())
                }
                Some(Change::AddPath(name, path)) => self.add_path(&name, &path),
                Some(Change::RemovePath(name, path)) => self.remove_path(&name, &path, true),
                _ => unreachable!("{change}: it can't fail"),
            };
            whys.extend(taken.err());
        }
        match whys.is_empty() {
            true => Ok(()),
            false => Err(whys.join("; ")),
        }
    }

    /// Absent paths are not looked for any more: the file says so, and what needs force was
    /// refused.
    fn forget(&mut self) {
        for change in &self.plan {
            if let Change::ForgetPath(name, path) = change {
                self.said.push(match self.remove_path(name, path, true) {
                    Ok(()) => format!("removed {}", path.uri),
                    Err(why) => format!("not removed: {why}"),
                });
            }
        }
    }

    /// Exports, then what can't fail.
    fn rest(&mut self, listening: Listening, gone: &[u16]) -> anyhow::Result<()> {
        let service = self.service;
        let mut choices = service.choices();
        let mut state = service.state();
        state.ensure_open()?;
        let again = service.restore_sockets(&mut state, &self.new)?;
        let mut changed = service.apply_exports(&mut state, &self.new, listening)?;
        changed.extend(again);
        changed.extend(service.apply_hosts(&state, &self.new));
        for number in 0..state.exports.len() {
            let there = state.exports[number].as_ref();
            let over = there.filter(|there| {
                let volume = self.new.volume(&state.volumes.name(there.volume));
                volume.is_none_or(|volume| {
                    let mut exports = volume.exports.iter();
                    !exports.any(|export| *export == there.export)
                })
            });
            if let Some(uri) = over.map(|there| there.uri.clone()) {
                service.remove_export(&mut state, number);
                self.said.push(format!("removed {uri}"));
            }
        }
        for number in gone {
            let name = state.volumes.name(*number);
            self.said.push(format!("removed volume {name}"));
            state.volumes.leave(*number);
        }
        let opened = state.volumes.admit(&self.new);
        let new = opened.iter();
        self.said
            .extend(new.map(|number| service.tell_new(&state, *number)));
        self.said.append(&mut changed);
        // Anew: keys may have been set by verb meanwhile.
        let wanted = with_choices(&self.new, &choices);
        let actual = actual(&state, |_, _| Presence::Down);
        for change in plan(&wanted, &actual) {
            let said = set(service, &mut state, &change, &wanted);
            self.said.extend(said);
        }
        for of in &wanted {
            if let Ok(number) = state.volumes.number(&of.name) {
                state.volumes[number].configure(of.clone());
            }
        }
        state.configured = self.new.clone();
        drop(state);
        choices.forget_others(&self.new);
        drop(choices);
        service.keep_opened(&opened);
        Ok(())
    }
}

/// The volumes of a file, with the keys that were chosen by verb and still hold.
fn with_choices(config: &Config, choices: &Choices) -> Vec<Volume> {
    let mut wanted = config.volumes.clone();
    wanted.iter_mut().for_each(|it| choices.apply_keys(it));
    wanted
}

/// The volumes that run.
fn actual(state: &State, presence: impl Fn(u16, &PathEntry) -> Presence) -> Vec<ActualVolume> {
    let all = state.volumes.iter().map(|(number, it)| {
        let configured = state.configured.paths_of(&it.of.name);
        ActualVolume::of(it, configured, |path| presence(number, path))
    });
    all.collect()
}

/// Makes a change that can't fail, of a volume that is there; in words.
fn set(service: &Service, state: &mut State, change: &Change, wanted: &[Volume]) -> Option<String> {
    let (Change::SetPolicy(name, _) | Change::SetThroughput(name, _) | Change::SetKeys(name, _)) =
        change
    else {
        return None;
    };
    let number = state.volumes.number(name).ok()?;
    let of = wanted.iter().find(|it| it.name == *name)?;
    match change {
        Change::SetPolicy(..) => {
            service.set_policy(state, number, of.policy, of.knobs());
            Some(format!("{name}: policy {}", of.policy))
        }
        Change::SetThroughput(_, keys) => {
            let it = &mut state.volumes[number];
            let path = it.set_throughput(&keys.uri, keys.throughput)?;
            let senders = &service.senders;
            senders.set_throughput(number, path, keys.throughput);
            Some(format!("{}: throughput {}", keys.uri, keys.throughput))
        }
        Change::SetKeys(_, words) => {
            service.senders.set_recovery(number, of.recovery());
            Some(format!("{name}: {}", words.join(", ")))
        }
        _ => None,
    }
}

/// What an engine would begin with, a line for each volume and export over NBD.
pub fn start_in_words(config: &Config) -> Vec<String> {
    let of_legs = |change: &Change| match change {
        Change::OpenVolume(name) => config.volume(name).is_some_and(|it| it.leg_of.is_some()),
        _ => false,
    };
    let volumes = plan(&config.volumes, &[]).into_iter();
    let volumes = volumes.filter(|it| !of_legs(it));
    let volumes = volumes.map(|it| it.to_string());
    volumes.chain(exports_in_words(&[], config)).collect()
}

/// What changes of exports over NBD. `there`: each with the name of its volume.
fn exports_in_words(there: &[(String, Export)], new: &Config) -> Vec<String> {
    let wanted = || {
        let all = new.volumes.iter();
        all.flat_map(|of| of.exports.iter().map(|it| (&of.name, it)))
    };
    let is_at =
        |it: &(String, Export), name: &str, export: &Export| it.0 == name && it.1.nbd == export.nbd;
    let mut lines = Vec::new();
    for (name, export) in wanted() {
        match there.iter().find(|it| is_at(it, name, export)) {
            None => lines.push(format!("{name}: add export {}", export.nbd)),
            Some((_, now)) if now != export => {
                lines.push(format!("{name}: change export {}", export.nbd));
            }
            Some(_) => {}
        }
    }
    let gone = there.iter();
    let gone = gone.filter(|it| !wanted().any(|(name, export)| is_at(it, name, export)));
    lines.extend(gone.map(|(name, export)| format!("{name}: remove export {}", export.nbd)));
    lines
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
    for number in gone {
        let leaves = &state.volumes[*number].of;
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

/// Mirrors stay as they are, with their legs.
fn refuse_mirrors(old: &Config, new: &Config) -> anyhow::Result<()> {
    let mirrors = |config: &Config| -> Vec<Volume> {
        let mirrors = config.volumes.iter().filter(|it| it.is_mirror());
        let fixed = mirrors.map(|it| Volume {
            export_keys: Vec::new(),
            exports: Vec::new(),
            ..it.clone()
        });
        let mut fixed: Vec<Volume> = fixed.collect();
        fixed.sort_by(|a, b| a.name.cmp(&b.name));
        fixed
    };
    if mirrors(old) != mirrors(new) {
        bail!(
            "mirrors and their legs can't come, go or change by a reload yet (but for exports): \
             restart the engine"
        );
    }
    Ok(())
}

/// What needs a restart.
fn refuse_fixed(old: &Config, new: &Config) -> anyhow::Result<()> {
    refuse_mirrors(old, new)?;
    let of_any_host = |config: &Config| -> Vec<Subsystem> {
        let all = config.subsystems.iter().cloned();
        let any = all.map(|it| Subsystem {
            hosts: Vec::new(),
            ..it
        });
        any.collect()
    };
    if of_any_host(old) != of_any_host(new) {
        bail!(
            "exports over NVMe/TCP can't come, go or change by a reload yet (but for hosts): \
             restart the engine"
        );
    }
    for new in &new.volumes {
        let Some(old) = old.volume(&new.name) else {
            continue;
        };
        for keys in &new.paths {
            let mut before = old.paths.iter().filter(|it| it.uri == keys.uri);
            if before.any(|it| it.distance != keys.distance) {
                bail!(
                    "{}: its distance can't be changed yet: restart the engine",
                    keys.uri
                );
            }
        }
        let fixed = live::fixed(old, new);
        if !fixed.is_empty() {
            bail!(
                "volume {}: {} can't be changed while the engine runs: restart it",
                old.name,
                fixed.join(", ")
            );
        }
    }
    let mut same = new.clone();
    same.volumes.clone_from(&old.volumes);
    same.drain_timeout = old.drain_timeout;
    same.discoveries.clone_from(&old.discoveries);
    same.subsystems.clone_from(&old.subsystems);
    if same != *old {
        bail!(
            "of what stands before the volumes only drain_timeout and [[discovery]] can change: \
             restart the engine"
        );
    }
    Ok(())
}
