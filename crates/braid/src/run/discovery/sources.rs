//! Discovery controllers to begin with: where they are, and which are asked.
use crate::log;
use crate::run::config::Config;
use crate::run::service::Service;
use crate::uri::discovery::DiscoveryUri;
use engine::discovery::{DiscoveryControl, Endpoint};
use runtime::Handle;
use std::time::{Duration, Instant};

/// How long a name that could not be resolved is left alone.
const RESOLVE_AGAIN: Duration = Duration::from_secs(10);

/// Discovery controllers to ask.
pub struct Sources {
    wanted: Vec<DiscoveryUri>,
    /// Those that are not asked yet, and where they are.
    new: Vec<(DiscoveryUri, Endpoint)>,
    /// Those of them whose name can't be resolved, and why.
    pub(super) unresolved: Vec<(DiscoveryUri, anyhow::Error)>,
}

impl Service {
    /// Where the discovery controllers of a configuration are; what there must be to ask them, is.
    ///
    /// # Errors
    /// A name that can't be resolved, or no reactor; then nothing has changed.
    pub fn find_sources(&self, config: &Config) -> anyhow::Result<Sources> {
        let mut sources = self.look_up(config)?;
        match sources.unresolved.pop() {
            Some((uri, why)) => Err(why.context(format!("discovery: {uri}"))),
            None => Ok(sources),
        }
    }

    /// The same where names may be unresolved.
    pub(super) fn look_up(&self, config: &Config) -> anyhow::Result<Sources> {
        let there: Vec<DiscoveryUri> = {
            let book = self.discovery.book();
            let sources = book.sources.values().map(|(uri, _)| uri);
            let unresolved = book.unresolved.iter().map(|(uri, ..)| uri);
            sources.chain(unresolved).cloned().collect()
        };
        let wanted: Vec<_> = config.discoveries.iter().map(|it| it.uri.clone()).collect();
        let (mut new, mut unresolved) = (Vec::new(), Vec::new());
        for uri in wanted.iter().filter(|uri| !there.contains(uri)) {
            match uri.resolve() {
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
    pub(super) fn resolve_again(&self) -> Option<Instant> {
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
}
