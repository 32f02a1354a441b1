//! The end of a queue: what becomes of what its server had, and its return.
use super::{Command, Doubt, Doubting, LOST, Line, Missing, QueueBackend};
use crate::device::Done;
use crate::limits::{QUEUE_FAREWELL_NS, QUEUE_SLOTS};
use block::Key;
use engine::machine::DeviceOp;
use sys::Ring;
use sys::os::now_ns;

/// State of a queue whose server is gone.
pub(super) const ENDED: &str = "its server has ended or has given up this queue; it is tried again";
/// State of a queue whose server is healthy.
const GIVEN_BACK: &str = "its server was given this queue back; another one is asked for";

impl QueueBackend {
    /// Releases the queue: nothing waits for the server any more. `id` ends when there is a queue
    /// again.
    #[cold]
    pub(crate) fn let_go(&mut self, ring: &mut Ring, id: u32, results: &mut Vec<Done>) {
        self.let_go = Some(id);
        self.waiting.clear();
        for key in self.requests_in_flight() {
            let it = &mut self.requests[key];
            // A flush too: its failure is reported once, to its requester (T13).
            let is_read = matches!(it.request.op, DeviceOp::Read | DeviceOp::Compare);
            if !is_read && it.out > 0 {
                // Of what was not given out nothing is.
                if it.has_more() {
                    it.result = it.result.and(Err(LOST));
                }
                continue;
            }
            results.push((it.request.id, Err(LOST)));
            // Its commands end unheard.
            let is_its = |it: &mut Command| it.request == key.index();
            for command in &mut self.commands {
                command.take_if(is_its);
            }
            self.requests.remove(key);
        }
        if self.line.is_some() {
            let for_ns = QUEUE_FAREWELL_NS.min(self.device.quiesce_ns);
            let until_ns = now_ns().saturating_add(for_ns);
            self.parting = Some(until_ns);
            self.repair.ring_at(until_ns);
            self.part(ring, results);
        }
    }

    fn requests_in_flight(&self) -> Vec<Key> {
        self.requests.iter().map(|(key, _)| key).collect()
    }

    /// A queue that was let go of is given back when the server has answered all changes and
    /// flushes, or has had its time.
    pub(super) fn part(&mut self, ring: &mut Ring, results: &mut Vec<Done>) {
        let Some(until_ns) = self.parting else { return };
        if self.commands.iter().all(Option::is_none) {
            tracing::info!("{}: given back", self.device.socket.display());
            self.give_back(ring, GIVEN_BACK, results);
        } else if until_ns <= now_ns() {
            let why = "its server hangs: what it has not begun is taken back, and it is tried \
                       again";
            self.lose(ring, why, results);
        }
    }

    /// The server is gone, hangs, or can't be believed: the queue is given back.
    #[cold]
    pub(super) fn lose(&mut self, ring: &mut Ring, why: &str, results: &mut Vec<Done>) {
        if self.line.is_some() {
            tracing::warn!("{}: {why}", self.device.socket.display());
            self.give_back(ring, why, results);
        }
    }

    /// Puts the unanswered commands of its server in doubt.
    fn give_back(&mut self, ring: &mut Ring, why: &str, results: &mut Vec<Done>) {
        self.parting = None;
        self.missing = Some(Missing::new(&self.device, why));
        self.waiting.clear();
        // Answers until now count. The server knows that later ones have no reader, and tells the
        // next flush of them (T13).
        if let Some(line) = self.line.take() {
            let mut heard = Vec::new();
            line.queue.close_with(|done| heard.push(done));
            for done in &heard {
                self.ended(ring, done, results);
            }
        }
        self.commands.fill(None);
        self.free.clear();
        self.free.extend(0..QUEUE_SLOTS);
        for key in self.requests_in_flight() {
            let it = &mut self.requests[key];
            match it.request.op {
                DeviceOp::Flush if self.let_go.is_some() => {
                    results.push((it.request.id, Err(LOST)));
                }
                DeviceOp::Flush => {
                    it.out = 0;
                    self.waiting.push_back(key.index());
                    continue;
                }
                DeviceOp::Read | DeviceOp::Compare => results.push((it.request.id, Err(LOST))),
                _ if it.out == 0 => results.push((it.request.id, Err(LOST))),
                _ => self.doubtful.push(it.request.id),
            }
            self.requests.remove(key);
        }
        self.unwatch(ring, 2);
        self.repair.begin(&self.device);
    }

    /// Says which changes wait for a server that was given up, and until when.
    #[cold]
    pub(super) fn tell_doubt(&mut self) {
        let (changes, until_ns) = match self.parting {
            // If it does not answer.
            Some(until_ns) => {
                let requests = self.requests.iter();
                let changes = requests.filter(|(_, it)| it.request.op.is_change());
                (
                    changes.count(),
                    until_ns.saturating_add(self.device.quiesce_ns),
                )
            }
            None => (self.doubtful.len(), self.repair.quiet_ns()),
        };
        let doubt = Doubt {
            changes: changes as u32,
            until_ns,
        };
        if !self.doubting.as_ref().is_some_and(|it| it.is(doubt)) {
            self.doubting = None;
            if changes > 0 {
                self.doubting = Some(Doubting::new(&self.device, doubt));
            }
        }
    }

    /// Nothing more will be heard of the first `count` of what is watched.
    pub(crate) fn unwatch(&mut self, ring: &mut Ring, count: usize) {
        for watch in &mut self.watches[..count] {
            if let Some(watch) = watch.take() {
                ring.cancel(watch);
            }
        }
    }

    /// There is a queue again, or what the lost server had is not executed any more.
    #[cold]
    pub(super) fn repaired(&mut self, ring: &mut Ring, results: &mut Vec<Done>) {
        self.repair.event.lower();
        self.part(ring, results);
        if self.repair.is_quiet() {
            results.extend(self.doubtful.drain(..).map(|id| (id, Err(LOST))));
        }
        if let Some(queue) = self.repair.take() {
            // It may have been on its way when the path was failed by hand.
            let wanted = self.device.standing.is_wanted();
            self.line = Some(queue).filter(|_| wanted).and_then(Line::new);
            match self.line {
                Some(_) => {
                    self.missing = None;
                    tracing::info!("{}: back again", self.device.socket.display());
                    results.extend(self.let_go.take().map(|id| (id, Ok(()))));
                    self.refill(ring, results);
                }
                None => self.repair.begin(&self.device),
            }
        }
    }
}
