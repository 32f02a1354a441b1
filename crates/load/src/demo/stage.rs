//! The target with its two ports, the host with its paths, and the measurements in their order.
//!
//! # Contract
//! The host has volumes over the same two ports: fast alone, slow alone, and for each cell one over
//! both, so that a policy goes on with what it knows in the next round. One task runs at a time, so
//! what is not measured is idle.
use super::cells::{Cell, Op, Outcome};
use super::model::{Alone, Check, Setup};
use super::times::{MS, Times, WINDOW_NS};
use crate::host::{Host, HostPlan};
use crate::progress::Progress;
use crate::stats::Stats;
use crate::words::Words;
use crate::worker::buffer_bytes;
use anyhow::{Context, anyhow, bail};
use paths::ends::{FileAccess, VolumePlan};
use paths::identity;
use paths::uri::{PathKeys, PathUri};
use policy::{Hedging, Knobs, Policy};
use std::sync::Arc;
use std::time::{Duration, Instant};
use target::{Embedded, EmbeddedConfig, embedded};
use terminal::cpus;
use terminal::output;
use terminal::signals::Interrupt;

const SETUP: Setup = Setup {
    outstanding: 1024,
    block: 4096,
    fast_bytes_per_s: 300 << 20,
    slow_delay_ns: 30_000_000,
};
const NAMESPACE: &str = "mem:256MiB";
/// How often a measurement is tried in which no I/O ends.
const ATTEMPTS: u32 = 5;

/// A volume of the host.
#[derive(Clone, Copy)]
enum Over {
    Fast,
    Slow,
    /// Both paths, by the number of the cell.
    Cell(usize),
}

impl Over {
    fn volume(self) -> usize {
        match self {
            Self::Fast => 0,
            Self::Slow => 1,
            Self::Cell(number) => 2 + number,
        }
    }
}

/// All cells of the table, and how they are measured.
#[derive(Clone, Copy)]
pub struct Cells<'a> {
    /// Rows of three cells each.
    pub policies: &'a [Policy],
    /// Second copies of late reads.
    pub hedging: Hedging,
    /// Cores of the host, 1 or 2.
    pub cores: u16,
    /// How long.
    pub times: Times,
}

/// Policy and operation of a cell.
#[derive(Clone, Copy)]
struct CellPlan {
    policy: Policy,
    op: Op,
}

/// Target and host.
struct Stage {
    target: Embedded,
    host: Host,
    /// Names of both paths.
    names: [String; 2],
    cores: usize,
    times: Times,
    progress: Progress,
    /// Of the tasks so far.
    done: Duration,
}

/// The user wants no more.
struct Interrupted;

/// Measures everything.
///
/// # Errors
/// Target or host can't be had, or are lost; interrupted before the first cell.
pub fn perform(cells: Cells<'_>, interrupt: Interrupt) -> anyhow::Result<Outcome> {
    let (begin, times) = (Instant::now(), cells.times);
    let plans: Vec<CellPlan> = cells
        .policies
        .iter()
        .flat_map(|&policy| Op::ALL.map(|op| CellPlan { policy, op }))
        .collect();
    let mut stage = Stage::build(cells, interrupt)?;
    let alone = stage.alone()?;
    let (mut windows, mut rounds, mut interrupted) = (vec![Vec::new(); plans.len()], 0, false);
    let (waited_before, measuring) = (run_delay_ns(), Instant::now());
    // How much longer than planned the last round took.
    let mut slowness = 1.0;
    for round in 0..times.rounds {
        let expected = times.round(cells.policies, round).mul_f64(slowness);
        let is_late = |limit| begin.elapsed() + expected > limit;
        if interrupted || (round > 0 && times.limit.is_some_and(is_late)) {
            break;
        }
        rounds += 1;
        let round_begin = Instant::now();
        let mut order: Vec<usize> = (0..plans.len()).collect();
        // Forth and back, so that a machine that drifts does so for all.
        if round % 2 == 1 {
            order.reverse();
        }
        for number in order {
            match stage.cell(number, plans[number], round)? {
                Ok(stats) => windows[number].push(stats),
                Err(Interrupted) => {
                    interrupted = true;
                    break;
                }
            }
        }
        let planned = times.round(cells.policies, round);
        slowness =
            round_begin.elapsed().as_secs_f64() / planned.as_secs_f64().max(f64::MIN_POSITIVE);
    }
    let measured = measuring.elapsed();
    let delayed_ns = run_delay_ns().zip(waited_before);
    let measured_cells = plans.iter().zip(&windows);
    let outcome = Outcome {
        setup: SETUP,
        alone,
        cells: measured_cells
            .filter_map(|(plan, windows)| cell(*plan, windows))
            .collect(),
        seconds: rounds as f64 * times.round_ns as f64 / 1e9,
        rounds,
        cores: cells.cores,
        waited: delayed_ns.map(|(after, before)| {
            // The target's thread and the host's.
            let threads = 1 + u128::from(cells.cores);
            after.saturating_sub(before) as f64 / (threads * measured.as_nanos()) as f64
        }),
        window_ns: WINDOW_NS,
        interrupted,
    };
    stage.progress.finish();
    stage.host.stop()?;
    stage.target.stop()?;
    Ok(outcome)
}

/// The figures of a cell, if it was measured at all.
fn cell(plan: CellPlan, windows: &[Stats]) -> Option<Cell> {
    let (first, later) = windows.split_first()?;
    let mut stats = first.clone();
    later.iter().for_each(|window| stats.append(window));
    let rounds = windows.iter().map(|it| it.mib_s(it.total().bytes));
    Some(Cell::new(plan.policy, plan.op, &stats, rounds.collect()))
}

/// Time that this process's threads were runnable but had no CPU, ns; `None`: not told.
fn run_delay_ns() -> Option<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        sum += text.split_whitespace().nth(1)?.parse::<u64>().ok()?;
    }
    Some(sum)
}

impl Stage {
    fn build(cells: Cells<'_>, interrupt: Interrupt) -> anyhow::Result<Self> {
        let [target_cpu, host_cpu] = cpus::two_apart()?;
        if host_cpu.is_none() {
            output::note("only one CPU may be used: target and host share it, and figures suffer");
        }
        let host_cpus: Vec<_> = [host_cpu, target_cpu]
            .into_iter()
            .take(cells.cores.into())
            .collect();
        let target = embedded(&EmbeddedConfig {
            backend: NAMESPACE.parse()?,
            shapes: vec![fast(), slow()],
            cpu: target_cpu,
            spin: false,
        })
        .context("cannot start the target")?;
        let uris: Vec<String> = target
            .addresses()
            .iter()
            .map(|address| format!("nvme-tcp://{address}/{}?nsid=1", target.nqn))
            .collect();
        let [fast, slow] = &uris[..] else {
            bail!("the target has not two ports")
        };
        let plan = plan([fast, slow], cells, &host_cpus)?;
        let host = Host::start(&plan, interrupt).context("cannot start the host")?;
        Ok(Self {
            names: ["fast".to_owned(), "slow".to_owned()],
            progress: Progress::new(Some(cells.times.total(cells.policies))),
            target,
            host,
            cores: cells.cores.into(),
            times: cells.times,
            done: Duration::ZERO,
        })
    }

    /// Each path alone, reads and writes; once more where a model does not hold.
    fn alone(&mut self) -> anyhow::Result<[Alone; 2]> {
        let mut both = Vec::new();
        for op in [Op::Read, Op::Write] {
            let mut alone = self.alone_once(op)?;
            for _ in 1..self.times.attempts {
                if SETUP.checks(&alone).iter().all(Check::holds) {
                    break;
                }
                alone = self.alone_once(op)?;
            }
            both.push(alone);
        }
        both.try_into()
            .map_err(|_| anyhow!("reads and writes are two"))
    }

    fn alone_once(&mut self, op: Op) -> anyhow::Result<Alone> {
        // A target that has to wait pays for one more sleep. So that the transport's own latency
        // has it in, it is measured with a wait of the same length, which is then taken off.
        let wait_ns = SETUP.fast_service_ns();
        let waiting = shape::Config {
            delay_ns: wait_ns as u64,
            ..Default::default()
        };
        // In the order a b b a, so that a machine that drifts does so for both.
        let mut bare = self.one_at_a_time("transport", Some(waiting), Over::Fast, op)?;
        let mut fast = self.one_at_a_time("fast", Some(self::fast()), Over::Fast, op)?;
        fast.merge(&self.one_at_a_time("fast", None, Over::Fast, op)?);
        bare.merge(&self.one_at_a_time("transport", Some(waiting), Over::Fast, op)?);
        let slow = self.one_at_a_time("slow", Some(self::fast()), Over::Slow, op)?;
        let median_ns = |stats: &Stats| stats.total().quantile_ns(0.5);
        Ok(Alone {
            bare_ns: median_ns(&bare) - wait_ns,
            fast_ns: median_ns(&fast),
            slow_ns: median_ns(&slow),
            fast_mib_s: self.all_at_once("fast", Over::Fast, op)?,
            slow_mib_s: self.all_at_once("slow", Over::Slow, op)?,
        })
    }

    /// Latencies; before that port fast gets a new shape.
    fn one_at_a_time(
        &mut self,
        name: &str,
        shape: Option<shape::Config>,
        over: Over,
        op: Op,
    ) -> anyhow::Result<Stats> {
        if let Some(shape) = shape {
            self.target.shape(0, shape);
        }
        let label = format!("{name} alone, {}, one at a time", op.name());
        let times = match over {
            Over::Slow => self.times.alone_slow(),
            Over::Fast | Over::Cell(_) => self.times.alone_fast(),
        };
        self.needed(&label, over, op, 1, times)
    }

    /// MiB/s.
    fn all_at_once(&mut self, name: &str, over: Over, op: Op) -> anyhow::Result<f64> {
        let label = format!("{name} alone, {}, all at once", op.name());
        let times = self.times.alone_all();
        let stats = self.needed(&label, over, op, SETUP.outstanding, times)?;
        Ok(stats.mib_s(stats.total().bytes))
    }

    /// A cell in one round.
    fn cell(
        &mut self,
        number: usize,
        CellPlan { policy, op }: CellPlan,
        round: u64,
    ) -> anyhow::Result<Result<Stats, Interrupted>> {
        let label = format!("{policy} {}", op.name());
        let times = self.times.cell(policy, round);
        self.measure(&label, Over::Cell(number), op, SETUP.outstanding, times)
    }

    /// A measurement without which nothing can be shown.
    fn needed(
        &mut self,
        label: &str,
        over: Over,
        op: Op,
        iodepth: u32,
        times: (u64, u64),
    ) -> anyhow::Result<Stats> {
        for _ in 0..ATTEMPTS {
            match self.measure(label, over, op, iodepth, times)? {
                Ok(stats) if stats.errors > 0 => bail!("{label}: {}", stats.failures.join("; ")),
                // On a machine with other work not one I/O may end in so short a time.
                Ok(stats) if stats.total().ios == 0 => {}
                Ok(stats) => return Ok(stats),
                Err(Interrupted) => bail!("interrupted before the first cell was measured"),
            }
        }
        bail!("{label}: no I/O ended in time, {ATTEMPTS} times: this machine is too busy")
    }

    fn measure(
        &mut self,
        label: &str,
        over: Over,
        op: Op,
        iodepth: u32,
        (warmup_ns, runtime_ns): (u64, u64),
    ) -> anyhow::Result<Result<Stats, Interrupted>> {
        let volume = over.volume();
        let uris: Arc<[String]> = match over {
            Over::Fast => self.names[..1].into(),
            Over::Slow => self.names[1..].into(),
            Over::Cell(_) => self.names[..].into(),
        };
        let info = self.host.volumes().get(volume);
        // One at a time is that of one core.
        let cores = self.cores.min(iodepth as usize);
        let words = format!(
            "--rw={} --bs={} --iodepth={} --ramp-time={warmup_ns}ns --runtime={runtime_ns}ns",
            op.rw(),
            SETUP.block,
            iodepth / cores as u32,
        );
        let words = Words::of(&words)?;
        let tasks = words.tasks(volume as u16, info.context("no such volume")?, &uris, cores)?;
        self.progress.begin(label, self.done);
        let finished = self.host.run(tasks, &mut self.progress)?;
        self.done += Duration::from_nanos(warmup_ns + runtime_ns);
        if let Some(why) = finished.failed {
            bail!("{label}: {why}");
        }
        Ok(match finished.interrupted {
            true => Err(Interrupted),
            false => Ok(finished.stats),
        })
    }
}

fn plan(
    [fast, slow]: [&str; 2],
    cells: Cells<'_>,
    cpus: &[Option<usize>],
) -> anyhow::Result<HostPlan> {
    let path = |uri: &str, distance| -> anyhow::Result<PathKeys> {
        let keys = PathKeys::from(uri.parse::<PathUri>()?);
        Ok(PathKeys { distance, ..keys })
    };
    // The slow path is the nearest one, so that `numa` shows what a fixed choice may cost.
    let (fast, slow) = (path(fast, 20)?, path(slow, 10)?);
    let volume = |name: &str, policy, hedging, paths| VolumePlan {
        name: name.to_owned(),
        policy,
        knobs: Knobs {
            ewma_shift: 3,
            weight_timeout_ns: WINDOW_NS,
            hedging,
        },
        paths,
        access: FileAccess::Shared,
        quiesce_ns: engine::host::Recovery::default().quiesce_ns,
    };
    let alone = |name, path: &PathKeys| {
        let hedging = Knobs::default().hedging;
        volume(name, Policy::Numa, hedging, vec![path.clone()])
    };
    let mut volumes = vec![alone("fast alone", &fast), alone("slow alone", &slow)];
    for &policy in cells.policies {
        let both = vec![fast.clone(), slow.clone()];
        let cell = |op: Op| volume(op.name(), policy, cells.hedging, both.clone());
        volumes.extend(Op::ALL.map(cell));
    }
    Ok(HostPlan {
        volumes,
        cores: cpus.to_vec(),
        polling: runtime::Polling::default(),
        identity: identity::ephemeral(),
        digests: nvme::host::Digests::default(),
        connect_timeout_ns: 5_000 * MS,
        io_timeout_ns: 30_000 * MS,
        outstanding: SETUP.outstanding,
        arena_bytes: u64::from(SETUP.outstanding) * u64::from(buffer_bytes(SETUP.block)),
    })
}

fn fast() -> shape::Config {
    shape::Config {
        bytes_per_s: SETUP.fast_bytes_per_s,
        ..Default::default()
    }
}

fn slow() -> shape::Config {
    shape::Config {
        delay_ns: SETUP.slow_delay_ns,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slow_path_is_the_nearest() {
        let cells = Cells {
            policies: &[Policy::QueueDepth],
            hedging: Hedging::Auto,
            cores: 1,
            times: Times::QUICK,
        };
        let [fast, slow] = ["nvme-tcp://h:1/nqn.x", "nvme-tcp://h:2/nqn.x"];
        let plan = plan([fast, slow], cells, &[None]).unwrap();
        let volume = &plan.volumes[Over::Cell(2).volume()];
        assert_eq!(
            (&*volume.name, volume.policy),
            ("mixed", Policy::QueueDepth)
        );
        let [fast, slow] = &volume.paths[..] else {
            panic!()
        };
        assert!(slow.distance < fast.distance);
        assert_eq!(plan.arena_bytes, 4 << 20);
    }
}
