//! Hosts, controllers and applications of one plan, put into a world, and what passes between the
//! cores of a host.
//!
//! # Contract
//! A host is a process with a node for each core, and one node for its applications. What one core
//! tells another arrives later, in order. The mark that a host leaves (T9) outlives it.
use super::client::{Client, Habit};
use super::disk::{BLOCK, Disk};
use super::node::{Body, Node, Wire};
use super::plan::Canary;
use super::world::{Event, World};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use engine::export::{ExportConfig, ExportControl, ExportEngine, ExportEvent, Offer};
use engine::host::{
    HostConfig, HostControl, HostEngine, HostEvent, PathConfig, PathKind, Recovery, VolumeConfig,
    WriteFailover,
};
use engine::limits::{EXPORT_ARENA_MIN, SCRATCH_BYTES};
use engine::target::{TargetConfig, TargetEngine};
use engine::{DeviceId, Machine, Span};
use nvme::controller::{NamespaceConfig, PortConfig, SubsystemConfig};
use nvme::host::{AnaState, Digests, HostIdentity};
use policy::{Knobs, Policy};

const NQN: &str = "nqn.2026-01.org.example:chaos";
/// Most time until a message of one core reaches another.
const MAIL_NS: u64 = 50_000;
/// Host's time-outs: short, so that much happens in little time.
pub const KATO_MS: u32 = 1000;
pub const IO_TIMEOUT_NS: u64 = 3_000_000_000;
/// Stands in for CQT.
pub const QUIESCE_NS: u64 = 500_000_000;

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct Layout {
    pub hosts: usize,
    /// Of each host.
    pub cores: u16,
    /// Processes of the subsystem.
    pub targets: usize,
    /// Of each process.
    pub ports: u16,
    pub digests: bool,
    /// Controllers have volatile caches of their own.
    pub caches: bool,
    pub policy: Policy,
    pub habit: Habit,
    /// Most I/Os of a core.
    pub io_max: u32,
    /// Blocks of the disk.
    pub blocks: u64,
}

/// A process with cores and applications.
pub struct Host {
    /// Node of each core.
    pub cores: Vec<usize>,
    pub clients: usize,
    /// The longest bound that it left durably; 0: none.
    pub mark_ns: u64,
    /// It is being stopped in order: cores that were not told yet.
    pub stopping: Option<usize>,
    /// Processes so far.
    pub lives: u64,
    /// I/Os in flight of each core, by place of the path.
    board: Vec<Vec<u32>>,
    /// When the last message from core to core arrives.
    mail_ns: u64,
    /// What was said for people.
    pub lines: Vec<String>,
}

/// The world and what it is made of.
pub struct Rig {
    pub world: World,
    pub layout: Layout,
    pub targets: Vec<usize>,
    pub hosts: Vec<Host>,
    mail: Vec<Option<ExportControl>>,
    canary: Option<Canary>,
    seed: u64,
}

impl Rig {
    /// Everything is there, and nothing is connected.
    pub fn new(layout: Layout, canary: Option<Canary>, seed: u64) -> Self {
        let mut rig = Self {
            world: World::new(seed),
            targets: Vec::new(),
            hosts: Vec::new(),
            mail: Vec::new(),
            layout,
            canary,
            seed,
        };
        rig.world.disks.push(Disk::new(rig.layout.blocks));
        for number in 0..rig.layout.targets {
            let config = rig.target_config(number);
            let arena = config.arena_bytes as usize;
            let mut node = Node::new(target(config), arena);
            node.disks = alloc::vec![0];
            rig.targets.push(rig.world.nodes.len());
            rig.world.nodes.push(node);
        }
        for number in 0..rig.layout.hosts {
            rig.add_host(number);
        }
        rig
    }

    fn add_host(&mut self, number: usize) {
        let layout = &self.layout;
        let mut addresses = Vec::new();
        for port in 0..u32::from(layout.ports) {
            addresses.extend(self.targets.iter().map(|&target| (target, port)));
        }
        let cores: Vec<usize> = (0..usize::from(layout.cores))
            .map(|core| self.world.nodes.len() + core)
            .collect();
        let arena = (EXPORT_ARENA_MIN + u64::from(SCRATCH_BYTES)) as usize;
        for _ in &cores {
            let mut node = Node::new(Body::Dead, arena);
            node.addresses.clone_from(&addresses);
            self.world.nodes.push(node);
        }
        let habit = Habit {
            share: (number as u64, layout.hosts as u64),
            ..layout.habit
        };
        let client = Client::new(number as u64 + 1, habit, self.seed ^ number as u64);
        let bytes = client.arena_bytes();
        let clients = self.world.nodes.len();
        let mut node = Node::new(Body::Client(Box::new(client)), bytes);
        // Clients of a volume are all on one core: that of its number.
        node.addresses = alloc::vec![(cores[0], 0)];
        self.world.nodes.push(node);
        self.hosts.push(Host {
            board: Vec::new(),
            cores,
            clients,
            mark_ns: 0,
            stopping: None,
            lives: 0,
            mail_ns: 0,
            lines: Vec::new(),
        });
        self.start_host(number);
    }

    /// A process of a host begins.
    pub fn start_host(&mut self, number: usize) {
        let places = self.targets.len() * usize::from(self.layout.ports);
        for core in 0..self.layout.cores {
            let engine = self.host_engine(number, core);
            let node = self.hosts[number].cores[usize::from(core)];
            self.world.revive(node, Body::Core(Box::new(engine)));
        }
        let host = &mut self.hosts[number];
        host.board = alloc::vec![alloc::vec![0; places]; usize::from(self.layout.cores)];
        host.stopping = None;
        host.lives += 1;
    }

    fn host_engine(&self, number: usize, core: u16) -> ExportEngine {
        let layout = &self.layout;
        let mut recovery = Recovery {
            unclean_stop_ns: self.hosts[number].mark_ns,
            marks: true,
            quiesce_ns: QUIESCE_NS,
            ..Recovery::default()
        };
        match self.canary {
            None => {}
            Some(Canary::Unfenced) => recovery.write_failover = WriteFailover::Immediate,
            Some(Canary::FlushOnOne) => recovery.shared_write_cache = true,
        }
        let paths = 0..u32::from(layout.ports) * layout.targets as u32;
        let volume = VolumeConfig {
            name: "v0".into(),
            policy: layout.policy,
            knobs: Knobs::default(),
            paths: paths.map(path).collect(),
            recovery,
        };
        let config = HostConfig {
            core,
            cores: layout.cores,
            identity: HostIdentity {
                nqn: format!(
                    "nqn.2014-08.org.nvmexpress:uuid:{number:08x}-2222-4333-8444-555555555555"
                ),
                id: [7 + number as u8; 16],
            },
            digests: Digests {
                header: layout.digests,
                data: layout.digests,
            },
            kato_ms: KATO_MS,
            connect_timeout_ns: 1_000_000_000,
            io_timeout_ns: IO_TIMEOUT_NS,
            io_max: layout.io_max,
            volumes: alloc::vec![volume],
            scratch: Span {
                at: EXPORT_ARENA_MIN,
                len: SCRATCH_BYTES,
            },
        };
        let export = ExportConfig {
            clients_max: 8,
            requests_max: 32,
            arena_bytes: EXPORT_ARENA_MIN,
        };
        let room = layout.targets * usize::from(layout.ports) + 2;
        let mut engine = ExportEngine::new(HostEngine::with_room(config, room), 1, export);
        let offer = Offer {
            volume: 0,
            name: "v0".into(),
            read_only: false,
        };
        engine.handle_control(ExportControl::Offer(0, offer), self.world.now_ns);
        engine
    }

    /// A process of the target begins.
    pub fn start_target(&mut self, number: usize) {
        let body = target(self.target_config(number));
        self.world.revive(self.targets[number], body);
    }

    fn target_config(&self, number: usize) -> TargetConfig {
        let layout = &self.layout;
        let cntlid = 1 + 1000 * number as u16;
        let port = |id| PortConfig {
            id,
            traddr: "192.0.2.1".into(),
            trsvcid: "4420".into(),
            ipv6: false,
            ana: AnaState::Optimized,
        };
        TargetConfig {
            subsystem: SubsystemConfig {
                nqn: NQN.into(),
                serial: "CHAOS".into(),
                model: "braid".into(),
                cntlid_min: cntlid,
                cntlid_max: cntlid + 999,
                namespaces: alloc::vec![NamespaceConfig {
                    nsid: 1,
                    blocks: layout.blocks,
                    block_shift: BLOCK.ilog2() as u8,
                    uuid: [1; 16],
                    nguid: [0xa1; 16],
                    ana_group: 1,
                    read_only: false,
                }],
                ports: (1..=layout.ports).map(port).collect(),
                hosts: Vec::new(),
                entries_max: 32,
                io_queues_max: 4,
                transfer_shift: 13,
                in_capsule_max: 1024,
                maxh2cdata: 4096,
                c2h_success: true,
                cqt_ms: 0,
                volatile_write_cache: layout.caches,
                connections_max: 24,
            },
            shapes: alloc::vec![shape::Config::default(); usize::from(layout.ports)],
            devices: alloc::vec![DeviceId(0)],
            arena_bytes: 2 << 20,
            seed: self.seed,
        }
    }

    /// The wires of a host to address number `address`, of all its cores.
    pub fn wires(&self, host: usize, address: usize) -> Vec<Wire> {
        let cores = self.hosts[host].cores.iter();
        let wire = |&from: &usize| {
            let (to, listener) = self.world.nodes[from].addresses[address];
            Wire { from, to, listener }
        };
        cores.map(wire).collect()
    }

    /// Lets time pass until `end_ns`, or until something that was planned is due: its number.
    pub fn run(&mut self, end_ns: u64) -> Option<usize> {
        loop {
            self.settle();
            let mut heard = Vec::new();
            if !self.world.step(end_ns, &mut heard) {
                return None;
            }
            let mut planned = None;
            for event in heard {
                match event {
                    Event::Planned(number) => planned = Some(number),
                    Event::Message { node, life, slot } => self.hand_over(node, life, slot),
                    _ => {}
                }
            }
            if planned.is_some() {
                self.settle();
                return planned;
            }
        }
    }

    fn settle(&mut self) {
        let Self {
            world, hosts, mail, ..
        } = self;
        world.settle(|world, node| {
            if let Some(host) = hosts.iter_mut().find(|host| host.cores.contains(&node)) {
                host.listen(world, node, mail);
            }
        });
    }

    fn hand_over(&mut self, node: usize, life: u64, slot: usize) {
        let Some(message) = self.mail[slot].take() else {
            return;
        };
        let it = &mut self.world.nodes[node];
        if let Body::Core(engine) = &mut it.body
            && it.life == life
            && !it.stopped
        {
            engine.handle_control(message, self.world.now_ns);
            it.stirred = true;
        }
    }

    /// Says something to a core.
    pub fn tell(&mut self, node: usize, message: ExportControl) {
        let now_ns = self.world.now_ns;
        send(&mut self.world, &mut self.mail, node, now_ns, message);
    }

    /// The applications of a host.
    pub fn client(&mut self, host: usize) -> &mut Client {
        let node = self.hosts[host].clients;
        self.world.nodes[node].stirred = true;
        match &mut self.world.nodes[node].body {
            Body::Client(client) => client,
            _ => unreachable!("applications don't die"),
        }
    }
}

fn send(
    world: &mut World,
    mail: &mut Vec<Option<ExportControl>>,
    node: usize,
    at_ns: u64,
    message: ExportControl,
) {
    let (life, slot) = (world.nodes[node].life, mail.len());
    mail.push(Some(message));
    world.at(at_ns, Event::Message { node, life, slot });
}

impl Host {
    /// Passes on what a core has to say after a turn.
    fn listen(&mut self, world: &mut World, node: usize, mail: &mut Vec<Option<ExportControl>>) {
        let core = self.cores.iter().position(|it| *it == node).unwrap_or(0);
        loop {
            let Body::Core(engine) = &mut world.nodes[node].body else {
                return;
            };
            let Some(event) = engine.poll_event() else {
                break;
            };
            let ExportEvent::Host(event) = event else {
                continue;
            };
            let others = self.cores.iter().copied().filter(|it| *it != node);
            match event {
                HostEvent::Publish(news) => {
                    for other in others.collect::<Vec<_>>() {
                        let message = HostControl::Path(news.clone());
                        self.post(world, mail, other, message);
                    }
                }
                HostEvent::Report(news) => {
                    let first = self.cores[0];
                    self.post(world, mail, first, HostControl::Path(news));
                }
                HostEvent::Mark(volume, bound_ns) => {
                    self.mark_ns = self.mark_ns.max(bound_ns);
                    self.post(world, mail, node, HostControl::Marked(volume, bound_ns));
                }
                HostEvent::Failed(_, line)
                | HostEvent::Returned(_, line)
                | HostEvent::Warning(_, line)
                    if core == 0 =>
                {
                    world.tell(|| line.clone());
                    self.lines.push(format!("{} {line}", world.now_ns));
                }
                _ => {}
            }
        }
        self.show(world, core);
        self.stop_next(world, mail);
    }

    fn post(
        &mut self,
        world: &mut World,
        mail: &mut Vec<Option<ExportControl>>,
        to: usize,
        message: HostControl,
    ) {
        let at_ns = world.now_ns + world.random.up_to(MAIL_NS);
        self.mail_ns = self.mail_ns.max(at_ns);
        send(world, mail, to, self.mail_ns, ExportControl::Host(message));
    }

    /// Shows the other cores what one has in flight (T47), and tells it what they have.
    fn show(&mut self, world: &mut World, core: usize) {
        if self.cores.len() == 1 {
            return;
        }
        let Body::Core(engine) = &mut world.nodes[self.cores[core]].body else {
            return;
        };
        for (place, volume, path) in engine.host().places() {
            if let Some(count) = self.board[core].get_mut(place) {
                *count = engine.host().in_flight(volume, path);
            }
        }
        let others = |place: usize| {
            let rows = (0..).zip(&self.board).filter(|(row, _)| *row != core);
            rows.map(|(_, row)| row.get(place).copied().unwrap_or(0))
                .sum()
        };
        engine.host_mut().update_elsewhere(others);
    }

    /// Core 0 shuts the controllers down, so it comes last.
    fn stop_next(&mut self, world: &mut World, mail: &mut Vec<Option<ExportControl>>) {
        let Some(next) = self.stopping.filter(|&next| next < self.cores.len()) else {
            return;
        };
        let last = self.cores.get(next + 1);
        if last.is_none_or(|&node| world.nodes[node].stopped) {
            let message = ExportControl::Stop(super::run::DRAIN_NS);
            send(world, mail, self.cores[next], world.now_ns, message);
            self.stopping = Some(next.wrapping_sub(1));
        }
    }

    /// Whether a stop in order has come to its end.
    pub fn has_stopped(&self, world: &World) -> bool {
        self.cores.iter().all(|&node| world.nodes[node].stopped)
    }
}

fn target(config: TargetConfig) -> Body {
    match TargetEngine::new(config) {
        Ok(engine) => Body::Target(Box::new(engine)),
        Err(error) => panic!("a target that can't be: {error:?}"),
    }
}

fn path(address: u32) -> PathConfig {
    PathConfig {
        uri: format!("nvme-tcp://p{address}/{NQN}"),
        kind: PathKind::NvmeTcp {
            address,
            subsystem: NQN.into(),
            nsid: None,
        },
        distance: 10,
        throughput: 1,
    }
}
