//! `braid queue` as its users type it: a server, several clients, some of which are killed.
mod engine;
mod lying_broker;
mod path;
mod shown;

use crate::serve::no_io_uring;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

fn braid() -> Command {
    Command::new(env!("CARGO_BIN_EXE_braid"))
}

/// `braid queue serve`; killed when dropped.
struct Server {
    child: Child,
    directory: tempfile::TempDir,
}

impl Server {
    fn start(words: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut child = braid()
            .args(["queue", "serve"])
            .args(words)
            .arg("--socket")
            .arg(directory.path().join("q.sock"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let said = child.stdout.take().unwrap();
        BufReader::new(said).read_line(&mut line).unwrap();
        assert!(line.contains("q.sock"), "{line}");
        Self { child, directory }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("q.sock")
    }

    fn client(&self, verb: &str, words: &[&str]) -> Command {
        let mut command = braid();
        command.args(["queue", verb, "--socket"]);
        command.arg(self.socket()).args(words);
        command
    }

    fn bench(&self, words: &[&str]) -> Value {
        let output = self.client("bench", words).args(["-o", "json"]).output();
        json(&output.unwrap())
    }

    fn list(&self) -> Value {
        json(&self.client("list", &["-o", "json"]).output().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn json(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn fails(command: &mut Command, code: i32, part: &str) {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{errors}");
    assert!(errors.contains(part), "{errors}");
}

#[test]
fn a_load_is_verified_on_memory_and_file_by_both_kinds_of_queue() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("blocks");
    std::fs::File::create(&file)
        .unwrap()
        .set_len(8 << 20)
        .unwrap();
    let uri = format!("file:{}", file.display());
    for trust in [&["--trusted"][..], &[]] {
        let mut words = vec!["mem:8MiB", &uri, "null:1GiB"];
        words.extend(trust);
        let server = Server::start(&words);
        for kind in ["user_poll", "user_irq"] {
            for nsid in ["1", "2"] {
                let facts = server.bench(&[
                    "--kind",
                    kind,
                    "--nsid",
                    nsid,
                    "--rw",
                    "randrw",
                    "--bs",
                    "4k",
                    "--iodepth",
                    "16",
                    "--size",
                    "4m",
                    "--verify",
                ]);
                assert_eq!(facts["errors"], 0, "{facts}");
                assert!(
                    facts["verified_bytes"].as_u64().unwrap() > 1 << 20,
                    "{facts}"
                );
            }
        }
        let facts = server.bench(&[
            "--nsid",
            "3",
            "--rw",
            "randread",
            "--runtime",
            "0.2",
            "--cores",
            "2",
        ]);
        assert!(facts["iops"].as_f64().unwrap() > 0.0, "{facts}");
        assert!(facts["ios"].as_u64().unwrap() > 0, "{facts}");
        let shown = server.list();
        let thread = &shown["threads"][0];
        for key in ["enters", "sleeps"] {
            assert!(thread[key].as_u64().unwrap() > 0, "{shown}");
        }
        assert_eq!(shown["namespaces"][2]["blocks"], 1 << 18);
        let text = server.client("list", &[]).output().unwrap();
        let text = String::from_utf8(text.stdout).unwrap();
        assert!(text.contains("8 user_poll and 8 user_irq queues"), "{text}");
        assert!(text.contains("io_uring_enter calls"), "{text}");
    }
}

#[test]
fn rights_to_what_is_not_there_and_a_server_without_queues_are_refused() {
    let serve = |words: &[&str]| {
        let mut command = braid();
        command.args([
            "queue",
            "serve",
            "--socket",
            "/nonexistent/q.sock",
            "mem:1MiB",
        ]);
        command.args(words);
        command
    };
    let refused = [
        ("uid=any,nsid=2", "nsid=2: there is no such namespace"),
        ("uid=any,nsid=0", "nsid=0"),
        ("uid=0,nsid=1,first=256", "the namespace has 256 blocks"),
        ("uid=0,nsid=1,blocks=0", "a right to nothing"),
        ("uid=0,nsid=1,blocks=257", "the namespace has 256 blocks"),
        ("uid=4294967295", "is no user"),
        ("uid=0,nsid=1,read-only,read-write", "leave it out"),
    ];
    for (allow, why) in refused {
        fails(&mut serve(&["--allow", allow]), 2, why);
    }
    fails(
        &mut serve(&["--user-poll", "0", "--user-irq", "0"]),
        2,
        "nobody could have a queue",
    );
    fails(&mut serve(&["--memory-max", "0"]), 2, "nobody could have");
    let syntax = "--allow uid=1000,nsid=1,depth=64,memory=1GiB";
    for wrong in ["uid=1,colour=red", "1000", "uid=1 nsid=1", "nsid=1"] {
        fails(&mut serve(&["--allow", wrong]), 2, syntax);
    }
}

/// A file of a tmpfs has no queue that could be looked at.
#[test]
fn what_can_not_be_polled_is_said_and_what_to_do() {
    let skip = |why: &str| {
        let _ = writeln!(
            std::io::stderr(),
            "SKIP what_can_not_be_polled_is_said_and_what_to_do: {why}"
        );
    };
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        return skip("there is no /dev/shm");
    };
    let file = directory.path().join("blocks");
    std::fs::write(&file, vec![0; 1 << 20]).unwrap();
    let uri = format!("file:{}", file.display());
    let bench = |kind: &str| {
        let mut command = braid();
        command.args(["queue", "bench", &uri, "--rw", "randread", "--kind", kind]);
        command.args(["--runtime", "0.1"]).output().unwrap()
    };
    let waits = bench("user_irq");
    let errors = String::from_utf8_lossy(&waits.stderr).into_owned();
    if !waits.status.success() {
        return skip(&errors);
    }
    let polls = bench("user_poll");
    let errors = String::from_utf8_lossy(&polls.stderr).into_owned();
    if polls.status.success() {
        return skip("this tmpfs can be polled");
    }
    assert_eq!(polls.status.code(), Some(1), "{errors}");
    assert!(errors.contains("can't be polled"), "{errors}");
    assert!(errors.contains("--kind user_irq"), "{errors}");
}

#[test]
fn what_cannot_be_is_said() {
    let nowhere = Path::new("/nonexistent/q.sock").to_str().unwrap();
    for verb in ["list", "bench"] {
        let mut command = braid();
        fails(
            command.args(["queue", verb, "--socket", nowhere]),
            1,
            "no queue server answers on",
        );
    }
    let serve = |words: &[&str]| {
        let mut command = braid();
        command
            .args(["queue", "serve", "--socket", nowhere])
            .args(words);
        command
    };
    fails(&mut serve(&["mem:1MiB"]), 1, "cannot make the socket");
    for (words, why) in [
        (&["nvme-tcp://h/nqn.x:y"][..], "mem:, file: and null: only"),
        (&["mem:100"], "multiple of 4 KiB"),
        (&["mem:99999999t"], "it is too large"),
        (&["disk.img"], "mem:SIZE, file:/PATH or null:SIZE"),
        (&["nbd://h/x"], "offered by [[queue]]"),
        (&["nbd:unix:/run/v0.sock"], "[[queue.namespace]]"),
        (&["nbd:unix:v0.sock"], "unix:/path"),
        (&["mem:1MiB", "--mode", "999"], "octal digits, 0 to 7"),
        (&["mem:1MiB", "--read-only", "2"], "no such namespace"),
        (&["mem:1MiB", "--allow", "nsid=1"], "say whom"),
        (&["mem:1MiB", "--block-size", "100"], "512, 1024"),
    ] {
        fails(&mut serve(words), 2, why);
    }
    let server = Server::start(&["mem:1MiB", "--read-only", "1", "--user-irq", "0"]);
    let mode = std::fs::metadata(server.socket())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let bench = |words: &[&str]| server.client("bench", words);
    fails(&mut bench(&["--nsid", "2"]), 1, "no namespace 2");
    fails(
        &mut bench(&["--kind", "user_irq"]),
        1,
        "all 0 queues of kind user_irq are in use",
    );
    for (words, why) in [
        (["--iodepth", "5000"], "a queue takes 4095"),
        (["--bs", "512"], "multiples"),
        (["--runtime", "0"], "nothing is measured"),
        (["--io-timeout", "1ms"], "shorter than 10ms"),
    ] {
        fails(&mut bench(&words), 2, why);
    }
    fails(
        &mut bench(&["--rw", "write", "--runtime", "1"]),
        1,
        "write protected",
    );
    let mut second = braid();
    second
        .args(["queue", "serve", "mem:1MiB", "--socket"])
        .arg(server.socket());
    fails(&mut second, 1, "another queue server listens on");
}

#[test]
fn clients_that_are_killed_give_their_queues_back_and_others_go_on() {
    let server = Server::start(&["mem:8MiB", "--user-poll", "3", "--user-irq", "2"]);
    let mut honest = server
        .client(
            "bench",
            &[
                "--rw",
                "randrw",
                "--size",
                "4m",
                "--iodepth",
                "8",
                "--verify",
                "--runtime",
                "60",
            ],
        )
        .args(["-o", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let busy = |server: &Server| server.list()["queues"].as_array().unwrap().len();
    until(|| busy(&server) == 1);
    for round in 0..20 {
        let kind = ["user_poll", "user_irq"][round % 2];
        let mut victims: Vec<Child> = (0..2)
            .map(|_| {
                let words = [
                    "--rw",
                    "randread",
                    "--kind",
                    kind,
                    "--iodepth",
                    "32",
                    "--runtime",
                    "60",
                ];
                server
                    .client("bench", &words)
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
        until(|| busy(&server) == 3);
        for victim in &mut victims {
            victim.kill().unwrap();
            victim.wait().unwrap();
        }
        until(|| busy(&server) == 1);
    }
    assert!(honest.try_wait().unwrap().is_none(), "it goes on");
    let pid = rustix::process::Pid::from_child(&honest);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    // Not all was verified that was to be.
    let output = honest.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let facts: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&facts["errors"], &facts["interrupted"]),
        (&0.into(), &true.into())
    );
    assert!(facts["verified_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn a_server_that_dies_ends_its_clients_and_one_that_stops_leaves_no_socket() {
    for kind in ["user_poll", "user_irq"] {
        let mut server = Server::start(&["mem:8MiB"]);
        let words = ["--rw", "randread", "--kind", kind, "--runtime", "60"];
        let client = server
            .client("bench", &words)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until(|| server.list()["queues"].as_array().unwrap().len() == 1);
        server.child.kill().unwrap();
        let ended = client.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1));
        // While it opens its queue or while it reads: in both the server is named as what has gone.
        assert!(errors.contains("the broker has ended"), "{errors}");
    }
    let mut server = Server::start(&["mem:8MiB"]);
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.child.wait().unwrap().success());
    assert!(!server.socket().exists());
}

/// A load without end that has begun, as JSON; `words` come behind the verb.
fn begun(server: &Server, command: &mut Command) -> Child {
    command.args(["-o", "json", "--runtime", "600", "--iodepth", "8"]);
    command.args(["--rw", "randread", "--bs", "8k"]);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    until(|| server.list()["queues"][0]["commands"].as_u64() > Some(1000));
    child
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Text behind the name in each of a process' threads' stat (proc(5)).
fn threads(child: &Child) -> Vec<Vec<String>> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let stats = tasks
        .flatten()
        .map(|task| std::fs::read_to_string(task.path().join("stat")));
    let words = |stat: String| {
        let behind = stat.rsplit(") ").next()?.split(' ').map(str::to_owned);
        Some(behind.collect())
    };
    stats.flatten().filter_map(words).collect()
}

/// Stops a server, and returns when it does nothing any more and its client has noticed: that has
/// submitted what will not be answered, and sleeps, or has spent time on looking.
fn stand_still(server: &Child, client: &Child) {
    signal(server, rustix::process::Signal::STOP);
    until(|| threads(server).iter().all(|it| it[0] == "T"));
    let ticks = || -> u64 {
        let all = threads(client);
        all.iter()
            .flat_map(|it| [&it[11], &it[12]])
            .map(|it| it.parse::<u64>().unwrap())
            .sum()
    };
    let before = ticks();
    until(|| ticks() > before + 2 || threads(client).iter().all(|it| it[0] == "S"));
}

/// The figures of a load that failed because of what was never answered; `part` is in the reason,
/// behind how many. A server that stops may have answered some of the eight, and told nobody yet.
fn unanswered(load: Child, part: &str) -> Value {
    let output = load.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let facts: Value = serde_json::from_slice(&output.stdout).unwrap();
    let count = facts["unanswered"].as_u64().unwrap();
    assert!((1..=8).contains(&count), "{facts}");
    assert_eq!(facts["errors"], count, "{facts}");
    assert!(facts["iops"].as_f64().unwrap() > 0.0, "{facts}");
    let error = facts["error"].as_str().unwrap();
    let part = part.replace("{}", &count.to_string());
    assert!(error.contains(&part), "{error}");
    assert!(
        errors.contains(error),
        "{errors} says what programs are told: {error}"
    );
    facts
}

#[test]
fn a_server_that_stands_still_or_dies_ends_a_load_with_its_figures_and_the_reason() {
    use rustix::process::Signal;
    let mut server = Server::start(&["mem:8MiB"]);
    for kind in ["user_poll", "user_irq"] {
        let mut bench = server.client("bench", &["--kind", kind, "--io-timeout", "1"]);
        let load = begun(&server, &mut bench);
        stand_still(&server.child, &load);
        let facts = unanswered(load, "has not answered {} I/O");
        assert_eq!(facts["interrupted"], false);
        assert_eq!(
            (&facts["order"], &facts["outstanding"]),
            (&"random".into(), &8.into())
        );
        assert_eq!(facts["read_sizes"][0]["bytes"], 8192);
        signal(&server.child, Signal::CONT);
        until(|| server.list()["queues"].as_array().unwrap().is_empty());
    }
    // A client that has enough of waiting.
    let load = begun(&server, &mut server.client("bench", &[]));
    stand_still(&server.child, &load);
    signal(&load, Signal::INT);
    let facts = unanswered(load, "ended early: {} I/O");
    assert_eq!(facts["interrupted"], true);
    // While it opens its queue, too.
    let opening = server
        .client("bench", &["-o", "json"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until(|| catches(&opening));
    signal(&opening, Signal::INT);
    let output = opening.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("interrupted before the queue server on"),
        "{errors}"
    );
    signal(&server.child, Signal::CONT);
    until(|| server.list()["queues"].as_array().unwrap().is_empty());
    let load = begun(&server, &mut server.client("bench", &[]));
    server.child.kill().unwrap();
    let facts = unanswered(load, "the broker has ended");
    assert_eq!(facts["interrupted"], false);
}

#[test]
fn t11_a_server_that_lies_beside_an_answer_ends_the_load_of_all_cores_and_nobody_interrupted_it() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("q.sock");
    lying_broker::start(&socket);
    let mut bench = braid();
    bench.args(["queue", "bench", "--socket"]).arg(&socket);
    bench.args(["--cores", "2", "--iodepth", "8", "--bs", "4k"]);
    bench.args(["--rw", "randread", "--runtime", "600", "-o", "json"]);
    let output = bench.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let facts: Value = serde_json::from_slice(&output.stdout).unwrap();
    let error = facts["error"].as_str().unwrap();
    assert!(error.contains("which is not in flight"), "{error}");
    // One of the eight of the queue that lies was answered, and another one sent in its place: the
    // error is returned by the reap after it.
    assert_eq!(facts["unanswered"], 8, "{facts}");
    assert_eq!(facts["interrupted"], false, "{facts}");
}

/// Whether a process would not die of SIGINT (proc(5), SigCgt).
fn catches(child: &Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = u64::from_str_radix(mask.unwrap().trim(), 16).unwrap();
    mask >> 1 & 1 == 1
}

/// A load on the server as a path; `None`, and said so: the kernel has no io_uring for us.
fn bench_of_a_path(server: &Server) -> Option<Command> {
    let mut probe = braid();
    probe.args(["bench", "null:1MiB", "--runtime", "10ms"]);
    let output = probe.output().unwrap();
    if !output.status.success() {
        no_io_uring::skip(&String::from_utf8_lossy(&output.stderr));
        return None;
    }
    let mut bench = braid();
    bench
        .arg("bench")
        .arg(format!("queue:{}", server.socket().display()));
    Some(bench)
}

#[test]
fn a_load_on_a_path_ends_before_its_server_answers_and_says_what_was_never_answered() {
    use rustix::process::Signal;
    let server = Server::start(&["mem:8MiB"]);
    let Some(mut bench) = bench_of_a_path(&server) else {
        return;
    };
    let load = begun(&server, &mut bench);
    stand_still(&server.child, &load);
    signal(&load, Signal::INT);
    let facts = unanswered(load, "ended early: {} I/O");
    assert_eq!(facts["interrupted"], true);
    assert_eq!(
        (&facts["order"], &facts["iodepth"]),
        (&"random".into(), &8.into())
    );
    signal(&server.child, Signal::CONT);
}

#[test]
fn a_load_on_a_path_ends_with_its_server_and_says_so() {
    let mut server = Server::start(&["mem:8MiB"]);
    let Some(mut bench) = bench_of_a_path(&server) else {
        return;
    };
    let load = begun(&server, &mut bench);
    server.child.kill().unwrap();
    let output = load.wait_with_output().unwrap();
    let facts: Value = serde_json::from_slice(&output.stdout).unwrap();
    let error = facts["error"].as_str().unwrap();
    assert!(error.contains("lost: its server has ended"), "{error}");
    assert_eq!(facts["interrupted"], false, "{facts}");
}

fn until(mut is: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is() {
        assert!(begun.elapsed().as_secs() < 60, "not within a minute");
    }
}
