//! Faults of paths, targets and clients of a running engine.
use crate::e2e::common::{
    Engine, Offer, QUICK, QUIESCED, Target, have, noise, run, skip, text, wait, write_config,
};
use crate::serve::process::Client;
use crate::tmpfs::Tmpfs;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

fn offer(first: u16, namespace: &str) -> Offer<'_> {
    Offer {
        cntlid: [first, first + 99],
        target: "",
        namespace,
        port: "",
    }
}

/// Waits until the engine has said this.
fn wait_said(engine: &Engine, part: &str) {
    wait(&format!("the engine says {part:?}"), || {
        engine.log().contains(part).then_some(())
    });
}

/// 4 KiB, written and read again.
fn use_it(engine: &Engine) {
    let words = ["-f", "raw", &engine.uri(), "-c", "write -P 5 8k 4k"];
    let read = ["-c", "read -P 5 8k 4k"];
    let said = run("qemu-io", &[&words[..], &read].concat());
    assert!(!said.contains("verification failed"), "{said}");
}

/// Two targets whose namespaces must not be merged: the path that comes second is refused with a
/// reason, the first serves.
fn refused(second: &Offer, reason: &str) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let one = Target::start(path, "one", &offer(1, MEM));
    let mut two = Target::start(path, "two", second);
    two.kill();
    let engine = Engine::start(path, QUICK, "", &[&one.uri, &two.uri]);
    two.restart();
    wait_said(&engine, reason);
    let said = engine.log();
    let line = said.lines().find(|line| line.contains(reason)).unwrap();
    assert!(line.contains("v0") && line.contains(&two.uri), "{line}");
    assert_ne!(engine.stat()["paths"][1]["state"], "live");
    assert_eq!(engine.output(&["check", "v0"]).status.code(), Some(1));
    use_it(&engine);
    println!("{said}");
    engine.end();
}

const MEM: &str = "backend = \"mem:16MiB\"";

#[test]
fn t31_paths_to_different_namespaces_are_not_merged() {
    if have(
        "t31_paths_to_different_namespaces_are_not_merged",
        &["qemu-io"],
    ) {
        let other = "backend = \"mem:16MiB\"\nuuid = \"5a1c2a3e-7e0f-4c0a-9d54-0d1c6c1f0a77\"";
        refused(&offer(1001, other), "UUID");
    }
}

#[test]
fn t33_paths_to_different_block_sizes_are_not_merged() {
    if have(
        "t33_paths_to_different_block_sizes_are_not_merged",
        &["qemu-io"],
    ) {
        let other = "backend = \"mem:16MiB\"\nblock_size = 512";
        refused(&offer(1001, other), "blocks of 512 bytes here, 4096 there");
    }
}

#[test]
fn t33_paths_to_different_capacities_are_not_merged() {
    if have(
        "t33_paths_to_different_capacities_are_not_merged",
        &["qemu-io"],
    ) {
        refused(
            &offer(1001, "backend = \"mem:32MiB\""),
            "8192 blocks here, 4096 there",
        );
    }
}

#[test]
fn t31_two_controllers_of_one_identifier_are_not_merged() {
    if have(
        "t31_two_controllers_of_one_identifier_are_not_merged",
        &["qemu-io"],
    ) {
        let second = Offer {
            cntlid: [1, 1],
            ..offer(1, MEM)
        };
        refused(&second, "both claim to be controller 1");
    }
}

#[test]
fn a_write_protected_namespace_is_a_read_only_export() {
    if !have(
        "a_write_protected_namespace_is_a_read_only_export",
        &["nbdinfo", "nbdcopy"],
    ) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let content = noise(3, 4 << 20);
    std::fs::write(path.join("v0"), &content).unwrap();
    let file = path.join("v0");
    let namespace = format!("backend = \"file:{}\"\nread_only = true", file.display());
    let one = Target::start(path, "one", &offer(1, &namespace));
    let engine = Engine::start(path, QUICK, "", &[&one.uri]);
    let info = run("nbdinfo", &["--json", &engine.uri()]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["exports"][0]["is_read_only"], true, "{info:#}");
    let back = path.join("back");
    run("nbdcopy", &[&engine.uri(), back.to_str().unwrap()]);
    assert!(std::fs::read(&back).unwrap() == content);
    let output = Command::new("nbdcopy")
        .arg(&back)
        .arg(engine.uri())
        .output();
    assert!(!output.unwrap().status.success());
    assert!(std::fs::read(&file).unwrap() == content);
    engine.end();
}

#[test]
fn all_paths_dead_at_start_and_one_comes() {
    if !have("all_paths_dead_at_start_and_one_comes", &["qemu-io"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let mut one = Target::start(path, "one", &offer(1, MEM));
    let mut two = Target::start(path, "two", &offer(1001, MEM));
    one.kill();
    two.kill();
    let engine = Engine::unready(path, QUICK, "", &[&one.uri, &two.uri]);
    for uri in [&one.uri, &two.uri] {
        wait_said(&engine, uri);
    }
    assert_eq!(engine.output(&["check", "v0"]).status.code(), Some(2));
    assert_eq!(engine.stat()["state"], "down");
    two.restart();
    engine.wait_path(1, "live");
    use_it(&engine);
    assert_eq!(engine.output(&["check", "v0"]).status.code(), Some(1));
    one.restart();
    engine.wait_path(0, "live");
    use_it(&engine);
    assert_eq!(engine.output(&["check", "v0"]).status.code(), Some(0));
    engine.end();
}

#[test]
fn an_engine_whose_paths_never_came_ends_when_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let mut one = Target::start(path, "one", &offer(1, MEM));
    one.kill();
    let engine = Engine::unready(path, QUICK, "", &[&one.uri]);
    wait_said(&engine, &one.uri);
    engine.end();
}

/// An NBD client, by hand.
struct Hand(UnixStream);

impl Hand {
    /// Greeted, and with the flags said.
    fn connect(directory: &Path) -> Self {
        let mut stream = UnixStream::connect(directory.join("v0.sock")).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        Self(stream)
    }

    fn option(&mut self, option: u32, length: u32, data: &[u8]) {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(data);
        self.0.write_all(&bytes).unwrap();
    }

    /// EXPORT_NAME: from here on requests.
    fn attach(&mut self) {
        self.option(1, 2, b"v0");
        self.0.read_exact(&mut [0; 10]).unwrap();
    }

    fn request(&mut self, kind: u16, offset: u64, length: u32) {
        let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 0];
        bytes.extend(kind.to_be_bytes());
        bytes.extend([0; 8]);
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        self.0.write_all(&bytes).unwrap();
    }
}

/// Waits until no client is there.
fn wait_clients_gone(engine: &Engine) {
    wait("all clients have gone", || {
        (engine.stat()["exports"][0]["clients"] == 0).then_some(())
    });
}

#[test]
fn clients_that_vanish_in_the_middle_disturb_nobody() {
    if !have(
        "clients_that_vanish_in_the_middle_disturb_nobody",
        &["qemu-io"],
    ) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let one = Target::start(path, "one", &offer(1, MEM));
    let engine = Engine::start(path, QUICK, "", &[&one.uri]);
    for _ in 0..20 {
        // In the greeting; in an option; in a request; in its data; with requests under way.
        drop(Hand::connect(path));
        Hand::connect(path).option(7, 100, &[0; 10]);
        let mut client = Hand::connect(path);
        client.attach();
        client.0.write_all(&[0x25, 0x60, 0x95]).unwrap();
        let mut client = Hand::connect(path);
        client.attach();
        client.request(1, 0, 1 << 20);
        client.0.write_all(&[7; 5000]).unwrap();
        let mut client = Hand::connect(path);
        client.attach();
        (0..16).for_each(|block| client.request(0, block << 16, 1 << 16));
    }
    // And while their I/O can't end.
    one.set(&["stall=1h"]);
    let mut client = Hand::connect(path);
    client.attach();
    (0..16).for_each(|block| client.request(0, block << 16, 1 << 16));
    engine.wait_inflight(0);
    drop(client);
    one.set(&["stall=0"]);
    wait_clients_gone(&engine);
    wait("nothing is under way", || {
        (engine.stat()["paths"][0]["inflight"] == 0).then_some(())
    });
    use_it(&engine);
    engine.end();
}

#[test]
fn an_overlong_option_ends_its_client_and_nobody_else() {
    if !have(
        "an_overlong_option_ends_its_client_and_nobody_else",
        &["qemu-io"],
    ) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let engine = Engine::start(path, "", "", &["mem:16MiB"]);
    for option in [1, 3, 6, 7, 0xffff_ffff] {
        let mut client = Hand::connect(path);
        client.option(option, u32::MAX, &[]);
        // Whatever it says, it reads none of the 4 GiB: the connection ends.
        let sent = (0..1 << 16).try_for_each(|_| client.0.write_all(&[0; 65536]));
        assert!(sent.is_err(), "option {option}: 4 GiB were taken");
    }
    wait_clients_gone(&engine);
    use_it(&engine);
    let status = std::fs::read_to_string(format!("/proc/{}/status", engine.id())).unwrap();
    let peak = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    let kib: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib < 512 << 10, "{peak}");
    engine.end();
}

#[test]
fn a_full_disk_under_a_namespace_is_enospc_for_the_client() {
    let name = "a_full_disk_under_a_namespace_is_enospc_for_the_client";
    if !have(name, &["qemu-io"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let disk = match Tmpfs::mount(&path.join("disk"), "4m") {
        Ok(disk) => disk,
        Err(reason) => return skip(name, &format!("no tmpfs can be mounted: {reason}")),
    };
    let file = disk.path().join("v0");
    let namespace = format!(
        "backend = \"file:{}\"\nsize = \"16MiB\"\nsparse = true",
        file.display()
    );
    let one = Target::start(path, "one", &offer(1, &namespace));
    let engine = Engine::start(path, QUICK, "", &[&one.uri]);
    let uri = engine.uri();
    let words = ["-f", "raw", &uri, "-c", "write -P 1 0 8M"];
    let output = Command::new("qemu-io").args(words).output().unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(said.contains("No space left on device"), "{said}");
    assert_eq!(engine.stat()["paths"][0]["state"], "live");
    // A path that has its place serves on.
    let words = [
        "-f",
        "raw",
        &uri,
        "-c",
        "write -P 1 0 4k",
        "-c",
        "read -P 1 0 4k",
    ];
    let said = run("qemu-io", &words);
    assert!(!said.contains("failed"), "{said}");
    engine.end();
    drop(one);
}

#[test]
fn a_reload_with_one_bad_volume_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let engine = Engine::start(path, "", "policy = \"numa\"", &["mem:16MiB"]);
    let before = engine.stat();
    // Another policy for the first, and a second one that can't be.
    write_config(path, "", "policy = \"round-robin\"", &["mem:16MiB"]);
    let mut config = std::fs::read_to_string(path.join("b.toml")).unwrap();
    config
        .push_str("[[volume]]\nname = \"bad\"\n[[volume.path]]\nuri = \"file:/nonexistent/v0\"\n");
    std::fs::write(path.join("b.toml"), config).unwrap();
    engine.signal(Signal::HUP);
    wait_said(&engine, "nothing was changed");
    assert_eq!(engine.stat()["policy"], before["policy"]);
    assert_eq!(
        engine.json(&["list"])["volumes"].as_array().unwrap().len(),
        1
    );
    engine.end();
}

#[test]
fn two_engines_on_one_export_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let engine = Engine::start(path, "", "", &["mem:16MiB"]);
    // Another control socket, the same export.
    let mut command = crate::e2e::common::braid(path);
    command.args(["run", "-c"]).arg(path.join("b.toml"));
    let output = command.arg("--socket").arg(path.join("d.sock")).output();
    let output = output.unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("v0.sock"), "{error}");
    assert!(path.join("v0.sock").exists(), "it belongs to the first");
    UnixStream::connect(path.join("v0.sock")).unwrap();
    assert_eq!(engine.output(&["check", "v0"]).status.code(), Some(0));
    engine.end();
}

/// Two controllers with caches of their own; two clients, each on another core.
#[test]
fn t13_flush_on_one_core_covers_writes_of_the_other() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("v0");
    let cached = |name, cntlid| {
        let namespace = format!(
            "backend = \"file:{}\"\nsize = \"1MiB\"\nvolatile_cache = \"256KiB\"",
            file.display()
        );
        let offer = Offer {
            cntlid: [cntlid, cntlid + 99],
            target: "",
            namespace: &namespace,
            port: "",
        };
        Target::start(directory.path(), name, &offer)
    };
    let targets = [cached("one", 1), cached("two", 1001)];
    let uris = targets.each_ref().map(|it| it.uri.as_str());
    let keys = format!("cores = 2\n{QUICK}");
    let engine = Engine::start(directory.path(), &keys, QUIESCED, &uris);
    engine.wait_path(0, "live");
    engine.wait_path(1, "live");
    let mut clients = [0, 1].map(|_| Client::open(&directory.path().join("v0.sock")));
    let stat = engine.stat();
    let cores = stat["exports"][0]["cores"].as_array().unwrap();
    assert!(cores.iter().all(|it| it["clients"] == 1), "{cores:?}");
    let on_disk = || {
        let bytes = std::fs::read(&file).unwrap();
        bytes[..8 << 12].iter().filter(|it| **it == 7).count()
    };
    for (writes, flushes) in [(0, 1), (1, 0)] {
        for block in 0..8 {
            assert_eq!(clients[writes].write(block << 12, 7), 0);
        }
        assert_eq!(on_disk(), 0, "it is in the caches of both");
        assert_eq!(clients[flushes].flush(), 0);
        assert_eq!(on_disk(), 8 << 12);
        for block in 0..8 {
            assert_eq!(clients[writes].write(block << 12, 0), 0);
        }
        assert_eq!(clients[flushes].flush(), 0);
    }
    let stat = engine.stat();
    let writes = [0, 1].map(|path: usize| stat["paths"][path]["writes"].as_u64().unwrap());
    assert!(writes.iter().all(|it| *it > 8), "both paths: {writes:?}");
    engine.end();
}
