//! Faults in a real installation: targets that die, networks that are cut, under load.
//!
//! # Contract
//! The programs are release ones, unless others are named. The seed is printed first; a failure
//! ends with the command that repeats it. Everything that it makes (processes, namespaces, mounts,
//! loop devices, files) is undone at the end, also after a failure or Ctrl-C.
//!
//! # Limits
//! Pauses depend on the machine: nothing is judged by them. Without root, networks can't be cut,
//! and nothing can be mounted; what is left out is said.
mod act;
mod change;
mod clients;
mod down;
mod engine;
mod freeze;
mod history;
mod kill;
mod late;
mod loads;
mod marks;
mod mounted;
mod nbd;
mod net;
pub mod nvme;
mod plan;
mod prefixes;
mod probe;
mod random;
mod sick;
mod stage;
pub mod table;
mod tail;
mod target;
mod watch;

use crate::figures::Format;
use crate::{program, stop};
use anyhow::Result;
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use table::Table;

/// Options.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    part: Part,
    /// Seed of all that is random [default: from the time].
    #[arg(long, global = true)]
    seed: Option<u64>,
    /// Loopback in place of namespaces, as without root.
    #[arg(long, global = true)]
    loopback: bool,
    /// This `braid` in place of a fresh release build.
    #[arg(long, global = true, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Where this can't run whole, print `SKIP faults-PART: reason` and be well.
    #[arg(long, global = true)]
    may_skip: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "text", global = true)]
    output: Format,
}

/// Parts.
#[derive(clap::Subcommand, Clone)]
enum Part {
    /// Random faults under load: no error while a path lives, nothing lost; pauses and causes.
    Random(random::Args),
    /// All paths down: I/O waits and goes on, or fails at the stated time; SIGTERM ends it.
    Down(down::Args),
    /// A write that is executed late, after several kinds of failure.
    Late(late::Args),
    /// A half-sick path beside a healthy one: its share over time, by policy.
    Sick(sick::Args),
    /// Mirrors: `kill -9` of the engine again and again, nothing acknowledged is ever lost.
    Kill(kill::Args),
    /// Overlapping requests of clients that break connections: every sector is a register.
    History(history::Args),
    /// Losses of power: prefixes of the targets' writes are mounted as ext4 and checked.
    Prefixes(prefixes::Args),
    /// `kill -9` of an engine with a write under way, the next one started in some other way: the
    /// write is fenced, or the start refused.
    Marks(marks::Args),
    /// Targets that stand still (SIGSTOP) at named points and anywhere: nothing is undone.
    Freeze(freeze::Args),
    /// Verbs and reloads at once under load, and `kill -9` of the engine within them: data are
    /// right, and the next engine has the old or the new.
    Change(change::Args),
    /// Clients of hardware queues that are killed: nothing of them is left, and no other client
    /// notices.
    Clients(clients::Args),
    /// A path with a heavy tail: what second copies of late reads win and cost.
    Tail(tail::Args),
}

/// Context of every part.
pub struct Common {
    /// `braid`.
    pub program: PathBuf,
    /// Of the checkout.
    pub root: PathBuf,
    /// See [`Args`].
    pub seed: u64,
    loopback: bool,
    output: Format,
}

impl Common {
    /// Whether there are to be namespaces; says so if not.
    pub fn namespaces(&self) -> bool {
        if self.loopback {
            return false;
        }
        let hindrance = net::Net::hindrance();
        if let Some(reason) = hindrance {
            self.leave_out("cut and narrow networks, resets by the kernel", reason);
        }
        hindrance.is_none()
    }

    /// Says what can't be had.
    pub fn leave_out(&self, what: &str, reason: &str) {
        eprintln!("left out: {what}: {reason}");
    }

    /// Shows the present action, on a terminal only.
    pub fn progress(&self, what: &str) {
        let mut stderr = std::io::stderr();
        if stderr.is_terminal() {
            let _ = write!(stderr, "\r\x1b[K{what}");
        }
    }

    /// A part's results.
    pub fn show(&self, part: &str, head: &str, table: &Table, more: Value) {
        match self.output {
            Format::Text => {
                println!("{head}\n{}", table.text());
                println!("{}", words(&more));
            }
            Format::Json => {
                let value = json!({"part": part, "seed": self.seed, "head": head,
                                   "rows": table.json(), "more": more});
                println!("{value}");
            }
        }
    }
}

/// Facts in a few lines.
fn words(value: &Value) -> String {
    match value {
        Value::Object(object) => {
            let pair = |(key, value): (&String, &Value)| match value {
                Value::Array(_) => words(value),
                _ => format!("{}: {}", key.replace('_', " "), words(value)),
            };
            object.iter().map(pair).collect::<Vec<_>>().join(", ")
        }
        Value::Array(list) => list.iter().map(|it| words(it) + "\n").collect(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Runs a part.
///
/// # Errors
/// What was wrong; the command that repeats it is printed last.
pub fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let seed = args.seed.unwrap_or_else(|| {
        let time = std::time::UNIX_EPOCH.elapsed();
        time.map_or(1, |it| it.as_millis() as u64 % 1_000_000)
    });
    let (name, words, hindrance) = match &args.part {
        Part::Random(args) => ("random", args.words(), random::hindrance()),
        Part::Down(args) => ("down", args.words(), net::Net::hindrance()),
        Part::Late(_) => ("late", "late".to_owned(), net::Net::hindrance()),
        Part::Sick(args) => ("sick", args.words(), None),
        Part::Kill(args) => ("kill", args.words(), None),
        Part::History(args) => ("history", args.words(), None),
        Part::Prefixes(args) => ("prefixes", args.words(), prefixes::hindrance()),
        Part::Marks(args) => ("marks", args.words(), None),
        Part::Freeze(args) => ("freeze", args.words(), None),
        Part::Change(args) => ("change", args.words(), None),
        Part::Clients(args) => ("clients", args.words(), None),
        Part::Tail(args) => ("tail", args.words(), None),
    };
    if let (Some(reason), true) = (hindrance, args.may_skip) {
        println!("SKIP faults-{name}: {reason}");
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("seed {seed}");
    stop::watch()?;
    let common = Common {
        program: match &args.program {
            Some(program) => program.canonicalize()?,
            None if matches!(args.part, Part::Freeze(_)) => freeze::build(root)?,
            None => program::build(root, &["--bin", "braid"])?,
        },
        root: root.into(),
        seed,
        loopback: args.loopback,
        output: args.output,
    };
    let done = match &args.part {
        Part::Random(args) => random::run(&common, args),
        Part::Down(args) => down::run(&common, args),
        Part::Late(_) => late::run(&common),
        Part::Sick(args) => sick::run(&common, args),
        Part::Kill(args) => kill::run(&common, args),
        Part::History(args) => history::run(&common, args),
        Part::Prefixes(args) => prefixes::run(&common, args),
        Part::Marks(args) => marks::run(&common, args),
        Part::Freeze(args) => freeze::run(&common, args),
        Part::Change(args) => change::run(&common, args),
        Part::Clients(args) => clients::run(&common, args),
        Part::Tail(args) => tail::run(&common, args),
    };
    let Err(error) = done else {
        return Ok(ExitCode::SUCCESS);
    };
    common.progress("");
    let loopback = if args.loopback { " --loopback" } else { "" };
    eprintln!("FAILED: {error:#}");
    eprintln!("again: cargo xtask faults {words} --seed {seed}{loopback}");
    Ok(ExitCode::FAILURE)
}
