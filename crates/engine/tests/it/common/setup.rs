//! A host and a target wired to each other, and a load that checks every byte.
use super::{Address, Disk, HostCore, MS, SECOND, World, config};
use engine::host::{
    HostConfig, HostControl, HostEvent, Io, IoDone, IoOp, PathConfig, PathKind, PathNews, Recovery,
    SubmitError, VolumeConfig, VolumeInfo,
};
use engine::target::{TargetConfig, TargetControl, TargetEngine};
use engine::{LocalDevice, Machine, Span};
use multipath::Outcome;
use nvme::controller::{NamespaceConfig, PortConfig, SubsystemConfig};
use nvme::host::AnaState;
use policy::{Knobs, PathIndex, Policy};
use std::cell::RefCell;
use std::rc::Rc;

pub const NQN: &str = "nqn.2026-01.org.example:v0";
pub const BLOCKS: u64 = 4096;
pub const BLOCK: u32 = 4096;
/// One way between host and target.
pub const WIRE_NS: u64 = 10_000;

/// A namespace of [`BLOCKS`] blocks of 4 KiB.
pub fn namespace(nsid: u32) -> NamespaceConfig {
    NamespaceConfig {
        nsid,
        blocks: BLOCKS,
        block_shift: 12,
        uuid: [nsid as u8; 16],
        nguid: [0xa0 | nsid as u8; 16],
        ana_group: 1,
        read_only: false,
        deallocate_zeroes: true,
    }
}

pub fn port(id: u16) -> PortConfig {
    PortConfig {
        id,
        traddr: "192.0.2.1".into(),
        trsvcid: "4420".into(),
        ipv6: false,
        ana: AnaState::Optimized,
    }
}

/// A target with `ports` unshaped ports, one namespace, in-capsule data of 8 KiB.
pub fn target_config(ports: u16) -> TargetConfig {
    TargetConfig {
        subsystem: SubsystemConfig {
            nqn: NQN.into(),
            serial: "BRAID1".into(),
            model: "braid".into(),
            cntlid_min: 1,
            cntlid_max: 100,
            namespaces: vec![namespace(1)],
            ports: (1..=ports).map(port).collect(),
            hosts: Vec::new(),
            entries_max: 128,
            io_queues_max: 4,
            transfer_shift: 17,
            in_capsule_max: 8192,
            maxh2cdata: 16384,
            c2h_success: true,
            cqt_ms: 0,
            volatile_write_cache: false,
            compare: true,
            lba_status: true,
            connections_max: 16,
        },
        shapes: vec![shape::Config::default(); usize::from(ports)],
        devices: vec![LocalDevice(0)],
        arena_bytes: 16 << 20,
        seed: 1,
    }
}

/// Lets the target's commands carry 2^`shift` bytes.
pub fn carry(target: &mut TargetConfig, shift: u8) {
    target.subsystem.transfer_shift = shift;
    target.subsystem.in_capsule_max = target.subsystem.in_capsule_max.min(1 << shift);
}

/// A path to address number `address`.
pub fn tcp_path(address: u32) -> PathConfig {
    PathConfig {
        uri: format!("nvme-tcp://p{address}/{NQN}"),
        kind: PathKind::NvmeTcp {
            address,
            subsystem: NQN.into(),
            nsid: None,
        },
        distance: 10,
        throughput: 1,
        numbers: PathConfig::ANY_NUMBER,
    }
}

/// A volume "v0" over `paths`, round-robin.
pub fn volume(paths: Vec<PathConfig>) -> VolumeConfig {
    VolumeConfig {
        name: "v0".into(),
        policy: Policy::RoundRobin { bytes: 0 },
        knobs: Knobs::default(),
        paths,
        recovery: Recovery::NONE,
    }
}

/// One volume over `paths` paths, one core.
pub fn host_config(paths: u32) -> HostConfig {
    config::host(vec![volume((0..paths).map(tcp_path).collect())])
}

/// A host and a target with their network.
pub struct Rig {
    pub world: World,
    pub host: Rc<RefCell<HostCore>>,
    pub target: Rc<RefCell<TargetEngine>>,
    pub disk: Disk,
    /// Events of the host, but for ends of I/Os.
    pub events: Vec<HostEvent>,
    /// Ends of I/Os that no load took.
    pub done: Vec<IoDone>,
}

/// The host's and the target's node.
pub const HOST: usize = 0;
pub const TARGET: usize = 1;

impl Rig {
    /// The host's address `n` leads to the target's port `n`.
    pub fn new(host: HostConfig, target: TargetConfig) -> Self {
        let mut world = World::new(42);
        let ports = target.shapes.len() as u32;
        let arena = target.arena_bytes as usize;
        let disks = target.devices.len();
        let host = Rc::new(RefCell::new(HostCore::new(host)));
        let target = Rc::new(RefCell::new(TargetEngine::new(target).unwrap()));
        world.add(host.clone(), 8 << 20);
        world.add(target.clone(), arena);
        let to = |listener| Address::To {
            node: TARGET,
            listener,
            delay_ns: WIRE_NS,
        };
        world.nodes[HOST].addresses = (0..ports).map(to).collect();
        let disk = Disk::new((BLOCKS * u64::from(BLOCK)) as usize);
        world.nodes[TARGET].disks = vec![disk.clone(); disks];
        Self {
            world,
            host,
            target,
            disk,
            events: Vec::new(),
            done: Vec::new(),
        }
    }

    /// From now on an address leads to a target of its own, over this disk: it, and where the
    /// address led before.
    pub fn lead(
        &mut self,
        address: usize,
        config: TargetConfig,
        disk: Disk,
    ) -> (Rc<RefCell<TargetEngine>>, Address) {
        let target = Rc::new(RefCell::new(TargetEngine::new(config).unwrap()));
        let node = self.world.add(target.clone(), 16 << 20);
        self.world.nodes[node].disks = vec![disk];
        let to = Address::To {
            node,
            listener: 0,
            delay_ns: WIRE_NS,
        };
        let before = std::mem::replace(&mut self.world.nodes[HOST].addresses[address], to);
        (target, before)
    }

    /// Takes the host's events.
    pub fn poll(&mut self) {
        poll(&self.host, &mut self.events, &mut self.done);
    }

    /// Lets up to `limit_ns` pass until `done`.
    pub fn run(
        &mut self,
        limit_ns: u64,
        mut done: impl FnMut(&[HostEvent], &[IoDone]) -> bool,
    ) -> bool {
        let Self {
            world,
            host,
            events,
            done: ended,
            ..
        } = self;
        world.run(limit_ns, |_| {
            poll(host, events, ended);
            done(events, ended)
        })
    }

    /// Until volume 0 is ready.
    pub fn ready(&mut self) -> VolumeInfo {
        let ready = self.run(20 * SECOND, |events, _| ready_of(events, 0).is_some());
        assert!(ready, "not ready: {:?}", self.failures());
        ready_of(&self.events, 0).unwrap()
    }

    /// Lines of all [`HostEvent::Failed`] so far.
    pub fn failures(&self) -> Vec<&str> {
        failures(&self.events)
    }

    /// The one line about a path that failed within `limit_ns`.
    pub fn failure(&mut self, limit_ns: u64) -> String {
        assert!(
            self.run(limit_ns, |events, _| !failures(events).is_empty()),
            "nothing failed"
        );
        self.world.run(MS, |_| false);
        self.poll();
        let lines = self.failures();
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines[0].into()
    }

    pub fn submit(&mut self, io: &Io) -> Result<(), SubmitError> {
        self.host.borrow_mut().submit(io, self.world.now_ns)
    }

    /// The end of one I/O, within `limit_ns`.
    pub fn one(&mut self, io: &Io, limit_ns: u64) -> IoDone {
        self.submit(io).unwrap();
        let cookie = io.cookie;
        let of = move |done: &IoDone| done.cookie == cookie;
        assert!(
            self.run(limit_ns, |_, done| done.iter().any(of)),
            "{io:?} never ended"
        );
        let at = self.done.iter().position(of).unwrap();
        self.done.remove(at)
    }

    pub fn control(&mut self, message: HostControl) {
        self.host
            .borrow_mut()
            .handle_control(message, self.world.now_ns);
    }

    pub fn target_control(&mut self, message: TargetControl) {
        self.target
            .borrow_mut()
            .handle_control(message, self.world.now_ns);
    }

    /// Runs a load until so many of its I/Os have ended, or all of it; false: not within the limit.
    pub fn load_until(&mut self, load: &mut Load, limit_ns: u64, ended: u64) -> bool {
        let Self {
            world,
            host,
            events,
            ..
        } = self;
        world.run(limit_ns, |world| {
            load.step(world, host, events);
            load.ended >= ended || load.is_over()
        })
    }

    /// Runs a load to its end.
    pub fn load(&mut self, load: &mut Load, limit_ns: u64) {
        let over = self.load_until(load, limit_ns, u64::MAX);
        assert!(over, "{} of {} I/Os ended", load.ended, load.total);
    }

    /// I/Os completed well per path of volume 0.
    pub fn shares(&self, paths: u8) -> Vec<u64> {
        let host = self.host.borrow();
        let counters = (0..paths).map(|path| host.counters(0, PathIndex(path)));
        counters.map(|counters| counters.ios.iter().sum()).collect()
    }
}

fn poll(host: &Rc<RefCell<HostCore>>, events: &mut Vec<HostEvent>, done: &mut Vec<IoDone>) {
    while let Some(event) = host.borrow_mut().poll_event() {
        match event {
            HostEvent::Done(end) => done.push(end),
            other => events.push(other),
        }
    }
}

pub fn failures(events: &[HostEvent]) -> Vec<&str> {
    let line = |event: &'_ HostEvent| matches!(event, HostEvent::Failed(..));
    let failed = events.iter().filter(|event| line(event));
    failed
        .map(|event| match event {
            HostEvent::Failed(_, line) => line.as_str(),
            _ => unreachable!(),
        })
        .collect()
}

pub fn ready_of(events: &[HostEvent], volume: u16) -> Option<VolumeInfo> {
    events.iter().find_map(|event| match event {
        HostEvent::Ready(of, info) if *of == volume => Some(*info),
        _ => None,
    })
}

/// News of core 0 for the others.
pub fn published(events: &[HostEvent]) -> Vec<PathNews> {
    let news = events.iter().filter_map(|event| match event {
        HostEvent::Publish(news) => Some(news.clone()),
        _ => None,
    });
    news.collect()
}

/// An I/O of `length` bytes; its memory lies at `slot` MiB/8 of the arena.
pub fn io(op: IoOp, offset: u64, length: u32, slot: u64) -> Io {
    let span = Span {
        at: slot * (128 << 10),
        len: length,
    };
    Io {
        volume: 0,
        op,
        offset,
        length,
        span,
        source: 1,
        cookie: slot,
    }
}

pub fn read(block: u64, slot: u64) -> Io {
    io(IoOp::Read, block * u64::from(BLOCK), BLOCK, slot)
}

pub fn write(block: u64, slot: u64) -> Io {
    io(
        IoOp::Write { fua: false },
        block * u64::from(BLOCK),
        BLOCK,
        slot,
    )
}

/// A closed loop of reads and writes whose every byte is checked. Each of `depth` slots has its own
/// part of the volume, so what a block must hold is known.
pub struct Load {
    pub total: u64,
    pub started: u64,
    pub ended: u64,
    pub bytes: u32,
    pub outcomes: Vec<(Outcome, PathIndex)>,
    pub latency_ns: Vec<u64>,
    /// Chooses what the `n`th I/O is.
    pub writes: fn(u64) -> bool,
    /// Reads whose every byte was checked.
    pub verified: u64,
    /// The host's node, and the first byte of its part of the volume.
    pub node: usize,
    pub base: u64,
    slots: Vec<Slot>,
    parts: u64,
}

#[derive(Clone, Default)]
struct Slot {
    busy: Option<(u64, bool)>,
    /// Version last written to each part; 0 = zeroes. `None`: a write failed there, and may yet be
    /// executed late (T9), so nothing is known from then on.
    versions: Vec<Option<u64>>,
}

impl Load {
    pub fn new(total: u64, depth: u64, bytes: u32) -> Self {
        let parts = BLOCKS * u64::from(BLOCK) / u64::from(bytes) / depth;
        let parts = parts.min(8);
        let slot = Slot {
            busy: None,
            versions: vec![Some(0); parts as usize],
        };
        Self {
            total,
            started: 0,
            ended: 0,
            bytes,
            outcomes: Vec::new(),
            latency_ns: Vec::new(),
            writes: |n| n % 2 == 0,
            verified: 0,
            node: HOST,
            base: 0,
            slots: vec![slot; depth as usize],
            parts,
        }
    }

    pub fn is_over(&self) -> bool {
        self.ended == self.total
    }

    pub fn errors(&self) -> usize {
        self.outcomes
            .iter()
            .filter(|(outcome, _)| !outcome.is_done())
            .count()
    }

    /// Takes what ended, starts what may start; again where I/O fails at once.
    pub fn step(
        &mut self,
        world: &mut World,
        host: &RefCell<HostCore>,
        events: &mut Vec<HostEvent>,
    ) {
        loop {
            let before = self.ended;
            while let Some(event) = { host.borrow_mut().poll_event() } {
                match event {
                    HostEvent::Done(done) => self.end(world, &done),
                    other => events.push(other),
                }
            }
            for slot in 0..self.slots.len() {
                if self.slots[slot].busy.is_none() && self.started < self.total {
                    self.begin(world, host, slot as u64);
                }
            }
            if self.ended == before {
                return;
            }
        }
    }

    fn offset(&self, slot: u64, part: u64) -> u64 {
        self.base + (part * self.slots.len() as u64 + slot) * u64::from(self.bytes)
    }

    fn begin(&mut self, world: &mut World, host: &RefCell<HostCore>, slot: u64) {
        let writes = (self.writes)(self.started);
        let part = (self.started / 3) % self.parts;
        let op = if writes {
            IoOp::Write { fua: false }
        } else {
            IoOp::Read
        };
        let it = io(op, self.offset(slot, part), self.bytes, slot);
        let memory =
            &mut world.nodes[self.node].arena.0[it.span.at as usize..][..self.bytes as usize];
        if writes {
            fill(memory, it.offset, self.started + 1);
        } else {
            memory.fill(0xee);
        }
        let now_ns = world.now_ns;
        host.borrow_mut().submit(&it, now_ns).unwrap();
        let version = &mut self.slots[slot as usize].versions[part as usize];
        if writes && version.is_some() {
            *version = Some(self.started + 1);
        }
        self.slots[slot as usize].busy = Some((part, writes));
        self.started += 1;
    }

    fn end(&mut self, world: &World, done: &IoDone) {
        let slot = &mut self.slots[done.cookie as usize];
        let (part, wrote) = slot.busy.take().expect("ended twice");
        if wrote && !done.outcome.is_done() {
            slot.versions[part as usize] = None;
        }
        let version = slot.versions[part as usize];
        self.ended += 1;
        self.outcomes.push((done.outcome, done.path));
        self.latency_ns.push(done.latency_ns);
        let Some(version) = version.filter(|_| !wrote && done.outcome.is_done()) else {
            return;
        };
        let offset = self.offset(done.cookie, part);
        let at = done.cookie as usize * (128 << 10);
        let memory = &world.nodes[self.node].arena.0[at..][..self.bytes as usize];
        let mut want = vec![0; memory.len()];
        if version > 0 {
            fill(&mut want, offset, version);
        }
        assert!(memory == want, "wrong bytes at {offset}");
        self.verified += 1;
    }
}

/// Bytes that tell where and which version they are.
pub fn fill(memory: &mut [u8], offset: u64, version: u64) {
    for (i, word) in memory.chunks_mut(8).enumerate() {
        let value = (offset + 8 * i as u64) ^ version.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}
