//! The model that `soonest` has of one path, and how completions teach it.
//!
//! Work is counted in four sums over the I/Os in flight: reads and writes, each by number and by
//! bytes. A regression tells what each of them adds to the time of a read and of a write. On a path
//! that serves many at once nothing waits at first: what is in flight up to there, the knee, is the
//! time of an I/O on the empty path.
//!
//! # Contract
//! [`Model::begin`] and [`Model::end`] keep the books; [`Model::learn`] changes only estimates.
//! After each of them the [`Face`]s hold what follows, so that a choice only multiplies, adds and
//! compares.
//!
//! # Limits
//! Units of 512 bytes; one I/O counts as many bytes as [`IO_UNITS`] until the regression knows
//! better.

use crate::types::{Forecast, Group, Request, SHUNNED_NS, Ticket};

/// Size classes of one direction: up to 4 KiB, then one per doubling, from 1 MiB on the last.
pub(super) const CLASSES: usize = 9;
/// One I/O beside its bytes, in units: 16 KiB.
pub(super) const IO_UNITS: u32 = 32;
/// No path answers faster.
pub(super) const BASE_NS_MIN: i64 = 2_000;
/// Most that one I/O adds to a wait, and most per unit (Q8).
pub(super) const SERVICE_NS_MAX: u64 = 1 << 28;
/// The addition for rare late I/Os is halved when the path has rested so long: a stall ends some
/// time.
const TAIL_IDLE_NS: u64 = 25_000_000;
/// Most that each of them is thought to add; Q8 ns. Times a count it fits 64 bits.
const EACH_MAX: u64 = (1 << 31) - 1;

const _: () = assert!(size_of::<Model>() <= 384);

/// A path that has failed an I/O stands back for this time (T43).
const SHUN_NS: u64 = 20_000_000;
/// More than any path costs of which something is known.
pub(super) const COST_MAX: u64 = 1 << 62;
/// The charge for a path's silence, as a multiple of it (T37).
const SILENCE: u64 = 64;
/// A path is silent beyond so many of its usual times, and this.
const SILENT_TIMES: u64 = 3;
const SILENT_NS: u64 = 500_000;

/// Direction and size of an I/O.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) direction: usize,
    pub(super) class: u32,
    pub(super) units: u32,
}

impl Kind {
    #[inline]
    pub(super) fn of(request: &Request) -> Self {
        let direction = usize::from(request.group == Group::Write);
        let class = match request.length {
            0..=4096 => 0,
            length => (((length - 1) >> 12).ilog2() + 1).min(CLASSES as u32 - 1),
        };
        Self {
            direction,
            class,
            units: request.length >> 9,
        }
    }

    /// The same, for a compiler that has to be told.
    #[inline(always)]
    pub(super) fn towards(self, direction: usize) -> Self {
        Self { direction, ..self }
    }

    /// That of an I/O that was placed.
    #[inline]
    pub(super) fn of_ticket(ticket: &Ticket) -> Self {
        Self {
            direction: usize::from(ticket.direction & 1),
            class: u32::from(ticket.class).min(CLASSES as u32 - 1),
            units: ticket.units,
        }
    }

    #[inline]
    pub(super) fn index(self) -> usize {
        self.direction * CLASSES + self.class as usize
    }
}

/// Work in flight: reads and writes by number (in units), reads and writes by bytes (in units).
pub(super) type Load = [u32; 4];

/// The part of one direction of a path that a choice reads, worked out beforehand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Face {
    /// Time that this core's load and one I/O more add; Q8 ns.
    work: u64,
    /// Time that each I/O more adds to that; Q8 ns, below 2^31.
    each: u64,
    /// As much in flight as is served without waiting; ns.
    pub(super) knee_ns: u32,
    /// Time that a unit of load adds: reads and writes by number, reads and writes by bytes; Q8 ns.
    pub(super) weights: [u32; 4],
}

impl Face {
    const NEW: Self = Self {
        work: 0,
        each: 0,
        knee_ns: 0,
        weights: [0; 4],
    };

    /// How long one more I/O would wait, with so many in flight elsewhere.
    #[inline]
    pub(super) fn wait_ns(&self, elsewhere: u32) -> u64 {
        let work = (self.work + u64::from(elsewhere) * self.each) >> 8;
        work.saturating_sub(self.knee_ns.into())
    }

    /// Works out what this core's load and one I/O more add to the time. On an empty path no I/O
    /// waits.
    fn work_out(&mut self, load: &Load) {
        let all = dot(&self.weights, load) + self.each;
        self.work = match load {
            [0, 0, _, _] => all.min(u64::from(self.knee_ns) << 8),
            _ => all,
        };
    }

    /// Time that an I/O adds; Q8 ns.
    #[inline]
    fn adds(&self, kind: Kind) -> u64 {
        let ios = u64::from(self.weights[kind.direction]) * u64::from(IO_UNITS);
        ios + u64::from(self.weights[2 + kind.direction]) * u64::from(kind.units)
    }

    /// The same in ns, as far as it is believed.
    #[inline]
    pub(super) fn service_ns(&self, kind: Kind) -> u64 {
        (self.adds(kind) >> 8).min(SERVICE_NS_MAX)
    }

    /// Time that each I/O more adds.
    #[inline]
    pub(super) fn each_ns(&self) -> u64 {
        self.each >> 8
    }

    /// The same, Q8.
    pub(super) fn each_q8(&self) -> u64 {
        self.each
    }
}

/// Knowledge of I/Os of one direction and class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Time on the empty path; ns.
    pub(super) base_ns: u32,
    /// Cost of one of them to the reads and the writes that wait, as a multiple of their wait;
    /// Q[`Model::toll_shift`].
    pub(super) tolls: [u16; 2],
}

/// One path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    /// When this path has to be looked at closer, unless something ends before; 0: now.
    odd_ns: u64,
    pub(super) faces: [Face; 2],
    /// Time that rare late I/Os add; ns.
    pub(super) tail_ns: u32,
    /// How long nothing may come back before that is odd, ns; 0: it has to be looked at closer each
    /// time.
    patience_ns: u32,
    /// Classes that have been sampled, one bit each.
    pub(super) seen: u32,
    pub(super) kinds: [Known; 2 * CLASSES],
    /// The point of all tolls.
    pub(super) toll_shift: u32,
    /// This core's I/Os in flight.
    pub(super) load: Load,
    /// Mean I/O as load; Q8.
    pub(super) mix: Load,
    /// Mean wait that was predicted; ns, Q4.
    pub(super) waited: [u32; 2],
    /// How often each class was sampled, up to 7: 3 bits each.
    pub(super) samples: u64,
    /// Last sign of life: a completion, or the begin of the first I/O in flight.
    pub(super) mark_ns: u64,
    /// When the path was last given an I/O, or ended one.
    pub(super) last_ns: u64,
    /// Unloaded samples far off, in a row: above and below.
    pub(super) above: u8,
    pub(super) below: u8,
    /// The last lesson was of an I/O that took far longer than on the empty path.
    pub(super) late: bool,
    /// Completions that taught; wraps.
    pub(super) lessons: u8,
    /// When a completion last taught.
    pub(super) learnt_ns: u64,
    /// It has failed an I/O and stands back until then.
    pub(super) shun_until_ns: u64,
}

impl Model {
    pub(crate) const NEW: Self = Self {
        odd_ns: 0,
        faces: [Face::NEW; 2],
        tail_ns: 0,
        patience_ns: 0,
        seen: 0,
        kinds: [Known {
            base_ns: 0,
            tolls: [0; 2],
        }; 2 * CLASSES],
        toll_shift: 0,
        load: [0; 4],
        mix: [IO_UNITS << 8, 0, 8 << 8, 0],
        waited: [0; 2],
        samples: 0,
        mark_ns: 0,
        last_ns: 0,
        above: 0,
        below: 0,
        late: false,
        lessons: 0,
        learnt_ns: 0,
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

    /// Mean time of an I/O on the empty path, of the direction that takes longer.
    pub(super) fn knee_ns(&self) -> u32 {
        self.faces[0].knee_ns.max(self.faces[1].knee_ns)
    }

    /// Time of an I/O on the empty path; of a kind never timed, that of the nearest one.
    #[inline]
    pub(super) fn base_ns(&self, kind: Kind) -> u64 {
        self.kinds[kind.index()].base_ns.into()
    }

    /// The same of an I/O that was placed.
    pub(super) fn base_of(&self, ticket: &Ticket) -> u64 {
        self.base_ns(Kind::of_ticket(ticket))
    }

    /// The least that an I/O can be predicted to take.
    #[inline]
    pub(super) fn empty_ns(&self, kind: Kind) -> u64 {
        self.base_ns(kind) + u64::from(self.tail_ns)
    }

    /// Kinds never timed get the time of the nearest one: the next smaller class of the direction,
    /// else the next larger, else the other direction's.
    #[cold]
    pub(super) fn fill(&mut self) {
        for direction in 0..2 {
            let row = |direction: usize| self.seen >> (direction * CLASSES) & ((1 << CLASSES) - 1);
            let from = if row(direction) == 0 {
                1 - direction
            } else {
                direction
            };
            let seen = row(from);
            for class in 0..CLASSES {
                let near = match seen & ((2 << class) - 1) {
                    0 => seen.trailing_zeros(),
                    smaller => smaller.ilog2(),
                };
                let at = direction * CLASSES + class;
                if self.seen >> at & 1 == 0 {
                    self.kinds[at].base_ns = self.kinds[from * CLASSES + near as usize].base_ns;
                }
            }
        }
    }

    /// The load when an I/O was placed, other cores' I/Os taken to be like our own.
    #[inline]
    pub(super) fn load_of(&self, ticket: &Ticket) -> Load {
        let mut load = ticket.load;
        if ticket.elsewhere > 0 {
            for (load, mean) in load.iter_mut().zip(self.mix) {
                let others = (u64::from(ticket.elsewhere) * u64::from(mean)) >> 8;
                *load = load.saturating_add(others as u32);
            }
        }
        load
    }

    /// The time that an I/O would wait, and its cost to the others.
    #[inline]
    fn wait_and_price_ns(&self, kind: Kind, elsewhere: u32) -> (u64, u64) {
        let waits_ns = [
            self.faces[0].wait_ns(elsewhere),
            self.faces[1].wait_ns(elsewhere),
        ];
        let tolls = self.kinds[kind.index()].tolls;
        // Of waits beyond 2^47 ns (a day) nothing is asked but that they do no harm.
        let price = |of: usize| waits_ns[of].wrapping_mul(tolls[of].into());
        let price_ns = price(0).wrapping_add(price(1)) >> self.toll_shift;
        (waits_ns[kind.direction], price_ns)
    }

    /// Cost of an I/O with `elsewhere` in flight of other cores, as far as [`Model::is_odd`] does
    /// not say more.
    #[inline]
    pub(super) fn cost_ns(&self, kind: Kind, elsewhere: u32) -> u64 {
        let (wait_ns, price_ns) = self.wait_and_price_ns(kind, elsewhere);
        self.empty_ns(kind) + wait_ns + price_ns
    }

    /// Whether the cost has to be asked of [`Model::odd_cost_ns`].
    #[inline]
    pub(super) fn is_odd(&self, now_ns: u64) -> bool {
        now_ns >= self.odd_ns
    }

    /// Cost of an I/O on a path that may be silent or stands back; of a path of which nothing is
    /// known more than any other.
    pub(super) fn odd_cost_ns(&self, kind: Kind, own: u32, elsewhere: u32, now_ns: u64) -> u64 {
        if !self.is_seen() {
            return COST_MAX + 1;
        }
        let cost_ns = self.cost_ns(kind, elsewhere);
        let (cost_ns, _) = self.odd(kind, own, now_ns, self.empty_ns(kind), cost_ns);
        cost_ns.min(COST_MAX)
    }

    /// The same with its parts.
    pub(super) fn forecast(&self, kind: Kind, own: u32, elsewhere: u32, now_ns: u64) -> Forecast {
        let empty_ns = self.empty_ns(kind);
        let (wait_ns, price_ns) = self.wait_and_price_ns(kind, elsewhere);
        let cost_ns = empty_ns + wait_ns + price_ns;
        let (cost_ns, silent) = self.odd(kind, own, now_ns, empty_ns, cost_ns);
        Forecast {
            base_ns: self.base_ns(kind),
            tail_ns: self.tail_ns.into(),
            wait_ns,
            price_ns,
            silent,
            cost_ns,
        }
    }

    /// Cost of a path that may be silent (T37), or has failed an I/O (T43); and whether it is
    /// silent.
    pub(super) fn odd(
        &self,
        kind: Kind,
        own: u32,
        now_ns: u64,
        empty_ns: u64,
        cost_ns: u64,
    ) -> (u64, bool) {
        let mut cost_ns = cost_ns;
        let age_ns = now_ns.saturating_sub(self.mark_ns);
        let usual_ns = empty_ns.max(self.faces[kind.direction].knee_ns.into());
        let silent = own > 0 && age_ns > SILENT_TIMES * usual_ns + SILENT_NS;
        if silent {
            cost_ns = cost_ns.max(age_ns.saturating_mul(SILENCE));
        }
        if now_ns < self.shun_until_ns {
            cost_ns = cost_ns.saturating_add(SHUNNED_NS);
        }
        (cost_ns, silent)
    }

    /// Works out the [`Face`]s anew from the weights and the load.
    #[inline]
    pub(super) fn work_out(&mut self) {
        for face in &mut self.faces {
            face.each = (dot(&face.weights, &self.mix) >> 8).min(EACH_MAX);
            face.work_out(&self.load);
        }
        let least_ns = self.faces[0].knee_ns.min(self.faces[1].knee_ns);
        let patience_ns = SILENT_TIMES * u64::from(least_ns) + SILENT_NS;
        self.patience_ns = patience_ns.min(u32::MAX.into()) as u32;
    }

    /// Books an I/O; `own` of this core and `elsewhere` of others were in flight before.
    #[inline]
    pub(super) fn begin(&mut self, kind: Kind, own: u32, elsewhere: u32, now_ns: u64) -> Ticket {
        let direction = kind.direction;
        for (at, more) in [(direction, IO_UNITS), (2 + direction, kind.units)] {
            self.load[at] = self.load[at].wrapping_add(more);
        }
        if own == 0 {
            self.faces.iter_mut().for_each(|face| face.work = face.each);
            self.mark_ns = now_ns;
            self.look_later(now_ns);
            if now_ns.saturating_sub(self.last_ns) > TAIL_IDLE_NS {
                self.tail_ns /= 2;
            }
        }
        for face in &mut self.faces {
            face.work += face.adds(kind);
        }
        self.last_ns = now_ns;
        Ticket {
            load: self.load,
            units: kind.units,
            alone: own | elsewhere == 0,
            elsewhere,
            class: kind.class as u8,
            direction: direction as u8,
            ..Ticket::default()
        }
    }

    /// Takes an I/O out of the books; `own` of this core are left.
    #[inline]
    pub(super) fn end(&mut self, ticket: &Ticket, own: u32, now_ns: u64) {
        let kind = Kind::of_ticket(ticket);
        self.mark_ns = now_ns;
        self.last_ns = now_ns;
        if own == 0 {
            self.load = [0; 4];
            let load = self.load;
            self.faces.iter_mut().for_each(|face| face.work_out(&load));
            self.odd_ns = match self.patience_ns {
                0 => 0,
                _ => u64::MAX,
            };
        } else {
            for (at, less) in [(kind.direction, IO_UNITS), (2 + kind.direction, kind.units)] {
                self.load[at] = self.load[at].wrapping_sub(less);
            }
            for face in &mut self.faces {
                face.work = face.work.saturating_sub(face.adds(kind));
            }
            self.look_later(now_ns);
        }
    }

    #[inline]
    fn look_later(&mut self, now_ns: u64) {
        self.odd_ns = match self.patience_ns {
            0 => 0,
            patience_ns => now_ns.wrapping_add(patience_ns.into()),
        };
    }

    /// Whether it stands back.
    pub(super) fn is_shunned(&self, now_ns: u64) -> bool {
        now_ns < self.shun_until_ns
    }

    /// It has failed an I/O, and stands back.
    pub(super) fn shun(&mut self, now_ns: u64) {
        self.shun_until_ns = now_ns.saturating_add(SHUN_NS);
        (self.odd_ns, self.patience_ns) = (0, 0);
    }

    /// A completion has taught.
    #[inline]
    pub(super) fn taught(&mut self, now_ns: u64) {
        self.learnt_ns = now_ns;
        if now_ns < self.shun_until_ns {
            (self.odd_ns, self.patience_ns) = (0, 0);
        }
    }
}

/// Time that a load adds by these weights; Q8 ns.
#[inline]
pub(super) fn dot(weights: &[u32; 4], load: &Load) -> u64 {
    let products = weights.iter().zip(load);
    products
        .map(|(&weight, &load)| u64::from(weight) * u64::from(load))
        .sum()
}
