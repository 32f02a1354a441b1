//! `braid explain` beside a running engine: what it says of I/O that is under way, of an idle
//! volume, and to whoever asks for what can't be.
use crate::serve::process::{Client, Process, engine, two_ports, wait_until};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// A target with two ports, and an engine over them.
struct Pair {
    directory: tempfile::TempDir,
    uris: [String; 2],
    _target: Process,
    _engine: Process,
}

/// Readers that go on until they are dropped.
struct Readers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Pair {
    /// `None`: this machine has no io_uring.
    fn start() -> Option<Self> {
        Self::start_with(["", ""])
    }

    /// With keys of each path.
    fn start_with(keys: [&str; 2]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let (target, uris) = two_ports(directory.path(), "t")?;
        configure(directory.path(), &uris, keys);
        let _engine = engine(directory.path());
        let pair = Self {
            directory,
            uris,
            _target: target,
            _engine,
        };
        let set = ["target", "set", "--port", "2", "delay=2ms"];
        assert!(ask(&pair.path("t.sock"), &set).status.success());
        Some(pair)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn ask(&self, words: &[&str]) -> Output {
        ask(&self.path("c.sock"), words)
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.ask(&[words, &["-o", "json"]].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Four readers, one I/O each at a time.
    fn readers(&self) -> Readers {
        let stop = Arc::new(AtomicBool::new(false));
        let reader = |n: u64| {
            let (stop, socket) = (Arc::clone(&stop), self.path("v0.sock"));
            std::thread::spawn(move || {
                let mut client = Client::open(&socket);
                while !stop.load(Ordering::Relaxed) {
                    client.read(n * 4096);
                }
            })
        };
        let threads = (0..4).map(reader).collect();
        Readers { stop, threads }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|it| it.join().unwrap());
    }
}

fn configure(directory: &Path, uris: &[String; 2], keys: [&str; 2]) {
    let path = |n: usize| format!("[[volume.path]]\nuri = \"{}\"\n{}\n", uris[n], keys[n]);
    let text = format!(
        "cores = 2\n[[volume]]\nname = \"v0\"\n{}{}[[volume.export]]\nnbd = \"unix:{}\"\n",
        path(0),
        path(1),
        directory.join("v0.sock").display()
    );
    std::fs::write(directory.join("b.toml"), text).unwrap();
}

fn ask(socket: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(words).arg("--socket").arg(socket);
    command.output().unwrap()
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Key of what a policy goes by.
const POLICIES: [(&str, &str); 11] = [
    ("numa", "distance"),
    ("round-robin", "before"),
    ("round-robin-latency", "recent_ns"),
    ("queue-depth", "in_flight"),
    ("weighted-latency", "weight"),
    ("soonest", "known"),
    ("pid", "wanted"),
    ("latency", "recent_ns"),
    ("devid:2", "named"),
    ("service-time", "bytes_in_flight"),
    ("historical-service-time", "service_ns"),
];

fn check_io(io: &Value, policy: &str, key: &str) {
    assert_eq!(
        (&io["op"], &io["bytes"]),
        (&"read".into(), &4096.into()),
        "{io}"
    );
    assert_eq!(io["outcome"], "done", "{io}");
    assert!(io["latency_ns"].as_u64().unwrap() > 0, "{io}");
    assert_eq!(io["policy"], policy);
    let paths = io["paths"].as_array().unwrap();
    assert_eq!(paths.len(), 2);
    let chosen = &paths[io["chosen"].as_u64().unwrap() as usize];
    assert_eq!(chosen["usable"], true);
    assert!(chosen.get(key).is_some(), "{policy}: {chosen}");
    assert!(!io["why"].as_str().unwrap().is_empty());
    // Counts of the other core may be those of a moment ago.
    let in_flight = paths.iter().map(|path| path["in_flight"].as_u64().unwrap());
    assert!(in_flight.sum::<u64>() <= 2 * 4, "two cores, four readers");
    let number = |key: &str| chosen[key].as_u64().unwrap();
    if policy == "soonest" && chosen["known"] == true {
        let parts = ["base_ns", "wait_ns", "tail_ns", "price_ns", "penalty_ns"].map(number);
        assert_eq!(number("cost_ns"), parts.iter().sum::<u64>(), "{io}");
        let error = io["latency_ns"].as_i64().unwrap() - io["expected_ns"].as_i64().unwrap();
        assert_eq!(io["error_ns"].as_i64(), Some(error));
    }
}

#[test]
fn live_io_is_explained_under_every_policy() {
    let Some(pair) = Pair::start() else { return };
    let _readers = pair.readers();
    for (policy, key) in POLICIES {
        pair.json(&["policy", "set", "v0", policy]);
        let told = pair.json(&["explain", "v0", "--count", "12", "--wait", "60s", "--reads"]);
        assert_eq!(
            (&told["volume"], &told["policy"]),
            (&"v0".into(), &policy.into())
        );
        let uris: Vec<_> = told["paths"].as_array().unwrap().iter().collect();
        assert_eq!(uris.len(), 2);
        for (path, uri) in pair.uris.iter().enumerate() {
            assert_eq!(
                (&uris[path]["path"], &uris[path]["uri"]),
                (&path.into(), &(*uri).clone().into())
            );
        }
        let ios = told["ios"].as_array().unwrap();
        assert_eq!(ios.len(), 12, "more than one answer's");
        ios.iter().for_each(|io| check_io(io, policy, key));
        let text = pair.ask(&["explain", "v0", "-n", "2", "-w", "60s"]);
        let text = words(&text.stdout);
        assert!(text.starts_with(&format!("v0: {policy}\n")), "{text}");
        for wanted in ["\n1. read, 4 KiB at ", "\n2. read, ", "took", "   * "] {
            assert!(text.contains(wanted), "{text}");
        }
        let wide = text.lines().find(|line| line.chars().count() > 80);
        assert!(wide.is_none_or(|line| line.contains("nqn.")), "{text}");
    }
}

/// Of the next I/Os: the paths that they took, and the throughput of each path.
fn taken(pair: &Pair) -> (Vec<u64>, Vec<u64>) {
    taken_by(pair, "throughput")
}

/// The same with another value of each path.
fn taken_by(pair: &Pair, key: &str) -> (Vec<u64>, Vec<u64>) {
    let told = pair.json(&["explain", "v0", "-n", "4", "-w", "60s"]);
    let ios = told["ios"].as_array().unwrap();
    let paths = ios[0]["paths"].as_array().unwrap().iter();
    (
        ios.iter()
            .map(|io| io["chosen"].as_u64().unwrap())
            .collect(),
        paths.map(|path| path[key].as_u64().unwrap()).collect(),
    )
}

#[test]
fn numa_goes_by_distances_that_a_reload_changes() {
    let Some(pair) = Pair::start_with(["distance = 2", "distance = 1"]) else {
        return;
    };
    pair.json(&["policy", "set", "v0", "numa"]);
    let _readers = pair.readers();
    assert_eq!(taken_by(&pair, "distance"), (vec![1; 4], vec![2, 1]));
    let keys = ["distance = 2", "distance = 3"];
    configure(pair.directory.path(), &pair.uris, keys);
    let changed = pair.json(&["reload"])["changed"].clone();
    let changed = changed.as_str().unwrap();
    assert!(changed.contains(": distance 3"), "{changed}");
    wait_until(|| (taken_by(&pair, "distance") == (vec![0; 4], vec![2, 3])).then_some(()));
}

#[test]
fn service_time_goes_by_the_throughput_that_the_user_gave_each_path() {
    let Some(pair) = Pair::start_with(["throughput = 9", ""]) else {
        return;
    };
    pair.json(&["policy", "set", "v0", "service-time"]);
    let _readers = pair.readers();
    // Four reads in flight of a path that does nine for one of the other.
    assert_eq!(taken(&pair), (vec![0; 4], vec![9, 1]));
    let stat = pair.json(&["stat"]);
    let shown = stat["volumes"][0]["paths"].as_array().unwrap().iter();
    let shown: Vec<_> = shown.map(|path| path["throughput"].clone()).collect();
    assert_eq!(shown, [9, 1]);
    let text = words(&pair.ask(&["stat"]).stdout);
    assert_eq!(text.matches("throughput 9").count(), 1, "{text}");
    let subsystems = pair.json(&["list-subsys"]);
    let subsystem = &subsystems[0]["Subsystems"][0];
    assert_eq!(subsystem["Paths"][0]["Throughput"], 9);
    for (key, value) in [("Model", "braid target"), ("Type", "nvm")] {
        assert_eq!(subsystem[key], value, "{subsystem}");
    }
    let path = &subsystem["Paths"][0];
    assert!(path["Cntlid"].as_u64() > Some(0), "{subsystem}");
    let address = path["Address"].as_str().unwrap();
    assert!(
        address.starts_with("traddr=127.0.0.1,trsvcid="),
        "{subsystem}"
    );
    // 0: only where no other is usable. It changes while it runs.
    configure(
        pair.directory.path(),
        &pair.uris,
        ["throughput = 0", "throughput = 3"],
    );
    let changed = pair.json(&["reload"])["changed"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        changed.contains("throughput 0") && changed.contains("throughput 3"),
        "{changed}"
    );
    wait_until(|| (taken(&pair) == (vec![1; 4], vec![0, 3])).then_some(()));
    configure(pair.directory.path(), &pair.uris, ["throughput = 101", ""]);
    let refused = pair.ask(&["reload"]);
    assert_eq!(refused.status.code(), Some(2));
    let why = words(&refused.stderr);
    assert!(
        why.contains("throughput 101 is not a number from 0 to 100"),
        "{why}"
    );
    assert_eq!(taken(&pair).1, [0, 3], "nothing was changed");
    let wrong = ["path", "add", "v0", "mem:1MiB?throughput=200"];
    assert_eq!(pair.ask(&wrong).status.code(), Some(2));
}

#[test]
fn a_path_that_is_set_aside_is_shown_with_the_reason() {
    let Some(pair) = Pair::start() else { return };
    let _readers = pair.readers();
    pair.json(&["path", "drain", "v0", "1"]);
    let told = pair.json(&["explain", "v0", "-n", "1", "-w", "60s"]);
    let io = &told["ios"][0];
    assert_eq!((&io["chosen"], &io["why"]), (&0.into(), &"only".into()));
    let aside = &io["paths"][1];
    assert_eq!(aside["usable"], false);
    let why = "it gets nothing new; restore it";
    assert_eq!(aside["why_not"], why);
    let text = words(&pair.ask(&["explain", "v0", "-n", "1", "-w", "60s"]).stdout);
    assert!(text.contains(why), "{text}");
}

#[test]
fn without_such_io_it_says_so_and_one_asks_at_a_time() {
    let Some(pair) = Pair::start() else { return };
    let idle = pair.ask(&["explain", "v0", "--wait", "100ms"]);
    assert_eq!(idle.status.code(), Some(1));
    let said = words(&idle.stderr);
    assert!(
        said.contains("v0: no such I/O came within 100 ms"),
        "{said}"
    );
    assert_eq!(words(&idle.stdout), "");
    let idle = pair.ask(&["explain", "v0", "--wait", "100ms", "-o", "json"]);
    assert_eq!(idle.status.code(), Some(1));
    let told: Value = serde_json::from_slice(&idle.stdout).unwrap();
    assert_eq!(told["ios"].as_array().map(Vec::len), Some(0));
    let unknown = pair.ask(&["explain", "v1"]);
    assert_eq!(unknown.status.code(), Some(2));
    let said = words(&unknown.stderr);
    assert!(
        said.contains("there is no volume \"v1\", only v0"),
        "{said}"
    );
    // Reads only, and large ones: the readers' I/O is not meant.
    let readers = pair.readers();
    let none = ["explain", "v0", "--min-size", "8k", "--wait", "60s"];
    let socket = pair.path("c.sock");
    let first = std::thread::spawn(move || {
        loop {
            let output = ask(&socket, &none);
            if !words(&output.stderr).contains("somebody else") {
                return output;
            }
        }
    });
    wait_until(|| {
        let second = pair.ask(&["explain", "v0", "-n", "1"]);
        words(&second.stderr)
            .contains("somebody else")
            .then_some(())
    });
    assert_eq!(
        pair.json(&["list"])["volumes"][0]["name"],
        "v0",
        "others are answered"
    );
    drop(readers);
    drop(pair);
    let first = first.join().unwrap();
    assert_eq!(
        first.status.code(),
        Some(1),
        "the engine has ended: {first:?}"
    );
}

#[test]
fn what_cannot_be_asked_for_is_a_usage_error() {
    let nobody = Path::new("/nonexistent/c.sock");
    for wrong in [
        &["--count", "0"][..],
        &["--count", "1001"],
        &["--wait", "0"],
        &["--wait", "61s"],
        &["--wait", "5"],
        &["--reads", "--writes"],
        &["--min-size", "4GiB"],
    ] {
        let output = ask(nobody, &[&["explain", "v0"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
    assert_eq!(ask(nobody, &["explain", "v0"]).status.code(), Some(1));
}

/// An engine that answers everything with this.
fn odd_engine(directory: &Path, answer: &'static str) -> PathBuf {
    let path = directory.join("odd.sock");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        assert!(line.contains("\"explain\""), "{line}");
        let _ = (&stream).write_all(format!("{answer}\n").as_bytes());
    });
    path
}

#[test]
fn an_engine_that_cannot_explain_or_answers_nonsense_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    for (answer, wanted) in [
        (
            concat!(
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"#,
                r#""message":"there is no method \"explain\""}}"#
            ),
            "older version",
        ),
        (r#"{"jsonrpc":"2.0","id":1,"result":7}"#, "explains nothing"),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":[]}"#,
            "explains nothing",
        ),
        (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, "no such I/O"),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":{"ios":7,"paths":{}}}"#,
            "no such I/O",
        ),
    ] {
        for format in ["json", "text"] {
            let socket = odd_engine(directory.path(), answer);
            let output = ask(&socket, &["explain", "v0", "-o", format]);
            assert_eq!(output.status.code(), Some(1), "{answer}");
            let said = words(&output.stderr);
            assert!(said.contains(wanted), "{said}");
        }
    }
    let strange = concat!(
        r#"{"jsonrpc":"2.0","id":1,"result":{"ios":[{"paths":[{"usable":true}]},"#,
        r#"{"paths":7,"chosen":-1},7]}}"#
    );
    let output = ask(
        &odd_engine(directory.path(), strange),
        &["explain", "v0", "-n", "1"],
    );
    assert!(
        output.status.code().is_some_and(|code| code < 3),
        "{output:?}"
    );
}
