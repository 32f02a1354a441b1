//! `devid:<id>`: the path the user names.
//!
//! Decides from nothing else, as long as that path is usable, whatever its ANA state: the user
//! asked for it. While it is not, the first usable path serves, optimized before non-optimized.
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
