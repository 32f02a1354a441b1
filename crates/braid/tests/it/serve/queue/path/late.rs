//! Paths to queue servers that are not there when the engine starts.
use super::*;

/// A queue server that is not there at the start ends no engine: its volumes begin without it, one
/// by its other path, and use it once it is there.
#[test]
fn queue_that_is_not_there_at_the_start_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::File::create(root.join("data"))
        .unwrap()
        .set_len(BLOCKS * 4096)
        .unwrap();
    let Some((mut target, uri)) = target(root) else {
        return;
    };
    let alone = format!(
        "[[volume]]\nname = \"v1\"\n[[volume.path]]\nuri = \"queue:{}?nsid=1\"\n",
        text(&root.join("other.sock"))
    );
    configure(root, &uri);
    let config = std::fs::read_to_string(root.join("b.toml")).unwrap();
    std::fs::write(root.join("b.toml"), config + &alone).unwrap();
    let mut engine = process::begun(root);
    engine.notes("v0: it begins without its path");
    engine.notes("v1: it begins without its path");
    assert!(engine.says("v0: ready").is_some());
    assert_eq!(Client::open(&root.join("v0.sock")).write(0, 1), 0);
    wait_until(|| root.join("c.sock").exists().then_some(()));
    assert_eq!(states(root), ["absent", "live"]);
    assert!(why(root, 0).starts_with("not there since the start"));
    let refused = ask(root, &["path", "remove", "v1", "0"]);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("is the last path of its volume"), "{text}");
    let mut server = serve(root);
    engine.notes("v0: its path is there now");
    wait_until(|| (states(root) == ["live", "live"]).then_some(()));
    let before = completed(root)[0];
    let mut client = Client::open(&root.join("v0.sock"));
    for n in 0..4 {
        assert_eq!(client.write(n * 4096, 2), 0);
    }
    assert!(completed(root)[0] > before, "it is used");
    drop(client);
    for it in [&mut engine, &mut target, &mut server] {
        it.signal(Signal::TERM);
        assert!(it.ended().success(), "{}", it.seen);
    }
}

fn states(root: &Path) -> Vec<String> {
    let state = |path: &serde_json::Value| path["state"].as_str().unwrap_or("").to_owned();
    paths(root).iter().map(state).collect()
}

/// Numbers of the paths.
fn numbers(root: &Path) -> Vec<u64> {
    let number = |path: &serde_json::Value| path["path"].as_u64().unwrap();
    paths(root).iter().map(number).collect()
}

/// Why the path at this place takes no I/O.
fn why(root: &Path, place: usize) -> String {
    let why = &paths(root)[place]["hindrance"];
    why.as_str().unwrap_or_default().to_owned()
}

fn ask(root: &Path, words: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(words).arg("--socket");
    command.arg(root.join("c.sock")).output().unwrap()
}

/// A volume whose paths are queues of servers with these sockets, and what has these URIs.
fn configure_queues(root: &Path, keys: &str, sockets: &[&str], uris: &[&str]) {
    let queue = |name: &&str| format!("queue:{}?nsid=1", text(&root.join(name)));
    let queues = sockets.iter().map(queue);
    let all = queues.chain(uris.iter().map(|uri| (*uri).to_owned()));
    let paths = all.map(|uri| format!("[[volume.path]]\nuri = \"{uri}\"\n"));
    let config = format!(
        "keep_alive_tmo = \"1s\"\ndrain_timeout = \"2s\"\n[[volume]]\nname = \"v0\"\n{keys}{}\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        paths.collect::<String>(),
        text(&root.join("v0.sock"))
    );
    std::fs::write(root.join("b.toml"), config).unwrap();
}

fn data(root: &Path) {
    let file = std::fs::File::create(root.join("data")).unwrap();
    file.set_len(BLOCKS * 4096).unwrap();
}

/// An absent path keeps its number and has a reason of its own, keeps no other one out, and can be
/// failed, restored and removed; the numbers of the others never change.
#[test]
fn absent_path_keeps_its_number_and_can_be_removed() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    data(root);
    let Some((_target, uri)) = target(root) else {
        return;
    };
    let queues = ["away.sock", "q.sock"];
    configure_queues(root, "policy = \"devid:3\"\n", &queues, &[&uri]);
    let mut engine = engine(root);
    wait_until(|| root.join("c.sock").exists().then_some(()));
    let shown = |expected: [&str; 3]| wait_until(|| (states(root) == expected).then_some(()));
    shown(["absent", "absent", "live"]);
    assert_eq!(numbers(root), [0, 1, 2]);
    for (place, socket) in (0..).zip(queues) {
        let why = why(root, place);
        assert!(why.contains(socket), "{why}");
    }
    let _server = serve(root);
    engine.notes("v0: its path is there now");
    shown(["absent", "live", "live"]);
    assert_eq!(numbers(root), [0, 1, 2]);
    let mut client = Client::open(&root.join("v0.sock"));
    let before = completed(root);
    assert_eq!(client.write(0, 1), 0);
    let after = completed(root);
    assert_eq!(after[2], before[2] + 1, "devid:3 is the third path");
    for words in [
        &["path", "fail", "v0", "0"][..],
        &["path", "restore", "v0", "0"],
        &["policy", "set", "v0", "devid:2"],
        &["path", "remove", "v0", "0"],
    ] {
        let output = ask(root, words);
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
    assert_eq!(
        (states(root), numbers(root)),
        (vec!["live".into(); 2], vec![1, 2])
    );
    let before = completed(root);
    assert_eq!(client.write(0, 2), 0);
    assert_eq!(
        completed(root)[0],
        before[0] + 1,
        "devid:2 is the second path"
    );
    let check = ask(root, &["check"]);
    assert_eq!(check.status.code(), Some(0), "{check:?}");
    drop(client);
    engine.signal(Signal::TERM);
    assert!(engine.ended().success(), "{}", engine.seen);
    // It holds after a restart.
    let _engine = process::engine(root);
    wait_until(|| (states(root) == ["live", "live"]).then_some(()));
}

/// Writes that a killed engine had acknowledged may be in the cache of any path's controller:
/// the first flush has to reach all of them.
#[test]
fn t13_start_with_part_of_the_paths_after_a_kill_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    data(root);
    let Some((_target, uri)) = target(root) else {
        return;
    };
    configure_queues(root, "", &["q.sock"], &[&uri]);
    let mut server = serve(root);
    let mut engine = engine(root);
    assert_eq!(Client::open(&root.join("v0.sock")).write(0, 1), 0);
    engine.signal(Signal::KILL);
    engine.ended();
    server.signal(Signal::TERM);
    server.ended();
    let mut engine = process::begun(root);
    assert_eq!(engine.ended().code(), Some(1));
    engine.notes("the engine before did not stop in order, so the first flush has to reach");
    let _server = serve(root);
    let _engine = process::engine(root);
    wait_until(|| (states(root) == ["live", "live"]).then_some(()));
}

/// The same where none of the paths is there at the start: they are opened one by one, and join
/// together.
#[test]
fn t13_paths_that_come_late_after_a_kill_join_together() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    data(root);
    let Some((_target, uri)) = target(root) else {
        return;
    };
    let sockets = ["q.sock", "r.sock", "s.sock"];
    configure_queues(root, "", &sockets, &[&uri]);
    let serve_nth = |n: usize| serve_at(root, sockets[n], ["65000", "65001", "65002"][n]);
    let servers = [0, 1, 2].map(serve_nth);
    let mut engine = engine(root);
    wait_until(|| (states(root) == ["live"; 4]).then_some(()));
    assert_eq!(Client::open(&root.join("v0.sock")).write(0, 1), 0);
    engine.signal(Signal::KILL);
    engine.ended();
    drop(servers);
    sockets
        .iter()
        .for_each(|name| drop(std::fs::remove_file(root.join(name))));
    // Without the controller, which has left what holds of the volume.
    configure_queues(root, "", &sockets, &[]);
    let mut engine = process::begun(root);
    engine.notes(sockets[2]);
    wait_until(|| root.join("c.sock").exists().then_some(()));
    let _first = serve_nth(0);
    engine.notes("it waits for");
    let why = why(root, 0);
    assert!(why.contains("r.sock") && why.contains("s.sock"), "{why}");
    assert_eq!(states(root), ["absent"; 3]);
    let refused = |words: &[&str]| {
        let output = ask(root, words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("did not stop in order"), "{text}");
    };
    refused(&["path", "remove", "v0", "1"]);
    refused(&[
        "path",
        "add",
        "v0",
        "nvme-tcp://127.0.0.1:9/nqn.2026-01.org.example:x",
    ]);
    let removed = ask(root, &["path", "remove", "v0", "1", "--force"]);
    assert!(removed.status.success(), "{removed:?}");
    assert_eq!(states(root), ["absent"; 2]);
    let _last = serve_nth(2);
    assert!(engine.says("v0: ready").is_some());
    wait_until(|| (states(root) == ["live", "live"]).then_some(()));
    assert_eq!(numbers(root), [0, 2]);
}

/// One that does not join leaves none of the others to serve and to flush alone.
#[test]
fn t13_paths_that_cannot_all_join_do_not_serve() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    data(root);
    let Some((_target, uri)) = target(root) else {
        return;
    };
    let sockets = ["q.sock", "r.sock"];
    configure_queues(root, "", &sockets, &[&uri]);
    let servers = [serve(root), serve_at(root, "r.sock", "65001")];
    let mut engine = engine(root);
    wait_until(|| (states(root) == ["live"; 3]).then_some(()));
    assert_eq!(Client::open(&root.join("v0.sock")).write(0, 1), 0);
    engine.signal(Signal::KILL);
    engine.ended();
    drop(servers);
    let away = |name: &str| drop(std::fs::remove_file(root.join(name)));
    sockets.iter().for_each(|name| away(name));
    configure_queues(root, "", &sockets, &[]);
    let mut engine = process::begun(root);
    engine.notes("r.sock");
    wait_until(|| root.join("c.sock").exists().then_some(()));
    // Another namespace than the volume's.
    let another = serve_of(root, "nqn.2026-01.org.example:another", "q.sock", "65000");
    engine.notes("it waits for");
    let _other = serve_at(root, "r.sock", "65001");
    engine.notes("r.sock?nsid=1: was taken back");
    assert_eq!(states(root), ["absent"; 2]);
    let it_waits = why(root, 1);
    assert!(it_waits.starts_with("it is there; "), "{it_waits}");
    assert!(it_waits.contains("q.sock"), "{it_waits}");
    // Nor does the file take out what may hold writes.
    configure_queues(root, "", &sockets[1..], &[]);
    let refused = ask(root, &["reload"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(text.contains("did not stop in order"), "{text}");
    assert_eq!(states(root), ["absent"; 2]);
    drop(another);
    away("q.sock");
    let _right = serve(root);
    wait_until(|| (states(root) == ["live", "live"]).then_some(()));
    assert_eq!(numbers(root), [0, 1]);
    assert_eq!(Client::open(&root.join("v0.sock")).read(0), [1; 4096]);
}

/// Else it would get I/O before the engine is told.
#[test]
fn absent_path_that_was_failed_by_hand_is_not_opened_until_it_is_restored() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    data(root);
    let Some((_target, uri)) = target(root) else {
        return;
    };
    configure_queues(root, "", &["q.sock", "r.sock"], &[&uri]);
    let mut engine = engine(root);
    wait_until(|| root.join("c.sock").exists().then_some(()));
    let failed = ask(root, &["path", "fail", "v0", "0"]);
    assert!(failed.status.success(), "{failed:?}");
    let _server = serve(root);
    let _other = serve_at(root, "r.sock", "65001");
    engine.notes("v0: its path is there now");
    wait_until(|| (states(root) == ["absent", "live", "live"]).then_some(()));
    assert!(why(root, 0).starts_with("failed by hand"));
    assert_eq!(queues(root), 0);
    let restored = ask(root, &["path", "restore", "v0", "0"]);
    assert!(restored.status.success(), "{restored:?}");
    wait_until(|| (states(root) == ["live"; 3]).then_some(()));
}
