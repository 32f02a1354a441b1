//! A mirror that was stopped is started again, by `mirror.assemble`, in the same engine.
//!
//! # Contract
//! With the legs that it had when it was stopped, as volumes opened anew, and as another run of
//! another lineage; so all that holds at an engine's start holds here. A leg that can't be opened
//! is left out, and the engine decides whether the mirror may go on without it. Its exports listen
//! again.
//!
//! # Limits
//! A leg that was left out is not reached before the engine's next start.
use super::{leg_config, mirror_config, owner};
use crate::control::rpc::Failure;
use crate::log;
use crate::run::config::{Export, Volume};
use crate::run::service::Service;
use engine::mirror::{Anew, MirrorOrder, MirrorState};
use serde_json::{Value, json};
use std::time::Duration;
use volume::mirror::assembly::Wishes;

/// How long it has to start while somebody waits for it: it may have to watch another owner for
/// four beats. It starts later, too.
const WAIT: Duration = Duration::from_secs(45);

/// What a mirror had that was stopped.
#[derive(Clone)]
pub struct Stopped {
    /// Its legs.
    pub legs: Vec<Volume>,
    /// Where it was exported.
    pub exports: Vec<Export>,
}

impl Service {
    /// Starts a mirror that was stopped.
    ///
    /// # Errors
    /// It was not, has no leg that can be opened, or an export can't listen; what became of it.
    pub(super) fn start_again(&self, volume: u16, wishes: Wishes) -> Result<Value, Failure> {
        let _alone = self.changes.alone();
        let name = self.name(volume);
        let (stopped, of) = {
            let state = self.state();
            let stopped = state.stopped.get(&volume).cloned();
            (stopped, state.volumes[volume].of.clone())
        };
        let not = || Failure::refused(format!("{name} was not stopped by verb"));
        let stopped = stopped.ok_or_else(not)?;
        let (mut legs, mut infos) = (Vec::new(), Vec::new());
        for leg in &stopped.legs {
            match self.open_leg_of(leg) {
                Ok((number, info)) => {
                    legs.push(leg_config(leg, number));
                    infos.push(info);
                }
                Err(why) => log::say(format!("{}: this leg is left out: {why}", leg.name)),
            }
        }
        if legs.is_empty() {
            let why = "none of its legs can be opened: see the engine's log";
            return Err(Failure::refused(format!("{name}: {why}")));
        }
        let opened: Vec<u16> = legs.iter().map(|leg| leg.volume).collect();
        let mut config = mirror_config(&of, legs, owner(&self.identity));
        config.wishes = wishes;
        let anew = Box::new(Anew { config, infos });
        self.senders.order(volume, MirrorOrder::Begin(anew));
        let mut became = MirrorState::Stopped;
        self.wait_for(volume, WAIT, |it| {
            became = it.state.clone();
            !matches!(became, MirrorState::Gathering | MirrorState::Stopped)
        });
        if became == MirrorState::Stopped {
            // The engine has said why.
            opened.into_iter().for_each(|number| self.close_leg(number));
            let why = "it was not begun: see the engine's log, and try again";
            return Err(Failure::refused(format!("{name}: {why}")));
        }
        self.listen_again(volume, &stopped.exports)?;
        match became {
            MirrorState::Running => Ok(json!({"volume": name, "leg": null})),
            MirrorState::Refused(why) | MirrorState::Failed(why) => {
                Err(Failure::refused(format!("{name} does not start: {why}")))
            }
            MirrorState::Gathering | MirrorState::Stopped => Err(Failure::refused(format!(
                "{name} has not started yet: braid stat shows it"
            ))),
        }
    }

    /// It was begun: its exports listen, unless they do by now.
    fn listen_again(&self, volume: u16, exports: &[Export]) -> Result<(), Failure> {
        let mut state = self.state();
        state.stopped.remove(&volume);
        for export in exports {
            let mut there = state.exports.iter().flatten();
            if there.any(|it| it.volume == volume && it.export == *export) {
                continue;
            }
            let made = self.add_export(&mut state, volume, export.clone(), None);
            made.map_err(|error| Failure::refused(format!("{error:#}")))?;
        }
        Ok(())
    }
}
