//! Differences from the configuration file, and how they end.
//!
//! `diff {"volume": "v0"}` · `forget {"volume": "v0", "what": "policy"}`
//!
//! # Contract
//! A choice that is forgotten is taken back in the engine first: what can fail is done before
//! anything is forgotten, and if it fails, all holds as before. Exports that came or went by verb
//! are listed; they end with the engine, or by `export add` and `export remove`.
use super::call::{DiffParams, ForgetParams};
use super::choices::{Choices, Difference};
use super::config::{Config, Export, Volume};
use super::desired::{Desired, DesiredVolume, PathSpec};
use super::entries::Origin;
use super::live;
use super::plan::Change;
use super::reconcile::{Reconciler, changes};
use super::reload;
use super::rename::Renames;
use super::service::{Service, State};
use crate::control::rpc::ControlError;
use crate::control::server::Caller;
use crate::units::format_utc;
use serde_json::{Value, json};

/// A volume's choices in a line each.
fn in_words(it: &Difference) -> String {
    let since = it.since_s.map(|it| format!(", since {}", format_utc(it)));
    let (what, file, now) = (&it.what, &it.file, &it.now);
    format!("{what} {now} (file: {file}{})", since.unwrap_or_default())
}

/// State at the start that the file does not have, a line for each volume.
pub fn restored(choices: &Choices, config: &Config) -> Vec<String> {
    let line = |volume: &Volume| {
        let all: Vec<String> = choices
            .differences(&volume.name)
            .iter()
            .map(in_words)
            .collect();
        let name = &volume.name;
        let line = format!(
            "{name}: as it was set by verb before this start: {}; braid forget {name} ends that",
            all.join("; ")
        );
        (!all.is_empty()).then_some(line)
    };
    config.volumes.iter().filter_map(line).collect()
}

/// Exports that came or went by verb.
fn of_exports(state: &State, volume: u16, file: &Volume) -> Vec<Difference> {
    let now = state.exports_of(volume);
    let among = |all: &[Export], it: &Export| all.iter().any(|other| other.nbd == it.nbd);
    let difference = |it: &Export, file: &str, now: &str| Difference {
        what: format!("export {}", it.nbd),
        file: file.to_owned(),
        now: now.to_owned(),
        since_s: None,
    };
    let added = now.iter().filter(|it| !among(&file.exports, it));
    let added = added.map(|it| difference(it, "no export", "added"));
    let gone = file.exports.iter().filter(|it| !among(&now, it));
    let gone = gone.map(|it| difference(it, "an export", "removed"));
    added.chain(gone).collect()
}

impl Service {
    /// `diff`.
    ///
    /// # Errors
    /// There is no such volume.
    pub fn diff(&self, params: &DiffParams) -> Result<Value, ControlError> {
        let file = Config::read(&self.file).ok(); // one that can't be has no other names
        let choices = self.choices();
        let state = self.state();
        let (volumes, configured) = (&state.volumes, &state.configured);
        let renames = file.map(|new| Renames::new(volumes, configured, &new));
        let renames = renames.and_then(Result::ok).unwrap_or_default();
        if let Some(name) = &params.volume {
            state.volumes.number(name)?;
        }
        let mut all = Vec::new();
        for (number, it) in state.volumes.iter() {
            let name = &it.of.name;
            if params.volume.as_ref().is_some_and(|only| only != name) {
                continue;
            }
            let file = state.configured.volume(name);
            let exports = file.map(|file| of_exports(&state, number, file));
            let differences = choices.differences(name).into_iter();
            let renamed = Some(renames.now(name)).filter(|it| it != name);
            let renamed = renamed.map(|to| Difference {
                what: "name".to_owned(),
                file: to.to_owned(),
                now: name.clone(),
                since_s: None,
            });
            let differences = renamed.into_iter().chain(differences);
            for it in differences.chain(exports.unwrap_or_default()) {
                all.push(json!({
                    "volume": name,
                    "what": it.what,
                    "file": it.file,
                    "now": it.now,
                    "since_s": it.since_s,
                }));
            }
        }
        Ok(json!({"differences": all}))
    }

    /// `forget`: a volume is what its file says, in all or in one thing.
    ///
    /// # Errors
    /// Why all is as before.
    pub fn forget(&self, params: &ForgetParams, by: &Caller<'_>) -> Result<Value, ControlError> {
        let (_alone, number) = self.alone_with(&params.volume, by)?;
        let what = params.what.as_deref();
        let (file, plan) = {
            let state = self.state();
            let file = state.configured.volume(&params.volume).cloned();
            let file = file.ok_or_else(|| {
                ControlError::refused(format!("{} is not in the file", params.volume))
            })?;
            let mut it = DesiredVolume::new(&state, number);
            forget(&mut it, &file, what)?;
            let plan = changes(&state, &Desired { volumes: vec![it] });
            let spared = reload::spare_unclean(&state, &plan, params.force);
            spared.map_err(|error| ControlError::refused(format!("{error:#}")))?;
            (file, plan)
        };
        let mut steps = Reconciler::of_verb(self);
        let (fallible, sure): (Vec<_>, Vec<_>) = plan.iter().cloned().partition(Change::can_fail);
        let waits = steps.carry_out(&fallible, params.force);
        let waits = waits.map_err(ControlError::refused)?;
        if let Err(why) = self.choose(&params.volume, |it| forget(it, &file, what)) {
            return Err(ControlError::refused(steps.undone(why.to_string())));
        }
        // Absent paths that the file does not have.
        let absent = sure.into_iter();
        let absent: Vec<_> = absent
            .filter(|it| matches!(it, Change::ForgetPath(..)))
            .collect();
        let forgotten = steps.carry_out(&absent, params.force);
        forgotten.map_err(ControlError::refused)?;
        let left = self.choices().differences(&params.volume);
        let left: Vec<String> = left.iter().map(in_words).collect();
        let done = plan.iter().map(Change::to_string);
        let done: Vec<String> = done.chain(waits).collect();
        Ok(json!({"volume": params.volume, "changed": done, "left": left}))
    }
}

/// A volume is to be without what was chosen of it.
fn forget(it: &mut DesiredVolume, file: &Volume, what: Option<&str>) -> Result<(), ControlError> {
    let is = |wanted: &str| what.is_none_or(|what| what == wanted);
    let mut known = false;
    if is("policy") {
        (it.of.policy, known) = (file.policy, true);
    }
    for (knob, take) in KNOBS {
        if is(knob) {
            take(&mut it.of, file);
            known = true;
        }
    }
    for key in live::KEYS.iter().filter(|key| is(key.name)) {
        (key.take)(&mut it.of, file);
        known = true;
    }
    if is("paths") && !file.is_mirror() {
        let found = |it: &PathSpec| matches!(it.origin, Origin::Discovery(_));
        let in_file = |it: &PathSpec| file.paths.iter().any(|keys| keys.uri == it.config.uri);
        it.paths.retain(|it| found(it) && !in_file(it));
        it.paths
            .iter_mut()
            .for_each(|it| it.admin = Default::default());
        let of_file = file.paths.iter().cloned().map(PathSpec::from);
        it.paths = of_file.chain(it.paths.drain(..)).collect();
        it.awaited.clear();
        known = true;
    }
    match what.filter(|_| !known) {
        None => Ok(()),
        Some(what) => Err(ControlError::params(format!(
            "\"{what}\" can't be forgotten: name policy, paths, or a knob or key as braid diff \
             shows it"
        ))),
    }
}

type TakeKnob = fn(&mut Volume, &Volume);

const KNOBS: [(&str, TakeKnob); 3] = [
    ("ewma_shift", |to, from| to.ewma_shift = from.ewma_shift),
    ("weight_timeout", |to, from| {
        to.weight_timeout = from.weight_timeout
    }),
    ("hedge", |to, from| to.hedge = from.hedge),
];
