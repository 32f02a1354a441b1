//! The head: one device over all paths of a namespace.
//!
//! Decides which paths belong to the device (from what they show), which of them may be used now
//! (connected, ANA), and, by its policy, which serves an I/O. For the engine of one core.
//!
//! # Contract
//! A path takes part after [`Head::admit`] and while it is [enabled](Head::set_enabled). Every
//! path that [`Head::select`] returns is answered by exactly one [`Head::complete`], also when the
//! policy was changed or the path lost in between (T41). Errors come before balance: the policy
//! ranks only inside the set of enabled paths. [`Head::turn`] is called once per loop turn, after
//! the completions.
//!
//! # Limits
//! 1…[`PATHS_MAX`](crate::limits::PATHS_MAX) paths. No failover yet: an outcome is reported, not
//! survived.
use crate::{Conflict, Identity, IoLimits, Outcome, Refused, Size, limits::PATHS_MAX};
use alloc::vec::Vec;
use policy::{
    Ana, Completion, Ended, Group, KnobError, Knobs, PathIndex, PathStats, PathView, Policy,
    Request, Selector,
};

/// What one path shows of the device behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Whose data it is.
    pub identity: Identity,
    /// How much.
    pub size: Size,
    /// What it can.
    pub limits: IoLimits,
}

/// One device over its paths. See the module's contract.
pub struct Head {
    selector: Selector,
    /// What the policy is told, kept current so that a selection builds nothing.
    views: Vec<PathView>,
    shown: Vec<Option<Shown>>,
    /// A window has closed: weights are due at the end of the turn.
    weigh: bool,
}

impl Head {
    /// A head over `distances.len()` paths, none admitted yet; `distances` are NUMA distances from
    /// this core.
    ///
    /// # Panics
    /// Without a path, with more than [`PATHS_MAX`], or with knobs out of range: configurations are
    /// checked before.
    pub fn new(distances: impl IntoIterator<Item = u32>, policy: Policy, knobs: Knobs) -> Self {
        let views: Vec<_> = distances
            .into_iter()
            .map(|distance| PathView {
                enabled: false,
                ana: Ana::Optimized,
                distance,
                in_flight_elsewhere: 0,
            })
            .collect();
        assert!(
            (1..=PATHS_MAX).contains(&views.len()),
            "a head has 1…{PATHS_MAX} paths"
        );
        let mut selector = Selector::new(views.len(), policy);
        assert!(
            selector.set_knobs(knobs).is_ok(),
            "knobs are checked before"
        );
        let shown = views.iter().map(|_| None).collect();
        Self {
            selector,
            views,
            shown,
            weigh: false,
        }
    }

    /// Adds `path` to the device, not yet enabled; or checks it again after a reconnect (T32).
    ///
    /// # Errors
    /// It shows something else than a path admitted before, or than itself before.
    pub fn admit(&mut self, path: PathIndex, shown: Shown) -> Result<(), Refused> {
        for (other, there) in self.admitted() {
            let same = if other == path {
                shown.identity.same_as(&there.identity)
            } else {
                shown.identity.joins(&there.identity)
            };
            same.and_then(|()| same_size(shown.size, there.size))
                .map_err(|why| Refused { path, other, why })?;
        }
        self.shown[usize::from(path.0)] = Some(shown);
        Ok(())
    }

    /// What an admitted path shows has changed. A new capacity resets what was learnt of it (A11).
    ///
    /// # Errors
    /// It has become another namespace, or has other blocks.
    pub fn changed(&mut self, path: PathIndex, shown: Shown) -> Result<(), Refused> {
        let Some(before) = &mut self.shown[usize::from(path.0)] else {
            return self.admit(path, shown);
        };
        let same = shown.identity.same_as(&before.identity).and_then(|()| {
            let blocks = Size {
                blocks: before.size.blocks,
                ..shown.size
            };
            same_size(blocks, before.size)
        });
        same.map_err(|why| Refused {
            path,
            other: path,
            why,
        })?;
        let resized = before.size != shown.size;
        *before = shown;
        if resized {
            self.selector.reset_path(path);
        }
        Ok(())
    }

    /// Allows or forbids I/O on an admitted path.
    ///
    /// # Panics
    /// If a path that was never admitted is enabled.
    pub fn set_enabled(&mut self, path: PathIndex, enabled: bool) {
        assert!(
            !enabled || self.shown[usize::from(path.0)].is_some(),
            "enabled before admitted"
        );
        let view = &mut self.views[usize::from(path.0)];
        if enabled && !view.enabled {
            self.selector.reset_path(path); // A11, T38: after a connect nothing is known
        }
        view.enabled = enabled;
    }

    /// Whether I/O is allowed on `path`.
    pub fn is_enabled(&self, path: PathIndex) -> bool {
        self.views[usize::from(path.0)].enabled
    }

    /// The ANA state of `path`.
    pub fn set_ana(&mut self, path: PathIndex, ana: Ana) {
        self.views[usize::from(path.0)].ana = ana;
    }

    /// I/Os that other cores have in flight on `path` (T47).
    pub fn set_elsewhere(&mut self, path: PathIndex, in_flight: u32) {
        self.views[usize::from(path.0)].in_flight_elsewhere = in_flight;
    }

    /// The path for one I/O, or `None` when none is usable.
    #[inline]
    pub fn select(&mut self, request: &Request) -> Option<PathIndex> {
        self.selector.select(request, &self.views)
    }

    /// An I/O placed by [`Head::select`] has ended. `latency_ns` counts from the start of the
    /// request. Failures say nothing about latency (T43). True: say that this path stalls (A2).
    #[inline]
    pub fn complete(
        &mut self,
        path: PathIndex,
        group: Group,
        outcome: Outcome,
        latency_ns: u64,
        now_ns: u64,
    ) -> bool {
        let ended = if outcome.is_done() {
            Ended::Good
        } else {
            Ended::Failed
        };
        let done = Completion {
            path,
            group,
            latency_ns,
            ended,
            now_ns,
        };
        let noted = self.selector.complete(&done);
        self.weigh |= noted.weigh;
        noted.warn_ignored
    }

    /// Once per loop turn, after its completions: calculates the weights that are due.
    #[inline]
    pub fn turn(&mut self) {
        if core::mem::take(&mut self.weigh) {
            self.selector.weigh();
        }
    }

    /// I/Os of this core in flight on `path`.
    pub fn in_flight(&self, path: PathIndex) -> u32 {
        self.selector.in_flight(path)
    }

    /// Changes policy and knobs; I/O in flight is not disturbed. What the old policy remembered is
    /// cleared, unless only the knobs differ.
    ///
    /// # Errors
    /// A knob is out of range; nothing changes.
    pub fn set_policy(&mut self, policy: Policy, knobs: Knobs) -> Result<(), KnobError> {
        self.selector.set_knobs(knobs)?;
        self.selector.set_policy(policy);
        Ok(())
    }

    /// The policy in force.
    pub fn policy(&self) -> Policy {
        self.selector.policy()
    }

    /// What row A9 shows, for `path` and `group`.
    pub fn stats(&self, path: PathIndex, group: Group) -> PathStats {
        self.selector.stats(path, group)
    }

    /// Size of the device: what all admitted paths agreed on. `None` before the first one.
    pub fn size(&self) -> Option<Size> {
        let mut sizes = self.admitted().map(|(_, shown)| shown.size);
        let first = sizes.next()?;
        Some(sizes.fold(first, |a, b| Size {
            blocks: a.blocks.min(b.blocks),
            ..a
        }))
    }

    /// What the device can promise over all admitted paths (T34). `None` before the first one.
    pub fn limits(&self) -> Option<IoLimits> {
        self.admitted()
            .map(|(_, shown)| shown.limits)
            .reduce(IoLimits::stack)
    }

    /// The admitted paths and what they show, in order.
    pub fn admitted(&self) -> impl Iterator<Item = (PathIndex, &Shown)> {
        (0u8..)
            .zip(&self.shown)
            .filter_map(|(i, shown)| Some((PathIndex(i), shown.as_ref()?)))
    }
}

/// T33.
fn same_size(here: Size, there: Size) -> Result<(), Conflict> {
    if here.block_shift != there.block_shift {
        Err(Conflict::BlockSize(here.block_shift, there.block_shift))
    } else if here.blocks != there.blocks {
        Err(Conflict::Capacity(here.blocks, there.blocks))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
