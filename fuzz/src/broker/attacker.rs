//! A client without manners: it has what the broker sent, and nothing that checks it.
use super::HONEST;
use super::tape::Tape;
use queue::layout::{Header, Kind, region_address};
use queue::protocol::{Answer, MESSAGE, Operation, Request};
use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, SealFlags};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use sys::{Shared, passing};

/// Entries of its queue.
pub const ENTRIES: u32 = 16;
pub const DATA_BYTES: u64 = 16 * 4096;
const SQ_AT: usize = 8192;
const TAIL_AT: usize = 4096;
const HEAD_AT: usize = 4224;
const ARMED_AT: usize = 4480;

/// See the module.
pub struct Attacker {
    socket: UnixStream,
    descriptors: Vec<OwnedFd>,
    scribbler: Scribbler,
}

/// The memory that it shares with the broker, and its data memory.
#[derive(Clone)]
pub struct Scribbler {
    ring: Arc<Shared>,
    data: Arc<Shared>,
    /// It has no right to the honest client's namespace, so it may write what it likes.
    free: bool,
}

impl Attacker {
    /// Opens a queue as anybody does.
    pub fn open(path: &Path, choice: u8) -> Self {
        let kind = [Kind::UserPoll, Kind::UserIrq][usize::from(choice >> 3 & 1)];
        let socket = UnixStream::connect(path).expect("the broker's socket");
        let request = Request::new(Operation::Open, kind.number(), ENTRIES, DATA_BYTES, 0);
        passing::send(&socket, &request.emit(), &[], true).expect("a request");
        let (mut bytes, mut descriptors, mut have) = ([0; MESSAGE], Vec::new(), 0);
        while have < MESSAGE {
            let taken = passing::receive(&socket, &mut bytes[have..], &mut descriptors, true);
            have += taken.expect("an answer");
        }
        let answer = Answer::parse(&bytes);
        assert_eq!(answer.error, 0, "a queue for the attacker");
        let scribbler = Scribbler::new(&descriptors, &answer, false);
        socket.set_nonblocking(true).expect("its own socket");
        Self {
            socket,
            descriptors,
            scribbler,
        }
    }

    /// Parts that its second thread needs.
    pub fn scribbler(&self) -> Scribbler {
        self.scribbler.clone()
    }

    /// Does what the tape says, then goes.
    pub fn attack(self, tape: &mut Tape<'_>) {
        while let Some(operation) = tape.operation() {
            match operation & 31 {
                0..=15 => self.scribbler.once(operation, tape),
                16..=19 => kick(&self.descriptors, 1),
                20 => self.register(operation >> 5, tape),
                21 => self.lie(operation >> 5, tape),
                22 => {
                    let len = 1 + usize::from(operation >> 5) * 7;
                    let _ = (&self.socket).write(tape.take(len));
                }
                23 => punch(&self.descriptors, operation >> 5, tape),
                24 => block(&self.descriptors),
                25 => thread::yield_now(),
                26 if operation >> 5 == 7 => return,
                _ => {
                    let _ = (&self.socket).read(&mut [0; 256]);
                }
            }
        }
    }

    /// A descriptor is sent as memory: one that is as it must be, or is not.
    fn register(&self, which: u8, tape: &mut Tape<'_>) {
        let file = memory(which, tape);
        let passed = match which {
            // Its socket, its kick.
            6 => self.socket.as_fd(),
            7 => self.descriptors[1].as_fd(),
            _ => file.as_fd(),
        };
        let bytes = u64::from(tape.word());
        self.ask(
            &Request::new(Operation::Register, 0, 0, bytes, 0),
            &[passed],
        );
        // Cut off, while it may be in use.
        let _ = rustix::fs::ftruncate(&file, 0);
    }

    /// A request that makes sense, or nearly.
    fn lie(&self, which: u8, tape: &mut Tape<'_>) {
        let request = request(which, tape);
        let kick = self.descriptors[1].as_fd();
        let passed = [kick; 3];
        self.ask(&request, &passed[..usize::from(which) % 4]);
    }

    fn ask(&self, request: &Request, passed: &[BorrowedFd<'_>]) {
        let _ = passing::send(&self.socket, &request.emit(), passed, false);
    }
}

/// Raises the descriptor by which a client wakes the broker.
pub fn kick(descriptors: &[OwnedFd], count: u64) {
    let _ = rustix::io::write(&descriptors[1], &count.to_ne_bytes());
}

/// A memory file, sealed as it must be or not.
pub fn memory(which: u8, tape: &mut Tape<'_>) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("attacker", flags).expect("a memory file");
    let _ = rustix::fs::ftruncate(&file, u64::from(tape.word()));
    let seals = [
        SealFlags::SHRINK,
        SealFlags::SHRINK | SealFlags::GROW,
        SealFlags::SHRINK | SealFlags::WRITE,
        SealFlags::empty(),
    ];
    let _ = rustix::fs::fcntl_add_seals(&file, seals[usize::from(which & 3)]);
    file
}

/// A request that makes sense, or nearly.
pub fn request(which: u8, tape: &mut Tape<'_>) -> Request {
    let (small, region) = (u32::from(tape.byte()), usize::from(tape.byte() % 16));
    match which {
        0 => Request::new(Operation::Open, small % 3, ENTRIES, 4096, 0),
        1 | 2 => Request::new(Operation::Unregister, 0, 0, region_address(region), 0),
        3 => Request::new(Operation::Namespace, small, 0, 0, 0),
        4 => Request::new(Operation::List, 0, 0, 0, 0),
        5 => Request::new(Operation::Identity, small, 0, 0, 0),
        _ => Request::new(Operation::Register, small, 0, u64::from(tape.long()), 0),
    }
}

/// A hole in the rings or in the data memory, or the attempt to make them shorter.
pub fn punch(descriptors: &[OwnedFd], which: u8, tape: &mut Tape<'_>) {
    let memory = if which & 1 == 0 {
        &descriptors[0]
    } else {
        descriptors.last().expect("data memory")
    };
    let at = u64::from(tape.byte() % 32) * 4096;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let _ = rustix::fs::fallocate(memory, hole, at, 4096);
    if which & 2 != 0 {
        let size = |file| rustix::fs::fstat(file).expect("a file").st_size;
        let before = size(memory);
        let _ = rustix::fs::ftruncate(memory, at);
        assert_eq!(size(memory), before, "memory of a queue was cut off");
    }
}

/// Events that would make a writer wait.
pub fn block(descriptors: &[OwnedFd]) {
    for event in &descriptors[1..descriptors.len() - 1] {
        if let Ok(flags) = rustix::fs::fcntl_getfl(event) {
            let _ = rustix::fs::fcntl_setfl(event, flags - OFlags::NONBLOCK);
        }
    }
    // A full counter would make ourselves wait the next time.
    kick(descriptors, 1 << 40);
}

impl Scribbler {
    /// Of what came with an answer.
    pub fn new(descriptors: &[OwnedFd], answer: &Answer, free: bool) -> Self {
        let ring = Shared::map(&descriptors[0], answer.c as usize).expect("the rings");
        assert!(Header::load(&ring).is_some());
        let data = descriptors.last().expect("data memory");
        let data = Shared::map(data, DATA_BYTES as usize).expect("data memory");
        Self {
            ring: Arc::new(ring),
            data: Arc::new(data),
            free,
        }
    }

    /// Does what the tape says.
    pub fn scribble(&self, tape: &mut Tape<'_>) {
        while let Some(operation) = tape.operation() {
            self.once(operation & 15, tape);
        }
    }

    /// Takes all answers that there can be.
    pub fn take_all(&self) {
        let next = (self.ring.load_word(HEAD_AT) + ENTRIES - 1) % ENTRIES;
        self.ring.store_word(HEAD_AT, next);
    }

    /// One operation.
    pub fn once(&self, operation: u8, tape: &mut Tape<'_>) {
        let clean = |word| if self.free { word } else { clean(word) };
        let slot = usize::from(operation >> 4) + 8 * usize::from(operation & 1);
        match operation & 15 {
            0..=4 => {
                let entry = command(tape).map(clean);
                self.ring.store(SQ_AT + 64 * slot, &entry);
                self.ring.store_word(TAIL_AT, (slot as u32 + 1) % ENTRIES);
            }
            5 | 6 => self
                .ring
                .store_word(TAIL_AT, u32::from(tape.byte()) % (ENTRIES + 1)),
            7 => self
                .ring
                .store_word(HEAD_AT, u32::from(tape.byte()) % (ENTRIES + 1)),
            8 => self.ring.store_word(ARMED_AT, u32::from(tape.byte())),
            9 => {
                let at = usize::from(tape.word()) * 8 % self.ring.len();
                self.ring.store(at, &[clean(value(tape))]);
            }
            10 => self
                .ring
                .store(SQ_AT + 64 * slot + 24, &[value(tape)].map(clean)),
            // Lists: of the first page for lists, and in the data memory.
            11 | 12 => {
                let lists = self.ring.len() - 4096 * ENTRIES as usize;
                let at = lists + usize::from(tape.byte()) * 8;
                self.ring.store(at, &[value(tape)].map(clean));
            }
            13 | 14 => {
                let at = usize::from(tape.word()) * 8 % self.data.len();
                self.data.store(at, &[clean(value(tape))]);
            }
            _ => thread::yield_now(),
        }
    }
}

/// The honest client's namespace is nobody else's, which rights by user can't say of one user's
/// two clients.
fn clean(word: u64) -> u64 {
    if (word >> 32) as u32 == HONEST {
        return word ^ 1 << 33;
    }
    word
}

fn command(tape: &mut Tape<'_>) -> [u64; 8] {
    let opcode = [0, 1, 2, 8, 9, 0x18, 2, 1][usize::from(tape.byte() % 8)];
    let choice = tape.byte();
    let (psdt, nsid) = (u64::from(choice >> 6) << 14, u64::from(choice % 7));
    let cid = u64::from(tape.byte()) << 16;
    let (first, second) = (value(tape), value(tape));
    let blocks = u64::from(tape.word());
    [
        opcode | psdt | cid | nsid << 32,
        0,
        0,
        first,
        second,
        u64::from(choice % 70),
        blocks & 0x1ff | blocks >> 9 << 25,
        0,
    ]
}

/// Something that hurts more often than eight bytes from the tape would.
fn value(tape: &mut Tape<'_>) -> u64 {
    let choice = tape.byte();
    let region = region_address(usize::from(choice >> 3) % 4);
    match choice & 7 {
        0..=2 => region + u64::from(choice >> 5) * 4096,
        3 => region + u64::from(tape.word()) * 8,
        4 => u64::from(tape.word()) | u64::from(choice >> 4) << 60,
        5 => u64::from(tape.byte()),
        _ => u64::from(tape.long()) | u64::from(tape.long()) << 32,
    }
}
