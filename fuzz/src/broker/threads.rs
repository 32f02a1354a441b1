//! A whole broker with a client that writes to everything it shares from two threads, lies on the
//! socket, punches holes into its memory and goes; beside an honest client.
//!
//! Required: no thread of the broker panics; the honest client reads what it wrote, in its
//! time; when both are gone nothing keeps the broker from ending. The order in which threads meet
//! is the machine's: an input that fails may have to be tried again. Attacks that can be made in a
//! fixed order are tried by `rings` and `room`.
use super::attacker::Attacker;
use super::tape::Tape;
use super::{BLOCKS, HONEST, Stores};
use broker::local::Local;
use broker::room::RoomCore;
use broker::{Broker, Config, Grant, Rights, Trust};
use queue::{Kind, Options, Queue};
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// No wait decides anything; this only ends one that would never.
const LONG: Duration = Duration::from_secs(60);

/// First byte: kinds, trust. Then the tapes of both threads of the attacker, one byte each in turn.
pub fn run(data: &[u8]) {
    let Some((&choice, rest)) = data.split_first() else {
        return;
    };
    let (listener, held) = listener();
    let socket = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    let (broker, mut core) = start(listener, choice);
    let over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&over);
    let core = thread::spawn(move || {
        while !ends.load(Ordering::Relaxed) {
            core.turn();
            core.doze();
            thread::yield_now();
        }
    });
    let options = Options {
        kind: [Kind::UserPoll, Kind::UserIrq][usize::from(choice & 1)],
        entries: 8,
        data_bytes: 8 * 4096,
        ..Options::default()
    };
    let mut honest = Queue::open(&socket, &options).expect("a queue for the honest client");
    let tapes = [0, 1].map(|first| rest.iter().skip(first).step_by(2).copied());
    let [rings, rest] = tapes.map(|tape| tape.collect::<Vec<u8>>());
    thread::scope(|scope| {
        let attacker = Attacker::open(&socket, choice);
        let scribbler = attacker.scribbler();
        let first = scope.spawn(move || attacker.attack(&mut Tape::new(&rings)));
        let second = scope.spawn(move || scribbler.scribble(&mut Tape::new(&rest)));
        let mut round = 0;
        while round < 4 || !(first.is_finished() && second.is_finished()) {
            verify(&mut honest, round);
            round += 1;
        }
    });
    verify(&mut honest, u64::MAX);
    drop(honest);
    let ended = broker.stop();
    assert!(ended.is_ok(), "the broker: {ended:?}");
    over.store(true, Ordering::Relaxed);
    assert!(core.join().is_ok(), "the core");
}

/// A socket that has lost its name, so that an input that is cut off leaves none; and what it is
/// reached by.
fn listener() -> (UnixListener, OwnedFd) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("braid-fuzz-{}-{number}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let listener = UnixListener::bind(&path).expect("a socket");
    let held = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let _ = std::fs::remove_file(&path);
    (listener, held.expect("the socket's file"))
}

/// A server, and the core that has its queues.
fn start(listener: UnixListener, choice: u8) -> (Broker, RoomCore) {
    let stores = Stores::new();
    let local = Local::new(&stores.namespaces()).expect("namespaces");
    let all = Grant {
        namespaces: None,
        depth_max: 4095,
        queues_max: 8,
        memory_max: 8 << 20,
    };
    let config = Config {
        listener,
        namespaces: local.namespaces.clone(),
        identity: None,
        user_poll: 2,
        user_irq: 2,
        memory_max: 1 << 20,
        patience_ns: 10_000_000_000,
        spin_ns: [0, 20_000][usize::from(choice >> 1 & 1)],
        trust: [Trust::Mediated, Trust::Trusted][usize::from(choice >> 2 & 1)],
        rights: Rights {
            users: Vec::new(),
            others: Some(all),
        },
    };
    let (core, served) = RoomCore::new(&local, vec![stores.disk]).expect("a core");
    let broker = Broker::start(config, vec![served]).expect("a broker");
    (broker, core)
}

/// One block is written and read back.
fn verify(honest: &mut Queue, round: u64) {
    let slba = round % BLOCKS;
    let data = honest.data().expect("data memory").clone();
    let bytes = round.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    data.write(0, &bytes.repeat(512));
    let (from, to) = (data.piece(0, 4096), data.piece(4096, 4096));
    let taken = honest.write((HONEST, false), slba, 1, &[from], 1);
    taken.expect("room for a write");
    end(honest, 1);
    let taken = honest.read(HONEST, slba, 1, &[to], 2);
    taken.expect("room for a read");
    end(honest, 2);
    let mut read = [0; 4096];
    data.read(4096, &mut read);
    assert!(
        read[..] == bytes.repeat(512),
        "what was read is not what was written"
    );
}

fn end(honest: &mut Queue, token: u64) {
    honest.submit().expect("a kick");
    let begun = Instant::now();
    let done = loop {
        if let Some(done) = honest.poll().expect("an honest broker") {
            break done;
        }
        assert!(begun.elapsed() < LONG, "the honest client waits for ever");
        if honest.kind() == Kind::UserIrq {
            honest.wait(LONG).expect("a broker that lives");
        } else {
            thread::yield_now();
        }
    };
    assert!(
        done.token == token && done.status.is_success(),
        "{done:?}: the honest client was told of somebody else's error"
    );
}
