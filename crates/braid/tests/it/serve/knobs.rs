//! Keys of a volume that change while it runs, by verb and by reload; which do not, and what exit
//! codes say.
use crate::serve::no_io_uring;
use crate::serve::process::Process;
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn braid(directory: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(words).args(["-o", "json", "--socket"]);
    command.arg(directory.join("c.sock")).output().unwrap()
}

fn json(directory: &Path, words: &[&str]) -> Value {
    let output = braid(directory, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Exit code and what was said.
fn refused(directory: &Path, words: &[&str]) -> (Option<i32>, String) {
    let output = braid(directory, words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

fn configure(directory: &Path, keys: &str) {
    let path = "[[volume.path]]\nuri = \"mem:64MiB\"\n";
    let text = format!("[[volume]]\nname = \"v0\"\n{keys}{path}");
    std::fs::write(directory.join("b.toml"), text).unwrap();
}

/// An engine whose volume has these keys; `None`: there can't be one here.
fn start(directory: &Path, keys: &str) -> Option<Process> {
    configure(directory, keys);
    let [config, socket] = ["b.toml", "c.sock"].map(|name| directory.join(name));
    let [config, socket] = [&config, &socket].map(|it| it.to_str().unwrap());
    let mut engine = Process::start(directory, &["run", "-c", config, "--socket", socket]);
    if engine.says("v0: ready").is_none() {
        engine.notes("io_uring");
        no_io_uring::skip(&engine.seen);
        return None;
    }
    Some(engine)
}

fn stop(mut engine: Process) {
    engine.signal(Signal::TERM);
    assert_eq!(engine.ended().code(), Some(0));
}

fn loss_s(directory: &Path) -> Option<u64> {
    let shown = json(directory, &["knob", "show", "v0"]);
    Some(shown["ctrl_loss_tmo_ns"].as_u64()? / 1_000_000_000)
}

#[test]
fn a_key_that_is_set_holds_over_restarts_until_the_file_says_something_else_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let Some(engine) = start(root, "") else {
        return;
    };
    assert_eq!(loss_s(root), Some(600));
    let set = json(root, &["knob", "set", "v0", "ctrl_loss_tmo", "5m"]);
    assert_eq!(set["ctrl_loss_tmo_ns"], 300_000_000_000_u64);
    json(root, &["knob", "set", "v0", "probation_errors", "off"]);
    json(root, &["knob", "set", "v0", "ewma_shift", "5"]);
    assert!(root.join("state/braid").exists());
    stop(engine);
    let engine = start(root, "").unwrap();
    let shown = json(root, &["knob", "show", "v0"]);
    assert_eq!(shown["ctrl_loss_tmo_ns"], 300_000_000_000_u64);
    assert!(shown["probation_errors"].is_null() && shown["ewma_shift"] == 5);
    // Another key of the file changes: it holds.
    configure(root, "retries = 7\n");
    let changed = json(root, &["reload"])["changed"].clone();
    assert_eq!(changed, "v0: retries 7");
    assert_eq!(loss_s(root), Some(300));
    configure(root, "retries = 7\nctrl_loss_tmo = \"off\"\n");
    let changed = json(root, &["reload"])["changed"].clone();
    assert_eq!(changed, "v0: ctrl_loss_tmo off");
    assert_eq!(loss_s(root), None);
    stop(engine);
    let engine = start(root, "").unwrap();
    assert_eq!(loss_s(root), Some(600), "what was chosen is forgotten");
    let shown = json(root, &["knob", "show", "v0"]);
    assert!(shown["probation_errors"].is_null(), "{shown}");
    stop(engine);
}

#[test]
fn what_can_be_known_to_be_wrong_is_a_usage_error_and_what_the_engine_refuses_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let wrong: [(&[&str], &str); 6] = [
        (&["knob", "set", "v0", "ewma_shift", "9"], "over 8"),
        (
            &["knob", "set", "v0", "ctrl_loss_tmo", "0s"],
            "at least 1 ms",
        ),
        (
            &["knob", "set", "v0", "io_timeout", "5s"],
            "restart the engine",
        ),
        (
            &["knob", "set", "v0", "quiesce_time", "1s"],
            "restart the engine",
        ),
        (
            &["knob", "set", "v0", "ctrl_loss", "5s"],
            "there are ewma_shift",
        ),
        (&["policy", "set", "v0", "fastest"], "fastest"),
    ];
    let right: [(&[&str], &str); 3] = [
        (
            &["knob", "set", "v0", "reconnect_delay", "50ms"],
            "reconnect_delay_min must not be longer",
        ),
        (
            &["knob", "set", "v0", "hedge", "on"],
            "only soonest predicts",
        ),
        (&["knob", "set", "v1", "retries", "5"], "no volume \"v1\""),
    ];
    let check_wrong = || {
        for (words, part) in wrong {
            let (code, said) = refused(root, words);
            assert_eq!(code, Some(2), "{words:?}: {said}");
            assert!(said.contains(part), "{words:?}: {said}");
        }
    };
    check_wrong();
    for (words, _) in right {
        assert_eq!(refused(root, words).0, Some(1), "there is no engine");
    }
    let Some(engine) = start(root, "") else {
        return;
    };
    check_wrong();
    for (words, part) in right {
        let (code, said) = refused(root, words);
        assert_eq!(code, Some(2), "{words:?}: {said}");
        assert!(said.contains(part), "{words:?}: {said}");
    }
    let before = json(root, &["knob", "show", "v0"]);
    configure(root, "quiesce_time = \"1s\"\nana = \"merge\"\n");
    let (code, said) = refused(root, &["reload"]);
    assert_eq!(code, Some(1));
    assert!(
        said.contains("v0: quiesce_time, ana can't be changed"),
        "{said}"
    );
    assert_eq!(json(root, &["knob", "show", "v0"]), before);
    stop(engine);
}
