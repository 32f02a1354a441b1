//! `braid bench`: a load on a volume of one or several paths, in fio's words.
mod result;

use crate::host::{Host, HostPlan};
use crate::progress::Progress;
use crate::words::Words;
use anyhow::{Context, anyhow};
use paths::ends::{FileAccess, VolumePlan};
use paths::identity::{self, IdentityArgs};
use paths::limits::CORES_MAX;
use paths::uri::{PathKeys, PathUri, UriKind};
use policy::{Hedging, Knobs, Policy};
use result::BenchResult;
use std::sync::Arc;
use std::time::Duration;
use target::quantity::{CpuShare, Poll};
use terminal::exit::Usage;
use terminal::output::{self, Format, Style};
use terminal::signals::Interrupt;
use terminal::units::parse_seconds;

/// Put a load on a path, or on several paths to one namespace, and measure it
///
/// Loads that write DESTROY the data on the volume, without asking: everything but --rw read and
/// --rw randread. The exit code is 1 if anything failed or was found wrong, or if --verify was
/// interrupted. There is no failover: a lost path ends the run; `braid run` has volumes that
/// survive that.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// nvme-tcp://HOST:PORT/NQN?nsid=N, file:/PATH, queue:/PATH?nsid=N, mem:SIZE or null:SIZE;
    /// several: paths of one volume. With ?distance=N (&distance=N after nsid) behind it, a path
    /// is N away for --policy
    /// numa, which takes the nearest [default: 0]; ?throughput=N is its relative throughput, 0 to
    /// 100, for --policy service-time [default: 1]
    #[arg(required = true, value_name = "URI", num_args = 1..=policy::limits::PATHS_MAX)]
    paths: Vec<PathUri>,
    #[arg(long, default_value = "round-robin", value_parser = Policy::parse, help = Policy::NAMES)]
    policy: Policy,
    /// Knob of weighted-latency: a new mean weighs 1 in 2^N, 0 to 8
    #[arg(long, value_name = "N", default_value = "3", allow_negative_numbers = true,
          value_parser = Knobs::parse_ewma_shift)]
    ewma_shift: u8,
    /// Knob of weighted-latency: window of a mean, seconds or 50ms
    #[arg(long, value_name = "TIME", default_value = "15", allow_hyphen_values = true,
          value_parser = Knobs::parse_weight_timeout)]
    weight_timeout: u64,
    /// Second copies of late reads: off, on, or auto, which is on under soonest
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = Hedging::parse)]
    hedge: Hedging,
    /// Never sleep: lowest latency, whole CPUs
    #[arg(long)]
    spin: bool,
    /// Polling of a core that has nothing to do: adaptive, while that costs less than a wake-up,
    /// or never
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "WHEN",
        conflicts_with = "spin"
    )]
    poll: Poll,
    /// NVMe/TCP digests to ask for
    #[arg(long, value_enum, value_delimiter = ',', value_name = "header,data")]
    digests: Vec<Digest>,
    /// Longest wait for any one answer while connecting
    #[arg(long, value_name = "TIME", default_value = "5", allow_hyphen_values = true,
          value_parser = parse_seconds)]
    connect_timeout: u64,
    #[command(flatten)]
    identity: IdentityArgs,
    #[command(flatten)]
    common: Common,
}

/// Options of a load on any kind of queue.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// Reactor threads, 1 to 256, each with its own connection to every path
    #[arg(long, value_name = "N", default_value = "1",
          allow_hyphen_values = true,
          value_parser = clap::value_parser!(u16).range(1..=CORES_MAX as i64))]
    pub cores: u16,
    /// Pin them to these CPUs, as in 0,2-3 [default: not pinned]
    #[arg(long, value_name = "LIST", value_parser = terminal::cpus::parse)]
    pub cpus: Option<terminal::cpus::CpuList>,
    /// Longest wait for one I/O, at least 10ms: then the load ends as failed
    #[arg(long, value_name = "TIME", default_value = "30", allow_hyphen_values = true,
          value_parser = parse_io_timeout)]
    pub io_timeout: u64,
    /// Show results for people or for programs
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Format,
    /// The load.
    #[command(flatten)]
    pub words: Words,
}

/// A digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Digest {
    Header,
    Data,
}

/// Runs the verb.
///
/// # Errors
/// Usage; what the volume can't do; I/Os that failed; data that was wrong.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let interrupt = Interrupt::install()?;
    let shown = measure(args, interrupt.clone());
    args.common.end(shown, &interrupt)
}

/// Measures and shows; why the program has failed all the same, if it has.
fn measure(args: &BenchArgs, interrupt: Interrupt) -> anyhow::Result<Option<String>> {
    let plan = plan(args)?;
    let uris: Arc<[String]> = args.paths.iter().map(PathUri::to_string).collect();
    let mut host = Host::start(&plan, interrupt)?;
    let info = *host.volumes().first().context("the volume is not ready")?;
    let tasks = args.common.words.tasks(0, &info, &uris, plan.cores.len())?;
    let total = tasks[0]
        .runtime_ns
        .map(|ns| Duration::from_nanos(ns.saturating_add(tasks[0].warmup_ns)));
    let mut progress = Progress::new(total);
    let finished = host.run(tasks, &mut progress);
    progress.finish();
    let finished = finished?;
    let reactor = match finished.stats.unanswered {
        // Lost paths make an orderly end fail as well; the figures count all the same.
        0 => host.stop().ok(),
        // A thread that hangs would keep us; the process ends, and with it all that threads have.
        _ => {
            std::mem::forget(host);
            None
        }
    };
    let result = BenchResult {
        words: &args.common.words,
        policy: args.policy,
        uris: &uris,
        finished,
        reactor,
    };
    match args.common.output {
        Format::Json => output::print_json(&result.json(plan.cores.len()))?,
        Format::Text => {
            output::print(&result.text(plan.cores.len(), Style::of_stdout())?)?;
        }
    }
    Ok(result.failure())
}

/// Shortest I/O time-out: keep-alive is half of it in whole milliseconds, and a target that has to
/// wait for a CPU is not lost yet.
const IO_TIMEOUT_NS_MIN: u64 = 10_000_000;

/// Parses the longest wait for one I/O, in ns.
///
/// # Errors
/// It is not a duration, or shorter than 10 ms.
fn parse_io_timeout(text: &str) -> Result<u64, String> {
    match parse_seconds(text).map_err(|error| error.to_string())? {
        ns if ns < IO_TIMEOUT_NS_MIN => Err(format!("\"{text}\" is shorter than 10ms")),
        ns => Ok(ns),
    }
}

fn plan(args: &BenchArgs) -> anyhow::Result<HostPlan> {
    let cores = usize::from(args.common.cores);
    let fits = args.policy.check(args.paths.len());
    fits.map_err(|why| Usage::error(format!("--policy {}: {why}", args.policy)))?;
    let fits = args.hedge.check(args.policy);
    fits.map_err(|why| Usage::error(format!("--hedge {}: {why}", args.hedge)))?;
    let (outstanding, arena_bytes) = args.common.words.buffers(cores)?;
    let remote = args
        .paths
        .iter()
        .any(|uri| matches!(uri.kind(), UriKind::NvmeTcp(_)));
    Ok(HostPlan {
        volumes: vec![VolumePlan {
            name: "bench".to_owned(),
            policy: args.policy,
            knobs: Knobs {
                ewma_shift: args.ewma_shift,
                weight_timeout_ns: args.weight_timeout,
                hedging: args.hedge,
            },
            paths: args.paths.iter().cloned().map(PathKeys::from).collect(),
            access: match args.common.words.read_percent() {
                100 => FileAccess::ReadOnly,
                _ => FileAccess::Shared,
            },
            quiesce_ns: engine::host::Recovery::default().quiesce_ns,
        }],
        cores: args.common.pins()?,
        polling: args.poll.polling(args.spin, CpuShare::default()),
        identity: match remote {
            true => identity::identity(&args.identity)?,
            false => identity::ephemeral(),
        },
        digests: nvme::host::Digests {
            header: args.digests.contains(&Digest::Header),
            data: args.digests.contains(&Digest::Data),
        },
        connect_timeout_ns: args.connect_timeout,
        io_timeout_ns: args.common.io_timeout,
        outstanding,
        arena_bytes,
    })
}

impl Common {
    /// The end of the verb, which has shown its result; why it has failed all the same, if it has.
    ///
    /// # Errors
    /// It has failed.
    pub fn end(
        &self,
        shown: anyhow::Result<Option<String>>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        if let Err(error) = &shown {
            output::print_failure(self.output, error, interrupt.is_set())?;
        }
        shown?.map_or(Ok(()), |why| Err(anyhow!(why)))
    }

    /// The CPU of each core.
    ///
    /// # Errors
    /// Fewer CPUs than cores.
    pub fn pins(&self) -> anyhow::Result<Vec<Option<usize>>> {
        let cores = usize::from(self.cores);
        match &self.cpus {
            None => Ok(vec![None; cores]),
            Some(list) if list.0.len() < cores => Err(Usage::error(format!(
                "--cpus names {} CPUs for {cores} cores",
                list.0.len()
            ))),
            Some(list) => Ok(list.0.iter().take(cores).map(|&cpu| Some(cpu)).collect()),
        }
    }
}
