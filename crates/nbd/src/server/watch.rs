//! Disconnects clients that stop in the middle of a request or reply, and so hold its memory.
//!
//! Decides from the bytes moved since the last check whether a client stalls: the rest of a request
//! does not arrive, or it does not take its answers.
//!
//! # Contract
//! One check every `stall_ns` while a request is in flight, so that a stall ends after once to
//! twice that. Costs a counter per call between two checks. Time in which a request waits for the
//! driver is no stall of the client. The rest of a request counts as moving if all of it arrives,
//! or 1 MiB: a client that trickles is disconnected like a silent one.
use super::receive::Body;
use super::{CloseReason, Phase, Session};
use crate::limits::STALL_BYTES;

/// State at the last check.
#[derive(Debug)]
pub(super) struct Watch {
    /// Next check; `u64::MAX` = nothing is in flight.
    pub at_ns: u64,
    /// The request whose bytes were arriving, and all bytes received by then.
    receiving: Option<(u64, u64)>,
    /// All bytes sent by then, if more was waiting.
    sending: Option<u64>,
}

impl Watch {
    /// Nothing is in flight.
    pub const IDLE: Self = Self {
        at_ns: u64::MAX,
        receiving: None,
        sending: None,
    };
}

impl Session {
    /// Starts the checks if a request is in flight.
    #[inline]
    pub(super) fn watch(&mut self, now_ns: u64) {
        if self.watch.at_ns == u64::MAX {
            self.begin_watch(now_ns);
        }
    }

    #[cold]
    fn begin_watch(&mut self, now_ns: u64) {
        let in_flight = self.slots.used() > 0 || !self.rx.header.is_empty();
        if in_flight && matches!(self.phase, Phase::Transmission | Phase::Draining) {
            self.watch.at_ns = now_ns.saturating_add(self.config.stall_ns);
        }
    }

    /// The time of a check has come.
    pub(super) fn look(&mut self, now_ns: u64) {
        let receiving = self.receiving();
        let sending = self.tx.has_unsent().then_some(self.tx.moved);
        if let (Some((before, bytes)), Some((now, all))) = (self.watch.receiving, receiving)
            && before == now
            && all - bytes < STALL_BYTES
        {
            return self.give_up(CloseReason::StalledRequest, now_ns);
        }
        if sending.is_some() && self.watch.sending == sending {
            return self.give_up(CloseReason::StalledAnswers, now_ns);
        }
        self.watch = Watch {
            at_ns: u64::MAX,
            receiving,
            sending,
        };
        self.begin_watch(now_ns);
    }

    /// Returns how the session ends if the client never does its next step; `None`: the client owes
    /// none.
    pub fn turn(&self) -> Option<CloseReason> {
        if !matches!(self.phase, Phase::Transmission | Phase::Draining) {
            return None;
        }
        let receiving = self.receiving().map(|_| CloseReason::StalledRequest);
        let has_unsent = self.tx.has_unsent();
        receiving.or(has_unsent.then_some(CloseReason::StalledAnswers))
    }

    /// Counts its requests.
    pub fn requests(&self) -> u64 {
        self.rx.requests
    }

    /// Counts bytes and steps in either direction.
    pub fn moved(&self) -> u64 {
        self.rx.moved.wrapping_add(self.tx.moved)
    }

    /// Ends the session for a reason that [`Self::turn`] gave.
    #[cold]
    pub fn give_up(&mut self, reason: CloseReason, now_ns: u64) {
        self.tx.silence();
        self.close(reason, now_ns);
    }

    /// The request whose bytes are due, by its number, and all bytes received so far. `None`:
    /// between two requests, or the driver has to act.
    fn receiving(&self) -> Option<(u64, u64)> {
        let is_due = match self.rx.body {
            Body::None => !self.rx.header.is_empty(),
            Body::Payload(_) | Body::Skip(..) => true,
            Body::Option(..) | Body::SkipOption(..) | Body::Await(_) => false,
        };
        (is_due && self.phase == Phase::Transmission).then_some((self.rx.requests, self.rx.moved))
    }
}
