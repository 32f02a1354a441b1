//! The ublk queues of one core of an engine: between the driver and the core's ublk server.
//!
//! # Contract
//! Driven by the core's reactor, before and after each turn of its engine, on whose thread alone
//! the queues fetch. Payload is copied once, by a system call between the driver's memory and the
//! core's arena. The reactor's sleep ends when a ring has a completion.
//!
//! When the engine drains, requests that come are left in the driver, and so are those that fail:
//! the next engine gets them. A reactor that panics ends the process: the driver does not notice
//! the death of a thread whose process has the rings mapped, and clients would wait for ever.
use broker::CoreQueues;
use engine::machine::Memory;
use engine::{Core, UblkOp, UblkRequest};
use std::os::fd::AsFd;
use std::sync::mpsc::SyncSender;
use sys::Errno;
use sys::ublk::{Descriptor, Fetched, Op, UblkQueue};

/// EIO, as requests end with it.
const EIO: i32 = -5;

/// A queue of a node, for the core that serves it.
pub struct NodeQueue {
    /// The engine's number of it, which none ever had.
    pub number: u32,
    /// The volume.
    pub volume: u16,
    /// Name of the node in messages.
    pub node: String,
    /// Its ring; nothing was fetched yet.
    pub queue: UblkQueue,
}

/// A message to the core that serves queues of nodes.
pub enum UblkControl {
    /// Serve it; says how that began.
    Attach(Box<NodeQueue>, SyncSender<Begun>),
    /// Serve it no more, its device was stopped; says so when its requests have ended.
    Detach(u32, SyncSender<()>),
}

/// How a core began to serve a queue.
pub enum Begun {
    /// It serves it.
    Serves,
    /// Nothing was fetched, which may be tried again.
    NotYet(Box<NodeQueue>, Errno),
    /// The driver refuses it.
    Refused(Errno),
}

struct Served {
    of: Box<NodeQueue>,
    closing: Option<SyncSender<()>>,
}

/// See the module.
#[derive(Default)]
pub struct CoreUblk {
    queues: Vec<Served>,
    is_stopping: bool,
    notes: Vec<String>,
}

impl CoreUblk {
    /// A message. `wakes`: wakes this core's reactor.
    pub fn handle(&mut self, message: UblkControl, core: &mut Core, wakes: &CoreQueues) {
        match message {
            UblkControl::Attach(mut of, begun) => {
                if let Err(error) = sys::os::set_io_flusher() {
                    let what = "the system may wait for it while it makes room in memory";
                    self.note(&of.node, what, error);
                }
                let answer = match fetch_first(&mut of.queue, wakes) {
                    Ok(()) => {
                        core.open_ublk_queue(of.number, of.volume, &of.node);
                        self.queues.push(Served { of, closing: None });
                        Begun::Serves
                    }
                    Err(error) if of.queue.has_fetched() => Begun::Refused(error),
                    Err(error) => Begun::NotYet(of, error),
                };
                // One that does not wait any more gives the node up.
                let _ = begun.try_send(answer);
            }
            UblkControl::Detach(number, done) => {
                let mut all = self.queues.iter_mut();
                match all.find(|it| it.of.number == number) {
                    Some(it) => it.closing = Some(done),
                    None => drop(done), // it could not be served
                }
                self.end_queues(core, wakes);
            }
        }
    }

    /// The engine drains: no request begins any more.
    pub fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Lines for users.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    fn note(&mut self, node: &str, what: &str, error: Errno) {
        self.notes.push(format!("{node}: {what}: {error}"));
    }

    /// Begins requests, before a turn of the engine.
    #[inline]
    pub fn begin(&mut self, core: &mut Core, memory: &mut dyn Memory, now_ns: u64) {
        if !self.queues.is_empty() {
            self.fetch(core, memory, now_ns);
        }
    }

    fn fetch(&mut self, core: &mut Core, memory: &mut dyn Memory, now_ns: u64) {
        for at in 0..self.queues.len() {
            let it = &mut self.queues[at].of;
            if !it.queue.has_news() {
                continue;
            }
            if let Err(error) = it.queue.submit() {
                let node = it.node.clone();
                self.note(&node, "cannot enter a ring", error);
                continue;
            }
            let mut failed = None;
            while let Some(fetched) = it.queue.next_fetched() {
                match fetched {
                    // Whatever it is, it is repeated to the next server.
                    Fetched::Request(..) if self.is_stopping => {}
                    Fetched::Request(tag, of) => {
                        let request = request(it.number, tag, of);
                        let begun = request.is_some_and(|it| core.begin_ublk_request(it, now_ns));
                        if !begun {
                            it.queue.commit(tag, EIO);
                        }
                    }
                    // The device was stopped.
                    Fetched::Ended(_, Errno::NODEV) => {}
                    Fetched::Ended(_, error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                let node = it.node.clone();
                self.note(&node, "the driver takes no more of a queue", error);
            }
        }
        self.load(core, memory, now_ns);
    }

    fn queue(&mut self, number: u32) -> &mut UblkQueue {
        let found = self.queues.iter_mut().find(|it| it.of.number == number);
        let Some(it) = found else {
            unreachable!("queue {number} stays until its requests have ended");
        };
        &mut it.of.queue
    }

    /// Copies payload of writes to the arena.
    fn load(&mut self, core: &mut Core, memory: &mut dyn Memory, now_ns: u64) {
        while let Some(load) = core.ublk().next_load() {
            let queue = self.queue(load.queue);
            match queue.read_payload(load.tag, memory.bytes_mut(load.span)) {
                Ok(()) => core.ublk_payload_loaded(load.id, now_ns),
                Err(_) => core.ublk_payload_lost(load.id),
            }
        }
    }

    /// Ends requests, after a turn of the engine.
    #[inline]
    pub fn finish(
        &mut self,
        core: &mut Core,
        memory: &mut dyn Memory,
        wakes: &CoreQueues,
        now_ns: u64,
    ) {
        if !self.queues.is_empty() {
            self.answer(core, memory, now_ns);
            self.end_queues(core, wakes);
        }
    }

    fn answer(&mut self, core: &mut Core, memory: &mut dyn Memory, now_ns: u64) {
        loop {
            self.load(core, memory, now_ns);
            let Some(done) = core.ublk().next_done() else {
                break;
            };
            if let Some(mut result) = done.result {
                let queue = self.queue(done.queue);
                if let Some(span) = done.read
                    && queue.write_payload(done.tag, memory.bytes(span)).is_err()
                {
                    result = EIO;
                }
                queue.commit(done.tag, result);
            }
            core.release_ublk_request(done.id, done.result.is_some());
        }
        for at in 0..self.queues.len() {
            let it = &mut self.queues[at].of;
            if let Err(error) = it.queue.submit() {
                let node = it.node.clone();
                self.note(&node, "cannot enter a ring", error);
            }
        }
    }

    /// Removes queues that are to close and whose requests have ended.
    fn end_queues(&mut self, core: &mut Core, wakes: &CoreQueues) {
        self.queues.retain_mut(|it| {
            if it.closing.is_none() || core.ublk().has_requests(it.of.number) {
                return true;
            }
            wakes.unwatch(it.of.queue.as_fd());
            core.ublk().close(it.of.number);
            it.closing = None; // its receiver hears of it
            false
        });
    }

    /// Whether the reactor may sleep.
    pub fn may_sleep(&mut self) -> bool {
        !self.queues.iter_mut().any(|it| it.of.queue.has_news())
    }
}

impl Drop for CoreUblk {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.queues.is_empty() {
            std::process::abort();
        }
    }
}

/// Fetches for the first time.
fn fetch_first(queue: &mut UblkQueue, wakes: &CoreQueues) -> Result<(), Errno> {
    wakes.watch(queue.as_fd())?;
    let fetched = queue.fetch_all();
    if let Err(error) = fetched {
        wakes.unwatch(queue.as_fd());
        return Err(error);
    }
    match queue.next_fetched() {
        None => Ok(()),
        Some(Fetched::Ended(_, error)) => Err(error),
        Some(Fetched::Request(..)) => unreachable!("requests come once the device is started"),
    }
}

/// A request in the engine's words; `None`: no node of ours announces such.
fn request(queue: u32, tag: u16, of: Descriptor) -> Option<UblkRequest> {
    let op = match of.op {
        Op::Read => UblkOp::Read,
        Op::Write { fua } => UblkOp::Write { fua },
        Op::Flush => UblkOp::Flush,
        Op::Discard => UblkOp::Discard,
        Op::WriteZeroes { fua } => UblkOp::WriteZeroes { fua },
        Op::Other(_) => return None,
    };
    Some(UblkRequest {
        queue,
        tag,
        op,
        offset: of.offset,
        bytes: of.bytes,
    })
}
