//! Asynchronous events of a controller that is ready, and their consequences (Base 2.0, 5.2; T30).
//!
//! One Asynchronous Event Request is always outstanding, except from an event until its log was
//! read: only that clears the event, and a request before it would report it again. A persistent
//! internal error ends the association; a changed namespace list is read again; firmware activation
//! makes all commands wait, it is no failure.
use super::ana::get_log;
use super::{Admin, EVENT, Next};
use crate::host::transport::own_command;
use crate::host::{AdminEvent, Completed, Data, HostError, Step};
use crate::limits::{DISCOVERY_REREAD_NS, LOG_PIECE, PAUSE_REST_NS};
use crate::wire::SqeBuilder;
use crate::wire::features::AsyncEvent;
use crate::wire::log::{Request, lid};
use crate::wire::sqe::{NSID_ALL, admin};
use canary::Bug;

/// Work to begin as soon as no other command is in flight.
#[derive(Debug, Default)]
pub struct Work {
    /// Read this log page to clear an event.
    log: Option<u8>,
    /// Read the list of changed namespaces, then all namespaces.
    rescan: bool,
    /// Read the ANA log.
    pub ana: bool,
    /// Read the discovery log, and not before it is due.
    pub discovery: bool,
    pub discovery_from_ns: u64,
    /// Ask for the next event.
    pub arm: bool,
    /// Shut down.
    pub shutdown: bool,
    /// Answers may be late until this time: firmware is being activated.
    pub paused_until_ns: u64,
    /// No other pause begins before this time.
    pub pause_from_ns: u64,
}

impl Admin {
    /// The namespaces may have changed: reads them again, then reports `Changed` (T33).
    pub fn request_namespaces(&mut self, now_ns: u64) {
        self.work.rescan = true;
        self.next_work(now_ns);
    }

    /// Begins the most urgent work, if nothing is in flight.
    pub(super) fn next_work(&mut self, now_ns: u64) {
        let busy = self.step != Step::Idle || self.resetting.is_begun();
        if busy || self.connection.error().is_some() {
            return;
        }
        let step = if core::mem::take(&mut self.work.shutdown) {
            self.start_shutdown(now_ns)
        } else if self.work.log.is_some() {
            Step::EventLog
        } else if core::mem::take(&mut self.work.rescan) {
            Step::ChangedLog
        } else if core::mem::take(&mut self.work.ana) {
            self.restart_ana()
        } else if self.work.discovery && now_ns >= self.work.discovery_from_ns {
            self.work.discovery = false;
            self.work.discovery_from_ns = now_ns.saturating_add(DISCOVERY_REREAD_NS);
            self.restart_discovery()
        } else {
            if !self.work.discovery && core::mem::take(&mut self.work.arm) {
                let sqe = SqeBuilder::new(admin::ASYNC_EVENT_REQUEST);
                self.submit(&own_command(&sqe, Data::None, EVENT));
            }
            return;
        };
        self.begin(step, now_ns);
    }

    /// Returns when a discovery log that was just read may be read again.
    pub(super) fn discovery_due(&self) -> Option<u64> {
        let waits = self.step == Step::Idle && self.work.discovery;
        waits.then_some(self.work.discovery_from_ns)
    }

    /// Handles the answer to an Asynchronous Event Request.
    pub(super) fn event_happened(&mut self, end: &Completed, now_ns: u64) {
        if !end.status.is_success() {
            self.facts.events = 0;
            return; // the controller takes none; what it has to say is lost
        }
        let event = AsyncEvent::parse(end.result as u32);
        if event == AsyncEvent::PERSISTENT_INTERNAL_ERROR {
            return self.connection.fail(HostError::PersistentInternalError);
        }
        match event {
            AsyncEvent::NAMESPACE_ATTRIBUTE => self.work.rescan = true,
            AsyncEvent::ANA_CHANGE => self.work.ana = self.facts.ana,
            AsyncEvent::DISCOVERY_CHANGE if canary::has(Bug::ForgottenNotice) => {}
            AsyncEvent::DISCOVERY_CHANGE => self.work.discovery = self.facts.discovery,
            AsyncEvent::FIRMWARE_ACTIVATION => {
                self.pause(now_ns);
                self.work.log = Some(event.log_page);
            }
            // Errors, health, and events of later versions: reading the log is all there is to do.
            _ => self.work.log = Some(event.log_page).filter(|&page| page != 0),
        }
        self.work.arm = true;
        self.next_work(now_ns);
    }

    /// Firmware is being activated: answers may take longer. Notices during a pause, and for as
    /// long as that after it, change nothing: a controller that repeats them would hold I/Os for
    /// ever.
    fn pause(&mut self, now_ns: u64) {
        if now_ns < self.work.pause_from_ns {
            return;
        }
        let pause_ns = self.facts.pause_ns.max(self.config.timeout_ns);
        let until_ns = now_ns.saturating_add(pause_ns);
        self.work.paused_until_ns = until_ns;
        self.work.pause_from_ns = until_ns.saturating_add(pause_ns.max(PAUSE_REST_NS));
        self.keep_alive.pause(until_ns);
        self.events.push_back(AdminEvent::Paused(until_ns));
    }

    pub(super) fn log_command(&self, step: Step) -> (SqeBuilder, Data) {
        let (lid, len) = match step {
            Step::ChangedLog => (lid::CHANGED_NAMESPACES, LOG_PIECE.into()),
            _ => match self.work.log {
                Some(lid) => (lid, 512),
                None => unreachable!("a log is read because an event named it"),
            },
        };
        get_log(
            &Request {
                lid,
                len,
                ..Request::default()
            },
            NSID_ALL,
        )
    }

    /// The log was read, or there is none: the event is cleared.
    pub(super) fn log_finished(&mut self, step: Step) -> Next {
        self.work.log = None;
        match step {
            // All namespaces are read again, then their ANA states, whichever of them changed.
            Step::ChangedLog => Next::Begin(self.rescan()),
            _ => Next::Work,
        }
    }
}
