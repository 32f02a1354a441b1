//! Instructions that the queue server spends on one 4 KiB command, payload excluded.
//!
//! ```text
//! cargo build --profile dist -p braid-broker --example queue_cost
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no \
//!     --toggle-collect='queue_cost::measured*' \
//!     target/dist/examples/queue_cost [memory|file] [write]
//! ```
//! A mediated queue of kind `user_poll` over a null namespace, memory or a device of the engine has
//! 32 commands in flight. Turns of the server are counted: its queue, the engine's turn, its
//! mailbox and its news; of a device there is no reactor. Where payload is copied, that is counted
//! too: callgrind counts `rep movsb`, by which `sys::Shared` copies, once per byte, so 4,096 of the
//! instructions of a 4 KiB command over a file are one copy. The count that callgrind prints,
//! divided by the commands that this program prints, is the result.
use broker::local::{Local, LocalNamespace};
use broker::room::Room;
use broker::{Config, Grant, Rights, Trust};
use nvme::queue::{CqConsumer, Entry, SqProducer};
use nvme::wire::sqe::nvm;
use queue::Memory;
use queue::layout::{Header, Kind, region_address};
use queue::protocol::{Operation, Request};
use runtime::{Device, FileDevice, MemoryDevice};
use std::error::Error;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use sys::Shared;

const ROUNDS: u64 = 1_000;
const BATCH: u16 = 32;
const BYTES: u64 = 4096;
/// Entries of either ring.
const ENTRIES: u32 = 128;
/// The client's user.
const USER: u32 = 1;

#[inline(never)]
fn measured(room: &mut Room) -> Result<(), String> {
    room.turn()
}

fn room(kind: &str) -> Result<Room, Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    // Nothing connects to it.
    let listener = UnixListener::bind(directory.path().join("queue.sock"))?;
    let bytes = u64::from(BATCH) * BYTES;
    let device = match kind {
        "memory" => Device::Memory(Arc::new(MemoryDevice::new(bytes)?)),
        "file" => {
            let path = directory.path().join("file");
            std::fs::write(&path, vec![1; bytes as usize])?;
            Device::File(Arc::new(FileDevice::open(path, false, None)?))
        }
        _ => Device::Null,
    };
    let local = Local::new(&[LocalNamespace {
        device,
        block_shift: 12,
        blocks: BATCH.into(),
        read_only: false,
    }])?;
    let config = Config {
        listener,
        namespaces: local.namespaces.clone(),
        identity: None,
        user_poll: 1,
        user_irq: 0,
        memory_max: 1 << 20,
        patience_ns: 0,
        spin_ns: 0,
        trust: Trust::Mediated,
        rights: Rights {
            users: vec![(USER, Grant::whole())],
            others: None,
        },
    };
    let disk = Arc::new(MemoryDevice::new(bytes)?);
    Ok(Room::new(config, &local, vec![disk])?)
}

/// A client with its ends of the rings.
struct Client {
    memory: Memory,
    sq: SqProducer,
    cq: CqConsumer,
}

impl Client {
    fn open(room: &mut Room) -> Result<Self, Box<dyn Error>> {
        let guest = room.come(USER)?;
        let bytes = u64::from(BATCH) * BYTES;
        let request = Request::new(Operation::Open, Kind::UserPoll.number(), ENTRIES, bytes, 0);
        let said = room.ask(&guest, &request, &[])?.ok_or("no answer")?;
        assert_eq!(said.answer.error, 0, "no queue");
        // The core hears of the queue in its next turn.
        room.turn()?;
        let memory = Shared::map(&said.descriptors[0], said.answer.c as usize)?;
        let layout = Header::load(&memory).ok_or("no queue")?.layout;
        let memory = Memory(Arc::new(memory));
        Ok(Self {
            sq: SqProducer::new(layout.sq(), 0),
            cq: CqConsumer::resume(layout.cq(), 0, &memory),
            memory,
        })
    }

    /// Submits a batch.
    fn submit(&mut self, opcode: u8) {
        for cid in 0..BATCH {
            let first = u64::from(opcode) | u64::from(cid) << 16 | 1 << 32;
            let at = region_address(1) + u64::from(cid) * BYTES;
            let entry: Entry = [first, 0, 0, at, 0, cid.into(), 0, 0];
            assert!(self.sq.push(&self.memory, &entry).is_ok(), "no room");
        }
        self.sq.ring(&self.memory);
    }

    /// Takes completions; returns how many.
    fn take(&mut self) -> u16 {
        let mut done = 0;
        while let Some(cqe) = self.cq.take(&self.memory) {
            assert!(cqe.status.is_success(), "{cqe:?}");
            assert!(self.sq.fetched(cqe.sqhd).is_ok(), "{cqe:?}");
            done += 1;
        }
        self.cq.ring(&self.memory);
        done
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let is_given = |word: &str| std::env::args().any(|it| it == word);
    let opcode = match is_given("write") {
        true => nvm::WRITE,
        false => nvm::READ,
    };
    let kind = ["memory", "file"].into_iter().find(|it| is_given(it));
    let mut room = room(kind.unwrap_or("null"))?;
    let mut client = Client::open(&mut room)?;
    let mut done = 0;
    for _ in 0..ROUNDS {
        client.submit(opcode);
        let mut ended = 0;
        while ended < BATCH {
            measured(&mut room)?;
            ended += client.take();
            assert!(
                ended == BATCH || kind == Some("file"),
                "a turn executes what is there"
            );
        }
        done += u64::from(ended);
    }
    println!("{done} commands");
    Ok(())
}
