//! Everything that must hold before a change is offered.
//!
//! # Contract
//! Steps run one after the other, each within its own time; the first failure ends the run (with
//! `--keep-going` all are run) and
//! shows the end of that step's output. Whole outputs are kept in `target/ci/<step>.log`. The
//! commands for the tests and the demo are read out of README.md, so that what is checked is what
//! readers type.
//!
//! A test that cannot run on this machine prints `SKIP <test>: <reason>` (to stderr, past the
//! capture of the test harness) and passes; a skip or `#[ignore]` that `.ci/allowed-skips` does not
//! name fails.
mod readme;
mod skips;

use crate::tidy;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use system::process;

/// Lines shown of a step that failed.
const TAIL_LINES: usize = 120;

/// What to run.
#[derive(clap::Args)]
pub struct Args {
    /// Run only these steps (repeatable).
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Go on after a failure and show all of them.
    #[arg(long)]
    keep_going: bool,
}

/// One step: shell commands, or tidy where there are none.
struct Step {
    name: &'static str,
    limit: Duration,
    shell: String,
    /// A program without which the step is skipped.
    needs: Option<&'static str>,
}

/// Runs the steps.
pub fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let steps = steps(root)?;
    if let Some(unknown) = args
        .only
        .iter()
        .find(|only| steps.iter().all(|s| s.name != *only))
    {
        let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
        bail!("no step {unknown:?}; there are: {}", names.join(", "));
    }
    let allowed = skips::allowed(&read(&root.join(".ci/allowed-skips"))?);
    let begun = Instant::now();
    let mut failed = Vec::new();
    let wanted = |step: &&Step| args.only.is_empty() || args.only.iter().any(|o| o == step.name);
    for step in steps.iter().filter(wanted) {
        if !run_step(root, step, &allowed)? {
            failed.push(step.name);
            if !args.keep_going {
                break;
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    if failed.is_empty() {
        println!("ci: all well in {seconds:.0} s");
        return Ok(ExitCode::SUCCESS);
    }
    println!("ci: {} failed after {seconds:.0} s", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

fn steps(root: &Path) -> Result<Vec<Step>> {
    let readme = read(&root.join("README.md"))?;
    let test = readme::command(&readme, "test")?;
    let demo = readme::command(&readme, "demo")?;
    let step = |name, limit_s, shell: &str| Step {
        name,
        limit: Duration::from_secs(limit_s),
        shell: shell.to_owned(),
        needs: None,
    };
    Ok(vec![
        step(
            "fmt",
            60,
            "cargo fmt --all --check && cargo fmt --manifest-path fuzz/Cargo.toml --check",
        ),
        step("tidy", 60, ""),
        step(
            "clippy",
            600,
            "cargo clippy --workspace --all-targets -- -D warnings && \
             cargo clippy -p braid-sim --features canaries --all-targets -- -D warnings",
        ),
        step("test", 1800, &test),
        step("loom", 600, LOOM),
        step(
            "doc",
            300,
            "RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps",
        ),
        step("release", 1200, "cargo build --release"),
        step(
            "sim",
            300,
            "cargo run --release -q --bin braid-sim -- --check scenarios",
        ),
        step("chaos", 360, CHAOS),
        step("canaries", 900, "cargo xtask canaries --check"),
        step("demo", 180, &smoke(&demo)),
        step("hostile", 120, HOSTILE),
        step("faults", 720, FAULTS),
        Step {
            needs: Some("c++"),
            ..step("fuzz", 900, "cargo xtask fuzz --seconds 3")
        },
        Step {
            needs: Some("valgrind"),
            ..step("cost", 300, "cargo xtask bench policy")
        },
        step("vm", 1800, "cargo xtask vm all --may-skip"),
    ])
}

/// In a directory of its own: with other flags everything would be compiled anew each time.
const LOOM: &str = "RUSTFLAGS='--cfg loom' cargo test -p braid-nvme --test loom --release \
     --target-dir \"${CARGO_TARGET_DIR:-target}/loom\"";

/// Worlds of chaos of seeds that are always the same, and of the commit's: of both families.
const CHAOS: &str = "commit=$(git rev-parse --short=7 HEAD || echo 2); \
     sim='cargo run --release -q --bin braid-sim --'; \
     $sim --chaos -j 2 --seed 1 --seeds 1000; \
     $sim --chaos -j 2 --seed $((16#$commit)) --seeds 1000; \
     $sim --chaos --mirrors -j 2 --seed 1 --seeds 100; \
     $sim --chaos --mirrors -j 2 --seed $((16#$commit)) --seeds 100";

/// That hostile connections take no more memory than is said: so many as a busy machine holds too.
/// How fast an honest client is beside them gates nothing here.
const HOSTILE: &str = "cargo xtask bench connections --idle 1000 --slow 100 --pairs 1 --least 0";

/// Random faults twice, of a seed that is always the same and of the commit's; the same for kills
/// of an engine with a mirror, over files and targets; overlapping requests whose histories are
/// checked; losses of power under an ext4; targets that stand still; then no path at all.
const FAULTS: &str = "commit=$(git rev-parse --short=7 HEAD || echo 2); \
     cargo xtask faults random --faults 8 --seed 1 --may-skip; \
     cargo xtask faults random --faults 8 --seed $((16#$commit)) --may-skip; \
     cargo xtask faults kill --rounds 60 --seed $((16#$commit)); \
     cargo xtask faults kill --rounds 40 --legs 3 --seed 1; \
     cargo xtask faults kill --rounds 40 --on-targets --seed 1; \
     cargo xtask faults history --seconds 12 --seed $((16#$commit)) --may-skip; \
     cargo xtask faults prefixes --seconds 5 --prefixes 20 --seed $((16#$commit)) --may-skip; \
     cargo xtask faults marks --rounds 10 --seed 1; \
     cargo xtask faults freeze --points 3 --random 10 --seed $((16#$commit)); \
     cargo xtask faults down --seconds 1 --seed 1 --may-skip";

/// The demo for a short time. Its figures gate nothing: that the machine is too busy for them is
/// well too.
fn smoke(demo: &str) -> String {
    format!(
        "code=0; said=$({demo} --seconds 0.3 2>&1) || code=$?; printf '%s\\n' \"$said\"; \
         [[ $said == *weighted-latency*mixed* ]] && [[ $code == 0 || $said == *'too busy'* ]]"
    )
}

/// Runs one step and prints its line; whether it is well.
fn run_step(root: &Path, step: &Step, allowed: &[String]) -> Result<bool> {
    let begun = Instant::now();
    if let Some(program) = step.needs.filter(|program| !process::is_installed(program)) {
        let name = format!("ci-{}", step.name);
        let well = allowed.contains(&name);
        let verdict = if well {
            "allowed"
        } else {
            "not in .ci/allowed-skips"
        };
        println!(
            "{:8} SKIP {name}: {program} is not installed ({verdict})",
            step.name
        );
        return Ok(well);
    }
    let log = log_path(root, step.name)?;
    let well = if step.shell.is_empty() {
        tidy::run(root)? == ExitCode::SUCCESS
    } else {
        run_shell(root, step, &log)?
    };
    let skipped = if well {
        skips::found(&fs::read_to_string(&log).unwrap_or_default())
    } else {
        vec![]
    };
    let refused: Vec<&skips::Skip> = skipped
        .iter()
        .filter(|s| !allowed.contains(&s.test))
        .collect();
    let verdict = if well && refused.is_empty() {
        "ok"
    } else {
        "FAILED"
    };
    println!(
        "{:8} {verdict:6} {:6.1} s",
        step.name,
        begun.elapsed().as_secs_f64()
    );
    for skip in &skipped {
        let verdict = if allowed.contains(&skip.test) {
            ""
        } else {
            " (not in .ci/allowed-skips)"
        };
        println!("         SKIP {}: {}{verdict}", skip.test, skip.reason);
    }
    Ok(well && refused.is_empty())
}

fn run_shell(root: &Path, step: &Step, log: &Path) -> Result<bool> {
    let mut command = Command::new("bash");
    command
        .args(["-euo", "pipefail", "-c", &step.shell])
        .current_dir(root);
    // A skip printed with println! is seen too.
    command.env("RUST_TEST_NOCAPTURE", "1");
    let result = process::run_logged(&mut command, log, step.limit);
    if matches!(&result, Ok(status) if status.success()) {
        return Ok(true);
    }
    let output = String::from_utf8_lossy(&fs::read(log)?).into_owned();
    let lines: Vec<&str> = output.lines().collect();
    for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
        println!("{line}");
    }
    match result {
        Ok(status) => println!(
            "{}: `{}`: {status}; all of it: {}",
            step.name,
            step.shell,
            log.display()
        ),
        Err(error) => println!("{}: `{}`: {error:#}", step.name, step.shell),
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
