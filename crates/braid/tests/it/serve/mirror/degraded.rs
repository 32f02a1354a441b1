//! A mirror with a leg missing at the start: it starts by itself where the record of its host shows
//! that it has everything, and nowhere else.
use super::place::{Place, end, kill};
use crate::serve::process::{Process, begun, wait_until};
use crate::tmpfs::Tmpfs;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// With which a missing leg is not waited for long.
const SOON: &str = "assemble_wait = \"100ms\"\n";

impl Place {
    fn move_to(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    /// An engine in which this was written to block 0, and that has ended.
    fn lived(&self, byte: u8) {
        let engine = self.start();
        assert_eq!(self.client().write(0, byte), 0);
        end(engine);
    }

    /// An engine without a leg that starts by itself.
    fn alone(&self, hidden: &str) -> Process {
        self.move_to(hidden, "hidden");
        let mut engine = begun(self.0.path());
        engine.notes("STARTED DEGRADED, by itself");
        assert!(engine.says("v0: ready").is_some());
        engine
    }

    /// Message of an engine without a leg when it does not start; the leg is there again.
    fn waits(&self, hidden: &str) -> String {
        self.move_to(hidden, "hidden");
        let mut engine = begun(self.0.path());
        let line = engine.notes("not started");
        kill(engine);
        self.move_to("hidden", hidden);
        assert!(line.contains("--without-missing"), "{line}");
        line
    }

    /// The mirror's record.
    fn record(&self) -> PathBuf {
        let all = fs::read_dir(self.path("state").join("braid")).unwrap();
        let mut all = all.map(|it| it.unwrap().path());
        let is_it = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("mirror-") && name.ends_with(".json")
        };
        all.find(is_it).unwrap()
    }
}

fn written() -> Option<Place> {
    let place = Place::new()?;
    place.config(SOON);
    place.lived(1);
    Some(place)
}

#[test]
fn t14_a_alone_starts_and_then_b_alone_does_not() {
    let Some(place) = written() else {
        return;
    };
    let before = place.data("a");
    let engine = place.alone("b");
    assert!(place.data("a") == before, "nothing was changed");
    let check = place.ask(&["check", "v0"]);
    assert_eq!(check.status.code(), Some(1), "degraded: {check:?}");
    let shown = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(
        shown.contains("started degraded, by itself, without leg 1"),
        "{shown}"
    );
    let status = place.told(&["mirror", "status", "v0"]);
    assert_eq!(status["started_without"], serde_json::json!([1]));
    let stat = place.ask(&["stat"]);
    let shown = String::from_utf8_lossy(&stat.stdout).into_owned();
    assert!(shown.contains("started degraded"), "{shown}");
    let mut client = place.client();
    assert_eq!(client.read(0)[0], 1);
    assert_eq!(client.write(0, 2), 0);
    end(engine);
    place.move_to("hidden", "b");
    let why = place.waits("a");
    let newer = format!("leg 0 ({}) may have newer data", place.leg("a"));
    assert!(why.contains(&newer), "{why}");
    // On another host, or with the record lost.
    place.move_to("state", "elsewhere");
    let why = place.waits("a");
    assert!(why.contains("this host has no record"), "{why}");
    fs::remove_dir_all(place.path("state")).unwrap();
    place.move_to("elsewhere", "state");
    // A has all, and says that B is stale, so it starts as usual; then both have all.
    place.move_to("b", "hidden");
    let engine = place.start();
    assert_eq!(place.client().read(0)[0], 2);
    place.move_to("hidden", "b");
    place.until_in_sync();
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
}

#[test]
fn t14_a_record_from_a_backup_starts_no_old_half() {
    let Some(place) = written() else {
        return;
    };
    fs::copy(place.record(), place.path("backup")).unwrap();
    let engine = place.alone("b");
    assert_eq!(place.client().write(0, 2), 0);
    end(engine);
    place.move_to("hidden", "b");
    fs::copy(place.path("backup"), place.record()).unwrap();
    let why = place.waits("a");
    assert!(why.contains("put back from a copy"), "{why}");
}

#[test]
fn t14_a_record_older_than_the_legs_starts_none() {
    let Some(place) = written() else {
        return;
    };
    // Another host has the legs meanwhile, with a state directory of its own.
    place.move_to("state", "ours");
    place.lived(2);
    fs::remove_dir_all(place.path("state")).unwrap();
    place.move_to("ours", "state");
    let why = place.waits("b");
    assert!(why.contains("another host"), "{why}");
    // Both there: it starts, and either is enough from then on.
    place.lived(3);
    let engine = place.alone("b");
    assert_eq!(place.client().read(0)[0], 3);
    end(engine);
}

/// Another host starts it with both legs, stops it without a change, and goes on with one.
#[test]
fn t14_a_half_that_another_host_left_behind_starts_none() {
    let Some(place) = written() else {
        return;
    };
    place.move_to("state", "ours");
    end(place.start());
    let engine = place.alone("b");
    assert_eq!(place.client().write(0, 2), 0);
    end(engine);
    place.move_to("hidden", "b");
    fs::remove_dir_all(place.path("state")).unwrap();
    place.move_to("ours", "state");
    let why = place.waits("a");
    assert!(why.contains("another host"), "{why}");
}

/// A start and a stop leave the host able to start with either leg.
#[test]
fn a_mirror_that_was_not_changed_starts_with_either_leg() {
    let Some(place) = written() else {
        return;
    };
    end(place.start());
    end(place.alone("b"));
    place.move_to("hidden", "b");
    end(place.start());
    end(place.alone("a"));
}

#[test]
fn t14_an_unclean_stop_starts_none_by_itself() {
    let Some(place) = written() else {
        return;
    };
    let engine = place.start();
    assert_eq!(place.client().write(0, 2), 0);
    kill(engine);
    for hidden in ["a", "b"] {
        let why = place.waits(hidden);
        assert!(why.contains("it was not stopped in order"), "{why}");
    }
}

/// A leg that has never been recorded, and one for which the user does not want it.
#[test]
fn a_mirror_starts_by_itself_only_as_its_configuration_has_it() {
    let Some(place) = written() else {
        return;
    };
    for (keys, why) in [
        ("start_degraded = false\n", "start_degraded is false"),
        (
            "shared = true\n",
            "set start_degraded = true if none ever does",
        ),
    ] {
        place.config(&format!("{SOON}{keys}"));
        let line = place.waits("b");
        assert!(line.contains(why), "{line}");
    }
    place.config(&format!("{SOON}start_degraded = true\n"));
    end(place.alone("b"));
}

#[test]
fn t14_changes_wait_until_their_record_is_written() {
    let Some(place) = written() else {
        return;
    };
    // A directory in its way: the file can't be made.
    let way = place.record().with_extension("new");
    let mut engine = place.start();
    // Its own file may be there just now.
    wait_until(|| fs::create_dir(&way).ok());
    let mut client = place.client();
    client.send_write(0, 2);
    engine.notes("changes wait until it can be");
    let waits = || {
        let check = place.ask(&["check", "v0"]);
        String::from_utf8_lossy(&check.stdout).contains("changes wait until its state is recorded")
    };
    wait_until(|| waits().then_some(()));
    assert_eq!(place.client().read(0)[0], 1, "reads don't wait");
    fs::remove_dir(&way).unwrap();
    assert_eq!(client.answer(), 0);
    assert!(!waits());
    end(engine);
    let engine = place.alone("b");
    assert_eq!(place.client().read(0)[0], 2);
    end(engine);
}

/// The old record stays, and what waits for the new one is lost nowhere.
#[test]
fn t14_changes_wait_while_the_state_directory_is_full() {
    let Some(place) = Place::new() else {
        return;
    };
    let state = place.path("state");
    let _ = fs::remove_dir_all(&state);
    let disk = match Tmpfs::mount(&state, "64k") {
        Ok(mounted) => mounted,
        Err(reason) => {
            eprintln!("SKIP state-disk-full: no tmpfs can be mounted: {reason}");
            return;
        }
    };
    if state.metadata().unwrap().created().is_err() {
        eprintln!("SKIP state-disk-full: this tmpfs keeps no times of birth");
        return;
    }
    place.config(SOON);
    let mut config = fs::read_to_string(place.path("b.toml")).unwrap();
    config += "[[volume]]\nname = \"w0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n";
    fs::write(place.path("b.toml"), config).unwrap();
    place.lived(1);
    let of_before = fs::read(place.record()).unwrap();
    let mut engine = place.start();
    let set = || place.ask(&["policy", "set", "w0", "round-robin"]);
    // The start writes a record, too: done later, it would leave the room of the one it replaces.
    let replaced = || Some(fs::read(place.record()).unwrap()).filter(|it| *it != of_before);
    let before = wait_until(replaced);
    let fill = disk.path().join("fill");
    let mut file = fs::File::create(&fill).unwrap();
    while file.write_all(&[7; 4096]).is_ok() {}
    drop(file); // its space is free once it is removed
    let mut client = place.client();
    client.send_write(0, 2);
    let line = engine.notes("changes wait until it can be");
    let record = place.record();
    for part in [record.to_str().unwrap(), "No space left"] {
        assert!(line.contains(part), "{line}");
    }
    let refused = set();
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{why}");
    for part in ["cannot write", "volumes/choice-", "No space left"] {
        assert!(why.contains(part), "{why}");
    }
    assert_eq!(fs::read(&record).unwrap(), before);
    assert_eq!(place.client().read(0)[0], 1, "reads don't wait");
    fs::remove_file(&fill).unwrap();
    assert_eq!(client.answer(), 0);
    assert!(set().status.success());
    end(engine);
    let engine = place.alone("b");
    assert_eq!(place.client().read(0)[0], 2);
    end(engine);
}
