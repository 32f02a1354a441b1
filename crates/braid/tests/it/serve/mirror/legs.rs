//! Legs of a running mirror come and go by verb; it is watched, slowed down, and stopped.
use super::place::{DATA_AT, LEG_BYTES, Place, end, kill, said, verify};
use crate::serve::extents::knows_holes;
use crate::serve::process::{Client, Process, begun, wait_until};
use serde_json::Value;
use std::fs::File;

impl Place {
    /// The file gives the mirror these legs.
    fn config_of_legs(&self, legs: &[&str]) {
        self.config("");
        let file = self.path("b.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let (head, rest) = text.split_once("[[volume.leg]]").unwrap();
        let (_, export) = rest.split_once("[[volume.export]]").unwrap();
        let leg = |uri: &&str| format!("[[volume.leg]]\nuri = \"{uri}\"\n");
        let legs: String = legs.iter().map(leg).collect();
        std::fs::write(file, format!("{head}{legs}[[volume.export]]{export}")).unwrap();
    }

    /// Another file, of nothing.
    fn file(&self, name: &str, bytes: u64) -> String {
        File::create(self.path(name))
            .unwrap()
            .set_len(bytes)
            .unwrap();
        self.leg(name)
    }

    /// An engine, and a client that has written 300 blocks.
    fn written(&self) -> (Process, Client) {
        let engine = self.start();
        let mut client = self.client();
        for block in 0..300_u64 {
            assert_eq!(client.write(block << 12, block as u8), 0);
        }
        (engine, client)
    }

    /// An engine that has stopped the mirror, each half of which was written by itself: 5 is on a,
    /// 6 on b.
    fn parted(&self) -> Process {
        let engine = self.start();
        assert_eq!(self.client().write(0, 1), 0);
        self.told(&["mirror", "stop", "v0", "--force"]);
        let move_to = |from: &str, to: &str| {
            std::fs::rename(self.path(from), self.path(to)).unwrap();
        };
        for (alone, other, byte) in [("a", "b", 5), ("b", "a", 6)] {
            move_to(other, "hidden");
            self.told(&["mirror", "assemble", "v0", "--without-missing"]);
            assert_eq!(self.client().write(0, byte), 0, "{alone} alone");
            self.told(&["mirror", "stop", "v0", "--force"]);
            move_to("hidden", other);
        }
        engine
    }

    fn status(&self) -> Value {
        self.told(&["mirror", "status", "v0"])
    }

    /// Message of a refused verb.
    fn refused(&self, words: &[&str]) -> String {
        let output = self.ask(words);
        assert!(!output.status.success(), "{words:?}: {output:?}");
        said(&output)
    }

    /// Whether a file is a leg.
    fn is_leg(&self, leg: &str) -> bool {
        self.braid(&["mirror", "examine", leg]).status.success()
    }
}

/// Bytes that a leg's file has on its disk.
fn space(place: &Place, leg: &str) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(place.path(leg)).unwrap().blocks() * 512
}

/// Zeroes are copied as holes to a file that is sparse, and as data to one that has its space.
#[test]
fn rebuild_leaves_a_sparse_leg_sparse_and_a_full_one_full() {
    let Some(place) = Place::new() else {
        return;
    };
    let name = "rebuild_leaves_a_sparse_leg_sparse_and_a_full_one_full";
    if !knows_holes(place.0.path(), name) {
        return;
    }
    let (engine, mut client) = place.written();
    place.told(&["mirror", "add", "v0", &place.file("c", LEG_BYTES), "--wait"]);
    let d = place.file("d", LEG_BYTES);
    let file = File::options().write(true).open(place.path("d")).unwrap();
    let mode = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&file, mode, 0, LEG_BYTES).unwrap();
    place.told(&["mirror", "add", "v0", &d, "--wait"]);
    place.until_in_sync();
    assert_eq!(place.legs().len(), 4);
    // 1.2 MiB were written; beside them there are superblocks and the bitmap.
    assert!(space(&place, "c") < 3 << 20, "{}", space(&place, "c"));
    assert!(space(&place, "d") >= LEG_BYTES, "{}", space(&place, "d"));
    // A hole is as good as zeroes.
    let checked = place.told(&["mirror", "check", "v0", "--wait"]);
    assert_eq!(
        (&checked["differences"], &checked["alike"]),
        (&0.into(), &true.into())
    );
    // Earlier data is zeroes in the copy, too.
    place.told(&["mirror", "fail", "v0", "2"]);
    wait_until(|| (place.legs()[2] == "stale").then_some(()));
    let before = space(&place, "c");
    for block in 0..256 {
        assert_eq!(client.write(block << 12, 0), 0);
    }
    place.told(&["mirror", "restore", "v0", "2"]);
    place.until_in_sync();
    assert!(space(&place, "c") + (512 << 10) < before, "{before}");
    end(engine);
    for leg in ["b", "c", "d"] {
        assert!(place.data("a") == place.data(leg), "{leg} differs");
    }
}

#[test]
fn a_leg_that_is_added_gets_everything_and_one_that_is_removed_is_none() {
    let Some(place) = Place::new() else {
        return;
    };
    let (mut engine, mut client) = place.written();
    let c = place.file("c", LEG_BYTES);
    place.told(&["mirror", "add", "v0", &c, "--wait"]);
    place.until_in_sync();
    assert_eq!(place.legs().len(), 3);
    let again = place.refused(&["mirror", "add", "v0", &c]);
    assert!(again.contains("is a leg of it already"), "{again}");
    for block in 300..400_u64 {
        assert_eq!(client.write(block << 12, block as u8), 0);
    }
    let reloaded = place.told(&["reload"]);
    assert_eq!(reloaded["changed"], "no difference");
    place.told(&["mirror", "remove", "v0", "1"]);
    assert_eq!(place.legs(), ["in-sync", "in-sync"]);
    engine.notes("is being removed");
    assert!(!place.is_leg(&place.leg("b")), "its superblocks are gone");
    // It has no owner any more.
    let free = [
        "bench",
        "--rw",
        "randwrite",
        "--runtime",
        "1ms",
        &place.leg("b"),
    ];
    assert!(place.braid(&free).status.success());
    verify(&mut client, 400);
    end(engine);
    assert!(place.data("a") == place.data("c"), "legs differ");
}

#[test]
fn a_leg_that_is_replaced_goes_when_the_new_one_has_everything() {
    let Some(place) = Place::new() else {
        return;
    };
    let (engine, mut client) = place.written();
    place.told(&[
        "mirror",
        "speed",
        "v0",
        "--floor",
        "1MiB/s",
        "--ceiling",
        "2MiB/s",
    ]);
    let c = place.file("c", LEG_BYTES);
    place.told(&["mirror", "replace", "v0", "0", &c]);
    let seen = wait_until(|| {
        let status = place.status();
        let far = status["legs"][2]["progress"]["bytes_per_s"].as_u64();
        far.filter(|rate| *rate > 0).map(|_| status)
    });
    assert_eq!(seen["legs"][0]["state"], "in-sync", "it stays until then");
    assert_eq!(seen["speed"]["ceiling"], 2 << 20);
    assert!(seen["legs"][2]["progress"]["left_ns"].is_u64(), "{seen}");
    place.told(&["mirror", "speed", "v0", "--ceiling", "1GiB/s"]);
    wait_until(|| {
        place.status();
        (place.legs() == ["in-sync", "in-sync"]).then_some(())
    });
    wait_until(|| (!place.is_leg(&place.leg("a"))).then_some(()));
    verify(&mut client, 300);
    end(engine);
    assert!(place.data("b") == place.data("c"), "legs differ");
}

#[test]
fn copies_that_are_paused_wait_and_go_on() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    assert_eq!(place.client().write(0, 7), 0);
    let paused = place.told(&["mirror", "speed", "v0", "--pause"]);
    wait_until(|| (place.status()["speed"]["paused"] == true).then_some(()));
    assert_eq!(paused["name"], "v0");
    let c = place.file("c", LEG_BYTES);
    place.told(&["mirror", "add", "v0", &c]);
    wait_until(|| (place.legs()[2] == "rebuilding").then_some(()));
    place.told(&["mirror", "speed", "v0", "--resume"]);
    place.until_in_sync();
    assert_eq!(place.status()["speed"]["paused"], false);
    let wrong = place.refused(&[
        "mirror",
        "speed",
        "v0",
        "--floor",
        "2GiB/s",
        "--ceiling",
        "1MiB/s",
    ]);
    assert!(wrong.contains("above the ceiling"), "{wrong}");
    end(engine);
}

#[test]
fn what_can_not_be_a_leg_is_refused_and_the_last_one_stays() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    let small = place.file("small", LEG_BYTES / 2);
    let why = place.refused(&["mirror", "add", "v0", &small]);
    assert!(why.contains("too small"), "{why}");
    std::fs::write(place.path("small"), b"precious").unwrap();
    for words in [
        &["mirror", "add", "v0", &small, "--force"][..],
        &["mirror", "replace", "v0", "1", &small, "--force"],
    ] {
        let why = place.refused(words);
        assert!(why.contains("too small"), "{why}");
        let holds = std::fs::read(place.path("small")).unwrap();
        assert_eq!(
            holds, b"precious",
            "nothing is written before it is refused"
        );
    }
    let (x, y) = (place.file("x", LEG_BYTES), place.file("y", LEG_BYTES));
    let made = place.braid(&["mirror", "create", "other", &x, &y]);
    assert!(made.status.success(), "{made:?}");
    let why = place.refused(&["mirror", "add", "v0", &x]);
    assert!(why.contains("of the mirror \"other\""), "{why}");
    let why = place.refused(&["mirror", "add", "v0", "file:/nowhere/at/all"]);
    assert!(why.contains("/nowhere/at/all"), "{why}");
    assert_eq!(place.legs(), ["in-sync", "in-sync"], "nothing has changed");
    place.told(&["mirror", "add", "v0", &x, "--force", "--wait"]);
    place.until_in_sync();
    place.told(&["mirror", "remove", "v0", "2"]);
    place.told(&["mirror", "remove", "v0", &place.leg("a")]);
    let why = place.refused(&["mirror", "remove", "v0", "1"]);
    assert!(why.contains("last leg in sync"), "t45: {why}");
    end(engine);
}

#[test]
fn a_blank_disk_at_the_path_of_one_that_died_is_called_so_and_takes_its_place() {
    for replaced in [true, false] {
        let Some(place) = Place::new() else {
            return;
        };
        let (engine, _) = place.written();
        place.told(&["mirror", "fail", "v0", "1"]);
        wait_until(|| (place.legs()[1] == "stale").then_some(()));
        end(engine);
        std::fs::remove_file(place.path("b")).unwrap();
        let b = place.file("b", LEG_BYTES);
        let engine = place.start();
        let is_there = || {
            let legs = place.legs();
            (legs == ["in-sync", "unusable", "missing"]).then_some(())
        };
        wait_until(is_there);
        let status = place.status().to_string();
        assert!(status.contains("not this leg: replace 1 by it"), "{status}");
        for verb in ["restore", "remove"] {
            let why = place.refused(&["mirror", verb, "v0", &b]);
            assert!(why.contains("is no leg of it"), "{verb}: {why}");
            assert!(why.contains("mirror replace"), "{verb}: {why}");
        }
        match replaced {
            true => {
                place.told(&["mirror", "replace", "v0", "1", &b]);
            }
            false => {
                place.told(&["mirror", "remove", "v0", "1"]);
                place.told(&["mirror", "add", "v0", &b]);
            }
        }
        wait_until(|| {
            place.status();
            (place.legs() == ["in-sync", "in-sync"]).then_some(())
        });
        verify(&mut place.client(), 300);
        end(engine);
        assert!(place.data("a") == place.data("b"), "legs differ");
    }
}

#[test]
fn a_leg_that_was_not_there_since_the_start_is_taken_out_removed_or_replaced() {
    for replaced in [true, false] {
        let Some(place) = Place::new() else {
            return;
        };
        let (engine, _) = place.written();
        end(engine);
        place.config("assemble_wait = \"500ms\"\nstart_degraded = false\n");
        std::fs::rename(place.path("b"), place.path("hidden")).unwrap();
        let mut engine = begun(place.0.path());
        engine.notes("not started");
        place.told(&["mirror", "assemble", "v0", "--without-missing"]);
        assert!(engine.says("v0: ready").is_some());
        assert_eq!(place.legs(), ["in-sync", "missing"]);
        // Once more it is said again, and is not refused.
        for _ in 0..2 {
            let out = place.told(&["mirror", "fail", "v0", "1"]);
            assert!(out["state"] == "taken-out" || out["nothing"].is_string());
        }
        let c = place.file("c", LEG_BYTES);
        match replaced {
            true => {
                place.told(&["mirror", "replace", "v0", "1", &c, "--wait"]);
            }
            false => {
                let gone = place.told(&["mirror", "remove", "v0", "1"]);
                assert_eq!(gone["carries_superblock"], true, "{gone}");
                assert_eq!(place.legs(), ["in-sync"]);
                place.told(&["mirror", "add", "v0", &c, "--wait"]);
            }
        }
        wait_until(|| {
            place.status();
            (place.legs() == ["in-sync", "in-sync"]).then_some(())
        });
        // It is there again, and nobody's.
        std::fs::rename(place.path("hidden"), place.path("b")).unwrap();
        let why = place.refused(&["mirror", "restore", "v0", &place.leg("b")]);
        assert!(why.contains("there is no leg"), "{why}");
        verify(&mut place.client(), 300);
        end(engine);
        assert!(place.data("a") == place.data("c"), "legs differ");
    }
}

#[test]
fn a_leg_whose_file_is_another_one_by_now_is_not_restored() {
    let Some(place) = Place::new() else {
        return;
    };
    let (engine, mut client) = place.written();
    place.told(&["mirror", "fail", "v0", "1"]);
    std::fs::remove_file(place.path("b")).unwrap();
    let restore = ["mirror", "restore", "v0", "1"];
    let why = place.refused(&restore);
    assert!(why.contains("not the one that is open"), "{why}");
    let b = place.leg("b");
    for words in [
        &["mirror", "add", "v0", &b][..],
        &["mirror", "replace", "v0", "1", &b],
    ] {
        let why = place.refused(words);
        assert!(why.contains("remove the leg, and add it again"), "{why}");
    }
    let b = place.file("b", LEG_BYTES);
    let why = place.refused(&restore);
    assert!(why.contains("remove the leg, and add it again"), "{why}");
    place.told(&["mirror", "remove", "v0", "1"]);
    place.told(&["mirror", "add", "v0", &b]);
    place.until_in_sync();
    verify(&mut client, 300);
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
}

#[test]
fn t48_what_is_a_leg_by_another_name_or_a_copy_of_one_is_not_added() {
    let Some(place) = Place::new() else {
        return;
    };
    let (engine, mut client) = place.written();
    place.until_in_sync();
    std::fs::hard_link(place.path("a"), place.path("hard")).unwrap();
    let add = |leg: &str| place.refused(&["mirror", "add", "v0", leg, "--force"]);
    let why = add(&place.leg("hard"));
    assert!(why.contains("the same as") && why.contains("/a"), "{why}");
    std::fs::copy(place.path("b"), place.path("copy")).unwrap();
    let why = add(&place.leg("copy"));
    assert!(why.contains("it shows leg 1"), "{why}");
    let device = std::process::Command::new("losetup")
        .args(["-f", "--show"])
        .arg(place.path("a"))
        .output();
    match device.ok().filter(|it| it.status.success()) {
        Some(output) => {
            let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            let why = add(&format!("file:{name}"));
            // Nor may another mirror be made of it meanwhile.
            let other = [
                "mirror",
                "create",
                "other",
                &format!("file:{name}"),
                "--force",
            ];
            let other = place.braid(&other);
            assert!(
                !other.status.success() && said(&other).contains("in use"),
                "{other:?}"
            );
            let mut gone = std::process::Command::new("losetup");
            gone.args(["-d", &name]).status().unwrap();
            assert!(why.contains("the same as") && why.contains("/a"), "{why}");
        }
        None => {
            use std::io::Write;
            let test = "t48_what_is_a_leg_by_another_name_or_a_copy_of_one_is_not_added";
            let _ = writeln!(std::io::stderr(), "SKIP {test}: losetup gives no device");
        }
    }
    // Of a leg that is none any more, a copy may be written over.
    place.told(&["mirror", "remove", "v0", "1"]);
    place.told(&[
        "mirror",
        "add",
        "v0",
        &place.leg("copy"),
        "--force",
        "--wait",
    ]);
    place.until_in_sync();
    verify(&mut client, 300);
    end(engine);
    assert!(place.data("a") == place.data("copy"), "legs differ");
}

/// A host that has identified its namespace is one client, with all its connections.
#[test]
fn stop_of_a_mirror_with_nvme_hosts_needs_force() {
    let Some(place) = Place::new() else {
        return;
    };
    let mut text = std::fs::read_to_string(place.path("b.toml")).unwrap();
    text += "[[volume.export]]\nnvme = \"127.0.0.1:0\"\nnqn = \"nqn.2026-01.org.example:m\"\n";
    std::fs::write(place.path("b.toml"), text).unwrap();
    let engine = place.start();
    let stat = place.told(&["stat"]);
    let exports = stat["volumes"][0]["exports"].as_array().unwrap();
    let uri = exports.iter().find_map(|it| {
        let uri = it["uri"].as_str().unwrap();
        uri.starts_with("nvme-tcp:").then(|| uri.to_owned())
    });
    let uri = uri.unwrap();
    let config = place.path("host.toml");
    let text = format!("[[volume]]\nname = \"h\"\n[[volume.path]]\nuri = \"{uri}\"\n");
    std::fs::write(&config, text).unwrap();
    let socket = place.path("host.sock");
    let words = ["run", "-c", config.to_str().unwrap(), "--socket"];
    let words = [&words[..], &[socket.to_str().unwrap()]].concat();
    let mut host = Process::start(place.0.path(), &words);
    assert!(host.says("h: ready").is_some(), "{}", host.seen);
    let why = place.refused(&["mirror", "stop", "v0"]);
    assert!(why.contains("v0 has clients: 1"), "{why}");
    place.told(&["mirror", "stop", "v0", "--force"]);
    host.notes("namespace 1 was removed or detached");
    end(host);
    place.told(&["mirror", "assemble", "v0"]);
    place.told(&["mirror", "stop", "v0"]);
    end(engine);
}

#[test]
fn a_mirror_that_is_stopped_leaves_its_legs_free_and_the_engine_goes_on() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    let mut client = place.client();
    assert_eq!(client.write(0, 7), 0);
    let why = place.refused(&["mirror", "stop", "v0"]);
    assert!(why.contains("has clients: 1"), "{why}");
    place.told(&["mirror", "stop", "v0", "--force"]);
    assert!(client.is_over());
    let stat = place.told(&["stat"]);
    assert_eq!(stat["volumes"][0]["why"], "it was stopped");
    let waited = place.ask(&["mirror", "status", "v0", "--wait", "-o", "json"]);
    assert_eq!(
        waited.status.code(),
        Some(1),
        "nothing will come: {waited:?}"
    );
    assert!(said(&waited).contains("v0: it was stopped"));
    let status: Value = serde_json::from_slice(&waited.stdout).unwrap();
    assert_eq!(
        (&status["phase"], &status["speed"]),
        (&"stopped".into(), &Value::Null)
    );
    let seen = place.braid(&["mirror", "examine", &place.leg("a"), "-o", "json"]);
    let seen: Value = serde_json::from_slice(&seen.stdout).unwrap();
    assert_eq!(seen["legs"][0]["mirror"]["clean"], true);
    // They have no owner: another engine may take them.
    for name in ["a", "b"] {
        let tried = place.braid(&["mirror", "create", "v1", &place.leg(name)]);
        assert!(said(&tried).contains("it is leg"), "not in use: {tried:?}");
    }
    // Nothing calls for a leg to be given up.
    let why = place.refused(&["mirror", "assemble", "v0", "--discard", "0"]);
    assert!(why.contains("have not parted"), "{why}");
    place.told(&["mirror", "assemble", "v0"]);
    place.told(&["mirror", "stop", "v0"]);
    // The same engine starts it again, and stops it again.
    for byte in [8, 9] {
        place.told(&["mirror", "assemble", "v0"]);
        let mut client = place.client();
        assert_eq!(client.read(0), [byte - 1; 4096]);
        assert_eq!(client.write(0, byte), 0);
        drop(client);
        assert_eq!(place.legs(), ["in-sync", "in-sync"]);
        place.told(&["mirror", "stop", "v0", "--force"]);
    }
    let a = std::fs::rename(place.path("a"), place.path("hidden"));
    a.unwrap();
    // One leg alone shows the clean stop that this host has recorded.
    place.told(&["mirror", "assemble", "v0"]);
    assert_eq!(place.client().read(0), [9; 4096]);
    std::fs::rename(place.path("hidden"), place.path("a")).unwrap();
    // The leg that was left out is one of those with which it is started once more.
    place.told(&["mirror", "stop", "v0", "--force"]);
    place.told(&["mirror", "assemble", "v0"]);
    assert_eq!(place.client().read(0), [9; 4096]);
    assert_eq!(place.legs(), ["in-sync", "in-sync"]);
    end(engine);
    let engine = place.start();
    assert_eq!(place.client().read(0), [9; 4096]);
    place.until_in_sync();
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
}

#[test]
fn t45_of_two_halves_one_is_given_up_when_a_stopped_mirror_is_started_again() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.parted();
    let why = place.refused(&["mirror", "check", "v0"]);
    assert!(why.contains("does not run"), "{why}");
    let discard = |leg: &str| {
        let leg = format!("--discard={leg}");
        ["mirror".to_owned(), "assemble".into(), "v0".into(), leg]
    };
    let words = discard(&place.leg("other"));
    let why = place.refused(&words.each_ref().map(String::as_str));
    assert!(why.contains("there is no leg"), "{why}");
    let words = discard("7");
    let why = place.refused(&words.each_ref().map(String::as_str));
    assert!(why.contains("there is no leg"), "{why}");
    let words = discard("0"); // a
    place.told(&words.each_ref().map(String::as_str));
    assert_eq!(place.client().read(0), [6; 4096]);
    place.until_in_sync();
    let why = place.refused(&words.each_ref().map(String::as_str));
    assert!(why.contains("v0 runs"), "{why}");
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
}

#[test]
fn t45_of_two_halves_one_is_given_up_by_its_number_at_a_start() {
    let Some(place) = Place::new() else {
        return;
    };
    end(place.parted());
    let mut engine = begun(place.0.path());
    engine.notes("not started");
    assert_eq!(place.status()["phase"], "refused");
    let why = place.refused(&["mirror", "assemble", "v0", "--discard", "7"]);
    assert!(why.contains("there is no leg"), "{why}");
    place.told(&["mirror", "assemble", "v0", "--discard", "1"]);
    assert_eq!(place.client().read(0), [5; 4096]);
    place.until_in_sync();
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
}

#[test]
fn a_mirror_grows_when_all_its_files_have_and_a_kill_leaves_it_whole() {
    let Some(place) = Place::new() else {
        return;
    };
    let (engine, mut client) = place.written();
    let larger = |name: &str| {
        let file = File::options().write(true).open(place.path(name)).unwrap();
        file.set_len(2 * LEG_BYTES).unwrap();
    };
    let why = place.refused(&["mirror", "grow", "v0"]);
    assert!(why.contains("make all legs larger"), "{why}");
    larger("a");
    let why = place.refused(&["mirror", "grow", "v0"]);
    assert!(why.contains("leg 1 is not larger"), "{why}");
    larger("b");
    let told = place.told(&["mirror", "grow", "v0"]);
    let bytes = 2 * LEG_BYTES - DATA_AT;
    assert_eq!(
        (&told["bytes"], &told["before"]),
        (&bytes.into(), &(bytes - LEG_BYTES).into())
    );
    verify(&mut client, 300);
    // A connected client keeps the size that it was told; one that connects now has all of it.
    assert_ne!(client.write(bytes - 4096, 8), 0);
    let mut client = place.client();
    assert_eq!(client.write(bytes - 4096, 9), 0);
    kill(engine);
    let engine = place.start();
    let mut client = place.client();
    assert_eq!(client.read(bytes - 4096), [9; 4096]);
    verify(&mut client, 300);
    wait_until(|| (place.told(&["stat"])["volumes"][0]["unalike"] == 0).then_some(()));
    end(engine);
    let [a, b] = ["a", "b"].map(|name| std::fs::read(place.path(name)).unwrap());
    let from = DATA_AT as usize;
    assert!(
        a.len() as u64 == 2 * LEG_BYTES && a[from..] == b[from..],
        "legs differ"
    );
}

#[test]
fn what_was_said_by_verb_of_legs_and_speed_holds_over_a_restart() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    place.told(&["mirror", "speed", "v0", "--ceiling", "7MiB/s"]);
    place.told(&["mirror", "fail", "v0", "1"]);
    wait_until(|| (place.legs() == ["in-sync", "stale"]).then_some(()));
    end(engine);
    place.config("shared = false\n");
    let engine = place.start();
    wait_until(|| (place.status()["speed"]["ceiling"] == 7 << 20).then_some(()));
    // A leg that may return does so within a second.
    place.client().read(0);
    assert_eq!(place.legs(), ["in-sync", "stale"]);
    place.told(&["mirror", "restore", "v0", "1"]);
    place.until_in_sync();
    end(engine);
}

/// An engine with three legs whose URIs begin alike, in an order other than their slots'; the URIs
/// by slot.
fn with_long_names(place: &Place) -> [String; 3] {
    let directory = "d".repeat(60);
    std::fs::create_dir(place.path(&directory)).unwrap();
    let legs = [0, 1, 2].map(|slot| place.file(&format!("{directory}/leg-{slot}"), LEG_BYTES));
    let [first, second, third] = &legs;
    let made = place.braid(&["mirror", "create", "v0", first, second, third]);
    assert!(made.status.success(), "{made:?}");
    let leg = |uri: &String| format!("[[volume.leg]]\nuri = \"{uri}\"\n");
    let text = format!(
        "drain_timeout = \"5s\"\n[[volume]]\nname = \"v0\"\nkind = \"mirror\"\n\
         assemble_wait = \"1s\"\n{}{}{}[[volume.export]]\nnbd = \"unix:{}\"\n",
        leg(first),
        leg(third),
        leg(second),
        place.path("v0.sock").display()
    );
    std::fs::write(place.path("b.toml"), text).unwrap();
    legs
}

#[test]
fn verbs_mean_the_leg_whose_long_uri_is_named() {
    let Some(place) = Place::new() else {
        return;
    };
    let legs = with_long_names(&place);
    let engine = place.start();
    assert_eq!(place.client().write(0, 1), 0);
    place.told(&["mirror", "fail", "v0", "1"]);
    place.told(&["mirror", "fail", "v0", "2"]);
    end(engine);
    let path = |uri: &str| uri.trim_start_matches("file:").to_owned();
    let away = |uri: &str| format!("{}-away", path(uri));
    for leg in &legs[1..] {
        std::fs::rename(path(leg), away(leg)).unwrap();
    }
    let engine = place.start();
    let slots = || {
        let status = place.status();
        let legs = status["legs"].as_array().unwrap();
        let slot = |leg: &Value| {
            (
                leg["slot"].as_u64(),
                leg["uri"].as_str().unwrap().to_owned(),
            )
        };
        let mut legs: Vec<_> = legs.iter().map(slot).collect();
        legs.sort();
        legs
    };
    let pair = |slot: usize| (Some(slot as u64), legs[slot].clone());
    assert_eq!(slots(), [pair(0), pair(1), pair(2)]);
    place.told(&["mirror", "remove", "v0", &legs[2]]);
    assert_eq!(slots(), [pair(0), pair(1)]);
    std::fs::rename(away(&legs[1]), path(&legs[1])).unwrap();
    place.told(&["mirror", "restore", "v0", &legs[1]]);
    place.until_in_sync();
    assert_eq!(slots(), [pair(0), pair(1)]);
    end(engine);
}

#[test]
fn t55_what_can_not_be_noted_on_a_leg_is_refused() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    let c = place.file("c", LEG_BYTES);
    place.told(&["mirror", "fail", "v0", "1"]);
    place.told(&["path", "fail", "v0/0", &place.leg("a"), "--force"]);
    for words in [
        &["mirror", "remove", "v0", "1"][..],
        &["mirror", "add", "v0", &c],
        &["mirror", "replace", "v0", "1", &c],
        &["mirror", "grow", "v0"],
    ] {
        let why = place.refused(words);
        assert!(why.contains("no leg in sync can be written now"), "{why}");
    }
    place.told(&["path", "restore", "v0/0", &place.leg("a")]);
    place.told(&["mirror", "restore", "v0", "1"]);
    place.until_in_sync();
    assert_eq!(place.legs(), ["in-sync", "in-sync"], "nothing was pending");
    end(engine);
}

/// The file gives other legs: new ones are rebuilt, others are none any more. A file that says what
/// verbs have done changes nothing.
#[test]
fn legs_come_and_go_by_reload() {
    let Some(place) = Place::new() else {
        return;
    };
    let (engine, mut client) = place.written();
    let [a, b] = ["a", "b"].map(|it| place.leg(it));
    let [c, d] = ["c", "d"].map(|it| place.file(it, LEG_BYTES));
    place.config_of_legs(&[&a, &b, &c]);
    let plan = place.told(&["reload", "--dry-run"])["plan"].clone();
    assert_eq!(plan, serde_json::json!([format!("v0: add leg {c}")]));
    let changed = place.told(&["reload"])["changed"].clone();
    assert_eq!(changed, format!("added leg {c}"));
    place.until_in_sync();
    assert_eq!(place.legs().len(), 3);
    // By verb, then in the file too.
    place.told(&["mirror", "remove", "v0", &b]);
    place.config_of_legs(&[&a, &c]);
    assert_eq!(place.told(&["reload"])["changed"], "no difference");
    assert_eq!(place.legs(), ["in-sync"; 2]);
    // One that fails takes the others back: what holds data is not written over.
    let full = place.file("full", LEG_BYTES);
    std::fs::write(place.path("full"), [7; 1 << 20]).unwrap();
    place.config_of_legs(&[&a, &c, &d, &full]);
    let why = place.refused(&["reload"]);
    assert!(why.contains("volume v0") && why.contains("full"), "{why}");
    assert!(!why.contains("not all could be taken back"), "{why}");
    assert_eq!(place.legs(), ["in-sync"; 2]);
    // The last one in sync does not go.
    let e = place.file("e", LEG_BYTES);
    place.config_of_legs(&[&e]);
    let why = place.refused(&["reload"]);
    assert!(
        why.contains("none of the legs that stay is in sync"),
        "{why}"
    );
    place.config_of_legs(&[&c, &e]);
    // An address that can't be had refuses it before a leg has gone.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, nqn) = (taken.local_addr().unwrap(), "nqn.2026-01.org.example:m");
    let text = std::fs::read_to_string(place.path("b.toml")).unwrap();
    let export = format!("[[volume.export]]\nnvme = \"{address}\"\nnqn = \"{nqn}\"\n");
    std::fs::write(place.path("b.toml"), format!("{text}{export}")).unwrap();
    let plan = place.told(&["reload", "--dry-run"])["plan"].clone();
    assert_eq!(plan[0], format!("v0: add export nvme {address} of {nqn}"));
    let why = place.refused(&["reload"]);
    assert!(why.contains("cannot listen on"), "{why}");
    assert_eq!(place.legs(), ["in-sync"; 2]);
    std::fs::write(place.path("b.toml"), text).unwrap();
    let changed = place.told(&["reload"])["changed"].clone();
    let said = changed.as_str().unwrap();
    let both = [format!("added leg {e}"), format!("removed leg {a}")];
    assert!(both.iter().all(|it| said.contains(it)), "{said}");
    assert!(!place.is_leg(&a), "its superblocks are gone");
    place.until_in_sync();
    verify(&mut client, 300);
    end(engine);
    assert!(place.data("c") == place.data("e"), "legs differ");
    // The next engine has the same.
    let engine = place.start();
    assert_eq!(place.legs(), ["in-sync"; 2]);
    assert_eq!(place.told(&["reload"])["changed"], "no difference");
    end(engine);
}

/// R2: a leg that could not be opened when its mirror was started again is none any more once the
/// file drops it, and may come again like any other one.
#[test]
fn idle_leg_goes_and_returns_with_the_file() {
    let Some(place) = Place::new() else {
        return;
    };
    let (engine, client) = place.written();
    drop(client);
    place.told(&["mirror", "stop", "v0", "--force"]);
    std::fs::remove_file(place.path("b")).unwrap();
    place.told(&["mirror", "assemble", "v0"]);
    assert_eq!(place.legs(), ["in-sync", "missing"]);
    let [a, b] = ["a", "b"].map(|it| place.leg(it));
    assert_eq!(place.told(&["reload"])["changed"], "no difference");
    place.config_of_legs(&[&a]);
    let changed = place.told(&["reload"])["changed"].clone();
    assert_eq!(changed, format!("removed leg {b}"));
    assert_eq!(place.legs(), ["in-sync"]);
    place.file("b", LEG_BYTES);
    place.config_of_legs(&[&a, &b]);
    let changed = place.told(&["reload"])["changed"].clone();
    assert_eq!(changed, format!("added leg {b}"));
    place.until_in_sync();
    assert_eq!(place.legs().len(), 2);
    verify(&mut place.client(), 300);
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
}
