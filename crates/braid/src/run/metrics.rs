//! Metrics of a running engine for Prometheus, in the text format of OpenMetrics.
//!
//! # Contract
//! Cores are asked for a report once a second at most, and only for a scraper; all scrapers of that
//! second get the same [page]. Threads of their own [serve](http) it. A reload that changes where
//! it is served listens there first, but for addresses that exclude each other; scrapers under way
//! finish.
mod http;
mod page;

use super::address::Bound;
use super::admission::{Admission, Guard, Keys, Reach, Rule};
use super::config::Config;
use super::service::Service;
use crate::control::access::Access;
use crate::control::socket::PrivateSocket;
use anyhow::Context;
use http::Server;
use serde::{Deserialize, Deserializer, de};
use serde_json::json;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long a page is served until another is made.
const PAGE_AGE: Duration = Duration::from_secs(1);

/// Names of the keys about clients.
const KEYS: Keys = Keys {
    allow: "metrics_allow",
    open: "metrics_open",
};

/// Where metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// TCP.
    Tcp(SocketAddr),
}

/// A page of metrics, or why there is none.
type Page = Result<Arc<str>, Arc<str>>;

/// Metrics of an engine.
pub struct Metrics {
    /// Set by [`Service::serve_metrics`].
    service: OnceLock<Weak<Service>>,
    server: Mutex<Option<Server>>,
    /// The last page, and when it was made.
    page: Mutex<Option<(Instant, Page)>>,
}

/// A change of what serves metrics, which can't fail any more.
pub struct MetricsChange {
    /// `None`: metrics are served no more.
    guard: Option<Guard>,
    /// Serves already; `None`: the one of now goes on.
    server: Option<Server>,
    /// Address and clients of the one of before, where it had to end first.
    ended: Option<(MetricsAddress, Guard)>,
}

impl FromStr for MetricsAddress {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            _ => text.parse().map(Self::Tcp).map_err(|_| {
                "write IP:PORT, an IPv6 address in brackets, or unix:/PATH: 127.0.0.1:9750 is \
                 loopback"
            }),
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

impl<'de> Deserialize<'de> for MetricsAddress {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let wrong = |why| de::Error::custom(format!("\"{text}\": {why}"));
        text.parse().map_err(wrong)
    }
}

impl MetricsAddress {
    fn bind(&self) -> anyhow::Result<Bound> {
        match self {
            // Its own user's; a scraper of another one uses TCP, or a directory with rights.
            Self::Unix(path) => {
                let bound = PrivateSocket::bind(path, "server of metrics", &Access::default());
                bound.map(Bound::Unix)
            }
            Self::Tcp(address) => TcpListener::bind(address)
                .map(Bound::Tcp)
                .with_context(|| format!("metrics: cannot listen on {address}")),
        }
    }

    /// Whether only one of two addresses can be listened on: they share a port, and one of them is
    /// every address.
    fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tcp(one), Self::Tcp(other)) => {
                let is_every = one.ip().is_unspecified() || other.ip().is_unspecified();
                one != other && one.port() == other.port() && one.port() != 0 && is_every
            }
            _ => false,
        }
    }

    /// Whether clients that these keys name can be those of the address.
    ///
    /// # Errors
    /// The key that can't be, and why.
    pub fn check(&self, allow: &[Rule], open: bool) -> Result<(), (&'static str, String)> {
        let admission = Admission {
            allow: allow.to_vec(),
            open,
        };
        let reach = match self {
            Self::Unix(_) => Reach::Unix,
            Self::Tcp(address) => Reach::of(address.ip()),
        };
        let checked = admission.check(reach, self, &KEYS);
        checked.map_err(|(key, why)| (key.unwrap_or("metrics"), why))
    }
}

impl Metrics {
    /// Served nowhere yet.
    pub fn new() -> Self {
        Self {
            service: OnceLock::new(),
            server: Mutex::default(),
            page: Mutex::default(),
        }
    }

    fn server(&self) -> MutexGuard<'_, Option<Server>> {
        // Every change to it is one assignment.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the server.
    pub fn close(&self) {
        drop(self.server().take());
    }

    /// The page of this second. Scrapers that come while it is made wait for it.
    fn page(&self, service: &Service) -> Page {
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, page)) = page.as_ref().filter(|(made, _)| made.elapsed() < PAGE_AGE) {
            return page.clone();
        }
        let made = service.metrics_page().map_err(|why| why.into());
        *page = Some((Instant::now(), made.clone()));
        made
    }
}

impl Service {
    /// Serves metrics where the configuration says.
    ///
    /// # Errors
    /// It can't listen there.
    pub fn serve_metrics(self: &Arc<Self>) -> anyhow::Result<()> {
        let _ = self.metrics.service.set(Arc::downgrade(self));
        let configured = self.state().configured.clone();
        let change = self.prepare_metrics(&configured)?;
        self.apply_metrics(change);
        Ok(())
    }

    /// Whether a configuration changes what serves metrics.
    pub fn changes_metrics(before: &Config, after: &Config) -> bool {
        let keys = |it: &Config| {
            let keys = (
                it.metrics.clone(),
                it.metrics_allow.clone(),
                it.metrics_open,
            );
            keys.0.clone().map(|_| keys)
        };
        keys(before) != keys(after)
    }

    /// Serves metrics also where a configuration says, unless they are there already.
    ///
    /// # Errors
    /// It can't listen there, there is no such user, or no thread or descriptor is left; then they
    /// are served as before, or the error says that they are not.
    pub fn prepare_metrics(&self, to: &Config) -> anyhow::Result<MetricsChange> {
        let mut change = MetricsChange {
            guard: None,
            server: None,
            ended: None,
        };
        let Some(address) = &to.metrics else {
            return Ok(change);
        };
        let admission = Admission {
            allow: to.metrics_allow.clone(),
            open: to.metrics_open,
        };
        let guard = admission.guard().context("metrics_allow")?;
        let is_there = {
            let server = self.metrics.server();
            server.as_ref().is_some_and(|it| it.is_at(address))
        };
        if !is_there {
            change.ended = self.end_excluded(address);
            match self.begin_metrics(address, guard.clone()) {
                Ok(server) => change.server = Some(server),
                Err(error) => {
                    return Err(match self.take_back_metrics(change) {
                        Ok(()) => error,
                        Err(why) => error.context(format!("{why:#}")),
                    });
                }
            }
        }
        change.guard = Some(guard);
        Ok(change)
    }

    /// # Errors
    /// It can't listen there, or no thread or descriptor is left.
    fn begin_metrics(&self, address: &MetricsAddress, guard: Guard) -> anyhow::Result<Server> {
        let Some(service) = self.metrics.service.get() else {
            unreachable!("metrics are served once the engine has begun");
        };
        let bound = address.bind()?;
        Server::start(address.clone(), bound, guard, Weak::clone(service))
    }

    /// Ends the server where an address can't be listened on beside its own. Returns what it takes
    /// to begin it again.
    fn end_excluded(&self, address: &MetricsAddress) -> Option<(MetricsAddress, Guard)> {
        let mut server = self.metrics.server();
        let ended = server.take_if(|it| it.address().excludes(address))?;
        Some((ended.address().clone(), ended.guard()))
    }

    /// Takes back a change that was prepared.
    ///
    /// # Errors
    /// The server of before had to end for it, and can't begin again.
    pub fn take_back_metrics(&self, change: MetricsChange) -> anyhow::Result<()> {
        // It may have the port.
        drop(change.server);
        if let Some((address, guard)) = change.ended {
            let server = self.begin_metrics(&address, guard);
            let server = server.context("metrics are served no more")?;
            *self.metrics.server() = Some(server);
        }
        Ok(())
    }

    /// Makes a change that was prepared. Returns it in words, if there is any.
    pub fn apply_metrics(&self, change: MetricsChange) -> Option<String> {
        let mut server = self.metrics.server();
        match (change.guard, change.server) {
            (None, _) => server.take().map(|_| "metrics are served no more".into()),
            (Some(_), Some(new)) => {
                let words = format!("metrics are served at {}", new.uri());
                *server = Some(new);
                Some(words)
            }
            (Some(guard), None) => {
                let there = server.as_ref()?;
                let words = format!("changed who may read metrics at {}", there.uri());
                there.set_guard(guard).then_some(words)
            }
        }
    }

    /// Where metrics are served, for people.
    pub fn metrics_uri(&self) -> Option<String> {
        self.metrics.server().as_ref().map(Server::uri)
    }

    /// # Errors
    /// Why there is none: a core does not answer.
    fn metrics_page(&self) -> Result<Arc<str>, String> {
        let report = self.report().map_err(|error| error.to_string())?;
        let (mut of, list) = (report.stat(), report.list());
        drop(report);
        for volume in of["volumes"].as_array_mut().into_iter().flatten() {
            let mut listed = list["volumes"].as_array().into_iter().flatten();
            if let Some(listed) = listed.find(|it| it["name"] == volume["name"]) {
                volume["bytes"] = listed["bytes"].clone();
            }
        }
        of["cores"] = self.senders.waits();
        of["engine"] = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "uptime_ns": of["uptime_ns"],
        });
        page::render(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcard_excludes_other_addresses_of_its_port() {
        for (one, other, excludes) in [
            ("127.0.0.1:9750", "0.0.0.0:9750", true),
            ("[::]:9750", "127.0.0.1:9750", true),
            ("127.0.0.1:9750", "0.0.0.0:9751", false),
            ("127.0.0.1:0", "0.0.0.0:0", false),
            ("127.0.0.1:9750", "127.0.0.2:9750", false),
            ("0.0.0.0:9750", "0.0.0.0:9750", false),
            ("unix:/m.sock", "0.0.0.0:9750", false),
        ] {
            let [one, other] = [one, other].map(|it| it.parse::<MetricsAddress>().unwrap());
            assert_eq!(one.excludes(&other), excludes, "{one} {other}");
            assert_eq!(other.excludes(&one), excludes, "{other} {one}");
        }
    }

    #[test]
    fn addresses_are_read_and_shown() {
        for text in ["127.0.0.1:9750", "[::1]:9750", "unix:/run/m.sock"] {
            assert_eq!(text.parse::<MetricsAddress>().unwrap().to_string(), text);
        }
        for text in ["", "9750", "host:9750", "unix:m.sock", "127.0.0.1"] {
            assert!(text.parse::<MetricsAddress>().is_err(), "{text}");
        }
    }
}
