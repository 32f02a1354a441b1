//! Volumes of `braid run` as NVMe/TCP namespaces, to which another `braid run` connects.
use crate::serve::no_io_uring;
use crate::serve::places::leave;
use crate::serve::process::{Client, Process, wait_until};
use std::net::TcpStream;
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

#[test]
fn reload_refuses_changes_of_nvme_exports_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some((mut a, _)) = offering(directory) else {
        return;
    };
    let path = directory.join("a.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("nsid = 7", "nsid = 8")).unwrap();
    a.signal(rustix::process::Signal::HUP);
    a.notes("exports over NVMe/TCP can't come, go or change by a reload yet");
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
