//! The target with its two ports, the host with its paths, and the measurements in their order.
//!
//! # Contract
//! The host has three volumes over the same two ports: both paths, fast alone, slow alone. One task
//! runs at a time, so what is not measured is idle.
use super::cells::{Cell, Op, Outcome};
use super::model::{Alone, Check, Setup};
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
use std::time::Duration;
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
/// The window of weighted-latency. Its default of 15 s would make one cell a matter of minutes.
const WINDOW_NS: u64 = 50_000_000;
const NAMESPACE: &str = "mem:256MiB";
const MS: u64 = 1_000_000;
/// Warming up: some round trips of the slow path; for weighted-latency until its mean over many
/// windows (7/8 old, 1/8 new) has settled to 3 %.
const WARM_UP_NS: u64 = 500 * MS;
const WARM_UP_WEIGHTS_NS: u64 = 28 * WINDOW_NS;
/// How often a path that is off its model is measured, at most: a disturbance may have passed.
const ATTEMPTS: usize = 2;

/// A volume of the host.
#[derive(Clone, Copy)]
enum Over {
    Both,
    Fast,
    Slow,
}

/// Target and host.
struct Stage {
    target: Embedded,
    host: Host,
    uris: [Arc<[String]>; 3],
    seconds_ns: u64,
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
pub fn perform(
    policies: &[Policy],
    hedging: Hedging,
    seconds_ns: u64,
    interrupt: Interrupt,
) -> anyhow::Result<Outcome> {
    let mut stage = Stage::build(policies, seconds_ns, interrupt)?;
    let alone = stage.alone()?;
    let mut outcome = Outcome {
        setup: SETUP,
        alone,
        cells: Vec::new(),
        seconds: seconds_ns as f64 / 1e9,
        window_ns: WINDOW_NS,
        interrupted: false,
    };
    for &policy in policies {
        let knobs = Knobs { hedging, ..knobs() };
        stage.host.set_policy(Over::Both as u16, policy, knobs);
        for op in Op::ALL {
            if outcome.interrupted {
                break;
            }
            match stage.cell(policy, op)? {
                Ok(cell) => outcome.cells.push(cell),
                Err(Interrupted) => outcome.interrupted = true,
            }
        }
    }
    stage.progress.finish();
    stage.host.stop()?;
    stage.target.stop()?;
    Ok(outcome)
}

impl Stage {
    fn build(policies: &[Policy], seconds_ns: u64, interrupt: Interrupt) -> anyhow::Result<Self> {
        let [target_cpu, host_cpu] = cpus::two_apart()?;
        if host_cpu.is_none() {
            output::note("only one CPU may be used: target and host share it, and figures suffer");
        }
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
        let plan = plan(fast, slow, host_cpu)?;
        let host = Host::start(&plan, interrupt).context("cannot start the host")?;
        let names = ["fast".to_owned(), "slow".to_owned()];
        Ok(Self {
            uris: [names.clone().into(), names[..1].into(), names[1..].into()],
            progress: Progress::new(Some(total(policies, seconds_ns))),
            target,
            host,
            seconds_ns,
            done: Duration::ZERO,
        })
    }

    /// Each path alone, reads and writes; once more where a model does not hold.
    fn alone(&mut self) -> anyhow::Result<[Alone; 2]> {
        let mut both = Vec::new();
        for op in [Op::Read, Op::Write] {
            let mut alone = self.alone_once(op)?;
            for _ in 1..ATTEMPTS {
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
        let times = if matches!(over, Over::Slow) {
            ALONE_SLOW
        } else {
            ALONE_FAST
        };
        self.needed(&label, over, op, 1, no_longer(times, self.seconds_ns))
    }

    /// MiB/s.
    fn all_at_once(&mut self, name: &str, over: Over, op: Op) -> anyhow::Result<f64> {
        let label = format!("{name} alone, {}, all at once", op.name());
        let times = no_longer(ALONE_ALL, self.seconds_ns);
        let stats = self.needed(&label, over, op, SETUP.outstanding, times)?;
        Ok(stats.mib_s(stats.total().bytes))
    }

    fn cell(&mut self, policy: Policy, op: Op) -> anyhow::Result<Result<Cell, Interrupted>> {
        let label = format!("{policy} {}", op.name());
        let times = (warm_up_ns(policy, self.seconds_ns), self.seconds_ns);
        let measured = self.measure(&label, Over::Both, op, SETUP.outstanding, times)?;
        Ok(measured.map(|stats| Cell::new(policy, op, &stats)))
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
        match self.measure(label, over, op, iodepth, times)? {
            Ok(stats) if stats.errors == 0 => Ok(stats),
            Ok(stats) => bail!("{label}: {}", stats.failures.join("; ")),
            Err(Interrupted) => bail!("interrupted before the first cell was measured"),
        }
    }

    fn measure(
        &mut self,
        label: &str,
        over: Over,
        op: Op,
        iodepth: u32,
        (warmup_ns, runtime_ns): (u64, u64),
    ) -> anyhow::Result<Result<Stats, Interrupted>> {
        let (volume, uris) = (over as u16, &self.uris[over as usize]);
        let info = self.host.volumes().get(over as usize);
        let words = format!(
            "--rw={} --bs={} --iodepth={iodepth} --ramp-time={warmup_ns}ns \
             --runtime={runtime_ns}ns",
            op.rw(),
            SETUP.block
        );
        let words = Words::of(&words)?;
        let tasks = words.tasks(volume, info.context("no such volume")?, uris, 1)?;
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

/// Warming up and measuring one I/O at a time over the fast path, each of four times.
const ALONE_FAST: (u64, u64) = (50 * MS, 350 * MS);
/// The same over the slow path, which does some 30 of them per second.
const ALONE_SLOW: (u64, u64) = (100 * MS, 700 * MS);
/// Warming up and measuring all I/Os at once.
const ALONE_ALL: (u64, u64) = (300 * MS, 700 * MS);

fn plan(fast: &str, slow: &str, cpu: Option<usize>) -> anyhow::Result<HostPlan> {
    let path = |uri: &str, distance| -> anyhow::Result<PathKeys> {
        let keys = PathKeys::from(uri.parse::<PathUri>()?);
        Ok(PathKeys { distance, ..keys })
    };
    // The slow path is the nearest one, so that `numa` shows what a fixed choice may cost.
    let (fast, slow) = (path(fast, 20)?, path(slow, 10)?);
    let volume = |name: &str, paths| VolumePlan {
        name: name.to_owned(),
        policy: Policy::Numa,
        knobs: knobs(),
        paths,
        access: FileAccess::Shared,
        quiesce_ns: engine::host::Recovery::default().quiesce_ns,
    };
    Ok(HostPlan {
        volumes: vec![
            volume("both", vec![fast.clone(), slow.clone()]),
            volume("fast alone", vec![fast]),
            volume("slow alone", vec![slow]),
        ],
        cores: vec![cpu],
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

fn knobs() -> Knobs {
    Knobs {
        ewma_shift: 3,
        weight_timeout_ns: WINDOW_NS,
        ..Knobs::default()
    }
}

/// Times of a path alone, shorter where the cells are short.
fn no_longer((warm_up_ns, measure_ns): (u64, u64), seconds_ns: u64) -> (u64, u64) {
    (warm_up_ns.min(seconds_ns), measure_ns.min(2 * seconds_ns))
}

/// Short measurements warm up briefly.
fn warm_up_ns(policy: Policy, seconds_ns: u64) -> u64 {
    let settled = match policy {
        Policy::WeightedLatency(_) => WARM_UP_WEIGHTS_NS,
        _ => WARM_UP_NS,
    };
    settled.min(2 * seconds_ns)
}

/// How long it all takes if nothing has to be repeated.
fn total(policies: &[Policy], seconds_ns: u64) -> Duration {
    let sum = |times| {
        let (warm_up, measure) = no_longer(times, seconds_ns);
        warm_up + measure
    };
    let alone = 2 * (4 * sum(ALONE_FAST) + sum(ALONE_SLOW) + 2 * sum(ALONE_ALL));
    let cells = policies
        .iter()
        .map(|&policy| 3 * (warm_up_ns(policy, seconds_ns) + seconds_ns));
    Duration::from_nanos(alone + cells.sum::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_policies_take_less_than_a_minute_even_with_repetitions() {
        let policies = ["numa", "round-robin", "queue-depth", "weighted-latency"];
        let policies = policies.map(|name| Policy::parse(name).unwrap());
        let once = total(&policies, 2_500 * MS);
        let alone = total(&[], 2_500 * MS);
        assert!(
            once + alone < Duration::from_secs(58),
            "{once:?} + {alone:?}"
        );
    }

    #[test]
    fn the_slow_path_is_the_nearest() {
        let plan = plan("nvme-tcp://h:1/nqn.x", "nvme-tcp://h:2/nqn.x", None).unwrap();
        let [fast, slow] = &plan.volumes[0].paths[..] else {
            panic!()
        };
        assert!(slow.distance < fast.distance);
        assert_eq!(plan.arena_bytes, 4 << 20);
    }
}
