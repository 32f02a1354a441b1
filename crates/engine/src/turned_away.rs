//! Those who came when all places were taken: of many, few are spoken of.
//!
//! # Contract
//! One of a kind for each log: at most one line per [`TURNED_AWAY_SAID_NS`], which counts all since
//! the one before. Times are of one clock, ns (T42).
use crate::limits::TURNED_AWAY_SAID_NS;

/// How many, and when that may be said.
#[derive(Debug, Default)]
pub struct TurnedAway {
    /// Since it was said last.
    count: u32,
    /// When it may be said again.
    say_ns: u64,
}

impl TurnedAway {
    /// One more. If it is time for a line: how many since the last one.
    pub fn one_more(&mut self, now_ns: u64) -> Option<u32> {
        self.count = self.count.saturating_add(1);
        if now_ns < self.say_ns {
            return None;
        }
        self.say_ns = now_ns.saturating_add(TURNED_AWAY_SAID_NS);
        Some(core::mem::take(&mut self.count))
    }
}
