//! T55: verbs whose last leg in sync does not answer in time. What was ordered is taken back, or
//! it is pending, and the answer says how it is undone.
use super::place::{LEG_BYTES, Place, end, said};
use super::target;
use crate::process::{Process, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::File;

/// The file of a leg that is added.
const NEW: &str = "c";

/// A mirror over a file, which is leg 0, and a target.
struct Hung {
    place: Place,
    engine: Process,
    target: Process,
}

impl Hung {
    fn new() -> Option<Self> {
        let place = Place::new()?;
        let (target, uri) = target(&place, "b", "0");
        let text = format!(
            "keep_alive_tmo = \"10s\"\nio_timeout = \"240s\"\ndrain_timeout = \"1s\"\n\
             [[volume]]\nname = \"v0\"\nkind = \"mirror\"\n\
             fast_io_fail_tmo = \"200s\"\nquiesce_time = \"100ms\"\n\
             [[volume.leg]]\nuri = \"{}\"\n[[volume.leg]]\nuri = \"{uri}\"\n\
             [[volume.export]]\nnbd = \"unix:{}\"\n",
            place.leg("a"),
            place.path("v0.sock").display()
        );
        std::fs::write(place.path("b.toml"), text).unwrap();
        File::create(place.path(NEW))
            .unwrap()
            .set_len(LEG_BYTES)
            .unwrap();
        let engine = place.start();
        place.until_in_sync();
        Some(Self {
            place,
            engine,
            target,
        })
    }

    /// The same; only the target is in sync.
    fn alone() -> Option<Self> {
        let it = Self::new()?;
        it.place.told(&["mirror", "fail", "v0", "0"]);
        it.place.told(&["mirror", "speed", "v0", "--pause"]);
        Some(it)
    }

    /// The answer to a verb that times out.
    fn late(&self, words: &[&str]) -> String {
        let output = self.place.ask(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        said(&output)
    }

    /// Asks again while the leg is not back.
    fn until_done(&self, words: &[&str]) {
        wait_until(|| self.place.ask(words).status.success().then_some(()));
    }

    fn thaw(&self) {
        self.target.signal(Signal::CONT);
    }

    fn policy(&self) -> Value {
        self.place.told(&["policy", "show", "v0"])["policy"].clone()
    }

    fn status(&self) -> Value {
        self.place.told(&["mirror", "status", "v0"])
    }

    /// Slots and states of the legs.
    fn legs(&self) -> Vec<(u64, String)> {
        let status = self.status();
        let legs = status["legs"].as_array().unwrap().iter();
        let leg = |leg: &Value| {
            let state = leg["state"].as_str().unwrap();
            (leg["slot"].as_u64().unwrap_or(99), state.to_owned())
        };
        legs.map(leg).collect()
    }

    fn is_there(&self, slot: u64) -> bool {
        self.legs().iter().any(|leg| leg.0 == slot)
    }

    fn end(self) {
        end(self.engine);
        end(self.target);
    }

    /// A verb behind another one, whose record the target does not write, is taken back.
    fn is_taken_back(&self, words: &[&str]) {
        let before = self.legs();
        self.target.freeze();
        std::thread::scope(|scope| {
            let place = &self.place;
            let set = || place.ask(&["policy", "set", "v0", "round-robin"]);
            let set = scope.spawn(set);
            // Meanwhile its record is being written.
            wait_until(|| (self.policy() == "round-robin:262144").then_some(()));
            let said = self.late(&[&["mirror"], words].concat());
            assert!(said.contains("nothing is pending"), "{words:?}: {said}");
            let held = set.join().unwrap();
            let text = super::place::said(&held);
            assert!(text.contains("that holds, but its legs"), "{held:?}");
        });
        self.thaw();
        // Once this is on the legs, all that was ordered before it is.
        self.until_done(&["policy", "set", "v0", "latency"]);
        assert_eq!(self.legs(), before, "{words:?}");
    }

    /// A verb whose record the target has got takes effect later, and says how it is undone.
    fn is_pending(&self, words: &[&str], undo: &str) {
        self.target.freeze();
        let said = self.late(&[&["mirror"], words].concat());
        let pending = said.contains("takes effect when they answer");
        assert!(pending && said.contains(undo), "{words:?}: {said}");
        self.thaw();
    }
}

fn removal_taken_back() {
    if let Some(it) = Hung::alone() {
        it.is_taken_back(&["remove", "v0", "0"]);
        it.end();
    }
}

fn addition_taken_back() {
    if let Some(it) = Hung::alone() {
        let new = it.place.leg(NEW);
        it.is_taken_back(&["add", "v0", &new]);
        it.end();
    }
}

fn replacement_taken_back() {
    if let Some(it) = Hung::alone() {
        let new = it.place.leg(NEW);
        it.is_taken_back(&["replace", "v0", "0", &new]);
        it.end();
    }
}

fn removal_pending() {
    let Some(it) = Hung::alone() else { return };
    it.is_pending(&["remove", "v0", "0"], "braid mirror add takes the leg in");
    wait_until(|| (!it.is_there(0)).then_some(()));
    let leg = it.place.leg("a");
    it.until_done(&["mirror", "add", "v0", &leg, "--force"]);
    it.end();
}

fn addition_pending() {
    let Some(it) = Hung::alone() else { return };
    let new = it.place.leg(NEW);
    it.is_pending(&["add", "v0", &new], "braid mirror remove takes it out");
    wait_until(|| it.is_there(2).then_some(()));
    it.until_done(&["mirror", "remove", "v0", &new]);
    assert!(!it.is_there(2));
    it.end();
}

fn replacement_pending() {
    let Some(it) = Hung::alone() else { return };
    let new = it.place.leg(NEW);
    it.is_pending(
        &["replace", "v0", "0", &new],
        "braid mirror remove takes it out",
    );
    wait_until(|| it.is_there(2).then_some(()));
    it.until_done(&["mirror", "remove", "v0", &new]);
    assert!(!it.is_there(2) && it.is_there(0), "{:?}", it.legs());
    it.end();
}

/// A mirror with the target alone, whose namespace has grown.
fn grown() -> Option<Hung> {
    let it = Hung::alone()?;
    it.place.told(&["mirror", "remove", "v0", "0"]);
    let socket = it.place.path("b.ctl");
    let words = ["target", "resize", "1", "32MiB", "--socket"];
    let words = [&words[..], &[socket.to_str().unwrap()]].concat();
    assert!(it.place.braid(&words).status.success());
    Some(it)
}

fn growth_taken_back() {
    let Some(it) = grown() else { return };
    let bytes = || it.place.told(&["list"])["volumes"][0]["bytes"].clone();
    let before = bytes();
    it.is_taken_back(&["grow", "v0"]);
    assert_eq!(bytes(), before);
    it.end();
}

fn stop_pending() {
    let Some(it) = Hung::alone() else { return };
    it.target.freeze();
    let said = it.late(&["mirror", "stop", "v0"]);
    assert!(said.contains("ends when its legs answer"), "{said}");
    assert!(said.contains("braid mirror assemble starts it"), "{said}");
    it.thaw();
    it.place.told(&["mirror", "stop", "v0"]);
    it.place.told(&["mirror", "assemble", "v0"]);
    wait_until(|| (it.status()["phase"] == "running").then_some(()));
    it.end();
}

/// What is set at once, and not on the legs in time.
fn choices_pending() {
    let Some(it) = Hung::new() else { return };
    it.target.freeze();
    it.place.told(&["mirror", "speed", "v0", "--pause"]);
    let held = "that holds, but its legs could not be told yet";
    for words in [
        &["mirror", "speed", "v0", "--floor", "2MiB/s"][..],
        &["mirror", "fail", "v0", "0"],
        &["mirror", "restore", "v0", "0"],
    ] {
        let said = it.late(words);
        assert!(
            said.contains(held) && said.contains("take it back"),
            "{said}"
        );
    }
    it.thaw();
    it.place.told(&["mirror", "speed", "v0", "--resume"]);
    it.place.until_in_sync();
    it.end();
}

#[test]
fn t55_verb_that_times_out_is_taken_back_or_pending() {
    let cases: [fn(); 9] = [
        removal_taken_back,
        removal_pending,
        addition_taken_back,
        addition_pending,
        replacement_taken_back,
        replacement_pending,
        growth_taken_back,
        stop_pending,
        choices_pending,
    ];
    // Each waits for half a minute.
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(case);
        }
    });
}
