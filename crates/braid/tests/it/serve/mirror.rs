//! `braid run` with a mirror over files, as a process: made, written, killed, without a leg, with
//! it again; and what it keeps others from.
mod clones;
mod cut;
mod degraded;
mod dropped;
mod far;
mod late;
mod legs;
mod names;
pub mod place;
pub mod refused;
mod reload;
mod timeouts;
mod verbs;

use crate::serve::process::{Process, begun, wait_until};
use place::{DATA_AT, LEG_BYTES, Place, end, kill, said, verify};
use serde_json::Value;

#[test]
fn a_mirror_that_is_killed_has_what_was_acknowledged_and_its_legs_become_alike() {
    let Some(place) = Place::new() else {
        return;
    };
    for round in 0..3 {
        let engine = place.start();
        let mut client = place.client();
        if round > 0 {
            verify(&mut client, 200);
        }
        for block in 0..200_u64 {
            assert_eq!(client.write(block << 12, block as u8), 0);
        }
        // Many at a time, of which none is awaited.
        for block in 200..400_u64 {
            client.send_write(block << 12, round);
        }
        kill(engine);
    }
    let engine = place.start();
    verify(&mut place.client(), 200);
    wait_until(|| (place.told(&["stat"])["volumes"][0]["unalike"] == 0).then_some(()));
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
    let seen = place.braid(&["mirror", "examine", &place.leg("a"), "-o", "json"]);
    let seen: Value = serde_json::from_slice(&seen.stdout).unwrap();
    assert_eq!(seen["legs"][0]["mirror"]["clean"], true);
    assert_eq!(seen["legs"][0]["bitmap"]["set"], 0);
}

#[test]
fn a_leg_that_was_away_gets_what_it_missed_and_reads_go_on_meanwhile() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    let mut client = place.client();
    for block in 0..64_u64 {
        assert_eq!(client.write(block << 12, 0xff), 0);
    }
    let out = place.told(&["mirror", "fail", "v0", "1"]);
    assert_eq!(out["state"], "taken-out");
    let again = place.told(&["mirror", "fail", "v0", "1"]);
    assert_eq!(again["nothing"], "the leg is taken out already");
    wait_until(|| (place.legs() == ["in-sync", "stale"]).then_some(()));
    assert_eq!(place.ask(&["check"]).status.code(), Some(1), "degraded");
    let last = place.ask(&["mirror", "fail", "v0", "0"]);
    assert!(said(&last).contains("last leg in sync"), "t45: {last:?}");
    for block in 0..64_u64 {
        assert_eq!(client.write(block << 12, block as u8), 0);
    }
    verify(&mut client, 64);
    place.told(&["mirror", "restore", "v0", "1"]);
    place.until_in_sync();
    assert_eq!(place.ask(&["check"]).status.code(), Some(0));
    let checked = place.told(&["mirror", "check", "v0", "--wait"]);
    assert_eq!(
        (&checked["differences"], &checked["alike"]),
        (&0.into(), &true.into())
    );
    let all = LEG_BYTES - DATA_AT;
    assert_eq!(
        (&checked["bytes"], &checked["alone"]),
        (&all.into(), &false.into())
    );
    let stat = place.told(&["stat"]);
    assert_eq!(stat["volumes"][0]["checked"]["complete"], true);
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
}

#[test]
fn t48_what_a_mirror_has_nobody_else_writes_and_it_takes_nothing_that_somebody_writes() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    let (a, b) = (place.leg("a"), place.leg("b"));
    let file = place.path("a");
    let socket = place.path("d.sock");
    for words in [
        &["mirror", "create", "v1", &a, &b, "--force"][..],
        &["bench", "--rw", "randwrite", "--runtime", "1ms", &b],
        &[
            "target",
            "--file",
            file.to_str().unwrap(),
            "--listen",
            "127.0.0.1:0",
        ],
        &[
            "run",
            "-c",
            place.path("b.toml").to_str().unwrap(),
            "--socket",
            socket.to_str().unwrap(),
        ],
    ] {
        let refused = place.braid(words);
        assert_eq!(refused.status.code(), Some(1), "{words:?}: {refused:?}");
        let why = said(&refused);
        assert!(
            why.contains("is in use") && why.contains("exclusive lock"),
            "{words:?}: {why}"
        );
        // The holder is named, not only that there is one.
        let named = why.contains("has the mirror \"v0\" on it") && why.contains("last beat");
        assert!(named || words[0] != "run", "{why}");
    }
    let exported = place.ask(&["export", "add", "v0/0", "unix:/nowhere"]);
    assert!(said(&exported).contains("leg of v0"), "{exported:?}");
    end(engine);
}

#[test]
fn t48_what_is_the_same_storage_as_a_leg_by_another_name_is_refused() {
    let Some(place) = Place::new() else {
        return;
    };
    std::os::unix::fs::symlink(place.path("a"), place.path("link")).unwrap();
    let link = place.leg("link");
    for more in [
        format!("[[volume.leg]]\nuri = \"{link}\"\n"),
        format!("[[volume]]\nname = \"v1\"\n[[volume.path]]\nuri = \"{link}\"\n"),
    ] {
        place.config("");
        let text = std::fs::read_to_string(place.path("b.toml")).unwrap();
        std::fs::write(place.path("b.toml"), text + &more).unwrap();
        let mut engine = begun(place.0.path());
        let line = engine.notes("the same storage");
        assert!(
            line.contains(&link) && line.contains(&place.leg("a")),
            "{line}"
        );
    }
}

#[test]
fn t45_a_leg_that_is_missing_and_may_have_more_is_not_gone_on_without_but_by_word() {
    let Some(place) = Place::new() else {
        return;
    };
    place.config("assemble_wait = \"100ms\"\nstart_degraded = false\n");
    let engine = place.start();
    assert_eq!(place.client().write(0, 7), 0);
    end(engine);
    std::fs::rename(place.path("b"), place.path("away")).unwrap();
    let mut engine = begun(place.0.path());
    let line = engine.notes("not started");
    assert!(
        line.contains("newer writes") && line.contains(&place.leg("b")),
        "{line}"
    );
    let check = place.ask(&["check", "v0"]);
    assert_eq!(check.status.code(), Some(2), "{check:?}");
    assert!(
        String::from_utf8_lossy(&check.stdout).contains("missing"),
        "{check:?}"
    );
    let status = place.told(&["mirror", "status", "v0"]);
    assert_eq!(
        status["legs"][0]["slot"], 0,
        "as its superblock says: {status}"
    );
    let policy = place.told(&["policy", "show", "v0"]);
    assert!(
        policy["policy"].is_null() && policy["why"].is_string(),
        "{policy}"
    );
    let refused = place.ask(&["mirror", "assemble", "v0"]);
    assert!(!refused.status.success(), "{refused:?}");
    let why = said(&refused);
    assert!(why.contains("--without-missing"), "{why}");
    place.told(&["mirror", "assemble", "v0", "--without-missing"]);
    assert!(engine.says("v0: ready").is_some());
    let mut client = place.client();
    assert_eq!(client.read(0), [7; 4096]);
    assert_eq!(client.write(4096, 8), 0);
    assert_eq!(place.legs(), ["in-sync", "missing"], "each once");
    // It is there again, and may be noticed before it is said.
    std::fs::rename(place.path("away"), place.path("b")).unwrap();
    place.told(&["mirror", "restore", "v0", "1"]);
    place.until_in_sync();
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
}

#[test]
fn b6_the_policy_is_the_mirrors_and_goes_with_it() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    // Reads go to one leg at a time, and it is said so.
    let shown = place.told(&["knob", "show", "v0"]);
    assert_eq!(
        (&shown["hedge"], &shown["hedging"]),
        (&"off".into(), &false.into())
    );
    let refused = place.ask(&["knob", "set", "v0", "hedge", "on"]);
    assert!(said(&refused).contains("is a mirror"), "{refused:?}");
    let shown = |place: &Place| place.told(&["policy", "show", "v0"])["policy"].clone();
    assert_eq!(shown(&place), "soonest");
    place.told(&["policy", "set", "v0", "round-robin"]);
    assert_eq!(shown(&place), "round-robin:262144", "b2");
    for word in ["devid:9", "fastest"] {
        let refused = place.ask(&["policy", "set", "v0", word]);
        assert!(!refused.status.success(), "{refused:?}");
    }
    assert_eq!(shown(&place), "round-robin:262144", "b5");
    // An answered order is on the legs, however the engine ends.
    place.told(&["policy", "set", "v0", "latency"]);
    kill(engine);
    let engine = place.start();
    assert_eq!(shown(&place), "latency");
    place.told(&["policy", "set", "v0", "round-robin"]);
    kill(engine);
    // Nothing of the engine is left, but the legs.
    let _ = std::fs::remove_dir_all(place.path("state"));
    let engine = place.start();
    assert_eq!(shown(&place), "round-robin:262144");
    let mut client = place.client();
    for block in 0..256_u64 {
        client.read(block << 12);
    }
    let stat = place.told(&["stat"]);
    let reads = |leg: usize| {
        stat["volumes"][0]["legs"][leg]["bytes_read"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(reads(0) + reads(1), 1 << 20);
    assert!(
        reads(0).abs_diff(reads(1)) <= 256 << 10,
        "{} {}",
        reads(0),
        reads(1)
    );
    end(engine);
}

/// A target over one file, with the blocks that its mirror was made with; where it listens is
/// `port`, or any, and its URI.
fn target(place: &Place, leg: &str, port: &str) -> (Process, String) {
    let text = format!(
        "nqn = \"nqn.2026-01.org.braid:{leg}\"\ncqt = \"0\"\n[[namespace]]\nbackend = \"{}\"\n\
         block_size = 512\n[[port]]\nlisten = \"127.0.0.1:{port}\"\n",
        place.leg(leg)
    );
    let [config, socket] = ["toml", "ctl"].map(|kind| place.path(&format!("{leg}.{kind}")));
    std::fs::write(&config, text).unwrap();
    let [config, socket] = [&config, &socket].map(|path| path.to_str().unwrap());
    let words = ["target", "-c", config, "--socket", socket];
    let mut target = Process::start(place.0.path(), &words);
    let line = target.says("port 1: ").unwrap();
    let uri = line.split_whitespace().nth(2).unwrap().to_owned();
    (target, uri)
}

#[test]
fn t09_a_leg_whose_target_dies_is_gone_on_without_and_comes_back() {
    let Some(place) = Place::new() else {
        return;
    };
    let ((one, a), (two, b)) = (target(&place, "a", "0"), target(&place, "b", "0"));
    let text = format!(
        "keep_alive_tmo = \"3s\"\nio_timeout = \"12s\"\n\
         [[volume]]\nname = \"v0\"\nkind = \"mirror\"\nquiesce_time = \"100ms\"\n\
         fast_io_fail_tmo = \"1s\"\nreconnect_delay = \"500ms\"\n\
         [[volume.leg]]\nuri = \"{a}\"\n[[volume.leg]]\nuri = \"{b}\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        place.path("v0.sock").display()
    );
    std::fs::write(place.path("b.toml"), text).unwrap();
    let engine = place.start();
    let mut client = place.client();
    for block in 0..64_u64 {
        assert_eq!(client.write(block << 12, 0xff), 0);
    }
    kill(two);
    for block in 0..64_u64 {
        assert_eq!(client.write(block << 12, block as u8), 0);
    }
    verify(&mut client, 64);
    assert_eq!(
        place.ask(&["check", "v0"]).status.code(),
        Some(1),
        "degraded"
    );
    let port = b.split(['/', ':']).nth(4).unwrap().to_owned();
    let (two, _) = target(&place, "b", &port);
    place.until_in_sync();
    verify(&mut client, 64);
    end(engine);
    end(one);
    end(two);
    assert!(place.data("a") == place.data("b"), "legs differ");
}

#[test]
fn on_two_cores_all_volumes_are_said_to_be_ready_once_and_legs_are_not() {
    let Some(place) = Place::new() else {
        return;
    };
    place.config("");
    let text = std::fs::read_to_string(place.path("b.toml")).unwrap();
    let plain =
        |name| format!("[[volume]]\nname = \"{name}\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n");
    let text = ["cores = 2\n", &text, &plain("p"), &plain("q")].concat();
    std::fs::write(place.path("b.toml"), text).unwrap();
    let mut engine = begun(place.0.path());
    for _ in 0..3 {
        assert!(engine.says(": ready").is_some(), "{}", engine.seen);
    }
    for line in ["v0: ready", "p: ready", "q: ready"] {
        assert_eq!(engine.seen.matches(line).count(), 1, "{}", engine.seen);
    }
    assert!(!engine.seen.contains("v0/"), "{}", engine.seen);
    assert_eq!(place.client().write(0, 1), 0);
    end(engine);
}

#[test]
fn t46_clients_whose_writes_overlap_leave_all_legs_alike_with_two_cores() {
    let Some(place) = Place::new() else {
        return;
    };
    place.config("");
    let text = std::fs::read_to_string(place.path("b.toml")).unwrap();
    std::fs::write(place.path("b.toml"), format!("cores = 2\n{text}")).unwrap();
    let engine = place.start();
    std::thread::scope(|scope| {
        for who in 0..6_u64 {
            let place = &place;
            scope.spawn(move || {
                let mut client = place.client();
                let mut random = who + 1;
                for _ in 0..400 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    // Parts of blocks too: what is beside them stays.
                    let offset = (random >> 33) % 24 * 512;
                    assert_eq!(client.write(offset, who as u8 + 1), 0);
                }
                assert_eq!(client.flush(), 0);
            });
        }
    });
    place.until_in_sync();
    end(engine);
    let (a, b) = (place.data("a"), place.data("b"));
    assert!(a == b, "legs differ");
    let pieces = a[..27 * 512].chunks(512);
    for (at, piece) in pieces.enumerate() {
        let whole = piece.iter().all(|byte| *byte == piece[0]);
        assert!(whole && (1..=6).contains(&piece[0]), "piece {at} is torn");
    }
}
