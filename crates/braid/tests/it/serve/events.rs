//! Events and the log: what an engine says of its changes, to people, programs and the journal.
use crate::serve::no_io_uring;
use crate::serve::process::{self, Client, Process, SOON, two_ports, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn braid(directory: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(words).arg("--socket");
    command.arg(directory.join("c.sock")).output().unwrap()
}

fn configure(directory: &Path, keys: &str) {
    let text = format!(
        "{keys}\n[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:64MiB\"\n\
         [[volume.export]]\nnbd = \"unix:{}/v0.sock\"\n",
        directory.display()
    );
    fs::write(directory.join("b.toml"), text).unwrap();
}

fn start_with(directory: &Path, options: &[&str], notes: Stdio, stream: &str) -> Option<Process> {
    let [config, socket] = ["b.toml", "c.sock"].map(|name| directory.join(name));
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.arg("run").arg("-c").arg(config);
    command.arg("--socket").arg(socket).args(options);
    command.env("JOURNAL_STREAM", stream);
    let mut engine = Process::spawn(directory, command, notes);
    if engine.says("v0: ready").is_none() {
        engine.read_rest();
        no_io_uring::skip(&engine.seen);
        return None;
    }
    Some(engine)
}

/// An engine with a volume in memory; `None`: there can't be one here.
fn start(directory: &Path, keys: &str, options: &[&str]) -> Option<Process> {
    configure(directory, keys);
    start_with(directory, options, Stdio::piped(), "")
}

/// All events that are kept, but those up to `since`.
fn events(directory: &Path, since: Option<u64>) -> Vec<Value> {
    let since = since.map(|it| it.to_string());
    let since: Vec<&str> = since.iter().flat_map(|it| ["--since", it]).collect();
    let words = [&["events", "-o", "json"], &since[..]].concat();
    let shown = braid(directory, &words);
    assert!(shown.status.success(), "{shown:?}");
    let lines = String::from_utf8(shown.stdout).unwrap();
    lines
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect()
}

/// The first event of this kind with this state, once there is one.
fn event(directory: &Path, kind: &str, to: &str) -> Value {
    wait_until(|| {
        let mut all = events(directory, None).into_iter();
        all.find(|it| it["kind"] == kind && it["to"] == to)
    })
}

fn stop(mut engine: Process) {
    engine.signal(Signal::TERM);
    assert_eq!(engine.ended().code(), Some(0));
}

#[test]
fn changes_verbs_and_clients_are_events_and_lines() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some(mut engine) = start(directory, "", &[]) else {
        return;
    };
    event(directory, "engine", "running");
    let up = event(directory, "volume", "ok");
    let failed = braid(directory, &["path", "fail", "v0", "0", "--force"]);
    assert!(failed.status.success(), "{failed:?}");
    let path = event(directory, "path", "failed");
    assert_eq!(
        (&path["volume"], &path["from"]),
        (&"v0".into(), &"live".into())
    );
    assert!(path["reason"].is_string(), "{path}");
    // It may have been down as well before it was up.
    wait_until(|| {
        let mut all = events(directory, None).into_iter();
        all.find(|it| it["kind"] == "volume" && it["from"] == "ok" && it["to"] == "down")
    });
    let verb = event(directory, "verb", "done");
    let uid = rustix::process::getuid().as_raw();
    let user = format!("user {uid} (process ");
    assert!(
        verb["client"].as_str().unwrap().starts_with(&user),
        "{verb}"
    );
    let typed = "path fail v0 0 --force";
    assert!(
        verb["reason"].as_str().unwrap().starts_with(typed),
        "{verb}"
    );
    engine.notes(typed);
    let none = braid(directory, &["path", "fail", "v0", "7"]);
    assert_eq!(none.status.code(), Some(2));
    let refused = event(directory, "verb", "refused");
    assert!(
        refused["reason"]
            .as_str()
            .unwrap()
            .contains("path fail v0 7")
    );
    // A reader that was away has missed nothing.
    let since = path["seq"].as_u64().unwrap();
    let later = events(directory, Some(since));
    assert_eq!(later[0]["seq"], since + 1);
    assert!(up["seq"].as_u64().unwrap() <= since && later.iter().all(|it| it["seq"] != since));
    let other_run = events(directory, Some(7));
    assert_eq!(other_run[0]["kind"], "lost");

    let client = UnixStream::connect(directory.join("v0.sock")).unwrap();
    let came = event(directory, "client", "connected");
    let us = format!("process {} of user {uid}", std::process::id());
    assert_eq!(
        (&came["client"], &came["volume"]),
        (&us.clone().into(), &"v0".into())
    );
    drop(client);
    let gone = event(directory, "client", "gone");
    assert!(
        gone["reason"].as_str().unwrap().starts_with("after "),
        "{gone}"
    );
    engine.notes(&format!("client {us} of nbd+unix:///"));

    let shown = braid(directory, &["events", "--volume", "v0"]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.contains("v0 volume: ok -> down"), "{text}");
    assert!(!text.contains("engine:"), "{text}");
    stop(engine);
}

/// Errors that a client is answered with are in the log, with the path and its status; so is a
/// write for which a target lacks space.
#[test]
fn errors_that_clients_get_are_lines() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some((_target, uris)) = two_ports(directory, "t") else {
        return;
    };
    let text = format!(
        "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"{}\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        uris[0],
        directory.join("v0.sock").display()
    );
    fs::write(directory.join("b.toml"), text).unwrap();
    let mut engine = process::engine(directory);
    let mut client = Client::open(&directory.join("v0.sock"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args([
        "target",
        "set",
        "--port",
        "1",
        "error=media-write:dnr:op=write",
    ]);
    let set = command
        .arg("--socket")
        .arg(directory.join("t.sock"))
        .output()
        .unwrap();
    assert!(set.status.success(), "{set:?}");
    for _ in 0..30 {
        assert_ne!(client.write(8192, 1), 0);
    }
    let line = engine.notes("write of 4096 bytes at 8192");
    let us = format!("by process {} of user ", std::process::id());
    assert!(line.contains(&us) && line.contains(&uris[0]), "{line}");
    assert!(
        line.contains("Write Fault") || line.contains("2h/80h"),
        "{line}"
    );
    // The rest of them is counted, though no other error follows.
    engine.notes("v0: 20 more errors were returned to clients, and are not described");
    stop(engine);
}

#[test]
fn reader_that_follows_ends_with_the_engine() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some(engine) = start(directory, "", &[]) else {
        return;
    };
    let socket = directory.join("c.sock");
    let words = ["events", "-f", "--socket", socket.to_str().unwrap()];
    let mut reader = Process::start(directory, &words);
    assert!(reader.says("engine: starting -> running").is_some());
    let set = braid(directory, &["knob", "set", "v0", "retries", "7"]);
    assert!(set.status.success(), "{set:?}");
    assert!(reader.says("(knob set v0 retries 7").is_some());
    stop(engine);
    assert!(reader.says("engine: running -> stopping").is_some());
    assert_eq!(reader.ended().code(), Some(1));
}

#[test]
fn hook_is_run_for_each_event_and_one_that_fails_is_logged() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let out = directory.join("out");
    let hook = format!(
        "on_event = [\"/bin/sh\", \"-c\", 'echo \"$BRAID_KIND $BRAID_VOLUME $BRAID_TO $1\" >> \
         {}; cat >> {0}', \"sh\", \"word\"]",
        out.display()
    );
    let Some(mut engine) = start(directory, &hook, &[]) else {
        return;
    };
    let written = || fs::read_to_string(&out).unwrap_or_default();
    wait_until(|| written().contains("volume v0 ok word").then_some(()));
    assert!(written().contains("engine  running word"), "{}", written());
    let json = written();
    let json = json.lines().find(|it| it.starts_with('{')).unwrap();
    let json: Value = serde_json::from_str(json).unwrap();
    assert_eq!(json["kind"], "engine");

    configure(
        directory,
        "on_event = [\"/nope/hook\"]\nlog_level = \"warn\"",
    );
    let reload = braid(directory, &["reload"]);
    let said = String::from_utf8(reload.stdout).unwrap();
    assert_eq!(said, "changed on_event, changed log_level\n");
    engine.notes("/nope/hook cannot be run (on_event)");
    let silent = braid(directory, &["knob", "set", "v0", "retries", "7"]);
    assert!(silent.status.success(), "{silent:?}");
    configure(directory, "on_event = [\"hook\"]");
    let wrong = braid(directory, &["reload"]);
    assert_eq!(wrong.status.code(), Some(2));
    engine.notes("refused: nothing was changed");
    assert!(!engine.seen.contains("knob set v0"), "{}", engine.seen);
    stop(engine);
}

#[test]
fn engine_ends_in_time_though_its_hook_hangs() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let hook = "on_event = [\"/bin/sleep\", \"1000\"]";
    let Some(mut engine) = start(directory, hook, &[]) else {
        return;
    };
    event(directory, "volume", "ok");
    let begun = std::time::Instant::now();
    engine.signal(Signal::TERM);
    assert_eq!(engine.ended().code(), Some(0));
    assert!(begun.elapsed() < SOON);
}

#[test]
fn log_has_the_look_of_its_reader() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    configure(directory, "");
    let log = |name: &str, options: &[&str], stream: fn(&File) -> String| {
        let path = directory.join(name);
        let file = File::create(&path).unwrap();
        let stream = stream(&file);
        let engine = start_with(directory, options, file.into(), &stream)?;
        let set = braid(directory, &["knob", "set", "v0", "retries", "7"]);
        assert!(set.status.success(), "{set:?}");
        stop(engine);
        Some(fs::read_to_string(path).unwrap())
    };
    let Some(timed) = log("timed", &[], |_| "1:1".into()) else {
        return;
    };
    let line = |text: &str| {
        let mut lines = text.lines();
        let found = lines.find(|it| it.contains("knob set v0 retries 7"));
        found
            .unwrap_or_else(|| panic!("no such line in {text}"))
            .to_owned()
    };
    let timed = line(&timed);
    let (time, rest) = timed.split_once("Z ").unwrap();
    assert!(time.len() == 23 && time.contains('T'), "{timed}");
    assert!(rest.starts_with("INFO  braid: user "), "{timed}");
    let of = |file: &File| {
        let of = file.metadata().unwrap();
        format!("{}:{}", of.dev(), of.ino())
    };
    let journal = log("journal", &[], of).unwrap();
    assert!(line(&journal).starts_with("<6>user "), "{journal}");
    let json = log("json", &["--log-format", "json"], |_| String::new()).unwrap();
    let all: Vec<Value> = json
        .lines()
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    assert!(
        all.iter()
            .all(|it| it["time"].is_string() && it["level"].is_string())
    );
    let level: Value = serde_json::from_str(&line(&json)).unwrap();
    assert_eq!(level["level"], "info");
    let quiet = log("quiet", &["--log-level", "error"], of).unwrap();
    assert_eq!(quiet, "");
}

/// The reader of the log stops: verbs are answered, and the engine ends.
#[test]
fn log_reader_that_stops_keeps_nothing_from_going_on() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    configure(directory, "");
    let (reader, writer) = std::io::pipe().unwrap();
    let Some(mut engine) = start_with(directory, &["--log-format", "json"], writer.into(), "")
    else {
        return;
    };
    for number in 0..600 {
        let value = (number % 200).to_string();
        // More lines than a pipe holds, each as long as may be.
        let mut stream = UnixStream::connect(directory.join("c.sock")).unwrap();
        let typed = "x".repeat(400);
        let call = serde_json::json!({
            "jsonrpc": "2.0", "id": 1, "method": "knob", "typed": typed,
            "params": {"volume": "v0", "name": "retries", "value": value},
        });
        use std::io::{BufRead, BufReader, Write};
        stream.write_all(format!("{call}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        assert!(answer.contains("result"), "{answer}");
    }
    engine.signal(Signal::TERM);
    assert_eq!(engine.ended().code(), Some(0));
    drop(reader);
}
