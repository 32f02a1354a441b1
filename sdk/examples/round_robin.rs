//! The next usable path, optimized before non-optimized: as braid's `round-robin`.
#![no_std]
use braid_policy_sdk::{Path, Policy, Request};

pub struct RoundRobin {
    /// The path after the last one.
    next: usize,
}

impl Policy for RoundRobin {
    const NEW: Self = Self { next: 0 };

    fn select(&mut self, _: &mut Request, paths: &mut [Path]) -> Option<usize> {
        let count = paths.len();
        let mut second = None;
        let mut at = if self.next < count { self.next } else { 0 };
        let mut chosen = None;
        for _ in 0..count {
            let path = paths.get(at)?;
            if path.is_optimized() {
                chosen = Some(at);
                break;
            }
            if path.is_usable() && second.is_none() {
                second = Some(at);
            }
            at = if at + 1 < count { at + 1 } else { 0 };
        }
        let chosen = chosen.or(second)?;
        self.next = chosen + 1;
        Some(chosen)
    }
}

braid_policy_sdk::export!(RoundRobin);
