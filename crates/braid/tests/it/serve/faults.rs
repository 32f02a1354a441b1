//! `braid run` when things end badly: its target dies, it is ended in the middle, it is killed.
use crate::serve::no_io_uring;
use crate::serve::process::{Client, Process, engine, one_line, two_ports, wait_until};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const ESHUTDOWN: u32 = 108;

/// A target, and an engine over a path to it.
struct Pair {
    directory: tempfile::TempDir,
    target: Process,
    engine: Process,
}

impl Pair {
    /// `None`: this machine has no io_uring.
    fn start(keys: &str) -> Option<Self> {
        Self::over(1, keys)
    }

    /// Over so many ports of the target.
    fn over(ports: usize, keys: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let (target, uris) = target(directory.path(), ports)?;
        let paths = uris.iter();
        let paths = paths.map(|uri| format!("[[volume.path]]\nuri = \"{uri}\"\n"));
        let text = format!(
            "{keys}\n[[volume]]\nname = \"v0\"\n{}[[volume.export]]\nnbd = \"unix:{}\"\n",
            paths.collect::<String>(),
            directory.path().join("v0.sock").display()
        );
        std::fs::write(directory.path().join("b.toml"), text).unwrap();
        let engine = engine(directory.path());
        Some(Self {
            directory,
            target,
            engine,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn ask(&self, words: &[&str], socket: &str) -> serde_json::Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.args(words).args(["-o", "json", "--socket"]);
        let output = command.arg(self.path(socket)).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// A write that the target has, and holds; then the target is killed.
    fn held_write(&mut self) -> Client {
        let mut client = Client::open(&self.path("v0.sock"));
        assert_eq!(client.write(0, 1), 0);
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.args(["target", "set", "--port", "1", "hold_writes=1h"]);
        let output = command.arg("--socket").arg(self.path("t.sock")).output();
        assert!(output.unwrap().status.success());
        client.send_write(0, 2);
        wait_until(|| {
            let stat = self.ask(&["stat"], "c.sock");
            let in_flight = &stat["volumes"][0]["paths"][0]["inflight"];
            (in_flight == 1).then_some(())
        });
        self.target.signal(rustix::process::Signal::KILL);
        self.target.ended();
        self.engine.notes("no path is usable");
        client
    }
}

/// A target, and the URIs of its ports.
fn target(directory: &Path, ports: usize) -> Option<(Process, Vec<String>)> {
    let socket = directory.join("t.sock");
    // Its hosts wait as long as their own configuration says.
    let words = ["target", "--mem", "64MiB", "--cqt", "0", "--socket"];
    let mut words = words.to_vec();
    words.push(socket.to_str().unwrap());
    words.extend(["--listen", "127.0.0.1:0"].repeat(ports));
    let mut target = Process::start(directory, &words);
    let mut uris = Vec::new();
    for port in 1..=ports {
        let Some(line) = target.says(&format!("port {port}: ")) else {
            target.notes("io_uring");
            no_io_uring::skip(&target.seen);
            return None;
        };
        uris.push(line.split_whitespace().nth(2).unwrap().to_owned());
    }
    Some((target, uris))
}

#[test]
fn a_held_write_at_sigterm_fails_after_drain_timeout_and_the_exit_code_says_so() {
    let Some(mut pair) = Pair::start("drain_timeout = \"1s\"") else {
        return;
    };
    let mut client = pair.held_write();
    pair.engine.signal(rustix::process::Signal::TERM);
    assert_eq!(client.answer(), ESHUTDOWN);
    assert_eq!(pair.engine.ended().code(), Some(1));
    let line = pair.engine.notes("drain_timeout");
    assert!(line.contains("v0: 1 write"), "{line}");
    assert!(!pair.path("c.sock").exists() && !pair.path("v0.sock").exists());
}

#[test]
fn a_second_sigterm_ends_it_at_once() {
    let Some(mut pair) = Pair::start("drain_timeout = \"1h\"") else {
        return;
    };
    let _client = pair.held_write();
    pair.engine.signal(rustix::process::Signal::TERM);
    let socket = pair.path("v0.sock");
    wait_until(|| (!socket.exists()).then_some(()));
    pair.engine.signal(rustix::process::Signal::TERM);
    assert_eq!(pair.engine.ended().code(), Some(128 + 15));
}

#[test]
fn check_tells_of_lost_paths_and_of_its_own_misuse() {
    let Some(pair) = Pair::over(2, "") else {
        return;
    };
    let check = |more: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        let command = command.args(["check", more, "--socket"]);
        let output = command.arg(pair.path("c.sock")).output().unwrap();
        output.status.code().unwrap()
    };
    let comes = |code| wait_until(|| (check("v0") == code).then_some(()));
    let refuse = |port: &str, for_s: &str| {
        let refuse = format!("refuse={for_s}");
        pair.ask(&["target", "set", "--port", port, &refuse], "t.sock");
        pair.ask(&["target", "drop", "--port", port], "t.sock");
    };
    comes(0);
    // Live, and of no use.
    let ana = |state: &str| {
        let state = format!("ana={state}");
        pair.ask(&["target", "set", "--port", "2", &state], "t.sock");
    };
    ana("inaccessible");
    comes(1);
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    let command = command
        .arg("check")
        .arg("--socket")
        .arg(pair.path("c.sock"));
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    // Lines end at 80 columns.
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(": its ANA state is inaccessible"), "{text}");
    let volume = &pair.ask(&["stat"], "c.sock")["volumes"][0];
    let path = &volume["paths"][1];
    assert_eq!(path["state"], "live");
    assert!(path["hindrance"].is_string() && volume["paths"][0]["hindrance"].is_null());
    ana("non-optimized");
    comes(0);
    refuse("1", "1h");
    comes(1);
    refuse("2", "1h");
    comes(2);
    refuse("1", "0");
    comes(1);
    assert_eq!(check("v9"), 3, "no such volume");
    assert_eq!(check("--volume"), 3, "a usage error is not \"down\"");
}

/// One write; how many the engine has held so far.
fn first_write(pair: &Pair) -> u64 {
    let mut client = Client::open(&pair.path("v0.sock"));
    assert_eq!(client.write(0, 3), 0);
    let stat = pair.ask(&["stat"], "c.sock");
    let held = stat["volumes"][0]["failover"]["held_total"].as_u64();
    held.unwrap_or_else(|| panic!("{stat}"))
}

#[test]
fn t09_an_engine_after_one_that_was_killed_writes_only_when_the_bound_has_passed() {
    let keys = "io_timeout = \"5s\"\nkeep_alive_tmo = \"1s\"";
    let Some(mut pair) = Pair::start(keys) else {
        return;
    };
    let config = pair.path("b.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replace("name = \"v0\"\n", "name = \"v0\"\nquiesce_time = \"1s\"\n");
    std::fs::write(&config, text).unwrap();
    // Begun anew with these keys, after a clean stop: nothing to wait for.
    pair.engine.signal(rustix::process::Signal::TERM);
    assert!(pair.engine.ended().success());
    pair.engine = engine(pair.directory.path());
    assert_eq!(first_write(&pair), 0, "held after a clean stop");
    pair.engine.signal(rustix::process::Signal::KILL);
    pair.engine.ended();
    let begun = Instant::now();
    pair.engine = engine(pair.directory.path());
    assert_eq!(first_write(&pair), 1);
    assert!(begun.elapsed() >= Duration::from_secs(3), "2 × 1 s and 1 s");
    let line = pair
        .engine
        .notes("an earlier engine left changes under way");
    assert!(line.contains("its writes wait 3000 ms"), "{line}");
    pair.engine.signal(rustix::process::Signal::TERM);
    assert!(pair.engine.ended().success());
    pair.engine = engine(pair.directory.path());
    assert_eq!(first_write(&pair), 0, "held after a clean stop");
}

#[test]
fn t09_a_write_that_takes_too_long_while_draining_is_aborted_and_goes_elsewhere() {
    let Some(mut pair) = two_ways() else {
        return;
    };
    let mut client = Client::open(&pair.path("v0.sock"));
    let hold = ["target", "set", "--port", "1", "hold_writes=1h"];
    pair.ask(&hold, "two.sock");
    client.send_write(0, 2);
    wait_until(|| {
        let stat = pair.ask(&["stat"], "c.sock");
        (stat["volumes"][1]["paths"][0]["inflight"] == 1).then_some(())
    });
    pair.engine.signal(rustix::process::Signal::TERM);
    assert_eq!(client.answer(), 0, "it went the other way");
    drop(client);
    let code = pair.engine.ended().code();
    assert_eq!(code, Some(0), "{}", pair.engine.seen);
}

#[test]
fn t12_a_command_that_hangs_is_aborted_and_its_path_stays() {
    let Some(mut pair) = two_ways() else {
        return;
    };
    let mut client = Client::open(&pair.path("v0.sock"));
    pair.ask(&["target", "set", "--port", "1", "hang=1"], "two.sock");
    client.send_write(0, 2);
    assert_eq!(client.answer(), 0, "it went the other way");
    let stat = pair.ask(&["stat"], "c.sock");
    let volume = &stat["volumes"][1];
    let path = &volume["paths"][0];
    let counts = ["timed_out", "aborted", "errors"].map(|key| path[key].as_u64());
    assert_eq!(counts, [Some(1); 3], "{stat}");
    // It answered nothing for long enough to get probes only, which hang as well.
    assert_eq!(path["state"], "probation", "{stat}");
    assert_eq!(path["probation"]["why"], "silence", "{stat}");
    assert_eq!(volume["failover"]["held_total"], 0, "{stat}");
    let target = pair.ask(&["target", "show"], "two.sock");
    let injected = &target["ports"][0]["faults"]["injected"];
    assert!(injected["hung"].as_u64() >= Some(1), "{target}");
    pair.engine.notes("aborted, and tried elsewhere");
    drop(client);
    pair.engine.signal(rustix::process::Signal::TERM);
    assert!(pair.engine.ended().success(), "{}", pair.engine.seen);
}

/// They are no path errors, and clients are given none of them: monitoring sees them all the same.
#[test]
fn errors_that_pass_make_a_volume_degraded() {
    let Some(mut pair) = two_ways() else {
        return;
    };
    let check = |pair: &Pair| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.args(["check", "v0", "-o", "json", "--socket"]);
        let output = command.arg(pair.path("c.sock")).output().unwrap();
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let alarms = value["volumes"][0]["paths"][0]["alarms"]
            .as_array()
            .unwrap();
        let errors = alarms.iter().any(|it| it["alarm"] == "errors");
        (output.status.code(), errors)
    };
    assert_eq!(check(&pair), (Some(0), false));
    let error = "error=internal-error:0.5";
    pair.ask(&["target", "set", "--port", "1", error], "two.sock");
    let mut client = Client::open(&pair.path("v0.sock"));
    for _ in 0..60 {
        assert_eq!(client.write(0, 1), 0);
    }
    wait_until(|| (check(&pair) == (Some(1), true)).then_some(()));
    drop(client);
    pair.engine.signal(rustix::process::Signal::TERM);
    assert!(pair.engine.ended().success(), "{}", pair.engine.seen);
}

/// A volume v0 over two ports of a target, the first one preferred. Its clients are on core 1, and
/// only that one sees that an I/O takes too long.
fn two_ways() -> Option<Pair> {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let (target, [one, two]) = two_ports(root, "two")?;
    let text = format!(
        "cores = 2\ndrain_timeout = \"30s\"\nio_timeout = \"3s\"\nkeep_alive_tmo = \"1s\"\n\
         [[volume]]\nname = \"other\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n\
         [[volume]]\nname = \"v0\"\npolicy = \"numa\"\n\
         [[volume.path]]\nuri = \"{one}?distance=1\"\n\
         [[volume.path]]\nuri = \"{two}?distance=2\"\n[[volume.export]]\nnbd = \"unix:{}\"\n",
        root.join("v0.sock").display()
    );
    std::fs::write(root.join("b.toml"), text).unwrap();
    let engine = engine(root);
    let pair = Pair {
        directory,
        target,
        engine,
    };
    let all_live = |stat: &serde_json::Value| {
        let paths = stat["volumes"][1]["paths"].as_array().unwrap().clone();
        paths.iter().all(|path| path["state"] == "live")
    };
    wait_until(|| all_live(&pair.ask(&["stat"], "c.sock")).then_some(()));
    Some(pair)
}

/// Paths and states of volume v0, in order.
fn states(pair: &Pair) -> Vec<(String, String)> {
    let stat = pair.ask(&["stat"], "c.sock");
    let paths = stat["volumes"][0]["paths"].as_array().unwrap().clone();
    let word = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    paths
        .iter()
        .map(|path| (word(&path["uri"]), word(&path["state"])))
        .collect()
}

/// Why a verb was refused.
fn refusal(pair: &Pair, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    let output = command
        .args(words)
        .arg("--socket")
        .arg(pair.path("c.sock"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Writes as fast as it goes until `over`; how many, all of them well.
fn writing(socket: PathBuf, over: std::sync::Arc<std::sync::atomic::AtomicBool>) -> u64 {
    let mut client = Client::open(&socket);
    let mut count = 0;
    while !over.load(std::sync::atomic::Ordering::Relaxed) {
        assert_eq!(client.write(count % 100 * 4096, 1), 0);
        count += 1;
    }
    count
}

/// Writes a configuration of volume v0 over these paths.
fn configure(root: &Path, paths: &[&str]) {
    let paths = paths
        .iter()
        .map(|uri| format!("[[volume.path]]\nuri = \"{uri}\"\n"));
    let text = format!(
        "drain_timeout = \"10s\"\nconnect_timeout = \"5s\"\n[[volume]]\nname = \"v0\"\n{}\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        paths.collect::<String>(),
        root.join("v0.sock").display()
    );
    std::fs::write(root.join("b.toml"), text).unwrap();
}

#[test]
fn paths_change_under_load_and_what_was_chosen_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let Some((target, [one, two])) = two_ports(directory.path(), "t") else {
        return;
    };
    let Some((_other, [foreign, _])) = two_ports(directory.path(), "o") else {
        return;
    };
    let root = directory.path().to_owned();
    let config = |paths: &[&str]| configure(&root, paths);
    config(&[&one]);
    let mut pair = Pair {
        engine: engine(directory.path()),
        target,
        directory,
    };
    let over = std::sync::Arc::default();
    let (socket, stop) = (pair.path("v0.sock"), std::sync::Arc::clone(&over));
    let load = std::thread::spawn(move || writing(socket, stop));
    let is = |uri: &str, state: &str| (uri.to_owned(), state.to_owned());
    assert_eq!(pair.ask(&["path", "add", "v0", &two], "c.sock")["path"], 1);
    assert_eq!(states(&pair), [is(&one, "live"), is(&two, "live")]);
    let why = refusal(&pair, &["path", "add", "v0", &foreign]);
    assert!(
        why.contains(&foreign) && why.contains("refused beside"),
        "{why}"
    );
    pair.ask(&["path", "remove", "v0", &one], "c.sock");
    assert_eq!(states(&pair), [is(&two, "live")]);
    for verb in ["remove", "fail", "drain"] {
        let why = refusal(&pair, &["path", verb, "v0", "1"]);
        assert!(
            why.contains("last usable path") && why.contains("--force"),
            "{verb}: {why}"
        );
    }
    pair.ask(&["path", "add", "v0", &one], "c.sock");
    pair.ask(&["path", "drain", "v0", &two], "c.sock");
    pair.ask(&["path", "restore", "v0", &two], "c.sock");
    pair.ask(&["path", "fail", "v0", &two], "c.sock");
    let after = [is(&two, "failed"), is(&one, "live")];
    assert_eq!(states(&pair), after);
    over.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(load.join().unwrap() > 0);
    // A path that can't be takes the good one with it.
    config(&[&one, &two, &foreign]);
    let why = refusal(&pair, &["reload"]);
    assert!(
        why.contains("nothing was changed") && why.contains(&foreign),
        "{why}"
    );
    assert_eq!(states(&pair), after);
    config(&[&one]);
    pair.engine.signal(rustix::process::Signal::TERM);
    assert!(pair.engine.ended().success());
    pair.engine = engine(pair.directory.path());
    wait_until(|| (states(&pair) == after).then_some(()));
    pair.ask(&["path", "restore", "v0", &two], "c.sock");
    assert_eq!(states(&pair), [is(&two, "live"), is(&one, "live")]);
    // The file says something else now: that holds.
    config(&[&two]);
    pair.ask(&["reload"], "c.sock");
    assert_eq!(states(&pair), [is(&two, "live")]);
    // A refused setting is not kept.
    refusal(&pair, &["path", "drain", "v0", &two]);
    pair.engine.signal(rustix::process::Signal::TERM);
    assert!(pair.engine.ended().success());
    pair.engine = engine(pair.directory.path());
    wait_until(|| (states(&pair) == [is(&two, "live")]).then_some(()));
}

/// Each I/O of one port is damaged on the way: said, counted by direction, and in `check`.
#[test]
fn damage_on_the_way_is_in_log_stat_and_check() {
    let Some(mut pair) = Pair::over(2, "") else {
        return;
    };
    let socket = pair.path("t.sock");
    let braid = |words: &[&str], socket: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.args(words).arg("--socket").arg(socket);
        command.output().unwrap()
    };
    let mut client = Client::open(&pair.path("v0.sock"));
    assert_eq!(client.write(0, 1), 0);
    let words = ["target", "set", "--port", "1", "error=0x022"];
    let set = braid(&words, &socket);
    assert!(set.status.success(), "{set:?}");
    for n in 0..8 {
        assert_eq!(client.read(n * 4096).len(), 4096);
    }
    let line = pair.engine.notes("transfer from the target was damaged");
    assert!(line.contains("check network"), "{line}");
    pair.engine
        .notes("on probation: too much of what it carries is damaged");
    let set = braid(&["target", "set", "--port", "1", "error=0"], &socket);
    assert!(set.status.success(), "{set:?}");
    wait_until(|| {
        let state = &pair.ask(&["stat"], "c.sock")["volumes"][0]["paths"][0]["state"];
        (state == "live").then_some(())
    });
    let path = &pair.ask(&["stat"], "c.sock")["volumes"][0]["paths"][0];
    assert!(path["damaged_in"].as_u64().unwrap() >= 4, "{path}");
    assert_eq!(
        (&path["damaged_out"], &path["device_errors"]),
        (&0.into(), &0.into())
    );
    let check = braid(&["check"], &pair.path("c.sock"));
    let said = one_line(&check.stdout);
    assert_eq!(check.status.code(), Some(1), "{said}");
    assert!(said.contains("damaged or failed on the way:"), "{said}");
}

/// Two volumes whose homes are two cores, over a target with one I/O queue for each host: all
/// clients are at home.
#[test]
fn few_io_queues_are_shared_by_the_cores() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let namespace = |nsid: u32| format!("[[namespace]]\nnsid = {nsid}\nbackend = \"mem:64MiB\"\n");
    let text = format!(
        "nqn = \"nqn.2026-01.org.braid:few\"\nio_queues = 1\n{}{}[[port]]\n\
         listen = \"127.0.0.1:0\"\n",
        namespace(1),
        namespace(2)
    );
    std::fs::write(file("t.toml"), text).unwrap();
    let (config, socket) = (file("t.toml"), file("t.sock"));
    let words = ["target", "-c", config.to_str().unwrap(), "--socket"];
    let words = [&words[..], &[socket.to_str().unwrap()]].concat();
    let mut target = Process::start(directory.path(), &words);
    let Some(line) = target.says("port 1: ") else {
        target.notes("io_uring");
        return no_io_uring::skip(&target.seen);
    };
    let uri = line.split_whitespace().nth(2).unwrap();
    let uri = uri.split('?').next().unwrap();
    let volume = |n: u32| {
        format!(
            "[[volume]]\nname = \"v{n}\"\n[[volume.path]]\nuri = \"{uri}?nsid={}\"\n\
             [[volume.export]]\nnbd = \"unix:{}\"\n",
            n + 1,
            file(&format!("v{n}.sock")).display()
        )
    };
    let text = format!("cores = 2\n{}{}", volume(0), volume(1));
    std::fs::write(file("b.toml"), text).unwrap();
    let mut engine = engine(directory.path());
    engine.notes("grants 1 I/O queue for 2 cores");
    for n in 0..2 {
        let mut client = Client::open_named(&file(&format!("v{n}.sock")), &format!("v{n}"));
        assert_eq!(client.write(0, 1), 0);
        assert_eq!(client.read(0), vec![1; 4096]);
        assert_eq!(client.flush(), 0);
    }
    let braid = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.args(words).arg("--socket").arg(file("c.sock"));
        command.output().unwrap()
    };
    let mut clients = [0; 3].map(|_| Client::open_named(&file("v1.sock"), "v1"));
    assert!(
        clients
            .iter_mut()
            .all(|it| it.write(0, 2) == 0 && it.flush() == 0)
    );
    wait_until(|| {
        let stat = braid(&["stat", "-o", "json"]);
        let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
        let cores = &stat["volumes"][1]["exports"][0]["cores"];
        (cores[0]["clients"] == 0 && cores[1]["clients"] == 3).then_some(())
    });
    let check = braid(&["check"]);
    assert_eq!(check.status.code(), Some(0), "{check:?}");
    let stat = braid(&["stat"]);
    let stat = String::from_utf8(stat.stdout).unwrap();
    let words: Vec<&str> = stat.split_whitespace().collect();
    let told = words.join(" ").contains("I/O queues for 1 core only");
    assert!(told, "{stat}");
    engine.signal(rustix::process::Signal::TERM);
    assert_eq!(engine.ended().code(), Some(0));
}
