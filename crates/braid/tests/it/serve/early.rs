//! Volumes that are not up yet: `check --wait`, READY to a service manager, early clients.
use crate::serve::mirror::refused::{UNKNOWN, asked_of};
use crate::serve::process::{Client, Process, begun, two_ports, wait_until};
use crate::serve::service_manager::Manager;
use rustix::process::Signal;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn check(directory: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.arg("check").args(words).arg("--socket");
    command.arg(directory.join("c.sock"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn told(directory: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    parts(&check(directory, words).output().unwrap())
}

/// Exit code, standard output, standard error.
fn parts(output: &Output) -> (Option<i32>, String, String) {
    let [out, notes] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (output.status.code(), out, notes)
}

/// A volume v0 in memory, and v1 over a target that may not be there.
fn configure(directory: &Path, keys: [&str; 2], uri: &str) {
    let socket = directory.join("v1.sock");
    let text = format!(
        "{}[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n[[volume]]\n\
         name = \"v1\"\nreconnect_delay = \"100ms\"\n{}[[volume.path]]\nuri = \"{uri}\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        keys[0],
        keys[1],
        socket.display()
    );
    std::fs::write(directory.join("b.toml"), text).unwrap();
}

/// An address at which nobody listens until a target does.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn uri(port: u16) -> String {
    format!("nvme-tcp://127.0.0.1:{port}/nqn.2026-01.org.example:late")
}

fn target(directory: &Path, port: u16) -> Process {
    let listen = format!("127.0.0.1:{port}");
    let words = [
        "target",
        "--mem",
        "16MiB",
        "--nqn",
        "nqn.2026-01.org.example:late",
    ];
    let socket = directory.join("late.sock");
    let more = ["--listen", &listen, "--socket", socket.to_str().unwrap()];
    let mut target = Process::start(directory, &[&words[..], &more].concat());
    target.says("port 1: ").unwrap();
    target
}

/// Whether engines can run here; if not, that is said.
fn can_run(directory: &Path) -> bool {
    two_ports(directory, "probe").is_some()
}

#[test]
fn check_waits_for_an_engine_and_for_its_volumes() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    if !can_run(root) {
        return;
    }
    let (code, out, notes) = told(root, &["--wait", "ok", "--timeout", "200ms"]);
    assert_eq!((code, out.as_str()), (Some(3), ""), "no engine");
    assert!(
        notes.contains("all volumes: not ok within 200 ms"),
        "{notes}"
    );
    assert!(notes.contains("c.sock"), "{notes}");
    let port = free_port();
    configure(root, ["", ""], &uri(port));
    let waits = check(root, &["v1", "--wait", "ok", "--timeout", "60s"])
        .spawn()
        .unwrap();
    let up = check(root, &["--wait", "up"]).spawn().unwrap();
    let mut engine = begun(root);
    engine.says("v0: ready").unwrap();
    // It answers, and v1 is not there yet.
    let (code, out, notes) = told(root, &["--wait", "down", "--timeout", "60s"]);
    assert_eq!(code, Some(2), "{out}{notes}");
    let (code, out, notes) = told(root, &["v0", "--wait", "up"]);
    assert_eq!(
        (code, out.as_str(), notes.as_str()),
        (Some(0), "v0: ok\n", "")
    );
    let (code, out, notes) = told(root, &["v1", "--wait", "ok", "--timeout", "100ms"]);
    assert_eq!(code, Some(2), "the state, at a time-out too");
    assert!(out.starts_with("v1: down\n"), "{out}");
    assert!(notes.contains("v1: not ok within 100 ms: down"), "{notes}");
    // A name that it does not have never comes.
    let (code, _, notes) = told(root, &["nope", "--wait", "ok"]);
    assert_eq!(code, Some(3));
    assert!(notes.contains("no volume \"nope\""), "{notes}");
    let mut target = target(root, port);
    let (code, out, notes) = parts(&waits.wait_with_output().unwrap());
    assert_eq!(
        (code, out.as_str(), notes.as_str()),
        (Some(0), "v1: ok\n", "")
    );
    assert_eq!(up.wait_with_output().unwrap().status.code(), Some(0));
    let falls = check(root, &["v1", "--wait", "down"]).spawn().unwrap();
    target.signal(Signal::KILL);
    target.ended();
    assert_eq!(falls.wait_with_output().unwrap().status.code(), Some(2));
    engine.signal(Signal::TERM);
    engine.ended();
}

#[test]
fn check_refuses_times_that_wait_for_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for words in [
        &["--timeout", "5s"][..],
        &["--wait", "ok", "--timeout", "0"],
        &["--wait", "ok", "--timeout", "5"],
        &["--wait", "fine"],
    ] {
        let (code, _, notes) = told(directory.path(), words);
        assert_eq!(code, Some(3), "{words:?}: {notes}");
        assert!(
            notes.contains("--timeout") || notes.contains("--wait"),
            "{notes}"
        );
    }
}

/// An engine under a service manager.
fn managed(root: &Path) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(["run", "-c"]).arg(root.join("b.toml"));
    command.arg("--socket").arg(root.join("c.sock"));
    command.env("NOTIFY_SOCKET", root.join("notify"));
    Process::spawn(root, command, Stdio::piped())
}

#[test]
fn ready_is_sent_when_volumes_are_up_or_after_a_wait() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    if !can_run(root) {
        return;
    }
    let manager = Manager::bind(&root.join("notify"));
    let port = free_port();
    configure(root, ["ready_wait = \"1h\"\n", ""], &uri(port));
    let mut engine = managed(root);
    assert_eq!(told(root, &["v1", "--wait", "down"]).0, Some(2));
    assert!(manager.is_silent(), "not before v1 is up");
    let target = target(root, port);
    manager.until("READY=1");
    assert!(engine.says("v1: ready").is_some());
    engine.signal(Signal::TERM);
    manager.until("STOPPING=1");
    engine.ended();
    drop(target);
    // One that is not up holds up nothing for longer than that.
    configure(root, ["ready_wait = \"10ms\"\n", ""], &uri(port));
    let mut engine = managed(root);
    manager.until("READY=1");
    let line = engine.notes("READY after ready_wait (10.0 ms)");
    assert!(line.contains("not up yet: v1; braid check"), "{line}");
    engine.signal(Signal::TERM);
    engine.ended();
}

/// Clients of v1.
fn engine_clients(root: &Path) -> u64 {
    let mut list = Command::new(env!("CARGO_BIN_EXE_braid"));
    list.args(["stat", "-o", "json", "--socket"])
        .arg(root.join("c.sock"));
    let stat: serde_json::Value = serde_json::from_slice(&list.output().unwrap().stdout).unwrap();
    stat["volumes"][1]["exports"][0]["clients"]
        .as_u64()
        .unwrap()
}

#[test]
fn early_clients_wait_or_are_refused_as_configured() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    if !can_run(root) {
        return;
    }
    let port = free_port();
    let socket = root.join("v1.sock");
    for before_up in ["wait", "refuse"] {
        let keys = format!("before_up = \"{before_up}\"\n");
        configure(root, ["", &keys], &uri(port));
        let mut engine = begun(root);
        engine.says("v0: ready").unwrap();
        assert_eq!(told(root, &["v1", "--wait", "down"]).0, Some(2));
        let mut target = if before_up == "refuse" {
            let mut early = UnixStream::connect(&socket).unwrap();
            let (reply, words) = asked_of(&mut early, "v1");
            assert_eq!(reply, UNKNOWN, "{words}");
            assert!(words.contains("v1: not up yet"), "{words}");
            assert!(words.contains("braid check v1 says why"), "{words}");
            target(root, port)
        } else {
            let at = socket.clone();
            let early = std::thread::spawn(move || Client::open_named(&at, "v1"));
            let clients = || engine_clients(root);
            wait_until(|| (clients() == 1).then_some(()));
            assert!(!early.is_finished(), "it waits");
            let target = target(root, port);
            assert_eq!(early.join().unwrap().write(0, 1), 0);
            target
        };
        assert_eq!(told(root, &["v1", "--wait", "ok"]).0, Some(0));
        // Once it was up it is served.
        let mut client = wait_until(|| Some(Client::open_named(&socket, "v1")));
        assert_eq!(client.write(0, 2), 0);
        engine.signal(Signal::TERM);
        engine.ended();
        target.signal(Signal::KILL);
        target.ended();
    }
}
