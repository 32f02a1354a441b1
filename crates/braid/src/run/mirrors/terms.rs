//! What has to be so before something is asked of a mirror, and what is waited for before that is
//! answered.
use super::orders::SEEN_WAIT;
use crate::control::limits::ANSWER_WAIT;
use crate::control::rpc::Failure;
use crate::run::service::Service;
use engine::mirror::{LegStatus, MirrorReport};
use serde_json::Value;
use std::time::Duration;

/// Most that is waited until the legs say what was set. With what `restore` waits before that
/// ([`SEEN_WAIT`]) it is less than an answer is waited for, so that it is heard that they don't.
const KEPT_WAIT: Duration = Duration::from_secs(4);
const _: () = assert!(KEPT_WAIT.as_secs() + SEEN_WAIT.as_secs() < ANSWER_WAIT.as_secs());

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

    /// Waits until what was set is on the legs: who was answered finds it so after a kill.
    ///
    /// # Errors
    /// It is not yet.
    pub(super) fn wait_kept(&self, volume: u16) -> Result<(), Failure> {
        match self.wait_for(volume, KEPT_WAIT, |it| it.kept) {
            true => Ok(()),
            false => Err(Failure::refused(format!(
                "{}: that holds, but its legs could not be told yet: it is forgotten where the \
                 engine ends before (braid stat shows what they wait for)",
                self.name(volume)
            ))),
        }
    }
}

/// # Errors
/// There are no two copies to compare.
pub(super) fn may_compare(name: &str, report: &MirrorReport) -> Result<(), Failure> {
    let legs = report.legs.iter();
    match legs.filter(|leg| leg.status == LegStatus::InSync).count() {
        2.. => Ok(()),
        _ => Err(Failure::refused(format!(
            "{name}: fewer than two legs are in sync, so there is nothing to compare: bring \
             another one back first (braid mirror restore, status --wait)"
        ))),
    }
}
