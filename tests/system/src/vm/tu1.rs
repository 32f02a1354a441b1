//! Cost of reads through io_uring passthrough and the block layer in a guest (TU1).
//!
//! # Contract
//! The script measures every cell once and prints it as an object behind a word. Each start of the
//! guest is one such measurement; the table has medians over starts, and the range of what the
//! host's own speed gets into: QEMU's controller works on a thread outside of virtual time.
use super::image::Image;
use super::{Options, machine, suite};
use crate::figures::Format;
use crate::program::{median, number, range};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

/// The script.
const SCRIPT: &str = "tests/guest/figures/tu1.sh";
/// Begins a line of the script that has a cell.
const CELL: &str = "cell: ";
/// Names of a cell's parts, beside its figures.
const NAMES: [&str; 4] = ["read", "bytes", "outstanding", "completions"];
/// The figures, and whether their range is shown to people.
const FIGURES: [(&str, bool); 7] = [
    ("cpu_us_per_io", true),
    ("iops", true),
    ("p50_us", false),
    ("p99_us", false),
    ("system_calls_per_io", false),
    ("polls_per_io", false),
    ("empty_polls_percent", true),
];

/// How often.
#[derive(clap::Args)]
pub struct Args {
    /// Guests that are started, one after the other.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    starts: u16,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
    #[command(flatten)]
    pub options: Options,
}

/// Runs the guests and prints the table.
pub fn run(root: &Path, image: &Image, braid: &Path, args: &Args) -> Result<ExitCode> {
    let script = root.join(SCRIPT);
    let options = args.options.over(&suite::options(&script)?);
    let mut starts = Vec::new();
    for start in 1..=args.starts {
        let run = machine::Run {
            script: &script,
            braid,
            options: &options,
            echo: false,
            files: &[],
        };
        let ended = machine::run(image, &run)?;
        eprintln!("start {start} of {}: {ended}", args.starts);
        let said = ended.lines.join("\n");
        ensure!(ended.status == 0, "the guest's script failed:\n{said}");
        starts.push(cells(&ended.lines).with_context(|| said)?);
    }
    let table = table(&starts)?;
    match args.output {
        Format::Text => print(&table)?,
        Format::Json => println!("{}", json!({ "starts": args.starts, "cells": table })),
    }
    Ok(ExitCode::SUCCESS)
}

/// Measurements of one start.
fn cells(lines: &[String]) -> Result<Vec<Value>> {
    let cells = lines.iter().filter_map(|line| line.strip_prefix(CELL));
    let cells = cells.map(|cell| serde_json::from_str(cell).with_context(|| cell.to_owned()));
    let cells: Vec<Value> = cells.collect::<Result<_>>()?;
    ensure!(!cells.is_empty(), "the script measured nothing");
    Ok(cells)
}

/// Each cell with the median and the range of each figure.
fn table(starts: &[Vec<Value>]) -> Result<Vec<Value>> {
    let first = starts.first().context("no start")?;
    let mut table = Vec::new();
    for (at, cell) in first.iter().enumerate() {
        let mut row: Value = NAMES
            .iter()
            .map(|&name| (name, cell[name].clone()))
            .collect();
        for (key, _) in FIGURES {
            let of = |start: &Vec<Value>| {
                let other = start.get(at).context("a start has fewer cells")?;
                let is_same = NAMES.iter().all(|name| other[name] == cell[name]);
                ensure!(is_same, "cells stand in another order");
                number(other, key)
            };
            let figures: Vec<f64> = starts.iter().map(of).collect::<Result<_>>()?;
            row[format!("{key}_range")] = json!(range(&figures));
            row[key] = json!(median(figures));
        }
        table.push(row);
    }
    Ok(table)
}

fn print(table: &[Value]) -> Result<()> {
    println!(
        "| read | bytes | outstanding | completions | CPU µs per I/O | IOPS | p50 µs | p99 µs | \
         system calls per I/O | polls per I/O | of them useless, % |"
    );
    println!("|{}", "---|".repeat(NAMES.len() + FIGURES.len()));
    for cell in table {
        let mut line = String::from("|");
        for name in NAMES {
            let word = cell[name].to_string();
            line += &format!(" {} |", word.trim_matches('"'));
        }
        for (key, has_range) in FIGURES {
            line += &format!(" {}", short(number(cell, key)?));
            let [least, most] = [0, 1].map(|end| cell[format!("{key}_range")][end].as_f64());
            if let (true, Some(least), Some(most)) = (has_range, least, most) {
                line += &format!(" ({} to {})", short(least), short(most));
            }
            line += " |";
        }
        println!("{line}");
    }
    Ok(())
}

/// Three digits that matter.
fn short(figure: f64) -> String {
    match figure.abs() {
        100.0.. => format!("{figure:.0}"),
        10.0.. => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{CELL, FIGURES, cells, short, table};

    fn line(depth: u32, iops: f64) -> String {
        let figures = FIGURES.map(|(key, _)| format!("\"{key}\": {iops}"));
        let names = r#""read": "block", "bytes": 512, "completions": "irq""#;
        let figures = figures.join(", ");
        format!("{CELL}{{{names}, \"outstanding\": {depth}, {figures}}}")
    }

    #[test]
    fn a_cell_has_the_median_and_range_of_all_starts() {
        let starts = [3.0, 1.0, 2.0].map(|iops| {
            let lines = ["ok device".to_owned(), line(1, iops), line(16, 9.0)];
            cells(&lines).unwrap()
        });
        let table = table(&starts).unwrap();
        assert_eq!(table.len(), 2);
        assert_eq!(table[0]["iops"], 2.0);
        assert_eq!(table[0]["iops_range"], serde_json::json!([1.0, 3.0]));
        assert_eq!(table[1]["outstanding"], 16);
        assert_eq!(table[1]["p99_us"], 9.0);
    }

    #[test]
    fn starts_that_measured_something_else_are_not_mixed() {
        let one = cells(&[line(1, 1.0)]).unwrap();
        let other = cells(&[line(16, 1.0)]).unwrap();
        assert!(table(&[one.clone(), other]).is_err());
        assert!(table(&[one, Vec::new()]).is_err());
        assert!(cells(&["ok device".to_owned()]).is_err());
    }

    #[test]
    fn figures_have_three_digits() {
        let shown = [0.071, 12.34, 44053.4].map(short);
        assert_eq!(shown, ["0.07", "12.3", "44053"]);
    }
}
