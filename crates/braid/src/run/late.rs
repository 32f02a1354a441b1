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
//! as it is at a start.
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
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// First and longest pause before a file is looked for again: a person who mounts a file system
/// waits for its leg, and one that stays away costs hardly anything.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(5);

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
        loop {
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
            if self.state().is_closed() {
                return;
            }
            match self.open_late(number, name) {
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
    fn open_late(&self, number: u16, name: &str) -> Result<bool, String> {
        let Some(of) = self.without_paths(number, name) else {
            return Ok(true);
        };
        for keys in &of.paths {
            self.may_be_opened(keys, of.leg_of.as_deref())?;
        }
        // By two names it may be what another volume has (T48), which no check at the start saw.
        let all: Vec<Volume> = {
            let state = self.state();
            state.volumes.iter().map(|(_, it)| it.of.clone()).collect()
        };
        mirrors::apart(all.iter())?;
        let mirror = of.leg_of.as_deref();
        let mirror = mirror.map(|it| self.state().volumes.number(it)).transpose();
        let mirror = mirror.map_err(|error| error.message)?;
        // Users' verbs come first.
        let alone = match mirror {
            Some(mirror) => self.alone_with_mirror_now(mirror),
            None => self.changes.verbs.alone_now_with_all(vec![name.to_owned()]),
        };
        let Some(_alone) = alone else {
            return Ok(false);
        };
        let Some(of) = self.without_paths(number, name) else {
            return Ok(true);
        };
        let access = match of.leg_of {
            Some(_) => FileAccess::Alone,
            None => FileAccess::Shared,
        };
        self.open_paths(number, &of.paths, access, of.queue_quiesce_ns())?;
        let what = match of.leg_of {
            Some(_) => "this leg is there now: its superblock decides what becomes of it",
            None => "its path is there now",
        };
        log::say(format!("{name}: {what}"));
        let aside = self
            .state()
            .volumes
            .get(number)
            .map(|it| !it.aside.is_empty());
        if aside == Some(true) {
            self.put_aside();
        }
        Ok(true)
    }

    /// A volume, as long as the engine has no path of it; `None`: it has, or the volume left.
    fn without_paths(&self, number: u16, name: &str) -> Option<Volume> {
        let cores = self.senders.report();
        let state = self.state();
        let it = state.volumes.get(number).filter(|it| it.of.name == name)?;
        let has = |cores: &[super::machine::CoreReport]| {
            let paths = cores.first()?.volumes.get(usize::from(number))?;
            Some(!paths.is_empty())
        };
        // A core that does not answer now is asked again.
        let has = cores.ok().and_then(|it| has(&it)).unwrap_or(false);
        (!has).then(|| it.of.clone())
    }

    /// Whether what is at a path now may be opened.
    ///
    /// # Errors
    /// Why not.
    fn may_be_opened(&self, keys: &PathKeys, mirror: Option<&str>) -> Result<(), String> {
        let UriKind::File(path) = keys.uri.kind() else {
            return Ok(()); // the engine looks at it
        };
        let Some(mirror) = mirror else {
            let found = std::fs::metadata(path);
            return found
                .map(drop)
                .map_err(|error| format!("{}: {error}", path.display()));
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
