//! Why `soonest` chose as it did.

use super::model::Kind;
use super::{First, Soonest};
use crate::explain::{Basis, Explained, Why};
use crate::limits::PATHS_MAX;
use crate::types::{PathView, Request, Ticket};

impl Soonest {
    /// As [`Soonest::place`], and writes down what it compared; and what decided.
    pub(crate) fn choose_explained(
        &mut self,
        request: &Request,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
        out: &mut Explained,
    ) -> (Option<(usize, Ticket)>, Option<Why>) {
        let (kind, now_ns) = (Kind::of(request), request.now_ns);
        let first = self.first(request, paths, in_flight);
        let reason = self.compare(&first, kind, now_ns, paths, in_flight, out);
        let chosen = self.settle(first, request, paths, in_flight);
        let why = chosen.map(|path| match self.models[path].is_seen() {
            false => Why::Untried,
            true if first.best != path => Why::Explored,
            true => reason,
        });
        let placed = chosen.map(|it| (it, self.book(request, it, paths, in_flight)));
        (placed, why)
    }

    /// Predicted time of an I/O on a path behind `own` others of this core, ns; `None`: none was
    /// timed there yet.
    pub(crate) fn expected_ns(&self, request: &Request, path: usize, own: u32) -> Option<u64> {
        let model = self.models.get(path).filter(|it| it.is_seen())?;
        let forecast = model.forecast(Kind::of(request), own, 0, request.now_ns);
        Some(forecast.time_ns())
    }

    /// Writes down what is compared, and says why the best is the best.
    fn compare(
        &self,
        first: &First,
        kind: Kind,
        now_ns: u64,
        paths: &[PathView],
        in_flight: &[u32; PATHS_MAX],
        out: &mut Explained,
    ) -> Why {
        let (mut least_ns, mut least, mut best_ns) = (u64::MAX, 0, u64::MAX);
        for (path, view) in paths.iter().enumerate() {
            let (model, own) = (&self.models[path], in_flight[path]);
            let elsewhere = self.others.now(path, view, own);
            if !model.is_seen() {
                out.expect(path, elsewhere, Basis::Unknown);
                continue;
            }
            let forecast = model.forecast(kind, own, elsewhere, now_ns);
            let usual_ns = model.usual_ns(kind, own, elsewhere, now_ns);
            let basis = match usual_ns.filter(|_| first.is_even) {
                Some(usual_ns) => Basis::Crowd { forecast, usual_ns },
                None => Basis::Forecast(forecast),
            };
            out.expect(path, elsewhere, basis);
            if view.usable() && forecast.cost_ns < least_ns {
                (least_ns, least) = (forecast.cost_ns, path);
            }
            if first.best == path {
                best_ns = forecast.cost_ns;
            }
        }
        match first.is_even {
            _ if first.goes_on => Why::GoesOn,
            true => Why::Even,
            false if best_ns > least_ns && self.small.has(kind, least) => Why::OthersSmall,
            false if best_ns > least_ns => Why::Fewest,
            false => Why::Least,
        }
    }
}
