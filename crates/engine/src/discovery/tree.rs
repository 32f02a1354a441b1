//! Which discovery controllers there are to be, and what they tell together.
use super::peer::{Known, Peer};
use super::{DiscoveryEngine, DiscoveryEvent, Endpoint, Found, Offer, offer};
use crate::limits::{DISCOVERY_CONTROLLERS_MAX, DISCOVERY_DEPTH_MAX};
use crate::machine::ConnId;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::SocketAddr;
use nvme::host::DiscoveryLog;

/// Usable entries of a log of the controller at `from`.
pub(super) fn known(log: &DiscoveryLog, from: SocketAddr) -> Known {
    let mut known = Known::default();
    for entry in &log.entries {
        match offer(entry) {
            Ok(Found::Subsystem(address)) => known.offers.push(Offer {
                nqn: entry.subnqn.clone(),
                address: in_zone(address, from),
            }),
            Ok(Found::Referral(mut endpoint)) => {
                endpoint.address = in_zone(endpoint.address, from);
                known.referrals.push(endpoint);
            }
            Ok(Found::Itself) | Err(_) => {}
        }
    }
    known
}

/// A link-local address that is told has no zone, for the zone is the host's own: it is that of the
/// controller that tells, where this has one.
fn in_zone(mut address: SocketAddr, from: SocketAddr) -> SocketAddr {
    if let (SocketAddr::V6(it), SocketAddr::V6(from)) = (&mut address, from)
        && it.ip().is_unicast_link_local()
        && it.scope_id() == 0
    {
        it.set_scope_id(from.scope_id());
    }
    address
}

/// Endpoints that a source leads to, nearest first; controllers as far away refer in turns.
struct Branch<'a> {
    /// Referrals of this level that are left, by referring controller.
    level: VecDeque<VecDeque<&'a Endpoint>>,
    next: VecDeque<VecDeque<&'a Endpoint>>,
    seen: BTreeSet<&'a Endpoint>,
}

impl<'a> Branch<'a> {
    fn new(source: &'a Endpoint) -> Self {
        Self {
            level: [[source].into()].into(),
            next: VecDeque::new(),
            seen: BTreeSet::new(),
        }
    }

    /// The next one, each once.
    fn next(&mut self) -> Option<&'a Endpoint> {
        loop {
            let Some(mut referrals) = self.level.pop_front() else {
                self.level = core::mem::take(&mut self.next);
                if self.level.is_empty() {
                    return None;
                }
                continue;
            };
            let Some(endpoint) = referrals.pop_front() else {
                continue;
            };
            self.level.push_back(referrals);
            if self.seen.insert(endpoint) {
                return Some(endpoint);
            }
        }
    }

    /// It goes on to these after what is as near as who refers to them.
    fn refer(&mut self, to: &'a [Endpoint]) {
        if !to.is_empty() {
            self.next.push_back(to.iter().collect());
        }
    }
}

impl DiscoveryEngine {
    /// The sources, or the log of a controller, have changed: those that are in reach now
    /// are connected, others are left, and what they tell together is compared with what was told.
    pub(super) fn look_around(&mut self, now_ns: u64) {
        self.turn_to_those_in_reach(now_ns);
        self.compare();
        self.finish_when_over();
    }

    /// A log was read. Which controllers are asked because of it is said before it.
    pub(super) fn take_log(&mut self, read: DiscoveryEvent, now_ns: u64) {
        self.turn_to_those_in_reach(now_ns);
        self.events.push_back(read);
        self.compare();
    }

    fn turn_to_those_in_reach(&mut self, now_ns: u64) {
        let (reach, beyond) = self.reach();
        if !reach.keys().eq(&self.asked) {
            self.asked = reach.keys().cloned().collect();
            let asked = self.asked.clone();
            self.events.push_back(DiscoveryEvent::Asked(asked));
        }
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
    }

    /// Controllers in reach of the sources with their depth, and those just beyond it.
    ///
    /// Sources come first and then take turns, so that one that refers to many has no more than
    /// its share where places are few.
    fn reach(&self) -> (BTreeMap<Endpoint, u8>, Vec<Endpoint>) {
        let depths = self.depths();
        let mut reach = BTreeMap::new();
        let mut beyond = Vec::new();
        let mut branches: VecDeque<_> = self.sources.values().map(Branch::new).collect();
        while let Some(mut branch) = branches.pop_front() {
            while let Some(endpoint) = branch.next() {
                let depth = depths.get(endpoint).copied().unwrap_or(u8::MAX);
                let is_there = reach.contains_key(endpoint);
                let has_place = reach.len() < DISCOVERY_CONTROLLERS_MAX;
                if !is_there && (depth > DISCOVERY_DEPTH_MAX || !has_place) {
                    if beyond.len() < DISCOVERY_CONTROLLERS_MAX && !beyond.contains(endpoint) {
                        beyond.push(endpoint.clone());
                    }
                    continue;
                }
                // An endpoint that another source led to first leads on from here too.
                branch.refer(self.referrals(endpoint));
                if !is_there {
                    reach.insert(endpoint.clone(), depth);
                    branches.push_back(branch);
                    break;
                }
            }
        }
        // One that lay beyond for one source may have been in reach of another.
        beyond.retain(|endpoint| !reach.contains_key(endpoint));
        (reach, beyond)
    }

    /// How many referrals each controller is from the nearest source. The nearest come first, so
    /// that this doesn't depend on who answers first.
    fn depths(&self) -> BTreeMap<&Endpoint, u8> {
        let mut depths = BTreeMap::new();
        let mut open: VecDeque<_> = self.sources.values().map(|it| (it, 0_u8)).collect();
        while let Some((endpoint, depth)) = open.pop_front() {
            if depths.contains_key(endpoint) {
                continue;
            }
            depths.insert(endpoint, depth);
            let next = self.referrals(endpoint).iter();
            open.extend(next.map(|it| (it, depth.saturating_add(1))));
        }
        depths
    }

    /// Referrals of a controller to others.
    fn referrals(&self, endpoint: &Endpoint) -> &[Endpoint] {
        let known = self.found(endpoint).and_then(|peer| peer.known.as_ref());
        known.map_or(&[], |known| &known.referrals)
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
        // A controller that refuses an orderly shutdown takes nothing from what was read.
        let over = peers.all(|peer| peer.tried);
        if over && !self.finished && !self.is_persistent() && !self.sources.is_empty() {
            self.finished = true;
            self.events.push_back(DiscoveryEvent::Finished);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_offer_has_the_zone_of_its_teller() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let zoned = at("[fe80::1%3]:8009");
        assert_eq!(in_zone(at("[fe80::2]:4420"), zoned), at("[fe80::2%3]:4420"));
        for other in ["[fd00::2]:4420", "10.0.0.1:4420"] {
            assert_eq!(in_zone(at(other), zoned), at(other));
        }
        let without = at("[fe80::2]:4420");
        assert_eq!(in_zone(without, at("10.0.0.1:8009")), without);
    }
}
