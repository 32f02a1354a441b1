//! `braid mirror create` and `examine` over namespaces: two targets, and what must not be written
//! over there.
use crate::serve::extents::knows_holes;
use crate::serve::no_io_uring;
use crate::serve::process::{Client, Process, at_once, engine, one_line, two_ports, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const LEG_BYTES: u64 = 16 << 20;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn braid(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.env("XDG_STATE_HOME", self.path("state"));
        command.args(words).output().unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.braid(&[words, &["-o", "json"]].concat());
        assert!(output.status.success(), "{words:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn refused(&self, words: &[&str], parts: &[&str]) {
        let output = self.braid(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{words:?}: {output:?}");
        for part in parts {
            assert!(said.contains(part), "{words:?}: no {part:?} in: {said}");
        }
    }

    /// A file, with something in it.
    fn file(&self, name: &str, holds: &[(u64, &[u8])]) -> PathBuf {
        let file = File::create(self.path(name)).unwrap();
        file.set_len(LEG_BYTES).unwrap();
        for (at, bytes) in holds {
            file.write_all_at(bytes, *at).unwrap();
        }
        self.path(name)
    }

    /// A target over a file, and its URI; `None`: this machine has no io_uring.
    fn target(&self, file: &Path) -> Option<(Process, String)> {
        let name = file.file_name().unwrap().to_str().unwrap();
        let nqn = format!("nqn.2026-01.org.braid:{name}");
        let socket = self.path(&format!("{name}.sock"));
        let words = [
            &["target", "--file", file.to_str().unwrap(), "--nqn", &nqn][..],
            &["--listen", "127.0.0.1:0"],
            &["--socket", socket.to_str().unwrap()],
        ];
        let mut target = Process::start(self.0.path(), &words.concat());
        match target.says("port 1: ") {
            Some(line) => Some((target, line.split_whitespace().nth(2).unwrap().to_owned())),
            None => {
                target.notes("io_uring");
                no_io_uring::skip(&target.seen);
                None
            }
        }
    }

    /// An engine with a mirror v0 over these.
    fn engine(&self, legs: &[&str]) -> Process {
        self.patient_engine(legs, "1s")
    }

    /// The same, whose I/O waits that long for a path.
    fn patient_engine(&self, legs: &[&str], patience: &str) -> Process {
        let leg = |uri: &&str| format!("[[volume.leg]]\nuri = \"{uri}\"\n");
        let text = format!(
            "drain_timeout = \"5s\"\nkeep_alive_tmo = \"1s\"\n\
             [[volume]]\nname = \"v0\"\nkind = \"mirror\"\nfast_io_fail_tmo = \"{patience}\"\n{}\
             [[volume.export]]\nnbd = \"unix:{}\"\n",
            legs.iter().map(leg).collect::<String>(),
            self.path("v0.sock").display()
        );
        std::fs::write(self.path("b.toml"), text).unwrap();
        engine(self.0.path())
    }
}

/// Whether `test` has to be left out because there is no blkid.
fn no_blkid(test: &str) -> bool {
    let there = ["blkid", "/usr/sbin/blkid", "/sbin/blkid"];
    let mut there = there.iter().map(|it| Command::new(it).arg("-V").output());
    let there = there.any(|it| it.is_ok());
    if !there {
        let _ = writeln!(std::io::stderr(), "SKIP {test}: blkid is not installed");
    }
    !there
}

#[test]
fn t48_a_mirror_is_made_of_two_targets_and_whoever_lives_on_it_keeps_it() {
    if no_blkid("t48_a_mirror_is_made_of_two_targets_and_whoever_lives_on_it_keeps_it") {
        return;
    }
    let place = Place::new();
    let files = ["a", "b"].map(|name| place.file(name, &[]));
    let Some((_first, a)) = place.target(&files[0]) else {
        return;
    };
    let Some((_second, b)) = place.target(&files[1]) else {
        return;
    };
    let create = ["mirror", "create", "v0", &a, &b, "--beat-interval", "200ms"];
    let made = place.json(&create);
    let states = [&made["legs"][0]["state"], &made["legs"][1]["state"]];
    assert_eq!(
        states,
        ["in-sync", "stale"],
        "what a namespace holds is not known"
    );
    assert_eq!(made["bytes"], LEG_BYTES - (1 << 20));
    // As it is seen on the files: the same.
    let far = place.json(&["mirror", "examine", &a, &b]);
    let near = files.each_ref().map(|it| format!("file:{}", it.display()));
    let near = place.json(&["mirror", "examine", &near[0], &near[1]]);
    for slot in 0..2 {
        let (far, near) = (&far["legs"][slot], &near["legs"][slot]);
        assert_eq!(
            (&far["mirror"], &far["bitmap"]),
            (&near["mirror"], &near["bitmap"])
        );
        assert_eq!(far["mirror"]["mirror"], made["mirror"]);
    }
    place.refused(&create, &[&a, "leg 0 of the mirror \"v0\"", "--force"]);

    let mut running = place.engine(&[&a, &b]);
    let mut client = Client::open(&place.path("v0.sock"));
    assert_eq!(client.write(8192, 7), 0);
    let seen = place.json(&["mirror", "examine", &a, &b]);
    assert!(seen["legs"][0]["owner"].is_object(), "{seen}");
    let force = [&create[..], &["--force"]].concat();
    place.refused(&force, &[&a, "has it, and lives"]);
    assert_eq!(client.read(8192), [7; 4096]);
    let in_sync = || {
        let seen = place.json(&["mirror", "examine", &a, &b]);
        let roles = seen["together"]["roles"].as_array()?.clone();
        roles.iter().all(|it| it["role"] == "in-sync").then_some(())
    };
    wait_until(in_sync);
    running.signal(Signal::KILL);
    running.ended();
    let data = |file: &PathBuf| {
        let mut found = [0; 4096];
        let file = File::open(file).unwrap();
        file.read_exact_at(&mut found, (1 << 20) + 8192).unwrap();
        found
    };
    assert_eq!(files.each_ref().map(data), [[7; 4096]; 2]);
    // No host lives there any more.
    let again = place.json(&force);
    assert_ne!(again["mirror"], made["mirror"]);
}

#[test]
fn what_a_namespace_holds_is_not_written_over_without_force() {
    if no_blkid("what_a_namespace_holds_is_not_written_over_without_force") {
        return;
    }
    let place = Place::new();
    let swap: [(u64, &[u8]); 2] = [
        (1024, &[1, 0, 0, 0, 0xff, 0x0f, 0, 0]),
        (4086, b"SWAPSPACE2"),
    ];
    let raid: &[u8] = b"Intel Raid ISM Cfg Sig. 1.0.00";
    let files = [
        place.file("free", &[]),
        place.file("swap", &swap),
        place.file("raid", &[(LEG_BYTES - 1024, raid)]),
        place.file("table", &[(4096, b"EFI PART")]),
    ];
    let mut targets = Vec::new();
    for file in &files {
        let Some(target) = place.target(file) else {
            return;
        };
        targets.push(target);
    }
    let uri = |at: usize| targets[at].1.as_str();
    let before = files.each_ref().map(|it| std::fs::read(it).unwrap());
    for (at, what) in [
        (1, "swap"),
        (2, "isw_raid_member"),
        (3, "a partition table (gpt)"),
    ] {
        let create = ["mirror", "create", "m0", uri(0), uri(at)];
        place.refused(&create, &[uri(at), what, "--force"]);
    }
    let after = files.each_ref().map(|it| std::fs::read(it).unwrap());
    assert!(before == after, "something was written");
    place.json(&["mirror", "create", "m0", uri(1), uri(2), "--force"]);
    let [swap, raid] = [&files[1], &files[2]].map(|it| std::fs::read(it).unwrap());
    assert!(swap[..4096].iter().all(|byte| *byte == 0));
    assert!(raid[raid.len() - 1024..].iter().all(|byte| *byte == 0));
    let seen = place.json(&["mirror", "examine", uri(1), uri(2)]);
    assert_eq!(seen["legs"][1]["slot"], 1, "{seen}");
}

/// Zeroes are deallocated where a target's file is sparse; one that has its space keeps it.
#[test]
fn rebuild_over_nvme_leaves_a_sparse_file_sparse_and_a_full_one_full() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    let name = "rebuild_over_nvme_leaves_a_sparse_file_sparse_and_a_full_one_full";
    if !knows_holes(place.0.path(), name) {
        return;
    }
    let files = ["a", "sparse", "full"].map(|name| place.file(name, &[]));
    let full = File::options().write(true).open(&files[2]).unwrap();
    let mode = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&full, mode, 0, LEG_BYTES).unwrap();
    let Some((_sparse, b)) = place.target(&files[1]) else {
        return;
    };
    let Some((_full, c)) = place.target(&files[2]) else {
        return;
    };
    let a = format!("file:{}", files[0].display());
    let made = place.json(&["mirror", "create", "v0", &a, &b, &c]);
    for leg in [1, 2] {
        assert_eq!(made["legs"][leg]["state"], "stale", "it is to be copied");
    }
    let mut running = place.engine(&[&a, &b, &c]);
    let socket = place.path("c.sock");
    let socket = socket.to_str().unwrap();
    let mut client = Client::open(&place.path("v0.sock"));
    assert_eq!(client.write(1 << 20, 7), 0);
    let in_sync = || {
        let said = place.json(&["mirror", "status", "v0", "--socket", socket]);
        let mut legs = said["legs"].as_array().unwrap().iter();
        legs.all(|leg| leg["state"] == "in-sync").then_some(())
    };
    wait_until(in_sync);
    running.signal(Signal::TERM);
    assert!(running.ended().success());
    let space = |at: usize| std::fs::metadata(&files[at]).unwrap().blocks() * 512;
    assert!(space(1) < 2 << 20, "{}", space(1));
    assert!(space(2) >= LEG_BYTES, "{}", space(2));
    let data = |at: usize| std::fs::read(&files[at]).unwrap()[1 << 20..].to_vec();
    assert!(data(0) == data(1) && data(0) == data(2), "legs differ");
}

/// Where it lies on a leg: 1 MiB behind its place in the mirror.
const BAD: u64 = 1256 * 4096 - (1 << 20);

#[test]
fn t14_block_that_a_target_refuses_costs_no_leg() {
    let place = Place::new();
    let files = ["a", "b"].map(|name| place.file(name, &[]));
    let Some((first, a)) = place.target(&files[0]) else {
        return;
    };
    let Some((_second, b)) = place.target(&files[1]) else {
        return;
    };
    place.json(&["mirror", "create", "v0", &a, &b]);
    let mut running = place.patient_engine(&[&a, &b], "2s");
    let socket = place.path("c.sock");
    let socket = socket.to_str().unwrap();
    let status = || place.json(&["mirror", "status", "v0", "--socket", socket]);
    let mut client = Client::open(&place.path("v0.sock"));
    assert_eq!(client.write(BAD, 1), 0);
    let whole = || ["in-sync"; 2] == [0, 1].map(|leg| status()["legs"][leg]["state"].clone());
    wait_until(|| whole().then_some(()));
    let of_b = place.path("b.sock");
    let set = |faults: &str| {
        let port = ["target", "set", "--port", "1", faults, "--socket"];
        let set = place.braid(&[&port[..], &[of_b.to_str().unwrap()]].concat());
        assert!(set.status.success(), "{set:?}");
    };
    set("error=media-write:op=write:dnr:lba=1256-1256");
    assert_eq!(client.write(BAD, 2), 0);
    running.notes("can't write 4096 bytes at 4096000");
    for _ in 0..20 {
        assert_eq!(client.read(BAD), [2; 4096]);
    }
    let said = status();
    assert!(whole(), "{said}");
    let bad = &said["legs"][1]["bad"];
    assert_eq!(
        (&bad["ranges"], &bad["first"]["start"]),
        (&1.into(), &BAD.into())
    );
    assert!(said["legs"][0]["bad"].is_null(), "{said}");
    let check = place.braid(&["check", "v0", "--socket", socket]);
    let found = one_line(&check.stdout);
    assert_eq!(check.status.code(), Some(1), "degraded: {check:?}");
    assert!(
        found.contains("4096 bytes at 4096000") && found.contains("mirror repair v0"),
        "{found}"
    );
    let examined = place.json(&["mirror", "examine", &a]);
    let record = &examined["legs"][0]["mirror"]["bad_blocks"];
    assert_eq!(
        (&record[0]["leg"], &record[0]["start"]),
        (&1.into(), &BAD.into())
    );
    // Only leg 0 has it.
    let fail = ["mirror", "fail", "v0", "0", "--socket", socket];
    place.refused(&fail, &[]);
    first.freeze();
    wait_until(|| (status()["legs"][0]["state"] == "stale").then_some(()));
    client.send_read(BAD);
    assert_ne!(client.answer(), 0, "what leg 1 has there is old");
    assert_eq!(client.write(BAD + 4096, 3), 0);
    assert_eq!(client.read(BAD + 4096), [3; 4096]);
    first.signal(Signal::CONT);
    wait_until(|| whole().then_some(()));
    assert_eq!(client.read(BAD), [2; 4096]);
    assert_eq!(client.read(BAD + 4096), [3; 4096]);
    // Once it can be written again, the next write clears it.
    set("error=0");
    assert_eq!(client.write(BAD, 4), 0);
    assert_eq!(client.flush(), 0);
    let healthy = || status()["legs"][1]["bad"].is_null();
    wait_until(|| healthy().then_some(()));
    let check = place.braid(&["check", "v0", "--socket", socket]);
    assert!(check.status.success(), "{check:?}");
    running.signal(Signal::TERM);
    assert!(running.ended().success());
    for file in &files {
        let mut found = [0; 4096];
        let file = File::open(file).unwrap();
        file.read_exact_at(&mut found, BAD + (1 << 20)).unwrap();
        assert_eq!(found, [4; 4096]);
    }
}

#[test]
fn create_over_a_leg_that_refuses_writes_changes_none() {
    let place = Place::new();
    let files = ["a", "b"].map(|name| place.file(name, &[]));
    let Some((_a, a)) = place.target(&files[0]) else {
        return;
    };
    let Some((_b, b)) = place.target(&files[1]) else {
        return;
    };
    place.json(&["mirror", "create", "old", &a, &b]);
    let before = files.each_ref().map(|it| std::fs::read(it).unwrap());
    let socket = place.path("b.sock");
    let set = |faults: &str| {
        let port = ["target", "set", "--port", "1", faults, "--socket"];
        let set = place.braid(&[&port[..], &[socket.to_str().unwrap()]].concat());
        assert!(set.status.success(), "{set:?}");
    };
    // All of it; where its bitmap and what is behind lie, and where its superblocks don't.
    for faults in [
        "error=media-write:op=write:dnr",
        "error=media-write:op=write:dnr:lba=32-4095",
    ] {
        set(faults);
        place.refused(&["mirror", "create", "new", &a, &b, "--force"], &[]);
        let after = files.each_ref().map(|it| std::fs::read(it).unwrap());
        assert!(before == after, "{faults}: a leg was changed");
    }
}

#[test]
fn legs_that_are_the_same_storage_make_no_mirror() {
    let place = Place::new();
    let Some((_target, [one, two])) = two_ports(place.0.path(), "t") else {
        return;
    };
    let create = ["mirror", "create", "m0", &one, &two, "--force"];
    place.refused(&create, &[&two, "the same as", &one]);
    place.refused(&["mirror", "examine", &one], &[]);
    // No target answers there.
    let port = one.split("127.0.0.1:").nth(1).unwrap();
    let nobody = one.replace(port.split('/').next().unwrap(), "1");
    place.refused(&["mirror", "examine", &nobody], &[&nobody]);
    let file = place.file("a", &[]);
    let a = format!("file:{}", file.display());
    let made = place.json(&["mirror", "create", "m0", &a, &one, "--force"]);
    assert_eq!(made["legs"][1]["state"], "stale");
}

#[test]
fn t09_t48_frozen_legs_take_no_mirror_with_them() {
    at_once(&[leg_removed_while_a_write_is_held, legs_whose_beats_end_late]);
}

/// T9: a leg that is removed while a write to it is held takes no mirror with it.
fn leg_removed_while_a_write_is_held() {
    let place = Place::new();
    let files = ["a", "b"].map(|name| place.file(name, &[]));
    let Some((far, b)) = place.target(&files[1]) else {
        return;
    };
    let a = format!("file:{}", files[0].display());
    place.json(&["mirror", "create", "v0", &a, &b]);
    let mut running = place.engine(&[&a, &b]);
    let socket = place.path("c.sock");
    let socket = socket.to_str().unwrap();
    let is = |state: &str| {
        let said = place.json(&["mirror", "status", "v0", "--socket", socket]);
        (said["legs"][1]["state"] == state).then_some(())
    };
    let mut client = Client::open(&place.path("v0.sock"));
    assert_eq!(client.write(0, 1), 0);
    wait_until(|| is("in-sync"));
    far.freeze();
    // It has this one, and may execute it until its bound has passed.
    client.send_write(8192, 2);
    wait_until(|| is("stale"));
    place.json(&["mirror", "remove", "v0", "1", "--socket", socket]);
    assert_eq!(client.answer(), 0);
    for block in 0..20 {
        assert_eq!(client.write(block * 4096, 3), 0, "block {block}");
    }
    assert_eq!(client.read(8192), [3; 4096]);
    far.signal(Signal::CONT);
    running.signal(Signal::TERM);
    assert!(running.ended().success());
}

/// T48: what legs had when no heartbeat ended any more goes on when heartbeats do.
fn legs_whose_beats_end_late() {
    let place = Place::new();
    let files = ["a", "b"].map(|name| place.file(name, &[]));
    let Some((first, a)) = place.target(&files[0]) else {
        return;
    };
    let Some((second, b)) = place.target(&files[1]) else {
        return;
    };
    let create = ["mirror", "create", "v0", &a, &b, "--beat-interval", "200ms"];
    place.json(&create);
    let mut running = place.patient_engine(&[&a, &b], "10m");
    let socket = place.path("c.sock");
    let socket = socket.to_str().unwrap();
    let in_sync = || {
        let said = place.json(&["mirror", "status", "v0", "--socket", socket]);
        let mut legs = said["legs"].as_array().unwrap().iter();
        legs.all(|leg| leg["state"] == "in-sync").then_some(())
    };
    let mut client = Client::open(&place.path("v0.sock"));
    assert_eq!(client.write(0, 1), 0);
    wait_until(in_sync);
    first.freeze();
    second.freeze();
    client.send_write(8192, 2);
    for _ in 0..2 {
        running.notes("no heartbeat has ended there");
    }
    first.signal(Signal::CONT);
    second.signal(Signal::CONT);
    assert_eq!(client.answer(), 0);
    assert_eq!(client.read(8192), [2; 4096]);
    wait_until(in_sync);
    running.signal(Signal::TERM);
    assert!(running.ended().success());
}

/// A peer between a host and a target that has no digests: it clears them in each ICReq, so the
/// target's ICResp has none. Its address; it ends with the test.
fn without_digests(target: &str) -> String {
    let target = target.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut host in listener.incoming().flatten() {
            let Ok(mut far) = TcpStream::connect(&target) else {
                continue;
            };
            let mut icreq = [0; 128];
            if host.read_exact(&mut icreq).is_err() {
                continue;
            }
            icreq[11] = 0;
            far.write_all(&icreq).unwrap();
            let pairs = [
                (host.try_clone().unwrap(), far.try_clone().unwrap()),
                (far, host),
            ];
            for (mut from, mut to) in pairs {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}

/// A leg's controller without digests is used without; demanded ones are demanded.
#[test]
fn legs_without_digests_are_used_unless_demanded() {
    let place = Place::new();
    let file = place.file("a", &[]);
    let Some((_target, uri)) = place.target(&file) else {
        return;
    };
    let (host, nqn) = uri["nvme-tcp://".len()..].split_once('/').unwrap();
    let plain = format!("nvme-tcp://{}/{nqn}", without_digests(host));
    let create = ["mirror", "create", "v0", &plain];
    for demand in ["--hdr-digest", "--data-digest"] {
        let words = [&create[..], &[demand]].concat();
        place.refused(&words, &["digests asked for"]);
    }
    place.json(&create);
    let seen = place.json(&["mirror", "examine", &plain]);
    assert!(seen["legs"][0]["mirror"].is_object(), "{seen}");
    // The target itself has both.
    let both = ["--hdr-digest", "--data-digest"];
    let seen = place.json(&[&["mirror", "examine", &uri][..], &both].concat());
    assert!(seen["legs"][0]["mirror"].is_object(), "{seen}");
    place.refused(
        &["mirror", "examine", &plain, "--data-digest"],
        &["digests"],
    );
}
