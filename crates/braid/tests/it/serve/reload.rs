//! Volumes of a running engine that come and go with its configuration.
mod choices;
mod cores;
mod race;
mod rename;
mod state;

use crate::serve::nbd;
use crate::serve::process::{Client, Process, SOON, at_once, engine, two_ports, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Keys that make dead targets known soon: writes are held for 1.5 s.
const QUICK: &str = "io_timeout = \"2s\"\nkeep_alive_tmo = \"500ms\"\nconnect_timeout = \"5s\"\n";
const QUIESCED: &str = "quiesce_time = \"500ms\"\n";

/// A volume of a configuration: name, paths, other keys. Its export is the socket of its name.
type Volume<'a> = (&'a str, &'a [&'a str], &'a str);

/// An engine whose configuration changes.
struct Rig {
    directory: tempfile::TempDir,
    keys: String,
    engine: Option<Process>,
}

impl Rig {
    fn new(directory: tempfile::TempDir, keys: &str) -> Self {
        Self {
            directory,
            keys: keys.to_owned(),
            engine: None,
        }
    }

    fn root(&self) -> &Path {
        self.directory.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    fn configure(&self, volumes: &[Volume]) {
        let mut text = self.keys.clone();
        for (name, paths, keys) in volumes {
            let paths = paths.iter();
            let paths = paths.map(|uri| format!("[[volume.path]]\nuri = \"{uri}\"\n"));
            let socket = self.path(&format!("{name}.sock"));
            text += &format!(
                "[[volume]]\nname = \"{name}\"\n{keys}{}[[volume.export]]\nnbd = \"unix:{}\"\n",
                paths.collect::<String>(),
                socket.display()
            );
        }
        std::fs::write(self.path("b.toml"), text).unwrap();
    }

    fn start(&mut self, volumes: &[Volume]) {
        self.configure(volumes);
        self.engine = Some(engine(self.root()));
    }

    fn engine(&mut self) -> &mut Process {
        self.engine.as_mut().unwrap()
    }

    /// By a signal; its exit code.
    fn end(&mut self, signal: Signal) -> Option<i32> {
        let mut engine = self.engine.take().unwrap();
        engine.signal(signal);
        engine.ended().code()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.args(words).args(["-o", "json", "--socket"]);
        command.arg(self.path("c.sock"));
        command
    }

    fn ask(&self, words: &[&str]) -> Value {
        let output = self.command(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Why a verb was refused.
    fn refusal(&self, words: &[&str]) -> String {
        refused(&self.command(words).output().unwrap())
    }

    fn reload(&self, volumes: &[Volume]) -> String {
        self.configure(volumes);
        let answer = self.ask(&["reload"]);
        answer["changed"].as_str().unwrap().to_owned()
    }

    fn refused_reload(&self, volumes: &[Volume]) -> String {
        self.configure(volumes);
        let why = self.refusal(&["reload"]);
        assert!(why.contains("nothing was changed"), "{why}");
        why
    }

    fn names(&self) -> Vec<String> {
        let list = self.ask(&["list"]);
        let volumes = list["volumes"].as_array().unwrap().iter();
        volumes
            .map(|volume| volume["name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// State of one volume in `stat`.
    fn stat(&self, name: &str) -> Value {
        let stat = self.ask(&["stat"]);
        let mut volumes = stat["volumes"].as_array().unwrap().iter();
        volumes.find(|it| it["name"] == name).unwrap().clone()
    }

    /// NQNs of all subsystems.
    fn nqns(&self) -> Vec<String> {
        let answer = self.ask(&["list-subsys"]);
        let all = answer[0]["Subsystems"].as_array().unwrap().iter();
        all.map(|it| it["NQN"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The record of this engine, or the first of the files of a kind; what it holds.
    fn kept(&self, kind: &str) -> (PathBuf, Value) {
        let mut all = self.files(kind);
        match all.is_empty() {
            true => Default::default(), // nothing was kept yet
            false => all.remove(0),
        }
    }

    /// Content of marks, by the names of their volumes.
    fn marks(&self) -> Value {
        let all = self.files("volumes/mark").into_iter();
        let named = all.map(|(_, it)| {
            let name = it["of"]["volume"].as_str().unwrap().to_owned();
            (name, it["holds"].clone())
        });
        Value::Object(named.collect())
    }

    fn files(&self, kind: &str) -> Vec<(PathBuf, Value)> {
        let kind = self.path("state/braid").join(kind);
        let all = std::fs::read_dir(kind.parent().unwrap())
            .into_iter()
            .flatten();
        let mut all: Vec<PathBuf> = all.map(|entry| entry.unwrap().path()).collect();
        all.retain(|path| {
            let start = path.to_str().unwrap().starts_with(kind.to_str().unwrap());
            start && path.extension().is_some_and(|it| it == "json")
        });
        all.sort();
        // One may be removed just now.
        let text = |path: &PathBuf| std::fs::read_to_string(path).ok();
        let read = all.into_iter().filter_map(|it| {
            let text = text(&it)?;
            Some((it, serde_json::from_str(&text).unwrap()))
        });
        read.collect()
    }

    fn client(&self, name: &str) -> Client {
        let socket = self.path(&format!("{name}.sock"));
        Client(nbd::open_named(&socket, name, SOON))
    }

    /// Writes and reads back on another thread until told to stop: how often.
    fn load(&self, name: &str) -> Load {
        self.load_from(name, 0)
    }

    /// The same on 64 blocks from this one on, which are no other one's.
    fn load_from(&self, name: &str, first: u64) -> Load {
        let mut client = self.client(name);
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut rounds = 0_u64;
            while !over.load(Ordering::Relaxed) {
                let (at, fill) = ((first + rounds % 64) * 4096, rounds as u8);
                assert_eq!(client.write(at, fill), 0);
                assert!(client.read(at) == [fill; 4096], "round {rounds}");
                rounds += 1;
            }
            rounds
        });
        Load { stop, thread }
    }
}

struct Load {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u64>,
}

impl Load {
    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.thread.join().unwrap() > 0);
    }
}

fn refused(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

const V0: Volume = ("v0", &["mem:16MiB"], "");

#[test]
fn volumes_come_and_go_under_load_and_are_shown_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, two])) = two_ports(directory.path(), "t") else {
        return;
    };
    let mut rig = Rig::new(directory, QUICK);
    rig.start(&[V0]);
    let load = rig.load("v0");
    let paths = [one.as_str(), two.as_str()];
    let v1: Volume = ("v1", &paths, "");
    for _ in 0..2 {
        let changed = rig.reload(&[v1, V0]);
        assert!(changed.contains("added volume v1"), "{changed}");
        assert_eq!(rig.reload(&[v1, V0]), "no difference");
        assert_eq!(rig.names(), ["v1", "v0"], "in the order of the file");
        assert_eq!(rig.nqns(), ["nqn.2026-01.org.braid:t"]);
        assert_eq!(rig.ask(&["check", "v1"])["state"], "ok");
        let mut client = rig.client("v1");
        assert_eq!(client.write(0, 9), 0);
        assert!(client.read(0) == [9; 4096]);
        assert_eq!(rig.stat("v1")["exports"][0]["clients"], 1);
        // All that is done with a volume of the start.
        rig.ask(&["path", "remove", "v1", &two]);
        rig.ask(&["path", "add", "v1", &two]);
        let export = format!("unix:{}", rig.path("more.sock").display());
        rig.ask(&["export", "add", "v1", &export]);
        assert!(rig.path("more.sock").exists());
        let why = rig.refused_reload(&[V0]);
        assert!(why.contains("v1") && why.contains("connected: 1"), "{why}");
        assert!(client.read(0) == [9; 4096], "nothing has happened to it");
        drop(client);
        wait_until(|| (rig.stat("v1")["exports"][0]["clients"] == 0).then_some(()));
        let changed = rig.reload(&[V0]);
        assert!(changed.contains("removed volume v1"), "{changed}");
        assert_eq!(rig.names(), ["v0"]);
        assert!(rig.nqns().is_empty());
        assert!(rig.refusal(&["policy", "show", "v1"]).contains("only v0"));
        for name in ["v1.sock", "more.sock"] {
            assert!(!rig.path(name).exists(), "{name}");
        }
        assert!(rig.marks().get("v1").is_none(), "it left cleanly");
    }
    load.end();
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

#[test]
fn a_reload_with_one_bad_volume_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, _])) = two_ports(directory.path(), "t") else {
        return;
    };
    let Some((_other, [foreign, _])) = two_ports(directory.path(), "o") else {
        return;
    };
    let Some((_third, [good, _])) = two_ports(directory.path(), "g") else {
        return;
    };
    let mut rig = Rig::new(directory, QUICK);
    rig.start(&[V0]);
    let load = rig.load("v0");
    let dead = "nvme-tcp://127.0.0.1:1/nqn.2026-01.org.braid:t";
    let export = "[[volume.export]]\nnbd = \"unix:/proc/no/such.sock\"\n";
    let bad: [(&[&str], &str, &str); 5] = [
        (&[dead], "", "refused"),
        (&["file:/proc/no/such"], "", "file:/proc/no/such"),
        (&[&foreign, &one], "", "refused beside"),
        (&["mem:1MiB", "null:1MiB"], "", "refused beside"),
        (&["mem:1MiB"], export, "such.sock"),
    ];
    for (paths, keys, why) in bad {
        let v1: Volume = ("v1", &[&good], "");
        let said = match keys {
            "" => rig.refused_reload(&[V0, v1, ("v2", paths, "")]),
            keys => {
                rig.configure(&[V0, v1, ("v2", paths, "")]);
                let file = rig.path("b.toml");
                let text = std::fs::read_to_string(&file).unwrap();
                std::fs::write(file, text + keys).unwrap();
                rig.refusal(&["reload"])
            }
        };
        assert!(said.contains("v2") && said.contains(why), "{said}");
        assert_eq!(rig.names(), ["v0"]);
        for name in ["v1.sock", "v2.sock"] {
            assert!(!rig.path(name).exists(), "{name}");
        }
        let marks = rig.marks();
        assert!(marks.get("v1").is_none() && marks.get("v2").is_none());
    }
    let changed = rig.reload(&[V0, ("v2", &[&one, dead], "")]);
    assert!(changed.contains("added volume v2"), "{changed}");
    assert_eq!(rig.client("v2").write(0, 1), 0, "one path is enough");
    let states = &rig.stat("v2")["paths"];
    assert_eq!(states[0]["state"], "live");
    assert_ne!(states[1]["state"], "live");
    load.end();
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

#[test]
fn what_cannot_leave_at_once_is_waited_for() {
    at_once(&[
        volume_with_clients_leaves_by_force_only,
        path_whose_target_hangs_leaves,
    ]);
}

/// Its clients are told.
fn volume_with_clients_leaves_by_force_only() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, _])) = two_ports(directory.path(), "t") else {
        return;
    };
    let keys = format!("{QUICK}drain_timeout = \"1s\"\n");
    let mut rig = Rig::new(directory, &keys);
    let v1: Volume = ("v1", &[&one], QUIESCED);
    rig.start(&[V0, v1]);
    wait_until(|| (rig.stat("v1")["paths"][0]["state"] == "live").then_some(()));
    let load = rig.load("v0");
    // One that rests, and one whose write takes longer than there is time.
    let (mut idle, mut busy) = (rig.client("v1"), rig.client("v1"));
    assert_eq!(idle.write(0, 1), 0);
    let mut hold = Command::new(env!("CARGO_BIN_EXE_braid"));
    hold.args(["target", "set", "--port", "1", "hold_writes=1h", "--socket"]);
    assert!(
        hold.arg(rig.path("t.sock"))
            .output()
            .unwrap()
            .status
            .success()
    );
    busy.send_write(4096, 2);
    wait_until(|| (rig.stat("v1")["paths"][0]["inflight"] == 1).then_some(()));
    let why = rig.refused_reload(&[V0]);
    assert!(why.contains("connected: 2"), "{why}");
    let output = rig.command(&["reload", "--dry-run"]).output().unwrap();
    assert!(refused(&output).contains("connected: 2"), "{output:?}");
    let plan = rig.ask(&["reload", "--dry-run", "--force"])["plan"].clone();
    assert_eq!(plan[1], "remove volume v1");
    let changed = rig.ask(&["reload", "--force"])["changed"].clone();
    assert!(changed.as_str().unwrap().contains("removed volume v1"));
    assert_eq!(rig.names(), ["v0"]);
    assert!(idle.is_over() && busy.is_over());
    wait_until(|| rig.marks().get("v1").is_none().then_some(()));
    load.end();
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

#[test]
fn a_name_that_comes_again_may_be_another_volume_and_inherits_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, _])) = two_ports(directory.path(), "t") else {
        return;
    };
    let Some((_other, [other, _])) = two_ports(directory.path(), "o") else {
        return;
    };
    // Its clients are on another core than v0's.
    let mut rig = Rig::new(directory, &format!("{QUICK}cores = 2\n"));
    rig.start(&[V0]);
    rig.reload(&[V0, ("v1", &[&one], "")]);
    rig.ask(&["policy", "set", "v1", "numa"]);
    assert_eq!(rig.client("v1").write(0, 7), 0);
    // Not at once: its paths belong to another subsystem.
    let why = rig.refused_reload(&[V0, ("v1", &[&other], "")]);
    assert!(why.contains("refused beside"), "{why}");
    wait_until(|| (rig.stat("v1")["exports"][0]["clients"] == 0).then_some(()));
    rig.reload(&[V0]);
    rig.reload(&[V0, ("v1", &[&other], "")]);
    assert_eq!(rig.nqns(), ["nqn.2026-01.org.braid:o"]);
    assert_eq!(rig.stat("v1")["policy"], "queue-depth");
    assert_eq!(rig.stat("v1")["paths"][0]["writes"], 0);
    assert!(
        rig.client("v1").read(0) == [0; 4096],
        "not the other's data"
    );
    // And what is chosen now survives a restart.
    rig.ask(&["policy", "set", "v1", "round-robin"]);
    rig.ask(&["knob", "set", "v1", "ewma_shift", "5"]);
    assert_eq!(rig.end(Signal::TERM), Some(0));
    rig.start(&[("v1", &[&other], ""), V0]);
    let stat = rig.stat("v1");
    assert_eq!(stat["policy"], "round-robin");
    assert_eq!(stat["ewma_shift"], 5);
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

#[test]
fn local_devices_come_and_go_and_their_files_are_closed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("disk");
    std::fs::write(&file, vec![0; 1 << 20]).unwrap();
    let uri = format!("file:{}", file.display());
    let mut rig = Rig::new(directory, "cores = 2\n");
    if two_ports(rig.root(), "t").is_none() {
        return; // no io_uring
    }
    rig.start(&[V0]);
    let load = rig.load("v0");
    let process = rig.engine().child.id();
    let open = || {
        let all = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
        let leads = all.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        leads.filter(|to| *to == file).count()
    };
    for round in 0..3 {
        let both: [Volume; 3] = [("f", &[&uri], ""), V0, ("m", &["mem:1MiB"], "")];
        rig.reload(&both);
        assert!(open() > 0);
        for (name, before) in [("f", round), ("m", 0)] {
            let mut client = rig.client(name);
            assert!(client.read(0) == [before; 4096], "{name} in round {round}");
            assert_eq!(client.write(0, round + 1), 0);
        }
        wait_until(|| {
            let clients = |name| rig.stat(name)["exports"][0]["clients"] == 0;
            (clients("f") && clients("m")).then_some(())
        });
        rig.reload(&[V0]);
        wait_until(|| (open() == 0).then_some(()));
    }
    // A volume's only path may be taken out and put in again.
    rig.reload(&[V0, ("f", &[&uri], "")]);
    let why = rig.refusal(&["path", "add", "f", "mem:1MiB"]);
    assert!(why.contains("is no other path's data"), "{why}");
    rig.ask(&["path", "remove", "f", &uri, "--force"]);
    wait_until(|| (open() == 0).then_some(()));
    rig.ask(&["path", "add", "f", &uri]);
    assert!(rig.client("f").read(0) == [3; 4096]);
    load.end();
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

#[test]
fn t09_a_volume_that_came_with_a_reload_is_marked_and_a_reload_heeds_marks() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, two])) = two_ports(directory.path(), "t") else {
        return;
    };
    let keys = "io_timeout = \"30s\"\nkeep_alive_tmo = \"10s\"\n";
    let mut rig = Rig::new(directory, keys);
    let v1: Volume = ("v1", &[&one], "");
    rig.start(&[V0]);
    rig.reload(&[V0, v1]);
    assert_eq!(rig.client("v1").write(0, 1), 0);
    rig.end(Signal::KILL);
    // The next one doesn't have it until a reload.
    rig.start(&[V0]);
    rig.reload(&[V0, ("v1", &[&two], "")]);
    let line = rig
        .engine()
        .notes("v1: an earlier engine left changes under way");
    assert!(line.contains("its paths were others then"), "{line}");
    let mut client = rig.client("v1");
    client.send_write(0, 2);
    wait_until(|| (rig.stat("v1")["waiting"]["held"] == 1).then_some(()));
    let reason = rig.stat("v1")["waiting"]["held_reason"].clone();
    assert_eq!(reason, "unclean-stop");
    rig.end(Signal::KILL);
    // At a start it is the same.
    rig.start(&[V0, ("v1", &[&one, &two], "")]);
    let line = rig
        .engine()
        .notes("v1: an earlier engine left changes under way");
    assert!(line.contains("its paths were others then"), "{line}");
    wait_until(|| {
        let paths = rig.marks()["v1"]["paths"].clone();
        (paths.as_array()?.len() == 2).then_some(())
    });
    rig.end(Signal::KILL);
    rig.start(&[V0, ("v1", &[&two, &one], "")]);
    let line = rig
        .engine()
        .notes("v1: an earlier engine left changes under way");
    assert!(!line.contains("its paths were others then"), "{line}");
}

#[test]
fn a_reload_that_waits_does_not_keep_the_engine_from_ending() {
    let directory = tempfile::tempdir().unwrap();
    if two_ports(directory.path(), "t").is_none() {
        return; // no io_uring
    }
    let mut rig = Rig::new(directory, "connect_timeout = \"1h\"\n");
    rig.start(&[V0]);
    // It takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("nvme-tcp://{}/nqn.x:y", silent.local_addr().unwrap());
    rig.configure(&[V0, ("v1", &[&uri], "")]);
    let mut command = rig.command(&["reload"]);
    let reload = command
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let _connected = silent.accept().unwrap();
    assert_eq!(rig.names(), ["v0"], "it is not there yet");
    let begun = Instant::now();
    assert_eq!(rig.end(Signal::TERM), Some(0));
    assert!(begun.elapsed() < SOON);
    let output = reload.unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(rig.marks().get("v1").is_none());
    rig.start(&[V0]);
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

#[test]
fn a_dead_path_that_is_gone_from_the_file_stays_if_an_export_can_not_be() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, two])) = two_ports(directory.path(), "t") else {
        return;
    };
    let mut rig = Rig::new(directory, QUICK);
    let dead = "nvme-tcp://127.0.0.1:1/nqn.2026-01.org.braid:t";
    rig.start(&[V0, ("v1", &[&one, &two, dead], "")]);
    let paths = |rig: &Rig| rig.stat("v1")["paths"].as_array().unwrap().len();
    wait_until(|| (rig.stat("v1")["paths"][2]["state"] == "reconnecting").then_some(()));
    rig.configure(&[V0, ("v1", &[&two], "")]);
    let file = rig.path("b.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let export = "[[volume.export]]\nnbd = \"unix:/proc/no/such.sock\"\n";
    std::fs::write(file, text + export).unwrap();
    let why = rig.refusal(&["reload"]);
    assert!(why.contains("such.sock"), "{why}");
    assert!(!why.contains("not all could be taken back"), "{why}");
    assert_eq!(paths(&rig), 3);
    rig.reload(&[V0, ("v1", &[&two], "")]);
    assert_eq!(paths(&rig), 1);
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

fn path_whose_target_hangs_leaves() {
    let directory = tempfile::tempdir().unwrap();
    let Some((target, [one, two])) = two_ports(directory.path(), "t") else {
        return;
    };
    // It drains at once; then its controller doesn't say good-bye for as long as that may take.
    let keys = "io_timeout = \"1m\"\nkeep_alive_tmo = \"30s\"\nconnect_timeout = \"6s\"\n\
                drain_timeout = \"100ms\"\n";
    let mut rig = Rig::new(directory, keys);
    rig.start(&[V0, ("v1", &[&one, &two], "")]);
    let live = |rig: &Rig| {
        let paths = rig.stat("v1")["paths"].clone();
        let paths = paths.as_array().unwrap().iter();
        let live = paths.map(|path| path["state"] == "live");
        live.collect::<Vec<_>>()
    };
    wait_until(|| (live(&rig) == [true; 2]).then_some(()));
    target.freeze();
    rig.ask(&["path", "remove", "v1", &two]);
    target.signal(Signal::CONT);
    assert_eq!(live(&rig), [true]);
    rig.ask(&["path", "add", "v1", &two]);
    assert_eq!(live(&rig), [true; 2]);
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

#[test]
fn dry_run_tells_the_plan_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    if two_ports(directory.path(), "t").is_none() {
        return; // no io_uring
    }
    let mut rig = Rig::new(directory, QUICK);
    rig.start(&[V0]);
    let plan = |rig: &Rig| {
        let answer = rig.ask(&["reload", "--dry-run"]);
        let lines = answer["plan"].as_array().unwrap().iter();
        let lines: Vec<String> = lines.map(|it| it.as_str().unwrap().to_owned()).collect();
        lines
    };
    assert_eq!(plan(&rig), [""; 0]);
    rig.configure(&[("v1", &["mem:2MiB"], "")]);
    let lines = plan(&rig);
    assert_eq!(
        (&*lines[0], &*lines[3]),
        ("add volume v1", "remove volume v0")
    );
    assert!(lines[1].starts_with("v1: add export unix:"), "{lines:?}");
    assert!(lines[2].starts_with("v0: remove export unix:"), "{lines:?}");
    assert_eq!((lines.len(), rig.names()), (4, vec!["v0".to_owned()]));
    let other = (V0.0, V0.1, "retries = 7\n");
    rig.configure(&[other]);
    assert_eq!(plan(&rig), ["v0: set retries 7"]);
    rig.reload(&[other]);
    assert_eq!(plan(&rig), [""; 0]);
    // A file that can't be is an error of the configuration, wherever it is read.
    rig.configure(&[("v0", &["mem:1"], "")]);
    for words in [&["reload", "--dry-run"][..], &["reload"]] {
        let output = rig.command(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(
            refused(&output).contains("nothing was changed"),
            "{output:?}"
        );
    }
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

/// The socket goes on listening, for another volume; clients of the one before are told.
#[test]
fn export_moves_to_another_volume() {
    let directory = tempfile::tempdir().unwrap();
    if two_ports(directory.path(), "t").is_none() {
        return; // no io_uring
    }
    let mut rig = Rig::new(directory, QUICK);
    let volumes = [V0, ("v1", &["mem:2MiB"], "")];
    rig.start(&volumes);
    assert_eq!(rig.client("v0").write(0, 1), 0);
    let file = rig.path("b.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    // Each has the other one's socket.
    let swapped = text.replace("/v0.sock", "/x.sock");
    let swapped = swapped.replace("/v1.sock\"", "/v0.sock\"\nmode = \"0660\"");
    std::fs::write(&file, swapped.replace("/x.sock", "/v1.sock")).unwrap();
    let mut there = rig.client("v0");
    let changed = rig.ask(&["reload"])["changed"].clone();
    let changed = changed.as_str().unwrap();
    assert!(
        changed.contains("v1: took nbd+unix:///?socket="),
        "{changed}"
    );
    assert!(there.is_over(), "it was disconnected");
    let socket = rig.path("v0.sock");
    let mode = |name: &str| {
        let permissions = rig.path(name).metadata().unwrap().permissions();
        permissions.mode() & 0o777
    };
    assert_eq!((mode("v0.sock"), mode("v1.sock")), (0o660, 0o600));
    let mut client = Client::open_named(&socket, "v1");
    assert_eq!(
        client.read(0),
        vec![0; 4096],
        "it is the other volume's now"
    );
    drop(client);
    // And back, from a volume that leaves.
    rig.configure(&[V0]);
    rig.ask(&["reload", "--force"]);
    assert_eq!(mode("v0.sock"), 0o600);
    assert_eq!(rig.client("v0").read(0), vec![1; 4096]);
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

/// A path that was drained or failed by hand is so still when its removal is taken back.
#[test]
fn removal_taken_back_keeps_admin_state() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, two])) = two_ports(directory.path(), "t") else {
        return;
    };
    let mut rig = Rig::new(directory, QUICK);
    rig.start(&[V0, ("v1", &[&one, &two], "")]);
    let state =
        |rig: &Rig| rig.stat("v1")["paths"].as_array().unwrap().last().unwrap()["state"].clone();
    wait_until(|| (state(&rig) == "live").then_some(()));
    // An impossible change: an export that listens again fails after paths have left.
    let socket = rig.path("v0.sock");
    std::fs::remove_file(&socket).unwrap();
    std::fs::create_dir(&socket).unwrap();
    for (verb, is) in [("drain", "draining"), ("fail", "failed")] {
        rig.ask(&["path", verb, "v1", &two]);
        assert_eq!(state(&rig), is);
        let why = rig.refused_reload(&[V0, ("v1", &[&one], "")]);
        assert!(why.contains("v0.sock"), "{why}");
        assert!(!why.contains("not all could be taken back"), "{why}");
        assert_eq!(state(&rig), is);
    }
    // It comes back with its number, where it was.
    let paths = |rig: &Rig| {
        let stat = rig.stat("v1");
        let all = stat["paths"].as_array().unwrap().iter();
        let all = all.map(|it| (it["path"].clone(), it["uri"].clone()));
        all.collect::<Vec<_>>()
    };
    rig.ask(&["path", "restore", "v1", &two]);
    let before = paths(&rig);
    assert!(
        !before[0].0.is_null() && !before[0].1.is_null(),
        "{before:?}"
    );
    rig.refused_reload(&[V0, ("v1", &[&two], "")]);
    assert_eq!(paths(&rig), before);
    std::fs::remove_dir(&socket).unwrap();
    rig.reload(&[V0, ("v1", &[&one], "")]);
    assert_eq!(rig.end(Signal::TERM), Some(0));
}
