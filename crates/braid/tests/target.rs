//! `braid target` as a process: what it prints, how it is changed, how it ends, what it refuses.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

fn braid() -> Command {
    Command::new(env!("CARGO_BIN_EXE_braid"))
}

/// A running target, and what it printed for each port.
struct Target {
    child: Child,
    lines: Vec<String>,
    socket: PathBuf,
}

impl Target {
    /// Starts one and waits for a line per port. `None`: this machine has no io_uring.
    fn start(directory: &Path, name: &str, arguments: &[&str], ports: usize) -> Option<Self> {
        let socket = directory.join(name);
        let mut child = braid()
            .arg("target")
            .args(arguments)
            .arg("--socket")
            .arg(&socket)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let lines: Vec<String> = out.lines().take(ports).map(Result::unwrap).collect();
        if lines.len() < ports {
            let output = child.wait_with_output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(error.contains("io_uring"), "{error}");
            println!("skipped: {error}");
            return None;
        }
        Some(Target {
            child,
            lines,
            socket,
        })
    }

    fn control(&self, arguments: &[&str]) -> Output {
        let mut words = arguments.iter();
        let verb = words.next().unwrap();
        let mut command = braid();
        command
            .args(["target", verb, "--socket"])
            .arg(&self.socket)
            .args(words);
        command.output().unwrap()
    }

    fn show(&self) -> serde_json::Value {
        let output = self.control(&["show", "-o", "json"]);
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// SIGTERM, and its end.
    fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        assert!(!self.socket.exists(), "the socket goes with its owner");
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a target that can't start says, and its exit code.
fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("t.sock");
    let mut command = braid();
    command
        .arg("target")
        .args(arguments)
        .arg("--socket")
        .arg(socket);
    let output = command.output().unwrap();
    assert!(output.stdout.is_empty());
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn a_target_is_started_changed_shown_and_ended() {
    let directory = tempfile::tempdir().unwrap();
    let ports = [
        "--mem",
        "64MiB",
        "--listen",
        "127.0.0.1:0",
        "--listen",
        "127.0.0.1:0,delay=30ms",
    ];
    let Some(target) = Target::start(directory.path(), "t.sock", &ports, 2) else {
        return;
    };
    assert!(
        target.lines[0].starts_with("port 1: nvme-tcp://127.0.0.1:"),
        "{:?}",
        target.lines
    );
    let shown = target.show();
    let uri = format!("port 2: {}", shown["ports"][1]["uri"].as_str().unwrap());
    assert_eq!(uri, target.lines[1]);
    assert_eq!(shown["ports"][1]["shape"]["delay_ns"], 30_000_000);

    assert!(
        target
            .control(&["set", "--port", "2", "delay=1ms", "ana=inaccessible"])
            .status
            .success()
    );
    assert!(target.control(&["resize", "1", "32MiB"]).status.success());
    assert!(target.control(&["drop", "--port", "1"]).status.success());
    let shown = target.show();
    assert_eq!(shown["ports"][1]["shape"]["delay_ns"], 1_000_000);
    assert_eq!(shown["ports"][1]["ana_state"], "inaccessible");
    assert_eq!(shown["namespaces"][0]["bytes"], 32 << 20);

    for (arguments, code, error) in [
        (
            &["set", "--port", "7", "delay=1ms"][..],
            1,
            "there is no port 7; ports are 1…2",
        ),
        (
            &["set", "--port", "1", "dealy=1ms"],
            2,
            "dealy: unknown field `dealy`",
        ),
        (
            &["resize", "1", "1TiB"],
            1,
            "1 TiB is more than the 64 MiB of its backend",
        ),
    ] {
        let output = target.control(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(error), "{text}");
    }
    target.end();
}

#[test]
fn t31_two_processes_offer_one_file_as_one_subsystem() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("v0");
    let text = |first: u32| {
        format!(
            "nqn = \"nqn.2026-01.org.example:v0\"\ncntlid = [{first}, {}]\n\
             [[namespace]]\nbackend = \"file:{}\"\nsize = \"16MiB\"\n\
             [[port]]\nlisten = \"127.0.0.1:0\"\n",
            first + 99,
            file.display(),
        )
    };
    let start = |first: u32| {
        let name = format!("{first}.toml");
        let path = directory.path().join(&name);
        std::fs::write(&path, text(first)).unwrap();
        let arguments = ["-c", path.to_str().unwrap()];
        Target::start(directory.path(), &format!("{first}.sock"), &arguments, 1)
    };
    let (Some(one), Some(two)) = (start(1), start(101)) else {
        return;
    };
    let (a, b) = (one.show(), two.show());
    assert_eq!(a["namespaces"][0]["uuid"], b["namespaces"][0]["uuid"]);
    assert_eq!(a["namespaces"][0]["nguid"], b["namespaces"][0]["nguid"]);
    assert_eq!(a["subsystem"]["serial"], b["subsystem"]["serial"]);
    assert_ne!(a["subsystem"]["cntlid"], b["subsystem"]["cntlid"]);
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 16 << 20);
    assert!(one.control(&["resize", "1", "32MiB"]).status.success());
    assert_eq!(
        std::fs::metadata(&file).unwrap().len(),
        32 << 20,
        "a file grows"
    );
    assert!(one.control(&["resize", "1", "8MiB"]).status.success());
    assert_eq!(
        std::fs::metadata(&file).unwrap().len(),
        32 << 20,
        "and is never cut off"
    );
    one.end();
    two.end();
}

#[test]
fn what_can_not_be_is_refused_with_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let mem = ["--mem", "1MiB", "--listen"];
    for (arguments, code, parts) in [
        (&["--mem", "1MiB"][..], 2, &["no port", "--listen"][..]),
        (
            &["--listen", "127.0.0.1:0"],
            2,
            &["nothing to serve", "--mem"],
        ),
        (
            &["--mem", "1GB", "--listen", "127.0.0.1:0"],
            2,
            &["\"1GB\" is not a size"],
        ),
        (
            &[mem[0], mem[1], mem[2], "somewhere"],
            1,
            &["\"somewhere\"", "ADDRESS:PORT"],
        ),
        (
            &[mem[0], mem[1], mem[2], &taken],
            1,
            &[&taken, "in use", "choose another port", "ss -ltnp"],
        ),
        (
            &[mem[0], mem[1], mem[2], "127.0.0.1:0,dealy=1ms"],
            2,
            &["`dealy`", "`delay`"],
        ),
        (
            &["--file", "/nonexistent/v0", "--listen", "127.0.0.1:0"],
            1,
            &["namespace 1", "/nonexistent/v0", "check the path"],
        ),
        (
            &[mem[0], mem[1], mem[2], "127.0.0.1:0", "--nqn", "v0"],
            1,
            &["nqn \"v0\"", "must begin with \"nqn.\""],
        ),
        (
            &["-c", "/nonexistent.toml"],
            1,
            &["cannot read /nonexistent.toml", "No such file"],
        ),
    ] {
        let (got, error) = refused(arguments);
        assert_eq!(got, Some(code), "{error}");
        for part in parts {
            assert!(error.contains(part), "{part} in {error}");
        }
    }
}

#[test]
fn a_second_target_does_not_take_the_socket_of_the_first() {
    let directory = tempfile::tempdir().unwrap();
    let mem = ["--mem", "1MiB", "--listen", "127.0.0.1:0"];
    let Some(first) = Target::start(directory.path(), "t.sock", &mem, 1) else {
        return;
    };
    let mut command = braid();
    command
        .arg("target")
        .args(mem)
        .arg("--socket")
        .arg(&first.socket);
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("another target listens on"), "{error}");
    first.show();
    first.end();
}
