//! Files, devices and queue servers that were not there at the start: opened when they are.
//!
//! # Contract
//! A leg that could not be opened at the start, or a local path of a volume, is looked for again by
//! itself, with growing pauses, as paths over a network are; a thread for each volume, so that one
//! whose file system hangs holds up no other. The other paths of its volume serve. What is at the
//! place of a leg is read first, beside its present user: it is opened only if it says that it is a
//! leg, and of this mirror as far as that is known. Then all is as at a start, or after `mirror
//! restore`: the lock, and the engine's judgement of the superblock (docs/mirrors.md). A start
//! without legs is decided elsewhere.
//!
//! # Limits
//! Local files have no identity: a file that appears at the place of a volume's only path is taken,
//! as it is at a start, once its size and time have not changed for [`SETTLED`]: a copy of it may
//! be under way. A copy that stalls for longer is not noticed.
use super::config::{PathKeys, Volume};
use super::mirrors;
use super::service::Service;
use crate::ends::{FileAccess, Resources, VolumePlan};
use crate::log;
use crate::mirror::leg::LegFile;
use crate::uri::UriKind;
use anyhow::bail;
use engine::host::VolumeConfig;
use runtime::RuntimeError;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// First and longest pause before a file is looked for again: a person who mounts a file system
/// waits for its leg, and one that stays away costs hardly anything.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How long a volume's only file must not have changed before it is opened.
const SETTLED: Duration = Duration::from_secs(2);

/// Why some paths of a volume can't be opened, and their URIs.
pub type Lacking = (String, Vec<String>);

/// A volume that begins without some of its paths.
pub struct Absent {
    /// Its number.
    pub number: u16,
    /// Its name.
    pub name: String,
    /// Why they can't be opened.
    pub why: String,
    /// Their URIs; of a leg none, which has no path at all.
    pub uris: Vec<String>,
}

/// Volumes whose paths can't be opened yet.
#[derive(Default)]
pub struct Late {
    whys: Mutex<BTreeMap<String, String>>,
    /// Volumes whose paths are being opened.
    opening: Mutex<BTreeSet<String>>,
    opened: Condvar,
}

/// The paths of a volume are opened by its owner only, as long as this is there.
pub struct Turn<'a> {
    late: &'a Late,
    name: String,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.late.opening().remove(&self.name);
        self.late.opened.notify_all();
    }
}

impl Late {
    /// Why a volume lacks paths since the start.
    pub fn why(&self, name: &str) -> Option<String> {
        self.all().get(name).cloned()
    }

    /// Waits no longer than `wait` until no other opens the paths of this volume; `None`: another
    /// does still.
    pub fn turn(&self, name: &str, wait: Duration) -> Option<Turn<'_>> {
        let opens = |all: &mut BTreeSet<String>| all.contains(name);
        let waited = self.opened.wait_timeout_while(self.opening(), wait, opens);
        let (mut all, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let name = name.to_owned();
        // Not made where another has it: its end would end the other's.
        let is_free = all.insert(name.clone());
        is_free.then(|| Turn { late: self, name })
    }

    fn opening(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes why; whether that is news.
    fn note(&self, name: &str, why: String) -> bool {
        self.all().insert(name.to_owned(), why.clone()) != Some(why)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.whys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the paths of a volume lead to. It begins without those local ones that are not there: why,
/// and their URIs.
///
/// # Errors
/// Something else can't be opened; or an earlier engine had not `stopped` in order, and a part of
/// the paths is not there.
pub fn volume(
    resources: &mut Resources,
    plan: VolumePlan,
    stopped: bool,
) -> anyhow::Result<(VolumeConfig, Option<Lacking>)> {
    let (mut paths, mut absent) = (Vec::new(), None::<Lacking>);
    for keys in &plan.paths {
        match resources.path_of(keys, &plan) {
            Ok(path) => paths.push(path),
            Err(error) if is_absent(&error) => {
                let why = format!("{error:#}");
                log::say(format!(
                    "{}: it begins without its path: {why}; it is tried again",
                    plan.name
                ));
                let uris = &mut absent.get_or_insert((why, Vec::new())).1;
                uris.push(keys.uri.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    // Its controller may hold writes that no flush of the other paths covers (T13).
    if let Some((why, _)) = absent.as_ref().filter(|_| !stopped && !paths.is_empty()) {
        bail!(
            "{}: {why}; the engine before did not stop in order, so the first flush has to reach \
             this path too: bring it back, or take the path out of the configuration",
            plan.name
        );
    }
    let none = VolumePlan {
        paths: Vec::new(),
        ..plan
    };
    let made = resources.volume(&none)?;
    Ok((VolumeConfig { paths, ..made }, absent))
}

/// Orders the paths of volumes as the engine has them: those that come late are the last ones.
pub fn put_last(volumes: &mut [Volume], absent: &[Absent]) {
    for it in absent {
        let of = volumes.iter_mut().find(|of| of.name == it.name);
        let Some(of) = of else {
            unreachable!("{} is a volume of the configuration", it.name);
        };
        of.paths
            .sort_by_key(|keys| it.uris.contains(&keys.uri.to_string()));
    }
}

/// Whether nothing was found at the place of a file or device, or no queue server.
fn is_absent(error: &anyhow::Error) -> bool {
    let source = match error.downcast_ref() {
        Some(RuntimeError::Open { source, .. }) => source,
        Some(RuntimeError::Queue { source, .. }) => {
            return source.nobody_listens().is_some() || matches!(source, queue::Error::Gone);
        }
        _ => return false,
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
    /// It has these first ones of its paths only.
    Some(T, usize),
    /// It has all, or the volume left.
    All,
    /// Core 0 did not say.
    Unknown,
}

impl<T> There<T> {
    /// Of a volume, if it is there, that is to have so many paths, and core 0 reports `count`.
    fn of(volume: Option<(T, usize)>, count: Option<usize>) -> Self {
        match (volume, count) {
            (None, _) => Self::All,
            (Some(_), None) => Self::Unknown,
            (Some((volume, whole)), Some(count)) if count < whole => Self::Some(volume, count),
            (Some(_), Some(_)) => Self::All,
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
    pub fn look_for_late(self: &Arc<Self>, absent: Vec<Absent>) {
        for Absent {
            number, name, why, ..
        } in absent
        {
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

    /// Opens the paths that a volume lacks; whether that is over: it has all, or has left.
    ///
    /// # Errors
    /// Why it lacks them still.
    fn open_late(&self, number: u16, name: &str, settling: &mut Settling) -> Result<bool, String> {
        let (of, count) = match self.paths_there(number, name) {
            There::Some(of, count) => (of, count),
            There::Unknown => return Ok(false),
            There::All => return Ok(true),
        };
        let Some(_turn) = self.late.turn(name, Duration::ZERO) else {
            return Ok(false); // a verb opens them
        };
        let lacks = &of.paths[count..];
        for keys in lacks {
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
        let ends = self.open_ends(lacks, access, of.queue_quiesce_ns())?;
        // Users' verbs come first.
        let alone = match mirror {
            Some(mirror) => self.alone_with_mirror_now(mirror),
            None => self.changes.verbs.alone_now_with_all(vec![name.to_owned()]),
        };
        let Some(_alone) = alone else {
            return Ok(false);
        };
        match self.paths_there(number, name) {
            There::Some(now, there)
                if (&now.paths, &now.leg_of, there) == (&of.paths, &of.leg_of, count) => {}
            There::Some(..) | There::Unknown => return Ok(false),
            There::All => return Ok(true),
        }
        self.mark_paths(number);
        self.add_ends(number, ends)?;
        let what = match of.leg_of {
            Some(_) => "this leg is there now: its superblock decides what becomes of it",
            None => "its path is there now",
        };
        log::say(format!("{name}: {what}"));
        self.put_aside_of(number);
        Ok(true)
    }

    /// Which paths of a volume the engine has.
    fn paths_there(&self, number: u16, name: &str) -> There<Volume> {
        let cores = self.senders.report().ok();
        let core = cores.as_ref().and_then(|it| it.first());
        let paths = core.and_then(|it| it.volumes.get(usize::from(number)));
        let count = paths.map(Vec::len);
        let state = self.state();
        let it = state.volumes.get(number).filter(|it| it.of.name == name);
        There::of(it.map(|it| (it.of.clone(), it.of.paths.len())), count)
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
        assert_eq!(There::of(Some(((), 2)), None), There::Unknown);
        assert_eq!(There::of(Some(((), 2)), Some(0)), There::Some((), 0));
        assert_eq!(There::of(Some(((), 2)), Some(1)), There::Some((), 1));
        assert_eq!(There::of(Some(((), 2)), Some(2)), There::All);
        assert_eq!(There::<()>::of(None, Some(0)), There::All);
    }

    #[test]
    fn one_opens_the_paths_of_a_volume_at_a_time() {
        let late = Late::default();
        let turn = late.turn("a", Duration::ZERO).unwrap();
        assert!(late.turn("a", Duration::from_millis(1)).is_none());
        assert!(late.turn("b", Duration::ZERO).is_some());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| late.turn("a", Duration::from_secs(60)).is_some());
            drop(turn);
            assert!(waits.join().unwrap());
        });
        assert!(late.turn("a", Duration::ZERO).is_some());
    }
}
