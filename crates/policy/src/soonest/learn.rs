//! How completions teach: the unloaded time, the regression of the wait, and the prices.
//!
//! # Contract
//! The unloaded time is learnt only from I/Os that found the path nearly empty: a loaded path would
//! teach its queue as its distance. Where completions come fast only some of them teach
//! ([`Model::wants`]); the others cost what the books cost.
//!
//! # Limits
//! Latencies are cut at [`LATENCY_NS_MAX`].

use super::model::{BASE_NS_MIN, CLASSES, IO_UNITS, Kind, Load, Model, SERVICE_NS_MAX, dot};
use crate::types::Ticket;

/// Longer latencies are cut to this.
pub(super) const LATENCY_NS_MAX: u64 = 2_000_000_000;
/// Longer queues are cut to this.
const QUEUED_NS_MAX: i64 = 1 << 33;
/// Most that the tail adds.
const TAIL_NS_MAX: i64 = 200_000_000;
/// So many unloaded samples in a row on one side, and the base jumps.
const OUTLIERS: u8 = 4;
/// Averages follow by 1 in 2^this of the lessons.
const MEAN_SHIFT: u32 = 5;
const TAIL_SHIFT: u32 = 8;
const WAITED_SHIFT: u32 = 7;
/// The price is at most half of so many waiting.
const PRICE_MAX: u64 = 32 << 16;
/// Most that the number of an I/O, or its bytes, cost each nanosecond of wait; Q32.
/// So no price reaches [`SHUNNED_NS`](crate::types::SHUNNED_NS).
const TOLL_MAX: u64 = 1 << 41;
/// Units of the largest of the last class.
const UNITS_MAX: u64 = 8 << (CLASSES - 1);
/// Prices are renewed every so many lessons, kinds never timed every so many.
const RENEW: u8 = 4;
const FILL: u8 = 64;
/// A path that has taught nothing for so long takes any lesson.
const LESSON_NS: u64 = 128_000;
/// Of others it takes 1 in 2^this.
const LESSON_SHIFT: u32 = 4;

impl Model {
    /// Whether a completion is to teach: those of nearly empty paths, those that come rarely, and
    /// of the others some. `lot` is a fair number.
    #[inline]
    pub(super) fn wants(&self, ticket: &Ticket, now_ns: u64, lot: u32) -> bool {
        u64::from(lot) >> (32 - LESSON_SHIFT) == 0
            || ticket.alone
            || now_ns.saturating_sub(self.learnt_ns) > LESSON_NS
    }

    /// A good I/O took this long, or up to `gap_ns` less. Returns the expected time; 0: none.
    #[inline(never)]
    pub(super) fn learn(&mut self, ticket: &Ticket, latency_ns: u64, gap_ns: u64) -> u64 {
        let kind = Kind::of_ticket(ticket);
        let most = latency_ns.min(LATENCY_NS_MAX) as i64;
        let least = latency_ns.saturating_sub(gap_ns).min(LATENCY_NS_MAX) as i64;
        self.mix(kind);
        if !self.knows(kind) {
            let wait = self.waited_ns(kind, ticket);
            let expected = wait + self.base_ns(kind) as i64;
            self.first(kind, wait, expected.clamp(least, most));
            return 0;
        }
        let index = kind.index();
        let load = self.load_of(ticket);
        let queued = (dot(&self.faces[kind.direction].weights, &load) >> 8) as i64;
        let queued = queued.min(QUEUED_NS_MAX);
        let service = self.faces[kind.direction].service_ns(kind) as i64;
        let base = i64::from(self.kinds[index].base_ns);
        let knee = i64::from(self.faces[kind.direction].knee_ns);
        let gated = ticket.alone || (queued > 0 && queued - service <= base.min(knee) / 8);
        let raw = base.clamp(least, most) - base;
        if gated || (raw < 0 && queued <= base) {
            self.learn_base(kind, raw, gated);
        }
        let base = i64::from(self.kinds[index].base_ns);
        follow(&mut self.faces[kind.direction].knee_ns, base, MEAN_SHIFT);
        let usual = base.max(queued);
        let wait = if ticket.alone {
            0
        } else {
            (queued - knee).max(0)
        };
        let expected = base + wait;
        let beyond =
            (expected.clamp(least, most) - 2 * usual).clamp(0, TAIL_NS_MAX.min(16 * usual));
        follow(&mut self.tail_ns, beyond, TAIL_SHIFT);
        follow(
            &mut self.waited[kind.direction],
            wait.min(1 << 27) << 4,
            WAITED_SHIFT,
        );
        self.learn_wait(kind, ticket, &load, queued.clamp(least, most), queued, base);
        self.leak(kind.direction);
        self.work_out();
        self.lessons = self.lessons.wrapping_add(1);
        if self.lessons.is_multiple_of(RENEW) {
            self.renew();
        }
        usual as u64
    }

    /// The time that an I/O has waited, by what was in flight.
    #[cold]
    pub(super) fn waited_ns(&self, kind: Kind, ticket: &Ticket) -> i64 {
        let face = &self.faces[kind.direction];
        let queued = (dot(&face.weights, &self.load_of(ticket)) >> 8) as i64;
        if ticket.alone {
            0
        } else {
            (queued - i64::from(face.knee_ns)).max(0)
        }
    }

    /// Learns the mean mix of the I/Os.
    #[inline]
    fn mix(&mut self, kind: Kind) {
        let (this, other) = (kind.direction, 1 - kind.direction);
        let full = i64::from(IO_UNITS) << 8;
        follow(&mut self.mix[this], full, MEAN_SHIFT);
        follow(&mut self.mix[other], 0, MEAN_SHIFT);
        follow(
            &mut self.mix[2 + this],
            i64::from(kind.units) << 8,
            MEAN_SHIFT,
        );
        follow(&mut self.mix[2 + other], 0, MEAN_SHIFT);
    }

    /// The first of a kind: its time is the base, less what it was predicted to wait.
    #[cold]
    fn first(&mut self, kind: Kind, wait: i64, latency: i64) {
        let first_of_all = self.seen == 0;
        let base = (latency - wait).max(latency / 4).max(BASE_NS_MIN);
        let base = if first_of_all {
            latency.max(BASE_NS_MIN)
        } else {
            base
        };
        let index = kind.index();
        self.kinds[index].base_ns = base as u32;
        self.seen |= 1 << index;
        if first_of_all {
            self.faces
                .iter_mut()
                .for_each(|face| face.knee_ns = base as u32);
        }
        self.fill();
        self.work_out();
    }

    /// The unloaded time: follows quickly at first, then slowly; jumps when it is surely another.
    fn learn_base(&mut self, kind: Kind, raw: i64, gated: bool) {
        let index = kind.index();
        let base = i64::from(self.kinds[index].base_ns);
        if gated {
            self.above = if raw > base { self.above + 1 } else { 0 };
            self.below = if raw < -base / 2 { self.below + 1 } else { 0 };
            if self.above >= OUTLIERS || self.below >= OUTLIERS {
                return self.jump(raw.clamp(-3 * base / 4, 16 * base) / 2);
            }
        }
        let samples = self.samples >> (3 * index) & 7;
        let shift = match samples {
            _ if !gated => 3,
            0..=1 => 1,
            2..=3 => 2,
            4..=6 => 3,
            _ => 4,
        };
        if gated && samples < 7 {
            self.samples += 1 << (3 * index);
        }
        let step = raw.clamp(-base / 2, base) >> shift;
        self.kinds[index].base_ns = (base + step).max(BASE_NS_MIN) as u32;
        let knee = &mut self.faces[kind.direction].knee_ns;
        *knee = (i64::from(*knee) + step / 2).max(BASE_NS_MIN) as u32;
    }

    /// The path has become another: all that is known of its emptiness moves at once.
    #[cold]
    pub(super) fn jump(&mut self, by: i64) {
        for (index, known) in self.kinds.iter_mut().enumerate() {
            if self.seen >> index & 1 == 1 {
                let old = i64::from(known.base_ns);
                let new = (old + by).max(old / 4).max(BASE_NS_MIN);
                known.base_ns = new.min(LATENCY_NS_MAX as i64) as u32;
            }
        }
        for face in &mut self.faces {
            let new = (i64::from(face.knee_ns) + by).max(BASE_NS_MIN);
            face.knee_ns = new.min(LATENCY_NS_MAX as i64) as u32;
        }
        self.above = self.above.min(OUTLIERS);
        self.below = self.below.min(OUTLIERS);
        self.tail_ns = 0;
        self.fill();
    }

    /// Normalised least mean squares: the weights that would have predicted this time.
    #[inline]
    fn learn_wait(
        &mut self,
        kind: Kind,
        ticket: &Ticket,
        load: &Load,
        latency: i64,
        queued: i64,
        base: i64,
    ) {
        let error = latency - queued;
        let saturated = !ticket.alone && latency > base + base * 13 / 16;
        let was_late = core::mem::replace(&mut self.late, saturated);
        // Where a path is not thought to be full, one late I/O alone may be late by chance.
        let chance = !was_late && queued <= base + base / 2;
        if error >= 0 && (!saturated || chance) {
            return;
        }
        let size = error.unsigned_abs() as i64;
        let gain = match size {
            _ if size > queued / 2 => 2,
            _ if size > queued / 4 => 3,
            _ => 4,
        };
        let error = error.min(queued.max(base));
        let loads = load.map(|load| load.min(1 << 30));
        let square: u64 = loads.iter().map(|&x| u64::from(x) * u64::from(x)).sum();
        // One I/O is 2^5 units, so the shift is 12 at least; 8 of it make the step Q8.
        let shift = (square.max(1 << 10).ilog2() + gain) - 8;
        for (weight, load) in self.faces[kind.direction].weights.iter_mut().zip(loads) {
            let step = (error * i64::from(load)) >> shift;
            *weight = (i64::from(*weight) + step).clamp(0, SERVICE_NS_MAX as i64) as u32;
        }
    }

    /// Whether neither reads nor writes are rare.
    pub(super) fn is_mixed(&self) -> bool {
        // Q8 of the units of an I/O.
        let eighth = IO_UNITS << 5;
        (eighth..=7 * eighth).contains(&self.mix[1])
    }

    /// A weight that can't be observed must stay hopeful: those of the other direction shrink.
    #[inline]
    fn leak(&mut self, direction: usize) {
        let rare = !self.is_mixed();
        let shrink = |weight: &mut u32, shift: u32| *weight -= *weight >> shift;
        for of in 0..2 {
            let (ios, bytes) = (1 - of, 3 - of);
            if rare {
                shrink(&mut self.faces[of].weights[ios], 7);
                shrink(&mut self.faces[of].weights[bytes], 7);
            } else if of == direction {
                shrink(&mut self.faces[of].weights[ios], 9);
                shrink(&mut self.faces[of].weights[bytes], 9);
            }
        }
    }

    /// Prices from what waits: the only divisions.
    #[cold]
    fn renew(&mut self) {
        if self.lessons.is_multiple_of(FILL) {
            self.fill();
        }
        // Q8 of 32 units is Q13 of an I/O.
        let share = [self.mix[0], self.mix[1]].map(|ios| u64::from(ios) << 3);
        // By direction of those that wait and of the I/O: of its number, and of a unit. Q32.
        let (mut numbers, mut units, mut most) = ([[0; 2]; 2], [[0; 2]; 2], 1);
        for (waiting, share) in share.into_iter().enumerate() {
            let face = &self.faces[waiting];
            let service = face.each_ns().max(1);
            let many = (u64::from(self.waited[waiting]) << 4) / service;
            let price = (many << 7).min(PRICE_MAX);
            // Of a nanosecond of wait, per nanosecond of service; Q32.
            let price = (price * share / service).min(1 << 31);
            let each = face.weights.map(|weight| (price * u64::from(weight)) >> 8);
            for direction in 0..2 {
                let number = (each[direction] * u64::from(IO_UNITS)).min(TOLL_MAX);
                let unit = each[2 + direction].min(TOLL_MAX >> UNITS_MAX.ilog2());
                most |= number + unit * UNITS_MAX;
                (numbers[direction][waiting], units[direction][waiting]) = (number, unit);
            }
        }
        // Cut so that the dearest fits 16 bits.
        let cut = (most.ilog2() + 1).saturating_sub(16);
        self.toll_shift = 32 - cut;
        for (direction, known) in self.kinds.chunks_exact_mut(CLASSES).enumerate() {
            let ([one, other], [mut unit, mut other_unit]) = (numbers[direction], units[direction]);
            // The largest of the first class has 8 units.
            (unit, other_unit) = (unit << 3, other_unit << 3);
            for known in known {
                known.tolls = [
                    ((one + unit) >> cut) as u16,
                    ((other + other_unit) >> cut) as u16,
                ];
                (unit, other_unit) = (unit << 1, other_unit << 1);
            }
        }
    }
}

/// Moves an average towards `to`, which fits 32 bits, by 1 in 2^`shift`.
#[inline]
fn follow(average: &mut u32, to: i64, shift: u32) {
    let old = i64::from(*average);
    // Between the two, so it fits.
    *average = (old + ((to - old) >> shift)) as u32;
}
