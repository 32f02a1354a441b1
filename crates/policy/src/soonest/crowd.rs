//! The choice where every path is full.
//!
//! Then no choice changes how much is carried, only who waits: with the price and by what sizes
//! cost on each path, the largest I/Os would all go to the slowest paths. So the waits are kept
//! even, whatever the I/O.
//!
//! # Contract
//! [`Soonest::count_crowd`] finds out now and then whether the paths are full, and it takes a while
//! until it believes so. [`Soonest::even`] makes one choice, or none where a path has room now.
//!
//! # Limits
//! Reads and writes mixed wait in different places of a path, and their waits are not compared: all
//! goes on as where there is room.

use super::Soonest;
use super::model::{Kind, Model};
use crate::limits::PATHS_MAX;
use crate::types::PathView;

/// A path is full where I/Os would wait for so many,
const MANY: u64 = 4;
/// and has room where they would wait for fewer than so many.
const SOME: u64 = 2;
/// How often the paths are looked at.
const COUNT_NS: u64 = 1_000_000;
/// All are believed to be full when so many more looks said so than not, each of which counts
/// [`ROOM`] times.
const BELIEVED: u8 = 16;
const ROOM: u8 = 8;

/// Whether all paths are full.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crowd {
    /// They are believed to be.
    pub(super) is_dense: bool,
    /// Looks that said so; up to twice [`BELIEVED`].
    count: u8,
    /// When to look again.
    next_ns: u64,
}

impl Crowd {
    pub(super) const NEW: Self = Self {
        is_dense: false,
        count: 0,
        next_ns: 0,
    };
}

impl Soonest {
    /// Looks whether every usable path is full.
    pub(super) fn count_crowd(
        &mut self,
        now_ns: u64,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) {
        if now_ns < self.crowd.next_ns {
            return;
        }
        let mut usable = paths.iter().enumerate().filter(|(_, view)| view.usable());
        let full = usable.all(|(path, view)| {
            let elsewhere = self.others.now(path, view, in_flight[path]);
            self.models[path].is_full(elsewhere)
        });
        let count = match full {
            true => (self.crowd.count + 1).min(2 * BELIEVED),
            false => self.crowd.count.saturating_sub(ROOM),
        };
        self.crowd = Crowd {
            is_dense: count >= BELIEVED,
            count,
            next_ns: now_ns.saturating_add(COUNT_NS),
        };
        self.small = self.find_small(paths);
        self.is_special = self.crowd.is_dense || self.small.any();
    }

    /// The path on which an I/O of the usual size would wait least; `None`: one of them has room.
    pub(super) fn even(
        &self,
        kind: Kind,
        now_ns: u64,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) -> Option<usize> {
        let (mut best, mut best_ns) = (None, u64::MAX);
        for (path, view) in paths.iter().enumerate().filter(|(_, view)| view.usable()) {
            // A mask instead of a check.
            let (model, own) = (&self.models[path % PATHS_MAX], in_flight[path % PATHS_MAX]);
            let elsewhere = self.others.now(path, view, own);
            let time_ns = model.usual_ns(kind, own, elsewhere, now_ns)?;
            if time_ns < best_ns {
                (best, best_ns) = (Some(path), time_ns);
            }
        }
        best
    }
}

impl Model {
    /// Whether many would wait now.
    fn is_full(&self, elsewhere: u32) -> bool {
        let writes = self.mix[1] > self.mix[0];
        let face = &self.faces[usize::from(writes)];
        !self.is_mixed() && face.wait_ns(elsewhere) > MANY * face.each_ns()
    }

    /// How long an I/O of the usual size would take, if some would wait.
    #[inline]
    pub(super) fn usual_ns(
        &self,
        kind: Kind,
        own: u32,
        elsewhere: u32,
        now_ns: u64,
    ) -> Option<u64> {
        let face = &self.faces[kind.direction];
        let wait_ns = face.wait_ns(elsewhere);
        if wait_ns <= SOME * face.each_ns() {
            return None;
        }
        let time_ns = u64::from(face.knee_ns) + wait_ns;
        Some(match self.is_odd(now_ns) {
            true => self.odd(kind, own, now_ns, self.empty_ns(kind), time_ns).0,
            false => time_ns,
        })
    }
}
