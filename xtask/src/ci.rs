//! Everything that must hold before a change is offered, and the longer nightly check.
//!
//! # Contract
//! [`steps`] run one after the other, each within its own time. The first failure ends the run
//! (with `--keep-going` and `--nightly` all are run) and shows the end of that step's output. Whole
//! outputs are kept in `target/ci/<step>.log`. The commands for the tests and the demo are read out
//! of README.md, so that what is checked is what readers type. A whole nightly check writes
//! docs/results/nightly.md.
//!
//! A test that cannot run on this machine prints `SKIP <test>: <reason>` (to stderr, past the
//! capture of the test harness) and passes; a skip or `#[ignore]` that `.ci/allowed-skips` does not
//! name fails.
mod readme;
mod report;
mod skips;
mod steps;

use anyhow::{Context, Result, bail};
use report::Outcome;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use steps::{Part, STEPS, Step};
use system::process;

/// Lines shown of a step that failed.
const TAIL_LINES: usize = 120;

/// What to run.
#[derive(clap::Args)]
pub struct Args {
    /// The longer check: all guests, fuzzing, long faults, 20,000 worlds of each kind.
    #[arg(long)]
    nightly: bool,
    /// Prints the table of CONTRIBUTING.md, and runs nothing.
    #[arg(long)]
    table: bool,
    /// Run only these steps (repeatable).
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Go on after a failure and show all of them.
    #[arg(long)]
    keep_going: bool,
}

/// Runs the steps.
pub fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    if args.table {
        print!("{}", steps::table());
        return Ok(ExitCode::SUCCESS);
    }
    let steps = chosen(args)?;
    let allowed = skips::allowed(&read(&root.join(".ci/allowed-skips"))?);
    let words = Words::read(root)?;
    let begun = Instant::now();
    let mut outcomes = Vec::new();
    for (step, part) in steps {
        let outcome = run_step(root, step, part, &words, &allowed)?;
        let well = outcome.well;
        outcomes.push(outcome);
        if !(well || args.keep_going || args.nightly) {
            break;
        }
    }
    if args.nightly && args.only.is_empty() {
        let tree = tree(root)?;
        fs::write(root.join(report::PLACE), report::render(&tree, &outcomes))
            .context(report::PLACE)?;
        println!("ci: written to {}", report::PLACE);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let failed = outcomes.iter().filter(|it| !it.well);
    let failed: Vec<&str> = failed.map(|it| it.name).collect();
    if failed.is_empty() {
        println!("ci: all well in {seconds:.0} s");
        return Ok(ExitCode::SUCCESS);
    }
    println!("ci: {} failed after {seconds:.0} s", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// The steps that are wanted, and what of each.
fn chosen(args: &Args) -> Result<Vec<(&'static Step, &'static Part)>> {
    let parts = STEPS
        .iter()
        .filter_map(|step| Some((step, step.part(args.nightly)?)));
    let mut parts: Vec<_> = parts.collect();
    let is_there = |name: &String| parts.iter().any(|(step, _)| step.name == *name);
    if let Some(unknown) = args.only.iter().find(|only| !is_there(only)) {
        if STEPS.iter().any(|step| step.name == *unknown) {
            bail!("step {unknown} is part of the nightly check only: --nightly --only {unknown}");
        }
        let names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        bail!("no step {unknown:?}; there are: {}", names.join(", "));
    }
    parts.retain(|(step, _)| args.only.is_empty() || args.only.iter().any(|it| it == step.name));
    Ok(parts)
}

/// What stands for words in the commands of steps.
struct Words {
    test: String,
    demo: String,
    /// A number made of the commit's hash: a seed.
    commit: u64,
}

impl Words {
    fn read(root: &Path) -> Result<Self> {
        let readme = read(&root.join("README.md"))?;
        let hash = said(root, "git", &["rev-parse", "--short=7", "HEAD"]);
        Ok(Self {
            test: readme::command(&readme, "test")?,
            demo: readme::command(&readme, "demo")?,
            // Without a repository the seed is always the same.
            commit: hash.map_or(Ok(2), |hash| u64::from_str_radix(&hash, 16))?,
        })
    }

    fn shell(&self, part: &Part) -> String {
        let shell = part.shell.replace("{test}", &self.test);
        shell.replace("{demo}", &self.demo)
    }
}

/// On what the check ran.
fn tree(root: &Path) -> Result<report::Tree> {
    let commit = said(root, "git", &["rev-parse", "HEAD"]);
    // The document itself changes with each nightly check.
    let others = format!(":!{}", report::PLACE);
    let changes = said(root, "git", &["status", "--porcelain", "--", ".", &others]);
    Ok(report::Tree {
        commit: commit.unwrap_or_else(|| "unknown, there is no repository".to_owned()),
        changed: changes.is_some_and(|it| !it.is_empty()),
        date: said(root, "date", &["-u", "+%F"]).context("date says nothing")?,
        cores: std::thread::available_parallelism()?.get(),
    })
}

/// What a program prints; `None`: it failed.
fn said(root: &Path, program: &str, words: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let output = command.args(words).current_dir(root).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

/// Runs one step and prints its line.
fn run_step(
    root: &Path,
    step: &'static Step,
    part: &Part,
    words: &Words,
    allowed: &[String],
) -> Result<Outcome> {
    let begun = Instant::now();
    let mut outcome = Outcome {
        name: step.name,
        well: true,
        skipped: false,
        seconds: 0.0,
        skips: 0,
    };
    if let Some(program) = step.needs.filter(|program| !process::is_installed(program)) {
        let name = format!("ci-{}", step.name);
        outcome.well = allowed.contains(&name);
        outcome.skipped = true;
        let verdict = match outcome.well {
            true => "allowed",
            false => "not in .ci/allowed-skips",
        };
        println!(
            "{:8} SKIP {name}: {program} is not installed ({verdict})",
            step.name
        );
        return Ok(outcome);
    }
    let log = log_path(root, step.name)?;
    let mut skipped = Vec::new();
    outcome.well = run_shell(root, step, part, words, &log)?;
    if outcome.well {
        skipped = skips::found(&String::from_utf8_lossy(&fs::read(&log)?));
        outcome.well = skipped.iter().all(|it| allowed.contains(&it.test));
    }
    outcome.skips = skipped.len();
    outcome.seconds = begun.elapsed().as_secs_f64();
    let verdict = if outcome.well { "ok" } else { "FAILED" };
    println!("{:8} {verdict:6} {:6.1} s", step.name, outcome.seconds);
    for skip in &skipped {
        let verdict = match allowed.contains(&skip.test) {
            true => "",
            false => " (not in .ci/allowed-skips)",
        };
        println!("         SKIP {}: {}{verdict}", skip.test, skip.reason);
    }
    Ok(outcome)
}

/// Whether its commands succeed; else the end of their output is printed.
fn run_shell(root: &Path, step: &Step, part: &Part, words: &Words, log: &Path) -> Result<bool> {
    let shell = words.shell(part);
    let mut command = Command::new("bash");
    command
        .args(["-euo", "pipefail", "-c", &shell])
        .current_dir(root);
    command.env("commit", words.commit.to_string());
    // A skip printed with println! is seen too.
    command.env("RUST_TEST_NOCAPTURE", "1");
    let result = process::run_logged(&mut command, log, Duration::from_secs(part.limit_s));
    if matches!(&result, Ok(status) if status.success()) {
        return Ok(true);
    }
    let output = String::from_utf8_lossy(&fs::read(log)?).into_owned();
    let lines: Vec<&str> = output.lines().collect();
    for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
        println!("{line}");
    }
    for test in skips::failed(&output) {
        println!("{}: failed test: {test}", step.name);
    }
    match result {
        Ok(status) => println!(
            "{}: `{shell}`: {status}; all of it: {}",
            step.name,
            log.display()
        ),
        Err(error) => println!("{}: `{shell}`: {error:#}", step.name),
    }
    Ok(false)
}

fn log_path(root: &Path, step: &str) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let directory = target.join("ci");
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    Ok(directory.join(format!("{step}.log")))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{Args, chosen};

    fn args(nightly: bool, only: &[&str]) -> Args {
        Args {
            nightly,
            table: false,
            only: only.iter().map(|&it| it.to_owned()).collect(),
            keep_going: false,
        }
    }

    #[test]
    fn nightly_runs_all_and_more() {
        let names = |nightly| -> Vec<&str> {
            let parts = chosen(&args(nightly, &[])).unwrap();
            parts.iter().map(|(step, _)| step.name).collect()
        };
        let (ci, nightly) = (names(false), names(true));
        assert!(ci.iter().all(|name| nightly.contains(name)));
        assert!(ci.len() < nightly.len());
    }

    #[test]
    fn one_step_is_chosen_by_name_and_errors_say_where_it_is() {
        let seconds = |nightly| chosen(&args(nightly, &["chaos"])).unwrap()[0].1.limit_s;
        assert!(seconds(false) < seconds(true));
        let error = |name: &str| chosen(&args(false, &[name])).err().unwrap().to_string();
        assert!(error("fuzz").contains("--nightly"), "{}", error("fuzz"));
        assert!(error("fuz").contains("there are: fmt"), "{}", error("fuz"));
    }
}
