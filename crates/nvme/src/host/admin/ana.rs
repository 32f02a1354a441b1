//! ANA states (Base 2.0, 8.1 and 5.16.1.13): the log, read in pieces, and what is still pending.
//!
//! A namespace whose group isn't in the log is shown in "change", not to be used, and the log is
//! read again (T27); after ANATT it is shown inaccessible, and the log is read less often. The
//! machine waits for a group in "change", at most ANATT, then the association fails (T26). Each
//! group has its own time, and only namespaces that were asked for count.
use alloc::vec::Vec;

use super::{Admin, Next};
use crate::host::{AnaState, Data, HostError, Step};
use crate::limits::{ANA_LOG_MAX, ANA_REREAD_NS, LOG_PIECE, LOG_RESTARTS_MAX};
use crate::wire::log::{ANA_GROUPS_ONLY, AnaLog, Request, lid};
use crate::wire::sqe::{NSID_ALL, admin};
use crate::wire::{SqeBuilder, WireError};

/// State of the ANA groups.
#[derive(Debug, Default)]
pub struct Ana {
    /// The log so far, whole pieces.
    log: Vec<u8>,
    /// All pieces are read: the change count is being read once more.
    confirming: bool,
    restarts: u8,
    /// Group and state, ascending.
    groups: Vec<(u32, AnaState)>,
    /// Groups that are missing or in "change", ascending, and since when, ns.
    pending: Vec<(u32, u64)>,
    /// When to read the log again because of those groups, ns.
    pub reread_at: Option<u64>,
}

/// Get Log Page.
pub fn get_log(request: &Request, nsid: u32) -> (SqeBuilder, Data) {
    let cdw = request.emit();
    let sqe = SqeBuilder::new(admin::GET_LOG_PAGE).nsid(nsid);
    let sqe = cdw
        .iter()
        .enumerate()
        .fold(sqe, |sqe, (i, &value)| sqe.cdw(10 + i, value));
    (sqe, Data::In(request.len as u32))
}

impl Admin {
    /// An I/O queue received an ANA status: reads the log again, then reports `Changed` (T26).
    pub fn request_ana(&mut self, now_ns: u64) {
        self.work.ana |= self.facts.ana;
        self.next_work(now_ns);
    }

    /// Starts to read the log.
    pub(super) fn restart_ana(&mut self) -> Step {
        self.ana.log.clear();
        self.ana.confirming = false;
        self.ana.reread_at = None;
        Step::AnaLog
    }

    pub(super) fn ana_command(&self) -> (SqeBuilder, Data) {
        let (len, offset) = match self.ana.confirming {
            true => (16, 0),
            false => (LOG_PIECE.into(), self.ana.log.len() as u64),
        };
        let request = Request {
            lid: lid::ANA,
            lsp: ANA_GROUPS_ONLY,
            len,
            offset,
            ..Request::default()
        };
        get_log(&request, NSID_ALL)
    }

    /// Handles a piece of the log in the page.
    pub(super) fn ana_finished(&mut self, now_ns: u64) -> Result<Next, HostError> {
        let step = Step::AnaLog;
        let malformed = |error| HostError::Malformed { step, error };
        if self.ana.confirming {
            let page = AnaLog::new(&*self.page).map_err(malformed)?.change_count();
            let log = AnaLog::new(&self.ana.log)
                .map_err(malformed)?
                .change_count();
            if page == log {
                return self.evaluate_ana(now_ns);
            }
            if self.ana.restarts == LOG_RESTARTS_MAX {
                return Err(HostError::Unstable(step));
            }
            self.ana.restarts += 1;
            return Ok(Next::Begin(self.restart_ana()));
        }
        self.ana.log.extend_from_slice(&*self.page);
        match self.read_groups() {
            // A log in one piece is consistent.
            Ok(()) if self.ana.log.len() == LOG_PIECE as usize => self.evaluate_ana(now_ns),
            Ok(()) => {
                self.ana.confirming = true;
                Ok(Next::Begin(step))
            }
            Err(WireError::Truncated { need, .. }) => {
                if need as usize > ANA_LOG_MAX || self.ana.log.len() >= ANA_LOG_MAX {
                    return Err(HostError::Limit {
                        step,
                        max: ANA_LOG_MAX as u32,
                    });
                }
                Ok(Next::Begin(step))
            }
            Err(error) => Err(malformed(error)),
        }
    }

    /// Parses the groups of the log as far as it was read.
    fn read_groups(&mut self) -> Result<(), WireError> {
        self.ana.groups.clear();
        for group in AnaLog::new(&self.ana.log)?.groups() {
            let group = group?;
            self.ana.groups.push((group.id, group.state));
        }
        self.ana.groups.sort_unstable_by_key(|group| group.0);
        Ok(())
    }

    /// Evaluates the whole log.
    fn evaluate_ana(&mut self, now_ns: u64) -> Result<Next, HostError> {
        self.ana.restarts = 0;
        if core::mem::take(&mut self.work.ana) {
            // A request that came meanwhile is newer than the beginning of this log.
            return Ok(Next::Begin(self.restart_ana()));
        }
        let patience_ns = u64::from(self.facts.anatt_s).max(1) * 1_000_000_000;
        let mut pending = Vec::new();
        let mut again_ns = None;
        for namespace in &mut self.scan.found {
            let group = namespace.ana_group;
            if group == 0 {
                continue; // in no group: not subject to ANA
            }
            let since_ns = self.ana.pending_since(group).unwrap_or(now_ns);
            let expired = now_ns.saturating_sub(since_ns) >= patience_ns;
            let (state, wait_ns) = match self.ana.state(group) {
                Some(AnaState::Change) if expired && self.config.wants(namespace.nsid) => {
                    return Err(HostError::AnaTransition { group });
                }
                // It may still appear, and no event has to report that.
                None if expired => (AnaState::Inaccessible, patience_ns),
                Some(AnaState::Change) | None => (AnaState::Change, ANA_REREAD_NS),
                Some(state) => (state, u64::MAX),
            };
            namespace.ana_state = state;
            if wait_ns < u64::MAX {
                pending.push((group, since_ns));
                again_ns = Some(again_ns.map_or(wait_ns, |ns: u64| ns.min(wait_ns)));
            }
        }
        pending.sort_unstable();
        pending.dedup();
        self.ana.pending = pending;
        self.ana.reread_at = again_ns.map(|wait_ns| now_ns.saturating_add(wait_ns));
        self.tell(self.scan.found.clone(), None);
        Ok(Next::Work)
    }
}

impl Ana {
    /// Returns the state of a group in the log.
    fn state(&self, group: u32) -> Option<AnaState> {
        let at = self.groups.binary_search_by_key(&group, |it| it.0).ok()?;
        Some(self.groups[at].1)
    }

    /// Returns since when a group has been missing or in "change", ns.
    fn pending_since(&self, group: u32) -> Option<u64> {
        let at = self.pending.binary_search_by_key(&group, |it| it.0).ok()?;
        Some(self.pending[at].1)
    }
}
