//! A broker without threads, connections and waits: whoever has it is all of them, in an order of
//! their own.
//!
//! # Contract
//! What clients come to is what a [`Broker`](crate::Broker) has, the server and one core; nothing
//! happens in between calls. A guest has one request waiting at most, as on a connection. The
//! reader of a connection (`session`) is left out: there is nothing to wait for. Of the reactor
//! there is what queues need: devices of the engine lie in memory, and end what they are asked in
//! the same turn, unless they [hang](RoomCore::hang).
use super::{Server, Session};
use crate::config::Config;
use crate::core_queues::CoreQueues;
use crate::local::Local;
use crate::messages::{CoreWaits, Message, News, ServerCore, ToCore};
use crate::session::{self, Reply};
use engine::export::{ExportControl, ExportEvent};
use engine::host::HostEvent;
use engine::machine::{DeviceError, Memory};
use engine::{Core, DeviceOp, DeviceRequest, Machine, Output, Span};
use queue::protocol::{Answer, MESSAGE, Request};
use runtime::MemoryDevice;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver};
use sys::os::Event;

/// See the module.
pub struct Room {
    server: Server,
    /// Where its queues are.
    pub core: RoomCore,
}

/// A core without a reactor.
pub struct RoomCore {
    mailbox: Receiver<ToCore>,
    core: Core,
    queues: CoreQueues,
    arena: Vec<u8>,
    /// Contents of the engine's devices.
    disks: Vec<Arc<MemoryDevice>>,
    hangs: bool,
    held: Vec<DeviceRequest>,
    /// Requests of this kind fail, so many of them.
    fails: Option<(DeviceOp, u32)>,
    /// All requests so far.
    pub asked: Vec<DeviceRequest>,
    now_ns: u64,
    has_ended: bool,
}

/// A client that is there.
#[derive(Debug)]
pub struct Guest {
    id: u64,
    replies: Receiver<Reply>,
    /// The other end of its connection, on which nothing is ever said.
    _theirs: UnixStream,
}

/// Answer to a guest.
#[derive(Debug)]
pub struct Said {
    /// The answer.
    pub answer: Answer,
    /// The text behind it.
    pub text: Vec<u8>,
    /// Descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let queues = self.queues();
        f.debug_struct("Room")
            .field("queues", &queues)
            .finish_non_exhaustive()
    }
}

impl Room {
    /// Its listener hears nobody. `disks`: contents of the engine's devices.
    ///
    /// # Errors
    /// As of [`Broker::start`](crate::Broker::start).
    pub fn new(
        config: Config,
        local: &Local,
        disks: Vec<Arc<MemoryDevice>>,
    ) -> Result<Self, String> {
        let event = Event::new().map_err(|error| format!("eventfd: {error}"))?;
        let (core, served) = RoomCore::new(local, disks)?;
        let stop = Arc::new(AtomicBool::new(false));
        let server = Server::new(config, vec![served], stop, Arc::new(event))?;
        Ok(Self { server, core })
    }

    /// Another client, of a user.
    ///
    /// # Errors
    /// The system has no descriptors.
    pub fn come(&mut self, uid: u32) -> Result<Guest, String> {
        let pair = UnixStream::pair().map_err(|error| format!("socketpair: {error}"))?;
        let (replies, received) = mpsc::channel();
        let session = Session {
            uid,
            pid: 1,
            queue: None,
            given_up: false,
            waiting: None,
            socket: Arc::new(pair.0.into()),
            replies,
        };
        let id = self.server.next;
        self.server.next += 1;
        self.server.sessions.insert(id, session);
        Ok(Guest {
            id,
            replies: received,
            _theirs: pair.1,
        })
    }

    /// Answer to a guest, after as many turns as that takes; `None`: it is not one any more.
    ///
    /// # Errors
    /// As of [`Self::turn`].
    pub fn ask(
        &mut self,
        guest: &Guest,
        request: &Request,
        passed: &[OwnedFd],
    ) -> Result<Option<Said>, String> {
        let brought = session::map(request, passed, self.server.config.memory_max);
        self.server.hear(guest.id, request, brought);
        // A core knows of what came when its turn is over, and then says so.
        let mut reply = guest.replies.try_recv();
        if reply.is_err() {
            self.turn()?;
            reply = guest.replies.try_recv();
        }
        let said = |reply: Reply| {
            let (answer, text) = reply.bytes.split_first_chunk::<MESSAGE>()?;
            Some(Said {
                answer: Answer::parse(answer),
                text: text.to_vec(),
                descriptors: reply.descriptors,
            })
        };
        Ok(reply.ok().and_then(said))
    }

    /// A guest goes, whatever it has under way.
    pub fn leave(&mut self, guest: Guest) {
        self.server.leave(guest.id);
    }

    /// One turn of all queues, what the core is told, and what it tells.
    ///
    /// # Errors
    /// The server can't go on.
    pub fn turn(&mut self) -> Result<(), String> {
        self.core.turn();
        self.server.read_news()
    }

    /// Queues that somebody has, or whose last commands have not ended.
    pub fn queues(&self) -> usize {
        self.server.places.all()
    }

    /// Bytes of memory that all queues of a user have, besides their rings.
    pub fn memory_of(&self, uid: u32) -> u64 {
        self.server.places.memory_of_user(uid)
    }

    /// Takes all queues back, and flushes the engine's devices. Returns what could not be.
    pub fn stop(mut self) -> Vec<String> {
        self.server.cores[0].send(Message::Stop);
        while self.queues() > 0 {
            self.core.turn();
            while let Ok(news) = self.server.news.try_recv() {
                if let News::Removed(id, _) = news {
                    self.server.places.free(id);
                }
            }
        }
        self.core.stop()
    }
}

impl RoomCore {
    /// Also as servers know it. `disks`: contents of the engine's devices.
    ///
    /// # Errors
    /// The system has no descriptors.
    pub fn new(local: &Local, disks: Vec<Arc<MemoryDevice>>) -> Result<(Self, ServerCore), String> {
        let (post, mailbox) = mpsc::channel();
        let served = ServerCore {
            post: Box::new(move |message| drop(post.send(message))),
            waits: Box::new(CoreWaits::default),
        };
        let (core, arena_bytes) = local.core(0, 1);
        let made = Self {
            mailbox,
            core,
            queues: CoreQueues::new().map_err(|error| format!("epoll: {error}"))?,
            arena: vec![0; arena_bytes as usize],
            disks,
            hangs: false,
            held: Vec::new(),
            fails: None,
            asked: Vec::with_capacity(1024),
            now_ns: 1,
            has_ended: false,
        };
        Ok((made, served))
    }

    /// Hears what servers say, and has a turn.
    pub fn turn(&mut self) {
        while let Ok(message) = self.mailbox.try_recv() {
            self.queues.handle(message, &mut self.core);
        }
        while self.turn_once() {}
    }

    /// Whether it asked its devices for anything that has ended.
    fn turn_once(&mut self) -> bool {
        self.now_ns += 1000;
        let now_ns = self.now_ns;
        self.queues.begin(&mut self.core, &mut self.arena, now_ns);
        self.core.turn(&mut self.arena, now_ns);
        self.queues.finish(&mut self.core, &mut self.arena, now_ns);
        if self.queues.has_shut() {
            self.queues.tell_shown();
        }
        let mut any = false;
        while let Some(output) = self.core.poll_output() {
            match output {
                Output::Device(request) if self.hangs => {
                    self.asked.push(request);
                    self.held.push(request);
                }
                Output::Device(request) => {
                    self.asked.push(request);
                    any = true;
                    self.execute(&request);
                }
                Output::Stop => self.has_ended = true,
                other => unreachable!("{other:?}: it has devices only"),
            }
        }
        any
    }

    fn execute(&mut self, request: &DeviceRequest) {
        let result = self.result(request);
        self.core.handle_device(request.id, result, self.now_ns);
    }

    fn result(&mut self, request: &DeviceRequest) -> Result<(), DeviceError> {
        if request.op.is_change() && self.core.start_before_ns(request.id) <= self.now_ns {
            return Err(DeviceError::Lost);
        }
        if let Some((op, left)) = &mut self.fails
            && *op == request.op
            && *left > 0
        {
            *left -= 1;
            return Err(DeviceError::Os(5));
        }
        let disk = &self.disks[usize::from(request.device.0)];
        let span: Span = request.span;
        match request.op {
            DeviceOp::Read => disk.read(request.offset, self.arena.bytes_mut(span)),
            DeviceOp::Write { .. } => disk.write(request.offset, self.arena.bytes(span)),
            DeviceOp::WriteZeroes { .. } | DeviceOp::Deallocate => {
                disk.discard(request.offset, request.length);
            }
            DeviceOp::Flush | DeviceOp::Compare => {}
        }
        Ok(())
    }

    /// The engine's devices end nothing from now on, until they do again.
    pub fn hang(&mut self, hangs: bool) {
        self.hangs = hangs;
        if !hangs {
            for request in std::mem::take(&mut self.held) {
                self.execute(&request);
            }
        }
    }

    /// So many further requests of a kind fail (EIO).
    pub fn fail(&mut self, op: DeviceOp, count: u32) {
        self.fails = Some((op, count));
    }

    /// The core goes to sleep, as if nothing were to be done, and is woken at once.
    pub fn doze(&mut self) {
        self.queues.may_sleep(&mut self.core, u64::MAX);
    }

    /// Flushes the devices. Returns what could not be.
    fn stop(&mut self) -> Vec<String> {
        let stop = ExportControl::Stop(0);
        self.core.handle_control(stop, self.now_ns);
        let mut lost = Vec::new();
        while !self.has_ended {
            self.turn_once();
            while let Some(event) = self.core.poll_event() {
                if let ExportEvent::Host(HostEvent::Unflushed(_, line)) = event {
                    lost.push(line);
                }
            }
        }
        lost
    }
}
