//! That an engine may have written: kept so that its successor knows if it never stopped cleanly,
//! and how long to wait then before it writes itself (T9); and that its first flush must go to all
//! controllers (T13).
//!
//! # Contract
//! A mark is durable before the first queue of a controller whose bound it holds is opened. It goes
//! after a stop in which all changes of data ended; where some were not flushed then, one that
//! bounds nothing stays, and so does that of a volume which this engine didn't have. The mark of a
//! volume that leaves goes and stays likewise. A volume is known by its name, or by a path that it
//! had, in the file of its engine's control socket; in the files of other control sockets by a path
//! or by its namespace. Marks found there whose engine has ended ([`Registry`]) move to this
//! engine's file; those of a running engine stay there, and are heeded where that engine does not
//! have the volume. A volume whose paths are
//! discovered is known by any that it would be told of, too, and has them from its start: else its
//! first flush would miss controllers that are told of later (T13).
use super::config::Volume;
use super::config::twice;
use super::discovery::plan;
use super::registry::{Place, Registry, places};
use super::state;
use crate::log;
use crate::uri::PathUri;
use anyhow::Context;
use engine::host::WriteFailover;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// All marks, and their file.
pub struct Marks {
    path: PathBuf,
    /// As in the file.
    map: BTreeMap<String, Mark>,
    /// What engines before this one left.
    found: BTreeMap<String, Found>,
    /// The namespaces of volumes that are known so far.
    namespaces: BTreeMap<String, Place>,
    /// Volumes with changes of data that didn't end: nobody knows when they are over.
    unfinished: BTreeSet<String>,
    /// Paths of volumes with writes that were not flushed.
    unflushed: BTreeMap<String, Vec<String>>,
    /// The file is this engine's: it is recorded ([`Registry`]).
    owned: bool,
    /// What stands in the file is the next engine's.
    closed: bool,
}

/// Of one volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
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
}

/// A mark of an earlier engine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    mark: Mark,
    /// From when on its bound counts.
    since: Instant,
}

/// What earlier engines have left of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// See [`Marks::wait_ns`].
    pub wait_ns: Option<u64>,
    /// Its first flush fails for what nobody was told.
    pub unreported_loss: bool,
}

impl Found {
    fn now(mark: Mark) -> Self {
        let since = Instant::now();
        Self { mark, since }
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

impl Mark {
    /// What both say, of one volume.
    fn with(self, other: Self) -> Self {
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
        }
    }

    /// Whether a volume, whatever its name, is the one that has left it.
    fn is_of(&self, volume: &Volume) -> bool {
        let there = uris(volume);
        let named = |uri: &String| there.contains(uri) || plan::offered(volume, uri).is_some();
        let namespace = self.namespace.as_ref();
        let leads = |at: &Place| places(volume).iter().any(|it| it.meets(at));
        self.paths.iter().any(named) || namespace.is_some_and(leads)
    }

    /// The same of a mark in the file of another control socket. Older versions wrote no namespace:
    /// any that its paths may lead to counts.
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
    /// Reads the file, if there is one.
    ///
    /// # Errors
    /// It can't be read, or isn't ours.
    pub fn read(path: PathBuf) -> anyhow::Result<Self> {
        let map: BTreeMap<String, Mark> = state::read(&path).with_context(|| {
            format!(
                "{} says which volumes have changes of earlier engines under way; remove it only \
                 if no write of an earlier engine can be under way any more",
                path.display()
            )
        })?;
        Ok(Self {
            path,
            found: map
                .iter()
                .map(|(name, mark)| (name.clone(), Found::now(mark.clone())))
                .collect(),
            map,
            namespaces: BTreeMap::new(),
            unfinished: BTreeSet::new(),
            unflushed: BTreeMap::new(),
            owned: true,
            closed: false,
        })
    }

    /// Whether the file may be written: it may be another engine's as long as this one is not
    /// recorded.
    pub fn set_owned(&mut self, owned: bool) {
        self.owned = owned;
    }

    /// Takes over what engines that have ended left of these volumes in the files of other control
    /// sockets. Where that can't be written down, it stays there as well, and is heeded twice.
    ///
    /// # Errors
    /// A file can't be read, or isn't ours.
    pub fn adopt(&mut self, registry: &Registry, volumes: &[&Volume]) -> anyhow::Result<()> {
        let left = registry.left_behind("marks", &self.path);
        for file in &left.files {
            let mut theirs = read_theirs(file)?;
            let before = theirs.len();
            theirs.retain(|_, mark| {
                let of = volumes.iter().find(|it| mark.is_perhaps_of(it));
                of.inspect(|of| self.take_over(&of.name, mark)).is_none()
            });
            if theirs.len() == before {
                continue;
            }
            let moved = left.move_out(file, &theirs, || self.write());
            if let Err(error) = moved {
                log::say(format!(
                    "what an engine with another control socket left is heeded, and can't be \
                     moved out of {}: {error:#}",
                    file.display()
                ));
            }
        }
        // A running engine may keep marks of volumes that it doesn't have: of those that it took
        // over for a reload that failed, or that its configuration has no more. They stay with it,
        // and hold here as well.
        for (file, has) in registry.of_running("marks", &self.path) {
            let theirs = read_theirs(&file)?;
            for (_, mark) in theirs.iter().filter(|(name, _)| !has.contains(name)) {
                if let Some(of) = volumes.iter().find(|it| mark.is_perhaps_of(it)) {
                    self.take_over(&of.name, mark);
                }
            }
        }
        Ok(())
    }

    fn take_over(&mut self, name: &str, mark: &Mark) {
        let there = self.map.remove(name);
        let both = match there {
            Some(own) => own.with(mark.clone()),
            None => mark.clone(),
        };
        self.map.insert(name.to_owned(), both.clone());
        self.found.insert(name.to_owned(), Found::now(both));
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

    /// What earlier engines have left of a volume.
    pub fn before(&self, volume: &Volume) -> Before {
        Before {
            wait_ns: self.wait_ns(volume),
            unreported_loss: self.of(volume).any(|it| it.mark.loss),
        }
    }

    /// All that earlier engines left of a volume, perhaps under other names.
    fn of(&self, volume: &Volume) -> impl Iterator<Item = &Found> {
        let marks = self.found.iter();
        let marks = marks.filter(|it| *it.0 == volume.name || it.1.mark.is_of(volume));
        marks.map(|(_, found)| found)
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

    /// What an earlier engine left of a volume, and how long it may yet take; none: nothing bounds
    /// it.
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
                 write_failover = \"immediate\", or remove {} once that target was restarted",
                self.path.display()
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
        };
        if let Some(old) = self.map.get(&volume.name) {
            mark.loss = old.loss;
            mark.namespace = mark.namespace.or_else(|| old.namespace.clone());
            if old.bound() > mark.bound() {
                mark.bound_ms = old.bound_ms;
            }
        }
        self.map.insert(volume.name.clone(), mark);
        self.write()
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
        self.write()
    }

    /// A path of a volume has left with writes that were not flushed, and nobody was told; or a
    /// flush has failed for that.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn note_loss(&mut self, volume: &Volume, untold: bool) -> anyhow::Result<()> {
        let known = self.map.get_mut(&volume.name);
        match known {
            Some(mark) if mark.loss == untold => return Ok(()),
            Some(mark) => mark.loss = untold,
            None if !untold => return Ok(()),
            None => {
                let mark = Mark {
                    bound_ms: Some(0),
                    paths: uris(volume),
                    namespace: self.namespaces.get(&volume.name).cloned(),
                    loss: true,
                };
                self.map.insert(volume.name.clone(), mark);
            }
        }
        self.write()
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
        let unflushed = paths.map(|paths| Mark {
            bound_ms: Some(0),
            paths,
            namespace: self.namespaces.get(name).cloned(),
            loss,
        });
        let earlier = self.found.get(name).filter(|it| !it.is_over());
        let earlier = earlier.map(|it| it.mark.clone());
        let earlier = earlier.map(|mark| Mark { loss, ..mark });
        match earlier.or(unflushed) {
            Some(mark) => self.map.insert(name.to_owned(), mark),
            None => self.map.remove(name),
        };
    }

    fn write(&self) -> anyhow::Result<()> {
        let empty = self.map.is_empty();
        let nothing = empty && !self.path.exists();
        if !(self.owned || self.closed || nothing) {
            anyhow::bail!(
                "this engine is not recorded in its state directory, so {} may be another one's",
                self.path.display()
            );
        }
        match (self.closed, empty) {
            (true, _) => Ok(()),
            (_, true) => state::remove(&self.path),
            (_, false) => state::write(&self.path, &self.map),
        }
    }
}

/// The marks in the file of another control socket.
///
/// # Errors
/// It can't be read, or isn't ours.
fn read_theirs(file: &Path) -> anyhow::Result<BTreeMap<String, Mark>> {
    state::read(file).with_context(|| {
        format!(
            "{} says which volumes of another control socket have changes under way; remove it \
             only if no write of that engine can be under way any more",
            file.display()
        )
    })
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
mod tests {
    use super::*;

    #[test]
    fn the_order_of_paths_says_nothing() {
        let of =
            |uris: &[&str]| -> Vec<String> { uris.iter().map(|uri| uri.to_string()).collect() };
        assert!(same(&of(&["a", "b"]), &of(&["b", "a"])));
        assert!(!same(&of(&["a", "b"]), &of(&["a"])));
    }

    #[test]
    fn a_mark_names_the_paths_as_they_are_when_the_engine_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("marks.json");
        let text = "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n";
        let volume = |more: &str| {
            let config = crate::run::config::tests::parsed(&format!("{text}{more}"));
            config.volumes[0].clone()
        };
        let (before, now) = (volume(""), volume("[[volume.path]]\nuri = \"mem:2MiB\"\n"));
        let said = || {
            let marks = Marks::read(path.clone()).unwrap();
            let line = marks.in_words(&now);
            line.map(|line| line.contains("its paths were others then"))
        };
        let mut marks = Marks::read(path.clone()).unwrap();
        marks.keep_paths(&now).unwrap();
        assert_eq!(said(), None, "none is made");
        marks.keep(&before, 60_000_000_000).unwrap();
        assert_eq!(said(), Some(true));
        marks.keep_paths(&now).unwrap();
        assert_eq!(said(), Some(false));
        let wait_ns = Marks::read(path.clone()).unwrap().wait_ns(&now);
        assert_eq!(wait_ns, Some(60_000_000_000), "as long as before");
    }

    #[test]
    fn where_nothing_is_marked_there_is_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("marks.json");
        let text = "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n";
        let config = crate::run::config::tests::parsed(text);
        let mut marks = Marks::read(path.clone()).unwrap();
        marks.clear("v0").unwrap();
        marks.keep(&config.volumes[0], 1_000_000).unwrap();
        assert!(path.exists());
        marks.close(&config.volumes).unwrap();
        assert!(!path.exists());
        assert_eq!(Marks::read(path).unwrap().wait_ns(&config.volumes[0]), None);
    }

    /// A file for marks, and volumes by name and path.
    fn place() -> (
        tempfile::TempDir,
        PathBuf,
        impl Fn(&str, &str) -> Volume + Copy,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("marks.json");
        let volume = |name: &str, uri: &str| {
            let text = format!("[[volume]]\nname = \"{name}\"\n[[volume.path]]\nuri = \"{uri}\"\n");
            crate::run::config::tests::parsed(&text).volumes.remove(0)
        };
        (directory, path, volume)
    }

    #[test]
    fn t13_what_was_not_flushed_is_the_next_engines_to_flush_and_nothing_waits() {
        let (_directory, path, volume) = place();
        let (a, b) = (volume("a", "mem:1MiB"), volume("b", "mem:2MiB"));
        let mut marks = Marks::read(path.clone()).unwrap();
        marks.keep(&a, 60_000_000_000).unwrap();
        marks.keep(&b, 60_000_000_000).unwrap();
        marks.note_unflushed("a", uris(&a));
        marks.close(&[a.clone(), b.clone()]).unwrap();
        let of = |volume: &Volume| {
            let marks = Marks::read(path.clone()).unwrap();
            (marks.wait_ns(volume), marks.in_words(volume))
        };
        assert_eq!(of(&a), (Some(0), None));
        assert_eq!(of(&b), (None, None));
        // One that doesn't have the volume leaves it to the one after it.
        let mut marks = Marks::read(path.clone()).unwrap();
        marks.close(std::slice::from_ref(&b)).unwrap();
        assert_eq!(of(&a), (Some(0), None));
        let mut marks = Marks::read(path.clone()).unwrap();
        let renamed = volume("c", "mem:1MiB");
        marks.close(&[b, renamed]).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn t13_a_loss_that_nobody_was_told_is_the_next_engines_to_tell() {
        let (_directory, path, volume) = place();
        let a = volume("a", "mem:1MiB");
        let untold = || {
            Marks::read(path.clone())
                .unwrap()
                .before(&a)
                .unreported_loss
        };
        let mut marks = Marks::read(path.clone()).unwrap();
        marks.keep(&a, 60_000_000_000).unwrap();
        marks.note_loss(&a, true).unwrap();
        marks.keep(&a, 70_000_000_000).unwrap();
        assert!(untold(), "killed");
        marks.close(std::slice::from_ref(&a)).unwrap();
        assert!(untold(), "stopped");
        let mut marks = Marks::read(path.clone()).unwrap();
        marks.note_loss(&a, true).unwrap();
        marks.note_loss(&a, false).unwrap();
        assert!(!untold(), "told");
        marks.close(std::slice::from_ref(&a)).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn t13_a_volume_that_left_unflushed_is_heeded_by_the_next_with_its_path() {
        let (_directory, path, volume) = place();
        let a = volume("a", "mem:1MiB");
        let mut marks = Marks::read(path.clone()).unwrap();
        marks.keep(&a, 60_000_000_000).unwrap();
        marks.note_unflushed("a", uris(&a));
        marks.clear("a").unwrap();
        assert_eq!(marks.wait_ns(&volume("b", "mem:1MiB")), Some(0));
        assert_eq!(Marks::read(path).unwrap().wait_ns(&a), Some(0));
    }

    #[test]
    fn t09_the_mark_of_a_volume_that_leaves_with_unfinished_changes_stays() {
        let (_directory, path, volume) = place();
        let a = volume("a", "mem:1MiB");
        let mut marks = Marks::read(path.clone()).unwrap();
        marks.keep(&a, 60_000_000_000).unwrap();
        marks.note_unfinished("a");
        marks.note_unflushed("a", uris(&a));
        marks.clear("a").unwrap();
        marks.close(&[]).unwrap();
        let marks = Marks::read(path).unwrap();
        assert_eq!(marks.wait_ns(&a), Some(60_000_000_000));
    }

    #[test]
    fn t09_a_volume_with_another_name_heeds_the_mark_of_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("marks.json");
        let volume = |name: &str, uri: &str| {
            let text = format!("[[volume]]\nname = \"{name}\"\n[[volume.path]]\nuri = \"{uri}\"\n");
            crate::run::config::tests::parsed(&text).volumes.remove(0)
        };
        let mut marks = Marks::read(path.clone()).unwrap();
        marks
            .keep(&volume("a", "mem:1MiB"), 60_000_000_000)
            .unwrap();
        marks
            .keep(&volume("b", "mem:2MiB"), 30_000_000_000)
            .unwrap();
        let marks = Marks::read(path).unwrap();
        let wait_ns = |name, uri| marks.wait_ns(&volume(name, uri));
        let minute = Some(60_000_000_000);
        assert_eq!(wait_ns("c", "mem:1MiB"), minute, "renamed");
        assert_eq!(wait_ns("b", "mem:1MiB"), minute, "the longer one");
        assert_eq!(wait_ns("a", "mem:2MiB"), minute, "its own");
        assert_eq!(wait_ns("c", "mem:3MiB"), None, "neither name nor path");
        let line = marks.in_words(&volume("c", "mem:1MiB")).unwrap();
        assert!(
            line.starts_with("c: an earlier engine left changes under way"),
            "{line}"
        );
    }

    #[test]
    fn t13_paths_that_were_discovered_are_there_again_after_an_unclean_stop() {
        let (_directory, path, _) = place();
        let volume = |name: &str, keys: &str, paths: &[&str]| {
            let nqn = "nqn.2026-01.org.example:v0";
            let paths = paths
                .iter()
                .map(|uri| format!("[[volume.path]]\nuri = \"nvme-tcp://{uri}\"\n"));
            let text = format!(
                "[[discovery]]\nuri = \"nvme-tcp://127.0.0.1\"\n[[volume]]\nname = \"{name}\"\n\
                 subsystem = \"{nqn}\"\n{keys}{}",
                paths.collect::<String>()
            );
            crate::run::config::tests::parsed(&text).volumes.remove(0)
        };
        let [two, one, other, first] = [
            "10.0.0.2:4420/nqn.2026-01.org.example:v0",
            "10.0.0.1:4420/nqn.2026-01.org.example:v0",
            "10.0.0.3:4420/nqn.2026-01.org.example:w0",
            "10.0.0.1:4420/nqn.2026-01.org.example:v0?nsid=1",
        ];
        let mut marks = Marks::read(path.clone()).unwrap();
        let mut before = volume("a", "", &[two, one, other]);
        // Added by hand: the file can't have both.
        let by_hand: PathUri = format!("nvme-tcp://{first}").parse().unwrap();
        before.paths.push(by_hand.into());
        marks.keep(&before, 60_000_000_000).unwrap();
        let marks = Marks::read(path).unwrap();
        let discovered = |name, keys, paths: &[&str]| {
            let of = volume(name, keys, paths);
            let uris = marks.discovered(&of).into_iter();
            let uris = uris.map(|uri| uri.to_string());
            (uris.collect::<Vec<_>>(), marks.wait_ns(&of))
        };
        let uris = |all: &[&str]| -> Vec<_> {
            let all = all.iter();
            all.map(|it| format!("nvme-tcp://{it}")).collect()
        };
        let minute = Some(60_000_000_000);
        assert_eq!(discovered("a", "", &[]), (uris(&[two, one]), minute));
        assert_eq!(discovered("b", "", &[]), (uris(&[two, one]), minute));
        assert_eq!(discovered("a", "", &[two]), (uris(&[one]), minute));
        assert_eq!(discovered("a", "nsid = 1\n", &[]), (uris(&[first]), minute));
        assert_eq!(discovered("b", "nsid = 2\n", &[]), (Vec::new(), None));
    }

    #[test]
    fn t09_older_mark_of_another_socket_is_taken_over() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::new(
            directory.path().to_owned(),
            "new".to_owned(),
            &directory.path().join("c.sock"),
        );
        let older = directory.path().join("marks-old.json");
        let uri = |address: &str, more: &str| {
            format!("nvme-tcp://{address}:4420/nqn.2026-01.org.example:{more}")
        };
        let mark = |of: &str| {
            format!(
                "{{\"bound_ms\": 60000, \"paths\": [\"{}\"]}}",
                uri("10.0.0.1", of)
            )
        };
        let text = format!("{{\"x\": {}, \"y\": {}}}", mark("v0"), mark("other"));
        std::fs::write(&older, text).unwrap();
        let keys = uri("10.0.0.2", "v0?nsid=1");
        let text = format!("[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"{keys}\"\n");
        let of = crate::run::config::tests::parsed(&text).volumes.remove(0);
        let own = registry.state_path("marks");
        let mut marks = Marks::read(own.clone()).unwrap();
        marks.adopt(&registry, &[&of]).unwrap();
        assert_eq!(marks.wait_ns(&of), Some(60_000_000_000));
        // It has moved, durably; what is another volume's stays where it is.
        assert_eq!(Marks::read(own).unwrap().wait_ns(&of), Some(60_000_000_000));
        let left: BTreeMap<String, Mark> = state::read(&older).unwrap();
        assert_eq!(left.keys().collect::<Vec<_>>(), ["y"]);
    }

    #[test]
    fn t09_mark_with_a_running_engine_without_its_volume_holds() {
        let directory = tempfile::tempdir().unwrap();
        let registry = |id: &str| {
            let place = directory.path();
            Registry::new(place.to_owned(), id.to_owned(), &place.join(id))
        };
        let volume = |name: &str| {
            let uri = format!("nvme-tcp://10.0.0.1:4420/nqn.2026-01.org.example:{name}?nsid=1");
            let text = format!("[[volume]]\nname = \"{name}\"\n[[volume.path]]\nuri = \"{uri}\"\n");
            crate::run::config::tests::parsed(&text).volumes.remove(0)
        };
        let (a, b) = (volume("a"), volume("b"));
        let mut running = registry("running");
        assert!(running.enter(std::iter::once(&a)).is_ok());
        // It took over the mark of b for a reload that failed, and has one of its own.
        let theirs = running.state_path("marks");
        let mut marks = Marks::read(theirs.clone()).unwrap();
        for of in [&a, &b] {
            marks.keep(of, 60_000_000_000).unwrap();
        }
        let new = registry("new");
        let adopted = || {
            let mut marks = Marks::read(new.state_path("marks")).unwrap();
            marks.adopt(&new, &[&a, &b]).unwrap();
            [&a, &b].map(|of| marks.wait_ns(of))
        };
        assert_eq!(adopted(), [None, Some(60_000_000_000)]);
        assert_eq!(Marks::read(theirs).unwrap().map.len(), 2, "they stay there");
        running.end();
        assert_eq!(adopted(), [Some(60_000_000_000); 2]);
    }

    #[test]
    fn hostile_files_are_refused_or_hold_marks() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("marks.json");
        let text = "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n";
        let config = crate::run::config::tests::parsed(text);
        hostile::attack("state", |text| {
            std::fs::write(&path, text).unwrap();
            match Marks::read(path.clone()) {
                Ok(mut marks) => {
                    let wait_ns = marks.wait_ns(&config.volumes[0]);
                    let its = |(name, it): &(&String, &Mark)| {
                        *name == "v0" || it.paths.iter().any(|uri| uri == "mem:1MiB")
                    };
                    let found = marks.found.iter().map(|(name, it)| (name, &it.mark));
                    let mut its = found.filter(its);
                    assert_eq!(wait_ns.is_some(), its.clone().next().is_some());
                    let waits = wait_ns.is_some_and(|ns| ns > 0);
                    assert_eq!(waits, its.any(|(_, it)| it.bound_ms != Some(0)));
                    assert_eq!(marks.in_words(&config.volumes[0]).is_some(), waits);
                    marks.keep(&config.volumes[0], 1).unwrap();
                    assert_eq!(Marks::read(path.clone()).unwrap().map, marks.map);
                    marks.clear("v0").unwrap();
                }
                Err(error) => assert!(format!("{error:#}").contains("marks.json")),
            }
        });
    }
}
