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
//! Up to [`PATHS_MAX`](crate::limits::PATHS_MAX) paths; they may come and go.
use crate::health::{Health, Limits};
use crate::{Conflict, Identity, Outcome, Refused, Size, limits::PATHS_MAX};
use alloc::boxed::Box;
use alloc::vec::Vec;
use block::IoLimits;
use canary::Bug;
use policy::{
    Ana, Completion, Ended, Group, KnobError, Knobs, Means, NodeMeans, PathIndex, PathStats,
    PathView, Policy, Program, ProgramId, Request, Selector, Ticket,
};

mod choose;
mod hedge;
mod observe;
mod trial;

/// Facts of the device behind one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Identity of its data.
    pub identity: Identity,
    /// How much.
    pub size: Size,
    /// Its limits.
    pub limits: IoLimits,
}

/// Whether non-optimized paths are used beside optimized ones (T44).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnaUse {
    /// Only while no optimized path is usable: using them may make an array move its units.
    Strict,
    /// As the policy likes.
    Merge,
}

impl AnaUse {
    /// Defaults where the user chose nothing: weighted-latency weighs them by itself (A7).
    pub fn by_default(policy: Policy) -> Self {
        match policy {
            Policy::WeightedLatency(_) => Self::Merge,
            _ => Self::Strict,
        }
    }
}

/// State of one path beside its device's facts.
#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    /// I/O is allowed.
    enabled: bool,
    /// Its ANA state is in doubt (T26).
    pending: bool,
    /// Shows what it did before it was lost; its controller is gone.
    lost: bool,
    /// It gets nothing new.
    draining: bool,
    /// Another path showed another size or format since it was read (T33).
    stale: bool,
}

/// Why a path takes no I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// It isn't connected, or its queue has failed.
    Disabled,
    /// It gets nothing new.
    Draining,
    /// Its ANA state is in doubt, and read again (T26).
    Pending,
    /// Its size is in doubt, and read again (T33).
    Stale,
    /// Its ANA state allows none.
    Ana(Ana),
}

/// One device over its paths. See the module's contract.
pub struct Head {
    selector: Selector,
    /// The view of the policy, kept current so that a selection builds nothing.
    views: Vec<PathView>,
    shown: Vec<Option<Shown>>,
    /// Facts of a path over which I/O went. Also when all paths have left: users have its data.
    was: Option<Shown>,
    standing: Vec<Standing>,
    health: Vec<Health>,
    /// Limits that put a path on probation.
    health_limits: Limits,
    /// The user's choice; else by policy.
    ana_use: Option<AnaUse>,
    /// Paths with their first I/O after a probation.
    trials: trial::Trials,
    /// Whether any path can take I/O.
    any_usable: bool,
    /// A window has closed: weights are due at the end of the turn.
    weigh: bool,
    /// By how much an end may have been noticed late.
    gap_ns: u64,
}

impl Head {
    /// A head over `distances.len()` paths, none admitted yet; `distances` are NUMA distances from
    /// this core.
    ///
    /// # Panics
    /// With more than [`PATHS_MAX`] paths, or with knobs out of range: configurations are checked
    /// before.
    pub fn new(distances: impl IntoIterator<Item = u32>, policy: Policy, knobs: Knobs) -> Self {
        let views: Vec<_> = distances.into_iter().map(unknown).collect();
        assert!(
            views.len() <= PATHS_MAX,
            "a head has at most {PATHS_MAX} paths"
        );
        let mut selector = Selector::new(views.len(), policy);
        assert!(
            selector.set_knobs(knobs).is_ok(),
            "knobs are checked before"
        );
        for path in 0..views.len() as u8 {
            selector.set_present(PathIndex(path), false); // until it is admitted
        }
        let shown = views.iter().map(|_| None).collect();
        let standing = views.iter().map(|_| Standing::default()).collect();
        let health = views.iter().map(|_| Health::default()).collect();
        Self {
            selector,
            views,
            shown,
            was: None,
            standing,
            health,
            health_limits: Limits::OFF,
            ana_use: None,
            trials: trial::Trials::default(),
            any_usable: false,
            weigh: false,
            gap_ns: 0,
        }
    }

    /// Makes room for a path of this index: one more than there are, or one that was
    /// [forgotten](Head::forget). Nothing is known of it.
    ///
    /// # Panics
    /// At [`PATHS_MAX`] paths, or if the index leaves a gap.
    pub fn add(&mut self, path: PathIndex, distance: u32) {
        let at = usize::from(path.0);
        if at < self.views.len() {
            self.forget(path);
            self.views[at].distance = distance;
            return;
        }
        let room = self.selector.set_paths(at + 1);
        self.selector.set_present(path, false);
        assert!(
            room.is_ok() && at == self.views.len(),
            "path {at} of {}",
            self.views.len()
        );
        self.views.push(unknown(distance));
        self.shown.push(None);
        self.standing.push(Standing::default());
        self.health.push(Health::default());
    }

    /// A path left the device: what it showed and what was measured of it is forgotten. No I/O is
    /// in flight on it.
    pub fn forget(&mut self, path: PathIndex) {
        let at = usize::from(path.0);
        self.shown[at] = None;
        self.standing[at] = Standing::default();
        self.health[at] = Health::default();
        self.forget_trial(path);
        self.views[at] = unknown(self.views[at].distance);
        self.selector.reset_path(path);
        self.selector.set_present(path, false);
        self.show();
    }

    /// Whether a path gets nothing new, though it may do what it has, and flush.
    pub fn set_draining(&mut self, path: PathIndex, draining: bool) {
        let stays = !draining && canary::has(Bug::StaysAside);
        self.standing[usize::from(path.0)].draining = draining || stays;
        self.show();
    }

    /// Whether any path beside this one could take I/O.
    pub fn is_usable_beside(&self, path: PathIndex) -> bool {
        let mut others = (0..self.views.len() as u8).filter(|&other| other != path.0);
        others.any(|other| self.hindrance(PathIndex(other)).is_none())
    }

    /// Why `path` takes no I/O; `None`: it does, or would if no better one was there.
    pub fn hindrance(&self, path: PathIndex) -> Option<Hindrance> {
        let at = usize::from(path.0);
        let (is, ana) = (&self.standing[at], self.views[at].ana);
        let hindrances = [
            (!is.enabled, Hindrance::Disabled),
            (is.draining, Hindrance::Draining),
            (is.pending, Hindrance::Pending),
            (is.stale, Hindrance::Stale),
            (
                !matches!(ana, Ana::Optimized | Ana::NonOptimized),
                Hindrance::Ana(ana),
            ),
        ];
        let first = hindrances.into_iter().find(|(hinders, _)| *hinders);
        first.map(|(_, hindrance)| hindrance)
    }

    /// Adds `path` to the device, not yet enabled; or checks it again after a reconnect (T32).
    ///
    /// # Errors
    /// It shows something else than a path admitted before, or than itself before; or than any path
    /// that was enabled, though all of them have left since (T31).
    pub fn admit(&mut self, path: PathIndex, shown: Shown) -> Result<(), Refused> {
        for (other, there) in self.admitted() {
            self.agrees(path, &shown, other, there)
                .map_err(|why| Refused { path, other, why })?;
        }
        if let Some(was) = &self.was {
            same(&shown, was).map_err(|why| Refused {
                path,
                other: path,
                why,
            })?;
        }
        self.shown[usize::from(path.0)] = Some(shown);
        self.selector.set_present(path, true);
        let standing = &mut self.standing[usize::from(path.0)];
        (standing.lost, standing.stale) = (false, false);
        Ok(())
    }

    /// An admitted path was read again; whether its size has changed. A new capacity resets what
    /// was learnt of it (A11), and the paths that show another one are not used until they were
    /// read again and agree (T33).
    ///
    /// # Errors
    /// It has become another namespace, or has other blocks; then no other path is used until it
    /// was read again.
    pub fn changed(&mut self, path: PathIndex, shown: Shown) -> Result<bool, Refused> {
        let Some(before) = &mut self.shown[usize::from(path.0)] else {
            return self.admit(path, shown).map(|()| false);
        };
        if let Err(why) = same(&shown, before) {
            self.distrust(path, None);
            let other = path;
            return Err(Refused { path, other, why });
        }
        let (resized, size) = (before.size != shown.size, shown.size);
        *before = shown;
        if resized {
            self.selector.reset_path(path);
            self.distrust(path, Some(size));
        }
        let disagrees = |(other, there): (PathIndex, &Shown)| {
            let is = &self.standing[usize::from(other.0)];
            other != path && !is.lost && !is.stale && there.size != size
        };
        let stale = self.admitted().any(disagrees);
        self.standing[usize::from(path.0)].stale = stale;
        self.show();
        Ok(resized)
    }

    /// The other paths must be read again before they are used; but those that show `size`.
    fn distrust(&mut self, path: PathIndex, size: Option<Size>) {
        for (other, (is, there)) in (0_u8..).zip(self.standing.iter_mut().zip(&self.shown)) {
            let differs = there.as_ref().is_some_and(|it| Some(it.size) != size);
            is.stale |= other != path.0 && !is.lost && differs;
        }
        self.show();
    }

    /// Whether `path` must be read again before it is used (T33).
    pub fn is_stale(&self, path: PathIndex) -> bool {
        self.standing[usize::from(path.0)].stale
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
        let standing = &mut self.standing[usize::from(path.0)];
        if enabled && !standing.enabled {
            self.selector.reset_path(path); // A11, T38: after a connect nothing is known
            self.was = self.shown[usize::from(path.0)].clone();
        }
        standing.enabled = enabled;
        standing.pending &= enabled;
        self.show();
    }

    /// A path is gone, and its controller with it. It may come back by [`Head::admit`].
    pub fn lose(&mut self, path: PathIndex) {
        self.standing[usize::from(path.0)].lost = true;
        self.set_enabled(path, false);
    }

    /// Whether `path` was lost and has not come back.
    pub fn is_lost(&self, path: PathIndex) -> bool {
        self.standing[usize::from(path.0)].lost
    }

    /// The ANA state of `path` is in doubt: it is not used until told otherwise (T26).
    pub fn set_pending(&mut self, path: PathIndex, pending: bool) {
        self.standing[usize::from(path.0)].pending = pending;
        self.show();
    }

    /// Whether non-optimized paths are used beside optimized ones; `None`: as fits the policy.
    pub fn set_ana_use(&mut self, ana_use: Option<AnaUse>) {
        self.ana_use = ana_use;
        self.show();
    }

    /// Whether any path can take I/O.
    pub fn is_usable(&self) -> bool {
        self.any_usable
    }

    /// The paths that can take I/O, as bits.
    pub fn usable(&self) -> u64 {
        let usable =
            |it: &PathView| it.enabled && matches!(it.ana, Ana::Optimized | Ana::NonOptimized);
        (0..)
            .zip(&self.views)
            .fold(0, |bits, (at, it)| bits | u64::from(usable(it)) << at)
    }

    /// The admitted paths whose limits are as asked for, as bits.
    pub fn among(&self, asked: impl Fn(&IoLimits) -> bool) -> u64 {
        self.admitted()
            .filter(|(_, shown)| asked(&shown.limits))
            .fold(0, |bits, (path, _)| bits | 1 << path.0)
    }

    /// Whether what `path` shows now belongs beside `there`, shown by `other`. A fact that a path
    /// showed before it was lost still says whose data it is, but its controller's number may be in
    /// use again, and its size may have changed since.
    fn agrees(
        &self,
        path: PathIndex,
        shown: &Shown,
        other: PathIndex,
        there: &Shown,
    ) -> Result<(), Conflict> {
        let lost = self.is_lost(other);
        let outdated = lost || self.is_stale(other);
        let same = if other == path {
            shown.identity.same_as(&there.identity)
        } else {
            shown.identity.joins(&there.identity)
        };
        match same {
            Err(Conflict::Controller(_)) if lost => Ok(()),
            Ok(()) if outdated => same_blocks(shown.size, there.size),
            other => other.and_then(|()| same_size(shown.size, there.size)),
        }
    }

    /// Whether I/O is allowed on `path`.
    pub fn is_enabled(&self, path: PathIndex) -> bool {
        self.standing[usize::from(path.0)].enabled
    }

    /// The ANA state of `path`, as read now.
    pub fn set_ana(&mut self, path: PathIndex, ana: Ana) {
        self.views[usize::from(path.0)].ana = ana;
        self.set_pending(path, false);
    }

    /// Relative throughput of `path`, 0…[`THROUGHPUT_MAX`](policy::limits::THROUGHPUT_MAX), for
    /// `service-time`; 1 if nobody says.
    pub fn set_throughput(&mut self, path: PathIndex, throughput: u8) {
        self.views[usize::from(path.0)].throughput = throughput;
    }

    /// NUMA distance from this core to what `path` leads to; smaller is nearer.
    pub fn set_distance(&mut self, path: PathIndex, distance: u32) {
        self.views[usize::from(path.0)].distance = distance;
    }

    /// I/Os that other cores have in flight on `path` (T47).
    pub fn set_elsewhere(&mut self, path: PathIndex, in_flight: u32) {
        self.views[usize::from(path.0)].in_flight_elsewhere = in_flight;
    }

    /// An I/O that ends from now on may have been so much quicker than it looks: this core was
    /// busy.
    #[inline]
    pub fn set_gap(&mut self, gap_ns: u64) {
        self.gap_ns = gap_ns;
    }

    /// The path for one I/O, or `None` when none is usable.
    #[inline]
    pub fn select(&mut self, request: &Request) -> Option<PathIndex> {
        let chosen = self.selector.select(request, &self.views);
        if self.trials.due | u64::from(self.trials.begun) != 0 {
            self.begin_trial(chosen, request.group);
        }
        chosen
    }

    /// Ticket that has to come back with the end of the I/O that was placed last.
    #[inline]
    pub fn ticket(&self) -> Ticket {
        let ticket = self.selector.ticket();
        match self.trials.begun {
            true => ticket.as_first(),
            false => ticket,
        }
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
        ticket: Ticket,
    ) -> bool {
        let ended = if outcome.is_done() {
            Ended::Good
        } else {
            Ended::Failed
        };
        if canary::has(Bug::LeakedCount) && !outcome.is_done() {
            return false;
        }
        let done = Completion {
            path,
            group,
            latency_ns,
            ended,
            now_ns,
            ticket,
            gap_ns: self.gap_ns,
        };
        let noted = self.selector.complete(&done);
        if self.trials.out != 0 {
            self.end_trial(path, &ticket, outcome.is_done());
        }
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

    /// Under `per-numa`: whether [`Head::means`] has news for the node's other cores.
    #[inline]
    pub fn take_news(&mut self) -> bool {
        self.selector.take_news()
    }

    /// This core's measurements of `path`, for the cores of its node.
    pub fn means(&self, path: PathIndex) -> Means {
        self.selector.means(path)
    }

    /// Under `per-numa`: calculates the weights from what the node's cores measured of each path.
    pub fn weigh_node(&mut self, node: impl Fn(PathIndex) -> NodeMeans) {
        self.selector.weigh_node(node);
    }

    /// I/Os of this core in flight on `path`.
    pub fn in_flight(&self, path: PathIndex) -> u32 {
        self.selector.in_flight(path)
    }

    /// Changes policy and knobs; I/O in flight is not disturbed. The old policy's state is
    /// cleared, unless only the knobs differ.
    ///
    /// # Errors
    /// A knob is out of range; nothing changes.
    pub fn set_policy(&mut self, policy: Policy, knobs: Knobs) -> Result<(), KnobError> {
        self.selector.set_knobs(knobs)?;
        self.selector.set_policy(policy);
        self.show();
        Ok(())
    }

    /// Changes the policy to a program, at once with what runs it. Knobs as of
    /// [`Head::set_policy`].
    ///
    /// # Errors
    /// A knob is out of range; nothing changes.
    pub fn set_program(
        &mut self,
        id: ProgramId,
        program: Box<dyn Program>,
        knobs: Knobs,
    ) -> Result<(), KnobError> {
        self.selector.set_knobs(knobs)?;
        self.selector.set_program(id, program);
        self.show();
        Ok(())
    }

    /// The policy in force.
    pub fn policy(&self) -> Policy {
        self.selector.policy()
    }

    /// Statistics of row A9, for `path` and `group`.
    pub fn stats(&self, path: PathIndex, group: Group) -> PathStats {
        self.selector.stats(path, group)
    }

    /// As [`Selector::expected_ns`].
    pub fn expected_ns(&self, path: PathIndex, group: Group, now_ns: u64) -> Option<u64> {
        self.selector.expected_ns(path, group, now_ns)
    }

    /// As [`Head::stats`], for one size bucket.
    pub fn bucket_stats(&self, path: PathIndex, group: Group, bucket: usize) -> PathStats {
        self.selector.bucket_stats(path, group, bucket)
    }

    /// Size of the device: the smallest that a path shows which is not lost; so it grows when all
    /// of them agree, and shrinks at once (T33). `None` without any.
    pub fn size(&self) -> Option<Size> {
        let there = self.admitted().filter(|(path, _)| !self.is_lost(*path));
        let mut sizes = there.map(|(_, shown)| shown.size);
        let first = sizes.next()?;
        Some(sizes.fold(first, |a, b| Size {
            blocks: a.blocks.min(b.blocks),
            ..a
        }))
    }

    /// Limits of the device over all admitted paths (T34). `None` before the first one.
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

impl Standing {
    /// It is there, and its ANA state is what was read.
    fn is_known(&self) -> bool {
        self.enabled && !self.pending
    }

    /// Also while it drains; as far as it is not up to ANA.
    fn may_serve(&self) -> bool {
        self.is_known() && !self.stale
    }

    /// As far as it is not up to ANA.
    fn takes_io(&self) -> bool {
        self.may_serve() && !self.draining
    }
}

/// A path of which nothing is known.
fn unknown(distance: u32) -> PathView {
    PathView {
        enabled: false,
        ana: Ana::Optimized,
        distance,
        in_flight_elsewhere: 0,
        throughput: 1,
    }
}

/// Whether it is the namespace that it was; its size may be another.
fn same(now: &Shown, before: &Shown) -> Result<(), Conflict> {
    now.identity.same_as(&before.identity)?;
    same_blocks(now.size, before.size)
}

fn same_blocks(here: Size, there: Size) -> Result<(), Conflict> {
    if here.block_shift == there.block_shift {
        Ok(())
    } else {
        Err(Conflict::BlockSize(here.block_shift, there.block_shift))
    }
}

/// T33.
fn same_size(here: Size, there: Size) -> Result<(), Conflict> {
    same_blocks(here, there)?;
    if here.blocks != there.blocks {
        Err(Conflict::Capacity(here.blocks, there.blocks))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
