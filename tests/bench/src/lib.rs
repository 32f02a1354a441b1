//! Measurements of braid's programs: `cargo xtask bench …`.
//!
//! # Contract
//! Figures are printed, never judged: wall time gates nothing on a shared machine.
#![forbid(unsafe_code)]

mod busy;
mod callgrind;
mod connections;
mod cores;
mod equal;
mod fio;
mod layers;
mod memory;
mod mirror;
mod nbd;
mod pingpong;
mod policy;
mod prelude;
mod queue;
mod rounds;
mod server;
mod table;
mod wire;

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use system::figures::Format;
use system::program::{self, build, build_dist};

/// The part to measure, the program, and the form of the figures.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    task: Task,
    #[command(flatten)]
    setup: Setup,
}

/// How often and how long everything runs that is compared.
#[derive(clap::Args)]
struct Timing {
    /// Seconds of each run.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds, in each of which everything runs once; odd gives a true median.
    #[arg(long, visible_alias = "pairs", default_value_t = 5,
          value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
}

/// The same where either side has a CPU of its own.
#[derive(clap::Args)]
struct Sides {
    #[command(flatten)]
    timing: Timing,
    /// CPUs of host, or client, and of target, or server.
    #[arg(long, default_value = "0,1", value_parser = two)]
    cpus: [usize; 2],
}

fn two(text: &str) -> Result<[usize; 2]> {
    let (first, second) = text.split_once(',').context("two of them, as in 0,1")?;
    Ok([first.parse()?, second.parse()?])
}

#[derive(clap::Args)]
struct Setup {
    /// Output format.
    #[arg(short, long, global = true, value_enum, default_value = "text")]
    output: Format,
    /// A braid that was built before, instead of building it.
    #[arg(long, global = true, value_name = "PROGRAM")]
    braid: Option<PathBuf>,
    #[arg(skip)]
    root: PathBuf,
}

impl Setup {
    /// The braid to measure, built as it is installed unless one was given.
    fn braid(&self) -> Result<PathBuf> {
        let built = || build_dist(&self.root, &["--bin", "braid"]);
        self.braid.clone().map_or_else(built, Ok)
    }

    /// Shows one table: see [`table::print`].
    fn show(&self, title: &str, columns: &[table::Column], cells: Vec<serde_json::Value>) {
        table::print(self.output, &[("cells", title.to_owned(), columns, cells)]);
    }
}

#[derive(clap::Subcommand)]
enum Task {
    /// Instructions per select + complete, by policy and number of paths (callgrind).
    Policy,
    /// Instructions per I/O of each layer (callgrind).
    Layers,
    /// A policy beside round-robin over one path and over equal paths (real I/O).
    Equal(equal::Args),
    /// Policies over the demo's two paths, beside busy loops.
    Busy(busy::Args),
    /// Wire I/Os beside a bare ping-pong of the same messages.
    Wire(wire::Args),
    /// Memory and wake-ups of an engine that is connected and idle.
    Memory(memory::Args),
    /// A mirror under fio: policies over its legs, its intent bitmap.
    Mirror(mirror::Args),
    /// An NBD export under fio, beside nbdkit's memory disk.
    Nbd(nbd::Args),
    /// Four NBD clients of a volume on one core and on two: where I/Os end, processor time.
    Cores(cores::Args),
    /// I/Os of hardware queues beside a bare ping-pong through shared memory.
    Queue(queue::Args),
    /// Thousands of idle and slow connections beside an honest client.
    Connections(connections::Args),
}

/// Measures and prints.
pub fn run(root: &Path, args: Args) -> Result<ExitCode> {
    let Args { task, mut setup } = args;
    setup.root = root.to_path_buf();
    match &task {
        Task::Policy => policy::run(&setup),
        Task::Layers => layers::run(&setup),
        Task::Equal(args) => equal::run(&setup, args),
        Task::Busy(args) => busy::run(&setup, args),
        Task::Wire(args) => wire::run(&setup, args),
        Task::Memory(args) => memory::run(&setup, args),
        Task::Mirror(args) => mirror::run(&setup, args),
        Task::Nbd(args) => nbd::run(&setup, args),
        Task::Cores(args) => cores::run(&setup, args),
        Task::Queue(args) => queue::run(&setup, args),
        Task::Connections(args) => connections::run(&setup, args),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// # Errors
/// `program` is not installed: the package that has it.
fn needs(program: &str, package: &str) -> Result<()> {
    let is_there = system::process::is_installed(program);
    anyhow::ensure!(
        is_there,
        "{program} is not installed: apt-get install {package}"
    );
    Ok(())
}

/// Processor time of all children that have ended.
fn children_seconds() -> Result<f64> {
    cpu_seconds(&std::fs::read_to_string("/proc/self/stat")?, CHILDREN)
}

/// Fields of `/proc/PID/stat`: user time of the process itself, and of its children that have
/// ended. System time is in the next one.
const OWN: usize = 14;
const CHILDREN: usize = 16;

/// Processor time from `/proc/PID/stat`, as the kernel counts it (in ticks).
///
/// # Errors
/// There is none in the text.
fn cpu_seconds(stat: &str, first: usize) -> Result<f64> {
    let ticks = ticks(stat, first).with_context(|| format!("no times in {stat:?}"))?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Names, which may hold anything, end at the last bracket; field 3 is behind it.
fn ticks(stat: &str, first: usize) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let times = fields.split_whitespace().skip(first - 3).take(2);
    let times: Vec<u64> = times.map_while(|field| field.parse().ok()).collect();
    (times.len() == 2).then(|| times.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::{CHILDREN, OWN, ticks};

    #[test]
    fn times_stand_behind_the_name() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 300 20 15 16";
        assert_eq!(ticks(stat, CHILDREN), Some(320));
        assert_eq!(ticks("7 (a) S 1 2", CHILDREN), None);
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 300 20 11 12 15 16";
        assert_eq!(ticks(stat, OWN), Some(320));
    }
}
