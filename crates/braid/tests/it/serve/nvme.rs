//! Volumes of `braid run` as NVMe/TCP namespaces, to which another `braid run` connects.
use crate::serve::no_io_uring;
use crate::serve::places::leave;
use crate::serve::process::{Client, Process, wait_until};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

const NQN: &str = "nqn.2026-01.org.example:s";

/// An engine of this name over this configuration.
fn start(directory: &Path, name: &str, text: &str) -> Process {
    let config = directory.join(format!("{name}.toml"));
    std::fs::write(&config, format!("drain_timeout = \"5s\"\n{text}")).unwrap();
    let socket = directory.join(format!("{name}.ctl"));
    let words = ["run", "-c", config.to_str().unwrap(), "--socket"];
    Process::start(
        directory,
        &[&words[..], &[socket.to_str().unwrap()]].concat(),
    )
}

fn json(directory: &Path, name: &str, words: &[&str]) -> serde_json::Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.env("XDG_STATE_HOME", directory.join("state"));
    command.args(words).args(["-o", "json", "--socket"]);
    let output = command.arg(directory.join(format!("{name}.ctl"))).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Text of a verb for people.
fn shown(directory: &Path, name: &str, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command.args(words).arg("--socket");
    let output = command.arg(directory.join(format!("{name}.ctl"))).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A volume with this path and these exports.
fn volume(name: &str, path: &str, exports: &[String]) -> String {
    let exports = exports
        .iter()
        .map(|it| format!("[[volume.export]]\n{it}\n"));
    let exports: String = exports.collect();
    format!("[[volume]]\nname = \"{name}\"\n[[volume.path]]\nuri = \"{path}\"\n{exports}")
}

fn nbd(directory: &Path, name: &str) -> String {
    format!(
        "nbd = \"unix:{}\"",
        directory.join(format!("{name}.sock")).display()
    )
}

/// The offering engine, and what hosts connect to for each of its two volumes.
fn offering(directory: &Path) -> Option<(Process, [String; 2])> {
    let nvme = format!("nvme = \"127.0.0.1:0\"\nnqn = \"{NQN}\"");
    let disk = directory.join("disk");
    std::fs::File::create(&disk)
        .unwrap()
        .set_len(32 << 20)
        .unwrap();
    let file = format!("file:{}", disk.display());
    let (first, second) = (format!("{nvme}\nnsid = 1"), format!("{nvme}\nnsid = 7"));
    // So each would be on a core of its own.
    let text = [
        "cores = 2\n".to_owned(),
        volume("a0", "mem:64MiB", &[nbd(directory, "a0"), first]),
        volume("a1", &file, &[nbd(directory, "a1"), second]),
    ];
    let mut engine = start(directory, "a", &text.concat());
    let mut uri = |name: &str| {
        let line = engine.says(&format!("{name}: nvme-tcp://"))?;
        Some(line.split_once(": ").unwrap().1.to_owned())
    };
    let (Some(first), Some(second)) = (uri("a0"), uri("a1")) else {
        engine.notes("io_uring");
        no_io_uring::skip(&engine.seen);
        return None;
    };
    Some((engine, [first, second]))
}

/// `stat` of both engines: who is connected and what each asked for, and how long I/O took on a
/// path, under a policy that measures nothing.
#[test]
fn stat_shows_clients_and_latencies() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some((_a, uris)) = offering(directory) else {
        return;
    };
    let text = volume("b0", &uris[0], &[nbd(directory, "b0")]);
    let mut b = start(directory, "b", &format!("cores = 1\n{text}"));
    assert!(b.says("b0: ready, 64 MiB").is_some(), "{}", b.seen);
    let mut client = Client::open_named(&directory.join("b0.sock"), "b0");
    client.write_blocks(3);
    client.read_blocks(2, |_, _| ());
    let stat = json(directory, "b", &["stat", "b0"]);
    assert!(stat["uptime_ns"].as_u64().unwrap() > 0, "{stat:#}");
    let path = &stat["volumes"][0]["paths"][0];
    assert_eq!((&path["connects"], &path["losses"]), (&1.into(), &0.into()));
    assert!(path["live_ns"].as_u64().unwrap() > 0, "{path:#}");
    for (group, count) in [("read", 2), ("write", 3), ("other", 0)] {
        let of = &path["latency"][group];
        assert_eq!(of["count"], count, "{group}: {path:#}");
        assert_eq!(of["p99_ns"].as_u64().is_some(), count > 0, "{group}");
        assert!(of["sum_ns"].as_u64().unwrap() >= count * 1000, "{group}");
    }
    let by = &stat["volumes"][0]["exports"][0]["connected"][0];
    let name = format!(
        "process {} of user {}",
        std::process::id(),
        rustix::process::getuid()
    );
    assert_eq!(by["client"], name, "{stat:#}");
    let counts = [
        "requests",
        "bytes_read",
        "bytes_written",
        "inflight",
        "errors",
    ];
    assert_eq!(
        counts.map(|it| by[it].as_u64()),
        [5, 8192, 12288, 0, 0].map(Some),
        "{by:#}"
    );
    let there = json(directory, "a", &["stat", "a0"]);
    let host = &there["volumes"][0]["exports"][1]["connected"][0];
    let nqn = host["client"].as_str().unwrap();
    assert!(nqn.starts_with("nqn.2014-08.org.nvmexpress:uuid:"), "{nqn}");
    assert_eq!(host["connections"], 2, "one for each queue: {host:#}");
    assert_eq!(
        counts.map(|it| host[it].as_u64()),
        [5, 8192, 12288, 0, 0].map(Some),
        "{host:#}"
    );
    drop(client);
    let shown = shown(
        directory,
        "b",
        &["stat", "b0", "--interval", "100ms", "--count", "2"],
    );
    let heads = shown
        .lines()
        .filter(|it| it.starts_with("engine: up for ") && it.contains("figures of the last "));
    assert_eq!(heads.count(), 2, "{shown}");
    assert!(!shown.contains("I/Os/s"), "there was none: {shown}");
    assert!(
        shown
            .lines()
            .all(|line| line.chars().count() <= 80 || line.contains("://")),
        "{shown}"
    );
}

#[test]
fn volumes_are_namespaces_of_another_engines_volumes() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some((mut a, uris)) = offering(directory) else {
        return;
    };
    let text: String = (0..2)
        .map(|at| {
            let name = format!("b{at}");
            volume(&name, &uris[at], &[nbd(directory, &name)])
        })
        .collect();
    let mut b = start(directory, "b", &text);
    assert!(b.says("b0: ready, 64 MiB").is_some(), "{}", b.seen);
    assert!(b.seen.contains("b1: ready, 32 MiB") || b.says("b1: ready, 32 MiB").is_some());
    for at in 0..2_u8 {
        let open =
            |name: String| Client::open_named(&directory.join(format!("{name}.sock")), &name);
        let (mut far, mut near) = (open(format!("b{at}")), open(format!("a{at}")));
        assert_eq!(far.write_fua(8192, 0x40 + at), 0);
        assert_eq!(near.read(8192), vec![0x40 + at; 4096]);
        assert_eq!(near.write_fua(4096, 0x60 + at), 0);
        assert_eq!(far.read(4096), vec![0x60 + at; 4096]);
        assert_eq!(far.flush(), 0);
    }
    let disk = std::fs::read(directory.join("disk")).unwrap();
    assert!(disk[8192..12288].iter().all(|it| *it == 0x41));
    let stat = json(directory, "a", &["stat"]);
    let exports = &stat["volumes"][0]["exports"];
    assert_eq!(exports[1]["uri"], uris[0].as_str());
    assert!(exports[1]["clients"].as_u64().unwrap() >= 4, "{stat:#}");
    assert!(exports[1]["requests"].as_u64().unwrap() >= 4, "{stat:#}");
    assert_eq!(exports[1]["errors"], 0);
    // As `list` shows it: known, and no word that can't be read.
    let mut remove = Command::new(env!("CARGO_BIN_EXE_braid"));
    let remove = remove.args(["export", "remove", "a0", &uris[0], "--socket"]);
    let removed = remove.arg(directory.join("a.ctl")).output().unwrap();
    let said = String::from_utf8_lossy(&removed.stderr);
    assert_eq!(removed.status.code(), Some(1), "{said}");
    assert!(said.contains("take it out of the configuration"), "{said}");
    // It goes in order, and b's I/O waits for the next one.
    a.signal(rustix::process::Signal::TERM);
    assert!(a.ended().success(), "{}", a.seen);
    wait_until(|| {
        let stat = json(directory, "b", &["stat"]);
        let state = stat["volumes"][0]["state"].as_str().unwrap().to_owned();
        (state == "down").then_some(())
    });
    b.signal(rustix::process::Signal::TERM);
    assert!(b.ended().success(), "{}", b.seen);
}

/// State of a volume of an engine.
fn state(directory: &Path, name: &str, volume: usize) -> String {
    let stat = json(directory, name, &["stat"]);
    let state = &stat["volumes"][volume]["state"];
    state.as_str().unwrap_or_default().to_owned()
}

/// Reads another file; what is said.
fn reload(a: &mut Process, directory: &Path, text: &str, expected: &str) -> String {
    let path = directory.join("a.toml");
    std::fs::write(&path, format!("drain_timeout = \"5s\"\n{text}")).unwrap();
    a.signal(rustix::process::Signal::HUP);
    a.notes(expected)
}

/// A port that nothing listens on.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Two engines, of which the second is the host of the first one's volumes.
fn two_engines(directory: &Path) -> Option<(Process, [String; 2], Process)> {
    let (a, uris) = offering(directory)?;
    let names = ["b0", "b1"];
    let volumes = names.iter().zip(&uris);
    let volumes = volumes.map(|(name, uri)| {
        let keys = "reconnect_delay = \"200ms\"\n[[volume.path]]";
        volume(name, uri, &[nbd(directory, name)]).replacen("[[volume.path]]", keys, 1)
    });
    let mut b = start(directory, "b", &volumes.collect::<String>());
    assert!(b.says("b1: nbd").is_some(), "{}", b.seen);
    Some((a, uris, b))
}

#[test]
fn namespaces_come_and_go_by_reload_under_hosts() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some((mut a, _, mut b)) = two_engines(directory) else {
        return;
    };
    let text = std::fs::read_to_string(directory.join("a.toml")).unwrap();
    let (_, text) = text.split_once('\n').unwrap();
    let (text, second) = text.split_at(text.find("[[volume]]\nname = \"a1\"").unwrap());
    let file = second.split("[[volume.export]]").next().unwrap();
    let client = |name: &str| Client::open_named(&directory.join(format!("{name}.sock")), name);
    let (mut first, mut other) = (client("b0"), client("b1"));
    assert_eq!((first.write_fua(0, 1), other.write_fua(0, 2)), (0, 0));
    let said = reload(&mut a, directory, &format!("{text}{file}"), "reloaded");
    let removed = format!("a1: remove namespace 7 of {NQN}");
    assert!(said.contains(&removed), "{said}");
    wait_until(|| (state(directory, "b", 1) == "down").then_some(()));
    assert_eq!(
        (first.write_fua(4096, 3), first.read(0)),
        (0, vec![1; 4096])
    );
    // A write waits, and ends once the namespace is there again.
    let waits = std::thread::spawn(move || (other.write_fua(4096, 4), other));
    let export = format!("[[volume.export]]\nnvme = \"127.0.0.1:0\"\nnqn = \"{NQN}\"\nnsid = ");
    // Beside it, a volume that comes with the same reload, on the subsystem's core.
    let third = volume("a2", "mem:8MiB", &[]);
    let all = format!("{text}{file}{export}7\n{third}{export}9\n");
    let said = reload(&mut a, directory, &all, "reloaded");
    assert!(
        said.contains(&format!("a2: add namespace 9 of {NQN}")),
        "{said}"
    );
    let (written, mut other) = waits.join().unwrap();
    assert_eq!((written, other.read(0)), (0, vec![2; 4096]));
    let stat = json(directory, "a", &["stat"]);
    let uri = stat["volumes"][2]["exports"][0]["uri"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(uri.ends_with("nsid=9"), "{uri}");
    let mut c = start(directory, "c", &volume("c0", &uri, &[nbd(directory, "c0")]));
    assert!(c.says("c0: ready, 8 MiB").is_some(), "{}", c.seen);
    // Of the volumes of one subsystem each has its own clients.
    let said = reload(
        &mut a,
        directory,
        &format!("{text}{file}{export}7\n"),
        "nothing was changed",
    );
    assert!(
        said.contains("volume a2") && said.contains("connected: 1"),
        "{said}"
    );
    c.signal(rustix::process::Signal::TERM);
    assert!(c.ended().success(), "{}", c.seen);
    let said = reload(
        &mut a,
        directory,
        &format!("{text}{file}{export}7\n"),
        "reloaded",
    );
    assert!(said.contains("removed volume a2"), "{said}");
    assert_eq!(
        (first.read(4096), other.write_fua(0, 5)),
        (vec![3; 4096], 0)
    );
    for engine in [&mut b, &mut a] {
        engine.signal(rustix::process::Signal::TERM);
        assert!(engine.ended().success(), "{}", engine.seen);
    }
}

#[test]
fn subsystem_moves_by_reload_and_its_address_goes_to_another() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (old, new) = (free_port(), free_port());
    let export = |port: u16, name: &str| {
        format!("nvme = \"127.0.0.1:{port}\"\nnqn = \"nqn.2026-01.org.example:{name}\"")
    };
    let uri = |port: u16, name: &str| {
        format!("nvme-tcp://127.0.0.1:{port}/nqn.2026-01.org.example:{name}")
    };
    let text = |exports: &[String]| volume("a0", "mem:64MiB", exports);
    let mut a = start(directory, "a", &text(&[export(old, "s")]));
    if a.says("a0: nvme-tcp://").is_none() {
        a.notes("io_uring");
        no_io_uring::skip(&a.seen);
        return;
    }
    // Paths to what is there, and to what is to come.
    let paths = [(old, "s"), (new, "s"), (old, "t")];
    let paths = paths.map(|(port, name)| {
        let uri = uri(port, name);
        format!("[[volume.path]]\nuri = \"{uri}\"\n")
    });
    let host = |name: &str, paths: &str| {
        let socket = nbd(directory, name);
        format!(
            "[[volume]]\nname = \"{name}\"\nreconnect_delay = \"200ms\"\n{paths}\
             [[volume.export]]\n{socket}\n"
        )
    };
    let hosts = [host("b0", &paths[..2].concat()), host("b1", &paths[2])];
    let mut b = start(directory, "b", &hosts.concat());
    assert!(b.says("b1: nbd").is_some(), "{}", b.seen);
    let mut client = Client::open_named(&directory.join("b0.sock"), "b0");
    assert_eq!(client.write_fua(0, 1), 0);
    // Another address beside it, then the old one goes to another subsystem, with another volume.
    reload(
        &mut a,
        directory,
        &text(&[export(old, "s"), export(new, "s")]),
        "reloaded",
    );
    assert_eq!(client.write_fua(4096, 2), 0);
    let other = volume("a1", "mem:1MiB", &[export(old, "t")]);
    let all = text(&[export(new, "s")]) + &other;
    let moved = reload(&mut a, directory, &all, "reloaded");
    let words = format!("export nvme 127.0.0.1:{old} goes from nqn.2026-01.org.example:s to");
    assert!(moved.contains(&words), "{moved}");
    assert_eq!(
        (client.write_fua(8192, 3), client.read(0)),
        (0, vec![1; 4096])
    );
    assert!(b.says("b1: ready, 1 MiB").is_some(), "{}", b.seen);
    // One address that can't be had keeps all as it was.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let all = text(&[export(port, "s")]) + &other;
    let said = reload(&mut a, directory, &all, "nothing was changed");
    assert!(
        said.contains(&format!("cannot listen on 127.0.0.1:{port}")),
        "{said}"
    );
    assert_eq!(client.read(8192), vec![3; 4096]);
    // The whole subsystem goes, and the host's I/O waits for it.
    reload(&mut a, directory, &(text(&[]) + &other), "reloaded");
    wait_until(|| (state(directory, "b", 0) == "down").then_some(()));
    let waits = std::thread::spawn(move || client.read(4096));
    let back = text(&[export(new, "s")]) + &other;
    reload(&mut a, directory, &back, "reloaded");
    assert_eq!(waits.join().unwrap(), vec![2; 4096]);
}

#[test]
fn early_hosts_are_refused_where_the_file_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (port, behind) = (free_port(), free_port());
    let path = format!("nvme-tcp://127.0.0.1:{behind}/{NQN}");
    let export = format!("nvme = \"127.0.0.1:{port}\"\nnqn = \"nqn.2026-01.org.example:e\"");
    let text = volume("a0", &path, &[export]);
    let text = text.replacen(
        "[[volume.path]]",
        "before_up = \"refuse\"\n[[volume.path]]",
        1,
    );
    let keys = "reconnect_delay = \"200ms\"\n[[volume.path]]";
    let mut a = start(directory, "a", &text.replacen("[[volume.path]]", keys, 1));
    if a.says("a0: nvme-tcp://").is_none() {
        a.notes("io_uring");
        no_io_uring::skip(&a.seen);
        return;
    }
    let mut host = TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert!(matches!(host.read(&mut [0]), Ok(0) | Err(_)));
    let line = a.notes("a connection is refused");
    let why = "a0: not up yet, and before_up = \"refuse\"";
    assert!(
        line.contains(why) && line.contains("NVMe/TCP export"),
        "{line}"
    );
    let served = format!("nvme = \"127.0.0.1:{behind}\"\nnqn = \"{NQN}\"");
    let _below = start(directory, "c", &volume("c0", "mem:4MiB", &[served]));
    assert!(a.says("a0: ready").is_some(), "{}", a.seen);
    let uri = format!("nvme-tcp://127.0.0.1:{port}/nqn.2026-01.org.example:e");
    let mut b = start(directory, "b", &volume("b0", &uri, &[]));
    assert!(b.says("b0: ready, 4 MiB").is_some(), "{}", b.seen);
}

#[test]
fn reload_changes_the_hosts_that_may_connect() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some((mut a, uris)) = offering(directory) else {
        return;
    };
    let path = directory.join("a.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let host = "nqn.2026-01.org.example:h";
    let reload = |a: &mut Process, host: &str| {
        let named = text.replace("nsid = ", &format!("hosts = [\"{host}\"]\nnsid = "));
        std::fs::write(&path, named).unwrap();
        a.signal(rustix::process::Signal::HUP);
        a.notes(&format!("{NQN}: hosts that may connect"));
    };
    reload(&mut a, "nqn.2026-01.org.example:other");
    let own = format!("hostnqn = \"{host}\"\n");
    let text_b = own + &volume("b0", &uris[0], &[nbd(directory, "b0")]);
    let mut b = start(directory, "b", &text_b);
    b.notes("this host isn't allowed");
    reload(&mut a, host);
    assert!(b.says("b0: ready, 64 MiB").is_some(), "{}", b.seen);
    // A host that is taken out is disconnected, and not taken again.
    reload(&mut a, "nqn.2026-01.org.example:other");
    let why = "a connection was closed: its host may not connect any more (hosts)";
    if !a.seen.contains(why) {
        a.notes(why);
    }
    wait_until(|| {
        let stat = json(directory, "b", &["stat"]);
        (stat["volumes"][0]["state"] == "down").then_some(())
    });
}

#[test]
fn subsystem_without_descriptors_is_named_by_address() {
    let directory = tempfile::tempdir().unwrap();
    let Some((mut engine, [uri, _])) = offering(directory.path()) else {
        return;
    };
    let address = uri.split('/').nth(2).unwrap();
    leave(&engine, 4);
    let connect = |_| TcpStream::connect(address).unwrap();
    let _waiting: Vec<TcpStream> = (0..20).map(connect).collect();
    let line = engine.notes("accepts no clients for now");
    let name = format!("NVMe/TCP export {address} ");
    assert!(line.contains(&name), "{line}");
}

/// A volume that is renamed keeps its namespace where the identifiers are written. Where they
/// derive from the name, hosts get another namespace, and a dry run says so.
#[test]
fn renamed_volume_keeps_a_namespace_that_has_identifiers() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let export = |nsid: u32, keys: &str| {
        format!("nvme = \"127.0.0.1:0\"\nnqn = \"{NQN}\"\nnsid = {nsid}\n{keys}")
    };
    let ids = "uuid = \"11111111-1111-4111-8111-111111111111\"\n\
               nguid = \"22222222222222222222222222222222\"";
    let files = ["one", "two"].map(|name| {
        let file = directory.join(name);
        std::fs::File::create(&file)
            .unwrap()
            .set_len(8 << 20)
            .unwrap();
        format!("file:{}", file.display())
    });
    let of = |at: usize, name: &str, export: String| {
        volume(
            name,
            &files[at],
            &[nbd(directory, &format!("a{at}")), export],
        )
    };
    let text = of(0, "a0", export(7, ids)) + &of(1, "a1", export(8, ""));
    let mut a = start(directory, "a", &text);
    let Some(line) = a.says("a0: nvme-tcp://") else {
        a.notes("io_uring");
        no_io_uring::skip(&a.seen);
        return;
    };
    let uri = line.split_once(": ").unwrap().1;
    let host = volume("b0", uri, &[nbd(directory, "b0")]);
    let mut b = start(directory, "b", &host);
    assert!(b.says("b0: nbd").is_some(), "{}", b.seen);
    let client = |socket: &str, name: &str| {
        Client::open_named(&directory.join(format!("{socket}.sock")), name)
    };
    let (mut far, mut other) = (client("b0", "b0"), client("a1", "a1"));
    assert_eq!((far.write_fua(0, 1), other.write_fua(0, 2)), (0, 0));
    let renamed = of(0, "w0", export(7, ids)) + &of(1, "w1", export(8, ""));
    let path = directory.join("a.toml");
    std::fs::write(&path, format!("drain_timeout = \"5s\"\n{renamed}")).unwrap();
    let plan = &json(directory, "a", &["reload", "--dry-run"])["plan"];
    let words = [
        format!("a1: remove namespace 8 of {NQN}"),
        format!("a1: add namespace 8 of {NQN}"),
        "rename volume a0 to w0".into(),
        "rename volume a1 to w1".into(),
    ];
    assert_eq!(*plan, serde_json::json!(words));
    let said = reload(&mut a, directory, &renamed, "reloaded");
    assert!(said.contains("renamed a0 to w0"), "{said}");
    assert!(
        said.contains(&format!("w1: add namespace 8 of {NQN}")),
        "{said}"
    );
    assert!(!said.contains("namespace 7"), "{said}");
    assert_eq!(far.read(0), vec![1; 4096]);
    let stat = json(directory, "a", &["stat"]);
    let uris = [0, 1].map(|at| stat["volumes"][at]["exports"][1]["uri"].to_string());
    assert!(
        uris[0].contains("nsid=7") && uris[1].contains("nsid=8"),
        "{uris:?}"
    );
    // The names change places, and the namespaces with them: each is of another volume then.
    let swapped = of(0, "w1", export(8, "")) + &of(1, "w0", export(7, ids));
    let said = reload(&mut a, directory, &swapped, "reloaded");
    assert!(said.contains("remove namespace 7"), "{said}");
    assert_eq!(far.read(0), vec![2; 4096]);
    for engine in [&mut b, &mut a] {
        engine.signal(rustix::process::Signal::TERM);
        assert!(engine.ended().success(), "{}", engine.seen);
    }
}
