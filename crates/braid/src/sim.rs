//! `braid sim`: starts the simulator, `braid-sim`, in place of this process.
//!
//! # Contract
//! Words that the simulator would refuse are refused here, in the same words. Everything else is
//! the simulator's: output, progress, signals, exit code.
use crate::cli::Usage;
use anyhow::Context;
use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../../sim-program/src/args.rs"]
#[allow(dead_code, reason = "only the simulator reads what was parsed")]
mod args;

pub use args::SimArgs;

/// The simulator's program.
const NAME: &str = "braid-sim";

/// Replaces this process by the simulator, with the words that followed the verb. Returns only if
/// that fails.
///
/// # Errors
/// Usage: there is no simulator beside this program nor in `PATH`. It can't be executed.
pub fn run() -> anyhow::Result<()> {
    let own = env::current_exe().ok();
    let program = beside(own.as_deref()).unwrap_or_else(|| NAME.into());
    let words: Vec<OsString> = env::args_os().skip(2).collect();
    // `exec` keeps descriptor 1, which stands for a standard output that was never there.
    sys::startup::close_stdout_again();
    let error = Command::new(&program).args(words).exec();
    if error.kind() == ErrorKind::NotFound {
        return Err(Usage::error(missing(own.as_deref())));
    }
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

/// The simulator in the directory of this program, if it is there.
fn beside(own: Option<&Path>) -> Option<PathBuf> {
    let program = own?.with_file_name(NAME);
    program.is_file().then_some(program)
}

fn missing(own: Option<&Path>) -> String {
    let place = own.and_then(Path::parent);
    let place = place.map_or("beside this program".into(), |directory| {
        format!("in {}", directory.display())
    });
    format!(
        "sim: the simulator is a program of its own, {NAME}, and is neither {place} nor in PATH \
         (build it with `cargo build --release --bin {NAME}`, and install it beside braid)"
    )
}
