//! `braid demo`: a target and a host in one process over loopback TCP, two unequal paths, each
//! policy in turn.
//!
//! * [`stage`]: the target, the host, one measurement
//! * [`model`]: what the paths can do at best, and whether they do it alone
//! * [`cells`]: the figures; [`explain`]: why they are so
//! * [`text`], [`json`], [`report`]: how they are shown
mod cells;
mod explain;
mod json;
mod model;
mod report;
mod stage;
mod text;

use crate::output::{self, Format, Style};
use crate::signals::Interrupt;
use crate::units::parse_seconds;
use anyhow::{Context, bail};
use cells::Outcome;
use policy::Policy;
use std::path::PathBuf;

/// Measure each policy over two unequal NVMe/TCP paths, all inside this process
///
/// A target with two ports and a host talk over loopback TCP: port fast is capped at 300 MiB/s,
/// port slow answers 30 ms later. Needs no root, no configuration, two CPUs and about a minute.
/// Each path is first measured alone; where it is more than 5 % from its model the machine is too
/// busy, which is said, and the exit code is 1.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// Policies to measure, in this order
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = Policy::parse,
          default_value = "numa,round-robin,queue-depth,weighted-latency")]
    policies: Vec<Policy>,
    /// Measure each cell of the table so long, after warming up
    #[arg(long, value_name = "TIME", default_value = "2.5", value_parser = parse_seconds)]
    seconds: u64,
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
/// Usage; io_uring or memory can't be had; I/Os failed; the machine is too busy.
pub fn run(args: &DemoArgs) -> anyhow::Result<()> {
    if args.seconds < SECONDS_NS_MIN {
        return Err(crate::cli::Usage::error(
            "--seconds: a cell takes at least 0.05 s",
        ));
    }
    let interrupt = Interrupt::install()?;
    let outcome = stage::perform(&args.policies, args.seconds, interrupt)?;
    match args.output {
        Format::Json => output::print_json(&json::json(&outcome))?,
        Format::Text => output::print(&text::text(&outcome, Style::of_stdout()))?,
    }
    if let Some(path) = &args.report {
        let page = report::page(&outcome)?;
        std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    verdict(&outcome)
}

fn verdict(outcome: &Outcome) -> anyhow::Result<()> {
    if outcome.errors() > 0 {
        bail!("{} I/Os failed", outcome.errors());
    }
    if !outcome.machine_is_quiet() {
        bail!("the machine is too busy for these figures to be trusted");
    }
    Ok(())
}
