//! Differences from the configuration file, and how they end.
//!
//! `diff {"volume": "v0"}` · `forget {"volume": "v0", "what": "policy"}`
//!
//! # Contract
//! A choice that is forgotten is taken back in the engine first: what can fail is done before
//! anything is forgotten, and if it fails, all holds as before. Exports that came or went by verb
//! are listed; they end with the engine, or by `export add` and `export remove`. Settings that a
//! mirror keeps on its legs are listed and forgotten while it runs; since when they hold is not
//! known.
use super::call::{DiffParams, ForgetParams};
use super::choices::{Choices, Difference};
use super::config::{Config, Export, Volume};
use super::desired::{Desired, DesiredVolume, MirrorSettings, PathSpec};
use super::entries::Origin;
use super::live;
use super::mirrors::set_by_verb;
use super::plan::{Change, LegVerb};
use super::reconcile::{Reconciler, changes_of_mirror};
use super::reload;
use super::rename::Renames;
use super::service::{Service, State};
use crate::control::rpc::ControlError;
use crate::control::server::Caller;
use crate::units::format_utc;
use engine::mirror::MirrorReport;
use serde_json::{Value, json};
use std::collections::BTreeMap;

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

/// Settings that a mirror keeps, and its legs that were taken out.
fn of_mirror(service: &Service, name: &str, report: &MirrorReport) -> Vec<Difference> {
    let Ok(settings) = service.settings_of(name, report) else {
        return Vec::new(); // it does not run
    };
    let difference = |what: String, file: String, now: String| Difference {
        what,
        file,
        now,
        since_s: None,
    };
    let set = set_by_verb(&settings, service.speed_as_configured(name)).into_iter();
    let set = set.map(|(what, file, now)| difference(what.to_owned(), file, now));
    let out = report.legs.iter().filter(|leg| leg.admin_offline);
    let out = out.map(|leg| {
        let what = format!("leg {}", leg.name);
        difference(what, "used".to_owned(), "failed".to_owned())
    });
    set.chain(out).collect()
}

impl Service {
    /// `diff`.
    ///
    /// # Errors
    /// There is no such volume.
    pub fn diff(&self, params: &DiffParams) -> Result<Value, ControlError> {
        let file = Config::read(&self.file).ok(); // one that can't be has no other names
        let mut of_mirrors = self.differences_of_mirrors();
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
            let differences = differences.chain(of_mirrors.remove(name).unwrap_or_default());
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

    /// Settings that mirrors keep on their legs, by their names; none of one whose core does not
    /// answer.
    fn differences_of_mirrors(&self) -> BTreeMap<String, Vec<Difference>> {
        let cores = self.senders.report().unwrap_or_default();
        let all = cores.iter().flat_map(|it| &it.mirrors);
        let all = all.map(|(number, report)| {
            let name = self.name(*number);
            let of = of_mirror(self, &name, report);
            (name, of)
        });
        all.collect()
    }

    /// `forget`: a volume is what its file says, in all or in one thing.
    ///
    /// # Errors
    /// Why all is as before.
    pub fn forget(&self, params: &ForgetParams, by: &Caller<'_>) -> Result<Value, ControlError> {
        let is_mirror = self.state().mirror(&params.volume).is_ok();
        let (_alone, number) = match is_mirror {
            true => self.alone_with_mirror(&params.volume, by)?,
            false => self.alone_with(&params.volume, by)?,
        };
        let what = params.what.as_deref();
        let (settings, legs) = match is_mirror {
            true => self.kept_by_mirror(number, what)?,
            false => (None, Vec::new()),
        };
        let (file, plan) = {
            let state = self.state();
            let file = state.configured.volume(&params.volume).cloned();
            let file = file.ok_or_else(|| {
                ControlError::refused(format!("{} is not in the file", params.volume))
            })?;
            let mut it = DesiredVolume::new(&state, number);
            it.settings.clone_from(&settings);
            forget(&mut it, &file, what)?;
            let desired = Desired { volumes: vec![it] };
            let mut plan = changes_of_mirror(&state, &desired, settings);
            plan.splice(0..0, legs);
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
        let kept = self.differences_of_mirrors().remove(&params.volume);
        let left = left.into_iter().chain(kept.unwrap_or_default());
        let left: Vec<String> = left.map(|it| in_words(&it)).collect();
        let done = plan.iter().map(Change::to_string);
        let done: Vec<String> = done.chain(waits).collect();
        Ok(json!({"volume": params.volume, "changed": done, "left": left}))
    }

    /// Settings of a mirror, of which `what` is to be forgotten, and the changes that bring back
    /// its legs that were taken out. One that does not run keeps them.
    ///
    /// # Errors
    /// It does not run, and `what` stands on its legs.
    fn kept_by_mirror(
        &self,
        number: u16,
        what: Option<&str>,
    ) -> Result<(Option<MirrorSettings>, Vec<Change>), ControlError> {
        let name = self.name(number);
        let report = self.mirror_report(number)?;
        let settings = match self.settings_of(&name, &report) {
            Err(why) if what.is_some_and(|it| KEPT_BY_MIRRORS.contains(&it)) => return Err(why),
            settings => settings.ok(),
        };
        let is_asked = settings.is_some() && what.is_none_or(|it| it == "legs");
        let out = report.legs.into_iter();
        let out = out.filter(|leg| leg.admin_offline && is_asked);
        let back = out.map(|leg| Change::Leg(name.clone(), Box::new(leg), LegVerb::Restore));
        Ok((settings, back.collect()))
    }
}

/// Settings that a mirror keeps on its legs, as they can be forgotten.
const KEPT_BY_MIRRORS: [&str; 3] = ["policy", "speed", "legs"];

/// A volume is to be without what was chosen of it.
fn forget(it: &mut DesiredVolume, file: &Volume, what: Option<&str>) -> Result<(), ControlError> {
    let is = |wanted: &str| what.is_none_or(|what| what == wanted);
    let mut known = false;
    if file.is_mirror() && KEPT_BY_MIRRORS.into_iter().any(is) {
        known = true; // legs are brought back by changes of their own
    }
    let usual = MirrorSettings::usual();
    if let Some(settings) = &mut it.settings {
        if is("policy") {
            settings.policy = usual.policy;
        }
        if is("speed") {
            (settings.speed, settings.is_paused) = (usual.speed, usual.is_paused);
        }
    }
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
             shows it; of a mirror policy, speed or legs"
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
