//! Paths that come and go by discovery, while the engine runs.
//!
//! * [`mod@plan`]: what is to be done with a volume's paths
//! * here: the sessions, what they tell, and two threads: one takes note of it, the other changes
//!   paths, as `path add` and `path remove` do
//!
//! # Contract
//! A volume that names its subsystem gets every path to it that is told, once the path was found to
//! show the same namespace (T31, T33); one that is refused is tried again, with growing pauses. A
//! path that is not told any more leaves as the volume's `gone` says, but never as the last one
//! that is usable, and never by force: a log may be wrong, and data that a lost controller never
//! flushed stay in doubt until it is back. Paths of the file and those added by hand stay.
//!
//! Nothing of this is kept: an engine that starts asks again.
pub mod plan;

use super::config::{Config, Gone, PathKeys, Volume};
use super::service::Service;
use crate::discover::session::{self, Seeker};
use crate::log;
use crate::uri::PathUri;
use crate::uri::discovery::{DiscoveryUri, in_words};
use anyhow::Context;
use engine::discovery::{DiscoveryConfig, DiscoveryControl, DiscoveryEvent, Endpoint};
use engine::host::Change;
use nvme::host::{Digests, HostIdentity};
use plan::{Offers, plan};
use policy::PathIndex;
use policy::limits::PATHS_MAX;
use runtime::Handle;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// First pause before what was refused is tried again, and the longest: for paths that are to join,
/// and for those that are to leave, which costs nobody anything.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_JOIN_MAX: Duration = Duration::from_secs(60);
const PAUSE_LEAVE_MAX: Duration = Duration::from_secs(4);
/// First and longest wait before a lost discovery controller is connected again, ns.
const RECONNECT_MIN_NS: u64 = 1_000_000_000;
const RECONNECT_MAX_NS: u64 = 60_000_000_000;
/// How often a log is read whose controller can't say that it has changed, ns.
const POLL_NS: u64 = 60_000_000_000;

/// Sessions of a running engine.
#[derive(Default)]
pub struct Discovery {
    /// Whose it is.
    service: OnceLock<Weak<Service>>,
    book: Mutex<Book>,
    news: Condvar,
}

/// What is known.
#[derive(Default)]
struct Book {
    /// While there is any source.
    sessions: Option<Handle<Seeker>>,
    /// By number.
    sources: BTreeMap<u32, DiscoveryUri>,
    /// The last number.
    last: u32,
    offers: Offers,
    controllers: BTreeMap<Endpoint, Controller>,
    /// Something is to be looked at.
    changed: bool,
    closed: bool,
}

/// What is known of one discovery controller.
#[derive(Default)]
struct Controller {
    depth: u8,
    generation: Option<u64>,
    entries: usize,
    why: Option<String>,
}

/// Discovery controllers to ask.
pub struct Sources {
    wanted: Vec<DiscoveryUri>,
    /// Those that are not asked yet, and where they are.
    new: Vec<(DiscoveryUri, Endpoint)>,
}

/// What could not be done with a path, and when it is tried again.
struct Later {
    at: Instant,
    pause: Duration,
    why: String,
}

impl Discovery {
    fn book(&self) -> MutexGuard<'_, Book> {
        // Every change to it is one assignment, so a panic leaves nothing half done.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Volumes or their paths are others now.
    pub fn look_again(&self) {
        self.book().changed = true;
        self.news.notify_all();
    }

    /// All sessions end.
    pub fn close(&self) {
        let mut book = self.book();
        book.closed = true;
        if let Some(sessions) = &book.sessions {
            sessions.sender().send(DiscoveryControl::Stop);
        }
        self.news.notify_all();
    }

    /// Whether discovery tells of this path.
    pub fn tells(&self, uri: &PathUri) -> bool {
        let book = self.book();
        let mut offers = book.offers.keys();
        offers.any(|offer| plan::address(uri, &offer.nqn) == Some(offer.address))
    }

    /// All that is told now.
    pub fn offers(&self) -> Offers {
        self.book().offers.clone()
    }

    /// The controllers, for `stat`.
    pub fn show(&self) -> Vec<Value> {
        let book = self.book();
        let all = book.controllers.iter().map(|(endpoint, it)| {
            json!({
                "uri": in_words(endpoint),
                "depth": it.depth,
                "state": if it.why.is_none() { "connected" } else { "lost" },
                "why": it.why,
                "genctr": it.generation,
                "records": it.entries,
            })
        });
        all.collect()
    }

    /// Takes note of what the sessions say; in words, where it is worth a line.
    fn heard(&self, event: DiscoveryEvent) -> Option<String> {
        let mut book = self.book();
        match event {
            DiscoveryEvent::Read(from, depth, log) => {
                let it = book.controllers.entry(from.clone()).or_default();
                let new = it.generation.is_none() || it.why.is_some();
                *it = Controller {
                    depth,
                    generation: Some(log.generation),
                    entries: log.entries.len(),
                    why: None,
                };
                let count = log.entries.len();
                new.then(|| format!("{}: connected, {count} entries", in_words(&from)))
            }
            DiscoveryEvent::Lost(endpoint, why) => {
                let line = format!("{}: {why}", in_words(&endpoint));
                book.controllers.entry(endpoint).or_default().why = Some(why);
                Some(line)
            }
            DiscoveryEvent::Left(endpoint) => {
                book.controllers.remove(&endpoint);
                None
            }
            DiscoveryEvent::TooMany(endpoints) => {
                let all: Vec<_> = endpoints.iter().map(in_words).collect();
                let all = all.join(", ");
                Some(format!("too many referrals, or too far; not asked: {all}"))
            }
            DiscoveryEvent::Appeared(offer, by) => {
                book.offers.insert(offer, by);
                book.changed = true;
                None
            }
            DiscoveryEvent::Gone(offer) => {
                book.offers.remove(&offer);
                book.changed = true;
                None
            }
            DiscoveryEvent::Lead(..) | DiscoveryEvent::Finished => None,
        }
    }

    /// Waits until something is to be looked at, or that time; false: it is over.
    fn wait(&self, until: Option<Instant>) -> bool {
        let mut book = self.book();
        while !book.closed && !book.changed {
            let left = until.map(|at| at.saturating_duration_since(Instant::now()));
            book = match left {
                Some(left) if left.is_zero() => break,
                Some(left) => {
                    let waited = self.news.wait_timeout(book, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.news.wait(book);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
        book.changed = false;
        !book.closed
    }
}

impl Service {
    /// Asks the discovery controllers of the configuration.
    ///
    /// # Errors
    /// A name that can't be resolved, or no reactor.
    pub fn discover_configured(self: &Arc<Self>) -> anyhow::Result<()> {
        let _ = self.discovery.service.set(Arc::downgrade(self));
        let config = self.state().configured.clone();
        let sources = self.find_sources(&config)?;
        self.set_sources(sources);
        Ok(())
    }

    /// Where the discovery controllers of a configuration are; what there must be to ask them, is.
    ///
    /// # Errors
    /// A name that can't be resolved, or no reactor; then nothing has changed.
    pub fn find_sources(&self, config: &Config) -> anyhow::Result<Sources> {
        let there: Vec<DiscoveryUri> = self.discovery.book().sources.values().cloned().collect();
        let wanted: Vec<_> = config.discoveries.iter().map(|it| it.uri.clone()).collect();
        let new = wanted.iter().filter(|uri| !there.contains(uri));
        let new = new.map(|uri| {
            let endpoint = uri.resolve().with_context(|| format!("discovery: {uri}"))?;
            Ok((uri.clone(), endpoint))
        });
        let new = new.collect::<anyhow::Result<Vec<_>>>()?;
        if !new.is_empty() {
            self.begin_sessions(config)?;
        }
        Ok(Sources { wanted, new })
    }

    /// Asks these from now on, and no others; in words.
    pub fn set_sources(&self, sources: Sources) -> Vec<String> {
        let mut words = Vec::new();
        let mut book = self.discovery.book();
        if let Some(to) = book.sessions.as_ref().map(Handle::sender) {
            book.sources.retain(|number, uri| {
                let stays = sources.wanted.contains(uri);
                if !stays {
                    to.send(DiscoveryControl::Remove(*number));
                    words.push(format!("discovery of {uri} ended"));
                }
                stays
            });
            for (uri, endpoint) in sources.new {
                book.last += 1;
                let number = book.last;
                words.push(format!("discovery of {uri} begun"));
                book.sources.insert(number, uri);
                to.send(DiscoveryControl::Add(number, endpoint));
            }
        }
        drop(book);
        self.discovery.look_again();
        words
    }

    fn begin_sessions(&self, config: &Config) -> anyhow::Result<()> {
        if self.discovery.book().sessions.is_some() {
            return Ok(());
        }
        let service = self.discovery.service.get().and_then(Weak::upgrade);
        let service = service.context("the engine is ending")?;
        let (handle, events) = session::start(sessions(config, self.identity.clone()))?;
        let to = handle.sender();
        let listener = Arc::clone(&service);
        let listen = move || listener.listen_to(&to, &events);
        let builder = std::thread::Builder::new().name("discovery".into());
        builder.spawn(listen).context("cannot start a thread")?;
        let change = move || service.follow_discovery();
        let builder = std::thread::Builder::new().name("discovered".into());
        builder.spawn(change).context("cannot start a thread")?;
        self.discovery.book().sessions = Some(handle);
        Ok(())
    }

    /// A new volume without paths gets those that are told; and who told of each, by URI.
    pub fn with_discovered(&self, of: &Volume) -> (Volume, BTreeMap<String, String>) {
        let (mut of, mut found) = (of.clone(), BTreeMap::new());
        if of.paths.is_empty() {
            let plan = plan(&of, &found, &[], &self.discovery.offers());
            for (uri, by) in plan.missing.into_iter().take(PATHS_MAX) {
                found.insert(uri.to_string(), in_words(&by));
                of.paths.push(PathKeys::from(uri));
            }
        }
        (of, found)
    }

    fn listen_to(&self, to: &runtime::Sender<DiscoveryControl>, events: &Receiver<DiscoveryEvent>) {
        for event in events {
            let line = session::lead(to, event).and_then(|event| self.discovery.heard(event));
            if let Some(line) = line {
                log::say(format!("discovery: {line}"));
            }
            self.discovery.news.notify_all();
        }
    }

    /// Changes paths as discovery tells, until the engine ends.
    fn follow_discovery(&self) {
        let mut later = BTreeMap::new();
        let mut until = None;
        while self.discovery.wait(until) {
            let offers = self.discovery.offers();
            let names: Vec<(u16, String)> = {
                let state = self.state();
                let all = state.volumes.iter();
                all.map(|(number, it)| (number, it.of.name.clone()))
                    .collect()
            };
            later.retain(|(name, _), _| names.iter().any(|(_, it)| it == name));
            for (number, name) in &names {
                self.follow_volume(*number, name, &offers, &mut later);
            }
            until = later.values().map(|it: &Later| it.at).min();
        }
    }

    fn follow_volume(
        &self,
        number: u16,
        name: &str,
        offers: &Offers,
        later: &mut BTreeMap<(String, String), Later>,
    ) {
        let (plan, gone) = {
            let state = self.state();
            // Another may have the number by now.
            if state.volumes.number(name).ok() != Some(number) {
                return;
            }
            let it = &state.volumes[number];
            let fixed = state.configured.paths_of(name);
            (plan(&it.of, &it.found, fixed, offers), it.of.gone)
        };
        let missing = plan.missing.iter().map(|(uri, _)| uri.to_string());
        let named: Vec<String> = missing.chain(plan.surplus.iter().cloned()).collect();
        later.retain(|(of, uri), _| of != name || named.contains(uri));
        let mut attempt = |uri: &str, most, made: &mut dyn FnMut() -> Result<String, String>| {
            let key = (name.to_owned(), uri.to_owned());
            if later.get(&key).is_some_and(|it| it.at > Instant::now()) {
                return;
            }
            match made() {
                Ok(line) => {
                    log::say(format!("{name}: path {uri}: {line}"));
                    later.remove(&key);
                }
                Err(why) => {
                    let before = later.get(&key);
                    let pause = before.map_or(PAUSE_MIN, |it| (it.pause * 2).min(most));
                    if before.is_none_or(|it| it.why != why) && !why.is_empty() {
                        log::say(format!("{name}: path {uri}: {why}"));
                    }
                    let at = Instant::now() + pause;
                    later.insert(key, Later { at, pause, why });
                }
            }
        };
        // No volume takes more.
        for (uri, by) in plan.missing.iter().take(PATHS_MAX) {
            let text = uri.to_string();
            let mut made = || self.take_in(number, name, uri, by);
            attempt(&text, PAUSE_JOIN_MAX, &mut made);
        }
        for uri in &plan.surplus {
            let mut made = || self.let_go(number, name, uri, gone);
            attempt(uri, PAUSE_LEAVE_MAX, &mut made);
        }
    }

    /// A path that discovery tells of joins a volume; in words.
    ///
    /// # Errors
    /// Why it doesn't.
    fn take_in(
        &self,
        volume: u16,
        name: &str,
        uri: &PathUri,
        by: &Endpoint,
    ) -> Result<String, String> {
        let _alone = self.changes.alone();
        if self.state().volumes.number(name).ok() != Some(volume) {
            return Err(String::new());
        }
        let (text, by) = (uri.to_string(), in_words(by));
        let path = self
            .add_path(volume, PathKeys::from(uri.clone()))
            .map_err(|why| format!("discovered by {by}, and not used: {why}"))?;
        let aside = {
            let mut state = self.state();
            let it = &mut state.volumes[volume];
            it.found.insert(text.clone(), by.clone());
            it.aside.get(&text).cloned()
        };
        // As it was left by hand.
        let change = match aside.as_deref() {
            None => return Ok(format!("discovered by {by}, in use")),
            Some("failed") => Change::FailPath(volume, path, true),
            Some(_) => Change::DrainPath(volume, path, true),
        };
        self.senders.change(0, change, super::paths::WAIT_NS_MAX);
        Ok(format!(
            "discovered by {by}; it was set aside by hand, and stays so"
        ))
    }

    /// A path that nobody tells of any more leaves, if it may; in words.
    ///
    /// # Errors
    /// Why it stays; empty: that is as it should be.
    fn let_go(&self, volume: u16, name: &str, uri: &str, gone: Gone) -> Result<String, String> {
        let _alone = self.changes.alone();
        let place = {
            let state = self.state();
            if state.volumes.number(name).ok() != Some(volume) {
                return Err(String::new());
            }
            let it = &state.volumes[volume];
            let mut all = it.of.paths.iter().zip(&it.places);
            let found = all.find(|(keys, _)| keys.uri.to_string() == uri);
            found.map(|(_, place)| PathIndex(*place))
        };
        let Some(path) = place else {
            return Err(String::new());
        };
        let live = self.is_live(volume, path);
        if live && gone == Gone::KeepWhileLive {
            return Err("not told any more; it stays while it works (gone)".into());
        }
        if !self.has_other(volume, path) {
            return Err("not told any more; it stays, because no other path is usable".into());
        }
        self.remove_path(volume, path, false)
            .map_err(|why| format!("not told any more, and stays: {why}"))?;
        self.state().volumes[volume].found.remove(uri);
        Ok("not told any more; removed".into())
    }

    /// Whether a volume has another path in use.
    fn has_other(&self, volume: u16, path: PathIndex) -> bool {
        let places = self.state().volumes[volume].places.clone();
        let mut others = places.into_iter().filter(|place| *place != path.0);
        others.any(|place| self.is_live(volume, PathIndex(place)))
    }
}

fn sessions(config: &Config, identity: HostIdentity) -> DiscoveryConfig {
    DiscoveryConfig {
        identity,
        digests: Digests {
            header: config.header_digest,
            data: config.data_digest,
        },
        kato_ms: (config.discovery_keep_alive_tmo.0 / 1_000_000) as u32,
        connect_timeout_ns: config.connect_timeout.0,
        reconnect_min_ns: RECONNECT_MIN_NS,
        reconnect_max_ns: RECONNECT_MAX_NS,
        poll_ns: POLL_NS,
    }
}
