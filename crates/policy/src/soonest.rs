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
//! [`Soonest::place`] does not divide and does not learn; it books the I/O on the chosen path and
//! returns the [`Ticket`] that must come back with its end. Counts of other cores may be stale:
//! they shift a prediction, never the books.
//!
//! # Limits
//! Latencies are cut at 2 s, service at 2^28 ns. A wait of more than a day may be priced wrongly.
//!
//! # Origin
//! Own: row B8 wishes for it. Least predicted completion with a regression of the wait (normalised
//! least mean squares) and a marginal-cost price as in routing games, where selfish choice is known
//! to be wrong.

use crate::limits::PATHS_MAX;
use crate::types::{Completion, Ended, Group, PathView, Request, Ticket};
use canary::Bug;

mod afar;
mod crowd;
mod explain;
mod hedge;
mod learn;
mod model;
mod others;
mod small;
mod streams;

use afar::Doubt;
use crowd::Crowd;
use hedge::Purse;
pub(crate) use model::Model;
use model::{COST_MAX, Kind};
use others::Others;
use small::Small;
use streams::Streams;

/// A path that has been idle so long may have changed.
const IDLE_NS: u64 = 50_000_000;
/// After so many looks in a row that found what was believed, the time between looks does not
/// double any more;
const CALM_MAX: u8 = 3;
/// it is kept where a look costs more than 1 in so many of the I/O's time.
const DEAR: u64 = 8;
/// A path that has been idle so long is looked at before any other, however dear: cheaper looks
/// would spend for ever what is saved for it (T38).
const OVERDUE_NS: u64 = 30_000_000_000;
/// Most time that is saved up for exploring; it grows by 1 in [`BUDGET_PART`] of each latency. All
/// of it pays for a look at any path, so none is left alone for ever (T38).
const BUDGET_NS_MAX: u64 = 200_000_000;
const BUDGET_PART: u64 = 128;
/// Costs that differ by less than 1 in so many are about the same.
const ABOUT: u64 = 16;
/// Whether a path has to be looked at again is asked so often.
const LOOK_NS: u64 = 1_000_000;

/// The models of all paths, and what exploring may cost.
#[derive(Clone, Debug)]
pub(crate) struct Soonest {
    pub(crate) models: [Model; PATHS_MAX],
    others: Others,
    streams: Streams,
    budget_ns: u64,
    /// When to ask next whether a path has to be looked at again.
    look_ns: u64,
    crowd: Crowd,
    small: Small,
    /// A choice takes a closer look: all paths are full, or some are small.
    is_special: bool,
    calm: [Calm; PATHS_MAX],
    doubts: [Doubt; PATHS_MAX],
    /// Counts good ends; draws which of them teach, and pays for copies of late reads.
    purse: Purse,
    /// Which time soonest is in force: tickets of another time are not in the books.
    epoch: u8,
}

/// Results of the last looks at an idle path.
#[derive(Clone, Copy, Debug)]
struct Calm {
    /// When it was last looked at.
    looked_ns: u64,
    /// The base latency that was believed then.
    base_ns: u32,
    /// So many looks in a row found what was believed.
    times: u8,
}

/// State of one path on one core; figures in docs/results/simulator.md.
const PATH_BYTES: usize = size_of::<Model>()
    + size_of::<Calm>()
    + size_of::<Doubt>()
    + streams::PATH_BYTES
    + others::PATH_BYTES;

const _: () = assert!(PATH_BYTES <= 448);

impl Calm {
    const NEW: Self = Self {
        looked_ns: 0,
        base_ns: 0,
        times: 0,
    };

    /// Whether it is too early to look again if that costs anything.
    fn rests(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.looked_ns) < IDLE_NS << self.times
    }

    /// It is looked at now; it was last used then.
    fn look(&mut self, now_ns: u64, last_ns: u64, base_ns: u32) {
        let same = self.base_ns.abs_diff(base_ns) < base_ns / 8;
        let idle = last_ns < self.looked_ns.saturating_add(IDLE_NS);
        self.times = match same && idle {
            true => (self.times + 1).min(CALM_MAX),
            false => 0,
        };
        self.base_ns = base_ns;
        self.looked_ns = now_ns;
    }
}

/// Which path is looked at first, of those of one turn that which costs least.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// It has been idle for [`OVERDUE_NS`].
    Overdue,
    Usual,
}

/// Instead of the number of a path.
const NONE: usize = usize::MAX;

/// The choice, unless another path has to be looked at.
#[derive(Clone, Copy)]
struct First {
    /// Path of least cost, or [`NONE`].
    best: usize,
    /// Something is known of every usable path.
    all_seen: bool,
    /// All are full, and it is by their waits.
    is_even: bool,
    /// Another would be better for this I/O, but its stream stays where it is.
    goes_on: bool,
}

impl First {
    fn best(self) -> Option<usize> {
        (self.best != NONE).then_some(self.best)
    }
}

impl Soonest {
    pub(crate) fn new(epoch: u8) -> Self {
        Self {
            models: [Model::NEW; PATHS_MAX],
            others: Others::new(),
            streams: Streams::new(),
            budget_ns: 0,
            look_ns: 0,
            crowd: Crowd::NEW,
            small: Small::NONE,
            is_special: false,
            calm: [Calm::NEW; PATHS_MAX],
            doubts: [Doubt::NONE; PATHS_MAX],
            purse: Purse::NEW,
            epoch,
        }
    }

    /// The number of the next time.
    pub(crate) fn next_epoch(&self) -> u8 {
        self.epoch.checked_add(1).unwrap_or(1)
    }

    /// Chooses the usable path of least cost, now and then another that has to be looked at again,
    /// and books the I/O there.
    #[inline(always)]
    pub(crate) fn place(
        &mut self,
        request: &Request,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) -> Option<(usize, Ticket)> {
        let first = self.first(request, paths, in_flight);
        let chosen = self.settle(first, request, paths, in_flight)?;
        Some((chosen, self.book(request, chosen, paths, in_flight)))
    }

    /// The path that will do if no other has to be looked at.
    #[inline(always)]
    fn first(
        &mut self,
        request: &Request,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) -> First {
        let (kind, now_ns) = (Kind::of(request), request.now_ns);
        self.others.see(now_ns, paths, in_flight);
        // One loop for each direction: so it knows where it has to look.
        let first = match (self.others.are_old() | self.is_special, kind.direction) {
            (true, _) => self.best_of_many(request, paths, in_flight),
            (_, 0) => self.best::<false>(kind.towards(0), now_ns, 0, paths, in_flight),
            _ => self.best::<false>(kind.towards(1), now_ns, 0, paths, in_flight),
        };
        if self.streams.is_awake(now_ns) {
            return self.in_order(first, request, paths, in_flight);
        }
        first
    }

    /// That one, or another that has to be looked at.
    #[inline(always)]
    fn settle(
        &mut self,
        first: First,
        request: &Request,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) -> Option<usize> {
        match first.all_seen && request.now_ns < self.look_ns {
            true => first.best(),
            false => self.look(first.best(), request, paths, in_flight),
        }
    }

    /// Books an I/O on the path that was chosen for it.
    #[inline(always)]
    fn book(
        &mut self,
        request: &Request,
        chosen: usize,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) -> Ticket {
        // A mask instead of a check.
        let (path, own) = (chosen % PATHS_MAX, in_flight[chosen % PATHS_MAX]);
        let elsewhere = match self.others.are_old() {
            true => self.others.now(path, &paths[chosen], own),
            false => paths[chosen].in_flight_elsewhere,
        };
        let kind = Kind::of(request);
        Ticket {
            epoch: self.epoch,
            learns: request.group != Group::Other,
            first: streams::first(request),
            ..self.models[path].begin(kind, own, elsewhere, request.now_ns)
        }
    }

    /// The same where every path is full, some are small, or counts of other cores are old.
    #[inline(never)]
    fn best_of_many(
        &self,
        request: &Request,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) -> First {
        let (kind, now_ns) = (Kind::of(request), request.now_ns);
        let even = match self.crowd.is_dense {
            true => self.even(kind, now_ns, paths, in_flight),
            false => None,
        };
        match even {
            Some(best) => First {
                best,
                all_seen: true,
                is_even: true,
                goes_on: false,
            },
            None if self.small.any() => self.best_beside_small(request, paths, in_flight),
            None => self.best::<true>(kind, now_ns, 0, paths, in_flight),
        }
    }

    /// The same where it may matter whether an I/O goes on with a stream.
    #[inline(never)]
    fn in_order(
        &mut self,
        mut first: First,
        request: &Request,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) -> First {
        let place = self.streams.find(request);
        if let (Some(home), Some(there)) = (place.home, first.best())
            && home != there
            && self.streams.matter(home, there)
            && self.stays(home, there, request, paths, in_flight)
        {
            first.best = home;
            first.goes_on = true;
        }
        // A look at another path does not move the stream.
        if let Some(home) = first.best() {
            self.streams.note(&place, home);
        }
        first
    }

    /// Whether a stream stays on its path, though another is the best for this I/O alone.
    #[inline(never)]
    fn stays(
        &self,
        home: usize,
        best: usize,
        request: &Request,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) -> bool {
        if !paths.get(home).is_some_and(PathView::usable) || !self.models[home].is_seen() {
            return false;
        }
        let [at_home, there] = [home, best].map(|path| {
            let own = in_flight[path];
            let elsewhere = self.others.now(path, &paths[path], own);
            self.models[path].forecast(Kind::of(request), own, elsewhere, request.now_ns)
        });
        let shunned = at_home.silent || at_home.has_failed();
        let left = in_flight[best].saturating_add(paths[best].in_flight_elsewhere);
        !shunned && !self.streams.leaves((home, at_home), (best, there), left)
    }

    /// The usable path of least cost among those of which something is known: of those whose costs
    /// are about the least, the one with least in flight. So paths that hardly differ share, and a
    /// sudden stall meets less.
    /// Those of `without` are left out where `OLD` says to look closer.
    #[inline(always)]
    fn best<const OLD: bool>(
        &self,
        kind: Kind,
        now_ns: u64,
        without: u64,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) -> First {
        let mut all_seen = true;
        let (mut best, mut best_ns, mut best_count) = (NONE, u64::MAX, u32::MAX);
        let (mut least_ns, mut about_ns) = (u64::MAX, COST_MAX);
        let all = paths.iter().zip(&self.models).zip(in_flight);
        for (path, ((view, model), &own)) in all.enumerate() {
            // A path that is too far even when empty need not be looked at closer.
            let counts = view.usable() && !(OLD && without >> path & 1 == 1);
            if counts && model.empty_ns(kind) <= about_ns {
                let elsewhere = match OLD {
                    true => self.others.now(path, view, own),
                    false => view.in_flight_elsewhere,
                };
                let cost_ns = if model.is_odd(now_ns) {
                    let (cost_ns, is_seen) = self.odd_cost_ns(path, kind, own, elsewhere, now_ns);
                    all_seen &= is_seen;
                    cost_ns
                } else {
                    model.cost_ns(kind, elsewhere)
                };
                if cost_ns <= about_ns {
                    if cost_ns < least_ns {
                        least_ns = cost_ns;
                        about_ns = cost_ns + cost_ns / ABOUT;
                    }
                    let count = own.saturating_add(elsewhere);
                    if best_ns > about_ns || (count, cost_ns) < (best_count, best_ns) {
                        (best, best_ns, best_count) = (path, cost_ns, count);
                    }
                }
            }
        }
        First {
            best,
            all_seen,
            is_even: false,
            goes_on: false,
        }
    }

    /// Cost on a path that has to be looked at closer, and whether anything is known of it.
    #[cold]
    fn odd_cost_ns(
        &self,
        path: usize,
        kind: Kind,
        own: u32,
        elsewhere: u32,
        now_ns: u64,
    ) -> (u64, bool) {
        let model = &self.models[path];
        (
            model.odd_cost_ns(kind, own, elsewhere, now_ns),
            model.is_seen(),
        )
    }

    /// Instead of `best` a path that nobody has tried; or one that has to be looked at again, if
    /// that is not too dear now.
    #[cold]
    fn look(
        &mut self,
        best: Option<usize>,
        request: &Request,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) -> Option<usize> {
        let (kind, now_ns) = (Kind::of(request), request.now_ns);
        let mut other: Option<(Turn, u64, usize)> = None;
        let mut unseen: Option<(bool, u32, usize)> = None;
        self.doubts
            .iter_mut()
            .for_each(|doubt| doubt.expire(now_ns));
        let mut again = false;
        self.count_crowd(now_ns, paths, in_flight);
        self.budget_ns = self.budget_ns.min(BUDGET_NS_MAX);
        for (path, view) in paths.iter().enumerate().filter(|(_, view)| view.usable()) {
            let (model, own) = (&self.models[path], in_flight[path]);
            if !model.is_seen() {
                again = true;
                // Nothing that fails is ever timed: who has failed comes last.
                let this = (model.is_shunned(now_ns), own, path);
                if unseen.is_none_or(|least| this < least) {
                    unseen = Some(this);
                }
                continue;
            }
            let idle_ns = now_ns.saturating_sub(model.last_ns);
            let stale = !canary::has(Bug::NeverAgain) && idle_ns > IDLE_NS;
            let promising = model.is_promising() && own == 0;
            let doubted = self.doubts[path].is_raised() && own < 2;
            let suspect = (model.is_suspect() && own == 0) || doubted;
            again |= doubted || model.is_promising() || model.is_suspect() || stale;
            if Some(path) == best || !(promising || stale || suspect) {
                continue;
            }
            let elsewhere = self.others.now(path, view, own);
            let forecast = model.forecast(kind, own, elsewhere, now_ns);
            // Far faster than believed when last looked at: the loss will be less as well.
            let time = forecast.time_ns() / if promising { 4 } else { 1 };
            let turn = match idle_ns > OVERDUE_NS {
                true => Turn::Overdue,
                false => Turn::Usual,
            };
            if (own == 0 || doubted || !model.knows(kind))
                && !forecast.silent
                && !forecast.has_failed()
                && other.is_none_or(|(first, least, _)| (turn, time) < (first, least))
            {
                other = Some((turn, time, path));
            }
        }
        if !again {
            self.look_ns = now_ns.saturating_add(LOOK_NS);
        }
        match (unseen, best) {
            (Some((failed, own, path)), best) if best.is_none() || (!failed && own < 2) => {
                Some(path)
            }
            // An I/O that teaches nothing need not look.
            (_, best) if request.group == Group::Other => best,
            (_, best) => {
                let other = other.map(|(_, time, path)| (time, path));
                Some(self.explore(best?, other, kind, now_ns, paths, in_flight))
            }
        }
    }

    /// The best path, or another that has to be looked at again if that is not too dear now.
    fn explore(
        &mut self,
        best: usize,
        other: Option<(u64, usize)>,
        kind: Kind,
        now_ns: u64,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) -> usize {
        let Some((time_ns, path)) = other else {
            return best;
        };
        let own = in_flight[best];
        let elsewhere = self.others.now(best, &paths[best], own);
        let forecast = self.models[best].forecast(kind, own, elsewhere, now_ns);
        // Savings that are full pay for any look: else a path that once met a long stall would
        // never be tried again (T38).
        let excess_ns = time_ns.saturating_sub(forecast.time_ns());
        let price_ns = excess_ns.min(BUDGET_NS_MAX);
        let (model, calm) = (&self.models[path], &mut self.calm[path]);
        let dear = excess_ns > forecast.time_ns() / DEAR;
        let new = model.is_promising() || model.is_suspect() || self.doubts[path].is_raised();
        if price_ns > self.budget_ns || (dear && !new && calm.rests(now_ns)) {
            return best;
        }
        self.budget_ns -= price_ns;
        calm.look(now_ns, model.last_ns, model.base_ns(kind) as u32);
        path
    }

    /// An I/O has ended; its books are closed, and a good one teaches if its path is `there` still.
    /// `own` are this core's I/Os left in flight on it.
    #[inline]
    pub(crate) fn complete(&mut self, done: &Completion, own: u32, there: bool) {
        let ticket = &done.ticket;
        if ticket.epoch != self.epoch {
            return;
        }
        let path = usize::from(done.path.0) % PATHS_MAX;
        let model = &mut self.models[path];
        if self.streams.is_awake(done.now_ns) && ticket.learns && there {
            self.streams.end(done, model);
        }
        model.end(ticket, own, done.now_ns);
        if done.ended == Ended::Failed {
            model.shun(done.now_ns);
        } else if done.ended == Ended::Good {
            // Cut where it is spent.
            self.budget_ns = self.budget_ns.wrapping_add(done.latency_ns / BUDGET_PART);
            // The golden ratio: no rhythm of the I/Os can hide from it.
            self.purse.ended = self.purse.ended.wrapping_add(1);
            let lot = self.purse.ended.wrapping_mul(0x9e37_79b9);
            if model.wants(ticket, done.now_ns, lot) {
                self.teach(path, done, there);
            }
        }
    }

    /// A completion teaches. Apart: it is one of many.
    #[inline(never)]
    fn teach(&mut self, path: usize, done: &Completion, there: bool) {
        if !(done.ticket.learns && there && done.latency_ns > 0) {
            return;
        }
        let (model, doubt) = (&mut self.models[path], &mut self.doubts[path]);
        let expected_ns = model.learn(&done.ticket, done.latency_ns, done.gap_ns);
        // An end that was noticed late surprises for no reason of the path's.
        if expected_ns > 0 && !done.ticket.alone && done.gap_ns < done.latency_ns / 4 {
            doubt.note(model, done, expected_ns);
        }
        model.taught(done.now_ns);
        if model.is_promising() || model.is_suspect() || doubt.is_raised() {
            self.look_ns = 0;
        }
    }

    /// The forecast of an I/O on one path; `None`: nothing is known of it yet.
    #[cfg(test)]
    pub(crate) fn forecast(
        &self,
        path: usize,
        request: &Request,
        view: &PathView,
        own: u32,
    ) -> Option<crate::types::Forecast> {
        let model = &self.models[path];
        model.is_seen().then(|| {
            model.forecast(
                Kind::of(request),
                own,
                view.in_flight_elsewhere,
                request.now_ns,
            )
        })
    }

    /// Forgets what was learnt of one path; its books stay.
    pub(crate) fn reset(&mut self, path: usize) {
        self.models[path].forget();
        self.doubts[path] = Doubt::NONE;
        self.calm[path] = Calm::NEW;
        self.small.remove(path);
        self.streams.reset(path);
        self.look_ns = 0;
    }
}

#[cfg(test)]
mod tests;
