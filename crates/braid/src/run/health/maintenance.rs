//! Maintenance: paths, legs and volumes that are expected to be away or slow, so `check` stays ok
//! for them. It changes nothing about how they serve.
//!
//! # Contract
//! Kept in a file of the state directory for the next engine of this control socket. While an
//! engine runs the monotonic clock ends it; the time of day counts for the time between two
//! engines.
use crate::control::rpc::ControlError;
use crate::run::registry::Registry;
use crate::run::rename::Renames;
use crate::run::state;
use crate::units::{format_ns, format_utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest note, bytes: two lines.
pub const NOTE_MAX: usize = 160;

/// A volume or path under maintenance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Name of a volume; of a leg, that of its volume.
    pub volume: String,
    /// URI of a path; `None`: the whole volume.
    pub path: Option<String>,
}

impl Target {
    /// For people.
    pub fn words(&self) -> String {
        match &self.path {
            Some(path) => format!("path {path} of {}", self.volume),
            None => self.volume.clone(),
        }
    }
}

/// One that is under maintenance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    of: Target,
    /// s since 1970.
    since_s: u64,
    /// The same; `None`: until it is switched off.
    until_s: Option<u64>,
    note: Option<String>,
    /// When it ends by this engine's clock.
    #[serde(skip)]
    until: Option<Instant>,
}

impl Entry {
    fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|at| at <= now)
    }

    fn json(&self) -> Value {
        let left = self
            .until
            .map(|at| at.saturating_duration_since(Instant::now()));
        json!({
            "since_s": self.since_s,
            "until_s": self.until_s,
            "left_ns": left.map(|it| it.as_nanos() as u64),
            "note": self.note,
        })
    }
}

/// See the module.
pub struct Maintenance {
    file: PathBuf,
    entries: Mutex<Vec<Entry>>,
    /// Held over each change: reports take the entries while the file is written.
    changes: Mutex<()>,
}

fn unix_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

impl Maintenance {
    /// As the engine before left it.
    ///
    /// # Errors
    /// Its file can't be read.
    pub fn read(registry: &Registry) -> anyhow::Result<Self> {
        let name = format!("maintenance-{}.json", registry.id());
        let file = registry.directory().join(name);
        let mut entries: Vec<Entry> = state::read(&file)?.unwrap_or_default();
        let (now, now_s) = (Instant::now(), unix_s());
        for it in &mut entries {
            let left = it.until_s.map(|at_s| at_s.saturating_sub(now_s));
            it.until = left.map(|left_s| now + Duration::from_secs(left_s));
        }
        Ok(Self {
            file,
            entries: Mutex::new(entries),
            changes: Mutex::default(),
        })
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a change: no other one reads the entries until it has replaced them.
    fn change(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the file, then what is in force. Only in a [`change`](Self::change).
    fn keep(&self, entries: Vec<Entry>) -> anyhow::Result<()> {
        match entries.is_empty() {
            true => state::remove(&self.file)?,
            false => state::write(&self.file, &entries)?,
        }
        *self.entries() = entries;
        Ok(())
    }

    /// Begins, or has another end and note from now on.
    ///
    /// # Errors
    /// Its file can't be written; nothing has changed then.
    pub fn begin(
        &self,
        of: Target,
        time: Option<Duration>,
        note: Option<String>,
    ) -> anyhow::Result<Value> {
        let _change = self.change();
        let now_s = unix_s();
        let mut entries = self.entries().clone();
        let before = entries.iter().find(|it| it.of == of);
        let entry = Entry {
            since_s: before.map_or(now_s, |it| it.since_s),
            until_s: time.map(|it| now_s.saturating_add(it.as_secs_f64().ceil() as u64)),
            note,
            until: time.map(|it| Instant::now() + it),
            of,
        };
        entries.retain(|it| it.of != entry.of);
        let shown = entry.json();
        entries.push(entry);
        self.keep(entries)?;
        Ok(shown)
    }

    /// Ends.
    ///
    /// # Errors
    /// It is not under maintenance, or the file can't be written; nothing has changed then.
    pub fn end(&self, of: &Target) -> Result<(), ControlError> {
        let _change = self.change();
        let mut entries = self.entries().clone();
        let count = entries.len();
        entries.retain(|it| it.of != *of);
        if entries.len() == count {
            let line = format!("{} is not under maintenance", of.words());
            return Err(ControlError::refused(line));
        }
        let kept = self.keep(entries);
        kept.map_err(|error| ControlError::refused(format!("{error:#}")))
    }

    /// Whether there is an entry of it.
    pub fn has(&self, of: &Target) -> bool {
        self.entries().iter().any(|it| it.of == *of)
    }

    /// A volume has left, with its paths: its name may be another one's.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn forget(&self, volume: &str) -> anyhow::Result<()> {
        let _change = self.change();
        let mut entries = self.entries().clone();
        let count = entries.len();
        entries.retain(|it| it.of.volume != volume);
        match entries.len() == count {
            true => Ok(()),
            false => self.keep(entries),
        }
    }

    /// Removes those whose time is over. Returns a line for each.
    pub fn end_expired(&self) -> Vec<String> {
        let _change = self.change();
        let now = Instant::now();
        let entries = self.entries().clone();
        let (over, stay): (Vec<Entry>, Vec<Entry>) =
            entries.into_iter().partition(|it| it.is_over(now));
        if over.is_empty() {
            return Vec::new();
        }
        let mut lines: Vec<String> = over
            .iter()
            .map(|it| format!("{}: its maintenance is over", it.of.words()))
            .collect();
        if let Err(error) = self.keep(stay.clone()) {
            // The next engine finds it over too.
            *self.entries() = stay;
            lines.push(format!("the end of a maintenance is not kept: {error:#}"));
        }
        lines
    }

    /// How long until the next one is over; `None`: none will be.
    pub fn next_end(&self) -> Option<Duration> {
        let next = self.entries().iter().filter_map(|it| it.until).min();
        next.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// That of a volume (`path`: `None`) or path, in JSON; null: there is none.
    pub fn of(&self, volume: &str, path: Option<&str>) -> Value {
        let now = Instant::now();
        let entries = self.entries();
        let its = |it: &&Entry| it.of.volume == volume && it.of.path.as_deref() == path;
        let found = entries.iter().filter(its).find(|it| !it.is_over(now));
        found.map_or(Value::Null, Entry::json)
    }

    /// All of them, in JSON.
    pub fn list(&self) -> Vec<Value> {
        let entries = self.entries();
        let shown = entries.iter().map(|it| {
            let mut shown = it.json();
            shown["volume"] = it.of.volume.clone().into();
            shown["path"] = it.of.path.clone().into();
            shown
        });
        shown.collect()
    }

    /// Volumes have other names.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn rename(&self, names: &Renames) -> anyhow::Result<()> {
        let _change = self.change();
        let mut entries = self.entries().clone();
        let all = entries.iter_mut();
        all.for_each(|it| names.apply(&mut it.of.volume));
        match entries == *self.entries() {
            true => Ok(()),
            false => self.keep(entries),
        }
    }
}

/// For people: the state that something has without regard to maintenance, where that is another.
pub fn but_for(of: &Value) -> Option<String> {
    let actual = of["actual"].as_str()?;
    (of["state"] != actual).then(|| format!("{actual} but for maintenance"))
}

/// For people: until when, and why.
pub fn line(of: &Value) -> String {
    let until = match of["until_s"].as_u64() {
        Some(at_s) => {
            let left = format_ns(of["left_ns"].as_u64().unwrap_or(0) as f64);
            format!("until {} ({left} more)", format_utc(at_s))
        }
        None => "until it is switched off".to_owned(),
    };
    let since = of["since_s"].as_u64().map(format_utc).unwrap_or_default();
    match of["note"].as_str() {
        Some(note) => format!("since {since}, {until}: {note}"),
        None => format!("since {since}, {until}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(uri: &str) -> Target {
        Target {
            volume: "v0".into(),
            path: Some(uri.into()),
        }
    }

    fn read(directory: &std::path::Path) -> Maintenance {
        let registry = Registry::new(directory.to_owned(), "a".into(), directory);
        Maintenance::read(&registry).unwrap()
    }

    #[test]
    fn maintenance_survives_a_restart_and_ends_by_itself() {
        let directory = tempfile::tempdir().unwrap();
        let first = read(directory.path());
        let hour = Some(Duration::from_secs(3600));
        first
            .begin(path("mem:1MiB"), hour, Some("disk".into()))
            .unwrap();
        first
            .begin(path("mem:2MiB"), Some(Duration::ZERO), None)
            .unwrap();
        let next = read(directory.path());
        let kept = next.of("v0", Some("mem:1MiB"));
        assert_eq!(kept["note"], "disk");
        assert!(kept["left_ns"].as_u64().unwrap() > 3_500_000_000_000);
        assert_eq!(next.of("v0", None), Value::Null);
        assert_eq!(next.of("v0", Some("mem:2MiB")), Value::Null);
        let lines = next.end_expired();
        let want = ["path mem:2MiB of v0: its maintenance is over"];
        assert_eq!(lines, want);
        assert!(
            next.next_end()
                .is_some_and(|it| it > Duration::from_secs(3500))
        );
        assert!(next.end(&path("mem:2MiB")).is_err());
        next.end(&path("mem:1MiB")).unwrap();
        assert_eq!(read(directory.path()).list(), Vec::<Value>::new());
        assert!(!next.file.exists());
    }
    #[test]
    fn changes_at_once_are_all_kept_until_a_volume_leaves() {
        let directory = tempfile::tempdir().unwrap();
        let it = read(directory.path());
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let it = &it;
                scope.spawn(move || {
                    for number in 0..8 {
                        let of = path(&format!("mem:{}MiB", 8 * thread + number + 1));
                        it.begin(of, None, None).unwrap();
                    }
                });
            }
        });
        assert_eq!(it.list().len(), 64);
        assert!(it.has(&path("mem:64MiB")) && !it.has(&path("mem:65MiB")));
        it.forget("v1").unwrap();
        assert_eq!(it.list().len(), 64);
        it.forget("v0").unwrap();
        assert_eq!(read(directory.path()).list(), Vec::<Value>::new());
    }
}
