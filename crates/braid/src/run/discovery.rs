//! Paths that come and go by discovery, while the engine runs.
//!
//! * [`mod@plan`]: what is to be done with a volume's paths; `turns`: what of it is tried next
//! * `follow`: the thread that changes paths, as `path add` and `path remove` do
//! * `book`: what is known of all controllers, and what they tell; `sources`: those to begin with
//! * here: the sessions, to which another thread listens
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
mod book;
mod follow;
pub mod plan;
mod sources;
mod turns;

use super::config::Config;
use super::desired::DesiredVolume;
use super::marks::Marks;
use super::service::Service;
use crate::discover::session;
use crate::log;
use crate::uri::PathUri;
use crate::uri::discovery::in_words;
use anyhow::Context;
use book::Book;
use engine::discovery::{DiscoveryConfig, DiscoveryControl, DiscoveryEvent, Endpoint};
use engine::seldom::Seldom;
use nvme::host::{Digests, HostIdentity};
use plan::{BEFORE, Offers, plan};
use policy::limits::PATHS_MAX;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;
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
    /// The service that it belongs to.
    service: OnceLock<Weak<Service>>,
    book: Mutex<Book>,
    news: Condvar,
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

    /// The controllers, for `stat`.
    pub fn show(&self) -> Vec<Value> {
        self.book().show()
    }

    fn is_closed(&self) -> bool {
        self.book().closed
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
        for (uri, why) in &sources.unresolved {
            log::say(format!("discovery: {uri}: {why:#}; it is tried again"));
        }
        self.set_sources(sources);
        Ok(())
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

    /// A new volume without paths gets some of those that are told, in turn by who tells of them.
    /// Announced paths stay, so that it leaves room for others.
    pub fn discover_paths_of(&self, it: &mut DesiredVolume) {
        if !it.paths.is_empty() {
            return;
        }
        let named = |uri: &PathUri| self.ends.addresses(uri);
        let plan = plan(
            &it.of,
            &BTreeMap::new(),
            &[],
            &self.discovery.offers(),
            named,
        );
        let unheard = self.discovery.unheard();
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.keep(plan.named(), now);
        while it.paths.len() < OPENING_MAX {
            let places = Places::new(it.paths.len(), &it.found(), &plan, &unheard);
            let Some((uri, by)) = queue.next(&plan, &places, now) else {
                break;
            };
            queue.done(&uri.to_string());
            it.add_found(uri, in_words(&by));
        }
    }

    fn listen_to(&self, to: &runtime::Sender<DiscoveryControl>, events: &Receiver<DiscoveryEvent>) {
        let (mut lines, begun) = (Seldom::new(LINES_MAX), Instant::now());
        for event in events {
            let line =
                session::lead(to, event).and_then(|event| self.discovery.book().heard(event));
            if let Some(line) = line {
                say_seldom(&mut lines, begun, &format!("discovery: {line}"));
            }
            self.discovery.news.notify_all();
        }
    }
}

/// A volume gets the paths that discovery told an engine of which was not stopped cleanly.
pub fn remember(marks: &Marks, it: &mut DesiredVolume) {
    let room = PATHS_MAX.saturating_sub(it.paths.len());
    for uri in marks.discovered(&it.of).into_iter().take(room) {
        log::say(format!(
            "{}: path {uri}: {BEFORE} used it, and may have left writes there that were not \
             flushed: it is connected, whether or not discovery tells of it yet",
            it.of.name
        ));
        it.add_found(uri, BEFORE.to_owned());
    }
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
