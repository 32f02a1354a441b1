//! Paths of a running engine: added, removed, failed, restored, drained.
//!
//! `path.add {"volume": "v0", "path": URI}` ·
//! `path.remove {"volume": "v0", "path": URI or number, "force": false}` ·
//! `path.fail`, `path.drain {"volume": "v0", "path": …, "force": false}` ·
//! `path.restore {"volume": "v0", "path": …}`
//!
//! # Contract
//! One change of a volume at a time, and it is answered when every core has made it, or with the
//! reason why nothing has changed, in bounded time. A verb that gives up because the engine does
//! not answer takes its change back, should it be made later (T55); a path that goes on draining is
//! said to. Users' changes come before those of discovery: they wait for the one that is under way
//! at most. The changed settings are kept among the choices: they hold
//! after a restart for as long as the configuration gives the volume the paths that it gave it
//! then. So a path failed by hand stays failed, as a failed member of an array does; whoever edits
//! the volume's paths in the configuration gets what stands there.
use super::call::PathParams;
use super::config::{PathKeys, twice};
use super::desired::{DesiredVolume, PathSpec};
use super::discovery::plan::teller;
use super::entries::{AdminState, PathEntry};
use super::late;
use super::locks::Alone;
use super::mirrors;
use super::pending::WAIT_NS_MAX;
use super::plan;
use super::service::{Service, State};
use super::volumes::Running;
use crate::control::rpc::ControlError;
use crate::control::server::Caller;
use crate::mirror::same::Storage;
use crate::uri::PathUri;
use crate::uri::discovery::in_words;
use engine::alarms::Subject;
use engine::host::{Change, PathConfig, PathState};
use policy::PathIndex;
use serde_json::{Value, json};
use std::time::Duration;

/// Why nothing comes of a verb whose volume is not there any more.
pub const HAS_LEFT: &str = "the volume has left meanwhile";

/// Why an absent path counts (T13).
const UNCLEAN: &str = "the engine before did not stop in order, and this path may hold writes that \
    no flush of another one covers;";

impl Running {
    /// # Errors
    /// An absent path leaves by force only: it may hold writes that no other path flushes (T13).
    pub fn spare_unclean(&self, path: PathIndex, force: bool) -> Result<(), String> {
        match self.entries().get(path) {
            Some(it) if self.all_at_once && !it.is_there() && !force => Err(format!(
                "{}: {UNCLEAN} --force removes it all the same",
                it.config().uri
            )),
            _ => Ok(()),
        }
    }
}

impl Service {
    /// `path.add`.
    ///
    /// # Errors
    /// Why nothing has changed.
    pub fn path_add(&self, params: &PathParams, by: &Caller<'_>) -> Result<Value, ControlError> {
        let (_alone, volume) = self.alone_with_paths(params, by)?;
        let uri: PathUri = params
            .path
            .parse()
            .map_err(|error| ControlError::params(format!("\"{}\": {error}", params.path)))?;
        let path = PathKeys::from(uri.clone()).into();
        self.edit(volume, params.force, |it| it.add(path))?;
        let named = PathParams {
            path: uri.to_string(),
            ..params.clone()
        };
        let (index, _) = find(&self.state(), volume, &named)?;
        Ok(self.told(volume, index, params, "added"))
    }

    /// `path.remove`.
    ///
    /// # Errors
    /// Why nothing has changed.
    pub fn path_remove(&self, params: &PathParams, by: &Caller<'_>) -> Result<Value, ControlError> {
        let (_alone, volume) = self.alone_with_paths(params, by)?;
        let (index, path) = find(&self.state(), volume, params)?;
        self.spare_discovered(volume, index)?;
        self.edit(volume, params.force, |it| it.remove(&path.config.uri))?;
        Ok(self.told(volume, index, params, "removed"))
    }

    /// `path.fail`, `path.restore` and `path.drain`.
    ///
    /// # Errors
    /// Why nothing has changed.
    pub fn path_admin(
        &self,
        params: &PathParams,
        admin: AdminState,
        by: &Caller<'_>,
    ) -> Result<Value, ControlError> {
        let (_alone, volume) = self.alone_with_paths(params, by)?;
        let (index, path) = find(&self.state(), volume, params)?;
        let before = path.admin;
        let path = PathSpec { admin, ..path };
        let set = plan::Change::SetAdmin(params.volume.clone(), path, before);
        // Also where it is to be so already: it may not be yet.
        self.make(&[set], params.force)?;
        Ok(self.told(volume, index, params, admin.done()))
    }

    /// The volume of a verb, with its paths for this verb alone.
    fn alone_with_paths(
        &self,
        params: &PathParams,
        by: &Caller<'_>,
    ) -> Result<(Alone<'_>, u16), ControlError> {
        let (alone, volume) = self.alone_with(&params.volume, by)?;
        self.state().has_paths(volume)?;
        Ok((alone, volume))
    }

    /// A path that discovery tells of would be there again at once.
    fn spare_discovered(&self, volume: u16, path: PathIndex) -> Result<(), ControlError> {
        let offers = self.discovery.offers();
        let state = self.state();
        let it = &state.volumes[volume];
        let uri = it.entries().get(path).map(|it| &it.config().uri);
        let named = |uri: &PathUri| self.ends.addresses(uri);
        let by = uri.and_then(|uri| teller(&it.of, uri, &offers, named));
        match uri.zip(by.map(in_words)) {
            Some((uri, by)) => Err(ControlError::refused(format!(
                "{uri}: discovery of {by} tells of it, so it would be added again; fail or drain \
                 it, or have the target withdraw it"
            ))),
            None => Ok(()),
        }
    }

    /// The answer; what was changed is kept.
    fn told(&self, volume: u16, path: PathIndex, params: &PathParams, done: &str) -> Value {
        let mut value = json!({
            "volume": params.volume,
            "path": path.0,
            "uri": params.path,
            "state": done,
        });
        if let Err(error) = self.keep_choices(volume) {
            value["warning"] = format!("it won't survive a restart: {error:#}").into();
        }
        value
    }

    /// A path more for a volume, in use on every core. `wanted`: the number that it gets, unless
    /// another path has it by now.
    ///
    /// # Errors
    /// Why nothing has changed.
    pub fn add_path(
        &self,
        volume: u16,
        path: &PathSpec,
        wanted: Option<PathIndex>,
    ) -> Result<PathIndex, String> {
        let keys = &path.config;
        let uri = &keys.uri;
        let local = !uri.kind().is_namespace();
        let (wait_ns, others, beside_local, access, quiesce_ns, numbers) = {
            let state = self.state();
            let it = state.volumes.get(volume).ok_or(HAS_LEFT)?;
            let of = &it.of;
            if let Some(absent) = it.entries().absent().next().filter(|_| it.all_at_once) {
                return Err(format!(
                    "{} waits for {}, and gets no other path before: {UNCLEAN} bring it back, or \
                     remove it by force",
                    of.name,
                    absent.config().uri
                ));
            }
            let (quiesce_ns, paths) = (of.queue_quiesce_ns(), &of.paths);
            let wait_ns = state.configured.connect_timeout.0.saturating_mul(3);
            // No engine sees yet that an absent file is another path's data.
            let mut absent = it.entries().absent();
            let beside_local = absent.any(|it| !it.config().uri.kind().is_namespace());
            let wanted = wanted.filter(|number| it.entries().get(*number).is_none());
            let numbers = wanted.map_or_else(|| it.entries().free_numbers(), |it| 1 << it.0);
            let others = !paths.is_empty();
            let access = late::access(of);
            (wait_ns, others, beside_local, access, quiesce_ns, numbers)
        };
        if (local && others) || beside_local {
            let why = "a local device is no other path's data; give it a volume of its own";
            return Err(format!("{uri}: {why}"));
        }
        let storage = mirrors::storage_of(&keys.uri);
        self.reserve(volume, path, storage.as_ref())?;
        let config = self.lead(keys, access, quiesce_ns);
        let changed = config.and_then(|config| {
            // Writes may go there before it is known that it has joined (T13).
            self.mark_paths(volume);
            let config = PathConfig { numbers, ..config };
            let change = Change::AddPath(volume, Box::new(config));
            self.ask_for(change, wait_ns, Duration::ZERO)
        });
        let index = changed.map(|it| it.path.unwrap_or(PathIndex(0)));
        let mut state = self.state();
        let Some(it) = state.volumes.get_mut(volume) else {
            return Err(HAS_LEFT.into());
        };
        let joined = it.joining.take();
        if let Some((index, spec)) = index.as_ref().ok().zip(joined) {
            it.join(spec, *index, storage);
        }
        drop(state);
        self.mark_paths(volume);
        index
    }

    /// A path is about to join: no other volume has the namespace that it leads to, nor gets it
    /// meanwhile.
    ///
    /// # Errors
    /// Which has.
    fn reserve(
        &self,
        volume: u16,
        path: &PathSpec,
        storage: Option<&Storage>,
    ) -> Result<(), String> {
        let keys = &path.config;
        let mut state = self.state();
        if let Some(storage) = storage {
            let of = &state.volumes.get(volume).ok_or(HAS_LEFT)?.of;
            state.volumes.ensure_apart(of, &keys.uri, storage)?;
        }
        let others = state.volumes.others(volume);
        let meets = |it: &Running| {
            let theirs = twice::shared(&it.to_mark(), &keys.uri)?;
            Some(twice::line(&keys.uri.to_string(), &it.of.name, &theirs))
        };
        let other = others.filter_map(meets).next();
        if let Some(line) = other {
            return Err(line);
        }
        let it = state.volumes.get_mut(volume).ok_or(HAS_LEFT)?;
        it.joining = Some(path.clone());
        Ok(())
    }

    /// A path leaves a volume.
    ///
    /// # Errors
    /// Why it doesn't.
    pub fn remove_path(&self, volume: u16, path: PathIndex, force: bool) -> Result<(), String> {
        if self.is_absent(volume, path) {
            return self.forget_absent(volume, path, force);
        }
        let wait_ns = self.state().configured.drain_timeout.0;
        self.ask_to_leave(volume, path, force, wait_ns)?;
        self.path_left(volume, path);
        Ok(())
    }

    /// The engine parts with a path that it has; its entry stays.
    ///
    /// # Errors
    /// Why it doesn't.
    pub fn ask_to_leave(
        &self,
        volume: u16,
        path: PathIndex,
        force: bool,
        wait_ns: u64,
    ) -> Result<(), String> {
        // A controller has its own time to flush, to close its queue and to shut down; an answer
        // that nobody awaits would leave a path here that is gone.
        let more_ns = {
            let state = self.state();
            let leave_ns = state.configured.connect_timeout.0.saturating_mul(3);
            state.configured.io_timeout.0.saturating_add(leave_ns)
        };
        let change = Change::RemovePath {
            volume,
            path,
            force,
        };
        self.ask_for(change, wait_ns, Duration::from_nanos(more_ns))
            .map(drop)
    }

    /// Whether a path is not there since the start.
    fn is_absent(&self, volume: u16, path: PathIndex) -> bool {
        let state = self.state();
        let it = state.volumes.get(volume);
        let it = it.and_then(|it| it.entries().get(path));
        it.is_some_and(|it| !it.is_there())
    }

    /// An absent path of a volume is not looked for any more.
    ///
    /// # Errors
    /// It is a leg's only path; or only by force: it may hold writes that no other path flushes
    /// (T13), or is the last of its volume.
    fn forget_absent(&self, volume: u16, path: PathIndex, force: bool) -> Result<(), String> {
        let mut state = self.state();
        let it = state.volumes.get_mut(volume).ok_or(HAS_LEFT)?;
        it.spare_unclean(path, force)?;
        if it.of.paths.len() == 1 {
            let uri = &it.of.paths[0].uri;
            if it.of.leg_of.is_some() {
                return Err(format!(
                    "{uri} is all that leads to this leg: braid mirror remove takes the leg out"
                ));
            }
            if !force {
                return Err(format!(
                    "{uri} is the last path of its volume: its I/O would wait (--force: all the \
                     same)"
                ));
            }
        }
        it.part(path);
        drop(state);
        self.news.notify_all();
        self.mark_paths(volume);
        Ok(())
    }

    /// A path has left a volume.
    pub fn path_left(&self, volume: u16, path: PathIndex) {
        let mut state = self.state();
        let Some(it) = state.volumes.get_mut(volume) else {
            return;
        };
        it.part(path);
        drop(state);
        // Not before: a removal may be taken back, and its path is as slow then as it was.
        self.health.end_alarms(Subject { volume, path });
        self.mark_paths(volume);
    }

    /// Notes a user's setting of a path, and asks the engine for nothing.
    pub fn note_admin(&self, volume: u16, path: PathIndex, admin: AdminState) {
        if let Some(it) = self.state().volumes.get_mut(volume) {
            it.set_admin(path, admin);
        }
    }

    /// A path is failed, drained or restored.
    ///
    /// # Errors
    /// Why it isn't, or isn't yet.
    pub fn set_admin(
        &self,
        volume: u16,
        path: PathIndex,
        admin: AdminState,
        force: bool,
    ) -> Result<(), String> {
        if self.is_absent(volume, path) {
            // The engine is told when the path joins.
            self.note_admin(volume, path, admin);
            // It is looked for again.
            self.news.notify_all();
            return Ok(());
        }
        let (wait_ns, was, uri, set) = {
            let state = self.state();
            let it = state.volumes.get(volume).ok_or(HAS_LEFT)?;
            let entry = it.entries().get(path).ok_or(HAS_LEFT)?;
            let was = entry.admin();
            let spec = PathSpec {
                admin,
                ..entry.into()
            };
            let set = plan::Change::SetAdmin(it.of.name.clone(), spec, was);
            let wait_ns = state.configured.drain_timeout.0;
            (wait_ns, was, entry.config().uri.clone(), set)
        };
        let queue = self.ends.queue(&uri);
        // Else the server would keep another queue for it.
        let want = |wanted| queue.iter().for_each(|queue| queue.set_wanted(wanted));
        match admin {
            AdminState::Failed => want(false),
            AdminState::Enabled => want(true),
            AdminState::Drained => {}
        }
        let change = admin.change(volume, path, force);
        let Err(why) = self.ask_for(change, wait_ns, Duration::ZERO) else {
            self.note_admin(volume, path, admin);
            self.changes.end_going(&set);
            return Ok(());
        };
        // One that is still busy goes on draining; one that was refused doesn't.
        let (goes_on, verb) = match admin {
            AdminState::Drained => {
                let state = self.path_state(volume, path);
                (state == Some(PathState::Draining), "restore")
            }
            AdminState::Enabled => (self.is_tried(volume, path), "fail"),
            AdminState::Failed => {
                want(was != AdminState::Failed);
                (false, "")
            }
        };
        if goes_on || admin == AdminState::Enabled {
            self.note_admin(volume, path, admin);
        }
        if !goes_on {
            return Err(why);
        }
        if was != admin {
            self.changes.note_going(set);
        }
        // An answer to a change that goes on says how it is ended.
        let until = match admin {
            AdminState::Drained => ", until",
            _ => ";",
        };
        let name = self.name(volume);
        Err(format!(
            "{why}{until} braid path {verb} {name} {} ends that",
            path.0
        ))
    }

    /// Whether the engine goes on connecting a path.
    pub fn is_tried(&self, volume: u16, path: PathIndex) -> bool {
        let tried = [PathState::Connecting, PathState::Reconnecting];
        self.path_state(volume, path)
            .is_some_and(|it| tried.contains(&it))
    }

    /// Whether core 0 has a path in use.
    pub fn is_live(&self, volume: u16, path: PathIndex) -> bool {
        self.path_state(volume, path) == Some(PathState::Live)
    }

    pub fn path_state(&self, volume: u16, path: PathIndex) -> Option<PathState> {
        let cores = self.senders.report().unwrap_or_default();
        let paths = cores.first()?.volumes.get(usize::from(volume))?;
        Some(paths.get(usize::from(path.0))?.state)
    }

    /// Paths that were failed or drained before a restart are so again.
    pub fn put_aside(&self) {
        let state = self.state();
        for (volume, running) in state.volumes.iter() {
            let there = running.entries().iter().filter(|it| it.is_there());
            there.for_each(|it| self.put_aside_entry(volume, it));
        }
    }

    /// The same of a path that has joined.
    pub fn put_aside_path(&self, volume: u16, path: PathIndex) {
        let state = self.state();
        let it = state.volumes.get(volume);
        if let Some(it) = it.and_then(|it| it.entries().get(path)) {
            self.put_aside_entry(volume, it);
        }
    }

    fn put_aside_entry(&self, volume: u16, it: &PathEntry) {
        match it.admin() {
            AdminState::Enabled => return,
            AdminState::Failed => {
                let queue = self.ends.queue(&it.config().uri);
                queue.iter().for_each(|queue| queue.set_wanted(false));
            }
            AdminState::Drained => {}
        }
        let change = it.admin().change(volume, it.index(), true);
        self.senders.change(0, change, WAIT_NS_MAX);
    }

    /// Keeps the present settings of a volume for a restart.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn keep_choices(&self, volume: u16) -> anyhow::Result<()> {
        let mut choices = self.choices();
        let (file, now) = {
            let state = self.state();
            anyhow::ensure!(state.volumes.has(volume), "{HAS_LEFT}");
            let file = state.configured.volume(&state.volumes.name(volume));
            (file.cloned(), DesiredVolume::new(&state, volume))
        };
        // One that is there is in the configuration.
        file.map_or(Ok(()), |file| choices.keep(&file, &now))
    }
}

/// The URIs of paths.
pub fn uris(paths: &[PathKeys]) -> Vec<String> {
    paths.iter().map(|keys| keys.uri.to_string()).collect()
}

/// A path of a volume by its name, its URI, or its number.
fn find(
    state: &State,
    volume: u16,
    params: &PathParams,
) -> Result<(PathIndex, PathSpec), ControlError> {
    let paths = state.volumes[volume].entries();
    let found = paths.called(&params.path);
    let found = found.map(|it| (it.index(), PathSpec::from(it)));
    found.ok_or_else(|| {
        let line = |it: &PathEntry| format!("{} {} {}", it.index().0, it.name(), it.config().uri);
        let list: Vec<_> = paths.iter().map(line).collect();
        let text = format!(
            "{} has no path \"{}\"; it has {}",
            params.volume,
            params.path,
            list.join(", ")
        );
        ControlError::params(text)
    })
}

/// Text about a path, for a line that names volume and path before it.
pub fn unnamed<'a>(volume: &str, uri: &str, line: &'a str) -> &'a str {
    let named = format!("{volume}: path {uri}: ");
    line.strip_prefix(&named).unwrap_or(line)
}
