//! ANA states that change under load: what reads and writes must not notice.
use crate::e2e::common::{Engine, Process, QUICK, Target, have, mib, text, wait};
use rustix::process::Signal;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

const STATES: [&str; 5] = [
    "optimized",
    "non-optimized",
    "inaccessible",
    "persistent-loss",
    "change",
];

/// Reads and writes with checksums until it is told to end.
fn fio(directory: &Path, engine: &Engine, bytes: u64) -> Process {
    let mut command = Command::new("fio");
    command.args(["--name=t", "--ioengine=nbd", "--rw=randrw", "--bs=4k"]);
    command.arg(format!("--uri={}", engine.uri()));
    command.arg(format!("--size={bytes}"));
    command.args(["--iodepth=8", "--time_based", "--runtime=1h"]);
    command.args(["--verify=crc32c", "--verify_backlog=64"]);
    command.args(["--verify_state_save=0", "--output-format=json"]);
    command.stdout(Stdio::piped()).current_dir(directory);
    Process::spawn(&mut command)
}

/// I/Os that each path has ended.
fn ended(engine: &Engine) -> [u64; 2] {
    let stat = engine.stat();
    [0, 1].map(|path| {
        let groups = &stat["paths"][path]["groups"];
        let of = |group: &str| groups[group]["selections"].as_u64().unwrap();
        of("read") + of("write")
    })
}

#[test]
fn t26_ana_states_change_under_load_through_all_25_pairs() {
    let test = "t26_ana_states_change_under_load_through_all_25_pairs";
    if !have(test, &["fio"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let bytes = mib(16) << 20;
    let targets = [
        Target::of_file(directory, "one", 1, bytes),
        Target::of_file(directory, "two", 1001, bytes),
    ];
    let uris = targets.each_ref().map(|target| target.uri.as_str());
    let volume = "policy = \"round-robin\"\nana = \"strict\"";
    let engine = Engine::start(directory, &format!("cores = 2\n{QUICK}"), volume, &uris);
    let mut fio = fio(directory, &engine, bytes);
    for first in STATES {
        for second in STATES {
            for (target, state) in targets.iter().zip([first, second]) {
                target.set(&[&format!("ana={state}")]);
            }
            let pair = format!("{first} and {second}");
            wait(&format!("the engine knows {pair}"), || {
                let stat = engine.stat();
                let knows = |(at, state)| stat["paths"][at as usize]["ana_state"] == state;
                let both = (0..2).zip([first, second]).all(knows);
                both.then_some(())
            });
            let before = ended(&engine);
            let best = [first, second].contains(&"optimized");
            let usable = |state| state == "optimized" || !best && state == "non-optimized";
            // Either something ends, on a path that may, or all of it waits.
            if [first, second].into_iter().any(usable) {
                wait(&format!("I/O goes on with {pair}"), || {
                    let now = ended(&engine);
                    let more = |at: usize, state| usable(state) && now[at] > before[at] + 20;
                    (more(0, first) || more(1, second)).then_some(())
                });
            } else {
                wait(&format!("all I/O waits with {pair}"), || {
                    (engine.stat()["waiting"]["queued"].as_u64()? > 0).then_some(())
                });
            }
            assert!(fio.child().try_wait().unwrap().is_none(), "{pair}");
        }
    }
    targets[1].set(&["ana=optimized"]);
    let before = ended(&engine);
    wait("the last I/O goes on", || {
        (ended(&engine)[1] > before[1] + 100).then_some(())
    });
    fio.signal(Signal::INT);
    wait("fio ends", || fio.child().try_wait().unwrap());
    let mut said = Vec::new();
    let mut out = fio.child().stdout.take().unwrap();
    out.read_to_end(&mut said).unwrap();
    let said = text(&said);
    let said: serde_json::Value = serde_json::from_str(&said[said.find('{').unwrap()..]).unwrap();
    assert_eq!(said["jobs"][0]["error"], 0, "{said:#}");
    engine.end();
}
