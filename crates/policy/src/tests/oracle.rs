//! The oracle: the rows of the documents once more, as plainly as possible and by other means
//! (lists, sorting, whole rounds instead of a walking search), to compare the policies with.

use super::others::Others;
use crate::{
    Aggregate, Ana, Completion, Ended, Group, Knobs, Noted, PathIndex, PathStats, PathView, Policy,
    Request,
};
use std::vec::Vec;

/// One path and group under weighted-latency.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    pub window: Vec<u64>,
    pub closed_ns: Option<u64>,
    pub smoothed_ns: u128,
    pub score: u128,
    pub weight: u128,
    pub credit: u128,
    pub selections: u64,
    pub samples: u64,
    pub ignored: u64,
    pub asks: bool,
}

/// A selector made of lists.
#[derive(Clone, Debug)]
pub struct Oracle {
    pub policy: Policy,
    pub knobs: Knobs,
    pub paths: usize,
    pub in_flight: Vec<u64>,
    pub last: Option<usize>,
    pub handed: u64,
    /// Under weighted-latency each bucket and group has its own.
    pub lasts: [Option<usize>; 21],
    /// By path, then bucket · 3 + group.
    pub cells: Vec<Vec<Cell>>,
    /// Period of the policy, counted by switches; I/Os of another one are no samples where sizes
    /// count.
    pub period: u32,
    pub others: Others,
    pub warned_ns: Option<u64>,
    /// The choice of `soonest`: the oracle only keeps count for it.
    pub told: Option<PathIndex>,
}

fn unmeasured() -> Vec<Cell> {
    (0..21).map(|_| Cell::default()).collect()
}

/// Row A12, as it is written there.
fn bucket(over: Aggregate, length: u32) -> usize {
    let ends = [32, 64, 128, 256, 512, 1024].map(|kib| kib << 10);
    let at = ends.iter().position(|&end| length < end).unwrap_or(6);
    if over.buckets { at } else { 0 }
}

pub fn column(group: Group) -> usize {
    Group::ALL.iter().position(|&one| one == group).unwrap()
}

/// Indices of the paths in one ANA state.
fn in_state(views: &[PathView], ana: Ana) -> Vec<usize> {
    (0..views.len())
        .filter(|&i| views[i].enabled && views[i].ana == ana)
        .collect()
}

/// Row A7: the optimized ones, or else the non-optimized ones.
pub fn preferred(views: &[PathView]) -> Vec<usize> {
    let optimized = in_state(views, Ana::Optimized);
    if optimized.is_empty() {
        in_state(views, Ana::NonOptimized)
    } else {
        optimized
    }
}

/// The candidates sorted by their way from `start` round the circle.
pub fn circle(mut candidates: Vec<usize>, start: usize, count: usize) -> Vec<usize> {
    candidates.sort_by_key(|&i| (i + count - start) % count);
    candidates
}

impl Oracle {
    pub fn new(paths: usize, policy: Policy) -> Self {
        Self {
            policy,
            knobs: Knobs::default(),
            paths,
            in_flight: [0; 64].to_vec(),
            last: None,
            handed: 0,
            lasts: [None; 21],
            cells: (0..64).map(|_| unmeasured()).collect(),
            period: 0,
            others: Others::default(),
            warned_ns: None,
            told: None,
        }
    }

    pub fn select(&mut self, request: &Request, views: &[PathView]) -> Option<PathIndex> {
        let chosen = match self.policy {
            Policy::Numa => preferred(views)
                .into_iter()
                .min_by_key(|&i| (views[i].distance, i)),
            Policy::QueueDepth => preferred(views).into_iter().min_by_key(|&i| {
                (
                    self.in_flight[i] + u64::from(views[i].in_flight_elsewhere),
                    i,
                )
            }),
            Policy::RoundRobin { bytes } => {
                self.in_turn(bytes, request.length, preferred(views), views.len())
            }
            Policy::WeightedLatency(over) => {
                let column = bucket(over, request.length) * 3 + column(request.group);
                self.by_credit(column, views)
            }
            Policy::Pid => {
                let those = preferred(views);
                let count = those.len().max(1) as u64;
                those.get((request.source % count) as usize).copied()
            }
            Policy::Devid(PathIndex(id)) => {
                let wanted = usize::from(id);
                let mut may = in_state(views, Ana::Optimized);
                may.extend(in_state(views, Ana::NonOptimized));
                let first = preferred(views).first().copied();
                may.contains(&wanted).then_some(wanted).or(first)
            }
            Policy::Latency => self.others.least_latency(request, views, &self.in_flight),
            Policy::RoundRobinLatency { bytes } => {
                match self.others.tolerated(request, views, &self.in_flight) {
                    Ok(tested) => Some(tested),
                    Err(those) => self.in_turn(bytes, request.length, those, views.len()),
                }
            }
            Policy::ServiceTime => self.others.least_bytes(request, views),
            Policy::HistoricalServiceTime => {
                self.others
                    .least_estimate(request.now_ns, views, &self.in_flight)
            }
            Policy::Soonest => self.told.map(|path| usize::from(path.0)),
            Policy::Program(_) => unreachable!("no list of policies has one"),
        }?;
        self.others.placed(chosen, request, self.in_flight[chosen]);
        self.in_flight[chosen] += 1;
        self.cells[chosen][column(request.group)].selections += 1;
        Some(PathIndex(chosen as u8))
    }

    fn in_turn(
        &mut self,
        bytes: u64,
        length: u32,
        candidates: Vec<usize>,
        count: usize,
    ) -> Option<usize> {
        let stays = self
            .last
            .filter(|last| self.handed < bytes && candidates.contains(last));
        let chosen = match (stays, self.last) {
            (Some(last), _) => last,
            (None, None) => *candidates.first()?,
            (None, Some(last)) => {
                // Behind the last used; the last used itself comes round at the end.
                *circle(candidates, (last + 1) % count, count).first()?
            }
        };
        self.handed = if stays.is_some() { self.handed } else { 0 } + u64::from(length);
        self.last = Some(chosen);
        Some(chosen)
    }

    /// Row A6 by whole rounds: the first in the circle that is unmeasured or has credit; all before
    /// it are refilled. If there is none all are refilled, and the first one spends.
    fn by_credit(&mut self, column: usize, views: &[PathView]) -> Option<usize> {
        let last = &mut self.lasts[column];
        let mut candidates = in_state(views, Ana::Optimized);
        candidates.extend(in_state(views, Ana::NonOptimized));
        let order = circle(candidates, last.unwrap_or(0), views.len().max(1));
        let cells = &mut self.cells;
        let ready = order.iter().position(|&i| {
            let cell = &cells[i][column];
            cell.weight == 0 || cell.credit > 0
        });
        for &i in &order[..ready.unwrap_or(order.len())] {
            cells[i][column].credit = cells[i][column].weight;
        }
        let chosen = *order.get(ready.unwrap_or(0))?;
        if cells[chosen][column].weight > 0 {
            cells[chosen][column].credit -= 1;
        }
        *last = Some(chosen);
        Some(chosen)
    }

    /// The end of an I/O of this length, placed in this period.
    pub fn complete(&mut self, done: &Completion, length: u32, period: u32) -> Noted {
        let path = usize::from(done.path.0);
        self.in_flight[path] -= 1;
        let current = period == self.period;
        self.others
            .ended(done, current.then_some(length), path < self.paths);
        let Policy::WeightedLatency(over) = self.policy else {
            return Noted::default();
        };
        let learns = self.paths > 1 && path < self.paths && (current || !over.buckets);
        let ignored = &mut self.cells[path][column(done.group)].ignored;
        *ignored +=
            u64::from(learns && done.ended == Ended::Good && done.latency_ns > 1_000_000_000);
        let at = bucket(over, length) * 3 + column(done.group);
        let cell = &mut self.cells[path][at];
        match (learns, done.ended, done.latency_ns) {
            (false, _, _) | (_, Ended::Failed | Ended::Dropped, _) | (_, _, 0) => Noted::default(),
            (true, Ended::Good, 1..=1_000_000_000) => {
                cell.samples += 1;
                cell.window.push(done.latency_ns);
                let weigh = cell.closed_ns.is_none_or(|closed_ns| {
                    done.now_ns.max(closed_ns) - closed_ns >= self.knobs.weight_timeout_ns
                });
                if weigh {
                    cell.close(done.now_ns, self.knobs.ewma_shift);
                }
                Noted {
                    weigh,
                    warn_ignored: false,
                }
            }
            (true, Ended::Good, _) => {
                let warn = self.warned_ns.is_none_or(|warned_ns| {
                    done.now_ns.max(warned_ns) - warned_ns >= 5_000_000_000
                });
                if warn {
                    self.warned_ns = Some(done.now_ns);
                }
                Noted {
                    weigh: false,
                    warn_ignored: warn,
                }
            }
        }
    }

    pub fn weigh(&mut self) {
        let cells = &mut self.cells[..self.paths];
        for column in 0..21 {
            if !cells.iter().any(|path| path[column].asks) {
                continue;
            }
            for path in cells.iter_mut() {
                let cell = &mut path[column];
                cell.asks = false;
                let measured = cell.smoothed_ns > 0;
                cell.score = if measured {
                    1_000_000_000 / cell.smoothed_ns
                } else {
                    0
                };
            }
            let total: u128 = cells.iter().map(|path| path[column].score).sum();
            if total == 0 {
                continue;
            }
            for path in cells.iter_mut() {
                path[column].weight = (path[column].score * 64 / total).max(1);
            }
        }
    }

    pub fn set_policy(&mut self, policy: Policy) {
        if policy != self.policy {
            let in_flight = std::mem::take(&mut self.in_flight);
            *self = Self {
                in_flight,
                knobs: self.knobs,
                period: self.period + 1,
                ..Self::new(self.paths, policy)
            };
        }
    }

    pub fn reset_path(&mut self, path: PathIndex) {
        self.cells[usize::from(path.0)] = unmeasured();
        self.others.forget(usize::from(path.0));
    }

    pub fn set_paths(&mut self, paths: usize) {
        for gone in paths..64 {
            self.cells[gone] = unmeasured();
            self.others.forget(gone);
        }
        if self.last.is_some_and(|last| last >= paths) {
            self.last = None;
            self.handed = 0;
        }
        for last in &mut self.lasts {
            *last = last.filter(|&last| last < paths);
        }
        self.paths = paths;
    }

    pub fn stats(&self, path: PathIndex, group: Group) -> PathStats {
        let group = column(group);
        let cells: Vec<&Cell> = self.cells[usize::from(path.0)][group..]
            .iter()
            .step_by(3)
            .collect();
        let mean = |of: fn(&Cell) -> u128| {
            let known: Vec<u128> = cells.iter().map(|it| of(it)).filter(|&it| it > 0).collect();
            known.iter().sum::<u128>() / known.len().max(1) as u128
        };
        let weights: Vec<u128> = cells
            .iter()
            .map(|it| it.weight)
            .filter(|&it| it > 0)
            .collect();
        let twice = 2 * weights.iter().sum::<u128>() / weights.len().max(1) as u128;
        PathStats {
            weight: twice.div_ceil(2) as u32,
            credit: cells.iter().map(|it| it.credit as u32).sum(),
            score: mean(|it| it.score) as u64,
            smoothed_ns: mean(|it| it.smoothed_ns) as u64,
            selections: cells.iter().map(|it| it.selections).sum(),
            samples: cells.iter().map(|it| it.samples).sum(),
            ignored: cells.iter().map(|it| it.ignored).sum(),
        }
    }
}

impl Cell {
    fn close(&mut self, now_ns: u64, shift: u8) {
        let sum: u128 = self.window.iter().copied().map(u128::from).sum();
        let mean = sum / self.window.len() as u128;
        let whole = 2_u128.pow(shift.into());
        self.smoothed_ns = match self.smoothed_ns {
            0 => mean,
            old => (old * (whole - 1) + mean) / whole,
        };
        self.window.clear();
        self.closed_ns = Some(now_ns);
        self.asks = true;
    }
}
