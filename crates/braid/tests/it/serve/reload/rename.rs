//! Volumes that have another name in the file: what is theirs follows them.
use super::{QUICK, Rig, V0};
use crate::serve::process::{Client, two_ports, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::process::Command;

impl Rig {
    /// The file has other words.
    fn edit(&self, words: &[(&str, &str)]) {
        let file = self.path("b.toml");
        let mut text = std::fs::read_to_string(&file).unwrap();
        for (from, to) in words {
            assert!(text.contains(from), "{from}: {text}");
            text = text.replace(from, to);
        }
        std::fs::write(file, text).unwrap();
    }

    fn plan(&self) -> Value {
        self.ask(&["reload", "--dry-run"])["plan"].clone()
    }

    fn changed(&self) -> String {
        let answer = self.ask(&["reload"]);
        answer["changed"].as_str().unwrap().to_owned()
    }

    fn uris(&self, name: &str) -> Vec<Value> {
        let paths = self.stat(name)["paths"].clone();
        let paths = paths.as_array().unwrap().iter();
        paths.map(|it| it["uri"].clone()).collect()
    }
}

#[test]
fn renamed_volume_keeps_clients_paths_and_choices() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, two])) = two_ports(directory.path(), "t") else {
        return;
    };
    let mut rig = Rig::new(directory, QUICK);
    rig.start(&[V0, ("v1", &[&one, &two], "")]);
    wait_until(|| (rig.stat("v1")["paths"][1]["state"] == "live").then_some(()));
    rig.ask(&["policy", "set", "v1", "round-robin"]);
    rig.ask(&["knob", "set", "v1", "retries", "9"]);
    rig.ask(&["path", "fail", "v1", &two]);
    let load = rig.load("v1");
    wait_until(|| (rig.stat("v1")["paths"][0]["writes"] != 0).then_some(()));
    rig.edit(&[("name = \"v1\"", "name = \"w1\"")]);
    assert_eq!(rig.plan(), json!(["rename volume v1 to w1"]));
    let diff = rig.ask(&["diff", "v1"]);
    let first = &diff["differences"][0];
    assert_eq!(
        (&first["what"], &first["file"]),
        (&json!("name"), &json!("w1"))
    );
    let before = rig.stat("v1")["paths"][0]["writes"].as_u64().unwrap();
    assert_eq!(rig.changed(), "renamed v1 to w1");
    assert_eq!(rig.plan(), json!([]));
    assert_eq!(rig.names(), ["v0", "w1"]);
    let of = rig.stat("w1");
    assert_eq!(of["policy"], "round-robin");
    assert_eq!(of["paths"][1]["state"], "failed");
    assert!(
        of["paths"][0]["writes"].as_u64().unwrap() >= before,
        "it was not opened anew"
    );
    assert_eq!(rig.ask(&["knob", "show", "w1"])["retries"], 9);
    assert!(
        rig.refusal(&["policy", "show", "v1"])
            .contains("there is no volume")
    );
    // Clients that are there stay, others ask by the new name.
    load.end();
    let socket = rig.path("v1.sock");
    let mut client = Client::open_named(&socket, "w1");
    assert_eq!(client.write(0, 7), 0);
    drop(client);
    wait_until(|| {
        let marks = rig.marks();
        (marks.get("w1").is_some() && marks.get("v1").is_none()).then_some(())
    });
    // A choice that is made after it, and those before, are there at the next start.
    rig.ask(&["knob", "set", "w1", "reconnect_delay", "3s"]);
    rig.end(Signal::KILL);
    rig.engine = Some(crate::serve::process::engine(rig.root()));
    let of = rig.stat("w1");
    assert_eq!(of["policy"], "round-robin");
    assert_eq!(of["paths"][1]["state"], "failed");
    rig.ask(&["path", "restore", "w1", &two]);
    // With other changes: a path leaves.
    rig.configure(&[V0, ("x1", &[&one], "")]);
    let changed = rig.changed();
    assert!(changed.contains("renamed w1 to x1"), "{changed}");
    assert_eq!(rig.uris("x1"), [one.as_str()]);
    assert_eq!(rig.client("x1").read(0), vec![7; 4096]);
    // A failed reload leaves the names as they were.
    let dead = "nvme-tcp://127.0.0.1:1/nqn.2026-01.org.braid:x";
    let bad: super::Volume = ("v2", &[dead], "");
    rig.refused_reload(&[V0, ("y1", &[&one, &two], ""), bad]);
    assert_eq!(rig.names(), ["v0", "x1"]);
    assert_eq!(rig.uris("x1"), [one.as_str()]);
    assert_eq!(rig.end(Signal::TERM), Some(0));
    // It is shown before a start as well.
    rig.configure(&[V0, ("z1", &[&one], "")]);
    let mut check = Command::new(env!("CARGO_BIN_EXE_braid"));
    check.args(["run", "--check", "-c"]).arg(rig.path("b.toml"));
    check.arg("--socket").arg(rig.path("c.sock"));
    check.env("XDG_STATE_HOME", rig.path("state"));
    let output = check.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("volume z1 was x1"), "{said}");
}

#[test]
fn volumes_swap_their_names() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, _])) = two_ports(directory.path(), "t") else {
        return;
    };
    let Some((_other, [other, _])) = two_ports(directory.path(), "o") else {
        return;
    };
    let mut rig = Rig::new(directory, QUICK);
    rig.start(&[V0, ("v1", &[&one], ""), ("v2", &[&other], "")]);
    assert_eq!(rig.client("v1").write(0, 1), 0);
    assert_eq!(rig.client("v2").write(0, 2), 0);
    rig.ask(&["policy", "set", "v1", "round-robin"]);
    rig.ask(&["knob", "set", "v2", "retries", "9"]);
    let loads = [rig.load("v1"), rig.load("v2")];
    let swap = [
        ("name = \"v1\"", "name = \"x\""),
        ("name = \"v2\"", "name = \"v1\""),
        ("name = \"x\"", "name = \"v2\""),
    ];
    rig.edit(&swap);
    let both = ["rename volume v1 to v2", "rename volume v2 to v1"];
    assert_eq!(rig.plan(), json!(both));
    let is_swapped = |rig: &Rig| {
        assert_eq!(rig.uris("v1"), [other.as_str()]);
        assert_eq!(rig.uris("v2"), [one.as_str()]);
        let policies = ["v1", "v2"].map(|it| rig.stat(it)["policy"].clone());
        assert_eq!(policies, ["queue-depth", "round-robin"]);
        let retries = ["v1", "v2"].map(|it| rig.ask(&["knob", "show", it])["retries"].clone());
        assert_eq!(retries[0], 9);
        assert_ne!(retries[1], 9);
    };
    rig.changed();
    is_swapped(&rig);
    loads.into_iter().for_each(super::Load::end);
    rig.end(Signal::KILL);
    rig.engine = Some(crate::serve::process::engine(rig.root()));
    is_swapped(&rig);
    // A name that another volume gives up at the same time.
    let text = std::fs::read_to_string(rig.path("b.toml")).unwrap();
    rig.configure(&[V0, ("v2", &[&other], "")]);
    let why = rig.refusal(&["reload", "--force"]);
    assert!(why.contains("without that one first"), "{why}");
    std::fs::write(rig.path("b.toml"), text).unwrap();
    assert_eq!(rig.plan(), json!([]));
    assert_eq!(rig.end(Signal::TERM), Some(0));
}
