//! A broker without threads, connections and waits: whoever has it is all of them, in an order of
//! their own.
//!
//! # Contract
//! What clients come to is what a [`Broker`](crate::Broker) has, the server and one worker; nothing
//! happens in between calls but requests to files, which are the kernel's. A guest has one request
//! waiting at most, as on a connection. The reader of a connection (`session`) is left out: there
//! is nothing to wait for.
use super::{Mailbox, Server, Session};
use crate::config::Config;
use crate::session::{self, Reply};
use crate::worker::{Message, Worker};
use queue::protocol::{Answer, MESSAGE, Request};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver};
use sys::os::Event;

/// See the module.
pub struct Room {
    server: Server,
    worker: Worker,
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
    /// Its listener hears nobody, and its one worker is pinned nowhere.
    ///
    /// # Errors
    /// As of [`Broker::start`](crate::Broker::start).
    pub fn new(config: Config) -> Result<Self, String> {
        let event = Event::new().map_err(|error| format!("eventfd: {error}"))?;
        let mut server = Server::new(config, Arc::new(AtomicBool::new(false)), Arc::new(event))?;
        let plan = server.crew(None)?;
        Ok(Self {
            server,
            worker: Worker::new(plan)?,
        })
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
        // A worker knows of what came when its turn is over, and then says so.
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

    /// One turn of all queues, what the worker is told, and what it tells; whether there was
    /// anything to do in queues.
    ///
    /// # Errors
    /// The worker can't go on.
    pub fn turn(&mut self) -> Result<bool, String> {
        let busy = self.worker.turn();
        self.worker.read_mailbox();
        self.server.read_news()?;
        Ok(busy)
    }

    /// The worker goes to sleep, as if nothing were to be done, and is woken at once.
    ///
    /// # Errors
    /// The kernel's.
    pub fn doze(&mut self) -> Result<(), String> {
        for crew in &self.server.crews {
            if let Mailbox::Thread(post) = &crew.mailbox {
                post.event.raise();
            }
        }
        let slept = self.worker.sleep();
        slept.map_err(|error| format!("io_uring_enter: {error}"))
    }

    /// Queues that somebody has, or whose last commands have not ended.
    pub fn queues(&self) -> usize {
        self.server.places.all()
    }

    /// Bytes of memory that all queues of a user have, besides their rings.
    pub fn memory_of(&self, uid: u32) -> u64 {
        self.server.places.memory_of_user(uid)
    }

    /// Takes all queues back, and flushes the files.
    ///
    /// # Errors
    /// A file can't be flushed.
    pub fn stop(mut self) -> Result<(), String> {
        self.server
            .crews
            .iter()
            .for_each(|crew| crew.send(Message::Stop));
        loop {
            self.turn()?;
            if self.worker.is_over() {
                return self.worker.flushed();
            }
        }
    }
}
