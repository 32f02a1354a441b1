//! Abort (Base 2.0, 5.1): asks the controller to abort an overdue command of an I/O queue (T12).
//!
//! # Contract
//! Aborts in flight are limited by the controller (Abort Command Limit) and [`HOST_ABORTS_MAX`];
//! more are refused and not queued. Each accepted one is answered by [`AdminEvent::Aborted`], or
//! the association ends. A controller that refuses the command counts as one that did not abort.
use super::{ABORT, Admin};
use crate::host::transport::own_command;
use crate::host::{AdminEvent, Completed, Data, HostError, Step};
use crate::limits::HOST_ABORTS_MAX;
use crate::wire::SqeBuilder;
use crate::wire::sqe::admin;

/// Aborts in flight.
#[derive(Debug, Default)]
pub struct Aborting {
    out: [Option<Asked>; HOST_ABORTS_MAX],
    /// Most at a time.
    limit: usize,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    sqid: u16,
    cid: u16,
    due_ns: u64,
}

impl Aborting {
    /// Takes ACL (0's based) from Identify Controller.
    pub fn configure(&mut self, acl: u8) {
        self.limit = usize::from(acl) + 1;
    }

    /// Returns when the first answer is due.
    pub fn timeout(&self) -> Option<u64> {
        self.out.iter().flatten().map(|asked| asked.due_ns).min()
    }
}

impl Admin {
    /// Sends an Abort for the command with this identifier on this queue; `false`: none can be sent
    /// now.
    pub fn abort(&mut self, sqid: u16, cid: u16, now_ns: u64) -> bool {
        let over = self.connection.error().is_some() || self.resetting.is_begun();
        if !self.ready || over {
            return false;
        }
        let due_ns = self.deadline(now_ns);
        let out = &mut self.aborting.out;
        let most = self.aborting.limit.min(out.len());
        if out.iter().flatten().count() >= most {
            return false;
        }
        let Some(at) = out.iter().position(Option::is_none) else {
            unreachable!("fewer Aborts are in flight than there are places");
        };
        out[at] = Some(Asked { sqid, cid, due_ns });
        let sqe = SqeBuilder::new(admin::ABORT).cdw(10, u32::from(sqid) | u32::from(cid) << 16);
        self.submit(&own_command(&sqe, Data::None, ABORT + at as u32));
        true
    }

    /// Handles the answer to an Abort.
    pub(super) fn abort_answered(&mut self, end: &Completed) {
        let at = (end.token - ABORT) as usize;
        let Some(Asked { sqid, cid, .. }) = self.aborting.out[at].take() else {
            unreachable!("an Abort ends once");
        };
        self.keep_alive.traffic = true;
        // DW0 bit 0: not aborted.
        let aborted = end.status.is_success() && end.result & 1 == 0;
        self.events
            .push_back(AdminEvent::Aborted { sqid, cid, aborted });
    }

    /// Ends the association if an answer is overdue.
    pub(super) fn abort_due(&mut self, now_ns: u64) {
        if self.aborting.timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.connection.fail(HostError::TimedOut(Step::Abort));
        }
    }
}
