//! The braid program: verbs over the engine. Each verb is a module with its `Args` and its `run`.
#![forbid(unsafe_code)]

mod cli;
mod discover;
mod limits;
mod mirror;
mod queue;
#[cfg(test)]
mod reference;
mod run;
mod sim;

use paths::{board, ends, hedges, identity, uri};
use service::{advice, control, service_manager, signals};
use std::process::ExitCode;
use terminal::{cpus, log, output, table, text, units};

const _: () = assert!(
    !canary::CAN,
    "braid is never built with planted bugs: leave out the feature `canaries`"
);

fn main() -> ExitCode {
    // Before anything listens: the kernel notes the limit when accepting begins.
    runtime::raise_open_files();
    terminal::exit::run(|| {
        log::install();
        cli::main()
    })
}
