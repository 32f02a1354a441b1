//! Relapses of one path, and how long it is not trusted for what they cost.
//!
//! An *episode* is the time from the begin of a probation until the path is trusted again. It is
//! one relapse at most, whatever else shows meanwhile: silence, then the loss of the path, then its
//! return. An episode that is a return begins with the loss before it, however long ago that is.
//! Its *cost* is the longest time for which an I/O was lost on the path: until it was done there,
//! or could be given to another path. Time in which this core stood still, or in which the I/O
//! waited for other paths, is no part of it. Costs of one episode are not added up, so one fault
//! is counted once however many I/Os it hits.
//!
//! # Contract
//! [`Relapses::begins`] once per episode, then [`Relapses::is_over`] or [`Relapses::is_excused`],
//! which leaves all as it was before the episode. Times are of one clock, ns.
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
    row: Row,
    /// The row before the present or last episode.
    before: Row,
    /// Since when the path is connected or trusted; 0: it never was.
    pub used_ns: u64,
    /// How long the last episode took.
    took_ns: u64,
    /// Until when all usable paths were lost: I/Os that began before are not this path's cost.
    excused_ns: u64,
}

/// Episodes so far, as far as they count for the next one.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    /// There was an episode.
    any: bool,
    /// Relapses in a row; 0: the last episode was none.
    level: u8,
    /// The cost since the last episode began, and when it was noted.
    cost_ns: u64,
    cost_at_ns: u64,
    /// The cost between the beginnings of the last two; 0 unless the last one is a relapse.
    cost_before_ns: u64,
}

impl Relapses {
    /// Whether an episode that begins now is a relapse.
    pub fn would_relapse(&self, now_ns: u64) -> bool {
        self.row.any && now_ns.saturating_sub(self.used_ns) < self.memory_ns()
    }

    fn memory_ns(&self) -> u64 {
        RELAPSE_NS.saturating_add(self.took_ns.saturating_mul(4))
    }

    /// An episode begins, whose cause was there at `at_ns`.
    pub fn begins(&mut self, at_ns: u64) {
        let relapse = self.would_relapse(at_ns);
        let before = self.row;
        let recent = at_ns.saturating_sub(before.cost_at_ns) < self.memory_ns();
        self.row = Row {
            any: true,
            level: if relapse {
                (before.level + 1).min(LEVEL_MAX)
            } else {
                0
            },
            cost_before_ns: if relapse && recent { before.cost_ns } else { 0 },
            cost_ns: 0,
            ..before
        };
        self.before = before;
    }

    /// The episode is over: the path is trusted again, after `took_ns`.
    pub fn is_over(&mut self, took_ns: u64, now_ns: u64) {
        (self.took_ns, self.used_ns) = (took_ns, now_ns);
    }

    /// All usable paths were lost, up to `together_ns` ago: no path is to blame for what that
    /// costs, nor for an `episode` that this was.
    pub fn is_excused(&mut self, episode: bool, together_ns: u64, now_ns: u64) {
        if episode {
            self.row = self.before;
        }
        if now_ns.saturating_sub(self.row.cost_at_ns) < together_ns {
            self.row.cost_ns = 0;
        }
        self.excused_ns = now_ns;
    }

    /// An I/O that began at `begun_ns` was lost on the path until now, for `lost_ns` of this time.
    pub fn cost(&mut self, begun_ns: u64, lost_ns: u64, now_ns: u64) {
        if begun_ns > self.excused_ns {
            self.row.cost_ns = self.row.cost_ns.max(lost_ns);
            self.row.cost_at_ns = now_ns;
        }
    }

    /// The episodes so far count for nothing any more, nor does what they cost.
    pub fn forget(&mut self) {
        (self.row, self.before) = (Row::default(), Row::default());
        self.took_ns = 0;
    }

    /// How long the present episode lasts at least, ns.
    pub fn least_ns(&self, limits: &Limits) -> u64 {
        if self.row.level == 0 {
            return 0;
        }
        let cost_ns = self.row.cost_ns.max(self.row.cost_before_ns);
        let least_ns = cost_ns.saturating_mul(COST_TIMES);
        least_ns.min(limits.relapse_ns_max())
    }

    /// How often the time between probes has doubled for relapses.
    pub fn level(&self) -> u8 {
        self.row.level
    }
}
