//! Modules of the SDK beside the policies that they imitate, and mutated.
#![allow(clippy::unwrap_used, reason = "tests")]
mod examples;
mod model;
mod mutated;

/// xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
