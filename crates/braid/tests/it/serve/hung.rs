//! T52: a file that hangs under a target or a queue server costs its own namespace alone; others
//! go on, verbs answer, and the end comes within its time.
use crate::serve::hangfs::HangFs;
use crate::serve::no_io_uring;
use crate::serve::process::{self, Process, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const BYTES: usize = 16 << 20;

struct Place {
    // Unmounted before its directory goes.
    disk: HangFs,
    directory: tempfile::TempDir,
}

impl Place {
    /// `None`: nothing can be mounted.
    fn new() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        match HangFs::mount(&directory.path().join("disk"), BYTES) {
            Ok(disk) => Some(Self { disk, directory }),
            Err(reason) => {
                let line = format!("SKIP hung-file: FUSE can't be mounted: {reason}\n");
                let _ = std::io::stderr().write_all(line.as_bytes());
                None
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn file(&self) -> String {
        format!("file:{}", self.disk.file().display())
    }

    fn start(&self, words: &[&str]) -> Process {
        Process::start(self.directory.path(), words)
    }

    /// A load that writes for a moment.
    fn load(&self, words: &[&str]) -> Process {
        let load = ["--rw", "randwrite", "--runtime", "200ms"];
        self.start(&[words, &load].concat())
    }

    /// A load that waits for the file from now on.
    fn hangs(&self, words: &[&str]) -> Process {
        self.disk.hang();
        let load = self.load(words);
        wait_until(|| (self.disk.held() > 0).then_some(()));
        load
    }
}

fn is_well(mut load: Process) {
    let status = load.ended();
    assert!(status.success(), "{}", load.seen);
}

#[test]
fn t52_hung_file_costs_its_own_clients() {
    process::at_once(&[queues_of_hung_file, namespace_of_hung_file]);
}

fn queues_of_hung_file() {
    let Some(place) = Place::new() else { return };
    let (file, socket) = (place.file(), place.path("q.sock"));
    let socket = socket.to_str().unwrap();
    let words = ["queue", "serve", &file, "mem:16MiB", "--socket", socket];
    let mut server = place.start(&words);
    if server.says("q.sock").is_none() {
        server.notes("io_uring");
        return no_io_uring::skip(&server.seen);
    }
    let of = |nsid| ["queue", "bench", "--socket", socket, "--nsid", nsid];
    is_well(place.load(&of("1")));
    let _hung = place.hangs(&of("1"));
    is_well(place.load(&of("2")));
    server.signal(Signal::TERM);
    let line = server.notes("have not returned for 10 s");
    assert!(line.contains(place.disk.file().to_str().unwrap()), "{line}");
    // No signal ends a thread that waits for FUSE.
    place.disk.go_on();
    assert_eq!(server.ended().code(), Some(1));
}

/// Description that a target shows.
fn shown(socket: &Path) -> Value {
    let mut show = Command::new(env!("CARGO_BIN_EXE_braid"));
    show.args(["target", "show", "-o", "json", "--socket"]);
    let output = show.arg(socket).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// How large the first namespace of a target is.
fn bytes(socket: &Path) -> Value {
    shown(socket)["namespaces"][0]["bytes"].clone()
}

fn namespace_of_hung_file() {
    let Some(place) = Place::new() else { return };
    let (config, control) = (place.path("t.toml"), place.path("t.sock"));
    let text = format!(
        "nqn = \"nqn.2026-01.org.braid:hung\"\n[[namespace]]\nbackend = \"{}\"\n\
         [[namespace]]\nbackend = \"mem:16MiB\"\n[[port]]\nlisten = \"127.0.0.1:0\"\n",
        place.file()
    );
    std::fs::write(&config, text).unwrap();
    let [config, socket] = [&config, &control].map(|it| it.to_str().unwrap());
    let mut target = place.start(&["target", "-c", config, "--socket", socket]);
    let Some(line) = target.says("port 1: ") else {
        target.notes("io_uring");
        return no_io_uring::skip(&target.seen);
    };
    // T9: nothing bounds what a FUSE server was given.
    assert_eq!(shown(&control)["subsystem"]["cqt_ns"], 0);
    let uri = line.split_whitespace().nth(2).unwrap();
    let [first, second] = [1, 2].map(|nsid| format!("{uri}?nsid={nsid}"));
    is_well(place.load(&["bench", &first]));
    let hung = place.hangs(&["bench", &first]);
    is_well(place.load(&["bench", &second]));
    // T55: what its verb has given up is not done when the file answers.
    let mut resize = place.start(&["target", "resize", "1", "32MiB", "--socket", socket]);
    resize.notes("no answer within 10s");
    assert!(!resize.ended().success());
    assert_eq!(bytes(&control), BYTES);
    place.disk.go_on();
    wait_until(|| (place.disk.len() == 32 << 20).then_some(()));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(bytes(&control), BYTES);
    drop(hung);
    let _hung = place.hangs(&["bench", &first]);
    target.signal(Signal::TERM);
    let line = target.notes("does not answer: ended without it");
    assert!(line.contains(place.disk.file().to_str().unwrap()), "{line}");
    // A thread that waits for FUSE has to return before the process is gone.
    place.disk.go_on();
    target.ended();
}

/// The file of one volume hangs, by name too, and that of another one comes late: the engine asks
/// for nothing of the first to open the second.
#[test]
fn t52_hung_file_holds_up_no_path_that_comes_late() {
    let mut engine; // ends last: it can't while the file hangs
    let Some(place) = Place::new() else { return };
    let of = |name: &str, uri: &str| {
        format!("[[volume]]\nname = \"{name}\"\n[[volume.path]]\nuri = \"{uri}\"\n")
    };
    let late = place.path("late.img");
    let config = [
        of("v0", &place.file()),
        of("v1", &format!("file:{}", late.display())),
    ];
    std::fs::write(place.path("b.toml"), config.concat()).unwrap();
    engine = process::begun(place.directory.path());
    if engine.says("v0: ready").is_none() {
        engine.notes("io_uring");
        return no_io_uring::skip(&engine.seen);
    }
    place.disk.hang_whole();
    let made = place.path("made");
    let file = std::fs::File::create(&made).unwrap();
    file.set_len(BYTES as u64).unwrap();
    std::fs::rename(made, late).unwrap();
    assert!(engine.says("v1: ready").is_some());
    // How full its file system is, is asked by a thread that nothing waits for.
    let others = place.disk.waiting().into_iter().filter(|it| it != "space");
    assert_eq!(
        others.collect::<Vec<_>>(),
        [""; 0],
        "nothing was asked of the hung file"
    );
}
