//! A connection's own thread: hears one request after the other, and says the answers.
//!
//! # Contract
//! Whatever waits for a client, or for what a client has sent, waits here: receiving (the kernel
//! closes descriptors for which there is no room), closing what came (a file whose last close waits
//! for somebody), closing the connection (with descriptors that nobody received), answering who
//! does not listen. So does the allocation of memory that an answer is about: where there is none,
//! the client gets the error, and the connection ends. No descriptor of a client's leaves this
//! thread; only mappings do. The next request is heard when the last one was answered, so one
//! client has one of them waiting at most. A client without a queue has [`Ear::patience_ns`] for
//! each.
use crate::limits::{AGAIN_NS, DESCRIPTORS_WAITING_MAX, LEAVING_NS};
use crate::messages::News;
use crate::transfer::Region;
use queue::protocol::{Answer, MESSAGE, Operation, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, Sender};
use std::time::Duration;
use sys::os::{Event, now_ns};
use sys::{Errno, Error, Shared, passing};

/// Memory that came with a request: mapped, or why not.
pub type Brought = Option<Result<Shared, Error>>;

/// See the module.
pub struct Ear {
    pub id: u64,
    pub uid: u32,
    /// Ours is the last one: whoever holds it too lets go of it before `replies`.
    pub socket: Arc<OwnedFd>,
    pub replies: Receiver<Reply>,
    pub news: Sender<News>,
    /// Raised with each piece of news.
    pub event: Arc<Event>,
    /// How long a connection without a queue may take, ns.
    pub patience_ns: u64,
    /// Most bytes that are mapped.
    pub bytes_max: u64,
}

/// An answer, and what goes with it.
pub struct Reply {
    /// The answer, its text behind it.
    pub bytes: Vec<u8>,
    /// Our own.
    pub descriptors: Vec<OwnedFd>,
    /// Allocated before it is said.
    pub memory: Vec<Region>,
    /// The connection has a queue.
    pub has_queue: bool,
    /// It is a refusal for a moment only: worth asking again.
    pub passes: bool,
}

impl Reply {
    pub fn new(answer: &Answer, text: &str, descriptors: Vec<OwnedFd>, has_queue: bool) -> Self {
        let mut bytes = answer.emit().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        Self {
            bytes,
            descriptors,
            memory: Vec::new(),
            has_queue,
            passes: false,
        }
    }

    /// Answer to a request that is refused.
    pub fn refusal(request: &Request, errno: Errno, why: &str, has_queue: bool) -> Self {
        let answer = Answer {
            error: errno.raw_os_error().cast_unsigned(),
            d: why.len() as u64,
            ..Answer::to(request)
        };
        Self::new(&answer, why, Vec::new(), has_queue)
    }

    /// Allocates its memory.
    fn populate(&mut self) -> Result<(), Error> {
        let mut all = self.memory.drain(..);
        all.try_for_each(|it| it.memory.populate(it.at, it.len))
    }
}

/// Memory that comes with a request, of `bytes_max` bytes at most.
pub fn map(request: &Request, descriptors: &[OwnedFd], bytes_max: u64) -> Brought {
    if request.operation != Some(Operation::Register) || request.c > bytes_max {
        return None;
    }
    let bytes = usize::try_from(request.c).ok()?;
    Some(Shared::map_guarded(descriptors.first()?, bytes))
}

/// The connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Over;

/// Tells that the connection is closed, also where its thread panicked.
struct Parting {
    uid: u32,
    news: Sender<News>,
    event: Arc<Event>,
}

impl Drop for Parting {
    fn drop(&mut self) {
        let _ = self.news.send(News::Closed(self.uid));
        self.event.raise();
    }
}

impl Ear {
    /// Until the connection is over. Runs in a thread of its own.
    pub fn run(self) {
        let _parting = Parting {
            uid: self.uid,
            news: self.news.clone(),
            event: Arc::clone(&self.event),
        };
        let Over = self.converse();
        self.tell(News::Gone(self.id));
        // The server lets go of the socket first.
        while self.replies.recv().is_ok() {}
        drop(self);
    }

    fn converse(&self) -> Over {
        let mut has_queue = false;
        loop {
            let (request, brought) = match self.hear(has_queue) {
                Ok(heard) => heard,
                Err(over) => return over,
            };
            let Ok(mut reply) = self.ask(request, brought) else {
                return Over;
            };
            has_queue |= reply.has_queue;
            let populated = reply.populate();
            if let Err(error) = &populated {
                let why = format!("the server gets no memory for it: {error}");
                tracing::warn!("a client of user {} is ended: {why}", self.uid);
                reply = Reply::refusal(&request, error.source, &why, has_queue);
            }
            let said = self.say(&reply, has_queue);
            if said.is_err() || populated.is_err() {
                return Over;
            }
        }
    }

    /// Answer of the server to a request; where that is for a moment only, the present one.
    fn ask(&self, request: Request, brought: Brought) -> Result<Reply, RecvError> {
        self.tell(News::Heard(self.id, request, brought));
        let mut reply = self.replies.recv()?;
        let begun_ns = now_ns();
        // Others of this user may come and go meanwhile.
        while reply.passes && now_ns() - begun_ns < 2 * LEAVING_NS {
            std::thread::sleep(Duration::from_nanos(AGAIN_NS));
            self.tell(News::Heard(self.id, request, None));
            reply = self.replies.recv()?;
        }
        Ok(reply)
    }

    fn tell(&self, news: News) {
        let _ = self.news.send(news);
        self.event.raise();
    }

    /// A whole request, and the memory that came with it.
    fn hear(&self, has_queue: bool) -> Result<(Request, Brought), Over> {
        let mut bytes = [0; MESSAGE];
        let mut descriptors = Vec::new();
        let (mut have, begun_ns) = (0, now_ns());
        while have < MESSAGE {
            self.wait(PollFlags::IN, begun_ns, has_queue)?;
            let rest = &mut bytes[have..];
            match passing::receive(&*self.socket, rest, &mut descriptors, false) {
                Ok(0) => return Err(Over),
                Ok(count) => have += count,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return Err(Over),
            }
            if descriptors.len() > DESCRIPTORS_WAITING_MAX {
                return Err(Over);
            }
        }
        let request = Request::parse(&bytes);
        Ok((request, map(&request, &descriptors, self.bytes_max)))
    }

    fn say(&self, reply: &Reply, has_queue: bool) -> Result<(), Over> {
        let begun_ns = now_ns();
        let borrowed: Vec<_> = reply.descriptors.iter().map(AsFd::as_fd).collect();
        let mut sent = 0;
        while sent < reply.bytes.len() {
            // Descriptors go with the first byte.
            let passed = if sent == 0 { &borrowed[..] } else { &[] };
            match passing::send(&*self.socket, &reply.bytes[sent..], passed, false) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, begun_ns, has_queue)?,
                Err(_) => return Err(Over),
            }
        }
        Ok(())
    }

    /// Until the socket is ready, or its end.
    fn wait(&self, what: PollFlags, begun_ns: u64, has_queue: bool) -> Result<(), Over> {
        loop {
            let left_ns = (begun_ns + self.patience_ns).saturating_sub(now_ns());
            let limit = Timespec {
                tv_sec: (left_ns / 1_000_000_000) as i64,
                tv_nsec: (left_ns % 1_000_000_000) as i64,
            };
            let mut fds = [PollFd::new(&*self.socket, what)];
            match poll(&mut fds, (!has_queue).then_some(&limit)) {
                Ok(0) => return Err(Over),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => return Err(Over),
            }
        }
    }
}

#[cfg(test)]
mod tests;
