//! What the cores of one program tell each other of the I/Os they have in flight (trap T47).
//!
//! # Contract
//! Each core writes its own row and only reads the others'. It writes at the end of a loop turn,
//! when what has ended is replaced already: while a core sleeps, its row says what it waits for. A
//! count that is read may be one loop turn old; a policy that looks at it chooses by a slightly
//! older truth, and nothing else depends on it.
use engine::host::HostEngine;
use std::sync::atomic::{AtomicU32, Ordering};

/// I/Os in flight by core and path.
pub struct Board {
    rows: Vec<Row>,
}

/// One core's counts, by the engine's number of the path, on cache lines of their own.
#[repr(align(128))]
struct Row(Box<[Line]>);

/// As many counts as one pair of cache lines holds.
#[repr(align(128))]
#[derive(Default)]
struct Line([AtomicU32; 32]);

impl Board {
    /// A board for `cores` cores and so many paths in all.
    pub fn new(cores: usize, paths: usize) -> Self {
        let row = || Row((0..paths.div_ceil(32)).map(|_| Line::default()).collect());
        Self {
            rows: (0..cores).map(|_| row()).collect(),
        }
    }

    /// Tells this core's engine what the others have in flight.
    pub fn read(&self, core: u16, engine: &mut HostEngine) {
        if self.rows.len() > 1 {
            engine.update_elsewhere(|place| self.elsewhere(core.into(), place));
        }
    }

    /// Shows the others what this core has in flight.
    pub fn show(&self, core: u16, engine: &HostEngine) {
        if self.rows.len() > 1 {
            for (place, volume, path) in engine.places() {
                self.set(core.into(), place, engine.in_flight(volume, path));
            }
        }
    }

    fn set(&self, core: usize, at: usize, count: u32) {
        self.rows[core].0[at / 32].0[at % 32].store(count, Ordering::Relaxed);
    }

    /// What all cores but this one have together.
    pub(super) fn elsewhere(&self, core: usize, at: usize) -> u32 {
        let others = (0..).zip(&self.rows).filter(|(number, _)| *number != core);
        others.fold(0, |sum: u32, (_, row)| {
            sum.saturating_add(row.0[at / 32].0[at % 32].load(Ordering::Relaxed))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t47_each_core_sees_what_the_others_have() {
        let board = Board::new(3, 66);
        for (core, count) in [(0, 5), (1, 7), (2, 1), (0, 2)] {
            board.set(core, 65, count);
        }
        assert_eq!([0, 1, 2].map(|core| board.elsewhere(core, 65)), [8, 3, 9]);
        assert_eq!(board.elsewhere(1, 64), 0, "another path");
    }

    #[test]
    fn t47_no_two_cores_write_one_cache_line() {
        let board = Board::new(2, 1);
        let address = |core: usize| (&raw const board.rows[core].0[0]) as usize;
        assert!(address(0).abs_diff(address(1)) >= 128);
        assert_eq!(address(0) % 128, 0);
    }
}
