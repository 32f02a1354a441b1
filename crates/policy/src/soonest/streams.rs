//! Streams: I/Os that go on where the last one ended, and what it costs a path to break one.
//!
//! A disk that turns reads on at once, but takes milliseconds for any other place. So a stream
//! keeps to the path it is on, its home, until another is about to run dry, or until staying has
//! become far slower than leaving. With much in flight the stream then uses all paths, in turns of
//! about twice what it keeps in flight; with little it stays, as it should.
//!
//! The cost of a jump is learnt from the time between two completions of a loaded path: where the
//! second is not the next place after the first, it takes longer on a disk, and just as long on
//! flash or at the end of a network. Where a jump costs nothing, streams are nothing special.
//!
//! # Contract
//! On paths of which this is not known yet a stream takes turns as well, but only for [`TRIALS`]
//! I/Os now and then: so it becomes known, and a stream over a network loses nothing by it. The
//! time that other cores' I/Os may have made an I/O wait is taken off twice: a cost too low only
//! means that streams move more often.
//!
//! # Limits
//! [`STREAMS`] streams; places count in 512 bytes, modulo 2 TiB.

use super::model::{Kind, Model};
use crate::limits::PATHS_MAX;
use crate::types::{Completion, Ended, Forecast, Request};

/// Streams that are told from one another, a power of two.
const STREAMS: usize = 32;
/// A stream is looked up by where it will go on, in areas of 4 MiB.
const AREA_SHIFT: u32 = 13;
/// So far behind or beyond the expected place it is still the same stream: 512 KiB.
const BEHIND: u32 = 1024;
const BEYOND: u32 = 1024;
/// I/Os after which it is one, and most that count: others have to come as often to displace it.
const HITS: u8 = 3;
const HITS_MAX: u8 = 16;
/// Completions of each sort after which the cost of a jump is known.
const SURE: u8 = 4;
/// So many may be guesses.
const GUESSES: u8 = 8;
/// Longer times are cut to this.
const TIME_NS_MAX: u64 = 50_000_000;
/// No path takes longer for a unit; ns, Q4.
const PACE_MAX: i64 = 1 << 28;
/// A shorter jump is none: flash is not so even either.
const JUMP_NS_MIN: i64 = 300_000;
/// Staying may cost so many jumps.
const JUMPS: u64 = 8;
/// While that is not known, staying may cost so many times what leaving does.
const TIMES: u64 = 4;
/// Where no jump costs anything, so many I/Os are looked at, then none for this long.
const AWAKE: u16 = 512;
const REST_NS: u64 = 1_000_000_000;
/// An end noticed later than this says nothing of what was between.
const GAP_NS_MAX: u64 = 50_000;
/// I/Os that a stream stays on its path only to find out, and after how many more it may again.
const TRIALS: u16 = 64;
const TRIALS_AGAIN: u16 = 4096;

const _: () = assert!(STREAMS.is_power_of_two() && PATHS_MAX <= 1 << 8);

/// Where a stream will go on, and which path it is on.
#[derive(Clone, Copy, Debug)]
struct Stream {
    next: u32,
    home: u8,
    /// 0: no stream.
    hits: u8,
}

/// Knowledge of jumps on a path.
#[derive(Clone, Copy, Debug)]
struct Leg {
    /// Where the I/O that was completed last ended.
    end: u32,
    /// Time per 512 bytes of an I/O that goes on there; ns, Q4.
    pace: u32,
    /// Time of any other I/O; ns.
    far_ns: u32,
    /// How far those that go on are from that, in the mean; ns.
    spread_ns: u32,
    /// Cost of a jump: 0 unless it is surely more than chance; ns.
    jump_ns: u32,
    nears: u8,
    fars: u8,
}

impl Leg {
    const NEW: Self = Self {
        end: 0,
        pace: 0,
        far_ns: 0,
        spread_ns: 0,
        jump_ns: 0,
        nears: 0,
        fars: 0,
    };

    fn is_sure(&self) -> bool {
        self.nears >= SURE && self.fars >= SURE
    }
}

/// Of one path.
pub(super) const PATH_BYTES: usize = size_of::<Leg>();

/// The streams of one core, and the jumps of all paths.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    /// Nothing is done before.
    wake_ns: u64,
    /// I/Os that are looked at until it rests again.
    awake: u16,
    /// I/Os of streams since trials began.
    trials: u16,
    /// A jump costs something on some path.
    jumpy: bool,
    legs: [Leg; PATHS_MAX],
    table: [Stream; STREAMS],
}

/// Where an I/O is.
pub(super) struct Place {
    first: u32,
    end: u32,
    /// The path of the stream that it goes on with.
    pub(super) home: Option<usize>,
}

/// Where an I/O begins.
#[inline]
pub(super) fn first(request: &Request) -> u32 {
    (request.address >> 9) as u32
}

#[inline]
fn slot(place: u32) -> usize {
    let mixed = (place >> AREA_SHIFT).wrapping_mul(0x9e37_79b9);
    (mixed >> (u32::BITS - STREAMS.ilog2())) as usize % STREAMS
}

impl Streams {
    pub(super) fn new() -> Self {
        let none = Stream {
            next: 0,
            home: 0,
            hits: 0,
        };
        Self {
            wake_ns: 0,
            awake: AWAKE,
            trials: 0,
            jumpy: false,
            legs: [Leg::NEW; PATHS_MAX],
            table: [none; STREAMS],
        }
    }

    /// Whether it may matter where I/Os are.
    #[inline]
    pub(super) fn is_awake(&self, now_ns: u64) -> bool {
        now_ns >= self.wake_ns
    }

    /// Where an I/O is.
    pub(super) fn find(&mut self, request: &Request) -> Place {
        if !self.jumpy {
            self.awake -= 1;
            if self.awake == 0 {
                self.awake = AWAKE;
                self.wake_ns = request.now_ns.saturating_add(REST_NS);
            }
        }
        let first = first(request);
        let stream = &self.table[slot(first)];
        let known = stream.hits >= HITS && stream.is_at(first);
        Place {
            first,
            end: first.wrapping_add(request.length >> 9),
            home: known.then(|| usize::from(stream.home)),
        }
    }

    /// An I/O goes to `home`: the next of its stream will be expected there.
    pub(super) fn note(&mut self, place: &Place, home: usize) {
        let (from, to) = (slot(place.first), slot(place.end));
        let mut stream = self.table[from];
        if stream.hits > 0 && stream.is_at(place.first) {
            stream.home = home as u8;
            if place.end.wrapping_sub(stream.next) as i32 > 0 {
                stream.next = place.end;
                stream.hits = (stream.hits + 1).min(HITS_MAX);
                self.table[from].hits = 0;
                self.table[to] = stream;
            } else {
                // One that is late, or reads again.
                self.table[from] = stream;
            }
            return;
        }
        let there = &mut self.table[to];
        if there.hits > 1 {
            there.hits -= 1;
        } else {
            *there = Stream {
                next: place.end,
                home: home as u8,
                hits: 1,
            };
        }
    }

    /// Whether a jump costs something on some path, as on a disk.
    pub(super) fn are_jumpy(&self) -> bool {
        self.jumpy
    }

    /// Whether it may matter on which of two paths a stream goes on.
    pub(super) fn matter(&mut self, home: usize, best: usize) -> bool {
        let legs = [home, best].map(|path| &self.legs[path % PATHS_MAX]);
        if legs[0].jump_ns | legs[1].jump_ns > 0 {
            return true;
        }
        if legs[0].is_sure() && legs[1].is_sure() {
            return false;
        }
        self.trials = (self.trials + 1) % TRIALS_AGAIN;
        self.trials < TRIALS
    }

    /// Whether a stream leaves `home` for `best`, by what is expected of each; there are so many
    /// I/Os `left` on that one.
    pub(super) fn leaves(
        &self,
        home: (usize, Forecast),
        best: (usize, Forecast),
        left: u32,
    ) -> bool {
        let (at_home, there) = (&self.legs[home.0], &self.legs[best.0]);
        let jump_ns = u64::from(at_home.jump_ns.max(there.jump_ns));
        // The price counts where a path is about to have nothing to do.
        let loss_ns = home.1.cost_ns.saturating_sub(best.1.cost_ns);
        let dry = left <= u32::from(jump_ns > 0);
        if dry && loss_ns > there.jump_ns.into() {
            return true;
        }
        let (staying_ns, leaving_ns) = (home.1.time_ns(), best.1.time_ns());
        if jump_ns > 0 {
            staying_ns.saturating_sub(leaving_ns) > JUMPS * jump_ns
        } else {
            staying_ns > TIMES * leaving_ns
        }
    }

    /// An I/O has ended on a path, whose books don't say so yet.
    #[inline(never)]
    pub(super) fn end(&mut self, done: &Completion, model: &Model) {
        if done.ended != Ended::Good || done.latency_ns == 0 {
            return;
        }
        let leg = &mut self.legs[usize::from(done.path.0) % PATHS_MAX];
        let ticket = &done.ticket;
        let near = leg.end == ticket.first;
        leg.end = ticket.first.wrapping_add(ticket.units);
        if (near || leg.nears > 0 || leg.fars < SURE)
            && done.gap_ns <= GAP_NS_MAX
            && model.knows(Kind::of_ticket(ticket))
        {
            leg.learn(near, done, model);
            self.jumpy = self.legs.iter().any(|leg| leg.jump_ns > 0);
        }
    }

    /// Forgets what was learnt of a path.
    pub(super) fn reset(&mut self, path: usize) {
        self.legs[path] = Leg::NEW;
        (self.trials, self.wake_ns, self.awake) = (0, 0, AWAKE);
        self.jumpy = self.legs.iter().any(|leg| leg.jump_ns > 0);
    }
}

impl Stream {
    #[inline]
    fn is_at(&self, first: u32) -> bool {
        first.wrapping_sub(self.next).wrapping_add(BEHIND) <= BEHIND + BEYOND
    }
}

impl Leg {
    fn learn(&mut self, near: bool, done: &Completion, model: &Model) {
        let before_ns = model.mark_ns;
        let units = done.ticket.units.clamp(1, 1 << 16);
        let usual = (i64::from(self.pace) * i64::from(units)) >> 4;
        let begun_ns = done.now_ns.saturating_sub(done.latency_ns);
        if near {
            let took = done.now_ns.saturating_sub(begun_ns.max(before_ns));
            self.near(took.min(TIME_NS_MAX) as i64, usual, units);
        } else {
            // The time of the way is no jump, nor the wait for others' I/Os.
            let wait_ns = match done.ticket.elsewhere {
                0 => 0,
                _ => model.waited_ns(Kind::of_ticket(&done.ticket), &done.ticket) as u64,
            };
            let way_ns = model.base_of(&done.ticket) + 2 * wait_ns;
            let due_ns = begun_ns.saturating_add(way_ns);
            let took = done.now_ns.saturating_sub(due_ns.max(before_ns));
            let took = took.min(TIME_NS_MAX) as i64;
            // Behind a queue this is what the path took. Else the time on the empty path was taken
            // off, which may have jumps in it: good for a first guess only.
            if before_ns >= due_ns || self.fars < GUESSES {
                self.far_ns = follow(self.far_ns, took, self.fars);
                self.fars = self.fars.saturating_add(1);
            }
        }
        let more = i64::from(self.far_ns) - usual;
        let least = (2 * i64::from(self.spread_ns)).max(usual / 4);
        let sure = self.is_sure() && more > least.max(JUMP_NS_MIN);
        self.jump_ns = if sure { more as u32 } else { 0 };
    }

    /// An I/O went on where the last one ended.
    fn near(&mut self, took: i64, usual: i64, units: u32) {
        let error = (took - usual).clamp(-(TIME_NS_MAX as i64), TIME_NS_MAX as i64);
        if self.nears == 0 {
            self.pace = ((took << 4) >> units.ilog2()).clamp(1, PACE_MAX) as u32;
        } else {
            self.spread_ns = follow(self.spread_ns, error.abs(), self.nears);
            let step = (error << 4) >> (units.ilog2() + 3);
            self.pace = (i64::from(self.pace) + step).clamp(1, PACE_MAX) as u32;
        }
        self.nears = self.nears.saturating_add(1);
    }
}

/// The mean after one more, of `count` before: quickly at first.
fn follow(mean: u32, more: i64, count: u8) -> u32 {
    let shift = match count {
        0 => 0,
        1..=3 => 2,
        _ => 3,
    };
    (i64::from(mean) + ((more - i64::from(mean)) >> shift)) as u32
}

#[cfg(test)]
mod tests;
