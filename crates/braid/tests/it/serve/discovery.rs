//! Discovery with real processes: what `discover` shows, paths that come and go by themselves under
//! load, `connect-all`.
mod lies;
mod shown;
mod told;
mod twice;

use crate::serve::no_io_uring;
use crate::serve::process;
use crate::serve::process::{Client, Process, engine, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A target and the URIs of its ports.
struct Target {
    process: Process,
    uris: Vec<String>,
    socket: String,
}

impl Target {
    /// With these ports (behind `--listen`); `None`: there is no io_uring here.
    fn start(directory: &Path, name: &str, ports: &[&str]) -> Option<Self> {
        let socket = directory.join(format!("{name}.sock"));
        let socket = socket.to_str().unwrap().to_owned();
        let nqn = nqn(name);
        let mut words = vec![
            "target", "--mem", "64MiB", "--nqn", &nqn, "--socket", &socket,
        ];
        for port in ports {
            words.extend(["--listen", port]);
        }
        let mut process = Process::start(directory, &words);
        let mut uris = Vec::new();
        for number in 1..=ports.len() {
            let Some(line) = process.says(&format!("port {number}: ")) else {
                process.notes("io_uring");
                no_io_uring::skip(&process.seen);
                return None;
            };
            uris.push(line.split_whitespace().nth(2).unwrap().to_owned());
        }
        Some(Self {
            process,
            uris,
            socket,
        })
    }

    /// Address of a port, from 1.
    fn address(&self, port: usize) -> &str {
        let rest = self.uris[port - 1].strip_prefix("nvme-tcp://").unwrap();
        rest.split('/').next().unwrap()
    }

    fn say(&self, words: &[&str]) {
        let output = braid(&[&["target"], words, &["--socket", &self.socket]].concat());
        assert!(output.status.success(), "{words:?}: {output:?}");
    }

    fn offer(&self, port: &str, what: &str) {
        self.say(&["set", "--port", port, &format!("offer={what}")]);
    }
}

fn nqn(name: &str) -> String {
    format!("nqn.2026-01.org.braid:{name}")
}

fn braid(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    let identity = std::env::temp_dir().join("braid-discovery-test");
    command.env("XDG_STATE_HOME", identity);
    command.args(words).output().unwrap()
}

fn json(words: &[&str]) -> Value {
    let output = braid(&[words, &["-o", "json"]].concat());
    assert!(output.status.success(), "{words:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Exit code, and what standard error says.
fn failure(words: &[&str]) -> (i32, String) {
    let output = braid(words);
    let text = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), text)
}

/// An engine whose volume v0 is exported as v0.sock.
struct Rig {
    directory: tempfile::TempDir,
    engine: Option<Process>,
}

impl Rig {
    fn new(directory: tempfile::TempDir, keys: &str) -> Self {
        let rig = Self {
            directory,
            engine: None,
        };
        rig.configure(keys);
        rig
    }

    fn root(&self) -> &Path {
        self.directory.path()
    }

    /// `keys`: what stands before the export of the last volume.
    fn configure(&self, keys: &str) {
        let quick = "io_timeout = \"5s\"\nkeep_alive_tmo = \"1s\"\nconnect_timeout = \"5s\"\n";
        let nbd = self.root().join("v0.sock");
        let export = format!("[[volume.export]]\nnbd = \"unix:{}\"\n", nbd.display());
        std::fs::write(self.root().join("b.toml"), format!("{quick}{keys}{export}")).unwrap();
    }

    fn start(&mut self) {
        self.engine = Some(engine(self.root()));
    }

    fn stop(&mut self) {
        let mut engine = self.engine.take().unwrap();
        engine.signal(Signal::TERM);
        assert!(engine.ended().success(), "{}", engine.seen);
    }

    fn notes(&mut self, what: &str) -> String {
        self.engine.as_mut().unwrap().notes(what)
    }

    fn words<'a>(&self, words: &[&'a str], socket: &'a str) -> Vec<&'a str> {
        [words, &["--socket", socket]].concat()
    }

    fn ask(&self, words: &[&str]) -> Value {
        let socket = self.root().join("c.sock");
        json(&self.words(words, socket.to_str().unwrap()))
    }

    fn refusal(&self, words: &[&str]) -> String {
        let socket = self.root().join("c.sock");
        let (code, text) = failure(&self.words(words, socket.to_str().unwrap()));
        assert_eq!(code, 1, "{text}");
        text
    }

    /// URI, state and origin of each path of v0.
    fn paths(&self) -> Vec<[String; 3]> {
        let stat = self.ask(&["stat"]);
        let paths = stat["volumes"][0]["paths"].as_array().unwrap().iter();
        let words = |path: &Value| {
            ["uri", "state", "origin"].map(|key| path[key].as_str().unwrap().to_owned())
        };
        paths.map(words).collect()
    }

    fn reaches(&self, wanted: &[[&str; 3]]) {
        let mut last = Vec::new();
        let end = std::time::Instant::now() + process::SOON;
        while std::time::Instant::now() < end {
            last = self.paths();
            last.sort();
            let mut sorted = wanted.to_vec();
            sorted.sort_unstable();
            if last == sorted {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("{last:?} instead of {wanted:?}");
    }

    /// Writes and reads at v0 until it is stopped; how many were good.
    fn load(&self) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, socket) = (stop.clone(), self.root().join("v0.sock"));
        let work = move || {
            let mut client = Client::open(&socket);
            let mut done = 0_u64;
            while !told.load(Ordering::Relaxed) {
                let (offset, fill) = (done % 64 * 4096, done as u8);
                assert_eq!(client.write(offset, fill), 0);
                assert_eq!(client.read(offset), vec![fill; 4096]);
                done += 1;
            }
            done
        };
        Load {
            stop,
            thread: std::thread::spawn(work),
        }
    }
}

struct Load {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u64>,
}

impl Load {
    fn ended(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// A target with two ports, the second withdrawn, and one for discovery alone.
const PORTS: [&str; 3] = [
    "127.0.0.1:0",
    "127.0.0.1:0,offer=withdrawn",
    "127.0.0.1:0,offer=discovery",
];

fn discovered(target: &Target, name: &str, keys: &str) -> String {
    format!(
        "discovery_keep_alive_tmo = \"2s\"\n[[discovery]]\nuri = \"{}\"\n\
         [[volume]]\nname = \"v0\"\nsubsystem = \"{}\"\nquiesce_time = \"100ms\"\n{keys}",
        target.uris[2],
        nqn(name)
    )
}

#[test]
fn paths_come_and_go_by_themselves_under_load_and_the_last_one_stays() {
    let directory = tempfile::tempdir().unwrap();
    let Some(target) = Target::start(directory.path(), "d", &PORTS) else {
        return;
    };
    let keys = discovered(&target, "d", "gone = \"remove\"\n");
    let mut rig = Rig::new(directory, &keys);
    rig.start();
    let [one, two] = [&target.uris[0], &target.uris[1]].map(String::as_str);
    rig.reaches(&[[one, "live", "discovery"]]);
    let load = rig.load();
    target.offer("2", "subsystem");
    rig.notes(&format!(
        "path {two}: discovered by {}, in use",
        target.uris[2]
    ));
    rig.reaches(&[[one, "live", "discovery"], [two, "live", "discovery"]]);
    let why = rig.refusal(&["path", "remove", "v0", two]);
    assert!(why.contains("tells of it"), "{why}");
    target.offer("1", "withdrawn");
    rig.notes("not told any more; removed");
    rig.reaches(&[[two, "live", "discovery"]]);
    target.offer("2", "withdrawn");
    rig.notes("no other path is usable");
    rig.reaches(&[[two, "live", "discovery"]]);
    // When another one comes, it may go at last.
    target.offer("1", "subsystem");
    rig.reaches(&[[one, "live", "discovery"]]);
    let stat = rig.ask(&["stat"]);
    assert_eq!(stat["discovery"][0]["state"], "connected", "{stat}");
    assert!(load.ended() > 0);
    rig.stop();
}

#[test]
fn a_path_that_is_not_told_any_more_stays_while_it_works() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut target) = Target::start(directory.path(), "k", &PORTS) else {
        return;
    };
    target.offer("2", "subsystem");
    let mut rig = Rig::new(directory, &discovered(&target, "k", ""));
    rig.start();
    let [one, two] = [target.uris[0].clone(), target.uris[1].clone()];
    let both = [[&*one, "live", "discovery"], [&*two, "live", "discovery"]];
    rig.reaches(&both);
    target.offer("2", "withdrawn");
    rig.notes("it stays while it works");
    rig.reaches(&both);
    let load = rig.load();
    target.say(&["drop", "--port", "2"]);
    rig.notes("not told any more; removed");
    rig.reaches(&[[&one, "live", "discovery"]]);
    assert!(load.ended() > 0);
    // A discovery controller that is gone takes no path with it.
    target.process.signal(Signal::KILL);
    target.process.ended();
    rig.notes("discovery: ");
    rig.reaches(&[[&one, "reconnecting", "discovery"]]);
    rig.engine.take().unwrap().signal(Signal::KILL);
}

/// Also where nobody says that its offers are gone before it is left.
#[test]
fn what_a_controller_told_goes_with_the_referral_to_it_and_comes_back_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let start = |name| Target::start(directory.path(), name, &PORTS);
    let (Some(one), Some(other)) = (start("near"), start("far")) else {
        return;
    };
    other.offer("2", "subsystem");
    one.say(&["referrals", other.address(3)]);
    let keys = discovered(&other, "far", "gone = \"remove\"\n");
    let mut rig = Rig::new(directory, &keys.replace(&other.uris[2], &one.uris[2]));
    rig.start();
    let [first, second] = [0, 1].map(|port| [&*other.uris[port], "live", "discovery"]);
    rig.reaches(&[first, second]);
    one.say(&["referrals"]);
    let line = rig.notes("not told any more; removed");
    // The last one stays.
    let left = match line.contains(first[0]) {
        true => second,
        false => first,
    };
    rig.reaches(&[left]);
    one.say(&["referrals", other.address(3)]);
    rig.reaches(&[first, second]);
    let load = rig.load();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(load.ended() > 0);
    rig.reaches(&[first, second]);
    let seen = rig.engine.as_ref().unwrap().seen.clone();
    assert_eq!(seen.matches("told any more; removed").count(), 1, "{seen}");
    rig.stop();
}

/// Its controller may have writes that were not flushed: whoever asks for logs only would miss it.
#[test]
fn t13_after_a_kill_a_path_is_there_that_is_told_of_later() {
    let directory = tempfile::tempdir().unwrap();
    let Some(target) = Target::start(directory.path(), "b", &PORTS) else {
        return;
    };
    target.offer("2", "subsystem");
    let keys = "gone = \"remove\"\nwrite_failover = \"immediate\"\n";
    let mut rig = Rig::new(directory, &discovered(&target, "b", keys));
    rig.start();
    let [one, two] = [&target.uris[0], &target.uris[1]].map(String::as_str);
    let both = [[one, "live", "discovery"], [two, "live", "discovery"]];
    rig.reaches(&both);
    let told_by = |rig: &Rig| {
        let stat = rig.ask(&["stat"]);
        let paths = stat["volumes"][0]["paths"].as_array().unwrap().clone();
        let mut all: Vec<_> = paths.iter().map(|it| it["told_by"].clone()).collect();
        all.sort_by_key(ToString::to_string);
        all
    };
    let kill = |rig: &mut Rig| {
        let mut engine = rig.engine.take().unwrap();
        engine.signal(Signal::KILL);
        engine.ended();
    };
    // Where all was flushed, nothing is remembered; nobody answers for discovery.
    let told = discovered(&target, "b", keys);
    let untold = told.replacen(&target.uris[2], "nvme-tcp://127.0.0.1:1", 1);
    let mut client = Client::open(&rig.root().join("v0.sock"));
    assert_eq!((client.write(0, 6), client.flush()), (0, 0));
    drop(client);
    rig.stop();
    rig.configure(&untold);
    let mut engine = process::begun(rig.root());
    engine.notes("discovery: ");
    rig.reaches(&[]);
    engine.signal(Signal::TERM);
    assert!(engine.ended().success(), "{}", engine.seen);
    // And where it was killed, all that it had.
    rig.configure(&told);
    rig.start();
    rig.reaches(&both);
    kill(&mut rig);
    rig.configure(&untold);
    rig.start();
    rig.notes("an earlier engine used it");
    rig.reaches(&both);
    assert_eq!(told_by(&rig), ["an earlier engine", "an earlier engine"]);
    assert_eq!(Client::open(&rig.root().join("v0.sock")).write(0, 7), 0);
    kill(&mut rig);
    // One is told again, the other is not: but somebody who is referred to may tell of it.
    target.offer("1", "withdrawn");
    target.say(&["referrals", "127.0.0.1:1"]);
    rig.configure(&told);
    rig.start();
    let teller = target.uris[2].as_str();
    wait_until(|| (told_by(&rig) == ["an earlier engine", teller]).then_some(()));
    rig.reaches(&[
        [one, "reconnecting", "discovery"],
        [two, "live", "discovery"],
    ]);
    // No controller announces it: it leaves.
    target.say(&["referrals"]);
    rig.reaches(&[[two, "live", "discovery"]]);
    assert_eq!(told_by(&rig), [teller]);
    rig.stop();
}

#[test]
fn connect_all_adds_what_is_told_and_lists_what_no_volume_has() {
    let directory = tempfile::tempdir().unwrap();
    let start = |name| Target::start(directory.path(), name, &PORTS);
    let (Some(one), Some(other)) = (start("all"), start("x")) else {
        return;
    };
    one.offer("2", "subsystem");
    one.say(&["referrals", other.address(3)]);
    let keys = format!(
        "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"{}\"\n",
        one.uris[0]
    );
    let mut rig = Rig::new(directory, &keys);
    rig.start();
    let answer = rig.ask(&["connect-all", &one.uris[2]]);
    let states = answer["paths"].as_array().unwrap().iter();
    let mut states: Vec<_> = states
        .map(|it| (it["uri"].clone(), it["state"].clone()))
        .collect();
    states.sort_by_key(|it| it.0.to_string());
    let state = |uri: &str, state: &str| (Value::from(uri), Value::from(state));
    let mut wanted = [state(&one.uris[0], "there"), state(&one.uris[1], "added")];
    wanted.sort_by_key(|it| it.0.to_string());
    assert_eq!(states, wanted, "{answer}");
    assert_eq!(answer["others"][0]["nqn"], nqn("x"));
    assert_eq!(answer["others"][0]["uris"][0], other.uris[0]);
    let both = [
        [&*one.uris[0], "live", "config"],
        [&*one.uris[1], "live", "control"],
    ];
    rig.reaches(&both);
    rig.stop();
    rig.start();
    rig.reaches(&both);
    // One by one, and what can't be is refused by name.
    rig.ask(&["path", "remove", "v0", &one.uris[1]]);
    let (host, port) = one.address(2).rsplit_once(':').unwrap();
    rig.ask(&[
        "connect",
        "-t",
        "tcp",
        "-a",
        host,
        "-s",
        port,
        "-n",
        &nqn("all"),
    ]);
    rig.reaches(&both);
    let why = rig.refusal(&["connect-all", &one.uris[0]]);
    assert!(why.contains("no discovery controller"), "{why}");
    rig.stop();
}

#[test]
fn a_reload_begins_and_ends_discovery() {
    let directory = tempfile::tempdir().unwrap();
    let Some(target) = Target::start(directory.path(), "r", &PORTS) else {
        return;
    };
    target.offer("2", "subsystem");
    let [one, two] = [&target.uris[0], &target.uris[1]].map(String::as_str);
    let fixed = format!("[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"{one}\"\n");
    let mut rig = Rig::new(directory, &fixed);
    rig.start();
    rig.reaches(&[[one, "live", "config"]]);
    let path = format!("[[volume.path]]\nuri = \"{one}\"\n");
    let keys = discovered(&target, "r", &path);
    let keys = keys.replace("discovery_keep_alive_tmo = \"2s\"\n", "");
    rig.configure(&keys.replace("quiesce_time = \"100ms\"\n", ""));
    let changed = rig.ask(&["reload"]);
    let begun = format!("discovery of {} begun", target.uris[2]);
    assert!(
        changed["changed"].as_str().unwrap().contains(&begun),
        "{changed}"
    );
    let both = [[one, "live", "config"], [two, "live", "discovery"]];
    rig.reaches(&both);
    assert_eq!(rig.ask(&["reload"])["changed"], "no difference");
    rig.reaches(&both);
    // Discovered paths stay, as those that were added by hand do.
    rig.configure(&fixed);
    let changed = rig.ask(&["reload"]);
    assert!(
        changed["changed"].as_str().unwrap().contains(" ended"),
        "{changed}"
    );
    rig.reaches(&both);
    rig.ask(&["path", "remove", "v0", two]);
    rig.reaches(&[[one, "live", "config"]]);
    wait_until(|| {
        rig.ask(&["stat"])["discovery"]
            .as_array()
            .unwrap()
            .is_empty()
            .then_some(())
    });
    rig.stop();
}

#[test]
fn a_discovery_controller_whose_name_is_unknown_keeps_no_volume_from_its_paths() {
    let directory = tempfile::tempdir().unwrap();
    let Some(target) = Target::start(directory.path(), "u", &PORTS) else {
        return;
    };
    let one = target.uris[0].as_str();
    let unknown = "[[discovery]]\nuri = \"nvme-tcp://nowhere.invalid:8009\"\n";
    let fixed = format!("[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"{one}\"\n");
    let mut rig = Rig::new(directory, &format!("{unknown}{fixed}"));
    rig.start();
    rig.notes("it is tried again");
    rig.reaches(&[[one, "live", "config"]]);
    let shown = rig.ask(&["stat"])["discovery"][0].clone();
    assert_eq!(shown["state"], "lost", "{shown}");
    assert!(
        shown["uri"].as_str().unwrap().contains("nowhere.invalid"),
        "{shown}"
    );
    // A caller that asks for it now is told that it can't be; paths that are there stay.
    let other = unknown.replace("nowhere", "elsewhere");
    rig.configure(&format!("{unknown}{other}{fixed}"));
    let why = rig.refusal(&["reload"]);
    assert!(why.contains("elsewhere.invalid"), "{why}");
    rig.configure(&fixed);
    rig.ask(&["reload"]);
    assert_eq!(rig.ask(&["stat"])["discovery"], serde_json::json!([]));
    rig.stop();
}
