//! Replacement of a lost queue: another one is tried for, and late execution by the lost one is
//! waited for. In a thread, for opening a queue may take time.
use super::QueueDevice;
use crate::limits::{QUEUE_RETRY_NS_MAX, QUEUE_RETRY_NS_MIN};
use queue::Queue;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use sys::Errno;
use sys::os::{Event, now_ns};

/// State shared by the thread and the reactor; the reactor dropped it: the thread ends.
pub(super) struct Repair {
    /// Raised when one of these has changed.
    pub event: Event,
    found: Mutex<Option<Queue>>,
    /// When nothing that a lost server had is executed any more.
    quiet_ns: AtomicU64,
}

impl Repair {
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            event: Event::new()?,
            found: Mutex::new(None),
            quiet_ns: AtomicU64::new(0),
        })
    }

    /// The server was lost now.
    pub fn begin(self: &Arc<Self>, device: &Arc<QueueDevice>) {
        let quiet_ns = now_ns().saturating_add(device.quiesce_ns);
        self.quiet_ns.store(quiet_ns, Ordering::Release);
        let (repair, device) = (Arc::downgrade(self), Arc::clone(device));
        let mend = move || {
            let (mut wait_ns, mut found) = (QUEUE_RETRY_NS_MIN, false);
            while let Some(repair) = repair.upgrade() {
                if !found && device.standing.is_wanted() {
                    match device.queue() {
                        Ok(queue) => {
                            repair.put(queue);
                            found = true;
                        }
                        Err(error) => device.standing.refused(&error),
                    }
                }
                let left_ns = quiet_ns.saturating_sub(now_ns());
                if left_ns == 0 {
                    repair.event.raise();
                    if found {
                        return;
                    }
                }
                drop(repair);
                let most_ns = if left_ns == 0 { u64::MAX } else { left_ns };
                let wait = Duration::from_nanos(wait_ns.min(most_ns));
                match found {
                    true => std::thread::sleep(wait),
                    // Less long, if that is what it waits for.
                    false => device.standing.wait(wait),
                }
                wait_ns = (2 * wait_ns).min(QUEUE_RETRY_NS_MAX);
            }
        };
        let thread = std::thread::Builder::new().name("queue-repair".into());
        if let Err(error) = thread.spawn(mend) {
            tracing::error!("cannot start a thread to open a queue again: {error}");
        }
        self.ring_at(quiet_ns);
    }

    /// Raises the event then. By a thread of its own: a server that hangs keeps the other one.
    pub fn ring_at(self: &Arc<Self>, at_ns: u64) {
        let repair = Arc::downgrade(self);
        let ring = move || {
            std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns())));
            if let Some(repair) = repair.upgrade() {
                repair.event.raise();
            }
        };
        let thread = std::thread::Builder::new().name("queue-timer".into());
        if let Err(error) = thread.spawn(ring) {
            tracing::error!("cannot start a thread to wait for a lost queue: {error}");
        }
    }

    /// There is another queue.
    fn put(&self, queue: Queue) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
        self.event.raise();
    }

    pub fn is_quiet(&self) -> bool {
        self.quiet_ns() <= now_ns()
    }

    pub fn quiet_ns(&self) -> u64 {
        self.quiet_ns.load(Ordering::Acquire)
    }

    pub fn take(&self) -> Option<Queue> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.take()
    }
}
