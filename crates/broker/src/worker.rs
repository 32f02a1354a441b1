//! A thread that serves queues: looks at all of them in turn, and sleeps when there is nothing to
//! do for a while.
//!
//! # Contract
//! It ends when it was told to, its queues' last commands have ended, and the files that it may
//! have written are flushed; its end is told in any case.
//! Before it sleeps it says so in every queue, then looks once more at every queue and at its
//! mailbox. Queues' kicks are never read: a client could make that wait. They are watched by their
//! edges instead.
use crate::files::{Ended, Files, NO_LANE};
use crate::lane::{Executor, GivenUp, Lane, ThreadTally};
use crate::limits::{CLOCK_TURNS, FILE_OPERATIONS_MAX, MAILBOX_TURNS, NAMESPACES_MAX, TURN_BYTES};
use crate::order::{Begun, Orders};
use crate::session::Brought;
use crate::transfer::Region;
use crate::volume::Post;
use crate::{Identity, Namespace};
use queue::protocol::Request;
use runtime::RuntimeError;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use sys::os::{Event, now_ns};
use sys::{Arena, Errno, Fd, Ring, RingConfig, Wait};

/// Tag of the operation that waits for kicks; those of files are 32 bits.
const KICKS: u64 = u64::MAX - 1;
/// The worker's own event among the kicks.
const MAILBOX: u64 = u64::MAX;

/// To a worker.
pub enum Message {
    /// A queue to serve.
    Add(Box<Lane>),
    /// Its client is gone.
    Remove(u64),
    /// Registered memory comes or goes.
    Region(u64, usize, Option<Region>),
    /// A request to a volume, by its tag: its bytes, or why not.
    Ended(u64, Result<u32, Errno>),
    /// A change, by its slot and ticket, waits no more for those that it overlaps.
    Begun(Begun),
    /// Everything ends.
    Stop,
}

/// To the socket's thread, from workers and from connections.
pub enum News {
    /// A queue that was to be removed, or was given up, has ended. Dropping it takes time.
    Removed(u64, Box<Lane>),
    /// Memory that no command uses any more. Dropping it takes time.
    Let(Vec<Region>),
    /// Registered memory came or went: this thread knows. The memory of before.
    Region(u64, Option<Region>),
    /// Another set of namespaces, for queues that are opened from now on.
    Namespaces(Vec<Namespace>, Option<Identity>),
    /// A client asks.
    Heard(u64, Request, Brought),
    /// A connection is at its end.
    Gone(u64),
    /// A connection of a user is closed.
    Closed(u32),
    /// A queue was given up.
    Broken(u64, GivenUp),
    /// The thread has ended: as it was told to, or because it can't go on.
    Ended(Result<(), String>),
}

/// Parts of a worker.
pub struct Plan {
    pub cpu: Option<usize>,
    pub spin_ns: u64,
    pub namespaces: Arc<[Namespace]>,
    /// Of changes, with all other threads.
    pub orders: Orders,
    pub mailbox: Receiver<Message>,
    /// How it is filled.
    pub post: Post,
    pub news: Sender<News>,
    /// Raised with each piece of news.
    pub news_event: Arc<Event>,
    /// Its counters.
    pub tally: Arc<ThreadTally>,
}

/// See the module.
pub struct Worker {
    plan: Plan,
    lanes: Vec<Option<Box<Lane>>>,
    files: Files,
    kicks: Fd,
    /// Interrupts that were raised.
    raised: u64,
    /// The ring waits for kicks.
    watching: bool,
    stopping: bool,
    /// Files that are still being flushed, before it ends; `None`: it is not that far.
    flushing: Option<u32>,
    /// NSIDs of files that could not be, or of which nobody was told what was lost before.
    unflushed: Vec<usize>,
}

/// Tells of the end of a thread, also when it panics.
struct Parting {
    result: Result<(), String>,
    news: Sender<News>,
    event: Arc<Event>,
}

impl Drop for Parting {
    fn drop(&mut self) {
        let result = std::mem::replace(&mut self.result, Ok(()));
        let _ = self.news.send(News::Ended(result));
        self.event.raise();
    }
}

/// Serves until it is told to stop. Runs in a thread of its own. Reports first whether it can
/// serve: its ring belongs to this thread.
pub fn run(plan: Plan, ready: &SyncSender<Result<(), String>>) {
    let mut parting = Parting {
        result: Err("a thread that serves queues panicked".into()),
        news: plan.news.clone(),
        event: Arc::clone(&plan.news_event),
    };
    if let Some(cpu) = plan.cpu
        && let Err(error) = sys::os::pin(cpu)
    {
        tracing::warn!("cannot pin a thread to CPU {cpu}: {error}");
    }
    let made = Worker::new(plan);
    let can_serve = made.as_ref().map(|_| ()).map_err(String::clone);
    parting.result = match ready.send(can_serve) {
        Ok(()) => made.and_then(|mut worker| worker.serve()),
        Err(_) => Ok(()),
    };
}

impl Worker {
    pub fn new(plan: Plan) -> Result<Self, String> {
        let config = RingConfig {
            operations_max: (FILE_OPERATIONS_MAX + NAMESPACES_MAX) as u32 + 2,
            buffers: 1,
            buffers_lent: 1,
            buffer_bytes: 4096,
        };
        let arena = Arena::new(4096).map_err(|error| error.to_string())?;
        let ring = Ring::new(&config, arena).map_err(|error| {
            let source = error.source;
            format!(
                "{}: {source}",
                RuntimeError::ring("a thread for queues", error)
            )
        })?;
        let files = Files::new(ring, &plan.namespaces, &plan.orders, &plan.post)?;
        let kicks = epoll::create(CreateFlags::CLOEXEC).map_err(|error| error.to_string())?;
        epoll::add(
            &kicks,
            &*plan.post.event,
            EventData::new_u64(MAILBOX),
            EventFlags::IN,
        )
        .map_err(|error| error.to_string())?;
        Ok(Self {
            plan,
            lanes: Vec::new(),
            files,
            kicks: Fd::new(kicks),
            raised: 0,
            watching: false,
            stopping: false,
            flushing: None,
            unflushed: Vec::new(),
        })
    }

    fn serve(&mut self) -> Result<(), String> {
        let mut idle_since_ns = 0;
        let mut turns = 0_u32;
        loop {
            turns = turns.wrapping_add(1);
            let busy = self.turn();
            let has_mail = self.plan.post.has_mail.load(Ordering::Relaxed);
            if !busy || has_mail || turns.is_multiple_of(MAILBOX_TURNS) {
                self.read_mailbox();
                if self.is_over() {
                    return self.flushed();
                }
            }
            if busy {
                idle_since_ns = 0;
                continue;
            }
            std::hint::spin_loop();
            if !turns.is_multiple_of(CLOCK_TURNS) && self.plan.spin_ns > 0 {
                continue;
            }
            let now_ns = now_ns();
            if idle_since_ns == 0 {
                idle_since_ns = now_ns;
            }
            if now_ns - idle_since_ns >= self.plan.spin_ns {
                self.sleep()
                    .map_err(|error| format!("io_uring_enter: {error}"))?;
                idle_since_ns = 0;
            }
        }
    }

    /// Whether it was told to stop and nothing is left to be done. When the last queue is gone, the
    /// files are flushed: whoever wrote to them may never have asked for it.
    pub fn is_over(&mut self) -> bool {
        if !self.stopping || self.lanes.iter().any(Option::is_some) {
            return false;
        }
        let files = &mut self.files;
        *self.flushing.get_or_insert_with(|| files.flush_files()) == 0
    }

    pub fn flushed(&self) -> Result<(), String> {
        if self.unflushed.is_empty() {
            return Ok(());
        }
        let name = |&nsid: &usize| {
            let store = &self.plan.namespaces[nsid - 1].device;
            format!("namespace {nsid} ({})", store.name())
        };
        let all: Vec<_> = self.unflushed.iter().map(name).collect();
        Err(format!(
            "what was written to {} may be lost: it can't be flushed, or was lost before and \
             nobody was told (see what is wrong with the storage)",
            all.join(", ")
        ))
    }

    /// One look at everything; whether there was anything to do.
    #[inline]
    pub fn turn(&mut self) -> bool {
        let (mut count, mut raised) = (0, 0);
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            let Some(lane) = lane else { continue };
            count += u32::from(lane.turn(at, &self.plan.namespaces, &mut self.files));
            raised += u64::from(lane.interrupt(|| Some(now_ns())));
        }
        if raised > 0 {
            self.entered(raised);
        }
        if self.files.wants_enter() {
            self.files.ask();
            if self.files.ring().wants_enter() {
                // An error comes back when it goes to sleep.
                let _ = self.files.ring().enter(Wait::No);
                self.entered(0);
            }
        }
        count += self.reap();
        count > 0
    }

    /// Tells how often the kernel was entered, `raised` more times for interrupts.
    #[cold]
    fn entered(&mut self, raised: u64) {
        self.raised += raised;
        let enters = self.files.ring().enters() + self.raised;
        self.plan.tally.enters.store(enters, Ordering::Relaxed);
    }

    fn reap(&mut self) -> u32 {
        let (mut count, mut kicked, mut raised) = (0, false, 0);
        // Bytes that are copied for reads count: the rest is the next turn's.
        let most = self.files.copied() + TURN_BYTES;
        while self.files.copied() < most
            && let Some(ended) = self.files.next_ended(&mut kicked)
        {
            let Ended { job, status, .. } = ended;
            count += 1;
            if job.lane == NO_LANE {
                self.flushing = self.flushing.map(|left| left - 1);
                if !status.is_success() {
                    self.unflushed.push(job.namespace + 1);
                }
            }
            if let Some(Some(lane)) = self.lanes.get_mut(job.lane) {
                if !lane.ended(job.cid, status) {
                    self.files.unheard(&ended);
                }
                raised += u64::from(lane.interrupt(|| Some(now_ns())));
            }
        }
        if raised > 0 {
            self.entered(raised);
        }
        if kicked {
            self.watching = false;
        }
        count
    }

    /// Sleeps until a queue is kicked, a message comes, or a request to a file has ended.
    #[cold]
    pub fn sleep(&mut self) -> Result<(), Errno> {
        self.end_lanes();
        let (mut is_waiting, mut raised) = (false, 0);
        for lane in self.lanes.iter_mut().flatten() {
            raised += u64::from(lane.interrupt(|| None));
            lane.doze();
        }
        for lane in self.lanes.iter_mut().flatten() {
            is_waiting |= lane.is_waiting();
        }
        // Changes that were asked for go to the kernel at once: whether they may was looked at
        // then.
        let asked = !is_waiting && self.files.ask();
        if !is_waiting && !asked && self.files.ring().wants_enter() {
            self.files.ring().enter(Wait::No)?;
        }
        if asked {
            let ring = self.files.ring();
            if !self.watching {
                ring.poll_readable(&self.kicks, KICKS);
                self.watching = true;
            }
            ring.enter(Wait::Forever)?;
        }
        for lane in self.lanes.iter().flatten() {
            lane.wake();
        }
        self.entered(raised);
        self.plan.tally.sleeps.fetch_add(1, Ordering::Relaxed);
        self.reap();
        let mut events = [const {
            epoll::Event {
                flags: EventFlags::empty(),
                data: EventData::new_u64(0),
            }
        }; 64];
        // Events that don't fit come the next time.
        let _ = epoll::wait(
            &self.kicks,
            &mut events,
            Some(&rustix::event::Timespec::default()),
        );
        self.plan.post.event.lower();
        self.read_mailbox();
        Ok(())
    }

    pub fn read_mailbox(&mut self) {
        // Before it is read: what comes behind that sets it again.
        self.plan.post.has_mail.swap(false, Ordering::Acquire);
        while let Ok(message) = self.plan.mailbox.try_recv() {
            match message {
                Message::Add(lane) => self.add(lane),
                Message::Remove(id) => self.remove(|lane| lane.id == id),
                Message::Ended(tag, result) => self.files.ended(tag, result),
                Message::Begun(begun) => self.files.begun(begun),
                Message::Stop => {
                    self.stopping = true;
                    self.remove(|_| true);
                }
                Message::Region(id, number, region) => {
                    let lanes = self.lanes.iter_mut().flatten();
                    let old = match lanes.into_iter().find(|lane| lane.id == id) {
                        Some(lane) => lane.set_region(number, region),
                        None => region,
                    };
                    self.tell(News::Region(id, old));
                }
            }
        }
        self.end_lanes();
    }

    fn add(&mut self, lane: Box<Lane>) {
        let edges = EventFlags::IN | EventFlags::ET;
        let watched = epoll::add(&self.kicks, &lane.kick, EventData::new_u64(lane.id), edges);
        if let Err(error) = watched {
            tracing::warn!("queue {}: cannot watch for kicks: {error}", lane.id);
            return self.tell(News::Removed(lane.id, lane));
        }
        match self.lanes.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(lane),
            None => self.lanes.push(Some(lane)),
        }
    }

    fn remove(&mut self, which: impl Fn(&Lane) -> bool) {
        for at in 0..self.lanes.len() {
            if self.lanes[at].as_ref().is_some_and(|lane| which(lane)) {
                self.close(at);
            }
        }
    }

    /// Nothing of a queue is begun any more. Its memory goes at once but for what its commands use
    /// that are under way.
    fn close(&mut self, at: usize) {
        if let Some(lane) = &mut self.lanes[at]
            && !lane.closing
        {
            let regions = lane.close();
            self.files.cancel(at, None);
            self.tell(News::Let(regions));
        }
    }

    /// Takes leave of lanes whose last command has ended.
    fn end_lanes(&mut self) {
        for at in 0..self.lanes.len() {
            let Some(lane) = &mut self.lanes[at] else {
                continue;
            };
            if let Some(why) = lane.broken
                && !lane.closing
            {
                let id = lane.id;
                self.close(at);
                self.tell(News::Broken(id, why));
            }
            let is_over = |lane: &mut Box<Lane>| lane.closing && lane.is_idle();
            if let Some(lane) = self.lanes[at].as_ref().filter(|lane| lane.closing) {
                lane.await_of(self.files.namespaces_of(at));
            }
            if let Some(lane) = self.lanes[at].take_if(is_over) {
                let _ = epoll::delete(&self.kicks, &lane.kick);
                self.files.forget(at);
                self.tell(News::Removed(lane.id, lane));
            }
        }
    }

    fn tell(&self, news: News) {
        let _ = self.plan.news.send(news);
        self.plan.news_event.raise();
    }
}

#[cfg(test)]
mod tests;
