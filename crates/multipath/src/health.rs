//! Whether a path may be trusted with I/O: from how its I/Os end, for the head, before any policy
//! chooses (B7).
//!
//! One [`Health`] per path and core. Four things put a path on probation, where it gets probes
//! instead of I/O: a share of path errors, silence, repeated stalls, and being lost again soon.
//! A path that is merely far, full or loaded is the policy's business. Hence a stall is not a long
//! latency but a long time in which the path ended *nothing* though it had something: whatever the
//! queue in front of a path, a working one ends I/O at a steady pace.
//!
//! * Errors: each adds to a score, each good end takes a little away, so that the score stays where
//!   it is at exactly the share of [`Limits::errors_permille`], and runs away above. It takes
//!   `ERRORS` errors on top of that share, or `ERRORS_IN_A_ROW`, to run over.
//! * Stalls: the time lost in them, of which a hundredth of all time is forgiven: beyond that, p99
//!   of an even load is a stall.
//! * Hysteresis: `PROBES` good probes in a row end probation; each bad one doubles the time to
//!   the next. Then the path has half the patience for `RELAPSE_NS`, and a relapse makes the
//!   next probation twice as long, and as long as what it cost asks for (`relapse`).
//!
//! # Contract
//! [`Health::good`] or one of [`Health::failed`] and [`Health::answered`] for every end; whoever
//! calls [`Health::stalled`] or [`Health::silent`] has seen that another path did well meanwhile.
//! Only what the path itself is to blame for is an error: not a busy device, not a bad block (T6).
//! Times are of one clock, ns (T42).
//!
//! # Limits
//! Scores are bounded; a probation lasts at most [`Limits::probation_ns_max`] beyond the last bad
//! probe.
use relapse::{LEVEL_MAX, RELAPSE_NS, Relapses};

mod relapse;

/// Errors beyond the tolerated share that are too many. 8: at half the share a healthy path has
/// them by chance once in some 20,000 errors; at twice the share they are there after 16 errors.
const ERRORS: u32 = 8;
/// Errors in a row that are too many: at a share of 1 % they come by chance once in 10^8 I/Os; and
/// they are half of the moves that an I/O has, so that it survives a path that fails all.
const ERRORS_IN_A_ROW: u8 = 4;
/// Stalls that are too many, unless they are rare enough to be forgiven. One is a lost packet or a
/// pause of somebody's CPU; four are a habit.
const STALLS: u8 = 4;
/// A stall of so many times what an I/O usually takes: with latencies that are spread as widely as
/// exponentially, 3 in 10,000 take longer.
const STALL_TIMES: u64 = 8;
/// One part in so many of all time may be lost in stalls.
const FORGIVEN_PART: u64 = 100;
/// Good probes in a row that end probation. 8: half of them would show a path that fails or stalls
/// one time in ten.
const PROBES: u8 = 8;
/// Paths that are lost within this time of each other are lost together. 10 s: twice the default
/// keep-alive time-out, by which paths to one target notice its end at different times.
const TOGETHER_NS: u64 = 10_000_000_000;
/// A relapse keeps its path out for at most so many times the longest time between probes.
const RELAPSE_PROBES: u64 = 60;
/// A path that answered this core so lately, and has failed nothing, is believed more than other
/// cores: it has its own queue here.
const FRESH_NS: u64 = 100_000_000;

/// Thresholds of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Share of I/Os that may fail for the path's sake, 1 / 1000; 0: any. 1 %: an I/O that fails
    /// moves to another path and so makes two trips; beyond 1 %, p99 is two trips.
    pub errors_permille: u16,
    /// A path that has I/O and ends nothing for so long is silent, unless that is usual for it; 0:
    /// never. 500 ms: more than TCP needs to repair one loss (at least 200 ms), much less than the
    /// keep-alive's time-out.
    pub silence_ns: u64,
    /// Beyond so long, silence that ended is a stall; 0: it is none. 50 ms: no pause of a working
    /// device, and it would be felt.
    pub slow_ns: u64,
    /// Time between probes. 100 ms: a path that is well again is used within a second, and ten
    /// blocks per second are no load.
    pub probe_ns: u64,
    /// Longest such time, after relapses and bad probes. 10 s: as long as between attempts to
    /// connect.
    pub probe_max_ns: u64,
    /// A path that ended nothing for so long, and has nothing, is probed; 0: never. 10 s: shorter
    /// than firewalls keep connections that rest, and six blocks a minute are no load.
    pub idle_ns: u64,
}

impl Limits {
    /// Nothing is ever on probation.
    pub const OFF: Self = Self {
        errors_permille: 0,
        silence_ns: 0,
        slow_ns: 0,
        probe_ns: 100_000_000,
        probe_max_ns: 10_000_000_000,
        idle_ns: 0,
    };

    /// Whether nothing is ever on probation.
    fn are_off(&self) -> bool {
        self.errors_permille == 0 && self.silence_ns == 0 && self.slow_ns == 0
    }

    /// How long probation lasts at most after its beginning or the last bad probe, ns, beside what
    /// the probes themselves take.
    pub fn probation_ns_max(&self) -> u64 {
        let probes_ns = u64::from(PROBES).saturating_mul(self.probe_max_ns);
        // After that time, the next probe.
        probes_ns.max(self.relapse_ns_max().saturating_add(self.probe_max_ns))
    }

    /// How long a relapse keeps its path out at most, whatever it cost, ns.
    pub fn relapse_ns_max(&self) -> u64 {
        RELAPSE_PROBES.saturating_mul(self.probe_max_ns)
    }

    /// Whether a path can be judged by them.
    pub fn is_possible(&self) -> bool {
        self.errors_permille < 1000 && (1..=self.probe_max_ns).contains(&self.probe_ns)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            errors_permille: 10,
            silence_ns: 500_000_000,
            slow_ns: 50_000_000,
            idle_ns: 10_000_000_000,
            ..Self::OFF
        }
    }
}

/// Why a path is on probation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// Too many of its I/Os failed.
    Errors,
    /// It did not end any I/O for too long.
    Silence,
    /// It stalled again and again.
    Stalls,
    /// It was lost again soon after it had come back.
    Flaps,
}

impl Why {
    /// The word in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Errors => "errors",
            Self::Silence => "silence",
            Self::Stalls => "stalls",
            Self::Flaps => "flaps",
        }
    }
}

/// A time in which a path ended nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// How long, ns.
    pub pause_ns: u64,
    /// Usual time of an I/O before; 0: not known.
    usual_ns: u64,
}

/// A path that gets probes instead of I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probation {
    /// Why.
    pub why: Why,
    /// Since when, ns.
    pub since_ns: u64,
    /// When the next probe is due, ns; `u64::MAX`: one is under way.
    pub due_ns: u64,
    /// It is not over before, for what its relapses cost, ns.
    pub least_until_ns: u64,
    /// Usual time of an I/O, by what was known before and by probes.
    usual_ns: u64,
    /// Good ones in a row.
    good: u8,
    /// How often the time between them has doubled.
    doubled: u8,
}

/// Totals of one path on one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Probations so far.
    pub times: u32,
    /// Probes that ended well, in time.
    pub probes_good: u64,
    /// Other probes.
    pub probes_bad: u64,
}

/// How one path is doing on one core. See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Health {
    /// When it last ended an I/O, well or not.
    answered_ns: u64,
    /// When it last ended one, or a probe, not well.
    failed_ns: u64,
    /// A probe is under way.
    probing: bool,
    /// Usual time of an I/O; 0: not known.
    usual_ns: u64,
    /// An error adds 1000 less the tolerated share, a good end takes that share away.
    score: u32,
    row: u8,
    /// Stalls, and the time lost in them, that are not yet forgiven.
    stalls: u8,
    lost_ns: u64,
    forgiven_ns: u64,
    /// The last pause: its end and its length.
    pause: (u64, u64),
    relapses: Relapses,
    /// It was lost before: the next time it is connected it has come back.
    lost: bool,
    /// When it was lost last; valid if `lost`.
    gone_ns: u64,
    /// It was lost soon after it had come back: the next time it is on probation.
    flapped: bool,
    probation: Option<Probation>,
    tally: Tally,
}

impl Health {
    /// An I/O has ended well, after `latency_ns` on the path. How long the path had ended nothing
    /// before, if that was long: then [`Health::paused`] is to be called.
    #[inline]
    pub fn good(&mut self, latency_ns: u64, now_ns: u64, limits: &Limits) -> Option<Pause> {
        let pause_ns = latency_ns.min(now_ns.saturating_sub(self.answered_ns));
        self.answered_ns = now_ns;
        self.row = 0;
        self.score = self.score.saturating_sub(limits.errors_permille.into());
        let usual_ns = self.usual_ns;
        let long = pause_ns > limits.slow_ns && limits.slow_ns > 0;
        // Of all that waited in one pause, one says so.
        if long || now_ns.saturating_sub(latency_ns) >= self.pause.0 {
            self.usual_ns = learnt(usual_ns, latency_ns);
        }
        long.then_some(Pause { pause_ns, usual_ns })
    }

    /// An I/O has ended that says nothing of the path but that it answers.
    #[inline]
    pub fn answered(&mut self, now_ns: u64) {
        self.answered_ns = now_ns;
        self.row = 0;
    }

    /// The path has failed an I/O.
    #[cold]
    pub fn failed(&mut self, now_ns: u64, limits: &Limits) -> Option<Why> {
        (self.answered_ns, self.failed_ns) = (now_ns, now_ns);
        if limits.errors_permille == 0 {
            return None;
        }
        let most = ERRORS * 1000;
        let error = 1000 - u32::from(limits.errors_permille);
        self.score = (self.score + error).min(most);
        self.row = self.row.saturating_add(1);
        let too_many = self.score >= most / self.patience(now_ns);
        let begins = too_many || self.row >= ERRORS_IN_A_ROW;
        self.begin(begins, Why::Errors, now_ns, limits)
    }

    /// Another path answers fewer I/Os with errors that call themselves passing.
    #[cold]
    pub fn worse(&mut self, now_ns: u64, limits: &Limits) -> Option<Why> {
        self.begin(limits.errors_permille > 0, Why::Errors, now_ns, limits)
    }

    /// Remembers a pause, whoever is to blame. Whether it is a stall, if this core noticed it up to
    /// `gap_ns` late: then [`Health::stalled`] is to be called, if another path did better.
    #[cold]
    pub fn paused(&mut self, pause: Pause, gap_ns: u64, now_ns: u64, limits: &Limits) -> bool {
        self.pause = (now_ns, pause.pause_ns);
        if self.probation.is_some() {
            self.cost(now_ns - pause.pause_ns, gap_ns, now_ns, limits);
        }
        let least_ns = limits.slow_ns.max(STALL_TIMES * pause.usual_ns);
        pause.usual_ns > 0 && pause.pause_ns.saturating_sub(gap_ns) > least_ns
    }

    /// The path has stalled for `pause_ns`, while another did better.
    #[cold]
    pub fn stalled(&mut self, pause_ns: u64, now_ns: u64, limits: &Limits) -> Option<Why> {
        let forgiven_ns = now_ns.saturating_sub(self.forgiven_ns) / FORGIVEN_PART;
        self.forgiven_ns = now_ns;
        self.lost_ns = self.lost_ns.saturating_sub(forgiven_ns);
        if self.lost_ns == 0 {
            self.stalls = 0;
        }
        // One long stall is one stall.
        self.lost_ns += pause_ns.min(20 * limits.slow_ns);
        self.stalls = self.stalls.saturating_add(1);
        let patience = self.patience(now_ns);
        let most = u64::from(STALLS) / u64::from(patience);
        let begins = u64::from(self.stalls) >= most && self.lost_ns >= most * limits.slow_ns;
        if begins {
            self.cost(now_ns.saturating_sub(self.lost_ns), 0, now_ns, limits);
        }
        self.begin(begins, Why::Stalls, now_ns, limits)
    }

    /// For how long the path has ended nothing, with an I/O under way since `issued_ns`.
    pub fn silence_ns(&self, issued_ns: u64, now_ns: u64) -> u64 {
        now_ns.saturating_sub(issued_ns.max(self.answered_ns))
    }

    /// When the path is silent, with an I/O under way since `issued_ns`; `u64::MAX`: never.
    pub fn silent_ns(&self, issued_ns: u64, limits: &Limits) -> u64 {
        if limits.silence_ns == 0 || self.probation.is_some() {
            return u64::MAX;
        }
        let patience_ns = limits.silence_ns.max(STALL_TIMES * self.usual_ns);
        issued_ns.max(self.answered_ns).saturating_add(patience_ns)
    }

    /// When it last ended an I/O or a probe, well or not, or was connected.
    pub fn answered_ns(&self) -> u64 {
        self.answered_ns
    }

    /// Whether it has ended an I/O or a probe well, or was connected, since `since_ns`, and has
    /// failed nothing since then.
    pub fn is_proven_since(&self, since_ns: u64) -> bool {
        self.answered_ns >= since_ns && self.answered_ns > self.failed_ns
    }

    /// Whether a probe is under way.
    pub fn is_probing(&self) -> bool {
        self.probing
    }

    /// When a path that has nothing to do is to be probed; `u64::MAX`: never, or probes go out
    /// because of its probation.
    pub fn idle_due_ns(&self, limits: &Limits) -> u64 {
        match limits.idle_ns {
            _ if self.probation.is_some() => u64::MAX,
            0 => u64::MAX,
            idle_ns => self.answered_ns.saturating_add(idle_ns),
        }
    }

    /// The path is silent, while another is not.
    #[cold]
    pub fn silent(&mut self, now_ns: u64, limits: &Limits) -> Option<Why> {
        self.begin(true, Why::Silence, now_ns, limits)
    }

    /// Whether the path did better than another that ended nothing for `pause_ns` until now: it
    /// ended I/O in the second half of that, or `all` that it had in any of it, and did not just
    /// wake from the same sleep.
    pub fn did_better(&self, all: bool, pause_ns: u64, now_ns: u64) -> bool {
        let half_ns = now_ns.saturating_sub(pause_ns / 2);
        let from_ns = match all {
            true => now_ns.saturating_sub(pause_ns),
            false => half_ns,
        };
        let (until_ns, long_ns) = self.pause;
        let slept = until_ns >= half_ns && long_ns >= pause_ns / 2;
        self.answered_ns > from_ns && !slept && pause_ns >= 2 * self.usual_ns
    }

    /// Another core has put the path on probation.
    #[cold]
    pub fn adopt_verdict(&mut self, why: Why, now_ns: u64, limits: &Limits) -> Option<Why> {
        let fresh = now_ns.saturating_sub(self.answered_ns) < FRESH_NS && self.score == 0;
        self.begin(!fresh, why, now_ns, limits)
    }

    /// The path is connected and gets I/O from now on, or probes if it flapped. Measurements
    /// of it from before are forgotten (T38), its faults are not.
    pub fn used(&mut self, now_ns: u64, limits: &Limits) -> Option<Why> {
        self.answered_ns = now_ns;
        (self.failed_ns, self.probing) = (0, false);
        self.usual_ns = 0;
        (self.score, self.row, self.stalls, self.lost_ns) = (0, 0, 0, 0);
        self.forgiven_ns = now_ns;
        let flapped = core::mem::take(&mut self.flapped);
        let begun = match &mut self.probation {
            Some(_) if limits.are_off() => {
                self.probation = None;
                None
            }
            // It is the same episode: what it was before its loss is still before it.
            Some(it) => {
                (it.why, it.good, it.usual_ns) = (Why::Flaps, 0, 0);
                it.due_ns = now_ns.saturating_add(wait_ns(&self.relapses, it, limits));
                Some(Why::Flaps)
            }
            // It failed when it was lost, whatever time others took to bring it back.
            None => self.begin_from(flapped, Why::Flaps, self.gone_ns, now_ns, limits),
        };
        self.relapses.used_ns = now_ns.max(1);
        begun
    }

    /// The path was lost, not by anybody's will.
    pub fn lost(&mut self, now_ns: u64) {
        let used_ns = self.relapses.used_ns;
        let soon = used_ns > 0 && now_ns.saturating_sub(used_ns) < RELAPSE_NS;
        (self.flapped, self.lost) = (self.lost && soon, true);
        self.gone_ns = now_ns;
    }

    /// All usable paths were lost at `now_ns` or shortly before. If this one was among them, its
    /// loss, and a probation that began while they were failing, say nothing against it.
    pub fn lost_together(&mut self, now_ns: u64) {
        let recent = |at_ns: u64| now_ns.saturating_sub(at_ns) < TOGETHER_NS;
        if !self.lost || !recent(self.gone_ns) {
            return;
        }
        self.flapped = false;
        let excused = self.probation.is_some_and(|it| recent(it.since_ns));
        self.relapses.is_excused(excused, TOGETHER_NS, now_ns);
        if excused {
            self.probation = None;
        }
    }

    /// A person restored the path by hand: its relapses are forgotten, so that a probation lasts
    /// only as long as its probes take.
    pub fn restored(&mut self, now_ns: u64, limits: &Limits) {
        self.relapses.forget();
        self.flapped = false;
        if let Some(it) = &mut self.probation {
            (it.least_until_ns, it.doubled) = (it.since_ns, 0);
            if !self.probing {
                it.due_ns = it.due_ns.min(now_ns.saturating_add(limits.probe_ns));
            }
        }
    }

    /// An I/O that was given to the path at `begun_ns` was lost there until now, but for
    /// `others_ns` of this time, for which the path is not to blame. This may come after the
    /// probation that the loss led to: then it counts for the next one, if that is a relapse.
    #[cold]
    pub fn cost(&mut self, begun_ns: u64, others_ns: u64, now_ns: u64, limits: &Limits) {
        let lost_ns = now_ns.saturating_sub(begun_ns).saturating_sub(others_ns);
        self.relapses.cost(begun_ns, lost_ns, now_ns);
        if let Some(it) = &mut self.probation {
            let least_ns = self.relapses.least_ns(limits);
            it.least_until_ns = it.since_ns.saturating_add(least_ns);
        }
    }

    /// A probe goes out.
    pub fn probe(&mut self) {
        self.probing = true;
        if let Some(it) = &mut self.probation {
            it.due_ns = u64::MAX;
        }
    }

    /// There was no room for a probe; it is tried again (T6).
    pub fn put_off(&mut self, now_ns: u64, limits: &Limits) {
        if let Some(it) = &mut self.probation {
            it.due_ns = now_ns.saturating_add(limits.probe_ns);
        }
    }

    /// A probe has ended, `well` or not, after `latency_ns`; how long the path was on probation, if
    /// that is over.
    pub fn probed(
        &mut self,
        well: bool,
        latency_ns: u64,
        now_ns: u64,
        limits: &Limits,
    ) -> Option<u64> {
        self.answered_ns = now_ns;
        self.probing = false;
        if !well {
            self.failed_ns = now_ns;
        }
        let it = self.probation.as_mut()?;
        // Also one that has become far is well: what it takes is soon what it usually takes.
        let slow_ns = limits.slow_ns.max(STALL_TIMES * it.usual_ns);
        let in_time = limits.slow_ns == 0 || latency_ns <= slow_ns;
        if well {
            it.usual_ns = learnt(it.usual_ns, latency_ns);
        }
        if well && in_time {
            it.good = it.good.saturating_add(1);
            it.doubled = it.doubled.saturating_sub(1);
            self.tally.probes_good += 1;
        } else {
            it.good = 0;
            it.doubled = it.doubled.saturating_add(1).min(LEVEL_MAX);
            self.tally.probes_bad += 1;
        }
        it.due_ns = now_ns.saturating_add(wait_ns(&self.relapses, it, limits));
        let is_over = it.good >= PROBES && now_ns >= it.least_until_ns;
        let over = is_over.then_some(now_ns.saturating_sub(it.since_ns));
        if let Some(took_ns) = over {
            self.usual_ns = it.usual_ns;
            self.probation = None;
            self.relapses.is_over(took_ns, now_ns);
            (self.score, self.row, self.stalls, self.lost_ns) = (0, 0, 0, 0);
        }
        over
    }

    /// Why, since when and until what the path is on probation.
    pub fn probation(&self) -> Option<Probation> {
        self.probation
    }

    /// Counters so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// A path that was on probation lately is on it sooner.
    fn patience(&self, now_ns: u64) -> u32 {
        1 + u32::from(self.relapses.would_relapse(now_ns))
    }

    /// Probation begins, where it should and hasn't.
    fn begin(&mut self, should: bool, why: Why, now_ns: u64, limits: &Limits) -> Option<Why> {
        self.begin_from(should, why, now_ns, now_ns, limits)
    }

    /// The same for what happened to the path at `at_ns`.
    fn begin_from(
        &mut self,
        should: bool,
        why: Why,
        at_ns: u64,
        now_ns: u64,
        limits: &Limits,
    ) -> Option<Why> {
        if !should || self.probation.is_some() || limits.are_off() {
            return None;
        }
        self.relapses.begins(at_ns);
        self.tally.times = self.tally.times.saturating_add(1);
        self.probation = Some(Probation {
            why,
            since_ns: now_ns,
            due_ns: now_ns.saturating_add(limits.probe_ns),
            least_until_ns: now_ns.saturating_add(self.relapses.least_ns(limits)),
            usual_ns: self.usual_ns,
            good: 0,
            doubled: 0,
        });
        Some(why)
    }
}

/// Time until the next probe.
fn wait_ns(relapses: &Relapses, it: &Probation, limits: &Limits) -> u64 {
    let shift = u32::from(relapses.level()) + u32::from(it.doubled);
    let wait_ns = limits.probe_ns.saturating_mul(1 << shift.min(40));
    wait_ns.min(limits.probe_max_ns)
}

/// Usual time of an I/O, after one that took `latency_ns`; 0: not known.
#[inline]
fn learnt(usual_ns: u64, latency_ns: u64) -> u64 {
    let change = latency_ns.wrapping_sub(usual_ns).cast_signed() >> 3;
    match usual_ns {
        0 => latency_ns,
        usual_ns => usual_ns.wrapping_add_signed(change),
    }
}

#[cfg(test)]
mod tests;
