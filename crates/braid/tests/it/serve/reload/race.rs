//! Verbs and reloads of the same volumes at once.
use super::{QUICK, Rig, V0};
use crate::serve::process::{two_ports, wait_until};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often each client asks.
const ROUNDS: usize = 12;

/// Asks an engine; `None`: it refused that, in words.
fn ask(socket: &Path, words: &[&str]) -> Option<()> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(words).args(["-o", "json", "--socket"]);
    let output = command.arg(socket).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(0) => Some(()),
        // Usage: the volume or path has left meanwhile.
        Some(1 | 2) if !said.is_empty() => None,
        code => panic!("{words:?}: {code:?}: {said}"),
    }
}

/// A file is replaced at once: an engine never reads a part of it.
fn replace(file: &Path, text: &str, number: usize) {
    let new = PathBuf::from(format!("{}.{number}", file.display()));
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, file).unwrap();
}

#[test]
fn verbs_and_reloads_race_and_end_as_the_file_says() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, two])) = two_ports(directory.path(), "t") else {
        return;
    };
    let mut rig = Rig::new(directory, QUICK);
    let paths = [&one[..], &two];
    let few = [V0, ("v1", &paths[..], "")];
    let more = [V0, ("v1", &paths[..], ""), ("v2", &["mem:1MiB"][..], "")];
    rig.start(&few);
    wait_until(|| (rig.stat("v1")["paths"][1]["state"] == "live").then_some(()));
    let file = rig.path("b.toml");
    let text = |volumes: &[super::Volume]| {
        rig.configure(volumes);
        std::fs::read_to_string(&file).unwrap()
    };
    let texts = [text(&more), text(&few)];
    let loads = [rig.load("v0"), rig.load("v1")];
    let socket = rig.path("c.sock");
    let extra = format!("unix:{}", rig.path("extra.sock").display());
    let done = AtomicUsize::new(0);
    let verbs: [&[&[&str]]; 7] = [
        &[
            &["path", "fail", "v1", &two],
            &["path", "restore", "v1", &two],
        ],
        &[
            &["path", "drain", "v1", &one],
            &["path", "restore", "v1", &one],
        ],
        &[
            &["knob", "set", "v1", "retries", "9"],
            &["knob", "set", "v0", "retries", "8"],
        ],
        &[&["policy", "set", "v1", "round-robin"], &["forget", "v1"]],
        &[
            &["export", "add", "v1", &extra],
            &["export", "remove", "v1", &extra],
        ],
        &[
            &["path", "remove", "v1", &two],
            &["path", "add", "v1", &two],
        ],
        &[&["diff"], &["pending"], &["reload", "--dry-run"], &["stat"]],
    ];
    std::thread::scope(|scope| {
        for verbs in verbs {
            let (socket, done) = (&socket, &done);
            scope.spawn(move || {
                for words in verbs.iter().cycle().take(ROUNDS) {
                    let made = ask(socket, words);
                    done.fetch_add(usize::from(made.is_some()), Ordering::Relaxed);
                }
            });
        }
        let (socket, file, texts, done) = (&socket, &file, &texts, &done);
        scope.spawn(move || {
            for (number, text) in texts.iter().cycle().take(ROUNDS).enumerate() {
                replace(file, text, number);
                let made = ask(socket, &["reload", "--force"]);
                done.fetch_add(usize::from(made.is_some()), Ordering::Relaxed);
            }
        });
    });
    // Not all were refused.
    assert!(done.into_inner() > 2 * ROUNDS);
    rig.ask(&["forget", "v1"]);
    rig.ask(&["forget", "v0"]);
    rig.reload(&few);
    assert_eq!(rig.ask(&["diff"])["differences"], serde_json::json!([]));
    assert_eq!(rig.names(), ["v0", "v1"]);
    let live = |rig: &Rig| {
        let paths = rig.stat("v1")["paths"].clone();
        let mut paths = paths.as_array().unwrap().iter();
        paths.all(|it| it["state"] == "live")
    };
    wait_until(|| live(&rig).then_some(()));
    for load in loads {
        load.end();
    }
    assert_eq!(rig.end(Signal::TERM), Some(0));
}
