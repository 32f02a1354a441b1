//! The oracle of the policies for mirrors and those of device-mapper: all completions as lists,
//! folded anew at every selection.
use super::oracle::{circle, column, preferred};
use crate::{Completion, Ended, PathView, Request};
use std::vec::Vec;

/// Events of each path.
#[derive(Clone, Debug, Default)]
pub struct Others {
    /// Good ends by path and group: latency, time.
    ends: Vec<(usize, usize, u64, u64)>,
    /// Of all good ends, services by path.
    services: Vec<(usize, u64)>,
    marks: Vec<(usize, u64)>,
    /// Bytes in flight.
    bytes: Vec<(usize, u32)>,
    lengths: Vec<u32>,
    last: Option<usize>,
}

/// An exponential mean of so many shifts, as plain as can be.
fn smoothed(shift: u32, first: Option<u128>, all: impl Iterator<Item = u128>) -> Option<u128> {
    let whole = 1_u128 << shift;
    all.fold(first, |sum, one| match sum {
        None => Some(one * whole),
        Some(sum) => Some(sum - sum / whole + one),
    })
}

impl Others {
    fn latency(&self, path: usize, group: usize, now_ns: u64) -> Option<u128> {
        let mut sum = None;
        let mut last_ns = 0;
        for &(_, _, latency_ns, at_ns) in
            self.ends.iter().filter(|it| (it.0, it.1) == (path, group))
        {
            if at_ns.saturating_sub(last_ns) > 250_000_000 {
                sum = None;
            }
            sum = smoothed(3, sum, [u128::from(latency_ns)].into_iter());
            last_ns = at_ns;
        }
        let fresh = now_ns.saturating_sub(last_ns) <= 250_000_000;
        sum.filter(|_| fresh).map(|sum| sum / 8)
    }

    /// Row B3: unknown and idle first, then by latency, at last unknown and asked.
    pub fn least_latency(
        &self,
        request: &Request,
        views: &[PathView],
        in_flight: &[u64],
    ) -> Option<usize> {
        let key = |&path: &usize| match self.latency(path, column(request.group), request.now_ns) {
            None if in_flight[path] == 0 => (0, 0, path),
            Some(mean) => (1, mean, path),
            None => (2, in_flight[path].into(), path),
        };
        preferred(views).into_iter().min_by_key(key)
    }

    /// Row B8: the first that is unknown and idle; else those within a fifth of the least, or all
    /// where nothing is known.
    pub fn tolerated(
        &self,
        request: &Request,
        views: &[PathView],
        in_flight: &[u64],
    ) -> Result<usize, Vec<usize>> {
        let mean = |path: usize| self.latency(path, column(request.group), request.now_ns);
        let those = preferred(views);
        let mut idle = those.iter().filter(|&&path| in_flight[path] == 0);
        if let Some(&tested) = idle.find(|&&path| mean(path).is_none()) {
            return Ok(tested);
        }
        let Some(least) = those.iter().filter_map(|&path| mean(path)).min() else {
            return Err(those);
        };
        let fits = |path: &usize| mean(*path).is_some_and(|mean| mean * 100 <= least * 120);
        Err(those.into_iter().filter(fits).collect())
    }

    /// (in flight + incoming) / throughput, as fractions.
    pub fn least_bytes(&self, request: &Request, views: &[PathView]) -> Option<usize> {
        let mean = smoothed(6, None, self.lengths.iter().map(|&it| it.into())).unwrap_or(0) / 64;
        let own = |path: usize| -> u128 {
            let those = self.bytes.iter().filter(|it| it.0 == path);
            those.map(|it| u128::from(it.1)).sum()
        };
        let start = self
            .last
            .filter(|&last| last + 1 < views.len())
            .map_or(0, |last| last + 1);
        let mut order = circle(preferred(views), start, views.len().max(1));
        if order.iter().any(|&path| views[path].throughput > 0) {
            order.retain(|&path| views[path].throughput > 0);
        }
        // 2^7 · 3^4 · 5^2 · … would do for exact fractions; a common denominator is simpler.
        let whole: u128 = order
            .iter()
            .map(|&path| u128::from(views[path].throughput.max(1)))
            .product();
        let time = |path: usize| {
            let view = &views[path];
            let bytes = own(path)
                + mean * u128::from(view.in_flight_elsewhere.min(1 << 20))
                + u128::from(request.length);
            bytes * (whole / u128::from(view.throughput.max(1)))
        };
        let faster = |path: usize| 255 - views[path].throughput;
        let key = |&path: &usize| (time(path), faster(path));
        order.into_iter().min_by_key(key)
    }

    /// service · (in flight + 1), and the two rules for paths that change.
    pub fn least_estimate(
        &self,
        now_ns: u64,
        views: &[PathView],
        in_flight: &[u64],
    ) -> Option<usize> {
        let those = preferred(views);
        let count = those.len() as u128;
        let key = |&path: &usize| {
            let own = u128::from(in_flight[path]);
            let services = self.services.iter().filter(|it| it.0 == path);
            let sum = services.fold(None, |sum, it| {
                smoothed(4, sum, [u128::from(it.1)].into_iter()).map(|sum| sum.max(1))
            });
            let Some(sum) = sum else {
                return if own == 0 { (0, 0) } else { (2, own) };
            };
            let quiet = u128::from(now_ns.saturating_sub(self.mark(path)));
            let late = quiet > sum * count / 16;
            match late {
                true if own == 0 && count > 1 => (0, 0),
                true if own > 0 => (1, sum * (own + 1) + quiet * 16),
                _ => (1, sum * (own + 1)),
            }
        };
        those.into_iter().min_by_key(key)
    }

    fn mark(&self, path: usize) -> u64 {
        let marks = self.marks.iter().rev();
        marks.clone().find(|it| it.0 == path).map_or(0, |it| it.1)
    }

    /// An I/O was placed beside `own` others.
    pub fn placed(&mut self, path: usize, request: &Request, own: u64) {
        self.bytes.push((path, request.length));
        self.lengths.push(request.length);
        self.last = Some(path);
        if own == 0 {
            self.marks.push((path, request.now_ns));
        }
    }

    /// An I/O has ended; with its length if it was placed in this period of the policy.
    pub fn ended(&mut self, done: &Completion, length: Option<u32>, there: bool) {
        let path = usize::from(done.path.0);
        if let Some(length) = length {
            let at = self.bytes.iter().position(|it| *it == (path, length));
            self.bytes.remove(at.unwrap());
        }
        if done.ended != Ended::Good || !there {
            return;
        }
        if done.latency_ns > 0 {
            let latency_ns = done.latency_ns.min(1_000_000_000);
            let end = (path, column(done.group), latency_ns, done.now_ns);
            self.ends.push(end);
        }
        let from_ns = done
            .now_ns
            .saturating_sub(done.latency_ns)
            .max(self.mark(path));
        let service_ns = done.now_ns.saturating_sub(from_ns).min(1_000_000_000);
        self.services.push((path, service_ns));
        self.marks.push((path, done.now_ns));
    }

    pub fn forget(&mut self, path: usize) {
        self.ends.retain(|it| it.0 != path);
        self.services.retain(|it| it.0 != path);
        self.marks.retain(|it| it.0 != path);
    }
}
