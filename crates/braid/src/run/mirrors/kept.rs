//! Settings that a mirror keeps on its legs (row B6): its policy, its copy rate, legs that were
//! taken out.
//!
//! # Contract
//! What is set is answered when the legs say so, durably: who was answered finds it so after a
//! kill. Where they can't be told, that is the answer: it holds until the engine ends, and is
//! [pending](super::super::pending). A setting that they have no room for is refused.
use super::orders::SEEN_WAIT;
use super::speed;
use crate::control::limits::ANSWER_WAIT;
use crate::control::rpc::ControlError;
use crate::log;
use crate::run::call::MirrorParams;
use crate::run::desired::{Desired, DesiredVolume, MirrorSetting, MirrorSettings};
use crate::run::plan::{Change, LegVerb, speed_words};
use crate::run::reconcile::changes_of_mirror;
use crate::run::service::Service;
use crate::units::format_bytes;
use engine::mirror::{
    MirrorOrder, MirrorReport, MirrorState, admin_offline, kept_speed, set_speed,
};
use mirror::machine::Speed;
use mirror::{BadText, Properties};
use policy::Policy;
use serde_json::{Value, json};
use std::time::Duration;

/// Most that is waited until the legs say what was set. With what `restore` waits before that
/// ([`SEEN_WAIT`]) it is less than an answer is waited for, so that it is heard that they don't.
const KEPT_WAIT: Duration = Duration::from_secs(4);
const _: () = assert!(KEPT_WAIT.as_secs() + SEEN_WAIT.as_secs() < ANSWER_WAIT.as_secs());

/// Why a mirror has no policy to be shown.
const POLICY_UNKNOWN: &str = "its policy stands on its legs, and is not known until it runs";

/// Copies in the background come to nothing at this speed, bytes per second.
pub(in crate::run) const PAUSED: Speed = Speed {
    floor: 1,
    ceiling: 1,
};

impl Service {
    /// Whether what the legs keep of a mirror leaves room for a `change`.
    ///
    /// # Errors
    /// It does not; nothing was changed.
    pub(super) fn has_room(
        &self,
        volume: u16,
        report: &MirrorReport,
        change: impl FnOnce(&mut Properties) -> Result<(), BadText>,
    ) -> Result<(), ControlError> {
        let properties = report.superblock.map(|it| it.properties);
        change(&mut properties.unwrap_or_default()).map_err(|error| {
            let name = self.name(volume);
            let why = "its legs have no room for it among what else they keep of the mirror";
            ControlError::refused(format!("{name}: {why}: {error}"))
        })
    }

    /// Waits until what a change set is on the legs. If they can't be told, it goes on.
    ///
    /// # Errors
    /// It is not yet.
    pub(super) fn wait_kept(&self, volume: u16, change: &Change) -> Result<(), ControlError> {
        if self.is_kept(volume) {
            self.changes.end_going(change);
            return Ok(());
        }
        self.changes.note_going(change.clone());
        Err(self.not_kept(volume))
    }

    fn is_kept(&self, volume: u16) -> bool {
        self.wait_for(volume, KEPT_WAIT, |it| it.kept)
    }

    fn not_kept(&self, volume: u16) -> ControlError {
        ControlError::refused(format!(
            "{}: that holds, but its legs could not be told yet: it is forgotten where the engine \
             ends before (braid stat shows what they wait for; braid pending shows it, and \
             braid pending --cancel takes it back)",
            self.name(volume)
        ))
    }

    /// The same of a leg that was taken out.
    ///
    /// # Errors
    /// As [`Self::wait_kept`]; others have left meanwhile, so it is the last one and stays.
    pub(super) fn wait_out(
        &self,
        volume: u16,
        slot: u8,
        change: &Change,
    ) -> Result<(), ControlError> {
        self.wait_kept(volume, change)?;
        let report = self.mirror_report(volume)?;
        // Of one that is not there only the legs know.
        match is_out(&report, slot) {
            true => Ok(()),
            false => Err(ControlError::refused(format!(
                "{}: leg {slot}: the others have left meanwhile, or it was restored, removed or \
                 replaced: it is not taken out",
                self.name(volume)
            ))),
        }
    }

    /// Whether a change of a mirror or of its leg holds, and its legs are not told yet.
    pub(in crate::run) fn is_being_kept(&self, change: &Change) -> bool {
        let number = self.state().mirror(change.volume());
        let report = number.and_then(|number| self.mirror_report(number));
        let Ok(report) = report else {
            return false; // the mirror has left, or the engine ends
        };
        let holds = match change {
            Change::SetMirror(name, _, setting) => {
                let settings = self.settings_of(name, &report);
                settings.is_ok_and(|it| it.each().contains(setting))
            }
            Change::Leg(_, leg, verb) => leg
                .slot
                .is_some_and(|slot| is_out(&report, slot) == matches!(verb, LegVerb::Fail)),
            _ => unreachable!("{change}: its legs do not keep it"),
        };
        holds && !report.kept
    }

    /// Settings of a mirror that runs.
    ///
    /// # Errors
    /// It does not.
    pub(in crate::run) fn settings_of(
        &self,
        name: &str,
        report: &MirrorReport,
    ) -> Result<MirrorSettings, ControlError> {
        let superblock = report.superblock.as_ref();
        let superblock = superblock.filter(|_| report.state == MirrorState::Running);
        let superblock = superblock.ok_or_else(|| {
            let why = "its policy and speed stand on its legs, and it does not run";
            ControlError::refused(format!("{name}: {why}"))
        })?;
        Ok(MirrorSettings {
            policy: report.policy,
            speed: kept_speed(&superblock.properties, self.speed_as_configured(name)),
            is_paused: report.speed == PAUSED,
        })
    }

    /// Bounds of copies of a mirror that keeps none.
    pub(in crate::run) fn speed_as_configured(&self, name: &str) -> Speed {
        let state = self.state();
        let number = state.mirror(name);
        number.map_or_else(|_| Speed::default(), |it| speed(&state.volumes[it].of))
    }

    /// Makes the settings of a mirror what a verb says.
    ///
    /// # Errors
    /// The mirror does not run, or `edit` refuses; as of [`Self::make`].
    fn edit_settings(
        &self,
        name: &str,
        edit: impl FnOnce(&mut MirrorSettings) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        // Does not wait for a verb that may wait for a leg that hangs.
        let _alone = self.alone_with_mirror_now(name);
        let volume = self.state().mirror(name)?;
        let report = self.mirror_report(volume)?;
        let now = self.settings_of(name, &report)?;
        let mut wanted = now.clone();
        edit(&mut wanted)?;
        let plan = {
            let state = self.state();
            let it = DesiredVolume {
                settings: Some(wanted),
                ..DesiredVolume::new(&state, volume)
            };
            changes_of_mirror(&state, &Desired { volumes: vec![it] }, Some(now))
        };
        if plan.is_empty() && !report.kept && !self.is_kept(volume) {
            return Err(self.not_kept(volume)); // it was set before
        }
        self.make(&plan, false)
    }

    /// A mirror that runs gets another setting.
    ///
    /// # Errors
    /// It does not run, or its legs have no room for it; or they do not say so yet, and it goes on.
    pub fn set_mirror(
        &self,
        volume: u16,
        setting: &MirrorSetting,
        change: &Change,
    ) -> Result<(), ControlError> {
        let name = change.volume();
        let report = self.mirror_report(volume)?;
        let now = self.settings_of(name, &report)?;
        let in_file = self.speed_as_configured(name);
        let order = |order| self.senders.order(volume, order);
        match setting {
            MirrorSetting::Policy(policy) => {
                self.may_write(volume, &report)?;
                self.has_room(volume, &report, |it| it.set("policy", &policy.to_string()))?;
                self.senders.set_policy(volume, *policy, report.knobs);
                let before = now.policy;
                log::say(format!("{name}: policy changed from {before} to {policy}"));
                if let Some(it) = self.state().volumes.get_mut(volume) {
                    it.values.note(before);
                    it.values.note(*policy);
                }
            }
            // Nothing of it is kept.
            MirrorSetting::Pause(is_paused) => {
                let speed = now.speed.unwrap_or(in_file);
                order(MirrorOrder::Speed(if *is_paused { PAUSED } else { speed }));
                return Ok(());
            }
            MirrorSetting::Speed(bounds) => {
                self.may_write(volume, &report)?;
                self.has_room(volume, &report, |it| set_speed(it, *bounds))?;
                order(MirrorOrder::KeepSpeed(*bounds));
                if !now.is_paused {
                    order(MirrorOrder::Speed(bounds.unwrap_or(in_file)));
                }
            }
        }
        self.wait_kept(volume, change)
    }

    /// `mirror.speed`: shows how fast is copied in the background, or changes it.
    pub(super) fn mirror_speed(&self, params: &MirrorParams) -> Result<Value, ControlError> {
        let name = &params.volume;
        let has_bounds = params.floor.is_some() || params.ceiling.is_some();
        let edit = |it: &mut MirrorSettings| {
            if has_bounds {
                let now = it.speed.unwrap_or_else(|| self.speed_as_configured(name));
                let speed = Speed {
                    floor: params.floor.unwrap_or(now.floor),
                    ceiling: params.ceiling.unwrap_or(now.ceiling),
                };
                if speed.floor > speed.ceiling {
                    return Err(ControlError::params(format!(
                        "the floor, {}/s, is above the ceiling, {}/s",
                        format_bytes(speed.floor),
                        format_bytes(speed.ceiling)
                    )));
                }
                if speed == PAUSED {
                    // They would show as a pause that --resume does not end.
                    return Err(ControlError::params(
                        "a floor and a ceiling of 1 B/s are those of a pause: say --pause",
                    ));
                }
                it.speed = Some(speed);
            }
            // A pause lasts until it is ended by word.
            it.is_paused = params.pause || it.is_paused && !params.resume;
            Ok(())
        };
        if has_bounds || params.pause || params.resume {
            self.edit_settings(name, edit)?;
        } else {
            let volume = self.state().mirror(name)?;
            self.settings_of(name, &self.mirror_report(volume)?)?;
        }
        let report = self.report()?;
        let volume = report.mirror_named(name)?;
        Ok(report.mirror(volume))
    }

    /// Speed of copies of a mirror that is configured anew, where it was not told by verb.
    pub fn follow_speed(&self, name: &str) {
        let Ok(volume) = self.state().mirror(name) else {
            return; // its paths have no such speed
        };
        let report = self.mirror_report(volume);
        let settings = report.and_then(|it| self.settings_of(name, &it));
        if settings.is_ok_and(|it| !it.is_paused && it.speed.is_none()) {
            let speed = self.speed_as_configured(name);
            self.senders.order(volume, MirrorOrder::Speed(speed));
        }
    }

    /// Shows the policy of a mirror, or sets it: a property of the mirror, which it keeps (row B6).
    pub fn mirror_policy(&self, volume: u16, word: Option<&str>) -> Result<Value, ControlError> {
        let name = self.name(volume);
        if let Some(word) = word {
            let report = self.mirror_report(volume)?;
            let slots = report.legs.iter().filter_map(|leg| leg.slot);
            let slots = slots.max().map_or(0, |last| usize::from(last) + 1);
            let policy = Policy::parse(word).and_then(|policy| {
                policy.check(slots)?;
                let state = self.state();
                let it = state.volumes.get(volume);
                it.map_or(Ok(()), |it| it.check_blocks(policy))
                    .map(|()| policy)
            });
            let policy =
                policy.map_err(|error| ControlError::params(format!("\"{word}\": {error}")))?;
            self.edit_settings(&name, |it| {
                it.policy = engine::mirror::for_mirror(policy);
                Ok(())
            })?;
        }
        let report = self.mirror_report(volume)?;
        if report.superblock.is_none() {
            return Ok(json!({"volume": name, "policy": null, "why": POLICY_UNKNOWN}));
        }
        let mut state = self.state();
        let values = state.volumes.get_mut(volume).map(|it| {
            it.values.note(report.policy);
            it.values
        });
        let all = values
            .into_iter()
            .flat_map(|it| it.iter().collect::<Vec<_>>());
        let all: Vec<String> = all.map(|it| it.to_string()).collect();
        Ok(json!({"volume": name, "policy": report.policy.to_string(), "policies": all}))
    }
}

/// Settings that the file does not have: words of what, in the file, and now.
pub(in crate::run) fn set_by_verb(
    settings: &MirrorSettings,
    in_file: Speed,
) -> Vec<(&'static str, String, String)> {
    let usual = MirrorSettings::usual();
    let word = |setting: &MirrorSetting| match setting {
        MirrorSetting::Policy(policy) => ("policy", policy.to_string()),
        MirrorSetting::Pause(true) => ("speed", "paused".to_owned()),
        MirrorSetting::Pause(false) => ("speed", "not paused".to_owned()),
        MirrorSetting::Speed(speed) => ("speed", speed_words(speed.unwrap_or(in_file))),
    };
    let all = usual.each().into_iter().zip(settings.each());
    let set = all.filter(|(usual, now)| usual != now);
    set.map(|(usual, now)| (word(&now).0, word(&usual).1, word(&now).1))
        .collect()
}

/// Whether the legs keep that one is taken out.
fn is_out(report: &MirrorReport, slot: u8) -> bool {
    let superblock = report.superblock.as_ref();
    superblock.is_some_and(|it| admin_offline(&it.properties).has(slot))
}
