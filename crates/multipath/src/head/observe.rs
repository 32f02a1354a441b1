//! Errors before balance: which paths the policy may choose from, by state, ANA and health (B7).
use super::{AnaUse, Head};
use crate::Outcome;
use crate::health::{Health, Limits, Probation, Tally, Why};
use policy::{Ana, PathIndex};

/// Rank of a path: one is not used while there is one of a lower rank.
mod rank {
    /// In order.
    pub const GOOD: u8 = 0;
    /// It stalls now and then: less bad than an array that moves its units (T44).
    pub const STALLS: u8 = 1;
    /// In order, but not optimized.
    pub const SECOND: u8 = 2;
    /// On probation. Errors come before balance, and before ANA; and it is used if all others are
    /// no better (T45).
    pub const PROBATION: u8 = 3;
    /// Not optimized as well.
    pub const LAST: u8 = 4;
    /// It can't be used.
    pub const NONE: u8 = u8::MAX;
}

impl Head {
    /// Sets the limits that put paths on probation from now on.
    ///
    /// # Panics
    /// With limits that are not [possible](Limits::is_possible): configurations are checked before.
    pub fn set_health(&mut self, limits: Limits) {
        assert!(limits.is_possible(), "limits are checked before");
        self.health_limits = limits;
    }

    /// An I/O placed by [`Head::select`] has ended; `timed`: how long it took says something of the
    /// path. Why the path is on probation, if that begins now.
    #[inline]
    pub fn observe(
        &mut self,
        path: PathIndex,
        outcome: Outcome,
        timed: bool,
        latency_ns: u64,
        now_ns: u64,
    ) -> Option<Why> {
        let at = usize::from(path.0);
        let health = &mut self.health[at];
        if !outcome.is_done() || !timed {
            return self.observe_failure(path, outcome, now_ns);
        }
        let pause = health.good(latency_ns, now_ns, &self.health_limits)?;
        let stalled = health.paused(pause, self.gap_ns, now_ns, &self.health_limits);
        if !stalled || !self.another_does_better(path, pause.pause_ns, false, now_ns) {
            return None;
        }
        let own_ns = pause.pause_ns.saturating_sub(self.gap_ns);
        let begun = self.health[at].stalled(own_ns, now_ns, &self.health_limits);
        begun.inspect(|_| self.show())
    }

    #[cold]
    fn observe_failure(&mut self, path: PathIndex, outcome: Outcome, now_ns: u64) -> Option<Why> {
        let at = usize::from(path.0);
        let health = &mut self.health[at];
        if !outcome.is_path_error() {
            health.answered(now_ns);
            return None;
        }
        self.refused(path, now_ns)
    }

    /// `path` has failed an I/O; or was busy whenever it was repeated, and another path has done
    /// it. Why it is on probation, if that begins now.
    #[cold]
    pub fn refused(&mut self, path: PathIndex, now_ns: u64) -> Option<Why> {
        let at = usize::from(path.0);
        if !self.standing[at].may_serve() {
            return None; // it is lost and all it had fails, or its ANA state has changed (T26)
        }
        let begun = self.health[at].failed(now_ns, &self.health_limits);
        begun.inspect(|_| self.show())
    }

    /// `path` answers more I/Os with errors that call themselves passing than the paths of `better`
    /// (as bits) do. Why it is on probation, if that begins now: one of those could be used.
    pub fn does_worse(&mut self, path: PathIndex, better: u64, now_ns: u64) -> Option<Why> {
        let mut others = (0..self.views.len() as u8).map(PathIndex);
        let any = others.any(|other| {
            let may = better >> other.0 & 1 == 1 && self.hindrance(other).is_none();
            may && self.probation(other).is_none()
        });
        let at = usize::from(path.0);
        if !any || !self.standing[at].may_serve() {
            return None;
        }
        let begun = self.health[at].worse(now_ns, &self.health_limits);
        begun.inspect(|_| self.show())
    }

    /// When `path` is to be looked at for its silence, with an I/O under way since `issued_ns`;
    /// `u64::MAX`: never.
    pub fn silent_ns(&self, path: PathIndex, issued_ns: u64) -> u64 {
        let health = &self.health[usize::from(path.0)];
        let due_ns = health.silent_ns(issued_ns, &self.health_limits);
        due_ns.saturating_add(self.gap_ns)
    }

    /// Looks at it. Why the path is on probation, if that begins now.
    pub fn inspect(&mut self, path: PathIndex, issued_ns: u64, now_ns: u64) -> Option<Why> {
        self.judge_silence(path, issued_ns, true, now_ns)
    }

    /// Looks at a path that has nothing but a probe, while other paths are probed too: one of them
    /// does better only if it has answered. Why the path is on probation, if that begins now.
    pub fn inspect_probe(&mut self, path: PathIndex, issued_ns: u64, now_ns: u64) -> Option<Why> {
        self.judge_silence(path, issued_ns, false, now_ns)
    }

    fn judge_silence(
        &mut self,
        path: PathIndex,
        issued_ns: u64,
        idle: bool,
        now_ns: u64,
    ) -> Option<Why> {
        let at = usize::from(path.0);
        let silence_ns = self.health[at].silence_ns(issued_ns, now_ns);
        let silent = self.standing[at].enabled && self.silent_ns(path, issued_ns) <= now_ns;
        if !silent || !self.another_does_better(path, silence_ns, idle, now_ns) {
            return None;
        }
        let begun = self.health[at].silent(now_ns, &self.health_limits);
        begun.inspect(|_| self.show())
    }

    /// Another core has put `path` on probation. Why it is here as well, if that begins now.
    pub fn adopt_verdict(&mut self, path: PathIndex, why: Why, now_ns: u64) -> Option<Why> {
        let at = usize::from(path.0);
        let begun = self.health[at].adopt_verdict(why, now_ns, &self.health_limits);
        begun.inspect(|_| self.show())
    }

    /// `path` is connected. Why it is on probation at once, if it is.
    pub fn returned(&mut self, path: PathIndex, now_ns: u64) -> Option<Why> {
        let begun = self.health[usize::from(path.0)].used(now_ns, &self.health_limits);
        self.show();
        begun
    }

    /// `path` was lost, not by anybody's will. The loss of the last usable path is the loss of all
    /// those that went shortly before it: no path is to blame for that.
    pub fn broke(&mut self, path: PathIndex, now_ns: u64) {
        self.health[usize::from(path.0)].lost(now_ns);
        self.renewed(path, now_ns);
    }

    /// `path` is given up and connected again, with nothing under way, while no other path does
    /// better: that says nothing against it.
    pub fn renewed(&mut self, path: PathIndex, now_ns: u64) {
        if !self.is_usable_beside(path) {
            let paths = self.health.iter_mut();
            paths.for_each(|health| health.lost_together(now_ns));
            self.show();
        }
    }

    /// An I/O that was given to `path` at `begun_ns` was lost there until now; for `others_ns` of
    /// this time `path` is not to blame. Another path does it from now on, or none.
    #[cold]
    pub fn cost(&mut self, path: PathIndex, begun_ns: u64, others_ns: u64, now_ns: u64) {
        let health = &mut self.health[usize::from(path.0)];
        health.cost(begun_ns, others_ns, now_ns, &self.health_limits);
    }

    /// When a probe of `path` is due; `u64::MAX`: none is, or it could only fail.
    pub fn probe_due_ns(&self, path: PathIndex) -> u64 {
        let can = self.rank(usize::from(path.0), self.ana_in_force()) < rank::NONE;
        let probation = self.probation(path).filter(|_| can);
        probation.map_or(u64::MAX, |it| it.due_ns)
    }

    /// When a probe of `path` is due, if it has nothing to do meanwhile; `u64::MAX`: none is.
    pub fn idle_due_ns(&self, path: PathIndex) -> u64 {
        let at = usize::from(path.0);
        match self.rank(at, self.ana_in_force()) {
            rank::NONE => u64::MAX,
            _ => self.health[at].idle_due_ns(&self.health_limits),
        }
    }

    /// How much earlier than when it is due a probe of an idle path may go out, so that several go
    /// out together.
    pub fn idle_ahead_ns(&self) -> u64 {
        self.health_limits.idle_ns / 4
    }

    /// When `path` last ended an I/O or a probe, well or not, or was connected.
    pub fn answered_ns(&self, path: PathIndex) -> u64 {
        self.health[usize::from(path.0)].answered_ns()
    }

    /// When a path has ended an I/O or a probe well last, or was connected, of those that have
    /// failed nothing since; 0: none has.
    pub fn well_ns(&self) -> u64 {
        let well = self.health.iter().filter(|it| it.is_proven_since(0));
        well.map(Health::answered_ns).max().unwrap_or(0)
    }

    /// The paths that are not on probation and have ended something well, or were connected, since
    /// `since_ns`, and have failed nothing since then. As bits.
    pub fn proven_since(&self, since_ns: u64) -> u64 {
        let well = |it: &Health| it.probation().is_none() && it.is_proven_since(since_ns);
        let paths = (0_u32..).zip(&self.health);
        paths.fold(0, |bits, (at, it)| bits | u64::from(well(it)) << at)
    }

    /// A probe of `path` goes out, or there was no `room` for it.
    pub fn probe(&mut self, path: PathIndex, room: bool, now_ns: u64) {
        let health = &mut self.health[usize::from(path.0)];
        match room {
            true => health.probe(),
            false => health.put_off(now_ns, &self.health_limits),
        }
    }

    /// A probe of `path` has ended; how long the path was on probation, if that is over. Its state
    /// in the policy stays: it ages as that of any idle path.
    pub fn probed(
        &mut self,
        path: PathIndex,
        outcome: Outcome,
        latency_ns: u64,
        now_ns: u64,
    ) -> Option<u64> {
        let health = &mut self.health[usize::from(path.0)];
        let latency_ns = latency_ns.saturating_sub(self.gap_ns);
        // An I/O would have been repeated, and then left it as well.
        let busy = matches!(outcome, Outcome::Busy { .. });
        let well = !outcome.is_path_error() && !busy;
        let over = health.probed(well, latency_ns, now_ns, &self.health_limits);
        over.inspect(|_| self.show())
    }

    /// As [`Health::restored`](crate::health::Health::restored).
    pub fn restored(&mut self, path: PathIndex, now_ns: u64) {
        let health = &mut self.health[usize::from(path.0)];
        health.restored(now_ns, &self.health_limits);
    }

    /// Why, since when and until what `path` is on probation.
    pub fn probation(&self, path: PathIndex) -> Option<Probation> {
        self.health[usize::from(path.0)].probation()
    }

    /// Counters so far.
    pub fn tally(&self, path: PathIndex) -> Tally {
        self.health[usize::from(path.0)].tally()
    }

    /// Whether `path` could take I/O, and gets none because it is on probation.
    pub fn sits_out(&self, path: PathIndex) -> bool {
        let at = usize::from(path.0);
        let can = self.rank(at, self.ana_in_force()) < rank::NONE;
        can && self.probation(path).is_some() && !self.views[at].enabled
    }

    /// Paths that the policy may choose from: all of the least rank that there is.
    pub(super) fn show(&mut self) {
        let usable = self.usable_among(u64::MAX);
        self.show_only(usable);
        self.any_usable = usable != 0;
    }

    /// Limits the choice of the policy to these paths, as bits.
    pub(super) fn show_only(&mut self, usable: u64) {
        for (at, view) in self.views.iter_mut().enumerate() {
            view.enabled = usable >> at & 1 == 1;
        }
    }

    /// Of the paths `among`, all of the least rank that there is there. As bits.
    pub fn usable_among(&self, among: u64) -> u64 {
        let ana_use = self.ana_in_force();
        let mut found = (rank::NONE, 0);
        for at in (0..self.views.len()).filter(|at| among >> at & 1 == 1) {
            let rank = self.rank(at, ana_use);
            if rank < found.0 {
                found = (rank, 0);
            }
            if rank == found.0 && rank < rank::NONE {
                found.1 |= 1 << at;
            }
        }
        found.1
    }

    fn ana_in_force(&self) -> AnaUse {
        self.ana_use.unwrap_or(AnaUse::by_default(self.policy()))
    }

    fn rank(&self, at: usize, ana_use: AnaUse) -> u8 {
        let (ana, is) = (self.views[at].ana, &self.standing[at]);
        let why = self.health[at].probation().map(|it| it.why);
        let tried = self.is_tried(PathIndex(at as u8));
        let why = why.or(tried.then_some(Why::Silence));
        if !is.takes_io() || !matches!(ana, Ana::Optimized | Ana::NonOptimized) {
            return rank::NONE;
        }
        match (ana_use, ana, why) {
            (AnaUse::Merge, _, None) | (AnaUse::Strict, Ana::Optimized, None) => rank::GOOD,
            (AnaUse::Strict, Ana::Optimized, Some(Why::Stalls)) => rank::STALLS,
            (AnaUse::Strict, Ana::NonOptimized, None) => rank::SECOND,
            (AnaUse::Merge, _, Some(_)) | (AnaUse::Strict, Ana::Optimized, _) => rank::PROBATION,
            (AnaUse::Strict, ..) => rank::LAST,
        }
    }

    /// Whether `path` is enabled, and its ANA state, as it was read, allows no I/O.
    pub fn is_barred(&self, path: PathIndex) -> bool {
        self.standing[usize::from(path.0)].is_known() && !self.is_open(path)
    }

    /// Whether the ANA state of `path` allows I/O.
    pub fn is_open(&self, path: PathIndex) -> bool {
        let ana = self.views[usize::from(path.0)].ana;
        matches!(ana, Ana::Optimized | Ana::NonOptimized)
    }

    /// Whether another usable path is not on probation and has ended something well since
    /// `since_ns`, or has nothing to end.
    pub fn another_is_well(&self, path: PathIndex, since_ns: u64) -> bool {
        let mut others = (0..self.views.len() as u8).map(PathIndex);
        others.any(|other| {
            let health = &self.health[usize::from(other.0)];
            let may =
                other != path && self.hindrance(other).is_none() && health.probation().is_none();
            may && (self.rests(other) || health.is_proven_since(since_ns))
        })
    }

    /// Whether a probe of `path` is under way.
    pub fn is_probing(&self, path: PathIndex) -> bool {
        self.health[usize::from(path.0)].is_probing()
    }

    /// Whether a path has neither I/O nor a probe to end.
    fn rests(&self, path: PathIndex) -> bool {
        self.in_flight(path) == 0 && !self.health[usize::from(path.0)].is_probing()
    }

    /// Whether the other cores have no I/O in flight on `path`, as they published.
    pub fn is_unused_elsewhere(&self, path: PathIndex) -> bool {
        self.views[usize::from(path.0)].in_flight_elsewhere == 0
    }

    /// Whether a usable path that is not on probation did well while `path` ended nothing for
    /// `pause_ns`; `idle`: also if it had nothing to do at all.
    #[cold]
    fn another_does_better(&self, path: PathIndex, pause_ns: u64, idle: bool, now_ns: u64) -> bool {
        let mut others = (0..self.views.len() as u8).map(PathIndex);
        others.any(|other| {
            let health = &self.health[usize::from(other.0)];
            let may =
                other != path && self.hindrance(other).is_none() && health.probation().is_none();
            let rests = self.rests(other);
            may && (rests && idle || health.did_better(rests, pause_ns, now_ns))
        })
    }
}

#[cfg(test)]
mod tests;
