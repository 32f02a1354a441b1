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

use super::local::Target;
use super::{SERVICE, client_error};
use crate::bench::Common;
use crate::worker::{Device, Finished, Task, Worker};
use ::queue::{Counts, Kind, Options, Queue};
use anyhow::{Context, anyhow, bail};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use engine::host::{Io, IoDone, SubmitError, VolumeInfo};
use engine::machine::Memory;
use multipath::Outcome;
use paths::uri::PathUri;
use policy::PathIndex;
use runtime::now_ns;
use service::control::socket::client_path;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use terminal::exit::Usage;
use terminal::output::{self, Format};
use terminal::signals::Interrupt;
use terminal::units::{format_count, format_ns};

/// Put a load on hardware queues of a queue server, and measure it
///
/// Loads that write DESTROY the data of the namespace, without asking: everything but --rw read and
/// --rw randread. The exit code is 1 if anything failed or was found wrong.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("cores", |it| it.help("Threads, each with a queue of its own, 1 to 256")))]
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
    #[arg(long, default_value = "user_poll", value_parser = kinds())]
    pub(super) kind: Kind,
    /// Most completions that are taken before the next commands are submitted
    #[arg(long, value_name = "N", default_value = "32",
          value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(super) batch: u32,
    #[command(flatten)]
    pub(super) common: Common,
}

fn kinds() -> impl TypedValueParser<Value = Kind> {
    let all = [
        (Kind::UserPoll, "Completions are polled"),
        (Kind::UserIrq, "Completions are waited for"),
    ];
    let words = all.map(|(kind, help)| PossibleValue::new(kind.name()).help(help));
    let parsed = move |word: String| all.into_iter().find(|it| it.0.name() == word);
    PossibleValuesParser::new(words).map(move |word| parsed(word).unwrap_or(all[0]).0)
}

/// Result of a core's part of a load.
pub(super) struct Ran {
    pub finished: Finished,
    pub counts: Counts,
    /// CPU time of its thread, set-up included, ns.
    pub cpu_ns: u64,
}

/// One core's part of a load, which its thread does.
///
/// # Errors
/// A measurement can't be had or go on.
pub(super) type Part = Box<dyn FnOnce(&Watch) -> anyhow::Result<(Finished, Counts)> + Send>;

/// A queue, or the kernel, as what takes the I/Os of one core.
pub(super) trait Port {
    /// The load's data.
    type Memory: Memory;
    /// Prepares an I/O.
    ///
    /// # Errors
    /// As of [`Device::submit`].
    fn prepare(&mut self, io: &Io) -> Result<(), SubmitError>;
    /// Submits what was prepared, then takes completions until there was one, or it is time: the
    /// cookies of I/Os that have ended, a batch at most, and how.
    ///
    /// # Errors
    /// Why nothing more can be measured.
    fn exchange(
        &mut self,
        memory: &mut Self::Memory,
        ended: &mut Vec<(u64, Outcome)>,
        due_ns: u64,
        now_ns: u64,
    ) -> Result<(), String>;
}

/// A port, and the I/Os that it has.
struct Driven<P> {
    port: P,
    /// When the I/O of each buffer was submitted, ns; [`IDLE`]: it has none. A buffer's number is
    /// the lower half of its I/O's cookie.
    begun_ns: Vec<u64>,
    ended: Vec<(u64, Outcome)>,
}

const IDLE: u64 = u64::MAX;

impl<P: Port> Device for Driven<P> {
    fn submit(&mut self, io: &Io, now_ns: u64) -> Result<(), SubmitError> {
        self.port.prepare(io)?;
        self.begun_ns[io.cookie as u32 as usize] = now_ns;
        Ok(())
    }
}

impl<P: Port> Driven<P> {
    /// Tells the load what has ended.
    fn hand_in(&mut self, memory: &mut P::Memory, worker: &mut Worker, now_ns: u64) {
        for (cookie, outcome) in self.ended.drain(..) {
            let begun_ns = std::mem::replace(&mut self.begun_ns[cookie as u32 as usize], IDLE);
            let done = IoDone {
                cookie,
                outcome,
                path: PathIndex(0),
                latency_ns: now_ns.saturating_sub(begun_ns),
            };
            worker.handle_done(&done, memory);
        }
    }
}

/// A whole task over one port.
pub(super) fn drive<P: Port>(
    port: P,
    memory: &mut P::Memory,
    task: Task,
    watch: &Watch,
) -> (Finished, P) {
    let mut worker = Worker::new(task, memory, now_ns());
    let mut device = Driven {
        port,
        begun_ns: vec![IDLE; worker.buffers()],
        ended: Vec::with_capacity(worker.buffers()),
    };
    let mut looked_ns = now_ns();
    loop {
        let now_ns = now_ns();
        device.hand_in(memory, &mut worker, now_ns);
        watch.heed(&mut worker, &device, now_ns);
        if now_ns - looked_ns >= LOOK_NS {
            looked_ns = now_ns;
            watch.look(&mut worker, &device, now_ns);
        }
        worker.turn(&mut device, memory, now_ns);
        if worker.is_over() {
            return (worker.finish(), device.port);
        }
        let due_ns = worker.poll_timeout().unwrap_or(u64::MAX);
        let due_ns = due_ns.min(now_ns + LOOK_NS);
        let went = device
            .port
            .exchange(memory, &mut device.ended, due_ns, now_ns);
        if let Err(why) = went {
            // These it answered, before it said what can't be.
            device.hand_in(memory, &mut worker, now_ns);
            let why = format!("{}: {why}", watch.name);
            watch.end(&mut worker, &device, why, now_ns);
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

    /// Ends a load whose oldest I/O should have been answered; now and then.
    fn look<P: Port>(&self, worker: &mut Worker, device: &Driven<P>, now_ns: u64) {
        let oldest_ns = device.begun_ns.iter().min().copied().unwrap_or(IDLE);
        let late_ns = now_ns.saturating_sub(oldest_ns);
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

/// How often a thread that polls looks at the clock while nothing comes: once in so many polls.
pub(super) const CLOCK_POLLS: u32 = 256;
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
    args.common.end(shown(args, &interrupt), &interrupt)
}

/// Measures and shows; why it has failed all the same, if it has.
fn shown(args: &BenchArgs, interrupt: &Interrupt) -> anyhow::Result<Option<String>> {
    let ran = whole(args, interrupt)?;
    match args.common.output {
        Format::Json => output::print_json(&result::json(args, &ran))?,
        Format::Text => output::print(&result::text(args, &ran.finished, ran.counts)?)?,
    }
    Ok(result::failure(args, &ran.finished))
}

/// All of it, but for showing it.
fn whole(args: &BenchArgs, interrupt: &Interrupt) -> anyhow::Result<Ran> {
    let cpus = args.common.pins()?;
    let watch = |name, advice| Watch {
        interrupt: interrupt.clone(),
        io_timeout_ns: args.common.io_timeout,
        failed: AtomicBool::new(false),
        name,
        advice,
    };
    if let Some(uri) = &args.target {
        let advice = "see what the kernel says of the device (dmesg)";
        let watch = watch(uri.to_string(), advice);
        return measure(cpus, local_parts(args, uri)?, &watch);
    }
    let path = client_path(args.socket.as_deref(), SERVICE)?;
    let parts = parts_unless(args, &path, interrupt)?;
    let name = format!("the {} on {}", SERVICE.noun, path.display());
    let advice = "see whether its process stands still, or the storage of its namespaces hangs \
                  (`braid queue list` shows what is in flight)";
    measure(cpus, parts, &watch(name, advice))
}

/// The queues, unless the user has enough of waiting for a server that hangs.
fn parts_unless(args: &BenchArgs, path: &Path, interrupt: &Interrupt) -> anyhow::Result<Vec<Part>> {
    let (told, opened) = mpsc::channel();
    let (own, at) = (args.clone(), path.to_owned());
    let opening = std::thread::Builder::new().name("open".into());
    opening.spawn(move || {
        // Its receiver may be gone.
        let _ = told.send(parts(&own, &at));
    })?;
    loop {
        match opened.recv_timeout(OPENING) {
            Ok(parts) => return parts,
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
fn local_parts(args: &BenchArgs, uri: &PathUri) -> anyhow::Result<Vec<Part>> {
    let target = Target::open(uri, args)?;
    let parts = tasks(args, &target.info(), uri.to_string())?.into_iter();
    parts.map(|task| target.clone().part(args, task)).collect()
}

/// The task of each core.
fn tasks(args: &BenchArgs, info: &VolumeInfo, uri: String) -> anyhow::Result<Vec<Task>> {
    let Common { words, cores, .. } = &args.common;
    words.tasks(0, info, &[uri].into(), (*cores).into())
}

/// A part of the load for each core, on a queue of its own.
fn parts(args: &BenchArgs, path: &Path) -> anyhow::Result<Vec<Part>> {
    let cores = usize::from(args.common.cores);
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
        read_only: namespace.read_only,
    };
    let tasks = tasks(args, &info, format!("queue:{}", path.display()))?;
    let bytes = args.common.words.buffers(cores)?.1;
    let parts = queues.into_iter().zip(tasks);
    Ok(parts
        .map(|(queue, task)| lane::part(args, queue, info.block_shift, task, bytes))
        .collect())
}

fn open(args: &BenchArgs, path: &Path, cores: usize) -> anyhow::Result<Queue> {
    let (outstanding, bytes) = args.common.words.buffers(cores)?;
    let entries = u16::try_from(outstanding + 1).ok();
    let most = nvme::limits::QUEUE_ENTRIES_MAX;
    let Some(entries) = entries.filter(|&entries| entries <= most) else {
        return Err(Usage::error(format!(
            "{outstanding} outstanding I/Os on one core: a queue takes {}",
            most - 1
        )));
    };
    let options = Options {
        kind: args.kind,
        entries,
        data_bytes: bytes.next_multiple_of(4096),
        ..Options::default()
    };
    Queue::open(path, &options).map_err(|error| client_error(error, path))
}

/// Runs all cores; what they came to, added up.
fn measure(cpus: Vec<Option<usize>>, parts: Vec<Part>, watch: &Watch) -> anyhow::Result<Ran> {
    let mut sum: Option<Ran> = None;
    std::thread::scope(|scope| {
        let parts = cpus.into_iter().zip(parts);
        let threads: Vec<_> = parts
            .map(|(cpu, part)| scope.spawn(move || run_on(cpu, part, watch)))
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
fn run_on(cpu: Option<usize>, part: Part, watch: &Watch) -> anyhow::Result<Ran> {
    if let Some(cpu) = cpu {
        sys::os::pin(cpu).with_context(|| format!("cannot pin a thread to CPU {cpu}"))?;
    }
    let (finished, counts) = part(watch)?;
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
