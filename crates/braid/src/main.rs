//! The braid program: verbs over the engine. Each verb is a module with its `Args` and its `run`.
mod cli;
mod identity;
mod limits;
mod load;
mod output;
mod signals;
mod units;
mod uri;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
