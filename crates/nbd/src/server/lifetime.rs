//! The end of a session: in order, by shutdown, by time-out, or because the connection is gone.
use super::slots::State;
use super::watch::Watch;
use super::{CloseReason, Event, Phase, Session};
use crate::limits::LINGER_NS;

impl Session {
    /// The server shuts down, or the export is removed: options and requests are answered with
    /// "shutdown" from now on. The session ends when the driver's requests are done, at the latest
    /// after `drain_ns` (Terminating the transmission phase).
    pub fn shutdown(&mut self, drain_ns: u64, now_ns: u64) {
        if matches!(self.phase, Phase::Closing | Phase::Gone) {
            return;
        }
        self.shutting = true;
        let deadline_ns = now_ns.saturating_add(drain_ns);
        self.deadline_ns = self.deadline_ns.min(deadline_ns);
        self.settle(now_ns);
    }

    /// The time of [`Self::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if now_ns >= self.watch.at_ns {
            self.look(now_ns);
        }
        if now_ns < self.deadline_ns {
            return;
        }
        match self.phase {
            Phase::Flags | Phase::Options if self.shutting => {
                self.close(CloseReason::Shutdown, now_ns);
            }
            Phase::Flags | Phase::Options => {
                self.tx.silence();
                self.close(CloseReason::Handshake, now_ns);
            }
            _ => {
                self.tx.silence();
                self.close(CloseReason::Linger, now_ns);
                self.deadline_ns = u64::MAX;
            }
        }
    }

    /// The connection is gone: only the driver's own work still refers to a buffer. The driver
    /// completes its requests as usual; each gets its Release.
    pub fn handle_closed(&mut self) {
        self.phase = Phase::Gone;
        self.deadline_ns = u64::MAX;
        self.watch = Watch::IDLE;
        self.starved = false;
        self.tx.silence();
        for index in 0..self.slots.count() {
            let slot = &self.slots[index];
            if slot.state != State::Free && slot.sends == 0 && self.is_over_but_sends(index) {
                self.release(index);
            }
        }
    }

    /// Whether the connection is gone and all requests are released: the session may be dropped.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Gone && self.slots.used() == 0
    }

    /// Whether the client has sent DISC: its earlier requests are executed whether or not it stays.
    pub fn is_draining(&self) -> bool {
        self.phase == Phase::Draining
    }

    /// Whether only payload still being sent holds this request.
    pub(super) fn is_over_but_sends(&self, index: u16) -> bool {
        match self.slots[index].state {
            State::Unsent => true,
            State::Backend => false,
            _ => self.phase == Phase::Gone,
        }
    }

    /// Ends the session if it waited only for the driver's requests (Request types, DISC).
    #[inline]
    pub(super) fn settle(&mut self, now_ns: u64) {
        if self.work > 0 {
            return;
        }
        match self.phase {
            Phase::Draining => self.close(CloseReason::Finished, now_ns),
            Phase::Transmission if self.shutting => self.close(CloseReason::Shutdown, now_ns),
            _ => {}
        }
    }

    /// Tells the driver to close. Queued bytes have [`LINGER_NS`] to be sent.
    pub(super) fn close(&mut self, reason: CloseReason, now_ns: u64) {
        self.phase = Phase::Closing;
        self.watch = Watch::IDLE;
        self.deadline_ns = now_ns.saturating_add(LINGER_NS);
        self.starved = false;
        self.events.push_back(Event::Close { reason });
    }
}
