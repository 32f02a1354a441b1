//! Which discovery controllers there are to be, and what they tell together.
use super::peer::{Known, Peer};
use super::{DiscoveryEngine, DiscoveryEvent, Endpoint, Found, Offer, offer};
use crate::limits::{DISCOVERY_CONTROLLERS_MAX, DISCOVERY_DEPTH_MAX};
use crate::machine::ConnId;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use nvme::host::DiscoveryLog;

/// What can be used of a log.
pub(super) fn known(log: &DiscoveryLog) -> Known {
    let mut known = Known::default();
    for entry in &log.entries {
        match offer(entry) {
            Ok(Found::Subsystem(address)) => known.offers.push(Offer {
                nqn: entry.subnqn.clone(),
                address,
            }),
            Ok(Found::Referral(endpoint)) => known.referrals.push(endpoint),
            Ok(Found::Itself) | Err(_) => {}
        }
    }
    known
}

impl DiscoveryEngine {
    /// What is to begin with, or what a controller tells, has changed: those that are in reach now
    /// are connected, others are left, and what they tell together is compared with what was told.
    pub(super) fn look_around(&mut self, now_ns: u64) {
        let (reach, beyond) = self.reach();
        for place in 0..self.peers.len() {
            let conn = ConnId(place as u32);
            let Some(peer) = self.peer(conn) else {
                continue;
            };
            match reach.get(&peer.endpoint) {
                Some(depth) => peer.depth = *depth,
                None if !peer.unwanted => self.leave(conn, now_ns),
                None => {}
            }
        }
        for (endpoint, depth) in &reach {
            self.take_in(endpoint, *depth);
        }
        if beyond != self.too_many {
            self.too_many.clone_from(&beyond);
            if !beyond.is_empty() {
                self.events.push_back(DiscoveryEvent::TooMany(beyond));
            }
        }
        self.compare();
        self.finish_when_over();
    }

    /// Controllers in reach of the sources with their depth, and those just beyond it.
    fn reach(&self) -> (BTreeMap<Endpoint, u8>, Vec<Endpoint>) {
        let mut reach = BTreeMap::new();
        let mut beyond = Vec::new();
        let mut open: VecDeque<_> = self.sources.values().map(|it| (it.clone(), 0)).collect();
        // The nearest come first, so that depth and choice don't depend on who answers first.
        while let Some((endpoint, depth)) = open.pop_front() {
            if reach.contains_key(&endpoint) || beyond.contains(&endpoint) {
                continue;
            }
            if depth > DISCOVERY_DEPTH_MAX || reach.len() == DISCOVERY_CONTROLLERS_MAX {
                if beyond.len() < DISCOVERY_CONTROLLERS_MAX {
                    beyond.push(endpoint);
                }
                continue;
            }
            let known = self.found(&endpoint).and_then(|peer| peer.known.as_ref());
            let next = known.into_iter().flat_map(|known| &known.referrals);
            open.extend(next.map(|it| (it.clone(), depth + 1)));
            reach.insert(endpoint, depth);
        }
        (reach, beyond)
    }

    /// The peer of an endpoint, if it is wanted.
    fn found(&self, endpoint: &Endpoint) -> Option<&Peer> {
        let mut peers = self.peers.iter().flatten();
        peers.find(|peer| peer.endpoint == *endpoint && !peer.unwanted)
    }

    /// Begins with a controller, if it isn't there and there is a place; else when one is free.
    fn take_in(&mut self, endpoint: &Endpoint, depth: u8) {
        if self.found(endpoint).is_some() {
            return;
        }
        let Some(place) = self.peers.iter().position(Option::is_none) else {
            return;
        };
        let address = endpoint.address;
        self.peers[place] = Some(Peer::new(endpoint.clone(), depth));
        self.events
            .push_back(DiscoveryEvent::Lead(place as u32, address));
    }

    /// Says what appeared and what went.
    fn compare(&mut self) {
        let mut offers = BTreeMap::new();
        for peer in self.peers.iter().flatten().filter(|it| !it.unwanted) {
            for offer in peer.known.iter().flat_map(|known| &known.offers) {
                let teller = offers.entry(offer.clone());
                teller.or_insert_with(|| peer.endpoint.clone());
            }
        }
        let before = core::mem::take(&mut self.offers);
        let gone = before.keys().filter(|offer| !offers.contains_key(*offer));
        let gone = gone.map(|offer| DiscoveryEvent::Gone(offer.clone()));
        self.events.extend(gone);
        let new = offers
            .iter()
            .filter(|(offer, _)| !before.contains_key(*offer));
        let new = new.map(|(offer, by)| DiscoveryEvent::Appeared(offer.clone(), by.clone()));
        self.events.extend(new);
        self.offers = offers;
    }

    /// Where every log is read once: says when nothing more is to come.
    pub(super) fn finish_when_over(&mut self) {
        let mut peers = self.peers.iter().flatten();
        // Who doesn't let us go in order keeps nobody from what was read.
        let over = peers.all(|peer| peer.tried);
        if over && !self.finished && !self.is_persistent() && !self.sources.is_empty() {
            self.finished = true;
            self.events.push_back(DiscoveryEvent::Finished);
        }
    }
}
