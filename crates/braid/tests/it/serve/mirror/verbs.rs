//! Answers of verbs: of checks, of settings for which legs have no room, of legs that may only be
//! read.
use super::place::{LEG_BYTES, Place, end, kill, said};
use crate::serve::process::{Process, at_once, wait_until};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};

#[test]
fn a_check_waits_goes_on_and_ends_as_it_is_told() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    let none = place.told(&["mirror", "pause-check", "v0"]);
    assert_eq!(none["nothing"], "there is no check");
    place.told(&["mirror", "speed", "v0", "--ceiling", "1MiB/s"]);
    let begun = place.told(&["mirror", "check", "v0"]);
    assert_eq!(begun["state"], "checking");
    let check = || place.told(&["mirror", "status", "v0"])["check"].clone();
    assert_eq!(check()["paused"], false);
    for verb in ["check", "repair"] {
        let other = place.ask(&["mirror", verb, "v0"]);
        assert_eq!(other.status.code(), Some(1), "{other:?}");
        assert!(said(&other).contains("under way"), "{other:?}");
    }
    let paused = place.told(&["mirror", "pause-check", "v0"]);
    assert_eq!(paused["state"], "check-paused");
    let it = check();
    assert_eq!(
        (&it["paused"], it["left_ns"].is_null()),
        (&true.into(), true),
        "{it}"
    );
    place.told(&["mirror", "resume-check", "v0"]);
    wait_until(|| (check()["bytes"].as_u64() > it["bytes"].as_u64()).then_some(()));
    // A copy that is paused with all others says so, too.
    place.told(&["mirror", "speed", "v0", "--pause"]);
    assert_eq!(check()["paused"], true);
    place.told(&["mirror", "speed", "v0", "--ceiling", "1GiB/s"]);
    assert_eq!(check()["paused"], true, "until it is ended by word");
    place.told(&["mirror", "end-check", "v0"]);
    let checked = place.told(&["mirror", "status", "v0"])["checked"].clone();
    assert_eq!(
        (&checked["complete"], &checked["alone"]),
        (&false.into(), &false.into())
    );
    // The one that is asked for now is not answered with what the one before found.
    place.told(&["mirror", "check", "v0"]);
    assert!(place.told(&["mirror", "status", "v0"])["checked"].is_null());
    place.told(&["mirror", "end-check", "v0"]);
    place.told(&["mirror", "speed", "v0", "--resume"]);
    let text = place.ask(&["mirror", "check", "v0", "--wait"]);
    assert!(text.status.success(), "{text:?}");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.starts_with("v0: alike: 0 differences"), "{text}");
    end(engine);
}

#[test]
fn callers_that_wait_are_told_how_it_goes() {
    at_once(&[
        || engine_goes_during_a_check("check"),
        || engine_goes_during_a_check("status"),
        resync_after_a_kill_is_waited_for,
    ]);
}

/// The caller is told that the engine has gone, and not that legs differ.
fn engine_goes_during_a_check(verb: &str) {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    place.told(&["mirror", "speed", "v0", "--ceiling", "1MiB/s"]);
    if verb == "status" {
        place.told(&["mirror", "check", "v0"]);
    }
    let socket = place.path("c.sock");
    let words = ["mirror", verb, "v0", "--wait", "--socket"];
    let words = [&words[..], &[socket.to_str().unwrap()]].concat();
    let mut waits = Process::start(place.0.path(), &words);
    let checks = || place.told(&["mirror", "status", "v0"])["check"].is_object();
    wait_until(|| checks().then_some(()));
    // It says so when it has asked.
    place.told(&["mirror", "pause-check", "v0"]);
    waits.notes("check is paused");
    end(engine);
    waits.notes("c.sock");
    let status = waits.ended();
    assert_eq!(status.code(), Some(3), "{verb}: {}", waits.seen);
}

fn resync_after_a_kill_is_waited_for() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    let slow = ["--floor", "64KiB/s", "--ceiling", "64KiB/s"];
    place.told(&[&["mirror", "speed", "v0"][..], &slow].concat());
    let mut client = place.client();
    for block in 0..400_u64 {
        assert_eq!(client.write(block << 12, block as u8), 0);
    }
    kill(engine);
    let engine = place.start();
    let status = || place.told(&["mirror", "status", "v0"]);
    let shown = status();
    let resync = &shown["resync"];
    assert!(resync["of_bytes"].as_u64() > Some(0), "{shown}");
    assert_eq!(resync["paused"], false, "{shown}");
    let text = place.ask(&["mirror", "status", "v0"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("\n  resync  "), "{text}");
    let socket = place.path("c.sock");
    let words = ["mirror", "status", "v0", "--wait", "--socket"];
    let words = [&words[..], &[socket.to_str().unwrap()]].concat();
    place.told(&["mirror", "speed", "v0", "--pause"]);
    let mut waits = Process::start(place.0.path(), &words);
    waits.notes("resync is paused");
    place.told(&["mirror", "speed", "v0", "--resume"]);
    place.told(&["mirror", "speed", "v0", "--ceiling", "1GiB/s"]);
    assert!(waits.ended().success(), "{}", waits.seen);
    assert!(status()["resync"].is_null(), "{}", status());
    end(engine);
}

#[test]
fn b6_what_legs_have_no_room_for_is_refused() {
    let Some(place) = Place::new() else {
        return;
    };
    for leg in ["a", "b"] {
        // As by a newer braid, which keeps more.
        place.says(leg, |it| {
            let fits = |length: &usize| it.properties.set("more", &"x".repeat(*length)).is_ok();
            (0..510).rev().find(fits).unwrap();
        });
    }
    let engine = place.start();
    for words in [
        &["mirror", "fail", "v0", "1"][..],
        &["mirror", "speed", "v0", "--ceiling", "9MiB/s"],
    ] {
        let output = place.ask(words);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said(&output).contains("no room"), "{output:?}");
    }
    assert_eq!(place.legs(), ["in-sync", "in-sync"], "nothing has changed");
    let status = place.told(&["mirror", "status", "v0"]);
    assert!(status["speed"]["ceiling"].is_null(), "{status}");
    end(engine);
}

#[test]
fn of_a_mirror_that_may_only_be_read_no_verb_changes_anything() {
    let Some(place) = Place::new() else {
        return;
    };
    for leg in ["a", "b"] {
        place.says(leg, |it| it.features.read_only = 1);
    }
    let before = ["a", "b"].map(|leg| std::fs::read(place.path(leg)).unwrap());
    let engine = place.start();
    let (a, c) = (place.leg("a"), place.leg("c"));
    for words in [
        &["check", "v0"][..],
        &["repair", "v0"],
        &["fail", "v0", "1"],
        &["restore", "v0", "1"],
        &["accept-loss", "v0"],
        &["add", "v0", &c],
        &["remove", "v0", "1"],
        &["replace", "v0", "1", &c],
        &["grow", "v0"],
        &["speed", "v0", "--ceiling", "1MiB/s"],
    ] {
        let output = place.ask(&[&["mirror"], words].concat());
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        assert!(
            said(&output).contains("newer braid"),
            "{words:?}: {output:?}"
        );
    }
    let status = place.told(&["mirror", "status", "v0"]);
    let reasons = status["legs"].as_array().unwrap().iter();
    let reasons: Vec<&str> = reasons.filter_map(|leg| leg["why"].as_str()).collect();
    assert!(
        !reasons.iter().any(|why| why.contains("leaving")),
        "{a}: {reasons:?}"
    );
    end(engine);
    let after = ["a", "b"].map(|leg| std::fs::read(place.path(leg)).unwrap());
    assert!(before == after, "something was written");
}

/// A bad leg is taken out while another verb waits for a target that does not answer.
#[test]
fn leg_is_failed_while_another_one_is_being_added() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    place.until_in_sync();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let address = silent.local_addr().unwrap();
    let leg = format!("nvme-tcp://{address}/nqn.2014-08.org.example:none?nsid=1");
    let socket = place.path("c.sock");
    let words = ["mirror", "add", "v0", &leg, "--socket"];
    let words = [&words[..], &[socket.to_str().unwrap()]].concat();
    let mut adds = Process::start(place.0.path(), &words);
    // From then on it has the mirror to itself.
    let connection = wait_until(|| silent.accept().ok());
    place.told(&["mirror", "fail", "v0", "1"]);
    assert!(adds.child.try_wait().unwrap().is_none(), "it waits yet");
    wait_until(|| (place.legs() == ["in-sync", "stale"]).then_some(()));
    drop((connection, silent));
    kill(adds);
    end(engine);
}

/// Which of these sockets take a client.
fn listening(place: &Place, names: &[&'static str]) -> Vec<&'static str> {
    let takes = |name: &&&str| UnixStream::connect(place.path(name)).is_ok();
    names.iter().filter(takes).copied().collect()
}

/// R3: it is started with all its exports or not at all, and forgets none, whoever gave it.
#[test]
fn stopped_mirror_keeps_its_exports_until_all_listen() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    let names = ["v0.sock", "e.sock", "f.sock"];
    let [_, e, f] = names.map(|name| format!("unix:{}", place.path(name).display()));
    place.told(&["export", "add", "v0", &e]);
    place.told(&["mirror", "stop", "v0", "--force"]);
    assert_eq!(listening(&place, &names), [""; 0]);
    let taken = UnixListener::bind(place.path("e.sock")).unwrap();
    for _ in 0..2 {
        let output = place.ask(&["mirror", "assemble", "v0"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said(&output).contains("e.sock"), "{output:?}");
        let phase = place.told(&["mirror", "status", "v0"])["phase"].clone();
        assert_eq!(phase, "stopped");
    }
    drop(taken);
    std::fs::remove_file(place.path("e.sock")).unwrap();
    place.told(&["mirror", "assemble", "v0"]);
    assert_eq!(listening(&place, &names), ["v0.sock", "e.sock"]);
    // While it is stopped they come and go without listening.
    place.told(&["mirror", "stop", "v0", "--force"]);
    assert!(place.told(&["export", "add", "v0", &f])["uri"].is_null());
    place.told(&["export", "remove", "v0", &e]);
    let differences = place.told(&["diff", "v0"])["differences"].clone();
    let all: Vec<_> = differences.as_array().unwrap().iter().collect();
    assert_eq!(all.len(), 1, "{differences}");
    assert_eq!(all[0]["what"], format!("export {f}"), "{differences}");
    assert_eq!(listening(&place, &names), [""; 0]);
    place.told(&["mirror", "assemble", "v0"]);
    assert_eq!(listening(&place, &names), ["v0.sock", "f.sock"]);
    // A reload has the file's, and does not listen for them either.
    place.told(&["mirror", "stop", "v0", "--force"]);
    let text = std::fs::read_to_string(place.path("b.toml")).unwrap();
    let more = format!("{text}[[volume.export]]\nnbd = \"{e}\"\n");
    std::fs::write(place.path("b.toml"), more).unwrap();
    let changed = place.told(&["reload"])["changed"].clone();
    let changed = changed.as_str().unwrap();
    for part in [format!("add export {e}"), format!("remove export {f}")] {
        assert!(changed.contains(&part), "{changed}");
    }
    assert_eq!(listening(&place, &names), [""; 0]);
    assert_eq!(place.told(&["reload"])["changed"], "no difference");
    place.told(&["mirror", "assemble", "v0"]);
    assert_eq!(listening(&place, &names), ["v0.sock", "e.sock"]);
    end(engine);
}

/// Two exports with any port have one text until they listen.
#[test]
fn one_of_two_exports_with_any_port_is_removed() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    place.told(&["mirror", "stop", "v0", "--force"]);
    let any = "tcp:127.0.0.1:0";
    for _ in 0..2 {
        place.told(&["export", "add", "v0", any]);
    }
    place.told(&["export", "remove", "v0", any]);
    place.told(&["mirror", "assemble", "v0"]);
    let stat = place.told(&["stat", "v0"]);
    let exports = stat["volumes"][0]["exports"].as_array().unwrap().clone();
    let over_tcp = |it: &&serde_json::Value| !it["uri"].as_str().unwrap().contains(".sock");
    assert_eq!(exports.iter().filter(over_tcp).count(), 1, "{exports:?}");
    end(engine);
}

/// T55: two verbs begin while it is stopped. The second one finds it running.
#[test]
fn second_start_of_a_mirror_finds_it_running() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    for _ in 0..3 {
        place.told(&["mirror", "stop", "v0", "--force"]);
        engine.freeze();
        let answers = std::thread::scope(|scope| {
            let ask = || place.ask(&["mirror", "assemble", "v0", "-o", "json"]);
            let both = [scope.spawn(ask), scope.spawn(ask)];
            // Both have asked by then.
            std::thread::sleep(std::time::Duration::from_secs(1));
            engine.signal(rustix::process::Signal::CONT);
            both.map(|it| it.join().unwrap())
        });
        for output in &answers {
            assert!(output.status.success(), "{answers:?}");
        }
        let said = answers.map(|it| String::from_utf8(it.stdout).unwrap());
        let nothing = said.iter().filter(|it| it.contains("it runs"));
        assert_eq!(nothing.count(), 1, "{said:?}");
        assert_eq!(place.client().write(0, 7), 0);
        assert_eq!(place.legs(), ["in-sync", "in-sync"]);
    }
    end(engine);
}

/// Nothing of an order to it, or to one of its legs, is done or comes later.
#[test]
fn orders_to_a_stopped_mirror_are_refused() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    place.told(&["mirror", "stop", "v0", "--force"]);
    std::fs::File::create(place.path("c"))
        .unwrap()
        .set_len(LEG_BYTES)
        .unwrap();
    let (a, c) = (place.leg("a"), place.leg("c"));
    let read = || ["a", "b", "c"].map(|leg| std::fs::read(place.path(leg)).unwrap());
    let before = read();
    for words in [
        &["mirror", "check", "v0"][..],
        &["mirror", "repair", "v0"],
        &["mirror", "repair", "v0", "--from", "0"],
        &["mirror", "fail", "v0", "1"],
        &["mirror", "restore", "v0", "1"],
        &["mirror", "accept-loss", "v0"],
        &["mirror", "add", "v0", &c],
        &["mirror", "remove", "v0", "1"],
        &["mirror", "remove", "v0", &a],
        &["mirror", "replace", "v0", "1", &c],
        &["mirror", "grow", "v0"],
        &["mirror", "speed", "v0", "--ceiling", "1MiB/s"],
        &["policy", "set", "v0", "round-robin"],
        &["path", "fail", "v0/a", &a],
        &["knob", "set", "v0/a", "retries", "7"],
    ] {
        let output = place.ask(words);
        assert!(!output.status.success(), "{words:?}: {output:?}");
        let why = said(&output);
        let parts = [
            "does not run",
            "was stopped",
            "no leg was cut off",
            "there is no volume",
        ];
        assert!(parts.iter().any(|it| why.contains(it)), "{words:?}: {why}");
    }
    assert!(before == read(), "something was written");
    place.told(&["mirror", "assemble", "v0"]);
    assert_eq!(place.legs(), ["in-sync", "in-sync"]);
    assert_eq!(place.told(&["pending"])["pending"], serde_json::json!([]));
    assert_eq!(place.told(&["reload"])["changed"], "no difference");
    end(engine);
}

/// Settings that a mirror keeps on its legs differ from its file as others do.
#[test]
fn kept_settings_are_listed_and_forgotten() {
    let Some(place) = Place::new() else {
        return;
    };
    let mut engine = place.start();
    place.until_in_sync();
    let diff = || {
        let all = place.told(&["diff", "v0"])["differences"].clone();
        let words = |it: &Value| format!("{} {}", said_of(it, "what"), said_of(it, "now"));
        all.as_array()
            .unwrap()
            .iter()
            .map(words)
            .collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    assert_eq!(diff(), none);
    place.told(&["policy", "set", "v0", "latency"]);
    place.told(&["mirror", "speed", "v0", "--floor", "2MiB/s"]);
    place.told(&["mirror", "speed", "v0", "--pause"]);
    // A pause ends by word, so bounds that are its are none to be set.
    let output = place.ask(&["mirror", "speed", "v0", "--floor", "1", "--ceiling", "1"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(said(&output).contains("--pause"), "{output:?}");
    place.told(&["mirror", "fail", "v0", "1"]);
    let leg = format!("leg {} failed", place.leg("b"));
    let speed = "speed 2 MiB/s at least, no ceiling";
    assert_eq!(diff(), ["policy latency", "speed paused", speed, &leg]);
    place.told(&["forget", "v0", "policy"]);
    assert_eq!(diff(), ["speed paused", speed, &leg]);
    assert_eq!(place.told(&["policy", "show", "v0"])["policy"], "soonest");
    place.told(&["mirror", "speed", "v0", "--resume"]);
    // Its legs keep them, and are asked only while it runs.
    end(engine);
    engine = place.start();
    wait_until(|| (diff() == [speed, &leg]).then_some(()));
    place.told(&["mirror", "stop", "v0", "--force"]);
    for what in ["policy", "speed", "legs"] {
        let output = place.ask(&["forget", "v0", what]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said(&output).contains("does not run"), "{output:?}");
    }
    place.told(&["mirror", "assemble", "v0"]);
    let forgotten = place.told(&["forget", "v0"]);
    let changes = [
        format!("v0: restore leg {}", place.leg("b")),
        "v0: set copies to the file's speed".to_owned(),
    ];
    assert_eq!(forgotten["changed"], json!(changes), "{forgotten}");
    place.until_in_sync();
    assert_eq!(diff(), none);
    end(engine);
    engine = place.start();
    place.until_in_sync();
    assert_eq!(diff(), none);
    end(engine);
}

fn said_of<'a>(it: &'a Value, key: &str) -> &'a str {
    it[key].as_str().unwrap()
}

/// No listening shows which addresses a mirror has that is stopped.
#[test]
fn address_of_a_stopped_mirror_is_no_other_ones() {
    let Some(place) = Place::new() else {
        return;
    };
    let config = std::fs::read_to_string(place.path("b.toml")).unwrap();
    let [v0, v1] = ["v0", "v1"].map(|it| {
        let socket = place.path(&format!("{it}.sock"));
        format!("unix:{}", socket.display())
    });
    let other = format!(
        "[[volume]]\nname = \"v1\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n\
         [[volume.export]]\nnbd = \"{v1}\"\n"
    );
    std::fs::write(place.path("b.toml"), config + &other).unwrap();
    let engine = place.start();
    place.told(&["mirror", "stop", "v0", "--force"]);
    for (to, export, of) in [("v1", &v0, "v0"), ("v0", &v1, "v1")] {
        let output = place.ask(&["export", "add", to, export]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let why = format!("{export} is an export of {of}");
        assert!(said(&output).contains(&why), "{output:?}");
    }
    // It gets a port when it listens.
    let added = place.told(&["export", "add", "v0", "tcp:127.0.0.1:0"]);
    assert!(added["uri"].is_null(), "{added}");
    place.told(&["export", "add", "v0", "tcp:127.0.0.1:0"]); // and this another one
    place.told(&["mirror", "assemble", "v0"]);
    let exports = place.told(&["list"])["volumes"][0]["exports"].clone();
    let uris = exports.as_array().unwrap().iter();
    let uris = uris.filter_map(|it| it["uri"].as_str()?.strip_prefix("nbd://"));
    let all: Vec<std::net::SocketAddr> = uris.map(|it| it.parse().unwrap()).collect();
    let [first, address] = all[..] else {
        panic!("{all:?}");
    };
    assert_ne!(first.port(), address.port());
    assert!(address.port() > 0 && std::net::TcpStream::connect(address).is_ok());
    place.told(&["export", "remove", "v0", &format!("nbd://{address}")]);
    assert!(std::net::TcpStream::connect(address).is_err());
    end(engine);
}
