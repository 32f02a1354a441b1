//! A client of one front end over one device, with requests that read the same for both.
use super::Front;
use super::queue::QueueClient;
use super::ublk::UblkClient;
use crate::common::{BLOCK, Disk, HOST, SECOND, TARGET, fill, io};
use crate::mirror::rig::superblock;
use crate::nvme_server::rig::{Below, GUEST, Rig, SECOND_TARGET, Setup};
use engine::host::IoOp;
use engine::limits::{DRAIN_ANSWER_NS, EXPORTS_MAX};
use engine::{DeviceOp, DeviceRequest, Machine};
use multipath::Outcome;
use nbd::client::{CommandError, Config};
use nbd::{Kind, Request};
use nvme::wire::Status;
use std::ops::Range;

/// Longest time of a request that waits for nothing.
const ONE: u64 = 10 * SECOND;
/// Most bytes of one request here.
const PIECE: u64 = 128 << 10;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Read,
    Write,
    WriteFua,
    Flush,
    Zeroes,
    Discard,
}

/// How a request failed, in its front end's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    Nbd(CommandError),
    Nvme(Outcome),
    Queue(Status),
    Ublk(i32),
}

pub struct Stage {
    pub rig: Rig,
    pub front: Front,
    pub below: Below,
    client: usize,
    queue: QueueClient,
    ublk: UblkClient,
    /// First byte of the device's data on a disk.
    base: u64,
}

impl Stage {
    pub fn new(front: Front, below: Below) -> Self {
        Self::of(front, Setup::over(below))
    }

    pub fn of(front: Front, mut setup: Setup) -> Self {
        let below = setup.below;
        setup.guest.io_timeout_ns = 300 * SECOND;
        let rig = Rig::ready(setup);
        let base = match below.is_mirror() {
            true => superblock(&rig.disks[0]).superblock.place.data_offset,
            false => 0,
        };
        let mut stage = Self {
            rig,
            front,
            below,
            client: 0,
            queue: QueueClient::default(),
            ublk: UblkClient::default(),
            base,
        };
        stage.reconnect();
        stage.watch();
        stage
    }

    /// Another connection, of a client that sends any range, where there is a client.
    pub fn reconnect(&mut self) {
        if self.front == Front::Nbd {
            self.client = self.rig.connect_as(Config {
                block_sizes: false,
                ..Config::default()
            });
        }
    }

    /// Bytes of the volume, as the client knows it last.
    pub fn bytes(&self) -> u64 {
        match self.front {
            Front::Nbd => {
                self.rig.clients.borrow().all[self.client]
                    .ready
                    .unwrap()
                    .size
            }
            Front::Nvme | Front::Queue | Front::Ublk => self.rig.guest_bytes(),
        }
    }

    /// Disks with the device's data: one for each leg.
    pub fn disks(&self) -> &[Disk] {
        &self.rig.disks[..if self.below.is_mirror() { 2 } else { 1 }]
    }

    /// The node's own copy of a leg's disk, to be set.
    pub fn disk_mut(&mut self, leg: usize) -> &mut Disk {
        let (node, at) = match self.below {
            Below::Paths => (TARGET, 0),
            Below::MirrorOfPaths => ([TARGET, SECOND_TARGET][leg], 0),
            _ => (HOST, leg),
        };
        &mut self.rig.world.nodes[node].disks[at]
    }

    /// Bytes of the device on each leg.
    pub fn stored(&self, range: Range<u64>) -> Vec<Vec<u8>> {
        let disks = self.disks().iter();
        disks
            .map(|disk| disk.bytes.borrow()[self.place(&range)].to_vec())
            .collect()
    }

    /// The same after a loss of power; nothing where there is no cache.
    pub fn durable(&self, range: Range<u64>) -> Vec<Vec<u8>> {
        let disks = self.disks().iter().filter_map(|disk| disk.durable.as_ref());
        disks
            .map(|bytes| bytes.borrow()[self.place(&range)].to_vec())
            .collect()
    }

    /// Puts durable bytes on each leg.
    pub fn store(&self, offset: u64, bytes: &[u8]) {
        let place = self.place(&(offset..offset + bytes.len() as u64));
        for disk in self.disks() {
            disk.bytes.borrow_mut()[place.clone()].copy_from_slice(bytes);
            if let Some(durable) = &disk.durable {
                durable.borrow_mut()[place.clone()].copy_from_slice(bytes);
            }
        }
    }

    fn place(&self, range: &Range<u64>) -> Range<usize> {
        (self.base + range.start) as usize..(self.base + range.end) as usize
    }

    /// Forgets what has reached the disks.
    pub fn watch(&mut self) {
        for disk in self.disks() {
            *disk.log.borrow_mut() = Some(Vec::new());
        }
    }

    /// Requests that have reached a leg since then, but for those of a mirror itself; offsets are
    /// those of the device.
    pub fn reached(&self, leg: usize) -> Vec<DeviceRequest> {
        let log = self.disks()[leg].log.borrow();
        let all = log.iter().flatten().map(|(request, _)| *request);
        let own = all.filter(|it| it.op == DeviceOp::Flush || it.offset >= self.base);
        own.map(|it| DeviceRequest {
            offset: it.offset.saturating_sub(self.base),
            ..it
        })
        .collect()
    }

    /// Of these, changes.
    pub fn changes(&self, leg: usize) -> Vec<DeviceRequest> {
        let mut all = self.reached(leg);
        all.retain(|it| it.op.is_change());
        all
    }

    /// Starts a request, whose number is below 8. `data`: of a write.
    pub fn start(&mut self, number: u32, op: Op, (offset, length): (u64, u32), data: &[u8]) {
        match self.front {
            Front::Nbd => {
                let kind = match op {
                    Op::Read => Kind::Read,
                    Op::Write | Op::WriteFua => Kind::Write,
                    Op::Flush => Kind::Flush,
                    Op::Zeroes => Kind::WriteZeroes,
                    Op::Discard => Kind::Trim,
                };
                let mut request = Request::new(number, kind, offset, length);
                if op == Op::WriteFua {
                    request = request.with_fua();
                }
                self.rig.ask(self.client, request, data);
            }
            Front::Nvme => {
                let op = match op {
                    Op::Read => IoOp::Read,
                    Op::Write => IoOp::Write { fua: false },
                    Op::WriteFua => IoOp::Write { fua: true },
                    Op::Flush => IoOp::Flush,
                    Op::Zeroes => IoOp::WriteZeroes { deallocate: false },
                    Op::Discard => IoOp::Deallocate,
                };
                let mut it = io(op, offset, length, number.into());
                if !matches!(op, IoOp::Read | IoOp::Write { .. }) {
                    it.span.len = 0;
                }
                let at = it.span.at as usize;
                let memory = &mut self.rig.world.nodes[GUEST].arena.0;
                memory[at..][..data.len()].copy_from_slice(data);
                let now_ns = self.rig.world.now_ns;
                self.rig.guest.borrow_mut().submit(&it, now_ns).unwrap();
            }
            Front::Queue => {
                let (rig, number) = (&mut self.rig, number as u16);
                self.queue.start(rig, number, op, (offset, length), data);
            }
            Front::Ublk => {
                let (rig, number) = (&mut self.rig, number as u16);
                self.ublk.start(rig, number, op, (offset, length), data);
            }
        }
    }

    pub fn has_ended(&mut self, number: u32) -> bool {
        match self.front {
            Front::Nbd => {
                let clients = self.rig.clients.borrow();
                let ended = &clients.all[self.client].ended;
                ended.iter().any(|it| it.token == number)
            }
            Front::Nvme => self.rig.has_ended(number.into()),
            Front::Queue => {
                self.queue.exchange(&mut self.rig);
                self.queue.has_ended(number as u16)
            }
            Front::Ublk => {
                self.ublk.exchange(&mut self.rig);
                self.ublk.has_ended(number as u16)
            }
        }
    }

    /// Whether a request ends within so many ns.
    pub fn ends(&mut self, number: u32, limit_ns: u64) -> bool {
        let end_ns = self.rig.world.now_ns + limit_ns;
        while !self.has_ended(number) && self.rig.world.now_ns < end_ns {
            let step_ns = (end_ns - self.rig.world.now_ns).min(SECOND / 100);
            self.rig.pass(step_ns);
        }
        self.has_ended(number)
    }

    /// The end of a request: what a read of so many bytes has read.
    pub fn end(&mut self, number: u32, read: u32, limit_ns: u64) -> Result<Vec<u8>, Failed> {
        let in_time = self.ends(number, limit_ns);
        let (front, below) = (self.front, self.below);
        assert!(in_time, "{front:?} {below:?}: request {number} never ended");
        match self.front {
            Front::Nbd => {
                let mut clients = self.rig.clients.borrow_mut();
                let ended = &mut clients.all[self.client].ended;
                let at = ended.iter().position(|it| it.token == number).unwrap();
                let it = ended.remove(at);
                it.result.map(|()| it.data).map_err(Failed::Nbd)
            }
            Front::Nvme => match self.rig.end(number.into(), SECOND) {
                Outcome::Done => {
                    let at = number as usize * PIECE as usize;
                    Ok(self.rig.world.nodes[GUEST].arena.0[at..][..read as usize].to_vec())
                }
                failed => Err(Failed::Nvme(failed)),
            },
            Front::Queue => self.queue.end(number as u16).map_err(Failed::Queue),
            Front::Ublk => self.ublk.end(number as u16).map_err(Failed::Ublk),
        }
    }

    /// One request alone.
    pub fn ask(&mut self, op: Op, at: (u64, u32), data: &[u8]) -> Result<Vec<u8>, Failed> {
        self.start(0, op, at, data);
        let read = if op == Op::Read { at.1 } else { 0 };
        self.end(0, read, ONE)
    }

    /// One that succeeds.
    pub fn done(&mut self, op: Op, at: (u64, u32), data: &[u8]) -> Vec<u8> {
        let (front, below) = (self.front, self.below);
        let ended = self.ask(op, at, data);
        ended.unwrap_or_else(|error| panic!("{front:?} {below:?} {op:?} {at:?}: {error:?}"))
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.done(Op::Write, (offset, data.len() as u32), data);
    }

    pub fn read(&mut self, range: Range<u64>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let length = (range.end - at).min(PIECE);
            bytes.append(&mut self.done(Op::Read, (at, length as u32), &[]));
            at += length;
        }
        bytes
    }

    /// Each leg, and a read, have these bytes.
    pub fn assert_everywhere(&mut self, offset: u64, bytes: &[u8]) {
        let range = offset..offset + bytes.len() as u64;
        let (front, below) = (self.front, self.below);
        for (leg, stored) in self.stored(range.clone()).iter().enumerate() {
            assert!(
                stored == bytes,
                "{front:?} {below:?}: leg {leg} at {offset}"
            );
        }
        let read = self.read(range);
        assert!(read == bytes, "{front:?} {below:?}: a read at {offset}");
    }

    /// No request holds memory any more.
    pub fn assert_at_rest(&mut self) {
        self.rig.pass(DRAIN_ANSWER_NS);
        assert_eq!(self.rig.used(), 0, "{:?} {:?}", self.front, self.below);
    }

    /// Both front ends refuse clients.
    pub fn assert_refuses_clients(&mut self) {
        let now_ns = self.rig.world.now_ns;
        for listener in [0, EXPORTS_MAX] {
            let accepted = self.rig.core.borrow_mut().handle_accepted(listener, now_ns);
            assert!(accepted.is_none(), "listener {listener}");
        }
    }
}

/// So many blocks that tell where they are, and which version.
pub fn pattern(block: u64, count: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; (count * u64::from(BLOCK)) as usize];
    fill(&mut bytes, at(block), version);
    bytes
}

/// First byte of a block.
pub fn at(block: u64) -> u64 {
    block * u64::from(BLOCK)
}

/// Bytes of these blocks.
pub fn blocks(range: Range<u64>) -> Range<u64> {
    at(range.start)..at(range.end)
}
