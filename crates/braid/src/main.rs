//! The braid program: verbs over the engine. Each verb is a module with its `Args` and its `run`.
#![forbid(unsafe_code)]

mod advice;
mod bench;
mod cli;
mod control;
mod cpus;
mod demo;
mod discover;
mod hedges;
mod identity;
mod limits;
mod load;
mod log;
mod mirror;
mod progress;
mod queue;
#[cfg(test)]
mod reference;
mod run;
mod service_manager;
mod signals;
mod sim;
mod status;
mod target;
mod uri;

use std::process::ExitCode;
use terminal::{output, table, text, units};

const _: () = assert!(
    !canary::CAN,
    "braid is never built with planted bugs: leave out the feature `canaries`"
);

fn main() -> ExitCode {
    // Before anything listens: the kernel notes the limit when accepting begins.
    runtime::raise_open_files();
    log::install();
    terminal::exit::run(cli::main)
}
