//! Legs that the file drops: nothing of others is written over where the reload is taken back, and
//! a mirror that does not run keeps its legs.
use super::place::{LEG_BYTES, Place, end, said};
use crate::serve::process::{Process, wait_until};
use std::fs::File;

impl Place {
    /// The file gives the mirror these legs, and an export in a directory of its own.
    fn config_of(&self, legs: &[&str]) {
        let leg = |name: &&str| format!("[[volume.leg]]\nuri = \"{}\"\n", self.leg(name));
        let legs: String = legs.iter().map(leg).collect();
        let text = format!(
            "drain_timeout = \"5s\"\n[[volume]]\nname = \"v0\"\nkind = \"mirror\"\n{legs}\
             [[volume.export]]\nnbd = \"unix:{}\"\n",
            self.path("s/v0.sock").display()
        );
        std::fs::write(self.path("b.toml"), text).unwrap();
    }

    fn states(&self) -> Vec<String> {
        let status = self.told(&["mirror", "status", "v0"]);
        let legs = status["legs"].as_array().unwrap().iter();
        legs.map(|leg| leg["state"].as_str().unwrap().to_owned())
            .collect()
    }

    fn until(&self, states: &[&str]) {
        wait_until(|| (self.states() == states).then_some(()));
    }

    fn of_two_legs(&self) -> Process {
        let _ = std::fs::create_dir(self.path("s"));
        self.config_of(&["a", "b"]);
        let engine = self.start();
        wait_until(|| (self.states().first()? == "in-sync").then_some(()));
        engine
    }

    /// Message of the reload that drops `b`, and fails after that: the socket of the export is
    /// gone, and can't be made again.
    fn drops_and_fails(&self) -> String {
        std::fs::rename(self.path("s"), self.path("t")).unwrap();
        self.config_of(&["a"]);
        let output = self.ask(&["reload"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let why = said(&output);
        assert!(
            why.contains("volume v0") && why.contains("v0.sock"),
            "{why}"
        );
        std::fs::rename(self.path("t"), self.path("s")).unwrap();
        why
    }
}

/// The file in the place of a leg is none of the mirror's, and is dropped. Its content stays.
#[test]
fn foreign_file_outlives_an_undone_reload() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.of_two_legs();
    place.told(&["mirror", "fail", "v0", "1"]);
    place.until(&["in-sync", "stale"]);
    end(engine);
    std::fs::remove_file(place.path("b")).unwrap();
    let others = vec![7; LEG_BYTES as usize];
    std::fs::write(place.path("b"), &others).unwrap();
    let engine = place.start();
    place.until(&["in-sync", "unusable", "missing"]);
    let why = place.drops_and_fails();
    assert!(!why.contains("not all could be taken back"), "{why}");
    let is_whole = || std::fs::read(place.path("b")).unwrap() == others;
    assert!(is_whole(), "written over");
    // Its place is dropped with the next reload.
    let changed = place.told(&["reload"])["changed"].clone();
    assert_eq!(changed, format!("removed leg {}", place.leg("b")));
    assert_eq!(place.states(), ["in-sync"]);
    end(engine);
    assert!(is_whole(), "written over");
}

/// A leg whose file was another mirror's when it came back is not rebuilt over that.
#[test]
fn leg_returns_when_undone_but_not_over_others() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.of_two_legs();
    let why = place.drops_and_fails();
    assert!(!why.contains("not all could be taken back"), "{why}");
    place.until(&["in-sync", "in-sync"]);
    let [x, y] = ["x", "y"].map(|name| {
        let file = File::create(place.path(name)).unwrap();
        file.set_len(LEG_BYTES).unwrap();
        place.leg(name)
    });
    let made = place.braid(&["mirror", "create", "other", &x, &y]);
    assert!(made.status.success(), "{made:?}");
    std::fs::rename(place.path("x"), place.path("b")).unwrap();
    let others = std::fs::read(place.path("b")).unwrap();
    let why = place.drops_and_fails();
    assert!(why.contains("not all could be taken back"), "{why}");
    assert!(why.contains("of the mirror \"other\""), "{why}");
    let is_whole = std::fs::read(place.path("b")).unwrap() == others;
    assert!(is_whole, "written over");
    end(engine);
}

/// Its superblocks would keep the leg that the file drops, and it would begin without it.
#[test]
fn mirror_that_does_not_run_keeps_its_legs() {
    let Some(place) = Place::new() else {
        return;
    };
    let keys = "assemble_wait = \"100ms\"\nstart_degraded = false\n";
    place.config(keys);
    let text = std::fs::read_to_string(place.path("b.toml")).unwrap();
    let leg = format!("[[volume.leg]]\nuri = \"{}\"\n", place.leg("b"));
    let dropped = text.replace(&leg, "");
    assert_ne!(dropped, text);
    let engine = place.start();
    assert_eq!(place.client().write(0, 1), 0);
    place.told(&["mirror", "stop", "v0", "--force"]);
    std::fs::rename(place.path("b"), place.path("hidden")).unwrap();
    let refused = |file: &str, why: &str| {
        std::fs::write(place.path("b.toml"), file).unwrap();
        let output = place.ask(&["reload"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said(&output).contains(why), "{output:?}");
    };
    refused(&dropped, "it is stopped, and has no other legs");
    // It is not stopped any more, and does not run either.
    let output = place.ask(&["mirror", "assemble", "v0"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    refused(&dropped, "v0: it does not run: start it first");
    std::fs::write(place.path("b.toml"), &text).unwrap();
    std::fs::rename(place.path("hidden"), place.path("b")).unwrap();
    place.told(&["mirror", "stop", "v0", "--force"]);
    place.told(&["mirror", "assemble", "v0"]);
    place.until_in_sync();
    assert_eq!(place.legs().len(), 2);
    end(engine);
}
