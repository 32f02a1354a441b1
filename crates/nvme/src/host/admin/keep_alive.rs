//! Keep Alive (Base 2.0, 3.9): when one is sent, and when a missing answer means that the path has
//! failed (T29).
//!
//! Sent at half of KATO; with traffic-based keep-alive at a quarter, and only if no completion was
//! seen since. Each must be answered within half of KATO, so a failed controller is detected before
//! it may end the association, and before I/O time-outs of the usual length (T12).
//!
//! A discovery controller gets them whatever its KAS is: SPDK's reports 0 and ends an association
//! that is silent for KATO all the same. If it refuses them, the association goes on without.
use super::{Admin, KEEP_ALIVE};
use crate::host::transport::own_command;
use crate::host::{Completed, Data, HostError, Step};
use crate::wire::SqeBuilder;
use crate::wire::sqe::admin;
use canary::Bug;

/// Timers of one association.
#[derive(Debug)]
pub struct KeepAlive {
    /// 0 = no keep-alive.
    kato_ns: u64,
    interval_ns: u64,
    traffic_based: bool,
    /// A completion was received since the last check.
    pub traffic: bool,
    /// Time of the next check, ns.
    next_at: Option<u64>,
    /// When the answer to the Keep Alive in flight is due, ns.
    due_at: Option<u64>,
    /// When the last one was sent, ns.
    sent_ns: u64,
    /// How long the last answer took, ns, until it is taken.
    took_ns: Option<u64>,
}

impl KeepAlive {
    pub fn new(kato_ms: u32) -> Self {
        let kato_ns = u64::from(kato_ms) * 1_000_000;
        Self {
            kato_ns,
            interval_ns: kato_ns / 2,
            traffic_based: false,
            traffic: false,
            next_at: None,
            due_at: None,
            sent_ns: 0,
            took_ns: None,
        }
    }

    /// Starts the timers; the controller's timer runs from here on.
    pub fn start(&mut self, now_ns: u64) {
        if self.kato_ns > 0 {
            // A quarter is short enough for both modes until the mode is known.
            self.next_at = Some(now_ns.saturating_add(self.kato_ns / 4));
        }
    }

    /// Whether Keep Alives are sent.
    pub fn runs(&self) -> bool {
        self.next_at.is_some()
    }

    /// Takes CTRATT from Identify Controller: whether traffic counts.
    pub fn configure(&mut self, traffic_based: bool) {
        self.traffic_based = traffic_based;
        self.interval_ns = self.kato_ns / if traffic_based { 4 } else { 2 };
    }

    pub fn stop(&mut self) {
        self.next_at = None;
        self.due_at = None;
    }

    /// Sends no more; the answer to the one in flight stays due.
    pub fn send_no_more(&mut self) {
        self.next_at = None;
    }

    pub fn timeout(&self) -> Option<u64> {
        [self.next_at, self.due_at].into_iter().flatten().min()
    }

    /// Commands may go without an answer until then (T30).
    pub fn pause(&mut self, until_ns: u64) {
        self.due_at = self.due_at.map(|at| at.max(until_ns));
    }
}

impl Admin {
    /// Sends one if it is time, or ends the association if the last one was not answered.
    pub(super) fn keep_alive_due(&mut self, now_ns: u64) {
        let timers = &mut self.keep_alive;
        if timers.due_at.is_some_and(|at| now_ns >= at) {
            return self.connection.fail(HostError::TimedOut(Step::KeepAlive));
        }
        if timers.next_at.is_none_or(|at| now_ns < at) || self.connection.error().is_some() {
            return;
        }
        timers.next_at = Some(now_ns.saturating_add(timers.interval_ns));
        let traffic = core::mem::take(&mut timers.traffic);
        if timers.due_at.is_some() || (timers.traffic_based && traffic) {
            return;
        }
        if canary::has(Bug::ForgottenKeepAlive) {
            return;
        }
        let due = now_ns
            .saturating_add(timers.kato_ns / 2)
            .max(self.work.paused_until_ns);
        timers.due_at = Some(due);
        timers.sent_ns = now_ns;
        let sqe = SqeBuilder::new(admin::KEEP_ALIVE);
        self.submit(&own_command(&sqe, Data::None, KEEP_ALIVE));
    }

    /// Returns how long the last Keep Alive took to be answered, ns, once for each.
    pub fn take_keep_alive(&mut self) -> Option<u64> {
        self.keep_alive.took_ns.take()
    }

    pub(super) fn keep_alive_answered(&mut self, end: &Completed, now_ns: u64) {
        let timers = &mut self.keep_alive;
        timers.due_at = None;
        timers.took_ns = Some(now_ns.saturating_sub(timers.sent_ns));
        if !end.status.is_success() && self.facts.discovery {
            return self.keep_alive.stop();
        }
        if !end.status.is_success() {
            let error = HostError::Command {
                step: Step::KeepAlive,
                status: end.status,
            };
            self.connection.fail(error);
        }
    }
}
