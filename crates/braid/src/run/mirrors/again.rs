//! A mirror that was stopped is started again, by `mirror.assemble`, in the same engine.
//!
//! # Contract
//! With the legs that it had when it was stopped, as volumes opened anew, and as another run of
//! another lineage; so all that holds at an engine's start holds here. A leg that can't be opened
//! is left out, and the engine decides whether the mirror may go on without it. Its exports listen
//! again.
//!
//! # Limits
//! A leg that was left out is not reached before the mirror is stopped and started once more.
use super::legs::file_of;
use super::orders::{NotStarted, meant};
use super::{leg_config, mirror_config, owner, storage_of};
use crate::control::rpc::ControlError;
use crate::control::server::Caller;
use crate::log;
use crate::run::config::{Export, Volume};
use crate::run::service::Service;
use crate::run::volumes::Running;
use engine::mirror::{Anew, LegConfig, LegReport, MirrorOrder, MirrorState};
use mirror::assembly::Wishes;
use std::time::Duration;

/// How long it has to start while somebody waits for it: it may have to watch another owner for
/// four beats. It starts later, too.
pub(super) const WAIT: Duration = Duration::from_secs(45);

/// State of a mirror that was stopped.
#[derive(Clone)]
pub struct Stopped {
    /// Its legs as they were shown then.
    pub legs: Vec<LegReport>,
    /// Where it was exported.
    pub exports: Vec<Export>,
}

impl Service {
    /// Starts a mirror that was stopped; `discard`: the leg that is given up, by its number or URI.
    ///
    /// # Errors
    /// It was not stopped, has no leg that can be opened, or lacks the one that is given up; an
    /// export can't listen; what became of it.
    pub(super) fn start_again(
        &self,
        volume: u16,
        without: bool,
        discard: Option<&str>,
        by: &Caller<'_>,
    ) -> Result<(), NotStarted> {
        let _alone = self.alone_with_mirror(volume, by)?;
        let name = self.name(volume);
        let (stopped, of) = {
            let state = self.state();
            let stopped = state.stopped.get(&volume).cloned();
            // It may have left while another verb was waited for.
            let it = state.volumes.get(volume);
            let it = it.ok_or_else(|| state.volumes.unknown(&name))?;
            (stopped, it.of.clone())
        };
        // Another verb may have started it meanwhile: then its legs are in use.
        let not = || ControlError::refused(format!("{name} was not stopped by verb"));
        let stopped = stopped.ok_or_else(not)?;
        // It has ended only after that was waited for: they are open still.
        self.close_legs(&name);
        let files: Vec<Volume> = self.state().idle_legs(&name).cloned().collect();
        let given_up = |wanted| {
            let called = |it: &&Volume| it.paths.iter().any(|keys| keys.uri.to_string() == wanted);
            if let Some(file) = files.iter().find(called) {
                return Ok(file);
            }
            let leg = &stopped.legs[meant(&stopped.legs, wanted)?];
            let why = || format!("{name}: leg {wanted}: which one can't be told, name its URI");
            file_of(files.iter(), leg).ok_or_else(|| ControlError::params(why()))
        };
        let discard = discard.map(given_up).transpose()?;
        let free = self.ensure_free(&files);
        free.map_err(|why| ControlError::refused(format!("{name}: {why}")))?;
        let wishes = |legs: &[LegConfig]| {
            if legs.is_empty() {
                return Err("none of its legs can be opened: see the engine's log".into());
            }
            let is_it = |leg: &Volume, it: &LegConfig| self.name(it.volume) == leg.name;
            let place = |leg: &Volume| {
                let place = legs.iter().position(|it| is_it(leg, it));
                let name = leg_config(leg, 0).name;
                let why = "is to be given up, and can't be opened: leave it out";
                place.ok_or_else(|| format!("{name} {why}"))
            };
            let discard = discard.map(place).transpose()?;
            Ok(Wishes { without, discard })
        };
        let became = self.begin(volume, &of, &files, wishes);
        let became = became.map_err(|why| ControlError::refused(format!("{name}: {why}")))?;
        self.state().stopped.remove(&volume);
        self.edit(volume, true, |it| {
            // Unless they were added again by now.
            let there = it.of.exports.clone();
            let again = stopped.exports.into_iter();
            let again = again.filter(|new| !there.iter().any(|it| it.nbd == new.nbd));
            it.of.exports.extend(again);
            Ok(())
        })?;
        match became {
            MirrorState::Running => Ok(()),
            MirrorState::Refused(why) | MirrorState::Failed(why) => {
                Err(ControlError::refused(format!("{name} does not start: {why}")).into())
            }
            MirrorState::Assembling | MirrorState::Stopped => {
                let why = ControlError::refused(format!(
                    "{name} has not started yet, and starts when its legs answer (braid stat \
                     shows why it waits); braid mirror stop ends that"
                ));
                Err(NotStarted { why, pending: true })
            }
        }
    }

    /// A mirror is new in the configuration, with these legs: it is assembled, and runs; it isn't
    /// there yet, but has this number.
    ///
    /// # Errors
    /// Why it does not start; then nothing of it is left.
    pub fn open_mirror(&self, of: &Volume, legs: &[Volume]) -> Result<u16, String> {
        self.ensure_free(legs)?;
        self.inherit(of)?;
        let number = {
            let choices = self.choices();
            let mut state = self.state();
            let number = self.senders.free_mirror(&state.volumes.mirrors());
            let number =
                number.ok_or("no core has memory for another mirror: restart the engine")?;
            let new = Running::new(choices.desired(of));
            state.volumes.open_mirror(new, number)?;
            number
        };
        let became = self.begin(number, of, legs, |_| Ok(Wishes::default()));
        let why = match became {
            Ok(MirrorState::Running) => return Ok(number),
            // The caller names it as well.
            Ok(MirrorState::Refused(why) | MirrorState::Failed(why)) => {
                let named = format!("{}: ", of.name);
                why.strip_prefix(&named).unwrap_or(&why).to_owned()
            }
            Ok(MirrorState::Assembling | MirrorState::Stopped) => format!(
                "it has not started within {} s: the engine's log says which legs it waits for",
                WAIT.as_secs()
            ),
            Err(why) => why,
        };
        self.take_back_volume(self.state(), number);
        Err(why)
    }

    /// Opens legs of a mirror, which begins with those that could be opened; what becomes of it.
    ///
    /// # Errors
    /// Why it does not begin; then its legs are closed.
    fn begin(
        &self,
        volume: u16,
        of: &Volume,
        files: &[Volume],
        wishes: impl FnOnce(&[LegConfig]) -> Result<Wishes, String>,
    ) -> Result<MirrorState, String> {
        let open = |leg: &Volume| {
            let opened = self.open_leg_of(leg);
            let left_out = |why| log::say(format!("{}: this leg is left out: {why}", leg.name));
            opened.map_err(left_out).ok()
        };
        let (legs, infos): (Vec<_>, Vec<_>) = files.iter().filter_map(open).unzip();
        let begun = wishes(&legs).and_then(|wishes| {
            let known = self.known().mirror(&of.name);
            let mut config = mirror_config(of, legs, known, owner(&self.identity));
            config.wishes = wishes;
            let anew = Box::new(Anew { config, infos });
            self.senders.order(volume, MirrorOrder::Begin(anew));
            let (mut became, mut why) = (MirrorState::Stopped, None);
            // Its core hears the order before it is asked: one that is stopped then was not begun.
            self.wait_for(volume, WAIT, |it| {
                (became, why) = (it.state.clone(), it.not_begun.clone());
                became != MirrorState::Assembling
            });
            match became {
                MirrorState::Stopped => {
                    Err(why.unwrap_or_else(|| "it was stopped meanwhile".into()))
                }
                became => Ok(became),
            }
        });
        if begun.is_err() {
            self.close_legs(&of.name);
        }
        begun
    }

    /// A leg that another volume has, which may write to it, is none that is missing (T48).
    ///
    /// # Errors
    /// Which one.
    fn ensure_free(&self, legs: &[Volume]) -> Result<(), String> {
        for leg in legs {
            for keys in &leg.paths {
                if let Some(storage) = storage_of(&keys.uri) {
                    let state = self.state();
                    state.volumes.ensure_apart(leg, &keys.uri, &storage)?;
                }
            }
        }
        Ok(())
    }
}
