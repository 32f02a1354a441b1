//! A host, NBD clients, an engine whose devices are namespaces and NBD exports, and what is below.
use super::clients::{Clients, Ended};
use super::common::{
    Address, BLOCK, BLOCKS, Disk, HOST, HostCore, MS, SECOND, TARGET, WIRE_NS, World, host_config,
    namespace, target_config, tcp_path,
};
use crate::mirror::made::mirrors;
use crate::mirror::rig::{LEG_BYTES, configured};
use engine::export::{ExportConfig, ExportControl, ExportEvent, Offer};
use engine::host::{
    HostConfig, HostEvent, Io, IoDone, Multipath, PathConfig, PathKind, Recovery, VolumeConfig,
    VolumeInfo,
};
use engine::limits::{EXPORTS_MAX, MIRROR_SCRATCH_BYTES};
use engine::machine::DeviceError;
use engine::mirror::{Anew, Devices, MIRRORS_FROM, MirrorConfig, MirrorOrder};
use engine::target::{TargetConfig, TargetControl, TargetEngine};
use engine::{ClientError, Core, LocalDevice, Machine, NvmeConfig, NvmePlace, QueueMemory};
use multipath::Outcome;
use nbd::client::Config;
use nbd::{Kind, Request};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

const NBD_ARENA: u64 = 68 << 20;
/// Of two places for servers.
const NVME_ARENA: u64 = 32 << 20;
/// Of the queue server, behind all others'.
const QUEUE_ARENA: u64 = 4 << 20;
const QUEUE_ARENA_AT: u64 = NBD_ARENA + NVME_ARENA + MIRROR_SCRATCH_BYTES as u64;
/// Of the ublk server, behind it.
const UBLK_ARENA_AT: u64 = QUEUE_ARENA_AT + QUEUE_ARENA;
/// A queue of a node over the volume.
pub const UBLK_QUEUE: u32 = 0;
/// Its node.
pub const NODE: &str = "/dev/ublkb0";
/// The only queue, and its namespace.
pub const QUEUE: u32 = 0;
/// Its client.
pub const CLIENT: &str = "process 7 of user 0";
pub const QUEUE_NAMESPACE: u32 = 0;

/// Kinds of the engine's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// A volume over two paths to a target with a cache.
    Paths,
    /// A volume over a local device with a cache.
    Local,
    /// A mirror of two local devices with caches.
    Mirror,
    /// A volume over memory: it has no cache, and can give space up.
    Memory,
    /// A volume over a file with a cache, changed by threads of the engine's own.
    File,
    /// A mirror whose legs are volumes over two paths each, to targets with caches.
    MirrorOfPaths,
}

impl Below {
    pub fn is_mirror(self) -> bool {
        matches!(self, Self::Mirror | Self::MirrorOfPaths)
    }
}

/// Settings that differ from test to test.
pub struct Setup {
    pub below: Below,
    /// Of the engine. Over a mirror, the volumes behind the first one are numbered behind the legs.
    pub core: HostConfig,
    pub export: ExportConfig,
    pub target: TargetConfig,
    /// Of the engine's NVMe/TCP server.
    pub server: TargetConfig,
    /// Of the host.
    pub guest: HostConfig,
}

impl Setup {
    pub fn over(below: Below) -> Self {
        let mut target = target_config(2);
        target.subsystem.volatile_write_cache = true;
        target.subsystem.connections_max = 64;
        let mut core = host_config(if below == Below::Paths { 2 } else { 0 });
        core.kato_ms = 1000;
        core.volumes[0].recovery = Recovery {
            quiesce_ns: 500 * MS,
            ..Recovery::default()
        };
        match below {
            Below::Local => core.volumes[0].paths = vec![local(0, 12)],
            Below::Memory | Below::File => core.volumes[0].paths = vec![with_holes(local(0, 12))],
            Below::Paths | Below::Mirror | Below::MirrorOfPaths => {}
        }
        let mut server = target_config(1);
        server.subsystem.volatile_write_cache = true;
        server.devices = vec![LocalDevice(volume(below))];
        let mut guest = host_config(1);
        guest.volumes[0].recovery = Recovery::default();
        Self {
            below,
            core,
            export: ExportConfig {
                clients_max: 4,
                requests_max: 16,
                arena_bytes: NBD_ARENA,
            },
            target,
            server,
            guest,
        }
    }
}

/// A path that is a local device.
pub fn local(device: u16, block_shift: u8) -> PathConfig {
    PathConfig {
        uri: format!("disk:{device}"),
        kind: PathKind::Device {
            device: LocalDevice(device),
            bytes: BLOCKS * u64::from(BLOCK),
            block_shift,
            identity: None,
            read_only: false,
            deallocate_zeroes: false,
            hole_bytes: 0,
        },
        ..tcp_path(0)
    }
}

/// As memory and files are on a file system that makes holes.
fn with_holes(mut path: PathConfig) -> PathConfig {
    if let PathKind::Device {
        deallocate_zeroes,
        hole_bytes,
        ..
    } = &mut path.kind
    {
        *deallocate_zeroes = true;
        *hole_bytes = 4096;
    }
    path
}

/// Number of the device.
pub fn volume(below: Below) -> u16 {
    if below.is_mirror() { MIRRORS_FROM } else { 0 }
}

pub struct Rig {
    pub world: World,
    pub core: Rc<RefCell<Core>>,
    pub target: Rc<RefCell<TargetEngine>>,
    /// Of a mirror's second leg.
    pub second_target: Option<Rc<RefCell<TargetEngine>>>,
    pub guest: Rc<RefCell<HostCore>>,
    pub clients: Rc<RefCell<Clients>>,
    /// Of the target, or the local ones.
    pub disks: Vec<Disk>,
    pub events: Vec<ExportEvent>,
    pub guest_events: Vec<HostEvent>,
    pub done: Vec<IoDone>,
}

pub const GUEST: usize = 2;
pub const CLIENTS: usize = 3;
/// The target of a mirror's second leg.
pub const SECOND_TARGET: usize = 4;

impl Rig {
    pub fn new(setup: Setup) -> Self {
        let mut world = World::new(11);
        let disks = disks(setup.below);
        let mut targets = vec![setup.target];
        if setup.below == Below::MirrorOfPaths {
            targets = (0..2).map(|leg| leg_target(&targets[0], leg)).collect();
        }
        let core = core(setup.below, setup.core, setup.export, setup.server, &disks);
        let core = Rc::new(RefCell::new(core));
        let arenas: Vec<usize> = targets.iter().map(|it| it.arena_bytes as usize).collect();
        let mut targets = targets.into_iter().map(|config| {
            let target = TargetEngine::new(config).unwrap();
            Rc::new(RefCell::new(target))
        });
        let (target, second_target) = (targets.next().unwrap(), targets.next());
        let guest = Rc::new(RefCell::new(HostCore::new(setup.guest)));
        let clients = Rc::new(RefCell::new(Clients::new(256 << 10)));
        let arena = UBLK_ARENA_AT + QUEUE_ARENA;
        assert_eq!(world.add(core.clone(), arena as usize), HOST);
        assert_eq!(world.add(target.clone(), arenas[0]), TARGET);
        assert_eq!(world.add(guest.clone(), 8 << 20), GUEST);
        assert_eq!(world.add(clients.clone(), 16 << 20), CLIENTS);
        world.nodes[GUEST].addresses = vec![to(HOST, EXPORTS_MAX); 2];
        world.nodes[CLIENTS].addresses = vec![to(HOST, 0)];
        world.nodes[HOST].addresses = vec![to(TARGET, 0), to(TARGET, 1)];
        match setup.below {
            Below::Paths => world.nodes[TARGET].disks = vec![disks[0].clone()],
            Below::MirrorOfPaths => world.nodes[TARGET].disks = vec![disks[0].clone()],
            _ => world.nodes[HOST].disks = disks.clone(),
        }
        if let Some(target) = &second_target {
            assert_eq!(world.add(target.clone(), arenas[1]), SECOND_TARGET);
            let addresses = [to(SECOND_TARGET, 0), to(SECOND_TARGET, 1)];
            world.nodes[HOST].addresses.extend(addresses);
            world.nodes[SECOND_TARGET].disks = vec![disks[1].clone()];
        }
        let mut rig = Self {
            world,
            core,
            target,
            second_target,
            guest,
            clients,
            disks,
            events: Vec::new(),
            guest_events: Vec::new(),
            done: Vec::new(),
        };
        let offer = Offer {
            volume: volume(setup.below),
            name: "v0".into(),
            read_only: false,
        };
        rig.control(ExportControl::Offer(0, offer));
        rig
    }

    /// The same, and the host's volume is ready.
    pub fn ready(setup: Setup) -> Self {
        let mut rig = Self::new(setup);
        rig.until(60 * SECOND, |rig| rig.info().is_some());
        rig
    }

    /// The host's facts of its first volume.
    pub fn info(&self) -> Option<VolumeInfo> {
        super::common::ready_of(&self.guest_events, 0)
    }

    /// Bytes of the host's volume, as it knows it last.
    pub fn guest_bytes(&self) -> u64 {
        let sizes = self
            .guest_events
            .iter()
            .rev()
            .find_map(|event| match event {
                HostEvent::Ready(0, info) | HostEvent::Resized(0, info) => Some(info.bytes),
                _ => None,
            });
        sizes.unwrap()
    }

    pub fn control(&mut self, message: ExportControl) {
        let now_ns = self.world.now_ns;
        self.core.borrow_mut().handle_control(message, now_ns);
    }

    pub fn target_control(&mut self, message: TargetControl) {
        let now_ns = self.world.now_ns;
        self.target.borrow_mut().handle_control(message, now_ns);
    }

    /// Lets at most so much time pass until it is so; false: it never was.
    pub fn run(&mut self, limit_ns: u64, mut is: impl FnMut(&Self) -> bool) -> bool {
        let end_ns = self.world.now_ns + limit_ns;
        loop {
            let (core, guest) = (self.core.clone(), self.guest.clone());
            let (events, guest_events) = (&mut self.events, &mut self.guest_events);
            let done = &mut self.done;
            let before = (self.world.now_ns, done.len());
            self.world.run(end_ns - before.0, |world| {
                while let Some(event) = core.borrow_mut().poll_event() {
                    events.push(event);
                }
                while let Some(event) = guest.borrow_mut().poll_event() {
                    match event {
                        HostEvent::Done(it) => done.push(it),
                        other => guest_events.push(other),
                    }
                }
                done.len() > before.1 || world.now_ns > before.0 + MS
            });
            if is(self) {
                return true;
            }
            if self.world.now_ns >= end_ns {
                return false;
            }
        }
    }

    pub fn until(&mut self, limit_ns: u64, is: impl FnMut(&Self) -> bool) {
        let so = self.run(limit_ns, is);
        let (events, guest) = (&self.events, &self.guest_events);
        assert!(so, "never came: {events:?}\n{guest:?}");
    }

    pub fn pass(&mut self, ns: u64) {
        self.run(ns, |_| false);
    }

    /// An I/O of the host, whose memory begins with this byte, repeated.
    pub fn submit(&mut self, io: &Io, byte: u8) {
        let at = io.span.at as usize;
        let memory = &mut self.world.nodes[GUEST].arena.0[at..][..io.span.len as usize];
        memory.fill(byte);
        let now_ns = self.world.now_ns;
        self.guest.borrow_mut().submit(io, now_ns).unwrap();
    }

    pub fn has_ended(&self, cookie: u64) -> bool {
        self.done.iter().any(|done| done.cookie == cookie)
    }

    /// The end of an I/O.
    pub fn end(&mut self, cookie: u64, limit_ns: u64) -> Outcome {
        self.until(limit_ns, |rig| rig.has_ended(cookie));
        let at = self.done.iter().position(|done| done.cookie == cookie);
        self.done.swap_remove(at.unwrap()).outcome
    }

    /// One I/O of the host, alone.
    pub fn one(&mut self, io: &Io, byte: u8) -> Outcome {
        self.submit(io, byte);
        self.end(io.cookie, 60 * SECOND)
    }

    /// The byte that the memory of an I/O of the host is full of.
    pub fn byte(&self, io: &Io) -> u8 {
        let at = io.span.at as usize;
        let bytes = &self.world.nodes[GUEST].arena.0[at..][..io.span.len as usize];
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{io:?}");
        bytes[0]
    }

    /// Connects an NBD client, and waits until it is ready.
    pub fn connect(&mut self) -> usize {
        self.connect_as(Config::default())
    }

    /// The same, with these wishes.
    pub fn connect_as(&mut self, config: Config) -> usize {
        let config = Config {
            requests_max: 8,
            ..config
        };
        let conn = self.clients.borrow_mut().connect(0, config);
        self.until(SECOND, |rig| rig.clients.borrow().all[conn].ready.is_some());
        conn
    }

    /// Asks something for an NBD client.
    pub fn ask(&mut self, conn: usize, request: Request, data: &[u8]) {
        self.clients.borrow_mut().submit(conn, request, data);
    }

    /// One request of an NBD client, alone.
    pub fn nbd(&mut self, conn: usize, kind: Kind, at: (u64, u32), data: &[u8]) -> Ended {
        self.ask(conn, Request::new(0, kind, at.0, at.1), data);
        self.until(60 * SECOND, |rig| {
            !rig.clients.borrow().all[conn].ended.is_empty()
        });
        self.clients.borrow_mut().all[conn].ended.remove(0)
    }

    /// Bytes of the front ends' memory that are in use.
    pub fn used(&self) -> u64 {
        let core = self.core.borrow();
        core.buffers() - core.buffers_free()
    }

    /// Lets the whole device below fail all I/O.
    pub fn fail(&mut self, error: DeviceError) {
        for node in &mut self.world.nodes {
            let disks = node.disks.iter_mut();
            disks.for_each(|disk| disk.error = Some(error));
        }
    }

    /// Errors of clients that were described.
    pub fn described(&self) -> Vec<ClientError> {
        let all = self.events.iter().filter_map(|event| match event {
            ExportEvent::Error(error) => Some((**error).clone()),
            _ => None,
        });
        all.collect()
    }

    /// Makes the whole device below slow.
    pub fn slow(&mut self, delay_ns: u64) {
        for node in &mut self.world.nodes {
            let disks = node.disks.iter_mut();
            disks.for_each(|disk| disk.delay_ns = delay_ns);
        }
    }

    /// Begins the mirror anew, which was stopped.
    pub fn begin_mirror(&mut self) {
        let (_, config) = configured(&self.disks);
        let info = VolumeInfo {
            bytes: LEG_BYTES,
            block_shift: 12,
            transfer_max: BLOCK,
            read_only: false,
        };
        let infos = vec![info; 2];
        let begin = MirrorOrder::Begin(Box::new(Anew { config, infos }));
        self.control(ExportControl::Mirror(MIRRORS_FROM, begin));
    }

    /// Loses all paths to the target, for good.
    pub fn lose_paths(&mut self) {
        self.lose(0..2);
    }

    /// They lead there again.
    pub fn find_paths(&mut self) {
        self.find(0..2);
    }

    /// Loses these paths, for good; 2 and 3 are those of a mirror's second leg.
    pub fn lose(&mut self, paths: Range<usize>) {
        for path in paths {
            self.world.nodes[HOST].addresses[path] = Address::Refused;
            self.world.cut(HOST, path as u32);
        }
    }

    /// They lead there again.
    pub fn find(&mut self, paths: Range<usize>) {
        for path in paths {
            let node = if path < 2 { TARGET } else { SECOND_TARGET };
            self.world.nodes[HOST].addresses[path] = to(node, path as u32 % 2);
        }
    }
}

/// Leads to a listener of a node.
pub fn to(node: usize, listener: u32) -> Address {
    Address::To {
        node,
        listener,
        delay_ns: WIRE_NS,
    }
}

/// Of the target, or the local ones.
fn disks(below: Below) -> Vec<Disk> {
    let disk = Disk::new((BLOCKS * u64::from(BLOCK)) as usize);
    match below {
        Below::Mirror | Below::MirrorOfPaths => crate::mirror::rig::made(2, true),
        Below::Memory => vec![disk],
        Below::File => {
            let mut disk = disk.with_cache();
            disk.by_workers = true;
            vec![disk]
        }
        Below::Paths | Below::Local => {
            let other = Disk::new((BLOCKS * u64::from(BLOCK)) as usize);
            vec![disk.with_cache(), other.with_cache()]
        }
    }
}

/// The engine, with an NVMe/TCP server, a queue server and a ublk server.
pub fn core(
    below: Below,
    host: HostConfig,
    export: ExportConfig,
    server: TargetConfig,
    disks: &[Disk],
) -> Core {
    let volumes = host.volumes.len();
    let devices: Devices = match below {
        Below::Mirror => mirrored(disks, &host.volumes[1..]),
        Below::MirrorOfPaths => mirrored_paths(disks),
        _ => Multipath::new(host).into(),
    };
    let mut core = Core::new(devices, volumes, export);
    let connections = server.subsystem.connections_max;
    for at in [NBD_ARENA, NBD_ARENA + NVME_ARENA / 2] {
        core.reserve_nvme_server(NvmePlace {
            connections,
            arena_at: at,
            arena_bytes: NVME_ARENA / 2,
        });
    }
    core.serve_nvme(0, served(server), 0).unwrap();
    core.reserve_queues(QueueMemory {
        arena_at: QUEUE_ARENA_AT,
        arena_bytes: QUEUE_ARENA,
    });
    core.queues().add_namespace(QUEUE_NAMESPACE, volume(below));
    core.open_queue(QUEUE, CLIENT.into(), Box::new(|| false));
    core.reserve_ublk(QueueMemory {
        arena_at: UBLK_ARENA_AT,
        arena_bytes: QUEUE_ARENA,
    });
    core.open_ublk_queue(UBLK_QUEUE, volume(below), NODE);
    core
}

/// Configuration of the engine's NVMe/TCP server.
pub fn served(server: TargetConfig) -> NvmeConfig {
    NvmeConfig {
        subsystem: server.subsystem,
        volumes: server.devices.iter().map(|it| it.0).collect(),
    }
}

/// The target of a leg, as this one is but for what it holds.
fn leg_target(config: &TargetConfig, leg: u8) -> TargetConfig {
    let mut config = config.clone();
    config.subsystem.nqn = leg_nqn(leg);
    let space = &mut config.subsystem.namespaces[0];
    space.blocks = LEG_BYTES / u64::from(BLOCK);
    (space.uuid, space.nguid) = ([0x50 + leg; 16], [0x60 + leg; 16]);
    config
}

fn leg_nqn(leg: u8) -> String {
    format!("nqn.2026-01.org.example:leg{leg}")
}

/// A mirror over these disks, and volumes beside it.
fn mirrored(disks: &[Disk], beside: &[VolumeConfig]) -> Devices {
    let (mut host, mirror) = configured(disks);
    for volume in &mut host.volumes {
        volume.paths = volume.paths.drain(..).map(with_holes).collect();
    }
    host.volumes.extend_from_slice(beside);
    devices(host, mirror)
}

/// A mirror over two legs, each a volume over two paths to a target of its own.
fn mirrored_paths(disks: &[Disk]) -> Devices {
    let (mut host, mut mirror) = configured(disks);
    host.kato_ms = 1000;
    for (leg, volume) in (0..).zip(&mut host.volumes) {
        let path = |port: u32| PathConfig {
            kind: PathKind::NvmeTcp {
                address: 2 * u32::from(leg) + port,
                subsystem: leg_nqn(leg),
                nsid: None,
            },
            ..tcp_path(port)
        };
        volume.paths = (0..2).map(path).collect();
        volume.recovery.quiesce_ns = 500 * MS;
    }
    mirror.shared = true;
    devices(host, mirror)
}

fn devices(host: HostConfig, mirror: MirrorConfig) -> Devices {
    let mirrors = mirrors(mirror, NBD_ARENA + NVME_ARENA);
    Devices::new(Multipath::new(host), mirrors)
}

/// A namespace of the server, of so little that its size must come from its device.
pub fn add_namespace(server: &mut TargetConfig, nsid: u32, volume: u16) {
    server.subsystem.namespaces.push(namespace(nsid));
    server.devices.push(LocalDevice(volume));
}
