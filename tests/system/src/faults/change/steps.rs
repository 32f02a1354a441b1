//! `kill -9` of the engine at each named step of each kind of change.
//!
//! # Contract
//! The program is one with the points of [`freeze`](crate::faults::freeze). A change is made again
//! and again, with a kill after no step, one step, two, until it ends before its kill comes. In
//! between nothing is written, so steps are those of the change, and heartbeats of mirrors. After
//! each kill every state file can be read, an engine starts with the file of before or after (each
//! in turn) and is as that says, or as before or after the verb; a change that was answered holds;
//! and all data are there.
use super::file::{Keys, Place, SETTLED, uri};
use super::writers::{Ledger, Writer};
use crate::faults::table::Table;
use crate::faults::{Common, freeze, stop};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

/// How long each volume is written between two changes.
const WRITTEN: Duration = Duration::from_millis(30);
/// A change whose answer came has no step after this time.
const AFTER: Duration = Duration::from_millis(300);
/// A change with more steps than this has no end.
const STEPS_MAX: u64 = 400;

/// Changes the keys of a file.
type Edit = fn(&mut Keys);

/// Changes of the file, each made and taken back: the one that changes it, and its name.
const RELOADS: [(&str, Edit); 8] = [
    ("path", |it| it.paths[1] = false),
    ("name", |it| it.renamed = true),
    ("names swapped", |it| it.swapped = true),
    ("policy and keys", |it| it.policy = true),
    ("volume", |it| it.file = false),
    ("export moved", |it| it.moved = true),
    ("export over NVMe/TCP", |it| it.nvme = true),
    ("mirror", |it| it.mirror = false),
];

/// An engine that is killed at steps.
struct Trial {
    place: Place,
    ledgers: BTreeMap<&'static str, Ledger>,
    /// Where the program is told after how many steps it dies.
    points: PathBuf,
    /// Names of steps at which it died, numbers and names of files left out.
    died_at: BTreeSet<String>,
}

/// Makes all changes and prints.
///
/// # Errors
/// Something is lost, or the next engine is neither as before nor as after.
pub fn run(common: &Common) -> Result<()> {
    let (mut place, keys) = Place::new(common, "steps")?;
    let points = place.path("points");
    fs::create_dir(&points)?;
    // Only the engine is told by its environment where it is to look.
    let (script, program) = (place.path("engine"), freeze::build(&common.root)?);
    let (at, program) = (points.display(), program.display());
    let text = format!("#!/bin/sh\nBRAID_FREEZE='{at}' exec '{program}' \"$@\"\n");
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    place.stage.program = script;
    place.start(&keys)?;
    let mut trial = Trial {
        place,
        ledgers: BTreeMap::new(),
        points,
        died_at: BTreeSet::new(),
    };
    let mut table = Table::new(&["change", "kills"]);
    let mut all = 0;
    let mut row = |name: String, kills: u64| {
        all += kills;
        table.row(vec![name.into(), kills.into()]);
    };
    for (name, change) in RELOADS {
        let mut to = keys.clone();
        change(&mut to);
        for (from, to, way) in [(&keys, &to, "there"), (&to, &keys, "back")] {
            let name = format!("reload: {name}, {way}");
            common.progress(&name);
            let kills = trial
                .reload(from, to, &[false, true])
                .context(name.clone())?;
            row(name, kills);
        }
    }
    // A leg that one of two files lacks may be one or none: the file that has it tells which.
    let leg = trial.place.path("leg-c");
    fs::File::create(&leg)?.set_len(fs::metadata(&keys.legs[0])?.len())?;
    let mut with = keys.clone();
    with.legs.push(leg);
    for (from, to, is_new, name) in [
        (&keys, &with, true, "added"),
        (&with, &keys, false, "removed"),
    ] {
        let name = format!("reload: leg {name}");
        common.progress(&name);
        let kills = trial.reload(from, to, &[is_new]).context(name.clone())?;
        row(name, kills);
    }
    trial.become_as(&keys)?;
    for (name, does, undoes) in trial.verbs(&keys) {
        for (does, undoes, way) in [(&does, &undoes, "there"), (&undoes, &does, "back")] {
            let name = format!("verb: {name}, {way}");
            common.progress(&name);
            let kills = trial.verb(&keys, does, undoes).context(name.clone())?;
            row(name, kills);
        }
        let _ = trial.place.ask(undoes.0, &undoes.1);
    }
    common.progress("");
    let head = format!("{all} kills at steps of changes: each engine was as before or as after");
    common.show("change", &head, &table, json!({"steps": trial.died_at}));
    Ok(())
}

/// A method and its parameters.
type Asked = (&'static str, Value);

impl Trial {
    /// Verbs, each with the one that takes it back.
    fn verbs(&self, keys: &Keys) -> Vec<(&'static str, Asked, Asked)> {
        let name = keys.name();
        let path = json!({"volume": name, "path": self.place.stage.targets[0].uri, "force": true});
        let leg = json!({"volume": "m0", "leg": uri(&keys.legs[0])});
        let knob = |value: &str| json!({"volume": name, "name": "flush_timeout", "value": value});
        let policy = |word: &str| json!({"volume": name, "policy": word});
        let pair =
            |does, undoes, params: &Value| ((does, params.clone()), (undoes, params.clone()));
        let (fail, restore) = pair("path.fail", "path.restore", &path);
        let (remove, add) = pair("path.remove", "path.add", &path);
        let (fail_leg, restore_leg) = pair("mirror.fail", "mirror.restore", &leg);
        vec![
            ("key", ("knob", knob("61s")), ("knob", knob("62s"))),
            (
                "policy",
                ("policy", policy("numa")),
                ("policy", policy("queue-depth")),
            ),
            ("path failed", fail, restore),
            ("path removed", remove, add),
            ("leg failed", fail_leg, restore_leg),
        ]
    }

    /// The engine passes so many steps, and dies at the next one.
    fn arm(&self, steps: u64) -> Result<()> {
        let new = self.points.join("new");
        fs::write(&new, steps.to_string())?;
        Ok(fs::rename(new, self.points.join("step"))?)
    }

    /// Asks with a kill after so many steps: whether it was answered, and whether the engine died.
    fn killed(&mut self, (method, params): &Asked, steps: u64) -> Result<(bool, bool)> {
        self.arm(steps)?;
        let answer = self.place.ask(method, params);
        let died = self.points.join("died");
        if let Err(error) = &answer {
            let said = format!("{error:#}");
            ensure!(!said.starts_with(*method), "refused: {said}");
        } else {
            stop::pause(AFTER)?;
            self.arm(u64::MAX)?;
        }
        let name = fs::read_to_string(&died);
        ensure!(
            answer.is_ok() || name.is_ok(),
            "no answer, and no kill: {answer:?}"
        );
        if let Ok(name) = &name {
            let word = |it: &str| !it.contains(['/', '\'', '.']);
            let words: Vec<&str> = name.split(' ').filter(|it| word(it)).collect();
            self.died_at.insert(words.join(" "));
            fs::remove_file(died)?;
            self.place.stage.engine = None;
            self.are_readable()?;
        }
        Ok((answer.is_ok(), name.is_ok()))
    }

    /// All state files can be read.
    fn are_readable(&self) -> Result<()> {
        let state = self.place.path("state/braid");
        for directory in [state.clone(), state.join("volumes")] {
            for file in fs::read_dir(&directory).into_iter().flatten() {
                let path = file?.path();
                // That of the engine itself is the next one's, which has its lock.
                let is_record = path
                    .file_name()
                    .is_some_and(|it| it.to_str().is_some_and(|it| !it.starts_with("engine-")));
                if is_record && path.extension().is_some_and(|it| it == "json") {
                    let text = fs::read_to_string(&path)?;
                    let read = serde_json::from_str::<Value>(&text);
                    read.with_context(|| format!("{}: {text}", path.display()))?;
                }
            }
        }
        Ok(())
    }

    /// An engine with this file, which passes over no record.
    fn start(&mut self, keys: &Keys) -> Result<()> {
        self.place.start(keys)?;
        let log = self.place.stage.engine()?.log();
        let passed = ["passed over", "does not count", "cannot read"];
        let line = log
            .lines()
            .find(|line| passed.iter().any(|it| line.contains(it)));
        ensure!(line.is_none(), "{line:?}");
        Ok(())
    }

    /// The engine becomes as this file says.
    fn become_as(&mut self, keys: &Keys) -> Result<()> {
        self.place.write(keys)?;
        self.place.ask("reload", &json!({"force": true}))?;
        self.place.wait_as(keys)
    }

    /// All data are there, and more is written.
    fn write_all(&mut self, keys: &Keys) -> Result<()> {
        for (socket, name) in keys.sockets() {
            let ledger = self.ledgers.remove(socket).unwrap_or_default();
            let path = self.place.path(&format!("{socket}.sock"));
            let writer = Writer::start(path, name, ledger, self.died_at.len() as u64)?;
            stop::pause(WRITTEN)?;
            self.ledgers.insert(socket, writer.end()?);
        }
        Ok(())
    }

    /// Kills within reloads from one file to another; the next engine has the file of before or
    /// after: each of `starts`.
    fn reload(&mut self, from: &Keys, to: &Keys, starts: &[bool]) -> Result<u64> {
        let mut kills = 0;
        for &is_new in starts {
            for steps in 0.. {
                ensure!(steps < STEPS_MAX, "it has no end");
                self.become_as(from)?;
                self.write_all(from)?;
                self.place.write(to)?;
                let asked = ("reload", json!({"force": true}));
                let (_, died) = self.killed(&asked, steps)?;
                if !died {
                    self.place.wait_as(to)?;
                    self.write_all(to)?;
                    break;
                }
                kills += 1;
                let keys = if is_new { to } else { from };
                let words = || format!("killed after {steps} steps, {:?}", self.died_at);
                let words = words();
                self.start(keys).context(words.clone())?;
                self.write_all(keys).context(words)?;
            }
        }
        Ok(kills)
    }

    /// Kills within a verb, which another one takes back; both have been asked before.
    fn verb(&mut self, keys: &Keys, does: &Asked, undoes: &Asked) -> Result<u64> {
        for (method, params) in [does, undoes] {
            let _ = self.place.ask(method, params); // perhaps it is so already
        }
        let before = self.shown()?;
        self.place.ask(does.0, &does.1)?;
        let after = self.shown()?;
        ensure!(before != after, "it changes nothing: {after}");
        let mut is_after = true;
        for steps in 0.. {
            ensure!(steps < STEPS_MAX, "it has no end");
            if is_after {
                self.place.ask(undoes.0, &undoes.1)?;
            }
            self.wait_shown(&[&before])?;
            self.write_all(keys)?;
            let (answered, died) = self.killed(does, steps)?;
            if died {
                self.place.start_only(keys)?;
            }
            let shown = match answered {
                true => self.wait_shown(&[&after]),
                false => self.wait_shown(&[&before, &after]),
            };
            let shown = shown.with_context(|| format!("killed after {steps} steps"))?;
            is_after = shown == after;
            if !died {
                return Ok(steps);
            }
        }
        unreachable!("numbers have no end")
    }

    /// Waits until verbs have changed one of these, and returns which.
    fn wait_shown(&self, may_be: &[&Value]) -> Result<Value> {
        let mut shown = Value::Null;
        let waited = stop::wait("it is as before or after", SETTLED, || {
            shown = self.shown()?;
            Ok(may_be.contains(&&shown).then_some(()))
        });
        waited.with_context(|| format!("{shown} in place of {may_be:?}"))?;
        Ok(shown)
    }

    /// Differences from the file, and which legs are taken out.
    fn shown(&self) -> Result<Value> {
        let mut diff = self.place.ask("diff", &json!({"volume": null}))?["differences"].take();
        for it in diff.as_array_mut().into_iter().flatten() {
            if let Some(it) = it.as_object_mut() {
                it.remove("since_s");
            }
        }
        let stat = self.place.ask("stat", &json!({}))?;
        let volumes = stat["volumes"].as_array().context("volumes")?;
        let mirror = volumes.iter().find(|it| it["name"] == "m0");
        let legs = mirror.map(|it| it["legs"].clone()).unwrap_or_default();
        let states = legs
            .as_array()
            .into_iter()
            .flatten()
            .map(|it| it["state"].clone());
        Ok(json!({"diff": diff, "legs": states.collect::<Vec<_>>()}))
    }
}
