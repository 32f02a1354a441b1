//! What a mirror keeps on its legs (row B6): its policy, how fast it is copied, legs that were
//! taken out.
//!
//! # Contract
//! What is set is answered when the legs say so, durably: who was answered finds it so after a
//! kill. Where they can't be told, or have no room for it, that is the answer: it holds, until the
//! engine ends.
use super::orders::{MirrorParams, SEEN_WAIT};
use super::speed as speed_as_configured;
use crate::control::limits::ANSWER_WAIT;
use crate::control::rpc::Failure;
use crate::run::service::Service;
use crate::units::format_bytes;
use engine::mirror::{MirrorOrder, MirrorReport, MirrorState, speed_of};
use policy::Policy;
use serde_json::{Value, json};
use std::time::Duration;
use volume::mirror::Properties;
use volume::mirror::machine::Speed;

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
    /// Waits until what was set is on the legs; `is`: what they say is that.
    ///
    /// # Errors
    /// It is not yet; or they have no room for it.
    pub(super) fn wait_kept(
        &self,
        volume: u16,
        is: impl Fn(&MirrorReport, &Properties) -> bool,
    ) -> Result<(), Failure> {
        let mut is_so = false;
        let kept = self.wait_for(volume, KEPT_WAIT, |it| {
            is_so = it.superblock.is_some_and(|said| is(it, &said.properties));
            it.kept
        });
        let why = match (kept, is_so) {
            (true, true) => return Ok(()),
            (true, false) => {
                "that holds until the engine ends: its legs have no room for it among what else \
                 they keep of the mirror (braid mirror examine shows it)"
            }
            (false, _) => {
                "that holds, but its legs could not be told yet: it is forgotten where the engine \
                 ends before (braid stat shows what they wait for)"
            }
        };
        Err(Failure::refused(format!("{}: {why}", self.name(volume))))
    }

    /// The same of a leg that was taken out, or returns.
    pub(super) fn wait_kept_aside(
        &self,
        volume: u16,
        slot: u8,
        aside: bool,
    ) -> Result<(), Failure> {
        self.wait_kept(volume, |it, said| {
            let mut legs = it.legs.iter().filter(|leg| leg.slot == Some(slot));
            let is_told = legs.all(|leg| leg.aside == aside);
            !is_told || is_aside(said, slot) == aside
        })
    }

    /// How fast is copied in the background: a property of the mirror, which it keeps (row B6). A
    /// pause lasts until the engine ends.
    pub(super) fn set_speed(&self, volume: u16, params: &MirrorParams) -> Result<Value, Failure> {
        let report = self.mirror_report(volume)?;
        let lasts = report.superblock.map(|it| it.properties);
        let lasts = lasts.ok_or_else(|| {
            let why = "its speed stands on its legs, and it does not run";
            Failure::refused(format!("{}: {why}", self.name(volume)))
        })?;
        let changed = {
            let before = speed_of(
                &lasts,
                speed_as_configured(&self.state().volumes[volume].of),
            );
            let speed = Speed {
                floor: params.floor.unwrap_or(before.floor),
                ceiling: params.ceiling.unwrap_or(before.ceiling),
            };
            if speed.floor > speed.ceiling {
                return Err(Failure::params(format!(
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
                self.senders.order(volume, order);
                let usual = speed_as_configured(&self.state().volumes[volume].of);
                self.wait_kept(volume, |_, it| speed_of(it, usual) == speed)?;
            } else {
                self.senders.order(volume, order);
            }
        }
        Ok(self.report()?.mirror(volume))
    }

    /// Shows the policy of a mirror, or sets it: a property of the mirror, which it keeps (row B6).
    pub fn mirror_policy(&self, volume: u16, word: Option<&str>) -> Result<Value, Failure> {
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
        let policy = policy.map_err(|error| Failure::params(format!("\"{word}\": {error}")))?;
        if report.state != MirrorState::Running {
            let why = "its policy stands on its legs, and it does not run";
            return Err(Failure::refused(format!("{name}: {why}")));
        }
        self.may_write(volume, &report)?;
        let kept = engine::mirror::for_mirror(policy).to_string();
        let properties = report.superblock.map(|it| it.properties);
        if let Err(error) = properties.unwrap_or_default().set("policy", &kept) {
            let why = format!("{name}: its legs have no room for it: {error}");
            return Err(Failure::refused(why));
        }
        self.senders.set_policy(volume, policy, report.knobs);
        self.wait_kept(volume, |_, it| it.value("policy") == Some(&kept))?;
        Ok(json!({"volume": name, "policy": kept}))
    }
}

/// Whether a mirror keeps that the leg of this slot returns only when told to.
pub fn is_aside(properties: &Properties, slot: u8) -> bool {
    let mut slots = properties.value("aside").unwrap_or_default().split(',');
    slots.any(|it| it.parse() == Ok(slot))
}
