//! Everything that must hold before a change is offered, and the longer nightly check.
//!
//! # Contract
//! [`steps`] run one after the other, each task of theirs within its own time; those that need much
//! of the processor and no clock run beside the others, with the time that these leave: tests of
//! whole programs mostly wait. The first failure ends the run (with `--keep-going` and `--nightly`
//! all are run) and shows the end of that task's output. Whole outputs are kept in
//! `target/ci/<task>.log`. The commands for the tests and the demo are read out of README.md, so
//! that what is checked is what readers type.
//!
//! The nightly check writes each task's result into docs/results/nightly.md as the task ends, with
//! the commit that it ran on ([`report`]); `--resume` leaves out what holds for this very commit.
//! SIGINT and SIGTERM end the tasks that run, which then have no result.
//!
//! A test that cannot run on this machine prints `SKIP <test>: <reason>` (to stderr, past the
//! capture of the test harness) and passes; a skip or `#[ignore]` that `.ci/allowed-skips` does not
//! name fails.
mod readme;
mod report;
mod skips;
mod steps;

use anyhow::{Context, Result, bail, ensure};
use report::{Row, Tree, Verdict};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use steps::{Part, STEPS, Step, Task};
use system::{process, stop};

/// Lines shown of a task that failed.
const TAIL_LINES: usize = 120;

/// Options.
#[derive(clap::Args)]
pub struct Args {
    /// The longer check: all guests, fuzzing, long faults, 20,000 worlds of each kind.
    #[arg(long)]
    nightly: bool,
    /// Leave out what docs/results/nightly.md says has passed on this very commit.
    #[arg(long, requires = "nightly")]
    resume: bool,
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
    let mut steps = chosen(args)?;
    stop::watch()?;
    let begun = Instant::now();
    let mut check = Check {
        root,
        allowed: skips::allowed(&read(&root.join(".ci/allowed-skips"))?),
        words: Words::read(root)?,
        record: None,
        keep_going: args.keep_going || args.nightly,
        resume: args.resume,
        failed: Mutex::default(),
    };
    if args.nightly {
        let record = Record::open(root)?;
        ensure!(
            !args.resume || record.can_resume(),
            "--resume needs a commit without changes: {}",
            record.tree.name()
        );
        check.record = Some(Mutex::new(record));
    }
    // Those before the first one that runs beside are short, and want what that builds with.
    let first = steps.iter().position(|(step, _)| step.beside);
    let rest = steps.split_off(first.unwrap_or(steps.len()));
    let (beside, line): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(step, _)| step.beside);
    check.run_line(&steps)?;
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| check.run_line(&beside));
        let line = check.run_line(&line);
        match beside.join() {
            Ok(beside) => line.and(beside),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    let failed = check.failed();
    let seconds = begun.elapsed().as_secs_f64();
    if failed.is_empty() {
        println!("ci: all well in {seconds:.0} s");
        return Ok(ExitCode::SUCCESS);
    }
    println!("ci: {} failed after {seconds:.0} s", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// Results in docs/results/nightly.md.
struct Record {
    place: PathBuf,
    tree: Tree,
    /// All tasks of the nightly check, in their order.
    tasks: Vec<String>,
    rows: Vec<Row>,
}

impl Record {
    /// Reads what earlier checks left.
    fn open(root: &Path) -> Result<Self> {
        let place = root.join(report::PLACE);
        let text = match fs::read_to_string(&place) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.context(report::PLACE)?,
        };
        let parts = STEPS
            .iter()
            .filter_map(|step| Some((step, step.part(true)?)));
        let tasks = parts.flat_map(|(step, part)| part.tasks.iter().map(|it| step.name_of(it)));
        Ok(Self {
            place,
            tree: tree(root),
            tasks: tasks.collect(),
            rows: report::rows(&text)?,
        })
    }

    fn can_resume(&self) -> bool {
        self.tree.commit.is_some() && !self.tree.is_changed
    }

    fn holds(&self, task: &str) -> bool {
        let mut rows = self.rows.iter();
        rows.any(|row| row.task == task && row.holds_for(&self.tree))
    }

    /// The task begins: what it said before does not hold any more, however it ends.
    ///
    /// # Errors
    /// The document cannot be written.
    fn begin(&mut self, task: &str) -> Result<()> {
        self.rows.retain(|it| it.task != task);
        self.write()
    }

    /// Adds the task's row and writes the document.
    ///
    /// # Errors
    /// It cannot be written.
    fn put(&mut self, row: Row) -> Result<()> {
        self.rows.retain(|it| it.task != row.task);
        self.rows.push(row);
        self.write()
    }

    fn write(&self) -> Result<()> {
        // Renamed: a check that is cut now leaves the one or the other.
        let new = self.place.with_extension("md.new");
        let text = report::render(&self.tree, &self.tasks, &self.rows);
        fs::write(&new, text).with_context(|| format!("write {}", new.display()))?;
        fs::rename(&new, &self.place).context(report::PLACE)
    }
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

/// Runs the simulator.
const SIM: &str = "cargo run --release -q --bin braid-sim --";

/// Values for words in the commands of steps.
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

    fn shell(&self, task: &Task) -> String {
        let shell = task.shell.replace("{test}", &self.test);
        let shell = shell.replace("{demo}", &self.demo);
        shell.replace("{sim}", SIM)
    }
}

/// On what the check runs.
fn tree(root: &Path) -> Tree {
    // The document itself changes with each nightly check.
    let others = format!(":!{}*", report::PLACE);
    let changes = said(root, "git", &["status", "--porcelain", "--", ".", &others]);
    Tree {
        commit: said(root, "git", &["rev-parse", "HEAD"]),
        is_changed: changes.is_none_or(|it| !it.is_empty()),
    }
}

/// Output of a program; `None`: it failed.
fn said(root: &Path, program: &str, words: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let output = command.args(words).current_dir(root).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

/// Result of a task.
struct Outcome {
    verdict: Verdict,
    skips: usize,
    /// Text that is shown of it.
    text: String,
}

/// One run of the check.
struct Check<'a> {
    root: &'a Path,
    /// Tests that may be skipped.
    allowed: Vec<String>,
    words: Words,
    /// Of a nightly check.
    record: Option<Mutex<Record>>,
    /// A failure ends nothing else.
    keep_going: bool,
    /// Tasks that have passed on this commit are left out.
    resume: bool,
    /// Tasks that have failed.
    failed: Mutex<Vec<String>>,
}

impl Check<'_> {
    /// Whether the task has passed on this very commit.
    fn holds(&self, task: &str) -> bool {
        let record = self.record.as_ref();
        record.is_some_and(|it| {
            it.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .holds(task)
        })
    }

    /// Runs steps one after the other.
    ///
    /// # Errors
    /// As of [`Self::run_tasks`].
    fn run_line(&self, steps: &[(&Step, &Part)]) -> Result<()> {
        for (step, part) in steps {
            let has_passed = |task: &Task| self.resume && self.holds(&step.name_of(task));
            let (passed, left): (Vec<&Task>, _) = part.tasks.iter().partition(|it| has_passed(it));
            for task in passed {
                println!("{:20} has passed on this commit", step.name_of(task));
            }
            self.run_tasks(step, &left, part.jobs)?;
        }
        Ok(())
    }

    /// Runs tasks of a step, `jobs` at a time, and records each. After a failure none is begun
    /// unless all are to be run.
    ///
    /// # Errors
    /// A result or a log cannot be written.
    fn run_tasks(&self, step: &Step, tasks: &[&Task], jobs: usize) -> Result<()> {
        process::at_a_time(jobs, tasks, |task| {
            if self.goes_on() && self.run_task(step, task)? == Some(Verdict::Failed) {
                self.failed().push(step.name_of(task));
            }
            Ok(())
        })
    }

    fn failed(&self) -> MutexGuard<'_, Vec<String>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether tasks are begun, and those that run are not ended.
    fn goes_on(&self) -> bool {
        self.keep_going || self.failed().is_empty()
    }

    /// Runs one task, records it and prints its lines; `None`: it was ended, for another has
    /// failed.
    fn run_task(&self, step: &Step, task: &Task) -> Result<Option<Verdict>> {
        let (name, begun) = (step.name_of(task), Instant::now());
        if let Some(record) = &self.record {
            let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
            record.begin(&name)?;
        }
        let Some(outcome) = self.outcome(step, task)? else {
            return Ok(None);
        };
        let seconds = begun.elapsed().as_secs_f64();
        let verdict = match outcome.verdict {
            Verdict::Passed => "ok",
            Verdict::Skipped => "SKIP",
            Verdict::Failed => "FAILED",
        };
        println!("{}{name:20} {verdict:6} {seconds:7.1} s", outcome.text);
        if let Some(record) = &self.record {
            let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
            let mut tree = record.tree.clone();
            // Of a tree that changed meanwhile it is not known on what the task ran.
            tree.is_changed |= self::tree(self.root) != tree;
            record.put(Row {
                task: name,
                verdict: outcome.verdict,
                tree: tree.name(),
                ended: said(self.root, "date", &["-u", "+%F %H:%M"])
                    .context("date says nothing")?,
                seconds: seconds.round() as u64,
                skips: outcome.skips,
            })?;
        }
        Ok(Some(outcome.verdict))
    }

    fn outcome(&self, step: &Step, task: &Task) -> Result<Option<Outcome>> {
        if let Some(program) = step.needs.filter(|program| !process::is_installed(program)) {
            let name = format!("ci-{}", step.name);
            let (verdict, why) = match self.allowed.contains(&name) {
                true => (Verdict::Skipped, "allowed"),
                false => (Verdict::Failed, "not in .ci/allowed-skips"),
            };
            return Ok(Some(Outcome {
                verdict,
                skips: 0,
                text: format!("SKIP {name}: {program} is not installed ({why})\n"),
            }));
        }
        let log = log_path(self.root, &step.name_of(task))?;
        let mut text = String::new();
        let mut skips = 0;
        let Some(mut well) = self.run_shell(step, task, &log, &mut text)? else {
            return Ok(None);
        };
        if well {
            for skip in skips::found(&String::from_utf8_lossy(&fs::read(&log)?)) {
                let is_allowed = self.allowed.contains(&skip.test);
                let why = match is_allowed {
                    true => "",
                    false => " (not in .ci/allowed-skips)",
                };
                writeln!(text, "         SKIP {}: {}{why}", skip.test, skip.reason)?;
                well &= is_allowed;
                skips += 1;
            }
        }
        let verdict = match well {
            true => Verdict::Passed,
            false => Verdict::Failed,
        };
        Ok(Some(Outcome {
            verdict,
            skips,
            text,
        }))
    }

    /// Whether the task's commands succeed; else the end of their output goes to `text`. `None`:
    /// they were ended, for another task has failed.
    fn run_shell(
        &self,
        step: &Step,
        task: &Task,
        log: &Path,
        text: &mut String,
    ) -> Result<Option<bool>> {
        let (name, shell) = (step.name_of(task), self.words.shell(task));
        let mut command = match step.beside {
            true => leftover_shell(),
            false => Command::new("bash"),
        };
        command
            .args(["-euo", "pipefail", "-c", &shell])
            .current_dir(self.root);
        command.env("commit", self.words.commit.to_string());
        // A skip printed with println! is seen too.
        command.env("RUST_TEST_NOCAPTURE", "1");
        // It may share the machine for long: with anything at night, and with the other steps.
        let times = if self.record.is_some() || step.beside {
            3
        } else {
            1
        };
        let limit = Duration::from_secs(times * task.limit_s);
        let result = process::run_logged(&mut command, log, limit, || {
            ensure!(self.goes_on(), "another task has failed");
            stop::check()
        });
        // Ctrl-C is no failure of the task: it has no result.
        stop::check()?;
        if matches!(&result, Ok(status) if status.success()) {
            return Ok(Some(true));
        }
        if !self.goes_on() {
            return Ok(None);
        }
        let output = String::from_utf8_lossy(&fs::read(log)?).into_owned();
        let lines: Vec<&str> = output.lines().collect();
        for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
            writeln!(text, "{line}")?;
        }
        for test in skips::failed(&output) {
            writeln!(text, "{name}: failed test: {test}")?;
            for line in skips::panic_of(&output, test) {
                writeln!(text, "    {line}")?;
            }
        }
        match result {
            Ok(status) => writeln!(
                text,
                "{name}: `{shell}`: {status}; all of it: {}",
                log.display()
            )?,
            Err(error) => writeln!(text, "{name}: `{shell}`: {error:#}")?,
        }
        Ok(Some(false))
    }
}

/// A shell that gets the processor when nothing else wants it, or, where Linux's own program for
/// that is missing, less of it than others.
fn leftover_shell() -> Command {
    let (program, words) = match process::is_installed("chrt") {
        true => ("chrt", ["--idle", "0", "bash"]),
        false => ("nice", ["-n", "19", "bash"]),
    };
    let mut command = Command::new(program);
    command.args(words);
    command
}

fn log_path(root: &Path, task: &str) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let directory = target.join("ci");
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    Ok(directory.join(format!("{}.log", task.replace(' ', "-"))))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::report::{self, Verdict};
    use super::steps::{Part, Step, Task};
    use super::{Args, Check, Record, Words, chosen, tree};
    use std::path::Path;
    use std::process::Command;
    use std::sync::Mutex;

    fn args(nightly: bool, only: &[&str]) -> Args {
        Args {
            nightly,
            resume: false,
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
        let tasks = |nightly| chosen(&args(nightly, &["chaos"])).unwrap()[0].1.tasks;
        assert!(tasks(false).len() < tasks(true).len());
        let error = |name: &str| chosen(&args(false, &[name])).err().unwrap().to_string();
        assert!(error("fuzz").contains("--nightly"), "{}", error("fuzz"));
        assert!(error("fuz").contains("there are: fmt"), "{}", error("fuz"));
    }

    const TASKS: [Task; 3] = [
        task("one", "echo 'SKIP a: no root'"),
        task("two", "exit 3"),
        task("three", "exit 0"),
    ];
    const STEP: Step = Step {
        name: "trial",
        checks: "",
        ci: None,
        nightly: Some(Part {
            share: "",
            jobs: 2,
            tasks: &TASKS,
        }),
        needs: None,
        beside: false,
    };

    const fn task(label: &'static str, shell: &'static str) -> Task {
        Task {
            label,
            limit_s: 60,
            shell,
        }
    }

    /// A repository of one commit.
    fn repository(place: &Path) {
        std::fs::create_dir_all(place.join("docs/results")).unwrap();
        let git = |words: &str| {
            let words = words.split(' ');
            let name = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
            let mut command = Command::new("git");
            let status = command.args(name).args(words).current_dir(place).status();
            assert!(status.unwrap().success());
        };
        std::fs::write(place.join(".gitignore"), "target\n").unwrap();
        git("init -q");
        git("add .");
        git("commit -q -m one");
    }

    /// A nightly check that begins, or goes on.
    fn begin(root: &Path) -> Check<'_> {
        let mut record = Record::open(root).unwrap();
        record.tasks = TASKS.iter().map(|it| STEP.name_of(it)).collect();
        Check {
            root,
            allowed: vec!["a".to_owned()],
            words: Words {
                test: String::new(),
                demo: String::new(),
                commit: 7,
            },
            record: Some(Mutex::new(record)),
            keep_going: true,
            resume: true,
            failed: Mutex::default(),
        }
    }

    #[test]
    fn resumed_check_runs_only_what_did_not_pass_here() {
        let place = std::env::temp_dir().join(format!("braid-ci-{}", std::process::id()));
        repository(&place);
        let read = || {
            let text = std::fs::read_to_string(place.join(report::PLACE)).unwrap();
            report::rows(&text).unwrap()
        };
        let left = || -> Vec<String> {
            let check = begin(&place);
            let names = TASKS.iter().map(|it| STEP.name_of(it));
            names.filter(|name| !check.holds(name)).collect()
        };
        assert_eq!(left(), ["trial one", "trial two", "trial three"]);
        // Cut after two tasks: what they ended with is there.
        let cut = begin(&place);
        cut.run_tasks(&STEP, &[&TASKS[0], &TASKS[1]], 2).unwrap();
        assert_eq!(*cut.failed(), ["trial two"]);
        assert_eq!(left(), ["trial two", "trial three"]);
        let mut rows = read();
        rows.sort_by(|a, b| a.task.cmp(&b.task));
        let verdicts: Vec<_> = rows.iter().map(|it| (it.verdict, it.skips)).collect();
        assert_eq!(verdicts, [(Verdict::Passed, 1), (Verdict::Failed, 0)]);
        assert_eq!(rows[0].tree, tree(&place).name());
        // The document is no change of the tree; another file is, and then nothing holds.
        assert!(
            begin(&place)
                .record
                .unwrap()
                .into_inner()
                .unwrap()
                .can_resume()
        );
        std::fs::write(place.join("new"), "").unwrap();
        assert!(
            !begin(&place)
                .record
                .unwrap()
                .into_inner()
                .unwrap()
                .can_resume()
        );
        assert_eq!(left().len(), 3);
        // A change in the middle of a task: its row says so.
        std::fs::remove_file(place.join("new")).unwrap();
        let check = begin(&place);
        std::fs::write(place.join("new"), "").unwrap();
        check.run_tasks(&STEP, &[&TASKS[2]], 2).unwrap();
        std::fs::remove_file(place.join("new")).unwrap();
        assert_eq!(left(), ["trial two", "trial three"]);
        std::fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn first_failure_ends_a_step_unless_told_to_go_on() {
        let place = std::env::temp_dir().join(format!("braid-ci-first-{}", std::process::id()));
        repository(&place);
        let mut check = begin(&place);
        check.keep_going = false;
        let tasks = [&TASKS[1], &TASKS[2]];
        // Also what runs beside it; that has no result.
        let four = task("four", "sleep 600");
        std::thread::scope(|scope| {
            let beside = scope.spawn(|| check.run_tasks(&STEP, &[&four], 1));
            check.run_tasks(&STEP, &tasks, 1).unwrap();
            beside.join().unwrap().unwrap();
        });
        assert_eq!(*check.failed(), ["trial two"]);
        assert!(!check.holds("trial three"));
        check.keep_going = true;
        check.run_tasks(&STEP, &tasks, 1).unwrap();
        assert!(check.holds("trial three"));
        std::fs::remove_dir_all(&place).unwrap();
    }
}
