//! Files, devices and queue servers that were not there at the start: opened when they are.
//!
//! # Contract
//! A local path that could not be opened at the start, of a leg too, is looked for again with
//! growing pauses, as paths over a network are. Each volume has a thread of its own for that, so
//! that a file system that hangs holds up the absent paths of this volume only. A path's
//! [entry](super::entries) has its state, and a reason of its own. Meanwhile the other paths of its
//! volume serve, and it can be removed. That it joins is a [`Change`] like others.
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
use super::paths::HAS_LEFT;
use super::plan::Change;
use super::reconcile::Reconciler;
use super::service::{Service, State};
use super::volumes::{AT_START, Running};
use crate::ends::{End, FileAccess, Resources, VolumePlan};
use crate::log;
use crate::mirror::leg::LegFile;
use crate::uri::{PathUri, UriKind};
use anyhow::bail;
use engine::host::{Change as Asked, PathConfig, VolumeConfig};
use policy::PathIndex;
use runtime::RuntimeError;
use rustix::io::Errno;
use std::cell::Cell;
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
pub const JOIN_NS: u64 = 10_000_000_000;

/// The same for another one that joins together with one that serves by now, and longest time for
/// what that one has under way if it is to leave again.
pub const JOIN_MORE_NS: u64 = 2_000_000_000;

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
    match (&of.leg_of, of.shared) {
        (Some(_), _) => FileAccess::Alone,
        (None, Some(true)) => FileAccess::Shared,
        (None, _) => FileAccess::Sole,
    }
}

/// Destinations of the paths of a volume, numbered by their places. The volume begins without those
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

/// A path that the caller opens.
struct Claimed {
    /// [`PathEntry::id`]
    id: u64,
    keys: PathKeys,
    /// Whether it waited for others before.
    waited: bool,
    /// It is known what became of it: another thread may open it again.
    is_over: Cell<bool>,
}

/// Paths of a volume that the caller opens, and no other thread. Each that was not reported when
/// this is dropped is what it was before.
struct Claims<'a> {
    service: &'a Service,
    /// The engine's number of the volume.
    volume: u16,
    /// Mirror that it is a leg of.
    leg_of: Option<String>,
    all: Vec<Claimed>,
    /// [`Running::all_at_once`]
    all_at_once: bool,
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        for it in self.all.iter().filter(|it| !it.is_over.get()) {
            self.with(it, PathEntry::let_go);
        }
        self.service.news.notify_all();
    }
}

impl<'a> Claims<'a> {
    /// Of the absent paths of a volume, which nobody opens, but for those failed by hand.
    fn new(service: &'a Service, volume: u16, running: &mut Running) -> Self {
        let all = running.entries().absent().filter(|it| !it.is_failed());
        let all = all.map(|it| Claimed {
            id: it.id(),
            keys: it.config().clone(),
            waited: it.is_waiting(),
            is_over: Cell::new(false),
        });
        let mut all: Vec<Claimed> = all.collect();
        // The path that failed last is tried first: else the others would join and leave each time.
        all.sort_by_key(|it| it.waited);
        for it in &all {
            let entry = running.entry(it.id);
            entry.into_iter().for_each(PathEntry::begin_opening);
        }
        Self {
            service,
            volume,
            leg_of: running.of.leg_of.clone(),
            all,
            all_at_once: running.all_at_once,
        }
    }

    /// Name of the volume, which a reload may change as long as no verb has the volume.
    fn name(&self) -> String {
        self.service.name(self.volume)
    }

    /// Does something with the entry of a path, unless it was removed.
    fn with<T>(&self, it: &Claimed, change: impl FnOnce(&mut PathEntry) -> T) -> Option<T> {
        let mut state = self.service.state();
        let running = state.volumes.get_mut(self.volume)?;
        running.entry(it.id).map(change)
    }

    /// A path is absent, and why; `waits`: for others. Whether that is news.
    fn set_absent(&self, it: &Claimed, why: &str, waits: bool) -> bool {
        it.is_over.set(true);
        let is_news = self.with(it, |entry| entry.set_absent(why.to_owned(), waits));
        is_news == Some(true)
    }

    /// A path can't be opened; the log names a reason that is new.
    fn failed(&self, it: &Claimed, why: &str) {
        if self.set_absent(it, why, false) {
            let name = self.name();
            log::say(format!("{name}: not there yet: {why}; it is tried again"));
        }
    }

    /// Where paths join together, those that are open wait if others are not; whether they do.
    fn wait_for_others(&self, open: &[(&Claimed, End)]) -> bool {
        let others: Vec<String> = {
            let state = self.service.state();
            let running = state.volumes.get(self.volume).into_iter();
            let absent = running.flat_map(|it| it.entries().absent());
            let others = absent.filter(|it| !open.iter().any(|(open, _)| open.id == it.id()));
            others.map(|it| it.config().uri.to_string()).collect()
        };
        let waits = self.all_at_once && !others.is_empty();
        let why = waits_for(&others.join(", "));
        for (it, _) in open.iter().filter(|_| waits) {
            if self.set_absent(it, &why, true) {
                log::say(format!("{}: {}: {why}", self.name(), it.keys.uri));
            }
        }
        waits
    }

    /// The engine gets paths that are open, but for those that were removed: each, or where they
    /// join together all or none. For a caller that has the volume to itself.
    ///
    /// # Errors
    /// Why it does not take one, nor those after it.
    fn join(&self, open: Vec<(&Claimed, End)>) -> Result<(), String> {
        self.service.mark_paths(self.volume);
        let name = &self.name();
        let mut steps = Reconciler::of_verb(self.service);
        let mut joined: Vec<&Claimed> = Vec::new();
        for (it, end) in open {
            // As they are now: a reload may have changed them since they were claimed.
            let Some(keys) = self.with(it, |entry| entry.config().clone()) else {
                continue;
            };
            it.is_over.set(true);
            let uri = keys.uri.clone();
            if !self.all_at_once {
                steps = Reconciler::of_verb(self.service); // those that have joined stay
            }
            steps.ends.insert(uri.to_string(), end);
            let Err(why) = steps.step(Change::JoinPath(name.clone(), keys), false) else {
                joined.push(it);
                continue;
            };
            self.failed(it, &why);
            if let Err(why) = steps.undo() {
                log::say(format!("{name}: serves without {uri}: {why}"));
            }
            joined.retain(|it| !self.is_taken_back(it, &uri));
            self.say_joined(&joined);
            return Err(why);
        }
        self.say_joined(&joined);
        Ok(())
    }

    /// Whether the engine has parted with a path that had joined, since `other` has not. The
    /// data that it wrote meanwhile its controller has flushed.
    fn is_taken_back(&self, it: &Claimed, other: &PathUri) -> bool {
        if self.with(it, |entry| entry.is_there()) != Some(false) {
            return false;
        }
        let why = waits_for(&other.to_string());
        self.set_absent(it, &why, true);
        let (name, uri) = (self.name(), &it.keys.uri);
        log::say(format!("{name}: {uri}: was taken back: {why}"));
        true
    }

    fn say_joined(&self, joined: &[&Claimed]) {
        let name = self.name();
        for uri in joined.iter().map(|it| &it.keys.uri) {
            log::say(match self.leg_of {
                Some(_) => format!(
                    "{name}: this leg is there now: {uri}: its superblock decides what becomes of \
                     it"
                ),
                None => format!("{name}: its path is there now: {uri}"),
            });
        }
    }
}

/// Why a path that can be opened waits for others.
fn waits_for(others: &str) -> String {
    format!(
        "it is there; the engine before did not stop in order, so the first flush has to reach all \
         paths, and it waits for {others}: bring that back, or remove it by force"
    )
}

/// Signs that a file is being written.
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
        let all: Vec<(u16, String)> = {
            let state = self.state();
            let volumes = state.volumes.iter();
            let absent = volumes.filter(|(_, it)| it.entries().absent().next().is_some());
            absent
                .map(|(volume, it)| (volume, it.of.name.clone()))
                .collect()
        };
        for (volume, name) in all {
            let service = Arc::clone(self);
            let look = move || service.look_for(volume);
            let builder = std::thread::Builder::new().name("late".into());
            if let Err(error) = builder.spawn(look) {
                log::say(format!(
                    "{name}: what is not there is not tried again: no thread can be started: \
                     {error}"
                ));
            }
        }
    }

    fn look_for(&self, volume: u16) {
        let mut pause = PAUSE_MIN;
        let mut settling = Settling::default();
        while !self.open_late(volume, &mut settling) {
            pause = match self.rest(volume, pause) {
                true => PAUSE_MIN,
                false => (pause * 2).min(PAUSE_MAX),
            };
        }
    }

    /// Waits for a time, or until a path is restored that was failed by hand; whether one was.
    fn rest(&self, volume: u16, pause: Duration) -> bool {
        let failed = |state: &State| {
            let running = state.volumes.get(volume);
            running.map_or(0, |it| {
                it.entries().absent().filter(|it| it.is_failed()).count()
            })
        };
        let state = self.state();
        let before = failed(&state);
        let rested = self.news.wait_timeout_while(state, pause, |state| {
            !state.is_closed() && failed(state) == before
        });
        let (state, _) = rested.unwrap_or_else(PoisonError::into_inner);
        failed(&state) < before
    }

    /// Opens those absent paths of a volume that are there, and hands them to the engine; whether
    /// none is looked for any more.
    fn open_late(&self, volume: u16, settling: &mut Settling) -> bool {
        let claims = {
            let mut state = self.state();
            let is_closed = state.is_closed();
            let running = state.volumes.get_mut(volume);
            let Some(running) = running.filter(|it| it.serial == AT_START && !is_closed) else {
                return true;
            };
            if running.entries().absent().next().is_none() {
                return true;
            }
            if running.entries().absent().any(PathEntry::is_opening) {
                return false; // by a verb
            }
            Claims::new(self, volume, running)
        };
        let mut open = Vec::new();
        for it in &claims.all {
            let may = self.may_be_opened(&it.keys, claims.leg_of.as_deref(), settling);
            match may.and_then(|()| self.open_claimed(&claims, it, Limit::None)) {
                Ok(end) => open.push((it, end)),
                Err(why) => claims.failed(it, &why),
            }
        }
        if !claims.wait_for_others(&open) && !open.is_empty() {
            self.join_late(&claims, open);
        }
        false
    }

    /// Hands paths that are open to the engine, unless a verb has the volume, or fails one of them.
    fn join_late(&self, claims: &Claims<'_>, open: Vec<(&Claimed, End)>) {
        let name = claims.name();
        // Users' verbs come first.
        let alone = match &claims.leg_of {
            Some(mirror) => self.alone_with_mirror_now(mirror),
            None => {
                let names = std::slice::from_ref(&name);
                self.changes.verbs.alone_last(names, &|| true)
            }
        };
        // Renamed in between, it may be another verb's. From here on its name stays.
        let Some(_alone) = alone.filter(|_| claims.name() == name) else {
            return;
        };
        let is_failed = |it: &Claimed| claims.with(it, |entry| entry.is_failed()) == Some(true);
        if !open.iter().any(|(it, _)| is_failed(it)) {
            claims.join(open).ok(); // it is noted
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
        let waited = self.news.wait_timeout_while(self.state(), wait, is_opening);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() && is_opening(&mut state) {
            return Err("it is being opened, which takes long; try again".into());
        }
        let Some(running) = state.volumes.get_mut(volume) else {
            return Ok(()); // it has left
        };
        if running.entries().absent().any(PathEntry::is_failed) {
            return Err("a path of it was failed by hand: restore that first (braid path)".into());
        }
        let claims = Claims::new(self, volume, running);
        drop(state);
        let open = claims
            .all
            .iter()
            .map(|it| Ok((it, self.open_claimed(&claims, it, Limit::Verb)?)));
        let open: Result<Vec<_>, String> = open.collect();
        claims.join(open?)
    }

    /// A path that is open and absent joins; `wait_ns`: how long the engine has for that.
    ///
    /// # Errors
    /// Why it doesn't.
    pub fn join_path(
        &self,
        volume: u16,
        path: PathIndex,
        end: &End,
        wait_ns: u64,
    ) -> Result<(), String> {
        let keys = {
            let state = self.state();
            let it = state
                .volumes
                .get(volume)
                .and_then(|it| it.entries().get(path));
            it.ok_or("it has left meanwhile")?.config().clone()
        };
        let config = PathConfig {
            numbers: 1 << path.0,
            ..self.register_end(&keys, end)?
        };
        let change = Asked::AddPath(volume, Box::new(config));
        self.ask_for(change, wait_ns, Duration::from_secs(1))?;
        self.with_entry(volume, path, PathEntry::joined);
        self.put_aside_path(volume, path);
        Ok(())
    }

    /// A path that has joined is absent again.
    ///
    /// # Errors
    /// Why it stays.
    pub fn part_path(&self, volume: u16, path: PathIndex) -> Result<(), String> {
        self.ask_to_leave(volume, path, true, JOIN_MORE_NS)?;
        self.with_entry(volume, path, |it| it.set_absent(String::new(), true));
        Ok(())
    }

    fn with_entry<T>(
        &self,
        volume: u16,
        path: PathIndex,
        change: impl FnOnce(&mut PathEntry) -> T,
    ) {
        let mut state = self.state();
        let running = state.volumes.get_mut(volume);
        if let Some(running) = running
            && let Some(id) = running.entries().get(path).map(PathEntry::id)
        {
            running.entry(id).map(change);
        }
    }

    /// Opens what is at a path now; this may block for as long as `limit` allows.
    ///
    /// # Errors
    /// Why it can't be, or may not be.
    fn open_claimed(&self, claims: &Claims<'_>, it: &Claimed, limit: Limit) -> Result<End, String> {
        let uri = &it.keys.uri;
        let looked_at = uri.clone();
        let storage = limit.run(move || mirrors::storage_of(&looked_at))?;
        let mut state = self.state();
        let of = state.volumes.get(claims.volume).ok_or(HAS_LEFT)?.of.clone();
        // By two names it may be what another volume has (T48), which no check at the start saw.
        if let Some(storage) = storage {
            state.volumes.ensure_apart(&of, uri, &storage)?;
            // Under the same lock: another thread may be about to open the same.
            let running = state.volumes.get_mut(claims.volume);
            let entry = running.and_then(|running| running.entry(it.id));
            entry
                .into_iter()
                .for_each(|it| it.set_storage(Some(storage.clone())));
        }
        drop(state);
        let keys = it.keys.clone();
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
