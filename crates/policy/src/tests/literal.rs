//! Document A's rules as it states them, beside `weighted-latency` over random selections: every
//! choice and all statistics are equal.
//!
//! The model keeps the document's steps and its names in the document's order: a list of paths,
//! per path and group a `Stat`, one work item per path and group for the weights. Where `Selector`
//! differs on purpose, the model does as `Selector` does, at a line that begins with "Differs".
use super::{ANA, UP, good};
use crate::limits::WEIGHT_TIMEOUT_NS_MAX;
use crate::{
    Aggregate, Completion, Group, Knobs, Noted, PathIndex, PathStats, PathView, Policy, Request,
    Selector, Ticket,
};
use std::vec::Vec;

/// Selections per mode; the environment can raise them.
const SELECTIONS: u64 = 1_000_000;
const NSEC_PER_SEC: u64 = 1_000_000_000;

/// `nvme_path_stat`, and whether the work that calculates weights is queued.
#[derive(Clone, Default)]
struct Stat {
    weight: u32,
    credit: u32,
    score: u64,
    slat_ns: u64,
    sel: u64,
    nr_samples: u64,
    nr_ignored: u64,
    batch: u64,
    batch_count: u64,
    last_weight_ts: Option<u64>,
    is_scheduled: bool,
}

/// One head on one CPU.
struct Model {
    /// By path, then by group; with buckets a group for each size.
    paths: Vec<Vec<Stat>>,
    /// Differs: the document has one for all groups, which misses its weights.
    adp_path: Vec<Option<usize>>,
    ewma_shift: u32,
    weight_timeout: u64,
}

impl Model {
    fn new(paths: usize, groups: usize) -> Self {
        Self {
            paths: std::vec![std::vec![Stat::default(); groups]; paths],
            adp_path: std::vec![None; groups],
            ewma_shift: 3,
            weight_timeout: 15 * NSEC_PER_SEC,
        }
    }

    /// `nvme_adaptive_path`
    fn select(&mut self, op: usize, is_live: impl Fn(usize) -> bool) -> Option<usize> {
        let count = self.paths.len();
        let mut ns = self.adp_path[op].unwrap_or(0);
        let found = loop {
            let start = ns;
            while !is_live(ns) {
                ns = (ns + 1) % count;
                if ns == start {
                    return None;
                }
            }
            let stat = &mut self.paths[ns][op];
            if stat.weight == 0 {
                break ns;
            }
            if stat.credit > 0 {
                stat.credit -= 1;
                break ns;
            }
            stat.credit = stat.weight;
            ns = (ns + 1) % count;
        };
        self.paths[found][op].sel += 1;
        self.adp_path[op] = Some(found);
        Some(found)
    }

    /// `nvme_mpath_add_sample`; whether work was queued, and whether it says that it ignored one.
    fn add_sample(&mut self, ns: usize, op: usize, latency: u64, now: u64) -> (bool, bool) {
        if self.paths.len() == 1 || latency == 0 {
            return (false, false);
        }
        let stat = &mut self.paths[ns][op];
        if latency > NSEC_PER_SEC {
            stat.nr_ignored += 1;
            return (false, true);
        }
        stat.batch += latency;
        stat.batch_count += 1;
        stat.nr_samples += 1;
        // Differs: the document begins at 0, so that its first window is closed by the first sample
        // only where the machine has been up for a window. With a window of 0 it also wants the
        // clock to have moved, which the one of a loop turn need not have.
        let is_over = |last_ts: u64| now.saturating_sub(last_ts) >= self.weight_timeout;
        if !stat.last_weight_ts.is_none_or(is_over) {
            return (false, false);
        }
        stat.last_weight_ts = Some(now);
        let avg_lat_ns = stat.batch / stat.batch_count;
        stat.slat_ns = match stat.slat_ns {
            0 => avg_lat_ns,
            old => (old * ((1 << self.ewma_shift) - 1) + avg_lat_ns) >> self.ewma_shift,
        };
        (stat.batch, stat.batch_count) = (0, 0);
        stat.is_scheduled = true;
        (true, false)
    }

    /// `nvme_mpath_weight_work`, for each item that is queued.
    fn weight_work(&mut self) {
        for op in 0..self.adp_path.len() {
            for work in 0..self.paths.len() {
                if std::mem::take(&mut self.paths[work][op].is_scheduled) {
                    self.calculate(op);
                }
            }
        }
    }

    fn calculate(&mut self, op: usize) {
        let mut total_score = 0;
        for stat in self.paths.iter_mut().map(|groups| &mut groups[op]) {
            if stat.slat_ns == 0 {
                stat.score = 0;
                continue;
            }
            stat.score = NSEC_PER_SEC / stat.slat_ns;
            total_score += stat.score;
        }
        if total_score == 0 {
            return;
        }
        for stat in self.paths.iter_mut().map(|groups| &mut groups[op]) {
            stat.weight = (stat.score * 64 / total_score) as u32;
            if stat.weight == 0 {
                stat.weight = 1;
            }
        }
    }

    /// `nvme_mpath_reset_adaptive_path_stat`, and the work is cancelled.
    fn reset(&mut self, ns: usize) {
        self.paths[ns].fill(Stat::default());
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Of all orders of magnitude, up to 3 s.
    fn latency(&mut self) -> u64 {
        match self.below(64) {
            0 => 0,
            1 => NSEC_PER_SEC + self.below(2),
            2 => NSEC_PER_SEC + self.below(2 * NSEC_PER_SEC),
            _ => {
                let scale = 10_u64.pow(self.below(9) as u32);
                1 + self.below(10) * scale + self.below(scale)
            }
        }
    }
}

/// A selector, its model, and what is in flight.
struct Pair {
    selector: Selector,
    model: Model,
    over: Aggregate,
    views: Vec<PathView>,
    in_flight: Vec<(PathIndex, Group, usize, Ticket)>,
    warned_ns: Option<u64>,
    now_ns: u64,
    random: Random,
}

impl Pair {
    fn new(over: Aggregate, mut random: Random) -> Self {
        let paths = 1 + random.below(5) as usize;
        let mut pair = Self {
            selector: Selector::new(paths, Policy::WeightedLatency(over)),
            model: Model::new(paths, if over.buckets { 21 } else { 3 }),
            over,
            views: std::vec![UP; paths],
            in_flight: Vec::new(),
            warned_ns: None,
            now_ns: 0,
            random,
        };
        pair.set_knobs();
        pair
    }

    fn set_knobs(&mut self) {
        let timeouts_ns = [
            0,
            1,
            100_000,
            50_000_000,
            15 * NSEC_PER_SEC,
            WEIGHT_TIMEOUT_NS_MAX,
        ];
        let knobs = Knobs {
            ewma_shift: self.random.below(9) as u8,
            weight_timeout_ns: timeouts_ns[self.random.below(6) as usize],
            ..Knobs::default()
        };
        assert_eq!(self.selector.set_knobs(knobs), Ok(()));
        self.model.ewma_shift = knobs.ewma_shift.into();
        self.model.weight_timeout = knobs.weight_timeout_ns;
    }

    fn select(&mut self) {
        let group = Group::ALL[self.random.below(3) as usize];
        let length = (self.random.below(1 << 21) >> self.random.below(12)) as u32;
        let request = Request {
            now_ns: self.now_ns,
            ..super::request(group, length)
        };
        // Row A12, as its list of sizes reads.
        let ends = [32, 64, 128, 256, 512, 1024].map(|kib| kib * 1024);
        let bucket = ends.iter().filter(|&&end| length >= end).count();
        let of_group = Group::ALL.iter().position(|&it| it == group).unwrap();
        let op = of_group + if self.over.buckets { bucket * 3 } else { 0 };
        let views = &self.views;
        let is_live = |path: usize| views[path].enabled && ANA[..2].contains(&views[path].ana);
        let expected = self.model.select(op, is_live);
        let chosen = self.selector.select(&request, views);
        assert_eq!(chosen.map(|path| usize::from(path.0)), expected);
        let ticket = self.selector.ticket();
        self.in_flight
            .extend(chosen.map(|path| (path, group, op, ticket)));
    }

    fn complete(&mut self) {
        let which = self.random.below(self.in_flight.len() as u64) as usize;
        let (path, group, op, ticket) = self.in_flight.swap_remove(which);
        let latency_ns = self.random.latency();
        self.now_ns += self.random.below(3) * self.random.below(1_000_000);
        let noted = self.selector.complete(&Completion {
            group,
            ticket,
            ..good(path.0, latency_ns, self.now_ns)
        });
        let (ns, now) = (usize::from(path.0), self.now_ns);
        let (weigh, ignored) = self.model.add_sample(ns, op, latency_ns, now);
        // Differs: one warning in 5 s, where the document says "rate limited".
        let is_quiet = |warned_ns: u64| now - warned_ns >= 5 * NSEC_PER_SEC;
        let warn_ignored = ignored && self.warned_ns.is_none_or(is_quiet);
        if warn_ignored {
            self.warned_ns = Some(now);
        }
        let expected = Noted {
            weigh,
            warn_ignored,
        };
        assert_eq!(noted, expected);
    }

    fn change(&mut self) {
        let path = self.random.below(self.views.len() as u64) as usize;
        match self.random.below(4) {
            0 => self.set_knobs(),
            1 => {
                // Differs: the document resets all paths of a head that was resized.
                self.selector.reset_path(PathIndex(path as u8));
                self.model.reset(path);
            }
            _ => {
                self.views[path].enabled = self.random.below(8) > 0;
                self.views[path].ana = ANA[(self.random.below(9) as usize).saturating_sub(4)];
            }
        }
    }

    fn check(&self) {
        for (path, groups) in self.model.paths.iter().enumerate() {
            for (op, stat) in groups.iter().enumerate() {
                let expected = PathStats {
                    weight: stat.weight,
                    credit: stat.credit,
                    score: stat.score,
                    smoothed_ns: stat.slat_ns,
                    selections: stat.sel,
                    samples: stat.nr_samples,
                    ignored: stat.nr_ignored,
                };
                let path = PathIndex(path as u8);
                let of = self.selector.bucket_stats(path, Group::ALL[op % 3], op / 3);
                assert_eq!(of, expected, "{path:?}, cell {op}");
            }
        }
    }
}

#[test]
fn a2_to_a6_agree_with_the_letter_of_the_document() {
    let more = std::env::var("BRAID_ORACLE_SELECTIONS");
    let all = more.map_or(SELECTIONS, |text| text.parse().unwrap());
    for buckets in [false, true] {
        let over = Aggregate {
            per_numa: false,
            buckets,
        };
        let mut seed = 0x9e37_79b9_7f4a_7c15;
        for _ in 0..all.div_ceil(20_000) {
            let mut pair = Pair::new(over, Random(seed));
            for io in 0..20_000 {
                pair.select();
                let busy = pair.in_flight.len() as u64;
                if busy > 0 && pair.random.below(32) < busy {
                    pair.complete();
                }
                if pair.random.below(4) == 0 {
                    pair.selector.weigh();
                    pair.model.weight_work();
                }
                if pair.random.below(512) == 0 {
                    pair.change();
                }
                if io % 64 == 0 {
                    pair.check();
                }
            }
            pair.check();
            seed = pair.random.next() | 1;
        }
    }
}
