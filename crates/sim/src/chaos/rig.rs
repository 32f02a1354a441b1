//! Hosts, controllers and applications of one plan, put into a world.
//!
//! # Contract
//! A host is a process with a node for each core, and one node for its applications. A message from
//! one core to another arrives later, in order. The mark that a host leaves (T9) outlives it.
use super::client::Habit;
use super::discovery::Discovery;
use super::exports;
use super::good::Good;
use super::lives::Lives;
use super::mirror::Shape;
use super::node::Process;
use super::prelude::*;
use super::stranger::Stranger;
use super::user::User;
use alloc::collections::VecDeque;
use engine::limits::{EXPORT_ARENA_MIN, MIRROR_SCRATCH_BYTES};

/// Host's time-outs: short, so that much happens in little time.
pub const KATO_MS: u32 = 1000;
pub const IO_TIMEOUT_NS: u64 = 3_000_000_000;
/// Most messages that wait for one core: a reactor's mailbox holds no more.
const MAIL_MAX: usize = 1024;
/// Paths that a host may have beside those that it begins with.
pub const SPARE_PATHS: usize = 2;
/// Stands in for CQT.
pub const QUIESCE_NS: u64 = 500_000_000;

/// Components of a world.
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
    pub more: More,
    /// The volume is a mirror; processes of the target are of one leg each.
    pub mirror: Option<Shape>,
}

/// Components that the first worlds did not have. Default: as they were, without memory of the
/// engine's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct More {
    /// Bytes that may be under way or unread in one direction of a connection; 0: any number.
    pub window: u64,
    /// The target has as little memory as it can do with.
    pub tight: bool,
    /// Memory of the engine's own, of each core.
    pub scratch_bytes: u32,
    /// Connections that the target takes beyond those that all paths need; `None`: plenty.
    pub connections_spare: Option<u32>,
    /// The namespace is so large that few of the largest requests take all memory.
    pub large: bool,
    /// Discovery controllers; 0: hosts know their paths.
    pub tellers: usize,
    /// CQT that controllers report; 0: none.
    pub cqt_ms: u16,
    /// Where the first block of the applications is, bytes.
    pub base: u64,
    /// Where there are digests: of what.
    pub checked: Checked,
    /// Where large packets get lost at the end (`hole`): those with data of writes, and controllers
    /// take so much data in capsules that paths are probed with it. Else those with data of reads.
    pub loses_writes: bool,
    /// Another policy may be a program.
    pub programs: bool,
}

/// Digests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checked {
    #[default]
    Both,
    Headers,
    Data,
}

/// Where the namespace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Away {
    /// Here.
    No,
    /// Another one is here.
    Other,
    /// None is here.
    None,
}

impl Layout {
    /// Whether a world has what such a fault is about.
    pub(super) fn allows(&self, kind: Kind) -> bool {
        match kind {
            Kind::Damage => self.digests,
            Kind::Power => self.caches,
            _ => true,
        }
    }

    /// Digests on the connections of hosts and applications.
    pub(super) fn digests(&self) -> Digests {
        Digests {
            header: self.digests && self.more.checked != Checked::Data,
            data: self.digests && self.more.checked != Checked::Headers,
        }
    }

    /// The first core of a host that has applications.
    pub(super) fn first_home(&self) -> usize {
        usize::from(self.mirror.map_or(0, |it| it.core))
    }
}

/// A process with cores and applications.
#[derive(Default)]
pub struct Host {
    /// Node of each core.
    pub cores: Vec<usize>,
    pub clients: usize,
    /// The longest bound that it left durably, if it left a mark.
    pub mark_ns: Option<u64>,
    /// It ends with writes that were not flushed (T13).
    pub(super) unflushed: bool,
    /// Of each volume, a bit: a path has left it with writes that were not flushed, and no flush
    /// has failed for that. Its marks say so.
    pub(super) losses: u64,
    /// Addresses of the paths that its process began with: where hosts are told of them, those that
    /// a mark names.
    pub(super) known: Vec<usize>,
    /// The mark that this process found, and when it began.
    found_ns: Option<u64>,
    begun_ns: u64,
    /// Its stop in order left changes of data that had not ended.
    pub(super) unfinished: bool,
    /// It is being stopped in order: cores that were not told yet.
    pub stopping: Option<usize>,
    /// Processes so far.
    pub lives: Lives,
    /// I/Os in flight of each core, by place of the path.
    pub(super) board: Vec<Vec<u32>>,
    /// When the last message from core to core arrives.
    pub(super) mail_ns: u64,
    /// Log lines.
    pub lines: Vec<String>,
    /// By core: which paths could be used.
    pub(super) good: Vec<Good>,
    /// The user that changes its paths.
    pub user: User,
    /// A path of it was on probation.
    pub(super) flapped: bool,
    /// How often another host has taken its place.
    pub(super) heirs: usize,
    /// An export of it over NVMe/TCP was removed.
    pub(super) unexported: Option<exports::Unexported>,
    /// Its configuration names legs of a mirror so many places further.
    pub(super) turned: usize,
}

/// The world and what it is made of.
pub struct Rig {
    pub world: World,
    pub layout: Layout,
    pub targets: Vec<usize>,
    pub hosts: Vec<Host>,
    /// Node of those who don't belong here; their addresses are all ports, then all exports.
    pub strangers: usize,
    /// By target: what is there instead of the namespace.
    pub away: Vec<Away>,
    /// By target: it has the leg of another mirror.
    pub foreign: Vec<bool>,
    /// How often each leg of another mirror [has changed](Disk::changes) before the world began.
    pub(super) untouched: Vec<u64>,
    /// By target: blocks of the namespace.
    pub sizes: Vec<u64>,
    /// Discovery controllers, where hosts learn their paths from them.
    pub(super) discovery: Option<Discovery>,
    mail: Vec<Option<ExportControl>>,
    /// Planned faults that are due.
    due: VecDeque<usize>,
    pub(super) seed: u64,
}

impl Rig {
    /// Everything is there, and nothing is connected.
    pub fn new(layout: Layout, seed: u64) -> Self {
        let mut rig = Self {
            world: World::new(seed),
            targets: Vec::new(),
            hosts: Vec::new(),
            strangers: 0,
            away: vec![Away::No; layout.targets],
            untouched: Vec::new(),
            foreign: vec![false; layout.targets],
            sizes: vec![make::blocks(&layout); layout.targets],
            discovery: None,
            mail: Vec::new(),
            due: VecDeque::new(),
            layout,
            seed,
        };
        rig.world.window = rig.layout.more.window;
        let mut disks = match rig.layout.mirror {
            Some(shape) => shape.disks(),
            None => vec![Disk::new(rig.layout.blocks)],
        };
        for disk in &mut disks {
            disk.unit = rig.layout.habit.unit as usize;
            disk.base = rig.layout.more.base;
        }
        let all = |disk: &Disk| disk.changes(false, 0..disk.contents(false).len());
        let legs = rig.layout.mirror.map_or(1, |it| it.legs);
        rig.untouched = disks.iter().skip(legs).map(all).collect();
        rig.world.disks = disks;
        if rig.layout.habit.crowded > 0 {
            let first = rig.layout.habit.blocks;
            rig.world.crowds = first..first + rig.layout.habit.crowded;
        }
        for number in 0..rig.layout.targets {
            let config = rig.target_config(number);
            let arena = config.arena_bytes as usize;
            let mut node = Node::new(make::target(config), arena);
            node.disks = vec![rig.disk_of(number)];
            rig.targets.push(rig.world.nodes.len());
            rig.world.nodes.push(node);
        }
        for number in 0..rig.layout.hosts {
            rig.add_host(number);
        }
        rig.add_strangers();
        rig.add_discovery();
        rig
    }

    fn add_strangers(&mut self) {
        let mut node = Node::new(Body::Stranger(Box::default()), 0);
        let ports = self.world.nodes[self.hosts[0].cores[0]].addresses.clone();
        let home = self.layout.first_home();
        let exports = self.hosts.iter().map(|host| (host.cores[home], 0));
        node.addresses = ports.into_iter().chain(exports).collect();
        self.strangers = self.world.nodes.len();
        self.world.nodes.push(node);
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
        let of_mirror = u64::from(layout.mirror.map_or(0, |_| MIRROR_SCRATCH_BYTES));
        let arena = EXPORT_ARENA_MIN + u64::from(layout.more.scratch_bytes) + of_mirror;
        let arena = (arena + front::arena_bytes(layout)) as usize;
        let local = layout.mirror.filter(|it| it.local).map_or(0, |it| it.legs);
        for _ in &cores {
            let mut node = Node::new(Body::Dead, arena);
            node.addresses.clone_from(&addresses);
            node.disks = (0..local).collect();
            self.world.nodes.push(node);
        }
        let habit = Habit {
            share: (number as u64, layout.hosts as u64),
            base: layout.more.base,
            front_end: front::of_host(layout, number as u64),
            ..layout.habit
        };
        let client = Client::new(number as u64 + 1, habit, self.seed ^ number as u64);
        let bytes = client.arena_bytes();
        let clients = self.world.nodes.len();
        let mut node = Node::new(Body::Client(Box::new(client)), bytes);
        // Clients of a volume are on one core, that of its number, unless each core has some.
        let homes = cores.iter().skip(layout.first_home());
        let homes = homes.take(layout.habit.homes as usize);
        let listeners = front::listeners(layout);
        let all = |listener: u32| homes.clone().map(move |&core| (core, listener));
        node.addresses = listeners.into_iter().flat_map(all).collect();
        self.world.nodes.push(node);
        self.hosts.push(Host {
            cores,
            clients,
            ..Host::default()
        });
        self.start_host(number);
    }

    /// A process that stops in order takes its mark away, unless changes of data had not ended; but
    /// what the one before it had left may not be over, and one with a bound of 0 stays where
    /// writes were not flushed.
    pub fn take_mark_away(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        if host.unfinished {
            return;
        }
        let left = |bound_ns: &u64| host.begun_ns + bound_ns > self.world.now_ns;
        host.mark_ns = host.found_ns.filter(left).or(host.unflushed.then_some(0));
    }

    /// A process of a host begins.
    pub fn start_host(&mut self, number: usize) {
        self.keep_counts(number);
        self.no_path_is_good(number);
        let places = self.targets.len() * usize::from(self.layout.ports);
        let is_told = self.layout.more.tellers > 0;
        let host = &mut self.hosts[number];
        host.known = match (is_told, host.mark_ns) {
            (false, _) => (0..places).collect(),
            (true, Some(_)) => host.user.had(),
            (true, None) => Vec::new(),
        };
        for core in 0..self.layout.cores {
            let engine = self.host_engine(number, core);
            let node = self.hosts[number].cores[usize::from(core)];
            self.world.revive(node, Body::Core(Box::new(engine)));
        }
        let known = &self.hosts[number].known;
        let path = |address| match is_told {
            false => Some(self.first_path(address).1),
            true => known
                .iter()
                .position(|it| *it == address)
                .map(|at| PathIndex(at as u8)),
        };
        let paths: Vec<_> = (0..places).map(path).collect();
        let host = &mut self.hosts[number];
        let lost_ns = (host.losses != 0).then_some(self.world.now_ns);
        host.user.begin(paths, !is_told, lost_ns);
        host.board = vec![vec![0; places + SPARE_PATHS]; usize::from(self.layout.cores)];
        (host.stopping, host.unfinished, host.unflushed) = (None, false, false);
        (host.found_ns, host.begun_ns) = (host.mark_ns, self.world.now_ns);
        host.lives.begin(self.world.now_ns);
        self.start_seeker(number);
    }

    /// A process of the target begins.
    pub fn start_target(&mut self, number: usize) {
        let body = make::target(self.target_config(number));
        let legs = self.layout.mirror.map_or(1, |it| it.legs);
        let behind = if self.foreign[number] { legs } else { 0 };
        let disk = self.disk_of(number) + behind;
        self.world.nodes[self.targets[number]].disks = vec![disk];
        self.world.revive(self.targets[number], body);
    }

    /// Another process of the target takes the place of one that is there.
    pub(super) fn restart_target(&mut self, number: usize) {
        let node = self.targets[number];
        if !self.world.nodes[node].is_dead() {
            self.world.kill(node);
            self.start_target(number);
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

    /// The wires of a host's applications to its cores.
    pub fn client_wires(&self, host: usize) -> Vec<Wire> {
        let from = self.hosts[host].clients;
        let addresses = self.world.nodes[from].addresses.iter();
        let wire = |&(to, listener): &(usize, u32)| Wire { from, to, listener };
        addresses.map(wire).collect()
    }

    /// Lets time pass until `end_ns`, or until something that was planned is due: its number.
    pub fn run(&mut self, end_ns: u64) -> Option<usize> {
        while self.due.is_empty() {
            self.settle();
            self.follow();
            self.part_with_orphans();
            let mut heard = Vec::new();
            if !self.world.step(end_ns, &mut heard) {
                return None;
            }
            for event in heard {
                match event {
                    Event::Planned(number) => self.due.push_back(number),
                    Event::Message(to, slot) => self.hand_over(to, slot),
                    _ => {}
                }
            }
            if !self.due.is_empty() {
                self.settle();
            }
        }
        self.due.pop_front()
    }

    fn settle(&mut self) {
        let Self {
            world,
            hosts,
            mail,
            discovery,
            ..
        } = self;
        world.settle(|world, node| {
            if let Some(host) = hosts.iter_mut().find(|host| host.cores.contains(&node)) {
                host.listen(world, node, mail);
            } else if let Some(discovery) = discovery {
                discovery.listen(world, node);
            }
        });
    }

    fn hand_over(&mut self, Process { node, life }: Process, slot: usize) {
        let Some(message) = self.mail[slot].take() else {
            unreachable!("message {slot} is delivered twice");
        };
        let it = &mut self.world.nodes[node];
        if it.life == life {
            assert!(
                it.mail > 0,
                "node {node} gets a message that was not counted"
            );
            it.mail -= 1;
        }
        if let Body::Core(engine) = &mut it.body
            && it.life == life
            && !it.stopped
        {
            engine.handle_control(message, self.world.now_ns);
            it.stirred = true;
        }
    }

    /// Those who don't belong here.
    pub fn stranger(&mut self) -> &mut Stranger {
        let node = &mut self.world.nodes[self.strangers];
        node.stirred = true;
        match &mut node.body {
            Body::Stranger(stranger) => stranger,
            _ => unreachable!("strangers don't die"),
        }
    }

    /// The cores of all hosts that live: host, core, node, and its machine.
    pub fn cores(&self) -> impl Iterator<Item = (usize, usize, usize, &Core)> {
        let hosts = self.hosts.iter().enumerate();
        let cores = hosts.flat_map(|(host, it)| {
            let cores = it.cores.iter().enumerate();
            cores.map(move |(core, &node)| (host, core, node))
        });
        cores.filter_map(|(host, core, node)| Some((host, core, node, self.core(node)?)))
    }

    /// The machine of a host's core, if that lives.
    pub fn core(&self, node: usize) -> Option<&Core> {
        self.world.nodes[node].core()
    }

    /// That of the core that a host's mirror is on.
    pub fn mirror_core(&self, host: usize) -> Option<&Core> {
        self.core(self.mirror_node(host))
    }

    /// Says something to a core.
    pub fn tell(&mut self, node: usize, message: ExportControl) {
        let now_ns = self.world.now_ns;
        send(&mut self.world, &mut self.mail, node, now_ns, message);
    }

    /// The applications of each host.
    pub fn clients(&mut self, mut each: impl FnMut(&mut Client)) {
        (0..self.hosts.len()).for_each(|host| each(self.client(host)));
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

/// A message on its way to a core.
pub(super) fn send(
    world: &mut World,
    mail: &mut Vec<Option<ExportControl>>,
    node: usize,
    at_ns: u64,
    message: ExportControl,
) {
    let slot = mail.len();
    mail.push(Some(message));
    world.nodes[node].mail += 1;
    if world.nodes[node].mail > MAIL_MAX {
        world.blame(
            node,
            Some("more messages wait for it than a mailbox holds".into()),
        );
    }
    world.at(at_ns, Event::Message(world.process(node), slot));
}
