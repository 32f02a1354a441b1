//! Records of an engine for the one after it: found by whatever name, never taken from a running
//! engine, never done without in silence.
use super::{QUICK, QUIESCED, Rig, V0, Volume, refused};
use crate::serve::mirror::refused::{UNKNOWN, asked_of};
use crate::serve::process::{Process, at_once, two_ports, wait_until};
use crate::tmpfs::Tmpfs;
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The engine of a rig's configuration, with its control socket elsewhere.
fn start_at(rig: &Rig, socket: &Path) -> Process {
    let config = rig.path("b.toml");
    let words = ["run", "-c", config.to_str().unwrap()];
    let words = [&words[..], &["--socket", socket.to_str().unwrap()]].concat();
    Process::start(rig.root(), &words)
}

/// Asks the engine at a socket.
fn asked(socket: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(words).args(["-o", "json", "--socket"]);
    command.arg(socket).output().unwrap()
}

fn check(rig: &Rig, name: &str) -> (Option<i32>, serde_json::Value) {
    let output = asked(&rig.path("c.sock"), &["check", name]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code(), value["volumes"][0].clone())
}

#[test]
fn t09_mark_is_found_by_any_control_socket() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, _])) = two_ports(directory.path(), "t") else {
        return;
    };
    let mut rig = Rig::new(directory, QUICK);
    let v1: Volume = ("v1", &[&one], "");
    let link = rig.path("link");
    std::os::unix::fs::symlink(rig.root(), &link).unwrap();
    rig.start(&[V0, v1]);
    assert_eq!(rig.client("v1").write(0, 1), 0);
    rig.end(Signal::KILL);
    for socket in [link.join("c.sock"), rig.path("other.sock")] {
        let mut engine = start_at(&rig, &socket);
        let line = engine.notes("v1: an earlier engine left changes under way");
        assert!(line.contains("its writes wait"), "{line}");
        engine.says("v1: ready").unwrap();
        engine.signal(Signal::KILL);
        engine.ended();
    }
    // One that stops in order takes the mark away, wherever it was written.
    let mut engine = start_at(&rig, &rig.path("c.sock"));
    engine.notes("v1: an earlier engine left changes under way");
    engine.says("v1: ready").unwrap();
    let mut client = rig.client("v1");
    assert_eq!(client.write(0, 2), 0); // after the bound
    engine.signal(Signal::TERM);
    assert_eq!(engine.ended().code(), Some(0));
    assert_eq!(rig.kept("volumes/mark").0, PathBuf::new());
    assert_eq!(rig.kept("engine").0, PathBuf::new());
}

#[test]
fn t09_running_engine_keeps_its_mark_and_volume() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, two])) = two_ports(directory.path(), "t") else {
        return;
    };
    let mut rig = Rig::new(directory, QUICK);
    rig.start(&[V0, ("v1", &[&one], "")]);
    wait_until(|| rig.marks().get("v1").map(drop));
    let pid = format!("process {}", rig.engine().child.id());
    std::fs::remove_file(rig.path("c.sock")).unwrap(); // as a cleaner does
    for (socket, volume) in [
        ("c.sock", ("v1", &[one.as_str()], "")),
        ("other.sock", ("x", &[two.as_str()], "")),
    ] as [(&str, Volume); 2]
    {
        rig.configure(&[volume]);
        let mut second = start_at(&rig, &rig.path(socket));
        let line = second.notes("another engine");
        assert!(line.contains(&pid), "{line}");
        assert_eq!(second.ended().code(), Some(1));
    }
    assert!(rig.marks().get("v1").is_some());
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

/// A change that can't be kept is not made, or said to hold until a restart; kept ones stay, also
/// after a kill; with space verbs and reloads go on.
#[test]
fn t09_full_disk_loses_no_mark_and_no_choice() {
    let directory = tempfile::tempdir().unwrap();
    let targets = ["t", "u"].map(|name| two_ports(directory.path(), name));
    let [Some((_target, [one, two])), Some((_other, [three, _]))] = targets else {
        return;
    };
    let disk = match Tmpfs::mount(&directory.path().join("state"), "64k") {
        Ok(mounted) => mounted,
        Err(reason) => {
            eprintln!("SKIP full-disk: no tmpfs can be mounted: {reason}");
            return;
        }
    };
    let mut rig = Rig::new(directory, QUICK);
    let v1: Volume = ("v1", &[&one, &two], QUIESCED);
    let v2: Volume = ("v2", &[&three], QUIESCED);
    rig.start(&[V0, v1]);
    rig.ask(&["policy", "set", "v1", "round-robin"]);
    wait_until(|| rig.marks().get("v1").map(drop));
    let kept = || fs::read(rig.kept("volumes/choice").0).unwrap();
    let before = kept();
    let fill = disk.path().join("fill");
    let mut file = fs::File::create(&fill).unwrap();
    while file.write_all(&[7; 4096]).is_ok() {}
    drop(file); // its space is free once it is removed
    let why = rig.refusal(&["policy", "set", "v1", "numa"]);
    let failed = rig.ask(&["path", "fail", "v1", &two]);
    let warning = failed["warning"].as_str().unwrap();
    assert!(warning.contains("it won't survive a restart"), "{warning}");
    for said in [&why, warning] {
        assert!(said.contains("volumes/choice-"), "{said}");
        assert!(said.contains("No space left"), "{said}");
    }
    let why = rig.refused_reload(&[V0, v1, v2]);
    for part in ["v2: it is not opened", "volumes/mark-", "No space left"] {
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(kept(), before);
    assert_eq!(rig.stat("v1")["policy"], "round-robin");
    assert_eq!(rig.client("v1").write(0, 1), 0);
    rig.end(Signal::KILL);
    rig.start(&[V0, v1]);
    rig.engine()
        .notes("v1: an earlier engine left changes under way");
    assert_eq!(rig.stat("v1")["policy"], "round-robin");
    assert_eq!(rig.client("v1").write(0, 2), 0);
    fs::remove_file(&fill).unwrap();
    rig.ask(&["policy", "set", "v1", "numa"]);
    let failed = rig.ask(&["path", "fail", "v1", &two]);
    assert_eq!(failed["warning"], serde_json::Value::Null);
    rig.reload(&[V0, v1, v2]);
    assert_eq!(rig.client("v2").write(0, 3), 0);
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

fn volume_without_a_mark() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, _])) = two_ports(directory.path(), "t") else {
        return;
    };
    let keys = "io_timeout = \"2s\"\nkeep_alive_tmo = \"500ms\"\nconnect_timeout = \"1s\"\n";
    let mut rig = Rig::new(directory, keys);
    let v1: Volume = ("v1", &[&one], "");
    rig.start(&[V0, v1]);
    wait_until(|| rig.marks().get("v1").map(drop));
    let (marks, _) = rig.kept("volumes/mark");
    rig.reload(&[V0]);
    wait_until(|| (!marks.exists()).then_some(())); // nothing is marked
    // Where the new file is to be, something else is.
    let in_the_way = marks.with_extension("new");
    std::fs::create_dir(&in_the_way).unwrap();
    let why = rig.refused_reload(&[V0, v1]);
    assert!(why.contains("v1: it is not opened"), "{why}");
    assert!(why.contains("cannot write"), "{why}");
    // By consent it serves, and says so.
    rig.reload(&[V0, ("v1", &[&one], "unsafe_without_mark = true\n")]);
    assert_eq!(rig.client("v1").write(0, 1), 0);
    let (code, told) = check(&rig, "v1");
    assert_eq!((code, &told["state"]), (Some(1), &"degraded".into()));
    let risk = told["risk"].as_str().unwrap();
    assert!(risk.starts_with("unsafe_without_mark"), "{told}");
    rig.reload(&[V0]);
    // One that never waits needs none.
    rig.reload(&[V0, ("v1", &[&one], "write_failover = \"immediate\"\n")]);
    assert_eq!(check(&rig, "v1").0, Some(0));
    rig.end(Signal::KILL);
    // A start goes on, and opens the volume as soon as it can.
    rig.start(&[V0, v1]);
    rig.engine().notes("v1: it is not opened");
    wait_until(|| (check(&rig, "v1").1["state"] == "down").then_some(()));
    let (code, told) = check(&rig, "v1");
    assert_eq!(code, Some(2));
    assert!(
        told["why"].as_str().unwrap().contains("not opened"),
        "{told}"
    );
    std::fs::remove_dir(in_the_way).unwrap();
    wait_until(|| (check(&rig, "v1").0 == Some(0)).then_some(()));
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

#[test]
fn export_whose_socket_was_removed_is_said_and_made_again() {
    let directory = tempfile::tempdir().unwrap();
    if two_ports(directory.path(), "t").is_none() {
        return; // no io_uring
    }
    let mut rig = Rig::new(directory, QUICK);
    rig.start(&[V0]);
    let mut before = rig.client("v0");
    assert_eq!(check(&rig, "v0").0, Some(0));
    std::fs::remove_file(rig.path("v0.sock")).unwrap();
    let (code, told) = check(&rig, "v0");
    assert_eq!(code, Some(1));
    let why = told["why"].as_str().unwrap();
    assert!(
        why.contains("v0.sock") && why.contains("braid reload"),
        "{why}"
    );
    let changed = rig.reload(&[V0]);
    assert!(changed.contains("v0.sock"), "{changed}");
    assert_eq!(check(&rig, "v0").0, Some(0));
    assert_eq!(rig.client("v0").write(0, 1), 0);
    assert!(before.read(0) == [1; 4096], "who was there stays");
    assert_eq!(rig.reload(&[V0]), "no difference");
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

#[test]
fn control_socket_that_was_removed_is_made_again() {
    let directory = tempfile::tempdir().unwrap();
    if two_ports(directory.path(), "t").is_none() {
        return; // no io_uring
    }
    let mut rig = Rig::new(directory, QUICK);
    rig.start(&[V0]);
    let file = rig.path("c.sock");
    for _ in 0..2 {
        std::fs::remove_file(&file).unwrap();
        rig.engine().notes("was removed, and is made again");
        assert_eq!(check(&rig, "v0").0, Some(0));
    }
    // A file that another has put there stays.
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "precious").unwrap();
    rig.engine().notes("is no socket");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    std::fs::remove_file(&file).unwrap();
    rig.engine().notes("was removed, and is made again");
    assert_eq!(rig.end(Signal::TERM), Some(0));
    assert!(!file.exists());
}

#[test]
fn path_failed_by_hand_stays_so_under_another_socket() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, two])) = two_ports(directory.path(), "t") else {
        return;
    };
    let mut rig = Rig::new(directory, QUICK);
    rig.start(&[V0, ("v1", &[&one, &two], "")]);
    rig.ask(&["path", "fail", "v1", &two]);
    assert_eq!(rig.end(Signal::TERM), Some(0));
    let socket = rig.path("other.sock");
    let mut engine = start_at(&rig, &socket);
    engine.says("v1: ready").unwrap();
    let state = || {
        let stat = asked(&socket, &["stat"]);
        let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
        stat["volumes"][1]["paths"][1]["state"].clone()
    };
    wait_until(|| (state() == "failed").then_some(()));
    let output = asked(&socket, &["path", "restore", "v1", &two]);
    assert!(output.status.success(), "{output:?}");
    engine.signal(Signal::TERM);
    assert_eq!(engine.ended().code(), Some(0));
    // A path that was restored there is not failed here.
    rig.start(&[V0, ("v1", &[&one, &two], "")]);
    let live = |rig: &Rig| rig.stat("v1")["paths"][1]["state"] == "live";
    wait_until(|| live(&rig).then_some(()));
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

/// A target whose namespace has this UUID, and where it is.
fn target(rig: &Rig, uuid: &str) -> (Process, String) {
    target_at(rig, uuid, ("s.sock", 1))
}

/// The same, with this control socket and first controller identifier.
fn target_at(rig: &Rig, uuid: &str, (socket, cntlid): (&str, u16)) -> (Process, String) {
    let config = rig.path("t.toml");
    let text = format!(
        "nqn = \"nqn.2026-01.org.example:s\"\ncntlid = [{cntlid}, {}]\n[[namespace]]\n\
         backend = \"mem:16MiB\"\nuuid = \"{uuid}\"\n[[port]]\nlisten = \"127.0.0.1:0\"\n",
        cntlid + 50
    );
    std::fs::write(&config, text).unwrap();
    let socket = rig.path(socket);
    let words = ["target", "-c", config.to_str().unwrap(), "--socket"];
    let words = [&words[..], &[socket.to_str().unwrap()]].concat();
    let mut target = Process::start(rig.root(), &words);
    let line = target.says("port 1: ").unwrap();
    let uri = line.split_whitespace().nth(2).unwrap().to_owned();
    (target, uri)
}

/// Of two namespaces.
const UUIDS: [&str; 2] = [
    "5a1c2a3e-7e0f-4c0a-9d54-0d1c6c1f0a77",
    "6b1c2a3e-7e0f-4c0a-9d54-0d1c6c1f0a88",
];

/// The path that showed another namespace is gone when that is accepted: nothing may bind the
/// volume to it.
#[test]
fn namespace_that_no_path_shows_is_not_accepted() {
    let directory = tempfile::tempdir().unwrap();
    if two_ports(directory.path(), "t").is_none() {
        return; // no io_uring
    }
    let [first, second] = UUIDS;
    let mut rig = Rig::new(directory, QUICK);
    let (_a, right) = target(&rig, first);
    rig.start(&[V0, ("v1", &[&right], "")]);
    assert_eq!(rig.client("v1").write(0, 1), 0);
    assert_eq!(rig.end(Signal::TERM), Some(0));
    let (mut b, wrong) = target_at(&rig, second, ("other.sock", 101));
    rig.start(&[V0, ("v1", &[&wrong], "")]);
    rig.engine()
        .notes("v1: its paths lead to another namespace");
    b.signal(Signal::TERM);
    b.ended();
    let lost = |rig: &Rig| rig.stat("v1")["paths"][0]["state"] == "reconnecting";
    wait_until(|| lost(&rig).then_some(()));
    wait_until(|| check(&rig, "v1").1["why"].is_null().then_some(()));
    let why = rig.refusal(&["accept", "v1"]);
    assert!(why.contains("nothing to accept"), "{why}");
    rig.ask(&["path", "add", "v1", &right]);
    assert!(rig.client("v1").read(0) == [1; 4096]);
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

#[test]
fn t09_volumes_that_are_not_opened_say_why() {
    at_once(&[
        volume_without_a_mark,
        another_namespace_is_refused_until_accepted,
    ]);
}

fn another_namespace_is_refused_until_accepted() {
    let directory = tempfile::tempdir().unwrap();
    if two_ports(directory.path(), "t").is_none() {
        return; // no io_uring
    }
    let [first, second] = UUIDS;
    let mut rig = Rig::new(directory, QUICK);
    let (mut a, uri) = target(&rig, first);
    rig.start(&[V0, ("v1", &[&uri], "")]);
    assert_eq!(rig.client("v1").write(0, 1), 0);
    assert_eq!(rig.end(Signal::TERM), Some(0));
    a.signal(Signal::TERM);
    a.ended();
    let (_b, uri) = target(&rig, second);
    let v1: Volume = ("v1", &[&uri], "");
    rig.start(&[V0, v1]);
    let line = rig
        .engine()
        .notes("v1: its paths lead to another namespace");
    assert!(line.contains(first) && line.contains(second), "{line}");
    let (code, told) = check(&rig, "v1");
    assert_eq!(code, Some(2), "{told}");
    assert!(told["why"].as_str().unwrap().contains("braid accept v1"));
    // Clients are not left to wait for what does not come by itself.
    let mut client = UnixStream::connect(rig.path("v1.sock")).unwrap();
    let (reply, words) = asked_of(&mut client, "v1");
    assert_eq!(reply, UNKNOWN, "{words}");
    assert!(words.contains("braid accept v1"), "{words}");
    assert_eq!(rig.end(Signal::TERM), Some(0));
    // By verb, or when it starts; once is enough.
    rig.start(&[V0, v1]);
    rig.engine()
        .notes("v1: its paths lead to another namespace");
    rig.ask(&["accept", "v1"]);
    wait_until(|| (check(&rig, "v1").0 == Some(0)).then_some(()));
    let why = rig.refusal(&["accept", "v1"]);
    assert!(why.contains("nothing to accept"), "{why}");
    assert_eq!(rig.end(Signal::TERM), Some(0));
    rig.start(&[V0, v1]);
    wait_until(|| (check(&rig, "v1").0 == Some(0)).then_some(()));
    assert_eq!(rig.end(Signal::TERM), Some(0));
    // The configuration decides.
    let pin = format!("uuid = \"{first}\"\n");
    rig.start(&[V0, ("v1", &[&uri], &pin)]);
    let line = rig.engine().notes("v1: uuid of its configuration");
    assert!(line.contains(second), "{line}");
    let why = rig.refusal(&["accept", "v1"]);
    assert!(why.contains("uuid of its configuration"), "{why}");
    assert_eq!(rig.end(Signal::TERM), Some(0));
    let output = Command::new(env!("CARGO_BIN_EXE_braid"))
        .env("XDG_STATE_HOME", rig.path("state"))
        .args(["run", "--accept", "nope", "-c"])
        .arg(rig.path("b.toml"))
        .arg("--socket")
        .arg(rig.path("c.sock"))
        .output()
        .unwrap();
    assert!(refused(&output).contains("no such volume"));
}

#[test]
fn t31_path_to_another_namespace_is_refused_beside_the_right_one() {
    let directory = tempfile::tempdir().unwrap();
    if two_ports(directory.path(), "t").is_none() {
        return; // no io_uring
    }
    let [right, wrong] = [
        "5a1c2a3e-7e0f-4c0a-9d54-0d1c6c1f0a77",
        "6b1c2a3e-7e0f-4c0a-9d54-0d1c6c1f0a88",
    ];
    let mut rig = Rig::new(directory, QUICK);
    let (_a, bad) = target_at(&rig, wrong, ("a.sock", 100));
    let (_b, good) = target_at(&rig, right, ("b.sock", 200));
    let pin = format!("uuid = \"{right}\"\n");
    let states = |rig: &Rig| {
        let paths = rig.stat("v1")["paths"].as_array().unwrap().clone();
        let states = paths
            .iter()
            .map(|it| it["state"].as_str().unwrap().to_owned());
        states.collect::<Vec<_>>()
    };
    // The first path leads to the wrong one: by its key, and then by what is kept of the volume.
    for keys in [pin.as_str(), ""] {
        rig.start(&[V0, ("v1", &[&bad, &good], keys)]);
        rig.engine().says("v1: ready").unwrap();
        wait_until(|| (states(&rig) == ["reconnecting", "live"]).then_some(()));
        assert_eq!(rig.client("v1").write(0, 1), 0);
        let told = check(&rig, "v1").1.to_string();
        assert!(!told.contains("not opened"), "{told}");
        assert_eq!(rig.end(Signal::TERM), Some(0));
    }
    // One that comes later is refused too, and why is said.
    rig.start(&[V0, ("v1", &[&good], "")]);
    rig.engine().says("v1: ready").unwrap();
    let why = rig.refusal(&["path", "add", "v1", &bad]);
    assert!(
        why.contains(wrong) && why.contains("another namespace"),
        "{why}"
    );
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

#[test]
fn volume_that_is_not_opened_stays_free_for_others() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, [one, _])) = two_ports(directory.path(), "t") else {
        return;
    };
    let nqn = one.rsplit('/').next().unwrap().split('?').next().unwrap();
    let nowhere = "[[discovery]]\nuri = \"nvme-tcp://127.0.0.1:1\"\n";
    let mut rig = Rig::new(directory, &format!("{QUICK}{nowhere}"));
    rig.start(&[V0]);
    let discovered = format!("subsystem = \"{nqn}\"\n");
    let why = rig.refused_reload(&[V0, ("v1", &[], &discovered)]);
    assert!(why.contains("discovered"), "{why}");
    let names = rig.kept("engine").1["volumes"].to_string();
    assert!(!names.contains("v1"), "{names}");
    rig.configure(&[("x", &[&one], "")]);
    let mut second = start_at(&rig, &rig.path("other.sock"));
    second.says("x: ready").unwrap();
    second.signal(Signal::TERM);
    assert_eq!(second.ended().code(), Some(0));
    assert_eq!(rig.end(Signal::TERM), Some(0));
}

#[test]
fn damaged_file_of_another_socket_keeps_no_engine_from_starting() {
    let directory = tempfile::tempdir().unwrap();
    if two_ports(directory.path(), "t").is_none() {
        return; // no io_uring
    }
    let mut rig = Rig::new(directory, QUICK);
    let kept = rig.path("state/braid");
    std::fs::create_dir_all(&kept).unwrap();
    std::fs::create_dir_all(kept.join("volumes")).unwrap();
    for kind in ["choices", "volumes", "volumes/choice", "volumes/identity"] {
        let name = format!("{kind}-0123456789abcdef.json");
        std::fs::write(kept.join(&name), "{").unwrap();
        rig.start(&[V0]);
        rig.engine().notes(&name);
        assert_eq!(check(&rig, "v0").0, Some(0));
        assert_eq!(rig.end(Signal::TERM), Some(0));
        std::fs::remove_file(kept.join(name)).unwrap();
    }
    // The writes under way that they state are not passed over.
    for kind in ["marks", "volumes/mark"] {
        let marks = format!("{kind}-0123456789abcdef.json");
        std::fs::write(kept.join(&marks), "{").unwrap();
        rig.configure(&[V0]);
        let mut engine = start_at(&rig, &rig.path("c.sock"));
        engine.notes(&marks);
        assert_eq!(engine.ended().code(), Some(1));
        std::fs::remove_file(kept.join(marks)).unwrap();
    }
}

/// Records that an engine of the version before kept, of one of its volumes over a target and one
/// over a file: by its control socket, as it called the volumes.
fn older_files(rig: &Rig, socket: &Path, [one, two]: &[String; 2]) {
    let place = |uri: &str| {
        (
            format!("{uri}?nsid=1"),
            uri.rsplit('/').next().unwrap().to_owned(),
        )
    };
    let ((one, nqn), (two, _)) = (place(one), place(two));
    let setting = |policy: &str| {
        serde_json::json!({
            "policy": policy, "ewma_shift": 3, "weight_timeout_ns": 15_000_000_000_u64,
            "hedge": "auto",
        })
    };
    let chosen = |paths: serde_json::Value| {
        serde_json::json!({
            "configured": setting("queue-depth"), "chosen": setting("round-robin"), "paths": paths,
        })
    };
    let paths = serde_json::json!({
        "configured": [one, two], "chosen": [one, two], "aside": {&two: "failed"},
    });
    let id = uuid::Uuid::new_v5(
        &uuid::Uuid::NAMESPACE_URL,
        socket.as_os_str().as_encoded_bytes(),
    );
    let mark = serde_json::json!({
        "bound_ms": 1100, "paths": [one, two], "namespace": {"subsystem": nqn, "nsid": 1},
    });
    let shown = serde_json::json!({
        "subsystem": nqn, "nsid": 1, "uuid": UUIDS[0], "nguid": null,
    });
    for (kind, text) in [
        ("marks", serde_json::json!({"v1": mark})),
        (
            "choices",
            serde_json::json!({"v0": chosen(serde_json::Value::Null), "v1": chosen(paths)}),
        ),
        ("volumes", serde_json::json!({"v1": shown})),
    ] {
        let name = format!("state/braid/{kind}-{}.json", id.simple());
        std::fs::create_dir_all(rig.path("state/braid")).unwrap();
        std::fs::write(rig.path(&name), text.to_string()).unwrap();
    }
}

/// Records of the version before hold at an upgrade, and none of them for another volume.
#[test]
fn files_of_the_version_before_are_converted() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_target, uris)) = two_ports(directory.path(), "t") else {
        return;
    };
    let Some((_other, [unrelated, _])) = two_ports(directory.path(), "u") else {
        return;
    };
    let mut rig = Rig::new(directory, QUICK);
    std::fs::write(rig.path("image"), vec![0; 16 << 20]).unwrap();
    let image = format!("file:{}", rig.path("image").display());
    let v0: Volume = ("v0", &[&image], "");
    let [one, two] = [0, 1].map(|at| format!("{}?nsid=1", uris[at]));
    // By an engine that is elsewhere: its names are no other volumes', and what it knew of its
    // namespaces holds where these are.
    older_files(&rig, &rig.path("other.sock"), &uris);
    let unrelated: Volume = ("v1", &[&unrelated], "");
    rig.start(&[v0, unrelated]);
    rig.engine().notes("were converted");
    rig.engine().says("v1: ready").unwrap();
    assert!(rig.files("marks").is_empty() && rig.files("choices").is_empty());
    for name in ["v0", "v1"] {
        assert_eq!(rig.stat(name)["policy"], "queue-depth", "{name}");
    }
    assert!(!rig.engine().has_noted("an earlier engine"));
    assert_eq!(rig.end(Signal::TERM), Some(0));
    // By this one, under another name. The namespace is another one than it was.
    for socket in ["other.sock", "c.sock"] {
        let _ = std::fs::remove_dir_all(rig.path("state"));
        older_files(&rig, &rig.path(socket), &uris);
        rig.start(&[v0, ("w1", &[&one, &two], "")]);
        let engine = rig.engine();
        engine.notes("w1: an earlier engine left changes under way");
        engine.notes("w1: its paths lead to another namespace");
        rig.ask(&["accept", "w1"]);
        rig.engine().says("w1: ready").unwrap();
        let w1 = rig.stat("w1");
        assert_eq!(w1["policy"], "round-robin");
        wait_until(|| (rig.stat("w1")["paths"][1]["state"] == "failed").then_some(()));
        let of_file = match socket {
            "c.sock" => "round-robin",
            _ => "queue-depth",
        };
        assert_eq!(rig.stat("v0")["policy"], of_file);
        // Killed and started again, it has all that from its own files.
        rig.end(Signal::KILL);
        rig.start(&[v0, ("w1", &[&one, &two], "")]);
        rig.engine()
            .notes("w1: an earlier engine left changes under way");
        rig.engine().says("w1: ready").unwrap();
        assert_eq!(rig.stat("w1")["policy"], "round-robin");
        assert_eq!(rig.end(Signal::TERM), Some(0));
    }
}
