//! How far the clean stop of a mirror is.
//!
//! * `No`: it runs, or starts
//! * `Draining`: all that is under way ends
//! * `Flushing`: all legs are flushed
//! * `Clearing`: all is flushed; dirty bits are cleared as far as they may be, then the last event
//!   is written
//!
//! # Contract
//! [`Stop::set`] asserts each edge. A flush that a leg has failed is repeated from `Draining`.
use super::legs::Round;
use block::Outcome;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StopState {
    #[default]
    No,
    Draining,
    Flushing(Round),
    Clearing,
}

/// The stop of a mirror.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stop(StopState);

impl Stop {
    /// The state.
    pub fn state(&self) -> StopState {
        self.0
    }

    /// Whether the mirror stops, or has.
    #[inline]
    pub fn is_begun(&self) -> bool {
        self.0 != StopState::No
    }

    /// Whether all is flushed.
    pub fn is_clearing(&self) -> bool {
        self.0 == StopState::Clearing
    }

    /// Begins it, unless it has begun.
    pub fn begin(&mut self) {
        if !self.is_begun() {
            self.set(StopState::Draining);
        }
    }

    /// A leg has ended its part of the flush, which may be over. Returns it once all have.
    pub fn leg_flushed(&mut self, leg: u8, outcome: Outcome) -> Option<Round> {
        match &mut self.0 {
            StopState::Flushing(round) => round.ends(leg, outcome).then_some(*round),
            _ => None,
        }
    }

    /// Changes the state.
    ///
    /// # Panics
    /// If the edge does not exist.
    pub fn set(&mut self, next: StopState) {
        use StopState::*;
        let is_edge = match (self.0, next) {
            (No | Flushing(_), Draining) | (Draining, Flushing(_)) => true,
            (Flushing(round), Clearing) => round.waits.is_empty(),
            _ => false,
        };
        assert!(is_edge, "from {:?} to {next:?}", self.0);
        self.0 = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "from Draining to Clearing")]
    fn stop_that_does_not_flush_panics() {
        let mut stop = Stop::default();
        stop.begin();
        stop.set(StopState::Clearing);
    }
}
