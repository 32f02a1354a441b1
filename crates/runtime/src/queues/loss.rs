//! The end of a queue: what becomes of what its server had, and its return.
use super::{LOST, Line, QueueBackend};
use crate::device::Done;
use crate::limits::QUEUE_SLOTS;
use engine::machine::DeviceOp;
use sys::Ring;

/// What is said of a server that is gone.
pub(super) const ENDED: &str = "its server has ended or has given up this queue; it is tried again";

impl QueueBackend {
    /// The server does not answer in time, and nobody waits for it any more. `id` ends when there
    /// is a queue again.
    #[cold]
    pub(crate) fn let_go(&mut self, ring: &mut Ring, id: u32, results: &mut Vec<Done>) {
        let why = "its server hangs: what it has not begun is taken back, and it is tried again";
        self.lose(ring, why, results);
        // Flushes: the next queue's are other ones.
        while let Some(at) = self.waiting.pop_front() {
            if let Some(it) = self.requests[at as usize].take() {
                results.push((it.request.id, Err(LOST)));
                self.vacant.push(at);
            }
        }
        match self.line {
            Some(_) => results.push((id, Ok(()))),
            None => self.let_go = Some(id),
        }
    }

    /// The server is gone, hangs, or can't be believed: the queue is given back.
    #[cold]
    pub(super) fn lose(&mut self, ring: &mut Ring, why: &str, results: &mut Vec<Done>) {
        if self.line.take().is_none() {
            return;
        }
        tracing::warn!("{}: {why}", self.device.socket.display());
        self.waiting.clear();
        self.commands.fill(None);
        self.free.clear();
        self.free.extend(0..QUEUE_SLOTS);
        for (at, place) in (0..).zip(&mut self.requests) {
            let Some(it) = place else { continue };
            match it.request.op {
                DeviceOp::Flush => {
                    it.out = 0;
                    self.waiting.push_back(at);
                    continue;
                }
                DeviceOp::Read | DeviceOp::Compare => results.push((it.request.id, Err(LOST))),
                _ if it.out == 0 => results.push((it.request.id, Err(LOST))),
                _ => self.doubtful.push(it.request.id),
            }
            *place = None;
            self.vacant.push(at);
        }
        self.unwatch(ring, 2);
        self.repair.begin(&self.device);
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
        if self.repair.is_quiet() {
            results.extend(self.doubtful.drain(..).map(|id| (id, Err(LOST))));
        }
        if let Some(queue) = self.repair.take() {
            self.line = Line::new(queue);
            match self.line {
                Some(_) => {
                    tracing::info!("{}: back again", self.device.socket.display());
                    results.extend(self.let_go.take().map(|id| (id, Ok(()))));
                    self.refill(ring, results);
                }
                None => self.repair.begin(&self.device),
            }
        }
    }
}
