//! That an engine may have written: kept so that its successor knows if it never stopped cleanly,
//! and how long to wait then before it writes itself (T9); and that its first flush must go to all
//! controllers (T13).
//!
//! # Contract
//! A mark is durable before the first queue of a controller whose bound it holds is opened. It goes
//! after a stop in which all changes of data ended; where some were not flushed then, one that
//! bounds nothing stays, and so does that of a volume which this engine didn't have. The mark of a
//! volume that leaves goes and stays likewise. A volume is known by a path that it had, or by its
//! namespace, whatever it is called and whichever control socket its engine had. Its name counts
//! only where its configuration does not say which namespace it has (`nvme-ng:`, `queue:`). Marks
//! of an engine that has ended ([`Registry`]) become this engine's; those of a running engine stay
//! its own, and are heeded where that engine does not have the volume. A volume whose paths are
//! discovered is known by any that it would be told of, too, and has them from its start: else its
//! first flush would miss controllers that are told of later (T13).
use super::config::Volume;
use super::config::twice;
use super::discovery::plan;
use super::records::{Identity, Kept, Records};
use super::registry::{Place, Registry, places};
use super::rename::Renames;
use super::state;
use crate::log;
use crate::uri::{PathUri, UriKind};
use engine::host::WriteFailover;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// All marks, and their files.
pub struct Marks {
    records: Records<Mark>,
    /// By the names of volumes, as they are to be in the files.
    map: BTreeMap<String, Mark>,
    /// Marks of engines before this one.
    found: BTreeMap<String, Found>,
    /// The namespaces of volumes that are known so far.
    namespaces: BTreeMap<String, Place>,
    /// Volumes with changes of data that didn't end: nobody knows when they are over.
    unfinished: BTreeSet<String>,
    /// Paths of volumes with writes that were not flushed.
    unflushed: BTreeMap<String, Vec<String>>,
    /// The files are this engine's: it is recorded ([`Registry`]).
    owned: bool,
    /// The content of the files is the next engine's.
    closed: bool,
}

/// Of one volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// How long the slowest of its controllers may execute what it had; none: nothing bounds it.
    bound_ms: Option<u64>,
    /// Its paths.
    paths: Vec<String>,
    /// Its namespace; not in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<Place>,
    /// One has left with writes that were not flushed, and nobody was told.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    loss: bool,
    /// The cores of this engine whose clients were not told, a bit for each.
    #[serde(skip)]
    untold: u64,
}

/// A mark of an earlier engine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    mark: Mark,
    /// From when on its bound counts.
    since: Instant,
    /// The volume of its name may be its own, whatever both lead to.
    by_name: bool,
}

/// Marks of earlier engines of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// See [`Marks::wait_ns`].
    pub wait_ns: Option<u64>,
    /// Its first flush fails for what nobody was told.
    pub unreported_loss: bool,
}

impl Found {
    fn now(mark: Mark) -> Self {
        Self {
            mark,
            since: Instant::now(),
            by_name: false,
        }
    }

    /// Whether nothing of it can be executed any more.
    fn is_over(&self) -> bool {
        self.mark.bound() <= self.since.elapsed()
    }

    /// How long that may yet take. Whole seconds have passed: rather too long than too short.
    fn left(&self) -> Duration {
        let waited = Duration::from_secs(self.since.elapsed().as_secs());
        match self.mark.bound_ms {
            Some(_) => self.mark.bound().saturating_sub(waited),
            None => Duration::MAX,
        }
    }
}

impl Kept for Mark {
    const KIND: &'static str = "mark";
    const OLD: &'static str = "marks";
    const ADVICE: &'static str = "says which volumes have changes of an earlier engine under way; \
                                  remove it only if no write of that engine can be under way any \
                                  more";
    const STRICT: bool = true;

    fn tell(&self, of: &mut Identity) {
        let uris = self.paths.iter().filter_map(|uri| uri.parse().ok());
        uris.for_each(|uri: PathUri| of.add_path(&uri));
        if let Some(place) = &self.namespace {
            of.add_namespace(place.clone());
        }
    }

    fn merged(self, other: Self) -> Self {
        let longer = self.bound().max(other.bound());
        let mut paths = self.paths;
        for uri in other.paths {
            if !paths.contains(&uri) {
                paths.push(uri);
            }
        }
        Self {
            bound_ms: u64::try_from(longer.as_millis())
                .ok()
                .filter(|_| longer < Duration::MAX),
            paths,
            namespace: self.namespace.or(other.namespace),
            loss: self.loss || other.loss,
            untold: self.untold | other.untold,
        }
    }
}

impl Mark {
    /// Whether a volume, whatever its name, is the one that has left it.
    fn is_of(&self, volume: &Volume) -> bool {
        let there = uris(volume);
        let named = |uri: &String| there.contains(uri) || plan::offered(volume, uri).is_some();
        let namespace = self.namespace.as_ref();
        let leads = |at: &Place| places(volume).iter().any(|it| it.meets(at));
        self.paths.iter().any(named) || namespace.is_some_and(leads)
    }

    /// The same of a mark in a file. Older versions wrote no namespace: any that its paths may lead
    /// to counts.
    fn is_perhaps_of(&self, volume: &Volume) -> bool {
        let leads = |uri: &String| {
            let uri: Option<PathUri> = uri.parse().ok();
            let uri = uri.filter(|uri| uri.kind().is_namespace());
            uri.is_some_and(|uri| twice::shared(volume, &uri).is_some())
        };
        let older = self.namespace.is_none() && self.paths.iter().any(leads);
        older || self.is_of(volume)
    }

    fn bound(&self) -> Duration {
        self.bound_ms.map_or(Duration::MAX, Duration::from_millis)
    }
}

impl Marks {
    /// None yet.
    pub fn new(registry: &Registry) -> Self {
        Self {
            records: Records::new(registry),
            map: BTreeMap::new(),
            found: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            unfinished: BTreeSet::new(),
            unflushed: BTreeMap::new(),
            owned: registry.is_held(),
            closed: false,
        }
    }

    /// Whether files may be written: they may be another engine's as long as this one is not
    /// recorded.
    pub fn set_owned(&mut self, owned: bool) {
        self.owned = owned;
    }

    /// Takes over what engines that have ended left of these volumes. Where that can't be written
    /// down, it stays theirs as well, and is heeded twice.
    ///
    /// # Errors
    /// A file can't be read, or isn't ours.
    pub fn adopt(&mut self, registry: &Registry, volumes: &[&Volume]) -> anyhow::Result<()> {
        volumes.iter().for_each(|it| self.set_aside(it));
        let (mut merged, mut any) = (Vec::<PathBuf>::new(), false);
        // Else another engine could take them over, too. Where none can be locked, none is written.
        let guard = registry.guard();
        let all = volumes.iter().copied();
        for found in self.records.read(registry, all)?.1 {
            let (of, mark) = (&found.record.of, found.record.holds.clone());
            // Not by its name: that may be another volume's now.
            let mut path = found.path.iter();
            if path.any(|path| self.records.is_claimed(path)) {
                continue; // of a volume that this engine has, or had
            }
            let by_name =
                |it: &Volume| is_silent(it) && of.has_name_of(&Identity::of(it, registry.id()));
            let its = volumes.iter().find(|it| mark.is_perhaps_of(it));
            let Some(volume) = its.or_else(|| volumes.iter().find(|it| by_name(it))) else {
                continue;
            };
            let by_name = its.is_none();
            // A running engine may keep marks of volumes that it doesn't have: of those that it
            // took over for a reload that failed, or that its configuration has no more. They stay
            // its own, and hold here as well.
            let theirs = registry.names_of(&of.engine);
            if theirs.as_ref().is_some_and(|it| it.contains(&of.volume)) {
                continue;
            }
            any = true;
            self.take_over(&volume.name, mark, by_name);
            match found.path.filter(|_| theirs.is_none()) {
                Some(path) if self.records.has(&volume.name) => merged.push(path),
                Some(path) => self.records.claim(&volume.name, path, found.record),
                None => {}
            }
        }
        let moved = guard.and_then(|_guard| {
            self.write()?;
            merged.iter().try_for_each(|path| state::remove(path))
        });
        if let Err(error) = moved
            && any
        {
            log::say(format!(
                "what another engine left is heeded, and can't be taken over in {}: {error:#}",
                self.records.directory().display()
            ));
        }
        Ok(())
    }

    /// A volume comes by the name of another one, which has left its mark: that stays, under a name
    /// that no volume has.
    fn set_aside(&mut self, volume: &Volume) {
        let name = &volume.name;
        let is_its = |mark: &Mark| is_silent(volume) || mark.is_perhaps_of(volume);
        if self.map.get(name).is_some_and(|it| !is_its(it)) {
            self.put_aside(name);
        }
    }

    /// A record is kept under a name that no volume has.
    fn put_aside(&mut self, name: &str) {
        let Some(mark) = self.map.get(name).cloned() else {
            return;
        };
        let names = (1..).map(|number: u32| format!("{name} ({number})"));
        let mut free = names.filter(|it| !self.map.contains_key(it) && !self.records.has(it));
        let Some(to) = free.next() else {
            unreachable!("marks are fewer than numbers");
        };
        self.records.rename(name, &to);
        self.map.remove(name);
        self.namespaces.remove(name);
        if let Some(at) = &mark.namespace {
            self.namespaces.insert(to.clone(), at.clone());
        }
        if let Some(found) = self.found.remove(name) {
            let by_name = false;
            self.found.insert(to.clone(), Found { by_name, ..found });
        }
        if self.unfinished.remove(name) {
            self.unfinished.insert(to.clone());
        }
        if let Some(paths) = self.unflushed.remove(name) {
            self.unflushed.insert(to.clone(), paths);
        }
        self.map.insert(to, mark);
    }

    /// Volumes have other names.
    ///
    /// # Errors
    /// A file can't be written, and has the name of before.
    pub fn rename(&mut self, names: &Renames) -> anyhow::Result<()> {
        let back = names.back();
        let free = names.iter().map(|(_, to)| to);
        let free = free.filter(|to| names.now(to) == to.as_str() && back.now(to) != to.as_str());
        free.for_each(|to| self.put_aside(to));
        names.apply_to_keys(&mut self.map);
        names.apply_to_keys(&mut self.found);
        names.apply_to_keys(&mut self.namespaces);
        names.apply_to_keys(&mut self.unflushed);
        let unfinished = std::mem::take(&mut self.unfinished).into_iter();
        self.unfinished = unfinished.map(|it| names.now(&it).to_owned()).collect();
        self.records.rename_all(names);
        self.write()
    }

    fn take_over(&mut self, name: &str, mark: Mark, by_name: bool) {
        let both = match self.map.remove(name) {
            Some(own) => own.merged(mark),
            None => mark,
        };
        self.map.insert(name.to_owned(), both.clone());
        let before = self.found.get(name).is_some_and(|it| it.by_name);
        let by_name = by_name || before;
        let found = Found {
            by_name,
            ..Found::now(both)
        };
        self.found.insert(name.to_owned(), found);
    }

    /// The namespace of a volume is known: its mark names it.
    pub fn name_namespace(&mut self, volume: &str, place: Place) {
        self.namespaces.insert(volume.to_owned(), place);
    }

    /// How long a volume's writes must wait from now on, ns, after an unclean stop; `u64::MAX`:
    /// nothing bounds it.
    pub fn wait_ns(&self, volume: &Volume) -> Option<u64> {
        let fenced = volume.recovery().write_failover == WriteFailover::Fenced;
        let (left, _) = self.left(volume)?;
        Some(match left {
            _ if !fenced => 0,
            Some(left) => u64::try_from(left.as_nanos()).unwrap_or(u64::MAX),
            None => u64::MAX,
        })
    }

    /// Marks of earlier engines of a volume.
    pub fn before(&self, volume: &Volume) -> Before {
        Before {
            wait_ns: self.wait_ns(volume),
            unreported_loss: self.of(volume).any(|it| it.mark.loss),
        }
    }

    /// All that earlier engines left of a volume, perhaps under other names.
    fn of(&self, volume: &Volume) -> impl Iterator<Item = &Found> {
        let named = |name: &str, it: &Found| it.by_name && name == volume.name;
        let marks = self.found.iter();
        let marks =
            marks.filter(move |(name, it)| named(name, it) || it.mark.is_perhaps_of(volume));
        marks.map(|(_, it)| it)
    }

    /// Paths that earlier engines had, and of which discovery would tell a volume that doesn't have
    /// them; as they were there, since the first one says what the others must show (T31).
    pub fn discovered(&self, volume: &Volume) -> Vec<PathUri> {
        let mut there = uris(volume);
        let mut new = Vec::new();
        for uri in self.of(volume).flat_map(|it| &it.mark.paths) {
            if !there.contains(uri) {
                there.push(uri.clone());
                new.extend(plan::offered(volume, uri));
            }
        }
        new
    }

    /// Writes that an earlier engine left of a volume, and how long they may yet take; none: no
    /// bound is known.
    fn left(&self, volume: &Volume) -> Option<(Option<Duration>, &Mark)> {
        let found = self.of(volume).max_by_key(|it| it.left())?;
        let left = found.mark.bound_ms.map(|_| found.left());
        Some((left, &found.mark))
    }

    /// A line about a volume that an earlier engine left with changes under way.
    pub fn in_words(&self, volume: &Volume) -> Option<String> {
        let (left, mark) = self.left(volume)?;
        let left = match left {
            Some(left) if left.is_zero() => return None,
            left => left,
        };
        let name = &volume.name;
        if volume.recovery().write_failover == WriteFailover::Immediate {
            return Some(format!(
                "{name}: an earlier engine left changes under way, and write_failover = \
                 \"immediate\": they may overwrite what is written now"
            ));
        }
        let wait = match left {
            Some(left) => format!("its writes wait {} ms until that is over", left.as_millis()),
            None => format!(
                "without keep_alive_tmo nothing bounds that, so its writes wait; set \
                 write_failover = \"immediate\", or remove its mark in {} once that target was \
                 restarted",
                self.records.directory().display()
            ),
        };
        let mut known = uris(volume);
        known.extend(self.discovered(volume).iter().map(ToString::to_string));
        let moved = if same(&known, &mark.paths) {
            ""
        } else {
            "; its paths were others then, and may have led elsewhere"
        };
        Some(format!(
            "{name}: an earlier engine left changes under way, and its controllers may yet execute \
             them: {wait}{moved}"
        ))
    }

    /// Keeps a bound, ns, if it is longer than the one that is kept.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn keep(&mut self, volume: &Volume, bound_ns: u64) -> anyhow::Result<()> {
        let bound_ms = (bound_ns < u64::MAX).then(|| bound_ns.div_ceil(1_000_000));
        let mut mark = Mark {
            bound_ms,
            paths: uris(volume),
            namespace: self.namespaces.get(&volume.name).cloned(),
            loss: false,
            untold: 0,
        };
        if let Some(old) = self.map.get(&volume.name) {
            (mark.loss, mark.untold) = (old.loss, old.untold);
            mark.namespace = mark.namespace.or_else(|| old.namespace.clone());
            if old.bound() > mark.bound() {
                mark.bound_ms = old.bound_ms;
            }
        }
        self.map.insert(volume.name.clone(), mark);
        self.write_of(volume)
    }

    /// The paths of a volume are others now: its mark, if there is one, names these.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn keep_paths(&mut self, volume: &Volume) -> anyhow::Result<()> {
        let now = uris(volume);
        match self.map.get_mut(&volume.name) {
            Some(mark) if !same(&mark.paths, &now) => mark.paths = now,
            _ => return Ok(()),
        }
        self.write_of(volume)
    }

    /// A path of a volume has left with writes that were not flushed, and nobody was told; or a
    /// flush has failed for that.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn note_loss(&mut self, volume: &Volume, core: u16, untold: bool) -> anyhow::Result<()> {
        let bit = 1 << core;
        let known = self.map.get_mut(&volume.name);
        match known {
            Some(mark) => {
                mark.untold = mark.untold & !bit | if untold { bit } else { 0 };
                let loss = mark.untold != 0;
                if std::mem::replace(&mut mark.loss, loss) == loss {
                    return Ok(());
                }
            }
            None if !untold => return Ok(()),
            None => {
                let mark = Mark {
                    bound_ms: Some(0),
                    paths: uris(volume),
                    namespace: self.namespaces.get(&volume.name).cloned(),
                    loss: true,
                    untold: bit,
                };
                self.map.insert(volume.name.clone(), mark);
            }
        }
        self.write_of(volume)
    }

    /// Changes of data in a volume did not end: its mark stays as it is.
    pub fn note_unfinished(&mut self, name: &str) {
        self.unfinished.insert(name.to_owned());
    }

    /// A volume ends, and some of its paths may have acknowledged writes that were not flushed.
    pub fn note_unflushed(&mut self, name: &str, paths: Vec<String>) {
        self.unflushed.insert(name.to_owned(), paths);
    }

    /// A volume has left.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn clear(&mut self, name: &str) -> anyhow::Result<()> {
        self.forget(name);
        if let Some(mark) = self.map.get(name) {
            // One of its paths may be another volume's before this engine ends.
            let found = self.found.entry(name.to_owned());
            found.or_insert_with(|| Found::now(mark.clone()));
        }
        self.write()
    }

    /// A volume was not opened after all: what an earlier engine left of it stays, also where that
    /// bounds nothing any more.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn put_back(&mut self, name: &str) -> anyhow::Result<()> {
        let found = self.found.get(name).filter(|it| it.is_over());
        if let Some(found) = found.filter(|_| self.map.contains_key(name)) {
            let unflushed = self.unflushed.entry(name.to_owned());
            unflushed.or_insert_with(|| found.mark.paths.clone());
        }
        self.clear(name)
    }

    /// The engine ends, with these volumes; nothing is written from now on.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn close(&mut self, volumes: &[Volume]) -> anyhow::Result<()> {
        let had = |name: &str, mark: &Mark| {
            let paths = |of: &Volume| mark.paths.iter().any(|uri| uris(of).contains(uri));
            volumes.iter().any(|of| of.name == name || paths(of))
        };
        for (name, it) in self.found.clone() {
            let others = !had(&name, &it.mark) && self.map.contains_key(&name);
            if others && it.is_over() {
                self.unflushed.entry(name).or_insert(it.mark.paths);
            }
        }
        let marked = self.map.keys().chain(self.unflushed.keys());
        let marked: BTreeSet<_> = marked.cloned().collect();
        marked.iter().for_each(|name| self.forget(name));
        let written = self.write();
        self.closed = true;
        written
    }

    /// All that a volume's mark holds is over, but for what was noted, and what an earlier engine
    /// left.
    fn forget(&mut self, name: &str) {
        if self.unfinished.contains(name) {
            return;
        }
        let lossy = self.map.get(name).filter(|it| it.loss).cloned();
        let loss = lossy.is_some();
        let unflushed = self.unflushed.remove(name);
        let paths = unflushed.or(lossy.map(|it| it.paths));
        let before = self.map.get(name).and_then(|it| it.namespace.as_ref());
        let namespace = self.namespaces.get(name).or(before).cloned();
        let unflushed = paths.map(|paths| Mark {
            bound_ms: Some(0),
            paths,
            namespace,
            loss,
            untold: 0,
        });
        let earlier = self.found.get(name).filter(|it| !it.is_over());
        let earlier = earlier.map(|it| it.mark.clone());
        let earlier = earlier.map(|mark| Mark { loss, ..mark });
        match earlier.or(unflushed) {
            Some(mark) => self.map.insert(name.to_owned(), mark),
            None => self.map.remove(name),
        };
    }

    /// Writes what has changed. A volume whose file can't be written holds up no other one.
    fn write(&mut self) -> anyhow::Result<()> {
        let is_nothing = self.map.is_empty() && self.records.is_empty();
        match is_nothing || !self.may_write()? {
            true => Ok(()),
            false => self.records.keep_all(&self.map),
        }
    }

    /// Writes the mark of one volume, if it has changed.
    fn write_of(&mut self, volume: &Volume) -> anyhow::Result<()> {
        self.records.learn(volume);
        match self.map.get(&volume.name) {
            Some(mark) if self.may_write()? => self.records.keep(&volume.name, mark),
            _ => Ok(()),
        }
    }

    /// Whether files are written: they may be the next engine's by now.
    ///
    /// # Errors
    /// They may be another engine's.
    fn may_write(&self) -> anyhow::Result<bool> {
        if !self.closed && !self.owned {
            anyhow::bail!(
                "this engine is not recorded in its state directory, so files in {} may be another \
                 one's",
                self.records.directory().display()
            );
        }
        Ok(!self.closed)
    }
}

/// Whether nothing in its configuration says which namespace a volume has, though it has one.
fn is_silent(volume: &Volume) -> bool {
    let mut paths = volume.paths.iter().map(|keys| keys.uri.kind());
    places(volume).is_empty() && paths.any(UriKind::is_namespace)
}

/// Whether both are the same paths, in whatever order.
fn same(a: &[String], b: &[String]) -> bool {
    let set = |uris: &[String]| uris.iter().cloned().collect::<BTreeSet<_>>();
    set(a) == set(b)
}

fn uris(volume: &Volume) -> Vec<String> {
    volume
        .paths
        .iter()
        .map(|path| path.uri.to_string())
        .collect()
}

#[cfg(test)]
mod tests;
