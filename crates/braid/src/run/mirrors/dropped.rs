//! Legs that the configuration drops, and their return where that is taken back.
//!
//! # Contract
//! Data of others in the place of a leg are not written over: only what had this mirror's
//! superblock when it left is taken in by force.
use super::legs::idle_leg;
use super::orders;
use crate::control::rpc::ControlError;
use crate::run::config::Volume;
use crate::run::service::Service;
use engine::mirror::{LegReport, LegStatus};

/// Result of the removal of a leg from the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// It was a leg, and is none any more. `is_ours`: its file or device had this mirror's
    /// superblock until then, so what is there may be written over.
    Leg { is_ours: bool },
    /// It was no leg, and nothing was written to it: its data belong to others.
    Place,
}

/// Whether the mirror has read its own superblock on the leg's storage. The storage of a leg that
/// is missing may be another one by now.
fn has_own_superblock(leg: &LegReport) -> bool {
    let is_there = !matches!(leg.status, LegStatus::Missing | LegStatus::Unusable);
    leg.volume.is_some() && leg.slot.is_some() && is_there
}

impl Service {
    /// A leg of the file goes: one that is a leg, what is in its place, or one that could not be
    /// opened when its mirror was started again.
    ///
    /// # Errors
    /// It is the last one in sync, or can't be now; the mirror does not run.
    pub fn drop_leg(&self, volume: u16, of: &Volume) -> Result<Dropped, ControlError> {
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
            let mut legs = report.legs.iter();
            let leg = legs.find(|it| match number {
                Some(_) => it.volume == number,
                None => is_idle(it),
            });
            (number, leg)
        };
        match leg {
            Some(leg) if orders::is_another(leg) => {
                self.forget_place(volume, leg)?;
                Ok(Dropped::Place)
            }
            Some(leg) => {
                // Before it leaves: afterwards its file is not open any more.
                let is_ours = has_own_superblock(leg) && self.is_the_same(leg).is_ok();
                self.unmake_leg(volume, leg)?;
                Ok(Dropped::Leg { is_ours })
            }
            None if number.is_none() => Ok(Dropped::Place), // the mirror does not count it as a leg
            None => Err(ControlError::refused("it has left meanwhile")),
        }
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
