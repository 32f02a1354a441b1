//! Names of hosts in paths: resolved again whenever their path is to be connected again.
//!
//! # Contract
//! The engine says when no connection of a path is left ([`HostEvent::Disconnected`]); from then on
//! until its next attempt the address number of the path may stand for another address. Each look-up
//! has a thread of its own, one for each path at most: no reactor and no other path waits for it.
//! A name that can't be resolved is tried again with growing pauses, its path has the address that
//! it had, if any, and `status`, `check` and the log say why. Of several addresses the next one is
//! tried after each failed attempt. What is found there is checked as after every reconnect (T32).
//!
//! A path whose controller may have unflushed writes keeps its address for as long as its name
//! stands for it: another controller's flush would not cover them (T13).
//!
//! [`HostEvent::Disconnected`]: engine::host::HostEvent::Disconnected
use super::service::Service;
use crate::load::host::Place;
use crate::log;
use crate::uri::{Found, NvmeTcp, PathUri, Start, zone};
use engine::host::Disconnected;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// First and longest pause before a name that can't be resolved is tried again.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// What is to be looked up.
struct LookUp {
    of: Disconnected,
    uri: String,
    tcp: NvmeTcp,
    start: Start,
}

/// What has come of one attempt to resolve a name.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The path is connected at this address from now on.
    Moved(SocketAddr),
    /// It stays at its address.
    Same,
    /// It has none; true: for another reason than before.
    Waits(bool),
}

impl Service {
    /// A path is to be connected again: where its host is written as a name, that is looked up.
    pub fn look_up_host(self: &Arc<Self>, of: Disconnected) {
        let begun = self.ends.with_port(of.address, |uri, place| {
            if place.looked_up || !place.tcp.is_named() {
                return None;
            }
            place.looked_up = true;
            Some(LookUp {
                of,
                uri: uri.to_owned(),
                tcp: place.tcp.clone(),
                start: Start {
                    before: place.address,
                    failed: of.failures > 0,
                    kept: of.in_doubt,
                },
            })
        });
        let Some(it) = begun.flatten() else {
            return;
        };
        let service = Arc::clone(self);
        let builder = std::thread::Builder::new().name("resolve".into());
        if let Err(error) = builder.spawn(move || service.resolve_until_found(&it)) {
            log::say(format!(
                "a host name is not looked up: no thread can be started: {error}"
            ));
            self.ends
                .with_port(of.address, |_, place| place.looked_up = false);
        }
    }

    /// Until the path has an address, has left, or the engine ends.
    fn resolve_until_found(&self, it: &LookUp) {
        let number = it.of.address;
        let mut pause = PAUSE_MIN;
        loop {
            let found = it.tcp.find(it.start);
            if self.state().is_closed() {
                return;
            }
            let live = self.is_live(it.of.volume, it.of.path);
            let outcome = self.ends.with_port(number, |uri, place| {
                // The number may be another path's by now.
                let is_it = uri == it.uri && place.looked_up;
                is_it.then(|| {
                    let outcome = take(place, found, live);
                    // Here, while the number is this path's. All cores know the address before the
                    // engine's next attempt.
                    if let Outcome::Moved(address) = outcome {
                        self.senders.set_address(number, address);
                    }
                    outcome
                })
            });
            let line = |what: String| {
                let name = self.name(it.of.volume);
                log::say(format!("{name}: path {}: {what}", it.uri));
            };
            match outcome.flatten() {
                None => return,
                Some(Outcome::Same) => break,
                Some(Outcome::Moved(address)) => {
                    line(format!("its host is {} now", zone::authority(&address)));
                    break;
                }
                Some(Outcome::Waits(is_news)) => {
                    let why = self.waits_for_name(&it.uri).filter(|_| is_news);
                    why.into_iter()
                        .for_each(|why| line(format!("{why}; it is tried again")));
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
        self.ends.with_port(number, |uri, place| {
            if uri == it.uri {
                place.looked_up = false;
            }
        });
    }

    fn waits_for_name(&self, uri: &str) -> Option<String> {
        self.name_hindrance(&uri.parse().ok()?)
    }

    /// Why a path waits for the address of its host.
    pub fn name_hindrance(&self, uri: &PathUri) -> Option<String> {
        let (why, waits) = self.ends.unresolved(uri)?;
        waits.then(|| format!("waits for its name: {why}"))
    }

    /// Why the name of a path that has an address can't be resolved any more.
    pub fn name_doubt(&self, uri: &PathUri) -> Option<String> {
        let (why, waits) = self.ends.unresolved(uri)?;
        (!waits).then(|| format!("its name could not be resolved again: {why}"))
    }
}

/// Takes what was found for a path; one that is `live` by now keeps its address.
fn take(place: &mut Place, found: anyhow::Result<Found>, live: bool) -> Outcome {
    match found {
        Err(why) => {
            let why = Some(format!("{why:#}"));
            let is_news = place.why != why;
            place.why = why;
            match place.address {
                Some(_) => Outcome::Same,
                None => Outcome::Waits(is_news),
            }
        }
        Ok(found) => {
            place.why = None;
            place.all = found.all;
            if live || place.address == Some(found.address) {
                return Outcome::Same;
            }
            place.address = Some(found.address);
            Outcome::Moved(found.address)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    fn found(address: &str) -> anyhow::Result<Found> {
        let address = address.parse().unwrap();
        Ok(Found {
            address,
            all: vec![address],
            refused: None,
        })
    }

    #[test]
    fn live_path_keeps_its_address() {
        let uri: PathUri = "nvme-tcp://there/nqn.x".parse().unwrap();
        let crate::uri::UriKind::NvmeTcp(tcp) = uri.kind() else {
            unreachable!()
        };
        let mut place = Place {
            tcp: tcp.clone(),
            address: None,
            all: Vec::new(),
            why: None,
            looked_up: true,
        };
        assert_eq!(
            take(&mut place, Err(anyhow!("no")), false),
            Outcome::Waits(true)
        );
        assert_eq!(
            take(&mut place, Err(anyhow!("no")), false),
            Outcome::Waits(false)
        );
        let first = "10.0.0.1:4420";
        let moved = Outcome::Moved(first.parse().unwrap());
        assert_eq!(take(&mut place, found(first), false), moved);
        assert_eq!((&place.why, place.all.len()), (&None, 1));
        assert_eq!(take(&mut place, found(first), false), Outcome::Same);
        assert_eq!(
            take(&mut place, found("10.0.0.2:4420"), true),
            Outcome::Same
        );
        assert_eq!(place.address, Some(first.parse().unwrap()));
        assert_eq!(take(&mut place, Err(anyhow!("no")), false), Outcome::Same);
        assert_eq!(
            place.why.as_deref(),
            Some("no"),
            "said, and the address is kept"
        );
        let next = "10.0.0.2:4420";
        let moved = Outcome::Moved(next.parse().unwrap());
        assert_eq!(take(&mut place, found(next), false), moved);
    }
}
