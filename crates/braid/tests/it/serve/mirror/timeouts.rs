//! T55: verbs whose last leg in sync does not answer in time. An order is taken back, or
//! it is pending, and the answer says how it is undone.
use super::place::{LEG_BYTES, Place, end, said, silent};
use super::target;
use crate::serve::process::{Process, SOON, at_once, begun, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The file of a leg that is added.
const NEW: &str = "c";

/// A mirror over a file, which is leg 0, and a target.
struct Hung {
    place: Place,
    engine: Process,
    target: Process,
}

/// Few are started at a time: a leg that is slow at first leaves, and comes back later.
static STARTING: [Mutex<()>; 4] = [const { Mutex::new(()) }; 4];
static STARTED: AtomicUsize = AtomicUsize::new(0);

impl Place {
    fn target_verb(&self, words: &[&str]) {
        let socket = self.path("b.ctl");
        let socket = ["--socket", socket.to_str().unwrap()];
        let output = self.braid(&[&["target"], words, &socket].concat());
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
}

impl Hung {
    fn new() -> Option<Self> {
        let place = STARTED.fetch_add(1, Ordering::Relaxed) % STARTING.len();
        let starting = STARTING[place].lock();
        let _starting = starting.unwrap_or_else(PoisonError::into_inner);
        let place = Place::new()?;
        let (target, uri) = target(&place, "b", "0");
        let text = format!(
            "keep_alive_tmo = \"20s\"\nio_timeout = \"240s\"\ndrain_timeout = \"60s\"\n\
             [[volume]]\nname = \"v0\"\nkind = \"mirror\"\n\
             shared = true\nfast_io_fail_tmo = \"200s\"\nquiesce_time = \"100ms\"\n\
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
        it.until_done(&["mirror", "fail", "v0", "0"]);
        it.until_done(&["mirror", "speed", "v0", "--pause"]);
        Some(it)
    }

    /// The same; what the target had behind its middle is lost.
    fn cut() -> Option<Self> {
        let it = Self::alone()?;
        it.target_verb(&["resize", "1", "8MiB"]);
        // Both within one look at the size would not be noticed.
        let is_small = || it.why().contains("make it as large again");
        wait_until(|| is_small().then_some(()));
        it.target_verb(&["resize", "1", "16MiB"]);
        let is_back = || it.why().contains("it is as large again");
        wait_until(|| is_back().then_some(()));
        assert!(it.asks_to_accept(), "{}", it.why());
        Some(it)
    }

    fn why(&self) -> String {
        self.status()["legs"].to_string()
    }

    fn asks_to_accept(&self) -> bool {
        self.why().contains("accept-loss")
    }

    /// A verb whose caller does not wait for the answer.
    fn ask_and_leave(&self, verb: &str, params: &Value) {
        let mut stream = UnixStream::connect(self.place.path("c.sock")).unwrap();
        let method = format!("mirror.{verb}");
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        stream.write_all(format!("{call}\n").as_bytes()).unwrap();
    }

    /// The answer to a verb that times out.
    fn late(&self, words: &[&str]) -> String {
        let output = self.place.ask(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        said(&output)
    }

    /// Asks again while the leg is not back, or a busy machine does not answer in time.
    fn until_done(&self, words: &[&str]) {
        wait_until(|| self.place.ask(words).status.success().then_some(()));
    }

    fn thaw(&self) {
        self.target.signal(Signal::CONT);
    }

    fn target_verb(&self, words: &[&str]) {
        self.place.target_verb(words);
    }

    /// Writes to the target do not begin for so long.
    fn hold_writes(&self, time: &str) {
        let hold = format!("hold_writes={time}");
        self.target_verb(&["set", "--port", "1", &hold]);
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

    /// A verb whose record the target has got takes effect later, and says how it is undone. It has
    /// not got it where another one, as of a heartbeat, was being written when it froze.
    fn is_pending(&self, words: &[&str], undo: &str) {
        let words = [&["mirror"], words].concat();
        // Each time takes as long as a verb waits.
        for policy in ["latency", "round-robin", "latency", "round-robin"] {
            // Once this is on the legs, the target is back, and has nothing of the last time.
            self.until_done(&["policy", "set", "v0", policy]);
            self.target.freeze();
            let said = self.late(&words);
            self.thaw();
            if said.contains("takes effect when they answer") {
                assert!(said.contains(undo), "{words:?}: {said}");
                return;
            }
            assert!(said.contains("nothing is pending"), "{words:?}: {said}");
        }
        panic!("{words:?}: the target never had its record");
    }

    /// The file drops a leg while the target takes no writes, until the reload takes it in again.
    fn reload_gives_up_without(&mut self, uri: &str) {
        let config = self.place.path("b.toml");
        let text = std::fs::read_to_string(&config).unwrap();
        let dropped = text.replace(&format!("[[volume.leg]]\nuri = \"{uri}\"\n"), "");
        assert_ne!(dropped, text);
        std::fs::write(&config, dropped).unwrap();
        self.hold_writes("300s");
        let (place, engine) = (&self.place, &mut self.engine);
        std::thread::scope(|scope| {
            let reload = scope.spawn(|| place.ask(&["reload"]));
            engine.notes("it is taken in again when its removal is on the legs");
            place.target_verb(&["set", "--port", "1", "hold_writes=0"]);
            let output = reload.join().unwrap();
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let why = said(&output);
            assert!(why.contains("did not leave within"), "{why}");
            assert!(!why.contains("not all could be taken back"), "{why}");
        });
    }

    fn until_both_in_sync(&self) {
        let in_sync = || self.legs().iter().all(|leg| leg.1 == "in-sync");
        wait_until(|| (self.legs().len() == 2 && in_sync()).then_some(()));
    }
}

fn removal_taken_back() {
    if let Some(it) = Hung::alone() {
        it.is_taken_back(&["remove", "v0", "0"]);
        it.end();
    }
}

/// Meanwhile nothing is done with the volume of the new leg, which has to go again.
fn addition_taken_back() {
    let Some(it) = Hung::alone() else { return };
    let new = it.place.leg(NEW);
    let (_silent, path) = silent();
    let (place, over) = (&it.place, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let end = Instant::now() + 2 * SOON;
            while !over.load(Ordering::Relaxed) && Instant::now() < end {
                let asked = place.ask(&["path", "add", "v0/2", &path]);
                let said = said(&asked);
                assert!(said.contains("there is no volume"), "{said}");
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        it.is_taken_back(&["add", "v0", &new]);
        over.store(true, Ordering::Relaxed);
    });
    it.end();
}

fn replacement_taken_back() {
    if let Some(it) = Hung::alone() {
        let new = it.place.leg(NEW);
        it.is_taken_back(&["replace", "v0", "0", &new]);
        it.end();
    }
}

/// The file drops a leg, and the reload gives up while the removal is being written: the leg is
/// taken in again.
fn removal_by_reload_taken_back() {
    let Some(mut it) = Hung::alone() else { return };
    let leg = it.place.leg("a");
    it.reload_gives_up_without(&leg);
    it.until_done(&["mirror", "speed", "v0", "--resume"]);
    it.until_both_in_sync();
    it.end();
}

/// The same of a leg that has left, and whose own superblocks are being overwritten.
fn removal_by_reload_wiping_taken_back() {
    let Some(mut it) = Hung::new() else { return };
    let config = std::fs::read_to_string(it.place.path("b.toml")).unwrap();
    let mut uris = config.split('"').filter(|it| it.starts_with("nvme-tcp:"));
    it.reload_gives_up_without(uris.next().unwrap());
    it.until_both_in_sync();
    it.end();
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
    // On a busy machine it may be pending.
    let _ = it.place.ask(&["mirror", "remove", "v0", "0"]);
    wait_until(|| (!it.is_there(0)).then_some(()));
    it.target_verb(&["resize", "1", "32MiB"]);
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
    it.until_done(&["mirror", "stop", "v0"]);
    it.until_done(&["mirror", "assemble", "v0"]);
    wait_until(|| (it.status()["phase"] == "running").then_some(()));
    it.end();
}

/// A mirror that was stopped, one of whose legs takes no writes: it is not begun in time.
fn begun_late() -> Option<Hung> {
    let it = Hung::new()?;
    it.until_done(&["mirror", "stop", "v0"]);
    it.hold_writes("300s");
    let said = it.late(&["mirror", "assemble", "v0"]);
    assert!(said.contains("starts when its legs answer"), "{said}");
    assert!(said.contains("braid mirror stop ends that"), "{said}");
    Some(it)
}

fn assembly_pending() {
    let Some(it) = begun_late() else { return };
    it.hold_writes("0");
    wait_until(|| (it.status()["phase"] == "running").then_some(()));
    it.end();
}

fn assembly_ended() {
    let Some(it) = begun_late() else { return };
    it.place.ask(&["mirror", "stop", "v0"]);
    it.hold_writes("0");
    it.until_done(&["mirror", "stop", "v0"]);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(it.status()["phase"], "stopped");
    it.end();
}

/// A mirror of another name, accepted while its legs take no writes.
fn name_pending() {
    let Some(mut it) = Hung::new() else { return };
    end(it.engine);
    let config = it.place.path("b.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replace("name = \"v0\"", "name = \"v1\"");
    std::fs::write(config, text).unwrap();
    it.engine = begun(it.place.0.path());
    let phase = || it.place.told(&["mirror", "status", "v1"])["phase"].clone();
    wait_until(|| {
        let asked = it.place.ask(&["mirror", "status", "v1"]);
        (asked.status.success() && phase() == "refused").then_some(())
    });
    it.hold_writes("300s");
    let said = it.late(&["accept", "v1"]);
    assert!(said.contains("has not started within"), "{said}");
    // By then the target has got what it does not write.
    assert!(said.contains("takes effect when they answer"), "{said}");
    assert!(said.contains("braid mirror stop ends it"), "{said}");
    it.hold_writes("0");
    wait_until(|| (phase() == "running").then_some(()));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(phase(), "running");
    end(it.engine);
    end(it.target);
}

fn accepted_loss_pending() {
    let Some(it) = Hung::cut() else { return };
    it.target.freeze();
    let said = it.late(&["mirror", "accept-loss", "v0"]);
    assert!(said.contains("takes effect when the leg answers"), "{said}");
    assert!(said.contains("can't be taken back"), "{said}");
    it.thaw();
    wait_until(|| (!it.asks_to_accept()).then_some(()));
    it.end();
}

/// A check goes on when its caller has gone, until it is ended.
fn check_ended() {
    let Some(it) = Hung::new() else { return };
    let is_checking = || it.status()["check"].is_object();
    for verb in ["check", "repair"] {
        it.target.freeze();
        let socket = it.place.path("c.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command.args(["mirror", verb, "v0", "--wait", "--socket"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut waits = command.arg(socket).spawn().unwrap();
        wait_until(|| is_checking().then_some(()));
        waits.kill().unwrap();
        waits.wait().unwrap();
        assert!(is_checking());
        it.until_done(&["mirror", "end-check", "v0"]);
        it.thaw();
        wait_until(|| (!is_checking()).then_some(()));
        assert_eq!(it.status()["checked"]["complete"], false);
        it.place.until_in_sync();
    }
    it.end();
}

/// Orders while the engine stood still, by callers that have gone.
fn callers_gone() {
    let Some(it) = Hung::new() else { return };
    it.engine.freeze();
    for (verb, params) in [
        ("check", json!({"volume": "v0"})),
        ("repair", json!({"volume": "v0", "leg": "1"})),
        ("fail", json!({"volume": "v0", "leg": "0"})),
        ("assemble", json!({"volume": "v0", "without": true})),
        ("stop", json!({"volume": "v0", "force": true})),
    ] {
        it.ask_and_leave(verb, &params);
    }
    it.engine.signal(Signal::CONT);
    std::thread::sleep(Duration::from_secs(1));
    let status = it.status();
    assert_eq!(status["phase"], "running", "{status}");
    assert!(
        status["check"].is_null() && status["checked"].is_null(),
        "{status}"
    );
    assert_eq!(it.place.legs(), ["in-sync", "in-sync"]);
    it.end();
}

/// The same of a loss that could be accepted.
fn accepting_caller_gone() {
    let Some(it) = Hung::cut() else { return };
    it.engine.freeze();
    it.ask_and_leave("accept-loss", &json!({"volume": "v0"}));
    it.engine.signal(Signal::CONT);
    std::thread::sleep(Duration::from_secs(1));
    assert!(it.asks_to_accept());
    it.until_done(&["mirror", "accept-loss", "v0"]);
    wait_until(|| (!it.asks_to_accept()).then_some(()));
    it.end();
}

/// Settings that are set at once, and not on the legs in time.
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
            said.contains(held) && said.contains("takes it back"),
            "{said}"
        );
    }
    let pending = || it.place.told(&["pending"])["pending"].clone();
    let all = pending();
    let words = |at: usize| all[at]["change"].as_str().unwrap();
    let leg = format!("v0: restore leg {}", it.place.leg("a"));
    assert_eq!(words(0), "v0: set copies to 2 MiB/s at least, no ceiling");
    assert_eq!((words(1), all.as_array().unwrap().len()), (&leg[..], 2));
    let cancel = ["pending", "--cancel", &all[0]["id"].to_string()];
    let said = it.late(&cancel);
    assert!(said.contains(held), "{said}");
    let floor = || it.status()["speed"]["floor"].as_u64().unwrap();
    it.thaw();
    wait_until(|| (pending() == json!([])).then_some(()));
    it.until_done(&["mirror", "speed", "v0", "--resume"]);
    assert_ne!(floor(), 2 << 20, "cancelled");
    it.place.until_in_sync();
    it.end();
}

#[test]
fn t55_verb_that_times_out_is_taken_back_or_pending() {
    // Those that wait longest start first.
    at_once(&[
        assembly_ended,
        name_pending,
        stop_pending,
        removal_by_reload_taken_back,
        removal_by_reload_wiping_taken_back,
        assembly_pending,
        removal_taken_back,
        addition_taken_back,
        replacement_taken_back,
        growth_taken_back,
        removal_pending,
        addition_pending,
        replacement_pending,
        accepted_loss_pending,
        choices_pending,
        check_ended,
        callers_gone,
        accepting_caller_gone,
    ]);
}
