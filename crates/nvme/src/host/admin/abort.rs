//! Abort (Base 2.0, 5.1): the controller is asked to take back a command of an I/O queue that is
//! overdue (T12).
//!
//! # Contract
//! As many are out at a time as the controller takes (Abort Command Limit) and
//! [`HOST_ABORTS_MAX`] allows; more are refused and not kept. Each that was taken is answered by
//! [`AdminEvent::Aborted`], or the association ends. "Not aborted" is also what a controller is
//! taken to say that refuses the command.
use super::{ABORT, Admin};
use crate::host::transport::own_command;
use crate::host::{AdminEvent, Completed, Data, HostError, Step};
use crate::limits::HOST_ABORTS_MAX;
use crate::wire::SqeBuilder;
use crate::wire::sqe::admin;

/// The ones that are out.
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
    /// What Identify Controller says: ACL, 0's based.
    pub fn configure(&mut self, acl: u8) {
        self.limit = usize::from(acl) + 1;
    }

    /// When the first answer is due.
    pub fn timeout(&self) -> Option<u64> {
        self.out.iter().flatten().map(|asked| asked.due_ns).min()
    }
}

impl Admin {
    /// Asks the controller to abort the command with this identifier on this queue; false: it can't
    /// be asked now.
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
            return false;
        };
        out[at] = Some(Asked { sqid, cid, due_ns });
        let sqe = SqeBuilder::new(admin::ABORT).cdw(10, u32::from(sqid) | u32::from(cid) << 16);
        self.submit(&own_command(&sqe, Data::None, ABORT + at as u32));
        true
    }

    /// An Abort was answered.
    pub(super) fn abort_answered(&mut self, end: &Completed) {
        let at = (end.token - ABORT) as usize;
        let asked = self.aborting.out.get_mut(at).and_then(Option::take);
        let Some(Asked { sqid, cid, .. }) = asked else {
            return;
        };
        self.keep_alive.traffic = true;
        // DW0 bit 0: not aborted.
        let aborted = end.status.is_success() && end.result & 1 == 0;
        self.events
            .push_back(AdminEvent::Aborted { sqid, cid, aborted });
    }

    /// The time for an answer may be over.
    pub(super) fn abort_due(&mut self, now_ns: u64) {
        if self.aborting.timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.connection.fail(HostError::TimedOut(Step::Abort));
        }
    }
}
