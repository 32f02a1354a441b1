//! Running braid, and a target beside it.
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// A directory of one test, with a state directory of its own for what braid keeps.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn command(&self) -> Command {
        self.prepared(Command::new(env!("CARGO_BIN_EXE_braid")))
    }

    /// braid, started by `wrapper`: a program and its arguments.
    pub fn wrapped(&self, wrapper: &[&str]) -> Command {
        let mut command = Command::new(wrapper[0]);
        command.args(&wrapper[1..]).arg(env!("CARGO_BIN_EXE_braid"));
        self.prepared(command)
    }

    fn prepared(&self, mut command: Command) -> Command {
        command
            .env("XDG_STATE_HOME", self.path())
            .env("XDG_RUNTIME_DIR", self.path())
            .env("RUST_BACKTRACE", "0")
            .current_dir(self.path())
            .stdin(Stdio::null());
        command
    }

    pub fn braid(&self, args: &[&str]) -> Output {
        self.command().args(args).output().unwrap()
    }

    /// The JSON that a successful run prints.
    pub fn json(&self, args: &[&str]) -> Value {
        let output = self.braid(args);
        assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// A target on a free port of loopback.
    pub fn target(&self, options: &[&str]) -> Target {
        let socket = self.path().join("target.sock");
        let mut child = self
            .command()
            .args(["target", "--listen", "127.0.0.1:0", "--socket"])
            .arg(socket)
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        lines.read_line(&mut line).unwrap();
        let uri = line
            .split_whitespace()
            .find(|word| word.starts_with("nvme-tcp://"));
        let uri = uri
            .unwrap_or_else(|| panic!("no URI in {line:?}"))
            .to_owned();
        Target {
            child,
            uri,
            _lines: lines,
        }
    }

    /// A load on `target` that would take long, running in the background; returns once the
    /// target has served some of it.
    pub fn long_bench(&self, target: &Target) -> Running {
        let bench = self
            .command()
            .args(["bench", &target.uri, "--rw", "randread", "--iodepth", "8"])
            .args(["--runtime", "1h", "--io-timeout", "2s", "-o", "json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let bench = Running(Some(bench));
        let socket = self.path().join("target.sock");
        loop {
            let mut show = self.command();
            let show = show
                .args(["target", "show", "-o", "json", "--socket"])
                .arg(&socket);
            let shown = show.output().unwrap();
            let json: Value = serde_json::from_slice(&shown.stdout).unwrap();
            if json["ports"][0]["commands"].as_u64().unwrap() > 100 {
                return bench;
            }
        }
    }
}

/// A process that ends with its test.
pub struct Running(Option<Child>);

impl Running {
    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(self.0.as_ref().unwrap())
    }

    /// Waits for its end.
    pub fn output(mut self) -> Output {
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

/// Ends with its test.
pub struct Target {
    child: Child,
    pub uri: String,
    /// Kept open, so that the target may print.
    _lines: BufReader<std::process::ChildStdout>,
}

impl Target {
    /// Ends it without a word to anyone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn code(output: &Output) -> i32 {
    output.status.code().expect("braid was killed by a signal")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
