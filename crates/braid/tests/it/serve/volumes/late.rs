//! T55: path verbs whose I/O does not end in time.
use crate::serve::process::{Client, Process, engine, two_ports, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

fn ask(directory: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.env("XDG_STATE_HOME", directory.join("state"));
    command.args(words).arg("--socket");
    command.arg(directory.join("c.sock")).output().unwrap()
}

fn paths(directory: &Path) -> Vec<Value> {
    let output = ask(directory, &["stat", "-o", "json"]);
    let stat: Value = serde_json::from_slice(&output.stdout).unwrap();
    stat["volumes"][0]["paths"].as_array().unwrap().clone()
}

/// States of the paths.
fn states(directory: &Path) -> Vec<String> {
    let state = |path: &Value| path["state"].as_str().unwrap().to_owned();
    paths(directory).iter().map(state).collect()
}

/// The engine has given the client's I/O to the first path.
fn until_in_flight(directory: &Path) {
    wait_until(|| (paths(directory)[0]["inflight"] == 1).then_some(()));
}

/// An engine with a volume that has these paths, live, and writes to the first one.
fn ready(directory: &Path, uris: &[String; 2]) -> Process {
    let paths = uris
        .each_ref()
        .map(|uri| format!("[[volume.path]]\nuri = \"{uri}\"\n"));
    let text = format!(
        "io_timeout = \"600s\"\nkeep_alive_tmo = \"300s\"\ndrain_timeout = \"1s\"\n\
         [[volume]]\nname = \"v0\"\npolicy = \"devid:1\"\n{}[[volume.export]]\nnbd = \"unix:{}\"\n",
        paths.concat(),
        directory.join("v0.sock").display()
    );
    std::fs::write(directory.join("b.toml"), text).unwrap();
    let engine = engine(directory);
    wait_until(|| (states(directory) == ["live", "live"]).then_some(()));
    engine
}

#[test]
fn t55_path_verb_that_times_out_is_pending_or_undone() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some((target, uris)) = two_ports(directory, "late") else {
        return;
    };
    let _engine = ready(directory, &uris);
    let mut client = Client::open(&directory.join("v0.sock"));
    assert_eq!(client.write(0, 1), 0);
    target.freeze();
    client.send_write(0, 2);
    until_in_flight(directory);
    let fails = |words: &[&str]| {
        let output = ask(directory, words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = fails(&["path", "drain", "v0", "0"]);
    let undo = "until braid path restore v0 0 ends that";
    assert!(said.contains(undo), "{said}");
    assert_eq!(states(directory), ["draining", "live"]);
    let restored = ask(directory, &["path", "restore", "v0", "0"]);
    assert!(restored.status.success(), "{restored:?}");
    // It answers nothing, so it is on probation by now.
    let in_use = ["live", "probation"];
    let is_used = || in_use.contains(&states(directory)[0].as_str());
    assert!(is_used(), "{:?}", states(directory));
    fails(&["path", "remove", "v0", "0"]);
    assert!(is_used(), "{:?}", states(directory));
    target.signal(Signal::CONT);
    assert_eq!(client.answer(), 0);
    // Nothing of it comes later.
    assert_eq!(client.write(0, 3), 0);
    wait_until(|| (states(directory) == ["live", "live"]).then_some(()));
}

/// Takes connections and says nothing.
struct Silent(TcpListener);

impl Silent {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    fn port(&self) -> String {
        self.0.local_addr().unwrap().port().to_string()
    }

    /// Connections since this was asked last.
    fn connections(&self) -> usize {
        std::iter::from_fn(|| self.0.accept().ok()).count()
    }
}

/// No part of what could not be done in time is done later.
#[test]
fn t55_path_that_never_answers_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some((target, [uri, _])) = two_ports(directory, "mute") else {
        return;
    };
    let silent = Silent::new();
    let (port, nqn) = (silent.port(), "nqn.2026-01.org.braid:mute");
    let more = format!("nvme-tcp://127.0.0.1:{port}/{nqn}");
    let of = |name: &str, uris: &[&str]| {
        let paths = uris
            .iter()
            .map(|uri| format!("[[volume.path]]\nuri = \"{uri}\"\n"));
        format!(
            "[[volume]]\nname = \"{name}\"\n{}",
            paths.collect::<String>()
        )
    };
    let configure = |volumes: &[String]| {
        let text = format!("connect_timeout = \"500ms\"\n{}", volumes.concat());
        std::fs::write(directory.join("b.toml"), text).unwrap();
    };
    configure(&[of("v0", &[&uri])]);
    let _engine = engine(directory);
    wait_until(|| (states(directory) == ["live"]).then_some(()));
    let fails = |words: &[&str]| {
        let output = ask(directory, words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        assert!(silent.connections() > 0, "{words:?}");
        // A path that goes on would connect again within its longest pause.
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(silent.connections(), 0, "{words:?}");
        let list = ask(directory, &["list", "-o", "json"]);
        let list: Value = serde_json::from_slice(&list.stdout).unwrap();
        assert_eq!(list["volumes"].as_array().unwrap().len(), 1, "{words:?}");
        assert_eq!(states(directory), ["live"], "{words:?}");
    };
    fails(&["path", "add", "v0", &more]);
    fails(&["connect", "-a", "127.0.0.1", "-s", &port, "-n", nqn]);
    configure(&[of("v0", &[&uri, &more])]);
    fails(&["reload"]);
    let other = more.replace(nqn, "nqn.2026-01.org.example:other");
    configure(&[of("v0", &[&uri]), of("v1", &[&other])]);
    fails(&["reload"]);
    drop(target);
}

/// A path whose I/O never ends is failed at once, and stays so.
#[test]
fn t55_path_fail_does_not_wait_for_io() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some((target, uris)) = two_ports(directory, "fail") else {
        return;
    };
    let engine = ready(directory, &uris);
    let mut client = Client::open(&directory.join("v0.sock"));
    target.freeze();
    client.send_write(0, 1);
    until_in_flight(directory);
    let failed = ask(directory, &["path", "fail", "v0", "0"]);
    assert!(failed.status.success(), "{failed:?}");
    assert_eq!(states(directory)[0], "failed");
    target.signal(Signal::CONT);
    assert_eq!(client.answer(), 0);
    assert_eq!(states(directory)[0], "failed");
    // Nor is begun what was asked for while the engine stood still, by callers that have gone.
    engine.freeze();
    let text = std::fs::read_to_string(directory.join("b.toml")).unwrap();
    std::fs::write(
        directory.join("b.toml"),
        format!("{text}read_only = true\n"),
    )
    .unwrap();
    for (method, params) in [
        ("path.restore", json!({"volume": "v0", "path": "0"})),
        (
            "path.fail",
            json!({"volume": "v0", "path": "1", "force": true}),
        ),
        (
            "path.add",
            json!({"volume": "v0", "path": "nvme-tcp://127.0.0.1:1/nqn.x:y"}),
        ),
        (
            "connect",
            json!({"address": "127.0.0.1:1", "nqn": "nqn.2026-01.org.braid:fail"}),
        ),
        ("accept", json!({"volume": "v0"})),
        ("reload", json!({})),
    ] {
        let mut stream = UnixStream::connect(directory.join("c.sock")).unwrap();
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        stream.write_all(format!("{call}\n").as_bytes()).unwrap();
    }
    engine.signal(Signal::CONT);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(states(directory), ["failed", "live"]);
    let reloaded = ask(directory, &["reload"]);
    let said = String::from_utf8_lossy(&reloaded.stdout).into_owned();
    assert!(
        !said.contains("no difference"),
        "it was read before: {reloaded:?}"
    );
}
