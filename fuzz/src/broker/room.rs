//! A broker turn by turn, in the order of the input: a client that does what its tape says, and an
//! honest one.
//!
//! Required: no panic; the honest client reads what it wrote, within so many turns, in its own
//! namespace and in the half of another one in which the attacker has no right; a namespace that is
//! read-only stays as it is; what the attacker is told is an answer to what it asked; when both are
//! gone nothing of them is left.
use super::attacker::{self, DATA_BYTES, ENTRIES, Scribbler};
use super::tape::Tape;
use super::{BLOCKS, HONEST, Stores};
use broker::local::Local;
use broker::room::{Guest, Room, Said};
use broker::{Config, Grant, NamespaceRight, Rights, Trust};
use nvme::queue::{CqConsumer, Entry, SqProducer};
use nvme::wire::sqe::nvm;
use queue::Memory;
use queue::layout::{Header, Kind, region_address};
use queue::protocol::{Operation, Request};
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use sys::Shared;

/// Users of the honest client and of the other one.
const THEIRS: u32 = 4001;
const OURS: u32 = 4002;
/// The attacker's part of NSID 1 ends here, and the honest client's begins.
const BORDER: u64 = 48;
/// Turns within which a command of the honest client ends.
const TURNS: usize = 100_000;
/// Turns at one operation, at most.
const TURNS_EACH: u8 = 7;

/// A room, and what its namespaces lie in.
struct Stage {
    room: Room,
    stores: Stores,
}

thread_local! {
    /// By trust: making one costs more than an input takes. One that an input left in a panic is
    /// not here any more.
    static STAGES: RefCell<[Option<Stage>; 2]> = const { RefCell::new([None, None]) };
}

/// The room goes on from one input to the next, so a find may need those before it: where it does
/// not repeat alone, run the fuzzer again with the same seed (`-seed=`, it says which) and one
/// worker, or all inputs that came before in their order, and then leave out what is not needed.
///
/// First byte: kinds, trust, how often the core dozes. Then the attacker's tape.
pub fn run(data: &[u8]) {
    let Some((&choice, rest)) = data.split_first() else {
        return;
    };
    let trust = usize::from(choice >> 2 & 1);
    let kept = STAGES.with_borrow_mut(|stages| stages[trust].take());
    let mut stage = kept.unwrap_or_else(|| Stage::new([Trust::Mediated, Trust::Trusted][trust]));
    stage.stores.clear();
    stage.play(choice, &mut Tape::new(rest));
    STAGES.with_borrow_mut(|stages| stages[trust] = Some(stage));
}

impl Stage {
    fn new(trust: Trust) -> Self {
        let stores = Stores::new();
        let right = |nsid, end, read_only| NamespaceRight {
            nsid,
            first: 0,
            end,
            read_only,
        };
        let grant = |namespaces| Grant {
            namespaces,
            depth_max: 63,
            queues_max: 2,
            memory_max: 1 << 20,
        };
        let rights = vec![
            right(1, BORDER, false),
            right(2, BLOCKS, false),
            right(3, BLOCKS, false),
            right(4, BLOCKS, false),
        ];
        // It is never listened at, and has no name.
        let path = std::env::temp_dir().join(format!("braid-fuzz-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).expect("a socket");
        let _ = std::fs::remove_file(&path);
        let local = Local::new(&stores.namespaces()).expect("namespaces");
        let config = Config {
            listener,
            namespaces: local.namespaces.clone(),
            identity: None,
            user_poll: 3,
            user_irq: 3,
            memory_max: 1 << 20,
            patience_ns: 0,
            spin_ns: 0,
            trust,
            rights: Rights {
                users: vec![(THEIRS, grant(Some(rights))), (OURS, grant(None))],
                others: None,
            },
        };
        Self {
            room: Room::new(config, &local, vec![Arc::clone(&stores.disk)]).expect("a room"),
            stores,
        }
    }

    fn play(&mut self, choice: u8, tape: &mut Tape<'_>) {
        let mut honest = Honest::open(&mut self.room, kind(choice));
        let mut attacker = Some(Intruder::open(&mut self.room, kind(choice >> 3)));
        let mut round = 0;
        while let Some(operation) = tape.operation() {
            let Some(there) = &mut attacker else {
                attacker = Some(Intruder::open(&mut self.room, kind(operation)));
                continue;
            };
            match operation & 31 {
                0..=15 => there.scribbler.once(operation, tape),
                16 | 17 => attacker::kick(&there.descriptors, 1),
                18 => there.refill(),
                20 => there.register(&mut self.room, operation >> 5, tape),
                21 => there.lie(&mut self.room, operation >> 5, tape),
                22 => there.nonsense(&mut self.room, tape),
                23 => attacker::punch(&there.descriptors, operation >> 5, tape),
                24 => attacker::block(&there.descriptors),
                25 => self.room.core.doze(),
                26 if operation >> 5 == 7 => {
                    let gone = attacker.take().expect("an attacker");
                    self.room.leave(gone.guest);
                }
                26 => {
                    round += 1;
                    honest.verify(&mut self.room, round);
                }
                _ => self.turns(1 + (operation >> 5).min(TURNS_EACH)),
            }
        }
        self.turns(2);
        if let Some(there) = attacker {
            self.room.leave(there.guest);
        }
        honest.verify(&mut self.room, u64::MAX);
        self.read_only_is_as_it_was();
        self.room.leave(honest.guest);
        let left = (0..TURNS).all(|_| {
            self.turns(1);
            self.room.queues() > 0
        });
        assert!(!left, "queues of those that are gone: {:?}", self.room);
        for uid in [THEIRS, OURS] {
            assert_eq!(self.room.memory_of(uid), 0, "memory of user {uid}");
        }
    }

    fn turns(&mut self, count: u8) {
        for _ in 0..count {
            self.room.turn().expect("a core");
        }
    }

    fn read_only_is_as_it_was(&self) {
        let mut clean = true;
        let bytes = BLOCKS << 12;
        self.stores.memory[1].each(0, bytes, |stripe, range, _| {
            let mut pages = stripe[range].chunks(4096);
            clean &= pages.all(|it| it == &[0; 4096][..it.len()]);
        });
        assert!(clean, "a namespace that is read-only was changed");
    }
}

fn kind(choice: u8) -> Kind {
    [Kind::UserPoll, Kind::UserIrq][usize::from(choice & 1)]
}

fn open(room: &mut Room, uid: u32, kind: Kind) -> (Guest, Said) {
    let guest = room.come(uid).expect("a guest");
    let request = Request::new(Operation::Open, kind.number(), ENTRIES, DATA_BYTES, 0);
    let said = room.ask(&guest, &request, &[]).expect("a core");
    let said = said.expect("an answer");
    assert_eq!(said.answer.error, 0, "no queue for user {uid}");
    (guest, said)
}

/// A client without manners.
struct Intruder {
    guest: Guest,
    descriptors: Vec<OwnedFd>,
    scribbler: Scribbler,
}

impl Intruder {
    fn open(room: &mut Room, kind: Kind) -> Self {
        // An earlier one may not have ended.
        for _ in 0..TURNS {
            if room.queues() <= 1 {
                break;
            }
            room.turn().expect("a core");
        }
        let (guest, said) = open(room, THEIRS, kind);
        Self {
            scribbler: Scribbler::new(&said.descriptors, &said.answer, true),
            guest,
            descriptors: said.descriptors,
        }
    }

    /// A memory file is passed with a request, and cut off while it may be in use.
    fn register(&self, room: &mut Room, which: u8, tape: &mut Tape<'_>) {
        let file = attacker::memory(which, tape);
        let theirs = rustix::io::fcntl_dupfd_cloexec(&file, 0).expect("a descriptor");
        let bytes = u64::from(tape.word());
        let request = Request::new(Operation::Register, 0, 0, bytes, 0);
        self.ask(room, &request, &[file]);
        let _ = rustix::fs::ftruncate(&theirs, 0);
    }

    fn lie(&self, room: &mut Room, which: u8, tape: &mut Tape<'_>) {
        let request = attacker::request(which, tape);
        let passed = match which % 4 {
            0 => Vec::new(),
            _ => vec![rustix::io::fcntl_dupfd_cloexec(&self.descriptors[1], 0).expect("a kick")],
        };
        self.ask(room, &request, &passed);
    }

    /// Any bytes as a request.
    fn nonsense(&self, room: &mut Room, tape: &mut Tape<'_>) {
        let bytes = std::array::from_fn(|_| tape.byte());
        self.ask(room, &Request::parse(&bytes), &[]);
    }

    fn ask(&self, room: &mut Room, request: &Request, passed: &[OwnedFd]) {
        // A guest that was given up hears nothing more, or that.
        if let Some(said) = room.ask(&self.guest, request, passed).expect("a core") {
            let asked = request.operation.is_none_or(|it| said.answer.answers(it));
            assert!(asked, "{:?} answers {request:?}", said.answer);
            assert_eq!(said.answer.text_bytes(), said.text.len() as u64);
        }
    }

    /// Takes all answers, as one does who wants more.
    fn refill(&self) {
        self.scribbler.take_all();
    }
}

/// An honest client, of one command at a time.
struct Honest {
    guest: Guest,
    memory: Memory,
    data: Shared,
    sq: SqProducer,
    cq: CqConsumer,
    cid: u16,
}

impl Honest {
    fn open(room: &mut Room, kind: Kind) -> Self {
        let (guest, said) = open(room, OURS, kind);
        let memory = Shared::map(&said.descriptors[0], said.answer.c as usize).expect("rings");
        let layout = Header::load(&memory).expect("rings").layout;
        let memory = Memory(Arc::new(memory));
        let data = said.descriptors.last().expect("data memory");
        Self {
            guest,
            sq: SqProducer::new(layout.sq(), 0),
            cq: CqConsumer::resume(layout.cq(), 0, &memory),
            memory,
            data: Shared::map(data, DATA_BYTES as usize).expect("data memory"),
            cid: 0,
        }
    }

    /// Blocks of both namespaces are written and read back.
    fn verify(&mut self, room: &mut Room, round: u64) {
        let beyond = BORDER + round % (BLOCKS - BORDER);
        for (nsid, slba) in [(HONEST, round % BLOCKS), (1, beyond)] {
            let word = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            self.data.store(0, &[word; 512]);
            self.data.store(4096, &[0_u64; 512]);
            self.command(room, (nvm::WRITE, nsid), slba, 0);
            self.command(room, (nvm::READ, nsid), slba, 4096);
            let read = self.data.load::<512>(4096);
            assert!(
                read == [word; 512],
                "NSID {nsid}: what was read was not written"
            );
        }
    }

    fn command(&mut self, room: &mut Room, (opcode, nsid): (u8, u32), slba: u64, at: u64) {
        self.cid += 1;
        let first = u64::from(opcode) | u64::from(self.cid) << 16 | u64::from(nsid) << 32;
        let entry: Entry = [first, 0, 0, region_address(1) + at, 0, slba, 0, 0];
        self.sq.push(&self.memory, &entry).expect("room");
        self.sq.ring(&self.memory);
        let cqe = (0..TURNS).find_map(|_| {
            room.turn().expect("a core");
            self.cq.take(&self.memory)
        });
        let cqe = cqe.expect("an answer in time");
        self.cq.ring(&self.memory);
        let well = cqe.cid == self.cid && cqe.status.is_success();
        assert!(
            well,
            "{cqe:?}: the honest client was told of somebody else's error"
        );
        self.sq.fetched(cqe.sqhd).expect("an honest broker");
    }
}
