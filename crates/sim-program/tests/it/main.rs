//! The simulator as `braid sim` starts it: a real process, short.
#![allow(clippy::unwrap_used, reason = "tests")]
mod chaos;
mod documented;

use rustix::process::Pid;
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// A directory of one test.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self) -> Command {
        self.prepared(Command::new(env!("CARGO_BIN_EXE_braid-sim")))
    }

    /// The simulator, started by `wrapper`: a program and its arguments.
    fn wrapped(&self, wrapper: &[&str]) -> Command {
        let mut command = Command::new(wrapper[0]);
        command
            .args(&wrapper[1..])
            .arg(env!("CARGO_BIN_EXE_braid-sim"));
        self.prepared(command)
    }

    fn prepared(&self, mut command: Command) -> Command {
        command
            .env("RUST_BACKTRACE", "0")
            .current_dir(self.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command().args(args).output().unwrap()
    }

    /// The JSON that a successful run prints.
    fn json(&self, args: &[&str]) -> Value {
        let output = self.run(args);
        assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// A process that ends with its test.
struct Running(Option<Child>);

impl Running {
    fn of(child: Child) -> Self {
        Self(Some(child))
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.0.as_ref().unwrap())
    }

    /// Waits for its end.
    fn output(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn code(output: &Output) -> i32 {
    let ended = output.status.code();
    ended.expect("the simulator was killed by a signal")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
