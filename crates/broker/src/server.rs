//! The broker's socket: who comes, what they ask for, and when they are gone.
//!
//! # Contract
//! One thread, which never waits for a client, nor for what one sent: each connection has an ear
//! (`session`) for that. A queue's place is free again when its core has said that the last command
//! ended. Registered memory is answered for when the core knows of it. At the end commands that are
//! under way are waited for; one that never returns for [`STOP_NS`] only.
use crate::config::{Config, Identity, Store};
use crate::lane::GivenUp;
use crate::limits::{CORES_MAX, DEAF_NS, EAR_STACK_BYTES, FAREWELLS_MAX, NAMESPACES_MAX};
use crate::limits::{QUEUES_MAX, STOP_NS};
use crate::messages::{CoreWaits, Link, Message, News, ServerCore, ToCore};
use crate::session::{Brought, Ear, Reply};
use crate::transfer::Region;
use nvme::queue::Misbehaved;
use queue::protocol::{Answer, Operation, Request, VERSION};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::os::Event;
use sys::{Errno, passing};

mod doors;
mod places;
mod requests;
pub mod room;

use doors::Doors;
use places::Places;
use requests::{Outcome, Refusal, refuse};

/// Tokens of the epoll.
const LISTENER: u64 = 0;
const NEWS: u64 = 1;

/// A broker that runs.
#[derive(Debug)]
pub struct Broker {
    stop: Arc<AtomicBool>,
    event: Arc<Event>,
    tell: Sender<News>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Broker {
    /// Starts the server of queues that are on these cores of an engine, as
    /// [`CoreQueues`](crate::CoreQueues).
    ///
    /// # Errors
    /// What can't be, or what the system refuses.
    pub fn start(config: Config, cores: Vec<ServerCore>) -> Result<Self, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let event = Arc::new(Event::new().map_err(|error| format!("eventfd: {error}"))?);
        let mut server = Server::new(config, cores, Arc::clone(&stop), Arc::clone(&event))?;
        let tell = server.tell.clone();
        let thread = std::thread::Builder::new()
            .name("broker".into())
            .spawn(move || {
                let served = server.serve();
                // Its owner may ask for the result only when it ends the server.
                if let Err(why) = &served
                    && !server.stop.load(Ordering::Acquire)
                {
                    tracing::error!("a server of queues has failed: {why}");
                }
                served
            })
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self {
            stop,
            event,
            tell,
            thread: Some(thread),
        })
    }

    /// Queues that are opened from now on have these namespaces, which are an engine's, and their
    /// identity.
    pub fn set_namespaces(&self, namespaces: Vec<crate::Namespace>, identity: Option<Identity>) {
        let _ = self.tell.send(News::Namespaces(namespaces, identity));
        self.event.raise();
    }

    /// Whether it has ended by itself: something failed.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Takes all queues back, and ends when their commands have.
    ///
    /// # Errors
    /// What made it fail before; commands don't end.
    pub fn stop(mut self) -> Result<(), String> {
        self.end()
    }

    fn end(&mut self) -> Result<(), String> {
        self.stop.store(true, Ordering::Release);
        self.event.raise();
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err("a thread of the broker panicked".into()),
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// A core that has queues of this server.
struct Core {
    it: ServerCore,
    link: Arc<Link>,
    /// Queues that it has.
    queues: u32,
}

impl Core {
    fn send(&self, message: Message) {
        (self.it.post)(ToCore::new(&self.link, message));
    }

    fn waits(&self) -> CoreWaits {
        let waits = (self.it.waits)();
        CoreWaits {
            enters: waits.enters + self.link.raised.load(Ordering::Relaxed),
            ..waits
        }
    }
}

/// A connection.
struct Session {
    uid: u32,
    pid: i32,
    /// The queue that it opened.
    queue: Option<u64>,
    /// That has ended or was given up: the connection is over, whatever of it is still heard.
    given_up: bool,
    /// Its answer when a core has said that it knows, and the memory that came.
    waiting: Option<(Answer, Option<Region>)>,
    /// To end it. Before `replies`: the ear's is the last one.
    socket: Arc<OwnedFd>,
    replies: Sender<Reply>,
}

struct Server {
    config: Config,
    /// As in the configuration, for queues.
    namespaces: Arc<[crate::Namespace]>,
    stop: Arc<AtomicBool>,
    event: Arc<Event>,
    epoll: OwnedFd,
    news: Receiver<News>,
    /// For ears.
    tell: Sender<News>,
    cores: Vec<Core>,
    /// Those of them that have not ended.
    serving: usize,
    places: Places,
    sessions: BTreeMap<u64, Session>,
    doors: Doors,
    /// The user that this runs as.
    owner: u32,
    next: u64,
    /// The system had nothing for another connection: until one ends, or a while has passed.
    deaf: Option<Instant>,
}

impl Server {
    fn new(
        config: Config,
        cores: Vec<ServerCore>,
        stop: Arc<AtomicBool>,
        event: Arc<Event>,
    ) -> Result<Self, String> {
        check(&config, cores.len())?;
        let listening = config.listener.set_nonblocking(true);
        listening.map_err(|error| format!("cannot listen: {error}"))?;
        let watched = |errno| format!("epoll: {errno}");
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(watched)?;
        let readable = EventFlags::IN;
        epoll::add(
            &epoll,
            &config.listener,
            EventData::new_u64(LISTENER),
            readable,
        )
        .map_err(watched)?;
        epoll::add(&epoll, &*event, EventData::new_u64(NEWS), readable).map_err(watched)?;
        let (tell, news) = mpsc::channel();
        let core = |it| Core {
            it,
            link: Arc::new(Link {
                spin_ns: config.spin_ns,
                news: tell.clone(),
                news_event: Arc::clone(&event),
                raised: AtomicU64::new(0),
            }),
            queues: 0,
        };
        let cores: Vec<_> = cores.into_iter().map(core).collect();
        cores.iter().for_each(|core| core.send(Message::Attach));
        Ok(Self {
            places: Places::new(config.user_poll, config.user_irq),
            doors: Doors::new()?,
            owner: rustix::process::geteuid().as_raw(),
            serving: cores.len(),
            cores,
            namespaces: config.namespaces.clone().into(),
            config,
            stop,
            event,
            epoll,
            news,
            tell,
            sessions: BTreeMap::new(),
            next: 0,
            deaf: None,
        })
    }

    fn serve(&mut self) -> Result<(), String> {
        let served = self.watch();
        self.close_doors();
        served.and(self.dismiss())
    }

    /// Takes the queues back.
    fn dismiss(&mut self) -> Result<(), String> {
        for core in &self.cores {
            core.send(Message::Stop);
        }
        self.part(Duration::from_nanos(STOP_NS))
    }

    /// Waits for the cores.
    fn part(&mut self, at_most: Duration) -> Result<(), String> {
        let until = Instant::now() + at_most;
        while self.serving > 0 {
            let left = until.saturating_duration_since(Instant::now());
            match self.news.recv_timeout(left) {
                Ok(News::Ended) => self.serving -= 1,
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                // A command that hangs keeps the memory that it uses until it returns.
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!(
                        "requests to files or volumes have not returned for {} s (see what is \
                         wrong with their storage); what they write may come yet",
                        at_most.as_secs()
                    ));
                }
            }
        }
        Ok(())
    }

    fn watch(&mut self) -> Result<(), String> {
        let none = epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        let mut events = [none; 64];
        while !self.stop.load(Ordering::Acquire) {
            let soon = Timespec {
                tv_sec: 0,
                tv_nsec: DEAF_NS as i64,
            };
            // Not left to a moment in which nobody asks for anything.
            let quiet = Duration::from_nanos(DEAF_NS);
            if self.deaf.is_some_and(|since| since.elapsed() >= quiet) {
                self.listen();
            }
            let at_most = self.deaf.map(|_| &soon);
            let count = match epoll::wait(&self.epoll, &mut events, at_most) {
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(format!("epoll_wait: {error}")),
            };
            for event in &events[..count] {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    _ => self.read_news()?,
                }
            }
        }
        Ok(())
    }

    /// The connections that wait now; what comes later is another turn's.
    fn accept(&mut self) {
        for _ in 0..64 {
            let stream = match self.config.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => return self.cannot_accept(&error),
            };
            let socket = OwnedFd::from(stream);
            let Ok((uid, pid)) = passing::peer(&socket) else {
                self.doors.turn_away(socket, None);
                continue;
            };
            let granted = self.config.rights.of(uid).map_or(0, |it| it.queues_max);
            let capacity = self.places.capacity();
            match self.doors.admit(uid, granted as usize, capacity) {
                Ok(()) => self.attend((uid, pid), socket),
                Err(refusal) => self.doors.turn_away(socket, Some(refusal)),
            }
        }
    }

    /// Gives a connection its ear.
    fn attend(&mut self, (uid, pid): (u32, i32), socket: OwnedFd) {
        let (replies, received) = mpsc::channel();
        let socket = Arc::new(socket);
        let ear = Ear {
            id: self.next,
            uid,
            socket: Arc::clone(&socket),
            replies: received,
            news: self.tell.clone(),
            event: Arc::clone(&self.event),
            patience_ns: self.config.patience_ns,
            bytes_max: self.config.memory_max,
        };
        let builder = std::thread::Builder::new().stack_size(EAR_STACK_BYTES);
        let named = builder.name(format!("client-{uid}"));
        if let Err(error) = named.spawn(move || ear.run()) {
            tracing::warn!("no thread for a client of user {uid}: {error}");
            self.doors.left(uid);
            if let Some(socket) = Arc::into_inner(socket) {
                let why = format!("the server has no thread for you now: {error}");
                let refusal = Refusal::new(Errno::AGAIN, why);
                self.doors.turn_away(socket, Some(refusal));
            }
            return;
        }
        let session = Session {
            uid,
            pid,
            queue: None,
            given_up: false,
            waiting: None,
            socket,
            replies,
        };
        self.sessions.insert(self.next, session);
        self.next += 1;
    }

    /// There was no other client, or nothing to have it with: then it would wake us again at once.
    fn cannot_accept(&mut self, error: &std::io::Error) {
        let fine = [Errno::AGAIN, Errno::INTR, Errno::CONNABORTED];
        let fine = fine.map(|errno| Some(errno.raw_os_error()));
        if !fine.contains(&error.raw_os_error()) {
            let advice = match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::MFILE) => " (raise the limit of open files, ulimit -n)",
                Some(Errno::NFILE) => " (raise the sysctl fs.file-max, or end what holds files)",
                _ => "",
            };
            tracing::warn!("cannot accept another client: {error}{advice}");
            let deleted = epoll::delete(&self.epoll, &self.config.listener);
            self.deaf = deleted.is_ok().then(Instant::now);
        }
    }

    /// After it was deaf.
    fn listen(&mut self) {
        if self.deaf.take().is_some() {
            let data = EventData::new_u64(LISTENER);
            let added = epoll::add(&self.epoll, &self.config.listener, data, EventFlags::IN);
            self.deaf = added.is_err().then(Instant::now);
        }
    }

    fn read_news(&mut self) -> Result<(), String> {
        self.event.lower();
        while let Ok(news) = self.news.try_recv() {
            match news {
                News::Heard(id, request, brought) => self.hear(id, &request, brought),
                News::Gone(id) => self.leave(id),
                News::Closed(uid) => {
                    self.doors.left(uid);
                    self.listen();
                }
                News::Region(id, old) => {
                    drop(old);
                    self.acknowledge(id);
                }
                News::Let(regions) => drop(regions),
                News::Namespaces(namespaces, identity) => {
                    self.namespaces = namespaces.clone().into();
                    (self.config.namespaces, self.config.identity) = (namespaces, identity);
                }
                // A client that comes may be given to it: the server ends, also where the core has
                // no queues. Cores that end after the server was told to are waited for later.
                News::Ended => {
                    self.serving -= 1;
                    if !self.stop.load(Ordering::Acquire) {
                        return Err("a core has ended".into());
                    }
                }
                News::Shown(id) => {
                    if let Some(place) = self.places.find_mut(id) {
                        place.is_shown = true;
                    }
                }
                News::Broken(id, why) => {
                    if let Some(place) = self.places.find_mut(id) {
                        if why != GivenUp::Misbehaved(Misbehaved::LetGo) {
                            let (kind, number, uid) = (place.kind.name(), place.number, place.uid);
                            tracing::warn!("queue {kind} {number} of user {uid} is ended: {why}");
                        }
                        place.leaving.get_or_insert_with(Instant::now);
                    }
                    self.give_up(id);
                }
                News::Removed(id, lane) => {
                    drop(lane);
                    if let Some(place) = self.places.free(id)
                        && let Some(core) = self.cores.get_mut(place.core)
                    {
                        core.queues -= 1;
                    }
                    // A core gave it up by itself.
                    self.give_up(id);
                }
            }
        }
        Ok(())
    }

    /// A queue is no client's any more: its connection ends.
    fn give_up(&mut self, id: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.queue = None;
            session.given_up = true;
            let _ = rustix::net::shutdown(&*session.socket, Shutdown::Both);
        }
    }

    /// A core knows of memory that came or went.
    fn acknowledge(&mut self, id: u64) {
        if let Some(session) = self.sessions.get_mut(&id)
            && let Some((answer, memory)) = session.waiting.take()
        {
            let mut reply = Reply::new(&answer, "", Vec::new(), true);
            reply.memory.extend(memory);
            let _ = session.replies.send(reply);
        }
    }

    /// Connections with a queue that have ended leave, though their ears have not said so yet: who
    /// opens a queue now may be the next one of a client that is gone, and come to another core
    /// (T9).
    fn notice_ends(&mut self) {
        let all = self.sessions.iter().filter(|(_, it)| it.queue.is_some());
        let all: Vec<_> = all.map(|(id, it)| (*id, Arc::clone(&it.socket))).collect();
        let polled = all
            .iter()
            .map(|(_, socket)| PollFd::new(&**socket, PollFlags::RDHUP));
        let mut polled: Vec<_> = polled.collect();
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        while let Err(Errno::INTR) = poll(&mut polled, Some(&now)) {}
        for ((id, _), socket) in all.iter().zip(&polled) {
            if !socket.revents().is_empty() {
                self.leave(*id);
            }
        }
    }

    fn leave(&mut self, id: u64) {
        if let Some(session) = self.sessions.remove(&id)
            && let Some(queue) = session.queue
            && let Some(place) = self.places.find_mut(queue)
        {
            // Now, since its core may hear of it late, and another client come before that (T9).
            place.shut.store(true, Ordering::Relaxed);
            place.leaving.get_or_insert_with(Instant::now);
            self.cores[place.core].send(Message::Remove(queue));
        }
    }

    /// No client comes in any more, and no client's thread waits for us.
    fn close_doors(&mut self) {
        let listener = &self.config.listener;
        let _ = rustix::net::shutdown(listener, Shutdown::Both);
        for _ in 0..FAREWELLS_MAX {
            // A client that is still there may have sent descriptors that take time to close.
            let Ok((stream, _)) = listener.accept() else {
                break;
            };
            self.doors.turn_away(stream.into(), None);
        }
        for session in self.sessions.values() {
            let _ = rustix::net::shutdown(&*session.socket, Shutdown::Both);
        }
        self.sessions.clear();
    }

    fn hear(&mut self, id: u64, request: &Request, brought: Brought) {
        let Some(mut session) = self.sessions.remove(&id) else {
            return;
        };
        if self.cores.len() > 1 && request.operation == Some(Operation::Open) {
            self.notice_ends();
        }
        let mut answer = Answer::to(request);
        let outcome = self.answer(id, &mut session, request, brought, &mut answer);
        let has_queue = session.queue.is_some();
        let reply = match outcome {
            Ok(Outcome::Passed(passed, memory)) => Reply {
                memory,
                ..Reply::new(&answer, "", passed, has_queue)
            },
            Ok(Outcome::Text(text)) => {
                answer.d = text.len() as u64;
                Reply::new(&answer, &text, Vec::new(), has_queue)
            }
            Ok(Outcome::WhenKnown(memory)) => {
                session.waiting = Some((answer, memory));
                self.sessions.insert(id, session);
                return;
            }
            Err(refusal) => Reply {
                passes: refusal.passes,
                ..Reply::refusal(request, refusal.errno, &refusal.why, has_queue)
            },
        };
        let _ = session.replies.send(reply);
        self.sessions.insert(id, session);
    }

    fn answer(
        &mut self,
        id: u64,
        session: &mut Session,
        request: &Request,
        brought: Brought,
        answer: &mut Answer,
    ) -> Result<Outcome, Refusal> {
        match request.operation {
            // The next queue would have this one's number among connections.
            _ if session.given_up => refuse(Errno::PIPE, "the queue of this connection is over"),
            _ if request.version != VERSION => {
                refuse(Errno::PROTO, format!("version {VERSION} is spoken here"))
            }
            Some(Operation::Open) => self.open(id, session, request, answer),
            Some(Operation::Register) => self.register(session, request, brought, answer),
            Some(Operation::Unregister) => self.unregister(session, request),
            Some(Operation::Namespace) => self.namespace(session, request, answer),
            Some(Operation::List) => {
                let sees_all = [0, self.owner].contains(&session.uid);
                let viewer = (session.uid, sees_all);
                let cores = self.cores.iter().map(Core::waits);
                Ok(Outcome::Text(self.places.list(&self.config, viewer, cores)))
            }
            Some(Operation::Identity) => {
                let identity = self.identity(session, request)?;
                answer.a = identity.controller.into();
                Ok(Outcome::Text(identity.emit()))
            }
            None => refuse(Errno::OPNOTSUPP, "there is no such operation"),
        }
    }
}

fn check(config: &Config, cores: usize) -> Result<(), String> {
    let namespaces = config.namespaces.len();
    if namespaces == 0 || namespaces > NAMESPACES_MAX {
        return Err(format!("{namespaces} namespaces: 1 to {NAMESPACES_MAX}"));
    }
    if !(1..=CORES_MAX).contains(&cores) {
        return Err(format!("{cores} cores: 1 to {CORES_MAX}"));
    }
    if config.user_poll.max(config.user_irq) > QUEUES_MAX {
        return Err(format!("at most {QUEUES_MAX} queues of a kind"));
    }
    let grants = config.rights.users.iter().map(|(_, grant)| grant);
    for grant in grants.chain(&config.rights.others) {
        let rights = grant.namespaces.as_deref().unwrap_or_default();
        let twice = |(at, it): (usize, &crate::NamespaceRight)| {
            rights[..at].iter().any(|other| other.nsid == it.nsid)
        };
        if let Some((_, it)) = rights.iter().enumerate().find(|&it| twice(it)) {
            return Err(format!("a user has two rights to namespace {}", it.nsid));
        }
    }
    let wrong = |namespace: &crate::Namespace| {
        !matches!(namespace.store, Store::Engine(_))
            && (!(9..=12).contains(&namespace.block_shift) || namespace.blocks == 0)
    };
    match config.namespaces.iter().position(wrong) {
        Some(at) => Err(format!(
            "namespace {}: no blocks, or of no size that is",
            at + 1
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
