//! Which path? The policies that choose one of several unequal ways to the same data.
#![no_std]
#![forbid(unsafe_code)]

pub mod limits;
mod types;

pub use types::*;

/// The selector of one core: the state of one policy over the paths of one volume.
///
/// Holds no clock and takes no lock; one core owns it. The caller hands in what is true of the paths
/// now ([`PathView`]) with every selection, and reports every end of an I/O with [`Selector::complete`].
pub struct Selector {
    _todo: (),
}

impl Selector {
    /// A selector for `paths` paths (1…[`limits::PATHS_MAX`]), with `policy`.
    pub fn new(paths: usize, policy: Policy) -> Self {
        let _ = (paths, policy);
        todo!()
    }

    /// The policy in force.
    pub fn policy(&self) -> Policy {
        todo!()
    }

    /// Changes the policy. What the old one remembered is cleared; in-flight counts stay (T41).
    pub fn set_policy(&mut self, policy: Policy) {
        let _ = policy;
        todo!()
    }

    /// Knobs of weighted-latency.
    pub fn set_knobs(&mut self, knobs: Knobs) {
        let _ = knobs;
        todo!()
    }

    /// Chooses a path for `request`, or `None` when no path is usable. Counts the selection and
    /// raises the in-flight count of the chosen path: every `Some` is balanced by one [`Self::complete`].
    pub fn select(&mut self, request: &Request, paths: &[PathView]) -> Option<PathIndex> {
        let _ = (request, paths);
        todo!()
    }

    /// One I/O that [`Self::select`] placed has ended.
    pub fn complete(&mut self, done: &Completion) {
        let _ = done;
        todo!()
    }

    /// Forgets what was learnt about `path` (capacity change, reconnect, removal).
    pub fn reset_path(&mut self, path: PathIndex) {
        let _ = path;
        todo!()
    }

    /// I/Os of this core in flight on `path`.
    pub fn in_flight(&self, path: PathIndex) -> u32 {
        let _ = path;
        todo!()
    }

    /// What row A9 shows, for `path` and `group`.
    pub fn stats(&self, path: PathIndex, group: Group) -> PathStats {
        let _ = (path, group);
        todo!()
    }
}
