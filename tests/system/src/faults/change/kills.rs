//! `kill -9` of the engine within a reload or a verb, again and again.
use super::file::{Keys, Place};
use super::writers::{Ledger, Writer};
use crate::faults::plan::Random;
use crate::faults::table::Table;
use crate::faults::target::call;
use crate::faults::{Common, stop};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest time between a call and the kill, µs: log2.
const LATER_SHIFT: u64 = 21;
/// Settings by verb of the volume over targets; the file never has them.
const KNOB: &str = "flush_timeout";

/// An engine that is killed.
struct Trial {
    place: Place,
    random: Random,
    keys: Keys,
    /// By the sockets of volumes.
    ledgers: BTreeMap<&'static str, Ledger>,
    writers: BTreeMap<&'static str, Writer>,
    /// Values that [`KNOB`] may have, s.
    may_be: Vec<u64>,
    writes: u64,
}

/// Runs all rounds and prints.
///
/// # Errors
/// Something is lost, or the next engine is neither as before nor as after.
pub fn run(common: &Common, rounds: u32) -> Result<()> {
    let (place, keys) = Place::new(common, "change")?;
    let mut trial = Trial {
        place,
        random: Random(common.seed),
        keys,
        ledgers: BTreeMap::new(),
        writers: BTreeMap::new(),
        may_be: vec![61],
        writes: 0,
    };
    trial.place.start(&trial.keys)?;
    trial.place.ask("knob", &trial.knob(Some(61)))?;
    trial.begin_writers()?;
    let mut sums: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for round in 0..rounds {
        common.progress(&format!("round {round} of {rounds}: {:?}", trial.keys));
        let became = trial
            .round()
            .with_context(|| format!("round {round} of {rounds}"))?;
        *sums.entry(became).or_default() += 1;
    }
    common.progress("");
    for (_, writer) in std::mem::take(&mut trial.writers) {
        trial.writes += writer.count();
        writer.end()?;
    }
    let mut table = Table::new(&["killed in", "answer", "count"]);
    for ((what, answer), count) in sums {
        table.row(vec![what.into(), answer.into(), count.into()]);
    }
    let head = format!("{rounds} kills within changes: each engine was as its file says");
    common.show("change", &head, &table, json!({"writes": trial.writes}));
    Ok(())
}

impl Trial {
    fn knob(&self, value: Option<u64>) -> Value {
        let name = self.keys.name();
        match value {
            Some(value) => {
                json!({"volume": name, "name": KNOB, "value": format!("{value}s")})
            }
            None => json!({"volume": name}),
        }
    }

    /// One kill: within what, and whether that was answered.
    fn round(&mut self) -> Result<(&'static str, &'static str)> {
        let mut new = self.keys.clone();
        let (mut of_legs, is_verb) = (false, self.random.below(4) == 0);
        let mut value = None;
        let (what, method, params) = if is_verb {
            let set = 60 + self.random.below(1000);
            value = Some(set);
            ("verb", "knob", self.knob(Some(set)))
        } else {
            for _ in 0..=self.random.below(3) {
                of_legs |= new.change(&mut self.random, &self.place)?;
            }
            self.place.write(&new)?;
            ("reload", "reload", json!({"force": true}))
        };
        let asked = ask(&self.place, method, params);
        let bound = 1 << (7 + self.random.below(LATER_SHIFT - 6));
        stop::pause(Duration::from_micros(self.random.below(bound)))?;
        let log = self.place.stage.engine()?.log();
        self.place.stage.engine = None;
        let Ok(answer) = asked.join() else {
            anyhow::bail!("the thread that asked panicked");
        };
        let answer = match answer {
            Ok(_) => "done",
            Err(error) if format!("{error:#}").starts_with(method) => {
                // An impossible change is refused at once, and has changed nothing.
                ensure!(
                    !format!("{error:#}").contains("not all"),
                    "{error:#}\n{log}"
                );
                "refused"
            }
            Err(_) => "none",
        };
        if let Some(value) = value {
            match answer {
                "done" => self.may_be = vec![value],
                "none" => self.may_be.push(value),
                _ => {}
            }
        }
        for (socket, writer) in std::mem::take(&mut self.writers) {
            self.writes += writer.count();
            self.ledgers.insert(socket, writer.end()?);
        }
        let has_more_legs = new.legs.len() > self.keys.legs.len();
        let is_new = match (answer, of_legs) {
            ("done", _) => true,
            (_, true) => has_more_legs,
            _ => self.random.below(2) == 0,
        };
        if is_new {
            self.keys = new;
        }
        let words = || format!("{what} that was {answer}: {:?}", self.may_be);
        self.place.start(&self.keys).with_context(words)?;
        let shown = self.place.ask("knob", &self.knob(None))?;
        let shown = shown["flush_timeout_ns"].as_u64().context("the knob")? / 1_000_000_000;
        ensure!(
            self.may_be.contains(&shown),
            "{KNOB} is {shown}: {}",
            words()
        );
        self.may_be = vec![shown];
        self.begin_writers()?;
        Ok((what, answer))
    }

    /// One for each volume, which begins with a read of all that was acknowledged.
    fn begin_writers(&mut self) -> Result<()> {
        for (socket, name) in self.keys.sockets() {
            let ledger = self.ledgers.remove(socket).unwrap_or_default();
            let path = self.place.path(&format!("{socket}.sock"));
            let writer = Writer::start(path, name, ledger, self.random.next())?;
            self.writers.insert(socket, writer);
        }
        Ok(())
    }
}

/// Asks the engine on another thread.
fn ask(place: &Place, method: &'static str, params: Value) -> JoinHandle<Result<Value>> {
    let socket = place.path("engine.sock");
    std::thread::spawn(move || call(&socket, method, &params))
}
