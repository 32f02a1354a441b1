//! What the corpora reach: the share of lines of each room and file that the bodies execute.
//!
//! # Contract
//! Bodies are compiled once more with the compiler's own instruments (`-C instrument-coverage`) and
//! run over the corpus and over what was found here; nothing is fuzzed. Needs `llvm-profdata` and
//! `llvm-cov` of the compiler's LLVM: a component of the tool chain, or the distribution's package.
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use system::process;

/// Longest run of one target over its corpus.
const REPLAY: Duration = Duration::from_secs(900);
/// What is counted, by the beginnings of paths; a file belongs to the first that fits.
const ROOMS: [&str; 13] = [
    "crates/nvme/src/wire",
    "crates/nvme/src/queue",
    "crates/nvme/src/host",
    "crates/nvme/src/controller",
    "crates/nbd/src/client",
    "crates/nbd/src",
    "crates/volume/src/mirror",
    "crates/engine/src/discovery",
    "crates/queue/src",
    "crates/broker/src",
    "crates/engine/src/target",
    "crates/engine/src/export",
    "crates/engine/src/host",
];
/// Rooms whose files are listed: those that parse what a peer says.
const LISTED: usize = 10;

/// Lines that are there, and that were executed.
#[derive(Clone, Copy, Default)]
struct Share {
    count: u64,
    reached: u64,
}

impl Share {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.reached += other.reached;
    }

    /// In percent; nothing where nothing was reached.
    fn in_words(self) -> String {
        match self.reached {
            0 => "–".to_owned(),
            reached => format!("{:.1}", 100.0 * reached as f64 / self.count as f64),
        }
    }
}

/// Lines and regions of each file.
type Files = BTreeMap<String, (Share, Share)>;

/// Prints what `targets` reach, together and each.
pub fn run(root: &Path, output: &Path, triple: &str, targets: &[String]) -> Result<()> {
    let tools = Tools::find(triple)?;
    let output = output.join("coverage");
    let program = build(root, &output)?;
    let mut each = Vec::new();
    let mut profiles = Vec::new();
    for target in targets {
        let profile = replay(root, &output, &program, target, &tools)?;
        each.push(tools.files(root, &program, &profile)?);
        profiles.push(profile);
    }
    let all = output.join("all.profdata");
    tools.merge(&profiles, &all)?;
    let all = tools.files(root, &program, &all)?;
    print_rooms(targets, &each, &all);
    print_files(&all);
    Ok(())
}

fn build(root: &Path, output: &Path) -> Result<PathBuf> {
    let status = Command::new("cargo")
        .args(["build", "--quiet", "--release", "--example", "replay"])
        .args(["--manifest-path", "fuzz/Cargo.toml"])
        .current_dir(root)
        .env("RUSTFLAGS", "-Cinstrument-coverage")
        .env("CARGO_TARGET_DIR", output)
        .env("LLVM_PROFILE_FILE", output.join("build-%p.profraw"))
        .status()
        .context("start cargo")?;
    ensure!(status.success(), "the bodies did not compile");
    Ok(output.join("release/examples/replay"))
}

/// Runs one target; its profile.
fn replay(
    root: &Path,
    output: &Path,
    program: &Path,
    target: &str,
    tools: &Tools,
) -> Result<PathBuf> {
    let raw = output.join(format!("{target}.profraw"));
    let corpus = root.join("fuzz/corpus").join(target);
    let finds = output.join("../corpus").join(target);
    let mut command = Command::new(program);
    command.arg(target).arg(corpus);
    if finds.is_dir() {
        command.arg(finds);
    }
    command.env("LLVM_PROFILE_FILE", &raw);
    let log = output.join(format!("{target}.log"));
    let status = process::run_logged(&mut command, &log, REPLAY)?;
    ensure!(status.success(), "{target} failed: {}", log.display());
    let profile = output.join(format!("{target}.profdata"));
    tools.merge(&[raw], &profile)?;
    Ok(profile)
}

/// Programs that read profiles.
struct Tools {
    profdata: PathBuf,
    cov: PathBuf,
}

impl Tools {
    /// In the tool chain, else on the PATH with the number of the compiler's LLVM.
    fn find(triple: &str) -> Result<Self> {
        let said = |args: &[&str]| -> Result<String> {
            let output = Command::new("rustc").args(args).output();
            let output = output.context("start rustc")?;
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let own = Path::new(&said(&["--print", "sysroot"])?)
            .join("lib/rustlib")
            .join(triple)
            .join("bin");
        if own.join("llvm-cov").is_file() {
            return Ok(Self {
                profdata: own.join("llvm-profdata"),
                cov: own.join("llvm-cov"),
            });
        }
        let version = said(&["-vV"])?;
        let llvm = version
            .lines()
            .find_map(|line| line.strip_prefix("LLVM version: "));
        let major = llvm.and_then(|llvm| llvm.split('.').next()).unwrap_or("?");
        let (profdata, cov) = (
            format!("llvm-profdata-{major}"),
            format!("llvm-cov-{major}"),
        );
        if !(process::is_installed(&profdata) && process::is_installed(&cov)) {
            bail!(
                "coverage needs llvm-profdata and llvm-cov of LLVM {major}: `rustup component add \
                 llvm-tools`, or the package llvm-{major}"
            );
        }
        Ok(Self {
            profdata: profdata.into(),
            cov: cov.into(),
        })
    }

    fn merge(&self, profiles: &[PathBuf], into: &Path) -> Result<()> {
        let mut command = Command::new(&self.profdata);
        command
            .args(["merge", "-sparse", "-o"])
            .arg(into)
            .args(profiles);
        run_tool(&mut command)?;
        Ok(())
    }

    /// Files of the project that a profile speaks of.
    fn files(&self, root: &Path, program: &Path, profile: &Path) -> Result<Files> {
        let mut command = Command::new(&self.cov);
        command
            .args(["export", "-summary-only", "-instr-profile"])
            .arg(profile)
            .arg(program);
        let output = run_tool(&mut command)?;
        let said: Value = serde_json::from_slice(&output.stdout).context("read llvm-cov")?;
        let files = said["data"][0]["files"].as_array();
        let mut found = Files::new();
        for file in files.context("llvm-cov names no files")? {
            let path = Path::new(file["filename"].as_str().unwrap_or_default());
            let path = path.strip_prefix(root).unwrap_or(path);
            let share = |of: &str| Share {
                count: file["summary"][of]["count"].as_u64().unwrap_or(0),
                reached: file["summary"][of]["covered"].as_u64().unwrap_or(0),
            };
            let shares = (share("lines"), share("regions"));
            found.insert(path.to_string_lossy().into_owned(), shares);
        }
        Ok(found)
    }
}

fn run_tool(command: &mut Command) -> Result<Output> {
    let output = command.output();
    let output = output.with_context(|| format!("start {:?}", command.get_program()))?;
    ensure!(
        output.status.success(),
        "{:?}: {}",
        command.get_program(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output)
}

/// The room of a file.
fn room(path: &str) -> Option<usize> {
    ROOMS.iter().position(|room| {
        let rest = path.strip_prefix(room);
        rest.is_some_and(|rest| rest.starts_with(['/', '.']))
    })
}

fn of_room(files: &Files, number: usize) -> Share {
    let mut share = Share::default();
    for (_, (lines, _)) in files.iter().filter(|(path, _)| room(path) == Some(number)) {
        share.add(*lines);
    }
    share
}

/// A table of rooms by targets.
fn print_rooms(targets: &[String], each: &[Files], all: &Files) {
    println!("lines reached, % of those of a room, by target and by all\n");
    print!("{:28}{:>7}", "", "lines");
    targets.iter().for_each(|target| print!("{target:>15}"));
    println!("{:>8}", "all");
    for (number, name) in ROOMS.iter().enumerate() {
        print!("{name:28}{:>7}", of_room(all, number).count);
        for files in each {
            print!("{:>15}", of_room(files, number).in_words());
        }
        println!("{:>8}", of_room(all, number).in_words());
    }
}

/// What all targets reach of each file that parses.
fn print_files(all: &Files) {
    println!("\nof files that parse, by all targets\n");
    println!(
        "{:48}{:>7}{:>9}{:>9}{:>9}",
        "", "lines", "reached", "%", "regions%"
    );
    for (path, (lines, regions)) in all {
        if room(path).is_some_and(|room| room < LISTED) {
            let (count, reached) = (lines.count, lines.reached);
            let (lines, regions) = (lines.in_words(), regions.in_words());
            println!("{path:48}{count:>7}{reached:>9}{lines:>9}{regions:>9}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ROOMS, Share, room};

    #[test]
    fn a_file_belongs_to_the_first_room_that_fits() {
        let name = |path| room(path).map(|number| ROOMS[number]);
        assert_eq!(
            name("crates/nbd/src/client.rs"),
            Some("crates/nbd/src/client")
        );
        assert_eq!(
            name("crates/nbd/src/client/slots.rs"),
            Some("crates/nbd/src/client")
        );
        assert_eq!(name("crates/nbd/src/server.rs"), Some("crates/nbd/src"));
        assert_eq!(name("crates/nvme/src/hostile.rs"), None);
        assert_eq!(name("crates/sim/src/lib.rs"), None);
    }

    #[test]
    fn shares_add_up() {
        let mut share = Share {
            count: 4,
            reached: 1,
        };
        share.add(Share {
            count: 4,
            reached: 2,
        });
        assert_eq!(share.in_words(), "37.5");
        assert_eq!(Share::default().in_words(), "–");
    }
}
