//! How much data I/O and how many flushes of users a leg has outstanding: as much as it completes
//! in a part of a heartbeat interval.
//!
//! # Contract
//! A slow leg with a long queue would answer heartbeats after their lease has ended (T54). Data I/O
//! and users' flushes beyond their windows wait here, each in order of arrival (T46); heartbeats,
//! superblocks, pages of the bitmap and the mirror's own flushes pass them. Flushes have a window
//! of their own: how long they take says nothing of data. A window is small at first, doubles while
//! the leg keeps up, and is wider while it is used up; where I/O waits in the leg's own queue, the
//! window shrinks to what the leg has completed in a measured interval in which it was never idle,
//! down to one. A leg that answers nothing for half a heartbeat interval, heartbeats included, gets
//! everything at once, so that time-outs and failover are those of the host. Where it answers
//! heartbeats and an I/O times out while no other ends, all that has waited since before that I/O
//! was given times out with it: so what waits ends within two time-outs.
//!
//! # Limits
//! Two windows per leg, whatever its number of paths and the sizes of its I/Os. The time in the
//! queue is no part of the latency that a policy learns.
use super::table::Entry;
use super::users::Part;
use crate::host::{Io, IoOp};
use crate::limits::{LEG_DEPTH_FIRST, LEG_DEPTH_MAX, LEG_DEPTH_MIN, MIRROR_COPIES, MIRROR_IOS_MAX};
use alloc::collections::VecDeque;
use volume::Outcome;

/// The lanes of a leg.
const DATA: usize = 0;
const FLUSHES: usize = 1;

/// An I/O that fails for its path's sake has timed out if that took so long, ns.
const HANGS_NS: u64 = 30_000_000_000;

/// In so many intervals on end a smaller window shortens the queue, if there is one.
const WAITS_MAX: u32 = 4;

/// The queues in front of one leg.
pub(super) struct Depth {
    /// Data I/O, and users' flushes.
    lanes: [Lane; Self::LANES],
    /// When the leg has answered last, or got something while it was idle, ns.
    alive_ns: u64,
}

/// I/O of one kind.
struct Lane {
    /// How much of it the leg may have outstanding.
    window: u32,
    /// How much the leg has outstanding.
    out: u32,
    /// Intervals on end in which I/O waited in the leg's queue, no longer than the window.
    waits: u32,
    /// The window has not shrunk yet: it doubles.
    starts: bool,
    /// The measured interval, while the leg is not idle.
    measure: Option<Measure>,
    /// The leg's latency without a queue, as far as known, ns: of the last I/O that was alone, or
    /// the shortest since.
    base_ns: Option<u64>,
    /// When the leg has answered one last, ns.
    answered_ns: u64,
    /// All that has waited since then, or longer, has timed out, ns.
    overdue_ns: Option<u64>,
    waiting: VecDeque<Waiter>,
}

struct Waiter {
    entry: Entry,
    io: Io,
    /// When it came, ns.
    since_ns: u64,
}

/// How an I/O was given that a window counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    lane: usize,
    /// When, ns.
    at_ns: u64,
    /// The leg had no other one of its lane.
    is_alone: bool,
}

/// A measured interval.
#[derive(Clone, Copy, Debug)]
struct Measure {
    since_ns: u64,
    /// The most that the leg had outstanding.
    most: u32,
    /// How many it has completed well.
    done: u32,
}

impl Default for Depth {
    fn default() -> Self {
        // All users' I/O, and copies.
        let room = MIRROR_IOS_MAX + 4 * usize::from(MIRROR_COPIES);
        Self {
            lanes: [Lane::new(room), Lane::new(MIRROR_IOS_MAX)],
            alive_ns: 0,
        }
    }
}

/// The lane of an I/O of a user, or of a copy.
fn lane_of(io: &Io) -> usize {
    match io.op {
        IoOp::Flush => FLUSHES,
        _ => DATA,
    }
}

impl Depth {
    /// How many lanes there are.
    pub const LANES: usize = FLUSHES + 1;

    /// Takes an I/O to be given, if there is room in the host; `None`: it waits.
    pub fn admit(&mut self, entry: Entry, io: Io, room: bool, now_ns: u64) -> Option<(Entry, Io)> {
        let lane = lane_of(&io);
        let it = &mut self.lanes[lane];
        if !room || it.out >= it.window || !it.waiting.is_empty() {
            it.waiting.push_back(Waiter {
                entry,
                io,
                since_ns: now_ns,
            });
            return None;
        }
        Some(self.pass(lane, entry, io, now_ns))
    }

    /// Returns the next I/O of a lane that may be given.
    pub fn next(&mut self, lane: usize, beat_ns: u64, now_ns: u64) -> Option<(Entry, Io)> {
        let stalls = self.stalls_at(beat_ns).is_some_and(|at_ns| at_ns <= now_ns);
        let it = &mut self.lanes[lane];
        if it.out >= it.window && !stalls {
            return None;
        }
        let Waiter { entry, io, .. } = it.waiting.pop_front()?;
        Some(self.pass(lane, entry, io, now_ns))
    }

    /// Takes out the first I/O of a lane that waits, which is not given.
    pub fn drop_first(&mut self, lane: usize) -> Option<Entry> {
        Some(self.lanes[lane].waiting.pop_front()?.entry)
    }

    /// The first I/O of a lane that waits.
    pub fn first(&self, lane: usize) -> Option<&Entry> {
        self.lanes[lane].waiting.front().map(|it| &it.entry)
    }

    /// Whether the first I/O of a lane has timed out while it waited.
    pub fn is_overdue(&self, lane: usize) -> bool {
        let it = &self.lanes[lane];
        let first = it.waiting.front();
        first.is_some_and(|first| it.overdue_ns.is_some_and(|at_ns| first.since_ns <= at_ns))
    }

    /// How such an I/O ends. A flush was not asked for, so it says nothing of a cache.
    pub fn outcome_of_overdue(lane: usize) -> Outcome {
        match lane {
            DATA => Outcome::TimedOut,
            _ => Outcome::PathError,
        }
    }

    /// Whether any I/O waits.
    pub fn has_waiting(&self) -> bool {
        self.lanes.iter().any(|it| !it.waiting.is_empty())
    }

    /// When all that waits is given although nothing was answered, ns.
    pub fn stalls_at(&self, beat_ns: u64) -> Option<u64> {
        let waits = self.has_waiting();
        waits.then(|| self.alive_ns.saturating_add(beat_ns / 2))
    }

    fn pass(&mut self, lane: usize, mut entry: Entry, io: Io, now_ns: u64) -> (Entry, Io) {
        if self.lanes.iter().all(|it| it.out == 0) {
            self.alive_ns = now_ns;
        }
        let it = &mut self.lanes[lane];
        it.out += 1;
        let out = it.out;
        entry.counted = Some(Given {
            lane,
            at_ns: now_ns,
            is_alone: out == 1,
        });
        let measure = it.measure.get_or_insert(Measure {
            since_ns: now_ns,
            most: out,
            done: 0,
        });
        measure.most = measure.most.max(out);
        (entry, io)
    }

    /// Notes the end of any I/O on the leg, counted or not: an answer of the device shows that the
    /// leg does not stall.
    pub fn answered(&mut self, outcome: Outcome, now_ns: u64) {
        if is_answer(outcome) {
            self.alive_ns = now_ns;
        }
    }

    /// Counts the end of an I/O, well or not, if a window counts it.
    pub fn ended(&mut self, entry: &Entry, part: &Part, beat_ns: u64, now_ns: u64) {
        let Some(given) = entry.counted else {
            return;
        };
        let it = &mut self.lanes[given.lane];
        it.out = it.out.saturating_sub(1);
        if is_answer(part.outcome) {
            it.answered_ns = now_ns;
        } else {
            let took_ns = now_ns.saturating_sub(given.at_ns);
            let has_hung = part.outcome == Outcome::TimedOut || took_ns >= HANGS_NS;
            // A read that another leg has as well is not tried for long.
            if has_hung && !entry.hints.elsewhere && it.answered_ns <= given.at_ns {
                it.overdue_ns = it.overdue_ns.max(Some(given.at_ns));
            }
        }
        if part.outcome.is_done() {
            it.learn(given, part.latency_ns);
            it.measure(part.latency_ns, beat_ns, now_ns);
        }
        if it.out == 0 {
            it.measure = None;
        }
    }
}

/// Whether the device has answered.
fn is_answer(outcome: Outcome) -> bool {
    !outcome.is_path_error() && outcome != Outcome::Stopped
}

impl Lane {
    fn new(room: usize) -> Self {
        Self {
            window: LEG_DEPTH_FIRST,
            out: 0,
            waits: 0,
            starts: true,
            measure: None,
            base_ns: None,
            answered_ns: 0,
            overdue_ns: None,
            waiting: VecDeque::with_capacity(room),
        }
    }

    /// Another one was completed, after so long.
    fn learn(&mut self, given: Given, latency_ns: u64) {
        self.base_ns = match self.base_ns {
            Some(base_ns) if !given.is_alone => Some(base_ns.min(latency_ns)),
            _ => Some(latency_ns),
        };
    }

    /// The same: at the end of an interval the window becomes what was completed in it, where the
    /// leg has more than that and lets it wait.
    fn measure(&mut self, latency_ns: u64, beat_ns: u64, now_ns: u64) {
        let Some(measure) = &mut self.measure else {
            return;
        };
        measure.done += 1;
        let Measure {
            since_ns,
            most,
            done,
        } = *measure;
        let passed_ns = now_ns.saturating_sub(since_ns);
        // A heartbeat is a read and a write, which take a quarter of its interval then; or half of
        // it, where the leg takes so long without any queue.
        let span_ns = beat_ns / 8;
        let base_ns = self.base_ns.unwrap_or(0);
        let allowed_ns = (2 * base_ns).clamp(span_ns, beat_ns / 4);
        if passed_ns < span_ns {
            // All that it had took half of the time that it may take.
            if done == most && passed_ns < span_ns / 2 {
                self.widen();
            }
            return;
        }
        let whole = u128::from(done) * u128::from(allowed_ns) / u128::from(passed_ns.max(1));
        let whole = u32::try_from(whole).unwrap_or(u32::MAX);
        // A leg far away answers late, and does as much at a time as it is given.
        let waits = latency_ns.saturating_sub(base_ns.min(span_ns)) > allowed_ns;
        let is_full = most > whole && !canary::has(canary::Bug::EndlessQueue);
        if is_full && !waits && done < most {
            return; // too soon to tell: the first of a queue do not wait
        }
        if is_full && waits {
            self.shrink(whole, latency_ns);
        } else {
            self.waits = 0;
            self.widen();
        }
        self.measure = Some(Measure {
            since_ns: now_ns,
            most: self.out,
            done: 0,
        });
    }

    /// The leg lets I/O wait.
    fn shrink(&mut self, whole: u32, latency_ns: u64) {
        // What it has already takes its time, however small the window becomes at once.
        let window = whole.max(self.window / 2);
        self.waits += u32::from(self.out < self.window);
        self.window = window.clamp(LEG_DEPTH_MIN, LEG_DEPTH_MAX);
        self.starts = false;
        if self.waits > WAITS_MAX {
            // Smaller windows have changed nothing: it is that far away now.
            (self.waits, self.base_ns) = (0, Some(latency_ns));
        }
    }

    /// Where I/O waits for it, the window becomes larger.
    fn widen(&mut self) {
        if !self.waiting.is_empty() {
            let more = match self.starts {
                true => self.window,
                false => self.window / 4 + 1,
            };
            self.window = (self.window + more).min(LEG_DEPTH_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::NO_PATH;
    use crate::machine::Span;
    use crate::mirror::table::Task;

    const MS: u64 = 1_000_000;
    const BEAT: u64 = 5000 * MS;

    fn entry() -> Entry {
        Entry::new(0, 0, Task::Look(0), Span::default())
    }

    fn io(cookie: u64) -> Io {
        Io {
            volume: 0,
            op: IoOp::Read,
            offset: 0,
            length: 4096,
            span: Span::default(),
            source: 0,
            cookie,
        }
    }

    /// How an I/O has ended that was given at a time.
    fn part(outcome: Outcome, latency_ns: u64) -> Part {
        Part {
            outcome,
            path: NO_PATH,
            latency_ns,
        }
    }

    /// A leg, and when each I/O that it has ends, with how it was given.
    struct Leg {
        depth: Depth,
        beat_ns: u64,
        service_ns: u64,
        serial: bool,
        out: VecDeque<(u64, Entry)>,
        /// The longest that any of it took.
        longest_ns: u64,
        now_ns: u64,
        next: u64,
        seen: u64,
        ended: u64,
    }

    impl Leg {
        fn new(service_ns: u64, serial: bool) -> Self {
            Self {
                depth: Depth::default(),
                beat_ns: BEAT,
                service_ns,
                serial,
                out: VecDeque::new(),
                longest_ns: 0,
                now_ns: 1,
                next: 0,
                seen: 0,
                ended: 0,
            }
        }

        fn submit(&mut self) {
            let io = io(self.next);
            self.next += 1;
            if let Some((entry, io)) = self.depth.admit(entry(), io, true, self.now_ns) {
                self.give(entry, io);
            }
        }

        fn give(&mut self, entry: Entry, io: Io) {
            assert_eq!(io.cookie, self.seen, "in order of arrival (T46)");
            self.seen += 1;
            let before_ns = self.out.back().map_or(0, |it| it.0);
            let from_ns = match self.serial {
                true => before_ns.max(self.now_ns),
                false => self.now_ns,
            };
            self.out.push_back((from_ns + self.service_ns, entry));
        }

        /// The first one that it has ends now.
        fn end(&mut self, outcome: Outcome) {
            let (_, entry) = self.out.pop_front().unwrap();
            let latency_ns = self.now_ns - entry.counted.unwrap().at_ns;
            self.longest_ns = self.longest_ns.max(latency_ns);
            self.ended += 1;
            self.depth.answered(outcome, self.now_ns);
            let part = part(outcome, latency_ns);
            self.depth.ended(&entry, &part, self.beat_ns, self.now_ns);
        }

        fn give_waiting(&mut self) {
            while let Some((entry, io)) = self.depth.next(DATA, self.beat_ns, self.now_ns) {
                self.give(entry, io);
            }
        }

        /// Keeps so many I/Os under way for a time.
        fn run(&mut self, users: u64, for_ns: u64) {
            let end_ns = self.now_ns + for_ns;
            while self.now_ns < end_ns {
                while self.next - self.ended < users {
                    self.submit();
                }
                let Some((at_ns, _)) = self.out.front() else {
                    break;
                };
                self.now_ns = *at_ns;
                self.end(Outcome::Done);
                self.give_waiting();
            }
        }
    }

    #[test]
    fn t54_slow_leg_has_what_it_completes_in_time() {
        for (service_ms, most) in [(4, 250), (12, 90), (100, 40)] {
            let mut leg = Leg::new(service_ms * MS, true);
            leg.run(1024, 60_000 * MS);
            let out = leg.out.len() as u64;
            assert!(out <= most, "{service_ms} ms: {out}");
            let possible = leg.now_ns / (service_ms * MS);
            assert!(leg.ended + 1 >= possible, "it was never idle");
            // A quick one again, with as many at a time.
            (leg.serial, leg.service_ns) = (false, 10 * MS);
            leg.run(1024, 20_000 * MS);
            assert!(leg.out.len() >= 1023, "{service_ms} ms");
        }
    }

    /// With a heartbeat each second, whose lease is two.
    #[test]
    fn t54_slowest_leg_has_few_at_a_time() {
        for service_ms in [4, 12, 22, 30, 60, 100] {
            let mut leg = Leg::new(service_ms * MS, true);
            leg.beat_ns = 1000 * MS;
            leg.run(1024, 4_000 * MS);
            let possible = leg.now_ns / (service_ms * MS);
            assert!(leg.ended + 1 >= possible, "it was never idle");
            // The first ones are given before anything is known.
            assert!(
                leg.longest_ns <= 1_600 * MS,
                "{service_ms} ms: {}",
                leg.longest_ns
            );
            leg.longest_ns = 0;
            leg.run(1024, 10_000 * MS);
            let longest_ms = leg.longest_ns / MS;
            assert!(longest_ms <= 400, "{service_ms} ms: {longest_ms} ms");
        }
    }

    #[test]
    fn fast_leg_has_all_that_users_have() {
        for latency_ns in [MS / 10, 5 * MS, 500 * MS, 900 * MS] {
            let mut leg = Leg::new(latency_ns, false);
            leg.run(1024, 20 * latency_ns.max(10 * MS));
            let out = leg.out.len();
            assert!(out >= 1023, "{latency_ns} ns: {out} outstanding");
        }
        let mut alone = Leg::new(4 * MS, true);
        alone.run(1, 10_000 * MS);
        assert_eq!(alone.depth.lanes[DATA].window, LEG_DEPTH_FIRST);
    }

    /// One that was near and is far away from then on, as by another path.
    #[test]
    fn leg_that_moves_away_has_many_again() {
        let mut leg = Leg::new(MS, false);
        leg.run(1024, 100 * MS);
        leg.service_ns = 900 * MS;
        leg.run(1024, 60_000 * MS);
        assert!(leg.out.len() >= 1023, "{}", leg.out.len());
    }

    #[test]
    fn slow_flushes_leave_data_its_window() {
        let mut leg = Leg::new(100 * MS, false);
        leg.run(1024, 3_000 * MS);
        let window = leg.depth.lanes[DATA].window;
        let flush = |cookie| Io {
            op: IoOp::Flush,
            ..io(cookie)
        };
        // Each takes two seconds, and 64 are there at a time.
        for _ in 0..16 {
            let given: VecDeque<Entry> = (0..64)
                .filter_map(|number| leg.depth.admit(entry(), flush(number), true, leg.now_ns))
                .map(|it| it.0)
                .collect();
            let given_ns = leg.now_ns;
            leg.run(1024, 2_000 * MS);
            let part = part(Outcome::Done, leg.now_ns - given_ns);
            for entry in given {
                leg.depth.ended(&entry, &part, BEAT, leg.now_ns);
            }
            while leg.depth.drop_first(FLUSHES).is_some() {}
        }
        assert!(leg.depth.lanes[DATA].window >= window);
        assert!(leg.depth.lanes[FLUSHES].window < LEG_DEPTH_FIRST);
    }

    #[test]
    fn t54_hung_leg_gets_all_after_half_an_interval() {
        let mut leg = Leg::new(12 * MS, true);
        leg.run(1024, 10_000 * MS);
        (0..500).for_each(|_| leg.submit());
        let at_ns = leg.depth.stalls_at(BEAT).unwrap();
        assert_eq!(at_ns, leg.now_ns + BEAT / 2);
        assert!(leg.depth.next(DATA, BEAT, at_ns - 1).is_none());
        let mut given = 0;
        while leg.depth.next(DATA, BEAT, at_ns).is_some() {
            given += 1;
        }
        assert!(given > 500, "{given}");
        assert!(!leg.depth.has_waiting() && leg.depth.stalls_at(BEAT).is_none());
    }

    #[test]
    fn t54_leg_that_answers_heartbeats_does_not_stall() {
        let mut leg = Leg::new(12 * MS, true);
        leg.run(1024, 10_000 * MS);
        (0..500).for_each(|_| leg.submit());
        let at_ns = leg.depth.stalls_at(BEAT).unwrap();
        leg.depth.answered(Outcome::Done, at_ns - 1);
        assert!(leg.depth.next(DATA, BEAT, at_ns).is_none());
        assert_eq!(leg.depth.stalls_at(BEAT), Some(at_ns - 1 + BEAT / 2));
        // A path that was lost has answered nothing.
        leg.depth.answered(Outcome::PathError, at_ns + 1);
        assert_eq!(leg.depth.stalls_at(BEAT), Some(at_ns - 1 + BEAT / 2));
    }

    /// A leg that answers heartbeats and nothing else: all of 1,024 end in two time-outs.
    #[test]
    fn t54_what_waits_for_a_hung_leg_ends_in_time() {
        const TIME_OUT: u64 = 120_000 * MS;
        let mut leg = Leg::new(TIME_OUT, false);
        leg.run(16, MS);
        (0..512).for_each(|_| leg.submit());
        leg.now_ns += TIME_OUT / 2;
        (0..512).for_each(|_| leg.submit());
        let end_ns = leg.now_ns + 2 * TIME_OUT;
        let mut dropped = 0;
        while let Some((at_ns, _)) = leg.out.front() {
            leg.now_ns = *at_ns;
            leg.end(Outcome::TimedOut);
            leg.depth.answered(Outcome::Done, leg.now_ns); // a heartbeat
            while leg.depth.is_overdue(DATA) {
                assert!(leg.depth.drop_first(DATA).is_some());
                (dropped, leg.seen) = (dropped + 1, leg.seen + 1);
            }
            leg.give_waiting();
        }
        assert!(leg.now_ns <= end_ns, "{} s", leg.now_ns / (1000 * MS));
        assert!(dropped > 900 && !leg.depth.has_waiting(), "{dropped}");
        assert_eq!(Depth::outcome_of_overdue(DATA), Outcome::TimedOut);
    }

    /// One I/O that takes too long says nothing of those that wait, while others end.
    #[test]
    fn io_that_times_out_alone_ends_no_other() {
        let mut leg = Leg::new(10 * MS, false);
        let (slow, _) = leg.depth.admit(entry(), io(0), true, 1).unwrap();
        (leg.next, leg.seen) = (1, 1);
        leg.run(1024, 30_000 * MS);
        (0..500).for_each(|_| leg.submit());
        let part = part(Outcome::TimedOut, leg.now_ns);
        leg.depth.ended(&slow, &part, BEAT, leg.now_ns);
        assert!(!leg.depth.is_overdue(DATA));
    }
}
