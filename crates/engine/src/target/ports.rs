//! One port: its shape, and the commands that wait for it.
use super::PortStats;
use super::faults::Injector;
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;
use shape::{PortTime, Shaper};

/// A port and its waiting commands.
pub(super) struct Port {
    pub(super) stats: PortStats,
    pub(super) faults: Injector,
    shaper: Shaper,
    waiting: BinaryHeap<Reverse<Waiting>>,
    admitted: u64,
}

/// In order of release; among equal times, of arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    due: PortTime,
    number: u64,
    slot: u32,
}

impl Port {
    pub(super) fn new(shape: shape::Config, seed: u64, commands_max: usize) -> Self {
        Port {
            stats: PortStats::default(),
            faults: Injector::new(seed),
            shaper: Shaper::new(shape, seed),
            waiting: BinaryHeap::with_capacity(commands_max),
            admitted: 0,
        }
    }

    pub(super) fn configure(&mut self, shape: shape::Config, now_ns: u64) {
        self.shaper.configure(shape, now_ns);
    }

    /// A command arrived. True: it may begin now; else [`Port::pop_due`] will name it.
    #[inline]
    pub(super) fn admit(&mut self, slot: u32, bytes: u32, now_ns: u64) -> bool {
        if self.waiting.is_empty() && self.shaper.is_open(now_ns) {
            return true;
        }
        let due = self.shaper.admit(bytes, now_ns);
        let nothing_before = self.due_ns().is_none_or(|first| first > now_ns);
        if self.shaper.due_ns(due) <= now_ns && nothing_before {
            return true;
        }
        self.admitted += 1;
        self.waiting.push(Reverse(Waiting {
            due,
            number: self.admitted,
            slot,
        }));
        false
    }

    /// The next command whose time has come.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<u32> {
        if self.due_ns()? > now_ns {
            return None;
        }
        self.waiting.pop().map(|Reverse(waiting)| waiting.slot)
    }

    /// When the next command's time comes.
    pub(super) fn due_ns(&self) -> Option<u64> {
        let Reverse(next) = self.waiting.peek()?;
        Some(self.shaper.due_ns(next.due))
    }

    /// Takes out of the wait every command for which `leaves` is true, in order of their release.
    pub(super) fn withdraw(&mut self, mut leaves: impl FnMut(u32) -> bool) {
        let mut all = core::mem::take(&mut self.waiting).into_sorted_vec();
        all.reverse();
        all.retain(|Reverse(waiting)| !leaves(waiting.slot));
        self.waiting = all.into();
    }
}
