//! Controller reset (Base 2.0, 3.7.2): CC.EN to 0, then CSTS until RDY is 0. From then on the
//! controller executes nothing of what it had, and its I/O queues are gone: what still arrives on
//! their connections finds no queue. That is the proof a host needs before it repeats a write
//! elsewhere (T9).
//!
//! # Contract
//! The command goes out beside whatever step is under way, under a name of its own: a reset is
//! wanted most when an answer is overdue. All other work ends with it, keep-alive too, because the
//! controller's timer runs only while it is enabled (Base 2.0, 3.9.1). The answer to a keep-alive
//! that is out stays due until Property Set is answered: a silent controller is not waited for
//! longer than without a reset. It is answered by [`AdminEvent::Reset`], or by `Failed` at the
//! latest after what CAP.TO and CRTO grant the controller, or the association's own time-out if
//! that is shorter.
use super::connect::{get, set};
use super::{Admin, RESET, Wait};
use crate::host::transport::own_command;
use crate::host::{AdminEvent, Completed, HostError, Step};
use crate::limits::CSTS_POLL_NS;
use crate::wire::fabrics::{Cc, Csts, property};

/// How far a reset is.
#[derive(Debug, Default)]
pub struct Resetting {
    /// When it must be over; `None`: none was asked for.
    by_ns: Option<u64>,
    /// CC.EN was cleared.
    asked: bool,
    /// When to read CSTS next.
    poll_at: Option<u64>,
    /// RDY was seen to be 0.
    done: bool,
}

impl Resetting {
    /// A reset was asked for: nothing else is begun any more.
    pub fn is_begun(&self) -> bool {
        self.by_ns.is_some()
    }

    pub fn timeout(&self) -> Option<u64> {
        let by_ns = self.by_ns.filter(|_| !self.done);
        [by_ns, self.poll_at].into_iter().flatten().min()
    }
}

impl Admin {
    /// Resets the controller; when it must have answered, ns. `None`: it was never ready, or the
    /// association is over.
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

    /// The time for a reset, or for its next look, may have come.
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

    /// Property Set or Get of a reset was answered.
    pub(super) fn reset_answered(&mut self, end: &Completed, now_ns: u64) {
        if !end.status.is_success() {
            let (step, status) = (Step::Reset, end.status);
            return self.connection.fail(HostError::Command { step, status });
        }
        if !core::mem::replace(&mut self.resetting.asked, true) {
            // The controller lives, and what it was asked before it was disabled may never end.
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
