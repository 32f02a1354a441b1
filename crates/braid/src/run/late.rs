//! Files and devices that were not there at the start: opened when they are.
//!
//! # Contract
//! A leg that could not be opened at the start, or a volume's only file, is looked for again by
//! itself, with growing pauses, as paths over a network are; a thread for each, so that one whose
//! file system hangs holds up no other. What is at the place of a leg is read first, beside whoever
//! has it: it is opened only if it says that it is a leg, and of this mirror as far as that is
//! known. Then all is as at a start, or after `mirror restore`: the lock, and what the engine makes
//! of the superblock (docs/mirrors.md). Nothing is gone on without here.
//!
//! # Limits
//! Local files have no identity: a file that appears at the place of a volume's only path is taken,
//! as it is at a start, once its size and time have not changed for [`SETTLED`]: a copy of it may
//! be under way. A copy that stalls for longer is not noticed.
use super::config::{PathKeys, Volume};
use super::mirrors;
use super::service::Service;
use crate::load::host::{FileAccess, Resources, VolumePlan};
use crate::log;
use crate::mirror::leg::LegFile;
use crate::uri::UriKind;
use engine::host::VolumeConfig;
use runtime::RuntimeError;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// First and longest pause before a file is looked for again: a person who mounts a file system
/// waits for its leg, and one that stays away costs hardly anything.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How long a volume's only file must not have changed before it is opened.
const SETTLED: Duration = Duration::from_secs(2);

/// Volumes whose files can't be opened yet, and why.
#[derive(Default)]
pub struct Late(Mutex<BTreeMap<String, String>>);

impl Late {
    /// Why a volume has no path yet.
    pub fn why(&self, name: &str) -> Option<String> {
        self.all().get(name).cloned()
    }

    /// Notes why; whether that is news.
    fn note(&self, name: &str, why: String) -> bool {
        self.all().insert(name.to_owned(), why.clone()) != Some(why)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the paths of a volume lead to; if its only file is not there, it begins without paths, and
/// why.
///
/// # Errors
/// Something else can't be opened.
pub fn volume(
    resources: &mut Resources,
    plan: VolumePlan,
) -> anyhow::Result<(VolumeConfig, Option<String>)> {
    let only = matches!(&plan.paths[..], [only] if matches!(only.uri.kind(), UriKind::File(_)));
    match resources.volume(&plan) {
        Err(error) if only && is_absent(&error) => {
            let why = format!("{error:#}");
            log::say(format!(
                "{}: it begins without its path: {why}; it is tried again",
                plan.name
            ));
            let none = VolumePlan {
                paths: Vec::new(),
                ..plan
            };
            Ok((resources.volume(&none)?, Some(why)))
        }
        made => Ok((made?, None)),
    }
}

/// Whether nothing was found at the path of a file.
fn is_absent(error: &anyhow::Error) -> bool {
    let Some(RuntimeError::Open { source, .. }) = error.downcast_ref() else {
        return false;
    };
    let errno = source.raw_os_error().map(Errno::from_raw_os_error);
    let absent = [
        Errno::NOENT,
        Errno::NOTDIR,
        Errno::NXIO,
        Errno::NODEV,
        Errno::NOMEDIUM,
        Errno::STALE,
    ];
    errno.is_some_and(|it| absent.contains(&it))
}

/// Paths of a volume in the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
enum There<T> {
    /// It has none.
    None(T),
    /// It has some, or the volume left.
    Some,
    /// Core 0 did not say.
    Unknown,
}

impl<T> There<T> {
    /// Of a volume, if it is there, for which core 0 reports so many paths.
    fn of(volume: Option<T>, count: Option<usize>) -> Self {
        match (volume, count) {
            (None, _) => Self::Some,
            (Some(_), None) => Self::Unknown,
            (Some(volume), Some(0)) => Self::None(volume),
            (Some(_), Some(_)) => Self::Some,
        }
    }
}

/// What shows that a file is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    device: u64,
    inode: u64,
    bytes: u64,
    modified_s: i64,
    modified_ns: i64,
}

impl Look {
    fn of(found: &Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.size(),
            modified_s: found.mtime(),
            modified_ns: found.mtime_nsec(),
        }
    }
}

/// A file that is there, and since when it has not changed.
#[derive(Default)]
struct Settling(Option<(Look, Instant)>);

impl Settling {
    /// Whether it has not changed for [`SETTLED`].
    fn is_settled(&mut self, look: Look, now: Instant) -> bool {
        match self.0 {
            Some((before, since)) if before == look => now.duration_since(since) >= SETTLED,
            _ => {
                self.0 = Some((look, now));
                false
            }
        }
    }
}

impl Service {
    /// Looks for what was not there at the start, until it is.
    pub fn look_for_late(self: &Arc<Self>, absent: Vec<(u16, String)>) {
        for (number, why) in absent {
            let name = self.name(number);
            self.late.note(&name, why);
            let (service, of) = (Arc::clone(self), name.clone());
            let look = move || service.look_for(number, &of);
            let builder = std::thread::Builder::new().name("late".into());
            if let Err(error) = builder.spawn(look) {
                log::say(format!(
                    "{name}: is not tried again: no thread can be started: {error}"
                ));
            }
        }
    }

    fn look_for(&self, number: u16, name: &str) {
        let mut pause = PAUSE_MIN;
        let mut settling = Settling::default();
        loop {
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
            if self.state().is_closed() {
                return;
            }
            match self.open_late(number, name, &mut settling) {
                Ok(false) => {}
                Ok(true) => break,
                Err(why) => {
                    if self.late.note(name, why.clone()) {
                        log::say(format!("{name}: not there yet: {why}; it is tried again"));
                    }
                }
            }
        }
        self.late.all().remove(name);
    }

    /// Opens the paths of a volume that has none; whether that is over: it has some, or has left.
    ///
    /// # Errors
    /// Why it has none yet.
    fn open_late(&self, number: u16, name: &str, settling: &mut Settling) -> Result<bool, String> {
        let of = match self.paths_there(number, name) {
            There::None(of) => of,
            There::Unknown => return Ok(false),
            There::Some => return Ok(true),
        };
        for keys in &of.paths {
            self.may_be_opened(keys, of.leg_of.as_deref(), settling)?;
        }
        // By two names it may be what another volume has (T48), which no check at the start saw.
        let all: Vec<Volume> = {
            let state = self.state();
            state.volumes.iter().map(|(_, it)| it.of.clone()).collect()
        };
        mirrors::apart(all.iter())?;
        let access = match of.leg_of {
            Some(_) => FileAccess::Alone,
            None => FileAccess::Shared,
        };
        let mirror = of.leg_of.as_deref();
        let mirror = mirror.map(|it| self.state().volumes.number(it)).transpose();
        let mirror = mirror.map_err(|error| error.message)?;
        // Before the lock: a file system that hangs here holds up no verb.
        let ends = self.open_ends(&of.paths, access, of.queue_quiesce_ns())?;
        // Users' verbs come first.
        let alone = match mirror {
            Some(mirror) => self.alone_with_mirror_now(mirror),
            None => self.changes.verbs.alone_now_with_all(vec![name.to_owned()]),
        };
        let Some(_alone) = alone else {
            return Ok(false);
        };
        match self.paths_there(number, name) {
            There::None(now) if (&now.paths, &now.leg_of) == (&of.paths, &of.leg_of) => {}
            There::None(_) | There::Unknown => return Ok(false),
            There::Some => return Ok(true),
        }
        self.add_ends(number, ends)?;
        let what = match of.leg_of {
            Some(_) => "this leg is there now: its superblock decides what becomes of it",
            None => "its path is there now",
        };
        log::say(format!("{name}: {what}"));
        self.put_aside_of(number);
        Ok(true)
    }

    /// Whether the engine has paths of a volume.
    fn paths_there(&self, number: u16, name: &str) -> There<Volume> {
        let cores = self.senders.report().ok();
        let core = cores.as_ref().and_then(|it| it.first());
        let paths = core.and_then(|it| it.volumes.get(usize::from(number)));
        let count = paths.map(Vec::len);
        let state = self.state();
        let it = state.volumes.get(number).filter(|it| it.of.name == name);
        There::of(it.map(|it| it.of.clone()), count)
    }

    /// Whether what is at a path now may be opened.
    ///
    /// # Errors
    /// Why not.
    fn may_be_opened(
        &self,
        keys: &PathKeys,
        mirror: Option<&str>,
        settling: &mut Settling,
    ) -> Result<(), String> {
        let UriKind::File(path) = keys.uri.kind() else {
            return Ok(()); // the engine looks at it
        };
        let Some(mirror) = mirror else {
            let found = std::fs::metadata(path);
            let found = found.map_err(|error| format!("{}: {error}", path.display()))?;
            // A device has its size from the start.
            let is_whole =
                !found.is_file() || settling.is_settled(Look::of(&found), Instant::now());
            return is_whole.then_some(()).ok_or_else(|| {
                format!(
                    "{} is there, and used when it has not changed for {} s",
                    path.display(),
                    SETTLED.as_secs()
                )
            });
        };
        self.is_leg_of(path, mirror)
    }

    fn is_leg_of(&self, path: &Path, mirror: &str) -> Result<(), String> {
        let file = LegFile::open(path).map_err(|error| format!("{error:#}"))?;
        let said = file
            .read_superblock()
            .map_err(|error| format!("{error:#}"))?;
        let at = path.display();
        let said = said.map_err(|why| format!("what is at {at} now is no leg: {why}"))?;
        let number = self.state().volumes.number(mirror).ok();
        let report = number.and_then(|it| self.mirror_report(it).ok());
        let running = report.and_then(|it| it.superblock).map(|it| it.mirror);
        let wanted = running.or_else(|| self.known().mirror(mirror));
        match wanted.filter(|it| *it != said.superblock.mirror) {
            Some(_) => Err(format!("what is at {at} now is a leg of another mirror")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_changes_is_not_opened() {
        let begun = Instant::now();
        let look = |bytes, modified_ns| Look {
            device: 1,
            inode: 2,
            bytes,
            modified_s: 0,
            modified_ns,
        };
        let mut settling = Settling::default();
        for (after_s, look, settled) in [
            (0, look(0, 1), false),
            (1, look(0, 1), false),
            (3, look(512, 2), false),
            (4, look(512, 3), false),
            (5, look(512, 3), false),
            (6, look(512, 3), true),
        ] {
            let now = begun + Duration::from_secs(after_s);
            assert_eq!(settling.is_settled(look, now), settled, "{after_s} s");
        }
    }

    #[test]
    fn volume_that_no_core_reports_is_not_opened() {
        assert_eq!(There::of(Some(()), None), There::Unknown);
        assert_eq!(There::of(Some(()), Some(0)), There::None(()));
        assert_eq!(There::of(Some(()), Some(1)), There::Some);
        assert_eq!(There::<()>::of(None, Some(0)), There::Some);
    }
}
