//! Before the mirror is acquired: which superblocks are read when, and when a start is decided.
//!
//! # Contract
//! All legs that could be missing are waited for until the assemble wait is over, counted from the
//! first turn; another wait may be set by the superblocks that were read ([`Ownership::set_wait`]).
//! The user can force an earlier decision. A leg that is being read is waited for until the
//! assemble wait is over, counted from its own read. After a refusal all known legs are read again
//! before the next decision, which is due when the pause is over, when a leg comes or goes, or when
//! the user asks for it.
use super::{Ownership, State};

/// Knowledge of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing.
    No,
    /// Its superblocks were read.
    Yes,
    /// They were read before a start was refused.
    Outdated,
}

/// The read of a leg's superblocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The leg has no path yet.
    Unreachable,
    /// None is under way, and the next may begin then, ns.
    Due(u64),
    /// One is under way since then, ns.
    Since(u64),
    /// One is under way for so long that it is not waited for any more.
    Late,
}

/// A leg before the mirror is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegRead {
    /// How much is known of it.
    pub known: Known,
    /// The read of its superblocks.
    pub reading: Reading,
}

impl LegRead {
    fn is_known(&self) -> bool {
        self.known != Known::No
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Assembling {
    wait_ns: u64,
    /// How long a decision waits for missing legs, ns: shorter if they had lost data before.
    decide_ns: u64,
    /// The first turn.
    since_ns: Option<u64>,
    /// The user wants a decision with the legs that are there.
    pub is_forced: bool,
    /// How many legs were known at the last decision.
    pub known: usize,
}

impl Assembling {
    pub const fn new(wait_ns: u64) -> Self {
        Self {
            wait_ns,
            decide_ns: wait_ns,
            since_ns: None,
            is_forced: false,
            known: 0,
        }
    }
}

impl Ownership {
    /// Begins a turn before the mirror is ours, with so many legs known: a refused start may be
    /// due.
    pub fn handle_turn(&mut self, known: usize, now_ns: u64) {
        self.assembling.since_ns.get_or_insert(now_ns);
        if let State::Refused {
            again_at_ns,
            known: before,
        } = self.state
            && (again_at_ns <= now_ns || self.assembling.is_forced || before != known)
        {
            self.set_state(State::Assembling);
        }
    }

    /// Sets how long a decision waits for missing legs, counted from the first turn.
    pub fn set_wait(&mut self, wait_ns: u64) {
        self.assembling.decide_ns = wait_ns;
    }

    /// Whether the superblocks of a leg are to be read now.
    pub fn wants_read(&self, leg: LegRead, now_ns: u64) -> bool {
        self.asks(leg) && matches!(leg.reading, Reading::Due(at_ns) if at_ns <= now_ns)
    }

    /// When the read of a leg is not waited for any more, ns; `u64::MAX`: none is waited for.
    pub fn gives_up_at(&self, leg: LegRead) -> u64 {
        match leg.reading {
            Reading::Since(since_ns) => since_ns.saturating_add(self.assembling.wait_ns),
            Reading::Unreachable | Reading::Due(_) | Reading::Late => u64::MAX,
        }
    }

    /// Returns whether a start is to be decided now: it is refused or acquired then.
    pub fn decides(&mut self, legs: &[LegRead], now_ns: u64) -> bool {
        let pending = |leg: &LegRead| {
            let is_outdated = leg.known == Known::Outdated;
            is_outdated || matches!(leg.reading, Reading::Since(_))
        };
        let is_complete = self.assembling.is_forced
            || self.waits_until() <= now_ns
            || legs.iter().all(LegRead::is_known);
        let is_due = matches!(self.state, State::Assembling) && is_complete;
        let decides = is_due && !legs.iter().any(pending);
        if decides {
            self.assembling.known = legs.iter().filter(|leg| leg.is_known()).count();
        }
        decides
    }

    /// When [`Self::handle_turn`] is due, ns.
    pub fn assembling_timeout(&self, legs: &[LegRead]) -> Option<u64> {
        let reads = legs.iter().filter(|leg| self.asks(**leg));
        let reads = reads.filter_map(|leg| match leg.reading {
            // From the beginning: a turn has been asked for.
            Reading::Due(0) => None,
            Reading::Due(at_ns) => Some(at_ns),
            Reading::Unreachable | Reading::Since(_) | Reading::Late => None,
        });
        // The end of a read needs no timer.
        let is_read = |leg: &LegRead| matches!(leg.reading, Reading::Since(_));
        let decides_at = match self.state {
            State::Assembling if !legs.iter().any(is_read) => self.waits_until(),
            State::Refused { again_at_ns, .. } => again_at_ns,
            _ => u64::MAX,
        };
        let late = legs.iter().map(|leg| self.gives_up_at(*leg));
        let times = reads.chain(late).chain([decides_at]);
        times.min().filter(|&at_ns| at_ns < u64::MAX)
    }

    /// Forces a decision with the legs that are there.
    pub fn force(&mut self) {
        self.assembling.is_forced = true;
    }

    /// Takes that back.
    pub fn take_back_force(&mut self) {
        self.assembling.is_forced = false;
    }

    /// Tries a refused start again at the next turn.
    pub fn try_again(&mut self, now_ns: u64) {
        if let State::Refused { again_at_ns, .. } = &mut self.state {
            *again_at_ns = now_ns;
        }
    }

    /// Whether a leg has to be read for the next decision.
    fn asks(&self, leg: LegRead) -> bool {
        match leg.known {
            Known::No => true,
            Known::Outdated => matches!(self.state, State::Assembling),
            Known::Yes => false,
        }
    }

    fn waits_until(&self) -> u64 {
        let since_ns = self.assembling.since_ns;
        let decide_ns = self.assembling.decide_ns;
        since_ns.map_or(u64::MAX, |it| it.saturating_add(decide_ns))
    }
}
