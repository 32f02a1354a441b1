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
//! at most. What was changed is kept among the choices: it holds
//! after a restart for as long as the configuration gives the volume the paths that it gave it
//! then. So a path failed by hand stays failed, as a failed member of an array does; whoever edits
//! the volume's paths in the configuration gets what stands there.
use super::call::PathParams;
use super::choices::PathChoice;
use super::config::{PathKeys, twice};
use super::desired::PathSpec;
use super::discovery::plan::teller;
use super::entries::{AdminState, PathEntry};
use super::locks::{Alone, VerbQueues};
use super::mirrors;
use super::plan;
use super::reconcile::Reconciler;
use super::service::{Service, State};
use super::volumes::Running;
use crate::control::rpc::ControlError;
use crate::control::server::Caller;
use crate::ends::FileAccess;
use crate::log;
use crate::mirror::same::Storage;
use crate::uri::PathUri;
use crate::uri::discovery::in_words;
use engine::host::{Change, Changed, PathConfig, PathState};
use policy::PathIndex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// How much longer than the engine its answer is waited for.
pub const GRACE: Duration = Duration::from_secs(5);
/// Longest wait for a change.
pub const WAIT_NS_MAX: u64 = 60_000_000_000;

/// Why nothing comes of a verb whose volume is not there any more.
const HAS_LEFT: &str = "the volume has left meanwhile";

/// Why an absent path counts (T13).
const UNCLEAN: &str = "the engine before did not stop in order, and this path may hold writes that \
    no flush of another one covers;";

type Answer = Result<Changed, String>;

/// What is asked of the engine.
#[derive(Default)]
pub struct Changes {
    /// Which verbs exclude each other.
    pub verbs: VerbQueues,
    /// Held while a volume of a leg is opened: of one volume at most the engine has not said yet
    /// which number it has.
    opening: Mutex<()>,
    /// Held by a reload.
    reload: Mutex<()>,
    asked: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    /// The last ticket. 0: nobody waits for its answer.
    ticket: u64,
    /// Who waits for the answer to a ticket.
    waiting: BTreeMap<u64, SyncSender<Answer>>,
    /// Verbs that have given up: what becomes of their changes if these are made after all.
    given_up: BTreeMap<u64, GivenUp>,
    /// Changes that go on after their verbs have given up, by a ticket that no other one has.
    going: BTreeMap<u64, Going>,
}

/// A change whose verb has given up, and which is taken back should the engine make it.
pub struct GivenUp {
    pub undo: Undo,
    /// What was asked for, in words.
    pub what: String,
    pub since: SystemTime,
}

/// A change that goes on.
#[derive(Clone)]
pub struct Going {
    pub change: plan::Change,
    pub since: SystemTime,
}

/// How a change is taken back that was made after its verb had given up (T55).
#[derive(Clone, Debug)]
pub enum Undo {
    /// Nothing is to be done.
    Nothing,
    /// A path that has joined leaves again.
    Join,
    /// A path that has left is gone: its volume has one less.
    Leave(u16, PathIndex),
    /// A path is what it was before.
    Admin(u16, PathIndex, AdminState),
}

impl Changes {
    /// The engine has answered; the answer, if nobody waits for it.
    pub fn answered(&self, ticket: u64, answer: Answer) -> Option<Answer> {
        let waiting = self.asked().waiting.remove(&ticket);
        let Some(waiting) = waiting else {
            return Some(answer);
        };
        // The caller takes a last look at its channel after it has given up.
        let _ = waiting.try_send(answer);
        None
    }

    /// Waits until no other reload is under way; until the result is dropped, none begins.
    pub fn reload(&self) -> MutexGuard<'_, ()> {
        self.reload.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a verb of some volumes: see [`VerbQueues::alone`].
    ///
    /// # Errors
    /// The caller has gone, and does not wait any more.
    pub fn alone_with_all(
        &self,
        volumes: &[String],
        by: &Caller<'_>,
    ) -> Result<Alone<'_>, ControlError> {
        loop {
            let alone = self.verbs.alone(volumes, &|| by.is_gone());
            by.ensure_there()?;
            if let Some(alone) = alone {
                return Ok(alone);
            }
        }
    }

    /// Waits until no other verb opens a leg; until the result is dropped, none does.
    pub fn opening(&self) -> MutexGuard<'_, ()> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be done about a change whose verb has given up.
    pub fn late(&self, ticket: u64) -> Option<Undo> {
        let given_up = self.asked().given_up.remove(&ticket);
        given_up.map(|it| it.undo)
    }

    /// Changes whose verbs have given up, and which the engine has not answered, by ticket.
    pub fn each_given_up<T>(&self, of: impl Fn(u64, &GivenUp) -> T) -> Vec<T> {
        let asked = self.asked();
        let all = asked.given_up.iter();
        all.map(|(ticket, it)| of(*ticket, it)).collect()
    }

    /// Changes that go on, by ticket.
    pub fn going(&self) -> BTreeMap<u64, Going> {
        self.asked().going.clone()
    }

    /// A change goes on; others of the same path are over.
    pub fn note_going(&self, change: plan::Change) {
        let mut asked = self.asked();
        asked
            .going
            .retain(|_, it| !it.change.is_of_path_of(&change));
        asked.ticket += 1;
        let (ticket, since) = (asked.ticket, SystemTime::now());
        asked.going.insert(ticket, Going { change, since });
    }

    /// Whether this path goes on to what a change makes it.
    pub fn goes_on(&self, change: &plan::Change) -> bool {
        let asked = self.asked();
        let mut all = asked.going.values();
        all.any(|it| it.change.admin() == change.admin() && it.change.is_of_path_of(change))
    }

    /// A path is what a verb made it.
    pub fn end_going(&self, volume: &str, uri: &PathUri) {
        let is_it = |it: &Going| match &it.change {
            plan::Change::SetAdmin(name, path, _) => name == volume && path.config.uri == *uri,
            _ => false,
        };
        self.asked().going.retain(|_, it| !is_it(it));
    }

    /// A change goes on no more.
    pub fn forget_going(&self, ticket: u64) {
        self.asked().going.remove(&ticket);
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    /// # Errors
    /// An absent path leaves by force only: it may hold writes that no other path flushes (T13).
    pub fn spare_unclean(&self, path: PathIndex, force: bool) -> Result<(), String> {
        match self.entries().get(path) {
            Some(it) if self.all_at_once && !it.is_there() && !force => Err(format!(
                "{}: {UNCLEAN} force it if you mean it",
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
        let path = PathSpec::from(PathKeys::from(uri.clone()));
        self.make(plan::Change::AddPath(params.volume.clone(), path), false)?;
        let index = {
            let state = self.state();
            let it = state.volumes.get(volume);
            let it = it.and_then(|it| it.entries().of_uri(&uri));
            it.map(PathEntry::index)
        };
        let index = index.ok_or_else(|| ControlError::refused(HAS_LEFT))?;
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
        let remove = plan::Change::RemovePath(params.volume.clone(), path);
        self.make(remove, params.force)?;
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
        self.make(set, params.force)?;
        Ok(self.told(volume, index, params, admin.done()))
    }

    /// One change of a verb.
    fn make(&self, change: plan::Change, force: bool) -> Result<(), ControlError> {
        let made = Reconciler::of_verb(self).step(change, force);
        made.map_err(ControlError::refused)
    }

    /// The volume of a verb, with its paths for this verb alone.
    fn alone_with_paths(
        &self,
        params: &PathParams,
        by: &Caller<'_>,
    ) -> Result<(Alone<'_>, u16), ControlError> {
        let names = std::slice::from_ref(&params.volume);
        let alone = self.changes.alone_with_all(names, by)?;
        let state = self.state();
        let volume = state.volumes.number(&params.volume)?;
        state.has_paths(volume)?;
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
        if let Err(error) = self.keep_paths(volume) {
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
        keys: PathKeys,
        wanted: Option<PathIndex>,
    ) -> Result<PathIndex, String> {
        let local = !keys.uri.kind().is_namespace();
        let uri = keys.uri.to_string();
        let (wait_ns, there, others, beside_local, quiesce_ns, numbers) = {
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
            let there = paths.iter().any(|it| it.uri.to_string() == uri);
            let wait_ns = state.configured.connect_timeout.0.saturating_mul(3);
            // No engine sees yet that an absent file is another path's data.
            let mut absent = it.entries().absent();
            let beside_local = absent.any(|it| !it.config().uri.kind().is_namespace());
            let wanted = wanted.filter(|number| it.entries().get(*number).is_none());
            let numbers = wanted.map_or_else(|| it.entries().free_numbers(), |it| 1 << it.0);
            let others = !paths.is_empty();
            (wait_ns, there, others, beside_local, quiesce_ns, numbers)
        };
        if there {
            return Err(format!("{uri} is a path of this volume already"));
        }
        if (local && others) || beside_local {
            let why = "a local device is no other path's data; give it a volume of its own";
            return Err(format!("{uri}: {why}"));
        }
        let storage = mirrors::storage_of(&keys.uri);
        self.reserve(volume, &keys, storage.as_ref())?;
        let config = self.lead(&keys, FileAccess::Shared, quiesce_ns);
        let changed = config.and_then(|config| {
            // Writes may go there before it is known that it has joined (T13).
            self.mark_paths(volume);
            let config = PathConfig { numbers, ..config };
            let change = Change::AddPath(volume, Box::new(config));
            self.ask_or(Undo::Join, change, wait_ns, Duration::ZERO)
        });
        let path = changed.map(|it| it.path.unwrap_or(PathIndex(0)));
        let mut state = self.state();
        let Some(it) = state.volumes.get_mut(volume) else {
            return Err(HAS_LEFT.into());
        };
        let joined = it.joining.take();
        if let Some((path, keys)) = path.as_ref().ok().zip(joined) {
            it.join(keys, *path, storage);
        }
        drop(state);
        self.mark_paths(volume);
        path
    }

    /// A path is about to join: no other volume has the namespace that it leads to, nor gets it
    /// meanwhile.
    ///
    /// # Errors
    /// Which has.
    fn reserve(
        &self,
        volume: u16,
        keys: &PathKeys,
        storage: Option<&Storage>,
    ) -> Result<(), String> {
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
        it.joining = Some(keys.clone());
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
        let undo = Undo::Leave(volume, path);
        self.ask_or(undo, change, wait_ns, Duration::from_nanos(more_ns))?;
        Ok(())
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
                    "{uri} is the last path of its volume: its I/O would wait; force it if you \
                     mean it"
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
    fn path_left(&self, volume: u16, path: PathIndex) {
        let mut state = self.state();
        let Some(it) = state.volumes.get_mut(volume) else {
            return;
        };
        it.part(path);
        drop(state);
        self.mark_paths(volume);
    }

    /// A change was made whose verb had given up: it is taken back.
    pub fn take_back_late(&self, undo: Undo, Changed { volume, path }: Changed) {
        let name = self.name(volume);
        let number = path.map_or_else(String::new, |it| it.0.to_string());
        let said = |what: &str| {
            log::say(format!(
                "{name}: path {number}: the engine did what was asked after its verb had given up; \
                 {what}"
            ));
        };
        match undo {
            Undo::Nothing => {}
            Undo::Join => {
                let Some(path) = path else {
                    return;
                };
                said("it leaves again");
                let change = Change::RemovePath {
                    volume,
                    path,
                    force: true,
                };
                self.senders.change(0, change, WAIT_NS_MAX);
            }
            Undo::Leave(volume, path) => {
                said("it has left");
                self.path_left(volume, path);
            }
            Undo::Admin(volume, path, admin) => {
                said("it is what it was before");
                self.note_admin(volume, path, admin);
                let change = admin.change(volume, path, true);
                self.senders.change(0, change, WAIT_NS_MAX);
            }
        }
    }

    /// What a user wants of a path is noted, and not asked of the engine.
    fn note_admin(&self, volume: u16, path: PathIndex, admin: AdminState) {
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
        let (wait_ns, uri, was) = {
            let state = self.state();
            let it = state.volumes.get(volume).ok_or(HAS_LEFT)?;
            let it = it.entries().get(path).ok_or(HAS_LEFT)?;
            let uri = it.config().uri.clone();
            (state.configured.drain_timeout.0, uri, it.admin())
        };
        let queue = self.ends.queue(&uri);
        // Else the server would keep another queue for it.
        let want = |wanted| queue.iter().for_each(|queue| queue.set_wanted(wanted));
        match admin {
            AdminState::Failed => want(false),
            AdminState::Enabled => want(true),
            AdminState::Drained => {}
        }
        let undo = Undo::Admin(volume, path, was);
        let change = admin.change(volume, path, force);
        let made = self.ask_or(undo, change, wait_ns, Duration::ZERO);
        if admin == AdminState::Failed && made.is_err() {
            want(was != AdminState::Failed);
        }
        // One that is still busy goes on draining; one that was refused doesn't.
        let drains = admin == AdminState::Drained
            && made.is_err()
            && self.path_state(volume, path) == Some(PathState::Draining);
        if admin == AdminState::Enabled || made.is_ok() || drains {
            self.note_admin(volume, path, admin);
        }
        let is_tried =
            || made.is_err() && admin == AdminState::Enabled && self.is_tried(volume, path);
        if made.is_ok() {
            self.changes.end_going(&self.name(volume), &uri);
        } else if was != admin && (drains || is_tried()) {
            self.note_going(volume, path, was);
        }
        // What goes on after this answer says how it is ended.
        let name = self.name(volume);
        let number = path.0;
        made.map(|_| ()).map_err(|why| match admin {
            AdminState::Drained if drains => {
                format!("{why}, until braid path restore {name} {number} ends that")
            }
            AdminState::Enabled if self.is_tried(volume, path) => {
                format!("{why}; braid path fail {name} {number} ends that")
            }
            _ => why,
        })
    }

    /// A path gets the admin state that was asked for, after its verb has given up.
    fn note_going(&self, volume: u16, path: PathIndex, was: AdminState) {
        let change = {
            let state = self.state();
            let of = state.volumes.get(volume);
            of.and_then(|it| {
                let spec = PathSpec::from(it.entries().get(path)?);
                Some(plan::Change::SetAdmin(it.of.name.clone(), spec, was))
            })
        };
        change
            .into_iter()
            .for_each(|it| self.changes.note_going(it));
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

    /// What a volume's paths are now holds after a restart.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn keep_paths(&self, volume: u16) -> anyhow::Result<()> {
        let mut choices = self.choices();
        let (name, choice) = {
            let state = self.state();
            let it = state.volumes.get(volume);
            let it = it.ok_or_else(|| anyhow::anyhow!("{HAS_LEFT}"))?;
            let name = it.of.name.clone();
            let choice = PathChoice {
                configured: uris(state.configured.paths_of(&name)),
                chosen: it.kept(),
                aside: it.entries().aside(),
            };
            (name, choice)
        };
        choices.keep_paths(&name, choice)
    }

    /// Asks core 0 for a change and waits for its answer, which may come `later` than the time that
    /// the change may take.
    pub fn ask_for(&self, change: Change, wait_ns: u64, later: Duration) -> Answer {
        self.ask_or(Undo::Nothing, change, wait_ns, later)
    }

    /// The same; where no answer comes, the change is taken back as `undo` says, should it be made
    /// after all.
    pub fn ask_or(&self, undo: Undo, change: Change, wait_ns: u64, later: Duration) -> Answer {
        let what = self.in_words(&change);
        let wait_ns = wait_ns.min(WAIT_NS_MAX);
        let (to, from) = sync_channel(1);
        let ticket = {
            let mut asked = self.changes.asked();
            asked.ticket += 1;
            let ticket = asked.ticket;
            asked.waiting.insert(ticket, to);
            ticket
        };
        self.senders.change(ticket, change, wait_ns);
        let limit = Duration::from_nanos(wait_ns) + later + GRACE;
        from.recv_timeout(limit).unwrap_or_else(|_| {
            let mut asked = self.changes.asked();
            let untold = asked.waiting.remove(&ticket).is_some();
            if untold {
                let since = SystemTime::now();
                asked.given_up.insert(ticket, GivenUp { undo, what, since });
            }
            drop(asked);
            let last = from.recv_timeout(if untold { Duration::ZERO } else { GRACE });
            last.unwrap_or_else(|_| {
                Err(
                    "the engine does not answer; if it does this after all, that is taken back \
                     and said in its log"
                        .into(),
                )
            })
        })
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

/// What a line says of a path, for another line that names volume and path before it.
pub fn unnamed<'a>(volume: &str, uri: &str, line: &'a str) -> &'a str {
    let named = format!("{volume}: path {uri}: ");
    line.strip_prefix(&named).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t55_answers_find_their_verbs_and_late_ones_are_taken_back() {
        let changes = Changes::default();
        let made = |path| Changed {
            volume: 0,
            path: Some(PathIndex(path)),
        };
        let wait = |ticket| {
            let (to, from) = sync_channel(1);
            changes.asked().waiting.insert(ticket, to);
            from
        };
        let (first, second) = (wait(1), wait(2));
        assert!(changes.answered(2, Ok(made(2))).is_none());
        assert_eq!(second.try_recv(), Ok(Ok(made(2))));
        // The first verb gives up.
        changes.asked().waiting.remove(&1);
        let given_up = GivenUp {
            undo: Undo::Join,
            what: String::new(),
            since: SystemTime::UNIX_EPOCH,
        };
        changes.asked().given_up.insert(1, given_up);
        assert_eq!(changes.each_given_up(|ticket, _| ticket), [1]);
        assert!(changes.answered(1, Ok(made(1))).is_some());
        assert!(first.try_recv().is_err());
        assert!(matches!(changes.late(1), Some(Undo::Join)));
        assert!(changes.late(1).is_none(), "once");
    }
}
