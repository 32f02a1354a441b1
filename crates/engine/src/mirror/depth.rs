//! How much data I/O and how many flushes of users a leg has outstanding: as much as it completes
//! in a part of a heartbeat interval.
//!
//! # Contract
//! A slow leg with a long queue would answer heartbeats after their lease has ended (T54). Data I/O
//! and users' flushes beyond the window wait here, in order of arrival (T46); heartbeats,
//! superblocks, pages of the bitmap and the mirror's own flushes pass it. A window that was not
//! used up for a time, in which the leg may have become slow, shrinks to the part that was used,
//! but not below that of an idle leg. While it is used up it is doubled each time that the leg
//! keeps up, and grows by a quarter after the leg once did not: then it shrinks to what was
//! completed in a measured interval in which the leg was never idle. A leg that answers nothing
//! for half a heartbeat interval, heartbeats included, gets everything at once, so that time-outs
//! and failover are those of the host.
//!
//! # Limits
//! One window per leg, whatever its number of paths and the sizes of its I/Os. The time in the
//! queue is no part of the latency that a policy learns.
use super::table::Entry;
use crate::host::{Io, IoDone};
use crate::limits::{LEG_DEPTH_FIRST, LEG_DEPTH_MAX, LEG_DEPTH_MIN, MIRROR_COPIES, MIRROR_IOS_MAX};
use alloc::collections::VecDeque;
use multipath::Outcome;

/// The queue in front of one leg.
pub(super) struct Depth {
    /// Data I/O and users' flushes that it may have outstanding.
    window: u32,
    growth: Growth,
    /// Data I/O and users' flushes that it has outstanding.
    out: u32,
    /// The most of these since `used_ns`.
    most_used: u32,
    used_ns: u64,
    /// The measured interval, while the leg is not idle.
    measure: Option<Measure>,
    /// Its latency without a queue, as far as known: the shortest that was seen, ns.
    base_ns: Option<u64>,
    /// When it has answered last, or got something while it was idle, ns.
    alive_ns: u64,
    waiting: VecDeque<(Entry, Io)>,
}

/// How much wider a window becomes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    /// The leg has kept up with all that it got since some of the window was left.
    Double,
    /// It has not: the window is near what the leg can do.
    Quarter,
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
        Self {
            window: LEG_DEPTH_FIRST,
            growth: Growth::Double,
            out: 0,
            most_used: 0,
            used_ns: 0,
            measure: None,
            base_ns: None,
            alive_ns: 0,
            // All users' I/O, and copies.
            waiting: VecDeque::with_capacity(MIRROR_IOS_MAX + 4 * usize::from(MIRROR_COPIES)),
        }
    }
}

impl Depth {
    /// Takes an I/O to be given, if there is room in the host; `None`: it waits.
    pub fn admit(
        &mut self,
        (entry, io): (Entry, Io),
        room: bool,
        interval_ns: u64,
        now_ns: u64,
    ) -> Option<(Entry, Io)> {
        self.take_back_unused(interval_ns, now_ns);
        if !room || self.out >= self.window || !self.waiting.is_empty() {
            if self.waiting.is_empty() {
                self.measure_anew(interval_ns, now_ns);
            }
            self.wait(entry, io);
            return None;
        }
        Some(self.pass(entry, io, now_ns))
    }

    /// Puts an I/O behind those that wait.
    pub fn wait(&mut self, entry: Entry, io: Io) {
        self.waiting.push_back((entry, io));
    }

    /// Returns the next I/O that may be given; a path of the leg has ended something well at
    /// `answered_ns`.
    pub fn next(&mut self, interval_ns: u64, answered_ns: u64, now_ns: u64) -> Option<(Entry, Io)> {
        let stalls_ns = self.stalls_at(interval_ns, answered_ns);
        let stalls = stalls_ns.is_some_and(|at_ns| at_ns <= now_ns);
        if self.out >= self.window && !stalls {
            return None;
        }
        let (entry, io) = self.waiting.pop_front()?;
        Some(self.pass(entry, io, now_ns))
    }

    /// Takes out the first I/O that waits, which is not given.
    pub fn drop_first(&mut self) -> Option<(Entry, Io)> {
        self.waiting.pop_front()
    }

    /// The first I/O that waits.
    pub fn first(&self) -> Option<&Entry> {
        self.waiting.front().map(|it| &it.0)
    }

    /// When all that waits is given although nothing was answered, ns.
    ///
    /// A flush goes to each controller that has written: each of its parts that a path has answered
    /// shows that the leg does not stall, though none of the flushes has ended.
    pub fn stalls_at(&self, interval_ns: u64, answered_ns: u64) -> Option<u64> {
        let waits = !self.waiting.is_empty();
        waits.then(|| {
            self.alive_ns
                .max(answered_ns)
                .saturating_add(interval_ns / 2)
        })
    }

    /// Takes back the part of the window that was not used for a time: only the rest shows how the
    /// leg is now, however busy that kept it.
    fn take_back_unused(&mut self, interval_ns: u64, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.used_ns);
        if passed_ns < span_ns(interval_ns) / 2 {
            return; // too short a time to judge by
        }
        // As many as now since the last beginning or end, which was not in this time.
        let is_long = passed_ns >= span_ns(interval_ns);
        let used = if is_long { self.out } else { self.most_used };
        if self.waiting.is_empty() && used < self.window {
            self.window = self.window.min(used.max(LEG_DEPTH_FIRST));
            self.growth = Growth::Double;
        }
        (self.used_ns, self.most_used) = (now_ns, self.out);
    }

    fn pass(&mut self, mut entry: Entry, io: Io, now_ns: u64) -> (Entry, Io) {
        entry.counted = true;
        self.out += 1;
        if self.out == 1 {
            self.alive_ns = now_ns;
        }
        let out = self.out;
        self.most_used = self.most_used.max(out);
        let measure = self.measure.get_or_insert(Measure {
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
        let is_lost = outcome.is_path_error() || outcome == Outcome::Stopped;
        if !is_lost {
            self.alive_ns = now_ns;
        }
    }

    /// Counts the end of an I/O that was counted. The latency of a flush is not that of data.
    pub fn ended(&mut self, done: &IoDone, is_flush: bool, interval_ns: u64, now_ns: u64) {
        self.take_back_unused(interval_ns, now_ns);
        assert!(self.out > 0, "an I/O ends that is not outstanding");
        self.out -= 1;
        if done.outcome.is_done() {
            if !is_flush {
                let base_ns = self.base_ns.unwrap_or(u64::MAX);
                self.base_ns = Some(base_ns.min(done.latency_ns));
            }
            self.measure(interval_ns, now_ns);
        }
        if self.out == 0 {
            self.measure = None;
        }
    }

    /// Begins to measure anew when the window is used up: where the leg kept up with less, the next
    /// round trip shows whether it does with all of it.
    fn measure_anew(&mut self, interval_ns: u64, now_ns: u64) {
        let kept_up = self.measure.is_some_and(|it| {
            let passed_ns = now_ns.saturating_sub(it.since_ns);
            it.done >= it.most && passed_ns < span_ns(interval_ns) / 2
        });
        if kept_up {
            self.measure = Some(Measure {
                since_ns: now_ns,
                most: self.out,
                done: 0,
            });
        }
    }

    /// Another one was completed: at the end of an interval the window becomes what was completed
    /// in it.
    fn measure(&mut self, interval_ns: u64, now_ns: u64) {
        let Some(measure) = &mut self.measure else {
            unreachable!("a leg with I/O outstanding is measured");
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
        let span_ns = span_ns(interval_ns);
        let allowed_ns = (2 * self.base_ns.unwrap_or(0)).clamp(span_ns, interval_ns / 4);
        if passed_ns < span_ns {
            // All that it had took half of the time that it may take.
            if done == most && passed_ns < span_ns / 2 {
                self.widen();
            }
            return;
        }
        let whole = u128::from(done) * u128::from(allowed_ns) / u128::from(passed_ns.max(1));
        let whole = u32::try_from(whole).unwrap_or(u32::MAX);
        if most > whole && !canary::has(canary::Bug::EndlessQueue) {
            self.window = whole.clamp(LEG_DEPTH_MIN, LEG_DEPTH_MAX);
            self.growth = Growth::Quarter;
        } else {
            self.widen();
        }
        self.measure = Some(Measure {
            since_ns: now_ns,
            most: self.out,
            done: 0,
        });
    }

    /// Where I/O waits for it, the window becomes larger.
    fn widen(&mut self) {
        if !self.waiting.is_empty() {
            let more = match self.growth {
                Growth::Double => self.window,
                Growth::Quarter => self.window / 4 + 1,
            };
            self.window = (self.window + more).min(LEG_DEPTH_MAX);
        }
    }
}

/// How long a leg is measured, and may leave some of its window until that is taken back, ns.
fn span_ns(interval_ns: u64) -> u64 {
    interval_ns / 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{IoOp, NO_PATH};
    use crate::machine::Span;
    use crate::mirror::table::Task;

    const MS: u64 = 1_000_000;
    const BEAT: u64 = 5000 * MS;

    fn entry() -> Entry {
        Entry::new(0, 0, Task::Probe(0), Span::default())
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

    /// A leg, and when each I/O that it has ends, with when it was given.
    struct Leg {
        depth: Depth,
        service_ns: u64,
        serial: bool,
        out: VecDeque<(u64, u64)>,
        now_ns: u64,
        next: u64,
        seen: u64,
        ended: u64,
    }

    impl Leg {
        fn new(service_ns: u64, serial: bool) -> Self {
            Self {
                depth: Depth::default(),
                service_ns,
                serial,
                out: VecDeque::new(),
                now_ns: 1,
                next: 0,
                seen: 0,
                ended: 0,
            }
        }

        fn submit(&mut self) {
            let io = io(self.next);
            self.next += 1;
            if let Some((_, io)) = self.depth.admit((entry(), io), true, BEAT, self.now_ns) {
                self.give(io);
            }
        }

        fn give(&mut self, io: Io) {
            assert_eq!(io.cookie, self.seen, "in order of arrival (T46)");
            self.seen += 1;
            let before_ns = self.out.back().map_or(0, |it| it.0);
            let from_ns = match self.serial {
                true => before_ns.max(self.now_ns),
                false => self.now_ns,
            };
            self.out.push_back((from_ns + self.service_ns, self.now_ns));
        }

        /// Keeps so many I/Os under way for a time.
        fn run(&mut self, users: u64, for_ns: u64) {
            let end_ns = self.now_ns + for_ns;
            while self.now_ns < end_ns {
                while self.next - self.ended < users {
                    self.submit();
                }
                let Some((at_ns, given_ns)) = self.out.pop_front() else {
                    break;
                };
                self.now_ns = at_ns;
                self.ended += 1;
                let part = IoDone {
                    cookie: 0,
                    outcome: Outcome::Done,
                    path: NO_PATH,
                    latency_ns: at_ns - given_ns,
                };
                self.depth.answered(part.outcome, at_ns);
                self.depth.ended(&part, false, BEAT, at_ns);
                while let Some((_, io)) = self.depth.next(BEAT, 0, at_ns) {
                    self.give(io);
                }
            }
        }
    }

    #[test]
    fn t54_slow_leg_has_what_it_completes_in_time() {
        for (service_ms, most) in [(4, 250), (12, 90), (100, 40), (300, 8)] {
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

    #[test]
    fn fast_leg_has_all_that_users_have() {
        for latency_ns in [MS / 10, 5 * MS, 500 * MS, 900 * MS] {
            let mut leg = Leg::new(latency_ns, false);
            leg.run(1024, 25 * latency_ns.max(10 * MS));
            let out = leg.out.len();
            assert!(out >= 1023, "{latency_ns} ns: {out} outstanding");
        }
        let mut alone = Leg::new(4 * MS, true);
        alone.run(1, 10_000 * MS);
        assert_eq!(alone.depth.window, LEG_DEPTH_FIRST);
    }

    #[test]
    fn t54_burst_after_idle_time_begins_small() {
        let mut leg = Leg::new(MS / 10, false);
        leg.run(1024, 1000 * MS);
        assert!(leg.out.len() >= 1023);
        leg.run(0, 1000 * MS);
        assert!(leg.out.is_empty() && leg.depth.out == 0);
        // A moment's rest says nothing.
        leg.now_ns += BEAT / 16;
        leg.run(512, 1);
        assert!(leg.out.len() >= 511);
        leg.run(0, 1000 * MS);
        // It has become slow meanwhile.
        leg.now_ns += BEAT / 8;
        (leg.serial, leg.service_ns) = (true, 40 * MS);
        leg.run(192, 1);
        assert_eq!(leg.out.len(), LEG_DEPTH_FIRST as usize);
        leg.run(192, 10_000 * MS);
        assert!(leg.out.len() <= 2 * LEG_DEPTH_FIRST as usize);
        // It is quick again: a burst is there after some round trips.
        leg.run(0, 20_000 * MS);
        leg.now_ns += BEAT;
        (leg.serial, leg.service_ns) = (false, 10 * MS);
        leg.run(1024, 80 * MS);
        assert!(leg.out.len() >= 1023, "{}", leg.out.len());
    }

    #[test]
    fn t54_burst_after_light_use_begins_small() {
        for users in [1, 4] {
            let mut leg = Leg::new(MS / 10, false);
            leg.run(1024, 1000 * MS);
            assert!(leg.out.len() >= 1023);
            leg.run(users, 1);
            // It becomes slow while it has little to do, and is hardly ever idle.
            (leg.serial, leg.service_ns) = (true, 12 * MS);
            leg.run(users, BEAT / 4);
            leg.run(1024, 1);
            let out = leg.out.len();
            assert_eq!(out, LEG_DEPTH_FIRST as usize, "{users} users");
        }
    }

    #[test]
    fn leg_keeps_as_much_of_its_window_as_it_uses() {
        let mut leg = Leg::new(MS / 10, false);
        leg.run(1024, 1000 * MS);
        leg.run(100, BEAT);
        (0..1000).for_each(|_| leg.submit());
        assert_eq!(leg.out.len(), 100);
        // All of it after some round trips.
        leg.run(1024, BEAT / 8);
        assert!(leg.out.len() >= 1023, "{}", leg.out.len());
    }

    #[test]
    fn t54_hung_leg_gets_all_after_half_an_interval() {
        let mut leg = Leg::new(12 * MS, true);
        leg.run(1024, 10_000 * MS);
        (0..500).for_each(|_| leg.submit());
        let at_ns = leg.depth.stalls_at(BEAT, 0).unwrap();
        assert_eq!(at_ns, leg.now_ns + BEAT / 2);
        assert!(leg.depth.next(BEAT, 0, at_ns - 1).is_none());
        let mut given = 0;
        while leg.depth.next(BEAT, 0, at_ns).is_some() {
            given += 1;
        }
        assert!(given > 500, "{given}");
        assert!(leg.depth.first().is_none() && leg.depth.stalls_at(BEAT, 0).is_none());
    }

    #[test]
    fn t54_leg_that_answers_heartbeats_does_not_stall() {
        let mut leg = Leg::new(12 * MS, true);
        leg.run(1024, 10_000 * MS);
        (0..500).for_each(|_| leg.submit());
        let at_ns = leg.depth.stalls_at(BEAT, 0).unwrap();
        leg.depth.answered(Outcome::Done, at_ns - 1);
        assert!(leg.depth.next(BEAT, 0, at_ns).is_none());
        assert_eq!(leg.depth.stalls_at(BEAT, 0), Some(at_ns - 1 + BEAT / 2));
        // A path has ended one of several parts.
        let later_ns = at_ns + BEAT;
        assert_eq!(
            leg.depth.stalls_at(BEAT, later_ns),
            Some(later_ns + BEAT / 2)
        );
        // A path that was lost has answered nothing.
        leg.depth.answered(Outcome::PathError, at_ns + 1);
        assert_eq!(leg.depth.stalls_at(BEAT, 0), Some(at_ns - 1 + BEAT / 2));
    }
}
