//! Legs of mirrors as another configuration has them.
use crate::run::config::{Config, LegKeys, PathKeys, Volume, leg_name};
use crate::run::service::State;
use crate::uri::names;
use anyhow::{anyhow, bail};
use std::collections::BTreeSet;

/// Legs of a running mirror are those that it has, with what was added and removed by verb, unless
/// the file gives it other ones than it gave before (`old`): then they are these. One that stays
/// keeps its name.
///
/// # Errors
/// A mirror that does not run gets other legs; a leg that stays gets another policy or paths.
pub fn name_legs(new: &mut Config, old: &Config, state: &State) -> anyhow::Result<()> {
    let of_file: Vec<Volume> = new
        .volumes
        .extract_if(.., |it| it.leg_of.is_some())
        .collect();
    let running: Vec<&Volume> = state.volumes.iter().map(|(_, it)| &it.of).collect();
    let mirrors: Vec<Volume> = new
        .volumes
        .iter()
        .filter(|it| it.is_mirror())
        .cloned()
        .collect();
    for mirror in mirrors {
        let is_its = |it: &&Volume| it.leg_of.as_ref() == Some(&mirror.name);
        let there: Vec<&Volume> = running.iter().copied().filter(|it| is_its(it)).collect();
        let stays = |leg: &Volume| of_same_file(leg, old, &mirror);
        let before = old.volume(&mirror.name).map(|it| &it.legs[..]);
        match before {
            // It is new, and is being opened.
            None if there.is_empty() => {
                new.volumes.extend(of_file.iter().filter(is_its).cloned());
                continue;
            }
            Some(before) if uris_of(before) != uris_of(&mirror.legs) => {}
            _ => {
                new.volumes.extend(there.into_iter().map(stays));
                continue;
            }
        }
        let number = state.mirror(&mirror.name);
        let number = number.map_err(|error| anyhow!("{error}"))?;
        if state.stopped.contains_key(&number) {
            bail!(
                "volume {0}: it is stopped, and has no other legs before it runs: start it first \
                 (braid mirror assemble {0})",
                mirror.name
            );
        }
        let left_out = state.left_out.get(&number).into_iter().flatten();
        let left_out: Vec<&Volume> = left_out.collect();
        let same = |a: &Volume, b: &Volume| uri_set(&a.paths) == uri_set(&b.paths);
        for (keys, leg) in mirror.legs.iter().zip(of_file.iter().filter(is_its)) {
            if left_out.iter().any(|it| same(it, leg)) {
                continue; // it comes when the mirror is stopped and started
            }
            if let Some(it) = there.iter().find(|it| same(it, leg)) {
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

/// Legs that have no volume now and get one later are what the file says, too: those of mirrors
/// that were stopped, and those that were left out. Returns them.
pub fn configure_idle_legs(state: &mut State, new: &Config) -> Vec<Volume> {
    let State {
        volumes,
        stopped,
        left_out,
        ..
    } = state;
    let stopped = stopped.iter_mut();
    let stopped = stopped.flat_map(|(of, it)| it.legs.iter_mut().map(move |leg| (of, &mut leg.1)));
    let left_out = left_out.iter_mut();
    let left_out = left_out.flat_map(|(of, legs)| legs.iter_mut().map(move |leg| (of, leg)));
    let all = stopped.chain(left_out).filter_map(|(of, leg)| {
        let mirror = new.volume(&volumes.name(*of))?;
        *leg = of_same_file(leg, new, mirror);
        Some(leg.clone())
    });
    all.collect()
}

/// A leg that stays, with its mirror's keys as these are now: its paths are those of the file, to
/// which verbs may have added others.
fn of_same_file(leg: &Volume, old: &Config, mirror: &Volume) -> Volume {
    let paths = match old.paths_of(&leg.name) {
        [] => &leg.paths,
        paths => paths,
    };
    let is_it = |it: &&LegKeys| uri_set(&it.paths) == uri_set(paths);
    let keys = mirror.legs.iter().find(is_it);
    Volume {
        policy: keys.map_or(leg.policy, |it| it.policy),
        ..mirror.leg_volume(leg.name.clone(), paths.to_vec())
    }
}

/// Whether a leg of `mirror` that runs, is left out, or comes is called so.
pub(super) fn is_taken(state: &State, coming: &[Volume], mirror: &str, leg: &str) -> bool {
    let name = leg_name(mirror, leg);
    let mut others = state.left_out.values().flatten().chain(coming);
    state.volumes.is_named(&name) || others.any(|it| it.name == name)
}

fn uri_set(paths: &[PathKeys]) -> BTreeSet<String> {
    paths.iter().map(|it| it.uri.to_string()).collect()
}

fn uris_of(legs: &[LegKeys]) -> BTreeSet<BTreeSet<String>> {
    legs.iter().map(|it| uri_set(&it.paths)).collect()
}

/// What of legs can't change while a mirror runs: a leg that stays has the paths that it had, and
/// so far as other hosts can reach them now, they could before.
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
