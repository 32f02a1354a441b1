//! Development tasks: `cargo xtask tidy`, `cargo xtask ci`, `cargo xtask bench …`.
#![forbid(unsafe_code)]

mod canaries;
mod ci;
mod fuzz;
mod tidy;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use system::{faults, vm};

/// Development tasks of braid.
#[derive(Parser)]
#[command(name = "cargo xtask", version, about)]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything that must hold before a change is offered; stops at the first failure.
    Ci(ci::Args),
    /// Lints the tree: layers, purity, lengths, columns, links. Prints every finding.
    Tidy,
    /// Counts lines, flags, assertions and methods of each crate, as a table in Markdown.
    Figures {
        /// Another checkout than this one.
        root: Option<PathBuf>,
    },
    /// Fuzzes with the stable compiler, each target for some seconds.
    Fuzz(fuzz::Args),
    /// Measures: what a policy, a wire I/O and an idle host cost.
    Bench(bench::Args),
    /// Breaks paths of a real installation under load: what clients see, as tables.
    Faults(faults::Args),
    /// Plants bugs, and shows which world of the simulator finds each.
    Canaries(canaries::Args),
    /// A stock Debian kernel in a guest, with our programs inside.
    #[command(subcommand)]
    Vm(vm::Task),
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<ExitCode> {
    match args.task {
        Task::Ci(args) => ci::run(&root(), &args),
        Task::Tidy => tidy::run(&root()),
        Task::Figures { root: other } => tidy::figures(&other.unwrap_or_else(root)),
        Task::Fuzz(args) => fuzz::run(&root(), &args),
        Task::Bench(args) => bench::run(&root(), args),
        Task::Faults(args) => faults::run(&root(), &args),
        Task::Canaries(args) => canaries::run(&root(), &args),
        Task::Vm(task) => vm::run(&root(), &task),
    }
}

/// The workspace's root directory.
fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}
