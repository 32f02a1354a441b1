//! Mirrors that come and go, and change, with the configuration of an engine that runs.
use super::place::{Place, end, said, verify};
use crate::serve::process::{Process, begun, wait_until};
use serde_json::Value;

impl Place {
    /// The engine's file: a volume in memory, then perhaps the mirror, with these keys.
    fn file_of(&self, mirror: Option<&str>) {
        self.config(mirror.unwrap_or_default());
        let text = std::fs::read_to_string(self.path("b.toml")).unwrap();
        let (keys, volume) = text.split_at(text.find("[[volume]]").unwrap());
        let other = "[[volume]]\nname = \"w0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n";
        let volume = mirror.map_or("", |_| volume);
        let text = format!("{keys}cores = 2\n{other}{volume}");
        std::fs::write(self.path("b.toml"), text).unwrap();
    }

    /// An engine without the mirror.
    fn started(&self) -> Process {
        self.file_of(None);
        let mut engine = begun(self.0.path());
        let ready = engine.says("w0: ready").is_some();
        assert!(ready, "{}", engine.seen);
        engine
    }

    fn reloaded(&self, mirror: Option<&str>) -> String {
        self.file_of(mirror);
        self.changed()
    }

    fn changed(&self) -> String {
        self.told(&["reload"])["changed"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    fn not_reloaded(&self, mirror: Option<&str>) -> String {
        self.file_of(mirror);
        let output = self.ask(&["reload"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let why = said(&output);
        assert!(why.contains("nothing was changed"), "{why}");
        assert!(!why.contains("not all could be taken back"), "{why}");
        why
    }

    fn names(&self) -> Vec<String> {
        let list = self.told(&["list"]);
        let all = list["volumes"].as_array().unwrap().iter();
        all.map(|it| it["name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Superblock of a leg, as `examine` shows it.
    fn examined(&self, leg: &str) -> Value {
        let seen = self.braid(&["mirror", "examine", &self.leg(leg), "-o", "json"]);
        serde_json::from_slice(&seen.stdout).unwrap()
    }

    /// This host's record of the mirror.
    fn recorded(&self) -> Option<Value> {
        let all = std::fs::read_dir(self.path("state/braid")).unwrap();
        let mut all = all.map(|it| it.unwrap().path());
        let is_it = |it: &std::path::PathBuf| {
            let name = it.file_name().unwrap().to_str().unwrap();
            name.starts_with("mirror-")
        };
        let text = std::fs::read(all.find(is_it)?).unwrap();
        Some(serde_json::from_slice(&text).unwrap())
    }

    fn is_open(&self, process: u32) -> bool {
        let all = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
        let mut leads = all.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        leads.any(|to| to == self.path("a") || to == self.path("b"))
    }
}

/// It is assembled, and stopped as at the end of the engine; what it has stays.
#[test]
fn mirror_comes_and_goes_by_reload() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.started();
    for round in 0..3 {
        place.file_of(Some(""));
        let plan = place.told(&["reload", "--dry-run"])["plan"].clone();
        assert_eq!(plan[0], "add volume v0", "{plan}");
        assert_eq!(plan.as_array().unwrap().len(), 2, "its export: {plan}");
        let changed = place.changed();
        assert!(changed.contains("added volume v0"), "{changed}");
        assert_eq!(place.changed(), "no difference");
        assert_eq!(place.names()[..2], ["w0", "v0"]);
        wait_until(|| place.recorded());
        assert_eq!(place.ask(&["check"]).status.code(), Some(0));
        let mut client = place.client();
        if round > 0 {
            verify(&mut client, 100);
        }
        for block in 0..100_u64 {
            assert_eq!(client.write(block << 12, block as u8), 0);
        }
        // All that is done with a mirror of the start.
        if round == 1 {
            place.told(&["mirror", "fail", "v0", "1"]);
            place.told(&["mirror", "restore", "v0", "1"]);
            place.told(&["path", "drain", "v0/0", &place.leg("a"), "--force"]);
            place.told(&["path", "restore", "v0/0", &place.leg("a")]);
        }
        let why = place.not_reloaded(None);
        assert!(why.contains("v0") && why.contains("connected: 1"), "{why}");
        verify(&mut client, 100);
        drop(client);
        if round == 2 {
            place.told(&["mirror", "stop", "v0", "--force"]);
        }
        let gone = || (place.ask(&["reload"]).status.success()).then_some(());
        wait_until(gone);
        assert_eq!(place.names(), ["w0"]);
        assert!(!place.is_open(engine.child.id()), "its files are closed");
        for leg in ["a", "b"] {
            let said = place.examined(leg);
            assert_eq!(said["legs"][0]["mirror"]["clean"], true, "{said}");
            assert_eq!(said["legs"][0]["bitmap"]["set"], 0, "{said}");
            assert!(said["legs"][0]["owner"].is_null(), "{said}");
        }
        assert_eq!(place.recorded().unwrap()["clean"], true);
        assert!(place.data("a") == place.data("b"), "legs differ");
    }
    end(engine);
}

/// Nothing of it is left; what it can do without is left out as at a start.
#[test]
fn mirror_that_does_not_start_refuses_the_reload() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.started();
    let away = |leg: &str| std::fs::rename(place.path(leg), place.path("away")).unwrap();
    let back = |leg: &str| std::fs::rename(place.path("away"), place.path(leg)).unwrap();
    // Never run: that the other leg has no more isn't known.
    away("b");
    let why = place.not_reloaded(Some("assemble_wait = \"200ms\"\n"));
    assert!(why.contains("volume v0"), "{why}");
    assert_eq!(place.names(), ["w0"]);
    wait_until(|| (!place.is_open(engine.child.id())).then_some(()));
    back("b");
    place.reloaded(Some(""));
    place.reloaded(None);
    // The record of this host says that the one that is there was the last one as well.
    away("b");
    place.reloaded(Some("assemble_wait = \"200ms\"\n"));
    assert_eq!(place.ask(&["check"]).status.code(), Some(1), "degraded");
    assert_eq!(place.client().write(0, 1), 0);
    place.told(&["mirror", "stop", "v0", "--force"]);
    place.reloaded(None);
    back("b");
    place.reloaded(Some(""));
    wait_until(|| (place.ask(&["check"]).status.code() == Some(0)).then_some(()));
    // A volume that leaves has a path that its legs would have.
    place.reloaded(None);
    let text = std::fs::read_to_string(place.path("b.toml")).unwrap();
    let has = |uri| format!("[[volume]]\nname = \"w1\"\n[[volume.path]]\nuri = \"{uri}\"\n");
    std::fs::write(place.path("b.toml"), text.clone() + &has(place.leg("a"))).unwrap();
    place.changed();
    let why = place.not_reloaded(Some(""));
    assert!(
        why.contains("w1") && why.contains("reload without"),
        "{why}"
    );
    place.reloaded(None);
    // The same by another name: the leg is not missing, but somebody else's.
    std::os::unix::fs::symlink(place.path("a"), place.path("link")).unwrap();
    std::fs::write(place.path("b.toml"), text + &has(place.leg("link"))).unwrap();
    place.changed();
    let why = place.not_reloaded(Some(""));
    assert!(why.contains("same storage") && why.contains("w1"), "{why}");
    place.reloaded(None);
    place.reloaded(Some(""));
    end(engine);
}

/// Its name stands for no legs before the reload is done: others may be its own by the next one.
#[test]
fn mirror_of_a_reload_that_was_undone_is_not_known() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.started();
    let (a, b) = (place.leg("a"), place.leg("b"));
    let made_anew = || {
        let closed = || (!place.is_open(engine.child.id())).then_some(());
        wait_until(closed);
        let made = place.braid(&["mirror", "create", "v0", &a, &b, "--force"]);
        assert!(made.status.success(), "{made:?}");
    };
    place.file_of(Some(""));
    let text = std::fs::read_to_string(place.path("b.toml")).unwrap();
    let nowhere = place.path("none/x.sock");
    let export = format!("[[volume.export]]\nnbd = \"unix:{}\"\n", nowhere.display());
    std::fs::write(place.path("b.toml"), text + &export).unwrap();
    let output = place.ask(&["reload"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let why = said(&output);
    assert!(why.contains("x.sock"), "its export fails: {why}");
    made_anew();
    place.reloaded(Some(""));
    // From now on it is known.
    place.told(&["mirror", "stop", "v0"]);
    made_anew();
    let output = place.ask(&["mirror", "assemble", "v0"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said(&output).contains("another mirror"), "{output:?}");
    end(engine);
}

#[test]
fn keys_of_a_mirror_change_by_reload_or_are_refused_by_name() {
    let Some(place) = Place::new() else {
        return;
    };
    place.file_of(Some(""));
    let engine = place.start();
    let keys = "assemble_wait = \"3s\"\nrebuild_ceiling = \"1MiB/s\"\nretries = 9\n";
    place.file_of(Some(keys));
    let plan = place.told(&["reload", "--dry-run"])["plan"].clone();
    let lines: Vec<_> = plan.as_array().unwrap().iter().collect();
    let all = [
        "v0: set assemble_wait 3.00 s, rebuild_ceiling 1 MiB/s",
        "v0/a: set retries 9",
        "v0/b: set retries 9",
    ];
    assert_eq!(lines, all);
    place.changed();
    assert_eq!(place.changed(), "no difference");
    let speed = || place.told(&["mirror", "speed", "v0"])["speed"]["ceiling"].clone();
    wait_until(|| (speed() == 1 << 20).then_some(()));
    assert_eq!(place.told(&["knob", "show", "v0/a"])["retries"], 9);
    // One that was set by verb stays, as of every volume.
    place.told(&["mirror", "speed", "v0", "--ceiling", "2MiB/s"]);
    place.told(&["knob", "set", "v0/a", "retries", "7"]);
    place.reloaded(Some("retries = 9\n"));
    assert_eq!(speed(), 2 << 20);
    assert_eq!(place.told(&["knob", "show", "v0/a"])["retries"], 7);
    for key in ["leg_quiesce = \"1m\"", "shared = true", "ewma_shift = 5"] {
        let why = place.not_reloaded(Some(&format!("retries = 9\n{key}\n")));
        let name = key.split(' ').next().unwrap();
        assert!(why.contains("volume v0") && why.contains(name), "{why}");
        assert!(why.contains("restart"), "{why}");
    }
    place.reloaded(Some("retries = 9\n"));
    end(engine);
}

/// Its legs are volumes again that are opened anew: for them the file says what it said, and what
/// was set by verb is set.
#[test]
fn what_was_chosen_of_legs_outlives_a_stop_of_their_mirror() {
    let Some(place) = Place::new() else {
        return;
    };
    place.file_of(Some(""));
    let engine = place.start();
    let set = |key, value| place.told(&["knob", "set", "v0/a", key, value]);
    let retries = || place.told(&["knob", "show", "v0/a"])["retries"].clone();
    let differences = || {
        let said = place.told(&["diff", "v0/a"])["differences"].clone();
        let all = said.as_array().unwrap().iter();
        let all = all.map(|it| it["what"].as_str().unwrap().to_owned());
        all.collect::<Vec<_>>()
    };
    let stop = || place.told(&["mirror", "stop", "v0", "--force"]);
    let assemble = || place.told(&["mirror", "assemble", "v0"]);
    set("retries", "7");
    stop();
    assemble();
    assert_eq!((retries(), differences().len()), (7.into(), 1));
    // The next choice is kept beside it.
    set("reconnect_delay", "30s");
    assert_eq!(differences().len(), 2, "{:?}", differences());
    stop();
    place.changed();
    assemble();
    assert_eq!((retries(), differences().len()), (7.into(), 2));
    // The file says something else of one of them.
    stop();
    place.reloaded(Some("retries = 9\n"));
    assemble();
    assert_eq!((retries(), differences().len()), (9.into(), 1));
    place.told(&["forget", "v0/a"]);
    assert_eq!(differences(), Vec::<String>::new());
    end(engine);
}
