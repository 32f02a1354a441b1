//! Where the engine stands between running and stopped.
//!
//! # States
//! running → serving (the time to drain counts, I/O is taken) → draining (none is taken) → orderly
//! (queues close, controllers are shut down) → aborting (connections are aborted) → stopped.
//! The work of each is in `stop`.
use multipath::Outcome;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Running,
    /// I/O is taken and done until its time is over.
    Serving,
    /// I/O drains, none is taken.
    Draining,
    /// Queues close, controllers are shut down.
    Orderly,
    /// All connections are aborted.
    Aborting,
    /// `Output::Stop` was given.
    Stopped,
}

impl Stage {
    /// Whether the engine may get from here to `to`: forwards only. I/O that does not end in order
    /// in time is aborted, and I/O has ended before any connection is closed.
    fn leads_to(self, to: Self) -> bool {
        match to {
            Self::Running => false,
            Self::Serving => self == Self::Running,
            Self::Draining => self == Self::Serving,
            Self::Orderly => self == Self::Draining,
            Self::Aborting => self == Self::Orderly,
            Self::Stopped => matches!(self, Self::Orderly | Self::Aborting),
        }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shutdown {
    stage: Stage,
    /// When the stage ends at the latest, ns.
    until_ns: u64,
    /// The time to drain is over: all I/O fails.
    is_overdue: bool,
}

impl Shutdown {
    /// Of an engine that runs.
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::Running,
            until_ns: u64::MAX,
            is_overdue: false,
        }
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    /// Changes the stage; it ends at `until_ns` at the latest.
    ///
    /// # Panics
    /// If the stage that it has doesn't lead there.
    pub(super) fn enter(&mut self, to: Stage, until_ns: u64) {
        let from = self.stage;
        assert!(from.leads_to(to), "shutdown: {from:?} → {to:?}");
        self.stage = to;
        self.until_ns = until_ns;
    }

    /// The time to drain ends at `until_ns`, or when it was to end before, if that is earlier.
    pub(super) fn begin_drain(&mut self, until_ns: u64) {
        match self.stage {
            Stage::Running => self.enter(Stage::Serving, until_ns),
            Stage::Serving | Stage::Draining if !self.is_overdue => {
                self.until_ns = self.until_ns.min(until_ns);
            }
            _ => {} // it is over
        }
    }

    /// No I/O is taken from now on.
    ///
    /// # Panics
    /// If the time to drain has not begun.
    pub(super) fn refuse_io(&mut self) {
        assert!(self.has_begun(), "the time to drain begins first");
        if self.stage == Stage::Serving {
            self.enter(Stage::Draining, self.until_ns);
        }
    }

    /// Whether I/O becomes overdue: it is still drained, and its time is over. True once.
    pub(super) fn becomes_overdue(&mut self, now_ns: u64) -> bool {
        let over = self.stage <= Stage::Draining && now_ns >= self.until_ns;
        over && !core::mem::replace(&mut self.is_overdue, true)
    }

    /// Whether the time to drain has begun.
    #[inline]
    pub(super) fn has_begun(&self) -> bool {
        self.stage > Stage::Running
    }

    /// Whether no I/O is taken any more.
    #[inline]
    pub(super) fn refuses_io(&self) -> bool {
        self.is_overdue || self.stage > Stage::Serving
    }

    /// Whether all I/O that has not ended fails.
    pub(super) fn is_overdue(&self) -> bool {
        self.is_overdue
    }

    /// Whether an I/O with this outcome of an attempt fails now, instead of being tried again.
    pub(super) fn fails_now(&self, outcome: Outcome) -> bool {
        self.is_overdue && !outcome.is_done()
    }

    /// Whether connections are being closed: none is opened, and losses are not reported.
    pub(super) fn is_closing(&self) -> bool {
        self.stage > Stage::Draining
    }

    /// Whether the stage has had its time.
    pub(super) fn is_late(&self, now_ns: u64) -> bool {
        now_ns >= self.until_ns
    }

    /// When the stage has had its time; `None`: nothing is to be done then.
    pub(super) fn timeout(&self) -> Option<u64> {
        let waits = match self.stage {
            Stage::Serving | Stage::Draining => !self.is_overdue,
            Stage::Orderly | Stage::Aborting => true,
            Stage::Running | Stage::Stopped => false,
        };
        waits.then_some(self.until_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_follow_in_order_and_drain_time_shrinks() {
        let mut it = Shutdown::new();
        assert!(!it.has_begun() && !it.refuses_io() && it.timeout().is_none());
        assert!(
            !it.becomes_overdue(u64::MAX - 1),
            "an engine that runs has time"
        );
        it.begin_drain(100);
        assert!(it.has_begun() && !it.refuses_io());
        it.begin_drain(200);
        assert_eq!(it.timeout(), Some(100));
        it.begin_drain(50);
        assert_eq!(it.timeout(), Some(50));
        it.refuse_io();
        assert!(it.refuses_io() && !it.is_closing());
        assert!(!it.becomes_overdue(49) && !it.fails_now(Outcome::PathError));
        assert!(it.becomes_overdue(50) && !it.becomes_overdue(51), "once");
        assert!(it.fails_now(Outcome::PathError) && !it.fails_now(Outcome::Done));
        assert_eq!(it.timeout(), None);
        it.begin_drain(10);
        assert!(!it.is_late(49), "what is overdue gets no other time");
        it.enter(Stage::Orderly, 70);
        it.begin_drain(60);
        assert!(it.is_closing() && it.timeout() == Some(70));
        it.enter(Stage::Aborting, 80);
        it.enter(Stage::Stopped, 90);
        assert_eq!(it.timeout(), None);
    }

    #[test]
    #[should_panic(expected = "shutdown: Serving → Orderly")]
    fn io_drains_before_connections_close() {
        let mut it = Shutdown::new();
        it.begin_drain(1);
        it.enter(Stage::Orderly, 2);
    }
}
