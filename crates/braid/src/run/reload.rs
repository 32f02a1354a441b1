//! Another configuration for a running engine: all of the difference, or nothing.
//!
//! # Contract
//! What can fail is done first, and taken back if something else fails: new paths are connected,
//! then paths that are gone from the file leave, then new exports listen and those that are there
//! change (`exports`); then the rest changes. A volume whose paths the file gives anew gets just
//! these, whatever was added or removed by hand. Takes as long as paths take to connect and drain;
//! not to be called by the thread that passes news between cores on.
use super::config::{Config, PathKeys};
use super::service::{Service, State};
use anyhow::{anyhow, bail};
use policy::PathIndex;

/// A path that was added to a volume, or left it.
enum Done {
    Added(u16, PathIndex),
    Removed(u16, PathKeys),
}

/// Applies the file; what was changed, in words.
///
/// # Errors
/// Why nothing was.
pub fn reload(service: &Service) -> anyhow::Result<String> {
    let new = Config::read(&service.file)?;
    let _alone = service.changes.alone();
    refuse_fixed(&service.state().configured, &new)?;
    let mut done = Vec::new();
    let mut changes = Vec::new();
    let made = paths(service, &new, &mut done, &mut changes);
    let made = made.and_then(|()| rest(service, new, &mut changes));
    if let Err(error) = made {
        return Err(match take_back(service, done) {
            Ok(()) => error,
            Err(why) => error.context(format!("and not all could be taken back: {why}")),
        });
    }
    Ok(match changes.is_empty() {
        true => "no difference".into(),
        false => changes.join(", "),
    })
}

/// New paths join, those that are gone leave.
fn paths(
    service: &Service,
    new: &Config,
    done: &mut Vec<Done>,
    changes: &mut Vec<String>,
) -> anyhow::Result<()> {
    for (volume, of) in (0_u16..).zip(&new.volumes) {
        let (missing, gone) = difference(&service.state(), volume, &of.paths);
        for keys in missing {
            let uri = keys.uri.to_string();
            let added = service.add_path(volume, keys);
            let path = added.map_err(|why| anyhow!("volume {}: {why}", of.name))?;
            done.push(Done::Added(volume, path));
            changes.push(format!("added {uri}"));
        }
        for (path, keys) in gone {
            let removed = service.remove_path(volume, path, false);
            removed.map_err(|why| anyhow!("volume {}: {why}", of.name))?;
            changes.push(format!("removed {}", keys.uri));
            done.push(Done::Removed(volume, keys));
        }
    }
    Ok(())
}

/// What `wanted` has more and less than a volume; nothing where the file says what it said before.
fn difference(
    state: &State,
    volume: u16,
    wanted: &[PathKeys],
) -> (Vec<PathKeys>, Vec<(PathIndex, PathKeys)>) {
    let at = usize::from(volume);
    if state.configured.volumes[at].paths == wanted {
        return (Vec::new(), Vec::new());
    }
    let there = &state.config.volumes[at].paths;
    let has = |all: &[PathKeys], keys: &PathKeys| all.iter().any(|it| it.uri == keys.uri);
    let missing = wanted.iter().filter(|keys| !has(there, keys));
    let gone = there.iter().zip(&state.volumes[at].places);
    let gone = gone.filter(|(keys, _)| !has(wanted, keys));
    (
        missing.cloned().collect(),
        gone.map(|(keys, place)| (PathIndex(*place), keys.clone()))
            .collect(),
    )
}

fn take_back(service: &Service, done: Vec<Done>) -> Result<(), String> {
    for step in done.into_iter().rev() {
        match step {
            Done::Added(volume, path) => service.remove_path(volume, path, true)?,
            Done::Removed(volume, keys) => service.add_path(volume, keys).map(|_| ())?,
        }
    }
    Ok(())
}

/// Exports, policies and knobs.
fn rest(service: &Service, mut new: Config, changes: &mut Vec<String>) -> anyhow::Result<()> {
    let mut state = service.state();
    changes.extend(service.apply_exports(&mut state, &new)?);
    for number in 0..state.exports.len() {
        let there = state.exports[number].as_ref();
        let gone = there.filter(|there| {
            let exports = &new.volumes[usize::from(there.volume)].exports;
            !exports.contains(&there.export)
        });
        if let Some(uri) = gone.map(|there| there.uri.clone()) {
            service.remove_export(&mut state, number);
            changes.push(format!("removed {uri}"));
        }
    }
    for (volume, of) in (0..).zip(&new.volumes) {
        let old = &state.config.volumes[usize::from(volume)];
        if (old.policy, old.knobs()) != (of.policy, of.knobs()) {
            service.set_policy(&mut state, volume, of.policy, of.knobs());
            changes.push(format!("{}: policy {}", of.name, of.policy));
        }
    }
    state.configured.clone_from(&new);
    for (volume, now) in new.volumes.iter_mut().zip(&state.config.volumes) {
        volume.paths.clone_from(&now.paths);
    }
    state.config = new;
    Ok(())
}

/// What needs a restart.
fn refuse_fixed(old: &Config, new: &Config) -> anyhow::Result<()> {
    let names = |config: &Config| -> Vec<String> {
        config.volumes.iter().map(|v| v.name.clone()).collect()
    };
    if names(old) != names(new) {
        bail!("volumes can't be added, removed or put in another order yet: restart the engine");
    }
    for (old, new) in old.volumes.iter().zip(&new.volumes) {
        for keys in &new.paths {
            let mut before = old.paths.iter().filter(|it| it.uri == keys.uri);
            if before.any(|it| it.distance != keys.distance) {
                bail!(
                    "{}: its distance can't be changed yet: restart the engine",
                    keys.uri
                );
            }
        }
        if old.recovery() != new.recovery() {
            bail!(
                "volume {}: what it does about failing paths can't be changed yet: restart the \
                 engine",
                old.name
            );
        }
    }
    let mut same = new.clone();
    same.volumes.clone_from(&old.volumes);
    same.drain_timeout = old.drain_timeout;
    if same != *old {
        bail!(
            "of what stands before the volumes only drain_timeout can change: restart the engine"
        );
    }
    Ok(())
}
