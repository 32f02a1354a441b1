//! Whether a read that is late gets a second copy on another path.
//!
//! A path that stalls keeps what it has, and the best choice for what comes next does not help the
//! reads that wait there already. So a read that has been under way for a multiple of the time
//! predicted when it was placed may go to another path as well; who is first counts.
//!
//! # Contract
//! Only reads (T8). A copy is sent where its cost, price included, is less than half of the time
//! already lost: where everything is full there is no such path, and copies cease by themselves.
//! If its own path is silent (T37) and it is very late, nobody knows how much more will be lost:
//! then it goes where it would go if it were placed now. Disks are silent to whom they pass over.
//! Each I/O has at most one copy, and a copy has none: that is the caller's to keep.
//!
//! # Limits
//! One copy for [`COPY`] good ends, so at most 1 in 128 of what ends; up to [`SAVED_MAX`] of them
//! may come at once. The fewer are left, the later a read has to be: the last ones are for stalls.

use super::Soonest;
use super::model::Kind;
use crate::limits::PATHS_MAX;
use crate::types::{Forecast, Group, PathView, Request, Ticket};

/// Good ends that earn a copy,
const COPY: u32 = 128;
/// and most that are saved up: 64 copies.
const SAVED_MAX: u32 = 64 * COPY;
/// Not looked at before so many times the predicted time, and this beside it: what a core is late
/// with its looks;
const FIRST_TIMES: u64 = 2;
const FIRST_NS: u64 = 50_000;
/// nor again before this, or half of its age.
const AGAIN_NS: u64 = 50_000;
/// Prediction on a path of which nothing is known.
const UNKNOWN_NS: u64 = 5_000_000;

/// Budget of copies: good ends earn it, copies spend it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Purse {
    /// Good ends; wraps.
    pub(super) ended: u32,
    /// Of those, what was spent, or is too long ago to count.
    spent: u32,
}

impl Purse {
    pub(super) const NEW: Self = Self { ended: 0, spent: 0 };

    /// Good ends that are left to spend. After 2^32 without a copy it may seem empty.
    fn saved(&mut self) -> u32 {
        let saved = self.ended.wrapping_sub(self.spent).min(SAVED_MAX);
        self.spent = self.ended.wrapping_sub(saved);
        saved
    }
}

/// How many times its prediction a read has to be late, with so much saved.
fn times(saved: u32) -> u64 {
    match saved / (SAVED_MAX / 4) {
        0 => 8,
        1 => 5,
        2 => 3,
        _ => 2,
    }
}

impl Soonest {
    /// How long after it was placed on `path` an I/O is worth a look; `None`: never.
    #[inline(never)]
    pub(crate) fn look_after_ns(&self, path: usize, ticket: &Ticket) -> Option<u64> {
        let predicted_ns = self.predicted_ns(path, ticket)?;
        Some(FIRST_TIMES * predicted_ns + FIRST_NS)
    }

    /// The path for a copy of a read that has been under way for `age_ns`, and the copy's ticket;
    /// else after how many ns to ask again, or `None`: never.
    #[cold]
    #[inline(never)]
    pub(crate) fn hedge(
        &mut self,
        request: &Request,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
        path: usize,
        ticket: &Ticket,
        age_ns: u64,
    ) -> Result<(usize, Ticket), Option<u64>> {
        let other = self.other(request, paths, in_flight, path, ticket, age_ns)?;
        self.purse.spent = self.purse.spent.wrapping_add(COPY);
        Ok((other, self.book(request, other, paths, in_flight)))
    }

    /// The path alone; nothing is booked.
    pub(crate) fn other(
        &mut self,
        request: &Request,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
        path: usize,
        ticket: &Ticket,
        age_ns: u64,
    ) -> Result<usize, Option<u64>> {
        let reads = request.group == Group::Read;
        let Some(predicted_ns) = self.predicted_ns(path, ticket).filter(|_| reads) else {
            return Err(None);
        };
        let again = Err(Some(AGAIN_NS.max(age_ns / 2)));
        let saved = self.purse.saved();
        if saved < COPY || age_ns < predicted_ns * times(saved) {
            return again;
        }
        let Some((cost_ns, other)) = self.cheapest_beside(path, request, paths, in_flight) else {
            return again;
        };
        let home = self.outlook(path, request, &paths[path], in_flight);
        let lost = age_ns >= predicted_ns * times(0) && !self.streams.are_jumpy();
        let most_ns = match home.filter(|home| home.silent && lost) {
            Some(home) => home.cost_ns,
            None => age_ns / 2,
        };
        if cost_ns >= most_ns {
            return again;
        }
        Ok(other)
    }

    /// The prediction for a read when it was placed, without what comes rarely; `None`: it is no
    /// read, or not one of ours.
    fn predicted_ns(&self, path: usize, ticket: &Ticket) -> Option<u64> {
        let reads = ticket.learns && ticket.direction == 0;
        if ticket.epoch != self.epoch || !reads {
            return None;
        }
        let model = &self.models[path % PATHS_MAX];
        if !model.is_seen() {
            return Some(UNKNOWN_NS);
        }
        let kind = Kind::of_ticket(ticket);
        Some(model.base_ns(kind) + model.waited_ns(kind, ticket) as u64)
    }

    /// The usable path of least cost beside `path` that gives signs of life.
    fn cheapest_beside(
        &self,
        path: usize,
        request: &Request,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
    ) -> Option<(u64, usize)> {
        let usable = paths.iter().enumerate().filter(|(_, view)| view.usable());
        let costs = usable.filter_map(|(other, view)| {
            let there = self.outlook(other, request, view, in_flight)?;
            let lives = !there.silent && !there.has_failed();
            (other != path && lives).then_some((there.cost_ns, other))
        });
        costs.min()
    }

    /// The forecast of a read on a path now; `None`: nothing is known of it.
    fn outlook(
        &self,
        path: usize,
        request: &Request,
        view: &PathView,
        in_flight: &[u32; PATHS_MAX],
    ) -> Option<Forecast> {
        let (model, own) = (&self.models[path], in_flight[path]);
        let elsewhere = self.others.now(path, view, own);
        let forecast = model.forecast(Kind::of(request), own, elsewhere, request.now_ns);
        model.is_seen().then_some(forecast)
    }
}

#[cfg(test)]
mod tests;
