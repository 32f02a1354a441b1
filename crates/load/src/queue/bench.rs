//! `braid queue bench`: a load on queues of a queue server, in fio's words.
//!
//! # Contract
//! One thread and one queue per core. A turn takes the completions that are there, `--batch` at
//! most, reads the clock once, and submits what follows in one go. A latency is from the turn that
//! submitted to the turn that reaped. An I/O that is not answered in time, or whose server is gone,
//! ends the whole: what was measured by then is shown, with the reason.
//!
//! * `lane`: one core's queue; `result`: what is shown
mod lane;
mod result;

use super::local::{Local, Target};
use super::{SERVICE, client_error};
use crate::bench::parse_io_timeout;
use crate::words::Words;
use crate::worker::{Device, Finished, Worker};
use ::queue::{Coalescing, Counts, Form, Kind, Options, Queue};
use anyhow::{Context, anyhow, bail};
use engine::host::VolumeInfo;
use lane::Lane;
use paths::limits::CORES_MAX;
use paths::uri::PathUri;
use service::control::socket::client_path;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use terminal::cpus::CpuList;
use terminal::exit::Usage;
use terminal::output::{self, Format};
use terminal::signals::Interrupt;
use terminal::units::{format_count, format_ns};

/// Put a load on hardware queues of a queue server, and measure it
///
/// Loads that write DESTROY the data of the namespace, without asking: everything but --rw read and
/// --rw randread. The exit code is 1 if anything failed or was found wrong.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// Instead of a queue server: read a namespace that the kernel drives (nvme-ng:/dev/ngXnY), or
    /// its block device (file:/dev/nvmeXnY), through io_uring
    #[arg(value_name = "TARGET", conflicts_with_all = ["socket", "nsid", "pointers", "coalesce"])]
    target: Option<PathUri>,
    /// Socket of the server [default: /run/braid/q.sock for root, else
    /// $XDG_RUNTIME_DIR/braid/q.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Namespace
    #[arg(long, value_name = "N", default_value = "1")]
    nsid: u32,
    /// Kind of the queues
    #[arg(long, value_enum, default_value_t)]
    kind: KindWord,
    /// Data pointers
    #[arg(long, value_enum, default_value_t)]
    pointers: FormWord,
    /// Most completions that are taken before the next commands are submitted
    #[arg(long, value_name = "N", default_value = "32",
          value_parser = clap::value_parser!(u32).range(1..=65_535))]
    batch: u32,
    /// Completions before a queue is interrupted, and µs after the first at the latest; needs
    /// --kind user_irq
    #[arg(long, value_name = "N,US", value_parser = parse_coalescing)]
    coalesce: Option<Coalescing>,
    /// Threads, each with a queue of its own
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = clap::value_parser!(u16).range(1..=CORES_MAX as i64))]
    cores: u16,
    /// Pin them to these CPUs, as in 0,2-3 [default: not pinned]
    #[arg(long, value_name = "LIST", value_parser = terminal::cpus::parse)]
    cpus: Option<CpuList>,
    /// Longest wait for one I/O, at least 10ms: then the load ends as failed
    #[arg(long, value_name = "TIME", default_value = "30", allow_hyphen_values = true,
          value_parser = parse_io_timeout)]
    io_timeout: u64,
    /// Show results for people or for programs
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
    #[command(flatten)]
    words: Words,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum KindWord {
    /// Completions are polled
    #[default]
    #[value(name = "user_poll")]
    UserPoll,
    /// Completions are waited for
    #[value(name = "user_irq")]
    UserIrq,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum FormWord {
    /// PRPs where they can say it
    #[default]
    Auto,
    /// PRP lists
    Prp,
    /// SGLs
    Sgl,
}

impl BenchArgs {
    pub(super) fn words(&self) -> &Words {
        &self.words
    }

    /// Whether completions are polled.
    pub(super) fn polls(&self) -> bool {
        self.kind == KindWord::UserPoll
    }
}

/// Result of a core's part of a load.
pub(super) struct Ran {
    pub finished: Finished,
    pub counts: Counts,
    /// CPU time of its thread, set-up included, ns.
    pub cpu_ns: u64,
}

/// One core's part of a load.
pub(super) trait Run: Send {
    /// Does it, on a CPU where one is given.
    ///
    /// # Errors
    /// What ends a measurement.
    fn run(self, cpu: Option<usize>, watch: &Watch) -> anyhow::Result<Ran>;
}

/// Ends a load before its time.
pub(super) struct Watch {
    interrupt: Interrupt,
    io_timeout_ns: u64,
    /// A core's part has failed: the others end.
    failed: AtomicBool,
    /// The server that does not answer, and where to look.
    name: String,
    advice: &'static str,
}

impl Watch {
    /// Ends a load that is to end; once in a turn.
    pub(super) fn heed(&self, worker: &mut Worker, device: &impl Device, now_ns: u64) {
        let wanted = self.interrupt.is_set() || self.failed.load(Ordering::Relaxed);
        if wanted && !worker.is_parting() {
            worker.interrupt(device, now_ns);
        }
    }

    /// Ends a load whose oldest I/O, begun then, should have been answered; now and then.
    pub(super) fn look(
        &self,
        worker: &mut Worker,
        device: &impl Device,
        oldest_ns: Option<u64>,
        now_ns: u64,
    ) {
        let late_ns = now_ns.saturating_sub(oldest_ns.unwrap_or(now_ns));
        if late_ns < self.io_timeout_ns {
            return;
        }
        let why = format!(
            "{} has not answered {} I/Os, the oldest for {}: {}; --io-timeout waits longer",
            self.name,
            format_count(worker.outstanding().into()),
            format_ns(late_ns as f64),
            self.advice
        );
        self.end(worker, device, why, now_ns);
    }

    /// Ends it all: what is under way here will never be answered.
    pub(super) fn end(&self, worker: &mut Worker, device: &impl Device, why: String, now_ns: u64) {
        self.failed.store(true, Ordering::Relaxed);
        worker.abandon(why, device, now_ns);
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// When the I/O of each buffer was submitted, ns; [`Self::IDLE`]: it has none. A buffer's number is
/// the lower half of its I/O's cookie.
pub(super) struct Begun(Vec<u64>);

impl Begun {
    const IDLE: u64 = u64::MAX;

    pub(super) fn new(buffers: usize) -> Self {
        Self(vec![Self::IDLE; buffers])
    }

    pub(super) fn submitted(&mut self, cookie: u64, now_ns: u64) {
        self.0[cookie as u32 as usize] = now_ns;
    }

    /// An I/O has ended; its latency, ns.
    pub(super) fn ended(&mut self, cookie: u64, now_ns: u64) -> u64 {
        let begun_ns = std::mem::replace(&mut self.0[cookie as u32 as usize], Self::IDLE);
        now_ns.saturating_sub(begun_ns)
    }

    /// Since when the oldest is under way, ns.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        let oldest_ns = self.0.iter().copied().min();
        oldest_ns.filter(|&at_ns| at_ns != Self::IDLE)
    }
}

/// How often a thread that polls looks at the clock while nothing comes: once in so many polls.
const CLOCK_POLLS: u32 = 256;
/// How often it asks whether the server still lives, and for I/Os that are late, ns.
pub(super) const LOOK_NS: u64 = 100_000_000;
/// How often it is looked whether the user wants to end while queues are opened.
const OPENING: Duration = Duration::from_millis(50);

/// Runs the verb.
///
/// # Errors
/// Usage; nobody serves; I/Os that failed; data that was wrong.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let interrupt = Interrupt::install()?;
    let ran = whole(args, &interrupt);
    let ran = match ran {
        Ok(ran) => ran,
        Err(error) => {
            output::print_failure(args.output, &error, interrupt.is_set())?;
            return Err(error);
        }
    };
    match args.output {
        Format::Json => output::print_json(&result::json(args, &ran))?,
        Format::Text => output::print(&result::text(args, &ran.finished, ran.counts)?)?,
    }
    result::failure(args, &ran.finished).map_or(Ok(()), |why| Err(anyhow!(why)))
}

/// All of it, but for showing it.
fn whole(args: &BenchArgs, interrupt: &Interrupt) -> anyhow::Result<Ran> {
    let cores = usize::from(args.cores);
    if let Some(list) = &args.cpus
        && list.0.len() < cores
    {
        return Err(Usage::error("--cpus names fewer CPUs than --cores"));
    }
    if args.coalesce.is_some() && args.polls() {
        return Err(Usage::error(
            "--coalesce is of interrupts, and a user_poll queue has none: give --kind user_irq",
        ));
    }
    let watch = |name, advice| Watch {
        interrupt: interrupt.clone(),
        io_timeout_ns: args.io_timeout,
        failed: AtomicBool::new(false),
        name,
        advice,
    };
    if let Some(uri) = &args.target {
        let advice = "see what the kernel says of the device (dmesg)";
        return measure(
            args,
            local_lanes(args, uri)?,
            &watch(uri.to_string(), advice),
        );
    }
    let path = client_path(args.socket.as_deref(), SERVICE)?;
    let lanes = lanes_unless(args, &path, interrupt)?;
    let name = format!("the {} on {}", SERVICE.noun, path.display());
    let advice = "see whether its process stands still, or the storage of its namespaces hangs \
                  (`braid queue list` shows what is in flight)";
    measure(args, lanes, &watch(name, advice))
}

/// The queues, unless the user has enough of waiting for a server that hangs.
fn lanes_unless(args: &BenchArgs, path: &Path, interrupt: &Interrupt) -> anyhow::Result<Vec<Lane>> {
    let (told, opened) = mpsc::channel();
    let (own, at) = (args.clone(), path.to_owned());
    let opening = std::thread::Builder::new().name("open".into());
    opening.spawn(move || {
        // Its receiver may be gone.
        let _ = told.send(lanes(&own, &at));
    })?;
    loop {
        match opened.recv_timeout(OPENING) {
            Ok(lanes) => return lanes,
            Err(RecvTimeoutError::Timeout) if interrupt.is_set() => bail!(
                "interrupted before the {} on {} had answered: see whether its process stands \
                 still",
                SERVICE.noun,
                path.display()
            ),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("a thread panicked"),
        }
    }
}

/// A part of the load for each core, on something of the kernel's.
fn local_lanes(args: &BenchArgs, uri: &PathUri) -> anyhow::Result<Vec<Local>> {
    let cores = usize::from(args.cores);
    let target = Target::open(uri, args)?;
    let info = target.info();
    let uris: Arc<[String]> = [uri.to_string()].into();
    let stamp = uuid::Uuid::new_v4().as_u64_pair().0;
    let tasks = args.words.tasks(0, &info, &uris, cores, stamp)?;
    let (outstanding, bytes) = args.words.buffers(cores)?;
    let lane = |task| Local {
        target: target.clone(),
        task,
        polls: args.polls(),
        batch: args.batch as usize,
        outstanding,
        bytes,
    };
    Ok(tasks.into_iter().map(lane).collect())
}

/// A part of the load for each core, on a queue of its own.
fn lanes(args: &BenchArgs, path: &Path) -> anyhow::Result<Vec<Lane>> {
    let cores = usize::from(args.cores);
    let mut queues: Vec<Queue> = (0..cores)
        .map(|_| open(args, path, cores))
        .collect::<anyhow::Result<_>>()?;
    let first = queues.first_mut().context("no core")?;
    let namespace = first.namespace(args.nsid);
    let namespace = namespace.map_err(|error| client_error(error, path))?;
    let info = VolumeInfo {
        bytes: namespace.blocks << namespace.block_shift,
        block_shift: namespace.block_shift,
        transfer_max: first.transfer_max(),
    };
    let uris: Arc<[String]> = [format!("queue:{}", path.display())].into();
    let stamp = uuid::Uuid::new_v4().as_u64_pair().0;
    let tasks = args.words.tasks(0, &info, &uris, cores, stamp)?;
    let bytes = args.words.buffers(cores)?.1;
    Ok(queues
        .into_iter()
        .zip(tasks)
        .map(|(queue, task)| Lane::new(args, queue, info.block_shift, task, bytes))
        .collect())
}

fn open(args: &BenchArgs, path: &Path, cores: usize) -> anyhow::Result<Queue> {
    let (outstanding, bytes) = args.words.buffers(cores)?;
    let entries = u16::try_from(outstanding + 1).ok();
    let most = nvme::limits::QUEUE_ENTRIES_MAX;
    let Some(entries) = entries.filter(|&entries| entries <= most) else {
        return Err(Usage::error(format!(
            "{outstanding} outstanding I/Os on one core: a queue takes {}",
            most - 1
        )));
    };
    let options = Options {
        kind: match args.kind {
            KindWord::UserPoll => Kind::UserPoll,
            KindWord::UserIrq => Kind::UserIrq,
        },
        entries,
        data_bytes: bytes.next_multiple_of(4096),
        coalescing: args.coalesce.unwrap_or_default(),
        form: match args.pointers {
            FormWord::Auto => Form::Auto,
            FormWord::Prp => Form::Prp,
            FormWord::Sgl => Form::Sgl,
        },
    };
    Queue::open(path, &options).map_err(|error| client_error(error, path))
}

/// Runs all cores; what they came to, added up.
fn measure(args: &BenchArgs, lanes: Vec<impl Run>, watch: &Watch) -> anyhow::Result<Ran> {
    let mut sum: Option<Ran> = None;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(lanes)
            .map(|(at, lane)| {
                let cpu = args.cpus.as_ref().and_then(|list| list.0.get(at).copied());
                scope.spawn(move || lane.run(cpu, watch))
            })
            .collect();
        for thread in threads {
            let ended = thread.join().map_err(|_| anyhow!("a thread panicked"))?;
            let ran = ended?;
            sum = Some(match sum.take() {
                None => ran,
                Some(mut all) => {
                    all.finished.merge(ran.finished);
                    all.counts.polls += ran.counts.polls;
                    all.counts.empty_polls += ran.counts.empty_polls;
                    all.counts.calls += ran.counts.calls;
                    all.cpu_ns += ran.cpu_ns;
                    all
                }
            });
        }
        let mut sum = sum.context("no core")?;
        // A core whose sibling failed ends as if somebody had interrupted it.
        sum.finished.interrupted &= watch.interrupt.is_set();
        Ok(sum)
    })
}

fn parse_coalescing(text: &str) -> Result<Coalescing, String> {
    let wrong = || format!("\"{text}\" is not COMPLETIONS,MICROSECONDS, as in 8,50");
    let (completions, time_us) = text.split_once(',').ok_or_else(wrong)?;
    let coalescing = Coalescing {
        completions: completions.parse().map_err(|_| wrong())?,
        time_us: time_us.parse().map_err(|_| wrong())?,
    };
    let most = u32::from(nvme::limits::QUEUE_ENTRIES_MAX) - 1;
    match coalescing.completions {
        0 => Err(format!(
            "\"{text}\": no completions are none to wait for; 1 interrupts for each"
        )),
        count if count > most => Err(format!(
            "\"{text}\": {count} completions never come together, a queue has {most} in flight \
             at most"
        )),
        _ => Ok(coalescing),
    }
}

/// CPU time of this thread, ns; 0 where the kernel doesn't tell.
pub(super) fn thread_cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|ns| ns.parse().ok()).unwrap_or(0)
}
