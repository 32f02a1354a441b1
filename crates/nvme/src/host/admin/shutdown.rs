//! The orderly end of an association (Base 2.0, 3.6.2): CC.SHN, then CSTS.SHST until it is done.
//!
//! There is no Disconnect here: that command is for I/O queues (Base 2.0, 6.4), which are over
//! before.
use super::connect::{get, set};
use super::{Admin, Next};
use crate::host::{Data, HostError, Step};
use crate::limits::CSTS_POLL_NS;
use crate::wire::SqeBuilder;
use crate::wire::fabrics::{Csts, property};

/// CC.SHN and CSTS.SHST.
const NORMAL: u8 = 1;
const COMPLETE: u8 = 2;

/// State of the shutdown.
#[derive(Debug, Default)]
pub struct Ending {
    /// CC.SHN was written.
    asked: bool,
    /// Deadline, ns; `None`: not begun.
    by_ns: Option<u64>,
}

impl Admin {
    /// Begins an orderly end: sends CC.SHN, and reports `Failed(Closed)` when the controller is
    /// done. Where the association wasn't ready or is being reset, that comes at once.
    pub fn shutdown(&mut self, now_ns: u64) {
        if !self.ready || self.resetting.is_begun() {
            return self.connection.fail(HostError::Closed);
        }
        self.work.shutdown = self.ending.by_ns.is_none();
        self.next_work(now_ns);
    }

    pub(super) fn start_shutdown(&mut self, now_ns: u64) -> Step {
        self.ending.by_ns = Some(self.deadline(now_ns));
        Step::Shutdown
    }

    pub(super) fn shutdown_command(&self) -> (SqeBuilder, Data) {
        if self.ending.asked {
            return get(property::CSTS, false);
        }
        set(property::CC, self.facts.cc().with_shn(NORMAL).0)
    }

    pub(super) fn shutdown_finished(
        &mut self,
        result: u64,
        now_ns: u64,
    ) -> Result<Next, HostError> {
        if !core::mem::replace(&mut self.ending.asked, true) {
            return Ok(Next::Begin(Step::Shutdown));
        }
        if Csts(result as u32).shst() == COMPLETE {
            return Err(HostError::Closed);
        }
        if self.ending.by_ns.is_some_and(|by| now_ns >= by) {
            return Err(HostError::TimedOut(Step::Shutdown));
        }
        Ok(Next::At(
            now_ns.saturating_add(CSTS_POLL_NS),
            Step::Shutdown,
        ))
    }
}
