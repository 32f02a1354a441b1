//! What is said of I/O that a queue server has and does not answer.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "shared/nbd.rs"]
mod nbd;
#[path = "shared/no_io_uring.rs"]
mod no_io_uring;
#[path = "shared/process.rs"]
mod process;

use process::{Client, Process, engine, wait_until};
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;

/// What `braid stat` says, in text or as JSON.
fn stat(root: &Path, format: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(["stat", "-o", format, "--socket"]);
    let output = command.arg(root.join("c.sock")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn volume(root: &Path) -> serde_json::Value {
    let stat: serde_json::Value = serde_json::from_str(&stat(root, "json")).unwrap();
    stat["volumes"][0].clone()
}

#[test]
fn t09_writes_that_wait_for_a_dead_queue_server_are_shown_with_their_age_and_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let socket = root.join("q.sock");
    let words = [
        "queue",
        "serve",
        "mem:1MiB",
        "--socket",
        socket.to_str().unwrap(),
    ];
    let mut server = Process::start(root, &words);
    server.says("q.sock").unwrap();
    let config = format!(
        "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"queue:{}\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        socket.display(),
        root.join("v0.sock").display()
    );
    std::fs::write(root.join("b.toml"), config).unwrap();
    let _engine = engine(root);
    let mut clients = [0, 1].map(|_| Client::open(&root.join("v0.sock")));
    server.signal(Signal::STOP);
    for (block, client) in (0..).zip(&mut clients) {
        client.send_write(block * 4096, 7);
    }
    // Before anybody has given it up.
    wait_until(|| {
        let age_ns = volume(root)["paths"][0]["inflight_age_ns"].as_u64();
        (age_ns >= Some(1_000_000_000)).then_some(())
    });
    let text = stat(root, "text");
    assert!(text.contains("2 in flight (the oldest for "), "{text}");
    server.signal(Signal::KILL);
    server.ended();
    let waiting = wait_until(|| {
        let waiting = volume(root)["waiting"].clone();
        (waiting["held"] != 0).then_some(waiting)
    });
    assert_eq!(
        (&waiting["held"], &waiting["held_reason"]),
        (&2.into(), &"queue-server".into())
    );
    assert!(
        waiting["held_age_ns"].as_u64() >= Some(1_000_000_000),
        "{waiting}"
    );
    let left_ns = waiting["held_until_in_ns"].as_u64().unwrap();
    assert!((1..=5_000_000_000).contains(&left_ns), "{waiting}");
    let text = stat(root, "text")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(
        text.contains("waiting: 2 writes held, the oldest for "),
        "{text}"
    );
    assert!(
        text.contains(": the queue server that had it and was given up may yet"),
        "{text}"
    );
    // Not for ever: then there is no other way.
    for client in &mut clients {
        assert_ne!(client.answer(), 0);
    }
    assert_eq!(volume(root)["waiting"]["held"], 0);
}
