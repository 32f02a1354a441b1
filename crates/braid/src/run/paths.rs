//! Paths of a running engine: added, removed, failed, restored, drained.
//!
//! `path.add {"volume": "v0", "path": URI}` ·
//! `path.remove {"volume": "v0", "path": URI or number, "force": false}` ·
//! `path.fail`, `path.drain {"volume": "v0", "path": …, "force": false}` ·
//! `path.restore {"volume": "v0", "path": …}`
//!
//! # Contract
//! One change at a time, and it is answered when every core has made it, or with the reason why
//! nothing has changed, in bounded time. Users' changes come before those of discovery: they wait
//! for the one that is under way at most. What was changed is kept among the choices: it holds
//! after a restart for as long as the configuration gives the volume the paths that it gave it
//! then. So a path failed by hand stays failed, as a failed member of an array does; whoever edits
//! the volume's paths in the configuration gets what stands there.
use super::choices::PathChoice;
use super::config::{PathKeys, twice};
use super::discovery::plan::teller;
use super::service::{Service, State};
use crate::control::rpc::Failure;
use crate::load::host::FileAccess;
use crate::uri::PathUri;
use crate::uri::discovery::in_words;
use engine::host::{Change, Changed, PathState};
use policy::PathIndex;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How much longer than the engine its answer is waited for.
pub const GRACE: Duration = Duration::from_secs(5);
/// Longest wait for a change.
pub const WAIT_NS_MAX: u64 = 60_000_000_000;

/// How often somebody who waits looks whether to stop.
const TICK: Duration = Duration::from_millis(100);

type Answer = Result<Changed, String>;

/// What is asked of the engine.
#[derive(Default)]
pub struct Changes {
    turn: Mutex<Turn>,
    free: Condvar,
    asked: Mutex<Asked>,
}

/// Who changes paths.
#[derive(Default)]
struct Turn {
    taken: bool,
    /// Users who wait for it.
    users: usize,
}

/// Nobody else changes paths while it is there.
pub struct Alone<'a>(&'a Changes);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.turn().taken = false;
        self.0.free.notify_all();
    }
}

#[derive(Default)]
struct Asked {
    /// The last ticket, and who waits for its answer. 0: nobody waits for its answer.
    ticket: u64,
    waiting: Option<SyncSender<Answer>>,
}

/// What `path.…` takes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathParams {
    volume: String,
    path: String,
    #[serde(default)]
    force: bool,
}

impl Changes {
    /// The engine has answered; the answer, if nobody waits for it.
    pub fn answered(&self, ticket: u64, answer: Answer) -> Option<Answer> {
        let mut asked = self.asked();
        let awaited = ticket > 0 && ticket == asked.ticket;
        let waiting = asked.waiting.take_if(|_| awaited);
        let Some(waiting) = waiting else {
            return Some(answer);
        };
        // Who asked gives up under this lock.
        let _ = waiting.try_send(answer);
        None
    }

    /// For a user: until it is dropped, nobody else changes paths.
    pub fn alone(&self) -> Alone<'_> {
        let mut turn = self.turn();
        turn.users += 1;
        while turn.taken {
            turn = self.wait(turn);
        }
        turn.users -= 1;
        turn.taken = true;
        Alone(self)
    }

    /// The same, if nobody changes anything just now.
    pub fn alone_now(&self) -> Option<Alone<'_>> {
        let mut turn = self.turn();
        let free = !core::mem::replace(&mut turn.taken, true);
        // Only where it is: one that is dropped ends another one's turn.
        free.then(|| Alone(self))
    }

    /// The same for one change that no user asked for: all users who wait come first.
    pub fn alone_at_last(&self) -> Alone<'_> {
        let mut turn = self.turn();
        while turn.taken || turn.users > 0 {
            turn = self.wait(turn);
        }
        turn.taken = true;
        Alone(self)
    }

    /// The same, unless somebody wants to `stop` first, which is asked ten times a second.
    pub fn alone_at_last_unless(&self, stop: &dyn Fn() -> bool) -> Option<Alone<'_>> {
        let mut turn = self.turn();
        while turn.taken || turn.users > 0 {
            if stop() {
                return None;
            }
            let waited = self.free.wait_timeout(turn, TICK);
            turn = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        turn.taken = true;
        Some(Alone(self))
    }

    fn wait<'a>(&self, turn: MutexGuard<'a, Turn>) -> MutexGuard<'a, Turn> {
        let waited = self.free.wait(turn);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        // Every change to it is one assignment, so a panic leaves nothing half done.
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service {
    /// One of the methods `path.…`.
    pub fn change_path(&self, verb: &str, params: PathParams) -> Result<Value, Failure> {
        let _alone = self.changes.alone();
        let volume = self.state().volumes.number(&params.volume)?;
        self.state().has_paths(volume)?;
        if verb == "add" {
            let uri: PathUri = params
                .path
                .parse()
                .map_err(|error| Failure::params(format!("\"{}\": {error}", params.path)))?;
            let keys = PathKeys::from(uri);
            let path = self.add_path(volume, keys).map_err(Failure::refused)?;
            return Ok(self.told(volume, path, &params, "added"));
        }
        let path = find(&self.state(), volume, &params)?;
        if verb == "remove" {
            self.spare_discovered(volume, path)?;
        }
        let (done, change) = match verb {
            "remove" => ("removed", None),
            "fail" => ("failed", Some(Change::FailPath(volume, path, params.force))),
            "restore" => ("restored", Some(Change::RestorePath(volume, path))),
            "drain" => (
                "drained",
                Some(Change::DrainPath(volume, path, params.force)),
            ),
            other => return Err(Failure::method(&format!("path.{other}"))),
        };
        let made = match change {
            None => self.remove_path(volume, path, params.force),
            Some(change) => self.set_aside(volume, path, done, change),
        };
        made.map_err(Failure::refused)?;
        Ok(self.told(volume, path, &params, done))
    }

    /// A path that discovery tells of would be there again at once.
    fn spare_discovered(&self, volume: u16, path: PathIndex) -> Result<(), Failure> {
        let offers = self.discovery.offers();
        let state = self.state();
        let it = &state.volumes[volume];
        let at = it.places.iter().position(|place| *place == path.0);
        let uri = at.map(|at| &it.of.paths[at].uri);
        let named = |uri: &PathUri| self.ends.addresses(uri);
        let by = uri.and_then(|uri| teller(&it.of, uri, &offers, named));
        match uri.zip(by.map(in_words)) {
            Some((uri, by)) => Err(Failure::refused(format!(
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

    /// A path more for a volume, in use on every core.
    ///
    /// # Errors
    /// Why nothing has changed.
    pub fn add_path(&self, volume: u16, keys: PathKeys) -> Result<PathIndex, String> {
        let local = !keys.uri.kind().is_namespace();
        let uri = keys.uri.to_string();
        let (wait_ns, there, others, quiesce_ns) = {
            let state = self.state();
            let quiesce_ns = state.volumes[volume].of.queue_quiesce_ns();
            let paths = &state.volumes[volume].of.paths;
            let there = paths.iter().any(|it| it.uri.to_string() == uri);
            let wait_ns = state.configured.connect_timeout.0.saturating_mul(3);
            (wait_ns, there, !paths.is_empty(), quiesce_ns)
        };
        if there {
            return Err(format!("{uri} is a path of this volume already"));
        }
        self.apart(volume, &keys.uri)?;
        if local && others {
            let why = "a local device is no other path's data; give it a volume of its own";
            return Err(format!("{uri}: {why}"));
        }
        let config = self.lead(&keys, FileAccess::Shared, quiesce_ns)?;
        // Writes may go there before it is known that it has joined (T13).
        self.state().volumes[volume].joining = Some(keys);
        self.mark_paths(volume);
        let changed = self.ask(Change::AddPath(volume, Box::new(config)), wait_ns);
        let path = changed.map(|it| it.path.unwrap_or(PathIndex(0)));
        let mut state = self.state();
        let it = &mut state.volumes[volume];
        let keys = it.joining.take();
        if let Ok(path) = path {
            it.of.paths.extend(keys);
            it.places.push(path.0);
        }
        drop(state);
        self.mark_paths(volume);
        path
    }

    /// Whether no other volume has the namespace that a path leads to.
    ///
    /// # Errors
    /// Which has.
    fn apart(&self, volume: u16, uri: &PathUri) -> Result<(), String> {
        let state = self.state();
        let mut others = state.volumes.iter().filter(|(it, _)| *it != volume);
        let other = others.find_map(|(_, it)| Some((it, twice::shared(&it.of, uri)?)));
        match other {
            Some((it, theirs)) => Err(twice::line(&uri.to_string(), &it.of.name, &theirs)),
            None => Ok(()),
        }
    }

    /// A path leaves a volume.
    ///
    /// # Errors
    /// Why it doesn't.
    pub fn remove_path(&self, volume: u16, path: PathIndex, force: bool) -> Result<(), String> {
        let (wait_ns, more_ns) = {
            let state = self.state();
            let keys = &state.configured;
            let leave_ns = keys.connect_timeout.0.saturating_mul(3);
            (
                keys.drain_timeout.0,
                keys.io_timeout.0.saturating_add(leave_ns),
            )
        };
        let change = Change::RemovePath {
            volume,
            path,
            force,
        };
        // A controller has its own time to flush, to close its queue and to shut down; an answer
        // that nobody awaits would leave a path here that is gone.
        self.ask_for(change, wait_ns, Duration::from_nanos(more_ns))?;
        let mut state = self.state();
        let it = &mut state.volumes[volume];
        if let Some(at) = it.places.iter().position(|place| *place == path.0) {
            it.places.remove(at);
            let gone = it.of.paths.remove(at);
            let uri = gone.uri.to_string();
            it.aside.remove(&uri);
            it.found.remove(&uri);
        }
        drop(state);
        self.mark_paths(volume);
        Ok(())
    }

    /// A path is failed, drained or restored.
    fn set_aside(
        &self,
        volume: u16,
        path: PathIndex,
        word: &str,
        change: Change,
    ) -> Result<(), String> {
        let (wait_ns, uri) = {
            let state = self.state();
            let it = &state.volumes[volume];
            let at = it.places.iter().position(|place| *place == path.0);
            let uri = at.map(|at| it.of.paths[at].uri.clone());
            (state.configured.drain_timeout.0, uri)
        };
        let queue = uri.as_ref().and_then(|uri| self.ends.queue(uri));
        let was_failed = self.is_failed(volume, uri.as_ref());
        // Else the server would keep another queue for it.
        let want = |wanted| queue.iter().for_each(|queue| queue.set_wanted(wanted));
        match word {
            "failed" => want(false),
            "restored" => want(true),
            _ => {}
        }
        let made = self.ask(change, wait_ns);
        if word == "failed" && made.is_err() {
            want(!was_failed);
        }
        // One that is still busy goes on draining; one that was refused doesn't.
        let drains = word == "drained"
            && made.is_err()
            && self.path_state(volume, path) == Some(PathState::Draining);
        let mut state = self.state();
        let aside = &mut state.volumes[volume].aside;
        if let Some(uri) = uri.map(|uri| uri.to_string()) {
            match word {
                "restored" => drop(aside.remove(&uri)),
                _ if made.is_ok() || drains => {
                    aside.insert(uri, word.to_owned());
                }
                _ => {}
            }
        }
        made.map(|_| ())
    }

    /// Whether a path was failed by hand.
    fn is_failed(&self, volume: u16, uri: Option<&PathUri>) -> bool {
        let state = self.state();
        let aside = &state.volumes[volume].aside;
        let word = uri.and_then(|uri| aside.get(&uri.to_string()));
        word.is_some_and(|word| word == "failed")
    }

    /// Whether core 0 has a path in use.
    pub fn is_live(&self, volume: u16, path: PathIndex) -> bool {
        self.path_state(volume, path) == Some(PathState::Live)
    }

    fn path_state(&self, volume: u16, path: PathIndex) -> Option<PathState> {
        let cores = self.senders.report().unwrap_or_default();
        let paths = cores.first()?.volumes.get(usize::from(volume))?;
        Some(paths.get(usize::from(path.0))?.state)
    }

    /// Paths that were failed or drained before a restart are so again.
    pub fn put_aside(&self) {
        let state = self.state();
        for (volume, running) in state.volumes.iter() {
            for (keys, place) in running.of.paths.iter().zip(&running.places) {
                let path = PathIndex(*place);
                let change = match running.aside.get(&keys.uri.to_string()).map(String::as_str) {
                    Some("failed") => {
                        let queue = self.ends.queue(&keys.uri);
                        queue.iter().for_each(|queue| queue.set_wanted(false));
                        Change::FailPath(volume, path, true)
                    }
                    Some(_) => Change::DrainPath(volume, path, true),
                    None => continue,
                };
                self.senders.change(0, change, WAIT_NS_MAX);
            }
        }
    }

    /// What a volume's paths are now holds after a restart.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn keep_paths(&self, volume: u16) -> anyhow::Result<()> {
        let mut state = self.state();
        let it = &state.volumes[volume];
        let name = it.of.name.clone();
        let choice = PathChoice {
            configured: uris(state.configured.paths_of(&name)),
            chosen: it.kept(),
            aside: it.aside.clone(),
        };
        state.choices.keep_paths(&name, choice)
    }

    /// Asks core 0 for a change and waits for its answer.
    fn ask(&self, change: Change, wait_ns: u64) -> Answer {
        self.ask_for(change, wait_ns, Duration::ZERO)
    }

    /// The same; the answer may come so much later than the time that the change may take.
    pub fn ask_for(&self, change: Change, wait_ns: u64, later: Duration) -> Answer {
        let wait_ns = wait_ns.min(WAIT_NS_MAX);
        let (to, from) = sync_channel(1);
        let ticket = {
            let mut asked = self.changes.asked();
            asked.ticket += 1;
            asked.waiting = Some(to);
            asked.ticket
        };
        self.senders.change(ticket, change, wait_ns);
        let limit = Duration::from_nanos(wait_ns) + later + GRACE;
        from.recv_timeout(limit).unwrap_or_else(|_| {
            self.changes.asked().waiting = None;
            let last = from.try_recv();
            last.unwrap_or_else(|_| Err("the engine does not answer; see stat".into()))
        })
    }
}

/// The URIs of paths.
pub fn uris(paths: &[PathKeys]) -> Vec<String> {
    paths.iter().map(|keys| keys.uri.to_string()).collect()
}

/// A path of a volume by its URI, or by its number.
fn find(state: &State, volume: u16, params: &PathParams) -> Result<PathIndex, Failure> {
    let it = &state.volumes[volume];
    let there = uris(&it.of.paths);
    let places = &it.places;
    let mut all = there.iter().zip(places);
    let number: Option<u8> = params.path.parse().ok();
    let found = all.find(|(uri, place)| **uri == params.path || Some(**place) == number);
    found.map(|(_, place)| PathIndex(*place)).ok_or_else(|| {
        let list: Vec<_> = there
            .iter()
            .zip(places)
            .map(|(uri, at)| format!("{at} {uri}"))
            .collect();
        let text = format!(
            "{} has no path \"{}\"; it has {}",
            params.volume,
            params.path,
            list.join(", ")
        );
        Failure::params(text)
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
    use std::sync::Arc;

    #[test]
    fn users_come_before_discovery() {
        let changes = Arc::new(Changes::default());
        let (to, order) = std::sync::mpsc::channel();
        let first = changes.alone_at_last();
        let (mine, told) = (Arc::clone(&changes), to.clone());
        let discovery = std::thread::spawn(move || {
            for _ in 0..3 {
                let _alone = mine.alone_at_last();
                told.send("discovery").unwrap();
            }
        });
        let users: Vec<_> = (0..3)
            .map(|_| {
                let (mine, told) = (Arc::clone(&changes), to.clone());
                std::thread::spawn(move || {
                    let _alone = mine.alone();
                    told.send("user").unwrap();
                })
            })
            .collect();
        while changes.turn().users < 3 {
            std::thread::yield_now();
        }
        drop(first);
        discovery.join().unwrap();
        users.into_iter().for_each(|it| it.join().unwrap());
        drop(to);
        let order: Vec<_> = order.iter().collect();
        assert_eq!(order[..3], ["user"; 3], "{order:?}");
        assert_eq!(order[3..], ["discovery"; 3], "{order:?}");
    }

    #[test]
    fn who_wants_to_be_alone_now_gets_nothing_while_another_is_and_disturbs_nobody() {
        let changes = Arc::new(Changes::default());
        let first = changes.alone();
        let mine = Arc::clone(&changes);
        // Elsewhere: who waits for its own lock waits for ever.
        let (to, answer) = std::sync::mpsc::channel();
        std::thread::spawn(move || to.send(mine.alone_now().is_none()));
        let answer = answer.recv_timeout(std::time::Duration::from_secs(60));
        if answer.is_err() {
            std::mem::forget(first); // it would wait too
            panic!("it waits for itself");
        }
        assert_eq!(answer, Ok(true));
        assert!(changes.turn().taken, "the first one is alone yet");
        drop(first);
        assert!(changes.alone_now().is_some());
        assert!(!changes.turn().taken);
    }
}
