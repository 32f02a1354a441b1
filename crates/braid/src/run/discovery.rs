//! Paths that come and go by discovery, while the engine runs.
//!
//! * [`mod@plan`]: what is to be done with a volume's paths; `turns`: what of it is tried next
//! * `follow`: the thread that changes paths, as `path add` and `path remove` do
//! * here: the sessions, and what they tell, of which another thread takes note
//!
//! # Contract
//! A volume that names its subsystem gets every path to it that is told, once the path was found to
//! show the same namespace (T31, T33); one that is refused is tried again, with growing pauses. A
//! path that is not told any more leaves as the volume's `gone` says, but never as the last one
//! that is usable, and never by force: a log may be wrong, and data that a lost controller never
//! flushed stay in doubt until it is back. Paths of the file and those added by hand stay.
//!
//! Nothing of this is kept: an engine that starts asks again. But after one that was not stopped
//! cleanly it has the paths that this one had, until all discovery controllers were heard: they may
//! have writes that were not flushed (T13).
mod awaited;
mod follow;
pub mod plan;
mod turns;

use super::config::{Config, PathKeys, Volume};
use super::marks::Marks;
use super::service::Service;
use crate::discover::session::{self, Seeker};
use crate::log;
use crate::uri::PathUri;
use crate::uri::discovery::{DiscoveryUri, in_words};
use anyhow::Context;
use engine::discovery::{
    DiscoveryConfig, DiscoveryControl, DiscoveryEvent, Endpoint, Found, Offer, offer,
};
use engine::seldom::Seldom;
use nvme::host::{Digests, DiscoveryLog, HostIdentity};
use plan::{BEFORE, Offers, plan};
use policy::limits::PATHS_MAX;
use runtime::Handle;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use turns::{Places, Queue};

/// First and longest wait before a lost discovery controller is connected again, ns.
const RECONNECT_MIN_NS: u64 = 1_000_000_000;
const RECONNECT_MAX_NS: u64 = 60_000_000_000;
/// How often a log is read whose controller can't say that it has changed, ns.
const POLL_NS: u64 = 60_000_000_000;
/// Lines in a period ([`Seldom`]) about sessions, and as many about paths that are refused.
const LINES_MAX: u32 = 64;
/// Most paths that a new volume is opened with: half of all places.
const OPENING_MAX: usize = PATHS_MAX / 2;

/// Sessions of a running engine.
#[derive(Default)]
pub struct Discovery {
    /// Whose it is.
    service: OnceLock<Weak<Service>>,
    book: Mutex<Book>,
    news: Condvar,
}

/// How long a name that could not be resolved is left alone.
const RESOLVE_AGAIN: Duration = Duration::from_secs(10);

/// What is known.
#[derive(Default)]
struct Book {
    /// While there is any source.
    sessions: Option<Handle<Seeker>>,
    /// By number; where each is.
    sources: BTreeMap<u32, (DiscoveryUri, Endpoint)>,
    /// The last number.
    last: u32,
    /// Those whose names could not be resolved, why, and when that is tried again.
    unresolved: Vec<(DiscoveryUri, String, Instant)>,
    /// What is told, and who told of it first.
    offers: BTreeMap<Offer, Endpoint>,
    controllers: BTreeMap<Endpoint, Controller>,
    /// Those that are asked: sources and who they refer to, as many as there are places.
    asked: BTreeSet<Endpoint>,
    /// Something is to be looked at.
    changed: bool,
    closed: bool,
}

/// What is known of one discovery controller.
#[derive(Default)]
struct Controller {
    generation: Option<u64>,
    entries: usize,
    /// Ways to subsystems that it tells of.
    tells: BTreeSet<Offer>,
    /// Those that it refers to.
    refers: BTreeSet<Endpoint>,
    why: Option<String>,
}

/// Discovery controllers to ask.
pub struct Sources {
    wanted: Vec<DiscoveryUri>,
    /// Those that are not asked yet, and where they are.
    new: Vec<(DiscoveryUri, Endpoint)>,
    /// Those of them whose name can't be resolved, and why.
    unresolved: Vec<(DiscoveryUri, anyhow::Error)>,
}

impl Book {
    /// How many referrals each controller is from the nearest source: by what was told last, also
    /// of those that were never reached.
    fn depths(&self) -> BTreeMap<&Endpoint, u32> {
        let mut depths = BTreeMap::new();
        let sources = self.sources.values().map(|(_, endpoint)| (endpoint, 0));
        let mut open: VecDeque<(&Endpoint, u32)> = sources.collect();
        while let Some((endpoint, depth)) = open.pop_front() {
            if depths.contains_key(endpoint) {
                continue;
            }
            depths.insert(endpoint, depth);
            let of = self.controllers.get(endpoint);
            let next = of.into_iter().flat_map(|it| &it.refers);
            open.extend(next.map(|it| (it, depth + 1)));
        }
        depths
    }

    /// A discovery controller is asked from now on; in words.
    fn begin(&mut self, uri: DiscoveryUri, endpoint: Endpoint) -> String {
        let words = format!("discovery of {uri} begun");
        self.last += 1;
        if let Some(sessions) = &self.sessions {
            let add = DiscoveryControl::Add(self.last, endpoint.clone());
            sessions.sender().send(add);
        }
        self.sources.insert(self.last, (uri, endpoint));
        words
    }

    /// Whether each discovery controller has told something once, also those that others refer to.
    fn has_heard_all(&self) -> bool {
        let sources = self.sources.values().map(|(_, endpoint)| endpoint);
        let mut asked = sources.chain(&self.asked);
        self.unresolved.is_empty() && asked.all(|it| self.has_heard(it))
    }

    fn offers(&self) -> Offers {
        let mut all = Offers::new();
        // Of a log that was just read no session may have said yet what is new in it.
        for (by, it) in &self.controllers {
            for offer in &it.tells {
                all.entry(offer.clone()).or_default().push(by.clone());
            }
        }
        for (offer, first) in &self.offers {
            let tellers = all.entry(offer.clone());
            tellers.or_insert_with(|| vec![first.clone()]);
        }
        all
    }

    fn has_heard(&self, of: &Endpoint) -> bool {
        let it = self.controllers.get(of);
        it.is_some_and(|it| it.generation.is_some())
    }
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
        self.book().offers()
    }

    /// The same, and whether each discovery controller has told something by then.
    fn told(&self) -> (Offers, bool) {
        let book = self.book();
        (book.offers(), book.has_heard_all())
    }

    /// Discovery controllers of the configuration that have not told anything yet.
    fn unheard(&self) -> Vec<Endpoint> {
        let book = self.book();
        let all = book.sources.values().map(|(_, endpoint)| endpoint);
        all.filter(|it| !book.has_heard(it)).cloned().collect()
    }

    fn is_closed(&self) -> bool {
        self.book().closed
    }

    /// The controllers, for `stat`.
    pub fn show(&self) -> Vec<Value> {
        let book = self.book();
        let depths = book.depths();
        let all = book.controllers.iter().map(|(endpoint, it)| {
            let by = book.controllers.iter();
            let by = by.filter(|(from, of)| *from != endpoint && of.refers.contains(endpoint));
            json!({
                "uri": in_words(endpoint),
                "depth": depths.get(endpoint),
                "referred_by": by.map(|(from, _)| in_words(from)).collect::<Vec<_>>(),
                "state": if it.why.is_none() { "connected" } else { "lost" },
                "why": it.why,
                "genctr": it.generation,
                "records": it.entries,
            })
        });
        let unresolved = book.unresolved.iter().map(|(uri, why, _)| {
            json!({
                "uri": uri.to_string(),
                "depth": 0,
                "state": "lost",
                "why": why,
                "genctr": null,
                "records": 0,
            })
        });
        all.chain(unresolved).collect()
    }

    /// Takes note of what the sessions say; in words, where it is worth a line.
    fn heard(&self, event: DiscoveryEvent) -> Option<String> {
        let mut book = self.book();
        match event {
            DiscoveryEvent::Read(from, _, log) => {
                let it = book.controllers.entry(from.clone()).or_default();
                let new = it.generation.is_none() || it.why.is_some();
                let (tells, refers) = usable(&log);
                *it = Controller {
                    generation: Some(log.generation),
                    entries: log.entries.len(),
                    tells,
                    refers,
                    why: None,
                };
                book.changed = true;
                let count = log.entries.len();
                new.then(|| format!("{}: connected, {count} entries", in_words(&from)))
            }
            DiscoveryEvent::Lost(endpoint, why) => {
                let line = format!("{}: {why}", in_words(&endpoint));
                book.controllers.entry(endpoint).or_default().why = Some(why);
                Some(line)
            }
            DiscoveryEvent::Asked(all) => {
                // What others told holds no more, be they gone already or not.
                book.controllers
                    .retain(|endpoint, _| all.contains(endpoint));
                book.asked = all;
                book.changed = true;
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
            DiscoveryEvent::Lead(..) | DiscoveryEvent::Left(_) | DiscoveryEvent::Finished => None,
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
    /// Asks the discovery controllers of the configuration; names that can't be resolved are tried
    /// again.
    ///
    /// # Errors
    /// No reactor.
    pub fn discover_configured(self: &Arc<Self>) -> anyhow::Result<()> {
        let _ = self.discovery.service.set(Arc::downgrade(self));
        let config = self.state().configured.clone();
        let sources = self.look_up(&config)?;
        for (_, why) in &sources.unresolved {
            log::say(format!("{why:#}; it is tried again"));
        }
        self.set_sources(sources);
        Ok(())
    }

    /// Where the discovery controllers of a configuration are; what there must be to ask them, is.
    ///
    /// # Errors
    /// A name that can't be resolved, or no reactor; then nothing has changed.
    pub fn find_sources(&self, config: &Config) -> anyhow::Result<Sources> {
        let mut sources = self.look_up(config)?;
        match sources.unresolved.pop() {
            Some((_, why)) => Err(why),
            None => Ok(sources),
        }
    }

    /// The same where names may be unresolved.
    fn look_up(&self, config: &Config) -> anyhow::Result<Sources> {
        let there: Vec<DiscoveryUri> = {
            let book = self.discovery.book();
            let sources = book.sources.values().map(|(uri, _)| uri);
            let unresolved = book.unresolved.iter().map(|(uri, ..)| uri);
            sources.chain(unresolved).cloned().collect()
        };
        let wanted: Vec<_> = config.discoveries.iter().map(|it| it.uri.clone()).collect();
        let (mut new, mut unresolved) = (Vec::new(), Vec::new());
        for uri in wanted.iter().filter(|uri| !there.contains(uri)) {
            match uri.resolve().with_context(|| format!("discovery: {uri}")) {
                Ok(endpoint) => new.push((uri.clone(), endpoint)),
                Err(why) => unresolved.push((uri.clone(), why)),
            }
        }
        if !new.is_empty() || !unresolved.is_empty() {
            self.begin_sessions(config)?;
        }
        Ok(Sources {
            wanted,
            new,
            unresolved,
        })
    }

    /// Asks these from now on, and no others; in words.
    pub fn set_sources(&self, sources: Sources) -> Vec<String> {
        let mut words = Vec::new();
        let mut book = self.discovery.book();
        if let Some(to) = book.sessions.as_ref().map(Handle::sender) {
            book.sources.retain(|number, (uri, _)| {
                let stays = sources.wanted.contains(uri);
                if !stays {
                    to.send(DiscoveryControl::Remove(*number));
                    words.push(format!("discovery of {uri} ended"));
                }
                stays
            });
            book.unresolved
                .retain(|(uri, ..)| sources.wanted.contains(uri));
            for (uri, endpoint) in sources.new {
                words.push(book.begin(uri, endpoint));
            }
            let at = Instant::now() + RESOLVE_AGAIN;
            let unresolved = sources.unresolved.into_iter();
            let unresolved = unresolved.map(|(uri, why)| (uri, format!("{why:#}"), at));
            book.unresolved.extend(unresolved);
        }
        drop(book);
        self.discovery.look_again();
        words
    }

    /// Tries the names again that could not be resolved; when to do so the next time.
    fn resolve_again(&self) -> Option<Instant> {
        let now = Instant::now();
        let due: Vec<DiscoveryUri> = {
            let book = self.discovery.book();
            let due = book.unresolved.iter().filter(|(.., at)| *at <= now);
            due.map(|(uri, ..)| uri.clone()).collect()
        };
        for uri in due {
            let resolved = uri.resolve();
            let mut book = self.discovery.book();
            let mut places = book.unresolved.iter();
            let Some(place) = places.position(|(it, ..)| *it == uri) else {
                continue; // not wanted any more
            };
            match resolved {
                Ok(endpoint) => {
                    book.unresolved.swap_remove(place);
                    log::say(book.begin(uri, endpoint));
                }
                Err(why) => {
                    let why = format!("{why:#}");
                    book.unresolved[place] = (uri, why, Instant::now() + RESOLVE_AGAIN);
                }
            }
        }
        let book = self.discovery.book();
        book.unresolved.iter().map(|(.., at)| *at).min()
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

    /// A new volume without paths gets some of those that are told, in turn by who tells of them;
    /// and who told of each, by URI. What it gets stays, so that it leaves room for others.
    pub fn with_discovered(&self, of: &Volume) -> (Volume, BTreeMap<String, String>) {
        let (mut of, mut found) = (of.clone(), BTreeMap::new());
        if !of.paths.is_empty() {
            return (of, found);
        }
        let named = |uri: &PathUri| self.ends.addresses(uri);
        let plan = plan(&of, &found, &[], &self.discovery.offers(), named);
        let unheard = self.discovery.unheard();
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.keep(plan.named(), now);
        while of.paths.len() < OPENING_MAX {
            let places = Places::new(of.paths.len(), &found, &plan, &unheard);
            let Some((uri, by)) = queue.next(&plan, &places, now) else {
                break;
            };
            queue.done(&uri.to_string());
            found.insert(uri.to_string(), in_words(&by));
            of.paths.push(PathKeys::from(uri));
        }
        (of, found)
    }

    fn listen_to(&self, to: &runtime::Sender<DiscoveryControl>, events: &Receiver<DiscoveryEvent>) {
        let (mut lines, begun) = (Seldom::new(LINES_MAX), Instant::now());
        for event in events {
            let line = session::lead(to, event).and_then(|event| self.discovery.heard(event));
            if let Some(line) = line {
                say_seldom(&mut lines, begun, &format!("discovery: {line}"));
            }
            self.discovery.news.notify_all();
        }
    }
}

/// A volume gets the paths that discovery told an engine of which was not stopped cleanly; who told
/// of each, by URI.
pub fn remember(marks: &Marks, of: &mut Volume) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let room = PATHS_MAX.saturating_sub(of.paths.len());
    for uri in marks.discovered(of).into_iter().take(room) {
        log::say(format!(
            "{}: path {uri}: {BEFORE} used it, and may have left writes there that were not \
             flushed: it is connected, whether or not discovery tells of it yet",
            of.name
        ));
        found.insert(uri.to_string(), BEFORE.to_owned());
        of.paths.push(PathKeys::from(uri));
    }
    found
}

/// A line of those that strangers can cause; `begun`: when the first could have been said.
fn say_seldom(lines: &mut Seldom, begun: Instant, line: &str) {
    let now_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    match lines.one_more(now_ns) {
        Some(0 | 1) => log::say(line.to_owned()),
        Some(count) => log::say(format!("{line} (and {} more such lines)", count - 1)),
        None => {}
    }
}

/// What of a log can be used: ways to subsystems, and other discovery controllers.
fn usable(log: &DiscoveryLog) -> (BTreeSet<Offer>, BTreeSet<Endpoint>) {
    let (mut tells, mut refers) = (BTreeSet::new(), BTreeSet::new());
    for entry in &log.entries {
        match offer(entry) {
            Ok(Found::Subsystem(address)) => {
                let nqn = entry.subnqn.clone();
                tells.insert(Offer { nqn, address });
            }
            Ok(Found::Referral(endpoint)) => {
                refers.insert(endpoint);
            }
            _ => {}
        }
    }
    (tells, refers)
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
