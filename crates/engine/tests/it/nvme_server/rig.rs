//! A host, NBD clients, an engine whose devices are namespaces and NBD exports, and what is below.
use super::clients::{Clients, Ended};
use super::common::{
    Address, BLOCK, BLOCKS, Disk, HOST, MS, SECOND, TARGET, WIRE_NS, World, host_config, namespace,
    target_config, tcp_path,
};
use crate::mirror::rig::{configured, crc32c};
use engine::export::{ExportConfig, ExportControl, ExportEvent, Offer};
use engine::host::{
    HostConfig, HostEngine, HostEvent, Io, IoDone, PathConfig, PathKind, Recovery, VolumeConfig,
    VolumeInfo,
};
use engine::limits::{EXPORTS_MAX, MIRROR_SCRATCH_BYTES};
use engine::mirror::{Devices, MIRRORS_FROM, MirrorsConfig};
use engine::target::{TargetConfig, TargetControl, TargetEngine};
use engine::{Core, DeviceId, Machine, NvmeConfig, Span};
use nbd::client::Config;
use nbd::{Kind, Request};
use std::cell::RefCell;
use std::rc::Rc;
use volume::Outcome;

const NBD_ARENA: u64 = 68 << 20;
const NVME_ARENA: u64 = 16 << 20;

/// What the engine's devices are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// A volume over two paths to a target with a cache.
    Paths,
    /// A volume over a local device with a cache.
    Local,
    /// A mirror of two local devices with caches.
    Mirror,
}

/// What differs from test to test.
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
        if below == Below::Local {
            core.volumes[0].paths = vec![local(0, 12)];
        }
        let mut server = target_config(1);
        server.subsystem.volatile_write_cache = true;
        server.devices = vec![DeviceId(volume(below))];
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
            device: DeviceId(device),
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

/// Number of the device.
pub fn volume(below: Below) -> u16 {
    match below {
        Below::Mirror => MIRRORS_FROM,
        _ => 0,
    }
}

pub struct Rig {
    pub world: World,
    pub core: Rc<RefCell<Core>>,
    pub target: Rc<RefCell<TargetEngine>>,
    pub guest: Rc<RefCell<HostEngine>>,
    pub clients: Rc<RefCell<Clients>>,
    /// Of the target, or the local ones.
    pub disks: Vec<Disk>,
    pub events: Vec<ExportEvent>,
    pub guest_events: Vec<HostEvent>,
    pub done: Vec<IoDone>,
}

pub const GUEST: usize = 2;
pub const CLIENTS: usize = 3;

impl Rig {
    pub fn new(setup: Setup) -> Self {
        let mut world = World::new(11);
        let bytes = (BLOCKS * u64::from(BLOCK)) as usize;
        let disks = match setup.below {
            Below::Mirror => crate::mirror::rig::made(2, true),
            _ => vec![Disk::new(bytes).with_cache(), Disk::new(bytes).with_cache()],
        };
        let volumes = setup.core.volumes.len();
        let devices: Devices = match setup.below {
            Below::Mirror => mirrored(&disks, &setup.core.volumes[1..]),
            _ => HostEngine::new(setup.core).into(),
        };
        let mut core = Core::new(devices, volumes, setup.export);
        let config = NvmeConfig {
            subsystem: setup.server.subsystem,
            volumes: setup.server.devices.iter().map(|it| it.0).collect(),
            arena_at: NBD_ARENA,
            arena_bytes: NVME_ARENA,
        };
        assert_eq!(core.add_nvme_server(config), Ok(EXPORTS_MAX));
        let core = Rc::new(RefCell::new(core));
        let target_arena = setup.target.arena_bytes as usize;
        let target = Rc::new(RefCell::new(TargetEngine::new(setup.target).unwrap()));
        let guest = Rc::new(RefCell::new(HostEngine::new(setup.guest)));
        let clients = Rc::new(RefCell::new(Clients::new(256 << 10)));
        let arena = NBD_ARENA + NVME_ARENA + u64::from(MIRROR_SCRATCH_BYTES);
        assert_eq!(world.add(core.clone(), arena as usize), HOST);
        assert_eq!(world.add(target.clone(), target_arena), TARGET);
        assert_eq!(world.add(guest.clone(), 8 << 20), GUEST);
        assert_eq!(world.add(clients.clone(), 16 << 20), CLIENTS);
        let to = |node, listener| Address::To {
            node,
            listener,
            delay_ns: WIRE_NS,
        };
        world.nodes[HOST].addresses = vec![to(TARGET, 0), to(TARGET, 1)];
        world.nodes[GUEST].addresses = vec![to(HOST, EXPORTS_MAX); 2];
        world.nodes[CLIENTS].addresses = vec![to(HOST, 0)];
        match setup.below {
            Below::Paths => world.nodes[TARGET].disks = vec![disks[0].clone()],
            _ => world.nodes[HOST].disks = disks.clone(),
        }
        let mut rig = Self {
            world,
            core,
            target,
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

    /// What the host knows of its volume, first.
    pub fn info(&self) -> Option<VolumeInfo> {
        super::common::ready_of(&self.guest_events, 0)
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
        let config = Config {
            requests_max: 8,
            ..Config::default()
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

    /// Makes the whole device below slow.
    pub fn slow(&mut self, delay_ns: u64) {
        for node in [HOST, TARGET] {
            let disks = self.world.nodes[node].disks.iter_mut();
            disks.for_each(|disk| disk.delay_ns = delay_ns);
        }
    }

    /// Loses all paths to the target, for good.
    pub fn lose_paths(&mut self) {
        for path in 0..2 {
            self.world.nodes[HOST].addresses[path] = Address::Refused;
            self.world.cut(HOST, path as u32);
        }
    }

    /// They lead there again.
    pub fn find_paths(&mut self) {
        for port in 0..2 {
            self.world.nodes[HOST].addresses[port as usize] = Address::To {
                node: TARGET,
                listener: port,
                delay_ns: WIRE_NS,
            };
        }
    }
}

/// A mirror over these disks, and volumes beside it.
fn mirrored(disks: &[Disk], beside: &[VolumeConfig]) -> Devices {
    let (mut host, mirror) = configured(disks);
    host.volumes.extend_from_slice(beside);
    let mirrors = MirrorsConfig {
        mirrors: vec![Some(mirror)],
        elsewhere: Vec::new(),
        scratch: Span {
            at: NBD_ARENA + NVME_ARENA,
            len: MIRROR_SCRATCH_BYTES,
        },
        crc32c,
    };
    Devices::new(HostEngine::new(host), mirrors)
}

/// A namespace of the server, of so little that its size must come from its device.
pub fn add_namespace(server: &mut TargetConfig, nsid: u32, volume: u16) {
    server.subsystem.namespaces.push(namespace(nsid));
    server.devices.push(DeviceId(volume));
}
