//! Which paths may be chosen, and in which order (row A7): shared by all policies.

use crate::limits::PATHS_MAX;
use crate::types::{Ana, PathView};

/// Bits of an index in a key, below the cost.
const INDEX_BITS: u32 = PATHS_MAX.ilog2();
/// Where the rank stands in a key, above every cost.
const RANK_SHIFT: u32 = 34 + INDEX_BITS;
/// Rank from which on a path must not be chosen; optimized is 0, non-optimized 1.
const NEVER: u64 = 2;
/// Added to the rank of a path that is not enabled.
const DISABLED: u64 = 8;

impl PathView {
    /// Enabled, and its ANA state lets I/O through.
    #[inline]
    pub fn usable(&self) -> bool {
        // Arithmetic, not branches: it is asked of every path at every I/O.
        self.enabled & (self.ana as u8 <= Ana::NonOptimized as u8)
    }

    /// Usable, and preferred over all that are not optimized.
    #[inline]
    pub fn optimized(&self) -> bool {
        self.enabled && self.ana == Ana::Optimized
    }

    /// Lower comes first. Arithmetic, not branches: it is done for every path at every I/O.
    #[inline]
    fn rank(&self) -> u64 {
        self.ana as u64 + u64::from(!self.enabled) * DISABLED
    }
}

const _: () = assert!(Ana::Optimized as u64 == 0 && Ana::NonOptimized as u64 == NEVER - 1);

/// The optimized path of least cost; without one, the non-optimized path of least cost. The lowest
/// index wins a tie. Costs are below 2^34, paths at most 64.
#[inline]
pub(crate) fn least(paths: &[PathView], cost: impl Fn(usize, &PathView) -> u64) -> Option<usize> {
    // Rank, cost and index as one number each: the least of them is the answer, ties and all.
    let mut best = NEVER << RANK_SHIFT;
    for (index, view) in paths.iter().enumerate() {
        let cost = cost(index, view);
        debug_assert!(cost < 1 << (RANK_SHIFT - INDEX_BITS), "a cost of {cost}");
        let key = view.rank() << RANK_SHIFT | cost << INDEX_BITS | index as u64;
        best = best.min(key);
    }
    (best < NEVER << RANK_SHIFT).then_some((best % (1 << INDEX_BITS)) as usize)
}

/// The path behind `index`, in a circle of `count`.
#[inline]
pub(crate) fn next(index: usize, count: usize) -> usize {
    if index + 1 < count { index + 1 } else { 0 }
}
