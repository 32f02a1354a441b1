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
use crate::run::call::MirrorParams;
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

    /// How fast is copied in the background: a property of the mirror, which it keeps (row B6). A
    /// pause lasts until the engine ends.
    pub(super) fn set_speed(
        &self,
        volume: u16,
        params: &MirrorParams,
    ) -> Result<Value, ControlError> {
        let report = self.mirror_report(volume)?;
        let lasts = report.superblock.map(|it| it.properties);
        let lasts = lasts.ok_or_else(|| {
            let why = "its speed stands on its legs, and it does not run";
            ControlError::refused(format!("{}: {why}", self.name(volume)))
        })?;
        let changed = {
            let configured = {
                let state = self.state();
                // It may have left since it was found.
                let it = state.volumes.get(volume);
                let it = it.filter(|it| it.of.name == params.volume);
                let it = it.ok_or_else(|| state.volumes.unknown(&params.volume))?;
                speed_as_configured(&it.of)
            };
            let before = speed_of(&lasts, configured);
            let speed = Speed {
                floor: params.floor.unwrap_or(before.floor),
                ceiling: params.ceiling.unwrap_or(before.ceiling),
            };
            if speed.floor > speed.ceiling {
                return Err(ControlError::params(format!(
                    "the floor, {}/s, is above the ceiling, {}/s",
                    format_bytes(speed.floor),
                    format_bytes(speed.ceiling)
                )));
            }
            let changes = params.floor.is_some() || params.ceiling.is_some();
            match (params.pause, changes || params.resume) {
                (true, _) => Some((PAUSED, false)),
                (false, any) => any.then_some((speed, changes)),
            }
        };
        if let Some((speed, lasts)) = changed {
            let order = MirrorOrder::Speed(speed, lasts);
            if lasts {
                self.may_write(volume, &report)?;
                self.has_room(volume, &report, |it| set_speed(it, speed))?;
                self.senders.order(volume, order);
                // A pause lasts until it is ended by word.
                if report.speed == PAUSED && !params.resume {
                    let pause = MirrorOrder::Speed(PAUSED, false);
                    self.senders.order(volume, pause);
                }
                self.wait_kept(volume)?;
            } else {
                self.senders.order(volume, order);
            }
        }
        let report = self.report()?;
        let volume = report.mirror_named(&params.volume)?;
        Ok(report.mirror(volume))
    }

    /// How fast a mirror that is configured anew is copied, where it was not told by verb.
    pub fn follow_speed(&self, name: &str) {
        let Ok(volume) = self.state().mirror(name) else {
            return; // its paths have no such speed
        };
        let of = self.state().volumes.get(volume).map(|it| it.of.clone());
        let Ok(report) = self.mirror_report(volume) else {
            return; // the engine ends
        };
        if let (Some(of), Some(superblock)) = (of, report.superblock)
            && report.speed != PAUSED
        {
            let speed = speed_of(&superblock.properties, speed_as_configured(&of));
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
            return Ok(json!({"volume": name, "policy": report.policy.to_string()}));
        };
        let slots = report.legs.iter().filter_map(|leg| leg.slot);
        let slots = slots.max().map_or(0, |last| usize::from(last) + 1);
        let policy = Policy::parse(word).and_then(|it| it.check(slots).map(|()| it));
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
        Ok(json!({"volume": name, "policy": kept}))
    }
}
