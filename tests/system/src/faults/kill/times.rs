//! Shares of the time of rounds.
use serde_json::{Map, Value};
use std::time::Instant;

/// A part of a round.
#[derive(Clone, Copy)]
pub enum Part {
    /// Processes are started, until the mirror runs.
    Start,
    /// Everything is read through it.
    Read,
    /// It is awaited that all legs are in sync.
    Rebuild,
    /// Writers, and the kill.
    Load,
    /// Each leg by itself.
    Legs,
    /// Copies without one leg.
    Away,
}

impl Part {
    const NAMES: [&'static str; 6] = ["start", "read", "rebuild", "load", "legs", "one_leg_away"];
}

/// Sums.
#[derive(Default)]
pub struct Times {
    seconds: [f64; Part::NAMES.len()],
}

impl Times {
    /// Does something, and counts its time.
    pub fn spend<T>(&mut self, part: Part, what: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = what();
        self.add(part, begun);
        done
    }

    /// Counts the time since then.
    pub fn add(&mut self, part: Part, begun: Instant) {
        self.seconds[part as usize] += begun.elapsed().as_secs_f64();
    }

    /// Of a round in the mean, ms.
    pub fn show(&self, rounds: u32) -> Value {
        let parts = Part::NAMES.iter().zip(self.seconds);
        let mean = |seconds: f64| (seconds * 1e5 / f64::from(rounds.max(1))).round() / 100.0;
        let all = parts.map(|(name, seconds)| ((*name).to_owned(), mean(seconds).into()));
        Value::Object(all.collect::<Map<_, _>>())
    }
}
