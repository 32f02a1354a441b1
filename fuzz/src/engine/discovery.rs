//! Somebody who discovers, an honest target that tells of itself, and a [`Liar`] that tells
//! anything: of itself, of others, and again and again.
//!
//! Checked: see the module above; the honest target's way appears and never goes, only what can be
//! connected to appears, no log is read more often than is said, and when the lying is over all is
//! told as it is.
use super::common::target_config;
use super::common::{Address, BLOCK, BLOCKS, Disk, MS, SECOND, WIRE_NS, World, host_config};
use super::liar::{Liar, Lie};
use super::tape::Tape;
use engine::Machine;
use engine::Span;
use engine::discovery::{
    DiscoveryConfig, DiscoveryControl, DiscoveryEngine, DiscoveryEvent, Endpoint, Offer,
};
use engine::limits::DISCOVERY_CONTROLLERS_MAX;
use engine::target::{TargetConfig, TargetControl, TargetEngine};
use nvme::controller::{DiscoveryChange, PortOffer, Referral};
use nvme::host::Digests;
use nvme::wire::fabrics::DISCOVERY_NQN;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

/// A lie is armed; it follows.
pub const LIE: u8 = 8;
/// The liar refers to others; how many and which follows.
pub const REFER: u8 = 11;
/// Its ways come and go.
pub const OFFER: u8 = 12;
/// Time passes; ms follow.
pub const PASS: u8 = 1;

const SEEKER: usize = 0;
const HONEST: usize = 1;
const LIAR: usize = 2;
/// Room for a transfer that nobody wrote.
const GARBAGE: u32 = 128 << 10;
/// How often a log is read whose controller says nothing by itself.
const POLL_NS: u64 = 10 * SECOND;
/// Until all is told as it is: the longest pause, a time-out, a look.
const CALM_NS: u64 = 60 * SECOND;

/// The tape: a byte of configuration, then one operation after the other.
pub fn run(data: &[u8]) {
    play(data);
}

/// The same; how many logs were read.
pub fn play(data: &[u8]) -> u64 {
    let mut tape = Tape::new(data);
    let mut scene = Scene::new(tape.byte());
    while let Some(operation) = tape.operation() {
        scene.step(operation, &mut tape);
    }
    scene.finish()
}

struct Scene {
    world: World,
    seeker: Rc<RefCell<DiscoveryEngine>>,
    target: Rc<RefCell<TargetEngine>>,
    liar: Rc<RefCell<Liar>>,
    heard: Heard,
    persistent: bool,
}

/// Events of the seeker.
struct Heard {
    begun_ns: u64,
    /// Logs by who told them.
    reads: BTreeMap<Endpoint, u64>,
    honest: bool,
    /// It was told to stop.
    over: bool,
}

/// Where a node's port is; nodes that there are not have addresses too.
fn at(node: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, node as u8], 4420))
}

fn nqn(node: usize) -> String {
    format!("nqn.2026-01.org.example:t{node}")
}

fn offer(node: usize) -> Offer {
    Offer {
        nqn: nqn(node),
        address: at(node),
    }
}

fn endpoint(node: usize) -> Endpoint {
    Endpoint {
        address: at(node),
        nqn: DISCOVERY_NQN.into(),
    }
}

fn config(choice: u8) -> DiscoveryConfig {
    DiscoveryConfig {
        identity: host_config(1).identity,
        digests: Digests {
            header: choice & 1 != 0,
            data: choice & 2 != 0,
        },
        kato_ms: if choice & 4 != 0 { 0 } else { 2_000 },
        connect_timeout_ns: 2 * SECOND,
        reconnect_min_ns: SECOND,
        reconnect_max_ns: 8 * SECOND,
        poll_ns: POLL_NS,
    }
}

fn target(node: usize) -> TargetConfig {
    let mut config = target_config(1);
    config.subsystem.nqn = nqn(node);
    let port = &mut config.subsystem.ports[0];
    port.traddr = at(node).ip().to_string();
    port.trsvcid = at(node).port().to_string();
    config.arena_bytes = 2 << 20;
    config
}

/// Where an address leads.
fn route(address: &SocketAddr) -> Address {
    let to = |node| Address::To {
        node,
        listener: 0,
        delay_ns: WIRE_NS,
    };
    let node = [HONEST, LIAR]
        .into_iter()
        .find(|node| at(*node) == *address);
    node.map_or(Address::Refused, to)
}

impl Heard {
    /// Whatever a controller tells, this holds.
    fn event(&mut self, event: &DiscoveryEvent, now_ns: u64) {
        match event {
            DiscoveryEvent::Lead(place, _) => {
                assert!((*place as usize) < DISCOVERY_CONTROLLERS_MAX);
            }
            DiscoveryEvent::Read(from, ..) => {
                let count = self.reads.entry(from.clone()).or_default();
                *count += 1;
                // For each connection one, and for each second of it one.
                let most = 4 + 2 * (now_ns - self.begun_ns) / SECOND;
                assert!(*count <= most, "{from:?} is read without end");
            }
            DiscoveryEvent::Asked(all) => assert!(all.len() <= DISCOVERY_CONTROLLERS_MAX),
            DiscoveryEvent::TooMany(all) => assert!(all.len() <= DISCOVERY_CONTROLLERS_MAX),
            DiscoveryEvent::Appeared(way, _) => {
                let ip = way.address.ip();
                assert!(!ip.is_unspecified() && !ip.is_multicast(), "{way:?}");
                assert!(way.address.port() > 0 && way.nqn.starts_with("nqn."));
                self.honest |= *way == offer(HONEST);
            }
            DiscoveryEvent::Gone(_) | DiscoveryEvent::Left(_) if self.over => {}
            DiscoveryEvent::Gone(way) => assert_ne!(*way, offer(HONEST), "nobody said so"),
            DiscoveryEvent::Lost(_, why) => assert!(!why.is_empty()),
            DiscoveryEvent::Left(from) => assert_ne!(*from, endpoint(HONEST)),
            DiscoveryEvent::Finished => {}
        }
    }
}

impl Scene {
    fn new(choice: u8) -> Self {
        let mut world = World::new(5);
        let engine = |node| TargetEngine::new(target(node)).expect("a target");
        let arena = target(HONEST).arena_bytes;
        let garbage = Span {
            at: arena,
            len: GARBAGE,
        };
        let seeker = Rc::new(RefCell::new(DiscoveryEngine::new(config(choice))));
        let honest = Rc::new(RefCell::new(engine(HONEST)));
        let liar = Rc::new(RefCell::new(Liar::new(engine(LIAR), garbage)));
        world.add(seeker.clone(), 0);
        world.add(honest.clone(), arena as usize);
        world.add(liar.clone(), arena as usize + GARBAGE as usize);
        world.nodes[SEEKER].addresses = vec![Address::Refused; DISCOVERY_CONTROLLERS_MAX];
        for node in [HONEST, LIAR] {
            world.nodes[node].disks = vec![Disk::new((BLOCKS * u64::from(BLOCK)) as usize)];
        }
        let heard = Heard {
            begun_ns: world.now_ns,
            reads: BTreeMap::new(),
            honest: false,
            over: false,
        };
        let mut scene = Self {
            world,
            seeker,
            target: honest,
            liar,
            heard,
            persistent: choice & 4 == 0,
        };
        for node in [HONEST, LIAR] {
            scene.say(DiscoveryControl::Add(node as u32, endpoint(node)));
        }
        scene
    }

    fn say(&mut self, message: DiscoveryControl) {
        let now_ns = self.world.now_ns;
        self.seeker.borrow_mut().handle_control(message, now_ns);
    }

    fn step(&mut self, operation: u8, tape: &mut Tape) {
        match operation & 15 {
            0 => self.pass(u64::from(operation >> 4) * 20_000),
            PASS => self.pass(u64::from(tape.word() % 8192) * MS),
            2..=5 => self.pass(MS << (operation >> 4)),
            6 => self.liar.borrow_mut().mute(operation & 16 != 0),
            7 => {
                self.liar.borrow_mut().leave(None, operation & 0x80 != 0);
                self.pass(0);
            }
            9 => {
                self.liar.borrow_mut().say(Lie::read(tape));
                self.pass(20_000);
            }
            10 => self.liar.borrow_mut().refuses = operation & 16 != 0,
            REFER => {
                let nodes = tape.take(usize::from(operation >> 4) * 2);
                let all = nodes.iter().map(|node| referral(*node)).collect();
                self.change(DiscoveryChange::Referrals(all));
            }
            OFFER => {
                let all = [PortOffer::Withdrawn, PortOffer::Subsystem];
                let offer = all[usize::from(operation >> 4 & 1)];
                self.change(DiscoveryChange::Offer(0, offer));
            }
            13 => self.say(match operation & 16 {
                0 => DiscoveryControl::Remove(LIAR as u32),
                _ => DiscoveryControl::Add(LIAR as u32, endpoint(LIAR)),
            }),
            _ => {
                let lie = Lie::read(tape);
                self.liar.borrow_mut().lies.push(lie);
            }
        }
    }

    /// The liar's target has something else to tell.
    fn change(&mut self, change: DiscoveryChange) {
        let message = TargetControl::Discovery(change);
        let now_ns = self.world.now_ns;
        self.liar.borrow_mut().inner.handle_control(message, now_ns);
    }

    fn pass(&mut self, ns: u64) {
        let Self {
            world,
            seeker,
            heard,
            ..
        } = self;
        world.run(ns, |world| {
            while let Some(event) = { seeker.borrow_mut().poll_event() } {
                heard.event(&event, world.now_ns);
                if let DiscoveryEvent::Lead(place, address) = &event {
                    world.nodes[SEEKER].addresses[*place as usize] = route(address);
                    let led = DiscoveryControl::Led(*place);
                    seeker.borrow_mut().handle_control(led, world.now_ns);
                }
            }
            false
        });
    }

    /// The liar tells the truth: all is known; then all is left.
    fn finish(mut self) -> u64 {
        {
            let mut liar = self.liar.borrow_mut();
            liar.lies.clear();
            liar.mute(false);
            liar.refuses = false;
            // Its last log is believed until it sends another one.
            liar.leave(None, true);
        }
        self.change(DiscoveryChange::Referrals(Vec::new()));
        self.change(DiscoveryChange::Offer(0, PortOffer::Subsystem));
        self.say(DiscoveryControl::Add(LIAR as u32, endpoint(LIAR)));
        self.pass(CALM_NS);
        assert!(self.heard.honest, "the honest one was not found");
        let ways: Vec<Offer> = {
            let seeker = self.seeker.borrow();
            seeker.offers().map(|(way, _)| way.clone()).collect()
        };
        assert!(ways.contains(&offer(HONEST)), "{ways:?}");
        if self.persistent {
            assert_eq!(ways, [offer(HONEST), offer(LIAR)], "all is told as it is");
        }
        self.heard.over = true;
        self.say(DiscoveryControl::Stop);
        self.pass(10 * SECOND);
        assert!(self.world.nodes[SEEKER].stopped, "it does not stop");
        self.pass(10 * SECOND);
        let target = self.target.borrow();
        assert_eq!(target.port_stats(0).connections, 0);
        assert_eq!(target.buffers_free(), target.buffers());
        assert_eq!(self.liar.borrow().connections(), 0);
        self.heard.reads.values().sum()
    }
}

/// To a node by a byte: most lead nowhere, some to the two that there are, under some name.
fn referral(node: u8) -> Referral {
    let to = usize::from(node & 31);
    Referral {
        port_id: u16::from(node) + 1,
        traddr: at(to).ip().to_string(),
        trsvcid: at(to).port().to_string(),
        ipv6: false,
        nqn: match node >> 5 {
            0..4 => DISCOVERY_NQN.into(),
            other => nqn(usize::from(other)),
        },
    }
}
