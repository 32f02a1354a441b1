//! Decides whether a reactor with nothing to do watches memory or sleeps in the kernel.
//!
//! # Contract
//! Pure: times and counts are arguments, ns of one clock. A *wait* lasts from the first time that
//! nothing is there to the next arrival; ends of sends are no arrivals. Polling pays where the
//! arrival comes sooner than a sleep and a wake-up would cost ([`WakeupCost`], learnt). The limit
//! of a wait is the one that would have cost the least over the last waits ([`Gaps`]), apart for
//! waits after something was sent and for others: an answer comes soon, the next request perhaps
//! not. It never exceeds that cost, so a reactor without traffic sleeps.
//!
//! States ([`State`]): `Learnt` follows the past. `Exploring` polls longer for some waits: where
//! both ends of a connection sleep, each sees the other's wake-up in its gaps, and neither would
//! ever begin. `Yielding` sleeps always: another thread wants this CPU.
//!
//! # Limits
//! Polling takes at most its share of each [`WINDOW_NS`] (`poll_cpu_max`), counted by
//! [`Allowance`]. While yielding, nothing is learnt of the neighbour: it is tried again after a
//! pause, which doubles up to [`PAUSE_NS_MAX`].
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

mod learnt;
#[cfg(test)]
mod tests;

use learnt::{Allowance, Gaps, WakeupCost};

/// How a reactor waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polling {
    /// It never sleeps.
    Always,
    /// It polls while that pays, for so many thousandths of a CPU at most.
    Adaptive(u16),
    /// It sleeps.
    Never,
}

/// Share of a CPU for adaptive polling where none is given, in thousandths. One request at a time
/// takes two thirds; the rest is left to what else runs there.
pub const POLL_CPU_MAX_PERMILLE: u16 = 800;

impl Default for Polling {
    fn default() -> Self {
        Self::Adaptive(POLL_CPU_MAX_PERMILLE)
    }
}

/// Time over which the share of polling is bounded.
pub const WINDOW_NS: u64 = 100_000_000;
/// Waits that explore. Twice what [`Gaps`] remembers: the other end has learnt by then that gaps
/// have become short, and this one that they are short because the other end polls.
const EXPLORE_WAITS: u8 = 64;
/// Up to so many times the cost of a wake-up is polled then: the other end's is in the gap.
const EXPLORE_COSTS: u64 = 2;
/// Exploring is worth it where most gaps are shorter than so many times that cost.
const EXPLORE_REACH: u64 = 4;
/// Pause before the next exploration; it doubles with each that found nothing, up to the longest.
const EXPLORE_NS_MIN: u64 = 25_000_000;
const EXPLORE_NS_MAX: u64 = 1_600_000_000;
/// After a longer wait there is no load to explore, until so many shorter ones have followed.
const QUIET_NS: u64 = 10_000_000;
const LOAD_WAITS: u8 = 16;
/// How often the time on the run queue is read while polling, at most.
const CHECK_NS: u64 = 10_000_000;
/// Another thread wants this CPU where at least this part of the time between two readings was
/// spent waiting for it: kernel threads take less, a thread that always has work takes half.
const CONTENDED: u64 = 10;
/// Pause after a neighbour was seen; it doubles where it is seen again soon.
const PAUSE_NS_MIN: u64 = 100_000_000;
const PAUSE_NS_MAX: u64 = 10_000_000_000;
/// Soon: within so many pauses of the last one.
const PAUSES_APART: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Polls as long as paid in the last waits.
    Learnt,
    /// Polls for so many more waits, whatever the last ones were.
    Exploring(u8),
    /// Sleeps until then, ns.
    Yielding(u64),
}

/// The wait under way.
#[derive(Clone, Copy, Debug)]
struct Since {
    begun_ns: u64,
    slept: bool,
}

/// Decides for one reactor. See the module.
#[derive(Debug)]
pub struct Poller {
    state: State,
    since: Option<Since>,
    /// Something was sent since the last arrival.
    has_sent: bool,
    cost: WakeupCost,
    /// Of waits without, and with something sent.
    gaps: [Gaps; 2],
    allowance: Allowance,
    /// Shorter waits since the last one of [`QUIET_NS`].
    load_waits: u8,
    explore_at_ns: u64,
    explore_pause_ns: u64,
    /// When the time on the run queue was read last (0: never), and how much it was.
    checked: (u64, u64),
    /// End of the last pause, and its length.
    yielded_ns: u64,
    pause_ns: u64,
    tally: Arc<PollTally>,
}

impl Poller {
    /// For a reactor that may take so many thousandths of a CPU for polling.
    pub fn new(cpu_max_permille: u16, now_ns: u64, tally: Arc<PollTally>) -> Self {
        let cost = WakeupCost::default();
        tally.cost_ns.store(cost.ns(), Ordering::Relaxed);
        Self {
            state: State::Learnt,
            since: None,
            has_sent: false,
            cost,
            gaps: [Gaps::default(); 2],
            allowance: Allowance::new(cpu_max_permille, now_ns),
            load_waits: 0,
            explore_at_ns: now_ns,
            explore_pause_ns: EXPLORE_NS_MIN,
            checked: (0, 0),
            yielded_ns: 0,
            pause_ns: PAUSE_NS_MIN,
            tally,
        }
    }

    /// Something was sent to a peer or a device, of which an answer is expected.
    #[inline]
    pub fn handle_sent(&mut self) {
        self.has_sent = true;
    }

    /// How long memory is watched from `now_ns` on, in a wait that is about to begin or goes on,
    /// with a timer at `timer_ns`; 0: it sleeps at once.
    pub fn poll_ns(&mut self, now_ns: u64, timer_ns: Option<u64>) -> u64 {
        if let State::Yielding(until_ns) = self.state {
            if now_ns < until_ns {
                return 0;
            }
            self.state = State::Learnt;
        }
        let limit_ns = match self.state {
            State::Exploring(_) => EXPLORE_COSTS * self.cost.ns(),
            _ => self.gaps[usize::from(self.has_sent)].limit_ns(),
        };
        let begun_ns = self.since.map_or(now_ns, |it| it.begun_ns);
        let mut left_ns = (begun_ns + limit_ns).saturating_sub(now_ns);
        let timer_ns = timer_ns.map(|at_ns| at_ns.saturating_sub(now_ns));
        // A sleep until then would end too late.
        if let Some(timer_ns) = timer_ns.filter(|it| *it < self.cost.ns()) {
            left_ns = left_ns.max(timer_ns);
        }
        match left_ns <= self.allowance.left_ns(now_ns) {
            true => left_ns,
            false => 0,
        }
    }

    /// Nothing is there at `now_ns`, and all that was to be sent is with the kernel: a wait begins,
    /// unless one is under way.
    #[inline]
    pub fn begin_wait(&mut self, now_ns: u64) {
        self.since.get_or_insert(Since {
            begun_ns: now_ns,
            slept: false,
        });
    }

    /// Whether [`Poller::handle_run_wait`] is due.
    #[inline]
    pub fn is_check_due(&self, now_ns: u64) -> bool {
        now_ns >= self.checked.0 + CHECK_NS
    }

    /// So long in all has this thread waited for a CPU while it could run. Whether it yields from
    /// now on.
    pub fn handle_run_wait(&mut self, waited_ns: u64, now_ns: u64) -> bool {
        let (checked_ns, before_ns) = std::mem::replace(&mut self.checked, (now_ns, waited_ns));
        let passed_ns = now_ns.saturating_sub(checked_ns);
        let is_first = checked_ns == 0;
        if is_first || CONTENDED * waited_ns.saturating_sub(before_ns) < passed_ns {
            return false;
        }
        let is_again = now_ns < self.yielded_ns.saturating_add(PAUSES_APART * self.pause_ns);
        self.pause_ns = match is_again && self.yielded_ns > 0 {
            true => (2 * self.pause_ns).min(PAUSE_NS_MAX),
            false => PAUSE_NS_MIN,
        };
        self.yielded_ns = now_ns + self.pause_ns;
        self.state = State::Yielding(self.yielded_ns);
        add(&self.tally.yields, 1);
        true
    }

    /// Memory was watched for so long; whether something was there at the end.
    pub fn handle_polled(&mut self, from_ns: u64, now_ns: u64, found: bool) {
        let polled_ns = now_ns.saturating_sub(from_ns);
        self.allowance.spend(polled_ns);
        add(&self.tally.polled, 1);
        add(&self.tally.polled_ns, polled_ns);
        add(&self.tally.found, u64::from(found));
    }

    /// A sleep from `from_ns` has ended; at its timer, if that is given.
    pub fn handle_slept(&mut self, from_ns: u64, timer_ns: Option<u64>, now_ns: u64) {
        if let Some(since) = &mut self.since {
            since.slept = true;
        }
        add(&self.tally.slept, 1);
        if let Some(timer_ns) = timer_ns {
            let [slept_ns, late_ns] = [(timer_ns, from_ns), (now_ns, timer_ns)]
                .map(|(to_ns, from_ns)| to_ns.saturating_sub(from_ns));
            self.cost.handle_late(slept_ns, late_ns);
            self.tally.cost_ns.store(self.cost.ns(), Ordering::Relaxed);
        }
    }

    /// Sleeps that were made to measure it ended so late.
    pub fn handle_measured(&mut self, late_ns: &mut [u64]) {
        late_ns.sort_unstable();
        if let Some(&late_ns) = late_ns.get(late_ns.len() / 2) {
            self.cost = WakeupCost::measured(late_ns);
            self.tally.cost_ns.store(self.cost.ns(), Ordering::Relaxed);
        }
    }

    /// Something arrived: ends the wait, if there was one.
    pub fn handle_arrival(&mut self, now_ns: u64) {
        let has_sent = std::mem::take(&mut self.has_sent);
        let Some(since) = self.since.take() else {
            return;
        };
        let waited_ns = now_ns.saturating_sub(since.begun_ns);
        let own_ns = if since.slept {
            self.cost.latency_ns()
        } else {
            0
        };
        let cost_ns = self.cost.ns();
        let gaps = &mut self.gaps[usize::from(has_sent)];
        gaps.add(waited_ns.saturating_sub(own_ns), cost_ns);
        let is_quiet = waited_ns > QUIET_NS;
        self.load_waits = match is_quiet {
            true => 0,
            false => self.load_waits.saturating_add(1),
        };
        match self.state {
            State::Learnt if gaps.limit_ns() > 0 => self.explore_pause_ns = EXPLORE_NS_MIN,
            State::Learnt => {
                let is_due = now_ns >= self.explore_at_ns && self.load_waits >= LOAD_WAITS;
                if is_due && gaps.are_mostly_below(EXPLORE_REACH * cost_ns) {
                    self.state = State::Exploring(EXPLORE_WAITS);
                }
            }
            State::Exploring(left) if left > 1 && !is_quiet => {
                self.state = State::Exploring(left - 1);
            }
            State::Exploring(_) => {
                self.state = State::Learnt;
                self.explore_at_ns = now_ns + self.explore_pause_ns;
                self.explore_pause_ns = (2 * self.explore_pause_ns).min(EXPLORE_NS_MAX);
            }
            State::Yielding(_) => {}
        }
    }
}

/// Counters of one reactor's waits, which its thread writes and any thread reads.
#[derive(Debug, Default)]
pub struct PollTally {
    polled: AtomicU64,
    found: AtomicU64,
    slept: AtomicU64,
    enters: AtomicU64,
    polled_ns: AtomicU64,
    yields: AtomicU64,
    cost_ns: AtomicU64,
}

/// Values of a [`PollTally`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollStats {
    /// Times that memory was watched.
    pub polled: u64,
    /// Of them, those that ended with an arrival.
    pub found: u64,
    /// Times that it slept.
    pub slept: u64,
    /// Calls of `io_uring_enter`.
    pub enters: u64,
    /// Time spent watching, ns.
    pub polled_ns: u64,
    /// Times that it stopped polling because another thread wanted the CPU.
    pub yields: u64,
    /// Cost of a sleep and a wake-up, ns; 0: not learnt, since it does not decide.
    pub cost_ns: u64,
}

impl PollTally {
    /// The values now.
    pub fn read(&self) -> PollStats {
        PollStats {
            polled: self.polled.load(Ordering::Relaxed),
            found: self.found.load(Ordering::Relaxed),
            slept: self.slept.load(Ordering::Relaxed),
            enters: self.enters.load(Ordering::Relaxed),
            polled_ns: self.polled_ns.load(Ordering::Relaxed),
            yields: self.yields.load(Ordering::Relaxed),
            cost_ns: self.cost_ns.load(Ordering::Relaxed),
        }
    }

    /// The kernel was entered so often by now.
    #[inline]
    pub(crate) fn set_enters(&self, enters: u64) {
        self.enters.store(enters, Ordering::Relaxed);
    }

    /// It slept, and nothing decides about that.
    pub(crate) fn count_sleep(&self) {
        add(&self.slept, 1);
    }
}

/// Adds to a counter that only this thread writes.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    let sum = counter.load(Ordering::Relaxed) + more;
    counter.store(sum, Ordering::Relaxed);
}
