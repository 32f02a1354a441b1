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
use honest::Honest;
use hostile::{Load, Plan};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use served::{Kind, Look, Served};

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
pub struct Args {
    /// Idle connections: silent, stopped in the handshake, and logged in.
    #[arg(long, default_value_t = 10_000)]
    idle: usize,
    /// Slow ones: a byte per pace of a request, of a write's data, or of the answers.
    #[arg(long, default_value_t = 1_000)]
    slow: usize,
    /// Pairs of windows.
    #[arg(long, default_value_t = 15)]
    pairs: usize,
    /// Seconds of a window.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
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

/// A window with the load.
struct Loaded {
    /// Of the honest client, per second; and of the mean of the windows beside it.
    rate: f64,
    ratio: f64,
    /// Processor time of the server per second.
    cpu: f64,
    look: Look,
    held: u64,
    cut: u64,
    refused: u64,
    /// A new honest client's first answer, ms.
    newcomer: Option<f64>,
}

/// One server.
struct Row {
    kind: Kind,
    before: Look,
    /// Rates without the load, and processor time.
    alone: Vec<f64>,
    alone_cpu: Vec<f64>,
    loaded: Vec<Loaded>,
}

/// Measures and prints.
pub fn run(setup: &Setup, args: &Args) -> Result<()> {
    raise_open_files(args)?;
    ensure!(
        args.pairs > 0 && args.seconds > 0.0,
        "no windows to measure"
    );
    // The check has built this one.
    let built = || super::build(&setup.root, &["--bin", "braid"]);
    let braid = setup.braid.clone().map_or_else(built, Ok)?;
    let mut rows: Vec<Row> = Vec::new();
    for &kind in &args.servers {
        rows.push(measure(&braid, kind, args)?);
    }
    let title = format!(
        "an honest client, alone and beside {} idle and {} slow connections; {} pairs of windows",
        args.idle, args.slow, args.pairs
    );
    let cells: Vec<Value> = rows.iter().map(|row| row.cell(args)).collect();
    table::print(setup.output, &title, &COLUMNS, &cells);
    for row in &rows {
        let (most, bound) = (row.peak(), row.bound(args.slow));
        ensure!(
            most <= bound,
            "{}: {most} KiB of memory, and docs/security.md allows {bound} KiB",
            row.kind.name()
        );
        let held = row.loaded.iter().map(|it| it.held).min().unwrap_or(0);
        let wanted = (args.idle + args.slow) as u64;
        ensure!(
            held * 10 >= wanted * 9,
            "{}: of {wanted} hostile connections only {held} were there in a window: nothing was \
             shown by that",
            row.kind.name()
        );
        let [ratio, ..] = row.ratios();
        ensure!(
            ratio >= args.least,
            "{}: the honest client had {ratio:.3} of its rate beside them, and {} is asked for; \
             on a machine that is busy otherwise let more windows pass (--pairs)",
            row.kind.name(),
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

fn measure(braid: &Path, kind: Kind, args: &Args) -> Result<Row> {
    let served = Served::start(braid, kind)?;
    let honest = Honest::start(&served.place)?;
    sleep(SETTLE);
    let mut row = Row {
        kind,
        before: served.look()?,
        alone: Vec::new(),
        alone_cpu: Vec::new(),
        loaded: Vec::new(),
    };
    let (rate, cpu) = window(&served, &honest, args)?;
    row.alone.push(rate);
    row.alone_cpu.push(cpu);
    for _ in 0..args.pairs {
        let mut loaded = under_load(&served, &honest, args)?;
        await_empty(&served, row.before.descriptors)?;
        sleep(SETTLE);
        let before = row.alone.last().copied().unwrap_or(f64::NAN);
        let (rate, cpu) = window(&served, &honest, args)?;
        row.alone.push(rate);
        row.alone_cpu.push(cpu);
        loaded.ratio = 2.0 * loaded.rate / (before + rate);
        row.loaded.push(loaded);
    }
    honest.end()?;
    Ok(row)
}

fn under_load(served: &Served, honest: &Honest, args: &Args) -> Result<Loaded> {
    let plan = Plan {
        idle: args.idle,
        slow: args.slow,
        pace: PACE,
    };
    let load = Load::start(&served.place, plan)?;
    sleep(SETTLE);
    let (rate, cpu) = window(served, honest, args)?;
    let (held, look) = (load.held(), served.look()?);
    let begun = Instant::now();
    let newcomer = served.place.queue(0, 2).is_ok();
    let newcomer = newcomer.then(|| begun.elapsed().as_secs_f64() * 1e3);
    let (cut, refused) = load.cut_and_refused();
    Ok(Loaded {
        rate,
        ratio: f64::NAN,
        cpu,
        look,
        held,
        cut,
        refused,
        newcomer,
    })
}

/// The honest client's rate, and the server's processor time, per second.
fn window(served: &Served, honest: &Honest, args: &Args) -> Result<(f64, f64)> {
    let (begun, done, cpu) = (Instant::now(), honest.done(), served.look()?.cpu);
    sleep(Duration::from_secs_f64(args.seconds));
    let seconds = begun.elapsed().as_secs_f64();
    let (done, cpu) = (honest.done() - done, served.look()?.cpu - cpu);
    ensure!(
        done > 0,
        "the honest client is not served: {}",
        served.said()
    );
    Ok((done as f64 / seconds, cpu / seconds))
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

impl Row {
    /// Resident memory that a hostile connection added, bytes: the worst window.
    fn per_connection(&self) -> f64 {
        let added = self.loaded.iter().map(|loaded| {
            let kib = loaded.look.resident.saturating_sub(self.before.resident);
            kib as f64 * 1024.0 / loaded.held.max(1) as f64
        });
        added.fold(0.0, f64::max)
    }

    /// Most resident memory, KiB.
    fn peak(&self) -> u64 {
        let peaks = self.loaded.iter().map(|of| of.look.peak);
        peaks.max().unwrap_or(0)
    }

    /// Memory that docs/security.md allows for as many connections as were held, KiB. Idle ones
    /// have no requests, and are sent next to nothing.
    fn bound(&self, slow: usize) -> u64 {
        let held = self.loaded.iter().map(|of| of.held).max().unwrap_or(0);
        let connections = held * TABLES_KIB + slow as u64 * (PAGES_KIB + REQUESTS_KIB);
        self.before.resident + connections + (served::BUFFERS_MIB << 10) + SHARED_KIB
    }

    /// Processor time of the server per second that is not the honest client's, by what its reads
    /// cost alone: the median.
    fn hostile_cpu(&self) -> f64 {
        let alone: f64 = self.alone.iter().sum();
        let read = self.alone_cpu.iter().sum::<f64>() / alone;
        let beyond = self.loaded.iter().map(|of| of.cpu - read * of.rate);
        median(beyond.collect()).max(0.0)
    }

    fn ratios(&self) -> [f64; 3] {
        let ratios: Vec<f64> = self.loaded.iter().map(|loaded| loaded.ratio).collect();
        let [least, most] = range(&ratios);
        [median(ratios), least, most]
    }

    fn cell(&self, args: &Args) -> Value {
        let [ratio, least, most] = self.ratios();
        let worst = |of: fn(&Loaded) -> u64| self.loaded.iter().map(of).max().unwrap_or(0);
        let mib = |kib: u64| kib as f64 / 1024.0;
        let newcomers: Vec<f64> = self.loaded.iter().filter_map(|of| of.newcomer).collect();
        json!({
            "server": self.kind.name(), "idle": args.idle, "slow": args.slow,
            "alone_per_s": median(self.alone.clone()),
            "beside_per_s": middle(&self.loaded, |of| of.rate),
            "ratio": ratio, "ratio_range": [least, most],
            "held": worst(|of| of.held), "cut": worst(|of| of.cut),
            "refused": worst(|of| of.refused), "descriptors": worst(|of| of.look.descriptors),
            "mib_before": mib(self.before.resident), "mib": mib(worst(|of| of.look.resident)),
            "mib_peak": mib(self.peak()), "mib_bound": mib(self.bound(args.slow)),
            "bytes_per_connection": self.per_connection(),
            "mib_tcp": mib(worst(|of| of.look.tcp)),
            "alone_cpu": median(self.alone_cpu.clone()),
            "beside_cpu": middle(&self.loaded, |of| of.cpu), "hostile_cpu": self.hostile_cpu(),
            "newcomer_ms": median(newcomers.clone()), "newcomers": newcomers.len(),
        })
    }
}
