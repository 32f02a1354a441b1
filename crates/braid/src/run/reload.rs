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
use super::config::{Config, PathKeys, Volume};
use super::exports::Listening;
use super::live;
use super::mirrors::keep_legs;
use super::paths::uris;
use super::service::{Service, State};
use crate::control::server::Caller;
use anyhow::{anyhow, bail};
use policy::PathIndex;

/// What was done, to be taken back.
enum Done {
    Opened(u16),
    Added(u16, PathIndex),
    Removed(u16, PathKeys),
}

/// Applies the file; what was changed, in words. `force`: volumes leave that have clients, and
/// absent paths that may hold writes (T13).
///
/// # Errors
/// Why nothing was.
pub fn reload(service: &Service, force: bool, by: &Caller<'_>) -> anyhow::Result<String> {
    let mut new = Config::read(&service.file)?;
    let _alone = service.changes.alone();
    by.ensure_there()?;
    {
        let state = service.state();
        let running = state.volumes.iter().map(|(_, it)| it.of.clone());
        keep_legs(&mut new.volumes, running);
    }
    refuse_fixed(&service.state().configured, &new)?;
    let sources = service.find_sources(&new)?;
    let gone = gone(&service.state(), &new);
    spare_unclean(&service.state(), &new, force)?;
    let mut done = Vec::new();
    let mut changes = Vec::new();
    let mut absent = Vec::new();
    let made = spare_clients(service, &gone, force)
        .and_then(|()| open(service, &new, &gone, &mut done))
        .and_then(|()| paths(service, &new, &mut done, &mut changes, &mut absent))
        .and_then(|listening| {
            // Again, because that took its time.
            spare_clients(service, &gone, force)?;
            rest(service, new, listening, &gone, &mut changes)
        });
    if let Err(error) = made {
        return Err(match take_back(service, done) {
            Ok(()) => error,
            Err(why) => error.context(format!("and not all could be taken back: {why}")),
        });
    }
    for (volume, path, keys) in absent {
        // The file says so, and what needs force was refused.
        match service.remove_path(volume, path, true) {
            Ok(()) => changes.push(format!("removed {}", keys.uri)),
            Err(why) => changes.push(format!("not removed: {why}")),
        }
    }
    changes.extend(service.set_sources(sources));
    changes.extend(service.remove_volumes(&gone));
    Ok(match changes.is_empty() {
        true => "no difference".into(),
        false => changes.join(", "),
    })
}

/// Volumes that the file has no more.
fn gone(state: &State, new: &Config) -> Vec<u16> {
    let all = state.volumes.iter();
    let gone = all.filter(|(_, it)| new.volume(&it.of.name).is_none());
    gone.map(|(number, _)| number).collect()
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

/// Absent paths that may hold writes (T13) don't leave.
fn spare_unclean(state: &State, new: &Config, force: bool) -> anyhow::Result<()> {
    for of in &new.volumes {
        let Ok(volume) = state.volumes.number(&of.name) else {
            continue; // it is new
        };
        for (path, ..) in difference(state, volume, &of.paths).1 {
            let spared = state.volumes[volume].spare_unclean(path, force);
            spared.map_err(|why| anyhow!("volume {}: {why}", of.name))?;
        }
    }
    Ok(())
}

/// New volumes are opened.
fn open(service: &Service, new: &Config, gone: &[u16], done: &mut Vec<Done>) -> anyhow::Result<()> {
    for of in &new.volumes {
        if service.state().volumes.number(&of.name).is_err() {
            apart(&service.state(), of, gone)?;
            let opened = service.open_volume(of);
            let number = opened.map_err(|why| anyhow!("volume {}: {why}", of.name))?;
            done.push(Done::Opened(number));
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

/// New paths join, new exports listen, and paths that are gone leave.
fn paths(
    service: &Service,
    new: &Config,
    done: &mut Vec<Done>,
    changes: &mut Vec<String>,
    absent: &mut Vec<(u16, PathIndex, PathKeys)>,
) -> anyhow::Result<Listening> {
    let mut leaving = Vec::new();
    for of in &new.volumes {
        let found = service.state().volumes.number(&of.name);
        let Ok(volume) = found else {
            continue; // it was opened with its paths
        };
        let (missing, gone) = difference(&service.state(), volume, &of.paths);
        for keys in missing {
            let uri = keys.uri.to_string();
            let added = service.add_path(volume, keys);
            let path = added.map_err(|why| anyhow!("volume {}: {why}", of.name))?;
            done.push(Done::Added(volume, path));
            changes.push(format!("added {uri}"));
        }
        for (path, keys, is_there) in gone {
            match is_there {
                true => leaving.push((volume, path, keys)),
                // That can't fail, so it needs no way back.
                false => absent.push((volume, path, keys)),
            }
        }
    }
    let listening = service.listen(new)?;
    leaving.sort_by_cached_key(|(volume, path, _)| !service.is_live(*volume, *path));
    for (volume, path, keys) in leaving {
        let removed = service.remove_path(volume, path, false);
        removed.map_err(|why| anyhow!("volume {}: {why}", service.name(volume)))?;
        changes.push(format!("removed {}", keys.uri));
        done.push(Done::Removed(volume, keys));
    }
    Ok(listening)
}

/// What `wanted` has more and less than a volume, and whether the engine has it; nothing where the
/// file says what it said before.
fn difference(
    state: &State,
    volume: u16,
    wanted: &[PathKeys],
) -> (Vec<PathKeys>, Vec<(PathIndex, PathKeys, bool)>) {
    let it = &state.volumes[volume];
    if uris(state.configured.paths_of(&it.of.name)) == uris(wanted) {
        return (Vec::new(), Vec::new());
    }
    let there = &it.of.paths;
    let has = |all: &[PathKeys], keys: &PathKeys| all.iter().any(|it| it.uri == keys.uri);
    let missing = wanted.iter().filter(|keys| !has(there, keys));
    // What discovery told of is discovery's.
    let gone = it.entries().iter().filter(|it| !it.is_found());
    let gone = gone.filter(|it| !has(wanted, it.config()));
    let gone = gone.map(|it| (it.index(), it.config().clone(), it.is_there()));
    (missing.cloned().collect(), gone.collect())
}

/// Whatever can't be taken back is named; the rest is.
fn take_back(service: &Service, done: Vec<Done>) -> Result<(), String> {
    let mut whys = Vec::new();
    for step in done.into_iter().rev() {
        let taken = match step {
            Done::Opened(volume) => {
                service.take_back_volume(volume);
                Ok(())
            }
            Done::Added(volume, path) => service.remove_path(volume, path, true),
            Done::Removed(volume, keys) => service.add_path(volume, keys).map(drop),
        };
        whys.extend(taken.err());
    }
    match whys.is_empty() {
        true => Ok(()),
        false => Err(whys.join("; ")),
    }
}

/// Exports, then what can't fail.
fn rest(
    service: &Service,
    new: Config,
    listening: Listening,
    gone: &[u16],
    changes: &mut Vec<String>,
) -> anyhow::Result<()> {
    let mut choices = service.choices();
    let mut state = service.state();
    state.ensure_open()?;
    let again = service.restore_sockets(&mut state, &new)?;
    let mut changed = service.apply_exports(&mut state, &new, listening)?;
    changed.extend(again);
    for number in 0..state.exports.len() {
        let there = state.exports[number].as_ref();
        let over = there.filter(|there| {
            let volume = new.volume(&state.volumes.name(there.volume));
            volume.is_none_or(|volume| {
                let mut exports = volume.exports.iter();
                !exports.any(|export| *export == there.export)
            })
        });
        if let Some(uri) = over.map(|there| there.uri.clone()) {
            service.remove_export(&mut state, number);
            changes.push(format!("removed {uri}"));
        }
    }
    for number in gone {
        changes.push(format!("removed volume {}", state.volumes.name(*number)));
        state.volumes.leave(*number);
    }
    let opened = state.volumes.admit(&new);
    changes.extend(
        opened
            .iter()
            .map(|number| service.tell_new(&state, *number)),
    );
    changes.extend(changed);
    for (volume, mut of) in state.volumes.numbered(&new) {
        choices.apply_keys(&mut of);
        let old = &state.volumes[volume].of;
        if (old.policy, old.knobs()) != (of.policy, of.knobs()) {
            service.set_policy(&mut state, volume, of.policy, of.knobs());
            changes.push(format!("{}: policy {}", of.name, of.policy));
        }
        let it = &mut state.volumes[volume];
        for keys in &of.paths {
            if let Some(path) = it.set_throughput(&keys.uri, keys.throughput) {
                service
                    .senders
                    .set_throughput(volume, path, keys.throughput);
                changes.push(format!("{}: throughput {}", keys.uri, keys.throughput));
            }
        }
        let recovery = of.recovery();
        let differs = live::changed(&it.of.recovery(), &recovery);
        if !differs.is_empty() {
            service.senders.set_recovery(volume, recovery);
            changes.push(format!("{}: {}", of.name, differs.join(", ")));
        }
        it.configure(of);
    }
    state.configured = new.clone();
    drop(state);
    choices.forget_others(&new);
    drop(choices);
    service.keep_opened(&opened);
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
    if old.subsystems != new.subsystems {
        bail!("exports over NVMe/TCP can't come, go or change by a reload yet: restart the engine");
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
    if same != *old {
        bail!(
            "of what stands before the volumes only drain_timeout and [[discovery]] can change: \
             restart the engine"
        );
    }
    Ok(())
}
