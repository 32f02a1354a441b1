//! What `soonest` knows of one path, and how completions teach it.
//!
//! Work is counted in four sums over the I/Os in flight: reads and writes, each by number and by
//! bytes. A regression tells what each of them adds to the time of a read and of a write. On a path
//! that serves many at once nothing waits at first: what is in flight up to there, the knee, is the
//! time of an I/O on the empty path.
//!
//! # Contract
//! [`Model::begin`] and [`Model::end`] keep the books; [`Model::learn`] changes only estimates. The
//! unloaded time is learnt only from I/Os that found the path nearly empty: a loaded path would
//! teach its queue as its distance.
//!
//! # Limits
//! Units of 512 bytes; one I/O counts as many bytes as [`IO_UNITS`] until the regression knows
//! better.

use crate::types::{Group, Request, Ticket};

/// Size classes of one direction: up to 4 KiB, then one per doubling, from 1 MiB on the last.
const CLASSES: usize = 9;
/// One I/O beside its bytes, in units: 16 KiB.
const IO_UNITS: u32 = 32;
/// No path answers faster.
const BASE_NS_MIN: i64 = 2_000;
/// Longer latencies are cut to this.
const LATENCY_NS_MAX: u64 = 2_000_000_000;
/// Most that one I/O adds to a wait, and most per unit (Q8).
const SERVICE_NS_MAX: u64 = 1 << 28;
/// Most that the tail adds.
const TAIL_NS_MAX: i64 = 200_000_000;
/// What rare late I/Os add is halved when the path has rested so long: a stall is over some time.
const TAIL_IDLE_NS: u64 = 25_000_000;
/// So many unloaded samples in a row on one side, and the base jumps.
const OUTLIERS: u8 = 4;
/// The price is at most half of so many waiting.
const PRICE_MAX: u64 = 32 << 16;
/// Estimates of what waits are renewed every so many completions.
const RENEW: u8 = 16;

/// Direction and size of an I/O.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) direction: usize,
    class: u8,
    units: u32,
}

impl Kind {
    #[inline]
    pub(super) fn of(request: &Request) -> Self {
        let direction = usize::from(request.group == Group::Write);
        let class = match request.length {
            0..=4096 => 0,
            length => (((length - 1) >> 12).ilog2() + 1).min(CLASSES as u32 - 1) as u8,
        };
        Self {
            direction,
            class,
            units: (request.length >> 9).min(1 << 16),
        }
    }

    #[inline]
    fn index(self) -> usize {
        self.direction * CLASSES + usize::from(self.class)
    }
}

/// Work in flight: reads and writes by number (in units), reads and writes by bytes (in units).
pub(super) type Load = [u32; 4];

/// One path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    /// Time of an I/O on the empty path, per direction and class; ns.
    base_ns: [u32; 2 * CLASSES],
    /// Classes that have been sampled, one bit each.
    seen: u32,
    /// How often, up to 8.
    samples: [u8; 2 * CLASSES],
    /// What a unit of load adds to the time of a read, and of a write; Q8 ns.
    weights: [[u32; 4]; 2],
    /// This core's I/Os in flight.
    load: Load,
    /// Mean service of an I/O as each direction feels it; Q3 ns.
    service: [u32; 2],
    /// As much in flight as is served without waiting; ns.
    pub(super) knee_ns: [u32; 2],
    /// Mean wait that was predicted; ns, Q4.
    waited: [u32; 2],
    /// Price of a nanosecond of wait, per nanosecond of service; Q32.
    pub(super) price: [u32; 2],
    /// Mean units of this core's I/Os, reads and writes; Q4.
    mean_units: [u32; 2],
    /// What rare late I/Os add; ns.
    pub(super) tail_ns: u32,
    /// Share of writes; Q16.
    writes: u16,
    /// Unloaded samples far off, in a row: above and below.
    above: u8,
    below: u8,
    /// Completions until the prices are renewed.
    until: u8,
    /// Last sign of life: a completion, or the begin of the first I/O in flight.
    pub(super) mark_ns: u64,
    /// When the path was last given an I/O, or ended one.
    pub(super) last_ns: u64,
    /// It has failed an I/O and stands back until then.
    pub(super) shun_until_ns: u64,
}

impl Model {
    pub(crate) const NEW: Self = Self {
        base_ns: [0; 2 * CLASSES],
        seen: 0,
        samples: [0; 2 * CLASSES],
        weights: [[0; 4]; 2],
        load: [0; 4],
        service: [0; 2],
        knee_ns: [0; 2],
        waited: [0; 2],
        price: [0; 2],
        mean_units: [8 << 4; 2],
        tail_ns: 0,
        writes: 0,
        above: 0,
        below: 0,
        until: RENEW,
        mark_ns: 0,
        last_ns: 0,
        shun_until_ns: 0,
    };

    /// Forgets everything but what is in flight.
    pub(super) fn forget(&mut self) {
        *self = Self {
            load: self.load,
            ..Self::NEW
        };
    }

    /// Whether any I/O has been timed.
    #[inline]
    pub(super) fn is_seen(&self) -> bool {
        self.seen != 0
    }

    /// Whether I/Os of this kind have been timed.
    #[inline]
    pub(super) fn knows(&self, kind: Kind) -> bool {
        self.seen >> kind.index() & 1 == 1
    }

    /// Whether the last I/O on the empty path was far faster than believed.
    #[inline]
    pub(super) fn is_promising(&self) -> bool {
        self.below > 0
    }

    /// Whether it was far slower, but not often enough to be believed.
    #[inline]
    pub(super) fn is_suspect(&self) -> bool {
        self.above > 0
    }

    /// Time of an I/O on the empty path; of a kind never timed, that of the nearest one.
    #[inline]
    pub(super) fn base_ns(&self, kind: Kind) -> u64 {
        if self.knows(kind) {
            return self.base_ns[kind.index()].into();
        }
        self.nearest_ns(kind)
    }

    /// The least that an I/O can be predicted to take.
    #[inline]
    pub(super) fn empty_ns(&self, kind: Kind) -> u64 {
        self.base_ns(kind) + u64::from(self.tail_ns)
    }

    /// The next smaller class of its direction, else the next larger, else the other direction's.
    #[cold]
    fn nearest_ns(&self, kind: Kind) -> u64 {
        let row = |direction: usize| {
            let mask = (1 << CLASSES) - 1;
            self.seen >> (direction * CLASSES) & mask
        };
        let near = |direction: usize| {
            let (seen, below) = (row(direction), (2_u32 << kind.class) - 1);
            let class = match seen & below {
                0 if seen == 0 => return None,
                0 => seen.trailing_zeros(),
                smaller => smaller.ilog2(),
            };
            Some(self.base_ns[direction * CLASSES + class as usize])
        };
        let found = near(kind.direction).or_else(|| near(1 - kind.direction));
        found.unwrap_or(BASE_NS_MIN as u32).into()
    }

    /// What is in flight, other cores' I/Os taken to be like our own.
    #[inline]
    pub(super) fn load(&self, elsewhere: u32) -> Load {
        if elsewhere == 0 {
            return self.load;
        }
        let elsewhere = elsewhere.min(1 << 14);
        let writes = (elsewhere * u32::from(self.writes)) >> 16;
        let reads = elsewhere - writes;
        let [read, write] = self.mean_units.map(|mean| mean.min(1 << 17));
        [
            self.load[0].saturating_add(reads * IO_UNITS),
            self.load[1].saturating_add(writes * IO_UNITS),
            self.load[2].saturating_add(((u64::from(reads) * u64::from(read)) >> 4) as u32),
            self.load[3].saturating_add(((u64::from(writes) * u64::from(write)) >> 4) as u32),
        ]
    }

    /// What this load adds to the time of an I/O of that direction, ns.
    #[inline]
    fn queued_ns(&self, direction: usize, load: &Load) -> u64 {
        let weights = &self.weights[direction];
        let sum: u64 = weights
            .iter()
            .zip(load)
            .map(|(&weight, &load)| u64::from(weight) * u64::from(load))
            .sum();
        sum >> 8
    }

    /// How long one more I/O of that direction would wait.
    #[inline]
    pub(super) fn wait_ns(&self, direction: usize, load: &Load) -> u64 {
        let work = self.queued_ns(direction, load) + u64::from(self.service[direction] >> 3);
        work.saturating_sub(self.knee_ns[direction].into())
            .min(u32::MAX.into())
    }

    /// What an I/O adds to the wait of that direction.
    #[inline]
    pub(super) fn service_ns(&self, direction: usize, kind: Kind) -> u64 {
        let weights = &self.weights[direction];
        let ios = u64::from(weights[kind.direction]) * u64::from(IO_UNITS);
        let bytes = u64::from(weights[2 + kind.direction]) * u64::from(kind.units);
        ((ios + bytes) >> 8).min(SERVICE_NS_MAX)
    }

    /// Books an I/O; `own` of this core and `elsewhere` of others were in flight before.
    #[inline]
    pub(super) fn begin(&mut self, kind: Kind, own: u32, elsewhere: u32, now_ns: u64) -> Ticket {
        let direction = kind.direction;
        let before = own.saturating_add(elsewhere);
        let wait_ns = match before {
            0 => 0,
            _ => self.wait_ns(direction, &self.load(elsewhere)) as u32,
        };
        for (at, more) in [(direction, IO_UNITS), (2 + direction, kind.units)] {
            self.load[at] = self.load[at].saturating_add(more);
        }
        for of in 0..2 {
            let service = self.service_ns(of, kind) as i64;
            follow(&mut self.service[of], 8 * service, 6);
        }
        let wanted = if direction == 1 { 65_535 } else { 0 };
        let step = (wanted - i32::from(self.writes)) >> 6;
        self.writes = (i32::from(self.writes) + step) as u16;
        follow(
            &mut self.mean_units[direction],
            i64::from(kind.units) << 4,
            6,
        );
        if own == 0 {
            self.mark_ns = now_ns;
        }
        if now_ns.saturating_sub(self.last_ns) > TAIL_IDLE_NS {
            self.tail_ns /= 2;
        }
        self.last_ns = now_ns;
        let base_ns = self.base_ns(kind) as i64;
        follow(&mut self.knee_ns[direction], base_ns, 6);
        Ticket {
            load: self.load(elsewhere),
            wait_ns,
            units: kind.units,
            in_flight: before.min(u16::MAX as u32 - 1) as u16 + 1,
            class: kind.class,
            direction: direction as u8,
            ..Ticket::default()
        }
    }

    /// Takes an I/O out of the books; `own` of this core are left.
    #[inline]
    pub(super) fn end(&mut self, ticket: &Ticket, own: u32, now_ns: u64) {
        let direction = usize::from(ticket.direction & 1);
        self.load[direction] = self.load[direction].saturating_sub(IO_UNITS);
        let bytes = &mut self.load[2 + direction];
        *bytes = bytes.saturating_sub(ticket.units);
        if own == 0 {
            self.load = [0; 4];
        }
        self.mark_ns = now_ns;
        self.last_ns = now_ns;
    }

    /// A good I/O took this long, or up to `gap_ns` less.
    #[inline]
    pub(super) fn learn(&mut self, ticket: &Ticket, latency_ns: u64, gap_ns: u64) {
        let kind = Kind {
            direction: usize::from(ticket.direction & 1),
            class: ticket.class.min(CLASSES as u8 - 1),
            units: ticket.units,
        };
        let most = latency_ns.min(LATENCY_NS_MAX) as i64;
        let least = latency_ns.saturating_sub(gap_ns).min(LATENCY_NS_MAX) as i64;
        if !self.knows(kind) {
            let expected = i64::from(ticket.wait_ns) + self.base_ns(kind) as i64;
            return self.first(kind, ticket, expected.clamp(least, most));
        }
        let index = kind.index();
        let queued = self.queued_ns(kind.direction, &ticket.load) as i64;
        let service = self.service_ns(kind.direction, kind) as i64;
        let base = i64::from(self.base_ns[index]);
        let knee = i64::from(self.knee_ns[kind.direction]);
        let gated = ticket.in_flight <= 1 || (queued > 0 && queued - service <= base.min(knee) / 8);
        let raw = base.clamp(least, most) - base;
        if gated || (raw < 0 && queued <= base) {
            self.learn_base(kind, raw, gated);
        }
        let base = i64::from(self.base_ns[index]);
        let usual = base.max(queued);
        let expected = base + i64::from(ticket.wait_ns);
        let beyond =
            (expected.clamp(least, most) - 2 * usual).clamp(0, TAIL_NS_MAX.min(16 * usual));
        follow(&mut self.tail_ns, beyond, 8);
        let waited = i64::from(ticket.wait_ns).min(1 << 27) << 4;
        follow(&mut self.waited[kind.direction], waited, 7);
        self.learn_wait(kind, ticket, queued.clamp(least, most), queued, base);
        self.leak(kind.direction);
        self.until -= 1;
        if self.until == 0 {
            self.renew();
        }
    }

    /// The first of a kind: its time is the base, less what it was predicted to wait.
    #[cold]
    fn first(&mut self, kind: Kind, ticket: &Ticket, latency: i64) {
        let first_of_all = self.seen == 0;
        let wait = i64::from(ticket.wait_ns);
        let base = (latency - wait).max(latency / 4).max(BASE_NS_MIN);
        let base = if first_of_all {
            latency.max(BASE_NS_MIN)
        } else {
            base
        };
        let index = kind.index();
        self.base_ns[index] = base as u32;
        self.seen |= 1 << index;
        if first_of_all {
            self.knee_ns = [base as u32; 2];
        }
    }

    /// The unloaded time: follows quickly at first, then slowly; jumps when it is surely another.
    fn learn_base(&mut self, kind: Kind, raw: i64, gated: bool) {
        let index = kind.index();
        let base = i64::from(self.base_ns[index]);
        if gated {
            self.above = if raw > base { self.above + 1 } else { 0 };
            self.below = if raw < -base / 2 { self.below + 1 } else { 0 };
            if self.above >= OUTLIERS || self.below >= OUTLIERS {
                return self.jump(raw.clamp(-3 * base / 4, 16 * base) / 2);
            }
        }
        let shift = match self.samples[index] {
            _ if !gated => 3,
            0..=1 => 1,
            2..=3 => 2,
            4..=7 => 3,
            _ => 4,
        };
        if gated && self.samples[index] < 8 {
            self.samples[index] += 1;
        }
        let step = raw.clamp(-base / 2, base) >> shift;
        self.base_ns[index] = (base + step).max(BASE_NS_MIN) as u32;
        let knee = &mut self.knee_ns[kind.direction];
        *knee = (i64::from(*knee) + step / 2).max(BASE_NS_MIN) as u32;
    }

    /// The path has become another: all that is known of its emptiness moves at once.
    #[cold]
    fn jump(&mut self, by: i64) {
        for (index, base) in self.base_ns.iter_mut().enumerate() {
            if self.seen >> index & 1 == 1 {
                let old = i64::from(*base);
                *base = (old + by).max(old / 4).max(BASE_NS_MIN) as u32;
            }
        }
        for knee in &mut self.knee_ns {
            *knee = (i64::from(*knee) + by).max(BASE_NS_MIN) as u32;
        }
        self.above = self.above.min(OUTLIERS);
        self.below = self.below.min(OUTLIERS);
        self.tail_ns = 0;
    }

    /// Normalised least mean squares: the weights that would have predicted this time.
    #[inline]
    fn learn_wait(&mut self, kind: Kind, ticket: &Ticket, latency: i64, queued: i64, base: i64) {
        let error = latency - queued;
        let saturated = ticket.in_flight > 1 && latency > base + base * 13 / 16;
        if error >= 0 && !saturated {
            return;
        }
        let size = error.unsigned_abs() as i64;
        let gain = match size {
            _ if size > queued / 2 => 2,
            _ if size > queued / 4 => 3,
            _ => 4,
        };
        let error = error.min(queued.max(base));
        let loads = ticket.load.map(|load| load.min(1 << 30));
        let square: u64 = loads.iter().map(|&x| u64::from(x) * u64::from(x)).sum();
        // One I/O is 2^5 units, so the shift is 12 at least; 8 of it make the step Q8.
        let shift = (square.max(1 << 10).ilog2() + gain) - 8;
        for (weight, load) in self.weights[kind.direction].iter_mut().zip(loads) {
            let step = (error * i64::from(load)) >> shift;
            *weight = (i64::from(*weight) + step).clamp(0, SERVICE_NS_MAX as i64) as u32;
        }
    }

    /// What can't be observed must stay hopeful: the weights of the other direction shrink.
    #[inline]
    fn leak(&mut self, direction: usize) {
        let rare = !(8_192..=57_344).contains(&self.writes);
        let shrink = |weight: &mut u32, shift: u32| *weight -= *weight >> shift;
        for of in 0..2 {
            let (ios, bytes) = (1 - of, 3 - of);
            if rare {
                shrink(&mut self.weights[of][ios], 7);
                shrink(&mut self.weights[of][bytes], 7);
            } else if of == direction {
                shrink(&mut self.weights[of][ios], 9);
                shrink(&mut self.weights[of][bytes], 9);
            }
        }
    }

    /// Prices from what waits: the only divisions.
    #[cold]
    fn renew(&mut self) {
        self.until = RENEW;
        let writes = u64::from(self.writes);
        for (direction, share) in [(0, 65_536 - writes), (1, writes)] {
            let service = u64::from(self.service[direction] >> 3).max(1);
            let waiting = (u64::from(self.waited[direction]) << 4) / service;
            let price = (waiting << 7).min(PRICE_MAX);
            self.price[direction] = (price * share / service).min(1 << 31) as u32;
        }
    }
}

/// Moves an average towards `to` by 1 in 2^`shift`.
#[inline]
fn follow(average: &mut u32, to: i64, shift: u32) {
    let old = i64::from(*average);
    *average = (old + ((to - old) >> shift)).clamp(0, u32::MAX.into()) as u32;
}
