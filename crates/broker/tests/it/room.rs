//! A broker turn by turn, over devices of the engine that hang and fail as a test says.
use crate::common::EVERYTHING;
use broker::local::{Local, LocalNamespace};
use broker::room::{Guest, Room};
use broker::{Config, Rights, Trust};
use nvme::queue::{CqConsumer, Entry, SqProducer, check};
use nvme::wire::Status;
use nvme::wire::sqe::nvm;
use queue::Memory;
use queue::layout::{Header, Kind, region_address};
use queue::protocol::{Operation, Request};
use runtime::{Device, FileDevice, MemoryDevice};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use sys::Shared;

/// User of all clients.
pub const USER: u32 = 7;
/// NSIDs: two devices of the engine, and memory.
pub const FILE: u32 = 1;
pub const OTHER: u32 = 2;
pub const MEMORY: u32 = 3;
const BYTES: u64 = 1 << 20;

/// Two devices of 1 MiB, and as much memory.
pub fn room(change: impl FnOnce(&mut Config)) -> (Room, [Arc<MemoryDevice>; 2]) {
    let directory = tempfile::tempdir().unwrap();
    // Nothing connects to it.
    let listener = UnixListener::bind(directory.path().join("q.sock")).unwrap();
    let file = |name: &str| {
        let path = directory.path().join(name);
        Device::File(Arc::new(
            FileDevice::open(path, false, Some(BYTES)).unwrap(),
        ))
    };
    let memory = || Arc::new(MemoryDevice::new(BYTES).unwrap());
    let namespace = |device| LocalNamespace {
        device,
        block_shift: 12,
        blocks: BYTES >> 12,
        read_only: false,
    };
    let all = [file("one"), file("other"), Device::Memory(memory())].map(namespace);
    let local = Local::new(&all).unwrap();
    let mut config = Config {
        listener,
        namespaces: local.namespaces.clone(),
        identity: None,
        user_poll: 4,
        user_irq: 0,
        memory_max: 16 << 20,
        patience_ns: 0,
        spin_ns: 0,
        trust: Trust::Mediated,
        rights: Rights {
            users: Vec::new(),
            others: Some(EVERYTHING),
        },
    };
    change(&mut config);
    let disks = [memory(), memory()];
    let room = Room::new(config, &local, disks.to_vec()).unwrap();
    (room, disks)
}

/// A client, its ends of the rings, and its data memory.
pub struct Client {
    guest: Guest,
    memory: Memory,
    sq: SqProducer,
    cq: CqConsumer,
    pub data: Shared,
}

impl Client {
    /// With a queue of 64 entries and 1 MiB of memory.
    pub fn open(room: &mut Room) -> Self {
        Self::try_open(room).unwrap()
    }

    /// # Errors
    /// The server's reason.
    pub fn try_open(room: &mut Room) -> Result<Self, String> {
        let guest = room.come(USER).unwrap();
        let request = Request::new(Operation::Open, Kind::UserPoll.number(), 64, 1 << 20, 0);
        let said = room.ask(&guest, &request, &[]).unwrap().unwrap();
        if said.answer.error != 0 {
            room.leave(guest);
            return Err(String::from_utf8(said.text).unwrap());
        }
        room.turn().unwrap();
        let memory = Shared::map(&said.descriptors[0], said.answer.c as usize).unwrap();
        let layout = Header::load(&memory).unwrap().layout;
        let memory = Memory(Arc::new(memory));
        let data = said.descriptors.last().unwrap();
        Ok(Self {
            guest,
            sq: SqProducer::new(layout.sq(), 0),
            cq: CqConsumer::resume(layout.cq(), 0, &memory),
            memory,
            data: Shared::map(data, 1 << 20).unwrap(),
        })
    }

    /// Blocks from or to the begin of the data memory, or a command without data.
    pub fn push(&mut self, opcode: u8, cid: u16, nsid: u32, slba: u64, blocks: u32) {
        let first = u64::from(opcode) | 1 << 14 | u64::from(cid) << 16 | u64::from(nsid) << 32;
        let (address, bytes) = (region_address(1), u64::from(blocks) * 4096);
        let count = u64::from(blocks.max(1) - 1);
        self.entry(&[first, 0, 0, address, bytes, slba, count, 0]);
    }

    /// A write of one block that is durable when it ends.
    pub fn push_fua(&mut self, cid: u16, nsid: u32, slba: u64) {
        let first = u64::from(nvm::WRITE) | 1 << 14 | u64::from(cid) << 16 | u64::from(nsid) << 32;
        self.entry(&[first, 0, 0, region_address(1), 4096, slba, 1 << 30, 0]);
    }

    /// Takes a command back.
    pub fn cancel(&mut self, cid: u16, of: u16) {
        let first = u64::from(check::CANCEL) | u64::from(cid) << 16;
        self.entry(&[first, 0, 0, 0, 0, 1 | u64::from(of) << 16, 0, 0]);
    }

    fn entry(&mut self, entry: &Entry) {
        assert!(self.sq.push(&self.memory, entry).is_ok(), "no room");
        self.sq.ring(&self.memory);
    }

    /// Commands that have ended.
    pub fn reap(&mut self) -> Vec<(u16, Status)> {
        let mut ended = Vec::new();
        while let Some(cqe) = self.cq.take(&self.memory) {
            self.sq.fetched(cqe.sqhd).unwrap();
            ended.push((cqe.cid, cqe.status));
        }
        self.cq.ring(&self.memory);
        ended
    }

    /// A command that ends within a few turns.
    pub fn does(&mut self, room: &mut Room, opcode: u8, nsid: u32) -> Status {
        self.push(opcode, 9, nsid, 3, u32::from(opcode != nvm::FLUSH));
        for _ in 0..4 {
            room.turn().unwrap();
        }
        let ended = self.reap();
        let [(9, status)] = ended[..] else {
            panic!("{ended:?}");
        };
        status
    }

    pub fn write(&mut self, room: &mut Room) {
        let status = self.does(room, nvm::WRITE, FILE);
        assert!(status.is_success(), "{status}");
    }

    pub fn flush(&mut self, room: &mut Room) -> Status {
        self.does(room, nvm::FLUSH, FILE)
    }

    /// It says that it has let go of its queue, and is there yet.
    pub fn let_go(&mut self) {
        self.sq.let_go(&self.memory);
    }

    pub fn leave(self, room: &mut Room) {
        room.leave(self.guest);
        room.turn().unwrap();
        room.turn().unwrap();
    }
}
