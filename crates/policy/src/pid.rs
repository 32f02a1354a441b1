//! `pid`: each reader keeps to one path.
//!
//! Decides from the reader's identity ([`Request::source`](crate::Request::source)) modulo the
//! number of paths that may be read now: readers spread out, and what one of them reads comes in
//! its order from one copy. Load does not move it.
//!
//! # Origin
//! Rows B1, A7. The document takes the process id modulo all copies, and the first copy where that
//! one is not there; here only paths that can be read count, so that the readers of a lost one
//! spread over all that are left. While all are there the answer is the same.

use crate::types::PathView;

/// The path of number `source` among the optimized ones, without any among the non-optimized ones,
/// counted round and round.
pub(crate) fn choose(source: u64, paths: &[PathView]) -> Option<usize> {
    nth(source, paths, PathView::optimized).or_else(|| nth(source, paths, PathView::usable))
}

fn nth(source: u64, paths: &[PathView], may: fn(&PathView) -> bool) -> Option<usize> {
    let those = || (0..paths.len()).filter(|&path| may(&paths[path]));
    let number = source.checked_rem(those().count() as u64)?;
    those().nth(number as usize)
}
