//! An engine with a mirror over devices, whose cache and power a test has in its hand.
use super::common::{Disk, HOST, MS, SECOND, World, host_config};
use super::made::{self, mirrors};
pub use super::made::{LEG_BYTES, crc32c};
use engine::export::{ExportControl, ExportEvent};
use engine::host::{HostConfig, HostControl, HostEvent, Io, IoDone, IoOp, Multipath};
use engine::limits::MIRROR_SCRATCH_BYTES;
use engine::mirror::{
    Devices, LegOrder, LegStatus, MIRRORS_FROM, MirrorConfig, MirrorOrder, MirrorReport,
    MirrorState,
};
use engine::{Core, Machine, Span};
use mirror::assembly::Wishes;
use mirror::bitmap::{Bitmap, PAGE_BYTES};
use mirror::copies::Chosen;
use mirror::layout::COPIES_AT;
use mirror::superblock::Owner;
use mirror::{Id, Properties, Superblock};
use multipath::Outcome;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

pub const BLOCK: u32 = 4096;

/// Starts a mirror with the legs that are there.
pub const WITHOUT: MirrorOrder = MirrorOrder::Assemble(Wishes {
    without: true,
    discard: None,
});
/// Where the legs' superblocks are written from; behind the callers' buffers.
const SCRATCH_AT: u64 = 4 << 20;

/// Each engine draws one of its own.
static LINEAGES: AtomicU64 = AtomicU64::new(4711);

/// Disks with volatile caches that are the legs of a new mirror "m0".
pub fn made(count: u8, alike: bool) -> Vec<Disk> {
    let mut properties = Properties::default();
    properties.set("policy", "round-robin:4096").unwrap();
    let legs = made::legs(count, alike, properties).unwrap().into_iter();
    let disk = |bytes: Vec<u8>| {
        let disk = Disk::new(0);
        *disk.bytes.borrow_mut() = bytes;
        disk.with_cache()
    };
    legs.map(disk).collect()
}

/// Says on the legs who has them.
pub fn said_of(disks: &[Disk], owner: Option<Owner>) {
    say(disks, |superblock| superblock.owned(owner));
}

/// Says something else on the legs.
pub fn say(disks: &[Disk], what: impl Fn(Superblock) -> Superblock) {
    for disk in disks {
        let block = what(superblock(disk).superblock);
        for (copy, at) in (0..).zip(COPIES_AT) {
            let bytes = block.encode(copy, crc32c);
            disk.bytes.borrow_mut()[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
    }
}

/// Superblock that a leg's copies show.
pub fn superblock(disk: &Disk) -> Chosen {
    let bytes = disk.bytes.borrow();
    let copy = |copy: usize| &bytes[COPIES_AT[copy] as usize..][..4096];
    mirror::copies::read_copies([Some(copy(0)), Some(copy(1))], crc32c).unwrap()
}

/// How many bits its bitmap has.
pub fn intents(disk: &Disk) -> u64 {
    let superblock = superblock(disk).superblock;
    let bytes = disk.bytes.borrow();
    let mut bitmap = Bitmap::new(superblock.geometry.regions());
    for page in 0..bitmap.pages() {
        let at = superblock.place.bitmap_offset as usize + page * PAGE_BYTES;
        let page_bytes = &bytes[at..][..PAGE_BYTES];
        bitmap
            .merge_page(page, page_bytes, superblock.mirror, crc32c)
            .unwrap();
    }
    bitmap.count()
}

/// Bytes of the mirror's data on a leg.
pub fn data(disk: &Disk) -> Vec<u8> {
    let place = superblock(disk).superblock.place;
    disk.bytes.borrow()[place.data_offset as usize..].to_vec()
}

/// A loss of power: only what was flushed, or written with FUA, is left.
pub fn lose_power(disk: &Disk) -> Disk {
    let mut after = disk.clone();
    let durable = disk.durable.as_ref().unwrap().borrow().clone();
    after.bytes = Rc::new(RefCell::new(durable.clone()));
    after.durable = Some(Rc::new(RefCell::new(durable)));
    after.error = None;
    after
}

pub struct Rig {
    pub world: World,
    pub engine: Rc<RefCell<Core>>,
    pub events: Vec<HostEvent>,
    pub done: Vec<IoDone>,
}

/// Volumes over these devices, each a leg; and a mirror over those.
pub fn configured(disks: &[Disk]) -> (HostConfig, MirrorConfig) {
    let count = disks.len() as u16;
    let mut host = host_config(0);
    host.volumes = (0..count).map(made::volume).collect();
    host.io_max = 256;
    let lineage = LINEAGES.fetch_add(1, Ordering::Relaxed);
    (host, made::mirror(count, lineage))
}

impl Rig {
    pub fn new(disks: &[Disk]) -> Self {
        let (host, mirror) = configured(disks);
        Self::with(disks, host, mirror)
    }

    pub fn with(disks: &[Disk], host: HostConfig, mirror: MirrorConfig) -> Self {
        let mut world = World::new(5);
        let engine = Devices::new(Multipath::new(host), mirrors(mirror, SCRATCH_AT));
        let engine = Rc::new(RefCell::new(Core::without_front_ends(engine)));
        let arena = SCRATCH_AT as usize + MIRROR_SCRATCH_BYTES as usize;
        assert_eq!(world.add(engine.clone(), arena), HOST);
        world.nodes[HOST].disks = disks.to_vec();
        Self {
            world,
            engine,
            events: Vec::new(),
            done: Vec::new(),
        }
    }

    /// One whose mirror runs.
    pub fn ready(disks: &[Disk]) -> Self {
        let mut rig = Self::new(disks);
        rig.until(30 * SECOND, |rig| rig.is_ready());
        rig
    }

    pub fn is_ready(&self) -> bool {
        let ready = |event: &HostEvent| matches!(event, HostEvent::Ready(MIRRORS_FROM, _));
        self.events.iter().any(ready)
    }

    /// One of two legs in which these blocks were written as 3; so much later leg 1 was taken out.
    pub fn with_last_leg(disks: &[Disk], blocks: &[u64], later_ns: u64) -> Self {
        let mut rig = Self::ready(disks);
        for &block in blocks {
            assert_eq!(rig.write(block, 3), Outcome::Done);
        }
        rig.run(later_ns, |_| false);
        rig.order_leg(1, LegOrder::Fail);
        rig.until(SECOND, |rig| rig.statuses()[1] == LegStatus::Stale);
        rig.run(SECOND, |_| false);
        rig
    }

    pub fn disk(&mut self, leg: usize) -> &mut Disk {
        &mut self.world.nodes[HOST].disks[leg]
    }

    /// Lets at most so much time pass until it is so; false: it never was.
    pub fn run(&mut self, limit_ns: u64, mut is: impl FnMut(&Self) -> bool) -> bool {
        let end_ns = self.world.now_ns + limit_ns;
        loop {
            let engine = self.engine.clone();
            let (mut events, mut done) = (Vec::new(), Vec::new());
            let left = end_ns - self.world.now_ns;
            let before = self.world.now_ns;
            self.world.run(left, |world| {
                while let Some(event) = engine.borrow_mut().poll_event() {
                    match event {
                        ExportEvent::Host(HostEvent::Done(it)) => done.push(it),
                        ExportEvent::Host(other) => events.push(other),
                        other => panic!("of no front end: {other:?}"),
                    }
                }
                !done.is_empty() || !events.is_empty() || world.now_ns > before + MS
            });
            self.events.append(&mut events);
            self.done.append(&mut done);
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
        assert!(so, "never came: {:?}\n{:?}", self.report(), self.lines());
    }

    pub fn report(&self) -> MirrorReport {
        self.engine.borrow().mirror(MIRRORS_FROM).unwrap()
    }

    /// Waits until the mirror has left, and that was said.
    pub fn until_gone(&mut self) {
        let is_said = |event: &HostEvent| {
            let changed = match event {
                HostEvent::Changed(0, Ok(changed)) => changed,
                _ => return false,
            };
            changed.volume == MIRRORS_FROM && changed.path.is_none()
        };
        let gone = |rig: &Self| rig.engine.borrow().mirror(MIRRORS_FROM).is_none();
        let so = self.run(SECOND, |rig| gone(rig) && rig.events.iter().any(is_said));
        assert!(so, "it stays: {:?}", self.lines());
    }

    pub fn statuses(&self) -> Vec<LegStatus> {
        self.report().legs.iter().map(|leg| leg.status).collect()
    }

    /// Messages about the mirror.
    pub fn lines(&self) -> Vec<String> {
        let line = |event: &HostEvent| match event {
            HostEvent::Failed(_, line)
            | HostEvent::Warning(_, line)
            | HostEvent::Returned(_, line) => Some(line.clone()),
            _ => None,
        };
        self.events.iter().filter_map(line).collect()
    }

    pub fn order(&mut self, order: MirrorOrder) {
        let now_ns = self.world.now_ns;
        let order = ExportControl::Mirror(MIRRORS_FROM, order);
        self.engine.borrow_mut().handle_control(order, now_ns);
    }

    /// Orders something of the leg that has a slot.
    pub fn order_leg(&mut self, slot: u8, order: LegOrder) {
        let report = self.report();
        let leg = report.legs.iter().find(|leg| leg.slot == Some(slot));
        let id = leg.and_then(|leg| leg.id).unwrap_or(made::leg_id(slot));
        self.order(MirrorOrder::Leg(id, order));
    }

    pub fn control(&mut self, message: HostControl) {
        let now_ns = self.world.now_ns;
        let message = ExportControl::Host(message);
        self.engine.borrow_mut().handle_control(message, now_ns);
    }

    /// Stops the engine; whether the mirror was stopped cleanly.
    pub fn stop(&mut self) {
        self.control(HostControl::Drain(5 * SECOND));
        self.control(HostControl::Stop);
        self.until(30 * SECOND, |rig| rig.world.nodes[HOST].stopped);
        assert_eq!(self.report().state, MirrorState::Stopped);
    }

    pub fn submit(&mut self, it: &Io) {
        let now_ns = self.world.now_ns;
        self.engine.borrow_mut().submit(it, now_ns).unwrap();
    }

    /// The end of one I/O.
    pub fn one(&mut self, it: &Io) -> Outcome {
        self.submit(it);
        let is = |done: &IoDone| done.cookie == it.cookie;
        self.until(60 * SECOND, |rig| rig.done.iter().any(is));
        let at = self.done.iter().position(is).unwrap();
        self.done.swap_remove(at).outcome
    }

    /// Writes one block full of a byte.
    pub fn write(&mut self, block: u64, byte: u8) -> Outcome {
        let it = io(IoOp::Write { fua: false }, block);
        let at = it.span.at as usize;
        self.world.nodes[HOST].arena.0[at..][..BLOCK as usize].fill(byte);
        self.one(&it)
    }

    /// The byte that a block is full of.
    pub fn read(&mut self, block: u64) -> Result<u8, Outcome> {
        let it = io(IoOp::Read, block);
        let at = it.span.at as usize;
        self.world.nodes[HOST].arena.0[at..][..BLOCK as usize].fill(0xee);
        match self.one(&it) {
            Outcome::Done => {}
            other => return Err(other),
        }
        let bytes = &self.world.nodes[HOST].arena.0[at..][..BLOCK as usize];
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "block {block}");
        Ok(bytes[0])
    }

    pub fn flush(&mut self) -> Outcome {
        self.one(&io(IoOp::Flush, 0))
    }
}

/// A disk as large as the others becomes a leg.
pub fn add(volume: u16) -> MirrorOrder {
    MirrorOrder::Add(Box::new(engine::mirror::NewLeg {
        config: made::leg(volume),
        info: engine::host::VolumeInfo {
            bytes: LEG_BYTES,
            block_shift: 12,
            transfer_max: BLOCK,
            read_only: false,
        },
        id: Id([0x40 + volume as u8; 16]),
        replaces: None,
    }))
}

/// An I/O of one block, in memory of its own.
pub fn io(op: IoOp, block: u64) -> Io {
    let length = if op == IoOp::Flush { 0 } else { BLOCK };
    Io {
        volume: MIRRORS_FROM,
        op,
        offset: block * u64::from(length),
        length,
        span: Span {
            at: block % 512 * u64::from(BLOCK),
            len: length,
        },
        source: 1,
        cookie: block,
    }
}

/// A mirror of legs that another host reaches as well.
pub fn shared(disks: &[Disk]) -> Rig {
    let (host, mut mirror) = configured(disks);
    mirror.shared = true;
    Rig::with(disks, host, mirror)
}
