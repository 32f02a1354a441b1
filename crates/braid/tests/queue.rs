//! `braid queue` as its users type it: a server, several clients, some of which are killed.
#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::Value;
use std::io::{BufRead, BufReader};
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
        let shown = server.list();
        assert_eq!(shown["namespaces"][2]["blocks"], 1 << 18);
        let text = server.client("list", &[]).output().unwrap();
        let text = String::from_utf8(text.stdout).unwrap();
        assert!(text.contains("8 user_poll and 8 user_irq queues"), "{text}");
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
    ];
    for (allow, why) in refused {
        fails(&mut serve(&["--allow", allow]), 2, why);
    }
    fails(
        &mut serve(&["--user-poll", "0", "--user-irq", "0"]),
        2,
        "nobody could have a queue",
    );
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
    fails(
        &mut serve(&["nvme-tcp://h/nqn.x:y"]),
        2,
        "mem:, file:, null: and nbd: only",
    );
    fails(&mut serve(&["mem:100"]), 2, "multiple of 4 KiB");
    fails(
        &mut serve(&["mem:1MiB", "--read-only", "2"]),
        2,
        "no such namespace",
    );
    fails(
        &mut serve(&["mem:1MiB", "--allow", "nsid=1"]),
        2,
        "say whom",
    );
    fails(
        &mut serve(&["mem:1MiB", "--block-size", "100"]),
        2,
        "512, 1024",
    );
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
    fails(&mut bench(&["--iodepth", "5000"]), 2, "a queue takes 4095");
    fails(&mut bench(&["--bs", "512"]), 2, "multiples");
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
    let facts = json(&honest.wait_with_output().unwrap());
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

fn until(mut is: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is() {
        assert!(begun.elapsed().as_secs() < 60, "not within a minute");
    }
}
