//! Cost of an I/O of a hardware queue beside the bare exchange of entries of the same sizes.
//!
//! # Contract
//! Random reads of a null namespace, of 4 KiB or of sizes whose lists of pages are long, server and
//! client on a core each, trusted and mediated, beside a ping-pong through shared memory on the
//! same two CPUs. All are run in turn, several rounds; the figure is the median over rounds, the
//! ratio that of each round, so that what the machine does besides hits all of them. Then one I/O
//! at a time where either side sleeps, and the instructions of either side.
mod bare;
mod cost;
mod wakes;

use crate::prelude::*;

/// Which cells, how long.
#[derive(clap::Args)]
pub struct Args {
    /// Seconds of each run.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds; odd gives a true median.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// I/Os outstanding.
    #[arg(long, value_delimiter = ',', default_value = "1,32,128")]
    depths: Vec<usize>,
    /// Bytes of an I/O, as fio writes them; 64k has a list of 16 pages, 1m one of 256.
    #[arg(long, value_delimiter = ',', default_value = "4k")]
    sizes: Vec<String>,
    /// Kinds of queue.
    #[arg(long, value_delimiter = ',', default_value = "user_poll,user_irq")]
    kinds: Vec<String>,
    /// CPUs of client and server.
    #[arg(long, value_delimiter = ',', num_args = 1, default_value = "0,1")]
    cpus: Vec<usize>,
    /// How long the server spins, µs.
    #[arg(long, default_value_t = 1_000_000)]
    spin_us: u64,
    /// Don't count instructions (which needs valgrind).
    #[arg(long)]
    no_cost: bool,
    /// Don't measure what waking costs.
    #[arg(long)]
    no_wakes: bool,
}

/// Calls of `io_uring_enter` by the server's threads that serve queues, per I/O: interrupts, and
/// sleeping.
const SERVER_ENTERS: &str = "server_enters_per_io";

/// Figures of a load that are shown.
const FIGURES: [&str; 6] = [
    "iops",
    "mean_us",
    "p99_us",
    "system_calls_per_io",
    SERVER_ENTERS,
    "empty_polls_share",
];

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

/// One row of the table.
struct Row {
    kind: String,
    size: String,
    depth: usize,
    bare: Vec<f64>,
    /// Of the trusted server, and of the mediated one.
    braid: [Vec<Value>; 2],
}

/// Of a server, in its directory.
const SOCKET: &str = "queue.sock";

/// On which CPUs, and how long a server spins that is to stay awake.
struct Ends {
    client: usize,
    server: usize,
    spin_us: u64,
}

/// Load of a client.
#[derive(Clone, Copy)]
struct Load<'a> {
    kind: &'a str,
    size: &'a str,
    depth: usize,
}

/// A queue server; ended when dropped.
struct QueueServer(Server);

impl QueueServer {
    /// `braid`: the program, perhaps behind one that watches it.
    fn spawn(mut braid: Command, trusted: bool, cpu: usize, spin_us: u64) -> Result<Self> {
        let directory = server::directory()?;
        braid.args(["queue", "serve", "null:1TiB"]);
        braid.arg("--socket").arg(directory.join(SOCKET));
        braid.arg(format!("--cpus={cpu}"));
        braid.arg(format!("--spin-us={spin_us}"));
        if trusted {
            braid.arg("--trusted");
        }
        // It names its socket when it serves.
        let is_ready = |server: &Server| server.said().contains(SOCKET);
        Ok(Self(Server::start(directory, &mut braid, is_ready)?))
    }

    fn socket(&self) -> PathBuf {
        self.0.file(SOCKET)
    }

    /// How often its threads that serve queues have entered the kernel through io_uring.
    fn enters(&self, braid: &Path) -> Result<f64> {
        let mut list = Command::new(braid);
        list.args(["queue", "list", "-o", "json", "--socket"]);
        let shown = facts(list.arg(self.socket()))?;
        let threads = shown["threads"].as_array().context("threads")?;
        threads.iter().map(|it| number(it, "enters")).sum()
    }

    /// A load on it; `braid` as for the server.
    fn client(&self, mut braid: Command, load: &Load<'_>, seconds: f64, cpu: usize) -> Command {
        let Load { kind, size, depth } = load;
        braid.args(["queue", "bench", "-o", "json", "--rw", "randread"]);
        braid.arg(format!("--bs={size}"));
        braid.arg("--socket").arg(self.socket());
        braid.arg(format!("--kind={kind}"));
        braid.arg(format!("--iodepth={depth}"));
        braid.arg(format!("--runtime={seconds}"));
        braid.arg(format!("--cpus={cpu}"));
        braid
    }
}

/// Measures every cell.
pub fn run(setup: &Setup, args: &Args) -> Result<()> {
    let [client, server] = args.cpus[..] else {
        bail!("--cpus: two of them, CLIENT,SERVER")
    };
    let ends = Ends {
        client,
        server,
        spin_us: args.spin_us,
    };
    let braid = setup.braid()?;
    let mut rows = rows(args);
    for _ in 0..args.rounds {
        for row in &mut rows {
            row.measure(&braid, &ends, args.seconds)?;
        }
    }
    let wakes = match args.no_wakes {
        true => Vec::new(),
        false => wakes::measure(&braid, args.rounds, args.seconds, &ends)?,
    };
    let costs = match args.no_cost {
        true => Vec::new(),
        false => cost::count(&braid, &args.sizes, &args.depths, &ends)?,
    };
    let cells: Result<Vec<[Value; 2]>> = rows.iter().map(Row::cells).collect();
    let cells = cells?.concat();
    if setup.output == Format::Json {
        println!(
            "{}",
            json!({ "cells": cells, "wakes": wakes, "costs": costs })
        );
        return Ok(());
    }
    println!("random reads of nothing, a core each side; medians over rounds, and their range");
    println!("per I/O: the client's system calls, the server's enters");
    print!("{}", table::text(&COLUMNS, &cells));
    if !wakes.is_empty() {
        println!("\none I/O at a time, mediated: what waking costs");
        if let Some(alone) = rows.iter().find(|row| row.depth == 1) {
            println!("bare exchange: {:.2} µs", 1e6 / median(alone.bare.clone()));
        }
        print!("{}", table::text(&wakes::COLUMNS, &wakes));
    }
    if !costs.is_empty() {
        println!("\ninstructions per I/O, user_poll (callgrind)");
        print!("{}", table::text(&cost::COLUMNS, &costs));
    }
    println!("load average of the machine: {}", super::load_average());
    Ok(())
}

/// All cells, not measured yet.
fn rows(args: &Args) -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in &args.kinds {
        for size in &args.sizes {
            rows.extend(args.depths.iter().map(|&depth| Row {
                kind: kind.clone(),
                size: size.clone(),
                depth,
                bare: Vec::new(),
                braid: [Vec::new(), Vec::new()],
            }));
        }
    }
    rows
}

impl Row {
    /// Once: the bare exchange, then either server.
    fn measure(&mut self, braid: &Path, ends: &Ends, seconds: f64) -> Result<()> {
        let duration = Duration::from_secs_f64(seconds);
        let cpus = [ends.client, ends.server];
        self.bare
            .push(bare::run(self.depth as u64, cpus, duration)?);
        let load = Load {
            kind: &self.kind,
            size: &self.size,
            depth: self.depth,
        };
        for (trusted, figures) in [true, false].into_iter().zip(&mut self.braid) {
            // One server at a time: another one that spins would have the same CPU.
            let server =
                QueueServer::spawn(Command::new(braid), trusted, ends.server, ends.spin_us)?;
            let mut command = server.client(Command::new(braid), &load, seconds, ends.client);
            let before = server.enters(braid)?;
            let mut facts = facts(command.arg("--ramp-time=100ms"))?;
            let enters = server.enters(braid)? - before;
            facts[SERVER_ENTERS] = json!(enters / number(&facts, "ios")?);
            figures.push(facts);
        }
        Ok(())
    }

    /// Of each round.
    fn figures(&self, which: usize, key: &str) -> Result<Vec<f64>> {
        let rounds = self.braid[which].iter();
        rounds.map(|facts| number(facts, key)).collect()
    }

    /// Of the trusted server, and of the mediated one.
    fn cells(&self) -> Result<[Value; 2]> {
        let of_trusted = parts(&self.figures(1, "iops")?, &self.figures(0, "iops")?);
        let mut cells = ["trusted", "mediated"].map(|trust| {
            json!({
                "kind": self.kind,
                "size": self.size,
                "trust": trust,
                "depth": self.depth,
                "bare_per_s": median(self.bare.clone()),
            })
        });
        for (which, cell) in cells.iter_mut().enumerate() {
            let rates = self.figures(which, "iops")?;
            cell["iops_range"] = json!(range(&rates));
            cell["of_bare"] = json!(median(parts(&rates, &self.bare)));
            for key in FIGURES {
                cell[key] = json!(median(self.figures(which, key)?));
            }
        }
        cells[1]["of_trusted_range"] = json!(range(&of_trusted));
        cells[1]["of_trusted"] = json!(median(of_trusted));
        Ok(cells)
    }
}
