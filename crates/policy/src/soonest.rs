//! `soonest`: the path on which an I/O is predicted to end first, with a price on making others
//! wait.
//!
//! Decides from a model of each path that its own completions teach ([`Model`]): what an I/O of
//! this direction and size takes on the empty path, and how the wait grows with what is in flight.
//! To the predicted time comes a price: the wait an I/O would find, times how many have lately
//! been waiting, in proportion to the I/O's own service. With the bare time alone everybody would
//! fill a near path until it is as slow as a far idle one, which helps nobody.
//!
//! # Contract
//! [`Soonest::choose`] does not divide and does not learn; [`Soonest::begin`] books the I/O on the
//! chosen path and returns the [`Ticket`] that must come back with its end. Counts of other cores
//! may be stale: they shift a prediction, never the books.
//!
//! # Limits
//! Latencies are cut at 2 s, service at 2^28 ns; every product fits 64 bits.
//!
//! # Origin
//! Own: row B8 wishes for it. Least predicted completion with a regression of the wait (normalised
//! least mean squares) and a marginal-cost price as in routing games, where selfish choice is known
//! to be wrong.

use crate::limits::PATHS_MAX;
use crate::types::{Completion, Ended, Forecast, Group, PathView, Request, Ticket};

mod model;

pub(crate) use model::Model;
use model::{Kind, Load};

/// A path that has been idle so long may have changed.
const IDLE_NS: u64 = 50_000_000;
/// Most time that exploring may cost at once; it grows by 1 in [`BUDGET_PART`] of each latency.
const BUDGET_NS_MAX: u64 = 200_000_000;
const BUDGET_PART: u64 = 128;
/// A path that has failed an I/O stands back for this time (T43).
const SHUN_NS: u64 = 20_000_000;
/// Costs that differ by less than 1 in so many are about the same.
const ABOUT: u64 = 16;
/// More than any cost.
const SHUNNED: u64 = 1 << 60;
/// What a path is charged for its silence, as a multiple of it (T37).
const SILENCE: u64 = 64;
/// A path is silent beyond so many of its usual times, and this.
const SILENT_TIMES: u64 = 3;
const SILENT_NS: u64 = 500_000;

/// The models of all paths, and what exploring may cost.
#[derive(Clone, Debug)]
pub(crate) struct Soonest {
    pub(crate) models: [Model; PATHS_MAX],
    budget_ns: u64,
    /// Which time soonest is in force: tickets of another time are not in the books.
    epoch: u8,
}

impl Soonest {
    pub(crate) fn new(epoch: u8) -> Self {
        Self {
            models: [Model::NEW; PATHS_MAX],
            budget_ns: 0,
            epoch,
        }
    }

    /// The number of the next time.
    pub(crate) fn next_epoch(&self) -> u8 {
        self.epoch.checked_add(1).unwrap_or(1)
    }

    /// The usable path of least cost; now and then another that has to be looked at again.
    #[inline]
    pub(crate) fn choose(
        &mut self,
        request: &Request,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) -> Option<usize> {
        let kind = Kind::of(request);
        let mut best: Option<Choice> = None;
        let mut least_ns = u64::MAX;
        let mut other: Option<(u64, usize)> = None;
        let mut unseen: Option<(u32, usize)> = None;
        let mut any_seen = false;
        for (path, view) in paths.iter().enumerate() {
            if !view.usable() {
                continue;
            }
            let model = &self.models[path];
            let own = in_flight[path];
            let count = own.saturating_add(view.in_flight_elsewhere);
            if !model.is_seen() {
                if unseen.is_none_or(|(least, _)| own < least) {
                    unseen = Some((own, path));
                }
                continue;
            }
            any_seen = true;
            let stale = request.now_ns.saturating_sub(model.last_ns) > IDLE_NS;
            let promising = model.is_promising() && own == 0;
            let curious = promising || stale || (model.is_suspect() && own == 0);
            // What is too far even when empty need not be looked at closer.
            let about_ns = least_ns.saturating_add(least_ns / ABOUT);
            if !curious && model.empty_ns(kind) > about_ns {
                continue;
            }
            let forecast = model.forecast(kind, count, view.in_flight_elsewhere, request.now_ns);
            let time = forecast.time_ns();
            least_ns = least_ns.min(forecast.cost_ns);
            let choice = Choice {
                path,
                count,
                cost_ns: forecast.cost_ns,
                time_ns: time,
            };
            best = Some(match best {
                Some(old) if !choice.is_better(&old, least_ns) => old,
                _ => choice,
            });
            // Far faster than believed when last looked at: the loss will be less as well.
            let time = if promising { time / 4 } else { time };
            if curious
                && (own == 0 || !model.knows(kind))
                && !forecast.silent
                && other.is_none_or(|(least, _)| time < least)
            {
                other = Some((time, path));
            }
        }
        if let Some((own, path)) = unseen
            && (!any_seen || own < 2)
        {
            return Some(path);
        }
        Some(self.explore(best?, other))
    }

    /// The best path, or another that has to be looked at again if that is not too dear now.
    #[inline]
    fn explore(&mut self, best: Choice, other: Option<(u64, usize)>) -> usize {
        if let Some((time, path)) = other.filter(|&(_, path)| path != best.path) {
            let excess = time.saturating_sub(best.time_ns);
            if excess <= self.budget_ns {
                self.budget_ns -= excess;
                return path;
            }
        }
        best.path
    }

    /// Books an I/O on its path.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        path: usize,
        request: &Request,
        view: &PathView,
        own: u32,
    ) -> Ticket {
        let kind = Kind::of(request);
        let elsewhere = view.in_flight_elsewhere;
        let mut ticket = self.models[path].begin(kind, own, elsewhere, request.now_ns);
        ticket.epoch = self.epoch;
        ticket.learns = request.group != Group::Other;
        ticket
    }

    /// An I/O has ended; its books are closed, and a good one teaches if its path is `there` still.
    /// `own` are this core's I/Os left in flight on it.
    #[inline]
    pub(crate) fn complete(&mut self, done: &Completion, own: u32, there: bool) {
        let ticket = &done.ticket;
        if ticket.epoch != self.epoch {
            return;
        }
        let model = &mut self.models[usize::from(done.path.0)];
        model.end(ticket, own, done.now_ns);
        if done.ended == Ended::Failed {
            model.shun_until_ns = done.now_ns.saturating_add(SHUN_NS);
        } else if ticket.learns && there && done.latency_ns > 0 {
            let more = done.latency_ns / BUDGET_PART;
            self.budget_ns = self.budget_ns.saturating_add(more).min(BUDGET_NS_MAX);
            model.learn(ticket, done.latency_ns, done.gap_ns);
        }
    }

    /// What is expected of an I/O on one path; `None`: nothing is known of it yet.
    pub(crate) fn forecast(
        &self,
        path: usize,
        request: &Request,
        view: &PathView,
        own: u32,
    ) -> Option<Forecast> {
        let model = &self.models[path];
        let elsewhere = view.in_flight_elsewhere;
        let count = own.saturating_add(elsewhere);
        model
            .is_seen()
            .then(|| model.forecast(Kind::of(request), count, elsewhere, request.now_ns))
    }

    /// Forgets what was learnt of one path; its books stay.
    pub(crate) fn reset(&mut self, path: usize) {
        self.models[path].forget();
    }
}

/// A path that could be taken.
#[derive(Clone, Copy)]
struct Choice {
    path: usize,
    count: u32,
    cost_ns: u64,
    time_ns: u64,
}

impl Choice {
    /// Whether it is rather taken than `other`: among those whose costs are about `least_ns`, the
    /// one with less in flight. So paths that hardly differ share, and a sudden stall meets less.
    #[inline]
    fn is_better(&self, other: &Self, least_ns: u64) -> bool {
        let most_ns = least_ns.saturating_add(least_ns / ABOUT);
        match (self.cost_ns <= most_ns, other.cost_ns <= most_ns) {
            (true, true) => (self.count, self.cost_ns) < (other.count, other.cost_ns),
            (is, _) => is,
        }
    }
}

impl Model {
    /// Time and cost of an I/O, with `count` in flight, `elsewhere` of them by other cores.
    #[inline]
    fn forecast(&self, kind: Kind, count: u32, elsewhere: u32, now_ns: u64) -> Forecast {
        let base_ns = self.base_ns(kind);
        let mut forecast = Forecast {
            base_ns,
            tail_ns: self.tail_ns.into(),
            ..Forecast::default()
        };
        forecast.cost_ns = base_ns + forecast.tail_ns;
        if count > 0 {
            let load = self.load(elsewhere);
            self.price(kind, &load, &mut forecast);
            let age = now_ns.saturating_sub(self.mark_ns);
            let usual = (base_ns + forecast.tail_ns).max(self.knee_ns[kind.direction].into());
            if age > SILENT_TIMES * usual + SILENT_NS && count > elsewhere {
                forecast.silent = true;
                forecast.cost_ns = forecast.cost_ns.max(age.saturating_mul(SILENCE));
            }
        }
        if now_ns < self.shun_until_ns {
            forecast.cost_ns = forecast.cost_ns.saturating_add(SHUNNED);
        }
        forecast
    }

    /// The wait, and what it costs the others.
    #[inline]
    fn price(&self, kind: Kind, load: &Load, forecast: &mut Forecast) {
        let mut price = 0;
        for direction in 0..2 {
            let dear = u64::from(self.price[direction]);
            if dear == 0 && direction != kind.direction {
                continue;
            }
            let wait = self.wait_ns(direction, load);
            if direction == kind.direction {
                forecast.wait_ns = wait;
            }
            // Most of the time nobody waits, or nobody minds.
            if wait > 0 && dear > 0 {
                let part = ((wait * dear) >> 16).min(1 << 34);
                price += (part * self.service_ns(direction, kind)) >> 16;
            }
        }
        forecast.price_ns = price;
        forecast.cost_ns += forecast.wait_ns + price;
    }
}

#[cfg(test)]
mod tests;
