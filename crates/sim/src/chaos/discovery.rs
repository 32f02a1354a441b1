//! Discovery in a world: controllers that tell of the ways to the subsystem, and hosts that know
//! none but those they are told of.
//!
//! Two things there are in some worlds only ([`plan`] draws which): one or two discovery
//! controllers (processes of `engine::target`, of which only the log is used), and a reactor of
//! each host with `engine::discovery`, as `braid run` has it. The first controller announces some
//! ports and refers to the second, which announces the others and refers back.
//!
//! * here: who is there, and how paths follow what is told
//! * [`mod@plan`]: which worlds, and what goes wrong; `fault`: it does; `check`: what must be true
//!
//! # Contract
//! An announced path is added, one that is not announced any more is removed, never by force and
//! never if no other one is live, as `braid run` does with `gone = "remove"`; a refused change is
//! repeated a little later. A host learns of paths by its sessions only; the expected log
//! ([`Rig::is_told`]) is known to the checkers.
//!
//! # Limits
//! `braid run` handles announced paths with threads and locks; here are the same rules without
//! them.
mod check;
mod fault;
pub(super) mod plan;

use super::prelude::*;
use super::user::Wish;
use alloc::string::ToString;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use engine::discovery::{
    DiscoveryConfig, DiscoveryControl, DiscoveryEngine, DiscoveryEvent, Endpoint, Offer,
};
use engine::limits::DISCOVERY_CONTROLLERS_MAX;
use engine::target::TargetConfig;
use nvme::controller::{DiscoveryChange, PortOffer, Referral};
use nvme::wire::fabrics::DISCOVERY_NQN;

/// Until what was refused is asked for again, ns.
const AGAIN_NS: u64 = 100 * MS;
/// Controllers there are at most.
const TELLERS_MAX: usize = 2;

/// Discovery controllers and the hosts that use them.
pub(super) struct Discovery {
    /// Nodes of the discovery controllers.
    pub tellers: Vec<usize>,
    /// By host.
    pub seekers: Vec<Seeker>,
    /// By address of a path: faults because of which it is not told of.
    pub withheld: Vec<u32>,
    /// Faults because of which controllers don't refer to each other.
    pub unreferred: u32,
}

/// A host's part.
pub(super) struct Seeker {
    pub node: usize,
    /// By address of a path: when it is to be made as it is told; `None`: it is so.
    due_ns: Vec<Option<u64>>,
}

/// Where a path leads.
fn path_at(address: usize) -> SocketAddr {
    SocketAddr::new(
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, address as u8 + 1)),
        4420,
    )
}

/// Where a discovery controller is.
fn teller_at(number: usize) -> SocketAddr {
    SocketAddr::new(
        IpAddr::V4(Ipv4Addr::new(198, 51, 100, number as u8 + 1)),
        8009,
    )
}

/// How a path is told of.
pub(super) fn offer(address: usize) -> Offer {
    Offer {
        nqn: make::NQN.into(),
        address: path_at(address),
    }
}

fn referral(to: usize) -> Referral {
    Referral {
        port_id: 9,
        traddr: teller_at(to).ip().to_string(),
        trsvcid: teller_at(to).port().to_string(),
        ipv6: false,
        nqn: DISCOVERY_NQN.into(),
    }
}

impl Discovery {
    /// Takes the events of the hosts' reactors after their turns.
    pub(super) fn listen(&mut self, world: &mut World, node: usize) {
        let Some(seeker) = self.seekers.iter_mut().find(|it| it.node == node) else {
            return;
        };
        let now_ns = world.now_ns;
        loop {
            let it = &mut world.nodes[node];
            let Body::Seeker(engine) = &mut it.body else {
                return;
            };
            let Some(event) = engine.poll_event() else {
                return;
            };
            match event {
                DiscoveryEvent::Lead(place, address) => {
                    let found = (0..self.tellers.len()).find(|it| teller_at(*it) == address);
                    let Some(number) = found else {
                        return world.blame(node, Some(format!("no referral leads to {address}")));
                    };
                    // A controller's own port comes after those that it tells of.
                    let listener = seeker.due_ns.len() as u32;
                    it.addresses[place as usize] = (self.tellers[number], listener);
                    engine.handle_control(DiscoveryControl::Led(place), now_ns);
                    it.stirred = true;
                }
                DiscoveryEvent::Appeared(told, _) | DiscoveryEvent::Gone(told) => {
                    let mut due = (0..).zip(&mut seeker.due_ns);
                    let Some((_, due_ns)) = due.find(|(it, _)| offer(*it) == told) else {
                        return world.blame(node, Some(format!("{told:?} was not announced")));
                    };
                    *due_ns = Some(now_ns);
                    world.tell(|| format!("node {node}: heard of a change at {}", told.address));
                }
                DiscoveryEvent::Lost(from, why) => {
                    world.tell(|| format!("node {node}: {}: {why}", from.address));
                }
                _ => {}
            }
        }
    }
}

impl Rig {
    /// Controllers and reactors, if this world has discovery.
    pub(super) fn add_discovery(&mut self) {
        let count = self.layout.more.tellers.min(TELLERS_MAX);
        if count == 0 {
            return;
        }
        let paths = self.layout.targets * usize::from(self.layout.ports);
        let first = self.world.nodes.len();
        let arena = self.teller_config().arena_bytes as usize;
        for _ in 0..count {
            self.world.nodes.push(Node::new(Body::Dead, arena));
        }
        let mut seekers = Vec::new();
        for _ in 0..self.hosts.len() {
            let node = self.world.nodes.len();
            let mut it = Node::new(Body::Dead, 0);
            it.addresses = vec![(first, 0); DISCOVERY_CONTROLLERS_MAX];
            self.world.nodes.push(it);
            let due_ns = vec![None; paths];
            seekers.push(Seeker { node, due_ns });
        }
        self.discovery = Some(Discovery {
            tellers: (first..first + count).collect(),
            seekers,
            withheld: vec![0; paths],
            unreferred: 0,
        });
        (0..count).for_each(|number| self.start_teller(number));
        (0..self.hosts.len()).for_each(|host| self.start_seeker(host));
    }

    /// A controller's process: a port for each path, and its own after them.
    fn teller_config(&self) -> TargetConfig {
        let mut config = self.target_config(0);
        let paths = self.layout.targets * usize::from(self.layout.ports);
        let port = |id: usize, at| make::port(id as u16 + 1, at);
        let mut ports: Vec<_> = (0..paths).map(|it| port(it, path_at(it))).collect();
        ports.push(port(paths, teller_at(0)));
        config.shapes = vec![shape::Config::default(); ports.len()];
        config.subsystem.ports = ports;
        config.subsystem.namespaces.clear();
        config.subsystem.connections_max = 24;
        config.devices.clear();
        config.arena_bytes = 2 << 20;
        config
    }

    /// A controller's process begins, and tells what it should.
    fn start_teller(&mut self, number: usize) {
        let body = make::target(self.teller_config());
        let Some(discovery) = &self.discovery else {
            return;
        };
        let node = discovery.tellers[number];
        self.world.revive(node, body);
        let paths = discovery.withheld.len() as u16;
        self.say(number, DiscoveryChange::Offer(paths, PortOffer::Discovery));
        (0..usize::from(paths)).for_each(|address| self.offer_at(number, address));
        self.refer(number);
    }

    /// Something is said to a controller's process, if there is one.
    fn say(&mut self, number: usize, change: DiscoveryChange) {
        let Some(discovery) = &self.discovery else {
            return;
        };
        let node = discovery.tellers[number];
        self.world.command(node, TargetControl::Discovery(change));
    }

    /// A controller tells of a path, or not, as it is now.
    fn offer_at(&mut self, number: usize, address: usize) {
        let Some(it) = &self.discovery else { return };
        let offer = match address % it.tellers.len() == number && it.withheld[address] == 0 {
            true => PortOffer::Subsystem,
            false => PortOffer::Withdrawn,
        };
        self.say(number, DiscoveryChange::Offer(address as u16, offer));
    }

    fn refer(&mut self, number: usize) {
        let Some(discovery) = &self.discovery else {
            return;
        };
        let others = (0..discovery.tellers.len()).filter(|it| *it != number);
        let all = match discovery.unreferred {
            0 => others.map(referral).collect(),
            _ => Vec::new(),
        };
        self.say(number, DiscoveryChange::Referrals(all));
    }

    /// Whether a path is told of by a controller that hosts know of; without discovery all are
    /// there.
    pub(super) fn is_told(&self, address: usize) -> bool {
        self.discovery.as_ref().is_none_or(|it| {
            let known = it.unreferred == 0 || address.is_multiple_of(it.tellers.len());
            it.withheld[address] == 0 && known
        })
    }

    /// Whether a host's reactor says that a path is told of; without discovery it is there.
    pub(super) fn has_heard(&self, host: usize, address: usize) -> bool {
        let Some(discovery) = &self.discovery else {
            return true;
        };
        match &self.world.nodes[discovery.seekers[host].node].body {
            Body::Seeker(engine) => engine.offers().any(|(it, _)| *it == offer(address)),
            _ => false,
        }
    }

    /// The wires between a host's reactor, or all hosts', and the controllers.
    pub(super) fn discovery_wires(&self, host: Option<usize>) -> Vec<Wire> {
        let Some(it) = &self.discovery else {
            return Vec::new();
        };
        let listener = it.withheld.len() as u32;
        let seekers = (0..).zip(&it.seekers);
        let those = seekers.filter(|(number, _)| host.is_none_or(|host| host == *number));
        let wire = |from: usize| move |&to: &usize| Wire { from, to, listener };
        those
            .flat_map(|(_, seeker)| it.tellers.iter().map(wire(seeker.node)))
            .collect()
    }

    /// A host's process begins, and with it its reactor.
    pub(super) fn start_seeker(&mut self, host: usize) {
        let Some(discovery) = &mut self.discovery else {
            return;
        };
        let seeker = &mut discovery.seekers[host];
        seeker.due_ns.fill(None);
        let node = seeker.node;
        let config = DiscoveryConfig {
            identity: make::identity(host),
            digests: Digests {
                header: self.layout.digests,
                data: self.layout.digests,
            },
            kato_ms: KATO_MS,
            connect_timeout_ns: 1_000 * MS,
            reconnect_min_ns: 50 * MS,
            reconnect_max_ns: 2_000 * MS,
            poll_ns: 5_000 * MS,
        };
        let mut engine = DiscoveryEngine::new(config);
        let source = Endpoint {
            address: teller_at(0),
            nqn: DISCOVERY_NQN.into(),
        };
        engine.handle_control(DiscoveryControl::Add(0, source), self.world.now_ns);
        // Sessions that had not ended yet when their process did.
        self.world.kill(node);
        self.world.revive(node, Body::Seeker(Box::new(engine)));
    }

    /// A host's process dies, and with it its reactor.
    pub(super) fn kill_seeker(&mut self, host: usize) {
        if let Some(discovery) = &self.discovery {
            self.world.kill(discovery.seekers[host].node);
        }
    }

    /// A host's process stops in order: its sessions end.
    pub(super) fn stop_seeker(&mut self, host: usize) {
        let Some(discovery) = &self.discovery else {
            return;
        };
        let node = &mut self.world.nodes[discovery.seekers[host].node];
        if let Body::Seeker(engine) = &mut node.body {
            engine.handle_control(DiscoveryControl::Stop, self.world.now_ns);
            node.stirred = true;
        }
    }

    /// Asks for what makes paths as they are told.
    pub(super) fn follow(&mut self) {
        let Some(mut discovery) = self.discovery.take() else {
            return;
        };
        let now_ns = self.world.now_ns;
        for (host, seeker) in (0..).zip(&mut discovery.seekers) {
            for (address, due_ns) in (0..).zip(&mut seeker.due_ns) {
                if due_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                    let told = match &self.world.nodes[seeker.node].body {
                        Body::Seeker(engine) => {
                            engine.offers().any(|(it, _)| *it == offer(address))
                        }
                        _ => continue,
                    };
                    *due_ns = self.adapt(host, address, told).then_some(now_ns + AGAIN_NS);
                }
            }
        }
        self.discovery = Some(discovery);
    }

    /// One path; whether it is not as it is told, or may not be.
    fn adapt(&mut self, host: usize, address: usize, told: bool) -> bool {
        let it = &self.hosts[host];
        let Body::Core(engine) = &self.world.nodes[it.cores[0]].body else {
            return true;
        };
        if it.stopping.is_some() || it.user.waits_for(address) {
            return true;
        }
        match (told, it.user.path(address)) {
            (true, None) => self.ask(host, address, Wish::Add, false),
            (false, Some(path)) => {
                let engine = engine.host();
                let is_live = |other| engine.path_state(0, other) == PathState::Live;
                if engine.paths(0).any(|other| other != path && is_live(other)) {
                    self.ask(host, address, Wish::Remove, false);
                }
            }
            _ => return false,
        }
        true
    }
}
