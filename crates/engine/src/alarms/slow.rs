//! Whether a path turned slow: p90 of its reads or writes, against its own past and its peers.
//!
//! A round says that a path is slow if its p90 has grown [`TIMES`] times as much as that of its
//! peers, and by [`Limits::slow_ns`] more than theirs. *Growth* is p90 now divided by what it
//! usually is, so paths of different length can be compared, and a load that grows slows all of
//! them. A path whose peers have no I/O has to do [`TIMES_ALONE`] times worse, do less than half
//! of the I/O and of the bytes than before, and for longer: else it may just have more to do, or
//! larger I/Os. Nothing shows that its load is another one, so its level is learnt, slowly, also
//! while it is slow.
//!
//! A series without I/O for [`IDLE_NS`] is not slow any more: probes, which show the end, are
//! reads, and local paths have none.
//!
//! No round counts in which the machine itself was late: its cores noticed nothing for a part of
//! the difference, or half of all other paths, of whatever volume, became twice as slow too.
use super::{Limits, Subject, Verdict, Why};
use crate::latency::LatencyHistogram;
use alloc::vec::Vec;

/// Percentile that is compared, 1 / 1000. p90: one slow I/O in a hundred is a matter of the device,
/// and on a busy machine of the CPU.
const PERCENTILE: u64 = 900;
/// So many samples make a round, or in [`SAMPLES_NS`] fewer make none. 10: the longest one alone
/// decides nothing.
const SAMPLES: u64 = 10;
/// While a path is slow one is enough: probes come one by one.
const SAMPLES_TO_END: u64 = 1;
/// Samples are collected for so long at most.
const SAMPLES_NS: u64 = 10_000_000_000;
/// Paths with little I/O are compared with the last rounds of others, up to so old.
const RECENT_NS: u64 = 3_000_000_000;
/// Rounds until the usual level is known: 5 s.
const ROUNDS_TO_LEARN: u32 = 10;
/// A new level counts one part in so many. 64: half a minute of even load.
const LEARN_SHIFT: u32 = 6;
/// The same of one that is twice the usual: some minutes.
const LEARN_SHIFT_SLOW: u32 = 10;
/// The same of a path that is slow, and without peers: it takes 90 minutes of load.
const LEARN_SHIFT_ALONE: u32 = 14;
/// Growth is in 1 / 1024.
const ONE: u64 = 1024;
/// Growth that is slow, and that is not slow any more, relative to the peers.
const TIMES: u64 = 4;
const TIMES_TO_END: u64 = 2;
/// The same where no peer has I/O, with so many times [`Limits::slow_ns`].
const TIMES_ALONE: u64 = 8;
const SLOW_ALONE: u64 = 5;
/// For so long, and in so many rounds, until it is certain.
const LASTS_NS: u64 = 2_000_000_000;
const LASTS_ALONE_NS: u64 = 10_000_000_000;
const ROUNDS: u32 = 3;
/// Rounds further apart are not in a row: twice as long as the samples of one may take.
const STREAK_GAP_NS: u64 = 2 * SAMPLES_NS;
/// For so long it has to be well again.
const WELL_NS: u64 = 2_500_000_000;
/// A series without I/O for so long is not slow any more: nothing shows it.
pub(super) const IDLE_NS: u64 = 60_000_000_000;
/// One part in so many of the difference is as much as the cores may be late.
const LATE_PART: u64 = 4;

/// A path in a round: what its peers are compared with.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    pub subject: Subject,
    pub group: u16,
    /// 0: reads, 1: writes.
    pub op: usize,
    pub growth: Growth,
}

/// p90 now and usually.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    pub now_ns: u64,
    /// 0: not known.
    pub was_ns: u64,
    /// Per s, now and usually.
    load: (Load, Load),
}

/// Load of a series, per s.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    ios: u64,
    bytes: u64,
}

impl Load {
    /// Whether there is less than half of it.
    fn is_half_of(self, usual: Self) -> bool {
        self.ios < usual.ios / 2 && self.bytes < usual.bytes / 2
    }

    /// Of one part that is new and so many that were known.
    fn learn(&mut self, new: Self, known: u64) {
        let all = known + 1;
        self.ios = (self.ios * known + new.ios).div_ceil(all);
        self.bytes = self
            .bytes
            .saturating_mul(known)
            .saturating_add(new.bytes)
            .div_ceil(all);
    }
}

impl Growth {
    /// In 1 / [`ONE`]; at least `ONE`.
    fn times(&self) -> u64 {
        (self.now_ns.saturating_mul(ONE) / self.was_ns.max(1)).max(ONE)
    }
}

/// The others in a round.
pub struct Peers<'a> {
    pub all: &'a [Level],
    pub subject: Subject,
    pub group: u16,
}

impl Peers<'_> {
    /// The peer in the middle by growth; the better one of two.
    fn median(&self, op: usize) -> Option<Growth> {
        let is_peer =
            |it: &&Level| it.group == self.group && it.subject != self.subject && it.op == op;
        let mut growths: Vec<Growth> = self
            .all
            .iter()
            .filter(is_peer)
            .map(|it| it.growth)
            .filter(|it| it.was_ns > 0)
            .collect();
        growths.sort_unstable_by_key(Growth::times);
        growths.get(growths.len().saturating_sub(1) / 2).copied()
    }

    /// Whether half of all other paths became slower at once, by a fourth as much at least: that is
    /// the machine. One path that takes over the load of a slow one grows less.
    fn is_machine(&self, own: Growth) -> bool {
        let least = (2 * ONE).max(own.times() / TIMES);
        let others = self.all.iter().filter(|it| it.subject != self.subject);
        let known = others.filter(|it| it.growth.was_ns > 0);
        let (slow, all) = known.fold((0, 0), |(slow, all), it| {
            let is_slow = it.growth.times() >= least;
            (slow + u32::from(is_slow), all + 1)
        });
        slow > 0 && 2 * slow >= all
    }
}

/// Reads or writes of one path.
#[derive(Debug, Default)]
pub struct Series {
    round: LatencyHistogram,
    /// Of the round.
    bytes: u64,
    /// When the first and the last of them were reported, ns; valid if there are any.
    from_ns: u64,
    until_ns: u64,
    usual: Usual,
    /// Of the last round that had enough, and when that was, ns.
    last: Option<(Growth, u64)>,
    /// That round is yet to be judged.
    is_new: bool,
    streak: Streak,
    is_slow: bool,
    why: Option<Why>,
}

/// Usual level of a series, as learnt.
#[derive(Debug, Default)]
struct Usual {
    rounds: u32,
    /// ns, in 1 / 1024.
    p90: u64,
    load: Load,
}

/// Rounds in a row of one kind.
#[derive(Debug, Default)]
struct Streak {
    /// Of slow ones, or of good ones.
    slow: bool,
    rounds: u32,
    from_ns: u64,
    last_ns: u64,
}

impl Streak {
    /// For how long rounds are of this kind, if there are enough.
    fn add(&mut self, slow: bool, now_ns: u64) -> Option<u64> {
        let is_broken = now_ns.saturating_sub(self.last_ns) > STREAK_GAP_NS;
        if self.slow != slow || self.rounds == 0 || is_broken {
            *self = Self {
                slow,
                rounds: 0,
                from_ns: now_ns,
                last_ns: now_ns,
            };
        }
        self.last_ns = now_ns;
        self.rounds = self.rounds.saturating_add(1);
        (self.rounds >= ROUNDS).then(|| now_ns.saturating_sub(self.from_ns))
    }
}

impl Usual {
    fn p90_ns(&self) -> u64 {
        match self.rounds >= ROUNDS_TO_LEARN {
            true => self.p90 >> 10,
            false => 0,
        }
    }

    fn learn(&mut self, growth: &Growth) {
        let (level, load) = (growth.now_ns << 10, growth.load.0);
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds <= ROUNDS_TO_LEARN {
            let rounds = u64::from(self.rounds);
            self.p90 = (self.p90 * (rounds - 1) + level) / rounds;
            self.load.learn(load, rounds - 1);
            return;
        }
        let shift = match level >= 2 * self.p90 {
            true => LEARN_SHIFT_SLOW,
            false => LEARN_SHIFT,
        };
        self.p90 = self.p90 - (self.p90 >> shift) + (level >> shift);
        self.load.learn(load, 63);
    }

    /// Of a path that is slow and without peers.
    fn learn_alone(&mut self, growth: &Growth) {
        let part = (growth.now_ns << 10) >> LEARN_SHIFT_ALONE;
        self.p90 = self.p90 - (self.p90 >> LEARN_SHIFT_ALONE) + part;
    }
}

impl Series {
    /// Adds latencies to the round.
    pub fn add(&mut self, latencies: &LatencyHistogram, bytes: u64, from_ns: u64, now_ns: u64) {
        if latencies.count() == 0 {
            return;
        }
        if self.round.count() == 0 {
            self.from_ns = from_ns;
        }
        self.until_ns = now_ns;
        self.round.add(latencies);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// When a slow series without I/O is judged as [`IDLE_NS`] has passed, ns.
    pub fn idle_end_ns(&self) -> Option<u64> {
        self.is_slow.then(|| self.until_ns.saturating_add(IDLE_NS))
    }

    /// Ends the round, if it has samples enough. Returns the last one, if it is recent.
    pub fn end_round(&mut self, is_slow: bool, now_ns: u64) -> Option<Growth> {
        self.collect(is_slow, now_ns);
        let (growth, at_ns) = self.last?;
        (now_ns.saturating_sub(at_ns) <= RECENT_NS).then_some(growth)
    }

    fn collect(&mut self, is_slow: bool, now_ns: u64) {
        let least = match is_slow {
            true => SAMPLES_TO_END,
            false => SAMPLES,
        };
        if self.round.count() < least {
            if self.round.count() > 0 && now_ns.saturating_sub(self.from_ns) >= SAMPLES_NS {
                self.round = LatencyHistogram::default();
                self.bytes = 0;
            }
            return;
        }
        let round = core::mem::take(&mut self.round);
        let took_ns = self.until_ns.saturating_sub(self.from_ns).max(1);
        let per_s = |count: u64| count.saturating_mul(1_000_000_000) / took_ns;
        let load = Load {
            ios: per_s(round.count()),
            bytes: per_s(core::mem::take(&mut self.bytes)),
        };
        let growth = Growth {
            now_ns: round.quantile_ns(PERCENTILE).unwrap_or(0),
            was_ns: self.usual.p90_ns(),
            load: (load, self.usual.load),
        };
        self.last = Some((growth, now_ns));
        self.is_new = true;
    }

    fn judge(&mut self, op: usize, peers: &Peers<'_>, limits: &Limits, late_ns: u64, now_ns: u64) {
        let is_new = core::mem::take(&mut self.is_new);
        self.is_slow &= limits.slow_ns > 0 && now_ns.saturating_sub(self.until_ns) < IDLE_NS;
        let Some((growth, _)) = self.last.filter(|_| is_new) else {
            return;
        };
        if growth.was_ns == 0 || limits.slow_ns == 0 {
            self.is_slow = false;
            return self.usual.learn(&growth);
        }
        let peer = peers.median(op);
        let (times, least_ns, lasts_ns) = match peer {
            Some(_) => (TIMES, limits.slow_ns, LASTS_NS),
            None => (TIMES_ALONE, SLOW_ALONE * limits.slow_ns, LASTS_ALONE_NS),
        };
        let of_peers = peer.map_or(ONE, |it| it.times());
        let expected_ns = growth.was_ns.saturating_mul(of_peers) / ONE;
        let more_ns = growth.now_ns.saturating_sub(expected_ns);
        let grew = |times: u64| growth.times() >= of_peers.saturating_mul(times);
        let lacks_load = peer.is_some() || growth.load.0.is_half_of(growth.load.1);
        let exceeds = grew(times) && more_ns >= least_ns && lacks_load;
        let is_well = !grew(TIMES_TO_END) || more_ns < limits.slow_ns / 2;
        if exceeds && (late_ns > more_ns / LATE_PART || peers.is_machine(growth)) {
            return; // nothing can be said of this round
        }
        if exceeds || self.is_slow && !is_well {
            self.why = Some(Why::Slow {
                writes: op == 1,
                now_ns: growth.now_ns,
                was_ns: growth.was_ns,
                peers_ns: peer.map(|it| it.now_ns),
            });
        }
        if exceeds {
            let lasts = self.streak.add(true, now_ns);
            self.is_slow |= lasts.is_some_and(|ns| ns >= lasts_ns);
        } else if is_well {
            let lasts = self.streak.add(false, now_ns);
            self.is_slow &= lasts.is_none_or(|ns| ns < WELL_NS);
        }
        // A level that may be an alarm is not learnt.
        if !exceeds && !self.is_slow {
            self.usual.learn(&growth);
        } else if self.is_slow && peer.is_none() {
            self.usual.learn_alone(&growth);
        }
    }
}

/// Judges reads and writes of a path together.
pub(super) fn judge(
    series: &mut [Series; 2],
    peers: &Peers<'_>,
    limits: &Limits,
    late_ns: u64,
    now_ns: u64,
) -> Verdict {
    for (op, it) in series.iter_mut().enumerate() {
        it.judge(op, peers, limits, late_ns, now_ns);
    }
    let slow = series.iter().find(|it| it.is_slow);
    match slow.and_then(|it| it.why) {
        Some(why) => Verdict::Holds(why),
        None => Verdict::Ends,
    }
}
