//! Bugs that are planted on purpose (crate `canary`), and whether the simulator finds them.
//!
//! # Contract
//! The example `canaries` of `braid-sim` is built with its feature of that name and run; this makes
//! a table of what it says. A bug that was not found within its number of seeds is a failure: then
//! a checker or a fault is missing. That `braid` has no such bug is asserted where it is compiled.
use crate::bench::Format;
use crate::faults::table::Table;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// What to look for.
#[derive(clap::Args)]
pub struct Args {
    /// Bugs; all of them if none is named.
    bugs: Vec<String>,
    /// Seeds for each instead of the stated number.
    #[arg(long, value_name = "SEEDS")]
    within: Option<u64>,
    /// How to print the table.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

/// Longest words of a checker in the table.
const SAID_MAX: usize = 100;

/// Plants and hunts.
pub fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let mut command = Command::new(build(root)?);
    command.args(&args.bugs);
    if let Some(within) = args.within {
        command.args(["--within", &within.to_string()]);
    }
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let lines = child.stdout.take().context("no output")?;
    let mut table = Table::new(&["canary", "planted", "within", "seed", "seconds", "said"]);
    let mut missed = 0;
    for line in BufReader::new(lines).lines() {
        let row: Value = serde_json::from_str(&line?).context("a line of the example")?;
        let name = row["canary"].as_str().unwrap_or_default();
        let said = row["said"].as_str().unwrap_or("nothing").to_owned();
        let said = match args.output {
            Format::Text => shorten(&said),
            Format::Json => said,
        };
        if row["seed"].is_null() {
            missed += 1;
            eprintln!("{name}: NOT FOUND within {} seeds: {said}", row["within"]);
        } else {
            eprintln!("{name}: seed {}", row["seed"]);
        }
        let mut cells: Vec<Value> = ["canary", "planted", "within", "seed", "seconds"]
            .map(|key| row[key].clone())
            .into();
        cells.push(json!(said));
        table.row(cells);
    }
    let status = child.wait()?;
    match args.output {
        Format::Text => print!("{}", table.text()),
        Format::Json => println!("{}", table.json()),
    }
    if missed > 0 {
        println!("{missed} not found");
        return Ok(ExitCode::FAILURE);
    }
    if !status.success() {
        bail!("the example ended with {status}");
    }
    Ok(ExitCode::SUCCESS)
}

fn build(root: &Path) -> Result<PathBuf> {
    let built = Command::new("cargo")
        .args(["build", "--quiet", "--release", "-p", "braid-sim"])
        .args(["--features", "canaries", "--example", "canaries"])
        .current_dir(root)
        .status()
        .context("start cargo")?;
    if !built.success() {
        bail!("the canaries did not compile");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    Ok(target.join("release/examples/canaries"))
}

/// The beginning, on one line.
fn shorten(said: &str) -> String {
    let line: String = said.lines().next().unwrap_or_default().into();
    match line.char_indices().nth(SAID_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::{SAID_MAX, shorten};

    #[test]
    fn long_words_are_cut_at_a_character() {
        assert_eq!(shorten("one\ntwo"), "one");
        assert_eq!(shorten(&"é".repeat(SAID_MAX)), "é".repeat(SAID_MAX));
        let long = shorten(&"é".repeat(SAID_MAX + 1));
        assert_eq!(long.chars().count(), SAID_MAX + 1);
        assert!(long.ends_with('…'));
    }
}
