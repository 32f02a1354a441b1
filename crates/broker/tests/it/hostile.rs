//! Clients that do what they like with what they share: they lose their own queue, or their own
//! commands fail; nobody beside them notices.
use crate::common::{LONG, Stage, finish, next, pattern, read, until, write};
use queue::layout::{Header, Kind, region_address};
use queue::protocol::{Answer, MESSAGE, Operation, Request};
use queue::{Error, Options, Queue, Status};
use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, SealFlags};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use sys::{Errno, Shared, passing};

/// A client without manners: it has what the broker sent, and nothing that checks it.
struct Raw {
    socket: UnixStream,
    descriptors: Vec<OwnedFd>,
    memory: Shared,
    header: Header,
}

impl Raw {
    fn open(stage: &Stage, kind: Kind, entries: u32) -> Self {
        let request = Request::new(Operation::Open, kind.number(), entries, 1 << 20, 0);
        // Those of earlier ones come back in their own time.
        let (socket, answer, descriptors) = loop {
            let socket = UnixStream::connect(stage.path()).unwrap();
            let (answer, descriptors) = ask(&socket, &request, &[]);
            match answer.error {
                0 => break (socket, answer, descriptors),
                error => assert_eq!(error, sys::Errno::BUSY.raw_os_error() as u32),
            }
        };
        let memory = Shared::map(&descriptors[0], answer.c as usize).unwrap();
        let header = Header::load(&memory).unwrap();
        Self {
            socket,
            descriptors,
            memory,
            header,
        }
    }

    fn kick(&self) {
        rustix::io::write(&self.descriptors[1], &1_u64.to_ne_bytes()).unwrap();
    }
}

fn ask(
    socket: &UnixStream,
    request: &Request,
    passed: &[std::os::fd::BorrowedFd<'_>],
) -> (Answer, Vec<OwnedFd>) {
    passing::send(socket, &request.emit(), passed, true).unwrap();
    let (mut bytes, mut descriptors) = ([0; MESSAGE], Vec::new());
    let mut have = 0;
    while have < MESSAGE {
        have += passing::receive(socket, &mut bytes[have..], &mut descriptors, true).unwrap();
    }
    let answer = Answer::parse(&bytes);
    let mut text = vec![0; answer.text_bytes() as usize];
    (&*socket).read_exact(&mut text).unwrap();
    (answer, descriptors)
}

/// Checked I/O of an honest client, on a namespace of its own, while `attack` runs; its rounds.
fn beside(stage: &Stage, attack: impl FnOnce() + Send) -> u64 {
    let over = AtomicBool::new(false);
    let mut honest = stage.poll();
    std::thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            attack();
            over.store(true, Ordering::Release);
        });
        let mut round = 0;
        while round < 10 || !over.load(Ordering::Acquire) && !attacker.is_finished() {
            let data = pattern(round, 4096);
            let slba = round % 256;
            write(&mut honest, 5, slba, 0, &data).unwrap();
            assert!(read(&mut honest, 5, slba, 1).unwrap() == data);
            round += 1;
        }
        attacker.join().unwrap();
        round
    })
}

fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[test]
fn scribbling_over_the_rings_while_they_are_read_harms_nobody_else() {
    let stage = Stage::plain();
    let rounds = beside(&stage, || {
        for seed in 0..60 {
            let kind = [Kind::UserPoll, Kind::UserIrq][seed as usize % 2];
            let raw = Raw::open(&stage, kind, 64);
            let mut random = random(seed);
            let (sq, words) = (raw.header.layout.sq(), raw.memory.len() / 8);
            for _ in 0..20_000 {
                let value = random();
                match value % 16 {
                    // Commands that mean something, but for what is drawn.
                    0..=7 => {
                        let at = sq.entries_at + 64 * (random() % 64) as usize;
                        let opcode = [0, 1, 2, 8, 9, 0x18][(value >> 8) as usize % 6];
                        let nsid = (value >> 16) % 5;
                        let address = region_address(random() as usize % 3) + random() % (2 << 20);
                        let list = region_address(0) + random() % (64 * 4096);
                        let psdt = (random() % 3) << 14;
                        let cid = random() & 0xffff_0000;
                        let entry = [
                            opcode | psdt | cid | nsid << 32,
                            0,
                            0,
                            address,
                            if random().is_multiple_of(2) {
                                list
                            } else {
                                random()
                            },
                            random() % 128,
                            random() % 300,
                            0,
                        ];
                        raw.memory.store(at, &entry);
                    }
                    // Tails that can be.
                    8..=12 => raw
                        .memory
                        .store_word(sq.doorbell_at, (value >> 8) as u32 % 64),
                    13 => raw.memory.store_word(4224, (value >> 8) as u32 % 64),
                    14 => raw
                        .memory
                        .store(8 * ((value >> 8) as usize % words), &[random()]),
                    _ => raw.kick(),
                }
            }
        }
    });
    assert!(rounds > 0);
    stage.until_free();
}

#[test]
fn a_doorbell_that_cannot_be_true_costs_the_queue() {
    let stage = Stage::plain();
    for (at, value) in [(4096, 64), (4096, u32::MAX), (4224, 64), (4224, u32::MAX)] {
        let raw = Raw::open(&stage, Kind::UserPoll, 64);
        raw.memory.store_word(at, value);
        raw.socket.set_nonblocking(true).unwrap();
        let mut tail = 0;
        until("the queue is given up", || {
            // The completion queue's head is looked at when its room may not do.
            if at == 4224 {
                tail = (tail + 1) % 64;
                raw.memory.store_word(4096, tail);
            }
            raw.kick();
            matches!((&raw.socket).read(&mut [0; 8]), Ok(0))
        });
    }
    stage.until_free();
    let mut queue = stage.poll();
    assert!(read(&mut queue, 1, 0, 1).is_ok());
}

#[test]
fn pointers_outside_of_registered_memory_are_refused() {
    let stage = Stage::plain();
    let mut queue = stage.poll();
    let data = region_address(1);
    let end = data + (1 << 20);
    let lists = region_address(0);
    for (psdt, first, second, blocks) in [
        (0, 0, 0, 1),
        (0, 4096, 0, 1),
        (0, data - 4096, 0, 1),
        (0, end, 0, 1),
        (0, end - 4, 0, 1),
        (0, end - 2048, data, 2),
        (0, data, end, 2),
        (0, data, end, 3),
        (0, data, u64::MAX - 7, 3),
        (0, data, end - 8, 3),
        (0, region_address(2), 0, 1),
        (0, region_address(15), 0, 1),
        (0, region_address(16), 0, 1),
        (0, u64::MAX - 3, 0, 1),
        (0, lists + 16 * 4096, 0, 1),
        (1, end - 4095, 4096, 1),
        (1, u64::MAX, 4096, 1),
        (1, u64::MAX - 15, 16 | 0x30 << 56, 1),
        (1, end - 8, 32 | 0x30 << 56, 1),
        (1, data + 4, 32 | 0x30 << 56, 1),
    ] {
        for (nsid, opcode) in [(1, 1), (1, 2), (2, 2), (3, 1), (3, 2)] {
            // Content of a list that is in the data memory: outside as well.
            queue.data().unwrap().write(0, &[0xee; 4096]);
            queue.data().unwrap().write((1 << 20) - 64, &[0; 64]);
            let entry = [
                opcode | psdt << 14 | nsid << 32,
                0,
                0,
                first,
                second,
                0,
                blocks - 1,
                0,
            ];
            queue.raw(&entry, 0).unwrap();
            let status = finish(&mut queue).status;
            assert!(!status.is_success() && status.dnr(), "{entry:x?}: {status}");
        }
    }
    assert!(read(&mut queue, 1, 0, 1).is_ok());
}

#[test]
fn a_list_that_changes_while_it_is_read_leads_nowhere_else() {
    let stage = Stage::plain();
    let rounds = beside(&stage, || {
        let mut raw = stage.open(Kind::UserPoll, 8).unwrap();
        let lists = raw.register(1 << 16).unwrap();
        let other = lists.clone();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = random(5);
                while !over.load(Ordering::Relaxed) {
                    let word = match random() % 3 {
                        0 => region_address(1) + random() % 256 * 4096,
                        1 => random(),
                        _ => lists.address() + random() % 8 * 4096,
                    };
                    let at = random() as usize % 8192 / 8 * 8;
                    other.write(at, &word.to_le_bytes());
                }
            });
            for round in 0..20_000_u64 {
                let (psdt, second) = match round % 3 {
                    0 => (0, lists.address() + round % 1024 * 8),
                    1 => (1, 4096 | 0x30 << 56),
                    _ => (1, 4096 | 0x20 << 56),
                };
                let first = if psdt == 0 {
                    region_address(1)
                } else {
                    lists.address()
                };
                let opcode = 1 + round % 2;
                let nsid = [1, 3][round as usize % 2];
                let entry = [
                    opcode | psdt << 14 | nsid << 32,
                    0,
                    0,
                    first,
                    second,
                    0,
                    100,
                    0,
                ];
                raw.raw(&entry, 0).unwrap();
                finish(&mut raw);
            }
            over.store(true, Ordering::Relaxed);
        });
    });
    assert!(rounds > 0);
}

#[test]
fn memory_that_could_be_cut_off_is_refused() {
    let stage = Stage::plain();
    let mut queue = stage.poll();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let open = rustix::fs::memfd_create("mine", flags).unwrap();
    rustix::fs::ftruncate(&open, 8192).unwrap();
    let refused = queue.register_file(open, 8192).unwrap_err().to_string();
    assert!(refused.contains("seal the memory file"), "{refused}");
    for (file, bytes) in [
        (std::fs::File::open("/dev/zero").unwrap().into(), 4096),
        (std::fs::File::open("/proc/self/status").unwrap().into(), 1),
        (stage_file(&stage), 4096),
        (sys::memory_file("short", 4096).unwrap(), 8192),
        (sys::memory_file("none", 4096).unwrap(), 0),
        (sys::memory_file("large", 4096).unwrap(), u64::MAX),
    ] {
        let refused = queue.register_file(file, bytes).unwrap_err();
        assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    }
    let read_only = sys::memory_file("sealed", 4096);
    assert!(queue.register_file(read_only.unwrap(), 4096).is_ok());
    let written = rustix::fs::memfd_create("written", flags).unwrap();
    rustix::fs::ftruncate(&written, 4096).unwrap();
    rustix::fs::fcntl_add_seals(&written, SealFlags::SHRINK | SealFlags::WRITE).unwrap();
    assert!(queue.register_file(written, 4096).is_err());
    assert_eq!(queue.namespace(1).unwrap().blocks, 256);
}

#[test]
fn memory_of_huge_pages_is_refused_with_the_reason() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let made = rustix::fs::memfd_create("huge", flags);
    // None need be set aside for a file of them.
    let made = made.and_then(|file| rustix::fs::ftruncate(&file, 2 << 20).map(|()| file));
    let file = match made {
        Ok(file) => file,
        Err(error) => {
            let name = "memory_of_huge_pages_is_refused_with_the_reason";
            let _ = writeln!(std::io::stderr(), "SKIP {name}: no such files: {error}");
            return;
        }
    };
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    let stage = Stage::plain();
    let mut queue = stage.poll();
    let refused = queue.register_file(file, 2 << 20).unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    let refused = refused.to_string();
    assert!(
        refused.contains("huge pages") && refused.contains("ordinary"),
        "{refused}"
    );
    assert!(read(&mut queue, 1, 0, 1).is_ok());
}

fn stage_file(stage: &Stage) -> OwnedFd {
    std::fs::File::open(stage.directory.path().join("file"))
        .unwrap()
        .into()
}

#[test]
fn what_the_broker_sent_cannot_be_cut_off_and_holes_are_zeroes() {
    let stage = Stage::plain();
    let raw = Raw::open(&stage, Kind::UserIrq, 64);
    for memory in [&raw.descriptors[0], &raw.descriptors[3]] {
        assert!(rustix::fs::ftruncate(memory, 0).is_err());
        assert!(rustix::fs::fcntl_add_seals(memory, SealFlags::WRITE).is_err());
    }
    beside(&stage, || {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for round in 0..500 {
            let entry = [2 | 1 << 32, 0, 0, region_address(1), 0, 0, 0, 0];
            for slot in 0..64 {
                raw.memory.store(8192 + 64 * slot, &entry);
            }
            raw.memory.store_word(4096, round * 7 % 64);
            raw.kick();
            for memory in [&raw.descriptors[0], &raw.descriptors[3]] {
                rustix::fs::fallocate(memory, hole, 0, 8192).unwrap();
            }
        }
    });
}

#[test]
fn an_interrupt_that_would_block_a_writer_holds_nobody_up() {
    let stage = Stage::plain();
    let raw = Raw::open(&stage, Kind::UserIrq, 64);
    for event in &raw.descriptors[1..3] {
        let flags = rustix::fs::fcntl_getfl(event).unwrap();
        rustix::fs::fcntl_setfl(event, flags - OFlags::NONBLOCK).unwrap();
        rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    }
    let rounds = beside(&stage, || {
        let entry = [1 << 32, 0, 0, 0, 0, 0, 0, 0];
        let (mut round, mut answered) = (0_u32, 0);
        until("interrupts were raised", || {
            // As many as there is room for.
            if round - answered < 60 {
                raw.memory.store(8192 + 64 * (round as usize % 64), &entry);
                round += 1;
            }
            // Armed, all the time.
            raw.memory.store_word(4480, 1);
            raw.memory.store_word(4096, round % 64);
            raw.memory.store_word(4224, answered % 64);
            let shown = stage.queues();
            let ours = shown.split("\"kind\":\"user_irq\"").nth(1).unwrap();
            let count = |name: &str| {
                let count = ours.split(&format!("\"{name}\":")).nth(1).unwrap();
                let count = count.split([',', '}']).next().unwrap();
                count.parse::<u32>().unwrap()
            };
            answered = count("commands");
            count("interrupts") >= 20
        });
    });
    assert!(rounds > 0);
}

#[test]
fn what_is_no_request_gets_an_error_or_the_end() {
    let stage = Stage::plain();
    let connect = || UnixStream::connect(stage.path()).unwrap();
    let mut request = Request::new(Operation::Open, 0, 8, 0, 0);
    request.version = 2;
    let wrong_version = ask(&connect(), &request, &[]).0;
    assert_eq!(wrong_version.error, sys::Errno::PROTO.raw_os_error() as u32);
    for (operation, a, b, c) in [
        (Operation::Open, 2, 8, 0),
        (Operation::Open, 0, 1, 0),
        (Operation::Open, 0, 5000, 0),
        (Operation::Open, 0, u32::MAX, 0),
        (Operation::Open, 0, 8, u64::MAX),
        (Operation::Register, 0, 0, 4096),
        (Operation::Unregister, 0, 0, 0),
        (Operation::Namespace, 0, 0, 0),
        (Operation::Namespace, u32::MAX, 0, 0),
    ] {
        let (answer, descriptors) = ask(&connect(), &Request::new(operation, a, b, c, 0), &[]);
        assert!(
            answer.error != 0 && descriptors.is_empty(),
            "{operation:?} {a} {b} {c}"
        );
    }
    let socket = connect();
    let request = Request::new(Operation::Open, 0, 8, 0, 0);
    assert_eq!(ask(&socket, &request, &[]).0.error, 0);
    assert_ne!(ask(&socket, &request, &[]).0.error, 0, "one queue each");
    let unknown = [0xff; MESSAGE];
    (&socket).write_all(&unknown).unwrap();
    let mut answer = [0; MESSAGE];
    (&socket).read_exact(&mut answer).unwrap();
    assert_ne!(Answer::parse(&answer).error, 0);
    // Descriptors that nobody asked for.
    let many = connect();
    let events = [socket.as_fd(); 5];
    let _ = passing::send(&many, &[0], &events, true);
    many.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!((&many).read(&mut answer).unwrap(), 0);
    // Somebody asks and asks, and never listens.
    let deaf = connect();
    deaf.set_nonblocking(true).unwrap();
    let list = Request::new(Operation::List, 0, 0, 0, 0).emit();
    for _ in 0..100_000 {
        if (&deaf).write_all(&list).is_err() {
            break;
        }
    }
    let mut queue = stage.poll();
    assert!(read(&mut queue, 1, 0, 1).is_ok());
}

#[test]
fn more_connections_than_places_are_turned_away_and_queues_go_on() {
    let stage = Stage::new(|config| (config.user_poll, config.user_irq) = (1, 0));
    let mut queue = stage.poll();
    let idle: Vec<_> = (0..100)
        .map(|_| UnixStream::connect(stage.path()).unwrap())
        .collect();
    until("one is turned away", || {
        idle.last().unwrap().set_nonblocking(true).unwrap();
        matches!(idle.last().unwrap().read(&mut [0]), Ok(0))
    });
    // And is told why, whatever it would have asked for.
    let asked = [
        queue::list(&stage.path()).err(),
        Queue::open(&stage.path(), &Options::default()).err(),
    ];
    for error in asked.map(Option::unwrap) {
        let Error::Refused { errno, text, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*errno, Errno::USERS, "{error}");
        assert!(
            text.contains("has 17 connections, as many as it may have"),
            "{text}"
        );
        assert!(error.advice().contains("end what has them open"));
    }
    assert!(read(&mut queue, 1, 0, 1).is_ok());
    drop(idle);
    until("there is room again", || queue::list(&stage.path()).is_ok());
}

#[test]
fn t11_an_identifier_in_use_is_the_clients_own_trouble() {
    let stage = Stage::plain();
    let raw = Raw::open(&stage, Kind::UserPoll, 64);
    let entry = [0x7777_0000_u64 | 1 << 32, 0, 0, 0, 0, 0, 0, 0];
    for slot in 0..63 {
        raw.memory.store(8192 + 64 * slot, &entry);
    }
    raw.memory.store_word(4096, 63);
    raw.kick();
    let cq = raw.header.layout.cq();
    let last = || raw.memory.load_acquire(cq.entries_at + 16 * 62 + 8);
    until("63 completions", || last() >> 48 & 1 == 1);
    assert_eq!(last() >> 32 & 0xffff, 0x7777);
    let mut queue: Queue = stage.poll();
    let refused = read(&mut queue, 9, 0, 1).unwrap_err();
    assert!(refused.is(Status::INVALID_NAMESPACE));
    queue.flush(Some(1), 0).unwrap();
    queue.submit().unwrap();
    assert!(next(&mut queue).status.is_success());
}
