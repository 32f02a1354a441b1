//! Knowledge of discovery controllers, and their announcements.
//!
//! # Contract
//! As the sessions have it: only those that are asked count, so what a controller told is gone with
//! it; what a lost one told holds.
use super::plan::Offers;
use crate::advice;
use crate::discover::session::Seeker;
use crate::uri::discovery::{DiscoveryUri, in_words};
use engine::discovery::{DiscoveryControl, DiscoveryEvent, Endpoint, Found, Offer, offer};
use nvme::host::DiscoveryLog;
use runtime::Handle;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

/// The knowledge.
#[derive(Default)]
pub(super) struct Book {
    /// While there is any source.
    pub(super) sessions: Option<Handle<Seeker>>,
    /// By number; where each is.
    pub(super) sources: BTreeMap<u32, (DiscoveryUri, Endpoint)>,
    /// The last number.
    pub(super) last: u32,
    /// Those whose names could not be resolved, why, and when that is tried again.
    pub(super) unresolved: Vec<(DiscoveryUri, String, Instant)>,
    /// Announced subsystems, and the controller that announced each first.
    pub(super) offers: BTreeMap<Offer, Endpoint>,
    pub(super) controllers: BTreeMap<Endpoint, Controller>,
    /// Those that are asked: sources and who they refer to, as many as there are places.
    pub(super) asked: BTreeSet<Endpoint>,
    /// Something is to be looked at.
    pub(super) changed: bool,
    pub(super) closed: bool,
}

/// Knowledge of one discovery controller.
#[derive(Default)]
pub(super) struct Controller {
    generation: Option<u64>,
    pub(super) entries: usize,
    /// Ways to subsystems that it tells of.
    pub(super) tells: BTreeSet<Offer>,
    /// Those that it refers to.
    refers: BTreeSet<Endpoint>,
    pub(super) why: Option<String>,
}

impl Book {
    /// How many referrals each controller is from the nearest source: by what was told last, also
    /// of those that were never reached.
    pub(super) fn depths(&self) -> BTreeMap<&Endpoint, u32> {
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
    pub(super) fn begin(&mut self, uri: DiscoveryUri, endpoint: Endpoint) -> String {
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
    pub(super) fn has_heard_all(&self) -> bool {
        let sources = self.sources.values().map(|(_, endpoint)| endpoint);
        let mut asked = sources.chain(&self.asked);
        self.unresolved.is_empty() && asked.all(|it| self.has_heard(it))
    }

    pub(super) fn offers(&self) -> Offers {
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

    pub(super) fn has_heard(&self, of: &Endpoint) -> bool {
        let it = self.controllers.get(of);
        it.is_some_and(|it| it.generation.is_some())
    }

    /// The controllers, for `stat`.
    pub(super) fn show(&self) -> Vec<Value> {
        let depths = self.depths();
        let all = self.controllers.iter().map(|(endpoint, it)| {
            let by = self.controllers.iter();
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
        let unresolved = self.unresolved.iter().map(|(uri, why, _)| {
            json!({
                "uri": uri.to_string(),
                "depth": 0,
                "referred_by": [],
                "state": "lost",
                "why": why,
                "genctr": null,
                "records": 0,
            })
        });
        all.chain(unresolved).collect()
    }

    /// Takes note of what the sessions say; in words, where it is worth a line.
    pub(super) fn heard(&mut self, event: DiscoveryEvent) -> Option<String> {
        match event {
            DiscoveryEvent::Read(from, _, log) => {
                let it = self.controllers.entry(from.clone()).or_default();
                let new = it.generation.is_none() || it.why.is_some();
                let (tells, refers) = usable(&log);
                *it = Controller {
                    generation: Some(log.generation),
                    entries: log.entries.len(),
                    tells,
                    refers,
                    why: None,
                };
                self.changed = true;
                let count = log.entries.len();
                new.then(|| format!("{}: connected, {count} entries", in_words(&from)))
            }
            DiscoveryEvent::Lost(endpoint, why) => {
                let uri = in_words(&endpoint);
                let why = advice::of_target(&why, &uri);
                let line = format!("{uri}: {why}");
                self.controllers.entry(endpoint).or_default().why = Some(why);
                Some(line)
            }
            DiscoveryEvent::Asked(all) => {
                let left: Vec<_> = self.asked.difference(&all).map(in_words).collect();
                let is_news = !left.is_empty() && !self.closed;
                // The reports of others hold no more, be they gone already or not.
                self.controllers
                    .retain(|endpoint, _| all.contains(endpoint));
                self.asked = all;
                self.changed = true;
                is_news.then(|| format!("{}: not asked any more", left.join(", ")))
            }
            DiscoveryEvent::TooMany(endpoints) => {
                let all: Vec<_> = endpoints.iter().map(in_words).collect();
                let all = all.join(", ");
                Some(format!("too many referrals, or too far; not asked: {all}"))
            }
            DiscoveryEvent::Appeared(offer, by) => {
                self.offers.insert(offer, by);
                self.changed = true;
                None
            }
            DiscoveryEvent::Gone(offer) => {
                self.offers.remove(&offer);
                self.changed = true;
                None
            }
            DiscoveryEvent::Lead(..) | DiscoveryEvent::Left(_) | DiscoveryEvent::Finished => None,
        }
    }
}

/// Usable entries of a log: ways to subsystems, and other discovery controllers.
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

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::wire::fabrics::DISCOVERY_NQN;

    const NQN: &str = "nqn.2026-01.org.example:v0";

    fn endpoint(port: u16) -> Endpoint {
        Endpoint {
            address: ([127, 0, 0, 1], port).into(),
            nqn: DISCOVERY_NQN.into(),
        }
    }

    /// Ports that are asked.
    fn asked(ports: &[u16]) -> DiscoveryEvent {
        DiscoveryEvent::Asked(ports.iter().map(|port| endpoint(*port)).collect())
    }

    /// An empty log.
    fn read(port: u16) -> DiscoveryEvent {
        let log = DiscoveryLog {
            generation: 1,
            entries: Vec::new(),
        };
        DiscoveryEvent::Read(endpoint(port), 0, log)
    }

    fn way() -> Offer {
        Offer {
            nqn: NQN.into(),
            address: ([10, 0, 0, 1], 4420).into(),
        }
    }

    fn book() -> Book {
        let mut book = Book::default();
        let uri: DiscoveryUri = "nvme-tcp://127.0.0.1:1".parse().unwrap();
        assert_eq!(
            book.begin(uri, endpoint(1)),
            "discovery of nvme-tcp://127.0.0.1:1 begun"
        );
        book
    }

    #[test]
    fn all_are_heard_once_each_of_those_that_are_asked_has_told_something() {
        let mut book = book();
        assert!(!book.has_heard_all(), "the source was not");
        book.heard(asked(&[1, 2]));
        book.heard(read(1));
        assert!(!book.has_heard_all(), "the other one was not");
        book.heard(DiscoveryEvent::Lost(endpoint(2), "refused".into()));
        assert!(!book.has_heard_all());
        book.heard(read(2));
        assert!(book.has_heard_all());
        book.heard(DiscoveryEvent::Lost(endpoint(2), "refused".into()));
        assert!(book.has_heard_all(), "it has told something before");
        book.heard(asked(&[1, 3]));
        assert!(!book.has_heard_all());
        book.heard(asked(&[1]));
        assert!(book.has_heard_all(), "nobody refers to the third");
        let uri = "nvme-tcp://nowhere.invalid".parse().unwrap();
        book.unresolved
            .push((uri, "unknown".into(), Instant::now()));
        assert!(!book.has_heard_all(), "one has no address yet");
    }

    #[test]
    fn what_a_controller_told_goes_with_it_and_who_looks_is_told() {
        let mut book = book();
        book.heard(asked(&[1, 2]));
        book.heard(read(2));
        let it = book.controllers.get_mut(&endpoint(2)).unwrap();
        it.tells.insert(way());
        book.heard(DiscoveryEvent::Appeared(way(), endpoint(2)));
        assert_eq!(book.offers()[&way()], [endpoint(2)]);
        book.changed = false;
        book.heard(DiscoveryEvent::Gone(way()));
        assert!(std::mem::take(&mut book.changed));
        book.heard(asked(&[1]));
        assert!(std::mem::take(&mut book.changed));
        assert_eq!(book.offers(), Offers::new());
        // It leaves in its own time; by then it may be asked again.
        book.heard(asked(&[1, 2]));
        book.heard(read(2));
        book.heard(DiscoveryEvent::Left(endpoint(2)));
        assert!(book.has_heard(&endpoint(2)));
    }

    /// However many a log refers to.
    #[test]
    fn nothing_grows_with_what_is_too_many() {
        let mut book = book();
        book.heard(asked(&[1]));
        let before = book.controllers.len();
        for port in 100..1000 {
            book.heard(DiscoveryEvent::TooMany(vec![endpoint(port)]));
        }
        assert_eq!((book.controllers.len(), book.asked.len()), (before, 1));
    }
}
