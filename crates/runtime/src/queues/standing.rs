//! State that all reactors' queues of one namespace share: whether they are wanted, and what keeps
//! those that are missing.
//!
//! # Contract
//! Locked when a queue comes or goes and by who asks for it, never for a request.
use super::QueueDevice;
use crate::RuntimeError;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Standing {
    now: Mutex<Now>,
    wanted: Condvar,
}

#[derive(Debug, Default)]
struct Now {
    unwanted: bool,
    /// Reactors without a queue.
    missing: u32,
    /// Why the last one that lost its queue did; empty: none has.
    lost: String,
    /// Message of the last failed attempt to open another one; empty: there was none.
    refused: String,
    /// Of the reactors that hold changes.
    doubts: Vec<Arc<Doubt>>,
}

/// Changes that a server had which was given up: it may yet execute them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// How many.
    pub changes: u32,
    /// Until when, ns of [`crate::now_ns`].
    pub until_ns: u64,
}

/// While it is there, a reactor holds these.
#[derive(Debug)]
pub(super) struct Doubting(Arc<QueueDevice>, Arc<Doubt>);

impl Doubting {
    pub(super) fn new(device: &Arc<QueueDevice>, doubt: Doubt) -> Self {
        let doubt = Arc::new(doubt);
        device.standing.now().doubts.push(Arc::clone(&doubt));
        Self(Arc::clone(device), doubt)
    }

    pub(super) fn is(&self, doubt: Doubt) -> bool {
        *self.1 == doubt
    }
}

impl Drop for Doubting {
    fn drop(&mut self) {
        let mut now = self.0.standing.now();
        now.doubts.retain(|it| !Arc::ptr_eq(it, &self.1));
    }
}

/// While it is there, a reactor has no queue.
#[derive(Debug)]
pub(super) struct Missing(Arc<QueueDevice>);

impl Missing {
    pub(super) fn new(device: &Arc<QueueDevice>, why: &str) -> Self {
        let mut now = device.standing.now();
        now.missing += 1;
        now.lost = why.to_owned();
        now.refused.clear();
        drop(now);
        Self(Arc::clone(device))
    }
}

impl Drop for Missing {
    fn drop(&mut self) {
        let mut now = self.0.standing.now();
        assert!(now.missing > 0, "a queue is back that was not missing");
        now.missing -= 1;
    }
}

impl Standing {
    fn now(&self) -> MutexGuard<'_, Now> {
        // Every change to it is one assignment, so a panic leaves nothing half done.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_wanted(&self) -> bool {
        !self.now().unwanted
    }

    /// Another queue can't be had, for this reason.
    pub(super) fn refused(&self, why: &RuntimeError) {
        let text = match why {
            RuntimeError::Queue { source, .. } => format!("{source}{}", source.advice()),
            other => other.to_string(),
        };
        self.now().refused = text;
    }

    /// Waits so long, or until queues are wanted again that were not.
    pub(super) fn wait(&self, limit: Duration) {
        let now = self.now();
        let before = now.unwanted;
        let goes_on = |now: &mut Now| now.unwanted || !before;
        let waited = self.wanted.wait_timeout_while(now, limit, goes_on);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl QueueDevice {
    /// Sets whether queues are to be had at all. While they are not, a queue that is given back is
    /// not replaced; open queues stay.
    pub fn set_wanted(&self, wanted: bool) {
        self.standing.now().unwanted = !wanted;
        self.standing.wanted.notify_all();
    }

    /// Changes that wait because a server that was given up may yet execute them (T9), of all
    /// reactors; `None`: there are none.
    pub fn doubt(&self) -> Option<Doubt> {
        let now = self.standing.now();
        let all = now.doubts.iter();
        all.map(|it| **it).reduce(|sum, it| Doubt {
            changes: sum.changes.saturating_add(it.changes),
            until_ns: sum.until_ns.max(it.until_ns),
        })
    }

    /// Whether a queue of some reactor was ever lost or given back, also where each has another
    /// one now.
    pub fn was_lost(&self) -> bool {
        !self.standing.now().lost.is_empty()
    }

    /// Why some reactor has no queue now, and what to do; `None`: each has one.
    pub fn hindrance(&self) -> Option<String> {
        let now = self.standing.now();
        if now.missing == 0 {
            return None;
        }
        let socket = self.socket.display();
        let lost = match now.lost.strip_prefix("its server") {
            Some(rest) => format!("its queue server on {socket}{rest}"),
            None => format!("its queue server on {socket}: {}", now.lost),
        };
        Some(match now.refused.is_empty() {
            true => lost,
            false => format!("{lost}: {}", now.refused),
        })
    }
}
