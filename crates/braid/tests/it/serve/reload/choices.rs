//! Choices by verb: shown beside the file, said at a start, forgotten; and changes that go on
//! after their verbs gave up.
use super::{QUICK, Rig, V0};
use crate::serve::process::{two_ports, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Command;

impl Rig {
    /// Differences of a volume, with the value that holds and that of the file; and since when.
    fn differences(&self, name: &str) -> (Vec<[String; 3]>, Vec<Option<u64>>) {
        let answer = self.ask(&["diff", name]);
        let all = answer["differences"].as_array().unwrap().iter();
        let of =
            |it: &Value| ["what", "now", "file"].map(|key| it[key].as_str().unwrap().to_owned());
        let both = all.map(|it| (of(it), it["since_s"].as_u64()));
        both.unzip()
    }

    fn path_state(&self, name: &str, place: usize) -> Value {
        self.stat(name)["paths"][place]["state"].clone()
    }

    fn set_target(&self, port: &str, fault: &str) {
        let mut set = Command::new(env!("CARGO_BIN_EXE_braid"));
        set.args(["target", "set", "--port", port, fault, "--socket"]);
        let output = set.arg(self.path("t.sock")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

#[test]
fn choices_are_shown_said_at_a_start_and_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, two])) = two_ports(directory.path(), "t") else {
        return;
    };
    let mut rig = Rig::new(directory, QUICK);
    let volumes = [V0, ("v1", &[&one[..], &two[..]][..], "")];
    rig.start(&volumes);
    wait_until(|| (rig.path_state("v1", 1) == "live").then_some(()));
    assert_eq!(rig.differences("v1").0, [[""; 3]; 0]);
    let policy = rig.ask(&["policy", "show", "v1"])["policy"].clone();
    let policy = policy.as_str().unwrap();
    rig.ask(&["policy", "set", "v1", "round-robin"]);
    rig.ask(&["knob", "set", "v1", "retries", "9"]);
    rig.ask(&["path", "fail", "v1", &two]);
    let path = format!("path {two}");
    let wanted = [
        ["policy", "round-robin", policy],
        ["retries", "9", "5"],
        [&path, "failed", "used"],
    ];
    let (all, since) = rig.differences("v1");
    assert_eq!(all, wanted);
    assert!(since.iter().all(Option::is_some), "{since:?}");
    // Exports come and go until the engine ends.
    let socket = format!("unix:{}", rig.path("more.sock").display());
    rig.ask(&["export", "add", "v1", &socket]);
    let export = [
        format!("export {socket}"),
        "added".into(),
        "no export".into(),
    ];
    assert_eq!(rig.differences("v1").0[3], export);
    assert_eq!(rig.end(Signal::TERM), Some(0));
    rig.start(&volumes);
    let line = rig
        .engine()
        .notes("as it was set by verb before this start");
    for part in [
        "v1: ",
        "policy round-robin (file: ",
        "failed (file: used, since ",
    ] {
        assert!(line.contains(part), "{line}");
    }
    assert_eq!(rig.differences("v1"), (all, since), "as before");
    wait_until(|| (rig.path_state("v1", 1) == "failed").then_some(()));
    // One thing, then all.
    rig.ask(&["forget", "v1", "policy"]);
    assert_eq!(rig.ask(&["policy", "show", "v1"])["policy"], policy);
    assert_eq!(rig.differences("v1").0.len(), 2);
    let unknown = rig.command(&["forget", "v1", "colour"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    let changed = rig.ask(&["forget", "v1"])["changed"].clone();
    assert_eq!(changed[0], format!("v1: restore path {two}"), "{changed}");
    assert_eq!(rig.path_state("v1", 1), "live");
    assert_eq!(rig.differences("v1").0, [[""; 3]; 0]);
    // The paths of the file, whatever was added and removed.
    rig.ask(&["path", "remove", "v1", &two]);
    let changed = rig.ask(&["forget", "v1", "paths"])["changed"].clone();
    assert_eq!(changed, serde_json::json!([format!("v1: add path {two}")]));
    assert_eq!(rig.ask(&["forget", "v1"])["changed"], serde_json::json!([]));
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

#[test]
fn drain_that_goes_on_is_pending_until_cancelled() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, two])) = two_ports(directory.path(), "t") else {
        return;
    };
    let keys = "io_timeout = \"10m\"\nconnect_timeout = \"5s\"\ndrain_timeout = \"100ms\"\n";
    let mut rig = Rig::new(directory, keys);
    rig.start(&[V0, ("v1", &[&one, &two], "")]);
    wait_until(|| (rig.path_state("v1", 1) == "live").then_some(()));
    let pending = |rig: &Rig| rig.ask(&["pending"])["pending"].clone();
    assert_eq!(pending(&rig), serde_json::json!([]));
    let mut client = rig.client("v1");
    for port in ["1", "2"] {
        rig.set_target(port, "hold_writes=1h");
    }
    client.send_write(0, 2);
    let busy = |rig: &Rig| {
        let paths = rig.stat("v1")["paths"].clone();
        let mut paths = paths.as_array().unwrap().iter();
        paths.position(|it| it["inflight"] == 1)
    };
    let place = wait_until(|| busy(&rig));
    let uri = [&one, &two][place];
    let why = rig.refusal(&["path", "drain", "v1", uri]);
    assert!(why.contains("until braid path restore v1"), "{why}");
    let is = pending(&rig);
    assert_eq!(is[0]["change"], format!("v1: drain path {uri}"), "{is}");
    assert_eq!(is[0]["state"], "1 I/Os are under way", "{is}");
    let id = is[0]["id"].to_string();
    let unknown = rig
        .command(&["pending", "--cancel", "999"])
        .output()
        .unwrap();
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    // No verb of another volume waits for it.
    rig.ask(&["knob", "set", "v0", "retries", "5"]);
    let done = rig.ask(&["pending", "--cancel", &id]);
    assert_eq!(done["cancelled"], format!("v1: drain path {uri}"));
    // On probation, if its held write was noticed by now.
    assert_ne!(rig.path_state("v1", place), "draining");
    assert_eq!(pending(&rig), serde_json::json!([]));
    // One that ends by itself is pending no more.
    rig.refusal(&["path", "drain", "v1", uri]);
    assert_eq!(pending(&rig).as_array().unwrap().len(), 1);
    for port in ["1", "2"] {
        rig.set_target(port, "hold_writes=0");
    }
    assert_eq!(client.answer(), 0);
    assert_eq!(pending(&rig), serde_json::json!([]));
    drop(client);
    assert_eq!(rig.end(Signal::TERM), Some(0));
}
