//! Legs that the configuration drops, and their return where that is taken back.
//!
//! # Contract
//! Data of others in the place of a leg are not written over: only what had this mirror's
//! superblock when it left is taken in by force.
use super::legs::{LegRemoval, SOON, idle_leg};
use super::orders;
use crate::control::rpc::ControlError;
use crate::log;
use crate::run::config::Volume;
use crate::run::service::Service;
use engine::mirror::{LegReport, LegStatus};

/// A leg that the configuration drops.
#[derive(Clone, Debug, PartialEq)]
pub enum Dropped {
    /// It is a leg. `is_ours`: its file or device has this mirror's superblock, so what is there
    /// may be written over where it comes back.
    Leg { leg: Box<LegReport>, is_ours: bool },
    /// It is no leg, and nothing is written to it: its data belong to others. `None`: the mirror
    /// does not know of it.
    Place(Option<Box<LegReport>>),
}

/// Whether the mirror has read its own superblock on the leg's storage. The storage of a leg that
/// is missing may be another one by now.
fn has_own_superblock(leg: &LegReport) -> bool {
    let is_there = !matches!(leg.status, LegStatus::Missing | LegStatus::Unusable);
    leg.volume.is_some() && leg.slot.is_some() && is_there
}

impl Service {
    /// The kind of a leg of the file: a leg, what is in its place, or one that could not be opened
    /// when its mirror was started again.
    ///
    /// # Errors
    /// The mirror does not run, or can't be written.
    pub fn dropped(&self, volume: u16, of: &Volume) -> Result<Dropped, ControlError> {
        let report = self.mirror_report(volume)?;
        self.may_write(volume, &report)?;
        self.ensure_running(volume, &report)?;
        let (number, leg) = {
            let state = self.state();
            let number = state.volumes.opened_as(&of.name);
            let is_idle = |leg: &LegReport| {
                let file = idle_leg(&state, volume, leg);
                leg.volume.is_none() && file.is_some_and(|it| it.name == of.name)
            };
            let mut legs = report.legs.into_iter();
            let leg = legs.find(|it| match number {
                Some(_) => it.volume == number,
                None => is_idle(it),
            });
            (number, leg.map(Box::new))
        };
        match leg {
            Some(leg) if orders::is_another(&leg) => Ok(Dropped::Place(Some(leg))),
            Some(leg) => {
                // While it is there: afterwards its file is not open any more.
                let is_ours = has_own_superblock(&leg) && self.is_the_same(&leg).is_ok();
                Ok(Dropped::Leg { leg, is_ours })
            }
            None if number.is_none() => Ok(Dropped::Place(None)),
            None => Err(ControlError::refused("it has left meanwhile")),
        }
    }

    /// A leg of the file goes.
    ///
    /// # Errors
    /// It is the last one in sync, or can't be now.
    pub fn drop_leg(&self, volume: u16, dropped: &Dropped) -> Result<(), ControlError> {
        match dropped {
            Dropped::Place(Some(leg)) => self.forget_place(volume, leg),
            Dropped::Place(None) => Ok(()),
            Dropped::Leg { leg, .. } => self.unmake_leg(volume, leg),
        }
    }

    /// Whether a leg is being removed.
    pub fn is_leaving(&self, volume: u16, leg: &LegReport) -> bool {
        let report = self.mirror_report(volume);
        report.is_ok_and(|it| {
            let removal = LegRemoval::of(&it, leg);
            matches!(removal, LegRemoval::Writing | LegRemoval::Wiping)
        })
    }

    /// Waits until the removal of a leg that goes on is over, so that it can be taken in again.
    /// Returns whether its file is the mirror's still; `None`: the removal was given up, and it is
    /// a leg as before.
    ///
    /// # Errors
    /// It has not left yet.
    pub fn wait_left(&self, volume: u16, leg: &LegReport) -> Result<Option<bool>, ControlError> {
        let (name, which) = (self.name(volume), &leg.name);
        log::say(format!(
            "{name}: {which}: it is taken in again when its removal is on the legs"
        ));
        let mut removal = LegRemoval::Writing;
        let is_over = self.wait_for(volume, SOON, |it| {
            removal = LegRemoval::of(it, leg);
            matches!(removal, LegRemoval::Member | LegRemoval::Done)
        });
        if !is_over {
            return Err(ControlError::refused(format!(
                "{which}: it is being removed; braid mirror add takes it in again afterwards"
            )));
        }
        if removal == LegRemoval::Member {
            return Ok(None);
        }
        let is_ours = self.is_the_same(leg).is_ok();
        self.tidy_legs(volume);
        Ok(Some(is_ours))
    }

    /// Takes back that the configuration of a mirror has no leg at this place. It has no volume
    /// before the mirror is started again.
    pub fn return_place(&self, of: &Volume) {
        let mut state = self.state();
        if state.configured.volume(&of.name).is_none() {
            state.configured.volumes.push(of.clone());
        }
    }
}
