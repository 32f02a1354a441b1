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
#[cfg(test)]
mod hostile;
mod identity;
mod limits;
mod load;
mod log;
mod mirror;
mod output;
mod progress;
mod queue;
mod run;
mod service_manager;
mod signals;
mod sim;
mod status;
mod table;
mod target;
mod text;
mod units;
mod uri;

use std::process::ExitCode;
use std::thread;

const _: () = assert!(
    !canary::CAN,
    "braid is never built with planted bugs: leave out the feature `canaries`"
);

fn main() -> ExitCode {
    // Before anything listens: the kernel notes the limit when accepting begins.
    runtime::raise_open_files();
    log::install();
    if let Err(error) = signals::survive_file_limits() {
        output::note(&format!("cannot listen for signals: {error}"));
        return ExitCode::FAILURE;
    }
    // A stack of our own: that of the first thread may be smaller (`ulimit -s`) than parsing takes.
    let whole = thread::Builder::new().stack_size(limits::STACK_BYTES);
    match whole.name("main".into()).spawn(cli::main) {
        // What a panic had to say was said.
        Ok(thread) => thread.join().unwrap_or(ExitCode::from(101)),
        Err(error) => {
            output::note(&format!("cannot start a thread: {error}"));
            ExitCode::FAILURE
        }
    }
}
