//! The braid program: verbs over the engine. Each verb is a module with its `Args` and its `run`.
#![forbid(unsafe_code)]

mod bench;
mod cli;
mod control;
mod cpus;
mod demo;
mod identity;
mod limits;
mod load;
mod log;
mod output;
mod progress;
mod run;
mod signals;
mod sim;
mod table;
mod target;
mod units;
mod uri;

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything listens: the kernel notes the limit when accepting begins.
    runtime::raise_open_files();
    log::install();
    cli::main()
}
