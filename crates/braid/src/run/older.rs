//! State files of older versions: `marks-`, `choices-` and `volumes-`, each with all volumes of a
//! control socket, by name.
//!
//! # Contract
//! [`convert`] replaces them by a [`Record`] for each volume, at the first start of this version:
//! all are written, durably, before the files they come from are removed. So an engine that is
//! killed meanwhile leaves the old files, and the next start converts them again; that changes
//! nothing but what was not written yet. A record is made of what the file says of where its
//! volume leads, or, of this control socket, the configuration of a volume of that name that the
//! file does not contradict. Files of an engine that runs, and those that can't be replaced, are
//! read where they are.
use super::choices::Choice;
use super::config::Volume;
use super::known::Shown;
use super::marks::Mark;
use super::records::{self, Identity, IdentityKind, Kept, Record, TURNS_MAX};
use super::registry::{Registry, id_of, others};
use super::state;
use crate::log;
use anyhow::Context;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// One step of a conversion, done or not.
enum Step {
    /// A record is there.
    Write(PathBuf, serde_json::Value),
    /// A file of before is not.
    Remove(PathBuf),
}

impl Step {
    fn take(&self) -> anyhow::Result<()> {
        match self {
            Self::Write(path, record) => state::write(path, record),
            Self::Remove(path) => state::remove(path),
        }
    }
}

/// The steps so far, and the records among them by file.
struct Steps<'a> {
    registry: &'a Registry,
    volumes: &'a [Volume],
    all: Vec<Step>,
    taken: BTreeSet<PathBuf>,
}

/// Replaces files of older versions by records, where that can be done; what can't be is logged.
///
/// # Errors
/// A file can't be read that must not be passed over.
pub fn convert(registry: &Registry, volumes: &[Volume]) -> anyhow::Result<()> {
    let ids = ids(registry);
    if ids.is_empty() || !registry.is_held() {
        return Ok(());
    }
    let place = registry.directory().display();
    let done = match registry.guard() {
        Ok(_guard) => {
            let steps = steps(registry, volumes, &ids)?;
            steps.iter().try_for_each(Step::take)
        }
        Err(error) => Err(error),
    };
    log::say(match done {
        Ok(()) => format!("state files of an older version in {place} were converted"),
        Err(error) => format!(
            "state files of an older version in {place} are not converted, and are read as they \
             are: {error:#}"
        ),
    });
    Ok(())
}

/// Records in files of older versions that are still there.
///
/// # Errors
/// As of [`convert`].
pub fn records<T: Kept>(registry: &Registry) -> anyhow::Result<Vec<Record<T>>> {
    let mut all = Vec::new();
    for path in others(registry.directory(), T::OLD) {
        let Some(id) = id_of(&path) else { continue };
        let holds = read::<T>(registry, id)?.unwrap_or_default().into_iter();
        all.extend(holds.map(|(name, holds)| Record {
            of: identity(&name, id, &holds, None),
            holds,
        }));
    }
    Ok(all)
}

/// State ids of engines with such files, this one's first. Those of running engines stay theirs.
fn ids(registry: &Registry) -> Vec<String> {
    let kinds = [Mark::OLD, Choice::OLD, Shown::OLD];
    let files = kinds
        .iter()
        .flat_map(|kind| others(registry.directory(), kind));
    let files: Vec<PathBuf> = files.collect();
    let all: BTreeSet<&str> = files.iter().filter_map(|it| id_of(it)).collect();
    let mut ids: Vec<String> = all.into_iter().map(str::to_owned).collect();
    ids.retain(|id| !registry.is_alive(id));
    ids.sort_by_key(|id| id != registry.id());
    ids
}

fn steps(registry: &Registry, volumes: &[Volume], ids: &[String]) -> anyhow::Result<Vec<Step>> {
    let mut steps = Steps {
        registry,
        volumes,
        all: Vec::new(),
        taken: BTreeSet::new(),
    };
    let mut gone = Vec::new();
    for id in ids {
        let shown = read::<Shown>(registry, id)?;
        let marks = read::<Mark>(registry, id)?;
        let choices = read::<Choice>(registry, id)?;
        let said = shown.clone().unwrap_or_default();
        gone.extend(steps.add(id, marks, &said)?);
        gone.extend(steps.add(id, choices, &said)?);
        // Last: the others are told by it where their volumes lead.
        gone.extend(steps.add(id, shown, &said)?);
    }
    steps.all.extend(gone.into_iter().map(Step::Remove));
    Ok(steps.all)
}

impl Steps<'_> {
    /// Records of a kind; the file that they replace.
    fn add<T: Kept>(
        &mut self,
        id: &str,
        holds: Option<BTreeMap<String, T>>,
        shown: &BTreeMap<String, Shown>,
    ) -> anyhow::Result<Option<PathBuf>> {
        let Some(holds) = holds else {
            return Ok(None); // it can't be read, and stays
        };
        let directory = records::directory(self.registry.directory());
        for (name, holds) in holds {
            let mut of = identity(&name, id, &holds, shown.get(&name));
            if id == self.registry.id() {
                self.add_configured(&mut of);
            }
            let turn = |turn| records::path_of::<T>(&directory, &of, turn);
            let path = match T::STRICT || id == self.registry.id() {
                true => (0..TURNS_MAX)
                    .map(turn)
                    .find(|it| !self.is_running::<T>(it)),
                false => Some(turn(0)),
            };
            let path = path.context("too many running engines have kept something of its data")?;
            let is_new = self.taken.insert(path.clone());
            // Of two control sockets, this one's counts, but for what must be heeded: also where
            // its file was converted before a kill.
            if !T::STRICT && (!is_new || self.is_anothers::<T>(&path, id)) {
                continue;
            }
            let there = self.all.iter().rev().find_map(|step| match step {
                Step::Write(to, record) if *to == path => Some(record.clone()),
                _ => None,
            });
            let there = match there {
                Some(record) => Some(serde_json::from_value::<Record<T>>(record)?),
                None if T::STRICT => state::read(&path)?,
                None => None,
            };
            let holds = match there {
                Some(there) => there.holds.merged(holds),
                None => holds,
            };
            self.write(path, &Record { of, holds })?;
        }
        Ok(Some(old_path(self.registry, T::OLD, id)))
    }

    /// Whether a record is there already, and neither this engine's old file nor that of `id` is
    /// what it was made of.
    fn is_anothers<T: Kept>(&self, path: &Path, id: &str) -> bool {
        let there = state::read::<Record<T>>(path).ok().flatten();
        id != self.registry.id() && there.is_some_and(|it| it.of.engine != id)
    }

    /// Whether a record is there, of an engine that runs: it is written by that one only.
    fn is_running<T: Kept>(&self, path: &Path) -> bool {
        let there = state::read::<Record<T>>(path).ok().flatten();
        there.is_some_and(|it| self.registry.is_alive(&it.of.engine))
    }

    fn write<T: Serialize>(&mut self, path: PathBuf, record: &Record<T>) -> anyhow::Result<()> {
        let record = serde_json::to_value(record)?;
        self.all.push(Step::Write(path, record));
        Ok(())
    }

    /// Where a volume of this name leads by the configuration, unless the file says otherwise.
    fn add_configured(&self, of: &mut Identity) {
        let mut named = self.volumes.iter().filter(|it| it.name == of.volume);
        let volume = named.next().or_else(|| self.leg_called(&of.volume));
        let Some(now) = volume.map(|it| Identity::of(it, &of.engine)) else {
            return;
        };
        let is_silent = of.namespaces.is_empty() || now.namespaces.is_empty();
        if now.kind == of.kind && (is_silent || now.is(of)) {
            of.add_all(&now);
        }
    }

    /// A leg as older versions called it: by its number in the order of the file.
    fn leg_called(&self, name: &str) -> Option<&Volume> {
        let (mirror, number) = name.split_once('/')?;
        let legs = self.volumes.iter();
        let mut legs = legs.filter(|it| it.leg_of.as_deref() == Some(mirror));
        legs.nth(number.parse().ok()?)
    }
}

fn identity<T: Kept>(name: &str, id: &str, holds: &T, shown: Option<&Shown>) -> Identity {
    let kind = match name.contains('/') {
        true => IdentityKind::Leg,
        false => IdentityKind::Paths,
    };
    let mut of = Identity::unknown(name, id, kind);
    holds.tell(&mut of);
    if let Some(shown) = shown {
        shown.tell(&mut of);
    }
    of
}

fn old_path(registry: &Registry, kind: &str, id: &str) -> PathBuf {
    registry.directory().join(format!("{kind}-{id}.json"))
}

/// Content of the file of a control socket, by name; `None`: it can't be read, which is logged.
fn read<T: Kept>(registry: &Registry, id: &str) -> anyhow::Result<Option<BTreeMap<String, T>>> {
    let path = old_path(registry, T::OLD, id);
    match state::read(&path) {
        Ok(map) => Ok(Some(map.unwrap_or_default())),
        Err(error) => records::unreadable::<T>(&path, error, id == registry.id()).map(|()| None),
    }
}

#[cfg(test)]
mod tests;
