//! Whether a loaded path whose I/Os suddenly take longer has moved away, or serves less.
//!
//! Both look the same at first: as much in flight as before takes twice the time or more. The
//! regression blames the service, the path is given less, and then they differ: less in flight on a
//! path that serves less takes less time, on a path that has moved away it takes as long. Such a
//! path is never empty meanwhile, so its unloaded time would be learnt late.
//!
//! # Contract
//! Only sudden surprises raise a [`Doubt`], on a path whose times were as predicted for long. I/Os
//! placed after that decide it. Lessons are counted: under load one in many I/Os. A path that is
//! back, as sudden, gets what was believed before.
//!
//! # Limits
//! Work in flight is counted in units of 512 bytes, an I/O beside its bytes as
//! [`IO_UNITS`](super::model::IO_UNITS).

use super::learn::LATENCY_NS_MAX;
use super::model::{BASE_NS_MIN, Model};
use crate::types::{Completion, Ticket};

/// A surprise takes so many halves of the predicted time;
const SURPRISE_HALVES: u64 = 5;
/// so many in a row raise a doubt.
const SURPRISES: u8 = 2;
/// Lessons as predicted, less what surprises cost, until a path is trusted; and that cost.
const TRUST: u8 = 150;
const DISTRUST: u8 = 100;
/// So many I/Os with less in flight that took as long say that it has moved.
const WITNESSES: u8 = 2;
/// So many in a row in half of the predicted time say that it is back.
const RETURNS: u8 = 2;
/// A doubt ends after so many times the latency that raised it.
const DOUBT_TIMES: u64 = 50;

/// Evidence against the believed distance of a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    /// Weights before it, or before the path moved.
    weights: [[u32; 4]; 2],
    /// Since when there is a doubt.
    since_ns: u64,
    /// Most in flight among what raised it, and the longest time.
    load: u32,
    latency_ns: u64,
    /// Time of an I/O on the empty path before it moved; 0: it has not.
    home_ns: u32,
    /// Lessons as predicted, up to 255.
    trust: u8,
    /// Surprises in a row; [`SURPRISES`]: there is a doubt.
    surprises: u8,
    witnesses: u8,
    returns: u8,
}

impl Doubt {
    pub(super) const NONE: Self = Self {
        weights: [[0; 4]; 2],
        since_ns: 0,
        load: 0,
        latency_ns: 0,
        home_ns: 0,
        trust: 0,
        surprises: 0,
        witnesses: 0,
        returns: 0,
    };

    /// As if two I/Os of this latency had raised it at that moment.
    #[cfg(test)]
    pub(super) fn raise_for_test(&mut self, at_ns: u64) {
        (self.surprises, self.since_ns, self.latency_ns) = (SURPRISES, at_ns, at_ns);
    }

    /// Drops a doubt that no I/O has decided in time.
    pub(super) fn expire(&mut self, now_ns: u64) {
        let over = self.latency_ns.saturating_mul(DOUBT_TIMES);
        if self.is_raised() && now_ns.saturating_sub(self.since_ns) > over {
            self.drop_it();
        }
    }

    /// Whether I/Os are wanted that tell.
    #[inline]
    pub(super) fn is_raised(&self) -> bool {
        self.surprises == SURPRISES
    }

    /// An I/O that found others on the path has taught, and was expected to take so long.
    #[inline]
    pub(super) fn note(&mut self, model: &mut Model, done: &Completion, expected_ns: u64) {
        if self.is_raised() {
            return self.decide(model, done);
        }
        let as_expected = 2 * time_ns(done) < SURPRISE_HALVES * expected_ns;
        if as_expected && self.surprises == 0 && self.home_ns == 0 {
            self.trust = self.trust.saturating_add(1);
            return;
        }
        self.weigh(model, done, expected_ns, as_expected);
    }

    /// Surprises, and I/Os of a path that has moved.
    #[cold]
    fn weigh(&mut self, model: &mut Model, done: &Completion, expected_ns: u64, as_expected: bool) {
        if self.home_ns > 0 {
            let early = 2 * time_ns(done) < expected_ns;
            self.returns = if early { self.returns + 1 } else { 0 };
            if self.returns == RETURNS {
                return self.come_back(model);
            }
        }
        if as_expected {
            if self.surprises > 0 {
                self.drop_it();
            }
            self.trust = self.trust.saturating_add(1);
            return;
        }
        if self.surprises == 0 {
            if self.trust < TRUST {
                return self.drop_it();
            }
            (self.load, self.latency_ns) = (0, 0);
            if self.home_ns == 0 {
                self.weights = model.faces.map(|face| face.weights);
            }
        }
        self.take(model, done);
        self.surprises += 1;
        self.since_ns = done.now_ns;
    }

    /// One of those that raised it.
    fn take(&mut self, model: &Model, done: &Completion) {
        self.load = self.load.max(load(model, &done.ticket));
        self.latency_ns = self.latency_ns.max(time_ns(done));
    }

    /// No reason to doubt, and one surprise more that meant nothing.
    fn drop_it(&mut self) {
        (self.surprises, self.witnesses) = (0, 0);
        self.trust = self.trust.saturating_sub(DISTRUST);
    }

    /// Hears an I/O while there is a doubt.
    #[cold]
    fn decide(&mut self, model: &mut Model, done: &Completion) {
        if done.now_ns.saturating_sub(done.latency_ns) < self.since_ns {
            return self.take(model, done);
        }
        let over = self.latency_ns * DOUBT_TIMES;
        if time_ns(done) < self.latency_ns / 5 * 4
            || done.now_ns.saturating_sub(self.since_ns) > over
        {
            return self.drop_it();
        }
        let less = u64::from(load(model, &done.ticket)) * 4 < u64::from(self.load) * 3;
        self.witnesses += u8::from(less);
        if self.witnesses == WITNESSES {
            self.move_away(model, time_ns(done));
            self.drop_it();
        }
    }

    /// It is its distance that is longer; its service is what it was.
    fn move_away(&mut self, model: &mut Model, latency_ns: u64) {
        let knee_ns = model.knee_ns();
        for (face, weights) in model.faces.iter_mut().zip(self.weights) {
            face.weights = weights;
        }
        model.jump(latency_ns as i64 - i64::from(knee_ns));
        model.work_out();
        if self.home_ns == 0 {
            self.home_ns = knee_ns;
        }
        self.returns = 0;
    }

    /// It is as near as it was.
    fn come_back(&mut self, model: &mut Model) {
        let by = i64::from(self.home_ns) - i64::from(model.knee_ns());
        let least = i64::from(self.home_ns / 2).max(BASE_NS_MIN);
        if by < 0 {
            for known in &mut model.kinds {
                known.base_ns = (i64::from(known.base_ns) + by).max(least) as u32;
            }
            for (face, weights) in model.faces.iter_mut().zip(self.weights) {
                face.weights = weights;
                face.knee_ns = (i64::from(face.knee_ns) + by).max(least) as u32;
            }
            model.work_out();
        }
        (self.home_ns, self.returns) = (0, 0);
    }
}

/// Its latency, cut as in lessons.
fn time_ns(done: &Completion) -> u64 {
    done.latency_ns.min(LATENCY_NS_MAX)
}

/// I/Os in flight when one was placed.
fn load(model: &Model, ticket: &Ticket) -> u32 {
    let load = model.load_of(ticket);
    load.iter().fold(0, |sum, &part| sum.saturating_add(part))
}
