//! Devices that are queues: a reactor's turn goes by all of them.
use super::{Backend, Devices};
use crate::queues::Watched;
use sys::{Errno, Ring};

impl Devices {
    /// Submits what was begun on queues.
    #[inline]
    pub(crate) fn turn_queues(&mut self, ring: &mut Ring) {
        for &at in &self.queues {
            if let Backend::Queue(queue) = &mut self.backends[at] {
                queue.turn(ring, &mut self.results);
            }
        }
    }

    /// Releases a queue without waiting for its late commands. Requests to other devices can't be
    /// taken back.
    pub(crate) fn let_go(&mut self, ring: &mut Ring, device: usize, id: u32) {
        match &mut self.backends[device] {
            Backend::Queue(queue) => queue.let_go(ring, id, &mut self.results),
            _ => self.results.push((id, Ok(()))),
        }
    }

    /// Takes what has ended on queues.
    #[inline]
    pub(crate) fn reap_queues(&mut self, ring: &mut Ring) {
        for &at in &self.queues {
            if let Backend::Queue(queue) = &mut self.backends[at] {
                queue.reap(ring, &mut self.results);
            }
        }
    }

    /// Whether something has ended on a queue.
    #[inline]
    pub(crate) fn is_queue_ready(&self) -> bool {
        let ready = |at: &usize| match &self.backends[*at] {
            Backend::Queue(queue) => queue.is_ready(),
            _ => false,
        };
        self.queues.iter().any(ready)
    }

    /// Queues are to wake this thread; `false`: something has ended meanwhile.
    pub(crate) fn arm_queues(&mut self) -> bool {
        let backends = &mut self.backends;
        self.queues.iter().all(|&at| match &mut backends[at] {
            Backend::Queue(queue) => queue.arm(),
            _ => true,
        })
    }

    /// A descriptor watched for a queue has become readable; the queue may be gone already.
    pub(crate) fn queue_woken(&mut self, ring: &mut Ring, tag: u32, result: Result<u32, Errno>) {
        if result.is_err() {
            return;
        }
        for &at in &self.queues {
            if let Backend::Queue(queue) = &mut self.backends[at]
                && queue.serial() == tag >> 2
                && let Some(what) = Watched::from_bits(tag)
            {
                queue.woken(ring, what, &mut self.results);
            }
        }
    }
}

/// Which of them are queues.
pub(super) fn of(backends: &[Backend]) -> Vec<usize> {
    let all = 0..backends.len();
    all.filter(|&at| matches!(backends[at], Backend::Queue(_)))
        .collect()
}
