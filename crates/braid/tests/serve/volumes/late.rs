//! T55: path verbs whose I/O does not end in time.
use crate::process::{Client, engine, two_ports, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn ask(directory: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.env("XDG_STATE_HOME", directory.join("state"));
    command.args(words).arg("--socket");
    command.arg(directory.join("c.sock")).output().unwrap()
}

/// States of the paths.
fn states(directory: &Path) -> Vec<String> {
    let output = ask(directory, &["stat", "-o", "json"]);
    let stat: Value = serde_json::from_slice(&output.stdout).unwrap();
    let paths = stat["volumes"][0]["paths"].as_array().unwrap().iter();
    let state = |path: &Value| path["state"].as_str().unwrap().to_owned();
    paths.map(state).collect()
}

#[test]
fn t55_path_verb_that_times_out_is_pending_or_undone() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some((target, uris)) = two_ports(directory, "late") else {
        return;
    };
    let paths = uris.map(|uri| format!("[[volume.path]]\nuri = \"{uri}\"\n"));
    let text = format!(
        "io_timeout = \"60s\"\nkeep_alive_tmo = \"30s\"\ndrain_timeout = \"1s\"\n\
         [[volume]]\nname = \"v0\"\npolicy = \"devid:1\"\n{}[[volume.export]]\nnbd = \"unix:{}\"\n",
        paths.concat(),
        directory.join("v0.sock").display()
    );
    std::fs::write(directory.join("b.toml"), text).unwrap();
    let _engine = engine(directory);
    wait_until(|| (states(directory) == ["live", "live"]).then_some(()));
    let mut client = Client::open(&directory.join("v0.sock"));
    assert_eq!(client.write(0, 1), 0);
    target.freeze();
    client.send_write(0, 2);
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
