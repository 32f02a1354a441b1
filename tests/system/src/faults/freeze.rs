//! Targets that stand still (SIGSTOP) with writes under way, and go on after the bound (T49).
//!
//! # Contract
//! A round: two targets over one file; all I/O goes by the first one. Many blocks are written; in
//! the middle of that the first target stops. The engine waits for the bound, repeats the writes by
//! the other target, and acknowledges them. The blocks are written anew, acknowledged, and the
//! first target goes on. Each block must then hold what was written last.
//!
//! The program is a test build that stops itself at named points (`freeze-points`). At a closed
//! point nothing may be undone. An open window is the time between a look at the clock and the
//! system call that follows it: where a thread of the target stood in one, old writes may be
//! executed, and are counted. Random stops may meet one; elsewhere nothing may be undone.
use super::engine::{Keys, SHORT};
use super::history::client::Connection;
use super::net::Net;
use super::plan::Random;
use super::stage::{Directory, Stage};
use super::table::Table;
use super::target::{Offer, Target};
use super::{Common, stop};
use crate::process;
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Connections over which blocks are written.
const CONNECTIONS: usize = 4;
/// A stop comes so long after the first write at most.
const STOP_US_MAX: u64 = 25_000;
/// The same of a point, where writes have to be left.
const POINT_US_MAX: u64 = 4_000;
/// Of fewer rounds none may come by a point.
const ROUNDS_FEW: u32 = 10;
/// Another installation may take a port before it is listened on.
const TRIES: u32 = 3;
/// The program stops at its point within this time, or does not come by there any more.
const REACHED: Duration = Duration::from_secs(2);
/// Time after which all requests of a target that goes on are over.
const AFTER: Duration = Duration::from_millis(400);
const BYTES: u64 = 32 << 20;

/// How often, and where.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// Stops at each closed point.
    #[arg(long, default_value_t = 100)]
    points: u32,
    /// Stops at each open point: what is undone there is counted.
    #[arg(long, default_value_t = 0)]
    open: u32,
    /// Stops at random times.
    #[arg(long, default_value_t = 300)]
    random: u32,
    /// Installations that run at a time.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    jobs: u32,
}

impl Args {
    /// The command line that repeats it.
    pub fn words(&self) -> String {
        let Self {
            points,
            open,
            random,
            jobs,
        } = self;
        format!("freeze --points {points} --open {open} --random {random} --jobs {jobs}")
    }
}

/// Where the target stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    Turn,
    Submit,
    Worker,
    Clock,
    Call,
    Random,
}

impl At {
    const CLOSED: [Self; 3] = [Self::Turn, Self::Submit, Self::Worker];
    const OPEN: [Self; 2] = [Self::Clock, Self::Call];

    /// Name of the program's point; `None`: it is stopped from outside.
    fn point(self) -> Option<&'static str> {
        Some(match self {
            Self::Turn => "turn",
            Self::Submit => "submit",
            Self::Worker => "worker",
            Self::Clock => "clock",
            Self::Call => "call",
            Self::Random => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Turn => "turn: after its clock was read",
            Self::Submit => "submit: before changes are submitted",
            Self::Worker => "worker: before it asks",
            Self::Clock => "clock (open): between clock and submission",
            Self::Call => "call (open): between question and system call",
            Self::Random => "random",
        }
    }

    fn is_open(self) -> bool {
        Self::OPEN.contains(&self)
    }

    /// Whether only files with holes lead there surely.
    fn needs_holes(self) -> bool {
        matches!(self, Self::Worker | Self::Call)
    }
}

/// Content of the targets' file before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum File {
    Sparse,
    Preallocated,
    Written,
}

/// One round.
#[derive(Clone, Copy, Debug)]
struct Round {
    number: usize,
    at: At,
    file: File,
    /// Bytes of a block, and how many are under way.
    blocks: (usize, usize),
    seed: u64,
}

/// Result of a point.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// The target came by its point.
    reached: bool,
    /// Blocks that hold what was written first.
    undone: usize,
    /// A thread stood in an open window.
    in_window: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    rounds: u32,
    reached: u32,
    in_window: u32,
    undone: u32,
}

/// Builds the program with its points.
///
/// # Errors
/// It can't be built.
pub fn build(root: &Path) -> Result<PathBuf> {
    let words = [
        "build",
        "-p",
        "braid",
        "--bin",
        "braid",
        "--features",
        "braid/freeze-points",
        // Its largest crate, of which nothing here depends on how fast it is.
        "--config",
        "profile.dev.package.braid.opt-level=0",
        "--quiet",
        "--message-format=json-render-diagnostics",
    ];
    let mut command = Command::new("cargo");
    command.args(words).current_dir(root);
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "cargo build: {}", output.status);
    let messages = String::from_utf8_lossy(&output.stdout);
    let program = messages.lines().rev().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    program.context("cargo build made no program")
}

/// Runs all rounds and prints.
///
/// # Errors
/// An acknowledged write was undone where that can't be, or something can't be set up.
pub fn run(common: &Common, args: &Args) -> Result<()> {
    let rounds = rounds(args, common.seed);
    let sums: Mutex<BTreeMap<At, Sum>> = Mutex::default();
    let work = |round: &Round| {
        let what = || format!("round {} of {}: {round:?}", round.number, rounds.len());
        common.progress(&what());
        let found = one(&common.program, round).with_context(what)?;
        let excused = round.at.is_open() || found.in_window;
        let undone = found.undone;
        ensure!(
            undone == 0 || excused,
            "{}: {undone} acknowledged writes undone",
            what()
        );
        let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
        sums.entry(round.at).or_default().add(found);
        Ok(())
    };
    let done = process::at_a_time(args.jobs as usize, &rounds, work);
    common.progress("");
    done?;
    let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (at, sum) in &sums {
        let few = sum.rounds < ROUNDS_FEW;
        ensure!(few || sum.reached > 0, "no target came by {}", at.name());
    }
    print(common, &sums);
    Ok(())
}

fn print(common: &Common, sums: &BTreeMap<At, Sum>) {
    let columns = [
        "stops",
        "rounds",
        "stopped there",
        "in an open window",
        "undone",
    ];
    let mut table = Table::new(&columns);
    for (at, sum) in sums {
        let counts = [sum.rounds, sum.reached, sum.in_window, sum.undone].map(Value::from);
        table.row([&[at.name().into()][..], &counts].concat());
    }
    let head = "targets that stood still with writes under way: nothing acknowledged was undone \
                where no thread stood in an open window";
    common.show("freeze", head, &table, json!({}));
}

impl Sum {
    fn add(&mut self, found: Found) {
        self.rounds += 1;
        self.reached += u32::from(found.reached);
        self.in_window += u32::from(found.in_window);
        self.undone += u32::from(found.undone > 0);
    }
}

/// All rounds, those of different kinds in turn.
fn rounds(args: &Args, seed: u64) -> Vec<Round> {
    let mut random = Random(seed);
    let points = |of: &[At], count: u32| -> Vec<At> {
        let each = of.iter().flat_map(|at| (0..count).map(|_| *at));
        each.collect()
    };
    let mut all = points(&At::CLOSED, args.points);
    all.extend(points(&At::OPEN, args.open));
    all.extend(points(&[At::Random], args.random));
    let mut round = |(number, at): (usize, At)| Round {
        number,
        at,
        file: match number % 3 {
            _ if at.needs_holes() => File::Sparse,
            0 => File::Sparse,
            1 => File::Preallocated,
            _ => File::Written,
        },
        blocks: match random.below(2) {
            0 => (4 << 10, 480),
            _ => (128 << 10, 240),
        },
        seed: random.next(),
    };
    all.into_iter().enumerate().map(&mut round).collect()
}

/// Processes that are installed and go by themselves.
struct Installation {
    stage: Stage,
    /// Where the program is told to stop, and says where it stood.
    points: PathBuf,
}

impl Installation {
    fn make(program: &Path, round: &Round) -> Result<Self> {
        let directory = Directory::make(&format!("freeze-{}", round.number))?;
        let points = directory.0.join("points");
        std::fs::create_dir(&points)?;
        let file = directory.0.join("data");
        if round.file == File::Written {
            std::fs::write(&file, vec![0; BYTES as usize])?;
        }
        // The first target is told by its environment where it is to look.
        let script = directory.0.join("target");
        let text = format!(
            "#!/bin/sh\nBRAID_FREEZE='{}' exec '{}' \"$@\"\n",
            points.display(),
            program.display()
        );
        std::fs::write(&script, text)?;
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
        let (backend, size) = (format!("file:{}", file.display()), BYTES.to_string());
        let offer = Offer {
            backend: &backend,
            size: &size,
            namespace: match round.file {
                File::Sparse => "sparse = true",
                File::Preallocated | File::Written => "",
            },
            ..Offer::default()
        };
        let mut stage = Stage {
            engine: None,
            targets: Vec::new(),
            net: Net::make(2, false)?,
            directory,
            program: program.into(),
        };
        for (way, program) in [&*script, program].into_iter().enumerate() {
            let target = Target::start(program, &stage.directory.0, &stage.net, way, offer)?;
            stage.targets.push(target);
        }
        let volume = "policy = \"devid:1\"\nquiesce_time = \"500ms\"";
        stage.run(Keys { volume, ..SHORT }, |_| String::new())?;
        Ok(Self { stage, points })
    }

    fn is_stopped(&self) -> Result<bool> {
        self.stage.targets[0].is_stopped()
    }

    /// Stops the first target, at its point if it is to; whether it has stopped.
    fn freeze(&self, at: At, random: &mut Random) -> Result<bool> {
        let longest_us = if at == At::Random {
            STOP_US_MAX
        } else {
            POINT_US_MAX
        };
        stop::pause(Duration::from_micros(random.below(longest_us)))?;
        let Some(point) = at.point() else {
            self.stage.targets[0].freeze()?;
            return Ok(true);
        };
        let armed = self.points.join(point);
        std::fs::write(&armed, "")?;
        let begun = std::time::Instant::now();
        while begun.elapsed() < REACHED {
            if self.is_stopped()? {
                return Ok(true);
            }
            stop::pause(Duration::from_millis(1))?;
        }
        // It may come by only now.
        Ok(std::fs::remove_file(&armed).is_err() && self.is_stopped()?)
    }
}

fn one(program: &Path, round: &Round) -> Result<Found> {
    let mut made = Installation::make(program, round);
    for _ in 1..TRIES {
        if made.is_err() {
            stop::check()?;
            made = Installation::make(program, round);
        }
    }
    let installation = made?;
    let export = installation.stage.engine()?.export();
    let mut random = Random(round.seed);
    let mut found = Found::default();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| write_all(&export, 1, round.blocks));
        let frozen = installation.freeze(round.at, &mut random);
        let written = first.join().map_err(|_| anyhow!("a client has panicked"))?;
        found.reached = frozen?;
        written.context("the first writes")
    })?;
    write_all(&export, 2, round.blocks).context("the second writes")?;
    installation.stage.targets[0].thaw()?;
    stop::pause(AFTER)?;
    found.undone = undone(&export, round.blocks)?;
    found.in_window = installation.points.join("windows").exists();
    Ok(found)
}

/// A block of a version.
fn block(version: u8, number: usize, bytes: usize) -> Vec<u8> {
    let mut block = vec![version; bytes];
    block[..8].copy_from_slice(&(number as u64).to_be_bytes());
    block
}

/// Writes all blocks, at once, and waits for all.
fn write_all(export: &Path, version: u8, (bytes, count): (usize, usize)) -> Result<()> {
    let part = |which: usize| -> Result<()> {
        let mut connection = Connection::open(export)?;
        let mine = || (which..count).step_by(CONNECTIONS);
        for number in mine() {
            let offset = number as u64 * bytes as u64;
            connection.send_write(offset, &block(version, number, bytes))?;
        }
        for _ in mine() {
            let error = connection.receive()?.error;
            ensure!(error == 0, "a write has failed: NBD error {error}");
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let part = &part;
        let parts: Vec<_> = (0..CONNECTIONS)
            .map(|which| scope.spawn(move || part(which)))
            .collect();
        for part in parts {
            part.join()
                .map_err(|_| anyhow!("a client has panicked"))??;
        }
        Ok(())
    })
}

/// How many blocks hold what was written first.
fn undone(export: &Path, (bytes, count): (usize, usize)) -> Result<usize> {
    let mut connection = Connection::open(export)?;
    let mut undone = 0;
    for number in 0..count {
        connection.send_read(number as u64 * bytes as u64, bytes)?;
        let reply = connection.receive()?;
        ensure!(
            reply.error == 0,
            "a read has failed: NBD error {}",
            reply.error
        );
        if reply.data == block(2, number, bytes) {
            continue;
        }
        // One that was written in part is undone as well.
        if !reply.data.contains(&1) {
            bail!("block {number} holds what nobody wrote");
        }
        undone += 1;
    }
    Ok(undone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_as_many_rounds_as_asked_for() {
        let args = Args {
            points: 2,
            open: 1,
            random: 7,
            jobs: 1,
        };
        let rounds = rounds(&args, 5);
        let count = |at| rounds.iter().filter(|round| round.at == at).count();
        assert_eq!(rounds.len(), 3 * 2 + 2 + 7);
        assert!(At::CLOSED.iter().all(|&at| count(at) == 2));
        assert!(At::OPEN.iter().all(|&at| count(at) == 1));
        assert_eq!(count(At::Random), 7);
        let bytes = |round: &Round| round.blocks.0 as u64 * round.blocks.1 as u64;
        assert!(rounds.iter().all(|round| bytes(round) <= BYTES));
    }
}
