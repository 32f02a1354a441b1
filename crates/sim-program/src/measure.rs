//! Runs scenarios under policies, several at once, and works out what each came to.
use super::bounds::{Bound, Kept, search};
use super::scenario::Scenario;
use anyhow::{Context, anyhow};
use policy::{Knobs, Policy};
use sim::limits::SERIES_NS;
use sim::{Plan, Tally, Way, bound};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use terminal::limits::THREADS_MAX;

/// A policy as a column of the table: its name there, and how it is run.
#[derive(Clone, Debug)]
pub struct Column {
    /// As shown.
    pub name: String,
    /// The policy.
    pub policy: Policy,
    /// Knobs of weighted-latency.
    pub knobs: Knobs,
    /// Late reads get second copies.
    pub hedged: bool,
}

impl Column {
    fn way(&self) -> Way {
        match self.hedged {
            true => Way::Hedged(self.policy, self.knobs),
            false => Way::Policy(self.policy, self.knobs),
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

/// One piece of work.
enum Task {
    Bound(usize),
    Cell(usize, usize),
}

/// Results that are ready before their row is complete.
#[derive(Clone, Default)]
struct Half {
    bound: Option<Bound>,
    tallies: Vec<Option<Tally>>,
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
    let mut tasks: Vec<Task> = (0..scenarios.len()).map(Task::Bound).collect();
    for (row, columns) in columns.iter().enumerate() {
        tasks.extend((0..columns.len()).map(|column| Task::Cell(row, column)));
    }
    let half = |columns: &Vec<Column>| Half {
        bound: None,
        tallies: vec![None; columns.len()],
    };
    let halves = Mutex::new(columns.iter().map(half).collect());
    let failure = Mutex::new(None);
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(why) = perform(task, &scenarios, &columns, seed, kept, &halves) {
                lock(&failure).get_or_insert(why);
                return;
            }
            each(done.fetch_add(1, Ordering::Relaxed) + 1, tasks.len());
        }
    };
    each(0, tasks.len());
    std::thread::scope(|scope| {
        for _ in 1..threads.min(tasks.len()).min(THREADS_MAX) {
            let thread = std::thread::Builder::new().spawn_scoped(scope, work);
            // No room for one more: those that are there do it.
            if thread.is_err() {
                break;
            }
        }
        work();
    });
    if let Some(why) = lock(&failure).take() {
        return Err(why);
    }
    let halves = std::mem::take(&mut *lock(&halves));
    let rows = scenarios.into_iter().zip(columns).zip(halves);
    rows.map(|((scenario, columns), half)| row(scenario, columns, half))
        .collect()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn perform(
    task: &Task,
    scenarios: &[Scenario],
    columns: &[Vec<Column>],
    seed: u64,
    kept: &Kept,
    halves: &Mutex<Vec<Half>>,
) -> anyhow::Result<()> {
    match *task {
        Task::Bound(row) => {
            let scenario = &scenarios[row];
            let bound = match kept.find(scenario, seed) {
                Some(bound) => bound,
                None => search(scenario, seed).with_context(|| scenario.name.clone())?,
            };
            lock(halves)[row].bound = Some(bound);
        }
        Task::Cell(row, column) => {
            let scenario = &scenarios[row];
            let Column { policy, .. } = columns[row][column];
            let fits = policy.check(scenario.plan.paths.len());
            fits.map_err(|why| anyhow!("{}: {policy}: {why}", scenario.name))?;
            let tally = sim::run(&scenario.plan, &columns[row][column].way(), seed)
                .map_err(|why| anyhow!("{}: {why}", scenario.name))?;
            lock(halves)[row].tallies[column] = Some(tally);
        }
    }
    Ok(())
}

fn row(scenario: Scenario, columns: Vec<Column>, half: Half) -> anyhow::Result<Row> {
    let bound = half.bound.context("every scenario has a bound")?;
    let cell = |tally: Option<Tally>| {
        let tally = tally.context("every cell was run")?;
        Ok(cell(&scenario, &bound, tally))
    };
    let cells = half.tallies.into_iter().map(cell);
    let cells = cells.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(Row {
        bound,
        columns,
        cells,
        scenario,
    })
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
