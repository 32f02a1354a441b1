//! Relapses of one path, and how long it is not trusted for what they cost.
//!
//! An *episode* is the time from the begin of a probation until the path is trusted again. It is
//! one relapse at most, whatever else shows meanwhile: silence, then the loss of the path, then its
//! return. Its *cost* is the longest time for which an I/O was lost on the path: until it was done
//! there, or given to another path. Costs of one episode are not added up, so one fault is counted
//! once however many I/Os it hits.
//!
//! # Contract
//! [`Relapses::begins`] once per episode, then [`Relapses::is_over`] or [`Relapses::is_excused`].
//! Times are of one clock, ns.
//!
//! # Limits
//! A relapse keeps its path out for [`COST_TIMES`] times the cost, at most
//! [`Limits::relapse_ns_max`]. After a first episode the path waits for good probes only.
use super::Limits;

/// An episode that begins within this time of the last one, and four times as long as that one
/// took, is a relapse. A minute: people who repair things need no more for a cable, and a path that
/// fails once in a minute costs little.
pub(super) const RELAPSE_NS: u64 = 60_000_000_000;
/// A relapse keeps its path out for so many times its cost: a path that relapses whenever it is
/// trusted takes 3 % of the time.
const COST_TIMES: u64 = 32;
/// Relapses that make probation longer.
pub(super) const LEVEL_MAX: u8 = 16;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Relapses {
    /// There was an episode before.
    any: bool,
    /// Relapses in a row; 0: the present or last episode was none.
    level: u8,
    /// Since when the path is connected or trusted; 0: it never was.
    pub used_ns: u64,
    /// How long the last episode took.
    took_ns: u64,
    /// The cost since the last episode began, and when it was noted.
    cost_ns: u64,
    cost_at_ns: u64,
    /// The cost between the beginnings of the last two; 0 unless the last one is a relapse.
    cost_before_ns: u64,
    /// Until when all usable paths were lost: I/Os that began before are not this path's cost.
    excused_ns: u64,
}

impl Relapses {
    /// Whether an episode that begins now is a relapse.
    pub fn would_relapse(&self, now_ns: u64) -> bool {
        self.any && now_ns.saturating_sub(self.used_ns) < self.memory_ns()
    }

    fn memory_ns(&self) -> u64 {
        RELAPSE_NS.saturating_add(self.took_ns.saturating_mul(4))
    }

    /// An episode begins.
    pub fn begins(&mut self, now_ns: u64) {
        let relapse = self.would_relapse(now_ns);
        let recent = now_ns.saturating_sub(self.cost_at_ns) < self.memory_ns();
        self.any = true;
        self.level = match relapse {
            true => (self.level + 1).min(LEVEL_MAX),
            false => 0,
        };
        self.cost_before_ns = match relapse && recent {
            true => self.cost_ns,
            false => 0,
        };
        self.cost_ns = 0;
    }

    /// The episode is over: the path is trusted again, after `took_ns`.
    pub fn is_over(&mut self, took_ns: u64, now_ns: u64) {
        (self.took_ns, self.used_ns) = (took_ns, now_ns);
    }

    /// All usable paths were lost: no path is to blame for what that costs.
    pub fn is_excused(&mut self, now_ns: u64) {
        (self.cost_ns, self.excused_ns) = (0, now_ns);
    }

    /// An I/O that began at `begun_ns` was lost on the path until now.
    pub fn cost(&mut self, begun_ns: u64, now_ns: u64) {
        if begun_ns > self.excused_ns {
            self.cost_ns = self.cost_ns.max(now_ns.saturating_sub(begun_ns));
            self.cost_at_ns = now_ns;
        }
    }

    /// How long the present episode lasts at least, ns.
    pub fn least_ns(&self, limits: &Limits) -> u64 {
        if self.level == 0 {
            return 0;
        }
        let cost_ns = self.cost_ns.max(self.cost_before_ns);
        let least_ns = cost_ns.saturating_mul(COST_TIMES);
        least_ns.min(limits.relapse_ns_max())
    }

    /// How often the time between probes has doubled for relapses.
    pub fn level(&self) -> u8 {
        self.level
    }
}
