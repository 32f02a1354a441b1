//! The best that could be had: many rules that know the true figures, searched.
//!
//! # Contract
//! A bound found so is not proven: it is the best of static splits, windows, orders of filling and
//! clairvoyant rules. A policy above it is a defect of the list. [`value`] is what is compared:
//! higher is better.
use crate::plan::{JobPlan, Plan, Rule};
use crate::rule::{Wanted, servers, service_ns};
use crate::tally::Tally;
use alloc::vec::Vec;

/// Stripes to try: of a stream that reads far ahead the best is nearly twice that.
const STRIPES_KIB: [u64; 10] = [
    128,
    256,
    1 << 10,
    2 << 10,
    4 << 10,
    8 << 10,
    12 << 10,
    14 << 10,
    16 << 10,
    32 << 10,
];
/// Steps of a split or window between two paths.
const STEPS: u32 = 16;
/// Caps to which the first path is filled.
const CAPS: [u32; 14] = [1, 2, 4, 8, 12, 16, 20, 28, 40, 56, 80, 112, 160, 224];
/// Capacity times latency of a path, in sixteenths, to which it is filled.
const FILLS: [u64; 7] = [12, 16, 18, 22, 28, 6, 9];
/// Weights of waiting, in eighths.
const WEIGHTS: [u32; 7] = [0, 2, 8, 16, 32, 128, 512];
const REPLAYS: [u32; 9] = [0, 2, 4, 8, 16, 32, 64, 128, 512];

/// Whether I/Os come at their own times, so that the latency is what a policy can change.
pub fn is_open(plan: &Plan) -> bool {
    plan.jobs.iter().any(|job| job.iops > 0)
}

/// Whether places matter: rules that go by them are tried as well.
pub fn has_streams(plan: &Plan) -> bool {
    plan.mirror || plan.jobs.iter().any(|job| job.sequential)
}

/// The value of a run: bytes per second; of an open one, the inverse of its mean latency.
pub fn value(plan: &Plan, tally: &Tally) -> u64 {
    if is_open(plan) {
        1_000_000_000_000_000 / tally.mean_ns().max(1)
    } else {
        tally.bytes_per_s()
    }
}

/// The static splits of a plan.
pub fn splits(plan: &Plan) -> Vec<Rule> {
    shares(plan).into_iter().map(Rule::Split).collect()
}

/// Every rule of the search.
pub fn rules(plan: &Plan) -> Vec<Rule> {
    let mut rules = splits(plan);
    for share in shares(plan) {
        if share.iter().all(|&part| part > 0) {
            for bytes in [false, true] {
                let share = share.clone();
                rules.push(Rule::Window { share, bytes });
            }
        }
    }
    rules.extend(WEIGHTS.map(Rule::Clairvoyant));
    rules.extend(REPLAYS.map(Rule::Replay));
    let order = by_latency(plan);
    for fill in FILLS {
        let caps = (0..plan.paths.len()).map(|path| {
            (capacity(plan, path) * latency_ns(plan, path) / 1_000_000_000 * fill / 16) as u32
        });
        let caps = caps.map(|cap| cap.max(1)).collect();
        let order = order.clone();
        rules.push(Rule::Fill { order, caps });
    }
    if plan.paths.len() == 2 {
        for cap in CAPS {
            for order in [vec![0, 1], vec![1, 0]] {
                let mut caps = vec![u32::MAX; 2];
                caps[order[0]] = cap;
                rules.push(Rule::Fill { order, caps });
            }
        }
    }
    if has_streams(plan) {
        rules.extend(STRIPES_KIB.map(|kib| Rule::Stripe(kib << 10)));
        rules.extend([Rule::Region, Rule::Job]);
    }
    rules
}

/// Shares to try: all in sixteenths between two paths; between more, by capacity, equal, and each
/// alone.
fn shares(plan: &Plan) -> Vec<Vec<u32>> {
    let paths = plan.paths.len();
    if paths == 2 {
        return (0..=STEPS).map(|part| vec![part, STEPS - part]).collect();
    }
    let mut shares: Vec<Vec<u32>> = (0..paths)
        .map(|alone| (0..paths).map(|path| u32::from(path == alone)).collect())
        .collect();
    shares.push(vec![1; paths]);
    shares.push(
        (0..paths)
            .map(|path| capacity(plan, path).max(1) as u32)
            .collect(),
    );
    shares
}

/// Mean size of the I/Os of such jobs, bytes.
pub fn mean_bytes<'a>(jobs: impl Iterator<Item = &'a JobPlan> + Clone) -> u64 {
    let sizes = jobs.flat_map(|job| &job.sizes);
    let sizes = sizes.map(|&(size, weight)| (u64::from(size), u64::from(weight)));
    let bytes: u64 = sizes.clone().map(|(size, weight)| size * weight).sum();
    bytes / sizes.map(|it| it.1).sum::<u64>().max(1)
}

/// A usual I/O of the plan: mean bytes, and the more frequent direction.
fn usual(plan: &Plan) -> Wanted {
    Wanted {
        bytes: mean_bytes(plan.jobs.iter()) as u32,
        write: plan.jobs.iter().all(|job| job.write_percent > 50),
        address: 0,
        job: 0,
        now_ns: 0,
    }
}

/// I/Os per second that all paths together can carry at most, if `job` were all there is.
pub fn capacity_of_all(plan: &Plan, job: &JobPlan) -> u64 {
    let alone = Plan {
        jobs: vec![job.clone()],
        ..plan.clone()
    };
    (0..plan.paths.len())
        .map(|path| capacity(&alone, path))
        .sum()
}

/// Usual I/Os per second that a path can carry.
fn capacity(plan: &Plan, path: usize) -> u64 {
    let (it, usual) = (&plan.paths[path], usual(plan));
    let device = &plan.devices[it.device];
    let served = u64::from(servers(device)) * 1_000_000_000 / service_ns(device, usual).max(1);
    let free = 100 - u64::from(it.cross_percent.min(99));
    match it.bytes_per_s {
        0 => served,
        rate => served.min(rate / 100 * free / u64::from(usual.bytes.max(1))),
    }
}

/// Latency of a usual I/O on an empty path.
fn latency_ns(plan: &Plan, path: usize) -> u64 {
    let (it, usual) = (&plan.paths[path], usual(plan));
    let transfer = match it.bytes_per_s {
        0 => 0,
        rate => u64::from(usual.bytes) * 1_000_000_000 / rate,
    };
    2 * it.delay_ns + it.jitter_ns + service_ns(&plan.devices[it.device], usual) + transfer
}

fn by_latency(plan: &Plan) -> Vec<usize> {
    let mut order: Vec<usize> = (0..plan.paths.len()).collect();
    order.sort_by_key(|&path| latency_ns(plan, path));
    order
}
