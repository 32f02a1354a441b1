//! The broker's socket: who comes, what they ask for, and when they are gone.
//!
//! # Contract
//! One thread, which never waits for a client. A queue's place is free again when its worker has
//! said that the last command ended. At the end requests to files are waited for, and then the
//! files' flush; one that never returns for [`STOP_NS`] only.
use crate::config::Config;
use crate::limits::{LOOKERS_MAX, NAMESPACES_MAX, QUEUES_MAX, STOP_NS, WORKERS_MAX};
use crate::session::{Over, Session};
use crate::worker::{self, Message, News};
use queue::protocol::{Answer, Operation, Request, VERSION};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::os::Event;
use sys::{Errno, passing};

mod places;
mod requests;

use places::Places;
use requests::{Refusal, refuse};

/// Tokens of the epoll; connections have those above.
const LISTENER: u64 = 0;
const NEWS: u64 = 1;
const FIRST: u64 = 2;

/// A broker that runs.
#[derive(Debug)]
pub struct Broker {
    stop: Arc<AtomicBool>,
    event: Arc<Event>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Broker {
    /// Starts its threads.
    ///
    /// # Errors
    /// What can't be, or what the system refuses.
    pub fn start(config: Config) -> Result<Self, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let event = Arc::new(Event::new().map_err(|error| format!("eventfd: {error}"))?);
        let mut server = Server::new(config, Arc::clone(&stop), Arc::clone(&event))?;
        let thread = std::thread::Builder::new()
            .name("broker".into())
            .spawn(move || server.serve())
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self {
            stop,
            event,
            thread: Some(thread),
        })
    }

    /// Whether it has ended by itself: something failed.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Takes all queues back, flushes the files and ends, when their commands have.
    ///
    /// # Errors
    /// What made it fail before; a file can't be flushed; requests to files don't return.
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

/// A thread that serves queues.
struct Crew {
    mailbox: Sender<Message>,
    event: Arc<Event>,
    thread: JoinHandle<()>,
    /// Queues that it has.
    queues: u32,
}

impl Crew {
    fn send(&self, message: Message) {
        let _ = self.mailbox.send(message);
        self.event.raise();
    }
}

struct Server {
    config: Config,
    stop: Arc<AtomicBool>,
    event: Arc<Event>,
    epoll: OwnedFd,
    news: Receiver<News>,
    crews: Vec<Crew>,
    /// Threads of these that have not ended.
    serving: usize,
    places: Places,
    sessions: BTreeMap<u64, Session>,
    next: u64,
    /// The system had no descriptor for another connection: until one ends.
    deaf: bool,
}

impl Server {
    fn new(config: Config, stop: Arc<AtomicBool>, event: Arc<Event>) -> Result<Self, String> {
        check(&config)?;
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
        let (news_sender, news) = mpsc::channel();
        let namespaces: Arc<[_]> = config.namespaces.clone().into();
        let mut crews = Vec::new();
        for &cpu in &config.workers {
            let (mailbox, received) = mpsc::channel();
            let raised = Arc::new(Event::new().map_err(|error| format!("eventfd: {error}"))?);
            let plan = worker::Plan {
                cpu,
                spin_ns: config.spin_ns,
                namespaces: Arc::clone(&namespaces),
                mailbox: received,
                event: Arc::clone(&raised),
                news: news_sender.clone(),
                news_event: Arc::clone(&event),
            };
            let builder = std::thread::Builder::new().name(format!("queues-{}", crews.len()));
            let thread = builder.spawn(move || worker::run(plan));
            crews.push(Crew {
                mailbox,
                event: raised,
                thread: thread.map_err(|error| format!("cannot start a thread: {error}"))?,
                queues: 0,
            });
        }
        Ok(Self {
            places: Places::new(config.user_poll, config.user_irq),
            serving: crews.len(),
            config,
            stop,
            event,
            epoll,
            news,
            crews,
            sessions: BTreeMap::new(),
            next: FIRST,
            deaf: false,
        })
    }

    fn serve(&mut self) -> Result<(), String> {
        let served = self.watch();
        for crew in &self.crews {
            crew.send(Message::Stop);
        }
        let ended = self.part(Duration::from_nanos(STOP_NS));
        served.and(ended)
    }

    /// Waits for the threads: the first of their errors.
    fn part(&mut self, at_most: Duration) -> Result<(), String> {
        let until = Instant::now() + at_most;
        let mut parted = Ok(());
        while self.serving > 0 {
            let left = until.saturating_duration_since(Instant::now());
            match self.news.recv_timeout(left) {
                Ok(News::Ended(result)) => {
                    self.serving -= 1;
                    parted = parted.and(result);
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                // What hangs has the memory that it uses, and its thread, until it returns.
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!(
                        "requests to files have not returned for {} s (see what is wrong with \
                         their storage); what they write may come yet",
                        at_most.as_secs()
                    ));
                }
            }
        }
        for crew in self.crews.drain(..) {
            let _ = crew.thread.join();
        }
        parted
    }

    fn watch(&mut self) -> Result<(), String> {
        let none = epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        let mut events = [none; 64];
        while !self.stop.load(Ordering::Acquire) {
            let count = match epoll::wait(&self.epoll, &mut events, None) {
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(format!("epoll_wait: {error}")),
            };
            for event in &events[..count] {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    NEWS => self.read_news()?,
                    id => self.hear(id),
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) {
        loop {
            let stream = match self.config.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => return self.cannot_accept(&error),
            };
            if self.sessions.len() >= self.places.capacity() + LOOKERS_MAX {
                continue;
            }
            let socket = OwnedFd::from(stream);
            let Ok(uid) = passing::peer_uid(&socket) else {
                continue;
            };
            let id = self.next;
            let flags = EventFlags::IN | EventFlags::RDHUP;
            if epoll::add(&self.epoll, &socket, EventData::new_u64(id), flags).is_ok() {
                self.next += 1;
                self.sessions.insert(id, Session::new(socket, uid));
            }
        }
    }

    /// There was no other client, or no descriptor for it: then it would wake us again at once.
    fn cannot_accept(&mut self, error: &std::io::Error) {
        let full = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
        if full.contains(&error.raw_os_error()) {
            tracing::warn!("no descriptor for another client: {error}");
            self.deaf = epoll::delete(&self.epoll, &self.config.listener).is_ok();
        }
    }

    fn read_news(&mut self) -> Result<(), String> {
        self.event.lower();
        while let Ok(news) = self.news.try_recv() {
            match news {
                News::Ended(result) => {
                    self.serving -= 1;
                    return result;
                }
                News::Broken(id, why) => {
                    tracing::warn!("queue {id} is given up: {why}");
                    let of = |session: &&mut Session| session.queue == Some(id);
                    if let Some(session) = self.sessions.values_mut().find(of) {
                        session.queue = None;
                        let _ = rustix::net::shutdown(&session.socket, rustix::net::Shutdown::Both);
                    }
                }
                News::Removed(id) => {
                    if let Some(place) = self.places.free(id)
                        && let Some(crew) = self.crews.get_mut(place.worker)
                    {
                        crew.queues -= 1;
                    }
                    // A worker gave it up by itself.
                    let of = |session: &&mut Session| session.queue == Some(id);
                    if let Some(session) = self.sessions.values_mut().find(of) {
                        session.queue = None;
                        let _ = rustix::net::shutdown(&session.socket, rustix::net::Shutdown::Both);
                    }
                }
            }
        }
        Ok(())
    }

    /// Something came from a client, or it can be told more, or it is gone.
    fn hear(&mut self, id: u64) {
        let Some(mut session) = self.sessions.remove(&id) else {
            return;
        };
        match self.converse(id, &mut session) {
            Ok(()) => {
                let out = match session.is_sending() {
                    true => EventFlags::OUT,
                    false => EventFlags::IN,
                };
                let flags = out | EventFlags::RDHUP;
                let data = EventData::new_u64(id);
                let _ = epoll::modify(&self.epoll, &session.socket, data, flags);
                self.sessions.insert(id, session);
            }
            Err(Over) => self.leave(&session),
        }
    }

    fn converse(&mut self, id: u64, session: &mut Session) -> Result<(), Over> {
        session.flush()?;
        while let Some(request) = session.receive()? {
            let descriptors = std::mem::take(&mut session.descriptors);
            self.answer(id, session, &request, descriptors)?;
        }
        Ok(())
    }

    fn leave(&mut self, session: &Session) {
        let _ = epoll::delete(&self.epoll, &session.socket);
        if let Some(queue) = session.queue
            && let Some(place) = self.places.find_mut(queue)
        {
            place.leaving = true;
            self.crews[place.worker].send(Message::Remove(queue));
        }
        if std::mem::take(&mut self.deaf) {
            let data = EventData::new_u64(LISTENER);
            let _ = epoll::add(&self.epoll, &self.config.listener, data, EventFlags::IN);
        }
    }

    fn answer(
        &mut self,
        id: u64,
        session: &mut Session,
        request: &Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Over> {
        let mut answer = Answer::to(request);
        let result = match request.operation {
            _ if request.version != VERSION => {
                refuse(Errno::PROTO, format!("version {} is spoken here", VERSION))
            }
            Some(Operation::Open) => self.open(id, session, request, &mut answer),
            Some(Operation::Register) => self.register(session, request, descriptors, &mut answer),
            Some(Operation::Unregister) => self.unregister(session, request),
            Some(Operation::Namespace) => self.namespace(session, request, &mut answer),
            Some(Operation::List) => {
                let text = self.places.list(&self.config);
                answer.d = text.len() as u64;
                return session.answer(&answer, &text, &[]);
            }
            Some(Operation::Identity) => match self.identity(session, request) {
                Ok(identity) => {
                    let text = identity.emit();
                    (answer.a, answer.d) = (identity.controller.into(), text.len() as u64);
                    return session.answer(&answer, &text, &[]);
                }
                Err(refusal) => Err(refusal),
            },
            None => refuse(Errno::OPNOTSUPP, "there is no such operation"),
        };
        match result {
            Ok(passed) => {
                let borrowed: Vec<_> = passed.iter().map(AsFd::as_fd).collect();
                session.answer(&answer, "", &borrowed)
            }
            Err(Refusal(errno, text)) => {
                answer.error = errno.raw_os_error().cast_unsigned();
                answer.d = text.len() as u64;
                session.answer(&answer, &text, &[])
            }
        }
    }
}

fn check(config: &Config) -> Result<(), String> {
    let namespaces = config.namespaces.len();
    if namespaces == 0 || namespaces > NAMESPACES_MAX {
        return Err(format!("{namespaces} namespaces: 1 to {NAMESPACES_MAX}"));
    }
    if config.workers.is_empty() || config.workers.len() > WORKERS_MAX {
        return Err(format!(
            "{} threads: 1 to {WORKERS_MAX}",
            config.workers.len()
        ));
    }
    if config.user_poll.max(config.user_irq) > QUEUES_MAX {
        return Err(format!("at most {QUEUES_MAX} queues of a kind"));
    }
    let is_queue = |it: &crate::Namespace| matches!(it.device, runtime::Device::Queue(_));
    if config.namespaces.iter().any(is_queue) {
        return Err("a queue of another server can't be a namespace".into());
    }
    let wrong = |namespace: &crate::Namespace| {
        !(9..=12).contains(&namespace.block_shift) || namespace.blocks == 0
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
mod tests {
    use super::*;
    use crate::{Namespace, Rights, Trust};
    use runtime::Device;

    #[test]
    fn t10_who_stops_does_not_wait_for_ever_for_a_thread_that_does_not_end() {
        let directory = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(directory.path().join("q")).unwrap();
        let config = Config {
            listener,
            namespaces: vec![Namespace {
                device: Device::Null,
                block_shift: 12,
                blocks: 1,
                read_only: false,
            }],
            identity: None,
            workers: vec![None],
            user_poll: 1,
            user_irq: 0,
            region_bytes_max: 4096,
            spin_ns: 0,
            trust: Trust::Mediated,
            rights: Rights::default(),
        };
        let event = Arc::new(Event::new().unwrap());
        let mut server = Server::new(config, Arc::new(AtomicBool::new(false)), event).unwrap();
        // As one that hangs, it was not told to stop.
        let error = server.part(Duration::ZERO).unwrap_err();
        assert!(error.contains("have not returned for 0 s"), "{error}");
        server.crews[0].send(Message::Stop);
        assert_eq!(server.part(Duration::from_secs(60)), Ok(()));
    }
}
