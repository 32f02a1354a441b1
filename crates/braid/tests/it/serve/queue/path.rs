//! A hardware queue as a path of a volume, beside one over the network to the same file.
mod late;

use crate::serve::no_io_uring;
use crate::serve::process;
use crate::serve::process::{Client, Process, engine, one_line, wait_until};
use rustix::process::Signal;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const NQN: &str = "nqn.2026-01.org.example:queue-path";
const BLOCKS: u64 = 256;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A server of queues to the file, which belongs to the subsystem.
fn serve(root: &Path) -> Process {
    serve_at(root, "q.sock", "65000")
}

/// The same with a socket of this name, and a controller of this number.
fn serve_at(root: &Path, name: &str, controller: &str) -> Process {
    serve_of(root, NQN, name, controller)
}

/// The same of this subsystem.
fn serve_of(root: &Path, nqn: &str, name: &str, controller: &str) -> Process {
    let (file, socket) = (
        format!("file:{}", text(&root.join("data"))),
        root.join(name),
    );
    let words = [
        "queue",
        "serve",
        &file,
        "--subsystem",
        nqn,
        "--controller",
        controller,
        "--socket",
        text(&socket),
    ];
    let mut server = Process::start(root, &words);
    server.says(name).unwrap();
    server
}

/// A server of queues to these.
fn serve_all(root: &Path, namespaces: &[&str]) -> Process {
    let socket = root.join("q.sock");
    let words = [
        &["queue", "serve"],
        namespaces,
        &["--socket", text(&socket)],
    ]
    .concat();
    let mut server = Process::start(root, &words);
    server.says("q.sock").unwrap();
    server
}

/// A target with the same file; its URI.
fn target(root: &Path) -> Option<(Process, String)> {
    let config = format!(
        "nqn = \"{NQN}\"\n[[port]]\nlisten = \"127.0.0.1:0\"\n\
         [[namespace]]\nnsid = 1\nbackend = \"file:{}\"\nblock_size = 4096\n",
        text(&root.join("data"))
    );
    let (path, socket) = (root.join("t.toml"), root.join("t.sock"));
    std::fs::write(&path, config).unwrap();
    let words = ["target", "-c", text(&path), "--socket", text(&socket)];
    let mut target = Process::start(root, &words);
    let Some(line) = target.says("port 1: ") else {
        target.notes("io_uring");
        no_io_uring::skip(&target.seen);
        return None;
    };
    let uri = line.split_whitespace().nth(2).unwrap().to_owned();
    Some((target, uri))
}

/// A volume over the queue and the target.
fn configure(root: &Path, uri: &str) {
    configure_with(root, uri, "", "");
}

/// The same with more keys of the engine and the volume.
fn configure_with(root: &Path, uri: &str, engine: &str, volume: &str) {
    let config = format!(
        "keep_alive_tmo = \"1s\"\n{engine}\n\
         [[volume]]\nname = \"v0\"\npolicy = \"round-robin\"\n{volume}\n\
         [[volume.path]]\nuri = \"queue:{}?nsid=1\"\n[[volume.path]]\nuri = \"{uri}\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        text(&root.join("q.sock")),
        text(&root.join("v0.sock"))
    );
    std::fs::write(root.join("b.toml"), config).unwrap();
}

/// Paths of the volume in `braid stat`.
fn paths(root: &Path) -> Vec<serde_json::Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(["stat", "-o", "json", "--socket"]);
    let output = command.arg(root.join("c.sock")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let stat: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    stat["volumes"][0]["paths"].as_array().unwrap().clone()
}

/// Commands that each path has completed.
fn completed(root: &Path) -> Vec<u64> {
    let paths = paths(root);
    let count = |path: &serde_json::Value| Some(path["writes"].as_u64()? + path["reads"].as_u64()?);
    paths
        .iter()
        .map(|path| count(path).unwrap_or_else(|| panic!("{path}")))
        .collect()
}

fn flush(client: &mut Client) -> u32 {
    let head = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 3];
    client.0.write_all(&[&head[..], &[0; 20]].concat()).unwrap();
    client.answer()
}

/// Writes and reads back as fast as it goes until `over`; what every block has in the end.
fn load(socket: PathBuf, over: &AtomicBool, rounds: &AtomicU64) -> Vec<u8> {
    let mut client = Client::open(&socket);
    let mut fills = vec![0; BLOCKS as usize];
    let mut round = 0_u64;
    while !over.load(Ordering::Acquire) {
        let (block, fill) = (round * 7 % BLOCKS, (round % 251) as u8);
        assert_eq!(client.write(block * 4096, fill), 0, "round {round}");
        fills[block as usize] = fill;
        // Both ways get both, though they take turns.
        for other in [block, round * 13 % BLOCKS] {
            assert_eq!(client.read(other * 4096), [fills[other as usize]; 4096]);
        }
        round += 1;
        rounds.store(round, Ordering::Release);
    }
    fills
}

#[test]
fn t09_t13_a_queue_and_a_controller_are_paths_of_one_volume_and_either_may_die() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let file = std::fs::File::create(root.join("data")).unwrap();
    file.set_len(BLOCKS * 4096).unwrap();
    let Some((mut target, uri)) = target(root) else {
        return;
    };
    let mut server = serve(root);
    configure(root, &uri);
    let engine = engine(root);
    let engine = std::cell::RefCell::new(engine);
    let (over, rounds) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let loading = {
        let (over, rounds) = (Arc::clone(&over), Arc::clone(&rounds));
        let socket = root.join("v0.sock");
        std::thread::spawn(move || load(socket, &over, &rounds))
    };
    let goes_on = || {
        let from = rounds.load(Ordering::Acquire);
        wait_until(|| {
            assert!(!loading.is_finished(), "the load failed");
            (rounds.load(Ordering::Acquire) > from + 100).then_some(())
        });
    };
    // More of the path numbered so than there were.
    let served_by = |path: usize| {
        let from = completed(root)[path];
        wait_until(|| (completed(root)[path] > from).then_some(()));
    };
    served_by(0);
    served_by(1);
    server.signal(Signal::KILL);
    server.ended();
    served_by(1);
    // Writes that the dead one acknowledged are not durable before another has flushed it (T13).
    let socket = root.join("v0.sock");
    let flushing = std::thread::spawn(move || flush(&mut Client::open(&socket)));
    goes_on();
    assert!(!flushing.is_finished());
    let mut server = serve(root);
    assert_eq!(flushing.join().unwrap(), 0);
    served_by(0);
    goes_on();
    target.signal(Signal::KILL);
    target.ended();
    served_by(0);
    over.store(true, Ordering::Release);
    let fills = loading.join().unwrap();
    // The file has the data of the volume.
    let data = std::fs::read(root.join("data")).unwrap();
    for (block, fill) in fills.iter().enumerate() {
        let bytes = &data[block * 4096..][..4096];
        assert!(bytes.iter().all(|byte| byte == fill), "block {block}");
    }
    let mut engine = engine.into_inner();
    engine.signal(Signal::TERM);
    assert!(engine.ended().success());
    server.signal(Signal::TERM);
    assert!(server.ended().success());
}

/// A command is 64 KiB at most, and a queue has 63 of them.
#[test]
fn requests_of_any_size_and_number_go_through_a_queue() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let server = serve_all(root, &["null:1TiB", "mem:64MiB"]);
    let socket = root.join("q.sock");
    for (nsid, words) in [
        (1, "--rw read --bs 1m --iodepth 1 --size 4m"),
        (1, "--rw write --bs 128k --iodepth 1 --size 4m --spin"),
        (1, "--rw randread --bs 1m --iodepth 256 --size 512m"),
        (2, "--rw randwrite --bs 1m --iodepth 1 --verify"),
        (
            2,
            "--rw randrw --bssplit 4k/40:72k/20:128k/20:1m/20 --iodepth 100 --verify",
        ),
        (2, "--rw write --bs 4k --iodepth 300 --size 16m --verify"),
    ] {
        let uri = format!("queue:{}?nsid={nsid}", text(&socket));
        let words: Vec<_> = ["bench", &uri]
            .into_iter()
            .chain(words.split(' '))
            .collect();
        let mut bench = Process::start(root, &words);
        if !bench.ended().success() {
            bench.notes("io_uring");
            return no_io_uring::skip(&bench.seen);
        }
    }
    drop(server);
}

#[test]
fn t13_a_flush_fails_in_time_when_the_server_of_queues_does_not_return() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let file = std::fs::File::create(root.join("data")).unwrap();
    file.set_len(BLOCKS * 4096).unwrap();
    let Some((_target, uri)) = target(root) else {
        return;
    };
    let mut server = serve(root);
    let keys = "io_timeout = \"2s\"\ncores = 1";
    configure_with(root, &uri, keys, "flush_timeout = \"1s\"");
    let _engine = engine(root);
    let mut clients = [(); 2].map(|()| Client::open(&root.join("v0.sock")));
    for block in 0..32 {
        assert_eq!(clients[0].write(block * 4096, 1), 0);
    }
    server.signal(Signal::KILL);
    server.ended();
    for client in &mut clients {
        let head = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 3];
        client.0.write_all(&[&head[..], &[0; 20]].concat()).unwrap();
    }
    let answers = clients.each_mut().map(Client::answer);
    assert!(answers.iter().all(|&error| error != 0), "{answers:?}");
    // It was told to all who waited, and is told to nobody again.
    assert_eq!(flush(&mut clients[0]), 0);
    assert_eq!(clients[0].write(0, 2), 0);
    let _server = serve(root);
    let from = completed(root)[0];
    wait_until(|| {
        assert_eq!(clients[0].write(0, 3), 0);
        (completed(root)[0] > from).then_some(())
    });
    assert_eq!(flush(&mut clients[0]), 0);
}

/// How many queues the server has that are somebody's, or not yet over.
fn queues(root: &Path) -> usize {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(["queue", "list", "-o", "json", "--socket"]);
    let output = command.arg(root.join("q.sock")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    list["queues"].as_array().unwrap().len()
}

/// The server stands still and goes on: what it finds then in its queue was written anew meanwhile.
#[test]
fn t09_t12_what_a_server_of_queues_had_when_it_stood_still_goes_elsewhere_and_is_not_done_late() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let file = std::fs::File::create(root.join("data")).unwrap();
    file.set_len(BLOCKS * 4096).unwrap();
    let Some((_target, uri)) = target(root) else {
        return;
    };
    let server = serve(root);
    configure_with(root, &uri, "io_timeout = \"2s\"\ncores = 1", "");
    let _engine = engine(root);
    let is_live = || paths(root)[0]["state"] == "live";
    assert!(is_live());
    let socket = root.join("v0.sock");
    let mut client = Client::open(&socket);
    for block in 0..BLOCKS {
        assert_eq!(client.write(block * 4096, 6), 0);
    }
    server.freeze();
    let mut stuck: Vec<_> = (0..8).map(|_| Client::open(&socket)).collect();
    for (block, client) in (0..).zip(&mut stuck) {
        client.send_write(block * 4096, 7);
    }
    let readers = (100..108).map(|block| {
        let mut client = Client::open(&socket);
        std::thread::spawn(move || client.read(block * 4096))
    });
    // None of this is done by the server: it stands still until all has ended.
    for reader in readers.collect::<Vec<_>>() {
        assert_eq!(reader.join().unwrap(), [6; 4096]);
    }
    wait_until(|| (!is_live()).then_some(()));
    for client in &mut stuck {
        assert_eq!(client.answer(), 0);
    }
    for block in 0..40 {
        assert_eq!(client.read(block * 4096)[0], if block < 8 { 7 } else { 6 });
        assert_eq!(client.write(block * 4096, 8), 0);
    }
    assert!(!is_live());
    server.signal(Signal::CONT);
    wait_until(|| is_live().then_some(()));
    // It has parted with the queue that it had then.
    wait_until(|| (queues(root) == 1).then_some(()));
    let from = completed(root)[0];
    wait_until(|| {
        assert_eq!(client.read(50 * 4096), [6; 4096]);
        (completed(root)[0] > from).then_some(())
    });
    let data = std::fs::read(root.join("data")).unwrap();
    for (block, bytes) in data.chunks(4096).enumerate() {
        let want = if block < 40 { 8 } else { 6 };
        assert!(bytes.iter().all(|&byte| byte == want), "block {block}");
    }
}

/// A server that is well executes nothing late that it has answered: its writes wait for no time.
/// One that takes a second for its answers is not taken to be well, whoever kept it from its CPU.
#[test]
fn t09_a_queue_that_is_failed_by_hand_holds_no_write_that_its_server_answers() {
    for _ in 0..5 {
        if fail_by_hand() != Well::Late {
            return;
        }
    }
    let _ = writeln!(
        std::io::stderr(),
        "SKIP t09_a_queue_that_is_failed_by_hand_holds_no_write_that_its_server_answers: in five \
         attempts the server took more than a second to answer"
    );
}

/// Whether a server was.
#[derive(PartialEq)]
enum Well {
    Always,
    Late,
    Nowhere,
}

fn fail_by_hand() -> Well {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let file = std::fs::File::create(root.join("data")).unwrap();
    file.set_len(BLOCKS * 4096).unwrap();
    let Some((_target, uri)) = target(root) else {
        return Well::Nowhere;
    };
    let _server = serve(root);
    configure_with(root, &uri, "cores = 1", "quiesce_time = \"1h\"");
    let mut engine = engine(root);
    let over = Arc::new(AtomicBool::new(false));
    let counts: Vec<_> = (0..8).map(|_| Arc::new(AtomicU64::new(0))).collect();
    let loads = counts.iter().zip(0..).map(|(count, number)| {
        let (over, count) = (Arc::clone(&over), Arc::clone(count));
        let mut client = Client::open(&root.join("v0.sock"));
        std::thread::spawn(move || {
            while !over.load(Ordering::Acquire) {
                assert_eq!(client.write(number * 4096, 3), 0);
                count.fetch_add(1, Ordering::AcqRel);
            }
        })
    });
    let loads: Vec<_> = loads.collect();
    let queue = paths(root)[0]["uri"].as_str().unwrap().to_owned();
    let change = |verb: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.args(["path", verb, "v0", &queue, "--socket"]);
        let output = command.arg(root.join("c.sock")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    for _ in 0..5 {
        let from = completed(root)[0];
        wait_until(|| (completed(root)[0] > from + 100).then_some(()));
        change("fail");
        // Each of them goes on: none was with the queue and is held.
        for count in &counts {
            let from = count.load(Ordering::Acquire);
            let goes_on = wait_until(|| match count.load(Ordering::Acquire) > from + 2 {
                true => Some(true),
                false => engine.has_noted("its server hangs").then_some(false),
            });
            if !goes_on {
                // Its queues are held for an hour: its clients end with it.
                return Well::Late;
            }
        }
        change("restore");
    }
    over.store(true, Ordering::Release);
    loads.into_iter().for_each(|load| load.join().unwrap());
    Well::Always
}

#[test]
fn a_queue_whose_server_stands_still_can_be_removed() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let file = std::fs::File::create(root.join("data")).unwrap();
    file.set_len(BLOCKS * 4096).unwrap();
    let Some((_target, uri)) = target(root) else {
        return;
    };
    let server = serve(root);
    configure_with(root, &uri, "io_timeout = \"2s\"\ncores = 1", "");
    let _engine = engine(root);
    server.freeze();
    let socket = root.join("v0.sock");
    let readers: Vec<_> = (0..4)
        .map(|block| {
            let mut client = Client::open(&socket);
            std::thread::spawn(move || client.read(block * 4096))
        })
        .collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(["path", "remove", "v0"]);
    command.arg(paths(root)[0]["uri"].as_str().unwrap());
    let command = command
        .args(["--force", "--socket"])
        .arg(root.join("c.sock"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for reader in readers {
        assert_eq!(reader.join().unwrap(), [0; 4096]);
    }
    wait_until(|| (paths(root).len() == 1).then_some(()));
    server.signal(Signal::CONT);
}

/// A request beyond a right is no invalid request, and no failure of the path.
#[test]
fn what_a_queue_may_not_touch_is_denied() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let uid = rustix::process::geteuid().as_raw();
    let half = BLOCKS / 2;
    let allow = format!("uid={uid},nsid=1,first=0,blocks={half}");
    let socket = root.join("q.sock");
    let words = ["queue", "serve", "mem:1MiB", "--allow", &allow, "--socket"];
    let mut server = Process::start(root, &[&words[..], &[text(&socket)]].concat());
    server.says("q.sock").unwrap();
    let config = format!(
        "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"queue:{}?nsid=1\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        text(&socket),
        text(&root.join("v0.sock"))
    );
    std::fs::write(root.join("b.toml"), config).unwrap();
    let mut engine = process::begun(root);
    if engine.says("v0: ready").is_none() {
        engine.notes("io_uring");
        return no_io_uring::skip(&engine.seen);
    }
    let mut client = Client::open(&root.join("v0.sock"));
    assert_eq!(client.write((half - 1) * 4096, 7), 0);
    // EPERM.
    assert_eq!(client.write(half * 4096, 7), 1);
    assert_eq!(client.write((half - 1) * 4096, 8), 0);
    assert_eq!(paths(root)[0]["state"], "live");
}

/// The engine's words, whatever it is asked for.
fn braid(root: &Path, words: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    let command = command.args(words).arg("--socket").arg(root.join("c.sock"));
    command.output().unwrap()
}

#[test]
fn a_queue_whose_server_has_ended_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let file = std::fs::File::create(root.join("data")).unwrap();
    file.set_len(BLOCKS * 4096).unwrap();
    let Some((_target, uri)) = target(root) else {
        return;
    };
    let mut server = serve(root);
    configure(root, &uri);
    let mut engine = engine(root);
    let said = format!(
        "its queue server on {} has ended",
        text(&root.join("q.sock"))
    );
    let hindrance = || paths(root)[0]["hindrance"].clone();
    assert_eq!(hindrance(), serde_json::Value::Null);
    server.signal(Signal::KILL);
    server.ended();
    let is_said = |why: &str| why.contains(&said) && why.contains("braid queue serve");
    // Without any I/O.
    wait_until(|| hindrance().as_str().is_some_and(is_said).then_some(()));
    let check = braid(root, &["check"]);
    assert_eq!(check.status.code(), Some(1), "{check:?}");
    assert!(is_said(&one_line(&check.stdout)), "{check:?}");
    // And with it.
    let mut client = Client::open(&root.join("v0.sock"));
    let why = wait_until(|| {
        assert_eq!(client.read(0), [0; 4096]);
        let path = paths(root).swap_remove(0);
        (path["state"] == "probation").then(|| path["hindrance"].clone())
    });
    assert!(why.as_str().is_some_and(is_said), "{why}");
    let line = engine.notes(": on probation: ");
    assert!(line.contains(&said), "{line}");
    let _server = serve(root);
    wait_until(|| {
        assert_eq!(client.read(0), [0; 4096]);
        (hindrance() == serde_json::Value::Null).then_some(())
    });
}

/// Else nobody could have it while the path is set aside.
#[test]
fn a_queue_that_is_failed_by_hand_is_another_ones_until_it_is_restored() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let file = std::fs::File::create(root.join("data")).unwrap();
    file.set_len(BLOCKS * 4096).unwrap();
    let Some((_target, uri)) = target(root) else {
        return;
    };
    let (file, socket) = (
        format!("file:{}", text(&root.join("data"))),
        root.join("q.sock"),
    );
    let only = ["queue", "serve", &file, "--subsystem", NQN, "--user-irq"];
    let words = [&only[..], &["1", "--socket", text(&socket)]].concat();
    let mut server = Process::start(root, &words);
    server.says("q.sock").unwrap();
    configure_with(root, &uri, "cores = 1", "");
    let running = engine(root);
    let path = paths(root)[0]["uri"].as_str().unwrap().to_owned();
    let load = |seconds: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.args(["queue", "bench", "--kind", "user_irq", "--runtime", seconds]);
        let output = command.arg("--socket").arg(&socket).output().unwrap();
        output.status.success()
    };
    // The queue of a client that has ended is free a little later.
    let loads = |seconds: &str| wait_until(|| load(seconds).then_some(()));
    assert!(!load("0.1"), "the engine has it");
    let fail = braid(root, &["path", "fail", "v0", &path]);
    assert!(fail.status.success(), "{fail:?}");
    loads("0.1");
    // For longer than between two attempts of the engine to open it again.
    loads("1.5");
    loads("0.1");
    let restored = || {
        let output = braid(root, &["path", "restore", "v0", &path]);
        assert!(output.status.success(), "{output:?}");
        wait_until(|| (paths(root)[0]["state"] == "live").then_some(()));
        assert_eq!(queues(root), 1);
    };
    restored();
    // Also over a restart.
    let fail = braid(root, &["path", "fail", "v0", &path]);
    assert!(fail.status.success(), "{fail:?}");
    let mut running = running;
    running.signal(Signal::TERM);
    assert!(running.ended().success());
    let _engine = engine(root);
    wait_until(|| (queues(root) == 0).then_some(()));
    loads("1.5");
    loads("0.1");
    restored();
}
