//! Volumes of an engine as namespaces, before engines that end, hang, refuse and lie.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use broker::{Namespace, Store, Volume, VolumeAddress};
use common::{Stage, finish, next, pattern, read, until, write};
use queue::{Queue, Range, Status};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

/// NSID of the volume; those before it are [`Stage`]'s.
const NSID: u32 = 6;
const BYTES: usize = 2 << 20;

/// Commands and transmission flags of NBD.
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZEROES: u16 = 6;
const HAS_FLAGS: u16 = 1;
const READ_ONLY: u16 = 1 << 1;
const SEND_FLUSH: u16 = 1 << 2;
const SEND_FUA: u16 = 1 << 3;
const SEND_TRIM: u16 = 1 << 5;
const SEND_ZEROES: u16 = 1 << 6;
const ALL: u16 = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_ZEROES;
const EIO: u32 = 5;
const ENOTSUP: u32 = 95;
const ESHUTDOWN: u32 = 108;

/// What an engine does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Deed {
    Do,
    Fail(u32),
    /// Nothing, nor with the requests behind it, until it is told to go on.
    Hang,
    Close,
    Say(Vec<u8>),
}

/// What came: command, flags, offset, length.
type Came = (u16, u16, u64, u32);

/// An engine's export, with manners as they are wanted.
struct Engine {
    address: PathBuf,
    state: Mutex<State>,
    /// It may go on.
    going: Condvar,
}

struct State {
    size: u64,
    flags: u16,
    longest: u32,
    data: Vec<u8>,
    came: Vec<Came>,
    /// What the next requests of a command meet with; those behind them are done.
    plan: Vec<(u16, Deed)>,
    hangs: bool,
    /// What greets instead of an NBD server.
    greeting: Option<Vec<u8>>,
    connections: usize,
}

impl Engine {
    fn start(directory: &tempfile::TempDir, change: impl FnOnce(&mut State)) -> Arc<Self> {
        let mut state = State {
            size: BYTES as u64,
            flags: ALL,
            longest: 32 << 20,
            data: vec![0; BYTES],
            came: Vec::new(),
            plan: Vec::new(),
            hangs: false,
            greeting: None,
            connections: 0,
        };
        change(&mut state);
        let engine = Arc::new(Self {
            address: directory.path().join("v0.sock"),
            state: Mutex::new(state),
            going: Condvar::new(),
        });
        let listener = UnixListener::bind(&engine.address).unwrap();
        let this = Arc::clone(&engine);
        // Both end with the process: nobody connects any more then.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let this = Arc::clone(&this);
                std::thread::spawn(move || this.serve(stream));
            }
        });
        engine
    }

    fn state<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.state.lock().unwrap())
    }

    fn expect(&self, plan: &[(u16, Deed)]) {
        self.state(|state| state.plan.extend_from_slice(plan));
    }

    fn go_on(&self) {
        self.state(|state| state.hangs = false);
        self.going.notify_all();
    }

    fn came(&self, command: u16) -> Vec<Came> {
        let came = self.state(|state| state.came.clone());
        came.into_iter().filter(|it| it.0 == command).collect()
    }

    fn connect(&self) -> Result<Volume, String> {
        Volume::connect(VolumeAddress::Unix(self.address.clone()), String::new())
    }

    fn serve(&self, mut stream: UnixStream) -> Option<()> {
        self.state(|state| state.connections += 1);
        if let Some(greeting) = self.state(|state| state.greeting.clone()) {
            stream.write_all(&greeting).ok()?;
            return stream.read_to_end(&mut Vec::new()).ok().map(drop);
        }
        self.shake_hands(&mut stream)?;
        loop {
            let mut header = [0; 28];
            stream.read_exact(&mut header).ok()?;
            let field = |at: usize, len: usize| {
                let bytes = &header[at..at + len];
                bytes.iter().fold(0, |sum, &it| sum << 8 | u64::from(it))
            };
            assert_eq!(field(0, 4), 0x2560_9513);
            let came = (
                field(6, 2) as u16,
                field(4, 2) as u16,
                field(16, 8),
                field(24, 4) as u32,
            );
            let mut payload = vec![0; if came.0 == WRITE { came.3 as usize } else { 0 }];
            stream.read_exact(&mut payload).ok()?;
            let (error, data) = match self.meet(came) {
                Deed::Do => (0, self.execute(came, &payload)),
                Deed::Fail(error) => (error, Vec::new()),
                Deed::Hang => {
                    let state = self.state.lock().unwrap();
                    let state = self.going.wait_while(state, |state| state.hangs).unwrap();
                    drop(state);
                    (0, self.execute(came, &payload))
                }
                Deed::Close => return None,
                Deed::Say(bytes) => {
                    stream.write_all(&bytes).ok()?;
                    return stream.read_to_end(&mut Vec::new()).ok().map(drop);
                }
            };
            let mut reply = 0x6744_6698_u32.to_be_bytes().to_vec();
            reply.extend(u32::to_be_bytes(error));
            reply.extend(&header[8..16]);
            reply.extend(data);
            stream.write_all(&reply).ok()?;
        }
    }

    /// Simple replies, and the sizes of blocks.
    fn shake_hands(&self, stream: &mut UnixStream) -> Option<()> {
        let (size, flags, longest) = self.state(|state| (state.size, state.flags, state.longest));
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").ok()?;
        stream.read_exact(&mut [0; 4]).ok()?;
        loop {
            let mut header = [0; 16];
            stream.read_exact(&mut header).ok()?;
            let option = u32::from_be_bytes(header[8..12].try_into().unwrap());
            let len = u32::from_be_bytes(header[12..16].try_into().unwrap());
            stream.read_exact(&mut vec![0; len as usize]).ok()?;
            let mut reply = |kind: u32, data: &[u8]| {
                let mut out = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
                out.extend(option.to_be_bytes());
                out.extend(kind.to_be_bytes());
                out.extend((data.len() as u32).to_be_bytes());
                out.extend(data);
                stream.write_all(&out).ok()
            };
            if option != 7 {
                reply(0x8000_0001, &[])?;
                continue;
            }
            let export = [&[0, 0][..], &size.to_be_bytes(), &flags.to_be_bytes()].concat();
            reply(3, &export)?;
            let sizes = [512_u32, 4096, longest].map(u32::to_be_bytes).concat();
            reply(3, &[&[0, 3][..], &sizes].concat())?;
            return reply(1, &[]);
        }
    }

    fn meet(&self, came: Came) -> Deed {
        self.state(|state| {
            state.came.push(came);
            let at = state.plan.iter().position(|it| it.0 == came.0);
            let deed = at.map_or(Deed::Do, |at| state.plan.remove(at).1);
            state.hangs |= deed == Deed::Hang;
            deed
        })
    }

    fn execute(&self, (command, _, offset, len): Came, payload: &[u8]) -> Vec<u8> {
        let range = offset as usize..offset as usize + len as usize;
        self.state(|state| match command {
            READ => state.data[range].to_vec(),
            WRITE => {
                state.data[range].copy_from_slice(payload);
                Vec::new()
            }
            ZEROES | TRIM => {
                state.data[range].fill(0);
                Vec::new()
            }
            _ => Vec::new(),
        })
    }
}

/// A broker of two threads with the engine's export as its last namespace.
fn stage(engine: &Engine) -> Stage {
    let volume = engine.connect().unwrap();
    Stage::new(|config| {
        config.workers = vec![None, None];
        config.namespaces.push(Namespace {
            block_shift: 12,
            blocks: volume.bytes() >> 12,
            read_only: volume.read_only(),
            device: Store::Volume(volume),
        });
    })
}

fn flush(queue: &mut Queue) -> Status {
    queue.flush(Some(NSID), 0).unwrap();
    finish(queue).status
}

fn until_back(queue: &mut Queue) {
    until("the engine is there again", || {
        read(queue, NSID, 0, 1).is_ok()
    });
}

#[test]
fn what_is_longer_than_the_engine_takes_goes_in_pieces() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |state| {
        state.longest = 20 << 10;
        // A rest that is no block belongs to nobody.
        state.size = BYTES as u64 - 512;
        state.flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA;
    });
    let stage = stage(&engine);
    let mut queue = stage.poll();
    let blocks = queue.namespace(NSID).unwrap().blocks;
    assert_eq!(blocks, BYTES as u64 / 4096 - 1);
    let data = pattern(1, 64 << 10);
    queue.data().unwrap().write(0, &data);
    // In two parts, of which no piece keeps the bound.
    let data_memory = queue.data().unwrap();
    let pieces = [
        data_memory.piece(0, 28 << 10),
        data_memory.piece(28 << 10, 36 << 10),
    ];
    queue.write((NSID, true), 3, 16, &pieces, 0).unwrap();
    assert!(finish(&mut queue).status.is_success());
    let writes = engine.came(WRITE);
    assert_eq!(writes.len(), 4);
    assert!(
        writes.iter().all(|it| it.1 == 1 && it.3 <= 20 << 10),
        "{writes:?}"
    );
    assert_eq!(
        engine.state(|state| state.data[3 << 12..19 << 12].to_vec()),
        data
    );
    assert_eq!(read(&mut queue, NSID, 3, 16), Ok(data));
    // Zeroes that the engine doesn't offer are written, no longer than it takes.
    queue.write_zeroes((NSID, false), 3, 16, 0).unwrap();
    assert!(finish(&mut queue).status.is_success());
    assert_eq!(read(&mut queue, NSID, 3, 16), Ok(vec![0; 64 << 10]));
    let all = Range {
        slba: 0,
        blocks: 1,
        attributes: 0,
    };
    queue.deallocate(NSID, &[all], 0).unwrap();
    assert!(finish(&mut queue).status.is_success(), "it is a hint");
    assert_eq!((engine.came(TRIM), engine.came(ZEROES)), (vec![], vec![]));
}

#[test]
fn an_export_that_is_read_only_or_cannot_be_flushed_is_one_here() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |state| state.flags = HAS_FLAGS | READ_ONLY);
    let stage = stage(&engine);
    let mut queue = stage.poll();
    assert!(queue.namespace(NSID).unwrap().read_only);
    let refused = write(&mut queue, NSID, 0, 0, &[1; 4096]).unwrap_err();
    assert!(refused.is(Status::WRITE_PROTECTED), "{refused}");
    assert!(read(&mut queue, NSID, 0, 1).is_ok());
    assert!(flush(&mut queue).is_success());
    assert_eq!((engine.came(WRITE), engine.came(FLUSH)), (vec![], vec![]));
}

#[test]
fn t13_a_flush_that_fails_is_told_to_every_queue_that_wrote_once() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    // On two threads; the third wrote nothing.
    let (mut first, mut second, mut third) = (stage.poll(), stage.poll(), stage.poll());
    for queue in [&mut first, &mut second] {
        write(queue, NSID, 1, 0, &[1; 4096]).unwrap();
    }
    engine.expect(&[(FLUSH, Deed::Fail(EIO))]);
    assert!(flush(&mut first).is(Status::WRITE_FAULT));
    assert!(flush(&mut third).is_success());
    assert!(
        flush(&mut second).is(Status::WRITE_FAULT),
        "it was told the first only"
    );
    for queue in [&mut first, &mut second, &mut third] {
        assert!(flush(queue).is_success());
    }
    // An engine that offers flushes and then has none does not make anything durable.
    engine.expect(&[(FLUSH, Deed::Fail(ENOTSUP))]);
    assert!(!flush(&mut first).is_success());
}

#[test]
fn t09_t13_a_connection_that_ends_leaves_writes_in_doubt_and_tells_the_next_flush() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let (mut first, mut second) = (stage.poll(), stage.poll());
    for queue in [&mut first, &mut second] {
        write(queue, NSID, 1, 0, &[1; 4096]).unwrap();
    }
    for command in [READ, WRITE, ZEROES, TRIM, FLUSH] {
        engine.expect(&[(command, Deed::Close)]);
        let all = Range {
            slba: 0,
            blocks: 1,
            attributes: 0,
        };
        let piece = first.data().unwrap().piece(0, 4096);
        let _ = match command {
            READ => first.read(NSID, 0, 1, &[piece], 0).unwrap(),
            WRITE => first.write((NSID, false), 0, 1, &[piece], 0).unwrap(),
            ZEROES => first.write_zeroes((NSID, false), 0, 1, 0).unwrap(),
            TRIM => first.deallocate(NSID, &[all], 0).unwrap(),
            _ => first.flush(Some(NSID), 0).unwrap(),
        };
        let status = finish(&mut first).status;
        let wanted = match command {
            READ | FLUSH => Status::INTERNAL_PATH,
            // Nobody may take it for undone and send it another way.
            _ => Status::WRITE_FAULT,
        };
        assert!(status.is(wanted), "{command}: {status}");
        until_back(&mut first);
        for queue in [&mut first, &mut second] {
            assert!(flush(queue).is(Status::WRITE_FAULT), "{command}");
            assert!(flush(queue).is_success(), "{command}: once");
        }
    }
    // Others never noticed, and the same bytes went out once each.
    assert!(read(&mut first, 1, 0, 1).is_ok());
    assert_eq!(engine.came(WRITE).len(), 3);
}

#[test]
fn an_engine_that_says_nonsense_is_left_and_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let mut queue = stage.poll();
    let reply = |cookie: u64| {
        let mut bytes = 0x6744_6698_u32.to_be_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(cookie.to_be_bytes());
        bytes
    };
    let lies = [
        vec![0xa5; 4096],
        reply(u64::MAX),
        reply(12345),
        vec![0; 1 << 20],
    ];
    for (round, lie) in lies.into_iter().enumerate() {
        engine.expect(&[(READ, Deed::Say(lie))]);
        let status = read(&mut queue, NSID, 0, 1).unwrap_err();
        assert!(status.is(Status::INTERNAL_PATH), "{status}");
        assert!(write(&mut queue, 1, 0, 0, &[7; 4096]).is_ok());
        until_back(&mut queue);
        assert_eq!(engine.state(|state| state.connections), round + 2);
    }
    // An export that is another one now is not used.
    engine.state(|state| {
        state.plan.push((READ, Deed::Close));
        state.size -= 4096;
    });
    assert!(read(&mut queue, NSID, 0, 1).is_err());
    until("it was tried again", || {
        assert!(read(&mut queue, NSID, 0, 1).is_err());
        engine.state(|state| state.connections) > 6
    });
    engine.state(|state| state.size += 4096);
    until_back(&mut queue);
}

#[test]
fn an_engine_that_takes_nothing_more_is_left_when_it_has_answered() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let mut queue = stage.poll();
    engine.expect(&[(WRITE, Deed::Fail(ESHUTDOWN))]);
    let refused = write(&mut queue, NSID, 0, 0, &[1; 4096]).unwrap_err();
    assert!(
        refused.is(Status::INTERNAL_PATH),
        "it was not done: {refused}"
    );
    until_back(&mut queue);
    assert_eq!(engine.state(|state| state.connections), 2);
}

#[test]
fn t10_an_engine_that_hangs_keeps_its_own_commands_only() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let (mut first, mut second) = (stage.poll(), stage.poll());
    let data = pattern(2, 4096);
    engine.state(|state| state.data[..4096].copy_from_slice(&data));
    engine.expect(&[(READ, Deed::Hang)]);
    for queue in [&mut first, &mut second] {
        let piece = queue.data().unwrap().piece(4096, 4096);
        queue.read(NSID, 0, 1, &[piece], 9).unwrap();
        queue.submit().unwrap();
    }
    until("the engine hangs", || engine.state(|state| state.hangs));
    for queue in [&mut first, &mut second] {
        queue
            .read(1, 0, 1, &[queue.data().unwrap().piece(0, 4096)], 8)
            .unwrap();
        let done = finish(queue);
        assert!(done.token == 8 && done.status.is_success(), "{done:?}");
    }
    // The memory stays while the engine may write to it, and so does the place.
    drop(first);
    until("it leaves", || stage.queues().contains("leaving"));
    engine.go_on();
    let done = next(&mut second);
    assert!(done.token == 9 && done.status.is_success(), "{done:?}");
    let mut got = vec![0; 4096];
    second.data().unwrap().read(4096, &mut got);
    assert_eq!(got, data);
    drop(second);
    stage.until_free();
}

/// Whoever comes back again and again to what hangs leaves queues for the others' namespaces.
#[test]
fn queues_that_storage_holds_are_bounded_and_who_is_refused_is_told_what_hangs() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    engine.expect(&[(READ, Deed::Hang)]);
    let refused = (0..4).find_map(|_| {
        let mut queue = match stage.open(queue::Kind::UserPoll, 16) {
            Ok(queue) => queue,
            Err(error) => return Some(error.to_string()),
        };
        let piece = queue.data().unwrap().piece(0, 4096);
        queue.read(NSID, 0, 1, &[piece], 9).unwrap();
        queue.submit().unwrap();
        let held = stage.queues().matches("\"leaving\":true").count();
        until("the engine is asked", || {
            engine.state(|state| state.hangs) && !stage.queues().contains("\"in_flight\":0")
        });
        drop(queue);
        until("it is held, and has had its time", || {
            let list = stage.queues();
            let old = list.matches("\"leaving_s\":").count();
            old > held && !list.contains("\"leaving_s\":0,")
        });
        None
    });
    let refused = refused.expect("half of them, and no more");
    for part in ["2 wait for requests", "namespace 6 (nbd:unix:", "v0.sock)"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert!(
        stage.queues().contains("\"awaits\":[6]"),
        "{}",
        stage.queues()
    );
    // Of the other kind there are all, and they do what does not hang.
    let mut other = stage.open(queue::Kind::UserIrq, 16).unwrap();
    assert!(read(&mut other, 1, 0, 1).is_ok());
    drop(other);
    engine.go_on();
    stage.until_free();
    drop(stage.poll());
    stage.until_free();
}

/// Queues that were let go of in one moment, or again and again within one, count from the first.
#[test]
fn queues_that_were_let_go_of_just_now_count_and_who_leaves_in_order_is_not_refused() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let ask = |queue: &mut Queue, nsid: u32| {
        let piece = queue.data().unwrap().piece(0, 4096);
        queue.read(nsid, 0, 1, &[piece], 9).unwrap();
        queue.submit().unwrap();
    };
    // A file that is well.
    for _ in 0..200 {
        let mut queues = [(); 2].map(|()| stage.open(queue::Kind::UserPoll, 16));
        for queue in &mut queues {
            match queue {
                Ok(queue) => ask(queue, 3),
                // Who is asked at once waits; what takes a second is no order.
                Err(error) => assert!(!error.to_string().contains("for 0 s"), "{error}"),
            }
        }
    }
    stage.until_free();
    engine.expect(&[(READ, Deed::Hang)]);
    let mut queues = [(); 2].map(|()| stage.poll());
    queues.iter_mut().for_each(|queue| ask(queue, NSID));
    until("the engine is asked", || {
        engine.state(|state| state.hangs) && !stage.queues().contains("\"in_flight\":0")
    });
    drop(queues);
    let leaving = || stage.queues().matches("\"leaving\":true").count();
    until("both leave", || leaving() == 2);
    let refused = stage.open(queue::Kind::UserPoll, 16).unwrap_err();
    assert!(refused.to_string().contains("2 wait for"), "{refused}");
    engine.go_on();
}

#[test]
fn t09_of_the_writes_that_wait_for_an_engine_few_go_out_when_their_client_has_let_go() {
    const WRITES: usize = 48;
    const LEN: u32 = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let mut queue = stage.open(queue::Kind::UserPoll, 64).unwrap();
    engine.expect(&[(WRITE, Deed::Hang)]);
    let piece = queue.data().unwrap().piece(0, LEN);
    for token in 0..WRITES as u64 {
        let to = (NSID, false);
        queue.write(to, 0, LEN / 4096, &[piece], token).unwrap();
    }
    queue.submit().unwrap();
    until("the engine hangs", || engine.state(|state| state.hangs));
    let all = format!("\"in_flight\":{WRITES}");
    until("all are with the broker", || stage.queues().contains(&all));
    // Time for what would be wrong: that all of them are said to the engine's socket.
    (0..100).for_each(|_| drop(stage.queues()));
    drop(queue);
    engine.go_on();
    stage.until_free();
    // What the kernel has, what is on its way, and the one that made it full.
    let came = engine.came(WRITE).len();
    assert!((1..=8).contains(&came), "{came}");
}

#[test]
fn who_is_no_export_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let old = b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53".to_vec();
    for (greeting, why) in [
        (b"SSH-2.0-OpenSSH_9.2 and more\r\n".to_vec(), "protocol"),
        (old, "oldstyle"),
    ] {
        engine.state(|state| state.greeting = Some(greeting));
        let error = engine.connect().unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    let nowhere = VolumeAddress::Unix(directory.path().join("nowhere"));
    let error = Volume::connect(nowhere, String::new()).unwrap_err();
    assert!(error.contains("start the engine first"), "{error}");
}
