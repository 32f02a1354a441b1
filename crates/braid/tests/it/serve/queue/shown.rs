//! Reports about I/O that a queue server has and does not answer.
use crate::serve::process::{Client, Process, engine, wait_until};
use rustix::process::Signal;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Output of `braid stat`, in text or as JSON.
fn stat(root: &Path, format: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(["stat", "-o", format, "--socket"]);
    let output = command.arg(root.join("c.sock")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn volume(root: &Path) -> serde_json::Value {
    let stat: serde_json::Value = serde_json::from_str(&stat(root, "json")).unwrap();
    stat["volumes"][0].clone()
}

#[test]
fn t09_writes_that_wait_for_a_dead_queue_server_are_shown_with_their_age_and_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let socket = root.join("q.sock");
    let words = [
        "queue",
        "serve",
        "mem:1MiB",
        "--socket",
        socket.to_str().unwrap(),
    ];
    let mut server = Process::start(root, &words);
    server.says("q.sock").unwrap();
    let config = format!(
        "[[volume]]\nname = \"v0\"\nfast_io_fail_tmo = \"12s\"\n\
         [[volume.path]]\nuri = \"queue:{}\"\n[[volume.export]]\nnbd = \"unix:{}\"\n",
        socket.display(),
        root.join("v0.sock").display()
    );
    std::fs::write(root.join("b.toml"), config).unwrap();
    let _engine = engine(root);
    let mut clients = [0, 1].map(|_| Client::open(&root.join("v0.sock")));
    server.freeze();
    for (block, client) in (0..).zip(&mut clients) {
        client.send_write(block * 4096, 7);
    }
    // Before anybody has given it up.
    wait_until(|| {
        let age_ns = volume(root)["paths"][0]["inflight_age_ns"].as_u64();
        (age_ns >= Some(1_000_000_000)).then_some(())
    });
    let text = stat(root, "text");
    assert!(text.contains("2 in flight (the oldest for "), "{text}");
    server.signal(Signal::KILL);
    server.ended();
    let waiting = wait_until(|| {
        let waiting = volume(root)["waiting"].clone();
        (waiting["held"] != 0).then_some(waiting)
    });
    assert_eq!(
        (&waiting["held"], &waiting["held_reason"]),
        (&2.into(), &"queue-server".into())
    );
    assert!(
        waiting["held_age_ns"].as_u64() >= Some(1_000_000_000),
        "{waiting}"
    );
    let left_ns = waiting["held_until_in_ns"].as_u64().unwrap();
    assert!((1..=5_000_000_000).contains(&left_ns), "{waiting}");
    let text = stat(root, "text")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(
        text.contains("waiting: 2 writes held, the oldest for "),
        "{text}"
    );
    assert!(
        text.contains(": the queue server that had it and was given up may yet"),
        "{text}"
    );
    wait_until(|| (volume(root)["waiting"]["held"] == 0).then_some(()));
    // There is no other way, and its server does not return.
    for client in &mut clients {
        assert_ne!(client.answer(), 0);
    }
}

/// Where nothing else says so.
#[test]
fn a_server_says_who_can_not_come_and_that_a_signal_ends_it() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let socket = root.join("q.sock");
    let socket = socket.to_str().unwrap();
    let serve = ["queue", "serve", "mem:1MiB", "--socket", socket];
    let mut server = Process::start(root, &[&serve[..], &["--allow", "uid=4242"]].concat());
    server.says("q.sock").unwrap();
    server.notes("user 4242 can't connect");
    // Not SIGHUP: who is started under nohup ignores that.
    server.signal(Signal::TERM);
    server.notes("told to end by a signal");
    server.ended();
}

/// `ulimit -f`, or LimitFSIZE of systemd: who writes behind that gets an error, and all others go
/// on.
#[test]
fn a_limit_on_the_size_of_files_ends_no_server() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let file = root.join("data");
    std::fs::File::create(&file)
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    let braid = env!("CARGO_BIN_EXE_braid");
    let socket = root.join("q.sock");
    let mut server = Command::new("sh");
    // 8 MiB, or 16: a shell's blocks have 512 bytes or 1024.
    let limited = "ulimit -f 16384 && exec \"$0\" \"$@\"";
    server.args(["-c", limited, braid, "queue", "serve"]);
    server.arg(format!("file:{}", file.display()));
    let mut server = server.arg("--socket").arg(&socket).spawn().unwrap();
    let list = || {
        let mut list = Command::new(braid);
        list.args(["queue", "list", "--socket"]).arg(&socket);
        list.output().unwrap().status.success()
    };
    wait_until(|| (list() || server.try_wait().unwrap().is_some()).then_some(()));
    let mut bench = Command::new(braid);
    bench.args(["queue", "bench", "--rw", "write", "--offset", "32m"]);
    bench.args(["--size", "4k", "--iodepth", "1", "--runtime", "0.1"]);
    let bench = bench.arg("--socket").arg(&socket).output().unwrap();
    assert_eq!(bench.status.code(), Some(1), "{bench:?}");
    let lives = list();
    let _ = server.kill();
    let _ = server.wait();
    assert!(lives, "{bench:?}");
}

#[test]
fn a_server_goes_on_whose_words_nobody_reads() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("q.sock");
    let braid = || Command::new(env!("CARGO_BIN_EXE_braid"));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut server = braid();
    server.args(["queue", "serve", "mem:1MiB", "--socket"]);
    let mut server = server.arg(&socket).stdout(writer).spawn().unwrap();
    let listed = wait_until(|| {
        let list = braid()
            .args(["queue", "list", "--socket"])
            .arg(&socket)
            .output();
        let listed = list.unwrap().status.success();
        (listed || server.try_wait().unwrap().is_some()).then_some(listed)
    });
    let _ = server.kill();
    let _ = server.wait();
    assert!(listed, "it has ended");
}

/// `braid queue list` of another user, who may use a part.
#[test]
fn a_user_is_shown_what_it_may_use() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    if !rustix::process::geteuid().is_root() {
        let name = "a_user_is_shown_what_it_may_use";
        let _ = writeln!(
            std::io::stderr(),
            "SKIP {name}: needs root for another user"
        );
        return;
    }
    std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755)).unwrap();
    let socket = root.join("q.sock");
    let allow = "uid=4242,nsid=2,first=16,blocks=8,read-only";
    let words = ["queue", "serve", "mem:1MiB", "mem:2MiB", "--allow", allow];
    let at = ["--mode", "0666", "--socket", socket.to_str().unwrap()];
    let mut server = Process::start(root, &[&words[..], &at].concat());
    server.says("q.sock").unwrap();
    // The program may lie where that user finds nothing.
    let program = root.join("braid");
    std::fs::copy(env!("CARGO_BIN_EXE_braid"), &program).unwrap();
    let said_to = |uid: u32, words: &[&str]| {
        let mut command = Command::new(&program);
        command.args(["queue", words[0], "--socket"]).arg(&socket);
        let output = command.args(&words[1..]).uid(uid).output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
        (out, err)
    };
    let said = |words: &[&str]| said_to(4242, words);
    let (list, _) = said(&["list"]);
    let rows: Vec<Vec<&str>> = list
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let row = [
        "2",
        "2",
        "MiB",
        "4",
        "KiB",
        "blocks",
        "16",
        "to",
        "23",
        "read-only",
    ];
    assert!(rows.contains(&row.to_vec()), "{list}");
    assert!(!rows.iter().any(|row| row.first() == Some(&"1")), "{list}");
    assert!(!list.contains("sleeps"), "{list}");
    // A user that sees all of them is not told that they are its own.
    let (all, _) = said_to(0, &["list"]);
    assert_eq!(all.matches(" none").count(), 2, "{all}");
    let (_, errors) = said(&["bench", "--nsid", "2", "--iodepth", "1", "--rw", "read"]);
    assert!(
        errors.contains("access denied") && errors.contains("braid queue list"),
        "{errors}"
    );
}

/// There is no failover in a measurement: it shows what its paths do.
#[test]
fn a_load_ends_when_one_of_its_paths_is_a_queue_whose_server_dies() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::write(root.join("data"), vec![0; 1 << 20]).unwrap();
    let file = format!("file:{}", root.join("data").display());
    let nqn = "nqn.2026-01.org.example:shown";
    let sockets = ["1", "2"].map(|name| root.join(name).to_str().unwrap().to_owned());
    let mut servers = sockets.each_ref().map(|socket| {
        let number = &socket[socket.len() - 1..];
        let words = [
            "queue",
            "serve",
            &file,
            "--subsystem",
            nqn,
            "--controller",
            number,
        ];
        let mut server = Process::start(root, &[&words[..], &["--socket", socket]].concat());
        server.says("user_irq queues on").unwrap();
        server
    });
    let uris = sockets.each_ref().map(|socket| format!("queue:{socket}"));
    let words = [
        "bench",
        &uris[0],
        &uris[1],
        "--rw",
        "randread",
        "--runtime",
        "1h",
        "-o",
        "json",
    ];
    let mut bench = Command::new(env!("CARGO_BIN_EXE_braid"));
    let bench = bench
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let bench = bench.spawn().unwrap();
    wait_until(|| {
        let mut list = Command::new(env!("CARGO_BIN_EXE_braid"));
        list.args(["queue", "list", "-o", "json", "--socket", &sockets[0]]);
        let list = list.output().unwrap().stdout;
        let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
        (list["queues"][0]["commands"].as_u64() > Some(100)).then_some(())
    });
    servers[0].signal(Signal::KILL);
    servers[0].ended();
    let output = bench.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let facts: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let why = facts["error"].as_str().unwrap();
    assert!(
        why.contains(&uris[0]) && why.contains("its server has ended"),
        "{why}"
    );
    assert!(facts["iops"].as_f64() > Some(0.0), "{facts}");
}
