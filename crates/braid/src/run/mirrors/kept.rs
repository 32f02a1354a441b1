//! Settings that a mirror keeps on its legs (row B6): its policy, its copy rate, legs that were
//! taken out.
//!
//! # Contract
//! What is set is answered when the legs say so, durably: who was answered finds it so after a
//! kill. Where they can't be told, that is the answer: it holds until the engine ends. An order
//! that they have no room for is refused.
use super::orders::SEEN_WAIT;
use super::speed as speed_as_configured;
use crate::control::limits::ANSWER_WAIT;
use crate::control::rpc::ControlError;
use crate::log;
use crate::run::call::MirrorParams;
use crate::run::desired::CopySpeed;
use crate::run::plan::Change;
use crate::run::service::Service;
use crate::units::format_bytes;
use engine::mirror::{MirrorOrder, MirrorReport, MirrorState, admin_offline, set_speed, speed_of};
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

    /// Waits until what was set is on the legs.
    ///
    /// # Errors
    /// It is not yet.
    pub(super) fn wait_kept(&self, volume: u16) -> Result<(), ControlError> {
        match self.wait_for(volume, KEPT_WAIT, |it| it.kept) {
            true => Ok(()),
            false => Err(ControlError::refused(format!(
                "{}: that holds, but its legs could not be told yet: it is forgotten where the \
                 engine ends before (braid stat shows what they wait for); set it as it was to \
                 take it back (of a leg: braid mirror restore, braid mirror fail)",
                self.name(volume)
            ))),
        }
    }

    /// The same of a leg that was taken out.
    ///
    /// # Errors
    /// As [`Self::wait_kept`]; others have left meanwhile, so it is the last one and stays.
    pub(super) fn wait_out(&self, volume: u16, slot: u8) -> Result<(), ControlError> {
        self.wait_kept(volume)?;
        let report = self.mirror_report(volume)?;
        // Of one that is not there only the legs know.
        let said = report.superblock.map(|it| admin_offline(&it.properties));
        match said {
            Some(said) if said.has(slot) => Ok(()),
            _ => Err(ControlError::refused(format!(
                "{}: leg {slot}: the others have left meanwhile, or it was restored, removed or \
                 replaced: it is not taken out",
                self.name(volume)
            ))),
        }
    }

    /// The settings that the legs keep.
    ///
    /// # Errors
    /// The mirror does not run.
    fn properties(&self, volume: u16, report: &MirrorReport) -> Result<Properties, ControlError> {
        let kept = report.superblock.map(|it| it.properties);
        kept.ok_or_else(|| {
            let why = "its speed stands on its legs, and it does not run";
            ControlError::refused(format!("{}: {why}", self.name(volume)))
        })
    }

    /// `mirror.speed`: shows how fast is copied in the background, or changes it.
    pub(super) fn mirror_speed(&self, params: &MirrorParams) -> Result<Value, ControlError> {
        let name = &params.volume;
        // Does not wait for a verb that may wait for a leg that hangs.
        let _alone = self.alone_with_mirror_now(name);
        let (volume, configured) = {
            let state = self.state();
            let volume = state.mirror(name)?;
            (volume, speed_as_configured(&state.volumes[volume].of))
        };
        let report = self.mirror_report(volume)?;
        let bounds = speed_of(&self.properties(volume, &report)?, configured);
        let changes = params.floor.is_some() || params.ceiling.is_some();
        if changes || params.pause || params.resume {
            let of = |bounds, is_paused| CopySpeed {
                bounds: changes.then_some(bounds),
                is_paused,
            };
            let before = of(bounds, report.speed == PAUSED);
            let speed = Speed {
                floor: params.floor.unwrap_or(bounds.floor),
                ceiling: params.ceiling.unwrap_or(bounds.ceiling),
            };
            if speed.floor > speed.ceiling {
                return Err(ControlError::params(format!(
                    "the floor, {}/s, is above the ceiling, {}/s",
                    format_bytes(speed.floor),
                    format_bytes(speed.ceiling)
                )));
            }
            // A pause lasts until it is ended by word.
            let is_paused = params.pause || before.is_paused && !params.resume;
            let set = Change::SetSpeed(name.clone(), before, of(speed, is_paused));
            self.make(&[set], false)?;
        }
        let report = self.report()?;
        let volume = report.mirror_named(name)?;
        Ok(report.mirror(volume))
    }

    /// Changes how fast is copied in the background.
    ///
    /// # Errors
    /// The mirror does not run, or its legs have no room for it; or they do not say so yet.
    pub fn set_speed(&self, volume: u16, speed: &CopySpeed) -> Result<(), ControlError> {
        let report = self.mirror_report(volume)?;
        self.properties(volume, &report)?;
        if let Some(bounds) = speed.bounds {
            self.may_write(volume, &report)?;
            self.has_room(volume, &report, |it| set_speed(it, bounds))?;
            self.senders.order(volume, MirrorOrder::Speed(bounds, true));
        }
        if speed.is_paused {
            self.senders
                .order(volume, MirrorOrder::Speed(PAUSED, false));
        } else if report.speed == PAUSED {
            self.copy_as_kept(volume, speed.bounds);
        }
        speed.bounds.map_or(Ok(()), |_| self.wait_kept(volume))
    }

    /// How fast a mirror that is configured anew is copied, where it was not told by verb.
    pub fn follow_speed(&self, name: &str) {
        let Ok(volume) = self.state().mirror(name) else {
            return; // its paths have no such speed
        };
        if self
            .mirror_report(volume)
            .is_ok_and(|it| it.speed != PAUSED)
        {
            self.copy_as_kept(volume, None);
        }
    }

    /// A mirror is copied within these bounds, else as its legs say, else as it is configured.
    fn copy_as_kept(&self, volume: u16, bounds: Option<Speed>) {
        let of = self.state().volumes.get(volume).map(|it| it.of.clone());
        let Ok(report) = self.mirror_report(volume) else {
            return; // the engine ends
        };
        if let (Some(of), Some(superblock)) = (of, report.superblock) {
            let kept = speed_of(&superblock.properties, speed_as_configured(&of));
            let speed = bounds.unwrap_or(kept);
            self.senders.order(volume, MirrorOrder::Speed(speed, false));
        }
    }

    /// Shows the policy of a mirror, or sets it: a property of the mirror, which it keeps (row B6).
    pub fn mirror_policy(&self, volume: u16, word: Option<&str>) -> Result<Value, ControlError> {
        let report = self.mirror_report(volume)?;
        let name = self.name(volume);
        let Some(word) = word else {
            if report.superblock.is_none() {
                return Ok(json!({"volume": name, "policy": null, "why": POLICY_UNKNOWN}));
            }
            let shown = report.policy.to_string();
            let all = self.values_of(volume, report.policy);
            return Ok(json!({"volume": name, "policy": shown, "policies": all}));
        };
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
        if report.state != MirrorState::Running {
            let why = "its policy stands on its legs, and it does not run";
            return Err(ControlError::refused(format!("{name}: {why}")));
        }
        self.may_write(volume, &report)?;
        let kept = engine::mirror::for_mirror(policy).to_string();
        self.has_room(volume, &report, |it| it.set("policy", &kept))?;
        self.senders.set_policy(volume, policy, report.knobs);
        self.wait_kept(volume)?;
        let (before, policy) = (report.policy, engine::mirror::for_mirror(policy));
        if before != policy {
            log::say(format!("{name}: policy changed from {before} to {policy}"));
        }
        self.values_of(volume, before);
        let all = self.values_of(volume, policy);
        Ok(json!({"volume": name, "policy": kept, "policies": all}))
    }

    /// Notes the policy in force; the values of all that were set (row B5).
    fn values_of(&self, volume: u16, policy: Policy) -> Vec<String> {
        let mut state = self.state();
        match state.volumes.get_mut(volume) {
            Some(it) => {
                it.values.note(policy);
                it.values.iter().map(|it| it.to_string()).collect()
            }
            None => Vec::new(),
        }
    }
}
