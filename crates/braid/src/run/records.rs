//! Records of each volume for the next engine: a file per volume and kind, found by what the
//! volume leads to.
//!
//! # Contract
//! A record names the namespaces, files, devices and queues of its volume ([`Identity`]). A volume
//! has the records that name one of its own, whatever it is called and whichever control socket
//! its engine has; no other volume has them. Memory is known by the name of its volume. Records of
//! a running engine are written and removed by that engine only. They lie in `volumes/` of the
//! state directory. Files of older versions, which had one for all volumes of a control socket,
//! are read where they are until [`convert`](super::older::convert) has replaced them.
use super::config::{Volume, end};
use super::older;
use super::registry::{Place, Registry};
use super::rename::Renames;
use super::state;
use crate::log;
use crate::uri::{PathUri, UriKind};
use anyhow::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Files that one identity may have at most: each other one belongs to another engine.
pub const TURNS_MAX: u32 = 64;

/// A record of one volume.
pub trait Kept: Clone + PartialEq + Serialize + DeserializeOwned {
    /// Names its files.
    const KIND: &'static str;
    /// Began the names of files of older versions.
    const OLD: &'static str;
    /// Message for a file that can't be read, and what to do about it.
    const ADVICE: &'static str;
    /// No file of it may be passed over, whichever volume it is of.
    const STRICT: bool;

    /// Adds to an identity what it says itself of where its volume leads.
    fn tell(&self, of: &mut Identity);

    /// Merges two records of one volume.
    #[must_use]
    fn merged(self, _other: Self) -> Self {
        self
    }
}

/// Identity of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdentityKind {
    /// A volume over paths.
    Paths,
    /// A mirror.
    Mirror,
    /// A leg of one.
    Leg,
}

/// Where a volume leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Its name at that time.
    pub volume: String,
    /// State id of the control socket of the engine that wrote it.
    pub engine: String,
    /// Its identity.
    pub kind: IdentityKind,
    /// Namespaces of subsystems.
    #[serde(default)]
    pub namespaces: Vec<Place>,
    /// Files, devices, queues, in words.
    #[serde(default)]
    pub ends: Vec<String>,
}

impl Identity {
    /// Of a volume of an engine, as it is configured.
    pub fn of(volume: &Volume, engine: &str) -> Self {
        let kind = match &volume.leg_of {
            Some(_) => IdentityKind::Leg,
            None if volume.is_mirror() => IdentityKind::Mirror,
            None => IdentityKind::Paths,
        };
        let mut it = Self::unknown(&volume.name, engine, kind);
        let of_legs = volume.legs.iter().flat_map(|leg| &leg.paths);
        for keys in volume.paths.iter().chain(of_legs) {
            it.add_path(&keys.uri);
        }
        if let Some(nqn) = &volume.subsystem {
            it.add_namespace(Place {
                subsystem: nqn.clone(),
                nsid: volume.nsid,
            });
        }
        it
    }

    /// Of a volume of which nothing but the name is known.
    pub fn unknown(volume: &str, engine: &str, kind: IdentityKind) -> Self {
        Self {
            volume: volume.to_owned(),
            engine: engine.to_owned(),
            kind,
            namespaces: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// It leads there too.
    pub fn add_path(&mut self, uri: &PathUri) {
        let end = match uri.kind() {
            UriKind::NvmeTcp(tcp) => {
                let (subsystem, nsid) = (tcp.subsystem.clone(), tcp.nsid);
                return self.add_namespace(Place { subsystem, nsid });
            }
            UriKind::Memory(_) | UriKind::Null(_) => {
                format!("memory of {} ({})", self.volume, self.engine)
            }
            UriKind::File(_) | UriKind::NvmeNg(_) | UriKind::Queue { .. } => end(uri),
        };
        if !self.ends.contains(&end) {
            self.ends.push(end);
        }
    }

    /// The same of a namespace.
    pub fn add_namespace(&mut self, place: Place) {
        if !self.namespaces.contains(&place) {
            self.namespaces.push(place);
        }
    }

    /// Adds where another one leads.
    pub fn add_all(&mut self, other: &Self) {
        other
            .namespaces
            .iter()
            .for_each(|it| self.add_namespace(it.clone()));
        let new = other.ends.iter().filter(|it| !self.ends.contains(it));
        let new: Vec<String> = new.cloned().collect();
        self.ends.extend(new);
    }

    /// Whether nothing but the name is known of it.
    fn is_unknown(&self) -> bool {
        self.namespaces.is_empty() && self.ends.is_empty()
    }

    /// Whether both are called the same by the same engine.
    pub fn has_name_of(&self, other: &Self) -> bool {
        self.volume == other.volume && self.engine == other.engine
    }

    /// Whether both lead to one namespace, file, device or queue. Of an unknown one, which only
    /// files of older versions leave, the name counts.
    pub fn is(&self, other: &Self) -> bool {
        if self.is_unknown() || other.is_unknown() {
            return self.kind == other.kind && self.has_name_of(other);
        }
        let meets = |it: &Place| other.namespaces.iter().any(|there| there.meets(it));
        let ends = || self.ends.iter().any(|it| other.ends.contains(it));
        self.kind == other.kind && (self.namespaces.iter().any(meets) || ends())
    }

    /// Names its files; `turn`: how many with this identity are another engine's.
    fn digest(&self, turn: u32) -> String {
        let namespaces = self.namespaces.iter();
        let namespaces = namespaces.map(|it| format!("{}/{:?}", it.subsystem, it.nsid));
        let first = namespaces.chain(self.ends.iter().cloned()).min();
        let first = first.unwrap_or_else(|| format!("{} ({})", self.volume, self.engine));
        let text = format!("{:?} {turn} {first}", self.kind);
        let digest = Uuid::new_v5(&Uuid::NAMESPACE_URL, text.as_bytes());
        digest.simple().to_string()
    }
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record<T> {
    /// Its volume.
    pub of: Identity,
    /// Its record.
    pub holds: T,
}

/// A record that was found.
pub struct Found<T> {
    /// Its file; `None`: one of an older version, which is left as it is.
    pub path: Option<PathBuf>,
    pub record: Record<T>,
}

/// The records of one kind that are this engine's.
pub struct Records<T> {
    directory: PathBuf,
    engine: String,
    /// By the names of their volumes.
    own: BTreeMap<String, (PathBuf, Record<T>)>,
    /// Where volumes lead, by name.
    known: BTreeMap<String, Identity>,
}

impl<T: Kept> Records<T> {
    /// None yet.
    pub fn new(registry: &Registry) -> Self {
        Self {
            directory: directory(registry.directory()),
            engine: registry.id().to_owned(),
            own: BTreeMap::new(),
            known: BTreeMap::new(),
        }
    }

    /// Where their files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where a volume leads, from now on.
    pub fn learn(&mut self, volume: &Volume) -> Identity {
        let it = Identity::of(volume, &self.engine);
        self.known.insert(volume.name.clone(), it.clone());
        it
    }

    /// Where these volumes lead, from now on, and all records, those of older versions last.
    ///
    /// # Errors
    /// A record can't be read that is of one of these volumes, or of whichever
    /// ([`Kept::STRICT`]). Others are logged.
    pub fn read<'a>(
        &mut self,
        registry: &Registry,
        volumes: impl IntoIterator<Item = &'a Volume>,
    ) -> anyhow::Result<(Vec<Identity>, Vec<Found<T>>)> {
        let volumes = volumes.into_iter();
        let volumes: Vec<Identity> = volumes.map(|it| self.learn(it)).collect();
        let mut all = Vec::new();
        for path in files::<T>(&self.directory) {
            match state::read::<Record<T>>(&path) {
                Ok(Some(record)) => all.push(Found {
                    path: Some(path),
                    record,
                }),
                Ok(None) => {} // its engine has removed it just now
                Err(error) => {
                    let mut own = volumes.iter();
                    let is_own = own.any(|it| self.path_of(it, 0) == path);
                    unreadable::<T>(&path, error, is_own)?;
                }
            }
        }
        let older = older::records::<T>(registry)?;
        all.extend(older.into_iter().map(|record| Found { path: None, record }));
        Ok((volumes, all))
    }

    /// A file that was found is this volume's, and this engine's, from now on.
    pub fn claim(&mut self, volume: &str, path: PathBuf, record: Record<T>) {
        self.own.insert(volume.to_owned(), (path, record));
    }

    /// Whether no volume has a file.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Whether a volume has a file.
    pub fn has(&self, volume: &str) -> bool {
        self.own.contains_key(volume)
    }

    /// Whether a file is one of these volumes' already.
    pub fn is_claimed(&self, path: &Path) -> bool {
        self.own.values().any(|(own, _)| own == path)
    }

    /// The records of a volume are kept under another name from now on, in the same file, with
    /// where that volume led: whatever comes by its old name is another one.
    pub fn rename(&mut self, from: &str, to: &str) {
        self.known.remove(from);
        if let Some(own) = self.own.remove(from) {
            self.own.insert(to.to_owned(), own);
        }
    }

    /// The same of volumes that lead where they led; their files have the names of before until
    /// they are kept anew.
    pub fn rename_all(&mut self, names: &Renames) {
        names.apply_to_keys(&mut self.own);
        names.apply_to_keys(&mut self.known);
    }

    /// Volumes whose files have another name, which this engine gave them: that, and their own.
    pub fn renamed(&self) -> Vec<(&str, &str)> {
        let own = self.own.iter();
        let named = own.map(|(name, (_, it))| (&it.of, name.as_str()));
        let others = named.filter(|(of, name)| of.engine == self.engine && of.volume != *name);
        others
            .map(|(of, name)| (of.volume.as_str(), name))
            .collect()
    }

    /// Keeps these, and no others, durably. One that can't be written holds up no other one.
    ///
    /// # Errors
    /// A file can't be written or removed; then it is as before.
    pub fn keep_all(&mut self, all: &BTreeMap<String, T>) -> anyhow::Result<()> {
        let names: BTreeSet<String> = all.keys().chain(self.own.keys()).cloned().collect();
        let kept = names.iter().map(|name| match all.get(name) {
            Some(holds) => self.keep(name, holds),
            None => self.remove(name),
        });
        let kept: Vec<anyhow::Result<()>> = kept.collect();
        kept.into_iter().collect()
    }

    /// Keeps this of a volume, durably.
    ///
    /// # Errors
    /// The file can't be written; then it is as before.
    pub fn keep(&mut self, volume: &str, holds: &T) -> anyhow::Result<()> {
        let there = self.own.get(volume);
        let known = self.known.get(volume).cloned();
        let of = known.or_else(|| there.map(|(_, it)| it.of.clone()));
        let mut of = of.unwrap_or_else(|| {
            let kind = match volume.contains('/') {
                true => IdentityKind::Leg,
                false => IdentityKind::Paths,
            };
            Identity::unknown(volume, &self.engine, kind)
        });
        self.engine.clone_into(&mut of.engine);
        volume.clone_into(&mut of.volume);
        let record = Record {
            of,
            holds: holds.clone(),
        };
        let path = match there {
            Some((_, there)) if *there == record => return Ok(()),
            Some((path, _)) => path.clone(),
            None => self.free_path(&record.of)?,
        };
        state::write(&path, &record)?;
        self.own.insert(volume.to_owned(), (path, record));
        Ok(())
    }

    /// Nothing is kept of a volume any more.
    ///
    /// # Errors
    /// The file can't be removed.
    pub fn remove(&mut self, volume: &str) -> anyhow::Result<()> {
        if let Some((path, _)) = self.own.get(volume) {
            state::remove(path)?;
            self.own.remove(volume);
        }
        Ok(())
    }

    fn path_of(&self, of: &Identity, turn: u32) -> PathBuf {
        path_of::<T>(&self.directory, of, turn)
    }

    /// A file that no other engine has, nor another volume of this one. A file that may not be
    /// passed over is not overwritten either: a volume that this engine hasn't may have left it.
    fn free_path(&self, of: &Identity) -> anyhow::Result<PathBuf> {
        let is_free = |path: &PathBuf| {
            let there = || state::read::<Record<T>>(path);
            let is_ours = |it: Record<T>| !T::STRICT && it.of.engine == self.engine;
            !self.is_claimed(path) && there().is_ok_and(|it| it.is_none_or(is_ours))
        };
        let mut paths = (0..TURNS_MAX).map(|turn| self.path_of(of, turn));
        paths.find(is_free).with_context(|| {
            let place = self.directory.display();
            format!("{TURNS_MAX} engines have kept something of its data in {place}")
        })
    }
}

/// Where records are, of a state directory.
pub fn directory(of: &Path) -> PathBuf {
    of.join("volumes")
}

/// The file of an identity.
pub fn path_of<T: Kept>(directory: &Path, of: &Identity, turn: u32) -> PathBuf {
    directory.join(format!("{}-{}.json", T::KIND, of.digest(turn)))
}

/// Advice for a file that can't be read: whether it keeps the engine from starting.
///
/// # Errors
/// It does.
pub fn unreadable<T: Kept>(path: &Path, error: anyhow::Error, own: bool) -> anyhow::Result<()> {
    let error = error.context(format!("{} {}", path.display(), T::ADVICE));
    if own || T::STRICT {
        return Err(error);
    }
    log::say(format!("{error:#}; it is passed over"));
    Ok(())
}

fn files<T: Kept>(directory: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(directory).into_iter().flatten();
    let paths = all.filter_map(|entry| Some(entry.ok()?.path()));
    let is_it = |path: &PathBuf| {
        let name = path.file_name().and_then(|it| it.to_str());
        let rest = name.and_then(|it| it.strip_prefix(T::KIND)?.strip_prefix('-'));
        rest.is_some_and(|it| it.ends_with(".json"))
    };
    let mut paths: Vec<PathBuf> = paths.filter(is_it).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::tests::parsed;

    fn identity(keys: &str) -> Identity {
        let text = format!("[[volume]]\nname = \"v0\"\n{keys}");
        Identity::of(&parsed(&text).volumes[0], "a")
    }

    fn path(uri: &str) -> String {
        format!("[[volume.path]]\nuri = \"{uri}\"\n")
    }

    #[test]
    fn volumes_are_one_where_they_lead_to_one_place() {
        let nqn = |more: &str| path(&format!("nvme-tcp://10.0.0.{more}"));
        let one = identity(&nqn("1/nqn.2026-01.org.example:s?nsid=1"));
        let is = |keys: &str| one.is(&identity(keys));
        assert!(is(&nqn("2/nqn.2026-01.org.example:s?nsid=1")), "elsewhere");
        assert!(is(&nqn("2/nqn.2026-01.org.example:s")), "its only one");
        assert!(!is(&nqn("1/nqn.2026-01.org.example:s?nsid=2")));
        assert!(!is(&nqn("1/nqn.2026-01.org.example:t?nsid=1")));
        assert!(!is(&path("file:/srv/a")));
        let discovered = "subsystem = \"nqn.2026-01.org.example:s\"\n";
        let text = format!(
            "[[discovery]]\nuri = \"nvme-tcp://127.0.0.1\"\n[[volume]]\nname = \"w0\"\n{discovered}"
        );
        assert!(one.is(&Identity::of(&parsed(&text).volumes[0], "b")));
        let file = identity(&path("file:/srv/a?distance=3"));
        assert!(file.is(&identity(&path("file:/srv/a"))));
        assert!(!file.is(&identity(&path("file:/srv/b"))));
    }

    /// A leg is not the volume that its file was before, nor its mirror.
    #[test]
    fn legs_mirrors_and_volumes_are_apart() {
        let text = "[[volume]]\nname = \"m0\"\nkind = \"mirror\"\n\
                    [[volume.leg]]\nuri = \"file:/srv/a\"\n[[volume.leg]]\nuri = \"file:/srv/b\"\n";
        let all = parsed(text).volumes;
        let [mirror, a, b] = [0, 1, 2].map(|at| Identity::of(&all[at], "a"));
        assert!(!mirror.is(&a) && !a.is(&b));
        assert!(!a.is(&identity(&path("file:/srv/a"))));
        // In another order, and under another name.
        let text = "[[volume]]\nname = \"m1\"\nkind = \"mirror\"\n\
                    [[volume.leg]]\nuri = \"file:/srv/b\"\n[[volume.leg]]\nuri = \"file:/srv/c\"\n";
        let all = parsed(text).volumes;
        let [other, first] = [0, 1].map(|at| Identity::of(&all[at], "b"));
        assert!(mirror.is(&other) && b.is(&first) && !a.is(&first));
    }

    #[test]
    fn memory_is_known_by_the_name_of_its_volume() {
        let text = path("mem:1MiB");
        let one = identity(&text);
        assert!(one.is(&identity(&path("mem:2MiB"))));
        let all = parsed(&format!("[[volume]]\nname = \"w0\"\n{text}")).volumes;
        assert!(!one.is(&Identity::of(&all[0], "a")));
        assert!(!one.is(&identity(&path("file:/srv/a"))));
        let unknown = Identity::unknown("v0", "a", IdentityKind::Paths);
        assert!(unknown.is(&one) && one.is(&unknown));
        assert!(!Identity::unknown("v0", "b", IdentityKind::Paths).is(&one));
    }
}
