//! Legs of mirrors that are exchanged in the configuration.
use super::place::{DATA_AT, LEG_BYTES, Place, end, kill, said, silent, verify};
use super::refused::{UNKNOWN, asked_of};
use crate::serve::process::{self, Client, Process, wait_until};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

fn configure(place: &Place, of: &[(&str, [&str; 2])]) {
    let mut text = String::from("drain_timeout = \"5s\"\n");
    for (name, legs) in of {
        let [a, b] = legs.map(|leg| place.leg(leg));
        let socket = place.path(&format!("{name}.sock"));
        text += &format!(
            "[[volume]]\nname = \"{name}\"\nkind = \"mirror\"\n[[volume.leg]]\nuri = \"{a}\"\n\
             [[volume.leg]]\nuri = \"{b}\"\n[[volume.export]]\nnbd = \"unix:{}\"\n",
            socket.display()
        );
    }
    std::fs::write(place.path("b.toml"), text).unwrap();
}

fn client(place: &Place, name: &str) -> Client {
    Client::open_named(&place.path(&format!("{name}.sock")), name)
}

fn first_byte(place: &Place, name: &str) -> u8 {
    client(place, name).read(0)[0]
}

/// Two mirrors, of `a` and `b`, and of `c` and `d`; `None`: this machine has no io_uring.
fn two_mirrors() -> Option<Place> {
    let place = Place::new()?;
    for name in ["c", "d"] {
        let file = File::create(place.path(name)).unwrap();
        file.set_len(LEG_BYTES).unwrap();
    }
    let (c, d) = (place.leg("c"), place.leg("d"));
    let made = place.braid(&["mirror", "create", "v1", &c, &d]);
    assert!(made.status.success(), "{made:?}");
    configure(&place, &[("v0", ["a", "b"]), ("v1", ["c", "d"])]);
    Some(place)
}

/// A leg whose controller does not answer is waited for long, by the verbs of one mirror only.
#[test]
fn verbs_of_two_mirrors_do_not_wait_for_each_other() {
    let Some(place) = two_mirrors() else {
        return;
    };
    let engine = place.start();
    let (silent, uri) = silent();
    std::thread::scope(|scope| {
        let adds = scope.spawn(|| place.ask(&["mirror", "add", "v0", &uri]));
        let connection = silent.accept().unwrap();
        for words in [
            &["stop", "v1"][..],
            &["assemble", "v1"],
            &["remove", "v1", "1"],
        ] {
            let output = place.ask(&[&["mirror"], words].concat());
            assert!(output.status.success(), "{words:?}: {output:?}");
        }
        assert!(!adds.is_finished(), "they have waited for it");
        drop((connection, silent));
        assert_eq!(adds.join().unwrap().status.code(), Some(1));
    });
    end(engine);
}

/// They wait behind a verb that waits for its leg, and behind the reload that closes the mirror.
#[test]
fn verbs_of_a_mirror_that_leaves_are_refused() {
    let Some(place) = two_mirrors() else {
        return;
    };
    let engine = place.start();
    let (silent, uri) = silent();
    configure(&place, &[("v1", ["c", "d"])]);
    let file = File::create(place.path("e")).unwrap();
    file.set_len(LEG_BYTES).unwrap();
    let (leg, export) = (
        place.leg("e"),
        format!("unix:{}", place.path("e.sock").display()),
    );
    let late = [
        vec!["mirror", "add", "v0", &leg],
        vec!["mirror", "stop", "v0"],
        vec!["export", "add", "v0", &export],
    ];
    std::thread::scope(|scope| {
        let first = scope.spawn(|| place.ask(&["mirror", "add", "v0", &uri]));
        let connection = silent.accept().unwrap();
        let is_queued = || std::thread::sleep(Duration::from_secs(1));
        let reload = scope.spawn(|| place.ask(&["reload"]));
        is_queued();
        let late = late.each_ref().map(|words| {
            let place = &place;
            scope.spawn(move || place.ask(words))
        });
        is_queued();
        drop((connection, silent));
        assert_eq!(first.join().unwrap().status.code(), Some(1));
        let reload = reload.join().unwrap();
        assert!(reload.status.success(), "{reload:?}");
        for verb in late {
            let output = verb.join().unwrap();
            assert_eq!(output.status.code(), Some(2), "{output:?}");
            assert!(
                said(&output).contains("there is no volume \"v0\""),
                "{output:?}"
            );
        }
    });
    assert_eq!(client(&place, "v1").write(0, 7), 0);
    end(engine);
}

#[test]
fn legs_of_another_mirror_are_refused_until_accepted() {
    let Some(place) = two_mirrors() else {
        return;
    };
    let engine = place.start();
    for (name, byte) in [("v0", 10), ("v1", 11)] {
        assert_eq!(client(&place, name).write(0, byte), 0);
    }
    end(engine);
    // Exchanged.
    configure(&place, &[("v0", ["c", "d"]), ("v1", ["a", "b"])]);
    let mut engine = process::begun(place.0.path());
    // In either order.
    for _ in 0..2 {
        engine.notes("braid mirror assemble v");
    }
    for name in ["v0", "v1"] {
        let said = format!("braid mirror assemble {name} --accept");
        assert!(engine.seen.contains(&said), "{}", engine.seen);
    }
    assert_eq!(place.ask(&["check"]).status.code(), Some(2), "down");
    let why = said(&place.ask(&["mirror", "assemble", "v0", "--without-missing"]));
    assert!(why.contains("\"v1\"") && why.contains("\"v0\""), "{why}");
    place.told(&["mirror", "assemble", "v0", "--accept"]);
    place.told(&["accept", "v1"]);
    let why = said(&place.ask(&["accept", "v1"]));
    assert!(why.contains("nothing to accept"), "{why}");
    assert_eq!(first_byte(&place, "v0"), 11);
    assert_eq!(first_byte(&place, "v1"), 10);
    let name = |leg: &str| {
        let output = place.braid(&["mirror", "examine", &place.leg(leg), "-o", "json"]);
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        told["legs"][0]["mirror"]["name"].as_str().map(String::from)
    };
    wait_until(|| (name("a").as_deref() == Some("v1")).then_some(()));
    end(engine);
    // It is not asked again.
    let engine = place.start();
    assert_eq!(first_byte(&place, "v0"), 11);
    end(engine);
    // By the engine's own word.
    configure(&place, &[("v0", ["a", "b"]), ("v1", ["c", "d"])]);
    let [config, socket] = ["b.toml", "c.sock"].map(|name| place.path(name));
    let run = [
        "run",
        "-c",
        config.to_str().unwrap(),
        "--socket",
        socket.to_str().unwrap(),
    ];
    let words = [&run[..], &["--accept", "v0", "--accept", "v1"]].concat();
    let engine = Process::start(place.0.path(), &words);
    let runs = |name: &str| {
        let status = place.ask(&["mirror", "status", name, "-o", "json"]);
        let told: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
        told["phase"] == "running"
    };
    wait_until(|| (runs("v0") && runs("v1")).then_some(()));
    assert_eq!(first_byte(&place, "v0"), 10);
    end(engine);
}

/// Legs of another mirror of the same name, in the place of a mirror's own.
#[test]
fn another_mirror_of_one_name_is_refused_until_accepted() {
    let Some(place) = Place::new() else {
        return;
    };
    for name in ["c", "d"] {
        let file = File::create(place.path(name)).unwrap();
        file.set_len(LEG_BYTES).unwrap();
    }
    let (c, d) = (place.leg("c"), place.leg("d"));
    let made = place.braid(&["mirror", "create", "v0", &c, &d]);
    assert!(made.status.success(), "{made:?}");
    configure(&place, &[("v0", ["a", "b"])]);
    let engine = place.start();
    assert_eq!(client(&place, "v0").write(0, 10), 0);
    end(engine);
    configure(&place, &[("v0", ["c", "d"])]);
    let mut engine = process::begun(place.0.path());
    let line = engine.notes("of another mirror than when it ran last");
    assert!(line.contains("braid accept v0"), "{line}");
    assert_eq!(place.ask(&["check"]).status.code(), Some(2), "down");
    let mut stream = UnixStream::connect(place.path("v0.sock")).unwrap();
    let (reply, words) = asked_of(&mut stream, "v0");
    assert_eq!(reply, UNKNOWN, "{words}");
    assert!(words.contains("braid accept v0"), "{words}");
    place.told(&["accept", "v0"]);
    assert_eq!(first_byte(&place, "v0"), 0);
    // Stopped and started again it is the one that was accepted.
    place.told(&["mirror", "stop", "v0", "--force"]);
    place.told(&["mirror", "assemble", "v0"]);
    assert_eq!(first_byte(&place, "v0"), 0);
    end(engine);
    // It is not asked again.
    let engine = place.start();
    assert_eq!(first_byte(&place, "v0"), 0);
    end(engine);
    configure(&place, &[("v0", ["a", "b"])]);
    let [config, socket] = ["b.toml", "c.sock"].map(|name| place.path(name));
    let words = ["run", "--accept", "v0", "-c", config.to_str().unwrap()];
    let words = [&words[..], &["--socket", socket.to_str().unwrap()]].concat();
    let mut engine = Process::start(place.0.path(), &words);
    engine.says("v0: ready").unwrap();
    assert_eq!(first_byte(&place, "v0"), 10);
    end(engine);
}

#[test]
fn copied_legs_become_a_mirror_of_their_own() {
    for clean in [true, false] {
        let Some(place) = Place::new() else {
            return;
        };
        let legs = ["a", "b"];
        let both = [("v0", legs), ("v1", ["c", "d"])];
        configure(&place, &both[..1]);
        let engine = place.start();
        let mut writer = client(&place, "v0");
        for block in 0..64_u64 {
            assert_eq!(writer.write(block << 12, block as u8), 0);
        }
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|leg| place.leg(leg));
        let used = place.braid(&["mirror", "import-clone", &a, &b]);
        assert_eq!(used.status.code(), Some(1), "{used:?}");
        match clean {
            true => end(engine),
            false => kill(engine),
        }
        for (from, to) in [("a", "c"), ("b", "d")] {
            std::fs::copy(place.path(from), place.path(to)).unwrap();
        }
        if !clean {
            // As if it was copied at another moment.
            let file = File::options().write(true).open(place.path("d"));
            file.unwrap().write_all_at(&[0xee; 4096], DATA_AT).unwrap();
        }
        let read = || legs.map(|leg| std::fs::read(place.path(leg)).unwrap());
        let before = read();
        let made = place.braid(&["mirror", "import-clone", &c, &d, "--name", "v1"]);
        assert!(made.status.success(), "{made:?}");
        assert!(before == read(), "the original was changed");
        configure(&place, &both);
        let engine = place.start();
        for name in ["v0", "v1"] {
            verify(&mut client(&place, name), 64);
        }
        wait_until(|| {
            let status = place.told(&["mirror", "status", "v1"]);
            let legs = status["legs"].as_array()?;
            legs.iter()
                .all(|leg| leg["state"] == "in-sync")
                .then_some(())
        });
        end(engine);
        assert!(place.data("c") == place.data("d"), "legs differ");
        assert!(place.data("a") == place.data("c"), "it is no copy");
    }
}
