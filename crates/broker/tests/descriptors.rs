//! A broker that has no descriptor left for another client, or at its start. A process of its own:
//! the limit is the process's.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use broker::limits::PATIENCE_NS;
use broker::{
    Broker, Config, CoreWaits, EngineNamespace, Namespace, Rights, ServerCore, Store, Trust,
};
use common::{Stage, read, until};
use queue::protocol::{MESSAGE, Operation, Request};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// One test at a time has the limit.
static LIMIT: Mutex<()> = Mutex::new(());

/// How often the broker has warned.
static WARNINGS: AtomicUsize = AtomicUsize::new(0);

/// Counts warnings.
struct Counter;

impl Subscriber for Counter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target().starts_with("broker")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        WARNINGS.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn who_waits_for_a_descriptor_comes_in_when_there_is_one_however_busy_others_are() {
    let _alone = LIMIT.lock().unwrap();
    tracing::subscriber::set_global_default(Counter).unwrap();
    let stage = Stage::plain();
    let mut served = stage.poll();
    let mut busy = stage.poll();
    // The threads that serve them have made what they need descriptors for.
    for queue in [&mut served, &mut busy] {
        assert!(read(queue, 1, 0, 1).is_ok());
    }
    let flags = SocketFlags::CLOEXEC;
    let waiting =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let before = getrlimit(Resource::Nofile);
    // Standard input and output are there; poll(2) takes no more descriptors than this.
    let none = Rlimit {
        current: Some(3),
        ..before
    };
    setrlimit(Resource::Nofile, none).unwrap();
    rustix::net::connect(&waiting, &SocketAddrUnix::new(stage.path()).unwrap()).unwrap();
    until("the broker can't accept", || {
        WARNINGS.load(Ordering::Relaxed) > 0
    });
    // A client that is inside notices nothing.
    assert!(read(&mut served, 1, 0, 1).is_ok());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                busy.namespace(1).unwrap();
            }
        });
        setrlimit(Resource::Nofile, before).unwrap();
        let mut waiting = UnixStream::from(waiting);
        waiting.set_read_timeout(Some(common::LONG)).unwrap();
        let request = Request::new(Operation::List, 0, 0, 0, 0).emit();
        std::io::Write::write_all(&mut waiting, &request).unwrap();
        let heard = waiting.read_exact(&mut [0; MESSAGE]);
        is_over.store(true, Ordering::Relaxed);
        heard.unwrap();
    });
    assert!(read(&mut served, 1, 0, 1).is_ok());
}

/// The server of an engine, wherever in its start descriptors end.
#[test]
fn server_fails_at_its_start_and_leaks_nothing() {
    let _alone = LIMIT.lock().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join("q.sock")).unwrap();
    let config = || Config {
        listener: listener.try_clone().unwrap(),
        namespaces: vec![Namespace {
            store: Store::Engine(Arc::new(EngineNamespace::new(0, "v0".into()))),
            block_shift: 12,
            blocks: 0,
            read_only: false,
        }],
        identity: None,
        user_poll: 1,
        user_irq: 1,
        memory_max: 1 << 20,
        patience_ns: PATIENCE_NS,
        spin_ns: 0,
        trust: Trust::Mediated,
        rights: Rights {
            users: Vec::new(),
            others: Some(common::EVERYTHING),
        },
    };
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let (before, there) = (getrlimit(Resource::Nofile), open());
    let mut refused = Vec::new();
    let started = (3..64).find_map(|most| {
        let config = config();
        let few = Rlimit {
            current: Some(most),
            ..before
        };
        setrlimit(Resource::Nofile, few).unwrap();
        // A core that takes nothing counts as one that has ended.
        let core = ServerCore {
            post: Box::new(drop),
            waits: Box::new(CoreWaits::default),
        };
        let started = Broker::start(config, vec![core]);
        setrlimit(Resource::Nofile, before).unwrap();
        started.map_err(|why| refused.push(why)).ok()
    });
    // Its end may be known before it is told to stop.
    if let Err(why) = started.unwrap().stop() {
        assert_eq!(why, "a core has ended");
    }
    refused.dedup();
    assert!(refused.len() > 1, "{refused:?}");
    assert_eq!(open(), there);
}
