//! Verbs and reloads of many clients at once, under load.
use super::file::{Keys, Place, SETTLED, uri};
use super::writers::{Ledger, Writer};
use crate::faults::nbd::{BLOCK, Client};
use crate::faults::plan::Random;
use crate::faults::table::Table;
use crate::faults::target::{call, call_within};
use crate::faults::{Common, stop};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Clients that ask: one for reloads, and one for verbs of the volume that nothing changes.
const CLIENTS: u64 = 8;
/// That volume.
const QUIET: &str = "q0";
/// How often a target holds writes, and for how long: verbs of its volume wait for them.
const HOLDS_EVERY: Duration = Duration::from_secs(2);
const HELD: Duration = Duration::from_secs(1);
/// While a call waits longer than this, verbs of [`QUIET`] are answered.
const WAITED: Duration = Duration::from_secs(5);
/// Longest time until a call is answered that waits for others of its volume.
const ANSWER: Duration = Duration::from_secs(300);
/// Verbs of another volume that are answered while one waits for I/O.
const BESIDE: u32 = 5;

/// How often a method was answered and refused, and the longest time of an answer.
#[derive(Clone, Copy, Default)]
struct Sum {
    done: u64,
    refused: u64,
    all: Duration,
    longest: Duration,
}

/// State that clients share.
struct Race {
    socket: PathBuf,
    over: AtomicBool,
    /// Verbs of [`QUIET`] that were answered.
    quiet: AtomicU64,
    /// Calls that waited for long, while such verbs were answered.
    waited: AtomicU64,
    /// Longest time of the I/O of such a verb alone, ns.
    own_io_ns: AtomicU64,
    sums: Mutex<BTreeMap<String, Sum>>,
}

impl Race {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) || stop::check().is_err()
    }

    /// Asks; a refusal is an answer.
    ///
    /// # Errors
    /// There is none.
    fn ask(&self, method: &str, params: &Value) -> Result<Option<Value>> {
        let (begun, before) = (Instant::now(), self.quiet.load(Ordering::Relaxed));
        let answer = call_within(&self.socket, method, params, ANSWER);
        let took = begun.elapsed();
        let name = match params["volume"] == QUIET {
            true => format!("{method} of {QUIET}"),
            false => method.to_owned(),
        };
        if name != method {
            self.quiet.fetch_add(1, Ordering::Relaxed);
        } else if took > WAITED && !self.is_over() {
            let beside = self.quiet.load(Ordering::Relaxed) - before;
            ensure!(
                beside > 0,
                "{method} {params}: {took:?}, and {QUIET} waited too"
            );
            self.waited.fetch_add(1, Ordering::Relaxed);
        }
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = sums.entry(name).or_default();
        sum.all += took;
        sum.longest = sum.longest.max(took);
        match answer {
            Ok(answer) => {
                sum.done += 1;
                Ok(Some(answer))
            }
            Err(error) => {
                let said = format!("{error:#}");
                ensure!(said.starts_with(method), "{method} {params}: {said}");
                ensure!(!said.contains("not all"), "{method} {params}: {said}");
                sum.refused += 1;
                Ok(None)
            }
        }
    }
}

/// Races for so many seconds and prints.
///
/// # Errors
/// Data are wrong, a call was not answered, or the engine does not become as its file says.
pub fn run(common: &Common, seconds: u64) -> Result<()> {
    let (mut place, mut keys) = Place::new(common, "race")?;
    place.start(&keys)?;
    let race = Race {
        socket: place.path("engine.sock"),
        over: AtomicBool::new(false),
        quiet: AtomicU64::new(0),
        waited: AtomicU64::new(0),
        own_io_ns: AtomicU64::new(0),
        sums: Mutex::default(),
    };
    let legs = keys.legs.clone();
    let writes = std::thread::scope(|scope| {
        let (race, place, legs) = (&race, &place, &legs);
        let clients = (2..CLIENTS).map(|client| {
            let random = Random(common.seed.wrapping_add(client));
            scope.spawn(move || verbs(race, place, legs, random))
        });
        let mut clients: Vec<_> = clients.collect();
        clients.push(scope.spawn(move || quiet_verbs(race)));
        clients.push(scope.spawn(move || hold(race, place)));
        clients.push(scope.spawn(move || own_io(race, place)));
        let loads = [("v1", &["v1", "w1"][..]), ("v2", &["v2"]), ("m0", &["m0"])];
        let loads = loads.map(|(socket, names)| {
            let socket = place.path(&format!("{socket}.sock"));
            scope.spawn(move || load(race, &socket, names, common.seed))
        });
        let mut random = Random(common.seed);
        let begun = Instant::now();
        let mut done = Ok(());
        while begun.elapsed() < Duration::from_secs(seconds) && !race.is_over() && done.is_ok() {
            let left = seconds.saturating_sub(begun.elapsed().as_secs());
            common.progress(&format!("{left} s left: {keys:?}"));
            done = reload(race, place, &mut keys, &mut random);
        }
        race.over.store(true, Ordering::Relaxed);
        for client in clients {
            done = done.and(joined(client.join()));
        }
        // Before loads end: a volume may have no path, for which a write of theirs waits.
        done = done.and_then(|()| end_as(race, place, &keys));
        if done.is_err() {
            let engine = place.stage.engine.as_ref().context("engine")?;
            engine.signal(Signal::KILL)?;
        }
        let mut writes = 0;
        for load in loads {
            match joined(load.join()) {
                Ok(count) => writes += count,
                Err(error) => done = done.and(Err(error)),
            }
        }
        done.map(|()| writes)
    });
    let log = || {
        place
            .stage
            .engine
            .as_ref()
            .map_or_else(String::new, |it| it.log())
    };
    let writes = writes.with_context(log)?;
    let own_io = ensure_own_time(&race)?;
    let beside = beside(&place, &keys)?;
    common.progress("");
    let mut table = Table::new(&["method", "done", "refused", "mean_ms", "longest_ms"]);
    for (method, sum) in race
        .sums
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
    {
        let mean = sum.all.as_millis() as u64 / (sum.done + sum.refused);
        let longest = sum.longest.as_millis() as u64;
        let counts = [sum.done, sum.refused, mean, longest].map(Value::from);
        table.row([&[method.as_str().into()][..], &counts].concat());
    }
    let head =
        format!("{CLIENTS} clients for {seconds} s under load: all data right, each call answered");
    let waited = race.waited.load(Ordering::Relaxed);
    let more = json!({"writes": writes, "verbs_beside_one_that_waits": beside,
                      "calls_over_5_s_beside_which_q0_was_answered": waited,
                      "longest_own_io_of_a_verb_ms": own_io.as_millis() as u64});
    common.show("change", &head, &table, more);
    Ok(())
}

fn joined<T>(result: std::thread::Result<Result<T>>) -> Result<T> {
    result.unwrap_or_else(|_| bail!("a thread panicked"))
}

/// Another file, but for its legs, whose changes need their turn.
fn reload(race: &Race, place: &Place, keys: &mut Keys, random: &mut Random) -> Result<()> {
    let mut new = keys.clone();
    for _ in 0..=random.below(3) {
        new.change(random, place)?;
    }
    new.legs.clone_from(&keys.legs);
    place.write(&new)?;
    let done = race.ask("reload", &json!({"force": true}))?;
    if done.is_some() {
        *keys = new;
    }
    Ok(())
}

/// Writes to the first target wait again and again.
fn hold(race: &Race, place: &Place) -> Result<()> {
    while !race.is_over() {
        let held = format!("hold_writes={}ms", HELD.as_millis());
        place.stage.targets[0].set(&[&held])?;
        let begun = Instant::now();
        while !race.is_over() && begun.elapsed() < HOLDS_EVERY {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    place.stage.targets[0].set(&["hold_writes=0"])
}

/// Verbs of a volume that no other client changes.
fn quiet_verbs(race: &Race) -> Result<()> {
    for retries in (1..10).cycle().take_while(|_| !race.is_over()) {
        let of = json!({"volume": QUIET, "name": "retries", "value": retries.to_string()});
        race.ask("knob", &of)?;
    }
    Ok(())
}

/// The I/O of such a verb, again and again: a small file is made durable and renamed.
fn own_io(race: &Race, place: &Place) -> Result<()> {
    let (new, kept) = (place.path("own-io.new"), place.path("own-io"));
    while !race.is_over() {
        let begun = Instant::now();
        let mut file = File::create(&new)?;
        file.write_all(&[0; 256])?;
        file.sync_all()?;
        std::fs::rename(&new, &kept)?;
        File::open(&place.stage.directory.0)?.sync_all()?;
        let took = begun.elapsed().as_nanos() as u64;
        race.own_io_ns.fetch_max(took, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// No verb of [`QUIET`] has waited for I/O of other volumes: such a one takes as long as writes are
/// held, at least. Each client may have a record of its own written before it. The longest time
/// of its own I/O.
fn ensure_own_time(race: &Race) -> Result<Duration> {
    let own_io = Duration::from_nanos(race.own_io_ns.load(Ordering::Relaxed));
    let sums = race.sums.lock().unwrap_or_else(PoisonError::into_inner);
    let quiet = sums.iter().filter(|it| it.0.ends_with(QUIET));
    let longest = quiet.map(|it| it.1.longest).max();
    let longest = longest.context("no verb of it")?;
    let most = HELD + own_io * CLIENTS as u32;
    ensure!(
        longest < most,
        "a verb of {QUIET} took {longest:?}: its own I/O takes {own_io:?}, others hold it up"
    );
    Ok(own_io)
}

/// Any verbs of the other volumes.
fn verbs(race: &Race, place: &Place, legs: &[PathBuf], mut random: Random) -> Result<()> {
    while !race.is_over() {
        let name = ["v1", "w1"][random.below(2) as usize];
        let target = &place.stage.targets[random.below(2) as usize];
        let path = json!({"volume": name, "path": target.uri, "force": true});
        let leg = uri(&legs[random.below(2) as usize]);
        let leg = json!({"volume": "m0", "leg": leg});
        let of = json!({"volume": name});
        let of_mirror = json!({"volume": "m0", "force": true});
        let knob = json!({"volume": name, "name": "flush_timeout", "value": "70s"});
        let policy = ["numa", "round-robin"][random.below(2) as usize];
        let policy = json!({"volume": name, "policy": policy});
        let (method, params) = match random.below(19) {
            0 => ("path.fail", path),
            1 | 2 => ("path.restore", path),
            3 => ("path.drain", path),
            4 => ("path.remove", path),
            5 | 6 => ("path.add", path),
            7 => ("policy", policy),
            8 => ("knob", knob),
            9 => ("forget", of),
            10 => ("mirror.fail", leg),
            11 | 12 => ("mirror.restore", leg),
            13 => ("mirror.stop", of_mirror),
            14 | 15 => ("mirror.assemble", json!({"volume": "m0"})),
            16 => ("diff", json!({"volume": null})),
            17 => ("stat", json!({})),
            _ => ("reload", json!({"dry_run": true})),
        };
        race.ask(method, &params)?;
    }
    Ok(())
}

/// Writes and reads one volume whenever it is there; how often.
fn load(race: &Race, socket: &Path, names: &[&str], seed: u64) -> Result<u64> {
    let (mut ledger, mut count, mut tries) = (Ledger::default(), 0, 0);
    while !race.is_over() {
        let name = names[tries % names.len()];
        tries += 1;
        match Writer::start(socket.to_owned(), name, ledger.clone(), seed) {
            Ok(writer) => {
                while !writer.is_over() && !race.is_over() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                count += writer.count();
                ledger = writer.end()?;
            }
            Err(error) if format!("{error:#}").contains("acknowledged") => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    Ok(count)
}

/// All that verbs did is taken back, and the engine is as its file says.
fn end_as(race: &Race, place: &Place, keys: &Keys) -> Result<()> {
    stop::wait("the last file holds", SETTLED, || {
        place.write(keys)?;
        race.ask("mirror.assemble", &json!({"volume": "m0"}))?;
        for leg in &keys.legs {
            race.ask("mirror.restore", &json!({"volume": "m0", "leg": uri(leg)}))?;
        }
        race.ask("forget", &json!({"volume": keys.name(), "force": true}))?;
        race.ask("forget", &json!({"volume": QUIET}))?;
        let done = race.ask("reload", &json!({"force": true}))?;
        Ok(done.filter(|it| it["changed"] == "no difference").map(drop))
    })?;
    place.wait_as(keys)?;
    let diff = place.ask("diff", &json!({"volume": null}))?;
    ensure!(diff["differences"] == json!([]), "{diff}");
    Ok(())
}

/// A verb waits for a write that a target holds; those of another volume don't wait for it. How
/// many were answered meanwhile.
fn beside(place: &Place, keys: &Keys) -> Result<u32> {
    let both = Keys {
        paths: [true; 2],
        policy: true,
        ..keys.clone()
    };
    place.write(&both)?;
    place.ask("reload", &json!({"force": true}))?;
    place.wait_as(&both)?;
    place.stage.targets[0].set(&["hold_writes=1h"])?;
    let mut client = Client::open_named(&place.path("v1.sock"), both.name())?;
    std::thread::spawn(move || while client.write(0, &[1; BLOCK]).is_ok() {});
    stop::wait("a write is held", SETTLED, || {
        let held = place.stage.targets[0].injected("held_writes")?;
        Ok((held > 0).then_some(()))
    })?;
    let path = &place.stage.targets[0].uri;
    let (socket, params) = (
        place.path("engine.sock"),
        json!({"volume": both.name(), "path": path, "force": true}),
    );
    let waits = std::thread::spawn(move || call(&socket, "path.remove", &params));
    let mut answered = 0;
    while !waits.is_finished() {
        let retries = (answered % 9 + 1).to_string();
        let of = json!({"volume": QUIET, "name": "retries", "value": retries});
        place.ask("knob", &of)?;
        answered += u32::from(!waits.is_finished());
    }
    ensure!(
        answered >= BESIDE,
        "while a verb waited for I/O, {answered} of another volume were answered"
    );
    Ok(answered)
}
