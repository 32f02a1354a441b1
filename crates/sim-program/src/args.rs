//! The words of `braid sim`.
//!
//! Compiled twice: here, and as a module of `braid`, which shows them in its help, man pages and
//! completions and refuses what they refuse, whether or not this program is installed.
use policy::Policy;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;
use terminal::limits::THREADS_MAX;
use terminal::output::Format;
use terminal::units::parse_duration;

/// Returns the version of the simulator that knows these words: that of the package, and a checksum
/// of this file, since two builds of one version can have different words.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let words = include_str!("args.rs").bytes();
        // FNV-1a.
        let sum = words.fold(0x811c_9dc5_u32, |sum, byte| {
            (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        format!("{} (words {sum:08x})", env!("CARGO_PKG_VERSION"))
    });
    &VERSION
}

/// Compare policies in simulated worlds, against the best that could be had
///
/// Everything happens in virtual time: the same seed gives the same figures everywhere. A table
/// shows, for each policy, its throughput (with --iops: its mean latency) in percent of the bound,
/// and its 99 % latency beside that of the best static split.
#[derive(Clone, Debug, clap::Args)]
pub struct SimArgs {
    /// Scenarios by name, stories (a file's name without .toml: all that it holds), or files;
    /// train:N, validation:N, test:N and wide@SEED:N are N random ones, train-7 the one that tables
    /// call so
    /// [default: list them]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Every scenario that comes with braid
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// Also weighted-latency with its window of 15 s; without, 50 ms
    #[arg(long)]
    pub long: bool,
    /// Policies to compare, in this order; program:FILE is a WebAssembly module that chooses
    /// [default: numa,round-robin,queue-depth,weighted-latency,soonest, and what a scenario adds
    /// itself]
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = Choosing::parse)]
    pub policy: Vec<Choosing>,
    /// Programs may import the calls of WASI that Go needs; they do nothing
    #[arg(long, requires = "policy")]
    pub wasi: bool,
    /// Also soonest with second copies of late reads: nowhere, or everywhere [default: where a
    /// scenario says so]
    #[arg(long, value_enum, value_name = "WORD")]
    pub hedge: Option<HedgeWord>,
    /// First value of the random sequence
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    pub seed: u64,
    /// Threads, at most 256
    #[arg(short, long, value_name = "N", default_value_t = threads(),
        allow_negative_numbers = true)]
    pub jobs: usize,
    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Write a plot over all of them to this file
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Also compare each policy with the first one, world by world
    #[arg(long)]
    pub pairs: bool,
    /// Also compare each policy with itself in the results of another build: what `-o json` printed
    /// for the same worlds and seed
    #[arg(long, value_name = "FILE.json")]
    pub before: Option<PathBuf>,
    /// Compare the tables with DIR/STORY.txt; exit code 1 if they differ
    #[arg(long, value_name = "DIR", conflicts_with = "names")]
    pub check: Option<PathBuf>,
    /// Write the tables to DIR/STORY.txt instead
    #[arg(long, value_name = "DIR", conflicts_with_all = ["names", "check"])]
    pub snapshot: Option<PathBuf>,
    /// Write the bounds to a file, as scenarios/bounds.tsv
    #[arg(long, value_name = "FILE", hide = true)]
    pub keep_bounds: Option<PathBuf>,
    /// Take the bounds of these worlds from such a file
    #[arg(long, value_name = "FILE", hide = true)]
    pub bounds: Option<PathBuf>,
    /// Show results for people or for programs
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Format,
    #[command(flatten)]
    pub chaos: ChaosArgs,
}

/// A policy to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choosing {
    /// One of braid's.
    Policy(Policy),
    /// A program's file.
    Program(PathBuf),
}

impl Choosing {
    fn parse(text: &str) -> Result<Self, policy::PolicyError> {
        match text.strip_prefix("program:") {
            Some(file) if !file.is_empty() => Ok(Self::Program(file.into())),
            _ => Policy::parse(text).map(Self::Policy),
        }
    }
}

/// Whether late reads get second copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HedgeWord {
    /// Nowhere
    Off,
    /// Wherever the policy predicts
    On,
}

fn threads() -> usize {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    all.min(THREADS_MAX)
}

/// The engine itself in worlds full of faults.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Worlds of chaos")]
pub struct ChaosArgs {
    /// Instead of comparing policies: run the whole engine in random worlds full of faults, one for
    /// each seed from --seed on, and look for what no disk does. Exit code 1 on a finding; the last
    /// line then repeats it. Exit code 130 where nothing was found until it was interrupted, 3
    /// where it could not be told
    #[arg(long, conflicts_with_all = ["names", "all", "long", "policy", "wasi", "hedge", "report",
        "plot", "check", "snapshot", "keep_bounds", "bounds", "pairs", "before"])]
    pub chaos: bool,
    /// Worlds whose volume is a mirror, a family of their own
    #[arg(long, requires = "chaos")]
    pub mirrors: bool,
    /// Worlds [default: 100; with --hours as many as there is time for]
    #[arg(
        long,
        value_name = "N",
        requires = "chaos",
        allow_negative_numbers = true
    )]
    pub seeds: Option<u64>,
    /// Begin no world after so many hours
    #[arg(long, value_name = "H", requires = "chaos", allow_negative_numbers = true,
        value_parser = parse_hours)]
    pub hours: Option<Duration>,
    /// Of one world only these of its faults, by number: 3 or 3:250ms, which lasts no longer;
    /// `none` for none
    #[arg(long, value_name = "LIST", requires = "chaos", value_parser = parse_faults)]
    pub faults: Option<Faults>,
    /// Of one world only so many requests of each host, before those that look at everything in
    /// the end
    #[arg(
        long,
        value_name = "N",
        requires = "chaos",
        allow_negative_numbers = true
    )]
    pub requests: Option<u64>,
    /// Show everything that happened to what was found, not only the last 40 lines
    #[arg(long, requires = "chaos")]
    pub trace: bool,
}

/// Numbers of faults, from 1, with a duration of their own or without, ns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<(usize, Option<u64>)>);

/// Hours, with decimals.
fn parse_hours(text: &str) -> Result<Duration, String> {
    let hours = text.parse::<f64>().ok().filter(|hours| *hours > 0.0);
    let hours = hours.filter(|hours| *hours <= 8760.0);
    let hours = hours.ok_or("not a number above 0, at most 8760")?;
    Ok(Duration::from_secs_f64(hours * 3600.0))
}

fn parse_faults(text: &str) -> Result<Faults, String> {
    if text == "none" {
        return Ok(Faults(Vec::new()));
    }
    let one = |word: &str| {
        let (number, lasts) = match word.split_once(':') {
            Some((number, lasts)) => (number, Some(lasts)),
            None => (word, None),
        };
        let number = number.parse::<usize>();
        let number = number.map_err(|_| format!("\"{word}\" is no fault's number, as 3"))?;
        let lasts_ns = lasts.map(parse_duration).transpose();
        Ok((number, lasts_ns.map_err(|why| why.to_string())?))
    };
    let mut faults = text
        .split(',')
        .map(one)
        .collect::<Result<Vec<_>, String>>()?;
    faults.sort_unstable();
    match faults.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(format!("fault {} is named twice", pair[0].0)),
        None => Ok(Faults(faults)),
    }
}
