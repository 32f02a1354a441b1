//! `braid demo`: a target and a host in one process over loopback TCP, two unequal paths, all
//! policies in turn, in rounds of short windows.
//!
//! * `stage`: the target, the host, one measurement; `times`: how long
//! * `model`: what the paths can do at best, and whether they do it alone
//! * `cells`: the figures; `explain`: why they are so
//! * `text`, `json`, `report`: how they are shown
mod cells;
mod explain;
mod json;
mod model;
mod report;
mod stage;
mod text;
mod times;

use anyhow::{Context, bail};
use cells::Outcome;
use policy::{Hedging, Policy};
use stage::Cells;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use terminal::output::{self, Format, Style};
use terminal::signals::Interrupt;
use terminal::units::parse_seconds;
use times::Times;

/// Measure each policy over two unequal NVMe/TCP paths, all inside this process
///
/// A target with two ports and a host talk over loopback TCP: port fast is capped at 300 MiB/s,
/// port slow answers 30 ms later. Needs no root, no configuration, two CPUs and about a minute.
/// Policies are measured in turn, in rounds of short windows, so that other work on the machine
/// meets all of them. If there was such work, the output says so and shows how much.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// Policies to measure, in this order
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = Policy::parse,
          default_value = "numa,round-robin,queue-depth,weighted-latency,soonest")]
    policies: Vec<Policy>,
    /// Second copies of late reads: off, on, or auto, which is on under soonest
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = Hedging::parse)]
    hedge: Hedging,
    /// Measure each cell of the table so long in all, after warming up
    #[arg(long, value_name = "TIME", default_value = "1.5", allow_hyphen_values = true,
          value_parser = parse_seconds)]
    seconds: u64,
    /// Measure so briefly that all takes less than 20 s
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,
    /// Cores of the host, which share the I/Os; the second shares its CPU with the target
    #[arg(long, value_name = "N", default_value = "1", allow_hyphen_values = true,
          value_parser = clap::value_parser!(u16).range(1..=2))]
    cores: u16,
    /// Write a page with plots to this file
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Show results for people or for programs
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

/// Shortest measurement of a cell: some dozen times the slow path's delay would be too few below
/// it.
const SECONDS_NS_MIN: u64 = 50_000_000;

/// Runs the verb.
///
/// # Errors
/// Usage; io_uring or memory can't be had; I/Os failed.
pub fn run(args: &DemoArgs) -> anyhow::Result<()> {
    if !args.quick && args.seconds < SECONDS_NS_MIN {
        return Err(terminal::exit::Usage::error(
            "--seconds: a cell takes at least 0.05 s",
        ));
    }
    for policy in &args.policies {
        let fits = policy.check(2);
        fits.map_err(|why| terminal::exit::Usage::error(format!("{policy}: {why}")))?;
        let hedges = args.hedge.check(*policy);
        hedges.map_err(|why| terminal::exit::Usage::error(format!("--hedge, {policy}: {why}")))?;
    }
    let mut report = args.report.as_deref().map(Report::open).transpose()?;
    let interrupt = Interrupt::install()?;
    let times = match args.quick {
        true => Times::QUICK,
        false => Times::of(args.seconds),
    };
    let cells = Cells {
        policies: &args.policies,
        hedging: args.hedge,
        cores: args.cores,
        times,
    };
    let outcome = stage::perform(cells, interrupt.clone());
    if let Err(error) = &outcome {
        output::print_failure(args.output, error, interrupt.is_set())?;
    }
    let outcome = outcome?;
    match args.output {
        Format::Json => output::print_json(&json::json(&outcome))?,
        Format::Text => output::print(&text::text(&outcome, Style::of_stdout()))?,
    }
    if let Some(report) = &mut report {
        report.write(&report::page(&outcome)?)?;
    }
    verdict(&outcome)
}

/// The page's file, opened before the measurement that it is to show. Its old contents stay until
/// there is something else to write; a new one that nothing was written to is removed.
struct Report<'a> {
    path: &'a Path,
    file: File,
    made: bool,
}

impl<'a> Report<'a> {
    fn open(path: &'a Path) -> anyhow::Result<Self> {
        let mut options = File::options();
        options.write(true);
        let (opened, made) = match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => (options.open(path), false),
            made => (made, true),
        };
        let file = opened.with_context(|| {
            let path = path.display();
            format!(
                "--report: cannot write {path} (name a file in a directory that may be written)"
            )
        })?;
        Ok(Self { path, file, made })
    }

    fn write(&mut self, page: &str) -> anyhow::Result<()> {
        self.made = false;
        let regular = self
            .file
            .metadata()
            .is_ok_and(|metadata| metadata.is_file());
        let emptied = if regular {
            self.file.set_len(0)
        } else {
            Ok(())
        };
        emptied
            .and_then(|()| self.file.write_all(page.as_bytes()))
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if self.made {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

fn verdict(outcome: &Outcome) -> anyhow::Result<()> {
    if outcome.errors() > 0 {
        bail!("{} I/Os failed", outcome.errors());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_cannot_be_written_is_told_before_anything_is_measured() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nope/r.html");
        let error = Report::open(&path).err().unwrap();
        assert!(format!("{error:#}").contains("cannot write"), "{error:#}");
    }

    #[test]
    fn a_report_replaces_only_when_there_is_a_page() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.html");
        drop(Report::open(&path).unwrap());
        assert!(!path.exists(), "nothing was written");
        std::fs::write(&path, "an older and longer page").unwrap();
        drop(Report::open(&path).unwrap());
        assert_eq!(std::fs::read(&path).unwrap().len(), 24);
        Report::open(&path).unwrap().write("page").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "page");
    }
}
