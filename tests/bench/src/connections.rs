//! Cost of thousands of idle and slow connections for a server, and for clients that are served
//! beside them.
//!
//! # Contract
//! One honest client (4 KiB reads, 32 outstanding) is connected all the time. Its rate is counted
//! in windows, alternately without and with the hostile load; each window with it is compared to
//! the mean of its two neighbours without, since absolute rates of a shared machine drift. Memory,
//! descriptors and processor time are the server process's own. The load runs on the same machine:
//! what it costs the processor is part of the ratio. More memory than docs/security.md allows for
//! so many connections is a failure, and so is a median of these ratios below `--least`.
//!
//! # Limits
//! Descriptors: a few thousand hostile clients more than half of `ulimit -Hn` don't fit.
mod honest;
mod hostile;
mod peer;
mod served;
mod socket;
mod words;

use crate::prelude::*;
use crate::rounds::{sorted, summary};
use honest::Honest;
use hostile::{Load, Plan};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use served::{Kind, Look, Served};
use std::thread::JoinHandle;

/// Pause between a change of the load and the next window.
const SETTLE: Duration = Duration::from_millis(500);
/// Longest wait for a server to have closed what its peers have.
const EMPTY: Duration = Duration::from_secs(30);
/// Between two bytes of a slow one.
const PACE: Duration = Duration::from_millis(500);
/// Descriptors that are needed beside those of connections.
const SPARE: u64 = 64;

/// Terms of the bound on memory (docs/security.md): a connection's tables; its pages lent to the
/// kernel and its messages on their way; room for the requests of one; and what all share. KiB.
const TABLES_KIB: u64 = 4;
const PAGES_KIB: u64 = 4 + 32;
const REQUESTS_KIB: u64 = 64;
const SHARED_KIB: u64 = (48 + 40) << 10;

/// Of these the worst window counts.
const WORST: [&str; 9] = [
    "held",
    "cut",
    "refused",
    "descriptors",
    "mib",
    "mib_peak",
    "mib_bound",
    "mib_tcp",
    "bytes_per_connection",
];

/// The worst of all windows, or the median of them. Of the memory of TCP, that of the machine.
const COLUMNS: [Column; 20] = [
    ("server", "server", 0),
    ("alone_per_s", "alone/s", 0),
    ("beside_per_s", "beside/s", 0),
    ("ratio", "ratio", 3),
    ("ratio_range", "least … most", 3),
    ("held", "held", 0),
    ("cut", "cut off", 0),
    ("refused", "not let in", 0),
    ("descriptors", "files", 0),
    ("mib_before", "MiB before", 1),
    ("mib", "with them", 1),
    ("mib_peak", "at most", 1),
    ("mib_bound", "bound", 1),
    ("bytes_per_connection", "bytes each", 0),
    ("mib_tcp", "TCP MiB", 1),
    ("alone_cpu", "CPU alone", 2),
    ("beside_cpu", "beside", 2),
    ("hostile_cpu", "for them", 3),
    ("newcomer_ms", "new client ms", 1),
    ("newcomers", "in", 0),
];

/// How many, how long.
#[derive(clap::Args)]
#[command(mut_arg("seconds", |it| it.default_value("2")))]
#[command(mut_arg("rounds", |it| it.default_value("15")))]
pub struct Args {
    /// Idle connections: silent, stopped in the handshake, and logged in.
    #[arg(long, default_value_t = 10_000)]
    idle: usize,
    /// Slow ones: a byte per pace of a request, of a write's data, or of the answers.
    #[arg(long, default_value_t = 1_000)]
    slow: usize,
    #[command(flatten)]
    timing: Timing,
    /// Least share of its rate alone that the honest client must have beside them (median).
    #[arg(long, default_value_t = 0.9)]
    least: f64,
    /// Servers.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "target,nbd-unix,nbd-tcp"
    )]
    servers: Vec<Kind>,
}

/// Measures and prints.
pub fn run(setup: &Setup, args: &Args) -> Result<()> {
    raise_open_files(args)?;
    ensure!(args.timing.seconds > 0.0, "no windows to measure");
    // The check has built this one.
    let built = || super::build(&setup.root, &["--bin", "braid"]);
    let braid = setup.braid.clone().map_or_else(built, Ok)?;
    let cells = args.servers.iter().map(|&kind| measure(&braid, kind, args));
    let cells = cells.collect::<Result<Vec<Value>>>()?;
    let title = format!(
        "an honest client, alone and beside {} idle and {} slow connections; {} pairs of windows",
        args.idle, args.slow, args.timing.rounds
    );
    setup.show(&title, &COLUMNS, cells.clone());
    for cell in &cells {
        let server = cell["server"].as_str().unwrap_or_default();
        let (most, bound) = (number(cell, "mib_peak")?, number(cell, "mib_bound")?);
        ensure!(
            most <= bound,
            "{server}: {most:.1} MiB of memory, and docs/security.md allows {bound:.1} MiB"
        );
        let (held, wanted) = (number(cell, "held_least")?, (args.idle + args.slow) as f64);
        ensure!(
            held * 10.0 >= wanted * 9.0,
            "{server}: of {wanted} hostile connections only {held} were there in a window: nothing \
             was shown by that"
        );
        let ratio = number(cell, "ratio")?;
        ensure!(
            ratio >= args.least,
            "{server}: the honest client had {ratio:.3} of its rate beside them, and {} is asked \
             for; on a machine that is busy otherwise let more windows pass (--rounds)",
            args.least
        );
    }
    Ok(())
}

/// Each hostile client is a descriptor here, those with an admin connection two; and one at the
/// server.
fn raise_open_files(args: &Args) -> Result<()> {
    let wanted = (args.idle + 2 * args.slow) as u64 + SPARE;
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < wanted) {
        bail!(
            "{} idle and {} slow connections need {wanted} descriptors, and the hard limit of open \
             files is {}: raise it (ulimit -Hn), or ask for fewer",
            args.idle,
            args.slow,
            limit.maximum.unwrap_or_default()
        );
    }
    let current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current, ..limit })?)
}

/// All pairs of windows of one server; their cell.
fn measure(braid: &Path, kind: Kind, args: &Args) -> Result<Value> {
    let served = Served::start(braid, kind)?;
    let honest = Honest::start(&served.place)?;
    sleep(SETTLE);
    let before = served.look()?;
    let mut alone = window(&served, &honest, args)?;
    let mut pairs = Vec::new();
    for _ in 0..args.timing.rounds {
        let (pair, beside) = under_load(&served, &honest, &before, args)?;
        await_empty(&served, before.descriptors)?;
        sleep(SETTLE);
        let next = window(&served, &honest, args)?;
        let [rate, cpu] = [0, 1].map(|at| f64::midpoint(alone[at], next[at]));
        alone = next;
        pairs.push(with(
            pair,
            json!({
                "alone_per_s": rate, "alone_cpu": cpu, "ratio": beside[0] / rate,
                // Beyond what the honest client's reads cost alone.
                "hostile_cpu": (beside[1] - beside[0] * cpu / rate).max(0.0),
            }),
        ));
    }
    honest.end()?;
    let mut cell = summary(&pairs, &COLUMNS);
    for key in WORST {
        cell[key] = json!(sorted(&pairs, key).last());
    }
    let newcomers = sorted(&pairs, "newcomer_ms").len();
    let least = sorted(&pairs, "held").first().copied();
    let own = json!({"server": kind.name(), "idle": args.idle, "slow": args.slow,
                     "newcomers": newcomers, "held_least": least});
    Ok(with(cell, own))
}

/// A window with the load: its facts; and the honest client's rate and the server's processor time.
fn under_load(
    served: &Served,
    honest: &Honest,
    before: &Look,
    args: &Args,
) -> Result<(Value, [f64; 2])> {
    let plan = Plan {
        idle: args.idle,
        slow: args.slow,
        pace: PACE,
    };
    let load = Load::start(&served.place, plan)?;
    sleep(SETTLE);
    let beside = window(served, honest, args)?;
    let (count, look) = (&load.count, served.look()?);
    let held = count.held.load(Ordering::Relaxed);
    let begun = Instant::now();
    let newcomer = served.place.queue(0, 2).is_ok();
    let newcomer_ms = newcomer.then(|| begun.elapsed().as_secs_f64() * 1e3);
    // The bound of docs/security.md, KiB: idle ones have no requests, and are sent next to nothing.
    let tables = held * TABLES_KIB + args.slow as u64 * (PAGES_KIB + REQUESTS_KIB);
    let bound = before.resident + tables + (served::BUFFERS_MIB << 10) + SHARED_KIB;
    let added = look.resident.saturating_sub(before.resident) as f64 * 1024.0;
    let mib = |kib: u64| kib as f64 / 1024.0;
    let facts = json!({
        "beside_per_s": beside[0], "beside_cpu": beside[1],
        "held": held, "cut": count.cut.load(Ordering::Relaxed),
        "refused": count.refused.load(Ordering::Relaxed), "descriptors": look.descriptors,
        "mib_before": mib(before.resident), "mib": mib(look.resident),
        "mib_peak": mib(look.peak), "mib_bound": mib(bound), "mib_tcp": mib(look.tcp),
        "bytes_per_connection": added / held.max(1) as f64, "newcomer_ms": newcomer_ms,
    });
    Ok((facts, beside))
}

/// The honest client's rate, and the server's processor time, per second.
fn window(served: &Served, honest: &Honest, args: &Args) -> Result<[f64; 2]> {
    let (begun, done, cpu) = (Instant::now(), honest.done(), served.look()?.cpu);
    sleep(Duration::from_secs_f64(args.timing.seconds));
    let seconds = begun.elapsed().as_secs_f64();
    let (done, cpu) = (honest.done() - done, served.look()?.cpu - cpu);
    ensure!(
        done > 0,
        "the honest client is not served: {}",
        served.said()
    );
    Ok([done as f64 / seconds, cpu / seconds])
}

/// Until the server has let go of the hostile ones.
fn await_empty(served: &Served, descriptors: u64) -> Result<()> {
    let begun = Instant::now();
    while served.look()?.descriptors > descriptors {
        if begun.elapsed() > EMPTY {
            let count = served.look()?.descriptors;
            bail!("the server still has {count} descriptors, {descriptors} before");
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A thread that works until it is told to end; it is when this is dropped.
struct Background<T> {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Background<T> {
    fn spawn(work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> Self {
        let ends = Arc::<AtomicBool>::default();
        let told = Arc::clone(&ends);
        let thread = Some(thread::spawn(move || work(&told)));
        Self { ends, thread }
    }
}

impl<T> Background<T> {
    /// Ends it; its result.
    fn end(&mut self) -> Result<T> {
        self.ends.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("a thread has ended before")?;
        thread.join().map_err(|_| anyhow!("a thread panicked"))
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
