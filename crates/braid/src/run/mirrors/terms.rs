//! What has to be so before something is asked of a mirror, and what is answered when it was.
use super::orders::MirrorParams;
use crate::control::rpc::Failure;
use crate::run::service::Service;
use engine::mirror::{LegStatus, MirrorReport};
use serde_json::{Value, json};

impl Service {
    /// A mirror as it is. What is left of legs that are none any more goes, unless somebody changes
    /// something just now: a leg that is about to be one must not.
    pub(super) fn status_of_mirror(&self, volume: u16) -> Result<Value, Failure> {
        if let Some(_alone) = self.changes.alone_now() {
            self.tidy_legs(volume)?;
        }
        Ok(self.report()?.mirror(volume))
    }

    /// # Errors
    /// A newer braid has written on its legs what this one would not write down again.
    pub(super) fn may_write(&self, volume: u16, report: &MirrorReport) -> Result<(), Failure> {
        match report.superblock.map_or(0, |it| it.features.read_only) {
            0 => Ok(()),
            _ => Err(Failure::refused(format!(
                "{} was written by a newer braid, and this one may only read it: take that one",
                self.name(volume)
            ))),
        }
    }
}

/// # Errors
/// There are no two copies to compare; a check is under way, whose user would be told of another
/// one's end.
pub(super) fn may_check(name: &str, report: &MirrorReport) -> Result<(), Failure> {
    if report.checking.is_some() {
        let why = format!("end it first (braid mirror end-check {name}), or wait for its end");
        return Err(Failure::refused(format!(
            "{name}: a check or a repair is under way: {why}"
        )));
    }
    let legs = report.legs.iter();
    match legs.filter(|leg| leg.status == LegStatus::InSync).count() {
        2.. => Ok(()),
        _ => Err(Failure::refused(format!(
            "{name}: fewer than two legs are in sync, so there is nothing to compare: bring \
             another one back first (braid mirror restore, status --wait)"
        ))),
    }
}

/// The answer to an order that a mirror has.
pub(super) fn answer(verb: &str, params: &MirrorParams) -> Value {
    let state = match verb {
        "check" => "checking",
        "repair" => "repairing",
        "pause" => "check-paused",
        "resume" => "check-resumed",
        "end" => "check-ended",
        "fail" => "taken-out",
        "restore" => "returning",
        _ => "running",
    };
    let leg = params.leg.as_ref().map(|leg| match leg.parse::<u8>() {
        Ok(slot) => json!(slot),
        Err(_) => json!(leg),
    });
    json!({"volume": params.volume, "leg": leg, "state": state})
}
