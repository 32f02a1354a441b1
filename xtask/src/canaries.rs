//! Bugs that are planted on purpose (crate `canary`), and whether the simulator finds them.
//!
//! # Contract
//! The example `canaries` of `braid-sim` is built with its feature of that name and run; this makes
//! a table of what it says. A bug that was not found within its number of seeds is a failure: then
//! a checker or a fault is missing. A difference from canaries.md is printed; with `--check` that
//! is a failure too, with `--write` it is written anew (`book`). That `braid` has no such bug is
//! asserted where it is compiled.
mod book;

use crate::faults::table::Table;
use anyhow::{Context, Result, bail};
use book::Row;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use system::figures::Format;

/// Options.
#[derive(clap::Args)]
pub struct Args {
    /// Bugs; all of them if none is named.
    bugs: Vec<String>,
    /// Seeds for each instead of the stated number.
    #[arg(long, value_name = "SEEDS")]
    within: Option<u64>,
    /// Tries the seed that canaries.md states first, and others only if it does not show the bug.
    #[arg(long)]
    stated: bool,
    /// It is a failure if canaries.md says otherwise.
    #[arg(long, conflicts_with_all = ["within", "write"])]
    check: bool,
    /// Writes what was found into canaries.md.
    #[arg(long, conflicts_with = "within")]
    write: bool,
    /// How to print the table.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

/// Longest words of a checker in the table.
const SAID_MAX: usize = 48;

/// Plants and hunts.
pub fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let mut command = Command::new(build(root)?);
    command.args(&args.bugs);
    if let Some(within) = args.within {
        command.args(["--within", &within.to_string()]);
    }
    let text = std::fs::read_to_string(root.join(book::PLACE)).context(book::PLACE)?;
    let kept = book::read(&text)?;
    if args.stated {
        command.args(kept.iter().map(|it| format!("{}@{}", it.name, it.seed)));
    }
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let lines = child.stdout.take().context("no output")?;
    let mut table = Table::new(&["canary", "planted", "within", "seed", "seconds", "said"]);
    let mut found = Vec::new();
    let mut missed = 0;
    for line in BufReader::new(lines).lines() {
        let row: Value = serde_json::from_str(&line?).context("a line of the example")?;
        match of(&row) {
            Some(row) => {
                eprintln!("{}: seed {}", row.name, row.seed);
                found.push(row);
            }
            None => {
                missed += 1;
                let (name, within) = (&row["canary"], &row["within"]);
                eprintln!("{name}: NOT FOUND within {within} seeds: {}", row["said"]);
            }
        }
        table.row(cells(&row, args.output));
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
    match args.within {
        None => compare(root, &text, &kept, &found, args),
        Some(_) => Ok(ExitCode::SUCCESS), // that is not what the book tells of
    }
}

/// Compares what was found with what is written, or writes it.
fn compare(root: &Path, text: &str, kept: &[Row], found: &[Row], args: &Args) -> Result<ExitCode> {
    let mut differing: Vec<String> = found.iter().filter_map(|it| it.differs(kept)).collect();
    if args.bugs.is_empty() {
        let gone = |it: &&Row| !found.iter().any(|row| row.name == it.name);
        let gone = kept.iter().filter(gone);
        differing.extend(gone.map(|it| format!("{}: {} is none", book::PLACE, it.name)));
    }
    for line in &differing {
        eprintln!("{line}");
    }
    if args.write {
        std::fs::write(root.join(book::PLACE), book::rewrite(text, found)?).context(book::PLACE)?;
    } else if args.check && !differing.is_empty() {
        println!(
            "{} rows of {} differ: cargo xtask canaries --write",
            differing.len(),
            book::PLACE
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Row of a bug that was found.
fn of(row: &Value) -> Option<Row> {
    let text = |key: &str| row[key].as_str().unwrap_or_default();
    Some(Row {
        name: text("canary").to_owned(),
        planted: text("planted").to_owned(),
        within: row["within"].as_u64()?,
        seed: row["seed"].as_u64()?,
        said: book::words(text("said")),
        mirrors: row["mirrors"].as_bool()?,
    })
}

fn cells(row: &Value, format: Format) -> Vec<Value> {
    let said = row["said"].as_str().unwrap_or("nothing");
    let said = match format {
        Format::Text => shorten(said),
        Format::Json => said.to_owned(),
    };
    let keys = ["canary", "planted", "within", "seed", "seconds"];
    let cells = keys.into_iter().map(|key| row[key].clone());
    cells.chain([json!(said)]).collect()
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
