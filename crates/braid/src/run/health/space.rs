//! File systems that fill: under files that are paths or legs, and under the state directory.
//!
//! # Contract
//! A thread of its own asks, and each question has a thread that may hang (T52): it is not asked
//! again before it has answered. A file system is full from [`AlarmKeys::space`] on, as `df`
//! counts, until two hundredths less are used.
//!
//! [`AlarmKeys::space`]: crate::run::config::AlarmKeys::space
use super::Health;
use crate::log;
use crate::run::events::{Event, Kind};
use crate::run::limited::Limit;
use crate::run::service::{Service, State};
use crate::units::format_bytes;
use crate::uri::UriKind;
use anyhow::Context;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How often is asked, and while a file system is full: `statvfs` costs little, and a disk that
/// fills in less time is noticed by its errors.
const PERIOD: Duration = Duration::from_secs(30);
const PERIOD_FULL: Duration = Duration::from_secs(2);
/// So much less ends it, 1 / 1000.
const LESS_PERMILLE: u64 = 20;

/// File systems, by device number.
#[derive(Default)]
pub struct Space {
    full: Mutex<BTreeMap<u64, Full>>,
    /// The state directory.
    directory: OnceLock<PathBuf>,
    /// Files whose file systems have not answered.
    hang: Mutex<BTreeSet<PathBuf>>,
}

/// One that is full.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Full {
    since: Instant,
    usage: Usage,
    /// Files of paths and legs there, and the state directory.
    files: Vec<PathBuf>,
}

/// A file whose file system is asked: it hangs until this is dropped, also where no thread could be
/// started for it.
struct Asked {
    health: Arc<Health>,
    file: PathBuf,
}

impl Asked {
    fn new(health: &Arc<Health>, file: &Path) -> Self {
        health.space.hang().insert(file.to_owned());
        Self {
            health: Arc::clone(health),
            file: file.to_owned(),
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.health.space.hang().remove(&self.file);
    }
}

/// How full a file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Usage {
    device: u64,
    permille: u64,
    left_bytes: u64,
}

impl Usage {
    /// Of that of a regular file or directory; `None`: of a device, or it can't be known.
    fn of(file: &Path) -> Option<Self> {
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() && !metadata.is_dir() {
            return None;
        }
        let stat = rustix::fs::statvfs(file).ok()?;
        let used = stat.f_blocks.saturating_sub(stat.f_bfree);
        let all = used.saturating_add(stat.f_bavail);
        Some(Self {
            device: metadata.dev(),
            permille: used.saturating_mul(1000).checked_div(all)?,
            left_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }

    /// Whether it is full, if it was or was not before; `limit` 0: never.
    fn is_full(&self, was_full: bool, limit: u64) -> bool {
        let least = match was_full {
            true => limit.saturating_sub(LESS_PERMILLE),
            false => limit,
        };
        limit > 0 && self.permille >= least
    }

    fn words(&self) -> String {
        let left = format_bytes(self.left_bytes);
        format!(
            "{}.{} % full, {left} left",
            self.permille / 10,
            self.permille % 10
        )
    }
}

impl Space {
    fn full(&self) -> MutexGuard<'_, BTreeMap<u64, Full>> {
        self.full.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hang(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.hang.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares what was found with what was known. Returns a line for each that begins (`true`)
    /// or ends.
    fn judge(&self, found: &[(PathBuf, Usage)], limit: u64) -> Vec<(bool, String)> {
        let mut by_device: BTreeMap<u64, (Usage, Vec<PathBuf>)> = BTreeMap::new();
        for (file, usage) in found {
            let of = by_device.entry(usage.device);
            of.or_insert_with(|| (*usage, Vec::new()))
                .1
                .push(file.clone());
        }
        let hangs = self.hang().clone();
        let mut full = self.full();
        let mut lines = Vec::new();
        for (device, it) in std::mem::take(&mut *full) {
            let now = by_device.get(&device);
            let holds = now.is_some_and(|(usage, _)| usage.is_full(true, limit));
            match now {
                Some((usage, files)) if holds => {
                    let (usage, files) = (*usage, files.clone());
                    full.insert(device, Full { usage, files, ..it });
                }
                Some((usage, _)) => {
                    let (file, words) = (it.files[0].display(), usage.words());
                    let line = format!("the file system of {file} is no longer full: {words}");
                    lines.push((false, line));
                }
                // Nothing is known of it until it answers.
                None if it.files.iter().any(|file| hangs.contains(file)) => {
                    full.insert(device, it);
                }
                None => {} // nothing of it is used any more
            }
        }
        for (device, (usage, files)) in by_device {
            if usage.is_full(false, limit) && !full.contains_key(&device) {
                let (file, words) = (files[0].display(), usage.words());
                lines.push((true, format!("the file system of {file} fills: {words}")));
                let since = Instant::now();
                full.insert(
                    device,
                    Full {
                        since,
                        usage,
                        files,
                    },
                );
            }
        }
        lines
    }

    /// Whether the file system of the state directory is full, in words.
    pub fn of_state(&self) -> Option<String> {
        let directory = self.directory.get()?;
        let why = self.of(directory)?["why"].as_str()?.to_owned();
        Some(why)
    }

    /// Why a file's file system is worth an alarm, in JSON; `None`: it is not.
    pub fn of(&self, file: &Path) -> Option<Value> {
        let full = self.full();
        let it = full
            .values()
            .find(|it| it.files.iter().any(|of| of == file))?;
        let lasts = it.since.elapsed();
        Some(json!({
            "alarm": "full",
            "why": format!("the file system of {} is {}", file.display(), it.usage.words()),
            "since_s": super::unix_s_ago(lasts),
            "for_ns": lasts.as_nanos() as u64,
            "ended_s": null,
        }))
    }
}

impl State {
    /// Local files of paths and legs.
    fn files(&self) -> Vec<PathBuf> {
        let volumes = self.volumes.iter();
        let paths = volumes.flat_map(|(_, it)| it.of.paths.iter());
        let file = |keys: &crate::uri::PathKeys| match keys.uri.kind() {
            UriKind::File(file) => Some(file.clone()),
            _ => None,
        };
        paths.filter_map(file).collect()
    }
}

impl Service {
    /// Starts the thread that asks.
    ///
    /// # Errors
    /// No thread is left.
    pub fn watch_space(self: &Arc<Self>) -> anyhow::Result<()> {
        let service = Arc::downgrade(self);
        let watch = move || {
            while let Some(service) = service.upgrade() {
                service.ask_space();
                let is_full = !service.health.space.full().is_empty();
                drop(service);
                std::thread::sleep(if is_full { PERIOD_FULL } else { PERIOD });
            }
        };
        let builder = std::thread::Builder::new().name("space".into());
        builder.spawn(watch).context("cannot start a thread")?;
        Ok(())
    }

    fn ask_space(&self) {
        let (files, limit) = {
            let state = self.state();
            (state.files(), state.configured.alarms.space.into())
        };
        let directory = self.registry().directory().to_owned();
        let directory = self
            .health
            .space
            .directory
            .get_or_init(|| directory)
            .clone();
        let files: BTreeSet<PathBuf> = files.into_iter().chain([directory]).collect();
        let mut found = Vec::new();
        for file in files {
            if self.health.space.hang().contains(&file) {
                continue;
            }
            let asked = Asked::new(&self.health, &file);
            let usage = Limit::Verb.run(move || Usage::of(&asked.file));
            if let Ok(Some(usage)) = usage {
                found.push((file, usage));
            }
        }
        for (begins, line) in self.health.space.judge(&found, limit) {
            let (from, to) = if begins {
                ("ok", "full")
            } else {
                ("full", "ok")
            };
            let event = Event::new(Kind::Health, to).from(from);
            self.events.emit(event.reason(&line));
            self.watch.look();
            match begins {
                true => log::warn(line),
                false => log::say(line),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_system_fills_and_is_free_again_with_hysteresis() {
        let space = Space::default();
        let file = PathBuf::from("/srv/a");
        let ask = |permille, limit| {
            let usage = Usage {
                device: 7,
                permille,
                left_bytes: 1 << 30,
            };
            let lines = space.judge(&[(file.clone(), usage)], limit);
            (lines, space.of(&file).is_some())
        };
        assert_eq!(ask(949, 950), (vec![], false));
        let begun = "the file system of /srv/a fills: 95.0 % full, 1 GiB left";
        assert_eq!(ask(950, 950), (vec![(true, begun.to_owned())], true));
        assert_eq!(ask(931, 950), (vec![], true));
        let ended = "the file system of /srv/a is no longer full: 92.9 % full, 1 GiB left";
        assert_eq!(ask(929, 950), (vec![(false, ended.to_owned())], false));
        assert_eq!(ask(1000, 0), (vec![], false));
        // One that does not answer is as it was.
        assert!(ask(1000, 950).1);
        space.hang().insert(file.clone());
        assert_eq!(space.judge(&[], 950), []);
        assert!(space.of(&file).is_some());
        space.hang().remove(&file);
        assert_eq!(space.judge(&[], 950), []);
        assert!(space.of(&file).is_none());
    }
}
