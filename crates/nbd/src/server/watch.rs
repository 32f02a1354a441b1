//! Clients that stop in the middle of something hold its memory: they are looked at, and given up.
//!
//! Decides, from what moved since the last look, whether a client stalls: it is in the middle of a
//! request whose rest doesn't come, or it has answers that it doesn't take.
//!
//! # Contract
//! A look every `stall_ns` while anything is in flight, so that a stall ends after once to twice
//! that. Costs a counter per call between two looks. What waits for the driver is no stall of the
//! client. The rest of a request moves if it comes, or 1 MiB of it: a client that trickles is given
//! up as one that is silent, since its request is of 32 MiB at most.
use super::receive::Body;
use super::{CloseReason, Phase, Session};
use crate::limits::STALL_BYTES;

/// What was seen at the last look.
#[derive(Debug)]
pub(super) struct Watch {
    /// Next look; `u64::MAX` = nothing is in flight.
    pub at_ns: u64,
    /// The request whose bytes were arriving, and all bytes by then.
    receiving: Option<(u64, u64)>,
    /// All that was sent by then, where more was waiting.
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
    /// Looks from now on, if anything is in flight.
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

    /// The time for a look has come.
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

    /// What the client is to do now, if it is its turn, by how it ends if it never does.
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

    /// Counts whatever moves, in either direction.
    pub fn moved(&self) -> u64 {
        self.rx.moved.wrapping_add(self.tx.moved)
    }

    /// Ends the session for a reason that [`Self::turn`] said.
    #[cold]
    pub fn give_up(&mut self, reason: CloseReason, now_ns: u64) {
        self.tx.silence();
        self.close(reason, now_ns);
    }

    /// The request whose bytes are due, by its number, and all bytes that came so far. `None`:
    /// between two requests, or it is the driver's turn.
    fn receiving(&self) -> Option<(u64, u64)> {
        let is_due = match self.rx.body {
            Body::None => !self.rx.header.is_empty(),
            Body::Payload(_) | Body::Skip(..) => true,
            Body::Option(..) | Body::SkipOption(..) | Body::Await(_) => false,
        };
        (is_due && self.phase == Phase::Transmission).then_some((self.rx.requests, self.rx.moved))
    }
}
