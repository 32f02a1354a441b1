//! `devid:<id>`: the path the user names.
//!
//! Uses the named path while it is usable, whether optimized or not: the user asked for it.
//! Otherwise the first usable path is used, optimized before non-optimized.
//!
//! # Origin
//! Row B4. An id that no path has is refused before it comes here
//! ([`Policy::check`](crate::Policy::check)).

use crate::ana::least;
use crate::types::{PathIndex, PathView};

/// `path` if it is usable, else the first that is.
pub(crate) fn choose(path: PathIndex, paths: &[PathView]) -> Option<usize> {
    let wanted = usize::from(path.0);
    if paths.get(wanted).is_some_and(PathView::usable) {
        return Some(wanted);
    }
    least(paths, |_, _| 0)
}
