//! `queue-depth`: the path with the fewest I/Os in flight.
//!
//! Decides from this core's own counts, which are exact, and from what the other cores last
//! published ([`PathView::in_flight_elsewhere`]), which may be stale by one of their loop turns: a
//! stale count affects balance, never correctness.
//!
//! # Origin
//! Rows A1, A7. As in the kernel the search always starts at the first path, so the lowest index
//! wins a tie: at queue depth 1 all I/O goes to the first path.

use crate::ana::least;
use crate::limits::PATHS_MAX;
use crate::types::PathView;

/// The usable path of least depth, optimized before non-optimized, ties to the lowest index.
#[inline]
pub(crate) fn choose(paths: &[PathView], in_flight: &[u32; PATHS_MAX]) -> Option<usize> {
    least(paths, |index, view| {
        u64::from(in_flight[index]) + u64::from(view.in_flight_elsewhere)
    })
}
