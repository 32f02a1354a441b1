//! A write that its host gave up is executed late: what becomes of the write after it (T9).
//!
//! Two processes serve one file. The first holds a write of 1s and loses its connection; the engine
//! repeats it on the second path, and its client then writes 2s to the same place. Within the
//! command quiesce time that the first target reports, it executes the old copy after all.
use crate::e2e::common::{Engine, Offer, Process, Target, braid, have, wait};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

const CQT: &str = "cqt = \"2s\"";
const LATE: &str = "late_writes=1500ms";
const BLOCK: usize = 4096;

/// Result of one run.
struct Outcome {
    /// First byte of the file.
    found: u8,
    /// Whether both writes were acknowledged before the old copy was executed.
    acknowledged_first: bool,
    /// `failover` of the volume in `stat`.
    failover: Value,
}

fn target(directory: &Path, name: &'static str, cntlid: u16) -> Target {
    let file = directory.join("v0");
    let namespace = format!("backend = \"file:{}\"\nsize = \"1MiB\"", file.display());
    let offer = Offer {
        cntlid: [cntlid, cntlid + 99],
        target: CQT,
        namespace: &namespace,
        port: "",
    };
    Target::start(directory, name, &offer)
}

/// How often a fault was injected.
fn injected(target: &Target, kind: &str) -> u64 {
    target.port()["faults"]["injected"][kind].as_u64().unwrap()
}

fn experiment(write_failover: &str) -> Outcome {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (one, two) = (target(path, "one", 1), target(path, "two", 1001));
    let near_and_far = [
        format!("{}?distance=1", one.uri),
        format!("{}?distance=2", two.uri),
    ];
    let paths = near_and_far.each_ref().map(String::as_str);
    let volume = format!("policy = \"numa\"\nwrite_failover = \"{write_failover}\"");
    let keys = "io_timeout = \"20s\"\nkeep_alive_tmo = \"500ms\"";
    let engine = Engine::start(path, keys, &volume, &paths);
    engine.wait_path(0, "live");
    engine.wait_path(1, "live");

    one.set(&["hold_writes=1h", LATE]);
    let mut client = Command::new("qemu-io");
    client.args(["-f", "raw", "-t", "none", &engine.uri()]);
    client.args(["-c", "write -P 1 0 4k", "-c", "write -P 2 0 4k"]);
    let mut client = Process::spawn(client.stdout(Stdio::null()));
    wait("the first write is held", || {
        (injected(&one, "held_writes") == 1).then_some(())
    });
    one.set(&["refuse=1h"]);
    let mut drop = braid(path);
    drop.args(["target", "drop", "--port", "1", "--socket"]);
    let output = drop.arg(path.join("one")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let status = wait("both writes are done", || {
        client.child().try_wait().unwrap()
    });
    assert!(status.success(), "{status}");
    let acknowledged_first = injected(&one, "late_writes") == 0;
    wait("the old copy is executed", || {
        (injected(&one, "late_writes") == 1).then_some(())
    });
    let file = std::fs::read(path.join("v0")).unwrap();
    let found = file[0];
    assert_eq!(file[..BLOCK], [found; BLOCK], "of one write only");
    let mut stat = engine.stat();
    engine.end();
    Outcome {
        found,
        acknowledged_first,
        failover: stat["failover"].take(),
    }
}

fn ms(failover: &Value, key: &str) -> f64 {
    failover[key].as_u64().unwrap() as f64 / 1e6
}

#[test]
fn t09_a_late_write_destroys_its_successor_only_if_writes_fail_over_immediately() {
    let name = "t09_a_late_write_destroys_its_successor_only_if_writes_fail_over_immediately";
    if !have(name, &["qemu-io"]) {
        return;
    }
    let Outcome {
        found, failover, ..
    } = experiment("fenced");
    let held = ms(&failover, "held_ns_max");
    println!("fenced: {found} found after 2 was acknowledged; the write was held {held:.0} ms");
    assert_eq!(found, 2, "an acknowledged write was lost");
    assert_eq!(failover["held_total"], 1, "{failover}");
    assert!(held >= 1500.0, "freed before the old copy was executed");

    // Where the machine is so busy that the old copy comes first, nothing can be seen.
    let mut outcomes = (0..10).map(|_| experiment("immediate"));
    let outcome = outcomes.find(|outcome| outcome.acknowledged_first);
    let Outcome {
        found, failover, ..
    } = outcome.unwrap();
    println!("immediate: {found} found after 2 was acknowledged; nothing was held");
    assert_eq!(found, 1, "this is what fencing is for");
    assert_eq!(failover["held_total"], 0, "{failover}");
}
