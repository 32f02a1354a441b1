//! Runs the fuzz targets on the stable compiler: coverage of edges and compares, no sanitizer (the
//! code under test has no unsafe).
//!
//! # Contract
//! Seeds are read from `fuzz/corpus/<target>`; what is found goes to `target/fuzz/<target>`. With
//! `--keep` the finds that add coverage are merged into the corpus, where `cargo test` replays
//! them.
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use system::{process, stop};

/// Instrumentation, as libFuzzer expects it.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1 --cfg fuzzing";

/// How long a target may overrun its time.
const GRACE: Duration = Duration::from_secs(60);

/// Options.
#[derive(clap::Args)]
pub struct Args {
    /// Targets; all of them if none is named.
    targets: Vec<String>,
    /// Seconds for each.
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Targets that are fuzzed at a time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    /// Largest input, bytes.
    #[arg(long, default_value_t = 4096)]
    length: u32,
    /// Merge finds that add coverage into the corpus.
    #[arg(long)]
    keep: bool,
}

/// Fuzzes; a crash fails and its input is named.
pub fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let all = targets(root)?;
    if let Some(unknown) = args.targets.iter().find(|target| !all.contains(target)) {
        bail!("no fuzz target {unknown:?}; there are: {}", all.join(", "));
    }
    let chosen = if args.targets.is_empty() {
        &all
    } else {
        &args.targets
    };
    let output = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let output = output.join("fuzz");
    let triple = host_triple()?;
    build(root, &output, &triple)?;
    let crashed = Mutex::new(Vec::new());
    process::at_a_time(args.jobs as usize, chosen, |target| {
        let program = output.join(&triple).join("release").join(target);
        if !fuzz(root, &output, &program, target, args)? {
            let mut crashed = crashed.lock().unwrap_or_else(PoisonError::into_inner);
            crashed.push(target.as_str());
        }
        Ok(())
    })?;
    let crashed = crashed.into_inner().unwrap_or_else(PoisonError::into_inner);
    ensure!(crashed.is_empty(), "crashed: {}", crashed.join(", "));
    Ok(ExitCode::SUCCESS)
}

/// Names of the targets: the files in `fuzz/fuzz_targets`.
fn targets(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join("fuzz/fuzz_targets")).context("list fuzz/fuzz_targets")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".rs").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

fn host_triple() -> Result<String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("start rustc")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

fn build(root: &Path, output: &Path, triple: &str) -> Result<()> {
    let status = Command::new("cargo")
        .args([
            "build",
            "--quiet",
            "--release",
            "--bins",
            "--target",
            triple,
        ])
        .args(["--manifest-path", "fuzz/Cargo.toml"])
        .current_dir(root)
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", output)
        .status()
        .context("start cargo")?;
    ensure!(
        status.success(),
        "the fuzz targets did not compile (they need a C++ compiler)"
    );
    Ok(())
}

/// Whether the target survived.
fn fuzz(root: &Path, output: &Path, program: &Path, target: &str, args: &Args) -> Result<bool> {
    let corpus = root.join("fuzz/corpus").join(target);
    let finds = output.join("corpus").join(target);
    let artifacts = output.join("artifacts").join(target);
    for directory in [&corpus, &finds, &artifacts] {
        fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    }
    let mut command = Command::new(program);
    command
        .arg(format!("-max_total_time={}", args.seconds))
        .arg(format!("-max_len={}", args.length))
        .args([
            "-timeout=60",
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
            "-use_value_profile=1",
        ])
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args([&finds, &corpus]);
    let limit = Duration::from_secs(args.seconds.into()) + GRACE;
    let log = output.join(format!("{target}.log"));
    let status = process::run_logged(&mut command, &log, limit, stop::check)?;
    let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    if !status.success() {
        println!(
            "{said}\n{target}: the input that failed is in {}",
            artifacts.display()
        );
        return Ok(false);
    }
    println!(
        "{target:13} {:>10} executions, {} inputs kept",
        stat(&said, "executed_units"),
        { fs::read_dir(&finds)?.count() }
    );
    if args.keep {
        let mut merge = Command::new(program);
        merge.arg("-set_cover_merge=1").args([&corpus, &finds]);
        let status = process::run_logged(&mut merge, &log, limit, stop::check)?;
        ensure!(
            status.success(),
            "merging the corpus of {target} failed: {}",
            log.display()
        );
    }
    Ok(true)
}

/// One of libFuzzer's final statistics.
fn stat<'a>(said: &'a str, name: &str) -> &'a str {
    let line = said
        .lines()
        .find(|line| line.starts_with("stat::") && line.contains(name));
    line.and_then(|line| line.split_whitespace().last())
        .unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::stat;

    #[test]
    fn statistics_are_read_by_name() {
        let said = "stat::number_of_executed_units: 721364\nstat::peak_rss_mb:  29\n";
        assert_eq!(
            (stat(said, "executed_units"), stat(said, "peak_rss_mb")),
            ("721364", "29")
        );
        assert_eq!(stat(said, "new_units"), "?");
    }
}
