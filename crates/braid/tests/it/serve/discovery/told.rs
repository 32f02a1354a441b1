//! Messages of an engine about discovery: why a volume has no path, who is not asked any more, and
//! which paths would come again.
use super::{PORTS, Rig, Target, braid, discovered, nqn, process, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::process::{Command, Stdio};

/// Entries of the only log.
fn records(rig: &Rig) -> Option<u64> {
    rig.ask(&["stat"])["discovery"][0]["records"].as_u64()
}

/// It would be there again with the next notice.
#[test]
fn a_path_that_is_told_is_not_removed_whoever_added_it() {
    let directory = tempfile::tempdir().unwrap();
    let Some(target) = Target::start(directory.path(), "h", &PORTS) else {
        return;
    };
    target.offer("2", "subsystem");
    let [one, two] = [&target.uris[0], &target.uris[1]].map(String::as_str);
    let path = format!("[[volume.path]]\nuri = \"{one}\"\n");
    let fixed = format!("[[volume]]\nname = \"v0\"\n{path}");
    let mut rig = Rig::new(directory, &fixed);
    rig.start();
    rig.ask(&["path", "add", "v0", two]);
    let both = [[one, "live", "config"], [two, "live", "control"]];
    rig.reaches(&both);
    let keys = discovered(&target, "h", &path);
    let keys = keys.replace("discovery_keep_alive_tmo = \"2s\"\n", "");
    rig.configure(&keys.replace("quiesce_time = \"100ms\"\n", ""));
    rig.ask(&["reload"]);
    let all = wait_until(|| records(&rig));
    for path in [one, two] {
        let why = rig.refusal(&["path", "remove", "v0", path]);
        let by = format!("discovery of {} tells of it", target.uris[2]);
        assert!(why.contains(&by), "{why}");
    }
    rig.reaches(&both);
    target.offer("2", "withdrawn");
    wait_until(|| (records(&rig)? < all).then_some(()));
    rig.ask(&["path", "remove", "v0", two]);
    rig.reaches(&[[one, "live", "config"]]);
    rig.stop();
}

/// On the admin connection, the I/O queues of both cores, and that of discovery.
#[test]
fn tcp_keep_alive_is_that_of_every_opened_connection() {
    let directory = tempfile::tempdir().unwrap();
    let Some(target) = Target::start(directory.path(), "asked", &PORTS) else {
        return;
    };
    let path = format!("[[volume.path]]\nuri = \"{}\"\n", target.uris[0]);
    let keys = discovered(&target, "asked", &path);
    for (keep_alive, ticks) in [("50m", 250_000..300_001), ("off", 0..1)] {
        let text = format!("cores = 2\ntcp_keep_alive = \"{keep_alive}\"\n{keys}");
        let root = tempfile::tempdir_in(directory.path()).unwrap();
        let mut rig = Rig::new(root, &text);
        rig.start();
        for (port, count) in [(1, 3), (3, 1)] {
            wait_until(|| {
                let found = process::ask_in_ticks(target.address(port));
                let right = found.len() == count && found.iter().all(|it| ticks.contains(it));
                right.then_some(())
            });
        }
        rig.stop();
    }
}

/// Controllers that `check` lists for v0 while it is down.
fn awaits(rig: &Rig) -> Option<Vec<String>> {
    let socket = rig.root().join("c.sock");
    let words = ["check", "-o", "json", "--socket", socket.to_str().unwrap()];
    let output = braid(&words);
    let value: Value = serde_json::from_slice(&output.stdout).ok()?;
    assert_eq!(output.status.code(), Some(2), "{value}");
    let all = value["volumes"][0]["awaits"].as_array()?.iter();
    Some(all.map(|it| it.as_str().unwrap().to_owned()).collect())
}

#[test]
fn a_volume_awaits_a_discovery_controller_whose_name_is_unknown() {
    let directory = tempfile::tempdir().unwrap();
    if Target::start(directory.path(), "n", &["127.0.0.1:0"]).is_none() {
        return;
    }
    let uri = "nvme-tcp://nowhere.invalid:8009";
    let keys = format!(
        "[[discovery]]\nuri = \"{uri}\"\n[[volume]]\nname = \"v0\"\nsubsystem = \"{}\"\n",
        nqn("n")
    );
    let rig = Rig::new(directory, &keys);
    let mut engine = process::begun(rig.root());
    engine.notes("it is tried again");
    let awaited = wait_until(|| awaits(&rig));
    assert_eq!(awaited.len(), 1, "{awaited:?}");
    let start = format!("discovery of {uri}: cannot resolve");
    assert!(awaited[0].starts_with(&start), "{awaited:?}");
    // The exit code alone says the same.
    let socket = rig.root().join("c.sock");
    let mut check = Command::new(env!("CARGO_BIN_EXE_braid"));
    check.arg("check").arg("--socket").arg(&socket);
    let mut check = check.stdout(Stdio::piped()).spawn().unwrap();
    drop(check.stdout.take());
    assert_eq!(check.wait().unwrap().code(), Some(2));
    let shown = rig.ask(&["stat"])["discovery"][0].clone();
    assert_eq!(shown["referred_by"], serde_json::json!([]), "{shown}");
    let why = shown["why"].as_str().unwrap();
    assert!(why.starts_with("cannot resolve"), "{shown}");
    engine.signal(Signal::TERM);
    assert!(engine.ended().success(), "{}", engine.seen);
}

/// Each advice is a verb of this program, wherever it is given.
#[test]
fn a_discovery_controller_that_has_no_such_name_is_one_advice() {
    let directory = tempfile::tempdir().unwrap();
    let Some(target) = Target::start(directory.path(), "w", &["127.0.0.1:0"]) else {
        return;
    };
    let address = target.address(1).to_owned();
    let keys = format!(
        "[[discovery]]\nuri = \"nvme-tcp://{address}/nqn.x:y\"\n\
         [[volume]]\nname = \"v0\"\nsubsystem = \"{}\"\n",
        nqn("w")
    );
    let rig = Rig::new(directory, &keys);
    let mut engine = process::begun(rig.root());
    let advice = format!("`braid discover nvme-tcp://{address}`");
    engine.notes(&advice);
    let stat = rig.ask(&["stat"]);
    let why = stat["discovery"][0]["why"].as_str().unwrap();
    assert!(why.contains(&advice), "{why}");
    let awaited = awaits(&rig).unwrap();
    assert!(awaited[0].contains(&advice), "{awaited:?}");
    engine.signal(Signal::TERM);
    assert!(engine.ended().success(), "{}", engine.seen);
}

#[test]
fn who_is_not_asked_any_more_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let start = |name| Target::start(directory.path(), name, &PORTS);
    let (Some(one), Some(other)) = (start("one"), start("two")) else {
        return;
    };
    one.say(&["referrals", other.address(3)]);
    let mut rig = Rig::new(directory, &discovered(&one, "one", ""));
    rig.start();
    rig.notes(&format!("discovery: {}: connected", other.uris[2]));
    one.say(&["referrals"]);
    rig.notes(&format!("discovery: {}: not asked any more", other.uris[2]));
    rig.stop();
}
