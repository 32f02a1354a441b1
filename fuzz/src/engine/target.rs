//! A target with four connections of hosts that lie, and an honest host beside them.
//!
//! The honest host has a port and a namespace of its own; the others may not reach that namespace
//! through theirs (ANA). Checked: see the module above; and that through every lie the honest host
//! loses no path and fails no I/O.
use super::clients::Clients;
use super::common::{
    Address, BLOCK, BLOCKS, Disk, HOST, Load, MS, Rig, SECOND, TARGET, WIRE_NS, failures,
    host_config, namespace, target_config,
};
use super::initiator::{self, Initiator};
use super::tape::Tape;
use engine::LocalDevice;
use engine::host::{HostConfig, HostControl, PathKind};
use engine::limits::TARGET_LINGER_NS;
use engine::machine::Closed;
use engine::target::{TargetConfig, TargetControl};
use nvme::host::{AnaState, Digests};
use std::cell::RefCell;
use std::rc::Rc;

/// A whole association: connected, enabled.
pub const ASSOCIATE: u8 = 16;
/// An I/O queue of the first connection's controller.
pub const QUEUE: u8 = 17;
/// Time passes; ms follow.
pub const PASS: u8 = 18;
/// An operation on connection `n`.
pub const fn of(connection: u8, operation: u8) -> u8 {
    connection << 5 | operation
}

/// Connections that lie.
const LIARS: usize = 4;
/// Between two operations.
const STEP_NS: u64 = MS / 5;
/// The honest host's I/Os under way.
const DEPTH: u64 = 2;
/// A host that is honest waits no longer, whatever others hold.
const SERVED_NS: u64 = 20 * SECOND;
const RESET: Closed = Closed::Error(104);

/// The tape: a byte of configuration, then one operation after the other.
pub fn run(data: &[u8]) {
    play(data);
}

/// The same; good responses to those that lie.
pub fn play(data: &[u8]) -> u32 {
    let mut tape = Tape::new(data);
    let choice = tape.byte();
    let mut scene = Scene::new(choice);
    while let Some(operation) = tape.operation() {
        scene.step(operation, &mut tape);
    }
    scene.finish(choice & 0x40 != 0)
}

struct Scene {
    rig: Rig,
    clients: Rc<RefCell<Clients>>,
    node: usize,
    liars: Vec<Initiator>,
    load: Load,
}

/// Two ports with a namespace each; little memory.
fn target(choice: u8) -> TargetConfig {
    let mut config = target_config(2);
    let mut second = namespace(2);
    second.ana_group = 2;
    let of = &mut config.subsystem;
    of.namespaces.push(second);
    of.transfer_shift = 15;
    of.maxh2cdata = 8192;
    of.entries_max = 16;
    of.connections_max = 8;
    of.volatile_write_cache = choice & 1 != 0;
    of.c2h_success = choice & 2 != 0;
    config.devices = vec![LocalDevice(0), LocalDevice(1)];
    config.arena_bytes = 256 << 10;
    if choice & 4 != 0 {
        config.shapes[1].delay_ns = 3 * MS;
    }
    config
}

fn host(choice: u8) -> HostConfig {
    let mut config = host_config(1);
    config.io_timeout_ns = SERVED_NS;
    config.digests = Digests {
        header: choice & 8 != 0,
        data: choice & 16 != 0,
    };
    let PathKind::NvmeTcp { nsid, .. } = &mut config.volumes[0].paths[0].kind else {
        unreachable!("a path over TCP");
    };
    *nsid = Some(1);
    config
}

impl Scene {
    fn new(choice: u8) -> Self {
        let mut rig = Rig::new(host(choice), target(choice));
        let mut disk = Disk::new((BLOCKS * u64::from(BLOCK)) as usize);
        disk.delay_ns = if choice & 32 != 0 { MS } else { 0 };
        rig.world.nodes[TARGET].disks[1] = disk;
        for (port, group) in [(0, 2), (1, 1)] {
            rig.target_control(TargetControl::AnaGroup(port, group, AnaState::Inaccessible));
        }
        rig.ready();
        let clients = Rc::new(RefCell::new(Clients::new(0)));
        let node = rig.world.add(clients.clone(), 0);
        rig.world.nodes[node].addresses = vec![Address::To {
            node: TARGET,
            listener: 1,
            delay_ns: WIRE_NS,
        }];
        Self {
            rig,
            clients,
            node,
            liars: (0..LIARS).map(|_| Initiator::new()).collect(),
            load: Load::new(0, DEPTH, 16384),
        }
    }

    fn step(&mut self, operation: u8, tape: &mut Tape) {
        let liar = usize::from(operation >> 5) % LIARS;
        match operation & 31 {
            initiator::OPEN => self.open(liar),
            ASSOCIATE => {
                self.open(liar);
                self.say(liar, initiator::INITIALIZE, &[tape.byte() & 3]);
                self.say(liar, initiator::CONNECT_ADMIN, &[tape.byte() & 0x7d]);
                self.say(liar, initiator::CONFIGURE, &[0]);
            }
            QUEUE => {
                self.open(liar);
                self.say(liar, initiator::INITIALIZE, &[tape.byte() & 3]);
                self.say(
                    liar,
                    initiator::CONNECT_IO,
                    &[tape.byte() & 0x70, 1 + liar as u8],
                );
            }
            PASS => self.pass(u64::from(tape.word()) * MS),
            19 => self.end(liar, RESET),
            20 => self.end(liar, Closed::ByPeer),
            21 => self.stuff(liar, tape.byte() & 1 != 0),
            22 => self.administer(tape),
            23 => self.pass(u64::from(tape.byte()) * 10_000),
            operation => {
                let controller = self.controller(tape.byte());
                let clients = &mut self.clients.borrow_mut();
                self.liars[liar].act(operation, tape, clients, controller);
            }
        }
        self.load.total += DEPTH;
        self.pass(STEP_NS);
    }

    /// Controller of one connection, or any number.
    fn controller(&self, choice: u8) -> u16 {
        let of = self.liars.get(usize::from(choice));
        of.and_then(|of| of.cntlid).unwrap_or(choice.into())
    }

    fn say(&mut self, liar: usize, operation: u8, words: &[u8]) {
        let controller = self.controller(0);
        let mut words = Tape::new(words);
        {
            let clients = &mut self.clients.borrow_mut();
            self.liars[liar].act(operation, &mut words, clients, controller);
        }
        self.pass(STEP_NS);
    }

    /// In place of the connection that was there.
    fn open(&mut self, liar: usize) {
        self.end(liar, RESET);
        let conn = self.clients.borrow_mut().connect_raw(0);
        self.liars[liar].open(conn);
        self.pass(STEP_NS);
    }

    fn end(&mut self, liar: usize, how: Closed) {
        if how == Closed::ByPeer {
            self.stuff(liar, false);
        }
        if let Some(conn) = self.liars[liar].conn.take() {
            self.rig.world.end(self.node, conn as u32, None, how);
        }
    }

    /// It takes nothing that the target says, or does again.
    fn stuff(&mut self, liar: usize, stuffed: bool) {
        let conn = self.liars[liar].conn.unwrap_or(usize::MAX) as u32;
        let conns = &self.rig.world.nodes[self.node].conns;
        if conns.get(&conn).is_some_and(|conn| conn.peer.is_some()) {
            self.rig.world.stuff(self.node, conn, stuffed);
        }
    }

    fn administer(&mut self, tape: &mut Tape) {
        let choice = tape.byte();
        let states = [
            AnaState::Optimized,
            AnaState::NonOptimized,
            AnaState::Inaccessible,
            AnaState::PersistentLoss,
            AnaState::Change,
        ];
        let state = states[usize::from(choice >> 4) % states.len()];
        let shape = shape::Config {
            delay_ns: u64::from(choice >> 4) * MS,
            ..shape::Config::default()
        };
        self.rig.target_control(match choice & 3 {
            0 => TargetControl::AnaGroup(1, 2, state),
            1 => TargetControl::Drop(1),
            2 => TargetControl::Shape(1, shape),
            _ => TargetControl::Resize(2, BLOCKS - u64::from(choice >> 4)),
        });
    }

    /// Time passes; the honest host's bytes are checked meanwhile.
    fn pass(&mut self, ns: u64) {
        let Rig {
            world,
            host,
            events,
            ..
        } = &mut self.rig;
        let load = &mut self.load;
        world.run(ns, |world| {
            load.step(world, host, events);
            false
        });
        assert_eq!(failures(events), [""; 0], "the honest host lost its path");
        assert_eq!(load.errors(), 0, "the honest host's I/O failed");
        let clients = &self.clients.borrow();
        self.liars.iter_mut().for_each(|liar| liar.hear(clients));
    }

    /// The honest host is served and leaves; then all memory is there, or the target is stopped
    /// while those that lie are still connected.
    fn finish(mut self, at_once: bool) -> u32 {
        self.load.total += 8;
        let over = self.rig.load_until(&mut self.load, 2 * SERVED_NS, u64::MAX);
        assert!(over, "the honest host waits");
        if !at_once {
            (0..LIARS).for_each(|liar| self.end(liar, RESET));
            self.pass(SECOND);
            let target = self.rig.target.borrow();
            let stats = target.port_stats(1);
            assert_eq!((stats.connections, stats.in_flight), (0, 0));
            assert_eq!(target.buffers_free(), target.buffers(), "memory is missing");
        }
        assert!(self.load.verified > 0, "nothing was checked");
        self.pass(0);
        self.rig.control(HostControl::Stop);
        self.pass(5 * SECOND);
        assert!(self.rig.world.nodes[HOST].stopped, "the host does not stop");
        self.rig.target_control(TargetControl::Stop);
        self.rig.world.pass(2 * TARGET_LINGER_NS + SECOND);
        assert!(
            self.rig.world.nodes[TARGET].stopped,
            "the target does not stop"
        );
        self.liars.iter().map(|liar| liar.done).sum()
    }
}
