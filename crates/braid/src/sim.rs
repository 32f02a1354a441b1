//! `braid sim`: starts the simulator, `braid-sim`, in place of this process.
//!
//! # Contract
//! Words that the simulator would refuse are refused here, in the same words. A simulator with
//! other words is not started. Everything else is the simulator's: output, progress, signals, exit
//! code.
use crate::cli::Usage;
use anyhow::bail;
use std::env;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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
/// Usage: there is no simulator beside this program nor in `PATH`. It can't be executed, or is of
/// another version.
pub fn run() -> anyhow::Result<()> {
    let own = env::current_exe().ok();
    let program = beside(own.as_deref()).unwrap_or_else(|| NAME.into());
    let cannot_start = |error: io::Error| {
        if error.kind() == ErrorKind::NotFound {
            return Usage::error(missing(own.as_deref()));
        }
        anyhow::Error::new(error).context(format!("cannot start {}", program.display()))
    };
    let said = Command::new(&program).arg("--version").output();
    check_version(&program, &said.map_err(cannot_start)?)?;
    let words: Vec<OsString> = env::args_os().skip(2).collect();
    // `exec` keeps descriptor 1, which stands for a standard output that was never there.
    sys::startup::close_stdout_again();
    Err(cannot_start(Command::new(&program).args(words).exec()))
}

/// Checks that the simulator that gave this answer to `--version` has the words of this program.
fn check_version(program: &Path, answer: &Output) -> anyhow::Result<()> {
    if !answer.status.success() {
        bail!(
            "sim: {} --version ended with {}: {}",
            program.display(),
            answer.status,
            String::from_utf8_lossy(&answer.stderr).trim()
        );
    }
    let wanted = format!("{NAME} {}", args::version());
    let said = String::from_utf8_lossy(&answer.stdout);
    let found = said.lines().next().unwrap_or("a program without a version");
    if found != wanted {
        bail!(
            "sim: {} is {found}, and this braid needs {wanted}: build both from one commit \
             (`cargo build --release`), and install them side by side",
            program.display()
        );
    }
    Ok(())
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
