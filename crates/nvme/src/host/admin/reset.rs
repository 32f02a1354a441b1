//! Controller reset (Base 2.0, 3.7.2): CC.EN to 0, then CSTS until RDY is 0. From then on the
//! controller executes no earlier command, and its I/O queues are deleted: commands that still
//! arrive on their connections find no queue. A host needs that proof before it repeats a write
//! elsewhere (T9).
//!
//! # Contract
//! The command is sent beside the current step, under a token of its own: most resets follow an
//! overdue answer. All other work ends with it, keep-alive too, because the controller's timer runs
//! only while it is enabled (Base 2.0, 3.9.1). The answer to a keep-alive in flight stays due until
//! Property Set is answered: a silent controller gets no more time than without a reset. A reset
//! ends with [`AdminEvent::Reset`], or with `Failed`: at the latest after the time of CAP.TO and
//! CRTO, or after the association's own time-out if that is shorter.
use super::connect::{get, set};
use super::{Admin, RESET, Wait};
use crate::host::transport::own_command;
use crate::host::{AdminEvent, Completed, HostError, Step};
use crate::limits::CSTS_POLL_NS;
use crate::wire::fabrics::{Cc, Csts, property};

/// State of a reset.
#[derive(Debug, Default)]
pub struct Resetting {
    /// Deadline of the reset, ns; `None`: none was requested.
    by_ns: Option<u64>,
    /// CC.EN was cleared.
    asked: bool,
    /// When to read CSTS next, ns.
    poll_at: Option<u64>,
    /// RDY was read as 0.
    done: bool,
}

impl Resetting {
    /// Whether a reset was requested: no other work is begun any more.
    pub fn is_begun(&self) -> bool {
        self.by_ns.is_some()
    }

    pub fn timeout(&self) -> Option<u64> {
        let by_ns = self.by_ns.filter(|_| !self.done);
        [by_ns, self.poll_at].into_iter().flatten().min()
    }
}

impl Admin {
    /// Resets the controller. Returns the deadline of its answer, ns. `None`: it was never ready,
    /// or the association is over.
    pub fn reset(&mut self, now_ns: u64) -> Option<u64> {
        if !self.ready || self.connection.error().is_some() {
            return None;
        }
        if let Some(by_ns) = self.resetting.by_ns {
            return Some(by_ns);
        }
        let own_ns = u64::from(self.ready_ms()) * 1_000_000;
        let by_ns = now_ns.saturating_add(own_ns.min(self.config.timeout_ns));
        self.resetting.by_ns = Some(by_ns);
        self.wait = Wait::Nothing;
        self.keep_alive.send_no_more();
        let disabled = Cc(self.facts.cc().0 & !1);
        let (sqe, data) = set(property::CC, disabled.0);
        self.submit(&own_command(&sqe, data, RESET));
        Some(by_ns)
    }

    /// Ends an overdue reset, or reads CSTS if it is time.
    pub(super) fn reset_due(&mut self, now_ns: u64) {
        let resetting = &mut self.resetting;
        if resetting.done || self.connection.error().is_some() {
            return;
        }
        if resetting.by_ns.is_some_and(|by_ns| by_ns <= now_ns) {
            return self.connection.fail(HostError::TimedOut(Step::Reset));
        }
        if resetting
            .poll_at
            .take_if(|at_ns| *at_ns <= now_ns)
            .is_some()
        {
            self.read_status();
        }
    }

    fn read_status(&mut self) {
        let (sqe, data) = get(property::CSTS, false);
        self.submit(&own_command(&sqe, data, RESET));
    }

    /// Handles the answer to a reset's Property Set or Get.
    pub(super) fn reset_answered(&mut self, end: &Completed, now_ns: u64) {
        if !end.status.is_success() {
            let (step, status) = (Step::Reset, end.status);
            return self.connection.fail(HostError::Command { step, status });
        }
        if !core::mem::replace(&mut self.resetting.asked, true) {
            // The controller works, and commands from before it was disabled may never end.
            self.keep_alive.stop();
            return self.read_status();
        }
        if Csts(end.result as u32).rdy() {
            self.resetting.poll_at = Some(now_ns.saturating_add(CSTS_POLL_NS));
            return;
        }
        self.resetting.done = true;
        self.events.push_back(AdminEvent::Reset);
    }
}
