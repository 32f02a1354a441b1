//! Cost of an I/O of a hardware queue beside the bare exchange of entries of the same sizes.
//!
//! # Contract
//! Random reads of a null namespace, of 4 KiB or of sizes whose lists of pages are long, server and
//! client on a core each, trusted and mediated, beside a ping-pong through shared memory on the
//! same two CPUs. All are run in turn, several rounds; the figure is the median over rounds, the
//! ratio that of each round, so that what the machine does besides hits all of them. Then one I/O
//! at a time where either side sleeps, and the instructions of the client.
mod bare;
mod cost;
mod wakes;

use crate::memory::switches;
use crate::prelude::*;

/// Which cells, how long.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    sides: Sides,
    /// I/Os outstanding.
    #[arg(long, value_delimiter = ',', default_value = "1,32,128")]
    depths: Vec<usize>,
    /// Bytes of an I/O, as fio writes them; 64k has a list of 16 pages, 1m one of 256.
    #[arg(long, value_delimiter = ',', default_value = "4k")]
    sizes: Vec<String>,
    /// Kinds of queue.
    #[arg(long, value_delimiter = ',', default_value = "user_poll,user_irq")]
    kinds: Vec<String>,
    /// How long the server spins, µs.
    #[arg(long, default_value_t = 1_000_000)]
    spin_us: u64,
    /// Don't count instructions of the client (which needs valgrind).
    #[arg(long)]
    no_cost: bool,
    /// Don't measure what waking costs.
    #[arg(long)]
    no_wakes: bool,
}

/// Calls of `io_uring_enter` by the server's threads that serve queues, per I/O: interrupts, and
/// sleeping.
const SERVER_ENTERS: &str = "server_enters_per_io";

const COLUMNS: [Column; 15] = [
    ("kind", "kind", 0),
    ("size", "size", 0),
    ("trust", "trust", 0),
    ("depth", "depth", 0),
    ("bare_per_s", "bare/s", 0),
    ("iops", "braid/s", 0),
    ("iops_range", "range", 0),
    ("of_bare", "of bare", 3),
    ("of_trusted", "of trusted", 3),
    ("of_trusted_range", "range", 2),
    ("mean_us", "mean µs", 2),
    ("p99_us", "p99 µs", 2),
    ("system_calls_per_io", "calls", 3),
    (SERVER_ENTERS, "enters", 3),
    ("empty_polls_share", "empty", 3),
];

/// Of a server, in its directory.
const SOCKET: &str = "queue.sock";

/// The load of a client: kind of queue, size of an I/O, I/Os outstanding.
type Load<'a> = (&'a str, &'a str, usize);

/// A queue server; ended when dropped.
struct QueueServer(Server);

impl QueueServer {
    fn spawn(mut braid: Command, trust: &str, args: &Args, spin_us: u64) -> Result<Self> {
        let directory = server::directory()?;
        let cpu = args.sides.cpus[1];
        let words = format!("queue serve null:1TiB --cpus={cpu} --spin-us={spin_us}");
        braid
            .args(words.split(' '))
            .arg("--socket")
            .arg(directory.join(SOCKET));
        if trust == "trusted" {
            braid.arg("--trusted");
        }
        // It names its socket when it serves.
        let is_ready = |server: &Server| server.said().contains(SOCKET);
        Ok(Self(Server::start(directory, &mut braid, is_ready)?))
    }

    /// How often its threads that serve queues have entered the kernel through io_uring.
    fn enters(&self, braid: &Path) -> Result<f64> {
        let mut list = Command::new(braid);
        list.args("queue list -o json --socket".split(' '));
        let shown = facts(list.arg(self.0.file(SOCKET)))?;
        let threads = shown["threads"].as_array().context("threads")?;
        threads.iter().map(|it| number(it, "enters")).sum()
    }

    /// How often all of its threads have waited.
    fn sleeps(&self) -> Result<f64> {
        Ok(switches(self.0.id())?.values().sum::<u64>() as f64)
    }

    /// Facts of a load on it; `braid`: the program, perhaps behind one that watches it.
    fn run(&self, mut braid: Command, load: Load<'_>, seconds: f64, args: &Args) -> Result<Value> {
        let ((kind, size, depth), cpu) = (load, args.sides.cpus[0]);
        let words = format!(
            "queue bench -o json --rw randread --bs={size} --kind={kind} --iodepth={depth} \
             --runtime={seconds} --ramp-time=100ms --cpus={cpu} --socket"
        );
        facts(braid.args(words.split(' ')).arg(self.0.file(SOCKET)))
    }
}

/// Facts of a load on a server of its own, which spins so long; and what its threads did. One
/// server at a time: another one that spins would have the same CPU.
fn measure(braid: &Path, trust: &str, load: Load<'_>, args: &Args, spin_us: u64) -> Result<Value> {
    let server = QueueServer::spawn(Command::new(braid), trust, args, spin_us)?;
    let (slept, entered) = (server.sleeps()?, server.enters(braid)?);
    let run = server.run(Command::new(braid), load, args.sides.timing.seconds, args)?;
    let (sleeps, ios) = (server.sleeps()? - slept, number(&run, "ios")?);
    let enters = server.enters(braid)? - entered;
    let own = json!({"server_sleeps_per_io": sleeps / ios, SERVER_ENTERS: enters / ios});
    Ok(with(run, own))
}

/// Measures every cell.
pub fn run(setup: &Setup, args: &Args) -> Result<()> {
    let braid = setup.braid()?;
    let trusts = product(&args.depths, &["trusted", "mediated"]);
    let rows = product(&product(&args.kinds, &args.sizes), &trusts);
    let duration = Duration::from_secs_f64(args.sides.timing.seconds);
    let (mut bare, mut trusted, mut bare_us) = (f64::NAN, Value::Null, String::new());
    let cells = interleaved(args.sides.timing.rounds, &rows, &COLUMNS, |row| {
        let ((kind, size), (depth, trust)) = row;
        let is_trusted = *trust == "trusted";
        if is_trusted {
            bare = bare::run(*depth as u64, args.sides.cpus, duration)?;
        }
        let facts = measure(&braid, trust, (kind, size, *depth), args, args.spin_us)?;
        let of_trusted = match is_trusted {
            true => Value::Null,
            false => ratio(&facts, &trusted, "iops"),
        };
        let of_bare = number(&facts, "iops")? / bare;
        let words = json!({
            "kind": kind, "size": size, "trust": trust, "depth": depth,
            "bare_per_s": bare, "of_bare": of_bare, "of_trusted": of_trusted,
        });
        trusted = facts.clone();
        Ok(with(facts, words))
    })?;
    if let Some(alone) = cells.iter().find(|it| it["depth"] == 1) {
        let us = 1e6 / number(alone, "bare_per_s")?;
        bare_us = format!("\nbare exchange: {us:.2} µs");
    }
    let wakes = match args.no_wakes {
        true => Vec::new(),
        false => wakes::measure(&braid, args)?,
    };
    let costs = match args.no_cost {
        true => Vec::new(),
        false => cost::count(&braid, args)?,
    };
    let title = "random reads of nothing, a core each side; medians over rounds, and their range\n\
                 per I/O: the client's system calls, the server's enters";
    let waking = format!("one I/O at a time, mediated: what waking costs{bare_us}");
    let counted = "instructions of the client per I/O, user_poll, mediated (callgrind)".into();
    let parts = [
        ("cells", title.into(), &COLUMNS[..], cells),
        ("wakes", waking, &wakes::COLUMNS[..], wakes),
        ("costs", counted, &cost::COLUMNS[..], costs),
    ];
    table::print(setup.output, &parts);
    Ok(())
}
