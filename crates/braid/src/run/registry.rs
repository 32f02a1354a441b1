//! The record of a running engine in the state directory: which volumes it has, locked for its
//! life.
//!
//! # Contract
//! `engine-<id>.json` is locked (`flock`, which ends with the process) from the start of an engine
//! until its end; a record that is not locked belongs to an engine that has ended. An engine is
//! refused while another one has its control socket, or a namespace of one of its volumes: marks of
//! a running engine are written and removed by that engine only. `engines.lock` is held while
//! records are compared, so of two engines that start at once one is refused.
//!
//! # Limits
//! Namespaces are compared by subsystem NQN and NSID; a path without `nsid` may lead to any
//! namespace of its subsystem. Legs are recorded by name only: they have an owner record. Engines
//! that use different state directories do not see each other.
use super::config::Volume;
use super::rename::Renames;
use crate::text;
use crate::uri::UriKind;
use anyhow::{Context, anyhow, bail};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sys::freeze;

/// How long the lock of the directory, or of a record that somebody looks at, is waited for.
const LOCK_MAX: Duration = Duration::from_secs(5);
const RECORD_MAX: Duration = Duration::from_millis(200);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The record of one control socket.
pub struct Registry {
    directory: PathBuf,
    id: String,
    socket: PathBuf,
    /// While this engine is recorded.
    file: Option<fs::File>,
    volumes: Vec<Entry>,
}

/// Why an engine could not be recorded.
pub enum Refused {
    /// Another engine has something of it.
    Rival(String),
    /// The record can't be written or locked.
    Failed(anyhow::Error),
}

/// Content of a record.
#[derive(Default, Serialize, Deserialize)]
struct Record {
    pid: u32,
    socket: String,
    volumes: Vec<Entry>,
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    name: String,
    namespaces: Vec<Place>,
}

/// Where a namespace is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// NQN.
    pub subsystem: String,
    /// `None`: the only one of its subsystem, which may be any.
    pub nsid: Option<u32>,
}

impl Place {
    /// Whether both may be one namespace.
    pub fn meets(&self, other: &Self) -> bool {
        let any = self.nsid.is_none() || other.nsid.is_none();
        self.subsystem == other.subsystem && (any || self.nsid == other.nsid)
    }
}

/// The namespaces that a volume leads to by its configuration.
pub fn places(volume: &Volume) -> Vec<Place> {
    let paths = volume
        .paths
        .iter()
        .filter_map(|keys| match keys.uri.kind() {
            UriKind::NvmeTcp(tcp) => Some(Place {
                subsystem: tcp.subsystem.clone(),
                nsid: tcp.nsid,
            }),
            _ => None,
        });
    let discovered = volume.subsystem.iter().map(|nqn| Place {
        subsystem: nqn.clone(),
        nsid: volume.nsid,
    });
    let mut all: Vec<Place> = Vec::new();
    for place in paths.chain(discovered) {
        if !all.contains(&place) {
            all.push(place);
        }
    }
    all
}

impl Registry {
    /// Of the engine with this control socket; nothing is written yet.
    pub fn new(directory: PathBuf, id: String, socket: &Path) -> Self {
        Self {
            directory,
            id,
            socket: socket.to_owned(),
            file: None,
            volumes: Vec::new(),
        }
    }

    /// The id of its control socket.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its record.
    fn record_path(&self) -> PathBuf {
        self.directory.join(format!("engine-{}.json", self.id))
    }

    /// Where the state files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Entry of a volume.
    pub fn entry(&self, name: &str) -> Option<Entry> {
        self.volumes.iter().find(|it| it.name == name).cloned()
    }

    /// The record of a volume that was not opened holds again.
    ///
    /// # Errors
    /// As of [`Registry::leave`].
    pub fn restore(&mut self, name: &str, before: Option<Entry>) -> anyhow::Result<()> {
        if self.entry(name) == before {
            return Ok(());
        }
        self.volumes.retain(|it| it.name != name);
        self.volumes.extend(before);
        if self.file.is_none() {
            return Ok(());
        }
        let _guard = self.guard()?;
        self.write()
    }

    /// Volumes have other names.
    ///
    /// # Errors
    /// As of [`Registry::leave`].
    pub fn rename(&mut self, names: &Renames) -> anyhow::Result<()> {
        let all = self.volumes.iter_mut();
        all.for_each(|it| names.apply(&mut it.name));
        if self.file.is_none() {
            return Ok(());
        }
        let _guard = self.guard()?;
        self.write()
    }

    /// Records this engine with these volumes, if it is not recorded yet, or adds them.
    ///
    /// # Errors
    /// Another engine has one of them, or the record can't be written; then it is as before.
    pub fn enter<'a>(&mut self, volumes: impl Iterator<Item = &'a Volume>) -> Result<(), Refused> {
        let mut all = self.volumes.clone();
        for of in volumes.filter(|it| !it.is_mirror()) {
            // The owner record of a leg says whose it is.
            let is_leg = of.leg_of.is_some();
            let entry = Entry {
                name: of.name.clone(),
                namespaces: if is_leg { Vec::new() } else { places(of) },
            };
            match all.iter_mut().find(|it| it.name == entry.name) {
                Some(there) => *there = entry,
                None => all.push(entry),
            }
        }
        if self.file.is_some() && all == self.volumes {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.volumes, all);
        let entered = self.enter_locked().map_err(|refused| match refused {
            // The record of a rival is found also where this directory can't be written.
            Refused::Failed(_) => self.rival(&self.volumes).map_or(refused, Refused::Rival),
            refused => refused,
        });
        if entered.is_err() {
            self.volumes = before;
        }
        entered
    }

    /// A volume has left.
    ///
    /// # Errors
    /// The record can't be written: another engine is refused it for as long as this one runs.
    pub fn leave(&mut self, name: &str) -> anyhow::Result<()> {
        self.restore(name, None)
    }

    /// Whether this engine is recorded: its state files are its own.
    pub fn is_held(&self) -> bool {
        self.file.is_some()
    }

    /// Whether the engine with the state files of this id runs.
    pub fn is_alive(&self, id: &str) -> bool {
        let path = self.directory.join(format!("engine-{id}.json"));
        id != self.id && fs::File::open(path).is_ok_and(|file| is_locked(&file))
    }

    /// Locks the directory against other engines, where that can be done.
    ///
    /// # Errors
    /// It can't be, or another engine keeps it locked.
    pub fn guard(&self) -> anyhow::Result<fs::File> {
        let path = self.directory.join("engines.lock");
        let context = || format!("cannot lock {}", path.display());
        fs::create_dir_all(&self.directory).with_context(context)?;
        let mut options = fs::File::options();
        let file = options.create(true).truncate(false).write(true).open(&path);
        let file = file.with_context(context)?;
        lock(&file, LOCK_MAX).with_context(context)?;
        Ok(file)
    }

    /// The names of the volumes of another engine that runs, by the id of its state files; `None`:
    /// it does not run.
    pub fn names_of(&self, id: &str) -> Option<Vec<String>> {
        if !self.is_alive(id) {
            return None;
        }
        // Of one that is being written nothing is known, so nothing is taken for its own.
        let record = read(&self.directory.join(format!("engine-{id}.json")));
        let volumes = record.map(|it| it.volumes).unwrap_or_default();
        Some(volumes.into_iter().map(|it| it.name).collect())
    }

    /// The engine has ended: another one may have all of its volumes.
    pub fn end(&mut self) {
        if self.file.is_none() {
            return;
        }
        // Without the lock of the directory the record stays, unlocked: another engine could have
        // opened it just now.
        if let Ok(_guard) = self.guard() {
            let _ = fs::remove_file(self.record_path());
            self.file = None;
        }
        self.file = None;
    }

    fn enter_locked(&mut self) -> Result<(), Refused> {
        let _guard = self.guard().map_err(Refused::Failed)?;
        if let Some(why) = self.rival(&self.volumes) {
            return Err(Refused::Rival(why));
        }
        self.remove_stale();
        let is_new = self.file.is_none();
        if is_new {
            self.file = Some(self.lock_record()?);
        }
        let written = self.write();
        if is_new && written.is_err() {
            // A locked record without volumes would keep every other engine from starting.
            let _ = fs::remove_file(self.record_path());
            self.file = None;
        }
        written.map_err(Refused::Failed)
    }

    /// Removes the records of engines that have ended; the directory is locked, so none of them is
    /// just beginning.
    fn remove_stale(&self) {
        let own = self.record_path();
        let paths = others(&self.directory, "engine").into_iter();
        for path in paths.filter(|path| *path != own) {
            let file = fs::File::open(&path);
            if file.is_ok_and(|file| !is_locked(&file)) {
                let _ = fs::remove_file(&path);
            }
        }
    }

    fn lock_record(&self) -> Result<fs::File, Refused> {
        let path = self.record_path();
        let failed = |error: std::io::Error| {
            let error = anyhow::Error::new(error);
            Refused::Failed(error.context(format!("cannot write {}", path.display())))
        };
        let mut options = fs::File::options();
        let options = options.create(true).truncate(false).read(true).write(true);
        let file = options.open(&path).map_err(failed)?;
        match lock(&file, RECORD_MAX) {
            Ok(()) => Ok(file),
            Err(Errno::WOULDBLOCK) => {
                let pid = read(&path).map(|it| it.pid).unwrap_or_default();
                Err(Refused::Rival(format!(
                    "another engine (process {pid}) runs with the control socket {}, though that \
                     file may have been removed: stop it, or give this one a socket of its own",
                    self.socket.display()
                )))
            }
            Err(error) => Err(failed(error.into())),
        }
    }

    /// Writes the record in place: its lock is on the file, not on the name.
    fn write(&mut self) -> anyhow::Result<()> {
        let path = self.record_path();
        let record = Record {
            pid: std::process::id(),
            socket: self.socket.display().to_string(),
            volumes: self.volumes.clone(),
        };
        let text = serde_json::to_string_pretty(&record)?;
        let Some(file) = &mut self.file else {
            bail!("{} is not locked", path.display());
        };
        let written = file.rewind().and_then(|()| file.write_all(text.as_bytes()));
        freeze::step("longer than it is:", &path.display());
        let written = written.and_then(|()| file.set_len(text.len() as u64));
        written
            .and_then(|()| file.sync_all())
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Why a running engine keeps this one from having these volumes.
    fn rival(&self, volumes: &[Entry]) -> Option<String> {
        let own = self.record_path();
        let paths = others(&self.directory, "engine").into_iter();
        for path in paths.filter(|path| *path != own) {
            let record = match fs::File::open(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => Err(anyhow!("cannot read {}: {error}", path.display())),
                Ok(file) if !is_locked(&file) => continue,
                Ok(_) => read(&path),
            };
            let record = match record {
                Ok(record) => record,
                Err(error) => {
                    return Some(format!(
                        "another engine may run, and its volumes are not known: {error:#}; stop \
                         it, or remove that file if it has ended"
                    ));
                }
            };
            let theirs = |own: &Entry| {
                let all = record.volumes.iter();
                let mut those = all.filter(|it| {
                    let mut own = own.namespaces.iter();
                    own.any(|a| it.namespaces.iter().any(|b| a.meets(b)))
                });
                those.next()
            };
            let found = volumes.iter().find_map(|own| Some((own, theirs(own)?)));
            if let Some((own, theirs)) = found {
                return Some(format!(
                    "{}: its namespace is volume {} of another engine (process {}, control socket \
                     {}): two engines over one namespace know nothing of each other's writes and \
                     flushes; stop that one, or use it",
                    own.name, theirs.name, record.pid, record.socket
                ));
            }
        }
        None
    }
}

/// The id in the name of a state file.
pub fn id_of(path: &Path) -> Option<&str> {
    let (_, id) = path.file_stem()?.to_str()?.split_once('-')?;
    Some(id)
}

/// All state files of a kind in a directory; none, if it can't be read.
pub fn others(directory: &Path, kind: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(directory).into_iter().flatten();
    let paths = all.filter_map(|entry| Some(entry.ok()?.path()));
    let is_it = |path: &PathBuf| {
        let name = path.file_name().and_then(|it| it.to_str());
        let rest = name.and_then(|it| it.strip_prefix(kind)?.strip_prefix('-'));
        rest.is_some_and(|it| it.ends_with(".json"))
    };
    let mut paths: Vec<PathBuf> = paths.filter(is_it).collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> anyhow::Result<Record> {
    let text = text::if_there(path)?;
    let text = text.ok_or_else(|| anyhow!("{} has vanished", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{}", path.display()))
}

fn lock(file: &fs::File, limit: Duration) -> Result<(), Errno> {
    let until = Instant::now() + limit;
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(LOCK_PAUSE),
            result => return result,
        }
    }
}

/// Whether a running engine holds a record.
fn is_locked(file: &fs::File) -> bool {
    let tried = rustix::fs::flock(file, FlockOperation::NonBlockingLockShared);
    tried == Err(Errno::WOULDBLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::tests::parsed;

    fn volume(name: &str, uri: &str) -> Volume {
        let text = format!(
            "[[volume]]\nname = \"{name}\"\n[[volume.path]]\n\
             uri = \"nvme-tcp://127.0.0.1:4420/nqn.2026-01.org.example:{uri}\"\n"
        );
        parsed(&text).volumes.remove(0)
    }

    fn registry(directory: &Path, id: &str) -> Registry {
        let socket = directory.join(format!("{id}.sock"));
        Registry::new(directory.join("braid"), id.to_owned(), &socket)
    }

    fn rival(registry: &mut Registry, volumes: &[Volume]) -> Option<String> {
        match registry.enter(volumes.iter()) {
            Ok(()) => None,
            Err(Refused::Rival(why)) => Some(why),
            Err(Refused::Failed(error)) => panic!("{error:#}"),
        }
    }

    #[test]
    fn t09_namespace_of_a_running_engine_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let new = |id| registry(directory.path(), id);
        let mut first = new("a");
        let (one, two) = (volume("v0", "s?nsid=1"), volume("v1", "s?nsid=2"));
        assert_eq!(rival(&mut first, std::slice::from_ref(&one)), None);
        assert!(new("b").is_alive("a"));
        let pid = format!("process {}", std::process::id());
        for (id, other) in [("b", &one), ("b", &volume("x", "s")), ("a", &two)] {
            let why = rival(&mut new(id), std::slice::from_ref(other)).unwrap();
            assert!(why.contains(&pid), "{why}");
        }
        let mut second = new("b");
        assert_eq!(rival(&mut second, std::slice::from_ref(&two)), None);
        // An identity that comes with a reload is compared too; one that has left is free.
        assert!(rival(&mut second, std::slice::from_ref(&one)).is_some());
        first.leave("v0").unwrap();
        assert_eq!(rival(&mut second, std::slice::from_ref(&one)), None);
        second.end();
        assert!(!first.is_alive("b"));
        assert!(!directory.path().join("braid/engine-b.json").exists());
    }

    #[test]
    fn t09_record_of_a_dead_engine_is_no_rival() {
        let directory = tempfile::tempdir().unwrap();
        let one = volume("v0", "s");
        let mut first = registry(directory.path(), "a");
        assert_eq!(rival(&mut first, std::slice::from_ref(&one)), None);
        first.file = None; // as its process ends
        let mut second = registry(directory.path(), "b");
        assert_eq!(rival(&mut second, std::slice::from_ref(&one)), None);
    }
}
