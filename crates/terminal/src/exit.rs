//! How a program ends: exit codes, and how an error reaches the user.
//!
//! # Contract
//! Exit codes: 0 ok, 1 failed, 2 usage. An error is one chain on standard error,
//! `braid: what: why`.
use crate::limits::STACK_BYTES;
use crate::log;
use crate::output::{self, OutputClosed};
use crate::signals;
use clap::error::ErrorKind;
use std::fmt;
use std::process::ExitCode;
use std::thread;

/// Exit code of a usage error.
pub const USAGE: u8 = 2;

/// The user asked for something that can't be: exit code 2.
#[derive(Clone, Debug)]
pub struct Usage(String);

impl Usage {
    /// An error with this text.
    pub fn error(text: impl Into<String>) -> anyhow::Error {
        Self(text.into()).into()
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The answer is the exit code; everything was said.
#[derive(Clone, Copy, Debug)]
pub struct Exit(pub u8);

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {}", self.0)
    }
}

impl std::error::Error for Exit {}

/// Runs `main` on a thread with a stack of [`STACK_BYTES`]: that of the first thread may be
/// smaller (`ulimit -s`) than parsing takes. A write beyond `ulimit -f` is an error from then on.
pub fn run(main: fn() -> ExitCode) -> ExitCode {
    if let Err(error) = signals::survive_file_limits() {
        output::note(&format!("cannot listen for signals: {error}"));
        return ExitCode::FAILURE;
    }
    let whole = thread::Builder::new().stack_size(STACK_BYTES);
    match whole.name("main".into()).spawn(main) {
        // The panic was reported by its thread.
        Ok(thread) => thread.join().unwrap_or(ExitCode::from(101)),
        Err(error) => {
            output::note(&format!("cannot start a thread: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes the error of a verb to standard error, and returns the program's exit code.
pub fn conclude(ended: anyhow::Result<()>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<OutputClosed>() => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(Exit(code)) = error.downcast_ref() {
                return ExitCode::from(*code);
            }
            log::last(&format!("{error:#}"));
            ExitCode::from(if error.is::<Usage>() { USAGE } else { 1 })
        }
    }
}

/// Shows what clap returned in place of arguments, and returns the exit code: `usage` for an error.
/// Help and version go to standard output; a usage error reads like every other error of ours.
pub fn report_clap(error: &clap::Error, usage: u8) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(usage);
    }
    let text = error.render().to_string();
    output::note(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
    ExitCode::from(usage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn usage_is_recognised_below_context() {
        let error = Err::<(), _>(Usage::error("no such thing"))
            .context("--bs")
            .unwrap_err();
        assert!(error.is::<Usage>());
        assert_eq!(format!("{error:#}"), "--bs: no such thing");
    }
}
