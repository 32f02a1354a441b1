//! `braid queue bench`: a load on queues of a queue server, in fio's words.
//!
//! # Contract
//! One thread and one queue per core. A turn takes the completions that are there, `--batch` at
//! most, reads the clock once, and submits what follows in one go. A latency is from the turn that
//! submitted to the turn that reaped.
use super::local::{Local, Target};
use super::{client_error, socket_path};
use crate::cli::Usage;
use crate::cpus::CpuList;
use crate::limits::CORES_MAX;
use crate::load::words::Words;
use crate::load::worker::{Device, Finished, Task, Worker};
use crate::output::{self, Format};
use crate::signals::Interrupt;
use crate::units::{format_bytes, format_count, format_ns, significant};
use crate::uri::PathUri;
use ::queue::{Coalescing, Counts, Done, Form, Kind, Options, Queue};
use anyhow::{Context, anyhow};
use engine::Span;
use engine::host::{HedgeStats, Io, IoDone, IoOp, SubmitError, VolumeInfo};
use engine::machine::Memory;
use policy::PathIndex;
use runtime::now_ns;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

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
    /// Completions before a user_irq queue is interrupted, and µs after the first at the latest
    #[arg(long, value_name = "N,US", value_parser = parse_coalescing)]
    coalesce: Option<Coalescing>,
    /// Threads, each with a queue of its own
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = clap::value_parser!(u16).range(1..=CORES_MAX as i64))]
    cores: u16,
    /// Pin them to these CPUs, as in 0,2-3 [default: not pinned]
    #[arg(long, value_name = "LIST", value_parser = crate::cpus::parse)]
    cpus: Option<CpuList>,
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

/// What a core's part of a load came to.
pub(super) struct Ran {
    pub finished: Finished,
    pub counts: Counts,
    /// What its thread ran for, set-up included, ns.
    pub cpu_ns: u64,
}

/// One core's part of a load.
pub(super) trait Run: Send {
    /// Does it, on a CPU where one is given.
    ///
    /// # Errors
    /// What ends a measurement.
    fn run(self, cpu: Option<usize>, interrupt: &Interrupt) -> anyhow::Result<Ran>;
}

/// How often a thread that polls looks at the clock while nothing comes: once in so many polls.
const CLOCK_POLLS: u32 = 256;
/// How often it asks whether the server still lives, ns.
const ALIVE_NS: u64 = 100_000_000;

/// Runs the verb.
///
/// # Errors
/// Usage; nobody serves; I/Os that failed; data that was wrong.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let interrupt = Interrupt::install()?;
    let cores = usize::from(args.cores);
    if let Some(list) = &args.cpus
        && list.0.len() < cores
    {
        return Err(Usage::error("--cpus names fewer CPUs than --cores"));
    }
    let ran = match &args.target {
        Some(uri) => measure(args, local_lanes(args, uri)?, &interrupt)?,
        None => measure(args, lanes(args)?, &interrupt)?,
    };
    let failure = failure(&ran.finished);
    match args.output {
        Format::Json => output::print_json(&json(args, &ran))?,
        Format::Text => output::print(&text(args, &ran.finished, ran.counts)?)?,
    }
    failure.map_or(Ok(()), |why| Err(anyhow!(why)))
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
fn lanes(args: &BenchArgs) -> anyhow::Result<Vec<Lane>> {
    let path = socket_path(args.socket.as_ref())?;
    let cores = usize::from(args.cores);
    let queues: Vec<Queue> = (0..cores)
        .map(|_| open(args, &path, cores))
        .collect::<anyhow::Result<_>>()?;
    let first = queues.first().context("no core")?;
    let namespace = first.namespace(args.nsid);
    let namespace = namespace.map_err(|error| client_error(error, &path))?;
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
fn measure(args: &BenchArgs, lanes: Vec<impl Run>, interrupt: &Interrupt) -> anyhow::Result<Ran> {
    let mut sum: Option<Ran> = None;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(lanes)
            .map(|(at, lane)| {
                let cpu = args.cpus.as_ref().and_then(|list| list.0.get(at).copied());
                scope.spawn(move || lane.run(cpu, interrupt))
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
        sum.context("no core")
    })
}

/// One core's queue, and its part of the load.
struct Lane {
    port: Port,
    task: Task,
    staging: Staging,
    batch: usize,
}

/// The queue as what takes I/Os.
struct Port {
    queue: Queue,
    nsid: u32,
    block_shift: u8,
    /// When each buffer's I/O was submitted, ns.
    begun_ns: Vec<u64>,
    /// Data is looked at, so it is copied between here and the queue's memory.
    copies: bool,
    /// Bytes of each buffer, by its number.
    spans: Vec<Span>,
    pending: Vec<(u32, Span)>,
}

/// What the load writes and reads, where it may look at it.
struct Staging(Vec<u8>);

impl Memory for Staging {
    fn bytes(&self, span: Span) -> &[u8] {
        &self.0[span.at as usize..][..span.len as usize]
    }

    fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        &mut self.0[span.at as usize..][..span.len as usize]
    }
}

impl Device for Port {
    fn submit(&mut self, io: &Io, now_ns: u64) -> Result<(), SubmitError> {
        let data = self.queue.data().ok_or(SubmitError::NotReady)?;
        let piece = data.piece(io.span.at as usize, io.span.len);
        let slba = io.offset >> self.block_shift;
        let blocks = io.length >> self.block_shift;
        let slot = io.cookie as u32 as usize;
        let taken = match io.op {
            IoOp::Read => self
                .queue
                .read(self.nsid, slba, blocks, &[piece], io.cookie),
            _ => {
                let to = (self.nsid, false);
                self.queue.write(to, slba, blocks, &[piece], io.cookie)
            }
        };
        match taken {
            Ok(_) => {}
            Err(::queue::SubmitError::Full) => return Err(SubmitError::Full),
            Err(_) => return Err(SubmitError::Range),
        }
        self.begun_ns[slot] = now_ns;
        self.spans[slot] = io.span;
        if self.copies && !matches!(io.op, IoOp::Read) {
            self.pending.push((slot as u32, io.span));
        }
        Ok(())
    }

    fn waited_full(&self, _: u16, _: u8) -> u64 {
        0
    }

    fn hedges(&self, _: u16) -> HedgeStats {
        HedgeStats::default()
    }
}

impl Port {
    /// Submits what was prepared, with its data.
    fn flush(&mut self, staging: &Staging) -> Result<(), ::queue::Error> {
        if let Some(data) = self.queue.data() {
            for (_, span) in self.pending.drain(..) {
                data.write(span.at as usize, staging.bytes(span));
            }
        }
        self.queue.submit()
    }

    /// A completion as the load knows it; its data is where the load looks.
    fn done(&self, done: &Done, now_ns: u64, staging: &mut Staging) -> IoDone {
        let slot = done.token as u32 as usize;
        let span = self.spans[slot];
        if self.copies
            && let Some(data) = self.queue.data()
        {
            data.read(span.at as usize, staging.bytes_mut(span));
        }
        IoDone {
            cookie: done.token,
            outcome: engine::host::outcome(done.status, &[0; 3], 0),
            path: PathIndex(0),
            latency_ns: now_ns.saturating_sub(self.begun_ns[slot]),
        }
    }
}

impl Lane {
    fn new(args: &BenchArgs, queue: Queue, block_shift: u8, task: Task, bytes: u64) -> Self {
        let depth = usize::from(queue.depth()) + 1;
        let none = Span { at: 0, len: 0 };
        Self {
            port: Port {
                nsid: args.nsid,
                block_shift,
                begun_ns: vec![0; depth],
                copies: args.words.verify,
                spans: vec![none; depth],
                pending: Vec::with_capacity(depth),
                queue,
            },
            task,
            staging: Staging(vec![0; bytes as usize]),
            batch: args.batch as usize,
        }
    }
}

impl Run for Lane {
    fn run(self, cpu: Option<usize>, interrupt: &Interrupt) -> anyhow::Result<Ran> {
        if let Some(cpu) = cpu {
            sys::os::pin(cpu).with_context(|| format!("cannot pin a thread to CPU {cpu}"))?;
        }
        let Self {
            mut port,
            task,
            mut staging,
            batch,
        } = self;
        let mut worker = Worker::new(task, &mut staging, now_ns());
        let mut ended = Vec::with_capacity(batch);
        let (mut stopping, mut alive_ns) = (false, now_ns());
        loop {
            let now_ns = now_ns();
            for done in ended.drain(..) {
                let done = port.done(&done, now_ns, &mut staging);
                worker.handle_done(&done, &mut staging);
            }
            if interrupt.is_set() && !stopping {
                stopping = true;
                worker.interrupt(&port, now_ns);
            }
            worker.turn(&mut port, &mut staging, now_ns);
            if worker.is_over() {
                return Ok(Ran {
                    finished: worker.finish(),
                    counts: port.queue.counts(),
                    cpu_ns: thread_cpu_ns(),
                });
            }
            let went = port.flush(&staging).and_then(|()| {
                let due_ns = worker.poll_timeout().unwrap_or(now_ns + ALIVE_NS);
                reap(&mut port.queue, &mut ended, batch, due_ns)
            });
            let went = went.and_then(|came| {
                if came || now_ns - alive_ns < ALIVE_NS {
                    return Ok(());
                }
                alive_ns = now_ns;
                port.queue.is_alive()
            });
            // What is in flight will never end.
            went.map_err(|error| anyhow!("the queue is lost: {error}"))?;
        }
    }
}

/// Takes completions until there was one, or it is time to do something else; whether there was.
fn reap(
    queue: &mut Queue,
    ended: &mut Vec<Done>,
    batch: usize,
    due_ns: u64,
) -> Result<bool, ::queue::Error> {
    // Before it is asked whether the server lives.
    let mut until_ns = None;
    loop {
        for _ in 0..CLOCK_POLLS {
            if queue.reap(batch, |done| ended.push(done))? > 0 {
                return Ok(true);
            }
            if queue.kind() == Kind::UserIrq {
                break;
            }
            std::hint::spin_loop();
        }
        let now_ns = now_ns();
        let until_ns = *until_ns.get_or_insert(due_ns.min(now_ns + ALIVE_NS));
        if now_ns >= until_ns {
            return Ok(false);
        }
        if queue.kind() == Kind::UserIrq {
            let wait = Duration::from_nanos(until_ns - now_ns);
            if !queue.wait(wait)? {
                return Ok(false);
            }
        } else if queue.in_flight() == 0 {
            // A rate is kept: nothing is to be had before.
            return Ok(false);
        }
    }
}

/// Why the program has failed, if it has.
fn failure(finished: &Finished) -> Option<String> {
    let stats = &finished.stats;
    if let Some(why) = &finished.failed {
        return Some(why.clone());
    }
    let first = stats.failures.first()?;
    Some(match stats.errors {
        1 => first.clone(),
        n => format!("{} errors, of which the first: {first}", format_count(n)),
    })
}

/// A count per I/O that was done, measured or not.
fn per_io(finished: &Finished, count: u64) -> f64 {
    count as f64 / finished.totals.ios.max(1) as f64
}

fn empty_share(counts: Counts) -> f64 {
    counts.empty_polls as f64 / counts.polls.max(1) as f64
}

fn json(args: &BenchArgs, ran: &Ran) -> Value {
    let (finished, counts) = (&ran.finished, ran.counts);
    let stats = &finished.stats;
    let total = stats.total();
    let us = |ns: f64| ns / 1000.0;
    let mut shares = serde_json::Map::new();
    shares.insert("queue".into(), json!(1.0));
    json!({
        "op": args.words.op(),
        "kind": if args.kind == KindWord::UserPoll { "user_poll" } else { "user_irq" },
        "iops": stats.iops(&total),
        "mib_s": stats.mib_s(&total),
        "mean_us": us(total.mean_ns()),
        "p50_us": us(total.quantile_ns(0.5)),
        "p99_us": us(total.quantile_ns(0.99)),
        "p999_us": us(total.quantile_ns(0.999)),
        "errors": stats.errors,
        "failures": stats.failures,
        "verified_bytes": stats.verified_bytes,
        "share": shares,
        "seconds": stats.seconds(),
        "interrupted": finished.interrupted,
        "system_calls_per_io": per_io(finished, counts.calls),
        "polls_per_io": per_io(finished, counts.polls),
        "empty_polls_share": empty_share(counts),
        "cpu_ns_per_io": per_io(finished, ran.cpu_ns),
    })
}

/// What this thread has run for, ns; 0 where the kernel doesn't tell.
pub(super) fn thread_cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

fn text(args: &BenchArgs, finished: &Finished, counts: Counts) -> anyhow::Result<String> {
    let stats = &finished.stats;
    let total = stats.total();
    let quantile = |part| format_ns(total.quantile_ns(part));
    let cores = usize::from(args.cores);
    let mut text = format!(
        "{} of {}, {} outstanding on {cores} user_{} queues, {}\n\
         {} IOPS, {} MiB/s; latency mean {}, p50 {}, p99 {}, p99.9 {}\n\
         {} system calls and {} polls per I/O; {} % of the polls found nothing\n",
        args.words.op(),
        args.words.sizes().read,
        args.words.jobs(cores)? * args.words.iodepth,
        if args.kind == KindWord::UserPoll {
            "poll"
        } else {
            "irq"
        },
        format_ns(stats.elapsed_ns as f64),
        format_count(stats.iops(&total) as u64),
        significant(stats.mib_s(&total)),
        format_ns(total.mean_ns()),
        quantile(0.5),
        quantile(0.99),
        quantile(0.999),
        significant(per_io(finished, counts.calls)),
        significant(per_io(finished, counts.polls)),
        significant(100.0 * empty_share(counts)),
    );
    if args.words.verify {
        let checked = format_bytes(stats.verified_bytes);
        text.push_str(&format!("{checked} read and found right\n"));
    }
    Ok(text)
}

fn parse_coalescing(text: &str) -> Result<Coalescing, String> {
    let wrong = || format!("\"{text}\" is not COMPLETIONS,MICROSECONDS, as in 8,50");
    let (completions, time_us) = text.split_once(',').ok_or_else(wrong)?;
    Ok(Coalescing {
        completions: completions.parse().map_err(|_| wrong())?,
        time_us: time_us.parse().map_err(|_| wrong())?,
    })
}
