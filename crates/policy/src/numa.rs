//! `numa`: the path nearest to this core.
//!
//! Decides from [`PathView::distance`] alone; load does not move it. It changes only when the
//! nearest path stops being usable, or a better one (optimized, or nearer) becomes so.
//!
//! # Origin
//! Rows A1, A7. The kernel keeps the choice in a per-node pointer and renews it when paths change;
//! a search at every I/O gives the same answer without a pointer that could become stale.

use crate::ana::least;
use crate::types::PathView;

/// The usable path of least distance, optimized before non-optimized, ties to the lowest index.
#[inline]
pub(crate) fn choose(paths: &[PathView]) -> Option<usize> {
    least(paths, |_, view| u64::from(view.distance))
}
