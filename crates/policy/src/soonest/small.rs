//! Paths that are slower and can carry next to nothing beside the others.
//!
//! With its price a full path sends I/Os to one that is far slower, where that can take some: all
//! together then end sooner. Beside flash a disk that turns carries a hundredth of the I/Os, and
//! each of them takes several times as long as the others. That is no bargain: what is gained is
//! hardly seen, but one in a hundred users' I/Os is late.
//!
//! # Contract
//! Paths that together carry less than 1 in [`SMALL`] of what the strongest alone does are small.
//! An I/O goes to one only where it is predicted to end no later than on the best of the others,
//! whatever the price there. A small path is looked at like any other.
//!
//! # Limits
//! It is looked at now and then, in the mix of I/Os of this core. A path of which nothing is known,
//! or that never was under load, is not small. Where paths are many and slow, but carry more
//! together, all of them are used.

use super::model::Kind;
use super::{First, Soonest};
use crate::limits::PATHS_MAX;
use crate::types::{Forecast, PathView, Request};

/// Paths that carry together less than 1 in so many of what the strongest does.
const SMALL: u64 = 32;
/// I/Os in so many ns, Q8, are counted.
const WHILE: u64 = 1 << 48;

/// Small paths by direction, one bit each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Small([u64; 2]);

const _: () = assert!(PATHS_MAX <= 64);

impl Small {
    pub(super) const NONE: Self = Self([0; 2]);

    /// Whether there is any.
    pub(super) fn any(self) -> bool {
        self.0 != [0; 2]
    }

    /// Nothing is known of a path any more.
    pub(super) fn remove(&mut self, path: usize) {
        self.0.iter_mut().for_each(|set| *set &= !(1 << path));
    }

    /// Whether a path is small for I/Os of this kind.
    pub(super) fn has(self, kind: Kind, path: usize) -> bool {
        self.0[kind.direction] >> path & 1 == 1
    }
}

impl Soonest {
    /// Which usable paths are small now.
    pub(super) fn find_small(&self, paths: &[PathView]) -> Small {
        Small([0, 1].map(|direction| {
            let carries = |path: usize| {
                let each = self.models[path].faces[direction].each_q8();
                (each > 0).then(|| WHILE / each)
            };
            let usable = paths.iter().enumerate().filter(|(_, view)| view.usable());
            let known = || {
                usable
                    .clone()
                    .filter_map(|(path, _)| Some((path, carries(path)?)))
            };
            let most = known().map(|(_, ios)| ios).max().unwrap_or(0) / SMALL;
            let weak = || known().filter(|&(_, ios)| ios < most);
            let together = weak().fold(0_u64, |sum, (_, ios)| sum.saturating_add(ios));
            match together < most {
                true => weak().fold(0, |set, (path, _)| set | 1 << path),
                false => 0,
            }
        }))
    }

    /// The best path where some are small.
    pub(super) fn best_beside_small(
        &self,
        request: &Request,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) -> First {
        let (kind, now_ns) = (Kind::of(request), request.now_ns);
        let small = self.small.0[kind.direction];
        let first = self.best::<true>(kind, now_ns, small, paths, in_flight);
        let Some(best) = first.best() else {
            return self.best::<true>(kind, now_ns, 0, paths, in_flight);
        };
        let outlook = |path: usize| {
            let own = in_flight[path];
            let elsewhere = self.others.now(path, &paths[path], own);
            self.models[path].forecast(kind, own, elsewhere, now_ns)
        };
        let time_ns = |it: &Forecast| it.time_ns().saturating_add(it.penalty_ns());
        let there = outlook(best);
        let others =
            (0..paths.len()).filter(|&path| self.small.has(kind, path) && paths[path].usable());
        let sooner = others.map(|path| (outlook(path), path));
        let sooner =
            sooner.filter(|(it, _)| it.cost_ns < there.cost_ns && time_ns(it) <= time_ns(&there));
        let least = sooner.min_by_key(|(it, path)| (it.cost_ns, *path));
        First {
            best: least.map_or(best, |(_, path)| path),
            ..first
        }
    }
}
