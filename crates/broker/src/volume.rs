//! A volume of a running engine as a namespace, over the engine's NBD export.
//!
//! # Contract
//! One connection for the whole broker, on a thread of its own (`link`): so a flush is for what
//! every queue wrote. Where the connection ends, changes that were under way end with EIO: they may
//! have been done, or be done later, so nobody may take them for undone (T9). Reads, flushes, and
//! what comes before the connection is there again end with ENOTCONN; it is tried at most once in
//! [`VOLUME_RETRY_NS`](crate::limits::VOLUME_RETRY_NS). A write that had been acknowledged and was
//! not flushed may be lost then, as it may when a flush fails ([`Volume::losses`], T13). Registered
//! memory is held until its request has ended (T10). No change is sent twice (T8). When the last
//! owner is gone and all has ended, the connection ends with DISC.
use crate::limits::{VOLUME_ANSWER_NS, VOLUME_DISCONNECT_NS};
use crate::transfer::{Door, Part};
use crate::worker::Message;
use nbd::client::Info;
use nbd::{BlockSizes, Kind};
use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SendError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use sys::os::Event;
use sys::{Errno, Shared};

mod link;

/// Where an engine exports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String, u16),
}

impl fmt::Display for VolumeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(host, port) if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "tcp:{host}:{port}"),
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Volume {
    address: Arc<str>,
    handle: Arc<Handle>,
    info: Info,
}

#[derive(Debug)]
struct Handle {
    /// `None`: it is being dropped.
    inbox: Option<Sender<Order>>,
    /// Disconnected when the thread has ended.
    alive: Mutex<Receiver<Infallible>>,
    event: Arc<Event>,
    losses: Arc<AtomicU64>,
    /// Looked at where queues go and flushes end.
    gone: Mutex<Gone>,
}

/// Losses of queues that wrote and have gone, on any thread, which are still to be told (T13).
#[derive(Debug, Default)]
struct Gone {
    /// One was not told of a loss: the next that flushes is.
    untold: bool,
    /// Losses by when one went that had not flushed all: of another one nobody would be told.
    unflushed: Option<u64>,
    /// How many went so.
    count: u64,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inbox = None;
        self.event.raise();
        // The process may end next: DISC has its time to go out. A connection that hangs is not
        // waited for.
        let alive = self.alive.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = alive.recv_timeout(Duration::from_nanos(VOLUME_DISCONNECT_NS));
    }
}

/// Where the end of a request is told.
#[derive(Clone)]
pub struct Post {
    pub mailbox: Sender<Message>,
    /// Set behind each message.
    pub has_mail: Arc<AtomicBool>,
    /// Raised behind that.
    pub event: Arc<Event>,
}

/// A request.
pub struct Order {
    pub kind: Kind,
    /// Bytes.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    pub fua: bool,
    /// Zeroes are to be allocated.
    pub no_hole: bool,
    /// Its memory, in order.
    pub parts: Vec<(Arc<Shared>, Part)>,
    /// Where in that it begins, bytes.
    pub skip: usize,
    /// Of a change: where its client lets go.
    pub door: Option<Door>,
    pub post: Post,
    /// Told with its end.
    pub tag: u64,
}

impl Order {
    /// One that has no memory.
    pub fn new(kind: Kind, (offset, length): (u64, u32), post: Post, tag: u64) -> Self {
        Self {
            kind,
            offset,
            length,
            fua: false,
            no_hole: false,
            parts: Vec::new(),
            skip: 0,
            door: None,
            post,
            tag,
        }
    }

    /// It has ended: with its bytes, or not.
    fn end(self, result: Result<(), Errno>) {
        let Self {
            parts,
            door,
            post,
            length,
            ..
        } = self;
        // First: who is told may be the last to have this memory.
        drop((parts, door));
        let told = Message::Ended(self.tag, result.map(|()| length));
        let _ = post.mailbox.send(told);
        post.has_mail.store(true, Ordering::Release);
        post.event.raise();
    }
}

impl Volume {
    /// Connects to the export `name` (empty: the one that there is).
    ///
    /// # Errors
    /// Nobody answers there, or has no such export, or one that is no use.
    pub fn connect(address: VolumeAddress, name: String) -> Result<Self, String> {
        let (inbox, received) = mpsc::channel();
        let event = Arc::new(Event::new().map_err(|error| format!("eventfd: {error}"))?);
        let losses = Arc::new(AtomicU64::new(0));
        let (told, first) = mpsc::channel();
        let shown = address.to_string().into();
        let link = link::Link::new(link::Plan {
            address,
            name,
            inbox: received,
            event: Arc::clone(&event),
            losses: Arc::clone(&losses),
            told,
        });
        let thread = std::thread::Builder::new().name("volume".into());
        let (lives, alive) = mpsc::channel();
        let started = thread.spawn(move || link.run(lives));
        started.map_err(|error| format!("cannot start a thread: {error}"))?;
        let handle = Arc::new(Handle {
            inbox: Some(inbox),
            alive: Mutex::new(alive),
            event,
            losses,
            gone: Mutex::default(),
        });
        match first.recv_timeout(Duration::from_nanos(VOLUME_ANSWER_NS)) {
            Ok(Ok(info)) => Ok(Self {
                address: shown,
                handle,
                info,
            }),
            Ok(Err(why)) => Err(why),
            Err(_) => Err("nothing that speaks NBD answers there".into()),
        }
    }

    /// Where it is, as the address of an export is written.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.info.size
    }

    /// Whether it may only be read.
    pub fn read_only(&self) -> bool {
        self.info.features.read_only
    }

    /// Unit of offsets and lengths, bytes.
    pub fn minimum(&self) -> u32 {
        self.info.block_sizes.map_or(1, |sizes| sizes.minimum)
    }

    /// Longest read or write, bytes.
    pub(crate) fn longest(&self) -> u32 {
        let sizes = self.info.block_sizes.unwrap_or(BlockSizes::DEFAULT);
        let minimum = sizes.minimum.max(1);
        (sizes.maximum - sizes.maximum % minimum).max(minimum)
    }

    /// Whether it can be flushed; else what it acknowledges is durable, as far as anyone can tell.
    pub(crate) fn has_flush(&self) -> bool {
        self.info.features.flush
    }

    /// Whether a write can be durable by itself.
    pub(crate) fn has_fua(&self) -> bool {
        self.info.features.fua
    }

    /// How often acknowledged writes may have been lost: flushes that failed, and connections.
    pub(crate) fn losses(&self) -> u64 {
        self.handle.losses.load(Ordering::Acquire)
    }

    fn gone(&self) -> MutexGuard<'_, Gone> {
        // Every change to it is one assignment, so a panic leaves nothing half done.
        let gone = self.handle.gone.lock();
        gone.unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue has gone of which not all was flushed that it wrote; of so many losses it knew.
    pub(crate) fn leave(&self, known: u64) {
        let mut gone = self.gone();
        gone.untold |= known != self.losses();
        gone.count += 1;
        let earlier = gone.unflushed.replace(known);
        gone.untold |= earlier.is_some_and(|it| it != known);
    }

    /// A flush failed, and who asked for it has gone.
    pub(crate) fn unheard(&self) {
        self.gone().untold = true;
    }

    /// Queues that have gone and had not flushed all. A flush that begins now is for theirs too.
    pub(crate) fn gone_unflushed(&self) -> u64 {
        self.gone().count
    }

    /// Whether who flushes now is to be told of what queues were not that have gone. Where the
    /// flush has succeeded, with how many had gone when it began: what these wrote is durable.
    pub(crate) fn take_untold(&self, flushed: Option<u64>) -> bool {
        let mut gone = self.gone();
        let losses = self.losses();
        let lost = gone.unflushed.take_if(|known| *known != losses);
        if flushed == Some(gone.count) {
            gone.unflushed = None;
        }
        std::mem::take(&mut gone.untold) | lost.is_some()
    }

    pub(crate) fn begin(&self, order: Order) {
        if let Some(inbox) = &self.handle.inbox {
            if let Err(SendError(order)) = inbox.send(order) {
                // Its thread lives as long as this, unless it has panicked.
                order.end(Err(Errno::NOTCONN));
            }
            self.handle.event.raise();
        }
    }
}
