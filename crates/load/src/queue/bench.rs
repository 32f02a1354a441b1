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
use crate::bench::{parse_io_timeout, pins};
use crate::words::Words;
use crate::worker::{Device, Finished, Task, Worker};
use ::queue::{Counts, Kind, Options, Queue};
use anyhow::{Context, anyhow, bail};
use engine::host::VolumeInfo;
use engine::machine::Memory;
use lane::Lane;
use paths::limits::CORES_MAX;
use paths::uri::PathUri;
use runtime::now_ns;
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
    #[arg(value_name = "TARGET", conflicts_with_all = ["socket", "nsid"])]
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
    /// Most completions that are taken before the next commands are submitted
    #[arg(long, value_name = "N", default_value = "32",
          value_parser = clap::value_parser!(u32).range(1..=65_535))]
    batch: u32,
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
    /// Does it on this thread.
    ///
    /// # Errors
    /// What ends a measurement.
    fn run(self, watch: &Watch) -> anyhow::Result<(Finished, Counts)>;
}

/// A queue, or the kernel, as what takes the I/Os of one core.
pub(super) trait Port: Device {
    /// The load's data.
    type Memory: Memory;
    /// Tells the load what has ended.
    fn hand_in(&mut self, memory: &mut Self::Memory, worker: &mut Worker, now_ns: u64);
    /// Submits what was prepared, then takes completions until there was one, or it is time.
    ///
    /// # Errors
    /// Why nothing more can be measured.
    fn exchange(
        &mut self,
        memory: &mut Self::Memory,
        due_ns: u64,
        now_ns: u64,
    ) -> Result<(), String>;
    /// Since when the oldest I/O is under way, ns.
    fn oldest_ns(&self) -> Option<u64>;
}

/// A whole task over one port.
pub(super) fn drive<P: Port>(
    port: &mut P,
    memory: &mut P::Memory,
    task: Task,
    watch: &Watch,
) -> Finished {
    let mut worker = Worker::new(task, memory, now_ns());
    let mut looked_ns = now_ns();
    loop {
        let now_ns = now_ns();
        port.hand_in(memory, &mut worker, now_ns);
        watch.heed(&mut worker, port, now_ns);
        if now_ns - looked_ns >= LOOK_NS {
            looked_ns = now_ns;
            watch.look(&mut worker, port, port.oldest_ns(), now_ns);
        }
        worker.turn(port, memory, now_ns);
        if worker.is_over() {
            return worker.finish();
        }
        let due_ns = worker.poll_timeout().unwrap_or(u64::MAX);
        let due_ns = due_ns.min(now_ns + LOOK_NS);
        if let Err(why) = port.exchange(memory, due_ns, now_ns) {
            // These it answered, before it said what can't be.
            port.hand_in(memory, &mut worker, now_ns);
            watch.end(&mut worker, port, format!("{}: {why}", watch.name), now_ns);
        }
    }
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
    fn heed(&self, worker: &mut Worker, device: &impl Device, now_ns: u64) {
        let wanted = self.interrupt.is_set() || self.failed.load(Ordering::Relaxed);
        if wanted && !worker.is_parting() {
            worker.interrupt(device, now_ns);
        }
    }

    /// Ends a load whose oldest I/O, begun then, should have been answered; now and then.
    fn look(&self, worker: &mut Worker, device: &impl Device, oldest_ns: Option<u64>, now_ns: u64) {
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
    fn end(&self, worker: &mut Worker, device: &impl Device, why: String, now_ns: u64) {
        self.failed.store(true, Ordering::Relaxed);
        worker.abandon(why, device, now_ns);
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
    let cpus = pins(args.cpus.as_ref(), args.cores.into())?;
    let watch = |name, advice| Watch {
        interrupt: interrupt.clone(),
        io_timeout_ns: args.io_timeout,
        failed: AtomicBool::new(false),
        name,
        advice,
    };
    if let Some(uri) = &args.target {
        let advice = "see what the kernel says of the device (dmesg)";
        let watch = watch(uri.to_string(), advice);
        return measure(cpus, local_lanes(args, uri)?, &watch);
    }
    let path = client_path(args.socket.as_deref(), SERVICE)?;
    let lanes = lanes_unless(args, &path, interrupt)?;
    let name = format!("the {} on {}", SERVICE.noun, path.display());
    let advice = "see whether its process stands still, or the storage of its namespaces hangs \
                  (`braid queue list` shows what is in flight)";
    measure(cpus, lanes, &watch(name, advice))
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
        ..Options::default()
    };
    Queue::open(path, &options).map_err(|error| client_error(error, path))
}

/// Runs all cores; what they came to, added up.
fn measure(cpus: Vec<Option<usize>>, lanes: Vec<impl Run>, watch: &Watch) -> anyhow::Result<Ran> {
    let mut sum: Option<Ran> = None;
    std::thread::scope(|scope| {
        let lanes = cpus.into_iter().zip(lanes);
        let threads: Vec<_> = lanes
            .map(|(cpu, lane)| scope.spawn(move || run_on(cpu, lane, watch)))
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

/// A core's part of the load, on a CPU where one is given.
fn run_on(cpu: Option<usize>, lane: impl Run, watch: &Watch) -> anyhow::Result<Ran> {
    if let Some(cpu) = cpu {
        sys::os::pin(cpu).with_context(|| format!("cannot pin a thread to CPU {cpu}"))?;
    }
    let (finished, counts) = lane.run(watch)?;
    Ok(Ran {
        finished,
        counts,
        cpu_ns: thread_cpu_ns(),
    })
}

/// CPU time of this thread, ns; 0 where the kernel doesn't tell.
fn thread_cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|ns| ns.parse().ok()).unwrap_or(0)
}
