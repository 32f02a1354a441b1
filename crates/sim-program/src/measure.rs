//! Runs scenarios under policies, several at once, and works out what each came to.
use super::bounds::{Bound, Kept, search};
use super::scenario::{Long, Scenario};
use anyhow::{Context, anyhow};
use policy::{Knobs, Policy};
use program::{Program, State};
use sim::limits::SERIES_NS;
use sim::{Plan, Tally, Way, bound};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use terminal::limits::THREADS_MAX;

/// A program, and how it did in all worlds together.
#[derive(Debug)]
pub struct Tried {
    program: Program,
    state: Mutex<State>,
}

impl Tried {
    /// It has not been in a world yet.
    pub fn new(program: Program) -> Self {
        let state = Mutex::default();
        Self { program, state }
    }

    /// How it did.
    pub fn state(&self) -> State {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a world happen. One that is taken out there still chooses in other worlds, so that
    /// these are the same in any order.
    fn run(&self, plan: &Plan, way: &Way, seed: u64) -> anyhow::Result<Tally> {
        let program = self.program.anew();
        let cores: usize = plan.hosts.iter().map(|host| host.cpus).sum();
        let runners = (0..cores).map(|_| program.runner(None));
        let mut runners = runners.collect::<Result<Vec<_>, _>>()?.into_iter();
        let next = || Some(Box::new(runners.next()?) as Box<dyn policy::Program>);
        let tally = sim::run_with(plan, way, seed, next)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.add(&program.state());
        Ok(tally)
    }
}

/// A policy as a column of the table: its name there, and how it is run.
#[derive(Clone, Debug)]
pub struct Column {
    /// As shown.
    pub name: String,
    /// The policy.
    pub policy: Policy,
    /// Where that is a program.
    pub program: Option<Arc<Tried>>,
    /// Knobs of weighted-latency.
    pub knobs: Knobs,
    /// Late reads get second copies.
    pub hedged: bool,
    /// Runs for so long; else as the scenario says.
    pub long: Option<Long>,
}

impl Column {
    fn way(&self) -> Way {
        match self.hedged {
            true => Way::Hedged(self.policy, self.knobs),
            false => Way::Policy(self.policy, self.knobs),
        }
    }

    /// Lets a world happen.
    fn run(&self, plan: &Plan, seed: u64) -> anyhow::Result<Tally> {
        match &self.program {
            Some(program) => program.run(plan, &self.way(), seed),
            None => Ok(sim::run(plan, &self.way(), seed)?),
        }
    }
}

/// Result of a policy in a scenario.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Everything measured.
    pub tally: Tally,
    /// Bytes per second; of an open scenario, mean latency in ns.
    pub value: u64,
    /// Of the bound; 1 is as good.
    pub of_bound: f64,
    /// 99 % latency beside that of the best static split.
    pub p99_of_static: f64,
    /// Until it is at 95 % of what is then possible; `None`: never, or there is no step.
    pub adapt_ms: Option<u64>,
}

/// A scenario with all that came of it.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which.
    pub scenario: Scenario,
    /// Its bound.
    pub bound: Bound,
    /// The policies: those of all rows, then those of its own.
    pub columns: Vec<Column>,
    /// One cell per column.
    pub cells: Vec<Cell>,
}

impl Row {
    /// Whether what counts is the latency.
    pub fn is_open(&self) -> bool {
        bound::is_open(&self.scenario.plan)
    }

    /// Its unit, as shown and in JSON, and how much of what is measured that is.
    pub fn unit(&self) -> ([&'static str; 2], f64) {
        match self.is_open() {
            true => (["µs", "us"], 1e3),
            false => (["MB/s"; 2], 1e6),
        }
    }
}

/// Throughput after the step at `step_ns`, of the last half of the time until the next event, or
/// the end: bytes per second.
pub fn after_step(plan: &Plan, tally: &Tally, step_ns: u64) -> u64 {
    let (from, to) = span(plan, step_ns);
    let half = from + (to - from) / 2;
    let points = tally.series.get(half..to).unwrap_or(&[]);
    let bytes: u64 = points.iter().sum();
    let time_ns = u128::from(SERIES_NS) * points.len().max(1) as u128;
    (u128::from(bytes) * 1_000_000_000 / time_ns) as u64
}

/// Points of the series from the step to the next event.
fn span(plan: &Plan, step_ns: u64) -> (usize, usize) {
    let end_ns = plan.warm_ns + plan.run_ns;
    let next = plan
        .events
        .iter()
        .map(|it| it.at_ns)
        .filter(|&at| at > step_ns)
        .min();
    let from = step_ns.div_ceil(SERIES_NS);
    let to = next.unwrap_or(end_ns) / SERIES_NS;
    (from as usize, to.max(from) as usize)
}

/// When five points in a row, from the step on, hold 95 % of `possible` bytes per second: the end
/// of the first such five, in ms after the step.
fn adapted_ms(plan: &Plan, tally: &Tally, step_ns: u64, possible: u64) -> Option<u64> {
    const POINTS: usize = 5;
    let (from, to) = span(plan, step_ns);
    let wanted = u128::from(possible) * u128::from(SERIES_NS) * POINTS as u128 * 95 / 100;
    let windows = tally.series.get(from..to)?.windows(POINTS);
    let good = |points: &[u64]| u128::from(points.iter().sum::<u64>()) * 1_000_000_000 >= wanted;
    let first = windows.into_iter().position(good)?;
    Some(first as u64 * SERIES_NS / 1_000_000)
}

/// Runs every scenario under its columns, on at most `threads` threads; `each` is told how much is
/// done.
///
/// # Errors
/// A scenario can't be run: which and why.
pub fn measure(
    scenarios: Vec<Scenario>,
    columns: impl Fn(&Scenario) -> Vec<Column>,
    seed: u64,
    threads: usize,
    kept: &Kept,
    each: impl Fn(usize, usize) + Sync,
) -> anyhow::Result<Vec<Row>> {
    let columns: Vec<Vec<Column>> = scenarios.iter().map(columns).collect();
    let cells = |row: usize| columns[row].iter().map(move |column| (row, column));
    let cells: Vec<(usize, &Column)> = (0..scenarios.len()).flat_map(cells).collect();
    let (all, done) = (scenarios.len() + cells.len(), AtomicUsize::new(0));
    let one_more = || each(done.fetch_add(1, Ordering::Relaxed) + 1, all);
    each(0, all);
    let bounds = at_once(&scenarios, threads, |scenario| {
        let bound = match kept.find(scenario, seed) {
            Some(bound) => bound,
            None => search(scenario, seed).with_context(|| scenario.name.clone())?,
        };
        one_more();
        Ok(bound)
    })?;
    let tallies = at_once(&cells, threads, |&(row, column)| {
        let (scenario, policy) = (&scenarios[row], column.policy);
        let fits = policy.check(scenario.plan.paths.len());
        fits.map_err(|why| anyhow!("{}: {policy}: {why}", scenario.name))?;
        let long = column.long.map(|long| long.of(&scenario.plan));
        let plan = long.as_ref().unwrap_or(&scenario.plan);
        let tally = column.run(plan, seed);
        let tally = tally.map_err(|why| anyhow!("{}: {why}", scenario.name))?;
        one_more();
        Ok(tally)
    })?;
    let mut tallies = tallies.into_iter();
    let rows = scenarios.into_iter().zip(columns).zip(bounds);
    let row = |((scenario, columns), bound): ((Scenario, Vec<Column>), Bound)| Row {
        cells: tallies
            .by_ref()
            .take(columns.len())
            .map(|tally| cell(&scenario, &bound, tally))
            .collect(),
        scenario,
        bound,
        columns,
    };
    Ok(rows.map(row).collect())
}

/// The results of `work`, in the order of `items`; after a failure no work begins.
fn at_once<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(BTreeMap::new());
    let run = || loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let Some(item) = items.get(number) else {
            return;
        };
        let result = work(item);
        if result.is_err() {
            next.store(items.len(), Ordering::Relaxed);
        }
        let results = results.lock();
        let mut results = results.unwrap_or_else(|poisoned| poisoned.into_inner());
        results.insert(number, result);
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()).min(THREADS_MAX) {
            let thread = std::thread::Builder::new().spawn_scoped(scope, run);
            // No room for one more: those that are there do it.
            if thread.is_err() {
                break;
            }
        }
        run();
    });
    let results = results.into_inner();
    let results = results.unwrap_or_else(|poisoned| poisoned.into_inner());
    results.into_values().collect()
}

fn cell(scenario: &Scenario, bound: &Bound, tally: Tally) -> Cell {
    let plan = &scenario.plan;
    let (value, of_bound) = if bound::is_open(plan) {
        let mean_ns = tally.mean_ns();
        // Work that was turned away has waited for ever.
        let overloaded = tally.turned_away > 0 || mean_ns == 0;
        let of_bound = bound.value as f64 / mean_ns.max(1) as f64;
        (mean_ns, if overloaded { 0.0 } else { of_bound })
    } else {
        let rate = tally.bytes_per_s();
        (rate, rate as f64 / bound.value.max(1) as f64)
    };
    let p99_of_static = tally.quantile_ns(990) as f64 / bound.static_p99_ns.max(1) as f64;
    let adapt_ms = scenario
        .step_ns
        .and_then(|step_ns| adapted_ms(plan, &tally, step_ns, bound.after_step));
    Cell {
        tally,
        value,
        of_bound,
        p99_of_static,
        adapt_ms,
    }
}
