//! Histories of overlapping requests: every sector must behave like a register (T9, T46).
//!
//! # Contract
//! Three target processes serve one file, an engine exports the volume over them. Clients with a
//! connection each read and write a few sectors that all of them share, break their connections in
//! the middle of writes, and connect again, while targets fail. Each write carries a stamp of its
//! own. Afterwards the history of each sector is checked for linearizability ([`check`]).
//!
//! Nothing here is shared with the engine, the simulator or `braid bench`: one mistake in both
//! would not be seen.
mod check;
pub(super) mod client;
mod load;

use super::engine::SHORT;
use super::plan::{Plan, Random};
use super::stage::Stage;
use super::table::Table;
use super::{Common, stop};
use anyhow::{Context, Result};
use check::History;
use load::Load;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const WAYS: usize = 3;
const BYTES: u64 = 4 << 20;
/// Longest time of a fault: beyond the keep-alive of [`SHORT`] and its fence.
const FAULT_MS_MAX: u64 = 2500;
/// Delays of all targets, one of which is drawn before each fault: with them writes are under way
/// when a connection breaks.
const DELAYS: [&str; 5] = ["0ms", "0ms", "1ms", "10ms", "150ms"];

/// How long, and how crowded.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// For how long faults are begun.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Clients, each with a connection of its own.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=64))]
    clients: u64,
    /// Blocks of 4 KiB that all clients share.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=512))]
    blocks: u64,
}

impl Args {
    /// The command line that repeats it.
    pub fn words(&self) -> String {
        let Self {
            seconds,
            clients,
            blocks,
        } = self;
        format!("history --seconds {seconds} --clients {clients} --blocks {blocks}")
    }
}

/// Runs it and prints.
///
/// # Errors
/// A sector's history is not that of a register, or the volume failed.
pub fn run(common: &Common, args: &Args) -> Result<()> {
    let namespaces = common.namespaces();
    let mut stage = Stage::targets(&common.program, "history", WAYS, namespaces, (BYTES, ""))?;
    stage.run(SHORT, |_| String::new())?;
    let load = Load::start(
        &stage.engine()?.export(),
        common.seed,
        args.clients,
        args.blocks,
    );
    let faults = inject(common, args, &mut stage, &load);
    let history = load.finish();
    let faults = faults
        .with_context(|| format!("the engine's log: {}", stage.path("engine.log").display()))?;
    let history = history.context("a client")?;
    let checked = history.check();
    if checked.is_err() {
        let kept = stage.directory.keep();
        eprintln!("kept for inspection: {}", kept.display());
    }
    checked?;
    print(common, args, &history, &faults);
    Ok(())
}

/// Begins and ends one fault after the other; how many of each.
fn inject(
    common: &Common,
    args: &Args,
    stage: &mut Stage,
    load: &Load,
) -> Result<BTreeMap<String, u64>> {
    let mut plan = Plan::new(common.seed, WAYS, FAULT_MS_MAX, stage.net.is_real());
    let mut random = Random(common.seed ^ 0x6869_7374);
    let mut faults = BTreeMap::new();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(args.seconds) {
        let fault = plan.next();
        common.progress(&format!(
            "{} s: {}",
            begun.elapsed().as_secs(),
            fault.name()
        ));
        for target in &stage.targets {
            let delay = DELAYS[random.below(DELAYS.len() as u64) as usize];
            target.set(&[&format!("delay={delay}")])?;
        }
        stop::pause(Duration::from_millis(300))?;
        stage.undergo(&fault)?;
        load.check()?;
        *faults.entry(fault.name()).or_default() += 1;
    }
    common.progress("");
    Ok(faults)
}

fn print(common: &Common, args: &Args, history: &History, faults: &BTreeMap<String, u64>) {
    let table = Table::of_faults(faults);
    let counts = history.counts();
    common.show(
        "history",
        &format!("{} clients on {} blocks", args.clients, args.blocks),
        &table,
        json!({
            "requests": counts.requests,
            "sector_operations": counts.operations,
            "broken_connections": counts.broken,
            "orphaned_writes": counts.orphaned,
            "failed_requests": counts.failed,
            "sectors_checked": counts.sectors,
        }),
    );
}
