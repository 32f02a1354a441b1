//! What the cores of one program tell each other of the I/Os they have in flight (trap T47).
//!
//! # Contract
//! Each core writes its own row and only reads the others'. A count that is read may be one loop
//! turn old; a policy that looks at it chooses by a slightly older truth, and nothing else depends
//! on it.
use engine::host::HostEngine;
use policy::PathIndex;
use std::sync::atomic::{AtomicU32, Ordering};

/// I/Os in flight by core and path.
pub struct Board {
    rows: Vec<Row>,
    /// Of each volume, in the volumes' order.
    paths: Vec<u8>,
}

/// One core's counts, volume after volume, on cache lines of their own.
#[repr(align(128))]
struct Row(Box<[Line]>);

/// As many counts as one pair of cache lines holds.
#[repr(align(128))]
#[derive(Default)]
struct Line([AtomicU32; 32]);

impl Board {
    /// A board for `cores` cores and volumes of so many paths.
    pub fn new(cores: usize, paths: Vec<u8>) -> Self {
        let counts: usize = paths.iter().map(|&paths| usize::from(paths)).sum();
        let row = || Row((0..counts.div_ceil(32)).map(|_| Line::default()).collect());
        Self {
            rows: (0..cores).map(|_| row()).collect(),
            paths,
        }
    }

    /// Shows this core's counts to the others, and theirs to this core's engine.
    pub fn exchange(&self, core: u16, engine: &mut HostEngine) {
        if self.rows.len() < 2 {
            return;
        }
        let mut at = 0;
        for (volume, &paths) in (0..).zip(&self.paths) {
            for path in (0..paths).map(PathIndex) {
                let own = engine.in_flight(volume, path);
                engine.set_elsewhere(volume, path, self.swap(usize::from(core), at, own));
                at += 1;
            }
        }
    }

    /// Writes a core's count; what all others have together.
    fn swap(&self, core: usize, at: usize, own: u32) -> u32 {
        let mut others = 0_u32;
        for (number, row) in self.rows.iter().enumerate() {
            let count = &row.0[at / 32].0[at % 32];
            if number == core {
                count.store(own, Ordering::Relaxed);
            } else {
                others = others.saturating_add(count.load(Ordering::Relaxed));
            }
        }
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t47_each_core_sees_what_the_others_have() {
        let board = Board::new(3, vec![2, 64]);
        assert_eq!(board.swap(0, 65, 5), 0);
        assert_eq!(board.swap(1, 65, 7), 5);
        assert_eq!(board.swap(2, 65, 1), 12);
        assert_eq!(board.swap(0, 65, 2), 8);
        assert_eq!(board.swap(1, 64, 0), 0, "another path");
    }

    #[test]
    fn t47_no_two_cores_write_one_cache_line() {
        let board = Board::new(2, vec![1]);
        let address = |core: usize| (&raw const board.rows[core].0[0]) as usize;
        assert!(address(0).abs_diff(address(1)) >= 128);
        assert_eq!(address(0) % 128, 0);
    }
}
