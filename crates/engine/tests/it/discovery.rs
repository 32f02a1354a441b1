//! Discovery against our own targets: what appears and goes, referrals and their loops, controllers
//! that are lost, late or none at all.

use crate::common::*;
use engine::Machine;
use engine::discovery::{
    DiscoveryConfig, DiscoveryControl, DiscoveryEngine, DiscoveryEvent, Endpoint, Offer,
};
use engine::limits::{DISCOVERY_CONTROLLERS_MAX, DISCOVERY_DEPTH_MAX};
use engine::target::{TargetControl, TargetEngine};
use nvme::controller::{DiscoveryChange, PortOffer, Referral};
use nvme::host::Digests;
use nvme::limits::DISCOVERY_REREAD_NS;
use nvme::wire::Status;
use nvme::wire::fabrics::{DISCOVERY_NQN, connect_status};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

/// The host that discovers.
const SEEKER: usize = 0;

struct Seeker {
    world: World,
    engine: Rc<RefCell<DiscoveryEngine>>,
    targets: Vec<Rc<RefCell<TargetEngine>>>,
    routes: BTreeMap<SocketAddr, Address>,
    events: Vec<DiscoveryEvent>,
}

fn config(kato_ms: u32) -> DiscoveryConfig {
    DiscoveryConfig {
        identity: host_config(1).identity,
        digests: Digests::default(),
        kato_ms,
        connect_timeout_ns: 3 * SECOND,
        reconnect_min_ns: SECOND,
        reconnect_max_ns: 8 * SECOND,
        poll_ns: 60 * SECOND,
    }
}

/// Address of a port (from 1) of a target (from 0).
fn at(target: usize, port: u16) -> SocketAddr {
    format!("192.0.2.{}:{}", target + 1, 4419 + port)
        .parse()
        .unwrap()
}

fn nqn(target: usize) -> String {
    format!("nqn.2026-01.org.example:t{target}")
}

fn offer(target: usize, port: u16) -> Offer {
    Offer {
        nqn: nqn(target),
        address: at(target, port),
    }
}

fn endpoint(target: usize) -> Endpoint {
    Endpoint {
        address: at(target, 1),
        nqn: DISCOVERY_NQN.into(),
    }
}

impl Seeker {
    /// With so many targets of so many ports each.
    fn new(kato_ms: u32, targets: usize, ports: u16) -> Self {
        let mut world = World::new(7);
        let engine = Rc::new(RefCell::new(DiscoveryEngine::new(config(kato_ms))));
        world.add(engine.clone(), 0);
        world.nodes[SEEKER].addresses = vec![Address::Refused; DISCOVERY_CONTROLLERS_MAX];
        let mut it = Self {
            world,
            engine,
            targets: Vec::new(),
            routes: BTreeMap::new(),
            events: Vec::new(),
        };
        for number in 0..targets {
            it.add_target(number, ports);
        }
        it
    }

    fn add_target(&mut self, number: usize, ports: u16) {
        let mut config = target_config(ports);
        config.subsystem.nqn = nqn(number);
        for (port, id) in config.subsystem.ports.iter_mut().zip(1..) {
            port.traddr = at(number, id).ip().to_string();
            port.trsvcid = at(number, id).port().to_string();
        }
        let arena = config.arena_bytes as usize;
        let target = Rc::new(RefCell::new(TargetEngine::new(config).unwrap()));
        let node = self.world.add(target.clone(), arena);
        for id in 1..=ports {
            let listener = u32::from(id) - 1;
            let to = Address::To {
                node,
                listener,
                delay_ns: WIRE_NS,
            };
            self.routes.insert(at(number, id), to);
        }
        self.targets.push(target);
    }

    /// A target that says other things of itself.
    fn add_patched(&mut self, number: usize) -> Rc<RefCell<Patched>> {
        let target = TargetEngine::new(target_config(1)).unwrap();
        let target = Rc::new(RefCell::new(Patched::new(target)));
        let node = self.world.add(target.clone(), 16 << 20);
        let to = Address::To {
            node,
            listener: 0,
            delay_ns: WIRE_NS,
        };
        self.routes.insert(at(number, 1), to);
        target
    }

    fn say(&mut self, message: DiscoveryControl) {
        let now_ns = self.world.now_ns;
        self.engine.borrow_mut().handle_control(message, now_ns);
    }

    /// Begins with a target's discovery controller.
    fn seek(&mut self, target: usize) {
        self.say(DiscoveryControl::Add(target as u32, endpoint(target)));
    }

    fn change(&mut self, target: usize, change: DiscoveryChange) {
        let now_ns = self.world.now_ns;
        let message = TargetControl::Discovery(change);
        self.targets[target]
            .borrow_mut()
            .handle_control(message, now_ns);
    }

    /// A target refers to others.
    fn refer(&mut self, target: usize, to: &[usize]) {
        let referral = |to: &usize| Referral {
            port_id: 9,
            traddr: at(*to, 1).ip().to_string(),
            trsvcid: at(*to, 1).port().to_string(),
            ipv6: false,
            nqn: DISCOVERY_NQN.into(),
        };
        let all = to.iter().map(referral).collect();
        self.change(target, DiscoveryChange::Referrals(all));
    }

    /// Lets up to `limit_ns` pass until it is so; the seeker's addresses lead where it wants.
    fn run(&mut self, limit_ns: u64, mut done: impl FnMut(&Self) -> bool) -> bool {
        let end_ns = self.world.now_ns + limit_ns;
        loop {
            let heard = self.events.len();
            let engine = self.engine.clone();
            let events = &mut self.events;
            let routes = &self.routes;
            self.world
                .run(end_ns.saturating_sub(self.world.now_ns), |world| {
                    while let Some(event) = { engine.borrow_mut().poll_event() } {
                        if let DiscoveryEvent::Lead(place, address) = &event {
                            let to = routes.get(address).copied().unwrap_or(Address::Refused);
                            world.nodes[SEEKER].addresses[*place as usize] = to;
                            let led = DiscoveryControl::Led(*place);
                            engine.borrow_mut().handle_control(led, world.now_ns);
                        }
                        events.push(event);
                    }
                    events.len() > heard
                });
            if done(self) {
                return true;
            }
            if self.world.now_ns >= end_ns {
                return false;
            }
        }
    }

    fn pass(&mut self, ns: u64) {
        self.run(ns, |_| false);
    }

    fn offers(&self) -> Vec<Offer> {
        let engine = self.engine.borrow();
        engine.offers().map(|(offer, _)| offer.clone()).collect()
    }

    fn reaches(&mut self, limit_ns: u64, wanted: &[Offer]) {
        let there = self.run(limit_ns, |it| it.offers() == wanted);
        assert!(there, "{:?} after {:?}", self.offers(), self.events);
    }

    fn reads(&self) -> Vec<(Endpoint, u8, u64)> {
        let read = |event: &DiscoveryEvent| match event {
            DiscoveryEvent::Read(from, depth, log) => Some((from.clone(), *depth, log.generation)),
            _ => None,
        };
        self.events.iter().filter_map(read).collect()
    }

    fn losses(&self) -> Vec<&str> {
        let all = self.events.iter().filter_map(|event| match event {
            DiscoveryEvent::Lost(_, why) => Some(why.as_str()),
            _ => None,
        });
        all.collect()
    }
}

#[test]
fn what_a_target_tells_appears_at_once_and_what_it_withdraws_goes() {
    let mut it = Seeker::new(5_000, 1, 2);
    it.seek(0);
    it.reaches(SECOND, &[offer(0, 1), offer(0, 2)]);
    it.change(0, DiscoveryChange::Offer(1, PortOffer::Withdrawn));
    it.reaches(10 * MS, &[offer(0, 1)]);
    let gone = it
        .events
        .iter()
        .filter(|event| **event == DiscoveryEvent::Gone(offer(0, 2)));
    assert_eq!(gone.count(), 1);
    it.change(0, DiscoveryChange::Offer(1, PortOffer::Subsystem));
    // The log was read a moment ago.
    it.reaches(DISCOVERY_REREAD_NS, &[offer(0, 1), offer(0, 2)]);
    let generations: Vec<u64> = it.reads().iter().map(|read| read.2).collect();
    assert_eq!(generations, [1, 2, 3]);
    // A state that is there already is no change, and no host is told.
    it.change(0, DiscoveryChange::Offer(1, PortOffer::Subsystem));
    it.pass(SECOND);
    assert_eq!(it.reads().len(), 3);
}

#[test]
fn a_host_sees_what_it_may_connect_to_as_soon_as_it_may() {
    let mut it = Seeker::new(5_000, 1, 1);
    let own = config(0).identity.nqn;
    let hosts =
        |all: &[&str]| DiscoveryChange::Hosts(all.iter().map(|host| (*host).to_owned()).collect());
    it.change(0, hosts(&["nqn.2026-01.org.example:other"]));
    it.seek(0);
    assert!(it.run(SECOND, |it| !it.reads().is_empty()));
    assert_eq!(it.offers(), []);
    it.change(0, hosts(&["nqn.2026-01.org.example:other", &own]));
    it.reaches(10 * MS, &[offer(0, 1)]);
    // Another host's affair is none of ours.
    it.change(0, hosts(&[&own]));
    it.pass(SECOND);
    assert_eq!(it.reads().len(), 2);
    it.change(0, hosts(&["nqn.2026-01.org.example:other"]));
    it.reaches(10 * MS, &[]);
}

#[test]
fn referrals_are_followed_once_and_go_with_what_they_told() {
    let mut it = Seeker::new(5_000, 3, 1);
    // A ring, and one that refers to itself.
    it.refer(0, &[1, 0]);
    it.refer(1, &[2, 0]);
    it.refer(2, &[0, 1]);
    it.seek(0);
    it.reaches(SECOND, &[offer(0, 1), offer(1, 1), offer(2, 1)]);
    it.pass(SECOND);
    let depths: Vec<_> = it
        .reads()
        .iter()
        .map(|read| (read.0.clone(), read.1))
        .collect();
    let wanted = [(endpoint(0), 0), (endpoint(1), 1), (endpoint(2), 2)];
    assert_eq!(depths, wanted, "each was read once");
    it.refer(0, &[0]);
    it.reaches(SECOND, &[offer(0, 1)]);
    it.pass(SECOND);
    assert_eq!(
        it.world.connections(SEEKER),
        1,
        "nobody refers to the others"
    );
    assert_eq!(it.losses(), [""; 0]);
}

#[test]
fn referrals_end_at_a_depth_and_a_number() {
    let depth = usize::from(DISCOVERY_DEPTH_MAX);
    let mut it = Seeker::new(5_000, depth + 3, 1);
    for target in 0..depth + 2 {
        it.refer(target, &[target + 1]);
    }
    it.seek(0);
    let wanted: Vec<_> = (0..=depth).map(|target| offer(target, 1)).collect();
    it.reaches(SECOND, &wanted);
    it.pass(SECOND);
    assert_eq!(it.offers(), wanted);
    let too_many = DiscoveryEvent::TooMany(vec![endpoint(depth + 1)]);
    assert_eq!(
        it.events.iter().filter(|event| **event == too_many).count(),
        1
    );

    let most = DISCOVERY_CONTROLLERS_MAX;
    let mut it = Seeker::new(5_000, most + 2, 1);
    it.refer(0, &(1..most + 2).collect::<Vec<_>>());
    it.seek(0);
    assert!(it.run(2 * SECOND, |it| it.offers().len() == most));
    it.pass(SECOND);
    assert_eq!(it.offers().len(), most);
}

#[test]
fn what_a_lost_controller_said_holds_and_it_is_connected_again() {
    let mut it = Seeker::new(5_000, 1, 1);
    it.seek(0);
    it.reaches(SECOND, &[offer(0, 1)]);
    let to = std::mem::replace(&mut it.world.nodes[SEEKER].addresses[0], Address::Refused);
    it.world.cut(SEEKER, 0);
    it.pass(60 * SECOND);
    assert_eq!(it.offers(), [offer(0, 1)]);
    // 1, 2, 4, then every 8 s; each reason is said once.
    let losses = it.losses();
    assert_eq!(losses.len(), 2, "{losses:?}");
    assert!(losses[0].contains("reset"), "{losses:?}");
    assert!(losses[1].contains("refused"), "{losses:?}");
    let tries = it.world.nodes[SEEKER].wakeups;
    it.pass(32 * SECOND);
    let tries = it.world.nodes[SEEKER].wakeups - tries;
    assert!((3..=16).contains(&tries), "{tries} events in 32 s");
    it.world.nodes[SEEKER].addresses[0] = to;
    assert!(it.run(9 * SECOND, |it| it.reads().len() == 2));
    assert_eq!(it.offers(), [offer(0, 1)]);
}

#[test]
fn t29_a_persistent_session_lives_on_when_nothing_happens_and_notices_when_nobody_is_there() {
    let mut it = Seeker::new(5_000, 1, 1);
    it.seek(0);
    it.reaches(SECOND, &[offer(0, 1)]);
    let before = it.world.nodes[SEEKER].wakeups;
    it.pass(600 * SECOND);
    assert_eq!((it.losses(), it.reads().len()), (vec![], 1));
    let woken = it.world.nodes[SEEKER].wakeups - before;
    // A keep-alive each 2.5 s: sent, and answered in some pieces.
    assert!((240..=2400).contains(&woken), "{woken} in ten minutes");
    it.world.mute(SEEKER, 0);
    assert!(it.run(6 * SECOND, |it| it.losses().len() == 1));
    assert!(it.losses()[0].contains("keep-alive"), "{:?}", it.losses());
}

#[test]
fn without_keep_alive_each_log_is_read_once_and_the_controllers_are_left() {
    let mut it = Seeker::new(0, 2, 1);
    it.refer(0, &[1]);
    it.routes
        .insert("192.0.2.99:8009".parse().unwrap(), Address::Refused);
    it.seek(0);
    let dead = Endpoint {
        address: "192.0.2.99:8009".parse().unwrap(),
        nqn: DISCOVERY_NQN.into(),
    };
    it.say(DiscoveryControl::Add(9, dead));
    let finished = |it: &Seeker| it.events.contains(&DiscoveryEvent::Finished);
    assert!(it.run(2 * SECOND, finished), "{:?}", it.events);
    assert_eq!(it.offers(), [offer(0, 1), offer(1, 1)]);
    assert_eq!(it.losses().len(), 1);
    it.pass(600 * SECOND);
    assert_eq!(it.world.connections(SEEKER), 0);
    assert_eq!(it.reads().len(), 2, "and never again");
    it.say(DiscoveryControl::Stop);
    it.pass(SECOND);
    assert!(it.world.nodes[SEEKER].stopped);
}

#[test]
fn what_was_read_once_does_not_wait_for_a_controller_that_takes_no_leave() {
    let mut it = Seeker::new(0, 1, 1);
    it.seek(0);
    assert!(it.run(SECOND, |it| !it.reads().is_empty()));
    it.world.mute(SEEKER, 0);
    assert!(it.events.contains(&DiscoveryEvent::Finished));
    assert_eq!(it.offers(), [offer(0, 1)]);
    it.say(DiscoveryControl::Stop);
    it.pass(10 * SECOND);
    assert!(it.world.nodes[SEEKER].stopped, "within connect_timeout");
}

/// A controller that was read is none that can't be, however it ends; and it is not waited for.
#[test]
fn what_was_read_once_holds_when_the_connection_ends_instead_of_an_answer() {
    let mut it = Seeker::new(0, 2, 1);
    it.refer(0, &[1]);
    it.routes.insert(at(1, 1), Address::Silence);
    it.seek(0);
    assert!(it.run(SECOND, |it| !it.reads().is_empty()));
    it.world.cut(SEEKER, 0);
    it.pass(SECOND);
    assert!(it.losses().is_empty(), "{:?}", it.losses());
    let finished = |it: &Seeker| it.events.contains(&DiscoveryEvent::Finished);
    assert!(it.run(3 * SECOND, finished), "{:?}", it.events);
    // Of the referral.
    assert_eq!(it.losses().len(), 1, "{:?}", it.losses());
    assert_eq!(it.offers(), [offer(0, 1)]);
}

#[test]
fn who_is_no_discovery_controller_or_says_nothing_is_named() {
    let mut it = Seeker::new(5_000, 1, 1);
    let wrong = Endpoint {
        nqn: nqn(0),
        ..endpoint(0)
    };
    it.say(DiscoveryControl::Add(0, wrong));
    assert!(it.run(SECOND, |it| !it.losses().is_empty()));
    assert!(it.losses()[0].contains("no discovery controller"));
    let unknown = Endpoint {
        nqn: "nqn.2026-01.org.example:unknown".into(),
        ..endpoint(0)
    };
    it.say(DiscoveryControl::Add(0, unknown));
    assert!(it.run(SECOND, |it| it.losses().len() == 2));
    assert!(
        it.losses()[1].contains("subsystem NQN unknown"),
        "{:?}",
        it.losses()
    );
    it.routes.insert(at(0, 1), Address::Silence);
    it.say(DiscoveryControl::Add(0, endpoint(0)));
    assert!(it.run(4 * SECOND, |it| it.losses().len() == 3));
    assert!(
        it.losses()[2].contains("no connection within"),
        "{:?}",
        it.losses()
    );
    assert_eq!(it.offers(), []);
}

#[test]
fn a_discovery_subsystem_by_its_own_name_on_a_port_of_its_own() {
    let mut it = Seeker::new(5_000, 1, 2);
    let own = "nqn.2026-01.org.example:discovery".to_owned();
    it.change(0, DiscoveryChange::Name(Some(own.clone())));
    it.change(0, DiscoveryChange::Offer(0, PortOffer::Discovery));
    let named = Endpoint {
        nqn: own.clone(),
        ..endpoint(0)
    };
    it.say(DiscoveryControl::Add(0, named));
    it.reaches(SECOND, &[offer(0, 2)]);
    let log = it.events.iter().find_map(|event| match event {
        DiscoveryEvent::Read(_, _, log) => Some(log),
        _ => None,
    });
    let entries = &log.unwrap().entries;
    let kinds: Vec<_> = entries
        .iter()
        .map(|it| (it.subtype, &*it.subnqn, it.eflags))
        .collect();
    assert_eq!(kinds, [(3, &*own, 2), (2, &*nqn(0), 0)]);
}

#[test]
fn a_source_that_goes_takes_its_offers_and_an_end_is_in_order() {
    let mut it = Seeker::new(5_000, 2, 1);
    it.seek(0);
    it.seek(1);
    it.reaches(SECOND, &[offer(0, 1), offer(1, 1)]);
    it.say(DiscoveryControl::Remove(0));
    it.reaches(SECOND, &[offer(1, 1)]);
    it.say(DiscoveryControl::Stop);
    it.pass(SECOND);
    assert!(it.world.nodes[SEEKER].stopped);
    assert_eq!(it.world.connections(SEEKER), 0);
    assert_eq!(it.world.connections(1), 0);
}

#[test]
fn t24_garbage_costs_the_session_and_nothing_that_was_said() {
    let mut it = Seeker::new(5_000, 1, 1);
    it.seek(0);
    it.reaches(SECOND, &[offer(0, 1)]);
    it.world.inject(SEEKER, 0, &[0xff; 64]);
    assert!(it.run(SECOND, |it| it.losses().len() == 1));
    assert!(it.losses()[0].contains("protocol"), "{:?}", it.losses());
    assert_eq!(it.offers(), [offer(0, 1)]);
    assert!(it.run(9 * SECOND, |it| it.reads().len() == 2));
    assert_eq!(it.offers(), [offer(0, 1)]);
}

#[test]
fn who_trickles_or_says_nothing_is_given_up_in_time() {
    for player in [Player::silent(), Player::trickle(&[1; 4096], 400 * MS)] {
        let mut it = Seeker::new(5_000, 0, 0);
        let node = it.world.add(Rc::new(RefCell::new(player)), 0);
        let to = Address::To {
            node,
            listener: 0,
            delay_ns: WIRE_NS,
        };
        it.routes.insert(at(0, 1), to);
        it.seek(0);
        assert!(it.run(4 * SECOND, |it| !it.losses().is_empty()));
        let before = it.world.nodes[SEEKER].wakeups;
        it.pass(600 * SECOND);
        let woken = it.world.nodes[SEEKER].wakeups - before;
        assert!(woken < 2_000, "{woken} in ten minutes");
        assert_eq!(it.offers(), []);
        it.say(DiscoveryControl::Stop);
        it.pass(10 * SECOND);
        assert!(it.world.nodes[SEEKER].stopped);
    }
}

/// The answer to an Asynchronous Event Request that says: no more of them.
fn refused_event(cid: u16) -> Vec<u8> {
    let mut pdu = vec![5, 0, 24, 0, 24, 0, 0, 0]; // CapsuleResp
    pdu.extend([0; 12]);
    pdu.extend(cid.to_le_bytes());
    pdu.extend(0x8000_u16.wrapping_add(0x105 << 1).to_le_bytes());
    pdu
}

#[test]
fn who_refuses_to_tell_of_changes_is_asked_for_its_log_each_minute() {
    let mut asked = false;
    // A slot of 32, and how often it was used before: it is among the first of either.
    let cids = (0..4).flat_map(|slot| (0..64).map(move |generation| generation << 5 | slot));
    for cid in cids {
        let mut it = Seeker::new(5_000, 1, 1);
        it.seek(0);
        it.reaches(SECOND, &[offer(0, 1)]);
        it.pass(SECOND);
        it.world.inject(SEEKER, 0, &refused_event(cid));
        it.pass(SECOND);
        if it.losses().is_empty() {
            // It was the request's: of any other the session would have ended.
            asked = true;
            assert_eq!(it.reads().len(), 1);
            it.pass(130 * SECOND);
            assert_eq!(it.reads().len(), 3);
            assert!(it.losses().is_empty(), "{:?}", it.losses());
        }
    }
    assert!(asked, "no identifier was the request's");
}

/// 14 that are nowhere, and more behind each that answers: the other source keeps its share.
#[test]
fn who_refers_to_many_pushes_out_no_controller_of_another_source() {
    let mut it = Seeker::new(5_000, DISCOVERY_CONTROLLERS_MAX + 6, 1);
    let (crowd, honest) = (0, 1);
    it.refer(
        crowd,
        &(5..DISCOVERY_CONTROLLERS_MAX + 5).collect::<Vec<_>>(),
    );
    it.refer(honest, &[2]);
    it.refer(2, &[3]);
    it.seek(crowd);
    assert!(it.run(2 * SECOND, |it| it.offers().len()
        == DISCOVERY_CONTROLLERS_MAX));
    it.seek(honest);
    let wanted = [honest, 2, 3].map(|target| offer(target, 1));
    let has = |it: &Seeker| wanted.iter().all(|way| it.offers().contains(way));
    assert!(it.run(2 * SECOND, has), "{:?}", it.offers());
    it.pass(10 * SECOND);
    assert!(has(&it), "{:?}", it.offers());
    assert_eq!(it.offers().len(), DISCOVERY_CONTROLLERS_MAX);
}

/// A host that is told of a log knows by then which others to wait for.
#[test]
fn who_is_asked_is_said_before_the_log_that_refers_to_them() {
    let mut it = Seeker::new(5_000, 2, 1);
    it.refer(0, &[1]);
    it.seek(0);
    it.reaches(SECOND, &[offer(0, 1), offer(1, 1)]);
    let place = |wanted: &dyn Fn(&DiscoveryEvent) -> bool| it.events.iter().position(wanted);
    let both: BTreeSet<_> = [endpoint(0), endpoint(1)].into();
    let asked = place(&|event| *event == DiscoveryEvent::Asked(both.clone()));
    let read =
        place(&|event| matches!(event, DiscoveryEvent::Read(from, ..) if *from == endpoint(0)));
    assert!(asked.is_some() && asked < read, "{:?}", it.events);
    it.refer(0, &[]);
    it.reaches(DISCOVERY_REREAD_NS + SECOND, &[offer(0, 1)]);
    let last = it.events.iter().rev().find_map(|event| match event {
        DiscoveryEvent::Asked(all) => Some(all.clone()),
        _ => None,
    });
    assert_eq!(last, Some([endpoint(0)].into()));
}

/// KAS in Identify Controller, and where its subsystem NQN begins.
const KAS_AT: usize = 320;
const SUBNQN_AT: usize = 768;

/// SPDK's discovery controller: KAS is 0, and a host that is silent for KATO is dropped.
#[test]
fn t29_a_controller_with_kas_0_that_drops_silent_hosts_keeps_its_session() {
    let mut it = Seeker::new(5_000, 0, 1);
    let target = it.add_patched(0);
    target.borrow_mut().page = Box::new(|page| {
        if page[SUBNQN_AT..].starts_with(b"nqn.") {
            page[KAS_AT..][..2].fill(0);
        }
    });
    it.seek(0);
    assert!(it.run(SECOND, |it| !it.reads().is_empty()));
    it.pass(600 * SECOND);
    assert_eq!(it.losses(), [""; 0]);
    // It says what changes, and keep-alive shows that it is there: no need to read again.
    assert_eq!(it.reads().len(), 1);
    assert_eq!(target.borrow().katos, [5_000]);
}

/// Discovery controllers of before NVMe-oF 1.1 take no keep-alive time-out: the session has none,
/// and the log is read again and again.
#[test]
fn a_controller_that_refuses_kato_is_asked_without() {
    for status in [
        Status::KEEP_ALIVE_INVALID,
        Status::INVALID_FIELD,
        connect_status::INVALID_PARAMETERS,
    ] {
        let mut it = Seeker::new(5_000, 0, 1);
        let target = it.add_patched(0);
        target.borrow_mut().refuse = Box::new(move |kato_ms| (kato_ms > 0).then_some(status));
        it.seek(0);
        assert!(it.run(3 * SECOND, |it| !it.reads().is_empty()));
        it.pass(170 * SECOND);
        assert_eq!(it.losses(), [""; 0]);
        assert_eq!(it.reads().len(), 3, "{status:?}");
        assert_eq!(target.borrow().katos, [5_000, 0]);
    }
}

/// A Connect refused for another reason is refused without a KATO too, and reported.
#[test]
fn a_controller_that_refuses_anyway_is_complained_of() {
    let mut it = Seeker::new(5_000, 0, 1);
    let target = it.add_patched(0);
    target.borrow_mut().refuse = Box::new(|_| Some(Status::INVALID_FIELD.with_dnr()));
    it.seek(0);
    it.pass(60 * SECOND);
    assert_eq!(it.losses().len(), 1, "{:?}", it.losses());
    let katos = target.borrow().katos.clone();
    assert!(katos.starts_with(&[5_000, 0, 5_000, 0]), "{katos:?}");
}
