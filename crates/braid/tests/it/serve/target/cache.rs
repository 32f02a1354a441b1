//! A target's volatile cache: what was not flushed is gone with the process, and nothing else is.
use crate::serve::no_io_uring;
use crate::serve::process::{Client, Process, engine};
use std::path::Path;

/// A target with a cache of two blocks' worth or more; `None`: this machine has no io_uring.
fn target(directory: &Path, cache: &str) -> Option<(Process, String)> {
    let [config, socket, data] = ["t.toml", "t.sock", "data"].map(|name| directory.join(name));
    let text = format!(
        "nqn = \"nqn.2026-01.org.braid:cache\"\n[[namespace]]\nbackend = \"file:{}\"\n\
         size = \"1MiB\"\nvolatile_cache = \"{cache}\"\n[[port]]\nlisten = \"127.0.0.1:0\"\n",
        data.display()
    );
    std::fs::write(&config, text).unwrap();
    let words = ["target", "-c", config.to_str().unwrap(), "--socket"];
    let words = [&words[..], &[socket.to_str().unwrap()]].concat();
    let mut target = Process::start(directory, &words);
    match target.says("port 1: ") {
        Some(line) => {
            let uri = line.split_whitespace().nth(2).unwrap().to_owned();
            Some((target, uri))
        }
        None => {
            target.notes("io_uring");
            no_io_uring::skip(&target.seen);
            None
        }
    }
}

#[test]
fn a_target_that_is_killed_loses_what_was_not_flushed_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some((mut target, uri)) = target(directory, "64KiB") else {
        return;
    };
    let export = directory.join("v0.sock");
    let text = format!(
        "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"{uri}\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        export.display()
    );
    std::fs::write(directory.join("b.toml"), text).unwrap();
    let _engine = engine(directory);
    let mut client = Client::open(&export);
    for (block, fill) in [(0, 1), (1, 2)] {
        assert_eq!(client.write(block << 12, fill), 0);
    }
    assert_eq!(client.flush(), 0);
    assert_eq!(client.write(0, 3), 0);
    assert_eq!(client.write(2 << 12, 4), 0);
    assert_eq!(client.write_fua(3 << 12, 5), 0);
    for (block, fill) in [(0, 3), (1, 2), (2, 4), (3, 5)] {
        assert_eq!(client.read(block << 12), [fill; 4096], "while it lives");
    }
    target.signal(rustix::process::Signal::KILL);
    target.ended();
    let left = std::fs::read(directory.join("data")).unwrap();
    let first = |block: usize| left[block << 12];
    assert_eq!(
        [0, 1, 2, 3].map(first),
        [1, 2, 0, 5],
        "flushed, flushed, lost, FUA"
    );
}

#[test]
fn a_cache_that_can_not_be_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("t.toml");
    for (backend, cache, why) in [
        ("mem:1MiB", "64KiB", "is for a file that is written"),
        ("file:/nowhere", "1KiB", "1 KiB is not 4 KiB to 1 GiB"),
    ] {
        let text = format!(
            "nqn = \"nqn.2026-01.org.braid:cache\"\n[[namespace]]\nbackend = \"{backend}\"\n\
             volatile_cache = \"{cache}\"\n[[port]]\nlisten = \"127.0.0.1:0\"\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_braid"));
        let output = command
            .args(["target", "-c"])
            .arg(&config)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("namespace 1: volatile_cache"), "{said}");
        assert!(said.contains(why), "{said}");
    }
}
