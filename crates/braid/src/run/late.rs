//! Files, devices and queue servers that were not there at the start: opened when they are.
//!
//! # Contract
//! A local path that could not be opened at the start, of a leg too, is looked for again with
//! growing pauses, as paths over a network are. Each has a thread of its own, so that a file system
//! that hangs holds up this path only. Its [entry](super::entries) has its state, and a reason of
//! its own. Meanwhile the other paths of its volume serve, and it can be removed.
//!
//! The file at the place of a leg is read first, beside its present user: it is opened only if it
//! is a leg, and of this mirror as far as that is known. Then all is as at a start, or after
//! `mirror restore`: the lock, and the engine's judgement of the superblock (docs/mirrors.md). A
//! start without legs is decided elsewhere.
//!
//! After an unclean stop the paths of a volume join together (T13): those that can be opened wait
//! for the others. If the engine takes one and not the next, it parts with that one again.
//!
//! One that was failed by hand is not opened before it is restored.
//!
//! # Limits
//! Local files have no identity: a file that appears at the place of a volume's only path is taken,
//! as it is at a start, once its size and time have not changed for [`SETTLED`]: a copy of it may
//! be under way. A copy that stalls for longer is not noticed.
//!
//! Of paths that join together the first serves until the last has joined, or until it has left
//! again: a flush in this short time does not reach the others.
use super::config::{PathKeys, Volume};
use super::ends::open_end_of;
use super::entries::PathEntry;
use super::limited::Limit;
use super::mirrors;
use super::service::{Service, State};
use crate::ends::{End, FileAccess, Resources, VolumePlan};
use crate::log;
use crate::mirror::leg::LegFile;
use crate::uri::UriKind;
use anyhow::bail;
use engine::host::{Change, PathConfig, VolumeConfig};
use policy::PathIndex;
use runtime::RuntimeError;
use rustix::io::Errno;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// First and longest pause before a file is looked for again: a person who mounts a file system
/// waits for its leg, and one that stays away costs hardly anything.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How long a volume's only file must not have changed before it is opened.
const SETTLED: Duration = Duration::from_secs(2);

/// Longest wait for the engine to take a path.
const JOIN_NS: u64 = 10_000_000_000;

/// The same for another one that joins together with one that serves by now, and longest time for
/// what that one has under way if it is to leave again.
const JOIN_MORE_NS: u64 = 2_000_000_000;

/// A volume that begins without some of its paths.
pub struct Absent {
    /// The engine's number of the volume.
    pub number: u16,
    /// Their places among its paths, and why each can't be opened.
    pub paths: Vec<(usize, String)>,
    /// The engine before did not stop in order.
    pub unclean: bool,
}

/// How the files of a volume are opened.
pub fn access(of: &Volume) -> FileAccess {
    match of.leg_of {
        Some(_) => FileAccess::Alone,
        None => FileAccess::Shared,
    }
}

/// What the paths of a volume lead to, numbered by their places. The volume begins without those
/// local ones that are absent: their places, and why.
///
/// # Errors
/// A path can't be opened for another reason; or the engine before did not stop in order
/// (`unclean`), and a part of the paths of a volume that is no leg is absent.
pub fn volume(
    resources: &mut Resources,
    plan: VolumePlan,
    unclean: bool,
    is_leg: bool,
) -> anyhow::Result<(VolumeConfig, Vec<(usize, String)>)> {
    let before = [
        resources.addresses.len(),
        resources.devices.len(),
        resources.known.len(),
    ];
    let (mut paths, mut absent) = (Vec::new(), Vec::new());
    for (place, keys) in plan.paths.iter().enumerate() {
        match resources.path_of(keys, &plan) {
            Ok(path) => {
                let numbers = 1_u64.checked_shl(place as u32).unwrap_or(0);
                paths.push(PathConfig { numbers, ..path });
            }
            Err(error) if is_absent(&error, is_leg) => absent.push((place, format!("{error:#}"))),
            Err(error) => return Err(error),
        }
    }
    // The controller of an absent path may hold writes that no flush of the others covers (T13).
    if let Some((_, why)) = absent.first().filter(|_| unclean && !paths.is_empty()) {
        if !is_leg {
            bail!(
                "{}: {why}; the engine before did not stop in order, so the first flush has to \
                 reach this path too: bring it back, or take the path out of the configuration",
                plan.name
            );
        }
        // Its mirror may begin without this leg.
        let why = why.clone();
        paths.clear();
        resources.addresses.truncate(before[0]);
        resources.devices.truncate(before[1]);
        resources.known.truncate(before[2]);
        let is_open = |place: &usize| !absent.iter().any(|it| it.0 == *place);
        let open: Vec<usize> = (0..plan.paths.len()).filter(is_open).collect();
        absent.extend(open.into_iter().map(|it| (it, format!("it waits: {why}"))));
    }
    let what = if is_leg && paths.is_empty() {
        "this leg is left out"
    } else {
        "it begins without its path"
    };
    for (_, why) in &absent {
        log::say(format!("{}: {what}: {why}; it is tried again", plan.name));
    }
    let none = VolumePlan {
        paths: Vec::new(),
        ..plan
    };
    let made = resources.volume(&none)?;
    Ok((VolumeConfig { paths, ..made }, absent))
}

/// Whether nothing was found at the place of a file or device, or no queue server; of a leg:
/// whether it can't be used, though no other process has it.
fn is_absent(error: &anyhow::Error, is_leg: bool) -> bool {
    let source = match error.downcast_ref() {
        Some(RuntimeError::InUse { .. }) => return false,
        Some(_) if is_leg => return true,
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

/// A path that is looked for.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    /// The engine's number of its volume.
    volume: u16,
    /// [`PathEntry::id`]; another volume that gets the number has none of this id.
    id: u64,
}

/// What became of an attempt to open a path.
enum Tried {
    /// It is to be tried again.
    Again,
    /// The engine has it, or it was removed.
    Over,
}

/// A path that the caller opens.
struct Claimed {
    id: u64,
    keys: PathKeys,
    number: PathIndex,
}

/// Paths of a volume that the caller opens, and no other thread. What is not told of them when this
/// is dropped is that they are what they were before.
struct Claims<'a> {
    service: &'a Service,
    /// The engine's number of the volume.
    volume: u16,
    of: Volume,
    all: Vec<Claimed>,
    /// [`Running::all_at_once`](super::volumes::Running::all_at_once).
    all_at_once: bool,
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        for it in &self.all {
            self.with(it.id, |entry| {
                if entry.is_opening() {
                    entry.let_go();
                }
            });
        }
        self.service.news.notify_all();
    }
}

impl<'a> Claims<'a> {
    /// Of those paths of a volume which `is_claimed`.
    fn new(
        service: &'a Service,
        state: &mut State,
        volume: u16,
        is_claimed: impl Fn(&PathEntry) -> bool,
    ) -> Option<Self> {
        let running = state.volumes.get_mut(volume)?;
        let all = running.entries().iter().filter(|it| is_claimed(it));
        let all: Vec<Claimed> = all
            .map(|it| Claimed {
                id: it.id(),
                keys: it.config().clone(),
                number: it.index(),
            })
            .collect();
        for it in &all {
            running
                .entry(it.id)
                .into_iter()
                .for_each(PathEntry::begin_opening);
        }
        Some(Self {
            service,
            volume,
            of: running.of.clone(),
            all,
            all_at_once: running.all_at_once,
        })
    }

    /// Does something with an entry, unless it was removed.
    fn with<T>(&self, id: u64, change: impl FnOnce(&mut PathEntry) -> T) -> Option<T> {
        let mut state = self.service.state();
        state.volumes.get_mut(self.volume)?.entry(id).map(change)
    }

    /// A path can't be opened; the log names a reason that is new.
    fn failed(&self, id: u64, why: &str) {
        let is_news = self.with(id, |entry| entry.not_opened(why.to_owned()));
        if is_news == Some(true) {
            let name = &self.of.name;
            log::say(format!("{name}: not there yet: {why}; it is tried again"));
        }
    }

    /// The engine gets paths that are open, but for those that were removed; which it has then.
    /// Where they join together these are all, or none: then all are absent again, or wait.
    ///
    /// # Errors
    /// Why it does not take one, nor those after it.
    fn join<'c>(&self, open: &'c [(&'c Claimed, End)]) -> (Vec<&'c Claimed>, Result<(), String>) {
        let mut joined: Vec<&Claimed> = Vec::new();
        let mut became = Ok(());
        for (it, end) in open {
            // As they are now: a reload may have changed them since they were claimed.
            let Some(keys) = self.with(it.id, |entry| entry.config().clone()) else {
                continue;
            };
            let wait_ns = match joined.is_empty() {
                true => JOIN_NS,
                false => JOIN_MORE_NS,
            };
            if let Err(why) = self.join_one(it, &keys, end, wait_ns) {
                self.failed(it.id, &why);
                if self.all_at_once {
                    joined.retain(|joined| !self.take_back(joined, &keys));
                }
                became = Err(why);
                break;
            }
            joined.push(it);
        }
        for it in &joined {
            self.with(it.id, PathEntry::joined);
            self.service.put_aside_path(self.volume, it.number);
        }
        (joined, became)
    }

    fn join_one(
        &self,
        it: &Claimed,
        keys: &PathKeys,
        end: &End,
        wait_ns: u64,
    ) -> Result<(), String> {
        let path = self.service.register_end(keys, end)?;
        let path = PathConfig {
            numbers: 1 << it.number.0,
            ..path
        };
        let change = Change::AddPath(self.volume, Box::new(path));
        let joined = self
            .service
            .ask_for(change, wait_ns, Duration::from_secs(1));
        joined.map(drop)
    }

    /// The engine parts with a path that has joined, since `other` has not; whether it did. What it
    /// wrote meanwhile its controller flushes.
    fn take_back(&self, it: &Claimed, other: &PathKeys) -> bool {
        let (name, uri) = (&self.of.name, &it.keys.uri);
        let left = self
            .service
            .ask_to_leave(self.volume, it.number, true, JOIN_MORE_NS);
        if let Err(why) = left {
            log::say(format!(
                "{name}: {uri}: serves without {}, though a flush has to reach both: it could not \
                 be taken back: {why}",
                other.uri
            ));
            return false;
        }
        let why = waits_for(&other.uri.to_string());
        log::say(format!("{name}: {uri}: was taken back: {why}"));
        self.with(it.id, |entry| entry.wait(why));
        true
    }

    /// Whether one was failed by hand meanwhile.
    fn is_one_failed(&self) -> bool {
        let state = self.service.state();
        let running = state.volumes.get(self.volume);
        running.is_some_and(|running| self.all.iter().any(|it| running.is_failed_id(it.id)))
    }

    /// Whether each was removed.
    fn are_removed(&self) -> bool {
        self.all.iter().all(|it| self.with(it.id, |_| ()).is_none())
    }
}

/// Why a path that can be opened waits for others.
fn waits_for(others: &str) -> String {
    format!(
        "it is there; the engine before did not stop in order, so the first flush has to reach all \
         paths, and it waits for {others}: bring that back, or remove it by force"
    )
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
    pub fn look_for_late(self: &Arc<Self>) {
        let all: Vec<(Wanted, String)> = {
            let state = self.state();
            let volumes = state.volumes.iter();
            let absent = volumes.flat_map(|(volume, it)| {
                let paths = it.entries().absent();
                paths.map(move |path| {
                    let id = path.id();
                    (
                        Wanted { volume, id },
                        format!("{}: {}", it.of.name, path.config().uri),
                    )
                })
            });
            absent.collect()
        };
        for (wanted, what) in all {
            let service = Arc::clone(self);
            let look = move || service.look_for(wanted);
            let builder = std::thread::Builder::new().name("late".into());
            if let Err(error) = builder.spawn(look) {
                log::say(format!(
                    "{what}: is not tried again: no thread can be started: {error}"
                ));
            }
        }
    }

    fn look_for(&self, wanted: Wanted) {
        let mut pause = PAUSE_MIN;
        let mut settling = Settling::default();
        loop {
            pause = match self.rest(wanted, pause) {
                true => PAUSE_MIN,
                false => (pause * 2).min(PAUSE_MAX),
            };
            if self.state().is_closed() {
                return;
            }
            if let Tried::Over = self.open_late(wanted, &mut settling) {
                return;
            }
        }
    }

    /// Waits for a time, or until the path is restored that was failed by hand; whether it was.
    fn rest(&self, wanted: Wanted, pause: Duration) -> bool {
        let is_failed = |state: &State| {
            let running = state.volumes.get(wanted.volume);
            running.is_some_and(|running| running.is_failed_id(wanted.id))
        };
        let state = self.state();
        let failed = is_failed(&state);
        let rested = self.news.wait_timeout_while(state, pause, |state| {
            !state.is_closed() && is_failed(state) == failed
        });
        let (state, _) = rested.unwrap_or_else(PoisonError::into_inner);
        failed && !is_failed(&state)
    }

    /// Opens a path, and hands it to the engine; where paths of its volume join together, waits for
    /// them, or opens all.
    fn open_late(&self, wanted: Wanted, settling: &mut Settling) -> Tried {
        let Wanted { volume, id } = wanted;
        let (claims, joins) = {
            let mut state = self.state();
            let Some(running) = state.volumes.get_mut(volume) else {
                return Tried::Over;
            };
            let others_wait = {
                let mut others = running.entries().absent().filter(|it| it.id() != id);
                others.all(|it| it.is_waiting() && !it.is_failed())
            };
            let mut entries = running.entries().iter();
            let Some(it) = entries.find(|it| it.id() == id) else {
                return Tried::Over;
            };
            if it.is_there() {
                return Tried::Over;
            }
            // A verb opens it, or it would take I/O before it is failed.
            let is_kept = it.is_opening() || it.is_failed();
            if is_kept || it.is_waiting() && !others_wait {
                return Tried::Again;
            }
            let joins = !running.all_at_once || others_wait;
            // The last one that was missing opens all.
            let joins_others = running.all_at_once && others_wait;
            let is_claimed = |it: &PathEntry| it.id() == id || (joins_others && !it.is_there());
            let claims = Claims::new(self, &mut state, volume, is_claimed);
            let Some(mut claims) = claims else {
                unreachable!("volume {volume} was there under this lock");
            };
            // What failed last is tried first: else the others would join and leave each time.
            claims.all.sort_by_key(|it| it.id != id);
            (claims, joins)
        };
        let mut open = Vec::new();
        for it in &claims.all {
            let leg_of = claims.of.leg_of.as_deref();
            let opened = self
                .may_be_opened(&it.keys, leg_of, settling)
                .and_then(|()| self.open_claimed(&claims, it, Limit::None));
            match opened {
                Ok(end) => open.push((it, end)),
                Err(why) => {
                    claims.failed(it.id, &why);
                    return Tried::Again;
                }
            }
        }
        if !joins {
            self.wait_for_others(&claims, id);
            return Tried::Again;
        }
        self.join_late(&claims, &open)
    }

    /// Hands paths that are open to the engine.
    fn join_late(&self, claims: &Claims<'_>, open: &[(&Claimed, End)]) -> Tried {
        let name = &claims.of.name;
        let mirror = claims.of.leg_of.as_deref();
        let mirror = mirror.map(|it| self.state().volumes.number(it)).transpose();
        // Users' verbs come first.
        let alone = match mirror {
            Ok(Some(mirror)) => self.alone_with_mirror_now(mirror),
            Ok(None) => (self.changes.verbs).alone_last(std::slice::from_ref(name), &|| true),
            Err(_) => None, // its mirror has left, and it leaves
        };
        let Some(_alone) = alone else {
            return Tried::Again;
        };
        // No verb removes one from here on.
        if claims.are_removed() {
            return Tried::Over;
        }
        if claims.is_one_failed() {
            return Tried::Again;
        }
        self.mark_paths(claims.volume);
        let (joined, became) = claims.join(open);
        for it in joined {
            let uri = &it.keys.uri;
            log::say(match claims.of.leg_of {
                Some(_) => format!(
                    "{name}: this leg is there now: {uri}: its superblock decides what becomes of \
                     it"
                ),
                None => format!("{name}: its path is there now: {uri}"),
            });
        }
        match became {
            Ok(()) => Tried::Over,
            Err(_) => Tried::Again, // it is noted
        }
    }

    /// A path can be opened, and joins when the other absent ones of its volume can.
    fn wait_for_others(&self, claims: &Claims<'_>, id: u64) {
        let mut state = self.state();
        let Some(running) = state.volumes.get_mut(claims.volume) else {
            return;
        };
        let others = running.entries().absent();
        let comes = |it: &PathEntry| it.is_waiting() && !it.is_failed();
        let others = others.filter(|it| it.id() != id && !comes(it));
        let others: Vec<String> = others.map(|it| it.config().uri.to_string()).collect();
        let why = waits_for(&others.join(", "));
        let Some(entry) = running.entry(id) else {
            return; // it was removed
        };
        let line = format!("{}: {}: {why}", claims.of.name, entry.config().uri);
        let is_news = entry.wait(why);
        drop(state);
        if is_news {
            log::say(line);
        }
    }

    /// Opens those paths of a volume that the engine does not have, for a verb that has the
    /// volume to itself.
    ///
    /// # Errors
    /// One can't be opened, is being opened for longer than `wait`, was failed by hand, or the
    /// engine does not take it.
    pub fn open_absent(&self, volume: u16, wait: Duration) -> Result<(), String> {
        let is_opening = |state: &mut State| {
            let it = state.volumes.get(volume);
            it.is_some_and(|it| it.entries().iter().any(PathEntry::is_opening))
        };
        let waited = self
            .news
            .wait_timeout_while(self.state(), wait, |it| is_opening(it));
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() && is_opening(&mut state) {
            return Err("it is being opened, which takes long; try again".into());
        }
        let claims = Claims::new(self, &mut state, volume, |it| !it.is_there());
        drop(state);
        let Some(claims) = claims else {
            return Ok(()); // it has left
        };
        if claims.is_one_failed() {
            return Err("a path of it was failed by hand: restore that first (braid path)".into());
        }
        let mut open = Vec::new();
        for it in &claims.all {
            open.push((it, self.open_claimed(&claims, it, Limit::Verb)?));
        }
        claims.join(&open).1
    }

    /// Opens what is at a path now; this may block for as long as `limit` allows.
    ///
    /// # Errors
    /// Why it can't be, or may not be.
    fn open_claimed(&self, claims: &Claims<'_>, it: &Claimed, limit: Limit) -> Result<End, String> {
        let (of, uri) = (&claims.of, &it.keys.uri);
        let looked_at = uri.clone();
        let storage = limit.run(move || mirrors::storage_of(&looked_at))?;
        // By two names it may be what another volume has (T48), which no check at the start saw.
        if let Some(storage) = storage {
            let mut state = self.state();
            state.volumes.ensure_apart(of, uri, &storage)?;
            // Under the same lock: another thread may be about to open the same.
            let running = state.volumes.get_mut(claims.volume);
            let entry = running.and_then(|running| running.entry(it.id));
            entry
                .into_iter()
                .for_each(|it| it.set_storage(Some(storage.clone())));
        }
        let (of, keys) = (of.clone(), it.keys.clone());
        limit.run(move || open_end_of(&of, &keys))?
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
}
