//! A broker and its clients, over real sockets and shared memory.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(dead_code, reason = "not every test binary uses all of it")]

use broker::local::LocalNamespace;
use broker::{Config, Grant, Rights, Trust};
use cores::local::LocalServer;
use queue::{Done, Kind, Options, Queue, Status};
use runtime::{Device, FileDevice, MemoryDevice};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// No wait of a test decides anything; this only ends one that would never.
pub const LONG: Duration = Duration::from_secs(60);

pub const EVERYTHING: Grant = Grant {
    namespaces: None,
    depth_max: 4095,
    queues_max: 4096,
    memory_max: u64::MAX,
};

/// Everything that a server is started with.
pub struct Setup {
    pub config: Config,
    pub namespaces: Vec<LocalNamespace>,
    pub cpus: Vec<Option<usize>>,
}

impl std::ops::Deref for Setup {
    type Target = Config;
    fn deref(&self) -> &Config {
        &self.config
    }
}

impl std::ops::DerefMut for Setup {
    fn deref_mut(&mut self) -> &mut Config {
        &mut self.config
    }
}

/// A broker and the directory with its socket.
pub struct Stage {
    pub broker: Option<LocalServer>,
    pub directory: tempfile::TempDir,
}

impl Stage {
    /// NSID 1: 1 MiB of memory; 2: nothing; 3: a file; 4: as 1, read-only; 5: other memory.
    pub fn new(change: impl FnOnce(&mut Setup)) -> Self {
        Self::at(tempfile::tempdir().unwrap(), change)
    }

    /// The same in a directory where there may have been one before.
    pub fn at(directory: tempfile::TempDir, change: impl FnOnce(&mut Setup)) -> Self {
        let _ = std::fs::remove_file(directory.path().join("q.sock"));
        let listener = UnixListener::bind(directory.path().join("q.sock")).unwrap();
        let path = directory.path().join("file");
        let file = FileDevice::open(path, false, Some(1 << 20)).unwrap();
        let memory = Arc::new(MemoryDevice::new(1 << 20).unwrap());
        let other = Arc::new(MemoryDevice::new(1 << 20).unwrap());
        let namespace = |device: Device, read_only| LocalNamespace {
            device,
            block_shift: 12,
            blocks: 256,
            read_only,
        };
        let namespaces = vec![
            namespace(Device::Memory(Arc::clone(&memory)), false),
            namespace(Device::Null, false),
            namespace(Device::File(Arc::new(file)), false),
            namespace(Device::Memory(memory), true),
            namespace(Device::Memory(other), false),
        ];
        let config = Config {
            listener,
            namespaces: Vec::new(),
            identity: None,
            user_poll: 4,
            user_irq: 4,
            memory_max: 16 << 20,
            patience_ns: broker::limits::PATIENCE_NS,
            spin_ns: 20_000,
            trust: Trust::Mediated,
            rights: Rights {
                users: Vec::new(),
                others: Some(EVERYTHING),
            },
        };
        let mut setup = Setup {
            config,
            namespaces,
            cpus: vec![None],
        };
        change(&mut setup);
        let Setup {
            config,
            namespaces,
            cpus,
        } = setup;
        Self {
            broker: Some(LocalServer::start(config, &namespaces, &cpus, drop).unwrap()),
            directory,
        }
    }

    pub fn plain() -> Self {
        Self::new(|_| {})
    }

    pub fn path(&self) -> PathBuf {
        self.directory.path().join("q.sock")
    }

    pub fn open(&self, kind: Kind, entries: u16) -> Result<Queue, queue::Error> {
        let options = Options {
            kind,
            entries,
            ..Options::default()
        };
        Queue::open(&self.path(), &options)
    }

    pub fn poll(&self) -> Queue {
        self.open(Kind::UserPoll, 16).unwrap()
    }

    pub fn queues(&self) -> String {
        queue::list(&self.path()).unwrap()
    }

    /// Waits until nobody has a queue.
    pub fn until_free(&self) {
        until("all queues are free", || {
            self.queues().contains("\"queues\":[]")
        });
    }
}

impl Stage {
    /// Another server takes its place, and it ends.
    pub fn replace(&mut self, change: impl FnOnce(&mut Setup)) {
        self.broker.take().unwrap().stop().unwrap();
        let directory = std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap());
        *self = Self::at(directory, change);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(broker) = self.broker.take() {
            let ended = broker.stop();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < LONG, "not within {LONG:?}: {what}");
        std::thread::yield_now();
    }
}

/// Polls until a command has ended.
pub fn next(queue: &mut Queue) -> Done {
    let mut done = None;
    until("a completion", || {
        done = queue.poll().unwrap();
        done.is_some()
    });
    done.unwrap()
}

/// Submits what was prepared and waits for its end.
pub fn finish(queue: &mut Queue) -> Done {
    queue.submit().unwrap();
    next(queue)
}

/// Reads blocks of a namespace into the data memory, at 0.
pub fn read(queue: &mut Queue, nsid: u32, slba: u64, blocks: u32) -> Result<Vec<u8>, Status> {
    let bytes = blocks as usize * 4096;
    let piece = queue.data().unwrap().piece(0, bytes as u32);
    queue.read(nsid, slba, blocks, &[piece], 1).unwrap();
    let status = finish(queue).status;
    let mut data = vec![0; bytes];
    queue.data().unwrap().read(0, &mut data);
    status.is_success().then_some(data).ok_or(status)
}

/// Writes bytes, from the data memory at `at`.
pub fn write(
    queue: &mut Queue,
    nsid: u32,
    slba: u64,
    at: usize,
    data: &[u8],
) -> Result<(), Status> {
    queue.data().unwrap().write(at, data);
    let piece = queue.data().unwrap().piece(at, data.len() as u32);
    let blocks = data.len() as u32 / 4096;
    queue
        .write((nsid, false), slba, blocks, &[piece], 2)
        .unwrap();
    let status = finish(queue).status;
    status.is_success().then_some(()).ok_or(status)
}

pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}
