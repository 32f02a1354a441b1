//! Legs of mirrors as another configuration has them.
use crate::run::config::{Config, LegKeys, PathKeys, Volume, leg_name};
use crate::run::service::State;
use crate::uri::names;
use anyhow::{anyhow, bail};
use std::collections::BTreeSet;

/// Legs of a mirror are those that it has (`old`), with what was added and removed by verb, unless
/// the file gives it other ones than it gave before: then they are these. One that stays keeps its
/// name, whether or not it has a volume now.
///
/// # Errors
/// A mirror that does not run gets other legs; a leg that stays gets another policy or paths.
pub fn name_legs(new: &mut Config, old: &Config, state: &State) -> anyhow::Result<()> {
    let of_file: Vec<Volume> = new
        .volumes
        .extract_if(.., |it| it.leg_of.is_some())
        .collect();
    let mirrors = new.volumes.iter().filter(|it| it.is_mirror());
    for mirror in mirrors.cloned().collect::<Vec<Volume>>() {
        let of_file = of_file.iter();
        let of_file = of_file.filter(|it| it.leg_of.as_ref() == Some(&mirror.name));
        let Some(before) = old.volume(&mirror.name) else {
            new.volumes.extend(of_file.cloned()); // it is new, and is being opened
            continue;
        };
        let stays = |leg: &Volume| of_same_file(leg, &mirror);
        if uris_of(&before.legs) == uris_of(&mirror.legs) {
            new.volumes.extend(old.legs(&mirror.name).map(stays));
            continue;
        }
        let number = state.mirror(&mirror.name);
        let number = number.map_err(|error| anyhow!("{error}"))?;
        if state.volumes[number].stopped.is_some() {
            bail!(
                "volume {0}: it is stopped, and has no other legs before it runs: start it first \
                 (braid mirror assemble {0})",
                mirror.name
            );
        }
        for (keys, leg) in mirror.legs.iter().zip(of_file) {
            let is_it = |it: &&Volume| uri_set(&it.paths) == uri_set(&leg.paths);
            if let Some(it) = old.legs(&mirror.name).find(is_it) {
                new.volumes.push(stays(it));
                continue;
            }
            let is_taken = |leg: &str| is_taken(state, &new.volumes, &mirror.name, leg);
            let name = match keys.name.as_deref() {
                Some(name) if is_taken(name) => bail!(
                    "volume {}: leg {}: another leg is called {name} while it is there",
                    mirror.name,
                    leg.paths[0].uri
                ),
                Some(name) => name.to_owned(),
                None => names::made(&leg.paths[0].uri, is_taken),
            };
            new.volumes.push(Volume {
                name: leg_name(&mirror.name, &name),
                ..leg.clone()
            });
        }
    }
    Ok(())
}

/// A leg that stays, as the file has it, with its mirror's keys as these are now.
fn of_same_file(leg: &Volume, mirror: &Volume) -> Volume {
    let is_it = |it: &&LegKeys| uri_set(&it.paths) == uri_set(&leg.paths);
    let keys = mirror.legs.iter().find(is_it);
    Volume {
        policy: keys.map_or(leg.policy, |it| it.policy),
        ..mirror.leg_volume(leg.name.clone(), leg.paths.clone())
    }
}

/// Whether a leg of `mirror` that runs, is left out, or comes is called so.
pub(super) fn is_taken(state: &State, coming: &[Volume], mirror: &str, leg: &str) -> bool {
    let name = leg_name(mirror, leg);
    let mut others = state.configured.volumes.iter().chain(coming);
    state.volumes.is_named(&name) || others.any(|it| it.name == name)
}

fn uri_set(paths: &[PathKeys]) -> BTreeSet<String> {
    paths.iter().map(|it| it.uri.to_string()).collect()
}

fn uris_of(legs: &[LegKeys]) -> BTreeSet<BTreeSet<String>> {
    legs.iter().map(|it| uri_set(&it.paths)).collect()
}

/// Facts of legs that can't change while a mirror runs: a leg that stays has the paths that it had,
/// and so far as other hosts can reach them now, they could before.
///
/// # Errors
/// Which would.
pub fn refuse_legs(old: &Volume, new: &Volume) -> anyhow::Result<()> {
    let name = &new.name;
    for leg in &new.legs {
        let same = |it: &&LegKeys| uri_set(&it.paths) == uri_set(&leg.paths);
        let Some(there) = old.legs.iter().find(same) else {
            continue;
        };
        let uri = &leg.paths[0].uri;
        if !leg.paths.iter().all(|it| there.paths.contains(it)) {
            bail!(
                "volume {name}: leg {uri}: the keys of its paths can't be changed while the engine \
                 runs: restart it"
            );
        }
    }
    if old.is_shared() != new.is_shared() {
        bail!(
            "volume {name}: whether other hosts can reach its legs can't be changed while it \
             runs: restart the engine"
        );
    }
    Ok(())
}
